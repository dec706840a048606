//! The instructions of a guest's handler of an NMI, from the handler's first to its IRET, one step each.

use iced_x86::{Code, Instruction};
use pmu_virt::Privilege;

use crate::count::source::Stop;
use crate::count::walk::Walk;
use crate::guest::{Guest, Memory};

const NMI: u8 = 2;

/// A handler that is counted.
pub(crate) struct Handler {
    walk: Walk,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Idle,
    /// The NMI was raised, and the guest has not been at the first instruction.
    Raised,
    /// So many instructions retired.
    Entered(u64),
}

impl Handler {
    pub(crate) fn new() -> Self {
        Self { walk: Walk::new(), state: State::Idle }
    }

    /// Begins to count: an NMI was raised. A handler under way is counted on: the NMI waits for its end.
    pub(crate) fn raised(&mut self) {
        if let State::Idle = self.state {
            self.walk.idle();
            self.state = State::Raised;
        }
    }

    /// Notes an instruction that the monitor executed for the guest.
    pub(crate) fn executed(&mut self, instruction: Instruction, privilege: Privilege) {
        if !matches!(self.state, State::Idle) {
            self.walk.executed(instruction, privilege);
        }
    }

    /// Prepares for a run of the guest. Returns whether the guest is to stop after one instruction.
    pub(crate) fn enter(&mut self, guest: Guest<'_>) -> bool {
        if let State::Idle = self.state {
            return false;
        }
        self.walk.enter(guest);
        true
    }

    /// Counts what retired since the last stop. Returns the instructions of a handler that came to its end. Where it is
    /// not known what retired, the handler is not counted.
    pub(crate) fn leave(&mut self, guest: Guest<'_>, stop: Stop) -> Option<u64> {
        if let State::Idle = self.state {
            return None;
        }
        let first = guest.handler(&guest.system(), NMI);
        let (mut state, mut done) = (self.state, None);
        let known = self.walk.leave(guest, stop, |retired| {
            let before = match state {
                State::Raised if Some(retired.instruction.ip()) == first => 0,
                State::Entered(count) => count,
                _ => return,
            };
            state = State::Entered(before + 1);
            if retired.instruction.code() == Code::Iretq {
                (state, done) = (State::Idle, Some(before + 1));
            }
        });
        self.state = if known { state } else { State::Idle };
        done.filter(|_| known)
    }
}
