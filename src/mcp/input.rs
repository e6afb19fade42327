//! What a server of MCP 2026-07-28 asks for in the result of a call.
//!
//! No input is given: elicitations are declined, and there are no roots. A server that asks nevertheless gets to answer the
//! model, as one of an older revision does.

use rmcp::model::InputResponses;
use serde_json::{Value, json};

/// Inputs that one result may ask for.
const INPUTS: usize = 100;

/// The answers to a result that asks for input. `None` if it does not, or asks for what cannot be declined (sampling).
pub(super) fn refusals(result: &Value) -> Option<InputResponses> {
    if result.get("resultType").and_then(Value::as_str) != Some("input_required") {
        return None;
    }
    let requests = match result.get("inputRequests") {
        None | Some(Value::Null) => return result.get("requestState").map(|_| InputResponses::new()),
        Some(requests) => requests.as_object().filter(|requests| requests.len() <= INPUTS)?,
    };
    let refusal = |(key, request): (&String, &Value)| {
        let answer = match request.get("method").and_then(Value::as_str)? {
            "elicitation/create" => json!({"action": "decline"}),
            "roots/list" => json!({"roots": []}),
            _ => return None,
        };
        Some((key.clone(), answer))
    };
    requests.iter().map(refusal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_declined_is_declined() {
        let check = |result: Value, expected: Option<Value>| {
            let found = refusals(&result).map(|answers| json!(answers));
            assert_eq!(found, expected, "{result}");
        };
        let elicitation = json!({"method": "elicitation/create", "params": {"message": "password?"}});
        let roots = json!({"method": "roots/list"});
        let sampling = json!({"method": "sampling/createMessage", "params": {}});
        let asks = |requests: Value| json!({"resultType": "input_required", "inputRequests": requests});
        check(json!({"content": []}), None);
        check(
            asks(json!({"a": elicitation, "b": roots})),
            Some(json!({"a": {"action": "decline"}, "b": {"roots": []}})),
        );
        check(asks(json!({"a": elicitation, "b": sampling})), None);
        check(asks(json!(["a"])), None);
        check(json!({"resultType": "input_required", "requestState": "s"}), Some(json!({})));
        check(json!({"resultType": "input_required"}), None);
    }
}
