//! The mappings of a process.

use std::path::PathBuf;

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The offset in the file at which it begins.
    pub file_offset: u64,
    /// The file, or a label such as `[vdso]`.
    pub path: PathBuf,
}

impl Mapping {
    /// The address after its last.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }

    /// Returns the place in the file that an address has, which is in the mapping.
    pub fn offset(&self, address: u64) -> u64 {
        address.wrapping_sub(self.start).wrapping_add(self.file_offset)
    }

    /// Returns true if an address is in it.
    pub fn has(&self, address: u64) -> bool {
        (self.start..self.end()).contains(&address)
    }

    /// Returns true if it has an address in common with another.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Returns true if another shows a part of the same file at the same addresses.
    pub fn contains(&self, other: &Self) -> bool {
        self.start <= other.start
            && other.end() <= self.end()
            && other.file_offset.wrapping_sub(self.file_offset) == other.start - self.start
            && self.path == other.path
    }
}

/// The executable mappings in the text of `/proc/PID/maps` (proc(5)). A line that is none is skipped.
pub fn executable(maps: &str) -> Vec<Mapping> {
    // Not `lines`: a path may end in a carriage return.
    maps.split('\n').filter_map(parse).filter(|(x, _)| *x).map(|(_, mapping)| mapping).collect()
}

/// A line such as `55d0-55e0 r-xp 00001000 fe:01 1234    /usr/bin/true`: whether it is executable,
/// and the mapping.
fn parse(line: &str) -> Option<(bool, Mapping)> {
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let executable = fields.next()?.contains('x');
    let file_offset = hex(fields.next()?)?;
    let path = fields.nth(2).unwrap_or("").trim_start().into();
    let size = end.checked_sub(start)?;
    Some((executable, Mapping { start, size, file_offset, path }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_a_carriage_return_at_its_end() {
        let mappings = executable("1000-2000 r-xp 00000000 fe:00 131    /opt/tool\r\n");
        assert_eq!(mappings[0].path, PathBuf::from("/opt/tool\r"));
    }

    #[test]
    fn executable_lines_become_mappings_and_paths_keep_their_blanks() {
        let maps = "\
55d0c8a00000-55d0c8a02000 r--p 00000000 fe:00 131 /opt/a b/tool
55d0c8a02000-55d0c8a06000 r-xp 00002000 fe:00 131                        /opt/a b/tool
7ffd1a9fd000-7ffd1a9ff000 r-xp 00000000 00:00 0                          [vdso]
7f0000000000-7f0000001000 rwxp 00000000 00:00 0 
not a line
";
        let expected = [
            (0x55d0_c8a0_2000, 0x4000, 0x2000, "/opt/a b/tool"),
            (0x7ffd_1a9f_d000, 0x2000, 0, "[vdso]"),
            (0x7f00_0000_0000, 0x1000, 0, ""),
        ]
        .map(|(start, size, file_offset, path)| Mapping {
            start,
            size,
            file_offset,
            path: path.into(),
        });
        assert_eq!(executable(maps), expected);
    }
}
