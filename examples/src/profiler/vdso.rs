//! The image of the kernel's code that every process has: vdso(7).

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::FromRawFd;
use std::path::Path;

use super::maps;

/// The label of its mapping.
pub(super) const PATH: &str = "[vdso]";

/// The largest image that is taken for one.
const LARGEST: u64 = 1 << 20;

/// Returns the image, which is the same in all processes of 64 bits, as a file; `None` where this process has none.
pub(super) fn image() -> Option<File> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let mappings = maps::executable(&maps);
    let here = mappings.iter().find(|mapping| mapping.path == Path::new(PATH))?;
    if here.size > LARGEST {
        return None;
    }
    // SAFETY: the kernel maps the image readable, as long as this process lives, and nothing writes it.
    let image = unsafe { core::slice::from_raw_parts(here.start as *const u8, here.size as usize) };
    // SAFETY: the name ends in 0.
    let file = unsafe { libc::memfd_create(c"vdso".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: it was just opened, and has no other owner.
    let mut file = unsafe { File::from_raw_fd(file) };
    file.write_all(image).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf;

    /// vdso(7), "x86-64 functions".
    #[test]
    fn the_image_has_its_functions() {
        let Some(image) = image() else {
            println!("skipped: no vdso here");
            return;
        };
        let file = elf::File::read(image, Path::new(PATH)).unwrap();
        assert!(file.has_functions());
    }
}
