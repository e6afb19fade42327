//! AdamW and Muon over flat parameters.

use candle_core::{Device, Tensor};

use super::EngineError;
use crate::model::{
    Parameter,
    kernels::{Left, Right, gemm},
    ops,
};

/// How one parameter is updated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Loshchilov & Hutter 2019. `rate` multiplies the step's learning rate.
    AdamW { rate: f32, beta1: f32, beta2: f32, weight_decay: f32 },
    /// Momentum orthogonalised by Newton-Schulz iteration (Jordan et al. 2024), for matrices.
    Muon { rate: f32, momentum: f32 },
}

/// The state of one parameter.
#[derive(Debug, Clone, Default)]
struct Slot {
    first: Vec<f32>,
    /// Empty for Muon.
    second: Vec<f32>,
}

/// Updates parameters from gradients; its state can be saved and resumed to the bit.
pub struct Optimizer {
    rules: Vec<Rule>,
    slots: Vec<Slot>,
    steps: u64,
}

impl Optimizer {
    /// One rule per trained parameter.
    pub fn new(rules: Vec<Rule>) -> Self {
        let slots = vec![Slot::default(); rules.len()];
        Self { rules, slots, steps: 0 }
    }

    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// One step at this learning rate; gradients are multiplied by `scale` first (clipping).
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
        let mut work = Vec::with_capacity(parameters.len());
        for (((rule, slot), parameter), gradient) in
            self.rules.iter().zip(&mut self.slots).zip(parameters.iter()).zip(gradients)
        {
            work.push((*rule, slot, parameter.tensor().clone(), gradient.clone()));
        }
        // The largest first, each to the thread with the least to do.
        let mut order: Vec<usize> = (0..work.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(work[*index].2.elem_count()));
        let mut shares: Vec<(usize, Vec<_>)> = (0..threads.max(1)).map(|_| (0, Vec::new())).collect();
        let mut work: Vec<_> = work.into_iter().map(Some).collect();
        for index in order {
            let Some(item) = work[index].take() else { continue };
            let least = shares.iter_mut().min_by_key(|(load, _)| *load).expect("at least one thread");
            least.0 += item.2.elem_count();
            least.1.push((index, item));
        }
        let updated = std::thread::scope(|scope| {
            let handles: Vec<_> = shares
                .into_iter()
                .map(|(_, share)| {
                    scope.spawn(move || {
                        share
                            .into_iter()
                            .map(|(index, (rule, slot, parameter, gradient))| {
                                let new =
                                    update(rule, slot, &parameter, &gradient, learning_rate, scale, steps)?;
                                Ok((index, new))
                            })
                            .collect::<Result<Vec<_>, EngineError>>()
                    })
                })
                .collect();
            let join = |handle: std::thread::ScopedJoinHandle<'_, _>| {
                handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            handles.into_iter().map(join).collect::<Result<Vec<_>, EngineError>>()
        })?;
        for (index, tensor) in updated.into_iter().flatten() {
            parameters[index].set(tensor);
        }
        Ok(())
    }

    /// The state as named tensors.
    pub fn state(&self) -> Result<std::collections::BTreeMap<String, Tensor>, EngineError> {
        let mut named = std::collections::BTreeMap::new();
        let mut put = |name: String, data: &[f32]| {
            named.insert(name, Tensor::from_slice(data, data.len(), &Device::Cpu)?);
            Ok::<_, EngineError>(())
        };
        for (index, slot) in self.slots.iter().enumerate() {
            put(format!("first.{index:04}"), &slot.first)?;
            put(format!("second.{index:04}"), &slot.second)?;
        }
        put("steps".into(), &[self.steps as f32])?;
        Ok(named)
    }

    /// Takes up a saved state. A missing or misshapen one is left as new, and `false` says so.
    pub fn resume(
        &mut self,
        named: &std::collections::BTreeMap<String, Tensor>,
    ) -> Result<bool, EngineError> {
        let read = |name: String| named.get(&name).map(Tensor::to_vec1::<f32>).transpose();
        let mut slots = Vec::with_capacity(self.slots.len());
        for index in 0..self.slots.len() {
            match (read(format!("first.{index:04}"))?, read(format!("second.{index:04}"))?) {
                (Some(first), Some(second)) => slots.push(Slot { first, second }),
                _ => return Ok(false),
            }
        }
        let Some(steps) = read("steps".into())?.and_then(|steps| steps.first().copied()) else {
            return Ok(false);
        };
        (self.slots, self.steps) = (slots, steps as u64);
        Ok(true)
    }
}

fn update(
    rule: Rule,
    slot: &mut Slot,
    parameter: &Tensor,
    gradient: &Tensor,
    learning_rate: f32,
    scale: f32,
    steps: u64,
) -> Result<Tensor, EngineError> {
    let shape = parameter.shape().clone();
    let mut values = ops::values(parameter)?.to_vec();
    let gradient = ops::values(gradient)?;
    slot.first.resize(values.len(), 0.0);
    match rule {
        Rule::AdamW { rate, beta1, beta2, weight_decay } => {
            slot.second.resize(values.len(), 0.0);
            let rate = learning_rate * rate;
            let (correct1, correct2) = (1.0 - beta1.powi(steps as i32), 1.0 - beta2.powi(steps as i32));
            for (((value, gradient), first), second) in
                values.iter_mut().zip(gradient.iter()).zip(&mut slot.first).zip(&mut slot.second)
            {
                let gradient = gradient * scale;
                *first = beta1 * *first + (1.0 - beta1) * gradient;
                *second = beta2 * *second + (1.0 - beta2) * gradient * gradient;
                let step = (*first / correct1) / ((*second / correct2).sqrt() + 1e-8);
                *value -= rate * (step + weight_decay * *value);
            }
        }
        Rule::Muon { rate, momentum } => {
            let (rows, columns) = shape.dims2()?;
            let mut direction = Vec::with_capacity(values.len());
            for (gradient, first) in gradient.iter().zip(&mut slot.first) {
                let gradient = gradient * scale;
                *first = momentum * *first + (1.0 - momentum) * gradient;
                direction.push(gradient + momentum * (*first - gradient));
            }
            orthogonalise(&mut direction, rows, columns);
            let rate = learning_rate * rate * (rows as f32 / columns as f32).max(1.0).sqrt();
            for (value, direction) in values.iter_mut().zip(direction) {
                *value -= rate * direction;
            }
        }
    }
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

/// Brings the singular values of `[rows, columns]` close to 1 by five quintic Newton-Schulz steps.
fn orthogonalise(matrix: &mut [f32], rows: usize, columns: usize) {
    let norm = matrix.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt() as f32;
    let scale = 1.0 / (norm + 1e-7);
    matrix.iter_mut().for_each(|value| *value *= scale);
    let wide = rows <= columns;
    let small = rows.min(columns);
    let mut square = vec![0.0; small * small];
    let mut mixed = vec![0.0; small * small];
    let (a, b, c) = (3.4445, -4.7750, 2.0315);
    for _ in 0..5 {
        // X·Xᵀ for a wide matrix, Xᵀ·X for a tall one.
        if wide {
            let transposed: Vec<f32> =
                (0..rows * columns).map(|i| matrix[(i % rows) * columns + i / rows]).collect();
            gemm(
                rows,
                Left::rows(matrix, columns),
                Right::rows(&transposed, columns, rows),
                &mut square,
                rows,
                false,
            );
        } else {
            let left = Left::transposed(matrix, columns);
            gemm(columns, left, Right::rows(matrix, rows, columns), &mut square, columns, false);
        }
        gemm(small, Left::rows(&square, small), Right::rows(&square, small, small), &mut mixed, small, false);
        for (mixed, square) in mixed.iter_mut().zip(&square) {
            *mixed = b * square + c * *mixed;
        }
        let mut next: Vec<f32> = matrix.iter().map(|value| a * value).collect();
        if wide {
            gemm(
                rows,
                Left::rows(&mixed, rows),
                Right::rows(matrix, rows, columns),
                &mut next,
                columns,
                true,
            );
        } else {
            gemm(
                rows,
                Left::rows(matrix, columns),
                Right::rows(&mixed, columns, columns),
                &mut next,
                columns,
                true,
            );
        }
        matrix.copy_from_slice(&next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orthogonalised_matrices_have_singular_values_near_one() {
        for (rows, columns) in [(8, 20), (20, 8), (12, 16)] {
            let mut x: Vec<f32> = (0..rows * columns).map(|i| ((i * i) as f32 * 0.7).sin()).collect();
            orthogonalise(&mut x, rows, columns);
            let square: f32 = x.iter().map(|value| value * value).sum();
            let mean = square / rows.min(columns) as f32;
            assert!((0.6..1.3).contains(&mean), "{rows}x{columns}: mean square singular value {mean}");
        }
    }

    #[test]
    fn adamw_follows_its_formula_for_two_steps() {
        let rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.99, weight_decay: 0.1 };
        let (mut slot, device) = (Slot::default(), Device::Cpu);
        let mut parameter = Tensor::from_vec(vec![1.0f32], 1, &device).unwrap();
        let (mut p, mut m, mut v) = (1.0f64, 0.0, 0.0);
        for (step, g) in [(1, 0.5f64), (2, -2.0)] {
            let gradient = Tensor::from_vec(vec![g as f32], 1, &device).unwrap();
            parameter = update(rule, &mut slot, &parameter, &gradient, 0.1, 1.0, step).unwrap();
            m = 0.9 * m + 0.1 * g;
            v = 0.99 * v + 0.01 * g * g;
            let (mh, vh) = (m / (1.0 - 0.9f64.powi(step as i32)), v / (1.0 - 0.99f64.powi(step as i32)));
            p -= 0.1 * (mh / (vh.sqrt() + 1e-8) + 0.1 * p);
            let got = f64::from(parameter.to_vec1::<f32>().unwrap()[0]);
            assert!((got - p).abs() < 1e-6, "step {step}: {got} {p}");
        }
    }
}
