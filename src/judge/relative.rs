//! A language model compares the attempts of one group and scores each between 0 and 1.
//!
//! Relative scores follow RULER (OpenPipe ART). To reduce the judge's bias, attempts are shown in several seeded orders
//! under neutral names, scores are matched by name and not by position, and equal attempts are shown once and share a
//! score. The judge is asked again until a reply has exactly one score for each attempt.

use std::collections::BTreeMap;

use minijinja::{AutoEscape, Environment, context, value::Serde};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde_json::{Deserializer, Value, json};

use super::{JudgeError, reward::JudgedTrajectory};
use crate::{
    hash::{Digest, Encoder},
    llm::{Client, Message},
    random::permutation,
};

/// Settings of the relative judge.
#[derive(Debug, Clone, PartialEq)]
pub struct RelativeSpec {
    /// The prompt, a jinja template of `task` and `attempts`, each with `id` and `conversation`.
    pub prompt: String,
    /// Number of orders in which a group is shown. Scores are averaged over them.
    pub orders: u32,
    /// Maximum number of replies until one is usable.
    pub attempts: u32,
    pub seed: u64,
}

/// The judge's score of one attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct RelativeScore {
    /// From 0 to 1.
    pub score: f64,
    pub explanation: Option<String>,
}

/// A cache of replies by the digest of the question, so that no question is billed twice.
pub trait ReplyCache: Sync {
    fn get(&self, question: &Digest) -> Option<String>;
    fn put(&self, question: &Digest, reply: &str) -> crate::error::Result<()>;
}

/// The relative judge.
pub struct Relative {
    client: Client,
    spec: RelativeSpec,
}

impl Relative {
    pub fn new(client: Client, spec: RelativeSpec) -> Self {
        Self { client, spec }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Judges one group. Returns scores in the group's order.
    pub async fn judge(
        &self,
        group: &[JudgedTrajectory<'_>],
        cache: &impl ReplyCache,
    ) -> crate::error::Result<Vec<RelativeScore>> {
        // Equal conversations count as one attempt.
        let mut distinct: Vec<String> = Vec::new();
        let mut which = Vec::with_capacity(group.len());
        for attempt in group {
            let conversation = transcript(&attempt.trajectory.messages);
            which.push(distinct.iter().position(|known| *known == conversation).unwrap_or_else(|| {
                distinct.push(conversation);
                distinct.len() - 1
            }));
        }
        let Some(first) = group.first() else { return Ok(Vec::new()) };
        let mut sums = vec![0.0; distinct.len()];
        let mut explanations = vec![None; distinct.len()];
        let orders = self.spec.orders.max(1);
        for order in 0..orders {
            let order = shuffled(distinct.len(), &first.scenario.id, self.spec.seed, order);
            let question = self.question(&first.scenario.task, &distinct, &order)?;
            let scores = self.ask(question, order.len(), cache).await?;
            for (place, (score, explanation)) in order.into_iter().zip(scores) {
                sums[place] += score;
                explanations[place] = explanations[place].take().or(explanation);
            }
        }
        let score = |place: usize| RelativeScore {
            score: sums[place] / f64::from(orders),
            explanation: explanations[place].clone(),
        };
        Ok(which.into_iter().map(score).collect())
    }

    fn question(&self, task: &str, conversations: &[String], order: &[usize]) -> Result<String, JudgeError> {
        let attempt = |(index, place): (usize, &usize)| json!({"id": name(index), "conversation": conversations[*place]});
        let attempts: Vec<Value> = order.iter().enumerate().map(attempt).collect();
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment
            .render_str(&self.spec.prompt, context! { task => task, attempts => Serde(attempts) })
            .map_err(JudgeError::Prompt)
    }

    /// Asks until a reply has one score for each name. Returns scores in the order of the names.
    async fn ask(
        &self,
        question: String,
        names: usize,
        cache: &impl ReplyCache,
    ) -> crate::error::Result<Vec<(f64, Option<String>)>> {
        let endpoint = self.client.endpoint();
        let mut encoder = Encoder::new("mcprl judge question v1");
        encoder.text(&endpoint.base_url).text(&endpoint.model).text(&endpoint.temperature.to_string());
        let key = encoder.text(&question).finish();
        if let Some(scores) = cache.get(&key).and_then(|reply| scores(&reply, names).ok()) {
            return Ok(scores);
        }
        let mut messages = vec![Message::user(question)];
        let mut problem = String::new();
        for _ in 0..self.spec.attempts.max(1) {
            let reply = self.client.complete(&messages).await.map_err(JudgeError::from)?;
            match scores(&reply, names) {
                Ok(scores) => {
                    cache.put(&key, &reply)?;
                    return Ok(scores);
                }
                Err(why) => {
                    messages.truncate(1);
                    messages.push(Message::assistant(reply));
                    messages.push(Message::user(format!(
                        "That cannot be used: {why}. Reply with the JSON object alone."
                    )));
                    problem = why;
                }
            }
        }
        Err(JudgeError::Reply { attempts: self.spec.attempts.max(1), problem }.into())
    }
}

/// The messages of an episode as the judge sees them, as JSON: without the system message, which is the same in all
/// attempts, and without the ids of calls, which differ between equal attempts.
fn transcript(messages: &str) -> String {
    let messages: Vec<Value> = serde_json::from_str(messages).unwrap_or_default();
    let shown = messages.into_iter().filter(|message| message["role"] != "system").map(|mut message| {
        if let Some(fields) = message.as_object_mut() {
            fields.shift_remove("tool_call_id");
        }
        for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(fields) = call.as_object_mut() {
                fields.shift_remove("id");
            }
        }
        message
    });
    Value::from_iter(shown).to_string()
}

/// The name of the attempt at this position.
fn name(index: usize) -> String {
    (index + 1).to_string()
}

/// A permutation that depends only on the scenario, the seed and the round. Every odd round reverses the previous one, so
/// that the first attempt of one is the last of the other.
fn shuffled(length: usize, scenario: &str, seed: u64, round: u32) -> Vec<usize> {
    let digest =
        Encoder::new("mcprl judge order v1").text(scenario).number(seed).number((round / 2).into()).finish();
    let mut rng = ChaCha8Rng::from_seed(*digest.as_bytes());
    let mut order = permutation(length, &mut rng);
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Parses a reply: one score for each of the names `1` to `names`. The JSON may be anywhere in the text.
fn scores(reply: &str, names: usize) -> Result<Vec<(f64, Option<String>)>, String> {
    let entries = entries(reply).ok_or("it contains no JSON with \"scores\"")?;
    let mut found = BTreeMap::new();
    for entry in &entries {
        let id = match entry.get("id").or_else(|| entry.get("trajectory_id")) {
            Some(Value::String(id)) => id.trim().to_owned(),
            Some(Value::Number(id)) => id.to_string(),
            _ => return Err("a score has no \"id\"".into()),
        };
        let score = match entry.get("score") {
            Some(Value::Number(score)) => score.as_f64(),
            Some(Value::String(score)) => score.trim().parse().ok(),
            _ => None,
        };
        let score = score.filter(|score: &f64| (0.0..=1.0).contains(score));
        let score = score.ok_or_else(|| format!("the score of {id} is not a number between 0 and 1"))?;
        let explanation = entry.get("explanation").and_then(Value::as_str).map(str::to_owned);
        if found.insert(id.clone(), (score, explanation)).is_some() {
            return Err(format!("{id} is scored twice"));
        }
    }
    (0..names)
        .map(|index| found.remove(&name(index)).ok_or(format!("{} is not scored", name(index))))
        .collect()
}

/// The list of scores: `{"scores": […]}` or the bare list, possibly in a code fence or after other text.
fn entries(reply: &str) -> Option<Vec<Value>> {
    let starts = reply.char_indices().filter(|(_, c)| matches!(c, '{' | '['));
    starts.map(|(at, _)| &reply[at..]).find_map(|text| {
        let value = Deserializer::from_str(text).into_iter::<Value>().next()?.ok()?;
        let list = match value {
            Value::Object(mut fields) => fields.remove("scores")?,
            list => list,
        };
        match list {
            Value::Array(items) if items.iter().all(Value::is_object) && !items.is_empty() => Some(items),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests;
