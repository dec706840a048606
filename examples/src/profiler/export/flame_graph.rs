//! Flame graphs as SVG, drawn by `inferno`.

use std::io;

use inferno::flamegraph::{Options, from_lines};

use super::folded;
use crate::profiler::graph::Graph;

/// Draws the stacks, a whole SVG file that a browser lets search and zoom.
///
/// # Errors
/// There is no sample.
pub fn draw(graph: &Graph, title: &str, unit: &str) -> io::Result<Vec<u8>> {
    let mut options = Options::default();
    options.title = title.into();
    options.count_name = unit.into();
    options.deterministic = true;
    let mut svg = Vec::new();
    from_lines(&mut options, folded::write(graph).lines(), &mut svg)?;
    Ok(svg)
}
