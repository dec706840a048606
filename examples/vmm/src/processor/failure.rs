//! Failures of the guest that end the monitor, with their place.

use core::ops::Range;

use vm_memory::{GuestAddress, GuestMemoryBackend};

use crate::error::Error;
use crate::guest::{Guest, Memory};
use crate::instruction;
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

/// Physical addresses of the interrupt controllers: they are no memory, but KVM has them.
const CONTROLLERS: Range<u64> = 0xFEC0_0000..0xFEF0_0000;

/// Names the instruction at which a guest is: its address and bytes; and whether it, or its operand, is no memory.
fn place(guest: &Guest<'_>) -> String {
    let mut bytes = [0; 8];
    let (registers, system) = (guest.registers(), guest.system());
    let rip = registers.rip;
    let linear = instruction::linear(&system, rip);
    let code = guest.read(linear, &mut bytes);
    if code.is_empty() {
        let why = absence(guest, linear).unwrap_or_default();
        return format!("RIP {rip:#x}, which {why}");
    }
    let at = format!("RIP {rip:#x}, at instruction bytes {code:02x?}");
    let decoded = instruction::decode(guest, &system, rip);
    let operand = instruction::access(&registers, &system, &decoded).map(|access| access.linear);
    match operand.and_then(|operand| Some((operand, absence(guest, operand)?))) {
        Some((operand, why)) => format!("{at}, whose operand at {operand:#x} {why}"),
        None => at,
    }
}

/// Returns the reason why there is no memory at a linear address, if there is none.
fn absence(guest: &Guest<'_>, linear: u64) -> Option<String> {
    let Some(physical) = guest.physical(linear) else {
        return Some("is not mapped".into());
    };
    let is_there = guest.memory.address_in_range(GuestAddress(physical));
    (!is_there && !CONTROLLERS.contains(&physical))
        .then(|| format!("is outside of the guest's memory: physical address {physical:#x}"))
}
