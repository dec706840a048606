//! Interrupts of guests on real counters: whose each is, and that each comes once.

use super::machine::*;
use pmu_core::CounterSet;
use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::lending::LentCounters;
use pmu_tests::software_pmu;
use pmu_virt::configuration::Vendor;
use pmu_virt::mediated::GuestInterrupts;
use pmu_virt::mock::Fault;
use pmu_virt::{VirtualPmu, Write};

/// The mock, with something that happens before each access.
struct Disturbed<'d> {
    mock: &'d Mock<'static>,
    before: &'d dyn Fn(&Mock<'static>),
}

impl RegisterBackend for Disturbed<'_> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        (self.before)(self.mock);
        self.mock.read(address)
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        (self.before)(self.mock);
        self.mock.write(address, value)
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        (self.before)(self.mock);
        self.mock.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        self.mock.update(update)
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

/// The interrupt of the guest's last overflow comes at an access of the put, or after it. The guest has that interrupt
/// once. An announced interrupt is expected only if it has not come.
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

/// A second counter overflows while the LVT entry is masked, until the guest unmasks its own: the put announces an
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
