//! Guests on real counters, which the mock plays, against a guest of the software alone with the same events.

use super::machine::*;
use pmu_core::{
    CounterSet, LentCounters, MsrAddress, MsrBackend, MsrErrorKind, MsrUpdate, PmcIndex,
};
use pmu_tests::software_pmu;
use pmu_virt::mock::Fault;
use pmu_virt::{
    AmdConfiguration, Configuration, EventFilter, FedEvents, FilterAction, FilterEntry,
    GuestInterrupts, HostCounters, IntelConfiguration, MediationError, RegisterKind, Vendor,
    VirtualPmu, Write,
};
use proptest::prelude::*;

/// The mock, with something that happens before each access.
struct Disturbed<'d> {
    mock: &'d Mock<'static>,
    before: &'d dyn Fn(&Mock<'static>),
}

impl MsrBackend for Disturbed<'_> {
    type Error = MsrErrorKind;

    fn read(&self, address: MsrAddress) -> Result<u64, MsrErrorKind> {
        (self.before)(self.mock);
        self.mock.read(address)
    }

    fn write(&self, address: MsrAddress, value: u64) -> Result<(), MsrErrorKind> {
        (self.before)(self.mock);
        self.mock.write(address, value)
    }

    fn read_pmc(&self, index: PmcIndex) -> Result<u64, MsrErrorKind> {
        (self.before)(self.mock);
        self.mock.read_pmc(index)
    }

    fn update(&self, update: MsrUpdate) -> Result<u64, MsrErrorKind> {
        self.mock.update(update)
    }
}

/// One step of a guest and its hypervisor.
type Step = (u8, u8, u16, u64);

fn run((host, given): (Configuration, Configuration), intercepts_all: bool, program: &[Step]) {
    let mut machine = Machine::new(host, given);
    machine.intercepts_all = intercepts_all;
    let mut alone = VirtualPmu::new(given, events()).unwrap();
    let mut interrupts = 0;
    let (general, fixed) = match given {
        Configuration::Intel(intel) => (intel.general.count_ones(), intel.fixed.count_ones()),
        _ => (
            given
                .registers()
                .filter(|r| {
                    r.exists && r.kind == RegisterKind::EventSelect && r.address >= 0xC001_0200
                })
                .count() as u32,
            0,
        ),
    };
    let intel = given.vendor() == Vendor::Intel;
    let mask = ((1 << general) - 1) | (((1 << fixed) - 1) << 32);
    // Bits of the status that are no counter's.
    let bits = [55, 58, 60, 61, 62];
    let others = |small: u16| {
        let chosen = bits.iter().enumerate().filter(|(n, _)| intel && small >> n & 1 != 0);
        chosen.fold(0u64, |all, (_, bit)| all | 1 << bit)
    };
    let seen =
        [0x38D, 0x38E, 0x38F, 0x390, 0x391, 0x392, 0x186, 0x4C1, 0xC2, 0x309, 0x345, 0xC000_0300]
            .into_iter()
            .chain([0xC000_0301, 0xC000_0303, 0xC001_0200, 0xC001_0205, 0xC001_0004]);
    for (operation, which, small, word) in program {
        let n = u32::from(*which) % general;
        let select_of = |n| if intel { 0x186 + n } else { 0xC001_0200 + 2 * n };
        let value_of = |n| if intel { 0x4C1 + n } else { 0xC001_0201 + 2 * n };
        let near = |word: u64| word.wrapping_neg() & 0xFFFF_FFFF_FFFF;
        let selects = [0x53_003C, 0x43_003C, 0x52_00C0, 0x42_00C0, 0, 0x51_003C, 0x53_00D0];
        let write = match operation % 10 {
            0 | 1 => Some((select_of(n), selects[usize::from(*small) % selects.len()])),
            2 => Some((value_of(n), near(word & 0x3FFF))),
            3 if fixed != 0 => Some((0x309 + u32::from(*which) % fixed, near(word & 0x3FFF))),
            4 if fixed != 0 => {
                let fields = (1 << (4 * fixed)) - 1;
                Some((0x38D, word & fields & 0xBBBB_BBBB))
            }
            5 => {
                let register = if intel { GLOBAL_CONTROL } else { 0xC000_0301 };
                Some((register, (word | word >> 20) & mask))
            }
            6 => {
                let register = if intel { 0x390 } else { 0xC000_0302 };
                // The interrupt of what it acknowledges has come.
                if machine.loaded.is_some() {
                    machine.arrive();
                    machine.deliver();
                }
                Some((register, word & mask | others(*small)))
            }
            8 if *which > 200 => {
                let register = if intel { 0x391 } else { 0xC000_0303 };
                Some((register, word & mask | others(*small)))
            }
            _ => None,
        };
        if machine.loaded.is_none() {
            machine.enter();
        }
        match write {
            Some((address, value)) => {
                let expected = alone.write(address, value);
                assert_eq!(machine.guest_writes(address, value), expected.answer, "{address:#X}");
            }
            None if operation % 10 == 7 => {
                machine.leave();
                assert_eq!(machine.guest.state(), alone.state());
                assert_eq!(machine.interrupts, interrupts, "{host:?}");
            }
            None => {
                let (cycles, instructions) = (u64::from(*small), word & 0xFFF);
                machine.happen(cycles, instructions, which & 1 == 0);
                let mut feed = in_software(cycles, instructions);
                while !feed.is_empty() {
                    if alone.advance(&mut feed).unwrap().pmi {
                        alone.set_pmi_pending(false);
                        interrupts += 1;
                    }
                }
                // Two overflows of which the second comes before the first one's interrupt are one interrupt.
                if machine.in_flight {
                    machine.arrive();
                    machine.deliver();
                }
            }
        }
        if machine.loaded.is_some() {
            for register in seen.clone() {
                assert_eq!(machine.guest_reads(register), alone.read(register), "{register:#X}");
            }
            for ecx in [0, 1, 9, 0x4000_0000, 0x4000_0009, 0x2000_0000] {
                let expected = alone.read_pmc(ecx, pmu_virt::Mode::KERNEL);
                assert_eq!(machine.guest_reads_pmc(ecx), expected, "RDPMC {ecx:#X}");
            }
        }
    }
    machine.leave();
    assert_eq!(machine.guest.state(), alone.state());
    assert_eq!(machine.interrupts, interrupts, "{host:?}");
    assert_eq!(machine.mock.breach(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_guest_on_real_counters_is_as_one_of_software(
        pair in 0..6usize,
        intercepts_all: bool,
        program in prop::collection::vec(any::<Step>(), 1..80),
    ) {
        run(pairs()[pair], intercepts_all, &program);
    }
}

/// The overflow of the last instruction before the exit raises one interrupt, which comes while the state is put
/// back, at each access, or afterwards.
#[test]
fn an_overflow_in_the_guest_is_delivered_once() {
    for (host, given) in pairs() {
        for comes in [true, false] {
            let mut machine = busy(host, given);
            machine.enter();
            machine.happen(100, 0, comes);
            assert_eq!(machine.in_flight, !comes);
            machine.leave();
            assert_eq!(machine.interrupts, 1, "{host:?} {comes}");
            // Back on the counters, an overflow that the guest has not acknowledged does not interrupt again.
            machine.enter();
            machine.happen(50, 50, true);
            machine.leave();
            assert_eq!(machine.interrupts, 1);
            let (status, counter) = if machine.vendor == Vendor::Intel {
                (0x38E, 0xC1)
            } else {
                (0xC000_0300, 0xC001_0004)
            };
            assert_eq!(machine.guest.read(status), pmu_virt::Read::Value(1));
            assert_eq!(machine.guest.read(counter), pmu_virt::Read::Value(50));
        }
    }
}

/// The guest writes another counter's control after the overflow, before the interrupt.
#[test]
fn an_overflow_whose_interrupt_has_not_come_is_announced_also_after_a_control_is_written() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        machine.enter();
        machine.happen(100, 0, false);
        let third = if machine.vendor == Vendor::Intel { 0x188 } else { 0xC001_0204 };
        assert_eq!(machine.guest_writes(third, 0x53_00C0), Write::Done);
        let (saved, loaded) = (machine.saved(), machine.loaded.take().unwrap());
        machine.set_global_control(0);
        let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock).unwrap();
        assert!(put.interrupt_is_coming && machine.guest.pmi_pending(), "{host:?}");
    }
}

/// After a guest no counter is armed: a host that enables all of them counts nothing.
#[test]
fn a_guest_leaves_nothing_armed() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        if machine.vendor == Vendor::Intel {
            assert_eq!(machine.guest.write(0x38D, 0xBBB).answer, Write::Done);
        }
        machine.enter();
        machine.happen(99, 33, true);
        machine.leave();
        let control = if machine.vendor == Vendor::Intel { GLOBAL_CONTROL } else { 0xC000_0301 };
        machine.mock.with_pmu(|pmu| {
            assert_eq!(pmu.write(control, 0xF).answer, Write::Done);
            assert_eq!(pmu.running().count(), 0, "{host:?}");
        });
    }
}

/// A bit of the status that the guest sets itself does not interrupt.
#[test]
fn a_status_that_the_guest_sets_is_no_interrupt() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        machine.enter();
        let set = if machine.vendor == Vendor::Intel { 0x391 } else { 0xC000_0303 };
        assert_eq!(machine.guest_writes(set, 0b11), Write::Done);
        machine.leave();
        assert_eq!(machine.interrupts, 0, "{host:?}");
        let status = if machine.vendor == Vendor::Intel { 0x38E } else { 0xC000_0300 };
        assert_eq!(software_pmu::get(&machine.guest, status), 0b11);
    }
}

/// The status register's other bits are the host's: Processor Trace (55), LBRs (58), DS (62).
#[test]
fn the_hosts_bits_of_the_status_are_untouched() {
    let (host, given) = pairs()[1];
    let hosts = 1 << 55 | 1 << 58 | 1 << 62;
    let mut machine = busy(host, given);
    assert_eq!(machine.guest.host_write(0x38E, 1 << 60).answer, Write::Done);
    machine.mock.with_pmu(|pmu| assert_eq!(pmu.write(0x391, hosts).answer, Write::Done));
    machine.enter();
    machine.happen(100, 0, true);
    machine.leave();
    machine.mock.with_pmu(|pmu| assert_eq!(software_pmu::get(pmu, 0x38E), hosts));
    assert_eq!(software_pmu::get(&machine.guest, 0x38E), 1 << 60 | 1, "the guest's own stays");
}

/// Another guest, of the same PMU or a copy, neither gets the loaded state nor writes to the counters.
#[test]
fn what_is_loaded_is_put_back_into_its_own_guest() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        machine.enter();
        machine.happen(50, 50, true);
        let saved = machine.saved();
        let mut loaded = machine.loaded.take().unwrap();
        let of_same_kind = VirtualPmu::new(given, events()).unwrap();
        for mut other in [of_same_kind, machine.guest.clone()] {
            let before = other.state();
            let (Machine { counters, mock, .. }, no) = (&machine, MediationError::NotTheLoaded);
            let select = if machine.vendor == Vendor::Intel { 0x186 } else { 0xC001_0200 };
            assert_eq!(counters.write(&mut loaded, &mut other, select, 0, mock), Err(no));
            assert_eq!(counters.read(&loaded, &other, select, mock), Err(no));
            assert_eq!(counters.read_pmc(&loaded, &other, 0, software_pmu::KERNEL, mock), Err(no));
            let (again, error) = counters.put(loaded, saved, &mut other, mock).unwrap_err();
            assert_eq!((error, other.state()), (no, before), "{host:?}");
            loaded = again;
        }
        machine.set_global_control(0);
        let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock);
        assert!(!put.unwrap().interrupt_is_coming);
        let counter = if machine.vendor == Vendor::Intel { 0x4C1 } else { 0xC001_0201 };
        let value = software_pmu::get(&machine.guest, counter);
        assert_eq!(value, (1 << 48) - 50, "{host:?}: nothing was lost");
    }
}

/// Selects, fixed control and values of the real counters that a guest had.
fn left_over(machine: &Machine<'_>) -> u64 {
    let registers: Vec<u32> = match machine.vendor {
        Vendor::Intel => {
            (0x186..0x18A).chain(0x4C1..0x4C5).chain(0x309..0x30C).chain([0x38D, 0x38E]).collect()
        }
        Vendor::Amd => (0xC001_0200..0xC001_020C).chain([0xC000_0300, 0xC000_0301]).collect(),
    };
    let enabled = |register: u32, value: u64| match register {
        // A select that is not enabled counts nothing.
        0x186..0x18E => value & 1 << 22,
        0xC001_0200..0xC001_0210 if register & 1 == 0 => value & 1 << 22,
        _ => value,
    };
    machine.mock.with_pmu(|pmu| {
        registers
            .iter()
            .fold(0, |all, register| all | enabled(*register, software_pmu::get(pmu, *register)))
    })
}

/// The policy forbids the event by now, or the guest was reset: the counter stayed armed.
#[test]
fn a_put_disarms_what_was_loaded_and_not_what_the_guest_has_then() {
    let filter =
        |action, entries: &[FilterEntry]| EventFilter::<2>::compile(action, 0, entries).unwrap();
    for (host, given) in pairs() {
        for resets in [false, true] {
            let mut machine = Machine::new(host, given);
            let allow = filter(FilterAction::Deny, &[]);
            let mut guest = VirtualPmu::with_policy(given, events(), allow).unwrap();
            let intel = machine.vendor == Vendor::Intel;
            let (select, counter) = if intel { (0x186, 0x4C1) } else { (0xC001_0200, 0xC001_0201) };
            assert_eq!(guest.write(select, 0x53_003C).answer, Write::Done);
            if intel {
                assert_eq!(guest.write(0x38D, 0x33).answer, Write::Done);
            }
            let loaded = machine.counters.load(lent(), &mut guest, machine.cell, &machine.mock);
            let loaded = loaded.unwrap();
            machine.set_global_control(loaded.global_control());
            machine.happen(40, 40, true);
            let saved = machine.saved();
            machine.set_global_control(0);
            if resets {
                guest.reset();
            } else {
                guest.set_policy(filter(FilterAction::Allow, &[]));
            }
            let put = machine.counters.put(loaded, saved, &mut guest, &machine.mock);
            assert!(!put.unwrap().interrupt_is_coming);
            assert_eq!(left_over(&machine), 0, "{host:?}, {resets}");
            // A guest that was reset has no count from before.
            let counted = pmu_virt::Read::Value(if resets { 0 } else { 40 });
            let value = guest.read(counter);
            assert_eq!(value, counted, "{host:?}, {resets}");
        }
    }
}

/// RDPMC of the host's user mode, or of the next guest's before it is loaded, finds nothing of a guest's.
#[test]
fn no_value_of_a_guests_stays_in_a_counter() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        machine.enter();
        machine.happen(99, 33, true);
        assert_ne!(left_over(&machine), 0);
        machine.leave();
        assert_eq!(left_over(&machine), 0, "{host:?}");
    }
}

/// The same counter overflows a second time: the guest has acknowledged the first overflow, unseen, and the second
/// interrupt is on its way when the state is put back. Another guest is loaded then.
#[test]
fn a_second_overflow_on_the_way_reaches_its_own_guest() {
    for (host, given) in pairs() {
        for after_next in [false, true] {
            let mut machine = busy(host, given);
            machine.enter();
            machine.happen(100, 0, true);
            assert_eq!(machine.interrupts, 1);
            let (clear, value) = if machine.vendor == Vendor::Intel {
                (0x390, 0x4C1)
            } else {
                (0xC000_0302, 0xC001_0201)
            };
            assert_eq!(machine.guest_writes(clear, 1), Write::Done);
            assert_eq!(machine.guest_writes(value, (1 << 48) - 10), Write::Done);
            machine.happen(10, 0, false);
            assert!(machine.in_flight, "{host:?}");
            let (saved, loaded) = (machine.saved(), machine.loaded.take().unwrap());
            machine.set_global_control(0);
            let put =
                machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock).unwrap();
            // It cannot be told from the first one.
            assert!(!put.interrupt_is_coming);
            let (mut next, of_next) =
                (VirtualPmu::new(given, events()).unwrap(), GuestInterrupts::new());
            let mut window = LentCounters::unowned(CounterSet::ALL, 0);
            if after_next {
                // The handler asks the last guest until the next one is about to be loaded.
                assert!(
                    !machine.counters.interrupted(&of_next, &machine.mock),
                    "not the next one's"
                );
            }
            machine.arrive();
            let loaded =
                machine.counters.load(&mut window, &mut next, &of_next, &machine.mock).unwrap();
            let _ = machine.counters.put(loaded, 0, &mut next, &machine.mock).unwrap();
            assert!(!next.pmi_pending() && !of_next.is_pending(), "{host:?}");
            machine.deliver();
            assert_eq!(machine.interrupts, 2, "{host:?}");
        }
    }
}

/// An interrupt that comes when nothing of the guest's has overflowed is not the guest's: another source's NMI.
#[test]
fn an_interrupt_of_another_source_is_not_the_guests() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        let asks =
            |machine: &Machine<'_>| machine.counters.interrupted(machine.cell, &machine.mock);
        assert!(!asks(&machine), "{host:?}: not loaded yet");
        machine.enter();
        machine.happen(99, 33, true);
        assert!(!asks(&machine), "{host:?}: loaded");
        machine.leave();
        machine.mock.clear();
        assert!(!asks(&machine), "{host:?}: put back");
        assert_eq!(machine.mock.accesses().total(), 0, "{host:?}");
        machine.deliver();
        assert_eq!(machine.interrupts, 0);
    }
}

/// The announced interrupt is dropped as it comes. A later one is not taken for it.
#[test]
fn an_announced_interrupt_is_claimed_once() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        machine.enter();
        machine.happen(100, 0, false);
        let (saved, loaded) = (machine.saved(), machine.loaded.take().unwrap());
        machine.set_global_control(0);
        let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock).unwrap();
        assert!(put.interrupt_is_coming && machine.guest.pmi_pending(), "{host:?}");
        machine.guest.set_pmi_pending(false);
        let asks = || machine.counters.interrupted(machine.cell, &machine.mock);
        assert_eq!([asks(), asks()], [true, false], "{host:?}");
        assert!(!machine.cell.deliver_to(&mut machine.guest), "{host:?}: it was the first one");
    }
}

/// The guest's counters are those that the session lent, and no others.
#[test]
fn counters_that_were_not_lent_are_not_loaded() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        let mut general = LentCounters::unowned(CounterSet::from_bits(0b11), 0);
        machine.mock.clear();
        let load =
            machine.counters.load(&mut general, &mut machine.guest, machine.cell, &machine.mock);
        let Err(MediationError::NotLent(missing)) = load.map(|_| ()) else { panic!("{host:?}") };
        assert!(!missing.is_empty() && (missing & CounterSet::from_bits(0b11)).is_empty());
        assert_eq!(machine.mock.accesses().total(), 0);
        general.add_unowned(missing);
        let load =
            machine.counters.load(&mut general, &mut machine.guest, machine.cell, &machine.mock);
        assert!(load.is_ok(), "{host:?}");
    }
}

/// A processor with ten general counters, and one with PERF_METRICS: no guest gets at what is not offered.
#[test]
fn a_processor_with_more_than_is_offered_has_more_intercepted() {
    let leaf = |general: u32, leaf: u32| match leaf {
        0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
        0x0A => [0x0730_0005 | general << 8, 0, 0b111, 48 << 5],
        _ => [0; 4],
    };
    let metrics = 1 << 15;
    for (general, capabilities, has_more) in
        [(8, 1 << 13, false), (10, 1 << 13, true), (8, 1 << 13 | metrics, true)]
    {
        let counters = HostCounters::from_cpuid(|of, _| leaf(general, of), capabilities).unwrap();
        let expected = IntelConfiguration::new(5, 8, 3).with(|intel| intel.any_thread = false);
        assert_eq!(counters.guest(), Configuration::Intel(expected));
        let mut guest = VirtualPmu::new(counters.guest(), events()).unwrap();
        assert_eq!(counters.intercepts_rdpmc(), has_more, "{general}");
        for register in [0x38F, 0x38E, 0x390] {
            assert_eq!(counters.intercepts(&guest, register), has_more, "{general}, {register:#X}");
        }
        for register in [0x186, 0x38D, 0x391, 0x392, 0x1D9, 0x329, 0x10, 0xC9, 0x345] {
            assert!(counters.intercepts(&guest, register), "{register:#X}");
        }
        assert!(!counters.intercepts(&guest, 0xC8) && !counters.intercepts(&guest, 0x4C1));
        let mock = processor(counters.guest());
        let loaded = counters.load(lent(), &mut guest, Box::leak(Box::default()), &mock).unwrap();
        let pmc =
            |ecx| counters.read_pmc(&loaded, &guest, ecx, software_pmu::KERNEL, &mock).unwrap();
        assert_eq!([8, 0x2000_0000].map(pmc), [pmu_virt::Read::GeneralProtection; 2]);
        assert_eq!(pmc(7), pmu_virt::Read::Value(0));
    }
    // A configuration does not tell of PERF_METRICS.
    let unknown = HostCounters::new(Configuration::Intel(IntelConfiguration::new(5, 8, 3)));
    assert!(unknown.unwrap().intercepts_rdpmc());
    let amd = |leaf: u32, _: u32| match leaf {
        0 => [0x10, 0x6874_7541, 0x444D_4163, 0x6974_6E65],
        0x8000_0000 => [0x8000_0028, 0, 0, 0],
        0x8000_0001 => [0, 0, 1 << 23 | 1 << 2, 0],
        0x8000_0022 => [1, 12, 0, 0],
        _ => [0; 4],
    };
    let counters = HostCounters::from_cpuid(amd, 0).unwrap();
    assert_eq!(counters.guest(), Configuration::Amd(AmdConfiguration::perf_mon_v2(8)));
    assert!(counters.intercepts_rdpmc());
}

/// A register that faults at any access: a typed error, no counter that counts or is armed, and success when it is
/// tried again.
#[test]
fn a_fault_at_any_access_loses_nothing() {
    for (host, given) in pairs() {
        let whole = {
            let mut machine = busy(host, given);
            machine.enter();
            machine.happen(99, 33, true);
            machine.leave();
            machine.guest.state()
        };
        let mut faults = [0, 0];
        for at in 1.. {
            let mut machine = busy(host, given);
            let before = machine.guest.state();
            machine.mock.inject(Fault::At(at));
            let loaded =
                machine.counters.load(lent(), &mut machine.guest, machine.cell, &machine.mock);
            let Err(error) = loaded.map(|_| ()) else { break };
            assert!(
                matches!(error, MediationError::Access(fault) if fault.kind == MsrErrorKind::GeneralProtection)
            );
            faults[0] += 1;
            assert_eq!(machine.guest.state(), before);
            assert_eq!(left_over(&machine), 0, "{host:?} at {at}");
            let foreign = machine.counters.interrupted(machine.cell, &machine.mock);
            assert!(!foreign, "{host:?} at {at}: it is not loaded");
            machine.enter();
            machine.happen(99, 33, true);
            machine.leave();
            assert_eq!(machine.guest.state(), whole, "{host:?} at {at}");
        }
        for at in 1.. {
            let mut machine = busy(host, given);
            machine.enter();
            machine.happen(99, 33, true);
            let saved = machine.saved();
            machine.set_global_control(0);
            let loaded = machine.loaded.take().unwrap();
            machine.mock.inject(Fault::At(at));
            let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock);
            let (loaded, error) = match put {
                Err(failed) => failed,
                // A write that disarms is tried again.
                Ok(_) if at < machine.mock.accesses().total() => continue,
                Ok(_) => break,
            };
            assert!(matches!(error, MediationError::Access(_)));
            faults[1] += 1;
            let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock);
            assert!(!put.unwrap().interrupt_is_coming);
            assert_eq!(machine.guest.state(), whole, "{host:?} at {at}");
            assert_eq!(left_over(&machine), 0, "{host:?} at {at}");
        }
        assert!(faults[0] > 8 && faults[1] > 4, "{host:?}: {faults:?}");
    }
}

/// A register stays faulted while a guest is loaded, or put back: what could not be disarmed is known to the lender.
#[test]
fn a_fault_that_stays_is_left_to_the_end_of_the_window() {
    for (host, given) in pairs() {
        for at in 1..12 {
            let mut machine = busy(host, given);
            let before = machine.guest.state();
            machine.mock.inject(Fault::From(at));
            let loaded =
                machine.counters.load(lent(), &mut machine.guest, machine.cell, &machine.mock);
            assert!(loaded.is_err(), "{host:?} from {at}");
            assert_eq!(machine.guest.state(), before);
            let running = machine.mock.with_pmu(|pmu| pmu.running().count());
            assert_eq!(running, 0, "{host:?} from {at}");
            machine.mock.inject(Fault::None);
            machine.enter();
            machine.happen(99, 33, true);
            let saved = machine.saved();
            machine.set_global_control(0);
            let loaded = machine.loaded.take().unwrap();
            machine.mock.inject(Fault::From(at));
            let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock);
            machine.mock.inject(Fault::None);
            let Err((loaded, _)) = put else { continue };
            let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock);
            assert!(put.is_ok() && left_over(&machine) == 0, "{host:?} from {at}");
        }
    }
}

/// An interrupt of the host's at any access, which finds the guest's counters stopped. Intel's: in the mock, which has
/// no guests, those of AMD that are marked GuestOnly count everywhere.
#[test]
fn an_interrupt_at_any_access_changes_nothing() {
    for (host, given) in pairs().into_iter().filter(|(host, _)| host.vendor() == Vendor::Intel) {
        let stay = |load_at: u32, put_at: u32| {
            let mut machine = busy(host, given);
            let context = format!("{host:?} at {load_at}, {put_at}");
            let found = move |mock: &Mock<'_>| {
                let running = mock.with_pmu(|pmu| pmu.running().count());
                assert_eq!(running, 0, "{context}");
            };
            machine.mock.on_interrupt(Box::leak(Box::new(found)));
            machine.mock.set_performance_entry(0x400);
            machine.mock.interrupt_at(load_at);
            let loaded =
                machine.counters.load(lent(), &mut machine.guest, machine.cell, &machine.mock);
            let loaded = loaded.unwrap();
            let interrupts = machine.mock.interrupts();
            machine.mock.interrupt_at(0);
            machine.set_global_control(loaded.global_control());
            let mut feed = on(&machine.mock, machine.vendor, 99, 33);
            machine.mock.pass(&mut feed);
            let saved = machine.saved();
            machine.set_global_control(0);
            machine.mock.set_performance_entry(0x400);
            machine.mock.interrupt_at(put_at);
            let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock);
            assert!(!put.unwrap().interrupt_is_coming);
            (machine.guest.state(), [interrupts, machine.mock.interrupts() - interrupts])
        };
        let (whole, none) = stay(0, 0);
        assert_eq!(none, [0, 0]);
        for (load_at, put_at) in (1..12).flat_map(|at| [(at, 0), (0, at.min(6)), (at, at.min(6))]) {
            let (state, interrupts) = stay(load_at, put_at);
            assert_eq!(state, whole, "{host:?} at {load_at}, {put_at}");
            assert_eq!(interrupts, [load_at, put_at].map(|at| u32::from(at != 0)));
        }
    }
}

/// The interrupt of the guest's last overflow comes at an access of the put, or after it: the guest has it once, and an
/// announced one is expected just if it has not come.
#[test]
fn an_interrupt_at_any_access_of_a_put_is_the_guests_once() {
    for (host, given) in pairs() {
        let mut came_before = 0;
        for at in 1..40 {
            let mut machine = busy(host, given);
            machine.enter();
            machine.happen(100, 0, false);
            let (saved, loaded) = (machine.saved(), machine.loaded.take().unwrap());
            machine.set_global_control(0);
            let left = core::cell::Cell::new(at);
            let came = core::cell::Cell::new(false);
            let Machine { counters, cell, mock, guest, .. } = &mut machine;
            let interrupt = |mock: &Mock<'static>| {
                left.set(left.get() - 1);
                if left.get() == 0 {
                    came.set(true);
                    assert!(counters.interrupted(cell, mock), "{host:?} at {at}");
                }
            };
            let put = {
                let disturbed = Disturbed { mock, before: &interrupt };
                counters.put(loaded, saved, guest, &disturbed).unwrap()
            };
            let came = came.get();
            came_before += u32::from(came);
            cell.deliver_to(guest);
            assert!(guest.pmi_pending(), "{host:?} at {at}");
            guest.set_pmi_pending(false);
            if !came {
                assert!(put.interrupt_is_coming, "{host:?} at {at}");
                assert!(counters.interrupted(cell, mock), "{host:?} at {at}: it is claimed");
            }
            assert!(!cell.deliver_to(guest), "{host:?} at {at}: a second time");
        }
        assert!(came_before > 4, "{host:?}");
    }
}

/// The status does not answer in the handler: the interrupt is taken to be the guest's.
#[test]
fn an_interrupt_whose_status_cannot_be_read_is_not_lost() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        machine.enter();
        machine.happen(100, 0, false);
        machine.mock.inject(Fault::At(1));
        machine.arrive();
        machine.deliver();
        assert_eq!(machine.interrupts, 1, "{host:?}");
        machine.leave();
        assert_eq!(machine.interrupts, 1, "{host:?}");
    }
}

/// The accesses that the documentation of `load` and `put` promises.
#[test]
fn a_guest_comes_and_goes_in_few_accesses() {
    let counts = |host: Configuration, given: Configuration| {
        let mut machine = busy(host, given);
        machine.mock.clear();
        machine.enter();
        let inside = machine.mock.accesses();
        machine.happen(50, 50, true);
        machine.mock.clear();
        machine.leave();
        let out = machine.mock.accesses();
        [inside.reads, inside.writes, inside.pmc_reads, out.reads, out.writes, out.pmc_reads]
    };
    let intel = |version, general, fixed| {
        Configuration::Intel(IntelConfiguration::new(version, general, fixed))
    };
    // 4 counters, 4 selects, 3 fixed counters and their control; the status read, nothing in it. Two selects are
    // enabled, and their counters are not 0.
    assert_eq!(counts(intel(4, 4, 3), intel(4, 4, 3)), [1, 12, 0, 1, 4, 7]);
    let amd = |counters, guest_host| {
        let mut amd = AmdConfiguration::perf_mon_v2(counters);
        amd.guest_host = guest_host;
        Configuration::Amd(amd)
    };
    // The global control is started last, and stopped first.
    assert_eq!(counts(amd(6, true), amd(6, false)), [1, 13, 0, 2, 5, 6]);
}

#[test]
fn hosts_and_guests_that_do_not_fit_are_refused() {
    let refused = |host| HostCounters::new(host).map(|_| ()).unwrap_err();
    let intel = |version| IntelConfiguration::new(version, 4, if version > 1 { 3 } else { 0 });
    for version in 1..4 {
        assert_eq!(refused(Configuration::Intel(intel(version))), MediationError::NoStatusSet);
    }
    let narrow = intel(4).with(|intel| intel.full_width_writes = false);
    assert_eq!(refused(Configuration::Intel(narrow)), MediationError::NoFullWidthWrites);
    for mut amd in [AmdConfiguration::LEGACY, AmdConfiguration::CORE_EXTENSION] {
        amd.guest_host = true;
        assert_eq!(refused(Configuration::Amd(amd)), MediationError::NoStatusSet);
    }
    let without = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    assert_eq!(refused(without), MediationError::NoGuestOnly);
    let hidden = Configuration::hidden(Vendor::Intel);
    assert_eq!(refused(hidden), MediationError::NoStatusSet);
    let impossible = Configuration::Intel(IntelConfiguration::new(9, 4, 3));
    assert!(matches!(refused(impossible), MediationError::Configuration(_)));

    let host = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
    let counters = HostCounters::new(host).unwrap();
    let mock = processor(host);
    let mut guests = vec![hidden, Configuration::Amd(AmdConfiguration::perf_mon_v2(4))];
    guests.extend(
        [
            IntelConfiguration::new(5, 8, 3),
            IntelConfiguration::new(5, 3, 3),
            IntelConfiguration::new(5, 4, 4),
            IntelConfiguration::new(5, 4, 2),
            IntelConfiguration::new(2, 4, 3),
            intel(5).with(|intel| intel.general_width = 40),
            intel(5).with(|intel| intel.fixed_width = 40),
            intel(5).with(|intel| intel.any_thread = true),
            IntelConfiguration::new(6, 4, 3),
        ]
        .map(Configuration::Intel),
    );
    for guest in guests {
        let mut pmu = VirtualPmu::new(guest, FedEvents::NONE).unwrap();
        let interrupts = GuestInterrupts::new();
        let refused = counters.load(lent(), &mut pmu, &interrupts, &mock).map(|_| ()).unwrap_err();
        assert_eq!(refused, MediationError::NotTheHosts, "{guest:?}");
    }
    assert_eq!(mock.accesses().reads + mock.accesses().writes, 0, "nothing was touched");
}

/// An event that the hypervisor's policy forbids is not enabled on the real counter.
#[test]
fn a_forbidden_event_does_not_count_on_a_real_counter() {
    let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    let entries = [FilterEntry::new(0x3C, 0)];
    let filter = EventFilter::<1>::compile(FilterAction::Deny, 0b10, &entries).unwrap();
    let mut guest = VirtualPmu::with_policy(configuration, events(), filter).unwrap();
    for (address, value) in [(0x186, 0x43_003C), (0x187, 0x43_00C0), (0x38D, 0x33)] {
        assert_eq!(guest.write(address, value).answer, Write::Done);
    }
    let counters = HostCounters::new(configuration).unwrap();
    let mock = processor(configuration);
    let interrupts = GuestInterrupts::new();
    let mut loaded = counters.load(lent(), &mut guest, &interrupts, &mock).unwrap();
    let found = |address| mock.with_pmu(|pmu| software_pmu::get(pmu, address));
    assert_eq!([0x186, 0x187, 0x38D].map(found), [0x03_003C, 0x43_00C0, 0x03]);
    let written = counters.write(&mut loaded, &mut guest, 0x188, 0x53_003C, &mock);
    assert_eq!(written, Ok(Write::Done));
    assert_eq!(found(0x188), 0x13_003C);
    let seen = guest.read(0x188);
    assert_eq!(seen, pmu_virt::Read::Value(0x53_003C), "the guest sees what it wrote");
    // Of what is in use, too: three selects and two fixed counters, an interrupt enabled.
    assert_eq!(found(0x392) >> 32 & 0b11, 0b01, "the real one");
    let in_use = counters.read(&loaded, &guest, 0x392, &mock);
    assert_eq!(in_use, Ok(pmu_virt::Read::Value(1 << 63 | 0b11 << 32 | 0b111)));
}

/// An overflow that the counter's last user left does not become a guest's.
#[test]
fn a_guest_does_not_find_the_overflows_of_others() {
    for (host, given) in pairs() {
        let mut machine = Machine::new(host, given);
        let intel = machine.vendor == Vendor::Intel;
        let (status, set) = if intel { (0x38E, 0x391) } else { (0xC000_0300, 0xC000_0303) };
        machine.mock.with_pmu(|pmu| assert_eq!(pmu.write(set, 0b11).answer, Write::Done));
        machine.enter();
        let found = machine.mock.with_pmu(|pmu| software_pmu::get(pmu, status));
        assert_eq!(found, 0, "{host:?}");
        machine.leave();
        assert_eq!((software_pmu::get(&machine.guest, status), machine.interrupts), (0, 0));
    }
}

/// A second counter overflows while the entry is masked, until the guest unmasks its own: the put announces an
/// interrupt that never comes. The guest's next one was taken for it.
#[test]
fn an_announced_interrupt_that_never_comes_does_not_take_the_guests_next_one_away() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        let (value, clear) = match machine.vendor {
            Vendor::Intel => (0x4C1, 0x390),
            _ => (0xC001_0201, 0xC000_0302),
        };
        machine.enter();
        machine.happen(100, 0, true);
        assert_eq!(machine.interrupts, 1, "{host:?}");
        machine.happen(0, 1_000_000, false);
        machine.in_flight = false;
        let (loaded, saved) = (machine.loaded.take().unwrap(), machine.saved());
        machine.set_global_control(0);
        let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock).unwrap();
        assert!(put.interrupt_is_coming, "{host:?}");
        machine.deliver();
        machine.enter();
        assert_eq!(machine.guest_writes(clear, 0b11), Write::Done);
        assert_eq!(machine.guest_writes(value, (1 << 48) - 100), Write::Done);
        machine.happen(100, 0, true);
        assert_eq!(machine.interrupts, 3, "{host:?}");
    }
}

/// A put fails at any access, and before it is tried again the hypervisor writes registers for the guest: on AMD they
/// ran on after the put.
#[test]
fn what_is_written_between_two_attempts_of_a_put_is_the_guests_and_leaves_nothing_armed() {
    for (host, given) in pairs() {
        for at in 1..60 {
            let mut machine = busy(host, given);
            machine.enter();
            machine.happen(99, 33, true);
            let saved = machine.saved();
            machine.set_global_control(0);
            let loaded = machine.loaded.take().unwrap();
            machine.mock.inject(Fault::From(at));
            let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock);
            machine.mock.inject(Fault::None);
            let Err((mut loaded, _)) = put else { break };
            let (control, value, select) = match machine.vendor {
                Vendor::Intel => (0x38F, 0x4C2, 0x187),
                _ => (0xC000_0301, 0xC001_0203, 0xC001_0202),
            };
            for (register, bits) in [(control, 0b11), (value, 4711), (select, 0x53_003C)] {
                let guest = &mut machine.guest;
                let written =
                    machine.counters.write(&mut loaded, guest, register, bits, &machine.mock);
                assert_eq!(written, Ok(Write::Done), "{host:?} from {at}");
                let read = machine.counters.read(&loaded, guest, register, &machine.mock);
                assert_eq!(read, Ok(pmu_virt::Read::Value(bits)), "{host:?} from {at}");
            }
            let saved = loaded.global_control();
            let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock);
            assert!(put.is_ok() && left_over(&machine) == 0, "{host:?} from {at}");
            let real = |register| machine.mock.with_pmu(|pmu| pmu.read(register));
            let zero = pmu_virt::Read::Value(0);
            assert_eq!([control, value, select].map(real), [zero; 3], "{host:?} from {at}");
            assert_eq!(
                machine.guest.read(value),
                pmu_virt::Read::Value(4711),
                "{host:?} from {at}"
            );
        }
    }
}
