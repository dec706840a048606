//! Access to the guest's memory, for the records.

use core::fmt;

/// Access to the guest's memory, to which a virtual processor writes records. The embedder implements this trait.
///
/// The guest can choose any address, so the implementation must check that each byte belongs to the guest. An access
/// has supervisor privilege, and uses the guest's present address space.
///
/// ```
/// use pmu_virt::precise::{GuestFault, GuestMemory};
/// /// Memory from linear address 0x1000 on, which is also its physical address.
/// struct Ram([u8; 0x1000]);
///
/// impl Ram {
///     fn at(&mut self, address: u64, length: usize) -> Result<&mut [u8], GuestFault> {
///         let start = address.checked_sub(0x1000).and_then(|start| usize::try_from(start).ok());
///         start
///             .and_then(|start| self.0.get_mut(start..start.checked_add(length)?))
///             .ok_or(GuestFault { address })
///     }
/// }
///
/// impl GuestMemory for Ram {
///     fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault> {
///         bytes.copy_from_slice(self.at(linear, bytes.len())?);
///         Ok(())
///     }
///     fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault> {
///         self.at(linear, bytes.len())?.copy_from_slice(bytes);
///         Ok(())
///     }
///     fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault> {
///         self.write(physical, bytes)
///     }
/// }
/// let mut ram = Ram([0; 0x1000]);
/// assert_eq!(ram.write(0x1FFF, &[1, 2]), Err(GuestFault { address: 0x1FFF }));
/// ```
pub trait GuestMemory {
    /// Reads the guest's memory into `bytes`, starting at linear address `linear`. `bytes` has at most 64 bytes.
    ///
    /// # Errors
    /// The guest cannot read one of the bytes.
    fn read(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), GuestFault>;

    /// Writes `bytes` to the guest's memory, starting at linear address `linear`. `bytes` has at most 256 bytes.
    ///
    /// # Errors
    /// The guest cannot write one of the bytes. Bytes at lower addresses may already have been written.
    fn write(&mut self, linear: u64, bytes: &[u8]) -> Result<(), GuestFault>;

    /// Writes `bytes` to the guest's memory, starting at guest-physical address `physical`. `bytes` has at most 256
    /// bytes. Only architectural PEBS uses physical addresses.
    ///
    /// # Errors
    /// The guest has no memory at the address of one of the bytes. Bytes at lower addresses may already have been
    /// written.
    fn write_physical(&mut self, physical: u64, bytes: &[u8]) -> Result<(), GuestFault>;
}

/// An access to the guest's memory failed. The embedder decides whether the guest gets a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GuestFault {
    /// Address of the access.
    pub address: u64,
}

impl fmt::Display for GuestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the guest has no memory at {:#X}", self.address)
    }
}

impl core::error::Error for GuestFault {}
