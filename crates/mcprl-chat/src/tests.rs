use mcprl_base::error::Diagnostic;
use proptest::prelude::*;
use serde::Deserialize;

use super::{folder::read_json, *};
use family::path;

mod families;
pub mod family;
mod history;

const FAMILIES: [&str; 6] =
    ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink", "demo"];

fn chat(family: &str) -> Chat {
    Chat::load(&path(family)).unwrap()
}

/// Output of Transformers for a conversation.
#[derive(Deserialize)]
struct Render {
    family: String,
    name: String,
    messages: Vec<Value>,
    tools: Vec<Value>,
    add_generation_prompt: bool,
    text: String,
    tokens: Vec<u32>,
}

fn renders() -> Vec<Render> {
    read_json(&path("renders.json")).unwrap()
}

fn render_of(family: &str, name: &str) -> Render {
    let wanted = |case: &Render| {
        (case.family.as_str(), case.name.as_str()) == (family, name)
            && case.add_generation_prompt
            && !case.tools.is_empty()
    };
    renders().into_iter().find(wanted).unwrap()
}

#[test]
fn templates_render_and_tokenise_as_in_transformers() {
    for family in FAMILIES {
        let chat = chat(family);
        for case in renders().into_iter().filter(|case| case.family == family) {
            let text = chat.template.render(&case.messages, &case.tools, case.add_generation_prompt).unwrap();
            assert_eq!(text, case.text, "{family} {}", case.name);
            assert_eq!(chat.vocabulary.encode(&text), case.tokens, "{family} {}", case.name);
        }
    }
}

#[test]
fn snippets_of_jinja_render_as_in_transformers() {
    #[derive(Deserialize)]
    struct Context {
        messages: Vec<Value>,
        tools: Vec<Value>,
        v: Value,
    }
    #[derive(Deserialize)]
    struct Snippets {
        context: Context,
        /// Source and output; `None` if it is refused.
        renders: Vec<(String, Option<String>)>,
    }
    let Snippets { context, renders } = read_json(&path("snippets.json")).unwrap();
    let constants = json!({"eos_token": "</s>", "v": context.v});
    let render = |source: &str| {
        let template = Template::new(source, constants.as_object().unwrap().clone())?;
        template.render(&context.messages, &context.tools, true)
    };
    for (source, expected) in renders {
        let text = render(&source);
        assert_eq!(text.as_ref().ok(), expected.as_ref(), "{source}: {:?}", text.as_ref().err());
    }
}

#[test]
fn an_episode_grown_by_deltas_is_the_conversation_transformers_renders() {
    for family in FAMILIES {
        for name in ["one_result", "three_results"] {
            let chat = chat(family);
            let case = render_of(family, name);
            let content = |message: &Value| message["content"].as_str().unwrap().to_owned();
            let calls: Vec<ToolCall> = case.messages[2]["tool_calls"]
                .as_array()
                .unwrap()
                .iter()
                .map(|call| serde_json::from_value(call["function"].clone()).unwrap())
                .collect();
            let results: Vec<String> = case.messages[3..].iter().map(content).collect();

            let chat = chat.with_tools(&content(&case.messages[0]), &case.tools).unwrap();
            let prompt = chat.prompt(&content(&case.messages[1])).unwrap();
            let grown = [prompt.shared, prompt.task, chat.assistant("", &calls), chat.results(&[], &results)]
                .concat();
            assert_eq!(chat.decode(&grown), case.text, "{family} {name}");
            assert_eq!(grown, case.tokens, "{family} {name}");
        }
    }
}

#[test]
fn tools_are_in_the_shared_part_of_a_prompt_and_the_task_is_not() {
    let chat = chat("qwen3").with_tools("Be brief.", &render_of("qwen3", "opening").tools).unwrap();
    let one = chat.prompt("one question").unwrap();
    let other = chat.prompt("some other question").unwrap();
    assert_eq!(one.shared, other.shared);
    assert!(chat.decode(&one.shared).contains("list_tables"));
    assert_eq!(chat.decode(&one.task), "user\none question<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn generation_config_adds_tokens_that_end_a_turn() {
    let folder = copy_of("qwen2_5");
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [7, 9]}"#).unwrap();
    let chat = Chat::load(folder.path()).unwrap();
    let end = chat.vocabulary.id("<|im_end|>").unwrap();
    assert_eq!(chat.stop(), [end, 7, 9]);
}

fn copy_of(family: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        std::fs::copy(path(family).join(name), copy.path().join(name)).unwrap();
    }
    copy
}

/// The error of a folder whose template is this.
fn refused(template: Option<&str>) -> ChatError {
    let folder = copy_of("qwen2_5");
    let path = folder.path().join("chat_template.jinja");
    match template {
        Some(template) => std::fs::write(path, template).unwrap(),
        None => std::fs::remove_file(path).unwrap(),
    }
    Chat::load(folder.path()).err().unwrap()
}

#[test]
fn a_template_of_an_unknown_family_that_hides_tools_is_refused() {
    let folder = copy_of("qwen2_5");
    let plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}";
    std::fs::write(folder.path().join("chat_template.jinja"), plain).unwrap();
    let tokenizer = std::fs::read_to_string(folder.path().join("tokenizer.json")).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.replace("<|im_start|>", "<|turn|>"))
        .unwrap();
    let error = Chat::load(folder.path()).err().unwrap();
    assert_eq!(error.code(), "chat::template_without_tools");
    insta::assert_snapshot!(error, @"the chat template hides from the model: the tools, the arguments of the tools, the names of its own calls, the arguments of its own calls");
}

#[test]
fn an_unknown_call_format_is_quoted_in_the_error() {
    let template = "{{ tools | tojson }}{% for m in messages %}{{ m.role }}:{{ m.content }}\
                    {% for c in m.tool_calls %}@{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}\
                    {% endfor %}";
    let error = refused(Some(template));
    assert_eq!(error.code(), "chat::unknown_format");
    assert!(error.to_string().contains("@probe_tool("), "{error}");
}

#[test]
fn a_broken_or_missing_template_is_an_error() {
    assert_eq!(refused(Some("{% if %}")).code(), "chat::template");
    assert_eq!(refused(None).code(), "chat::no_template");
}

#[test]
fn a_broken_tokenizer_is_an_error() {
    let folder = copy_of("qwen2_5");
    std::fs::write(folder.path().join("tokenizer.json"), r#"{"version": "1.0"}"#).unwrap();
    assert_eq!(Chat::load(folder.path()).err().unwrap().code(), "chat::tokenizer");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_tokens_give_a_turn(tokens in prop::collection::vec(0u32..600, 0..64)) {
        chat("qwen3").parse(&[], &tokens);
    }
}
