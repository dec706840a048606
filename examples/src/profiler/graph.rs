//! The call stacks with names: self and total of functions, and their callers and callees.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::call_stacks::{CallStacks, Place, StackSample, Thread};
use super::kallsyms::KERNEL;
use super::symbols::{Frame, Location, Symbols, module_name};
use crate::elf::identity::Identity;
use crate::untrusted::visible;

/// The named call stacks of a run.
#[derive(Debug, Default)]
pub struct Graph {
    /// The distinct frames of all stacks.
    pub frames: Vec<NamedFrame>,
    /// The stacks, each from the outermost frame to the innermost, as indices of frames.
    pub stacks: Vec<Vec<usize>>,
    /// The samples, in the order of their records.
    pub samples: Vec<StackSample>,
    /// The threads that were sampled.
    pub threads: Vec<Thread>,
    /// The files.
    pub modules: Vec<Module>,
    /// The distinct places of all stacks.
    pub places: Vec<NamedPlace>,
    /// The stacks again, each from the outermost place to the innermost, as indices of places.
    pub place_stacks: Vec<Vec<usize>>,
}

/// A file, or what is named like one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its path.
    pub path: PathBuf,
    /// Its name.
    pub label: String,
    /// The build ID and the ID of the symbols; `None` of what is no file.
    pub identity: Option<Identity>,
}

/// A place with its frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPlace {
    /// The index of its file.
    pub module: usize,
    /// The place in the file's address space, where it has one.
    pub location: Option<Location>,
    /// The frames there, from the outermost to the innermost, as indices of frames.
    pub frames: Vec<usize>,
}

/// A frame of a call stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedFrame {
    /// The name, and the line.
    pub frame: Frame,
    /// The file that it is in, or a label.
    pub module: String,
    /// Set if the kernel executes it.
    pub kernel: bool,
}

/// The key of a function: its name and its module.
pub type Key<'g> = (&'g str, &'g str);

/// Functions beside a function, with the number of samples, the most first.
pub type Neighbors<'g> = Vec<(&'g str, u64)>;

impl Graph {
    /// Names all places.
    pub fn new(stacks: CallStacks, symbols: &mut Symbols) -> Self {
        let (mut frames, mut indices) = (Vec::new(), HashMap::new());
        let (mut places, mut place_indices) = (Vec::new(), HashMap::new());
        let mut modules: Vec<_> = stacks
            .modules
            .into_iter()
            .map(|path| {
                let (label, identity) = (label(&path), symbols.identity(&path));
                Module { path, label, identity }
            })
            .collect();
        let mut named = |place: &Place| {
            let Module { path, label, .. } = &modules[place.module];
            let kernel = path.starts_with(KERNEL);
            let mut index = |frame| {
                let frame = NamedFrame { frame, module: label.clone(), kernel };
                *indices.entry(frame.clone()).or_insert_with(|| {
                    frames.push(frame);
                    frames.len() - 1
                })
            };
            let found = symbols.frames(path, place.file_offset).into_iter().rev();
            let frames = found.map(&mut index).collect();
            let location = symbols.location(path, place.file_offset);
            NamedPlace { module: place.module, location, frames }
        };
        let mut place_stacks = Vec::with_capacity(stacks.stacks.len());
        for stack in &stacks.stacks {
            let mut index = |place: &Place| {
                *place_indices.entry(*place).or_insert_with(|| {
                    places.push(named(place));
                    places.len() - 1
                })
            };
            place_stacks.push(stack.iter().rev().map(&mut index).collect::<Vec<_>>());
        }
        let of_places = |stack: &Vec<usize>| {
            stack.iter().flat_map(|place| places[*place].frames.iter().copied()).collect()
        };
        let stacks_of_frames = place_stacks.iter().map(of_places).collect();
        for module in &mut modules {
            module.path = visible(&module.path.to_string_lossy()).as_ref().into();
        }
        let (samples, threads) = (stacks.samples, stacks.threads);
        Self { frames, stacks: stacks_of_frames, samples, threads, modules, places, place_stacks }
    }

    /// Returns the interrupts of each function wherever it is in a stack.
    pub fn totals(&self) -> HashMap<Key<'_>, u64> {
        let mut totals = HashMap::new();
        for (stack, interrupts) in self.interrupts().into_iter().enumerate() {
            let functions: HashSet<_> = self.functions(stack).into_iter().collect();
            functions.into_iter().for_each(|key| *totals.entry(key).or_default() += interrupts);
        }
        totals
    }

    /// Returns the callers and the callees of a function. What recursion repeats counts once per stack.
    pub fn neighbors(&self, function: Key<'_>) -> (Neighbors<'_>, Neighbors<'_>) {
        let (mut callers, mut callees) = (BTreeMap::new(), BTreeMap::new());
        for (stack, interrupts) in self.interrupts().into_iter().enumerate() {
            let functions = self.functions(stack);
            let pairs: HashSet<_> = functions.windows(2).map(|pair| (pair[0], pair[1])).collect();
            for (caller, callee) in pairs {
                if callee == function {
                    *callers.entry(caller.0).or_default() += interrupts;
                }
                if caller == function {
                    *callees.entry(callee.0).or_default() += interrupts;
                }
            }
        }
        let sorted = |neighbors: BTreeMap<_, u64>| {
            let mut sorted: Vec<_> = neighbors.into_iter().collect();
            sorted.sort_by_key(|(_, interrupts)| core::cmp::Reverse(*interrupts));
            sorted
        };
        (sorted(callers), sorted(callees))
    }

    /// Returns the file that the process with the most interrupts executes: the kernel tells 15 bytes of its name, or
    /// of the name of a link to it, as `python3`.
    pub fn program(&self) -> Option<&str> {
        let (thread, _) = *self.by_thread().first()?;
        let name = thread.process_name.as_bytes();
        let mut modules: Vec<_> = self.frames.iter().map(|frame| &*frame.module).collect();
        modules.retain(|module| !name.is_empty() && module.as_bytes().starts_with(name));
        // The shortest: a program's library may begin as the program does.
        modules.into_iter().min_by_key(|module| module.len())
    }

    /// Returns how many interrupts have a stack of one frame, and how many there are.
    pub fn alone(&self) -> (u64, u64) {
        let interrupts = self.interrupts();
        let of_one = |stack: &usize| self.functions(*stack).len() == 1;
        let alone = (0..interrupts.len()).filter(of_one).map(|stack| interrupts[stack]).sum();
        (alone, interrupts.iter().sum())
    }

    /// Returns the interrupts of each thread, the most first.
    pub fn by_thread(&self) -> Vec<(&Thread, u64)> {
        let mut interrupts = vec![0; self.threads.len()];
        self.samples
            .iter()
            .for_each(|sample| interrupts[sample.thread] += u64::from(sample.interrupts));
        let mut threads: Vec<_> = self.threads.iter().zip(interrupts).collect();
        threads.sort_by_key(|(thread, interrupts)| {
            (core::cmp::Reverse(*interrupts), thread.process, thread.thread)
        });
        threads
    }

    /// Returns the interrupts of each stack.
    fn interrupts(&self) -> Vec<u64> {
        let mut interrupts = vec![0; self.stacks.len()];
        self.samples
            .iter()
            .for_each(|sample| interrupts[sample.stack] += u64::from(sample.interrupts));
        interrupts
    }

    /// Returns the functions of a stack that are not inlined, the outermost first.
    fn functions(&self, stack: usize) -> Vec<Key<'_>> {
        let frames = self.stacks[stack].iter().map(|frame| &self.frames[*frame]);
        let own = frames.filter(|frame| !frame.frame.inlined);
        own.map(|frame| (&*frame.frame.name, &*frame.module)).collect()
    }
}

/// Returns a module's name without brackets.
pub fn label(path: &Path) -> String {
    module_name(path).trim_matches(['[', ']']).into()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A graph of stacks written as `outer;inner 3`.
    pub(crate) fn graph(folded: &str) -> Graph {
        let mut graph = Graph::default();
        let thread = |thread| Thread {
            process: 7,
            thread,
            process_name: "tool".into(),
            name: format!("worker {thread}"),
        };
        graph.threads = vec![thread(7), thread(8)];
        for line in folded.lines() {
            let (stack, interrupts) = line.rsplit_once(' ').unwrap();
            let frames = stack.split(';').map(|name| {
                let known = graph.frames.iter().position(|frame| frame.frame.name == name);
                known.unwrap_or_else(|| {
                    let frame =
                        Frame { name: name.into(), line: None, inlined: name.starts_with('~') };
                    graph.frames.push(NamedFrame { frame, module: "tool".into(), kernel: false });
                    graph.frames.len() - 1
                })
            });
            let frames = frames.collect();
            graph.stacks.push(frames);
            let stack = graph.stacks.len() - 1;
            graph.samples.push(StackSample {
                time: 1_000_000 * stack as u64,
                thread: stack % 2,
                stack,
                interrupts: interrupts.parse().unwrap(),
            });
        }
        graph
    }

    #[test]
    fn the_program_has_its_process_name_or_begins_so() {
        let mut graph = graph("a;b 3\nc 2");
        assert_eq!(graph.program(), Some("tool"));
        graph.threads.iter_mut().for_each(|thread| thread.process_name = "python3".into());
        assert_eq!(graph.program(), None);
        for (place, module) in ["env", "python3.11", "python3-helper.so"].into_iter().enumerate() {
            graph.frames[place].module = module.into();
        }
        assert_eq!(graph.program(), Some("python3.11"));
    }

    #[test]
    fn a_total_counts_a_function_once_per_stack_and_neighbors_are_those_beside_it() {
        let graph = graph("main;a;b 3\nmain;a;a;b 2\nmain;b;c 4\nmain;~inlined;c 1");
        let totals = graph.totals();
        let total = |name| totals.get(&(name, "tool")).copied();
        assert_eq!(["main", "a", "b", "c"].map(total), [10, 5, 9, 5].map(Some));
        assert_eq!(total("~inlined"), None);
        let (callers, callees) = graph.neighbors(("b", "tool"));
        assert_eq!((callers, callees), (vec![("a", 5), ("main", 4)], vec![("c", 4)]));
        let (callers, _) = graph.neighbors(("c", "tool"));
        assert_eq!(callers, [("b", 4), ("main", 1)]);
        let threads: Vec<_> = graph.by_thread().iter().map(|(t, n)| (t.thread, *n)).collect();
        assert_eq!(threads, [(7, 7), (8, 3)]);
    }
}
