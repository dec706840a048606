//! Events as perf's command line has them: names, terms and modifiers, by perf-list(1) and perf-record(1).

use perf_event_open_sys::bindings;
use pmu::core::{Event, GenericEvent};
use pmu::perf::{
    AttrFlags, Cache, CacheEvent, CacheOperation, CoreKind, Facility, PERF_TYPE_HARDWARE,
    PERF_TYPE_RAW, PerfAttributes, PerfError, PerfEvent, PerfEventAttr,
};
use pmu_events::{SAPPHIRERAPIDS, SKYLAKE};
use proptest::prelude::*;

fn parse(text: &str) -> Result<PerfEvent<'_>, PerfError> {
    PerfEvent::parse(text, &SKYLAKE)
}

fn parsed(text: &str) -> PerfEvent<'_> {
    parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn select(type_: u32, config: u64) -> PerfAttributes {
    PerfAttributes { type_, config, ..Default::default() }
}

/// perf-list(1): the generic events, with the numbers of the kernel's header.
#[test]
fn generic_events_have_perfs_names() {
    for (name, number) in [
        ("cpu-cycles", bindings::PERF_COUNT_HW_CPU_CYCLES),
        ("cycles", bindings::PERF_COUNT_HW_CPU_CYCLES),
        ("instructions", bindings::PERF_COUNT_HW_INSTRUCTIONS),
        ("cache-references", bindings::PERF_COUNT_HW_CACHE_REFERENCES),
        ("cache-misses", bindings::PERF_COUNT_HW_CACHE_MISSES),
        ("branch-instructions", bindings::PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
        ("branches", bindings::PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
        ("branch-misses", bindings::PERF_COUNT_HW_BRANCH_MISSES),
        ("bus-cycles", bindings::PERF_COUNT_HW_BUS_CYCLES),
        ("stalled-cycles-frontend", bindings::PERF_COUNT_HW_STALLED_CYCLES_FRONTEND),
        ("idle-cycles-frontend", bindings::PERF_COUNT_HW_STALLED_CYCLES_FRONTEND),
        ("stalled-cycles-backend", bindings::PERF_COUNT_HW_STALLED_CYCLES_BACKEND),
        ("idle-cycles-backend", bindings::PERF_COUNT_HW_STALLED_CYCLES_BACKEND),
        ("ref-cycles", bindings::PERF_COUNT_HW_REF_CPU_CYCLES),
    ] {
        let expected = select(PERF_TYPE_HARDWARE, number.into());
        for text in [name.to_owned(), format!("cpu/{name}/"), format!("{name}//")] {
            assert_eq!(parsed(&text).attr.select, expected, "{text}");
        }
    }
}

/// perf-list(1): the cache events, with the numbers of the kernel's header.
#[test]
fn cache_events_have_perfs_names() {
    use bindings::*;
    const MISS: u32 = PERF_COUNT_HW_CACHE_RESULT_MISS;
    const ACCESS: u32 = PERF_COUNT_HW_CACHE_RESULT_ACCESS;
    const READ: u32 = PERF_COUNT_HW_CACHE_OP_READ;
    const WRITE: u32 = PERF_COUNT_HW_CACHE_OP_WRITE;
    const PREFETCH: u32 = PERF_COUNT_HW_CACHE_OP_PREFETCH;
    let type_ = pmu::perf::PERF_TYPE_HW_CACHE;
    assert_eq!(type_, PERF_TYPE_HW_CACHE);
    for (name, cache, operation, result) in [
        ("L1-dcache-loads", PERF_COUNT_HW_CACHE_L1D, READ, ACCESS),
        ("L1-dcache-load-misses", PERF_COUNT_HW_CACHE_L1D, READ, MISS),
        ("L1-dcache-stores", PERF_COUNT_HW_CACHE_L1D, WRITE, ACCESS),
        ("L1-dcache-prefetch-misses", PERF_COUNT_HW_CACHE_L1D, PREFETCH, MISS),
        ("L1-icache-loads", PERF_COUNT_HW_CACHE_L1I, READ, ACCESS),
        ("L1-icache-load-misses", PERF_COUNT_HW_CACHE_L1I, READ, MISS),
        ("L1-icache-prefetches", PERF_COUNT_HW_CACHE_L1I, PREFETCH, ACCESS),
        ("LLC-loads", PERF_COUNT_HW_CACHE_LL, READ, ACCESS),
        ("LLC-load-misses", PERF_COUNT_HW_CACHE_LL, READ, MISS),
        ("LLC-stores", PERF_COUNT_HW_CACHE_LL, WRITE, ACCESS),
        ("LLC-store-misses", PERF_COUNT_HW_CACHE_LL, WRITE, MISS),
        ("dTLB-load-misses", PERF_COUNT_HW_CACHE_DTLB, READ, MISS),
        ("dTLB-stores", PERF_COUNT_HW_CACHE_DTLB, WRITE, ACCESS),
        ("iTLB-loads", PERF_COUNT_HW_CACHE_ITLB, READ, ACCESS),
        ("iTLB-load-misses", PERF_COUNT_HW_CACHE_ITLB, READ, MISS),
        ("branch-loads", PERF_COUNT_HW_CACHE_BPU, READ, ACCESS),
        ("branch-load-misses", PERF_COUNT_HW_CACHE_BPU, READ, MISS),
        ("node-loads", PERF_COUNT_HW_CACHE_NODE, READ, ACCESS),
        ("node-store-misses", PERF_COUNT_HW_CACHE_NODE, WRITE, MISS),
    ] {
        let config = u64::from(cache | operation << 8 | result << 16);
        let event = parsed(name).attr.select;
        assert_eq!(event, select(type_, config), "{name}");
        assert_eq!(CacheEvent::from_config(config).unwrap().to_string(), name);
    }
    // Other spellings of the same.
    for (text, name) in [
        ("l1d-read-miss", "L1-dcache-load-misses"),
        ("L1-DCACHE-MISSES-LOAD", "L1-dcache-load-misses"),
        ("l1-d", "L1-dcache-loads"),
        ("l1-data-access", "L1-dcache-loads"),
        ("L2-misses", "LLC-load-misses"),
        ("llc", "LLC-loads"),
        ("d-tlb-write", "dTLB-stores"),
        ("bpu-load-misses", "branch-load-misses"),
        ("node-speculative-read", "node-prefetches"),
    ] {
        assert_eq!(parsed(text).attr.select, parsed(name).attr.select, "{text}");
    }
    for text in [
        "L1-icache-stores",
        "iTLB-stores",
        "iTLB-prefetches",
        "branch-stores",
        "LLC-",
        "LLC-loads-",
        "LLC-loads-stores",
        "LLC-loads-misses-misses",
        "L1-dcachexloads",
        "L3-loads",
        "é",
    ] {
        assert_eq!(text.parse::<CacheEvent>(), Err(PerfError::Term { at: 0 }), "{text}");
    }
    for config in [0x7, 0x300, 0x2_0000, 1 << 24, 1 << 63, 0x101] {
        assert_eq!(CacheEvent::from_config(config), None);
    }
    let event =
        CacheEvent { cache: Cache::DataTlb, operation: CacheOperation::Store, misses: true };
    assert_eq!(CacheEvent::from_config(event.config()), Some(event));
}

#[test]
fn raw_configurations_and_names_of_the_processor_are_raw_events() {
    for (text, config, config1) in [
        ("r1a8", 0x1A8, 0),
        ("cpu/r1a8/", 0x1A8, 0),
        ("cpu/event=0xa8,umask=0x1,inv,cmask=0x1/", 0x180_01A8, 0),
        ("cpu/config=0x1a8/", 0x1A8, 0),
        ("cpu/event=0xb7,umask=0x1,offcore_rsp=0x3fc0400001/", 0x1B7, 0x3F_C040_0001),
        ("cpu/event=0xcd,umask=0x1,ldlat=30/", 0x1CD, 30),
        ("cpu/event=0xc6,umask=0x1,frontend=0x11/", 0x1C6, 0x11),
        ("cpu/config=0x1b7,config1=0x10001/", 0x1B7, 0x1_0001),
        // Of Skylake's list.
        ("mem_load_retired.l3_miss", 0x20D1, 0),
        ("cpu/mem_load_retired.l3_miss/", 0x20D1, 0),
        ("mem_trans_retired.load_latency_gt_64", 0x1CD, 64),
        ("cpu/inst_retired.any_p,cmask=4,inv/", 0x480_00C0 | 1 << 23, 0),
    ] {
        let expected = PerfAttributes { config1, ..select(PERF_TYPE_RAW, config) };
        assert_eq!(parsed(text).attr.select, expected, "{text}");
    }
}

#[test]
fn periods_frequencies_and_names_are_terms() {
    let event = parsed("cpu/event=0xc0,period=100003,name=retired/u");
    assert_eq!(event.name, Some("retired"));
    let expected =
        PerfAttributes { sample_period: 100_003, exclude_kernel: true, ..select(4, 0xC0) };
    let attr = PerfEventAttr {
        select: expected,
        flags: AttrFlags::EXCLUDE_HV,
        ..PerfEventAttr::default()
    };
    assert_eq!(event.attr, attr);

    let event = parsed("cycles/freq=4000/");
    assert_eq!((event.attr.flags, event.attr.select.sample_period), (AttrFlags::FREQ, 4000));
    assert_eq!(event.name, None);
    // As in perf, the last one decides.
    let event = parsed("cycles/freq=4000,period=5000/");
    assert_eq!((event.attr.flags, event.attr.select.sample_period), (AttrFlags::NONE, 5000));
    let event = parsed("cpu/cycles,period=5000,freq=0x10/");
    assert_eq!((event.attr.flags, event.attr.select.sample_period), (AttrFlags::FREQ, 16));
    assert_eq!(parsed("cpu/cycles,inherit/").attr.flags, AttrFlags::INHERIT);
    assert_eq!(parsed("cpu/cycles,inherit,no-inherit/").attr.flags, AttrFlags::NONE);
    let event = parsed("cpu/cycles,config2=2,config3=3,config4=4/").attr;
    assert_eq!((event.config2, event.config3, event.config4), (2, 3, 4));
}

/// perf's grammar has `opt_event_config` behind a raw event, too.
#[test]
fn terms_may_follow_a_raw_configuration() {
    for (text, others) in [
        ("r1a8/period=5000/", "cpu/r1a8,period=5000/"),
        ("r1a8/period=5000/u", "cpu/event=0xa8,umask=0x1,period=5000/u"),
        ("r0x1a8/freq=4000,name=mine/:k", "cpu/r1a8,freq=4000,name=mine/k"),
        ("r1a8//u", "r1a8:u"),
        ("r1b7/offcore_rsp=0x10001/", "cpu/event=0xb7,umask=1,offcore_rsp=0x10001/"),
        ("r1A8/inherit/ppp", "cpu/r1a8,inherit/ppp"),
    ] {
        assert_eq!(parsed(text), parsed(others), "{text}");
    }
    let attr = parsed("r1a8/period=5000/").attr;
    let expected = PerfAttributes { sample_period: 5000, ..select(PERF_TYPE_RAW, 0x1A8) };
    assert_eq!(attr.select, expected);
}

#[test]
fn hybrid_units_name_their_cores() {
    assert_eq!(parsed("cpu/cycles/").core, None);
    assert_eq!(parsed("cycles").core, None);
    assert_eq!(parsed("cpu_core/cycles/").core, Some(CoreKind::Core));
    assert_eq!(parsed("cpu_atom/event=0xc0/k").core, Some(CoreKind::Atom));
    // SDM vol. 2A, leaf 1AH: 20H is Atom, 40H is Core.
    let of_kind = |kind: u32| {
        pmu::core::x86::Snapshot::capture(move |leaf: u32, _: u32| {
            pmu::core::x86::raw_cpuid::CpuIdResult {
                eax: match leaf {
                    0 => 0x1A,
                    0x1A => kind << 24 | 1,
                    _ => 0,
                },
                ebx: 0x756E_6547,
                ecx: 0x6C65_746E,
                edx: 0x4965_6E69,
            }
        })
    };
    let kinds = [0, 0x20, 0x40].map(of_kind);
    assert_eq!(kinds.each_ref().map(|this| CoreKind::Core.is_of(this)), [false, false, true]);
    assert_eq!(kinds.each_ref().map(|this| CoreKind::Atom.is_of(this)), [false, true, false]);
}

/// perf-list(1), "Event modifiers"; levels and guests as perf's parse-events sets them.
#[test]
fn modifiers_exclude_what_they_do_not_name() {
    let bits = |text: &str| {
        let attr = parsed(text).attr;
        let select = attr.select;
        let excluded = [
            select.exclude_user,
            select.exclude_kernel,
            attr.flags.contains(AttrFlags::EXCLUDE_HV),
            select.exclude_host,
            select.exclude_guest,
        ];
        excluded.map(u8::from)
    };
    for (modifiers, excluded) in [
        ("u", [0, 1, 1, 0, 0]),
        ("k", [1, 0, 1, 0, 0]),
        ("h", [1, 1, 0, 0, 0]),
        ("uk", [0, 0, 1, 0, 0]),
        ("ku", [0, 0, 1, 0, 0]),
        ("ukh", [0, 0, 0, 0, 0]),
        ("G", [0, 0, 0, 1, 0]),
        ("H", [0, 0, 0, 0, 1]),
        ("GH", [0, 0, 0, 0, 0]),
        ("uG", [0, 1, 1, 1, 0]),
        ("kH", [1, 0, 1, 0, 1]),
        ("I", [0; 5]),
    ] {
        assert_eq!(bits(&format!("cycles:{modifiers}")), excluded, "{modifiers}");
        assert_eq!(bits(&format!("cpu/event=0xc0/{modifiers}")), excluded, "{modifiers}");
        assert_eq!(bits(&format!("cpu/event=0xc0/:{modifiers}")), excluded, "{modifiers}");
        assert_eq!(bits(&format!("r1c0:{modifiers}")), excluded, "{modifiers}");
    }
    assert_eq!(parsed("cycles:I").attr.flags, AttrFlags::EXCLUDE_IDLE);
    assert_eq!(parsed("cycles:D").attr.flags, AttrFlags::PINNED);
    assert_eq!(parsed("cycles:e").attr.flags, AttrFlags::EXCLUSIVE);
    let cycles = Event::generic(GenericEvent::Cycles).with_total().exclusive();
    assert_eq!(parsed("cycles:e").attr.event(&()), Ok(cycles.rotating()));
    assert_eq!(parsed("cycles:eD").attr.event(&()), Ok(cycles));
    assert!(parsed("cycles:W").weak_group && !parsed("cycles:D").weak_group);
    let read = parsed("cycles:S").attr;
    let (sample, format) = (bindings::PERF_SAMPLE_READ, bindings::PERF_FORMAT_GROUP);
    assert_eq!((read.sample_type, read.read_format), (u64::from(sample), u64::from(format)));
    assert_eq!(u64::from(bindings::PERF_SAMPLE_BRANCH_STACK), PerfEventAttr::SAMPLE_BRANCH_STACK);

    let event = parsed("instructions:uD").attr.event(&());
    assert_eq!(event, Ok(Event::generic(GenericEvent::Instructions).user_only()));
    let nothing = parsed("cycles:h").attr.event(&());
    assert_eq!(nothing, Err(PerfError::ExcludesAll));
}

/// perf-list(1): "P - use maximum detected precise level". perf begins with 3 and lowers it until the event opens.
#[test]
fn the_modifier_capital_p_is_every_precision_from_the_greatest_on() {
    let levels = |text: &str| {
        let event = parsed(text);
        let attempts: Vec<_> = event.attempts().collect();
        for attr in &attempts {
            assert_eq!(
                PerfEventAttr { precise_ip: 3, ..*attr },
                PerfEventAttr { precise_ip: 3, ..event.attr }
            );
        }
        (event.precise_max, attempts.iter().map(|attr| attr.precise_ip).collect::<Vec<_>>())
    };
    for text in ["cycles:P", "cycles:uP", "cycles:Pp", "cycles:ppPk", "cpu/cycles,period=100003/P"]
    {
        assert_eq!(levels(text), (true, vec![3, 2, 1, 0]), "{text}");
    }
    for (text, level) in [("cycles", 0), ("cycles:p", 1), ("cycles:pp", 2), ("cycles:ppp", 3)] {
        assert_eq!(levels(text), (false, vec![level]), "{text}");
    }
    assert!(parsed("cycles:uP").attr.select.exclude_kernel);
    // The last attempt is the plain event.
    let plain = parsed("cycles/period=100003/uP").attempts().last().unwrap();
    let cycles = Event::generic(GenericEvent::Cycles).with_total().rotating().user_only();
    assert_eq!(plain.event(&()), Ok(cycles.every(100_003)));
}

/// perf-list(1): "0 - SAMPLE_IP can have arbitrary skid; 1 - must have constant skid; 2 - requested to have 0 skid; 3 -
/// must have 0 skid".
#[test]
fn the_modifier_p_is_the_precision_of_an_event() {
    use pmu::core::precise::Precision;
    let event_of = |text: &str| parsed(text).attr.event(&());
    let branches = Event::generic(GenericEvent::Branches).with_total().rotating().every(10_007);
    for (modifiers, event, precision) in [
        ("p", branches, Precision::ConstantSkid),
        ("pp", branches, Precision::ZeroSkidRequested),
        ("ppp", branches, Precision::ZeroSkidRequired),
        ("upp", branches.user_only(), Precision::ZeroSkidRequested),
        ("pkp", branches.kernel_only(), Precision::ZeroSkidRequested),
        ("ppH", branches.outside_guests(), Precision::ZeroSkidRequested),
    ] {
        let text = format!("branches/period=10007/{modifiers}");
        assert_eq!(event_of(&text), Ok(event.precise(precision)), "{text}");
    }
    assert_eq!(event_of("branches:u").unwrap().precision(), None);
    // MEM_TRANS_RETIRED.LOAD_LATENCY_GT_64, by its encoding and by its name.
    let loads =
        Event::raw(pmu::core::registers::EventSelect::from_bits(0x01CD)).with_total().rotating();
    let loads = loads.every(1_009).user_only().precise(Precision::ZeroSkidRequested);
    for text in [
        "cpu/event=0xcd,umask=0x1,ldlat=64,period=1009/upp",
        "cpu/mem_trans_retired.load_latency_gt_64,period=1009/ppu",
    ] {
        assert_eq!(event_of(text), Ok(loads.latency_at_least(64)), "{text}");
    }
    // Without a latency, the processor refuses it; without a precision, it is counted with perf's register.
    assert_eq!(event_of("cpu/event=0xcd,umask=0x1,period=1009/upp"), Ok(loads));
    let counted = event_of("cpu/event=0xcd,umask=0x1,ldlat=64/u").unwrap();
    let (register, cycles) = counted.extra().unwrap();
    assert_eq!((counted.latency(), register.get(), cycles), (None, 0x3F6, 64));
    // FRONTEND_RETIRED.LATENCY_GE_4: the condition is the extra register's value.
    let frontend = event_of("cpu/event=0xc6,umask=0x1,frontend=0x400406,period=1009/pp").unwrap();
    assert_eq!(frontend.precision(), Some(Precision::ZeroSkidRequested));
    let (register, condition) = frontend.extra().unwrap();
    assert_eq!((register.get(), condition), (0x3F7, 0x40_0406));
    // And back.
    let back = PerfAttributes::try_from(loads.latency_at_least(64)).unwrap();
    assert_eq!((back.config, back.config1), (0x1CD, 64));
    let other =
        Event::raw(pmu::core::registers::EventSelect::from_bits(0x20D1)).latency_at_least(64);
    assert_eq!(PerfAttributes::try_from(other), Err(PerfError::NoExtraRegister(0x20D1)));
    // Another event has no latency.
    let other = event_of("cpu/event=0xd1,umask=0x20,ldlat=64/pp");
    assert_eq!(other, Err(PerfError::NoExtraRegister(0x20D1)));
}

#[test]
fn a_text_that_is_no_event_says_what_and_where() {
    use Facility::*;
    use PerfError::{Bits, Modifier, Term, Value};
    let needs = |facility, at| PerfError::Needs { facility, at };
    for (text, expected) in [
        ("", Term { at: 0 }),
        ("no_such_event", Term { at: 0 }),
        ("no_such_event:u", needs(TracePoints, 0)),
        (":u", Term { at: 0 }),
        ("/", Term { at: 1 }),
        ("//", Term { at: 0 }),
        ("r", Value { at: 1 }),
        ("r1g", Value { at: 1 }),
        ("r5300c0", Bits(0x53_0000)),
        ("r5300c0/period=5000/", Bits(0x53_0000)),
        ("r1a8/cycles/", Term { at: 5 }),
        ("r1a8/period/", Value { at: 11 }),
        ("r1a8/period=5000", Term { at: 16 }),
        ("rapl/energy-cores/", needs(OtherUnits, 0)),
        ("r1g/period=5000/", needs(OtherUnits, 0)),
        ("r/period=5000/", needs(OtherUnits, 0)),
        ("r11111111111111111/period=5000/", needs(OtherUnits, 0)),
        ("cycles:", Modifier { at: 7 }),
        ("cycles:x", Modifier { at: 7 }),
        ("cycles:ux", Modifier { at: 8 }),
        ("cycles:ukuk", Modifier { at: 9 }),
        ("cycles:DD", Modifier { at: 8 }),
        ("cycles:\u{e9}", Modifier { at: 7 }),
        ("cpu/cycles/:", Modifier { at: 12 }),
        ("cpu/cycles/z", Modifier { at: 11 }),
        ("cpu/cycles", Term { at: 10 }),
        ("cpu//", Term { at: 4 }),
        ("cpu/period=5/", Term { at: 4 }),
        ("cpu/cycles,/", Term { at: 11 }),
        ("cpu/cycles,event=0xc0/", Term { at: 11 }),
        ("cpu/event=0xc0,cycles/", Term { at: 15 }),
        ("cpu/cycles,instructions/", Term { at: 11 }),
        ("cycles/cycles/", Term { at: 7 }),
        ("cpu/no_such_event/", Term { at: 4 }),
        ("cpu/cycles,no_such=1/", Term { at: 11 }),
        ("cpu/cycles,period/", Value { at: 17 }),
        ("cpu/cycles,period=/", Value { at: 18 }),
        ("cpu/cycles,period=x/", Value { at: 18 }),
        ("cpu/cycles,period=-1/", Value { at: 18 }),
        ("cpu/cycles,period=0x8000000000000000/", Value { at: 18 }),
        ("cpu/cycles,freq/", Value { at: 15 }),
        ("cpu/cycles,name=/", Value { at: 16 }),
        ("cpu/event=0xcd,umask=1,ldlat=0x10000/", Value { at: 29 }),
        ("cpu/event=0xc6,umask=1,frontend=0x1000000/", Value { at: 32 }),
        ("cpu/event=0x1000/", Value { at: 10 }),
        // More than a counter is needed.
        ("cycles:upppp", Modifier { at: 11 }),
        ("cpu/cycles/pppup", Modifier { at: 15 }),
        ("cycles:PuP", Modifier { at: 9 }),
        ("cpu/cycles/R", needs(PreciseSampling, 11)),
        ("cycles:b", needs(Bpf, 7)),
        ("cpu/cycles,aux-output/", needs(ProcessorTrace, 11)),
        ("cpu/cycles,aux-sample-size=64/", needs(ProcessorTrace, 11)),
        ("cpu/cycles,acr_mask/", Value { at: 19 }),
        ("cgroup-switches", needs(SoftwareEvents, 0)),
        ("bpf-output:u", needs(SoftwareEvents, 0)),
        ("mem:0x1000:rw", needs(Breakpoints, 0)),
        ("mem/0x1000/", needs(Breakpoints, 0)),
        ("sched:sched_switch", needs(TracePoints, 0)),
        ("uncore_imc_0/event=0x4/", needs(OtherUnits, 0)),
        ("ibs_op//", needs(OtherUnits, 0)),
    ] {
        assert_eq!(parse(text), Err(expected), "{text}");
    }
}

#[test]
fn an_event_of_the_list_is_confined_to_its_counters() {
    let event = |text| {
        PerfEvent::parse(text, &SAPPHIRERAPIDS).unwrap().attr.event(&SAPPHIRERAPIDS).unwrap()
    };
    let by_name = event("mem_load_retired.l3_miss:u");
    let listed = Event::from(SAPPHIRERAPIDS.event("mem_load_retired.l3_miss").unwrap());
    assert_eq!(by_name.select(), listed.select());
    assert_eq!(by_name, event("cpu/event=0xd1,umask=0x20/u"));
    assert!(by_name.counts_user() && !by_name.counts_kernel());
}

proptest! {
    #[test]
    fn no_text_panics(
        text in "(cpu/|cpu_core/|cycles[:/]|r)?[a-zA-Z0-9=,/:+_.x\u{e9}-]{0,32}",
    ) {
        if let Ok(event) = parse(&text) {
            let again = PerfEventAttr::from_bytes(&event.attr.to_bytes());
            prop_assert_eq!(again, Ok(event.attr));
        }
    }
}
