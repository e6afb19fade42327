//! Who may ask the server what.
//!
//! A page of another origin must not read a run, and a program of another user must not either. So every request needs
//!
//! - a `Host` that is this machine (DNS rebinding), at whatever port a tunnel has,
//! - no `Origin` other than that host, and for changes that one,
//! - the random token of the URL that was printed: as `?token=`, once, then as a cookie that scripts cannot read and that
//!   requests of other sites do not carry; programs send it as `Authorization: Bearer`.
//!
//! The page may load scripts and styles from the server alone, and its scripts cannot insert HTML.

use std::io::Read;

use axum::http::{HeaderMap, Method, header, request::Parts};

use crate::{
    hash::hex,
    net::{is_own_page, is_same, names_this_machine},
};

/// What a request must have.
pub(super) struct Guard {
    pub port: u16,
    pub token: String,
}

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Granted,
    /// The token was in the URL: store it as a cookie and go on without it.
    StoreToken,
    /// Not this server, or a foreign origin.
    Foreign,
    NoToken,
}

impl Guard {
    /// Checks everything but the path.
    pub fn admit(&self, request: &Parts) -> Admission {
        let headers = &request.headers;
        let host = text(headers, header::HOST).unwrap_or_default();
        let is_own_host = names_this_machine(host);
        let is_own_origin = |origin: &str| is_own_page(origin, host);
        let reads = [Method::GET, Method::HEAD].contains(&request.method);
        let is_own = match headers.get(header::ORIGIN) {
            None => reads,
            Some(origin) => origin.to_str().is_ok_and(is_own_origin),
        };
        if !is_own_host || !is_own {
            return Admission::Foreign;
        }
        let bearer = text(headers, header::AUTHORIZATION).and_then(|text| text.strip_prefix("Bearer "));
        if bearer.is_some_and(|token| is_same(token, &self.token)) || self.has_cookie(headers) {
            return Admission::Granted;
        }
        let pairs = request.uri.query().into_iter().flat_map(|query| query.split('&'));
        let mut tokens = pairs.filter_map(|pair| pair.strip_prefix("token="));
        match tokens.any(|token| is_same(token, &self.token)) && reads && request.uri.path() == "/" {
            true => Admission::StoreToken,
            false => Admission::NoToken,
        }
    }

    /// Browsers share cookies between the ports of a host, so each port has its own.
    fn cookie_name(&self) -> String {
        format!("mcprl-{}", self.port)
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let prefix = format!("{}=", self.cookie_name());
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut cookies = cookies.flat_map(|value| value.split(';'));
        cookies.any(|cookie| {
            cookie.trim().strip_prefix(&prefix).is_some_and(|token| is_same(token, &self.token))
        })
    }

    /// The value of `Set-Cookie`.
    pub fn cookie(&self) -> String {
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie_name(), self.token)
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// 32 random bytes in hexadecimal.
pub(super) fn new_token() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(method: &str, uri: &str, headers: &[(&str, &str)]) -> Admission {
        let guard = Guard { port: 8, token: "abc".into() };
        let mut request = axum::http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        guard.admit(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn a_request_needs_the_host_the_origin_and_the_token() {
        use Admission::{Foreign, Granted, NoToken, StoreToken};
        let (host, cookie) = (("host", "127.0.0.1:8"), ("cookie", "a=b; mcprl-8=abc"));
        type Headers<'h> = &'h [(&'h str, &'h str)];
        let cases: [(&str, &str, Headers<'_>, Admission); 18] = [
            ("GET", "/", &[host, cookie], Granted),
            ("GET", "/", &[("host", "localhost:8"), cookie], Granted),
            ("GET", "/api/runs", &[host, ("authorization", "Bearer abc")], Granted),
            ("GET", "/?token=abc", &[host], StoreToken),
            ("GET", "/?token=abd", &[host], NoToken),
            ("GET", "/?token=", &[host], NoToken),
            ("GET", "/api/runs?token=abc", &[host], NoToken),
            ("GET", "/", &[host], NoToken),
            ("GET", "/", &[host, ("cookie", "mcprl-9=abc")], NoToken),
            ("GET", "/", &[("host", "evil.example:8"), cookie], Foreign),
            ("GET", "/", &[("host", "127.0.0.1"), cookie], Granted),
            ("POST", "/", &[("host", "localhost:9"), cookie, ("origin", "http://localhost:9")], Granted),
            ("POST", "/", &[host, cookie, ("origin", "http://127.0.0.1:9")], Foreign),
            ("GET", "/", &[cookie], Foreign),
            ("GET", "/", &[host, cookie, ("origin", "http://evil.example")], Foreign),
            ("GET", "/", &[host, cookie, ("origin", "null")], Foreign),
            ("POST", "/api/label", &[host, cookie], Foreign),
            ("POST", "/api/label", &[host, cookie, ("origin", "http://127.0.0.1:8")], Granted),
        ];
        for (method, uri, headers, expected) in cases {
            assert_eq!(admit(method, uri, headers), expected, "{method} {uri} {headers:?}");
        }
    }

    #[test]
    fn tokens_differ() {
        let (one, other) = (new_token().unwrap(), new_token().unwrap());
        assert!(one.len() == 64 && one != other);
    }
}
