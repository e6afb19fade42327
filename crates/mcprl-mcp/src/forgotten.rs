//! Whether an error of a server says that it has forgotten the session.
//!
//! Servers say so by 404, 400, a JSON-RPC error of any code, or a result that is an error, each in words of its own, and some go on to
//! list their tools. Proxies and logins before them answer with 401, 403, 500, a redirect, a page or nothing. So no words are looked for. The server is asked for something that none has, which changes nothing:
//!
//! | in the session | in a new session | so the error is |
//! |---|---|---|
//! | anything but the same error | – | an answer |
//! | the same error | the same error | an answer: everybody gets it |
//! | the same error | anything else | that of a forgotten session |
//! | the same error | none is begun | an answer, if the tools are listed in the session; else that of a forgotten session |
//! | no answer | – | that of a forgotten session, since nothing else is known |
//!
//! A request that changes nothing, such as a list, is asked again itself. What is not seen: a server that answers calls of a session
//! that it has forgotten as if it had begun anew, or with a result that nothing marks as an error (`error_patterns` can).

use std::collections::BTreeSet;

use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ServerJsonRpcMessage, ServerResult};
use serde_json::{Value, json};

use super::{
    message,
    outcome::{is_error, of_result},
    quirks::ErrorPatterns,
};

/// Added to the id of a request for that of the one that finds out: a session may have several at a time. Ours are far below.
const PROBE_ID: i64 = 2_000_000_000;
/// The name of a tool and a prompt that no server has, and the address of such a resource.
const NOTHING: &str = "mcprl_nothing";
const NOWHERE: &str = "mcprl://nothing";

/// An error of a server.
#[derive(Clone)]
pub(super) struct ServerError {
    /// The code or HTTP status; 0 for a result.
    pub(super) code: i32,
    pub(super) text: String,
}

impl ServerError {
    /// `None` if the message is none.
    pub(super) fn of(message: &ServerJsonRpcMessage, patterns: &ErrorPatterns) -> Option<Self> {
        let result = match message {
            ServerJsonRpcMessage::Error(error) if message::is_own(&error.error) => return None,
            ServerJsonRpcMessage::Error(error) => {
                return Some(Self { code: error.error.code.0, text: error.error.message.to_string() });
            }
            ServerJsonRpcMessage::Response(response) => &response.result,
            _ => return None,
        };
        let is_marked = match result {
            ServerResult::CallToolResult(result) => result.is_error == Some(true),
            ServerResult::CustomResult(result) => is_error(&result.0),
            _ => false,
        };
        if !is_marked && patterns.is_empty() {
            return None;
        }
        let (text, is_error) = of_result(&serde_json::to_value(result).ok()?);
        (is_error || patterns.matches(&text)).then_some(Self { code: 0, text })
    }
}

/// Words that requests name, and that an error may have from them.
pub(super) type Names = BTreeSet<String>;

pub(super) fn names<'m>(requests: impl IntoIterator<Item = &'m ClientJsonRpcMessage>) -> Names {
    let mut names = Names::new();
    for request in requests {
        let message = serde_json::to_value(request).unwrap_or_default();
        let params = &message["params"];
        let named = [&params["name"], &params["uri"], &params["arguments"]];
        named.iter().for_each(|value| add_words(value, &mut names));
    }
    names
}

fn add_words(value: &Value, names: &mut Names) {
    match value {
        Value::String(text) => names.extend(words(text)),
        Value::Array(items) => items.iter().for_each(|item| add_words(item, names)),
        Value::Object(members) => members.values().for_each(|member| add_words(member, names)),
        _ => {}
    }
}

/// The words of a text without digits, which numbers and ids have.
fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|letter: char| !letter.is_alphanumeric());
    let is_same = |word: &&str| !word.is_empty() && !word.contains(|letter: char| letter.is_numeric());
    words.filter(is_same).map(str::to_lowercase)
}

/// What an error says, without what it names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ErrorSignature {
    code: i32,
    words: Vec<String>,
}

impl ErrorSignature {
    pub(super) fn new(error: &ServerError, names: &Names) -> Self {
        let words = words(&error.text).filter(|word| !names.contains(word));
        Self { code: error.code, words: words.collect() }
    }
}

/// The request that finds out whether an answer to this one is that of a forgotten session; `None` for one that is none, or begins a
/// session.
pub(super) fn probe(asked: &ClientJsonRpcMessage) -> Option<ClientJsonRpcMessage> {
    let ClientJsonRpcMessage::Request(request) = asked else { return None };
    if matches!(request.request, ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_)) {
        return None;
    }
    let mut message = serde_json::to_value(asked).ok()?;
    message["id"] = (PROBE_ID + message["id"].as_i64().unwrap_or_default()).into();
    match message["method"].as_str()? {
        "tools/call" | "prompts/get" => message["params"] = json!({"name": NOTHING, "arguments": {}}),
        "resources/read" => message["params"] = json!({"uri": NOWHERE}),
        _ => {
            if let Some(params) = message["params"].as_object_mut() {
                params.remove("_meta");
            }
        }
    }
    serde_json::from_value(message).ok()
}

/// A request for the tools, with the id of a probe.
pub(super) fn list(probe: &ClientJsonRpcMessage) -> Option<ClientJsonRpcMessage> {
    let id = &serde_json::to_value(probe).ok()?["id"];
    serde_json::from_value(json!({"jsonrpc": "2.0", "id": id, "method": "tools/list"})).ok()
}

/// Whether a probe asks for something that no server has, and not again for what was asked.
pub(super) fn is_of_nothing(probe: &ClientJsonRpcMessage) -> bool {
    let ClientJsonRpcMessage::Request(request) = probe else { return false };
    matches!(
        request.request,
        ClientRequest::CallToolRequest(_)
            | ClientRequest::GetPromptRequest(_)
            | ClientRequest::ReadResourceRequest(_)
    )
}

/// The messages that begin a session of this revision for a probe, whose id is used once more.
pub(super) fn beginning(probe: &ClientJsonRpcMessage, revision: &str) -> Option<[ClientJsonRpcMessage; 2]> {
    let id = &serde_json::to_value(probe).ok()?["id"];
    let client = json!({"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")});
    let params = json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": client});
    let initialize = json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params});
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    Some([serde_json::from_value(initialize).ok()?, serde_json::from_value(initialized).ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: Value) -> ClientJsonRpcMessage {
        let params = json!({"name": name, "arguments": arguments});
        serde_json::from_value(json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}))
            .unwrap()
    }

    fn error(answer: Value) -> Option<ServerError> {
        let mut message = json!({"jsonrpc": "2.0", "id": 3});
        message.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
        ServerError::of(&serde_json::from_value(message).unwrap(), &ErrorPatterns::default())
    }

    #[test]
    fn an_error_is_the_same_whatever_it_names() {
        let asked = call("t", json!({"names": ["Aurora"]}));
        let names = names([&asked, &probe(&asked).unwrap()]);
        let said = |answer: Value| error(answer).map(|error| ErrorSignature::new(&error, &names));
        let text = |text: &str| json!({"error": {"code": -32000, "message": text}});
        for (first, second, is_same) in [
            ("No session a1b2 for t (Aurora)", "No session c3 for mcprl_nothing ()", true),
            ("Session expired", "session expired.", true),
            ("no such boat: Aurora", "unknown tool mcprl_nothing", false),
        ] {
            assert_eq!(said(text(first)) == said(text(second)), is_same, "{first}");
        }
        let in_band = |is_error: bool| json!({"result": {"content": [{"type": "text", "text": "Session expired"}], "isError": is_error}});
        assert_ne!(said(in_band(true)), said(text("Session expired")));
        assert!(said(in_band(true)).is_some() && said(in_band(false)).is_none());
    }

    #[test]
    fn what_is_asked_changes_nothing() {
        let probe_of = |method: &str, params: Value| {
            let asked = json!({"jsonrpc": "2.0", "id": 3, "method": method, "params": params});
            probe(&serde_json::from_value(asked).unwrap()).map(|probe| serde_json::to_value(probe).unwrap())
        };
        let call =
            probe_of("tools/call", json!({"name": "delete_all", "arguments": {"really": true}})).unwrap();
        assert_eq!((&call["params"]["name"], &call["params"]["arguments"]), (&json!(NOTHING), &json!({})));
        assert_eq!(probe_of("resources/read", json!({"uri": "a:b"})).unwrap()["params"]["uri"], NOWHERE);
        assert_eq!(probe_of("tools/list", json!({"cursor": "2"})).unwrap()["params"]["cursor"], "2");
        let probe = probe(&self::call("t", json!({}))).unwrap();
        assert!(beginning(&probe, "2025-06-18").is_some());
        let start = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}});
        assert_eq!(probe_of("initialize", start), None);
    }
}
