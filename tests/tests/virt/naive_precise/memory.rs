//! Memory of the guest.

use pmu_virt::precise::{GuestFault, GuestMemory};

/// Memory that is at the same linear and physical addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ram(pub(crate) Vec<u8>);

/// Address and length of the memory.
pub(crate) const RAM: u64 = 0x1_0000;
const LENGTH: usize = 0x3000;

impl Ram {
    pub(crate) fn new() -> Self {
        Self(vec![0; LENGTH])
    }

    fn byte(&mut self, address: u64) -> Result<&mut u8, GuestFault> {
        let place = address.checked_sub(RAM).and_then(|place| usize::try_from(place).ok());
        place.and_then(|place| self.0.get_mut(place)).ok_or(GuestFault { address })
    }

    pub(super) fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        for (at, byte) in (address..).zip(bytes) {
            *self.byte(at)? = *byte;
        }
        Ok(())
    }

    pub(crate) fn put(&mut self, address: u64, word: u64) {
        self.store(address, &word.to_le_bytes()).unwrap();
    }

    pub(crate) fn word(&mut self, address: u64) -> Result<u64, GuestFault> {
        let mut word = 0;
        for byte in 0..8 {
            // No access beyond the last address.
            let at = address.checked_add(byte).ok_or(GuestFault { address })?;
            word |= u64::from(*self.byte(at)?) << (8 * byte);
        }
        Ok(word)
    }
}

impl GuestMemory for Ram {
    fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault> {
        for (at, byte) in (linear..).zip(bytes) {
            *byte = *self.byte(at)?;
        }
        Ok(())
    }

    fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        self.store(linear, bytes)
    }

    fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault> {
        self.store(physical, bytes)
    }
}
