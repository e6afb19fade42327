//! Python calls as statements of their own: `list_tables()`, `rows = read_query("SELECT …")`.

use serde_json::Map;

use super::{Call, FENCE, Piece, Scanner, bounded, is_name, object};
use crate::{
    CallForm, ToolCall,
    literal::{Reader, once},
};

/// Words that begin a line with a body.
const BLOCKS: [&str; 12] =
    ["if", "elif", "else", "for", "while", "with", "try", "except", "finally", "async", "def", "class"];

/// The line here, if it belongs to the body of a statement. Whether the body runs is for the program to say.
pub fn body(scanner: &mut Scanner<'_>) -> Option<Piece> {
    /// Longest line that may begin a body, in bytes.
    const LONGEST: usize = 512;
    let before = &scanner.text[..scanner.at];
    let outside = before.trim_end_matches([' ', '\t']);
    let indent = before.len() - outside.len();
    if !outside.is_empty() && !outside.ends_with('\n') {
        return None;
    }
    let rest = scanner.rest();
    if scanner.block.is_some_and(|block| indent > block) {
        return Some(Piece::Text { end: scanner.at + rest.find('\n').unwrap_or(rest.len()) });
    }
    let word = &rest[..rest.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(rest.len())];
    let begins = BLOCKS.contains(&word)
        && super::first(LONGEST, rest)
            .lines()
            .next()
            .is_some_and(|line| line.split('#').next().unwrap_or_default().trim_end().ends_with(':'));
    scanner.block = begins.then_some(indent);
    None
}

/// The call at the start of a line, if one is there.
pub fn read<'a>(scanner: &mut Scanner<'a>) -> Option<Piece> {
    let rest = scanner.rest();
    // Markdown's mark of a quotation, and not Python's prompt.
    if rest.starts_with('>') && !rest.starts_with(">>>") {
        return None;
    }
    let defined = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("def ");
    if let Some(defined) = defined {
        let name = &defined[..defined.find(|c| !is_name(c)).unwrap_or(defined.len())];
        if scanner.tools.offers(name) && !scanner.defined.contains(&name) {
            scanner.defined.push(name);
        }
        return None;
    }
    let mut reader = Reader::lenient(bounded(rest));
    let whole = reader.rest.len();
    // A list's mark, a prompt, or the quote of inline code.
    reader.word(|c| "`>-*. ".contains(c) || c.is_ascii_digit());
    assigned(&mut reader);
    reader.take("await ");
    let is_printed = reader.take("print(");
    let name = called(&mut reader, scanner)?;
    let call = arguments(&mut reader, name, scanner);
    if is_printed {
        reader.take(")");
    }
    // The rest of the line, up to what closes around it.
    let behind = reader.rest;
    let line = &behind[..behind.find('\n').unwrap_or(behind.len())];
    let line = &line[..line.find(FENCE).unwrap_or(line.len())];
    let is_tagged = scanner.wrapper.is_some();
    let line = if is_tagged { line.split('<').next().unwrap_or(line) } else { line };
    let tail = line.trim_matches(|c: char| c.is_whitespace() || "`;.,:".contains(c));
    let end = whole - behind.len() + line.len();
    // Within a sentence a call is only mentioned.
    let is_statement = match &call {
        _ if is_tagged || scanner.fence.is_some() => true,
        Ok(_) => tail.is_empty() || tail.starts_with('#'),
        Err(_) => rest[..end].trim_end().ends_with(')'),
    };
    let form = scanner.wrapper.unwrap_or(CallForm::Python);
    is_statement.then(|| Piece::Calls { calls: vec![call], form, end: scanner.at + end })
}

/// A list of calls, `[f(a=1), g()]`, as some Llama models write it.
pub fn list(scanner: &mut Scanner<'_>) -> Option<Piece> {
    let mut reader = Reader::lenient(bounded(scanner.rest()));
    let whole = reader.rest.len();
    reader.take("[");
    let mut calls = Vec::new();
    loop {
        reader.take("");
        let Some(name) = called(&mut reader, scanner) else {
            if calls.is_empty() {
                return None;
            }
            calls.push(Err("an item of the list is not a call of an offered tool".into()));
            break;
        };
        calls.push(arguments(&mut reader, name, scanner));
        let more = reader.take(",");
        if reader.take("]") {
            break;
        }
        if calls.last().is_some_and(Result::is_err) || !more {
            calls.push(Err("`,` or `]` is missing behind a call".into()));
            break;
        }
    }
    let form = scanner.wrapper.unwrap_or(CallForm::Python);
    Some(Piece::Calls { calls, form, end: scanner.at + whole - reader.rest.len() })
}

/// Takes `name =`, if it is there.
fn assigned(reader: &mut Reader<'_>) {
    let start = reader.rest;
    let name = reader.word(|c| c.is_alphanumeric() || c == '_');
    if name.is_empty() || !reader.take("=") || reader.rest.starts_with('=') {
        reader.rest = start;
    } else {
        reader.take("");
    }
}

/// Takes the name of an offered tool, also behind that of an object, and the parenthesis.
fn called<'a>(reader: &mut Reader<'a>, scanner: &Scanner<'_>) -> Option<&'a str> {
    let path = reader.word(is_name);
    let name = if scanner.tools.offers(path) { path } else { path.rsplit_once('.')?.1 };
    let is_tool = scanner.tools.offers(name) && !scanner.defined.contains(&name);
    (is_tool && reader.rest.starts_with('(') && reader.take("(")).then_some(name)
}

fn arguments(reader: &mut Reader<'_>, name: &str, scanner: &Scanner<'_>) -> Call {
    let (mut values, mut named) = (Vec::new(), Map::new());
    while !reader.take(")") {
        if reader.take("**") {
            reader.unpack(&mut named)?;
        } else {
            let start = reader.rest;
            let parameter = reader.word(is_name);
            if !parameter.is_empty() && reader.take("=") {
                let value = reader.value(0).map_err(|why| format!("{parameter}: {why}"))?;
                once(&mut named, parameter.to_owned(), value)?;
            } else {
                reader.rest = start;
                if !named.is_empty() {
                    return Err(format!("an argument of {name} without a name follows one with a name"));
                }
                values.push(reader.value(0)?);
            }
        }
        if !reader.take(",") && !reader.rest.starts_with(')') {
            return Err(format!("`,` or `)` is missing behind an argument of {name}"));
        }
    }
    let mut arguments = object::positional(name, values, scanner.tools)?;
    named.into_iter().try_for_each(|(parameter, value)| once(&mut arguments, parameter, value))?;
    Ok(ToolCall { name: name.to_owned(), arguments })
}
