//! Call chains of interrupts: the addresses that a frame visits become a stack walk in a ring.

use core::ops::ControlFlow;

use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_core::profile::KProfileSource;
use pmu_kprofile::trace::{
    Event, Hook, MAX_RETURN_ADDRESSES, Record, STACK_WALK_HOOK, StackRing, TraceCallback, TraceRing,
};
use pmu_kprofile::{Affinity, PointerWidth, ProfileObject, Profiles, Rules};
use pmu_tests::kprofile::tracing::samples;
use pmu_tests::kprofile::{Frame, Machine, leak};

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

/// A stack walk read from a ring.
struct Walk {
    width: PointerWidth,
    event_timestamp: u64,
    owner: (u32, u32),
    addresses: Vec<u64>,
}

fn only<const N: usize>(ring: &StackRing<N>) -> Walk {
    let mut drain = ring.drain();
    let bytes = drain.next().unwrap();
    assert!(drain.next().is_none());
    match bytes.decode().unwrap() {
        Record { width, timestamp, event: Event::StackWalk(walk), rest: [], .. } => {
            assert_eq!(timestamp, walk.event_timestamp);
            let owner = (walk.process, walk.thread);
            let addresses = walk.addresses().collect();
            Walk { width, event_timestamp: timestamp, owner, addresses }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_chain_is_a_stack_walk_with_the_interrupted_address_first() {
    let chain: Vec<u64> = (1..=5).map(|n| n * 0x1_0000_0001).collect();
    for (width, mask) in [(PointerWidth::Bits64, u64::MAX), (PointerWidth::Bits32, 0xFFFF_FFFF)] {
        let ring = StackRing::<2>::new();
        assert!(ring.push_call_chain(width, &chained(chain.clone())));
        let walk = only(&ring);
        let addresses = [&[0x1111_2222_3333_4444][..], &chain].concat();
        let addresses: Vec<u64> = addresses.iter().map(|address| address & mask).collect();
        assert_eq!(walk.addresses[..], addresses);
        assert_eq!((walk.width, walk.owner), (width, (7, 0x0A0B_0C0D)));
        assert_eq!(walk.event_timestamp, 0x0102_0304_0506_0708);
    }
}

#[test]
fn a_stack_walk_has_its_hook_and_at_most_32_return_addresses() {
    assert_eq!((STACK_WALK_HOOK, MAX_RETURN_ADDRESSES), (0x1820, 32));
    let ring = StackRing::<1>::new();
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

/// A ring with smaller slots holds as many addresses as fit.
#[test]
fn a_call_chain_ends_where_a_slot_does() {
    for (width, room) in [(PointerWidth::Bits64, 2), (PointerWidth::Bits32, 4)] {
        let ring: TraceRing<1, 6> = TraceRing::new();
        assert!(ring.push_call_chain(width, &chained((1..=9).collect())));
        let bytes = ring.drain().next().unwrap();
        assert_eq!(bytes.as_slice().len(), 32 + room * width.bytes());
        match bytes.decode().unwrap().event {
            Event::StackWalk(walk) => {
                assert!(walk.addresses().skip(1).eq(1..room as u64));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn interrupts_have_call_chains_where_they_are_asked_for() {
    static RINGS: [TraceRing<4>; 2] = [const { TraceRing::new() }; 2];
    // Only the first processor has a stack ring.
    static STACKS: [StackRing<4>; 1] = [const { StackRing::new() }; 1];
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
    let (_, timestamp, sample) = samples(&RINGS[0])[0];
    let walk = only(&STACKS[0]);
    assert_eq!((walk.event_timestamp, walk.owner.1), (timestamp, sample.thread));
    assert_eq!(walk.addresses[..], [sample.pc, 0xA, 0xB]);
    assert_eq!(RINGS[1].drain().count(), 1);
    assert_eq!(CALLBACK.dropped(), 0);
}
