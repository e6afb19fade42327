use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::IntoResponse,
};

use super::*;

/// A request as the hub got it.
#[derive(Debug, Clone)]
struct SeenRequest {
    line: String,
    body: String,
    token: bool,
    length: Option<String>,
}

/// What a hub does.
#[derive(Default)]
struct Conduct {
    /// Objects that it has.
    known: Vec<String>,
    chunk: Option<u64>,
    /// Whether the store of objects refuses.
    store_refuses: bool,
    /// Answers that fail first.
    busy: Mutex<u32>,
    status: Option<StatusCode>,
}

struct Mock {
    url: String,
    conduct: Conduct,
    asked: Mutex<Vec<SeenRequest>>,
}

async fn answer(
    State(mock): State<Arc<Mock>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> axum::response::Response {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let asked = SeenRequest {
        line: format!("{method} {}", uri.path()),
        body: String::from_utf8_lossy(&body).into_owned(),
        token: text("authorization").is_some_and(|value| value == "Bearer hf_token"),
        length: text("content-length"),
    };
    mock.asked.lock().unwrap().push(asked.clone());
    if let Some(status) = mock.conduct.status {
        return (status, "no").into_response();
    }
    {
        let mut busy = mock.conduct.busy.lock().unwrap();
        if *busy > 0 {
            *busy -= 1;
            return (StatusCode::SERVICE_UNAVAILABLE, "busy").into_response();
        }
    }
    let json = |value: Value| axum::Json(value).into_response();
    let given: Value = serde_json::from_str(&asked.body).unwrap_or_default();
    let path = uri.path();
    if path.contains("/preupload/") {
        let mode = |file: &Value| {
            let name = file["path"].as_str().unwrap();
            let mode = if name.ends_with(".safetensors") { "lfs" } else { "regular" };
            json!({"path": name, "uploadMode": mode, "shouldIgnore": name.ends_with(".lock")})
        };
        return json(
            json!({"files": given["files"].as_array().unwrap().iter().map(mode).collect::<Vec<_>>()}),
        );
    }
    if path.ends_with("/objects/batch") {
        let object = |object: &Value| {
            let oid = object["oid"].as_str().unwrap();
            if mock.conduct.known.iter().any(|known| known == oid) {
                return json!({"oid": oid, "size": object["size"]});
            }
            // Another origin: the store has another name.
            let store = mock.url.replace("127.0.0.1", "localhost");
            let mut upload = json!({"href": format!("{store}/store/{oid}?signature=s1gned"), "header": {}});
            if let Some(chunk) = mock.conduct.chunk {
                let parts = object["size"].as_u64().unwrap().div_ceil(chunk);
                upload["href"] = format!("{}/complete?signature=s1gned", mock.url).into();
                upload["header"]["chunk_size"] = chunk.to_string().into();
                for part in 1..=parts {
                    upload["header"][format!("{part:05}")] = format!("{store}/part/{part}").into();
                }
            }
            json!({"oid": oid, "size": object["size"], "actions": {"upload": upload, "verify": {"href": format!("{}/verify", mock.url)}}})
        };
        let objects: Vec<Value> = given["objects"].as_array().unwrap().iter().map(object).collect();
        return json(json!({"transfer": "basic", "objects": objects}));
    }
    if mock.conduct.store_refuses && (path.starts_with("/store/") || path.starts_with("/complete")) {
        return (StatusCode::FORBIDDEN, "SignatureProvided=s1gned").into_response();
    }
    if path.contains("/commit/") {
        return json(json!({"commitUrl": format!("{}/org/name/commit/1", mock.url)}));
    }
    if path.starts_with("/part/") {
        return ([("etag", format!("\"{}\"", path.trim_start_matches("/part/")))], "").into_response();
    }
    match (method, path) {
        (Method::GET, "/api/models/org/name") => json(json!({"private": true})),
        (Method::GET, _) => (StatusCode::NOT_FOUND, "none").into_response(),
        _ => json(json!({})),
    }
}

async fn mock(conduct: Conduct) -> (Arc<Mock>, Hub) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mock = Arc::new(Mock { url: url.clone(), conduct, asked: Mutex::default() });
    let app = Router::new().fallback(answer).with_state(mock.clone());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (mock, Hub::new(&url, Some("hf_token".into())).unwrap())
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    for (name, text) in [
        ("README.md", "# x\n"),
        ("w.safetensors", "weights!"),
        ("sub/a.json", "{}"),
        (".hidden", "x"),
        ("b.lock", "x"),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn repo() -> Repo {
    Repo::parse("hub:org/name", Kind::Model).unwrap()
}

fn oid() -> String {
    hex(ring::digest::digest(&SHA256, b"weights!").as_ref())
}

async fn upload(hub: &Hub) -> Result<(String, Vec<(String, Step)>), HubError> {
    let folder = folder();
    let mut said = Vec::new();
    let say = &mut |file: &File, step: Step| said.push((file.name.clone(), step));
    let url = hub.upload(&repo(), &files(folder.path()).unwrap(), "Upload", say).await?;
    Ok((url, said))
}

#[tokio::test]
async fn small_files_are_in_the_commit_and_large_ones_are_uploaded_before() {
    let (mock, hub) = mock(Conduct::default()).await;
    let (url, said) = upload(&hub).await.unwrap();
    assert!(url.ends_with("/org/name/commit/1"));
    let of = |name: &str, step| (name.to_owned(), step);
    assert_eq!(said, [of("b.lock", Step::Ignored), of("w.safetensors", Step::Uploading)]);
    let asked = mock.asked.lock().unwrap().clone();
    let lines: Vec<&str> = asked.iter().map(|asked| asked.line.as_str()).collect();
    let put = format!("PUT /store/{}", oid());
    assert_eq!(
        lines,
        [
            "POST /api/models/org/name/preupload/main",
            "POST /org/name.git/info/lfs/objects/batch",
            &put,
            "POST /verify",
            "POST /api/models/org/name/commit/main",
        ]
    );
    assert_eq!(asked.iter().map(|asked| asked.token).collect::<Vec<_>>(), [true, true, false, true, true]);
    assert_eq!((asked[2].body.as_str(), asked[2].length.as_deref()), ("weights!", Some("8")));
    let commit: Vec<Value> = asked[4].body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        commit,
        [
            json!({"key": "header", "value": {"summary": "Upload", "description": ""}}),
            json!({"key": "file", "value": {"content": BASE64.encode("# x\n"), "path": "README.md", "encoding": "base64"}}),
            json!({"key": "file", "value": {"content": BASE64.encode("{}"), "path": "sub/a.json", "encoding": "base64"}}),
            json!({"key": "lfsFile", "value": {"path": "w.safetensors", "algo": "sha256", "oid": oid(), "size": 8}}),
        ]
    );
}

#[tokio::test]
async fn what_the_hub_has_is_not_sent_again_and_a_busy_hub_is_asked_again() {
    let conduct = Conduct { known: vec![oid()], busy: Mutex::new(2), ..Conduct::default() };
    let (mock, hub) = mock(conduct).await;
    let (_, said) = upload(&hub).await.unwrap();
    assert!(said.contains(&("w.safetensors".to_owned(), Step::There)), "{said:?}");
    let asked = mock.asked.lock().unwrap().clone();
    assert!(!asked.iter().any(|asked| asked.line.starts_with("PUT")), "{asked:?}");
    assert_eq!(asked.iter().filter(|asked| asked.line.contains("preupload")).count(), 3);
}

#[tokio::test]
async fn a_large_file_goes_in_parts() {
    let (mock, hub) = mock(Conduct { chunk: Some(3), ..Conduct::default() }).await;
    upload(&hub).await.unwrap();
    let asked = mock.asked.lock().unwrap().clone();
    let parts: Vec<&str> =
        asked.iter().filter(|asked| asked.line.starts_with("PUT")).map(|asked| asked.body.as_str()).collect();
    assert_eq!(parts, ["wei", "ght", "s!"]);
    let complete = asked.iter().find(|asked| asked.line == "POST /complete").unwrap();
    let part = |number: u32| json!({"partNumber": number, "etag": format!("\"{number}\"")});
    let body: Value = serde_json::from_str(&complete.body).unwrap();
    assert_eq!(body, json!({"oid": oid(), "parts": [part(1), part(2), part(3)]}));
}

#[tokio::test]
async fn repositories_are_made_and_their_visibility_is_known() {
    let (mock, hub) = mock(Conduct::default()).await;
    assert_eq!(hub.is_private(&repo()).await.unwrap(), Some(true));
    let data = Repo::parse("org/data", Kind::Dataset).unwrap();
    assert_eq!(hub.is_private(&data).await.unwrap(), None);
    hub.create(&data, true).await.unwrap();
    let asked = mock.asked.lock().unwrap().clone();
    let body: Value = serde_json::from_str(&asked.last().unwrap().body).unwrap();
    let expected = json!({"name": "data", "organization": "org", "visibility": "private", "type": "dataset"});
    assert_eq!(body, expected);
    assert_eq!(hub.page(&data), format!("{}/datasets/org/data", mock.url));
}

#[tokio::test]
async fn a_refusal_is_an_error_at_once() {
    let (mock, hub) = mock(Conduct { status: Some(StatusCode::FORBIDDEN), ..Conduct::default() }).await;
    let error = upload(&hub).await.unwrap_err();
    assert!(matches!(error, HubError::Status { status: 403, .. }), "{error}");
    assert_eq!(mock.asked.lock().unwrap().len(), 1);
}

#[test]
fn names_addresses_and_tokens_are_checked() {
    for text in ["name", "a/b/c", "/x", "a/", "-a/b", "a/b c", "hub:a"] {
        assert_eq!(Repo::parse(text, Kind::Model).unwrap_err().code_of(), "push::name", "{text}");
    }
    let code = |endpoint: &str, token: Option<&str>| {
        Hub::new(endpoint, token.map(str::to_owned)).err().map(|error| error.code_of())
    };
    assert_eq!(code("https://huggingface.co", None), Some("push::no_token"));
    assert_eq!(code("http://example.com", Some("x")), Some("push::endpoint"));
    assert_eq!(code("nowhere", Some("x")), Some("push::endpoint"));
    assert_eq!(code("https://huggingface.co/", Some("x")), None);
}

impl HubError {
    fn code_of(&self) -> &'static str {
        crate::error::Diagnostic::code(self)
    }
}

#[tokio::test]
async fn no_error_has_the_permission_of_a_signed_address() {
    for chunk in [None, Some(3)] {
        let (_mock, hub) = mock(Conduct { store_refuses: true, chunk, ..Conduct::default() }).await;
        let error = upload(&hub).await.unwrap_err();
        assert!(matches!(error, HubError::Status { status: 403, .. }), "{error}");
        let text = crate::error::chain(&error);
        // What the hub itself says is shown, and nothing of what the store says.
        assert!(!text.contains("signature=") && (chunk.is_some() || !text.contains("s1gned")), "{text}");
    }
}
