//! Stores the words of a record, one after the other, in the guest's memory.

use crate::precise::memory::{GuestFault, GuestMemory};

/// Address of the guest's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Linear(u64),
    Physical(u64),
}

/// The next place of a record's words; without memory, only the length is counted.
pub(crate) struct Store<'m> {
    memory: Option<(&'m mut dyn GuestMemory, Place)>,
    /// Number of stored bytes.
    pub(crate) length: u64,
}

impl<'m> Store<'m> {
    /// Creates a store that only counts the length.
    pub(crate) fn counting() -> Self {
        Self { memory: None, length: 0 }
    }

    /// Creates a store of words from `place` on.
    pub(crate) fn at(memory: &'m mut dyn GuestMemory, place: Place) -> Self {
        Self { memory: Some((memory, place)), length: 0 }
    }

    /// Stores consecutive words, little-endian.
    pub(crate) fn words<const N: usize>(&mut self, words: [u64; N]) -> Result<(), GuestFault> {
        if let Some((memory, place)) = &mut self.memory {
            let bytes = words.map(u64::to_le_bytes);
            let bytes = bytes.as_flattened();
            let (Place::Linear(first) | Place::Physical(first)) = *place;
            let address = first.wrapping_add(self.length);
            if address.checked_add(bytes.len() as u64).is_none() {
                return Err(GuestFault { address });
            }
            match place {
                Place::Linear(_) => memory.write(address, bytes)?,
                Place::Physical(_) => memory.write_physical(address, bytes)?,
            }
        }
        self.length += 8 * N as u64;
        Ok(())
    }

    /// Stores a value of 16 bytes.
    pub(crate) fn wide(&mut self, value: u128) -> Result<(), GuestFault> {
        self.words([value as u64, (value >> 64) as u64])
    }
}

/// Reads consecutive words from a linear address on.
pub(crate) fn read_words<const N: usize>(
    memory: &mut dyn GuestMemory,
    linear: u64,
) -> Result<[u64; N], GuestFault> {
    let mut bytes = [[0; 8]; N];
    if linear.checked_add(8 * N as u64).is_none() {
        return Err(GuestFault { address: linear });
    }
    memory.read(linear, bytes.as_flattened_mut())?;
    Ok(bytes.map(u64::from_le_bytes))
}
