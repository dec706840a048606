//! Groups in user mode: what a read has, and what the samples have whose attributes select PERF_SAMPLE_READ.

use pmu::SoftwareEvent;
use pmu::perf::{AttrFlags, PerfEventAttr};

use crate::PERIOD;
use crate::machine::{INTERRUPTED, Machine, attr, models};
use crate::records::{raw_records, words};
use crate::subsystem::ENOSPC;

/// PERF_SAMPLE_IDENTIFIER and _READ.
const COUNTS: u64 = 1 << 16 | 1 << 4;
/// PERF_FORMAT_ID.
const ID: u64 = 1 << 2;

/// The bytes of an event whose samples have counts.
fn counts_of(text: &str, read_format: u64, flags: AttrFlags) -> [u8; PerfEventAttr::SIZE] {
    PerfEventAttr { sample_type: COUNTS, read_format, flags, ..attr(text) }.to_bytes()
}

/// By `perf_event_open(2)`: the words of a read and of a record, of which each one is known.
#[test]
fn a_group_is_read_and_sampled_with_its_counts_numbers_and_times() {
    const LEADER: u64 = 0x1111;
    const MEMBER: u64 = 0x2222;
    // PERF_SAMPLE_IP, _TID, _READ, _CPU, _PERIOD, _IDENTIFIER.
    let sample_type = 1 << 0 | 1 << 1 | 1 << 4 | 1 << 7 | 1 << 8 | 1 << 16;
    // PERF_FORMAT_ID, _GROUP and _LOST; in the second turn, both times, too.
    for times in [0, 0b11] {
        for model in models() {
            let name = model.name;
            let machine = Machine::new(&model);
            let perf = machine.perf;
            let of = |text, flags| {
                let read_format = 1 << 2 | 1 << 3 | 1 << 4 | times;
                PerfEventAttr { sample_type, read_format, flags, ..attr(text) }.to_bytes()
            };
            let leader = of("instructions/period=4096/u", AttrFlags::DISABLED);
            let leader = perf.open(&leader, LEADER, None).unwrap();
            let member = of("instructions:u", AttrFlags::default());
            perf.open(&member, MEMBER, Some(leader)).unwrap();
            perf.enable(leader).unwrap();
            machine.work(PERIOD + 100, 0x9000);
            let mut bytes = [0; 128];
            let length = perf.read(leader, &mut bytes).unwrap();
            let read = words(&bytes[..length]);
            let (head, counts) = read.split_at(1 + times.count_ones() as usize);
            assert_eq!(head[0], 2, "{name}");
            let total = PERIOD + 100;
            assert_eq!(counts, [total, LEADER, 0, total, MEMBER, 0], "{name}");
            assert!(times == 0 || head[1] >= head[2] && head[2] > 0, "{name}: {head:?}");
            assert_eq!(perf.read(leader, &mut bytes[..length - 1]), Err(ENOSPC), "{name}");

            let [ref record] = raw_records(perf)[..] else { panic!("{name}") };
            let kernel = 1 << 32;
            let header = 9 | kernel | (8 * record.len() as u64) << 48;
            let (processor, process) = (0, 0);
            let fields = [header, LEADER, INTERRUPTED, process, processor, PERIOD];
            assert_eq!(record[..6], fields, "{name}: {record:x?}");
            let (head, counts) = record[6..].split_at(head.len());
            assert_eq!(head[0], 2, "{name}");
            assert_eq!(counts, [PERIOD, LEADER, 0, PERIOD, MEMBER, 0], "{name}");
            machine.end(name);
        }
    }
}

/// The member samples; its leader was reset, so that their counts differ.
#[test]
fn a_member_that_samples_without_the_group_has_its_own_count() {
    const LEADER: u64 = 0x1111;
    const MEMBER: u64 = 0x2222;
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let of = |text, flags| counts_of(text, ID, flags);
        let leader = perf.open(&of("instructions:u", AttrFlags::DISABLED), LEADER, None).unwrap();
        let member = of("instructions/period=4096/u", AttrFlags::default());
        perf.open(&member, MEMBER, Some(leader)).unwrap();
        perf.enable(leader).unwrap();
        machine.work(100, 0x9000);
        perf.pmu.reset(leader).unwrap();
        machine.work(PERIOD, 0x9000);
        let [ref record] = raw_records(perf)[..] else { panic!("{name}") };
        assert_eq!(record[1..], [MEMBER, PERIOD, MEMBER], "{name}");
        machine.end(name);
    }
}

/// Samples that come in other calls than the interrupt's have their group's counts, too.
#[test]
fn a_software_event_is_sampled_with_the_counts_of_its_group() {
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let of = |text, flags| counts_of(text, ID | PerfEventAttr::FORMAT_GROUP, flags);
        let leader = of("faults/period=2/u", AttrFlags::DISABLED);
        let leader = perf.open(&leader, 1, None).unwrap();
        perf.open(&of("instructions:u", AttrFlags::default()), 2, Some(leader)).unwrap();
        perf.enable(leader).unwrap();
        machine.work(100, 0x9000);
        let fault = || machine.happen_in_software(SoftwareEvent::MinorFaults);
        perf.run_guest(|| (0..2).for_each(|_| fault())).unwrap();
        assert_eq!(raw_records(perf), Vec::<Vec<u64>>::new(), "{name}: the guest's");
        (0..2).for_each(|_| fault());
        let [ref record] = raw_records(perf)[..] else { panic!("{name}") };
        assert_eq!(record[1..], [1, 2, 2, 1, 100, 2], "{name}");
        perf.close(leader).unwrap();
        machine.end(name);
    }
}

/// Of three events, one is disabled, and then closed.
#[test]
fn the_counts_of_a_sample_have_a_disabled_member_and_no_closed_one() {
    for model in models() {
        let name = model.name;
        let machine = Machine::new(&model);
        let perf = machine.perf;
        let of = |text, flags| counts_of(text, ID | PerfEventAttr::FORMAT_GROUP, flags);
        let counted = of("instructions:u", AttrFlags::default());
        let leader = of("instructions/period=4096/u", AttrFlags::DISABLED);
        let leader = perf.open(&leader, 1, None).unwrap();
        let member = perf.open(&counted, 2, Some(leader)).unwrap();
        perf.open(&of("cycles:u", AttrFlags::default()), 3, Some(leader)).unwrap();
        perf.enable(leader).unwrap();
        machine.work(96, 0x9000);
        perf.pmu.disable(member).unwrap();
        machine.work(4_000, 0x9000);
        let [ref record] = raw_records(perf)[..] else { panic!("{name}") };
        assert_eq!(record[1..7], [1, 3, 4_096, 1, 96, 2], "{name}");
        assert_eq!((record.len(), record[8]), (9, 3), "{name}");
        perf.close(member).unwrap();
        machine.work(4_096, 0x9000);
        let [ref record] = raw_records(perf)[..] else { panic!("{name}") };
        assert_eq!(record[1..5], [1, 2, 8_192, 1], "{name}");
        assert_eq!((record.len(), record[6]), (7, 3), "{name}");
        machine.end(name);
    }
}
