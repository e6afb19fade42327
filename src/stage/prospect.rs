//! A stage before it is worked: what is wrong with it already, and what is known of what it will write.
//!
//! Every built-in kind has a `look` beside its `run`. It sees the parameters and what earlier stages are foreseen to
//! write, reads no more of a file than it takes to know that the stage would fail (headers and configurations; tasks up
//! to a megabyte), and says so before anything is worked. What it objects to follows from what is in the stage's key, so
//! a stage that has a result was never objected to; what depends on the machine is told apart.

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

/// What is known of an artifact that is not there yet.
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

/// Scenarios to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tasks {
    /// What is asked.
    pub texts: Arc<[String]>,
    /// Those with a known answer.
    pub answered: usize,
    /// Those with a reference solution.
    pub solved: usize,
    /// Tasks of the other split.
    pub others: usize,
}

impl Tasks {
    pub fn count(&self) -> usize {
        self.texts.len()
    }
}

/// A stage that is looked at.
pub struct Prospect<'a> {
    pub card: &'a Card,
    pub params: &'a Map<String, Value>,
    /// What the stage will be handed; 0 for kinds that do not draw.
    pub seed: u64,
    /// By role, with the names they have there. Empty for a role that is not given.
    pub inputs: &'a BTreeMap<String, Vec<(String, Foreseen)>>,
    pub engine: &'a EngineSpec,
    /// Finds an output of this stage where it is finished.
    pub finished: &'a dyn Fn(&str) -> Option<PathBuf>,
    pub looked: &'a Looked,
}

/// What looks have read, for the next ones.
#[derive(Default)]
pub struct Looked {
    tokenizers: SharedModels,
    /// Declarations that nothing is wrong with.
    families: RefCell<BTreeSet<PathBuf>>,
}

/// Why a stage would fail.
#[derive(Debug)]
pub struct Objection {
    /// The parameter or role that it is about, or the key of a section.
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
    /// What a person should know of a stage that works all the same.
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
        self.inputs.get(role)?.first()?.1.policy()
    }

    /// The scenarios, as far as they are known.
    pub fn tasks(&self) -> Option<&Tasks> {
        match self.inputs.get("scenarios")?.first()? {
            (_, Foreseen::Tasks(tasks)) => Some(tasks),
            _ => None,
        }
    }

    /// The table of tools, if it is there.
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

    /// Reads a declaration of families, unless that was done before.
    pub fn check_families(&self, file: &Path) -> Result<(), ScenarioError> {
        let mut known = self.looked.families.borrow_mut();
        if !known.contains(file) {
            Families::load(file)?;
            known.insert(file.to_owned());
        }
        Ok(())
    }
}

/// Of kinds that have nothing to say.
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

    /// What a kind says to these inputs and parameters, over its card's defaults.
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
        // What an adapter sits on was decided when it was made.
        check("grpo", &[("policy", policy(100, Some(8)))], json!({ "targets": ["nothing"] }), &[]);
        // Of a model that is not known yet nothing is said.
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
