//! Test support for stages: a context with a card's defaults and in-memory records.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Artifacts, Cards, Context, Input, Metrics, Rows};
use crate::{
    demo::HttpServer,
    engine::EngineSpec,
    error::Result,
    hash::Digest,
    mcp::{ServerSpec, State, Transport},
    model::{Decoder, Init, ModelConfig, kernels::Heads, read_safetensors, write_safetensors},
    progress::{NoProgress, Observer},
};

/// Rows in memory, and a checkpoint in a temporary folder.
pub struct Ledger(Mutex<BTreeMap<String, Vec<u8>>>, tempfile::TempDir);

impl Default for Ledger {
    fn default() -> Self {
        Self(Mutex::default(), tempfile::tempdir().unwrap())
    }
}

impl Rows for Ledger {
    fn finished(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn record(&self, key: &str, row: &[u8]) -> Result<()> {
        self.0.lock().unwrap().insert(key.to_owned(), row.to_owned());
        Ok(())
    }

    fn checkpoint(&self) -> Option<PathBuf> {
        Some(self.1.path().join("checkpoint")).filter(|path| path.exists())
    }

    fn replace_checkpoint(&self, write: &dyn Fn(&Path) -> Result<()>) -> Result<()> {
        write(&self.1.path().join("checkpoint"))
    }
}

/// Rows that stop the stage after this many rows or checkpoints are recorded.
pub struct Killer {
    rows: Arc<Ledger>,
    left: AtomicUsize,
    cancel: CancellationToken,
}

impl Killer {
    /// Lets the stage of this context record this many rows or checkpoints.
    pub fn watch(context: &mut Context, rows: &Arc<Ledger>, left: usize) {
        let cancel = CancellationToken::new();
        context.cancel = cancel.clone();
        context.rows = Arc::new(Self { rows: rows.clone(), left: left.into(), cancel });
    }

    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.cancel.cancel();
        }
    }
}

impl Rows for Killer {
    fn finished(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        self.rows.finished()
    }

    fn record(&self, key: &str, row: &[u8]) -> Result<()> {
        self.count();
        self.rows.record(key, row)
    }

    fn checkpoint(&self) -> Option<PathBuf> {
        self.rows.checkpoint()
    }

    fn replace_checkpoint(&self, write: &dyn Fn(&Path) -> Result<()>) -> Result<()> {
        self.count();
        self.rows.replace_checkpoint(write)
    }
}

/// The first token that the rigged tokenizers add.
const ADDED: usize = 407;
const END_OF_TURN: usize = 402;

/// A policy whose every turn is one of these calls, with equal probability: {name, arguments}.
///
/// Each call is one token of its tokenizer.
pub fn caller(folder: &Path, calls: &[Value]) {
    let (open, close) = (403, 404);
    let texts: Vec<String> = calls.iter().map(Value::to_string).collect();
    let state = |token: usize| match token {
        _ if token == open => 1,
        ADDED.. => 2,
        _ if token == close => 3,
        _ => 0,
    };
    let follow = [(0, open), (2, close), (3, END_OF_TURN)];
    let follow: Vec<_> = follow.into_iter().chain((0..calls.len()).map(|call| (1, ADDED + call))).collect();
    rigged(folder, &texts, 2048, state, &follow);
}

/// A policy whose every turn is one of these texts, with equal probability. Each text is one token of its tokenizer.
pub fn replier(folder: &Path, replies: &[String], context: usize) {
    let follow: Vec<_> =
        (0..replies.len()).map(|reply| (0, ADDED + reply)).chain([(1, END_OF_TURN)]).collect();
    rigged(folder, replies, context, |token| usize::from(token >= ADDED), &follow);
}

/// A model that is in the state of its last token, and then samples one of the tokens that follow the state. Its tokenizer
/// has these texts as tokens. The decoder's layers add nothing, so a token alone decides the next.
fn rigged(
    folder: &Path,
    added: &[String],
    context: usize,
    state: impl Fn(usize) -> usize,
    follow: &[(usize, usize)],
) {
    let chat = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/chat/qwen3");
    std::fs::create_dir_all(folder).unwrap();
    for name in ["tokenizer_config.json", "chat_template.jinja"] {
        std::fs::copy(chat.join(name), folder.join(name)).unwrap();
    }
    let tokenizer = std::fs::read(chat.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    for (index, text) in added.iter().enumerate() {
        tokenizer["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": ADDED + index, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false,
        }));
    }
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();

    let config = ModelConfig {
        vocabulary: ADDED + added.len(),
        hidden: 32,
        intermediate: 32,
        layers: 1,
        heads: Heads { query: 2, kv: 1, dim: 16 },
        context,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-6,
        tied: false,
        design: crate::model::Design::default(),
    };
    let (vocabulary, hidden) = (config.vocabulary, config.hidden);
    Decoder::random(config, Init { seed: 1, deviation: 0.0 }).unwrap().save(folder).unwrap();
    let mut embedding = vec![0.0_f32; vocabulary * hidden];
    let mut head = embedding.clone();
    for token in 0..vocabulary {
        embedding[token * hidden + state(token)] = 1.0;
    }
    for (state, next) in follow {
        head[next * hidden + state] = 30.0;
    }
    let path = folder.join("model.safetensors");
    let mut tensors = read_safetensors(&path).unwrap();
    for (name, values) in [("model.embed_tokens.weight", embedding), ("lm_head.weight", head)] {
        let tensor =
            candle_core::Tensor::from_vec(values, (vocabulary, hidden), &candle_core::Device::Cpu).unwrap();
        assert!(tensors.insert(name.into(), tensor).is_some(), "{name}");
    }
    write_safetensors(&path, &tensors).unwrap();
}

/// A server over HTTP with a tool `t`, whose calls get what this says of their arguments: a status, and a result with 200.
pub async fn tool_server(status: impl Fn(&Value) -> u16 + Clone + Send + Sync + 'static) -> ServerSpec {
    use axum::{http::StatusCode, response::IntoResponse, routing::post};
    let answer = move |body: String| async move {
        let request: Value = serde_json::from_str(&body).unwrap();
        let result = match request["method"].as_str().unwrap() {
            "initialize" => json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
            }),
            "tools/list" => json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}),
            "tools/call" => match status(&request["params"]["arguments"]) {
                200 => json!({"content": [{"type": "text", "text": "fine"}]}),
                status => return StatusCode::from_u16(status).unwrap().into_response(),
            },
            _ => return StatusCode::ACCEPTED.into_response(),
        };
        let reply = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
        ([("mcp-session-id", "s")], axum::Json(reply)).into_response()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, axum::Router::new().route("/mcp", post(answer))).await });
    ServerSpec::new(Transport::http(url), State::ReadOnly)
}

/// The demo server `sqlite` in this process.
pub async fn sqlite_server() -> ServerSpec {
    let server = HttpServer::bind("sqlite", ([127, 0, 0, 1], 0).into()).await.unwrap();
    let url = server.url().unwrap();
    tokio::spawn(server.serve());
    ServerSpec::new(Transport::http(url), State::ReadOnly)
}

/// A decoder of two layers, for stages that train.
pub fn small_model() -> ModelConfig {
    ModelConfig {
        vocabulary: 60,
        hidden: 32,
        intermediate: 48,
        layers: 2,
        heads: Heads { query: 4, kv: 2, dim: 8 },
        context: 64,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-6,
        tied: true,
        design: crate::model::Design::default(),
    }
}

/// Runs the stage that a context belongs to.
pub async fn run(context: &Context) -> Result<Metrics> {
    super::parse(&context.card, &context.params)?.run(context).await
}

/// Notes of a stage.
#[derive(Default)]
pub struct Notes(pub Mutex<Vec<String>>);

impl Observer for Notes {
    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

struct NoArtifacts;

impl Artifacts for NoArtifacts {
    fn folder(&self, digest: &Digest) -> Result<PathBuf> {
        panic!("no artifact {digest} in this test")
    }
}

/// The context of a stage of this kind: its card's defaults, with `params` over them.
pub fn context(kind: &str, inputs: &[(&str, &Path)], output: &Path, params: Value) -> (Context, Arc<Ledger>) {
    let card = Cards::new(None).get(kind).unwrap().unwrap();
    let defaults =
        card.params.iter().filter_map(|(name, param)| Some((name.clone(), param.default.clone()?)));
    let given = params.as_object().cloned().unwrap_or_default();
    let input = |(role, path): &(&str, &Path)| {
        let input = Input { name: (*role).into(), digest: Digest::of(role.as_bytes()), path: (*path).into() };
        ((*role).to_owned(), vec![input])
    };
    std::fs::create_dir_all(output).unwrap();
    let rows = Arc::new(Ledger::default());
    let context = Context {
        stage: kind.into(),
        card: card.clone(),
        params: defaults.chain(given).collect(),
        inputs: inputs.iter().map(input).collect(),
        output_folder: output.into(),
        scratch: output.join("scratch"),
        seed: 7,
        servers: None,
        engine: EngineSpec { threads: Some(2), ..EngineSpec::default() },
        artifacts: Arc::new(NoArtifacts),
        rows: rows.clone(),
        observer: Arc::new(NoProgress),
        models: Arc::default(),
        prices: card.prices,
        meter: Arc::default(),
        shard: None,
        cancel: CancellationToken::new(),
    };
    (context, rows)
}
