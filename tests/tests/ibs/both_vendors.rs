//! One kernel on processors of both vendors: precise cycles are a record on Intel, and a sampled op on AMD.

use core::cell::RefCell;
use core::sync::atomic::AtomicU64;

use pmu_amd::ibs::{Ibs, IbsMemory, IbsUnits};
use pmu_core::error::CounterError;
use pmu_core::facility::EventFacility;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::precise::{NotPrecise, Precision, SampleParts};
use pmu_core::registers::{CounterId, MAX_COUNTERS};
use pmu_core::{CounterSession, CounterSet, Event, Events, GenericEvent, service};
use pmu_intel::precise::{Pebs, PreciseMemory, PreciseUnit};
use pmu_tests::opened::{fed_events, happened};
use pmu_virt::VirtualPmu;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::ibs::FedOp;
use pmu_virt::mock::ProcessMemory;
use pmu_virt::precise::{
    FedRecord, FedRegisters, GuestMemory, PreciseConfiguration, VirtualPrecise,
};

use crate::support::{Mock, named};

const PERIOD: u64 = 160;
const WORDS: usize = 2048;
const PHYSICAL: u64 = 0x10_0000;
/// Place of cycles among the events that happen.
const CYCLES: usize = 1;

/// The request, which knows no vendor.
fn cycles(precision: Precision) -> Event {
    Event::generic(GenericEvent::Cycles).every(PERIOD).with_total().user_only().precise(precision)
}

/// Returns the address of an instruction.
fn address(number: u64) -> u64 {
    0x40_1000 + 16 * number
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Machine {
    /// A processor of AMD's with this name.
    Amd(&'static str),
    AmdWithoutSampling,
    /// A processor whose records have this format.
    Intel(u8),
    IntelWithoutRecords,
}

impl Machine {
    fn mock(self, memory: &'static PreciseMemory) -> &'static Mock<'static> {
        let intel = |version| Configuration::Intel(IntelConfiguration::new(version, 4, 3));
        let plain =
            |configuration| Mock::strict(VirtualPmu::new(configuration, fed_events()).unwrap());
        let mock = match self {
            Self::Amd(name) => named(name).mock(),
            Self::AmdWithoutSampling => plain(Configuration::Amd(AmdConfiguration::perf_mon_v2(6))),
            Self::IntelWithoutRecords => plain(intel(4)),
            Self::Intel(format) => {
                let configuration = intel(if format < 4 { 4 } else { 5 });
                // SAFETY: the area and the buffer, one page behind it, consist of atomics.
                let ram = unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) };
                let ram: &'static RefCell<dyn GuestMemory> = Box::leak(Box::new(RefCell::new(ram)));
                let records = PreciseConfiguration::debug_store(format);
                let precise = VirtualPrecise::new(&configuration, records).unwrap();
                let instruction = |number| {
                    let registers = FedRegisters { ip: address(number) + 4, ..FedRegisters::ZERO };
                    FedRecord { registers, ..FedRecord::new(address(number)) }
                };
                plain(configuration).with_precise(precise, ram, Box::leak(Box::new(instruction)))
            }
        };
        for control in [0x38F, 0xC000_0301] {
            let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
        }
        Box::leak(Box::new(mock))
    }
}

/// The counter that an event was on, and the addresses of its samples.
type Outcome = Result<(CounterId, Vec<u64>), CounterError>;

/// Runs the kernel, which has both vendors' facilities, with an event on a machine.
fn run(machine: Machine, event: &Event) -> Outcome {
    let lent: &'static PreciseMemory<[AtomicU64; WORDS]> =
        Box::leak(Box::new(PreciseMemory::new()));
    let memory: &'static PreciseMemory = lent;
    let mock = machine.mock(memory);
    let snapshot = mock.snapshot();
    let (is_amd, sampling) = (&snapshot.vendor() == b"AuthenticAMD", IbsMemory::new());
    let unit = if is_amd { pmu_amd::counters(&snapshot) } else { pmu_intel::counters(&snapshot) };
    // Of the family and model, with its errata.
    let units = match machine {
        Machine::Amd(name) => Some(named(name).units()),
        _ => IbsUnits::of(&snapshot),
    };
    let precise = PreciseUnit::detect(&snapshot, mock).ok();
    let table = EventTable::<[EventEntry; 4]>::new();
    let counters = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    // SAFETY: the mock writes to the lent memory alone, which lasts.
    let pebs =
        precise.as_ref().map(|unit| unsafe { Pebs::new(unit, memory, Some(PHYSICAL)) }.unwrap());
    let ibs = units.as_ref().map(|units| Ibs::new(units, &sampling));
    let source = Events::new(&unit, &table as &EventTable).with((pebs, ibs));
    let (msr, seen) = (&mock, RefCell::new(vec![]));
    let mut session = CounterSession::take(source, &unit, CounterSet::ALL, msr, &counters)?;
    table.set_min_period(1);
    let id = session.open(&unit, &[*event])?;
    session.enable(id, 0)?;
    let counter = session.counter_of(id).unwrap();
    let mut number = 0;
    while seen.borrow().len() < 3 {
        number += 1;
        assert!(number < 4 * PERIOD, "{machine:?}: {seen:?}");
        let before = mock.interrupts();
        let _ = mock.execute(&FedOp { cycles: 1, ..FedOp::new(address(number)) });
        mock.advance(&mut happened(CYCLES, 1));
        // The counters' interrupt, or the unit's.
        if mock.interrupts() != before {
            let report = |sample: pmu_core::Sample<'_, (Option<Pebs<'_>>, Option<Ibs<'_>>)>| {
                let instruction = sample.facility().and_then(|of| of.instruction(sample.counter));
                assert_eq!(instruction.as_ref(), sample.instruction().as_ref(), "{machine:?}");
                assert_eq!((sample.event, sample.period), (id, PERIOD), "{machine:?}");
                let address = instruction.and_then(|found| found.address);
                seen.borrow_mut().push(address.expect("an instruction's own address"));
            };
            let claim = service(&source, msr, &counters, report).unwrap().claim;
            assert!(claim.interrupts() > 0, "{machine:?}");
        }
    }
    assert_eq!(session.close(id, 0)?.value, number, "{machine:?}");
    session.shut_down()?;
    Ok((counter, seen.take()))
}

#[test]
fn precise_cycles_are_records_on_intel_and_sampled_ops_on_amd() {
    let precision = Precision::ZeroSkidRequested;
    for name in ["family 10h", "Zen 2", "Zen 3", "Zen 4", "Zen 5", "Zen 6"] {
        let (counter, addresses) = run(Machine::Amd(name), &cycles(precision)).unwrap();
        assert_eq!(counter, CounterId::OP_UNIT, "{name}");
        // The op at the end of each period.
        assert_eq!(addresses, [1, 2, 3].map(|number| address(number * PERIOD)), "{name}");
    }
    // Records of these formats are those of cycles themselves.
    for format in 4..=6 {
        let (_, addresses) = run(Machine::Intel(format), &cycles(precision)).unwrap();
        let is_ascending = addresses.windows(2).all(|two| two[0] < two[1]);
        assert!(addresses.len() == 3 && is_ascending, "{format}: {addresses:X?}");
    }
}

/// A request that a processor cannot meet is refused as the event is opened, by its part.
#[test]
fn what_a_processor_cannot_record_of_cycles_is_told_as_the_event_is_opened() {
    use NotPrecise::{NextAddressOnly, NoExactCounter, NoFacility, NoPeriod, Parts};
    use Precision::{ConstantSkid, ZeroSkidRequested, ZeroSkidRequired};
    let registers = SampleParts::REGISTERS;
    for (machine, event, reason) in [
        (Machine::Amd("Zen 4"), cycles(ZeroSkidRequired), NoExactCounter),
        (Machine::Amd("Zen 4"), cycles(ConstantSkid).recording(registers), Parts(registers)),
        (
            Machine::Amd("Zen 4"),
            Event::generic(GenericEvent::Cycles).precise(ConstantSkid),
            NoPeriod,
        ),
        (Machine::Amd("Zen 4"), every_mispredicted(), NotPrecise::Event),
        (Machine::AmdWithoutSampling, cycles(ConstantSkid), NoFacility),
        (Machine::Intel(0), cycles(ZeroSkidRequested), NextAddressOnly),
        (Machine::Intel(4), Event::generic(GenericEvent::Cycles).precise(ConstantSkid), NoPeriod),
        (Machine::IntelWithoutRecords, cycles(ConstantSkid), NoFacility),
    ] {
        let refused = run(machine, &event).map(drop);
        assert_eq!(refused, Err(CounterError::NotPrecise(reason)), "{machine:?}, {event:?}");
    }
}

fn every_mispredicted() -> Event {
    Event::generic(GenericEvent::BranchMisses).every(PERIOD).precise(Precision::ConstantSkid)
}
