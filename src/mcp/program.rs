//! Whether a server could be reached from here, as far as that can be told without starting or asking it.

use std::{io, path::Path};

use super::{McpError, ServerSpec, Transport, http, process};

/// Whether a program is there: by its path, or by its name on `PATH`.
///
/// A relative path starts at `cwd`.
pub fn program_is_there(program: &str, cwd: Option<&Path>) -> bool {
    if program.contains('/') {
        return cwd.unwrap_or(Path::new(".")).join(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

impl ServerSpec {
    /// Whether its program, the folder it works in and the variables it needs are there, or its address can be one.
    ///
    /// # Errors
    /// As connecting to it would give.
    pub fn check(&self) -> Result<(), McpError> {
        match &self.transport {
            Transport::Stdio { cwd, .. } => {
                let command = process::command(&self.transport)?;
                let program = command.as_std().get_program().to_string_lossy().into_owned();
                if program_is_there(&program, cwd.as_deref()) && cwd.as_ref().is_none_or(|cwd| cwd.is_dir()) {
                    return Ok(());
                }
                let source = io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error());
                Err(McpError::Spawn { server: self.transport.to_string(), source })
            }
            Transport::Http { url, bearer_env, headers } => {
                http::secrets(url, bearer_env.as_deref(), headers).map(drop)
            }
        }
    }
}
