//! Training checkpoints: a killed training resumes from its last checkpoint and ends with the same bytes. Each is a
//! safetensors file, written tensor by tensor.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};

use crate::{
    data::Step,
    engine::{EngineError, Trainer},
    error::Result,
    model::{read_stored, write_safetensors},
    stage::Context,
};

/// Most checkpoints per training. Each writes the parameters and the optimizer's state to disk.
const CHECKPOINTS: usize = 8;

/// Whether to record a checkpoint after this many of all steps.
pub fn is_due(done: usize, steps: usize) -> bool {
    done < steps && done.is_multiple_of(steps.div_ceil(CHECKPOINTS))
}

/// Columns of the step log that do not follow from the step's number.
const NUMBERS: [fn(&mut Step) -> &mut f64; 3] =
    [|step| &mut step.learning_rate, |step| &mut step.loss, |step| &mut step.gradient_norm];
const COUNTS: [fn(&mut Step) -> &mut u64; 3] =
    [|step| &mut step.tokens, |step| &mut step.tokens_unshared, |step| &mut step.loss_tokens];

/// Records parameters, optimizer state and the rows written so far.
pub fn save(trainer: &mut Trainer, steps: &[Step], context: &Context) -> Result<()> {
    let mut tensors = trainer.state()?;
    let mut steps = steps.to_vec();
    for (index, number) in NUMBERS.iter().enumerate() {
        let column: Vec<f64> = steps.iter_mut().map(|step| *number(step)).collect();
        tensors.insert(format!("number.{index}"), vector(column)?);
    }
    for (index, count) in COUNTS.iter().enumerate() {
        let column: Vec<i64> = steps.iter_mut().map(|step| count(step).cast_signed()).collect();
        tensors.insert(format!("count.{index}"), vector(column)?);
    }
    context.rows.replace_checkpoint(&|path| Ok(write_safetensors(path, &tensors)?))
}

/// Loads the last matching checkpoint, if any. Returns the rows written by then, or none.
pub fn load(trainer: &mut Trainer, context: &Context) -> Result<Vec<Step>> {
    let Some(path) = context.rows.checkpoint() else { return Ok(Vec::new()) };
    let Ok(tensors) = read_stored(&path) else { return Ok(Vec::new()) };
    let Some(mut steps) = rows(&tensors, &context.stage) else { return Ok(Vec::new()) };
    if !trainer.resume(&tensors)? {
        steps.clear();
    }
    Ok(steps)
}

fn rows(tensors: &BTreeMap<String, Tensor>, stage: &str) -> Option<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, number) in NUMBERS.iter().enumerate() {
        let column = tensors.get(&format!("number.{index}"))?.to_vec1::<f64>().ok()?;
        let first = steps.len();
        let step = |step| Step { stage: stage.to_owned(), step: step as u32, ..Step::default() };
        steps.extend((first..column.len()).map(step));
        steps.iter_mut().zip(column).for_each(|(step, value)| *number(step) = value);
    }
    for (index, count) in COUNTS.iter().enumerate() {
        let column = tensors.get(&format!("count.{index}"))?.to_vec1::<i64>().ok()?;
        steps.iter_mut().zip(column).for_each(|(step, value)| *count(step) = value.cast_unsigned());
    }
    Some(steps)
}

fn vector<T: candle_core::WithDType>(values: Vec<T>) -> Result<Tensor, EngineError> {
    let length = values.len();
    Ok(Tensor::from_vec(values, length, &Device::Cpu)?)
}
