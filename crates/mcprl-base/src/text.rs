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

/// A share in percent with so many decimals, without the unit. Halves are rounded away from zero, also those that are stored a
/// little nearer to it, such as 51 of 80, so a rate reads the same wherever it is shown. The live page's `inPercent` rounds alike.
pub fn percent(share: f64, digits: usize) -> String {
    let scale = 10_f64.powi(i32::try_from(digits).unwrap_or(0));
    let scaled = 100.0 * share * scale;
    format!("{:.digits$}", (scaled + 1e-9_f64.copysign(scaled)).round() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_percentage_are_rounded_away_from_zero() {
        let rounded = |part: f64, of: f64| percent(part / of, 1);
        assert_eq!(rounded(9.0, 16.0), "56.3");
        assert_eq!(rounded(51.0, 80.0), "63.8");
        assert_eq!(percent([0.85, 0.925].iter().sum::<f64>() / 2.0, 1), "88.8");
        assert_eq!(rounded(-1.0, 16.0), "-6.3");
        assert_eq!(
            (percent(0.125, 0), percent(0.12499, 0), percent(1.0, 1)),
            ("13".into(), "12".into(), "100.0".into())
        );
    }

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
