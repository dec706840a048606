//! The classes and codes by which Windows' calls select what the documents describe, named as in Windows' `ntexapi.h`
//! (`EVENT_TRACE`), `evntrace.h` (`TRACE`) and `evntcons.h` (`EVENT_HEADER`).

/// `SystemPerformanceTraceInformation`, of `NtQuerySystemInformation` and `NtSetSystemInformation`: its buffer begins
/// with one of the classes below that begin with `EVENT_TRACE`.
pub const SYSTEM_PERFORMANCE_TRACE_INFORMATION: u32 = 0x1F;

/// `SystemProcessorProfileControlArea`, of `ZwSetSystemInformation`.
pub const SYSTEM_PROCESSOR_PROFILE_CONTROL_AREA: u32 = 0x81;

/// `EventTraceKernelVersionInformation`.
pub const EVENT_TRACE_KERNEL_VERSION: u32 = 0x00;

/// `EventTraceGroupMaskInformation`: a logger's group mask.
pub const EVENT_TRACE_GROUP_MASK: u32 = 0x01;

/// `EventTraceTimeProfileInformation`: the interval of `ProfileTime`.
pub const EVENT_TRACE_TIME_PROFILE: u32 = 0x03;

/// `EventTracePebsTracingInformation`: the hooks whose records have the PEBS index. Set only.
pub const EVENT_TRACE_PEBS_TRACING: u32 = 0x0B;

/// `EventTraceProfileConfigInformation`: the sources of PMC interrupts. Set only.
pub const EVENT_TRACE_PROFILE_CONFIG: u32 = 0x0C;

/// `EventTraceProfileSourceListInformation`: see [`compat::source_list`](crate::compat::source_list). Query only.
pub const EVENT_TRACE_PROFILE_SOURCE_LIST: u32 = crate::compat::source_list::SOURCE_LIST_CLASS;

/// `EventTraceProfileEventListInformation`: the hooks whose records have PMC values. Set only.
pub const EVENT_TRACE_PROFILE_EVENT_LIST: u32 = 0x0E;

/// `EventTraceProfileCounterListInformation`: the sources of PMC values. Set only.
pub const EVENT_TRACE_PROFILE_COUNTER_LIST: u32 = 0x0F;

/// `EventTraceLastBranchConfigurationInformation`, from version 1709.
pub const EVENT_TRACE_LAST_BRANCH_CONFIGURATION: u32 = 0x13;

/// `EventTraceLastBranchEventListInformation`, from version 1709.
pub const EVENT_TRACE_LAST_BRANCH_EVENT_LIST: u32 = 0x14;

/// `EventTraceProfileSourceAddInformation`, from version 1803.
pub const EVENT_TRACE_PROFILE_SOURCE_ADD: u32 = 0x15;

/// `EventTraceProfileSourceRemoveInformation`, from version 1803.
pub const EVENT_TRACE_PROFILE_SOURCE_REMOVE: u32 = 0x16;

/// `EventTraceProcessorTraceConfigurationInformation`, from version 1803.
pub const EVENT_TRACE_PROCESSOR_TRACE_CONFIGURATION: u32 = 0x17;

/// `EventTraceProcessorTraceEventListInformation`, from version 1803.
pub const EVENT_TRACE_PROCESSOR_TRACE_EVENT_LIST: u32 = 0x18;

/// `EVENT_HEADER_EXT_TYPE_PEBS_INDEX`: how consumers of traces are told of a PEBS index.
pub const EVENT_HEADER_EXT_TYPE_PEBS_INDEX: u16 = 7;

/// `EVENT_HEADER_EXT_TYPE_PMC_COUNTERS`: how they are told of PMC values.
pub const EVENT_HEADER_EXT_TYPE_PMC_COUNTERS: u16 = 8;

/// `TraceSystemTraceEnableFlagsInfo`, of `TraceSetInformation`: a group mask.
pub const TRACE_SYSTEM_TRACE_ENABLE_FLAGS: u32 = 4;

/// `TraceSampledProfileIntervalInfo`: the interval of a source.
pub const TRACE_SAMPLED_PROFILE_INTERVAL: u32 = 5;

/// `TraceProfileSourceConfigInfo`: the sources of PMC interrupts.
pub const TRACE_PROFILE_SOURCE_CONFIG: u32 = 6;

/// `TraceProfileSourceListInfo`: the sources.
pub const TRACE_PROFILE_SOURCE_LIST: u32 = 7;

/// `TracePmcEventListInfo`: the events whose records have PMC values.
pub const TRACE_PMC_EVENT_LIST: u32 = 8;

/// `TracePmcCounterListInfo`: the sources of PMC values.
pub const TRACE_PMC_COUNTER_LIST: u32 = 9;

/// `TraceLbrConfigurationInfo`.
pub const TRACE_LBR_CONFIGURATION: u32 = 20;

/// `TraceLbrEventListInfo`.
pub const TRACE_LBR_EVENT_LIST: u32 = 21;

/// `TraceMaxPmcCounterQuery`.
pub const TRACE_MAX_PMC_COUNTER: u32 = 22;

/// `TracePmcCounterOwners`.
pub const TRACE_PMC_COUNTER_OWNERS: u32 = 25;

/// `TracePmcSessionInformation`.
pub const TRACE_PMC_SESSION: u32 = 27;

/// `HAL_MEMORY_ALLOCATION`: the bug check of Windows' HAL where AMD's counters find no memory.
pub const BUG_CHECK_HAL_MEMORY_ALLOCATION: u32 = 0xAC;
