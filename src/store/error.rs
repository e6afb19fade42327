use std::{
    io::{Error, ErrorKind},
    path::PathBuf,
};

use crate::error::{Class, Diagnostic};

/// An error of the store.
#[derive(Debug, thiserror::Error)]
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
    Special { path: PathBuf },
    #[error("output holds {path:?}, whose name is not UTF-8")]
    Name { path: PathBuf },
    #[error("artifact {digest} is not in the cache")]
    Absent { digest: String },
    #[error("{root} is not a cache")]
    NotAStore { root: PathBuf },
    #[error("artifact {digest} in {root} is damaged: its bytes are not those it is named after")]
    Corrupt { root: PathBuf, digest: String },
    #[error("{path} cannot be read, and a run needs what it names")]
    Unreadable { path: PathBuf },
    #[error("another `mcprl cache gc` is at work on this cache")]
    Sweeping,
    #[error("another process took over this stage")]
    LeaseLost,
    #[error("the shared cache {remote} cannot be reached: {problem}")]
    Unreachable { remote: String, problem: String },
    #[error("the shared cache {remote} refuses: {problem}")]
    Refused { remote: String, problem: String },
}

impl StoreError {
    pub(super) fn reading(path: impl Into<PathBuf>, source: Error) -> Self {
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
        match self {
            Self::Read { .. } => "store::read",
            Self::Write { .. } => "store::write",
            Self::Full { .. } => "store::full",
            Self::ReadOnly { .. } => "store::read_only",
            Self::NotAFolder { .. } => "store::not_a_folder",
            Self::Version { .. } => "store::version",
            Self::Special { .. } => "store::special_file",
            Self::Name { .. } => "store::name",
            Self::Absent { .. } => "store::absent",
            Self::NotAStore { .. } => "store::not_a_store",
            Self::Corrupt { .. } => "store::corrupt",
            Self::Unreadable { .. } => "store::unreadable_record",
            Self::Sweeping => "store::sweeping",
            Self::LeaseLost => "store::lease_lost",
            Self::Unreachable { .. } => "store::remote_unreachable",
            Self::Refused { .. } => "store::remote_refused",
        }
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
                "nothing finished is lost: free some space, or choose another place with `--cache DIR`".into()
            }
            Self::ReadOnly { .. } | Self::NotAFolder { .. } => {
                "choose another place with `--cache DIR` or `MCPRL_CACHE`".into()
            }
            Self::Version { .. } => "update mcprl, or choose another place with `--cache DIR`".into(),
            Self::Special { .. } => {
                "outputs are plain files and folders; links and devices are not kept".into()
            }
            Self::Absent { .. } => "run the same file again: what is missing is made anew".into(),
            Self::NotAStore { .. } => {
                "a cache, or what `mcprl cache export` wrote, holds a file `version`".into()
            }
            Self::Corrupt { .. } => {
                "`mcprl cache verify` sets aside what is damaged; a run makes it anew".into()
            }
            Self::Unreadable { .. } => {
                "nothing was removed: `mcprl cache verify` sets it aside, and `mcprl resume` makes the result anew".into()
            }
            Self::Sweeping => "wait until it is over".into(),
            Self::LeaseLost => "its result is used instead; run the same file again".into(),
            Self::Unreachable { .. } => "the run goes on with the local cache alone".into(),
            Self::Refused { .. } => {
                "with the right to read alone, set `push = false` under [cache]; S3 asks for `s3:GetObject`, \
                 `s3:PutObject` and `s3:ListBucket`"
                    .into()
            }
            Self::Read { .. } | Self::Write { .. } | Self::Name { .. } => return None,
        })
    }
}
