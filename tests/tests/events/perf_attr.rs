//! Bytes of `perf_event_attr`, against bindgen's layout of the kernel's header; config4 and the flags that the header
//! at hand does not have, by offsets counted by hand.

use perf_event_open_sys::bindings::{self, perf_event_attr};
use pmu::amd::ibs::IbsSampling;
use pmu::core::access::{AccessErrorKind, AccessFault, AccessOperation};
use pmu::core::error::NoInterface;
use pmu::core::precise::NotPrecise;
use pmu::core::registers::EventSelect;
use pmu::core::{CounterSet, CounterUnit, Event, EventId, GenericEvent};
use pmu::perf::{
    AttrFlags, Facility, PERF_TYPE_IBS_FETCH, PERF_TYPE_IBS_OP, PERF_TYPE_RAW, PERF_TYPE_SOFTWARE,
    PerfAttributes, PerfError, PerfEvent, PerfEventAttr,
};
use pmu_tests::Reason;
use proptest::prelude::*;

/// Size of the header's structure: `PERF_ATTR_SIZE_VER8`.
const HEADER: usize = size_of::<perf_event_attr>();

fn bytes_of(attr: &perf_event_attr) -> [u8; HEADER] {
    // SAFETY: the structure has no padding: its fields are as long as it is.
    unsafe { core::mem::transmute_copy(attr) }
}

type Setter = fn(&mut perf_event_attr, u64);
type Getter = fn(&PerfAttributes) -> bool;

/// The header's one-bit fields, and the flags that they are here.
const FLAGS: [(Setter, AttrFlags); 32] = [
    (perf_event_attr::set_disabled, AttrFlags::DISABLED),
    (perf_event_attr::set_inherit, AttrFlags::INHERIT),
    (perf_event_attr::set_pinned, AttrFlags::PINNED),
    (perf_event_attr::set_exclusive, AttrFlags::EXCLUSIVE),
    (perf_event_attr::set_exclude_hv, AttrFlags::EXCLUDE_HV),
    (perf_event_attr::set_exclude_idle, AttrFlags::EXCLUDE_IDLE),
    (perf_event_attr::set_mmap, AttrFlags::MMAP),
    (perf_event_attr::set_comm, AttrFlags::COMM),
    (perf_event_attr::set_freq, AttrFlags::FREQ),
    (perf_event_attr::set_inherit_stat, AttrFlags::INHERIT_STAT),
    (perf_event_attr::set_enable_on_exec, AttrFlags::ENABLE_ON_EXEC),
    (perf_event_attr::set_task, AttrFlags::TASK),
    (perf_event_attr::set_watermark, AttrFlags::WATERMARK),
    (perf_event_attr::set_mmap_data, AttrFlags::MMAP_DATA),
    (perf_event_attr::set_sample_id_all, AttrFlags::SAMPLE_ID_ALL),
    (perf_event_attr::set_exclude_callchain_kernel, AttrFlags::EXCLUDE_CALLCHAIN_KERNEL),
    (perf_event_attr::set_exclude_callchain_user, AttrFlags::EXCLUDE_CALLCHAIN_USER),
    (perf_event_attr::set_mmap2, AttrFlags::MMAP2),
    (perf_event_attr::set_comm_exec, AttrFlags::COMM_EXEC),
    (perf_event_attr::set_use_clockid, AttrFlags::USE_CLOCKID),
    (perf_event_attr::set_context_switch, AttrFlags::CONTEXT_SWITCH),
    (perf_event_attr::set_write_backward, AttrFlags::WRITE_BACKWARD),
    (perf_event_attr::set_namespaces, AttrFlags::NAMESPACES),
    (perf_event_attr::set_ksymbol, AttrFlags::KSYMBOL),
    (perf_event_attr::set_bpf_event, AttrFlags::BPF_EVENT),
    (perf_event_attr::set_aux_output, AttrFlags::AUX_OUTPUT),
    (perf_event_attr::set_cgroup, AttrFlags::CGROUP),
    (perf_event_attr::set_text_poke, AttrFlags::TEXT_POKE),
    (perf_event_attr::set_build_id, AttrFlags::BUILD_ID),
    (perf_event_attr::set_inherit_thread, AttrFlags::INHERIT_THREAD),
    (perf_event_attr::set_remove_on_exec, AttrFlags::REMOVE_ON_EXEC),
    (perf_event_attr::set_sigtrap, AttrFlags::SIGTRAP),
];

fn sized() -> perf_event_attr {
    let mut attr = perf_event_attr::default();
    attr.size = HEADER as u32;
    attr
}

#[test]
fn every_flag_is_the_headers() {
    let none = PerfEventAttr::from_bytes(&bytes_of(&sized())).unwrap();
    assert_eq!(none, PerfEventAttr::default());
    for (set, flag) in FLAGS {
        let mut attr = sized();
        set(&mut attr, 1);
        let read = PerfEventAttr::from_bytes(&bytes_of(&attr)).unwrap();
        assert_eq!(read, PerfEventAttr { flags: flag, ..none });
        assert_eq!(read.to_bytes()[40..48], bytes_of(&attr)[40..48]);
    }
    // Bits 38 and 39 are those of the header that has config4.
    let known = FLAGS.iter().fold(AttrFlags::NONE, |all, (_, flag)| all | *flag);
    let later = AttrFlags::DEFER_CALLCHAIN | AttrFlags::DEFER_OUTPUT;
    assert_eq!(later.bits(), 0xC0_0000_0000);
    assert_eq!(AttrFlags::ALL, known | later);

    let exclusions: [(Setter, Getter); 4] = [
        (perf_event_attr::set_exclude_user, |select| select.exclude_user),
        (perf_event_attr::set_exclude_kernel, |select| select.exclude_kernel),
        (perf_event_attr::set_exclude_host, |select| select.exclude_host),
        (perf_event_attr::set_exclude_guest, |select| select.exclude_guest),
    ];
    for (set, excludes) in exclusions {
        let mut attr = sized();
        set(&mut attr, 1);
        let read = PerfEventAttr::from_bytes(&bytes_of(&attr)).unwrap();
        assert!(excludes(&read.select));
        assert_eq!(exclusions.iter().filter(|(_, excludes)| excludes(&read.select)).count(), 1);
        assert_eq!(read.flags, AttrFlags::NONE);
    }
    for precise_ip in 0..4 {
        let mut attr = sized();
        attr.set_precise_ip(precise_ip);
        let read = PerfEventAttr::from_bytes(&bytes_of(&attr)).unwrap();
        assert_eq!(read, PerfEventAttr { precise_ip: precise_ip as u8, ..none });
    }
}

#[test]
fn every_field_is_the_headers() {
    let mut attr = sized();
    attr.type_ = 0x101;
    attr.config = 0x102;
    attr.__bindgen_anon_1.sample_period = 0x103;
    attr.sample_type = 0x104;
    attr.read_format = 0x5;
    attr.__bindgen_anon_2.wakeup_events = 0x106;
    attr.bp_type = 0x107;
    attr.__bindgen_anon_3.config1 = 0x108;
    attr.__bindgen_anon_4.config2 = 0x109;
    attr.branch_sample_type = 0x10A;
    attr.sample_regs_user = 0x10B;
    attr.sample_stack_user = 0x10C;
    attr.clockid = -2;
    attr.sample_regs_intr = 0x10E;
    attr.aux_watermark = 0x10F;
    attr.sample_max_stack = 0x110;
    attr.aux_sample_size = 0x111;
    attr.__reserved_3 = 0b101; // `aux_action` in later headers
    attr.sig_data = 0x113;
    attr.config3 = 0x114;
    let expected = PerfEventAttr {
        select: PerfAttributes {
            type_: 0x101,
            config: 0x102,
            sample_period: 0x103,
            config1: 0x108,
            ..Default::default()
        },
        flags: AttrFlags::NONE,
        precise_ip: 0,
        sample_type: 0x104,
        read_format: 0x5,
        wakeup: 0x106,
        bp_type: 0x107,
        config2: 0x109,
        branch_sample_type: 0x10A,
        sample_regs_user: 0x10B,
        sample_stack_user: 0x10C,
        clockid: -2,
        sample_regs_intr: 0x10E,
        aux_watermark: 0x10F,
        sample_max_stack: 0x110,
        aux_sample_size: 0x111,
        aux_action: 0b101,
        sig_data: 0x113,
        config3: 0x114,
        config4: 0,
    };
    assert_eq!(PerfEventAttr::from_bytes(&bytes_of(&attr)), Ok(expected));
    let written = PerfEventAttr { config4: 0x115, ..expected }.to_bytes();
    assert_eq!(written[..4], bytes_of(&attr)[..4]);
    assert_eq!(written[4..8], [144, 0, 0, 0]);
    assert_eq!(written[8..HEADER], bytes_of(&attr)[8..]);
    assert_eq!(written[HEADER..], 0x115_u64.to_le_bytes());
}

/// The sizes in the header, and the fields that each brought, of `perf_event_open(2)`.
#[test]
fn every_published_size_is_read_with_the_fields_it_has() {
    let published = [
        bindings::PERF_ATTR_SIZE_VER0,
        bindings::PERF_ATTR_SIZE_VER1,
        bindings::PERF_ATTR_SIZE_VER2,
        bindings::PERF_ATTR_SIZE_VER3,
        bindings::PERF_ATTR_SIZE_VER4,
        bindings::PERF_ATTR_SIZE_VER5,
        bindings::PERF_ATTR_SIZE_VER6,
        bindings::PERF_ATTR_SIZE_VER7,
        bindings::PERF_ATTR_SIZE_VER8,
        144,
    ];
    assert_eq!(PerfEventAttr::SIZES.map(|size| size as u32), published);
    let full = PerfEventAttr {
        config2: 2,
        branch_sample_type: 3,
        sample_stack_user: 4,
        sample_regs_intr: 5,
        sample_max_stack: 6,
        aux_sample_size: 7,
        sig_data: 8,
        config3: 9,
        config4: 10,
        ..PerfEventAttr::default()
    };
    for (version, size) in PerfEventAttr::SIZES.into_iter().enumerate() {
        let mut bytes = full.to_bytes();
        bytes[4..8].copy_from_slice(&(size as u32).to_le_bytes());
        let read = PerfEventAttr::from_bytes(&bytes).unwrap();
        let by_version = [
            read.config2,
            read.branch_sample_type,
            read.sample_stack_user.into(),
            read.sample_regs_intr,
            read.sample_max_stack.into(),
            read.aux_sample_size.into(),
            read.sig_data,
            read.config3,
            read.config4,
        ];
        let expected: [u64; 9] =
            core::array::from_fn(|at| if at < version { at as u64 + 2 } else { 0 });
        assert_eq!(by_version, expected, "{size} bytes");
        assert_eq!(PerfEventAttr::from_bytes(&bytes[..size]), Ok(read));
        let needed = size;
        let short = PerfEventAttr::from_bytes(&bytes[..size - 1]);
        assert_eq!(short, Err(PerfError::Short { needed }));
    }
}

/// The rules of `copy_struct_from_user` and `perf_copy_attr` of Linux' `kernel/events/core.c`, by errno(3).
#[test]
fn sizes_and_reserved_fields_are_judged_as_linux_does() {
    let of_size = |size: u32, length: usize| {
        let mut bytes = vec![0; length];
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        bytes
    };
    let read = |bytes: &[u8]| PerfEventAttr::from_bytes(bytes);
    let none = PerfEventAttr::default();
    assert_eq!(read(&of_size(0, 64)), Ok(none));
    assert_eq!(read(&of_size(65, 65)), Ok(none)); // between two versions
    assert_eq!(read(&of_size(4096, 4096)), Ok(none)); // a later version's, with zeros
    for size in [1, 8, 63, 4097, u32::MAX] {
        assert_eq!(read(&of_size(size, 4096)), Err(PerfError::Size(size)));
        assert_eq!(PerfError::Size(size).errno(), 7);
    }
    for at in [144, 151, 4095] {
        let mut bytes = of_size(4096, 4096);
        bytes[at] = 1;
        assert_eq!(read(&bytes), Err(PerfError::LaterField { at }));
        assert_eq!(PerfError::LaterField { at }.errno(), 7);
        // Beyond the caller's size nothing is looked at.
        bytes[4..8].copy_from_slice(&144_u32.to_le_bytes());
        assert_eq!(read(&bytes), Ok(none));
    }
    for length in 0..8 {
        assert_eq!(read(&vec![0; length]), Err(PerfError::Short { needed: 8 }));
    }
    assert_eq!(PerfError::Short { needed: 8 }.errno(), 14);

    for (at, value, expected) in [
        (45, 0x01, PerfError::Flags(1 << 40)),
        (47, 0x80, PerfError::Flags(1 << 63)),
        (27, 0x02, PerfError::SampleType(1 << 25)),
        (32, 0x20, PerfError::ReadFormat(1 << 5)),
        (110, 0x01, PerfError::Reserved { at: 110 }),
        (111, 0x80, PerfError::Reserved { at: 110 }),
        (116, 0x08, PerfError::Reserved { at: 116 }),
        (119, 0x80, PerfError::Reserved { at: 116 }),
        (23, 0x80, PerfError::Period(1 << 63)),
    ] {
        let mut bytes = of_size(144, 144);
        bytes[at] = value;
        assert_eq!(read(&bytes), Err(expected));
        assert_eq!(expected.errno(), 22);
        bytes[at] = 0;
        assert_eq!(read(&bytes), Ok(none));
    }
    // A frequency has no such limit here: the greatest one is the kernel's to choose.
    let mut bytes = of_size(64, 64);
    (bytes[23], bytes[41]) = (0x80, 0x04);
    assert!(read(&bytes).unwrap().flags.contains(AttrFlags::FREQ));
}

/// As Linux' AMD core PMU passes precise events on to IBS: cycles, 0x76 and 0xC1, of precision 1 and 2.
#[test]
fn a_precise_event_of_cycles_or_ops_samples_ops_on_amd() {
    use pmu::amd::ibs::{Ibs, IbsMemory, IbsUnits};
    use pmu::core::error::CounterError;
    use pmu::core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
    use pmu::core::precise::NotPrecise;
    use pmu::core::registers::{CounterId, MAX_COUNTERS};
    use pmu::core::{CounterSession, CounterSet, Events};
    use pmu::perf::PerfEvent;
    use pmu_tests::opened::{Mock, fed_events};
    use pmu_virt::VirtualPmu;
    use pmu_virt::configuration::{AmdConfiguration, Configuration};
    use pmu_virt::ibs::{IbsConfiguration, VirtualIbs};
    let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let pmu = VirtualPmu::new(configuration, fed_events()).unwrap();
    let mock = Mock::strict(pmu).with_sampling(VirtualIbs::new(IbsConfiguration::ZEN_4));
    let (unit, units) =
        (pmu::amd::counters(&mock.snapshot()), IbsUnits::of(&mock.snapshot()).unwrap());
    let (memory, table) = (IbsMemory::new(), EventTable::<[EventEntry; 2]>::new());
    let counters = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let source = Events::new(&unit, &table as &EventTable).with(Ibs::new(&units, &memory));
    let mut session =
        CounterSession::take(source, &unit, CounterSet::ALL, &mock, &counters).unwrap();
    let mut place = |text: &str| {
        let event = PerfEvent::parse(text, &()).unwrap().attr.event(&()).unwrap();
        let id = session.open(&unit, &[event])?;
        session.enable(id, 0)?;
        let on = session.counter_of(id);
        session.close(id, 0).map(|_| on)
    };
    for text in [
        "cycles/period=400000/p",
        "cycles/period=400000/upp",
        "cpu/event=0x76,period=400000/pp",
        "cpu/event=0xc1,period=400000/kpp",
        "cycles/period=0x100000000/p",
        "cpu/event=0x76,period=400001/pp",
    ] {
        assert_eq!(place(text), Ok(Some(CounterId::OP_UNIT)), "{text}");
    }
    let refused = |why| Err(CounterError::NotPrecise(why));
    for (text, why) in [
        ("cycles/period=400000/ppp", NotPrecise::NoExactCounter),
        ("instructions/period=400000/pp", NotPrecise::Event),
        ("cpu/event=0x76,umask=1,period=400000/pp", NotPrecise::Event),
        ("cpu/event=0xc1,inv,period=400000/pp", NotPrecise::Event),
        ("cpu/event=0xc0,period=400000/pp", NotPrecise::Event),
        ("cycles:pp", NotPrecise::NoPeriod),
    ] {
        assert_eq!(place(text).reason(), refused(why), "{text}");
    }
    // This processor has no guests.
    assert_eq!(place("cycles/period=400000/ppG").reason(), Err(CounterError::GuestModeUnsupported));
    assert_eq!(
        place("cycles/period=400000,branch_type=any/pp").reason(),
        Err(CounterError::BranchesUnsupported)
    );
    let plain = place("cycles/period=400000/u").unwrap();
    assert!(plain.is_some_and(|counter| !counter.is_fixed()));
}

/// The bits are those of the `format` files of Linux' PMUs `ibs_op` and `ibs_fetch`.
#[test]
fn sampled_ops_and_fetches_are_events_of_types_of_their_own() {
    const PHYSICAL: u64 = 1 << 19;
    let attr = |type_, config, config1| PerfEventAttr {
        select: PerfAttributes {
            type_,
            config,
            config1,
            sample_period: 0x4_0000,
            ..PerfAttributes::default()
        },
        ..PerfEventAttr::default()
    };
    let event = |attr: PerfEventAttr| attr.event(&()).map(|event| event.select());
    let of = |sampling: IbsSampling| Ok(sampling.event().select());
    let (ops, fetches) = (PERF_TYPE_IBS_OP, PERF_TYPE_IBS_FETCH);
    let slow = IbsSampling::cycles().slower_than(256);
    for (attr, expected) in [
        (attr(ops, 0, 0), of(IbsSampling::cycles())),
        (attr(ops, 1 << 19, 0), of(IbsSampling::ops())),
        (attr(ops, 1 << 19 | 1 << 16, 0), of(IbsSampling::ops().l3_misses_only())),
        (attr(ops, 0, 0x17F), of(slow)),
        (attr(ops, 0, 1 << 12 | 256), of(slow.streaming_stores_only())),
        (attr(fetches, 1 << 57, 0), of(IbsSampling::fetches())),
        (attr(fetches, 1 << 59, 0), of(IbsSampling::fetches().l3_misses_only())),
        (PerfEventAttr { config2: 1, ..attr(ops, 0, 0) }, of(IbsSampling::cycles())),
        (
            PerfEventAttr { sample_type: PHYSICAL, ..attr(ops, 0, 0) },
            of(IbsSampling::cycles().with_physical_addresses()),
        ),
        (attr(ops, 1 << 59, 0), Err(PerfError::Bits(1 << 59))),
        (attr(fetches, 1 << 19, 0), Err(PerfError::Bits(1 << 19))),
        (attr(fetches, 0, 1 << 12), Err(PerfError::Bits(1 << 12))),
        (attr(ops, 0, 127), Err(PerfError::Bits(127))),
        (attr(ops, 0, 2049), Err(PerfError::Bits(2049))),
        (PerfEventAttr { config2: 2, ..attr(ops, 0, 0) }, Err(PerfError::Extension(2))),
    ] {
        assert_eq!(event(attr), expected, "{attr:?}");
    }
}

/// Bit 19, perf's `pc`, stands for a sampling unit in a precise event: user mode is not to choose what the unit does.
#[test]
fn no_bits_of_user_mode_become_a_sampling_unit() {
    let select = PerfAttributes {
        type_: PERF_TYPE_RAW,
        config: 1 << 19 | 0x11,
        ..PerfAttributes::default()
    };
    for precise_ip in 0..=3 {
        let outcome = PerfEventAttr { select, precise_ip, ..PerfEventAttr::default() }.event(&());
        let refused = outcome.err();
        assert_eq!(refused, (precise_ip != 0).then_some(PerfError::Bits(1 << 19)), "{precise_ip}");
    }
}

#[test]
fn an_event_is_reloaded_by_the_members_that_config2_names() {
    let text = "cpu/event=0xc5,acr_mask=0x2,period=5000/";
    let event = PerfEvent::parse(text, &()).unwrap().attr.event(&()).unwrap();
    // Without a total, which no reloaded counter can keep.
    let misses = Event::raw(EventSelect::from_bits(0xC5)).every(5000).reloaded_by(0b10).rotating();
    assert_eq!(event, misses);
}

#[test]
fn what_needs_more_than_a_counter_is_named() {
    let plain = PerfEventAttr::default();
    let refused = |attr: PerfEventAttr| attr.event(&()).unwrap_err();
    let precise = PerfEventAttr { precise_ip: 4, ..plain };
    assert_eq!(refused(precise), PerfError::Facility(Facility::PreciseSampling));
    for trace in [
        PerfEventAttr { flags: AttrFlags::AUX_OUTPUT, ..plain },
        PerfEventAttr { aux_sample_size: 1, ..plain },
        PerfEventAttr { aux_action: 1, ..plain },
    ] {
        assert_eq!(refused(trace), PerfError::Facility(Facility::ProcessorTrace));
    }
    assert_eq!(refused(PerfEventAttr { config2: 0x40, ..plain }), PerfError::Extension(2));
    assert_eq!(refused(PerfEventAttr { config3: 1, ..plain }), PerfError::Extension(3));
    assert_eq!(refused(PerfEventAttr { config4: 1, ..plain }), PerfError::Extension(4));
}

/// As Linux' `x86_pmu_event_init` and what it calls, by the numbers of errno(3).
#[test]
fn an_event_that_cannot_be_has_linuxs_number() {
    for (select, errno) in [
        (PerfAttributes { type_: PERF_TYPE_SOFTWARE, config: 12, ..Default::default() }, 2),
        (PerfAttributes { type_: 2, ..Default::default() }, 2),
        (PerfAttributes { type_: 3, ..Default::default() }, 2),
        (PerfAttributes { config: 8, ..Default::default() }, 2),
        (PerfAttributes { config: 10, ..Default::default() }, 22),
        (PerfAttributes { type_: PERF_TYPE_RAW, config: 1 << 22, ..Default::default() }, 22),
    ] {
        let attr = PerfEventAttr { select, ..Default::default() };
        assert_eq!(attr.event(&()).map_err(PerfError::errno), Err(errno));
    }
    let reloads = PerfEventAttr { config2: 0x40, ..Default::default() };
    assert_eq!(reloads.event(&()).map_err(PerfError::errno), Err(22));
}

#[test]
fn an_event_of_the_system_call_keeps_its_total_and_takes_turns_unless_pinned() {
    let select = PerfAttributes { sample_period: 5000, ..Default::default() };
    let event =
        |flags, select| PerfEventAttr { flags, select, ..Default::default() }.event(&()).unwrap();
    let cycles = Event::generic(GenericEvent::Cycles);
    let counted = PerfAttributes::default();
    assert_eq!(event(AttrFlags::NONE, counted), cycles.rotating());
    assert_eq!(event(AttrFlags::PINNED, counted), cycles);
    assert_eq!(event(AttrFlags::PINNED, select), cycles.every(5000).with_total());
    let of_frequency = cycles.at_frequency(5000);
    assert_eq!(event(AttrFlags::PINNED | AttrFlags::FREQ, select), of_frequency);
    // A frequency of 0 does not interrupt.
    assert_eq!(event(AttrFlags::PINNED | AttrFlags::FREQ, counted), cycles);
    let raw = PerfAttributes { type_: PERF_TYPE_RAW, config: 0xC0, ..Default::default() };
    let expected = Event::raw(EventSelect::from_bits(0xC0)).rotating();
    assert_eq!(event(AttrFlags::NONE, raw), expected);
}

proptest! {
    #[test]
    fn any_bytes_are_attributes_or_a_reason(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        size in 0..200_u32,
    ) {
        if let Some(place) = bytes.get_mut(4..8) {
            place.copy_from_slice(&size.to_le_bytes());
        }
        if let Ok(attr) = PerfEventAttr::from_bytes(&bytes) {
            prop_assert_eq!(PerfEventAttr::from_bytes(&attr.to_bytes()), Ok(attr));
        }
    }

    #[test]
    fn bytes_of_the_latest_size_are_read_back(mut bytes in any::<[[u8; 16]; 9]>()) {
        let bytes = bytes.as_flattened_mut();
        bytes[4..8].copy_from_slice(&[144, 0, 0, 0]);
        for (at, legal) in
            [(23, 0x7F), (27, 0x01), (32, 0x1F), (110, 0), (111, 0), (116, 0x07)]
        {
            bytes[at] &= legal;
        }
        if bytes[25] & 0x40 != 0 {
            bytes[27] = 0; // One kind of weight.
        }
        bytes[28..32].fill(0);
        bytes[33..40].fill(0);
        bytes[45..48].fill(0);
        bytes[117..120].fill(0);
        let read = PerfEventAttr::from_bytes(bytes).unwrap();
        let written = read.to_bytes();
        prop_assert_eq!(written.as_slice(), &*bytes);
    }
}

/// Of `perf_event_open(2)` and Linux' `x86_pmu_event_init` and what it calls, by the numbers of errno(3).
#[test]
fn an_event_that_the_counters_refuse_has_linuxs_number() {
    use pmu::core::error::CounterError::{
        BranchFilterInUse, BranchesUnsupported, ExtraRegisterInUse, GuestModeUnsupported,
        IllegalBits, InsufficientMemory, MemoryInUse, NeedsCounterPair, NoCounterForEvent,
        NoCounters, NoFreeCounter, NoSuchEvent, NotAvailable, NotPrecise as Imprecise,
        NotReloadable, OtherProcessor, Period, StateUnknown, Unchanged, Unsupported,
    };
    let [enoent, eio, ebadf, enomem, ebusy, einval, enodata, eopnotsupp] =
        [2, 5, 9, 12, 16, 22, 61, 95];
    let unit = CounterUnit::NONE;
    let fault = AccessFault {
        operation: AccessOperation::Write,
        register: 0x186,
        kind: AccessErrorKind::Fault,
    };
    for (error, number) in [
        (NoCounters(NoInterface::NoPerformanceMonitoring), enoent),
        (OtherProcessor, enoent),
        (Unsupported(GenericEvent::CacheMisses), enoent),
        (unit.counters_of(&Event::generic(GenericEvent::Cycles)).unwrap_err(), enoent),
        (Unchanged(fault), eio),
        (StateUnknown(fault), eio),
        (NoSuchEvent(EventId::of_index(0)), ebadf),
        (InsufficientMemory { needed: 9, lent: 8 }, enomem),
        (MemoryInUse, ebusy),
        (NotAvailable(CounterSet::GENERAL), ebusy),
        (IllegalBits(1 << 21), einval),
        (NoCounterForEvent, einval),
        (Period(1), einval),
        (NotReloadable, einval),
        // A group that does not fit (`validate_group`).
        (NoFreeCounter, einval),
        (ExtraRegisterInUse(0x1A6), einval),
        (BranchFilterInUse, einval),
        (GuestModeUnsupported, eopnotsupp),
        (NeedsCounterPair, eopnotsupp),
        (BranchesUnsupported, eopnotsupp),
        (Imprecise(NotPrecise::NoFacility), eopnotsupp),
        (Imprecise(NotPrecise::NextAddressOnly), eopnotsupp),
        (Imprecise(NotPrecise::NoExactCounter), eopnotsupp),
        (Imprecise(NotPrecise::NoPeriod), einval),
        (Imprecise(NotPrecise::Event), einval),
        (Imprecise(NotPrecise::NotLatencyEvent), einval),
        (Imprecise(NotPrecise::NeedsBeside(0x8203)), enodata),
    ] {
        assert_eq!(pmu::perf::errno(error), number, "{error:?}");
    }
}

/// Both are of the same word.
#[test]
fn both_kinds_of_weight_are_refused_as_linux_does() {
    let both = 1 << 14 | 1 << 24;
    for (sample_type, expected) in [(1 << 14, None), (1 << 24, None), (both, Some(both))] {
        let bytes = PerfEventAttr { sample_type, ..PerfEventAttr::default() }.to_bytes();
        let refused = PerfEventAttr::from_bytes(&bytes).err();
        assert_eq!(refused, expected.map(PerfError::SampleType));
        assert!(refused.is_none_or(|error| error.errno() == 22));
    }
}
