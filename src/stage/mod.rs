//! Stages: each reads artifacts, calls the lower modules, and writes artifacts. One folder per kind.
//!
//! A stage sees only its [`Context`]: no store, no run file, no other stage. Its output depends only on its
//! parameters, inputs, prompts and seed (and on the server, for stages that use one).

mod adapter;
mod built_in;
pub mod card;
mod command;
mod context;
mod demonstrations;
mod discover;
mod embedded;
pub mod endpoint;
mod error;
mod eval;
mod grpo;
pub mod headroom;
mod judge;
pub mod kind;
mod local_model;
pub mod memory;
mod metrics;
pub mod model;
mod model_files;
mod parts;
pub mod policy;
pub mod preflight;
mod replay;
mod replies;
mod rollout;
pub mod scenarios;
mod scored_by;
mod sft;
mod shared_models;
mod traces;
mod training;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod testing;

pub use built_in::parse;
pub use card::{Card, Cards, built_in_type};
use context::typed;
pub use context::{Artifacts, Context, EarlierResult, Input, Rows, Shard};
pub use embedded::embedded;
pub use error::StageError;
pub use judge::{RewardChange, TRUST, TRUST_WINDOW, compare_rewards, is_trust_lost};
pub use kind::StageKind;
pub use metrics::Metrics;
use metrics::{known_metrics, mean, metrics, share_right};
pub use parts::{CardFile, CardParts};
pub use policy::{model_folder, policy_shape, shape};
pub use rollout::{AgentSource, EndpointSource, OpenAgent, OpenEndpoint, OpenPolicy};
pub use scored_by::ScoredBy;
pub use shared_models::SharedModels;
