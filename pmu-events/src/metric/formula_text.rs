//! The text of a formula, word by word.

/// A word of a formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Name of an event or a metric, or a name of the grammar such as `max` and `if`.
    Name(&'static str),
    /// A number, with a decimal point perhaps.
    Number(&'static str),
    /// An operator, a parenthesis, a comma.
    Sign(u8),
}

/// The words of a formula.
#[derive(Clone, Copy)]
pub(crate) struct Words(pub(crate) &'static str);

impl Words {
    /// Takes the next word off if it is this one.
    pub(crate) fn take_word(&mut self, word: Word) -> bool {
        let mut behind = *self;
        let is_it = behind.next() == Some(word);
        if is_it {
            *self = behind;
        }
        is_it
    }
}

impl Iterator for Words {
    type Item = Word;

    fn next(&mut self) -> Option<Word> {
        let text = self.0.trim_start();
        let first = *text.as_bytes().first()?;
        let in_word = |c: u8| c.is_ascii_alphanumeric() || b"_.:=".contains(&c);
        let len = text.bytes().position(|c| !in_word(c)).unwrap_or(text.len());
        let (word, rest) = text.split_at_checked(len.max(1))?;
        self.0 = rest;
        Some(match first {
            b'0'..=b'9' => Word::Number(word),
            _ if len == 0 => Word::Sign(first),
            _ => Word::Name(word),
        })
    }
}

/// Returns whether a name is one of the grammar's.
pub(crate) fn is_keyword(name: &str) -> bool {
    ["max", "min", "d_ratio", "if", "else"].contains(&name)
}
