//! The request of `SystemProcessorProfileControlArea`, as bytes.

use crate::debug_store::error::ControlAreaError;

/// `SYSTEM_PROCESSOR_PROFILE_CONTROL_AREA`: a request to create or destroy a control area, and the answer to the
/// request.
///
/// ```
/// use pmu_intel::debug_store::ProfileControlRequest;
/// let mut bytes = [0; ProfileControlRequest::SIZE];
/// bytes[8] = 1; // Allocate
/// let request = ProfileControlRequest::decode(&bytes, true)?;
/// assert!(request.allocate);
/// ProfileControlRequest { area: 0x1000, ..request }.encode(&mut bytes, true)?;
/// assert_eq!(bytes[..8], 0x1000_u64.to_le_bytes());
/// # Ok::<(), pmu_intel::debug_store::ControlAreaError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ProfileControlRequest {
    /// Output `ProcessorProfileControlArea`: address of the area, or 0 if there is no area.
    pub area: u64,
    /// Input `Allocate`: `true` creates the area, and `false` destroys the area.
    pub allocate: bool,
}

impl ProfileControlRequest {
    /// Size of a 64-bit caller's request, in bytes.
    pub const SIZE: usize = 0x10;
    /// Size of a 32-bit caller's request, in bytes.
    pub const SIZE_32: usize = 0x08;

    /// Decodes a caller's request. `is_64_bit` tells whether the caller is 64-bit. The request of a 32-bit caller has
    /// another layout.
    ///
    /// # Errors
    /// [`LengthMismatch`](ControlAreaError::LengthMismatch): the length of `bytes` is not the size of the caller's
    /// request.
    pub fn decode(bytes: &[u8], is_64_bit: bool) -> Result<Self, ControlAreaError> {
        let mismatch = ControlAreaError::LengthMismatch { length: bytes.len() };
        let size = if is_64_bit { Self::SIZE } else { Self::SIZE_32 };
        if bytes.len() != size {
            return Err(mismatch);
        }
        let (pointer, rest) = bytes.split_at(size / 2);
        let mut area = [0; 8];
        area.iter_mut().zip(pointer).for_each(|(to, from)| *to = *from);
        let allocate = rest.first().is_some_and(|byte| *byte != 0);
        Ok(Self { area: u64::from_le_bytes(area), allocate })
    }

    /// Writes the control area's address into a caller's request. `is_64_bit` tells whether the caller is 64-bit. The
    /// request of a 32-bit caller has another layout. The other bytes of the request keep their values.
    ///
    /// # Errors
    /// [`LengthMismatch`](ControlAreaError::LengthMismatch): the length of `bytes` is not the size of the caller's
    /// request.
    pub fn encode(&self, bytes: &mut [u8], is_64_bit: bool) -> Result<(), ControlAreaError> {
        let mismatch = ControlAreaError::LengthMismatch { length: bytes.len() };
        let size = if is_64_bit { Self::SIZE } else { Self::SIZE_32 };
        if bytes.len() != size {
            return Err(mismatch);
        }
        bytes.iter_mut().zip(self.area.to_le_bytes()).take(size / 2).for_each(|(to, b)| *to = b);
        Ok(())
    }
}

/// Processor mode from which `ZwSetSystemInformation` was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CallerMode {
    /// Kernel mode.
    Kernel,
    /// User mode. Requests from user mode are always refused.
    User,
}
