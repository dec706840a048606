//! The running kernel's own symbols, where it shows them to this user.

use core::ops::Range;

/// The name of the kernel among files. An offset in it is an address.
pub const KERNEL: &str = "[kernel]";

/// The functions of the kernel's image, without its modules.
#[derive(Debug, PartialEq, Eq)]
pub struct Kallsyms {
    text: Range<u64>,
    /// Ascending by address.
    functions: Vec<(u64, String)>,
}

impl Kallsyms {
    /// The running kernel's; `None` if it hides them from this user (`kernel.kptr_restrict`).
    pub fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/kallsyms").ok()?)
    }

    /// The kernel with these symbols, in lines such as `ffffffff81000000 T _stext`; `None` if a line is
    /// none, or no function is shown. Hidden addresses are zeros. Symbols of modules have a fourth
    /// column.
    pub fn parse(text: &str) -> Option<Self> {
        let (mut start, mut end) = (0, 0);
        let mut functions = Vec::new();
        for line in text.lines() {
            let mut columns = line.split_ascii_whitespace();
            let (address, kind, name) = (columns.next()?, columns.next()?, columns.next()?);
            let address = u64::from_str_radix(address, 16).ok()?;
            match name {
                "_stext" => start = address,
                "_etext" => end = address,
                "_text" => {}
                _ if matches!(kind, "t" | "T" | "w" | "W") && columns.next().is_none() => {
                    functions.push((address, name.into()));
                }
                _ => {}
            }
        }
        functions.retain(|(address, _)| (start..end).contains(address));
        functions.sort();
        functions.dedup_by_key(|(address, _)| *address);
        (!functions.is_empty()).then_some(Self { text: start..end, functions })
    }

    /// The addresses of the functions.
    pub fn text(&self) -> Range<u64> {
        self.text.clone()
    }

    /// The function at an address, and where it begins.
    pub fn function(&self, address: u64) -> Option<(u64, &str)> {
        let next = self.functions.partition_point(|(start, _)| *start <= address);
        let (start, name) = self.functions[..next].last()?;
        self.text.contains(&address).then_some((*start, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_image_are_found_and_modules_and_hidden_ones_are_not() {
        let shown = "\
ffffffff81000000 T _text
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000100 t helper
ffffffff81000180 d data
ffffffff81000200 T _etext
ffffffff82000000 T beyond
ffffffffc0000000 t probe\t[module]
";
        let kernel = Kallsyms::parse(shown).unwrap();
        assert_eq!(kernel.text(), 0xFFFF_FFFF_8100_0000..0xFFFF_FFFF_8100_0200);
        let name = |address| kernel.function(address).map(|(_, name)| name);
        assert_eq!(name(0xFFFF_FFFF_80FF_FFFF), None);
        assert_eq!(name(0xFFFF_FFFF_8100_00FF), Some("startup_64"));
        assert_eq!(name(0xFFFF_FFFF_8100_01FF), Some("helper"));
        assert_eq!(name(0xFFFF_FFFF_8100_0200), None);
        let hidden: String =
            shown.lines().map(|line| format!("0000000000000000{}\n", &line[16..])).collect();
        assert_eq!(Kallsyms::parse(&hidden), None);
    }
}
