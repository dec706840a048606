//! Numbers in hexadecimal.

use core::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that is written in hexadecimal, as text: JSON's own numbers have 53 bits in many readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hex(pub u64);

impl Hex {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let wrong = "not a hexadecimal number of 64 bits";
        let digits = text.strip_prefix("0x").ok_or(wrong)?;
        let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let value = plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        value.map(Self).ok_or(wrong)
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
