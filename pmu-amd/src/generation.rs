//! Generations of AMD's processors since the Hammer.

use pmu_core::x86::Snapshot;

// To add a generation: its variant, before `Hammer`, in `ALL` and in `of`; a letter more in each row of `meaning.rs`,
// whose rows need `u64` then; its sources in `zen.rs`; its core type (`pmu-events/generator/src/main.rs`); and its
// column in `tests/data/amd64_on_zen.csv`: the test `zen_told_honestly` compares both with the rows.
/// A generation of AMD's processors. On all processors of a generation, an event number selects the same event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Generation {
    /// Family 10h: K10.
    Family10h,
    /// Family 11h: Turion X2 Ultra.
    Family11h,
    /// Family 12h: Llano.
    Family12h,
    /// Family 14h: Bobcat.
    Family14h,
    /// Family 15h: Bulldozer to Excavator.
    Family15h,
    /// Family 16h: Jaguar, Puma.
    Family16h,
    /// Family 17h, models below 30h: Zen, Zen+.
    Zen1,
    /// Family 17h, models from 30h on: Zen 2.
    Zen2,
    /// Family 19h, models 00h–0Fh, 20h–2Fh, 40h–5Fh: Zen 3, Zen 3+.
    Zen3,
    /// Family 19h, all other models: Zen 4.
    Zen4,
    /// Family 1Ah, models 00h–2Fh, 40h–4Fh, 60h–7Fh: Zen 5.
    Zen5,
    /// Family 1Ah, all other models: Zen 6.
    Zen6,
    /// Family 0Fh: K8, for which Windows' sources were defined.
    Hammer,
}

impl Generation {
    /// All generations, from the oldest to the latest.
    ///
    /// ```
    /// use pmu_amd::{Generation, Meaning};
    /// use pmu_core::profile::KProfileSource;
    /// // From which generation on does the source no longer count what its name says?
    /// let is_other = |one: &&Generation| one.meaning(KProfileSource::DCACHE_MISSES) != Some(Meaning::Same);
    /// assert_eq!(Generation::ALL.iter().find(is_other), Some(&Generation::Family15h));
    /// ```
    pub const ALL: [Self; 13] = [
        Self::Hammer,
        Self::Family10h,
        Self::Family11h,
        Self::Family12h,
        Self::Family14h,
        Self::Family15h,
        Self::Family16h,
        Self::Zen1,
        Self::Zen2,
        Self::Zen3,
        Self::Zen4,
        Self::Zen5,
        Self::Zen6,
    ];

    /// Returns the generation of a processor. Returns `None` if the vendor is not AMD, or the family is unknown.
    ///
    /// ```
    /// # use pmu_core::x86::dump::CpuidDump;
    /// # use pmu_core::x86::Snapshot;
    /// # let dump = CpuidDump::parse(
    /// #     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    /// #         0x00000001 0x00: eax=0x00a20f10 ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
    /// # )?;
    /// # let this_processor = Snapshot::capture(&dump);
    /// use pmu_amd::Generation;
    /// assert_eq!(Generation::of(&this_processor), Some(Generation::Zen3)); // family 19h, model 21h
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(processor: &Snapshot) -> Option<Self> {
        if processor.vendor() != *b"AuthenticAMD" {
            return None;
        }
        Some(match (processor.family(), processor.model()) {
            (0x0F, _) => Self::Hammer,
            (0x10, _) => Self::Family10h,
            (0x11, _) => Self::Family11h,
            (0x12, _) => Self::Family12h,
            (0x14, _) => Self::Family14h,
            (0x15, _) => Self::Family15h,
            (0x16, _) => Self::Family16h,
            (0x17, ..0x30) => Self::Zen1,
            (0x17, _) => Self::Zen2,
            (0x19, ..0x10 | 0x20..0x30 | 0x40..0x60) => Self::Zen3,
            (0x19, _) => Self::Zen4,
            (0x1A, ..0x30 | 0x40..0x50 | 0x60..0x80) => Self::Zen5,
            (0x1A, _) => Self::Zen6,
            _ => return None,
        })
    }
}
