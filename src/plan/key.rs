//! The fields of a stage's key.
//!
//! | field | in the key | why |
//! |---|---|---|
//! | schema of this encoding | yes | keys of different encodings must not collide |
//! | kind, revision | yes | the revision is raised when the code's meaning changes |
//! | card | its digest | roles, outputs, prompts, command and its code; not its prose |
//! | parameters | resolved values | a default written out equals the default |
//! | parameters with `keyed = false` | no | they change the speed, not the result |
//! | parameters of type `file` | content | a moved or touched file is the same file |
//! | inputs | role, name, digest | if a rerun writes equal bytes, its readers do not rerun |
//! | seed | for kinds that draw | the seed does not affect other kinds |
//! | iteration | for kinds that draw, and external ones | the outside world is queried in each iteration |
//! | which draw of a sample | no | mixed into the stage seed, stored as key metadata, see [`redrawn`] |
//! | server, how it is reached | for kinds that use it | command, address, environment and scripts |
//! | server, name and version | for kinds that use it and read its `tools` | as reported with the tools |
//! | server, conduct | for kinds that use it | isolation, limits, `error_patterns`, `coerce_arguments`, `expose`, `elicitation` and `sampling` affect outcomes |
//! | numerics | for kinds that use the engine | number formats round differently, and so do CPU and CUDA, and the composed operations on a CPU. Without `dtype`, the format is that of the files of the models that the stage reads |
//! | stage name, run name | no | renaming changes no result |
//! | device index, threads, sessions, start timeout | no | they change the speed, not the result |
//! | paths, times, host | no | a cache can be moved and shared |
//!
//! How a server is reached includes:
//! - the words of its command; a word that names a file counts by the file's name and content. So does, under `read-only`, a
//!   file or small folder that is named within a word or by a variable (`named_files.rs`)
//! - the names and contents of the files in `files`
//! - the names of environment variables and headers, and digests of their values
//! - the URL
//! - `cwd` as written in the run file
//! - instead of all these, the content of the cassette that is played back (`replay`): what it answers cannot change unnoticed.
//!   Results of a live run are not those of its cassette, because a cassette can be edited and a live server can change. That a
//!   run is recorded is in no key.
//!
//! A reference to a variable (`${NAME}`) counts as written, without the variable's value: a token may be
//! renewed. A secret in the command (`--api-key X`) counts by its digest. `{mcprl}` is this program's
//! version, not its bytes. If the server may write to a database named there (`state` is not
//! `"read-only"`), only the word counts: otherwise each episode would change every key. The variable that
//! holds a bearer token does not count.
//!
//! The key cannot identify a server for certain. The stage that lists its tools therefore reruns in each
//! new run, but not in a resumed one. Its output counts by content, so if the server answers the same, no
//! other stage reruns. If the server does not answer, its last answer is used, and the run reports that.
//!
//! Not detected: a server whose data or answers change while its tool list, version, command and the files named there stay
//! the same (an exam plays its reference solutions again to find out); programs that a command finds through `PATH` or that its scripts import; changes of this
//! program's code without a raised revision; processors that round differently.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    identity::{ServerIdentity, ServerName},
    parse::Stage,
};
use crate::{
    hash::{Digest, Encoder},
    stage::card::{Card, Determinism, Section},
};

const SCHEMA: u32 = 2;

/// One input artifact in a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyInput {
    pub name: String,
    pub digest: Digest,
}

/// The fields of a key. They are stored with the result, so that a later rerun can be explained.
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

/// The key's context: the server and the engine's numerics.
pub struct KeyEnvironment<'a> {
    pub server: Option<&'a ServerIdentity>,
    /// The server's name and version when it listed the tools that the stage reads.
    pub name: Option<&'a ServerName>,
    pub numerics: &'a str,
}

impl KeyFields {
    pub fn new(
        stage: &Stage,
        iteration: Option<u32>,
        inputs: BTreeMap<String, Vec<KeyInput>>,
        environment: &KeyEnvironment<'_>,
    ) -> Self {
        let card = &stage.card;
        let mut params = stage.params.clone();
        params.retain(|name, _| card.params.get(name).is_none_or(|param| param.keyed));
        for (name, digest) in &stage.files {
            let content = json!({ "file": digest });
            match name.split_once('/') {
                None => _ = params.insert(name.clone(), content),
                // Such as a word of a command.
                Some((param, word)) => {
                    let word = params.get_mut(param).and_then(|words| words.pointer_mut(&format!("/{word}")));
                    word.into_iter().for_each(|word| *word = content.clone());
                }
            }
        }
        let uses_server = stage.uses.contains(&Section::Server);
        let server = environment.server.filter(|_| uses_server).map(|server| {
            let mut fields = json!({ "conduct": server.conduct, "reached": server.reached });
            if let Some(ServerName { name, version }) = environment.name {
                fields["name"] = name.as_str().into();
                fields["version"] = version.as_str().into();
            }
            fields
        });
        let draws = card.determinism.draws();
        let in_iteration = draws || card.determinism == Determinism::External;
        Self {
            schema: SCHEMA,
            kind: card.kind.clone(),
            revision: card.revision,
            card: card.digest(),
            params,
            inputs,
            seed: draws.then_some(stage.seed),
            iteration: iteration.filter(|_| in_iteration),
            server,
            numerics: stage.uses.contains(&Section::Engine).then(|| environment.numerics.to_owned()),
        }
    }

    pub fn value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    pub fn key(&self) -> Digest {
        Encoder::new("mcprl stage key v1").json(&self.value()).finish()
    }

    /// The digest shared by keys that differ only in their rows: it leaves out what the card marks with
    /// `rows`.
    pub fn family(&self, card: &Card) -> Digest {
        let mut fields = self.clone();
        fields.params.retain(|name, _| !card.params.get(name).is_some_and(|param| param.rows));
        fields.inputs.retain(|role, _| !card.inputs.get(role).is_some_and(|role| role.rows));
        Encoder::new("mcprl stage family v1").json(&fields.value()).finish()
    }

    /// The seed passed to a stage: distinct for each kind, iteration and draw. 0 for kinds that do not draw.
    pub fn stage_seed(&self, draw: u64) -> u64 {
        self.seed.map_or(0, |seed| redrawn(stage_seed(seed, &self.kind, self.iteration), draw))
    }
}

/// The seed of a sample's `draw`th draw. The first draw is 0; each resample adds 1.
fn redrawn(seed: u64, draw: u64) -> u64 {
    match draw {
        0 => seed,
        _ => Encoder::new("mcprl drawn again v1").number(seed).number(draw).finish().seed(),
    }
}

/// The seed of a stage of this kind in this iteration of its loop.
pub fn stage_seed(seed: u64, kind: &str, iteration: Option<u32>) -> u64 {
    let mut encoder = Encoder::new("mcprl stage seed v1");
    encoder.number(seed).text(kind).number(u64::from(iteration.unwrap_or(0)));
    encoder.finish().seed()
}
