//! What a person sees of a turn while it is sampled: its text as far as that is certain, its calls and their results.

use serde_json::{Map, Value};

use crate::{
    chat::{Chat, GrowingText, GrowingTurn},
    data::Message,
    report::escape::visible,
    text::start_of,
    ui::{Printer, faint},
};

/// Lines of a result that are shown, and characters of each.
const LINES: usize = 4;
const LINE_CHARS: usize = 160;

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shows {
    /// The text as its tokens come.
    pub text: bool,
    pub reasoning: bool,
}

pub struct View {
    printer: Printer,
    shows: Shows,
    /// None for a model behind an endpoint.
    growing: Option<Growing>,
    /// Reasoning and text that an endpoint's turn has shown.
    endpoint: [GrowingText; 2],
    /// What was shown of the last turn that had a text.
    last: String,
    /// Whether the cursor is behind some text.
    is_inside_line: bool,
}

/// A turn while its tokens come.
struct Growing {
    chat: Chat,
    /// The end of a prompt.
    prompt: Vec<u32>,
    turn: GrowingTurn,
}

impl View {
    /// `chat` reads tokens; a model behind an endpoint has none.
    pub fn new(printer: Printer, chat: Option<&Chat>, shows: Shows) -> Self {
        let growing = chat.map(|chat| {
            let prompt = chat.prompt("x").map_or_else(|_| Vec::new(), |prompt| prompt.task);
            Growing { chat: chat.clone(), turn: GrowingTurn::after(chat, &prompt), prompt }
        });
        Self {
            printer,
            shows,
            growing,
            endpoint: Default::default(),
            last: String::new(),
            is_inside_line: false,
        }
    }

    /// Whether the last turn's text, which was shown while it was sampled, is this one.
    pub fn has_shown(&self, text: &str) -> bool {
        self.shows.text && self.last == text
    }

    /// The agent begins to answer.
    pub fn begin(&mut self) {
        self.last.clear();
        self.endpoint = Default::default();
    }

    pub fn token(&mut self, token: u32) {
        let Some(Growing { chat, turn, .. }) = self.growing.as_mut().filter(|_| self.shows.text) else {
            return;
        };
        turn.tokens.push(token);
        if chat.stop().contains(&token) {
            self.end_turn();
            return;
        }
        let more = turn.more(chat);
        let is_first = turn.text.taken == more.text;
        self.show(&more.reasoning, &more.text, is_first);
    }

    /// What an endpoint's turn says so far.
    pub fn growing_text(&mut self, reasoning: &str, text: &str) {
        if self.shows.text {
            let [reasoning_shown, text_shown] = &mut self.endpoint;
            // Reasoning holds no calls.
            let reasoning = reasoning_shown.take(reasoning.trim_end_matches('\u{fffd}'));
            let text = text_shown.more(text);
            let is_first = text_shown.taken == text;
            self.show(&reasoning, &text, is_first);
        }
    }

    /// A turn of a model behind an endpoint.
    pub fn whole_turn(&mut self, reasoning: &str, text: &str) {
        let [mut reasoning_shown, mut text_shown] = std::mem::take(&mut self.endpoint);
        if self.shows.text {
            let (more_reasoning, more) = (reasoning_shown.take(reasoning), text_shown.take(text));
            let is_first = text_shown.taken == more;
            self.show(&more_reasoning, &more, is_first);
            if !text.is_empty() {
                self.last = text.to_owned();
            }
        }
        self.end_line();
    }

    /// Shows what the turn has in addition. `is_first`: whether it is the beginning of its text.
    fn show(&mut self, reasoning: &str, text: &str, is_first: bool) {
        if self.shows.reasoning && !reasoning.is_empty() {
            self.print(&faint(&visible(reasoning)));
        }
        if !text.is_empty() && is_first {
            self.end_line();
        }
        self.print(&visible(text));
    }

    fn print(&mut self, text: &str) {
        if !text.is_empty() {
            self.printer.part(text);
            self.is_inside_line = true;
        }
    }

    fn end_turn(&mut self) {
        if let Some(Growing { chat, prompt, turn }) = &mut self.growing {
            let mut turn = std::mem::replace(turn, GrowingTurn::after(chat, prompt));
            if !turn.tokens.is_empty() {
                let whole = turn.parsed(chat);
                let reasoning = turn.reasoning.take(&whole.reasoning.unwrap_or_default());
                let text = turn.text.take(&whole.text);
                let is_first = turn.text.taken == text;
                self.show(&reasoning, &text, is_first);
            }
            if !turn.text.taken.is_empty() {
                self.last = turn.text.taken;
            }
        }
        self.end_line();
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.is_inside_line) {
            self.printer.part("\n");
        }
    }

    /// The agent's answer is complete, or was cancelled.
    pub fn end(&mut self) {
        self.end_turn();
    }

    pub fn call(&mut self, tool: &str, arguments: &Map<String, Value>) {
        self.end_line();
        self.printer.say(&visible(&format!("{tool}({})", Value::from(arguments.clone()))));
    }

    pub fn result(&mut self, message: &Message) {
        self.end_line();
        let text = excerpt(&message.text);
        self.printer.say(&faint(&text));
    }
}

/// The first lines of a result, indented.
fn excerpt(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = |line: &&str| format!("  {}", start_of(&visible(line), LINE_CHARS));
    let mut shown: Vec<String> = lines.iter().take(LINES).map(shown).collect();
    if lines.len() > LINES {
        shown.push(format!("  … {} more lines", lines.len() - LINES));
    }
    if shown.is_empty() { "  (nothing)".to_owned() } else { shown.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_result_is_cut_to_a_few_lines() {
        assert_eq!(excerpt("a\n\nb\u{7}\n"), "  a\n  b␇");
        assert_eq!(excerpt("1\n2\n3\n4\n5\n6"), "  1\n  2\n  3\n  4\n  … 2 more lines");
        assert_eq!(excerpt(" "), "  (nothing)");
        assert_eq!(excerpt(&"é".repeat(200)).chars().count(), LINE_CHARS + 3);
    }
}
