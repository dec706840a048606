//! Patterns of names.

/// Returns whether a pattern matches a whole text, in letters of either case: `*` is any text, `?` any character.
///
/// If the text behind a `*` fails to match, only the last `*` is retried, one character further. So the time is at most
/// the product of both lengths.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                again = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == b'?' || text.get(t).is_some_and(|of| c.eq_ignore_ascii_case(of)) => {
                p += 1;
                t += 1;
            }
            _ => match again {
                Some((after, from)) => {
                    again = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;
    use crate::name::hash::MAX_NAME;

    #[test]
    fn patterns_match_as_a_naive_matcher_has_it() {
        fn naive(pattern: &[u8], text: &[u8]) -> bool {
            match pattern.split_first() {
                None => text.is_empty(),
                Some((b'*', rest)) => (0..=text.len()).any(|from| naive(rest, &text[from..])),
                Some((c, rest)) => text.split_first().is_some_and(|(first, others)| {
                    (*c == b'?' || c == first) && naive(rest, others)
                }),
            }
        }
        // Every pattern of up to four of these, and every text of up to five of two.
        let words = |alphabet: &'static [u8], longest: u32| {
            (0..=longest).flat_map(move |len| {
                (0..alphabet.len().pow(len)).map(move |mut number| {
                    let mut word = std::vec![];
                    for _ in 0..len {
                        word.push(alphabet[number % alphabet.len()]);
                        number /= alphabet.len();
                    }
                    word
                })
            })
        };
        for pattern in words(b"ab*?", 4) {
            for text in words(b"ab", 5) {
                assert_eq!(
                    matches(&pattern, &text),
                    naive(&pattern, &text),
                    "{pattern:?} {text:?}"
                );
            }
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_longer_than_the_product_of_the_lengths() {
        // By trying every star again, this would take 2^40 steps and more.
        let text = [b'a'; MAX_NAME];
        let mut pattern = [b'*'; 80];
        pattern.iter_mut().step_by(2).for_each(|c| *c = b'a');
        pattern[79] = b'b';
        assert!(!matches(&pattern, &text));
    }
}
