//! Folded stacks: a line per stack, `process;outermost;…;innermost count`, as `stackcollapse-perf.pl` has it.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use crate::profiler::graph::{Graph, NamedFrame};
use crate::untrusted::is_control;

/// Returns the stacks, under the names of their processes.
pub fn write(graph: &Graph) -> String {
    lines(graph, |named| clean(&named.frame.name))
}

/// The same, with a mark behind each frame of the kernel's and each inlined one.
pub fn annotated(graph: &Graph) -> String {
    lines(graph, annotated_name)
}

/// Returns a frame's name with its mark.
pub fn annotated_name(named: &NamedFrame) -> String {
    let mark = match (named.kernel, named.frame.inlined) {
        (true, _) => "_[k]",
        (false, true) => "_[i]",
        (false, false) => "",
    };
    clean(&named.frame.name) + mark
}

fn lines(graph: &Graph, name: impl Fn(&NamedFrame) -> String) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for sample in &graph.samples {
        let mut line = clean(&graph.threads[sample.thread].process_name);
        for frame in &graph.stacks[sample.stack] {
            line.push(';');
            line += &name(&graph.frames[*frame]);
        }
        *lines.entry(line).or_default() += u64::from(sample.interrupts);
    }
    let mut text = String::new();
    for (stack, interrupts) in lines {
        // A String takes whatever is written.
        let _ = writeln!(text, "{stack} {interrupts}");
    }
    text
}

/// Returns a name without what separates names and lines.
fn clean(name: &str) -> String {
    name.replace(|c: char| c == ';' || is_control(c), "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiler::graph::tests::graph;

    #[test]
    fn equal_stacks_are_summed_up_and_separators_in_names_replaced() {
        let mut graph = graph("main;a b 3\nmain;a b 2\nmain 1");
        graph.frames[0].frame.name = "ma;in\n".into();
        assert_eq!(write(&graph), "tool;ma_in_ 1\ntool;ma_in_;a b 5\n");
    }
}
