//! Intercepted accesses of a loaded guest.

use pmu_core::access::RegisterBackend;

use crate::mediated::host_counters::{HostCounters, MediationError};
use crate::mediated::load::Loaded;
use crate::mediated::registers::{Access, Registers, pmc_index};
use crate::pmu::msr::{Mode, Pmc, Read, Write};
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::EventPolicy;
use crate::registers::table::{Family, MAX_PER_KIND, ReadAs, WriteAs, to_global};

impl HostCounters {
    /// Returns whether the hypervisor must intercept RDMSR and WRMSR of this register while the guest is
    /// [loaded](Self::load).
    ///
    /// The result is `true` for these registers:
    ///
    /// - the event selects and `IA32_FIXED_CTR_CTRL`, because the policy may forbid an event;
    /// - the register that sets bits of the global status, and `IA32_PERF_GLOBAL_INUSE`;
    /// - the registers that this guest's PMU lacks;
    /// - the registers that the PMU shares with other facilities;
    /// - the global registers, if the processor may have PERF_METRICS or more counters than a guest can have (see
    ///   [`from_cpuid`](Self::from_cpuid)).
    ///
    /// The hypervisor passes the intercepted accesses to [`write`](Self::write) and [`read`](Self::read). The two
    /// functions also accept the registers of the PMU that need no intercept.
    ///
    /// ```
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mediated::{HostCounters, MediationError};
    /// /// The first half of VMX' MSR bitmaps: RDMSR of 0–1FFF, then WRMSR of 0–1FFF at 800h, 1 for an exit.
    /// fn intercept(host: &HostCounters, guest: &VirtualPmu, bitmap: &mut [u8; 4096]) {
    ///     for register in guest.configuration().registers() {
    ///         let (byte, bit) = (register.address as usize / 8, register.address % 8);
    ///         for half in [0, 0x800] {
    ///             let exits = host.intercepts(guest, register.address);
    ///             bitmap[half + byte] = bitmap[half + byte] & !(1 << bit) | u8::from(exits) << bit;
    ///         }
    ///     }
    /// }
    /// // A host without PERF_METRICS: leaf 0x0A of version 5 with four counters and three fixed ones.
    /// let host = HostCounters::from_cpuid(|leaf, _| match leaf {
    ///     0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
    ///     0x0A => [0x0730_0405, 0, 0b111, 48 << 5 | 1 << 15],
    ///     _ => [0; 4],
    /// }, 1 << 13)?;
    /// let guest = VirtualPmu::new(host.guest(), FedEvents::NONE)?;
    /// let mut bitmap = [0xFF; 4096];
    /// intercept(&host, &guest, &mut bitmap);
    /// assert_eq!(bitmap[0x4C1 / 8] >> (0x4C1 % 8) & 1, 0); // a counter is the guest's own
    /// assert_eq!(bitmap[0x186 / 8] >> (0x186 % 8) & 1, 1); // a select is not
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn intercepts<P: EventPolicy>(&self, guest: &VirtualPmu<P>, address: u32) -> bool {
        // The real processor may have what this guest's lacks.
        let Some(located) = guest.model.layout.find(address) else { return true };
        match located.row.family {
            Family::GeneralCounter | Family::FixedCounter => false,
            Family::GlobalControl => self.has_more,
            Family::GlobalStatus => {
                let row = located.row;
                self.has_more || row.write == WriteAs::Set || row.read == ReadAs::InUse
            }
            _ => true,
        }
    }

    /// Returns whether the hypervisor must intercept RDPMC while a guest is [loaded](Self::load). The hypervisor then
    /// answers RDPMC by [`read_counter`](Self::read_counter). The result is `true` if the processor may have more
    /// counters than a guest can have. The result is also `true` if the processor may have PERF_METRICS, which RDPMC
    /// with ECX = 2000_0000h reads.
    pub const fn intercepts_rdpmc(&self) -> bool {
        self.has_more
    }

    /// Executes an intercepted WRMSR of the [loaded](Self::load) guest, first in the guest's PMU, then in the real
    /// registers. If the [policy](EventPolicy) forbids a counter's event, the counter does not count.
    ///
    /// The result is the [`answer`](crate::Written::answer) that [`VirtualPmu::write`] gives to the same WRMSR. A write
    /// that sets bits of the global status raises no interrupt. After the call, [`Loaded::global_control`] and
    /// [`Loaded::debug_control`] return the guest's new values. Register accesses: one write. If the write enables the
    /// interrupt of a counter, the call also reads the global status once.
    ///
    /// # Errors
    /// - Another guest is loaded.
    /// - A register access failed. The guest's PMU then has the new value, but the real register may still have the old
    ///   value.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu, Write};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mediated::{GuestInterrupts, HostCounters};
    /// use pmu_virt::mock::MockMsr;
    /// use pmu_virt::policy::{EventFilter, FilterAction, FilterEntry};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
    /// # let processor = MockMsr::<64>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// let host = HostCounters::new(configuration)?;
    /// let denied = EventFilter::<1>::compile(FilterAction::Deny, 0, &[FilterEntry::new(0x2E, 0x41)])?;
    /// let mut guest = VirtualPmu::with_policy(host.guest(), FedEvents::NONE, denied)?;
    /// let (mut lent, interrupts) = (host.stop(&processor)?, GuestInterrupts::new());
    /// let mut loaded = host.load(&mut lent, &mut guest, &interrupts, &processor)?;
    /// // An exit: the guest's WRMSR of two event selects. The second event is denied: the real select is not enabled.
    /// # // SAFETY: event selects.
    /// # let real = |n: u32| processor.read(unsafe { RegisterAddress::new(0x186 + n) }).unwrap();
    /// assert_eq!(host.write(&mut loaded, &mut guest, 0x186, 0x53_003C, &processor)?, Write::Done);
    /// assert_eq!(host.write(&mut loaded, &mut guest, 0x187, 0x53_412E, &processor)?, Write::Done);
    /// assert_eq!((real(0), real(1)), (0x53_003C, 0x13_412E));
    /// let saved = loaded.global_control();
    /// host.put(loaded, saved, &mut guest, &processor).map_err(|(_, error)| error)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write<P: EventPolicy, M: RegisterBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        guest: &mut VirtualPmu<P>,
        address: u32,
        value: u64,
        msr: &M,
    ) -> Result<Write, MediationError> {
        loaded.check(guest)?;
        // The guest's PMU judges first: what faults on the guest's processor never reaches a real register.
        let answer = guest.write(address, value).answer;
        let Some(located) = guest.model.layout.find(address) else { return Ok(answer) };
        // A put that has saved the guest, and is to be tried again, has taken the guest's state off the counters.
        if !matches!(answer, Write::Done | Write::Shared { .. }) || loaded.saved.is_some() {
            return Ok(answer);
        }
        let msr = Access(msr);
        let Registers { status, control, status_clear, status_set, .. } = self.registers;
        let registers = &guest.model.registers;
        match located.row.family {
            Family::EventSelect => self.write_select(loaded, guest, located.index, &msr)?,
            Family::FixedControl => self.write_fixed_control(loaded, guest, &msr)?,
            Family::GeneralCounter | Family::FixedCounter => {
                let counter = located.index - Family::GeneralCounter.first();
                msr.write(self.registers.counter(counter), registers.counter(counter))?;
            }
            Family::GlobalControl => {
                loaded.global_control = registers.of(Family::GlobalControl);
                // On Intel, the next VM entry loads the register. On AMD, owners of counters that are not lent continue
                // to count.
                if self.is_amd() {
                    // The next attempt of a put stops the counters again.
                    loaded.stopped = false;
                    msr.write(control, loaded.lent.global_control() | loaded.global_control)?;
                }
            }
            Family::GlobalStatus => {
                let value = value & self.status_bits();
                let others = value & !self.counter_bits();
                let [_, guests] = &mut loaded.others;
                match located.row.write {
                    WriteAs::Set => {
                        *guests |= others;
                        loaded.note_status();
                        // No interrupt comes for bits that software sets, and `put` would otherwise announce one.
                        loaded.interrupts.know(value);
                        msr.write(status_set, value)?;
                    }
                    WriteAs::Cleared => {
                        // A bit that is the host's alone is not the guest's to acknowledge.
                        let value = value & (self.counter_bits() | *guests);
                        loaded.interrupts.acknowledged(value);
                        msr.write(status_clear, value)?;
                        *guests &= !others;
                    }
                    _ => {}
                }
            }
            Family::DebugControl => loaded.debug_control = registers.of(Family::DebugControl),
            _ => {}
        }
        let new = loaded.interrupts.set_interrupting(to_global(guest.model.interrupting()));
        if new != 0 {
            // A counter that overflowed before it interrupts has raised no interrupt.
            loaded.interrupts.know(msr.read(status)? & new);
        }
        Ok(answer)
    }

    /// Executes an intercepted RDMSR of the [loaded](Self::load) guest, and returns the present value of the real
    /// register. The variants of the result mean the same as in [`VirtualPmu::read`]. Register accesses: at most one
    /// read.
    ///
    /// # Errors
    /// Another guest is loaded, or the register access failed.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, Mode, Read, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mediated::{GuestInterrupts, HostCounters};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
    /// # let processor = MockMsr::<64>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// let host = HostCounters::new(configuration)?;
    /// let mut guest = VirtualPmu::new(host.guest(), FedEvents::NONE)?;
    /// let (mut lent, interrupts) = (host.stop(&processor)?, GuestInterrupts::new());
    /// let loaded = host.load(&mut lent, &mut guest, &interrupts, &processor)?;
    /// // The guest ran, and its second counter counted. The PMU in memory has the value of before.
    /// # // SAFETY: a counter.
    /// # processor.write(unsafe { RegisterAddress::new(0x4C2) }, 1_234).unwrap();
    /// assert_eq!(host.read(&loaded, &guest, 0x4C2, &processor)?, Read::Value(1_234));
    /// assert_eq!(host.read_counter(&loaded, &guest, 1, Mode::KERNEL, &processor)?, Read::Value(1_234));
    /// assert_eq!(guest.read(0x4C2), Read::Value(0));
    /// // PERF_METRICS is no guest's.
    /// let metrics = host.read_counter(&loaded, &guest, 0x2000_0000, Mode::KERNEL, &processor)?;
    /// assert_eq!(metrics, Read::GeneralProtection);
    /// let saved = loaded.global_control();
    /// host.put(loaded, saved, &mut guest, &processor).map_err(|(_, error)| error)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read<P: EventPolicy, M: RegisterBackend>(
        &self,
        loaded: &Loaded<'_>,
        guest: &VirtualPmu<P>,
        address: u32,
        msr: &M,
    ) -> Result<Read, MediationError> {
        loaded.check(guest)?;
        let layout = &guest.model.layout;
        let located = layout.find(address).filter(|_| loaded.saved.is_none());
        let Some(located) = located else { return Ok(guest.read(address)) };
        let msr = Access(msr);
        let value = match (located.row.family, located.row.read) {
            (Family::GeneralCounter | Family::FixedCounter, _) => {
                let counter = located.index - Family::GeneralCounter.first();
                msr.read(self.registers.counter(counter))? & layout.mask(counter)
            }
            (Family::GlobalControl, _) if self.is_amd() => {
                msr.read(self.registers.control)? & layout.global()
            }
            (Family::GlobalControl, _) => loaded.global_control,
            (Family::GlobalStatus, ReadAs::Held) => {
                let [_, guests] = loaded.others;
                // Other bits may be the host's, of which the guest is to know nothing.
                msr.read(self.registers.status)? & (self.counter_bits() | guests)
            }
            _ => return Ok(guest.read(address)),
        };
        Ok(Read::Value(value))
    }

    /// Executes an intercepted RDPMC of the [loaded](Self::load) guest. Returns the value of the counter, or #GP if the
    /// guest does not have the counter.
    ///
    /// # Errors
    /// Another guest is loaded, or the register access failed.
    pub fn read_counter<P: EventPolicy, M: RegisterBackend>(
        &self,
        loaded: &Loaded<'_>,
        guest: &VirtualPmu<P>,
        ecx: u32,
        mode: Mode,
        msr: &M,
    ) -> Result<Read, MediationError> {
        loaded.check(guest)?;
        match guest.locate_pmc(ecx, mode) {
            Pmc::Absent => Ok(Read::GeneralProtection),
            Pmc::Zero => Ok(Read::Value(0)),
            Pmc::Counter(_) if loaded.saved.is_some() => Ok(guest.read_counter(ecx, mode)),
            Pmc::Counter(counter) => {
                let value = Access(msr).read_counter(pmc_index(counter))?;
                Ok(Read::Value(value & guest.model.layout.mask(counter)))
            }
        }
    }
}

// `write` takes an event select's place in the register file for the counter's number.
const _: () = assert!(Family::EventSelect.first() == 0 && MAX_PER_KIND == 8);
