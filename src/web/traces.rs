//! The page of a review of recorded conversations: lists them, shows one, and keeps what is decided in the same file as
//! `mcprl traces --out` in the terminal.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Page, WebError, answers::text, query::Query};
use crate::{
    data::{Message, Role, first_of_user},
    error::Result,
    exec::review::{
        Decision,
        traces::{Decided, decisions, digest, editable, edited, set},
    },
    recorded::{RecordedTrace, Trace},
    text::start_of,
    view::{
        episode::{TextPart, part_of, shown},
        episodes::texts_of,
    },
};

/// Most conversations of a page.
const MOST: usize = 200;
/// Most characters of a task in the list.
const SHOWN: usize = 300;

/// The conversations of a review, and the file of its decisions.
pub struct TraceReview {
    found: Vec<RecordedTrace>,
    /// The digest of each conversation; none of one that cannot be used.
    digests: Vec<Option<String>>,
    out: PathBuf,
}

impl TraceReview {
    pub fn new(found: Vec<RecordedTrace>, out: PathBuf) -> Self {
        let digests = found.iter().map(|found| found.trace.as_ref().ok().map(digest)).collect();
        Self { found, digests, out }
    }

    fn decisions(&self) -> Result<BTreeMap<String, Decided>> {
        Ok(decisions(&self.out)?)
    }

    fn decided<'d>(&self, at: usize, decisions: &'d BTreeMap<String, Decided>) -> Option<&'d Decided> {
        decisions.get(self.digests.get(at)?.as_deref()?)
    }

    /// `unusable`, `open`, or the name of the decision.
    fn state(&self, at: usize, decisions: &BTreeMap<String, Decided>) -> &'static str {
        match self.found[at].trace {
            Err(_) => "unusable",
            Ok(_) => self.decided(at, decisions).map_or("open", |decided| decided.decision.name()),
        }
    }

    fn row(&self, at: usize, decisions: &BTreeMap<String, Decided>) -> Value {
        let found = &self.found[at];
        let mut row = json!({
            "index": at,
            "place": found.place,
            "format": found.format,
            "state": self.state(at, decisions),
        });
        match &found.trace {
            Ok(trace) => {
                row["task"] = start_of(first_of_user(&trace.messages).unwrap_or_default(), SHOWN).into();
                row["turns"] = trace.count(Role::Assistant).into();
                row["results"] = trace.count(Role::Tool).into();
                row["notes"] = trace.repairs.clone().into();
            }
            Err(why) => row["notes"] = [why.as_str()].into_iter().collect(),
        }
        row
    }

    fn list(&self, query: &Query) -> Result<String> {
        let decisions = self.decisions()?;
        let wanted = query.text("text").map(str::to_lowercase);
        let has_text = |at: &usize| {
            let Some(wanted) = &wanted else { return true };
            let Ok(trace) = &self.found[*at].trace else { return false };
            texts_of(&trace.messages).to_lowercase().contains(wanted)
        };
        let mut matching: Vec<usize> = (0..self.found.len()).filter(has_text).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for at in &matching {
            *counts.entry(self.state(*at, &decisions)).or_default() += 1;
        }
        matching.retain(|at| query.allows("state", self.state(*at, &decisions)));
        let offset = query.parsed("offset")?.unwrap_or(0);
        let limit = query.parsed("limit")?.unwrap_or(25).min(MOST);
        let rows = matching.iter().skip(offset).take(limit).map(|at| self.row(*at, &decisions));
        text(&json!({
            "total": self.found.len(),
            "counts": counts,
            "matching": matching.len(),
            "offset": offset,
            "traces": rows.collect::<Vec<Value>>(),
            "file": self.out,
        }))
    }

    /// A conversation that can be used.
    fn trace(&self, at: usize) -> Result<(&RecordedTrace, &Trace), WebError> {
        let found = self.found.get(at);
        let found = found.ok_or_else(|| WebError::NotFound(format!("there is no conversation {at}")))?;
        match &found.trace {
            Ok(trace) => Ok((found, trace)),
            Err(why) => Err(WebError::BadRequest(format!("{} cannot be used: {why}", found.place))),
        }
    }

    /// The messages of a conversation, as edited.
    fn messages(&self, at: usize, decisions: &BTreeMap<String, Decided>) -> Result<Vec<Message>> {
        let (_, trace) = self.trace(at)?;
        let decided = self.decided(at, decisions).filter(|decided| decided.decision == Decision::Edit);
        Ok(decided.map_or(&trace.messages, |decided| &decided.messages).clone())
    }

    fn one(&self, at: usize) -> Result<String> {
        let decisions = self.decisions()?;
        let messages = self.messages(at, &decisions)?;
        // Where a reviewer goes on.
        let is_open = |other: &usize| self.state(*other, &decisions) == "open";
        let open = (at + 1..self.found.len()).chain(0..at).find(is_open);
        let left = (0..self.found.len()).filter(is_open).count();
        let (_, trace) = self.trace(at)?;
        text(&json!({
            "trace": self.row(at, &decisions),
            "editable": messages.iter().map(|message| editable(message).is_some()).collect::<Vec<_>>(),
            "messages": shown(messages),
            "tools": trace.tools.iter().flatten().filter_map(|tool| tool["function"]["name"].as_str()).collect::<BTreeSet<_>>(),
            "total": self.found.len(),
            "open": open,
            "left": left,
        }))
    }
}

/// A decision as the page sends it; without `decision` it is taken back.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewDecision {
    index: usize,
    decision: Option<String>,
    /// Of an edit: new texts by the number of their message.
    #[serde(default)]
    texts: BTreeMap<usize, String>,
}

impl Page for TraceReview {
    fn index(&self) -> &'static str {
        "/traces.html"
    }

    fn read(&self, name: &str, query: &Query) -> Result<String> {
        let number = |name: &str| -> Result<usize> {
            query.required(name)?;
            Ok(query.parsed(name)?.unwrap_or_default())
        };
        match name {
            "traces" => self.list(query),
            "trace" => self.one(number("index")?),
            "text" => {
                let messages = self.messages(number("index")?, &self.decisions()?)?;
                let which = query.named("part", TextPart::named)?.unwrap_or(TextPart::Content);
                let from = query.parsed("from")?.unwrap_or(0);
                let found = part_of(messages, number("message")?, &which, from);
                text(&found.ok_or_else(WebError::no_text)?)
            }
            // What an edit begins with: the whole of it.
            "editable" => {
                let messages = self.messages(number("index")?, &self.decisions()?)?;
                let found =
                    messages.get(number("message")?).and_then(editable).ok_or_else(WebError::no_text)?;
                text(&json!({ "text": found }))
            }
            _ => Err(WebError::nothing(name).into()),
        }
    }

    fn change(&self, name: &str, body: &[u8]) -> Result<String> {
        if name != "decision" {
            return Err(WebError::nothing(name).into());
        }
        let wrong = |problem: String| WebError::BadRequest(format!("the request is no decision: {problem}"));
        let new: NewDecision = serde_json::from_slice(body).map_err(|cause| wrong(cause.to_string()))?;
        let (found, trace) = self.trace(new.index)?;
        let named = |name: &String| Decision::named(name).ok_or_else(|| wrong(format!("`{name}`")));
        let decision = new.decision.as_ref().map(named).transpose()?;
        let mut kept = trace.clone();
        if decision == Some(Decision::Edit) {
            kept.messages = self.messages(new.index, &self.decisions()?)?;
            kept = edited(&kept, &new.texts);
        }
        set(&self.out, found, trace, decision.map(|decision| (decision, &kept)))?;
        self.one(new.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded;

    fn query(text: &str) -> Query {
        Query::of(&format!("/?{text}").parse().unwrap())
    }

    /// A review of two conversations and one that cannot be used.
    fn review(folder: &std::path::Path) -> TraceReview {
        let item = |task: &str| {
            let call = json!({"id": "c", "type": "function", "function": {"name": "count", "arguments": {"of": task}}});
            json!({"messages": [
                {"role": "user", "content": task},
                {"role": "assistant", "content": null, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "7 ".repeat(30_000)},
                {"role": "assistant", "content": "7"},
            ]})
        };
        let lines = [item("boats?"), json!({"text": 1}), item("ships?")].map(|item| format!("{item}\n"));
        std::fs::write(folder.join("some.jsonl"), lines.concat()).unwrap();
        TraceReview::new(recorded::read(&folder.join("some.jsonl")).unwrap(), folder.join("kept.jsonl"))
    }

    fn get(review: &TraceReview, name: &str, asked: &str) -> Value {
        serde_json::from_str(&review.read(name, &query(asked)).unwrap()).unwrap()
    }

    fn decide(review: &TraceReview, body: Value) -> Value {
        let answer = review.change("decision", body.to_string().as_bytes()).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    #[test]
    fn conversations_are_listed_searched_decided_and_read_again_as_they_were_kept() {
        let folder = tempfile::tempdir().unwrap();
        let review = review(folder.path());
        let list = get(&review, "traces", "");
        let states: Vec<&str> =
            list["traces"].as_array().unwrap().iter().map(|row| row["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["open", "unusable", "open"]);
        assert_eq!(get(&review, "traces", "text=SHIPS")["matching"], 1);
        assert_eq!(get(&review, "traces", "text=assistant")["matching"], 0, "texts, not roles");

        let dropped = decide(&review, json!({"index": 0, "decision": "drop"}));
        assert_eq!(
            (&dropped["trace"]["state"], &dropped["open"], &dropped["left"]),
            (&json!("drop"), &json!(2), &json!(1))
        );
        let texts = json!({"0": "How many ships?", "1": "no text", "2": "no result", "3": "8"});
        let edited = decide(&review, json!({"index": 2, "decision": "edit", "texts": texts}));
        assert_eq!(edited["messages"][0]["content"]["text"], "How many ships?");
        assert_eq!(edited["open"], Value::Null, "nothing is left");
        let kept = recorded::read(&folder.path().join("kept.jsonl")).unwrap();
        let [RecordedTrace { trace: Ok(trace), .. }] = kept.as_slice() else {
            panic!("one is kept: {kept:?}")
        };
        assert_eq!(
            (trace.messages[0].text.as_str(), trace.messages[3].text.as_str()),
            ("How many ships?", "8")
        );
        assert_ne!(trace.messages[2].text, "no result", "a result is what happened");

        let again = TraceReview::new(
            recorded::read(&folder.path().join("some.jsonl")).unwrap(),
            folder.path().join("kept.jsonl"),
        );
        assert_eq!(get(&again, "traces", "state=edit")["matching"], 1, "a review goes on where it ended");
        decide(&again, json!({"index": 2, "decision": null}));
        assert_eq!(get(&again, "trace", "index=2")["messages"][0]["content"]["text"], "ships?");
    }

    #[test]
    fn a_long_text_is_cut_and_its_rest_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let review = review(folder.path());
        let content = &get(&review, "trace", "index=0")["messages"][2]["content"];
        let first = content["text"].as_str().unwrap();
        assert!(content["bytes"] == 60_000 && first.len() < 60_000, "{}", content["bytes"]);
        let rest = get(&review, "text", &format!("index=0&message=2&part=content&from={}", first.len()));
        assert_eq!(first.len() + rest["text"].as_str().unwrap().len(), 60_000);
        assert_eq!(get(&review, "editable", "index=0&message=3")["text"], "7");
    }

    #[test]
    fn what_is_not_there_or_no_decision_is_refused_and_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let review = review(folder.path());
        for (name, asked) in [
            ("trace", "index=9"),
            ("trace", "index=1"),
            ("trace", ""),
            ("editable", "index=0&message=2"),
            ("other", ""),
        ] {
            let refused = review.read(name, &query(asked)).unwrap_err();
            assert!(refused.code().starts_with("web::"), "{name} {asked}: {refused:?}");
        }
        for body in [
            json!({"index": 0, "decision": "keep"}),
            json!({"index": 1, "decision": "drop"}),
            json!({"decision": "drop"}),
            json!(7),
        ] {
            let refused = review.change("decision", body.to_string().as_bytes()).unwrap_err();
            assert_eq!(refused.code(), "web::bad_request", "{body}");
        }
        assert!(!folder.path().join("kept.jsonl").exists());
    }
}
