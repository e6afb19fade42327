//! One episode per model family and kind of template, and the table of supported models.

use super::{
    family::{self, Family as ChatFamily},
    *,
};
use crate::{chat::ChatError, data::End, error::Diagnostic, model::Family};

/// Where the template of a row comes from.
enum Template {
    /// Transformers' fixture of this name.
    Original(&'static str),
    /// A template written in the family's style.
    Written(&'static str),
    /// A template without tools, with the tokens of this family.
    Toolless(&'static str),
    /// A template without tools, with turns of no known family.
    Unknown,
}

use Template::{Original, Toolless, Unknown, Written};

const JSON: &str = "JSON between tags";
const LLAMA: &str = "a JSON object, one call a turn";
const MISTRAL: &str = "JSON behind `[TOOL_CALLS]`";
const NONE: &str = "none: refused";

/// Family, models, call format, and template.
const ROWS: [(Family, &str, &str, Template); 21] = [
    (Family::Gemma3, "Gemma 3", JSON, Toolless("own_gemma")),
    (Family::Lfm2, "LFM2, LFM2.5", "a list of Python calls between tags", Toolless("own_lfm2")),
    (Family::Qwen2, "Qwen2", JSON, Toolless("own_chatml")),
    (Family::Qwen2, "Qwen2.5", JSON, Original("qwen2_5")),
    (Family::Qwen3, "Qwen3", JSON, Original("qwen3")),
    (Family::Qwen3, "Qwen3-2507", JSON, Original("qwen3_instruct_2507")),
    (Family::Qwen3Moe, "Qwen3 mixtures of experts", JSON, Original("qwen3")),
    (Family::Qwen3Moe, "Qwen3-Coder", "XML", Written("xml")),
    (Family::Qwen3_5, "Qwen3.5 with thinking", "XML", Original("qwen3_5_think")),
    (Family::Qwen3_5, "Qwen3.5 without thinking", "XML", Original("qwen3_5_nothink")),
    (Family::Llama, "Llama 3", LLAMA, Toolless("own_llama")),
    (Family::Llama, "Llama 3.1, 3.2, 3.3", LLAMA, Written("llama_user")),
    (Family::Llama, "Llama 3.2 with lists of calls", "a list of Python calls", Written("pythonic")),
    (Family::Llama, "Llama 2", NONE, Unknown),
    (Family::Mistral, "Mistral 7B v0.3, Ministral 8B, Mistral Nemo", MISTRAL, Written("mistral_nemo")),
    (Family::Mistral, "Mistral Small 3", MISTRAL, Written("mistral_v7")),
    (Family::Mistral, "Devstral, Magistral", "`[TOOL_CALLS]name[ARGS]` and JSON", Written("mistral_v13")),
    (Family::Mistral, "Mistral 7B v0.1, v0.2", NONE, Unknown),
    (Family::Phi3, "Phi-3, Phi-3.5", JSON, Toolless("own_phi3")),
    (Family::Phi3, "Phi-4", JSON, Toolless("own_phi4")),
    (Family::Phi3, "Phi-4-mini", "a JSON list between tags", Toolless("own_phi4_mini")),
];

impl Template {
    fn chat(&self) -> Result<Chat, ChatError> {
        match self {
            Original(name) => Chat::load(&family::path(name)),
            Written(name) => {
                let family = ChatFamily::named(name);
                Chat::load(family.folder(&family.source()).path())
            }
            Toolless(name) => {
                let family = ChatFamily::named(name);
                let [blind, _] = family.toolless();
                Chat::load(family.folder(&blind).path())
            }
            Unknown => {
                let plain = "{% for m in messages %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endfor %}";
                Chat::load(ChatFamily::named("own_chatml").folder(plain).path())
            }
        }
    }

    fn origin(&self) -> &'static str {
        match self {
            Original(_) | Written(_) => "its own",
            Toolless(_) => "ours, with a note",
            Unknown => "it needs one with tools",
        }
    }
}

fn table() -> String {
    let mut table = "| `model_type` | models | calls | chat template |\n|---|---|---|---|\n".to_owned();
    for (family, models, calls, template) in &ROWS {
        let model_type = family.model_type();
        table += &format!("| `{model_type}` | {models} | {calls} | {} |\n", template.origin());
    }
    table
}

/// Runs an episode with these turns.
async fn played(chat: &Chat, turns: Vec<Vec<u32>>) -> Episode {
    let server = ScriptedServer::default();
    let prompt_tokens = PromptTokens::new(chat, "Where is it?").unwrap();
    let lines = turns.into_iter().map(|tokens| (tokens, Stop::Token)).collect();
    let mut script = Script { lines, appended: Vec::new(), reopened: Vec::new() };
    episode(&mut script, &server, &agent(chat.clone(), strict()), &prompt_tokens).await.unwrap()
}

fn tool_call(name: &str, arguments: Value) -> ToolCall {
    ToolCall { name: name.into(), arguments: arguments.as_object().unwrap().clone() }
}

#[tokio::test]
async fn an_episode_of_every_model_in_the_table_equals_its_rendered_template() {
    for (family, models, calls, template) in &ROWS {
        let label = format!("{} {models}", family.model_type());
        let chat = match template.chat() {
            Ok(chat) => chat.with_tools("Be brief.", toolbox().functions()).unwrap(),
            Err(error) => {
                assert_eq!((*calls, error.code()), (NONE, "chat::template_without_tools"), "{label}");
                continue;
            }
        };
        assert_eq!(chat.own_template().is_some(), matches!(template, Toolless(_)), "{label}");
        assert!(chat.own_template().is_none() || chat.notice().is_some(), "{label}");
        let look = |at: &str| tool_call("look", json!({ "at": at }));
        let mut turns = vec![chat.assistant("", &[look("the shelf")])];
        if chat.has_parallel_calls() {
            turns.push(chat.assistant("", &[look("the \"box\""), look("the bag")]));
        }
        turns.push(chat.assistant("", &[tool_call("complete_task", json!({"answer": "there"}))]));
        let episode = played(&chat, turns).await;
        assert_eq!((episode.end, episode.answer.as_deref()), (End::Completed, Some("there")), "{label}");
        assert_eq!((episode.history.parse_failures, episode.history.tool_errors), (0, 0), "{label}");

        // A template may write the last turn differently, so another message follows.
        let mut messages = episode.history.messages.clone();
        let id = messages.last().unwrap().calls[0].id.clone();
        messages.push(Message::result("complete_task", &id, "done"));
        let tokens = chat.decode(&episode.history.tokens);
        let rendered = chat.rendered(&values(&messages)).unwrap();
        if chat.own_template().is_none() && chat.notice().is_some() {
            // The beginning changes; everything after the task is the same.
            let behind = |text: &str| text.split_once("Where is it?").unwrap().1.to_owned();
            assert!(
                behind(&rendered).starts_with(&behind(&tokens)),
                "{label}: {rendered}\ninstead of\n{tokens}"
            );
        } else {
            assert!(rendered.starts_with(&tokens), "{label}: {rendered}\ninstead of\n{tokens}");
        }
    }
    let missing: Vec<&Family> =
        Family::ALL.iter().filter(|family| !ROWS.iter().any(|(of, ..)| of == *family)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test]
async fn text_reasoning_and_malformed_calls_are_rendered_as_written() {
    let chat = chat().with_tools("Be brief.", toolbox().functions()).unwrap();
    let ended = |text: &str| [chat.encode_text(text), chat.stop()[..1].to_vec()].concat();
    let look = r#"<tool_call>
{"name": "look", "arguments": {"at": "x"}}
</tool_call>"#;
    let turns = vec![
        ended(&format!("<think>\nhm\n</think>\n\nLet me see.\n{look}")),
        ended("<think>\nso\n</think>\n\n<tool_call>\n{broken\n</tool_call>"),
        ended("<think>\nwell\n</think>\n\nI give up."),
    ];
    let episode = played(&chat, turns).await;
    assert_eq!((episode.end, episode.history.parse_failures), (End::NoCall, 1));
    let rendered = chat.rendered(&values(&episode.history.messages)).unwrap();
    assert_eq!(rendered.trim_end(), chat.decode(&episode.history.tokens));
}

/// Checks the table between two marks in the documentation.
#[test]
fn the_table_of_models_in_the_documentation_is_current() {
    const MARKS: [&str; 2] = ["<!-- models -->\n", "<!-- /models -->"];
    for (file, is_there) in [("docs/reference/models.md", true), ("README.md", false)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let shown = text.split_once(MARKS[0]).and_then(|(_, rest)| rest.split_once(MARKS[1]));
        match shown {
            Some((shown, _)) => assert_eq!(shown.trim(), table().trim(), "{file} shows another table"),
            None => assert!(!is_there, "{file} has no marks around the table"),
        }
    }
}
