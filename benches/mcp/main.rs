//! Calls per second of mcprl's session pool against the demo server, and of a bare rmcp client that does the same work.
//!
//! ```console
//! $ cargo bench --bench mcp                    # both clients in turn, and their ratio
//! $ cargo bench --bench mcp -- soak 1000000    # the pool's resident memory over a million calls
//! $ cargo bench --bench mcp -- starts 256 COMMAND…    # episodes with a process each, and what the starts alone cost
//! ```
//!
//! A thousand episodes at once share four sessions, each of them a process. An episode makes ten calls, one after the
//! other. Client and servers share the machine's cores, so the CPU time of the client per call is printed too.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and ends if it cannot go on"
)]

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use mcprl::mcp::{Limits, Pool, ServerSpec, Session, State, Transport};
use rmcp::{ServiceExt, model::CallToolRequestParams, transport::TokioChildProcess};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

const MCPRL: &str = env!("CARGO_BIN_EXE_mcprl");
const EPISODES: usize = 1000;
const CALLS: usize = 10;
const SESSIONS: usize = 4;
const ROUNDS: usize = 5;
const QUERY: &str = "SELECT full_name FROM employees WHERE emp_id = 7";

#[tokio::main]
async fn main() {
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["soak", calls] => soak(calls.parse().unwrap()).await,
        ["starts", episodes, ref command @ ..] => starts(episodes.parse().unwrap(), command).await,
        _ => compare().await,
    }
}

async fn compare() {
    let (mut pools, mut bares) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        pools.push(pool().await);
        bares.push(bare().await);
    }
    let report = |name: &str, rounds: &[Round]| {
        let speed = median(rounds.iter().map(|round| round.calls_per_second));
        let cpu = median(rounds.iter().map(|round| round.client_us));
        println!("{name:<12}{speed:>8.0} calls/s{cpu:>8.1} µs of CPU per call in the client");
        (speed, cpu)
    };
    let (pool, bare) = (report("pool", &pools), report("bare rmcp", &bares));
    println!("ratio       {:>8.2}        {:>8.2}", pool.0 / bare.0, pool.1 / bare.1);
}

struct Round {
    calls_per_second: f64,
    client_us: f64,
}

/// Times some episodes.
async fn round(episodes: JoinSet<usize>) -> Round {
    let (began, cpu) = (Instant::now(), cpu_time());
    let calls: usize = episodes.join_all().await.into_iter().sum();
    assert_eq!(calls, EPISODES * CALLS);
    Round {
        calls_per_second: calls as f64 / began.elapsed().as_secs_f64(),
        client_us: (cpu_time() - cpu).as_secs_f64() * 1e6 / calls as f64,
    }
}

fn demo_pool() -> Pool {
    let command = [MCPRL, "demo-server", "sqlite"].map(str::to_owned).to_vec();
    let transport = Transport::Stdio { command, env: BTreeMap::new(), cwd: None, files: Vec::new() };
    let limits = Limits { sessions: Some(SESSIONS), ..Limits::default() };
    Pool::new(ServerSpec { limits, ..ServerSpec::new(transport, State::ReadOnly) })
}

fn arguments() -> Map<String, Value> {
    json!({ "sql": QUERY }).as_object().cloned().unwrap()
}

async fn episode(pool: &Pool, calls: usize) -> usize {
    let session = pool.session().await.unwrap();
    for _ in 0..calls {
        let outcome = session.call("run_query", arguments()).await.unwrap();
        assert!(!outcome.is_error, "{}", outcome.text);
    }
    calls
}

async fn pool() -> Round {
    let pool = Arc::new(demo_pool());
    // Opens every session.
    futures::future::join_all((0..SESSIONS).map(|_| episode(&pool, 1))).await;
    let mut episodes = JoinSet::new();
    for _ in 0..EPISODES {
        let pool = Arc::clone(&pool);
        episodes.spawn(async move { episode(&pool, CALLS).await });
    }
    let round = round(episodes).await;
    Arc::into_inner(pool).unwrap().close().await;
    round
}

async fn bare() -> Round {
    let mut services = Vec::new();
    for _ in 0..SESSIONS {
        let mut command = tokio::process::Command::new(MCPRL);
        command.args(["demo-server", "sqlite"]);
        services.push(().serve(TokioChildProcess::new(command).unwrap()).await.unwrap());
    }
    let mut episodes = JoinSet::new();
    for episode in 0..EPISODES {
        let peer = services[episode % SESSIONS].peer().clone();
        episodes.spawn(async move {
            for _ in 0..CALLS {
                let params = CallToolRequestParams::new("run_query").with_arguments(arguments());
                let result = peer.call_tool(params).await.unwrap();
                assert_ne!(result.is_error, Some(true));
            }
            CALLS
        });
    }
    let round = round(episodes).await;
    for service in services {
        service.cancel().await.unwrap();
    }
    round
}

/// Makes this many calls, and prints the memory of this process and of its servers twenty times.
async fn soak(calls: usize) {
    let pool = Arc::new(demo_pool());
    let part = calls / 20;
    println!("{:>10}{:>12}{:>14}{:>14}", "calls", "calls/s", "client MiB", "servers MiB");
    for number in 1..=20 {
        let began = Instant::now();
        let mut episodes = JoinSet::new();
        for _ in 0..EPISODES {
            let pool = Arc::clone(&pool);
            episodes.spawn(async move { episode(&pool, part / EPISODES).await });
        }
        let done: usize = episodes.join_all().await.into_iter().sum();
        let (client, servers) = memory_mib();
        let speed = done as f64 / began.elapsed().as_secs_f64();
        println!("{:>10}{speed:>12.0}{client:>14.1}{servers:>14.1}", number * done);
    }
    Arc::into_inner(pool).unwrap().close().await;
}

/// Plays episodes with one request each on a process of their own. The floor is the processor time of one start, times the
/// episodes, over the cores.
async fn starts(episodes: usize, command: &[&str]) {
    let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    let transport = Transport::Stdio { command, env: BTreeMap::new(), cwd: None, files: Vec::new() };
    let spec = ServerSpec::new(transport, State::FreshProcess);
    let mut alone = Vec::new();
    for _ in 0..5 {
        let before = children_time();
        let session = Session::connect(&spec).await.unwrap();
        session.tools().await.unwrap();
        session.close().await;
        alone.push((children_time() - before).as_secs_f64());
    }
    let alone = median(alone.into_iter());
    let cores = std::thread::available_parallelism().unwrap().get();
    let floor = alone * episodes as f64 / cores as f64;
    let pool = Arc::new(Pool::new(spec).within_memory(Some(available_bytes() / 2)));
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..episodes {
        let pool = Arc::clone(&pool);
        running.spawn(async move { pool.session().await.unwrap().tools().await.unwrap().len() });
    }
    running.join_all().await;
    Arc::into_inner(pool).unwrap().close().await;
    let took = began.elapsed().as_secs_f64();
    println!("one start: {alone:.2} s of CPU; {episodes} on {cores} cores at least {floor:.1} s");
    println!("{episodes} episodes: {took:.1} s, {:.2} x", took / floor);
}

fn available_bytes() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The processor time of this process so far.
fn cpu_time() -> Duration {
    processor_time(11)
}

/// The processor time of all children that have ended.
fn children_time() -> Duration {
    processor_time(13)
}

/// Two neighbouring fields of `/proc/self/stat`, counted from the third.
fn processor_time(first: usize) -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[first..first + 2].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Resident memory of this process and of its children.
fn memory_mib() -> (f64, f64) {
    let this = std::process::id().to_string();
    let (mut own, mut others) = (0.0, 0.0);
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let kib = field("VmRSS:").and_then(|text| text.split(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0);
        if field("Pid:") == Some(&this) {
            own += kib / 1024.0;
        } else if field("PPid:") == Some(&this) {
            others += kib / 1024.0;
        }
    }
    (own, others)
}
