//! Text of servers and models, made harmless: shown as text, whatever is in it.

use std::{borrow::Cow, fmt::Write};

use crate::{secret::concealed, text::is_hidden};

/// The text with characters that a reader cannot see, or that change how the rest is shown, in visible form: control
/// characters (so also ANSI escape sequences), marks of writing direction, zero-width and tag characters ([`is_hidden`]). Line
/// breaks and tabs stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            _ if !is_hidden(letter) => shown.push(letter),
            // The symbols for control characters.
            '\0'..='\u{1f}' => shown.push(char::from_u32(0x2400 + letter as u32).unwrap_or('␀')),
            '\u{7f}' => shown.push('␡'),
            _ => _ = write!(shown, "⟦U+{:04X}⟧", letter as u32),
        }
    }
    shown.into()
}

/// A text for somebody else: without secrets, and [`visible`].
pub fn outgoing(text: &str) -> String {
    visible(&concealed(text)).into_owned()
}

/// The text for HTML and SVG, as content or in a quoted attribute. Everything that a report did not write itself goes through
/// here.
pub fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in outgoing(text).chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// The text for a line of Markdown: no markup, no link, no mention. Only what would be markup is escaped, so that the text
/// can be read in a terminal too.
pub fn markdown(text: &str) -> String {
    let text = outgoing(text);
    let mut escaped = String::with_capacity(text.len() + 16);
    let is_word = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    let (mut before, mut letters) = (None, text.chars().peekable());
    // Lists, headings and quotations begin a line.
    let (mut is_start, mut is_number) = (true, true);
    while let Some(letter) = letters.next() {
        let next = letters.peek().copied();
        let ends = next.is_none_or(char::is_whitespace);
        let is_markup = match letter {
            '\\' | '`' | '*' | '|' | '~' | '<' => true,
            ']' => matches!(next, Some('(' | '[' | ':')),
            '_' => !(is_word(before) && is_word(next)),
            '#' => is_start || !is_word(before),
            '>' | '=' => is_start,
            '-' if next == Some('-') => is_start,
            '-' | '+' => is_start && ends,
            '.' | ')' => is_number && !is_start && ends,
            _ => false,
        };
        match letter {
            '\n' | '\t' => escaped.push(' '),
            '&' if is_word(next) || next == Some('#') => escaped.push_str("&amp;"),
            // Markdown has no escape for a mention.
            '@' if is_word(next) && !is_word(before) => escaped.push_str("&#64;"),
            _ if is_markup => escaped.extend(['\\', letter]),
            _ => escaped.push(letter),
        }
        is_start &= letter.is_whitespace();
        is_number &= letter.is_whitespace() || letter.is_ascii_digit();
        before = Some(letter);
    }
    escaped
}

/// The text for a code span of Markdown.
pub fn code_span(text: &str) -> String {
    let text = outgoing(text).replace(['\n', '\t'], " ");
    let ticks = "`".repeat(longest_run(&text) + 1);
    let room = if text.starts_with('`') || text.ends_with('`') || text.is_empty() { " " } else { "" };
    // A table ends its cell at a bar even within code.
    format!("{ticks}{room}{}{room}{ticks}", text.replace('|', "\\|"))
}

/// The text as a fenced block of Markdown.
pub fn code_block(text: &str) -> String {
    let text = outgoing(text);
    let fence = "`".repeat((longest_run(&text) + 1).max(3));
    format!("{fence}\n{}\n{fence}\n", text.trim_end_matches('\n'))
}

fn longest_run(text: &str) -> usize {
    text.split(|letter| letter != '`').map(str::len).max().unwrap_or(0)
}

/// The beginning of a text, with a note if it was longer.
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => text.into(),
        Some((at, _)) => format!("{}… [{} more bytes]", &text[..at], text.len() - at).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown_in_any_form() {
        let token = format!("hf_{}", "kLmNoPqR".repeat(5));
        for text in [format!("a\n{token}"), serde_json::json!([format!("a\n{token}")]).to_string()] {
            for shown in [html(&text), markdown(&text), code_span(&text), code_block(&text)] {
                assert!(!shown.contains("kLmNo") && shown.contains('…'), "{shown}");
            }
        }
    }

    #[test]
    fn markup_is_shown_as_text() {
        assert_eq!(
            html("<script>alert(\"&'\")</script>"),
            "&lt;script&gt;alert(&quot;&amp;&#39;&quot;)&lt;/script&gt;"
        );
        assert_eq!(
            markdown("[a](http://b) <img> *x* @team | `c`"),
            "[a\\](http://b) \\<img> \\*x\\* &#64;team \\| \\`c\\`"
        );
        for (text, escaped) in [
            ("1. # - > _a_ #7", "1\\. \\# - > \\_a\\_ \\#7"),
            ("# a", "\\# a"),
            ("- a", "\\- a"),
            ("---", "\\---"),
            ("88.3", "88.3"),
            ("+2.8", "+2.8"),
            ("[x]: y &lt; [1]", "[x\\]: y &amp;lt; [1]"),
        ] {
            assert_eq!(markdown(text), escaped);
        }
        for plain in
            ["no such column: e.pay_grade (line 3)", "+34.7 [24, 45], p < 0.001!".split('<').next().unwrap()]
        {
            assert_eq!(markdown(&format!("x {plain}")), format!("x {plain}"));
        }
        assert_eq!(code_span("a`b|c"), "``a`b\\|c``");
        assert_eq!(code_block("```\nrm\n```"), "````\n```\nrm\n```\n````\n");
    }

    #[test]
    fn characters_that_hide_or_turn_text_are_visible() {
        for (text, shown) in [
            ("\u{1b}[31mred", "␛[31mred"),
            ("a\0b\rc\u{7f}", "a␀b␍c␡"),
            ("abc\u{202e}fed", "abc⟦U+202E⟧fed"),
            ("\u{200b}\u{2066}\u{feff}\u{e0041}", "⟦U+200B⟧⟦U+2066⟧⟦U+FEFF⟧⟦U+E0041⟧"),
            ("\u{85}", "⟦U+0085⟧"),
            ("\u{ad}\u{3164}\u{e01ef}", "⟦U+00AD⟧⟦U+3164⟧⟦U+E01EF⟧"),
            ("line\n\ttab é 漢 🙂", "line\n\ttab é 漢 🙂"),
        ] {
            assert_eq!(visible(text), shown);
            assert!(!html(text).contains(['\u{1b}', '\0', '\r', '\u{202e}', '\u{200b}']));
        }
    }

    #[test]
    fn a_long_text_says_how_much_is_missing() {
        let long = "é".repeat(10_000_000 / 2);
        let short = shortened(&long, 100);
        assert!(short.starts_with('é') && short.ends_with("… [9999800 more bytes]"), "{short}");
        assert_eq!(shortened("short", 5), "short");
    }
}
