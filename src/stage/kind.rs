//! What a stage kind is to the rest of the program, and the table of built-in kinds.
//!
//! A stage is a value: its parameters, parsed. Everything that differs from kind to kind is a method of
//! [`StageKind`], implemented next to the parameters in `stage/<kind>/`. Stages whose card has a `command` are
//! [`CommandStage`]s. No other module compares the names of kinds (`tests/layering.rs` checks it).

use std::{collections::BTreeMap, future::Future, path::PathBuf, pin::Pin, sync::Arc};

use serde_json::{Map, Value};

use super::{
    Card, Context, Input, Metrics, StageError,
    adapter::AdapterStage,
    command::CommandStage,
    demonstrations::Demonstrations,
    discover::Discover,
    eval::Eval,
    grpo::Grpo,
    judge::Judge,
    memory::Load,
    model::ModelStage,
    preflight::{ExpectedOutput, Preflight, PreflightContext},
    rollout::Rollout,
    scenarios::Scenarios,
    sft::Sft,
    warmup::Warmup,
};
use crate::{
    engine::Footprint,
    error::{Failure, Result},
};

pub type StageFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A stage with its parameters.
pub trait StageKind: Send + Sync {
    /// Reads the inputs and writes every output.
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>>;

    /// Finds out, before any stage runs, why this one would fail and what it will write.
    fn preflight(&self, _: &PreflightContext<'_>) -> Preflight {
        Preflight::default()
    }

    /// What the stage needs from outside the run, for `doctor`. `expected`: its outputs as far as known.
    fn requirements<'a>(&'a self, _: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// Amount of work, in a unit of the kind. Time and tokens grow roughly with it. None if unknown.
    fn workload(&self) -> Option<f64> {
        None
    }

    /// The engine's peak memory on the CPU. None if the stage neither samples nor trains.
    fn memory(&self, _: &Load<'_>) -> Option<Footprint> {
        None
    }

    /// Names of rows that the stage certainly needs (see [`super::Rows`]); more may follow. None if it has no
    /// such rows, or its inputs do not tell.
    fn rows_needed(&self, _seed: u64, _: &BTreeMap<String, Vec<Input>>) -> Option<Vec<String>> {
        None
    }

    /// Whether the stage uses the frozen model of the policy in this role, and so shares it with other stages.
    fn shares_model(&self, _role: &str) -> bool {
        false
    }

    /// The role of the policy whose model the written adapter belongs to. None if the stage writes no adapter.
    fn adapter_base(&self) -> Option<&'static str> {
        None
    }

    /// A folder that the stage copies into the cache, and its size in bytes.
    fn copies(&self) -> Option<(PathBuf, u64)> {
        None
    }
}

/// Expected outputs of a stage by port.
pub type ExpectedOutputs = BTreeMap<&'static str, ExpectedOutput>;

/// Something that a stage needs from outside the run.
#[derive(Debug)]
pub enum Requirement {
    Met(String),
    /// The stage runs, but the user should know this.
    Doubtful {
        text: String,
        hint: String,
    },
    Missing(Failure),
}

/// A stage kind that is part of the binary.
pub struct BuiltIn {
    pub name: &'static str,
    /// Text of its `card.toml`.
    pub card: &'static str,
    /// Other files of its folder, by file name.
    pub files: &'static [(&'static str, &'static str)],
    parse: Parse,
}

type Parse = fn(&Map<String, Value>) -> Result<Box<dyn StageKind>, StageError>;

impl BuiltIn {
    pub fn file(&self, name: &str) -> Option<&'static str> {
        self.files.iter().find(|(file, _)| *file == name).map(|(_, text)| *text)
    }
}

/// `built_in!(judge: Judge, ["absolute.jinja"])`: the folder `stages/judge/`, and the stage it describes.
macro_rules! built_in {
    ($kind:ident: $stage:ident, [$($file:literal),*]) => {
        BuiltIn {
            name: stringify!($kind),
            card: include_str!(concat!("../../stages/", stringify!($kind), "/card.toml")),
            files: &[$(($file, include_str!(concat!("../../stages/", stringify!($kind), "/", $file)))),*],
            parse: |params| Ok(Box::new($stage::parse(params)?)),
        }
    };
}

/// In the order in which a run uses them.
pub const BUILT_IN: &[BuiltIn] = &[
    built_in!(discover: Discover, []),
    built_in!(scenarios: Scenarios, ["generate.jinja", "system.jinja"]),
    built_in!(model: ModelStage, []),
    built_in!(adapter: AdapterStage, []),
    built_in!(warmup: Warmup, ["chat_template.jinja", "system.jinja"]),
    built_in!(demonstrations: Demonstrations, ["system.jinja"]),
    built_in!(sft: Sft, []),
    built_in!(rollout: Rollout, ["system.jinja"]),
    built_in!(judge: Judge, ["relative.jinja", "rubric.jinja"]),
    built_in!(grpo: Grpo, []),
    built_in!(eval: Eval, ["system.jinja"]),
];

pub fn find(kind: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|built_in| built_in.name == kind)
}

/// The stage that a card and parameters describe.
///
/// # Errors
/// If a parameter does not parse, naming it, or the kind is neither built in nor has a command.
pub fn stage(card: &Arc<Card>, params: &Map<String, Value>) -> Result<Box<dyn StageKind>, StageError> {
    if !card.command.is_empty() {
        return Ok(Box::new(CommandStage(card.clone())));
    }
    let built_in = find(&card.kind).ok_or_else(|| StageError::NotBuiltIn { kind: card.kind.clone() })?;
    (built_in.parse)(params)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::{
        Deserialize, Deserializer,
        de::{Error as _, Visitor, value::Error},
        forward_to_deserialize_any,
    };

    use super::*;
    use crate::stage::{
        Cards, adapter, demonstrations, discover, eval, grpo, judge, model, rollout, scenarios, sft,
        training, warmup,
    };

    /// Records which fields a struct asks for.
    struct Fields<'a>(&'a mut BTreeSet<String>);

    impl<'de> Deserializer<'de> for Fields<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("not a struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Error> {
            self.0.extend(fields.iter().map(|field| (*field).to_owned()));
            Err(Error::custom("recorded"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn add_fields<'de, P: Deserialize<'de>>(fields: &mut BTreeSet<String>) {
        assert_eq!(P::deserialize(Fields(fields)).err(), Some(Error::custom("recorded")));
    }

    #[test]
    fn a_card_and_the_structs_of_its_stage_have_the_same_parameters() {
        for BuiltIn { name, .. } in BUILT_IN {
            let mut read = BTreeSet::new();
            let add: &[fn(&mut BTreeSet<String>)] = match *name {
                "discover" => &[add_fields::<discover::Params>],
                "scenarios" => &[add_fields::<scenarios::Params>, add_fields::<scenarios::tries::Tries>],
                "model" => &[add_fields::<model::Params>],
                "adapter" => &[add_fields::<adapter::Params>],
                "warmup" => &[
                    add_fields::<warmup::Params>,
                    add_fields::<warmup::Shape>,
                    add_fields::<warmup::TrainParams>,
                ],
                "demonstrations" => {
                    &[add_fields::<demonstrations::Params>, add_fields::<rollout::play::Budget>]
                }
                "sft" => &[add_fields::<sft::Params>, add_fields::<training::Training>],
                "rollout" => &[add_fields::<rollout::Params>, add_fields::<rollout::play::Budget>],
                "judge" => &[add_fields::<judge::Params>, add_fields::<crate::judge::Shaping>],
                "grpo" => &[add_fields::<grpo::Params>, add_fields::<training::Training>],
                "eval" => &[add_fields::<eval::Params>, add_fields::<rollout::play::Budget>],
                other => panic!("name the structs of {other} here"),
            };
            add.iter().for_each(|add| add(&mut read));
            let card = Cards::new(None).get(name).unwrap().unwrap();
            assert_eq!(card.params.keys().cloned().collect::<BTreeSet<_>>(), read, "{name}");
        }
    }

    #[test]
    fn a_judge_takes_a_device_only_with_a_model_of_its_own() {
        use crate::stage::card::Section;
        let card = Cards::new(None).get("judge").unwrap().unwrap();
        assert_eq!(card.sections(|role| role == "trajectories"), []);
        assert_eq!(card.sections(|role| role == "local_model"), [Section::Engine]);
        let card = Cards::new(None).get("scenarios").unwrap().unwrap();
        assert_eq!(card.sections(|_| false), [Section::Server]);
        assert_eq!(card.sections(|_| true), [Section::Server, Section::Engine]);
    }

    #[test]
    fn workload_grows_with_episodes_and_passes() {
        let workload = |kind: &str, given: Value| {
            let (context, _) = super::super::testing::context(kind, &[], std::path::Path::new("/tmp"), given);
            stage(&context.card, &context.params).unwrap().workload()
        };
        use serde_json::json;
        assert_eq!(workload("rollout", json!({ "prompts": 16, "group_size": 8 })), Some(128.0));
        assert_eq!(workload("eval", json!({ "greedy": true, "samples": 2 })), Some(3.0));
        assert_eq!(workload("warmup", json!({ "families": "f", "traces": 100, "epochs": 2 })), Some(200.0));
        assert_eq!(workload("judge", json!({ "orders": 2 })), None);
    }
}
