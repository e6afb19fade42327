//! Shortens long results so that they fit the context.

use crate::chat::Chat;

/// The text, and false. If it has more than `most` tokens, its beginning and end with a note in between, and true.
pub(super) fn clip(chat: &Chat, text: String, most: usize) -> (String, bool) {
    // A token has at least one byte, so a text of few bytes has few tokens.
    if text.len() <= most {
        return (text, false);
    }
    let tokens = chat.encode_text(&text);
    if tokens.len() <= most {
        return (text, false);
    }
    let tail = most / 2;
    let head = most - tail;
    let piece = |tokens: &[u32]| chat.decode(tokens).trim_matches(char::REPLACEMENT_CHARACTER).to_owned();
    let omitted = tokens.len() - most;
    let clipped = format!(
        "{}\n[{omitted} tokens left out]\n{}",
        piece(&tokens[..head]),
        piece(&tokens[tokens.len() - tail..])
    );
    (clipped, true)
}
