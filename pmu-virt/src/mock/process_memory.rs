//! Memory of the test itself, to which a mock processor writes records.
#![allow(unsafe_code, reason = "the driver's memory is known by its addresses")]

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::precise::memory::{GuestFault, GuestMemory};

/// Memory of the test's own process, for [`MockMsr::with_precise`](super::MockMsr::with_precise): at the linear
/// addresses that it has in the process, and at physical addresses that the test chooses. All other addresses fault.
///
/// ```
/// use core::sync::atomic::{AtomicU64, Ordering};
/// use pmu_virt::mock::ProcessMemory;
/// use pmu_virt::precise::{GuestFault, GuestMemory};
/// static WORDS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8]; // or a `PreciseMemory` of `pmu-intel`
/// // SAFETY: WORDS consists of atomics.
/// let mut memory = unsafe { ProcessMemory::default().with(&WORDS, 0x10_0000) };
/// memory.write(WORDS.as_ptr() as u64 + 9, &[1])?;
/// memory.write_physical(0x10_0010, &[2])?;
/// assert_eq!(WORDS[1].load(Ordering::Relaxed), 0x100);
/// assert_eq!(WORDS[2].load(Ordering::Relaxed), 2);
/// assert_eq!(memory.write_physical(0x10_003F, &[3, 4]), Err(GuestFault { address: 0x10_0040 }));
/// # Ok::<(), GuestFault>(())
/// ```
///
/// Wrong: the value has a part that is no atomic.
///
/// ```no_run
/// # use pmu_virt::mock::ProcessMemory;
/// static BUFFER: [u64; 512] = [0; 512];
/// // SAFETY: not given. A record that the mock writes changes a value that never changes.
/// let memory = unsafe { ProcessMemory::default().with(&BUFFER, 0) };
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessMemory<'m> {
    /// First word, number of words, and physical address of each value.
    values: [Option<(NonNull<AtomicU64>, usize, u64)>; 4],
    memory: PhantomData<&'m AtomicU64>,
}

impl<'m> ProcessMemory<'m> {
    /// Adds the memory of a value, whose first byte has the given `physical` address.
    ///
    /// # Safety
    /// - Each access through the returned memory is to atomics of 64 bits. A value that consists of such atomics
    ///   fulfills this. For a value with other parts, such as a `PreciseMemory`, give the returned memory to the mock
    ///   alone: its driver names only the DS save area and the buffer, which consist of such atomics.
    ///
    /// # Panics
    /// The value is not aligned to 8 bytes, or four values were added before.
    #[must_use]
    pub unsafe fn with<T: ?Sized>(mut self, value: &'m T, physical: u64) -> Self {
        let first = NonNull::from(value).cast::<AtomicU64>();
        assert!(first.is_aligned(), "the value is not aligned");
        let free = self.values.iter_mut().find(|value| value.is_none());
        *free.expect("at most four values") = Some((first, size_of_val(value) / 8, physical));
        self
    }

    /// Returns the word that holds the byte at an address, and the byte's first bit.
    fn find(&self, address: u64, is_physical: bool) -> Result<(&'m AtomicU64, u32), GuestFault> {
        let found = self.values.iter().flatten().find_map(|(first, words, physical)| {
            let start = if is_physical { *physical } else { first.as_ptr() as u64 };
            let offset = address.checked_sub(start)?;
            let word = usize::try_from(offset / 8).ok().filter(|word| word < words)?;
            // SAFETY: (1) the word is in a value that lives for 'm; (2) by the promise of `with`, what is accessed is
            // an atomic.
            Some((unsafe { first.add(word).as_ref() }, offset as u32 % 8 * 8))
        });
        found.ok_or(GuestFault { address })
    }

    fn store(&self, address: u64, bytes: &[u8], is_physical: bool) -> Result<(), GuestFault> {
        // By single bytes: a record may begin at any of them, and the memory consists of whole words.
        for (at, byte) in (address..).zip(bytes) {
            let (word, bit) = self.find(at, is_physical)?;
            let others = word.load(Ordering::Relaxed) & !(0xFF << bit);
            word.store(others | u64::from(*byte) << bit, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl GuestMemory for ProcessMemory<'_> {
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
