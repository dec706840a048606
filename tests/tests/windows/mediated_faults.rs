//! Guests on real counters whose registers fault as they are loaded and put back.

use super::machine::*;
use pmu_core::access::AccessErrorKind;
use pmu_virt::Write;
use pmu_virt::configuration::Vendor;
use pmu_virt::mediated::MediationError;
use pmu_virt::mock::Fault;

/// A register that faults at any access: a typed error, no counter that counts or is armed, and success when it is
/// tried again.
#[test]
fn a_fault_at_any_access_loses_nothing() {
    for (host, given) in pairs() {
        let whole = {
            let mut machine = busy(host, given);
            machine.enter();
            machine.happen(99, 33, true);
            machine.leave();
            machine.guest.state()
        };
        let mut faults = [0, 0];
        for at in 1.. {
            let mut machine = busy(host, given);
            let before = machine.guest.state();
            machine.mock.inject(Fault::At(at));
            let loaded =
                machine.counters.load(lent(), &mut machine.guest, machine.cell, &machine.mock);
            let Err(error) = loaded.map(|_| ()) else { break };
            assert!(
                matches!(error, MediationError::Access(fault) if fault.kind == AccessErrorKind::Fault)
            );
            faults[0] += 1;
            assert_eq!(machine.guest.state(), before);
            assert_eq!(left_over(&machine), 0, "{host:?} at {at}");
            let foreign = machine.counters.interrupted(machine.cell, &machine.mock);
            assert!(!foreign, "{host:?} at {at}: it is not loaded");
            machine.enter();
            machine.happen(99, 33, true);
            machine.leave();
            assert_eq!(machine.guest.state(), whole, "{host:?} at {at}");
        }
        for at in 1.. {
            let mut machine = busy(host, given);
            machine.enter();
            machine.happen(99, 33, true);
            let (put, saved) = machine.put_with(Fault::At(at));
            let (loaded, error) = match put {
                Err(failed) => failed,
                // A write that disarms is tried again.
                Ok(_) if at < machine.mock.accesses().total() => continue,
                Ok(_) => break,
            };
            assert!(matches!(error, MediationError::Access(_)));
            faults[1] += 1;
            machine.put_again(loaded, saved, &format!("{host:?} at {at}"));
            assert_eq!(machine.guest.state(), whole, "{host:?} at {at}");
        }
        assert!(faults[0] > 8 && faults[1] > 4, "{host:?}: {faults:?}");
    }
}

/// A register stays faulted while a guest is loaded, or put back: what could not be disarmed is known to the lender.
#[test]
fn a_fault_that_stays_is_left_to_the_end_of_the_window() {
    for (host, given) in pairs() {
        for at in 1..12 {
            let mut machine = busy(host, given);
            let before = machine.guest.state();
            machine.mock.inject(Fault::From(at));
            let loaded =
                machine.counters.load(lent(), &mut machine.guest, machine.cell, &machine.mock);
            assert!(loaded.is_err(), "{host:?} from {at}");
            assert_eq!(machine.guest.state(), before);
            let running = machine.mock.with_pmu(|pmu| pmu.running().count());
            assert_eq!(running, 0, "{host:?} from {at}");
            machine.mock.inject(Fault::None);
            machine.enter();
            machine.happen(99, 33, true);
            let (Err((loaded, _)), saved) = machine.put_with(Fault::From(at)) else { continue };
            machine.put_again(loaded, saved, &format!("{host:?} from {at}"));
        }
    }
}

/// The guest set a status bit that is no counter's. Its acknowledgement faults: the bit is still the guest's.
#[test]
fn a_status_bit_whose_acknowledgement_faults_does_not_stay_behind_the_guest() {
    for (host, given) in pairs().into_iter().filter(|(host, _)| host.vendor() == Vendor::Intel) {
        let mut machine = busy(host, given);
        machine.enter();
        let Write::Done = machine.guest_writes(0x391, 1 << 62) else { continue };
        machine.mock.inject(Fault::Register(0x390));
        let loaded = machine.loaded.as_mut().unwrap();
        let guest = &mut machine.guest;
        let written = machine.counters.write(loaded, guest, 0x390, 1 << 62, &machine.mock);
        assert!(written.is_err(), "{host:?}");
        machine.mock.inject(Fault::None);
        machine.leave();
        let status = machine.mock.with_pmu(|pmu| pmu.read(0x38E));
        assert_eq!(status, pmu_virt::Read::Value(0), "{host:?}");
    }
}

/// The guest's next load fails before the interrupt comes that its put announced: it is claimed all the same.
#[test]
fn a_load_that_fails_leaves_an_announced_interrupt_announced() {
    for (host, given) in pairs().into_iter().filter(|(host, _)| host.vendor() == Vendor::Amd) {
        let mut machine = busy(host, given);
        machine.enter();
        machine.happen(100, 0, false);
        let (put, _) = machine.put_with(Fault::None);
        assert!(put.unwrap().interrupt_is_coming, "{host:?}");
        machine.mock.inject(Fault::Register(0xC000_0301));
        let loaded = machine.counters.load(lent(), &mut machine.guest, machine.cell, &machine.mock);
        assert!(loaded.is_err(), "{host:?}");
        machine.mock.inject(Fault::None);
        machine.arrive();
    }
}

/// A put fails at any access, and before it is tried again the hypervisor writes registers for the guest: on AMD they
/// ran on after the put.
#[test]
fn what_is_written_between_two_attempts_of_a_put_is_the_guests_and_leaves_nothing_armed() {
    for (host, given) in pairs() {
        for at in 1..60 {
            let mut machine = busy(host, given);
            machine.enter();
            machine.happen(99, 33, true);
            let (Err((mut loaded, _)), _) = machine.put_with(Fault::From(at)) else { break };
            let (control, value, select) = match machine.vendor {
                Vendor::Intel => (0x38F, 0x4C2, 0x187),
                _ => (0xC000_0301, 0xC001_0203, 0xC001_0202),
            };
            for (register, bits) in [(control, 0b11), (value, 4711), (select, 0x53_003C)] {
                let guest = &mut machine.guest;
                let written =
                    machine.counters.write(&mut loaded, guest, register, bits, &machine.mock);
                assert_eq!(written, Ok(Write::Done), "{host:?} from {at}");
                let read = machine.counters.read(&loaded, guest, register, &machine.mock);
                assert_eq!(read, Ok(pmu_virt::Read::Value(bits)), "{host:?} from {at}");
            }
            let saved = loaded.global_control();
            machine.put_again(loaded, saved, &format!("{host:?} from {at}"));
            let real = |register| machine.mock.with_pmu(|pmu| pmu.read(register));
            let zero = pmu_virt::Read::Value(0);
            assert_eq!([control, value, select].map(real), [zero; 3], "{host:?} from {at}");
            assert_eq!(
                machine.guest.read(value),
                pmu_virt::Read::Value(4711),
                "{host:?} from {at}"
            );
        }
    }
}
