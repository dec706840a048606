//! `pmu-kernel-screen DUMP`: the texts of the QR codes on a screen, of which QEMU made a dump (PPM), in the order of
//! their numbers.

use std::process::ExitCode;

use rqrr::PreparedImage;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: pmu-kernel-screen DUMP.ppm");
        return ExitCode::from(2);
    };
    match std::fs::read(&path).map_err(|error| error.to_string()).and_then(|dump| texts(&dump)) {
        Ok(texts) => {
            texts.iter().for_each(|text| println!("{text}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("pmu-kernel-screen: {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the texts of all codes of a dump: `P6`, width, height and 255, each followed by a space or a line's end,
/// then three bytes for each pixel.
fn texts(dump: &[u8]) -> Result<Vec<String>, String> {
    let mut fields = dump.splitn(5, u8::is_ascii_whitespace);
    let mut field = || fields.next().ok_or_else(|| "the dump is cut off".to_owned());
    let magic = field()?;
    let mut number = || {
        let text = str::from_utf8(field()?).map_err(|error| error.to_string())?;
        text.parse::<usize>().map_err(|error| error.to_string())
    };
    let (width, height, most) = (number()?, number()?, number()?);
    let pixels = field()?;
    if magic != b"P6" || most != 255 || pixels.len() != width * height * 3 {
        return Err("not a PPM of 24 bits per pixel".to_owned());
    }
    let gray = |x, y| pixels[(y * width + x) * 3];
    let mut screen = PreparedImage::prepare_from_greyscale(width, height, gray);
    let codes = screen.detect_grids();
    if codes.is_empty() {
        return Err("no code on the screen".to_owned());
    }
    let texts = codes.iter().map(|code| code.decode().map(|(_, text)| text));
    let mut texts = texts.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    texts.sort();
    Ok(texts)
}
