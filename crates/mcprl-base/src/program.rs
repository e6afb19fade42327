//! Finds programs without starting them.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, access},
    io::Errno,
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
