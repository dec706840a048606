//! `pmu-kernel-decode KERNEL`: defmt frames from standard input, as lines on standard output.

use std::io::{Read, Write};
use std::process::ExitCode;

use defmt_decoder::{DecodeError, Table};

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: pmu-kernel-decode KERNEL < FRAMES");
        return ExitCode::from(2);
    };
    match decode(&path) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("pmu-kernel-decode: {path}: {error}");
            ExitCode::from(3)
        }
    }
}

/// Decodes until the input ends. `false`: there were frames that could not be decoded.
fn decode(path: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let table = Table::parse(&std::fs::read(path)?)?.ok_or("no .defmt section")?;
    let mut stream = table.new_stream_decoder();
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let (mut bytes, mut good) = ([0; 1024], true);
    loop {
        let length = input.read(&mut bytes)?;
        if length == 0 {
            return Ok(good);
        }
        stream.received(&bytes[..length]);
        loop {
            match stream.decode() {
                Ok(frame) => writeln!(output, "{}", frame.display_message())?,
                Err(DecodeError::UnexpectedEof) => break,
                Err(DecodeError::Malformed) => {
                    eprintln!("pmu-kernel-decode: a frame is malformed");
                    good = false;
                }
            }
        }
        output.flush()?;
    }
}
