//! Counter reload and architectural PEBS of one processor, which share CFG_C: in a guest, and driven beside each other.

use core::cell::{Cell, RefCell};
use core::sync::atomic::AtomicU64;

use pmu_core::memory::EventTable;
use pmu_core::precise::Precision;
use pmu_core::reload::AutoCounterReload;
use pmu_core::{Claim, CounterSession, CounterSet, Events, service};
use pmu_intel::precise::{Pebs, PreciseMemory, PreciseUnit};
use pmu_tests::opened::Random;
use pmu_virt::configuration::Configuration;
use pmu_virt::mock::ProcessMemory;
use pmu_virt::precise::{FedRecord, GuestMemory, PreciseConfiguration, VirtualPrecise};
use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
use pmu_virt::{EventKey, Feed, GuestFacility, Privilege, Read, VirtualPmu, Write, Writer};

use crate::support::{Kernel, Mock, events, intel, pass, raw};

type Both = (VirtualPrecise, VirtualReload);

/// The buffer's physical address.
const PHYSICAL: u64 = 0x10_0000;

const ALL: ReloadConfiguration = ReloadConfiguration::of(0xF, 0xF);

fn configuration() -> Configuration {
    Configuration::Intel(intel())
}

fn both() -> Both {
    let precise =
        VirtualPrecise::new(&configuration(), PreciseConfiguration::ARCHITECTURAL).unwrap();
    let reload = VirtualReload::new(&configuration(), ALL).unwrap();
    (precise, reload.sharing(&precise))
}

fn minus(period: u64) -> u64 {
    (1 << 32) - period
}

/// CFG_C is one register: its reload value is that of both, and its other bits are those of the records.
#[test]
fn the_reload_value_of_a_counter_is_that_of_its_records() {
    let (mut pmu, mut both) = (VirtualPmu::new(configuration(), events()).unwrap(), both());
    let mut reversed = (both.1, both.0);
    let mut other = pmu.clone();
    for (register, place) in [(0x1903, 0), (0x190F, 3), (0x1983, 8), (0x198F, 11)] {
        let control = 1 << 63 | minus(1_000 + place);
        for value in [control, minus(77)] {
            assert_eq!(pmu.write_beside(&mut both, register, value).answer, Write::Done);
            assert_eq!(pmu.read_beside(&both, register), Read::Value(value));
            assert_eq!(other.write_beside(&mut reversed, register, value).answer, Write::Done);
            assert_eq!(other.read_beside(&reversed, register), Read::Value(value));
        }
        let before = both;
        let written = pmu.write_beside(&mut both, register, 1 << 34 | 5);
        assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << 34));
        assert_eq!(both, before);
        let causes = register - 1;
        assert_eq!(pmu.write_beside(&mut both, causes, 0b11).answer, Write::Done);
        let _ = other.write_beside(&mut reversed, causes, 0b11);
    }
    assert_eq!((reversed.1, reversed.0), both);
    // Each register is listed once, and restored as it was saved.
    let addresses: Vec<_> = both.registers().map(|register| register.address).collect();
    let mut distinct = addresses.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), addresses.len());
    assert_eq!(addresses.iter().filter(|address| **address & !0x8F == 0x1900).count(), 2 * 8);
    let (mut copy, mut copied) = (pmu, self::both());
    for register in both.registers().filter(|register| register.is_state) {
        let Read::Value(value) = both.read(register.address) else { panic!("{register:?}") };
        let written = copy.host_write_beside(&mut copied, register.address, value);
        assert_eq!(written.answer, Write::Done);
    }
    assert_eq!(copied, both);
    let mut copied = self::both();
    copied.0.restore(&both.0.to_bytes()).unwrap();
    copied.1.restore(&both.1.to_bytes()).unwrap();
    assert_eq!(copied, both);
    // Saved for a processor without these records, it is of another configuration.
    let mut alone = VirtualReload::new(&configuration(), ALL).unwrap();
    assert!(alone.restore(&both.1.to_bytes()).is_err());
    // Both bits of the leaf, and their sub-leaves.
    let leaf = |subleaf| configuration().cpuid_leaf(0x23, subleaf).unwrap();
    assert_eq!(both.cpuid(leaf(0)).apply([0; 4])[0] & 0b11_0100, 0b11_0100);
    assert_eq!(both.cpuid(leaf(2)).apply([0; 4]), [0xF; 4]);
    both.reset();
    assert_eq!(both, self::both());
}

/// Records in the Debug Store have no CFG_C: counter reload answers all of it.
#[test]
fn records_in_the_debug_store_share_nothing() {
    let records = PreciseConfiguration::debug_store(5);
    let precise = VirtualPrecise::new(&configuration(), records).unwrap();
    let reload = VirtualReload::new(&configuration(), ALL).unwrap();
    assert_eq!(reload.sharing(&precise), reload);
    let mut both = (precise, reload);
    assert_eq!(both.write(Writer::Guest, 0x1903, 7).answer, Write::Done);
    assert_eq!(both.read(0x1903), Read::Value(7));
}

struct Ram(Vec<u8>);

impl GuestMemory for Ram {
    fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), pmu_virt::precise::GuestFault> {
        unreachable!("physical records")
    }
    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), pmu_virt::precise::GuestFault> {
        unreachable!("physical records")
    }
    fn write_physical(
        &mut self,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), pmu_virt::precise::GuestFault> {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// A guest whose counter 0 is recorded within stretches that counter 1 delimits, and one whose counter 1 is recorded
/// where it delimits the stretches of counter 0. A counter that is recorded begins anew with or without CFG_B.
#[test]
fn recorded_counters_are_reloaded_and_reload_others() {
    const PERIOD: u64 = 50;
    const EVERY: u64 = 300;
    const RANGE: u64 = 1 << 48;
    const INDEX: u64 = 1 << 32 | 0x100 << 36;
    for (records_of, of_second) in [(0, 0b10), (1, 0b10), (1, 0)] {
        let mut pmu = VirtualPmu::new(configuration(), events()).unwrap();
        let mut both = both();
        let records = |counter| if counter == records_of { 1 << 63 } else { 0 };
        for (register, value) in [
            (0x3F4, 0),
            (0x3F5, INDEX),
            (0x1903, records(0) | minus(PERIOD)),
            (0x1902, 0b10),
            (0x1907, records(1) | minus(EVERY)),
            (0x1906, of_second),
            (0x1900, RANGE - PERIOD),
            (0x1904, RANGE - EVERY),
            (0x1901, 0x43_00C5),
            (0x1905, 0x43_00C4),
            (0x38F, 0b11),
        ] {
            assert_eq!(pmu.write_beside(&mut both, register, value).answer, Write::Done);
        }
        let (mut ram, mut random) = (Ram(vec![0; 1 << 20]), Random(99));
        // Both counters, the status, and the records, event by event.
        let (mut counters, mut status, mut expected) = ([RANGE - PERIOD, RANGE - EVERY], 0, 0);
        let mut written = 0;
        for step in 0..400 {
            let (happens, count) = (random.below(2) as usize, 1 + random.below(70));
            for _ in 0..count {
                counters[happens] += 1;
                if counters[happens] < RANGE {
                    continue;
                }
                let is_recorded = happens == records_of;
                expected += usize::from(is_recorded);
                counters = match happens {
                    0 if is_recorded => [RANGE - PERIOD, counters[1]],
                    0 => [0, counters[1]],
                    _ => [RANGE - PERIOD, RANGE - EVERY],
                };
                status |= u64::from(happens == 0 && !is_recorded);
            }
            let key = EventKey::general([0xC5, 0xC4][happens], 0);
            let mut feed = Feed::new(&events());
            feed.add(events().find(key).unwrap(), Privilege::User, count).unwrap();
            while !feed.is_empty() {
                let advanced = both.1.advance(&mut pmu, &mut feed).unwrap();
                assert!(!advanced.pmi);
                if advanced.records == 0 {
                    continue;
                }
                assert_eq!(advanced.records, 1 << records_of);
                both.overflowed(advanced.records);
                let _ = pmu.write_beside(&mut both, 0x3F5, INDEX);
                let due = both.0.due();
                let recorded = both.0.record(&mut pmu, due, &FedRecord::new(0x1000), &mut ram);
                assert_eq!((recorded.written, recorded.fault), (1, None));
                written += 1;
            }
            let found = [0x1900, 0x1904, 0x38E].map(|register| pmu.read(register));
            let [first, second] = counters;
            let what = format!("{records_of}, {of_second:#b}, step {step}");
            assert_eq!(found, [first, second, status].map(Read::Value), "{what}");
            assert_eq!(written, expected, "{what}");
        }
        assert!(written > 10, "{written}");
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// A driver's groups of reloaded counters beside its precise events, which have their own counters.
#[test]
fn a_session_with_counter_reload_has_precise_events_beside_its_groups() {
    let memory: &'static PreciseMemory =
        Box::leak(Box::new(PreciseMemory::<[AtomicU64; 2048]>::new()));
    // SAFETY: the area and the buffer, one page behind it, consist of atomics.
    let ram = unsafe { ProcessMemory::default().with(memory, PHYSICAL - 0x1000) };
    let ram: &'static RefCell<dyn GuestMemory> = leak(RefCell::new(ram));
    let instructions = leak(|number| FedRecord::new(0x40_1000 + number));
    for freezing in [false, true] {
        let pmu = VirtualPmu::new(configuration(), events()).unwrap();
        let (precise, reload) = self::both();
        let mock: &'static Mock<'static> =
            leak(Mock::strict(pmu).with_reload(reload).with_precise(precise, ram, instructions));
        let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
        let unit: &PreciseUnit = leak(PreciseUnit::detect(&mock.snapshot(), mock).unwrap());
        let kernel: &Kernel = leak(Kernel::new(mock, freezing));
        let source = move || {
            // SAFETY: the mock writes to the lent memory alone, which lasts.
            let pebs = unsafe { Pebs::new(unit, memory, Some(PHYSICAL)) }.unwrap();
            let reloads = AutoCounterReload::new(&kernel.reload, &kernel.reloads);
            let opened = Events::new(&kernel.unit, &kernel.table as &EventTable);
            opened.with((pebs, reloads))
        };
        let [recorded, reported]: &[Cell<u32>; 2] = leak(Default::default());
        let handler = leak(move |mock: &Mock<'_>| {
            let serviced = service(&source(), mock, &kernel.memory, |sample| {
                let seen = if sample.instruction().is_some() { recorded } else { reported };
                seen.set(seen.get() + 1);
            });
            assert_ne!(serviced.unwrap().claim, Claim::NotOurs);
        });
        mock.on_interrupt(handler);
        let (all, lent) = (CounterSet::ALL, &kernel.memory);
        let session = CounterSession::take(source(), &kernel.unit, all, mock, lent);
        let mut session = session.unwrap();
        if freezing {
            session.freeze_on_interrupt().unwrap();
        }
        kernel.table.set_min_period(10);
        let event = raw(2).user_only().every(100).precise(Precision::ConstantSkid);
        let event = session.open(&kernel.unit, &[event]).unwrap();
        session.enable(event, 0).unwrap();
        // The group is programmed after the records, and again.
        for round in 1..4u32 {
            let misses = raw(0).every(50).reloaded_by(0b10);
            let branches = raw(1).every(1_000).reloaded_by(0b10);
            let group = session.open(&kernel.unit, &[misses, branches]).unwrap();
            session.enable(group, 0).unwrap();
            pass(mock, &[(0, 30)]);
            pass(mock, &[(1, 1_000)]);
            pass(mock, &[(0, 49)]);
            assert_eq!(reported.get(), round - 1, "{freezing}: no 50 within 1,000");
            pass(mock, &[(0, 1)]);
            assert_eq!(reported.get(), round, "{freezing}");
            pass(mock, &[(2, 500)]);
            assert_eq!(recorded.get(), 5 * round, "{freezing}");
            session.close(group, 0).unwrap();
        }
        session.shut_down().unwrap();
        assert_eq!(mock.breach(), None, "{freezing}");
    }
}
