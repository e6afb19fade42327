//! Resolves references: `stage`, `stage.output`, `@carried`, `@carried~lag`, `loop.carried`.

use super::{
    layers::{BASE, Entry, EntryPart},
    parse::{ParsedLoop, ParsedRun, ParsedStage},
    reader::Reader,
};
use crate::error::did_you_mean;

/// What a reference points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReferenceTarget {
    /// An output of a stage outside loops.
    Outer { stage: usize, port: String },
    /// An output of a stage of the same iteration.
    Inner { stage: usize, port: String },
    /// The carried value, `lag` iterations behind the newest.
    Carried { name: String, lag: u32 },
    /// The carried value after the loop's last iteration.
    Result { loop_index: usize, name: String },
}

/// Resolves references from outside all loops, or from within one.
#[derive(Clone, Copy)]
pub struct Resolver<'a> {
    pub reader: &'a Reader,
    pub parsed: &'a ParsedRun<'a>,
    /// Index of the enclosing loop.
    pub within: Option<usize>,
}

impl<'a> Resolver<'a> {
    fn enclosing(&self) -> Option<&'a ParsedLoop<'a>> {
        self.parsed.loops.get(self.within?)
    }

    /// Resolves the reference in `entry` to an artifact of this type.
    pub fn link(&self, entry: &Entry<'_>, artifact: &str) -> Option<ReferenceTarget> {
        let text = self.reader.text(entry)?;
        if let Some(carried) = text.strip_prefix('@') {
            return self.carried(entry, text, carried, artifact);
        }
        let (head, tail) = text.split_once('.').map_or((text, None), |(head, tail)| (head, Some(tail)));
        if let Some((index, parsed_loop)) = find(&self.parsed.loops, head, |parsed_loop| &parsed_loop.name) {
            return self.result(entry, index, parsed_loop, tail, artifact);
        }
        let inner =
            self.enclosing().and_then(|parsed_loop| find(&parsed_loop.stages, head, |stage| &stage.name));
        if let Some((stage, found)) = inner {
            return Some(ReferenceTarget::Inner { stage, port: self.port(entry, found, tail, artifact)? });
        }
        match find(&self.parsed.stages, head, |stage| &stage.name) {
            Some((stage, found)) => {
                Some(ReferenceTarget::Outer { stage, port: self.port(entry, found, tail, artifact)? })
            }
            None if is_path(text) => {
                let message = format!("`{}` names \"{text}\", which is a path, not a stage", entry.path);
                let hint = match artifact {
                    "policy" => {
                        format!("`model = \"{text}\"` at the top of the file makes it a stage named \"base\"")
                    }
                    _ => "a reference names a stage; a stage of kind \"scenarios\" can read a file of tasks"
                        .into(),
                };
                self.reader.wrong(entry, EntryPart::Value, message, Some(hint))
            }
            None => self.unknown(entry, head),
        }
    }

    fn unknown<T>(&self, entry: &Entry<'_>, head: &str) -> Option<T> {
        if self.parsed.broken.contains(head) {
            return None;
        }
        let inner = self.enclosing().into_iter().flat_map(|parsed_loop| &parsed_loop.stages);
        let stages = self.parsed.stages.iter().chain(inner).map(|stage| stage.name.as_str());
        let names: Vec<&str> =
            stages.chain(self.parsed.loops.iter().map(|parsed_loop| parsed_loop.name.as_str())).collect();
        let broken = self.parsed.broken.iter().map(String::as_str);
        let elsewhere =
            self.parsed.loops.iter().find(|parsed_loop| parsed_loop.stages.iter().any(|s| s.name == head));
        let hint = match (elsewhere, did_you_mean(head, names.iter().copied().chain(broken))) {
            (Some(parsed_loop), _) => format!(
                "\"{head}\" is in loop \"{0}\"; outside it only the carried values can be used: \"{0}.…\"",
                parsed_loop.name
            ),
            (None, Some(near)) => format!("did you mean \"{near}\"?"),
            (None, None) if head == BASE => {
                "name a base model at the top, `model = \"Qwen/Qwen3-0.6B\"` for example".into()
            }
            (None, None) => format!("stages: {}", names.join(", ")),
        };
        let message = format!("`{}` names \"{head}\", which is not a stage", entry.path);
        self.reader.wrong(entry, EntryPart::Value, message, Some(hint))
    }

    fn port(
        &self,
        entry: &Entry<'_>,
        stage: &ParsedStage<'_>,
        tail: Option<&str>,
        artifact: &str,
    ) -> Option<String> {
        let card = &stage.stage.card;
        let names = || card.outputs.keys().map(String::as_str);
        let Some(name) = tail else {
            let fitting: Vec<&str> =
                names().filter(|name| card.outputs[*name].artifact == artifact).collect();
            return match fitting[..] {
                [port] => Some(port.to_owned()),
                [] => {
                    let message = format!(
                        "`{}` needs {artifact}, stage \"{}\" writes {}",
                        entry.path,
                        stage.name,
                        outputs(stage)
                    );
                    self.reader.wrong(entry, EntryPart::Value, message, None)
                }
                _ => {
                    let message =
                        format!("stage \"{}\" writes several artifacts of type {artifact}", stage.name);
                    let choices: Vec<_> =
                        fitting.iter().map(|port| format!("\"{}.{port}\"", stage.name)).collect();
                    let hint = format!("choose {}", choices.join(" or "));
                    self.reader.wrong(entry, EntryPart::Value, message, Some(hint))
                }
            };
        };
        let Some(port) = card.outputs.get(name) else {
            let message = format!(
                "`{}` reads \"{}.{name}\", which stage \"{}\" does not write",
                entry.path, stage.name, stage.name
            );
            let hint = match did_you_mean(name, names()) {
                Some(near) => format!("did you mean \"{}.{near}\"?", stage.name),
                None => format!("it writes {}", outputs(stage)),
            };
            return self.reader.wrong(entry, EntryPart::Value, message, Some(hint));
        };
        if port.artifact != artifact {
            let message = format!(
                "`{}` needs {artifact}, \"{}.{name}\" is of type {}",
                entry.path, stage.name, port.artifact
            );
            return self.reader.wrong(entry, EntryPart::Value, message, None);
        }
        Some(name.to_owned())
    }

    fn carried(
        &self,
        entry: &Entry<'_>,
        text: &str,
        carried: &str,
        artifact: &str,
    ) -> Option<ReferenceTarget> {
        let Some(parsed_loop) = self.enclosing() else {
            let message = format!("\"{text}\" is only allowed in a loop");
            let name = carried.split('~').next().unwrap_or(carried);
            let carries = |parsed_loop: &&ParsedLoop<'_>| parsed_loop.carry.contains_key(name);
            let hint = match self.parsed.loops.iter().find(carries) {
                Some(parsed_loop) => format!("after the loop, use \"{}.{name}\"", parsed_loop.name),
                None => "after a loop, use \"loop.name\"".to_owned(),
            };
            return self.reader.wrong(entry, EntryPart::Value, message, Some(hint));
        };
        let (name, lag) = match carried.split_once('~') {
            Some((name, lag)) => match lag.parse::<u32>() {
                Ok(lag) => (name, lag),
                Err(_) => {
                    let message =
                        format!("\"{text}\" should end in a number of iterations, like \"@{name}~1\"");
                    return self.reader.wrong(entry, EntryPart::Value, message, None);
                }
            },
            None => (carried, 0),
        };
        self.known_carry(entry, parsed_loop, name)?;
        if lag >= parsed_loop.iterations.max(1) {
            let message = format!(
                "`{}` is {lag} iterations behind, and loop \"{}\" has {}: it would never see a new \"{name}\"",
                entry.path, parsed_loop.name, parsed_loop.iterations
            );
            let hint = Some("raise `iterations`, or lower the number after `~`".to_owned());
            return self.reader.wrong(entry, EntryPart::Value, message, hint);
        }
        self.carry_fits(entry, self.within?, name, artifact)?;
        Some(ReferenceTarget::Carried { name: name.to_owned(), lag })
    }

    fn result(
        &self,
        entry: &Entry<'_>,
        index: usize,
        parsed_loop: &ParsedLoop<'_>,
        tail: Option<&str>,
        artifact: &str,
    ) -> Option<ReferenceTarget> {
        if self.within == Some(index) {
            let message = format!("loop \"{0}\" has no result before it ends", parsed_loop.name);
            let hint = Some("in the loop, use \"@name\"".to_owned());
            return self.reader.wrong(entry, EntryPart::Value, message, hint);
        }
        let Some(name) = tail else {
            let carried: Vec<_> =
                parsed_loop.carry.keys().map(|name| format!("\"{}.{name}\"", parsed_loop.name)).collect();
            let message = format!("\"{}\" is a loop", parsed_loop.name);
            let hint = format!("its carried values: {}", carried.join(", "));
            return self.reader.wrong(entry, EntryPart::Value, message, Some(hint));
        };
        self.known_carry(entry, parsed_loop, name)?;
        self.carry_fits(entry, index, name, artifact)?;
        let starts_empty = parsed_loop.carry.get(name).and_then(Entry::text) == Some("");
        if parsed_loop.iterations == 0 && starts_empty {
            let message =
                format!("loop \"{}\" runs no iteration, and \"{name}\" starts empty", parsed_loop.name);
            let hint = Some("start it from the output of a stage".to_owned());
            return self.reader.wrong(entry, EntryPart::Value, message, hint);
        }
        Some(ReferenceTarget::Result { loop_index: index, name: name.to_owned() })
    }

    fn known_carry(&self, entry: &Entry<'_>, parsed_loop: &ParsedLoop<'_>, name: &str) -> Option<()> {
        if parsed_loop.carry.contains_key(name) {
            return Some(());
        }
        let known = || parsed_loop.carry.keys().copied();
        // A carried name has no loop prefix.
        let bare = name.rsplit('.').next().unwrap_or(name);
        let near = known().find(|known| *known == bare).or_else(|| did_you_mean(name, known()));
        let within = self.reader.text(entry).is_some_and(|text| text.starts_with('@'));
        let written =
            |name: &str| if within { format!("@{name}") } else { format!("{}.{name}", parsed_loop.name) };
        let hint = match (near, known().next()) {
            (Some(near), _) => format!("did you mean \"{}\"?", written(near)),
            (None, Some(first)) if name == parsed_loop.name => {
                format!("its carried value is \"{}\"", written(first))
            }
            (None, _) => format!("add `carry = {{ {name} = \"…\" }}` to the loop"),
        };
        let message = format!("loop \"{}\" has no carried value \"{name}\"", parsed_loop.name);
        self.reader.wrong(entry, EntryPart::Value, message, Some(hint))
    }

    fn carry_fits(&self, entry: &Entry<'_>, loop_index: usize, name: &str, artifact: &str) -> Option<()> {
        let found = carried_type(self.parsed, loop_index, name)?;
        if found == artifact {
            return Some(());
        }
        let message = format!("`{}` needs {artifact}, the carried \"{name}\" is of type {found}", entry.path);
        self.reader.wrong(entry, EntryPart::Value, message, None)
    }
}

/// Type of a carried value: the output type of the stage that renews it, if that stage has one output; else
/// the input type of its first reader.
pub fn carried_type(parsed: &ParsedRun<'_>, loop_index: usize, name: &str) -> Option<String> {
    let parsed_loop = parsed.loops.get(loop_index)?;

    let renewer = parsed_loop.stages.iter().find(|stage| yields(stage) == Some(name));
    let outputs = renewer.map(|stage| &stage.stage.card.outputs);
    let only = outputs.filter(|outputs| outputs.len() == 1).and_then(|outputs| outputs.values().next());
    only.map(|port| port.artifact.clone()).or_else(|| {
        let mut inputs = parsed_loop.stages.iter().flat_map(|stage| &stage.inputs);
        inputs.find(|input| carried_name(&input.entry) == Some(name)).map(|input| input.artifact.clone())
    })
}

/// The carried value that a reference such as `@policy~1` names.
pub fn carried_name<'e>(entry: &Entry<'e>) -> Option<&'e str> {
    entry.text()?.strip_prefix('@')?.split('~').next()
}

/// The carried value that a stage renews.
pub fn yields<'a>(stage: &ParsedStage<'a>) -> Option<&'a str> {
    stage.yields.as_ref()?.text()
}

/// `"train" (scenarios), "heldout" (scenarios)`, for messages.
fn outputs(stage: &ParsedStage<'_>) -> String {
    let outputs = stage.stage.card.outputs.iter();
    let outputs: Vec<_> = outputs.map(|(name, port)| format!("\"{name}\" ({})", port.artifact)).collect();
    outputs.join(", ")
}

fn is_path(text: &str) -> bool {
    text.starts_with('.') || text.starts_with('~') || text.contains('/')
}

fn find<'a, T>(items: &'a [T], name: &str, named: impl Fn(&'a T) -> &'a str) -> Option<(usize, &'a T)> {
    items.iter().enumerate().find(|(_, item)| named(item) == name)
}
