//! Validates a value, and says what is wrong in words for a model.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Schema, cut};
use crate::chat::type_of;

/// Work of one check: applications of a schema to a value, names and values compared, bytes of text matched.
const STEPS: u32 = 300_000;
/// Missing fields of one object that are collected.
const MISSING: usize = 50;
/// Maximum nesting of applications.
const DEPTH: u32 = 200;
/// Violations that are reported.
const REPORTED: usize = 3;
/// Names or values that a violation lists.
const LISTED: usize = 10;

/// Something in a value that the schema forbids.
#[derive(Debug, Clone, PartialEq)]
struct Violation {
    /// Where: `filter.names[0]`; empty for all arguments.
    path: String,
    /// What is expected there.
    expected: String,
    /// The types that would fit, if the type is wrong.
    types: Option<Vec<String>>,
}

/// The check took too many steps or went too deep.
struct Exhausted;

type Checked<T> = Result<T, Exhausted>;

impl Schema {
    /// What is wrong with the arguments, at most three things; `None` if checking takes too long.
    pub(in crate::agent) fn violations(&self, arguments: &Map<String, Value>) -> Option<Vec<String>> {
        let arguments = Value::Object(arguments.clone());
        let mut check = Check { schema: self, steps: STEPS, depth: DEPTH };
        let mut violations = Vec::new();
        check.apply(&self.root, &arguments, "", &mut violations).ok()?;
        let mut texts = distinct(violations.iter().map(Violation::text));
        texts.truncate(REPORTED);
        Some(texts)
    }

    fn target(&self, reference: &str) -> &Value {
        let target = self.targets.get(reference).and_then(|pointer| self.root.pointer(pointer));
        // Every reference has a target, see `compile`.
        target.unwrap_or(&Value::Bool(true))
    }

    /// The schemas that apply to the same value, along with the keywords of this one.
    pub(super) fn referred<'s>(&'s self, schema: &'s Value) -> Option<&'s Value> {
        schema.get("$ref").and_then(Value::as_str).map(|reference| self.target(reference))
    }
}

impl Violation {
    fn text(&self) -> String {
        let Self { path, expected, .. } = self;
        if path.is_empty() { expected.clone() } else { format!("`{}` {expected}", cut(path)) }
    }
}

struct Check<'s> {
    schema: &'s Schema,
    /// Steps and levels left.
    steps: u32,
    depth: u32,
}

impl<'s> Check<'s> {
    fn spend(&mut self, steps: usize) -> Checked<()> {
        let steps = u32::try_from(steps).map_err(|_| Exhausted)?;
        self.steps = self.steps.checked_sub(steps).ok_or(Exhausted)?;
        Ok(())
    }

    fn is_valid(&mut self, schema: &'s Value, value: &Value) -> Checked<bool> {
        let mut violations = Vec::new();
        self.apply(schema, value, "", &mut violations)?;
        Ok(violations.is_empty())
    }

    fn apply(
        &mut self,
        schema: &'s Value,
        value: &Value,
        path: &str,
        out: &mut Vec<Violation>,
    ) -> Checked<()> {
        self.spend(1)?;
        self.depth = self.depth.checked_sub(1).ok_or(Exhausted)?;
        let checked = match schema {
            Value::Bool(false) => {
                out.push(violation(path, "is not allowed"));
                Ok(())
            }
            Value::Object(keywords) => self.keywords(schema, keywords, value, path, out),
            _ => Ok(()),
        };
        self.depth += 1;
        checked
    }

    fn keywords(
        &mut self,
        schema: &'s Value,
        keywords: &'s Map<String, Value>,
        value: &Value,
        path: &str,
        out: &mut Vec<Violation>,
    ) -> Checked<()> {
        if value.is_null() && is_nullable(keywords) {
            return Ok(());
        }
        if let Some(target) = self.schema.referred(schema) {
            self.apply(target, value, path, out)?;
            if self.schema.is_old {
                return Ok(());
            }
        }
        let types = types(keywords);
        if !types.is_empty() && !types.iter().any(|kind| has_type(value, kind)) {
            out.push(mistyped(path, types.iter().map(|kind| (*kind).to_owned()).collect(), value));
            return Ok(());
        }
        if let Some(Value::Array(choices)) = keywords.get("enum") {
            self.spend(choices.len().saturating_mul(weight(value)))?;
            if !choices.iter().any(|choice| equal(choice, value)) {
                let choices = listed(choices.iter().map(short));
                out.push(violation(path, &format!("should be one of {choices}, found {}", short(value))));
            }
        }
        if let Some(constant) = keywords.get("const") {
            self.spend(weight(value))?;
            if !equal(constant, value) {
                out.push(violation(path, &format!("should be {}, found {}", short(constant), short(value))));
            }
        }
        match value {
            Value::Number(_) => number(keywords, value, path, out),
            Value::String(text) => self.text(keywords, text, path, out)?,
            Value::Array(items) => self.items(keywords, items, path, out)?,
            Value::Object(fields) => self.fields(keywords, fields, path, out)?,
            Value::Null | Value::Bool(_) => {}
        }
        self.combinations(keywords, value, path, out)
    }

    fn combinations(
        &mut self,
        keywords: &'s Map<String, Value>,
        value: &Value,
        path: &str,
        out: &mut Vec<Violation>,
    ) -> Checked<()> {
        let list = |name: &str| keywords.get(name).and_then(Value::as_array).into_iter().flatten();
        for schema in list("allOf") {
            self.apply(schema, value, path, out)?;
        }
        for name in ["anyOf", "oneOf"] {
            let mut failed = Vec::new();
            let mut fitting = 0;
            for schema in list(name) {
                let mut violations = Vec::new();
                self.apply(schema, value, path, &mut violations)?;
                fitting += usize::from(violations.is_empty());
                failed.push(violations);
            }
            match fitting {
                0 if !failed.is_empty() => out.extend(of_alternatives(failed, value, path)),
                2.. if name == "oneOf" => {
                    out.push(violation(path, "fits several alternatives instead of one"))
                }
                _ => {}
            }
        }
        if let Some(schema) = keywords.get("not")
            && self.is_valid(schema, value)?
        {
            out.push(violation(path, &format!("should not be {}", short(value))));
        }
        if let Some(condition) = keywords.get("if") {
            let branch = if self.is_valid(condition, value)? { "then" } else { "else" };
            if let Some(schema) = keywords.get(branch) {
                self.apply(schema, value, path, out)?;
            }
        }
        Ok(())
    }

    fn text(
        &mut self,
        keywords: &Map<String, Value>,
        text: &str,
        path: &str,
        out: &mut Vec<Violation>,
    ) -> Checked<()> {
        self.spend(text.len())?;
        let length = text.chars().count() as f64;
        sized(keywords, ["minLength", "maxLength"], length, "characters", path, out);
        if let Some(Value::String(pattern)) = keywords.get("pattern")
            && self.schema.patterns.get(pattern).is_some_and(|regex| !regex.is_match(text))
        {
            out.push(violation(path, &format!("should match {}", cut(pattern))));
        }
        Ok(())
    }

    fn items(
        &mut self,
        keywords: &'s Map<String, Value>,
        items: &[Value],
        path: &str,
        out: &mut Vec<Violation>,
    ) -> Checked<()> {
        sized(keywords, ["minItems", "maxItems"], items.len() as f64, "items", path, out);
        let (first, rest) = split_items(keywords);
        for (index, item) in items.iter().enumerate() {
            if let Some(schema) = first.get(index).or(rest) {
                self.apply(schema, item, &format!("{path}[{index}]"), out)?;
            }
        }
        if keywords.get("uniqueItems") == Some(&Value::Bool(true)) {
            self.spend(items.iter().map(weight).sum::<usize>().saturating_mul(items.len()))?;
            let is_repeated = |(index, item)| items[..index].iter().any(|earlier| equal(earlier, item));
            if items.iter().enumerate().any(is_repeated) {
                out.push(violation(path, "should have no item twice"));
            }
        }
        if let Some(schema) = keywords.get("contains") {
            let mut count = 0.0;
            for item in items {
                count += f64::from(u8::from(self.is_valid(schema, item)?));
            }
            let least = keywords.get("minContains").and_then(Value::as_f64).unwrap_or(1.0);
            let most = keywords.get("maxContains").and_then(Value::as_f64).unwrap_or(f64::INFINITY);
            if count < least || count > most {
                out.push(violation(path, "has too few or too many items of the wanted kind"));
            }
        }
        if let Some(schema) = keywords.get("unevaluatedItems") {
            self.spend(items.iter().map(weight).sum())?;
            let value = Value::Array(items.to_vec());
            let mut known = BTreeSet::new();
            self.evaluated_beside(keywords, &value, &mut known)?;
            for (index, item) in items.iter().enumerate() {
                if !known.contains(&index.to_string()) {
                    self.apply(schema, item, &format!("{path}[{index}]"), out)?;
                }
            }
        }
        Ok(())
    }

    fn fields(
        &mut self,
        keywords: &'s Map<String, Value>,
        fields: &Map<String, Value>,
        path: &str,
        out: &mut Vec<Violation>,
    ) -> Checked<()> {
        let properties = keywords.get("properties").and_then(Value::as_object);
        self.spend(names(keywords.get("required")).count())?;
        let missing = names(keywords.get("required")).filter(|name| !fields.contains_key(*name));
        for name in missing.take(MISSING) {
            let schema = properties.and_then(|properties| properties.get(name));
            out.push(violation(&member(path, name), &self.missing(schema)));
        }
        sized(keywords, ["minProperties", "maxProperties"], fields.len() as f64, "fields", path, out);
        for (name, value) in fields {
            let place = member(path, name);
            let mut is_known = false;
            if let Some(schema) = properties.and_then(|properties| properties.get(name)) {
                is_known = true;
                self.apply(schema, value, &place, out)?;
            }
            for schema in self.by_pattern(keywords, name)? {
                is_known = true;
                self.apply(schema, value, &place, out)?;
            }
            match keywords.get("additionalProperties") {
                Some(Value::Bool(false)) if !is_known => out.push(unknown(path, name, properties)),
                Some(schema) if !is_known => self.apply(schema, value, &place, out)?,
                _ => {}
            }
            if let Some(schema) = keywords.get("propertyNames")
                && !self.is_valid(schema, &Value::from(name.as_str()))?
            {
                out.push(violation(&place, "has a name that is not allowed"));
            }
        }
        let by_name = |keyword: &str| keywords.get(keyword).and_then(Value::as_object).into_iter().flatten();
        for (name, needed) in by_name("dependentRequired").chain(by_name("dependencies")) {
            self.spend(1 + names(Some(needed)).count())?;
            let missing = names(Some(needed)).filter(|needed| !fields.contains_key(*needed));
            for missing in missing.filter(|_| fields.contains_key(name)).take(MISSING) {
                out.push(violation(&member(path, missing), &format!("is missing; `{}` needs it", cut(name))));
            }
        }
        let needs_whole = ["dependentSchemas", "dependencies", "unevaluatedProperties"];
        if !needs_whole.iter().any(|keyword| keywords.contains_key(*keyword)) {
            return Ok(());
        }
        self.spend(fields.values().map(weight).sum())?;
        let value = Value::Object(fields.clone());
        for (name, schema) in by_name("dependentSchemas").chain(by_name("dependencies")) {
            if fields.contains_key(name) && !schema.is_array() {
                self.apply(schema, &value, path, out)?;
            }
        }
        if let Some(schema) = keywords.get("unevaluatedProperties") {
            let mut known = BTreeSet::new();
            self.evaluated_beside(keywords, &value, &mut known)?;
            for (name, value) in fields.iter().filter(|(name, _)| !known.contains(*name)) {
                match schema {
                    Value::Bool(false) => out.push(unknown(path, name, properties)),
                    schema => self.apply(schema, value, &member(path, name), out)?,
                }
            }
        }
        Ok(())
    }

    fn by_pattern(&mut self, keywords: &'s Map<String, Value>, name: &str) -> Checked<Vec<&'s Value>> {
        let Some(Value::Object(patterns)) = keywords.get("patternProperties") else { return Ok(Vec::new()) };
        self.spend(patterns.len())?;
        let matches =
            |pattern: &&String| self.schema.patterns.get(*pattern).is_some_and(|regex| regex.is_match(name));
        Ok(patterns.iter().filter(|(pattern, _)| matches(pattern)).map(|(_, schema)| schema).collect())
    }

    /// How a missing field is reported.
    fn missing(&self, schema: Option<&'s Value>) -> String {
        let types: Vec<&str> = schema
            .map(|schema| self.schema.referred(schema).unwrap_or(schema))
            .and_then(Value::as_object)
            .map(types)
            .unwrap_or_default();
        match types.as_slice() {
            [] => "is missing".into(),
            types => format!("is missing; it should be {}", either(types)),
        }
    }

    /// Names or indices that the schemas for this value evaluate (2020-12, 11.2), without `unevaluated…` of this level.
    fn evaluated_beside(
        &mut self,
        keywords: &'s Map<String, Value>,
        value: &Value,
        known: &mut BTreeSet<String>,
    ) -> Checked<()> {
        match value {
            Value::Object(fields) => {
                let properties = keywords.get("properties").and_then(Value::as_object);
                for name in fields.keys() {
                    let is_known = keywords.contains_key("additionalProperties")
                        || properties.is_some_and(|properties| properties.contains_key(name))
                        || !self.by_pattern(keywords, name)?.is_empty();
                    if is_known {
                        known.insert(name.clone());
                    }
                }
                for (name, schema) in
                    keywords.get("dependentSchemas").and_then(Value::as_object).into_iter().flatten()
                {
                    if fields.contains_key(name) {
                        self.evaluated(schema, value, known)?;
                    }
                }
            }
            Value::Array(items) => {
                let (first, rest) = split_items(keywords);
                let count = if rest.is_some() { items.len() } else { first.len().min(items.len()) };
                known.extend((0..count).map(|index| index.to_string()));
                if let Some(schema) = keywords.get("contains") {
                    for (index, item) in items.iter().enumerate() {
                        if self.is_valid(schema, item)? {
                            known.insert(index.to_string());
                        }
                    }
                }
            }
            _ => return Ok(()),
        }
        let reference = keywords.get("$ref").and_then(Value::as_str);
        if let Some(reference) = reference {
            self.evaluated(self.schema.target(reference), value, known)?;
        }
        for name in ["allOf", "anyOf", "oneOf"] {
            for schema in keywords.get(name).and_then(Value::as_array).into_iter().flatten() {
                self.evaluated(schema, value, known)?;
            }
        }
        if let Some(condition) = keywords.get("if") {
            let branch = if self.is_valid(condition, value)? { "then" } else { "else" };
            self.evaluated(condition, value, known)?;
            if let Some(schema) = keywords.get(branch) {
                self.evaluated(schema, value, known)?;
            }
        }
        Ok(())
    }

    /// Adds what a schema evaluates, if it accepts the value.
    fn evaluated(&mut self, schema: &'s Value, value: &Value, known: &mut BTreeSet<String>) -> Checked<()> {
        let Value::Object(keywords) = schema else { return Ok(()) };
        if !self.is_valid(schema, value)? {
            return Ok(());
        }
        self.depth = self.depth.checked_sub(1).ok_or(Exhausted)?;
        let inner = match value {
            Value::Object(fields) if keywords.contains_key("unevaluatedProperties") => {
                known.extend(fields.keys().cloned());
                Ok(())
            }
            Value::Array(items) if keywords.contains_key("unevaluatedItems") => {
                known.extend((0..items.len()).map(|index| index.to_string()));
                Ok(())
            }
            value => self.evaluated_beside(keywords, value, known),
        };
        self.depth += 1;
        inner
    }
}

/// The schemas of the first items, and of the others.
fn split_items(keywords: &Map<String, Value>) -> (&[Value], Option<&Value>) {
    match (keywords.get("prefixItems"), keywords.get("items")) {
        (Some(Value::Array(first)), rest) => (first, rest),
        // A list up to 2019-09.
        (_, Some(Value::Array(first))) => (first, keywords.get("additionalItems")),
        (_, rest) => (&[], rest),
    }
}

/// The violations to report where no alternative fits: those of the only one that has the right type.
fn of_alternatives(failed: Vec<Vec<Violation>>, value: &Value, path: &str) -> Vec<Violation> {
    let is_mistyped = |violations: &Vec<Violation>| {
        violations.iter().any(|violation| violation.path == path && violation.types.is_some())
    };
    let mut typed = failed.iter().filter(|violations| !is_mistyped(violations));
    match (typed.next(), typed.next()) {
        (None, _) => {
            let here = failed.into_iter().flatten().filter(|violation| violation.path == path);
            let types = here.filter_map(|violation| violation.types).flatten();
            vec![mistyped(path, distinct(types), value)]
        }
        (Some(only), None) => only.clone(),
        // The one with the fewest violations is most likely the one that is meant.
        (Some(_), Some(_)) => {
            let typed = failed.into_iter().filter(|violations| !is_mistyped(violations));
            typed.min_by_key(Vec::len).unwrap_or_default()
        }
    }
}

/// Each text once, in order.
fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    texts.filter(|text| seen.insert(text.clone())).collect()
}

fn number(keywords: &Map<String, Value>, value: &Value, path: &str, out: &mut Vec<Violation>) {
    let bound = |name: &str| keywords.get(name).filter(|bound| bound.is_number());
    // In draft 4, `exclusiveMinimum` is a flag of `minimum`.
    let is_set = |name: &str| keywords.get(name) == Some(&Value::Bool(true));
    let Some(found) = value.as_f64() else { return };
    let mut check = |limit: Option<&Value>, is_right: fn(f64, f64) -> bool, words: &str| {
        if let Some((limit, shown)) = limit.and_then(|limit| Some((limit.as_f64()?, limit)))
            && !is_right(found, limit)
        {
            out.push(violation(path, &format!("should be {words} {shown}, found {}", short(value))));
        }
    };
    let (least, most) = (bound("minimum"), bound("maximum"));
    check(least, |found, limit| found >= limit, "at least");
    check(most, |found, limit| found <= limit, "at most");
    let above = bound("exclusiveMinimum").or(least.filter(|_| is_set("exclusiveMinimum")));
    check(above, |found, limit| found > limit, "greater than");
    let under = bound("exclusiveMaximum").or(most.filter(|_| is_set("exclusiveMaximum")));
    check(under, |found, limit| found < limit, "less than");
    check(bound("multipleOf"), is_multiple, "a multiple of");
}

/// With room for decimal fractions, which have no exact quotient.
fn is_multiple(found: f64, step: f64) -> bool {
    let quotient = found / step;
    !quotient.is_finite() || (quotient - quotient.round()).abs() <= 1e-9 * quotient.abs().max(1.0)
}

fn sized(
    keywords: &Map<String, Value>,
    [least, most]: [&str; 2],
    size: f64,
    of: &str,
    path: &str,
    out: &mut Vec<Violation>,
) {
    let limit = |name: &str| keywords.get(name).and_then(Value::as_f64);
    if let Some(least) = limit(least).filter(|least| size < *least) {
        out.push(violation(path, &format!("should have at least {least} {of}, found {size}")));
    }
    if let Some(most) = limit(most).filter(|most| size > *most) {
        out.push(violation(path, &format!("should have at most {most} {of}, found {size}")));
    }
}

/// Whether null fits whatever else a schema says: OpenAPI's `nullable`, or null as the type beside alternatives, as generators
/// write it that mean one more.
fn is_nullable(keywords: &Map<String, Value>) -> bool {
    keywords.get("nullable") == Some(&Value::Bool(true)) || is_one_more(keywords)
}

fn is_one_more(keywords: &Map<String, Value>) -> bool {
    let has = |name: &str| keywords.get(name).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    keywords.get("type").is_some_and(|kind| kind == "null") && (has("anyOf") || has("oneOf"))
}

pub(super) fn types(keywords: &Map<String, Value>) -> Vec<&str> {
    match keywords.get("type") {
        _ if is_one_more(keywords) => Vec::new(),
        Some(Value::String(only)) => vec![only],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

pub(super) fn has_type(value: &Value, kind: &str) -> bool {
    match (value, kind) {
        (Value::Number(number), "integer") => {
            !number.is_f64() || number.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        (Value::Number(_), "number") => true,
        (value, kind) => type_of(value) == kind,
    }
}

/// Equality of JSON Schema: 1 equals 1.0.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || a.is_f64() != b.is_f64() && a.as_f64() == b.as_f64()
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        (one, other) => one == other,
    }
}

/// How long comparing or copying a value takes, in steps.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => 1 + text.len() / 64,
        Value::Array(items) => 1 + items.iter().map(weight).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(weight).sum::<usize>(),
        _ => 1,
    }
}

fn violation(path: &str, expected: &str) -> Violation {
    // About the arguments as a whole.
    let expected = if path.is_empty() { format!("the call {expected}") } else { expected.to_owned() };
    Violation { path: path.to_owned(), expected, types: None }
}

fn mistyped(path: &str, types: Vec<String>, value: &Value) -> Violation {
    let names: Vec<&str> = types.iter().map(String::as_str).collect();
    let found = match value {
        Value::Array(_) | Value::Object(_) | Value::Null => either(&[type_of(value)]),
        value => format!("the {} {}", type_of(value), short(value)),
    };
    let expected = format!("should be {}, found {found}", either(&names));
    Violation { types: Some(types), ..violation(path, &expected) }
}

fn unknown(path: &str, name: &str, properties: Option<&Map<String, Value>>) -> Violation {
    let known = properties.into_iter().flat_map(Map::keys).map(|name| format!("`{}`", cut(name)));
    let known = listed(known);
    let hint = if known.is_empty() { String::new() } else { format!("; there is {known}") };
    violation(&member(path, name), &format!("is unknown{hint}"))
}

fn member(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn names(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Types with their articles.
fn either(types: &[&str]) -> String {
    let with_article = |kind: &&str| match *kind {
        "null" => "null".to_owned(),
        kind @ ("integer" | "array" | "object") => format!("an {kind}"),
        kind => format!("a {kind}"),
    };
    types.iter().map(with_article).collect::<Vec<_>>().join(" or ")
}

fn listed(items: impl Iterator<Item = String>) -> String {
    let mut items: Vec<String> = items.take(LISTED + 1).collect();
    if items.len() > LISTED {
        items[LISTED] = "…".into();
    }
    items.join(", ")
}

fn short(value: &Value) -> String {
    cut(&value.to_string())
}
