//! The branch trace store: branches in the Debug Store. SDM vol. 3B, "Branch Trace Store (BTS)".

use crate::branches::fed::FedBranch;
use crate::events::key::Privilege;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::precise::area::{BRANCHES, Buffer};
use crate::precise::memory::{GuestFault, GuestMemory};
use crate::precise::record::Recorded;
use crate::precise::store::{Place, Store};
use crate::precise::virtual_precise::{AREA, BUFFER, DEBUG, VirtualPrecise};

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
    /// use pmu_virt::branches::{FedBranch, FedBranchKind};
    /// use pmu_virt::precise::{PreciseConfiguration, VirtualPrecise};
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, Privilege, VirtualPmu};
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
            if !wraps || buffer.index < buffer.base {
                recorded.lost += 1;
                return Ok(!wraps && buffer.interrupts());
            }
            buffer.index = buffer.base;
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
