//! Flame graphs as SVG, drawn by `inferno`.

use std::io;

use inferno::flamegraph::color::MultiPalette;
use inferno::flamegraph::{Options, Palette, from_lines};

use super::folded;
use crate::profiler::graph::Graph;

/// Colors of the page where the browser asks for dark ones; those of frames stay, with their dark names.
const DARK: &str = "@media (prefers-color-scheme: dark) { svg { background: #1b1b1f; } \
     svg > rect { fill: #1b1b1f; } #title, #details, #search, #matched, #unzoom { fill: #e6e6e6; } }\n";

/// Draws the stacks, a whole SVG file that a browser lets search and zoom. The kernel's frames have a color of their
/// own, as have inlined ones.
///
/// # Errors
/// There is no sample.
pub fn draw(graph: &Graph, title: &str, unit: &str) -> io::Result<Vec<u8>> {
    let mut options = Options::default();
    options.title = title.into();
    options.count_name = unit.into();
    options.deterministic = true;
    // Names that end so are the kernel's and inlined ones, as `stackcollapse-perf.pl --all` has them.
    options.colors = Palette::Multi(MultiPalette::Java);
    let mut svg = Vec::new();
    from_lines(&mut options, folded::annotated(graph).lines(), &mut svg)?;
    let svg = String::from_utf8_lossy(&svg);
    // Behind the other rules.
    Ok(svg.replacen("</style>", &format!("{DARK}</style>"), 1).into_bytes())
}
