//! Initial weights with which a decoder copies before it is trained.
//!
//! An induction head (arXiv 2209.11895) finds an earlier occurrence of the last token and repeats what followed it. A small
//! decoder needs tens of millions of tokens until it has one, and cannot use a name that it has not seen before that. Here the
//! first two layers start as one, and training goes on from there (mimetic initialisation, arXiv 2305.09828):
//!
//! - Layer 0 copies the token before each token into a part of the residual stream, and with another query head the token
//!   before that one into another part. Its queries and keys are constant, so that only the distance decides.
//! - Layer 1 attends to where the token before is the last token (first group of heads), or where the one before that is the
//!   second to last (other groups), and adds the token found there to the output. It compares in rotary pairs that hardly turn.
//!
//! What layer 1 writes is faint. Before training, the decoder only leans towards what followed; in the first hundred steps it
//! learns to rely on it.

use mcprl_base::random;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use super::Init;
use crate::model::{ModelConfig, kernels::Heads};

/// Size of the constant component of embeddings, from which constant queries and keys are made. The others have a norm of
/// about 0.2.
const CONSTANT: f32 = 0.1;
/// The coordinate of the residual stream that has it.
const AT: usize = 0;
/// Norm of rows that matter in queries and keys: so large that the first steps of training do not destroy them.
const STRONG: f64 = 3.0;
/// Factor of the random weights next to them.
const QUIET: f32 = 0.2;
/// Angles per token of the rotary pairs that tell distances, and the share of each in a query.
const DISTANCE: [(f64, f64); 5] = [(1.0, 0.4), (0.562, 0.25), (0.316, 0.15), (0.178, 0.1), (0.1, 0.1)];
/// Pairs that turn less per token than this compare tokens.
const HARDLY: f64 = 0.0075;
/// Weights of the norms of queries and keys, in the pairs that tell distances and in those that compare: attention is sharp.
const SHARP: [f32; 2] = [2.0, 1.8];
/// Scale of what layer 0 writes: keys find it among the rest.
const WRITTEN: f32 = 2.0;
/// Weight of the last norm: logits that tell tokens apart.
const LAST: f32 = 3.0;

/// What the two layers share.
pub(super) struct Induction {
    hidden: usize,
    heads: Heads,
    /// Angle per token of each rotary pair.
    angles: Vec<f64>,
    /// (dim, hidden): what layer 0 takes from a token.
    taken: Vec<f32>,
    /// (dim, hidden) each: where layer 0 writes it, from one and from two tokens before.
    written: [Vec<f32>; 2],
    /// (dim, hidden) for each group of heads: what layer 1 takes from the token that it finds, and where it writes it.
    found: Vec<Vec<f32>>,
}

impl Induction {
    pub fn new(config: &ModelConfig, init: Init) -> Self {
        let (hidden, heads) = (config.hidden, config.heads);
        let mut rng = ChaCha8Rng::seed_from_u64(init.seed);
        rng.set_stream(1);
        let mut part = |scale: f32| -> Vec<f32> {
            let draw = |index| match index % hidden {
                AT => 0.0,
                _ => random::normal(&mut rng) * init.deviation * scale,
            };
            (0..heads.dim * hidden).map(draw).collect()
        };
        let (taken, written) = (part(1.0), [part(WRITTEN), part(WRITTEN)]);
        let found = (0..heads.kv).map(|_| part(1.0)).collect();
        let angles = angles(config);
        Self { hidden, heads, angles, taken, written, found }
    }

    /// # Errors
    /// Why a decoder of this shape cannot have induction heads.
    pub fn check(config: &ModelConfig) -> Result<(), String> {
        if config.layers < 2 {
            return Err("induction heads need two layers".into());
        }
        if !config.design.head_norms {
            return Err("induction heads need norms of queries and keys".into());
        }
        if !angles(config).iter().any(|angle| *angle < HARDLY) {
            return Err(format!("heads of {} are too narrow for induction heads", config.heads.dim));
        }
        Ok(())
    }

    /// Changes the random weights of a tensor to those of the circuit, where it is part of it.
    pub fn set(&self, name: &str, columns: usize, data: &mut [f32]) {
        let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let (index, part) = layer.unwrap_or(("", name));
        match (index, part) {
            ("", "model.embed_tokens.weight") => {
                data.iter_mut().skip(AT).step_by(columns).for_each(|value| *value = CONSTANT);
            }
            ("", "model.norm.weight") => data.fill(LAST),
            ("0" | "1", "self_attn.q_norm.weight" | "self_attn.k_norm.weight") => {
                let (pairs, sharp) = match index {
                    "0" => (self.telling().map(|(pair, _)| pair).collect(), SHARP[0]),
                    _ => (self.comparing(), SHARP[1]),
                };
                for pair in pairs {
                    data[pair] = sharp;
                    data[pair + self.heads.dim / 2] = sharp;
                }
            }
            ("0", "self_attn.q_proj.weight") => {
                for head in 0..self.before() {
                    self.turned(-(head as f64), self.head(data, head));
                }
            }
            ("0", "self_attn.k_proj.weight") => self.turned(1.0, self.head(data, 0)),
            ("0", "self_attn.v_proj.weight") => data[..self.taken.len()].copy_from_slice(&self.taken),
            ("0", "self_attn.o_proj.weight") => {
                let heads = self.written.iter().take(self.before()).enumerate();
                heads.for_each(|(head, from)| self.transposed(from, head, columns, data));
            }
            ("1", "self_attn.q_proj.weight") => {
                for head in 0..self.heads.query {
                    let own = if self.group(head) == 0 { &self.taken } else { &self.written[0] };
                    self.compared(own, self.head(data, head));
                }
            }
            ("1", "self_attn.k_proj.weight") => {
                for head in 0..self.heads.kv {
                    let before = head.min(self.before() - 1);
                    self.compared(&self.written[before], self.head(data, head));
                }
            }
            ("1", "self_attn.v_proj.weight") => {
                for (head, found) in self.found.iter().enumerate() {
                    self.head(data, head).copy_from_slice(found);
                }
            }
            ("1", "self_attn.o_proj.weight") => {
                for head in 0..self.heads.query {
                    self.transposed(&self.found[self.group(head)], head, columns, data);
                }
            }
            _ => {}
        }
    }

    /// Query heads of layer 0 that look back, by one token and by two: those that share the first key.
    fn before(&self) -> usize {
        (self.heads.query / self.heads.kv).min(self.written.len())
    }

    /// The key head of a query head.
    fn group(&self, head: usize) -> usize {
        head * self.heads.kv / self.heads.query
    }

    fn head<'d>(&self, data: &'d mut [f32], head: usize) -> &'d mut [f32] {
        let size = self.heads.dim * self.hidden;
        &mut data[head * size..][..size]
    }

    /// The rotary pairs that tell distances, and the share of each.
    fn telling(&self) -> impl Iterator<Item = (usize, f64)> {
        DISTANCE.into_iter().map(|(wanted, share)| {
            let away = |pair: &usize| (self.angles[*pair] / wanted).ln().abs();
            let nearest = (0..self.angles.len()).min_by(|a, b| away(a).total_cmp(&away(b)));
            (nearest.unwrap_or(0), share)
        })
    }

    /// The rotary pairs that compare tokens.
    fn comparing(&self) -> Vec<usize> {
        (0..self.angles.len()).filter(|pair| self.angles[*pair] < HARDLY).collect()
    }

    /// The same vector for every token, turned as if it stood this many tokens later.
    fn turned(&self, by: f64, rows: &mut [f32]) {
        rows.iter_mut().for_each(|value| *value *= QUIET);
        for (pair, share) in self.telling() {
            let (sin, cos) = (by * self.angles[pair]).sin_cos();
            rows[pair * self.hidden + AT] = (STRONG * share.sqrt() * cos) as f32;
            rows[(pair + self.heads.dim / 2) * self.hidden + AT] = (STRONG * share.sqrt() * sin) as f32;
        }
    }

    /// Rows that read what is described by these, in the pairs that compare.
    fn compared(&self, from: &[f32], rows: &mut [f32]) {
        rows.iter_mut().for_each(|value| *value *= QUIET);
        let half = self.heads.dim / 2;
        let dims = self.comparing().into_iter().flat_map(|pair| [pair, pair + half]);
        for (dim, from) in dims.zip(from.chunks(self.hidden)) {
            let norm = from.iter().map(|value| f64::from(value * value)).sum::<f64>().sqrt();
            let row = &mut rows[dim * self.hidden..][..self.hidden];
            row.iter_mut().zip(from).for_each(|(value, from)| *value = from * (STRONG / norm) as f32);
        }
    }

    /// Writes a head's output along these rows.
    fn transposed(&self, from: &[f32], head: usize, columns: usize, data: &mut [f32]) {
        for (dim, from) in from.chunks(self.hidden).enumerate() {
            for (row, value) in data.chunks_mut(columns).zip(from) {
                row[head * self.heads.dim + dim] = *value;
            }
        }
    }
}

fn angles(config: &ModelConfig) -> Vec<f64> {
    let dim = config.heads.dim;
    (0..dim / 2).map(|pair| config.rope_theta.powf(-2.0 * pair as f64 / dim as f64)).collect()
}
