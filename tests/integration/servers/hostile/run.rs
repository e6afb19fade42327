//! One run of `mcprl connect`, with its time, memory, output and the processes that it leaves.

use std::{
    fs::File,
    io::{Read, Seek},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Ends, stdio};

const MCPRL: &str = env!("CARGO_BIN_EXE_mcprl");
/// Beyond a run with a well-behaved server: what the client may keep of a server's lines, lists and pages.
const MEMORY_MIB: usize = 64;
/// Beyond the timeouts of a case: closing a connection, killing a server, and asking once more whether it answers.
const SLACK: Duration = Duration::from_secs(10);
/// No case prints more.
const OUTPUT_BYTES: usize = 256 << 10;

/// Seconds of a timeout that no case reaches.
const USUAL_S: u64 = 30;

pub struct Case<A> {
    pub name: &'static str,
    /// Answers one message as this server does.
    pub answer: A,
    ends: Ends,
    start_s: u64,
    call_s: u64,
    arguments: fn() -> String,
    memory_mib: usize,
    pub leaves_daemon: bool,
}

impl<A: Copy> Case<A> {
    /// A case that waits for no timeout.
    pub const fn new(name: &'static str, answer: A, ends: Ends) -> Self {
        Self {
            name,
            answer,
            ends,
            start_s: USUAL_S,
            call_s: USUAL_S,
            arguments: || "{}".into(),
            memory_mib: 0,
            leaves_daemon: false,
        }
    }

    /// The start takes until its timeout.
    pub const fn start_s(self, start_s: u64) -> Self {
        Self { start_s, ..self }
    }

    /// The call takes until its timeout.
    pub const fn call_s(self, call_s: u64) -> Self {
        Self { call_s, ..self }
    }

    pub const fn arguments(self, arguments: fn() -> String) -> Self {
        Self { arguments, ..self }
    }

    /// Memory for messages near the maximum size, which exist in several forms while they are read.
    pub const fn memory_mib(self, memory_mib: usize) -> Self {
        Self { memory_mib, ..self }
    }

    /// What left the group of a server that ended by itself is not found.
    pub const fn leaves_daemon(self) -> Self {
        Self { leaves_daemon: true, ..self }
    }

    /// The timeouts that the run reaches.
    fn waits(&self) -> Duration {
        let limits = [self.start_s, self.call_s];
        Duration::from_secs(limits.into_iter().filter(|limit_s| *limit_s != USUAL_S).sum())
    }

    /// Runs `mcprl connect` with these options and this server.
    pub fn run_with(&self, options: &[&str], server: &[String]) -> Run {
        let (start_s, call_s) = (self.start_s.to_string(), self.call_s.to_string());
        let mut command = Command::new(MCPRL);
        command.args(["connect", "--start-timeout-s", &start_s, "--call-timeout-s", &call_s]).args(options);
        command.args(["--call", "t", &(self.arguments)()]).args(server).env("HOSTILE_TOKEN", TOKEN);
        Run::of(&mut command, self.waits() + Duration::from_secs(60))
    }
}

/// What a run may take beyond its timeouts and its allowance.
pub struct Bounds {
    memory_mib: usize,
    slack: Duration,
}

impl Bounds {
    /// Measures a run with a well-behaved server.
    pub fn measure() -> Self {
        let usual = Case::new("well-behaved", (), Ends::Result("fine"));
        let run = usual.run_with(&[], &stdio::server(usual.name, "-"));
        assert_eq!(run.code, Some(0), "{}", run.err);
        Self { memory_mib: run.memory_mib + MEMORY_MIB, slack: 2 * SLACK + 20 * run.time }
    }

    /// What is wrong with the run of a case.
    pub fn problems<A: Copy>(&self, run: &Run, case: &Case<A>, tag: &str) -> Vec<String> {
        let (mut problems, waits, memory_mib) = (Vec::new(), case.waits(), case.memory_mib);
        let (code, text, place, output) = match case.ends {
            Ends::Result(text) => (Some(0), text, "result after", &run.out),
            Ends::CallError(text) => (Some(1), text, "error after", &run.out),
            Ends::Fails(text) => (run.code.filter(|code| *code == 1 || *code == 2), text, "error", &run.err),
        };
        if run.code != code || run.code.is_none() {
            problems.push(format!("exit code {:?}", run.code));
        }
        if !output.contains(text) || !output.contains(place) {
            problems.push(format!("`{place}` or `{text}` is missing"));
        }
        if run.time > waits + self.slack {
            problems.push(format!("took {:?}, more than {waits:?} + {:?}", run.time, self.slack));
        }
        if run.memory_mib > self.memory_mib + memory_mib {
            problems
                .push(format!("used {} MiB, more than {} + {memory_mib}", run.memory_mib, self.memory_mib));
        }
        if run.out.len() + run.err.len() > OUTPUT_BYTES {
            problems.push(format!("printed {} bytes", run.out.len() + run.err.len()));
        }
        if [&run.out, &run.err].iter().any(|text| text.contains(['\u{1b}', '\u{202e}', '\u{200b}', '\u{7}']))
        {
            problems.push("printed control characters".into());
        }
        if run.err.contains("panicked") {
            problems.push("panicked".into());
        }
        problems
            .extend(left_behind(tag).into_iter().map(|(id, line)| format!("left a process: {id} {line}")));
        if std::env::var_os("HOSTILE_SHOW").is_some() {
            println!("{:>5} MiB {:>6} ms  {tag}", run.memory_mib, run.time.as_millis());
        }
        if !problems.is_empty() {
            let beginning = |text: &str| text.chars().take(1500).collect::<String>();
            problems.push(format!("  stdout: {}\n  stderr: {}", beginning(&run.out), beginning(&run.err)));
        }
        problems
    }
}

/// The bearer token of HTTP cases.
pub const TOKEN: &str = "s3cr3t-t0ken";

pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    pub time: Duration,
    pub memory_mib: usize,
}

impl Run {
    /// Runs the program; kills it after `limit`, which leaves no exit code.
    pub fn of(command: &mut Command, limit: Duration) -> Self {
        let (mut out, mut err) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        command.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
        let began = Instant::now();
        let mut child = command.spawn().unwrap();
        let mut memory_mib = 0;
        let status = loop {
            memory_mib = memory_mib.max(peak_mib(child.id()));
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > limit {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let (time, code) = (began.elapsed(), status.code());
        Self { code, out: text(&mut out), err: text(&mut err), time, memory_mib }
    }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.take(4 << 20).read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The highest resident memory of a process so far. The usage that the system reports at its end includes its servers'.
///
/// For a moment after `spawn` the process still shares the memory of this test process, under its name.
fn peak_mib(id: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    if !status.starts_with("Name:\tmcprl\n") {
        return 0;
    }
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kib.unwrap_or(0) >> 10
}

/// Ids and command lines of the processes with this argument.
fn processes(tag: &str) -> Vec<(i32, String)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = entries.filter_map(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let id = entry.file_name().to_str()?.parse().ok()?;
        Some((id, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    lines.filter(|(_, line)| line.contains(tag)).collect()
}

/// Kills the processes with this argument until there is none for a while. A daemon may be between its fork and its exec.
pub fn kill_left_behind(tag: &str) {
    use rustix::process::{Pid, Signal, kill_process};
    let mut quiet = 0;
    for _ in 0..80 {
        let found = processes(tag);
        quiet = if found.is_empty() { quiet + 1 } else { 0 };
        if quiet == 8 {
            break;
        }
        for id in found.into_iter().filter_map(|(id, _)| Pid::from_raw(id)) {
            let _ = kill_process(id, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(25));
    }
}

/// Processes with this argument. A killed process may take a moment to end.
fn left_behind(tag: &str) -> Vec<(i32, String)> {
    let began = Instant::now();
    loop {
        let found = processes(tag);
        if found.is_empty() || began.elapsed() > SLACK {
            return found;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
}

/// Runs cases in a few threads and reports all that fail. `HOSTILE_CASE` chooses those with this text in their name.
pub fn check_all<C: Sync>(
    at_once: usize,
    cases: &[C],
    name: impl Fn(&C) -> &'static str + Sync,
    check: impl Fn(&C, &str) -> Vec<String> + Sync,
) {
    let wanted = std::env::var("HOSTILE_CASE").unwrap_or_default();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = name(case);
                    if !name.contains(&wanted) {
                        continue;
                    }
                    let slug = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
                    let problems = check(case, &format!("hostile-{}-{slug}", std::process::id()));
                    if !problems.is_empty() {
                        failures.lock().unwrap().push(format!("{name}: {}", problems.join("; ")));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}
