//! Memory of the test itself, to which a mock processor writes precise records.

use core::sync::atomic::{AtomicU64, Ordering};

use pmu_virt::{GuestFault, GuestMemory};

/// Memory of the test at its own linear addresses, and at physical addresses that the test chooses. Everything else
/// faults.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use pmu_tests::ProcessMemory;
/// use pmu_virt::{GuestFault, GuestMemory};
/// static WORDS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
/// let mut memory = ProcessMemory::default().with(&WORDS, 0x10_0000);
/// memory.write(WORDS.as_ptr() as u64 + 9, &[1]).unwrap();
/// memory.write_physical(0x10_0010, &[2]).unwrap();
/// assert_eq!(WORDS[1].load(Ordering::Relaxed), 0x100);
/// assert_eq!(WORDS[2].load(Ordering::Relaxed), 2);
/// assert_eq!(memory.write_physical(0x10_003F, &[3, 4]), Err(GuestFault { address: 0x10_0040 }));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ProcessMemory {
    /// The words, and their physical address.
    regions: Vec<(&'static [AtomicU64], u64)>,
}

impl ProcessMemory {
    /// Adds these words, which are at `physical`, too.
    pub fn with(mut self, words: &'static [AtomicU64], physical: u64) -> Self {
        self.regions.push((words, physical));
        self
    }

    /// Returns the word that holds the byte at an address, and the byte's first bit.
    fn find(&self, address: u64, physical: bool) -> Result<(&'static AtomicU64, u32), GuestFault> {
        self.regions
            .iter()
            .find_map(|(words, physical_start)| {
                let start = if physical { *physical_start } else { words.as_ptr() as u64 };
                let offset = address.checked_sub(start)?;
                let word = words.get(usize::try_from(offset / 8).ok()?)?;
                Some((word, offset as u32 % 8 * 8))
            })
            .ok_or(GuestFault { address })
    }

    fn store(&self, address: u64, bytes: &[u8], physical: bool) -> Result<(), GuestFault> {
        for (at, byte) in (address..).zip(bytes) {
            let (word, bit) = self.find(at, physical)?;
            let others = word.load(Ordering::Relaxed) & !(0xFF << bit);
            word.store(others | u64::from(*byte) << bit, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl GuestMemory for ProcessMemory {
    fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault> {
        for (at, byte) in (linear..).zip(bytes) {
            let (word, bit) = self.find(at, false)?;
            *byte = (word.load(Ordering::Relaxed) >> bit) as u8;
        }
        Ok(())
    }

    fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        self.store(linear, bytes, false)
    }

    fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        self.store(physical, bytes, true)
    }
}
