//! Requests for a processor's control area, against Windows' rules by hand.
//!
//! The bytes: whether the kernel has 64 bits, and whether there is memory; then requests, each the
//! caller's mode, what the processor supports, and the structure's bytes with their number.

use core::sync::atomic::Ordering;

use pmu_core::profile::NtStatus;
use pmu_core::windows::{PointerWidth, Rules};
use pmu_intel::debug_store::{
    CallerMode, ControlAreaMemory, DebugStoreSupport, ProcessorProfileControl,
    ProfileControlRequest,
};
use pmu_intel::registers::MiscEnable;

use crate::input::{Input, number};

/// The PEBS index that the fuzzer leaves in an area, to tell a new one.
const USED: u64 = 0x1234;

/// The kernel's side, by hand.
struct Kernel {
    pointer: usize,
    has_memory: bool,
    address: u64,
    created: bool,
    used: bool,
}

impl Kernel {
    /// Returns the status, and the pointer's new value, if it is written.
    fn set(&mut self, user: bool, pebs: bool, dtes64: bool, bytes: &[u8]) -> (u32, Option<u64>) {
        if user {
            return (0xC000_0022, None); // STATUS_ACCESS_DENIED
        }
        if bytes.len() != 2 * self.pointer {
            return (0xC000_0004, None); // STATUS_INFO_LENGTH_MISMATCH
        }
        let allocate = bytes[self.pointer] != 0;
        match (allocate, self.created) {
            (true, _) if !self.has_memory => (0xC000_009A, Some(0)), // STATUS_INSUFFICIENT_RESOURCES
            (true, _) if !pebs || self.pointer == 4 && !dtes64 => (0xC000_00BB, Some(0)), // NOT_SUPPORTED
            (true, true) => (0xC000_020A, Some(self.address)), // STATUS_ADDRESS_ALREADY_EXISTS
            (true, false) => {
                (self.created, self.used) = (true, false);
                (0, Some(self.address))
            }
            (false, true) => {
                self.created = false;
                (0, Some(0))
            }
            (false, false) => (0xC000_00A0, Some(0)), // STATUS_MEMORY_NOT_ALLOCATED
        }
    }
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (wide, has_memory) = (input.bool(), input.bool());
    let memory = ControlAreaMemory::<4>::new();
    let lent = has_memory.then_some(&memory);
    let width = if wide { PointerWidth::Bits64 } else { PointerWidth::Bits32 };
    let control = ProcessorProfileControl::as_of(Rules { width, ..Rules::LATEST }, lent);
    let pointer = if wide { 8 } else { 4 };
    let address = core::ptr::from_ref(memory.area()) as usize as u64;
    let address = if wide { address } else { address & 0xFFFF_FFFF };
    let mut kernel = Kernel { pointer, has_memory, address, created: false, used: false };
    while !input.is_empty() {
        let (user, debug_store, dtes64) = (input.bool(), input.bool(), input.bool());
        let misc_enable = MiscEnable::from_bits(input.u64());
        let support = DebugStoreSupport { debug_store, dtes64, misc_enable };
        // EMON available (bit 7), PEBS unavailable (bit 12).
        let pebs = debug_store && misc_enable.into_bits() & (1 << 7 | 1 << 12) == 1 << 7;
        let length = usize::from(input.u8() % 24);
        let mut request = input.bytes(length).to_vec();
        let before = request.clone();
        let expected = kernel.set(user, pebs, dtes64, &before);

        let decoded = ProfileControlRequest::decode(&before, wide);
        assert_eq!(decoded.is_ok(), before.len() == 2 * pointer);
        if let Ok(decoded) = decoded {
            assert_eq!(decoded.area, number(&before, 0, pointer));
            assert_eq!(decoded.allocate, before[pointer] != 0);
            let mut same = before.clone();
            decoded.encode(&mut same, wide).unwrap();
            assert_eq!(same, before);
        }

        let mode = if user { CallerMode::User } else { CallerMode::Kernel };
        let answer = control.set(mode, &support, &mut request);
        let status = answer.map_or_else(|error| error.status(), |()| NtStatus::SUCCESS);
        assert_eq!(status.value(), expected.0, "{before:02X?}");
        match expected.1 {
            None => assert_eq!(request, before),
            Some(area) => {
                assert_eq!(number(&request, 0, pointer), area);
                assert_eq!(request[pointer..], before[pointer..]);
            }
        }
        let index = kernel.created.then_some(if kernel.used { USED } else { 0 });
        assert_eq!(control.pebs_index(), index);
        if kernel.created {
            memory.area().pebs_ds_save_area.pebs_index.store(USED, Ordering::Relaxed);
            kernel.used = true;
        }
    }
}
