//! AdamW, AdamW with 8-bit moments, and Muon, over flat parameters that are updated in place.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use parking_lot::Mutex;

use super::{
    EngineError,
    eight_bit::{QuantizedValues, Signedness},
    muon::orthogonalise,
    threads::run_workers,
};
use crate::model::{
    Parameter,
    ops::{self, composed},
};

/// How one parameter is updated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Loshchilov & Hutter 2019. `rate` multiplies the step's learning rate.
    AdamW { rate: f32, beta1: f32, beta2: f32, weight_decay: f32 },
    /// AdamW with both moments in 8 bits for parameters of at least [`CODED_FROM`] values (Dettmers et al.
    /// 2022): 2 bytes per value instead of 8.
    AdamW8Bit { rate: f32, beta1: f32, beta2: f32, weight_decay: f32 },
    /// Momentum orthogonalised by Newton-Schulz iteration (Jordan et al. 2024), for matrices.
    Muon { rate: f32, momentum: f32 },
}

impl Rule {
    /// Whether a parameter with this many values has 8-bit moments.
    fn is_coded(self, values: usize) -> bool {
        matches!(self, Self::AdamW8Bit { .. }) && values >= CODED_FROM
    }

    /// Bytes of the moments of a parameter with this many values.
    pub fn bytes(self, values: usize) -> usize {
        match self {
            Self::AdamW8Bit { .. } if self.is_coded(values) => 2 * QuantizedValues::bytes_of(values),
            Self::AdamW { .. } | Self::AdamW8Bit { .. } => 2 * values * size_of::<f32>(),
            Self::Muon { .. } => values * size_of::<f32>(),
        }
    }
}

/// Smaller parameters keep 32-bit moments under [`Rule::AdamW8Bit`]: they take little memory and matter much.
pub const CODED_FROM: usize = 4096;

/// A running mean of one parameter's gradients, or of their squares.
#[derive(Debug, Clone)]
enum Moment {
    Full(Vec<f32>),
    Coded(QuantizedValues),
    /// On the device of its parameter.
    OnDevice(Tensor),
}

impl Default for Moment {
    fn default() -> Self {
        Self::Full(Vec::new())
    }
}

/// The state of one parameter.
#[derive(Debug, Clone, Default)]
struct Slot {
    first: Moment,
    /// Empty for Muon.
    second: Moment,
}

/// Updates parameters from gradients. Its state can be saved and resumed bit for bit.
pub struct Optimizer {
    rules: Vec<Rule>,
    slots: Vec<Slot>,
    steps: u64,
}

impl Optimizer {
    /// Takes one rule per trained parameter.
    pub fn new(rules: Vec<Rule>) -> Self {
        let slots = vec![Slot::default(); rules.len()];
        Self { rules, slots, steps: 0 }
    }

    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Bytes of the moments of parameters with these numbers of values, and how many of them are already
    /// allocated.
    pub fn bytes(&self, values: &[usize]) -> [usize; 2] {
        let all = self.rules.iter().zip(values).map(|(rule, values)| rule.bytes(*values)).sum();
        [all, self.slots.iter().map(|slot| slot.first.bytes() + slot.second.bytes()).sum()]
    }

    /// Runs one step at this learning rate. Gradients are first multiplied by `scale` (clipping).
    pub fn step(
        &mut self,
        parameters: &mut [Parameter<'_>],
        gradients: &[Tensor],
        learning_rate: f32,
        scale: f32,
        threads: usize,
    ) -> Result<(), EngineError> {
        self.steps += 1;
        let steps = self.steps;
        let tensors = parameters.iter().map(|parameter| parameter.tensor().clone());
        let work = self.rules.iter().zip(&mut self.slots).zip(tensors).zip(gradients);
        let (mut work, on_devices): (Vec<_>, Vec<_>) =
            work.partition(|(_, gradient)| ops::by_kernels(gradient));
        // One thread issues the operations of devices.
        for (((rule, slot), parameter), gradient) in on_devices {
            composed_update(*rule, slot, &parameter, gradient, learning_rate, scale, steps)?;
        }
        // The largest first, so that the threads end together.
        work.sort_by_key(|(_, gradient)| std::cmp::Reverse(gradient.elem_count()));
        let work = Mutex::new(work.into_iter());
        let next = || work.lock().next();
        let run = |_: usize| -> Result<(), EngineError> {
            while let Some((((rule, slot), parameter), gradient)) = next() {
                update(*rule, slot, &parameter, gradient, learning_rate, scale, steps)?;
            }
            Ok(())
        };
        run_workers(threads, run).into_iter().collect::<Result<(), _>>()?;
        for parameter in parameters {
            // Drops the packed copy of the old values.
            let tensor = parameter.tensor().clone();
            parameter.set(tensor);
        }
        Ok(())
    }

    /// The state as named tensors. 8-bit moments are `u8` tensors, each with a tensor of block scales.
    pub fn state(&self) -> Result<BTreeMap<String, Tensor>, EngineError> {
        let mut named = BTreeMap::new();
        let vector = |data: &[f32]| Tensor::from_slice(data, data.len(), &Device::Cpu);
        for (index, slot) in self.slots.iter().enumerate() {
            for (name, moment) in [("first", &slot.first), ("second", &slot.second)] {
                let name = format!("{name}.{index:04}");
                match moment {
                    Moment::Full(values) => _ = named.insert(name, vector(values)?),
                    Moment::OnDevice(values) => _ = named.insert(name, vector(&ops::read(values)?)?),
                    Moment::Coded(codes) => {
                        named.insert(format!("{name}.scales"), vector(&codes.scales)?);
                        let codes = Tensor::from_slice(&codes.codes, codes.codes.len(), &Device::Cpu)?;
                        named.insert(name, codes);
                    }
                }
            }
        }
        named.insert("steps".into(), vector(&[self.steps as f32])?);
        Ok(named)
    }

    /// Restores a saved state of parameters with these numbers of values. Changes nothing if the state does
    /// not fit.
    pub fn resume(
        &mut self,
        named: &BTreeMap<String, Tensor>,
        values: &[usize],
    ) -> Result<Resumed, EngineError> {
        let read = |name: &str| named.get(name).map(Tensor::to_vec1::<f32>).transpose();
        let moment = |name: String, sign: Signedness| -> Result<Option<Moment>, EngineError> {
            let Some(scales) = read(&format!("{name}.scales"))? else {
                return Ok(read(&name)?.map(Moment::Full));
            };
            let Some(codes) = named.get(&name) else { return Ok(None) };
            // Files are read as f32, which represents every byte exactly.
            let codes = codes.to_dtype(DType::U8)?.to_vec1::<u8>()?;
            Ok(QuantizedValues::from_parts(codes, scales, sign).map(Moment::Coded))
        };
        let mut slots = Vec::with_capacity(self.slots.len());
        for index in 0..self.slots.len() {
            let first = moment(format!("first.{index:04}"), Signedness::Signed)?;
            let second = moment(format!("second.{index:04}"), Signedness::Unsigned)?;
            let (Some(first), Some(second)) = (first, second) else { return Ok(Resumed::Incomplete) };
            slots.push(Slot { first, second });
        }
        let Some(steps) = read("steps")?.and_then(|steps| steps.first().copied()) else {
            return Ok(Resumed::Incomplete);
        };
        // Before the first step there are no moments.
        let fits = |((rule, slot), values): ((&Rule, &Slot), &usize)| {
            let second = if matches!(rule, Rule::Muon { .. }) { 0 } else { *values };
            slot.first.is_of(*rule, *values) && slot.second.is_of(*rule, second)
        };
        if steps > 0.0 && !self.rules.iter().zip(&slots).zip(values).all(fits) {
            return Ok(Resumed::Mismatch);
        }
        (self.slots, self.steps) = (slots, steps as u64);
        Ok(Resumed::Restored)
    }
}

/// The result of restoring a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resumed {
    Restored,
    /// Its moments belong to another optimizer, or to parameters of other sizes.
    Mismatch,
    /// A tensor is missing.
    Incomplete,
}

/// Constants of one AdamW step.
#[derive(Clone, Copy)]
struct AdamW {
    rate: f32,
    beta1: f32,
    beta2: f32,
    weight_decay: f32,
    correct1: f32,
    correct2: f32,
    scale: f32,
}

impl AdamW {
    /// None for another kind of rule.
    fn new(rule: Rule, learning_rate: f32, scale: f32, steps: u64) -> Option<Self> {
        let (Rule::AdamW { rate, beta1, beta2, weight_decay }
        | Rule::AdamW8Bit { rate, beta1, beta2, weight_decay }) = rule
        else {
            return None;
        };
        let rate = learning_rate * rate;
        let (correct1, correct2) = (1.0 - beta1.powi(steps as i32), 1.0 - beta2.powi(steps as i32));
        Some(Self { rate, beta1, beta2, weight_decay, correct1, correct2, scale })
    }

    /// Computes the step with candle's operations. Returns the new moments.
    fn composed(
        &self,
        values: &Tensor,
        gradient: &Tensor,
        first: &Tensor,
        second: &Tensor,
    ) -> candle_core::Result<(Tensor, Tensor)> {
        let [rate, beta1, beta2, weight_decay, correct1, correct2, scale] =
            [self.rate, self.beta1, self.beta2, self.weight_decay, self.correct1, self.correct2, self.scale]
                .map(f64::from);
        let gradient = (gradient * scale)?;
        let first = ((first * beta1)? + (&gradient * (1.0 - beta1))?)?;
        let second = ((second * beta2)? + (gradient.sqr()? * (1.0 - beta2))?)?;
        let step = ((&first / correct1)? / ((&second / correct2)?.sqrt()? + 1e-8)?)?;
        let step = ((step + (values * weight_decay)?)? * rate)?;
        composed::assign(values, &(values - step)?)?;
        Ok((first, second))
    }

    /// The step in place, by our kernel.
    #[cfg(feature = "cuda")]
    fn on_cuda(&self, values: &Tensor, gradient: &Tensor, moments: [&Tensor; 2]) -> candle_core::Result<()> {
        let Self { rate, beta1, beta2, weight_decay, correct1, correct2, scale } = *self;
        let constants = [rate, beta1, beta2, weight_decay, correct1, correct2, scale];
        ops::cuda::adamw(values, gradient, moments, constants)
    }

    fn step(&self, values: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32]) {
        let Self { rate, beta1, beta2, weight_decay, correct1, correct2, scale } = *self;
        for (((value, gradient), first), second) in
            values.iter_mut().zip(gradients).zip(first.iter_mut()).zip(second.iter_mut())
        {
            let gradient = gradient * scale;
            *first = beta1 * *first + (1.0 - beta1) * gradient;
            *second = beta2 * *second + (1.0 - beta2) * gradient * gradient;
            let step = (*first / correct1) / ((*second / correct2).sqrt() + 1e-8);
            *value -= rate * (step + weight_decay * *value);
        }
    }
}

impl Moment {
    /// Whether it has this rule's format and this length.
    fn is_of(&self, rule: Rule, length: usize) -> bool {
        match self {
            Self::Full(values) => !rule.is_coded(length) && values.len() == length,
            Self::Coded(codes) => rule.is_coded(length) && codes.codes.len() == length,
            Self::OnDevice(_) => false,
        }
    }

    /// Bytes on the CPU.
    fn bytes(&self) -> usize {
        match self {
            Self::Full(values) => size_of_val(values.as_slice()),
            Self::Coded(codes) => codes.codes.len() + size_of_val(codes.scales.as_slice()),
            Self::OnDevice(_) => 0,
        }
    }

    /// Allocates zeros in this rule's format, unless a moment of this length and format exists.
    fn prepare(&mut self, rule: Rule, length: usize, sign: Signedness) {
        if !self.is_of(rule, length) {
            *self = match rule.is_coded(length) {
                true => Self::Coded(QuantizedValues::zeros(length, sign)),
                false => Self::Full(vec![0.0; length]),
            };
        }
    }
}

/// Steps a parameter that no kernel updates. AdamW's moments are on the parameter's device. Other rules store
/// their state and compute on the CPU, and the parameter is copied there.
fn composed_update(
    rule: Rule,
    slot: &mut Slot,
    parameter: &Tensor,
    gradient: &Tensor,
    learning_rate: f32,
    scale: f32,
    steps: u64,
) -> Result<(), EngineError> {
    let device = parameter.device();
    let adam = AdamW::new(rule, learning_rate, scale, steps).filter(|_| matches!(rule, Rule::AdamW { .. }));
    let Some(adam) = adam else {
        let on_cpu = parameter.to_device(&Device::Cpu)?.copy()?;
        update(rule, slot, &on_cpu, &gradient.to_device(&Device::Cpu)?, learning_rate, scale, steps)?;
        return Ok(composed::assign(parameter, &on_cpu.to_device(device)?)?);
    };
    let on_device = |moment: &Moment| match moment {
        Moment::OnDevice(values) => Ok(values.clone()),
        Moment::Full(values) if values.len() == parameter.elem_count() => {
            Tensor::from_slice(values, parameter.shape(), device)
        }
        _ => parameter.zeros_like(),
    };
    #[cfg(feature = "cuda")]
    if ops::cuda::takes(parameter) {
        let (first, second) = (on_device(&slot.first)?, on_device(&slot.second)?);
        adam.on_cuda(parameter, gradient, [&first, &second])?;
        (slot.first, slot.second) = (Moment::OnDevice(first), Moment::OnDevice(second));
        return Ok(());
    }
    let (first, second) =
        adam.composed(parameter, gradient, &on_device(&slot.first)?, &on_device(&slot.second)?)?;
    (slot.first, slot.second) = (Moment::OnDevice(first), Moment::OnDevice(second));
    Ok(())
}

fn update(
    rule: Rule,
    slot: &mut Slot,
    parameter: &Tensor,
    gradient: &Tensor,
    learning_rate: f32,
    scale: f32,
    steps: u64,
) -> Result<(), EngineError> {
    let length = parameter.elem_count();
    let gradient = ops::values(gradient)?;
    slot.first.prepare(rule, length, Signedness::Signed);
    match rule {
        Rule::AdamW { .. } | Rule::AdamW8Bit { .. } => {
            slot.second.prepare(rule, length, Signedness::Unsigned);
            let Some(adam) = AdamW::new(rule, learning_rate, scale, steps) else { return Ok(()) };
            ops::update(parameter, |values| match (&mut slot.first, &mut slot.second) {
                (Moment::Full(first), Moment::Full(second)) => adam.step(values, &gradient, first, second),
                (Moment::Coded(first), Moment::Coded(second)) => {
                    first.update_with(second, |range, first, second| {
                        adam.step(&mut values[range.clone()], &gradient[range], first, second);
                    });
                }
                _ => unreachable!("both moments were prepared alike"),
            })?;
        }
        Rule::Muon { rate, momentum } => {
            let (rows, columns) = parameter.dims2()?;
            let Moment::Full(first) = &mut slot.first else { unreachable!("Muon has 32-bit moments") };
            let mut direction = Vec::with_capacity(length);
            for (gradient, first) in gradient.iter().zip(first) {
                let gradient = gradient * scale;
                *first = momentum * *first + (1.0 - momentum) * gradient;
                direction.push(gradient + momentum * (*first - gradient));
            }
            orthogonalise(&mut direction, rows, columns);
            let rate = learning_rate * rate * (rows as f32 / columns as f32).max(1.0).sqrt();
            ops::update(parameter, |values| {
                values.iter_mut().zip(direction).for_each(|(value, direction)| *value -= rate * direction);
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Fixture {
        adamw: AdamWCase,
    }

    #[derive(Deserialize)]
    struct AdamWCase {
        beta1: f32,
        beta2: f32,
        weight_decay: f32,
        start: Vec<f32>,
        steps: Vec<Step>,
    }

    #[derive(Deserialize)]
    struct Step {
        learning_rate: f32,
        gradient: Vec<f32>,
        parameter: Vec<f32>,
    }

    #[test]
    fn adamw_steps_match_pytorch() {
        let text = include_str!("../../../tests/reference/fixtures/optimizer.json");
        let AdamWCase { beta1, beta2, weight_decay, start, steps } =
            serde_json::from_str::<Fixture>(text).unwrap().adamw;
        let rule = Rule::AdamW { rate: 1.0, beta1, beta2, weight_decay };
        let parameter = Tensor::from_slice(&start, start.len(), &Device::Cpu).unwrap();
        let mut slot = Slot::default();
        for (index, step) in steps.iter().enumerate() {
            let gradient = Tensor::from_slice(&step.gradient, start.len(), &Device::Cpu).unwrap();
            let count = index as u64 + 1;
            update(rule, &mut slot, &parameter, &gradient, step.learning_rate, 1.0, count).unwrap();
            for (ours, theirs) in ops::values(&parameter).unwrap().iter().zip(&step.parameter) {
                assert!((ours - theirs).abs() < 1e-6, "step {count}: {ours} {theirs}");
            }
        }
    }

    /// Mean squared error after this many steps towards a target. The noise is the same for every rule.
    fn minimise(rule: Rule, steps: u64) -> (f32, Slot) {
        let count = 2 * CODED_FROM;
        let wave = |i: usize, of: f32| ((i * i % 9973) as f32 * of).sin();
        let parameter = Tensor::zeros(count, DType::F32, &Device::Cpu).unwrap();
        let mut slot = Slot::default();
        for step in 1..=steps {
            let gradient: Vec<f32> = {
                let values = ops::values(&parameter).unwrap();
                // Gradient scales over four decades, as in real layers.
                let scale = |i: usize| 10f32.powi(-((i / 64 % 4) as i32));
                let at =
                    |i: usize| scale(i) * (values[i] - wave(i, 0.7) + 0.3 * wave(i + step as usize, 1.3));
                (0..count).map(at).collect()
            };
            let gradient = Tensor::from_vec(gradient, count, &Device::Cpu).unwrap();
            update(rule, &mut slot, &parameter, &gradient, 0.02, 1.0, step).unwrap();
        }
        let values = ops::values(&parameter).unwrap();
        let error = values.iter().enumerate().map(|(i, v)| (v - wave(i, 0.7)).powi(2)).sum::<f32>();
        (error / count as f32, slot)
    }

    #[test]
    fn adamw_with_8_bit_moments_converges_like_adamw() {
        let (beta1, beta2, weight_decay) = (0.9, 0.95, 0.0);
        let (start, _) = minimise(Rule::AdamW { rate: 1.0, beta1, beta2, weight_decay }, 0);
        let (full, _) = minimise(Rule::AdamW { rate: 1.0, beta1, beta2, weight_decay }, 150);
        let (coded, slot) = minimise(Rule::AdamW8Bit { rate: 1.0, beta1, beta2, weight_decay }, 150);
        assert!(full < 0.05 * start && coded < full + 0.02 * start, "{start} → {full}, {coded}");
        let Moment::Coded(first) = &slot.first else { panic!("{:?}", slot.first) };
        assert_eq!((first.codes.len(), first.scales.len()), (2 * CODED_FROM, 2 * CODED_FROM / 256));
    }

    /// The state of one parameter after a step by this rule.
    fn stepped(rule: Rule, values: usize) -> (Optimizer, BTreeMap<String, Tensor>) {
        let mut optimizer = Optimizer::new(vec![rule]);
        let shape = (values / 32, 32);
        let parameter = Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        let gradient = (0..values).map(|value| (value as f32).sin()).collect();
        let gradient = Tensor::from_vec(gradient, shape, &Device::Cpu).unwrap();
        optimizer.steps = 1;
        update(rule, &mut optimizer.slots[0], &parameter, &gradient, 0.1, 1.0, 1).unwrap();
        let state = optimizer.state().unwrap();
        (optimizer, state)
    }

    #[test]
    fn moments_of_another_optimizer_are_not_restored() {
        let (rate, beta1, beta2, weight_decay) = (1.0, 0.9, 0.95, 0.0);
        let rules = [
            Rule::AdamW { rate, beta1, beta2, weight_decay },
            Rule::AdamW8Bit { rate, beta1, beta2, weight_decay },
            Rule::Muon { rate, momentum: 0.9 },
        ];
        for values in [64, 2 * CODED_FROM] {
            for (of, from) in rules.iter().enumerate() {
                let (_, state) = stepped(*from, values);
                for (to, rule) in rules.iter().enumerate() {
                    let mut optimizer = Optimizer::new(vec![*rule]);
                    let resumed = optimizer.resume(&state, &[values]).unwrap();
                    // Small parameters keep 32-bit moments under both rules.
                    let alike = of == to || (values < CODED_FROM && of + to == 1);
                    let expected = if alike { (Resumed::Restored, 1) } else { (Resumed::Mismatch, 0) };
                    assert_eq!((resumed, optimizer.steps()), expected, "{from:?} {rule:?}");
                    let resumed = optimizer.resume(&state, &[values + 32]).unwrap();
                    assert_eq!(resumed, Resumed::Mismatch, "{from:?} {rule:?}");
                }
            }
        }
    }

    #[test]
    fn an_incomplete_state_differs_from_one_before_the_first_step() {
        let rule = Rule::Muon { rate: 1.0, momentum: 0.9 };
        let (_, mut state) = stepped(rule, 64);
        state.remove("second.0000");
        let mut optimizer = Optimizer::new(vec![rule]);
        assert_eq!(optimizer.resume(&state, &[64]).unwrap(), Resumed::Incomplete);
        let fresh = optimizer.state().unwrap();
        assert_eq!(Optimizer::new(vec![rule]).resume(&fresh, &[64]).unwrap(), Resumed::Restored);
    }
}
