//! Tokens of names: the characters, and the texts that save most.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::MAX_TOKEN;

/// At most 256 tokens, ascending.
pub(crate) struct Dictionary {
    pub(crate) tokens: Vec<String>,
    places: BTreeMap<String, u8>,
}

impl Dictionary {
    /// Learns the tokens of some names: byte-pair encoding. The pair of neighboring tokens that is most frequent
    /// becomes a token of its own, until there are 256; of those that are as frequent, the first.
    pub(crate) fn learn<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut often = BTreeMap::<&str, usize>::new();
        names.for_each(|name| *often.entry(name).or_default() += 1);
        let characters: BTreeSet<char> = often.keys().flat_map(|name| name.chars()).collect();
        let mut tokens: Vec<String> = characters.iter().map(char::to_string).collect();
        let place = |c| characters.iter().position(|other| *other == c).expect("one of them");
        let mut texts: Vec<(Vec<usize>, usize)> =
            often.iter().map(|(name, count)| (name.chars().map(place).collect(), *count)).collect();
        while tokens.len() < 256 {
            let mut pairs = vec![0_usize; 256 * 256];
            for (text, count) in &texts {
                text.windows(2).for_each(|pair| pairs[pair[0] * 256 + pair[1]] += count);
            }
            for (pair, count) in pairs.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
                if tokens[pair / 256].len() + tokens[pair % 256].len() > MAX_TOKEN {
                    *count = 0;
                }
            }
            let best = (0..pairs.len()).rev().max_by_key(|pair| pairs[*pair]).expect("many");
            if pairs[best] == 0 {
                break;
            }
            let (first, second) = (best / 256, best % 256);
            let new = tokens.len();
            tokens.push(format!("{}{}", tokens[first], tokens[second]));
            for (text, _) in &mut texts {
                let mut place = 0;
                while place + 1 < text.len() {
                    if text[place] == first && text[place + 1] == second {
                        text[place] = new;
                        text.remove(place + 1);
                    }
                    place += 1;
                }
            }
        }
        tokens.sort();
        tokens.dedup();
        let places = tokens.iter().cloned().zip(0..=u8::MAX).collect();
        Self { tokens, places }
    }

    /// The fewest tokens of a name.
    pub(crate) fn compress(&self, name: &str) -> Vec<u8> {
        // Of each beginning of the name: the number of tokens, and the last one with its length.
        let mut best: Vec<Option<(usize, u8, usize)>> = vec![None; name.len() + 1];
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
