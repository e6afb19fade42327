//! Colours of the text output. Texts contain escape codes, which are stripped on writing if the stream is not
//! a terminal, or if `NO_COLOR` or `TERM=dumb` is set. `CLICOLOR_FORCE=1` keeps them.

use std::borrow::Cow;

use anstream::{AutoStream, ColorChoice, adapter::strip_str, stream::RawStream};
use anstyle::{AnsiColor, Style};

use crate::{report::escape::visible, secret::concealed, text::is_hidden};

pub const GOOD: Style = AnsiColor::Green.on_default();
pub const BAD: Style = AnsiColor::Red.on_default();
pub const FAINT: Style = Style::new().dimmed();
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
pub const HINT: Style = AnsiColor::Cyan.on_default().bold();
pub const NOTE: Style = AnsiColor::Yellow.on_default().bold();

pub fn paint(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{style:#}") }
}

/// The text with or without escape codes, as this stream requires.
pub fn shown<'t>(text: &'t str, stream: &impl RawStream) -> Cow<'t, str> {
    if text.contains('\x1b') && AutoStream::choice(stream) == ColorChoice::Never {
        strip_str(text).to_string().into()
    } else {
        text.into()
    }
}

/// A text with all other characters that a terminal obeys, or that change the order of others, in visible form: it may have words
/// of servers, jobs and batch systems.
pub fn harmless(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return text.into();
    }
    let (mut kept, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(letter) = rest.chars().next() {
        let length = colour(rest).unwrap_or(letter.len_utf8());
        let (part, behind) = rest.split_at(length);
        // Parts of emoji.
        let is_joined = matches!(letter, '\u{200d}' | '\u{fe0e}' | '\u{fe0f}');
        match length > letter.len_utf8() || is_joined {
            true => kept.push_str(part),
            false => kept.push_str(&visible(part)),
        }
        rest = behind;
    }
    kept.into()
}

/// The length of an escape code that sets a colour, if the text begins with one.
fn colour(text: &str) -> Option<usize> {
    let codes = text.strip_prefix("\x1b[")?;
    let end = codes.find(|letter: char| !letter.is_ascii_digit() && letter != ';')?;
    codes[end..].starts_with('m').then_some("\x1b[".len() + end + 1)
}

/// A message: [`harmless`], and without what looks like a key or token.
pub fn message(text: &str, stream: &impl RawStream) -> String {
    harmless(&shown(&concealed(text), stream)).into_owned()
}

/// The style of the first word in a line about a stage.
pub fn state(word: &str) -> Style {
    match word {
        "done" => GOOD,
        "failed" => ERROR,
        "cached" | "skipped" => FAINT,
        "wait" | "retry" | "note" | "differs" => NOTE,
        _ => HINT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_colours_and_no_other_control() {
        for text in ["plain\n\ttext é 漢", "\x1b[1;31merror:\x1b[0m ❤\u{fe0f}", "\x1b[2mfaint\x1b[0m"] {
            assert_eq!(harmless(text), text);
        }
        for text in
            ["\x1b]0;title\x07", "\x1b[2J", "a\u{202e}b", "a\rb", "\x1b[", "\x1b[31", "\u{9b}31m", "\u{2066}"]
        {
            assert!(!harmless(text).chars().any(is_hidden), "{text:?}");
        }
        let token = format!("ghp_{}", "aB3d".repeat(9));
        let text = message(&format!("\x1b[31mkey {token} \u{202e}\x1b[0m"), &std::io::stderr());
        assert!(!text.contains("aB3d") && !text.contains('\u{202e}') && text.contains("key …"), "{text}");
    }
}
