//! Tokens of servers: where those of logins are stored, and the one that a connection sends.

use std::path::PathBuf;

use parking_lot::Mutex;

/// What no text of a server may show: the bearer token of a connection, which may change, and the secret that gets one.
#[derive(Default)]
pub(super) struct Bearer {
    current: Mutex<Option<String>>,
    secret: Option<String>,
}

impl Bearer {
    pub(super) fn new(token: Option<String>, secret: Option<String>) -> Self {
        Self { current: Mutex::new(token), secret }
    }

    pub(super) fn token(&self) -> Option<String> {
        self.current.lock().clone()
    }

    pub(super) fn set(&self, token: String) {
        *self.current.lock() = Some(token);
    }

    pub(super) fn secrets(&self) -> impl Iterator<Item = String> {
        self.token().into_iter().chain(self.secret.clone())
    }
}

/// Why there is no token.
#[derive(Debug)]
pub(super) struct NoToken {
    pub(super) reason: String,
    pub(super) is_transient: bool,
}

/// Where tokens of logins are stored.
pub(super) fn token_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")))?;
    Some(data.join("mcprl/tokens"))
}
