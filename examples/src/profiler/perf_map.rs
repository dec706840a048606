//! Functions that a process made while it ran: `/tmp/perf-PID.map`, which JIT compilers write for perf
//! (Linux, tools/perf/Documentation/jit-interface.txt).

use std::fs;
use std::path::Path;

/// The path under which memory of no file is known here: `//anon/PID`, where an offset is an address.
const ANONYMOUS: &str = "//anon/";

/// The functions of a map file.
#[derive(Debug, PartialEq, Eq)]
pub struct PerfMap {
    /// First address, size and name, ascending.
    functions: Vec<(u64, u64, String)>,
}

impl PerfMap {
    /// Reads the map file for a path that [`path`] made; `None` if there is none.
    pub fn of(path: &Path) -> Option<Self> {
        let process = path.to_str()?.strip_prefix(ANONYMOUS)?;
        let file = format!("tmp/perf-{process}.map");
        // A process in a container writes it there.
        let inside = format!("/proc/{process}/root/{file}");
        let text = fs::read(inside).or_else(|_| fs::read(format!("/{file}"))).ok()?;
        Some(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// The functions in lines such as `7f3a00001000 4c name with blanks`. Of functions at one address the last
    /// counts: the memory was used again.
    pub fn parse(text: &str) -> Self {
        let hex = |digits: &str| u64::from_str_radix(digits.trim_start_matches("0x"), 16).ok();
        let parse = |line: &str| {
            let mut fields = line.splitn(3, ' ');
            let (start, size) = (hex(fields.next()?)?, hex(fields.next()?)?);
            Some((start, size, fields.next()?.trim().to_string()))
        };
        let mut functions: Vec<_> = text.lines().rev().filter_map(parse).collect();
        functions.sort_by_key(|(start, ..)| *start);
        functions.dedup_by_key(|(start, ..)| *start);
        Self { functions }
    }

    /// Returns the function at an address, and where it begins.
    pub fn function(&self, address: u64) -> Option<(u64, &str)> {
        let next = self.functions.partition_point(|(start, ..)| *start <= address);
        let (start, size, name) = self.functions[..next].last()?;
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
        let map = PerfMap::parse("1000 10 old\n2000 20 a b\n1000 8 new\nnonsense\n0x3000 0x4 c\n");
        assert_eq!(map.function(0x1007), Some((0x1000, "new")));
        assert_eq!(map.function(0x1008), None);
        assert_eq!(map.function(0x201F), Some((0x2000, "a b")));
        assert_eq!(map.function(0x3003), Some((0x3000, "c")));
        assert_eq!(map.function(0xFFF), None);
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
