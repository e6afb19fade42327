use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{log::Content, *};
use crate::{
    exec::{Event, Listener, RunSpec, RunState},
    hash::Digest,
    plan::Overrides,
    progress::{NoProgress, Observer},
    view::synthetic::{self, RUN, Size},
};

/// The stages of the synthetic run.
const FILE: &str = r#"
seed = 1
[stages.tools]
kind = "discover"
[loop.train]
iterations = 3
[loop.train.stages.rollout]
kind = "rollout"
prompts = 4
[loop.train.stages.reward]
kind = "judge"
base_url = "https://me:s3cr3t@host/v1"
[loop.train.stages.update]
kind = "grpo"
learning_rate = 1e-3
"#;

/// A finished run with a run file.
fn made(folder: &Path) -> Store {
    let store = synthetic::write(&folder.join("cache"), Size::SMALL);
    let overrides = Overrides {
        set: vec!["loop.train.stages.rollout.prompts=8".into(), "server.env.API_KEY=s3cr3t".into()],
        ..Overrides::default()
    };
    let spec = RunSpec {
        extended: Vec::new(),
        file: "/nowhere/pets.toml".into(),
        stages: None,
        resample: Vec::new(),
        until: Vec::new(),
        keep_going: false,
        overrides,
        text: FILE.into(),
        is_trial: false,
    };
    std::fs::write(store.runs().join(RUN).join("run.toml"), toml::to_string(&spec).unwrap()).unwrap();
    store
}

fn journal(store: &Store) -> std::path::PathBuf {
    store.runs().join(RUN).join("journal.jsonl")
}

fn log(store: &Store) -> Log {
    LogReader::new(store, RUN, true).read().unwrap()
}

/// Step and value of each point of a series.
fn series(log: &Log, tag: &str) -> Vec<(u64, f64)> {
    let of = |entry: &log::Entry| match &entry.content {
        Content::Scalars(values) => {
            values.iter().find(|(name, _)| name == tag).map(|(_, value)| (entry.step, *value))
        }
        Content::Text { .. } => None,
    };
    log.entries.iter().filter_map(of).collect()
}

#[test]
fn a_log_has_the_curves_of_a_run_its_settings_and_its_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(&made(folder.path()));
    assert_eq!((log.run.as_str(), log.name.as_str(), log.state), (RUN, "pets", RunState::Finished));
    let steps = |tag: &str| series(&log, tag).into_iter().map(|(step, _)| step).collect::<Vec<_>>();
    for tag in [
        "success",
        "success_low",
        "success_high",
        "reward",
        "loss",
        "gradient_norm",
        "learning_rate",
        "entropy",
    ] {
        assert_eq!(steps(&format!("train/{tag}")), [1, 2, 3], "{tag}");
    }
    assert_eq!(series(&log, "train/clip_fraction")[0], (1, 0.01));
    assert_eq!(series(&log, "train_steps/moved_kl")[5], (5, 0.01));
    assert_eq!(series(&log, "train_signal/share"), [(1, 0.6), (2, 0.6), (3, 0.6)]);
    assert_eq!(series(&log, "train_signal/with_gradient")[0], (1, 10.0));
    assert_eq!(series(&log, "train_signal/without_gradient_zero_variance")[0], (1, 6.0));
    assert_eq!(series(&log, "train_episodes/turns")[2], (3, 2.0));
    assert_eq!(series(&log, "train_time/seconds")[0], (1, 6.0));
    assert_eq!(series(&log, "train_time/sampled_tokens_per_second")[0], (1, 500.0));
    assert_eq!(series(&log, "train_metrics/update/loss")[0], (1, 0.5));
    assert_eq!(steps("train_steps/loss"), [0, 1, 2, 3, 4, 5], "two in each iteration");
    assert_eq!(series(&log, "exam/trained/gain"), [(0, 0.3)]);
    assert_eq!(series(&log, "exam/trained/gain_high"), [(0, 0.5)]);
    assert_eq!(series(&log, "exam/base/success"), [(0, 0.5)]);
    assert_eq!(series(&log, "stages/exam/all/gain"), [(0, 0.3)]);
    let setting =
        |name: &str| log.config.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone());
    assert_eq!(setting("seed"), Some(json!(1)));
    assert_eq!(setting("train/rollout.prompts"), Some(json!(8)), "an override");
    assert_eq!(setting("train/update.learning_rate"), Some(json!(1e-3)));
    assert!(setting("train/update.epochs").is_some(), "a default");
    assert_eq!(setting("set"), Some(json!("loop.train.stages.rollout.prompts=8")));
    assert!(!format!("{:?}", log.config).contains("s3cr3t"), "{:?}", log.config);
    let texts: Vec<(&str, u64)> = log
        .entries
        .iter()
        .filter_map(|entry| match &entry.content {
            Content::Text { tag, markdown, .. } => {
                assert!(!markdown.contains('\u{1b}'), "{markdown}");
                Some((tag.as_str(), entry.step))
            }
            Content::Scalars(_) => None,
        })
        .collect();
    let of_iteration = |step| [("examples/train_right", step), ("examples/train_wrong", step)];
    assert_eq!(texts, [&[1, 2, 3].map(of_iteration).concat()[..], &[("verdict/exam", 0)]].concat());
}

#[test]
fn conversations_can_be_kept_from_trackers() {
    let folder = tempfile::tempdir().unwrap();
    let log = LogReader::new(&made(folder.path()), RUN, false).read().unwrap();
    let is_example = |entry: &log::Entry| matches!(&entry.content, Content::Text { tag, .. } if tag.starts_with("examples"));
    assert!(!log.entries.iter().any(is_example));
}

#[test]
fn the_log_of_a_run_that_goes_on_begins_with_the_log_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let store = made(folder.path());
    let whole = std::fs::read_to_string(journal(&store)).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let all = log(&store).entries;
    let mut reader = LogReader::new(&store, RUN, true);
    let mut counts = Vec::new();
    for count in 1..=lines.len() {
        std::fs::write(journal(&store), lines[..count].join("\n") + "\n").unwrap();
        let found = reader.read().unwrap().entries;
        assert_eq!(found, all[..found.len()], "after {count} lines");
        assert_eq!(found, log(&store).entries, "what is kept in memory is what is read anew");
        counts.push(found.len());
    }
    assert!(counts.is_sorted() && counts.last() == Some(&all.len()), "{counts:?}");
}

#[test]
fn a_point_appears_when_its_iteration_ends() {
    let folder = tempfile::tempdir().unwrap();
    let store = made(folder.path());
    let whole = std::fs::read_to_string(journal(&store)).unwrap();
    let until = |stage: &str| {
        let end = |line: &&str| line.contains("\"finished\"") && line.contains(&format!("\"{stage}\""));
        let at = whole.lines().position(|line| end(&line)).unwrap();
        std::fs::write(journal(&store), whole.lines().take(at + 1).collect::<Vec<_>>().join("\n")).unwrap();
        series(&log(&store), "train/success").len()
    };
    assert_eq!(
        [until("train[0002]/rollout"), until("train[0002]/reward"), until("train[0002]/update")],
        [1, 1, 2]
    );
}

#[test]
fn a_resumed_run_has_the_log_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let store = made(folder.path());
    let before = log(&store).entries;
    let whole = std::fs::read_to_string(journal(&store)).unwrap();
    let again = whole.lines().filter(|line| line.contains("\"finished\"")).map(|line| {
        let mut entry: serde_json::Value = serde_json::from_str(line).unwrap();
        (entry["event"], entry["at"]) = ("cached".into(), 1_800_000_000_000_u64.into());
        entry.to_string() + "\n"
    });
    // Twice: what was found again may be found again.
    let again: String = again.collect();
    std::fs::write(journal(&store), format!("{whole}{again}{again}")).unwrap();
    assert_eq!(log(&store).entries, before);
}

#[test]
fn tracking_again_changes_nothing_and_another_file_is_never_added() {
    let folder = tempfile::tempdir().unwrap();
    let store = made(folder.path());
    let spec = TrackSpec { tensorboard: Some(Default::default()), ..TrackSpec::default() };
    let files = || {
        let items = std::fs::read_dir(store.runs().join(RUN).join("tensorboard")).unwrap();
        let read = |item: std::io::Result<std::fs::DirEntry>| std::fs::read(item.unwrap().path()).unwrap();
        items.map(read).collect::<Vec<_>>()
    };
    let whole = std::fs::read_to_string(journal(&store)).unwrap();
    let half: Vec<&str> = whole.lines().take(12).collect();
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for text in [&half.join("\n"), &whole, &whole] {
        std::fs::write(journal(&store), text).unwrap();
        let mut sinks = sinks(&spec, &store, RUN, Duration::from_secs(9));
        let problems = update(&mut sinks, &mut LogReader::new(&store, RUN, true)).unwrap();
        assert!(problems.iter().all(Option::is_none));
        let mut found = files();
        assert_eq!(found.len(), 1);
        seen.extend(found.pop());
    }
    assert!(seen[1].starts_with(&seen[0]) && seen[0].len() < seen[1].len());
    assert_eq!(seen[1], seen[2]);
}

/// Collects what a person would see.
#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl Listener for Seen {
    fn event(&self, event: &Event) {
        if let Event::Untracked { tracker, error } = event {
            self.0.lock().unwrap().push(format!("{tracker}: {error}"));
        }
    }

    fn observer(&self, _: &str) -> Arc<dyn Observer> {
        Arc::new(NoProgress)
    }
}

/// A tracker that takes this long, and then fails or counts.
struct Slow {
    takes: Duration,
    fails: bool,
    updates: Arc<AtomicUsize>,
}

impl Sink for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn location(&self) -> String {
        "nowhere".into()
    }

    fn update(&mut self, _: &Log) -> Result<(), TrackError> {
        std::thread::sleep(self.takes);
        self.updates.fetch_add(1, Ordering::Relaxed);
        match self.fails {
            true => Err(TrackError::Thread(std::io::Error::other("dead"))),
            false => Ok(()),
        }
    }
}

/// Ten stages end; then the run ends. Returns the events' and the end's duration, the number of updates, and what was
/// said.
fn live(takes: Duration, fails: bool) -> (Duration, Duration, usize, Vec<String>) {
    let patience = Duration::from_millis(500);
    live_until(takes, fails, patience, &CancellationToken::new())
}

fn live_until(
    takes: Duration,
    fails: bool,
    patience: Duration,
    stop: &CancellationToken,
) -> (Duration, Duration, usize, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let store = made(folder.path());
    let updates = Arc::new(AtomicUsize::new(0));
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(Slow { takes, fails, updates: Arc::clone(&updates) })];
    let seen = Arc::new(Seen::default());
    let reader = LogReader::new(&store, RUN, true);
    let live = Live::with(sinks, reader, seen.clone(), Duration::from_millis(50)).unwrap();
    let began = Instant::now();
    let listener = live.listener();
    for _ in 0..10 {
        listener.event(&Event::Cached { id: "a".into(), key: Digest::of(b""), result: Default::default() });
    }
    let events = began.elapsed();
    live.finish_within(patience, "mcprl track r", stop);
    let all = seen.0.lock().unwrap().clone();
    (events, began.elapsed() - events, updates.load(Ordering::Relaxed), all)
}

#[test]
fn a_dead_tracker_is_reported_once() {
    let (_, _, updates, seen) = live(Duration::ZERO, true);
    assert!((2..=3).contains(&updates), "{updates}");
    assert_eq!(seen, ["slow: cannot start the thread that updates trackers: dead"]);
}

#[test]
fn a_slow_tracker_delays_neither_stages_nor_for_long_the_end() {
    let (events, end, _, seen) = live(Duration::from_secs(5), false);
    assert!(events < Duration::from_millis(400), "{events:?}");
    assert!(end < Duration::from_secs(2), "{end:?}");
    assert_eq!(seen, ["track: not everything could be sent in time"]);
}

#[test]
fn a_signal_ends_the_wait_for_a_slow_tracker() {
    let stop = CancellationToken::new();
    let signal = stop.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        signal.cancel();
    });
    let (_, end, _, seen) = live_until(Duration::from_secs(5), false, Duration::from_secs(60), &stop);
    assert!(end < Duration::from_secs(2), "{end:?}");
    assert_eq!(seen, ["track: stopped before everything was sent"]);
}

#[test]
fn many_events_make_few_updates_and_the_last_state_is_sent() {
    let (_, _, updates, seen) = live(Duration::ZERO, false);
    assert!((2..=3).contains(&updates), "{updates}");
    assert_eq!(seen, [""; 0]);
}
