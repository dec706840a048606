//! Processors with extra registers, which the software PMU does not model: off-core response and the like.
#![allow(missing_docs, reason = "parts of tests")]

use core::cell::{Cell, RefCell};

use pmu_core::access::{
    AccessError, AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::memory::{CounterMemory, EventEntry, EventTable};
use pmu_core::{CounterSession, CounterSet, Event, Events};

use crate::opened::{Mock, Processor, Random, raw};

pub type LargeTable = EventTable<[EventEntry; 24]>;
pub type Refined<'a, 'm> = CounterSession<'a, Events<'a>, (&'m WithExtra<'m, 'm>, &'m Mock<'m>)>;

/// Extra registers.
pub const EXTRA: [u32; 4] = [0x1A6, 0x1A7, 0x3F6, 0x3F7];

/// Their values before a session.
pub const BEFORE: [u64; 4] = [0xA, 0xB, 0xC, 0xD];

/// A processor with the registers of [`EXTRA`].
pub struct WithExtra<'m, 'h> {
    mock: &'m Mock<'h>,
    values: [Cell<u64>; 4],
    /// Writes to them.
    pub writes: RefCell<Vec<(u32, u64)>>,
    accesses: Cell<u32>,
    /// RDMSR, WRMSR and RDPMC.
    pub costs: Cell<[u32; 3]>,
    /// The first access that faults, and whether all later ones do.
    pub fault: Cell<Option<(u32, bool)>>,
    /// A register whose writes fault; 0: none.
    pub broken: Cell<u32>,
}

impl<'m, 'h> WithExtra<'m, 'h> {
    pub fn new(mock: &'m Mock<'h>) -> Self {
        Self {
            mock,
            values: BEFORE.map(Cell::new),
            writes: RefCell::default(),
            accesses: Cell::new(0),
            costs: Cell::new([0; 3]),
            fault: Cell::new(None),
            broken: Cell::new(0),
        }
    }

    pub fn values(&self) -> [u64; 4] {
        self.values.each_ref().map(Cell::get)
    }

    pub fn value(&self, register: u32) -> Option<u64> {
        self.extra(register).map(Cell::get)
    }

    pub fn set(&self, values: [u64; 4]) {
        self.values.iter().zip(values).for_each(|(cell, value)| cell.set(value));
    }

    fn extra(&self, register: u32) -> Option<&Cell<u64>> {
        let number = EXTRA.iter().position(|extra| *extra == register)?;
        Some(&self.values[number])
    }

    /// Returns the number of accesses since the last call.
    pub fn take_accesses(&self) -> u32 {
        self.accesses.take()
    }

    fn access(&self, kind: usize) -> Result<(), AccessErrorKind> {
        let mut costs = self.costs.get();
        costs[kind] += 1;
        self.costs.set(costs);
        let number = self.accesses.get() + 1;
        self.accesses.set(number);
        match self.fault.get() {
            Some((at, stays)) if number == at || stays && number > at => {
                Err(AccessErrorKind::Other)
            }
            _ => Ok(()),
        }
    }

    pub fn take<'a>(
        &'m self,
        processor: &'a Processor,
        only: CounterSet,
        memory: &'a CounterMemory,
        table: &'a EventTable,
    ) -> CounterSession<'a, Events<'a>, (&'m Self, &'m Mock<'h>)> {
        let source = Events::new(&processor.unit, table);
        CounterSession::take(source, &processor.unit, only, (self, self.mock), memory).unwrap()
    }
}

impl RegisterBackend for WithExtra<'_, '_> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.access(0)?;
        match self.extra(address.get()) {
            Some(value) => Ok(value.get()),
            None => self.mock.read(address).map_err(|error| error.kind()),
        }
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.access(1)?;
        if address.get() == self.broken.get() {
            return Err(AccessErrorKind::Other);
        }
        match self.extra(address.get()) {
            Some(cell) => {
                self.writes.borrow_mut().push((address.get(), value));
                cell.set(value);
                Ok(())
            }
            None => self.mock.write(address, value).map_err(|error| error.kind()),
        }
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.access(2)?;
        self.mock.read_counter(index).map_err(|error| error.kind())
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        self.access(0)?;
        self.mock.update(update).map_err(|error| error.kind())
    }
}

pub fn register(address: u32) -> RegisterAddress {
    // SAFETY: a mock's, which writes no memory.
    unsafe { RegisterAddress::new(address) }
}

/// An event with an extra register: its value, and the registers that can hold it, at most four.
#[derive(Clone, Debug)]
pub struct Demand {
    pub value: u64,
    pub registers: Vec<u32>,
}

/// An event of a kind with a demand: by the kind itself with the first register, by the next kinds with the others.
pub fn refined(kind: usize, demand: &Demand) -> Event {
    let event = raw(kind).with_extra(register(demand.registers[0]), demand.value);
    let others = demand.registers.iter().enumerate().skip(1);
    others.fold(event, |event, (number, address)| {
        event.or_with_extra(select_of(kind + number), register(*address))
    })
}

/// Returns the event number and unit mask of a kind.
pub fn select_of(kind: usize) -> u16 {
    raw(kind).select().unwrap().select_bits() as u16
}

/// Returns an event's counters at random: some general ones, or one fixed one.
pub fn some_counters(random: &mut Random, own: CounterSet) -> CounterSet {
    let all: Vec<_> = own.iter().collect();
    let mut pick = || all[random.below(all.len() as u64) as usize].only();
    let some = pick() | pick() | pick();
    let general = some & CounterSet::GENERAL;
    if general.is_empty() { some.iter().next().unwrap().only() } else { general }
}

/// Returns whether all events can have counters of their own, by Hall's theorem: whether the events of every set of
/// them have together at least as many counters.
pub fn have_counters(events: &[CounterSet]) -> bool {
    let mut unions = vec![CounterSet::NONE; 1 << events.len()];
    (1..unions.len()).all(|set| {
        let lowest = set.trailing_zeros() as usize;
        unions[set] = unions[set & (set - 1)] | events[lowest];
        unions[set].len() >= set.count_ones() as usize
    })
}

/// Returns whether all demands can be met at once, by trying every value of `values` in every register.
pub fn have_registers(demands: &[Demand], values: u64) -> bool {
    (0..values.pow(EXTRA.len() as u32)).any(|choice| {
        let value = |number: usize| choice / values.pow(number as u32) % values;
        demands.iter().all(|demand| {
            let holds = |number: &usize| demand.registers.contains(&EXTRA[*number]);
            (0..EXTRA.len()).filter(holds).any(|number| value(number) == demand.value)
        })
    })
}
