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

/// Width of the text beside the codes in pixels, and modules of the largest code with its margins: those of the
/// kernel's last page.
const TEXT: usize = 46 * 8;
const MODULES: usize = 57 + 8;

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
    // The corners of several codes may look like those of one, so each is read from its own place.
    for (left, scale) in
        [TEXT, 0].into_iter().flat_map(|left| (2..=6).map(move |scale| (left, scale)))
    {
        let side = MODULES * scale;
        let places = (0..height / side).flat_map(|row| {
            (0..width.saturating_sub(left) / side).map(move |column| (row, column))
        });
        let mut texts: Vec<String> = places
            .flat_map(|(row, column)| {
                let at = |x, y| gray(left + column * side + x, row * side + y);
                let mut code = PreparedImage::prepare_from_greyscale(side, side, at);
                let grids = code.detect_grids();
                grids.iter().filter_map(|grid| Some(grid.decode().ok()?.1)).collect::<Vec<_>>()
            })
            .collect();
        texts.sort();
        texts.dedup();
        // Each says how many there are: `PMU1 2/4 …`.
        let announced = texts.first().and_then(|text| text.split([' ', '/']).nth(2)?.parse().ok());
        if announced == Some(texts.len()) {
            return Ok(texts);
        }
    }
    Err("not all codes are on the screen".to_owned())
}
