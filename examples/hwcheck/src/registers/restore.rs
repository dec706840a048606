//! Putting everything back.

use pmu_virt::configuration::Vendor;
use pmu_virt::registers::RegisterKind;

use crate::registers::access::Registers;
use crate::registers::agreed::Cell;
use crate::report::hex::Hex;
use crate::report::whole::Restored;

/// Restores the changed registers that no other owner has written since: disables the counters, acknowledges their
/// overflows, and restores the counters, the selects and last the global control. Each write that fails is retried
/// once.
pub fn restore(registers: &Registers<'_>) -> Restored {
    let Registers { agreed, journal, .. } = registers;
    let mut restored = Restored::default();
    let others = |place: usize, cell: &Cell| {
        let holds = journal.holds(place);
        journal.is_known(place) && registers.read(cell.address).is_ok_and(|value| value != holds)
    };
    // Before anything is written: which registers are still ours.
    let mut own: Vec<Cell> = Vec::new();
    for (place, cell) in agreed.cells().iter().enumerate() {
        if !journal.is_changed(place) {
            continue;
        }
        let control = match cell.kind {
            RegisterKind::GeneralCounter => agreed.place(RegisterKind::EventSelect, cell.counter),
            RegisterKind::FixedCounter => agreed.place(RegisterKind::FixedControl, 0),
            _ => None,
        };
        let control = control.and_then(|place| Some((place, agreed.cells().get(place)?)));
        // A counter that ran tells nothing: whose control it is, his it is.
        let by_control = control
            .is_some_and(|(place, control)| journal.is_changed(place) && others(place, control));
        if by_control || others(place, cell) {
            restored.left_alone.push(Hex(u64::from(cell.address)));
        } else {
            own.push(*cell);
        }
    }
    let write = |address, value| {
        let _ = registers.write(address, value).or_else(|_| registers.write(address, value));
    };
    let of = |kind: RegisterKind| own.iter().filter(move |cell| cell.kind == kind);
    for cell in of(RegisterKind::GlobalControl) {
        write(cell.address, cell.found & !agreed.taken());
    }
    for cell in of(RegisterKind::EventSelect).chain(of(RegisterKind::FixedControl)) {
        write(cell.address, 0);
    }
    acknowledge(registers, own.iter().fold(0, |bits, cell| bits | cell.global_bit()));
    let is_narrow = registers.configuration.vendor() == Vendor::Intel;
    let order = [
        RegisterKind::GeneralCounter,
        RegisterKind::FixedCounter,
        RegisterKind::EventSelect,
        RegisterKind::FixedControl,
        RegisterKind::GlobalControl,
    ];
    for cell in order.into_iter().flat_map(of) {
        // Without full-width writes Intel's counters take their low half alone.
        let mask = match cell.kind {
            RegisterKind::GeneralCounter if is_narrow && cell.restored_at == cell.address => {
                0xFFFF_FFFF
            }
            _ => u64::MAX,
        };
        // Also where the kernel forbids writes, and none was made.
        write(cell.restored_at, cell.found);
        if registers.read(cell.address).is_ok_and(|now| (now ^ cell.found) & mask == 0) {
            restored.restored += 1;
        } else {
            restored.failed.push(Hex(u64::from(cell.address)));
        }
    }
    restored
}

/// Acknowledges these counters' overflows, except those that the run found pending.
pub(crate) fn acknowledge(registers: &Registers<'_>, counters: u64) {
    let status = registers.address_of(RegisterKind::GlobalStatus);
    let shown = status.and_then(|status| registers.read(status).ok()).unwrap_or(0);
    let bits = shown & counters & registers.agreed.taken() & !registers.agreed.status_found();
    if let Some(clear) = registers.address_of(RegisterKind::GlobalStatusClear)
        && bits != 0
        && registers.write(clear, bits).is_err()
    {
        let _ = registers.write(clear, bits);
    }
}
