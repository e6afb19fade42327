//! `source = "explored"` on published servers: how many tasks, which tools, and whether their chains solve them again.
//!
//! Exploring a server takes minutes, so the tests run only if `MCPRL_TEST_EXPLORED` names a folder for tasks and refusals:
//! `MCPRL_TEST_EXPLORED=/tmp/explored cargo test --release --lib server_tests -- --nocapture` prints the figures.
//! `tests/reference/servers.sh` installs the servers into `target/servers`; a server that is not there is skipped, and the
//! test says so. `MCPRL_TEST_SERVERS` names another folder.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    admission,
    answer_rule::AnswerRule,
    chat::ToolCall,
    data::Tool,
    explored::{Budget, Examples, ExploreInputs, ExploreWrites, Explored, explore},
    judge::truth,
    live::Live,
    mcp::{ErrorPatterns, Outcome, ServerSpec, Servers, Session, State, Transport},
    progress::NoProgress,
    refusals::Admitted,
};
use tokio_util::sync::CancellationToken;

/// A server, its state, and what exploration must reach.
struct Case {
    name: &'static str,
    command: Vec<String>,
    env: BTreeMap<String, String>,
    state: State,
    /// Tools that the agent has; all if empty.
    allow: &'static [&'static str],
    error_patterns: &'static [&'static str],
    tasks: usize,
    tools: f64,
}

fn servers() -> PathBuf {
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers");
    std::env::var_os("MCPRL_TEST_SERVERS").map_or_else(usual, PathBuf::from)
}

fn words(words: &[&str]) -> Vec<String> {
    let servers = servers();
    let node = servers.join("node/node_modules/@modelcontextprotocol");
    let expand = |word: &&str| {
        word.replace("{servers}", servers.to_str().unwrap()).replace("{node}", node.to_str().unwrap())
    };
    words.iter().map(expand).collect()
}

impl Case {
    fn new(name: &'static str, command: &[&str], state: State) -> Self {
        let command = words(command);
        Self {
            name,
            command,
            env: BTreeMap::new(),
            state,
            allow: &[],
            error_patterns: &[],
            tasks: 100,
            tools: 0.8,
        }
    }

    async fn check(self) {
        if std::env::var_os("MCPRL_TEST_EXPLORED").is_none() {
            return eprintln!("skipped: MCPRL_TEST_EXPLORED is not set");
        }
        let missing = self
            .command
            .iter()
            .find(|word| word.starts_with(servers().to_str().unwrap()) && !Path::new(word).exists());
        if let Some(missing) = missing {
            return eprintln!("skipped: {missing} is not there; tests/reference/servers.sh installs it");
        }
        let transport = Transport::Stdio {
            command: self.command.clone(),
            env: self.env.clone(),
            cwd: None,
            files: Vec::new(),
        };
        let mut spec = ServerSpec::new(transport, self.state.clone());
        spec.limits.start_timeout = Duration::from_secs(120);
        let patterns: Vec<String> = self.error_patterns.iter().map(|text| (*text).to_owned()).collect();
        spec.quirks.error_patterns = ErrorPatterns::new(&patterns).unwrap();
        let session = Session::connect(&spec).await.unwrap();
        let mut tools = crate::offered::tool_rows(session.describe().await.unwrap().tools);
        session.close().await;
        tools.retain(|tool| self.allow.is_empty() || tool.synthetic || self.allow.contains(&&*tool.name));
        let servers = Servers::from(spec);
        let start = Instant::now();
        let explored = explored(&servers, &tools, 7).await;
        let took = start.elapsed();
        let solved = solved_again(&servers, &tools, &explored).await;
        self.report(&explored, solved, took);
        let admitted = explored.judged.admitted.len();
        assert_eq!(solved, admitted, "{}: every chain solves its task again", self.name);
        assert!(admitted >= self.tasks, "{}: {admitted} tasks", self.name);
        let coverage = &explored.coverage;
        let share = coverage.covered_tools as f64 / coverage.tools as f64;
        assert!(share >= self.tools, "{}: {} of {} tools", self.name, coverage.covered_tools, coverage.tools);
    }

    fn report(&self, explored: &Explored, solved: usize, took: Duration) {
        let judged = &explored.judged;
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for row in &judged.rows {
            *reasons.entry(row.reason.as_deref().unwrap_or("admitted")).or_default() += 1;
        }
        let coverage = &explored.coverage;
        let mut lengths = [0; 6];
        judged.admitted.iter().for_each(|one| lengths[one.candidate.calls.len().min(5)] += 1);
        eprintln!(
            "{}: {} admitted of {}, {solved} solved again; tools {}/{}, parameters {}/{}; calls 1–5 {:?}; {reasons:?}; {} calls, {:.0} s; without {:?}",
            self.name,
            judged.admitted.len(),
            judged.rows.len(),
            coverage.covered_tools,
            coverage.tools,
            coverage.covered_params,
            coverage.params,
            &lengths[1..],
            explored.calls,
            took.as_secs_f64(),
            coverage.uncovered,
        );
        if let Some(folder) = std::env::var_os("MCPRL_TEST_EXPLORED") {
            let row = |row: &crate::data::Admission| {
                format!(
                    "{}\t{}\t{}\t{}\n",
                    row.reason.as_deref().unwrap_or("admitted"),
                    row.task,
                    row.detail.as_deref().unwrap_or_default(),
                    row.family
                )
            };
            let admitted =
                judged.admitted.iter().map(|one| format!("{} → {:?}\n", one.candidate.task, one.answer));
            let text: String = admitted.chain(judged.rows.iter().map(row)).collect();
            std::fs::write(Path::new(&folder).join(self.name), text).unwrap();
        }
    }
}

async fn explored(servers: &Servers, tools: &[Tool], seed: u64) -> Explored {
    let cancel = CancellationToken::new();
    let budget = Budget {
        calls: 600,
        seconds: 900,
        tasks: 150,
        per_family: 40,
        impossible_share: 0.05,
        no_call_share: 0.05,
        result_chars: 4000,
    };
    let task = ExploreInputs {
        servers,
        tools,
        examples: &Examples::default(),
        writes: &ExploreWrites::default(),
        held_out: None,
        seed,
        budget,
        observer: &NoProgress,
        cancel: &cancel,
    };
    explore(&task).await.unwrap()
}

/// Executes each chain again, those that change something on sessions of their own.
async fn solved_again(servers: &Servers, tools: &[Tool], explored: &Explored) -> usize {
    let live = Live::new(servers, tools);
    let cancel = CancellationToken::new();
    let budget = Budget {
        calls: 0,
        seconds: 900,
        tasks: 0,
        per_family: 0,
        impossible_share: 0.0,
        no_call_share: 0.0,
        result_chars: 4000,
    };
    let task = ExploreInputs {
        servers,
        tools,
        examples: &Examples::default(),
        writes: &ExploreWrites::default(),
        held_out: None,
        seed: 0,
        budget,
        observer: &NoProgress,
        cancel: &cancel,
    };
    let admitted = &explored.judged.admitted;
    let chain = |one: &Admitted| {
        let checks = one.candidate.checks.iter().flat_map(admission::state_calls);
        one.candidate.calls.iter().cloned().chain(checks).collect()
    };
    let chains: Vec<Vec<ToolCall>> = admitted.iter().map(chain).collect();
    let outcomes = {
        let [_, runner] = task.runners([&live, &live]);
        runner.run(&chains).await.unwrap()
    };
    live.close().await;
    let is_solved = |(one, outcomes): &(&Admitted, Vec<Outcome>)| {
        if one.candidate.calls.is_empty() || matches!(one.candidate.rule, AnswerRule::Absent { .. }) {
            return true;
        }
        // A solution may fail on its way, so that a model learns to go on.
        let works = one.candidate.may_fail || outcomes.iter().all(|outcome| !outcome.is_error);
        assert!(works, "{}: {outcomes:?}", one.candidate.task);
        let (texts, states) = outcomes.split_at(one.candidate.calls.len());
        let texts: Vec<&str> = texts.iter().map(|outcome| outcome.text.as_str()).collect();
        let answer = one.candidate.rule.answer(&texts);
        let mut checks = one.candidate.checks.iter().flat_map(|checks| &checks.state).zip(states);
        (one.answer.is_none() || answer.as_ref().ok() == one.answer.as_ref())
            && checks.all(|(check, state)| truth::text_holds(&check.expect, &state.text))
    };
    admitted.iter().zip(outcomes).filter(is_solved).count()
}

/// Gives files and folders an age: what is from today is refused.
fn age(path: &Path) {
    for entry in path.is_dir().then(|| std::fs::read_dir(path).unwrap()).into_iter().flatten() {
        age(&entry.unwrap().path());
    }
    let seconds = 1_600_000_000 + path.to_str().unwrap().len() as u64 * 90_000;
    let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    std::fs::File::open(path).unwrap().set_modified(time).unwrap();
}

fn git(folder: &Path, words: &[&str], date: &str) {
    let status = Command::new("git")
        .args(words)
        .current_dir(folder)
        .env("GIT_AUTHOR_DATE", date)
        .env("GIT_COMMITTER_DATE", date)
        .status();
    assert!(status.unwrap().success(), "git {words:?}");
}

const TOPICS: [&str; 12] = [
    "orchard",
    "lighthouse",
    "glacier",
    "violin",
    "compass",
    "harvest",
    "monsoon",
    "granite",
    "falcon",
    "lantern",
    "meadow",
    "quarry",
];

#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("library.db");
    let database = rusqlite::Connection::open(&path).unwrap();
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/mcp-server-sqlite/library.sql");
    database.execute_batch(&std::fs::read_to_string(library).unwrap()).unwrap();
    drop(database);
    let path = path.to_str().unwrap().to_owned();
    let mut case =
        Case::new("sqlite", &["{servers}/sqlite/bin/mcp-server-sqlite", "--db-path", &path], State::ReadOnly);
    case.allow = &["read_query", "list_tables", "describe_table"];
    case.error_patterns = &["^Error:", "^Database error"];
    case.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn git_repository() {
    let folder = tempfile::tempdir().unwrap();
    git(folder.path(), &["init", "-q", "-b", "main"], "2024-01-01T10:00:00Z");
    git(folder.path(), &["config", "user.name", "Ada"], "2024-01-01T10:00:00Z");
    git(folder.path(), &["config", "user.email", "ada@example.com"], "2024-01-01T10:00:00Z");
    let verbs = ["Describe", "Revise", "Illustrate"];
    let commits = verbs.iter().flat_map(|verb| TOPICS.iter().map(move |topic| (verb, topic)));
    for (index, (verb, topic)) in commits.enumerate() {
        let date = format!("2024-{:02}-{:02}T10:{index:02}:00Z", 3 + index / 12, index % 12 + 1);
        let text = format!("notes on the {topic}\n{verb} {index}\n");
        std::fs::write(folder.path().join(format!("{topic}.txt")), text).unwrap();
        let author = ["Ada <ada@example.com>", "Bob <bob@example.com>", "Cem <cem@example.com>"][index % 3];
        git(folder.path(), &["add", "."], &date);
        let message = format!("{verb} the {topic}");
        git(folder.path(), &["commit", "-q", "-m", &message, "--author", author], &date);
        if index % 8 == 1 {
            git(folder.path(), &["branch", &format!("draft-{topic}-{index}")], &date);
        }
    }
    git(folder.path(), &["branch", "ready"], "2024-05-30T10:00:00Z");
    std::fs::write(folder.path().join("violin.txt"), "notes on the violin, changed and staged\n").unwrap();
    git(folder.path(), &["add", "."], "2024-04-01T10:00:00Z");
    std::fs::write(folder.path().join("falcon.txt"), "notes on the falcon, changed\n").unwrap();
    std::fs::write(folder.path().join("new.txt"), "not added yet\n").unwrap();
    let state = State::SnapshotDir(folder.path().to_owned());
    let words = ["{servers}/git/bin/mcp-server-git", "--repository", "{dir}"];
    // Its log has no task, because what names a commit is opaque; those about branches and changes are few.
    Case { tasks: 10, tools: 0.5, ..Case::new("git", &words, state) }.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time() {
    let words = ["{servers}/time/bin/mcp-server-time", "--local-timezone", "UTC"];
    // A clock has no state, and most of its answers change: all of those of one of its two tools.
    Case { tasks: 5, tools: 0.5, ..Case::new("time", &words, State::ReadOnly) }.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn filesystem() {
    let folder = tempfile::tempdir().unwrap();
    for (index, topic) in TOPICS.iter().enumerate() {
        let inner = folder.path().join(["notes", "plans", "archive"][index % 3]);
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(
            inner.join(format!("{topic}.txt")),
            format!("owner: person {index}\npages: {}\nkeeper of the {topic}\n", 10 + index * 7),
        )
        .unwrap();
        std::fs::write(
            inner.join(format!("{topic}.json")),
            format!("{{\"topic\": \"{topic}\", \"budget\": {}}}", 1000 + index * 37),
        )
        .unwrap();
    }
    age(folder.path());
    let state = State::SnapshotDir(folder.path().to_owned());
    Case::new("filesystem", &["node", "{node}/server-filesystem/dist/index.js", "{dir}"], state)
        .check()
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = String::new();
    for (index, topic) in TOPICS.iter().enumerate() {
        let kind = ["place", "tool", "person"][index % 3];
        lines += &format!(
            "{{\"type\":\"entity\",\"name\":\"{topic}\",\"entityType\":\"{kind}\",\"observations\":[\"weighs {} kg\",\"was seen in {}\"]}}\n",
            3 + index * 5,
            1960 + index * 4
        );
    }
    for (index, topic) in TOPICS.iter().enumerate() {
        let other = TOPICS[(index + 5) % TOPICS.len()];
        lines += &format!(
            "{{\"type\":\"relation\",\"from\":\"{topic}\",\"to\":\"{other}\",\"relationType\":\"{}\"}}\n",
            ["guards", "follows", "needs"][index % 3]
        );
    }
    std::fs::write(folder.path().join("memory.jsonl"), lines).unwrap();
    let state = State::SnapshotDir(folder.path().to_owned());
    let mut case = Case::new("memory", &["node", "{node}/server-memory/dist/index.js"], state);
    case.env = [("MEMORY_FILE_PATH".to_owned(), "{dir}/memory.jsonl".to_owned())].into();
    case.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything() {
    let words = ["node", "{node}/server-everything/dist/index.js", "stdio"];
    // It has hardly any state, and seven of its tools show nothing that could be asked about: some switch something invisible, one waits,
    // one needs the extension for tasks, and one repeats what it is told.
    Case { tasks: 60, tools: 0.4, ..Case::new("everything", &words, State::FreshProcess) }.check().await;
}
