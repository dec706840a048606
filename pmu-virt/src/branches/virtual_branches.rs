//! The branch records of one virtual processor: creation, reset and freeze.

use crate::branches::configuration::{BranchConfiguration, MAX_RECORDS};
use crate::branches::format::Record;
use crate::configuration::any_vendor::Configuration;
use crate::configuration::error::ConfigurationError;

/// State of the branch records of one virtual processor. The processor also has a [`VirtualPmu`](crate::VirtualPmu). As
/// a [`GuestFacility`](crate::GuestFacility), this type answers RDMSR and WRMSR of the registers of the branch records.
/// The embedder passes the guest's taken branches to [`record`](Self::record). The guest can make a counter's interrupt
/// freeze the records.
///
/// No method allocates or panics. A copy of the value is a snapshot of the complete state, and `==` compares two
/// states. [`to_bytes`](Self::to_bytes) saves the state.
///
/// ```
/// use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
/// use pmu_virt::{Configuration, FedEvents, GuestFacility, IntelConfiguration, Privilege, Read, VirtualPmu};
/// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
/// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
/// let mut branches = VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL)?;
/// // The guest: FREEZE_LBRS_ON_PMI; then LBREn, and everything in user mode.
/// let _ = pmu.write_beside(&mut branches, 0x1D9, 1 << 11);
/// let _ = pmu.write_beside(&mut branches, 0x14CE, 0x7F << 16 | 1 << 2 | 1);
///
/// let call = FedBranch::new(0x40_1010, 0x40_2000, FedBranchKind::RelativeCall, Privilege::User);
/// branches.record(&call);
/// branches.pmi_raised();
/// branches.record(&FedBranch { from: 0x40_2010, ..call }); // too late
/// assert_eq!(pmu.read_beside(&branches, 0x1500), Read::Value(0x40_1010));
/// assert_eq!(pmu.read_beside(&branches, 0x38E), Read::Value(1 << 58)); // LBR_FRZ
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct VirtualBranches {
    pub(crate) configuration: BranchConfiguration,
    /// Version of Intel's PMU; 0 on AMD.
    pub(crate) version: u8,
    /// The guest has TSX.
    pub(crate) transactional: bool,
    /// Number of records: fixed, or chosen by the guest.
    pub(crate) depth: u8,
    /// Values that the registers share or show, from [`DEBUG`] to [`TOP`].
    pub(crate) words: [u64; WORDS],
    /// The records: the newest first, but by their numbers in a legacy stack.
    pub(crate) records: [Record; MAX_RECORDS],
}

// The records take 768 bytes.
const _: () = assert!(size_of::<VirtualBranches>() <= 832);

/// Number of words.
pub(crate) const WORDS: usize = 6;
/// Bits of `IA32_DEBUGCTL` or `DebugCtl`.
pub(crate) const DEBUG: usize = 0;
/// [`FROZEN`], or 0.
pub(crate) const STATUS: usize = 1;
/// Counters whose selects ask for event logging.
pub(crate) const LOGGED: usize = 2;
/// `IA32_LBR_CTL`, or `LBR_SELECT`.
pub(crate) const CONTROL: usize = 3;
/// AMD's `DBG_EXTN_CFG`.
pub(crate) const EXTENSION: usize = 4;
/// Place of the newest record of a legacy stack.
pub(crate) const TOP: usize = 5;

/// `IA32_DEBUGCTL`: LBR, which enables a legacy stack, and FREEZE_LBRS_ON_PMI, of both vendors.
pub(crate) const DEBUG_LBR: u64 = 1 << 0;
pub(crate) const DEBUG_FREEZE: u64 = 1 << 11;
/// LBR_FRZ of the status, of both vendors.
pub(crate) const FROZEN: u64 = 1 << 58;

impl VirtualBranches {
    /// Creates the state that a guest's branch records have after reset. `pmu` is the configuration of the guest's PMU.
    ///
    /// # Errors
    /// A PMU of this configuration cannot have these branch records.
    pub fn new(
        pmu: &Configuration,
        configuration: BranchConfiguration,
    ) -> Result<Self, ConfigurationError> {
        configuration.check(pmu)?;
        let (version, transactional) = match pmu {
            Configuration::Intel(intel) => (intel.version, intel.transactional),
            _ => (0, false),
        };
        Ok(Self {
            configuration,
            version,
            transactional,
            depth: configuration.max_depth(),
            words: [0; WORDS],
            records: [Record::EMPTY; MAX_RECORDS],
        })
    }

    /// Returns the configuration of the branch records that the guest sees.
    pub fn configuration(&self) -> BranchConfiguration {
        self.configuration
    }

    /// Returns the number of the guest's branch records. A guest with architectural branch records chooses this number.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Freezes the records if the guest has asked for it. SDM vol. 3B, "Freezing LBR and Performance Counters on PMI":
    /// versions 2 and 3 clear the enable bit, version 4 on sets a bit of the status. AMD's records set the bit.
    pub(crate) fn freeze(&mut self) {
        if self.words[DEBUG] & DEBUG_FREEZE == 0 {
            return;
        }
        if self.has_frozen_bit() {
            self.words[STATUS] = FROZEN;
        } else {
            self.words[DEBUG] &= !DEBUG_LBR;
        }
    }

    /// Returns whether the status has the bit of frozen records.
    pub(crate) fn has_frozen_bit(&self) -> bool {
        match self.configuration {
            BranchConfiguration::Amd(branches) => branches.freeze,
            _ => self.version >= 4,
        }
    }

    pub(crate) const fn after_reset(&self) -> Self {
        let depth = self.configuration.max_depth();
        Self { depth, words: [0; WORDS], records: [Record::EMPTY; MAX_RECORDS], ..*self }
    }
}
