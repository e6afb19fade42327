use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path as UrlPath, State},
    http::{HeaderMap, Method, Response, StatusCode},
    routing::get,
};
use candle_core::{Device, Tensor};
use futures::StreamExt;
use serde_json::{Map, Value, json};

use super::*;
use crate::{
    agent::{self, Agent, PromptTokens, Script, Toolbox},
    chat::ToolCall,
    data::{Message, Tool},
    engine::EngineSpec,
    error::Diagnostic,
    mcp::{McpError, Outcome},
    model::{Adapter, AdapterConfig, Decoder, Init, merge, write_safetensors},
    progress::NoProgress,
    stage::{
        self, SharedModels,
        model_files::RECORD,
        preflight::{ExpectedInputs, PreflightContext},
        testing::{self, Notes, context},
    },
    store::{FileDigests, Store},
};

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference")
}

/// A model folder of the Llama family with a tokenizer of 407 tokens.
fn model(folder: &Path) {
    let config = std::fs::read(reference().join("fixtures/families/llama/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["vocab_size"] = json!(407);
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let config = ModelConfig::load(folder).unwrap();
    Decoder::random(config, Init { seed: 1, deviation: 0.02 }).unwrap().save(folder).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        std::fs::copy(reference().join("chat/qwen3").join(name), folder.join(name)).unwrap();
    }
}

/// Runs the stage on a folder. Returns its output folder.
async fn taken(from: &Path) -> (tempfile::TempDir, Result<Metrics>) {
    let output = tempfile::tempdir().unwrap();
    let (context, _) = context("model", &[], output.path(), json!({"from": from}));
    let metrics = testing::run(&context).await;
    (output, metrics)
}

#[tokio::test]
async fn a_folder_becomes_a_policy_without_what_is_not_part_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    for name in ["pytorch_model.bin", "README.md", "consolidated.safetensors"] {
        std::fs::write(folder.path().join(name), "other").unwrap();
    }
    let (output, metrics) = taken(folder.path()).await;
    let metrics = metrics.unwrap();
    let policy = output.path().join("policy");
    let names: Vec<String> = listed(&policy).unwrap().into_iter().map(|(name, _)| name).collect();
    let expected = [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names, expected);
    assert_eq!(std::fs::read_dir(&policy).unwrap().count(), expected.len());
    let decoder = Decoder::load(&policy).unwrap();
    let weights: usize = decoder.tensors().unwrap().iter().map(|(_, tensor)| tensor.elem_count()).sum();
    assert_eq!(metrics["parameters"], weights as f64);
}

/// Puts a template with a distinct word before those that mention tools.
fn for_tools(folder: &Path, word: &str) {
    let template = std::fs::read_to_string(folder.join("chat_template.jinja")).unwrap();
    std::fs::create_dir(folder.join("additional_chat_templates")).unwrap();
    std::fs::write(folder.join(TOOL_TEMPLATE), format!("{word}{template}")).unwrap();
    std::fs::write(folder.join("additional_chat_templates/rag.jinja"), "other").unwrap();
}

#[tokio::test]
async fn a_tool_template_is_imported_and_used_as_transformers_does() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let prompt = |folder: &Path| {
        let prompt = Chat::load(folder).unwrap().with_tools("", &[]).unwrap().prompt("task").unwrap();
        [prompt.shared, prompt.task].concat()
    };
    let plain = prompt(folder.path());
    let store = Store::open(folder.path().join("store")).unwrap();
    let key = || FileDigests::load(&store).folder(folder.path(), wanted).unwrap();
    let before = key();
    for_tools(folder.path(), "Tools ahead. ");
    assert_ne!(key(), before);
    let (output, metrics) = taken(folder.path()).await;
    metrics.unwrap();
    let policy = output.path().join("policy");
    let templates: Vec<_> = std::fs::read_dir(policy.join("additional_chat_templates")).unwrap().collect();
    assert_eq!(templates.len(), 1);
    assert!(prompt(&policy).len() > plain.len() && prompt(&policy).ends_with(&plain));
}

#[tokio::test]
async fn a_model_that_cannot_act_is_refused_before_anything_is_sampled() {
    type Spoil = fn(&Path);
    let spoil: [(&str, Spoil); 5] = [
        ("model::vocabulary", |folder| {
            let mut config = ModelConfig::load(folder).unwrap();
            config.vocabulary = 300;
            Decoder::random(config, Init { seed: 1, deviation: 0.02 }).unwrap().save(folder).unwrap();
        }),
        ("chat::", |folder| std::fs::remove_file(folder.join("chat_template.jinja")).unwrap()),
        ("chat::", |folder| std::fs::remove_file(folder.join("tokenizer.json")).unwrap()),
        ("model::not_finite", |folder| {
            let path = folder.join("model.safetensors");
            let tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
            let mut tensors: std::collections::BTreeMap<_, _> = tensors.into_iter().collect();
            let norm = Tensor::from_vec(vec![f32::NAN; 32], 32, &Device::Cpu).unwrap();
            tensors.insert("model.norm.weight".into(), norm);
            write_safetensors(&path, &tensors).unwrap();
        }),
        ("model::read", |folder| std::fs::remove_file(folder.join("config.json")).unwrap()),
    ];
    for (code, spoil) in spoil {
        let folder = tempfile::tempdir().unwrap();
        model(folder.path());
        spoil(folder.path());
        let (_, result) = taken(folder.path()).await;
        let error = result.unwrap_err();
        assert!(error.code().starts_with(code), "{} for {code}", error.code());
    }
}

#[tokio::test]
async fn a_model_without_a_template_for_tools_is_taken_to_judge() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}assistant: ";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    for (calls_tools, code) in [(true, Some("chat::template_without_tools")), (false, None)] {
        let output = tempfile::tempdir().unwrap();
        let params = json!({"from": folder.path(), "calls_tools": calls_tools});
        let (context, _) = context("model", &[], output.path(), params);
        let error = testing::run(&context).await.err();
        assert_eq!(error.map(|error| error.code()), code);
    }
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    let output = tempfile::tempdir().unwrap();
    let (context, _) =
        context("model", &[], output.path(), json!({"from": folder.path(), "calls_tools": false}));
    assert_eq!(testing::run(&context).await.unwrap_err().code(), "chat::no_template");
}

#[test]
fn a_model_that_claims_absurdly_many_layers_is_refused_for_its_missing_tensors() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["num_hidden_layers"] = json!(4_000_000_000_u64);
    std::fs::write(&path, config.to_string()).unwrap();
    let params = json!({"from": folder.path(), "calls_tools": true});
    let card = crate::stage::Cards::new(None).get("model").unwrap().unwrap();
    let inputs = &ExpectedInputs::new();
    let engine = EngineSpec::default();
    let context = PreflightContext {
        card: &card,
        seed: 1,
        inputs,
        engine: &engine,
        prices: None,
        finished: &|_| None,
        shared: &SharedModels::default(),
    };
    let stage = stage::parse(&card, params.as_object().unwrap()).unwrap();
    let preflight = stage.preflight(&context);
    let codes: Vec<&str> = preflight.findings.iter().map(|found| found.cause.code()).collect();
    assert_eq!((codes, preflight.outputs.len()), (vec!["model::missing_tensor"], 0));
    assert_eq!(Decoder::load(folder.path()).unwrap_err().code(), "model::missing_tensor");
}

#[tokio::test]
async fn a_long_context_has_the_long_factors_twice() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let config = std::fs::read(reference().join("fixtures/families/phi4-mini/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["vocab_size"] = json!(407);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let short = ModelConfig::load(folder.path()).unwrap();
    let random = Decoder::random(short.clone(), Init { seed: 1, deviation: 0.02 }).unwrap();
    random.save(folder.path()).unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    assert_eq!(short.context, 64);

    let params = json!({"from": folder.path(), "calls_tools": true, "long_context": true});
    let said = said_by_doctor(&params, None).await;
    assert!(said[0].contains("context of 256 tokens"), "{said:?}");
    let output = tempfile::tempdir().unwrap();
    let (context, _) = context("model", &[], output.path(), params);
    assert_eq!(testing::run(&context).await.unwrap()["context"], 256.0);
    let written = std::fs::read(output.path().join("policy/config.json")).unwrap();
    config["rope_parameters"]["short_factor"] = config["rope_parameters"]["long_factor"].clone();
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), config);
    assert_eq!(ModelConfig::load(folder.path()).unwrap(), short, "the source is as it was");
}

#[tokio::test]
async fn a_long_context_needs_long_factors() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let params = json!({"from": folder.path(), "calls_tools": true, "long_context": true});
    let said = said_by_doctor(&params, None).await;
    assert!(said[0].contains("`long_context` is for models with LongRoPE"), "{said:?}");
    let output = tempfile::tempdir().unwrap();
    let (context, _) = context("model", &[], output.path(), params);
    assert_eq!(testing::run(&context).await.unwrap_err().code(), "model::no_long_factors");
}

/// Gives the rows of these tokens, and those that no token has, one and the same content in both embeddings.
fn forget(folder: &Path, tokens: &[usize]) {
    let path = folder.join("model.safetensors");
    let tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let mut tensors: std::collections::BTreeMap<_, _> = tensors.into_iter().collect();
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        let mut rows = tensors[name].to_vec2::<f32>().unwrap();
        let width = rows[0].len();
        for id in tokens.iter().copied().chain(407..rows.len()) {
            rows[id] = (0..width).map(|at| 0.01 * (at % 5) as f32).collect();
        }
        tensors.insert(name.into(), Tensor::new(rows, &Device::Cpu).unwrap());
    }
    write_safetensors(&path, &tensors).unwrap();
}

/// A model with 413 rows for 407 tokens, of which these are untrained, and the tokenizer files of a model on the hub.
fn untrained_model(folder: &Path, tokens: &[usize]) {
    model(folder);
    let mut config = ModelConfig::load(folder).unwrap();
    config.vocabulary = 413;
    Decoder::random(config, Init { seed: 1, deviation: 0.02 }).unwrap().save(folder).unwrap();
    forget(folder, tokens);
    let added = json!({"403": {"content": "<tool_call>"}, "404": {"content": "</tool_call>"}, "405": {"content": "<think>"}});
    let config = json!({
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": added,
        "extra_special_tokens": ["<tool_call>", "<think>"],
    });
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("added_tokens.json"), json!({"<tool_call>": 403, "<think>": 405}).to_string())
        .unwrap();
}

#[tokio::test]
async fn tags_that_the_model_was_never_trained_on_become_text() {
    let folder = tempfile::tempdir().unwrap();
    untrained_model(folder.path(), &[403, 404]);
    let original = std::fs::read(folder.path().join("tokenizer.json")).unwrap();
    let output = tempfile::tempdir().unwrap();
    let (mut context, _) = context("model", &[], output.path(), json!({"from": folder.path()}));
    let notes = Arc::new(Notes::default());
    context.observer = notes.clone();
    testing::run(&context).await.unwrap();
    let policy = output.path().join("policy");
    let tags = ["<tool_call>", "</tool_call>"].map(str::to_owned);
    assert_eq!(Record::load(&policy).demoted_tokens, ["<tool_call>", "</tool_call>"]);
    let said = "`<tool_call>` and `</tool_call>` are in the chat template, but the model was not trained on them; \
                ordinary text in the tokenizer of this artifact";
    assert!(notes.0.lock().unwrap().iter().any(|note| note == said), "{:?}", notes.0);

    // The other tokens keep their ids, and the other files do not bring the tags back.
    let read = |path: &Path| Tokenizer::from_file(path.join("tokenizer.json")).unwrap();
    let (before, after) = (read(folder.path()), read(&policy));
    let mut expected = before.get_vocab(true);
    expected.retain(|token, _| !tags.contains(token));
    assert_eq!(after.get_vocab(true), expected);
    let json =
        |name: &str| -> Value { serde_json::from_slice(&std::fs::read(policy.join(name)).unwrap()).unwrap() };
    assert_eq!(json("tokenizer_config.json")["added_tokens_decoder"], json!({"405": {"content": "<think>"}}));
    assert_eq!(json("tokenizer_config.json")["extra_special_tokens"], json!(["<think>"]));
    assert_eq!(json("added_tokens.json"), json!({"<think>": 405}));
    assert_eq!(
        std::fs::read(folder.path().join("tokenizer.json")).unwrap(),
        original,
        "the source is untouched"
    );

    // A conversation is the same text, made of other tokens.
    let chat = |folder: &Path| Chat::load(folder).unwrap().with_tools("", &[]).unwrap();
    let (chat, usual) = (chat(&policy), chat(folder.path()));
    let call = crate::chat::ToolCall { name: "look".into(), arguments: Map::new() };
    let (turn, usually) =
        (chat.assistant("", std::slice::from_ref(&call)), usual.assistant("", std::slice::from_ref(&call)));
    assert!(usually.contains(&403) && !turn.contains(&403));
    assert_eq!(chat.decode(&turn), usual.decode(&usually));
    assert_eq!(chat.parse(&[], &turn).calls, [Ok(call)]);
    let params = json!({"from": folder.path(), "calls_tools": true});
    let doctor = said_by_doctor(&params, Some(&policy)).await;
    assert!(doctor.iter().any(|line| line.contains("`</tool_call>` are in the chat template")), "{doctor:?}");
    let doctor = said_by_doctor(&params, None).await;
    assert!(doctor.iter().any(|line| line.contains("`</tool_call>` are in the chat template")), "{doctor:?}");
}

/// The texts of `doctor` about the stage, whose output is in this folder if it has run.
async fn said_by_doctor(params: &Value, finished: Option<&Path>) -> Vec<String> {
    let card = crate::stage::Cards::new(None).get("model").unwrap().unwrap();
    let inputs = &ExpectedInputs::new();
    let engine = EngineSpec::default();
    let context = PreflightContext {
        card: &card,
        seed: 1,
        inputs,
        engine: &engine,
        prices: None,
        finished: &|_| finished.map(Path::to_owned),
        shared: &SharedModels::default(),
    };
    let stage = stage::parse(&card, params.as_object().unwrap()).unwrap();
    let preflight = stage.preflight(&context);
    let problems = preflight.findings.iter().map(|found| found.cause.to_string());
    let requirements =
        stage.requirements(&preflight.outputs).await.into_iter().map(|requirement| match requirement {
            Requirement::Met(text) | Requirement::Doubtful { text, .. } => text,
            Requirement::Missing(cause) => cause.to_string(),
        });
    problems.chain(requirements).collect()
}

#[tokio::test]
async fn a_control_token_without_training_is_reported_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    untrained_model(folder.path(), &[401]);
    let output = tempfile::tempdir().unwrap();
    let (mut context, _) = context("model", &[], output.path(), json!({"from": folder.path()}));
    let notes = Arc::new(Notes::default());
    context.observer = notes.clone();
    testing::run(&context).await.unwrap();
    let said = "`<|im_start|>` is in the chat template, but the model was not trained on it";
    assert!(notes.0.lock().unwrap().iter().any(|note| note == said), "{:?}", notes.0);
    let policy = output.path().join("policy");
    assert!(!policy.join(RECORD).exists());
    let bytes = |folder: &Path| std::fs::read(folder.join("tokenizer.json")).unwrap();
    assert_eq!(bytes(&policy), bytes(folder.path()));
}

#[test]
fn a_tokenizer_that_cannot_do_without_a_tag_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let path = folder.path().join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    // Merges give the tag again, so its entry is needed.
    let vocab = file["model"]["vocab"].as_object_mut().unwrap();
    vocab.insert("<t".into(), json!(407));
    vocab.insert("<t>".into(), json!(408));
    let merges = file["model"]["merges"].as_array_mut().unwrap();
    merges.extend([json!(["<", "t"]), json!(["<t", ">"])]);
    std::fs::write(&path, file.to_string()).unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(!demote(folder.path(), &["<t>".to_owned()]).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert!(!folder.path().join(RECORD).exists());
}

/// Answers every call with its arguments.
struct Echo;

impl agent::ToolServer for Echo {
    async fn call(&self, _: &str, arguments: Map<String, Value>) -> Result<Outcome, McpError> {
        Ok(Outcome { text: Value::from(arguments).to_string(), is_error: false })
    }
}

#[tokio::test]
async fn a_server_that_re_tokenizes_a_conversation_gives_a_merged_model_the_tokens_it_was_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    untrained_model(folder.path(), &[403, 404]);
    let (output, metrics) = taken(folder.path()).await;
    metrics.unwrap();
    let base = output.path().join("policy");

    let tool = |name: &str, synthetic: bool| Tool {
        name: name.into(),
        server_name: if synthetic { String::new() } else { name.into() },
        description: String::new(),
        input_schema: "{}".into(),
        output_schema: None,
        annotations: None,
        function: json!({"type": "function", "function": {"name": name}}).to_string(),
        synthetic,
        listed: None,
    };
    let toolbox = Toolbox::new(&[tool("look", false), tool("complete_task", true)]).unwrap();
    let chat = Chat::load(&base).unwrap().with_tools("Be brief.", toolbox.functions()).unwrap();
    let call = |name: &str, arguments: Value| ToolCall {
        name: name.into(),
        arguments: arguments.as_object().unwrap().clone(),
    };
    let calls = [
        call("look", json!({"at": "the </tool_call> shelf"})),
        call("look", json!({"at": "the box"})),
        call("complete_task", json!({"answer": "there"})),
    ];
    let settings = json!({
        "system": null, "max_turns": 4, "max_turn_tokens": 400, "max_episode_tokens": 4000, "max_calls": 3,
        "result_chars": 100, "thinking": "template", "history_thinking": "template", "strict_calls": true,
        "reminder": false, "text_answers": false, "harness_timeout_s": 600.0,
    });
    let settings = serde_json::from_value(settings).unwrap();
    let (script, prompt) =
        (Script::new(&chat, &calls, ""), PromptTokens::new(&chat, "Is <tool_call> a tag?").unwrap());
    let agent = Arc::new(Agent { chat, toolbox, settings });
    let episode = agent::episode(script, &Echo, &agent, &prompt).await.unwrap();
    assert_eq!(episode.answer.as_deref(), Some("there"));

    let adapter = tempfile::tempdir().unwrap();
    let mut decoder = Decoder::load(&base).unwrap();
    let config = AdapterConfig::new(2, 4.0);
    Adapter::fresh(&mut decoder, &config, 1).unwrap();
    Adapter::save(&decoder, &config, "base", adapter.path()).unwrap();
    let merged = tempfile::tempdir().unwrap();
    merge(&base, adapter.path(), merged.path()).unwrap();

    let template = |folder: &Path| std::fs::read(folder.join("chat_template.jinja")).unwrap();
    assert_eq!(template(merged.path()), template(folder.path()));
    // A template may write the last turn differently, so another message follows.
    let mut messages = episode.history.messages.clone();
    let id = messages.last().unwrap().calls[0].id.clone();
    messages.push(Message::result("complete_task", &id, "done"));
    let messages: Vec<Value> = messages.iter().map(Message::json).collect();
    let tokens = |folder: &Path| {
        let chat = Chat::load(folder).unwrap().with_tools("Be brief.", agent.toolbox.functions()).unwrap();
        let rendered = chat.rendered(&messages).unwrap();
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
        let mut ids = tokenizer.encode(rendered, false).unwrap().get_ids().to_vec();
        ids.truncate(episode.history.tokens.len());
        ids
    };
    assert_eq!(tokens(merged.path()), episode.history.tokens);
    assert_ne!(tokens(folder.path()), episode.history.tokens, "the original has the tags as tokens");
}

/// A hub on loopback with one model, `tiny/llama`, at commit `c0ffee` of `main`.
#[derive(Clone)]
struct Shelf {
    folder: Arc<tempfile::TempDir>,
    /// The token it requires, if any.
    token: Option<&'static str>,
    /// Number of weight responses to cut off half-way.
    cuts: Arc<Mutex<usize>>,
    /// Number of weight requests to refuse.
    refusals: Arc<Mutex<usize>>,
    /// Bytes by which the reported size of the weights exceeds the real one.
    claims: Arc<Mutex<u64>>,
    /// Whether it sends the whole file whatever is asked for.
    is_whole: Arc<AtomicBool>,
    /// Requests per file.
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

const COMMIT: &str = "c0ffee";

impl Shelf {
    /// Returns the hub and a client with an empty cache.
    async fn open(token: Option<&'static str>) -> (Self, Hub, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        model(folder.path());
        std::fs::write(folder.path().join("pytorch_model.bin"), "other").unwrap();
        let shelf = Self {
            folder: folder.into(),
            token,
            cuts: Arc::default(),
            refusals: Arc::default(),
            claims: Arc::default(),
            is_whole: Arc::default(),
            asked: Arc::default(),
        };
        let router = Router::new()
            .route("/api/models/{owner}/{name}/revision/{revision}", get(Self::info))
            .route("/{owner}/{name}/resolve/{revision}/{file}", get(Self::file))
            .route("/store/{file}", get(Self::content))
            .with_state(shelf.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let cache = tempfile::tempdir().unwrap();
        let hub = Hub { endpoint, cache: cache.path().into(), token: None, offline: false };
        (shelf, hub, cache)
    }

    /// Ranges of the requests for the weights.
    fn ranges(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        let of_weights = asked.iter().filter(|(file, _)| file == "model.safetensors");
        of_weights.filter_map(|(_, range)| range.strip_prefix("bytes=").map(str::to_owned)).collect()
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get("authorization").and_then(|value| value.to_str().ok());
        self.token.is_none_or(|token| shown == Some(&format!("Bearer {token}")))
    }

    async fn info(
        State(shelf): State<Self>,
        UrlPath((owner, name, revision)): UrlPath<(String, String, String)>,
        headers: HeaderMap,
    ) -> std::result::Result<Json<Value>, StatusCode> {
        if !shelf.admits(&headers) {
            return Err(StatusCode::UNAUTHORIZED);
        }
        if (owner.as_str(), name.as_str()) != ("tiny", "llama") || !["main", COMMIT].contains(&&*revision) {
            return Err(StatusCode::NOT_FOUND);
        }
        let names = std::fs::read_dir(shelf.folder.path()).unwrap();
        let names = names.map(|item| item.unwrap().file_name().into_string().unwrap());
        let siblings: Vec<Value> =
            names.chain(["../../escape.json".to_owned()]).map(|name| json!({"rfilename": name})).collect();
        Ok(Json(json!({"siblings": siblings, "sha": COMMIT})))
    }

    /// Weights are elsewhere, at an address of their own; other files at another path.
    async fn file(
        State(shelf): State<Self>,
        UrlPath((_, _, revision, file)): UrlPath<(String, String, String, String)>,
        headers: HeaderMap,
    ) -> Response<Body> {
        assert_eq!(revision, COMMIT, "files are fetched at the commit, not at the branch");
        assert!(shelf.admits(&headers));
        let answer = Response::builder().header("x-repo-commit", COMMIT).status(StatusCode::FOUND);
        let answer = if file == "model.safetensors" {
            let port = headers["host"].to_str().unwrap().rsplit_once(':').unwrap().1;
            let bytes = std::fs::metadata(shelf.folder.path().join(&file)).unwrap().len();
            answer
                .header("location", format!("http://localhost:{port}/store/{file}"))
                .header("x-linked-etag", format!("\"etag-{file}\""))
                .header("x-linked-size", bytes + *shelf.claims.lock().unwrap())
        } else {
            answer.header("location", format!("/store/{file}"))
        };
        answer.body(Body::empty()).unwrap()
    }

    async fn content(
        State(shelf): State<Self>,
        UrlPath(file): UrlPath<String>,
        method: Method,
        headers: HeaderMap,
    ) -> Response<Body> {
        let is_elsewhere = headers["host"].to_str().unwrap().starts_with("localhost");
        assert_eq!(is_elsewhere, file == "model.safetensors");
        assert!(if is_elsewhere { !headers.contains_key("authorization") } else { shelf.admits(&headers) });
        let bytes = std::fs::read(shelf.folder.path().join(&file)).unwrap();
        let answer = Response::builder().header("etag", format!("W/\"etag-{file}\""));
        if method == Method::HEAD {
            return answer.header("content-length", bytes.len()).body(Body::empty()).unwrap();
        }
        let range = headers["range"].to_str().unwrap().to_owned();
        shelf.asked.lock().unwrap().push((file.clone(), range.clone()));
        let from: usize = range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap();
        let refused = |status| Response::builder().status(status).body(Body::empty()).unwrap();
        if from >= bytes.len() {
            return refused(StatusCode::RANGE_NOT_SATISFIABLE);
        }
        if file == "model.safetensors" {
            let mut refusals = shelf.refusals.lock().unwrap();
            if *refusals > 0 {
                *refusals -= 1;
                return refused(StatusCode::SERVICE_UNAVAILABLE);
            }
        }
        let (from, status) = match shelf.is_whole.load(Ordering::Relaxed) {
            true => (0, StatusCode::OK),
            false => (from, StatusCode::PARTIAL_CONTENT),
        };
        let part = bytes[from..].to_vec();
        let answer = answer.status(status).header("content-length", part.len());
        let mut cuts = shelf.cuts.lock().unwrap();
        if *cuts > 0 && file == "model.safetensors" {
            *cuts -= 1;
            let half: std::io::Result<Vec<u8>> = Ok(part[..part.len() / 2].to_vec());
            let torn = Err(std::io::Error::other("cut"));
            let parts = futures::stream::iter([half, torn]).then(|part| async {
                if part.is_err() {
                    // Data sent before must arrive.
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                }
                part
            });
            return answer.body(Body::from_stream(parts)).unwrap();
        }
        answer.body(Body::from(part)).unwrap()
    }
}

async fn fetch(hub: Hub, id: &'static str, revision: Option<&'static str>) -> Result<Files, ModelStageError> {
    hub.fetch(id, revision, &NoProgress).await
}

fn again(hub: &Hub) -> Hub {
    Hub {
        endpoint: hub.endpoint.clone(),
        cache: hub.cache.clone(),
        token: hub.token.clone(),
        offline: hub.offline,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_fetched_once_and_is_there_without_a_network() {
    let (shelf, hub, _cache) = Shelf::open(None).await;
    let files = fetch(again(&hub), "tiny/llama", None).await.unwrap();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names, expected);
    for (name, path) in &files {
        assert_eq!(
            std::fs::read(path).unwrap(),
            std::fs::read(shelf.folder.path().join(name)).unwrap(),
            "{name}"
        );
    }
    let asked = shelf.asked.lock().unwrap().len();
    assert_eq!(fetch(again(&hub), "tiny/llama", Some(COMMIT)).await.unwrap(), files);
    assert_eq!(shelf.asked.lock().unwrap().len(), asked, "nothing is fetched again");
    let offline = Hub { offline: true, endpoint: "http://127.0.0.1:9".into(), ..again(&hub) };
    assert_eq!(fetch(again(&offline), "tiny/llama", None).await.unwrap(), files);
    let other = fetch(offline, "tiny/other", None).await.unwrap_err();
    assert_eq!(other.code(), "hub::offline");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_download_resumes_where_it_stopped() {
    let (shelf, hub, _cache) = Shelf::open(None).await;
    *shelf.cuts.lock().unwrap() = 2;
    let files = fetch(hub, "tiny/llama", Some("main")).await.unwrap();
    let (_, weights) = files.iter().find(|(name, _)| name == "model.safetensors").unwrap();
    let whole = std::fs::read(shelf.folder.path().join("model.safetensors")).unwrap();
    assert_eq!(std::fs::read(weights).unwrap(), whole);
    let (half, quarter) = (whole.len() / 2, whole.len().div_ceil(2) / 2);
    assert_eq!(shelf.ranges(), ["0-".into(), format!("{half}-"), format!("{}-", half + quarter)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_run_left_of_a_file_is_gone_on_with_or_thrown_away_and_never_doubled() {
    let half = |whole: &[u8]| whole[..whole.len() / 2].to_vec();
    let longer = |whole: &[u8]| [whole, &[0; 9]].concat();
    type Left<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let cases: [(Left<'_>, usize, &[usize]); 4] =
        [(&half, 0, &[2]), (&half, 2, &[2, 2, 2]), (&<[u8]>::to_vec, 0, &[]), (&longer, 1, &[0, 0])];
    for (left, refusals, halves) in cases {
        let (shelf, hub, cache) = Shelf::open(None).await;
        let whole = std::fs::read(shelf.folder.path().join("model.safetensors")).unwrap();
        let blobs = cache.path().join("models--tiny--llama/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join("etag-model.safetensors.incomplete"), left(&whole)).unwrap();
        *shelf.refusals.lock().unwrap() = refusals;
        let files = fetch(hub, "tiny/llama", None).await.unwrap();
        let (_, weights) = files.iter().find(|(name, _)| name == "model.safetensors").unwrap();
        assert!(std::fs::read(weights).unwrap() == whole, "{refusals} {halves:?}");
        // Requested from the beginning or the middle.
        let from = |half: &usize| if *half == 0 { 0 } else { whole.len() / 2 };
        let expected: Vec<String> = halves.iter().map(|half| format!("{}-", from(half))).collect();
        assert_eq!(shelf.ranges(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_sends_no_parts_of_files_starts_again() {
    let (shelf, hub, _cache) = Shelf::open(None).await;
    shelf.is_whole.store(true, Ordering::Relaxed);
    *shelf.cuts.lock().unwrap() = 1;
    let files = fetch(hub, "tiny/llama", None).await.unwrap();
    let (_, weights) = files.iter().find(|(name, _)| name == "model.safetensors").unwrap();
    let whole = std::fs::read(shelf.folder.path().join("model.safetensors")).unwrap();
    assert_eq!(std::fs::read(weights).unwrap(), whole);
    assert_eq!(shelf.ranges(), ["0-".into(), format!("{}-", whole.len() / 2)]);
}

/// As `hf_hub_download` of huggingface_hub 2.4 leaves and reads it.
#[tokio::test(flavor = "multi_thread")]
async fn the_cache_is_that_of_huggingface_hub() {
    let (shelf, hub, cache) = Shelf::open(None).await;
    let folder = cache.path().join("models--tiny--llama");
    let config = std::fs::read(shelf.folder.path().join("config.json")).unwrap();
    // Another revision has the same configuration.
    std::fs::create_dir_all(folder.join("blobs")).unwrap();
    std::fs::write(folder.join("blobs/etag-config.json"), &config).unwrap();
    fetch(again(&hub), "tiny/llama", None).await.unwrap();
    assert!(shelf.asked.lock().unwrap().iter().all(|(file, _)| file != "config.json"));
    assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    for name in ["config.json", "model.safetensors"] {
        let link = std::fs::read_link(folder.join("snapshots").join(COMMIT).join(name)).unwrap();
        assert_eq!(link, Path::new(&format!("../../blobs/etag-{name}")));
        assert!(cache.path().join(format!(".locks/models--tiny--llama/etag-{name}.lock")).exists());
    }
    let blobs = std::fs::read_dir(folder.join("blobs")).unwrap().count();
    assert_eq!(blobs, 5, "nothing else is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_another_size_than_the_hub_lists_is_removed() {
    let (shelf, hub, cache) = Shelf::open(None).await;
    *shelf.claims.lock().unwrap() = 7;
    let refused = fetch(again(&hub), "tiny/llama", None).await.unwrap_err();
    assert_eq!((refused.code(), refused.is_transient()), ("hub::size", true), "{refused}");
    let folder = cache.path().join("models--tiny--llama");
    assert!(!folder.join("snapshots").join(COMMIT).join("model.safetensors").is_symlink());
    assert!(!folder.join("blobs/etag-model.safetensors").exists());
    *shelf.claims.lock().unwrap() = 0;
    fetch(hub, "tiny/llama", None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_of_the_cache_that_leads_nowhere_is_replaced() {
    let (_shelf, hub, _cache) = Shelf::open(None).await;
    let files = fetch(again(&hub), "tiny/llama", None).await.unwrap();
    for (_, path) in &files {
        std::fs::remove_file(path.canonicalize().unwrap()).unwrap();
    }
    assert_eq!(fetch(hub, "tiny/llama", None).await.unwrap(), files);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_another_process_fetches_is_waited_for() {
    let (shelf, hub, cache) = Shelf::open(None).await;
    let locks = cache.path().join(".locks/models--tiny--llama");
    std::fs::create_dir_all(&locks).unwrap();
    let lock = std::fs::File::create(locks.join("etag-model.safetensors.lock")).unwrap();
    lock.lock().unwrap();
    let fetched = tokio::spawn(fetch(hub, "tiny/llama", None));
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert!(!fetched.is_finished() && shelf.ranges().is_empty());
    drop(lock);
    fetched.await.unwrap().unwrap();
    assert_eq!(shelf.ranges(), ["0-"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_cannot_be_written_is_named_and_not_the_network() {
    let (_shelf, hub, cache) = Shelf::open(None).await;
    let file = cache.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = fetch(Hub { cache: file, ..hub }, "tiny/llama", None).await.unwrap_err();
    assert_eq!((refused.code(), refused.is_transient()), ("hub::cache", false), "{refused}");
    assert!(refused.hint().unwrap().contains("HF_HOME"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_hub_has_a_hint() {
    let (_shelf, hub, _cache) = Shelf::open(Some("right")).await;
    let with = |token: Option<&str>| Hub { token: token.map(str::to_owned), ..again(&hub) };
    let refused = [
        (with(None), "tiny/llama", None, "hub::denied", "set HF_TOKEN"),
        (with(Some("wrong")), "tiny/llama", None, "hub::denied", "check HF_TOKEN"),
        (with(Some("right")), "tiny/other", None, "hub::unknown", "check the id"),
        (with(Some("right")), "tiny/llama", Some("dev"), "hub::unknown", "revision"),
        (with(None), "../llama", None, "hub::id", "OWNER/NAME"),
        (with(None), "tiny/llama", Some("../../x"), "hub::id", "OWNER/NAME"),
        (
            Hub { endpoint: "http://127.0.0.1:9".into(), ..with(None) },
            "tiny/llama",
            None,
            "hub::network",
            "HF_ENDPOINT",
        ),
    ];
    for (hub, id, revision, code, hint) in refused {
        let error = fetch(hub, id, revision).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.hint().unwrap().contains(hint), "{error}");
    }
    assert!(fetch(with(Some("right")), "tiny/llama", None).await.is_ok());
}
