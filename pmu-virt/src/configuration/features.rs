//! The features of Intel's PMU that a guest has or lacks, as a table.
//!
//! From a feature's row follow the check of a configuration, CPUID in both directions, the intersection of two
//! configurations, saved bytes, the legal bits of selects and of `IA32_FIXED_CTR_CTRL`, and the bits of event keys.
//!
//! To add a select bit: its constant with a citation, and a row at the end of the table, because its place is its bit
//! in saved bytes. If the bit changes what is counted, it is in [`OF_KEY`], and `events/key.rs` has a method, a word in
//! `Debug`, and a row of its unit test for it; otherwise its rule is where the PMU answers (RDPMC: `locate_pmc` in
//! `pmu/msr.rs`). Its tests: two rows in `tests/data/register_fields.csv` with one name, of the select's bit and of
//! CPUID's, from another source than the constant, and in `tests/tests/virt/naive/registers.rs` its name in
//! `SELECT_FIELDS` or `FIXED_FIELDS`, and its rule; an event with it is in `fed` of `naive/mod.rs`, from where the
//! random programs have it. The mock, and the tests of all features, follow: `cargo test -p pmu-tests --test virt`. The
//! driver's bit has the same two rows: `pmu-intel/src/cpuid.rs`, above `SELECT_EQ`.

use core::fmt;

use crate::configuration::cpuid::{CpuidLeaf, CpuidRegisters, EAX, EBX, EDX};

/// Select bit that makes a counter count for all threads of the core. SDM vol. 3B, figure "Layout of
/// IA32_PERFEVTSELx MSRs Supporting Architectural Performance Monitoring Version 3".
pub(crate) const SELECT_ANY_THREAD: u64 = 1 << 21;
/// Select bits IN_TX, and IN_TXCP, which `IA32_PERFEVTSEL2` alone has. SDM vol. 3B, figure "Layout of
/// IA32_PERFEVTSELx MSRs Supporting Intel TSX".
pub(crate) const SELECT_IN_TX: u64 = 1 << 32;
pub(crate) const SELECT_IN_TXCP: u64 = 1 << 33;
/// Select bits EQ, RDPMC_USR_DISABLE and UMASK2. SDM vol. 3B, "Architectural Performance Monitoring Version 6",
/// `IA32_PERFEVTSELx`.
pub(crate) const SELECT_EQ: u64 = 1 << 36;
pub(crate) const SELECT_RDPMC_USER_DISABLE: u64 = 1 << 37;
pub(crate) const SELECT_UNIT_MASK_2: u64 = 0xFF << 40;
/// Bits of fixed counter 0 in `IA32_FIXED_CTR_CTRL`; those of counter *n* are 4*n* bits higher. SDM vol. 3B,
/// "Architectural Performance Monitoring Version 3", and "Version 6".
const FIXED_ANY_THREAD: u64 = 1 << 2;
pub(crate) const FIXED_RDPMC_USER_DISABLE: u64 = 1 << 33;

/// Select bits of features that qualify an event, and that a policy does not see.
pub(crate) const QUALIFIERS: u64 = SELECT_IN_TX | SELECT_IN_TXCP;
/// Select bits of features that change what is counted: the key of an event contains them.
pub(crate) const OF_KEY: u64 = SELECT_ANY_THREAD | QUALIFIERS | SELECT_EQ | SELECT_UNIT_MASK_2;

const LEAF_07: &str = "SDM vol. 2A, CPUID, leaf 0x07";
const TSX: &str = "SDM vol. 3B, Performance Monitoring and Intel TSX";
const FULL_WIDTH: &str = "SDM vol. 3B, Full-Width Writes to Performance Counter Registers";
const VERSION_3: &str = "SDM vol. 3B, Architectural Performance Monitoring Version 3";
const VERSION_6: &str = "SDM vol. 3B, Architectural Performance Monitoring Version 6";

macro_rules! features {
    ($($(#[doc = $meaning:literal])+ $variant:ident: $row:expr;)+) => {
        /// Feature that Intel's PMU may have: see
        /// [`IntelConfiguration::set`](crate::configuration::IntelConfiguration::set).
        ///
        /// ```
        /// use pmu_virt::configuration::IntelFeature;
        /// let feature = IntelFeature::ALL.into_iter().find(|feature| feature.name() == "equal");
        /// assert_eq!(feature, Some(IntelFeature::Equal));
        /// assert_eq!(IntelFeature::Equal.since(), 6);
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[non_exhaustive]
        pub enum IntelFeature {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl IntelFeature {
            /// Every feature.
            pub const ALL: [Self; [$(Self::$variant),+].len()] = [$(Self::$variant),+];
        }

        /// The rows of the features, in their order. A feature's place is its bit in saved bytes.
        #[rustfmt::skip]
        static ROWS: [Row; IntelFeature::ALL.len()] = [$($row),+];
    };
}

features! {
    /// The guest can write all bits of a general counter, at addresses from 0x4C1 upward
    /// (`IA32_PERF_CAPABILITIES[13]`).
    FullWidthWrites: Row {
        name: "full-width", since: 1, manual: FULL_WIDTH, declared: Declared::Capabilities,
        bits: FeatureBits { capabilities: 1 << 13, ..NONE },
    };
    /// Event selects have the AnyThread bit, and so has the control of each fixed counter. CPUID leaf 0x0A then has EDX
    /// bit 15 clear: AnyThread is not deprecated. The [`EventKey`](crate::EventKey) of an event contains the AnyThread
    /// bit. On a real counter, AnyThread also counts the core's other thread, which may run another guest.
    AnyThread: Row {
        name: "any-thread", since: 3, manual: VERSION_3,
        declared: Declared::Clear(LeafBits { leaf: 0x0A, subleaf: None, register: EDX, bits: 1 << 15 }),
        bits: FeatureBits { select: SELECT_ANY_THREAD, each_fixed: FIXED_ANY_THREAD, ..NONE },
    };
    /// CPUID has leaf 0x23, which declares the bitmaps of counters (leaf 7.1, EAX bit 8). Leaf 0x23 is optional in
    /// version 5, and required in version 6.
    ExtendedLeaf: Row {
        name: "extended-leaf", since: 5, manual: LEAF_07,
        declared: Declared::Set(LeafBits { leaf: 7, subleaf: Some(1), register: EAX, bits: 1 << 8 }),
        bits: NONE,
    };
    /// Event selects have `IN_TX` (bit 32). The select of counter 2 also has `IN_TXCP` (bit 33). The
    /// [`EventKey`](crate::EventKey) of an event contains both bits.
    ///
    /// If the guest has the feature, the embedder decides whether CPUID declares TSX (leaf 7, EBX bit 4 for HLE and EBX
    /// bit 11 for RTM). Otherwise CPUID hides TSX, and `IN_TX` and `IN_TXCP` are reserved.
    Transactional: Row {
        name: "transactional", since: 1, manual: TSX,
        declared: Declared::ByEmbedder(LeafBits { leaf: 7, subleaf: Some(0), register: EBX, bits: 1 << 4 | 1 << 11 }),
        bits: FeatureBits { select: SELECT_IN_TX, third_select: SELECT_IN_TXCP, ..NONE },
    };
    /// Event selects have a second unit mask, UMASK2, in bits 47:40 (leaf 0x23, EBX bit 0). A different unit mask 2
    /// selects a different event: [`EventKey::with_unit_mask_2`](crate::EventKey::with_unit_mask_2).
    UnitMask2: Row {
        name: "unit-mask-2", since: 6, manual: VERSION_6, declared: Declared::Set(of_leaf_23(0)),
        bits: FeatureBits { select: SELECT_UNIT_MASK_2, ..NONE },
    };
    /// Event selects have the flag EQ in bit 36 (leaf 0x23, EBX bit 1). With EQ, a counter counts the cycles in which
    /// the number of events equals the counter mask. The count has a key of its own:
    /// [`EventKey::equal`](crate::EventKey::equal).
    Equal: Row {
        name: "equal", since: 6, manual: VERSION_6, declared: Declared::Set(of_leaf_23(1)),
        bits: FeatureBits { select: SELECT_EQ, ..NONE },
    };
    /// The guest's kernel can hide each counter from RDPMC at CPL 1–3 (leaf 0x23, EBX bit 2). Bit 37 of an event select
    /// hides a general counter. Bit 33 + 4*n* of `IA32_FIXED_CTR_CTRL` hides fixed counter *n*. RDPMC of a hidden
    /// counter reads 0, without a fault.
    RdpmcUserDisable: Row {
        name: "rdpmc-user-disable", since: 6, manual: VERSION_6, declared: Declared::Set(of_leaf_23(2)),
        bits: FeatureBits {
            select: SELECT_RDPMC_USER_DISABLE, each_fixed: FIXED_RDPMC_USER_DISABLE, ..NONE
        },
    };
}

/// Row of the table: what the model needs to know of a feature.
struct Row {
    name: &'static str,
    /// The first version that can have the feature.
    since: u8,
    manual: &'static str,
    declared: Declared,
    bits: FeatureBits,
}

/// Bits that features add to registers.
#[derive(Clone, Copy)]
pub(crate) struct FeatureBits {
    /// Bits of each event select.
    pub(crate) select: u64,
    /// Bits that only the select of the third general counter has.
    pub(crate) third_select: u64,
    /// Bits of fixed counter 0 in `IA32_FIXED_CTR_CTRL`; those of counter *n* are 4*n* bits higher.
    pub(crate) each_fixed: u64,
    /// Bits of `IA32_PERF_CAPABILITIES`.
    pub(crate) capabilities: u64,
}

/// Declaration of a feature in CPUID.
#[derive(Clone, Copy)]
enum Declared {
    /// By the feature's bits of `IA32_PERF_CAPABILITIES`.
    Capabilities,
    /// By these bits.
    Set(LeafBits),
    /// By the absence of these bits, from version 2 on. A host's feature is not passed on.
    Clear(LeafBits),
    /// By these bits if the embedder sets them. Without the feature, they are clear.
    ByEmbedder(LeafBits),
}

#[derive(Clone, Copy)]
struct LeafBits {
    leaf: u32,
    /// `None` if the leaf has no sub-leaves.
    subleaf: Option<u32>,
    register: usize,
    bits: u32,
}

/// Returns a bit of leaf 0x23, sub-leaf 0, EBX, which declares features of the controls.
const fn of_leaf_23(bit: u32) -> LeafBits {
    LeafBits { leaf: 0x23, subleaf: Some(0), register: EBX, bits: 1 << bit }
}

const NONE: FeatureBits =
    FeatureBits { select: 0, third_select: 0, each_fixed: 0, capabilities: 0 };

impl IntelFeature {
    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Returns the feature's name, in words of lowercase letters joined by hyphens.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the first version of architectural performance monitoring that can have the feature.
    pub const fn since(self) -> u8 {
        self.row().since
    }

    /// Returns the section of the manual about the feature.
    pub const fn manual(self) -> &'static str {
        self.row().manual
    }
}

/// Set of features.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct IntelFeatures(pub(crate) u16);

impl IntelFeatures {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self((1 << ROWS.len()) - 1);

    pub(crate) const fn has(self, feature: IntelFeature) -> bool {
        self.0 >> feature as u16 & 1 != 0
    }

    pub(crate) const fn set(&mut self, feature: IntelFeature, present: bool) {
        let bit = 1 << feature as u16;
        self.0 = if present { self.0 | bit } else { self.0 & !bit };
    }

    /// Returns the first feature of the set that this version cannot have.
    pub(crate) const fn beyond(self, version: u8) -> Option<IntelFeature> {
        let mut number = 0;
        while number < ROWS.len() {
            let feature = IntelFeature::ALL[number];
            if self.has(feature) && feature.since() > version {
                return Some(feature);
            }
            number += 1;
        }
        None
    }

    /// Returns the bits that the features of the set add to registers.
    pub(crate) const fn bits(self) -> FeatureBits {
        let (mut sum, mut number) = (NONE, 0);
        while number < ROWS.len() {
            if self.has(IntelFeature::ALL[number]) {
                let bits = &ROWS[number].bits;
                sum.select |= bits.select;
                sum.third_select |= bits.third_select;
                sum.each_fixed |= bits.each_fixed;
                sum.capabilities |= bits.capabilities;
            }
            number += 1;
        }
        sum
    }

    /// Adds the features' bits to a CPUID leaf of a guest with this version; 0 is a guest without Intel's PMU.
    pub(crate) fn declare(self, version: u8, leaf: CpuidLeaf) -> CpuidLeaf {
        IntelFeature::ALL.into_iter().fold(leaf, |leaf, feature| {
            let has = self.has(feature);
            let (at, value) = match feature.row().declared {
                Declared::Set(at) => (at, has),
                Declared::Clear(at) if version >= 2 => (at, !has),
                Declared::ByEmbedder(at) if version != 0 && !has => (at, false),
                _ => return leaf,
            };
            if (at.leaf, at.subleaf) == (leaf.leaf, leaf.subleaf) {
                leaf.bits(at.register, at.bits, if value { at.bits } else { 0 })
            } else {
                leaf
            }
        })
    }

    /// Returns the features that a host of this version declares and a guest can have. `cpuid` returns 0 for a leaf
    /// that is absent.
    pub(crate) fn of_host(
        version: u8,
        capabilities: u64,
        cpuid: impl Fn(u32, u32) -> CpuidRegisters,
    ) -> Self {
        let mut features = Self::NONE;
        for feature in IntelFeature::ALL {
            let row = feature.row();
            let declared = match row.declared {
                Declared::Capabilities => capabilities & row.bits.capabilities != 0,
                Declared::Set(at) | Declared::ByEmbedder(at) => {
                    cpuid(at.leaf, at.subleaf.unwrap_or(0))[at.register % 4] & at.bits != 0
                }
                Declared::Clear(_) => false,
            };
            features.set(feature, declared && row.since <= version);
        }
        features
    }
}

impl fmt::Debug for IntelFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present = IntelFeature::ALL.into_iter().filter(|feature| self.has(*feature));
        f.debug_set().entries(present).finish()
    }
}
