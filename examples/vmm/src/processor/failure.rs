//! Failures of the guest that end the monitor, with their place.

use crate::error::Error;
use crate::guest::{Guest, Memory};
use crate::processor::state::Processor;

impl Processor {
    /// Creates the error of a guest that KVM cannot continue, with its place.
    pub(crate) fn stuck(&self, why: String) -> Error {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let why = format!("{why} at {}", place(&guest));
        Error::Stuck { processor: self.number.into(), why }
    }

    /// Creates the error of a processor that shut down, with the exception that KVM knows of.
    pub(crate) fn triple_fault(&self) -> Error {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let exception = self.vcpu.get_vcpu_events().map(|events| events.exception);
        let known = exception.is_ok_and(|exception| exception.injected | exception.pending != 0);
        let exception = match exception {
            Ok(exception) if known => {
                format!("exception {} with error {:#x}", exception.nr, exception.error_code)
            }
            _ => "an exception that KVM does not tell".into(),
        };
        let at = format!("at {}, CR2 {:#x}, {exception}", place(&guest), guest.system().cr2);
        Error::TripleFault { processor: self.number.into(), at }
    }
}

/// Names the instruction at which a guest is: its address and bytes.
fn place(guest: &Guest<'_>) -> String {
    let mut bytes = [0; 8];
    let rip = guest.registers().rip;
    let code = guest.read(rip, &mut bytes);
    format!("RIP {rip:#x}, at instruction bytes {code:02x?}")
}
