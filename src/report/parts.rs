//! What several reports show alike: a run's state, server and command, and cells of tools.

use super::{Tone, document::Cell};
use crate::{
    data::Server,
    exec::RunState,
    view::{Run, calls},
};

pub(super) fn state(state: RunState) -> &'static str {
    match state {
        RunState::Finished => "finished",
        RunState::Failed => "failed",
        RunState::Interrupted => "interrupted",
        RunState::Running => "still running",
        RunState::Killed => "stopped before its end",
    }
}

pub(super) fn server_of(run: &Run) -> Option<Server> {
    run.writers("server").find_map(|stage| stage.table::<Server>().ok()?.into_iter().next())
}

/// The name of a tool that was offered or called.
pub(super) fn tool_cell(name: &str, is_offered: bool) -> Cell {
    Cell::code(match (name, is_offered) {
        ("", _) => "(not parsed)".to_owned(),
        (name, true) => name.to_owned(),
        (name, false) => format!("{name} (does not exist)"),
    })
}

/// The failed calls of a tool.
pub(super) fn failed_cell(tool: &calls::ToolStatistics) -> Cell {
    Cell::count(tool.failed).tone(if tool.failed > 0 { Tone::Bad } else { Tone::Plain })
}

/// The command of a run. Overrides by environment variables are written as `--set`.
pub(super) fn command(file: &str, set: &[String], resample: &[String], until: &[String]) -> String {
    let mut command = format!("mcprl run {}", word(file));
    for (option, values) in [("--set", set), ("--resample", resample), ("--until", until)] {
        for value in values {
            command += &format!(" {option} {}", word(value));
        }
    }
    command
}

/// Whether a parameter is a seed, of the run or of a stage.
pub(super) fn is_seed(name: &str) -> bool {
    name == "seed" || name.ends_with(".seed")
}

/// A text as a word of a shell's command.
fn word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "=./_-:,@+%".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}
