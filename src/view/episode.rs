//! One episode: its conversation, rewards and group.
//!
//! Long texts are cut; [`part`] reads the rest.

use serde::Serialize;
use serde_json::{Map, Value};

use super::episodes::{EpisodeTable, IndexedEpisode, rewards_of, row_json};
use crate::{
    data::{self, CallError, DataError, EpisodeRow, Label, MessageCall, Role, Tool},
    judge::truth::{self, Evidence},
};

/// Bytes of a text that are shown at first.
const SHOWN: usize = 20_000;
/// Bytes of a text that [`part`] reads at once.
const PART: usize = 1_000_000;

/// A text, or its start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Clipped {
    pub text: String,
    /// Length of the whole text, in bytes.
    pub bytes: usize,
}

impl Clipped {
    fn new(mut text: String) -> Self {
        let bytes = text.len();
        text.truncate(boundary(&text, SHOWN));
        Self { text, bytes }
    }
}

/// The largest character boundary up to this byte.
fn boundary(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Call {
    pub name: String,
    /// Formatted JSON.
    pub arguments: Clipped,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Message {
    pub role: &'static str,
    /// The tool that a result is of.
    pub name: Option<String>,
    pub content: Option<Clipped>,
    pub reasoning: Option<Clipped>,
    pub calls: Vec<Call>,
    /// Of a result: why the call failed, as in the table `calls`.
    pub error: Option<&'static str>,
    /// Of a result whose middle the policy did not see: the size of the whole, in bytes.
    pub clipped_from: Option<u64>,
}

/// A component of a reward.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Component {
    pub name: String,
    pub value: f64,
}

/// What one judge gave.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JudgeReward {
    pub stage: String,
    pub reward: f32,
    pub components: Vec<Component>,
    pub explanation: Option<Clipped>,
}

/// The scenario of an episode, as far as it is in the cache.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpisodeTask {
    pub task: Clipped,
    pub answer: Option<String>,
    pub check: String,
    pub checks: Option<String>,
    pub reference: Option<String>,
}

/// An episode with all that is known of it, but for its tokens.
#[derive(Debug, Serialize)]
pub struct EpisodeDetails {
    /// As in the table of episodes.
    pub episode: Value,
    /// Its whole answer, of which a row has the start.
    pub answer: Option<Clipped>,
    pub task: Option<EpisodeTask>,
    pub messages: Vec<Message>,
    /// What keeps it from being right, if it is wrong: its answer, or which checks.
    pub unmet: Vec<String>,
    pub rewards: Vec<JudgeReward>,
    /// The stage that trained on it.
    pub trained_by: Option<String>,
    /// The episodes of its group, itself included.
    pub group: Vec<Value>,
}

/// Reads an episode of a table.
///
/// # Errors
/// If the table cannot be read.
pub fn episode(
    table: &EpisodeTable,
    row: usize,
    found: &IndexedEpisode,
    labels: &[Label],
) -> Result<EpisodeDetails, DataError> {
    let id = &found.summary.id;
    let of =
        |id: &str| labels.iter().find(|label| label.stage == table.source.stage && label.trajectory_id == id);
    let task = table.scenarios.get(&found.summary.scenario_id).map(|scenario| EpisodeTask {
        task: Clipped::new(scenario.task.clone()),
        answer: scenario.answer.clone(),
        check: scenario.check.clone(),
        checks: scenario.checks.as_ref().map(|checks| checks.0.clone()),
        reference: scenario.reference.clone(),
    });
    let rewards = rewards_of(table, id).into_iter().map(|(stage, reward)| JudgeReward {
        stage,
        reward: reward.reward,
        components: components(&reward.components),
        explanation: reward.explanation.map(Clipped::new),
    });
    let group = table.group(&found.summary).into_iter().map(|row| {
        let other = &table.episodes[row];
        row_json(table, row, of(&other.summary.id))
    });
    let read = read(table, row)?;
    let scenario = table.scenarios.get(&found.summary.scenario_id);
    let unmet = read.as_ref().zip(scenario).filter(|(read, _)| read.correct == Some(false));
    let unmet = unmet.map(|(EpisodeRow { answer, messages, state, .. }, scenario)| {
        truth::unmet(scenario, Evidence { answer: answer.as_deref(), messages, state: state.as_ref() })
    });
    Ok(EpisodeDetails {
        episode: row_json(table, row, of(id)),
        answer: read.as_ref().and_then(|read| read.answer.clone()).map(Clipped::new),
        task,
        unmet: unmet.unwrap_or_default(),
        messages: shown(read.map(|row| row.messages).unwrap_or_default()),
        rewards: rewards.collect(),
        trained_by: table.source.update.as_ref().map(|update| update.stage.clone()),
        group: group.collect(),
    })
}

/// The parts of a reward, from a table's column `components`.
pub fn components(json: &str) -> Vec<Component> {
    let fields: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
    let component = |(name, value): (String, Value)| Some(Component { name, value: value.as_f64()? });
    fields.into_iter().filter_map(component).collect()
}

fn read(table: &EpisodeTable, row: usize) -> Result<Option<EpisodeRow>, DataError> {
    Ok(data::read_part::<EpisodeRow>(&table.source.path, Some(&[row]))?.pop())
}

/// A text as it is; other JSON as formatted text.
fn formatted(json: &str) -> String {
    match serde_json::from_str(json) {
        Ok(Value::String(text)) => text,
        Ok(value) => serde_json::to_string_pretty(&value).unwrap_or_else(|_| json.to_owned()),
        Err(_) => json.to_owned(),
    }
}

/// Messages with their long texts cut.
pub fn shown(messages: Vec<data::Message>) -> Vec<Message> {
    let call = |call: MessageCall| Call {
        arguments: Clipped::new(formatted(&call.arguments_json())),
        name: call.name,
    };
    let message = |message: data::Message| Message {
        role: message.role.name(),
        error: message.error().map(CallError::name),
        clipped_from: message.clipped_from(),
        name: message.name.filter(|name| message.role == Role::Tool && !name.is_empty()),
        content: (!message.text.is_empty()).then(|| Clipped::new(message.text)),
        reasoning: message.reasoning.map(Clipped::new),
        calls: message.calls.into_iter().map(call).collect(),
    };
    messages.into_iter().map(message).collect()
}

/// A text of an episode that is too long to be shown at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextPart {
    Content,
    Reasoning,
    /// Arguments of the call with this number.
    Call(usize),
}

impl TextPart {
    /// `content`, `reasoning`, or `call0`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "content" => Some(Self::Content),
            "reasoning" => Some(Self::Reasoning),
            name => Some(Self::Call(name.strip_prefix("call")?.parse().ok()?)),
        }
    }
}

/// A part of a text, from this byte; `None` if there is no such text.
///
/// # Errors
/// If the table cannot be read.
pub fn part(
    table: &EpisodeTable,
    row: usize,
    message: usize,
    part: &TextPart,
    from: usize,
) -> Result<Option<Clipped>, DataError> {
    let messages = read(table, row)?.map(|row| row.messages).unwrap_or_default();
    Ok(part_of(messages, message, part, from))
}

/// As [`part`], of these messages.
pub fn part_of(
    mut messages: Vec<data::Message>,
    message: usize,
    part: &TextPart,
    from: usize,
) -> Option<Clipped> {
    let found = (message < messages.len()).then(|| messages.swap_remove(message))?;
    let text = match part {
        TextPart::Content => found.text,
        TextPart::Reasoning => found.reasoning?,
        TextPart::Call(number) => formatted(&found.calls.get(*number)?.arguments_json()),
    };
    let from = boundary(&text, from);
    let end = boundary(&text, from.saturating_add(PART));
    Some(Clipped { text: text[from..end].to_owned(), bytes: text.len() })
}

/// A tool that the policy was shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfferedTool {
    pub name: String,
    pub description: Clipped,
    /// Formatted JSON Schema of its arguments.
    pub schema: Clipped,
}

/// The tools that the policies of a table were shown; none if the table of tools is gone.
pub fn offered_tools(table: &EpisodeTable) -> Vec<OfferedTool> {
    let rows = table.source.tools.as_ref().and_then(|path| data::read::<Tool>(path).ok());
    let offered = |tool: Tool| OfferedTool {
        name: tool.name,
        description: Clipped::new(tool.description),
        schema: Clipped::new(formatted(&tool.input_schema)),
    };
    rows.into_iter().flatten().map(offered).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_shown_with_indentation() {
        assert_eq!(formatted("{\"id\":7}"), "{\n  \"id\": 7\n}");
        assert_eq!((formatted("\"a\"").as_str(), formatted("{broken").as_str()), ("a", "{broken"));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "é".repeat(SHOWN);
        let clipped = Clipped::new(long.clone());
        assert_eq!((clipped.text.len(), clipped.bytes), (SHOWN, long.len()));
        assert_eq!(boundary("aé", 2), 1);
        assert_eq!(TextPart::named("call12"), Some(TextPart::Call(12)));
        assert_eq!(TextPart::named("call"), None);
    }
}
