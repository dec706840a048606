//! Advice for programs that execute memory of no file: what a runtime compiled, whose names and callers it tells only
//! if it is asked to.

use super::graph::label;
use super::perf_map;
use super::report::Report;
use super::symbols::module_name;

/// Fewer samples tell nothing of most samples.
const FEW: u64 = 20;

/// A runtime: the beginning of its processes' names, the way to names, and that to callers.
struct Runtime {
    process: &'static str,
    names: &'static str,
    callers: &'static str,
}

/// Source: `java` of OpenJDK, "-XX:+PreserveFramePointer", "-XX:+DumpPerfMapAtExit", and `jcmd`, "Compiler.perfmap"
/// (17 and later); Node.js, "--perf-basic-prof", whose code has frame pointers in any case.
const RUNTIMES: [Runtime; 2] = [
    Runtime {
        process: "java",
        names: "Java writes a map of them by `jcmd PID Compiler.perfmap`, before it ends, and has callers with \
                -XX:+PreserveFramePointer",
        callers: "Java has callers with -XX:+PreserveFramePointer",
    },
    Runtime {
        process: "node",
        names: "Node writes a map of them with --perf-basic-prof",
        callers: "Node has callers in code that is compiled, with --perf-basic-prof by their names",
    },
];

/// Returns advice where most samples are in memory of no file and have no names, or no callers.
pub fn advice(report: &Report) -> Option<String> {
    let here = label(&perf_map::path(0));
    let there = report.functions.iter().filter(|function| function.module == here);
    let (mut all, mut unnamed) = (0, 0);
    for function in there {
        all += function.samples;
        unnamed +=
            if function.name == module_name(&perf_map::path(0)) { function.samples } else { 0 };
    }
    let seen = report.statistics.seen;
    if seen < FEW || all * 2 <= seen {
        return None;
    }
    let (alone, samples) = report.graph.alone();
    let is_unnamed = unnamed * 2 > seen;
    if !is_unnamed && alone * 2 <= samples {
        return None;
    }
    // Its threads have names of their own.
    let names: Vec<_> =
        report.graph.by_thread().into_iter().map(|(of, _)| &of.process_name).collect();
    let is_there = |runtime: &&Runtime| names.iter().any(|name| name.starts_with(runtime.process));
    let mut runtimes: Vec<_> = RUNTIMES.iter().filter(is_there).collect();
    if runtimes.is_empty() {
        runtimes.extend(&RUNTIMES);
    }
    let texts = runtimes.iter().map(|one| if is_unnamed { one.names } else { one.callers });
    let texts: Vec<_> = texts.collect();
    Some(match is_unnamed {
        true => format!(
            "{unnamed} of {seen} samples are in memory of no file without names, as of a JIT compiler: {}",
            texts.join("; ")
        ),
        false => format!(
            "{alone} of {samples} stacks end at their first frame, most samples are a JIT compiler's: {}",
            texts.join("; ")
        ),
    })
}
