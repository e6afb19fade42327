//! Recognizes likely secrets in a server's command, variables, headers and address by their name, and in any text by their form
//! (`search.rs`).

mod encoded;
mod inflate;
mod packed;
mod search;

use std::{borrow::Cow, collections::BTreeSet, ops::Range};

use serde_json::{Map, Value};

use self::search::HIDDEN;
pub use self::search::{Searched, conceal, concealed, in_bytes, in_file, in_text, in_value};
use crate::reference::has_reference;

/// Ends of names whose values are secrets, in capitals: `API_KEY`, `x-auth-token`, `PGPASSWORD`.
const ENDS: [&str; 7] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIALS"];
const HEADERS: [&str; 4] = ["AUTHORIZATION", "PROXY-AUTHORIZATION", "COOKIE", "X-AUTH"];

/// Whether a variable, header or parameter of this name usually holds a secret.
pub fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let bare = name.trim_end_matches(|last: char| last.is_ascii_digit() || last == '_' || last == '-');
    HEADERS.contains(&bare) || ENDS.iter().any(|end| bare.ends_with(end))
}

/// Whether a value is likely a secret: its name says so, or it is an address with a password.
pub fn is_secret(name: &str, value: &str) -> bool {
    let is_trivial = ["", "true", "false"].contains(&value);
    !is_trivial && (names_secret(name) || password(value).is_some())
}

/// What to write in place of a literal secret.
#[derive(Debug, PartialEq, Eq)]
pub struct Substitute {
    /// The value with a reference to the variable.
    pub text: String,
    pub variable: String,
}

/// The reference that takes the place of a literal secret. `None` if the value is none.
pub fn substitute(name: &str, value: &str) -> Option<Substitute> {
    if has_reference(value) != Ok(false) || !is_secret(name, value) {
        return None;
    }
    // What is around a password may have to stay: a user, `{session}`.
    if let Some(at) = password(value)
        && let (before, after) = (&value[..at.start], &value[at.end..])
        && !is_secret(name, &format!("{before}{after}"))
    {
        let variable = format!("{}_PASSWORD", variable_for(name));
        return Some(Substitute { text: format!("{before}${{{variable}}}{after}"), variable });
    }
    let (scheme, variable) = match value.strip_prefix("Bearer ") {
        Some(_) => ("Bearer ", "TOKEN".to_owned()),
        None => ("", variable_for(name)),
    };
    Some(Substitute { text: format!("{scheme}${{{variable}}}"), variable })
}

/// A name for the variable that holds the value of this name.
pub fn variable_for(name: &str) -> String {
    name.to_ascii_uppercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "_")
}

/// Where in `postgres://user:password@host/…` the password is.
fn password(value: &str) -> Option<Range<usize>> {
    let start = value.find("://")? + "://".len();
    let authority = value[start..].split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    let (name, password) = user.split_once(':')?;
    (!password.is_empty()).then(|| start + name.len() + 1..start + user.len())
}

/// The parameters of an address's query, by name.
pub fn query(url: &str) -> impl Iterator<Item = (&str, &str)> {
    let query = url.split_once('?').map_or("", |(_, query)| query.split('#').next().unwrap_or_default());
    query.split('&').filter_map(|pair| pair.split_once('='))
}

/// A command with `hide` applied to each secret: the word after `--api-key`, the value in `--api-key=…`, an address with
/// a password.
pub fn hidden<'w>(command: &'w [String], mut hide: impl FnMut(&str) -> String) -> Vec<Cow<'w, str>> {
    let mut words = Vec::with_capacity(command.len());
    let mut is_value = false;
    for word in command {
        let option = word.strip_prefix('-').map(|name| name.trim_start_matches('-'));
        words.push(match option.and_then(|option| option.split_once('=')) {
            Some((name, value)) if is_secret(name, value) => {
                Cow::Owned(word[..word.len() - value.len()].to_owned() + &hide(value))
            }
            _ if option.is_none() && (is_value || password(word).is_some()) => Cow::Owned(hide(word)),
            _ => Cow::Borrowed(word.as_str()),
        });
        is_value = option.is_some_and(names_secret);
    }
    words
}

/// A setting of this name, with `…` in place of what looks like a literal secret, by name or by form. Settings that leave a run
/// (reports, trackers, the live page, what `plan` and `show` print) pass through here, its run file through
/// [`secret_free`], and texts through [`concealed`].
pub fn shareable(name: &str, value: &Value) -> Value {
    let mut shown = value.clone();
    for secret in found(name, value) {
        hide(&mut shown, &secret);
    }
    conceal(&mut shown);
    shown
}

/// [`shareable`] for each value of a table.
pub fn shareable_table(table: &Map<String, Value>) -> Map<String, Value> {
    table.iter().map(|(name, value)| (name.clone(), shareable(name, value))).collect()
}

fn hide(value: &mut Value, secret: &str) {
    match value {
        Value::String(text) => *text = text.replace(secret, HIDDEN),
        Value::Array(items) => items.iter_mut().for_each(|item| hide(item, secret)),
        Value::Object(fields) => fields.values_mut().for_each(|item| hide(item, secret)),
        _ => {}
    }
}

/// Whether a value of this name holds a literal secret. A text of several words does so only if its name says it.
pub fn has_literal(name: &str, value: &Value) -> bool {
    match value {
        Value::String(text) if text.contains(char::is_whitespace) && !names_secret(name) => false,
        Value::Object(fields) => fields.iter().any(|(name, value)| has_literal(name, value)),
        other => !found(name, other).is_empty(),
    }
}

/// A run file, or a `KEY=VALUE` of one, with `…` in place of what looks like a literal secret.
pub fn secret_free(text: &str) -> Cow<'_, str> {
    let found = found_in(text);
    let shown = found.iter().fold(Cow::Borrowed(text), |text, secret| {
        let escaped = Value::from(secret.as_str()).to_string();
        let escaped = &escaped[1..escaped.len() - 1];
        [secret, escaped].into_iter().fold(text, |text, form| match text.contains(form) {
            true => text.replace(form, HIDDEN).into(),
            false => text,
        })
    });
    // One may be written in a way that is not found.
    match found_in(&shown).iter().any(|secret| secret != HIDDEN) {
        true => HIDDEN.into(),
        false => concealed(&shown).into_owned().into(),
    }
}

/// The literal secrets in a run file, or a `KEY=VALUE` of one.
fn found_in(text: &str) -> Vec<String> {
    let table = toml::from_str::<toml::Table>(text).ok().and_then(|table| serde_json::to_value(table).ok());
    match table {
        Some(table) => found("", &table),
        None => {
            let (path, value) = text.split_once('=').unwrap_or_default();
            let name = path.trim().rsplit('.').next().unwrap_or_default();
            found(name, &value.trim().trim_matches('"').into())
        }
    }
}

/// The literal secrets in a value of this name, the longest first: one may contain another.
fn found(name: &str, value: &Value) -> Vec<String> {
    let mut found = BTreeSet::new();
    collect(name, value, &mut found);
    let mut found: Vec<String> = found.into_iter().filter(|secret| !secret.is_empty()).collect();
    found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    found
}

fn collect(name: &str, value: &Value, found: &mut BTreeSet<String>) {
    let is_literal = |text: &str| has_reference(text) != Ok(true);
    match value {
        Value::String(text) => {
            if is_secret(name, text) && is_literal(text) {
                found.insert(text.trim_start_matches("Bearer ").to_owned());
            }
            let in_query = query(text).filter(|(name, value)| is_secret(name, value) && is_literal(value));
            found.extend(in_query.map(|(_, value)| value.to_owned()));
        }
        Value::Array(items) => {
            let words: Vec<String> =
                items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect();
            // The callback gets every secret word or value.
            hidden(&words, |secret| {
                found.extend(is_literal(secret).then(|| secret.to_owned()));
                String::new()
            });
            items.iter().for_each(|item| collect(name, item, found));
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| collect(name, value, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_file_is_shown_without_its_literal_secrets() {
        let text = r#"
[server]
command = ["s", "--api-key", "sk-123", "--port", "80"]
url = "https://h/p?token=tok-9&a=b"
[server.env]
API_KEY = "${API_KEY}"
PASSWORD = "hunter22"
DB = "postgres://me:pw12@h/db"
[server.headers]
Authorization = "Bearer abcdef"
"#;
        let shown = secret_free(text);
        for secret in ["sk-123", "tok-9", "hunter22", "pw12", "abcdef"] {
            assert!(!shown.contains(secret), "{secret}: {shown}");
        }
        for kept in ["--port", "${API_KEY}", "https://h/p?token=…&a=b", "Bearer …"] {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
        assert_eq!(secret_free("server.env.API_KEY=sk-1"), "server.env.API_KEY=…");
        assert_eq!(secret_free("seed=2"), "seed=2");
        assert_eq!(secret_free("not [toml"), "not [toml");
        assert_eq!(secret_free(r#"api_key = "a\"b""#), r#"api_key = "…""#, "as it is written");
        assert_eq!(secret_free(r#"api_key = "\u0073k-1""#), "…", "rather nothing than a secret");
    }

    #[test]
    fn a_value_is_shared_without_its_literal_secrets() {
        let check = |name: &str, value: Value, expected: Value| {
            assert_eq!(shareable(name, &value), expected, "{name}");
            let is_secret = value != expected;
            assert_eq!(has_literal(name, &value), is_secret, "{name}");
        };
        check("api_key", json!("sk-1"), json!("…"));
        check("api_key", json!("$sk"), json!("…"));
        check("api_key", json!("${API_KEY}"), json!("${API_KEY}"));
        check("db", json!("postgres://me:pw@h/db"), json!("…"));
        check("url", json!("https://h/p?token=t9&a=b"), json!("https://h/p?token=…&a=b"));
        check(
            "args",
            json!(["--api-key", "sk-1", "--port", "80"]),
            json!(["--api-key", "…", "--port", "80"]),
        );
        check(
            "headers",
            json!({"Authorization": "Bearer abc", "x": "y"}),
            json!({"Authorization": "Bearer …", "x": "y"}),
        );
        check("deep", json!([{"password": "two words"}]), json!([{"password": "…"}]));
        check("max_tokens", json!(7), json!(7));
        check("system", json!("You are a bot."), json!("You are a bot."));
        assert!(!has_literal("system", &json!("Which one? Answer with token=…")), "a text is no address");
        let table = json!({"a": "b", "second_token": "sk-2"});
        let shown = shareable_table(table.as_object().unwrap());
        assert_eq!(Value::Object(shown), json!({"a": "b", "second_token": "…"}));
    }

    #[test]
    fn a_secret_is_recognized_by_its_name() {
        let secrets = [
            "API_KEY",
            "apiKey",
            "X-Api-Key",
            "GITHUB_TOKEN",
            "GITHUB_TOKEN_2",
            "PGPASSWORD",
            "Authorization",
            "cookie",
            "client_secret",
        ];
        for name in secrets {
            assert!(names_secret(name), "{name}");
        }
        for name in
            ["TOKENIZERS_PARALLELISM", "KEYCLOAK_URL", "TOKEN_LIMIT", "NODE_ENV", "X-Region", "KEY_FILE"]
        {
            assert!(!names_secret(name), "{name}");
        }
        assert!(is_secret("DATABASE_URL", "postgres://me:pw@host/db"));
        for value in ["postgres://me@host/db", "postgres://host/db:x@y", "me:pw@host", "https://h/?a=b:c@d"] {
            assert!(!is_secret("DATABASE_URL", value), "{value}");
        }
        assert!(!is_secret("USE_TOKEN", "true"));
    }

    #[test]
    fn nothing_of_a_literal_secret_is_in_its_substitute() {
        let check = |name: &str, value: &str, expected: Option<(&str, &str)>| {
            let found = substitute(name, value).map(|found| (found.text, found.variable));
            let expected = expected.map(|(text, variable)| (text.to_owned(), variable.to_owned()));
            assert_eq!(found, expected, "{name}={value}");
        };
        check("api-key", "sk-1", Some(("${API_KEY}", "API_KEY")));
        check("Authorization", "Bearer abc", Some(("Bearer ${TOKEN}", "TOKEN")));
        check("PASSWORD", "two words", Some(("${PASSWORD}", "PASSWORD")));
        let around = ("postgres://me:${DATABASE_URL_PASSWORD}@h/{session}", "DATABASE_URL_PASSWORD");
        check("DATABASE_URL", "postgres://me:p@w@h/{session}", Some(around));
        check("DB_PASSWORD", "postgres://me:pw@h/db", Some(("${DB_PASSWORD}", "DB_PASSWORD")));
        check("API_KEY", "${OTHER}", None);
        check("REGION", "eu", None);
    }

    #[test]
    fn secrets_of_a_command_are_hidden_and_nothing_else() {
        let check = |words: &[&str], expected: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(hidden(&words, |_| "…".into()), expected);
        };
        check(&["npx", "server", "--stdio"], &["npx", "server", "--stdio"]);
        check(&["s", "--api-key", "sk-1", "x"], &["s", "--api-key", "…", "x"]);
        check(&["s", "--api-key=sk-1", "--port=1"], &["s", "--api-key=…", "--port=1"]);
        check(&["s", "--no-token", "--port"], &["s", "--no-token", "--port"]);
        check(&["s", "postgres://me:pw@h/db"], &["s", "…"]);
        check(&["s", "--db=postgres://me:pw@h/db"], &["s", "--db=…"]);
    }

    #[test]
    fn parameters_of_an_address_are_found_by_name() {
        assert_eq!(query("https://h/p?a=1&key=2#end").collect::<Vec<_>>(), [("a", "1"), ("key", "2")]);
        assert_eq!(query("https://h/p").count(), 0);
    }
}
