//! Records of stack walks and of context switches, byte by byte. The expected bytes are counted by hand from
//! the header (PERFINFO_TRACE_HEADER, `tests/data/trace.csv`) and the payloads: a stack walk has the event's time
//! stamp (u64), process and thread (u32 each) and the addresses; a context switch 24 bytes, as `CSwitch` in the
//! Windows SDK.

mod kprofile;

use core::ops::ControlFlow;

use kprofile::{Frame, Machine, leak};
use pmu_core::{InterruptFrame, KProfileSource, ProcessId, ProcessorNumber};
use pmu_kprofile::trace::{
    CONTEXT_SWITCH_HOOK, ContextSwitch, GroupMask, Hook, IntervalHook, IntervalRecord,
    MAX_RETURN_ADDRESSES, PERF_CONTEXT_SWITCH, PERF_PMC_PROFILE, PERF_PROFILE, PebsHookError,
    PebsTracing, RecordError, STACK_WALK_HOOK, StackRing, StackWalk, TraceCallback, TraceRing,
};
use pmu_kprofile::{Affinity, PointerWidth, ProfileObject, Profiles, Rules};

/// A frame with a call chain.
struct Chained {
    frame: Frame,
    chain: Vec<u64>,
}

impl InterruptFrame for Chained {
    fn pc(&self) -> u64 {
        self.frame.pc
    }
    fn cs(&self) -> u16 {
        0
    }
    fn flags(&self) -> u64 {
        0
    }
    fn processor(&self) -> ProcessorNumber {
        self.frame.processor
    }
    fn process(&self) -> Option<ProcessId> {
        self.frame.process
    }
    fn thread(&self) -> u32 {
        self.frame.thread
    }
    fn timestamp(&self) -> u64 {
        self.frame.timestamp
    }
    fn call_chain(&self, visit: &mut dyn FnMut(u64) -> ControlFlow<()>) {
        for address in &self.chain {
            if visit(*address).is_break() {
                return;
            }
        }
    }
}

fn chained(chain: Vec<u64>) -> Chained {
    let frame = Frame {
        pc: 0x1111_2222_3333_4444,
        process: ProcessId::new(0x99_0000_0007),
        thread: 0x0A0B_0C0D,
        timestamp: 0x0102_0304_0506_0708,
        ..Frame::default()
    };
    Chained { frame, chain }
}

fn only<const N: usize>(ring: &StackRing<N>) -> StackWalk {
    let mut drain = ring.drain().unwrap();
    let walk = drain.next().unwrap().unwrap();
    assert!(drain.next().is_none());
    walk
}

#[test]
fn a_call_chain_is_a_stack_walk_with_the_interrupted_address_first() {
    let chain: Vec<u64> = (1..=5).map(|n| n * 0x1_0000_0001).collect();
    for (width, mask) in [(PointerWidth::Bits64, u64::MAX), (PointerWidth::Bits32, 0xFFFF_FFFF)] {
        let ring = StackRing::<2>::for_stacks();
        assert!(ring.push_call_chain(width, &chained(chain.clone())));
        let walk = only(&ring);
        let addresses = [&[0x1111_2222_3333_4444][..], &chain].concat();
        let addresses: Vec<u64> = addresses.iter().map(|address| address & mask).collect();
        assert_eq!(walk.addresses[..], addresses);
        assert_eq!((walk.width, walk.process, walk.thread), (width, 7, 0x0A0B_0C0D));
        assert_eq!(walk.event_timestamp, 0x0102_0304_0506_0708);
    }
}

#[test]
fn a_stack_walk_has_its_hook_and_at_most_32_return_addresses() {
    assert_eq!((STACK_WALK_HOOK, MAX_RETURN_ADDRESSES), (0x1820, 32));
    let ring = StackRing::<1>::for_stacks();
    for length in [0, 31, 32, 33, 1000] {
        for width in [PointerWidth::Bits64, PointerWidth::Bits32] {
            assert!(ring.push_call_chain(width, &chained((0..length).collect())));
            assert!(!ring.push_call_chain(width, &chained(vec![])), "there is no room");
            let kept = length.min(32) as usize;
            assert_eq!(only(&ring).addresses.len(), 1 + kept);
        }
    }
    assert_eq!(ring.dropped(), 10);
}

#[test]
fn the_bytes_of_a_stack_walk_decode_and_damaged_ones_are_refused() {
    // 32-bit: header of 16 bytes, stamp 8, process and thread 4 each, three addresses of 4.
    let mut bytes = vec![0x02, 0x00, 0x10, 0xC0, 0x2C, 0x00, 0x20, 0x18];
    bytes.extend([8, 7, 6, 5, 4, 3, 2, 1, 8, 7, 6, 5, 4, 3, 2, 1]);
    bytes.extend([7, 0, 0, 0, 0x0D, 0x0C, 0x0B, 0x0A]);
    bytes.extend([1, 0, 0, 0x80, 2, 0, 0, 0x80, 3, 0, 0, 0x80]);
    let (walk, length) = StackWalk::decode(&bytes).unwrap();
    assert_eq!((length, &walk.addresses[..]), (0x2C, &[0x8000_0001, 0x8000_0002, 0x8000_0003][..]));
    assert_eq!((walk.process, walk.thread), (7, 0x0A0B_0C0D));
    for cut in 0..bytes.len() {
        assert_eq!(StackWalk::decode(&bytes[..cut]), Err(RecordError::TooShort), "{cut}");
    }
    let damaged = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        bytes.resize(0x300, 0);
        StackWalk::decode(&bytes)
    };
    assert_eq!(damaged(4, 0x1F), Err(RecordError::TooShort));
    assert_eq!(damaged(5, 0x01), Err(RecordError::TooLong));
    assert_eq!(damaged(6, 0x21), Err(RecordError::Hook(0x1821)));
    assert_eq!(damaged(2, 0x12), Err(RecordError::Marker(0xC012_0002)));
}

/// A reader that goes on where a record ends would go on behind the bytes.
#[test]
fn a_record_that_says_to_be_longer_than_its_bytes_is_refused() {
    let mut bytes = [0; ContextSwitch::MAX_SIZE];
    let size = SWITCH.encode(PointerWidth::Bits64, &mut bytes);
    bytes[4] = size as u8 + 1;
    assert_eq!(ContextSwitch::decode(&bytes[..size]), Err(RecordError::TooShort));
    // A stack walk without addresses, and a byte that is none.
    let mut walk = vec![0x02, 0x00, 0x11, 0xC0, 33, 0, 0x20, 0x18];
    walk.resize(32, 0);
    assert_eq!(StackWalk::decode(&walk), Err(RecordError::TooShort));
    walk[4] = 32;
    assert_eq!(StackWalk::decode(&walk).map(|(_, length)| length), Ok(32));
}

#[test]
fn interrupts_have_call_chains_where_they_are_asked_for() {
    static RINGS: [TraceRing<4>; 2] = [const { TraceRing::new() }; 2];
    // Of the first processor alone.
    static STACKS: [StackRing<4>; 1] = [const { StackRing::for_stacks() }; 1];
    static CALLBACK: TraceCallback<4> =
        TraceCallback::new(Hook::SampledProfile, PointerWidth::Bits64, &RINGS).with_stacks(&STACKS);
    let lists: Profiles<2, 2> = Profiles::new();
    let mut machine = Machine::new(Affinity::first(2));
    let object =
        leak(ProfileObject::callback(Rules::LATEST, KProfileSource::TIME, &CALLBACK).unwrap());
    lists.start(object, &mut machine).unwrap();
    for number in [0, 1] {
        let mut interrupt = chained(vec![0xA, 0xB]);
        interrupt.frame.processor = ProcessorNumber::from_index(number);
        lists.timer_interrupt(&interrupt);
    }
    lists.stop(object, &mut machine).unwrap();
    let sample = RINGS[0].drain().unwrap().next().unwrap().unwrap();
    let walk = only(&STACKS[0]);
    assert_eq!((walk.event_timestamp, walk.thread), (sample.timestamp, sample.thread));
    assert_eq!(walk.addresses[..], [sample.pc, 0xA, 0xB]);
    assert_eq!(RINGS[1].drain().unwrap().count(), 1);
    assert_eq!(CALLBACK.dropped(), 0);
}

const SWITCH: ContextSwitch = ContextSwitch {
    timestamp: 0x0102_0304_0506_0708,
    pebs_index: None,
    new_thread: 0x1112_1314,
    old_thread: 0x2122_2324,
    new_priority: 0x31,
    old_priority: -2,
    previous_c_state: 0xF3,
    spare: -4,
    old_wait_reason: 0x35,
    old_wait_mode: 1,
    old_state: -7,
    ideal_processor: 0x38,
    new_wait_time: 0x4142_4344,
    reserved: 0x5152_5354,
};

const PAYLOAD: [u8; 24] = [
    0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21, 0x31, 0xFE, 0xF3, 0xFC, 0x35, 0x01, 0xF9, 0x38,
    0x44, 0x43, 0x42, 0x41, 0x54, 0x53, 0x52, 0x51,
];

#[test]
fn a_context_switch_has_the_documented_payload_with_and_without_a_pebs_index() {
    assert_eq!((CONTEXT_SWITCH_HOOK, PERF_CONTEXT_SWITCH), (0x0524, 0x2000_0004));
    for (width, kind) in [(PointerWidth::Bits64, 0x11), (PointerWidth::Bits32, 0x10)] {
        for (index, size, flags) in [(None, 40, 0x00), (Some(0x6162_6364_6566_6768), 48, 0x80)] {
            let switch = ContextSwitch { pebs_index: index, ..SWITCH };
            let mut bytes = [0xEE; ContextSwitch::MAX_SIZE];
            assert_eq!(switch.encode(width, &mut bytes), size);
            let mut expected = vec![0x02, flags, kind, 0xC0, size as u8, 0, 0x24, 0x05];
            expected.extend([8, 7, 6, 5, 4, 3, 2, 1]);
            expected.extend(index.map_or(vec![], |index| index.to_le_bytes().to_vec()));
            expected.extend(PAYLOAD);
            assert_eq!(bytes[..size], expected);
            assert_eq!(ContextSwitch::decode(&bytes), Ok((width, switch, size)));
            for cut in 0..size {
                assert_eq!(ContextSwitch::decode(&bytes[..cut]), Err(RecordError::TooShort));
            }
        }
    }
    // With three PMC values, as other writers attach them.
    let mut bytes = vec![0x02, 0x03, 0x11, 0xC0, 64, 0, 0x24, 0x05, 8, 7, 6, 5, 4, 3, 2, 1];
    bytes.extend([0xEE; 24]);
    bytes.extend(PAYLOAD);
    assert_eq!(ContextSwitch::decode(&bytes), Ok((PointerWidth::Bits64, SWITCH, 64)));
    bytes[4] = 63;
    assert_eq!(ContextSwitch::decode(&bytes), Err(RecordError::TooShort));
    bytes[6] = 0x2F;
    assert_eq!(ContextSwitch::decode(&bytes), Err(RecordError::Hook(0x052F)));
}

#[test]
fn the_pebs_index_is_stamped_on_context_switches_alone_and_only_when_it_is_on() {
    let pebs = PebsTracing::new();
    assert_eq!(pebs.stamp(Some(7)), None);
    pebs.set(&[0x0524]).unwrap();
    assert_eq!((pebs.stamp(Some(7)), pebs.stamp(None)), (Some(7), None));
    for hooks in [&[0x0F2E][..], &[0x0F2F], &[0x0524, 0x0524]] {
        assert_eq!(pebs.set(hooks), Err(PebsHookError));
        assert_eq!(pebs.stamp(Some(7)), Some(7), "nothing was changed");
    }
    assert_eq!(PebsHookError.status().value(), 0xC000_000D);
    assert!(PebsHookError.to_string().contains("0x0524"));
    pebs.set(&[]).unwrap();
    assert_eq!(pebs.stamp(Some(7)), None);
}

#[test]
fn the_flags_of_the_three_traces_are_bits_of_the_second_word() {
    let mask = GroupMask::EMPTY.with(PERF_PROFILE).with(PERF_CONTEXT_SWITCH).with(PERF_PMC_PROFILE);
    assert_eq!(mask.masks, [0, 0x406, 0, 0, 0, 0, 0, 0]);
}

/// Source, new and old interval: four bytes each behind the header of 16.
#[test]
fn intervals_are_recorded_with_their_sources_and_later_names_are_skipped() {
    for (hook, id) in [
        (IntervalHook::Set, 0x48),
        (IntervalHook::CollectionStart, 0x49),
        (IntervalHook::CollectionEnd, 0x4A),
    ] {
        let record = IntervalRecord {
            hook,
            timestamp: 0x0102_0304_0506_0708,
            source: KProfileSource::TOTAL_CYCLES,
            new: 0x2122_2324,
            old: 0x3132_3334,
        };
        let mut expected = vec![0x02, 0x00, 0x11, 0xC0, 28, 0, id, 0x0F, 8, 7, 6, 5, 4, 3, 2, 1];
        expected.extend([0x13, 0, 0, 0, 0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31]);
        assert_eq!(record.encode(PointerWidth::Bits64)[..], expected);
        assert_eq!(IntervalRecord::decode(&expected), Ok((PointerWidth::Bits64, record, 28)));
        for cut in 0..expected.len() {
            let cut = IntervalRecord::decode(&expected[..cut]);
            assert_eq!(cut, Err(RecordError::TooShort));
        }
        let mut named = [&expected[..], &[b'T', 0, 0, 0]].concat();
        named[4] = 32;
        assert_eq!(IntervalRecord::decode(&named), Ok((PointerWidth::Bits64, record, 32)));
        named[16] = 0x18;
        assert_eq!(IntervalRecord::decode(&named), Err(RecordError::Source(0x18)));
        named[6] = 0x47;
        assert_eq!(IntervalRecord::decode(&named), Err(RecordError::Hook(0x0F47)));
        assert_eq!(record.encode(PointerWidth::Bits32)[2], 0x10);
    }
}
