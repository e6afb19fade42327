//! What a run file of `init` says about `state`, from what the server's tools declare.
//!
//! Only a server whose tools all declare themselves read-only gets a state that runs. Nothing else tells what a call does to
//! data, so the user decides.

use std::path::{Path, PathBuf};

use super::text::{absolute, quoted, quoted_list};
use crate::{data::Tool, mcp::PLACEHOLDER};

/// What is known of a server's tools.
pub enum Isolation {
    /// All declare that they change nothing; their number.
    ReadOnly(usize),
    /// By name: tools that declare nothing, and tools that declare to change something.
    Unconfirmed { silent: Vec<String>, writing: Vec<String> },
    /// The server listed none.
    Unknown,
}

/// Columns of a comment.
const WIDTH: usize = 110;
/// Most tools of a kind that are named.
const NAMED: usize = 60;

impl Isolation {
    /// `tools`: those that the server lists, if it did.
    pub fn of(tools: Option<&[Tool]>) -> Self {
        let tools = tools.unwrap_or_default();
        let named = |hint: Option<bool>| -> Vec<String> {
            let declaring = tools.iter().filter(|tool| tool.hint("readOnlyHint") == hint);
            declaring.map(|tool| tool.name.clone()).collect()
        };
        let (silent, writing) = (named(None), named(Some(false)));
        match tools.len() {
            0 => Self::Unknown,
            count if silent.is_empty() && writing.is_empty() => Self::ReadOnly(count),
            _ => Self::Unconfirmed { silent, writing },
        }
    }

    pub fn is_confirmed(&self) -> bool {
        matches!(self, Self::ReadOnly(_))
    }

    pub fn state(&self) -> &'static str {
        if self.is_confirmed() { "read-only" } else { "unconfirmed" }
    }

    /// What the user must know before a run. `section`: that of the server, as `server`.
    pub fn heading(&self, section: &str) -> String {
        let mut text = format!(
            "# Before the first run, set `state` under [{section}]: `mcprl run` refuses \"unconfirmed\".\n\
             # In a run the agent calls every tool that it sees, many times, with arguments that nobody expects.\n"
        );
        match self {
            Self::ReadOnly(_) => return String::new(),
            Self::Unknown => {
                text += "# The server listed no tools when this file was written. Any of them may write to your real data.\n";
            }
            Self::Unconfirmed { silent, writing } => {
                if !silent.is_empty() {
                    text += "# These tools do not declare whether they change anything, so they may write to your real data:\n";
                    text += &names(silent);
                }
                if !writing.is_empty() {
                    text += "# These tools declare that they change something:\n";
                    text += &names(writing);
                }
            }
        }
        text + "\n"
    }

    /// The line with the state of a server that is started by this command, and the choices. `cwd`: the command's folder, if
    /// it is not the run file's, which is `folder`.
    pub fn of_command(&self, command: &[String], cwd: Option<&Path>, folder: &Path) -> String {
        let mut text = self.line();
        if self.is_confirmed() {
            return text;
        }
        text += "#   \"read-only\"       calls change nothing. Leave other tools out: `deny`, or `read_only = true`, under [stages.tools]\n\
                 #   \"snapshot-dir\"    every episode has a copy of a folder: for a server with files or a database file\n\
                 #   \"fresh-process\"   every episode has a process of its own: for a server that keeps all in memory.\n\
                 #                     What a call writes to a file or a database stays there, unless `before_episode`\n\
                 #                     makes a database for every episode (docs/guides/servers.md)\n\
                 #   \"reset-tool\"      the tool that `reset_tool` names restores the data before every episode\n";
        if let Some(data) = Data::of(command, cwd, folder) {
            text += &data.suggestion(command);
        }
        text
    }

    /// The same for a server at an address.
    pub fn of_url(&self) -> String {
        let mut text = self.line();
        if !self.is_confirmed() {
            text += "#   \"read-only\"       calls change nothing. Leave other tools out: `deny`, or `read_only = true`, under [stages.tools]\n\
                     #   \"fresh-session\"   every session of the server begins with the same data, by itself or by `before_episode`\n\
                     #   \"reset-tool\"      the tool that `reset_tool` names restores the data before every episode\n";
        }
        text
    }

    fn line(&self) -> String {
        match self {
            Self::ReadOnly(1) => {
                "state = \"read-only\"   # its only tool declares that it changes nothing\n".into()
            }
            Self::ReadOnly(count) => {
                format!("state = \"read-only\"   # all {count} tools declare that they change nothing\n")
            }
            Self::Unconfirmed { .. } | Self::Unknown => {
                "state = \"unconfirmed\"   # instead, one of:\n".into()
            }
        }
    }
}

/// Names as lines of a comment. They are valid names of functions, whatever the server calls its tools.
fn names(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    let mut lines: Vec<String> = Vec::new();
    for name in names.iter().take(NAMED).cloned().chain(more) {
        match lines.last_mut() {
            Some(line) if line.len() + name.len() <= WIDTH => *line += &format!(", {name}"),
            _ => lines.push(name),
        }
    }
    format!("#   {}\n", lines.join(",\n#   "))
}

/// A file or folder that a word of the command names.
struct Data {
    /// The word's place in the command.
    at: usize,
    /// The word with the copy in the path's place.
    word: String,
    /// As in the command.
    path: String,
    /// The folder to copy; none if the user has to make one, because the data lies beside the run file.
    snapshot: Option<PathBuf>,
}

impl Data {
    /// The first word that names data.
    fn of(command: &[String], cwd: Option<&Path>, folder: &Path) -> Option<Self> {
        // A relative path stays one where the run file starts from the same folder.
        let here = absolute(cwd.unwrap_or(folder));
        let run_file = absolute(folder);
        command.iter().enumerate().skip(1).find_map(|(at, word)| {
            let (option, path) = match word.split_once('=') {
                Some((_, path)) if word.starts_with('-') => (&word[..word.len() - path.len()], path),
                _ => ("", word.as_str()),
            };
            let found = here.join(path);
            if path.is_empty() || path.chars().any(char::is_control) || is_code(&found) || !found.exists() {
                return None;
            }
            let is_folder = found.is_dir();
            let source = if is_folder { found.as_path() } else { found.parent()? };
            // A copy of the run file's folder would hold the cache.
            let has_run_file =
                run_file.starts_with(source.canonicalize().ok()?) || run_file.starts_with(source);
            let word = match found.file_name().filter(|_| !is_folder) {
                Some(name) => format!("{option}{PLACEHOLDER}/{}", name.to_string_lossy()),
                None => format!("{option}{PLACEHOLDER}"),
            };
            let given = if is_folder { Path::new(path) } else { Path::new(path).parent()? };
            let snapshot = if cwd.is_some() { source.to_owned() } else { given.to_owned() };
            Some(Self { at, word, path: path.to_owned(), snapshot: Some(snapshot).filter(|_| !has_run_file) })
        })
    }

    /// The settings with which every episode has a copy.
    fn suggestion(&self, command: &[String]) -> String {
        let mut words = command.to_vec();
        words[self.at].clone_from(&self.word);
        let path = quoted(&self.path);
        let given = self.snapshot.as_ref().map(|snapshot| quoted(&snapshot.to_string_lossy()));
        let how = match &given {
            Some(snapshot) => format!("With these lines every episode has a copy of {snapshot}"),
            None => {
                "Copy it into a folder of its own; with these lines every episode has a copy of that".into()
            }
        };
        format!(
            "# {path} exists. {how}:\n#   command = {}\n#   state = \"snapshot-dir\"\n#   snapshot = {}\n",
            quoted_list(&words),
            given.as_deref().unwrap_or("\"snapshot\"")
        )
    }
}

/// Whether a path names a program or a part of one.
fn is_code(path: &Path) -> bool {
    const CODE: [&str; 14] =
        ["py", "js", "mjs", "cjs", "ts", "mts", "sh", "rb", "php", "pl", "jar", "exe", "wasm", "go"];
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let is_executable = || {
        use std::os::unix::fs::PermissionsExt;
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    CODE.contains(&extension.to_lowercase().as_str()) || is_executable()
}
