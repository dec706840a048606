//! Bytes of a sample's record, against the values of the kernel's header as bindgen has them, and the order of the
//! fields in `perf_event_open(2)`; two levels that the header at hand does not have, by their numbers in a later one.

use perf_event_open_sys::bindings as linux;
use pmu::core::access::RegisterBackend;
use pmu::core::facility::{EventFacility, Facility, Running, Unsettled};
use pmu::core::interrupt::EventOverflow;
use pmu::core::precise::{
    BranchOutcome, DataAccess, DataSource, LineState, PreciseSample, Translation,
};
use pmu::core::registers::CounterId;
use pmu::core::{EventCount, EventId, Sample};
use pmu::perf::{BranchSamples, PerfError, PerfEventAttr, SampleContext};

/// A facility that recorded one instruction.
#[derive(Clone, Copy)]
struct Recorded(Option<PreciseSample>);

impl Facility for Recorded {}

impl EventFacility for Recorded {
    const OFFERS: bool = false;
    fn settle<M: RegisterBackend>(&self, _: &M, _: &Running<'_>) -> Result<(), Unsettled> {
        Ok(())
    }
    fn lose(&self) {}
    fn instruction(&self, _: CounterId) -> Option<PreciseSample> {
        self.0
    }
}

const OVERFLOW: EventOverflow = EventOverflow {
    event: EventId::of_index(0),
    period: 4_096,
    counter: CounterId::general(0).unwrap(),
    tag: 7,
};

const CONTEXT: SampleContext<'_> = SampleContext {
    ip: 0x1000,
    in_user: Some(true),
    pid: 10,
    tid: 11,
    time: 12,
    id: 13,
    stream_id: 14,
    address: 0,
    cpu: 15,
    call_chain: &[0x2000, 0x3000],
    is_privileged: true,
};

const COUNTS: [(u64, EventCount); 1] = [(13, EventCount { value: 4_096, enabled: 0, running: 0 })];

fn attr(sample_type: u64) -> PerfEventAttr {
    let branch_sample_type = BranchSamples::ANY | BranchSamples::HW_INDEX;
    PerfEventAttr { sample_type, branch_sample_type, ..PerfEventAttr::default() }
}

/// Returns the words behind the header, and the header's `misc`.
fn record(
    attr: &PerfEventAttr,
    instruction: Option<PreciseSample>,
    context: &SampleContext<'_>,
) -> (Vec<u64>, u32) {
    let facility = Recorded(instruction);
    let sample = Sample::of(OVERFLOW, Some(&facility));
    let mut bytes = [0xFF; 512];
    let length = attr.records().unwrap().sample(&sample, context, &COUNTS, &mut bytes).unwrap();
    let (words, rest) = bytes[..length].as_chunks::<8>();
    assert_eq!(rest, []);
    let words: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    assert_eq!(words[0] as u32, linux::PERF_RECORD_SAMPLE);
    assert_eq!(words[0] >> 48, length as u64);
    (words[1..].to_vec(), (words[0] >> 32) as u32 & 0xFFFF)
}

fn load(source: DataSource) -> DataAccess {
    DataAccess { load: true, source: Some(source), ..DataAccess::default() }
}

fn accessing(access: DataAccess) -> PreciseSample {
    PreciseSample { access: Some(access), ..PreciseSample::default() }
}

fn weight(var1_dw: u32, var2_w: u16, var3_w: u16) -> u64 {
    u64::from(var1_dw) | u64::from(var2_w) << 32 | u64::from(var3_w) << 48
}

/// Each field alone: its word is where the header's bit says.
#[test]
fn every_field_is_selected_by_its_bit() {
    let access = DataAccess {
        address: Some(0x5000),
        physical_address: Some(0x6000),
        latency: Some(300),
        ..load(DataSource::L2)
    };
    let instruction = PreciseSample {
        address: Some(0x1234),
        latency: Some(17),
        retire_latency: Some(5),
        ..accessing(access)
    };
    let source = data_source(&instruction);
    for (field, words) in [
        (linux::PERF_SAMPLE_IP, &[0x1234][..]),
        (linux::PERF_SAMPLE_TID, &[10 | 11 << 32]),
        (linux::PERF_SAMPLE_TIME, &[12]),
        (linux::PERF_SAMPLE_ADDR, &[0x5000]),
        (linux::PERF_SAMPLE_READ, &[4_096]),
        (linux::PERF_SAMPLE_CALLCHAIN, &[2, 0x2000, 0x3000]),
        (linux::PERF_SAMPLE_ID, &[13]),
        (linux::PERF_SAMPLE_CPU, &[15]),
        (linux::PERF_SAMPLE_PERIOD, &[4_096]),
        (linux::PERF_SAMPLE_STREAM_ID, &[14]),
        (linux::PERF_SAMPLE_BRANCH_STACK, &[0, u64::MAX]), // none, of no index
        (linux::PERF_SAMPLE_WEIGHT, &[300]),
        (linux::PERF_SAMPLE_DATA_SRC, &[source]),
        (linux::PERF_SAMPLE_IDENTIFIER, &[13]),
        (linux::PERF_SAMPLE_TRANSACTION, &[0]),
        (linux::PERF_SAMPLE_PHYS_ADDR, &[0x6000]),
        (linux::PERF_SAMPLE_WEIGHT_STRUCT, &[weight(300, 17, 5)]),
    ] {
        let (found, misc) = record(&attr(field.into()), Some(instruction), &CONTEXT);
        assert_eq!(found, words, "{field:#x}");
        assert_eq!(misc, linux::PERF_RECORD_MISC_USER | linux::PERF_RECORD_MISC_EXACT_IP);
    }
    for field in [
        linux::PERF_SAMPLE_RAW,
        linux::PERF_SAMPLE_REGS_USER,
        linux::PERF_SAMPLE_STACK_USER,
        linux::PERF_SAMPLE_REGS_INTR,
        linux::PERF_SAMPLE_AUX,
        linux::PERF_SAMPLE_CGROUP,
        linux::PERF_SAMPLE_DATA_PAGE_SIZE,
        linux::PERF_SAMPLE_CODE_PAGE_SIZE,
    ] {
        let refused = attr(u64::from(field) | 1).records();
        assert_eq!(refused, Err(PerfError::SampleFields(field.into())));
        assert_eq!(refused.unwrap_err().errno(), 95);
    }
}

#[test]
fn the_fields_have_the_order_of_the_manual() {
    let all = linux::PERF_SAMPLE_IP
        | linux::PERF_SAMPLE_TID
        | linux::PERF_SAMPLE_TIME
        | linux::PERF_SAMPLE_ADDR
        | linux::PERF_SAMPLE_CALLCHAIN
        | linux::PERF_SAMPLE_ID
        | linux::PERF_SAMPLE_CPU
        | linux::PERF_SAMPLE_PERIOD
        | linux::PERF_SAMPLE_STREAM_ID
        | linux::PERF_SAMPLE_BRANCH_STACK
        | linux::PERF_SAMPLE_WEIGHT
        | linux::PERF_SAMPLE_DATA_SRC
        | linux::PERF_SAMPLE_IDENTIFIER
        | linux::PERF_SAMPLE_TRANSACTION
        | linux::PERF_SAMPLE_PHYS_ADDR;
    // A branch accesses no data, and its target is no address of data. Who is not privileged sees no physical address.
    let branch = BranchOutcome { taken: true, target: Some(0x7000), ..BranchOutcome::default() };
    let physical = DataAccess { physical_address: Some(0x6000), ..DataAccess::default() };
    let instruction = PreciseSample { branch: Some(branch), ..accessing(physical) };
    let context = SampleContext { is_privileged: false, in_user: Some(false), ..CONTEXT };
    let (found, misc) = record(&attr(all.into()), Some(instruction), &context);
    let unknown = data_source(&instruction);
    let head = [13, 0x1000, 10 | 11 << 32, 12, 0, 13, 14, 15, 4_096];
    let tail = [2, 0x2000, 0x3000, 0, u64::MAX, 0, unknown, 0, 0];
    assert_eq!(found, [&head[..], &tail[..]].concat());
    assert_eq!(misc, linux::PERF_RECORD_MISC_KERNEL, "the address is the interrupt's");
}

/// The word of the sample's `perf_mem_data_src`.
fn data_source(instruction: &PreciseSample) -> u64 {
    let attr = attr(linux::PERF_SAMPLE_DATA_SRC.into());
    let (words, _) = record(&attr, Some(*instruction), &CONTEXT);
    words[0]
}

/// Level, its number, and how many hops it is away: the header's names.
#[test]
fn each_source_of_data_has_linux_level_and_number() {
    use linux::*;
    // PERF_MEM_LVLNUM_L2_MHB and _MSC are later than the header.
    let (l2_mhb, msc) = (5, 6);
    for (source, remote, level, number, hops) in [
        (DataSource::L1, false, PERF_MEM_LVL_L1, PERF_MEM_LVLNUM_L1, 0),
        (DataSource::FillBuffer, false, PERF_MEM_LVL_LFB, PERF_MEM_LVLNUM_LFB, 0),
        (DataSource::L2, false, PERF_MEM_LVL_L2, PERF_MEM_LVLNUM_L2, 0),
        (DataSource::L2FillBuffer, false, PERF_MEM_LVL_L2, l2_mhb, 0),
        (DataSource::L3, false, PERF_MEM_LVL_L3, PERF_MEM_LVLNUM_L3, 0),
        (
            DataSource::NearCache,
            true,
            PERF_MEM_LVL_REM_CCE1,
            PERF_MEM_LVLNUM_ANY_CACHE,
            PERF_MEM_HOPS_0,
        ),
        (
            DataSource::FarCache,
            true,
            PERF_MEM_LVL_REM_CCE2,
            PERF_MEM_LVLNUM_ANY_CACHE,
            PERF_MEM_HOPS_2,
        ),
        (DataSource::OtherCache, true, PERF_MEM_LVL_REM_CCE1, PERF_MEM_LVLNUM_ANY_CACHE, 0),
        (DataSource::MemorySideCache, false, PERF_MEM_LVL_LOC_RAM, msc, 0),
        (DataSource::Memory, false, PERF_MEM_LVL_LOC_RAM, PERF_MEM_LVLNUM_RAM, 0),
        (DataSource::Memory, true, PERF_MEM_LVL_REM_RAM1, PERF_MEM_LVLNUM_RAM, 0),
        (DataSource::PersistentMemory, false, PERF_MEM_LVL_LOC_RAM, PERF_MEM_LVLNUM_PMEM, 0),
        (DataSource::ExtensionMemory, false, 0, PERF_MEM_LVLNUM_CXL, 0),
        (DataSource::PeerMemory, true, PERF_MEM_LVL_REM_RAM1, PERF_MEM_LVLNUM_RAM, 0),
        (DataSource::Io, false, PERF_MEM_LVL_IO, PERF_MEM_LVLNUM_IO, 0),
    ] {
        let access = DataAccess { remote: Some(remote), ..load(source) };
        let found = data_source(&accessing(access));
        // SAFETY: both members of the union are plain words.
        let fields = unsafe { linux::perf_mem_data_src { val: found }.__bindgen_anon_1 };
        let level = if level == 0 { PERF_MEM_LVL_NA } else { level | PERF_MEM_LVL_HIT };
        assert_eq!(fields.mem_op(), PERF_MEM_OP_LOAD.into(), "{source:?}");
        assert_eq!(fields.mem_lvl(), level.into(), "{source:?}");
        assert_eq!(fields.mem_lvl_num(), number.into(), "{source:?}");
        assert_eq!(fields.mem_hops(), hops.into(), "{source:?}");
        assert_eq!(fields.mem_remote(), remote.into(), "{source:?}");
        assert_eq!(fields.mem_rsvd(), 0, "{source:?}");
    }
}

#[test]
fn what_else_is_known_of_an_access_has_linux_bits() {
    use linux::*;
    let nothing = DataAccess::default();
    let fields = |access: DataAccess| {
        let word = linux::perf_mem_data_src { val: data_source(&accessing(access)) };
        // SAFETY: both members of the union are plain words.
        let of = unsafe { word.__bindgen_anon_1 };
        [of.mem_op(), of.mem_snoop(), of.mem_lock(), of.mem_dtlb()].map(|field| field as u32)
    };
    let none = [PERF_MEM_OP_NA, PERF_MEM_SNOOP_NA, PERF_MEM_LOCK_NA, PERF_MEM_TLB_NA];
    assert_eq!(fields(nothing), none);
    let with = |field: usize, value| {
        let mut fields = none;
        fields[field] = value;
        fields
    };
    let both = DataAccess { load: true, store: true, ..nothing };
    assert_eq!(fields(both), with(0, PERF_MEM_OP_LOAD | PERF_MEM_OP_STORE));
    let prefetch = DataAccess { prefetch: true, ..nothing };
    assert_eq!(fields(prefetch), with(0, PERF_MEM_OP_PFETCH));
    for line in [LineState::Modified, LineState::Owned] {
        assert_eq!(
            fields(DataAccess { line: Some(line), ..nothing }),
            with(1, PERF_MEM_SNOOP_HITM)
        );
    }
    let near = DataAccess { source: Some(DataSource::NearCache), ..nothing };
    assert_eq!(fields(near), with(1, PERF_MEM_SNOOP_HIT));
    for (locked, lock) in [(true, PERF_MEM_LOCK_LOCKED), (false, PERF_MEM_LOCK_NA)] {
        assert_eq!(fields(DataAccess { locked: Some(locked), ..nothing }), with(2, lock));
    }
    for (translation, tlb) in [
        (Translation::L1Tlb, PERF_MEM_TLB_HIT | PERF_MEM_TLB_L1),
        (Translation::L2Tlb, PERF_MEM_TLB_HIT | PERF_MEM_TLB_L2),
        (Translation::PageWalk, PERF_MEM_TLB_MISS | PERF_MEM_TLB_L2),
    ] {
        let translated = DataAccess { translation: Some(translation), ..nothing };
        assert_eq!(fields(translated), with(3, tlb));
    }
    // An instruction of which nothing is recorded says the same.
    let (words, _) = record(&attr(PERF_SAMPLE_DATA_SRC.into()), None, &CONTEXT);
    assert_eq!(words, [data_source(&accessing(nothing))]);
}

/// A read of one event and of a group, by each combination of the format's bits.
#[test]
fn a_read_has_what_its_format_says() {
    let counts = [(21, (1, 2, 3)), (22, (4, 5, 6))]
        .map(|(id, (value, enabled, running))| (id, EventCount { value, enabled, running }));
    for read_format in 0..32_u64 {
        let has = |bit: u32| read_format & u64::from(bit) != 0;
        let mut expected = vec![];
        let is_group = has(linux::PERF_FORMAT_GROUP);
        let times = |words: &mut Vec<u64>| {
            words.extend(has(linux::PERF_FORMAT_TOTAL_TIME_ENABLED).then_some(2));
            words.extend(has(linux::PERF_FORMAT_TOTAL_TIME_RUNNING).then_some(3));
        };
        if is_group {
            expected.push(2);
            times(&mut expected);
        }
        for (id, value) in [(21, 1), (22, 4)].into_iter().take(1 + usize::from(is_group)) {
            expected.push(value);
            if !is_group {
                times(&mut expected);
            }
            expected.extend(has(linux::PERF_FORMAT_ID).then_some(id));
            expected.extend(has(linux::PERF_FORMAT_LOST).then_some(0));
        }
        let format = PerfEventAttr { read_format, ..PerfEventAttr::default() }.records().unwrap();
        assert_eq!(format.reads_group(), is_group);
        let needed = 8 * expected.len();
        let mut bytes = [0xFF; 128];
        assert_eq!(format.read(&counts, &mut bytes), Ok(needed));
        let words = bytes[..needed].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        assert_eq!(words.collect::<Vec<_>>(), expected, "{read_format:#b}");
        assert_eq!(bytes[needed..], [0xFF; 128][needed..], "nothing is written beyond");
        for short in [0, needed - 8, needed - 1] {
            let read = format.read(&counts, &mut bytes[..short]);
            assert_eq!(read, Err(PerfError::NoSpace { needed }), "{short}");
        }
    }
}

#[test]
fn a_record_that_does_not_fit_says_how_long_it_is() {
    let format = attr(linux::PERF_SAMPLE_CALLCHAIN.into()).records().unwrap();
    let facility = Recorded(None);
    let sample = Sample::of(OVERFLOW, Some(&facility));
    for (depth, capacity) in [(2, 31), (8_190, 65_536), (9_000, 100_000)] {
        let chain = vec![1; depth];
        let context = SampleContext { call_chain: &chain, ..CONTEXT };
        let needed = 8 * (depth + 2);
        let written = format.sample(&sample, &context, &[], &mut vec![0; capacity]);
        assert_eq!(written, Err(PerfError::NoSpace { needed }), "{depth}");
    }
    let chain = vec![1; 8_189];
    let context = SampleContext { call_chain: &chain, ..CONTEXT };
    let written = format.sample(&sample, &context, &[], &mut vec![0; 65_535]);
    assert_eq!(written, Ok(65_528), "the longest");
}

/// `perf_output_read_one` writes the sampled event's own count, whichever place it has in its group.
#[test]
fn a_record_without_the_group_has_the_count_of_the_sampled_event() {
    let read_format = (linux::PERF_FORMAT_ID | linux::PERF_FORMAT_TOTAL_TIME_ENABLED).into();
    let format = PerfEventAttr { read_format, ..attr(linux::PERF_SAMPLE_READ.into()) };
    let format = format.records().unwrap();
    let facility = Recorded(None);
    let sample = Sample::of(OVERFLOW, Some(&facility));
    let count = |value| EventCount { value, enabled: value + 1, running: 0 };
    let counts = [(21, count(1)), (CONTEXT.id, count(4))];
    let mut bytes = [0; 32];
    assert_eq!(format.sample(&sample, &CONTEXT, &counts, &mut bytes), Ok(32));
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    assert_eq!(words.skip(1).collect::<Vec<_>>(), [4, 5, CONTEXT.id]);
}

/// A reader finds each field behind the counts, so that a record without them would be read as another one.
#[test]
fn a_record_that_lacks_its_counts_is_refused() {
    for read_format in [0, linux::PERF_FORMAT_GROUP, linux::PERF_FORMAT_ID] {
        let attr = attr((linux::PERF_SAMPLE_READ | linux::PERF_SAMPLE_WEIGHT).into());
        let attr = PerfEventAttr { read_format: read_format.into(), ..attr };
        let format = attr.records().unwrap();
        let facility = Recorded(None);
        let sample = Sample::of(OVERFLOW, Some(&facility));
        let mut bytes = [0; 64];
        let written = format.sample(&sample, &CONTEXT, &[], &mut bytes);
        assert_eq!(written, Err(PerfError::NoCounts), "{read_format}");
        assert_eq!(format.read(&[], &mut bytes), Err(PerfError::NoCounts), "{read_format}");
        // Those of others in its group are not its own. The only one is.
        let others = [21, 22].map(|id| (id, EventCount::default()));
        let written = format.sample(&sample, &CONTEXT, &others, &mut bytes);
        assert_eq!(written.is_ok(), format.reads_group(), "{read_format}: {written:?}");
        format.sample(&sample, &CONTEXT, &others[..1], &mut bytes).unwrap();
    }
}

/// The words of counters that `PERF_SAMPLE_BRANCH_COUNTERS` puts behind the branches would be missing.
#[test]
fn records_with_counters_of_branches_are_refused() {
    let counters = u64::from(linux::PERF_SAMPLE_BRANCH_COUNTERS);
    let attr = attr(linux::PERF_SAMPLE_BRANCH_STACK.into());
    let attr = PerfEventAttr { branch_sample_type: attr.branch_sample_type | counters, ..attr };
    assert_eq!(attr.records(), Err(PerfError::BranchBits(counters)));
}

/// Linux takes the mode of a record's address: the interrupt of a buffered record comes anywhere.
#[test]
fn the_mode_of_a_record_is_that_of_its_exact_address() {
    for (address, mode) in [
        (0x1234, linux::PERF_RECORD_MISC_USER),
        (0xFFFF_FFFF_8100_0000, linux::PERF_RECORD_MISC_KERNEL),
    ] {
        for in_user in [None, Some(false), Some(true)] {
            let instruction = PreciseSample { address: Some(address), ..PreciseSample::default() };
            let context = SampleContext { in_user, ..CONTEXT };
            let (_, misc) = record(&attr(0), Some(instruction), &context);
            assert_eq!(misc, mode | linux::PERF_RECORD_MISC_EXACT_IP, "{address:#x} {in_user:?}");
        }
    }
}

/// As of an overflow that a task reports.
#[test]
fn the_mode_of_a_record_without_an_address_and_a_frame_is_unknown() {
    let context = SampleContext { in_user: None, ..CONTEXT };
    let (_, misc) = record(&attr(0), None, &context);
    assert_eq!(misc, linux::PERF_RECORD_MISC_CPUMODE_UNKNOWN);
}

/// `perf record -d -e faults` asks where the faults are.
#[test]
fn a_software_event_has_the_address_that_the_kernel_knows() {
    let context = SampleContext { address: 0x7F_F000, ..CONTEXT };
    let (words, _) = record(&attr(linux::PERF_SAMPLE_ADDR.into()), None, &context);
    assert_eq!(words, [0x7F_F000]);
}

/// `perf_event_open(2)`: "the error ENOSPC results".
#[test]
fn a_buffer_without_room_is_linux_enospc() {
    let format = PerfEventAttr::default().records().unwrap();
    let read = format.read(&[(1, EventCount::default())], &mut [0; 7]);
    assert_eq!(read.unwrap_err().errno(), 28);
}
