//! From a card and parameters to a stage: the built-in kinds by name, and [`CommandStage`] for cards with a `command`.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    adapter::AdapterStage,
    card::Card,
    command::CommandStage,
    demonstrations::Demonstrations,
    discover::Discover,
    error::StageError,
    eval::Eval,
    grpo::Grpo,
    headroom::{HeadroomStage, teacher::TeacherStage},
    judge::Judge,
    kind::StageKind,
    model::ModelStage,
    replay::ReplayStage,
    rollout::Rollout,
    scenarios::Scenarios,
    sft::Sft,
    traces::Traces,
    typed,
};

/// The stage that a card and parameters describe.
///
/// # Errors
/// If a parameter does not parse, naming it, or the kind is neither built in nor has a command.
pub fn parse(card: &Arc<Card>, params: &Map<String, Value>) -> Result<Box<dyn StageKind>, StageError> {
    if !card.command.is_empty() {
        return Ok(Box::new(CommandStage(card.clone())));
    }
    Ok(match card.kind.as_str() {
        "adapter" => Box::new(typed::<AdapterStage>(params)?),
        "demonstrations" => Box::new(Demonstrations::parse(params)?),
        "discover" => Box::new(typed::<Discover>(params)?),
        "eval" => Box::new(Eval::parse(params)?),
        "grpo" => Box::new(Grpo::parse(params)?),
        "headroom" => Box::new(HeadroomStage::parse(params)?),
        "teacher" => Box::new(TeacherStage::parse(params)?),
        "judge" => Box::new(Judge::parse(params)?),
        "model" => Box::new(typed::<ModelStage>(params)?),
        "replay" => Box::new(ReplayStage::parse(params)?),
        "rollout" => Box::new(Rollout::parse(params)?),
        "scenarios" => Box::new(Scenarios::parse(params)?),
        "sft" => Box::new(Sft::parse(params)?),
        "traces" => Box::new(typed::<Traces>(params)?),
        _ => return Err(StageError::NotBuiltIn { kind: card.kind.clone() }),
    })
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
    use crate::agent::AgentSettings;
    use crate::stage::{
        Cards, adapter, demonstrations, discover,
        embedded::{EMBEDDED, EmbeddedCard},
        eval, grpo, headroom, judge, model, replay, rollout, scenarios, sft, traces, training,
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

    fn add_agent(fields: &mut BTreeSet<String>) {
        add_fields::<AgentSettings>(fields);
    }

    fn add_play(fields: &mut BTreeSet<String>) {
        add_agent(fields);
        add_fields::<rollout::settings::PlayParams>(fields);
    }

    #[test]
    fn a_card_and_the_structs_of_its_stage_have_the_same_parameters() {
        for EmbeddedCard { kind: name, .. } in EMBEDDED {
            let mut read = BTreeSet::new();
            let add: &[fn(&mut BTreeSet<String>)] = match *name {
                "discover" => &[add_fields::<discover::Discover>],
                "scenarios" => &[
                    add_fields::<scenarios::params::Params>,
                    add_fields::<scenarios::tries::Tries>,
                    add_fields::<scenarios::votes::Votes>,
                    add_agent,
                ],
                "model" => &[add_fields::<model::ModelStage>],
                "adapter" => &[add_fields::<adapter::AdapterStage>],
                "demonstrations" => &[add_fields::<demonstrations::Params>, add_play],
                "headroom" => &[add_fields::<headroom::Params>, add_play],
                "teacher" => &[add_fields::<headroom::teacher::Params>, add_play],
                "traces" => &[add_fields::<traces::Traces>],
                "replay" => &[add_fields::<replay::Params>, add_play],
                "sft" => &[add_fields::<sft::Params>, add_fields::<training::Training>],
                "rollout" => &[add_fields::<rollout::Params>, add_play],
                "judge" => &[add_fields::<judge::Params>, add_fields::<crate::judge::Shaping>],
                "grpo" => &[add_fields::<grpo::Params>, add_fields::<training::Training>],
                "eval" => &[add_fields::<eval::Params>, add_play],
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
            parse(&context.card, &context.params).unwrap().workload()
        };
        use serde_json::json;
        assert_eq!(workload("rollout", json!({ "prompts": 16, "group_size": 8 })), Some(128.0));
        assert_eq!(workload("eval", json!({ "greedy": true, "samples": 2 })), Some(3.0));
        assert_eq!(workload("judge", json!({ "orders": 2 })), None);
    }
}
