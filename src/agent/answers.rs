//! The answers to the calls of a turn: results of the server, and errors of mcprl.

use serde_json::{Map, Value};

use super::{
    dialogue::{Hooks, LostCall, Refusal, ToolServer, Turned},
    history::History,
    repeats::{self, Repeats},
    settings::AgentSettings,
    toolbox::{Action, Toolbox},
};
use crate::{
    chat::ToolCall,
    data::{CallError, CallResult, Message, Role, result_view},
};

/// Answers the calls of a turn in order, and adds the answers to the history.
pub(super) struct Answers<'a, S, H> {
    pub toolbox: &'a Toolbox,
    pub settings: &'a AgentSettings,
    /// Calls of the conversation that may reach the server.
    pub max_calls: usize,
    pub history: &'a mut History,
    pub server: &'a S,
    pub hooks: &'a mut H,
}

/// What the policy gets for a call.
struct SeenResult {
    text: String,
    error: Option<CallError>,
    /// Size of the whole result if the text is a part of it.
    bytes: Option<u64>,
    /// The arguments that were sent, if they were changed.
    arguments: Option<Map<String, Value>>,
}

impl SeenResult {
    fn error(error: CallError, why: &str) -> Self {
        Self { text: format!("error: {why}"), error: Some(error), bytes: None, arguments: None }
    }
}

impl<S: ToolServer, H: Hooks> Answers<'_, S, H> {
    /// Adds a message for each call. `Err` if one of the calls ends the turn.
    pub async fn calls(
        &mut self,
        calls: Vec<Result<ToolCall, String>>,
        ids: &[String],
    ) -> Result<(), Turned> {
        self.history.parse_failures += u32::from(calls.iter().any(Result::is_err));
        for (call, id) in calls.into_iter().zip(ids) {
            let (name, written) = call
                .as_ref()
                .map_or_else(|_| Default::default(), |call| (call.name.clone(), call.arguments.clone()));
            let SeenResult { text, error, bytes, arguments } = match call {
                Ok(call) => self.call(call).await?,
                Err(why) => {
                    SeenResult::error(CallError::Unparsable, &format!("the tool call is malformed: {why}"))
                }
            };
            let is_own = error.is_some_and(|error| error != CallError::Tool);
            let result = CallResult { call_id: id.clone(), error, bytes, repeats: None, arguments };
            let mut message =
                Message { name: Some(name), result: Some(result), ..Message::new(Role::Tool, text) };
            if self.settings.repeats == Repeats::Tell
                && !is_own
                && repeats::is_repeated(&self.history.messages, &written, &message)
                && let Some(result) = &mut message.result
            {
                result.repeats = Some(bytes.unwrap_or(message.text.len() as u64));
                message.text = repeats::told(&message.text, self.toolbox.completes());
            }
            self.history.messages.push(message);
            self.hooks.answered(&self.history.messages);
        }
        Ok(())
    }

    async fn call(&mut self, call: ToolCall) -> Result<SeenResult, Turned> {
        let (wire_name, arguments) = match self.toolbox.action(&call) {
            Action::Complete { answer } => return Err(Turned::Completed(answer)),
            Action::Refuse(error, why) => return Ok(self.refuse(error, &why)),
            Action::Call { wire_name, arguments } => (wire_name, arguments.into_owned()),
        };
        if self.history.tools.len() >= self.max_calls {
            return Ok(self.refuse(CallError::NoCallsLeft, "no calls are left; complete the task"));
        }
        let mut permitted = arguments.clone();
        if let Err(Refusal(error, why)) = self.hooks.permit(&call.name, &mut permitted, self.history).await {
            return Ok(self.refuse(error, &why));
        }
        if let Some(why) = self.server.refuse(wire_name) {
            return Ok(self.refuse(CallError::NoCallsLeft, &why));
        }
        let changed = (permitted != arguments).then(|| permitted.clone());
        let answered = match self.server.ready(wire_name).await {
            Ok(()) => self.server.call(wire_name, permitted).await,
            Err(cause) => Err(cause),
        };
        let outcome = answered.map_err(|cause| Turned::Lost(LostCall { call: call.clone(), cause }))?;
        self.history.tools.push(call.name);
        self.history.tool_errors += u32::from(outcome.is_error);
        let whole = outcome.text.len();
        let (text, is_clipped) = result_view(outcome.text, self.settings.result_chars);
        let error = outcome.is_error.then_some(CallError::Tool);
        Ok(SeenResult { text, error, bytes: is_clipped.then_some(whole as u64), arguments: changed })
    }

    fn refuse(&mut self, error: CallError, why: &str) -> SeenResult {
        self.history.tool_errors += 1;
        SeenResult::error(error, why)
    }
}
