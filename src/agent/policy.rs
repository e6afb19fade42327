//! Who samples the turns of a conversation.

use std::{future::Future, sync::Arc};

use crate::engine::{EngineError, Sampled, Sequence, TokenSender};

/// Samples the policy's turns: the engine, or a script in tests.
pub trait PolicyHandle: Send {
    /// Appends tokens to the conversation, then samples until a token of `stop` or `max_new` tokens. Sends each to `tokens`.
    /// The first turn appends nothing, because the conversation starts with its prompt. If the future is dropped, nothing
    /// has changed.
    fn turn(
        &mut self,
        append: &[u32],
        stop: &[u32],
        max_new: usize,
        tokens: Option<TokenSender>,
    ) -> impl Future<Output = Result<Sampled, EngineError>> + Send;

    /// Continues from another prompt, given in pieces as in [`PromptTokens`](super::PromptTokens).
    fn reopen(&mut self, pieces: Vec<Arc<[u32]>>);
}

impl PolicyHandle for Sequence {
    async fn turn(
        &mut self,
        append: &[u32],
        stop: &[u32],
        max_new: usize,
        tokens: Option<TokenSender>,
    ) -> Result<Sampled, EngineError> {
        self.streamed_turn(append, stop, max_new, tokens).await
    }

    fn reopen(&mut self, pieces: Vec<Arc<[u32]>>) {
        Sequence::reopen(self, pieces);
    }
}
