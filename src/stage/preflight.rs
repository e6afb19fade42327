//! Checks of a stage before it runs: why it would fail, and what is known of its outputs.
//!
//! [`StageKind::preflight`] sees the parameters and the expected outputs of earlier stages. It reads only what
//! is needed to know that the stage would fail: headers, configurations, tasks up to a megabyte.
//! [`Severity::Error`] depends only on what is in the stage's key, so a stage with a result has none.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

#[cfg(doc)]
use super::StageKind;
use super::{card::Card, scored_by::ScoredBy, shared_models::SharedModels};
use crate::{
    chat::{ChatError, Vocabulary},
    engine::EngineSpec,
    error::Failure,
    hash::Digest,
    model::{AdapterConfig, AdapterSize, ModelConfig, kernels::Format},
    usage::Prices,
};

/// What is known of an artifact that does not exist yet.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpectedOutput {
    Policy(Arc<ExpectedPolicy>),
    Scenarios(ExpectedScenarios),
    /// Scenarios of which attempts at them give all answers.
    Voted,
    /// The table of a server's tools, and whether it has all that the server lists.
    Tools {
        table: PathBuf,
        is_whole: bool,
    },
    Episodes(ExpectedEpisodes),
    /// What decides about the rewards.
    Rewards(ScoredBy),
    Unknown,
}

impl ExpectedOutput {
    /// Types of artifacts that preflight checks know something about.
    pub const TYPES: [&str; 5] = ["policy", "rewards", "scenarios", "tools", "trajectories"];

    pub fn policy(&self) -> Option<&ExpectedPolicy> {
        match self {
            Self::Policy(policy) => Some(policy.as_ref()),
            _ => None,
        }
    }

    pub fn scenarios(&self) -> Option<&ExpectedScenarios> {
        match self {
            Self::Scenarios(scenarios) => Some(scenarios),
            _ => None,
        }
    }
}

/// Expected outputs of a stage by port.
pub type ExpectedOutputs = BTreeMap<&'static str, ExpectedOutput>;

/// A policy before it is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectedPolicy {
    pub config: ModelConfig,
    /// The type of its model's weights in their files.
    pub stored: Format,
    /// Its adapter, if it is one.
    pub adapter: Option<ExpectedAdapter>,
    /// Where its model's tokenizer and template are, if they exist yet.
    pub folder: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ExpectedAdapter {
    pub config: AdapterConfig,
    /// On the policy's model.
    pub size: AdapterSize,
}

impl ExpectedAdapter {
    /// # Errors
    /// Fails if one of its patterns is invalid.
    pub fn new(config: AdapterConfig, model: &ModelConfig) -> Result<Self, String> {
        Ok(Self { size: config.size(model)?, config })
    }
}

impl ExpectedPolicy {
    pub fn adapter_size(&self) -> Option<AdapterSize> {
        self.adapter.as_ref().map(|adapter| adapter.size)
    }
}

impl From<ExpectedPolicy> for ExpectedOutput {
    fn from(policy: ExpectedPolicy) -> Self {
        Self::Policy(Arc::new(policy))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedScenarios {
    /// Task texts.
    pub texts: Arc<[String]>,
    /// Number with a known answer.
    pub answered: usize,
    /// Number with a reference solution.
    pub solved: usize,
    /// Texts of those that an agent solves which calls no tool (`judge/idle.rs`).
    pub idle: Vec<String>,
    /// Number of tasks in the other split.
    pub others: usize,
}

impl ExpectedScenarios {
    pub fn count(&self) -> usize {
        self.texts.len()
    }
}

/// What is known of a table of trajectories; the numbers are upper bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpectedEpisodes {
    pub count: usize,
    /// Tokens of the longest.
    pub longest: usize,
    /// Most attempts at one task, if all tasks have as many.
    pub group: Option<u32>,
    /// A sampling parameter with its value, if tokens are not drawn with the policy's own probabilities because of it.
    pub altered: Option<(&'static str, f32)>,
}

/// Expected content of a stage's inputs by role, with their names. Lacks roles that are not given.
pub type ExpectedInputs = BTreeMap<String, Vec<(String, ExpectedOutput)>>;

/// What a preflight check may use.
pub struct PreflightContext<'a> {
    pub card: &'a Card,
    /// The stage's seed; 0 for kinds without one.
    pub seed: u64,
    pub inputs: &'a ExpectedInputs,
    pub engine: &'a EngineSpec,
    /// Of judge tokens, if they are known.
    pub prices: Option<Prices>,
    /// Finds an output of this stage if it is finished.
    pub finished: &'a dyn Fn(&str) -> Option<PathBuf>,
    /// Tokenizers that the checks of a plan read only once.
    pub shared: &'a SharedModels,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The stage would fail on every machine.
    Error,
    /// This machine lacks something.
    Unavailable,
    /// The stage runs, but the user should know this.
    Note,
    /// Nothing is wrong: what a plan tells of the stage.
    Remark,
}

#[derive(Debug)]
pub struct Finding {
    pub severity: Severity,
    /// The parameter, role or section key that caused it.
    pub about: Option<Cow<'static, str>>,
    pub cause: Failure,
}

/// Result of checking a stage.
#[derive(Debug, Default)]
pub struct Preflight {
    pub findings: Vec<Finding>,
    pub outputs: ExpectedOutputs,
}

impl Preflight {
    pub fn error(&mut self, about: &'static str, cause: impl Into<Failure>) {
        self.add(Severity::Error, about, cause);
    }

    pub fn unavailable(&mut self, about: &'static str, cause: impl Into<Failure>) {
        self.add(Severity::Unavailable, about, cause);
    }

    pub fn note(&mut self, about: &'static str, cause: impl Into<Failure>) {
        self.add(Severity::Note, about, cause);
    }

    pub fn remark(&mut self, about: &'static str, cause: impl Into<Failure>) {
        self.add(Severity::Remark, about, cause);
    }

    fn add(&mut self, severity: Severity, about: &'static str, cause: impl Into<Failure>) {
        self.findings.push(Finding { severity, about: Some(about.into()), cause: cause.into() });
    }

    /// A single finding about the stage as a whole.
    pub fn of(severity: Severity, cause: impl Into<Failure>) -> Self {
        let finding = Finding { severity, about: None, cause: cause.into() };
        Self { findings: vec![finding], outputs: BTreeMap::new() }
    }

    /// Adds the error, if any.
    pub fn check<T>(&mut self, about: &'static str, found: Result<T, impl Into<Failure>>) -> Option<T> {
        found.map_err(|cause| self.error(about, cause)).ok()
    }

    #[must_use]
    pub fn with(mut self, port: &'static str, expected: impl Into<ExpectedOutput>) -> Self {
        self.outputs.insert(port, expected.into());
        self
    }
}

impl PreflightContext<'_> {
    /// The single policy in this role, if known.
    pub fn policy(&self, role: &str) -> Option<&ExpectedPolicy> {
        self.inputs.get(role)?.first()?.1.policy()
    }

    /// The scenarios, if known.
    pub fn scenarios(&self) -> Option<&ExpectedScenarios> {
        self.inputs.get("scenarios")?.first()?.1.scenarios()
    }

    /// Whether what attempts agree on gives the scenarios all their answers.
    pub fn is_voted(&self) -> bool {
        let given = self.inputs.get("scenarios").and_then(|given| given.first());
        given.is_some_and(|(_, expected)| *expected == ExpectedOutput::Voted)
    }

    /// The episodes, if known.
    pub fn episodes(&self) -> Option<&ExpectedEpisodes> {
        match self.inputs.get("trajectories")?.first()? {
            (_, ExpectedOutput::Episodes(episodes)) => Some(episodes),
            _ => None,
        }
    }

    /// What decides about the rewards, if known.
    pub fn scored_by(&self) -> Option<ScoredBy> {
        match self.inputs.get("rewards")?.first()? {
            (_, ExpectedOutput::Rewards(by)) => Some(*by),
            _ => None,
        }
    }

    /// The table of tools, if it exists.
    pub fn tools(&self) -> Option<&Path> {
        self.whole_tools().map(|(table, _)| table)
    }

    /// The same, and whether it has all tools that the server lists.
    pub fn whole_tools(&self) -> Option<(&Path, bool)> {
        match self.inputs.get("tools")?.first()? {
            (_, ExpectedOutput::Tools { table, is_whole }) => Some((table, *is_whole)),
            _ => None,
        }
    }

    /// The tokenizer in this folder.
    pub fn vocabulary(&self, folder: &Path) -> Result<Arc<Vocabulary>, ChatError> {
        let name = Digest::of(folder.as_os_str().as_encoded_bytes());
        self.shared.vocabulary(name, folder)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::{
        model::{Design, ModelConfig, kernels::Heads},
        stage::Cards,
    };

    fn policy(vocabulary: usize, rank: Option<usize>) -> ExpectedOutput {
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
        let adapter = rank.map(|rank| ExpectedAdapter::new(AdapterConfig::new(rank, 1.0), &config).unwrap());
        ExpectedPolicy { config, stored: Format::F32, adapter, folder: None }.into()
    }

    /// Checks a kind with these inputs and parameters, over its card's defaults.
    fn preflight(kind: &str, inputs: &[(&str, ExpectedOutput)], params: Value) -> (Vec<String>, Preflight) {
        let card = Cards::new(None).get(kind).unwrap().unwrap();
        let defaults =
            card.params.iter().filter_map(|(name, param)| Some((name.clone(), param.default.clone()?)));
        let params: Map<String, Value> =
            defaults.chain(params.as_object().cloned().unwrap_or_default()).collect();
        let named = |(role, expected): &(&str, ExpectedOutput)| {
            ((*role).to_owned(), vec![((*role).to_owned(), expected.clone())])
        };
        let inputs = inputs.iter().map(named).collect();
        let engine = EngineSpec { threads: Some(2), kv_cache_mib: Some(1), ..EngineSpec::default() };
        let context = PreflightContext {
            card: &card,
            seed: 1,
            inputs: &inputs,
            engine: &engine,
            prices: card.prices,
            finished: &|_| None,
            shared: &SharedModels::default(),
        };
        let preflight = crate::stage::parse(&card, &params).unwrap().preflight(&context);
        let errors = preflight.findings.iter().filter(|found| found.severity == Severity::Error);
        let text = |found: &Finding| format!("{}: {}", found.about.as_deref().unwrap_or("-"), found.cause);
        (errors.map(text).collect(), preflight)
    }

    fn check(kind: &str, inputs: &[(&str, ExpectedOutput)], params: Value, expected: &[&str]) {
        assert_eq!(preflight(kind, inputs, params.clone()).0, expected, "{kind} {params}");
    }

    #[test]
    fn parameters_of_an_update_that_do_not_fit_together_are_errors() {
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
        check("grpo", &[("policy", ExpectedOutput::Unknown)], json!({ "targets": ["nothing"] }), &[]);
    }

    #[test]
    fn tokens_of_a_teacher_have_to_be_those_of_the_policy() {
        let folder = tempfile::tempdir().unwrap();
        let with = |name: &str, of: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            let tokenizer =
                json!({"model": {"type": "WordLevel", "vocab": {"a": 0, of: 1}, "unk_token": "a"}});
            std::fs::write(path.join("tokenizer.json"), tokenizer.to_string()).unwrap();
            std::fs::write(path.join("tokenizer_config.json"), "{}").unwrap();
            let ExpectedOutput::Policy(policy) = policy(2, None) else { panic!("a policy") };
            let policy = ExpectedPolicy { folder: Some(path), ..(*policy).clone() };
            ExpectedOutput::from(policy)
        };
        let other =
            "teacher: token 1 is \"c\" for the teacher \"teacher\", and \"b\" for the policy \"policy\"";
        let of = |teacher: &str| {
            [("policy", with("one", "b")), ("teacher", with(&format!("of {teacher}"), teacher))]
        };
        check("grpo", &of("c"), json!({}), &[other]);
        check("grpo", &of("b"), json!({}), &[]);
    }

    #[test]
    fn an_exam_of_answers_that_are_all_voted_and_votes_of_one_attempt_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tasks.jsonl");
        let tasks = |tasks: &str| {
            std::fs::write(&file, tasks).unwrap();
            let voter = [("answers_from", policy(100, None))];
            let params = json!({"file": file, "max_turns": 2, "max_turn_tokens": 12, "dev": 1});
            preflight("scenarios", &voter, params).1
        };
        let held_out = "{\"task\": \"x\", \"answer\": \"1\", \"split\": \"heldout\"}\n";
        let open = "{\"task\": \"a\", \"split\": \"train\"}\n{\"task\": \"b\", \"split\": \"train\"}\n";
        let known = "{\"task\": \"c\", \"answer\": \"2\", \"split\": \"train\"}\n";
        let all = tasks(&format!("{open}{held_out}"));
        let voted = "scenarios: all expected answers of the scenarios are majority votes of attempts, so an exam would not measure right answers";
        for (port, expected) in [("train", &[voted][..]), ("dev", &[voted]), ("heldout", &[])] {
            let reads = [("policies", policy(100, None)), ("scenarios", all.outputs[port].clone())];
            check("eval", &reads, json!({}), expected);
        }
        assert!(!tasks(&format!("{open}{known}{held_out}")).outputs.contains_key("train"), "some are known");
        let closed = tasks(&format!("{known}{held_out}"));
        let notes: Vec<String> = closed.findings.iter().map(|found| found.cause.to_string()).collect();
        assert_eq!(notes, ["every training task has an answer, so none is voted on"]);

        let one = |params: Value| {
            let episodes = preflight("rollout", &[], params).1.outputs["trajectories"].clone();
            preflight("judge", &[("trajectories", episodes)], json!({"weights": {"consensus": 1.0}})).0
        };
        let alone = "trajectories: each task has one attempt, which has no other to agree with";
        assert_eq!(one(json!({"group_size": 1})), [alone]);
        assert_eq!(one(json!({"group_size": 1, "max_group_size": 4})), [""; 0]);
        assert_eq!(one(json!({"group_size": 2})), [""; 0]);
    }

    #[test]
    fn an_update_refuses_demonstrations_where_judges_alone_score() {
        let refused = |params: Value| {
            let rewards = preflight("judge", &[], params).1.outputs["rewards"].clone();
            let demonstrations = ("demonstrations", ExpectedOutput::Unknown);
            let without = preflight("grpo", &[("rewards", rewards.clone())], json!({})).0;
            assert_eq!(without, [""; 0]);
            preflight("grpo", &[("rewards", rewards), demonstrations], json!({})).0
        };
        let judges = json!({ "weights": { "truth": 0.0, "command": 1.0 }, "veto": false });
        let expected = "demonstrations: judges that see no answers score these episodes, and `demonstrations` are taught where \
                        answers are wrong";
        assert_eq!(refused(judges), [expected]);
        for seen in [json!({}), json!({ "weights": { "truth": 0.0, "command": 1.0 } })] {
            assert_eq!(refused(seen), [""; 0]);
        }
    }

    #[test]
    fn an_update_refuses_episodes_that_were_not_drawn_with_the_policys_own_probabilities() {
        let refused = |params: Value| {
            let (_, rollout) = preflight("rollout", &[], params);
            let episodes = rollout.outputs["trajectories"].clone();
            preflight("grpo", &[("trajectories", episodes)], json!({})).0
        };
        assert_eq!(refused(json!({})), [""; 0]);
        for (name, value) in
            [("temperature", json!(0.5)), ("top_p", json!(0.75)), ("top_k", json!(5)), ("min_p", json!(0.25))]
        {
            let [refusal] = &refused(json!({ name: value }))[..] else { panic!("{name}") };
            let expected = format!("trajectories: the episodes are sampled with `{name} = {value}`");
            assert!(refusal.starts_with(&expected), "{refusal}");
        }
    }

    #[test]
    fn the_rank_of_the_adapter_that_an_update_writes_is_known_beforehand() {
        let rank = |from: Option<usize>, params: Value| {
            let (_, preflight) = preflight("grpo", &[("policy", policy(100, from))], params);
            let Some(ExpectedOutput::Policy(policy)) = preflight.outputs.get("policy") else {
                panic!("a policy")
            };
            policy.adapter_size().map(|size| size.ranks)
        };
        // On seven linear layers of two decoder layers.
        assert_eq!(rank(None, json!({ "rank": 4 })), Some(2 * 7 * 4));
        assert_eq!(rank(None, json!({ "rank": 4, "targets": ["q_proj"] })), Some(2 * 4));
        assert_eq!(rank(Some(8), json!({ "rank": 4 })), Some(2 * 7 * 8), "the adapter is trained further");
        assert_eq!(rank(None, json!({ "lora": false })), None);
    }

    #[test]
    fn parameters_of_an_adapter_that_is_there_already_do_not_apply_and_are_noted() {
        let notes = |kind: &str, from: Option<usize>, params: Value| -> Vec<String> {
            let (errors, preflight) = preflight(kind, &[("policy", policy(100, from))], params);
            assert_eq!(errors, [""; 0]);
            preflight
                .findings
                .iter()
                .map(|found| format!("{}: {}", found.about.as_deref().unwrap(), found.cause))
                .collect()
        };
        let set =
            json!({ "rank": 4, "alpha": 8, "targets": ["q_proj"], "rank_stabilised": true, "dropout": 0.5 });
        assert_eq!(notes("grpo", None, set.clone()), [""; 0], "a new adapter has them");
        for kind in ["grpo", "sft"] {
            let expected = [
                "rank: `rank = 4` does not apply: the policy is an adapter already, with 8",
                "alpha: `alpha = 8.0` does not apply: the policy is an adapter already, with 1.0",
                "rank_stabilised: `rank_stabilised = true` does not apply: the policy is an adapter already, with false",
                "targets: `targets = [\"q_proj\"]` does not apply: the policy is an adapter already, with [\"all-linear\"]",
            ];
            assert_eq!(notes(kind, Some(8), set.clone()), expected);
            assert_eq!(notes(kind, Some(8), json!({})), [""; 0], "defaults");
            let same = json!({ "rank": 8, "alpha": 1, "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                "up_proj", "down_proj"] });
            assert_eq!(notes(kind, Some(8), same), [""; 0], "as it is");
        }
    }

    #[test]
    fn only_the_beginning_of_a_long_file_of_tasks_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tasks.jsonl");
        let line =
            |task: usize| format!("{{\"task\": \"task {task} {}\", \"answer\": 1}}\n", "x".repeat(100));
        let good: String = (0..10_000).map(line).collect();
        let tasks = |text: &str| {
            std::fs::write(&file, text).unwrap();
            preflight("scenarios", &[], json!({ "source": "file", "file": file }))
        };
        let (errors, preflight) = tasks(&good[..line(0).len() * 10]);
        assert_eq!((errors, preflight.outputs.len()), (Vec::new(), 4), "train, start, dev and heldout");
        let (errors, preflight) = tasks(&good);
        assert_eq!((errors, preflight.outputs.len()), (Vec::new(), 0), "their number is unknown");
        assert!(tasks(&format!("what\n{good}")).0[0].starts_with("file: tasks.jsonl: 1 bad task"));
        assert_eq!(tasks(&format!("{good}what\n")).0, [""; 0], "that is for the stage itself");
        assert_eq!(tasks(&format!("[{}]", "1,".repeat(1 << 20))).0, [""; 0]);
    }
}
