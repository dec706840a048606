//! Periods: of any length, changed, and so short that an event is throttled.

use core::cell::{Cell, RefCell};

use pmu_amd::ibs::{IbsKind, IbsSampling};
use pmu_core::{CounterError, Event};
use pmu_virt::mock::PmiFault;

use crate::support::*;

/// Periods that no register takes as they are: shorter than the shortest, no multiples of 16, and longer than each
/// processor's longest. In the old model they were errors.
const PERIODS: [u64; 6] = [1, 17, 144, 100_003, (1 << 20) + 3, (1 << 28) + 5];

/// The distances of samples: of cycles exactly the period. With a period of ops, the processor begins each part of more
/// than 143 ops at a random number, which counts as ops.
#[test]
fn samples_of_any_period_are_at_exactly_that_distance() {
    for processor in processors().into_iter().filter(|of| of.is_exact(IbsKind::Op)) {
        for (request, is_random) in [(IbsSampling::cycles(), false), (IbsSampling::ops(), true)] {
            for period in PERIODS {
                let what = format!("{}, {request:?}, {period}", processor.name);
                let mock = processor.mock();
                let kernel = Kernel::new(processor, IbsKind::Op, &mock);
                kernel.period.set(period);
                // What the processor began the part with that comes, if it is long.
                let (random, began) = (RefCell::new(vec![]), Cell::new(0));
                let handler = |mock: &Mock<'_>| {
                    let found = read(mock, control(IbsKind::Op).0) >> 32 & 0x7F;
                    kernel.handle(mock);
                    let left = mock.with_sampling_unit(|unit| unit.next_sample()).unwrap();
                    let is_long = left.ops.or(left.cycles).is_some_and(|left| left + found >= 144);
                    began.set(began.get() + if is_random && is_long { found } else { 0 });
                    if !kernel.seen.borrow().is_empty() {
                        random.borrow_mut().push(found);
                    }
                };
                mock.on_interrupt(&handler);
                let mut session = kernel.take(&mock);
                let event = request.event().every(period).with_total();
                let event = kernel.start(&mut session, &event).unwrap();
                let mut passed = 0;
                for number in 1..=8 {
                    let began = began.take();
                    // Parts of a period that end in between begin at a random number, too.
                    let distance = kernel.distance(&mock, IbsKind::Op, 2 * period).unwrap();
                    passed += distance;
                    let total = session.read_event(event, 0).unwrap().value;
                    // The next period has begun.
                    let begins = u64::from(is_random) * next_began(&kernel, &random, period);
                    assert_eq!(total, number * period + begins, "{what}: {number}");
                    if !is_random {
                        assert_eq!(distance, period, "{what}: {number}");
                    } else if number == 1 && period < 1 << 19 {
                        assert_eq!(distance, period, "{what}: the first");
                    } else if period < 1 << 19 {
                        assert_eq!(distance, period - began, "{what}: {number}");
                    } else {
                        let parts = period.div_ceil(1 << 19) + 1;
                        assert!((period - 127 * parts..=period).contains(&distance), "{what}");
                    }
                }
                assert!(passed <= 8 * period, "{what}");
                let reported = kernel.seen.borrow().len();
                assert_eq!((reported, kernel.memory.dropped()), (8, 0), "{what}");
                assert_eq!((kernel.unclaimed.get(), kernel.faulted.get()), (0, 0), "{what}");
                let sampled = kernel.sampled();
                assert!(kernel.reported().iter().all(|address| sampled.contains(address)));
            }
        }
    }
}

/// Returns the random number with which the period after the newest sample has begun.
fn next_began(kernel: &Kernel, random: &RefCell<Vec<u64>>, period: u64) -> u64 {
    let last = random.borrow().last().copied().unwrap_or(0);
    let _ = kernel;
    if period >= 144 { last } else { 0 }
}
