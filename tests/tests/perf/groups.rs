//! Groups in user mode: what a read has, and what the samples have whose attributes select PERF_SAMPLE_READ.

use pmu::SoftwareEvent;
use pmu::perf::{AttrFlags, PerfEventAttr};

use crate::PERIOD;
use crate::all::on_every_machine;
use crate::machine::attr;
use crate::records::{raw_records, words};
use crate::world::{EINVAL, ENOENT, ENOSPC, INTERRUPTED, System};

/// PERF_SAMPLE_IDENTIFIER and _READ.
const COUNTS: u64 = 1 << 16 | 1 << 4;
/// PERF_FORMAT_ID.
const ID: u64 = 1 << 2;
const GROUP: u64 = ID | PerfEventAttr::FORMAT_GROUP;

const LEADER: u64 = 0x1111;
const MEMBER: u64 = 0x2222;

/// The bytes of an event whose samples have counts.
fn counts_of(text: &str, read_format: u64, flags: AttrFlags) -> [u8; PerfEventAttr::SIZE] {
    PerfEventAttr { sample_type: COUNTS, read_format, flags, ..attr(text) }.to_bytes()
}

/// By `perf_event_open(2)`: the words of a read and of a record, of which each one is known.
#[test]
fn a_group_is_read_and_sampled_with_its_counts_numbers_and_times() {
    on_every_machine!(|machine| read_and_sampled(machine, 0));
    on_every_machine!(|machine| read_and_sampled(machine, 0b11));
}

/// `times` is 0 or, of `read_format`, PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING.
fn read_and_sampled(machine: impl System, times: u64) {
    let (perf, name) = (machine.perf(), machine.name());
    // PERF_SAMPLE_IP, _TID, _READ, _CPU, _PERIOD, _IDENTIFIER.
    let sample_type = 1 << 0 | 1 << 1 | 1 << 4 | 1 << 7 | 1 << 8 | 1 << 16;
    let of = |text, flags| {
        // PERF_FORMAT_ID, _GROUP and _LOST.
        let read_format = 1 << 2 | 1 << 3 | 1 << 4 | times;
        PerfEventAttr { sample_type, read_format, flags, ..attr(text) }.to_bytes()
    };
    let leader = perf.open(&of("instructions/period=4096/u", AttrFlags::DISABLED), LEADER, None);
    if machine.has().counters == 0 {
        return assert_eq!(leader, Err(ENOENT), "{name}");
    }
    let leader = leader.unwrap();
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
    machine.end();
}

/// The member samples; its leader was reset, so that their counts differ.
#[test]
fn a_member_that_samples_without_the_group_has_its_own_count() {
    on_every_machine!(member_samples);
}

fn member_samples(machine: impl System) {
    let (perf, name) = (machine.perf(), machine.name());
    if machine.has().counters == 0 {
        return;
    }
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
    machine.end();
}

/// Samples that come in other calls than the interrupt's have their group's counts, too.
#[test]
fn a_software_event_is_sampled_with_the_counts_of_its_group() {
    on_every_machine!(software_leads);
}

fn software_leads(machine: impl System) {
    let (perf, name) = (machine.perf(), machine.name());
    let of = |text, flags| counts_of(text, GROUP, flags);
    let leader = of("faults/period=2/u", AttrFlags::DISABLED);
    let leader = perf.open(&leader, 1, None).unwrap();
    let has_counters = machine.has().counters > 0;
    let beside = if has_counters { "instructions:u" } else { "minor-faults:u" };
    perf.open(&of(beside, AttrFlags::default()), 2, Some(leader)).unwrap();
    perf.enable(leader).unwrap();
    machine.work(100, 0x9000);
    let fault = || machine.happen_in_software(SoftwareEvent::MinorFaults);
    perf.run_guest(|| (0..2).for_each(|_| fault())).unwrap();
    assert_eq!(raw_records(perf), Vec::<Vec<u64>>::new(), "{name}: the guest's");
    (0..2).for_each(|_| fault());
    let [ref record] = raw_records(perf)[..] else { panic!("{name}") };
    // The leader is the first that counts the second fault.
    let beside = if has_counters { 100 } else { 1 };
    assert_eq!(record[1..], [1, 2, 2, 1, beside, 2], "{name}");
    perf.close(leader).unwrap();
    machine.end();
}

/// Of three events, one is disabled, and then closed. Where there are two counters, the third one is refused.
#[test]
fn the_counts_of_a_sample_have_a_disabled_member_and_no_closed_one() {
    on_every_machine!(member_leaves);
}

fn member_leaves(machine: impl System) {
    let (perf, name) = (machine.perf(), machine.name());
    if machine.has().counters == 0 {
        return;
    }
    let of = |text, flags| counts_of(text, GROUP, flags);
    let counted = of("instructions:u", AttrFlags::default());
    let leader = of("instructions/period=4096/u", AttrFlags::DISABLED);
    let leader = perf.open(&leader, 1, None).unwrap();
    let member = perf.open(&counted, 2, Some(leader)).unwrap();
    let third = perf.open(&of("cycles:u", AttrFlags::default()), 3, Some(leader)).map(|_| ());
    let has_third = machine.has().counters > 2;
    assert_eq!(third, if has_third { Ok(()) } else { Err(EINVAL) }, "{name}");
    let last = if has_third { vec![3] } else { vec![] };
    perf.enable(leader).unwrap();
    machine.work(96, 0x9000);
    perf.pmu.disable(member).unwrap();
    machine.work(4_000, 0x9000);
    let check = |counts: &[u64]| {
        let [ref record] = raw_records(perf)[..] else { panic!("{name}") };
        let number = (counts.len() / 2 + last.len()) as u64;
        let (head, of_last) = record[1..].split_at(2 + counts.len());
        assert_eq!(head, [&[1, number], counts].concat(), "{name}");
        assert_eq!(of_last.get(1..).unwrap_or_default(), last, "{name}");
    };
    check(&[4_096, 1, 96, 2]);
    perf.close(member).unwrap();
    machine.work(4_096, 0x9000);
    check(&[8_192, 1]);
    machine.end();
}

/// The others are in no group then, and each is read with its own number.
#[test]
fn the_events_of_a_group_go_on_alone_when_its_leader_is_closed() {
    on_every_machine!(leader_leaves);
}

fn leader_leaves(machine: impl System) {
    let (perf, name) = (machine.perf(), machine.name());
    let (text, times) = match machine.has().counters {
        0 => ("minor-faults:u", 3),
        _ => ("instructions:u", 500),
    };
    let of = |flags| counts_of(text, GROUP, flags);
    let leader = perf.open(&of(AttrFlags::DISABLED), LEADER, None).unwrap();
    let member = perf.open(&of(AttrFlags::default()), MEMBER, Some(leader)).unwrap();
    let happens = || match machine.has().counters {
        0 => (0..3).for_each(|_| machine.happen_in_software(SoftwareEvent::MinorFaults)),
        _ => machine.work(500, 0x9000),
    };
    perf.enable(leader).unwrap();
    happens();
    perf.close(leader).unwrap();
    happens();
    let mut bytes = [0; 64];
    let length = perf.read(member, &mut bytes).unwrap();
    assert_eq!(words(&bytes[..length]), [1, 2 * times, MEMBER], "{name}");
    machine.end();
}
