//! The difference between a source's unit and the processor that its events run on: a hybrid machine has cores of
//! several types.

use crate::counters::names::counter_id::CounterSet;
use crate::counters::registers::select::EventSelect;
use crate::counters::registers::unit::CounterUnit;

/// Difference between the events of a source's unit and those of one processor; 0: none.
///
/// It is in the bits of a word that are no counter's: bits 31:16 of the selects in place, their bits 47:32 in bits
/// 63:48, and the names that the processor lacks in bits 47:40. A select's bits 15:0 name its event on every processor,
/// and no processor has event bits from 48 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventDifference(u64);

const LOW: u64 = 0xFFFF << 16;

const HIGH: u64 = 0xFFFF << 32;

const NAMES: u32 = 40;

impl EventDifference {
    /// The bits of the word that it has.
    pub(crate) const MASK: u64 = LOW | HIGH << 16 | 0xFF << NAMES;

    /// Returns the difference between a source's unit and a processor.
    pub(crate) const fn between(unit: &CounterUnit, processor: &CounterUnit) -> Self {
        let rdpmc = (unit.user_rdpmc_control ^ processor.user_rdpmc_control) as u64;
        let selects = (unit.event_bits ^ processor.event_bits) & !EventSelect::NO_USER_RDPMC
            | rdpmc << EventSelect::NO_USER_RDPMC.trailing_zeros();
        let lacking = (unit.has_named & !processor.has_named) as u64;
        Self(selects & LOW | (selects & HIGH) << 16 | lacking << NAMES)
    }

    pub(crate) const fn of_bits(word: u64) -> Self {
        Self(word & Self::MASK)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Returns whether the unit has the architectural event of this number, and the processor lacks it.
    pub(crate) const fn lacks(self, event: u8) -> bool {
        event < 8 && self.0 >> (NAMES + event as u32) & 1 != 0
    }

    /// Returns the bits in which the selects differ.
    const fn selects(self) -> u64 {
        self.0 & LOW | self.0 >> 16 & HIGH
    }

    /// Returns the bits that an event may have in a select of the processor.
    pub(crate) const fn event_bits(self, unit: &CounterUnit) -> u64 {
        unit.event_bits ^ self.selects() & !EventSelect::NO_USER_RDPMC
    }

    /// Returns whether the processor can deny user mode's RDPMC for each counter.
    pub(crate) const fn user_rdpmc_control(self, unit: &CounterUnit) -> bool {
        unit.user_rdpmc_control ^ (self.selects() & EventSelect::NO_USER_RDPMC != 0)
    }

    /// Returns the unit with the events of the processor: its select bits, and without the names that it lacks.
    pub(crate) const fn applied_to(self, unit: &CounterUnit) -> CounterUnit {
        let mut here = *unit;
        here.event_bits = self.event_bits(unit);
        here.user_rdpmc_control = self.user_rdpmc_control(unit);
        here.has_named &= !(self.0 >> NAMES) as u8;
        here
    }
}

const _: () = assert!(EventDifference::MASK == !CounterSet::ALL.bits());

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(event_bits: u64, user_rdpmc_control: bool) -> CounterUnit {
        let mut unit = CounterUnit::NONE;
        (unit.event_bits, unit.user_rdpmc_control) = (event_bits, user_rdpmc_control);
        unit
    }

    /// Plain selects; with AnyThread; with unit mask 2 and EQ; with transactions; AMD's.
    #[test]
    fn a_unit_and_the_difference_are_the_processor() {
        let bits = [0xFF87_FFFF, 0xFFA7_FFFF, 0xFF10_FF87_FFFF, 0x3_FF87_FFFF, 0xF_FF87_FFFF];
        let units = bits.into_iter().flat_map(|bits| [unit(bits, false), unit(bits, true)]);
        for boot in units.clone() {
            for processor in units.clone() {
                let difference = EventDifference::between(&boot, &processor);
                assert_eq!(difference.applied_to(&boot), processor);
                assert_eq!(difference.bits() & CounterSet::ALL.bits(), 0);
                assert_eq!(EventDifference::of_bits(difference.bits() | 0xFF), difference);
                assert_eq!(difference.bits() == 0, boot == processor);
            }
        }
    }

    #[test]
    fn a_processor_lacks_the_names_that_the_unit_alone_has() {
        let [mut boot, mut processor] = [CounterUnit::NONE; 2];
        (boot.has_named, processor.has_named) = (0b111_0011, 0b100_0111);
        let difference = EventDifference::between(&boot, &processor);
        let lacking: std::vec::Vec<u8> = (0..=255).filter(|bit| difference.lacks(*bit)).collect();
        assert_eq!(lacking, [4, 5]);
        assert_eq!(EventDifference::between(&boot, &difference.applied_to(&boot)), difference);
    }
}
