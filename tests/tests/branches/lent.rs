//! Branch records while the counters are lent, where accesses fail.

use super::support::*;
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::branch_recording::BranchError;
use pmu_core::branches::BranchFilter;
use pmu_core::error::CounterError;
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind};
use pmu_virt::mock::Fault;

/// Returns a call, which a call stack records, too.
fn call(number: u64) -> FedBranch {
    FedBranch { kind: FedBranchKind::RelativeCall, ..user(number) }
}

/// Filters of a recording that is lent: a call stack, too, where the processor has one.
fn filters(processor: &Processor) -> Vec<BranchFilter> {
    let stack = BranchFilter::USER.call_stack();
    let has_stack = processor.unit().recorded(stack).is_some();
    [Some(BranchFilter::ALL), has_stack.then_some(stack)].into_iter().flatten().collect()
}

fn freezes(mock: &Mock<'_>) -> bool {
    // SAFETY: the mock's registers are numbers.
    let debug_control = unsafe { RegisterAddress::new(0x1D9) };
    mock.read(debug_control).unwrap() & 1 << 11 != 0
}

/// Calls `act` on each kind of processor, freezing and not, with each filter, and with a fault from each access on,
/// until `act` returns `true`: no access failed.
fn with_each_fault(
    act: impl Fn(&Mock<'_>, &mut Recorder<'_, '_>, &mut Counters<'_, '_>, u32, &str) -> bool,
) {
    for processor in processors() {
        for freezing in [false, processor.unit().can_freeze()] {
            for filter in filters(&processor) {
                for failing in 1..400 {
                    let at = format!("{}, {freezing}, {filter:?}, {failing}", processor.name);
                    let mut ended = false;
                    with_samples(&processor, freezing, |mock, recorder, counters, _| {
                        recorder.start(filter).unwrap();
                        for number in 0..40 {
                            mock.branch(&call(number));
                        }
                        ended = act(mock, recorder, counters, failing, &at);
                        no_breach(mock, &at);
                    });
                    if ended {
                        break;
                    }
                    assert!(failing < 399, "{at}");
                }
            }
        }
    }
}

#[test]
fn a_recorder_whose_window_could_not_begin_says_whether_the_processor_records() {
    with_each_fault(|mock, recorder, counters, failing, at| {
        mock.inject(Fault::From(failing));
        let lent = counters.lend(0, |_| ()).map(|_| ());
        mock.inject(Fault::None);
        if lent.is_ok() {
            return true;
        }
        assert!(
            matches!(lent, Err(CounterError::Unchanged(_) | CounterError::StateUnknown(_))),
            "{at}"
        );
        assert_eq!(recorder.is_recording(), is_recording(mock), "{at}");
        // It can go on, and has none of the old branches that it could not clear.
        recorder.restart().unwrap();
        mock.branch(&call(50));
        assert_eq!(addresses(recorder)[0], call(50).from, "{at}");
        recorder.shut_down().unwrap();
        assert!(!is_recording(mock) && !freezes(mock), "{at}");
        false
    });
}

#[test]
fn a_fault_that_does_not_stay_changes_nothing_at_a_windows_end() {
    with_each_fault(|mock, _, counters, failing, at| {
        let window = counters.lend(0, |_| ()).unwrap();
        assert!(!freezes(mock), "{at}");
        mock.inject(Fault::At(failing));
        let before = mock.accesses().total();
        window.end(0).unwrap();
        let ended = mock.accesses().total() - before < failing;
        mock.inject(Fault::None);
        ended
    });
}

#[test]
fn a_window_whose_end_fails_leaves_neither_a_recording_nor_records_nor_the_freeze() {
    for processor in processors() {
        let registers = *processor.unit().registers();
        let frozen = registers.freeze.and_then(|freeze| freeze.status);
        let records = (0..32).map(|record| registers.from + registers.step * record);
        let failing = records.chain(frozen.map(|(_, acknowledge)| acknowledge.get()));
        let failing = failing.chain([0x1D9, 0x14CE, 0x1C9, 0x1C8, 0xC000_010F]);
        for register in failing {
            for freezing in [false, processor.unit().can_freeze()] {
                for filter in filters(&processor) {
                    let at = format!("{}, {freezing}, {filter:?}, {register:#X}", processor.name);
                    with_samples(&processor, freezing, |mock, recorder, counters, _| {
                        recorder.start(filter).unwrap();
                        for number in 0..40 {
                            mock.branch(&call(number));
                        }
                        let window = counters.lend(0, |_| ()).unwrap();
                        mock.inject(Fault::Register(register));
                        let ended = window.end(0);
                        mock.inject(Fault::None);
                        if ended.is_err() && recorder.restart() == Err(BranchError::Lent) {
                            assert!(!recorder.is_recording() && !is_recording(mock), "{at}");
                            // The register of the freeze, or the way to it, may be the one that fails.
                            assert!(!freezes(mock) || register == 0x1D9, "{at}");
                            // The next borrower finds nothing of this owner, or is not lent anything.
                            let window = counters.lend(0, |_| ()).unwrap();
                            mock.branch(&call(60));
                            let left = mock.with_branch_records(|left| *left).unwrap();
                            assert_eq!(left, left_clear(left), "{at}");
                            window.end(0).unwrap();
                        }
                        mock.branch(&call(50));
                        assert!(recorder.is_recording() && is_recording(mock), "{at}");
                        assert_eq!(addresses(recorder)[0], call(50).from, "{at}");
                        no_breach(mock, &at);
                    });
                }
            }
        }
    }
}

/// Returns the records without contents.
fn left_clear(
    mut records: pmu_virt::branches::VirtualBranches,
) -> pmu_virt::branches::VirtualBranches {
    records.lose_records();
    records
}

/// The index of the newest record means nothing without records.
#[test]
fn a_window_that_restores_no_records_leaves_the_index_of_the_newest() {
    const TOP: u32 = 0x1C9;
    let rings = processors().into_iter();
    let rings = rings.filter(|of| matches!(of.branches, BranchConfiguration::Legacy { .. }));
    for processor in rings {
        with_samples(&processor, false, |mock, _, counters, _| {
            mock.branch(&call(1));
            let window = counters.lend(0, |_| ()).unwrap();
            // SAFETY: the mock's registers are numbers.
            let top = unsafe { RegisterAddress::new(TOP) };
            mock.write(top, 3).unwrap();
            window.end(0).unwrap();
            assert_eq!(mock.read(top), Ok(3), "{}", processor.name);
        });
    }
}

/// After a window whose end failed, the task decides: the next window brings back what was not stopped meanwhile.
#[test]
fn a_recording_that_could_not_return_returns_with_the_next_window_unless_it_was_stopped() {
    for processor in processors() {
        for stops in [false, true] {
            with_samples(&processor, false, |mock, recorder, counters, _| {
                let window = counters.lend(0, |_| ()).unwrap();
                mock.inject(Fault::From(1));
                let ended = window.end(0);
                mock.inject(Fault::None);
                let at = format!("{}, {stops}", processor.name);
                assert!(ended.is_err() && !recorder.is_recording() && !is_recording(mock), "{at}");
                if stops {
                    recorder.stop().unwrap();
                }
                counters.lend(0, |_| ()).unwrap().end(0).unwrap();
                assert_eq!((recorder.is_recording(), is_recording(mock)), (!stops, !stops), "{at}");
                recorder.restart().unwrap();
                mock.branch(&user(1));
                assert_eq!(addresses(recorder), [user(1).from], "{at}");
                no_breach(mock, &at);
            });
        }
    }
}
