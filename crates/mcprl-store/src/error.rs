use std::{
    io::{Error, ErrorKind},
    path::PathBuf,
};

use mcprl_base::error::Diagnostic;

/// An error of the store.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "store")]
pub enum StoreError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: Error },
    #[error("no space left while writing {path}")]
    #[hint = "finished results are kept: free some space, or choose another cache with `--cache DIR`"]
    Full { path: PathBuf },
    #[error("the cache cannot be written: {path}")]
    #[hint = "choose another cache with `--cache DIR` or `MCPRL_CACHE`"]
    ReadOnly { path: PathBuf, source: Error },
    #[error("the cache {root} is not a folder")]
    #[diagnostic(class = usage)]
    #[hint = "choose another cache with `--cache DIR` or `MCPRL_CACHE`"]
    NotAFolder { root: PathBuf },
    #[error("the cache {root} has layout {found}, this mcprl knows layouts up to {known}")]
    #[hint = "update mcprl, or choose another cache with `--cache DIR`"]
    Version { root: PathBuf, found: String, known: u32 },
    #[error("output holds {path}, which is neither a file nor a folder")]
    #[diagnostic(code = "special_file")]
    #[hint = "outputs may contain only plain files and folders"]
    Special { path: PathBuf },
    #[error("output holds {path:?}, whose name is not UTF-8")]
    Name { path: PathBuf },
    #[error("artifact {digest} is not in the cache")]
    #[hint = "run the same file again to make it"]
    Absent { digest: String },
    #[error("{root} is not a cache")]
    #[hint = "a cache or an export contains a file `version`"]
    NotAStore { root: PathBuf },
    #[error("artifact {digest} in {root} is damaged: its content does not match its digest")]
    #[hint = "`mcprl cache verify` quarantines damaged artifacts; the next run makes them again"]
    Corrupt { root: PathBuf, digest: String },
    #[error("cannot read {path}, which a run needs")]
    #[diagnostic(code = "unreadable_record")]
    #[hint = "nothing was removed; `mcprl cache verify` quarantines it, and `mcprl resume` makes the result again"]
    Unreadable { path: PathBuf },
    #[error("cannot read {path}, by which the results of a run are kept: {problem}")]
    #[hint = "nothing was removed; restore it, or let `mcprl resume {run}` write it again; to give up the results of the \
        run, remove its folder"]
    UnreadableRun { path: PathBuf, run: String, problem: String },
    #[error("cannot read the runs")]
    #[diagnostic(code = "unreadable_run")]
    #[hint = "nothing was removed; make the folder readable and run it again"]
    UnreadableRuns { source: Box<StoreError> },
    #[error("another `mcprl cache gc` is running on this cache")]
    #[hint = "wait until it has finished"]
    Sweeping,
    #[error("another process took over this stage")]
    #[hint = "its result is used instead; run the same file again"]
    LeaseLost,
    #[error("the shared cache {remote} cannot be reached: {problem}")]
    #[diagnostic(code = "remote_unreachable")]
    #[hint = "the run continues with the local cache"]
    Unreachable { remote: String, problem: String },
    #[error("the shared cache {remote} denies access: {problem}")]
    #[diagnostic(code = "remote_refused")]
    #[hint = "if access is read-only, set `push = false` under [cache]; S3 needs `s3:GetObject`, \
        `s3:PutObject` and `s3:ListBucket`"]
    Refused { remote: String, problem: String },
}

impl StoreError {
    pub fn reading(path: impl Into<PathBuf>, source: Error) -> Self {
        Self::Read { path: path.into(), source }
    }

    /// Distinguishes a full disk and a read-only path from other failures.
    pub fn writing(path: impl Into<PathBuf>, source: Error) -> Self {
        let path = path.into();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Self::Full { path }
            }
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => Self::ReadOnly { path, source },
            _ => Self::Write { path, source },
        }
    }
}
