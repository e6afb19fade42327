//! A language model that is asked for scores: what relative scores and rubrics have in common.

use std::sync::Arc;

use minijinja::{AutoEscape, Environment, Value as Variables};
use serde_json::{Value, json};

use super::{
    JudgeError,
    reply::{ReplyScore, exact_schema, schema, scores},
    transcript::plain,
};
use crate::{
    data::Tool,
    hash::{Digest, Encoder},
    llm::{LanguageModel, Message, Request},
    text::start_of,
};

/// A cache of replies by the digest of the question, so that no question is billed twice.
pub trait ReplyCache: Sync {
    fn get(&self, question: &Digest) -> Option<String>;
    fn put(&self, question: &Digest, reply: &str) -> crate::error::Result<()>;
}

/// A language model, and how it is asked.
#[derive(Clone)]
pub struct JudgeModel {
    pub model: Arc<dyn LanguageModel>,
    /// Maximum number of replies until one is usable.
    pub attempts: u32,
    /// How often each question is asked; scores are averaged.
    pub repeats: u32,
    /// Whether the provider is asked to enforce the form of the reply.
    pub structured: bool,
    /// Bytes of an episode that are shown.
    pub shown_bytes: usize,
    /// `name` and `description` of the agent's tools; empty if they are not known.
    pub tools: Vec<Value>,
}

/// Characters of a tool's description that a judge sees.
const DESCRIPTION: usize = 400;

/// A tool as a judge sees it.
pub fn shown_tool(tool: &Tool) -> Value {
    let description = tool.description.split_whitespace().collect::<Vec<_>>().join(" ");
    json!({"name": tool.name, "description": plain(&start_of(&description, DESCRIPTION))})
}

impl JudgeModel {
    /// The part of a prompt that all questions share.
    pub fn instructions(prompt: &str) -> &str {
        &prompt[..prompt.find(EPISODE).unwrap_or(0)]
    }

    /// Asks for one score for each name, the n-th time. Asks again until a reply is usable.
    pub(super) async fn ask<N: AsRef<str> + Sync>(
        &self,
        question: &str,
        names: &[N],
        repeat: u32,
        cache: &impl ReplyCache,
    ) -> crate::error::Result<Vec<ReplyScore>> {
        let mut encoder = Encoder::new("mcprl judge question v2");
        self.model.identify(&mut encoder);
        let schema = self.structured.then(|| match self.model.keeps_to_schemas() {
            true => exact_schema(names),
            false => schema(names),
        });
        encoder.text(question).number(repeat.into());
        if let Some(schema) = schema.as_ref().filter(|_| self.model.keeps_to_schemas()) {
            encoder.json(schema);
        }
        let key = encoder.finish();
        if let Some(scores) = cache.get(&key).and_then(|reply| scores(&reply, names).ok()) {
            return Ok(scores);
        }
        let mut messages = vec![Message::user(question)];
        let mut problem = String::new();
        let attempts = self.attempts.max(1);
        for number in 1..=attempts {
            let request = Request {
                messages: &messages,
                schema: schema.as_ref(),
                shared: Self::instructions(question).len(),
                is_repeated: repeat + 1 < self.repeats,
                draw: u64::from(repeat) << 32 | u64::from(number),
            };
            let reply = match self.model.complete(&request).await {
                Ok(reply) => reply,
                Err(refusal) if refusal.is_about_request() => {
                    return Err(JudgeError::Reply { attempts: number, problem: refusal.to_string() }.into());
                }
                Err(error) => return Err(JudgeError::from(error).into()),
            };
            match scores(&reply.text, names) {
                Ok(scores) => {
                    cache.put(&key, &reply.text)?;
                    return Ok(scores);
                }
                Err(why) => {
                    problem = if reply.is_cut { format!("it was cut at max_tokens: {why}") } else { why };
                    messages.truncate(1);
                    // Providers refuse an empty message.
                    if !reply.text.trim().is_empty() {
                        messages.push(Message::assistant(reply.text));
                        messages.push(Message::user(format!(
                            "That cannot be used: {problem}. Reply with the JSON object alone."
                        )));
                    }
                }
            }
        }
        Err(JudgeError::Reply { attempts, problem }.into())
    }

    /// Asks a yes-or-no question. Returns the probability of yes. Other questions share its first `shared` bytes.
    pub(super) async fn probability(
        &self,
        question: &str,
        shared: usize,
        cache: &impl ReplyCache,
    ) -> crate::error::Result<f64> {
        let mut encoder = Encoder::new("mcprl judge probability v1");
        self.model.identify(&mut encoder);
        let key = encoder.text(question).finish();
        if let Some(known) = cache.get(&key).and_then(|reply| reply.parse().ok()) {
            return Ok(known);
        }
        let messages = [Message::user(question)];
        let request = Request { messages: &messages, shared, ..Request::default() };
        match self.model.probability(&request).await {
            Ok(probability) => {
                cache.put(&key, &probability.to_string())?;
                Ok(probability)
            }
            Err(refusal) if refusal.is_about_request() => {
                Err(JudgeError::Reply { attempts: 1, problem: refusal.to_string() }.into())
            }
            Err(error) => Err(JudgeError::from(error).into()),
        }
    }
}

/// Where the part of a prompt begins that differs between questions. Instructions stand before it.
const EPISODE: &str = "\n<task>";
/// Where the criterion begins, behind what all questions about an episode share.
pub(super) const CRITERION: &str = "\n<criterion>";

pub(super) fn render(prompt: &str, variables: Variables) -> Result<String, JudgeError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.render_str(prompt, variables).map_err(JudgeError::Prompt)
}
