//! How an earlier turn stands in the history that later turns are sampled after: with its reasoning, or without.
//!
//! What was said stays as it was said; only the reasoning is left out, and around the turn stands what the template
//! writes around an earlier one. A turn without reasoning stands there just as it was sampled, where the template lets it.

use serde::Deserialize;

use super::{Chat, ChatError, format::Format, learn::Probe, template::Template};

/// What becomes of the reasoning of earlier turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryThinking {
    /// What the template does with reasoning that is handed back to it.
    #[default]
    Template,
    Keep,
    Strip,
}

/// What a template does around an earlier turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RenderedTurn {
    /// Written before a turn that is to be sampled.
    pub header: String,
    /// Written in its place before an earlier turn without reasoning.
    pub bare: String,
    /// Reasoning that is handed back is not written.
    pub drops: bool,
}

const SAYING: &str = "probe saying";
const REASONING: &str = "probe reasoning";

impl RenderedTurn {
    /// Shows the template an earlier turn; nothing where it writes a conversation anew when one goes on.
    pub fn learn(template: &Template, probe: &Probe, format: Format) -> Option<Self> {
        let prompt = template.render(&Probe::opening(), &probe.tools, true).ok()?;
        let silent = template.render(&Probe::opening(), &probe.tools, false).ok()?;
        let header = prompt.strip_prefix(&silent)?;
        let (field, within) = (Some(REASONING), format!("<think>\n{REASONING}\n</think>\n\n{SAYING}"));
        let earlier = |text: &str, reasoning| probe.earlier(template, text, reasoning);
        let told = earlier(SAYING, None).or_else(|_| earlier("", None)).ok()?;
        let turn = told.strip_prefix(&silent)?;
        let call = format.assistant("", std::slice::from_ref(&probe.call));
        let at = turn.find(SAYING).or_else(|| turn.find(&call))?;
        let shown = |told: Result<String, ChatError>| told.is_ok_and(|told| told.contains(REASONING));
        Some(Self {
            header: header.to_owned(),
            bare: turn[..at].to_owned(),
            drops: !shown(earlier(SAYING, field)) && !shown(earlier(&within, None)),
        })
    }
}

/// A template's habits as tokens, where earlier turns lose their reasoning.
pub(super) struct Stripping {
    header: Vec<u32>,
    bare: String,
    /// The prompt has begun the turn otherwise than the history does.
    always: bool,
}

/// How a conversation goes on where its last turn is told otherwise than it was sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewrittenHistory {
    /// Leading tokens of what the turn was sampled after that stay.
    pub kept: usize,
    /// What follows them: the turn as an earlier one, its end, and the results.
    pub turn: Vec<u32>,
    /// What the next turn is sampled after: the assistant header.
    pub header: Vec<u32>,
}

impl Chat {
    /// Says what becomes of the reasoning of earlier turns; unless told, it stays.
    ///
    /// # Errors
    /// If it is to be left out, and the template does not show how a turn without it is written.
    pub fn with_history(mut self, thinking: HistoryThinking) -> Result<Self, ChatError> {
        let strips = match (thinking, &self.past) {
            (HistoryThinking::Keep, _) => false,
            (HistoryThinking::Template, past) => past.as_ref().is_some_and(|past| past.drops),
            (HistoryThinking::Strip, _) => true,
        };
        self.stripping = None;
        if strips {
            let past = self.past.as_ref().ok_or(ChatError::NoHistory)?;
            let header = self.vocabulary.encode(&past.header);
            // A control token in front, so that the header's tokens are the same behind any text.
            if !header.first().is_none_or(|first| self.vocabulary.is_control(*first)) {
                return Err(ChatError::NoHistory);
            }
            let always = past.bare != past.header;
            self.stripping = Some(Stripping { header, bare: past.bare.clone(), always });
        }
        Ok(self)
    }

    /// Tokens at the end of these, a prompt's, that belong to the turn to come and may stand otherwise in the history.
    pub fn header_len(&self, prompt: &[u32]) -> usize {
        let header = self.stripping.as_ref().map_or(&[][..], |stripping| &stripping.header);
        if prompt.ends_with(header) { header.len() } else { 0 }
    }

    /// How the conversation goes on after a turn: `before` is what it was sampled after, `results` what
    /// [`results`](Self::results) made of the answers. Nothing where all of it simply stands one after the other.
    pub fn rewritten(&self, before: &[u32], sampled: &[u32], results: &[u32]) -> Option<RewrittenHistory> {
        let Stripping { header, bare, always } = self.stripping.as_ref()?;
        let text = self.vocabulary.spell(self.without_end(sampled));
        let said = self.format.behind_reasoning(&text);
        if said.len() == text.len() && !always {
            return None;
        }
        let kept = before.strip_suffix(header.as_slice())?.len();
        let results = results.strip_suffix(header.as_slice())?;
        let mut turn = self.vocabulary.encode(&format!("{bare}{}", said.trim_start()));
        turn.extend(self.stop().first());
        turn.extend(results);
        Some(RewrittenHistory { kept, turn, header: header.clone() })
    }
}
