//! Bearer tokens of servers: from the environment, a file, a login, or a client's own credentials.
//!
//! Tokens of a login are stored per server address, readable by the user only. A request that the server rejects with
//! status 401 renews them: under a lock, so that of all sessions and processes one uses the refresh token. Tokens are in
//! no error, key or record, and no type here that holds one has a `Debug` output.
//!
//! Tokens and secrets are bound to the issuer that they are for: [`discover`] accepts only metadata that an authorization
//! server has published as its own, and only from the expected one. Endpoints that no metadata names are never guessed.
//!
//! Nothing here opens a browser. Addresses that metadata names must be public, or in a private network or on this machine if
//! the server is reached there.

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, Uri},
    response::Html,
};
use mcprl_base::{error::chain, net};
use reqwest::{Url, redirect::Policy};
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, AuthorizationRequest, AuthorizationSession,
    ClientCredentialsConfig, CredentialStore as _, InMemoryCredentialStore, OAuthClientConfig,
    StoredCredentials, WWWAuthenticateParams,
};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, sync::mpsc, time::timeout};

use super::{
    McpError, Token, Transport,
    address::{address, check_secrecy},
    error::Challenge,
    oauth_http::{LastResponse, LoginClient},
    tokens::{Bearer, NoToken, token_folder},
    untrusted::{Redaction, Untrusted},
};

/// Longest wait for the user to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest wait for another session or process that renews the same token.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for a token, and for what the authorization server says about itself.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for the server when its address is looked at.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(20);
const LOCK_POLL: Duration = Duration::from_millis(50);
const CLIENT_NAME: &str = env!("CARGO_PKG_NAME");
const CALLBACK: &str = "/callback";

/// The token of one connection.
pub(super) struct Access {
    bearer: Arc<Bearer>,
    renewal: Option<Arc<Renewal>>,
}

impl Access {
    /// `has_header`: the run file's headers authorize already.
    pub(super) fn new(token: &Token, url: &Url, has_header: bool) -> Result<Self, McpError> {
        let fixed =
            |token: Option<String>| Self { bearer: Arc::new(Bearer::new(token, None)), renewal: None };
        let renewing = |renewal: Renewal| {
            let token = renewal.file.read().and_then(|stored| stored.token());
            let secret = renewal.client.as_ref().map(|client| client.secret.clone());
            Self { bearer: Arc::new(Bearer::new(token, secret)), renewal: Some(Arc::new(renewal)) }
        };
        Ok(match token {
            Token::Env(variable) => fixed(Some(variable_of(variable)?)),
            Token::File(path) => fixed(Some(token_in(path)?)),
            Token::Client { id, secret_env, scopes, issuer } => {
                let secret = variable_of(secret_env)?;
                let client =
                    Client { id: id.clone(), secret, scopes: scopes.clone(), issuer: issuer.clone() };
                let file = TokenFile::of(url, Some(&client.id)).ok_or_else(no_folder)?;
                renewing(Renewal { url: url.clone(), file, client: Some(client) })
            }
            Token::Stored => {
                match TokenFile::of(url, None).filter(|file| !has_header && file.path.exists()) {
                    Some(file) => renewing(Renewal { url: url.clone(), file, client: None }),
                    None => fixed(None),
                }
            }
        })
    }

    /// Whether requests carry a token, or may later.
    pub(super) fn is_secret(&self) -> bool {
        self.token().is_some() || self.renewal.is_some()
    }

    /// What no text of the server may show.
    pub(super) fn bearer(&self) -> Arc<Bearer> {
        Arc::clone(&self.bearer)
    }

    pub(super) fn token(&self) -> Option<String> {
        self.bearer.token()
    }

    /// A token instead of a rejected one; `None` if there is no other.
    ///
    /// # Errors
    /// If the authorization server gives none.
    pub(super) async fn renewed(
        &self,
        rejected: Option<String>,
        challenge: Option<String>,
    ) -> Result<Option<String>, NoToken> {
        let Some(renewal) = self.renewal.clone() else { return Ok(None) };
        // A task of its own: a refresh token may be valid only once, so its answer must be stored even if the request that
        // waits for it is dropped.
        let renewing = async move { renewal.renew(rejected.as_deref(), challenge.as_deref()).await };
        let ended = |error: tokio::task::JoinError| NoToken { reason: error.to_string(), is_transient: true };
        let token = match tokio::spawn(renewing).await.map_err(ended)? {
            Ok(token) => token,
            // A login helps.
            Err(Failed::Login) => None,
            Err(Failed::Token(no_token)) => return Err(no_token),
        };
        if let Some(token) = &token {
            self.bearer.set(token.clone());
        }
        Ok(token)
    }
}

/// How to get the next token.
struct Renewal {
    url: Url,
    file: TokenFile,
    client: Option<Client>,
}

/// A client that authorizes itself.
struct Client {
    id: String,
    secret: String,
    scopes: Vec<String>,
    /// The only authorization server that gets the secret. Without it, the first one that got it.
    issuer: Option<String>,
}

impl Renewal {
    async fn renew(&self, rejected: Option<&str>, challenge: Option<&str>) -> Result<Option<String>, Failed> {
        let stored = |error: io::Error| AuthError::CredentialStoreError(error.to_string());
        let _lock = self.file.lock().await.map_err(stored)?;
        let old = self.file.read();
        let token = old.as_ref().and_then(Stored::token);
        if token.is_some() && token.as_deref() != rejected {
            return Ok(token);
        }
        let memory = InMemoryCredentialStore::new();
        let (mut manager, heard) = manager(&self.url, &memory).await?;
        let new = match (&self.client, old) {
            (None, None) => return Ok(None),
            (None, Some(old)) => {
                // Without an issuer it is unknown who may get the refresh token; a login helps.
                let Some(issuer) = old.credentials.issuer.as_deref() else { return Ok(None) };
                let endpoint = discovered(&mut manager, challenge, Some(issuer)).await?;
                memory.save(old.credentials.clone()).await?;
                if !manager.initialize_from_store().await? {
                    return Ok(None);
                }
                if let Some(secret) = &old.client_secret {
                    let config = OAuthClientConfig::new(&old.credentials.client_id, self.url.as_str());
                    manager.configure_client(config.with_client_secret(secret))?;
                }
                asked(&endpoint, &heard, manager.refresh_token()).await?;
                Stored { credentials: loaded(&memory).await?, client_secret: old.client_secret }
            }
            (Some(client), old) => {
                let first = old.and_then(|old| old.credentials.issuer);
                let issuer = client.issuer.as_deref().or(first.as_deref());
                let endpoint = discovered(&mut manager, challenge, issuer).await?;
                let scopes = match client.scopes.is_empty() {
                    true => manager.select_initial_scopes(&[]).await,
                    false => client.scopes.clone(),
                };
                let config = ClientCredentialsConfig::ClientSecret {
                    client_id: client.id.clone(),
                    client_secret: client.secret.clone(),
                    scopes,
                    resource: Some(self.url.to_string()),
                };
                manager.validate_client_credentials_metadata(&config)?;
                manager.configure_client_credentials(&config)?;
                asked(&endpoint, &heard, manager.exchange_client_credentials(&config)).await?;
                Stored { credentials: loaded(&memory).await?, client_secret: None }
            }
        };
        self.file.write(&new).map_err(stored)?;
        Ok(new.token())
    }
}

/// Why no token was renewed.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("only a login gives another token")]
    Login,
    #[error("{}", .0.reason)]
    Token(NoToken),
}

impl From<AuthError> for Failed {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::AuthorizationRequired | AuthError::TokenRefreshRejected(_) => Self::Login,
            error => {
                let is_transient = matches!(error, AuthError::DiscoveryRequestFailed { .. });
                Self::Token(NoToken { reason: chain(&error), is_transient })
            }
        }
    }
}

/// [`discover`], within [`TOKEN_TIMEOUT`]. Returns the token endpoint.
async fn discovered(
    manager: &mut AuthorizationManager,
    challenge: Option<&str>,
    expected: Option<&str>,
) -> Result<String, Failed> {
    match timeout(TOKEN_TIMEOUT, discover(manager, challenge, expected)).await {
        Ok(endpoint) => Ok(endpoint?),
        Err(_) => {
            let reason =
                format!("the metadata of its authorization server did not come within {TOKEN_TIMEOUT:?}");
            Err(Failed::Token(NoToken { reason, is_transient: false }))
        }
    }
}

/// The answer of a token endpoint. What refuses the client, or has taken all the time there is, is not tried again.
async fn asked<T>(
    endpoint: &str,
    heard: &LastResponse,
    answer: impl Future<Output = Result<T, AuthError>>,
) -> Result<T, Failed> {
    let failed = |what: String, is_transient| {
        Failed::Token(NoToken { reason: format!("the token endpoint {endpoint} {what}"), is_transient })
    };
    let error = match timeout(TOKEN_TIMEOUT, answer).await {
        Err(_) => return Err(failed(format!("did not answer within {TOKEN_TIMEOUT:?}"), false)),
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error @ (AuthError::AuthorizationRequired | AuthError::TokenRefreshRejected(_)))) => {
            return Err(error.into());
        }
        Ok(Err(error)) => error,
    };
    Err(match heard.lock().take() {
        Some(Ok(status)) => {
            let what = format!("answered with HTTP status {status}: {}", chain(&error));
            failed(what, matches!(status, 408 | 429 | 500..))
        }
        Some(Err(reason)) => failed(format!("could not be asked: {reason}"), true),
        None => failed(format!("gave none: {}", chain(&error)), false),
    })
}

async fn manager(
    url: &Url,
    store: &InMemoryCredentialStore,
) -> Result<(AuthorizationManager, LastResponse), AuthError> {
    net::use_ring();
    let heard = LastResponse::default();
    let mut manager = match is_in_private_network(url).await {
        true => AuthorizationManager::new_allowing_private_addresses(url.clone()).await?,
        false => {
            let client = Arc::new(LoginClient::new(url, heard.clone())?);
            AuthorizationManager::new_with_oauth_http_client(url.clone(), client).await?
        }
    };
    manager.set_credential_store(store.clone());
    Ok((manager, heard))
}

/// Sets the metadata of the authorization server that the MCP server names. Returns its token endpoint.
///
/// # Errors
/// If nobody has published it, it names no issuer or another one than expected, or an endpoint that gets secrets is not
/// reached confidentially. rmcp guesses endpoints on the MCP server itself where it finds no metadata.
async fn discover(
    manager: &mut AuthorizationManager,
    challenge: Option<&str>,
    expected: Option<&str>,
) -> Result<String, AuthError> {
    let found = manager.resolve_metadata_from_challenge(challenge).await?;
    let metadata = accepted(found.metadata, found.source.is_discovered(), expected)?;
    let endpoint = metadata.token_endpoint.clone();
    manager.set_metadata(metadata);
    Ok(endpoint)
}

fn accepted(
    metadata: AuthorizationMetadata,
    is_published: bool,
    expected: Option<&str>,
) -> Result<AuthorizationMetadata, AuthError> {
    let issuer = metadata.issuer.as_deref().filter(|issuer| !issuer.is_empty());
    let Some(issuer) = issuer.filter(|_| is_published) else {
        let reason = "the server names no authorization server that publishes its metadata and issuer";
        return Err(AuthError::MetadataError(reason.into()));
    };
    if let Some(expected) = expected
        && expected.trim_end_matches('/') != issuer.trim_end_matches('/')
    {
        return Err(AuthError::AuthorizationServerMismatch {
            expected_issuer: expected.to_owned(),
            received_issuer: issuer.to_owned(),
        });
    }
    for endpoint in [Some(&metadata.token_endpoint), metadata.registration_endpoint.as_ref()] {
        let Some(endpoint) = endpoint else { continue };
        if !net::is_confidential(&Url::parse(endpoint)?) {
            return Err(AuthError::MetadataError(format!("secrets would be sent unencrypted to {endpoint}")));
        }
    }
    Ok(metadata)
}

/// Whether the server is reached at an address of a private network. The address of a name is in the hands of whoever owns
/// the name, but over https only a holder of its certificate answers: a public server cannot pretend to be there.
async fn is_in_private_network(url: &Url) -> bool {
    if url.scheme() != "https" {
        return false;
    }
    let client = net::client().redirect(Policy::none()).no_proxy().timeout(ADDRESS_TIMEOUT);
    let Ok(client) = client.build() else { return false };
    let answer = client.head(url.clone()).send().await.ok();
    answer.and_then(|answer| answer.remote_addr()).is_some_and(|address| is_private(address.ip()))
}

fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        // With the addresses that carriers and overlay networks share.
        IpAddr::V4(address) => {
            address.is_private() || address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64
        }
        IpAddr::V6(address) => address.is_unique_local(),
    }
}

async fn loaded(store: &InMemoryCredentialStore) -> Result<StoredCredentials, AuthError> {
    store.load().await?.ok_or(AuthError::AuthorizationRequired)
}

/// What a token file holds.
#[derive(Serialize, Deserialize)]
struct Stored {
    credentials: StoredCredentials,
    client_secret: Option<String>,
}

impl Stored {
    fn token(&self) -> Option<String> {
        // The type's own accessors need a trait of a crate that is not a dependency.
        let response = serde_json::to_value(self.credentials.token_response.as_ref()?).ok()?;
        response.get("access_token")?.as_str().map(str::to_owned)
    }
}

/// The tokens for one server and client.
struct TokenFile {
    path: PathBuf,
}

impl TokenFile {
    /// `None` if there is no folder for it: neither `XDG_DATA_HOME` nor `HOME` is set.
    fn of(url: &Url, client: Option<&str>) -> Option<Self> {
        Some(Self { path: token_folder()?.join(Self::name(url, client)) })
    }

    /// The host, for people, and a digest of the whole address, which may contain a secret.
    fn name(url: &Url, client: Option<&str>) -> String {
        let mut resource = url.clone();
        resource.set_fragment(None);
        let host: String =
            url.host_str().unwrap_or_default().chars().filter(|letter| !"[]:".contains(*letter)).collect();
        let digest = blake3::hash(format!("{resource}\n{}", client.unwrap_or_default()).as_bytes()).to_hex();
        format!("{host}-{}.json", &digest[..16])
    }

    /// `None` if there is none, or it cannot be read: a login replaces it.
    fn read(&self) -> Option<Stored> {
        serde_json::from_slice(&fs::read(&self.path).ok()?).ok()
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    fn create_folder(&self) -> io::Result<()> {
        let folder = self.folder();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
    }

    /// Writes a new file in place of the old one. Temporary files are readable by their owner only.
    fn write(&self, stored: &Stored) -> io::Result<()> {
        self.create_folder()?;
        let mut file = tempfile::NamedTempFile::new_in(self.folder())?;
        serde_json::to_writer(&mut file, stored)?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }

    /// Returns when no other session or process renews this token. Dropping the file releases the lock.
    async fn lock(&self) -> io::Result<fs::File> {
        self.create_folder()?;
        let file = fs::File::options().create(true).append(true).open(self.path.with_extension("lock"))?;
        let locked = async {
            while let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                if error != rustix::io::Errno::WOULDBLOCK {
                    return Err(io::Error::from(error));
                }
                tokio::time::sleep(LOCK_POLL).await;
            }
            Ok(())
        };
        let waited = timeout(LOCK_TIMEOUT, locked).await;
        waited.unwrap_or_else(|_| Err(io::Error::other("another process holds the lock of the token")))?;
        Ok(file)
    }
}

fn no_folder() -> McpError {
    McpError::TokenFile {
        path: "tokens".into(),
        reason: "has no folder: neither XDG_DATA_HOME nor HOME is set".into(),
    }
}

fn variable_of(variable: &str) -> Result<String, McpError> {
    std::env::var(variable).map_err(|_| McpError::UnsetVariable { variable: variable.to_owned() })
}

/// The token in a file that only its owner can read.
fn token_in(path: &Path) -> Result<String, McpError> {
    let wrong = |reason: String| McpError::TokenFile { path: path.to_owned(), reason };
    let unreadable = |error: io::Error| wrong(format!("cannot be read: {error}"));
    let file = fs::File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.mode() & 0o077 != 0 {
        return Err(wrong("can be read by other users".into()));
    }
    let text = io::read_to_string(io::Read::take(file, 64 << 10)).map_err(unreadable)?;
    match text.trim() {
        "" => Err(wrong("is empty".into())),
        token => Ok(token.to_owned()),
    }
}

/// How to log in.
#[derive(Default)]
pub struct Login {
    /// A client that is registered already; otherwise one is registered.
    pub client_id: Option<String>,
    pub client_secret: Option<String>,
    /// Otherwise those that the server asks for.
    pub scopes: Vec<String>,
    /// Of the answer that asked for a login ([`McpError::asked_login`]).
    pub challenge: Option<Challenge>,
}

impl Login {
    /// Runs the authorization-code flow and stores the tokens. `show` gets the address that the user must open.
    ///
    /// # Errors
    /// [`McpError::Login`] if the server or the user denies it, or after five minutes.
    pub async fn run(self, transport: &Transport, show: impl FnOnce(&str)) -> Result<(), McpError> {
        let server = transport.to_string();
        let failed = |reason: String| McpError::Login { server: server.clone(), reason };
        let Transport::Http { url: written, .. } = transport else {
            return Err(failed("it is not reached over HTTP".into()));
        };
        let url = address(written)?;
        check_secrecy(written, &url)?;
        let file = TokenFile::of(&url, None).ok_or_else(no_folder)?;
        let redaction = Redaction::new(self.client_secret.clone(), None);
        let stored = self.flow(&url, file.read(), show).await;
        let stored = stored.map_err(|error| failed(Untrusted::new(chain(&error), &redaction).line()))?;
        let unwritten = |error: io::Error| McpError::TokenFile {
            path: file.path.clone(),
            reason: format!("cannot be written: {error}"),
        };
        let _lock = file.lock().await.map_err(unwritten)?;
        file.write(&stored).map_err(unwritten)
    }

    async fn flow(
        self,
        url: &Url,
        old: Option<Stored>,
        show: impl FnOnce(&str),
    ) -> Result<Stored, AuthError> {
        let failed = |error: io::Error| AuthError::AuthorizationFailed(error.to_string());
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let redirect = format!("http://{}{CALLBACK}", listener.local_addr().map_err(failed)?);
        let memory = InMemoryCredentialStore::new();
        let (mut manager, _) = manager(url, &memory).await?;
        let challenge = self.challenge.as_ref().map(|Challenge(text)| text.as_str());
        discover(&mut manager, challenge, None).await?;
        let mut scopes = self.scopes;
        if scopes.is_empty() {
            scopes = manager.select_initial_scopes(&[]).await;
            // More was asked for than was granted: both.
            let asked = challenge.map(|challenge| WWWAuthenticateParams::parse(challenge, url));
            if let Some(old) = old.filter(|_| asked.is_some_and(|asked| asked.is_insufficient_scope())) {
                scopes.extend(old.credentials.granted_scopes);
                scopes.sort();
                scopes.dedup();
            }
        }
        let (client_id, client_secret) = match self.client_id {
            Some(id) => (id, self.client_secret),
            None => {
                let names: Vec<&str> = scopes.iter().map(String::as_str).collect();
                let registered = manager.register_client(CLIENT_NAME, &redirect, &names).await?;
                (registered.client_id, registered.client_secret)
            }
        };
        let mut request = AuthorizationRequest::new(redirect)
            .with_scopes(scopes)
            .with_initial_scope_selection()
            .with_preregistered_client(client_id);
        request.client_secret.clone_from(&client_secret);
        let session = AuthorizationSession::new(manager, request).await.map_err(|(_, error)| error)?;
        let address = Url::parse(session.get_authorization_url())?;
        if !matches!(address.scheme(), "http" | "https") {
            return Err(AuthError::AuthorizationFailed(
                "the address to log in at is neither http nor https".into(),
            ));
        }
        let state = parameter(&address, "state").unwrap_or_default();
        let callback = redirected(listener, state);
        show(address.as_str());
        let callback = timeout(LOGIN_TIMEOUT, callback).await;
        let callback = callback.map_err(|_| {
            AuthError::AuthorizationFailed(format!("nobody logged in within {LOGIN_TIMEOUT:?}"))
        })??;
        session.handle_callback_url(callback.as_str()).await?;
        Ok(Stored { credentials: loaded(&memory).await?, client_secret })
    }
}

fn parameter(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// Waits for the browser to come back with this `state`. Other requests are not answered with more than a status.
async fn redirected(listener: TcpListener, state: String) -> Result<Url, AuthError> {
    let (sender, mut received) = mpsc::channel(1);
    let answer = move |request: Request| {
        let (sender, state) = (sender.clone(), state.clone());
        async move {
            let url = callback_url(request.uri());
            match url.filter(|url| url.path() == CALLBACK && parameter(url, "state").as_ref() == Some(&state))
            {
                Some(url) => {
                    let denied = parameter(&url, "error").is_some();
                    let _ = sender.send(url).await;
                    let text = if denied { "The login was denied." } else { "The login is done." };
                    (StatusCode::OK, Html(format!("<p>{text} You can close this page.")))
                }
                None => (StatusCode::NOT_FOUND, Html(String::new())),
            }
        }
    };
    let stop = tokio_util::sync::CancellationToken::new();
    let serving = axum::serve(listener, Router::new().fallback(answer))
        .with_graceful_shutdown(stop.clone().cancelled_owned());
    let serving = tokio::spawn(async move { serving.await });
    let stops = stop.drop_guard();
    let url = received.recv().await;
    drop(stops);
    let _ = timeout(Duration::from_secs(1), serving).await;
    let url = url.ok_or_else(|| AuthError::AuthorizationFailed("the listener ended".into()))?;
    match parameter(&url, "error") {
        None => Ok(url),
        Some(error) => {
            let description = parameter(&url, "error_description").unwrap_or_default();
            Err(AuthError::AuthorizationFailed(format!("{error} {description}").trim().to_owned()))
        }
    }
}

fn callback_url(uri: &Uri) -> Option<Url> {
    Url::parse("http://127.0.0.1").ok()?.join(uri.path_and_query()?.as_str()).ok()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use mcprl_base::error::Diagnostic;

    fn stored(token: &str) -> Stored {
        let response =
            serde_json::json!({"access_token": token, "token_type": "bearer", "refresh_token": "r"});
        let response = serde_json::from_value(response).unwrap();
        Stored {
            credentials: StoredCredentials::new("c".into(), Some(response), Vec::new(), None),
            client_secret: None,
        }
    }

    #[test]
    fn tokens_are_for_their_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile { path: folder.path().join("tokens/a.json") };
        file.write(&stored("one")).unwrap();
        file.write(&stored("two")).unwrap();
        assert_eq!(file.read().unwrap().token().as_deref(), Some("two"));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&file.path), mode(file.folder())), (0o600, 0o700));
        assert_eq!(fs::read_dir(file.folder()).unwrap().count(), 1);
        fs::write(&file.path, "{").unwrap();
        assert!(file.read().is_none());
    }

    #[test]
    fn every_address_and_client_has_its_own_file() {
        let name = |url: &str, client| TokenFile::name(&url.parse().unwrap(), client);
        let first = name("https://a.b/mcp?key=secret", None);
        assert!(first.starts_with("a.b-") && !first.contains("secret"), "{first}");
        assert_eq!(first, name("https://a.b:443/mcp?key=secret#x", None));
        for (url, client) in [
            ("https://a.b/mcp", None),
            ("https://a.b:1/mcp?key=secret", None),
            ("https://a.b/mcp?key=secret", Some("c")),
        ] {
            assert_ne!(first, name(url, client), "{url}");
        }
    }

    #[test]
    fn a_token_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let check = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            token_in(&path).map_err(|error| (error.code(), error.to_string()))
        };
        assert_eq!(check("secret\n", 0o600).unwrap(), "secret");
        for (text, mode, reason) in
            [("secret", 0o640, "other users"), ("secret", 0o604, "other users"), (" \n", 0o600, "is empty")]
        {
            let (code, message) = check(text, mode).unwrap_err();
            assert_eq!(code, "mcp::token_file");
            assert!(message.contains(reason) && !message.contains("secret"), "{message}");
        }
    }

    /// A server that answers requests by their path, and the requests for tokens that it got.
    async fn serving(answer: impl Fn(&str, &str) -> Option<String> + Send + Sync + 'static) -> Serving {
        serving_on("127.0.0.1", answer).await
    }

    async fn serving_on(
        address: &str,
        answer: impl Fn(&str, &str) -> Option<String> + Send + Sync + 'static,
    ) -> Serving {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
        let (origin, log) = (url.clone(), Arc::clone(&asked));
        let fallback = move |request: Request| {
            let (path, log) = (request.uri().path().to_owned(), Arc::clone(&log));
            let text = answer(&origin, &path);
            async move {
                log.lock().push(path);
                match text {
                    Some(text) => (StatusCode::OK, [("content-type", "application/json")], text),
                    None => (StatusCode::NOT_FOUND, [("content-type", "text/plain")], String::new()),
                }
            }
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(fallback)).await });
        Serving { url, asked }
    }

    struct Serving {
        url: String,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl Serving {
        fn tokens_asked(&self) -> usize {
            self.asked.lock().iter().filter(|path| *path == "/token").count()
        }
    }

    const TOKENS: &str = r#"{"access_token": "new", "token_type": "bearer", "refresh_token": "r2"}"#;

    /// What an authorization server at this address says of itself.
    fn metadata(url: &str) -> String {
        let metadata = serde_json::json!({
            "issuer": url, "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"),
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        });
        metadata.to_string()
    }

    /// An authorization server.
    async fn issuing() -> Serving {
        serving(|url, path| match path {
            "/.well-known/oauth-authorization-server" => Some(metadata(url)),
            "/token" => Some(TOKENS.into()),
            _ => None,
        })
        .await
    }

    /// An MCP server that names this authorization server.
    async fn naming(issuer: &str) -> Serving {
        let issuer = issuer.to_owned();
        serving(move |url, path| match path {
            "/.well-known/oauth-protected-resource" => {
                Some(serde_json::json!({"resource": url, "authorization_servers": [issuer]}).to_string())
            }
            "/token" => Some(TOKENS.into()),
            _ => None,
        })
        .await
    }

    fn renewal(url: &str, file: &Path, client: Option<Client>) -> Renewal {
        Renewal { url: url.parse().unwrap(), file: TokenFile { path: file.to_owned() }, client }
    }

    fn client(issuer: Option<&str>) -> Option<Client> {
        let issuer = issuer.map(str::to_owned);
        Some(Client { id: "c".into(), secret: "s3cr3t".into(), scopes: Vec::new(), issuer })
    }

    fn stored_by(issuer: Option<&str>) -> Stored {
        let Stored { credentials, client_secret } = stored("old");
        Stored { credentials: credentials.with_issuer(issuer.map(str::to_owned)), client_secret }
    }

    #[tokio::test]
    async fn no_secret_is_posted_to_a_server_that_publishes_no_metadata() {
        let server = serving(|_, path| (path == "/token").then(|| TOKENS.into())).await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens/a.json");
        let error = renewal(&server.url, &path, client(None)).renew(None, None).await.unwrap_err();
        assert!(error.to_string().contains("no authorization server that publishes"), "{error}");
        TokenFile { path: path.clone() }.write(&stored_by(Some("https://login.example.com"))).unwrap();
        assert!(renewal(&server.url, &path, None).renew(Some("old"), None).await.is_err());
        assert_eq!(server.tokens_asked(), 0);
        assert!(!server.asked.lock().is_empty(), "it was asked for metadata");
    }

    #[tokio::test]
    async fn an_error_of_the_token_endpoint_names_it() {
        let server = serving(|url, path| match path {
            "/.well-known/oauth-authorization-server" => Some(metadata(url)),
            "/token" => Some("<html>".into()),
            _ => None,
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens/a.json");
        let renew = || async {
            match renewal(&server.url, &path, client(None)).renew(None, None).await.unwrap_err() {
                Failed::Token(no_token) => no_token,
                Failed::Login => panic!("no login helps"),
            }
        };
        let page = renew().await;
        let start = format!("the token endpoint {}/token answered with HTTP status 200: ", server.url);
        assert!(page.reason.starts_with(&start) && !page.is_transient, "{}", page.reason);
        let nobody = async { Err::<(), _>(AuthError::TokenExchangeFailed("Request failed".into())) };
        let heard = LastResponse::default();
        *heard.lock() = Some(Err("connection refused".into()));
        let Err(Failed::Token(away)) = asked("https://a.b/token", &heard, nobody).await else { panic!() };
        assert_eq!(
            away.reason,
            "the token endpoint https://a.b/token could not be asked: connection refused"
        );
        assert!(away.is_transient);
    }

    #[tokio::test]
    async fn a_token_answer_with_texts_for_numbers_and_a_list_of_scopes_is_read() {
        let server = serving(|url, path| match path {
            "/.well-known/oauth-authorization-server" => Some(metadata(url)),
            "/.well-known/oauth-protected-resource" => {
                Some(serde_json::json!({"resource": url, "authorization_servers": [url]}).to_string())
            }
            "/token" => Some(r#"{"access_token": "new", "expires_in": "3599", "scope": ["a", "b"]}"#.into()),
            _ => None,
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens/a.json");
        let token = renewal(&server.url, &path, client(None)).renew(None, None).await.unwrap();
        assert_eq!(token.as_deref(), Some("new"));
    }

    #[tokio::test]
    async fn a_refresh_token_goes_to_the_issuer_that_gave_it_only() {
        let (first, second) = (issuing().await, issuing().await);
        let server = naming(&second.url).await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens/a.json");
        let file = TokenFile { path: path.clone() };
        let renew = async || renewal(&server.url, &path, None).renew(Some("old"), None).await;
        file.write(&stored_by(Some(&first.url))).unwrap();
        assert!(matches!(renew().await, Err(Failed::Token(NoToken { is_transient: false, .. }))));
        file.write(&stored_by(None)).unwrap();
        assert_eq!(renew().await.unwrap(), None, "a login helps");
        assert_eq!((first.tokens_asked(), second.tokens_asked(), server.tokens_asked()), (0, 0, 0));
        file.write(&stored_by(Some(&second.url))).unwrap();
        assert_eq!(renew().await.unwrap().as_deref(), Some("new"));
        assert_eq!(second.tokens_asked(), 1);
    }

    #[tokio::test]
    async fn a_client_secret_stays_with_the_issuer_that_got_it_first() {
        let (first, second) = (issuing().await, issuing().await);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens/a.json");
        let honest = naming(&first.url).await;
        let renew = async |server: &Serving, client, rejected| {
            renewal(&server.url, &path, client).renew(rejected, None).await
        };
        assert_eq!(renew(&honest, client(None), None).await.unwrap().as_deref(), Some("new"));
        // The same server later, when somebody else has it.
        let taken = naming(&second.url).await;
        let error = renew(&taken, client(None), Some("new")).await.unwrap_err();
        assert!(matches!(error, Failed::Token(NoToken { is_transient: false, .. })), "{error}");
        assert_eq!(second.tokens_asked(), 0);
        // A named issuer is the user's word.
        assert!(renew(&taken, client(Some(&second.url)), Some("new")).await.is_ok());
        assert_eq!(second.tokens_asked(), 1);
    }

    #[tokio::test]
    async fn a_server_elsewhere_sends_no_request_into_the_private_network() {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        // Sends nothing; the system picks the address that it would send from.
        let address = socket.connect("10.255.255.255:1").and_then(|()| socket.local_addr());
        let Some(address) = address.ok().map(|address| address.ip()).filter(|address| is_private(*address))
        else {
            return;
        };
        let inside = serving_on(&address.to_string(), |_, _| Some("{}".into())).await;
        let server = naming(&inside.url).await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens/a.json");
        assert!(renewal(&server.url, &path, client(None)).renew(None, None).await.is_err());
        assert!(inside.asked.lock().is_empty());
    }

    #[test]
    fn secrets_are_not_sent_to_an_endpoint_without_encryption() {
        let check = |token: &str, registration: Option<&str>| {
            let metadata = serde_json::json!({
                "issuer": "https://a.b", "authorization_endpoint": "https://a.b/authorize",
                "token_endpoint": token, "registration_endpoint": registration,
            });
            published(metadata)
        };
        assert!(check("https://a.b/token", Some("https://a.b/register")).is_ok());
        assert!(check("http://a.b/token", None).is_err());
        assert!(check("https://a.b/token", Some("http://a.b/register")).is_err());
    }

    fn published(metadata: serde_json::Value) -> Result<(), AuthError> {
        let metadata: AuthorizationMetadata = serde_json::from_value(metadata).unwrap();
        accepted(metadata, true, None).map(drop)
    }

    #[test]
    fn addresses_of_private_networks_are_known() {
        for (address, expected) in [
            ("10.0.0.9", true),
            ("192.168.1.1", true),
            ("100.64.0.1", true),
            ("fd00::1", true),
            ("::ffff:10.0.0.9", true),
            ("100.128.0.1", false),
            ("93.184.216.34", false),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("2606:4700::1111", false),
        ] {
            assert_eq!(is_private(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[tokio::test]
    async fn a_callback_with_another_state_is_ignored() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let waiting = tokio::spawn(redirected(listener, "right".into()));
        net::use_ring();
        let get = |path: &str| reqwest::get(format!("{address}{path}"));
        assert_eq!(get("/callback?code=1&state=wrong").await.unwrap().status(), 404);
        assert_eq!(get("/other?code=1&state=right").await.unwrap().status(), 404);
        assert!(!waiting.is_finished());
        get("/callback?code=1&state=right").await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().query(), Some("code=1&state=right"));
    }

    #[tokio::test]
    async fn a_denied_login_gives_the_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address =
            format!("http://{}/callback?error=access_denied&state=s", listener.local_addr().unwrap());
        let waiting = tokio::spawn(redirected(listener, "s".into()));
        net::use_ring();
        reqwest::get(address).await.unwrap();
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("access_denied"), "{error}");
    }
}
