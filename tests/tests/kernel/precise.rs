//! Precise events through a `Pmu` whose kernel chose precise records, and branches beside them.

use core::cell::{Cell, RefCell};
use core::sync::atomic::AtomicU32;
use pmu_tests::Reason;

use pmu::amd::ibs::IbsSampling;
use pmu::core::branches::BranchFilter;
use pmu::core::error::{CounterError, NoFacility};
use pmu::core::frame::PlainFrame;
use pmu::core::precise::{NotPrecise, Precision};
use pmu::core::registers::EventSelect;
use pmu::core::{Event, EventId};
use pmu::facilities::{BranchRecords, PreciseRecords};
use pmu::intel::precise::PreciseThreshold;
use pmu::processors::Busy;
use pmu::{Kernel, Pmu, PmuError, PmuSample, X86};
use pmu_tests::software_pmu::{general_events, general_feed};
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{MockMsr, ProcessMemory};
use pmu_virt::precise::{FedRecord, PreciseConfiguration, VirtualPrecise};
use pmu_virt::{FedEvents, Privilege, VirtualPmu};

type Mock = MockMsr<'static, 64>;

/// Instructions and branches.
const KINDS: [u8; 2] = [0xC0, 0xC4];
const WORDS: usize = 1024;
const PHYSICAL: u64 = 0x10_0000;
const PERIOD: u64 = 5_000;

thread_local! {
    static MOCK: Cell<Option<&'static Mock>> = const { Cell::new(None) };
    /// The physical address that the kernel tells.
    static ADDRESS: Cell<Option<u64>> = const { Cell::new(None) };
    static SAMPLES: RefCell<Vec<Seen>> = const { RefCell::new(vec![]) };
}

/// Tag, address of the record, and branches of a sample.
type Seen = (u64, Option<u64>, Vec<u64>);

fn mock() -> &'static Mock {
    MOCK.get().unwrap()
}

struct Registers;

pmu_tests::delegate_registers!(Registers, mock);

struct Recording;

// SAFETY: (1) each test has one thread, and a `Pmu` of its own; (2) its processor is a mock, which writes to the lent
// memory alone.
unsafe impl Kernel for Recording {
    pmu_tests::one_processor!(Registers, mock);
    type Architecture = X86<(PreciseRecords<WORDS>, BranchRecords)>;
    fn physical_address(first: *const (), bytes: usize) -> Option<u64> {
        assert_eq!((first.addr() % 4096, bytes), (0, 8 * WORDS));
        ADDRESS.get()
    }
    fn sampled(sample: &PmuSample<'_, Self>) {
        let pebs = sample.facility().and_then(|((pebs, _), _)| pebs.as_ref());
        let record = pebs.and_then(|pebs| pebs.record());
        assert_eq!(record.is_some(), sample.instruction().is_some());
        let branches = sample.branches().map(|branch| branch.from).collect();
        let seen = (sample.tag, record.and_then(|record| record.address()), branches);
        SAMPLES.with_borrow_mut(|samples| samples.push(seen));
    }
}

fn fed() -> FedEvents {
    general_events(&KINDS)
}

/// Lets an event of these happen.
fn happen(kind: usize, count: u64) {
    mock().advance(&mut general_feed(&KINDS, kind, count));
}

/// Processors by the version of the PMU and the records; those of a Debug Store need no physical address.
fn processors() -> [(u8, PreciseConfiguration); 3] {
    [
        (4, PreciseConfiguration::debug_store(3)),
        (5, PreciseConfiguration::debug_store(4)),
        (6, PreciseConfiguration::ARCHITECTURAL),
    ]
}

/// A machine of one processor, which is up. The kernel tells the address as the buffer's physical one.
fn machine(
    version: u8,
    records: Option<PreciseConfiguration>,
    address: Option<u64>,
) -> &'static Pmu<Recording, 1> {
    let configuration = Configuration::Intel(IntelConfiguration::new(version, 4, 3));
    let branches = match version {
        4 => BranchConfiguration::Legacy { format: 5 },
        _ => BranchConfiguration::ARCHITECTURAL,
    };
    let branches = VirtualBranches::new(&configuration, branches).unwrap();
    let ram: &'static RefCell<ProcessMemory<'_>> = Box::leak(Box::default());
    let mut mock = Mock::strict(VirtualPmu::new(configuration, fed()).unwrap());
    if let Some(records) = records {
        let precise = VirtualPrecise::new(&configuration, records).unwrap();
        mock = mock.with_precise(precise, ram, &|number| FedRecord::new(0x40_1000 + number));
    }
    let mock = mock.with_branches(branches);
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    MOCK.set(Some(Box::leak(Box::new(mock))));
    ADDRESS.set(address);
    let pmu: &'static Pmu<Recording, 1> = Box::leak(Box::new(Pmu::new()));
    let handler = move |_: &Mock| {
        let interrupted = pmu.interrupt(&PlainFrame::default());
        assert_eq!(interrupted.error, None);
    };
    self::mock().on_interrupt(Box::leak(Box::new(handler)));
    pmu.processor_up(&self::mock().snapshot()).unwrap();
    if let Ok((_, memory)) = pmu.precise_records(0) {
        // SAFETY: the area and the buffer, one page behind it, consist of atomics.
        ram.replace(unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) });
    }
    pmu
}

fn event(kind: usize) -> Event {
    let select = EventSelect::from_bits(KINDS[kind].into());
    Event::raw(select).user_only().every(PERIOD).tagged(kind as u64)
}

fn start(pmu: &'static Pmu<Recording, 1>, event: &Event) -> Result<EventId, CounterError> {
    let started = pmu.with(|session, unit| {
        let id = session.counters_mut().open(unit, &[*event])?;
        session.counters_mut().enable(id, 0).map(|()| id).reason()
    });
    started.unwrap()
}

/// Of records 0 on.
fn address(number: u64) -> Option<u64> {
    Some(0x40_1000 + number)
}

#[test]
fn samples_of_precise_events_have_records_and_those_of_events_with_branches_have_branches() {
    for (version, records) in processors() {
        SAMPLES.take();
        let pmu = machine(version, Some(records), Some(PHYSICAL));
        for processor_up in 0..2 {
            if processor_up == 1 {
                pmu.processor_up(&mock().snapshot()).unwrap();
            }
            let first = 6 * processor_up;
            let records = event(0).precise(Precision::ZeroSkidRequested);
            start(pmu, &records).unwrap();
            start(pmu, &event(1).with_branches(BranchFilter::ALL)).unwrap();
            let branch =
                FedBranch::new(0x9000, 0xA000, FedBranchKind::RelativeJump, Privilege::User);
            mock().branch(&branch);
            happen(0, 2 * PERIOD + 1);
            happen(1, PERIOD);
            let expected = [
                (0, address(first), vec![]),
                (0, address(first + 1), vec![]),
                (1, None, vec![0x9000]),
            ];
            assert_eq!(SAMPLES.take(), expected, "{version}");
            // Registers that lose their contents are programmed again; what was left of a period is left.
            pmu.processor_suspended().unwrap();
            mock().lose_registers();
            pmu.processor_resumed().unwrap();
            happen(0, PERIOD - 2);
            assert_eq!(SAMPLES.take(), [], "{version}");
            happen(0, 1);
            assert_eq!(SAMPLES.take(), [(0, address(first + 2), vec![])], "{version}");
            pmu.processor_down().unwrap();
            let enabled = mock().with_precise_records(|records| (records.enabled(), records.due()));
            assert_eq!(enabled, Some((0, 0)), "{version}");
            // Nothing is recorded while the processor is down.
            happen(0, 10 * PERIOD);
            assert_eq!(mock().written_records(), first + 3, "{version}");
            // As many again, so that each round begins at a number of its own.
            pmu.processor_up(&mock().snapshot()).unwrap();
            start(pmu, &records).unwrap();
            happen(0, 3 * PERIOD);
            pmu.processor_down().unwrap();
            assert_eq!(SAMPLES.take().len(), 3, "{version}");
        }
        assert!(mock().breach().is_none(), "{:?}", mock().breach());
    }
}

#[test]
fn a_processors_threshold_and_its_dropped_records_are_the_kernels_to_see() {
    for (version, records) in processors() {
        SAMPLES.take();
        let pmu = machine(version, Some(records), Some(PHYSICAL));
        let (unit, memory) = pmu.precise_records(0).unwrap();
        assert_eq!(unit.needs_physical_address(), version == 6);
        assert_eq!(memory.capacity(), 8 * WORDS);
        memory.set_threshold(PreciseThreshold::NearlyFull);
        start(pmu, &event(0).precise(Precision::ConstantSkid)).unwrap();
        happen(0, 5 * PERIOD);
        assert_eq!(SAMPLES.take(), [], "{version}: they wait");
        pmu.report_samples().unwrap();
        let expected: Vec<Seen> = (0..5).map(|number| (0, address(number), vec![])).collect();
        assert_eq!(SAMPLES.take(), expected, "{version}");
        assert_eq!(memory.dropped(), Default::default(), "{version}");
        pmu.processor_down().unwrap();
        assert!(mock().breach().is_none(), "{:?}", mock().breach());
    }
}

#[test]
fn what_cannot_record_says_so_and_counts_all_the_same() {
    let [(_, store), .., (_, architectural)] = processors();
    for (version, records, why) in [
        (6, Some(architectural), NoFacility::NoPhysicalAddress),
        (5, None, NoFacility::NotDeclared),
    ] {
        SAMPLES.take();
        // An address within a page is none of a buffer.
        for address in [None, Some(PHYSICAL + 16)] {
            let pmu = machine(version, records, address);
            let refused = pmu.precise_records(0).map(|_| ());
            assert_eq!(refused, Err(PmuError::Facility(why)));
            let opened = start(pmu, &event(0).precise(Precision::ConstantSkid));
            assert_eq!(opened, Err(CounterError::NotPrecise(NotPrecise::NoFacility)));
            start(pmu, &event(0)).unwrap();
            happen(0, PERIOD);
            assert_eq!(SAMPLES.take(), [(0, None, vec![])]);
            pmu.processor_down().unwrap();
            assert!(mock().breach().is_none(), "{:?}", mock().breach());
        }
    }
    // A Debug Store needs no physical address.
    let pmu = machine(4, Some(store), None);
    start(pmu, &event(0).precise(Precision::ConstantSkid)).unwrap();
    happen(0, PERIOD);
    assert_eq!(SAMPLES.take(), [(0, address(0), vec![])]);
    let nowhere = PmuError::Session(Busy::NoSlot { processor: 1 });
    assert_eq!(pmu.precise_records(1).map(|_| ()), Err(nowhere));
    // Neither has a kernel that did not choose the records, nor a processor that has not been up.
    let not_declared = Err(PmuError::Facility(NoFacility::NotDeclared));
    let (_, other) =
        super::world::Machine::new(Configuration::Intel(IntelConfiguration::new(4, 4, 3)));
    assert_eq!(other.precise_records(0).map(|_| ()), not_declared);
    let early: &'static Pmu<Recording, 1> = Box::leak(Box::new(Pmu::new()));
    assert_eq!(early.precise_records(0).map(|_| ()), not_declared);
}

#[test]
fn an_event_of_a_sampling_unit_is_none_of_a_processor_with_precise_records() {
    for (version, records) in processors() {
        let pmu = machine(version, Some(records), Some(PHYSICAL));
        for request in [IbsSampling::ops(), IbsSampling::cycles(), IbsSampling::fetches()] {
            let opened = start(pmu, &request.event().every(PERIOD));
            let refused = Err(CounterError::NotPrecise(NotPrecise::NoFacility));
            assert_eq!(opened, refused, "{version}");
        }
        pmu.processor_down().unwrap();
    }
}

/// All interrupts come at address 0, outside of the profile's range.
#[test]
fn a_profile_of_a_precise_event_counts_at_the_recorded_addresses() {
    for (version, records) in processors() {
        let pmu = machine(version, Some(records), Some(PHYSICAL));
        let buckets = [const { AtomicU32::new(0) }; 8];
        let profiled = event(0).precise(Precision::ConstantSkid);
        let range = 0x40_1000..0x40_1020;
        let profile = pmu.profile(profiled, range, &buckets, || happen(0, 6 * PERIOD)).unwrap();
        let hits: Vec<_> = profile.hits().map(|(of, hits)| (of.start, hits)).collect();
        assert_eq!(hits, [(0x40_1000, 4), (0x40_1004, 2)], "{version}");
        assert_eq!(buckets.map(AtomicU32::into_inner).iter().sum::<u32>(), 6);
        pmu.processor_down().unwrap();
        assert!(mock().breach().is_none(), "{:?}", mock().breach());
    }
}

/// Records of a profile wait beside those of a thread's event.
#[test]
fn a_task_reports_the_waiting_samples_of_the_kernels_own_events_alone() {
    for (version, records) in processors() {
        for way in 0..4 {
            SAMPLES.take();
            let pmu = machine(version, Some(records), Some(PHYSICAL));
            pmu.precise_records(0).unwrap().1.set_threshold(PreciseThreshold::NearlyFull);
            let precise = |kind| event(kind).precise(Precision::ConstantSkid);
            let buckets = [const { AtomicU32::new(0) }; 8];
            let profiled =
                pmu.profile(precise(0).tagged(0), 0x40_1000..0x40_1020, &buckets, || {
                    let mut thread = [pmu.thread_event(&precise(1)).unwrap()];
                    pmu.switch(&mut [], &mut thread).unwrap();
                    happen(0, 2 * PERIOD);
                    happen(1, 3 * PERIOD);
                    assert_eq!(SAMPLES.take(), [], "{version}: they wait");
                    match way {
                        0 => pmu.report_samples().unwrap(),
                        1 => pmu.lend(|_| ()).unwrap(),
                        2 => pmu.with_thread(&mut thread, |_| ()).unwrap(),
                        _ => pmu.switch(&mut thread, &mut []).unwrap(),
                    }
                    let expected: Vec<Seen> =
                        (2..5).map(|number| (1, address(number), vec![])).collect();
                    assert_eq!(SAMPLES.take(), expected, "{version}, {way}");
                    pmu.switch(&mut thread, &mut []).unwrap();
                });
            let _ = profiled.unwrap();
            pmu.processor_down().unwrap();
            assert!(mock().breach().is_none(), "{:?}", mock().breach());
        }
    }
}
