//! Mixes the rows of a step with those before them in their segments.

use std::{collections::BTreeMap, ops::Range};

use candle_core::{Result, Tensor, bail};

use super::{Part, Segments};
use crate::model::{
    kernels::{Attention, DeltaState, DeltaStep},
    ops::{
        self, Attended, AttentionMask, Cache, CachedSegment, ConvolutionShape, DeltaInputs, Mixer, Shifts,
    },
};

/// One layer of a step.
pub(super) struct StepMixer<'a> {
    pub layer: usize,
    pub parts: &'a [Part],
    /// Every segment on a path, with the rows below it, by depth: parents precede their children.
    pub covered: &'a [Vec<(usize, Range<usize>)>],
    pub segments: &'a mut Segments,
    pub positions: &'a [u32],
    pub mask: &'a AttentionMask,
}

impl Mixer for StepMixer<'_> {
    fn attend(&mut self, (q, k, v): (&Tensor, &Tensor, &Tensor), attention: Attention) -> Result<Attended> {
        let layer = self.layer;
        for part in self.parts {
            if let Some(segment) = self.segments.get_mut(part.segment()) {
                let expected = segment.tokens.len();
                segment.cache[layer].extend((k, v), part.rows.clone(), expected, attention)?;
            }
        }
        let past = |(number, rows): &(usize, Range<usize>)| {
            let segment = self.segments.get(*number)?;
            Some(CachedSegment { rows: rows.clone(), first: segment.first, cache: &segment.cache[layer] })
        };
        let past: Vec<CachedSegment<'_>> = self.covered.iter().flatten().filter_map(past).collect();
        ops::attend((q, k, v), self.positions, &past, attention, self.mask).map(Into::into)
    }

    fn delta(&mut self, inputs: &DeltaInputs<'_>) -> Result<Tensor> {
        let (mut states, mut parents) = (Vec::with_capacity(self.parts.len()), Vec::new());
        for (part, start) in self.parts.iter().zip(self.starts()?) {
            let (state, parent) = match start {
                Start::Own => (self.take_state(part.segment())?, None),
                Start::Segment(above) => (self.state(above)?.child(), None),
                Start::Part(parent) => (DeltaState::new(inputs.heads), Some(parent)),
                Start::Empty => (DeltaState::new(inputs.heads), None),
            };
            states.push(state);
            parents.push(parent);
        }
        let steps = self.parts.iter().zip(parents).zip(&mut states);
        let mut steps: Vec<DeltaStep<'_>> = steps
            .map(|((part, parent), state)| DeltaStep { rows: part.rows.clone(), parent, state })
            .collect();
        let out = inputs.steps(&mut steps)?;
        for (part, state) in self.parts.iter().zip(states) {
            self.keep(part.segment(), Cache::Delta(Some(state)));
        }
        Ok(out)
    }

    fn convolve(&mut self, rows: &Tensor, shape: ConvolutionShape, weight: &Tensor) -> Result<Tensor> {
        let (count, history) = (rows.dims2()?.0, shape.history());
        // Behind a zero row: the step's rows, then states.
        let mut sources = vec![rows.clone()];
        // Of each part: the rows before its first, then its own.
        let mut chains: Vec<Vec<usize>> = Vec::with_capacity(self.parts.len());
        for (part, start) in self.parts.iter().zip(self.starts()?) {
            let mut chain = match start {
                Start::Own | Start::Segment(_) => {
                    let number = if let Start::Segment(above) = start { above } else { part.segment() };
                    let state = self.convolution(number)?;
                    let first = 1 + count + (sources.len() - 1) * history;
                    sources.push(state.clone());
                    (first..first + history).collect()
                }
                Start::Part(parent) => last(&chains[parent], history).to_vec(),
                Start::Empty => Vec::new(),
            };
            chain.extend(part.rows.clone().map(|row| 1 + row));
            chains.push(chain);
        }
        let source = ops::with_zero_row(&sources.iter().collect::<Vec<_>>())?;
        let mut above: Vec<&[usize]> = vec![&[]; count];
        for (part, chain) in self.parts.iter().zip(&chains) {
            let first = chain.len() - part.rows.len();
            part.rows.clone().enumerate().for_each(|(index, row)| above[row] = &chain[..first + index]);
        }
        let shifts = Shifts::new(shape, above.into_iter(), rows.device())?;
        let out = ops::convolve(rows, &source, &shifts, weight)?;
        for (part, chain) in self.parts.iter().zip(&chains) {
            let kept = last(chain, history);
            let kept = [&vec![0; history - kept.len()], kept].concat();
            let state = ops::gather(&source, &kept)?;
            let tokens = self.cache(part.segment())?.tokens() + part.rows.len();
            self.keep(part.segment(), Cache::Convolution(Some((state, tokens))));
        }
        Ok(out)
    }
}

/// Where the state of a part's segment starts.
#[derive(Clone, Copy)]
enum Start {
    /// From its own state.
    Own,
    /// From the end of another part of this step.
    Part(usize),
    /// From the end of a segment that is not in this step.
    Segment(usize),
    /// From nothing: it is the first, or all above are empty.
    Empty,
}

/// At most this many entries at the end.
fn last(chain: &[usize], most: usize) -> &[usize] {
    &chain[chain.len().saturating_sub(most)..]
}

impl StepMixer<'_> {
    fn starts(&self) -> Result<Vec<Start>> {
        // Segments in this step, by number.
        let mut indices: BTreeMap<usize, usize> = BTreeMap::new();
        let mut starts = Vec::with_capacity(self.parts.len());
        for (index, part) in self.parts.iter().enumerate() {
            let above = part.depth.checked_sub(1).map(|depth| part.path[depth]);
            let parent = above.and_then(|above| indices.get(&above).copied());
            starts.push(match (self.cache(part.segment())?.tokens(), parent, above) {
                (1.., ..) => Start::Own,
                (0, Some(parent), _) => Start::Part(parent),
                (0, None, Some(above)) if self.cache(above)?.tokens() > 0 => Start::Segment(above),
                (0, None, _) => Start::Empty,
            });
            indices.insert(part.segment(), index);
        }
        Ok(starts)
    }

    fn cache(&self, number: usize) -> Result<&Cache> {
        match self.segments.get(number) {
            Some(segment) => Ok(&segment.cache[self.layer]),
            None => bail!("segment {number} is gone"),
        }
    }

    fn keep(&mut self, number: usize, cache: Cache) {
        if let Some(segment) = self.segments.get_mut(number) {
            segment.cache[self.layer] = cache;
        }
    }

    fn take_state(&mut self, number: usize) -> Result<DeltaState> {
        match self.segments.get_mut(number).map(|segment| &mut segment.cache[self.layer]) {
            Some(Cache::Delta(state)) => match state.take() {
                Some(state) => Ok(state),
                None => bail!("segment {number} has no state"),
            },
            _ => bail!("segment {number} has no state"),
        }
    }

    fn state(&self, number: usize) -> Result<&DeltaState> {
        match self.cache(number)? {
            Cache::Delta(Some(state)) => Ok(state),
            _ => bail!("segment {number} has no state"),
        }
    }

    fn convolution(&self, number: usize) -> Result<&Tensor> {
        match self.cache(number)? {
            Cache::Convolution(Some((state, _))) => Ok(state),
            _ => bail!("segment {number} has no state"),
        }
    }
}
