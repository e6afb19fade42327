//! The sections `[server]` and `[engine]`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    layers::{Entry, Part},
    reader::Reader,
};
use crate::{
    engine::EngineSpec,
    error::{did_you_mean, suggest},
    mcp::{
        BWRAP, ErrorPatterns, Expose, Inputs, Limits, ListChange, PLACEHOLDER, Quirks, SESSION, Sandbox,
        ServerSpec, State, Token, ToolLimits, Transport,
    },
    reference::has_reference,
    secret::{self, Substitute},
};

/// The MCP server to train on: a `command` or a `url`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Command to start; the transport is stdio. `{mcprl}` is this program. Words are passed unchanged, so
    /// put secrets into `env`.
    #[schemars(length(min = 1))]
    command: Option<Vec<String>>,
    /// URL to connect to over streamable HTTP, or HTTP+SSE. `${NAME}` in it is the environment variable NAME.
    #[schemars(regex(pattern = "^https?://"))]
    url: Option<String>,
    /// Environment variable that holds the bearer token for `url`.
    bearer_env: Option<String>,
    /// File that holds the bearer token for `url`, relative to the run file's folder. It is read at each
    /// connection, and refused if other users can read it.
    bearer_file: Option<String>,
    /// Client that gets the bearer token for `url` from the server's authorization server, by its own
    /// credentials. A user's login is `mcprl connect URL --login` instead and needs no key.
    oauth: Option<OAuth>,
    /// Headers of every request to `url`. `${NAME}` in a value is the environment variable NAME, as in
    /// `"Bearer ${TOKEN}"`, and `$$` is a `$`. A literal secret is rejected.
    headers: Option<BTreeMap<String, String>>,
    /// Under `[servers.NAME]`, makes a server of each of these numbers, such as `"1..200"`: NAME001 to NAME200. `{seed}` in
    /// `command`, `cwd`, `env`, `url`, `headers`, `record`, `before_episode` and `after_episode` is the number.
    #[expect(dead_code, reason = "a key of the schema, which `names` reads")]
    seeds: Option<String>,
    /// How episodes are isolated from each other. `fresh-process` needs a `command` and is its default;
    /// `fresh-session` needs a `url`. `run` refuses `unconfirmed`, which `init` writes where only you can know.
    #[schemars(extend("enum" = states()))]
    state: Option<String>,
    /// Folder that is copied for each episode if `state` is `snapshot-dir`, relative to the run file's folder. `{dir}` in
    /// `command`, `env` or `cwd` is the copy.
    snapshot: Option<String>,
    /// Tool to call before each episode if `state` is `reset-tool`.
    reset_tool: Option<String>,
    /// Command that runs before each episode, in the folder and with the variables of `command`, and sets up what the episode
    /// changes. `{session}` in it, and in `command`, `cwd`, `env`, `url` and `headers`, is a name that no other session has.
    #[schemars(length(min = 1))]
    before_episode: Option<Vec<String>>,
    /// Command that runs after each episode and removes that.
    #[schemars(length(min = 1))]
    after_episode: Option<Vec<String>>,
    /// Environment variables for `command`, in addition to PATH, HOME, LANG, TMPDIR and those for proxies and
    /// certificates. `${NAME}` in a value is the environment variable NAME, and `$$` is a `$`. A literal
    /// secret is rejected. The value of NAME is not part of any key.
    env: Option<BTreeMap<String, String>>,
    /// Working directory of `command`, relative to the run file's folder.
    cwd: Option<String>,
    /// Files and folders whose content identifies the server, such as the modules that its script imports;
    /// relative to the run file's folder.
    files: Option<Vec<String>>,
    /// Runs `command` in a sandbox (Linux): it reads files except credentials, writes only its own /tmp and
    /// `sandbox_write`, and has no network.
    #[schemars(extend("enum" = [BWRAP]))]
    sandbox: Option<String>,
    /// Gives a sandboxed server the network.
    sandbox_network: Option<bool>,
    /// Files and folders that a sandboxed server may write, relative to the run file's folder; `~` is the home folder.
    sandbox_write: Option<Vec<String>>,
    /// Maximum number of concurrent sessions. By default, as many processes of `command` as fit into half of the
    /// available memory, up to 256; at a `url`, 16.
    #[schemars(range(min = 1))]
    sessions: Option<usize>,
    /// Timeout for starting a session, in seconds.
    #[schemars(range(min = 1), extend("default" = Limits::default().start_timeout.as_secs()))]
    start_timeout_s: Option<u64>,
    /// Timeout of one tool call, in seconds.
    #[schemars(range(min = 1), extend("default" = Limits::default().call_timeout.as_secs()))]
    call_timeout_s: Option<u64>,
    /// Maximum number of bytes of a tool result shown to the model.
    #[schemars(range(min = 1), extend("default" = Limits::default().result_bytes))]
    result_bytes: Option<usize>,
    /// Regular expressions for texts that are errors although the server does not mark them, such as `"^Error:"`.
    error_patterns: Option<Vec<String>>,
    /// Whether an argument is converted to the type that the tool's schema wants: `"7"` to 7, `"true"` to true, and 7
    /// to `"7"`.
    #[schemars(extend("default" = false))]
    coerce_arguments: Option<bool>,
    /// What the agent gets as tools besides the server's own: its resources (`list_resources`, `read_resource`) and its
    /// prompts (`get_prompt`).
    expose: Option<Vec<String>>,
    /// Limits of single tools, by the server's name of the tool.
    tools: Option<BTreeMap<String, ToolSettings>>,
    /// How a form that the server shows to the user is filled in: `"defaults"`, or a table of values by field, where other
    /// fields get their defaults. Without it, and where a required field has no value, forms are declined. A literal secret
    /// is rejected.
    elicitation: Option<Elicitation>,
    /// Fixed reply to a server that asks for a sample of a language model. Without it such a request is refused.
    sampling: Option<Sampling>,
    /// What happens if the server announces a change of its tools while episodes are played and a listed tool is no longer the
    /// same: the stage fails, or the change is noted.
    #[schemars(extend("enum" = LIST_CHANGES, "default" = LIST_CHANGES[0]))]
    on_list_change: Option<String>,
    /// Cassette that the server's answers are recorded to, relative to the run file's folder, outside of `files` and
    /// `snapshot`.
    record: Option<String>,
    /// Cassette whose answers take the place of the server, relative to the run file's folder. Nothing is started or
    /// connected to.
    replay: Option<String>,
}

const EXPOSED: [&str; 2] = ["resources", "prompts"];
const LIST_CHANGES: [&str; 2] = ["stop", "note"];

/// Limits of one tool.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ToolSettings {
    /// Timeout of a call, in seconds, in place of `call_timeout_s`.
    #[schemars(range(min = 1))]
    timeout_s: Option<u64>,
    /// Maximum number of bytes of a result shown to the model, in place of the server's.
    #[schemars(range(min = 1))]
    result_bytes: Option<usize>,
    /// How often the agent may call the tool in an episode. Further calls get an error.
    calls: Option<u32>,
}

/// `"defaults"`, or values by field.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum Elicitation {
    Word(String),
    Values(BTreeMap<String, serde_json::Value>),
}

/// A fixed reply.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sampling {
    text: String,
}

/// Client credentials (OAuth 2.1).
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OAuth {
    client_id: String,
    /// Environment variable that holds the client's secret.
    client_secret_env: String,
    /// Scopes to ask for; by default those that the server names.
    #[serde(default)]
    scopes: Vec<String>,
    /// The authorization server (its issuer URL). Without it, the client's secret goes to the one that the MCP server names.
    issuer: Option<String>,
}

impl Server {
    /// Whether a setting takes the copy of `snapshot`.
    fn uses_copy(&self) -> bool {
        let around = self.before_episode.iter().chain(&self.after_episode).flatten();
        let words = self.command.iter().flatten().chain(self.env.iter().flat_map(BTreeMap::values));
        words.chain(around).chain(&self.cwd).any(|word| word.contains(PLACEHOLDER))
    }

    /// Whether a setting of the server takes the session's name.
    fn uses_name(&self) -> bool {
        let tables = self.env.iter().chain(&self.headers).flat_map(BTreeMap::values);
        let words = self.command.iter().flatten().chain(tables).chain(&self.cwd).chain(&self.url);
        words.into_iter().any(|word| word.contains(SESSION))
    }
}

type Fields<'a> = BTreeMap<&'a str, Entry<'a>>;

/// Parses `[server]`. A relative `cwd` starts at the run file's folder, which is also the default.
pub fn server(reader: &Reader, entry: &Entry<'_>) -> Option<ServerSpec> {
    let fields = reader.table(entry)?;
    if let Some(secret) = fields.get("oauth").and_then(|oauth| oauth.field("client_secret")) {
        let hint = "name the variable that holds it: `client_secret_env = \"…\"`".to_owned();
        return reader.wrong_secret(&secret, format!("`{}` holds a secret", secret.path), hint);
    }
    check_elicitation(reader, fields.get("elicitation"));
    let mut server = reader.read::<Server>(entry)?;
    let state = state(reader, entry, &fields, &server);
    let (limits, default) =
        (Limits::default(), |seconds: Option<u64>, default| seconds.map_or(default, Duration::from_secs));
    let limits = Limits {
        sessions: server.sessions,
        start_timeout: default(server.start_timeout_s, limits.start_timeout),
        call_timeout: default(server.call_timeout_s, limits.call_timeout),
        result_bytes: server.result_bytes.unwrap_or(limits.result_bytes),
        sandbox: sandbox(reader, &fields, &server),
        tools: server.tools.iter().flatten().map(|(name, own)| (name.clone(), own.limits())).collect(),
    };
    let (expose, inputs) = (expose(reader, &fields, &server), inputs(reader, &fields, &mut server));
    let on_list_change = list_change(reader, &fields, &server);
    let around = around(reader, entry, &fields, &mut server, state.as_ref());
    let quirks = quirks(reader, &fields, &server);
    let record = record(reader, &fields, &server);
    let transport = match fields.get("replay") {
        Some(replay) => cassette(reader, replay, &fields, &server),
        None => transport(reader, entry, &fields, server),
    }?;
    let (state, quirks, expose, inputs) = (state?, quirks?, expose?, inputs?);
    let (record, on_list_change, [before_episode, after_episode]) = (record?, on_list_change?, around?);
    Some(ServerSpec {
        transport,
        state,
        limits,
        quirks,
        record,
        expose,
        inputs,
        on_list_change,
        before_episode,
        after_episode,
    })
}

/// What stands for the number of a server that `seeds` makes.
const SEED: &str = "{seed}";
/// Most servers of one table.
const SEEDS: u64 = 10_000;

/// The names that `seeds` gives a server, each with its number; the server's own name without one.
pub fn names(reader: &Reader, name: &str, entry: &Entry<'_>) -> Option<Vec<(String, Option<u64>)>> {
    let Some(entry) = entry.field("seeds") else { return Some(vec![(name.to_owned(), None)]) };
    let text = reader.text(&entry)?;
    let range: Option<(u64, u64)> =
        text.split_once("..").and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match range {
        Some((first, last)) if first <= last && last - first < SEEDS => {
            let width = last.to_string().len();
            let of = |seed: u64| (format!("{name}{seed:0width$}"), Some(seed));
            Some((first..=last).map(of).collect())
        }
        _ => {
            let message = format!("`{}` should be a range of numbers, found \"{text}\"", entry.path);
            let hint = format!("\"1..200\" is the numbers from 1 to 200; at most {SEEDS} are possible");
            reader.wrong(&entry, Part::Value, message, Some(hint))
        }
    }
}

/// The server of a number.
pub fn of_seed(spec: &ServerSpec, seed: u64) -> ServerSpec {
    let fill = |text: &str| text.replace(SEED, &seed.to_string());
    let all = |words: &[String]| words.iter().map(|word| fill(word)).collect();
    let values = |table: &BTreeMap<String, String>| {
        table.iter().map(|(name, value)| (name.clone(), fill(value))).collect()
    };
    let path = |path: &PathBuf| PathBuf::from(fill(&path.to_string_lossy()));
    let mut of_seed = spec.clone();
    match &mut of_seed.transport {
        Transport::Stdio { command, env, cwd, .. } => {
            (*command, *env, *cwd) = (all(command), values(env), cwd.as_ref().map(path));
        }
        Transport::Http { url, headers, .. } => (*url, *headers) = (fill(url), values(headers)),
        Transport::Cassette(_) => {}
    }
    of_seed.record = spec.record.as_ref().map(path);
    (of_seed.before_episode, of_seed.after_episode) = (all(&spec.before_episode), all(&spec.after_episode));
    of_seed
}

impl ToolSettings {
    fn limits(&self) -> ToolLimits {
        let Self { timeout_s, result_bytes, calls } = *self;
        ToolLimits { timeout: timeout_s.map(Duration::from_secs), result_bytes, calls }
    }
}

/// Notes a value that is none of these.
fn one_of<T>(reader: &Reader, entry: &Entry<'_>, choices: &[&str], found: &str) -> Option<T> {
    let choices = choices.iter().map(|choice| format!("\"{choice}\"")).collect::<Vec<_>>().join(" or ");
    let message = format!("`{}` should be {choices}, found \"{found}\"", entry.path);
    reader.wrong(entry, Part::Value, message, None)
}

fn expose(reader: &Reader, fields: &Fields<'_>, server: &Server) -> Option<Expose> {
    let mut expose = Expose::default();
    for name in server.expose.iter().flatten() {
        match name.as_str() {
            "resources" => expose.resources = true,
            "prompts" => expose.prompts = true,
            other => return one_of(reader, fields.get("expose")?, &EXPOSED, other),
        }
    }
    Some(expose)
}

fn inputs(reader: &Reader, fields: &Fields<'_>, server: &mut Server) -> Option<Inputs> {
    let elicitation = match server.elicitation.take() {
        Some(Elicitation::Values(values)) => Some(values.into_iter().collect()),
        Some(Elicitation::Word(word)) if word == "defaults" => Some(serde_json::Map::new()),
        Some(Elicitation::Word(_)) => {
            let entry = fields.get("elicitation")?;
            let expected = "\"defaults\" or a table of values by field";
            let message = format!("`{}` should be {expected}, found a text", entry.path);
            return reader.wrong(entry, Part::Value, message, None);
        }
        None => None,
    };
    Some(Inputs { elicitation, sampling: server.sampling.take().map(|sampling| sampling.text) })
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

/// The cassette to record to. It may not be in what identifies the server: the run would change its own keys.
fn record(reader: &Reader, fields: &Fields<'_>, server: &Server) -> Option<Option<PathBuf>> {
    let (Some(entry), Some(name)) = (fields.get("record"), &server.record) else { return Some(None) };
    let folder = entry.folder();
    let path = folder.join(name);
    let files = server.files.iter().flatten().map(|name| ("files", name));
    let mut named = files.chain(server.snapshot.iter().map(|name| ("snapshot", name)));
    match named.find(|(_, name)| normal(&path).starts_with(normal(&folder.join(name)))) {
        None => Some(Some(path)),
        Some((key, within)) => {
            let message = format!("`{}` is in \"{within}\", which `{key}` names", entry.path);
            reader.wrong(entry, Part::Value, message, Some("record outside of it".into()))
        }
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

fn list_change(reader: &Reader, fields: &Fields<'_>, server: &Server) -> Option<ListChange> {
    match server.on_list_change.as_deref() {
        None | Some("stop") => Some(ListChange::Stop),
        Some("note") => Some(ListChange::Note),
        Some(other) => one_of(reader, fields.get("on_list_change")?, &LIST_CHANGES, other),
    }
}

/// The cassette that takes the place of the server. Settings of the server stay, so that it can be recorded again.
fn cassette(reader: &Reader, entry: &Entry<'_>, fields: &Fields<'_>, server: &Server) -> Option<Transport> {
    let name = server.replay.as_ref()?;
    if let Some(record) = fields.get("record") {
        return reader.wrong(record, Part::Key, "a server has `record` or `replay`, not both", None);
    }
    for table in ["env", "headers"] {
        check_values(reader, fields.get(table))?;
    }
    let path = entry.folder().join(name);
    if !path.is_file() {
        let message = format!("`{}` names \"{name}\", which does not exist", entry.path);
        let hint = format!("`record = \"{name}\"` records it in a run on the live server");
        return reader.wrong(entry, Part::Value, message, Some(hint));
    }
    Some(Transport::Cassette(path))
}

/// Compiles the patterns, and notes each that is invalid at its place.
fn quirks(reader: &Reader, fields: &Fields<'_>, server: &Server) -> Option<Quirks> {
    let mut patterns = Some(ErrorPatterns::default());
    if let (Some(list), Some(texts)) = (fields.get("error_patterns"), &server.error_patterns) {
        for (item, text) in list.items().zip(texts) {
            if let Err(bad) = ErrorPatterns::new(std::slice::from_ref(text)) {
                patterns = reader.wrong(&item, Part::Value, format!("in `{}`, {bad}", list.path), None);
            }
        }
        patterns = patterns.and_then(|_| ErrorPatterns::new(texts).ok());
    }
    Some(Quirks { error_patterns: patterns?, coerce_arguments: server.coerce_arguments.unwrap_or_default() })
}

fn transport(
    reader: &Reader,
    entry: &Entry<'_>,
    fields: &Fields<'_>,
    mut server: Server,
) -> Option<Transport> {
    let needs = |key: &str, with: &str| {
        let stray = fields.get(key)?;
        reader.wrong::<()>(stray, Part::Key, format!("`{key}` needs `{with}`"), None)
    };
    match (fields.get("command"), fields.get("url")) {
        (Some(entry), None) => {
            for key in ["bearer_env", "bearer_file", "oauth", "headers"] {
                needs(key, "url");
            }
            let command = server.command?;
            if command.first().is_none_or(String::is_empty) {
                return reader.wrong(entry, Part::Value, format!("`{}` is empty", entry.path), None);
            }
            check_values(reader, fields.get("env"))?;
            let of = |key: &str| fields.get(key).unwrap_or(entry).folder();
            let folder = of("files");
            let files = files(reader, fields.get("files"), server.files.unwrap_or_default(), &folder)?;
            let cwd = match server.cwd {
                Some(cwd) if cwd.starts_with(PLACEHOLDER) => PathBuf::from(cwd),
                Some(cwd) => of("cwd").join(cwd),
                None => entry.folder(),
            };
            Some(Transport::Stdio { command, env: server.env.unwrap_or_default(), cwd: Some(cwd), files })
        }
        (None, Some(entry)) => {
            for key in ["env", "cwd", "files"] {
                needs(key, "command");
            }
            let url = server.url.take()?;
            if !url.starts_with("http://") && !url.starts_with("https://") {
                let message =
                    format!("`{}` should start with http:// or https://, found \"{url}\"", entry.path);
                return reader.wrong(entry, Part::Value, message, None);
            }
            let secrets = secret::query(&url)
                .filter_map(|(name, value)| Some((name, secret::substitute(name, value)?)));
            for (name, Substitute { text, variable }) in secrets {
                let message = format!("`{}` holds a secret in `{name}`", entry.path);
                let hint = format!("write `{name}={text}` and {}", export_it(&variable));
                reader.wrong_secret::<()>(entry, message, hint);
            }
            if let Err(cause) = has_reference(&url) {
                return reader.wrong_secret(entry, format!("`{}` {cause}", entry.path), cause.hint());
            }
            check_values(reader, fields.get("headers"))?;
            let token = token(reader, fields, &mut server)?;
            Some(Transport::Http { url, token, headers: server.headers.unwrap_or_default() })
        }
        (Some(_), Some(url)) => {
            reader.wrong(url, Part::Key, "a server has a `command` or a `url`, not both", None)
        }
        (None, None) => {
            let hint = "for example `command = [\"./your-server\", \"--stdio\"]`".to_owned();
            let message = format!("`{}` needs a `command` or a `url`", entry.path);
            reader.wrong(entry, Part::Key, message, Some(hint))
        }
    }
}

fn sandbox(reader: &Reader, fields: &Fields<'_>, server: &Server) -> Option<Sandbox> {
    let Some(entry) = fields.get("sandbox") else {
        for key in ["sandbox_network", "sandbox_write"] {
            if let Some(stray) = fields.get(key) {
                let hint = format!("add `sandbox = \"{BWRAP}\"`");
                reader.wrong::<()>(stray, Part::Key, format!("`{key}` needs `sandbox`"), Some(hint));
            }
        }
        return None;
    };
    match server.sandbox.as_deref() {
        Some(BWRAP) if fields.contains_key("url") => {
            let hint =
                "a server at a `url` is not started by mcprl, so it runs outside the sandbox".to_owned();
            reader.wrong(entry, Part::Key, "`sandbox` needs a `command`", Some(hint))
        }
        Some(BWRAP) => {
            let folder = fields.get("sandbox_write").unwrap_or(entry).folder();
            let home = std::env::home_dir();
            let path = |name: &String| match (name.strip_prefix("~/"), &home) {
                (Some(inner), Some(home)) => home.join(inner),
                _ => folder.join(name),
            };
            let names = || server.sandbox_write.iter().flatten();
            if let Some(missing) = names().find(|name| !path(name).exists() && server.replay.is_none()) {
                let list = fields.get("sandbox_write")?;
                let message = format!("`{}` names \"{missing}\", which does not exist", list.path);
                return reader.wrong(list, Part::Value, message, None);
            }
            let write = names().map(path).collect();
            Some(Sandbox { network: server.sandbox_network.unwrap_or_default(), write })
        }
        Some(found) => {
            let message = format!("`{}` should be \"{BWRAP}\", found \"{found}\"", entry.path);
            reader.wrong(entry, Part::Value, message, None)
        }
        // A value of another type is a mistake already.
        None => None,
    }
}

/// Where the bearer token comes from.
fn token(reader: &Reader, fields: &Fields<'_>, server: &mut Server) -> Option<Token> {
    let mut given = ["bearer_env", "bearer_file", "oauth"].into_iter().filter_map(|key| fields.get(key));
    if let (Some(_), Some(second)) = (given.next(), given.next()) {
        let message = "a server has one of `bearer_env`, `bearer_file` and `oauth`";
        return reader.wrong(second, Part::Key, message, None);
    }
    let file = fields.get("bearer_file").zip(server.bearer_file.take());
    let file = file.map(|(entry, name)| Token::File(entry.folder().join(name)));
    let client = server.oauth.take().map(|OAuth { client_id, client_secret_env, scopes, issuer }| {
        Token::Client { id: client_id, secret_env: client_secret_env, scopes, issuer }
    });
    Some(server.bearer_env.take().map(Token::Env).or(file).or(client).unwrap_or_default())
}

/// The files and folders that identify the server, besides its command.
fn files(
    reader: &Reader,
    entry: Option<&Entry<'_>>,
    names: Vec<String>,
    folder: &Path,
) -> Option<Vec<PathBuf>> {
    if let (Some(missing), Some(entry)) = (names.iter().find(|name| !folder.join(name).exists()), entry) {
        let message = format!("`{}` names \"{missing}\", which does not exist", entry.path);
        return reader.wrong(entry, Part::Value, message, None);
    }
    Some(names.iter().map(|name| folder.join(name)).collect())
}

/// Notes values of `env` or `headers` that hold a secret or have an invalid variable reference.
fn check_values(reader: &Reader, table: Option<&Entry<'_>>) -> Option<()> {
    let mut all_well = Some(());
    for (name, entry) in table.and_then(Entry::fields).into_iter().flatten() {
        let Some(text) = entry.text() else { continue };
        all_well = match (secret::substitute(name, text), has_reference(text)) {
            (Some(Substitute { text, variable }), _) => {
                let message = format!("`{}` holds a secret", entry.path);
                let hint = format!("write `{name} = \"{text}\"` and {}", export_it(&variable));
                reader.wrong_secret::<()>(&entry, message, hint)
            }
            (None, Err(cause)) => {
                let message = format!("`{}` {cause}", entry.path);
                reader.wrong_secret::<()>(&entry, message, cause.hint())
            }
            (None, Ok(_)) => continue,
        };
    }
    all_well
}

fn export_it(variable: &str) -> String {
    format!("export {variable}: every run keeps a copy of its run file")
}

const STATES: [&str; 5] = ["read-only", "fresh-process", "fresh-session", "reset-tool", "snapshot-dir"];
/// What `init` writes in place of one. Nobody has to be told of it by a mistake.
const UNCONFIRMED: &str = "unconfirmed";

/// The values of `state` in the schema.
fn states() -> Vec<&'static str> {
    STATES.into_iter().chain([UNCONFIRMED]).collect()
}

fn state(reader: &Reader, entry: &Entry<'_>, fields: &Fields<'_>, server: &Server) -> Option<State> {
    let (given, reset_tool) = (fields.get("state"), fields.get("reset_tool"));
    let is_played = fields.contains_key("replay");
    let url = fields.get("url").filter(|_| !fields.contains_key("command"));
    let named = match given {
        Some(_) => server.state.as_deref()?,
        None if reset_tool.is_some() => "reset-tool",
        None if fields.contains_key("snapshot") => "snapshot-dir",
        None if fields.contains_key("before_episode") && url.is_some() => "fresh-session",
        None if fields.contains_key("before_episode") => "fresh-process",
        // Nobody has said what calls of its command change.
        None if url.is_none() && !is_played => UNCONFIRMED,
        None => "fresh-process",
    };
    if let Some(snapshot) = fields.get("snapshot").filter(|_| named != "snapshot-dir") {
        return reader.wrong(snapshot, Part::Key, "`snapshot` needs state \"snapshot-dir\"", None);
    }
    if named != "snapshot-dir" && server.uses_copy() && !is_played {
        let hint =
            "snapshot = \"folder\" copies a folder for each episode, and the copy takes its place".to_owned();
        let message = format!("`{PLACEHOLDER}` needs state \"snapshot-dir\"");
        return reader.wrong(given.unwrap_or(entry), Part::Key, message, Some(hint));
    }
    match (named, reset_tool) {
        ("snapshot-dir", None) => snapshot(reader, given.unwrap_or(entry), fields, server),
        ("reset-tool", Some(_)) => Some(State::ResetTool(server.reset_tool.clone()?)),
        ("reset-tool", None) => reader.wrong(
            given.unwrap_or(entry),
            Part::Key,
            "state \"reset-tool\" needs `reset_tool`",
            Some("reset_tool = \"reset\" names the tool that restores the initial state".into()),
        ),
        (known, Some(tool)) if states().contains(&known) => {
            reader.wrong(tool, Part::Key, "`reset_tool` needs state \"reset-tool\"", None)
        }
        ("read-only", None) => Some(State::ReadOnly),
        (UNCONFIRMED, None) => Some(State::Unconfirmed),
        ("fresh-process", None) => match (url, given) {
            (None, _) => Some(State::FreshProcess),
            (Some(url), None) => {
                reader.wrong(url, Part::Key, "a server at a `url` needs a `state`", Some(ways_at_a_url()))
            }
            (Some(_), Some(given)) => {
                let message =
                    "state \"fresh-process\" needs a `command`: a server at a `url` is not started by mcprl";
                reader.wrong(given, Part::Value, message, Some(ways_at_a_url()))
            }
        },
        ("fresh-session", None) if url.is_some() || is_played => Some(State::FreshProcess),
        ("fresh-session", None) => {
            let hint = "state = \"fresh-process\" starts the `command` again for every episode".to_owned();
            reader.wrong(given?, Part::Value, "state \"fresh-session\" needs a `url`", Some(hint))
        }
        (other, _) => {
            let given = given?;
            let states = STATES.join(", ");
            let message = format!("`{}` should be one of {states}, found \"{other}\"", given.path);
            let hint = suggest(&other.to_lowercase().replace(['_', ' '], "-"), STATES);
            reader.wrong(given, Part::Value, message, hint)
        }
    }
}

/// The commands around an episode, which needs a session of its own for them.
fn around(
    reader: &Reader,
    entry: &Entry<'_>,
    fields: &Fields<'_>,
    server: &mut Server,
    state: Option<&State>,
) -> Option<[Vec<String>; 2]> {
    let is_own = matches!(state?, State::FreshProcess | State::SnapshotDir(_));
    let hint = || Some("state = \"fresh-process\", and with a `url` \"fresh-session\", is one".to_owned());
    if server.uses_name() && !is_own {
        let message = format!("`{SESSION}` needs a session for each episode");
        return reader.wrong(fields.get("state").unwrap_or(entry), Part::Key, message, hint());
    }
    let mut commands =
        [server.before_episode.take(), server.after_episode.take()].map(Option::unwrap_or_default);
    for (key, words) in ["before_episode", "after_episode"].into_iter().zip(&mut commands) {
        let Some(entry) = fields.get(key) else { continue };
        if !is_own {
            let message = format!("`{key}` needs a session for each episode");
            return reader.wrong(entry, Part::Key, message, hint());
        }
        let Some(program) = words.first_mut().filter(|program| !program.is_empty()) else {
            return reader.wrong(entry, Part::Value, format!("`{}` is empty", entry.path), None);
        };
        // A server at a `url` has no folder of its own.
        if fields.contains_key("url") && program.contains('/') {
            *program = entry.folder().join(&*program).to_string_lossy().into_owned();
        }
    }
    let is_shared = !commands[0].is_empty() && !server.uses_name() && !server.uses_copy();
    if is_shared && server.sessions != Some(1) {
        let entry = fields.get("before_episode")?;
        let message = format!(
            "no setting of the server has `{SESSION}`, so all sessions share what `before_episode` sets up"
        );
        let hint = "write `{session}` where the server takes its database or folder, such as in `env`; or set `sessions = 1`, if the \
                    command restores what all share";
        return reader.wrong(entry, Part::Key, message, Some(hint.into()));
    }
    // Nothing is started where a cassette is played.
    Some(if fields.contains_key("replay") { Default::default() } else { commands })
}

fn snapshot(reader: &Reader, place: &Entry<'_>, fields: &Fields<'_>, server: &Server) -> Option<State> {
    let (Some(entry), Some(name)) = (fields.get("snapshot"), &server.snapshot) else {
        let hint = "snapshot = \"folder\" names the folder to copy".to_owned();
        return reader.wrong(place, Part::Key, "state \"snapshot-dir\" needs `snapshot`", Some(hint));
    };
    if let Some(url) = fields.get("url") {
        let message = "state \"snapshot-dir\" needs a `command`";
        return reader.wrong(url, Part::Key, message, Some(ways_at_a_url()));
    }
    let template = entry.folder().join(name);
    if fields.contains_key("replay") {
        return Some(State::SnapshotDir(template));
    }
    if !template.is_dir() {
        let message = format!("`{}` names \"{name}\", which is not a folder", entry.path);
        return reader.wrong(entry, Part::Value, message, None);
    }
    if !server.uses_copy() {
        let hint =
            format!("write `{PLACEHOLDER}` in `command`, `env` or `cwd` where the server takes the folder");
        return reader.wrong(entry, Part::Key, "no setting uses the copy of `snapshot`", Some(hint));
    }
    Some(State::SnapshotDir(template))
}

/// Ways to isolate episodes on a server that mcprl does not start.
fn ways_at_a_url() -> String {
    "use \"fresh-session\" if every session starts clean, \"read-only\" if calls change nothing, or \"reset-tool\" with a \
     `reset_tool`"
        .into()
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

/// The names of [`SplitMode`](crate::engine::SplitMode).
const SPLITS: [&str; 2] = ["batches", "layers"];

/// Parses `[engine]`.
pub fn engine(reader: &Reader, entry: &Entry<'_>) -> Option<EngineSpec> {
    let engine = reader.read::<EngineSpec>(entry)?;
    if let Some(devices) = entry.field("devices") {
        check_devices(reader, &devices, &engine.devices);
    }
    let split = entry.field("split").and_then(|entry| Some((entry.clone(), reader.text(&entry)?)));
    if let Some((entry, text)) = split.filter(|(_, text)| !SPLITS.contains(text)) {
        let message = format!("`engine.split` should be \"batches\" or \"layers\", found \"{text}\"");
        let hint = did_you_mean(text, SPLITS).map(|meant| format!("did you mean \"{meant}\"?"));
        reader.wrong::<()>(&entry, Part::Value, message, hint);
    }
    let dtype = entry.field("dtype").filter(|_| engine.dtype.is_none());
    if let Some((entry, text)) = dtype.and_then(|entry| Some((entry.clone(), reader.text(&entry)?))) {
        let message =
            format!("`engine.dtype` should be \"f32\", \"f16\", \"bf16\" or \"nf4\", found \"{text}\"");
        let hint = meant_dtype(text).map(|meant| format!("did you mean \"{meant}\"?"));
        reader.wrong::<()>(&entry, Part::Value, message, hint);
    }
    Some(engine)
}

fn check_devices(reader: &Reader, entry: &Entry<'_>, devices: &[String]) {
    let known = |device: &String| {
        device == "cpu" || device.strip_prefix("cuda:").is_some_and(|index| index.parse::<u16>().is_ok())
    };
    let wrong = |message: &str| _ = reader.wrong::<()>(entry, Part::Value, message.to_owned(), None);
    if devices.is_empty() || !devices.iter().all(known) {
        return wrong("`engine.devices` should list \"cpu\" or \"cuda:0\", \"cuda:1\", …");
    }
    let cpus = devices.iter().filter(|device| *device == "cpu").count();
    let distinct = devices.iter().collect::<BTreeSet<_>>().len();
    if cpus < devices.len() && (cpus > 0 || distinct < devices.len()) {
        wrong("`engine.devices` should name each CUDA device once, without \"cpu\"");
    }
}
