//! A guest's accesses to top-down metrics and counter reload, beside each other, with events that happen one by one in
//! a naive model. The state is saved and restored between any two steps. Saved states from anywhere are refused, or
//! written as they were read.

use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
use pmu_virt::topdown::{TopDownMix, VirtualTopDown};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, Read, VirtualPmu, Write};

use crate::input::Input;

/// Length of the header of saved states, which says of which processor they are.
const HEADER: usize = 16;

/// The slots, and an event of each of two general counters.
const KEYS: [EventKey; 3] =
    [EventKey::fixed(3).unwrap(), EventKey::general(0xC4, 0), EventKey::general(0xC5, 0)];

/// General counters 0 and 1, and fixed counter 3: their bits of the global registers, and their values' registers.
const BITS: [u32; 3] = [35, 0, 1];
const VALUES: [u32; 3] = [0x198C, 0x1900, 0x1904];

const RANGE: u64 = 1 << 48;

/// Mixes whose shares are whole.
const MIXES: [[u8; 8]; 4] = [
    [255, 0, 0, 0, 0, 0, 0, 0],
    [40, 15, 100, 100, 30, 10, 90, 70],
    [1, 2, 3, 249, 0, 2, 1, 240],
    [85, 85, 80, 5, 0, 85, 0, 5],
];

/// Runs one input: four bytes of a processor, then steps of an operation, a number and a value. The same bytes are read
/// as saved states of that processor, behind the headers that such states have, and as whole states.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let [options, general, causing, fixed] = [(); 4].map(|()| input.u8());
    let level_2 = options & 1 != 0;
    let configuration = Configuration::Intel(IntelConfiguration::new(6, 8, 4));
    let reload = ReloadConfiguration {
        general,
        fixed: fixed & 0xF,
        causing_general: causing,
        causing_fixed: fixed >> 4,
    };
    let metrics = VirtualTopDown::new(&configuration, level_2).unwrap();
    let reload = VirtualReload::new(&configuration, reload).unwrap();
    saved(bytes, input, metrics, reload);
    let mut guest = Guest::new(configuration, metrics, reload);
    while !input.is_empty() {
        let (operation, number, value) = (input.u8(), input.u8(), input.u64());
        guest.step(operation, number, value);
        guest.save_and_restore();
        guest.check();
    }
}

/// Restores states from anywhere.
fn saved(bytes: &[u8], rest: Input<'_>, metrics: VirtualTopDown, reload: VirtualReload) {
    let mut body = rest;
    let mut of_metrics = metrics.to_bytes();
    of_metrics[8] = body.u8() & 1;
    of_metrics[9] = body.u8();
    of_metrics[HEADER..].fill_with(|| body.u8());
    let mut restored = metrics;
    match restored.restore(&of_metrics) {
        Ok(()) => assert_eq!(restored.to_bytes(), of_metrics),
        Err(_) => assert_eq!(restored, metrics),
    }
    let mut body = rest;
    let mut of_reload = reload.to_bytes();
    of_reload[HEADER..].fill_with(|| body.u8());
    let mut restored = reload;
    match restored.restore(&of_reload) {
        Ok(()) => assert_eq!(restored.to_bytes(), of_reload),
        Err(_) => assert_eq!(restored, reload),
    }
    let (mut of_metrics, mut of_reload) = (metrics, reload);
    if of_metrics.restore(bytes).is_ok() {
        assert_eq!(of_metrics.to_bytes()[..], *bytes);
    }
    if of_reload.restore(bytes).is_ok() {
        assert_eq!(of_reload.to_bytes()[..], *bytes);
    }
}

/// A guest, and the same naively.
struct Guest {
    configuration: Configuration,
    pmu: VirtualPmu,
    both: (VirtualTopDown, VirtualReload),
    mix: TopDownMix,
    naive: Naive,
}

/// The three counters, in the order of [`KEYS`].
#[derive(Debug)]
struct Naive {
    level_2: bool,
    /// Bits of the counters that can be reloaded, and that reload.
    reloaded: u64,
    causing: u64,
    values: [u64; 3],
    causes: [u64; 3],
    reloads: [u64; 3],
    /// The selects of the two general counters, and the nibble of fixed counter 3.
    selects: [u64; 3],
    control: u64,
    status: u64,
    /// `MSR_PERF_METRICS` as it was written, the slots since, and 255ths of them by part.
    written: u64,
    slots: u64,
    parts: [u128; 8],
}

impl Guest {
    fn new(configuration: Configuration, metrics: VirtualTopDown, reload: VirtualReload) -> Self {
        let of = reload.configuration();
        let mut pmu = VirtualPmu::new(configuration, FedEvents::new(&KEYS).unwrap()).unwrap();
        let mut both = (metrics, reload);
        let written = pmu.write_beside(&mut both, 0x38F, 0);
        assert_eq!(written.answer, Write::Done);
        let naive = Naive {
            level_2: metrics.has_level_2(),
            reloaded: u64::from(of.general) | u64::from(of.fixed) << 32,
            causing: u64::from(of.causing_general) | u64::from(of.causing_fixed) << 32,
            values: [0; 3],
            causes: [0; 3],
            reloads: [0; 3],
            selects: [0; 3],
            control: 0,
            status: 0,
            written: 0,
            slots: 0,
            parts: [0; 8],
        };
        Self { configuration, pmu, both, mix: TopDownMix::RETIRING, naive }
    }

    /// Writes a register of both, and returns whether the guest may.
    fn write(&mut self, register: u32, value: u64, may: bool) -> bool {
        let before = (self.both, self.pmu.read_beside(&self.both, register));
        let answer = self.pmu.write_beside(&mut self.both, register, value).answer;
        let expected = if may { Write::Done } else { Write::GeneralProtection };
        assert_eq!(answer, expected, "{register:#x} {value:#x}");
        if !may {
            assert_eq!((self.both, self.pmu.read_beside(&self.both, register)), before);
        }
        may
    }

    fn step(&mut self, operation: u8, number: u8, value: u64) {
        let place = usize::from(number) % 3;
        let (bit, register) = (1u64 << BITS[place], VALUES[place]);
        let near = RANGE - 1 - (value >> 8 & 0x3FF);
        match operation % 10 {
            0 => {
                // A value near the overflow, or any.
                let value = if value & 1 == 0 { near } else { value % RANGE };
                self.write(register, value, true);
                self.naive.values[place] = value;
            }
            1 => {
                let exists = self.naive.reloaded & bit != 0;
                let value = if number & 0x80 == 0 { value & self.naive.causing } else { value };
                let may = exists && value & !self.naive.causing == 0;
                if self.write(register + 2, value, may) {
                    self.naive.causes[place] = value;
                }
            }
            2 => {
                let exists = self.naive.reloaded & bit != 0;
                let value = if number & 0x80 == 0 { near as u32 as u64 } else { value };
                let may = exists && value < 1 << 32;
                if self.write(register + 3, value, may) {
                    self.naive.reloads[place] = value;
                }
            }
            3 if place == 0 => {
                let nibble = value & 0b1011;
                self.write(0x38D, nibble << 12, true);
                self.naive.selects[0] = nibble;
            }
            3 => {
                // User and kernel, the interrupt, and on.
                let event = if place == 1 { 0xC4 } else { 0xC5 };
                let select = event | value & (0b11 << 16 | 1 << 20 | 1 << 22);
                self.write(register + 1, select, true);
                self.naive.selects[place] = select;
            }
            4 => {
                let value = value & (1 << 48 | 1 << 35 | 0b11);
                self.write(0x38F, value, true);
                self.naive.control = value;
            }
            5 => {
                let value = if number & 1 == 0 { 0 } else { value };
                if self.write(0x329, value, self.naive.level_2 || value < 1 << 32) {
                    (self.naive.written, self.naive.slots) = (value, 0);
                    self.naive.parts = [0; 8];
                }
            }
            6 => {
                let value = value & (1 << 48 | 1 << 35 | 0b11);
                if number & 1 == 0 {
                    self.write(0x390, value, true);
                    self.naive.status &= !value;
                } else {
                    self.write(0x391, value, true);
                    self.naive.status |= value;
                }
            }
            7 => self.mix = TopDownMix { shares: MIXES[usize::from(number) % 4] },
            _ => self.happens(place, value & 0x3FF, value >> 16 & 1 == 0),
        }
    }

    /// One kind of event happens some times. The naive model knows each interrupt after the events of one call.
    fn happens(&mut self, kind: usize, count: u64, is_user: bool) {
        let privilege = if is_user { Privilege::User } else { Privilege::Kernel };
        let mut feed = Feed::new(self.pmu.events());
        feed.add(self.pmu.events().find(KEYS[kind]).unwrap(), privilege, count).unwrap();
        let (metrics, reload) = &mut self.both;
        let mut left = count;
        while !feed.is_empty() {
            let mix = self.mix;
            let advanced = reload
                .advance_by(&mut self.pmu, &mut feed, |pmu, feed| {
                    metrics.observe(pmu, &mix, |pmu| pmu.advance(feed))
                })
                .unwrap();
            assert_eq!(advanced.records, 0);
            let (passed, interrupted) = self.naive.pass(kind, left, is_user, &self.mix);
            left -= passed;
            assert_eq!(advanced.pmi, interrupted, "{:?}", self.naive);
            assert_eq!(feed.is_empty(), left == 0, "{:?}", self.naive);
        }
    }

    /// Continues with what was saved, by registers and as bytes.
    fn save_and_restore(&mut self) {
        let metrics = VirtualTopDown::new(&self.configuration, self.naive.level_2).unwrap();
        let reload = VirtualReload::new(&self.configuration, self.both.1.configuration()).unwrap();
        let mut restored = (metrics, reload);
        restored.0.restore(&self.both.0.to_bytes()).unwrap();
        restored.1.restore(&self.both.1.to_bytes()).unwrap();
        assert_eq!(restored, self.both);
        self.both = restored;
    }

    fn check(&self) {
        let value = |register| match self.pmu.read_beside(&self.both, register) {
            Read::Value(value) => Some(value),
            _ => None,
        };
        let naive = &self.naive;
        for place in 0..3 {
            let register = VALUES[place];
            assert_eq!(value(register), Some(naive.values[place]), "{naive:?}");
            let exists = naive.reloaded >> BITS[place] & 1 != 0;
            assert_eq!(value(register + 2), exists.then_some(naive.causes[place]));
            assert_eq!(value(register + 3), exists.then_some(naive.reloads[place]));
        }
        assert_eq!(value(0x38E), Some(naive.status), "{naive:?}");
        assert_eq!(value(0x38F), Some(naive.control));
        assert_eq!(value(0x329), Some(naive.metrics()), "{naive:?}");
    }
}

impl Naive {
    fn runs(&self, place: usize, is_user: bool) -> bool {
        let select = self.selects[place];
        let (user, kernel) = match place {
            0 => (select >> 1 & 1, select & 1),
            _ => (select >> 16 & select >> 22 & 1, select >> 17 & select >> 22 & 1),
        };
        self.control >> BITS[place] & 1 != 0 && (if is_user { user } else { kernel }) != 0
    }

    fn interrupts(&self, place: usize) -> bool {
        let bit = if place == 0 { 3 } else { 20 };
        self.selects[place] >> bit & 1 != 0
    }

    /// Counts event by event up to an interrupt. Returns the events that passed, and whether there was one.
    fn pass(&mut self, place: usize, count: u64, is_user: bool, mix: &TopDownMix) -> (u64, bool) {
        if !self.runs(place, is_user) {
            return (count, false);
        }
        // The metrics' overflow is found at the end of a span.
        let mut metrics_overflowed = false;
        for passed in 1..=count {
            if place == 0 && self.control >> 48 & 1 != 0 {
                metrics_overflowed |= self.divide(mix);
            }
            self.values[place] += 1;
            let overflows = self.values[place] == RANGE;
            let mut interrupted = false;
            let bit = 1u64 << BITS[place];
            if overflows {
                self.values[place] = 0;
                let reloads: Vec<_> = (0..3).filter(|of| self.causes[*of] & bit != 0).collect();
                for of in &reloads {
                    // The value's sign is extended.
                    self.values[*of] = self.reloads[*of] as u32 as i32 as u64 % RANGE;
                }
                if !reloads.contains(&place) {
                    self.status |= bit;
                }
                interrupted = self.interrupts(place);
            }
            let is_cause = self.causes.iter().any(|causes| causes & bit != 0);
            let ends = overflows && (is_cause || self.interrupts(place)) || passed == count;
            if ends && core::mem::take(&mut metrics_overflowed) {
                self.status |= 1 << 48;
                interrupted |= self.selects[0] >> 3 & 1 != 0;
            }
            if interrupted {
                return (passed, true);
            }
        }
        (count, false)
    }

    /// Divides one slot. Returns whether the metrics overflow.
    fn divide(&mut self, mix: &TopDownMix) -> bool {
        if self.slots == 0 && self.written != 0 {
            // The metrics that were written are fractions of the slots in the counter.
            self.slots = self.values[0];
            let shares = self.written.to_le_bytes();
            self.parts = shares.map(|share| u128::from(share) * u128::from(self.values[0]));
        }
        let parts = if self.level_2 { 8 } else { 4 };
        for (part, share) in self.parts.iter_mut().zip(mix.shares).take(parts) {
            *part += u128::from(share);
        }
        self.slots += 1;
        self.slots.is_multiple_of(RANGE)
    }

    fn metrics(&self) -> u64 {
        if self.slots == 0 {
            return self.written;
        }
        let slots = u128::from(self.slots);
        u64::from_le_bytes(self.parts.map(|part| ((2 * part + slots) / (2 * slots)).min(255) as u8))
    }
}
