use std::{collections::BTreeMap, time::Instant};

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::{
    CallForm, Turn,
    folder::read_json,
    format::{Format, tests::shown},
};

fn tools() -> Schemas {
    let tool = |name: &str, parameters: &[&str], required: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            parameters.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
        let schema = json!({"type": "object", "properties": properties, "required": required});
        json!({"type": "function", "function": {"name": name, "parameters": schema}})
    };
    Schemas::new(&[
        tool("list", &[], &[]),
        tool("read", &["q"], &["q"]),
        tool("move", &["to", "from", "note"], &["from", "to"]),
        json!({"name": "bare"}),
    ])
}

fn leniently(format: Format, text: &str, tools: &Schemas) -> Turn {
    format.parse_leniently(format.parse(text, tools), text, tools, None)
}

/// A turn of a Hermes model on one line: text | calls with their forms.
fn read(text: &str) -> String {
    let turn = leniently(Format::Hermes, text, &tools());
    assert_eq!((turn.ids.len(), turn.forms.len()), (turn.calls.len(), turn.calls.len()));
    format!("{} | {}", turn.text.replace('\n', "⏎"), shown_forms(&turn).join("; "))
}

fn shown_forms(turn: &Turn) -> Vec<String> {
    let call =
        |(call, form): (&Call, &CallForm)| format!("{} {}", form.name(), shown(std::slice::from_ref(call)));
    turn.calls.iter().zip(&turn.forms).map(call).collect()
}

fn check(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(read(text), *expected, "{text}");
    }
}

#[test]
fn json_is_a_call_bare_fenced_and_in_lists() {
    check(&[
        (r#"{"name": "read", "arguments": {"q": "x"}}"#, r#" | bare_json read{"q":"x"}"#),
        ("I look.\n\n{\"name\": \"list\", \"arguments\": {}}\n", "I look. | bare_json list{}"),
        ("{\"name\": \"list\"}\n\nThis lists them.", "This lists them. | bare_json list{}"),
        ("Then:\n```json\n{\"name\": \"list\"}\n```", "Then: | fenced_json list{}"),
        ("```json\n{\"name\": \"list\"}\n```\nDone.", "Done. | fenced_json list{}"),
        ("Action: {\"name\": \"list\"}", "Action: | bare_json list{}"),
        ("```\n{'name': 'list', 'arguments': None}", " | fenced_json list{}"),
        ("- `{\"name\": \"list\"}`.", "-⏎⏎. | bare_json list{}"),
        (
            r#"[{"name": "list"}, {"name": "read", "parameters": {"q": "a\nb"}}]"#,
            r#" | bare_json list{}; bare_json read{"q":"a\nb"}"#,
        ),
        (
            "{\"name\": \"list\"}\n{\"name\": \"read\", \"args\": {\"q\": \"1\"}}",
            r#" | bare_json list{}; bare_json read{"q":"1"}"#,
        ),
        ("{\"name\": \"read\", \"arguments\": {\"q\": \"a\nb\"}}", r#" | bare_json read{"q":"a\nb"}"#),
    ]);
}

#[test]
fn keys_of_other_apis_are_known() {
    let call = r#" | bare_json read{"q":"x"}"#;
    for text in [
        r#"{"tool": "read", "input": {"q": "x"}}"#,
        r#"{"tool_name": "read", "params": {"q": "x"}}"#,
        r#"{"function": "read", "args": {"q": "x"}}"#,
        r#"{"action": "read", "action_input": "x"}"#,
        r#"{"function": {"name": "read", "arguments": "{\"q\": \"x\"}"}, "id": "1", "type": "function"}"#,
        r#"{"tool_calls": [{"type": "function", "function": {"name": "read", "arguments": {"q": "x"}}}]}"#,
        r#"{"function_call": {"name": "read", "arguments": {"q": "x"}}}"#,
        r#"{"read": {"q": "x"}}"#,
        r#"{"read": {"arguments": {"q": "x"}}}"#,
        r#"{"read": "x"}"#,
        r#"{"name": "read", "q": "x"}"#,
        r#"{"name": "read", "id": "7", "q": "x"}"#,
        r#"{"name": "read", "arguments": ["x"]}"#,
        r#"{"name": "read", "arguments": "x"}"#,
        r#"{"name": "read", "arguments": {"q": "x"}, "description": "Reads."}"#,
    ] {
        assert_eq!(read(text), call, "{text}");
    }
    assert_eq!(
        read(r#"{"list": {}, "read": {"q": "x"}}"#),
        r#" | bare_json list{}; bare_json read{"q":"x"}"#
    );
    assert_eq!(read(r#"{"name": "bare", "arguments": {}}"#), " | bare_json bare{}");
}

#[test]
fn a_call_that_is_only_quoted_is_text() {
    for text in [
        // Within a sentence.
        r#"An example of a call is {"name": "list", "arguments": {}}. I will not do that. The answer is 5."#,
        r#"The tool returned {"name": "list"} as text."#,
        r#"I would call: {"name": "list"}"#,
        r#"{"name": "list"} is not what I want."#,
        r#"So `{"name": "list"}`."#,
        r#"Use ```{"name": "list"}``` here."#,
        "I call <list/> and then stop.",
        // With words before and behind it.
        "I will not run\n\nread(\"7\")\n\nbecause it destroys data.",
        "For example:\n```python\nread('7')\n```\nBut first: are you sure?",
        "A call looks like this:\n\n{\"name\": \"list\", \"arguments\": {}}\n\nI will not make it.",
        "Say\n<example>{\"name\": \"list\"}</example>\nor nothing.",
        "First:\n```json\n{\"name\": \"list\"}\n```\nand then:\n```json\n{\"name\": \"read\", \"arguments\": {\"q\": \"x\"}}\n```",
        "Not this:\n{\"name\": \"read\", \"arguments\": {\"q\": \"x\"}\nIt is broken.",
        // Quoted as Markdown does.
        "> read('x')",
        // Within a program's body.
        "if ok:\n    read('7')\nelse:\n    list()",
        "```python\nfor one in rows:\n    read('x')\n    list()\n```",
        "```python\ndef main():\n    list()\n```",
        "# list()",
        // A record about something that is named like a tool.
        r#"Answer: {"name": "list", "rows": 5}"#,
        r#"{"name": "read", "sql": "x"}"#,
    ] {
        assert_eq!(read(text), format!("{} | ", text.replace('\n', "⏎")), "{text}");
    }
    check(&[
        ("if ok:\n    list()\nread('x')", r#"if ok:⏎    list() | python read{"q":"x"}"#),
        (
            r#"{"tool": "read", "sql": "x"}"#,
            " | bare_json error: `sql` is not known; a call has a `name` and `arguments`",
        ),
        (
            r#"{"name": "read", "sql": "x", "q": "y"}"#,
            " | bare_json error: `sql` is not known; a call has a `name` and `arguments`",
        ),
    ]);
}

#[test]
fn an_argument_that_is_named_like_a_key_of_calls_is_kept() {
    let schema = json!({"properties": {"id": {"type": "string"}}, "required": ["id"]});
    let tools = Schemas::new(&[json!({"name": "get_user", "parameters": schema})]);
    for text in [
        r#"{"name": "get_user", "id": "7"}"#,
        r#"<tool_call>{"name": "get_user", "id": "7"}</tool_call>"#,
        r#"{"type": "function", "name": "get_user", "id": "7"}"#,
    ] {
        for format in Format::ALL {
            let turn = leniently(format, text, &tools);
            assert_eq!(shown(&turn.calls), r#"get_user{"id":"7"}"#, "{format:?}: {text}");
        }
    }
    let strict = Format::Hermes.parse(r#"<tool_call>{"name": "get_user", "id": "7"}</tool_call>"#, &tools);
    let refused = "error: `id` stands beside `name`; a call has a `name` and `arguments`";
    assert_eq!(shown(&strict.calls), refused, "it is not sent without its argument");
}

#[test]
fn json_that_is_no_call_of_an_offered_tool_is_text() {
    for text in [
        r#"{"answer": 5}"#,
        r#"{"name": "Alice", "arguments": {}}"#,
        r#"[{"name": "customers"}, {"name": "orders"}]"#,
        r#"{"list": ["customers", "orders"]}"#,
        r#"{"read": {"rows": 5}}"#,
        r#"{"name": "read", "description": "Reads.", "parameters": {"type": "object", "properties": {"q": {}}}}"#,
        r#"<tools>{"type": "function", "function": {"name": "list", "description": "Lists.", "parameters": {"type": "object", "properties": {}}}}</tools>"#,
        r#"the set {1, 2} and [3"#,
        r#"{"query": {"name": "read", "arguments": {"q": "x"}}}"#,
        "{\"a\": 1",
        "{\"type\": \"tool\", \"parameters\": {\n\"function\": {\"name\": \"list\"}; \"x\": 1}",
        "```python\nprint([1, 2])\n```",
    ] {
        assert_eq!(read(text), format!("{} | ", text.replace('\n', "⏎")), "{text}");
    }
}

#[test]
fn tags_of_any_name_may_surround_json_and_the_closing_tag_may_be_missing() {
    let call = r#" | tags read{"q":"x"}"#;
    let object = r#"{"name": "read", "arguments": {"q": "x"}}"#;
    for text in [
        format!("<function_call>{object}</function_call>"),
        format!("<tools>\n{object}\n</tools>"),
        format!("<tool_calls>[{object}]"),
        format!("<json>\n```json\n{object}\n```\n</json>"),
        format!("<response><call>{object}"),
        format!("<function_call>\n```json\n{object}\n```"),
        r#"<function=read>{"q": "x"}</function>"#.to_owned(),
        r#"<function name="read">{"q": "x"}"#.to_owned(),
        r#"<read>{"q": "x"}</read>"#.to_owned(),
        r#"<tool_call>read({"q": "x"})</tool_call>"#.to_owned(),
        r#"<tool_call>read {"q": "x"}</tool_call>"#.to_owned(),
        r#"<tool_call>{"name": "read", "arguments": "{\"q\": \"x\"}"}</tool_call>"#.to_owned(),
        r#"<tool_call>read(q="x")"#.to_owned(),
    ] {
        assert_eq!(read(&text), call, "{text}");
    }
    check(&[
        ("<function_call>list</function_call>", " | tags list{}"),
        ("Call <function_call> to go on.", "Call⏎⏎go on. | tags error: no tool is named to"),
        ("Write `<function_call>` first.", "Write `<function_call>` first. | "),
        ("a < b and <i>so</i> on", "a < b and <i>so</i> on | "),
    ]);
}

#[test]
fn tags_for_the_arguments_are_a_call() {
    let call = r#" | xml move{"from":"a","to":"b"}"#;
    for text in [
        "<move><from>a</from><to>b</to></move>",
        "<move from=\"a\" to='b'/>",
        "<function=move>\n<parameter=from>\na\n</parameter>\n<parameter=to>b</parameter>\n</function>",
        "<invoke name=\"move\"><parameter name=\"from\">a</parameter><parameter name=\"to\">b</parameter></invoke>",
        "<tool_calls><invoke name=\"move\"><arg name=\"from\">a</arg><arg name=\"to\">b</arg></invoke></tool_calls>",
        "<tool_call>\n  <name>move</name>\n  <arguments>\n    {\"from\": \"a\", \"to\": \"b\"}\n  </arguments>\n</tool_call>",
        "<name> move </name><args><from>a</from><to>b</to></args>",
    ] {
        assert_eq!(read(text), call, "{text}");
    }
    check(&[
        ("<list/>\n<list></list>", " | xml list{}"),
        ("<read>x</read>", r#" | xml read{"q":"x"}"#),
        ("<read><q>x", " | xml error: incomplete: the argument q is not closed with </q>"),
        ("Use <read> and <read>.", "Use <read> and <read>. | "),
        ("<function=read>\n<parameter=q>x</parameter>\n</tool_call> so", r#"so | xml read{"q":"x"}"#),
        ("<read>\n<q>x</q> y</read>", " | xml error: text between the arguments of read"),
        ("<function=other></function>", " | xml error: no tool is named other"),
        ("<tool_call><name>list</name></tool_call>", " | xml list{}"),
        ("<row><name>list</name></row>", "<row><name>list</name></row> | "),
    ]);
}

#[test]
fn a_python_call_counts_as_a_statement_but_not_within_a_sentence() {
    check(&[
        ("list()", " | python list{}"),
        ("First:\n\nread(\"x\")\n", r#"First: | python read{"q":"x"}"#),
        ("```python\nrows = read(q='x')  # reads\n```", r#" | python read{"q":"x"}"#),
        ("```python\nprint(tools.read(\"\"\"a\n'b\"\"\"))\n```", r#" | python read{"q":"a\n'b"}"#),
        ("```\nread('x')[0]['n']\n```", r#" | python read{"q":"x"}"#),
        ("[list(), read(q=\"x\")]", r#" | python list{}; python read{"q":"x"}"#),
        ("```tool_code\nlist()\nread(q='x')\n```", r#" | python list{}; python read{"q":"x"}"#),
        ("- `list()`", " | python list{}"),
        ("<|python_tag|>list() # so<|eom|>", "<|eom|> | other_template list{}"),
        ("I call list() to see them.", "I call list() to see them. | "),
        ("list() lists the tables.", "list() lists the tables. | "),
        ("read(q) reads", "read(q) reads | "),
        ("```python\nimport sqlite3\nconnect()\n```", "```python⏎import sqlite3⏎connect()⏎``` | "),
        (
            "```python\ndef read(q):\n    return 1\n\nread('x')\n```",
            "```python⏎def read(q):⏎    return 1⏎⏎read('x')⏎``` | ",
        ),
    ]);
}

#[test]
fn arguments_without_names_are_the_required_ones_in_the_schemas_order() {
    check(&[
        ("move(\"a\", 'b', note='c')", r#" | python move{"from":"a","to":"b","note":"c"}"#),
        ("move({'from': 'a', 'to': 'b'})", r#" | python move{"from":"a","to":"b"}"#),
        (
            "move('a', 'b', 'c')",
            " | python error: the arguments of move need names; it requires from, to without",
        ),
        ("move('a', from='b')", " | python error: from is given twice"),
        ("move(to='b', 'a')", " | python error: an argument of move without a name follows one with a name"),
        ("list('a')", " | python error: the arguments of list need names; it requires none without"),
        ("```\nread(name)\n```", " | python error: name is no value; text stands in quotes"),
    ]);
}

#[test]
fn forms_of_other_templates_are_read() {
    let call = r#" | other_template read{"q":"x"}"#;
    let object = r#"{"name": "read", "arguments": {"q": "x"}}"#;
    for text in [
        format!("[TOOL_CALLS] [{object}]"),
        "[TOOL_CALLS]read[CALL_ID]a1[ARGS]{\"q\": \"x\"}".to_owned(),
        format!("functools[{object}]"),
        format!("<|tool_call|>[{object}]<|/tool_call|>"),
        format!("<|python_tag|>{object}"),
        "<|python_tag|>read(q='x')".to_owned(),
        "<|tool_call_start|>[read(q='x')]<|tool_call_end|>".to_owned(),
    ] {
        assert_eq!(read(&text), call, "{text}");
    }
    assert_eq!(read("functools is a module"), "functools is a module | ");
}

#[test]
fn what_every_format_writes_is_read_by_the_others() {
    let calls = [
        ToolCall { name: "list".into(), arguments: Default::default() },
        ToolCall { name: "read".into(), arguments: json!({"q": "it's \"x\""}).as_object().unwrap().clone() },
    ];
    for writer in Format::ALL {
        for reader in Format::ALL {
            let text = writer.assistant("", &calls);
            let turn = leniently(reader, &text, &tools());
            assert_eq!(
                shown(&turn.calls),
                r#"list{}; read{"q":"it's \"x\""}"#,
                "{writer:?} by {reader:?}: {text}"
            );
        }
    }
}

#[test]
fn the_templates_own_form_goes_first() {
    check(&[
        (
            "<tool_call>{\"name\": \"list\"}</tool_call> {\"name\": \"read\", \"arguments\": {\"q\": \"x\"}}",
            r#"{"name": "read", "arguments": {"q": "x"}} | template list{}"#,
        ),
        ("<tool_call>{\"name\": \"other\"}</tool_call>", " | template other{}"),
        ("<tool_call>nothing", " | template error: not valid JSON: expected ident at line 1 column 2"),
        ("<think>\nlist()\n</think>\n\n{\"name\": \"list\"}", " | bare_json list{}"),
    ]);
    let turn = leniently(Format::Llama, r#"{"name": "read", "parameters": {"q": "x"}} reads it."#, &tools());
    assert_eq!((shown(&turn.calls).as_str(), turn.text.as_str()), (r#"read{"q":"x"}"#, "reads it."));
}

#[test]
fn words_of_an_object_may_lack_their_quotes_if_nothing_else_can_be_read() {
    check(&[
        ("{name: list}", " | bare_json list{}"),
        ("I look.\n```json\n{name: list, arguments: {}}\n```", "I look. | fenced_json list{}"),
        ("{name: read, arguments: {q: customers}}", r#" | bare_json read{"q":"customers"}"#),
        (
            r#"{name: "read", arguments: {"q": "a b", "flag": true}}"#,
            r#" | bare_json read{"q":"a b","flag":true}"#,
        ),
        ("{list: {}}", " | bare_json list{}"),
        // Another tool, or no tool.
        ("{name: other}", "{name: other} | "),
        ("{name: x, list: y}", "{name: x, list: y} | "),
        // Where a text of several words ends is unknown.
        (
            "{name: read, arguments: {q: a b}}",
            " | bare_json error: not valid JSON: name is no value; text stands in quotes",
        ),
        // A value of Python code is a variable, not a text.
        ("```\nread({q: name})\n```", " | python error: q is no value; text stands in quotes"),
        ("{name: list}\n\nSo: {\"name\": \"bare\"}", "{name: list}⏎⏎So: | bare_json bare{}"),
    ]);
}

/// Turns of Qwen2.5-Coder-0.5B-Instruct about PyPI's mcp-server-sqlite.
#[test]
fn calls_without_quotes_are_read_as_a_model_wrote_them() {
    let tools =
        ["read_query", "list_tables", "describe_table", "complete_task"].map(|name| json!({"name": name}));
    let tools = Schemas::new(&tools);
    for (text, expected) in [
        ("```json\n{name: list_tables, arguments: {}}\n```", "fenced_json list_tables{}"),
        ("{name: list_tables, arguments: {}}", "bare_json list_tables{}"),
        (
            "```json\n{name: describe_table, arguments: {\"table_name\": \"customers\"}}\n```",
            r#"fenced_json describe_table{"table_name":"customers"}"#,
        ),
        (
            "```json\n{name: complete_task, arguments: {\"answer\": \"The complete list of cities the customers have is: Paris, Madrid, Barcelona, Luxembourg.\"}}\n```",
            r#"fenced_json complete_task{"answer":"The complete list of cities the customers have is: Paris, Madrid, Barcelona, Luxembourg."}"#,
        ),
        (
            "<tool_call>\n{name: \"read_query\", \"arguments\": {\"query\": \"SELECT price FROM products WHERE category = 'kitchen' ORDER BY price DESC LIMIT 1\"}}\n</tool_call>",
            r#"tags read_query{"query":"SELECT price FROM products WHERE category = 'kitchen' ORDER BY price DESC LIMIT 1"}"#,
        ),
        (
            "<tool_call>\n{name: \"calculate_average_order_quantity\", \"arguments\": {\"query\": \"SELECT SUM(orders.quantity) / SUM(order_status.status) AS average\"}}\n</tool_call>",
            "template error: not valid JSON: key must be a string at line 2 column 2",
        ),
    ] {
        assert_eq!(shown_forms(&leniently(Format::Hermes, text, &tools)).join("; "), expected, "{text}");
    }
}

#[test]
fn wrong_brackets_before_a_closing_tag_are_replaced() {
    for (body, expected) in [
        (r#"{"name": "read", "arguments": {"q": "x")"#, r#" | tags read{"q":"x"}"#),
        ("{\"name\": \"read\", \"arguments\": {\"q\": \"x (y)\")\n}", r#" | tags read{"q":"x (y)"}"#),
        (r#"{"name": "read", "arguments": {"q": "x'"]}"#, r#" | tags read{"q":"x'"}"#),
        (r#"{"name": "read", "arguments": {"q": "x";}}"#, r#" | tags read{"q":"x"}"#),
        (r#"{"name": "read", "arguments": {"q": 15}"#, r#" | tags read{"q":15}"#),
        (r#"{"name": "read", "arguments": {"q": "a\"b")"#, r#" | tags read{"q":"a\"b"}"#),
    ] {
        assert_eq!(read(&format!("<tool_call>\n{body}\n</tool_call>")), expected, "{body}");
    }
    // What is no bracket, or within a text that does not end, is not guessed.
    for body in
        [r#"{"name": "read", "arguments": {"q": "x") and"#, r#"{"name": "read", "arguments": {"q": "x)}}"#]
    {
        let shown = read(&format!("<tool_call>{body}</tool_call>"));
        assert!(shown.contains("error: "), "{body}: {shown}");
    }
    assert_eq!(
        read(
            r#"Look. <tool_call>{"name": "list"</tool_call> <tool_call>{"name": "read", "arguments": {"q": "x"</tool_call>"#
        ),
        r#"Look. | tags list{}; tags read{"q":"x"}"#
    );
}

#[test]
fn an_attempt_that_cannot_be_read_is_an_error() {
    for text in [
        r#"{"name": "read", "arguments": {"q": "x"}"#,
        r#"{"name": "read", "arguments": {"q": "a "b" c"}}"#,
        r#"```json
{"type": "function", "function": {"name": "read", "arguments": {"q":"#,
        r#"[{"name": "list"}, {"name": "#,
        r#"{"read": {"q": "x""#,
    ] {
        let shown = read(text);
        let calls = shown.split_once(" | ").unwrap().1;
        assert!(
            calls.contains("_json error: not valid JSON: ") && !calls.contains("; bare_json"),
            "{text}: {shown}"
        );
    }
    check(&[
        (
            r#"{"name": "read", "args": {"q": "x"}, "input": {"q": "y"}}"#,
            " | bare_json error: both `args` and `input` are given",
        ),
        (
            r#"{"name": "read", "tool": "list", "args": {}}"#,
            " | bare_json error: a call has one name, not read and list",
        ),
        (
            r#"[{"name": "list"}, {"rows": 1}]"#,
            " | bare_json list{}; bare_json error: an item of the list is not a call of an offered tool",
        ),
        (
            "<function_call>{\"rows\": 1}</function_call>",
            " | tags error: this is not a call of an offered tool",
        ),
    ]);
}

#[test]
fn reading_ends_at_the_first_text_behind_a_call() {
    check(&[
        (
            "{\"name\": \"list\"}\nOutput: [\"a\"]\n{\"name\": \"read\", \"arguments\": {\"q\": \"a\"}}",
            "Output: [\"a\"]⏎{\"name\": \"read\", \"arguments\": {\"q\": \"a\"}} | bare_json list{}",
        ),
        (
            "{\"name\": \"list\"}\n[{\"table\": \"a\"}]\n{\"name\": \"list\"}",
            "[{\"table\": \"a\"}]⏎{\"name\": \"list\"} | bare_json list{}",
        ),
        (
            "<tools>{\"name\": \"list\"}</tools>\n<tool_response>\n[]\n</tool_response>\n<tools>{\"name\": \"bare\"}</tools>",
            "<tool_response>⏎[]⏎</tool_response>⏎<tools>{\"name\": \"bare\"}</tools> | tags list{}",
        ),
        (
            "```json\n{\"name\": \"list\"}\n```\n\n```json\n{\"name\": \"bare\"}\n```",
            " | fenced_json list{}; fenced_json bare{}",
        ),
        ("{\"name\": \"list\"}\n{\"name\": \"list\"}", " | bare_json list{}"),
        (
            "{\"name\": \"list\"}\n{\"name\": \"bare\"}\n{\"name\": \"list\"}",
            " | bare_json list{}; bare_json bare{}; bare_json list{}",
        ),
        // An attempt that stands apart from a readable call is text.
        ("`{name: \"read\"}`\n\nSo: {\"name\": \"list\"}", "`{name: \"read\"}`⏎⏎So: | bare_json list{}"),
        (
            "{\"name\": \"read\", \"arguments\": {\"q\": {\"}}\n{\"name\": \"list\"}",
            " | bare_json error: not valid JSON: `:` is missing in a dictionary; bare_json list{}",
        ),
    ]);
}

#[test]
fn hostile_turns_take_linear_time() {
    let parts = [
        "{",
        "[ ",
        "{ \n",
        "[",
        "{\"",
        "{'",
        "[{\"a\":",
        "{\"name\": \"read\", ",
        "{\"name\": \"read\", \"arguments\": {\"q\": \"",
        "```",
        "```a",
        "<t>",
        "<",
        "<tool_call>",
        "<function=read>",
        "<function=read><parameter=q>",
        "<read>",
        "<read><q>",
        "read(",
        "\nread(",
        "\nread('",
        "[read(",
        "[TOOL_CALLS]",
        "functools[",
        "(((",
        "\n- 1",
        " ",
        "\n",
        "{\"a\":\"{\",",
        "[TOOL_CALLS]read[ARGS]",
        "{\"name\": \"list\"} ",
        "```\n{\"name\": \"list\"}\n",
        "\"\"\"",
        "[\"\"\"",
        "<|python_tag|>",
    ];
    let tools = tools();
    let worst = |length: usize| {
        let time = |part: &str| {
            let text = part.repeat(length / part.len());
            let began = Instant::now();
            super::read(&text, &tools);
            (began.elapsed(), part.to_owned())
        };
        parts.iter().map(|part| time(part)).max().unwrap()
    };
    let (time, part) = worst(1 << 17);
    assert!(time.as_secs() < 5, "{part}: {time:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_text_is_read(
        parts in prop::collection::vec(
            prop_oneof![
                any::<String>(),
                prop::sample::select(vec![
                    "{\"name\": \"read\"", ", \"arguments\": {\"q\": ", "\"x\"", "}", "}}", "[", "]", ",", "```json\n", "```", "\n",
                    "<tool_call>", "</tool_call>", "<function=read>", "<parameter=q>", "</parameter>", "</function>", "<read>",
                    "<q>", "</q>", "<read q='x'/>", "read(", "'x'", "q=", ")", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "functools[",
                    "<|python_tag|>", "def read(", "{\"list\": {}}", "{'read': 'x'}", "\"\"\"", "\\u", "é", " ", "- `", "print(",
                ]).prop_map(str::to_owned),
            ],
            0..16,
        )
    ) {
        let text = parts.concat();
        for format in Format::ALL {
            let turn = leniently(format, &text, &tools());
            prop_assert_eq!(turn.ids.len(), turn.calls.len());
            prop_assert_eq!(turn.forms.len(), turn.calls.len());
        }
        let found = super::read(&text, &tools());
        for (call, _) in &found.calls {
            prop_assert!(call.as_ref().map_or(true, |call| tools().offers(&call.name)));
        }
    }
}

/// Turns that small pretrained models wrote, sampled by `tests/reference/read_calls.py`.
#[derive(Deserialize)]
struct Sampled {
    tools: Vec<Value>,
    rows: Vec<SampledTurn>,
}

#[derive(Deserialize)]
struct SampledTurn {
    model: String,
    prompt: String,
    seed: u32,
    text: String,
    /// The calls with their forms, as a person reads them.
    expected: Option<Vec<String>>,
}

#[test]
fn what_pretrained_models_write_is_read_as_a_person_reads_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/reference/fixtures/read_calls.json");
    let Sampled { tools, rows } = read_json(path.as_ref()).unwrap();
    let tools = Schemas::new(&tools);
    let mut counts: BTreeMap<&str, BTreeMap<String, usize>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in &rows {
        let strict = Format::Hermes.parse(&row.text, &tools);
        let turn = leniently(Format::Hermes, &row.text, &tools);
        let found = shown_forms(&turn);
        if Some(&found) != row.expected.as_ref() {
            wrong.push(
                json!({"model": row.model, "prompt": row.prompt, "seed": row.seed, "found": found})
                    .to_string(),
            );
        }
        let count = counts.entry(&row.model).or_default();
        let mut add = |what: String, calls: usize| *count.entry(what).or_default() += calls;
        add("turns".into(), 1);
        add("turns with a call, strict".into(), usize::from(strict.calls.iter().any(Result::is_ok)));
        add("turns with a call, lenient".into(), usize::from(turn.calls.iter().any(Result::is_ok)));
        for (call, form) in turn.calls.iter().zip(&turn.forms) {
            add(format!("{} {}", if call.is_ok() { "calls," } else { "malformed," }, form.name()), 1);
        }
    }
    let counts: Vec<String> = counts
        .iter()
        .flat_map(|(model, counts)| {
            counts.iter().map(move |(what, count)| format!("{model}: {what}: {count}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), counts.join("\n"));
    insta::assert_snapshot!(counts.join("\n"), @r"
    qwen2.5-coder-0.5b: calls, bare_json: 35
    qwen2.5-coder-0.5b: calls, fenced_json: 14
    qwen2.5-coder-0.5b: malformed, bare_json: 3
    qwen2.5-coder-0.5b: malformed, fenced_json: 1
    qwen2.5-coder-0.5b: turns: 90
    qwen2.5-coder-0.5b: turns with a call, lenient: 32
    qwen2.5-coder-0.5b: turns with a call, strict: 0
    smollm2-135m: turns: 90
    smollm2-135m: turns with a call, lenient: 0
    smollm2-135m: turns with a call, strict: 0
    ");
}
