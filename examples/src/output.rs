//! Writing to standard output, and its width.

use std::io::{self, Write};

use crate::untrusted::visible_lines;

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

/// Writes a program's message to standard error; what other users put into it is made visible.
pub fn complain(program: &str, message: &dyn core::fmt::Display) {
    eprintln!("{program}: {}", visible_lines(&message.to_string()));
}

/// Returns the width of the terminal that standard output is, in characters; `None` if it is none.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn terminal_width() -> Option<usize> {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut size: libc::winsize = unsafe { core::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    let result = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
    (result == 0 && size.ws_col > 0).then_some(size.ws_col.into())
}
