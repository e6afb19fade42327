use super::{
    Tone,
    document::{Block, Cell, Document, Table, Transcript},
    plot::{self, Effect},
    *,
};
use crate::{
    data::{Message, MessageCall, Role, Scenario, VerdictRow},
    eval::{Comparison, Episode, Mode, verdict},
    hash::Digest,
    view::tests::{Parts, TestRun, parts},
};

const HOSTILE: &str =
    "</pre><script>alert(1)</script><img src=x onerror=y>\u{1b}[2J\u{202e}\u{200b}\0'\"`|`](http://x) @all";

/// A document with the text wherever a text can be.
fn hostile(text: &str) -> Document {
    let mut table = Table::new([text, text]);
    table.row([Cell::text(text), Cell::code(text).tone(Tone::Bad)]);
    let effect = Effect {
        label: text.into(),
        count: 1,
        value: 0.1,
        low: 0.0,
        high: 0.2,
        tone: Tone::Good,
        is_total: true,
    };
    let message = Message {
        reasoning: Some(text.into()),
        calls: vec![MessageCall {
            id: text.into(),
            name: text.into(),
            arguments: [(text.into(), text.into())].into_iter().collect(),
            ..MessageCall::default()
        }],
        ..Message::result(text, text, text)
    };
    let talk =
        Transcript { title: text.into(), tone: Tone::Bad, messages: vec![message], ending: text.into() };
    let blocks = vec![
        Block::Heading(text.into()),
        Block::Subheading(text.into()),
        Block::Text(text.into()),
        Block::Statement(Tone::Good, text.into()),
        Block::List(vec![text.into()]),
        Block::Table(table),
        Block::Facts(vec![(text.into(), text.into())]),
        Block::Code(text.into()),
        Block::Plots(plot::forest(text, &[effect]).into_iter().collect(), text.into()),
        Block::Details(text.into(), vec![Block::Conversations(vec![talk])]),
    ];
    Document { title: text.into(), subtitle: text.into(), blocks }
}

#[test]
fn hostile_text_is_text_in_every_block_of_a_page() {
    let page = html_page(&hostile(HOSTILE));
    for markup in ["<script", "<img", "</pre><script", "onerror=y>"] {
        assert!(!page.contains(markup), "{markup}");
    }
    assert!(!page.contains(['\u{1b}', '\0', '\u{202e}', '\u{200b}']));
    assert!(page.contains("&lt;script&gt;") && page.contains('␛') && page.contains("⟦U+202E⟧"));
    // Attributes that hold text are closed by the page alone.
    let label = page.split("aria-label=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    assert!(label.starts_with("&lt;/pre&gt;") && label.ends_with("@all"), "{label}");
}

#[test]
fn hostile_text_is_text_in_markdown() {
    let page = markdown_page(&hostile(HOSTILE));
    assert!(!page.contains(['\u{1b}', '\0', '\u{202e}', '\u{200b}']));
    // Within code nothing is markup, so only lines and cells without it count.
    let is_fence = |line: &&str| line.starts_with("```");
    let mut is_code = false;
    for line in page.lines() {
        is_code ^= is_fence(&line);
        if !is_code && !line.contains("``") {
            let markup = line.replace("\\<", "").replace("\\]", "");
            let is_harmless =
                !markup.contains("<script") && !markup.contains("<img") && !markup.contains("](http");
            assert!(is_harmless, "{line}");
        }
    }
}

#[test]
fn a_huge_message_makes_no_huge_page() {
    let text = "<b>".repeat(4_000_000);
    let message = Message::new(Role::Tool, text);
    let talk =
        Transcript { title: "t".into(), tone: Tone::Plain, messages: vec![message], ending: String::new() };
    let blocks = vec![Block::Conversations(vec![talk])];
    let document = Document { blocks, ..Document::default() };
    assert!(html_page(&document).len() < 30_000 && markdown_page(&document).len() < 10_000);
}

#[test]
fn a_report_has_its_parts_and_the_same_bytes_each_time() {
    let mut parts = parts(true);
    parts.made.line(serde_json::json!({"at": 9000, "event": "closed", "state": "finished"}));
    let run = parts.made.run();
    let page = report(&run);
    let html = html_page(&page);
    for part in [
        "Verdict",
        "Where it fails",
        "Set-up",
        "Training",
        "Examples",
        "Tools",
        "Cost and time",
        "How to reproduce it",
        "Limits",
    ] {
        assert!(html.contains(&format!("<h2>{part}</h2>")), "{part}");
    }
    assert_eq!(html, html_page(&report(&parts.made.run())));
    assert!(!html.contains(parts.made.store.root().to_str().unwrap()), "no path");
    let text = markdown_page(&page);
    assert!(text.contains("1 tasks won, 1 lost, 0 still wrong, 1 still right"), "{text}");
    assert!(text.contains("error of look (tool): no such row 17"), "{text}");
    assert!(text.contains("`tools`"), "{text}");
}

#[test]
fn what_next_is_to_resume_a_run_that_was_interrupted_and_to_try_one_that_gained() {
    let mut parts = parts(true);
    let killed = answer::answer(&parts.made.run(), " --cache C");
    assert_eq!(killed.next[0].command.as_deref(), Some("mcprl resume r --cache C"));
    assert!(killed.next.len() <= 3);
    parts.made.line(serde_json::json!({"at": 9000, "event": "closed", "state": "finished"}));
    let finished = answer::answer(&parts.made.run(), "");
    let commands: Vec<_> = finished.next.iter().filter_map(|action| action.command.as_deref()).collect();
    assert!(!commands.iter().any(|command| command.contains("resume")), "{commands:?}");
    let exam = finished.exam.unwrap();
    let failed = finished.failed.unwrap();
    let last = exam.policies.last().unwrap();
    let share = 1.0 - failed.failed_tasks as f64 / failed.tasks as f64;
    assert_eq!(failed.tasks as u32, exam.tasks, "one count of the exam's tasks");
    assert!((last.success - share).abs() < 1e-9, "{last:?} {failed:?}");
}

/// The rows of an exam in which each policy solves so many of forty tasks, and of the first ten, which are a kind of their own, so
/// many.
fn examined(solve: &[(&str, usize, usize)]) -> Vec<VerdictRow> {
    let scenario = |number: usize| Scenario {
        id: format!("s{number:02}"),
        split: "unseen".into(),
        family: if number < 10 { "early" } else { "late" }.into(),
        ..Scenario::default()
    };
    let scenarios: Vec<Scenario> = (0..40).map(scenario).collect();
    let episode = |policy: &str, number: usize, right| Episode {
        scenario: format!("s{number:02}"),
        policy: policy.into(),
        mode: Mode::Greedy,
        right,
        changed: None,
        by_protocol: true,
        any_right: None,
        calls: 1,
        turns: 2,
        tokens: 9,
        tool_errors: 0,
        tools: Vec::new(),
    };
    let of = |(policy, solved, early): &(&str, usize, usize)| -> Vec<Episode> {
        let is_right = |number: usize| match number < 10 {
            true => number < *early,
            false => number - 10 < solved - early,
        };
        (0..40).map(|number| episode(policy, number, is_right(number))).collect()
    };
    let episodes: Vec<Episode> = solve.iter().flat_map(of).collect();
    let policies: Vec<String> = solve.iter().map(|(policy, ..)| (*policy).to_owned()).collect();
    let variants = [("base+".to_owned(), "base".to_owned())];
    let compared = Comparison {
        policies: &policies,
        scenarios: &scenarios,
        variants: &variants,
        ..Comparison::default()
    };
    verdict(&compared, &episodes)
}

#[test]
fn four_levels_are_shown_from_the_simplest_on_with_the_gain_over_the_base_with_a_better_prompt() {
    let mut made = TestRun::new();
    made.examined(&examined(&[("base+", 10, 2), ("base", 4, 1), ("start", 20, 5), ("trained", 35, 9)]));
    let exam = answer::answer(&made.run(), "").exam.unwrap();
    let names: Vec<&str> = exam.policies.iter().map(|one| one.policy.as_str()).collect();
    assert_eq!(names, ["base", "base+", "start", "trained"]);
    let gain = exam.gain.unwrap();
    assert_eq!((exam.baseline.as_str(), gain.to.as_str(), gain.gain), ("base+", "base+", 0.625));
    assert_eq!((exam.splits[0].base, exam.splits[0].success), (Some(0.25), 0.875));
    assert_eq!((exam.kinds, exam.worse.len()), (2, 0));
}

#[test]
fn the_kinds_that_a_policy_is_measurably_worse_at_are_named_and_no_others() {
    let mut made = TestRun::new();
    made.examined(&examined(&[("base", 18, 10), ("trained", 29, 0)]));
    let exam = answer::answer(&made.run(), "").exam.unwrap();
    assert_eq!((exam.kinds, exam.worse.as_slice()), (2, &["early".to_owned()][..]));
    let mut made = TestRun::new();
    made.examined(&examined(&[("base", 18, 10), ("trained", 38, 9)]));
    let exam = answer::answer(&made.run(), "").exam.unwrap();
    assert!(exam.worse.is_empty(), "one task less is chance: {:?}", exam.worse);
}

#[test]
fn advice_that_sets_a_parameter_has_the_table_of_the_stage_that_takes_it() {
    let mut run = parts(true).made.run();
    run.state = crate::exec::RunState::Finished;
    let at = run.stages.iter().position(|stage| stage.id == "train[0001]/rollout").unwrap();
    run.stages[at].params.insert("draw".into(), "uniform".into());
    let update = run.stages.iter_mut().find(|stage| stage.id == "train[0001]/update").unwrap();
    update.notes = vec![
        "in 3 of 4 groups all rollouts are right, so they teach nothing: train on harder tasks, or `draw = \"pass_rate\"`".into(),
        "look at it with `mcprl show`, or set `no_such = 1`".into(),
    ];
    let toml: Vec<_> = answer::answer(&run, "").next.into_iter().map(|action| action.toml).collect();
    let draw = Some("[loop.train.stages.rollout]\ndraw = \"pass_rate\"".to_owned());
    assert_eq!(toml, [draw, None]);
}

#[test]
fn runs_that_differ_in_seeds_and_one_parameter_are_a_sweep() {
    let parts = parts(true);
    let run = |id: &str, seed: u64, set: &[&str]| {
        let mut run = parts.made.run();
        (run.id, run.seed) = (id.into(), Some(seed));
        run.set = set.iter().map(|set| (*set).to_owned()).collect();
        for stage in &mut run.stages {
            stage.key = Some(Digest::of(id.as_bytes()));
        }
        run
    };
    let rate = "loop.train.stages.update.learning_rate";
    let high = format!("{rate}=1e-2");
    let low = format!("{rate}=3e-3");
    let runs = [
        run("high", 1, &[&high]),
        run("high2", 2, &[&high, "loop.train.stages.rollout.seed=2"]),
        run("low", 1, &[&low]),
        run("plain, again", 1, &[]),
        run("plain", 1, &[]),
        run("other", 1, &["loop.train.stages.rollout.group_size=4"]),
    ];
    let found = sweeps(&runs);
    assert_eq!(found.len(), 2, "{found:?}");
    let swept = &found[0];
    assert_eq!(swept.parameter.as_deref(), Some(rate));
    let values: Vec<_> =
        swept.values.iter().map(|value| (value.value.as_deref(), value.runs.join(" "))).collect();
    let expected = [(None, "plain"), (Some("3e-3"), "low"), (Some("0.01"), "high high2")];
    assert_eq!(values, expected.map(|(value, runs)| (value, runs.to_owned())));
    let seeds = &swept.values[2];
    assert_eq!((swept.baseline.as_deref(), swept.policy.as_str()), (Some("base"), "trained"));
    assert_eq!((swept.tasks, seeds.replicates.policies[1].success.len()), (3, 2));
    assert!(swept.values[0].to_first.is_none() && seeds.to_first.as_ref().unwrap().gain == 0.0);
    let alone = sweeps(&runs[..2]);
    assert_eq!((alone.len(), alone[0].parameter.as_deref()), (1, None), "seeds alone");
    let mut copy = run("copy", 3, &[&format!("{rate}=0.01")]);
    copy.stages.iter_mut().for_each(|stage| stage.key = Some(Digest::of(b"high")));
    let mut other_prompt = run("other prompt", 4, &[&high]);
    other_prompt.stages[0].params.insert("system".into(), "another file".into());
    let [high, high2, ..] = runs;
    let found = sweeps(&[high, high2, copy, other_prompt]);
    let runs: Vec<_> =
        found.iter().flat_map(|sweep| &sweep.values).map(|value| value.runs.join(" ")).collect();
    assert_eq!(runs, ["copy high2"], "one that is another one's result, and one with other files");
}

#[test]
fn to_train_longer_stretches_the_learning_rate_too() {
    let parts = parts(true);
    let mut run = parts.made.run();
    let first = run.stages.iter_mut().find(|stage| matches!(&stage.iteration, Some((_, 1)))).unwrap();
    first.params.insert("total_steps".into(), 16.into());
    let first = first.name.clone();
    let iterations = run.loops[0].iterations.len() as u64;
    let table = format!("loop.{}", first.replace('/', ".stages."));
    let expected = [("loop.train".to_owned(), "iterations", 2 * iterations), (table, "total_steps", 32)];
    assert_eq!(answer::twice(&run, &run.loops[0]), expected);
}

#[test]
fn code_in_a_text_is_code() {
    let blocks = vec![Block::Text("set `a = \"<b>\"`, or not".into()), Block::Text("a lone ` stays".into())];
    let page = html_page(&Document { blocks, ..Document::default() });
    assert!(page.contains("set <code>a = &quot;&lt;b&gt;&quot;</code>, or not"), "{page}");
    assert!(page.contains("a lone ` stays"), "{page}");
}

#[test]
fn a_report_has_the_engine_and_the_command_that_ran() {
    let parts = parts(true);
    let spec = crate::exec::RunSpec {
        extended: Vec::new(),
        file: "/some/where/my run.toml".into(),
        stages: None,
        resample: vec!["train[3]/reward".into()],
        until: vec!["train[2]".into()],
        keep_going: true,
        overrides: crate::plan::Overrides::new(
            [("MCPRL_SEED".to_owned(), "4".to_owned())],
            vec!["engine.dtype=bf16".into(), "stages.tools.note=it's".into()],
        ),
        text: "name = \"demo\"\n[engine]\ndtype = \"f16\"\nthreads = 3\n".into(),
        is_trial: false,
    };
    std::fs::create_dir_all(parts.made.store.runs().join("r")).unwrap();
    std::fs::write(parts.made.store.runs().join("r/run.toml"), toml::to_string(&spec).unwrap()).unwrap();
    let page = report(&parts.made.run());
    let fact = |wanted: &str| {
        let facts = page.blocks.iter().filter_map(|block| match block {
            Block::Facts(facts) => Some(facts),
            _ => None,
        });
        facts.flatten().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    };
    assert_eq!(fact("engine"), Some("devices = [\"cpu\"], dtype = \"bf16\", threads = 3"));
    assert_eq!(
        fact("command"),
        Some(
            r"mcprl run 'my run.toml' --set seed=4 --set engine.dtype=bf16 --set 'stages.tools.note=it'\''s' --resample 'train[3]/reward' --until 'train[2]'"
        )
    );
}

#[test]
fn a_report_of_a_swept_or_empty_run_says_what_is_missing() {
    let Parts { made, rollout, verdict, episodes } = parts(false);
    [&rollout, &verdict, &episodes].into_iter().for_each(|output| made.sweep(output));
    let text = markdown_page(&report(&made.run()));
    assert!(text.contains("The verdict of exam is no longer in the cache."), "{text}");
    assert!(
        text.contains("No longer in the cache, so left out here: train[0001]/rollout.trajectories"),
        "{text}"
    );
    let run = made.run();
    assert!(
        markdown_page(&server_document(&run, &server_report(&run, None))).contains("has played no episodes")
    );
}

#[test]
fn runs_are_compared_on_common_tasks() {
    let parts = parts(true);
    let of = || Comparable { run: parts.made.run(), differences: vec!["seed 1 → 2".into()] };
    let text = markdown_page(&comparison(&[of(), of()]).unwrap());
    assert!(text.contains("3 tasks are common to all runs"), "{text}");
    assert!(text.contains("- seed 1 → 2"), "{text}");
    parts.made.sweep(&parts.episodes);
    let refused = comparison(&[of(), of()]).unwrap_err();
    assert_eq!(refused, NotComparable::NoEpisodes("r".into()));
}

#[test]
fn a_server_report_counts_errors_with_recoveries_and_tools_that_are_never_called() {
    let parts = parts(true);
    let run = parts.made.run();
    let found = server_report(&run, None);
    assert_eq!((found.episodes, found.tasks, found.failed_tasks), (10, 3, 1));
    assert_eq!((found.policy.as_str(), found.without_reference), ("trained in exam", 1));
    assert_eq!(server_report(&run, Some("exam")).policy, found.policy);
    let error = &found.errors[0];
    assert_eq!((error.message.as_str(), error.count, error.recovered), ("no such row N", 10, 10));
    let never = found.tools.iter().find(|tool| tool.calls.tool == "never").unwrap();
    assert_eq!((never.calls.calls, never.offered_in), (0, 10));
    assert_eq!(
        found.causes.iter().map(|cause| (cause.cause, cause.tasks)).collect::<Vec<_>>(),
        [("not in a result", 1)]
    );
    assert!(markdown_page(&server_document(&run, &found)).contains("no such row N"));
}
