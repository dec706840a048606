//! Event counters in pairs: the second one of each counts the overflows of the first.

use core::cell::Cell;

use pmu::core::CounterSet;
use pmu::core::access::RegisterBackend;
use pmu::core::registers::CounterId;
use pmu::core::registers::EventSelect;
use pmu::{Event, GenericEvent};
use pmu_arm::registers::Register;
use pmu_arm::{ArmRegisters, Identification, SystemRegisters, chained_counters};
use pmu_tests::arm::identify;
use pmu_virt::mock::MockPmuv3;

use crate::world::{
    BR_RETIRED, INST_RETIRED, Met, PROCESSORS, World, accesses, execute, in_pairs, is_met, meet,
    model, on, samples, shut_down,
};

fn running(level: u8) -> &'static World {
    let pmu = in_pairs(level);
    for processor in 0..PROCESSORS {
        let taken = on(processor, || pmu.processor_up(&identify(model())).unwrap());
        assert_eq!(taken.bits(), 1 << 32 | 0b111);
    }
    pmu
}

fn of(event: u64) -> Event {
    Event::raw(EventSelect::from_bits(event))
}

/// More than 2³² branches at once: no wrap interrupts, by which a counter of 32 bits would be counted on.
#[test]
fn counts_are_exact_across_32_bits_without_an_interrupt() {
    for level in [1, 2] {
        let pmu = running(level);
        let events = [of(BR_RETIRED), of(INST_RETIRED).user_only(), of(BR_RETIRED).kernel_only()];
        let events = events.map(|event| pmu.start(&event.on(CounterSet::GENERAL)).unwrap());
        let values = || events.map(|event| pmu.read(event).unwrap().value);
        let before = accesses();
        execute(0, 5_000_000_000);
        execute(level, 3_000_000_000);
        assert_eq!(accesses(), before, "no interrupt");
        assert_eq!(values(), [8_000_000_000, 20_000_000_000, 3_000_000_000]);
        execute(0, 70);
        assert_eq!(values(), [8_000_000_070, 20_000_000_280, 3_000_000_000]);
        assert!(pmu.start(&of(BR_RETIRED)).is_err(), "there are three pairs");
        for event in events {
            pmu.close(event).unwrap();
        }
        shut_down(pmu);
    }
}

/// Also where the period ends with an overflow of the lower half, and where it is one event longer.
#[test]
fn a_long_period_has_one_interrupt() {
    for level in [1, 2] {
        for period in [5_000, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 5_000_000_000] {
            let pmu = running(level);
            let event = pmu.start(&of(BR_RETIRED).every(period).with_total()).unwrap();
            execute(0, period - 1);
            assert_eq!(samples(), 0, "{period}");
            execute(level, 1);
            assert_eq!(samples(), 1, "{period}");
            execute(0, 3 * period);
            assert_eq!((samples(), pmu.read(event).unwrap().value), (3, 4 * period));
            pmu.close(event).unwrap();
            shut_down(pmu);
        }
    }
}

/// As many as of a single counter, and two more for the load.
#[test]
fn an_interrupt_takes_few_accesses() {
    let pmu = running(1);
    let event = pmu.start(&of(BR_RETIRED).every(10_000)).unwrap();
    let before = accesses();
    execute(0, 10_000);
    assert_eq!((accesses() - before, samples()), (3 + 2, 1));
    pmu.close(event).unwrap();
    shut_down(pmu);
}

/// The lower half overflows before any access of a read.
#[test]
fn a_read_is_of_one_moment() {
    for after in 0.. {
        let pmu = running(1);
        let event = pmu.start(&of(BR_RETIRED).user_only()).unwrap();
        execute(0, (1 << 32) - 3);
        meet(after, Met::Branches(7));
        let read = pmu.read(event).unwrap().value;
        let is_over = !is_met();
        let expected = if is_over { [(1 << 32) - 3; 2] } else { [(1 << 32) - 3, (1 << 32) + 4] };
        assert!(expected.contains(&read), "access {after}: {read:#x}");
        pmu.close(event).unwrap();
        shut_down(pmu);
        if is_over {
            assert!(after >= 3, "{after} accesses");
            break;
        }
    }
}

fn set(register: Register, value: u64) {
    model().write(register.encoding(), value);
    model().synchronize();
}

fn get(register: Register) -> u64 {
    model().read(register.encoding())
}

/// A hypervisor's counters are those from HPMN on; one of them may be half of a pair.
#[test]
fn another_owners_counters_stay_enabled_and_no_other_joins_them() {
    for hpmn in 2..6 {
        for number in hpmn..6 {
            let pmu = in_pairs(2);
            set(Register::Pmcr, 1 | 1 << 6);
            for register in [Register::Pmcntenclr, Register::Pmintenclr, Register::Pmovsclr] {
                set(register, u32::MAX.into());
            }
            set(Register::Pmcntenset, 1 << number);
            let foreign = || get(Register::Pmcntenset) & (0x3F << hpmn & 0x3F);
            let check = |at| assert_eq!(foreign(), 1 << number, "{at}: {number} from {hpmn} on");
            pmu.processor_up(&Identification { mdcr_el2: Some(hpmn), ..identify(model()) })
                .unwrap();
            check("up");
            let event = pmu.start(&of(BR_RETIRED).every(5_000)).unwrap();
            execute(0, 20_000);
            assert_eq!(samples(), 4);
            check("counting");
            pmu.lend(|_| check("lent")).unwrap();
            pmu.close(event).unwrap();
            pmu.processor_down().unwrap();
            check("down");
        }
    }
}

#[test]
fn a_borrower_finds_no_overflow_of_a_lower_half() {
    let pmu = running(1);
    let event = pmu.start(&of(BR_RETIRED)).unwrap();
    execute(0, (1 << 32) + 5);
    let registers = [Register::Pmovsclr, Register::Pmcntenset];
    pmu.lend(|_| assert_eq!(registers.map(get), [0, 0])).unwrap();
    execute(0, 1 << 32);
    assert_eq!(pmu.read(event).unwrap().value, (2 << 32) + 5);
    pmu.processor_suspended().unwrap();
    assert_eq!(registers.map(get), [0, 0]);
    pmu.processor_resumed().unwrap();
    pmu.close(event).unwrap();
    shut_down(pmu);
}

/// A lower half that is read as of the last synchronization, as a processor may do it, while the upper half counts its
/// overflow.
struct Early {
    value: Cell<u64>,
    seen: Cell<u64>,
}

impl SystemRegisters for &Early {
    type Error = core::convert::Infallible;
    fn read(&self, register: Register) -> Result<u64, Self::Error> {
        let lower = self.seen.get() & 0xFFFF_FFFF;
        if register == Register::Pmevcntr0 {
            return Ok(lower);
        }
        // Before the first read of the upper half; the lower half's overflow is over then.
        self.value.set(self.value.get() + 5);
        Ok(self.value.get() >> 32)
    }
    fn write(&self, _: Register, _: u64) -> Result<(), Self::Error> {
        Ok(())
    }
    fn synchronize(&self) {
        self.seen.set(self.value.get());
    }
}

#[test]
fn the_halves_of_a_read_are_synchronized() {
    let unit = chained_counters(&identify(&MockPmuv3::new(false, 1)));
    let register = unit.counter(CounterId::general(0).unwrap()).unwrap().value_register();
    for value in (1 << 32) - 30..1 << 32 {
        let early = Early { value: Cell::new(value), seen: Cell::new(0) };
        let read = ArmRegisters::new(&early).read(register).unwrap();
        assert!((value..=early.value.get()).contains(&read), "{value:#x}: {read:#x}");
    }
}

#[test]
fn counters_of_64_bits_and_processors_without_the_event_stay_single() {
    let short = identify(&MockPmuv3::new(false, 1));
    let pairs = chained_counters(&short);
    assert_eq!(pairs.counters().len(), 3 + 1);
    assert!(pairs.generic(GenericEvent::Instructions).is_some());
    let without = Identification { pmceid0_el0: short.pmceid0_el0 & !(1 << 0x1E), ..short };
    for processor in [without, identify(&MockPmuv3::new(true, 1))] {
        let single = chained_counters(&processor);
        assert_eq!(single.counters().len(), 6 + 1);
        assert_eq!(format!("{single:?}"), format!("{:?}", pmu_arm::counters(&processor)));
    }
}
