//! The sections `[server]` and `[engine]`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    layers::Entry,
    reader::{Part, Reader},
    source::Source,
};
use crate::{
    engine::EngineSpec,
    error::did_you_mean,
    mcp::{Limits, ServerSpec, State, Transport, has_reference, secret},
    model::kernels::Format,
};

const SERVER_KEYS: [&str; 13] = [
    "command",
    "url",
    "bearer_env",
    "headers",
    "state",
    "reset_tool",
    "env",
    "cwd",
    "files",
    "sessions",
    "start_timeout_s",
    "call_timeout_s",
    "result_bytes",
];

/// Parses `[server]`. A relative `cwd` starts at the run file's folder, which is also the default.
pub fn server(reader: &Reader<'_>, entry: &Entry, source: &Source) -> Option<ServerSpec> {
    reader.only(entry, &SERVER_KEYS);
    let fields = reader.table(entry)?;
    let (transport, state, limits) =
        (transport(reader, entry, fields, source), state(reader, entry, fields), limits(reader, fields));
    Some(ServerSpec { transport: transport?, state: state?, limits: limits? })
}

type Fields = BTreeMap<String, Entry>;

fn transport(reader: &Reader<'_>, entry: &Entry, fields: &Fields, source: &Source) -> Option<Transport> {
    let needs = |key: &str, with: &str| {
        let stray = fields.get(key)?;
        reader.wrong::<()>(stray, Part::Key, format!("`{key}` needs `{with}`"), None)
    };
    let map = |key: &str| match fields.get(key) {
        Some(entry) => {
            let values = reader.string_map(entry)?;
            check_values(reader, entry)?;
            Some(values)
        }
        None => Some(BTreeMap::new()),
    };
    match (fields.get("command"), fields.get("url")) {
        (Some(command), None) => {
            needs("bearer_env", "url");
            needs("headers", "url");
            let words = reader.strings(command)?;
            if words.first().is_none_or(String::is_empty) {
                return reader.wrong(command, Part::Value, "`server.command` is empty".into(), None);
            }
            let folder = super::absolute(source.folder());
            let files = match fields.get("files") {
                Some(entry) => files(reader, entry, &folder)?,
                None => Vec::new(),
            };
            let cwd = match fields.get("cwd") {
                Some(cwd) => folder.join(reader.text(cwd)?),
                None => folder,
            };
            Some(Transport::Stdio { command: words, env: map("env")?, cwd: Some(cwd), files })
        }
        (None, Some(url)) => {
            for key in ["env", "cwd", "files"] {
                needs(key, "command");
            }
            let text = reader.text(url)?;
            if !text.starts_with("http://") && !text.starts_with("https://") {
                let message = format!("`server.url` should start with http:// or https://, found \"{text}\"");
                return reader.wrong(url, Part::Value, message, None);
            }
            let parameters = secret::query(text).filter(|(name, value)| secret::is_secret(name, value));
            for (name, _) in parameters.filter(|(_, value)| has_reference(value) == Ok(false)) {
                let variable = variable_for(name);
                let message = format!("`server.url` holds a secret in `{name}`");
                let hint = format!("write `{name}=${{{variable}}}` and {}", export_it(&variable));
                reader.wrong_secret::<()>(url, message, hint);
            }
            if let Err(cause) = has_reference(text) {
                return reader.wrong_secret(url, format!("`server.url` {cause}"), cause.hint());
            }
            let bearer_env = match fields.get("bearer_env") {
                Some(name) => Some(reader.text(name)?.to_owned()),
                None => None,
            };
            Some(Transport::Http { url: text.into(), bearer_env, headers: map("headers")? })
        }
        (Some(_), Some(url)) => {
            reader.wrong(url, Part::Key, "a server has a `command` or a `url`, not both".into(), None)
        }
        (None, None) => {
            let hint = "for example `command = [\"./your-server\", \"--stdio\"]`".to_owned();
            reader.wrong(entry, Part::Key, "`server` needs a `command` or a `url`".into(), Some(hint))
        }
    }
}

/// The files and folders that identify the server, besides its command.
fn files(reader: &Reader<'_>, entry: &Entry, folder: &Path) -> Option<Vec<PathBuf>> {
    let names = reader.strings(entry)?;
    if let Some(missing) = names.iter().find(|name| !folder.join(name).exists()) {
        let message = format!("`server.files` names \"{missing}\", which does not exist");
        return reader.wrong(entry, Part::Value, message, None);
    }
    Some(names.iter().map(|name| folder.join(name)).collect())
}

/// Notes values of `env` or `headers` that hold a secret or have an invalid variable reference.
fn check_values(reader: &Reader<'_>, table: &Entry) -> Option<()> {
    let mut all_well = Some(());
    for (name, entry) in reader.table(table)? {
        let text = reader.text(entry)?;
        let found = match has_reference(text) {
            Ok(false) if secret::is_secret(name, text) => {
                let (scheme, variable) = match text.strip_prefix("Bearer ") {
                    Some(_) => ("Bearer ", "TOKEN".to_owned()),
                    None => ("", variable_for(name)),
                };
                let message = format!("`{}` holds a secret", entry.path);
                let hint =
                    format!("write `{name} = \"{scheme}${{{variable}}}\"` and {}", export_it(&variable));
                reader.wrong_secret::<()>(entry, message, hint)
            }
            Err(cause) => {
                let message = format!("`{}` {cause}", entry.path);
                reader.wrong_secret::<()>(entry, message, cause.hint())
            }
            Ok(_) => continue,
        };
        all_well = found;
    }
    all_well
}

fn export_it(variable: &str) -> String {
    format!("export {variable}: every run keeps a copy of its run file")
}

/// A suggested variable name for the secret of this name.
fn variable_for(name: &str) -> String {
    name.to_ascii_uppercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "_")
}

const STATES: [&str; 4] = ["read-only", "fresh-process", "fresh-session", "reset-tool"];

fn state(reader: &Reader<'_>, entry: &Entry, fields: &Fields) -> Option<State> {
    let (given, reset_tool) = (fields.get("state"), fields.get("reset_tool"));
    let url = fields.get("url").filter(|_| !fields.contains_key("command"));
    let named = match given {
        Some(state) => reader.text(state)?,
        None if reset_tool.is_some() => "reset-tool",
        None => "fresh-process",
    };
    match (named, reset_tool) {
        ("reset-tool", Some(tool)) => Some(State::ResetTool(reader.text(tool)?.to_owned())),
        ("reset-tool", None) => reader.wrong(
            given.unwrap_or(entry),
            Part::Key,
            "state \"reset-tool\" needs `reset_tool`".into(),
            None,
        ),
        (known, Some(tool)) if STATES.contains(&known) => {
            reader.wrong(tool, Part::Key, "`reset_tool` needs state \"reset-tool\"".into(), None)
        }
        ("read-only", None) => Some(State::ReadOnly),
        ("fresh-process", None) => match (url, given) {
            (None, _) => Some(State::FreshProcess),
            (Some(url), None) => reader.wrong(
                url,
                Part::Key,
                "a server at a `url` needs a `state`".into(),
                Some(ways_at_a_url()),
            ),
            (Some(_), Some(given)) => {
                let message =
                    "state \"fresh-process\" needs a `command`: a server at a `url` is not started here";
                reader.wrong(given, Part::Value, message.into(), Some(ways_at_a_url()))
            }
        },
        ("fresh-session", None) if url.is_some() => Some(State::FreshProcess),
        ("fresh-session", None) => {
            let hint = "state = \"fresh-process\" starts a `command` anew for every episode".to_owned();
            reader.wrong(given?, Part::Value, "state \"fresh-session\" needs a `url`".into(), Some(hint))
        }
        (other, _) => {
            let message = format!("`server.state` should be one of {}, found \"{other}\"", STATES.join(", "));
            let meant = did_you_mean(&other.to_lowercase().replace(['_', ' '], "-"), STATES);
            let hint = meant.map(|meant| format!("did you mean \"{meant}\"?"));
            reader.wrong(given?, Part::Value, message, hint)
        }
    }
}

/// Ways to isolate episodes on a server that mcprl does not start.
fn ways_at_a_url() -> String {
    "\"fresh-session\" where a new session begins anew, \"read-only\" where calls change nothing, or \"reset-tool\" with a \
     `reset_tool`"
        .into()
}

fn limits(reader: &Reader<'_>, fields: &Fields) -> Option<Limits> {
    let number = |key: &str, default: u64| match fields.get(key) {
        Some(entry) => reader.integer(entry, 1),
        None => Some(default),
    };
    let size = |number: Option<u64>| usize::try_from(number?).ok();
    let (sessions, start) = (number("sessions", 4), number("start_timeout_s", 60));
    let (call, bytes) = (number("call_timeout_s", 30), number("result_bytes", 16384));
    Some(Limits {
        sessions: size(sessions)?,
        start_timeout: Duration::from_secs(start?),
        call_timeout: Duration::from_secs(call?),
        result_bytes: size(bytes)?,
    })
}

/// Maps other programs' names for these types.
fn meant_dtype(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase().replace(['-', '_', '.'], "");
    Some(match text.trim_start_matches("torch") {
        "fp16" | "float16" | "half" => "f16",
        "bfloat16" | "bfp16" | "brain" => "bf16",
        "fp32" | "float32" | "float" | "full" => "f32",
        "4bit" | "int4" | "fp4" | "q4" | "qlora" | "bnb4bit" => "nf4",
        other => return did_you_mean(other, ["f32", "f16", "bf16", "nf4"]),
    })
}

/// Parses `[engine]`. Without it, the device is the CPU.
pub fn engine(reader: &Reader<'_>, entry: Option<&Entry>) -> Option<EngineSpec> {
    let cpu = || vec!["cpu".to_owned()];
    let Some(entry) = entry else {
        return Some(EngineSpec { devices: cpu(), threads: None, dtype: None, kv_cache_mib: None });
    };
    reader.only(entry, &["devices", "dtype", "kv_cache_mib", "threads"]);
    let fields = reader.table(entry)?;
    let number = |key: &str| match fields.get(key) {
        Some(entry) => reader.integer(entry, 1).and_then(|number| usize::try_from(number).ok()).map(Some),
        None => Some(None),
    };
    let devices = fields.get("devices").map_or_else(|| Some(cpu()), |entry| devices(reader, entry));
    let dtype = fields.get("dtype").map_or(Some(None), |entry| dtype(reader, entry).map(Some));
    let (threads, kv_cache_mib) = (number("threads"), number("kv_cache_mib"));
    Some(EngineSpec { devices: devices?, threads: threads?, dtype: dtype?, kv_cache_mib: kv_cache_mib? })
}

fn devices(reader: &Reader<'_>, entry: &Entry) -> Option<Vec<String>> {
    let devices = reader.strings(entry)?;
    let known = |device: &String| {
        device == "cpu" || device.strip_prefix("cuda:").is_some_and(|index| index.parse::<u16>().is_ok())
    };
    if devices.is_empty() || !devices.iter().all(known) {
        let message = "`engine.devices` should list \"cpu\" or \"cuda:0\", \"cuda:1\", …".to_owned();
        return reader.wrong(entry, Part::Value, message, None);
    }
    let cpus = devices.iter().filter(|device| *device == "cpu").count();
    let distinct = devices.iter().collect::<BTreeSet<_>>().len();
    if cpus < devices.len() && (cpus > 0 || distinct < devices.len()) {
        let message = "`engine.devices` should name each CUDA device once, and \"cpu\" not beside them";
        return reader.wrong(entry, Part::Value, message.to_owned(), None);
    }
    Some(devices)
}

fn dtype(reader: &Reader<'_>, entry: &Entry) -> Option<Format> {
    let text = reader.text(entry)?;
    serde_json::from_value(text.into()).ok().or_else(|| {
        let message =
            format!("`engine.dtype` should be \"f32\", \"f16\", \"bf16\" or \"nf4\", found \"{text}\"");
        let hint = meant_dtype(text).map(|meant| format!("did you mean \"{meant}\"?"));
        reader.wrong(entry, Part::Value, message, hint)
    })
}
