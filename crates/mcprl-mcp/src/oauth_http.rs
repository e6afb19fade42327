//! The requests of a login. They reach what rmcp's own client reaches: public addresses, this machine if the server is on it, and
//! the server's own address. Answers with tokens are made regular: authorization servers write numbers as texts, scopes as lists,
//! and leave out the type of a token.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::http::Response;
use mcprl_base::{error::chain, net};
use parking_lot::Mutex;
use reqwest::{
    Client, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{CONTENT_LENGTH, CONTENT_TYPE},
    redirect::Policy,
};
use rmcp::transport::auth::{
    AuthError, OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture, OAuthHttpRedirectPolicy,
    OAuthHttpRequest,
};
use serde_json::{Map, Value};

const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an answer.
const MOST: usize = 1 << 20;
const REDIRECTS: usize = 10;

pub(super) struct LoginClient {
    follow: Client,
    stop: Client,
    reach: Reach,
    heard: LastResponse,
}

/// How the last request with something to say ended: with this status, or for this reason not at all. rmcp's errors do not say.
pub(super) type LastResponse = Arc<Mutex<Option<Result<u16, String>>>>;

impl LoginClient {
    /// For logins to the server at this address.
    pub(super) fn new(server: &Url, heard: LastResponse) -> Result<Self, AuthError> {
        let reach = Reach::of(server);
        let build = |redirect: Policy| {
            let client = net::client().timeout(PATIENCE).redirect(redirect).dns_resolver(Arc::new(reach));
            client.build().map_err(|error| AuthError::InternalError(error.to_string()))
        };
        let follow = Policy::custom(move |attempt| {
            if !reach.allows_url(attempt.url()) || attempt.previous().len() > REDIRECTS {
                attempt.error("the redirect is not allowed")
            } else {
                attempt.follow()
            }
        });
        Ok(Self { follow: build(follow)?, stop: build(Policy::none())?, reach, heard })
    }
}

impl OAuthHttpClient for LoginClient {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let boxed = |error: reqwest::Error| Box::new(error) as OAuthHttpClientError;
            let client = match request.redirect_policy {
                OAuthHttpRedirectPolicy::Follow => &self.follow,
                _ => &self.stop,
            };
            let request = reqwest::Request::try_from(request.request).map_err(boxed)?;
            if !self.reach.allows_url(request.url()) {
                return Err(format!("{} is at an address that is not allowed here", request.url()).into());
            }
            let is_post = request.method() == reqwest::Method::POST;
            let sent = client.execute(request).await;
            if is_post {
                let ended = sent.as_ref().map(|response| response.status().as_u16());
                *self.heard.lock() = Some(ended.map_err(|error| chain(error)));
            }
            let mut response = sent.map_err(boxed)?;
            let status = response.status();
            let headers = response.headers().clone();
            let mut body = Vec::new();
            while let Some(bytes) = response.chunk().await.map_err(boxed)? {
                if body.len() + bytes.len() > MOST {
                    return Err(format!("an answer is longer than {MOST} bytes").into());
                }
                body.extend_from_slice(&bytes);
            }
            let regular = if is_post && status.is_success() { regular(&body) } else { None };
            let mut answer = Response::builder().status(status);
            for (name, value) in &headers {
                let is_replaced = regular.is_some() && (*name == CONTENT_LENGTH || *name == CONTENT_TYPE);
                if !is_replaced {
                    answer = answer.header(name, value);
                }
            }
            if regular.is_some() {
                answer = answer.header(CONTENT_TYPE, "application/json");
            }
            answer.body(regular.unwrap_or(body)).map_err(|error| Box::new(error) as OAuthHttpClientError)
        })
    }
}

/// An answer with a token as RFC 6749 has it; none if this is another one.
fn regular(body: &[u8]) -> Option<Vec<u8>> {
    let Ok(Value::Object(mut members)) = serde_json::from_slice::<Value>(body) else { return None };
    members.get("access_token")?.as_str()?;
    members.retain(|_, value| !value.is_null());
    if members.get("token_type").is_none_or(|kind| kind.as_str().is_none_or(str::is_empty)) {
        members.insert("token_type".into(), "Bearer".into());
    }
    let seconds = |value: &Value| match value {
        Value::String(text) => text.trim().parse::<f64>().ok(),
        other => other.as_f64(),
    };
    match members.get("expires_in").map(seconds) {
        Some(Some(time)) if time >= 0.0 => _ = members.insert("expires_in".into(), (time as u64).into()),
        // Unknown, as if it were left out.
        Some(_) => _ = members.shift_remove("expires_in"),
        None => {}
    }
    if let Some(Value::Array(scopes)) = members.get("scope") {
        let scopes: Vec<&str> = scopes.iter().filter_map(Value::as_str).collect();
        let scopes = scopes.join(" ");
        members.insert("scope".into(), scopes.into());
    }
    for name in ["scope", "refresh_token"] {
        if members.get(name).is_some_and(|value| value.as_str().is_none_or(str::is_empty)) {
            members.shift_remove(name);
        }
    }
    Some(Value::Object(Map::from_iter(members)).to_string().into_bytes())
}

/// Which addresses are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reach {
    /// The server is on this machine.
    own_machine: bool,
    /// The address that the server's URL has in place of a name.
    server: Option<IpAddr>,
}

impl Reach {
    fn of(server: &Url) -> Self {
        let name = server.host_str().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
        let server = literal(server);
        let is_own_name = name == "localhost" || name.ends_with(".localhost");
        Self {
            own_machine: is_own_name || server.is_some_and(|address| plain(address).is_loopback()),
            server,
        }
    }

    fn allows(self, address: IpAddr) -> bool {
        let address = plain(address);
        if address.is_loopback() { self.own_machine } else { is_public(address) }
    }

    fn allows_url(self, url: &Url) -> bool {
        literal(url).is_none_or(|address| Some(address) == self.server || self.allows(address))
    }
}

impl Resolve for Reach {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = *self;
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found.filter(|address| reach.allows(address.ip())).collect();
            if allowed.is_empty() {
                return Err(format!("no address of `{host}` is allowed here").into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

/// The address that another one stands for.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(six) = address else { return address };
    let [a, b, c, d, e, f, g, h] = six.segments();
    let four = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => four(g, h),
        [0, 0, 0, 0, 0, 0] if !six.is_loopback() && !six.is_unspecified() => four(g, h),
        [0x2002, ..] => four(b, c),
        _ => address,
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => {
            let [a, b, ..] = four.octets();
            !(four.is_private()
                || four.is_loopback()
                || four.is_link_local()
                || four.is_broadcast()
                || four.is_multicast()
                || a == 0
                || a == 100 && b & 0xc0 == 64
                || a == 198 && matches!(b, 18 | 19))
        }
        IpAddr::V6(six) => is_public_v6(six),
    }
}

fn is_public_v6(six: Ipv6Addr) -> bool {
    let segments = six.segments();
    !(six.is_loopback()
        || six.is_unspecified()
        || six.is_multicast()
        || segments[0] & 0xffc0 == 0xfe80
        || segments[0] & 0xfe00 == 0xfc00
        || segments[..2] == [0x2001, 0]
        || segments[..3] == [0x64, 0xff9b, 1])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_of_authorization_servers_become_regular() {
        for (given, expected) in [
            // Of Entra's first version.
            (
                json!({"access_token": "t", "token_type": "Bearer", "expires_in": "3599", "ext_expires_in": "3599", "scope": null}),
                json!({"access_token": "t", "token_type": "Bearer", "expires_in": 3599, "ext_expires_in": "3599"}),
            ),
            (
                json!({"access_token": "t", "scope": ["a", "b"], "expires_in": 43199.0, "refresh_token": ""}),
                json!({"access_token": "t", "scope": "a b", "expires_in": 43199, "token_type": "Bearer"}),
            ),
            (
                json!({"access_token": "t", "token_type": "bearer", "expires_in": "soon", "refresh_token": "r"}),
                json!({"access_token": "t", "token_type": "bearer", "refresh_token": "r"}),
            ),
        ] {
            let found: Value =
                serde_json::from_slice(&regular(given.to_string().as_bytes()).unwrap()).unwrap();
            assert_eq!(found, expected);
        }
        for other in ["{}", "[]", "no JSON", r#"{"access_token": 1}"#, r#"{"error": "invalid_grant"}"#] {
            assert_eq!(regular(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn only_public_addresses_and_those_of_the_server_are_reached() {
        let check = |server: &str, url: &str, expected: bool| {
            let reach = Reach::of(&server.parse().unwrap());
            assert_eq!(reach.allows_url(&url.parse().unwrap()), expected, "{server} {url}");
        };
        for private in [
            "http://127.0.0.1/",
            "http://10.0.0.1/",
            "http://169.254.169.254/",
            "http://[::1]/",
            "http://[fd00::1]/",
            "http://[::ffff:10.0.0.1]/",
            "http://100.64.0.1/",
            "http://0.0.0.0/",
        ] {
            check("https://mcp.example.com/", private, false);
        }
        check("https://mcp.example.com/", "https://93.184.216.34/", true);
        check("http://127.0.0.1:1/mcp", "http://127.0.0.1:2/token", true);
        check("http://localhost:1/mcp", "http://[::1]:2/token", true);
        check("http://127.0.0.1:1/mcp", "http://10.0.0.1/token", false);
        check("https://10.0.0.1/mcp", "https://10.0.0.1/token", true);
    }
}
