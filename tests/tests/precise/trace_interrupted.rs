//! The trace's threshold interrupt with an overflow, or a further branch, at each of its accesses.

use core::cell::Cell;

use pmu_tests::opened::{happened, raw};
use pmu_virt::mock::{Deviation, Deviations};

use crate::branch_trace::{KERNEL, branch, scene_on};
use crate::support::*;

/// A disturbance just before an access of the interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comes {
    /// The session's counter overflows, and interrupts.
    Overflow,
    /// The handler branches.
    Branch,
}

/// One trace, whose interrupt is disturbed.
#[derive(Clone, Copy, Debug)]
struct Interrupted {
    user: bool,
    kernel: bool,
    freezes: bool,
    nests: bool,
    comes: Comes,
}

impl Interrupted {
    fn all() -> impl Iterator<Item = Self> {
        let levels = [(true, false), (false, true), (true, true)];
        (0..24).map(move |number| {
            let (user, kernel) = levels[number % 3];
            let bit = |bit: usize| (number / 3) >> bit & 1 != 0;
            let comes = if bit(2) { Comes::Branch } else { Comes::Overflow };
            Self { user, kernel, freezes: bit(0), nests: bit(1), comes }
        })
    }

    /// Traces branches until the threshold interrupts, with a disturbance at the `access`-th access of the interrupt.
    /// Returns whether the interrupt had so many accesses.
    fn at(self, access: u32) -> bool {
        let what = format!("{self:?}, {access}");
        let nests: &[Deviation] = if self.nests { &[Deviation::NestsInterrupts] } else { &[] };
        let scene = scene_on(Deviations::of(nests));
        let (mock, memory, seen) = (scene.mock, scene.memory, scene.seen);
        let control = mock.with_pmu(|pmu| pmu.read(0x38F));
        let mut session = scene.take();
        if self.freezes {
            session.freeze_on_interrupt().unwrap();
        }
        let event = session.open(&scene.counters, &[raw(3).every(10_000)]).unwrap();
        session.enable(event, 0).unwrap();

        let unknown: &Unknown = Box::leak(Box::default());
        let overflows: &Cell<u32> = Box::leak(Box::default());
        mock.on_interrupt(Box::leak(Box::new(move |_: &Mock<'static>| {
            let count = |_: pmu_core::Sample<'_, _>| overflows.set(overflows.get() + 1);
            unknown.note(scene.serve(count).unwrap().claim);
        })));
        let (left, further): (&Cell<u32>, &Cell<u64>) =
            (Box::leak(Box::default()), Box::leak(Box::default()));
        mock.on_access(Box::leak(Box::new(move |mock: &Mock<'static>| {
            left.set(left.get().wrapping_sub(1));
            if left.get() == 0 {
                further
                    .set(further.get() + u64::from(mock.trace_branch(&branch(7, KERNEL, KERNEL))));
            }
        })));

        scene.trace.trace(&mut session, self.user, self.kernel).unwrap();
        let first = if self.user { 0x40_0000 } else { KERNEL };
        let mut expected = Vec::new();
        let before = mock.accesses().total();
        while mock.interrupts() == 0 {
            match self.comes {
                Comes::Overflow => mock.interrupt_at(access),
                Comes::Branch => left.set(access),
            }
            assert!(mock.trace_branch(&branch(16 * expected.len() as u64, first, first)), "{what}");
            expected.push([first + 16 * expected.len() as u64; 2]);
        }
        assert_eq!(expected.len(), 256, "{what}");
        mock.interrupt_at(0);
        left.set(0);
        let reached = mock.accesses().total() - before >= access;
        // The trace is off while the handler runs, and goes on after it.
        assert!(further.get() <= 1, "{what}");
        expected.extend((0..further.get()).map(|_| [KERNEL + 7; 2]));
        let foreign = u32::from(reached && self.comes == Comes::Overflow) - overflows.get();
        assert!(unknown.get() <= foreign, "{what}");
        assert_eq!(mock.performance_entry(), 0x400, "{what}");
        for number in 0..5 {
            assert!(mock.trace_branch(&branch(number, first, first)), "{what}");
            expected.push([first + number; 2]);
        }
        let before = overflows.get();
        mock.advance(&mut happened(3, 10_000));
        assert_eq!(overflows.get(), before + 1, "{what}");
        assert!(
            *seen.borrow() == expected,
            "{what}: {} of {}",
            seen.borrow().len(),
            expected.len()
        );
        assert_eq!((memory.lost(), memory.hidden(), mock.lost_records()), (0, 0, 0), "{what}");
        assert!(unknown.get() <= foreign, "{what}");

        session.shut_down().unwrap();
        assert!(
            *seen.borrow() == expected,
            "{what}: {} of {}",
            seen.borrow().len(),
            expected.len()
        );
        nothing_is_enabled(mock, &what);
        assert_eq!(
            (mock.with_pmu(|pmu| pmu.read(0x38F)), mock.breach()),
            (control, None),
            "{what}"
        );
        reached
    }
}

#[test]
fn with_a_disturbance_at_each_access_of_the_traces_interrupt_each_branch_is_reported_once() {
    for interrupted in Interrupted::all() {
        assert!((1..).take_while(|access| interrupted.at(*access)).count() >= 2, "{interrupted:?}");
    }
}
