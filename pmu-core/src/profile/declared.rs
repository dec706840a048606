//! The declaration of a source: what the boot processor's CPUID says of the source, without an access to a register.

use core::ptr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::interval::{Interval, IntervalLimits, IntervalUnit};
use crate::profile::error::InterfaceError;
use crate::profile::information::{Availability, SourceInformation};
use crate::profile::source::KProfileSource;
use crate::profile::source_interface::SourceInterface;

/// Returns the cell of the interval of a source that the boot processor declares, and its limits.
pub(crate) fn declared_interval<I: SourceInterface + ?Sized>(
    interface: &I,
    source: KProfileSource,
) -> Result<(&AtomicU32, IntervalLimits), InterfaceError> {
    if interface.answer().is_some_and(|answer| answer.excludes(source)) {
        return Err(InterfaceError::UnsupportedSource(source));
    }
    let declared = match interface.table().row_by_call(source) {
        Some(row) => interface
            .intervals()
            .get(row)
            .filter(|_| interface.is_declared(row))
            .map(|cell| (cell, IntervalLimits::of(unit_of(source)))),
        None => interface.added().interval(source, interface.unit()),
    };
    declared.ok_or(InterfaceError::UnsupportedSource(source))
}

/// Sets a source's interval for all names of the source. Each name has a variable, so that the interrupt does not look
/// for the source that the name stands for.
#[inline(never)] // Linked once: two operations set an interval, which take 150 bytes more of text by copies of this.
pub(crate) fn store_interval<I: SourceInterface + ?Sized>(
    interface: &I,
    source: KProfileSource,
    cell: &AtomicU32,
    interval: Interval,
) {
    let names = || interface.table().rows().iter().zip(interface.intervals());
    let known = names().find(|(_, own)| ptr::eq(*own, cell));
    let shared = known.and_then(|(row, _)| row.canonical()).unwrap_or(source);
    // The variable that all names copy.
    let row = interface.table().row_by_call(shared);
    let canonical = row.and_then(|row| interface.intervals().get(row)).unwrap_or(cell);
    canonical.store(interval.get(), SeqCst);
    for (_, name) in names().filter(|(row, _)| row.canonical() == Some(shared)) {
        // Another task may set the interval by another name. Whoever comes last copies the interval that stays.
        loop {
            let copied = canonical.load(SeqCst);
            name.store(copied, SeqCst);
            if canonical.load(SeqCst) == copied {
                break;
            }
        }
    }
}

/// Returns the information on a source: at best [`Declared`](Availability::Declared).
pub(crate) fn declared_information<I: SourceInterface + ?Sized>(
    interface: &I,
    source: KProfileSource,
) -> SourceInformation {
    match declared_interval(interface, source) {
        Ok((cell, limits)) => SourceInformation {
            source,
            availability: Availability::Declared,
            interval: cell.load(Relaxed),
            limits,
        },
        Err(_) => SourceInformation {
            source,
            availability: Availability::Unsupported,
            interval: 0,
            limits: IntervalLimits::of(unit_of(source)),
        },
    }
}

/// Returns the unit of a source's interval.
fn unit_of(source: KProfileSource) -> IntervalUnit {
    if source == KProfileSource::TIME {
        IntervalUnit::HundredNanoseconds
    } else {
        IntervalUnit::Events
    }
}
