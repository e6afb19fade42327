//! Guides: what a turn may be, as a grammar over the tokens of a vocabulary. [`llguidance`] says which token may come next.

use std::sync::Arc;

use llguidance::Matcher;
use mcprl_base::guide::Guide;
use serde_json::{Map, Value, json};

use super::{
    Chat, GuideError, PlainChat, ToolCall, Vocabulary,
    growing::TAGS,
    ids::call_id,
    token_bytes::{Guides, first_line},
};

/// The place of arguments in a written call.
const ARGUMENTS: &str = "place_of_arguments";
/// How JSON is written: between fields, and behind a name. All formats write arguments so.
const SEPARATORS: [&str; 2] = [", ", ": "];
/// An id of a call, where the model writes it.
const ID: &str = "/[0-9A-Za-z]{9}/";

/// What a turn may be: JSON of a schema, or a call of one of some tools. Both, if both are given.
#[derive(Debug)]
pub struct Shape<'s> {
    pub json: Option<&'s Value>,
    /// Function schemas.
    pub calls: &'s [Value],
    /// Whether it may be text, with or without calls behind it.
    pub text: bool,
}

/// A turn that is limited.
pub struct TurnGuide {
    vocabulary: Arc<Vocabulary>,
    guides: Arc<Guides>,
    matcher: Matcher,
    stop: Vec<u32>,
    /// The tokens of reasoning that the prompt has opened and nothing has closed yet. All tokens may come there but those that
    /// end the turn.
    reasoning: Option<Vec<u32>>,
    /// Tokens with which the model may open one itself, as its first token.
    openings: Vec<u32>,
}

impl TurnGuide {
    fn new(
        vocabulary: &Arc<Vocabulary>,
        stop: &[u32],
        is_opened: bool,
        grammar: impl FnOnce() -> Result<String, GuideError>,
    ) -> Result<Self, GuideError> {
        let guides = vocabulary.guides().ok_or(GuideError::Tokenizer)?;
        let matcher = guides.matcher(grammar()?)?;
        let reasoning = is_opened.then(Vec::new);
        let (vocabulary, openings) = (vocabulary.clone(), Vec::new());
        Ok(Self { vocabulary, guides, matcher, stop: stop.to_vec(), reasoning, openings })
    }

    /// The same from the beginning, for another turn.
    pub fn again(&self) -> Self {
        Self {
            vocabulary: self.vocabulary.clone(),
            guides: self.guides.clone(),
            matcher: self.matcher.deep_clone(),
            stop: self.stop.clone(),
            reasoning: self.reasoning.clone(),
            openings: self.openings.clone(),
        }
    }
}

impl Guide for TurnGuide {
    fn limit(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let allowed = match self.reasoning {
            Some(_) => None,
            None => Some(self.matcher.compute_mask_or_eos().map_err(|error| first_line(&error.to_string()))?),
        };
        let end = self.guides.end;
        for (token, logit) in logits.iter_mut().enumerate() {
            let has = |tokens: &[u32]| tokens.iter().any(|other| *other as usize == token);
            let may_come = match &allowed {
                None => !has(&self.stop),
                Some(allowed) if has(&self.stop) => allowed.get(end),
                Some(allowed) => token < end && allowed.get(token) || has(&self.openings),
            };
            if !may_come {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn advance(&mut self, token: u32) -> Result<(), String> {
        /// More than a closing tag takes.
        const TAIL: usize = 16;
        if self.stop.contains(&token) {
            return Ok(());
        }
        if std::mem::take(&mut self.openings).contains(&token) {
            self.reasoning = Some(Vec::new());
        }
        let Some(reasoning) = &mut self.reasoning else {
            return self.matcher.consume_token(token).map_err(|error| first_line(&error.to_string()));
        };
        reasoning.push(token);
        let tail = self.vocabulary.decode(&reasoning[reasoning.len().saturating_sub(TAIL)..]);
        if TAGS.iter().any(|[_, close]| tail.contains(close)) {
            self.reasoning = None;
        }
        Ok(())
    }
}

impl Chat {
    /// A guide for the turn behind a prompt that ends with these tokens. With several tools, the model chooses one.
    ///
    /// # Errors
    /// If a schema is not supported, or the template's calls are not JSON.
    pub fn guide(&self, prompt: &[u32], shape: &Shape<'_>) -> Result<TurnGuide, GuideError> {
        let is_opened = self.opened(prompt).is_some();
        let openings = TAGS.iter().filter(|_| shape.text && !is_opened);
        let openings = openings.filter_map(|[open, _]| self.vocabulary.id(open)).collect();
        let guide = TurnGuide::new(&self.vocabulary, &self.stop, is_opened, || {
            let mut grammar = Grammar::default();
            if let Some(schema) = shape.json {
                grammar.json(schema, false)?;
            }
            let opening = match shape.calls.first().filter(|_| shape.text) {
                Some(tool) => self.opening(&self.written_call(tool)?.0),
                None => String::new(),
            };
            for tool in shape.calls {
                self.add_call(&mut grammar, tool, &opening)?;
            }
            if shape.text {
                return Ok(grammar.behind_text(&opening));
            }
            // A closed reasoning is written by the model itself, and line breaks may follow it.
            let start = match is_opened {
                true => "/\\n{0,2}/".into(),
                false => self.literal(&self.learned.empty_reasoning),
            };
            Ok(grammar.written(&start))
        })?;
        Ok(TurnGuide { openings, ..guide })
    }

    /// A call of a tool as the template writes it, without its arguments: what is before them and behind them, and its id.
    fn written_call(&self, tool: &Value) -> Result<(String, String, String), GuideError> {
        let arguments = Map::from_iter([(ARGUMENTS.to_owned(), json!(1))]);
        let name = tool["function"]["name"].as_str().unwrap_or_default();
        let call = ToolCall { name: self.vocabulary.mask(name).into_owned(), arguments };
        let written = self.learned.format.assistant("", std::slice::from_ref(&call));
        let place = format!("{{\"{ARGUMENTS}\": 1}}");
        let (before, after) = written.split_once(&place).ok_or(GuideError::Calls)?;
        Ok((before.to_owned(), after.to_owned(), call_id(0, &call)))
    }

    /// The text by which a call is known to begin; empty if it begins with a control token, which is in no text.
    fn opening(&self, before: &str) -> String {
        let tokens = self.vocabulary.encode(before);
        if tokens.first().is_some_and(|token| self.vocabulary.is_control(*token)) {
            return String::new();
        }
        before.split_whitespace().next().unwrap_or_default().to_owned()
    }

    /// Adds a choice: a call of a tool, without its opening.
    fn add_call(&self, grammar: &mut Grammar, tool: &Value, opening: &str) -> Result<(), GuideError> {
        let function = &tool["function"];
        let (before, after, id) = self.written_call(tool)?;
        let before = before.strip_prefix(opening).unwrap_or(&before);
        let mut schema = match &function["parameters"] {
            schema @ Value::Object(_) => schema.clone(),
            _ => json!({}),
        };
        // Arguments are an object, whether their schema says so or not.
        if schema.get("$ref").is_none() && schema["type"] != "object" {
            schema["type"] = "object".into();
        }
        let rule = grammar.schema(&schema, true)?;
        // Each call has an id of its own.
        let literal = |text: &str| {
            text.split(&id).map(|part| self.literal(part)).collect::<Vec<_>>().join(&format!(" {ID} "))
        };
        grammar.choices.push(format!("{} {rule} {}", literal(before), literal(&after)));
        Ok(())
    }

    /// A text of the template in a grammar: control tokens by their number, the rest as text.
    fn literal(&self, text: &str) -> String {
        let tokens = self.vocabulary.encode(text);
        let is_control = |token: &u32| self.vocabulary.is_control(*token);
        let runs = tokens.chunk_by(|one, other| !is_control(one) && !is_control(other));
        let run = |run: &[u32]| match run {
            [token] if is_control(token) => format!("<[{token}]>"),
            _ => Value::from(self.vocabulary.decode(run)).to_string(),
        };
        runs.map(run).collect::<Vec<_>>().join(" ")
    }
}

impl PlainChat {
    /// A guide for a reply that is JSON of this schema. What the schema has that grammars do not is left out.
    ///
    /// # Errors
    /// If the bytes of the tokens are not known.
    pub fn guide(&self, schema: &Value) -> Result<TurnGuide, GuideError> {
        TurnGuide::new(&self.vocabulary, &self.stop, false, || {
            let mut grammar = Grammar::default();
            grammar.json(schema, true)?;
            Ok(grammar.written(""))
        })
    }
}

/// A grammar while it is put together, in Lark's notation as llguidance reads it.
#[derive(Default)]
struct Grammar {
    choices: Vec<String>,
    rules: Vec<String>,
}

impl Grammar {
    /// A rule for JSON of a schema. Returns its name.
    fn schema(&mut self, schema: &Value, is_lenient: bool) -> Result<String, GuideError> {
        let [between, behind] = SEPARATORS;
        let mut schema = schema.clone();
        let Value::Object(fields) = &mut schema else {
            return Err(GuideError::Schema { reason: "a schema is an object".into() });
        };
        let form = json!({
            "item_separator": between, "key_separator": behind, "whitespace_flexible": false,
            "coerce_one_of": true, "lenient": is_lenient,
        });
        fields.insert("x-guidance".into(), form);
        let name = format!("json{}", self.rules.len());
        self.rules.push(format!("{name}: %json {schema}"));
        Ok(name)
    }

    /// A choice that is JSON of a schema.
    fn json(&mut self, schema: &Value, is_lenient: bool) -> Result<(), GuideError> {
        let rule = self.schema(schema, is_lenient)?;
        self.choices.push(rule);
        Ok(())
    }

    /// The grammar of a text, and of calls behind it: the choices, with the opening that they lack and that is in no text.
    fn behind_text(mut self, opening: &str) -> String {
        const ANY: &str = "(.|\\n)*";
        let choices = self.choices.join(" | ");
        // A lexer does not go back: a text that ends with an opening is one word of the grammar.
        let (text, start, call) = if opening.is_empty() {
            ("/(.|\\n)+/".to_owned(), "TEXT? (call (SPACE? call)*)?", "rest".to_owned())
        } else {
            let known = Value::from(opening);
            self.rules.push(format!("head[lazy]: /{ANY}/ {known}"));
            let text = format!("/(.|\\n)+/ & ~(/{ANY}/ {known} /{ANY}/)");
            (text, "TEXT? | head rest (SPACE? call)*", format!("{known} rest"))
        };
        self.rules.push(format!("TEXT: {text}\nSPACE: /[ \\n]+/\nrest: {choices}\ncall: {call}"));
        format!("start: {start}\n{}\n", self.rules.join("\n"))
    }

    /// The grammar of one of the choices behind this beginning.
    fn written(self, start: &str) -> String {
        format!("start: {start} ({})\n{}\n", self.choices.join(" | "), self.rules.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::{
        ChaCha8Rng,
        rand_core::{Rng, SeedableRng},
    };

    use super::*;
    use crate::tests::family::{Family, path};

    fn tool(name: &str) -> Value {
        let parameters = json!({
            "type": "object", "additionalProperties": false, "required": ["query"],
            "properties": {"query": {"type": "string", "maxLength": 8}, "limit": {"type": "integer"}},
        });
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    }

    /// A turn of a model that has no idea: every token is as good as any other, but for an end, which comes as soon as it may.
    fn turn(guide: &mut TurnGuide, stop: &[u32], size: usize, seed: u64) -> Vec<u32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut tokens = Vec::new();
        while tokens.len() < 300 {
            let mut logits: Vec<f32> = (0..size).map(|_| rng.next_u32() as f32 / 4e9).collect();
            stop.iter().for_each(|stop| logits[*stop as usize] = 2.0);
            guide.limit(&mut logits).unwrap();
            let best = (0..size).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            assert!(logits[best].is_finite(), "a token may come");
            guide.advance(best as u32).unwrap();
            tokens.push(best as u32);
            if stop.contains(&(best as u32)) {
                return tokens;
            }
        }
        tokens
    }

    fn chat(family: &str) -> Chat {
        match family {
            "qwen3" => Chat::load(&path(family)).unwrap(),
            family => Family::named(family).chat(None),
        }
    }

    #[test]
    fn any_model_calls_one_of_the_tools_with_arguments_of_its_schema() {
        let names = ["read_query", "list_all"];
        let tools = names.map(tool);
        for family in [
            "qwen3",
            "own_chatml",
            "own_llama",
            "own_mistral",
            "own_phi4",
            "own_phi4_mini",
            "functools",
            "mistral_nemo",
            "mistral_v7",
            "mistral_v11",
            "mistral_v13",
        ] {
            let chat = chat(family).offering(&tools);
            let mut called = [0, 0];
            for seed in 0..8 {
                let mut guide = chat.guide(&[], &Shape { json: None, calls: &tools, text: false }).unwrap();
                let tokens = turn(&mut guide, chat.stop(), chat.vocabulary.len(), seed);
                let turn = chat.parse(&[], &tokens);
                let [Ok(call)] = turn.calls.as_slice() else { panic!("{family}: {}", chat.decode(&tokens)) };
                let which = names.iter().position(|name| call.name == *name).unwrap();
                called[which] += 1;
                assert!(call.arguments["query"].as_str().unwrap().chars().count() <= 8, "{call:?}");
                assert!(call.arguments.keys().all(|key| key == "query" || key == "limit"), "{call:?}");
            }
            assert!(called.iter().all(|times| *times > 0), "{family}: the model chooses: {called:?}");
        }
    }

    #[test]
    fn a_turn_that_may_be_text_may_also_call_but_only_with_arguments_of_the_schema() {
        let tools = [tool("read_query"), tool("list_all")];
        for family in ["qwen3", "own_chatml", "own_llama", "own_mistral", "mistral_v11"] {
            let chat = chat(family).offering(&tools);
            let shape = Shape { json: None, calls: &tools, text: true };
            let guide = chat.guide(&[], &shape).unwrap();
            let call = |arguments: Value| {
                let arguments = arguments.as_object().unwrap().clone();
                chat.learned.format.assistant("", &[ToolCall { name: "read_query".into(), arguments }])
            };
            // How far the guide goes along with a text, and whether the turn may end there.
            let follow = |text: &str| {
                let mut guide = guide.again();
                let tokens = chat.vocabulary.encode(text);
                let taken = tokens.iter().take_while(|token| {
                    let mut logits = vec![0.0; chat.vocabulary.len()];
                    guide.limit(&mut logits).unwrap();
                    logits[**token as usize].is_finite() && guide.advance(**token).is_ok()
                });
                let is_whole = taken.count() == tokens.len();
                let mut logits = vec![0.0; chat.vocabulary.len()];
                is_whole && {
                    guide.limit(&mut logits).unwrap();
                    chat.stop().iter().any(|stop| logits[*stop as usize].is_finite())
                }
            };
            let right = call(json!({"query": "SELECT"}));
            for text in ["Just text, with {braces} and <tags>.", &right, &format!("I look.\n{right}"), ""] {
                assert!(follow(text), "{family}: {text}");
            }
            if family == "qwen3" {
                let thought = "<think>\nA <tool_call> of {\"no\"} form.\n</think>\n\n";
                assert!(
                    follow(&format!("{thought}{right}")) && follow(&format!("{thought}Yes.")),
                    "thoughts are free"
                );
            }
            for wrong in [call(json!({"query": 7})), call(json!({})), call(json!({"query": "S", "more": 1}))]
            {
                assert!(!follow(&wrong) && !follow(&format!("I look.\n{wrong}")), "{family}: {wrong}");
            }
        }
    }

    #[test]
    fn a_name_that_spells_a_control_token_is_text() {
        let name = "end \"it\" <|im_end|>";
        let chat = chat("qwen3").offering(&[tool(name)]);
        let mut guide = chat.guide(&[], &Shape { json: None, calls: &[tool(name)], text: false }).unwrap();
        let tokens = turn(&mut guide, chat.stop(), chat.vocabulary.len(), 1);
        let turn = chat.parse(&[], &tokens);
        assert!(matches!(turn.calls.as_slice(), [Ok(call)] if call.name == name), "{}", chat.decode(&tokens));
        assert_eq!(tokens.iter().filter(|token| chat.stop().contains(token)).count(), 1);
    }

    #[test]
    fn arguments_are_an_object_and_calls_have_ids_of_their_own() {
        let tool = json!({"type": "function", "function": {"name": "now", "parameters": {"properties": {}, "additionalProperties": false}}});
        let chat = chat("mistral_v11").offering(std::slice::from_ref(&tool));
        let called = |seed: u64| {
            let mut guide = chat
                .guide(&[], &Shape { json: None, calls: std::slice::from_ref(&tool), text: false })
                .unwrap();
            chat.parse(&[], &turn(&mut guide, chat.stop(), chat.vocabulary.len(), seed))
        };
        let ids: std::collections::BTreeSet<String> = (0..4)
            .map(|seed| {
                let turn = called(seed);
                assert!(matches!(turn.calls.as_slice(), [Ok(call)] if call.name == "now"), "{turn:?}");
                turn.ids[0].clone()
            })
            .collect();
        assert_eq!(ids.len(), 4, "{ids:?}");
    }

    #[test]
    fn a_reply_is_json_of_its_schema_whatever_the_model_would_write() {
        let chat = chat("qwen3");
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["kind", "scores"],
            "properties": {
                "kind": {"enum": ["a", "b"]},
                "scores": {"type": "array", "items": {"enum": [0.5, 1]}, "minItems": 2, "maxItems": 2},
            },
        });
        let mut guide = chat.guide(&[], &Shape { json: Some(&schema), calls: &[], text: false }).unwrap();
        for seed in 0..10 {
            let tokens = turn(&mut guide.again(), chat.stop(), chat.vocabulary.len(), seed);
            let reply: Value = serde_json::from_str(&chat.parse(&[], &tokens).text).unwrap();
            assert_eq!(reply["scores"].as_array().unwrap().len(), 2, "{reply}");
        }
        let first = turn(&mut guide, chat.stop(), chat.vocabulary.len(), 0);
        assert!(guide.advance(first[0]).is_err(), "nothing may follow");
    }

    #[test]
    fn reasoning_that_the_prompt_opens_is_free_and_does_not_end_the_turn() {
        let chat = chat("qwen3");
        let prompt = chat.encode_text("<think>\n");
        let schema = json!({"const": 7});
        let schema = json!({"type": "object", "properties": {"n": schema}, "required": ["n"], "additionalProperties": false});
        let mut guide = chat.guide(&prompt, &Shape { json: Some(&schema), calls: &[], text: false }).unwrap();
        let mut logits = vec![0.0; chat.vocabulary.len()];
        guide.limit(&mut logits).unwrap();
        let free = logits.iter().filter(|logit| logit.is_finite()).count();
        assert_eq!(free, logits.len() - chat.stop().len());
        for token in chat.encode_text("Seven, I think.\n</think>\n\n{\"n\": 7}") {
            guide.advance(token).unwrap();
        }
        let mut logits = vec![0.0; chat.vocabulary.len()];
        guide.limit(&mut logits).unwrap();
        let left: Vec<u32> =
            (0..).zip(&logits).filter(|(_, logit)| logit.is_finite()).map(|(token, _)| token).collect();
        assert!(left.iter().all(|token| chat.stop().contains(token)) && !left.is_empty(), "{left:?}");
    }

    #[test]
    fn a_schema_that_cannot_be_kept_is_refused_and_so_are_calls_that_are_no_json() {
        let chat = chat("qwen3");
        let schema = json!({"type": "object", "properties": {"n": {"not": {"type": "null"}}}});
        let refused = chat.guide(&[], &Shape { json: Some(&schema), calls: &[], text: false }).err().unwrap();
        assert!(matches!(&refused, GuideError::Schema { reason } if reason.contains("not")), "{refused}");
        let xml = Family::named("xml").chat(None);
        let tools = [tool("read_query")];
        let refused =
            xml.offering(&tools).guide(&[], &Shape { json: None, calls: &tools, text: false }).err().unwrap();
        assert!(matches!(refused, GuideError::Calls), "{refused}");
    }
}
