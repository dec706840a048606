//! Texts of errors: they name the fault and its subject.

use core::error::Error;

use pmu::apic::InvalidVector;
use pmu::perf::PerfError;
use pmu::processors::Busy;
use pmu_core::CounterSet;
use pmu_core::access::{AccessErrorKind, AccessFault, AccessOperation};
use pmu_core::error::{CounterError, EventsError, NoInterface, PlatformError, ServiceError};
use pmu_core::frame::ProcessorNumber;
use pmu_core::interval::{IntervalError, IntervalUnit};
use pmu_core::profile::{InterfaceError, KProfileSource, NotASource};
use pmu_core::x86::dump::DumpError;
use pmu_events::metric::MetricError;
use pmu_events::{CoreType, SKYLAKE};
use pmu_intel::debug_store::ControlAreaError;
use pmu_kprofile::compat::LayoutError;
use pmu_kprofile::compat::walk::{Reading, WalkError};
use pmu_kprofile::trace::TraceError;
use pmu_kprofile::{CreateError, PointerWidth, ProfileError, Rules, WindowsVersion};
use pmu_virt::configuration::{ConfigurationError, HostError, IntelFeature};
use pmu_virt::mediated::MediationError;
use pmu_virt::policy::FilterError;
use pmu_virt::{BytesError, EventKey, FedEventsError, StateError};

const SOURCE: KProfileSource = KProfileSource::TOTAL_CYCLES;
const FAULT: AccessFault = AccessFault {
    operation: AccessOperation::Write,
    register: 0x186,
    kind: AccessErrorKind::Fault,
};
const PROCESSOR: ProcessorNumber = ProcessorNumber { group: 2, number: 17 };

/// Each has a text of its own, a line without a capital or a full stop around it, that has the words.
#[track_caller]
fn say(errors: &[(&dyn Error, &[&str])]) {
    let mut texts = Vec::new();
    for (error, words) in errors {
        let text = error.to_string();
        assert!(text.len() > 8, "{error:?}: {text}");
        assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
        for word in *words {
            assert!(text.contains(word), "{error:?}: {text}");
        }
        texts.push(text);
    }
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), errors.len(), "two say the same");
}

#[test]
fn errors_of_the_interfaces_name_source_register_and_numbers() {
    let interval = IntervalError { requested: 12, unit: IntervalUnit::Events };
    say(&[
        (&InterfaceError::UnsupportedSource(SOURCE), &["ProfileTotalCycles"]),
        (&InterfaceError::NoFreeCounter(SOURCE), &["ProfileTotalCycles", "counter"]),
        (&InterfaceError::AlreadyStarted(SOURCE), &["ProfileTotalCycles", "already"]),
        (&InterfaceError::NotStarted(SOURCE), &["ProfileTotalCycles", "not started"]),
        (&InterfaceError::Interval(interval), &["12", "4096", "2147483647"]),
        (
            &InterfaceError::Counters(CounterError::InsufficientMemory { needed: 9, lent: 3 }),
            &["9", "3"],
        ),
        (&InterfaceError::Platform(PlatformError::NoTimer), &["timer"]),
        (&InterfaceError::NoAnswer(PROCESSOR), &["2", "17", "answer"]),
        (&InterfaceError::NoSession(PROCESSOR), &["2", "17", "no session"]),
        (
            &InterfaceError::Counters(CounterError::NoCounters(NoInterface::NoLongMode)),
            &["no counters", "long mode"],
        ),
        (&InterfaceError::Counters(CounterError::NeedsCounterPair), &["15", "cycle", "pair"]),
        (&InterfaceError::Counters(CounterError::MemoryInUse), &["memory", "session"]),
        (&InterfaceError::Counters(CounterError::OwnControlBits(0x21)), &["0x21"]),
        (
            &InterfaceError::Counters(CounterError::Unchanged(FAULT)),
            &["write of register 0x186", "fault"],
        ),
        (
            &InterfaceError::Counters(CounterError::StateUnknown(FAULT)),
            &["write of register 0x186", "running"],
        ),
    ]);
    say(&[
        (&NoInterface::OtherVendor(*b"  Shanghai  "), &["Shanghai"]),
        (&NoInterface::NoPerformanceMonitoring, &["performance monitoring"]),
        (&NoInterface::CyclesUnavailable, &["cycles"]),
        (&NoInterface::Unresponsive, &["answer"]),
        (&NoInterface::NoLongMode, &["long mode"]),
        (&NoInterface::HiddenByHypervisor, &["hypervisor"]),
        (&NoInterface::ImplausibleCounters { count: 77, width: 99 }, &["77", "99"]),
        (&NoInterface::NotInVersion(Rules::LATEST), &["64-bit Windows10v2004"]),
        (&NoInterface::OtherFamily(19), &["32-bit", "19"]),
    ]);
    say(&[
        (&DumpError::MalformedLine(12), &["line 12"]),
        (&DumpError::NoLeafZero, &["leaf 0"]),
        (&NotASource, &["0x18"]),
    ]);
    let counters = CounterSet::from_bits(0x1_0000_0002);
    let [running, masked] =
        [false, true].map(|masked| ServiceError { fault: FAULT, counters, masked });
    let switch = EventsError { events: 0b101, reason: CounterError::NoFreeCounter };
    say(&[
        (&switch, &["{0, 2}", "counter"]),
        (&running, &["0x100000002", "write of register 0x186"]),
        (&masked, &["0x100000002", "is masked"]),
    ]);
    say(&[
        (&InterfaceError::Exists(SOURCE), &["ProfileTotalCycles"]),
        (&InterfaceError::Full { room: 5 }, &["5"]),
        (&InterfaceError::Counters(CounterError::IllegalBits(0x30_0000)), &["0x300000"]),
    ]);
}

#[test]
fn errors_of_a_machine_and_of_events_name_number_and_place() {
    say(&[
        (&InvalidVector(31), &["vector 31"]),
        (&Busy::InUse, &["in use"]),
        (&Busy::NoSlot { processor: 9 }, &["processor 9"]),
        (&PerfError::Type(7), &["type 7"]),
        (&PerfError::Hardware(10), &["hardware event 10"]),
        (&PerfError::Bits(0x40_0000), &["0x400000"]),
        (&PerfError::ExcludesAll, &["excluded"]),
        (&PerfError::Size(63), &["63 bytes"]),
        (&PerfError::LaterField { at: 150 }, &["byte 150", "later"]),
        (&PerfError::Short { needed: 72 }, &["72 bytes"]),
        (&PerfError::NoSpace { needed: 80 }, &["80 bytes", "record"]),
        (&PerfError::NoCounts, &["counts"]),
        (&PerfError::Flags(1 << 40), &["flags", "0x10000000000"]),
        (&PerfError::Reserved { at: 110 }, &["byte 110", "reserved"]),
        (&PerfError::SampleType(1 << 25), &["sample_type", "0x2000000"]),
        (&PerfError::ReadFormat(0x20), &["read_format", "0x20"]),
        (&PerfError::Period(1 << 63), &["period", "9223372036854775808"]),
        (&PerfError::BranchBits(1 << 20), &["branch_sample_type", "0x100000"]),
        (&PerfError::NoBranchKind, &["branch_sample_type", "no kind"]),
        (&PerfError::CallStackWithKinds, &["branch_sample_type", "call stack"]),
        (&PerfError::Term { at: 5 }, &["term", "byte 5"]),
        (&PerfError::Value { at: 6 }, &["value", "byte 6"]),
        (&CoreType::named("z80").unwrap_err(), &["core type"]),
        (&SKYLAKE.event("inst_retird.any").unwrap_err(), &["event"]),
        (&MetricError::NothingToShare, &["nothing"]),
    ]);
}

#[test]
fn errors_of_profiles_name_processor_source_and_numbers() {
    let refused = InterfaceError::NoFreeCounter(SOURCE);
    let hardware = ProfileError::Hardware { processor: PROCESSOR, error: refused };
    let (object, lists) = (WindowsVersion::Vista, WindowsVersion::Windows8);
    let rules = |version| Rules { version, width: PointerWidth::Bits64 };
    let others = ProfileError::OtherRules { object: rules(object), lists: rules(lists) };
    say(&[
        (&ProfileError::AlreadyStarted, &["already started"]),
        (&ProfileError::NotStarted, &["not started"]),
        (&ProfileError::OnAnotherList, &["other lists"]),
        (&ProfileError::AtLimit, &["as many"]),
        (&ProfileError::WrongContext, &["context"]),
        (&ProfileError::NoProcessor, &["processors", "active"]),
        (&ProfileError::ProcessorBeyondLists(PROCESSOR), &["2:17"]),
        (&others, &["Vista", "Windows8"]),
        (&hardware, &["2:17", "no free counter", "ProfileTotalCycles"]),
    ]);
    say(&[
        (&CreateError::EmptyBuffer, &["buffer"]),
        (&CreateError::BucketSize { log2: 33 }, &["33"]),
        (&CreateError::BucketSize { log2: 0 }, &["no bucket size"]),
        (&CreateError::BufferTooSmall { buckets: 7, counters: 5 }, &["7", "5"]),
        (&CreateError::RangeWraps, &["range"]),
        (&CreateError::UnsupportedSource(SOURCE), &["ProfileTotalCycles"]),
        (&CreateError::Affinity, &["affinity"]),
        (&CreateError::NotASource, &["0x18"]),
        (&CreateError::NotInVersion(rules(WindowsVersion::Vista)), &["Vista", "groups"]),
        (&CreateError::SegmentWithoutProcess, &["segment", "process"]),
        (&CreateError::NoCallbackObjects, &["callback"]),
    ]);
    say(&[
        (&TraceError::NotTraced(0x2000_0400), &["0x20000400"]),
        (&TraceError::NoSource, &["no source"]),
        (&TraceError::TooManySources(9), &["9", "4"]),
        (&TraceError::DuplicateSource(SOURCE), &["ProfileTotalCycles", "twice"]),
        (&TraceError::UnsupportedSource(SOURCE), &["ProfileTotalCycles", "traced"]),
        (&TraceError::Busy, &["being traced"]),
        (&TraceError::NotConfigured, &["configured"]),
        (&TraceError::NoPebsIndex, &["PEBS"]),
        (&TraceError::PebsHook, &["0x0524", "PEBS"]),
        (&TraceError::Profile(ProfileError::AtLimit), &["as many"]),
    ]);
}

#[test]
fn errors_of_foreign_bytes_name_place_and_value() {
    let layout = LayoutError::ObjectType(0x77);
    say(&[
        (&LayoutError::TooShort { needed: 0x58, given: 87 }, &["88", "87"]),
        (&layout, &["0x77"]),
        (&LayoutError::SizeMember(0x123), &["0x123"]),
        (&LayoutError::Source(0x18), &["0x18"]),
        (&LayoutError::Segment(0x1_0000), &["0x10000"]),
        (&LayoutError::BucketShift(30), &["30", "29"]),
        (&LayoutError::Affinity, &["affinity"]),
        (&LayoutError::Address(0x1_2345_6789), &["0x123456789"]),
        (&LayoutError::Offsets, &["offsets"]),
        (&LayoutError::NoSourceOrAffinity, &["source"]),
    ]);
    say(&[
        (
            &WalkError::Unreadable { address: 0xABC0, reading: Reading::Object, error: layout },
            &["0xABC0", "object", "0x77"],
        ),
        (&WalkError::<LayoutError>::Link(3), &["0x3"]),
        (&WalkError::<LayoutError>::Object { address: 0xABC0, error: layout }, &["0xABC0", "0x77"]),
        (
            &WalkError::<LayoutError>::BrokenLink { entry: 0xABC0, blink: 0xDEF0 },
            &["0xABC0", "0xDEF0"],
        ),
        (&WalkError::<LayoutError>::TooLong, &["limit"]),
    ]);
    say(&[
        (&TraceError::TooShort, &["cut off"]),
        (&TraceError::TooMany(21), &["21", "more"]),
        (&TraceError::NoRoom { needed: 48 }, &["room", "48"]),
        (&TraceError::Marker(0xC014_0002), &["0xC0140002"]),
        (&TraceError::Hook(0x0F30), &["0x0F30"]),
        (&LayoutError::BufferTooSmall { needed: 1234 }, &["1234"]),
        (&LayoutError::WrongClass(0x0E), &["0xE"]),
        (&LayoutError::Malformed { offset: 0x38 }, &["0x38"]),
    ]);
    say(&[
        (&ControlAreaError::AccessDenied, &["kernel mode"]),
        (&ControlAreaError::LengthMismatch { length: 15 }, &["15"]),
        (&ControlAreaError::InsufficientResources, &["memory"]),
        (&ControlAreaError::NotSupported, &["Debug Store"]),
        (&ControlAreaError::AlreadyExists { area: 0xFEED_0040 }, &["0xFEED0040"]),
        (&ControlAreaError::NotInVersion(Rules::LATEST), &["Windows10v2004"]),
        (&ControlAreaError::NotAllocated, &["no control area"]),
    ]);
}

#[test]
fn errors_of_the_software_pmu_name_what_cannot_be() {
    say(&[
        (&ConfigurationError::Version(9), &["version 9"]),
        (&ConfigurationError::NoGeneralCounter, &["general counter"]),
        (&ConfigurationError::GeneralGaps { general: 0b101 }, &["101", "gaps"]),
        (
            &ConfigurationError::FeatureVersion { feature: IntelFeature::AnyThread, version: 2 },
            &["any-thread", "version 2", "version 3"],
        ),
        (&ConfigurationError::FixedInVersion1, &["fixed", "version 1"]),
        (&ConfigurationError::FixedGaps { fixed: 0b1001 }, &["1001", "gaps"]),
        (&ConfigurationError::Width(65), &["65"]),
        (&ConfigurationError::AmdCounters(9), &["9 counters"]),
        (&ConfigurationError::OtherVendor, &["another vendor"]),
        (&ConfigurationError::BranchVersion(3), &["branch records", "version 3"]),
        (&ConfigurationError::NoPerfMonV2, &["PerfMonV2"]),
        (&ConfigurationError::BranchDepth(17), &["0x11", "depth"]),
        (&ConfigurationError::BranchFormat(8), &["format 8", "branch records"]),
        (&ConfigurationError::CallStackWithoutFilters, &["call stack", "filters"]),
        (&ConfigurationError::LoggedCounters(0x10), &["0b10000", "first four"]),
        (&ConfigurationError::RecordVersion(1), &["precise records", "version 1"]),
        (&ConfigurationError::RecordFormat(7), &["format 7", "precise records"]),
        (&ConfigurationError::RecordBaseline(3), &["adaptive", "format 3"]),
        (&ConfigurationError::RecordCounters(0x1F), &["0b11111", "records"]),
        (&ConfigurationError::RecordMetrics(5), &["metrics", "format 5"]),
        (&ConfigurationError::RecordGroups(1 << 31), &["groups", "0x80000000"]),
        (&ConfigurationError::ReloadVersion, &["reload", "version 6"]),
        (&ConfigurationError::ReloadCounters, &["reload", "lacks"]),
        (&ConfigurationError::NoSlots, &["top-down", "fixed counter 3"]),
    ]);
    let impossible = StateError::Impossible { address: 0x186, bits: 0x20_0000 };
    say(&[
        (&StateError::NoRegister(0x390), &["0x390"]),
        (&StateError::NoInterrupt, &["interrupt", "no counter"]),
        (&BytesError::Version(7), &["version 7"]),
        (&BytesError::Length(3), &["3 bytes"]),
        (&BytesError::Malformed { at: 12 }, &["12"]),
        (&BytesError::Missing(0xC1), &["0xC1"]),
        (&HostError::Vendor, &["Intel", "AMD"]),
        (&HostError::NoPmu, &["no PMU"]),
        (&HostError::Counters(0x1FF), &["0b111111111", "0 to 7"]),
        (&HostError::NothingInCommon, &["in common"]),
        (&StateError::Configuration(ConfigurationError::Version(9)), &["version 9"]),
        (&impossible, &["0x186", "0x200000"]),
        (&FilterError::TooManyEntries(301), &["301", "300"]),
        (&FilterError::TooManyEvents { most: 3 }, &["more than 3"]),
        (&FilterError::WideEvent(0x1000), &["0x1000"]),
        (&FilterError::UnknownBits(1 << 16), &["0x10000"]),
        (&FedEventsError::TooMany(17), &["17"]),
        (&FedEventsError::Twice(EventKey::general(0xC0, 1)), &["0x0C0/0x01", "twice"]),
        (&FedEventsError::OtherEvents, &["other"]),
        (&FedEventsError::Remainder, &["remainder"]),
        (&MediationError::NoStatusSet, &["status", "set"]),
        (&MediationError::NoFullWidthWrites, &["full-width"]),
        (&MediationError::NoGuestOnly, &["GuestOnly"]),
        (&MediationError::NotTheHosts, &["not the host"]),
        (&MediationError::NotLent(pmu_core::CounterSet::from_bits(0x30)), &["0x30", "lent"]),
        (&MediationError::NotTheLoaded, &["another guest"]),
    ]);
}
