//! One event of a group is closed whose events reload each other.

use pmu_virt::reload::ReloadConfiguration;

use crate::support::*;

const ALL: ReloadConfiguration =
    ReloadConfiguration { general: 0xF, fixed: 0, causing_general: 0xF, causing_fixed: 0 };

/// The events of such a group have no meaning alone, so that all are closed.
#[test]
fn a_closed_event_of_a_reload_group_returns_its_count() {
    let mock = mock(ALL);
    let kernel = Kernel::new(&mock, false);
    let handler = |mock: &Mock<'_>| kernel.handle(mock);
    mock.on_interrupt(&handler);
    let mut session = kernel.take(&mock);
    kernel.table.set_min_period(10);
    let events = [raw(0).every(5_000).reloaded_by(0b10), raw(1).every(100_000).reloaded_by(0b10)];
    let opened = session.open(&kernel.unit, &events).unwrap();
    session.enable(opened, 0).unwrap();
    let ids: Vec<_> = session.group_events(opened).collect();
    let last = session.close_member(ids[1], 10).unwrap();
    assert_eq!((last.enabled, last.running), (10, 10));
    assert_eq!(session.group_events(opened).count(), 0);
}
