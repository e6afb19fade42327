//! What a server gets when it asks for input: in a request of its own, or since MCP 2026-07-28 in the result of
//! a call, of `resources/read` or of `prompts/get`.
//!
//! Without settings no input is given: elicitations are declined, sampling is an error, and there are no roots. A server that
//! asks nevertheless gets to answer the model.

#![expect(deprecated, reason = "servers of the revisions before 2026-07-28 may ask for samples")]

use rmcp::model::{
    ClientCapabilities, CreateMessageResult, ElicitResult, ElicitationAction, ElicitationCapability,
    FormElicitationCapability, InputResponses, SamplingCapability, SamplingMessage,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Inputs that one result may ask for.
const INPUTS: usize = 100;
/// The name of the model that a fixed reply is from.
const MODEL: &str = "fixed-reply";

/// Fixed answers to a server that asks for input.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// Values of the fields of a form; another field gets its default. A form with a required field that has neither is
    /// declined, and so is every form if this is `None`.
    pub elicitation: Option<Map<String, Value>>,
    /// The text that every sampling request is answered with. They are refused if this is `None`.
    pub sampling: Option<String>,
}

impl Inputs {
    /// What the client declares to answer.
    pub(super) fn capabilities(&self) -> ClientCapabilities {
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = self
            .elicitation
            .as_ref()
            .map(|_| ElicitationCapability::new().with_form(FormElicitationCapability::default()));
        capabilities.sampling = self.sampling.as_ref().map(|_| SamplingCapability::default());
        capabilities
    }

    /// The answer to an elicitation with these parameters. Only forms are filled in: an address is not opened.
    pub(super) fn elicited(&self, params: &Value) -> ElicitResult {
        let is_form = params.get("mode").is_none_or(|mode| mode == "form");
        match self.form(&params["requestedSchema"]).filter(|_| is_form) {
            Some(content) => ElicitResult::new(ElicitationAction::Accept).with_content(content.into()),
            None => ElicitResult::new(ElicitationAction::Decline),
        }
    }

    pub(super) fn sampled(&self) -> Option<CreateMessageResult> {
        let text = self.sampling.as_ref()?;
        let message = SamplingMessage::assistant_text(text.clone());
        let reply = CreateMessageResult::new(message, MODEL.to_owned());
        Some(reply.with_stop_reason(CreateMessageResult::STOP_REASON_END_TURN))
    }

    /// The values of a form; `None` if it is declined, or is none.
    fn form(&self, schema: &Value) -> Option<Map<String, Value>> {
        let fixed = self.elicitation.as_ref()?;
        let fields = schema.get("properties")?.as_object()?;
        let mut values = Map::new();
        for (name, field) in fields {
            if let Some(value) = fixed.get(name).or_else(|| field.get("default")) {
                values.insert(name.clone(), value.clone());
            }
        }
        let required = schema.get("required").and_then(Value::as_array);
        let is_given = |name: &Value| name.as_str().is_some_and(|name| values.contains_key(name));
        required.into_iter().flatten().all(is_given).then_some(values)
    }

    /// The answers to a result that asks for input. `None` if it does not, or asks for what cannot be declined (sampling).
    pub(super) fn answers(&self, result: &Value) -> Option<InputResponses> {
        if result.get("resultType").and_then(Value::as_str) != Some("input_required") {
            return None;
        }
        let requests = match result.get("inputRequests") {
            None | Some(Value::Null) => return result.get("requestState").map(|_| InputResponses::new()),
            Some(requests) => requests.as_object().filter(|requests| requests.len() <= INPUTS)?,
        };
        let answer = |(key, request): (&String, &Value)| {
            let answer = match request.get("method").and_then(Value::as_str)? {
                "elicitation/create" => serde_json::to_value(self.elicited(&request["params"])).ok()?,
                "sampling/createMessage" => serde_json::to_value(self.sampled()?).ok()?,
                "roots/list" => json!({"roots": []}),
                _ => return None,
            };
            Some((key.clone(), answer))
        };
        requests.iter().map(answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_declined_is_declined() {
        let check = |result: Value, expected: Option<Value>| {
            let found = Inputs::default().answers(&result).map(|answers| json!(answers));
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

    #[test]
    fn fixed_answers_are_given_where_they_are_set() {
        let fixed = json!({"city": "Rome"}).as_object().unwrap().clone();
        let inputs = Inputs { elicitation: Some(fixed), sampling: Some("a reply".into()) };
        let schema = |required: Value| {
            let properties =
                json!({"city": {"type": "string"}, "days": {"type": "integer", "default": 3}, "note": {}});
            json!({"type": "object", "properties": properties, "required": required})
        };
        let values = json!({"city": "Rome", "days": 3});
        assert_eq!(inputs.form(&schema(json!(["city"]))), values.as_object().cloned());
        assert_eq!(inputs.form(&schema(json!(["note"]))), None, "no value for a required field");
        assert_eq!(Inputs::default().form(&schema(json!([]))), None);
        let requests = json!({
            "a": {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema(json!(["days"]))}},
            "b": {"method": "sampling/createMessage", "params": {}},
            "c": {"method": "elicitation/create", "params": {"message": "?", "mode": "url", "url": "https://a.b/"}},
        });
        let answers = inputs.answers(&json!({"resultType": "input_required", "inputRequests": requests}));
        let answers = serde_json::to_value(answers.unwrap()).unwrap();
        assert_eq!(answers["a"], json!({"action": "accept", "content": values}));
        assert_eq!(answers["c"], json!({"action": "decline"}), "an address is not opened");
        assert_eq!(answers["b"]["content"]["text"], "a reply");
        assert_eq!(answers["b"]["role"], "assistant");
    }
}
