//! Recorded CPUID dumps as a source of CPUID.

use raw_cpuid::{CpuIdReader, CpuIdResult};

/// Text of a recorded CPUID dump. The text is not copied.
///
/// The parser reads lines in the formats of two tools, and skips any other line as a heading or a remark. The formats
/// are:
///
/// - `cpuid -r`: `   0x0000000a 0x00: eax=0x07300404 ebx=0x00000000 ecx=0x00000000 edx=0x00000603`
/// - AIDA64 and InstLatx64: `CPUID 0000000A: 07300404-00000000-00000000-00000603 [SL 00]`
///
/// If a dump has several processors, only the leaves of the first processor are read.
///
/// ```
/// use pmu_core::x86::dump::CpuidDump;
/// use pmu_core::x86::Snapshot;
/// let dump = CpuidDump::parse(
///     "CPUID 00000000: 0000000A-756E6547-6C65746E-49656E69
///      CPUID 00000001: 000506E3-00000000-00000000-00000000",
/// )?;
/// let processor = Snapshot::capture(&dump);
/// assert_eq!((processor.vendor(), processor.family(), processor.model()), (*b"GenuineIntel", 6, 0x5E));
/// # Ok::<(), pmu_core::x86::dump::DumpError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CpuidDump<'t> {
    text: &'t str,
}

impl<'t> CpuidDump<'t> {
    /// Checks that `text` is a dump with at least leaf 0.
    ///
    /// ```
    /// # use pmu_core::x86::dump::{CpuidDump, DumpError};
    /// match CpuidDump::parse("CPUID 00000000: 0000000A-756E6547-6C65746E-49656E69\nCPUID 00000001: ?") {
    ///     Err(DumpError::MalformedLine(line)) => assert_eq!(line, 2),
    ///     other => panic!("{other:?}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// - A line begins like a leaf, but cannot be parsed. The error contains the line number of the first line that
    ///   cannot be parsed.
    /// - No line has leaf 0.
    pub fn parse(text: &'t str) -> Result<Self, DumpError> {
        let mut found = false;
        for (index, line) in text.lines().enumerate() {
            match Line::parse(line) {
                Ok(Some(line)) => found |= line.leaf == 0,
                Ok(None) => {}
                Err(Malformed) => return Err(DumpError::MalformedLine(index + 1)),
            }
        }
        if found { Ok(Self { text }) } else { Err(DumpError::NoLeafZero) }
    }
}

impl CpuIdReader for &CpuidDump<'_> {
    fn cpuid2(&self, eax: u32, ecx: u32) -> CpuIdResult {
        self.text
            .lines()
            .filter_map(|line| Line::parse(line).ok().flatten())
            .find(|line| line.leaf == eax && line.subleaf == ecx)
            .map_or(CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 }, |line| line.result)
    }
}

/// Reason why a text is not a CPUID dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum DumpError {
    /// A line begins like the line of a CPUID leaf, but cannot be parsed. The value is the line's number, counted from
    /// 1.
    #[error("line {0} is not a CPUID leaf")]
    MalformedLine(usize),
    /// No line has leaf 0.
    #[error("not a CPUID dump: leaf 0 is missing")]
    NoLeafZero,
}

struct Malformed;

struct Line {
    leaf: u32,
    subleaf: u32,
    result: CpuIdResult,
}

impl Line {
    /// Returns the leaf in a line; `None` if the line does not begin like one.
    fn parse(line: &str) -> Result<Option<Self>, Malformed> {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("0x") {
            Self::parse_cpuid_r(rest).ok_or(Malformed).map(Some)
        } else if let Some(rest) = line.strip_prefix("CPUID ")
            && rest.as_bytes().get(8) == Some(&b':')
        {
            Self::parse_aida64(rest).ok_or(Malformed).map(Some)
        } else {
            Ok(None)
        }
    }

    fn parse_cpuid_r(rest: &str) -> Option<Self> {
        let (leaf, rest) = rest.split_once(" 0x")?;
        let (subleaf, rest) = rest.split_once(':')?;
        let mut words = rest.split_whitespace();
        let mut register =
            |name: &str| hex(words.next()?.strip_prefix(name)?.strip_prefix("=0x")?);
        Some(Self {
            leaf: hex(leaf)?,
            subleaf: hex(subleaf)?,
            result: CpuIdResult {
                eax: register("eax")?,
                ebx: register("ebx")?,
                ecx: register("ecx")?,
                edx: register("edx")?,
            },
        })
    }

    fn parse_aida64(rest: &str) -> Option<Self> {
        let (leaf, rest) = rest.split_once(':')?;
        let (registers, note) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
        let mut words = registers.split('-').map(hex);
        let mut register = || words.next()?;
        let result =
            CpuIdResult { eax: register()?, ebx: register()?, ecx: register()?, edx: register()? };
        let subleaf = match note.trim().strip_prefix("[SL ") {
            Some(subleaf) => hex(subleaf.split(']').next()?)?,
            None => 0,
        };
        Some(Self { leaf: hex(leaf)?, subleaf, result })
    }
}

fn hex(digits: &str) -> Option<u32> {
    // `from_str_radix` takes a sign.
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read() {
        for text in [
            "CPU 0:\n   0x00000000 0x00: eax=0x0000000d ebx=0x00000001 ecx=0x00000002 edx=0x00000003\n   \
             0x00000007 0x01: eax=0x00000100 ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
            "CPUID 00000000: 0000000D-00000001-00000002-00000003 [x]\nCPUID Manufacturer: none\n\
             CPUID 00000007: 00000100-00000000-00000000-00000000 [SL 01]",
        ] {
            let dump = CpuidDump::parse(text).unwrap();
            let leaf = (&dump).cpuid2(0, 0);
            assert_eq!((leaf.eax, leaf.ebx, leaf.ecx, leaf.edx), (13, 1, 2, 3));
            assert_eq!((&dump).cpuid2(7, 1).eax, 0x100);
            assert_eq!((&dump).cpuid2(7, 0).eax, 0);
        }
    }

    #[test]
    fn the_first_processor_of_several_answers() {
        let text = "CPU 0:\n0x00000000 0x00: eax=0x1 ebx=0x0 ecx=0x0 edx=0x0\n\
                    CPU 1:\n0x00000000 0x00: eax=0x2 ebx=0x0 ecx=0x0 edx=0x0\n";
        assert_eq!((&CpuidDump::parse(text).unwrap()).cpuid2(0, 0).eax, 1);
    }

    #[test]
    fn what_is_no_dump_is_refused() {
        assert_eq!(CpuidDump::parse("").unwrap_err(), DumpError::NoLeafZero);
        assert_eq!(CpuidDump::parse("\u{7f}ELF").unwrap_err(), DumpError::NoLeafZero);
        for line in [
            "0x00000000 0x00: eax=0x1 ebx=0x2",
            "0x00000000 0x00: eax=0x1 ebx=0x0 ecx=0x0 edx=0x100000000",
            "0x00000000 0x00: eax=0x+1 ebx=0x0 ecx=0x0 edx=0x0",
            "CPUID 00000000: 1-2-3",
        ] {
            let text = std::format!("heading\n{line}\n");
            assert_eq!(CpuidDump::parse(&text).unwrap_err(), DumpError::MalformedLine(2));
        }
    }
}
