//! The stage on small decoders, and against TRL's trainer.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Value, json};

use super::*;
use crate::{
    data,
    engine::{DeviceSet, Microbatch, score_across},
    hash::Digest,
    model::{Adapter, Decoder, Init, read_safetensors},
    stage::{Artifacts, policy::AdapterOf, testing},
};

const OPTIMIZER: &str = LossState::Sft.file();
const GRPO: &str = LossState::Grpo.file();

struct Base(PathBuf);

impl Artifacts for Base {
    fn folder(&self, _: &Digest) -> Result<PathBuf> {
        Ok(self.0.clone())
    }
}

fn model() -> Decoder {
    Decoder::random(testing::small_model(), Init { seed: 3, deviation: 0.3 }).unwrap()
}

/// An episode with two turns, after a prompt of eight tokens and a result of three.
fn episode(index: usize) -> Trajectory {
    let draw = |i: usize, of: usize| ((i * i * 7 + i * 13 + of * 29) % 59) as u32;
    let tokens: Vec<u32> = (0..8).map(|i| draw(i, 0)).chain((8..20).map(|i| draw(i, index))).collect();
    let sampled = (0..20).map(|at| at >= 8 && !(12..15).contains(&at)).collect();
    Trajectory {
        id: format!("t{index:02}"),
        scenario_id: format!("s{index}"),
        policy: data::REFERENCE.into(),
        messages: Vec::new(),
        logprobs: vec![0.0; tokens.len()],
        tokens,
        sampled,
        end: "completed".into(),
        correct: Some(true),
        ..Trajectory::default()
    }
}

/// A model and a table of episodes.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new(episodes: &[Trajectory]) -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(bench.path("base")).unwrap();
        model().save(&bench.path("base")).unwrap();
        std::fs::write(bench.path("base").join("tokenizer.json"), "{}").unwrap();
        bench.write(episodes);
        bench
    }

    fn of(count: usize) -> Self {
        Self::new(&(0..count).map(episode).collect::<Vec<_>>())
    }

    fn write(&self, episodes: &[Trajectory]) {
        data::write(&self.path("trajectories.parquet"), episodes).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn context(&self, policy: &Path, out: &str, params: Value) -> (Context, Arc<testing::Ledger>) {
        let (trajectories, rewards) = (self.path("trajectories.parquet"), self.path("rewards.parquet"));
        let mut inputs = vec![("policy", policy), ("trajectories", trajectories.as_path())];
        inputs.extend(rewards.is_file().then_some(("rewards", rewards.as_path())));
        let mut given = json!({"learning_rate": 3e-3, "epochs": 2});
        given.as_object_mut().unwrap().extend(params.as_object().cloned().unwrap());
        let (mut context, rows) = testing::context("sft", &inputs, &self.path(out), given);
        context.artifacts = Arc::new(Base(self.path("base")));
        (context, rows)
    }

    async fn train(&self, policy: &Path, out: &str, params: Value) -> Result<Done> {
        let context = self.context(policy, out, params).0;
        let metrics = testing::run(&context).await?;
        Done::read(&context, metrics)
    }

    async fn fresh(&self, out: &str, params: Value) -> Result<Done> {
        self.train(&self.path("base"), out, params).await
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

    fn bytes(&self) -> [Vec<u8>; 2] {
        ["adapter_model.safetensors", OPTIMIZER].map(|file| std::fs::read(self.policy.join(file)).unwrap())
    }

    fn optimizer_steps(&self, file: &str) -> f32 {
        let state = read_safetensors(&self.policy.join(file)).unwrap();
        state["steps"].to_vec1::<f32>().unwrap()[0]
    }
}

fn close(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * a.abs().max(b.abs())
}

#[tokio::test]
async fn loss_gradient_and_rate_of_every_step_are_those_of_trl() {
    #[derive(Deserialize)]
    struct Sequence {
        input_ids: Vec<u32>,
        assistant_masks: Vec<u8>,
    }
    #[derive(Deserialize)]
    struct Trl {
        loss: f64,
        grad_norm: f64,
        learning_rate: f64,
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/fixtures");
    let fixture: Value = serde_json::from_slice(&std::fs::read(fixtures.join("sft.json")).unwrap()).unwrap();
    let sequences: Vec<Sequence> = serde_json::from_value(fixture["sequences"].clone()).unwrap();
    let expected: Vec<Trl> = serde_json::from_value(fixture["steps"].clone()).unwrap();
    let of = |(index, sequence): (usize, Sequence)| Trajectory {
        logprobs: vec![0.0; sequence.input_ids.len()],
        tokens: sequence.input_ids,
        sampled: sequence.assistant_masks.iter().map(|mask| *mask == 1).collect(),
        ..episode(index)
    };
    let bench = Bench::new(&sequences.into_iter().enumerate().map(of).collect::<Vec<_>>());
    let (base, adapter) = (bench.path("base"), bench.path("adapter"));
    for file in std::fs::read_dir(fixtures.join("qwen3-tiny")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), base.join(file.file_name())).unwrap();
    }
    std::fs::create_dir(&adapter).unwrap();
    for file in std::fs::read_dir(fixtures.join("qwen3-tiny-lora")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), adapter.join(file.file_name())).unwrap();
    }
    AdapterOf { base: Digest::of(b"base") }.write(&adapter).unwrap();

    let params = json!({"epochs": expected.len(), "batch_size": 3, "learning_rate": 1e-3});
    let done = bench.train(&adapter, "out", params).await.unwrap();
    assert_eq!(done.steps.len(), 6);
    for (ours, theirs) in done.steps.iter().zip(&expected) {
        let Step { step, loss, gradient_norm, learning_rate, .. } = ours;
        assert!(close(*loss, theirs.loss, 1e-5), "step {step}: loss {loss} against {}", theirs.loss);
        assert!(
            close(*gradient_norm, theirs.grad_norm, 1e-4),
            "step {step}: norm {gradient_norm} against {}",
            theirs.grad_norm
        );
        assert!(close(*learning_rate, theirs.learning_rate, 1e-9), "step {step}: rate {learning_rate}");
    }
}

#[tokio::test]
async fn the_loss_covers_the_sampled_tokens_alone() {
    let bench = Bench::of(6);
    let done = bench.fresh("out", json!({"batch_size": 6, "epochs": 1})).await.unwrap();
    let episodes: Vec<Trajectory> = (0..6).map(episode).collect();
    let pairs: Vec<_> = episodes.iter().map(|t| (t.tokens.as_slice(), t.sampled.as_slice())).collect();
    let (batch, targets) = Microbatch::new(&pairs);
    let scored = score_across(&model(), &DeviceSet::cpu(1, 1), &[batch], &Default::default()).unwrap();
    let logprobs: Vec<f32> = targets.iter().flatten().map(|target| scored[0][*target]).collect();
    assert_eq!(logprobs.len(), 6 * 9);
    let mean = -logprobs.iter().map(|p| f64::from(*p)).sum::<f64>() / logprobs.len() as f64;
    assert!(close(done.metrics["first_loss"], mean, 1e-6), "{:?} against {mean}", done.metrics);
    assert_eq!((done.metrics["loss_tokens"], done.metrics["tokens_unshared"]), (54.0, 120.0));
    assert!(done.metrics["tokens"] < 120.0, "prompts are shared");
}

#[tokio::test]
async fn training_ends_when_the_loss_of_eight_steps_is_low_enough() {
    let bench = Bench::of(4);
    let steps = async |out: &str, stop: Value| {
        let params = json!({"batch_size": 4, "epochs": 30, "learning_rate": 1e-2, "stop_loss": stop});
        bench.fresh(out, params).await.unwrap().steps
    };
    let whole = steps("whole", Value::Null).await;
    let mean = |end: usize| whole[end - 8..end].iter().map(|step| step.loss).sum::<f64>() / 8.0;
    let most = mean(20);
    let first = (8..=30).find(|end| mean(*end) <= most).unwrap();
    let stopped = steps("stopped", json!(most)).await;
    assert_eq!(stopped, whole[..first], "the steps until then are the same");
    assert_eq!(steps("at_once", json!(1e9)).await.len(), 8);
    assert_eq!(steps("never", json!(0.0)).await.len(), 30);
}

#[tokio::test]
async fn held_out_episodes_are_not_trained_on_and_their_loss_is_that_of_the_policy_after_a_pass() {
    // Two episodes of each task.
    let all: Vec<Trajectory> = (0..12)
        .map(|index| Trajectory { scenario_id: format!("s{}", index / 2), ..episode(index) })
        .collect();
    let bench = Bench::new(&all);
    let params = json!({"batch_size": 4, "held_out": 0.3});
    let (context, _) = bench.context(&bench.path("base"), "out", params.clone());
    let done = bench.fresh("out", params).await.unwrap();
    assert_eq!((done.metrics["episodes"], done.steps.len()), (8.0, 4));
    let measured: Vec<bool> = done.steps.iter().map(|step| step.held_out_loss.is_some()).collect();
    assert_eq!(measured, [false, true, false, true]);
    assert_eq!(Some(done.metrics["held_out_loss"]), done.steps[3].held_out_loss);

    let episodes = all.iter().map(|one| Episode { task: one.scenario_id.clone(), rows: Rows::new() });
    let (_, held) = held_out(episodes.collect(), 0.3, context.seed);
    assert_eq!(held.len(), 4);
    let tokens = |done: &Done| done.metrics["loss_tokens"];
    let mut losses = Vec::new();
    for tasks in [
        ["s0", "s1"],
        ["s0", "s2"],
        ["s0", "s3"],
        ["s0", "s4"],
        ["s0", "s5"],
        ["s1", "s2"],
        ["s1", "s3"],
        ["s1", "s4"],
        ["s1", "s5"],
        ["s2", "s3"],
        ["s2", "s4"],
        ["s2", "s5"],
        ["s3", "s4"],
        ["s3", "s5"],
        ["s4", "s5"],
    ] {
        let some: Vec<Trajectory> =
            all.iter().filter(|one| tasks.contains(&one.scenario_id.as_str())).cloned().collect();
        bench.write(&some);
        let still = json!({"learning_rate": 0.0, "epochs": 1, "batch_size": 100});
        let scored = bench.train(&done.policy, "scored", still).await.unwrap();
        assert_eq!(tokens(&scored), 36.0);
        losses.push(scored.metrics["first_loss"]);
    }
    let same = losses.iter().filter(|loss| close(**loss, done.metrics["held_out_loss"], 1e-5)).count();
    assert_eq!(same, 1, "two whole tasks have this loss: {losses:?}");
}

#[tokio::test]
async fn training_that_raises_the_loss_on_held_out_episodes_goes_back_by_a_pass() {
    let bench = Bench::of(10);
    let params = |epochs: usize, stops: bool| {
        json!({
            "batch_size": 4, "held_out": 0.3, "epochs": epochs, "stop_rising": stops, "schedule": "constant",
            "learning_rate": 1e-2,
        })
    };
    let whole = bench.fresh("whole", params(12, false)).await.unwrap();
    let losses: Vec<f64> = whole.steps.iter().filter_map(|step| step.held_out_loss).collect();
    let risen = (1..losses.len()).find(|pass| losses[*pass] >= losses[pass - 1]).unwrap();
    assert!(risen < 11, "{losses:?}");

    let stopped = bench.fresh("stopped", params(12, true)).await.unwrap();
    assert_eq!(
        stopped.steps,
        whole.steps[..2 * (risen + 1)],
        "the steps of the pass that raised it are there"
    );
    assert_eq!(stopped.metrics["held_out_loss"], losses[risen - 1]);
    let shorter = bench.fresh("shorter", params(risen, false)).await.unwrap();
    assert_eq!(stopped.bytes(), shorter.bytes(), "the weights are those before it");

    let (mut context, rows) = bench.context(&bench.path("base"), "killed", params(12, true));
    testing::Killer::watch(&mut context, &rows, 1);
    assert_eq!(testing::run(&context).await.unwrap_err().code(), "interrupted");
    context.cancel = tokio_util::sync::CancellationToken::new();
    context.rows = rows;
    let metrics = testing::run(&context).await.unwrap();
    assert_eq!(Done::read(&context, metrics).unwrap().bytes(), stopped.bytes());
}

#[tokio::test]
async fn training_makes_the_episodes_likely() {
    let bench = Bench::of(4);
    for params in [json!({"rank": 8}), json!({"lora": false}), json!({"optimizer": "muon"})] {
        let mut params = params;
        params["epochs"] = 40.into();
        params["learning_rate"] = 1e-2.into();
        let done = bench.fresh("out", params.clone()).await.unwrap();
        let Done { metrics, steps, .. } = &done;
        assert!(metrics["loss"] < 0.5 * metrics["first_loss"], "{params}: {metrics:?}");
        assert_eq!((metrics["episodes"], metrics["steps"], steps.len()), (4.0, 40.0, 40));
        assert_eq!(steps[20].loss_tokens, 36);
    }
}

#[tokio::test]
async fn a_step_is_the_same_up_to_rounding_however_many_tokens_a_microbatch_holds() {
    let bench = Bench::of(12);
    let whole = bench.fresh("whole", json!({"batch_size": 12})).await.unwrap();
    let cut = bench.fresh("cut", json!({"batch_size": 12, "tokens_per_microbatch": 20})).await.unwrap();
    assert!(cut.steps[0].tokens > whole.steps[0].tokens, "less is shared");
    assert!(close(whole.steps[0].loss, cut.steps[0].loss, 1e-6));
    assert!(close(whole.steps[0].gradient_norm, cut.steps[0].gradient_norm, 1e-5));
}

#[tokio::test]
async fn rows_of_an_episode_weigh_together_what_it_weighs_as_one() {
    let whole = Bench::of(5);
    let mut episodes: Vec<Trajectory> = (0..5).map(episode).collect();
    for episode in &mut episodes {
        let cut = 15;
        episode.tokens = [&episode.tokens[..cut], &episode.tokens].concat();
        let (first, rest) = episode.sampled.split_at(cut);
        episode.sampled = [first, &vec![false; cut], rest].concat();
        episode.logprobs = vec![0.0; episode.tokens.len()];
        episode.row_starts = Some(vec![cut as u32]);
    }
    let split = Bench::new(&episodes);
    let params = json!({"batch_size": 5});
    let (one, two) =
        (whole.fresh("out", params.clone()).await.unwrap(), split.fresh("out", params).await.unwrap());
    for (one, two) in one.steps.iter().zip(&two.steps) {
        assert_eq!(one.loss_tokens, two.loss_tokens);
        assert!(close(one.loss, two.loss, 1e-5) && close(one.gradient_norm, two.gradient_norm, 1e-4));
    }
}

#[tokio::test]
async fn right_episodes_or_those_with_a_reward_are_trained_on() {
    let outcomes = [Some(true), Some(true), Some(false), None, None];
    let episodes: Vec<Trajectory> = outcomes
        .iter()
        .enumerate()
        .map(|(index, correct)| Trajectory { correct: *correct, ..episode(index) })
        .collect();
    let bench = Bench::new(&episodes);
    let trained = async |params: Value| {
        let metrics = bench.fresh("out", params).await.unwrap().metrics;
        (metrics["episodes"], metrics["left_out"])
    };
    assert_eq!(trained(json!({})).await, (2.0, 3.0));
    assert_eq!(trained(json!({"only_right": false})).await, (5.0, 0.0));
    let failure = bench.fresh("out", json!({"min_reward": 0.5})).await.unwrap_err();
    assert_eq!((failure.code(), failure.class()), ("sft::no_rewards", crate::error::Class::Usage));

    // The last has none.
    let reward = |(index, reward): (usize, f32)| data::Reward {
        trajectory_id: format!("t{index:02}"),
        reward,
        ..data::Reward::default()
    };
    let rewards = [1.0, 0.1, 1.0, 0.9].into_iter().enumerate().map(reward).collect::<Vec<_>>();
    data::write(&bench.path("rewards.parquet"), &rewards).unwrap();
    assert_eq!(trained(json!({})).await, (2.0, 3.0), "rewards alone decide nothing");
    assert_eq!(trained(json!({"min_reward": 0.5})).await, (2.0, 3.0), "t00 and t03");
    assert_eq!(trained(json!({"min_reward": 0.5, "only_right": false})).await, (3.0, 2.0));
}

#[tokio::test]
async fn without_an_episode_to_train_on_the_stage_says_why() {
    let with = |change: fn(&mut Trajectory)| {
        let mut episode = episode(0);
        change(&mut episode);
        Bench::new(&[episode])
    };
    let cases = [
        (with(|t| t.correct = Some(false)), "no episode to train on: 1 wrong", "demonstrations"),
        (with(|t| t.correct = None), "no episode to train on: 1 without a known answer", "only_right"),
        (
            with(|t| t.sampled.fill(false)),
            "no episode to train on: 1 without a sampled token",
            "stage that wrote",
        ),
        (Bench::new(&[]), "no episode to train on: the table is empty", "`lessons`"),
    ];
    for (bench, text, hint) in cases {
        let failure = bench.fresh("out", json!({})).await.unwrap_err();
        assert_eq!((failure.code(), failure.to_string().as_str()), ("sft::nothing_to_train", text));
        assert!(failure.hint().unwrap().contains(hint), "{text}");
    }
    let long = with(|t| {
        t.tokens = vec![1; 65];
        t.sampled = vec![true; 65];
        t.logprobs = vec![0.0; 65];
    });
    let failure = long.fresh("out", json!({})).await.unwrap_err();
    assert_eq!(failure.to_string(), "no episode to train on: 1 longer than the policy's context");
}

#[tokio::test]
async fn episodes_that_do_not_fit_the_policy_are_refused() {
    let change = |change: fn(&mut Trajectory)| {
        let mut episode = episode(0);
        change(&mut episode);
        Bench::new(&[episode])
    };
    let cases = [
        (change(|t| t.tokens[3] = 60), "training::vocabulary"),
        (change(|t| _ = t.sampled.pop()), "training::ragged"),
        (change(|t| t.row_starts = Some(vec![90])), "training::rows"),
    ];
    for (bench, code) in cases {
        assert_eq!(bench.fresh("out", json!({})).await.unwrap_err().code(), code);
    }
}

#[tokio::test]
async fn the_seed_decides_the_bytes_and_a_killed_training_ends_in_the_same() {
    let bench = Bench::of(20);
    let params = json!({"batch_size": 2, "dropout": 0.1});
    let straight = bench.fresh("straight", params.clone()).await.unwrap();
    assert_eq!(bench.fresh("again", params.clone()).await.unwrap().bytes(), straight.bytes());
    let (mut other, _) = bench.context(&bench.path("base"), "other", params.clone());
    other.seed += 1;
    let metrics = testing::run(&other).await.unwrap();
    assert_ne!(Done::read(&other, metrics).unwrap().bytes(), straight.bytes());

    let (mut context, rows) = bench.context(&bench.path("base"), "killed", params);
    for checkpoints in [1, 2] {
        testing::Killer::watch(&mut context, &rows, checkpoints);
        assert_eq!(testing::run(&context).await.unwrap_err().code(), "interrupted");
        let rows: &dyn crate::stage::Rows = &*rows;
        assert!(
            rows.checkpoint().is_some() && rows.finished().unwrap().is_empty(),
            "no row, which has a largest size"
        );
    }
    context.cancel = tokio_util::sync::CancellationToken::new();
    context.rows = rows;
    let metrics = testing::run(&context).await.unwrap();
    let resumed = Done::read(&context, metrics).unwrap();
    assert_eq!(resumed.bytes(), straight.bytes());
    let losses = |done: &Done| done.steps.iter().map(|step| (step.loss, step.tokens)).collect::<Vec<_>>();
    assert_eq!(losses(&resumed), losses(&straight));
}

#[tokio::test]
async fn training_continues_an_adapter_with_its_optimizer_and_grpo_with_one_of_its_own() {
    let bench = Bench::of(8);
    let first = bench.fresh("first", json!({"epochs": 3})).await.unwrap();
    assert_eq!(first.optimizer_steps(OPTIMIZER), 3.0);
    let second = bench.train(&first.policy, "second", json!({"epochs": 2})).await.unwrap();
    assert_eq!(second.optimizer_steps(OPTIMIZER), 5.0);
    assert!(second.metrics["first_loss"] < first.metrics["first_loss"]);
    assert_eq!(second.steps[0].learning_rate, 3e-3, "a schedule of its own");
    let params = json!({"epochs": 2, "total_steps": 8});
    let third = bench.train(&first.policy, "third", params).await.unwrap();
    assert!(close(third.steps[0].learning_rate, 3e-3 * 5.0 / 8.0, 1e-9), "one schedule over both");

    // A rollout of the adapter, and one update on it.
    let mut decoder = Decoder::load(&bench.path("base")).unwrap();
    Adapter::load(&mut decoder, &second.policy).unwrap();
    let mut played: Vec<Trajectory> = (0..8).map(episode).collect();
    let mut rewards = Vec::new();
    for (index, episode) in played.iter_mut().enumerate() {
        let (batch, targets) = Microbatch::new(&[(&episode.tokens, &episode.sampled)]);
        let scored = score_across(&decoder, &DeviceSet::cpu(1, 1), &[batch], &Default::default()).unwrap();
        let mut logprobs = targets[0].iter().map(|target| scored[0][*target]);
        for (logprob, _) in episode.logprobs.iter_mut().zip(&episode.sampled).filter(|(_, is)| **is) {
            *logprob = logprobs.next().unwrap();
        }
        (episode.scenario_id, episode.policy) = ("s".into(), Digest::of(b"policy").to_string());
        let (trajectory_id, reward) = (episode.id.clone(), (index % 3) as f32);
        rewards.push(data::Reward { trajectory_id, reward, ..data::Reward::default() });
    }
    bench.write(&played);
    data::write(&bench.path("rewards.parquet"), &rewards).unwrap();
    let (trajectories, rewards) = (bench.path("trajectories.parquet"), bench.path("rewards.parquet"));
    let inputs =
        [("policy", second.policy.as_path()), ("trajectories", &trajectories), ("rewards", &rewards)];
    let (mut update, _) = testing::context("grpo", &inputs, &bench.path("update"), json!({"epochs": 2}));
    update.artifacts = Arc::new(Base(bench.path("base")));
    let metrics = testing::run(&update).await.unwrap();
    assert_eq!(metrics["max_logprob_gap"], 0.0, "the adapter is the one that played");
    let updated = Done::read(&update, metrics).unwrap();
    assert_eq!(updated.optimizer_steps(GRPO), 2.0);
    assert!(updated.steps[0].learning_rate < 1e-4, "its warm-up starts at its own first step");

    // Both take turns, each with its own moments and steps.
    assert_eq!(updated.bytes()[1], second.bytes()[1]);
    let after = bench.train(&updated.policy, "after", json!({"epochs": 2})).await.unwrap();
    assert_eq!((after.optimizer_steps(OPTIMIZER), after.optimizer_steps(GRPO)), (7.0, 2.0));
    let inputs = [("policy", after.policy.as_path()), ("trajectories", &trajectories), ("rewards", &rewards)];
    let (mut update, _) = testing::context("grpo", &inputs, &bench.path("last"), json!({}));
    update.artifacts = Arc::new(Base(bench.path("base")));
    // Another policy played these episodes.
    update.inputs.get_mut("policy").unwrap()[0].digest = Digest::of(b"after");
    let metrics = testing::run(&update).await.unwrap();
    let last = Done::read(&update, metrics).unwrap();
    assert_eq!(last.optimizer_steps(GRPO), 3.0);
    assert!(last.steps[0].learning_rate > updated.steps[0].learning_rate, "the warm-up is over");
}

#[tokio::test]
async fn an_adapter_is_not_trained_whole() {
    let bench = Bench::of(4);
    let first = bench.fresh("first", json!({})).await.unwrap();
    let failure = bench.train(&first.policy, "second", json!({"lora": false})).await.unwrap_err();
    assert_eq!(failure.code(), "training::whole_adapter");
}

#[tokio::test]
async fn a_training_that_diverges_stops_at_the_step_that_shows_it() {
    let bench = Bench::of(4);
    let params = json!({"lora": false, "learning_rate": 1e38, "batch_size": 2});
    let failure = bench.fresh("out", params).await.unwrap_err();
    assert!(["engine::diverged", "engine::logprob"].contains(&failure.code()), "{failure}");
    assert!(failure.to_string().starts_with("step 1: "), "{failure}");
    assert!(failure.hint().unwrap().contains("learning_rate"));
}

#[tokio::test]
async fn a_reward_that_is_not_finite_is_refused() {
    let bench = Bench::of(2);
    let reward =
        |id: &str, reward| data::Reward { trajectory_id: id.into(), reward, ..data::Reward::default() };
    let path = bench.path("rewards.parquet");
    data::write(&path, &[reward("a", 1.0), reward("b", f32::NAN)]).unwrap();
    let (mut context, _) = bench.context(&bench.path("base"), "out", json!({"min_reward": 0.5}));
    let input = crate::stage::Input { name: "rewards".into(), digest: Digest::of(b"rewards"), path };
    context.inputs.insert("rewards".into(), vec![input]);
    assert_eq!(testing::run(&context).await.unwrap_err().code(), "data::value");
}
