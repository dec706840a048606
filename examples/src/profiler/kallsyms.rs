//! The running kernel's own symbols and its modules', where it shows them to this user.

use core::ops::Range;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::maps::Mapping;

/// The name of the kernel among files, and the folder of its modules. An offset in either is an address.
pub const KERNEL: &str = "[kernel]";

/// The functions of the kernel's image and of its modules.
#[derive(Debug, PartialEq, Eq)]
pub struct Kallsyms {
    /// Ascending by address, and apart.
    parts: Vec<Part>,
}

/// The functions of the kernel's image, or those of a module.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// The path: [`KERNEL`], or a module's name in it.
    path: PathBuf,
    /// The addresses that the functions are at.
    text: Range<u64>,
    /// Ascending by address.
    functions: Vec<(u64, String)>,
}

impl Kallsyms {
    /// The running kernel's, as they are when they are asked for first; `None` if it hides them from this user
    /// (`kernel.kptr_restrict`).
    pub fn running() -> Option<&'static Self> {
        static RUNNING: OnceLock<Option<Kallsyms>> = OnceLock::new();
        RUNNING.get_or_init(Self::read).as_ref()
    }

    fn read() -> Option<Self> {
        // A kernel without modules has no such file.
        let modules = std::fs::read_to_string("/proc/modules").unwrap_or_default();
        Self::parse(&std::fs::read_to_string("/proc/kallsyms").ok()?, &modules)
    }

    /// The kernel with these symbols, in lines such as `ffffffff81000000 T _stext`, and these modules, in lines such
    /// as `nf_tables 376832 2 nft_chain_nat,nft_compat, Live 0xffffffffc0a11000`; `None` if a symbol's line is none,
    /// or no function is shown. Hidden addresses are zeros. Symbols of modules have a fourth column.
    pub fn parse(symbols: &str, modules: &str) -> Option<Self> {
        let (mut start, mut end) = (0, 0);
        let mut functions: HashMap<Option<&str>, Vec<(u64, String)>> = HashMap::new();
        for line in symbols.lines() {
            let mut columns = line.split_ascii_whitespace();
            let (address, kind, name) = (columns.next()?, columns.next()?, columns.next()?);
            let address = u64::from_str_radix(address, 16).ok()?;
            let module = columns.next();
            let part = module.and_then(|name| name.strip_prefix('[')?.strip_suffix(']'));
            if module.is_some() && part.is_none() {
                continue;
            }
            match (name, part) {
                ("_stext", None) => start = address,
                ("_etext", None) => end = address,
                ("_text", None) => {}
                _ if matches!(kind, "t" | "T" | "w" | "W") => {
                    functions.entry(part).or_default().push((address, name.into()));
                }
                _ => {}
            }
        }
        let mut texts: Vec<_> = modules.lines().filter_map(module).collect();
        texts.push((None, start..end));
        texts.sort_by_key(|(_, text)| text.start);
        texts.dedup_by_key(|(_, text)| text.start);
        // The size of a module is that of its data too, which may be elsewhere: its text ends where another begins.
        for index in 1..texts.len() {
            let next = texts[index].1.start;
            let end = &mut texts[index - 1].1.end;
            *end = next.min(*end);
        }
        let mut parts = Vec::new();
        for (name, text) in texts {
            let mut functions = functions.remove(&name).unwrap_or_default();
            functions.retain(|(address, _)| text.contains(address));
            functions.sort();
            functions.dedup_by_key(|(address, _)| *address);
            if !functions.is_empty() {
                let path = name.map_or(KERNEL.into(), |name| Path::new(KERNEL).join(name));
                parts.push(Part { path, text, functions });
            }
        }
        (!parts.is_empty()).then_some(Self { parts })
    }

    /// Returns the places of the functions of the image and of each module, ascending by address.
    pub fn texts(&self) -> impl Iterator<Item = Mapping> + '_ {
        self.parts.iter().map(|part| Mapping {
            start: part.text.start,
            size: part.text.end - part.text.start,
            file_offset: part.text.start,
            path: part.path.clone(),
        })
    }

    /// The function at an address in the image or in a module, and where it begins.
    pub fn function(&self, path: &Path, address: u64) -> Option<(u64, &str)> {
        let next = self.parts.partition_point(|part| part.text.start <= address);
        let part = self.parts[..next].last()?;
        if part.path != path || !part.text.contains(&address) {
            return None;
        }
        let next = part.functions.partition_point(|(start, _)| *start <= address);
        let (start, name) = part.functions[..next].last()?;
        Some((*start, name))
    }
}

/// Returns the name in a line of `/proc/modules`, and the addresses of the module; `None` where they are hidden.
fn module(line: &str) -> Option<(Option<&str>, Range<u64>)> {
    let mut columns = line.split_ascii_whitespace();
    let (name, size) = (columns.next()?, columns.next()?.parse::<u64>().ok()?);
    let start = columns.nth(3)?.strip_prefix("0x")?;
    let start = u64::from_str_radix(start, 16).ok().filter(|start| *start != 0)?;
    Some((Some(name), start..start.checked_add(size)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of the image and of two modules, of which the first has its data behind the second one.
    const SYMBOLS: &str = "\
ffffffff81000000 T _text
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000100 t helper
ffffffff81000180 d data
ffffffff81000200 T _etext
ffffffff82000000 T beyond
ffffffffc0000000 t probe\t[first]
ffffffffc0000400 T attach\t[first]
ffffffffc0000800 d state\t[first]
ffffffffc0002000 t probe\t[second]
ffffffffc0004000 t left_over\t[second]
ffffffffc0008000 t bpf_prog\t[bpf]
";
    const MODULES: &str = "\
second 4096 0 - Live 0xffffffffc0002000 (OE)
first 32768 1 second, Live 0xffffffffc0000000
";

    fn function(kernel: &Kallsyms, path: &str, address: u64) -> Option<String> {
        kernel.function(Path::new(path), address).map(|(_, name)| name.into())
    }

    fn texts(kernel: &Kallsyms) -> Vec<(PathBuf, Range<u64>)> {
        kernel.texts().map(|text| (text.path.clone(), text.start..text.end())).collect()
    }

    #[test]
    fn functions_of_the_image_are_found_and_hidden_ones_are_not() {
        let kernel = Kallsyms::parse(SYMBOLS, "").unwrap();
        assert_eq!(texts(&kernel), [(KERNEL.into(), 0xFFFF_FFFF_8100_0000..0xFFFF_FFFF_8100_0200)]);
        let name = |address| function(&kernel, KERNEL, address);
        assert_eq!(name(0xFFFF_FFFF_80FF_FFFF), None);
        assert_eq!(name(0xFFFF_FFFF_8100_00FF).unwrap(), "startup_64");
        assert_eq!(name(0xFFFF_FFFF_8100_01FF).unwrap(), "helper");
        assert_eq!(name(0xFFFF_FFFF_8100_0200), None);
        assert_eq!(name(0xFFFF_FFFF_C000_0000), None);
        let zeros = |line: &str| format!("0000000000000000{}\n", &line[16..]);
        let hidden: String = SYMBOLS.lines().map(zeros).collect();
        let modules = MODULES.replace("ffffffffc000", "000000000000").replace("2000", "0000");
        assert_eq!(Kallsyms::parse(&hidden, &modules), None);
    }

    #[test]
    fn functions_of_modules_are_found_where_the_module_is_and_under_its_name() {
        let kernel = Kallsyms::parse(SYMBOLS, MODULES).unwrap();
        let (first, second) = ("[kernel]/first", "[kernel]/second");
        assert_eq!(
            texts(&kernel),
            [
                (KERNEL.into(), 0xFFFF_FFFF_8100_0000..0xFFFF_FFFF_8100_0200),
                (first.into(), 0xFFFF_FFFF_C000_0000..0xFFFF_FFFF_C000_2000),
                (second.into(), 0xFFFF_FFFF_C000_2000..0xFFFF_FFFF_C000_3000),
            ]
        );
        assert_eq!(function(&kernel, first, 0xFFFF_FFFF_C000_03FF).unwrap(), "probe");
        assert_eq!(function(&kernel, first, 0xFFFF_FFFF_C000_1FFF).unwrap(), "attach");
        assert_eq!(function(&kernel, second, 0xFFFF_FFFF_C000_2001).unwrap(), "probe");
        assert_eq!(function(&kernel, second, 0xFFFF_FFFF_C000_4000), None);
        assert_eq!(function(&kernel, first, 0xFFFF_FFFF_C000_2001), None);
        assert_eq!(function(&kernel, KERNEL, 0xFFFF_FFFF_C000_0000), None);
        assert_eq!(function(&kernel, KERNEL, 0xFFFF_FFFF_8100_0000).unwrap(), "startup_64");
    }
}
