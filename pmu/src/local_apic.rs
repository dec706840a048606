//! The local APIC's LVT entry for performance counters, which a session masks and unmasks through [`LocalApic`].
//!
//! Read first: Intel SDM vol. 3A, "Advanced Programmable Interrupt Controller (APIC)", sections "Local Vector
//! Table" and "x2APIC Register Address Space"; AMD APM vol. 2, "Local Vector Table Registers".

use core::fmt;

use pmu_core::Platform;
use pmu_core::error::PlatformError;
use pmu_core::interval::Interval;

/// Access to the local APIC of the processor that executes the call; the kernel implements this trait. The only
/// required method writes the LVT entry for performance counters.
///
/// # For embedders
/// - `write_performance_entry` is called in task, interrupt and NMI context. This method takes no lock that the
///   interrupted code may hold. The other methods are called in task context.
///
/// In xAPIC mode the local APIC's registers are in memory. In x2APIC mode the registers are MSRs. If the kernel already
/// has code for the local APIC, the implementation calls that code:
///
/// ```
/// use pmu::apic::{ApicRegisters, Delivery, LocalApic, LvtEntry};
/// # unsafe fn wrmsr(_: u32, _: u64) {}
/// struct X2Apic;
/// impl ApicRegisters for X2Apic {
///     fn write_performance_entry(&self, entry: LvtEntry) {
///         // SAFETY: the entry is one that this kernel made; its vector has a handler.
///         unsafe { wrmsr(LocalApic::<Self>::X2APIC_MSR, entry.into()) }
///     }
/// }
///
/// struct XApic(usize); // where the registers are mapped, uncached
/// impl ApicRegisters for XApic {
///     fn write_performance_entry(&self, entry: LvtEntry) {
///         let register = self.0 + LocalApic::<Self>::XAPIC_OFFSET;
///         # if self.0 == 0 { return }
///         // SAFETY: the local APIC's page is mapped there, and registers are 32 bits wide.
///         unsafe { (register as *mut u32).write_volatile(entry.into()) }
///     }
/// }
/// # XApic(0).write_performance_entry(LvtEntry::new(Delivery::NON_MASKABLE, false));
/// ```
pub trait ApicRegisters {
    /// Writes the LVT entry for performance counters (LVTPC). In x2APIC mode, the entry is the MSR
    /// [`X2APIC_MSR`](LocalApic::X2APIC_MSR). In xAPIC mode, the entry is at offset
    /// [`XAPIC_OFFSET`](LocalApic::XAPIC_OFFSET) in the page of registers.
    fn write_performance_entry(&self, entry: LvtEntry);

    /// Reads the LVT entry for performance counters. The sampling units of AMD's processors are then delivered as the
    /// counters are. The default implementation returns `None`: the entry cannot be read.
    fn read_performance_entry(&self) -> Option<u32> {
        None
    }

    /// Reads an extended LVT entry of AMD's processors. Such an entry delivers the interrupts of instruction-based
    /// sampling. Returns `None` if the local APIC has no entry with this number. In x2APIC mode, the entry is the MSR
    /// [`X2APIC_EXTENDED_MSR`](LocalApic::X2APIC_EXTENDED_MSR) + `number`. In xAPIC mode, the entry is at
    /// [`XAPIC_EXTENDED_OFFSET`](LocalApic::XAPIC_EXTENDED_OFFSET) + 16·`number`.
    ///
    /// Bits 23:16 of the extended features (MSR 0x840, offset 0x400) are the number of entries. Where these registers
    /// are absent, a read faults in x2APIC mode, and returns an undefined value in xAPIC mode (AMD APM vol. 2,
    /// "Extended Interrupts"). So in xAPIC mode, read them only if bit 31 of the version (offset 0x30) is set. In
    /// x2APIC mode, do not ask for this bit: KVM leaves it clear, also where the registers exist. The method is called
    /// only on processors with instruction-based sampling.
    ///
    /// The default implementation, for a kernel that uses no extended entry, returns `None`.
    fn read_extended_entry(&self, number: u8) -> Option<u32> {
        let _ = number;
        None
    }

    /// Writes the extended LVT entry with this number. The method is called only with numbers for which
    /// [`read_extended_entry`](Self::read_extended_entry) returns a value.
    fn write_extended_entry(&self, number: u8, entry: u32) {
        let _ = (number, entry);
    }
}

impl<A: ApicRegisters + ?Sized> ApicRegisters for &A {
    fn write_performance_entry(&self, entry: LvtEntry) {
        (**self).write_performance_entry(entry);
    }
    fn read_performance_entry(&self) -> Option<u32> {
        (**self).read_performance_entry()
    }
    fn read_extended_entry(&self, number: u8) -> Option<u32> {
        (**self).read_extended_entry(number)
    }
    fn write_extended_entry(&self, number: u8, entry: u32) {
        (**self).write_extended_entry(number, entry);
    }
}

/// Delivery of the performance interrupt: as an NMI, or by a vector.
///
/// An NMI can interrupt code that runs with interrupts off, such as another handler. An interrupt by vector is delayed
/// while interrupts are off. The sample then shows the code that turned interrupts on, not the code that caused the
/// overflow. The vector's handler writes the local APIC's EOI register. An NMI needs a stack of its own: if other
/// handlers begin on the same stack of the interrupt stack table, an NMI that interrupts one of them overwrites the
/// frame of the interrupted handler.
/// [`service`](pmu_core::service()) treats NMIs and interrupts by vector in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Delivery(u32);

/// Error: the vector is below 32. Vectors below 32 belong to exceptions, and cannot be used for the performance
/// interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct InvalidVector(pub u8);

impl fmt::Display for InvalidVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vector {} belongs to an exception", self.0)
    }
}

impl core::error::Error for InvalidVector {}

impl Delivery {
    /// Delivery as an NMI: delivery mode 4.
    pub const NON_MASKABLE: Self = Self(0b100 << 8);

    /// Returns the delivery by the interrupt vector `vector`: delivery mode 0.
    ///
    /// # Errors
    /// The vector is below 32 (SDM vol. 3A, table "Protected-Mode Exceptions and Interrupts").
    ///
    /// ```
    /// use pmu::apic::{Delivery, InvalidVector};
    /// assert_eq!(Delivery::vector(0xE1).map(Delivery::entry), Ok(0xE1));
    /// assert_eq!(Delivery::NON_MASKABLE.entry(), 0x400);
    /// assert_eq!(Delivery::vector(14), Err(InvalidVector(14))); // the page fault's
    /// ```
    pub const fn vector(vector: u8) -> Result<Self, InvalidVector> {
        if vector < 32 { Err(InvalidVector(vector)) } else { Ok(Self(vector as u32)) }
    }

    /// Returns the delivery of an LVT entry; `None` if the entry is neither an NMI nor the vector of an interrupt, as
    /// after a reset.
    ///
    /// ```
    /// use pmu::apic::Delivery;
    /// assert_eq!(Delivery::of_entry(0x1_0400), Some(Delivery::NON_MASKABLE)); // masked
    /// assert_eq!(Delivery::of_entry(0xE1), Delivery::vector(0xE1).ok());
    /// assert_eq!(Delivery::of_entry(0x1_0000), None);
    /// ```
    pub const fn of_entry(entry: u32) -> Option<Self> {
        match entry >> 8 & 0b111 {
            0b100 => Some(Self::NON_MASKABLE),
            0 if entry as u8 >= 32 => Some(Self(entry & 0xFF)),
            _ => None,
        }
    }

    /// Returns the value of the unmasked LVT entry for this delivery. Bits 7:0 are the vector, and bits 10:8 are the
    /// delivery mode. Bit 16, the mask bit, is 0.
    pub const fn entry(self) -> u32 {
        self.0
    }
}

/// Value of the LVT entry for performance counters. A kernel on another architecture than x86 only needs to know
/// whether the interrupt [is masked](Self::is_masked).
///
/// ```
/// use pmu::apic::{Delivery, LvtEntry};
/// let entry = LvtEntry::new(Delivery::NON_MASKABLE, true);
/// assert_eq!((u32::from(entry), entry.is_masked()), (0x1_0400, true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LvtEntry(u32);

impl LvtEntry {
    /// Creates the value that masks or unmasks the interrupt, and delivers it so.
    pub const fn new(delivery: Delivery, is_masked: bool) -> Self {
        Self(delivery.entry() | if is_masked { MASKED } else { 0 })
    }

    /// Returns whether the interrupt is masked: bit 16.
    #[inline]
    pub const fn is_masked(self) -> bool {
        self.0 & MASKED != 0
    }
}

/// Returns the value of the 32-bit register: see [`ApicRegisters::write_performance_entry`].
impl From<LvtEntry> for u32 {
    #[inline]
    fn from(entry: LvtEntry) -> Self {
        entry.0
    }
}

/// Returns the value of the MSR in x2APIC mode.
impl From<LvtEntry> for u64 {
    #[inline]
    fn from(entry: LvtEntry) -> Self {
        entry.0.into()
    }
}

/// Access to a periodic timer on the processor that executes the call. The kernel implements this trait for the profile
/// source `ProfileTime`.
///
/// # For embedders
/// - The methods are called in task context.
///
/// ```
/// use core::cell::Cell;
/// use pmu::apic::ProfileTimer;
/// use pmu::core::error::PlatformError;
/// use pmu::core::interval::Interval;
///
/// /// The local APIC's timer, of this many ticks per 100 ns.
/// struct ApicTimer {
///     ticks: u32,
///     count: Cell<u32>, // stands for the timer's initial-count register
/// }
///
/// impl ProfileTimer for ApicTimer {
///     fn start(&self, interval: Interval) -> Result<(), PlatformError> {
///         let count = interval.get().checked_mul(self.ticks).ok_or(PlatformError::NoTimer)?;
///         self.count.set(count);
///         Ok(())
///     }
///     fn stop(&self) {
///         self.count.set(0);
///     }
/// }
/// # let timer = ApicTimer { ticks: 1 << 30, count: Cell::new(0) };
/// # let interval = pmu::core::interval::IntervalLimits::TIME.default_interval();
/// # assert_eq!(timer.start(interval), Err(PlatformError::NoTimer));
/// # timer.stop();
/// ```
pub trait ProfileTimer {
    /// Starts the timer's interrupts, or changes their interval.
    ///
    /// # Errors
    /// The timer cannot run at that interval.
    fn start(&self, interval: Interval) -> Result<(), PlatformError>;

    /// Stops the timer's interrupts.
    fn stop(&self);
}

impl<T: ProfileTimer + ?Sized> ProfileTimer for &T {
    fn start(&self, interval: Interval) -> Result<(), PlatformError> {
        (**self).start(interval)
    }
    fn stop(&self) {
        (**self).stop();
    }
}

/// [`ProfileTimer`] of a kernel that has no timer for profiles. With `NoTimer`, the profile source `ProfileTime` cannot
/// be started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NoTimer;

impl ProfileTimer for NoTimer {
    fn start(&self, _: Interval) -> Result<(), PlatformError> {
        Err(PlatformError::NoTimer)
    }
    fn stop(&self) {}
}

/// Mask bit of an LVT entry (SDM vol. 3A, "Local Vector Table").
const MASKED: u32 = 1 << 16;

/// Bits of an extended LVT entry that software sets: vector, delivery mode, and mask (AMD APM vol. 2, "Extended
/// Interrupts").
const SETTABLE: u32 = MASKED | 0x7FF;

/// The [`Platform`] of a processor that has a local APIC. The processor's [`Session`](pmu_core::profile::Session) and
/// the interrupt handler mask and unmask the performance interrupt through this platform.
///
/// ```
/// use core::cell::Cell;
/// use pmu::core::Platform;
/// use pmu::apic::{ApicRegisters, Delivery, LocalApic, LvtEntry, NoTimer};
/// # struct Apic(Cell<u32>);
/// # impl ApicRegisters for Apic {
/// #     fn write_performance_entry(&self, entry: LvtEntry) { self.0.set(entry.into()) }
/// # }
/// let apic = Apic(Cell::new(0x1_0000));
/// let platform = LocalApic::new(&apic, Delivery::NON_MASKABLE, NoTimer);
/// platform.unmask_performance_interrupt();
/// assert_eq!(apic.0.get(), 0x400);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LocalApic<A, T = NoTimer> {
    registers: A,
    delivery: Delivery,
    timer: T,
}

impl<A, T> LocalApic<A, T> {
    /// MSR of the LVT entry for performance counters in x2APIC mode (SDM vol. 3A, "x2APIC Register Address Space").
    pub const X2APIC_MSR: u32 = 0x834;

    /// Offset of the LVT entry for performance counters in the register page of xAPIC mode (SDM vol. 3A, "Local APIC
    /// Register Address Map").
    pub const XAPIC_OFFSET: usize = 0x340;

    /// MSR of the first extended LVT entry in x2APIC mode (AMD APM vol. 2, "x2APIC Register Address Space").
    pub const X2APIC_EXTENDED_MSR: u32 = 0x850;

    /// Offset of the first extended LVT entry in the register page of xAPIC mode (AMD APM vol. 2, "Extended
    /// Interrupts"). The distance between entries is 16 bytes.
    pub const XAPIC_EXTENDED_OFFSET: usize = 0x500;
}

impl<A: ApicRegisters, T: ProfileTimer> LocalApic<A, T> {
    /// Creates the platform of a processor. `registers` writes the local APIC, `delivery` selects an NMI or a vector,
    /// and `timer` is the timer of the source `ProfileTime`.
    ///
    /// A processor needs two `LocalApic` values: one for its session, and one for its interrupt handler. Both must have
    /// the same `delivery`, because each value writes the whole LVT entry when it unmasks the interrupt.
    pub const fn new(registers: A, delivery: Delivery, timer: T) -> Self {
        Self { registers, delivery, timer }
    }
}

impl<A: ApicRegisters, T: ProfileTimer> Platform for LocalApic<A, T> {
    #[inline]
    fn unmask_performance_interrupt(&self) {
        self.registers.write_performance_entry(LvtEntry::new(self.delivery, false));
    }

    fn mask_performance_interrupt(&self) {
        self.registers.write_performance_entry(LvtEntry::new(self.delivery, true));
    }

    /// Unmasks the extended LVT entry, and sets this platform's delivery in it. If the entry is already unmasked with
    /// this delivery, other hardware uses the entry, too, and this method does not write it.
    fn unmask_facility_interrupt(&self, entry: u8) -> Result<(), PlatformError> {
        let found = self.registers.read_extended_entry(entry);
        let found = found.ok_or(PlatformError::NoFacilityInterrupt)? & SETTABLE;
        // A masked entry has no owner, as after a reset. Another one that delivers otherwise may be firmware's.
        if found & MASKED != 0 {
            self.registers.write_extended_entry(entry, self.delivery.entry());
        } else if found != self.delivery.entry() {
            return Err(PlatformError::FacilityInterruptInUse(found));
        }
        Ok(())
    }

    fn start_profile_timer(&self, interval: Interval) -> Result<(), PlatformError> {
        self.timer.start(interval)
    }

    fn stop_profile_timer(&self) {
        self.timer.stop();
    }
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::vec::Vec;

    use pmu_core::interval::IntervalLimits;

    use super::*;

    /// SDM vol. 3A, figure "Local Vector Table (LVT)".
    #[test]
    fn an_entry_says_how_the_interrupt_comes_and_is_not_masked() {
        assert_eq!(Delivery::NON_MASKABLE.entry(), 0x400);
        assert_eq!(Delivery::vector(0xE1).map(Delivery::entry), Ok(0xE1));
    }

    /// A request to the hardware.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Call {
        Entry(u32),
        Start(u32),
        Stop,
    }

    #[derive(Default)]
    struct Hardware(RefCell<Vec<Call>>);

    impl ApicRegisters for Hardware {
        fn write_performance_entry(&self, entry: LvtEntry) {
            self.0.borrow_mut().push(Call::Entry(entry.into()));
        }
    }

    impl ProfileTimer for Hardware {
        fn start(&self, interval: Interval) -> Result<(), PlatformError> {
            self.0.borrow_mut().push(Call::Start(interval.get()));
            if interval.get() == 10_000 { Ok(()) } else { Err(PlatformError::NoTimer) }
        }
        fn stop(&self) {
            self.0.borrow_mut().push(Call::Stop);
        }
    }

    #[test]
    fn a_platform_writes_its_delivery_and_passes_the_timer_s_calls_and_errors_on() {
        let hardware = Hardware::default();
        let platform = LocalApic::new(&hardware, Delivery::NON_MASKABLE, &hardware);
        let interval = |units| IntervalLimits::TIME.clamp(units);
        platform.unmask_performance_interrupt();
        platform.mask_performance_interrupt();
        assert_eq!(platform.start_profile_timer(interval(10_000)), Ok(()));
        assert_eq!(platform.start_profile_timer(interval(20_000)), Err(PlatformError::NoTimer));
        platform.stop_profile_timer();
        let entries = [0x400, 0x1_0400].map(Call::Entry);
        let timer = [Call::Start(10_000), Call::Start(20_000), Call::Stop];
        assert_eq!(*hardware.0.borrow(), [&entries[..], &timer].concat());
        let platform = LocalApic::new(&hardware, Delivery::NON_MASKABLE, NoTimer);
        assert_eq!(platform.start_profile_timer(interval(10_000)), Err(PlatformError::NoTimer));
        platform.stop_profile_timer();
        assert_eq!(hardware.0.borrow().len(), 5);
    }

    /// Extended entries: the first delivers NMIs, the second a vector with its delivery status, the third is masked.
    struct Extended(RefCell<[u32; 3]>);

    impl ApicRegisters for Extended {
        fn write_performance_entry(&self, _: LvtEntry) {}
        fn read_extended_entry(&self, number: u8) -> Option<u32> {
            self.0.borrow().get(usize::from(number)).copied()
        }
        fn write_extended_entry(&self, number: u8, entry: u32) {
            self.0.borrow_mut()[usize::from(number)] = entry;
        }
    }

    #[test]
    fn an_extended_entry_is_shared_by_the_same_delivery_only() {
        let registers = Extended(RefCell::new([0x1400, 0x10E1, 0x1_00E2]));
        let platform = LocalApic::new(&registers, Delivery::NON_MASKABLE, NoTimer);
        assert_eq!(platform.unmask_facility_interrupt(0), Ok(()));
        let in_use = Err(PlatformError::FacilityInterruptInUse(0xE1));
        assert_eq!(platform.unmask_facility_interrupt(1), in_use);
        assert_eq!(*registers.0.borrow(), [0x1400, 0x10E1, 0x1_00E2]);
        assert_eq!(platform.unmask_facility_interrupt(2), Ok(()));
        assert_eq!(*registers.0.borrow(), [0x1400, 0x10E1, 0x400]);
        let none = Err(PlatformError::NoFacilityInterrupt);
        assert_eq!(platform.unmask_facility_interrupt(3), none);
        let without = LocalApic::new(Hardware::default(), Delivery::NON_MASKABLE, NoTimer);
        assert_eq!(without.unmask_facility_interrupt(0), none);
    }

    #[test]
    fn a_vector_of_an_exception_is_refused() {
        for vector in 0..=255 {
            let refused = Delivery::vector(vector).err();
            assert_eq!(refused, (vector < 32).then_some(InvalidVector(vector)));
        }
    }
}
