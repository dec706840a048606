//! Reading a CPUID dump's file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The most bytes that a dump has: of a thousand processors, as `cpuid -r` prints each, some 10 MB.
pub const MOST_BYTES: u64 = 64 << 20;

/// Reads a dump's file, pipe or device; `-` is standard input.
///
/// # Errors
/// It cannot be read, or has more than [`MOST_BYTES`].
pub fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match file == Path::new("-") {
        true => io::stdin().lock().take(MOST_BYTES + 1).read_to_end(&mut bytes)?,
        false => File::open(file)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?,
    };
    match bytes.len() as u64 > MOST_BYTES {
        true => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "more than 64 MiB: not a CPUID dump"))
        }
        false => Ok(bytes),
    }
}
