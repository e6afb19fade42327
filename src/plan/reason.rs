//! Why a stage reruns, with the old value and the new one.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    identity::ServerName,
    key::{KeyFields, KeyInput},
    tool_list::ToolChanges,
};
use crate::{
    hash::Digest,
    stage::{CardFile, CardParts},
    store::TOLD,
};

/// One cause of a rerun. Compares with the newest earlier result of the same stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum RerunReason {
    /// It has no earlier result.
    First,
    /// The key format changed.
    Schema {
        old: Option<u32>,
        new: u32,
    },
    Kind {
        old: String,
        new: String,
    },
    /// The stage's code changed its meaning.
    Revision {
        old: u32,
        new: u32,
    },
    /// The card, a prompt or the command's code changed.
    Card {
        old: Digest,
        new: Digest,
    },
    /// A file of the card changed: a prompt, or the command's code.
    CardFile {
        what: CardFile,
        /// Relative to the run file, for a card on disk: `stages/judge/relative.jinja`.
        path: String,
    },
    /// A parameter changed, by its dotted name. `None` means absent.
    Param {
        name: String,
        old: Option<Value>,
        new: Option<Value>,
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
    InputOrder {
        role: String,
        old: Vec<String>,
        new: Vec<String>,
    },
    /// The server offers other tools, or changed their descriptions.
    Tools {
        role: String,
        #[serde(flatten)]
        changes: ToolChanges,
    },
    Seed {
        old: Option<u64>,
        new: Option<u64>,
    },
    Iteration {
        old: Option<u32>,
        new: Option<u32>,
    },
    /// A server setting changed, by its dotted name.
    Server {
        name: String,
        old: Option<Value>,
        new: Option<Value>,
    },
    Numerics {
        old: Option<String>,
        new: Option<String>,
    },
    /// The result exists but cannot be used.
    Damaged {
        output: Option<String>,
        problem: String,
    },
    /// The stage ran with the same key before, but the record is gone.
    Gone,
    /// The stage ran with another key before, but the record is gone, so the change is unknown.
    Forgotten,
    /// The result exists, but its stage had `cache = "off"`.
    Withheld,
    /// The result exists, but lacks a metric that its loop waits for.
    NoMetric {
        metric: String,
    },
    /// The run file sets `cache = "refresh"` or `"off"`.
    NotCached,
    /// Requested with `--resample`.
    Resample,
    /// The stage queries the server's identity, which may change between runs.
    AskedAnew,
}

/// The field of a record that holds the card's parts, next to the key's fields.
const PARTS: &str = "card_parts";

/// The field for the shape of the model behind the stage's policy.
pub(super) const SHAPE: &str = "model_shape";

/// The field for the number of the draw, if it is not the first.
const DRAW: &str = "draw";

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
pub fn stored(fields: &KeyFields, beside: &KeyMetadata) -> Value {
    let KeyMetadata { parts, shape, draw, server } = beside;
    let mut value = fields.value();
    value[PARTS] = serde_json::to_value(parts).unwrap_or_default();
    if let Some(shape) = shape {
        value[SHAPE] = shape.to_string().into();
    }
    if *draw > 0 {
        value[DRAW] = (*draw).into();
    }
    if let Some(server) = server {
        value[TOLD] = serde_json::to_value(server).unwrap_or_default();
    }
    value
}

/// The number of a record's draw.
pub fn stored_draw(stored: &Value) -> u64 {
    stored.get(DRAW).and_then(Value::as_u64).unwrap_or(0)
}

/// The parts of a record's card. None for old records.
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
    let old = stored;
    let Ok(old) = serde_json::from_value::<KeyFields>(old.clone()) else {
        let schema = old.get("schema").and_then(Value::as_u64).and_then(|schema| u32::try_from(schema).ok());
        return vec![RerunReason::Schema { old: schema, new: new.schema }];
    };
    let mut reasons = Vec::new();
    if old.schema != new.schema {
        // Other differences may come from the format.
        return vec![RerunReason::Schema { old: Some(old.schema), new: new.schema }];
    }
    if old.kind != new.kind {
        reasons.push(RerunReason::Kind { old: old.kind.clone(), new: new.kind.clone() });
        return reasons;
    }
    if old.revision != new.revision {
        reasons.push(RerunReason::Revision { old: old.revision, new: new.revision });
    } else if old.card != new.card {
        reasons.extend(card_changes((old.card, stored_parts(stored)), new, parts()));
    }
    let params = changes(Value::Object(old.params), Value::Object(new.params.clone()));
    reasons.extend(params.into_iter().map(|(name, old, new)| RerunReason::Param { name, old, new }));
    reasons.extend(input_changes(&old.inputs, &new.inputs));
    if old.seed != new.seed {
        reasons.push(RerunReason::Seed { old: old.seed, new: new.seed });
    }
    if old.iteration != new.iteration {
        reasons.push(RerunReason::Iteration { old: old.iteration, new: new.iteration });
    }
    let server = changes(old.server.unwrap_or_default(), new.server.clone().unwrap_or_default());
    reasons.extend(server.into_iter().map(|(name, old, new)| RerunReason::Server { name, old, new }));
    if old.numerics != new.numerics {
        reasons.push(RerunReason::Numerics { old: old.numerics, new: new.numerics.clone() });
    }
    reasons
}

type Inputs = BTreeMap<String, Vec<KeyInput>>;

fn input_changes(old: &Inputs, new: &Inputs) -> Vec<RerunReason> {
    let flat = |inputs: &Inputs| -> BTreeMap<(String, String), Digest> {
        let named = |(role, inputs): (&String, &Vec<KeyInput>)| {
            let role = role.clone();
            inputs
                .iter()
                .map(move |input| ((role.clone(), input.name.clone()), input.digest))
                .collect::<Vec<_>>()
        };
        inputs.iter().flat_map(named).collect()
    };
    let orders = new.iter().filter_map(|(role, new)| order_change(role, old.get(role)?, new));
    let orders: Vec<_> = orders.collect();
    let (old, new) = (flat(old), flat(new));
    let mut names: Vec<_> = old.keys().chain(new.keys()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .filter(|name| old.get(name) != new.get(name))
        .map(|name| RerunReason::Input {
            role: name.0.clone(),
            name: name.1.clone(),
            old: old.get(name).copied(),
            new: new.get(name).copied(),
            from: None,
        })
        .chain(orders)
        .collect()
}

/// Compares the order of a role's artifacts, if their number and names are equal.
fn order_change(role: &str, old: &[KeyInput], new: &[KeyInput]) -> Option<RerunReason> {
    let names = |inputs: &[KeyInput]| inputs.iter().map(|input| input.name.clone()).collect::<Vec<_>>();
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let (old, new) = (names(old), names(new));
    (old != new && sorted(old.clone()) == sorted(new.clone())).then(|| RerunReason::InputOrder {
        role: role.to_owned(),
        old,
        new,
    })
}

/// Leaves that differ between two values, by dotted name.
fn changes(old: Value, new: Value) -> Vec<(String, Option<Value>, Option<Value>)> {
    let (mut left, mut right) = (BTreeMap::new(), BTreeMap::new());
    leaves(String::new(), old, &mut left);
    leaves(String::new(), new, &mut right);
    let mut names: Vec<&String> = left.keys().chain(right.keys()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .filter(|name| left.get(*name) != right.get(*name))
        .map(|name| (name.clone(), left.get(name).cloned(), right.get(name).cloned()))
        .collect()
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

struct Shown<'a, T>(&'a Option<T>);

impl<T: fmt::Display> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // Long values are truncated; the stored fields keep them whole.
            Some(value) => {
                let text = value.to_string();
                let cut: String = text.chars().take(60).collect();
                f.write_str(&cut)?;
                if cut.len() < text.len() { f.write_str("…") } else { Ok(()) }
            }
            None => f.write_str("none"),
        }
    }
}

fn digest(value: &Value) -> Option<Digest> {
    value.as_str()?.parse().ok()
}

/// A value; a digest is shortened.
fn shown(value: &Option<Value>) -> String {
    match value.as_ref().and_then(digest) {
        Some(digest) => digest.short(),
        None => Shown(value).to_string(),
    }
}

impl fmt::Display for RerunReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |digest: &Option<Digest>| digest.map(|digest| digest.short());
        match self {
            Self::First => f.write_str("first time"),
            Self::Schema { old, new } => write!(f, "key schema {} → {new}", Shown(old)),
            Self::Kind { old, new } => write!(f, "kind {old} → {new}"),
            Self::Revision { old, new } => write!(f, "revision {old} → {new}"),
            Self::Card { old, new } => write!(f, "card {} → {}", old.short(), new.short()),
            Self::CardFile { what: CardFile::Prompt, path } => write!(f, "prompt {path} edited"),
            Self::CardFile { what: CardFile::Code, path } => write!(f, "code {path} edited"),
            Self::Param { name, old, new } => {
                // A file's digest is stored under `file`.
                let is_file = [old, new].into_iter().flatten().all(|value| digest(value).is_some());
                let name = if is_file { name.strip_suffix(".file").unwrap_or(name) } else { name };
                write!(f, "params.{name} {} → {}", shown(old), shown(new))
            }
            Self::Input { role, name, old, new, from } => {
                let name = if role == name { role.clone() } else { format!("{role}.{name}") };
                match from.as_ref().filter(|_| old.is_some()) {
                    Some(from) => write!(f, "input {name}: new bytes from {from}"),
                    None => write!(f, "inputs.{name} {} → {}", Shown(&short(old)), Shown(&short(new))),
                }
            }
            Self::InputOrder { role, old, new } => {
                write!(f, "inputs.{role} in another order: {} → {}", old.join(", "), new.join(", "))
            }
            Self::Tools { changes, .. } if *changes == ToolChanges::default() => {
                f.write_str("server tool list in another order")
            }
            Self::Tools { changes: ToolChanges { added, removed, changed }, .. } => {
                let [added, removed, changed] = [added, removed, changed].map(Vec::len);
                write!(f, "server tool list changed: +{added} −{removed} ~{changed}")
            }
            Self::Seed { old, new } => write!(f, "seed {} → {}", Shown(old), Shown(new)),
            Self::Iteration { old, new } => write!(f, "iteration {} → {}", Shown(old), Shown(new)),
            Self::Server { name, old, new } => write!(f, "server.{name} {} → {}", shown(old), shown(new)),
            Self::Numerics { old, new } => write!(f, "numerics {} → {}", Shown(old), Shown(new)),
            Self::Damaged { output: Some(output), problem } => {
                write!(f, "stored output `{output}` is unusable: {problem}")
            }
            Self::Damaged { output: None, problem } => write!(f, "stored result is unusable: {problem}"),
            Self::Gone => f.write_str("its result is no longer in the cache"),
            Self::Forgotten => f.write_str("its earlier record is gone"),
            Self::Withheld => f.write_str("its result was made with cache = \"off\", for that run alone"),
            Self::NoMetric { metric } => {
                write!(f, "its result lacks the metric `{metric}`, which the loop waits for")
            }
            Self::NotCached => f.write_str("worked in every run, as its `cache` says"),
            Self::Resample => f.write_str("asked for with --resample"),
            Self::AskedAnew => f.write_str("asked anew: only the server at the url can say who it is"),
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
    fn said(change: impl FnOnce(&mut KeyFields)) -> String {
        let (old, mut new) = (fields(), fields());
        change(&mut new);
        assert_ne!(old.key(), new.key());
        let reasons = differences(&old.value(), &new, || None);
        let stored = serde_json::to_string(&reasons).unwrap();
        assert_eq!(serde_json::from_str::<Vec<RerunReason>>(&stored).unwrap(), reasons);
        reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn equal_fields_have_equal_keys_and_nothing_to_say() {
        assert_eq!(fields().key(), fields().key());
        assert_eq!(differences(&fields().value(), &fields(), || None), []);
    }

    #[test]
    fn every_field_of_the_key_is_named_with_its_old_and_new_value() {
        let set = |name: &'static str, value: Value| {
            move |fields: &mut KeyFields| _ = fields.params.insert(name.into(), value)
        };
        assert_eq!(said(set("rubric", json!("v3"))), r#"params.rubric "v2" → "v3""#);
        assert_eq!(said(set("weights", json!({ "truth": 0.5 }))), "params.weights.truth 1.0 → 0.5");
        assert_eq!(said(set("repeats", json!(3))), "params.repeats none → 3");
        assert_eq!(said(|fields| fields.revision = 2), "revision 1 → 2");
        assert_eq!(said(|fields| fields.seed = Some(8)), "seed 7 → 8");
        assert_eq!(said(|fields| fields.iteration = Some(1)), "iteration none → 1");
        assert_eq!(said(|fields| fields.numerics = Some("cuda".into())), "numerics cpu → cuda");
        assert_eq!(said(|fields| fields.kind = "rubric".into()), "kind judge → rubric");
        assert!(said(|fields| fields.card = Digest::of(b"other")).starts_with("card "));
        assert_eq!(said(|fields| fields.inputs.clear()), "inputs.trajectories 17762fddd969 → none");
        let input = |name: &str| KeyInput { name: name.into(), digest: Digest::of(b"a") };
        let (mut old, mut new) = (fields(), fields());
        old.inputs.insert("parts".into(), vec![input("a"), input("b")]);
        new.inputs.insert("parts".into(), vec![input("b"), input("a")]);
        let order = differences(&old.value(), &new, || None);
        assert_eq!(order[0].to_string(), "inputs.parts in another order: a, b → b, a");
        assert_ne!(old.key(), new.key());
        let state = said(|fields| fields.server = Some(json!({ "conduct": { "state": "fresh-process" } })));
        assert_eq!(state, r#"server.conduct.state "read-only" → "fresh-process""#);
    }

    #[test]
    fn of_a_changed_card_the_file_is_named_that_was_edited() {
        let parts = |prompt: &str, code: &str| CardParts {
            prompts: BTreeMap::from([("relative.jinja".into(), Digest::of(prompt.as_bytes()))]),
            code: BTreeMap::from([("foo.py".into(), Digest::of(code.as_bytes()))]),
        };
        let (old, new) = (fields(), KeyFields { card: Digest::of(b"other"), ..fields() });
        let server = ServerName { name: "files".into(), version: "1".into() };
        let beside = || KeyMetadata {
            parts: parts("a", "b"),
            shape: Some(Digest::of(b"shape")),
            draw: 3,
            server: Some(server.clone()),
        };
        let said = |now: CardParts| {
            let reasons = differences(&stored(&old, &beside()), &new, || Some(now));
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(said(parts("a", "c")), "code stages/judge/foo.py edited");
        assert_eq!(
            said(parts("c", "c")),
            "prompt stages/judge/relative.jinja edited, code stages/judge/foo.py edited"
        );
        assert!(said(parts("a", "b")).starts_with("card "), "its outputs or another part of the card itself");
        // The stored metadata is not part of the key.
        let stored: KeyFields = serde_json::from_value(stored(&old, &beside())).unwrap();
        assert_eq!(stored.key(), old.key());
    }

    #[test]
    fn of_a_file_that_changed_the_beginnings_of_its_digests_are_shown() {
        let file = |text: &[u8]| json!({ "file": Digest::of(text) });
        let (mut old, mut new) = (fields(), fields());
        old.params.insert("tasks".into(), file(b"a"));
        new.params.insert("tasks".into(), file(b"b"));
        let said = |old: &KeyFields| {
            let reasons = differences(&old.value(), &new, || None);
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(said(&old), "params.tasks 17762fddd969 → 10e5cf3d3c8a");
        old.params.insert("tasks".into(), "someone/tasks".into());
        assert_eq!(said(&old), "params.tasks \"someone/tasks\" → 10e5cf3d3c8a", "no file before");
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
    fn stages_that_draw_get_seeds_of_their_own() {
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
