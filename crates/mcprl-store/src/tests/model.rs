//! Property tests of the key encoding, and of the store against a model.

use std::time::Duration;

use mcprl_base::hash::Encoder;
use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e6..1e6f64).prop_filter("zero has two signs", |number| *number != 0.0).prop_map(Value::from),
        "[a-c\\[\\]{}\":,]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec(("[a-c]{0,2}", inner), 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn encoded(values: &[Value]) -> Digest {
    let mut encoder = Encoder::new("test");
    for value in values {
        encoder.json(value);
    }
    encoder.finish()
}

fn reversed(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().rev();
            Value::Object(fields.map(|(name, value)| (name.clone(), reversed(value))).collect())
        }
        Value::Array(items) => items.iter().map(reversed).collect(),
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn values_have_one_encoding_if_and_only_if_they_are_equal(
        one in prop::collection::vec(json_value(), 0..3),
        other in prop::collection::vec(json_value(), 0..3),
    ) {
        prop_assert_eq!(encoded(&one) == encoded(&other), one == other);
    }

    #[test]
    fn moving_an_item_from_one_list_to_the_next_changes_the_encoding(
        items in prop::collection::vec(json_value(), 1..5),
        cut in 0..4usize,
    ) {
        let split = |at: usize| {
            let (left, right) = items.split_at(at.min(items.len()));
            encoded(&[Value::from(left.to_vec()), Value::from(right.to_vec())])
        };
        let cut = cut.min(items.len() - 1);
        prop_assert_ne!(split(cut), split(cut + 1));
    }

    #[test]
    fn the_order_of_fields_does_not_matter(value in json_value()) {
        prop_assert_eq!(encoded(&[reversed(&value)]), encoded(&[value]));
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Executes a key: publishes and records.
    Run {
        key: u8,
        text: u8,
    },
    Withdraw {
        key: u8,
    },
    /// Replaces the bytes of an artifact.
    Damage {
        text: u8,
    },
    TearRecord {
        key: u8,
    },
    Sweep {
        keep: Vec<u8>,
    },
    Verify,
    /// Copies to an empty store and continues with that one.
    Move,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..4u8;
    prop_oneof![
        6 => (key.clone(), 0..3u8).prop_map(|(key, text)| Step::Run { key, text }),
        1 => key.clone().prop_map(|key| Step::Withdraw { key }),
        1 => (0..3u8).prop_map(|text| Step::Damage { text }),
        1 => key.clone().prop_map(|key| Step::TearRecord { key }),
        2 => prop::collection::vec(key, 0..3).prop_map(|keep| Step::Sweep { keep }),
        1 => Just(Step::Verify),
        1 => Just(Step::Move),
    ]
}

fn key(key: u8) -> Digest {
    Digest::of(&[key])
}

/// The artifact that holds each text. Created once, because publishing syncs and a case looks hundreds of
/// times.
fn artifact(text: u8) -> Digest {
    static MADE: std::sync::OnceLock<[Digest; 3]> = std::sync::OnceLock::new();
    let made = MADE.get_or_init(|| {
        let test = super::test();
        ["0", "1", "2"].map(|text| test.published(&[("a", text)]))
    });
    made[usize::from(text)]
}

/// What must be found: key to text. Other keys may be found or not, but never with wrong bytes.
type Model = BTreeMap<u8, u8>;

fn take(test: &mut TestStore, model: &mut Model, step: &Step) {
    match step {
        Step::Run { key: name, text } => {
            let output = test.published(&[("a", &text.to_string())]);
            let record = ActionRecord { key: key(*name), ..test.record(output) };
            if test.store.lookup(&record.key) == Lookup::Miss
                || matches!(test.store.lookup(&record.key), Lookup::Damaged { .. })
            {
                test.store.withdraw(&record.key).unwrap();
                test.store.commit(&record).unwrap();
                model.insert(*name, *text);
            }
        }
        Step::Withdraw { key: name } => {
            test.store.withdraw(&key(*name)).unwrap();
            model.remove(name);
        }
        Step::Damage { text } => {
            let digest = artifact(*text);
            if test.store.inspect(&digest).is_intact() {
                test.overwrite(&digest, "a", "?");
            }
            model.retain(|_, found| found != text);
        }
        Step::TearRecord { key: name } => {
            let path = test.store.root().join("ac").join(format!("{}.json", key(*name)));
            if let Ok(bytes) = std::fs::read(&path) {
                std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            }
            model.remove(name);
        }
        Step::Sweep { keep } => {
            let keys = LiveSet { keys: keep.iter().map(|name| key(*name)).collect(), ..LiveSet::default() };
            match test.store.garbage(&keys, Vec::new(), Duration::ZERO) {
                Ok(garbage) => {
                    test.store.sweep(garbage, &|_| Ok(LiveSet::default())).unwrap();
                    model.retain(|name, _| keep.contains(name));
                }
                // Torn, and nothing is swept.
                Err(StoreError::Unreadable { .. }) => {}
                Err(cause) => panic!("{cause}"),
            }
        }
        Step::Verify => _ = test.store.verify(&mut |_| {}).unwrap(),
        Step::Move => {
            let other = super::test();
            let result = |key| CachedResult::from(test.store.record(&key).unwrap());
            let results: Vec<_> = model.keys().map(|name| (key(*name), result(key(*name)))).collect();
            let results: Vec<_> = results.iter().map(|(key, result)| (*key, result)).collect();
            test.store.copy_into(&other.store, &results).unwrap();
            *test = other;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn found_results_have_their_recorded_bytes_and_kept_ones_are_never_lost(
        steps in prop::collection::vec(step(), 1..16),
    ) {
        let (mut test, mut model) = (super::test(), Model::new());
        for step in &steps {
            take(&mut test, &mut model, step);
            for name in 0..4u8 {
                let found = test.store.lookup(&key(name));
                prop_assert!(
                    !model.contains_key(&name) || matches!(found, Lookup::Hit(_)),
                    "key {} lost after {:?}: {:?}", name, step, found
                );
                let Lookup::Hit(record) = found else { continue };
                let output = record.outputs["out"].digest;
                let text = std::fs::read_to_string(test.store.artifact(&output).join("a")).unwrap();
                let text: u8 = text.parse().unwrap();
                prop_assert_eq!(artifact(text), output);
                prop_assert!(model.get(&name).is_none_or(|expected| *expected == text));
            }
        }
    }
}
