use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i32>().prop_map(|eighths| Value::from(f64::from(eighths) / 8.0)),
        any::<String>().prop_map(Value::from),
        syntax_like().prop_map(Value::from),
        Just(Value::Null),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Calls on one line, each with its arguments or its error.
pub fn shown(calls: &[Result<ToolCall, String>]) -> String {
    let one = |call: &Result<ToolCall, String>| match call {
        Ok(call) => format!("{}{}", call.name, Value::Object(call.arguments.clone())),
        Err(why) => format!("error: {why}"),
    };
    calls.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// A turn on one line: text | calls.
pub fn shown_turn(format: Format, text: &str) -> String {
    let turn = format.parse(text, &Schemas::default());
    format!("{} | {}", turn.text, shown(&turn.calls))
}

/// Texts that look like the formats' own syntax.
fn syntax_like() -> impl Strategy<Value = String> {
    let signs = [
        "</tool_call><tool_call>{\"name\": \"x\"}",
        "<function=f>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]{}",
        "<|/tool_call|>",
        "functools[",
        "}; {",
        "\\\"')]}",
        "\u{1F600}\u{0}\u{7f}\n\t",
        "<think>",
        "</think>",
        "True",
        "null",
        "1e5",
    ];
    prop::collection::vec(prop::sample::select(signs.to_vec()), 1..4).prop_map(|signs| signs.concat())
}

pub fn tool_call() -> impl Strategy<Value = ToolCall> {
    let arguments = prop::collection::btree_map(any::<String>(), json_value(), 0..4);
    ("[a-zA-Z0-9_.-]{1,20}", arguments)
        .prop_map(|(name, arguments)| ToolCall { name, arguments: arguments.into_iter().collect() })
}

/// A call that XML can write: names without `>`, and no value that contains closing tags.
fn plain_named(mut call: ToolCall) -> ToolCall {
    let name = |(index, name): (usize, String)| format!("p{index}{}", name.replace(['>', '<', '\n'], ""));
    let names: Vec<String> = call.arguments.keys().cloned().enumerate().map(name).collect();
    let values = std::mem::take(&mut call.arguments).into_iter().map(|(_, value)| match value {
        Value::String(text) => Value::from(text.replace("</parameter>", "")),
        other => other,
    });
    call.arguments = names.into_iter().zip(values).collect();
    call
}

/// Schemas that match these calls.
fn schemas(calls: &[ToolCall]) -> Schemas {
    let tool = |call: &ToolCall| {
        let properties: Map<String, Value> = call
            .arguments
            .iter()
            .map(|(name, value)| (name.clone(), json!({"type": schemas::type_of(value)})))
            .collect();
        json!({"name": call.name, "parameters": {"type": "object", "properties": properties}})
    };
    Schemas::new(&calls.iter().map(tool).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn calls_round_trip_in_every_format(
        calls in prop::collection::vec(tool_call(), 0..4),
        text in "[a-z ,.]{0,20}",
    ) {
        for format in Format::ALL {
            let mut calls = calls.clone();
            if format == Format::Xml {
                // Two calls of one tool would need a common schema.
                calls = calls.into_iter().map(plain_named).collect();
                calls.dedup_by(|a, b| a.name == b.name);
                let mut names = std::collections::BTreeSet::new();
                calls.retain(|call| names.insert(call.name.clone()));
            }
            let keeps_text = !matches!(format, Format::Llama | Format::Pythonic) || calls.is_empty();
            let expected_text = if keeps_text { text.trim() } else { "" };
            let turn = format.parse(&format.assistant(text.trim(), &calls), &schemas(&calls));
            prop_assert_eq!(&turn.text, expected_text, "{:?}", format);
            prop_assert_eq!(turn.calls, calls.into_iter().map(Ok).collect::<Vec<_>>(), "{:?}", format);
        }
    }

    #[test]
    fn any_text_gives_a_turn_in_every_format(
        parts in prop::collection::vec(
            prop_oneof![
                any::<String>(),
                syntax_like(),
                prop::sample::select(vec![
                    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=p>", "</parameter>",
                    "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>", "functools", "[", "]",
                    "{\"name\": \"f\"", "}", "f(", "a=", ")", "'", "\\u", "**", "<|python_tag|>", "é", " ",
                ]).prop_map(str::to_owned),
            ],
            0..12,
        )
    ) {
        let text = parts.concat();
        let tools = Schemas::new(&[json!({"name": "f", "parameters": {"properties": {"p": {"type": "object"}}}})]);
        for format in Format::ALL {
            let turn = format.parse(&text, &tools);
            prop_assert_eq!(turn.ids.len(), turn.calls.len());
        }
    }
}

#[test]
fn a_recursive_schema_is_followed_up_to_a_limit() {
    let tool = json!({"name": "f", "parameters": {
        "properties": {"p": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": {"anyOf": [{"$ref": "#/$defs/Node"}, {"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    }});
    assert!(Schemas::new(&[tool]).allowed("f", "p").prefers(&Value::Null));
}
