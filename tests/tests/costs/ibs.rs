//! Costs of instruction-based sampling in register accesses: exact, and equal to the table in tests/data/accesses.md.

use pmu_amd::ibs::{Ibs, IbsKind, IbsMemory, IbsSampling, IbsUnits};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterSession, CounterSet, Events, service};
use pmu_tests::ibs_processor;
use pmu_tests::opened::{Mock, fed_events, happened, raw};
use pmu_virt::VirtualPmu;
use pmu_virt::configuration::{AmdConfiguration, Configuration};
use pmu_virt::ibs::{FedFetch, FedOp, IbsConfiguration, VirtualIbs};

use super::{are_in_the_table, reads_and_writes_of};

/// Numbers of RDMSRs and WRMSRs.
type Cost = [u32; 2];

fn text([reads, writes]: Cost) -> String {
    match (reads, writes) {
        (0, 0) => "–".into(),
        (0, writes) => format!("{writes}W"),
        (reads, 0) => format!("{reads}R"),
        (reads, writes) => format!("{reads}R {writes}W"),
    }
}

/// Costs of one unit, beyond the counters' own: of a counter's interrupt without a sample; of an interrupt with a
/// sample whose every register has a meaning, and with one of which few have; of a start, and of a stop.
fn measure(family: u32, model: u32, ibs: IbsConfiguration, kind: IbsKind) -> [Cost; 5] {
    let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let pmu = VirtualPmu::new(configuration, fed_events()).unwrap();
    let mock = Mock::strict(pmu).with_sampling(VirtualIbs::new(ibs));
    let _ = mock.with_pmu(|pmu| pmu.write(0xC000_0301, 0));
    let counter_unit = pmu_amd::counters(&mock.snapshot());
    let units = IbsUnits::of(&ibs_processor(family, model, ibs.capabilities)).unwrap();
    let (lent, table) = (IbsMemory::new(), EventTable::<[EventEntry; 2]>::new());
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let source = Events::new(&counter_unit, &table as &EventTable).with(Ibs::new(&units, &lent));
    let handler = |mock: &Mock<'_>| {
        service(&source, mock, &memory, |_| ()).unwrap();
    };
    mock.on_interrupt(&handler);
    let cost = |act: &mut dyn FnMut()| reads_and_writes_of(&mock, act);
    let mut session =
        CounterSession::take(source, &counter_unit, CounterSet::ALL, &mock, &memory).unwrap();
    table.set_min_period(1);
    let request = match kind {
        IbsKind::Fetch => IbsSampling::fetches(),
        IbsKind::Op => IbsSampling::cycles(),
    };
    let event = request.with_physical_addresses().event().every(160);
    let sampled = session.open(&counter_unit, &[event]).unwrap();
    // The counters' part of an interrupt.
    let status = cost(&mut || assert!(mock.interrupt_from_elsewhere()));
    let start = cost(&mut || session.enable(sampled, 0).unwrap());
    let sample = |full: bool| {
        let bits = |bits: u64| if full { bits } else { 0 };
        // A taken branch that loads; a load that missed, with both addresses.
        let (branch, load) = (bits(1 << 37 | 1 << 35), bits(0b11 << 17 | 1 << 7 | 1));
        let op = FedOp { data: branch, data3: load, ..FedOp::new(0x1000) };
        // A miss of the TLB, with the physical address.
        let fetch = FedFetch { control: bits(1 << 55 | 1 << 52), ..FedFetch::new(0x1000) };
        let [reads, writes] = cost(&mut || {
            assert!((0..160).any(|_| match kind {
                IbsKind::Op => mock.execute(&op),
                IbsKind::Fetch => mock.fetch(&fetch),
            }));
        });
        [reads - status[0], writes - status[1]]
    };
    let (full, few) = (sample(true), sample(false));
    // Beside counters.
    let event = session.open(&counter_unit, &[raw(3).every(100_000)]).unwrap();
    session.enable(event, 0).unwrap();
    let overflow = || cost(&mut || mock.advance(&mut happened(3, 100_000)));
    let beside = overflow();
    let stop = cost(&mut || session.disable(sampled, 0).unwrap());
    // The interrupt that may be late.
    mock.interrupt_from_elsewhere();
    let own = overflow();
    assert!(mock.breach().is_none(), "{:?}", mock.breach());
    [[beside[0] - own[0], beside[1] - own[1]], full, few, start, stop]
}

/// The rows of instruction-based sampling in tests/data/accesses.md, and the most that a sample may cost.
#[test]
fn the_rows_of_instruction_based_sampling_are_what_is_measured() {
    use IbsKind::{Fetch, Op};
    let kept = IbsConfiguration { fetch_count_kept: true, ..IbsConfiguration::ZEN_3 };
    let rows = [
        ("ops, family 10h", 0x10, 0x02, IbsConfiguration::FAMILY_10H, Op, [7, 1]),
        ("ops, Zen to Zen 5", 0x19, 0x61, IbsConfiguration::ZEN_4, Op, [8, 1]),
        ("ops, second control register", 0x1A, 0x50, IbsConfiguration::ZEN_6, Op, [8, 3]),
        ("fetches, Zen, Zen 2", 0x17, 0x31, kept, Fetch, [4, 2]),
        ("fetches, Zen 3 to Zen 5", 0x19, 0x61, IbsConfiguration::ZEN_4, Fetch, [4, 1]),
        ("fetches, second control register", 0x1A, 0x50, IbsConfiguration::ZEN_6, Fetch, [4, 3]),
    ];
    let mut lines = vec![];
    for (name, family, model, ibs, kind, most) in rows {
        let costs = measure(family, model, ibs, kind);
        assert_eq!(costs[0], [1, 0], "{name}");
        assert!(costs[1][0] <= most[0] && costs[1][1] <= most[1], "{name}: {costs:?}");
        lines.push(format!("| {name} | {} |", costs.map(text).join(" | ")));
    }
    are_in_the_table(&lines);
}
