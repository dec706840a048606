//! The naive model's counting, and its comparison with the model.

use super::*;

impl Naive {
    /// Returns whether a counter counts in user and kernel mode, its fed event, and whether it interrupts.
    pub(crate) fn counts(&self, n: u32) -> Option<([bool; 2], Option<usize>, bool)> {
        let global = if n < 8 { n } else { n + 24 };
        if !self.exists(n)
            || self.has_global() && self.get(Kind::Control) >> global & 1 == 0
            || self.get(Kind::Status) >> 59 & 1 == 1
        {
            return None;
        }
        if n < 8 {
            let select = self.get(Kind::Select(n));
            let enabled = select >> 22 & 1 == 1 && select >> 16 & 3 != 0;
            let mut event = select & !(1 << 16 | 1 << 17 | 1 << 19 | 1 << 20 | 1 << 22 | 1 << 37);
            let (invert, counter_mask, equal) = (1 << 23, 0xFF << 24, 1 << 36);
            if event & counter_mask == 0 && event & equal == 0 {
                event &= !invert;
            }
            let index = fed().iter().position(|(bits, _)| *bits == event);
            let modes = [select >> 16 & 1 == 1, select >> 17 & 1 == 1];
            enabled.then_some((modes, index, select >> 20 & 1 == 1))
        } else {
            let nibble = self.get(Kind::FixedControl) >> (4 * (n - 8)) & 15;
            let counter = (n - 8, nibble & 4 != 0);
            let alias = ALIASES.iter().find(|(fixed, _)| *fixed == n - 8).map(|(_, event)| event);
            let any_thread = u64::from(nibble & 4 != 0) << 21;
            let index = match alias {
                Some(event) => fed().iter().position(|(bits, _)| *bits == event | any_thread),
                None => FED_FIXED
                    .iter()
                    .position(|fed| *fed == counter)
                    .map(|index| index + fed().len()),
            };
            (nibble & 3 != 0).then_some((
                [nibble & 2 != 0, nibble & 1 != 0],
                index,
                nibble & 8 != 0,
            ))
        }
    }

    pub(crate) fn amount(&self, n: u32, happened: &Happened) -> Option<(u128, bool)> {
        let (modes, index, interrupts) = self.counts(n)?;
        let [user, kernel] = happened[index?];
        let amount = if modes[0] { u128::from(user) } else { 0 }
            + if modes[1] { u128::from(kernel) } else { 0 };
        Some((amount, interrupts))
    }

    /// Counts everything, without a stop. Returns the overflowed counters and the interrupt.
    pub(crate) fn count(&mut self, happened: &Happened) -> (u64, bool) {
        let (mut overflowed, mut pmi) = (0, false);
        let amounts: Vec<_> = (0..16).map(|n| self.amount(n, happened)).collect();
        for (n, amount) in (0..).zip(amounts) {
            let Some((amount, interrupts)) = amount else { continue };
            let end = 1u128 << self.width(n);
            let sum = u128::from(self.get(Kind::Counter(n))) + amount;
            self.put(Kind::Counter(n), (sum % end) as u64);
            if sum >= end {
                overflowed |= 1 << if n < 8 { n } else { n + 24 };
                pmi |= interrupts;
            }
        }
        if self.has_global() {
            self.put(Kind::Status, self.get(Kind::Status) | overflowed);
        }
        if pmi {
            self.pending = true;
            if self.get(Kind::Debug) >> 12 & 1 == 1 {
                if self.version() >= 4 {
                    self.put(Kind::Status, self.get(Kind::Status) | 1 << 59);
                } else {
                    self.put(Kind::Control, 0);
                }
            }
        }
        (overflowed, pmi)
    }

    /// Counts up to the first overflow that interrupts; the remainder stays in `happened`.
    pub(crate) fn advance(&mut self, happened: &mut Happened) -> (u64, bool) {
        let mut first: Option<(u128, u128, u32)> = None;
        for n in 0..16 {
            let Some((amount, true)) = self.amount(n, happened) else { continue };
            let missing = (1u128 << self.width(n)) - u128::from(self.get(Kind::Counter(n)));
            let sooner = first.is_none_or(|(part, whole, _)| missing * whole < part * amount);
            if amount >= missing && sooner {
                first = Some((missing, amount, n));
            }
        }
        let mut passed = *happened;
        if let Some((part, whole, n)) = first {
            for cells in &mut passed {
                *cells = cells.map(|cell| (u128::from(cell) * part / whole) as u64);
            }
            let Some(([true, true], Some(event), _)) = self.counts(n) else {
                return self.pass(happened, &passed);
            };
            passed[event][1] = part as u64 - passed[event][0];
        }
        self.pass(happened, &passed)
    }

    pub(crate) fn pass(&mut self, happened: &mut Happened, passed: &Happened) -> (u64, bool) {
        for (left, passed) in happened.iter_mut().flatten().zip(passed.iter().flatten()) {
            *left -= passed;
        }
        self.count(passed)
    }

    /// Compares all that can be seen of the registers.
    pub(crate) fn assert_same(&self, pmu: &VirtualPmu) {
        let state = pmu.state();
        let mut told = HashMap::new();
        for (address, value) in state.registers() {
            // The embedder of a hidden PMU shares one, which is 0.
            if let kind @ (Kind::Select(_) | Kind::Counter(_) | Kind::FixedControl) =
                self.kind(address)
            {
                told.insert(self.at(kind), value);
            } else {
                told.insert(address, value);
            }
        }
        for kind in (0..8).flat_map(|n| [Kind::Select(n), Kind::Counter(n), Kind::Counter(n + 8)]) {
            let (Kind::Select(n) | Kind::Counter(n)) = kind else { unreachable!() };
            assert_eq!(told.get(&self.at(kind)).copied(), self.exists(n).then(|| self.get(kind)));
        }
        for kind in [Kind::FixedControl, Kind::Control, Kind::Status, Kind::Debug] {
            assert_eq!(told.get(&self.at(kind)).copied().unwrap_or(0), self.get(kind));
        }
        assert_eq!(state.pmi_pending(), self.pending);
        if self.version() >= 4 {
            assert_eq!(pmu.read(0x392), self.read(0x392));
        }
        let running: Vec<u32> = (0..16).filter(|n| self.counts(*n).is_some()).collect();
        let told: Vec<u32> = pmu
            .running()
            .map(|e| u32::from(e.counter))
            .map(|c| if c < 8 { c } else { c - 24 })
            .collect();
        assert_eq!(told, running);
        for event in pmu.running() {
            let place = u32::from(event.counter);
            let place = if place < 8 { place } else { place - 24 };
            assert_eq!(event.fed, self.counts(place).unwrap().1.is_some());
        }
    }
}
