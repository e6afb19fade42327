//! What one session has for itself: a name (`{session}`), a copy of a folder (`{dir}`, `snapshot.rs`), and what
//! `before_episode` sets up and `after_episode` removes.
//!
//! The agent sees another name (`places.rs`), in results and in what it sends, so that an episode does not depend on it.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    process::Stdio,
    time::Duration,
};

use mcprl_base::child;
use tokio::{process::Command, runtime::Handle, time::timeout};

use super::{
    McpError, ServerSpec, State, Transport,
    places::Places,
    process,
    snapshot::Snapshot,
    untrusted::{Redaction, Untrusted},
};

/// How long `after_episode` may take.
const AFTER: Duration = Duration::from_secs(60);

pub(super) struct Scratch {
    places: Places,
    snapshot: Option<Snapshot>,
    /// `after_episode`, until it is started.
    after: Option<Command>,
}

impl Scratch {
    /// Copies the snapshot and runs `before_episode`.
    ///
    /// # Errors
    /// If either fails. `after_episode` then runs too.
    pub(super) async fn of(spec: &ServerSpec) -> Result<Self, McpError> {
        let snapshot = match &spec.state {
            State::SnapshotDir(template) => Some(Snapshot::of(template).await?),
            _ => None,
        };
        let folder = snapshot.as_ref().map(|snapshot| snapshot.path().to_owned());
        let places = Places { folder, name: unique_name() };
        let command = |words: &[String]| match words {
            [] => Ok(None),
            words => process::command(&spec.beside(words), None, &places).map(Some),
        };
        let (before, after) = (command(&spec.before_episode)?, command(&spec.after_episode)?);
        let scratch = Self { places: places.clone(), snapshot, after };
        if let Some(before) = before
            && let Err(cause) = run(before).await
        {
            let redaction = Redaction::of(&spec.transport, Some(&places));
            let command = spec.beside(&spec.before_episode).to_string();
            return Err(McpError::BeforeEpisode { command, cause: Untrusted::new(cause, &redaction).line() });
        }
        Ok(scratch)
    }

    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// Runs `after_episode` and deletes the copy. What cannot be removed stays; a result does not depend on it.
    pub(super) async fn end(mut self) {
        if let Some(after) = self.after.take() {
            let _ = timeout(AFTER, run(after)).await;
        }
        if let Some(snapshot) = self.snapshot.take() {
            snapshot.delete().await;
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let (Some(after), Ok(runtime)) = (self.after.take(), Handle::try_current()) {
            runtime.spawn(timeout(AFTER, run(after)));
        }
    }
}

impl ServerSpec {
    /// Another command, in the place of the server's: in its folder and with its variables.
    pub(super) fn beside(&self, words: &[String]) -> Transport {
        let (env, cwd) = match &self.transport {
            Transport::Stdio { env, cwd, .. } => (env.clone(), cwd.clone()),
            Transport::Http { .. } | Transport::Cassette(_) => (BTreeMap::new(), None),
        };
        Transport::Stdio { command: words.to_vec(), env, cwd, files: Vec::new() }
    }
}

/// A name that no other session has, here or elsewhere: `mcprl_` and letters and digits, as databases and containers take it.
fn unique_name() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("mcprl_{:012x}", random & 0xffff_ffff_ffff)
}

/// Runs a command to its end. What it leaves running is ended.
///
/// # Errors
/// Why it could not be started, or how it failed.
async fn run(mut command: Command) -> Result<(), String> {
    command.stdin(Stdio::null());
    let (child, _group) = child::spawn(command).await.map_err(|error| error.to_string())?;
    let output = child.wait_with_output().await.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = if output.stderr.trim_ascii().is_empty() { &output.stdout } else { &output.stderr };
    Err(format!("{}: {}", output.status, String::from_utf8_lossy(said.trim_ascii())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_agent_sees_one_name_and_the_server_its_own() {
        let places = Places { folder: Some("/tmp/x".into()), name: unique_name() };
        assert_eq!(places.fill("-d {session} {dir}/a"), format!("-d {} /tmp/x/a", places.name));
        let arguments = json!({"sql": ["SELECT * FROM mcprl_session.t", 7], "path": "/snapshot/a"});
        let real = places.real_arguments(arguments.as_object().unwrap().clone());
        assert_eq!(real["sql"][0], format!("SELECT * FROM {}.t", places.name));
        assert_eq!((&real["sql"][1], &real["path"]), (&json!(7), &json!("/tmp/x/a")));
        let redaction = Redaction::new([], Some(&places));
        assert_eq!(
            Untrusted::new(format!("in {} and /tmp/x/a", places.name), &redaction).shown(),
            "in mcprl_session and /snapshot/a"
        );
        assert_ne!(unique_name(), places.name);
    }

    #[tokio::test]
    async fn what_is_set_up_before_a_session_is_removed_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let transport = Transport::Stdio {
            command: words("cat"),
            env: BTreeMap::new(),
            cwd: Some(folder.path().to_owned()),
            files: Vec::new(),
        };
        let mut spec = ServerSpec::new(transport, State::FreshProcess);
        spec.before_episode = words("mkdir {session}");
        spec.after_episode = words("rmdir {session}");
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let (one, other) = (Scratch::of(&spec).await.unwrap(), Scratch::of(&spec).await.unwrap());
        assert_eq!(names(), 2);
        one.end().await;
        assert_eq!(names(), 1);
        // A session that is dropped is removed a moment later.
        drop(other);
        for _ in 0..500 {
            if names() == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(names(), 0);

        spec.before_episode = words("mkdir missing/{session}");
        let error = Scratch::of(&spec).await.err().unwrap().to_string();
        assert!(error.contains("`mkdir missing/{session}` failed: exit status: 1"), "{error}");
        assert!(error.contains("mcprl_session"), "the name is not shown: {error}");
    }
}
