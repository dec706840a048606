//! Samplers whose processor was suspended, whose registers did not answer, or that are not alone.

use core::cell::Cell;

use pmu_amd::ibs::{IbsError, IbsKind, IbsSampler};
use pmu_core::ExtendedEntryError;
use pmu_virt::mock::{Fault, PmiFault};
use pmu_virt::{GuestFacility, IbsConfiguration, VirtualIbs, Writer};

use crate::support::*;

/// The control register of a unit, and its bits that enable it and its period.
fn control(kind: IbsKind) -> (u32, u64) {
    match kind {
        IbsKind::Fetch => (0xC001_1030, 1 << 48 | 9),
        IbsKind::Op => (0xC001_1033, 1 << 17 | 9),
    }
}

/// After a suspend the sampler samples again, or is still stopped, and no sample of before is reported.
#[test]
fn a_sampler_goes_on_after_its_registers_were_lost() {
    for (processor, kind) in units() {
        for (sampled, pending) in [(true, false), (true, true), (false, false), (false, true)] {
            let what = format!("{}, {kind:?}, {sampled}, {pending}", processor.name);
            sampler!(processor, kind => mock, kernel, sampler);
            sampler.start(&processor.request(kind)).unwrap();
            if pending {
                mock.inject_pmi(PmiFault::Lost);
                assert!(kernel.run(&mock, PERIOD), "{what}");
                mock.inject_pmi(PmiFault::None);
                kernel.sampled.borrow_mut().clear();
            }
            if !sampled {
                sampler.stop().unwrap();
            }
            mock.lose_registers();
            sampler.reprogram(&&mock).unwrap();
            assert_eq!((sampler.is_sampling(), mock.extended_entry(1)), (sampled, 0x400), "{what}");
            assert_eq!(kernel.run(&mock, PERIOD), sampled, "{what}");
            kernel.all_reported(&what);
            // The stop of before expected an interrupt, which the suspend has taken away.
            mock.interrupt_from_elsewhere();
            assert_eq!(kernel.unclaimed.get(), 1, "{what}");
            sampler.start(&processor.request(kind)).unwrap();
            assert!(kernel.run(&mock, PERIOD), "{what}");
            kernel.all_reported(&what);
        }
    }
}

/// Firmware that samples after the suspend, by the same unit.
#[test]
fn what_firmware_left_after_a_suspend_is_ended() {
    for (processor, kind) in units() {
        let what = format!("{}, {kind:?}", processor.name);
        for sampled in [true, false] {
            sampler!(processor, kind => mock, kernel, sampler);
            if sampled {
                sampler.start(&processor.request(kind)).unwrap();
            }
            mock.lose_registers();
            let (register, value) = control(kind);
            let _ = mock.with_sampling_unit(|unit| unit.write(Writer::Guest, register, value));
            assert!((0..160).any(|number| step(&mock, kind, number)), "{what}");
            sampler.reprogram(&&mock).unwrap();
            assert_eq!(kernel.run(&mock, PERIOD), sampled, "{what}");
            kernel.all_reported(&what);
            // The interrupt of firmware's sample may still come.
            mock.interrupt_from_elsewhere();
            assert_eq!(kernel.unclaimed.get(), u32::from(sampled), "{what}");
        }
    }
}

/// A fault at each access of `reprogram`, once and for good.
#[test]
fn a_fault_while_reprogramming_is_told_and_a_start_samples_again() {
    for (processor, kind) in units() {
        for access in 1..20 {
            for transient in [true, false] {
                let what = format!("{}, {kind:?}, access {access}, {transient}", processor.name);
                sampler!(processor, kind => mock, kernel, sampler);
                sampler.start(&processor.request(kind)).unwrap();
                mock.lose_registers();
                mock.inject(if transient { Fault::At(access) } else { Fault::From(access) });
                let done = sampler.reprogram(&&mock);
                mock.inject(Fault::None);
                match done {
                    Ok(()) => assert!(sampler.is_sampling(), "{what}"),
                    Err(IbsError::Access(_) | IbsError::Faulted(_)) => {
                        assert!(!transient && !sampler.is_sampling(), "{what}");
                        assert!(!kernel.run(&mock, 2 * PERIOD), "{what}");
                        sampler.reprogram(&&mock).unwrap();
                        sampler.start(&processor.request(kind)).unwrap();
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
                assert!(kernel.run(&mock, PERIOD), "{what}");
                kernel.all_reported(&what);
            }
        }
    }
}

/// An entry that another user took meanwhile, and firmware that assigned none.
#[test]
fn a_resumed_unit_that_cannot_interrupt_does_not_sample() {
    let processor = named("Zen 4");
    sampler!(processor, IbsKind::Op => mock, kernel, sampler);
    sampler.start(&processor.request(IbsKind::Op)).unwrap();
    mock.lose_registers();
    mock.set_extended_entry(1, 0xE1);
    let in_use = IbsError::Entry(ExtendedEntryError::InUse(0xE1));
    assert_eq!(sampler.reprogram(&&mock), Err(in_use));
    assert_eq!((sampler.is_sampling(), mock.extended_entry(1)), (false, 0xE1));
    let without = IbsConfiguration { lvt_entry: None, ..processor.ibs };
    let _ = mock.with_sampling_unit(|unit| *unit = VirtualIbs::new(without));
    assert_eq!(sampler.reprogram(&&mock), Err(IbsError::NoInterrupt));
    assert!(!kernel.run(&mock, PERIOD) && !sampler.is_sampling());
}

/// An interrupt that could not read the control register leaves its sample: the unit waits. A restart does not wait for
/// an interrupt that has been; the next interrupt of any owner reports the sample.
#[test]
fn two_faults_in_a_row_at_the_control_register_stop_no_unit_for_good() {
    for (processor, kind) in units() {
        for restarts in [false, true] {
            let what = format!("{}, {kind:?}, {restarts}", processor.name);
            sampler!(processor, kind => mock, kernel, sampler);
            sampler.start(&processor.request(kind)).unwrap();
            mock.inject(Fault::Register(control(kind).0));
            assert!(kernel.run(&mock, PERIOD), "{what}");
            assert_eq!((kernel.faulted.get(), sampler.is_sampling()), (1, false), "{what}");
            mock.inject(Fault::None);
            if restarts {
                sampler.start(&processor.request(kind)).unwrap();
                kernel.sampled.borrow_mut().clear();
            } else {
                mock.interrupt_from_elsewhere();
                assert_eq!(kernel.claimed.get(), 1, "{what}");
            }
            assert_eq!(kernel.memory.lost(), u32::from(restarts), "{what}");
            assert!(sampler.is_sampling() && kernel.run(&mock, PERIOD), "{what}");
            kernel.all_reported(&what);
        }
    }
}

/// Both units of a processor, taken and given back in any order, share the entry.
#[test]
fn both_units_share_one_entry_and_neither_takes_it_from_the_other() {
    for processor in processors() {
        let mock = processor.mock();
        let kernels =
            [IbsKind::Op, IbsKind::Fetch].map(|kind| Kernel::new(processor.unit(kind), &mock));
        let [ops, fetches] = &kernels;
        let handler = |mock: &Mock<'_>| Kernel::handle_both(ops, fetches, mock);
        mock.on_interrupt(&handler);
        let mut first = IbsSampler::take(ops.unit, &mock, &mock, &ops.memory).unwrap();
        let mut second = IbsSampler::take(fetches.unit, &mock, &mock, &fetches.memory).unwrap();
        assert_eq!(first.lvt_entry(), second.lvt_entry());
        first.start(&processor.request(IbsKind::Op)).unwrap();
        second.start(&processor.request(IbsKind::Fetch)).unwrap();
        let again = IbsSampler::take(ops.unit, &mock, &mock, &ops.memory);
        assert_eq!(again.map(drop), Err(IbsError::MemoryInUse));
        for _ in 0..5 {
            assert!(ops.run(&mock, PERIOD) && fetches.run(&mock, PERIOD), "{}", processor.name);
        }
        // Both samples in one interrupt.
        mock.inject_pmi(PmiFault::Lost);
        assert!(ops.run(&mock, PERIOD), "{}", processor.name);
        mock.inject_pmi(PmiFault::None);
        assert!(fetches.run(&mock, PERIOD), "{}", processor.name);
        assert_eq!((ops.claimed.get(), mock.interrupts()), (12, 11), "{}", processor.name);
        first.shut_down().unwrap();
        assert!(fetches.run(&mock, PERIOD), "{}: the other one's entry", processor.name);
        second.shut_down().unwrap();
        ops.all_reported(processor.name);
        fetches.all_reported(processor.name);
    }
}

/// A processor's memory says nothing of another processor: its handler accesses nothing there.
#[test]
fn an_interrupt_of_another_processor_accesses_none_of_its_registers() {
    let processor = named("Zen 4");
    sampler!(processor, IbsKind::Op => mock, kernel, sampler);
    sampler.start(&processor.request(IbsKind::Op)).unwrap();
    let other = processor.mock();
    let there = Kernel::new(processor.unit(IbsKind::Op), &other);
    let taken = Cell::new(0);
    let handler = |mock: &Mock<'_>| {
        taken.set(taken.get() + 1);
        there.handle(mock);
    };
    other.on_interrupt(&handler);
    other.interrupt_from_elsewhere();
    assert_eq!((taken.get(), other.accesses().total(), there.unclaimed.get()), (1, 0, 1));
    assert!(kernel.run(&mock, PERIOD));
    kernel.all_reported("this processor");
}
