//! Calls as models write them when they do not follow their template, in one pass over the turn.
//!
//! | written | form |
//! |---|---|
//! | a JSON object or list, bare or between fences | `bare_json`, `fenced_json` |
//! | the same, a Python call or a tool's name after an opening tag; the closing tag may be missing | `tags` |
//! | a Python call as a statement of its own, or a list of them | `python` |
//! | tags for the function and its arguments | `xml` |
//! | `[TOOL_CALLS]`, `functools[…]`, `<\|tool_call\|>`, `<\|python_tag\|>` | `other_template` |
//!
//! **What counts.** Only calls to offered tools. Other JSON (a result, an example, a tool's declaration) is text. What
//! begins as a call but cannot be read is an error text for the model, as is a call that can be read in two ways. Words of an
//! object may lack their quotes, `{name: TOOL}`, if nothing else of the turn can be read. Then brackets before a closing tag may
//! be wrong or missing too: `{"name": TOOL, "arguments": {"q": "x")</tool_call>`.
//!
//! **Which calls of a turn.** The first that can be read, and those beside it with nothing but white space, commas, fences and
//! tags in between. A small model goes on with an invented result and the calls that would follow from it; what follows
//! text is therefore text. A call that equals the one before it is read once.
//!
//! **What is only quoted.** A call without a tag that says so stands on lines of its own, and begins the turn or ends it. Within a
//! sentence, or with words before and behind it, it is text: an example, or a call that the model rejects. So is what stands in the
//! body of a program's `if`, loop or function.
//!
//! Time is linear in the turn's length: a value is nested to a limited depth and at most [`LONGEST`] bytes long.

mod object;
mod statement;
mod tag;

#[cfg(test)]
mod tests;

use super::{hermes, json::LONGEST, mistral, phi::FUNCTOOLS, schemas::Schemas};
use crate::{CallForm, ToolCall, literal::Reader};

type Call = Result<ToolCall, String>;

const FENCE: &str = "```";

/// What was found in a turn: the calls with their forms, and the text around them.
#[derive(Debug, Default, PartialEq)]
pub struct ReadTurn {
    pub text: String,
    pub calls: Vec<(Call, CallForm)>,
}

/// Reads a turn without its reasoning. Any text can be read.
pub fn read(text: &str, tools: &Schemas) -> ReadTurn {
    let is_readable = |found: &ReadTurn| found.calls.iter().any(|(call, _)| call.is_ok());
    let found = read_as_written(text, tools);
    if is_readable(&found) {
        return found;
    }
    let mended = with_right_brackets(text).map(|text| read_as_written(&text, tools));
    mended.filter(is_readable).unwrap_or(found)
}

/// The turn with the right brackets before each `</tool_call>`, if others stand there.
fn with_right_brackets(text: &str) -> Option<String> {
    let mut parts = text.split(hermes::OPEN);
    let mut mended = parts.next()?.to_owned();
    for part in parts {
        mended.push_str(hermes::OPEN);
        match part.split_once(hermes::CLOSE).and_then(|(body, after)| Some((closed(body)?, after))) {
            Some((body, after)) => mended.extend([&body, hermes::CLOSE, after]),
            None => mended.push_str(part),
        }
    }
    (mended != text).then_some(mended)
}

/// JSON whose last brackets are replaced by those that close what is open. None if something else is wrong with it.
fn closed(body: &str) -> Option<String> {
    let (mut open, mut in_text, mut is_escaped) = (Vec::new(), false, false);
    let mut end = body.len();
    for (at, letter) in body.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if in_text => is_escaped = true,
            '"' => in_text = !in_text,
            _ if in_text => {}
            '{' => open.push('}'),
            '[' => open.push(']'),
            '}' | ']' if open.last() == Some(&letter) => _ = open.pop(),
            '}' | ']' | ')' | ';' => {
                end = at;
                break;
            }
            _ => {}
        }
    }
    let is_rest = |letter: char| letter.is_whitespace() || "})];".contains(letter);
    (!in_text && body[end..].chars().all(is_rest))
        .then(|| body[..end].chars().chain(open.into_iter().rev()).collect())
}

fn read_as_written(text: &str, tools: &Schemas) -> ReadTurn {
    let mut runs = Scanner::new(text, tools).runs();
    if !runs.is_empty() && !runs.iter().any(Run::is_readable) {
        let unquoted = Scanner { is_unquoted: true, ..Scanner::new(text, tools) }.runs();
        runs = if unquoted.iter().any(Run::is_readable) { unquoted } else { runs };
    }
    // The first calls that stand together and of which one can be read, or else the first attempt.
    let at = runs.iter().position(Run::is_readable).unwrap_or(0);
    if runs.get(at).is_none_or(|run| run.is_between_words(text)) {
        return ReadTurn { text: text.to_owned(), calls: Vec::new() };
    }
    let Run { start, end, calls, .. } = runs.swap_remove(at);
    let (before, after) = (text[..start].trim_end(), text[end..].trim_start());
    let gap = if before.is_empty() || after.is_empty() { "" } else { "\n\n" };
    ReadTurn { text: format!("{before}{gap}{after}"), calls }
}

/// Calls that stand together, from the fence or tag that opens before them to the one that closes behind them.
struct Run {
    start: usize,
    end: usize,
    calls: Vec<(Call, CallForm)>,
    /// Whether a tag says that it is a call, wherever it stands.
    is_marked: bool,
}

impl Run {
    fn is_readable(&self) -> bool {
        self.calls.iter().any(|(call, _)| call.is_ok())
    }

    /// Whether it stands in a line with words.
    fn is_in_line(&self, text: &str) -> bool {
        /// A longer beginning of a line has words.
        const LONGEST: usize = 256;
        let (before, behind) = (&text[..self.start], &text[self.end..]);
        let near = before.char_indices().rev().take(LONGEST).last().map_or(0, |(at, _)| at);
        let line = before[near..].rsplit('\n').next().unwrap_or_default();
        let rest = behind.split('\n').next().unwrap_or_default();
        !self.is_marked && (!may_precede(line) || rest.contains(char::is_alphanumeric))
    }

    fn is_between_words(&self, text: &str) -> bool {
        let behind =
            text[self.end..].trim_start_matches(|c: char| !c.is_alphanumeric() && !"{[<`".contains(c));
        !self.is_marked
            && behind.starts_with(char::is_alphabetic)
            && text[..self.start].contains(char::is_alphabetic)
    }
}

/// Whether a call may follow this beginning of its line: the mark of a list, or a label such as `Action:`.
pub fn may_precede(line: &str) -> bool {
    let is_mark = |c: char| c.is_whitespace() || c.is_ascii_digit() || "-*.,;`".contains(c);
    let words = line.trim_start_matches(is_mark).trim_end();
    words.is_empty() || words.ends_with(':') && !words.contains(char::is_whitespace)
}

/// What stands at a place of the turn.
enum Piece {
    Calls {
        calls: Vec<Call>,
        form: CallForm,
        end: usize,
    },
    /// May stand between calls. If it `closes` something, it belongs to the calls before it.
    Separator {
        end: usize,
        closes: bool,
    },
    Text {
        end: usize,
    },
}

struct Scanner<'a> {
    text: &'a str,
    tools: &'a Schemas,
    at: usize,
    /// Whether a statement may start here: a line, a fence or a tag's content begins.
    begins: bool,
    /// Where the open fence starts.
    fence: Option<usize>,
    /// Where the fence and tags start that have had no content so far.
    opening: Option<usize>,
    /// The form of JSON and Python if an open tag surrounds it.
    wrapper: Option<CallForm>,
    /// Whether inline code is open around this place.
    is_inline: bool,
    /// Tools that code in the turn defines itself. A call of one is no tool call.
    defined: Vec<&'a str>,
    /// Whether the open tag says that a call follows.
    is_marked: bool,
    /// The indentation of the `if`, loop or function whose body may follow.
    block: Option<usize>,
    /// Closing tags that do not occur behind this place.
    unclosed: Vec<String>,
    /// Whether words of JSON objects may lack their quotes.
    is_unquoted: bool,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str, tools: &'a Schemas) -> Self {
        Self {
            text,
            tools,
            at: 0,
            begins: true,
            fence: None,
            opening: None,
            wrapper: None,
            is_inline: false,
            defined: Vec::new(),
            is_marked: false,
            block: None,
            unclosed: Vec::new(),
            is_unquoted: false,
        }
    }

    /// All calls up to the first text behind one that can be read.
    fn runs(mut self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        // Whether nothing but separators stands between the last call and here.
        let mut is_adjacent = false;
        while self.at < self.text.len() {
            let start = self.at;
            match self.piece() {
                Piece::Calls { calls, form, end } => {
                    let start = self.opening.take().unwrap_or(start);
                    if !is_adjacent {
                        runs.push(Run { start, end, calls: Vec::new(), is_marked: false });
                    }
                    if let Some(run) = runs.last_mut() {
                        run.end = end;
                        run.is_marked |= self.is_marked;
                        for call in calls {
                            if call.is_err() || run.calls.last().is_none_or(|(last, _)| *last != call) {
                                run.calls.push((call, form));
                            }
                        }
                    }
                    (self.at, self.begins, is_adjacent) = (end, false, true);
                }
                Piece::Separator { end, closes } => {
                    if let Some(run) = runs.last_mut().filter(|_| is_adjacent && closes) {
                        run.end = end;
                    }
                    self.at = end;
                }
                Piece::Text { end } => {
                    runs.pop_if(|run| is_adjacent && run.is_in_line(self.text));
                    if is_adjacent && runs.last().is_some_and(Run::is_readable) {
                        break;
                    }
                    (self.opening, self.wrapper) = (None, None);
                    (self.is_inline, self.is_marked) = (false, false);
                    (self.at, self.begins, is_adjacent) = (end, false, false);
                }
            }
        }
        runs.pop_if(|run| is_adjacent && run.is_in_line(self.text));
        runs
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn piece(&mut self) -> Piece {
        let rest = self.rest();
        if rest.starts_with(FENCE) {
            return self.fence();
        }
        let Some(next) = rest.chars().next() else { return Piece::Text { end: self.text.len() } };
        if next.is_whitespace() {
            let space = rest.len() - rest.trim_start().len();
            self.begins |= rest[..space].contains('\n');
            return Piece::Separator { end: self.at + space, closes: false };
        }
        if std::mem::take(&mut self.begins)
            && let Some(piece) = statement::body(self).or_else(|| statement::read(self))
        {
            return piece;
        }
        match next {
            // The value of a key in broken JSON.
            '{' | '[' if self.text[..self.at].trim_end().ends_with("\":") => Piece::Text { end: self.at + 1 },
            '{' => self.value(self.json_form()),
            '[' => self.list(),
            '`' => self.inline(),
            '<' => tag::read(self),
            ',' | ';' => Piece::Separator { end: self.at + 1, closes: false },
            _ => self.word(),
        }
    }

    /// A word, or the one that Phi writes before a list of calls.
    fn word(&mut self) -> Piece {
        let rest = self.rest();
        if let Some(body) = rest.strip_prefix(FUNCTOOLS)
            && body.trim_start().starts_with('[')
        {
            self.open(CallForm::OtherTemplate);
            self.is_marked = true;
            return Piece::Separator { end: self.at + FUNCTOOLS.len(), closes: false };
        }
        let first = rest.chars().next().map_or(1, char::len_utf8);
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        Piece::Text { end: self.at + first.max(word) }
    }

    fn fence(&mut self) -> Piece {
        let behind = self.at + FENCE.len();
        (self.begins, self.block) = (true, None);
        if self.fence.take().is_some() {
            return Piece::Separator { end: behind, closes: true };
        }
        self.fence = Some(self.at);
        self.opening.get_or_insert(self.at);
        let is_language = |c: char| c.is_alphanumeric() || "_+-#".contains(c);
        let language = self.text[behind..].find(|c| !is_language(c)).unwrap_or(self.text.len() - behind);
        Piece::Separator { end: behind + language, closes: false }
    }

    /// The quote of inline code.
    fn inline(&mut self) -> Piece {
        let end = self.at + 1;
        if std::mem::take(&mut self.is_inline) {
            return Piece::Separator { end, closes: true };
        }
        if !self.text[end..].starts_with(['{', '[']) {
            return Piece::Text { end };
        }
        self.is_inline = true;
        self.opening.get_or_insert(self.at);
        Piece::Separator { end, closes: false }
    }

    /// The bytes up to this closing tag. It is looked for once if it is missing.
    fn length_to(&mut self, closing: &str, from: usize) -> Option<usize> {
        if self.unclosed.iter().any(|unclosed| unclosed == closing) {
            return None;
        }
        let found = self.text[from..].find(closing);
        if found.is_none() {
            self.unclosed.push(closing.to_owned());
        }
        found
    }

    /// Notes that something opens here whose content has this form.
    fn open(&mut self, form: CallForm) {
        self.opening.get_or_insert(self.at);
        self.wrapper = Some(form);
        self.begins = true;
    }

    fn json_form(&self) -> CallForm {
        match (self.wrapper, self.fence) {
            (Some(form), _) => form,
            (None, Some(_)) => CallForm::FencedJson,
            (None, None) => CallForm::BareJson,
        }
    }

    /// The JSON value at this place.
    fn value(&self, form: CallForm) -> Piece {
        let rest = bounded(self.rest());
        let mut reader = if self.is_unquoted { Reader::unquoted(rest) } else { Reader::lenient(rest) };
        let read = reader.value(0);
        let length = rest.len() - reader.rest.len();
        let why = match read.map(|value| object::calls(value, self.tools)) {
            Ok(Some(calls)) => return Piece::Calls { calls, form, end: self.at + length },
            Ok(None) => return Piece::Text { end: self.at + length },
            Err(why) => why,
        };
        if object::begins_call(rest, self.tools) {
            // The rest of the line is a part of the broken call.
            let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
            let end = self.at + line.find(FENCE).unwrap_or(line.len());
            return Piece::Calls { calls: vec![Err(format!("not valid JSON: {why}"))], form, end };
        }
        // A broken value may fail behind the start of the next one, which it takes for the inside of a text.
        let line = rest[..length].find('\n').unwrap_or(length);
        let brackets = rest.len() - rest.trim_start_matches(['[', '{']).len();
        Piece::Text { end: self.at + line.max(brackets) }
    }

    /// A list of calls, in JSON or Python, or Mistral's control word.
    fn list(&mut self) -> Piece {
        let rest = self.rest();
        if let Some(body) = rest.strip_prefix(mistral::OPEN) {
            self.opening.get_or_insert(self.at);
            self.is_marked = true;
            self.at = self.text.len() - body.trim_start().len();
            return self.mistral();
        }
        if rest[1..].trim_start().starts_with(['{', '[']) {
            return self.value(self.json_form());
        }
        statement::list(self).unwrap_or(Piece::Text { end: self.at + 1 })
    }

    /// What follows `[TOOL_CALLS]`: JSON, or `name[ARGS]{…}` with an optional id.
    fn mistral(&self) -> Piece {
        let form = CallForm::OtherTemplate;
        if self.rest().starts_with(['[', '{']) {
            return attempted(self.value(form), form);
        }
        let mut reader = Reader::lenient(bounded(self.rest()));
        let whole = reader.rest.len();
        let name = reader.word(is_name);
        if reader.take("[CALL_ID]") {
            reader.word(|c| c.is_ascii_alphanumeric());
        }
        reader.take("[ARGS]");
        let call = object::followed(name, &mut reader, self.tools);
        Piece::Calls { calls: vec![call], form, end: self.at + whole - reader.rest.len() }
    }
}

/// A piece that must be calls, because what stands before it says so.
fn attempted(piece: Piece, form: CallForm) -> Piece {
    match piece {
        Piece::Text { end } | Piece::Separator { end, .. } => {
            Piece::Calls { calls: vec![Err("this is not a call of an offered tool".into())], form, end }
        }
        calls @ Piece::Calls { .. } => calls,
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || "_.-".contains(c)
}

/// The first [`LONGEST`] bytes of a text.
fn bounded(text: &str) -> &str {
    first(LONGEST, text)
}

/// The first bytes of a text, at most so many.
fn first(most: usize, text: &str) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
