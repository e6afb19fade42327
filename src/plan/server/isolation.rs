//! How episodes are isolated from each other.

use super::{
    ServerSection,
    table::{STATES, UNCONFIRMED, states},
};
use crate::{
    error::suggest,
    mcp::{PLACEHOLDER, SESSION, State},
    plan::layers::Entry,
};

impl ServerSection<'_, '_> {
    pub(super) fn state(&self) -> Option<State> {
        let (given, reset_tool) = (self.at("state"), self.at("reset_tool"));
        let is_played = self.at("replay").is_some();
        let url = self.at("url").filter(|_| self.at("command").is_none());
        let named = match given {
            Some(_) => self.table.state.as_deref()?,
            None if reset_tool.is_some() => "reset-tool",
            None if self.at("snapshot").is_some() => "snapshot-dir",
            None if self.at("before_episode").is_some() && url.is_some() => "fresh-session",
            None if self.at("before_episode").is_some() => "fresh-process",
            // Nobody has said what calls of its command change.
            None if url.is_none() && !is_played => UNCONFIRMED,
            None => "fresh-process",
        };
        if let Some(snapshot) = self.at("snapshot").filter(|_| named != "snapshot-dir") {
            return self.wrong_key(snapshot, "`snapshot` needs state \"snapshot-dir\"", None);
        }
        if named != "snapshot-dir" && self.table.uses_copy() && !is_played {
            let hint = "snapshot = \"folder\" copies a folder for each episode, and the copy takes its place"
                .to_owned();
            let message = format!("`{PLACEHOLDER}` needs state \"snapshot-dir\"");
            return self.wrong_key(given.unwrap_or(self.entry), message, Some(hint));
        }
        match (named, reset_tool) {
            ("snapshot-dir", None) => self.snapshot(given.unwrap_or(self.entry)),
            ("reset-tool", Some(_)) => Some(State::ResetTool(self.table.reset_tool.clone()?)),
            ("reset-tool", None) => self.wrong_key(
                given.unwrap_or(self.entry),
                "state \"reset-tool\" needs `reset_tool`",
                Some("reset_tool = \"reset\" names the tool that restores the initial state".into()),
            ),
            (known, Some(tool)) if states().contains(&known) => {
                self.wrong_key(tool, "`reset_tool` needs state \"reset-tool\"", None)
            }
            ("read-only", None) => Some(State::ReadOnly),
            (UNCONFIRMED, None) => Some(State::Unconfirmed),
            ("fresh-process", None) => match (url, given) {
                (None, _) => Some(State::FreshProcess),
                (Some(url), None) => {
                    self.wrong_key(url, "a server at a `url` needs a `state`", Some(ways_at_a_url()))
                }
                (Some(_), Some(given)) => {
                    let message = "state \"fresh-process\" needs a `command`: a server at a `url` is not started by mcprl";
                    self.wrong_value(given, message, Some(ways_at_a_url()))
                }
            },
            ("fresh-session", None) if url.is_some() || is_played => Some(State::FreshProcess),
            ("fresh-session", None) => {
                let hint =
                    "state = \"fresh-process\" starts the `command` again for every episode".to_owned();
                self.wrong_value(given?, "state \"fresh-session\" needs a `url`", Some(hint))
            }
            (other, _) => {
                let given = given?;
                let states = STATES.join(", ");
                let message = format!("`{}` should be one of {states}, found \"{other}\"", given.path);
                let hint = suggest(&other.to_lowercase().replace(['_', ' '], "-"), STATES);
                self.wrong_value(given, message, hint)
            }
        }
    }

    /// The commands around an episode, which needs a session of its own for them.
    pub(super) fn around(&self, state: Option<&State>) -> Option<[Vec<String>; 2]> {
        let is_own = matches!(state?, State::FreshProcess | State::SnapshotDir(_));
        let hint =
            || Some("state = \"fresh-process\", and with a `url` \"fresh-session\", is one".to_owned());
        if self.table.uses_name() && !is_own {
            let message = format!("`{SESSION}` needs a session for each episode");
            return self.wrong_key(self.at("state").unwrap_or(self.entry), message, hint());
        }
        let mut commands = [self.table.before_episode.clone(), self.table.after_episode.clone()]
            .map(Option::unwrap_or_default);
        for (key, words) in ["before_episode", "after_episode"].into_iter().zip(&mut commands) {
            let Some(entry) = self.at(key) else { continue };
            if !is_own {
                let message = format!("`{key}` needs a session for each episode");
                return self.wrong_key(entry, message, hint());
            }
            let Some(program) = words.first_mut().filter(|program| !program.is_empty()) else {
                return self.wrong_value(entry, format!("`{}` is empty", entry.path), None);
            };
            // A server at a `url` has no folder of its own.
            if self.at("url").is_some() && program.contains('/') {
                *program = entry.folder().join(&*program).to_string_lossy().into_owned();
            }
        }
        let is_shared = !commands[0].is_empty() && !self.table.uses_name() && !self.table.uses_copy();
        if is_shared && self.table.sessions != Some(1) {
            let entry = self.at("before_episode")?;
            let message = format!(
                "no setting of the server has `{SESSION}`, so all sessions share what `before_episode` sets up"
            );
            let hint = "write `{session}` where the server takes its database or folder, such as in `env`; or set `sessions = 1`, if the \
                        command restores what all share";
            return self.wrong_key(entry, message, Some(hint.into()));
        }
        // Nothing is started where a cassette is played.
        Some(if self.at("replay").is_some() { Default::default() } else { commands })
    }

    fn snapshot(&self, place: &Entry<'_>) -> Option<State> {
        let (Some(entry), Some(name)) = (self.at("snapshot"), &self.table.snapshot) else {
            let hint = "snapshot = \"folder\" names the folder to copy".to_owned();
            return self.wrong_key(place, "state \"snapshot-dir\" needs `snapshot`", Some(hint));
        };
        if let Some(url) = self.at("url") {
            let message = "state \"snapshot-dir\" needs a `command`";
            return self.wrong_key(url, message, Some(ways_at_a_url()));
        }
        let template = entry.folder().join(name);
        if self.at("replay").is_some() {
            return Some(State::SnapshotDir(template));
        }
        if !template.is_dir() {
            let message = format!("`{}` names \"{name}\", which is not a folder", entry.path);
            return self.wrong_value(entry, message, None);
        }
        if !self.table.uses_copy() {
            let hint = format!(
                "write `{PLACEHOLDER}` in `command`, `env` or `cwd` where the server takes the folder"
            );
            return self.wrong_key(entry, "no setting uses the copy of `snapshot`", Some(hint));
        }
        Some(State::SnapshotDir(template))
    }
}

/// Ways to isolate episodes on a server that mcprl does not start.
fn ways_at_a_url() -> String {
    "use \"fresh-session\" if every session starts clean, \"read-only\" if calls change nothing, or \"reset-tool\" with a \
     `reset_tool`"
        .into()
}
