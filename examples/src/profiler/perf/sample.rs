//! The kernel's samples: their fields, as the event's attributes ask for them.
//!
//! Source: perf_event_open(2), "MMAP layout", `PERF_RECORD_SAMPLE`. Every length in a record is checked against the
//! record's own.

use perf_event_open_sys::bindings::{
    PERF_FORMAT_GROUP, PERF_FORMAT_ID, PERF_FORMAT_LOST, PERF_FORMAT_TOTAL_TIME_ENABLED,
    PERF_FORMAT_TOTAL_TIME_RUNNING, PERF_SAMPLE_ADDR, PERF_SAMPLE_BRANCH_HW_INDEX,
    PERF_SAMPLE_BRANCH_STACK, PERF_SAMPLE_CALLCHAIN, PERF_SAMPLE_CPU, PERF_SAMPLE_ID,
    PERF_SAMPLE_IDENTIFIER, PERF_SAMPLE_IP, PERF_SAMPLE_PERIOD, PERF_SAMPLE_RAW, PERF_SAMPLE_READ,
    PERF_SAMPLE_REGS_USER, PERF_SAMPLE_STACK_USER, PERF_SAMPLE_STREAM_ID, PERF_SAMPLE_TID,
    PERF_SAMPLE_TIME, perf_event_attr,
};

use super::{REGISTERS, Sample, UserState};

/// The bits of a header's flags that tell the processor's mode, and the value for the kernel's.
const MODE_MASK: u16 = 7;
const MODE_KERNEL: u16 = 1;

/// The marks in a call chain: those that tell that the kernel's addresses follow, or the user's, and the first number
/// that is a mark and no address (`PERF_CONTEXT_KERNEL`, `_USER` and `_MAX`).
const CONTEXT_KERNEL: u64 = -128_i64 as u64;
const CONTEXT_USER: u64 = -512_i64 as u64;
const FIRST_CONTEXT: u64 = -4095_i64 as u64;

/// `PERF_SAMPLE_REGS_ABI_64`.
const ABI_64: u64 = 2;

/// The fields of an event's samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleLayout {
    fields: u64,
    counts: u64,
    branch_index: bool,
    registers: u64,
}

impl SampleLayout {
    pub(super) fn of(attributes: &perf_event_attr) -> Self {
        Self {
            fields: attributes.sample_type,
            counts: attributes.read_format,
            branch_index: attributes.branch_sample_type & u64::from(PERF_SAMPLE_BRANCH_HW_INDEX)
                != 0,
            registers: attributes.sample_regs_user,
        }
    }
}

/// The rest of a record.
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn bytes(&mut self, length: u64) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn word(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn words(&mut self, number: u64) -> Option<impl Iterator<Item = u64> + use<'b>> {
        let bytes = self.bytes(number.checked_mul(8)?)?;
        Some(
            bytes
                .chunks_exact(8)
                .filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?))),
        )
    }

    /// The number in the low half of a word, and the one in its high half.
    fn halves(&mut self) -> Option<(u32, u32)> {
        let word = self.word()?;
        Some((word as u32, (word >> 32) as u32))
    }
}

/// Returns the time and the sample in a record's body; `None` where it is cut off, or does not tell its thread, address
/// and time.
pub(super) fn parse(flags: u16, body: &[u8], layout: &SampleLayout) -> Option<(u64, Sample)> {
    let mut fields = Fields(body);
    let has = |field: u32| layout.fields & u64::from(field) != 0;
    let skip = |fields: &mut Fields<'_>, field| {
        if has(field) { fields.word().map(drop) } else { Some(()) }
    };
    skip(&mut fields, PERF_SAMPLE_IDENTIFIER)?;
    let pc = has(PERF_SAMPLE_IP).then(|| fields.word())??;
    let (process, thread) = has(PERF_SAMPLE_TID).then(|| fields.halves())??;
    let time = has(PERF_SAMPLE_TIME).then(|| fields.word())??;
    skip(&mut fields, PERF_SAMPLE_ADDR)?;
    skip(&mut fields, PERF_SAMPLE_ID)?;
    skip(&mut fields, PERF_SAMPLE_STREAM_ID)?;
    let processor = if has(PERF_SAMPLE_CPU) { fields.halves()?.0 } else { 0 };
    skip(&mut fields, PERF_SAMPLE_PERIOD)?;
    if has(PERF_SAMPLE_READ) {
        counts(&mut fields, layout.counts)?;
    }
    let kernel = flags & MODE_MASK == MODE_KERNEL;
    let mut callers = Vec::new();
    if has(PERF_SAMPLE_CALLCHAIN) {
        let number = fields.word()?;
        callers = self::callers(pc, kernel, fields.words(number)?);
    }
    if has(PERF_SAMPLE_RAW) {
        let length = u32::from_ne_bytes(fields.bytes(4)?.try_into().ok()?);
        fields.bytes(length.into())?;
    }
    if has(PERF_SAMPLE_BRANCH_STACK) {
        let branches = fields.word()?;
        let words = branches.checked_mul(3)?.checked_add(layout.branch_index.into())?;
        fields.words(words).map(drop)?;
    }
    let user = if has(PERF_SAMPLE_REGS_USER) {
        user(&mut fields, has(PERF_SAMPLE_STACK_USER), layout)?
    } else {
        None
    };
    let processor = processor.try_into().ok()?;
    Some((time, Sample { process, thread, processor, pc, kernel, callers, user }))
}

/// Skips the counts of the event, or of its group.
fn counts(fields: &mut Fields<'_>, format: u64) -> Option<()> {
    let has = |field: u32| u64::from(format & u64::from(field) != 0);
    let times = has(PERF_FORMAT_TOTAL_TIME_ENABLED) + has(PERF_FORMAT_TOTAL_TIME_RUNNING);
    let each = 1 + has(PERF_FORMAT_ID) + has(PERF_FORMAT_LOST);
    let words = match has(PERF_FORMAT_GROUP) {
        0 => times + each,
        _ => fields.word()?.checked_mul(each)?.checked_add(times)?,
    };
    fields.words(words).map(drop)
}

/// Reads the user's registers and stack; `None` within where a task has none, as a thread of the kernel, or others, as
/// in 32 bits.
fn user(
    fields: &mut Fields<'_>,
    has_stack: bool,
    layout: &SampleLayout,
) -> Option<Option<Box<UserState>>> {
    let interface = fields.word()?;
    let mut registers = [0; REGISTERS];
    if interface != 0 {
        let mut values = fields.words(layout.registers.count_ones().into())?;
        let numbers = (0..64).filter(|number| layout.registers >> number & 1 != 0);
        for number in numbers {
            let value = values.next()?;
            if let Some(register) = registers.get_mut(number) {
                *register = value;
            }
        }
    }
    let mut stack = &[][..];
    if has_stack && let length @ 1.. = fields.word()? {
        let room = fields.bytes(length)?;
        stack = room.get(..usize::try_from(fields.word()?).ok()?)?;
    }
    let state = || Box::new(UserState { registers, stack: stack.into() });
    Some((interface == ABI_64).then(state))
}

/// Returns the places of the calls in a call chain, which begins with the sampled instruction itself.
///
/// The marks of modes are none, and what follows one is of that mode: an address of the kernel's half among the user's
/// came from a register that holds no frame pointer, and ends the user's callers, as one of the user's half does among
/// the kernel's.
fn callers(pc: u64, kernel: bool, chain: impl Iterator<Item = u64>) -> Vec<u64> {
    // Of each mode the first address is that of an instruction, and the others are return addresses.
    let (mut in_kernel, mut is_first, mut has_ended) = (kernel, true, false);
    let mut is_sample = true;
    let mut callers = Vec::new();
    for address in chain {
        if address >= FIRST_CONTEXT {
            (in_kernel, is_first) = (address == CONTEXT_KERNEL, true);
            has_ended = !in_kernel && address != CONTEXT_USER;
            continue;
        }
        has_ended |= (address >> 63 != 0) != in_kernel;
        if has_ended {
            continue;
        }
        if !(is_sample && address == pc) {
            callers.push(if is_first { address } else { address.saturating_sub(1) });
        }
        (is_first, is_sample) = (false, false);
    }
    callers
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: u64 = 0xFFFF_FFFF_8100_0000;

    fn callers_of(pc: u64, kernel: bool, chain: &[u64]) -> Vec<u64> {
        callers(pc, kernel, chain.iter().copied())
    }

    #[test]
    fn a_call_chain_is_the_calls_of_both_modes() {
        let chain = [CONTEXT_KERNEL, KERNEL, KERNEL + 0x20, CONTEXT_USER, 0x5000, 0x6000];
        // The user's first address is that of the instruction that entered the kernel.
        assert_eq!(callers_of(KERNEL, true, &chain), [KERNEL + 0x1F, 0x5000, 0x5FFF]);
        assert_eq!(callers_of(0x5000, false, &[CONTEXT_USER, 0x5000, 0x6000]), [0x5FFF]);
        // Recursion returns to where the sample is.
        assert_eq!(callers_of(0x5000, false, &[CONTEXT_USER, 0x5000, 0x5000]), [0x4FFF]);
        assert!(callers_of(0x5000, false, &[]).is_empty());
    }

    #[test]
    fn an_address_of_the_other_mode_is_no_caller_and_ends_that_modes_callers() {
        let garbage = [CONTEXT_USER, 0x5000, 0x6000, KERNEL + 8, 0x7000];
        assert_eq!(callers_of(0x5000, false, &garbage), [0x5FFF]);
        let garbage = [CONTEXT_KERNEL, KERNEL, 0x7000, KERNEL + 9, CONTEXT_USER, 0x5000];
        assert_eq!(callers_of(KERNEL, true, &garbage), [0x5000]);
        // A guest's (`PERF_CONTEXT_GUEST_USER`, -2560).
        let guest = [CONTEXT_USER, 0x5000, -2560_i64 as u64, 0x6000];
        assert!(callers_of(0x5000, false, &guest).is_empty());
    }

    /// By the manual's order: ip, pid and tid, time, cpu, registers, stack.
    #[test]
    fn a_samples_registers_and_stack_are_read_and_a_thread_of_the_kernel_has_none() {
        let fields = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU;
        let fields = fields | PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
        // bp, sp and ip.
        let layout = SampleLayout {
            fields: fields.into(),
            counts: 0,
            branch_index: false,
            registers: 0x1C0,
        };
        let bytes =
            |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        let common = [0x5000, 7 | 8 << 32, 1234, 3];
        let body = bytes(&[&common[..], &[2, 0xB0, 0x50, 0x5000], &[16, 0xAA, 0xBB, 8]].concat());
        let (time, sample) = parse(2, &body, &layout).unwrap();
        assert_eq!((time, sample.process, sample.thread, sample.processor), (1234, 7, 8, 3));
        let user = sample.user.unwrap();
        assert_eq!((user.registers[6], user.registers[7], user.registers[8]), (0xB0, 0x50, 0x5000));
        assert_eq!(*user.stack, 0xAA_u64.to_ne_bytes());
        assert!(parse(2, &body[..body.len() - 1], &layout).is_none());
        let body = bytes(&[&common[..], &[0, 0]].concat());
        let (_, sample) = parse(1, &body, &layout).unwrap();
        assert!(sample.user.is_none() && sample.kernel);
    }
}
