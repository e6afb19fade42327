//! The model's own chat template, rendered as Transformers renders it.
//!
//! A template is untrusted code: its steps are limited and it sees only its arguments.
//! Rendering does not depend on the clock: `strftime_now` always returns the same day.

use minijinja::{Environment, value::Serde};
use serde_json::{Map, Value, json};

use super::{
    ChatError, ToolCall,
    jinja::{self, Refusal},
};

const NAME: &str = "chat_template";

#[derive(Clone)]
pub(super) struct Template {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token`, … from `tokenizer_config.json`.
    constants: Map<String, Value>,
}

impl Template {
    pub fn new(source: &str, constants: Map<String, Value>) -> Result<Self, ChatError> {
        let environment = jinja::environment(NAME, source).map_err(ChatError::Template)?;
        Ok(Self { environment, constants })
    }

    pub fn render(
        &self,
        messages: &[Value],
        tools: &[Value],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let mut context = self.constants.clone();
        context.insert("messages".into(), messages.into());
        context.insert("documents".into(), Value::Null);
        context.insert("tools".into(), if tools.is_empty() { Value::Null } else { tools.into() });
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let context = minijinja::Value::from(Serde(context));
        let mut text = BoundedText::default();
        jinja::begin();
        let template = self.environment.get_template(NAME).map_err(failure)?;
        template.render_captured_to(context, &mut text).map(drop).map_err(failure)?;
        // minijinja writes whole texts.
        Ok(String::from_utf8_lossy(&text.0).into_owned())
    }

    /// A conversation without tools, or only its first message if the template refuses more.
    pub fn plain(&self) -> String {
        let messages = [message::user("a question"), message::assistant("an answer", &[])];
        let rendered = |messages| self.render(messages, &[], true);
        rendered(&messages).or_else(|_| rendered(&messages[..1])).unwrap_or_default()
    }
}

/// Most bytes of a rendered conversation.
const LONGEST: usize = 256 << 20;

/// What a template writes. Its literal text costs a step whatever its length, so steps do not bound it.
#[derive(Default)]
struct BoundedText(Vec<u8>);

impl std::io::Write for BoundedText {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + text.len() > LONGEST {
            let reason = format!("the conversation takes more than {} MiB", LONGEST >> 20);
            return Err(std::io::Error::other(reason));
        }
        self.0.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Distinguishes a template that refuses (`raise_exception`) from one that cannot be rendered.
fn failure(error: minijinja::Error) -> ChatError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(at) = cause {
        if let Some(Refusal(reason)) = at.downcast_ref() {
            return ChatError::Refused { reason: reason.clone() };
        }
        cause = at.source();
    }
    ChatError::Template(error)
}

/// Messages as templates expect them.
pub(super) mod message {
    use super::{ToolCall, Value, json};

    pub fn system(text: &str) -> Value {
        json!({"role": "system", "content": text})
    }

    pub fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    /// `calls` with their ids.
    pub fn assistant(text: &str, calls: &[(&str, &ToolCall)]) -> Value {
        let call = |(id, call): &(&str, &ToolCall)| json!({"id": id, "type": "function", "function": call});
        let calls: Vec<Value> = calls.iter().map(call).collect();
        if calls.is_empty() {
            json!({"role": "assistant", "content": text})
        } else {
            json!({"role": "assistant", "content": text, "tool_calls": calls})
        }
    }

    pub fn tool(id: &str, name: &str, text: &str) -> Value {
        json!({"role": "tool", "tool_call_id": id, "name": name, "content": text})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, ChatError> {
        let tools = [json!({"b": 1.0, "a": "<é'"})];
        Template::new(source, Map::new())?.render(&[message::user(" hi ")], &tools, true)
    }

    #[test]
    fn filters_and_functions_of_transformers_are_supported() {
        let cases = [
            ("{{ tools[0] | tojson }}", r#"{"b": 1.0, "a": "<é'"}"#),
            ("{{ tools | tojson(indent=1) }}", "[\n {\n  \"b\": 1.0,\n  \"a\": \"<é'\"\n }\n]"),
            ("{{ messages[0].content.strip() }}", "hi"),
            (
                "{{ [none, true, 1e16, \"it's\", 'a\nb'] }} {{ false | string }}{{ none }}",
                r#"[None, True, 1e+16, "it's", 'a\nb'] FalseNone"#,
            ),
            ("{{ tools[0] }}", r#"{'b': 1.0, 'a': "<é'"}"#),
            ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
            ("{% if undefined_name is not defined %}\n  yes\n{% endif %}", "  yes\n"),
            ("a {%- generation -%} b {% endgeneration %}\nc", "ab c"),
        ];
        for (source, expected) in cases {
            assert_eq!(render(source).unwrap(), expected, "{source}");
        }
    }

    #[test]
    fn a_refusal_contains_the_templates_message() {
        let error = render("{{ raise_exception('roles must alternate') }}").err().unwrap();
        assert!(error.to_string().contains("roles must alternate"), "{error}");
    }

    #[test]
    fn a_template_that_never_ends_is_stopped() {
        let source = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        assert!(matches!(render(source), Err(ChatError::Template(_))));
    }

    #[test]
    fn a_template_that_makes_more_than_memory_holds_is_an_error() {
        let double = "{% set ns = namespace(s='0123456789') %}{% for i in range(60) %}{% set ns.s = BODY %}{% endfor %}";
        let doubled = |body: &str| double.replace("BODY", body);
        let huge = "{% set x = 'x' * 60000000 %}";
        let cases = [
            "{{ tools | tojson(indent=9000000000000000000) }}".to_owned(),
            "{{ tools | tojson(indent=300000000) }}".to_owned(),
            "{{ [[1] * 1000] * 1000000 | tojson }}".to_owned(),
            "{{ ([[1] * 1000] * 1000000) | tojson }}".to_owned(),
            "{{ [[1] * 1000] * 1000000 }}".to_owned(),
            "{{ 'a\nb' | indent(9000000000000000000) }}".to_owned(),
            "{{ 'a\nb' | indent('x' * 50000000) | indent('x' * 50000000) | length }}{{ ('\n' * 1000) | indent('x' * 1000000) }}"
                .to_owned(),
            "{{ 'x' * 9000000000000000000 }}".to_owned(),
            "{{ ([0] * 9000000000000000000) | length }}".to_owned(),
            "{{ ([0] * 90000000) | list | length }}".to_owned(),
            "{{ ([0] * 90000000) | sort | length }}".to_owned(),
            "{{ range(9000000000000000000) | length }}".to_owned(),
            "{{ ('x' * 60000).join('y' * 60000 for y in []) }}".to_owned(),
            "{{ ('x' * 60000).join(['y'] * 60000) }}".to_owned(),
            "{{ (['y'] * 60000) | join('x' * 60000) }}".to_owned(),
            "{{ ('x' * 60000).replace('x', 'y' * 60000) }}".to_owned(),
            "{{ ('x' * 60000) | replace('x', 'y' * 60000) }}".to_owned(),
            "{{ ('x' * 60000).replace('', 'y' * 60000) }}".to_owned(),
            "{{ '%9000000000d' | format(1) }}".to_owned(),
            "{{ '%*d' | format(9000000000, 1) }}".to_owned(),
            "{{ '%.9000000000f' | format(1.0) }}".to_owned(),
            "{{ '{:>9000000000}'.format(1) }}".to_owned(),
            "{{ ('{0}' * 60000).format('x' * 60000) }}".to_owned(),
            "{{ 'x'.center(9000000000000000000) }}".to_owned(),
            "{{ 'x'.ljust(9000000000000000000) }}".to_owned(),
            "{{ 'x'.rjust(9000000000000000000) }}".to_owned(),
            "{{ 'x'.zfill(9000000000000000000) }}".to_owned(),
            "{{ 'x' | center(9000000000000000000) }}".to_owned(),
            "{{ [1] | batch(9000000000000000000, 0) | list }}".to_owned(),
            "{{ [1] | slice(9000000000000000000) | list }}".to_owned(),
            doubled("ns.s ~ ns.s"),
            doubled("ns.s + ns.s"),
            doubled("ns.s.replace('0', ns.s)"),
            doubled("[ns.s, ns.s] | join"),
            doubled("ns.s | string + ns.s"),
            format!("{huge}{{% for i in range(100) %}}{{{{ x }}}}{{% endfor %}}"),
            format!("{huge}{{% set y %}}{{% for i in range(100) %}}{{{{ x }}}}{{% endfor %}}{{% endset %}}"),
            format!("{{% for i in range(100000) %}}{}{{% endfor %}}", "x".repeat(4000)),
            format!("{huge}{{% set ns = namespace(l=[]) %}}{{% for i in range(9) %}}{{% set ns.l = ns.l + [x ~ i] %}}{{% endfor %}}"),
        ];
        for source in cases {
            let error = render(&source).err().unwrap_or_else(|| panic!("{source:.200} is rendered"));
            assert!(matches!(error, ChatError::Template(_)), "{source:.200}: {error}");
        }
    }

    #[test]
    fn a_long_conversation_is_rendered() {
        let source = "{% set ns = namespace(s='') %}{% for i in range(2000) %}{% set ns.s = ns.s + 'line ' ~ i ~ '\n' %}{% endfor %}\
            {{ ns.s | indent(2) }}{{ (ns.s.split('\n') | list | tojson(indent=2)).replace('line', 'row') | length }}";
        let text = render(&source.replace("\\\n            ", "")).unwrap();
        assert!(text.contains("\n  line 1999\n") && text.len() > 20_000, "{text:.100}");
    }

    #[test]
    fn an_invalid_date_format_is_an_error() {
        assert!(render("{{ strftime_now('%Q %') }}").is_err());
    }
}
