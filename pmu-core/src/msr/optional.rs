//! An optional register address in four bytes: as a plain value, and as an atomic that tasks and the interrupt share.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::msr::address::MsrAddress;

/// An `Option<MsrAddress>` in four bytes. Zeros, as in new memory, stand for `None`. An address is inverted: so only
/// `FFFF_FFFFh`, which is no register's, cannot be told from `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct OptionalAddress(u32);

impl OptionalAddress {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn some(address: MsrAddress) -> Self {
        Self(!address.get())
    }

    #[inline]
    pub(crate) const fn get(self) -> Option<MsrAddress> {
        match self.0 {
            0 => None,
            // SAFETY: only `some` makes it, of an address that a `MsrAddress` had.
            inverted => Some(unsafe { MsrAddress::new(!inverted) }),
        }
    }
}

/// The same, shared.
#[derive(Debug)]
pub(crate) struct SharedAddress(AtomicU32);

impl SharedAddress {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(OptionalAddress::NONE.0))
    }

    pub(crate) fn store(&self, address: OptionalAddress) {
        self.0.store(address.0, Relaxed);
    }

    #[inline]
    pub(crate) fn load(&self) -> OptionalAddress {
        OptionalAddress(self.0.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_had_back_and_none_is_none() {
        assert_eq!(OptionalAddress::NONE.get(), None);
        let shared = SharedAddress::new();
        assert_eq!(shared.load().get(), None);
        for number in [0, 1, 0x1A6, 0xC001_0200, u32::MAX - 1] {
            // SAFETY: nothing accesses the register.
            let address = unsafe { MsrAddress::new(number) };
            shared.store(OptionalAddress::some(address));
            assert_eq!(shared.load().get(), Some(address), "{number:#X}");
        }
    }
}
