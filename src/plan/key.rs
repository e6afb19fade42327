//! What a stage's key is made of.
//!
//! | field | in the key | why |
//! |---|---|---|
//! | schema of this encoding | yes | other encodings must not meet |
//! | kind, revision | yes | the revision is raised when the code's meaning changes |
//! | card | its digest | roles, outputs, prompts, command and its code; not its prose |
//! | parameters | resolved values | a default written out is the same as the default |
//! | parameters with `keyed = false` | no | they change the speed, not the result |
//! | parameters of type `file` | content | a moved or touched file is the same file |
//! | inputs | role, name, digest | equal bytes from a changed stage stop a rerun from spreading |
//! | seed, iteration | for kinds that draw | iterations and seeds draw differently; pure stages do not care |
//! | server, how it is reached | for kinds that use it and read no `tools` | `discover` asks it who it is |
//! | server, conduct | for kinds that use it | isolation and limits decide outcomes |
//! | numerics | for kinds that use the engine | CPU and CUDA round differently |
//! | stage name, run name | no | renaming changes no result |
//! | device index, threads, sessions, start timeout | no | they change the speed, not the result |
//! | paths, times, host | no | a cache can be moved and shared |
//!
//! Not caught: a server whose data or answers change while its tool list and command stay the same, programs that a
//! command finds through `PATH` or that its scripts import, changes of this program's code without a raised revision,
//! processors that round differently.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{draft::Stage, identity::ServerIdentity};
use crate::{
    hash::{Digest, Encoder},
    stage::card::Section,
};

const SCHEMA: u32 = 1;

/// One artifact as the key sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyInput {
    pub name: String,
    pub digest: Digest,
}

/// The fields of a key; stored beside it, so that a later rerun can be explained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyFields {
    pub schema: u32,
    pub kind: String,
    pub revision: u32,
    pub card: Digest,
    pub params: Map<String, Value>,
    pub inputs: BTreeMap<String, Vec<KeyInput>>,
    pub seed: Option<u64>,
    pub iteration: Option<u32>,
    pub server: Option<Value>,
    pub numerics: Option<String>,
}

/// What is the same for all stages of a run.
pub struct Surroundings<'a> {
    pub server: Option<&'a ServerIdentity>,
    pub numerics: &'a str,
}

impl KeyFields {
    pub fn new(
        stage: &Stage,
        iteration: Option<u32>,
        inputs: BTreeMap<String, Vec<KeyInput>>,
        around: &Surroundings<'_>,
    ) -> Self {
        let card = &stage.card;
        let mut params = stage.params.clone();
        params.retain(|name, _| card.params.get(name).is_none_or(|param| param.keyed));
        for (name, digest) in &stage.files {
            params.insert(name.clone(), json!({ "file": digest }));
        }
        let knows_tools = card.inputs.values().any(|role| role.artifact == "tools");
        let uses_server = card.uses.contains(&Section::Server);
        let server = around.server.filter(|_| uses_server).map(|server| {
            if knows_tools {
                json!({ "conduct": server.conduct })
            } else {
                json!({ "conduct": server.conduct, "reached": server.reached })
            }
        });
        let draws = card.determinism.draws();
        Self {
            schema: SCHEMA,
            kind: card.kind.clone(),
            revision: card.revision,
            card: card.digest(),
            params,
            inputs,
            seed: draws.then_some(stage.seed),
            iteration: iteration.filter(|_| draws),
            server,
            numerics: card.uses.contains(&Section::Engine).then(|| around.numerics.to_owned()),
        }
    }

    pub fn value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    pub fn key(&self) -> Digest {
        Encoder::new("mcprl stage key v1").json(&self.value()).finish()
    }

    /// The seed a stage is handed: its own for each kind and iteration. 0 for kinds that do not draw.
    pub fn stage_seed(&self) -> u64 {
        self.seed.map_or(0, |seed| stage_seed(seed, &self.kind, self.iteration))
    }
}

/// The seed that a stage of this kind draws with, in this iteration of its loop.
pub fn stage_seed(seed: u64, kind: &str, iteration: Option<u32>) -> u64 {
    let mut encoder = Encoder::new("mcprl stage seed v1");
    encoder.number(seed).text(kind).number(u64::from(iteration.unwrap_or(0)));
    encoder.finish().seed()
}
