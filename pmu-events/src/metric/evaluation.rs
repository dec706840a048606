//! The value of a formula, from the values of its names.

use crate::metric::expression::MetricError;

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
        // Computed as it is read: a tree of the formula would need an allocation. The texts are the crate's own, so no
        // caller decides how deep the recursion goes.
        let mut evaluation = Self { words: Words(text), value_of, malformed };
        let value = evaluation.value(CHOICE)?;
        evaluation.words.next().map_or(Ok(value), |_| Err(malformed))
    }

    /// Computes the part of the formula whose operators bind at least as tightly as `level`.
    fn value(&mut self, level: u8) -> Result<Ratio, MetricError> {
        let mut value = self.operand()?;
        loop {
            let sign = |sign| Word::Sign(sign);
            // The right side of an operator binds more tightly than the operator, so that `a - b - c` is `(a - b) - c`.
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
                // Both sides are computed, because reading the rest of the text is computing it.
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
    // As a fraction: most decimals have no exact binary form, and a kernel may not use floating-point registers.
    let mut value = Ratio::whole(whole.parse().ok()?);
    let mut unit = Ratio::whole(1);
    for digit in fraction.chars() {
        unit = unit.per(Ratio::whole(10))?;
        value = value.plus(unit.by(Ratio::whole(char::to_digit(digit, 10)?.into())));
    }
    Some(value)
}

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
        // A name and the fields of its select, such as `A.B:cmask=1`, are one word, by which the caller is asked for
        // the count.
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

/// The value of a metric, as a fraction of integers.
///
/// The fraction is exact while its numerator and denominator fit in 127 bits. Otherwise the numerator and the
/// denominator are rounded, but keep at least 61 significant bits. The computation uses no floating-point register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Ratio {
    over: i128,
    /// Denominator; above 0.
    under: i128,
    /// The fraction is multiplied by 2 to this power. 0 while the fraction is exact.
    exponent: i32,
}

impl Ratio {
    pub(crate) const ZERO: Self = Self::whole(0);

    pub(crate) const fn whole(value: i128) -> Self {
        Self { over: value, under: 1, exponent: 0 }
    }

    /// Returns the value of the metric times `factor`, rounded down. A factor of 100 gives percent. The result is
    /// `None` if the product does not fit an `i64`.
    ///
    /// A top-down share can be slightly below 0 or above 1, because the counters of a group are not read at the same
    /// instant.
    pub fn times(self, factor: u32) -> Option<i64> {
        let (mut over, shifted) = product(self.over, factor.into());
        let mut under = self.under;
        let exponent = self.exponent.saturating_add(shifted);
        let by = exponent.unsigned_abs();
        // The wider side gives the room that the shift needs, and the other one loses bits.
        if exponent >= 0 {
            let left = by.min(room(over));
            over <<= left;
            under = shift_right(under, by - left);
        } else {
            let left = by.min(room(under));
            under <<= left;
            over = shift_right(over, by - left);
        }
        over.checked_div_euclid(under)?.try_into().ok()
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        let (under, shifted) = product(self.under, other.under);
        let (mut high, high_shift) = product(self.over, other.under);
        let (mut low, low_shift) = product(other.over, self.under);
        // The number with the greater exponent is shifted to the left, which loses nothing while there is room: only
        // what is left of the distance costs bits of the smaller one.
        let mut high_exponent = self.exponent.saturating_add(high_shift);
        let mut low_exponent = other.exponent.saturating_add(low_shift);
        if high_exponent < low_exponent {
            (high, low) = (low, high);
            (high_exponent, low_exponent) = (low_exponent, high_exponent);
        }
        let by = high_exponent.saturating_sub(low_exponent).unsigned_abs();
        let left = by.min(room(high));
        high <<= left;
        low = shift_right(low, by - left);
        let exponent = high_exponent.saturating_sub(left as i32);
        let (over, exponent) = match high.checked_add(low) {
            Some(sum) => (sum, exponent),
            // Halves of two numbers always have a sum, which lacks the last bit at most.
            None => ((high >> 1) + (low >> 1), exponent.saturating_add(1)),
        };
        Self { over, under, exponent: exponent.saturating_sub(shifted) }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        // One of the 2^128 numerators has no negative, and is off by 2^-127 of itself.
        self.plus(Self { over: other.over.checked_neg().unwrap_or(i128::MAX), ..other })
    }

    pub(crate) fn by(self, other: Self) -> Self {
        let (over, wider) = product(self.over, other.over);
        let (under, narrower) = product(self.under, other.under);
        let exponent = self.exponent.saturating_add(other.exponent);
        let exponent = exponent.saturating_add(wider - narrower);
        Self { over, under, exponent }
    }

    /// Returns the quotient; `None` if `other` is 0.
    pub(crate) fn per(self, other: Self) -> Option<Self> {
        // The sign goes to the numerator: a comparison looks at that alone.
        let sign = other.over.signum();
        let under = other.over.checked_mul(sign).unwrap_or(i128::MAX);
        let inverse =
            Self { over: other.under * sign, under, exponent: other.exponent.saturating_neg() };
        (sign != 0).then(|| self.by(inverse))
    }

    pub(crate) fn is_below(self, other: Self) -> bool {
        self.minus(other).over < 0
    }
}

/// Bits to which factors are rounded whose product would overflow.
const NARROW: u32 = 62;

/// Multiplies, and returns the product with the number of bits that it was shifted to the right.
fn product(a: i128, b: i128) -> (i128, i32) {
    match a.checked_mul(b) {
        Some(product) => (product, 0),
        None => {
            let excess = |of: i128| (i128::BITS - room(of) - 1).saturating_sub(NARROW);
            let (for_a, for_b) = (excess(a), excess(b));
            ((a >> for_a) * (b >> for_b), (for_a + for_b) as i32)
        }
    }
}

/// Returns the number of bits by which a value can be shifted to the left.
fn room(value: i128) -> u32 {
    let unused = if value < 0 { value.leading_ones() } else { value.leading_zeros() };
    // One of them is the sign.
    unused - 1
}

fn shift_right(value: i128, by: u32) -> i128 {
    // A shift by all bits is an error; after one bit less, nothing but the sign is left.
    value >> by.min(i128::BITS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::expression::Metric;

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

    #[test]
    fn what_fits_is_exact() {
        // 1/3 + 1/6 - 1/2 = 0, and (2/3) / (4/9) = 3/2.
        let of = |over, under| Ratio::whole(over).per(Ratio::whole(under)).unwrap();
        let zero = of(1, 3).plus(of(1, 6)).minus(of(1, 2));
        assert_eq!(zero.times(u32::MAX), Some(0));
        assert_eq!(of(2, 3).per(of(4, 9)).unwrap().times(10), Some(15));
        assert_eq!(of(-7, 2).times(1), Some(-4));
        assert_eq!(of(7, -2).times(2), Some(-7));
        assert!(of(1, 3).is_below(of(1, 2)) && !of(1, 2).is_below(of(1, 2)));
        assert!(Ratio::whole(5).per(zero).is_none());
    }

    #[test]
    fn what_does_not_fit_is_rounded_and_neither_overflows_nor_panics() {
        let huge = [i128::MIN, i128::MAX, i128::from(u64::MAX), 1, 0, -1, 1 << 100, -(1 << 62)];
        let mut values: std::vec::Vec<Ratio> = huge.iter().map(|v| Ratio::whole(*v)).collect();
        for round in 0..3 {
            let mut next = std::vec![];
            for a in values.iter().take(24) {
                for b in values.iter().rev().take(24) {
                    next.extend([a.plus(*b), a.minus(*b), a.by(*b)]);
                    next.extend(a.per(*b));
                }
            }
            assert!(next.iter().all(|value| value.under > 0), "{round}");
            assert!(next.iter().any(|value| value.times(u32::MAX).is_none()), "{round}");
            values = next.into_iter().step_by(7).collect();
        }
    }

    #[test]
    fn long_products_keep_their_first_digits() {
        // (10^15 + 1)^20 / 10^300 is 1.000…, and so is its inverse; their sum is 2.
        let near = Ratio::whole(1_000_000_000_000_001);
        let ten = Ratio::whole(1_000_000_000_000_000);
        let product = (0..20).fold(Ratio::whole(1), |p, _| p.by(near).per(ten).unwrap());
        let inverse = Ratio::whole(1).per(product).unwrap();
        // 20 / 10^15 above 1, and as much below, but for the last of 17 digits.
        for off in [product.minus(Ratio::whole(1)), Ratio::whole(1).minus(inverse)] {
            let off = off.by(ten).times(100).unwrap();
            assert!((1999..=2001).contains(&off), "{off}");
        }
        let two = product.plus(inverse).times(1_000_000).unwrap();
        assert!((1_999_999..=2_000_000).contains(&two), "{two}");
    }
}
