//! A server named on the command line: an address, a program, an entry of a client's `mcp.json`, or the server of a run file.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{locations::Locations, run_args::environment};
use crate::{
    document,
    error::{Diagnostic, Result, did_you_mean},
    mcp::{ServerSpec, Servers, State, Token, Transport},
    plan::{Overrides, Plan, RunFile, absolute},
    secret::{Substitute, hidden, query, substitute, variable_for},
    store::FileDigests,
};

#[derive(Args, Clone, Default)]
pub struct ServerArgs {
    /// The server: its URL, a client's `mcp.json`, a run file, or after `--` the command that starts it.
    #[arg(required = true, value_name = "URL | FILE | -- COMMAND")]
    server: Vec<String>,
    /// Which server of the file; of a URL or a command, its name in what is written.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Environment variable that holds the bearer token.
    #[arg(long, value_name = "VARIABLE")]
    bearer_env: Option<String>,
    /// HTTP header; `${VARIABLE}` is replaced.
    #[arg(long = "header", value_name = "NAME=VALUE")]
    headers: Vec<String>,
    /// Environment variable of the command; `${VARIABLE}` is replaced.
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Working directory of the command.
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "server_args", class = usage)]
pub enum ServerArgsError {
    #[error("`{option}` should be followed by NAME=VALUE")]
    #[diagnostic(code = "option")]
    #[hint = "for example `{option} API_TOKEN='${{API_TOKEN}}'`"]
    Pair { option: &'static str },
    #[error("`{option}` applies only to {to}")]
    #[diagnostic(code = "option")]
    Stray { option: &'static str, to: &'static str },
    #[error("cannot read {path}")]
    #[hint = "put `--` before a command: `-- ./my-server --stdio`"]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} names no server: {reason}")]
    #[hint("a run file has its server in [server] or [servers.NAME]" if has_extension(&path.to_string_lossy(), "toml"))]
    #[hint = "a client's configuration has an object `mcpServers` (or `servers`) of servers by name"]
    Config { path: PathBuf, reason: String },
    #[error("{path} has no server \"{name}\"")]
    #[diagnostic(code = "name")]
    #[hint("did you mean \"{near}\"?" if let Some(near) = did_you_mean(name, known.iter().map(String::as_str)))]
    #[hint(format!("it has: {}", known.join(", ")))]
    NoServer { path: PathBuf, name: String, known: Vec<String> },
    #[error("{path} has {} servers", known.len())]
    #[diagnostic(code = "name")]
    #[hint(format!("choose one with `--name`: {}; `init` takes all of them with `--all`", known.join(", ")))]
    ManyServers { path: PathBuf, known: Vec<String> },
    #[error("`{word}` is neither a URL nor a program")]
    #[diagnostic(code = "scheme")]
    #[hint = "write `http://{word}` or `https://{word}`"]
    NoScheme { word: String },
    #[error("server \"{name}\" of {path} has neither `command` nor `url`")]
    #[diagnostic(code = "transport")]
    NoTransport { path: PathBuf, name: String },
}

/// A server of a client's configuration.
#[derive(Deserialize)]
struct Entry {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, Value>,
    cwd: Option<PathBuf>,
    #[serde(alias = "serverUrl", alias = "httpUrl")]
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, Value>,
}

/// How to reach a server, and what to tell the user.
pub struct NamedServer {
    /// Its name in the configuration, or one made from its command or address.
    pub name: String,
    pub spec: ServerSpec,
    /// Whether a run file has its settings. Otherwise they are those of one session, which needs nothing to keep it apart.
    pub is_of_run_file: bool,
    /// Variables that replace literal secrets of the configuration. They must be exported.
    pub exports: Vec<String>,
}

impl NamedServer {
    fn new(name: String, transport: Transport, exports: Vec<String>) -> Self {
        Self { name, spec: ServerSpec::new(transport, State::ReadOnly), is_of_run_file: false, exports }
    }
}

impl ServerArgs {
    /// A server that these words name, in a file of several by its name.
    pub fn of(words: &[String], name: Option<&str>) -> Self {
        Self { server: words.to_vec(), name: name.map(str::to_owned), ..Self::default() }
    }

    /// One for each server of a client's configuration.
    ///
    /// # Errors
    /// If this is another server, or the file lists none.
    pub fn each(&self) -> Result<Vec<Self>, ServerArgsError> {
        let stray = |to| ServerArgsError::Stray { option: "--all", to };
        let [file] = self.server.as_slice() else { return Err(stray("a client's mcp.json")) };
        if !has_extension(file, "json") || self.name.is_some() {
            return Err(stray("a client's mcp.json without `--name`"));
        }
        let mut servers = config(Path::new(file))?;
        servers.retain(|_, entry| !is_off(entry));
        Ok(servers.keys().map(|name| Self { name: Some(name.clone()), ..self.clone() }).collect())
    }

    /// The server with literal secrets replaced by references to variables, except in the words of a command.
    pub fn without_secrets(&self) -> Result<NamedServer> {
        let mut server = self.resolve()?;
        let NamedServer { spec, exports, .. } = &mut server;
        let values = match &mut spec.transport {
            Transport::Stdio { env, .. } => Some(env),
            Transport::Http { url, headers, .. } => {
                *url = without_secrets(url, exports);
                Some(headers)
            }
            Transport::Cassette(_) => None,
        };
        for (name, value) in values.into_iter().flatten() {
            if let Some(Substitute { text, variable }) = substitute(name, value) {
                *value = text;
                exports.push(variable);
            }
        }
        Ok(server)
    }

    pub fn resolve(&self) -> Result<NamedServer> {
        let (env, headers) = (pairs("--env", &self.env)?, pairs("--header", &self.headers)?);
        let of_command = [("--env", !env.is_empty()), ("--cwd", self.cwd.is_some())];
        let of_url = [("--header", !headers.is_empty()), ("--bearer-env", self.bearer_env.is_some())];
        match self.server.as_slice() {
            [url] if is_url(url) => {
                only("a command", &of_command)?;
                let authority = url.split("://").nth(1).and_then(|rest| rest.split(['/', '?', '#']).next());
                let host = authority.map(|authority| authority.rsplit('@').next().unwrap_or(authority));
                let host = host.and_then(|host| host.split(':').next());
                let token = self.bearer_env.clone().map_or(Token::Stored, Token::Env);
                let transport = Transport::Http { url: url.clone(), token, headers };
                let name = self.name.clone().unwrap_or_else(|| slug(host.unwrap_or("server")));
                Ok(NamedServer::new(name, transport, Vec::new()))
            }
            [file] if has_extension(file, "json") || has_extension(file, "toml") => {
                only("a command or URL", &[of_command, of_url].concat())?;
                match has_extension(file, "toml") {
                    true => from_run_file(Path::new(file), self.name.as_deref()),
                    false => Ok(from_config(Path::new(file), self.name.as_deref())?),
                }
            }
            [word] if is_address(word) => Err(ServerArgsError::NoScheme { word: word.clone() }.into()),
            command => {
                only("a URL", &of_url)?;
                let name = self.name.clone().unwrap_or_else(|| program(command));
                let transport = Transport::Stdio {
                    command: command.to_vec(),
                    env,
                    cwd: self.cwd.clone(),
                    files: Vec::new(),
                };
                Ok(NamedServer::new(name, transport, Vec::new()))
            }
        }
    }
}

/// Programs that start another one, and their subcommands.
const LAUNCHERS: [&str; 17] = [
    "uvx",
    "uv",
    "pipx",
    "npx",
    "bunx",
    "pnpm",
    "dlx",
    "exec",
    "run",
    "tool",
    "python",
    "python3",
    "node",
    "deno",
    "env",
    "mcprl",
    "demo-server",
];

/// The name of the program that a command starts: `mcp-server-time` of `uvx mcp-server-time --local-timezone UTC`.
fn program(command: &[String]) -> String {
    let shown = hidden(command, |_| "-".into());
    let stem = |word: &str| Path::new(word).file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
    let mut words = shown.iter().filter(|word| !word.starts_with('-')).filter_map(|word| stem(word));
    let is_container = |word: &str| ["docker", "podman"].contains(&word);
    let name = match shown.first().and_then(|word| stem(word)).filter(|word| is_container(word)) {
        // Options with values stand before the image.
        Some(_) => words.next_back(),
        None => words.find(|word| !LAUNCHERS.contains(&word.as_str())),
    };
    slug(name.as_deref().unwrap_or("server"))
}

/// Refuses options that apply only to another kind of server.
fn only(to: &'static str, given: &[(&'static str, bool)]) -> Result<(), ServerArgsError> {
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(ServerArgsError::Stray { option, to }),
        None => Ok(()),
    }
}

/// Whether the word is the address of a server or of an endpoint.
pub fn is_url(word: &str) -> bool {
    word.starts_with("http://") || word.starts_with("https://")
}

/// Whether a word has the form `host:port` or `host:port/path`, and is no file.
fn is_address(word: &str) -> bool {
    let port = word.split('/').next().and_then(|host| host.split_once(':')).map(|(_, port)| port);
    port.is_some_and(|port| port.parse::<u16>().is_ok()) && !Path::new(word).exists()
}

fn has_extension(word: &str, wanted: &str) -> bool {
    Path::new(word).extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
}

/// The server of a run file, with its settings.
fn from_run_file(path: &Path, wanted: Option<&str>) -> Result<NamedServer> {
    let locations = Locations::default();
    let files = FileDigests::load(&locations.store(Some(path))?);
    let overrides = Overrides::new(environment(), Vec::new());
    let plan = Plan::new(&RunFile::read(path)?, &overrides, &locations.cards(Some(path)), &files)?;
    let mut servers = plan.servers.iter().flat_map(Servers::iter).peekable();
    if servers.peek().is_none() && wanted.is_none() {
        let reason = "it has no [server]".to_owned();
        return Err(ServerArgsError::Config { path: path.to_owned(), reason }.into());
    }
    let (name, spec) = chosen(path, wanted, servers)?;
    Ok(NamedServer { name: name.to_owned(), spec: spec.clone(), is_of_run_file: true, exports: Vec::new() })
}

/// The wanted server of a file, or its only one.
fn chosen<'s, T>(
    path: &Path,
    wanted: Option<&str>,
    servers: impl Iterator<Item = (&'s str, T)>,
) -> Result<(&'s str, T), ServerArgsError> {
    let mut servers: Vec<(&str, T)> = servers.collect();
    let (path, known) = (path.to_owned(), servers.iter().map(|(name, _)| (*name).to_owned()).collect());
    servers.retain(|(name, _)| wanted.is_none_or(|wanted| *name == wanted));
    match (servers.pop(), wanted) {
        (Some(found), _) if servers.is_empty() => Ok(found),
        (_, None) => Err(ServerArgsError::ManyServers { path, known }),
        (_, Some(name)) => Err(ServerArgsError::NoServer { path, name: name.to_owned(), known }),
    }
}

fn pairs(option: &'static str, given: &[String]) -> Result<BTreeMap<String, String>, ServerArgsError> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        // What was given instead may be a secret: `--header "Authorization: …"`.
        _ => Err(ServerArgsError::Pair { option }),
    };
    given.iter().map(pair).collect()
}

/// A name of lower-case letters, digits and dashes.
fn slug(text: &str) -> String {
    let letters = text.chars().map(|letter| match letter {
        letter if letter.is_ascii_alphanumeric() => letter.to_ascii_lowercase(),
        _ => '-',
    });
    let slug: String = letters.collect();
    let slug = slug.trim_matches('-');
    if slug.is_empty() { "server".to_owned() } else { slug.to_owned() }
}

/// The servers of a client's configuration; one or more.
fn config(path: &Path) -> Result<Map<String, Value>, ServerArgsError> {
    let bad = |reason: String| ServerArgsError::Config { path: path.to_owned(), reason };
    let text =
        document::read(path).map_err(|source| ServerArgsError::Read { path: path.to_owned(), source })?;
    let text = document::without_comments(&text);
    let file: Value = serde_json::from_str(&text).map_err(|cause| bad(cause.to_string()))?;
    let places = PLACES.iter().map(|place| file.pointer(place));
    let mut lists = places.filter_map(|list| list?.as_object());
    let is_list = |servers: &&Map<String, Value>| {
        !servers.is_empty()
            && servers
                .values()
                .all(|entry| entry.is_object() && !PLACES.iter().any(|place| entry.pointer(place).is_some()))
    };
    let servers = lists.find(is_list).ok_or_else(|| bad("it lists no servers".into()))?;
    Ok(servers.iter().map(|(name, entry)| (name.clone(), entry.clone())).collect())
}

/// Where the configurations of clients have their servers.
const PLACES: [&str; 6] =
    ["/mcpServers", "/servers", "/context_servers", "/mcp/servers", "/mcp/mcpServers", "/mcp"];

/// Folders in which clients have the configuration of the folder above.
const CLIENTS: [&str; 9] =
    [".amazonq", ".cursor", ".gemini", ".kilocode", ".kiro", ".mcp", ".roo", ".vscode", ".zed"];

/// Whether a client does not start this server.
fn is_off(entry: &Value) -> bool {
    entry["disabled"] == true || entry["enabled"] == false
}

/// An entry as most clients write it: null is absent, a command is a program with its arguments, and folders that a client knows
/// are paths.
fn usual(entry: &Value, config: &Path) -> Value {
    let mut entry = entry.clone();
    let Some(fields) = entry.as_object_mut() else { return entry };
    fields.retain(|_, value| !value.is_null());
    if let Some(env) = fields.remove("environment") {
        fields.entry("env").or_insert(env);
    }
    match fields.remove("command") {
        Some(Value::Array(mut words)) if !words.is_empty() => {
            fields.insert("command".into(), words.remove(0));
            let more = fields.remove("args").and_then(|args| args.as_array().cloned()).unwrap_or_default();
            fields.insert("args".into(), words.into_iter().chain(more).collect());
        }
        Some(Value::Object(command)) => {
            for (name, value) in command {
                let name = if name == "path" { "command".into() } else { name };
                fields.entry(name).or_insert(value);
            }
        }
        Some(other) => _ = fields.insert("command".into(), other),
        None => {}
    }
    let folder = absolute(config).parent().map(Path::to_owned).unwrap_or_default();
    let is_of_client = folder.file_name().is_some_and(|name| CLIENTS.iter().any(|client| name == *client));
    let folder = if is_of_client { folder.parent().map(Path::to_owned).unwrap_or_default() } else { folder };
    in_folder(&mut entry, &folder.display().to_string());
    entry
}

/// Replaces what clients write for folders.
fn in_folder(value: &mut Value, folder: &str) {
    match value {
        Value::String(text) => {
            for name in ["${workspaceFolder}", "${workspaceRoot}"] {
                *text = text.replace(name, folder);
            }
            if text.contains("${userHome}") {
                *text = text.replace("${userHome}", &std::env::var("HOME").unwrap_or_default());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| in_folder(item, folder)),
        Value::Object(fields) => fields.values_mut().for_each(|value| in_folder(value, folder)),
        _ => {}
    }
}

fn from_config(path: &Path, wanted: Option<&str>) -> Result<NamedServer, ServerArgsError> {
    let bad = |reason: String| ServerArgsError::Config { path: path.to_owned(), reason };
    let mut servers = config(path)?;
    // One that is asked for by its name is wanted all the same.
    servers.retain(|_, entry| wanted.is_some() || !is_off(entry));
    if servers.is_empty() {
        return Err(bad("all its servers are switched off; `--name` takes one of them".into()));
    }
    let (name, entry) = chosen(path, wanted, servers.iter().map(|(name, entry)| (name.as_str(), entry)))?;
    let entry =
        Entry::deserialize(usual(entry, path)).map_err(|cause| bad(format!("server \"{name}\": {cause}")))?;
    let mut exports = Vec::new();
    let mut values = |given: BTreeMap<String, Value>| -> BTreeMap<String, String> {
        let value = |(name, value): (String, Value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (name, reference(&text, &mut exports))
        };
        given.into_iter().map(value).collect()
    };
    let transport = match (entry.command, entry.url) {
        (Some(program), _) => Transport::Stdio {
            command: std::iter::once(program).chain(entry.args).map(|word| with_default(&word)).collect(),
            env: values(entry.env),
            cwd: entry.cwd,
            files: Vec::new(),
        },
        (None, Some(url)) => Transport::Http { url, token: Token::Stored, headers: values(entry.headers) },
        (None, None) => {
            return Err(ServerArgsError::NoTransport { path: path.to_owned(), name: name.to_owned() });
        }
    };
    Ok(NamedServer::new(slug(name), transport, exports))
}

/// A value of a client's configuration as one of a run file. Clients write `${env:NAME}`, `${input:NAME}` and
/// `${NAME:-default}` for what is `${NAME}` here, and other dollar signs as they are.
fn reference(value: &str, exports: &mut Vec<String>) -> String {
    let mut text = String::new();
    let mut rest = value;
    while let Some((before, inner)) = rest.split_once("${") {
        let Some((reference, behind)) = inner.split_once('}') else { break };
        text += &before.replace('$', "$$");
        let (bare, default) = match reference.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (reference, None),
        };
        let bare = bare.rsplit(':').next().unwrap_or(bare);
        if let Some(default) = default.filter(|_| std::env::var_os(bare).is_none()) {
            text += &default.replace('$', "$$");
            rest = behind;
            continue;
        }
        let variable = variable_for(bare);
        text += &format!("${{{variable}}}");
        if reference.starts_with("input:") {
            exports.push(variable);
        }
        rest = behind;
    }
    text + &rest.replace('$', "$$")
}

/// A word of a command with the values of `${NAME:-default}`, which the server gets as it is.
fn with_default(word: &str) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, inner)) = rest.split_once("${") {
        let Some((reference, behind)) = inner.split_once('}') else { break };
        text += before;
        match reference.split_once(":-") {
            Some((name, default)) => {
                let name = name.rsplit(':').next().unwrap_or(name);
                text += &std::env::var(name).unwrap_or_else(|_| default.to_owned());
            }
            None => text += &format!("${{{reference}}}"),
        }
        rest = behind;
    }
    text + rest
}

/// The URL with references instead of literal secrets in its query.
fn without_secrets(url: &str, exports: &mut Vec<String>) -> String {
    let mut text = url.to_owned();
    for (name, value) in query(url) {
        if let Some(Substitute { text: reference, variable }) = substitute(name, value) {
            text = text.replace(&format!("{name}={value}"), &format!("{name}={reference}"));
            exports.push(variable);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_client_become_references() {
        let check = |name: &str, value: &str, expected: &str, exported: &[&str]| {
            let mut exports = Vec::new();
            let mut text = reference(value, &mut exports);
            if let Some(Substitute { text: hidden, variable }) = substitute(name, &text) {
                text = hidden;
                exports.push(variable);
            }
            assert_eq!(text, expected, "{name}={value}");
            assert_eq!(exports, exported, "{name}={value}");
        };
        check("REGION", "eu", "eu", &[]);
        check("PRICE", "5 $", "5 $$", &[]);
        check("API_KEY", "${env:API_KEY}", "${API_KEY}", &[]);
        check("API_KEY", "${input:api-key}", "${API_KEY}", &["API_KEY"]);
        check("DATA", "${MCPRL_NO_SUCH:-/tmp}/x", "/tmp/x", &[]);
        check("DATA", "${env:PATH:-/tmp}/x", "${PATH}/x", &[]);
        assert_eq!(with_default("${MCPRL_NO_SUCH:-a}/${PATH}"), "a/${PATH}");
        check("API_KEY", "sk-123", "${API_KEY}", &["API_KEY"]);
        check("Authorization", "Bearer abc", "Bearer ${TOKEN}", &["TOKEN"]);
        let mut exports = Vec::new();
        let url = without_secrets("https://h/mcp?api_key=sk-1&page=2", &mut exports);
        assert_eq!(
            (url.as_str(), exports),
            ("https://h/mcp?api_key=${API_KEY}&page=2", vec!["API_KEY".into()])
        );
    }

    #[test]
    fn a_command_is_named_after_the_program_that_it_starts() {
        for (command, expected) in [
            ("uvx mcp-server-time --local-timezone Europe/Berlin", "mcp-server-time"),
            ("npx -y @modelcontextprotocol/server-filesystem /tmp/files", "server-filesystem"),
            ("/usr/bin/python3 server.py --db shop.sqlite", "server"),
            ("docker run -i --rm -e TOKEN ghcr.io/github/github-mcp-server", "github-mcp-server"),
            ("/opt/Shop-Server --port 1", "shop-server"),
            ("npx", "server"),
        ] {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(program(&words), expected, "{command}");
        }
    }

    #[test]
    fn a_server_is_chosen_from_a_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcp.json");
        let check = |text: &str, wanted: Option<&str>| {
            std::fs::write(&path, text).unwrap();
            from_config(&path, wanted)
        };
        let two = r#"{"mcpServers": {"Git Tools": {"command": "uvx", "args": ["mcp-git"], "env": {"N": 3}},
            "web": {"type": "http", "url": "https://h/mcp", "headers": {"X-Api-Key": "k"}}}}"#;
        let git = check(two, Some("Git Tools")).unwrap();
        assert_eq!(git.name, "git-tools");
        let env = BTreeMap::from([("N".to_owned(), "3".to_owned())]);
        let command = vec!["uvx".to_owned(), "mcp-git".to_owned()];
        assert_eq!(git.spec.transport, Transport::Stdio { command, env, cwd: None, files: Vec::new() });
        assert_eq!(check(two, Some("web")).unwrap().name, "web");
        let code = |text: &str, wanted| check(text, wanted).err().unwrap().code();
        assert_eq!(code(two, None), "server_args::name");
        assert_eq!(code(two, Some("wob")), "server_args::name");
        assert_eq!(code("[]", None), "server_args::config");
        assert_eq!(code("{\"servers\": {}}", None), "server_args::config");
        assert_eq!(code("{\"servers\": {\"a\": {}}}", None), "server_args::transport");
        assert_eq!(code("{\"mcp\": {}}", None), "server_args::config");
        let python = |text: &str| match check(text, None).unwrap().spec.transport {
            Transport::Stdio { command, env, .. } => (command.join(" "), env),
            other => panic!("{other:?}"),
        };
        for text in [
            "\u{feff}{ // of VS Code\n \"servers\": {\"a\": {\"command\": \"python3\", \"args\": [\"s.py\",],},}, }",
            r#"{"mcp": {"servers": {"a": {"command": "python3", "args": ["s.py"], "env": null, "url": null}}}}"#,
            r#"{"mcp": {"a": {"type": "local", "command": ["python3", "s.py"], "enabled": true}}}"#,
            r#"{"context_servers": {"a": {"source": "custom", "command": {"path": "python3", "args": ["s.py"]}}}}"#,
            r#"{"mcpServers": {"off": {"command": "x", "disabled": true}, "a": {"command": "python3", "args": ["s.py"]}}}"#,
        ] {
            assert_eq!(python(text).0, "python3 s.py", "{text}");
        }
        let (command, env) = python(
            r#"{"servers": {"a": {"command": "${workspaceFolder}/s", "environment": {"D": "${workspaceFolder}/d"}}}}"#,
        );
        let folder = folder.path().display();
        assert_eq!((command, env["D"].clone()), (format!("{folder}/s"), format!("{folder}/d")));
        assert_eq!(
            code(r#"{"servers": {"a": {"command": "x", "enabled": false}}}"#, None),
            "server_args::config"
        );
        assert!(check(r#"{"servers": {"a": {"command": "x", "enabled": false}}}"#, Some("a")).is_ok());
        let sse = "{\"servers\": {\"a\": {\"type\": \"sse\", \"url\": \"https://h/sse\"}}}";
        assert_eq!(check(sse, None).unwrap().spec.transport, Transport::http("https://h/sse"));
    }
}
