//! The query of a URL as typed values.

use std::{collections::BTreeMap, str::FromStr};

use axum::http::Uri;
use reqwest::Url;

use super::WebError;

/// Parameters by name; the last one counts. An empty one counts as absent.
pub struct Query(BTreeMap<String, String>);

impl Query {
    pub fn of(uri: &Uri) -> Self {
        let url = format!("http://localhost/?{}", uri.query().unwrap_or_default());
        let pairs = Url::parse(&url).map(|url| {
            let pairs = url.query_pairs().filter(|(_, value)| !value.is_empty());
            pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
        });
        Self(pairs.unwrap_or_default())
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn owned(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    /// Whether a value passes the filter of this name.
    pub fn allows(&self, name: &str, value: &str) -> bool {
        self.text(name).is_none_or(|wanted| wanted == value)
    }

    pub fn required(&self, name: &str) -> Result<&str, WebError> {
        self.text(name).ok_or_else(|| WebError::BadRequest(format!("the request needs `{name}`")))
    }

    /// A number.
    pub fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, WebError> {
        self.named(name, |text| text.parse().ok())
    }

    /// One of several names.
    pub fn named<T>(&self, name: &str, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>, WebError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let wrong = || WebError::BadRequest(format!("`{name}` cannot be {text:?}"));
        read(text).map(Some).ok_or_else(wrong)
    }
}
