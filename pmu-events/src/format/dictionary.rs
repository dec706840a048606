//! The tokens of which names consist.

use crate::name::event_name::EventName;
use crate::name::hash::{MAX_TOKEN, SHORT_TOKENS, TOKENS};

/// The tokens of a vendor's names; the last ones may be empty.
#[derive(Debug)]
pub(crate) struct Dictionary([Token; TOKENS]);

impl Dictionary {
    /// Creates the dictionary of some texts, of at most [`MAX_TOKEN`] bytes each.
    pub(crate) const fn new(texts: &[&str]) -> Self {
        let mut tokens = [Token::new(""); TOKENS];
        let mut place = 0;
        while place < texts.len() {
            tokens[place] = Token::new(texts[place]);
            place += 1;
        }
        Self(tokens)
    }

    /// Returns the tokens that these bytes encode.
    #[inline]
    pub(crate) fn tokens(
        &'static self,
        bytes: &'static [u8],
    ) -> impl Iterator<Item = &'static Token> {
        let Self(tokens) = self;
        let mut bytes = bytes.iter();
        core::iter::from_fn(move || {
            let mut place = usize::from(*bytes.next()?);
            if place >= SHORT_TOKENS {
                place = SHORT_TOKENS + (place - SHORT_TOKENS) * 256 + usize::from(*bytes.next()?);
            }
            tokens.get(place)
        })
    }
}

/// A token: some characters that names consist of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) spelled: u128,
    /// Ones in the bits that must be the same: in letters, all bits but that of the case.
    pub(crate) mask: u128,
    pub(crate) len: u8,
}

impl Token {
    const fn new(text: &str) -> Self {
        let mut spelled = [0; MAX_TOKEN];
        let mut mask = [0; MAX_TOKEN];
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            spelled[at] = bytes[at];
            mask[at] = if bytes[at].is_ascii_alphabetic() { !0x20 } else { !0 };
            at += 1;
        }
        Self {
            spelled: u128::from_le_bytes(spelled),
            mask: u128::from_le_bytes(mask),
            len: bytes.len() as u8,
        }
    }

    /// Appends the token to a name.
    pub(crate) fn push_to(&self, name: &mut EventName) {
        let text = self.spelled.to_le_bytes();
        name.push(text.get(..usize::from(self.len)).unwrap_or_default());
    }
}
