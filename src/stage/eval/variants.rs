//! Policies with a prompt of their own: the same weights, tools, limits and seeds, and another system prompt, a guide to the server,
//! or solved tasks.
//!
//! What stands behind the system prompt takes at most half of the room that an episode has behind it: solved tasks are left out
//! first, then the end of the guide.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;

use super::{EvalError, Params, examples};
use crate::{
    data::Trajectory,
    error::Result,
    hash::{Digest, Encoder},
    stage::{
        Context, Input, StageError,
        preflight::{Preflight, PreflightContext},
        rollout::{
            prompts,
            settings::{PlaySettings, fitting},
        },
    },
};

/// The input with the guide, and the word for it in a variant.
pub const GUIDE: &str = "guide";
/// The variant that is the baseline if it solves as much as its policy.
pub const BASELINE: &str = "base+";

/// A further row of the exam.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The policy that plays.
    pub policy: String,
    /// The word `guide`, or the path of a file in place of the agent's system prompt.
    pub system: Option<String>,
    /// Solved tasks in its system prompt.
    #[serde(default)]
    pub examples: usize,
}

impl Variant {
    fn shows_guide(&self) -> bool {
        self.system.as_deref() == Some(GUIDE)
    }

    fn file(&self) -> Option<PathBuf> {
        self.system.as_ref().filter(|_| !self.shows_guide()).map(PathBuf::from)
    }
}

/// A variant with its texts.
#[derive(Debug)]
pub struct Prompted<'p> {
    pub name: &'p str,
    pub policy: &'p Input,
    file: Option<PathBuf>,
    /// Texts behind the system prompt, from all to least, each with what it is.
    texts: Vec<(String, String)>,
    /// Which of them is shown.
    shown: Option<usize>,
    pub digest: Digest,
}

impl Prompted<'_> {
    /// What stands behind the system prompt.
    pub fn behind(&self) -> &str {
        self.shown.map_or("", |shown| &self.texts[shown].0)
    }

    /// How it plays.
    pub fn play(&self, play: &PlaySettings) -> PlaySettings {
        let mut play = play.clone();
        if let Some(file) = &self.file {
            play.agent.system = Some(file.clone());
        }
        play
    }

    /// What it is, for the report.
    pub fn about(&self) -> String {
        let own = self.file.as_ref().map(|_| "a system prompt of its own".to_owned());
        let parts: Vec<String> =
            own.into_iter().chain(self.shown.map(|shown| self.texts[shown].1.clone())).collect();
        format!("{}: {} with {}.", self.name, self.policy.name, parts.join(" and "))
    }
}

/// The variants of these policies that have something to show, in the order of their names.
///
/// # Errors
/// If a policy is not there or a file cannot be read.
pub fn variants<'p>(
    params: &'p Params,
    policies: &[&'p Input],
    guide: &str,
    solved: &[&Trajectory],
) -> Result<Vec<Prompted<'p>>> {
    let mut found = Vec::new();
    for (name, variant) in &params.variants {
        let policy = policies.iter().find(|policy| policy.name == variant.policy);
        let policy =
            *policy.ok_or_else(|| no_policy(name, variant, policies.iter().map(|policy| &policy.name)))?;
        let guide = if variant.shows_guide() { guide.trim() } else { "" };
        let texts = texts(guide, &examples::texts(solved, variant.examples));
        let file = variant.file();
        let mut encoder = Encoder::new("mcprl exam variant v1");
        encoder.digest(&policy.digest).text(texts.first().map_or("", |(text, _)| text));
        if let Some(path) = &file {
            let text = std::fs::read_to_string(path)
                .map_err(|source| StageError::Read { path: path.clone(), source })?;
            encoder.text(&text);
        }
        if file.is_some() || !texts.is_empty() {
            let shown = Some(0).filter(|_| !texts.is_empty());
            found.push(Prompted { name, policy, file, texts, shown, digest: encoder.finish() });
        }
    }
    Ok(found)
}

/// A guide with all solved tasks behind it, then with fewer, then without some of its last lines.
fn texts(guide: &str, examples: &[String]) -> Vec<(String, String)> {
    let characters = |guide: &str| format!("a guide of {} characters", guide.chars().count());
    let whole = Some(guide).filter(|guide| !guide.is_empty());
    let behind = whole.map_or_else(String::new, |guide| format!("\n\n{guide}"));
    let least = usize::from(whole.is_none());
    let with = (least..=examples.len()).rev().map(|count| {
        let tasks = (count > 0).then(|| super::several(count, "solved task"));
        let about: Vec<String> = whole.map(characters).into_iter().chain(tasks).collect();
        (format!("{behind}{}", examples::joined(&examples[..count])), about.join(" and "))
    });
    let lines: Vec<&str> = guide.lines().collect();
    let cut = (1..lines.len()).rev().map(|count| {
        let guide = lines[..count].join("\n");
        (format!("\n\n{guide}"), characters(&guide))
    });
    with.chain(cut).collect()
}

/// Cuts what has no room in its model's context, and leaves out variants that would have nothing to show.
///
/// # Errors
/// If a policy or the tools cannot be read.
pub fn fit<'p>(
    context: &Context,
    play: &PlaySettings,
    variants: Vec<Prompted<'p>>,
) -> Result<Vec<Prompted<'p>>> {
    let mut fitting_ones = Vec::new();
    for mut variant in variants {
        let name = variant.name;
        if !play.agent.harness.is_empty() {
            context.observer.note(&format!("{name} is left out: the prompts of a harness are its own"));
            continue;
        }
        if variant.shown.is_some() {
            let texts: Vec<String> = variant.texts.iter().map(|(text, _)| text.clone()).collect();
            let tools = &context.input("tools")?.path;
            variant.shown = fitting(context, variant.policy, tools, &variant.play(play).agent, &texts)?;
            let whole = &variant.texts[0].1;
            match variant.shown {
                Some(0) => {}
                Some(shown) => context.observer.note(&format!(
                    "{name} has {} in its prompt, not {whole}: they take at most half of an episode's room",
                    variant.texts[shown].1
                )),
                None => context.observer.note(&format!(
                    "{name} is left out: {whole} take more than half of an episode's room; raise `max_episode_tokens`"
                )),
            }
        }
        if variant.shown.is_some() || variant.file.is_some() {
            fitting_ones.push(variant);
        }
    }
    Ok(fitting_ones)
}

/// The text of the guide.
///
/// # Errors
/// If it cannot be read.
pub fn guide(inputs: &BTreeMap<String, Vec<Input>>) -> Result<String> {
    let Some(input) = inputs.get(GUIDE).and_then(|inputs| inputs.first()) else { return Ok(String::new()) };
    let read = std::fs::read_to_string(&input.path);
    Ok(read.map_err(|source| StageError::Read { path: input.path.clone(), source })?)
}

fn no_policy<'n>(name: &str, variant: &Variant, known: impl Iterator<Item = &'n String>) -> EvalError {
    let known: Vec<&str> = known.map(String::as_str).collect();
    EvalError::NoPolicy { name: name.to_owned(), policy: variant.policy.clone(), known: known.join(", ") }
}

/// Checks that variants name what is there.
pub fn check(
    params: &Params,
    play: &PlaySettings,
    context: &PreflightContext<'_>,
    preflight: &mut Preflight,
) {
    let policies = context.inputs.get("policies").map_or(&[][..], Vec::as_slice);
    for (name, variant) in &params.variants {
        let is_taken = policies.iter().any(|(policy, _)| policy == name)
            || params.endpoints.contains_key(name)
            || super::idle::NAMES.contains(&name.as_str());
        if is_taken {
            preflight.error("variants", EvalError::SameName { name: name.clone(), other: "a variant" });
        }
        if !policies.iter().any(|(policy, _)| *policy == variant.policy) {
            preflight.error("variants", no_policy(name, variant, policies.iter().map(|(policy, _)| policy)));
        }
        let named = || name.clone();
        if variant.system.is_none() && variant.examples == 0 {
            preflight.error("variants", EvalError::NoOwnPrompt { name: named() });
        }
        if variant.shows_guide() && !context.inputs.contains_key(GUIDE) {
            preflight.error("variants", EvalError::NoGuide { name: named() });
        }
        if variant.examples > 0 && !context.inputs.contains_key(super::EXAMPLES) {
            preflight.error("variants", EvalError::NoExamples { name: named() });
        }
        if let Some(file) = variant.file() {
            let mut agent = play.agent.clone();
            agent.system = Some(file);
            prompts::check(context, "policies", &agent, preflight);
        }
    }
}
