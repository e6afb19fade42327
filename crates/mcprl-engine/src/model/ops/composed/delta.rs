//! Gated DeltaNet over runs of rows that continue each other's states.
//!
//! Runs whose states are known are computed at once, a chunk after another: all roots of a tree, then all their children, and
//! so on. Chunks start where runs start, so a row's bits depend on where a path is cut, unlike those of the kernels.

mod chunk;
#[cfg(test)]
mod tests;

use std::{cmp::Reverse, collections::BTreeMap, ops::Range};

use candle_core::{DType, Device, Result, Tensor, bail};

use super::{indices, sigmoid};
use crate::model::kernels::DeltaHeads;
use chunk::{Chunk, Masks, Rows};

/// Most rows of a chunk.
const CHUNK: usize = 64;
/// Bytes that the chunks of all runs that are computed at once take, with the states that the backward keeps. A single run may take
/// more.
pub const DELTA_WORKSPACE: usize = 512 << 20;
/// Added to the squared norm of queries and keys.
const EPSILON: f64 = 1e-6;
/// The index of no row: `index_select` gives zeros for it.
const NO_ROW: usize = u32::MAX as usize;

/// Rows of a layer after its convolution, and its parameters.
pub struct DeltaRows {
    heads: DeltaHeads,
    /// Outputs of the convolution, `[rows, channels]`.
    convolved: Tensor,
    /// Queries and keys, each of length 1, `[rows, 2 · key heads, key dim]`.
    units: Tensor,
    /// One over their length before that, `[rows, 2 · key heads, 1]`.
    inverse: Tensor,
    /// Scaled, `[rows, key heads · key dim]`.
    query: Tensor,
    /// `[rows, key heads · key dim]`
    key: Tensor,
    /// `[rows, value heads · value dim]`
    value: Tensor,
    /// `[rows, value heads]`
    beta: Tensor,
    /// `a` with its bias, `[rows, value heads]`.
    biased: Tensor,
    /// `−exp(a_log)`, `[value heads]`.
    rates: Tensor,
    /// Logarithms of the decays, `[rows, value heads]`.
    gate: Tensor,
}

/// Gradients of [`DeltaRows`].
pub struct DeltaRowGradients {
    /// Of the convolution's outputs, `[rows, channels]`.
    pub convolved: Tensor,
    /// `[rows, value heads]`
    pub b: Tensor,
    /// `[rows, value heads]`
    pub a: Tensor,
    /// `[value heads]`
    pub a_log: Tensor,
    /// `[value heads]`
    pub dt_bias: Tensor,
}

impl DeltaRows {
    /// `b`, `a`: `[rows, value heads]`; `a_log`, `dt_bias`: `[value heads]`.
    pub fn new(
        heads: DeltaHeads,
        convolved: Tensor,
        [b, a]: [&Tensor; 2],
        [a_log, dt_bias]: [&Tensor; 2],
    ) -> Result<Self> {
        let (rows, channels) = convolved.dims2()?;
        let keys = 2 * heads.key * heads.key_dim;
        let active = convolved.silu()?;
        let before = active.narrow(1, 0, keys)?.reshape((rows, 2 * heads.key, heads.key_dim))?;
        let inverse = (before.sqr()?.sum_keepdim(2)? + EPSILON)?.sqrt()?.recip()?;
        let units = before.broadcast_mul(&inverse)?;
        let flat = units.reshape((rows, keys))?;
        let query = (flat.narrow(1, 0, keys / 2)? * scale(heads))?;
        let key = flat.narrow(1, keys / 2, keys / 2)?.contiguous()?;
        let value = active.narrow(1, keys, channels - keys)?.contiguous()?;
        let biased = a.broadcast_add(dt_bias)?;
        let softplus = (biased.relu()? + (biased.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
        let rates = a_log.exp()?.neg()?;
        let gate = softplus.broadcast_mul(&rates)?;
        let beta = sigmoid(b)?;
        Ok(Self { heads, convolved, units, inverse, query, key, value, beta, biased, rates, gate })
    }

    /// The gradients, from those of queries, keys, values, β and gates.
    fn backward(&self, [dquery, dkey, dvalue, dbeta, dgate]: [Tensor; 5]) -> Result<DeltaRowGradients> {
        let dunits = Tensor::cat(&[(dquery * scale(self.heads))?, dkey], 1)?.reshape(self.units.shape())?;
        let along = (&dunits * &self.units)?.sum_keepdim(2)?;
        let dkeys = (dunits - self.units.broadcast_mul(&along)?)?.broadcast_mul(&self.inverse)?;
        let dactive = Tensor::cat(&[dkeys.flatten_from(1)?, dvalue], 1)?;
        let gated = sigmoid(&self.convolved)?;
        let slope = (&gated + ((&self.convolved * &gated)? * (1.0 - &gated)?)?)?;
        let da = (dgate.broadcast_mul(&self.rates)? * sigmoid(&self.biased)?)?;
        Ok(DeltaRowGradients {
            convolved: (dactive * slope)?,
            b: ((dbeta * &self.beta)? * (1.0 - &self.beta)?)?,
            dt_bias: da.sum(0)?,
            a: da,
            a_log: (dgate * &self.gate)?.sum(0)?,
        })
    }

    /// The rows of a chunk of several runs, by run and head.
    fn chunk(&self, part: &ChunkRows, length: usize) -> Result<Rows> {
        let heads = self.heads;
        let of = |x: &Tensor, shape: (usize, usize, usize)| {
            by_head(&x.index_select(&part.rows, 0)?, (part.live, length), shape)
        };
        let of_key = (heads.key, heads.value / heads.key, heads.key_dim);
        Ok(Rows {
            query: of(&self.query, of_key)?,
            key: of(&self.key, of_key)?,
            value: of(&self.value, (heads.value, 1, heads.value_dim))?,
            beta: of(&self.beta, (heads.value, 1, 1))?,
            gate: of(&self.gate, (heads.value, 1, 1))?,
        })
    }
}

/// What queries of length 1 are multiplied by.
fn scale(heads: DeltaHeads) -> f64 {
    1.0 / (heads.key_dim as f64).sqrt()
}

/// `[runs · length, heads · dim]` as `[runs · heads · group, length, dim]`: each head `group` times.
fn by_head(
    x: &Tensor,
    (runs, length): (usize, usize),
    (heads, group, dim): (usize, usize, usize),
) -> Result<Tensor> {
    let x = x.reshape((runs, length, heads, dim))?.transpose(1, 2)?;
    let x = x.unsqueeze(2)?.broadcast_as((runs, heads, group, length, dim))?;
    x.contiguous()?.reshape((runs * heads * group, length, dim))
}

/// The inverse of [`by_head`]; sums a head's copies.
fn by_row(x: &Tensor, runs: usize, heads: usize) -> Result<Tensor> {
    let (all, length, dim) = x.dims3()?;
    let group = all / (runs * heads);
    let x = match group {
        1 => x.clone(),
        _ => x.reshape((runs * heads, group, length, dim))?.sum(1)?,
    };
    let x = x.reshape((runs, heads, length, dim))?.transpose(1, 2)?;
    x.contiguous()?.reshape((runs * length, heads * dim))
}

/// Where a run's state starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeltaStart {
    /// From zeros.
    Nothing,
    /// From one of the given states.
    Given(usize),
    /// From the end of an earlier run.
    Run(usize),
}

/// Rows that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaRun {
    pub rows: Range<usize>,
    pub start: DeltaStart,
    /// Whether its state at the end is needed: by a later run or by the caller.
    pub is_continued: bool,
}

/// A chunk of each run of a batch that is long enough to have it.
struct ChunkRows {
    /// The rows by run, with [`NO_ROW`] behind the end of a run.
    rows: Tensor,
    /// The number of these runs, the first of the batch.
    live: usize,
}

/// Runs that are computed at once.
struct Batch {
    /// Longest first.
    runs: Vec<usize>,
    /// Distinct.
    starts: Vec<DeltaStart>,
    /// For every run its index in `starts`; none if they are in the runs' order.
    picks: Option<Tensor>,
    is_continued: bool,
    /// Rows of a chunk.
    length: usize,
    parts: Vec<ChunkRows>,
}

impl Batch {
    fn new(all: &[DeltaRun], runs: &[usize], length: usize, device: &Device) -> Result<Self> {
        let rows = |run: usize| all[run].rows.clone();
        let longest = runs.iter().map(|run| rows(*run).len()).max().unwrap_or(0);
        let mut parts = Vec::with_capacity(longest.div_ceil(length));
        for first in (0..longest).step_by(length) {
            let live = runs.iter().take_while(|run| rows(**run).len() > first);
            let own = live.flat_map(|run| {
                let rows = rows(*run);
                let own = rows.start + first..rows.end.min(rows.start + first + length);
                let padding = length - own.len();
                own.chain(std::iter::repeat_n(NO_ROW, padding))
            });
            let own: Vec<usize> = own.collect();
            parts.push(ChunkRows { live: own.len() / length, rows: indices(&own, device)? });
        }
        let mut indices_of: BTreeMap<DeltaStart, usize> = BTreeMap::new();
        let (mut starts, mut picks) = (Vec::new(), Vec::with_capacity(runs.len()));
        for run in runs {
            let start = all[*run].start;
            picks.push(*indices_of.entry(start).or_insert_with(|| {
                starts.push(start);
                starts.len() - 1
            }));
        }
        let picks = if starts.len() < runs.len() { Some(indices(&picks, device)?) } else { None };
        let is_continued = runs.iter().any(|run| all[*run].is_continued);
        Ok(Self { runs: runs.to_vec(), starts, picks, is_continued, length, parts })
    }
}

/// The order in which runs are computed.
pub struct DeltaPlan {
    heads: DeltaHeads,
    batches: Vec<Batch>,
    /// By rows of a chunk.
    masks: BTreeMap<usize, Masks>,
    /// For every row, its place in the outputs of all batches.
    places: Tensor,
    runs: usize,
}

/// Most runs of this many rows that are computed at once in chunks of `length` rows.
fn most_runs(heads: DeltaHeads, length: usize, rows: usize) -> usize {
    let DeltaHeads { value, key_dim, value_dim, .. } = heads;
    let states = 5 + rows.div_ceil(length);
    let values = value * (states * key_dim * value_dim + length * (4 * key_dim + 6 * value_dim + 8 * length));
    (DELTA_WORKSPACE / (values * size_of::<f32>())).max(1)
}

impl DeltaPlan {
    /// The runs have all rows from 0 on, each once, and follow those whose states they continue.
    pub fn new(heads: DeltaHeads, runs: &[DeltaRun], device: &Device) -> Result<Self> {
        Self::with_most(heads, runs, |length, rows| most_runs(heads, length, rows), device)
    }

    fn with_most(
        heads: DeltaHeads,
        runs: &[DeltaRun],
        most: impl Fn(usize, usize) -> usize,
        device: &Device,
    ) -> Result<Self> {
        let mut levels: Vec<usize> = Vec::with_capacity(runs.len());
        let mut alike: BTreeMap<(usize, usize, bool), Vec<usize>> = BTreeMap::new();
        for (index, run) in runs.iter().enumerate() {
            let level = match run.start {
                DeltaStart::Run(before) => match levels.get(before) {
                    Some(level) => level + 1,
                    None => bail!("run {index} precedes the one that it continues"),
                },
                DeltaStart::Nothing | DeltaStart::Given(_) => 0,
            };
            levels.push(level);
            let length = run.rows.len().next_power_of_two().min(CHUNK);
            alike.entry((level, length, run.is_continued)).or_default().push(index);
        }
        let (mut batches, mut masks) = (Vec::new(), BTreeMap::new());
        for ((_, length, _), mut alike) in alike {
            alike.sort_by_key(|run| Reverse(runs[*run].rows.len()));
            let longest = alike.first().map_or(0, |run| runs[*run].rows.len());
            for some in alike.chunks(most(length, longest)) {
                batches.push(Batch::new(runs, some, length, device)?);
            }
            masks.insert(length, Masks::new(length, device)?);
        }
        let mut places = vec![0; runs.iter().map(|run| run.rows.len()).sum()];
        let mut place = 0;
        for batch in &batches {
            for (chunk, part) in batch.parts.iter().enumerate() {
                for run in &batch.runs[..part.live] {
                    let rows = runs[*run].rows.clone().skip(chunk * batch.length).take(batch.length);
                    rows.enumerate().for_each(|(index, row)| places[row] = place + index);
                    place += batch.length;
                }
            }
        }
        Ok(Self { heads, batches, masks, places: indices(&places, device)?, runs: runs.len() })
    }

    /// The outputs (`[rows, value heads · value dim]`), and the state at the end of every run that is continued, `[value heads, key
    /// dim, value dim]`.
    pub fn forward(&self, rows: &DeltaRows, given: &[Tensor]) -> Result<(Tensor, Vec<Option<Tensor>>)> {
        let mut ends = vec![None; self.runs];
        let mut outs = Vec::new();
        for batch in &self.batches {
            let start = self.starts(batch, given, &ends, &rows.value)?;
            self.run(batch, rows, start, &mut ends, |part, chunk| {
                outs.push(by_row(&chunk.out()?, part.live, self.heads.value)?);
                Ok(())
            })?;
        }
        Ok((self.in_order(&outs)?, ends))
    }

    /// The gradients of the rows of runs that start from no given state. `dout` is that of the outputs.
    pub fn backward(&self, rows: &DeltaRows, dout: &Tensor) -> Result<DeltaRowGradients> {
        let mut ends = vec![None; self.runs];
        for batch in self.batches.iter().filter(|batch| batch.is_continued) {
            let start = self.starts(batch, &[], &ends, dout)?;
            self.run(batch, rows, start, &mut ends, |_, _| Ok(()))?;
        }
        let mut dends = vec![None; self.runs];
        let mut found: Vec<[Tensor; 5]> = Vec::new();
        for batch in self.batches.iter().rev() {
            self.run_backward(batch, rows, dout, &ends, &mut dends, &mut found)?;
        }
        found.reverse();
        let of = |which: usize| {
            let parts: Vec<&Tensor> = found.iter().map(|parts| &parts[which]).collect();
            self.in_order(&parts)
        };
        rows.backward([of(0)?, of(1)?, of(2)?, of(3)?, of(4)?])
    }

    /// The outputs of all batches in the order of the rows.
    fn in_order<T: AsRef<Tensor>>(&self, parts: &[T]) -> Result<Tensor> {
        Tensor::cat(parts, 0)?.index_select(&self.places, 0)
    }

    fn zeros(&self, like: &Tensor) -> Result<Tensor> {
        let DeltaHeads { value, key_dim, value_dim, .. } = self.heads;
        Tensor::zeros((value, key_dim, value_dim), DType::F32, like.device())
    }

    /// States of several runs as `[runs · value heads, key dim, value dim]`.
    fn stacked(&self, states: &[Tensor], picks: Option<&Tensor>) -> Result<Tensor> {
        let states = Tensor::stack(states, 0)?;
        let states = match picks {
            Some(picks) => states.index_select(picks, 0)?,
            None => states,
        };
        states.flatten(0, 1)
    }

    /// The states at the start of a batch.
    fn starts(
        &self,
        batch: &Batch,
        given: &[Tensor],
        ends: &[Option<Tensor>],
        like: &Tensor,
    ) -> Result<Tensor> {
        let of = |start: &DeltaStart| {
            let found = match start {
                DeltaStart::Nothing => return self.zeros(like),
                DeltaStart::Given(index) => given.get(*index),
                DeltaStart::Run(run) => ends.get(*run).and_then(Option::as_ref),
            };
            found.cloned().ok_or_else(|| candle_core::Error::msg("a run without the state that it continues"))
        };
        let starts = batch.starts.iter().map(of).collect::<Result<Vec<_>>>()?;
        self.stacked(&starts, batch.picks.as_ref())
    }

    fn chunk(&self, batch: &Batch, part: &ChunkRows, rows: &DeltaRows, start: Tensor) -> Result<Chunk<'_>> {
        Chunk::new(&self.masks[&batch.length], rows.chunk(part, batch.length)?, start)
    }

    /// Calls `then` for every chunk of a batch, and keeps the states at its end if they are needed.
    fn run(
        &self,
        batch: &Batch,
        rows: &DeltaRows,
        start: Tensor,
        ends: &mut [Option<Tensor>],
        mut then: impl FnMut(&ChunkRows, &Chunk<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut state = start;
        // Of runs that are shorter than others, the last first.
        let mut ended: Vec<Tensor> = Vec::new();
        for part in &batch.parts {
            let (live, all) = (part.live * self.heads.value, state.dim(0)?);
            if live < all {
                ended.push(state.narrow(0, live, all - live)?);
                state = state.narrow(0, 0, live)?;
            }
            let chunk = self.chunk(batch, part, rows, state)?;
            then(part, &chunk)?;
            state = chunk.end()?;
        }
        if batch.is_continued {
            ended.push(state);
            ended.reverse();
            let states = Tensor::cat(&ended, 0)?;
            for (index, run) in batch.runs.iter().enumerate() {
                // A copy: a view would keep the states of all runs.
                ends[*run] = Some(states.narrow(0, index * self.heads.value, self.heads.value)?.copy()?);
            }
        }
        Ok(())
    }

    /// Adds to the gradients of the states that the batch starts from. Pushes those of queries, keys, values, β and
    /// gates, the last chunk first.
    fn run_backward(
        &self,
        batch: &Batch,
        rows: &DeltaRows,
        dout: &Tensor,
        ends: &[Option<Tensor>],
        dends: &mut [Option<Tensor>],
        found: &mut Vec<[Tensor; 5]>,
    ) -> Result<()> {
        let (heads, length) = (self.heads, batch.length);
        let mut starts = Vec::with_capacity(batch.parts.len());
        let mut state = self.starts(batch, &[], ends, dout)?;
        for part in &batch.parts {
            state = state.narrow(0, 0, part.live * heads.value)?;
            starts.push(state.clone());
            if starts.len() < batch.parts.len() {
                state = self.chunk(batch, part, rows, state)?.end()?;
            }
        }
        drop(state);
        let dend = |run: &usize| dends[*run].take().map_or_else(|| self.zeros(dout), Ok);
        let all = self.stacked(&batch.runs.iter().map(dend).collect::<Result<Vec<_>>>()?, None)?;
        // With the gradients of the runs that end before, from `all`.
        let with_rest = |some: Option<Tensor>, count: usize| match some {
            None => all.narrow(0, 0, count),
            Some(some) => match some.dim(0)? {
                enough if enough == count => Ok(some),
                few => Tensor::cat(&[some, all.narrow(0, few, count - few)?], 0),
            },
        };
        let mut later = None;
        for (part, start) in batch.parts.iter().zip(starts).rev() {
            let dend = with_rest(later, part.live * heads.value)?;
            let chunk = self.chunk(batch, part, rows, start)?;
            let dout = dout.index_select(&part.rows, 0)?;
            let dout = by_head(&dout, (part.live, length), (heads.value, 1, heads.value_dim))?;
            let (d, dstart) = chunk.backward(&dout, &dend)?;
            let of = |d: &Tensor, heads: usize| by_row(d, part.live, heads);
            let [query, key] = [&d.query, &d.key].map(|d| of(d, heads.key));
            let [value, beta, gate] = [&d.value, &d.beta, &d.gate].map(|d| of(d, heads.value));
            found.push([query?, key?, value?, beta?, gate?]);
            later = Some(dstart);
        }
        let dstarts = with_rest(later, batch.runs.len() * heads.value)?;
        let dstarts = dstarts.reshape((batch.runs.len(), heads.value, heads.key_dim, heads.value_dim))?;
        let dstarts = match &batch.picks {
            None => dstarts,
            Some(picks) => {
                let (_, value, key_dim, value_dim) = dstarts.dims4()?;
                let zeros = (batch.starts.len(), value, key_dim, value_dim);
                Tensor::zeros(zeros, DType::F32, dout.device())?.index_add(picks, &dstarts, 0)?
            }
        };
        for (index, start) in batch.starts.iter().enumerate() {
            if let DeltaStart::Run(run) = start {
                let own = dstarts.get(index)?;
                dends[*run] = Some(match dends[*run].take() {
                    Some(others) => (others + own)?,
                    None => own,
                });
            }
        }
        Ok(())
    }
}
