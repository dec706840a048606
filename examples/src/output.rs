//! Writing to standard output.

use std::io::{self, Write};

/// Writes to standard output. A reader that has seen enough, such as `head`, is no error.
///
/// # Errors
/// Anything else that can go wrong, such as a full disk.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
