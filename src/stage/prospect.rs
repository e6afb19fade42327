//! Checks of a stage before it runs: what is already wrong, and what is known of its outputs.
//!
//! Every built-in kind has a `look` next to its `run`. It sees the parameters and the expected outputs of
//! earlier stages. It reads only what is needed to know that the stage would fail: headers, configurations,
//! tasks up to a megabyte. Objections depend only on what is in the stage's key, so a stage with a result has
//! none. Problems of this machine are reported separately.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    Card, SharedModels,
    memory::Policy,
    scenarios::{Families, ScenarioError},
    typed,
};
use crate::{
    chat::{ChatError, Vocabulary},
    engine::EngineSpec,
    error::Failure,
    hash::Digest,
};

/// What is known of an artifact that does not exist yet.
#[derive(Debug, Clone, PartialEq)]
pub enum Foreseen {
    Policy(Arc<Policy>),
    Tasks(Tasks),
    /// The table of a server's tools.
    Tools(PathBuf),
    Nothing,
}

impl From<Policy> for Foreseen {
    fn from(policy: Policy) -> Self {
        Self::Policy(Arc::new(policy))
    }
}

impl Foreseen {
    pub fn policy(&self) -> Option<&Policy> {
        match self {
            Self::Policy(policy) => Some(policy.as_ref()),
            _ => None,
        }
    }
}

/// Expected scenarios.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tasks {
    /// Task texts.
    pub texts: Arc<[String]>,
    /// Number with a known answer.
    pub answered: usize,
    /// Number with a reference solution.
    pub solved: usize,
    /// Number of tasks in the other split.
    pub others: usize,
}

impl Tasks {
    pub fn count(&self) -> usize {
        self.texts.len()
    }
}

/// A stage to check.
pub struct Prospect<'a> {
    pub card: &'a Card,
    pub params: &'a Map<String, Value>,
    /// The stage's seed; 0 for kinds without one.
    pub seed: u64,
    /// Inputs by role, with their names. Empty for a role that is not given.
    pub inputs: &'a BTreeMap<String, Vec<(String, Foreseen)>>,
    pub engine: &'a EngineSpec,
    /// Finds an output of this stage if it is finished.
    pub finished: &'a dyn Fn(&str) -> Option<PathBuf>,
    pub looked: &'a Looked,
}

/// What checks have read, shared with later ones.
#[derive(Default)]
pub struct Looked {
    tokenizers: SharedModels,
    /// Valid declarations.
    families: RefCell<BTreeSet<PathBuf>>,
}

/// Why a stage would fail.
#[derive(Debug)]
pub struct Objection {
    /// The parameter, role or section key that caused it.
    pub about: Option<&'static str>,
    pub cause: Failure,
}

/// Result of checking a stage.
#[derive(Debug, Default)]
pub struct Outlook {
    /// Depend only on the stage's key.
    pub objections: Vec<Objection>,
    /// What this machine lacks.
    pub lacks: Vec<Objection>,
    /// Notes for the user; the stage runs anyway.
    pub notes: Vec<Objection>,
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

    pub fn note(&mut self, about: &'static str, cause: impl Into<Failure>) {
        self.notes.push(Objection { about: Some(about), cause: cause.into() });
    }

    /// Adds the error, if any, as an objection.
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
    /// The parameters as the stage's own struct; adds an objection if they do not parse.
    pub fn params<P: DeserializeOwned>(&self, outlook: &mut Outlook) -> Option<P> {
        let found = typed(self.params);
        found.map_err(|cause| outlook.objections.push(Objection { about: None, cause: cause.into() })).ok()
    }

    /// The single policy in this role, if known.
    pub fn policy(&self, role: &str) -> Option<&Policy> {
        self.inputs.get(role)?.first()?.1.policy()
    }

    /// The scenarios, if known.
    pub fn tasks(&self) -> Option<&Tasks> {
        match self.inputs.get("scenarios")?.first()? {
            (_, Foreseen::Tasks(tasks)) => Some(tasks),
            _ => None,
        }
    }

    /// The table of tools, if it exists.
    pub fn tools(&self) -> Option<&Path> {
        match self.inputs.get("tools")?.first()? {
            (_, Foreseen::Tools(path)) => Some(path),
            _ => None,
        }
    }

    /// The tokenizer in this folder.
    pub fn vocabulary(&self, folder: &Path) -> Result<Arc<Vocabulary>, ChatError> {
        let name = Digest::of(folder.as_os_str().as_encoded_bytes());
        self.looked.tokenizers.vocabulary(name, folder)
    }

    /// Reads a declaration of families, unless already read.
    pub fn check_families(&self, file: &Path) -> Result<(), ScenarioError> {
        let mut known = self.looked.families.borrow_mut();
        if !known.contains(file) {
            Families::load(file)?;
            known.insert(file.to_owned());
        }
        Ok(())
    }
}

/// For kinds without checks.
pub fn nothing(_: &Prospect<'_>) -> Outlook {
    Outlook::default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        model::{AdapterConfig, Design, ModelConfig, kernels::Heads},
        stage::{Cards, registry},
    };

    fn policy(vocabulary: usize, rank: Option<usize>) -> Foreseen {
        let config = ModelConfig {
            vocabulary,
            hidden: 32,
            intermediate: 64,
            layers: 2,
            heads: Heads { query: 4, kv: 2, dim: 8 },
            context: 128,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-6,
            tied: true,
            design: Design::default(),
        };
        let adapter = rank.map(|rank| AdapterConfig::new(rank, 1.0).size(&config).unwrap());
        Policy { config, adapter, folder: None }.into()
    }

    fn tasks(count: usize, answered: usize) -> Tasks {
        Tasks { texts: (0..count).map(|task| task.to_string()).collect(), answered, solved: 0, others: 0 }
    }

    /// Checks a kind with these inputs and parameters, over its card's defaults.
    fn look(kind: &str, inputs: &[(&str, Foreseen)], params: Value) -> (Vec<String>, Outlook) {
        let card = Cards::new(None).get(kind).unwrap().unwrap();
        let defaults =
            card.params.iter().filter_map(|(name, param)| Some((name.clone(), param.default.clone()?)));
        let params: Map<String, Value> =
            defaults.chain(params.as_object().cloned().unwrap_or_default()).collect();
        let named = |(role, foreseen): &(&str, Foreseen)| {
            ((*role).to_owned(), vec![((*role).to_owned(), foreseen.clone())])
        };
        let inputs = inputs.iter().map(named).collect();
        let engine =
            EngineSpec { devices: vec!["cpu".into()], threads: Some(2), dtype: None, kv_cache_mib: Some(1) };
        let prospect = Prospect {
            card: &card,
            params: &params,
            seed: 1,
            inputs: &inputs,
            engine: &engine,
            finished: &|_| None,
            looked: &Looked::default(),
        };
        let outlook = (registry::find(kind).unwrap().look)(&prospect);
        let said = |found: &Objection| format!("{}: {}", found.about.unwrap_or("-"), found.cause);
        (outlook.objections.iter().map(said).collect(), outlook)
    }

    fn check(kind: &str, inputs: &[(&str, Foreseen)], params: Value, expected: &[&str]) {
        assert_eq!(look(kind, inputs, params.clone()).0, expected, "{kind} {params}");
    }

    #[test]
    fn an_update_is_told_what_does_not_go_together() {
        let reads = [("policy", policy(100, None))];
        check("grpo", &reads, json!({}), &[]);
        check("grpo", &reads, json!({ "targets": ["v_proj", "nothing"] }), &[]);
        check("grpo", &reads, json!({ "beta2": 1.0 }), &["beta2: `beta2` is 1, and should be below 1"]);
        let two = [("policy", policy(100, None)), ("reference", policy(90, None))];
        let vocabulary = "reference: the reference has a vocabulary of 90 tokens, the policy one of 100";
        check("grpo", &two, json!({ "kl": 0.1 }), &[vocabulary]);
        // An adapter's targets were fixed when it was created.
        check("grpo", &[("policy", policy(100, Some(8)))], json!({ "targets": ["nothing"] }), &[]);
        // Nothing to check if the model is not known yet.
        check("grpo", &[("policy", Foreseen::Nothing)], json!({ "targets": ["nothing"] }), &[]);
    }

    #[test]
    fn an_update_foresees_the_rank_of_what_it_writes() {
        let rank = |from: Option<usize>, params: Value| {
            let (_, outlook) = look("grpo", &[("policy", policy(100, from))], params);
            let Some(Foreseen::Policy(policy)) = outlook.outputs.get("policy") else { panic!("a policy") };
            policy.adapter.map(|size| size.ranks)
        };
        // On seven linear layers of two decoder layers.
        assert_eq!(rank(None, json!({ "rank": 4 })), Some(2 * 7 * 4));
        assert_eq!(rank(None, json!({ "rank": 4, "targets": ["q_proj"] })), Some(2 * 4));
        assert_eq!(rank(Some(8), json!({ "rank": 4 })), Some(2 * 7 * 8), "it is trained on");
        assert_eq!(rank(None, json!({ "lora": false })), None);
    }

    #[test]
    fn a_base_from_nothing_is_told_of_a_shape_that_no_decoder_has() {
        let folder = tempfile::tempdir().unwrap();
        let families = folder.path().join("f.toml");
        let sqlite = concat!(env!("CARGO_MANIFEST_DIR"), "/pipelines/sqlite.families.toml");
        std::fs::copy(sqlite, &families).unwrap();
        let with = |params: Value| {
            let mut all = json!({ "families": families });
            all.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
            look("warmup", &[], all).0
        };
        assert_eq!(with(json!({})), [""; 0]);
        assert!(with(json!({ "heads": 3 }))[0].starts_with("heads: no decoder has this shape: query heads"));
        assert!(
            with(json!({ "vocabulary": 300, "phrases": 64 }))[0]
                .starts_with("vocabulary: a vocabulary of 300")
        );
        let solved = [("scenarios", Foreseen::Tasks(tasks(3, 3)))];
        let said = look("warmup", &solved, json!({ "families": families })).0;
        assert!(said[0].starts_with("scenarios: there is nothing to show"), "{said:?}");
        std::fs::write(&families, "nonsense").unwrap();
        assert!(with(json!({}))[0].starts_with("families: f.toml: "));
    }

    #[test]
    fn of_a_long_file_of_tasks_the_beginning_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tasks.jsonl");
        let line =
            |task: usize| format!("{{\"task\": \"task {task} {}\", \"answer\": 1}}\n", "x".repeat(100));
        let good: String = (0..10_000).map(line).collect();
        let tasks = |text: &str| {
            std::fs::write(&file, text).unwrap();
            look("scenarios", &[], json!({ "source": "file", "file": file }))
        };
        let (said, outlook) = tasks(&good[..line(0).len() * 10]);
        assert_eq!((said, outlook.outputs.len()), (Vec::new(), 2));
        let (said, outlook) = tasks(&good);
        assert_eq!((said, outlook.outputs.len()), (Vec::new(), 0), "how many there are is not known");
        assert!(tasks(&format!("what\n{good}")).0[0].starts_with("file: tasks.jsonl: 1 bad task"));
        assert_eq!(tasks(&format!("{good}what\n")).0, [""; 0], "that is for the stage itself");
        assert_eq!(tasks(&format!("[{}]", "1,".repeat(1 << 20))).0, [""; 0]);
    }
}
