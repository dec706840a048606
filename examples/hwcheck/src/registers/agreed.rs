//! The list of what may be written, which the user agrees to.

use pmu_virt::configuration::Configuration;
use pmu_virt::registers::{RegisterInfo, RegisterKind};

/// Bits of an event select that are never set: pin control (19), the interrupt (20), any-thread (21), and adaptive PEBS
/// (34). SDM vol. 3B, "Architectural Performance Monitoring", figures of `IA32_PERFEVTSELx`; APM vol. 2, figure "Core
/// Performance Event-Select Register".
const NEVER_IN_SELECT: u64 = PIN_CONTROL | INTERRUPT | ANY_THREAD | 1 << 34;
const PIN_CONTROL: u64 = 1 << 19;
const INTERRUPT: u64 = 1 << 20;
const ANY_THREAD: u64 = 1 << 21;
/// Those two that let a select run: its enable bit, and a privilege.
pub(crate) const ENABLE: u64 = 1 << 22;
pub(crate) const PRIVILEGES: u64 = 0b11 << 16;
/// The same of `IA32_FIXED_CTR_CTRL`, four bits for each counter: OS and USR, any-thread, the interrupt; and adaptive
/// PEBS, from bit 32 on.
pub(crate) const FIXED_PRIVILEGES: u64 = 0b0011;
const FIXED_ANY_THREAD: u64 = 0x4444_4444;
const FIXED_INTERRUPT: u64 = 0x8888_8888;
const FIXED_ADAPTIVE: u64 = 0x1111_1111 << 32;
/// Bits of the global registers that other facilities may have: `PERF_METRICS` (48); of the status also 55 and 58–63.
const METRICS: u64 = 1 << 48;
const STATUS_OF_OTHERS: u64 = METRICS | 1 << 55 | 0x3F << 58;

/// A register that may be changed and is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The address at which the register is read.
    pub address: u32,
    /// The address at which the register is restored: a counter's full-width address, if it has one.
    pub restored_at: u32,
    /// Its purpose.
    pub kind: RegisterKind,
    /// The number of its counter.
    pub counter: u8,
    /// The register's value before the run.
    pub found: u64,
}

impl Cell {
    /// Returns whether the register is a counter.
    pub fn is_counter(&self) -> bool {
        matches!(self.kind, RegisterKind::GeneralCounter | RegisterKind::FixedCounter)
    }

    /// The bit of its counter in the global registers; for a control of several, 0.
    pub fn global_bit(&self) -> u64 {
        match self.kind {
            RegisterKind::EventSelect | RegisterKind::GeneralCounter => 1 << (self.counter % 32),
            RegisterKind::FixedCounter => 1 << (32 + self.counter % 32),
            _ => 0,
        }
    }
}

/// The values that may be written to one address.
#[derive(Clone, Copy, Debug)]
struct Rule {
    address: u32,
    /// Cell that the write changes; `None` for a status acknowledgment.
    cell: Option<usize>,
    /// Bits that may have any value.
    free: u64,
    /// The value of the others.
    rest: u64,
    /// One more value that may be written: the register's value before the run.
    found: Option<u64>,
}

/// The agreed list: for each address, the values that may be written.
///
/// Counters whose registers could not be restored, since they hold what is never written, are not on it.
#[derive(Clone, Debug)]
pub struct Agreed {
    rules: Vec<Rule>,
    cells: Vec<Cell>,
    /// The taken counters' bits in the global registers.
    taken: u64,
    /// The bits of the status that were set.
    status_found: u64,
}

/// The most cells: eight selects, eight general and eight fixed counters, and two controls.
pub const MAX_CELLS: usize = 26;

impl Agreed {
    /// The list for a PMU whose registers hold what `found` answers.
    pub fn new(configuration: &Configuration, found: impl Fn(u32) -> Option<u64>) -> Self {
        let registers: Vec<_> = configuration.registers().filter(|one| one.exists).collect();
        let held = |kind| {
            let mut of_kind = registers.iter().filter(move |one| one.kind == kind);
            of_kind.find_map(|one| found(one.address))
        };
        let status_found = held(RegisterKind::GlobalStatus).unwrap_or(0);
        let fixed = held(RegisterKind::FixedControl).is_some_and(is_restorable_fixed_control);
        let mut agreed = Self { rules: Vec::new(), cells: Vec::new(), taken: 0, status_found };
        for register in registers.iter().filter(|one| one.is_state) {
            let Some(value) = found(register.address) else { continue };
            let is_taken = match register.kind {
                RegisterKind::EventSelect => is_restorable_select(value),
                RegisterKind::GeneralCounter => true,
                RegisterKind::FixedCounter | RegisterKind::FixedControl => fixed,
                RegisterKind::GlobalControl => true,
                _ => false,
            };
            if is_taken && agreed.cells.len() < MAX_CELLS {
                agreed.cells.push(cell(register, value, &registers));
            }
        }
        // A general counter is taken with its select, or not at all.
        let all = agreed.cells.clone();
        let has = |kind, counter| all.iter().any(|one| one.kind == kind && one.counter == counter);
        agreed.cells.retain(|one| match one.kind {
            RegisterKind::EventSelect => has(RegisterKind::GeneralCounter, one.counter),
            RegisterKind::GeneralCounter => has(RegisterKind::EventSelect, one.counter),
            _ => true,
        });
        agreed.taken = agreed.cells.iter().fold(0, |taken, cell| taken | cell.global_bit());
        for register in &registers {
            agreed.add_rule(register);
        }
        agreed
    }

    fn add_rule(&mut self, register: &RegisterInfo) {
        let (taken, legal) = (self.taken, register.legal);
        let cell = self
            .cells
            .iter()
            .position(|cell| cell.kind == register.kind && cell.counter == register.counter);
        let found = cell.and_then(|cell| self.cells.get(cell)).map(|cell| cell.found);
        let held = found.unwrap_or(0);
        let (free, rest, found) = match (register.kind, cell) {
            (RegisterKind::EventSelect, Some(_)) => (!NEVER_IN_SELECT, 0, found),
            (RegisterKind::GeneralCounter | RegisterKind::FixedCounter, Some(_)) => {
                (u64::MAX, 0, None)
            }
            (RegisterKind::FixedControl, Some(_)) => {
                (!(FIXED_ANY_THREAD | FIXED_INTERRUPT | FIXED_ADAPTIVE), 0, found)
            }
            (RegisterKind::GlobalControl, Some(_)) => {
                let free = taken | !legal & !METRICS & !held;
                (free, held & !free, found)
            }
            (RegisterKind::GlobalStatusClear, None) => {
                ((taken | !legal & !STATUS_OF_OTHERS) & !self.status_found, 0, None)
            }
            _ => return,
        };
        self.rules.push(Rule { address: register.address, cell, free, rest, found });
    }

    /// Returns whether this value may be written to this address.
    pub fn allows(&self, address: u32, value: u64) -> bool {
        self.rule(address)
            .is_some_and(|rule| value & !rule.free == rule.rest || rule.found == Some(value))
    }

    /// The value that may be written to this address and differs least from `value`.
    pub fn nearest(&self, address: u32, value: u64) -> Option<u64> {
        self.rule(address).map(|rule| value & rule.free | rule.rest)
    }

    /// The addresses that may be written.
    pub fn addresses(&self) -> impl Iterator<Item = u32> + '_ {
        self.rules.iter().map(|rule| rule.address)
    }

    /// The registers that may be changed.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The place among [`cells`](Self::cells) of what a write to this address changes.
    pub fn cell_at(&self, address: u32) -> Option<usize> {
        self.rule(address)?.cell
    }

    /// The place of the cell of this kind and counter.
    pub fn place(&self, kind: RegisterKind, counter: u8) -> Option<usize> {
        self.cells.iter().position(|cell| cell.kind == kind && cell.counter == counter)
    }

    /// The taken counters, by their bits in the global registers.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The bits of the global status that were set before, which stay.
    pub fn status_found(&self) -> u64 {
        self.status_found
    }

    fn rule(&self, address: u32) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.address == address)
    }
}

fn cell(register: &RegisterInfo, found: u64, registers: &[RegisterInfo]) -> Cell {
    let RegisterInfo { address, kind, counter, .. } = *register;
    // The last address of a general counter is one that takes all its bits, where there is one.
    let aliases = registers.iter().filter(|one| (one.kind, one.counter) == (kind, counter));
    let widest = aliases.max_by_key(|one| (one.legal.count_ones(), one.address));
    let restored_at = match kind {
        RegisterKind::GeneralCounter => widest.map_or(address, |one| one.address),
        _ => address,
    };
    Cell { address, restored_at, kind, counter, found }
}

/// Returns whether a select may be restored: an interrupt bit only where it is disabled.
fn is_restorable_select(found: u64) -> bool {
    found & (NEVER_IN_SELECT & !INTERRUPT) == 0 && (found & INTERRUPT == 0 || found & ENABLE == 0)
}

/// Returns whether the fixed counters' control may be restored: interrupt bits only of disabled counters.
fn is_restorable_fixed_control(found: u64) -> bool {
    let interrupts_while_enabled = |counter: u32| {
        let bits = found >> (4 * counter);
        bits & 0b1000 != 0 && bits & FIXED_PRIVILEGES != 0
    };
    found & (FIXED_ANY_THREAD | FIXED_ADAPTIVE) == 0 && !(0..8).any(interrupts_while_enabled)
}
