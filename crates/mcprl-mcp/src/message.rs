//! Reads one message of a server, however it is written.
//!
//! rmcp drops what it cannot read, so a call whose answer has a `NaN` would wait until its timeout. Here such an answer
//! becomes one that says what is wrong with it:
//!
//! | message | becomes |
//! |---|---|
//! | a JSON-RPC message | itself |
//! | one with members that are null and so absent (`"error": null`), or without `"jsonrpc"` but with nothing else than its members | that message |
//! | one behind a text that does not end its line | that message |
//! | a handshake with `[]` in place of an object without members, as PHP writes it | that handshake |
//! | a message of more than [`VALUES`] values, or a batch of messages | an error with the code [`UNREADABLE_CODE`] |
//! | a result with a fault ([`json::Fault`]) | that result, marked with [`UNREADABLE`], and so is the item of a list that has the fault |
//! | an error whose code or text has the wrong type | an error with the same text |
//! | anything else with `"jsonrpc"` | an error with the code [`UNREADABLE_CODE`], if it is clear which request it answers |
//! | any other line | nothing: servers print banners and logs |

use rmcp::model::{CustomResult, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage, ServerResult};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::json::{self, Step};

/// Longest message that is read.
const MESSAGE_BYTES: usize = 16 << 20;
/// Most values of one message. A value of three bytes takes a hundred in memory.
const VALUES: usize = 500_000;
/// Member of a result, or of an item of its lists, that could not be read: the reason.
pub(super) const UNREADABLE: &str = "mcprl/unreadable";
/// Code of an error that stands for an unreadable answer. Far from the codes that servers use.
pub(super) const UNREADABLE_CODE: ErrorCode = ErrorCode(i32::MIN);
/// Code of an error that stands for an answer that broke off.
pub(super) const BROKEN_OFF_CODE: ErrorCode = ErrorCode(i32::MIN + 1);
pub(super) const BROKEN_OFF: &str = "the connection ended before the answer";
/// Longest name of a list whose items are marked.
const LIST_NAME_BYTES: usize = 64;
/// How much of a longer message is kept from its beginning and from its end, where its id is.
const HEAD_BYTES: usize = 4096;
const TAIL_BYTES: usize = 256;

/// A message, or why it cannot be read.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one exists at a time")]
pub(super) enum Incoming {
    Message(ServerJsonRpcMessage),
    /// An answer, to this request where it says so.
    Unreadable {
        id: Option<RequestId>,
        reason: String,
    },
    /// Not a message.
    Noise,
}

/// A message as it arrives; of one that is too long, only its beginning and its end.
#[derive(Default)]
pub(super) struct Buffer {
    head: Vec<u8>,
    tail: Vec<u8>,
    is_oversized: bool,
}

impl Buffer {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if !self.is_oversized && self.head.len() + bytes.len() <= MESSAGE_BYTES {
            self.head.extend_from_slice(bytes);
            return;
        }
        if !self.is_oversized {
            self.is_oversized = true;
            self.head.extend_from_slice(&bytes[..bytes.len().min(HEAD_BYTES)]);
            self.head.truncate(HEAD_BYTES);
            self.head.shrink_to_fit();
        }
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]);
        let surplus = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..surplus);
    }

    /// Appends a line of a longer message, without its first bytes.
    pub(super) fn append(&mut self, line: &Self, without: usize) {
        self.push(line.head.get(without..).unwrap_or_default());
        self.is_oversized |= line.is_oversized;
        self.push(&line.tail);
    }

    /// The bytes, or the first of them if there are too many.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.head
    }

    /// Whether a message ends in its middle.
    pub(super) fn is_cut_off(&self) -> bool {
        !self.is_oversized && matches!(json::parse(&self.head), Err(broken) if broken.reason == json::ENDS)
    }

    pub(super) fn read(&self) -> Incoming {
        match self.is_oversized {
            true => {
                read_ends(&self.head, &self.tail, format!("it is longer than {} MiB", MESSAGE_BYTES >> 20))
            }
            false => read(&self.head),
        }
    }
}

fn read(text: &[u8]) -> Incoming {
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text).trim_ascii();
    if text.is_empty() {
        return Incoming::Noise;
    }
    if has_more_values(text, VALUES) {
        return read_ends(text, text, format!("it has more than {VALUES} values"));
    }
    // One with both is read as an error or a result below.
    let has = |member: &[u8]| memchr::memmem::find(text, member).is_some();
    let may_have_both = has(b"\"result\"") && has(b"\"error\"");
    if !may_have_both
        && !json::has_long_number(text)
        && let Ok(message) = serde_json::from_slice(text)
    {
        return Incoming::Message(with_handshake(message));
    }
    // A log without a line end stands before it.
    if !text.starts_with(b"{")
        && let Some(at) = memchr::memmem::find(text, b"{\"jsonrpc\"")
        && let Ok(message) = serde_json::from_slice(&text[at..])
    {
        return Incoming::Message(with_handshake(message));
    }
    let is_message = is_message(text, &[]);
    match json::parse(text) {
        Ok((Value::Object(mut members), faults)) => {
            let is_message = is_message || is_bare(&members);
            if is_message && faults.is_empty() {
                without_nulls(&mut members);
                let message = Value::Object(members);
                if let Ok(message) = ServerJsonRpcMessage::deserialize(&message) {
                    return Incoming::Message(with_handshake(message));
                }
                let Value::Object(whole) = message else { return Incoming::Noise };
                members = whole;
            }
            answer(members, &faults, is_message)
        }
        Err(broken) if is_message => Incoming::Unreadable {
            id: broken.read.get("id").and_then(request_id).or_else(|| id_at_end(text)),
            reason: format!("it is not JSON: {} at byte {}", broken.reason, broken.at),
        },
        Ok((Value::Array(messages), _))
            if messages.iter().any(|message| message.get("jsonrpc").is_some()) =>
        {
            let id = messages.iter().find_map(|message| message.get("id").and_then(request_id));
            Incoming::Unreadable { id, reason: "it is a batch of messages, which MCP does not have".into() }
        }
        Ok(_) | Err(_) => Incoming::Noise,
    }
}

/// Whether a text with this beginning and end is meant as a message.
fn is_message(head: &[u8], tail: &[u8]) -> bool {
    let has_version = |text| memchr::memmem::find(text, b"\"jsonrpc\"").is_some();
    head.trim_ascii_start().starts_with(b"{") && (has_version(head) || has_version(tail))
}

/// Whether this is a message that lacks its `"jsonrpc"` alone. Logs have other members.
fn is_bare(members: &Map<String, Value>) -> bool {
    let has_only = |names: &[&str]| members.keys().all(|name| names.contains(&name.as_str()));
    let is_method = |method: &Value| method.as_str().is_some_and(|name| name == "ping" || name.contains('/'));
    let is_answer = has_only(&["id", "result", "error"])
        && members.contains_key("id")
        && (members.contains_key("result") || members.contains_key("error"));
    is_answer || has_only(&["id", "method", "params"]) && members.get("method").is_some_and(is_method)
}

/// Leaves out members that are null, and so absent, and of a result and an error the one that has nothing in it. A result may be
/// null or empty.
fn without_nulls(members: &mut Map<String, Value>) {
    members.entry("jsonrpc").or_insert_with(|| "2.0".into());
    members.retain(|name, value| !value.is_null() || name == "id" || name == "result");
    if let [Some(result), Some(error)] = ["result", "error"].map(|name| members.get(name)) {
        let empty = [(error, "error"), (result, "result")].into_iter().find(|(value, _)| is_empty(value));
        if let Some((_, name)) = empty {
            members.shift_remove(name);
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

/// The message, whose result is that of a handshake if it is one but for nulls and empty lists.
fn with_handshake(mut message: ServerJsonRpcMessage) -> ServerJsonRpcMessage {
    if let ServerJsonRpcMessage::Response(response) = &mut message
        && let ServerResult::CustomResult(custom) = &response.result
        && custom.0.get("protocolVersion").is_some_and(Value::is_string)
        && custom.0.get("content").is_none()
        && let Value::Object(mut members) = custom.0.clone()
    {
        members.retain(|_, value| !value.is_null());
        // What it does not say, its lists show.
        members.entry("capabilities").or_insert_with(|| json!({"tools": {}}));
        members.entry("serverInfo").or_insert_with(|| json!({}));
        for name in ["capabilities", "serverInfo", "_meta"] {
            if let Some(value) = members.get_mut(name) {
                as_objects(value);
            }
        }
        if let Some(Value::Object(server)) = members.get_mut("serverInfo") {
            for name in ["name", "version"] {
                let text = match server.get(name) {
                    Some(Value::String(text)) => text.clone(),
                    Some(Value::Number(number)) => number.to_string(),
                    _ => String::new(),
                };
                server.insert(name.into(), text.into());
            }
        }
        if let Ok(result) = serde_json::from_value::<ServerResult>(Value::Object(members)) {
            response.result = result;
        }
    }
    message
}

/// Makes objects of empty lists, and leaves out nulls.
fn as_objects(value: &mut Value) {
    match value {
        Value::Array(items) if items.is_empty() => *value = Map::new().into(),
        Value::Object(members) => {
            members.retain(|_, value| !value.is_null());
            members.values_mut().for_each(as_objects);
        }
        _ => {}
    }
}

/// An answer of which only the id is read, at its beginning or end.
fn read_ends(head: &[u8], tail: &[u8], reason: String) -> Incoming {
    if !is_message(head, tail) {
        return Incoming::Noise;
    }
    let head = &head[..head.len().min(HEAD_BYTES)];
    let of_head = match json::parse(head.trim_ascii_start()) {
        Err(broken) => broken.read.get("id").and_then(request_id),
        Ok(_) => None,
    };
    Incoming::Unreadable { id: of_head.or_else(|| id_at_end(tail)), reason }
}

/// Whether there are more values than `limit`, by the commas and brackets outside of texts.
fn has_more_values(text: &[u8], limit: usize) -> bool {
    if text.len() <= limit {
        return false;
    }
    let (mut values, mut in_text, mut is_escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_text,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values > limit
}

/// The answer to a request that cannot be read.
pub(super) fn unreadable(id: RequestId, reason: &str) -> ServerJsonRpcMessage {
    let text = format!("the server's answer cannot be read: {reason}");
    ServerJsonRpcMessage::error(ErrorData::new(UNREADABLE_CODE, text, None), Some(id))
}

/// In place of an answer whose connection ended first.
pub(super) fn broken_off(id: RequestId) -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::error(ErrorData::new(BROKEN_OFF_CODE, BROKEN_OFF, None), Some(id))
}

/// Whether an error is the client's own, not the server's.
pub(super) fn is_own(error: &ErrorData) -> bool {
    matches!(error.code, UNREADABLE_CODE | BROKEN_OFF_CODE)
}

fn answer(mut members: Map<String, Value>, faults: &[json::Fault], is_message: bool) -> Incoming {
    let id = members.get("id").and_then(request_id);
    if members.contains_key("method") || !is_message {
        return Incoming::Noise;
    }
    match (members.remove("result"), members.remove("error"), id) {
        (Some(mut result), None, Some(id)) => {
            mark(&mut result, faults);
            let result = ServerResult::CustomResult(CustomResult::new(result));
            Incoming::Message(ServerJsonRpcMessage::response(result, id))
        }
        (None, Some(error), id) => {
            let code = error.get("code").and_then(Value::as_i64).and_then(|code| code.try_into().ok());
            let text = match error.get("message").unwrap_or(&error) {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let error = ErrorData::new(code.map_or(ErrorCode::INTERNAL_ERROR, ErrorCode), text, None);
            Incoming::Message(ServerJsonRpcMessage::error(error, id))
        }
        (Some(_), Some(_), id) => Incoming::Unreadable { id, reason: "it has a result and an error".into() },
        (_, None, id) => {
            let lacks = if id.is_none() { "an id" } else { "a result" };
            Incoming::Unreadable { id, reason: format!("it is a JSON-RPC message without {lacks}") }
        }
    }
}

/// Marks the result that has the first fault, and every item of its lists that has one.
fn mark(result: &mut Value, faults: &[json::Fault]) {
    for fault in faults {
        let [Step::Key(outer), inner @ ..] = fault.path.as_slice() else { continue };
        if &**outer != "result" {
            continue;
        }
        let reason = || Value::from(fault.reason.clone());
        if let [Step::Key(list), Step::Index(index), ..] = inner
            && list.len() <= LIST_NAME_BYTES
            && let Some(Value::Object(item)) = result.get_mut(&**list).and_then(|list| list.get_mut(index))
        {
            item.entry(UNREADABLE).or_insert_with(reason);
        }
        if !result.is_object() {
            *result = Map::new().into();
        }
        if let Value::Object(members) = result {
            members.entry(UNREADABLE).or_insert_with(reason);
        }
    }
}

fn request_id(id: &Value) -> Option<RequestId> {
    serde_json::from_value(id.clone()).ok()
}

/// The id behind the last `"id":`, which some servers write at the end. A whole number only: those are ours.
fn id_at_end(text: &[u8]) -> Option<RequestId> {
    let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL_BYTES)..]).into_owned();
    let (_, id) = tail.rsplit_once("\"id\"")?;
    let id = id.trim_start().strip_prefix(':')?.trim_start();
    let digits = id.find(|letter: char| !letter.is_ascii_digit()).map_or(id, |end| &id[..end]);
    digits.parse().ok().map(RequestId::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `id result`, `id error text (code)`, `id? reason` or `-`.
    fn shown(incoming: Incoming) -> String {
        let id = |id: Option<&RequestId>| id.map_or("?".to_owned(), ToString::to_string);
        match incoming {
            Incoming::Message(ServerJsonRpcMessage::Response(response)) => {
                format!("{} {}", response.id, serde_json::to_value(&response.result).unwrap())
            }
            Incoming::Message(ServerJsonRpcMessage::Error(error)) => {
                format!("{} error {} ({})", id(error.id.as_ref()), error.error.message, error.error.code.0)
            }
            Incoming::Message(other) => format!("{other:?}"),
            Incoming::Unreadable { id: of, reason } => format!("{} unreadable: {reason}", id(of.as_ref())),
            Incoming::Noise => "-".into(),
        }
    }

    #[test]
    fn an_answer_that_cannot_be_read_says_why_and_which_request_it_answers() {
        for (line, expected) in [
            (
                r#"{"jsonrpc":"2.0","id":3,"result":{"content":[{"x":NaN}]}}"#,
                r#"3 {"content":[{"x":null,"mcprl/unreadable":"it has `NaN`"}],"mcprl/unreadable":"it has `NaN`"}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":3,"result":1e999}"#,
                r#"3 {"mcprl/unreadable":"it has a number out of range, `1e999`"}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":3,"error":{"code":"E_NO","message":"no such city"}}"#,
                "3 error no such city (-32603)",
            ),
            (r#"{"jsonrpc":"2.0","id":3,"error":"no such city"}"#, "3 error no such city (-32603)"),
            (
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":"E","message":"what?"}}"#,
                "? error what? (-32603)",
            ),
            (
                r#"{"jsonrpc":"2.0","id":3,"result":{"content":["#,
                "3 unreadable: it is not JSON: it ends in the middle at byte 45",
            ),
            (
                r#"{"result":{content:[]},"jsonrpc":"2.0","id": 3}"#,
                "3 unreadable: it is not JSON: a key without quotes at byte 11",
            ),
            (r#"{"jsonrpc":"2.0","id":3}"#, "3 unreadable: it is a JSON-RPC message without a result"),
            (
                r#"[{"jsonrpc":"2.0","id":3,"result":{}}]"#,
                "3 unreadable: it is a batch of messages, which MCP does not have",
            ),
            (r#"{"jsonrpc":"2.0","result":{}}"#, "? unreadable: it is a JSON-RPC message without an id"),
        ] {
            assert_eq!(shown(read(line.as_bytes())), expected, "{line}");
        }
    }

    #[test]
    fn null_is_absent_and_an_empty_list_is_an_object_without_members() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":3,"result":{"a":1},"error":null}"#, r#"3 {"a":1}"#),
            (
                r#"{"jsonrpc":"2.0","id":3,"result":null,"error":{"code":-32000,"message":"site is down","data":null}}"#,
                "3 error site is down (-32000)",
            ),
            (
                r#"{"jsonrpc":"2.0","id":3,"result":{},"error":{"code":-32000,"message":"site is down"}}"#,
                "3 error site is down (-32000)",
            ),
            (r#"{"jsonrpc":"2.0","id":3,"result":{"a":1},"error":[]}"#, r#"3 {"a":1}"#),
            (r#"{"jsonrpc":"2.0","id":3,"result":{},"error":{}}"#, "3 {}"),
            (
                r#"{"jsonrpc":"2.0","id":3,"result":{"error":"a","result":1}}"#,
                r#"3 {"error":"a","result":1}"#,
            ),
            (r#"{"id":3,"result":{"a":1}}"#, r#"3 {"a":1}"#),
            (r#"Loading… {"jsonrpc":"2.0","id":3,"result":{"a":1}}"#, r#"3 {"a":1}"#),
            (r#"{"id":3,"result":{"a":1},"level":"info"}"#, "-"),
            (r#"{"jsonrpc":"2.0","id":3,"method":null,"result":{"a":1}}"#, r#"3 {"a":1}"#),
        ] {
            assert_eq!(shown(read(line.as_bytes())), expected, "{line}");
        }
        for (capabilities, server) in [
            (r#"{"tools":[],"logging":[],"experimental":[]}"#, r#"{"name":"a","version":"1"}"#),
            (
                r#"{"tools":{"listChanged":null},"logging":null,"prompts":null}"#,
                r#"{"name":"a","title":null,"version":1}"#,
            ),
            ("[]", r#"{"name":"a"}"#),
            ("null", "null"),
            ("{}", "[]"),
        ] {
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":3,"result":{{"protocolVersion":"2025-06-18","capabilities":{capabilities},"serverInfo":{server},"instructions":null,"_meta":[]}},"error":null}}"#
            );
            let Incoming::Message(ServerJsonRpcMessage::Response(response)) = read(line.as_bytes()) else {
                panic!("{line}");
            };
            assert!(matches!(response.result, ServerResult::InitializeResult(_)), "{line}: {response:?}");
        }
        let bare = r#"{"jsonrpc":"2.0","id":3,"result":{"protocolVersion":"2025-06-18"}}"#;
        let Incoming::Message(ServerJsonRpcMessage::Response(response)) = read(bare.as_bytes()) else {
            panic!("{bare}");
        };
        let ServerResult::InitializeResult(result) = response.result else { panic!("{bare}") };
        assert!(result.capabilities.tools.is_some(), "its tools are listed");
    }

    #[test]
    fn the_model_reads_the_digits_that_the_server_wrote() {
        let digits = r#"{"id":123456789012345678901234567890,"pi":[-3.14159265358979323846,1.5],"t":"1234567890123456789012"}"#;
        for (result, expected) in [
            (format!(r#"{{"content":[],"structuredContent":{digits}}}"#), digits.to_owned()),
            (format!(r#"{{"rows":{digits}}}"#), format!(r#"{{"rows":{digits}}}"#)),
            (format!(r#"{{"content":[{{"type":"json","json":{digits}}}]}}"#), digits.to_owned()),
            (
                r#"{"content":[{"type":"text","text":98765432109876543210987}]}"#.to_owned(),
                "98765432109876543210987".to_owned(),
            ),
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":3,"result":{result}}}"#);
            let Incoming::Message(ServerJsonRpcMessage::Response(response)) = read(line.as_bytes()) else {
                panic!("{line}");
            };
            let value = serde_json::to_value(response.result).unwrap();
            assert_eq!(crate::outcome::of_result(&value), (expected, false), "{line}");
        }
        let tools = r#"{"jsonrpc":"2.0","id":3,"result":{"tools":[{"name":"t","inputSchema":{"maximum":123456789012345678901234}}]}}"#;
        assert!(!shown(read(tools.as_bytes())).contains("mcprl/number"), "a schema has numbers");
    }

    #[test]
    fn values_outside_of_texts_are_counted() {
        for (text, values) in [(r#"{"a,[":["x\"",1,"{"]}"#, 4), ("[[],[],[]]", 6)] {
            assert!(has_more_values(text.as_bytes(), values - 1), "{text}");
            assert!(!has_more_values(text.as_bytes(), values), "{text}");
        }
        let many = format!(r#"{{"jsonrpc":"2.0","result":[{}1],"id":3}}"#, "1,".repeat(VALUES));
        assert_eq!(shown(read(many.as_bytes())), "3 unreadable: it has more than 500000 values");
    }

    #[test]
    fn what_is_no_message_is_ignored_however_long_it_is() {
        let mut noise = Buffer::default();
        noise.push(&vec![b'{'; MESSAGE_BYTES + 1]);
        assert_eq!(shown(noise.read()), "-");
    }

    #[test]
    fn what_is_no_message_is_ignored() {
        for line in ["", "Loading…", r#"{"level":"info"}"#, "[1,2]", "{oops", r#"{"x":NaN}"#] {
            assert_eq!(shown(read(line.as_bytes())), "-", "{line}");
        }
    }

    #[test]
    fn the_id_of_a_message_that_is_too_long_is_at_either_end() {
        let read_oversized = |head: &[u8], tail: &[u8]| {
            Buffer { head: head.to_vec(), tail: tail.to_vec(), is_oversized: true }.read()
        };
        let long = "x".repeat(2000);
        let head = format!(r#"{{"jsonrpc":"2.0","id":4,"result":{{"text":"{long}"#);
        let expected = "4 unreadable: it is longer than 16 MiB";
        assert_eq!(shown(read_oversized(head.as_bytes(), b"xxx\"}}")), expected);
        let head = format!(r#"{{"result":{{"text":"{long}"#);
        assert_eq!(shown(read_oversized(head.as_bytes(), br#"xx"},"jsonrpc":"2.0","id":4}"#)), expected);
        let neither = shown(read_oversized(head.as_bytes(), br#"xx"},"jsonrpc":"2.0"}"#));
        assert_eq!(neither, "? unreadable: it is longer than 16 MiB");
        assert_eq!(shown(read_oversized(head.as_bytes(), b"xx")), "-");
    }
}
