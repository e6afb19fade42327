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
        self.environment.get_template(NAME).and_then(|template| template.render(context)).map_err(failure)
    }

    /// A conversation without tools, or only its first message if the template refuses more.
    pub fn plain(&self) -> String {
        let messages = [message::user("a question"), message::assistant("an answer", &[])];
        let rendered = |messages| self.render(messages, &[], true);
        rendered(&messages).or_else(|_| rendered(&messages[..1])).unwrap_or_default()
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
    fn an_invalid_date_format_is_an_error() {
        assert!(render("{{ strftime_now('%Q %') }}").is_err());
    }
}
