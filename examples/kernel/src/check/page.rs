//! The last page: the verdicts, to be read and photographed.

use core::fmt::Write;

use qrcodegen_no_heap::{QrCode, QrCodeEcc, Version};

use crate::check::claim::Outcome;
use crate::check::list::CLAIMS;
use crate::check::report::{MOST_CODES, Outcomes, Processor, Text, codes};
use crate::machine::{clock, screen};

/// The largest code: 57 modules, and 4 of margin on each side.
const VERSION: Version = Version::new(10);
const MODULES: usize = 57 + 8;
/// Columns of text beside the codes; and the pixels of a column.
const TEXT: usize = 46;
const COLUMN: usize = 8;
/// Time for which each of two pages is shown, where the codes need one of their own.
const PAGE_MS: u64 = 15_000;

/// Text on the screen.
struct Paper;

impl Write for Paper {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        screen::print(text);
        Ok(())
    }
}

/// Shows the page. Where text and codes need a page each, goes on turning pages; otherwise, and without a screen, comes
/// back.
pub fn show(processor: &Processor, outcomes: &Outcomes) {
    let Some((width, height)) = screen::pixels() else { return };
    let (texts, count) = codes(processor, outcomes);
    let codes = &texts[..count.min(MOST_CODES)];
    let beside = TEXT * COLUMN;
    screen::clear();
    if let Some(scale) = scale(width.saturating_sub(beside), height, count) {
        verdicts(outcomes);
        return draw(codes, beside, width, scale);
    }
    let Some(scale) = scale(width, height, count) else { return verdicts(outcomes) };
    loop {
        verdicts(outcomes);
        clock::wait(PAGE_MS);
        screen::clear();
        draw(codes, 0, width, scale);
        clock::wait(PAGE_MS);
        screen::clear();
    }
}

/// Prints the verdicts, those that agree last.
fn verdicts(outcomes: &Outcomes) {
    let _ = writeln!(Paper, "pmu check {}", env!("CARGO_PKG_VERSION"));
    let agrees = |outcome: &Outcome| outcome.verdict.word() == "agrees";
    for agree in [false, true] {
        for ((id, _), outcome) in CLAIMS.iter().zip(outcomes) {
            if agrees(outcome) == agree {
                let _ = writeln!(Paper, "{id:28} {}", outcome.verdict.word());
            }
        }
    }
    let _ = writeln!(
        Paper,
        "\nPhotograph this page; hwcheck\n--decode turns the codes' texts\ninto the report."
    );
}

/// Returns the greatest scale at which so many codes have room.
fn scale(width: usize, height: usize, count: usize) -> Option<usize> {
    let fits = |scale: &usize| (width / (MODULES * scale)) * (height / (MODULES * scale)) >= count;
    (2..=6).rev().find(fits)
}

fn draw(codes: &[Text], left: usize, width: usize, scale: usize) {
    let (mut work, mut code) = ([0; VERSION.buffer_len()], [0; VERSION.buffer_len()]);
    let side = MODULES * scale;
    let columns = ((width - left) / side).max(1);
    for (number, text) in codes.iter().enumerate() {
        let made = QrCode::encode_text(
            text.as_str(),
            &mut work,
            &mut code,
            QrCodeEcc::Medium,
            Version::MIN,
            VERSION,
            None,
            false,
        );
        let Ok(made) = made else { continue };
        let (x, y) = (left + number % columns * side, number / columns * side);
        let modules = made.size() + 8;
        for row in 0..modules {
            for column in 0..modules {
                let white = !made.get_module(column - 4, row - 4);
                let place = |start: usize, at: i32| start + at as usize * scale;
                screen::square(place(x, column), place(y, row), scale, white);
            }
        }
    }
}
