//! Checks a call's arguments against the JSON Schema of its tool, in the dialects 2020-12 and draft-07.
//!
//! Schemas come from servers, so nothing of them is trusted: references are never fetched, patterns match in linear time
//! (`regex`), and a check ends after a number of steps. A schema that cannot be used ([`Schema::compile`]) or takes too long
//! refuses no call. `format` and `content…` are annotations, as the specification has them by default.

mod check;
mod coerce;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use percent_encoding::percent_decode_str;
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use crate::text::start_of;

/// Maximum bytes of a compiled pattern.
const PATTERN_BYTES: usize = 1 << 18;
/// Maximum number of patterns of one schema.
const PATTERNS: usize = 100;

/// A schema whose keywords, references and patterns are known to be valid.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    root: Value,
    /// JSON pointers by reference as written.
    targets: BTreeMap<String, String>,
    patterns: BTreeMap<String, Regex>,
    /// Before 2019-09, a `$ref` hides the other keywords of its schema.
    is_old: bool,
}

/// What a keyword has as its value.
#[derive(Clone, Copy, PartialEq)]
enum KeywordValue {
    Schema,
    List,
    SchemaOrList,
    Named,
    /// By name, a schema or a list of names (`dependencies`).
    NamedOrNames,
    Type,
    Names,
    NamedNames,
    Size,
    Number,
    /// A number; in draft 4, a boolean.
    Bound,
    Values,
    Flag,
    Pattern,
}

const KEYWORDS: [(&str, KeywordValue); 42] = [
    ("$defs", KeywordValue::Named),
    ("definitions", KeywordValue::Named),
    ("type", KeywordValue::Type),
    ("enum", KeywordValue::Values),
    ("required", KeywordValue::Names),
    ("properties", KeywordValue::Named),
    ("patternProperties", KeywordValue::Named),
    ("additionalProperties", KeywordValue::Schema),
    ("unevaluatedProperties", KeywordValue::Schema),
    ("propertyNames", KeywordValue::Schema),
    ("minProperties", KeywordValue::Size),
    ("maxProperties", KeywordValue::Size),
    ("dependentRequired", KeywordValue::NamedNames),
    ("dependentSchemas", KeywordValue::Named),
    ("dependencies", KeywordValue::NamedOrNames),
    ("items", KeywordValue::SchemaOrList),
    ("prefixItems", KeywordValue::List),
    ("additionalItems", KeywordValue::Schema),
    ("unevaluatedItems", KeywordValue::Schema),
    ("contains", KeywordValue::Schema),
    ("minContains", KeywordValue::Size),
    ("maxContains", KeywordValue::Size),
    ("minItems", KeywordValue::Size),
    ("maxItems", KeywordValue::Size),
    ("uniqueItems", KeywordValue::Flag),
    ("minLength", KeywordValue::Size),
    ("maxLength", KeywordValue::Size),
    ("pattern", KeywordValue::Pattern),
    ("minimum", KeywordValue::Number),
    ("maximum", KeywordValue::Number),
    ("exclusiveMinimum", KeywordValue::Bound),
    ("exclusiveMaximum", KeywordValue::Bound),
    ("multipleOf", KeywordValue::Number),
    ("allOf", KeywordValue::List),
    ("anyOf", KeywordValue::List),
    ("oneOf", KeywordValue::List),
    ("not", KeywordValue::Schema),
    ("if", KeywordValue::Schema),
    ("then", KeywordValue::Schema),
    ("else", KeywordValue::Schema),
    ("$dynamicRef", KeywordValue::Flag),
    ("$recursiveRef", KeywordValue::Flag),
];

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

impl Schema {
    /// Checks the schema and compiles its patterns.
    ///
    /// # Errors
    /// The reason, if arguments cannot be checked against it.
    pub(super) fn compile(mut root: Value) -> Result<Self, String> {
        tidy(&mut root);
        let dialect = root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let is_old = ["draft-07", "draft-06", "draft-04"].iter().any(|old| dialect.contains(old));
        let mut compiler = Compiler {
            root: &root,
            is_old,
            anchors: BTreeMap::new(),
            targets: BTreeMap::new(),
            patterns: BTreeMap::new(),
            seen: BTreeSet::new(),
            pending: Vec::new(),
        };
        compiler.anchors(&root, "");
        compiler.schema(&root, String::new())?;
        while let Some(pointer) = compiler.pending.pop() {
            let target = root.pointer(&pointer).unwrap_or(&Value::Null);
            compiler.schema(target, pointer)?;
        }
        let Compiler { targets, patterns, .. } = compiler;
        let schema = Self { targets, patterns, is_old, root };
        match schema.violations(&Map::new()) {
            Some(_) => Ok(schema),
            None => Err("checking against it takes too long".into()),
        }
    }
}

struct Compiler<'a> {
    root: &'a Value,
    is_old: bool,
    /// Pointers to the subschemas with an anchor.
    anchors: BTreeMap<&'a str, String>,
    targets: BTreeMap<String, String>,
    patterns: BTreeMap<String, Regex>,
    /// Pointers to schemas that were or will be compiled.
    seen: BTreeSet<String>,
    pending: Vec<String>,
}

impl<'a> Compiler<'a> {
    /// Finds anchors. Those in examples and defaults are found too; nothing refers to them.
    fn anchors(&mut self, value: &'a Value, pointer: &str) {
        match value {
            Value::Object(fields) => {
                let id = fields.get("$id").and_then(Value::as_str).and_then(|id| id.strip_prefix('#'));
                let anchor = fields.get("$anchor").and_then(Value::as_str).or(id);
                anchor.into_iter().for_each(|anchor| _ = self.anchors.insert(anchor, pointer.to_owned()));
                for (name, value) in fields {
                    self.anchors(value, &below(pointer, name));
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.anchors(item, &below(pointer, &index.to_string()));
                }
            }
            _ => {}
        }
    }

    fn schema(&mut self, schema: &Value, place: String) -> Result<(), String> {
        if !self.seen.insert(place.clone()) {
            return Ok(());
        }
        let fields = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(fields) => fields,
            _ => return Err(format!("{} is no schema", shown(&place))),
        };
        let id = fields.get("$id").and_then(Value::as_str);
        if !place.is_empty() && id.is_some_and(|id| !id.starts_with('#')) {
            return Err(format!("{} has an `$id` of its own", shown(&place)));
        }
        match fields.get("$ref") {
            Some(Value::String(reference)) => {
                self.reference(reference)?;
                if self.is_old {
                    return Ok(());
                }
            }
            Some(_) => return Err(format!("`$ref` in {} is no text", shown(&place))),
            None => {}
        }
        for (keyword, holds) in KEYWORDS {
            if let Some(value) = fields.get(keyword) {
                self.keyword(keyword, holds, value, &below(&place, keyword))?;
            }
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        keyword: &str,
        holds: KeywordValue,
        value: &Value,
        place: &str,
    ) -> Result<(), String> {
        let wrong = || Err(format!("the value of {} is invalid", shown(place)));
        let is_size = |value: &Value| value.as_f64().is_some_and(|size| size >= 0.0 && size.fract() == 0.0);
        let is_names =
            |value: &Value| value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
        let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
        let is_right = match holds {
            KeywordValue::Schema => return self.schema(value, place.to_owned()),
            KeywordValue::List | KeywordValue::SchemaOrList => match value {
                Value::Array(items) if !items.is_empty() || holds == KeywordValue::SchemaOrList => {
                    for (index, item) in items.iter().enumerate() {
                        self.schema(item, below(place, &index.to_string()))?;
                    }
                    true
                }
                _ if holds == KeywordValue::SchemaOrList => return self.schema(value, place.to_owned()),
                _ => false,
            },
            KeywordValue::Named | KeywordValue::NamedOrNames => {
                let Value::Object(named) = value else { return wrong() };
                for (name, value) in named {
                    if keyword == "patternProperties" {
                        self.pattern(name)?;
                    }
                    if !(holds == KeywordValue::NamedOrNames && is_names(value)) {
                        self.schema(value, below(place, name))?;
                    }
                }
                true
            }
            KeywordValue::Type => match value {
                Value::Array(types) => types.iter().all(is_type),
                value => is_type(value),
            },
            KeywordValue::Names => is_names(value),
            KeywordValue::NamedNames => value.as_object().is_some_and(|named| named.values().all(is_names)),
            KeywordValue::Size => is_size(value),
            KeywordValue::Number => {
                value.is_number() && (keyword != "multipleOf" || value.as_f64() > Some(0.0))
            }
            KeywordValue::Bound => value.is_number() || value.is_boolean(),
            KeywordValue::Values => value.is_array(),
            KeywordValue::Flag if keyword.starts_with('$') => return Err(format!("it uses `{keyword}`")),
            KeywordValue::Flag => value.is_boolean(),
            KeywordValue::Pattern => match value {
                Value::String(pattern) => return self.pattern(pattern),
                _ => false,
            },
        };
        if is_right { Ok(()) } else { wrong() }
    }

    fn reference(&mut self, reference: &str) -> Result<(), String> {
        let id = self.root.get("$id").and_then(Value::as_str).filter(|id| !id.is_empty());
        let local = reference.strip_prefix(id.unwrap_or_default()).unwrap_or(reference);
        let fragment = local.strip_prefix('#');
        let pointer = match fragment.map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned()) {
            Some(fragment) if fragment.is_empty() || fragment.starts_with('/') => Some(fragment),
            Some(anchor) => self.anchors.get(&*anchor).cloned(),
            None if local.is_empty() => Some(String::new()),
            None => return Err(format!("`$ref` \"{}\" is not in the schema", cut(reference))),
        };
        let Some(pointer) = pointer.filter(|pointer| self.root.pointer(pointer).is_some()) else {
            return Err(format!("`$ref` \"{}\" has no target", cut(reference)));
        };
        if !self.seen.contains(&pointer) {
            self.pending.push(pointer.clone());
        }
        self.targets.insert(reference.to_owned(), pointer);
        Ok(())
    }

    fn pattern(&mut self, pattern: &str) -> Result<(), String> {
        if self.patterns.contains_key(pattern) {
            return Ok(());
        }
        if self.patterns.len() == PATTERNS {
            return Err(format!("it has more than {PATTERNS} patterns"));
        }
        let mut builder = RegexBuilder::new(pattern);
        builder.size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
        let regex =
            builder.build().map_err(|_| format!("the pattern \"{}\" is not supported", cut(pattern)))?;
        self.patterns.insert(pattern.to_owned(), regex);
        Ok(())
    }
}

/// Leaves out keywords that are null, and makes objects of empty lists where names are expected, as PHP writes them.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                !value.is_null() || !KEYWORDS.iter().any(|(keyword, _)| keyword == name)
            });
            for (keyword, holds) in KEYWORDS {
                match (holds, fields.get_mut(keyword)) {
                    (KeywordValue::Named | KeywordValue::NamedOrNames, Some(Value::Object(named))) => {
                        named.values_mut().for_each(tidy);
                    }
                    (KeywordValue::Named, Some(named)) if named.as_array().is_some_and(Vec::is_empty) => {
                        *named = Map::new().into();
                    }
                    (KeywordValue::Schema | KeywordValue::List | KeywordValue::SchemaOrList, Some(inner)) => {
                        tidy(inner);
                    }
                    _ => {}
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// The pointer to a member.
fn below(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn shown(pointer: &str) -> String {
    if pointer.is_empty() { "the schema".into() } else { format!("`{}`", cut(pointer)) }
}

/// The beginning of a long text.
fn cut(text: &str) -> String {
    start_of(text, 80)
}
