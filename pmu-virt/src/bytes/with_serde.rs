//! Serde serializes the bytes of [`to_bytes`](PmuState::to_bytes). So every later release can read the serialized
//! bytes, in every format.

use core::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bytes::state::{PREFIX, REGISTER};
use crate::configuration::Configuration;
use crate::pmu::state::PmuState;

/// Reads up to `N` bytes, from formats with bytes and from those with sequences.
struct Bytes<const N: usize>;

impl<'de, const N: usize> Visitor<'de> for Bytes<N> {
    type Value = ([u8; N], usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} bytes")
    }

    fn visit_bytes<E: Error>(self, found: &[u8]) -> Result<Self::Value, E> {
        let mut bytes = [0; N];
        let places = bytes.get_mut(..found.len());
        places.ok_or_else(|| E::invalid_length(found.len(), &self))?.copy_from_slice(found);
        Ok((bytes, found.len()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut found: A) -> Result<Self::Value, A::Error> {
        let (mut bytes, mut length) = ([0; N], 0);
        while let Some(byte) = found.next_element()? {
            let place = bytes.get_mut(length);
            *place.ok_or_else(|| A::Error::invalid_length(length + 1, &self))? = byte;
            length += 1;
        }
        Ok((bytes, length))
    }
}

impl Serialize for Configuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.to_bytes())
    }
}

impl<'de> Deserialize<'de> for Configuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (bytes, length) = deserializer.deserialize_bytes(Bytes::<{ Self::BYTES }>)?;
        Self::from_bytes(bytes.get(..length).unwrap_or_default()).map_err(D::Error::custom)
    }
}

impl Serialize for PmuState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.to_bytes();
        // Not the zeros behind the last register, which `from_bytes` does not need: in JSON, each would be a number.
        let used = PREFIX + REGISTER * self.registers().count();
        serializer.serialize_bytes(bytes.get(..used).unwrap_or(&bytes))
    }
}

impl<'de> Deserialize<'de> for PmuState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (bytes, length) = deserializer.deserialize_bytes(Bytes::<{ Self::BYTES }>)?;
        Self::from_bytes(bytes.get(..length).unwrap_or_default()).map_err(D::Error::custom)
    }
}
