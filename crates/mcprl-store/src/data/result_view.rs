//! What an agent sees of a tool's result.

/// The text, and false. If it has more than `most` characters, its beginning and end with a note between them, and true.
///
/// Everything that decides by what an agent can see (admission of tasks, demonstrations, episodes) uses this view. It does
/// not depend on a tokenizer, so tasks admitted for one model are visible to another.
pub fn result_view(text: String, most: usize) -> (String, bool) {
    let all = text.chars().count();
    if all <= most {
        return (text, false);
    }
    let (tail, omitted) = (most / 2, all - most);
    let at = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
    let (head, rest) = (&text[..at(most - tail)], &text[at(all - tail)..]);
    (format!("{head}\n[{omitted} characters left out]\n{rest}"), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_result_keeps_its_beginning_and_end_by_characters() {
        let view = |text: &str, most| result_view(text.to_owned(), most);
        assert_eq!(view("abcdef", 6), ("abcdef".into(), false));
        assert_eq!(view("äöüäöü", 6), ("äöüäöü".into(), false));
        assert_eq!(view("abcdefg", 5), ("abc\n[2 characters left out]\nfg".into(), true));
        assert_eq!(view("äöüßéèà", 4), ("äö\n[3 characters left out]\nèà".into(), true));
    }
}
