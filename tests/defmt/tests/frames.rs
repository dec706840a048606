//! Types of the crates go through a real encoder, and come back as text from a real decoder.

use std::sync::{Mutex, MutexGuard};

use defmt_decoder::Table;
use pmu_core::access::{AccessErrorKind, AccessFault, AccessOperation};
use pmu_core::error::CounterError;
use pmu_core::frame::ProcessorNumber;
use pmu_core::interval::IntervalLimits;
use pmu_core::profile::{InterfaceError, KProfileSource, NtStatus, Overflow};
use pmu_core::registers::CounterId;
use pmu_intel::registers::PerfEvtSel;

#[defmt::global_logger]
struct Logger;

static FRAMES: Mutex<(Vec<u8>, defmt::Encoder)> = Mutex::new((Vec::new(), defmt::Encoder::new()));

type Held = MutexGuard<'static, (Vec<u8>, defmt::Encoder)>;

thread_local! {
    static HELD: std::cell::RefCell<Option<Held>> =
        const { std::cell::RefCell::new(None) };
}

fn with_frames(f: impl FnOnce(&mut Vec<u8>, &mut defmt::Encoder)) {
    HELD.with_borrow_mut(|held| {
        let (bytes, encoder) = &mut **held.as_mut().expect("a frame is open");
        f(bytes, encoder);
    });
}

// SAFETY: the mutex is held from `acquire` to `release`.
unsafe impl defmt::Logger for Logger {
    fn acquire() {
        HELD.set(Some(FRAMES.lock().unwrap()));
        with_frames(|bytes, encoder| encoder.start_frame(|b| bytes.extend_from_slice(b)));
    }

    unsafe fn flush() {}

    unsafe fn release() {
        with_frames(|bytes, encoder| encoder.end_frame(|b| bytes.extend_from_slice(b)));
        HELD.set(None);
    }

    unsafe fn write(written: &[u8]) {
        with_frames(|bytes, encoder| encoder.write(written, |b| bytes.extend_from_slice(b)));
    }
}

defmt::timestamp!("");

/// Returns the decoded log since the last call.
fn decoded() -> Vec<String> {
    let bytes = std::mem::take(&mut FRAMES.lock().unwrap().0);
    let executable = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let table = Table::parse(&executable).unwrap().expect("a .defmt section");
    let mut stream = table.new_stream_decoder();
    stream.received(&bytes);
    std::iter::from_fn(|| stream.decode().ok().map(|frame| frame.display_message().to_string()))
        .collect()
}

#[test]
fn frames_of_the_crates_types_decode_to_what_was_logged() {
    let source = KProfileSource::TOTAL_CYCLES;
    let fault = AccessFault {
        operation: AccessOperation::Write,
        register: 0x186,
        kind: AccessErrorKind::Fault,
    };
    defmt::error!("{}", InterfaceError::Counters(CounterError::StateUnknown(fault)));
    defmt::error!("{}", Overflow { source, events: 65536, counter: CounterId::fixed(3).unwrap() });
    defmt::error!("{}", PerfEvtSel::new().with_event(0x3C).with_os(true));
    defmt::error!("{}", pmu_amd::SOURCES[1].windows_name());
    defmt::error!("{} {}", IntervalLimits::TIME, NtStatus::NOT_SUPPORTED);
    defmt::error!(
        "{}",
        pmu_kprofile::ProfileError::Hardware {
            processor: ProcessorNumber { group: 1, number: 2 },
            error: InterfaceError::NoFreeCounter(source),
        }
    );
    defmt::error!(
        "{}",
        pmu_core::thread::SavedCounters::<[pmu_core::thread::SavedCounter; 1]>::new()
    );
    static COUNTERS: [core::sync::atomic::AtomicU32; 3] =
        [const { core::sync::atomic::AtomicU32::new(0) }; 3];
    defmt::error!(
        "{}",
        pmu_kprofile::BasicProfile {
            process: pmu_core::frame::ProcessId::new(5),
            base: 0x1000,
            size: 48,
            bucket_log2: 4,
            buffer: &COUNTERS,
            source,
            affinity: None,
        }
    );
    let sample = pmu_kprofile::trace::Sample {
        pc: 0x1234,
        thread: 9,
        detail: pmu_kprofile::trace::Detail::PmcInterrupt { source: 2, reserved: 0 },
    };
    let ring: pmu_kprofile::trace::TraceRing<1> = pmu_kprofile::trace::TraceRing::new();
    ring.push_sample(pmu_kprofile::PointerWidth::Bits32, 7, &sample);
    defmt::error!("{}", ring.drain().next().expect("a record"));
    defmt::error!(
        "{}",
        pmu_kprofile::ListedProfile {
            process: None,
            source,
            range: Some(0x1000..0x1030),
            bucket: None,
        }
    );
    defmt::error!("{}", pmu_kprofile::service::KernelCaller);
    let metric =
        pmu_events::SKYLAKE.metric(pmu_events::metric::Metric::InstructionsPerCycle).unwrap();
    let ratio = metric.ratio(|_| Some(3)).unwrap();
    defmt::error!("{}", ratio);
    let lines = decoded();
    let expected = [
        "Counters(StateUnknown(AccessFault { operation: Write, register: 390, kind: Fault }))",
        "Overflow { source: KProfileSource(19), events: 65536, counter: CounterId(35) }",
    ];
    assert_eq!(lines[..2], expected);
    for part in ["event: 60", "os: true", "user: false", "enable: false"] {
        assert!(lines[2].contains(part), "{}", lines[2]);
    }
    assert_eq!(lines[3], "TotalIssues");
    assert!(lines[4].contains("default: 10000") && lines[4].contains("3221225659"), "{}", lines[4]);
    let hardware = "Hardware { processor: ProcessorNumber { group: 1, number: 2 }, \
                    error: NoFreeCounter(KProfileSource(19)) }";
    assert_eq!(lines[5], hardware);
    // Not the counters, of which there may be thousands.
    let profile = "BasicProfile { process: Some(ProcessId(5)), base: 0x1000, size: 48, bucket_log2: 4, \
                   counters: 3, source: KProfileSource(19), affinity: None }";
    let saved = "[SavedCounter { in_use: false, row: 0, period: 0, value: 0 }]";
    assert_eq!(lines[6], saved);
    assert_eq!(lines[7], profile);
    // Marker, size, hook, time; address, thread, source.
    let bytes = "RecordBytes([02, 00, 10, c0, 1c, 00, 2f, 0f, 07, 00, 00, 00, 00, 00, 00, 00, \
                 34, 12, 00, 00, 09, 00, 00, 00, 02, 00, 00, 00])";
    assert_eq!(lines[8], bytes);
    let listed = "ListedProfile { process: None, source: KProfileSource(19), range: Some(4096..4144), \
                  bucket: None }";
    assert_eq!(lines[9..], [listed, "KernelCaller", "Ratio { over: 3, under: 3, exponent: 0 }"]);
}
