//! How the server is reached.

use std::path::{Path, PathBuf};

use super::{ServerSection, table::OAuth};
use crate::{
    mcp::{BWRAP, PLACEHOLDER, Sandbox, Token, Transport},
    plan::layers::Entry,
    reference::has_reference,
    secret::{self, Substitute},
};

impl ServerSection<'_, '_> {
    pub(super) fn transport(&self) -> Option<Transport> {
        let only_with = |with: &str, keys: &[&str]| {
            for (key, stray) in keys.iter().filter_map(|key| Some((key, self.at(key)?))) {
                self.wrong_key::<()>(stray, format!("`{key}` needs `{with}`"), None);
            }
        };
        match (self.at("command"), self.at("url")) {
            (Some(command), None) => {
                only_with("url", &["bearer_env", "bearer_file", "oauth", "headers"]);
                self.started(command)
            }
            (None, Some(url)) => {
                only_with("command", &["env", "cwd", "files"]);
                self.reached(url)
            }
            (Some(_), Some(url)) => {
                self.wrong_key(url, "a server has a `command` or a `url`, not both", None)
            }
            (None, None) => {
                let hint = "for example `command = [\"./your-server\", \"--stdio\"]`".to_owned();
                let message = format!("`{}` needs a `command` or a `url`", self.entry.path);
                self.wrong_key(self.entry, message, Some(hint))
            }
        }
    }

    /// A server that is started by its command.
    fn started(&self, entry: &Entry<'_>) -> Option<Transport> {
        let command = self.table.command.clone()?;
        if command.first().is_none_or(String::is_empty) {
            return self.wrong_value(entry, format!("`{}` is empty", entry.path), None);
        }
        self.check_values("env")?;
        let of = |key: &str| self.at(key).unwrap_or(entry).folder();
        let files = self.files(&of("files"))?;
        let cwd = match &self.table.cwd {
            Some(cwd) if cwd.starts_with(PLACEHOLDER) => PathBuf::from(cwd),
            Some(cwd) => of("cwd").join(cwd),
            None => entry.folder(),
        };
        let env = self.table.env.clone().unwrap_or_default();
        Some(Transport::Stdio { command, env, cwd: Some(cwd), files })
    }

    /// A server at a URL.
    fn reached(&self, entry: &Entry<'_>) -> Option<Transport> {
        let url = self.table.url.clone()?;
        if !url.starts_with("http://") && !url.starts_with("https://") {
            let message = format!("`{}` should start with http:// or https://, found \"{url}\"", entry.path);
            return self.wrong_value(entry, message, None);
        }
        let secrets =
            secret::query(&url).filter_map(|(name, value)| Some((name, secret::substitute(name, value)?)));
        for (name, Substitute { text, variable }) in secrets {
            let message = format!("`{}` holds a secret in `{name}`", entry.path);
            let hint = format!("write `{name}={text}` and {}", export_it(&variable));
            self.reader.wrong_secret::<()>(entry, message, hint);
        }
        if let Err(cause) = has_reference(&url) {
            return self.reader.wrong_secret(entry, format!("`{}` {cause}", entry.path), cause.hint());
        }
        self.check_values("headers")?;
        let headers = self.table.headers.clone().unwrap_or_default();
        Some(Transport::Http { url, token: self.token()?, headers })
    }

    /// The cassette that takes the place of the server. Settings of the server stay, so that it can be recorded again.
    pub(super) fn cassette(&self, entry: &Entry<'_>) -> Option<Transport> {
        let name = self.table.replay.as_ref()?;
        if let Some(record) = self.at("record") {
            return self.wrong_key(record, "a server has `record` or `replay`, not both", None);
        }
        for table in ["env", "headers"] {
            self.check_values(table)?;
        }
        let path = entry.folder().join(name);
        if !path.is_file() {
            let message = format!("`{}` names \"{name}\", which does not exist", entry.path);
            let hint = format!("`record = \"{name}\"` records it in a run on the live server");
            return self.wrong_value(entry, message, Some(hint));
        }
        Some(Transport::Cassette(path))
    }

    pub(super) fn sandbox(&self) -> Option<Sandbox> {
        let Some(entry) = self.at("sandbox") else {
            for key in ["sandbox_network", "sandbox_write"] {
                if let Some(stray) = self.at(key) {
                    let hint = format!("add `sandbox = \"{BWRAP}\"`");
                    self.wrong_key::<()>(stray, format!("`{key}` needs `sandbox`"), Some(hint));
                }
            }
            return None;
        };
        match self.table.sandbox.as_deref() {
            Some(BWRAP) if self.at("url").is_some() => {
                let hint =
                    "a server at a `url` is not started by mcprl, so it runs outside the sandbox".to_owned();
                self.wrong_key(entry, "`sandbox` needs a `command`", Some(hint))
            }
            Some(BWRAP) => {
                let folder = self.at("sandbox_write").unwrap_or(entry).folder();
                let home = std::env::home_dir();
                let path = |name: &String| match (name.strip_prefix("~/"), &home) {
                    (Some(inner), Some(home)) => home.join(inner),
                    _ => folder.join(name),
                };
                let names = || self.table.sandbox_write.iter().flatten();
                if let Some(missing) =
                    names().find(|name| !path(name).exists() && self.table.replay.is_none())
                {
                    let list = self.at("sandbox_write")?;
                    let message = format!("`{}` names \"{missing}\", which does not exist", list.path);
                    return self.wrong_value(list, message, None);
                }
                let write = names().map(path).collect();
                Some(Sandbox { network: self.table.sandbox_network.unwrap_or_default(), write })
            }
            Some(found) => {
                let message = format!("`{}` should be \"{BWRAP}\", found \"{found}\"", entry.path);
                self.wrong_value(entry, message, None)
            }
            // A value of another type is a mistake already.
            None => None,
        }
    }

    /// Where the bearer token comes from.
    fn token(&self) -> Option<Token> {
        let mut given = ["bearer_env", "bearer_file", "oauth"].into_iter().filter_map(|key| self.at(key));
        if let (Some(_), Some(second)) = (given.next(), given.next()) {
            let message = "a server has one of `bearer_env`, `bearer_file` and `oauth`";
            return self.wrong_key(second, message, None);
        }
        let file = self.at("bearer_file").zip(self.table.bearer_file.clone());
        let file = file.map(|(entry, name)| Token::File(entry.folder().join(name)));
        let client =
            self.table.oauth.clone().map(|OAuth { client_id, client_secret_env, scopes, issuer }| {
                Token::Client { id: client_id, secret_env: client_secret_env, scopes, issuer }
            });
        Some(self.table.bearer_env.clone().map(Token::Env).or(file).or(client).unwrap_or_default())
    }

    /// The files and folders in `folder` that identify the server, besides its command.
    fn files(&self, folder: &Path) -> Option<Vec<PathBuf>> {
        let names = self.table.files.as_deref().unwrap_or_default();
        if let Some(missing) = names.iter().find(|name| !folder.join(name).exists()) {
            let entry = self.at("files")?;
            let message = format!("`{}` names \"{missing}\", which does not exist", entry.path);
            return self.wrong_value(entry, message, None);
        }
        Some(names.iter().map(|name| folder.join(name)).collect())
    }

    /// Notes values of `env` or `headers` that hold a secret or have an invalid variable reference.
    fn check_values(&self, table: &str) -> Option<()> {
        let mut all_well = Some(());
        for (name, entry) in self.at(table).and_then(Entry::fields).into_iter().flatten() {
            let Some(text) = entry.text() else { continue };
            all_well = match (secret::substitute(name, text), has_reference(text)) {
                (Some(Substitute { text, variable }), _) => {
                    let message = format!("`{}` holds a secret", entry.path);
                    let hint = format!("write `{name} = \"{text}\"` and {}", export_it(&variable));
                    self.reader.wrong_secret::<()>(&entry, message, hint)
                }
                (None, Err(cause)) => {
                    let message = format!("`{}` {cause}", entry.path);
                    self.reader.wrong_secret::<()>(&entry, message, cause.hint())
                }
                (None, Ok(_)) => continue,
            };
        }
        all_well
    }
}

fn export_it(variable: &str) -> String {
    format!("export {variable}: every run keeps a copy of its run file")
}
