//! Texts and attributes of perf's events, against a reading of the kernel's format files bit by bit.

use core::cell::Cell;

use pmu::core::CounterSet;
use pmu::core::registers::{EventList, EventSelect};
use pmu::perf::{
    HARDWARE_EVENTS, PERF_TYPE_HARDWARE, PERF_TYPE_RAW, PERF_TYPE_SOFTWARE, PerfAttributes,
    RawConfig,
};

use crate::input::Input;

/// An empty list that keeps the last encoding whose counters were asked for.
struct Asked(Cell<Option<u64>>);

impl EventList for Asked {
    fn perf_config(&self, _: &str) -> Option<(u64, u64)> {
        None
    }

    fn constraints(&self, select: EventSelect) -> Option<CounterSet> {
        self.0.set(Some(select.select_bits()));
        None
    }
}

/// The bits of the configuration that a term's value has, lowest first: `config:0-7,32-35` and so on.
fn bits_of(term: &str) -> Option<Vec<u32>> {
    Some(match term {
        "event" => (0..8).chain(32..36).collect(),
        "umask" => (8..16).chain(40..48).collect(),
        "edge" => vec![18],
        "pc" => vec![19],
        "any" => vec![21],
        "inv" => vec![23],
        "cmask" => (24..32).collect(),
        "in_tx" => vec![32],
        "in_tx_cp" => vec![33],
        "eq" => vec![36],
        _ => return None,
    })
}

/// Bits 16, 17, 20 and 22 are perf's own; from 37 to 39 and from 48 on there are none.
fn is_legal(config: u64) -> bool {
    (0..64)
        .all(|bit| config >> bit & 1 == 0 || matches!(bit, 0..16 | 18 | 19 | 21 | 23..37 | 40..48))
}

fn digits(text: &str, radix: u32) -> Option<u64> {
    let plain = text.chars().all(|c| c.is_digit(radix));
    plain.then(|| u64::from_str_radix(text, radix).ok())?
}

fn number(text: &str) -> Option<u64> {
    text.strip_prefix("0x").map_or_else(|| digits(text, 10), |hexadecimal| digits(hexadecimal, 16))
}

fn raw(text: &str) -> Option<u64> {
    let text = text.strip_prefix('r')?;
    digits(text.strip_prefix("0x").unwrap_or(text), 16).filter(|config| is_legal(*config))
}

fn term(text: &str) -> Option<u64> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(number(value)?)),
        None => (text, None),
    };
    match (bits_of(name), value) {
        (Some(bits), value) => {
            let value = value.or((bits.len() == 1).then_some(1))?;
            let fits = value >> (bits.len() - 1) <= 1;
            fits.then(|| {
                (0..).zip(&bits).fold(0, |config, (n, bit)| config | (value >> n & 1) << bit)
            })
        }
        (None, Some(config)) => (name == "config" && is_legal(config)).then_some(config),
        (None, None) => raw(name),
    }
}

fn config(text: &str) -> Option<u64> {
    match text.strip_prefix("cpu/") {
        Some(rest) => {
            rest.strip_suffix('/')?.split(',').try_fold(0, |all, of| Some(all | term(of)?))
        }
        None => raw(text),
    }
}

/// Runs one input: a text; and as numbers the type, the configurations, the period and the flags.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let read = text.parse::<RawConfig>();
    assert_eq!(read.ok().map(RawConfig::bits), config(&text), "{text:?}: {read:?}");
    if let Ok(read) = read {
        assert_eq!(read.to_string().parse(), Ok(read));
        assert_eq!(read.terms().to_string().parse(), Ok(read));
    }

    let mut input = Input::new(bytes);
    let attributes = PerfAttributes {
        type_: u32::from(input.u8() % 6),
        config: input.u64(),
        config1: input.u64(),
        sample_period: input.u64(),
        exclude_user: input.bool(),
        exclude_kernel: input.bool(),
        exclude_host: input.bool(),
        exclude_guest: input.bool(),
    };
    let asked = Asked(Cell::new(None));
    let event = attributes.event(&asked);
    let software = attributes.type_ == PERF_TYPE_SOFTWARE;
    let known = match attributes.type_ {
        // From PERF_COUNT_SW_CPU_CLOCK to PERF_COUNT_SW_DUMMY.
        PERF_TYPE_SOFTWARE => attributes.config <= 9,
        PERF_TYPE_HARDWARE => HARDWARE_EVENTS.iter().any(|(of, _)| *of == attributes.config),
        PERF_TYPE_RAW => is_legal(attributes.config),
        _ => false,
    };
    let raw = known && attributes.type_ == PERF_TYPE_RAW;
    assert_eq!(asked.0.get(), raw.then_some(attributes.config), "{attributes:?}");
    let excludes_all = attributes.exclude_user && attributes.exclude_kernel
        || !software && attributes.exclude_host && attributes.exclude_guest;
    // A software event has no extra register and does not know of guests. Its clocks, 0 and 1, have a shortest period.
    let kept = match (software, attributes.config, attributes.sample_period) {
        (false, ..) => attributes,
        (true, clock, period) => PerfAttributes {
            config1: 0,
            sample_period: if clock <= 1 && (1..10_000).contains(&period) {
                10_000
            } else {
                period
            },
            exclude_host: false,
            exclude_guest: false,
            ..attributes
        },
    };
    let extra = !software && attributes.config1 != 0;
    match event {
        Ok(event) => {
            assert!(known && !excludes_all, "{attributes:?}");
            assert_eq!(PerfAttributes::try_from(event), Ok(kept));
        }
        // Without an extra register everything else is right.
        Err(_) => assert!(!known || excludes_all || extra, "{attributes:?}"),
    }
}
