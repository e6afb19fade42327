use std::{collections::VecDeque, sync::Arc};

use super::policy::PolicyHandle;
use crate::{
    chat::{Chat, ToolCall},
    engine::{EngineError, Sampled, Stop, TokenSender},
};

/// Turns that are known beforehand, such as those of a reference solution. Their tokens are those that the model would have
/// sampled, each with probability 1.
#[derive(Debug)]
pub struct Script(VecDeque<Vec<u32>>);

impl Script {
    /// One turn per call. The last has this text before its call.
    pub fn new(chat: &Chat, calls: &[ToolCall], last: &str) -> Self {
        let turn = |(index, call)| {
            let text = if index + 1 == calls.len() { last } else { "" };
            chat.assistant(text, std::slice::from_ref(call))
        };
        Self(calls.iter().enumerate().map(turn).collect())
    }
}

impl PolicyHandle for Script {
    /// Behind the last turn, the episode ends as if the model had stopped at its limit.
    async fn turn(
        &mut self,
        _: &[u32],
        _: &[u32],
        max_new: usize,
        _: Option<TokenSender>,
    ) -> Result<Sampled, EngineError> {
        let mut tokens = self.0.pop_front().unwrap_or_default();
        let stop = if tokens.is_empty() || tokens.len() > max_new { Stop::Length } else { Stop::Token };
        tokens.truncate(max_new);
        Ok(Sampled { logprobs: vec![0.0; tokens.len()], tokens, stop, ..Sampled::default() })
    }

    fn reopen(&mut self, _: Vec<Arc<[u32]>>) {}
}
