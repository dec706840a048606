//! The layout of the page, by hand, by the bindings of a crate, and by the header where it is installed.

use core::mem::offset_of;

use perf_event_open_sys::bindings::perf_event_mmap_page as Bindings;
use pmu::core::access::CounterIndex;
use pmu::core::error::CounterError;
use pmu::core::reading::UserView;
use pmu::user::{UserClock, UserPage};
use pmu_tests::linux_page::{LinuxPage, fields};

const VIEW: UserView = UserView {
    index: Some(CounterIndex::new(7)),
    readable: true,
    width: 48,
    offset: 0x1111_2222_3333_4444,
    is_enabled: true,
    enabled: 0x5555_0001,
    running: 0x5555_0002,
    now: 0x6666_0000,
};
const CLOCK: UserClock = UserClock { mult: 0x7777_0001, shift: 31, zero: 0x8888_0000_0000 };

fn publish(page: &UserPage, clock: Option<&UserClock>, view: UserView) {
    page.publish(clock, || Ok::<_, CounterError>(view)).unwrap();
}

/// Offsets of the page's fields, for a program that is not written in Rust.
#[test]
fn the_pages_layout_is_fixed() {
    let page = UserPage::new();
    let read = LinuxPage::of(&page);
    let nonzero = || fields().filter(|[name, _, size]| *size != "928" && read.field(name) != 0);
    assert_eq!(nonzero().count(), 0, "zeros");
    publish(&page, Some(&CLOCK), VIEW);
    let expected: Vec<(&str, u64)> = vec![
        ("lock", 2),
        ("index", 8),
        ("offset", 0x1111_2222_3333_4444),
        ("time_enabled", 0x5555_0001),
        ("time_running", 0x5555_0002),
        ("capabilities", 0b11110),
        ("cap_bit0_is_deprecated", 1),
        ("cap_user_rdpmc", 1),
        ("cap_user_time", 1),
        ("cap_user_time_zero", 1),
        ("pmc_width", 48),
        ("time_shift", 31),
        ("time_mult", 0x7777_0001),
        ("time_offset", 0x8888_0000_0000 - 0x6666_0000),
        ("time_zero", 0x8888_0000_0000),
        ("size", 96),
    ];
    let found: Vec<_> = nonzero().map(|[name, ..]| (name, read.field(name))).collect();
    assert_eq!(found, expected);
    for (word, name) in [
        (&page.data.head, "data_head"),
        (&page.data.tail, "data_tail"),
        (&page.data.offset, "data_offset"),
        (&page.data.size, "data_size"),
        (&page.aux.head, "aux_head"),
        (&page.aux.tail, "aux_tail"),
        (&page.aux.offset, "aux_offset"),
        (&page.aux.size, "aux_size"),
    ] {
        word.store(0x9999, core::sync::atomic::Ordering::Relaxed);
        assert_eq!(read.field(name), 0x9999, "{name}");
        word.store(0, core::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_capability_is_there_only_where_its_fields_hold() {
    let on_none = UserView { index: None, width: 0, ..VIEW };
    let hidden = UserView { readable: false, ..on_none };
    let stopped = UserView { is_enabled: false, ..on_none };
    let page = UserPage::new();
    for (clock, view, capabilities) in [
        (Some(&CLOCK), VIEW, 0b11110),
        (Some(&CLOCK), on_none, 0b11110),
        // Its times stand still: a program adds nothing to them.
        (Some(&CLOCK), stopped, 0b10110),
        // The program asks the kernel.
        (Some(&CLOCK), hidden, 0b10010),
        (None, VIEW, 0b00110),
        (None, hidden, 0b00010),
    ] {
        publish(&page, clock, view);
        let found = LinuxPage::of(&page).field("capabilities");
        assert_eq!(found, capabilities, "{found:#b}: {clock:?}, {view:?}");
    }
    page.hide();
    let hidden = LinuxPage::of(&page);
    assert_eq!(["capabilities", "index"].map(|name| hidden.field(name)), [0b10, 0]);
}

#[test]
fn the_offsets_are_those_of_the_bindings_of_linux_header() {
    macro_rules! same {
        ($($field:ident)*) => {
            $(
                let [_, at, _] = fields().find(|[name, ..]| *name == stringify!($field)).unwrap();
                assert_eq!(at, offset_of!(Bindings, $field).to_string(), stringify!($field));
            )*
        };
    }
    same!(version compat_version lock index offset time_enabled time_running pmc_width time_shift);
    same!(time_mult time_offset time_zero size __reserved_1 time_cycles time_mask __reserved data_head);
    same!(data_tail data_offset data_size aux_head aux_tail aux_offset aux_size);
}

/// The header's structure has these fields in this order, of these sizes and bits, if the system has the header.
#[test]
fn the_offsets_are_those_of_the_installed_header() {
    let Ok(header) = std::fs::read_to_string("/usr/include/linux/perf_event.h") else {
        eprintln!("skipped: no linux/perf_event.h");
        return;
    };
    let (_, structure) = header.split_once("struct perf_event_mmap_page {").unwrap();
    let mut code = String::new();
    for part in structure.split("/*") {
        code += part.split_once("*/").map_or(part, |(_, behind)| behind);
    }
    // The braces that end the structure, and those of the bits and of their union.
    let (mut at, mut braces, mut found) = (0, 1, vec![]);
    for declaration in code.split(';').map(str::trim) {
        if declaration == "}" {
            braces -= 1;
            match braces {
                0 => break,
                1 => at += 8,
                _ => {}
            }
            continue;
        }
        let declaration = declaration.replace("union {", "");
        let is_bits = declaration.contains("struct {");
        let declaration = declaration.replace("struct {", "");
        let (kind, names) = declaration.trim().split_once(char::is_whitespace).unwrap();
        let size: usize = kind.trim_matches(|of: char| !of.is_ascii_digit()).parse().unwrap();
        if is_bits {
            let mut from = 0;
            for name in names.split(',') {
                let (name, bits) = name.split_once(':').unwrap();
                if name.trim() != "cap_____res" {
                    found.push([name.trim().to_owned(), format!("{at}:{from}"), String::new()]);
                }
                from += bits.trim().parse::<u32>().unwrap();
            }
            assert_eq!(from, 64);
            braces += 2;
            continue;
        }
        let (name, elements) = match names.trim().split_once('[') {
            Some((name, "116*8]")) => (name, 116 * 8),
            Some((name, "118*8+4]")) => (name, 118 * 8 + 4),
            _ => (names.trim(), 1),
        };
        let size = size / 8 * elements;
        found.push([name.to_owned(), at.to_string(), size.to_string()]);
        // The bits of the union are at the place of its first field.
        at += if name == "capabilities" { 0 } else { size };
    }
    let expected: Vec<_> = fields().map(|row| row.map(str::to_owned)).collect();
    assert_eq!(found, expected);
}

/// The header's time of a TSC, and its way back, against division without rounding.
#[test]
fn a_clock_is_as_exact_as_it_says() {
    let (tsc, now) = (0x1234_5678_9ABC_u64, 77_000_000_000);
    for hertz in [250_000_000, 1_000_000_000, 2_399_999_999, 3_999_999_999, 4_000_000_000] {
        let clock = UserClock::new(hertz, tsc, now).unwrap();
        assert!(clock.shift < 32, "readers shift a number of 32 bits");
        for passed in [0, 1, 2, 1_000, 999_999_999, 1 << 40, 1 << 55] {
            let exact = (u128::from(passed) * 1_000_000_000 / u128::from(hertz)) as u64;
            let time = clock.time(tsc + passed) - now;
            assert!(
                time.abs_diff(exact) <= 2 + (exact >> 29),
                "{hertz}: {passed}: {time}, {exact}"
            );
            // From `linux/perf_event.h`: the TSC of a time.
            let since = clock.time(tsc + passed).wrapping_sub(clock.zero);
            let (quotient, rest) = (since / u64::from(clock.mult), since % u64::from(clock.mult));
            let back = (quotient << clock.shift) + (rest << clock.shift) / u64::from(clock.mult);
            let tick = hertz / 1_000_000_000 + 2;
            assert!(back.abs_diff(tsc + passed) <= tick, "{hertz}: {passed}: {back}");
        }
    }
    assert_eq!(UserClock::new(0, tsc, now), None);
    assert_eq!(UserClock::new(u64::MAX, tsc, now), None);
    // A slow TSC, and no time before the first tick.
    let slow = UserClock::new(1, 0, 5).unwrap();
    assert_eq!([slow.time(0), slow.time(3)], [5, 3_000_000_005]);
}
