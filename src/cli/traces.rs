//! `mcprl traces`: lists recorded conversations, or goes through them in the terminal or on a page and writes those that are kept.
//!
//! Each decision is one line of a JSONL file, appended at once, so a review goes on where it ended. A `traces` stage reads the
//! file: kept conversations as they are or as edited, dropped ones not at all.

use std::{
    collections::BTreeMap,
    io::{BufRead, IsTerminal},
    path::PathBuf,
    sync::Arc,
};

use clap::Args;
use serde_json::{Value, json};

use super::{
    Outcome,
    review::{self, Choice},
};
use crate::{
    error::Result,
    exec::review::{
        Decision, ReviewError, append,
        traces::{decisions, digest, editable, edited, line},
    },
    traces::{self, Found, Trace},
    ui::{OutputFormat, Printer, plural},
    web::TraceReview,
};

#[derive(Args)]
pub struct Traces {
    /// Files of conversations, or folders of them.
    #[arg(value_name = "FILE|FOLDER", required = true)]
    paths: Vec<PathBuf>,
    /// Write the conversations that are kept to this file, in one form. In a terminal, each is shown and can be accepted,
    /// edited or dropped; an earlier review goes on there.
    #[arg(long, value_name = "FILE.jsonl")]
    out: Option<PathBuf>,
    /// With `--out`: keep all without asking.
    #[arg(long, requires = "out")]
    all: bool,
    /// With `--out`: decide on a page in the browser, on 127.0.0.1, until Ctrl-C.
    #[arg(long, requires = "out", conflicts_with = "all")]
    page: bool,
    /// The port of `--page` [default: any free one].
    #[arg(long, requires = "page", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

impl Traces {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let found = traces::read_all(&self.paths)?;
        let Some(out) = &self.out else {
            list(printer, &found);
            return Ok(Outcome::Success);
        };
        let known = decisions(out)?;
        if self.page {
            return super::ui::serve(printer, Arc::new(TraceReview::new(found, out.clone())), self.port);
        }
        let open: Vec<(&Found, &Trace)> = found
            .iter()
            .filter_map(|found| Some((found, found.trace.as_ref().ok()?)))
            .filter(|(_, trace)| !known.contains_key(&digest(trace)))
            .collect();
        let is_asked = !self.all
            && printer.format == OutputFormat::Human
            && std::io::stdin().is_terminal()
            && std::io::stdout().is_terminal();
        let mut save = |line: &Value| append(out, line);
        let left = match is_asked {
            true => {
                let say = &mut |text: &str| printer.data(text);
                review(&open, &mut std::io::stdin().lock(), say, &mut save)?
            }
            false => {
                for (found, trace) in &open {
                    save(&line(found, trace, Decision::Accept, trace))?;
                }
                0
            }
        };
        let unusable = found.iter().filter(|found| found.trace.is_err()).count();
        let done = open.len() - left;
        match printer.format {
            OutputFormat::Json => {
                printer.json(&json!({"traces": found.len(), "written": done, "left": left, "unusable": unusable, "out": out}));
            }
            OutputFormat::Human => {
                let how = if is_asked { "decided" } else { "kept without asking" };
                printer.say(&format!(
                    "{} {how}, in {}; {left} to decide, {unusable} unusable, {} decided before",
                    plural(done, "trace"),
                    out.display(),
                    found.len() - open.len() - unusable
                ));
            }
        }
        Ok(Outcome::Success)
    }
}

fn list(printer: Printer, found: &[Found]) {
    let row = |found: &Found| {
        let mut row = json!({"place": found.place, "format": found.format});
        match &found.trace {
            Ok(trace) => {
                let count =
                    |role: &str| trace.messages.iter().filter(|message| message["role"] == role).count();
                row["turns"] = count("assistant").into();
                row["results"] = count("tool").into();
                row["repairs"] = trace.repairs.clone().into();
            }
            Err(why) => row["unusable"] = why.as_str().into(),
        }
        row
    };
    let rows: Vec<Value> = found.iter().map(row).collect();
    if printer.format == OutputFormat::Json {
        return printer.json(&rows);
    }
    let text = |row: &Value| {
        let what = match row["unusable"].as_str() {
            Some(why) => format!("unusable: {why}"),
            None => {
                let repairs = row["repairs"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let repairs: Vec<&str> = repairs.collect();
                let count =
                    |name: &str, what: &str| plural(row[name].as_u64().unwrap_or_default() as usize, what);
                format!("{}, {}\t{}", count("turns", "turn"), count("results", "result"), repairs.join("; "))
            }
        };
        format!(
            "{}\t{}\t{what}\n",
            row["place"].as_str().unwrap_or_default(),
            row["format"].as_str().unwrap_or_default()
        )
    };
    printer.data(&rows.iter().map(text).collect::<String>());
}

/// Asks for a decision on each conversation; returns how many are left.
fn review(
    open: &[(&Found, &Trace)],
    input: &mut impl BufRead,
    say: &mut dyn FnMut(&str),
    save: &mut dyn FnMut(&Value) -> Result<(), ReviewError>,
) -> Result<usize, ReviewError> {
    let card = |(found, trace): &(&Found, &Trace), place: usize| shown(found, trace, place, open.len());
    let questions = ["first user message (empty keeps it): ", "last answer (empty keeps it): "];
    review::review(open, input, say, card, questions, |(found, trace), choice| {
        let decided = match choice {
            Choice::Accept => line(found, trace, Decision::Accept, trace),
            Choice::Drop => line(found, trace, Decision::Drop, trace),
            Choice::Edit(texts) => line(found, trace, Decision::Edit, &edited(trace, &given(trace, texts))),
        };
        save(&decided).map(|()| None)
    })
}

/// The new texts of an edit by the number of their message: of the first of the user and of the last answer, unless empty.
fn given(trace: &Trace, [task, answer]: [String; 2]) -> BTreeMap<usize, String> {
    let first = trace.messages.iter().position(|message| message["role"] == "user");
    let is_answer = |message: &Value| message["role"] == "assistant" && editable(message).is_some();
    let texts = [(first, task), (trace.messages.iter().rposition(is_answer), answer)].into_iter();
    let texts = texts.filter_map(|(place, text)| Some((place?, text)));
    texts.filter(|(_, text)| !text.is_empty()).collect()
}

/// Characters of a message that are shown.
const SHOWN: usize = 600;

fn shown(found: &Found, trace: &Trace, place: usize, of: usize) -> String {
    let mut text = format!("\n{place}/{of}  {}\n", found.place);
    let cut = |text: &str| text.chars().take(SHOWN).collect::<String>();
    for message in &trace.messages {
        let role = message["role"].as_str().unwrap_or_default();
        let mut said = message["content"].as_str().unwrap_or_default().to_owned();
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            let name = function["name"].as_str().unwrap_or_default();
            said += &format!(" → {name} {}", function["arguments"]);
        }
        text += &format!("{role}: {}\n", cut(said.trim()));
    }
    trace.repairs.iter().for_each(|repair| text += &format!("note: {repair}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Vec<Found> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.jsonl");
        let item = |task: &str| json!({"messages": [{"role": "user", "content": task}, {"role": "assistant", "content": "7"}]});
        let lines: String = ["one", "two", "three"].iter().map(|task| format!("{}\n", item(task))).collect();
        std::fs::write(&path, lines + "{\"text\": 1}\n").unwrap();
        traces::read(&path).unwrap()
    }

    #[test]
    fn what_is_accepted_or_edited_is_read_again_and_what_is_dropped_is_not() {
        let (found, folder) = (found(), tempfile::tempdir().unwrap());
        let out = folder.path().join("kept.jsonl");
        let open: Vec<(&Found, &Trace)> =
            found.iter().filter_map(|found| Some((found, found.trace.as_ref().ok()?))).collect();
        let mut save = |line: &Value| append(&out, line);
        let keys = "a\nd\nx\ne\nthe third\n8\n";
        let left = review(&open, &mut keys.as_bytes(), &mut |_| {}, &mut save).unwrap();
        assert_eq!((open.len(), left), (3, 0));
        let kept = traces::read(&out).unwrap();
        let messages = |found: &Found| found.trace.as_ref().unwrap().messages.clone();
        assert_eq!(kept.len(), 2);
        assert_eq!(messages(&kept[0]), messages(&found[0]));
        let edited = messages(&kept[1]);
        assert_eq!((&edited[0]["content"], &edited[1]["content"]), (&json!("the third"), &json!("8")));
        let decided = decisions(&out).unwrap();
        assert_eq!(decided.len(), 3, "all three are decided, the edited one by what it was");
        assert!(decided.contains_key(&digest(open[2].1)));
    }

    #[test]
    fn the_end_of_input_leaves_the_rest() {
        let found = found();
        let open: Vec<(&Found, &Trace)> =
            found.iter().filter_map(|found| Some((found, found.trace.as_ref().ok()?))).collect();
        let left = review(&open, &mut "s\na\n".as_bytes(), &mut |_| {}, &mut |_| Ok(())).unwrap();
        assert_eq!(left, 2);
    }
}
