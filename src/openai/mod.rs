//! OpenAI's chat completions over a loaded policy: what a client may ask, and what it gets.
//!
//! Requests are parsed strictly ([`request`]), what a policy writes is read as in episodes ([`turn`]), and a client that goes
//! away cancels its work, because dropping a turn's future does. [`rows`] keeps what was sampled.

mod completion;
mod error;
mod request;
mod rows;
mod turn;

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

pub use self::{
    completion::{Answers, Cost, Head, Keep, TokenCount, respond},
    error::{ApiError, Log},
    request::{CHOICES, ChatRequest, read_body},
    rows::Rows,
    turn::{AnswerPart, End, Model, SamplingTask},
};

/// A number that nobody can foresee.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
