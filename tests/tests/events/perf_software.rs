//! perf's software events: their names and numbers, by the kernel's header, and what they ask for.

use perf_event_open_sys::bindings::{self, *};
use pmu::perf::{
    AttrFlags, PERF_TYPE_SOFTWARE, PerfAttributes, PerfError, PerfEvent, PerfEventAttr,
};
use pmu::{Event, SoftwareEvent};

fn event(text: &str) -> Result<Event, PerfError> {
    PerfEvent::parse(text, &())?.attr.event(&())
}

#[test]
fn software_events_have_perfs_names_and_numbers() {
    assert_eq!(PERF_TYPE_SOFTWARE, bindings::PERF_TYPE_SOFTWARE);
    for (name, number, expected) in [
        ("cpu-clock", PERF_COUNT_SW_CPU_CLOCK, SoftwareEvent::CpuClock),
        ("task-clock", PERF_COUNT_SW_TASK_CLOCK, SoftwareEvent::TaskClock),
        ("page-faults", PERF_COUNT_SW_PAGE_FAULTS, SoftwareEvent::PageFaults),
        ("faults", PERF_COUNT_SW_PAGE_FAULTS, SoftwareEvent::PageFaults),
        ("context-switches", PERF_COUNT_SW_CONTEXT_SWITCHES, SoftwareEvent::ContextSwitches),
        ("cs", PERF_COUNT_SW_CONTEXT_SWITCHES, SoftwareEvent::ContextSwitches),
        ("cpu-migrations", PERF_COUNT_SW_CPU_MIGRATIONS, SoftwareEvent::CpuMigrations),
        ("migrations", PERF_COUNT_SW_CPU_MIGRATIONS, SoftwareEvent::CpuMigrations),
        ("minor-faults", PERF_COUNT_SW_PAGE_FAULTS_MIN, SoftwareEvent::MinorFaults),
        ("major-faults", PERF_COUNT_SW_PAGE_FAULTS_MAJ, SoftwareEvent::MajorFaults),
        ("alignment-faults", PERF_COUNT_SW_ALIGNMENT_FAULTS, SoftwareEvent::AlignmentFaults),
        ("emulation-faults", PERF_COUNT_SW_EMULATION_FAULTS, SoftwareEvent::EmulationFaults),
        ("dummy", PERF_COUNT_SW_DUMMY, SoftwareEvent::Dummy),
    ] {
        let attr = PerfEvent::parse(name, &()).unwrap().attr;
        let config = number.into();
        let select = PerfAttributes { type_: PERF_TYPE_SOFTWARE, config, ..Default::default() };
        assert_eq!(attr.select, select, "{name}");
        assert_eq!(Event::try_from(select).unwrap(), Event::software(expected));
        assert_eq!(PerfAttributes::try_from(Event::software(expected)), Ok(select));
        for user in [format!("{name}:u"), format!("{name}//u")] {
            let user = event(&user).unwrap();
            assert_eq!(user, Event::software(expected).user_only().with_total().rotating());
        }
    }
}

/// As in Linux' `perf_swevent_init_hrtimer` and `perf_swevent_start_hrtimer`.
#[test]
fn a_clock_has_a_period_of_nanoseconds_that_is_not_too_short() {
    assert_eq!(event("cpu-clock/period=5000/").unwrap().period(), Some(10_000));
    assert_eq!(event("cpu-clock/period=250000/").unwrap().period(), Some(250_000));
    assert_eq!(event("page-faults/period=1/").unwrap().period(), Some(1));
    assert_eq!(event("task-clock/freq=4000/").unwrap().frequency(), Some(4_000));
}

/// `perf record` asks for the greatest precision of whatever it samples, and excludes guests.
#[test]
fn precision_and_guests_say_nothing_of_a_software_event() {
    let faults = event("page-faults/period=100/pppH").unwrap();
    let expected = Event::software(SoftwareEvent::PageFaults).every(100).with_total().rotating();
    assert_eq!(faults, expected);
    let select = PerfAttributes { type_: PERF_TYPE_SOFTWARE, ..Default::default() };
    let branches = PerfEventAttr {
        select,
        flags: AttrFlags::PINNED,
        sample_type: PerfEventAttr::SAMPLE_BRANCH_STACK,
        branch_sample_type: 1 << 3,
        ..Default::default()
    };
    // The event is refused as it is opened, with EOPNOTSUPP.
    assert!(branches.event(&()).unwrap().branches().is_some());
    assert_eq!(pmu::perf::errno(pmu::core::error::CounterError::BranchesUnsupported), 95);
}
