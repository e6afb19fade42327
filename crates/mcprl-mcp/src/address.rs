//! Addresses of servers, and whether a secret may be sent there.

use mcprl_base::net;
use mcprl_base::reference::expand_text;
use reqwest::Url;

use super::McpError;

/// The address with variables replaced. Messages show `url`, as it is in the run file.
pub(super) fn address(url: &str) -> Result<Url, McpError> {
    let wrong = |reason: String| McpError::Url { url: url.to_owned(), reason };
    let expanded = expand_text(url)?.unwrap_or_default();
    let parsed: Url = expanded.parse().map_err(|error| wrong(format!("{error}")))?;
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(wrong("it contains a user name or password; use bearer_env".into()));
    }
    match parsed.scheme() {
        "https" | "http" => Ok(parsed),
        other => Err(wrong(format!("its scheme is `{other}`, not http or https"))),
    }
}

/// Whether a secret may be sent to the address.
pub(super) fn check_secrecy(url: &str, parsed: &Url) -> Result<(), McpError> {
    match net::is_confidential(parsed) {
        true => Ok(()),
        false => Err(McpError::Url {
            url: url.to_owned(),
            reason: "a token or header would be sent unencrypted".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcprl_base::error::Diagnostic;

    fn check(url: &str, secret: bool, expected: Option<&str>) {
        let checked =
            address(url).and_then(|parsed| if secret { check_secrecy(url, &parsed) } else { Ok(()) });
        let code = checked.err().map(|error| error.code());
        assert_eq!(code, expected, "{url}");
    }

    #[test]
    fn a_secret_is_not_sent_unencrypted() {
        check("https://example.com/mcp", true, None);
        check("http://example.com/mcp", false, None);
        check("http://example.com/mcp", true, Some("mcp::url"));
        for local in ["http://127.0.0.1:1/mcp", "http://[::1]:1/mcp", "http://localhost/mcp"] {
            check(local, true, None);
        }
    }

    #[test]
    fn an_invalid_address_is_refused() {
        for wrong in ["", "example.com/mcp", "file:///etc/passwd", "https://me:secret@example.com"] {
            check(wrong, false, Some("mcp::url"));
        }
    }
}
