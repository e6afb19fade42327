//! Unique tool names that are valid OpenAI function names.

use std::collections::BTreeSet;

/// Longest name that most model APIs accept.
const LONGEST: usize = 64;

/// Assigns unique names that match `[A-Za-z0-9_-]{1,64}`.
#[derive(Default)]
pub(super) struct Names(BTreeSet<String>);

impl Names {
    /// The name itself if it is valid and free, otherwise a similar one.
    pub(super) fn give(&mut self, wanted: &str) -> String {
        let valid = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
        let mut name: String =
            wanted.chars().take(LONGEST).map(|letter| if valid(letter) { letter } else { '_' }).collect();
        if name.is_empty() {
            name.push_str("tool");
        }
        let mut given = name.clone();
        for number in 2.. {
            if self.0.insert(given.clone()) {
                break;
            }
            let suffix = format!("_{number}");
            given = format!("{}{suffix}", &name[..name.len().min(LONGEST - suffix.len())]);
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_name_is_kept_and_others_become_valid_and_unique() {
        let mut names = Names::default();
        let given: Vec<String> = ["read-file_1", "read file", "read.file", "", "", "über"]
            .iter()
            .map(|name| names.give(name))
            .collect();
        assert_eq!(given, ["read-file_1", "read_file", "read_file_2", "tool", "tool_2", "_ber"]);
    }

    #[test]
    fn a_long_name_is_cut_and_stays_unique() {
        let mut names = Names::default();
        let (one, two) = (names.give(&"n".repeat(100)), names.give(&"n".repeat(99)));
        assert_eq!((one.len(), two.len()), (64, 64));
        assert_ne!(one, two);
    }
}
