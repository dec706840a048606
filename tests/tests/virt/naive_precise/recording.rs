//! Records, and traced branches, in the memory.

use super::registers::{BUFFER, Kind, Naive, THRESHOLD, bits};
use pmu_virt::Privilege;
use pmu_virt::branches::FedBranch;
use pmu_virt::precise::{FedRecord, GuestFault, Recorded};

impl Naive {
    pub(super) fn record(
        &mut self,
        counters: u64,
        collided: bool,
        fed: &FedRecord<'_>,
    ) -> Recorded {
        let mut recorded = Recorded::default();
        let ready = self.due & counters & self.enabled();
        let ready: Vec<u32> = bits(ready).filter(|bit| self.runs(*bit)).collect();
        for bit in &ready {
            self.late += (self.frozen >> bit & 1) as u32;
            self.frozen &= !(1 << bit);
        }
        let each: Vec<Vec<u32>> = match collided {
            true if ready.is_empty() => vec![],
            true => vec![ready],
            false => ready.into_iter().map(|bit| vec![bit]).collect(),
        };
        for counters in each {
            self.due &= !counters.iter().map(|bit| 1u64 << bit).sum::<u64>();
            let outcome = match self.kind {
                Kind::Architectural { .. } => self.physical(&counters, fed, &mut recorded),
                _ => self.linear(&counters, fed, &mut recorded),
            };
            match outcome {
                Ok(true) => {
                    let architectural = self.is_architectural();
                    self.interrupt(if architectural { THRESHOLD } else { BUFFER });
                    recorded.pmi = true;
                }
                Ok(false) => {}
                Err(fault) => {
                    recorded.fault = Some(fault);
                    break;
                }
            }
        }
        recorded
    }

    /// Writes a record to the Debug Store.
    fn linear(
        &mut self,
        counters: &[u32],
        fed: &FedRecord<'_>,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let Kind::Store { format, .. } = self.kind else { unreachable!() };
        let area = self.get(0x600);
        let mut word = |offset: u64| self.ram.word(area.wrapping_add(offset));
        let (base, index) = (word(0x20)?, word(0x28)?);
        let (maximum, threshold) = (word(0x30)?, word(0x38)?);
        let bytes = self.record_bytes(counters, fed);
        let end = u128::from(index) + bytes.len() as u128;
        let mut outcome = Ok(());
        let mut now = index;
        if index < base || end > u128::from(maximum) {
            recorded.lost += 1;
        } else {
            outcome = self.ram.store(index, &bytes);
            if outcome.is_ok() {
                outcome = self.ram.store(area.wrapping_add(0x28), &(end as u64).to_le_bytes());
            }
            if outcome.is_ok() {
                recorded.written += 1;
                now = end as u64;
            }
        }
        for bit in counters {
            let slot = match (bit, format) {
                (..32, _) => *bit,
                (_, 5 | 6) => *bit,
                _ => 8 + bit - 32,
            };
            match self.ram.word(area.wrapping_add(0x40 + 8 * u64::from(slot))) {
                Ok(reset) => self.load(*bit, reset),
                Err(fault) => outcome = outcome.and(Err(fault)),
            }
        }
        outcome.map(|()| now >= threshold)
    }

    /// Writes a record of architectural PEBS.
    fn physical(
        &mut self,
        counters: &[u32],
        fed: &FedRecord<'_>,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let base = self.get(0x3F4);
        let index = self.get(0x3F5);
        let bytes = self.record_bytes(counters, fed);
        let size = 4096u64 << (base & 0x1F);
        let offset = index & 0x7FF_FFF0;
        let end = offset + bytes.len() as u64;
        let fits = index >> 31 & 1 == 0 && end <= size && end <= 0x7FF_FFF0;
        let stored = if fits { self.ram.store((base & !0xFFF) + offset, &bytes) } else { Ok(()) };
        for bit in counters {
            let reload = self.control(*bit) & 0xFFFF_FFFF;
            if reload != 0 {
                self.load(*bit, reload + 0xFFFF_FFFF_0000_0000);
            }
        }
        stored?;
        let index = if fits { index - offset + end } else { index | 1 << 31 };
        self.set_index(index);
        *if fits { &mut recorded.written } else { &mut recorded.lost } += 1;
        Ok(!fits || end >= (index >> 36) * 16)
    }

    pub(super) fn branch(&mut self, branch: &FedBranch) -> Recorded {
        let mut recorded = Recorded::default();
        let debug = self.get(0x1D9);
        let off = if branch.privilege == Privilege::Kernel { 1 << 9 } else { 1 << 10 };
        if debug & 0xC0 != 0xC0 || debug & off != 0 {
            return recorded;
        }
        match self.trace_branch(debug >> 8 & 1 == 1, branch, &mut recorded) {
            Ok(true) => {
                self.interrupt(BUFFER);
                recorded.pmi = true;
            }
            Ok(false) => {}
            Err(fault) => recorded.fault = Some(fault),
        }
        recorded
    }

    fn trace_branch(
        &mut self,
        interrupts: bool,
        branch: &FedBranch,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let area = self.get(0x600);
        let mut word = |offset: u64| self.ram.word(area.wrapping_add(offset));
        let (base, mut index) = (word(0)?, word(8)?);
        let (maximum, threshold) = (word(0x10)?, word(0x18)?);
        let fits = |index: u64| u128::from(index) + 24 <= u128::from(maximum);
        if !fits(index) && !interrupts && index >= base {
            index = base;
        }
        if index < base || !fits(index) {
            recorded.lost += 1;
            return Ok(interrupts && index >= threshold);
        }
        for (word, value) in
            [branch.from, branch.to, u64::from(!branch.mispredicted) << 4].into_iter().enumerate()
        {
            self.ram.store(index + 8 * word as u64, &value.to_le_bytes())?;
        }
        self.ram.store(area.wrapping_add(8), &(index + 24).to_le_bytes())?;
        recorded.written += 1;
        Ok(interrupts && index + 24 >= threshold)
    }
}
