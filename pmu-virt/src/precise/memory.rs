//! Access to the guest's memory, for the records.

use core::fmt;

use crate::branches::record::FedBranch;
use crate::events::key::Privilege;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::EventPolicy;
use crate::precise::record::Recorded;
use crate::precise::virtual_precise::{AREA, BUFFER, DEBUG, VirtualPrecise};

/// Access to the guest's memory, to which a virtual processor writes records. The embedder implements this trait.
///
/// The guest can choose any address, so the implementation must check that each byte belongs to the guest. An access
/// has supervisor privilege, and uses the guest's present address space.
///
/// ```
/// use pmu_virt::precise::{GuestFault, GuestMemory};
/// /// Memory from linear address 0x1000 on, which is also its physical address.
/// struct Ram([u8; 0x1000]);
///
/// impl Ram {
///     fn at(&mut self, address: u64, length: usize) -> Result<&mut [u8], GuestFault> {
///         let start = address.checked_sub(0x1000).and_then(|start| usize::try_from(start).ok());
///         start
///             .and_then(|start| self.0.get_mut(start..start.checked_add(length)?))
///             .ok_or(GuestFault { address })
///     }
/// }
///
/// impl GuestMemory for Ram {
///     fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault> {
///         bytes.copy_from_slice(self.at(linear, bytes.len())?);
///         Ok(())
///     }
///     fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault> {
///         self.at(linear, bytes.len())?.copy_from_slice(bytes);
///         Ok(())
///     }
///     fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault> {
///         self.write(physical, bytes)
///     }
/// }
/// let mut ram = Ram([0; 0x1000]);
/// assert_eq!(ram.write(0x1FFF, &[1, 2]), Err(GuestFault { address: 0x1FFF }));
/// ```
pub trait GuestMemory {
    /// Reads the guest's memory into `bytes`, starting at linear address `linear`. `bytes` has at most 64 bytes.
    ///
    /// # Errors
    /// The guest cannot read one of the bytes.
    fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault>;

    /// Writes `bytes` to the guest's memory, starting at linear address `linear`. `bytes` has at most 256 bytes.
    ///
    /// # Errors
    /// The guest cannot write one of the bytes. Bytes at lower addresses may already have been written.
    fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault>;

    /// Writes `bytes` to the guest's memory, starting at guest-physical address `physical`. `bytes` has at most 256
    /// bytes. Only architectural PEBS uses physical addresses.
    ///
    /// # Errors
    /// The guest has no memory at the address of one of the bytes. Bytes at lower addresses may already have been
    /// written.
    fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault>;
}

/// An access to the guest's memory failed. The embedder decides whether the guest gets a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GuestFault {
    /// Address of the access.
    pub address: u64,
}

impl fmt::Display for GuestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the guest has no memory at {:#X}", self.address)
    }
}

impl core::error::Error for GuestFault {}

/// Address of the guest's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Linear(u64),
    Physical(u64),
}

/// The next place of a record's words; without memory, only the length is counted.
pub(crate) struct Store<'m> {
    memory: Option<(&'m mut dyn GuestMemory, Place)>,
    /// Number of stored bytes.
    pub(crate) length: u64,
}

impl<'m> Store<'m> {
    /// Creates a store that only counts the length.
    pub(crate) fn counting() -> Self {
        Self { memory: None, length: 0 }
    }

    /// Creates a store of words from `place` on.
    pub(crate) fn at(memory: &'m mut dyn GuestMemory, place: Place) -> Self {
        Self { memory: Some((memory, place)), length: 0 }
    }

    /// Stores consecutive words, little-endian.
    pub(crate) fn words<const N: usize>(&mut self, words: [u64; N]) -> Result<(), GuestFault> {
        if let Some((memory, place)) = &mut self.memory {
            let bytes = words.map(u64::to_le_bytes);
            let bytes = bytes.as_flattened();
            let (Place::Linear(first) | Place::Physical(first)) = *place;
            let address = first.wrapping_add(self.length);
            // A record does not continue from the end of the address space at its beginning.
            if address.checked_add(bytes.len() as u64).is_none() {
                return Err(GuestFault { address });
            }
            match place {
                Place::Linear(_) => memory.write(address, bytes)?,
                Place::Physical(_) => memory.write_physical(address, bytes)?,
            }
        }
        self.length += 8 * N as u64;
        Ok(())
    }

    /// Stores a value of 16 bytes.
    pub(crate) fn wide(&mut self, value: u128) -> Result<(), GuestFault> {
        self.words([value as u64, (value >> 64) as u64])
    }
}

/// Reads consecutive words from a linear address on.
pub(crate) fn read_words<const N: usize>(
    memory: &mut dyn GuestMemory,
    linear: u64,
) -> Result<[u64; N], GuestFault> {
    let mut bytes = [[0; 8]; N];
    if linear.checked_add(8 * N as u64).is_none() {
        return Err(GuestFault { address: linear });
    }
    memory.read(linear, bytes.as_flattened_mut())?;
    Ok(bytes.map(u64::from_le_bytes))
}

/// Offsets in the area. SDM vol. 3B, "DS Save Area".
pub(crate) const BRANCHES: u64 = 0x00;
pub(crate) const RECORDS: u64 = 0x20;
pub(crate) const RESETS: u64 = 0x40;

/// A buffer of the area, as the guest has described it at this moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    /// Linear address of the index.
    at: u64,
    pub(crate) base: u64,
    pub(crate) index: u64,
    maximum: u64,
    threshold: u64,
}

impl Buffer {
    /// Reads the description of the buffer at this offset of the area.
    pub(crate) fn read(
        memory: &mut dyn GuestMemory,
        area: u64,
        offset: u64,
    ) -> Result<Self, GuestFault> {
        let first = area.wrapping_add(offset);
        let [base, index, maximum, threshold] = read_words(memory, first)?;
        Ok(Self { at: first.wrapping_add(8), base, index, maximum, threshold })
    }

    /// Returns whether a record of this size fits at the index.
    pub(crate) fn has_room(&self, size: u64) -> bool {
        // The guest may have written any values, so the sum must not wrap.
        self.index >= self.base
            && self.index.checked_add(size).is_some_and(|end| end <= self.maximum)
    }

    /// Returns whether the index has reached the threshold of the interrupt.
    pub(crate) fn interrupts(&self) -> bool {
        self.index >= self.threshold
    }

    /// Writes the index.
    pub(crate) fn set_index(
        &mut self,
        memory: &mut dyn GuestMemory,
        index: u64,
    ) -> Result<(), GuestFault> {
        Store::at(memory, Place::Linear(self.at)).words([index])?;
        self.index = index;
        Ok(())
    }
}

/// Size of a record: FROM, TO, flags.
const SIZE: u64 = 24;
/// Flag of a record: the branch was predicted.
const PREDICTED: u64 = 1 << 4;
/// `IA32_DEBUGCTL`: BTINT, BTS_OFF_OS, BTS_OFF_USR.
const DEBUG_INTERRUPT: u64 = 1 << 8;
const DEBUG_OFF_KERNEL: u64 = 1 << 9;
const DEBUG_OFF_USER: u64 = 1 << 10;

impl VirtualPrecise {
    /// Feeds a taken branch of the guest. If the guest has [enabled](Self::is_tracing) the branch trace store for the
    /// privilege level of the branch, the call writes the branch to the guest's BTS buffer. If BTINT (`IA32_DEBUGCTL`
    /// bit 8) is set, the buffer raises an interrupt when its index reaches the threshold. If BTINT is clear, the
    /// buffer is a ring buffer.
    ///
    /// ```
    /// # use pmu_virt::precise::{GuestFault, GuestMemory};
    /// use pmu_virt::{FedEvents, Privilege, VirtualPmu};
    /// use pmu_virt::branches::{FedBranch, FedBranchKind};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::precise::{PreciseConfiguration, VirtualPrecise};
    /// # struct Ram([u8; 0x1000]);
    /// # impl GuestMemory for Ram {
    /// #     fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault> {
    /// #         bytes.copy_from_slice(&self.0[linear as usize..][..bytes.len()]);
    /// #         Ok(())
    /// #     }
    /// #     fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault> {
    /// #         self.0[linear as usize..][..bytes.len()].copy_from_slice(bytes);
    /// #         Ok(())
    /// #     }
    /// #     fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault> {
    /// #         self.write(physical, bytes)
    /// #     }
    /// # }
    /// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let mut trace = VirtualPrecise::new(&configuration, PreciseConfiguration::BRANCH_TRACE)?;
    /// # let mut ram = Ram([0; 0x1000]);
    /// // The guest's area at 0x100: a buffer of two records from 0x400 on.
    /// for (offset, word) in [(0x00, 0x400u64), (0x08, 0x400), (0x10, 0x430), (0x18, 0x430)] {
    ///     ram.write(0x100 + offset, &word.to_le_bytes())?;
    /// }
    /// let _ = pmu.write_beside(&mut trace, 0x600, 0x100); // IA32_DS_AREA
    /// let _ = pmu.write_beside(&mut trace, 0x1D9, 1 << 7 | 1 << 6); // BTS, TR
    /// let call = FedBranch::new(0x40_1010, 0x40_2000, FedBranchKind::RelativeCall, Privilege::User);
    /// assert_eq!(trace.branch(&mut pmu, &call, &mut ram).written, 1);
    /// assert_eq!(ram.0[0x408..0x410], 0x40_2000u64.to_le_bytes());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn branch<P: EventPolicy>(
        &mut self,
        pmu: &mut VirtualPmu<P>,
        branch: &FedBranch,
        memory: &mut dyn GuestMemory,
    ) -> Recorded {
        let mut recorded = Recorded::default();
        let off = match branch.privilege {
            Privilege::Kernel => DEBUG_OFF_KERNEL,
            Privilege::User => DEBUG_OFF_USER,
        };
        if self.is_tracing() && self.words[DEBUG] & off == 0 {
            let interrupts = self.write_branch(branch, memory, &mut recorded);
            self.finish(interrupts, BUFFER, &mut pmu.model, &mut recorded);
        }
        recorded
    }

    /// Returns whether the threshold interrupts.
    fn write_branch(
        &self,
        branch: &FedBranch,
        memory: &mut dyn GuestMemory,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let mut buffer = Buffer::read(memory, self.words[AREA], BRANCHES)?;
        let wraps = self.words[DEBUG] & DEBUG_INTERRUPT == 0;
        if !buffer.has_room(SIZE) {
            // A ring ends at its maximum: an index below the base is one that something else has written.
            if !wraps || buffer.index < buffer.base {
                recorded.lost += 1;
                return Ok(!wraps && buffer.interrupts());
            }
            // Without its interrupt, the buffer is a ring (SDM vol. 3B, "BTS and DS Save Area").
            buffer.index = buffer.base;
            // The guest may have described a ring that is smaller than a record.
            if !buffer.has_room(SIZE) {
                recorded.lost += 1;
                return Ok(false);
            }
        }
        let flags = if branch.mispredicted { 0 } else { PREDICTED };
        Store::at(memory, Place::Linear(buffer.index)).words([branch.from, branch.to, flags])?;
        buffer.set_index(memory, buffer.index + SIZE)?;
        recorded.written += 1;
        Ok(!wraps && buffer.interrupts())
    }
}
