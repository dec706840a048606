//! A frame by reference answers as the frame itself.

use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};

/// A frame's answers, in the trait's order.
type Said = (u64, u16, u64, ProcessorNumber, Option<ProcessId>, u32, u64, Option<u64>);

fn said<F: InterruptFrame>(frame: F) -> Said {
    (
        frame.pc(),
        frame.cs(),
        frame.flags(),
        frame.processor(),
        frame.process(),
        frame.thread(),
        frame.timestamp(),
        frame.pebs_index(),
    )
}

const PROCESSOR: ProcessorNumber = ProcessorNumber { group: 4, number: 5 };

/// A frame with an answer of its own to every question, none of them a default.
struct Whole;

impl InterruptFrame for Whole {
    fn pc(&self) -> u64 {
        1
    }
    fn cs(&self) -> u16 {
        2
    }
    fn flags(&self) -> u64 {
        3
    }
    fn processor(&self) -> ProcessorNumber {
        PROCESSOR
    }
    fn process(&self) -> Option<ProcessId> {
        ProcessId::new(6)
    }
    fn thread(&self) -> u32 {
        7
    }
    fn timestamp(&self) -> u64 {
        8
    }
    fn pebs_index(&self) -> Option<u64> {
        Some(9)
    }
}

#[test]
fn every_answer_of_a_frame_comes_through_a_reference() {
    let expected = (1, 2, 3, PROCESSOR, ProcessId::new(6), 7, 8, Some(9));
    assert_eq!(said(Whole), expected);
    assert_eq!(said::<&Whole>(&Whole), expected);
    assert_eq!(said::<&&Whole>(&&Whole), expected);
    let frame: &dyn InterruptFrame = &Whole;
    assert_eq!(said(frame), expected);
}

/// A frame of a kernel that knows neither thread nor time, and has no Debug Store.
struct Least;

impl InterruptFrame for Least {
    fn pc(&self) -> u64 {
        1
    }
    fn cs(&self) -> u16 {
        2
    }
    fn flags(&self) -> u64 {
        3
    }
    fn processor(&self) -> ProcessorNumber {
        PROCESSOR
    }
    fn process(&self) -> Option<ProcessId> {
        None
    }
}

#[test]
fn what_a_frame_does_not_know_is_zero_or_absent() {
    let expected = (1, 2, 3, PROCESSOR, None, 0, 0, None);
    assert_eq!(said(Least), expected);
    assert_eq!(said::<&Least>(&Least), expected);
}
