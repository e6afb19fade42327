//! What a person sees of a turn while it is sampled: its text as far as that is certain, its calls and their results.
//!
//! A turn is parsed again with every token, because only the parser of the model's format knows what is text. A text that may
//! still become a call is held back until the turn ends.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::{
    agent::Agent,
    report::escape::visible,
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
    agent: Arc<Agent>,
    tools: Vec<String>,
    /// Whether the template opens the reasoning, so that a turn begins within it.
    begins_reasoning: bool,
    /// Of the current turn.
    tokens: Vec<u32>,
    text: Stream,
    reasoning: Stream,
    /// What was shown of the last turn that had a text.
    last: String,
    /// Whether the cursor is behind some text.
    is_inside_line: bool,
}

impl View {
    pub fn new(printer: Printer, agent: &Arc<Agent>, shows: Shows) -> Self {
        let name = |tool: &Value| tool.get("function").unwrap_or(tool)["name"].as_str().map(str::to_owned);
        Self {
            printer,
            shows,
            agent: agent.clone(),
            tools: agent.toolbox.functions().iter().filter_map(name).collect(),
            begins_reasoning: agent
                .chat
                .prompt("x")
                .is_ok_and(|prompt| agent.chat.decode(&prompt.task).trim_end().ends_with("<think>")),
            tokens: Vec::new(),
            text: Stream::default(),
            reasoning: Stream::default(),
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
    }

    pub fn token(&mut self, token: u32) {
        if !self.shows.text {
            return;
        }
        let ends = self.agent.chat.stop().contains(&token);
        self.tokens.push(token);
        self.show(ends);
        if ends {
            self.end_turn();
        }
    }

    fn show(&mut self, is_whole: bool) {
        let mut turn = self.agent.chat.parse(&self.tokens);
        if self.begins_reasoning && turn.reasoning.is_none() && !is_whole {
            turn.reasoning = Some(std::mem::take(&mut turn.text));
        }
        if let Some(reasoning) = turn.reasoning.filter(|_| self.shows.reasoning) {
            let more = self.reasoning.more(&reasoning, is_whole, &[]);
            self.print(&faint(&more));
        }
        let more = self.text.more(&turn.text, is_whole, &self.tools);
        if self.text.is_first(&more) {
            self.end_line();
        }
        self.print(&more);
    }

    fn print(&mut self, text: &str) {
        if !text.is_empty() {
            self.printer.part(text);
            self.is_inside_line = true;
        }
    }

    fn end_turn(&mut self) {
        self.tokens.clear();
        let text = std::mem::take(&mut self.text).shown;
        if !text.is_empty() {
            self.last = text;
        }
        self.reasoning = Stream::default();
        self.end_line();
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.is_inside_line) {
            self.printer.part("\n");
        }
    }

    /// The agent's answer is complete, or was cancelled.
    pub fn end(&mut self) {
        if !self.tokens.is_empty() {
            self.show(true);
        }
        self.end_turn();
    }

    pub fn call(&mut self, tool: &str, arguments: &Map<String, Value>) {
        self.end_line();
        self.printer.say(&visible(&format!("{tool}({})", Value::from(arguments.clone()))));
    }

    pub fn result(&mut self, message: &Value) {
        self.end_line();
        let text = excerpt(message["content"].as_str().unwrap_or_default());
        self.printer.say(&faint(&text));
    }
}

/// The first lines of a result, indented.
fn excerpt(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = |line: &&str| {
        let line = visible(line);
        match line.char_indices().nth(LINE_CHARS) {
            Some((end, _)) => format!("  {}…", &line[..end]),
            None => format!("  {line}"),
        }
    };
    let mut shown: Vec<String> = lines.iter().take(LINES).map(shown).collect();
    if lines.len() > LINES {
        shown.push(format!("  … {} more lines", lines.len() - LINES));
    }
    if shown.is_empty() { "  (nothing)".to_owned() } else { shown.join("\n") }
}

/// A text that grows, of which a part has been shown.
#[derive(Debug, Default)]
struct Stream {
    shown: String,
}

impl Stream {
    /// What is to be shown next, given the text so far.
    fn more(&mut self, text: &str, is_whole: bool, tools: &[String]) -> String {
        let certain = if is_whole { text } else { certain(text, tools) };
        let more = match certain.strip_prefix(self.shown.as_str()) {
            Some(more) => visible(more).into_owned(),
            // It ends earlier than what was shown, or begins otherwise: what was shown was reasoning.
            None if self.shown.starts_with(certain) => return String::new(),
            None => format!("\n{}", visible(certain)),
        };
        certain.clone_into(&mut self.shown);
        more
    }

    /// Whether nothing was shown before this.
    fn is_first(&self, more: &str) -> bool {
        !more.is_empty() && visible(&self.shown) == more
    }
}

/// The beginning of a text that stays as it is, whatever follows: without an incomplete character, and without what may
/// become a call.
fn certain<'t>(text: &'t str, tools: &[String]) -> &'t str {
    let text = text.trim_end_matches('\u{fffd}');
    let mut begins_line = true;
    for (at, letter) in text.char_indices() {
        let rest = &text[at..];
        let next = rest.chars().nth(1);
        let opens = match letter {
            '<' => next.is_none_or(|next| next.is_alphabetic() || "/|_".contains(next)),
            '[' => begins_line || next.is_none_or(char::is_uppercase),
            '{' | '`' => begins_line,
            _ => {
                let is_call = |tool: &String| {
                    tool.starts_with(rest)
                        || rest
                            .strip_prefix(tool.as_str())
                            .is_some_and(|rest| rest.is_empty() || rest.starts_with('('))
                };
                begins_line && tools.iter().any(is_call)
            }
        };
        if opens {
            return &text[..at];
        }
        begins_line = letter == '\n' || (begins_line && letter.is_whitespace());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown after each of these texts of a turn, and at its end.
    fn shown(texts: &[&str], whole: &str) -> Vec<String> {
        let tools = ["get_note".to_owned()];
        let mut stream = Stream::default();
        let mut shown: Vec<String> = texts.iter().map(|text| stream.more(text, false, &tools)).collect();
        shown.push(stream.more(whole, true, &tools));
        shown
    }

    #[test]
    fn a_character_is_shown_when_its_last_token_has_come() {
        assert_eq!(
            shown(&["caf", "caf\u{fffd}", "café", "café \u{fffd}"], "café 漢"),
            ["caf", "", "é", " ", "漢"]
        );
    }

    #[test]
    fn what_may_become_a_call_is_held_back_and_shown_if_it_does_not() {
        assert_eq!(shown(&["Look: <", "Look: <tool", "Look:"], "Look:"), ["Look: ", "", "", ""]);
        assert_eq!(shown(&["a <", "a < b", "a < b <i>x"], "a < b <i>x</i>"), ["a ", "< b", " ", "<i>x</i>"]);
        assert_eq!(shown(&["Well\n", "Well\n{\"na", "Well"], "Well"), ["Well\n", "", "", ""]);
        assert_eq!(shown(&["get", "get_note(1"], ""), ["", "", ""]);
        assert_eq!(shown(&["get", "get some"], "get some"), ["", "get some", ""]);
        assert_eq!(shown(&["list[0] and [", "list[0] and [TOOL"], "list[0] and"), ["list[0] and ", "", ""]);
    }

    #[test]
    fn control_characters_of_the_model_are_made_visible() {
        assert_eq!(shown(&["a\u{1b}[2J"], "a\u{1b}[2J"), ["a␛[2J", ""]);
    }

    #[test]
    fn an_answer_is_shown_whole_after_reasoning_without_an_opening_tag() {
        assert_eq!(shown(&["I think"], "It is 7."), ["I think", "\nIt is 7."]);
    }

    #[test]
    fn a_long_result_is_cut_to_a_few_lines() {
        assert_eq!(excerpt("a\n\nb\u{7}\n"), "  a\n  b␇");
        assert_eq!(excerpt("1\n2\n3\n4\n5\n6"), "  1\n  2\n  3\n  4\n  … 2 more lines");
        assert_eq!(excerpt(" "), "  (nothing)");
        assert_eq!(excerpt(&"é".repeat(200)).chars().count(), LINE_CHARS + 3);
    }
}
