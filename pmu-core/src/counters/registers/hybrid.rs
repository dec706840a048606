//! On a hybrid machine: the differences between the unit of a source and the processor on which the source's events
//! run.

use crate::counters::registers::unit::CounterUnit;

/// Difference between the events of a source's unit and those of one processor, which may be a core of another type.
/// The [type](CounterUnit::core_type) itself is left out: only opened events need it, and finding it takes code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HybridDelta {
    /// Bits of a select that one of the two has, and the other lacks.
    event_bits: u64,
    /// Generic events that the processor lacks, one bit each.
    lacking: u8,
    /// One of the two can deny user mode's RDPMC for each counter.
    user_rdpmc: bool,
}

impl HybridDelta {
    /// Returns the difference between a source's unit and a processor.
    pub(crate) const fn between(unit: &CounterUnit, processor: &CounterUnit) -> Self {
        Self {
            event_bits: unit.event_bits ^ processor.event_bits,
            lacking: unit.has_generic & !processor.has_generic,
            user_rdpmc: unit.can_deny_user_reads != processor.can_deny_user_reads,
        }
    }

    /// Returns whether the unit has the generic event of this number, and the processor lacks it.
    pub(crate) const fn lacks(self, event: u8) -> bool {
        event < 8 && self.lacking >> event & 1 != 0
    }

    /// Returns the bits that an event may have in a select of the processor.
    pub(crate) const fn event_bits(self, unit: &CounterUnit) -> u64 {
        unit.event_bits ^ self.event_bits
    }

    /// Returns whether the processor can deny user mode's RDPMC for each counter.
    pub(crate) const fn can_deny_user_reads(self, unit: &CounterUnit) -> bool {
        unit.can_deny_user_reads ^ self.user_rdpmc
    }

    /// Returns the unit with the events of the processor: its select bits, without the generic events that it lacks.
    pub(crate) const fn applied_to(self, unit: &CounterUnit) -> CounterUnit {
        let mut here = *unit;
        here.event_bits = self.event_bits(unit);
        here.can_deny_user_reads = self.can_deny_user_reads(unit);
        here.has_generic &= !self.lacking;
        here
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(event_bits: u64, can_deny_user_reads: bool) -> CounterUnit {
        let mut unit = CounterUnit::NONE;
        (unit.event_bits, unit.can_deny_user_reads) = (event_bits, can_deny_user_reads);
        unit
    }

    /// Plain selects; with AnyThread; with unit mask 2 and EQ; with transactions; AMD's.
    #[test]
    fn a_unit_and_the_difference_are_the_processor() {
        let bits = [0xFF87_FFFF, 0xFFA7_FFFF, 0xFF10_FF87_FFFF, 0x3_FF87_FFFF, 0xF_FF87_FFFF];
        let units = bits.into_iter().flat_map(|bits| [unit(bits, false), unit(bits, true)]);
        for boot in units.clone() {
            for processor in units.clone() {
                let difference = HybridDelta::between(&boot, &processor);
                assert_eq!(difference.applied_to(&boot), processor);
                assert_eq!(difference == HybridDelta::default(), boot == processor);
            }
        }
    }

    #[test]
    fn a_processor_lacks_the_names_that_the_unit_alone_has() {
        let [mut boot, mut processor] = [CounterUnit::NONE; 2];
        (boot.has_generic, processor.has_generic) = (0b111_0011, 0b100_0111);
        let difference = HybridDelta::between(&boot, &processor);
        let lacking: std::vec::Vec<u8> = (0..=255).filter(|bit| difference.lacks(*bit)).collect();
        assert_eq!(lacking, [4, 5]);
        assert_eq!(HybridDelta::between(&boot, &difference.applied_to(&boot)), difference);
    }
}
