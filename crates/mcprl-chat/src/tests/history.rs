//! Tests of the context of later turns if earlier turns lose their reasoning.

use super::{family::Family, *};

const TASK: &str = "Where is it?";

/// A folder with the Qwen3 template, or with a variant that never writes reasoning.
fn qwen3(drops: bool) -> tempfile::TempDir {
    let folder = copy_of("qwen3");
    let path = folder.path().join("chat_template.jinja");
    let source = std::fs::read_to_string(&path).unwrap();
    let after_the_task = "{%- if loop.index0 > ns.last_query_index %}";
    assert!(source.contains(after_the_task));
    if drops {
        std::fs::write(path, source.replace(after_the_task, "{%- if false %}")).unwrap();
    }
    folder
}

fn load(folder: &Path, thinking: Thinking, history: HistoryThinking) -> Chat {
    let chat = Chat::load_with(folder, thinking).unwrap().with_history(history).unwrap();
    chat.with_tools("Be brief.", &render_of("qwen3", "opening").tools).unwrap()
}

fn call() -> ToolCall {
    ToolCall { name: "list_tables".into(), arguments: json!({"like": "t"}).as_object().unwrap().clone() }
}

/// The context of a turn that starts with `thought`, and the rewritten context after its results.
fn rewritten(chat: &Chat, thought: &str) -> (Vec<u32>, Option<RewrittenHistory>) {
    let prompt = chat.prompt(TASK).unwrap();
    let before = [prompt.shared, prompt.task].concat();
    let text = chat.learned.format.assistant("Let me see.", &[call()]);
    let mut sampled = chat.vocabulary.encode(&format!("{thought}{text}"));
    sampled.push(chat.stop()[0]);
    let rewritten = chat.rewritten(&before, &sampled, &chat.results(&[], &["no tables".into()]));
    (before, rewritten)
}

/// The tokens that a server renders for a client that returns only text and calls.
fn served(chat: &Chat) -> Vec<u32> {
    let mut messages = chat.setup.messages.clone();
    messages.extend([
        message::user(TASK),
        message::assistant("Let me see.", &[("", &call())]),
        message::tool("", "list_tables", "no tables"),
    ]);
    let text = chat.template.render(&messages, &chat.setup.tools, true).unwrap();
    chat.vocabulary.encode(&text)
}

#[test]
fn without_reasoning_the_history_is_what_the_template_writes_of_text_and_calls() {
    let folder = qwen3(false);
    let xml = Family::named("xml");
    let opened = xml.folder(&xml.source());
    let cases = [
        (folder.path(), Thinking::Template, "<think>\nhm\n</think>\n\n"),
        (folder.path(), Thinking::Template, "<think>\n\n</think>\n\n"),
        // The prompt contains empty reasoning, the history none.
        (folder.path(), Thinking::Off, ""),
        // The prompt opens reasoning; the history contains empty reasoning.
        (opened.path(), Thinking::Template, "hm\n</think>\n\n"),
        (opened.path(), Thinking::Template, "\n</think>\n\n"),
        (opened.path(), Thinking::Off, "<think>second thoughts</think>"),
    ];
    for (folder, thinking, thought) in cases {
        let chat = load(folder, thinking, HistoryThinking::Strip);
        let (before, rewritten) = rewritten(&chat, thought);
        let RewrittenHistory { kept, turn, header } = rewritten.unwrap();
        let whole = [&before[..kept], &turn, &header].concat();
        assert_eq!(chat.decode(&whole), chat.decode(&served(&chat)), "{thinking:?} {thought:?}");
        assert_eq!(whole, served(&chat), "{thinking:?} {thought:?}");
        assert_eq!(header.len(), chat.header_len(&before));
    }
}

#[test]
fn a_turn_that_the_history_contains_as_sampled_is_not_rewritten() {
    for family in ["qwen2_5", "qwen3_instruct_2507", "qwen3", "demo"] {
        let chat = load(&path(family), Thinking::Template, HistoryThinking::Strip);
        assert_eq!(rewritten(&chat, "").1, None, "{family}");
    }
}

#[test]
fn the_template_decides_by_default() {
    let thought = "<think>\nhm\n</think>\n\n";
    let is_rewritten = |drops, history| {
        rewritten(&load(qwen3(drops).path(), Thinking::Template, history), thought).1.is_some()
    };
    assert!(!is_rewritten(false, HistoryThinking::Template), "Qwen3 keeps the reasoning since the task");
    assert!(is_rewritten(true, HistoryThinking::Template));
    assert!(!is_rewritten(true, HistoryThinking::Keep));
    assert!(is_rewritten(false, HistoryThinking::Strip));
    for family in FAMILIES {
        let chat = chat(family).with_history(HistoryThinking::Template).unwrap();
        assert!(chat.stripping.is_none(), "{family}");
    }
}

#[test]
fn a_template_that_changes_earlier_text_cannot_strip() {
    let folder = qwen3(false);
    let path = folder.path().join("chat_template.jinja");
    let source = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{{{{ '<|im_end|>' if add_generation_prompt }}}}{source}")).unwrap();
    let error = Chat::load(folder.path()).unwrap().with_history(HistoryThinking::Strip).err().unwrap();
    assert_eq!(error.code(), "chat::no_history");
    assert!(Chat::load(folder.path()).unwrap().with_history(HistoryThinking::Template).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_sampled_tokens_give_a_valid_history(
        tokens in prop::collection::vec(0u32..407, 0..48),
    ) {
        let chat = load(&path("qwen3"), Thinking::Off, HistoryThinking::Strip);
        let prompt = chat.prompt(TASK).unwrap();
        let before = [prompt.shared, prompt.task].concat();
        let RewrittenHistory { kept, turn, header } = chat.rewritten(&before, &tokens, &chat.results(&[], &["r".into()])).unwrap();
        prop_assert_eq!(kept + header.len(), before.len());
        let controls = |tokens: &[u32]| tokens.iter().filter(|id| chat.vocabulary.is_control(**id)).count();
        // At most the sampled control tokens, a header, an end-of-turn token, and those of the results.
        let of_results = controls(&chat.results(&[], &["r".into()])) - controls(&header);
        prop_assert!(controls(&turn) <= controls(&tokens) + controls(&header) + 1 + of_results);
    }
}
