//! The flags of `perf_event_attr` that do not select what is counted.

use core::ops::BitOr;

/// Flags of `perf_event_attr`, except `precise_ip` and the `exclude_…` flags that are fields of
/// [`PerfAttributes`](crate::perf::PerfAttributes). [`PerfEventAttr::event`](crate::perf::PerfEventAttr::event) acts on
/// [`PINNED`](Self::PINNED), [`EXCLUSIVE`](Self::EXCLUSIVE) and [`FREQ`](Self::FREQ). The kernel itself must act on all
/// other flags.
///
/// Source: `include/uapi/linux/perf_event.h`, `struct perf_event_attr`. Each flag is a bit of the 64-bit word at offset
/// 40 of the structure.
///
/// ```
/// use pmu::perf::AttrFlags;
/// let flags = AttrFlags::PINNED | AttrFlags::DISABLED;
/// assert!(flags.contains(AttrFlags::PINNED) && !flags.contains(AttrFlags::FREQ));
/// assert_eq!(flags.bits(), 0b101);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AttrFlags(u64);

impl AttrFlags {
    /// No flag.
    pub const NONE: Self = Self(0);

    /// `disabled`: the event does not count until it is enabled.
    pub const DISABLED: Self = Self(1 << 0);
    /// `inherit`: each new child of the counted thread, whether a thread or a process, inherits the event.
    pub const INHERIT: Self = Self(1 << 1);
    /// `pinned`: the event is always on a counter, or is in an error state.
    pub const PINNED: Self = Self(1 << 2);
    /// `exclusive`: while the event's group is on the counters, no other group is on the counters.
    pub const EXCLUSIVE: Self = Self(1 << 3);
    /// `exclude_hv`: does not count in the hypervisor. As in Linux, the flag has no effect on x86.
    pub const EXCLUDE_HV: Self = Self(1 << 6);
    /// `exclude_idle`: does not count while the processor is idle. As in Linux, the flag affects only software events,
    /// not hardware counters.
    pub const EXCLUDE_IDLE: Self = Self(1 << 7);
    /// `mmap`: asks for records of executable mappings.
    pub const MMAP: Self = Self(1 << 8);
    /// `comm`: asks for a record whenever the name of a thread changes.
    pub const COMM: Self = Self(1 << 9);
    /// `freq`: the period field holds `sample_freq`, a [frequency](crate::perf::Frequency) in interrupts per second.
    pub const FREQ: Self = Self(1 << 10);
    /// `inherit_stat`: each thread that inherits the event has its own count.
    pub const INHERIT_STAT: Self = Self(1 << 11);
    /// `enable_on_exec`: the event starts at the next exec.
    pub const ENABLE_ON_EXEC: Self = Self(1 << 12);
    /// `task`: asks for records of forks and exits.
    pub const TASK: Self = Self(1 << 13);
    /// `watermark`: [`wakeup`](crate::perf::PerfEventAttr::wakeup) is a number of bytes, not of samples.
    pub const WATERMARK: Self = Self(1 << 14);
    /// `mmap_data`: asks for records of mappings that are not executable.
    pub const MMAP_DATA: Self = Self(1 << 17);
    /// `sample_id_all`: each record has the identity of the event to which the record belongs.
    pub const SAMPLE_ID_ALL: Self = Self(1 << 18);
    /// `exclude_callchain_kernel`: call chains omit the kernel's functions.
    pub const EXCLUDE_CALLCHAIN_KERNEL: Self = Self(1 << 21);
    /// `exclude_callchain_user`: call chains omit the functions of user mode.
    pub const EXCLUDE_CALLCHAIN_USER: Self = Self(1 << 22);
    /// `mmap2`: records of mappings have the identity of the mapped file.
    pub const MMAP2: Self = Self(1 << 23);
    /// `comm_exec`: records of threads' names tell whether an exec changed the name.
    pub const COMM_EXEC: Self = Self(1 << 24);
    /// `use_clockid`: the clock [`clockid`](crate::perf::PerfEventAttr::clockid) provides the times in records.
    pub const USE_CLOCKID: Self = Self(1 << 25);
    /// `context_switch`: asks for records of context switches.
    pub const CONTEXT_SWITCH: Self = Self(1 << 26);
    /// `write_backward`: the ring buffer is written from its end.
    pub const WRITE_BACKWARD: Self = Self(1 << 27);
    /// `namespaces`: asks for records of namespaces.
    pub const NAMESPACES: Self = Self(1 << 28);
    /// `ksymbol`: asks for a record whenever a kernel symbol is registered or unregistered.
    pub const KSYMBOL: Self = Self(1 << 29);
    /// `bpf_event`: asks for records of BPF programs.
    pub const BPF_EVENT: Self = Self(1 << 30);
    /// `aux_output`: the event's samples go to the AUX trace (Intel PT), not to sample records.
    pub const AUX_OUTPUT: Self = Self(1 << 31);
    /// `cgroup`: asks for records of control groups.
    pub const CGROUP: Self = Self(1 << 32);
    /// `text_poke`: asks for a record whenever the kernel changes its own code.
    pub const TEXT_POKE: Self = Self(1 << 33);
    /// `build_id`: records of mappings have the build ID of the mapped file.
    pub const BUILD_ID: Self = Self(1 << 34);
    /// `inherit_thread`: new threads of the same process inherit the event, but new processes do not.
    pub const INHERIT_THREAD: Self = Self(1 << 35);
    /// `remove_on_exec`: an exec removes the event.
    pub const REMOVE_ON_EXEC: Self = Self(1 << 36);
    /// `sigtrap`: an overflow sends SIGTRAP at once.
    pub const SIGTRAP: Self = Self(1 << 37);
    /// `defer_callchain`: the user-mode part of a sample's call chain follows in a separate record.
    pub const DEFER_CALLCHAIN: Self = Self(1 << 38);
    /// `defer_output`: asks for records of deferred call chains.
    pub const DEFER_OUTPUT: Self = Self(1 << 39);

    /// All flags of this type. The value has bits 0 to 39 of Linux' flags set, except the two bits of `precise_ip` and
    /// those `exclude_…` flags that are fields of [`PerfAttributes`](crate::perf::PerfAttributes).
    pub const ALL: Self = Self(((1 << 40) - 1) & !(0b11 << 4 | 0b11 << 15 | 0b11 << 19));

    /// Returns the flags that are set in `bits`, the word at offset 40 of `perf_event_attr`. Other bits are ignored.
    pub const fn from_bits_truncate(bits: u64) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Returns the flags as bits of the word at offset 40 of `perf_event_attr`.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the flags of this value that are not in `flags`.
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Returns whether this value has all flags in `flags`.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for AttrFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
