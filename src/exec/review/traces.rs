//! What people decide about recorded conversations: one line of a JSONL file for each, which a `traces` stage reads: kept
//! conversations as they are or as edited, dropped ones not at all.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Value, json};

use super::{Decision, ReviewError, lines, replace};
use crate::{
    data::{Message, Role},
    hash::Encoder,
    recorded::{RecordedTrace, Trace},
};

/// A decision that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    pub decision: Decision,
    /// The messages that are kept; none of a dropped conversation.
    pub messages: Vec<Message>,
}

/// What identifies a conversation among the decisions.
pub fn digest(trace: &Trace) -> String {
    Encoder::new("mcprl reviewed trace v1").json(&json!(trace.messages)).finish().to_string()
}

/// The decisions of a file by [`digest`]; none if there is no file. Of several on one conversation, the last one counts.
///
/// # Errors
/// If the file cannot be read, or a line is no decision.
pub fn decisions(path: &Path) -> Result<BTreeMap<String, Decided>, ReviewError> {
    let decided = |mut line: super::Line| {
        let decision = match &line.value["decision"] {
            // Kept conversations alone, as they once were written.
            Value::Null if line.value["messages"].is_array() => Some(Decision::Accept),
            name => name.as_str().and_then(Decision::named),
        };
        let messages = match serde_json::from_value(line.value["messages"].take()) {
            Ok(messages) => messages,
            Err(_) if decision == Some(Decision::Drop) => Vec::new(),
            Err(_) => return Err(line.is_bad(path)),
        };
        let decision = decision.ok_or_else(|| line.is_bad(path))?;
        Ok((line.id, Decided { decision, messages }))
    };
    lines(path)?.into_iter().map(decided).collect()
}

/// Replaces the decision on a conversation, or removes it. `kept` is the conversation as it is kept.
///
/// # Errors
/// As [`decisions`], or if the file cannot be written.
pub fn set(
    path: &Path,
    found: &RecordedTrace,
    original: &Trace,
    decision: Option<(Decision, &Trace)>,
) -> Result<(), ReviewError> {
    // A file of something else stays as it is.
    decisions(path)?;
    let line = decision.map(|(decision, kept)| line(found, original, decision, kept));
    replace(path, &digest(original), line.as_ref())
}

/// A decision as a line. `kept` is the conversation as it is kept, which may be edited.
pub fn line(found: &RecordedTrace, original: &Trace, decision: Decision, kept: &Trace) -> Value {
    let mut line = json!({"reviewed": digest(original), "place": found.place, "decision": decision.name()});
    if decision == Decision::Drop {
        return line;
    }
    if let Some(tools) = &kept.tools {
        line["tools"] = tools.clone().into();
    }
    if let Some(correct) = kept.correct {
        line["correct"] = correct.into();
    }
    line["messages"] = json!(kept.messages);
    line
}

/// What a person may edit of a message: its text, or the answer in its call. Results of tools are what happened.
pub fn editable(message: &Message) -> Option<&str> {
    match message.role {
        Role::Tool => None,
        Role::Assistant => {
            let answer = message.calls.first().and_then(|call| call.arguments.get(ANSWER)?.as_str());
            answer.or_else(|| Some(message.text.as_str()).filter(|text| !text.is_empty()))
        }
        Role::System | Role::User => Some(&message.text),
    }
}

/// The argument that gives an answer.
const ANSWER: &str = "answer";

/// The conversation with other texts in these messages. What cannot be edited stays as it is.
pub fn edited(trace: &Trace, texts: &BTreeMap<usize, String>) -> Trace {
    let mut trace = trace.clone();
    for (place, text) in texts {
        let Some(message) = trace.messages.get_mut(*place).filter(|message| editable(message).is_some())
        else {
            continue;
        };
        let answer = message.calls.first_mut().and_then(|call| call.arguments.get_mut(ANSWER));
        match answer.filter(|answer| answer.is_string()) {
            Some(answer) => *answer = text.as_str().into(),
            None => message.text.clone_from(text),
        }
    }
    trace
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded;

    fn found(messages: Value) -> (RecordedTrace, Trace) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.jsonl");
        std::fs::write(&path, format!("{}\n", json!({ "messages": messages }))).unwrap();
        let found = recorded::read(&path).unwrap().remove(0);
        let trace = found.trace.clone().unwrap();
        (found, trace)
    }

    fn talk(task: &str) -> (RecordedTrace, Trace) {
        found(json!([{"role": "user", "content": task}, {"role": "assistant", "content": "7"}]))
    }

    #[test]
    fn a_decision_is_replaced_and_taken_back_and_the_rest_are_conversations() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.jsonl");
        let all = ["one", "two", "three"].map(talk);
        let decide = |place: usize, decision: Option<Decision>| {
            let (found, trace) = &all[place];
            set(&path, found, trace, decision.map(|decision| (decision, trace))).unwrap();
        };
        decide(0, Some(Decision::Drop));
        decide(1, Some(Decision::Accept));
        decide(2, Some(Decision::Accept));
        decide(1, Some(Decision::Drop));
        let (found, trace) = &all[0];
        let texts = BTreeMap::from([(0, "the first".to_owned()), (1, "8".to_owned())]);
        let new = edited(trace, &texts);
        set(&path, found, trace, Some((Decision::Edit, &new))).unwrap();
        let kept = recorded::read(&path).unwrap();
        let kept: Vec<&str> =
            kept.iter().map(|found| found.trace.as_ref().unwrap().messages[0].text.as_str()).collect();
        assert_eq!(kept, ["the first", "three"]);
        let known = decisions(&path).unwrap();
        assert_eq!(known[&digest(trace)], Decided { decision: Decision::Edit, messages: new.messages });
        assert_eq!(known.len(), 3);
        decide(0, None);
        assert_eq!(decisions(&path).unwrap().len(), 2);
    }

    #[test]
    fn an_edit_changes_texts_and_the_answer_of_a_call_but_no_result() {
        let call = |name: &str, arguments: Value| json!({"id": name, "type": "function", "function": {"name": name, "arguments": arguments}});
        let (_, trace) = found(json!([
            {"role": "user", "content": "how many?"},
            {"role": "assistant", "content": "", "tool_calls": [call("count", json!({}))]},
            {"role": "tool", "tool_call_id": "count", "content": "7"},
            {"role": "assistant", "content": "so it is", "tool_calls": [call("complete_task", json!({"answer": "7"}))]},
        ]));
        let texts: Vec<Option<&str>> = trace.messages.iter().map(editable).collect();
        assert_eq!(texts, [Some("how many?"), None, None, Some("7")]);
        let all = (0..9).map(|place| (place, "new".to_owned())).collect();
        let new = edited(&trace, &all).messages;
        assert_eq!((new[0].text.as_str(), &new[1], &new[2]), ("new", &trace.messages[1], &trace.messages[2]));
        assert_eq!((new[3].text.as_str(), &new[3].calls[0].arguments[ANSWER]), ("so it is", &json!("new")));
    }

    #[test]
    fn conversations_that_were_kept_before_decisions_were_written_stay_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.jsonl");
        let (found, trace) = talk("one");
        let mut line = line(&found, &trace, Decision::Accept, &trace);
        line.as_object_mut().unwrap().remove("decision");
        std::fs::write(&path, format!("{line}\n")).unwrap();
        let accepted = Decided { decision: Decision::Accept, messages: trace.messages.clone() };
        assert_eq!(decisions(&path).unwrap(), BTreeMap::from([(digest(&trace), accepted)]));
    }

    #[test]
    fn a_file_of_something_else_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.jsonl");
        let (found, trace) = talk("one");
        for text in ["{\"messages\": []}\n", "{\"reviewed\": \"x\"}\n", "no JSON\n"] {
            std::fs::write(&path, text).unwrap();
            let refused = set(&path, &found, &trace, Some((Decision::Accept, &trace))).unwrap_err();
            assert!(matches!(refused, ReviewError::BadLine { line: 1, .. }), "{text}: {refused}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
