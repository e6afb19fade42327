//! Conversations as files: what `source = "traces"` reads, and `--replay` says again.
//!
//! A trace is one line of JSON with `model`, `time`, `tools` and `messages` in OpenAI's form. It is complete after every
//! message, so nothing is lost if the process is killed.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::error::TalkError;
use crate::{
    agent::REMINDER,
    chat::declared,
    data::{Message, Role},
};

/// What closes the list of messages and the conversation.
const END: &str = "]}\n";

/// What stands before the messages of a trace.
#[derive(Debug, Clone)]
pub struct Header {
    pub folder: PathBuf,
    pub model: String,
    pub tools: Vec<Value>,
    /// The system prompt of `--system`, which then is not among the messages.
    pub system: Option<String>,
}

/// The file of a conversation.
pub struct Trace {
    path: PathBuf,
    file: File,
    has_own_system: bool,
    /// Where the messages begin.
    start: u64,
    /// The messages as they are in the file, and where each ends.
    written: Vec<(String, u64)>,
}

impl Trace {
    /// Begins a new file in the folder.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(header: &Header) -> Result<Self, TalkError> {
        let Header { folder, model, tools, system } = header;
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| TalkError::Trace { path, source }
        };
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let now = chrono::Local::now();
        let name = now.format("%Y%m%d-%H%M%S");
        let mut count = 1;
        let (path, file) = loop {
            let path = folder.join(format!("chat-{name}-{count}.jsonl"));
            match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => break (path, file),
                Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => count += 1,
                Err(cause) => return Err(failed(&path)(cause)),
            }
        };
        let tools: Vec<Value> = tools.iter().map(declared).collect();
        let mut head = json!({"model": model, "time": now.to_rfc3339(), "tools": tools});
        if let Some(system) = system {
            head["system"] = system.clone().into();
        }
        let head = head.to_string();
        let head = format!("{},\"messages\":[", head.strip_suffix('}').unwrap_or_default());
        let start = head.len() as u64;
        file.write_all_at(format!("{head}{END}").as_bytes(), 0).map_err(failed(&path))?;
        Ok(Self { path, file, has_own_system: system.is_some(), start, written: Vec::new() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a message.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn push(&mut self, message: &Message) -> Result<(), TalkError> {
        self.write(std::slice::from_ref(message))
    }

    /// Makes the messages of the file these. A cancelled turn leaves the file with the next message.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn sync(&mut self, messages: &[Message]) -> Result<(), TalkError> {
        let is_own = |message: &&Message| !(self.has_own_system && message.role == Role::System);
        let messages: Vec<Message> = messages.iter().filter(is_own).cloned().collect();
        let texts = messages.iter().map(|message| message.openai().to_string());
        let same = texts.zip(&self.written).take_while(|(text, (written, _))| text == written).count();
        if same == messages.len() && same == self.written.len() {
            return Ok(());
        }
        self.written.truncate(same);
        self.write(&messages[same..])
    }

    fn write(&mut self, messages: &[Message]) -> Result<(), TalkError> {
        let begin = self.written.last().map_or(self.start, |(_, end)| *end);
        let mut text = String::new();
        for message in messages {
            let message = message.openai().to_string();
            text += if self.written.is_empty() { "" } else { "," };
            text += &message;
            self.written.push((message, begin + text.len() as u64));
        }
        text += END;
        let done = self.file.write_all_at(text.as_bytes(), begin);
        let done = done.and_then(|()| self.file.set_len(begin + text.len() as u64));
        done.map_err(|source| TalkError::Trace { path: self.path.clone(), source })
    }
}

/// The messages of the user in a trace. Reminders of an episode are no messages of a user.
///
/// # Errors
/// If the file is not one conversation with such messages.
pub fn user_messages(path: &Path) -> Result<Vec<String>, TalkError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| TalkError::Read { path: path.to_owned(), source })?;
    let wrong = |reason: String| TalkError::Replay { path: path.to_owned(), reason };
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let whole = serde_json::from_str(&text);
    let conversation: Value = match whole {
        Ok(value) => value,
        Err(_) if lines.len() > 1 && serde_json::from_str::<Value>(lines[0]).is_ok() => {
            return Err(wrong(format!("it has {} lines; one conversation is replayed", lines.len())));
        }
        Err(cause) => return Err(wrong(format!("not valid JSON: {cause}"))),
    };
    let messages = conversation.get("messages").unwrap_or(&conversation).as_array();
    let messages = messages.ok_or_else(|| wrong("there are no `messages`".into()))?;
    let of_user = messages.iter().filter_map(|message| Message::of_json(message).ok());
    let of_user = of_user.filter(|message| message.role == Role::User).map(|message| message.text);
    let said: Vec<String> = of_user.filter(|text| !text.trim().is_empty() && text != REMINDER).collect();
    if said.is_empty() { Err(wrong("there is no user message".into())) } else { Ok(said) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::MessageCall;

    fn header(folder: &Path, system: Option<&str>) -> Header {
        let tools = vec![json!({"name": "look", "parameters": {}})];
        Header {
            folder: folder.to_owned(),
            model: "run/train".into(),
            tools,
            system: system.map(str::to_owned),
        }
    }

    fn read(trace: &Trace) -> Value {
        let text = std::fs::read_to_string(&trace.path).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_trace_is_one_line_that_is_complete_after_every_message() {
        let folder = tempfile::tempdir().unwrap();
        let mut trace = Trace::create(&header(folder.path(), None)).unwrap();
        assert_eq!(read(&trace)["messages"], json!([]));
        let arguments = [("at".to_owned(), "é".into())].into_iter().collect();
        let call = MessageCall { id: "a".into(), name: "look".into(), arguments, ..MessageCall::default() };
        let mut messages =
            vec![Message::system("s"), Message::user("one\ntwo"), Message::assistant("", vec![call])];
        trace.sync(&messages).unwrap();
        messages.push(Message::result("look", "a", "{\"x\": \"}]}\"}"));
        trace.push(&messages[3]).unwrap();
        let found = read(&trace);
        assert_eq!(found["messages"].as_array().unwrap().len(), 4);
        assert_eq!(found["messages"][2]["tool_calls"][0]["function"]["arguments"], "{\"at\":\"é\"}");
        assert_eq!(
            (&found["model"], &found["tools"][0]["function"]["name"]),
            (&json!("run/train"), &json!("look"))
        );
        trace.sync(&messages).unwrap();
        assert_eq!(read(&trace), found, "what is there already is not written again");
    }

    #[test]
    fn a_turn_that_was_taken_back_leaves_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut trace = Trace::create(&header(folder.path(), None)).unwrap();
        let user = |text: &str| Message::user(text);
        trace.sync(&[user("a long message that is taken back"), user("b")]).unwrap();
        trace.sync(&[user("c")]).unwrap();
        assert_eq!(read(&trace)["messages"], json!([user("c")]));
        assert_eq!(user_messages(trace.path()).unwrap(), ["c"]);
    }

    #[test]
    fn a_system_prompt_of_ones_own_is_recorded_apart() {
        let folder = tempfile::tempdir().unwrap();
        let mut trace = Trace::create(&header(folder.path(), Some("be brief"))).unwrap();
        trace.sync(&[Message::system("be brief"), Message::user("hi")]).unwrap();
        let found = read(&trace);
        assert_eq!((&found["system"], &found["messages"][0]["content"]), (&json!("be brief"), &json!("hi")));
    }

    #[test]
    fn a_replay_says_what_the_user_said_and_names_what_is_wrong_with_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        let check = |text: &str| {
            std::fs::write(&path, text).unwrap();
            user_messages(&path).map_err(|error| error.to_string())
        };
        let messages = json!([
            {"role": "system", "content": "s"}, {"role": "user", "content": "one"},
            {"role": "assistant", "content": "x"}, {"role": "user", "content": REMINDER},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
        ]);
        let said = vec!["one".to_owned(), "two".to_owned()];
        assert_eq!(check(&json!({"messages": messages}).to_string()), Ok(said.clone()));
        assert_eq!(check(&format!("{messages:#}")), Ok(said));
        for (text, reason) in [
            ("{\"messages\": [", "not valid JSON"),
            ("{}\n{}", "it has 2 lines"),
            ("7", "there are no `messages`"),
            ("{\"messages\": [{\"role\": \"user\", \"content\": \" \"}]}", "there is no user message"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
