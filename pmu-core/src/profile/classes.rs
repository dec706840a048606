//! Numbers of Windows' profiling interfaces: information classes, access rights and bug checks.
//!
//! Sources: five documents of Geoff Chappell (geoffchappell.com), and the pages to which they refer; the header files
//! ntexapi.h and ntkeapi.h of phnt; the header files evntrace.h and haltypes.h.

// To add a number: a row below, and one in `tests/data/windows_numbers.csv`. A status: a row in `interface.rs`, one in
// `tests/data/nt_status.csv`, and its name in the list of `tests/tests/kprofile/status.rs`.

/// One constant of Windows: its number, and its names in Windows and in this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NamedNumber {
    /// Name of the enumeration to which the number belongs, or `BUG_CHECK`.
    pub of: &'static str,
    /// Name of the constant in this module.
    pub constant: &'static str,
    /// Name in Windows.
    pub name: &'static str,
    /// Value of the number.
    pub value: u32,
}

macro_rules! numbers {
    ($($of:ident { $($constant:ident = $value:literal $name:literal $meaning:literal;)* })*) => {
        $($(
            #[doc = concat!("`", $name, "`. ", $meaning)]
            pub const $constant: u32 = $value;
        )*)*

        /// All constants of this module, with their names.
        pub const ALL: &[NamedNumber] = &[$($(NamedNumber {
            of: stringify!($of),
            constant: stringify!($constant),
            name: $name,
            value: $constant,
        }),*),*];
    };
}

#[rustfmt::skip] // One row per line.
numbers! {
    SYSTEM_INFORMATION_CLASS {
        SYSTEM_PERFORMANCE_TRACE_INFORMATION = 0x1F "SystemPerformanceTraceInformation" "Class of `NtQuerySystemInformation` and `NtSetSystemInformation`. The buffer begins with an `EVENT_TRACE_INFORMATION_CLASS`.";
        SYSTEM_PROCESSOR_PROFILE_CONTROL_AREA = 0x81 "SystemProcessorProfileControlArea" "Class of `ZwSetSystemInformation`, from version 6.2: a processor's control area. Set only.";
    }
    EVENT_TRACE_INFORMATION_CLASS {
        EVENT_TRACE_GROUP_MASK = 0x01 "EventTraceGroupMaskInformation" "The group mask of a trace session: the kernel trace events that the session logs.";
        EVENT_TRACE_TIME_PROFILE = 0x03 "EventTraceTimeProfileInformation" "The interval of `ProfileTime`.";
        EVENT_TRACE_PEBS_TRACING = 0x0B "EventTracePebsTracingInformation" "The kernel trace events (hooks) whose trace records include the PEBS index. Set only.";
        EVENT_TRACE_PROFILE_CONFIG = 0x0C "EventTraceProfileConfigInformation" "The profile sources whose counters raise PMC interrupts. Set only.";
        EVENT_TRACE_PROFILE_SOURCE_LIST = 0x0D "EventTraceProfileSourceListInformation" "The sources, with their names. Query only.";
        EVENT_TRACE_PROFILE_EVENT_LIST = 0x0E "EventTraceProfileEventListInformation" "The kernel trace events (hooks) whose trace records include PMC values. Set only.";
        EVENT_TRACE_PROFILE_COUNTER_LIST = 0x0F "EventTraceProfileCounterListInformation" "The profile sources whose counts are the PMC values in trace records. Set only.";
        EVENT_TRACE_LAST_BRANCH_CONFIGURATION = 0x13 "EventTraceLastBranchConfigurationInformation" "The kinds of branches to record, from version 1709.";
        EVENT_TRACE_LAST_BRANCH_EVENT_LIST = 0x14 "EventTraceLastBranchEventListInformation" "The kernel trace events (hooks) whose trace records include branches, from version 1709.";
        EVENT_TRACE_PROFILE_SOURCE_ADD = 0x15 "EventTraceProfileSourceAddInformation" "Adds a source at run time, from version 1803.";
        EVENT_TRACE_PROFILE_SOURCE_REMOVE = 0x16 "EventTraceProfileSourceRemoveInformation" "Removes a source that was added, from version 1803.";
        EVENT_TRACE_PROCESSOR_TRACE_CONFIGURATION = 0x17 "EventTraceProcessorTraceConfigurationInformation" "The configuration of Intel Processor Trace, from version 1803.";
        EVENT_TRACE_PROCESSOR_TRACE_EVENT_LIST = 0x18 "EventTraceProcessorTraceEventListInformation" "The kernel trace events (hooks) whose trace records include data of Intel Processor Trace, from version 1803.";
    }
    TRACE_QUERY_INFO_CLASS {
        TRACE_SYSTEM_TRACE_ENABLE_FLAGS = 4 "TraceSystemTraceEnableFlagsInfo" "The group mask of a trace session: the kernel trace events that the session logs.";
        TRACE_SAMPLED_PROFILE_INTERVAL = 5 "TraceSampledProfileIntervalInfo" "The interval of a source.";
        TRACE_PROFILE_SOURCE_CONFIG = 6 "TraceProfileSourceConfigInfo" "The profile sources whose counters raise PMC interrupts.";
        TRACE_PROFILE_SOURCE_LIST = 7 "TraceProfileSourceListInfo" "The sources, with their names.";
        TRACE_PMC_EVENT_LIST = 8 "TracePmcEventListInfo" "The events whose trace records include PMC values.";
        TRACE_PMC_COUNTER_LIST = 9 "TracePmcCounterListInfo" "The profile sources whose counts are the PMC values in trace records.";
        TRACE_LBR_CONFIGURATION = 20 "TraceLbrConfigurationInfo" "The kinds of branches to record.";
        TRACE_LBR_EVENT_LIST = 21 "TraceLbrEventListInfo" "The kernel trace events (hooks) whose trace records include branches.";
        TRACE_MAX_PMC_COUNTER = 22 "TraceMaxPmcCounterQuery" "The maximum number of PMC values in a trace record.";
        TRACE_PMC_COUNTER_OWNERS = 25 "TracePmcCounterOwners" "The owners of the counters.";
        TRACE_PMC_SESSION = 27 "TracePmcSessionInformation" "The trace sessions. Each session is described by its sources and its kernel trace events (hooks).";
    }
    HAL_QUERY_INFORMATION_CLASS {
        HAL_QUERY_PROFILE_SOURCE = 1 "HalProfileSourceInformation" "The availability and the interval of a source.";
        HAL_QUERY_PROFILE_SOURCE_LIST = 20 "HalQueryProfileSourceList" "The sources, with their names.";
        HAL_QUERY_PROFILE_NUMBER_OF_COUNTERS = 0x2C "HalQueryProfileNumberOfCounters" "The number of counters, from version 1903.";
    }
    HAL_SET_INFORMATION_CLASS {
        HAL_SET_PROFILE_SOURCE_INTERVAL = 0 "HalProfileSourceInterval" "The interval of a source.";
        HAL_SET_PROFILE_SOURCE_INTERRUPT_HANDLER = 1 "HalProfileSourceInterruptHandler" "The handler of the counters' interrupt.";
        HAL_SET_PROFILE_SOURCE_TIMER_HANDLER = 10 "HalProfileSourceTimerHandler" "The handler of the profile timer's interrupt.";
        HAL_SET_PROFILE_DPGO_SOURCE_INTERRUPT_HANDLER = 12 "HalProfileDpgoSourceInterruptHandler" "The interrupt handler that profile-guided optimization installs.";
    }
    BUG_CHECK {
        BUG_CHECK_IRQL_NOT_LESS_OR_EQUAL = 0x0A "IRQL_NOT_LESS_OR_EQUAL" "Raised if a sample lies at the inclusive end of a profile's range, and the buffer ends at a page boundary (versions 6.2 to 1803).";
        BUG_CHECK_HAL_MEMORY_ALLOCATION = 0xAC "HAL_MEMORY_ALLOCATION" "Raised if the HAL cannot allocate the memory for AMD's counters.";
    }
    ACCESS_MASK {
        PROFILE_CONTROL = 0x0000_0001 "PROFILE_CONTROL" "The right to start and stop a profile. The handle of a new profile has this right.";
        PROFILE_ALL_ACCESS = 0x000F_0001 "PROFILE_ALL_ACCESS" "All rights to a profile.";
    }
}
