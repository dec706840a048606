//! Functions that a process made while it ran: `/tmp/perf-PID.map`, which JIT compilers write for perf
//! (Linux, tools/perf/Documentation/jit-interface.txt).

use core::ops::Range;
use std::path::Path;

use crate::untrusted::{Owner, read};

/// The path under which memory of no file is known here: `//anon/PID`, where an offset is an address.
const ANONYMOUS: &str = "//anon/";

/// The largest map file that is read: a million functions have some 80 MB.
const LARGEST: u64 = 128 << 20;

/// The most functions that are kept: a line may have no more than a few bytes.
const MOST: usize = 4 << 20;

/// The functions of a map file.
#[derive(Debug, PartialEq, Eq)]
pub struct PerfMap {
    text: String,
    /// Ascending by address.
    functions: Vec<Function>,
}

#[derive(Debug, PartialEq, Eq)]
struct Function {
    start: u64,
    size: u64,
    /// The place of its name in the text.
    name: Range<u32>,
}

impl PerfMap {
    /// Reads the map file for a path that [`path`] made; `None` if there is none that belongs to root or to the
    /// process's user, who is this one where `user` does not know another.
    pub fn of(path: &Path, user: impl Fn(u32) -> Option<u32>) -> Option<Self> {
        let process = path.to_str()?.strip_prefix(ANONYMOUS)?;
        // SAFETY: no preconditions.
        let this_user = || unsafe { libc::geteuid() };
        let owner = Owner::RootOr(user(process.parse().ok()?).unwrap_or_else(this_user));
        let file = format!("tmp/perf-{process}.map");
        // A process in a container writes it there.
        let inside = format!("/proc/{process}/root/{file}");
        let read = |path: &str| read(Path::new(path), owner, LARGEST);
        let text = read(&inside).or_else(|_| read(&format!("/{file}"))).ok()?;
        Some(Self::parse(String::from_utf8_lossy(&text).into_owned()))
    }

    /// The functions in lines such as `7f3a00001000 4c name with blanks`. Of functions at one address the last
    /// counts: the memory was used again.
    pub fn parse(text: String) -> Self {
        let hex = |digits: &str| u64::from_str_radix(digits.trim_start_matches("0x"), 16).ok();
        let parse = |line: &str| {
            let mut fields = line.splitn(3, ' ');
            let (start, size) = (hex(fields.next()?)?, hex(fields.next()?)?);
            let name = fields.next()?.trim();
            let begin = u32::try_from(name.as_ptr() as usize - text.as_ptr() as usize).ok()?;
            Some(Function { start, size, name: begin..begin + u32::try_from(name.len()).ok()? })
        };
        let mut functions: Vec<_> = text.lines().rev().filter_map(parse).take(MOST).collect();
        functions.sort_by_key(|function| function.start);
        functions.dedup_by_key(|function| function.start);
        Self { text, functions }
    }

    /// Returns the function at an address, and where it begins.
    pub fn function(&self, address: u64) -> Option<(u64, &str)> {
        let next = self.functions.partition_point(|function| function.start <= address);
        let Function { start, size, name } = self.functions[..next].last()?;
        let name = self.text.get(name.start as usize..name.end as usize)?;
        (address - start < *size).then_some((*start, name))
    }
}

/// Returns the path of a process's memory that is of no file.
pub fn path(process: u32) -> std::path::PathBuf {
    format!("{ANONYMOUS}{process}").into()
}

/// Returns true if a mapping's path is that of memory of no file: none or `//anon`, or of shared memory a file
/// that the kernel makes for it (Linux, tools/perf/util/map.c, `is_anon_memory`).
pub fn is_anonymous(path: &Path) -> bool {
    let Some(path) = path.to_str() else { return false };
    let name = path.strip_suffix(" (deleted)").unwrap_or(path);
    matches!(name, "" | "/dev/zero" | "/anon_hugepage") || name.starts_with("//anon")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_address_and_the_last_of_an_address_counts() {
        let map =
            PerfMap::parse("1000 10 old\n2000 20 a b\n1000 8 new\nnonsense\n0x3000 0x4 c\n".into());
        assert_eq!(map.function(0x1007), Some((0x1000, "new")));
        assert_eq!(map.function(0x1008), None);
        assert_eq!(map.function(0x201F), Some((0x2000, "a b")));
        assert_eq!(map.function(0x3003), Some((0x3000, "c")));
        assert_eq!(map.function(0xFFF), None);
    }

    #[test]
    fn a_map_file_of_another_user_than_the_processs_names_no_function() {
        let process = std::process::id();
        let file = format!("/tmp/perf-{process}.map");
        std::fs::write(&file, "1000 10 name\n").unwrap();
        // SAFETY: no preconditions.
        let mut owner = unsafe { libc::geteuid() };
        if owner == 0 {
            // Root's are taken for every process.
            owner = 4321;
            std::os::unix::fs::chown(&file, Some(owner), None).unwrap();
        }
        let taken = [owner, owner + 1].map(|user| PerfMap::of(&path(process), |_| Some(user)));
        std::fs::remove_file(file).unwrap();
        assert_eq!(taken.map(|map| map.is_some()), [true, false]);
    }

    /// mmap(2) with MAP_ANONYMOUS: private memory has no path, shared memory one of these.
    #[test]
    fn memory_of_no_file_is_known_by_its_path() {
        for path in [
            "",
            "//anon",
            "//anon/7",
            "/dev/zero",
            "/dev/zero (deleted)",
            "/anon_hugepage",
            "/anon_hugepage (deleted)",
        ] {
            assert!(is_anonymous(Path::new(path)), "{path}");
        }
        for path in ["/dev/zeros", "/tmp/dev/zero", "/usr/bin/true (deleted)", "[vdso]", "/memfd:a"]
        {
            assert!(!is_anonymous(Path::new(path)), "{path}");
        }
    }
}
