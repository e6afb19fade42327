//! `mcprl init`: a commented run file for one's own server.
//!
//! It connects once and lists the tools. It calls none: what a call does to the server's data is for the user to say.

mod isolation;
mod tasks;
mod text;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use self::{
    isolation::Isolation,
    tasks::OwnTasks,
    text::{absolute, quoted, quoted_list},
};
use super::{
    Outcome,
    run_args::PracticeArgs,
    runtime,
    server::{NamedServer, ServerArgs},
};
use crate::{
    data::Tool,
    error::{Diagnostic, Result},
    mcp::{McpError, ServerOutput, ServerSpec, Session, Token, Transport},
    offered::tool_rows,
    secret::hidden,
    stage::model::knows_thinking,
    ui::Printer,
};

/// Longest wait for the server. The file can be written without its tools.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Args)]
pub struct Init {
    #[command(flatten)]
    server: ServerArgs,
    /// Take all servers of a client's mcp.json.
    #[arg(long)]
    all: bool,
    /// The model to train: a folder, a GGUF file, or an id on the hub.
    #[arg(long, default_value = "Qwen/Qwen3-0.6B")]
    model: String,
    /// A file of your own tasks: one `{"task": "…", "answer": "…"}` per line. Without it, tasks are made by exploring the
    /// server.
    #[arg(long)]
    tasks: Option<PathBuf>,
    #[command(flatten)]
    practice: PracticeArgs,
    /// Where to write the run file.
    #[arg(long, default_value = "run.toml")]
    out: PathBuf,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "init")]
enum InitError {
    #[error("{} already exists", path.display())]
    #[diagnostic(class = usage)]
    #[hint = "name another file with `--out`"]
    Exists { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

impl Init {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let chosen = if self.all { self.server.each()? } else { vec![self.server.clone()] };
        let servers: Vec<NamedServer> =
            chosen.iter().map(ServerArgs::without_secrets).collect::<Result<_>>()?;
        if self.out.exists() {
            return Err(InitError::Exists { path: self.out }.into());
        }
        let exports: Vec<String> = servers.iter().flat_map(|server| server.exports.clone()).collect();
        let secrets = servers.iter().any(|server| match &server.spec.transport {
            Transport::Stdio { command, .. } => {
                hidden(command, |_| String::new()).iter().zip(command).any(|(shown, word)| shown != word)
            }
            Transport::Http { .. } | Transport::Cassette(_) => false,
        });
        let folder = self.out.parent().unwrap_or(Path::new(""));
        // With literal secrets of a client's configuration, whose variables may not be set yet.
        let listed: Vec<Result<Vec<Tool>>> =
            chosen.iter().map(|server| server.resolve().and_then(|server| tools(server.spec))).collect();
        let isolation: Vec<Isolation> =
            listed.iter().map(|listed| Isolation::of(listed.as_deref().ok())).collect();
        let is_elsewhere = absolute(folder) != absolute(Path::new(""));
        let own = self.tasks.as_deref().map(|tasks| {
            let named = if is_elsewhere { absolute(tasks) } else { tasks.to_owned() };
            OwnTasks::of(tasks, &named)
        });
        let own = own.transpose()?;
        let text = run_file(&servers, &self.model, own.as_ref(), (folder, is_elsewhere), &isolation);
        create(&self.out, &(text + &practice(self.practice)))?;
        let is_confirmed = isolation.iter().all(Isolation::is_confirmed);
        let state = isolation.iter().find(|one| !one.is_confirmed()).unwrap_or(&isolation[0]).state();
        let failures: Vec<_> = listed.into_iter().filter_map(Result::err).collect();
        let json = serde_json::json!({
            "run_file": self.out, "exports": exports, "state": state, "server": failures.first(),
        });
        printer.show(&json, || {
            let out = self.out.display();
            let mut steps = vec![format!("{out} written")];
            for name in &exports {
                steps.push(format!("export {name}=…    {out} refers to the secret by this name"));
            }
            if secrets {
                steps.push(format!(
                    "note: the command in {out} contains a secret; variables are better, with `--env`"
                ));
            }
            steps.extend(own.as_ref().map(|own| own.about.clone()));
            for failure in &failures {
                steps.push(format!("note: the server did not list its tools: {failure}"));
                steps.extend(failure.hint().map(|hint| format!("hint: {hint}")));
            }
            if !is_confirmed {
                steps.push(format!(
                    "set `state` in {out}    says what keeps episodes apart; `mcprl run` refuses until then"
                ));
            }
            steps.push(format!("mcprl doctor {out}    checks server, model and tasks"));
            steps.push(format!("mcprl plan {out}      shows what will run"));
            steps.join("\n")
        });
        Ok(Outcome::Success)
    }
}

/// The tools that the server lists.
fn tools(mut spec: ServerSpec) -> Result<Vec<Tool>> {
    let limit = spec.limits.start_timeout.min(PATIENCE);
    (spec.record, spec.limits.start_timeout) = (None, limit);
    let visit = async {
        let session = Session::connect(&spec).await?;
        let listed = session.tools().await;
        session.close().await;
        listed
    };
    let server = spec.transport.to_string();
    let late = || McpError::StartTimeout { server, limit, output: ServerOutput::default(), stdout: None };
    let listed = runtime()?.block_on(async { tokio::time::timeout(limit, visit).await });
    let mut listed = listed.map_err(|_| late())??;
    listed.retain(|tool| !tool.synthetic);
    Ok(tool_rows(listed))
}

/// Writes a new file.
fn create(path: &Path, text: &str) -> Result<(), InitError> {
    use std::io::{ErrorKind, Write as _};
    let file = std::fs::File::options().write(true).create_new(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|source| match source.kind() {
        ErrorKind::AlreadyExists => InitError::Exists { path: path.to_owned() },
        _ => InitError::Write { path: path.to_owned(), source },
    })
}

/// `folder`: the run file's, to which its paths are relative, and whether it is another one than this. `isolation`: of each
/// server.
fn run_file(
    servers: &[NamedServer],
    model: &str,
    tasks: Option<&OwnTasks>,
    (folder, is_elsewhere): (&Path, bool),
    isolation: &[Isolation],
) -> String {
    // An id on the hub looks like a relative path, but is none here.
    let of_here = Some(Path::new(model)).filter(|model| is_elsewhere && model.exists()).map(absolute);
    let of_here = of_here.map(|model| model.to_string_lossy().into_owned());
    let model = of_here.as_deref().unwrap_or(model);
    let mut text = String::new();
    if let [isolation] = isolation {
        text += &isolation.heading("server");
    }
    text += "extends = \"standard\"   # tools, tasks, a start, a loop of GRPO, an exam: `mcprl plan --expand` prints them\n";
    if let [server] = servers {
        _ = writeln!(text, "name = {}", quoted(&server.name));
    }
    _ = writeln!(
        text,
        "model = {}    # a folder, a GGUF file, or an id on the hub; the stages' \"base\"",
        quoted(model)
    );
    for (server, isolation) in servers.iter().zip(isolation) {
        text += "\n";
        let section = match servers {
            [_] => "server".to_owned(),
            _ => format!("servers.{}", server.name),
        };
        if servers.len() > 1 {
            text += isolation.heading(&section).trim_end();
            text += if isolation.is_confirmed() { "" } else { "\n" };
        }
        text += &server_section(server, &section, (folder, is_elsewhere), isolation);
    }
    text += "\n[stages.tasks]\n";
    text += tasks.map_or(OWN_TASKS, |own| &own.lines);
    if isolation.iter().any(|isolation| !isolation.is_confirmed()) {
        text += OWN_WRITES;
    }
    text += exam(cfg!(feature = "cuda"), tasks.is_some());
    text + &agent(knows_thinking(model, folder))
}

/// The section of a server.
fn server_section(
    server: &NamedServer,
    section: &str,
    (folder, is_elsewhere): (&Path, bool),
    isolation: &Isolation,
) -> String {
    let table = |values: &std::collections::BTreeMap<String, String>| {
        let pairs = values.iter().map(|(name, value)| format!("{} = {}", quoted(name), quoted(value)));
        format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
    };
    let mut text = format!("[{section}]\n");
    match &server.spec.transport {
        Transport::Stdio { command, env, cwd, .. } => {
            _ = writeln!(text, "command = {}", quoted_list(command));
            if !env.is_empty() {
                _ = writeln!(text, "env = {}", table(env));
            }
            // Without `cwd` the command would start in the run file's folder.
            let own = cwd.as_deref().or(is_elsewhere.then_some(Path::new("")));
            let own = own.map(absolute);
            if let Some(cwd) = &own {
                _ = writeln!(text, "cwd = {}", quoted(&cwd.to_string_lossy()));
            }
            text += &isolation.of_command(command, own.as_deref(), folder);
        }
        // A command line names no cassette.
        Transport::Cassette(_) => {}
        Transport::Http { url, token, headers } => {
            _ = writeln!(text, "url = {}", quoted(url));
            if let Token::Env(variable) = token {
                _ = writeln!(text, "bearer_env = {}", quoted(variable));
            }
            if !headers.is_empty() {
                _ = writeln!(text, "headers = {}", table(headers));
            }
            text += &isolation.of_url();
        }
    }
    text
}

/// What `--iterations` and `--no-start` are in a run file that extends the standard pipeline.
fn practice(PracticeArgs { iterations, no_start }: PracticeArgs) -> String {
    let iterations = iterations.map(|count| format!("\n[loop.train]\niterations = {count}\n"));
    let without_start = "\n[stages]\nstart = false\n\n[stages.headroom.policies]\nstart = false\n\n[stages.exam.policies]\n\
                         start = false\n";
    iterations.unwrap_or_default() + if no_start { without_start } else { "" }
}

/// How large the exam is. The standard pipeline's is for a CPU: 100 explored tasks, two samples.
fn exam(is_for_device: bool, has_file: bool) -> &'static str {
    match (is_for_device, has_file) {
        (false, _) => "",
        (true, true) => "\n[stages.exam]\nsamples = 4\n",
        (true, false) => {
            "tasks = 1500            # a fifth of them for the exam\n\n[stages.exam]\nsamples = 4\n"
        }
    }
}

/// Under `[stages.tasks]`, where no file of tasks is given.
const OWN_TASKS: &str = "# file = \"tasks.jsonl\"   # your questions: {\"task\": \"…\", \"answer\": \"…\"} per line; without them, questions about \
                         what the tools return\n";

/// Below it, for a server that may have state = "fresh-process".
const OWN_WRITES: &str = "# explore_writes = true   # with \"fresh-process\": also tasks that change something. Only if the server keeps all in \
                          memory: a\n#                         new process may open the same files or database\n";

/// The section `[agent]` for a model whose template can leave out reasoning, as far as the model is on this machine.
fn agent(knows_thinking: Option<bool>) -> String {
    let about = "the model acts without reasoning first, which takes most of the tokens of a turn";
    match knows_thinking {
        Some(true) => format!("\n[agent]\nthinking = \"off\"        # {about}\n"),
        Some(false) => String::new(),
        None => format!("\n# [agent]\n# thinking = \"off\"      # if it can reason: {about}\n"),
    }
}
