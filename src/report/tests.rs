use super::{
    Tone,
    document::{Block, Cell, Document, Table, Transcript},
    plot::{self, Effect},
    *,
};
use crate::view::{
    conversation::{MadeCall, Message},
    tests::{Parts, parts},
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
        role: text.into(),
        text: text.into(),
        reasoning: Some(text.into()),
        calls: vec![MadeCall { id: text.into(), tool: text.into(), arguments: text.into() }],
        tool: Some(text.into()),
        error: Some(text.into()),
        ..Message::default()
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
    let message = Message { role: "tool".into(), text, ..Message::default() };
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
