//! Which calls are made: by rules about the tools, and where they say so, by a person.
//!
//! A server's annotation `readOnlyHint` is its own word. A rule counts more.

use std::{collections::BTreeSet, sync::Arc};

use clap::Args;
use parking_lot::Mutex;
use regex::Regex;
use serde_json::{Map, Value};

use crate::{
    agent::{Refusal, Toolbox},
    chat::ToolCall,
    data::{CallError, Tool},
    error::Diagnostic,
    report::escape::visible,
};

#[derive(Args, Debug, Default, Clone)]
#[command(next_help_heading = "Approval of calls")]
pub struct RuleArgs {
    /// Make calls of the tools that fit GLOB without asking, as those of tools that declare themselves read-only. `*`
    /// stands for any letters, `?` for one. `--deny` counts more than `--ask`, and `--ask` more than `--allow`.
    #[arg(long, value_name = "GLOB")]
    pub allow: Vec<String>,
    /// Ask before each call of the tools that fit GLOB.
    #[arg(long, value_name = "GLOB")]
    pub ask: Vec<String>,
    /// Never call the tools that fit GLOB.
    #[arg(long, value_name = "GLOB")]
    pub deny: Vec<String>,
    /// Make every call that is not denied, without asking.
    #[arg(long, short)]
    pub yes: bool,
}

impl RuleArgs {
    /// An option that is given.
    pub fn first(&self) -> Option<&'static str> {
        let given = [
            ("--allow", !self.allow.is_empty()),
            ("--ask", !self.ask.is_empty()),
            ("--deny", !self.deny.is_empty()),
            ("--yes", self.yes),
        ];
        given.into_iter().find_map(|(option, given)| given.then_some(option))
    }
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("`{option} {glob}` fits none of the tools")]
#[diagnostic(code = "talk::rule", class = usage)]
#[hint(format!("`*` stands for any letters; the tools are {}", tools.join(", ")))]
pub struct RuleError {
    option: &'static str,
    glob: String,
    tools: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Allow,
    Ask,
    Deny,
}

/// The rules of `--allow`, `--ask` and `--deny`.
struct Rules {
    allow: Vec<Regex>,
    ask: Vec<Regex>,
    deny: Vec<Regex>,
    yes: bool,
    /// Tools that declare themselves read-only.
    read_only: BTreeSet<String>,
}

impl Rules {
    fn new(given: &RuleArgs, tools: &[Tool]) -> Result<Self, RuleError> {
        let names = || tools.iter().filter(|tool| !tool.synthetic).map(|tool| tool.name.as_str());
        let rule = |option, glob: &String| {
            let rule = regex(glob).filter(|rule| names().any(|name| rule.is_match(name)));
            let tools = || names().map(str::to_owned).collect();
            rule.ok_or_else(|| RuleError { option, glob: glob.clone(), tools: tools() })
        };
        let rules = |option, globs: &[String]| -> Result<Vec<Regex>, RuleError> {
            globs.iter().map(|glob| rule(option, glob)).collect()
        };
        let is_read_only = |tool: &&Tool| tool.hint("readOnlyHint") == Some(true);
        Ok(Self {
            allow: rules("--allow", &given.allow)?,
            ask: rules("--ask", &given.ask)?,
            deny: rules("--deny", &given.deny)?,
            yes: given.yes,
            read_only: tools.iter().filter(is_read_only).map(|tool| tool.name.clone()).collect(),
        })
    }

    fn decide(&self, tool: &str) -> Decision {
        let fits = |rules: &[Regex]| rules.iter().any(|rule| rule.is_match(tool));
        match () {
            () if fits(&self.deny) => Decision::Deny,
            () if self.yes => Decision::Allow,
            () if fits(&self.ask) => Decision::Ask,
            () if fits(&self.allow) || self.read_only.contains(tool) => Decision::Allow,
            () => Decision::Ask,
        }
    }
}

fn regex(glob: &str) -> Option<Regex> {
    let pattern = regex::escape(glob).replace(r"\*", ".*").replace(r"\?", ".");
    Regex::new(&format!("^(?s:{pattern})$")).ok()
}

/// Somebody who is asked.
pub trait Ask {
    /// The answer to a question, with a text to begin with; none if it was cancelled.
    fn ask(&mut self, question: &str, initial: &str) -> Option<String>;
}

pub type Person = Arc<Mutex<dyn Ask + Send>>;

/// The question was cancelled, and with it the turn.
pub struct Cancelled;

/// Decides about each call.
pub struct Approval {
    rules: Rules,
    /// Tools that the person has allowed until the end.
    always: BTreeSet<String>,
    person: Option<Person>,
    toolbox: Toolbox,
}

impl Approval {
    /// # Errors
    /// If a rule fits no tool.
    pub fn new(
        given: &RuleArgs,
        tools: &[Tool],
        toolbox: &Toolbox,
        person: Option<Person>,
    ) -> Result<Self, RuleError> {
        let rules = Rules::new(given, tools)?;
        Ok(Self { rules, always: BTreeSet::new(), person, toolbox: toolbox.clone() })
    }

    /// What happens to a call of each tool, for people.
    pub fn of_tool(&self, tool: &str) -> &'static str {
        match self.rules.decide(tool) {
            Decision::Allow => "allowed",
            Decision::Ask if self.always.contains(tool) => "allowed in this session",
            Decision::Ask => "asks",
            Decision::Deny => "denied",
        }
    }

    /// Whether a call is made, perhaps with other arguments.
    ///
    /// # Errors
    /// If the person cancels the turn.
    pub fn decide(
        &mut self,
        tool: &str,
        arguments: &mut Map<String, Value>,
    ) -> Result<Result<(), Refusal>, Cancelled> {
        let refusal = |why: String| Ok(Err(Refusal(CallError::Refused, why)));
        match self.rules.decide(tool) {
            Decision::Allow => return Ok(Ok(())),
            Decision::Deny => return refusal(format!("calls of {tool} are not allowed here")),
            Decision::Ask if self.always.contains(tool) => return Ok(Ok(())),
            Decision::Ask => {}
        }
        let Some(person) = self.person.clone() else {
            return refusal(format!("calls of {tool} need approval, and nobody is here to give it"));
        };
        let mut person = person.lock();
        let mut ask = |question: &str, initial: &str| person.ask(question, initial).ok_or(Cancelled);
        loop {
            let shown = visible(tool);
            let answer = ask(&format!("call {shown}? [y]es, [n]o, [a]lways, [e]dit: "), "")?;
            match answer.trim().to_lowercase().as_str() {
                "y" | "yes" => return Ok(Ok(())),
                "a" | "always" => {
                    self.always.insert(tool.to_owned());
                    return Ok(Ok(()));
                }
                "n" | "no" => {
                    let reason = ask("reason, for the model (or nothing): ", "")?;
                    return refusal(match reason.trim() {
                        "" => "the user did not allow this call".to_owned(),
                        reason => format!("the user did not allow this call: {reason}"),
                    });
                }
                "e" | "edit" => break,
                _ => {}
            }
        }
        let mut problem = String::new();
        let mut text = Value::Object(arguments.clone()).to_string();
        loop {
            text = ask(&format!("{problem}arguments: "), &text)?;
            match self.edited(tool, &text) {
                Ok(edited) => {
                    *arguments = edited;
                    return Ok(Ok(()));
                }
                Err(why) => problem = format!("{}\n", visible(&why)),
            }
        }
    }

    /// The arguments in this text, if they fit the tool's schema.
    fn edited(&self, tool: &str, text: &str) -> Result<Map<String, Value>, String> {
        let arguments: Map<String, Value> =
            serde_json::from_str(text).map_err(|cause| format!("not a JSON object: {cause}"))?;
        let call = ToolCall { name: tool.to_owned(), arguments };
        match self.toolbox.problem(&call) {
            None => Ok(call.arguments),
            Some(problem) => Err(problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(given: &RuleArgs) -> Result<Rules, RuleError> {
        let tool = |name: &str, annotations: &str| Tool {
            name: name.into(),
            annotations: Some(annotations.into()),
            ..crate::agent::testing::tool(name)
        };
        let read_only = r#"{"readOnlyHint": true}"#;
        Rules::new(given, &[tool("get_note", read_only), tool("add_note", "{}"), tool("drop_note", "{}")])
    }

    fn globs(globs: &[&str]) -> Vec<String> {
        globs.iter().map(|glob| (*glob).to_owned()).collect()
    }

    #[test]
    fn without_rules_a_tool_that_declares_itself_read_only_is_allowed_and_others_are_asked_for() {
        let rules = rules(&RuleArgs::default()).unwrap();
        assert_eq!(rules.decide("get_note"), Decision::Allow);
        assert_eq!(rules.decide("add_note"), Decision::Ask);
    }

    #[test]
    fn deny_counts_more_than_ask_and_ask_more_than_allow() {
        let (all, some) = (globs(&["*"]), globs(&["add_*", "get_?ote"]));
        let allow = RuleArgs { allow: all, ask: some, deny: globs(&["drop_note"]), yes: false };
        let mixed = rules(&allow).unwrap();
        let decided = ["get_note", "add_note", "drop_note"].map(|tool| mixed.decide(tool));
        assert_eq!(decided, [Decision::Ask, Decision::Ask, Decision::Deny]);
        let yes = rules(&RuleArgs { yes: true, ..allow }).unwrap();
        let decided = ["get_note", "add_note", "drop_note"].map(|tool| yes.decide(tool));
        assert_eq!(
            decided,
            [Decision::Allow, Decision::Allow, Decision::Deny],
            "--yes replaces the question"
        );
    }

    #[test]
    fn a_glob_is_about_the_whole_name_and_has_no_other_signs() {
        let is = |glob: &str, name: &str| regex(glob).unwrap().is_match(name);
        assert!(is("get_*", "get_note") && is("*", "x") && is("g?t", "get"));
        assert!(!is("get", "get_note") && !is("g.t", "get") && !is("[a-z]*", "get"));
    }

    #[test]
    fn a_rule_that_fits_no_tool_is_a_mistake() {
        let wrong = rules(&RuleArgs { deny: globs(&["delete_*"]), ..RuleArgs::default() }).err().unwrap();
        assert_eq!(wrong.to_string(), "`--deny delete_*` fits none of the tools");
    }

    /// Gives these answers, then cancels.
    struct Answers(Vec<&'static str>, Vec<String>);

    impl Ask for Answers {
        fn ask(&mut self, question: &str, initial: &str) -> Option<String> {
            self.1.push(format!("{question}{initial}"));
            (!self.0.is_empty()).then(|| self.0.remove(0).to_owned())
        }
    }

    /// The decisions about calls of `add_note` with these answers, the arguments afterwards, and the questions.
    fn asked(answers: &[&'static str], calls: usize) -> (Vec<String>, Value, Vec<String>) {
        let person = Arc::new(Mutex::new(Answers(answers.to_vec(), Vec::new())));
        let agent = crate::agent::testing::agent();
        let tools = crate::agent::testing::tools();
        let mut approval =
            Approval::new(&RuleArgs::default(), &tools, &agent.toolbox, Some(person.clone())).unwrap();
        let mut arguments = Map::from_iter([("text".to_owned(), Value::from("milk"))]);
        let mut decide = || match approval.decide("add_note", &mut arguments) {
            Ok(Ok(())) => "made".to_owned(),
            Ok(Err(Refusal(CallError::Refused, why))) => why,
            Ok(Err(_)) => "another error".to_owned(),
            Err(Cancelled) => "cancelled".to_owned(),
        };
        let decided = (0..calls).map(|_| decide()).collect();
        let questions = person.lock().1.clone();
        (decided, arguments.into(), questions)
    }

    #[test]
    fn a_person_allows_once_always_or_not_with_a_reason() {
        assert_eq!(
            asked(&["what?", "y", "n", "not now"], 2).0,
            ["made", "the user did not allow this call: not now"]
        );
        assert_eq!(asked(&["a"], 3).0, ["made"; 3]);
        assert_eq!(asked(&["n", ""], 1).0, ["the user did not allow this call"]);
        assert_eq!(asked(&[], 1).0, ["cancelled"]);
    }

    #[test]
    fn edited_arguments_are_asked_for_until_they_fit_the_schema() {
        let (decided, arguments, questions) = asked(&["e", "{", r#"{"text": 7}"#, r#"{"text": "eggs"}"#], 1);
        assert_eq!((decided, arguments), (vec!["made".to_owned()], serde_json::json!({"text": "eggs"})));
        assert!(questions[1].ends_with(r#"{"text":"milk"}"#), "{questions:?}");
        assert!(questions[2].starts_with("not a JSON object") && questions[3].contains("wrong arguments"));
    }

    #[test]
    fn without_a_person_a_call_that_would_be_asked_for_is_refused() {
        let agent = crate::agent::testing::agent();
        let mut approval =
            Approval::new(&RuleArgs::default(), &crate::agent::testing::tools(), &agent.toolbox, None)
                .unwrap();
        let Ok(Err(Refusal(CallError::Refused, why))) = approval.decide("add_note", &mut Map::new()) else {
            panic!("the call is made");
        };
        assert!(why.contains("nobody is here"), "{why}");
    }
}
