//! Rules for all HTTP clients: where a secret may be sent, and how long to wait before a retry. And for servers on this
//! machine: whose requests they answer. Nothing here sends a request.

use std::{net::IpAddr, sync::LazyLock, time::Duration};

use chrono::{DateTime, Utc};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use reqwest::{
    Url,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use rustls::ClientConfig;
use rustls_platform_verifier::ConfigVerifierExt;

/// What a page of ours may do: load scripts and styles from its own server alone, and insert no HTML.
/// `require-trusted-types-for` makes `innerHTML` and its like fail.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                               base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                               trusted-types 'none'";

/// Sets the headers of every response of a page of ours.
pub fn protect(headers: &mut HeaderMap) {
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Makes `ring` the provider of TLS. One that is installed already stays, and serves as well.
pub fn use_ring() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client whose TLS trusts what this machine trusts. The certificates, which are hundreds of files, are read once for all clients.
pub fn client() -> reqwest::ClientBuilder {
    static TLS: LazyLock<Option<ClientConfig>> = LazyLock::new(|| {
        use_ring();
        let mut tls = ClientConfig::with_platform_verifier().ok()?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Some(tls)
    });
    match &*TLS {
        Some(tls) => reqwest::Client::builder().tls_backend_preconfigured(tls.clone()),
        // Its own attempt says what is wrong.
        None => reqwest::Client::builder(),
    }
}

/// Whether a secret may be sent to this URL: it uses https, or stays on this machine.
pub fn is_confidential(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback =
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    url.scheme() == "https" || is_loopback
}

/// Whether a `Host` header names this machine, whichever port: a tunnel or a proxy has one of its own. A page of another site may
/// reach a server here by a name of its own (DNS rebinding), and then says that name.
pub fn names_this_machine(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => &host,
    };
    ["127.0.0.1", "localhost", "[::1]"].contains(&name)
}

/// Whether an `Origin` is that of a page which this server itself gave, under the name by which it is asked.
pub fn is_own_page(origin: &str, host: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host)) && names_this_machine(host)
}

/// Whether a secret is this one. Takes the same time wherever they differ.
pub fn is_same(one: &str, other: &str) -> bool {
    let pairs = one.bytes().zip(other.bytes());
    one.len() == other.len() && pairs.fold(0, |all, (one, other)| all | (one ^ other)) == 0
}

/// The wait that a `Retry-After` header asks for, in seconds or by a date. A date in the past asks for none.
pub fn retry_after(header: &str, now: DateTime<Utc>) -> Option<Duration> {
    let header = header.trim();
    header.parse().map(Duration::from_secs).ok().or_else(|| {
        let until = DateTime::parse_from_rfc2822(header).ok()?;
        Some((until.to_utc() - now).to_std().unwrap_or_default())
    })
}

/// Exponential backoff: waits double up to a limit. Jitter shortens each wait by up to half, so that clients that failed
/// together do not retry together.
pub struct Backoff {
    next: Duration,
    longest: Duration,
    rng: ChaCha8Rng,
}

impl Backoff {
    /// `seed` seeds the jitter.
    pub fn new(first: Duration, longest: Duration, seed: u64) -> Self {
        Self { next: first.min(longest), longest, rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The next wait: what the server asked for, if anything, but never more than the limit.
    pub fn wait(&mut self, retry_after: Option<Duration>) -> Duration {
        let share = crate::random::unit(&mut self.rng);
        let wait = self.next.mul_f64(1.0 - share / 2.0);
        self.next = self.next.saturating_mul(2).min(self.longest);
        retry_after.unwrap_or(wait).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_sent_over_https_or_to_this_machine() {
        let cases = [
            ("https://example.com/v1", true),
            ("http://example.com/v1", false),
            ("http://10.0.0.1/v1", false),
            ("http://localhost.example.com/v1", false),
            ("http://localhost:8000/v1", true),
            ("http://127.0.0.1:8000/v1", true),
            ("http://[::1]:8000/v1", true),
        ];
        for (url, expected) in cases {
            assert_eq!(is_confidential(&url.parse().unwrap()), expected, "{url}");
        }
    }

    #[test]
    fn a_host_is_this_machine_by_its_name_and_a_page_is_its_own_by_the_same_name_and_port() {
        for host in ["localhost", "LOCALHOST:8941", "127.0.0.1", "127.0.0.1:9000", "[::1]:1", "[::1]"] {
            assert!(names_this_machine(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "127.0.0.1.nip.io",
            "localhost.evil.example:80",
            "localhost:x",
            "a:1:localhost",
        ] {
            assert!(!names_this_machine(host), "{host}");
        }
        assert!(is_own_page("http://localhost:9000", "localhost:9000"));
        for (origin, host) in [
            ("http://localhost:3000", "localhost:9000"),
            ("http://evil.example", "evil.example"),
            ("null", "localhost:9000"),
        ] {
            assert!(!is_own_page(origin, host), "{origin} {host}");
        }
    }

    #[test]
    fn waits_grow_up_to_the_limit() {
        let (first, longest) = (Duration::from_millis(500), Duration::from_secs(60));
        let mut backoff = Backoff::new(first, longest, 1);
        let waits: Vec<Duration> = (0..500).map(|_| backoff.wait(None)).collect();
        assert!(waits[0] <= first && waits[0] >= first / 2);
        assert!(waits.iter().all(|wait| *wait <= longest));
        assert!(waits[10..].iter().all(|wait| *wait >= longest / 2));
        assert_ne!(Backoff::new(first, longest, 2).wait(None), waits[0]);
    }

    #[test]
    fn retry_after_is_respected_up_to_the_limit() {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60), 1);
        let now = "2026-10-21T07:27:50Z".parse().unwrap();
        let mut wait = |header| backoff.wait(retry_after(header, now)).as_secs_f64();
        assert_eq!([wait("0"), wait(" 7 "), wait("3600")], [0.0, 7.0, 60.0]);
        let dates = [wait("Wed, 21 Oct 2026 07:28:00 GMT"), wait("Wed, 21 Oct 2026 07:27:00 GMT")];
        assert_eq!(dates, [10.0, 0.0]);
        assert!(wait("soon") > 0.0);
    }
}
