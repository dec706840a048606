//! Texts as CPUID dumps: the leaves read from one, written in either format, read as the same.

use core::fmt::Write;

use pmu_core::x86::Snapshot;
use pmu_core::x86::dump::{CpuidDump, DumpError};
use pmu_core::x86::raw_cpuid::CpuIdReader;

/// Returns whether a line begins like a leaf; every other one is a heading or a remark.
fn begins_like_a_leaf(line: &str) -> bool {
    let line = line.trim();
    let aida64 = |rest: &str| rest.as_bytes().get(8) == Some(&b':');
    line.starts_with("0x") || line.strip_prefix("CPUID ").is_some_and(aida64)
}

/// Returns the leaf and the sub-leaf of a line, by position alone: the numbers after the first two `0x`, or the one
/// after `CPUID ` and the one of the remark `[SL ` that follows the registers.
fn place(line: &str) -> Option<(u32, u32)> {
    let line = line.trim();
    let number = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(text.len());
        u32::from_str_radix(&text[..end], 16).ok()
    };
    if let Some(rest) = line.strip_prefix("0x") {
        let (_, subleaf) = rest.split_once("0x")?;
        Some((number(rest)?, number(subleaf)?))
    } else {
        let rest = line.strip_prefix("CPUID ")?;
        let registers = rest.split_once(':')?.1.trim_start();
        let remark = registers.split_once(' ').map_or("", |(_, remark)| remark.trim_start());
        Some((number(rest)?, remark.strip_prefix("[SL ").map_or(Some(0), number)?))
    }
}

/// Runs one input: the text.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let dump = match CpuidDump::parse(&text) {
        Ok(dump) => dump,
        Err(DumpError::MalformedLine(number)) => {
            let lines: Vec<&str> = text.lines().collect();
            assert!(begins_like_a_leaf(lines[number - 1]), "line {number}");
            // It is the first one.
            let before = CpuidDump::parse(&text[..offset(&text, lines[number - 1])]).map(|_| ());
            assert!(matches!(before, Ok(()) | Err(DumpError::NoLeafZero)), "{before:?}");
            return;
        }
        Err(DumpError::NoLeafZero) => {
            let leaf = "\n0x00000000 0x00: eax=0x1 ebx=0x2 ecx=0x3 edx=0x4";
            let with = format!("{text}{leaf}");
            assert_eq!((&CpuidDump::parse(&with).unwrap()).cpuid2(0, 0).ecx, 3);
            return;
        }
        Err(other) => panic!("{other}"),
    };
    let places: Vec<(u32, u32)> = text
        .lines()
        .filter(|line| begins_like_a_leaf(line))
        .map(|line| place(line).expect("a leaf, or the dump would have been refused"))
        .collect();
    assert!(places.iter().any(|(leaf, _)| *leaf == 0));

    let (mut raw, mut aida64) = (String::from("CPU 0:\n"), String::new());
    for (leaf, subleaf) in &places {
        let r = (&dump).cpuid2(*leaf, *subleaf);
        let (a, b, c, d) = (r.eax, r.ebx, r.ecx, r.edx);
        let registers = format!("eax={a:#010x} ebx={b:#010x} ecx={c:#010x} edx={d:#010x}");
        writeln!(raw, "   {leaf:#010x} {subleaf:#04x}: {registers}").unwrap();
        let registers = format!("{a:08X}-{b:08X}-{c:08X}-{d:08X}");
        writeln!(aida64, "CPUID {leaf:08X}: {registers} [SL {subleaf:02X}]").unwrap();
    }
    let snapshot = Snapshot::capture(&dump);
    for written in [raw, aida64] {
        let again = CpuidDump::parse(&written).unwrap();
        for (leaf, subleaf) in &places {
            assert_eq!((&again).cpuid2(*leaf, *subleaf), (&dump).cpuid2(*leaf, *subleaf));
        }
        assert_eq!(format!("{:?}", Snapshot::capture(&again)), format!("{snapshot:?}"));
    }
}

/// Returns the offset of a part of a text.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}
