//! Finds what a model would otherwise have to spell out again and again: the frame of its calls.
//!
//! Pieces of text that stand side by side are joined, the most frequent pair first, across the borders that byte-pair
//! encoding keeps. Names and numbers are never part of a phrase: they are what a model must copy piece by piece.

use std::collections::{BTreeMap, HashMap};

use super::tokenizer::{SPECIAL, pieces};

/// Stands for a piece that no phrase may hold.
const BARRIER: usize = 0;
/// Joins tried; each makes one phrase longer.
const JOINS: usize = 400;

/// Up to `count` phrases, by the tokens they save: `texts` are what a model says, with how often it says it.
pub fn phrases(texts: &BTreeMap<String, u64>, count: usize) -> Vec<String> {
    let mut joined = Joined::new(texts);
    for _ in 0..JOINS {
        if joined.survivors().len() >= count || !joined.join() {
            break;
        }
    }
    let mut phrases = joined.survivors();
    phrases.sort_by(|(one, saves_one), (other, saves_other)| saves_other.cmp(saves_one).then(one.cmp(other)));
    phrases.truncate(count);
    phrases.into_iter().map(|(text, _)| text).collect()
}

struct Joined {
    /// Text of each piece, and of how many pieces of the tokenizer it consists.
    pieces: Vec<(String, u64)>,
    rows: BTreeMap<Vec<usize>, u64>,
}

impl Joined {
    fn new(texts: &BTreeMap<String, u64>) -> Self {
        let mut joined = Self { pieces: vec![(String::new(), 0)], rows: BTreeMap::new() };
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for (text, times) in texts {
            let mut row = Vec::new();
            for segment in without_controls(text) {
                for piece in pieces(segment) {
                    if is_name_or_number(&piece) {
                        row.push(BARRIER);
                        continue;
                    }
                    row.push(*known.entry(piece).or_insert_with_key(|piece| {
                        joined.pieces.push((piece.clone(), 1));
                        joined.pieces.len() - 1
                    }));
                }
                row.push(BARRIER);
            }
            *joined.rows.entry(row).or_default() += times;
        }
        joined
    }

    /// Joins the most frequent pair; false where none occurs twice.
    fn join(&mut self) -> bool {
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
        // The order of the map does not show: between equal counts the lower ids win.
        let best = pairs.into_iter().max_by_key(|(pair, times)| (*times, std::cmp::Reverse(*pair)));
        let Some(((one, other), _)) = best.filter(|(_, times)| *times > 1) else { return false };
        let text = format!("{}{}", self.pieces[one].0, self.pieces[other].0);
        self.pieces.push((text, self.pieces[one].1 + self.pieces[other].1));
        let new = self.pieces.len() - 1;
        let rows = std::mem::take(&mut self.rows);
        for (row, times) in rows {
            *self.rows.entry(replaced(&row, (one, other), new)).or_default() += times;
        }
        true
    }

    /// Phrases that stand in a row as they are, and the tokens each saves.
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
        || (first.is_some_and(|letter| letter.is_uppercase()) && letters.next().is_some_and(|letter| letter.is_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_become_phrases_and_names_and_numbers_do_not() {
        let call = |name: &str| format!("{{\"sql\": \"SELECT pay FROM staff WHERE name = '{name}' LIMIT 1\"}}<|im_end|>\nassistant");
        let texts = ["Ada Cole", "Bo Stone"].map(|name| (call(name), 10)).into();
        assert_eq!(
            phrases(&texts, 9),
            ["{\"sql\": \"SELECT pay FROM staff WHERE name = '", "' LIMIT ", "\"}", "\nassistant"]
        );
    }

    #[test]
    fn no_more_than_asked_for_and_none_from_nothing() {
        let texts = BTreeMap::from([("a b 1 c d 2 e f 3 a b".to_owned(), 4)]);
        assert_eq!(phrases(&texts, 1).len(), 1);
        assert!(phrases(&BTreeMap::new(), 9).is_empty());
    }
}
