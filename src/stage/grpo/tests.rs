//! Tests of the whole stage on a small random decoder.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Value, json};

use super::*;
use crate::{
    data::{self, REFERENCE, Reward, Step},
    engine::{DeviceSet, Microbatch, score_across},
    hash::Digest,
    model::{Decoder, Init, read_safetensors},
    stage::{Artifacts, SharedModels, testing},
};

/// A model, episodes it played, and their rewards.
struct Hall(tempfile::TempDir, Arc<SharedModels>);

struct Base(PathBuf);

impl Artifacts for Base {
    fn folder(&self, _: &Digest) -> Result<PathBuf> {
        Ok(self.0.clone())
    }
}

fn model(seed: u64) -> Decoder {
    Decoder::random(testing::small_model(), Init { seed, deviation: 0.3 }).unwrap()
}

impl Hall {
    fn open() -> Self {
        let hall = Self(tempfile::tempdir().unwrap(), Arc::default());
        for (name, seed) in [("base", 3), ("other", 4)] {
            std::fs::create_dir(hall.path(name)).unwrap();
            model(seed).save(&hall.path(name)).unwrap();
            std::fs::write(hall.path(name).join("tokenizer.json"), "{}").unwrap();
        }
        let draw = |i: usize, of: usize| ((i * i * 7 + i * 13 + of * 29) % 59) as u32;
        let (mut trajectories, mut rewards) = (Vec::new(), Vec::new());
        for index in 0..20 {
            let (scenario, sample) = (index / 4, index % 4);
            let prompt = (0..8).map(|i| draw(i, 0)).chain((0..3).map(|i| draw(i, scenario + 1)));
            let tokens: Vec<u32> = prompt.chain((0..4 + sample).map(|i| draw(i, index + 10))).collect();
            let sampled: Vec<bool> = (0..tokens.len()).map(|at| at >= 11).collect();
            let (batch, targets) = Microbatch::new(&[(&tokens, &sampled)]);
            let scored =
                score_across(&model(3), &DeviceSet::cpu(1, 1), &[batch], &Default::default()).unwrap();
            let mut logprobs = vec![0.0; 11];
            logprobs.extend(targets[0].iter().map(|target| scored[0][*target]));
            let id = format!("t{index:02}");
            let scenario_id = format!("s{scenario}");
            rewards.push(Reward {
                trajectory_id: id.clone(),
                scenario_id: scenario_id.clone(),
                reward: (index * 7 % 5) as f32 / 4.0,
                correct: None,
                components: "{}".into(),
                explanation: None,
            });
            trajectories.push(Trajectory {
                id,
                scenario_id,
                sample: sample as u32,
                policy: Digest::of(b"base").to_string(),
                messages: Vec::new(),
                tokens,
                sampled,
                logprobs,
                turns: 1,
                end: "completed".into(),
                ..Trajectory::default()
            });
        }
        data::write(&hall.path("trajectories.parquet"), &trajectories).unwrap();
        data::write(&hall.path("rewards.parquet"), &rewards).unwrap();
        hall
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Splits each episode into two rows; the second starts over and holds what the first sampled as context.
    fn split(&self) {
        let path = self.path("trajectories.parquet");
        let mut trajectories: Vec<Trajectory> = data::read(&path).unwrap();
        for episode in &mut trajectories {
            let (end, cut) = (episode.tokens.len(), 13);
            let (first, rest) = episode.sampled.split_at(cut);
            episode.sampled = [first, &vec![false; cut], rest].concat();
            episode.logprobs = [&episode.logprobs[..cut], &vec![0.0; cut], &episode.logprobs[cut..]].concat();
            episode.tokens = [&episode.tokens[..cut], &episode.tokens[..end]].concat();
            episode.row_starts = Some(vec![cut as u32]);
        }
        data::write(&path, &trajectories).unwrap();
    }

    /// Runs one update of this policy into the folder `out`.
    async fn update(&self, policy: &Path, reference: Option<&str>, out: &str, params: Value) -> Result<Done> {
        self.update_by(policy, reference.map(|name| ("reference", name)), out, params).await
    }

    /// The same with a policy in this role, which scores the episodes.
    async fn update_by(
        &self,
        policy: &Path,
        scoring: Option<(&'static str, &str)>,
        out: &str,
        params: Value,
    ) -> Result<Done> {
        let context = self.context_with(policy, scoring, out, params).0;
        let metrics = testing::run(&context).await?;
        Done::read(&context, metrics)
    }

    fn context(
        &self,
        policy: &Path,
        reference: Option<&str>,
        out: &str,
        params: Value,
    ) -> (Context, Arc<testing::Ledger>) {
        self.context_with(policy, reference.map(|name| ("reference", name)), out, params)
    }

    fn context_with(
        &self,
        policy: &Path,
        scoring: Option<(&'static str, &str)>,
        out: &str,
        params: Value,
    ) -> (Context, Arc<testing::Ledger>) {
        let (trajectories, rewards) = (self.path("trajectories.parquet"), self.path("rewards.parquet"));
        let scoring = scoring.map(|(role, name)| (role, self.path(name)));
        let mut inputs =
            vec![("policy", policy), ("trajectories", trajectories.as_path()), ("rewards", &rewards)];
        inputs.extend(scoring.as_ref().map(|(role, path)| (*role, path.as_path())));
        let demonstrations = self.path("demonstrations.parquet");
        inputs.extend(demonstrations.is_file().then_some(("demonstrations", demonstrations.as_path())));
        let mut given = json!({"learning_rate": 3e-3});
        given.as_object_mut().unwrap().extend(params.as_object().cloned().unwrap());
        let (mut context, rows) = testing::context("grpo", &inputs, &self.path(out), given);
        context.artifacts = Arc::new(Base(self.path("base")));
        context.models = self.1.clone();
        for role in ["policy", "reference", "teacher"] {
            let Some(input) = context.inputs.get_mut(role).map(|inputs| &mut inputs[0]) else { continue };
            let name = input.path.strip_prefix(self.0.path()).unwrap();
            input.digest = Digest::of(name.as_os_str().as_encoded_bytes());
        }
        (context, rows)
    }

    async fn fresh(&self, out: &str, params: Value) -> Done {
        self.update(&self.path("base"), None, out, params).await.unwrap()
    }
}

#[derive(Debug)]
struct Done {
    policy: PathBuf,
    steps: Vec<Step>,
    metrics: Metrics,
}

impl Done {
    fn read(context: &Context, metrics: Metrics) -> Result<Self> {
        let steps = data::read(&context.output_folder.join("steps.parquet"))?;
        Ok(Self { policy: context.output_folder.join("policy"), steps, metrics })
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.policy.join(file)).unwrap()
    }

    fn optimizer_steps(&self) -> f32 {
        let state = read_safetensors(&self.policy.join("optimizer.safetensors")).unwrap();
        state["steps"].to_vec1::<f32>().unwrap()[0]
    }
}

const ADAPTER: &str = "adapter_model.safetensors";

#[tokio::test]
async fn a_step_is_the_same_up_to_rounding_however_many_tokens_a_microbatch_holds() {
    let hall = Hall::open();
    let whole = hall.fresh("whole", json!({})).await;
    let cut = hall.fresh("cut", json!({"tokens_per_microbatch": 20})).await;
    assert!(cut.steps[0].tokens > whole.steps[0].tokens, "less is shared");
    let close = |a: f64, b: f64| (a - b).abs() < 1e-5 * a.abs().max(b.abs()).max(1e-3);
    assert!(close(whole.steps[0].loss, cut.steps[0].loss), "{:?} {:?}", whole.steps[0], cut.steps[0]);
    assert!(close(whole.steps[0].gradient_norm, cut.steps[0].gradient_norm));
}

#[tokio::test]
async fn rows_of_an_episode_weigh_together_what_it_weighs_as_one() {
    let (whole, split) = (Hall::open(), Hall::open());
    split.split();
    for loss in ["dapo", "grpo", "dr_grpo", "gspo", "cispo"] {
        // Several steps, so that ratios move; a KL penalty to another policy, to test the alignment of
        // references.
        let params = json!({"loss": loss, "epochs": 2, "minibatches": 1, "kl": 0.1, "learning_rate": 1e-3});
        let [one, two] = [&whole, &split].map(|hall| (hall, hall.path("base"), params.clone()));
        let one = one.0.update(&one.1, Some("other"), loss, one.2).await.unwrap();
        let two = two.0.update(&two.1, Some("other"), loss, two.2).await.unwrap();
        assert_eq!(two.metrics["max_logprob_gap"], 0.0, "{loss}");
        assert_eq!(two.steps[0].loss_tokens, one.steps[0].loss_tokens);
        assert_eq!(two.bytes(ADAPTER), one.bytes(ADAPTER), "{loss}");
        assert!(two.steps[0].tokens_unshared > one.steps[0].tokens_unshared);
        assert_eq!(two.steps[0].tokens, one.steps[0].tokens, "what rows share is computed once");
    }
    // Puts rows of one episode in different microbatches.
    let cut = json!({"loss": "gspo", "epochs": 2, "minibatches": 1, "tokens_per_microbatch": 16});
    let (one, two) = (whole.fresh("cut", cut.clone()).await, split.fresh("cut", cut).await);
    let close = |a: f64, b: f64| (a - b).abs() < 1e-5 * a.abs().max(b.abs()).max(1e-3);
    for (one, two) in one.steps.iter().zip(&two.steps) {
        assert!(close(one.loss, two.loss) && close(one.gradient_norm, two.gradient_norm), "{one:?} {two:?}");
    }
}

#[tokio::test]
async fn updates_over_one_model_read_it_once_and_give_what_they_give_alone() {
    let hall = Hall::open();
    let first = hall.fresh("first", json!({})).await;
    let params = json!({"kl": 0.1, "minibatches": 1});
    let next = hall.update(&first.policy, Some("base"), "next", params.clone()).await.unwrap();
    assert_eq!(hall.1.bases.loads(), 1);
    hall.1.retain(|_| false);
    let alone = hall.update(&first.policy, Some("base"), "alone", params).await.unwrap();
    assert_eq!(hall.1.bases.loads(), 2);
    assert!(next.bytes(ADAPTER) == alone.bytes(ADAPTER));
}

#[tokio::test]
async fn attempts_of_several_policies_are_compared_within_their_policy() {
    let hall = Hall::open();
    let one = hall.fresh("one", json!({})).await;
    let path = hall.path("trajectories.parquet");
    let mut trajectories: Vec<Trajectory> = data::read(&path).unwrap();
    for episode in trajectories.iter_mut().filter(|episode| episode.sample >= 2) {
        episode.policy = "another".into();
    }
    data::write(&path, &trajectories).unwrap();
    let two = hall.fresh("two", json!({})).await;
    assert_eq!((one.metrics["groups"], two.metrics["groups"]), (5.0, 10.0));
    assert_ne!(one.bytes(ADAPTER), two.bytes(ADAPTER));
}

#[tokio::test]
async fn rows_that_do_not_follow_each_other_are_refused() {
    let hall = Hall::open();
    let path = hall.path("trajectories.parquet");
    let mut trajectories: Vec<Trajectory> = data::read(&path).unwrap();
    for starts in [vec![0], vec![9, 9], vec![12, 4], vec![400]] {
        trajectories[3].row_starts = Some(starts.clone());
        data::write(&path, &trajectories).unwrap();
        let refused = hall.update(&hall.path("base"), None, "refused", json!({})).await.unwrap_err();
        assert_eq!(refused.code(), "training::rows", "{starts:?}");
    }
}

#[tokio::test]
async fn activations_computed_again_give_the_same_adapter() {
    let hall = Hall::open();
    let kept = hall.fresh("kept", json!({"recompute": "never"})).await;
    let again = hall.fresh("again", json!({"recompute": "always"})).await;
    assert_eq!(kept.bytes(ADAPTER), again.bytes(ADAPTER));
}

#[tokio::test]
async fn an_update_killed_between_its_steps_ends_in_the_same_bytes() {
    let hall = Hall::open();
    // Episodes of another policy, whose weights compare with the policy before the first step.
    lag(&hall, 0.2);
    let first = hall.fresh("first", json!({"minibatches": 1})).await;
    for (name, policy, params) in [
        ("new", hall.path("base"), json!({})),
        ("next", first.policy.clone(), json!({"importance": "token_truncate"})),
        ("whole", hall.path("base"), json!({"lora": false, "optimizer": "adamw_8bit"})),
    ] {
        let mut params = params;
        let more = json!({"epochs": 2, "schedule": "linear", "total_steps": 9, "tool_token_loss": 0.1});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = params.get("lora").is_some();
        if !whole {
            params["dropout"] = 0.1.into();
        }
        let reference = Some("other");
        let straight =
            hall.update(&policy, reference, &format!("{name}-straight"), params.clone()).await.unwrap();
        assert_eq!(straight.steps.len(), 4);
        let (mut context, rows) = hall.context(&policy, reference, &format!("{name}-killed"), params);
        for checkpoints in [1, 2] {
            testing::Killer::watch(&mut context, &rows, checkpoints);
            assert_eq!(testing::run(&context).await.unwrap_err().code(), "interrupted");
        }
        context.cancel = tokio_util::sync::CancellationToken::new();
        context.rows = rows;
        let metrics = testing::run(&context).await.unwrap();
        let trained = context.meter.total().trained_tokens;
        let resumed = Done::read(&context, metrics).unwrap();
        let weights = if whole { "model.safetensors" } else { ADAPTER };
        for file in [weights, "optimizer.safetensors"] {
            assert!(resumed.bytes(file) == straight.bytes(file), "{name}: {file}");
        }
        assert_eq!((&resumed.steps, &resumed.metrics), (&straight.steps, &straight.metrics), "{name}");
        let all = straight.steps.iter().map(|step| step.tokens).sum::<u64>();
        assert_eq!(trained, all, "{name}: every step was taken once");
    }
}

/// Cancels at a note, and sees whether a phase begins.
struct Stopper(tokio_util::sync::CancellationToken, std::sync::atomic::AtomicBool);

impl crate::progress::Observer for Stopper {
    fn phase(&self, _: &str, _: u64) {
        self.1.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn note(&self, _: &str) {
        self.0.cancel();
    }
}

#[tokio::test]
async fn an_update_that_is_stopped_while_it_scores_does_not_score_the_rest() {
    for reference in [None, Some("other")] {
        let hall = Hall::open();
        // The stage notes that another policy played, and then scores the episodes for their weights.
        lag(&hall, 0.2);
        let params = json!({"importance": "token_truncate"});
        let (mut context, _) = hall.context(&hall.path("base"), reference, "stopped", params);
        let observer = Arc::new(Stopper(context.cancel.clone(), false.into()));
        context.observer = observer.clone();
        assert_eq!(testing::run(&context).await.unwrap_err().class(), crate::error::Class::Interrupted);
        assert!(!observer.1.load(std::sync::atomic::Ordering::Relaxed), "no step was reached");
    }
}

#[test]
fn without_a_learning_rate_an_adapter_takes_ten_times_that_of_all_weights() {
    let folder = tempfile::tempdir().unwrap();
    let rate = |params: Value| {
        let (context, _) = testing::context("grpo", &[], folder.path(), params);
        Grpo::parse(&context.params).unwrap().training.schedule(None).rate(100)
    };
    assert_eq!((rate(json!({})), rate(json!({"lora": false}))), (1e-4, 1e-5));
    assert_eq!(rate(json!({"learning_rate": 2e-3})), 2e-3);
}

#[tokio::test]
async fn all_weights_are_trained_and_the_next_update_continues() {
    let hall = Hall::open();
    let whole = json!({"lora": false, "learning_rate": 1e-3});
    for optimizer in ["adamw", "adamw_8bit", "muon"] {
        let mut params = whole.clone();
        params["optimizer"] = optimizer.into();
        let first = hall.fresh(&format!("{optimizer}-first"), params.clone()).await;
        assert_eq!(first.metrics["max_logprob_gap"], 0.0);
        assert_eq!(first.bytes("tokenizer.json"), b"{}");
        assert!(!first.policy.join("policy.json").exists());
        let before = read_safetensors(&hall.path("base/model.safetensors")).unwrap();
        let after = read_safetensors(&first.policy.join("model.safetensors")).unwrap();
        assert!(before.keys().eq(after.keys()));
        for (name, before) in &before {
            let moved = (before - &after[name]).unwrap().abs().unwrap().max_all().unwrap();
            assert!(moved.to_scalar::<f32>().unwrap() > 0.0, "{optimizer}: {name}");
        }
        // The second policy's digest differs from the one that played: off-policy, so the gap is not checked.
        let second = hall.update(&first.policy, None, &format!("{optimizer}-second"), params).await.unwrap();
        assert_eq!(second.optimizer_steps(), 2.0 * first.optimizer_steps());
    }
}

#[tokio::test]
async fn another_optimizer_starts_from_zero() {
    let hall = Hall::open();
    let with = |optimizer: &str| json!({"optimizer": optimizer, "minibatches": 1});
    let first = hall.fresh("first", with("muon")).await;
    let other = hall.update(&first.policy, None, "other", with("adamw")).await.unwrap();
    assert_eq!(other.optimizer_steps(), other.steps.len() as f32);
    let same = hall.update(&first.policy, None, "same", with("muon")).await.unwrap();
    assert_eq!(same.optimizer_steps(), (first.steps.len() + same.steps.len()) as f32);
}

#[tokio::test]
async fn an_adapter_is_not_trained_whole() {
    let hall = Hall::open();
    let adapter = hall.fresh("adapter", json!({})).await;
    let refused = hall.update(&adapter.policy, None, "whole", json!({"lora": false})).await.unwrap_err();
    assert_eq!(refused.code(), "training::whole_adapter");
}

#[tokio::test]
async fn targets_choose_the_layers_and_stay_with_the_adapter() {
    let hall = Hall::open();
    let params = json!({"targets": ["q_proj", "mlp.down_proj"], "rank": 2});
    let first = hall.fresh("first", params).await;
    let tensors = read_safetensors(&first.policy.join(ADAPTER)).unwrap();
    assert_eq!(tensors.len(), 2 * 2 * 2, "two linear layers in each of two layers, A and B");
    assert!(tensors.keys().all(|name| name.contains("q_proj") || name.contains("mlp.down_proj")));
    let none = hall.update(&hall.path("base"), None, "none", json!({"targets": ["w_proj"]})).await;
    assert_eq!(none.unwrap_err().code(), "model::targets");
}

#[tokio::test]
async fn a_reference_is_measured_and_with_a_weight_it_holds_the_policy_back() {
    let hall = Hall::open();
    let base = hall.path("base");
    let one = json!({"minibatches": 1});
    let free = hall.fresh("free", one.clone()).await;
    assert!(!free.metrics.contains_key("kl"));
    // On the first step the policy equals the base: the KL is zero.
    let own = hall.update(&base, Some("base"), "own", json!({"minibatches": 1, "kl": 0.5})).await.unwrap();
    assert_eq!((own.metrics["kl"], own.bytes(ADAPTER)), (0.0, free.bytes(ADAPTER)));
    let measured = hall.update(&base, Some("other"), "measured", one).await.unwrap();
    assert!(measured.metrics["kl"] > 0.0);
    assert_eq!(measured.bytes(ADAPTER), free.bytes(ADAPTER));
    let regularised =
        hall.update(&base, Some("other"), "regularised", json!({"minibatches": 1, "kl": 0.5})).await.unwrap();
    assert_ne!(regularised.bytes(ADAPTER), free.bytes(ADAPTER));
    let expected = free.steps[0].loss + 0.5 * regularised.metrics["kl"];
    assert!(
        (regularised.steps[0].loss - expected).abs() < 1e-9,
        "the loss is that of the objective plus kl × KL"
    );
    let refused = hall.update(&base, None, "refused", json!({"kl": 0.5})).await.unwrap_err();
    assert_eq!(refused.code(), "grpo::no_reference");
}

#[tokio::test]
async fn a_teacher_adds_to_the_advantage_of_each_token_what_it_finds_likelier() {
    let hall = Hall::open();
    let base = hall.path("base");
    let taught = async |name: &str, teacher: &str, params: Value| {
        let mut all = json!({"minibatches": 1, "teacher_clip": 100.0});
        all.as_object_mut().unwrap().extend(params.as_object().cloned().unwrap());
        hall.update_by(&base, Some(("teacher", teacher)), name, all).await.unwrap()
    };
    let free = hall.fresh("free", json!({"minibatches": 1})).await;
    let own = taught("own", "base", json!({})).await;
    assert_eq!(
        (own.metrics["teacher_gap"], own.bytes(ADAPTER)),
        (0.0, free.bytes(ADAPTER)),
        "nothing to learn"
    );
    // On the first step every ratio is 1, so the loss is the mean of −advantage over all tokens.
    let with = taught("with", "other", json!({"teacher_weight": 0.5})).await;
    let gap = with.metrics["teacher_gap"];
    assert!(gap != 0.0 && with.bytes(ADAPTER) != free.bytes(ADAPTER));
    assert!((with.steps[0].loss - (free.steps[0].loss - 0.5 * gap)).abs() < 1e-9);
    let alone = taught("alone", "other", json!({"reward_weight": 0.0})).await;
    assert!((alone.steps[0].loss + gap).abs() < 1e-9);
    assert_eq!(alone.metrics["signal"], 1.0, "every episode teaches");
    let clipped = taught("clipped", "other", json!({"reward_weight": 0.0, "teacher_clip": 0.0})).await;
    assert_eq!(clipped.steps[0].loss, 0.0);
    // Steps towards the teacher bring the policy nearer to it.
    let more = taught("more", "other", json!({"reward_weight": 0.0, "minibatches": 4, "epochs": 4})).await;
    let losses: Vec<f64> = more.steps.iter().map(|step| step.loss).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&losses[12..]) < mean(&losses[..4]), "{losses:?}");
}

#[tokio::test]
async fn a_teacher_needs_no_rewards_that_differ() {
    let hall = Hall::open();
    let path = hall.path("rewards.parquet");
    let mut rewards: Vec<Reward> = data::read(&path).unwrap();
    rewards.retain_mut(|reward| {
        reward.reward = 1.0;
        reward.scenario_id != "s0"
    });
    data::write(&path, &rewards).unwrap();
    let base = hall.path("base");
    let alone = hall.fresh("alone", json!({})).await;
    assert_eq!((alone.metrics["signal"], alone.steps.len()), (0.0, 0));
    let taught = hall.update_by(&base, Some(("teacher", "other")), "taught", json!({})).await.unwrap();
    assert_eq!(taught.metrics["signal"], 1.0);
    assert!(!taught.steps.is_empty());
}

#[tokio::test]
async fn under_dropout_the_gap_is_that_of_a_scoring_pass_and_the_same_seed_drops_the_same() {
    let hall = Hall::open();
    let params = json!({"dropout": 0.2});
    let first = hall.fresh("first", params.clone()).await;
    assert_eq!(first.metrics["max_logprob_gap"], 0.0);
    assert_eq!(hall.fresh("again", params).await.bytes(ADAPTER), first.bytes(ADAPTER));
    assert_ne!(hall.fresh("none", json!({})).await.bytes(ADAPTER), first.bytes(ADAPTER));
    let config = String::from_utf8(first.bytes("adapter_config.json")).unwrap();
    assert!(config.contains("\"lora_dropout\": 0.2,"), "{config}");

    // An adapter has no dropout of its own: the update decides.
    let after = |out: &str, dropout: f64| {
        let (mut context, _) = hall.context(&first.policy, None, out, json!({"dropout": dropout}));
        // The base played.
        context.inputs.get_mut("policy").unwrap()[0].digest = Digest::of(b"first");
        context
    };
    let mut adapters = Vec::new();
    for (out, dropout) in [("after", 0.0), ("dropped", 0.2)] {
        let context = after(out, dropout);
        let metrics = testing::run(&context).await.unwrap();
        let done = Done::read(&context, metrics).unwrap();
        let config = String::from_utf8(done.bytes("adapter_config.json")).unwrap();
        assert!(config.contains(&format!("\"lora_dropout\": {dropout:?},")), "{config}");
        adapters.push(done.bytes(ADAPTER));
    }
    assert_ne!(adapters[0], adapters[1]);
}

#[tokio::test]
async fn groups_without_gradient_that_are_all_right_or_all_wrong_are_shares_of_all_groups() {
    let hall = Hall::open();
    let path = hall.path("rewards.parquet");
    let mut rewards: Vec<Reward> = data::read(&path).unwrap();
    // Of five groups one is right and has no gradient, two are wrong and have none, and one is wrong and has one.
    for (index, reward) in rewards.iter_mut().enumerate() {
        reward.correct = Some(index < 8);
        reward.reward = if index / 4 == 0 || index / 4 == 4 { reward.reward } else { 1.0 };
    }
    data::write(&path, &rewards).unwrap();
    let metrics = hall.fresh("update", json!({})).await.metrics;
    assert_eq!((metrics["all_right"], metrics["all_wrong"], metrics["groups"]), (0.2, 0.4, 5.0));
}

#[tokio::test]
async fn a_gradient_norm_of_0_clips_nothing() {
    let hall = Hall::open();
    let [unclipped, high] = [0.0, 1e9].map(|norm| json!({"max_gradient_norm": norm}));
    let (unclipped, high) = (hall.fresh("unclipped", unclipped).await, hall.fresh("high", high).await);
    assert_eq!(unclipped.bytes(ADAPTER), high.bytes(ADAPTER));
}

/// Changes the trajectories of a hall.
fn change(hall: &Hall, each: impl Fn(&mut Trajectory)) {
    let path = hall.path("trajectories.parquet");
    let mut trajectories: Vec<Trajectory> = data::read(&path).unwrap();
    trajectories.iter_mut().for_each(each);
    data::write(&path, &trajectories).unwrap();
}

/// As if an earlier policy had sampled every token with a log-probability lower by this.
fn lag(hall: &Hall, by: f32) {
    change(hall, |episode| {
        episode.policy = "earlier".into();
        for (logprob, sampled) in episode.logprobs.iter_mut().zip(&episode.sampled) {
            *logprob -= if *sampled { by } else { 0.0 };
        }
    });
}

#[tokio::test]
async fn episodes_of_an_earlier_policy_are_measured_and_weighted() {
    let (own, hall) = (Hall::open(), Hall::open());
    lag(&hall, 0.2);
    let with = |importance: &str, cap: f64| json!({"minibatches": 1, "importance": importance, "importance_cap": cap});
    let expected = own.fresh("own", with("none", 3.0)).await;
    assert_eq!(
        (expected.metrics["off_policy"], expected.metrics.contains_key("off_policy_kl")),
        (0.0, false)
    );
    let norm = expected.steps[0].gradient_norm;
    let weight = 0.2_f64.exp();
    for (mode, cap, expected) in [
        ("token_truncate", 3.0, weight),
        ("token_truncate", 1.1, 1.1),
        ("token_mask", 3.0, weight),
        ("token_mask", 1.1, 0.0),
        ("sequence_truncate", 1.5, 1.5),
        ("sequence_mask", 1.5, 0.0),
    ] {
        let done = hall.fresh(&format!("{mode}-{cap}"), with(mode, cap)).await;
        let found = done.steps[0].gradient_norm / norm;
        assert!((found - expected).abs() < 1e-4, "{mode} {cap}: {found}");
        assert!((done.metrics["importance"] - expected).abs() < 1e-6);
        assert_eq!(done.metrics["clip_fraction"], 0.0, "the ratio starts at 1");
        assert_eq!(done.metrics["off_policy"], 1.0);
        assert!((done.metrics["off_policy_kl"] - (weight - 1.0 - 0.2)).abs() < 1e-6);
        assert!(!done.metrics.contains_key("max_logprob_gap"), "there is nothing to agree with");
    }
    // Without weights the ratio starts at exp(0.2), within the clip range of DAPO.
    let found = hall.fresh("none", with("none", 3.0)).await.steps[0].gradient_norm / norm;
    assert!((found - weight).abs() < 1e-4, "{found}");
}

#[tokio::test]
async fn weights_of_the_policys_own_episodes_change_no_byte() {
    let hall = Hall::open();
    let none = hall.fresh("none", json!({"epochs": 2})).await;
    let weighted = hall.fresh("weighted", json!({"epochs": 2, "importance": "sequence_mask"})).await;
    assert_eq!(none.bytes(ADAPTER), weighted.bytes(ADAPTER));
    assert!(!weighted.metrics.contains_key("importance"));
}

#[tokio::test]
async fn among_episodes_of_others_the_policys_own_are_still_checked() {
    let hall = Hall::open();
    change(&hall, |episode| {
        if episode.sample < 2 {
            episode.policy = "earlier".into();
            episode.logprobs.iter_mut().for_each(|logprob| *logprob -= 0.5);
        }
    });
    let done = hall.fresh("half", json!({})).await;
    assert_eq!((done.metrics["max_logprob_gap"], done.metrics["off_policy"]), (0.0, 0.5));
    change(&hall, |episode| episode.logprobs.iter_mut().for_each(|logprob| *logprob -= 0.5));
    let refused = hall.update(&hall.path("base"), None, "refused", json!({})).await.unwrap_err();
    assert_eq!(refused.code(), "grpo::mismatch");
}

#[tokio::test]
async fn later_epochs_compare_with_the_policy_that_played() {
    let hall = Hall::open();
    let params = json!({"minibatches": 1, "epochs": 3, "clip_low": 1e-6, "clip_high": 1e-6});
    let steps = hall.fresh("clipped", params).await.steps;
    // The first step moves every ratio out of a range this narrow, and there is nothing left to learn.
    assert_eq!(steps[0].clip_fraction, Some(0.0));
    assert!(steps[1..].iter().all(|step| step.clip_fraction > Some(0.3)), "{steps:?}");
}

#[tokio::test]
async fn a_loss_on_tool_tokens_has_the_gradient_of_their_cross_entropy() {
    let hall = Hall::open();
    // The policy sampled a token, read two, and sampled the rest. Equal rewards leave no policy gradient.
    let is_tool = |at: usize| (12..14).contains(&at);
    change(&hall, |episode| {
        for at in (0..episode.tokens.len()).filter(|at| is_tool(*at)) {
            (episode.sampled[at], episode.logprobs[at]) = (false, 0.0);
        }
    });
    let path = hall.path("rewards.parquet");
    let mut rewards: Vec<Reward> = data::read(&path).unwrap();
    rewards.iter_mut().for_each(|reward| reward.reward = 1.0);
    data::write(&path, &rewards).unwrap();
    let params =
        |weight: f64| json!({"lora": false, "loss": "grpo", "minibatches": 1, "tool_token_loss": weight});
    let none = hall.fresh("none", params(0.0)).await;
    assert!(none.steps.is_empty() && !none.metrics.contains_key("tool_token_loss"));
    let done = hall.fresh("half", params(0.5)).await;

    let trajectories: Vec<Trajectory> = data::read(&hall.path("trajectories.parquet")).unwrap();
    let examples: Vec<_> = trajectories
        .iter()
        .map(|episode| (episode.tokens.clone(), (0..episode.tokens.len()).map(is_tool).collect()))
        .collect();
    let rule = crate::engine::Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.0 };
    let mut trainer =
        crate::engine::Trainer::new(model(3), |parameters| vec![rule; parameters.len()], 1).unwrap();
    let supervised = crate::engine::Supervised::packed(&examples.iter().collect::<Vec<_>>(), 1, usize::MAX);
    let (loss, report) = supervised.step(&mut trainer, 1e-3, 0.0).unwrap();
    let close = |a: f64, b: f64| (a - b).abs() < 1e-5 * a.abs().max(b.abs());
    assert!(close(done.metrics["tool_token_loss"], loss), "{loss} {:?}", done.metrics);
    assert!(close(done.steps[0].loss, 0.5 * loss));
    assert!(close(done.steps[0].gradient_norm, 0.5 * report.gradient_norm));
    assert_eq!(done.metrics["max_logprob_gap"], 0.0);

    // What an earlier row has does not count again.
    hall.split();
    let split = hall.fresh("split", params(0.5)).await;
    assert!(split.steps[0].gradient_norm > 0.0);
}

/// The first step of an update with one minibatch.
async fn first_step(hall: &Hall, out: &str, params: Value, reference: Option<&str>) -> Step {
    let mut params = params;
    params["minibatches"] = 1.into();
    hall.update(&hall.path("base"), reference, out, params).await.unwrap().steps.remove(0)
}

#[tokio::test]
async fn groups_with_equal_rewards_are_counted_by_the_losses_whose_authors_count_them() {
    let hall = Hall::open();
    let path = hall.path("rewards.parquet");
    let mut rewards: Vec<Reward> = data::read(&path).unwrap();
    // Two of five groups have equal rewards.
    rewards.iter_mut().skip(12).for_each(|reward| reward.reward = 1.0);
    data::write(&path, &rewards).unwrap();
    let trajectories: Vec<Trajectory> = data::read(&hall.path("trajectories.parquet")).unwrap();
    let tokens = |trajectories: &[Trajectory]| trajectories.iter().map(step::trained).sum::<usize>() as f64;
    let by_tokens = tokens(&trajectories) / tokens(&trajectories[..12]);
    let by_rollouts = 20.0 / 12.0;
    for (loss, counts, ratio) in [
        ("dapo", false, by_tokens),
        ("cispo", false, by_tokens),
        ("grpo", true, by_rollouts),
        ("dr_grpo", true, by_rollouts),
        ("gspo", true, by_rollouts),
    ] {
        let of = |choice: &str| json!({"loss": loss, "zero_variance_groups": choice});
        let counted = first_step(&hall, &format!("{loss}-count"), of("count"), None).await;
        let excluded = first_step(&hall, &format!("{loss}-exclude"), of("exclude"), None).await;
        let found = excluded.gradient_norm / counted.gradient_norm;
        assert!((found / ratio - 1.0).abs() < 1e-4, "{loss}: {found}, expected {ratio}");
        assert_eq!(counted.tokens, excluded.tokens, "{loss}: what has no gradient is not computed");
        let usual = first_step(&hall, loss, json!({"loss": loss}), None).await;
        assert_eq!(usual.gradient_norm, if counts { counted } else { excluded }.gradient_norm, "{loss}");
        // The KL penalty covers every rollout that counts.
        let with = |choice: &str| json!({"loss": loss, "zero_variance_groups": choice, "kl": 0.1});
        let counted = first_step(&hall, &format!("{loss}-kl-count"), with("count"), Some("other")).await;
        let excluded = first_step(&hall, &format!("{loss}-kl-exclude"), with("exclude"), Some("other")).await;
        let all = [tokens(&trajectories), tokens(&trajectories[..12])];
        assert_eq!([counted.loss_tokens as f64, excluded.loss_tokens as f64], all, "{loss}");
    }
}

#[tokio::test]
async fn a_minibatch_without_gradient_takes_no_step() {
    let hall = Hall::open();
    let path = hall.path("rewards.parquet");
    let mut rewards: Vec<Reward> = data::read(&path).unwrap();
    rewards.iter_mut().skip(4).for_each(|reward| reward.reward = 1.0);
    data::write(&path, &rewards).unwrap();
    let done = hall.fresh("grpo", json!({"loss": "grpo", "minibatches": 5})).await;
    assert_eq!((done.steps.len(), done.optimizer_steps()), (1, 1.0));
}

#[test]
fn the_bound_of_the_check_is_as_wide_as_the_format_is_coarse() {
    let of = |exact, format| GapBound::new(exact, format);
    let kernels = of(true, Format::Bf16);
    assert_eq!(kernels, of(true, Format::F32));
    let [f32, f16, bf16] = [Format::F32, Format::F16, Format::Bf16].map(|format| of(false, format));
    assert!(kernels.max < f32.max && f32.max < f16.max && f32.mean < f16.mean);
    assert_eq!((bf16.max, bf16.mean), (8.0 * f16.max, 8.0 * f16.mean));
    assert_eq!((bf16.max, bf16.mean), (1.0, 0.0625));
}

#[tokio::test]
async fn numbers_that_are_not_finite_stop_the_update_and_name_the_episode() {
    let hall = Hall::open();
    let base = hall.path("base");
    change(&hall, |episode| {
        if episode.id == "t06" {
            episode.logprobs[12] = f32::NAN;
        }
    });
    let refused = hall.update(&base, None, "nan", json!({})).await.unwrap_err();
    assert_eq!(refused.code(), "training::logprob");
    assert!(
        refused.to_string().starts_with("trajectory t06 has the log-probability NaN at token 12"),
        "{refused}"
    );

    let hall = Hall::open();
    let path = hall.path("rewards.parquet");
    let mut rewards: Vec<Reward> = data::read(&path).unwrap();
    rewards[4].reward = f32::INFINITY;
    data::write(&path, &rewards).unwrap();
    let refused = hall.update(&hall.path("base"), None, "inf", json!({})).await.unwrap_err();
    assert_eq!(refused.code(), "data::value");
    assert!(refused.to_string().contains("row 4"), "{refused}");

    // A policy whose logits overflow: as policy, and as reference.
    let hall = Hall::open();
    let file = hall.path("other/model.safetensors");
    let mut tensors = read_safetensors(&file).unwrap();
    let norm = (&tensors["model.norm.weight"] * 1e38).unwrap();
    tensors.insert("model.norm.weight".into(), norm);
    crate::model::write_safetensors(&file, &tensors).unwrap();
    let params = json!({"kl": 0.1});
    let refused = hall.update(&hall.path("base"), Some("other"), "reference", params).await.unwrap_err();
    assert_eq!(refused.code(), "engine::logprob");
    assert!(refused.to_string().starts_with("trajectory t0"), "{refused}");
    let refused = hall.update(&hall.path("other"), None, "policy", json!({})).await.unwrap_err();
    assert_eq!(refused.code(), "engine::logprob");
    assert!(refused.to_string().starts_with("step 0: trajectory t"), "{refused}");
}

/// The notes of an update, and what it wrote.
async fn noted(hall: &Hall, out: &str, params: Value) -> (Vec<String>, Done) {
    let (mut context, _) = hall.context(&hall.path("base"), None, out, params);
    let notes = Arc::new(testing::Notes::default());
    context.observer = notes.clone();
    let metrics = testing::run(&context).await.unwrap();
    let notes = notes.0.lock().unwrap().clone();
    (notes, Done::read(&context, metrics).unwrap())
}

#[tokio::test]
async fn the_rate_warms_up_in_the_first_update_alone() {
    let hall = Hall::open();
    let params = json!({"warmup_steps": 10});
    let rates = |done: &Done| done.steps.iter().map(|step| step.learning_rate).collect::<Vec<_>>();
    let first = hall.fresh("first", params.clone()).await;
    assert_eq!(rates(&first), [1.5e-3, 3e-3]);
    let next = hall.update(&first.policy, None, "next", params).await.unwrap();
    assert_eq!(rates(&next), [3e-3, 3e-3]);
}

#[tokio::test]
async fn every_step_measures_how_far_the_policy_is_from_the_one_that_played() {
    let hall = Hall::open();
    for dropout in [0.0, 0.2] {
        let params = json!({"epochs": 2, "dropout": dropout});
        let done = hall.fresh(&dropout.to_string(), params).await;
        let moved: Vec<f64> = done.steps.iter().map(|step| step.moved_kl.unwrap()).collect();
        assert!(moved[0] == 0.0 && moved[1..].iter().all(|kl| *kl > 0.0), "{moved:?}");
        assert_eq!(done.metrics["moved_kl"], moved.iter().copied().fold(0.0, f64::max));
        assert!(done.steps.iter().all(|step| step.entropy > Some(0.0)));
    }
}

#[tokio::test]
async fn a_policy_that_breaks_down_is_noted_with_what_helps() {
    let hall = Hall::open();
    let is_broken = |notes: &[String]| notes.iter().any(|note| note.starts_with("the policy breaks down"));
    let (notes, _) = noted(&hall, "healthy", json!({"epochs": 2, "learning_rate": 1e-4})).await;
    assert!(!is_broken(&notes), "{notes:?}");
    let (notes, done) = noted(&hall, "broken", json!({"epochs": 2, "learning_rate": 0.3})).await;
    assert!(is_broken(&notes) && done.metrics["moved_kl"] > 0.1, "{notes:?} {:?}", done.metrics);
}

#[tokio::test]
async fn beyond_stop_kl_the_remaining_minibatches_are_left_out_also_after_a_kill() {
    let hall = Hall::open();
    let mut params = json!({"minibatches": 1, "epochs": 4});
    let all = hall.fresh("all", params.clone()).await;
    params["stop_kl"] = (all.steps[1].moved_kl.unwrap() * 0.99).into();
    let (notes, straight) = noted(&hall, "straight", params.clone()).await;
    assert_eq!(straight.steps, all.steps[..2]);
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(
        note.starts_with("step 1 found the policy 0.") && note.ends_with("2 of 4 minibatches are left out")
    );

    let (mut context, rows) = hall.context(&hall.path("base"), None, "killed", params);
    testing::Killer::watch(&mut context, &rows, 1);
    assert_eq!(testing::run(&context).await.unwrap_err().code(), "interrupted");
    (context.cancel, context.rows) = (tokio_util::sync::CancellationToken::new(), rows);
    // The first run takes the second step, the other finds it in the checkpoint.
    for _ in 0..2 {
        let again = Arc::new(testing::Notes::default());
        context.observer = again.clone();
        let metrics = testing::run(&context).await.unwrap();
        let resumed = Done::read(&context, metrics).unwrap();
        assert_eq!(resumed.bytes(ADAPTER), straight.bytes(ADAPTER));
        assert_eq!((&resumed.steps, &resumed.metrics), (&straight.steps, &straight.metrics));
        assert_eq!(*again.0.lock().unwrap(), notes);
    }
}

/// Makes all episodes of these groups wrong, with equal rewards, and the others right if their reward is high.
fn fail(hall: &Hall, groups: std::ops::Range<usize>) {
    let path = hall.path("rewards.parquet");
    let mut rewards: Vec<Reward> = data::read(&path).unwrap();
    for (index, reward) in rewards.iter_mut().enumerate() {
        let is_wrong = groups.contains(&(index / 4));
        reward.reward = if is_wrong { 0.0 } else { reward.reward };
        reward.correct = Some(!is_wrong && reward.reward > 0.5);
    }
    data::write(&path, &rewards).unwrap();
}

/// Writes a solution of each of these scenarios, with a call's result in its middle. Returns them.
fn solve(hall: &Hall, scenarios: &[usize]) -> Vec<Trajectory> {
    let played: Vec<Trajectory> = data::read(&hall.path("trajectories.parquet")).unwrap();
    let solution = |scenario: &usize| {
        let prompt = played[scenario * 4].tokens[..11].iter().copied();
        let tokens: Vec<u32> = prompt.chain((0..7).map(|at| (at * 5 + *scenario as u32) % 59)).collect();
        Trajectory {
            id: format!("r{scenario}"),
            scenario_id: format!("s{scenario}"),
            policy: REFERENCE.into(),
            messages: Vec::new(),
            sampled: (0..tokens.len()).map(|at| at >= 11 && at != 13).collect(),
            // No policy sampled it.
            logprobs: vec![f32::NAN; tokens.len()],
            tokens,
            correct: Some(true),
            end: "completed".into(),
            ..Trajectory::default()
        }
    };
    let solutions: Vec<Trajectory> = scenarios.iter().map(solution).collect();
    data::write(&hall.path("demonstrations.parquet"), &solutions).unwrap();
    solutions
}

/// Mean −log p of the sampled tokens under the base, and the norm of its gradient.
fn cross_entropy(episodes: &[Trajectory]) -> (f64, f64) {
    let examples: Vec<_> =
        episodes.iter().map(|episode| (episode.tokens.clone(), episode.sampled.clone())).collect();
    let rule = crate::engine::Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.0 };
    let mut trainer =
        crate::engine::Trainer::new(model(3), |parameters| vec![rule; parameters.len()], 1).unwrap();
    let supervised = crate::engine::Supervised::packed(&examples.iter().collect::<Vec<_>>(), 1, usize::MAX);
    let (loss, report) = supervised.step(&mut trainer, 1e-3, 0.0).unwrap();
    (loss, report.gradient_norm)
}

#[tokio::test]
async fn a_demonstration_counts_as_one_more_rollout_with_its_weight_as_advantage() {
    let hall = Hall::open();
    fail(&hall, 3..5);
    let played: Vec<Trajectory> = data::read(&hall.path("trajectories.parquet")).unwrap();
    let tokens = |episodes: &[Trajectory]| episodes.iter().map(step::trained).sum::<usize>() as f64;
    let of = |loss: &str, weight: f64| json!({"lora": false, "loss": loss, "zero_variance_groups": "exclude", "demonstration_weight": weight});
    let mut alone = Vec::new();
    for loss in ["dapo", "grpo", "dr_grpo", "gspo", "cispo"] {
        alone.push((loss, first_step(&hall, &format!("{loss}-alone"), of(loss, 1.0), None).await));
    }
    let solutions = solve(&hall, &[3]);
    let (cross_entropy, norm) = cross_entropy(&solutions);
    let length = tokens(&solutions);
    for (loss, alone) in alone {
        let one = first_step(&hall, &format!("{loss}-one"), of(loss, 1.0), None).await;
        let three = first_step(&hall, &format!("{loss}-three"), of(loss, 3.0), None).await;
        // Divisors of the loss over the rollouts, and of the cross-entropy over the solution.
        let (rollouts, solution) = match loss {
            "dapo" | "cispo" => (tokens(&played[..12]), length),
            "dr_grpo" => (12.0 * 512.0, length),
            _ => (12.0, 1.0),
        };
        let both = match loss {
            "dr_grpo" => 13.0 * 512.0,
            _ => rollouts + solution,
        };
        let close = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 1e-4, "{loss}: {found} instead of {expected}");
        };
        close(both * one.loss, rollouts * alone.loss + solution * cross_entropy);
        close(both * three.loss, rollouts * alone.loss + 3.0 * solution * cross_entropy);
        // Gradients add as vectors: the product of the two follows from one weight, and must hold for the other.
        let (of_rollouts, of_solution) = (rollouts * alone.gradient_norm, solution * norm);
        let squares = of_rollouts.powi(2) + of_solution.powi(2);
        let product = ((both * one.gradient_norm).powi(2) - squares) / 2.0;
        assert!(product.abs() < of_rollouts * of_solution, "{loss}");
        let expected = of_rollouts.powi(2) + 9.0 * of_solution.powi(2) + 6.0 * product;
        close((both * three.gradient_norm).powi(2), expected);
        assert_eq!(one.loss_tokens as f64, alone.loss_tokens as f64 + length, "{loss}");
    }
    // A group is not split up, or it is.
    let one = first_step(&hall, "whole", of("dapo", 1.0), None).await;
    let mut cut = of("dapo", 1.0);
    cut["tokens_per_microbatch"] = 14.into();
    let cut = first_step(&hall, "cut", cut, None).await;
    assert!((one.loss - cut.loss).abs() < 1e-5 && (one.gradient_norm / cut.gradient_norm - 1.0).abs() < 1e-5);
}

#[tokio::test]
async fn where_all_groups_are_wrong_the_step_is_a_supervised_one() {
    let hall = Hall::open();
    fail(&hall, 0..5);
    let params = json!({"lora": false, "minibatches": 1, "tool_token_loss": 0.1});
    let (notes, none) = noted(&hall, "none", params.clone()).await;
    assert!(none.steps.is_empty() && notes[0].starts_with("these episodes give no gradient"), "{notes:?}");
    let (loss, norm) = cross_entropy(&solve(&hall, &[1, 4]));
    let (notes, done) = noted(&hall, "taught", params).await;
    let close = |a: f64, b: f64| (a - b).abs() < 1e-5 * a.abs().max(b.abs());
    let step = &done.steps[0];
    assert!(close(step.loss, loss) && close(step.gradient_norm, norm), "{step:?} {loss} {norm}");
    assert!(close(done.metrics["demonstration_loss"], loss));
    // No policy sampled what it is about.
    assert_eq!([step.entropy, step.moved_kl, step.clip_fraction, step.max_logprob_gap], [None; 4]);
    let metrics = &done.metrics;
    assert_eq!((metrics["taught_groups"], metrics["groups_with_gradient"]), (2.0, 2.0));
    assert_eq!((metrics["signal"], metrics["all_wrong"]), (0.4, 0.6));
    assert!(!metrics.contains_key("entropy") && !metrics.contains_key("tool_token_loss"));
    assert!(
        notes.iter().any(|note| note.starts_with("2 of 5 groups that are all wrong are taught")),
        "{notes:?}"
    );
}

#[tokio::test]
async fn a_demonstration_has_no_part_in_what_is_measured_of_rollouts() {
    let hall = Hall::open();
    fail(&hall, 3..5);
    lag(&hall, 0.2);
    let base = hall.path("base");
    let params = json!({"minibatches": 1, "kl": 0.1, "importance": "token_truncate", "dropout": 0.1});
    let without = hall.update(&base, Some("other"), "without", params.clone()).await.unwrap();
    solve(&hall, &[3, 4]);
    let with = hall.update(&base, Some("other"), "with", params).await.unwrap();
    assert_eq!(with.metrics["taught_groups"], 2.0);
    // Dropout draws by place, so what is scored under it differs.
    for name in ["importance", "off_policy_kl", "moved_kl", "entropy", "clip_fraction"] {
        let (one, other) = (without.metrics[name], with.metrics[name]);
        assert!((one - other).abs() < 1e-6, "{name}: {one} {other}");
    }
    assert_ne!(with.bytes(ADAPTER), without.bytes(ADAPTER));
}

#[tokio::test]
async fn a_group_is_taught_only_if_all_of_it_is_wrong_and_a_right_solution_is_known() {
    let hall = Hall::open();
    fail(&hall, 3..5);
    for loss in ["dapo", "grpo"] {
        let params = json!({"loss": loss});
        let _ = std::fs::remove_file(hall.path("demonstrations.parquet"));
        let without = hall.fresh(&format!("{loss}-without"), params.clone()).await;
        assert!(!without.metrics.contains_key("taught_groups"));
        // Of groups that vary, of no group, and one that does not work.
        let mut solutions = solve(&hall, &[0, 1, 2, 4]);
        solutions[2].scenario_id = "another".into();
        solutions[3].correct = Some(false);
        data::write(&hall.path("demonstrations.parquet"), &solutions).unwrap();
        let with = hall.fresh(&format!("{loss}-with"), params.clone()).await;
        assert_eq!((with.metrics["taught_groups"], with.bytes(ADAPTER)), (0.0, without.bytes(ADAPTER)));
        assert_eq!(with.steps, without.steps);
        solve(&hall, &[3, 4]);
        let off = json!({"loss": loss, "demonstration_weight": 0.0});
        assert_eq!(hall.fresh(&format!("{loss}-off"), off).await.bytes(ADAPTER), without.bytes(ADAPTER));
        assert_ne!(hall.fresh(&format!("{loss}-on"), params).await.bytes(ADAPTER), without.bytes(ADAPTER));
    }
}

#[tokio::test]
async fn demonstrations_of_another_tokenizer_are_refused() {
    let hall = Hall::open();
    let mut solutions = solve(&hall, &[3]);
    solutions[0].tokens[12] = 60;
    data::write(&hall.path("demonstrations.parquet"), &solutions).unwrap();
    let refused = hall.update(&hall.path("base"), None, "refused", json!({})).await.unwrap_err();
    assert_eq!(refused.code(), "training::vocabulary");
}

#[tokio::test]
async fn an_update_that_teaches_ends_in_the_same_bytes_after_a_kill() {
    let hall = Hall::open();
    fail(&hall, 2..5);
    solve(&hall, &[2, 4]);
    let params = json!({"epochs": 2, "minibatches": 2, "loss": "grpo"});
    let straight = hall.fresh("straight", params.clone()).await;
    assert_eq!(straight.steps.len(), 4);
    let (mut context, rows) = hall.context(&hall.path("base"), None, "killed", params);
    for checkpoints in [1, 2] {
        testing::Killer::watch(&mut context, &rows, checkpoints);
        assert_eq!(testing::run(&context).await.unwrap_err().code(), "interrupted");
    }
    (context.cancel, context.rows) = (tokio_util::sync::CancellationToken::new(), rows);
    let metrics = testing::run(&context).await.unwrap();
    let resumed = Done::read(&context, metrics).unwrap();
    for file in [ADAPTER, "optimizer.safetensors"] {
        assert_eq!(resumed.bytes(file), straight.bytes(file), "{file}");
    }
    assert_eq!((&resumed.steps, &resumed.metrics), (&straight.steps, &straight.metrics));
}
