//! Checks of a server's configuration that neither start nor contact it.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, access},
    io::Errno,
};

use super::{
    BWRAP, Cassette, McpError, ServerSpec, State, Transport, http, process,
    scratch::{Places, SHOWN_NAME},
};

/// Finds a program by its path, relative to `cwd`, or by its name on `PATH`.
///
/// # Errors
/// The same as starting it gives: it does not exist or is not executable.
pub fn find_program(program: &str, cwd: Option<&Path>) -> io::Result<()> {
    let candidates: Vec<PathBuf> = if program.contains('/') {
        vec![cwd.unwrap_or(Path::new(".")).join(program)]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|folder| folder.join(program)).collect()
    };
    let mut found = candidates.iter().filter(|path| path.is_file()).map(|path| access(path, Access::EXEC_OK));
    match (found.next(), found.any(|other| other.is_ok())) {
        (Some(Ok(())), _) | (_, true) => Ok(()),
        (Some(Err(_)), false) => Err(Errno::ACCESS.into()),
        (None, _) => Err(Errno::NOENT.into()),
    }
}

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

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_program_is_found_as_starting_it_would_find_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("server.sh");
        let find = |program: &str| find_program(program, Some(folder.path())).map_err(|cause| cause.kind());
        assert_eq!(find("./server.sh"), Err(io::ErrorKind::NotFound));
        fs::write(&file, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find("./server.sh"), Err(io::ErrorKind::PermissionDenied));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find("./server.sh"), Ok(()));
        assert_eq!(find("server.sh"), Err(io::ErrorKind::NotFound), "a bare name is searched on PATH only");
        assert_eq!(find("sh"), Ok(()));
        assert_eq!(find("./"), Err(io::ErrorKind::NotFound), "a folder is not a program");
    }
}
