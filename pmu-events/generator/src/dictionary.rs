//! Tokens of names: single characters, and the texts that save the most bytes.

use std::collections::{BTreeMap, BTreeSet};

use crate::hash::{MAX_TOKEN, SHORT_TOKENS, TOKENS};

/// Tokens to learn: more than there can be, since many serve only as parts of others.
const LEARNED: usize = TOKENS + 600;

/// Pairs that become tokens between two counts.
const AT_ONCE: usize = 16;

/// Weight of a name of this many tokens. Names of many tokens weigh more, so that no name is slow to compare.
const fn weight(tokens: usize) -> usize {
    match tokens {
        0..8 => 1,
        _ => 50 * (tokens - 7),
    }
}

/// The tokens, the most frequent ones first.
pub(crate) struct Dictionary {
    pub(crate) tokens: Vec<String>,
    places: BTreeMap<String, usize>,
}

impl Dictionary {
    /// Learns the tokens of some names: byte-pair encoding. The pairs of neighboring tokens that are most frequent
    /// become tokens of their own, until there are enough; of those that are as frequent, the first. Tokens that no
    /// name is made of in the end are dropped.
    pub(crate) fn learn<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut often = BTreeMap::<&str, usize>::new();
        names.for_each(|name| *often.entry(name).or_default() += 1);
        let characters: BTreeSet<char> = often.keys().flat_map(|name| name.chars()).collect();
        let mut tokens: Vec<String> = characters.iter().map(char::to_string).collect();
        let place = |c| characters.iter().position(|other| *other == c).expect("one of them");
        let mut texts: Vec<(Vec<usize>, usize)> =
            often.iter().map(|(name, count)| (name.chars().map(place).collect(), *count)).collect();
        loop {
            let mut pairs = BTreeMap::<[usize; 2], usize>::new();
            for (text, count) in &texts {
                for pair in text.windows(2) {
                    *pairs.entry([pair[0], pair[1]]).or_default() += count * weight(text.len());
                }
            }
            let mut pairs: Vec<_> = pairs
                .into_iter()
                .filter(|([a, b], count)| {
                    *count > 1 && tokens[*a].len() + tokens[*b].len() <= MAX_TOKEN
                })
                .collect();
            pairs.sort_by_key(|(_, count)| core::cmp::Reverse(*count));
            pairs.truncate(AT_ONCE.min(LEARNED - tokens.len()));
            if pairs.is_empty() {
                break;
            }
            let first_new = tokens.len();
            for ([a, b], _) in &pairs {
                tokens.push(format!("{}{}", tokens[*a], tokens[*b]));
            }
            for (text, _) in &mut texts {
                for (new, (pair, _)) in (first_new..).zip(&pairs) {
                    let mut place = 0;
                    while place + 1 < text.len() {
                        if text[place..place + 2] == *pair {
                            text[place] = new;
                            text.remove(place + 1);
                        }
                        place += 1;
                    }
                }
            }
        }
        tokens.sort();
        tokens.dedup();
        let all = Self::of(tokens);
        let mut uses = vec![0; all.tokens.len()];
        for (name, count) in often {
            all.parse(name).iter().for_each(|token| uses[*token] += count);
        }
        let mut order: Vec<_> =
            all.tokens.into_iter().zip(uses).filter(|(_, uses)| *uses > 0).collect();
        order.sort_by_key(|(_, uses)| core::cmp::Reverse(*uses));
        Self::of(order.into_iter().map(|(token, _)| token).collect())
    }

    fn of(tokens: Vec<String>) -> Self {
        let places = tokens.iter().cloned().zip(0..).collect();
        Self { tokens, places }
    }

    /// Returns the bytes that encode a name's tokens.
    pub(crate) fn compress(&self, name: &str) -> Vec<u8> {
        let bytes = |token: usize| match token.checked_sub(SHORT_TOKENS) {
            None => vec![token as u8],
            Some(long) => vec![(SHORT_TOKENS + long / 256) as u8, (long % 256) as u8],
        };
        self.parse(name).into_iter().flat_map(bytes).collect()
    }

    /// Returns the fewest tokens that a name can be made of.
    fn parse(&self, name: &str) -> Vec<usize> {
        // Of each beginning of the name: the number of tokens, and the last one with its length.
        let mut best: Vec<Option<(usize, usize, usize)>> = vec![None; name.len() + 1];
        best[0] = Some((0, 0, 0));
        for end in 1..=name.len() {
            for start in end.saturating_sub(MAX_TOKEN)..end {
                if let (Some((count, ..)), Some(token)) =
                    (best[start], self.places.get(&name[start..end]))
                    && best[end].is_none_or(|(other, ..)| count + 1 < other)
                {
                    best[end] = Some((count + 1, *token, end - start));
                }
            }
        }
        let (mut tokens, mut end) = (Vec::new(), name.len());
        while end > 0 {
            let (_, token, len) = best[end].expect("every character is a token");
            tokens.push(token);
            end -= len;
        }
        tokens.reverse();
        tokens
    }
}
