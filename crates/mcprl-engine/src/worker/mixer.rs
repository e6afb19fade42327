//! Mixes the rows of a step with those before them in their segments.

use std::{cell::OnceCell, collections::BTreeMap, ops::Range};

use candle_core::{Result, Tensor, bail};

use super::{Segments, StepPart};
use crate::model::{
    kernels::{Attention, DeltaState, DeltaStep},
    ops::{
        self, Attended, AttentionMask, Cache, CachedSegment, ComposedState, ConvolutionShape, DeltaInputs,
        Mixer, Shifts,
        composed::{DeltaPlan, DeltaRun, DeltaStart},
    },
};

/// One layer of a step.
pub(super) struct StepMixer<'a> {
    pub layer: usize,
    pub parts: &'a [StepPart],
    /// Every segment on a path, with the rows below it, by depth: parents precede their children.
    pub covered: &'a [Vec<(usize, Range<usize>)>],
    pub segments: &'a mut Segments,
    pub positions: &'a [u32],
    pub mask: &'a AttentionMask,
    /// For linear attention without a kernel, the same in all layers.
    pub delta_plan: &'a OnceCell<DeltaPlan>,
}

impl Mixer for StepMixer<'_> {
    fn attend(&mut self, (q, k, v): (&Tensor, &Tensor, &Tensor), attention: Attention) -> Result<Attended> {
        let layer = self.layer;
        for part in self.parts {
            if let Some(segment) = self.segments.get_mut(part.segment()) {
                let expected = segment.expected();
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
        if !ops::by_kernels(inputs.mixed) {
            return self.composed_delta(inputs);
        }
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
        let (out, histories) = self.convolved(rows, shape, weight)?;
        for (part, history) in self.parts.iter().zip(histories) {
            let tokens = self.cache(part.segment())?.tokens() + part.rows.len();
            self.keep(part.segment(), Cache::Convolution(Some((history, tokens))));
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

impl Start {
    /// The segment with the state, for a part that starts from one.
    fn segment(self, part: &StepPart) -> usize {
        if let Self::Segment(above) = self { above } else { part.segment() }
    }
}

/// At most this many entries at the end.
fn last(chain: &[usize], most: usize) -> &[usize] {
    &chain[chain.len().saturating_sub(most)..]
}

impl StepMixer<'_> {
    /// Linear attention without a kernel.
    fn composed_delta(&mut self, inputs: &DeltaInputs<'_>) -> Result<Tensor> {
        let (convolved, histories) =
            self.convolved(inputs.mixed, inputs.convolution(), &inputs.conv.tensor)?;
        let (mut given, mut runs) = (Vec::new(), Vec::with_capacity(self.parts.len()));
        for (part, start) in self.parts.iter().zip(self.starts()?) {
            let start = match start {
                Start::Own | Start::Segment(_) => {
                    given.push(self.composed_state(start.segment(part))?.state.clone());
                    DeltaStart::Given(given.len() - 1)
                }
                Start::Part(parent) => DeltaStart::Run(parent),
                Start::Empty => DeltaStart::Nothing,
            };
            runs.push(DeltaRun { rows: part.rows.clone(), start, is_continued: true });
        }
        let device = inputs.mixed.device();
        let plan = ops::once(self.delta_plan, || DeltaPlan::new(inputs.heads, &runs, device))?;
        let (out, ends) = plan.forward(&inputs.after(convolved)?, &given)?;
        for ((part, history), state) in self.parts.iter().zip(histories).zip(ends.into_iter().flatten()) {
            let tokens = self.cache(part.segment())?.tokens() + part.rows.len();
            let state = ComposedState { state, history, tokens };
            self.keep(part.segment(), Cache::ComposedDelta(Some(state)));
        }
        Ok(out)
    }

    /// The convolution of a step's rows, and the rows that each part leaves for later ones, `[window − 1, channels]`.
    fn convolved(
        &self,
        rows: &Tensor,
        shape: ConvolutionShape,
        weight: &Tensor,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let (count, history) = (rows.dims2()?.0, shape.history());
        // Behind a zero row: the step's rows, then states.
        let mut sources = vec![rows.clone()];
        // Of each part: the rows before its first, then its own.
        let mut chains: Vec<Vec<usize>> = Vec::with_capacity(self.parts.len());
        for (part, start) in self.parts.iter().zip(self.starts()?) {
            let mut chain = match start {
                Start::Own | Start::Segment(_) => {
                    let first = 1 + count + (sources.len() - 1) * history;
                    sources.push(self.history(start.segment(part))?.clone());
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
        let kept = |chain: &Vec<usize>| {
            let kept = last(chain, history);
            ops::gather(&source, &[&vec![0; history - kept.len()], kept].concat())
        };
        Ok((out, chains.iter().map(kept).collect::<Result<_>>()?))
    }

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

    fn composed_state(&self, number: usize) -> Result<&ComposedState> {
        match self.cache(number)? {
            Cache::ComposedDelta(Some(state)) => Ok(state),
            _ => bail!("segment {number} has no state"),
        }
    }

    /// The rows before its next one.
    fn history(&self, number: usize) -> Result<&Tensor> {
        match self.cache(number)? {
            Cache::Convolution(Some((history, _))) => Ok(history),
            Cache::ComposedDelta(Some(state)) => Ok(&state.history),
            _ => bail!("segment {number} has no state"),
        }
    }
}
