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
    locations::Locations,
    review::{self, Choice},
    target::Target,
};
use crate::{
    data::{self, Message, Role, Tool, first_of_user},
    error::Result,
    exec::{
        history::{self, Stages},
        review::{
            Decision, ReviewError, append,
            traces::{decisions, digest, editable, edited, line},
        },
    },
    recorded::{self, RecordedTrace, Trace},
    secret,
    text::start_of,
    ui::{OutputFormat, Printer, plural},
    web::TraceReview,
};

#[derive(Args)]
pub struct Traces {
    /// Files of conversations, or folders of them.
    #[arg(value_name = "FILE|FOLDER", required = true)]
    paths: Vec<PathBuf>,
    /// A run, or its stage as in `RUN/tools`: calls of other tools than its agent has are shown. Without it, those of tools that
    /// the conversation does not list.
    #[arg(long, value_name = "RUN", conflicts_with = "out")]
    tools: Option<String>,
    #[command(flatten)]
    locations: Locations,
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
    /// The names of the tools that a run's agent has.
    fn tools(&self, run: &str) -> Result<Vec<String>> {
        let Target { store, run, part } = Target::new(&self.locations, run)?;
        let run = history::run(&store, &run)?;
        let stages = Stages::new(&store, &run);
        let nodes = match &part {
            Some(part) => vec![run.node(part)?],
            None => run.nodes.iter().collect(),
        };
        for node in nodes {
            let outputs = stages.stage(node).outputs;
            if let Some(table) = outputs.iter().find(|output| output.output == "tools") {
                history::check(&store, &run.id, "tools", &table.digest)?;
                let tools: Vec<Tool> = data::read(&table.path)?;
                return Ok(tools.into_iter().map(|tool| tool.name).collect());
            }
        }
        Ok(Vec::new())
    }

    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let found = recorded::read_all(&self.paths)?;
        let tools = self.tools.as_deref().map(|run| self.tools(run)).transpose()?;
        let Some(out) = &self.out else {
            list(printer, &found, tools.as_deref());
            return Ok(Outcome::Success);
        };
        let known = decisions(out)?;
        if self.page {
            return super::ui::serve(printer, Arc::new(TraceReview::new(found, out.clone())), self.port);
        }
        let mut open: Vec<(&RecordedTrace, &Trace)> = found
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
                // What the list calls unusable is left out.
                open.retain(|(_, trace)| doubts(trace, tools.as_deref()).is_empty());
                for (found, trace) in &open {
                    save(&line(found, trace, Decision::Accept, trace))?;
                }
                0
            }
        };
        let is_unusable = |found: &&RecordedTrace| match &found.trace {
            Err(_) => true,
            Ok(trace) => {
                !is_asked
                    && !doubts(trace, tools.as_deref()).is_empty()
                    && !known.contains_key(&digest(trace))
            }
        };
        let unusable = found.iter().filter(is_unusable).count();
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

/// What a conversation lacks or has too much of.
fn doubts(trace: &Trace, tools: Option<&[String]>) -> Vec<String> {
    let own: Option<Vec<String>> = trace.tools.as_ref().map(|tools| {
        let names = tools.iter().filter_map(|tool| tool.get("function").unwrap_or(tool)["name"].as_str());
        names.map(str::to_owned).collect()
    });
    let offered = tools.or(own.as_deref());
    let unknown = offered.map(|offered| recorded::unknown_tools(trace, offered)).unwrap_or_default();
    let ending = recorded::ending(trace);
    let mut doubts = Vec::new();
    doubts.extend(recorded::secret(trace).map(|kind| format!("holds what looks like {kind}")));
    doubts.extend((ending != "an answer").then(|| format!("ends with {ending}, without an answer")));
    doubts.extend(unknown.iter().map(|name| format!("calls `{name}`, which is not offered")));
    doubts
}

/// The first message of the user, unless it holds a secret.
fn first_message(trace: &Trace) -> &str {
    let text = first_of_user(&trace.messages).unwrap_or_default();
    if secret::in_text(text).is_some() { "…" } else { text }
}

/// Characters of a first message in the list.
const FIRST: usize = 60;

fn list(printer: Printer, found: &[RecordedTrace], tools: Option<&[String]>) {
    let row = |found: &RecordedTrace| {
        let mut row = json!({"place": found.place, "format": found.format});
        match &found.trace {
            Ok(trace) => {
                row["turns"] = trace.count(Role::Assistant).into();
                row["results"] = trace.count(Role::Tool).into();
                row["repairs"] = trace.repairs.clone().into();
                row["task"] = first_message(trace).into();
                row["ends"] = recorded::ending(trace).into();
                row["doubts"] = doubts(trace, tools).into();
            }
            Err(why) => row["unusable"] = why.as_str().into(),
        }
        secret::conceal(&mut row);
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
                let texts = |key: &str| row[key].as_array().cloned().unwrap_or_default();
                let about: Vec<Value> = [texts("doubts"), texts("repairs")].concat();
                let about: Vec<&str> = about.iter().filter_map(Value::as_str).collect();
                let task = row["task"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>();
                let task = start_of(&task.join(" "), FIRST);
                let count =
                    |name: &str, what: &str| plural(row[name].as_u64().unwrap_or_default() as usize, what);
                format!(
                    "{}, {}\t{task}\t{}",
                    count("turns", "turn"),
                    count("results", "result"),
                    about.join("; ")
                )
            }
        };
        format!(
            "{}\t{}\t{what}\n",
            row["place"].as_str().unwrap_or_default(),
            row["format"].as_str().unwrap_or_default()
        )
    };
    printer.data(&(rows.iter().map(text).collect::<String>() + &total(&rows)));
}

/// How many conversations can be used, and why others cannot.
fn total(rows: &[Value]) -> String {
    let why = |row: &Value| row["unusable"].as_str().or_else(|| row["doubts"][0].as_str()).map(str::to_owned);
    let reasons: Vec<String> = rows.iter().filter_map(why).collect();
    let usable = rows.len() - reasons.len();
    let all = plural(rows.len(), "conversation");
    match reasons.is_empty() {
        true => format!("{all}, all usable\n"),
        false => {
            let groups = recorded::in_groups(reasons.iter().map(String::as_str));
            format!("{all}, {usable} usable; {} not: {groups}\n", reasons.len())
        }
    }
}

/// Asks for a decision on each conversation; returns how many are left.
fn review(
    open: &[(&RecordedTrace, &Trace)],
    input: &mut impl BufRead,
    say: &mut dyn FnMut(&str),
    save: &mut dyn FnMut(&Value) -> Result<(), ReviewError>,
) -> Result<usize, ReviewError> {
    let card =
        |(found, trace): &(&RecordedTrace, &Trace), place: usize| shown(found, trace, place, open.len());
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
    let first = trace.messages.iter().position(|message| message.role == Role::User);
    let is_answer = |message: &Message| message.role == Role::Assistant && editable(message).is_some();
    let texts = [(first, task), (trace.messages.iter().rposition(is_answer), answer)].into_iter();
    let texts = texts.filter_map(|(place, text)| Some((place?, text)));
    texts.filter(|(_, text)| !text.is_empty()).collect()
}

/// Characters of a message that are shown.
const SHOWN: usize = 600;

fn shown(found: &RecordedTrace, trace: &Trace, place: usize, of: usize) -> String {
    let mut text = format!("\n{place}/{of}  {}\n", found.place);
    let cut = |text: &str| text.chars().take(SHOWN).collect::<String>();
    for message in &trace.messages {
        let mut said = message.text.clone();
        for call in &message.calls {
            said += &format!(" → {} {}", call.name, call.arguments_json());
        }
        text += &format!("{}: {}\n", message.role.name(), cut(said.trim()));
    }
    trace.repairs.iter().for_each(|repair| text += &format!("note: {repair}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_was_asked_how_it_ends_and_what_is_in_the_way() {
        let call = |name: &str| json!({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": name, "arguments": "{}"}}]});
        let asked = |text: &str| json!({"role": "user", "content": text});
        let tools = json!([{"type": "function", "function": {"name": "find"}}]);
        let result = json!({"role": "tool", "tool_call_id": "a", "content": "7"});
        let answer = json!({"role": "assistant", "content": "7"});
        let key = format!("use sk-{}", "a1B2c3D4e5F6".repeat(4));
        let items = [
            json!({"tools": tools, "messages": [asked("How many?"), call("mcp__x__find"), result, answer]}),
            json!({"tools": tools, "messages": [asked(&key), answer]}),
            json!({"tools": tools, "messages": [asked("Drop it."), call("drop"), result]}),
        ];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.jsonl");
        std::fs::write(&path, items.map(|item| format!("{item}\n")).concat()).unwrap();
        let found = recorded::read(&path).unwrap();
        let said: Vec<Vec<String>> =
            found.iter().map(|found| doubts(found.trace.as_ref().unwrap(), None)).collect();
        assert_eq!(
            said,
            [
                vec![],
                vec!["holds what looks like a key of OpenAI".to_owned()],
                vec![
                    "ends with a result, without an answer".to_owned(),
                    "calls `drop`, which is not offered".to_owned()
                ],
            ]
        );
        let first: Vec<&str> = found.iter().map(|one| first_message(one.trace.as_ref().unwrap())).collect();
        assert_eq!(first, ["How many?", "…", "Drop it."], "a secret is not shown");
        let none: Vec<String> = Vec::new();
        assert_eq!(
            doubts(found[0].trace.as_ref().unwrap(), Some(&none)),
            ["calls `mcp__x__find`, which is not offered"]
        );
        let rows: Vec<Value> = said.iter().map(|doubts| json!({"doubts": doubts})).collect();
        assert_eq!(
            total(&rows),
            "3 conversations, 1 usable; 2 not: 1 × ends with a result, without an answer; 1 × holds what looks like a key of \
             OpenAI\n"
        );
    }

    fn found() -> Vec<RecordedTrace> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.jsonl");
        let item = |task: &str| json!({"messages": [{"role": "user", "content": task}, {"role": "assistant", "content": "7"}]});
        let lines: String = ["one", "two", "three"].iter().map(|task| format!("{}\n", item(task))).collect();
        std::fs::write(&path, lines + "{\"text\": 1}\n").unwrap();
        recorded::read(&path).unwrap()
    }

    #[test]
    fn what_is_accepted_or_edited_is_read_again_and_what_is_dropped_is_not() {
        let (found, folder) = (found(), tempfile::tempdir().unwrap());
        let out = folder.path().join("kept.jsonl");
        let open: Vec<(&RecordedTrace, &Trace)> =
            found.iter().filter_map(|found| Some((found, found.trace.as_ref().ok()?))).collect();
        let mut save = |line: &Value| append(&out, line);
        let keys = "a\nd\nx\ne\nthe third\n8\n";
        let left = review(&open, &mut keys.as_bytes(), &mut |_| {}, &mut save).unwrap();
        assert_eq!((open.len(), left), (3, 0));
        let kept = recorded::read(&out).unwrap();
        let messages = |found: &RecordedTrace| found.trace.as_ref().unwrap().messages.clone();
        assert_eq!(kept.len(), 2);
        assert_eq!(messages(&kept[0]), messages(&found[0]));
        let edited = messages(&kept[1]);
        assert_eq!((edited[0].text.as_str(), edited[1].text.as_str()), ("the third", "8"));
        let decided = decisions(&out).unwrap();
        assert_eq!(decided.len(), 3, "all three are decided, the edited one by what it was");
        assert!(decided.contains_key(&digest(open[2].1)));
    }

    #[test]
    fn the_end_of_input_leaves_the_rest() {
        let found = found();
        let open: Vec<(&RecordedTrace, &Trace)> =
            found.iter().filter_map(|found| Some((found, found.trace.as_ref().ok()?))).collect();
        let left = review(&open, &mut "s\na\n".as_bytes(), &mut |_| {}, &mut |_| Ok(())).unwrap();
        assert_eq!(left, 2);
    }
}
