//! The location of a remote: a folder, or a prefix in an S3 bucket.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{super::write, s3};

/// A location through which several machines share results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteLocation {
    /// On a file system that other machines mount too.
    Folder(PathBuf),
    S3 {
        bucket: String,
        /// Without leading and trailing slashes; may be empty.
        prefix: String,
    },
}

/// A remote and its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSpec {
    pub place: RemoteLocation,
    /// Whether to push finished results. Otherwise results are only fetched.
    pub push: bool,
}

/// Why a text names no remote, with a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidRemote {
    pub problem: String,
    pub hint: String,
}

impl RemoteLocation {
    /// Checks permissions without writing. A later write can still fail.
    pub fn may_be_writable(&self) -> bool {
        match self {
            Self::Folder(folder) => write::check(folder).is_ok(),
            Self::S3 { .. } => true,
        }
    }

    /// `s3://bucket/prefix`, `file:///path`, or a path. A relative path starts at `base`.
    pub fn parse(text: &str, base: &Path) -> Result<Self, InvalidRemote> {
        let forms = "a path, `file:///path` or `s3://bucket/prefix`";
        let wrong =
            |problem: &str, hint: &str| Err(InvalidRemote { problem: problem.into(), hint: hint.into() });
        if let Some(rest) = text.strip_prefix("s3://") {
            if !s3::BUILT {
                let hint =
                    "build with `cargo build --release --features s3`, or disable it: `--set cache.remote=`";
                return wrong("this build does not support S3", hint);
            }
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
            if bucket.len() < 3 || bucket.len() > 63 || !bucket.bytes().all(plain) {
                let hint =
                    "it looks like `s3://bucket/prefix`; keys and endpoint come from the AWS_* variables";
                return wrong("the bucket name is missing", hint);
            }
            let prefix = prefix.trim_matches('/');
            if prefix.bytes().any(|byte| byte == b'?' || byte == b'#' || byte.is_ascii_control())
                || prefix.split('/').any(|part| part == "." || part == "..")
            {
                return wrong("its prefix is not a plain path", "for example `s3://bucket/team/mcprl`");
            }
            return Ok(Self::S3 { bucket: bucket.into(), prefix: prefix.into() });
        }
        let path = match text.strip_prefix("file://") {
            Some(path) if path.starts_with('/') => path,
            Some(_) => {
                return wrong("a `file://` URL names no host", "for example `file:///mnt/shared/mcprl`");
            }
            None if text.contains("://") => {
                return wrong("the URL scheme is unknown", &format!("a remote is {forms}"));
            }
            None => text,
        };
        let path = base.join(path);
        Ok(Self::Folder(std::path::absolute(&path).unwrap_or(path)))
    }
}

impl fmt::Display for RemoteLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "{}", path.display()),
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(path: &str) -> Result<RemoteLocation, InvalidRemote> {
        Ok(RemoteLocation::Folder(path.into()))
    }

    #[test]
    fn paths_are_read_with_and_without_a_scheme() {
        let parse = |text| RemoteLocation::parse(text, Path::new("/runs"));
        assert_eq!(parse("shared"), folder("/runs/shared"));
        assert_eq!(parse("/mnt/x"), folder("/mnt/x"));
        assert_eq!(parse("file:///mnt/x"), folder("/mnt/x"));
        for wrong in ["file://host/x", "gs://bucket/x", "https://host/x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[cfg(not(feature = "s3"))]
    #[test]
    fn a_build_without_s3_reports_it_with_the_feature_to_enable() {
        let refused = RemoteLocation::parse("s3://bucket/x", Path::new("/")).unwrap_err();
        assert!(refused.problem.contains("S3") && refused.hint.contains("--features s3"), "{refused:?}");
    }

    #[cfg(feature = "s3")]
    #[test]
    fn a_bucket_and_its_prefix_are_parsed_and_nothing_else_is_accepted() {
        let parse = |text| RemoteLocation::parse(text, Path::new("/"));
        let s3 = |bucket: &str, prefix: &str| {
            Ok(RemoteLocation::S3 { bucket: bucket.into(), prefix: prefix.into() })
        };
        assert_eq!(parse("s3://bucket"), s3("bucket", ""));
        assert_eq!(parse("s3://bucket/a/b/"), s3("bucket", "a/b"));
        for wrong in ["s3://", "s3:///a", "s3://KEY:secret@bucket/a", "s3://bucket/../a", "s3://bucket/a?b=c"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
