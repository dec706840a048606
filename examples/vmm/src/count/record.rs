//! Records of instructions and of branches, in the guest's memory and in its registers.

use pmu_virt::branches::FedBranch;
use pmu_virt::precise::{FedRecord, FedRegisters, GuestFault, GuestMemory, Recorded};
use pmu_virt::{GuestFacility, Privilege, RunningEvent, VirtualPmu};

use crate::count::fed::Fed;
use crate::count::quantity::Quantity;
use crate::count::retired::Retired;
use crate::guest::{self, Guest, Memory};
use crate::guest_pmu::facilities::{Precise, Records};
use crate::vcpu::msr;

/// IA32_TIME_STAMP_COUNTER.
const TIME_STAMP_COUNTER: u32 = 0x10;

/// Returns whether a counter that runs at this privilege overflowed, and its record is not written yet.
pub(crate) fn is_due(precise: &Option<Precise>, pmu: &VirtualPmu, privilege: Privilege) -> bool {
    let due = precise.as_ref().map_or(0, |precise| precise.due());
    due != 0
        && pmu.running().any(|event| due >> event.counter & 1 != 0 && counts(&event, privilege))
}

/// Returns whether a counter counts at this privilege.
fn counts(event: &RunningEvent, privilege: Privilege) -> bool {
    match privilege {
        Privilege::User => event.user,
        Privilege::Kernel => event.kernel,
    }
}

/// Writes the records that are due of counters whose event the instruction causes.
pub(crate) fn write(
    fed: &Fed,
    retired: &Retired,
    guest: Guest<'_>,
    pmu: &mut VirtualPmu,
    (branches, precise): &mut Records,
) {
    let Some(precise) = precise.as_mut().filter(|precise| precise.due() != 0) else { return };
    let causes = |event: &RunningEvent| {
        let happens = match fed.quantity(event.key) {
            Some(Quantity::Instructions | Quantity::Cycles | Quantity::ReferenceCycles) => true,
            Some(Quantity::Branches) => retired.is_branch(),
            Some(Quantity::TakenBranches) => retired.is_branch() && retired.taken,
            Some(Quantity::Loads) => retired.access().is_some_and(|access| access.load),
            Some(Quantity::Stores) => retired.access().is_some_and(|access| access.store),
            _ => false,
        };
        happens && counts(event, retired.privilege)
    };
    let counters = pmu.running().filter(causes).fold(0, |bits, event| bits | 1 << event.counter);
    if precise.due() & counters == 0 {
        return;
    }
    // Nothing tells how long a load took: as long as the guest asks for.
    let latency = precise.load_latency();
    let record = FedRecord { branches: branches.as_ref(), latency, ..record(retired, guest) };
    let recorded = precise.record(pmu, counters, &record, &mut Linear(guest));
    raise(recorded, branches);
}

/// Records a taken branch: in the branch records, and in the guest's memory.
pub(crate) fn branch(
    branch: &FedBranch,
    guest: Guest<'_>,
    pmu: &mut VirtualPmu,
    (branches, precise): &mut Records,
) {
    if let Some(branches) = branches {
        branches.record(branch);
    }
    if let Some(precise) = precise.as_mut().filter(|precise| precise.is_tracing()) {
        let recorded = precise.branch(pmu, branch, &mut Linear(guest));
        raise(recorded, branches);
    }
}

/// Tells the branch records of a full buffer's interrupt. A record without a place in the guest's memory is lost.
fn raise(recorded: Recorded, branches: &mut impl GuestFacility) {
    if recorded.pmi {
        branches.pmi_raised();
    }
}

/// Returns the record of an instruction, with the registers at the guest's stop behind it.
fn record(retired: &Retired, guest: Guest<'_>) -> FedRecord<'static> {
    let r = guest.registers();
    let general = [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ];
    let time = msr::read_all(guest.vcpu, [TIME_STAMP_COUNTER]);
    FedRecord {
        registers: FedRegisters { flags: r.rflags, ip: retired.to, general, ssp: 0 },
        long_mode: guest::bitness(&guest.system()) == 64,
        tsc: time.map_or(0, |[time]| time),
        data_address: retired.access().map_or(0, |access| access.linear),
        ..FedRecord::new(retired.instruction.ip())
    }
}

/// The guest's memory, in its present address space.
struct Linear<'a>(Guest<'a>);

impl GuestMemory for Linear<'_> {
    fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault> {
        let wanted = bytes.len();
        let read = Memory::read(&self.0, linear, bytes).len();
        if read == wanted { Ok(()) } else { Err(fault(linear, read)) }
    }

    fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        let written = self.0.write(linear, bytes);
        if written == bytes.len() { Ok(()) } else { Err(fault(linear, written)) }
    }

    fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        let written = self.0.write_physical(physical, bytes);
        if written { Ok(()) } else { Err(fault(physical, 0)) }
    }
}

/// Returns the fault of the first byte that is no memory of the guest.
fn fault(begin: u64, accessed: usize) -> GuestFault {
    GuestFault { address: begin.wrapping_add(accessed as u64) }
}
