//! The section `[server]`.

mod isolation;
mod seeds;
mod table;
mod transport;

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    time::Duration,
};

pub use seeds::{names, of_seed};

pub use table::ServerTable;
use table::{EXPOSED, Elicitation, LIST_CHANGES};

use super::{
    layers::{Entry, EntryPart},
    reader::Reader,
};
use crate::{
    mcp::{ErrorPatterns, Expose, Inputs, Limits, ListChange, Quirks, Sandbox, ServerSpec},
    secret,
};

/// The table `[server]`, and where each of its values stands.
struct ServerSection<'r, 'e> {
    reader: &'r Reader,
    entry: &'r Entry<'e>,
    fields: BTreeMap<&'e str, Entry<'e>>,
    table: ServerTable,
}

/// Parses `[server]`. A relative `cwd` starts at the run file's folder, which is also the default.
pub fn server(reader: &Reader, entry: &Entry<'_>) -> Option<ServerSpec> {
    let fields = reader.table(entry)?;
    if let Some(secret) = fields.get("oauth").and_then(|oauth| oauth.field("client_secret")) {
        let hint = "name the variable that holds it: `client_secret_env = \"…\"`".to_owned();
        return reader.wrong_secret(&secret, format!("`{}` holds a secret", secret.path), hint);
    }
    check_elicitation(reader, fields.get("elicitation"));
    let table = reader.read::<ServerTable>(entry)?;
    ServerSection { reader, entry, fields, table }.check()
}

/// Notes values of another type, and values of fields that hold a secret.
fn check_elicitation(reader: &Reader, entry: Option<&Entry<'_>>) {
    let Some(entry) = entry else { return };
    if entry.text().is_none() && entry.fields().is_none() {
        reader.mistyped::<()>(entry, "\"defaults\" or a table of values by field");
    }
    for (name, field) in entry.fields().into_iter().flatten() {
        if field.text().is_some_and(|text| secret::is_secret(name, text)) {
            let message = format!("`{}` holds a secret", field.path);
            let hint = "remove it: every run keeps a copy of its run file. A server takes a secret from `env` or `headers`";
            reader.wrong_secret::<()>(&field, message, hint.to_owned());
        }
    }
}

impl<'e> ServerSection<'_, 'e> {
    /// The value of this key.
    fn at(&self, key: &str) -> Option<&Entry<'e>> {
        self.fields.get(key)
    }

    /// Notes a mistake at a key.
    fn wrong_key<T>(&self, entry: &Entry<'_>, message: impl Into<String>, hint: Option<String>) -> Option<T> {
        self.reader.wrong(entry, EntryPart::Key, message, hint)
    }

    /// Notes a mistake at a value.
    fn wrong_value<T>(
        &self,
        entry: &Entry<'_>,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> Option<T> {
        self.reader.wrong(entry, EntryPart::Value, message, hint)
    }

    /// Notes all that is wrong, and returns the server if nothing is.
    fn check(&self) -> Option<ServerSpec> {
        let state = self.state();
        let (sandbox, expose, inputs) = (self.sandbox(), self.expose(), self.inputs());
        let on_list_change = self.list_change();
        let around = self.around(state.as_ref());
        let (quirks, record) = (self.quirks(), self.record());
        let transport = match self.at("replay") {
            Some(replay) => self.cassette(replay),
            None => self.transport(),
        };
        let [before_episode, after_episode] = around?;
        Some(ServerSpec {
            transport: transport?,
            state: state?,
            limits: self.limits(sandbox),
            quirks: quirks?,
            record: record?,
            expose: expose?,
            inputs: inputs?,
            on_list_change: on_list_change?,
            before_episode,
            after_episode,
        })
    }

    fn limits(&self, sandbox: Option<Sandbox>) -> Limits {
        let (limits, table) = (Limits::default(), &self.table);
        let seconds = |given: Option<u64>, default| given.map_or(default, Duration::from_secs);
        Limits {
            sessions: table.sessions,
            start_timeout: seconds(table.start_timeout_s, limits.start_timeout),
            call_timeout: seconds(table.call_timeout_s, limits.call_timeout),
            result_bytes: table.result_bytes.unwrap_or(limits.result_bytes),
            sandbox,
            tools: table.tools.iter().flatten().map(|(name, own)| (name.clone(), own.limits())).collect(),
        }
    }

    /// Notes a value that is none of these.
    fn one_of<T>(&self, entry: &Entry<'_>, choices: &[&str], found: &str) -> Option<T> {
        let choices = choices.iter().map(|choice| format!("\"{choice}\"")).collect::<Vec<_>>().join(" or ");
        let message = format!("`{}` should be {choices}, found \"{found}\"", entry.path);
        self.wrong_value(entry, message, None)
    }

    fn expose(&self) -> Option<Expose> {
        let mut expose = Expose::default();
        for name in self.table.expose.iter().flatten() {
            match name.as_str() {
                "resources" => expose.resources = true,
                "prompts" => expose.prompts = true,
                other => return self.one_of(self.at("expose")?, &EXPOSED, other),
            }
        }
        Some(expose)
    }

    fn inputs(&self) -> Option<Inputs> {
        let elicitation = match &self.table.elicitation {
            Some(Elicitation::Values(values)) => Some(values.clone().into_iter().collect()),
            Some(Elicitation::Word(word)) if word == "defaults" => Some(serde_json::Map::new()),
            Some(Elicitation::Word(_)) => {
                let entry = self.at("elicitation")?;
                let expected = "\"defaults\" or a table of values by field";
                let message = format!("`{}` should be {expected}, found a text", entry.path);
                return self.wrong_value(entry, message, None);
            }
            None => None,
        };
        Some(Inputs {
            elicitation,
            sampling: self.table.sampling.as_ref().map(|sampling| sampling.text.clone()),
        })
    }

    /// The cassette to record to. It may not be in what identifies the server: the run would change its own keys.
    fn record(&self) -> Option<Option<PathBuf>> {
        let (Some(entry), Some(name)) = (self.at("record"), &self.table.record) else { return Some(None) };
        let folder = entry.folder();
        let path = folder.join(name);
        let files = self.table.files.iter().flatten().map(|name| ("files", name));
        let mut named = files.chain(self.table.snapshot.iter().map(|name| ("snapshot", name)));
        match named.find(|(_, name)| normal(&path).starts_with(normal(&folder.join(name)))) {
            None => Some(Some(path)),
            Some((key, within)) => {
                let message = format!("`{}` is in \"{within}\", which `{key}` names", entry.path);
                self.wrong_value(entry, message, Some("record outside of it".into()))
            }
        }
    }

    fn list_change(&self) -> Option<ListChange> {
        match self.table.on_list_change.as_deref() {
            None | Some("stop") => Some(ListChange::Stop),
            Some("note") => Some(ListChange::Note),
            Some(other) => self.one_of(self.at("on_list_change")?, &LIST_CHANGES, other),
        }
    }

    /// Compiles the patterns, and notes each that is invalid at its place.
    fn quirks(&self) -> Option<Quirks> {
        let mut patterns = Some(ErrorPatterns::default());
        if let (Some(list), Some(texts)) = (self.at("error_patterns"), &self.table.error_patterns) {
            for (item, text) in list.items().zip(texts) {
                if let Err(bad) = ErrorPatterns::new(std::slice::from_ref(text)) {
                    patterns = self.wrong_value(&item, format!("in `{}`, {bad}", list.path), None);
                }
            }
            patterns = patterns.and_then(|_| ErrorPatterns::new(texts).ok());
        }
        Some(Quirks {
            error_patterns: patterns?,
            coerce_arguments: self.table.coerce_arguments.unwrap_or_default(),
        })
    }
}

/// An absolute path without `.` and `..`.
pub fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => _ = normal.pop(),
            other => normal.push(other),
        }
    }
    normal
}
