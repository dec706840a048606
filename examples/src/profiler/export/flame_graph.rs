//! Flame graphs as SVG, drawn by `inferno`.

use core::cmp::Reverse;
use core::hash::{Hash, Hasher};
use std::collections::{BTreeMap, HashMap};
use std::hash::DefaultHasher;
use std::io;

use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::{Options, from_lines};

use super::folded;
use crate::profiler::graph::Graph;

/// Colors of the page where the browser asks for dark ones; those of frames stay, with their dark names.
const DARK: &str = "@media (prefers-color-scheme: dark) { svg { background: #1b1b1f; } \
     svg > rect { fill: #1b1b1f; } #title, #subtitle, #details, #search, #matched, #unzoom { fill: #e6e6e6; } }\n";

/// The colors of the files, those with the most samples first, and of all other files and what is no file.
const FILES: [(&str, [u8; 3]); 5] = [
    ("red", [236, 110, 80]),
    ("green", [120, 196, 96]),
    ("blue", [116, 166, 236]),
    ("purple", [190, 140, 224]),
    ("yellow", [226, 202, 84]),
];
const OTHERS: (&str, [u8; 3]) = ("gray", [178, 178, 178]);
const KERNEL: (&str, [u8; 3]) = ("orange", [240, 150, 40]);

/// Draws the stacks, a whole SVG file that a browser lets search and zoom. Each file has its color, as has the kernel;
/// inlined frames have a paler one.
///
/// # Errors
/// There is no sample.
pub fn draw(graph: &Graph, title: &str, unit: &str) -> io::Result<Vec<u8>> {
    let files = files(graph);
    let mut palette = palette(graph, &files);
    let mut options = Options::default();
    options.title = title.into();
    options.subtitle = Some(legend(graph, &files));
    options.count_name = unit.into();
    options.deterministic = true;
    options.palette_map = Some(&mut palette);
    let mut svg = Vec::new();
    from_lines(&mut options, folded::annotated(graph).lines(), &mut svg)?;
    let svg = String::from_utf8_lossy(&svg);
    // Behind the other rules.
    Ok(svg.replacen("</style>", &format!("{DARK}</style>"), 1).into_bytes())
}

/// Returns the files that have a color of their own, in the colors' order.
fn files(graph: &Graph) -> Vec<&str> {
    let mut samples = BTreeMap::<&str, u64>::new();
    for sample in &graph.samples {
        let innermost = graph.stacks[sample.stack].last().map(|frame| &graph.frames[*frame]);
        if let Some(named) = innermost.filter(|named| !named.kernel && !named.module.is_empty()) {
            *samples.entry(&named.module).or_default() += u64::from(sample.interrupts);
        }
    }
    let mut files: Vec<_> = samples.into_iter().collect();
    files.sort_by_key(|(name, samples)| (Reverse(*samples), *name));
    files.into_iter().map(|(name, _)| name).take(FILES.len()).collect()
}

/// Returns the color of each frame, by the name that the folded stacks have.
fn palette(graph: &Graph, files: &[&str]) -> PaletteMap {
    let mut colors = HashMap::new();
    for named in &graph.frames {
        let file = files.iter().position(|file| *file == named.module);
        let (_, [r, g, b]) = match file {
            _ if named.kernel => KERNEL,
            Some(file) => FILES[file],
            None => OTHERS,
        };
        let name = folded::annotated_name(named);
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        // Neighbors of one file are told apart by it.
        let shade = (hasher.finish() % 24) as u8;
        let pale = if named.frame.inlined { 2 } else { 0 };
        let tone = |value: u8| {
            let value = value.saturating_sub(shade);
            value + (u8::MAX - value) / 4 * pale
        };
        colors.entry(name).or_insert(Color { r: tone(r), g: tone(g), b: tone(b) });
    }
    let mut palette = PaletteMap::default();
    colors.into_iter().for_each(|(name, color)| _ = palette.insert(name, color));
    palette
}

/// Tells which color is which file's.
fn legend(graph: &Graph, files: &[&str]) -> String {
    let named = FILES.iter().zip(files).map(|((color, _), file)| format!("{color}: {file}"));
    let mut legend: Vec<_> = named.collect();
    if graph.frames.iter().any(|named| named.kernel) {
        legend.push(format!("{}: the kernel", KERNEL.0));
    }
    if graph.frames.iter().any(|named| !named.kernel && !files.contains(&&*named.module)) {
        legend.push(format!("{}: other files", OTHERS.0));
    }
    if graph.frames.iter().any(|named| named.frame.inlined) {
        legend.push("pale: inlined".into());
    }
    legend.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiler::graph::tests::graph;

    #[test]
    fn each_file_and_the_kernel_have_a_color_which_the_legend_tells() {
        let mut graph = graph("main;a;c 5\nmain;a;k 3\nmain;a;~i 1\nmain;b 1");
        let place =
            |name: &str| graph.frames.iter().position(|one| one.frame.name == name).unwrap();
        let [b, c, k] = ["b", "c", "k"].map(place);
        graph.frames[b].module = "libb.so".into();
        graph.frames[c].module = "libc.so.6".into();
        graph.frames[k].kernel = true;
        let svg = String::from_utf8(draw(&graph, "title", "samples").unwrap()).unwrap();
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        let document = roxmltree::Document::parse_with_options(&svg, options).unwrap();
        let legend =
            "red: libc.so.6, green: libb.so, blue: tool, orange: the kernel, pale: inlined";
        assert!(document.descendants().any(|node| node.text() == Some(legend)), "{svg}");
        let color = |name: &str| {
            let title = document.descendants().find(|node| {
                node.tag_name().name() == "title"
                    && node.text().is_some_and(|text| text.starts_with(&format!("{name} (")))
            });
            let group = title.and_then(|title| title.parent()).unwrap();
            let fill = group.descendants().find_map(|node| node.attribute("fill")).unwrap();
            let numbers = fill.trim_start_matches("rgb(").trim_end_matches(')').split(',');
            let numbers: Vec<u8> = numbers.map(|number| number.parse().unwrap()).collect();
            numbers
        };
        let [red, green, blue, orange] = ["c", "b", "a", "k"].map(color);
        assert!(red[0] > red[1] && red[1] > red[2], "{red:?}");
        assert!(green[1] > green[0] && green[1] > green[2], "{green:?}");
        assert!(blue[2] > blue[0], "{blue:?}");
        assert!(orange[0] > orange[1] && orange[1] > 2 * orange[2], "{orange:?}");
        // An inlined frame is paler than its file's others.
        assert!(color("~i").iter().zip(&blue).all(|(pale, own)| pale > own));
    }
}
