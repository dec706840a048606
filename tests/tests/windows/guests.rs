//! A host's session and a guest, in turn on the same counters: neither sees the other.

use core::cell::{Cell, RefCell};

use pmu_core::{CounterSet, EventId, Events, Platform, service};
use pmu_tests::opened::*;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, Vendor};
use pmu_virt::mediated::{GuestInterrupts, HostCounters};
use pmu_virt::mock::{Deviation, Deviations};
use pmu_virt::{EventKey, FedEvents, Privilege, Read, VirtualPmu, Write};

const PERIOD: u64 = 0x1000;

/// The guest's counter, its select, the global control, and what acknowledges.
struct Registers {
    select: u32,
    value: u32,
    control: u32,
    clear: u32,
}

fn registers(host: Configuration) -> Registers {
    match host {
        Configuration::Intel(_) => {
            Registers { select: 0x186, value: 0x4C1, control: 0x38F, clear: 0x390 }
        }
        _ => Registers {
            select: 0xC001_0200,
            value: 0xC001_0201,
            control: 0xC000_0301,
            clear: 0xC000_0302,
        },
    }
}

fn hosts() -> Vec<Configuration> {
    let intel = |version, general, fixed| {
        Configuration::Intel(IntelConfiguration::new(version, general, fixed))
    };
    let mut amd = AmdConfiguration::perf_mon_v2(6);
    amd.guest_host = true;
    vec![intel(4, 4, 3), intel(5, 8, 4), intel(6, 8, 4), Configuration::Amd(amd)]
}

/// On AMD the guest's cycles are an event of its own: GuestOnly.
fn guests_cycles(host: Configuration) -> EventKey {
    match host {
        Configuration::Intel(_) => EventKey::of_select(Vendor::Intel, 0x3C),
        _ => EventKey::of_select(Vendor::Amd, 1 << 40 | 0x3C),
    }
}

fn get(pmu: &VirtualPmu, register: u32) -> u64 {
    let Read::Value(value) = pmu.read(register) else { panic!("{register:#X}") };
    value
}

/// Host's events, then a guest whose counter overflows in the window, then the host's again, three times. The LVT entry
/// is unmasked when the guest has acknowledged its overflow: where unmasking raises, a handler that unmasks does not
/// end.
#[test]
fn a_guests_interrupt_in_the_window_is_the_guests_and_the_hosts_events_go_on() {
    let platforms = [Deviations::NONE, Deviations::of(&[Deviation::RaisesOnUnmask])];
    for (host, deviations) in hosts().into_iter().flat_map(|host| platforms.map(|on| (host, on))) {
        for freezing in [false, true] {
            if freezing && !matches!(host, Configuration::Intel(_)) {
                continue;
            }
            let processor = Processor::new(host, freezing, deviations);
            let mut keys: Vec<EventKey> =
                KINDS.map(|(event, mask)| EventKey::general(event.into(), mask)).into();
            keys.push(guests_cycles(host));
            keys.dedup();
            let fed = FedEvents::new(if keys.len() > 8 && keys[8] == keys[1] {
                &keys[..8]
            } else {
                &keys
            });
            let fed = fed.unwrap();
            let mock = Mock::strict(VirtualPmu::new(host, fed).unwrap()).deviating(deviations);
            let Registers { select, value, control, clear } = registers(host);
            mock.with_pmu(|pmu| assert_eq!(pmu.write(control, 0).answer, Write::Done));
            let feed = |key: EventKey, count| {
                let mut feed = pmu_virt::Feed::new(&fed);
                feed.add(fed.find(key).unwrap(), Privilege::User, count).unwrap();
                feed
            };
            let counters = HostCounters::new(host).unwrap();
            let interrupts = GuestInterrupts::new();
            let (memory, table) = (Memory::new(), Table::new());
            let told = RefCell::new(Vec::<EventId>::new());
            let of_guest = Cell::new(0);
            let handler = |mock: &Mock<'_>| {
                let source = Events::new(&processor.unit, &table);
                let tell = |o: pmu_core::interrupt::EventOverflow| told.borrow_mut().push(o.event);
                let serviced = service(&source, mock, &memory, |sample| tell(*sample)).unwrap();
                if serviced.lent {
                    assert_eq!(serviced.claim.interrupts(), 0, "{processor:?}");
                    assert!(counters.interrupted(&interrupts, mock), "{processor:?}");
                    of_guest.set(of_guest.get() + 1);
                    assert!(of_guest.get() < 9, "{processor:?}: it does not end");
                }
            };
            mock.on_interrupt(&handler);
            let mut session = processor.take(&mock, &memory, &table);
            let events = [raw(2).every(PERIOD).with_total(), raw(1)].map(|event| {
                let event = session.open(&processor.unit, &[event]).unwrap();
                session.enable(event, 0).unwrap();
                event
            });
            let mut guest = VirtualPmu::new(
                counters.guest(),
                FedEvents::new(&[EventKey::general(0x3C, 0)]).unwrap(),
            )
            .unwrap();
            assert_eq!(guest.write(select, 0x53_003C).answer, Write::Done);
            assert_eq!(guest.write(value, (1 << 48) - 100).answer, Write::Done);
            for round in 1..4 {
                // The host's own.
                mock.advance(&mut feed(EventKey::general(0xD0, 1), PERIOD - 1));
                mock.advance(&mut feed(EventKey::general(0xD0, 1), 1));
                mock.advance(&mut feed(EventKey::general(0x3C, 0), 77));
                assert_eq!(told.take(), [events[0]], "{processor:?}");

                let mut window = session.lend(round, |o| panic!("{o:?}")).unwrap();
                let hosts_control = window.lent().global_control();
                let loaded = counters.load(window.lent(), &mut guest, &interrupts, &mock).unwrap();
                let entered = loaded.global_control();
                // The processor switches these with the entry and the exit, by the VMCS.
                let switch = |value, debug| {
                    let written = [(control, value), (0x1D9, debug)];
                    for (register, value) in written.iter().filter(|_| control == 0x38F) {
                        let _ = mock.with_pmu(|pmu| pmu.write(*register, *value));
                    }
                };
                switch(entered, loaded.debug_control());
                mock.advance(&mut feed(guests_cycles(host), 100));
                // The host does not count the guest's events.
                mock.advance(&mut feed(EventKey::general(0xD0, 1), 1_000));
                assert_eq!(of_guest.take(), 1, "{processor:?}");
                assert!(interrupts.deliver_to(&mut guest) && guest.pmi_pending());
                guest.set_pmi_pending(false);
                mock.with_pmu(|pmu| {
                    assert_eq!(pmu.write(clear, 1).answer, Write::Done);
                    assert_eq!(pmu.write(value, (1 << 48) - 100).answer, Write::Done);
                });
                mock.unmask_performance_interrupt();
                assert_eq!(of_guest.get(), 0, "{processor:?}: acknowledged");
                let saved = mock.with_pmu(|pmu| get(pmu, control));
                switch(hosts_control, u64::from(freezing) << 12);
                let put = counters.put(loaded, saved, &mut guest, &mock).unwrap();
                assert!(!put.interrupt_is_coming && !guest.pmi_pending(), "{processor:?}");
                window.end(round).unwrap();

                assert_eq!(get(&guest, value), (1 << 48) - 100, "{processor:?}");
                assert_eq!(total(&session, events[0]), PERIOD * round, "{processor:?}");
                assert_eq!(total(&session, events[1]), 77 * round, "{processor:?}");
                assert_eq!(told.take(), []);
            }
            session.shut_down().unwrap();
            assert_eq!(running(&mock), CounterSet::NONE, "{processor:?}");
        }
    }
}

/// `put` fails for good, or is forgotten: the end of the window disarms what the guest left, and the host's events are
/// as before.
#[test]
fn a_guest_that_was_not_put_back_leaves_nothing_behind_the_window() {
    for host in hosts() {
        let processor = Processor::new(host, false, Deviations::of(&[Deviation::RaisesOnUnmask]));
        let (mock, memory, table) = (processor.mock(), Memory::new(), Table::new());
        let mut session = processor.take(&mock, &memory, &table);
        let event = session.open(&processor.unit, &[raw(2).every(PERIOD).with_total()]).unwrap();
        session.enable(event, 0).unwrap();
        mock.advance(&mut happened(2, 0x700));
        let before = mock.with_pmu(|pmu| pmu.state());
        let (counters, interrupts) = (HostCounters::new(host).unwrap(), GuestInterrupts::new());
        let events = FedEvents::new(&[EventKey::general(0x3C, 0)]).unwrap();
        let mut guest = VirtualPmu::new(counters.guest(), events).unwrap();
        let Registers { select, value, control, .. } = registers(host);
        for (register, value) in [(select, 0x53_003C), (value, (1 << 48) - 10), (control, 0b1)] {
            assert_eq!(guest.write(register, value).answer, Write::Done);
        }
        let mut window = session.lend(0, |o| panic!("{o:?}")).unwrap();
        let loaded = counters.load(window.lent(), &mut guest, &interrupts, &mock).unwrap();
        let _ = mock.with_pmu(|pmu| pmu.write(control, loaded.global_control()));
        let _ = mock.pass(&mut happened(1, 10));
        mock.with_pmu(VirtualPmu::init);
        drop(loaded);
        window.end(0).unwrap();
        assert_eq!(mock.with_pmu(|pmu| pmu.state()), before, "{processor:?}");
        assert_eq!(total(&session, event), 0x700, "{processor:?}");
        // The guest is as it was when it was loaded, and can be loaded again.
        assert_eq!(get(&guest, value), (1 << 48) - 10);
        let mut window = session.lend(0, |o| panic!("{o:?}")).unwrap();
        let loaded = counters.load(window.lent(), &mut guest, &interrupts, &mock).unwrap();
        let _ = counters.put(loaded, 0b1, &mut guest, &mock).unwrap();
        window.end(0).unwrap();
        assert_eq!(mock.with_pmu(|pmu| pmu.state()), before, "{processor:?}");
    }
}

/// Intel from version 3 on: unmasking raises an interrupt while a bit of the status is set. A handler that unmasked the
/// entry in the window met its guest's overflow again, forever. Where the hypervisor unmasks as the guest unmasks its
/// own, each costs one interrupt at most, also with status bits that are no counter's, which a guest can set and which
/// stayed after a guest that was forgotten.
#[test]
fn an_entry_that_raises_on_unmask_does_not_storm_for_what_a_guest_leaves_in_the_status() {
    let platform = Deviations::of(&[Deviation::MasksOnDelivery, Deviation::RaisesOnUnmask]);
    for host in hosts().into_iter().filter(|host| matches!(host, Configuration::Intel(_))) {
        let processor = Processor::new(host, false, platform);
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let (counters, interrupts) = (HostCounters::new(host).unwrap(), GuestInterrupts::new());
        let Registers { select, value, control, clear } = registers(host);
        let (of_guest, of_host) = (Cell::new(0), Cell::new(0));
        let handler = |mock: &Mock<'_>| {
            let source = Events::new(&processor.unit, &table);
            let serviced = service(&source, mock, &memory, |_| ()).unwrap();
            let count = if serviced.lent { &of_guest } else { &of_host };
            count.set(count.get() + 1);
            assert!(count.get() < 10, "{host:?}: a storm");
            if serviced.lent {
                assert!(counters.interrupted(&interrupts, mock), "{host:?}: unknown");
            }
        };
        mock.on_interrupt(&handler);
        let mut session = processor.take(&mock, &memory, &table);
        let event = session.open(&processor.unit, &[raw(2).every(PERIOD)]).unwrap();
        session.enable(event, 0).unwrap();
        let mut guest = VirtualPmu::new(counters.guest(), FedEvents::NONE).unwrap();
        assert_eq!(guest.write(select, 0x53_003C).answer, Write::Done);
        assert_eq!(guest.write(value, (1 << 48) - 100).answer, Write::Done);
        assert_eq!(guest.write(control, 1).answer, Write::Done);

        let mut window = session.lend(0, |o| panic!("{o:?}")).unwrap();
        let mut loaded = counters.load(window.lent(), &mut guest, &interrupts, &mock).unwrap();
        let real = |register, value| {
            mock.with_pmu(|pmu| assert_eq!(pmu.write(register, value).answer, Write::Done));
        };
        real(control, loaded.global_control());
        happen(&mock, 1, 100);
        assert_eq!(of_guest.take(), 1, "{host:?}");
        // The guest unmasks its LVT entry before it acknowledges, and again afterwards.
        mock.unmask_performance_interrupt();
        assert_eq!(of_guest.take(), 1, "{host:?}");
        real(clear, 1);
        real(value, (1 << 48) - 100);
        mock.unmask_performance_interrupt();
        assert_eq!(of_guest.take(), 0, "{host:?}");
        happen(&mock, 1, 100);
        assert_eq!(of_guest.take(), 1, "{host:?}");
        // It sets the bits that are no counter's.
        let others = 1 << 58 | 1 << 61 | 1 << 62;
        let written = counters.write(&mut loaded, &mut guest, 0x391, others, &mock);
        assert_eq!(written, Ok(Write::Done), "{host:?}");
        real(clear, 1);
        mock.unmask_performance_interrupt();
        assert_eq!(of_guest.take(), 1, "{host:?}");
        drop(loaded);
        window.end(0).unwrap();
        let status = mock.with_pmu(|pmu| get(pmu, 0x38E));
        assert_eq!(status, 0, "{host:?}: {status:#X}");
        happen(&mock, 2, PERIOD);
        assert!(of_host.get() <= 2, "{host:?}: {}", of_host.get());
    }
}
