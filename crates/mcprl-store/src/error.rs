use std::{
    io::{Error, ErrorKind},
    path::PathBuf,
};

use mcprl_base::error::{Class, Diagnostic};

/// An error of the store.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "store::", serialize_all = "snake_case")]
pub enum StoreError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: Error,
    },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: Error,
    },
    #[error("no space left while writing {path}")]
    Full { path: PathBuf },
    #[error("the cache cannot be written: {path}")]
    ReadOnly {
        path: PathBuf,
        #[source]
        source: Error,
    },
    #[error("the cache {root} is not a folder")]
    NotAFolder { root: PathBuf },
    #[error("the cache {root} has layout {found}, this mcprl knows layouts up to {known}")]
    Version { root: PathBuf, found: String, known: u32 },
    #[error("output holds {path}, which is neither a file nor a folder")]
    #[strum(serialize = "special_file")]
    Special { path: PathBuf },
    #[error("output holds {path:?}, whose name is not UTF-8")]
    Name { path: PathBuf },
    #[error("artifact {digest} is not in the cache")]
    Absent { digest: String },
    #[error("{root} is not a cache")]
    NotAStore { root: PathBuf },
    #[error("artifact {digest} in {root} is damaged: its content does not match its digest")]
    Corrupt { root: PathBuf, digest: String },
    #[error("cannot read {path}, which a run needs")]
    #[strum(serialize = "unreadable_record")]
    Unreadable { path: PathBuf },
    #[error("another `mcprl cache gc` is running on this cache")]
    Sweeping,
    #[error("another process took over this stage")]
    LeaseLost,
    #[error("the shared cache {remote} cannot be reached: {problem}")]
    #[strum(serialize = "remote_unreachable")]
    Unreachable { remote: String, problem: String },
    #[error("the shared cache {remote} denies access: {problem}")]
    #[strum(serialize = "remote_refused")]
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

impl Diagnostic for StoreError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn class(&self) -> Class {
        match self {
            Self::NotAFolder { .. } => Class::Usage,
            _ => Class::Work,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Full { .. } => {
                "finished results are kept: free some space, or choose another cache with `--cache DIR`".into()
            }
            Self::ReadOnly { .. } | Self::NotAFolder { .. } => {
                "choose another cache with `--cache DIR` or `MCPRL_CACHE`".into()
            }
            Self::Version { .. } => "update mcprl, or choose another cache with `--cache DIR`".into(),
            Self::Special { .. } => {
                "outputs may contain only plain files and folders".into()
            }
            Self::Absent { .. } => "run the same file again to make it".into(),
            Self::NotAStore { .. } => {
                "a cache or an export contains a file `version`".into()
            }
            Self::Corrupt { .. } => {
                "`mcprl cache verify` quarantines damaged artifacts; the next run makes them again".into()
            }
            Self::Unreadable { .. } => {
                "nothing was removed; `mcprl cache verify` quarantines it, and `mcprl resume` makes the result again".into()
            }
            Self::Sweeping => "wait until it has finished".into(),
            Self::LeaseLost => "its result is used instead; run the same file again".into(),
            Self::Unreachable { .. } => "the run continues with the local cache".into(),
            Self::Refused { .. } => {
                "if access is read-only, set `push = false` under [cache]; S3 needs `s3:GetObject`, \
                 `s3:PutObject` and `s3:ListBucket`"
                    .into()
            }
            Self::Read { .. } | Self::Write { .. } | Self::Name { .. } => return None,
        })
    }
}
