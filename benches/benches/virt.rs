//! `pmu-virt`: instructions of each access, of advancing, and of saving and restoring.
//!
//! The limits are the crate's aims; a benchmark that passes its limit fails.

use std::hint::black_box;

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::policy::{EventFilter, FilterAction, FilterEntry};
use pmu_virt::{
    Delivery, EventKey, FedEvents, Feed, Mode, PerformanceEntry, PmuState, Privilege, Read,
    VirtualPmu, Write, Written,
};

/// Eight events, one for each of eight counters.
fn events() -> FedEvents {
    let keys: [EventKey; 8] = core::array::from_fn(|n| EventKey::general(0xC0 + n as u16, n as u8));
    FedEvents::new(&keys).unwrap()
}

/// A PMU with `running` general counters that count and interrupt, far from an overflow.
fn pmu(configuration: Configuration, running: u32) -> Box<VirtualPmu> {
    let mut pmu = Box::new(VirtualPmu::new(configuration, events()).unwrap());
    for n in 0..running {
        let select = 0x53_00C0 + u64::from(n) * 0x101;
        let (register, counter) = match configuration {
            Configuration::Intel(_) => (0x186 + n, 0x4C1 + n),
            _ => (0xC001_0200 + 2 * n, 0xC001_0201 + 2 * n),
        };
        let _ = pmu.write(register, select);
        let _ = pmu.write(counter, 0x8000_0000_0000);
    }
    pmu
}

/// With counters of 64 bits, far from an overflow.
fn wide(running: u32) -> Box<VirtualPmu> {
    let configuration = IntelConfiguration::new(5, 8, 4).with(|intel| intel.general_width = 64);
    pmu(Configuration::Intel(configuration), running)
}

fn sixth(running: u32) -> Box<VirtualPmu> {
    pmu(Configuration::Intel(IntelConfiguration::new(6, 8, 4)), running)
}

fn any_thread(running: u32) -> Box<VirtualPmu> {
    let configuration =
        IntelConfiguration::new(5, 8, 4).with(|intel| intel.set(IntelFeature::AnyThread, true));
    pmu(Configuration::Intel(configuration), running)
}

fn intel(running: u32) -> Box<VirtualPmu> {
    pmu(Configuration::Intel(IntelConfiguration::new(5, 8, 4)), running)
}

fn amd(running: u32) -> Box<VirtualPmu> {
    pmu(Configuration::Amd(AmdConfiguration::perf_mon_v2(8)), running)
}

// The bodies that several benchmarks share.
#[inline(always)]
fn write(mut pmu: Box<VirtualPmu>, address: u32, value: u64) -> (Box<VirtualPmu>, Written) {
    let written = black_box(&mut *pmu).write(black_box(address), black_box(value));
    (pmu, written)
}

#[inline(always)]
fn read(pmu: Box<VirtualPmu>, address: u32) -> (Box<VirtualPmu>, Read) {
    let read = black_box(&*pmu).read(black_box(address));
    (pmu, read)
}

#[inline(always)]
fn pass(mut pmu: Box<VirtualPmu>, mut feed: Box<Feed>) -> Both {
    let advanced = black_box(&mut *pmu).advance(black_box(&mut *feed));
    black_box(&advanced);
    (pmu, feed)
}

#[inline(always)]
fn due(mut pmu: Box<VirtualPmu>) -> Box<VirtualPmu> {
    black_box(black_box(&mut *pmu).next_overflow());
    pmu
}

#[library_benchmark]
#[bench::intel_select(intel(4), 0x187, 0x53_05C5)]
#[bench::intel_select_not_fed(intel(4), 0x187, 0x53_003C)]
#[bench::intel_select_stop(intel(4), 0x187, 0)]
#[bench::intel_counter(intel(4), 0xC1, 0xFFFF_0000)]
#[bench::intel_counter_full_width(intel(4), 0x4C1, 0xFFFF_FFFF_0000)]
#[bench::intel_fixed_counter(intel(4), 0x309, 0xFFFF_FFFF_0000)]
#[bench::intel_fixed_control(intel(4), 0x38D, 0xBBBB)]
#[bench::intel_fixed_control_any_thread(any_thread(4), 0x38D, 0xFFFF)]
#[bench::intel_select_version_6(sixth(4), 0x1905, 0x53_05C5)]
#[bench::intel_global_control(intel(4), 0x38F, 0xF)]
#[bench::intel_global_clear(intel(4), 0x390, 0xF)]
#[bench::intel_absent(intel(4), 0x3F1, 0)]
#[bench::amd_select(amd(4), 0xC001_0202, 0x53_05C5)]
#[bench::amd_counter(amd(4), 0xC001_0203, 0xFFFF_FFFF_0000)]
#[bench::amd_global_control(amd(4), 0xC000_0301, 0xF)]
fn wrmsr(pmu: Box<VirtualPmu>, address: u32, value: u64) -> (Box<VirtualPmu>, Written) {
    write(pmu, address, value)
}

#[library_benchmark]
#[bench::intel_select(intel(4), 0x187)]
#[bench::intel_counter(intel(4), 0xC1)]
#[bench::intel_global_status(intel(4), 0x38E)]
#[bench::intel_in_use(intel(8), 0x392)]
#[bench::amd_counter(amd(4), 0xC001_0203)]
#[bench::amd_global_status(amd(4), 0xC000_0300)]
fn rdmsr(pmu: Box<VirtualPmu>, address: u32) -> (Box<VirtualPmu>, Read) {
    read(pmu, address)
}

// Registers that are not the PMU's, among those that guests access most.
#[library_benchmark]
#[bench::tsc(intel(4), 0x10)]
#[bench::tsc_deadline(intel(4), 0x6E0)]
#[bench::kernel_gs_base(intel(4), 0xC000_0102)]
#[bench::amd_kernel_gs_base(amd(4), 0xC000_0102)]
fn rdmsr_of_others(pmu: Box<VirtualPmu>, address: u32) -> (Box<VirtualPmu>, Read) {
    read(pmu, address)
}

#[library_benchmark]
#[bench::tsc_deadline(intel(4), 0x6E0, 1)]
#[bench::amd_x2apic_icr(amd(4), 0x830, 1)]
fn wrmsr_of_others(pmu: Box<VirtualPmu>, address: u32, value: u64) -> (Box<VirtualPmu>, Written) {
    write(pmu, address, value)
}

#[library_benchmark]
#[bench::intel_general(intel(4), 3)]
#[bench::intel_fixed(intel(4), 0x4000_0001)]
#[bench::amd(amd(4), 3)]
fn rdpmc(pmu: Box<VirtualPmu>, ecx: u32) -> (Box<VirtualPmu>, Read) {
    let read = black_box(&*pmu).read_counter(black_box(ecx), Mode::KERNEL);
    (pmu, read)
}

// The benchmarks' own frame: two calls, the arguments through `black_box`, the result.
#[library_benchmark]
#[bench::frame(intel(4), 0x187, 0x53_05C5)]
fn nothing(mut pmu: Box<VirtualPmu>, address: u32, value: u64) -> (Box<VirtualPmu>, Written) {
    let written = untouched(black_box(&mut *pmu), black_box(address), black_box(value));
    (pmu, written)
}

#[inline(never)]
fn untouched(_: &mut VirtualPmu, _: u32, _: u64) -> Written {
    Written { answer: Write::Done, illegal: 0 }
}

/// Returns a feed with `each` of the most events, in both privileges.
fn happened(each: u64) -> Box<Feed> {
    let mut feed = Box::new(Feed::new(&events()));
    for n in 0..8u64 {
        let event = events().find(EventKey::general(0xC0 + n as u16, n as u8)).unwrap();
        feed.add(event, Privilege::User, each + n).unwrap();
        feed.add(event, Privilege::Kernel, each).unwrap();
    }
    feed
}

type Both = (Box<VirtualPmu>, Box<Feed>);

#[library_benchmark]
#[bench::four_counters(intel(4), happened(1000))]
#[bench::eight_counters(intel(8), happened(1000))]
#[bench::eight_counters_of_64_bits(wide(8), happened(1000))]
#[bench::amd_eight_counters(amd(8), happened(1000))]
fn advance(pmu: Box<VirtualPmu>, feed: Box<Feed>) -> Both {
    pass(pmu, feed)
}

// With an overflow, which is rare.
#[library_benchmark]
#[bench::eight_counters(intel(8), happened(1 << 47))]
fn advance_to_overflow(pmu: Box<VirtualPmu>, feed: Box<Feed>) -> Both {
    pass(pmu, feed)
}

#[library_benchmark]
#[bench::four_counters(intel(4))]
#[bench::eight_counters(intel(8))]
fn next_overflow(pmu: Box<VirtualPmu>) -> Box<VirtualPmu> {
    due(pmu)
}

// Without a change before.
#[library_benchmark]
#[bench::eight_counters(looked_at(intel(8)))]
fn next_overflow_again(pmu: Box<VirtualPmu>) -> Box<VirtualPmu> {
    due(pmu)
}

fn looked_at(mut pmu: Box<VirtualPmu>) -> Box<VirtualPmu> {
    let _ = pmu.next_overflow();
    pmu
}

#[library_benchmark]
#[bench::eight_counters(intel(8))]
fn save(pmu: Box<VirtualPmu>) -> Box<VirtualPmu> {
    let state = black_box(&*pmu).state();
    black_box(&state);
    pmu
}

#[library_benchmark]
#[bench::eight_counters(Box::new(intel(8).state()), events())]
fn restore(state: Box<PmuState>, events: FedEvents) -> Box<PmuState> {
    let pmu =
        VirtualPmu::restore(black_box(&*state), state.configuration(), black_box(events)).unwrap();
    black_box(&pmu);
    state
}

// Everything else that an embedder calls.
#[library_benchmark]
#[bench::select(intel(4), 0x187, 0x53_05C5)]
fn check_write(pmu: Box<VirtualPmu>, address: u32, value: u64) -> (Box<VirtualPmu>, Written) {
    let written = black_box(&*pmu).check_write(black_box(address), black_box(value));
    (pmu, written)
}

#[library_benchmark]
#[bench::select(intel(4), 0x187, 0x53_05C5)]
fn host_write(mut pmu: Box<VirtualPmu>, address: u32, value: u64) -> (Box<VirtualPmu>, Written) {
    let written = black_box(&mut *pmu).host_write(black_box(address), black_box(value));
    (pmu, written)
}

#[library_benchmark]
#[bench::select(filtered(), 0x187, 0x53_05C5)]
fn filtered_write(mut pmu: Box<Filtered>, address: u32, value: u64) -> (Box<Filtered>, Written) {
    let written = black_box(&mut *pmu).write(black_box(address), black_box(value));
    (pmu, written)
}

type Filtered = VirtualPmu<EventFilter<32>>;

/// Under a filter of 32 events.
fn filtered() -> Box<Filtered> {
    let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    Box::new(VirtualPmu::with_policy(configuration, events(), filter()).unwrap())
}

fn filter() -> EventFilter<32> {
    let entries: [FilterEntry; 32] = core::array::from_fn(|n| FilterEntry::new(0xC0 + n as u16, 5));
    EventFilter::compile(FilterAction::Allow, 0, &entries).unwrap()
}

#[library_benchmark]
#[bench::of_32_events(filtered(), filter())]
fn set_policy(mut pmu: Box<Filtered>, filter: EventFilter<32>) -> Box<Filtered> {
    black_box(&mut *pmu).set_policy(black_box(filter));
    pmu
}

// In less than quadratic time: ten times the entries, KVM's most, have twelve times the limit; of one event, too.
#[library_benchmark]
#[bench::of_30_events(entries(30, 0xFFF))]
fn compile_30(entries: Vec<FilterEntry>) -> (Box<EventFilter<30>>, Vec<FilterEntry>) {
    let filter = EventFilter::compile(FilterAction::Allow, 0, black_box(&entries)).unwrap();
    (Box::new(filter), entries)
}

#[library_benchmark]
#[bench::of_300_events(entries(300, 0xFFF))]
#[bench::of_one_event(entries(300, 0))]
fn compile_300(entries: Vec<FilterEntry>) -> (Box<EventFilter<300>>, Vec<FilterEntry>) {
    let filter = EventFilter::compile(FilterAction::Allow, 0, black_box(&entries)).unwrap();
    (Box::new(filter), entries)
}

/// Entries in no order, of as many events as the bits of `mask` allow.
fn entries(count: u16, mask: u16) -> Vec<FilterEntry> {
    (0..count).map(|n| FilterEntry::new((n * 0x5A5) & mask, n as u8)).collect()
}

#[library_benchmark]
#[bench::over_an_overflow(intel(8), happened(1 << 47))]
fn advance_through(mut pmu: Box<VirtualPmu>, mut feed: Box<Feed>) -> Both {
    let advanced = black_box(&mut *pmu).advance_through(black_box(&mut *feed));
    let _ = black_box(&advanced);
    (pmu, feed)
}

#[library_benchmark]
#[bench::eight_counters(intel(8))]
fn running(pmu: Box<VirtualPmu>) -> (Box<VirtualPmu>, usize) {
    let running = black_box(&*pmu).running().count();
    (pmu, running)
}

#[library_benchmark]
#[bench::eight_counters(intel(8))]
fn reset(mut pmu: Box<VirtualPmu>) -> Box<VirtualPmu> {
    black_box(&mut *pmu).reset();
    pmu
}

struct Apic(u32);

impl PerformanceEntry for Apic {
    fn entry(&self) -> u32 {
        self.0
    }
    fn set_entry(&mut self, entry: u32) {
        self.0 = entry;
    }
    fn raise(&mut self, delivery: Delivery) {
        black_box(delivery);
    }
}

#[library_benchmark]
#[bench::by_nmi(pending())]
fn deliver_pmi(mut pmu: Box<VirtualPmu>) -> Box<VirtualPmu> {
    let _ = black_box(black_box(&mut *pmu).deliver_pmi(&mut Apic(0x400)));
    pmu
}

fn pending() -> Box<VirtualPmu> {
    let mut pmu = intel(8);
    pmu.set_pmi_pending(true);
    pmu
}

#[library_benchmark]
#[bench::eight_counters(Box::new(intel(8).state()))]
fn to_bytes(state: Box<PmuState>) -> [u8; PmuState::BYTES] {
    black_box(&*state).to_bytes()
}

#[library_benchmark]
#[bench::eight_counters(Box::new(intel(8).state().to_bytes()))]
fn from_bytes(bytes: Box<[u8; PmuState::BYTES]>) -> Box<[u8; PmuState::BYTES]> {
    let _ = black_box(PmuState::from_bytes(black_box(&bytes[..])));
    bytes
}

#[library_benchmark]
#[bench::intel(Configuration::Intel(IntelConfiguration::new(5, 8, 4)))]
fn registers(configuration: Configuration) -> usize {
    black_box(configuration).registers().map(black_box).count()
}

#[library_benchmark]
#[bench::intel(Configuration::Intel(IntelConfiguration::new(5, 8, 4)))]
fn cpuid(configuration: Configuration) -> [u32; 4] {
    black_box(configuration).cpuid(black_box(0x0A), 0, [0; 4])
}

#[library_benchmark]
#[bench::intel(Configuration::Intel(IntelConfiguration::new(5, 8, 4)))]
fn from_cpuid(configuration: Configuration) -> bool {
    let host = |leaf, subleaf| match leaf {
        0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
        _ => configuration.cpuid(leaf, subleaf, [0; 4]),
    };
    Configuration::from_cpuid(black_box(host), 1 << 13).is_ok()
}

#[library_benchmark]
#[bench::intel(Configuration::Intel(IntelConfiguration::new(5, 8, 4)))]
fn intersect(configuration: Configuration) -> bool {
    black_box(configuration).intersect(black_box(&configuration)).is_ok()
}

/// Instructions of `nothing`.
const FRAME: u64 = 19;

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions + FRAME)]);
    LibraryBenchmarkConfig::default().tool(callgrind).clone()
}

library_benchmark_group!(name = access, config = at_most(100), benchmarks = [wrmsr, rdmsr, rdpmc]);
library_benchmark_group!(
    name = others,
    config = at_most(30),
    benchmarks = [rdmsr_of_others, wrmsr_of_others]
);
library_benchmark_group!(
    name = unchanged,
    config = at_most(30),
    benchmarks = [next_overflow_again]
);
library_benchmark_group!(name = time, config = at_most(200), benchmarks = [advance]);
library_benchmark_group!(name = filter, config = at_most(10_000), benchmarks = [compile_30]);
library_benchmark_group!(name = filters, config = at_most(120_000), benchmarks = [compile_300]);
library_benchmark_group!(
    name = rare,
    benchmarks = [
        nothing,
        advance_to_overflow,
        next_overflow,
        save,
        restore,
        check_write,
        host_write,
        filtered_write,
        set_policy,
        advance_through,
        running,
        reset,
        deliver_pmi,
        to_bytes,
        from_bytes,
        registers,
        cpuid,
        from_cpuid,
        intersect
    ]
);

main!(library_benchmark_groups = [access, others, unchanged, time, filter, filters, rare]);
