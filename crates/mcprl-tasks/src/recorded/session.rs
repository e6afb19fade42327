//! Sessions in the format of the Hugging Face hub: entries, each behind a parent. An agent goes back by adding an entry behind an
//! earlier one.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Trace, message};

/// The conversation that a session ended with.
///
/// # Errors
/// What is wrong with it.
pub fn trace(entries: Vec<Value>) -> Result<Trace, String> {
    let (entries, lost) = last_branch(entries);
    let mut repairs = Vec::new();
    if lost > 0 {
        repairs.push("messages that were taken back are lost".to_owned());
    }
    let (mut messages, mut shown) = (Vec::new(), entries.into_iter());
    for entry in shown.by_ref() {
        match entry["type"].as_str() {
            Some("message") => messages.push(entry["message"].clone()),
            // What follows was said behind the summary, not behind what stands before it.
            Some("compaction") => break,
            Some("branch_summary" | "custom_message") => {
                return Err(format!(
                    "a text of type \"{}\" was shown to the model",
                    entry["type"].as_str().unwrap_or_default()
                ));
            }
            _ => {}
        }
    }
    if shown.any(|entry| entry["type"] == "message") {
        repairs.push("what follows a compaction is lost".into());
        // A turn whose calls have results.
        while messages.last().is_some_and(|message| message["role"] == "user") {
            messages.pop();
        }
    }
    let mut trace = message::trace(&messages, None, None)?;
    repairs.append(&mut trace.repairs);
    Ok(Trace { repairs, ..trace })
}

/// The last entry and what is before it, and how many messages are on other branches. Entries without ids are all one branch.
fn last_branch(entries: Vec<Value>) -> (Vec<Value>, usize) {
    let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    let is_message = |entry: &Value| entry["type"] == "message";
    let places: BTreeMap<String, usize> = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.get("parentId").is_some())
        .filter_map(|(place, entry)| Some((text(entry, "id")?, place)))
        .collect();
    let last = entries.iter().rposition(|entry| entry.get("parentId").is_some());
    let Some(last) = last else { return (entries, 0) };
    let mut branch = vec![last];
    let mut next = text(&entries[last], "parentId");
    while let Some(place) = next.as_ref().and_then(|parent| places.get(parent)) {
        // Parents stand before their children.
        if branch.last().is_some_and(|child| child <= place) {
            break;
        }
        branch.push(*place);
        next = text(&entries[*place], "parentId");
    }
    branch.reverse();
    let all = entries.iter().filter(|entry| is_message(entry)).count();
    let kept: Vec<Value> = branch.iter().map(|place| entries[*place].clone()).collect();
    let lost = all - kept.iter().filter(|entry| is_message(entry)).count();
    (kept, lost)
}
