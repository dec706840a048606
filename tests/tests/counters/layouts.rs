//! The unit that is made of a processor's counters and event selects, on a processor that is made up.

use pmu_core::access::RegisterAddress;
use pmu_core::registers::{
    CounterBank, CounterControl, CounterId, CounterLayout, EventSelect, FixedCounters,
    GlobalRegisters, MAX_FIXED, SelectLayout,
};
use pmu_core::{CounterSet, CounterUnit, GenericEvent};

static BANK: CounterBank = CounterBank {
    select: 0x100,
    value: 0x200,
    step: 3,
    indexed: 1,
    sign_extended: false,
    counts_every_number: false,
};
static FIXED: FixedCounters =
    FixedCounters { control: 0x300, value: 0x400, step: 5, events: [0x77; MAX_FIXED] };
// SAFETY: nothing accesses them.
static GLOBAL: GlobalRegisters = unsafe {
    GlobalRegisters {
        control: RegisterAddress::new(0x500),
        status: RegisterAddress::new(0x501),
        acknowledge: RegisterAddress::new(0x502),
        stop_while_serviced: false,
        loaded_for_guests: false,
        frozen: 0,
        freeze: None,
    }
};

/// General counters 0 and 2, and fixed counter 1: all there is to say of them, or what there is to say at least.
struct Made {
    at_length: bool,
}

// SAFETY: nothing accesses the registers.
unsafe impl CounterLayout for Made {
    fn counters(&self) -> CounterSet {
        CounterSet::from_bits(0b101) | CounterSet::fixed(0b10)
    }
    fn general(&self) -> (&'static CounterBank, u8) {
        (&BANK, 40)
    }
    fn fixed(&self) -> Option<(&'static FixedCounters, u8)> {
        self.at_length.then_some((&FIXED, 48))
    }
    fn global(&self) -> Option<&'static GlobalRegisters> {
        self.at_length.then_some(&GLOBAL)
    }
    fn is_masked_on_delivery(&self) -> bool {
        self.at_length
    }
}

impl SelectLayout for Made {
    fn event_bits(&self) -> u64 {
        0x3_FFFF
    }
    fn generic_events(&self) -> (&'static [u64; GenericEvent::COUNT], u8) {
        // The last one's bit is clear, and the second has no number.
        (&[0x11, 0, 0x13, 0x14, 0x15, 0x16, 0x17], if self.at_length { 0x3F } else { 0 })
    }
    fn denies_user_reads(&self) -> bool {
        self.at_length
    }
}

fn registers(unit: &CounterUnit, counter: Option<CounterId>) -> (u32, u32, u32, Option<u32>) {
    let counter = unit.counter(counter.unwrap()).unwrap();
    let index = counter.read_index().map(|index| index.get());
    let control = match counter.control() {
        CounterControl::Select(register) => register.get(),
        CounterControl::Shared { register, counter } => register.get() | u32::from(counter) << 16,
    };
    (control, counter.value_register().get(), counter.width(), index)
}

#[test]
fn a_unit_has_what_a_vendor_says_of_its_counters_and_selects() {
    let unit = CounterUnit::of(&Made { at_length: true });
    assert_eq!(unit.counters().bits(), 1 << 33 | 0b101);
    assert_eq!(unit.why_absent(), None);
    assert_eq!(registers(&unit, CounterId::general(0)), (0x100, 0x200, 40, Some(0)));
    assert_eq!(registers(&unit, CounterId::general(2)), (0x106, 0x206, 40, None));
    assert_eq!(registers(&unit, CounterId::fixed(1)), (0x1_0300, 0x405, 48, Some(0x4000_0001)));
    assert_eq!(unit.global().unwrap().status.get(), 0x501);
    assert!(unit.is_masked_on_delivery() && unit.can_deny_user_reads());
    assert_eq!(unit.illegal_bits(EventSelect::from_bits(1 << 18 | 0x77)), 1 << 18);
    let generic = |event| unit.generic(event).map(|select| select.event_number());
    assert_eq!(
        GenericEvent::ALL.map(generic),
        [Some(0x11), None, Some(0x13), Some(0x14), Some(0x15), Some(0x16), None]
    );
    let capable = unit.counters_for(EventSelect::from_bits(0x77));
    assert_eq!(capable, unit.counters());
}

#[test]
fn a_unit_has_nothing_of_which_nothing_is_said() {
    let unit = CounterUnit::of(&Made { at_length: false });
    // Fixed counters without registers are none.
    assert_eq!(unit.counters().bits(), 0b101);
    assert_eq!(unit.global(), None);
    assert!(!unit.is_masked_on_delivery() && !unit.can_deny_user_reads());
    assert!(GenericEvent::ALL.iter().all(|event| unit.generic(*event).is_none()));
}
