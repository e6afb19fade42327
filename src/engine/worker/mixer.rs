//! Mixes the rows of a step with those before them in their segments.

use std::{collections::BTreeMap, ops::Range};

use candle_core::{Result, Tensor, bail};

use super::{Part, Segments};
use crate::model::{
    kernels::{Attention, DeltaHeads, DeltaState, DeltaStep},
    ops::{self, Attended, AttentionMask, Cache, CachedSegment, DeltaInputs, Mixer},
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
        // Segments in this step, by number.
        let mut indices: BTreeMap<usize, usize> = BTreeMap::new();
        let (mut states, mut parents) = (Vec::with_capacity(self.parts.len()), Vec::new());
        for (index, part) in self.parts.iter().enumerate() {
            let above = part.depth.checked_sub(1).map(|depth| part.path[depth]);
            let parent = above.and_then(|above| indices.get(&above).copied());
            let own = self.take(part.segment())?;
            parents.push(parent.filter(|_| own.is_none()));
            states.push(match (own, parent, above) {
                (Some(state), ..) => state,
                (None, None, Some(above)) => self.below(above, inputs.heads)?,
                (None, ..) => DeltaState::new(inputs.heads),
            });
            indices.insert(part.segment(), index);
        }
        let steps = self.parts.iter().zip(parents).zip(&mut states);
        let mut steps: Vec<DeltaStep<'_>> = steps
            .map(|((part, parent), state)| DeltaStep { rows: part.rows.clone(), parent, state })
            .collect();
        let out = inputs.steps(&mut steps)?;
        for (part, state) in self.parts.iter().zip(states) {
            if let Some(segment) = self.segments.get_mut(part.segment()) {
                segment.cache[self.layer] = Cache::Delta(Some(state));
            }
        }
        Ok(out)
    }
}

impl StepMixer<'_> {
    /// Takes the state of a segment; none before its first token.
    fn take(&mut self, number: usize) -> Result<Option<DeltaState>> {
        match self.segments.get_mut(number).map(|segment| &mut segment.cache[self.layer]) {
            Some(Cache::Delta(state)) => Ok(state.take()),
            _ => bail!("segment {number} has no state"),
        }
    }

    /// The state at the start of a segment below this one.
    fn below(&self, number: usize, heads: DeltaHeads) -> Result<DeltaState> {
        match self.segments.get(number).map(|segment| &segment.cache[self.layer]) {
            Some(Cache::Delta(Some(state))) => Ok(state.child()),
            // An empty segment above: none is created.
            Some(Cache::Delta(None)) => Ok(DeltaState::new(heads)),
            _ => bail!("segment {number} has no state"),
        }
    }
}
