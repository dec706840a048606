//! The interrupted context, as the embedder's trap frame and kernel know it.

use core::any::Any;
use core::fmt;
use core::num::NonZeroU64;
use core::ops::ControlFlow;

/// Identity of a process: any number that no two live processes share, such as the address of the process object.
///
/// ```
/// use pmu_core::frame::ProcessId;
/// assert_eq!(ProcessId::new(0xFFFF_8000_0000_1000).map(ProcessId::get), Some(0xFFFF_8000_0000_1000));
/// assert_eq!(ProcessId::new(0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ProcessId(NonZeroU64);

impl ProcessId {
    /// Creates an identity from the number `value`. Returns `None` for 0, which stands for no process.
    pub const fn new(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// Returns the number that identifies the process.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// A logical processor, numbered as in Windows: a group, and a number within the group.
///
/// A kernel without groups numbers its processors by [`from_index`](Self::from_index), which puts processors 0–63 into
/// group 0, processors 64–127 into group 1 and so on.
///
/// ```
/// use pmu_core::frame::ProcessorNumber;
/// let processor = ProcessorNumber::from_index(70);
/// assert_eq!((processor.group, processor.number), (1, 6));
/// assert_eq!(processor.index(), 70);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ProcessorNumber {
    /// The group, from 0.
    pub group: u16,
    /// The number within the group, 0–63.
    pub number: u8,
}

impl ProcessorNumber {
    /// Returns the processor with this system-wide index, if each group has 64 processors.
    ///
    /// ```
    /// # use pmu_core::frame::ProcessorNumber;
    /// let processor = ProcessorNumber::from_index(70);
    /// assert_eq!((processor.group, processor.number, processor.index()), (1, 6, 70));
    /// ```
    pub const fn from_index(index: u16) -> Self {
        Self { group: index / 64, number: (index % 64) as u8 }
    }

    /// Returns the system-wide index of the processor, if each group has 64 processors.
    pub const fn index(self) -> usize {
        self.group as usize * 64 + self.number as usize
    }
}

impl fmt::Display for ProcessorNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.group, self.number)
    }
}

/// The interrupted context: registers from the embedder's trap frame, and the interrupted processor, process and
/// thread.
///
/// Every method is called in interrupt or NMI context. Implement each method without locks and without waiting: read
/// only the frame or per-processor data.
///
/// # Examples
///
/// ```
/// use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
///
/// /// The values that the processor pushes, and the kernel's data of the processor.
/// struct Frame {
///     rip: u64,
///     cs: u16,
///     rflags: u64,
///     processor: u16,
///     cr3: u64,
/// }
///
/// impl InterruptFrame for Frame {
///     fn pc(&self) -> u64 {
///         self.rip
///     }
///     fn cs(&self) -> u16 {
///         self.cs
///     }
///     fn flags(&self) -> u64 {
///         self.rflags
///     }
///     fn processor(&self) -> ProcessorNumber {
///         ProcessorNumber::from_index(self.processor)
///     }
///     fn process(&self) -> Option<ProcessId> {
///         ProcessId::new(self.cr3)
///     }
/// }
/// # let frame = Frame { rip: 1, cs: 8, rflags: 2, processor: 0, cr3: 0 };
/// # assert_eq!((frame.pc(), frame.process()), (1, None));
/// ```
pub trait InterruptFrame {
    /// Returns the instruction pointer of the interrupted code: a linear address, or an offset into CS in virtual-8086
    /// mode.
    fn pc(&self) -> u64;

    /// Returns the code segment selector of the interrupted code.
    fn cs(&self) -> u16;

    /// Returns RFLAGS of the interrupted code. Bit 17, VM, is set in virtual-8086 mode.
    fn flags(&self) -> u64;

    /// Returns whether the interrupted code is user mode's. The default implementation is x86's: a privilege level
    /// above 0, or virtual-8086 mode.
    fn in_user(&self) -> bool {
        self.cs() & 0b11 != 0 || self.flags() & VIRTUAL_8086 != 0
    }

    /// Returns the interrupted processor, which also executes the handler.
    fn processor(&self) -> ProcessorNumber;

    /// Returns the process whose address space is loaded, or `None` if no process's address space is loaded.
    fn process(&self) -> Option<ProcessId>;

    /// Returns the identifier of the interrupted thread, or 0 if the thread is unknown. Trace records contain the
    /// identifier.
    fn thread(&self) -> u32 {
        0
    }

    /// Returns the time stamp for trace records, in the unit that the trace declares.
    fn timestamp(&self) -> u64 {
        0
    }

    /// Returns the processor's PEBS index, which is the address of the next PEBS record, if a Debug Store is in use.
    /// The embedder's own callbacks can read the index. Windows' trace record of a sampled profile has no field for the
    /// index.
    fn pebs_index(&self) -> Option<u64> {
        None
    }

    /// Returns the embedder's own frame as [`Any`]. A callback can downcast this value, and read further registers of
    /// the frame. An implementation returns `Some(self)` if the frame's type is `'static`.
    fn embedder(&self) -> Option<&dyn Any> {
        None
    }

    /// Visits the call chain: the return addresses, innermost first, without [`pc`](Self::pc).
    ///
    /// The implementation stops when `visit` returns [`Break`](ControlFlow::Break), or at an address that cannot be
    /// read without a fault. The driver calls this method in interrupt or NMI context, if a callback asks for the
    /// chain.
    fn call_chain(&self, _visit: &mut dyn FnMut(u64) -> ControlFlow<()>) {}
}

/// Interrupted context as plain data: the values that the processor pushed, and the interrupted processor and process.
///
/// ```
/// use pmu_core::frame::{InterruptFrame, PlainFrame};
/// # struct TrapFrame { rip: u64, cs: u64, rflags: u64 }
/// # fn processor() -> usize { 0 }
/// /// Converts the kernel's trap frame.
/// fn plain(frame: &TrapFrame) -> PlainFrame {
///     PlainFrame::new(frame.rip, frame.cs as u16, frame.rflags, processor())
/// }
/// # assert_eq!(plain(&TrapFrame { rip: 1, cs: 8, rflags: 2 }).pc(), 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PlainFrame {
    /// Address that the interrupt returns to.
    pub pc: u64,
    /// Code segment selector of the interrupted code.
    pub cs: u16,
    /// RFLAGS of the interrupted code.
    pub flags: u64,
    /// System-wide index of the interrupted processor.
    pub processor: usize,
    /// Process whose address space is loaded; `None` if there is no such process.
    pub process: Option<ProcessId>,
}

impl PlainFrame {
    /// Creates the frame of an interrupted context with no [process](Self::process).
    pub const fn new(pc: u64, cs: u16, flags: u64, processor: usize) -> Self {
        Self { pc, cs, flags, processor, process: None }
    }
}

impl InterruptFrame for PlainFrame {
    fn pc(&self) -> u64 {
        self.pc
    }
    fn cs(&self) -> u16 {
        self.cs
    }
    fn flags(&self) -> u64 {
        self.flags
    }
    fn processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(self.processor as u16)
    }
    fn process(&self) -> Option<ProcessId> {
        self.process
    }
}

/// Interrupted context whose instruction address is replaced by the address of a sampled instruction. A profile that
/// gets this frame counts a hit at the sampled instruction, not at the interrupted instruction. The interrupt comes
/// some instructions after the sampled instruction.
///
/// The code segment, the flags, the process and the call chain belong to the interrupted code. If the processor entered
/// or left the kernel between the sample and the interrupt, these values do not match the sampled address. If the frame
/// has a sampled address, bit 17 (VM) of the flags is clear, because a sampled address is linear even in virtual-8086
/// mode.
///
/// ```
/// use pmu_core::frame::{InterruptFrame, PlainFrame, SampledFrame};
/// use pmu_core::precise::PreciseSample;
/// let interrupted = PlainFrame { pc: 0x40_1010, cs: 0x33, flags: 2, ..PlainFrame::default() };
/// let sample = PreciseSample { address: Some(0x40_1007), ..PreciseSample::default() };
/// let frame = SampledFrame::new(&interrupted, sample.address);
/// assert_eq!((frame.pc(), frame.cs()), (0x40_1007, 0x33));
/// // A sample whose address is invalid.
/// assert_eq!(SampledFrame::new(&interrupted, None).pc(), 0x40_1010);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SampledFrame<'f, F> {
    interrupted: &'f F,
    address: Option<u64>,
}

/// VM of RFLAGS: virtual-8086 mode.
const VIRTUAL_8086: u64 = 1 << 17;

impl<'f, F: InterruptFrame> SampledFrame<'f, F> {
    /// Creates a frame from the context `interrupted` and the linear address of the sampled instruction. If `address`
    /// is `None`, the frame has the interrupted address.
    pub const fn new(interrupted: &'f F, address: Option<u64>) -> Self {
        Self { interrupted, address }
    }
}

impl<F: InterruptFrame> InterruptFrame for SampledFrame<'_, F> {
    fn pc(&self) -> u64 {
        self.address.unwrap_or_else(|| self.interrupted.pc())
    }
    fn cs(&self) -> u16 {
        self.interrupted.cs()
    }
    fn flags(&self) -> u64 {
        match self.address {
            Some(_) => self.interrupted.flags() & !VIRTUAL_8086,
            None => self.interrupted.flags(),
        }
    }
    fn in_user(&self) -> bool {
        self.interrupted.in_user()
    }
    fn processor(&self) -> ProcessorNumber {
        self.interrupted.processor()
    }
    fn process(&self) -> Option<ProcessId> {
        self.interrupted.process()
    }
    fn thread(&self) -> u32 {
        self.interrupted.thread()
    }
    fn timestamp(&self) -> u64 {
        self.interrupted.timestamp()
    }
    fn pebs_index(&self) -> Option<u64> {
        self.interrupted.pebs_index()
    }
    fn embedder(&self) -> Option<&dyn Any> {
        self.interrupted.embedder()
    }
    fn call_chain(&self, visit: &mut dyn FnMut(u64) -> ControlFlow<()>) {
        self.interrupted.call_chain(visit);
    }
}

impl<F: InterruptFrame + ?Sized> InterruptFrame for &F {
    fn pc(&self) -> u64 {
        (**self).pc()
    }
    fn cs(&self) -> u16 {
        (**self).cs()
    }
    fn flags(&self) -> u64 {
        (**self).flags()
    }
    fn in_user(&self) -> bool {
        (**self).in_user()
    }
    fn processor(&self) -> ProcessorNumber {
        (**self).processor()
    }
    fn process(&self) -> Option<ProcessId> {
        (**self).process()
    }
    fn thread(&self) -> u32 {
        (**self).thread()
    }
    fn timestamp(&self) -> u64 {
        (**self).timestamp()
    }
    fn pebs_index(&self) -> Option<u64> {
        (**self).pebs_index()
    }
    fn embedder(&self) -> Option<&dyn Any> {
        (**self).embedder()
    }
    fn call_chain(&self, visit: &mut dyn FnMut(u64) -> ControlFlow<()>) {
        (**self).call_chain(visit);
    }
}
