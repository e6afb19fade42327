//! Why a stage reruns, with the old value and the new one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    identity::ServerName,
    key::{KeyFields, KeyInput},
    tool_list::ToolChanges,
};
use crate::{
    hash::Digest,
    secret::shareable,
    stage::{CardFile, CardParts},
    store::{DRAW, SERVER_NAME},
    text::start_of,
};

/// One cause of a rerun. Compares with the newest earlier result of the same stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum RerunReason {
    /// It has no earlier result.
    First,
    /// The key format changed.
    Schema { old: Option<u32>, new: u32 },
    /// A field of the key changed: the kind, the revision, the seed, the iteration, the numerics, or, by its
    /// dotted name, a parameter or a server setting. `None` means absent.
    Field { name: String, old: Option<Value>, new: Option<Value> },
    /// The card, a prompt or the command's code changed.
    Card { old: Digest, new: Digest },
    /// A file of the card changed: a prompt, or the command's code.
    CardFile {
        what: CardFile,
        /// Relative to the run file, for a card on disk: `stages/judge/relative.jinja`.
        path: String,
    },
    Input {
        role: String,
        name: String,
        old: Option<Digest>,
        new: Option<Digest>,
        /// The stage that wrote the new artifact.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
    },
    /// The same names are in another order.
    InputOrder { role: String, old: Vec<String>, new: Vec<String> },
    /// The server offers other tools, or changed their descriptions.
    Tools {
        role: String,
        #[serde(flatten)]
        changes: ToolChanges,
    },
    /// The result exists but cannot be used.
    Damaged { output: Option<String>, problem: String },
    /// The stage ran with the same key before, but the record is gone.
    Gone,
    /// The stage ran with another key before, but the record is gone, so the change is unknown.
    Forgotten,
    /// The result exists, but its stage had `cache = "off"`.
    Withheld,
    /// The result exists, but lacks a metric that its loop waits for.
    NoMetric { metric: String },
    /// The run file sets `cache = "refresh"` or `"off"`.
    NotCached,
    /// Requested with `--resample`.
    Resample,
    /// The stage queries the server's identity, which may change between runs.
    ServerQueried,
}

/// The field of a record that holds the card's parts, next to the key's fields.
const PARTS: &str = "card_parts";

/// The field for the shape of the model behind the stage's policy.
pub(super) const SHAPE: &str = "model_shape";

/// Metadata that a record stores with its key's fields. Not part of the record's own key.
#[derive(Debug, Default)]
pub struct KeyMetadata {
    /// The parts of its card.
    pub parts: CardParts,
    /// The shape of the model behind the stage's policy.
    pub shape: Option<Digest>,
    /// The number of the sample's draw.
    pub draw: u64,
    /// The name and version of the server that the stage queried. They are in the keys of stages that read
    /// its tools.
    pub server: Option<ServerName>,
}

/// The key fields and metadata as stored in a record.
pub fn stored(fields: &KeyFields, metadata: &KeyMetadata) -> Value {
    let KeyMetadata { parts, shape, draw, server } = metadata;
    let mut value = fields.value();
    value[PARTS] = serde_json::to_value(parts).unwrap_or_default();
    if let Some(shape) = shape {
        value[SHAPE] = shape.to_string().into();
    }
    if *draw > 0 {
        value[DRAW] = (*draw).into();
    }
    if let Some(server) = server {
        value[SERVER_NAME] = serde_json::to_value(server).unwrap_or_default();
    }
    value
}

/// The parts of a record's card.
pub fn stored_parts(stored: &Value) -> Option<CardParts> {
    serde_json::from_value(stored.get(PARTS)?.clone()).ok()
}

/// The changed files of the card; the whole card if the files are not known.
fn card_changes(
    old: (Digest, Option<CardParts>),
    new: &KeyFields,
    parts: Option<CardParts>,
) -> Vec<RerunReason> {
    let (card, old) = old;
    let files = old.zip(parts).map(|(old, new)| old.changes(&new)).unwrap_or_default();
    if files.is_empty() {
        return vec![RerunReason::Card { old: card, new: new.card }];
    }
    let named = |(what, file)| RerunReason::CardFile { what, path: format!("stages/{}/{file}", new.kind) };
    files.into_iter().map(named).collect()
}

/// All differences between a record's key and a new one, whose card consists of `parts`. Empty if they are
/// equal.
pub fn differences(
    stored: &Value,
    new: &KeyFields,
    parts: impl FnOnce() -> Option<CardParts>,
) -> Vec<RerunReason> {
    let Ok(old) = serde_json::from_value::<KeyFields>(stored.clone()) else {
        let schema =
            stored.get("schema").and_then(Value::as_u64).and_then(|schema| u32::try_from(schema).ok());
        return vec![RerunReason::Schema { old: schema, new: new.schema }];
    };
    if old.schema != new.schema {
        // Other differences may come from the format.
        return vec![RerunReason::Schema { old: Some(old.schema), new: new.schema }];
    }
    let mut fields = changes(plain(&old), plain(new));
    if old.kind != new.kind {
        fields.retain(|(name, ..)| name == "kind");
    }
    let mut reasons: Vec<RerunReason> =
        fields.into_iter().map(|(name, old, new)| RerunReason::Field { name, old, new }).collect();
    if old.kind == new.kind {
        if old.revision == new.revision && old.card != new.card {
            reasons.extend(card_changes((old.card, stored_parts(stored)), new, parts()));
        }
        reasons.extend(input_changes(&old.inputs, &new.inputs));
    }
    reasons
}

/// The fields that are compared value by value.
fn plain(fields: &KeyFields) -> Value {
    let mut value = fields.value();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| !["schema", "card", "inputs"].contains(&name.as_str()));
    }
    value
}

type Inputs = BTreeMap<String, Vec<KeyInput>>;

fn input_changes(old: &Inputs, new: &Inputs) -> Vec<RerunReason> {
    fn digests(inputs: &Inputs) -> BTreeMap<(&str, &str), Digest> {
        inputs
            .iter()
            .flat_map(|(role, inputs)| {
                inputs.iter().map(move |input| ((role.as_str(), input.name.as_str()), input.digest))
            })
            .collect()
    }
    let orders = new.iter().filter_map(|(role, new)| order_change(role, old.get(role)?, new));
    let (before, after) = (digests(old), digests(new));
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changed = names.into_iter().filter(|name| before.get(name) != after.get(name));
    changed
        .map(|name| RerunReason::Input {
            role: name.0.to_owned(),
            name: name.1.to_owned(),
            old: before.get(name).copied(),
            new: after.get(name).copied(),
            from: None,
        })
        .chain(orders)
        .collect()
}

/// Compares the order of a role's artifacts, if their number and names are equal.
fn order_change(role: &str, old: &[KeyInput], new: &[KeyInput]) -> Option<RerunReason> {
    let names = |inputs: &[KeyInput]| inputs.iter().map(|input| input.name.clone()).collect::<Vec<_>>();
    let (old, new) = (names(old), names(new));
    let (mut sorted_old, mut sorted_new) = (old.clone(), new.clone());
    sorted_old.sort();
    sorted_new.sort();
    let reordered = old != new && sorted_old == sorted_new;
    reordered.then(|| RerunReason::InputOrder { role: role.to_owned(), old, new })
}

/// Leaves that differ between two values, by dotted name.
fn changes(old: Value, new: Value) -> Vec<(String, Option<Value>, Option<Value>)> {
    let (mut left, mut right) = (BTreeMap::new(), BTreeMap::new());
    leaves(String::new(), old, &mut left);
    leaves(String::new(), new, &mut right);
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let changed = names.into_iter().filter(|name| left.get(*name) != right.get(*name));
    let shown = |name: &str, value: Option<&Value>| {
        let own_name = name.rsplit('.').next().unwrap_or_default();
        value.map(|value| shareable(own_name, value))
    };
    changed.map(|name| (name.clone(), shown(name, left.get(name)), shown(name, right.get(name)))).collect()
}

fn leaves(path: String, value: Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(mut fields) if fields.len() == 1 && fields.get("file").and_then(digest).is_some() => {
            // A file is one value, its content digest, whatever the parameter was before.
            _ = into.insert(path, fields.remove("file").unwrap_or_default());
        }
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                leaves(super::source::join(&path, &name), value, into);
            }
        }
        Value::Null => {}
        value => _ = into.insert(path, value),
    }
}

/// Long values are truncated; the stored fields keep them whole.
fn shown<T: fmt::Display>(value: &Option<T>) -> String {
    let Some(value) = value else { return "none".into() };
    start_of(&value.to_string(), 60)
}

fn digest(value: &Value) -> Option<Digest> {
    value.as_str()?.parse().ok()
}

/// A value; a digest is shortened.
fn shown_value(value: &Option<Value>) -> String {
    match value.as_ref().and_then(digest) {
        Some(digest) => digest.short(),
        None => shown(value),
    }
}

impl fmt::Display for RerunReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |digest: &Option<Digest>| digest.map(|digest| digest.short());
        match self {
            Self::First => f.write_str("first time"),
            Self::Schema { old, new } => write!(f, "key schema {} → {new}", shown(old)),
            Self::Field { name, old, new } => write!(f, "{name} {} → {}", shown_value(old), shown_value(new)),
            Self::Card { old, new } => write!(f, "card {} → {}", old.short(), new.short()),
            Self::CardFile { what: CardFile::Prompt, path } => write!(f, "prompt {path} edited"),
            Self::CardFile { what: CardFile::Code, path } => write!(f, "code {path} edited"),
            Self::Input { role, name, old, new, from } => {
                let name = if role == name { role.clone() } else { format!("{role}.{name}") };
                match from.as_ref().filter(|_| old.is_some()) {
                    Some(from) => write!(f, "input {name}: new bytes from {from}"),
                    None => write!(f, "inputs.{name} {} → {}", shown(&short(old)), shown(&short(new))),
                }
            }
            Self::InputOrder { role, old, new } => {
                write!(f, "inputs.{role} in another order: {} → {}", old.join(", "), new.join(", "))
            }
            Self::Tools { changes, .. } if *changes == ToolChanges::default() => {
                f.write_str("server tool list in another order")
            }
            Self::Tools { changes, .. } => write!(f, "server tool list changed: {changes}"),
            Self::Damaged { output: Some(output), problem } => {
                write!(f, "stored output `{output}` is unusable: {problem}")
            }
            Self::Damaged { output: None, problem } => write!(f, "stored result is unusable: {problem}"),
            Self::Gone => f.write_str("its result is no longer in the cache"),
            Self::Forgotten => f.write_str("its earlier record is gone"),
            Self::Withheld => f.write_str("its result was made with cache = \"off\", for one run only"),
            Self::NoMetric { metric } => {
                write!(f, "its result lacks the metric `{metric}`, which the loop waits for")
            }
            Self::NotCached => f.write_str("its `cache` setting reruns it in every run"),
            Self::Resample => f.write_str("--resample"),
            Self::ServerQueried => f.write_str("the server is asked in every run"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::KeyInput;

    fn fields() -> KeyFields {
        KeyFields {
            schema: 2,
            kind: "judge".into(),
            revision: 1,
            card: Digest::of(b"card"),
            params: json!({ "rubric": "v2", "weights": { "truth": 1.0 } }).as_object().unwrap().clone(),
            inputs: BTreeMap::from([(
                "trajectories".into(),
                vec![KeyInput { name: "trajectories".into(), digest: Digest::of(b"a") }],
            )]),
            seed: Some(7),
            iteration: None,
            server: Some(json!({ "conduct": { "state": "read-only" } })),
            numerics: Some("cpu".into()),
        }
    }

    /// The message for a change of the fields. Also checks that the change alters the key and survives
    /// storage.
    fn message(change: impl FnOnce(&mut KeyFields)) -> String {
        let (old, mut new) = (fields(), fields());
        change(&mut new);
        assert_ne!(old.key(), new.key());
        let reasons = differences(&old.value(), &new, || None);
        let stored = serde_json::to_string(&reasons).unwrap();
        assert_eq!(serde_json::from_str::<Vec<RerunReason>>(&stored).unwrap(), reasons);
        reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn equal_fields_have_equal_keys_and_no_differences() {
        assert_eq!(fields().key(), fields().key());
        assert_eq!(differences(&fields().value(), &fields(), || None), []);
    }

    #[test]
    fn every_changed_field_is_shown_with_its_old_and_new_value() {
        let set = |name: &'static str, value: Value| {
            move |fields: &mut KeyFields| _ = fields.params.insert(name.into(), value)
        };
        assert_eq!(message(set("rubric", json!("v3"))), r#"params.rubric "v2" → "v3""#);
        assert_eq!(message(set("weights", json!({ "truth": 0.5 }))), "params.weights.truth 1.0 → 0.5");
        assert_eq!(message(set("repeats", json!(3))), "params.repeats none → 3");
        assert_eq!(
            message(set("api_key", json!("sk-1"))),
            "params.api_key none → \"…\"",
            "a secret is not shown"
        );
        assert_eq!(message(|fields| fields.revision = 2), "revision 1 → 2");
        assert_eq!(message(|fields| fields.seed = Some(8)), "seed 7 → 8");
        assert_eq!(message(|fields| fields.iteration = Some(1)), "iteration none → 1");
        assert_eq!(message(|fields| fields.numerics = Some("cuda".into())), r#"numerics "cpu" → "cuda""#);
        assert_eq!(message(|fields| fields.kind = "rubric".into()), r#"kind "judge" → "rubric""#);
        assert!(message(|fields| fields.card = Digest::of(b"other")).starts_with("card "));
        assert_eq!(message(|fields| fields.inputs.clear()), "inputs.trajectories 17762fddd969 → none");
        let input = |name: &str| KeyInput { name: name.into(), digest: Digest::of(b"a") };
        let (mut old, mut new) = (fields(), fields());
        old.inputs.insert("parts".into(), vec![input("a"), input("b")]);
        new.inputs.insert("parts".into(), vec![input("b"), input("a")]);
        let order = differences(&old.value(), &new, || None);
        assert_eq!(order[0].to_string(), "inputs.parts in another order: a, b → b, a");
        assert_ne!(old.key(), new.key());
        let state =
            message(|fields| fields.server = Some(json!({ "conduct": { "state": "fresh-process" } })));
        assert_eq!(state, r#"server.conduct.state "read-only" → "fresh-process""#);
    }

    #[test]
    fn for_a_changed_card_the_edited_files_are_named() {
        let parts = |prompt: &str, code: &str| CardParts {
            prompts: BTreeMap::from([("relative.jinja".into(), Digest::of(prompt.as_bytes()))]),
            code: BTreeMap::from([("foo.py".into(), Digest::of(code.as_bytes()))]),
        };
        let (old, new) = (fields(), KeyFields { card: Digest::of(b"other"), ..fields() });
        let server = ServerName { name: "files".into(), version: "1".into() };
        let metadata = || KeyMetadata {
            parts: parts("a", "b"),
            shape: Some(Digest::of(b"shape")),
            draw: 3,
            server: Some(server.clone()),
        };
        let message = |now: CardParts| {
            let reasons = differences(&stored(&old, &metadata()), &new, || Some(now));
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(message(parts("a", "c")), "code stages/judge/foo.py edited");
        assert_eq!(
            message(parts("c", "c")),
            "prompt stages/judge/relative.jinja edited, code stages/judge/foo.py edited"
        );
        assert!(
            message(parts("a", "b")).starts_with("card "),
            "its outputs or another part of the card itself"
        );
        // The stored metadata is not part of the key.
        let stored: KeyFields = serde_json::from_value(stored(&old, &metadata())).unwrap();
        assert_eq!(stored.key(), old.key());
    }

    #[test]
    fn a_changed_file_is_shown_by_the_start_of_its_digests() {
        let file = |text: &[u8]| json!({ "file": Digest::of(text) });
        let (mut old, mut new) = (fields(), fields());
        old.params.insert("tasks".into(), file(b"a"));
        new.params.insert("tasks".into(), file(b"b"));
        let message = |old: &KeyFields| {
            let reasons = differences(&old.value(), &new, || None);
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(message(&old), "params.tasks 17762fddd969 → 10e5cf3d3c8a");
        old.params.insert("tasks".into(), "someone/tasks".into());
        assert_eq!(message(&old), "params.tasks \"someone/tasks\" → 10e5cf3d3c8a", "no file before");
    }

    #[test]
    fn fields_of_another_schema_are_not_compared_one_by_one() {
        let reasons = differences(&json!({ "schema": 0, "what": "ever" }), &fields(), || None);
        assert_eq!(reasons, [RerunReason::Schema { old: Some(0), new: 2 }]);
        let older = KeyFields { schema: 1, seed: None, ..fields() };
        let reasons = differences(&older.value(), &fields(), || None);
        assert_eq!(reasons, [RerunReason::Schema { old: Some(1), new: 2 }]);
    }

    #[test]
    fn stages_that_draw_get_their_own_seeds() {
        let seed = |change: fn(&mut KeyFields)| {
            let mut fields = fields();
            change(&mut fields);
            fields.stage_seed(0)
        };
        let own = seed(|_| {});
        assert_ne!(own, seed(|fields| fields.iteration = Some(1)));
        assert_ne!(own, seed(|fields| fields.kind = "rollout".into()));
        assert_ne!(own, seed(|fields| fields.seed = Some(8)));
        assert_eq!(own, seed(|fields| fields.params.clear()));
        assert_eq!(seed(|fields| fields.seed = None), 0);
        let draws = [0, 1, 2].map(|draw| fields().stage_seed(draw));
        assert!(draws[0] == own && draws[1] != own && draws[2] != draws[1], "{draws:?}");
    }
}
