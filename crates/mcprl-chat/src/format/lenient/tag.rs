//! Calls in tags: around JSON, with the tool's name in the tag, or with a tag for each argument.

use serde_json::{Map, Value};

use super::{Call, FENCE, Piece, Scanner, Schemas, attempted, bounded, is_name, object, statement};
use crate::{
    CallForm,
    format::xml::{typed, without_breaks},
    literal::{Reader, once},
};

/// Tags in which nothing but a call belongs.
const CALL_TAGS: [&str; 8] = [
    "tool_call",
    "tool_calls",
    "toolcall",
    "function_call",
    "function_calls",
    "functioncall",
    "tool_call_start",
    "python_tag",
];
/// Tags that name a tool: `<function=NAME>`, `<invoke name="NAME">`.
const NAMING_TAGS: [&str; 5] = ["function", "invoke", "tool", "tool_call", "call"];
/// Elements that hold a tool's name and, behind it, its arguments: `<name>NAME</name><arguments>…</arguments>`.
const NAME_TAGS: [&str; 3] = ["name", "tool_name", "function_name"];
const ARGUMENT_TAGS: [&str; 5] = ["arguments", "args", "parameters", "params", "input"];
/// Longest tag, in bytes.
const LONGEST: usize = 1024;

struct Tag<'a> {
    name: &'a str,
    /// What follows the name: `=NAME`, or attributes.
    rest: &'a str,
    closes: bool,
    is_empty: bool,
    len: usize,
}

impl<'a> Tag<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let body = text.strip_prefix('<')?;
        let end = body.bytes().take(LONGEST).position(|byte| byte == b'>')?;
        let inner = &body[..end];
        let closes = inner.starts_with(['/', '|']) && inner.trim_start_matches('|').starts_with('/');
        let is_empty = inner.ends_with('/');
        let inner = inner.trim_matches(['/', '|']);
        let name = &inner[..inner.find(|c| !(is_name(c) || c == ':')).unwrap_or(inner.len())];
        let closes = closes || name.ends_with("_end");
        let rest = inner[name.len()..].trim();
        // Text after `<` that is no tag, such as `a < b`.
        (!name.is_empty() && !rest.contains('<')).then_some(Self {
            name,
            rest,
            closes,
            is_empty,
            len: end + 2,
        })
    }

    /// The name in `=NAME` or `name="NAME"`.
    fn named(&self) -> Option<&'a str> {
        let value = self.rest.strip_prefix("name").unwrap_or(self.rest).trim_start().strip_prefix('=')?;
        Some(value.trim().trim_matches(['"', '\'']))
    }
}

/// The tag at this place.
pub fn read(scanner: &mut Scanner<'_>) -> Piece {
    let rest = scanner.rest();
    let Some(tag) = Tag::read(rest) else { return Piece::Text { end: scanner.at + 1 } };
    let end = scanner.at + tag.len;
    if tag.closes {
        (scanner.wrapper, scanner.is_marked) = (None, false);
        return Piece::Separator { end, closes: true };
    }
    if tag.rest.is_empty() && rest[tag.len..].starts_with('`') {
        return Piece::Text { end };
    }
    let form = if rest.starts_with("<|") { CallForm::OtherTemplate } else { CallForm::Tags };
    if let Some(tool) = tag.named().filter(|_| NAMING_TAGS.contains(&tag.name)) {
        scanner.is_marked = true;
        return function(scanner, &tag, tool);
    }
    if scanner.tools.offers(tag.name) {
        return function(scanner, &tag, tag.name);
    }
    if NAME_TAGS.contains(&tag.name)
        && let Some(piece) = named_element(scanner, &tag, false)
    {
        return piece;
    }
    if CALL_TAGS.contains(&tag.name) {
        scanner.open(form);
        scanner.is_marked = true;
        scanner.at = end;
        return content(scanner, form);
    }
    // Any other tag around JSON or a further tag.
    if tag.rest.is_empty() && rest[tag.len..].trim_start().starts_with(['{', '[', '<', '`']) {
        scanner.open(form);
        return Piece::Separator { end, closes: false };
    }
    Piece::Text { end }
}

/// A call whose tool is named in an element of its own. Unless it stands in a call's tag (`is_call`), its arguments must follow:
/// it may be the name of something else.
fn named_element(scanner: &Scanner<'_>, tag: &Tag<'_>, is_call: bool) -> Option<Piece> {
    let body = bounded(&scanner.text[scanner.at + tag.len..]);
    let (name, rest) = body.split_once("</")?;
    let tool = name.trim();
    if !scanner.tools.offers(tool) {
        return None;
    }
    let rest = rest.split_once('>')?.1.trim_start();
    let piece = |call: Call, rest: &str| Piece::Calls {
        calls: vec![call],
        form: CallForm::Xml,
        end: scanner.at + tag.len + body.len() - rest.len(),
    };
    let Some(element) = Tag::read(rest).filter(|tag| !tag.closes && ARGUMENT_TAGS.contains(&tag.name)) else {
        return is_call.then(|| piece(object::named(tool, None, scanner.tools), rest));
    };
    let mut reader = Reader::lenient(rest[element.len..].trim_start());
    let call = if reader.rest.starts_with('{') {
        object::followed(tool, &mut reader, scanner.tools)
    } else {
        elements(&mut reader, false, tool, scanner.tools)
    };
    Some(piece(call, reader.rest))
}

/// What a tag contains in which only calls belong.
fn content(scanner: &mut Scanner<'_>, form: CallForm) -> Piece {
    let skip_space = |scanner: &mut Scanner<'_>| {
        let rest = scanner.rest();
        scanner.at += rest.len() - rest.trim_start().len();
    };
    skip_space(scanner);
    if scanner.rest().starts_with(FENCE)
        && let Piece::Separator { end, .. } = scanner.fence()
    {
        scanner.at = end;
        skip_space(scanner);
    }
    let rest = scanner.rest();
    match rest.chars().next() {
        Some('{') => attempted(scanner.value(form), form),
        Some('[') => attempted(scanner.list(), form),
        Some('<') if !rest.starts_with("</") => {
            let name = Tag::read(rest).filter(|tag| NAME_TAGS.contains(&tag.name));
            let call = name.and_then(|tag| named_element(scanner, &tag, true));
            call.unwrap_or(Piece::Separator { end: scanner.at, closes: false })
        }
        _ => {
            if let Some(piece) = statement::read(scanner) {
                return piece;
            }
            // The tool's name, alone or before its arguments.
            let mut reader = Reader::lenient(bounded(rest));
            let whole = reader.rest.len();
            let name = reader.word(is_name);
            reader.take(":");
            reader.take("");
            let call = match reader.rest.starts_with('{') {
                true => object::followed(name, &mut reader, scanner.tools),
                false => object::named(name, None, scanner.tools),
            };
            let call = if name.is_empty() { Err("incomplete: no call follows the tag".into()) } else { call };
            Piece::Calls { calls: vec![call], form, end: scanner.at + whole - reader.rest.len() }
        }
    }
}

/// A tag that names a tool, and its arguments.
fn function(scanner: &mut Scanner<'_>, tag: &Tag<'_>, tool: &str) -> Piece {
    let inner = scanner.at + tag.len;
    let one = |call: Call, form: CallForm, end: usize| Piece::Calls { calls: vec![call], form, end };
    if tag.is_empty || tag.name == tool && !tag.rest.is_empty() {
        return one(attributes(tag, tool, scanner.tools), CallForm::Xml, inner);
    }
    let body = bounded(&scanner.text[inner..]);
    let mut reader = Reader::lenient(body.trim_start());
    if reader.rest.starts_with('{') {
        let call = object::followed(tool, &mut reader, scanner.tools);
        return one(call, CallForm::Tags, inner + body.len() - reader.rest.len());
    }
    let closing = format!("</{}>", tag.name);
    if let Some(length) = scanner.length_to(&closing, inner) {
        let end = inner + length + closing.len();
        let call = match &scanner.text[inner..inner + length] {
            body if body.len() > super::LONGEST => Err(format!("longer than {} bytes", super::LONGEST)),
            body => elements(&mut Reader::lenient(body), true, tool, scanner.tools),
        };
        return one(call, CallForm::Xml, end);
    }
    // The closing tag is missing, or the tag is only mentioned.
    let next = Tag::read(reader.rest);
    if tag.name == tool && !reader.rest.is_empty() && next.is_none_or(|next| next.closes) {
        return Piece::Text { end: inner };
    }
    let call = elements(&mut reader, false, tool, scanner.tools);
    let left = if call.is_ok() { reader.rest.len() } else { 0 };
    one(call, CallForm::Xml, inner + body.len() - left)
}

/// Arguments as attributes of the tool's own tag.
fn attributes(tag: &Tag<'_>, tool: &str, tools: &Schemas) -> Call {
    let mut reader = Reader::lenient(if tag.name == tool { tag.rest } else { "" });
    let mut arguments = Map::new();
    while !reader.rest.is_empty() {
        let name = reader.word(is_name);
        if name.is_empty() || !reader.take("=") {
            return Err(format!("an argument of {tool} is not written as name=\"value\""));
        }
        let value = match reader.value(0)? {
            Value::String(text) => typed(&text, tools, tool, name),
            value => value,
        };
        once(&mut arguments, name.to_owned(), value)?;
        reader.take("");
    }
    object::named(tool, Some(arguments.into()), tools)
}

/// Arguments in an element each, or one argument as text. What is read is `closed`, or else ends at some closing tag.
fn elements(reader: &mut Reader<'_>, closed: bool, tool: &str, tools: &Schemas) -> Call {
    let mut arguments = Map::new();
    loop {
        reader.take("");
        let Some(element) = Tag::read(reader.rest) else {
            let text = reader.rest.trim();
            if text.is_empty() || closed && arguments.is_empty() {
                let text = (!text.is_empty()).then(|| text.into());
                return object::named(tool, text.or(Some(arguments.into())), tools);
            }
            return Err(format!("text between the arguments of {tool}"));
        };
        if element.closes {
            return object::named(tool, Some(arguments.into()), tools);
        }
        let parameter = element.named().unwrap_or(element.name);
        let body = &reader.rest[element.len..];
        let closing = format!("</{}>", element.name);
        let Some((text, rest)) = body.split_once(&closing) else {
            return Err(format!("incomplete: the argument {parameter} is not closed with {closing}"));
        };
        reader.rest = rest;
        once(&mut arguments, parameter.to_owned(), typed(without_breaks(text), tools, tool, parameter))?;
    }
}
