//! Requests to an endpoint for traces.

use std::time::Duration;

use reqwest::{
    Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};

use super::super::{
    TrackError,
    http::{self, Http},
};
use crate::{net::Backoff, plan::OtlpSpec, reference};

/// Attempts for a request that a busy endpoint refuses.
const ATTEMPTS: usize = 3;

pub struct Endpoint {
    http: Http,
    url: String,
    headers: HeaderMap,
}

/// The URL that traces are sent to: one with a path as it is, another with the path of the protocol.
pub fn address(url: &str) -> String {
    let has_path = Url::parse(url).is_ok_and(|url| url.path() != "/");
    if has_path { url.to_owned() } else { format!("{url}/v1/traces") }
}

impl Endpoint {
    /// # Errors
    /// If the headers cannot be made, or must not be sent to this URL.
    pub fn new(spec: &OtlpSpec) -> Result<Self, TrackError> {
        let url = address(&spec.url);
        let mut headers = HeaderMap::new();
        for (name, value) in &spec.headers {
            let wrong = |problem: String| TrackError::Header { name: name.clone(), problem };
            let key: HeaderName = name.parse().map_err(|_| wrong("this is no name of a header".into()))?;
            let text = reference::expand_text(value).map_err(|error| wrong(error.to_string()))?;
            let value = text.and_then(|text| HeaderValue::from_str(&text).ok());
            let mut value =
                value.ok_or_else(|| wrong("its value has characters that no header can have".into()))?;
            value.set_sensitive(true);
            http::confidential(name, &url)?;
            headers.insert(key, value);
        }
        Ok(Self { http: Http::new(&url)?, url, headers })
    }

    /// Sends a request and reads how much of it was rejected. By the protocol, what was rejected is not sent again.
    ///
    /// # Errors
    /// If the endpoint cannot be reached, or refuses the request as a whole.
    pub fn send(&self, body: &[u8]) -> Result<Rejected, TrackError> {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5), body.len() as u64);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let request = self.http.client.post(&self.url).headers(self.headers.clone());
            let request = request.header(CONTENT_TYPE, "application/x-protobuf").body(body.to_vec());
            let answer = self.http.send(&self.url, request)?;
            match answer.status {
                200..300 => return Ok(rejected(&answer.body)),
                // The protocol's statuses for an endpoint that is busy.
                429 | 502..=504 if attempt < ATTEMPTS => std::thread::sleep(backoff.wait(None)),
                _ => return Err(answer.refused(&self.url, "")),
            }
        }
    }
}

/// What an endpoint rejected of requests that it otherwise accepted.
#[derive(Debug, Default, PartialEq)]
pub struct Rejected {
    pub spans: u64,
    /// The endpoint's reason, for the first of them.
    pub problem: String,
}

impl Rejected {
    pub fn add(&mut self, other: Self) {
        if self.spans == 0 {
            self.problem = other.problem;
        }
        self.spans = self.spans.saturating_add(other.spans);
    }
}

/// The number of rejected spans and the reason, from an `ExportTraceServiceResponse`.
fn rejected(response: &[u8]) -> Rejected {
    let partial = fields(response).find_map(|(field, value)| match value {
        Field::Bytes(bytes) if field == 1 => Some(bytes),
        _ => None,
    });
    let mut found = Rejected::default();
    for (field, value) in fields(partial.unwrap_or_default()) {
        match (field, value) {
            (1, Field::Number(spans)) => found.spans = spans,
            (2, Field::Bytes(text)) => found.problem = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    found
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, up to the first that is torn or of another type.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, Field<'_>)> {
    std::iter::from_fn(move || {
        let tag = varint(&mut message)?;
        let value = match tag & 7 {
            0 => Field::Number(varint(&mut message)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                let (value, rest) = message.split_at_checked(length)?;
                message = rest;
                Field::Bytes(value)
            }
            _ => return None,
        };
        Some((tag >> 3, value))
    })
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::super::proto::Message;
    use super::*;

    #[test]
    fn a_url_with_a_path_is_used_as_it_is() {
        assert_eq!(address("http://127.0.0.1:4318"), "http://127.0.0.1:4318/v1/traces");
        assert_eq!(address("https://h/api/public/otel/v1/traces"), "https://h/api/public/otel/v1/traces");
    }

    #[test]
    fn the_answer_says_how_many_spans_were_rejected() {
        let partial = Message::new().varint(1, 300).bytes(2, "too old");
        let response = Message::new().message(1, partial).into_bytes();
        assert_eq!(rejected(&response), Rejected { spans: 300, problem: "too old".into() });
        assert_eq!(rejected(&[]), Rejected::default());
        // A warning without rejected spans, and torn messages.
        assert_eq!(rejected(&Message::new().message(1, Message::new().bytes(2, "hm")).into_bytes()).spans, 0);
        for end in 0..response.len() {
            rejected(&response[..end]);
        }
        assert_eq!(rejected(&[0xff; 40]), Rejected::default());
    }
}
