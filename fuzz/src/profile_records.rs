//! Records of perf events: arbitrary ones, and such as perf_event_open(2) lays out.
//!
//! The bytes: the kind of record, a header's flags, the number of bytes cut off its end; then its fields, or after an
//! unknown kind a whole body.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::LazyLock;

use perf_event::events::Software;
use perf_event::{Builder, SampleFlag};
use pmu_examples::profiler::maps::Mapping;
use pmu_examples::profiler::perf::record::Layout;
use pmu_examples::profiler::perf::{Record, Sample, What};

use crate::input::Input;

/// The fields that the profiler requests in each sample, and behind each other record.
static LAYOUT: LazyLock<Layout> = LazyLock::new(|| {
    let mut builder = Builder::new(Software::TASK_CLOCK);
    let fields = SampleFlag::IP
        | SampleFlag::TID
        | SampleFlag::TIME
        | SampleFlag::CPU
        | SampleFlag::CALLCHAIN;
    Layout::of(builder.sample(fields).sample_id_all(true).attrs())
});

/// The header's kind and flags, the body, and the profiler's expected result.
struct Laid {
    kind: u32,
    flags: u16,
    body: Vec<u8>,
    meant: Option<Record>,
}

/// A path: as many bytes as said, none of them zero.
fn path<'b>(input: &mut Input<'b>) -> &'b [u8] {
    let length = input.u8().into();
    let bytes = input.bytes(length);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

/// Text in a record ends in zeros, up to a multiple of eight bytes.
fn padded(text: &[u8]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    bytes.resize((text.len() + 1).next_multiple_of(8), 0);
    bytes
}

/// Returns the calls of a chain, part by part: a part begins at a mark of a mode (`PERF_CONTEXT_MAX`, -4095, and
/// above), and ends where an address is of the other half. Parts of other modes than the kernel's (-128) and the user's
/// (-512) have none.
fn callers(pc: u64, kernel: bool, chain: &[u64]) -> Vec<u64> {
    let is_mark = |address: &u64| (-4095..0).contains(&(*address as i64));
    let first = if kernel { -128 } else { -512 };
    let marked = [&[first as u64], chain].concat();
    let mut starts: Vec<_> = (0..marked.len()).filter(|place| is_mark(&marked[*place])).collect();
    starts.push(marked.len());
    let mut callers = Vec::new();
    let mut seen = 0;
    for pair in starts.windows(2) {
        let (mark, part) = (marked[pair[0]] as i64, &marked[pair[0] + 1..pair[1]]);
        let of_mode = |address: &&u64| match mark {
            -128 => (**address as i64) < 0,
            -512 => (**address as i64) >= 0,
            _ => false,
        };
        for (place, address) in part.iter().take_while(of_mode).enumerate() {
            // The first of a part is an instruction's, and the others follow a call.
            if seen != 0 || *address != pc {
                callers.push(if place == 0 { *address } else { address.saturating_sub(1) });
            }
            seen += 1;
        }
    }
    callers
}

/// perf_event_open(2), "MMAP layout", `PERF_RECORD_MMAP2` (10), `_COMM` (3), `_FORK` (7), `_EXIT` (4),
/// `_LOST` (2), `_LOST_SAMPLES` (13), `_THROTTLE` (5) and `_SAMPLE` (9).
fn laid(which: u8, flags: u16, input: &mut Input<'_>) -> Laid {
    let (process, thread, time) = (input.u32(), input.u32(), input.u64());
    let processor = input.u32();
    let both = u64::from(process) | u64::from(thread) << 32;
    let words =
        |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    let at = |what| Some(Record::new(time, what));
    let (kind, mut body, meant) = match which {
        0 => {
            let pc = input.u64();
            let kernel = flags & 7 == 1;
            let known = u16::try_from(processor).ok();
            let chain: Vec<u64> = (0..input.u8() % 8).map(|_| input.u64()).collect();
            let callers = callers(pc, kernel, &chain);
            let user = None;
            let sample =
                |processor| Sample { process, thread, processor, pc, kernel, callers, user };
            let mut body = words(&[pc, both, time, processor.into(), chain.len() as u64]);
            body.extend(words(&chain));
            // No trailer: a sample has these as fields.
            let meant = known.and_then(|processor| at(What::Sample(sample(processor))));
            return Laid { kind: 9, flags, body, meant };
        }
        1 => {
            let (start, size, file_offset) = (input.u64(), input.u64(), input.u64());
            let name = path(input);
            let body =
                [words(&[both, start, size, file_offset, 0, 0, 0, 0]), padded(name)].concat();
            let path = OsStr::from_bytes(name).into();
            let mapping = Mapping { start, size, file_offset, path };
            let data = flags >> 13 & 1 != 0;
            (10, body, (!data).then_some(What::Map { process, mapping }))
        }
        2 => {
            let name = path(input);
            let body = [words(&[both]), padded(name)].concat();
            let name = String::from_utf8_lossy(name).into_owned();
            let what = match flags >> 13 & 1 {
                0 => What::Name { process, thread, name },
                _ => What::Exec { process, name },
            };
            (3, body, Some(what))
        }
        3 | 4 => {
            let parent = input.u32();
            let body = words(&[u64::from(process) | u64::from(parent) << 32, both, time]);
            let fork = which == 3;
            let what = if fork { What::Fork { process, parent } } else { What::Exit { process } };
            (if fork { 7 } else { 4 }, body, Some(what))
        }
        5 => {
            let lost = input.u64();
            (2, words(&[1, lost]), Some(What::Lost(lost)))
        }
        6 => {
            let lost = input.u64();
            (13, words(&[lost]), Some(What::Lost(lost)))
        }
        _ => (5, words(&[time, 1, 1]), Some(What::Throttled)),
    };
    body.extend(words(&[both, time, processor.into()]));
    Laid { kind, flags, body, meant: meant.and_then(at) }
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (which, flags, cut) = (input.u8(), input.u16(), usize::from(input.u8()));
    if which >= 8 {
        let (kind, body) = (input.u32(), input.rest());
        // A record's length has 16 bits, and counts its header.
        let body = &body[..body.len().min(0xFFF0)];
        let record = LAYOUT.parse(kind, flags, body);
        if let Some(Record { what: What::Map { mapping, .. }, .. }) = &record {
            assert!(!mapping.path.as_os_str().as_bytes().contains(&0));
        }
        return;
    }
    let Laid { kind, flags, mut body, meant } = laid(which, flags, &mut input);
    assert_eq!(LAYOUT.parse(kind, flags, &body), meant);
    // A truncated record is refused, or misread: the kernel, whose records they are, truncates none.
    body.truncate(body.len().saturating_sub(cut));
    let _ = LAYOUT.parse(kind, flags, &body);
}
