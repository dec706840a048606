//! Perf's names of events: the manual's own examples, and round trips.

use pmu::core::registers::EventSelect;
use pmu::core::{Event, GenericEvent};
use pmu::perf::{
    HARDWARE_EVENTS, PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE, PERF_TYPE_RAW, PERF_TYPE_SOFTWARE,
    PerfAttributes, PerfError, RawConfig,
};
use proptest::prelude::*;

fn bits(text: &str) -> Result<u64, PerfError> {
    text.parse().map(RawConfig::bits)
}

/// perf-list(1), "Raw Hardware Event Descriptor": event A8H with unit mask 01H is `r1a8`, also `cpu/r1a8/` and
/// `cpu/r0x1a8/`; its comment is "use cmask=1 and invert". The others follow from the kernel's format files.
#[test]
fn the_manuals_examples_are_parsed() {
    for (text, expected) in [
        ("r1a8", 0x1A8),
        ("cpu/r1a8/", 0x1A8),
        ("cpu/r0x1a8/", 0x1A8),
        ("cpu/config=0x1a8/", 0x1A8),
        ("cpu/event=0xa8,umask=0x1/", 0x1A8),
        ("cpu/event=0xa8,umask=0x1,inv,cmask=0x1/", 0x0180_01A8),
        ("r01c0", 0x1C0),
        ("cpu/event=0xc0,umask=0x1,cmask=4,inv,edge/", 0x0484_01C0),
        ("cpu/umask=1,event=192/", 0x1C0),
        ("cpu/event=0x3c,any=1/", 0x20_003C),
        ("cpu/event=0x3c,any=0,pc/", 0x08_003C),
        // AMD's 12 bits of an event: config:0-7,32-35.
        ("cpu/event=0x120,umask=0x1/", 0x1_0000_0120),
        ("r100000120", 0x1_0000_0120),
        // Two unit masks: config:8-15,40-47.
        ("cpu/event=0xd0,umask=0x2181,eq/", 0x2110_0000_81D0),
        // Intel's config:32 and config:33.
        ("cpu/event=0xc0,in_tx/", 0x1_0000_00C0),
        ("cpu/event=0xc0,in_tx=1,in_tx_cp=1/", 0x3_0000_00C0),
    ] {
        assert_eq!(bits(text), Ok(expected), "{text}");
    }
}

/// A flag of 1 has no value, a term of 0 is left out, and the event is always there.
#[test]
fn terms_are_written_as_the_manual_writes_them() {
    for (config, expected) in [
        (0, "cpu/event=0x0/"),
        (0xC0, "cpu/event=0xc0/"),
        (0x1A8, "cpu/event=0xa8,umask=0x1/"),
        (0x0180_01A8, "cpu/event=0xa8,umask=0x1,inv,cmask=0x1/"),
        (0x28_003C, "cpu/event=0x3c,pc,any/"),
        (0x1_0000_0001, "cpu/event=0x101/"),
        (0x2110_0000_81D0, "cpu/event=0xd0,umask=0x2181,eq/"),
    ] {
        assert_eq!(RawConfig::new(config).unwrap().terms().to_string(), expected);
    }
}

#[test]
fn a_text_that_is_no_event_says_where() {
    use PerfError::{Bits, Term, Value};
    for (text, expected) in [
        ("", Term { at: 0 }),
        ("cycles", Term { at: 0 }),
        ("r", Value { at: 1 }),
        ("r1g", Value { at: 1 }),
        ("r+1", Value { at: 1 }),
        ("r11112222333344445", Value { at: 1 }),
        ("r5300c0", Bits(0x53_0000)),
        ("cpu/", Term { at: 4 }),
        ("cpu//", Term { at: 4 }),
        ("cpu/event=0xc0", Term { at: 14 }),
        ("cpu/event=0xc0,/", Term { at: 15 }),
        ("cpu/event=0xc0,umask/", Value { at: 20 }),
        ("cpu/event=0xc0,umask=/", Value { at: 21 }),
        ("cpu/event=0xc0,umask=+1/", Value { at: 21 }),
        ("cpu/event=0xc0,umask=0x/", Value { at: 21 }),
        ("cpu/event=0x1000/", Value { at: 10 }),
        ("cpu/cmask=256/", Value { at: 10 }),
        ("cpu/edge=2/", Value { at: 9 }),
        ("cpu/event=0xc0,period=5/", Term { at: 15 }),
        ("cpu/config=0x10000/", Bits(0x1_0000)),
        ("cpu/config=x/", Value { at: 11 }),
        ("cpu/event=0xc0/u", Term { at: 16 }),
        ("cpu/é=1/", Term { at: 4 }),
    ] {
        assert_eq!(bits(text), Err(expected), "{text}");
    }
}

/// Numbers: include/uapi/linux/perf_event.h, `enum perf_hw_id`, as perf_event_open(2) lists it.
#[test]
fn hardware_events_have_the_kernels_numbers() {
    let event = |config| {
        let attributes = PerfAttributes { config, ..PerfAttributes::default() };
        Event::try_from(attributes).map(|event| event.name())
    };
    for (number, name) in [
        (0, GenericEvent::Cycles),
        (1, GenericEvent::Instructions),
        (2, GenericEvent::CacheReferences),
        (3, GenericEvent::CacheMisses),
        (4, GenericEvent::Branches),
        (5, GenericEvent::BranchMisses),
        (9, GenericEvent::ReferenceCycles),
    ] {
        assert_eq!(event(number), Ok(Some(name)));
    }
    for number in [10, 1 << 32, u64::MAX] {
        assert_eq!(event(number), Err(PerfError::Hardware(number)));
    }
    // Bus cycles and stalled cycles are events of a processor's list.
    for config in [6, 7, 8] {
        let missing = PerfError::NotOnProcessor { type_: PERF_TYPE_HARDWARE, config };
        assert_eq!((event(config), missing.errno()), (Err(missing), 2));
    }
    assert!(GenericEvent::ALL.iter().all(|name| HARDWARE_EVENTS.iter().any(|(_, n)| n == name)));
}

#[test]
fn attributes_without_an_event_are_typed_errors() {
    let raw = PerfAttributes { type_: PERF_TYPE_RAW, config: 0xC0, ..PerfAttributes::default() };
    let refused = |attributes| Event::try_from(attributes).unwrap_err();
    for type_ in [2, 5, 6, u32::MAX] {
        assert_eq!(refused(PerfAttributes { type_, ..raw }), PerfError::Type(type_));
    }
    let missing = PerfError::NotOnProcessor { type_: PERF_TYPE_HW_CACHE, config: 0xC0 };
    assert_eq!(refused(PerfAttributes { type_: PERF_TYPE_HW_CACHE, ..raw }), missing);
    let software = PerfAttributes { type_: PERF_TYPE_SOFTWARE, ..raw };
    assert_eq!(refused(software), PerfError::Software(0xC0));
    let none = PerfAttributes { exclude_user: true, exclude_kernel: true, ..raw };
    assert_eq!(refused(none), PerfError::ExcludesAll);
    let none = PerfAttributes { exclude_host: true, exclude_guest: true, ..raw };
    assert_eq!(refused(none), PerfError::ExcludesAll);
    assert_eq!(refused(PerfAttributes { config: 1 << 22, ..raw }), PerfError::Bits(1 << 22));
    let enabled = Event::raw(EventSelect::from_bits(0x40_00C0));
    assert_eq!(PerfAttributes::try_from(enabled), Err(PerfError::Bits(0x40_0000)));
}

#[test]
fn what_is_excluded_is_what_is_not_counted() {
    let raw = PerfAttributes { type_: PERF_TYPE_RAW, config: 0xC0, ..PerfAttributes::default() };
    let event = |attributes| Event::try_from(attributes).unwrap();
    let plain = Event::raw(EventSelect::from_bits(0xC0));
    assert_eq!(event(raw), plain);
    assert_eq!(event(PerfAttributes { exclude_kernel: true, ..raw }), plain.user_only());
    assert_eq!(event(PerfAttributes { exclude_user: true, ..raw }), plain.kernel_only());
    assert_eq!(event(PerfAttributes { exclude_host: true, ..raw }), plain.in_guests());
    assert_eq!(event(PerfAttributes { exclude_guest: true, ..raw }), plain.outside_guests());
    assert_eq!(event(PerfAttributes { sample_period: 9, ..raw }), plain.every(9));
}

/// Bits of [`RawConfig`]'s terms.
const LEGAL: u64 = 0xFF1F_FFAC_FFFF;

proptest! {
    #[test]
    fn a_configuration_survives_both_texts(any in any::<u64>()) {
        let config = RawConfig::new(any & LEGAL).unwrap();
        prop_assert_eq!(config.to_string().parse::<RawConfig>(), Ok(config));
        prop_assert_eq!(config.terms().to_string().parse::<RawConfig>(), Ok(config));
        prop_assert_eq!(
            RawConfig::new(any),
            if any & !LEGAL == 0 { Ok(config) } else { Err(PerfError::Bits(any & !LEGAL)) }
        );
    }

    #[test]
    fn attributes_survive_being_an_event(
        raw in any::<bool>(),
        number in 0..HARDWARE_EVENTS.len(),
        bits in any::<u64>(),
        sample_period in any::<u64>(),
        mode in 0..3,
        guest in 0..3,
    ) {
        let attributes = PerfAttributes {
            type_: if raw { PERF_TYPE_RAW } else { PERF_TYPE_HARDWARE },
            config: if raw { bits & LEGAL } else { HARDWARE_EVENTS[number].0 },
            config1: 0,
            sample_period,
            exclude_user: mode == 1,
            exclude_kernel: mode == 2,
            exclude_host: guest == 1,
            exclude_guest: guest == 2,
        };
        let event = Event::try_from(attributes).unwrap();
        prop_assert_eq!(PerfAttributes::try_from(event), Ok(attributes));
        let again = PerfAttributes::try_from(event).and_then(Event::try_from);
        prop_assert_eq!(again, Ok(event));
    }

    #[test]
    fn no_text_panics(text in "(cpu/|r)?[a-z0-9=,/+x\u{e9}]{0,24}") {
        if let Ok(config) = text.parse::<RawConfig>() {
            prop_assert_eq!(format!("{config}").parse(), Ok(config));
        }
    }
}
