//! Advancing, overflow, and the interrupt; the filter; state. Intel SDM vol. 3B, "Performance
//! Monitoring"; vol. 3A, "Local Vector Table"; AMD APM vol. 2, the same.

use std::sync::Arc;

use pmu_tests::StateRegisters;
use pmu_tests::software_pmu::*;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::policy::{EventFilter, FilterAction, FilterEntry};
use pmu_virt::{
    Delivery, EventKey, FedEvents, FedEventsError, Feed, PerformanceEntry, PmiOutcome, PmuState,
    Privilege, StateError, VirtualPmu, Write,
};

fn intel(version: u8) -> Configuration {
    Configuration::Intel(IntelConfiguration::new(version, 4, if version == 1 { 0 } else { 3 }))
}

fn amd() -> Configuration {
    Configuration::Amd(pmu_virt::configuration::AmdConfiguration::perf_mon_v2(6))
}

/// A LVT entry that keeps what it is told.
struct Apic {
    entry: u32,
    raised: Vec<Delivery>,
}

impl PerformanceEntry for Apic {
    fn entry(&self) -> u32 {
        self.entry
    }
    fn set_entry(&mut self, entry: u32) {
        self.entry = entry;
    }
    fn raise(&mut self, delivery: Delivery) {
        self.raised.push(delivery);
    }
}

/// A PMU whose counter 0 interrupts after `events` cycles, in either privilege.
fn armed(configuration: Configuration, events: u32) -> VirtualPmu {
    let mut pmu = pmu(configuration);
    let preload = u64::from(events).wrapping_neg() & mask(48);
    match configuration {
        Configuration::Intel(_) => {
            set(&mut pmu, 0xC1, preload);
            set(&mut pmu, 0x186, 0x53_003C);
        }
        _ => {
            set(&mut pmu, 0xC001_0201, preload);
            set(&mut pmu, 0xC001_0200, 0x53_003C);
        }
    }
    pmu
}

/// Vol. 3A, "Local Vector Table": Intel processors set the mask when they deliver.
#[test]
fn delivery_masks_the_entry_on_intel() {
    let mut pmu = armed(intel(2), 1);
    let mut apic = Apic { entry: 0x400, raised: vec![] };
    assert_eq!(pmu.deliver_pmi(&mut apic), PmiOutcome::NotPending);
    assert!(happen(&mut pmu, CYCLES, Privilege::User, 1).pmi);
    assert_eq!(pmu.deliver_pmi(&mut apic), PmiOutcome::Raised(Delivery::NonMaskable));
    assert_eq!((apic.entry, apic.raised.len()), (0x1_0400, 1));
    assert_eq!(pmu.deliver_pmi(&mut apic), PmiOutcome::NotPending, "one for each overflow");
    // Masked: the next one is lost; the status tells.
    set(&mut pmu, 0xC1, 0xFFFF_FFFF);
    assert!(happen(&mut pmu, CYCLES, Privilege::User, 1).pmi);
    assert_eq!(pmu.deliver_pmi(&mut apic), PmiOutcome::Masked);
    apic.entry = 0x400;
    assert_eq!(pmu.deliver_pmi(&mut apic), PmiOutcome::NotPending);
    assert_eq!((apic.raised.len(), get(&pmu, 0x38E)), (1, 1));
}

/// AMD's processors do not.
#[test]
fn delivery_leaves_the_entry_alone_on_amd() {
    let mut pmu = armed(amd(), 1);
    let mut apic = Apic { entry: 0x0EC, raised: vec![] };
    for round in 1..=3 {
        set(&mut pmu, 0xC001_0201, mask(48));
        assert!(happen(&mut pmu, CYCLES, Privilege::User, 1).pmi);
        assert_eq!(pmu.deliver_pmi(&mut apic), PmiOutcome::Raised(Delivery::Fixed(0xEC)));
        assert_eq!((apic.entry, apic.raised.len()), (0x0EC, round));
    }
}

#[test]
fn the_entry_says_how_the_interrupt_is_delivered() {
    for (entry, delivery) in [
        (0x0000_0030, Delivery::Fixed(0x30)),
        (0x0000_0431, Delivery::NonMaskable),
        (0x0000_0200, Delivery::Other(2)),
        (0x0000_0700, Delivery::Other(7)),
    ] {
        let mut pmu = armed(intel(5), 1);
        happen(&mut pmu, CYCLES, Privilege::User, 1);
        let mut apic = Apic { entry, raised: vec![] };
        assert_eq!(pmu.deliver_pmi(&mut apic), PmiOutcome::Raised(delivery));
    }
}

/// INIT masks the LVT entry; a pending interrupt does not outlive it.
#[test]
fn init_drops_a_pending_interrupt_and_no_register() {
    let mut pmu = armed(intel(2), 1);
    happen(&mut pmu, CYCLES, Privilege::User, 1);
    let before = pmu.state();
    pmu.init();
    let mut after = before;
    after.set_pmi_pending(false).unwrap();
    assert_eq!(pmu.state(), after);
}

#[test]
fn advance_stops_at_the_overflow_and_gives_back_the_rest() {
    let mut pmu = armed(intel(2), 40);
    // Another counter that does not interrupt, on another event.
    set(&mut pmu, 0x187, 0x43_00C0);
    let mut span = feed(CYCLES, Privilege::User, 60);
    span.add(events().find(CYCLES).unwrap(), Privilege::Kernel, 40).unwrap();
    span.add(events().find(INSTRUCTIONS).unwrap(), Privilege::User, 10).unwrap();
    let advanced = pmu.advance(&mut span).unwrap();
    assert_eq!((advanced.overflowed, advanced.pmi), (1, true));
    // 40 of 100 cycles, so 4 of 10 instructions, and 24 of the 60 in user mode.
    assert_eq!((get(&pmu, 0xC1), get(&pmu, 0xC2)), (0, 4));
    assert_eq!(span.count(events().find(CYCLES).unwrap(), Privilege::User), 36);
    assert_eq!(span.count(events().find(CYCLES).unwrap(), Privilege::Kernel), 24);
    assert_eq!(span.count(events().find(INSTRUCTIONS).unwrap(), Privilege::User), 6);
    assert!(!pmu.advance(&mut span).unwrap().pmi);
    assert!(span.is_empty());
    assert_eq!((get(&pmu, 0xC1), get(&pmu, 0xC2)), (60, 10));
}

#[test]
fn the_first_overflow_in_time_stops_all_counters_there() {
    let mut pmu = armed(intel(2), 50);
    // Counted before the one that overflows, and after it.
    for (n, select) in [(1, 0x43_003C), (2, 0x53_00C0), (3, 0x43_003C)] {
        set(&mut pmu, 0x186 + n, select);
    }
    set(&mut pmu, 0xC3, 0xFFFF_FFFF - 59);
    let mut span = feed(CYCLES, Privilege::User, 100);
    span.add(events().find(INSTRUCTIONS).unwrap(), Privilege::User, 1000).unwrap();
    // 60 of 1000 instructions come before 50 of 100 cycles.
    assert_eq!(pmu.advance(&mut span).unwrap().overflowed, 0b100);
    assert_eq!(pmu.state().general()[..4], [mask(48) + 1 - 44, 6, 0, 6]);
    assert_eq!(pmu.advance(&mut span).unwrap().overflowed, 0b001);
    pmu.advance(&mut span).unwrap();
    assert_eq!(pmu.state().general()[..4], [50, 100, 940, 100]);
}

#[test]
fn a_counter_before_the_one_that_overflows_stops_with_it() {
    let mut pmu = armed(intel(2), 500);
    set(&mut pmu, 0x187, 0x53_003C);
    set(&mut pmu, 0xC2, 0xFFFF_FFFF - 39);
    set(&mut pmu, 0x38D, 0x3);
    set(&mut pmu, 0x38F, 0x1_0000_0003);
    let mut span = feed(CYCLES, Privilege::User, 100);
    assert_eq!(pmu.advance(&mut span).unwrap().overflowed, 0b10);
    assert_eq!(pmu.state().general()[..2], [mask(48) + 1 - 460, 0]);
}

#[test]
fn counters_that_overflow_at_the_same_time_raise_one_interrupt() {
    let mut pmu = armed(intel(2), 10);
    set(&mut pmu, 0xC2, 0xFFFF_FFFF - 19);
    set(&mut pmu, 0x187, 0x53_00C0);
    let mut span = feed(CYCLES, Privilege::User, 100);
    span.add(events().find(INSTRUCTIONS).unwrap(), Privilege::User, 200).unwrap();
    let advanced = pmu.advance(&mut span).unwrap();
    assert_eq!((advanced.overflowed, advanced.pmi), (0b11, true));
    assert_eq!((get(&pmu, 0xC1), get(&pmu, 0xC2)), (0, 0));
}

#[test]
fn splitting_a_span_anywhere_gives_the_same_registers_at_the_end() {
    let total = 1000;
    let whole = {
        let mut pmu = armed(intel(4), 300);
        let mut span = feed(CYCLES, Privilege::User, total);
        while !span.is_empty() {
            pmu.advance(&mut span).unwrap();
        }
        pmu.state()
    };
    for first in 0..=total {
        let mut pmu = armed(intel(4), 300);
        let mut interrupts = 0;
        for part in [first, total - first] {
            let mut span = feed(CYCLES, Privilege::User, part);
            while !span.is_empty() {
                interrupts += u32::from(pmu.advance(&mut span).unwrap().pmi);
            }
        }
        assert_eq!((pmu.state(), interrupts), (whole, 1), "split at {first}");
    }
}

#[test]
fn several_wraps_in_a_span_make_one_interrupt_and_a_number() {
    let narrow = IntelConfiguration::new(2, 1, 0).with(|intel| intel.general_width = 32);
    for (select, interrupts) in [(0x53_003C, true), (0x43_003C, false)] {
        let mut pmu = pmu(Configuration::Intel(narrow));
        set(&mut pmu, 0x186, select);
        set(&mut pmu, 0xC1, 0xFFFF_FFFF);
        let mut span = feed(CYCLES, Privilege::User, 5 << 32);
        let advanced = pmu.advance_through(&mut span).unwrap();
        assert!(span.is_empty());
        assert_eq!((advanced.overflowed, advanced.pmi, advanced.wraps(0)), (1, interrupts, 5));
        assert_eq!((get(&pmu, 0xC1), pmu.pmi_pending()), (0xFFFF_FFFF, interrupts));
    }
}

#[test]
fn a_counter_of_64_bits_overflows() {
    let wide = IntelConfiguration::new(2, 1, 0).with(|intel| intel.general_width = 64);
    let mut pmu = pmu(Configuration::Intel(wide));
    set(&mut pmu, 0x186, 0x53_003C);
    set(&mut pmu, 0x4C1, u64::MAX - 4);
    let mut span = feed(CYCLES, Privilege::User, u64::MAX);
    let advanced = pmu.advance(&mut span).unwrap();
    assert_eq!((advanced.overflowed, advanced.wraps(0), get(&pmu, 0xC1)), (1, 1, 0));
    assert_eq!(span.count(events().find(CYCLES).unwrap(), Privilege::User), Feed::MAXIMUM - 5);
}

#[test]
fn what_is_not_fed_or_not_allowed_to_count_changes_nothing() {
    let mut pmu = armed(intel(2), 5);
    set(&mut pmu, 0x186, 0x53_00D1);
    let before = pmu.state();
    let mut span = feed(CYCLES, Privilege::User, 1000);
    assert_eq!(pmu.advance(&mut span).unwrap().overflowed, 0);
    assert_eq!((pmu.state(), span.is_empty()), (before, true));
    let unfed: Vec<_> = pmu.unfed().map(|event| event.key).collect();
    assert_eq!(unfed, [EventKey::general(0xD1, 0)]);
}

/// In the midst of a span, with an interrupt that waits and a remainder behind it: what one event of two counts to is
/// what it counts to where both are fed from the start.
#[test]
fn events_exchanged_on_a_live_pmu_lose_no_count_and_no_interrupt() {
    // In order of its number, the new event goes before cycles, between them and instructions, or behind both.
    for number in [0x11, 0x99, 0xD1] {
        let added = EventKey::general(number, 0);
        let both = FedEvents::new(&[CYCLES, INSTRUCTIONS, added]).unwrap();
        for configuration in [intel(2), intel(5), amd()] {
            let mut pmu = armed(configuration, 1_000);
            let mut span = feed(CYCLES, Privilege::Kernel, 2_500);
            span.add(events().find(INSTRUCTIONS).unwrap(), Privilege::User, 250).unwrap();
            assert!(pmu.advance(&mut span).unwrap().pmi);
            let (select, counter) = match configuration {
                Configuration::Intel(_) => (0x187, 0xC2),
                _ => (0xC001_0202, 0xC001_0203),
            };
            set(&mut pmu, select, u64::from(number) | 0x53_0000);
            assert_eq!(pmu.unfed().map(|event| event.key).collect::<Vec<_>>(), [added]);
            let before = pmu.state();

            pmu.set_events(both, &mut span).unwrap();
            assert_eq!((pmu.state(), pmu.pmi_pending()), (before, true));
            assert_eq!((pmu.unfed().count(), *pmu.events()), (0, both));
            for (key, privilege, left) in [
                (CYCLES, Privilege::Kernel, 1_500),
                (CYCLES, Privilege::User, 0),
                (INSTRUCTIONS, Privilege::User, 150),
                (added, Privilege::User, 0),
            ] {
                assert_eq!(span.count(both.find(key).unwrap(), privilege), left, "{key:?}");
            }
            span.add(both.find(added).unwrap(), Privilege::User, 7).unwrap();
            assert_eq!(pmu.advance(&mut span).unwrap().overflowed, 0);
            assert_eq!(get(&pmu, counter), 7);
            let cycles = if select == 0x187 { 0xC1 } else { 0xC001_0201 };
            assert_eq!(get(&pmu, cycles), 1_500);
        }
    }
}

#[test]
fn events_are_not_exchanged_while_a_remainder_of_one_would_be_lost() {
    let mut pmu = armed(intel(5), 1_000);
    let mut span = feed(CYCLES, Privilege::Kernel, 2_500);
    assert!(pmu.advance(&mut span).unwrap().pmi);
    let (before, held) = (pmu.state(), span.clone());
    let instructions = FedEvents::new(&[INSTRUCTIONS]).unwrap();
    assert_eq!(pmu.set_events(instructions, &mut span), Err(FedEventsError::Remainder));
    let mut foreign = Feed::new(&instructions);
    assert_eq!(pmu.set_events(instructions, &mut foreign), Err(FedEventsError::OtherEvents));
    assert_eq!((pmu.state(), &span, *pmu.events()), (before, &held, events()));
    assert_eq!(pmu.advance(&mut span).unwrap().overflowed, 0);
    assert_eq!((get(&pmu, 0xC1), span.is_empty()), (1_500, true));
    pmu.set_events(instructions, &mut span).unwrap();
    assert_eq!(pmu.unfed().map(|event| event.key).collect::<Vec<_>>(), [CYCLES]);
}

#[test]
fn next_overflow_is_as_far_as_nothing_must_be_raised() {
    for configuration in [intel(1), intel(2), intel(5), amd()] {
        let cycles = events().find(CYCLES).unwrap();
        let mut pmu = armed(configuration, 77);
        for privilege in [Privilege::User, Privilege::Kernel] {
            let headroom = pmu.next_overflow().of(cycles, privilege).unwrap();
            let mut early = pmu.clone();
            assert!(!happen(&mut early, CYCLES, privilege, headroom - 1).pmi);
            let mut due = pmu.clone();
            assert!(happen(&mut due, CYCLES, privilege, headroom).pmi);
            assert_eq!(headroom, 77);
        }
        let instructions = events().find(INSTRUCTIONS).unwrap();
        assert_eq!(pmu.next_overflow().of(instructions, Privilege::User), None);
    }
}

#[test]
fn next_overflow_knows_of_the_nearest_counter_in_each_privilege() {
    let mut pmu = pmu(intel(2));
    for (n, select, missing) in
        [(0, 0x51_003C, 900), (1, 0x52_003C, 50), (2, 0x51_003C, 800), (3, 0x43_003C, 1)]
    {
        set(&mut pmu, 0x186 + n, select);
        set(&mut pmu, 0x4C1 + n, mask(48) + 1 - missing);
    }
    set(&mut pmu, 0x38D, 0xA00);
    set(&mut pmu, 0x30B, mask(48) - 6);
    set(&mut pmu, 0x38F, 0x4_0000_000F);
    let headroom = pmu.next_overflow();
    let cycles = events().find(CYCLES).unwrap();
    assert_eq!(headroom.of(cycles, Privilege::User), Some(800));
    assert_eq!(headroom.of(cycles, Privilege::Kernel), Some(50));
    let fixed = events().find(EventKey::fixed(2).unwrap()).unwrap();
    assert_eq!(headroom.of(fixed, Privilege::User), Some(7));
    assert_eq!(headroom.of(fixed, Privilege::Kernel), None);
}

/// `Feed::add` refuses such an event, so no amount of it can be due.
#[test]
fn the_budget_of_an_event_of_other_fed_events_is_nothing() {
    let others = FedEvents::new(&[CYCLES, INSTRUCTIONS.edge()]).unwrap();
    let foreign = others.find(CYCLES).unwrap();
    let mut pmu = armed(intel(2), 77);
    for privilege in [Privilege::User, Privilege::Kernel] {
        assert_eq!(pmu.next_overflow().of(foreign, privilege), Some(0));
    }
}

/// 2⁶⁴ events more than a counter of 64 bits holds overflow it: 2⁶⁴ - 1 from 1 on, which can be told;
/// from 0 on one more, which cannot.
#[test]
fn next_overflow_of_a_counter_of_64_bits_is_told_up_to_what_can_be() {
    let configuration = IntelConfiguration::new(2, 2, 1).with(|intel| {
        intel.general_width = 64;
        intel.fixed_width = 64;
    });
    let cycles = events().find(CYCLES).unwrap();
    let fixed = events().find(EventKey::fixed(0).unwrap()).unwrap();
    for (value, told) in
        [(0, None), (1, Some(u64::MAX)), (2, Some(u64::MAX - 1)), (u64::MAX, Some(1))]
    {
        let mut pmu = pmu(Configuration::Intel(configuration));
        set(&mut pmu, 0x38F, 0x1_0000_0003);
        set(&mut pmu, 0x186, 0x53_003C);
        set(&mut pmu, 0x4C1, value);
        set(&mut pmu, 0x38D, 0xA);
        set(&mut pmu, 0x309, value);
        let headroom = pmu.next_overflow();
        assert_eq!(headroom.of(cycles, Privilege::User), told, "{value}");
        assert_eq!(headroom.of(cycles, Privilege::Kernel), told, "{value}");
        assert_eq!(headroom.of(fixed, Privilege::User), told, "{value}");
        assert_eq!(headroom.of(fixed, Privilege::Kernel), None, "it does not count there");
        // Another counter of the event is nearer.
        set(&mut pmu, 0x187, 0x51_003C);
        set(&mut pmu, 0x4C2, u64::MAX - 4);
        let nearer = told.map_or(5, |told| told.min(5));
        assert_eq!(pmu.next_overflow().of(cycles, Privilege::User), Some(nearer), "{value}");
        assert_eq!(pmu.next_overflow().of(cycles, Privilege::Kernel), told, "{value}");
    }
}

/// As KVM keeps a filter for each machine and not for each processor.
#[test]
fn the_pmus_of_a_machine_share_one_filter_by_a_handle() {
    let entries = [FilterEntry::new(0x3C, 0)];
    let deny = Arc::new(EventFilter::<300>::compile(FilterAction::Deny, 0, &entries).unwrap());
    let mut pmus: Vec<VirtualPmu<Arc<EventFilter<300>>>> = (0..4)
        .map(|_| VirtualPmu::with_policy(intel(2), events(), Arc::clone(&deny)).unwrap())
        .collect();
    assert!(size_of_val(&pmus[0]) < 1024);
    for pmu in &mut pmus {
        let _ = pmu.write(0x186, 0x53_003C);
        let _ = pmu.write(0x187, 0x53_00C0);
        assert_eq!(pmu.running().map(|event| event.counter).collect::<Vec<_>>(), [1]);
    }
    let allow = Arc::new(EventFilter::compile(FilterAction::Allow, 0, &entries).unwrap());
    pmus[1].set_policy(Arc::clone(&allow));
    assert_eq!(pmus[1].running().map(|event| event.counter).collect::<Vec<_>>(), [0]);
    assert_eq!((Arc::strong_count(&deny), Arc::strong_count(&allow)), (4, 2));
}

/// Linux, Documentation/virt/kvm/api.rst, KVM_SET_PMU_EVENT_FILTER.
#[test]
fn a_filtered_event_can_be_programmed_and_counts_nothing() {
    let entries = [FilterEntry::new(0x3C, 0)];
    let deny = EventFilter::<1>::compile(FilterAction::Deny, 0b10, &entries).unwrap();
    let nothing = EventFilter::compile(FilterAction::Deny, 0, &[]).unwrap();
    let mut pmu = VirtualPmu::with_policy(intel(2), events(), deny).unwrap();
    for (register, value) in
        [(0x186, 0x43_003C), (0x187, 0x43_00C0), (0x38D, 0x33), (0x38F, 0x3_0000_0003)]
    {
        assert_eq!(pmu.write(register, value).answer, Write::Done);
    }
    let mut span = Feed::new(&events());
    for key in [CYCLES, INSTRUCTIONS] {
        span.add(events().find(key).unwrap(), Privilege::User, 1).unwrap();
    }
    let _ = pmu.advance(&mut span.clone()).unwrap();
    let counts = |pmu: &VirtualPmu<EventFilter<1>>| {
        let state = pmu.state();
        [state.general()[0], state.general()[1], state.fixed()[0], state.fixed()[1]]
    };
    assert_eq!(counts(&pmu), [0, 1, 1, 0]);
    // A new policy is for counters that run already.
    pmu.set_policy(nothing);
    let _ = pmu.advance(&mut span.clone()).unwrap();
    assert_eq!(counts(&pmu), [1, 2, 2, 1]);
    pmu.set_policy(deny);
    pmu.advance(&mut span).unwrap();
    assert_eq!(counts(&pmu), [1, 3, 3, 1]);
}

#[test]
fn a_state_comes_back_as_it_was() {
    for configuration in matrix() {
        let mut original = pmu(configuration);
        for address in (0xC1..0xC9).chain(0x186..0x18E).chain(0x309..0x311).chain(0x38D..0x393) {
            let _ = original.write(address, 0x13);
        }
        for address in (0xC001_0000..0xC001_0008).chain(0xC001_0200..0xC001_0210) {
            let _ = original.write(address, 0x53_003C);
        }
        let _ = original.write(0x1D9, 1 << 12);
        let restored =
            VirtualPmu::restore(&original.state(), original.configuration(), events()).unwrap();
        assert_eq!(restored.state(), original.state());
        // Derived state is derived again: both continue alike.
        let (mut one, mut other) = (original, restored);
        happen(&mut one, CYCLES, Privilege::User, 1 << 48);
        happen(&mut other, CYCLES, Privilege::User, 1 << 48);
        assert_eq!(one.state(), other.state());
        assert!(one.running().eq(other.running()));
    }
}

#[test]
fn a_state_that_cannot_be_is_refused() {
    let impossible = Configuration::Intel(IntelConfiguration::new(9, 4, 3));
    assert!(PmuState::new(impossible).is_err());
    let mut good = armed(intel(2), 5).state();
    for (address, bits) in [
        (0x187, 1 << 21),
        (0xC1, 1 << 48),
        (0x30B, 1 << 48),
        (0x38D, 0b100),
        (0x38D, 1 << 12),
        (0x38F, 1 << 4),
        (0x38E, 1 << 59),
        (0x38E, 1 << 63),
        (0x1D9, 1),
    ] {
        let before = good;
        let refused = good.set_register(address, bits);
        assert_eq!(refused, Err(StateError::Impossible { address, bits }));
        assert_eq!(good, before);
    }
    // Counters that are not there, and registers that hold nothing.
    for address in [0x18A, 0xC8, 0x30C, 0x390, 0x391, 0x345, 0x1A0, 0x10, 0xC001_0200] {
        assert_eq!(good.set_register(address, 0), Err(StateError::NoRegister(address)));
        assert_eq!(good.register(address), None);
    }
    let mut hidden = pmu(HIDDEN[0]).state();
    assert_eq!(hidden.set_pmi_pending(true), Err(StateError::NoInterrupt));
}

/// A forged state does not choose the guest's PMU.
#[test]
fn a_state_of_another_pmu_is_refused() {
    use pmu_virt::StateError;
    use pmu_virt::configuration::{Configuration, IntelConfiguration, Vendor};
    let other = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    let state = VirtualPmu::new(other, events()).unwrap().state();
    for told in [
        Configuration::hidden(Vendor::Intel),
        Configuration::Intel(IntelConfiguration::new(5, 4, 4)),
    ] {
        let refused = VirtualPmu::restore(&state, told, events()).map(|_| ());
        assert_eq!(refused, Err(StateError::OtherConfiguration(other)));
    }
    assert!(VirtualPmu::restore(&state, other, events()).is_ok());
}
