//! A stage before it is worked: what is wrong with it already, and what is known of what it will write.
//!
//! Every built-in kind has a `look` beside its `run`. It sees the parameters and what earlier stages are foreseen to
//! write, reads no more of a file than it takes to know that the stage would fail (headers and configurations; tasks up
//! to a megabyte), and says so before anything is worked. What it objects to follows from what is in the stage's key, so
//! a stage that has a result was never objected to; what depends on the machine is told apart.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Card, StageError, memory::Policy, typed};
use crate::{
    error::Failure,
    mcp::program_is_there,
    model::{ModelConfig, ModelError},
};

/// What is known of an artifact that is not there yet.
#[derive(Debug, Clone, PartialEq)]
pub enum Foreseen {
    Policy(Policy),
    Tasks(Tasks),
    Nothing,
}

/// Scenarios to come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tasks {
    pub count: usize,
    /// Those with a known answer.
    pub answered: usize,
    /// Those with a reference solution.
    pub solved: usize,
}

/// A stage that is looked at.
pub struct Prospect<'a> {
    pub card: &'a Card,
    pub params: &'a Map<String, Value>,
    /// What the stage will be handed; 0 for kinds that do not draw.
    pub seed: u64,
    /// By role, with the names they have there. Empty for a role that is not given.
    pub inputs: &'a BTreeMap<String, Vec<(String, Foreseen)>>,
    /// Finds an output of this stage where it is finished.
    pub finished: &'a dyn Fn(&str) -> Option<PathBuf>,
}

/// Why a stage would fail.
#[derive(Debug)]
pub struct Objection {
    /// The parameter or role that it is about.
    pub about: Option<&'static str>,
    pub cause: Failure,
}

/// What there is to say of a stage ahead of time.
#[derive(Debug, Default)]
pub struct Outlook {
    /// Follow from the stage's key alone.
    pub objections: Vec<Objection>,
    /// What this machine lacks for it.
    pub lacks: Vec<Objection>,
    /// By port.
    pub outputs: BTreeMap<&'static str, Foreseen>,
}

impl Outlook {
    pub fn object(&mut self, about: &'static str, cause: impl Into<Failure>) {
        self.objections.push(Objection { about: Some(about), cause: cause.into() });
    }

    pub fn lack(&mut self, about: &'static str, cause: impl Into<Failure>) {
        self.lacks.push(Objection { about: Some(about), cause: cause.into() });
    }

    /// Objects with the error, if it is one.
    pub fn take<T>(&mut self, about: &'static str, found: Result<T, impl Into<Failure>>) -> Option<T> {
        found.map_err(|cause| self.object(about, cause)).ok()
    }

    #[must_use]
    pub fn with(mut self, port: &'static str, foreseen: Foreseen) -> Self {
        self.outputs.insert(port, foreseen);
        self
    }
}

impl Prospect<'_> {
    /// The parameters as the stage's own struct; an objection to them where they are none.
    pub fn params<P: DeserializeOwned>(&self, outlook: &mut Outlook) -> Option<P> {
        let found = typed(self.params);
        found.map_err(|cause| outlook.objections.push(Objection { about: None, cause: cause.into() })).ok()
    }

    /// The one policy in this role, as far as it is known.
    pub fn policy(&self, role: &str) -> Option<&Policy> {
        match self.inputs.get(role)?.first()? {
            (_, Foreseen::Policy(policy)) => Some(policy),
            _ => None,
        }
    }

    /// The scenarios, as far as they are known.
    pub fn tasks(&self) -> Option<Tasks> {
        match self.inputs.get("scenarios")?.first()? {
            (_, Foreseen::Tasks(tasks)) => Some(*tasks),
            _ => None,
        }
    }

    /// The model that this finished stage wrote.
    pub fn written_model(&self) -> Option<Result<ModelConfig, ModelError>> {
        Some(ModelConfig::load(&(self.finished)("policy")?))
    }
}

/// Of a user's own kind: whether the program is there.
pub fn look_at_command(card: &Card) -> Outlook {
    let mut outlook = Outlook::default();
    let program = card.command.first().map(String::as_str).unwrap_or_default();
    let beside = card.code.contains_key(program);
    // Any other relative path would start at an empty folder.
    if !beside && !program_is_there(program, Some(Path::new("/nowhere"))) {
        let source = std::io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error());
        let cause = StageError::Start { command: card.command.join(" "), source };
        outlook.lacks.push(Objection { about: None, cause: cause.into() });
    }
    outlook
}

/// Of kinds that have nothing to say.
pub fn nothing(_: &Prospect<'_>) -> Outlook {
    Outlook::default()
}
