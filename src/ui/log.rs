//! Messages as one JSON object per line, for programs that collect logs.

use serde_json::{Map, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Level {
    Info,
    Warning,
    Error,
}

/// `{"time": "2026-11-22T18:56:03.120Z", "level": "info", "message": "…", …}`, with these fields at the end. The message
/// has no colours.
pub fn line(level: Level, message: &str, fields: Value) -> String {
    let time = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    let message = anstream::adapter::strip_str(message).to_string();
    let mut line = Map::from_iter([
        ("time".to_owned(), time.into()),
        ("level".to_owned(), <&str>::from(level).into()),
        ("message".to_owned(), message.into()),
    ]);
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    Value::Object(line).to_string()
}
