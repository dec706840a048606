//! The call stacks of the samples, as places in files: addresses mean nothing once a process has ended.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The name under which interrupts appear that no profile object counted.
pub const MISSED: &str = "[missed]";

/// The call stacks of a run, each kept once, and the samples that found them.
#[derive(Debug, Default)]
pub struct CallStacks {
    /// The files, or labels such as `[vdso]`.
    pub modules: Vec<PathBuf>,
    /// The distinct stacks, each from the innermost place to the outermost.
    pub stacks: Vec<Vec<Place>>,
    /// The samples, in the order of their records.
    pub samples: Vec<StackSample>,
    /// The threads that were sampled.
    pub threads: Vec<Thread>,
    module_indices: HashMap<PathBuf, usize>,
    stack_indices: HashMap<Vec<Place>, usize>,
    thread_indices: HashMap<(u32, u32), usize>,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The file's index among the modules.
    pub module: usize,
    /// The offset in it; in the kernel, the address.
    pub file_offset: u64,
}

/// A sample.
#[derive(Clone, Copy, Debug)]
pub struct StackSample {
    /// Its time in nanoseconds, on the clock of the records.
    pub time: u64,
    /// Its thread's index.
    pub thread: usize,
    /// Its stack's index.
    pub stack: usize,
    /// The number of interrupts that it stands for.
    pub interrupts: u32,
}

/// A thread that was sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The process's number.
    pub process: u32,
    /// The thread's number.
    pub thread: u32,
    /// The process's last name.
    pub process_name: String,
    /// The thread's last name.
    pub name: String,
}

impl CallStacks {
    /// Adds a sample of a thread with these places, the innermost first.
    pub fn add<'p>(
        &mut self,
        time: u64,
        (process, thread): (u32, u32),
        places: impl Iterator<Item = (&'p Path, u64)>,
        interrupts: u32,
    ) {
        let mut places: Vec<Place> =
            places.map(|(path, file_offset)| self.place(path, file_offset)).collect();
        if places.is_empty() {
            places.push(self.place(Path::new(MISSED), 0));
        }
        let stack = match self.stack_indices.get(&places) {
            Some(stack) => *stack,
            None => {
                self.stacks.push(places.clone());
                self.stack_indices.insert(places, self.stacks.len() - 1);
                self.stacks.len() - 1
            }
        };
        let threads = &mut self.threads;
        let thread = *self.thread_indices.entry((process, thread)).or_insert_with(|| {
            let (process_name, name) = Default::default();
            threads.push(Thread { process, thread, process_name, name });
            threads.len() - 1
        });
        self.samples.push(StackSample { time, thread, stack, interrupts });
    }

    /// Names the threads. `name` knows the name of a process's thread.
    pub fn name_threads(&mut self, name: impl Fn(u32, u32) -> String) {
        for thread in &mut self.threads {
            thread.process_name = name(thread.process, thread.process);
            thread.name = name(thread.process, thread.thread);
        }
    }

    fn place(&mut self, path: &Path, file_offset: u64) -> Place {
        let module = match self.module_indices.get(path) {
            Some(module) => *module,
            None => {
                self.modules.push(path.into());
                self.module_indices.insert(path.into(), self.modules.len() - 1);
                self.modules.len() - 1
            }
        };
        Place { module, file_offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_kept_once_and_a_sample_without_a_place_is_missed() {
        let mut stacks = CallStacks::default();
        let places = [(Path::new("/bin/a"), 1), (Path::new("/bin/b"), 2)];
        stacks.add(10, (7, 8), places.into_iter(), 1);
        stacks.add(11, (7, 7), places.into_iter(), 2);
        stacks.add(12, (7, 7), [].into_iter(), 1);
        assert_eq!(stacks.stacks.len(), 2);
        assert_eq!(stacks.modules, [Path::new("/bin/a"), Path::new("/bin/b"), Path::new(MISSED)]);
        let found: Vec<_> = stacks.samples.iter().map(|s| (s.thread, s.stack)).collect();
        assert_eq!(found, [(0, 0), (1, 0), (1, 1)]);
    }
}
