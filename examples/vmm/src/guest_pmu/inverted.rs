//! A deviation of the guest's processor, for programs in the guest that look for one.

use core::str::FromStr;

/// A bit of a register that RDMSR shows inverted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inverted {
    register: u32,
    bit: u8,
}

impl Inverted {
    /// The inverted bit of a register; 0 for any other register.
    pub(crate) fn bit_of(inverted: Option<Self>, register: u32) -> u64 {
        inverted.filter(|one| one.register == register).map_or(0, |one| 1 << (one.bit % 64))
    }
}

impl FromStr for Inverted {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "not REGISTER:BIT, as 0x186:5";
        let (register, bit) = text.split_once(':').ok_or(wrong)?;
        let register = u32::from_str_radix(register.strip_prefix("0x").ok_or(wrong)?, 16);
        let bit = bit.parse().ok().filter(|bit| *bit < 64).ok_or(wrong)?;
        Ok(Self { register: register.map_err(|_| wrong)?, bit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_of_one_register() {
        let inverted = "0x186:5".parse().ok();
        assert_eq!(Inverted::bit_of(inverted, 0x186), 1 << 5);
        assert_eq!(Inverted::bit_of(inverted, 0x187), 0);
        assert_eq!(Inverted::bit_of(None, 0x186), 0);
        for wrong in ["", "0x186", "186:5", "0x186:64", "0xg:1", ":"] {
            assert!(wrong.parse::<Inverted>().is_err(), "{wrong}");
        }
    }
}
