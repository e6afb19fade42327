//! What is served, as files: each conversation with its messages, and with exactly the tokens that were sampled.
//!
//! A file is a line of JSON: a trace as `mcprl chat --trace-dir` writes it, with the columns `policy`, `tokens`, `sampled`,
//! `logprobs` and `row_starts` of a trajectory. It is written again after each answer, whole or not at all.

use std::{
    collections::VecDeque,
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::ServeError;
use crate::{agent::History, chat::declared, data::Message, openai::Rows};

/// Conversations that a request may continue. Older ones stay as they are.
const OPEN: usize = 256;

/// Whose answers are kept.
#[derive(Debug, Clone)]
pub struct Origin {
    pub model: String,
    /// The digest of the policy.
    pub policy: String,
    /// The function schemas that were offered.
    pub tools: Vec<Value>,
}

struct Conversation {
    path: PathBuf,
    policy: String,
    rows: Rows,
}

/// Keeps conversations in a folder.
pub struct Keeper {
    folder: PathBuf,
    open: Mutex<VecDeque<Conversation>>,
    /// Gets the first failure to write.
    report: Box<dyn Fn(ServeError) + Send + Sync>,
    has_failed: AtomicBool,
}

impl Keeper {
    /// Makes the folder.
    ///
    /// # Errors
    /// If nothing can be written there.
    pub fn new(
        folder: PathBuf,
        report: impl Fn(ServeError) + Send + Sync + 'static,
    ) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Keep { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(failed)?;
        tempfile::tempfile_in(&folder).map_err(failed)?;
        Ok(Self {
            folder,
            open: Mutex::default(),
            report: Box::new(report),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Keeps an answer to a request, in the file of the conversation that it continues. `messages` are those of the request
    /// and the answer. The same answer to the same request is kept once.
    pub fn request(&self, origin: &Origin, prompt: &[u32], answer: &[(u32, f32)], messages: Vec<Message>) {
        let mut open = self.open.lock();
        let of_policy = |one: &&Conversation| one.policy == origin.policy;
        if open.iter().filter(of_policy).any(|one| one.rows.contains(prompt, answer)) {
            return;
        }
        let same = open.iter().enumerate().filter(|(_, one)| of_policy(one));
        let continued = same.filter_map(|(index, one)| Some((one.rows.continued(prompt)?, index))).max();
        let found = continued.and_then(|(_, index)| open.remove(index));
        let mut conversation = found.unwrap_or_else(|| Conversation {
            path: self.fresh(),
            policy: origin.policy.clone(),
            rows: Rows::default(),
        });
        conversation.rows.add(prompt, answer, messages);
        self.write(&conversation.path, origin, &conversation.rows.history());
        open.push_back(conversation);
        if open.len() > OPEN {
            open.pop_front();
        }
    }

    /// Keeps a whole conversation of the agent.
    pub fn conversation(&self, origin: &Origin, history: &History) {
        self.write(&self.fresh(), origin, history);
    }

    /// The newest conversations in the folder, without their tokens. What cannot be read is left out.
    pub fn newest(&self, most: usize) -> Vec<Value> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_ours = |name: &String| name.starts_with("served-") && name.ends_with(".jsonl");
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_ours).collect();
        names.sort_unstable_by(|one, other| other.cmp(one));
        let read = |name: String| -> Option<Value> {
            let text = std::fs::read_to_string(self.folder.join(&name)).ok()?;
            let Value::Object(mut line) = serde_json::from_str(&text).ok()? else { return None };
            line.retain(|key, _| ["model", "time", "messages"].contains(&key.as_str()));
            line.insert("id".into(), name.into());
            Some(line.into())
        };
        names.into_iter().take(most).filter_map(read).collect()
    }

    fn fresh(&self) -> PathBuf {
        let now = chrono::Local::now().format("%Y%m%d-%H%M%S");
        self.folder.join(format!("served-{now}-{:016x}.jsonl", crate::openai::random()))
    }

    fn write(&self, path: &Path, origin: &Origin, history: &History) {
        let Origin { model, policy, tools } = origin;
        let History { messages, tokens, sampled, logprobs, row_starts, .. } = history;
        let line = json!({
            "model": model, "policy": policy, "time": chrono::Local::now().to_rfc3339(),
            "tools": tools.iter().map(declared).collect::<Vec<_>>(),
            "messages": messages.iter().map(Message::openai).collect::<Vec<_>>(),
            "tokens": tokens, "sampled": sampled, "logprobs": logprobs, "row_starts": row_starts,
        });
        let written = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            writeln!(file, "{line}")?;
            file.persist(path).map(|_| ()).map_err(|cause| cause.error)
        };
        if let Err(source) = written()
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            (self.report)(ServeError::Keep { path: path.to_owned(), source });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_one_file_which_its_last_answer_completes() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(folder.path().join("kept"), |failure| panic!("{failure}")).unwrap();
        let origin = |policy: &str| Origin {
            model: "trained".into(),
            policy: policy.into(),
            tools: vec![json!({"name": "look"})],
        };
        let said = |texts: &[&str]| texts.iter().map(|text| Message::user(*text)).collect::<Vec<_>>();
        keeper.request(&origin("a"), &[1], &[(2, -0.5)], said(&["one", "two"]));
        keeper.request(&origin("a"), &[1, 2, 3], &[(4, -0.5)], said(&["one", "two", "three", "four"]));
        keeper.request(&origin("a"), &[1], &[(2, -0.5)], said(&["one", "two"]));
        // The same tokens by another policy are another conversation.
        keeper.request(&origin("b"), &[1, 2, 3], &[(5, -0.5)], said(&["one", "two", "three", "five"]));
        let newest = keeper.newest(1);
        assert_eq!(newest.len(), 1);
        assert!(newest[0]["messages"].is_array() && newest[0].get("tokens").is_none(), "{newest:?}");
        assert_eq!(keeper.newest(9).len(), 2);
        let files = std::fs::read_dir(folder.path().join("kept")).unwrap();
        let read = |file: std::io::Result<std::fs::DirEntry>| -> Value {
            serde_json::from_str(&std::fs::read_to_string(file.unwrap().path()).unwrap()).unwrap()
        };
        let mut kept: Vec<Value> = files.map(read).collect();
        kept.sort_by_key(|kept| kept["policy"].to_string());
        assert_eq!(kept.len(), 2);
        assert_eq!(kept[0]["tokens"], json!([1, 2, 3, 4]));
        assert_eq!(kept[0]["sampled"], json!([false, true, false, true]));
        assert_eq!(kept[0]["messages"].as_array().unwrap().len(), 4);
        assert_eq!(kept[0]["tools"][0]["function"]["name"], "look");
        assert_eq!(kept[1]["tokens"], json!([1, 2, 3, 5]));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error_before_anything_is_served_and_later_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(Keeper::new(file.join("kept"), |_| ()).is_err());
        let (sender, reports) = std::sync::mpsc::channel();
        let kept = folder.path().join("kept");
        let keeper =
            Keeper::new(kept.clone(), move |failure| sender.send(failure.to_string()).unwrap()).unwrap();
        std::fs::remove_dir(&kept).unwrap();
        let origin = Origin { model: "m".into(), policy: "p".into(), tools: Vec::new() };
        for token in 0..2 {
            keeper.request(&origin, &[token], &[], Vec::new());
        }
        assert_eq!(reports.try_iter().count(), 1);
    }
}
