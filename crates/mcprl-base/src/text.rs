//! Characters that a reader cannot see: one list for what is removed from a server's texts, and for what reports and the live
//! page make visible. All of them can hide instructions, or split a word that a filter looks for. And the start of a text
//! that is too long to be shown.

/// Ranges of hidden characters, both ends included.
pub const HIDDEN: [(char, char); 18] = [
    // Controls, except tab and line feed.
    ('\0', '\u{8}'),
    ('\u{b}', '\u{1f}'),
    ('\u{7f}', '\u{9f}'),
    // Soft hyphen, combining grapheme joiner, Arabic letter mark, Hangul fillers, Mongolian separator.
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{180e}', '\u{180e}'),
    // Zero-width characters and joiners, and directional marks.
    ('\u{200b}', '\u{200f}'),
    // Line and paragraph separators.
    ('\u{2028}', '\u{2029}'),
    // Directional embeddings and overrides.
    ('\u{202a}', '\u{202e}'),
    // Invisible operators and directional isolates.
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    // Variation selectors.
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    // Interlinear annotations.
    ('\u{fff9}', '\u{fffb}'),
    // Tags, further variation selectors, and what is reserved for their like.
    ('\u{e0000}', '\u{e0fff}'),
];

pub fn is_hidden(letter: char) -> bool {
    match letter {
        ' '..='~' | '\n' | '\t' => false,
        _ => HIDDEN.iter().any(|(first, last)| (*first..=*last).contains(&letter)),
    }
}

/// The start of a text: at most this many characters, and `…` if there are more.
pub fn start_of(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_control_but_tab_and_line_feed_is_hidden() {
        for letter in (0..=0xffff).filter_map(char::from_u32).filter(|letter| letter.is_control()) {
            assert_eq!(is_hidden(letter), !matches!(letter, '\n' | '\t'), "{letter:?}");
        }
    }

    #[test]
    fn the_ranges_are_in_order_and_what_is_seen_is_in_none() {
        assert!(HIDDEN.windows(2).all(|pair| pair[0].1 < pair[1].0));
        assert!("aZ ~\n\té漢🙂 –".chars().all(|letter| !is_hidden(letter)));
        assert!("\u{200b}\u{202e}\u{ad}\u{fe0f}\u{e0041}\u{e01ef}\u{1b}\r".chars().all(is_hidden));
    }
}
