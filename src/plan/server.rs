//! The sections `[server]` and `[engine]`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    overlay::Entry,
    reader::{Part, Reader},
    source::Source,
};
use crate::{
    engine::EngineSpec,
    error::did_you_mean,
    mcp::{Limits, ServerSpec, State, Transport},
};

const SERVER_KEYS: [&str; 12] = [
    "command",
    "url",
    "bearer_env",
    "headers",
    "state",
    "reset_tool",
    "env",
    "cwd",
    "sessions",
    "start_timeout_s",
    "call_timeout_s",
    "result_bytes",
];

/// Reads `[server]`. A relative `cwd` starts at the run file's folder, which is also where a command works by default.
pub fn server(reader: &Reader<'_>, entry: &Entry, source: &Source) -> Option<ServerSpec> {
    reader.only(entry, &SERVER_KEYS);
    let fields = reader.table(entry)?;
    Some(ServerSpec {
        transport: transport(reader, entry, fields, source)?,
        state: state(reader, entry, fields)?,
        limits: limits(reader, fields)?,
    })
}

type Fields = BTreeMap<String, Entry>;

fn transport(reader: &Reader<'_>, entry: &Entry, fields: &Fields, source: &Source) -> Option<Transport> {
    let needs = |key: &str, with: &str| {
        let stray = fields.get(key)?;
        reader.wrong::<()>(stray, Part::Key, format!("`{key}` needs `{with}`"), None)
    };
    let map = |key: &str| match fields.get(key) {
        Some(entry) => reader.string_map(entry),
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
            let cwd = match fields.get("cwd") {
                Some(cwd) => folder.join(reader.text(cwd)?),
                None => folder,
            };
            Some(Transport::Stdio { command: words, env: map("env")?, cwd: Some(cwd) })
        }
        (None, Some(url)) => {
            for key in ["env", "cwd"] {
                needs(key, "command");
            }
            let text = reader.text(url)?;
            if !text.starts_with("http://") && !text.starts_with("https://") {
                let message = format!("`server.url` should start with http:// or https://, found \"{text}\"");
                return reader.wrong(url, Part::Value, message, None);
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
            let hint = "for example `command = [\"uvx\", \"some-mcp-server\"]`".to_owned();
            reader.wrong(entry, Part::Key, "`server` needs a `command` or a `url`".into(), Some(hint))
        }
    }
}

fn state(reader: &Reader<'_>, entry: &Entry, fields: &Fields) -> Option<State> {
    let reset_tool = fields.get("reset_tool");
    let named = match fields.get("state") {
        Some(state) => reader.text(state)?,
        None if reset_tool.is_some() => "reset-tool",
        None => "fresh-process",
    };
    match (named, reset_tool) {
        ("reset-tool", Some(tool)) => Some(State::ResetTool(reader.text(tool)?.to_owned())),
        ("reset-tool", None) => {
            reader.wrong(entry, Part::Key, "state \"reset-tool\" needs `reset_tool`".into(), None)
        }
        ("read-only" | "fresh-process", Some(tool)) => {
            reader.wrong(tool, Part::Key, "`reset_tool` needs state \"reset-tool\"".into(), None)
        }
        ("read-only", None) => Some(State::ReadOnly),
        ("fresh-process", None) => Some(State::FreshProcess),
        (other, _) => {
            let message = format!(
                "`server.state` should be one of read-only, fresh-process, reset-tool, found \"{other}\""
            );
            reader.wrong(fields.get("state")?, Part::Value, message, None)
        }
    }
}

fn limits(reader: &Reader<'_>, fields: &Fields) -> Option<Limits> {
    let number = |key: &str, default: u64| match fields.get(key) {
        Some(entry) => reader.integer(entry, 1),
        None => Some(default),
    };
    let size = |number: u64| usize::try_from(number).ok();
    Some(Limits {
        sessions: size(number("sessions", 4)?)?,
        start_timeout: Duration::from_secs(number("start_timeout_s", 60)?),
        call_timeout: Duration::from_secs(number("call_timeout_s", 30)?),
        result_bytes: size(number("result_bytes", 16384)?)?,
    })
}

/// What other programs call these types.
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

/// Reads `[engine]`; the CPU where the run file has none.
pub fn engine(reader: &Reader<'_>, entry: Option<&Entry>) -> Option<EngineSpec> {
    let mut spec = EngineSpec { devices: vec!["cpu".into()], threads: None, dtype: None, kv_cache_mib: None };
    let Some(entry) = entry else { return Some(spec) };
    reader.only(entry, &["devices", "dtype", "kv_cache_mib", "threads"]);
    let fields = reader.table(entry)?;
    if let Some(devices) = fields.get("devices") {
        spec.devices = reader.strings(devices)?;
        let known = |device: &String| {
            device == "cpu" || device.strip_prefix("cuda:").is_some_and(|index| index.parse::<u16>().is_ok())
        };
        if spec.devices.is_empty() || !spec.devices.iter().all(known) {
            let message = "`engine.devices` should list \"cpu\" or \"cuda:0\", \"cuda:1\", …".to_owned();
            return reader.wrong(devices, Part::Value, message, None);
        }
        let cpus = spec.devices.iter().filter(|device| *device == "cpu").count();
        let distinct = spec.devices.iter().collect::<BTreeSet<_>>().len();
        if cpus < spec.devices.len() && (cpus > 0 || distinct < spec.devices.len()) {
            let message = "`engine.devices` should name each CUDA device once, and \"cpu\" not beside them";
            return reader.wrong(devices, Part::Value, message.to_owned(), None);
        }
    }
    if let Some(threads) = fields.get("threads") {
        spec.threads = Some(usize::try_from(reader.integer(threads, 1)?).ok()?);
    }
    if let Some(mib) = fields.get("kv_cache_mib") {
        spec.kv_cache_mib = Some(usize::try_from(reader.integer(mib, 1)?).ok()?);
    }
    if let Some(dtype) = fields.get("dtype") {
        let text = reader.text(dtype)?;
        let Ok(format) = serde_json::from_value(text.into()) else {
            let message =
                format!("`engine.dtype` should be \"f32\", \"f16\", \"bf16\" or \"nf4\", found \"{text}\"");
            let hint = meant_dtype(text).map(|meant| format!("did you mean \"{meant}\"?"));
            return reader.wrong(dtype, Part::Value, message, hint);
        };
        spec.dtype = Some(format);
    }
    Some(spec)
}
