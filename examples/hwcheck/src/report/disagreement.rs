//! Answers that differ from the model's.

use core::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::report::hex::Hex;

/// An access that the processor answers otherwise than the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disagreement {
    /// The register's address, or RDPMC's operand.
    pub register: Hex,
    /// Its name in the manual.
    pub name: String,
    /// The instruction.
    pub access: Access,
    /// Value that was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Hex>,
    /// The model's answer.
    pub model: Answer,
    /// The processor's.
    pub processor: Answer,
    /// The manual's section.
    pub manual: String,
}

/// An instruction that accesses a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// RDMSR.
    Rdmsr,
    /// WRMSR.
    Wrmsr,
    /// RDPMC.
    Rdpmc,
}

impl Access {
    /// The instruction's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdmsr => "RDMSR",
            Self::Wrmsr => "WRMSR",
            Self::Rdpmc => "RDPMC",
        }
    }
}

/// The answer to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A value.
    Value(u64),
    /// A write was taken.
    Done,
    /// #GP.
    GeneralProtection,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => Hex(*value).fmt(f),
            Self::Done => f.write_str("done"),
            Self::GeneralProtection => f.write_str("#GP"),
        }
    }
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Answer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "done" => Ok(Self::Done),
            "#GP" => Ok(Self::GeneralProtection),
            number => Hex::parse(number).map(|hex| Self::Value(hex.0)),
        }
        .map_err(D::Error::custom)
    }
}
