//! Colours of the text output. Texts contain escape codes, which are stripped on writing if the stream is not
//! a terminal, or if `NO_COLOR` or `TERM=dumb` is set. `CLICOLOR_FORCE=1` keeps them.

use std::borrow::Cow;

use anstream::{AutoStream, ColorChoice, adapter::strip_str, stream::RawStream};
use anstyle::{AnsiColor, Style};

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
