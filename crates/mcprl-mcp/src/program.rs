//! Checks of a server's configuration that neither start nor contact it.

use std::path::Path;

use mcprl_base::program::find_program;
use rustix::io::Errno;

use super::{
    BWRAP, Cassette, McpError, ServerSpec, State, Transport, http,
    places::{Places, SHOWN_NAME},
    process,
};

impl ServerSpec {
    /// Checks that the program, its working directory and the variables it needs exist, that its address is valid, or that
    /// its cassette can be read.
    ///
    /// # Errors
    /// The same as connecting to it gives.
    pub fn check(&self) -> Result<(), McpError> {
        match &self.transport {
            Transport::Stdio { .. } => {
                self.find(&self.transport)?;
                match self.limits.sandbox {
                    Some(_) => find_program(BWRAP, None).map_err(|_| McpError::NoSandbox),
                    None => Ok(()),
                }
            }
            Transport::Http { url, token, headers } => http::endpoint(url, token, headers).map(drop),
            Transport::Cassette(path) => Cassette::load(path)?.check(self),
        }?;
        let mut around =
            [&self.before_episode, &self.after_episode].into_iter().filter(|words| !words.is_empty());
        around.try_for_each(|words| self.find(&self.beside(words)))
    }

    /// Finds the program of a command of this server.
    fn find(&self, transport: &Transport) -> Result<(), McpError> {
        // Copies have the same files as their template.
        let folder = match &self.state {
            State::SnapshotDir(template) => Some(template.clone()),
            _ => None,
        };
        let command = process::command(transport, None, &Places { folder, name: SHOWN_NAME.into() })?;
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let cwd = command.as_std().get_current_dir().map(Path::to_owned);
        let found = match cwd.as_ref().is_none_or(|cwd| cwd.is_dir()) {
            true => find_program(&program, cwd.as_deref()),
            false => Err(Errno::NOENT.into()),
        };
        found.map_err(|source| McpError::Spawn { server: transport.to_string(), source })
    }
}
