//! A server as a child process.
//!
//! The command is a list of arguments, never a shell line. The child gets a short list of environment variables.
//! When it ends, or is no longer needed, its whole process group is killed (`mcprl_base::child`), and so is what left the group
//! (`descendants.rs`).

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use mcprl_base::{
    child::{self, Group},
    program::find_program,
    reference,
};
use parking_lot::Mutex;
use tokio::{
    io::AsyncReadExt,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::watch,
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    BWRAP, INHERITED, McpError, Sandbox, ServerOutput, Transport,
    descendants::Descendants,
    noise::Noise,
    places::Places,
    untrusted::{Redaction, Untrusted},
};

/// How long a server may take to exit after its stdin is closed.
const GRACE: Duration = Duration::from_secs(2);
/// How long to wait for stderr and the exit status before an error is reported.
const OUTPUT_WAIT: Duration = Duration::from_millis(500);
/// How much of stderr is kept, in bytes, and how much of it is quoted, in lines and characters.
const STDERR_BYTES: usize = 8192;
const QUOTED_LINES: usize = 4;
const QUOTED_CHARS: usize = 600;
/// npm prints this for any missing package.
const NPM_ADVICE: [&str; 2] =
    ["Note that you can also install from a", "tarball, folder, http url, or git folder."];

/// A running server process. When it is dropped and its stdin is closed, it ends within [`GRACE`].
pub(super) struct Process {
    stderr: Arc<Stderr>,
    /// The last line of stdout that is no message.
    pub(super) noise: Arc<Mutex<Noise>>,
    /// To be marked before stdin is closed.
    pub(super) descendants: Descendants,
    /// Its exit status, once it has ended.
    ended: watch::Receiver<Option<String>>,
    _stop: DropGuard,
}

/// The child's stdout and stdin, which carry the messages.
pub(super) type Pipes = (ChildStdout, ChildStdin);

impl Process {
    pub(super) async fn spawn(
        transport: &Transport,
        sandbox: Option<&Sandbox>,
        places: &Places,
        redaction: Redaction,
    ) -> Result<(Self, Pipes), McpError> {
        let server = transport.to_string();
        let failed = |source| McpError::Spawn { server: server.clone(), source };
        let failed_to_spawn = |source: io::Error| match sandbox {
            Some(_) if source.kind() == io::ErrorKind::NotFound && find_program(BWRAP, None).is_err() => {
                McpError::NoSandbox
            }
            _ => failed(source),
        };
        let (mut child, group) =
            child::spawn(command(transport, sandbox, places)?).await.map_err(failed_to_spawn)?;
        let (Some(stdin), Some(stdout), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed(io::Error::other("its standard streams are not piped")));
        };
        let stop = CancellationToken::new();
        let (report, ended) = watch::channel(None);
        let descendants = Descendants::of(child.id());
        tokio::spawn(supervise(child, group, descendants.clone(), stop.clone(), report));
        let (done, closed) = watch::channel(());
        let stderr = Arc::new(Stderr { tail: Mutex::default(), redaction, closed });
        tokio::spawn(listen(errors, Arc::clone(&stderr), done));
        Ok((
            Self { stderr, noise: Arc::default(), descendants, ended, _stop: stop.drop_guard() },
            (stdout, stdin),
        ))
    }

    /// Resolves when the process has ended.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            let _ = ended.wait_for(Option::is_some).await;
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// The exit status and the last lines of stderr; waits up to [`OUTPUT_WAIT`] for both. Nothing without a process.
    pub(super) async fn output_of(process: Option<&Self>) -> ServerOutput {
        let Some(process) = process else { return ServerOutput::default() };
        let mut closed = process.stderr.closed.clone();
        let both = async {
            process.ended().await;
            // The sender is dropped when stderr is closed.
            while closed.changed().await.is_ok() {}
        };
        let _ = timeout(OUTPUT_WAIT, both).await;
        let (status, stderr) = (process.ended.borrow().clone(), process.stderr.quote());
        ServerOutput { status, stderr }
    }

    /// As much of stderr as is kept. Nothing of it may be shown.
    pub(super) fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// The last line of stdout that is no message.
    pub(super) fn noise(&self) -> String {
        Untrusted::new(self.noise.lock().text(), &self.stderr.redaction).line()
    }

    /// Ends the process and everything it started. Its stdin must be closed already.
    pub(super) async fn end(self) {
        let ended = self.ended();
        drop(self);
        ended.await;
    }
}

/// The command of a transport, ready to spawn.
pub(super) fn command(
    transport: &Transport,
    sandbox: Option<&Sandbox>,
    places: &Places,
) -> Result<Command, McpError> {
    let Transport::Stdio { command, env, cwd, files } = transport else {
        return Err(McpError::EmptyCommand);
    };
    let failed = |source| McpError::Spawn { server: transport.to_string(), source };
    let this = match command.iter().any(|word| word.contains("{mcprl}")) {
        true => std::env::current_exe().map_err(failed)?,
        false => PathBuf::new(),
    };
    let words: Vec<String> =
        command.iter().map(|word| places.fill(word).replace("{mcprl}", &this.to_string_lossy())).collect();
    let cwd = cwd.as_ref().map(|cwd| PathBuf::from(places.fill(&cwd.to_string_lossy())));
    let program = words.first().filter(|program| !program.is_empty()).ok_or(McpError::EmptyCommand)?;
    let mut command = match sandbox {
        None => Command::new(program),
        Some(sandbox) => {
            let cwd = std::path::absolute(cwd.as_deref().unwrap_or(Path::new("."))).map_err(failed)?;
            let named =
                words.iter().map(|word| cwd.join(word)).filter(|path| path.is_absolute() && path.exists());
            let needed: Vec<PathBuf> = named.chain(files.iter().cloned()).chain([cwd.clone()]).collect();
            let home = std::env::var_os("HOME").map(PathBuf::from);
            let mut sandbox = sandbox.clone();
            sandbox.write.extend(places.folder.clone());
            let before = sandbox.words(home.as_deref(), &cwd, &needed);
            let mut command = Command::new(&before[0]);
            command.args(&before[1..]).arg(program);
            command
        }
    };
    command.args(&words[1..]).env_clear().stdin(Stdio::piped());
    command.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    for (name, value) in env {
        command.env(name, reference::expand(&places.fill(value))?);
    }
    if let Some(cwd) = cwd {
        command.current_dir(cwd);
    }
    Ok(command)
}

/// Waits for the process to exit. After `stop`, kills its group if it has not exited within [`GRACE`].
async fn supervise(
    mut child: Child,
    group: Group,
    descendants: Descendants,
    stop: CancellationToken,
    report: watch::Sender<Option<String>>,
) {
    let status = tokio::select! {
        status = child.wait() => status,
        () = stop.cancelled() => match timeout(GRACE, child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                group.kill();
                child.wait().await
            }
        },
    };
    drop(group);
    descendants.kill().await;
    report.send_replace(Some(
        status.map_or_else(|error| error.to_string(), |status: ExitStatus| status.to_string()),
    ));
}

/// The end of a server's stderr.
struct Stderr {
    tail: Mutex<VecDeque<u8>>,
    redaction: Redaction,
    closed: watch::Receiver<()>,
}

impl Stderr {
    fn push(&self, bytes: &[u8]) {
        let mut tail = self.tail.lock();
        tail.extend(bytes);
        let surplus = tail.len().saturating_sub(STDERR_BYTES);
        tail.drain(..surplus);
    }

    /// As much of it as is kept.
    fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.lock().iter().copied().collect();
        String::from_utf8_lossy(&tail).into_owned()
    }

    /// The last informative lines, joined into one.
    fn quote(&self) -> String {
        // At most this much is kept: what comes before is cut off.
        let cut = if self.tail.lock().len() == STDERR_BYTES { "…" } else { "" };
        let text = format!("{cut}{}", self.text());
        let text = Untrusted::new(text, &self.redaction).shown();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !is_padding(line)).collect();
        let quoted = lines[lines.len().saturating_sub(QUOTED_LINES)..].join(" / ");
        match quoted.char_indices().nth_back(QUOTED_CHARS) {
            Some((start, _)) => format!("…{}", &quoted[start..]),
            None => quoted,
        }
    }
}

/// Whether a line does not explain why a program ended: npm and Node print such lines after the reason.
fn is_padding(line: &str) -> bool {
    let of_npm = ["npm error", "npm ERR!"].iter().find_map(|prefix| line.strip_prefix(prefix));
    let text = of_npm.unwrap_or(line).trim_start();
    // npm starts each line with the error code.
    let text = if of_npm.is_some() { text.trim_start_matches("404").trim() } else { text };
    text.is_empty()
        || line.starts_with("npm notice")
        || text.starts_with("A complete log of this run can be found in")
        || (of_npm.is_some() && NPM_ADVICE.contains(&text))
        || is_frame(text)
        || text.starts_with("Node.js v")
}

/// Whether a line is a stack frame, such as `at run (/srv/index.js:3:14)`.
fn is_frame(line: &str) -> bool {
    let frame = line.strip_prefix("at ").map(|frame| frame.trim_end_matches([')', ' ', '{']));
    let column = frame.and_then(|frame| frame.rsplit_once(':')).map(|(_, column)| column);
    column.is_some_and(|column| !column.is_empty() && column.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Reads stderr to its end, so that the server never blocks on a full pipe.
async fn listen(mut errors: ChildStderr, stderr: Arc<Stderr>, _done: watch::Sender<()>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = errors.read(&mut buffer).await {
        stderr.push(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted(stderr_text: &str) -> String {
        let redaction = Redaction::new(["hunter2".to_owned()], None);
        let stderr = Stderr { tail: Mutex::default(), redaction, closed: watch::channel(()).1 };
        stderr.push(stderr_text.as_bytes());
        stderr.quote()
    }

    #[test]
    fn npm_lines_after_the_reason_are_not_quoted() {
        let stderr = "npm error code E404\n\
            npm error 404 Not Found - GET https://registry.npmjs.org/nope - Not found\n\
            npm error 404\n\
            npm error 404  'nope@*' is not in this registry.\n\
            npm error 404\n\
            npm error 404 Note that you can also install from a\n\
            npm error 404 tarball, folder, http url, or git folder.\n\
            npm notice New major version of npm available! 10.9.0 -> 11.6.2\n\
            npm error A complete log of this run can be found in: /root/.npm/_logs/x-debug-0.log\n";
        assert_eq!(
            quoted(stderr),
            "npm error code E404 / npm error 404 Not Found - GET https://registry.npmjs.org/nope - Not found / \
             npm error 404  'nope@*' is not in this registry."
        );
    }

    #[test]
    fn a_node_error_is_quoted_without_its_stack() {
        let stderr = "node:internal/modules/cjs/loader:1228\n  throw err;\n  ^\n\n\
            Error: Cannot find module '/srv/index.js'\n\
            \x20   at Module._resolveFilename (node:internal/modules/cjs/loader:1225:15)\n\
            \x20   at node:internal/main/run_main_module:36:49 {\n\
            \x20 code: 'MODULE_NOT_FOUND',\n}\n\nNode.js v22.1.0\n";
        let quoted = quoted(stderr);
        assert!(quoted.contains("Cannot find module '/srv/index.js'"), "{quoted}");
        assert!(!quoted.contains("_resolveFilename") && !quoted.contains("Node.js"), "{quoted}");
    }

    #[test]
    fn a_secret_that_a_server_received_is_not_quoted() {
        assert_eq!(quoted("no user for hunter2: denied\n"), "no user for [redacted]: denied");
    }

    #[test]
    fn a_secret_that_is_split_or_cut_off_is_not_quoted() {
        assert_eq!(quoted("no user for hun\u{200b}ter2: denied\n"), "no user for [redacted]: denied");
        let long = format!("hunter2{}\nno", " ".repeat(STDERR_BYTES - 9));
        assert_eq!(quoted(&long), "…[redacted] / no");
    }

    #[test]
    fn the_last_lines_of_stderr_are_quoted() {
        assert_eq!(quoted("one\ntwo\n\nthree\nfour\nat last: five\n"), "two / three / four / at last: five");
    }
}
