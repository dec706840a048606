//! The letters after an event's name: privilege levels, guests, precision, and scheduling.

use crate::perf::attr_flags::AttrFlags;
use crate::perf::error::PerfError;
use crate::perf::event_attr::PerfEventAttr;
use crate::perf::facility::Facility;

/// The modifiers that are not attributes of the event.
pub(crate) struct Modifiers {
    pub(crate) weak_group: bool,
    pub(crate) precise_max: bool,
}

/// Sets the attributes of these modifiers, whose first one is at `at` in the text.
///
/// Source: perf-list(1), "Event modifiers".
pub(crate) fn apply(
    modifiers: &str,
    at: usize,
    attr: &mut PerfEventAttr,
) -> Result<Modifiers, PerfError> {
    if modifiers.is_empty() {
        return Err(PerfError::Modifier { at });
    }
    let has = |letter| modifiers.contains(letter);
    for (place, letter) in modifiers.char_indices() {
        let at = at + place;
        let before = modifiers.get(..place).unwrap_or_default();
        match letter {
            // perf's `precise_ip` is at most 3.
            'p' if attr.precise_ip < 3 => attr.precise_ip += 1,
            'R' => {
                return Err(PerfError::Needs { facility: Facility::PreciseSampling, at });
            }
            'b' => return Err(PerfError::Needs { facility: Facility::Bpf, at }),
            'u' | 'k' | 'h' | 'G' | 'H' | 'I' | 'D' | 'e' | 'S' | 'W' | 'P'
                if !before.contains(letter) => {}
            _ => return Err(PerfError::Modifier { at }),
        }
    }
    // Of levels, and of guest and host, those that are not named are excluded as soon as one is.
    if has('u') || has('k') || has('h') {
        attr.select.exclude_user = !has('u');
        attr.select.exclude_kernel = !has('k');
    }
    if has('G') || has('H') {
        attr.select.exclude_guest = !has('G');
        attr.select.exclude_host = !has('H');
    }
    for (set, flag) in [
        ((has('u') || has('k')) && !has('h'), AttrFlags::EXCLUDE_HV),
        (has('I'), AttrFlags::EXCLUDE_IDLE),
        (has('D'), AttrFlags::PINNED),
        (has('e'), AttrFlags::EXCLUSIVE),
    ] {
        if set {
            attr.flags = attr.flags | flag;
        }
    }
    if has('S') {
        attr.sample_type |= PerfEventAttr::SAMPLE_READ;
        attr.read_format |= PerfEventAttr::FORMAT_GROUP;
    }
    if has('P') {
        attr.precise_ip = 3;
    }
    Ok(Modifiers { weak_group: has('W'), precise_max: has('P') })
}
