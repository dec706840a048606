//! The value of a formula, from the values of its names.

use crate::metric::error::MetricError;
use crate::metric::formula_text::{Word, Words};
use crate::metric::ratio::Ratio;

/// The operators, by how tightly they bind.
const CHOICE: u8 = 0;
const SUM: u8 = 1;
const PRODUCT: u8 = 2;
const OPERAND: u8 = 3;

/// Reads a formula to its end, and computes its value.
pub(crate) struct Evaluation<'a> {
    words: Words,
    /// Value of an event or a metric.
    value_of: &'a dyn Fn(&'static str) -> Result<Ratio, MetricError>,
    /// Error of a text that is no formula.
    malformed: MetricError,
}

impl<'a> Evaluation<'a> {
    pub(crate) fn evaluate(
        text: &'static str,
        value_of: &'a dyn Fn(&'static str) -> Result<Ratio, MetricError>,
        malformed: MetricError,
    ) -> Result<Ratio, MetricError> {
        let mut evaluation = Self { words: Words(text), value_of, malformed };
        let value = evaluation.value(CHOICE)?;
        evaluation.words.next().map_or(Ok(value), |_| Err(malformed))
    }

    /// Computes the part of the formula whose operators bind at least as tightly as `level`.
    fn value(&mut self, level: u8) -> Result<Ratio, MetricError> {
        let mut value = self.operand()?;
        loop {
            let sign = |sign| Word::Sign(sign);
            if level <= PRODUCT && self.words.take_word(sign(b'*')) {
                value = value.by(self.value(OPERAND)?);
            } else if level <= PRODUCT && self.words.take_word(sign(b'/')) {
                let under = self.value(OPERAND)?;
                value = value.per(under).ok_or(MetricError::NothingToShare)?;
            } else if level <= SUM && self.words.take_word(sign(b'+')) {
                value = value.plus(self.value(PRODUCT)?);
            } else if level <= SUM && self.words.take_word(sign(b'-')) {
                value = value.minus(self.value(PRODUCT)?);
            } else if level == CHOICE && self.words.take_word(Word::Name("if")) {
                let is_so = self.comparison()?;
                self.expect(Word::Name("else"))?;
                let other = self.value(CHOICE)?;
                value = if is_so { value } else { other };
            } else {
                return Ok(value);
            }
        }
    }

    fn comparison(&mut self) -> Result<bool, MetricError> {
        let left = self.value(SUM)?;
        let is_less = self.words.take_word(Word::Sign(b'<'));
        if !is_less {
            self.expect(Word::Sign(b'>'))?;
        }
        let right = self.value(SUM)?;
        Ok(if is_less { left.is_below(right) } else { right.is_below(left) })
    }

    fn operand(&mut self) -> Result<Ratio, MetricError> {
        match self.words.next() {
            Some(Word::Number(digits)) => number(digits).ok_or(self.malformed),
            Some(Word::Sign(b'(')) => {
                let value = self.value(CHOICE)?;
                self.expect(Word::Sign(b')'))?;
                Ok(value)
            }
            Some(Word::Name("max")) => {
                let (a, b) = self.arguments()?;
                Ok(if a.is_below(b) { b } else { a })
            }
            Some(Word::Name("min")) => {
                let (a, b) = self.arguments()?;
                Ok(if b.is_below(a) { b } else { a })
            }
            Some(Word::Name("d_ratio")) => {
                let (a, b) = self.arguments()?;
                Ok(a.per(b).unwrap_or(Ratio::ZERO))
            }
            Some(Word::Name(name)) => (self.value_of)(name),
            _ => Err(self.malformed),
        }
    }

    /// Reads `(a, b)`.
    fn arguments(&mut self) -> Result<(Ratio, Ratio), MetricError> {
        self.expect(Word::Sign(b'('))?;
        let a = self.value(CHOICE)?;
        self.expect(Word::Sign(b','))?;
        let b = self.value(CHOICE)?;
        self.expect(Word::Sign(b')'))?;
        Ok((a, b))
    }

    fn expect(&mut self, word: Word) -> Result<(), MetricError> {
        if self.words.take_word(word) { Ok(()) } else { Err(self.malformed) }
    }
}

/// Reads a number such as `12` or `0.5`.
fn number(digits: &str) -> Option<Ratio> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut value = Ratio::whole(whole.parse().ok()?);
    let mut unit = Ratio::whole(1);
    for digit in fraction.chars() {
        unit = unit.per(Ratio::whole(10))?;
        value = value.plus(unit.by(Ratio::whole(char::to_digit(digit, 10)?.into())));
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::kinds::Metric;

    const MALFORMED: MetricError = MetricError::NotHere(Metric::Retiring);

    /// Computes a formula of the events `A` = 3 and `B.C` = 4, and `ZERO`.
    fn of(text: &'static str) -> Result<i64, MetricError> {
        let value_of = |name: &'static str| match name {
            "A" => Ok(Ratio::whole(3)),
            "B.1_C:cmask=1" => Ok(Ratio::whole(4)),
            "ZERO" => Ok(Ratio::ZERO),
            other => Err(MetricError::NotCounted(other)),
        };
        let value = Evaluation::evaluate(text, &value_of, MALFORMED)?;
        Ok(value.times(10_000).unwrap())
    }

    #[test]
    fn operators_bind_as_in_arithmetic() {
        for (text, value) in [
            ("A + B.1_C:cmask=1 * 2", 11_0000),
            ("(A + B.1_C:cmask=1) * 2", 14_0000),
            ("A - 1 - 1", 1_0000),
            ("12 / A / 2 * 5", 10_0000),
            ("A / (B.1_C:cmask=1 - 1) + 0.25", 1_2500),
            ("max(A, B.1_C:cmask=1) - min(A, 10)", 1_0000),
            ("max(0, 2 - A) + d_ratio(A, ZERO) + d_ratio(A, 2)", 1_5000),
            ("1 if A < 3 else 2 if A > 2.9999 else 4", 2_0000),
            ("(A if A < 3.5 else 0) + 1", 4_0000),
            ("A * 2 if A + 1 > 3 * 1 else ZERO / 1", 6_0000),
        ] {
            assert_eq!(of(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_has_no_value_is_an_error() {
        assert_eq!(of("A / ZERO"), Err(MetricError::NothingToShare));
        assert_eq!(of("A + D"), Err(MetricError::NotCounted("D")));
        for text in
            ["", "A +", "(A", "A)", "A B", "max(A)", "max(A, 1", "A if A else 1", "1.x", "*"]
        {
            assert_eq!(of(text), Err(MALFORMED), "{text}");
        }
        for text in [
            "A if A < 1",
            "A if < 1 else 2",
            "+ 1",
            "A , 1",
            "1.5.5",
            "99999999999999999999999999999999999999999",
        ] {
            assert_eq!(of(text), Err(MALFORMED), "{text}");
        }
    }
}
