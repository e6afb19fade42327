//! Settings that are part of no key: `[cache]` and a stage's `cache`.

use figment::value::Value;
use schemars::JsonSchema;
use serde::Deserialize;
use strum::VariantNames as _;

use super::{
    layers::{Entry, EntryPart},
    reader::Reader,
};
use crate::store::{RemoteLocation, RemoteSpec};

/// Shares results with other machines.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// A path, `file:///path` or `s3://bucket/prefix`. Missing results are fetched from there.
    remote: Option<String>,
    /// Whether to upload finished results to `remote`.
    #[serde(default = "yes")]
    push: bool,
}

fn yes() -> bool {
    true
}

/// How to use a stage's stored result.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "lowercase")]
pub enum CacheMode {
    /// Reuse it.
    #[default]
    Use,
    /// Rerun the stage in every run and store the new result. Other runs may reuse that.
    Refresh,
    /// Rerun the stage in every run. No run reuses its result.
    Off,
}

/// Parses `cache`. True means `use`, false means `off`.
pub fn cache_mode(reader: &Reader, entry: &Entry<'_>) -> Option<CacheMode> {
    if let Value::Bool(_, bit) = entry.value {
        return Some(if *bit { CacheMode::Use } else { CacheMode::Off });
    }
    reader.text(entry)?.parse().ok().or_else(|| {
        let message = format!("`{}` should be one of {}", entry.path, CacheMode::VARIANTS.join(", "));
        reader.wrong(entry, EntryPart::Value, message, None)
    })
}

/// Parses `[cache]`. An empty `remote` means none, so that an override can disable the one in the file.
pub fn remote(reader: &Reader, entry: &Entry<'_>) -> Option<RemoteSpec> {
    let cache = reader.read::<Cache>(entry)?;
    let Some(remote) = entry.field("remote") else {
        // Another key may be a misspelt `remote`.
        if entry.fields()?.into_keys().eq(["push"]) {
            reader.wrong::<()>(entry, EntryPart::Key, "`cache.push` needs `cache.remote`", None);
        }
        return None;
    };
    let text = cache.remote.filter(|text| !text.is_empty())?;
    match RemoteLocation::parse(&text, &remote.folder()) {
        Ok(place) => Some(RemoteSpec { place, push: cache.push }),
        Err(wrong) => {
            let message = format!("`{}` names no shared cache: {}", remote.path, wrong.problem);
            reader.wrong(&remote, EntryPart::Value, message, Some(wrong.hint))
        }
    }
}
