//! Precise records and the branch trace store of a mock processor.

use core::cell::RefCell;

use crate::branches::record::FedBranch;
use crate::mock::deviation::{Deviation, Deviations};
use crate::mock::processor::MockMsr;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::EventPolicy;
use crate::precise::memory::{GuestFault, GuestMemory, RECORDS};
use crate::precise::record::{FedRecord, Recorded};
use crate::precise::virtual_precise::{AREA, DUE, VirtualPrecise};
use crate::registers::table::{Family, from_global, places, to_global};

/// Length of a buffer from which on it may be taken for half as long.
const SHORTENED: u64 = 4096;
/// One index in so many is overwritten.
const SCRIBBLED: u64 = 4;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Adds precise records, a branch trace store, or both to the processor. [`snapshot`](Self::snapshot) declares
    /// these features.
    ///
    /// `memory` gives access to the driver's DS save area, or to the driver's buffer of architectural PEBS. The driver
    /// writes the area's address to `IA32_DS_AREA`, or the buffer's address to `IA32_PEBS_BASE`. If a counter that
    /// writes records overflows, the mock writes the record at once. If another counter's interrupt freezes the
    /// counters at that moment, the mock writes the record at the first event that the counter counts afterwards. For
    /// each record, the mock calls `instructions` with the record's number. The first record of the mock has number 0.
    /// `instructions` returns the instruction to record. If the instruction's [`branches`](FedRecord::branches) is
    /// `None`, the record contains the processor's [branch records](Self::with_branches).
    ///
    /// A driver may keep its records in a static, such as `PreciseMemory` of `pmu-intel`. The linear addresses in the
    /// registers and in the DS save area are then addresses in the test's own process, and `memory` is a
    /// [`ProcessMemory`](super::ProcessMemory). Architectural PEBS uses physical addresses, which the test chooses. The
    /// buffer of a `PreciseMemory` begins one page behind the value's first byte.
    ///
    /// `instructions` is a closure. A `fn` item whose result is a `FedRecord<'static>` makes the mock `'static`.
    ///
    /// ```
    /// # use core::cell::RefCell;
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use core::sync::atomic::{AtomicU64, Ordering};
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::{MockMsr, ProcessMemory};
    /// use pmu_virt::precise::{FedRecord, PreciseConfiguration, VirtualPrecise};
    /// const BRANCHES: EventKey = EventKey::general(0xC4, 0);
    /// let events = FedEvents::new(&[BRANCHES])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let precise = VirtualPrecise::new(&configuration, PreciseConfiguration::debug_store(4))?;
    /// // The driver's area, and from word 64 on its buffer.
    /// static WORDS: [AtomicU64; 192] = [const { AtomicU64::new(0) }; 192];
    /// // SAFETY: WORDS consists of atomics.
    /// let memory = RefCell::new(unsafe { ProcessMemory::default().with(&WORDS, 0) });
    /// // Record n is of the instruction at 0x401000 + n.
    /// let instructions = |number| FedRecord::new(0x40_1000 + number);
    /// let pmu = VirtualPmu::new(configuration, events)?;
    /// let mock = MockMsr::<8>::strict(pmu).with_precise(precise, &memory, &instructions);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// // A buffer of 1 KiB, an interrupt at its second record, a period of 100.
    /// let [area, buffer] = [0, 64].map(|word| &raw const WORDS[word] as u64);
    /// let words = [buffer, buffer, buffer + 0x400, buffer + 0x40, 100u64.wrapping_neg()];
    /// for (place, word) in WORDS[4..].iter().zip(words) {
    ///     place.store(word, Ordering::Relaxed);
    /// }
    /// mock.set_performance_entry(0x400);
    /// for (address, value) in [(0x600, area), (0x3F1, 1), (0x4C1, (1 << 48) - 100), (0x186, 0x43_00C4)] {
    ///     mock.write(msr(address), value).unwrap();
    /// }
    /// let mut feed = Feed::new(&events);
    /// feed.add(events.find(BRANCHES).unwrap(), Privilege::Kernel, 250)?;
    /// mock.advance(&mut feed);
    /// // Two records of 32 bytes, and one interrupt.
    /// assert_eq!((mock.written_records(), mock.interrupts()), (2, 1));
    /// assert_eq!(WORDS[64 + 4 + 1].load(Ordering::Relaxed), 0x40_1001); // the second record's address
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn with_precise(
        mut self,
        precise: VirtualPrecise,
        memory: &'h RefCell<dyn GuestMemory + 'h>,
        instructions: &'h dyn Fn(u64) -> FedRecord<'h>,
    ) -> Self {
        let ((_, (_, present)), (_, reload)) = self.beside.get_mut();
        *present = Some(precise);
        *reload = reload.map(|reload| reload.sharing(&precise));
        self.precise_records.set(Some((memory, instructions)));
        self
    }

    /// Returns the number of precise records that the mock has written.
    pub fn written_records(&self) -> u64 {
        self.written_records.get()
    }

    /// Returns the number of precise records and traced branches that were lost. A record is lost in three cases: the
    /// buffer is full, the buffer's index is outside the buffer, or an access to the memory fails.
    pub fn lost_records(&self) -> u64 {
        self.lost_records.get()
    }

    /// Executes a taken branch on the processor. If the driver has enabled the branch trace store, the processor writes
    /// the branch to memory. If the buffer then reaches its threshold, the call delivers the interrupt. Returns whether
    /// the branch was written.
    ///
    /// For branch records, use [`branch`](Self::branch) instead.
    pub fn trace_branch(&self, branch: &FedBranch) -> bool {
        let Some((memory, _)) = self.precise_records.get() else { return false };
        let mut pmu = self.pmu.borrow_mut();
        let recorded = match &mut self.beside.borrow_mut().0.1.1 {
            Some(precise) => precise.branch(&mut pmu, branch, &mut *memory.borrow_mut()),
            None => Recorded::default(),
        };
        drop(pmu);
        self.note(&recorded);
        if recorded.pmi {
            self.raised();
            self.interrupt();
        }
        recorded.written != 0
    }

    /// Calls `act` with the state of the precise records. `act` reads and changes the state directly. The mock does not
    /// count this as an access. Returns `None` if the processor has no precise records.
    ///
    /// # Panics
    /// The call panics if `act` accesses a register through the mock.
    pub fn with_precise_records<R>(&self, act: impl FnOnce(&mut VirtualPrecise) -> R) -> Option<R> {
        self.beside.borrow_mut().0.1.1.as_mut().map(act)
    }

    /// Writes the records of counters that overflowed. Returns whether an interrupt was raised.
    pub(super) fn write_records(&self, counters: u64) -> bool {
        let Some((memory, instructions)) = self.precise_records.get() else { return false };
        if counters == 0 {
            return false;
        }
        let mut pmu = self.pmu.borrow_mut();
        let ((branches, (_, Some(precise))), _) = &mut *self.beside.borrow_mut() else {
            return false;
        };
        // The mock counts by `advance`, which tells no facility of its overflows.
        precise.words[DUE] |= counters & precise.enabled();
        let mut pmi = false;
        for counters in self.deviations.collided(counters) {
            let number = self.written_records.get();
            let fed = instructions(number);
            let branches = fed.branches.or(branches.as_ref());
            let fed = FedRecord { branches, ..fed };
            let mut memory = memory.borrow_mut();
            let recorded =
                self.deviations.record(precise, &mut pmu, counters, number, &fed, &mut *memory);
            self.note(&recorded);
            pmi |= recorded.pmi;
        }
        pmi
    }

    fn note(&self, recorded: &Recorded) {
        let failed = u64::from(recorded.fault.is_some());
        self.written_records.set(self.written_records.get() + u64::from(recorded.written));
        self.lost_records.set(self.lost_records.get() + u64::from(recorded.lost) + failed);
    }
}

impl Deviations {
    /// Returns the sets of counters that share a record.
    fn collided(self, counters: u64) -> impl Iterator<Item = u64> {
        let collided = self.contains(Deviation::CollidedRecords);
        let each = places(from_global(counters)).map(|place| to_global(1 << place));
        let together = core::iter::once(counters).filter(move |_| collided);
        together.chain(each.filter(move |_| !collided))
    }

    /// Writes the [due](VirtualPrecise::due) records of `counters`, with the errors that these deviations cause. If no
    /// deviation concerns precise records, the call does the same as [`VirtualPrecise::record`]. `number` is the number
    /// of the first record. The first record that the processor ever wrote has number 0.
    ///
    /// [`MockMsr`] writes its records by this method. A hypervisor can call this method to test a guest's driver with
    /// the deviations.
    ///
    /// ```
    /// # use pmu_virt::precise::{GuestFault, GuestMemory};
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::{Deviation, Deviations};
    /// use pmu_virt::precise::{FedRecord, PreciseConfiguration, VirtualPrecise};
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
    /// const BRANCHES: EventKey = EventKey::general(0xC4, 0);
    /// let events = FedEvents::new(&[BRANCHES])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let mut pmu = VirtualPmu::new(configuration, events)?;
    /// let mut precise = VirtualPrecise::new(&configuration, PreciseConfiguration::debug_store(4))?;
    /// # let mut ram = Ram([0; 0x1000]);
    /// // The guest's area at 0x100: an interrupt at each record. Counters 0 and 1 overflow together.
    /// for (offset, word) in [(0x20, 0x400), (0x28, 0x400), (0x30, 0x800), (0x38, 0x401)] {
    ///     ram.write(0x100 + offset, &u64::to_le_bytes(word))?;
    /// }
    /// for (address, value) in [(0x600, 0x100), (0x3F1, 0b11), (0x186, 0x43_00C4), (0x187, 0x43_00C4)] {
    ///     let _ = pmu.write_beside(&mut precise, address, value);
    /// }
    /// for counter in [0x4C1, 0x4C2] {
    ///     let _ = pmu.write(counter, (1 << 48) - 1_000);
    /// }
    /// let mut feed = Feed::new(&events);
    /// feed.add(events.find(BRANCHES).unwrap(), Privilege::Kernel, 1_000)?;
    /// let _ = pmu.advance_beside(&mut precise, &mut feed)?;
    /// // One record for both.
    /// let collides = Deviations::of(&[Deviation::CollidedRecords]);
    /// let recorded = collides.record(&mut precise, &mut pmu, 0b11, 0, &FedRecord::new(0x40_1000), &mut ram);
    /// assert_eq!((recorded.written, &ram.0[0x410..0x418]), (1, &[0b11, 0, 0, 0, 0, 0, 0, 0][..]));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn record<P: EventPolicy>(
        self,
        precise: &mut VirtualPrecise,
        pmu: &mut VirtualPmu<P>,
        counters: u64,
        number: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
    ) -> Recorded {
        let area = precise.words[AREA].wrapping_add(RECORDS);
        let mut all = Recorded::default();
        for counters in self.collided(counters) {
            let number = number.wrapping_add(all.written.into());
            let mut memory = Deviating { area, deviations: self, number, memory: &mut *memory };
            let recorded = precise.record_collided(pmu, counters, fed, &mut memory);
            if recorded.pmi && self.contains(Deviation::PreciseStatusBeside) {
                *pmu.model.registers.of_mut(Family::GlobalStatus) |= counters;
            }
            all.written += recorded.written;
            all.lost += recorded.lost;
            all.pmi |= recorded.pmi;
            all.fault = recorded.fault;
            if all.fault.is_some() {
                break;
            }
        }
        all
    }
}

/// The driver's memory, as a deviating processor accesses it.
struct Deviating<'m> {
    /// Linear address of the description of the records' buffer: base, index, maximum, threshold.
    area: u64,
    deviations: Deviations,
    /// Number of the record.
    number: u64,
    memory: &'m mut dyn GuestMemory,
}

impl GuestMemory for Deviating<'_> {
    fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault> {
        self.memory.read(linear, bytes)?;
        // Four words at this address are the buffer's description: no other access has this form.
        if linear == self.area
            && self.deviations.contains(Deviation::ShortDebugStore)
            && let ([base, _, maximum, threshold], []) = bytes.as_chunks_mut::<8>()
        {
            let first = u64::from_le_bytes(*base);
            let length = u64::from_le_bytes(*maximum).saturating_sub(first);
            if length >= SHORTENED {
                let early = first.saturating_add(length / 4).min(u64::from_le_bytes(*threshold));
                *maximum = first.saturating_add(length / 2).to_le_bytes();
                *threshold = early.to_le_bytes();
            }
        }
        Ok(())
    }

    fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        let scribbles = self.deviations.contains(Deviation::ScribbledIndex)
            && self.number % SCRIBBLED == SCRIBBLED - 1
            && linear == self.area.wrapping_add(8);
        if !scribbles {
            return self.memory.write(linear, bytes);
        }
        let mut buffer = [[0; 8]; 4];
        self.memory.read(self.area, buffer.as_flattened_mut())?;
        let [base, _, maximum, _] = buffer.map(u64::from_le_bytes);
        let index = bytes.try_into().map_or(0, u64::from_le_bytes);
        let scribbled = match self.number / SCRIBBLED % 3 {
            0 => maximum.wrapping_add(0x1000),
            1 => base.wrapping_sub(8),
            _ => index.wrapping_sub(8),
        };
        self.memory.write(linear, &scribbled.to_le_bytes())
    }

    fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        self.memory.write_physical(physical, bytes)
    }
}
