//! A user's own stage, in any language: a program that reads and writes files.
//!
//! | variable | holds |
//! |---|---|
//! | `MCPRL_INPUT_<ROLE>` | path of the artifact; `MCPRL_INPUT_<ROLE>_<NAME>` where a role takes several |
//! | `MCPRL_OUTPUT_<PORT>` | path to write the output to |
//! | `MCPRL_METRICS` | path to write metrics to, a JSON object of numbers; may stay unwritten |
//! | `MCPRL_SPENT` | path to write usage to, a JSON object of the counts of `Usage`; may stay unwritten |
//! | `MCPRL_SEED` | the stage's seed |
//! | `MCPRL_STAGE` | path of a JSON file with all of that, the parameters and the run file's sections |
//!
//! The program runs in an empty folder. Words of the command that name a file in the card's folder become
//! absolute paths. Its output is shown; if it fails, the last lines are part of the error. When the run is
//! stopped, it gets SIGTERM, and SIGKILL five seconds later. The stage ends with the program: processes left
//! in its process group are ended the same way, so that nothing writes to outputs while they are stored.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::mpsc,
    time::timeout,
};

use super::{
    Card, Context, Metrics, StageError, StageKind,
    card::Section,
    kind::{Requirement, StageFuture},
    preflight::{ExpectedOutputs, Preflight, PreflightContext, Severity},
};
use crate::{
    child::{self, Group},
    error::{Interrupted, Result},
    mcp::Servers,
    program::find_program,
};

/// Script extensions of these interpreters, versions omitted: `python` for `python3.12`.
const SCRIPTS: [(&[&str], &[&str]); 9] = [
    (&["sh", "bash", "dash", "zsh", "ksh"], &["sh", "bash", "zsh"]),
    (&["python", "pypy", "uv"], &["py"]),
    (&["node", "bun", "deno"], &["js", "mjs", "cjs", "ts"]),
    (&["ruby"], &["rb"]),
    (&["perl"], &["pl"]),
    (&["Rscript"], &["R", "r"]),
    (&["julia"], &["jl"]),
    (&["lua"], &["lua"]),
    (&["php"], &["php"]),
];

const GRACE: Duration = Duration::from_secs(5);
/// How long to wait for the program's last output after it has ended.
const LAST_LINES: Duration = Duration::from_millis(500);
const TAIL_LINES: usize = 12;

/// A stage whose card has a `command`.
pub struct CommandStage(pub Arc<Card>);

impl CommandStage {
    async fn start(&self, context: &Context) -> Result<Metrics> {
        let card = &self.0;
        let metrics = Numbers { variable: "MCPRL_METRICS", path: context.scratch.join("metrics.json") };
        let spent = Numbers { variable: "MCPRL_SPENT", path: context.scratch.join("spent.json") };
        let command = prepare(card, context, [&metrics, &spent])?;
        let shown = card.command.join(" ");
        let start = |source| StageError::Start { command: shown.clone(), source };
        let (mut child, group) = child::spawn(command).await.map_err(start)?;
        let mut lines = Lines::of(&mut child);
        let status = tokio::select! {
            status = lines.until_end(&mut child, context) => status.map_err(start)?,
            () = context.cancel.cancelled() => {
                stop(&mut child, &group).await;
                // The usage it reports counts, unless the report is incomplete.
                context.meter.add(spent.read(&shown).unwrap_or_default());
                return Err(Interrupted.into());
            }
        };
        if !lines.rest(context, LAST_LINES).await {
            context.observer.note("the program left child processes running; they are terminated");
            group.terminate();
            if !lines.rest(context, GRACE).await {
                group.kill();
                lines.rest(context, LAST_LINES).await;
            }
        }
        if !status.success() {
            context.meter.add(spent.read(&shown).unwrap_or_default());
            let tail = lines.tail.join("\n");
            return Err(StageError::Command { command: shown, status: status.to_string(), tail }.into());
        }
        context.meter.add(spent.read(&shown)?);
        metrics.read(&shown)
    }
}

impl StageKind for CommandStage {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        // A program that uses the engine's devices manages them itself, so free their memory.
        if sections(context).contains(&Section::Engine) {
            context.models.bases.evict_devices(&context.engine.devices);
        }
        Box::pin(self.start(context))
    }

    /// Checks that the program and its script exist and can be started.
    fn preflight(&self, _: &PreflightContext<'_>) -> Preflight {
        match check(&self.0) {
            Ok(()) => Preflight::default(),
            Err(cause) => Preflight::of(Severity::Unavailable, cause),
        }
    }

    fn requirements<'a>(&'a self, _: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        let program = self.0.command.first();
        let found = program.map(|program| Requirement::Met(format!("{program} is installed")));
        Box::pin(std::future::ready(found.into_iter().collect()))
    }
}

fn check(card: &Card) -> Result<(), StageError> {
    let command = || card.command.join(" ");
    let program = card.command.first().map(String::as_str).unwrap_or_default();
    let own_folder = card.folder.as_deref().filter(|_| card.code.contains_key(program));
    let no_code = |word: &str| {
        let file = if Path::new(word).is_absolute() { word.to_owned() } else { card.shown(word) };
        StageError::NoCode { command: command(), file }
    };
    if own_folder.is_none() && program.contains('/') && Path::new(program).is_relative() {
        // It would start in an empty folder.
        return Err(no_code(program));
    }
    match own_folder {
        Some(folder) => find_program(&folder.join(program).to_string_lossy(), None)
            .map_err(|_| StageError::NotExecutable { command: command(), file: card.shown(program) }),
        None => {
            find_program(program, None).map_err(|source| StageError::Start { command: command(), source })
        }
    }?;
    let is_there = |word: &str| match Path::new(word).is_absolute() {
        true => Path::new(word).is_file(),
        false => card.code.contains_key(word),
    };
    match script(&card.command).filter(|word| !is_there(word)) {
        Some(word) => Err(no_code(word)),
        None => Ok(()),
    }
}

/// The script passed to an interpreter, if the command has that form.
fn script(command: &[String]) -> Option<&str> {
    let mut words = command.iter().map(String::as_str).skip_while(|word| *word == "env");
    let interpreter = Path::new(words.next()?).file_name()?.to_str()?;
    let interpreter = interpreter.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    let (_, endings) = SCRIPTS.iter().find(|(programs, _)| programs.contains(&interpreter))?;
    let is_script = |word: &str| {
        let ending = Path::new(word).extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| endings.contains(&ending))
            && !word.starts_with('-')
            && !word.contains(char::is_whitespace)
    };
    // These flags are followed by the code itself or a module's name.
    words.take_while(|word| !matches!(*word, "-c" | "-m")).find(|word| is_script(word))
}

fn prepare(card: &Card, context: &Context, numbers: [&Numbers; 2]) -> Result<Command> {
    let scratch = &context.scratch;
    let work = scratch.join("work");
    let description = scratch.join("stage.json");
    let writing = |source| StageError::Write { path: scratch.clone(), source };
    std::fs::create_dir_all(&work).map_err(writing)?;
    std::fs::write(&description, format!("{}\n", describe(card, context))).map_err(writing)?;

    let mut words = card.command.iter().map(|word| match &card.folder {
        Some(folder) if card.code.contains_key(word) => folder.join(word).into_os_string(),
        _ => word.into(),
    });
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(program);
    command.args(words).current_dir(&work).stdin(Stdio::null());
    command.env("MCPRL_STAGE", &description);
    command.envs(numbers.map(|numbers| (numbers.variable, &numbers.path)));
    command.env("MCPRL_SEED", context.seed.to_string());
    for (role, inputs) in &context.inputs {
        for input in inputs {
            let name = if input.name == *role { role.clone() } else { format!("{role}_{}", input.name) };
            command.env(format!("MCPRL_INPUT_{}", variable(&name)), &input.path);
        }
    }
    for (port, output) in &card.outputs {
        command.env(format!("MCPRL_OUTPUT_{}", variable(port)), context.output_folder.join(&output.path));
    }
    Ok(command)
}

fn variable(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

fn describe(card: &Card, context: &Context) -> Value {
    let inputs: BTreeMap<_, Vec<_>> = context
        .inputs
        .iter()
        .map(|(role, inputs)| {
            let inputs = inputs
                .iter()
                .map(|input| json!({ "name": input.name, "path": input.path, "digest": input.digest }));
            (role, inputs.collect())
        })
        .collect();
    let outputs: BTreeMap<_, _> =
        card.outputs.iter().map(|(port, output)| (port, context.output_folder.join(&output.path))).collect();
    json!({
        "stage": context.stage,
        "params": context.params,
        "inputs": inputs,
        "outputs": outputs,
        "files": card.texts,
        "seed": context.seed,
        "server": context.servers.as_ref().and_then(Servers::single),
        "servers": context.servers.as_ref().filter(|servers| servers.single().is_none()),
        "engine": sections(context).contains(&Section::Engine).then_some(&context.engine),
    })
}

fn sections(context: &Context) -> Vec<Section> {
    context.card.sections(|role| context.inputs.contains_key(role))
}

/// Numbers that the program may write, and the variable that holds the path.
struct Numbers {
    variable: &'static str,
    path: PathBuf,
}

impl Numbers {
    fn read<T: Default + DeserializeOwned>(&self, command: &str) -> Result<T> {
        match std::fs::read(&self.path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).map_err(|cause| StageError::Metrics {
                command: command.to_owned(),
                variable: self.variable,
                problem: cause.to_string(),
            })?),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
            Err(source) => Err(StageError::Read { path: self.path.clone(), source }.into()),
        }
    }
}

/// The program's output, line by line.
struct Lines {
    printed: mpsc::Receiver<String>,
    /// The last ones.
    tail: Vec<String>,
}

impl Lines {
    fn of(child: &mut Child) -> Self {
        let (sender, printed) = mpsc::channel(64);
        if let Some(out) = child.stdout.take() {
            tokio::spawn(forward(out, sender.clone()));
        }
        if let Some(err) = child.stderr.take() {
            tokio::spawn(forward(err, sender));
        }
        Self { printed, tail: Vec::new() }
    }

    fn take(&mut self, line: String, context: &Context) {
        context.observer.output(&line);
        self.tail.push(line);
        if self.tail.len() > TAIL_LINES {
            self.tail.remove(0);
        }
    }

    /// Reads until the program itself ends, even if other processes still print.
    async fn until_end(&mut self, child: &mut Child, context: &Context) -> std::io::Result<ExitStatus> {
        let mut open = true;
        loop {
            tokio::select! {
                line = self.printed.recv(), if open => match line {
                    Some(line) => self.take(line, context),
                    None => open = false,
                },
                status = child.wait() => return status,
            }
        }
    }

    /// Reads the remaining output for at most this long. Returns whether that was all.
    async fn rest(&mut self, context: &Context, patience: Duration) -> bool {
        let all = async {
            while let Some(line) = self.printed.recv().await {
                self.take(line, context);
            }
        };
        timeout(patience, all).await.is_ok()
    }
}

async fn forward(source: impl AsyncRead + Unpin, sender: mpsc::Sender<String>) {
    let mut lines = BufReader::new(source).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).await.is_err() {
            return;
        }
    }
}

async fn stop(child: &mut Child, group: &Group) {
    group.terminate();
    if timeout(GRACE, child.wait()).await.is_err() {
        group.kill();
        _ = child.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_of_a_command_is_the_first_word_that_its_interpreter_reads() {
        let script = |command: &str| {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            script(&words).map(str::to_owned)
        };
        for (command, expected) in [
            ("python3 a.py", Some("a.py")),
            ("/usr/bin/python3.12 -W ignore a.py b.py", Some("a.py")),
            ("env python3 a.py", Some("a.py")),
            ("uv run --with polars lib/a.py", Some("lib/a.py")),
            ("sh -e run.sh gen.sh", Some("run.sh")),
            ("sh -c ./made.sh", None),
            ("python3 -m package.py", None),
            ("python3 a.sh", None),
            ("mytool out.py", None),
            ("sh", None),
        ] {
            assert_eq!(script(command).as_deref(), expected, "{command}");
        }
    }
}
