//! The name of an event as text.

use core::fmt;

use crate::name::hash::MAX_NAME;

/// Name of an event, as the vendor's list spells it: at most [`MAX_NAME`] bytes of text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EventName {
    bytes: [u8; MAX_NAME],
    len: u8,
}

impl EventName {
    pub(crate) const EMPTY: Self = Self { bytes: [0; MAX_NAME], len: 0 };

    /// Appends text; the part beyond [`MAX_NAME`] is dropped.
    pub(crate) fn push(&mut self, text: &[u8]) {
        let len = usize::from(self.len);
        if let Some(room) = self.bytes.get_mut(len..len + text.len()) {
            room.copy_from_slice(text);
            self.len += text.len() as u8;
        }
    }

    /// Returns the name as a string slice.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        core::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl AsRef<str> for EventName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq<str> for EventName {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for EventName {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for EventName {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{=str}", self.as_str());
    }
}
