//! Hygon's processors, with AMD's counters, and Zhaoxin's, with Intel's: any event of their manuals, and no source.
//! Their CPUID is recorded.

use core::cell::Cell;
use std::fs;
use std::path::Path;

use pmu::core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu::core::error::{CounterError, NoInterface};
use pmu::core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu::core::profile::KProfileSource;
use pmu::core::registers::{EventSelect, MAX_COUNTERS};
use pmu::core::x86::Snapshot;
use pmu::core::x86::clocks::Clocks;
use pmu::core::x86::dump::CpuidDump;
use pmu::core::x86::raw_cpuid::CpuIdResult;
use pmu::core::{
    Claim, CounterSession, CounterSet, CounterUnit, Event, EventSource, Events, GenericEvent,
    service,
};
use pmu::{Machine, Watchdog};
use pmu_tests::Reason;
use pmu_tests::{FakePlatform, RegisterFile};

const HYGON: [&str; 2] = ["hygon-dhyana.txt", "hygon-c86-4g.txt"];
const ZHAOXIN: [&str; 2] = ["zhaoxin-shanghai.txt", "zhaoxin-kx6000.txt"];

fn recorded(file: &str) -> Snapshot {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/cpuid").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Snapshot::capture(&CpuidDump::parse(&text).unwrap_or_else(|e| panic!("{file}: {e}")))
}

/// AMD's core extension: `PERF_CTL0` and `PERF_CTR0` on, two registers apart (APM vol. 2, "Performance Monitoring
/// Counters").
fn hygon_registers() -> RegisterFile {
    RegisterFile::new(0xC001_0200..0xC001_020C, 0xC001_0201).rdpmc_step(2)
}

/// `IA32_PERFEVTSELx`, `IA32_PMCx`, `IA32_FIXED_CTRx`, their control and the global registers.
fn zhaoxin_registers(counters: u32) -> RegisterFile {
    let general = (0xC1..0xC1 + counters).chain(0x186..0x186 + counters);
    RegisterFile::new(general.chain(0x309..0x30C).chain(0x38D..0x391), 0xC1)
}

#[test]
fn the_machine_has_counters_and_no_source_but_time() {
    for file in HYGON.into_iter().chain(ZHAOXIN) {
        let this = recorded(file);
        let machine = Machine::detect(&this);
        let unit = machine.unit();
        let why = NoInterface::OtherVendor(this.vendor());
        assert_eq!((machine.why_time_only(), unit.why_absent()), (Some(why), None), "{file}");
        assert_eq!(machine.unit_of(&this), *unit, "{file}");
        // Each processor has its own: another one may have none.
        let other =
            Snapshot::capture(|_: u32, _: u32| CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 });
        assert!(machine.unit_of(&other).counters().is_empty(), "{file}");
        for value in 0..0x1000 {
            let Some(source) = KProfileSource::new(value) else { continue };
            let supported = machine.query(source).is_supported();
            assert_eq!(supported, source == KProfileSource::TIME, "{file}: {source:?}");
        }
    }
}

#[test]
fn the_documents_tables_stay_closed_to_both() {
    for file in HYGON.into_iter().chain(ZHAOXIN) {
        let this = recorded(file);
        let vendor = NoInterface::OtherVendor(this.vendor());
        assert_eq!(pmu_intel::Emon::detect(&this).unwrap_err(), vendor, "{file}");
        assert_eq!(pmu_amd::Amd64::detect(&this).unwrap_err(), vendor, "{file}");
    }
}

/// The numbers and widths are those that CPUID declares (leaf 0x0A), or that AMD's manual gives (leaf 0x80000001,
/// ECX bit 23: six counters, of 48 bits).
#[test]
fn the_counters_are_those_that_cpuid_declares() {
    for (file, general, fixed, width) in [
        ("hygon-dhyana.txt", 6, 0, 48),
        ("hygon-c86-4g.txt", 6, 0, 48),
        ("zhaoxin-shanghai.txt", 2, 3, 40),
        ("zhaoxin-kx6000.txt", 4, 3, 48),
    ] {
        let machine = Machine::detect(&recorded(file));
        let unit = machine.unit();
        assert_eq!((unit.counters() & CounterSet::GENERAL).len(), general, "{file}");
        assert_eq!((unit.counters() & CounterSet::FIXED).len(), fixed, "{file}");
        assert!(unit.iter().all(|(_, counter)| counter.width() == width), "{file}");
        assert_eq!(unit.global().is_some(), fixed != 0, "{file}");
        assert!(!unit.can_deny_user_reads(), "{file}");
    }
}

/// An opened event, as the writes that started it.
fn started(
    unit: &CounterUnit,
    msr: &RegisterFile,
    event: &Event,
) -> Result<Vec<(u32, u64)>, CounterError> {
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let events = EventTable::<[EventEntry; 2]>::new();
    let platform = FakePlatform::default();
    let source = pmu::core::Events::new(unit, &events);
    let mut counters =
        CounterSession::take(source, unit, CounterSet::ALL, (msr, &platform), &memory)?;
    assert_eq!(counters.counters().usable, unit.counters(), "every counter answers");
    let opened = counters.open(unit, &[*event]);
    msr.take_writes();
    let outcome = opened.and_then(|id| counters.enable(id, 0));
    let writes = msr.take_writes();
    counters.shut_down().unwrap();
    outcome.map(|()| writes).reason()
}

#[test]
fn any_event_of_hygons_manual_runs_on_amds_registers() {
    for file in HYGON {
        let machine = Machine::detect(&recorded(file));
        let msr = hygon_registers();
        // Event 0x1D0 of 12 bits, unit mask 0x02.
        let event = Event::raw(EventSelect::from_bits(0x1_0000_02D0)).every(0x1_0000);
        let writes = started(machine.unit(), &msr, &event).unwrap();
        let preload = (1 << 48) - 0x1_0000;
        assert_eq!(writes, [(0xC001_0201, preload), (0xC001_0200, 0x1_0053_02D0)], "{file}");
        // Those of AMD's first Zen have names.
        let cycles = started(machine.unit(), &msr, &Event::generic(GenericEvent::Cycles)).unwrap();
        assert_eq!(cycles.last(), Some(&(0xC001_0200, 0x53_0076)), "{file}");
        let reference = Event::generic(GenericEvent::ReferenceCycles);
        let refused = started(machine.unit(), &msr, &reference);
        assert_eq!(
            refused,
            Err(CounterError::Unsupported(GenericEvent::ReferenceCycles)),
            "{file}"
        );
    }
}

#[test]
fn zhaoxin_takes_raw_events_only() {
    for (file, general, width) in [("zhaoxin-shanghai.txt", 2, 40), ("zhaoxin-kx6000.txt", 4, 48)] {
        let machine = Machine::detect(&recorded(file));
        let (unit, msr) = (machine.unit(), zhaoxin_registers(general));
        for name in GenericEvent::ALL {
            let refused = started(unit, &msr, &Event::generic(name));
            assert_eq!(refused, Err(CounterError::Unsupported(name)), "{file}");
        }
        assert_eq!(Watchdog::event(unit, 2_600_000_000, 10), None, "{file}");
        // Its cycles, by number, on a general counter.
        let cycles = Event::raw(EventSelect::from_bits(0x0082)).every(0x1_0000);
        let writes = started(unit, &msr, &cycles).unwrap();
        assert_eq!(writes, [(0xC1, (1 << width) - 0x1_0000), (0x186, 0x53_0082)], "{file}");
        // On a fixed counter, where the caller says so.
        let fixed = cycles.on(CounterSet::fixed(0b10));
        let writes = started(unit, &msr, &fixed).unwrap();
        assert_eq!(writes, [(0x30A, (1 << width) - 0x1_0000), (0x38D, 0b1011 << 4)], "{file}");
        let illegal = Event::raw(EventSelect::from_bits(0x20_0082));
        assert_eq!(started(unit, &msr, &illegal), Err(CounterError::IllegalBits(0x20_0000)));
    }
}

/// VIA's Nano has the name of Zhaoxin's first processors. Linux leaves its counters alone.
#[test]
fn a_nano_of_vias_is_not_taken_for_zhaoxins() {
    let nano = recorded("via-nano.txt");
    let machine = Machine::detect(&nano);
    assert!(machine.why_time_only().is_some(), "{machine:?}");
    assert_eq!(machine.why_time_only(), Some(NoInterface::OtherVendor(*b"CentaurHauls")));
}

/// ZX-C's registers: an acknowledgement has no effect while the global control register is clear. (Linux has it so.)
struct ZxC {
    registers: RegisterFile,
    ineffective: Cell<u32>,
}

const GLOBAL_STATUS: u32 = 0x38E;
const GLOBAL_CONTROL: u32 = 0x38F;
const ACKNOWLEDGE: u32 = 0x390;

impl RegisterBackend for ZxC {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.registers.read(address)
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        if address.get() == ACKNOWLEDGE {
            if self.registers.get(GLOBAL_CONTROL) == 0 {
                self.ineffective.set(self.ineffective.get() + 1);
            } else {
                let status = self.registers.get(GLOBAL_STATUS);
                self.registers.set(GLOBAL_STATUS, status & !value);
            }
        }
        self.registers.write(address, value)
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.registers.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        self.registers.update(update)
    }
}

#[test]
fn an_overflow_on_zx_c_is_acknowledged_while_its_counters_are_enabled() {
    let machine = Machine::detect(&recorded("zhaoxin-shanghai.txt"));
    let msr = ZxC { registers: zhaoxin_registers(2), ineffective: Cell::new(0) };
    let platform = FakePlatform::default();
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let events = EventTable::<[EventEntry; 2]>::new();
    let source = Events::new(machine.unit(), &events);
    let mut counters =
        CounterSession::take(source, machine.unit(), CounterSet::ALL, (&msr, &platform), &memory)
            .unwrap();
    let cycles = Event::raw(EventSelect::from_bits(0x0082)).every(0x1_0000);
    let id = counters.open(machine.unit(), &[cycles]).unwrap();
    counters.enable(id, 0).unwrap();
    for _ in 0..3 {
        msr.registers.set(0xC1, 5);
        msr.registers.set(GLOBAL_STATUS, 1);
        let mut told = Vec::new();
        let serviced =
            service(&source, &(&msr, &platform), &memory, |overflow| told.push(overflow.event))
                .unwrap();
        assert_eq!((told, serviced.claim), (vec![id], Claim::Ours));
        assert_eq!(msr.registers.get(GLOBAL_STATUS), 0);
        assert_eq!(msr.registers.get(0xC1), (1 << 40) - 0x1_0000);
    }
    counters.shut_down().unwrap();
    assert_eq!(msr.ineffective.get(), 0);
}

/// Leaf 6, ECX bit 0, as recorded: MPERF and APERF.
#[test]
fn clocks_are_where_leaf_6_declares_them() {
    for (file, declared) in [
        ("hygon-dhyana.txt", true),
        ("hygon-c86-4g.txt", true),
        ("zhaoxin-shanghai.txt", false),
        ("zhaoxin-kx6000.txt", true),
        ("amd-k8.txt", false),
        ("amd-zen4.txt", true),
        ("intel-skylake.txt", true),
        ("intel-yonah.txt", true),
    ] {
        assert_eq!(Clocks::detect(&recorded(file)).is_some(), declared, "{file}");
    }
    let clocks = Clocks::detect(&recorded("zhaoxin-kx6000.txt")).unwrap();
    let msr = RegisterFile::new([0xE7, 0xE8], 0);
    msr.set(0xE7, 1_000);
    msr.set(0xE8, 7_000);
    let reading = clocks.read(&msr).unwrap();
    assert_eq!((reading.mperf, reading.aperf), (1_000, 7_000));
    assert_eq!(msr.take_writes(), []);
    // A hypervisor that declares them and has none.
    let fault = clocks.read(&RegisterFile::new([0xE7], 0)).unwrap_err();
    assert_eq!(fault.register, 0xE8);
}
