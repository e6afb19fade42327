//! Cache and price settings: `[cache]`, and a stage's `cache` and `prices`. None is part of a key.

use super::{
    layers::{Entry, RawValue},
    reader::{Part, Reader},
    source::Source,
};
use crate::{
    store::{RemotePlace, RemoteSpec},
    usage::Prices,
};

/// How to use a stage's stored result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// Reuse it.
    Use,
    /// Rerun the stage in every run and store the new result. Other runs may reuse that.
    Refresh,
    /// Rerun the stage in every run. No run reuses its result.
    Off,
}

impl CacheMode {
    pub const ALL: [Self; 3] = [Self::Use, Self::Refresh, Self::Off];

    pub fn name(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::Refresh => "refresh",
            Self::Off => "off",
        }
    }
}

/// Parses `cache`. True means `use`, false means `off`.
pub fn cache_mode(reader: &Reader<'_>, entry: &Entry) -> Option<CacheMode> {
    if let RawValue::Boolean(bit) = entry.value {
        return Some(if bit { CacheMode::Use } else { CacheMode::Off });
    }
    let mode = CacheMode::ALL.into_iter().find(|mode| Some(mode.name()) == reader.text(entry));
    mode.or_else(|| {
        let names = CacheMode::ALL.map(CacheMode::name).join(", ");
        let message = format!("`{}` should be one of {names}", entry.path);
        reader.wrong(entry, Part::Value, message, None)
    })
}

/// Parses `[cache]`. An empty `remote` means none, so that an override can disable the one in the file.
pub fn remote(reader: &Reader<'_>, entry: &Entry, source: &Source) -> Option<RemoteSpec> {
    let meant = reader.only(entry, &["remote", "push"]);
    let fields = reader.table(entry)?;
    let push = match fields.get("push").map(|push| (&push.value, push)) {
        None => true,
        Some((RawValue::Boolean(bit), _)) => *bit,
        Some((other, push)) => {
            let message = format!("`{}` should be a boolean, found {}", push.path, other.named());
            return reader.wrong(push, Part::Value, message, None);
        }
    };
    let Some(remote) = fields.get("remote") else {
        if fields.contains_key("push") && !meant.contains(&"remote") {
            reader.wrong::<()>(entry, Part::Key, "`cache.push` needs `cache.remote`".into(), None);
        }
        return None;
    };
    let text = reader.text(remote)?;
    if text.is_empty() {
        return None;
    }
    match RemotePlace::parse(text, source.folder()) {
        Ok(place) => Some(RemoteSpec { place, push }),
        Err(wrong) => {
            let message = format!("`{}` names no shared cache: {}", remote.path, wrong.problem);
            reader.wrong(remote, Part::Value, message, Some(wrong.hint))
        }
    }
}

/// Parses `prices = { prompt = …, completion = … }`.
pub fn prices(reader: &Reader<'_>, entry: &Entry) -> Option<Prices> {
    let meant = reader.only(entry, &["prompt", "completion"]);
    let fields = reader.table(entry)?;
    let price = |key: &str| match fields.get(key) {
        Some(price) => {
            let dollars = reader.number(price)?;
            if dollars >= 0.0 {
                return Some(dollars);
            }
            let message = format!("`{}` should be at least 0, found {dollars}", price.path);
            reader.wrong(price, Part::Value, message, None)
        }
        None if meant.contains(&key) => None,
        None => {
            let message = format!("`{}` needs `{key}`, in dollars per million tokens", entry.path);
            reader.wrong(entry, Part::Key, message, None)
        }
    };
    let (prompt, completion) = (price("prompt"), price("completion"));
    Some(Prices { prompt: prompt?, completion: completion? })
}
