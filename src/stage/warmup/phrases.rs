//! Finds phrases that a model would otherwise spell out repeatedly, such as the frame of its calls.
//!
//! Adjacent pieces of text are merged, the most frequent pair first, across the boundaries of byte-pair
//! encoding. Names and numbers are never in a phrase, because a model must copy them piece by piece. In text
//! that the model reads, only punctuation is merged: the words are data.

use std::collections::{BTreeMap, HashMap};

use super::tokenizer::{Pieces, SPECIAL, Split};

/// A piece that no phrase may contain.
const BARRIER: usize = 0;
/// A pair is rare, and not merged, below one in this many said texts: a phrase of only one kind of call would
/// be memorised, not composed.
const RARE: u64 = 12;

/// Distinct texts, with how often each occurs.
pub type Counted = BTreeMap<String, u64>;

/// Up to `count` phrases, by the tokens they save in what a model says and what it reads.
pub fn phrases(
    said: &Counted,
    read: &Counted,
    count: usize,
    split: Split,
) -> Result<Vec<String>, tokenizers::Error> {
    let mut joined = Joined::default();
    let pieces = Pieces::new(split)?;
    joined.add(said, &pieces, is_name_or_number);
    joined.add(read, &pieces, |piece| piece.contains(|letter: char| letter.is_alphanumeric()));
    let rare = said.values().sum::<u64>() / RARE;
    while joined.join(rare) {}
    let mut phrases = joined.survivors();
    phrases.sort_by(|(one, saves_one), (other, saves_other)| saves_other.cmp(saves_one).then(one.cmp(other)));
    phrases.truncate(count);
    Ok(phrases.into_iter().map(|(text, _)| text).collect())
}

struct Joined {
    /// Text of each piece, and its number of tokenizer pieces.
    pieces: Vec<(String, u64)>,
    known: BTreeMap<String, usize>,
    rows: BTreeMap<Vec<usize>, u64>,
}

impl Default for Joined {
    fn default() -> Self {
        Self { pieces: vec![(String::new(), 0)], known: BTreeMap::new(), rows: BTreeMap::new() }
    }
}

impl Joined {
    fn add(&mut self, texts: &Counted, cut: &Pieces, is_barrier: impl Fn(&str) -> bool) {
        for (text, times) in texts {
            let mut row = Vec::new();
            for segment in without_controls(text) {
                for piece in cut.of(segment) {
                    row.push(if is_barrier(&piece) { BARRIER } else { self.id(piece) });
                }
                row.push(BARRIER);
            }
            *self.rows.entry(row).or_default() += times;
        }
    }

    fn id(&mut self, piece: String) -> usize {
        *self.known.entry(piece).or_insert_with_key(|piece| {
            self.pieces.push((piece.clone(), 1));
            self.pieces.len() - 1
        })
    }

    /// Merges the most frequent pair; false if all are rare.
    fn join(&mut self, rare: u64) -> bool {
        let mut pairs: HashMap<(usize, usize), u64> = HashMap::new();
        for (row, times) in &self.rows {
            for pair in row.windows(2) {
                if let [one, other] = *pair
                    && one != BARRIER
                    && other != BARRIER
                {
                    *pairs.entry((one, other)).or_default() += times;
                }
            }
        }
        // Independent of map order: lower ids win ties.
        let best = pairs.into_iter().max_by_key(|(pair, times)| (*times, std::cmp::Reverse(*pair)));
        let Some(((one, other), _)) = best.filter(|(_, times)| *times > rare) else { return false };
        let text = format!("{}{}", self.pieces[one].0, self.pieces[other].0);
        self.pieces.push((text, self.pieces[one].1 + self.pieces[other].1));
        let new = self.pieces.len() - 1;
        let rows = std::mem::take(&mut self.rows);
        for (row, times) in rows {
            *self.rows.entry(replaced(&row, (one, other), new)).or_default() += times;
        }
        true
    }

    /// Phrases still used as they are, and the tokens each saves.
    fn survivors(&self) -> Vec<(String, u64)> {
        let mut uses: BTreeMap<usize, u64> = BTreeMap::new();
        for (row, times) in &self.rows {
            for piece in row.iter().filter(|piece| self.pieces[**piece].1 > 1) {
                *uses.entry(*piece).or_default() += times;
            }
        }
        uses.into_iter()
            .map(|(piece, times)| (self.pieces[piece].0.clone(), times * (self.pieces[piece].1 - 1)))
            .collect()
    }
}

fn replaced(row: &[usize], pair: (usize, usize), new: usize) -> Vec<usize> {
    let mut out = Vec::with_capacity(row.len());
    let mut rest = row;
    while let Some((first, behind)) = rest.split_first() {
        if behind.first().is_some_and(|second| (*first, *second) == pair) {
            out.push(new);
            rest = &behind[1..];
        } else {
            out.push(*first);
            rest = behind;
        }
    }
    out
}

fn without_controls(text: &str) -> Vec<&str> {
    SPECIAL.iter().fold(vec![text], |segments, token| {
        segments.into_iter().flat_map(|segment| segment.split(token)).collect()
    })
}

/// Capitalised words and digits.
fn is_name_or_number(piece: &str) -> bool {
    let mut letters = piece.chars();
    let first = letters.next();
    first.is_some_and(|letter| letter.is_ascii_digit())
        || (first.is_some_and(|letter| letter.is_uppercase())
            && letters.next().is_some_and(|letter| letter.is_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_become_phrases_and_names_and_numbers_do_not() {
        let call = |name: &str| {
            format!(
                "{{\"sql\": \"SELECT pay FROM staff WHERE name = '{name}' LIMIT 1\"}}<|im_end|>\nassistant"
            )
        };
        let texts = ["Ada Cole", "Bo Stone"].map(|name| (call(name), 10)).into();
        assert_eq!(
            phrases(&texts, &Counted::new(), 9, Split::Names).unwrap(),
            ["{\"sql\": \"SELECT pay FROM staff WHERE name = '", "' LIMIT ", "\nassistant"]
        );
    }

    #[test]
    fn at_most_the_requested_number_of_phrases_is_made() {
        let texts = Counted::from([("a b 1 c d 2 e f 3 a b".to_owned(), 4)]);
        assert_eq!(phrases(&texts, &texts, 1, Split::Names).unwrap().len(), 1);
        assert!(phrases(&Counted::new(), &Counted::new(), 9, Split::Names).unwrap().is_empty());
    }
}
