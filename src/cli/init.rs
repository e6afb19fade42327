//! `mcprl init`: a commented run file for one's own server.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf, absolute},
};

use clap::Args;

use super::{
    Outcome,
    server::{NamedServer, ServerArgs},
};
use crate::{
    error::{Class, Diagnostic, Result},
    mcp::{Token, Transport, secret::hidden},
    ui::{OutputFormat, Printer},
};

#[derive(Args)]
pub struct Init {
    #[command(flatten)]
    server: ServerArgs,
    /// The model to train: a folder, a GGUF file, or an id on the hub.
    #[arg(long, default_value = "Qwen/Qwen3-0.6B")]
    model: String,
    /// A file of your own tasks: one `{"task": "…", "answer": "…"}` per line. Without it, tasks are made by exploring the
    /// server.
    #[arg(long)]
    tasks: Option<PathBuf>,
    /// Where to write the run file.
    #[arg(long, default_value = "run.toml")]
    out: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error("{} already exists", path.display())]
    Exists { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl Diagnostic for InitError {
    fn code(&self) -> &'static str {
        match self {
            Self::Exists { .. } => "init::exists",
            Self::Write { .. } => "init::write",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Exists { .. } => Some("name another file with `--out`".into()),
            Self::Write { .. } => None,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Exists { .. } => Class::Usage,
            Self::Write { .. } => Class::Work,
        }
    }
}

/// The pipeline of `examples/own-model`, whose first part is replaced.
const EXAMPLE: &str = include_str!("../../examples/own-model/run.toml");
const SOURCE: &str = "source = \"file\"\nfile = \"tasks.jsonl\"";
const EXPLORED: &str = "source = \"explored\"                       # questions about what the server's tools return. Your own instead:
# source = \"file\"
# file = \"tasks.jsonl\"";

impl Init {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let server = self.server.resolve(true)?;
        let exports = server.exports.clone();
        let secrets = match &server.spec.transport {
            Transport::Stdio { command, .. } => {
                hidden(command, |_| String::new()).iter().zip(command).any(|(shown, word)| shown != word)
            }
            Transport::Http { .. } | Transport::Cassette(_) => false,
        };
        let folder = self.out.parent().unwrap_or(Path::new(""));
        create(&self.out, &run_file(server, &self.model, self.tasks.as_deref(), folder))?;
        match printer.format {
            OutputFormat::Json => printer.json(&serde_json::json!({
                "run_file": self.out, "exports": exports,
            })),
            OutputFormat::Human => {
                let out = self.out.display();
                let mut steps = vec![format!("{out} written")];
                steps.extend(
                    exports
                        .iter()
                        .map(|name| format!("export {name}=…    {out} refers to the secret by this name")),
                );
                if secrets {
                    steps.push(format!(
                        "note: the command in {out} contains a secret; variables are better, with `--env`"
                    ));
                }
                steps.push(format!("mcprl doctor {out}    checks server, model and tasks"));
                steps.push(format!("mcprl plan {out}      shows what will run"));
                printer.data(&steps.join("\n"));
            }
        }
        Ok(Outcome::Success)
    }
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

/// `folder`: the run file's, to which its paths are relative.
fn run_file(server: NamedServer, model: &str, tasks: Option<&Path>, folder: &Path) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let table = |values: &std::collections::BTreeMap<String, String>| {
        let pairs = values.iter().map(|(name, value)| format!("{} = {}", quoted(name), quoted(value)));
        format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
    };
    let is_elsewhere = absolute(folder).ok() != absolute("").ok();
    let mut text = String::new();
    _ = writeln!(text, "name = {}", quoted(&server.name));
    _ = writeln!(
        text,
        "model = {}    # a folder, a GGUF file, or an id on the hub; the stages' \"base\"",
        quoted(model)
    );
    text += "\n[server]\n";
    let state = match &server.spec.transport {
        Transport::Stdio { command, env, cwd, .. } => {
            let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
            _ = writeln!(text, "command = [{}]", words.join(", "));
            if !env.is_empty() {
                _ = writeln!(text, "env = {}", table(env));
            }
            // Without `cwd` the command would start in the run file's folder.
            if let Some(cwd) = cwd.as_deref().or(is_elsewhere.then_some(Path::new(""))) {
                let cwd = absolute(cwd).unwrap_or_else(|_| cwd.to_owned());
                _ = writeln!(text, "cwd = {}", quoted(&cwd.to_string_lossy()));
            }
            "state = \"fresh-process\"   # how episodes are isolated: read-only | fresh-process | snapshot-dir | reset-tool"
        }
        // A command line names no cassette.
        Transport::Cassette(_) => "",
        Transport::Http { url, token, headers } => {
            _ = writeln!(text, "url = {}", quoted(url));
            if let Token::Env(variable) = token {
                _ = writeln!(text, "bearer_env = {}", quoted(variable));
            }
            if !headers.is_empty() {
                _ = writeln!(text, "headers = {}", table(headers));
            }
            "state = \"fresh-session\"   # how episodes are isolated: read-only | fresh-session | reset-tool"
        }
    };
    _ = writeln!(text, "{state}");
    let rest = EXAMPLE.find("[engine]").map_or("", |at| &EXAMPLE[at..]);
    let source = match tasks {
        Some(tasks) => {
            let tasks = absolute(tasks).ok().filter(|_| is_elsewhere).unwrap_or_else(|| tasks.to_owned());
            format!("source = \"file\"\nfile = {}", quoted(&tasks.to_string_lossy()))
        }
        None => EXPLORED.to_owned(),
    };
    text + "\n" + &rest.replace(SOURCE, &source)
}
