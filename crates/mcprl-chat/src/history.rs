//! How earlier turns appear in the context of later turns: with or without their reasoning.
//!
//! Only the reasoning is removed; the rest of a turn keeps its text, within what the template writes around an earlier
//! turn. A turn without reasoning keeps its sampled tokens if the template allows it.

use serde::Deserialize;

use super::{Chat, ChatError};

/// Whether the reasoning of earlier turns stays in the context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryThinking {
    /// As the template does with the reasoning of earlier messages.
    #[default]
    Template,
    Keep,
    Strip,
}

/// How earlier turns are rewritten when their reasoning is removed.
#[derive(Clone)]
pub(super) struct ReasoningRemoval {
    header: Vec<u32>,
    bare: String,
    /// Whether every turn is rewritten, because the prompt starts a turn differently than the history does.
    always: bool,
}

/// The context of the next turn if the last turn appears in it differently than it was sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewrittenHistory {
    /// Number of leading tokens of the last turn's context that are kept.
    pub kept: usize,
    /// Tokens that follow: the turn as an earlier one, its end-of-turn token, and the results.
    pub turn: Vec<u32>,
    /// The assistant header, after which the next turn is sampled.
    pub header: Vec<u32>,
}

impl Chat {
    /// Sets whether the reasoning of earlier turns stays in the context. By default it stays.
    ///
    /// # Errors
    /// If it is to be removed, but the template does not show how a turn without it is written.
    pub fn with_history(mut self, thinking: HistoryThinking) -> Result<Self, ChatError> {
        let earlier_turn = self.learned.earlier_turn.as_ref();
        let strips = match thinking {
            HistoryThinking::Keep => false,
            HistoryThinking::Template => earlier_turn.is_some_and(|earlier_turn| earlier_turn.drops),
            HistoryThinking::Strip => true,
        };
        self.stripping = None;
        if strips {
            let earlier_turn = earlier_turn.ok_or(ChatError::NoHistory)?;
            let header = self.vocabulary.encode(&earlier_turn.header);
            // The header must start with a control token, so that its tokens are the same after any text.
            if !header.first().is_none_or(|first| self.vocabulary.is_control(*first)) {
                return Err(ChatError::NoHistory);
            }
            let always = earlier_turn.bare != earlier_turn.header;
            self.stripping = Some(ReasoningRemoval { header, bare: earlier_turn.bare.clone(), always });
        }
        Ok(self)
    }

    /// Number of tokens at the end of this prompt that belong to the next turn and may differ in the history.
    pub fn header_len(&self, prompt: &[u32]) -> usize {
        let header = self.stripping.as_ref().map_or(&[][..], |stripping| &stripping.header);
        if prompt.ends_with(header) { header.len() } else { 0 }
    }

    /// The context after a turn: `before` is the turn's context, `results` the output of [`results`](Self::results).
    /// `None` if the context is simply the concatenation of `before`, `sampled` and `results`.
    pub fn rewritten(&self, before: &[u32], sampled: &[u32], results: &[u32]) -> Option<RewrittenHistory> {
        let ReasoningRemoval { header, bare, always } = self.stripping.as_ref()?;
        let text = self.vocabulary.masked_text(self.without_end(sampled));
        let rest = self.learned.format.after_reasoning(&text, self.opened(before));
        if rest.len() == text.len() && !always {
            return None;
        }
        let kept = before.strip_suffix(header.as_slice())?.len();
        let results = results.strip_suffix(header.as_slice())?;
        let mut turn = self.vocabulary.encode(&format!("{bare}{}", rest.trim_start()));
        turn.extend(self.stop().first());
        turn.extend(results);
        Some(RewrittenHistory { kept, turn, header: header.clone() })
    }
}
