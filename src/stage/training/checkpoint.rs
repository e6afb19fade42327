//! Training checkpoints: a killed training resumes from its last checkpoint and ends with the same bytes. Each is a
//! safetensors file, written tensor by tensor.

use candle_core::{Device, Tensor};

use crate::{
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

/// Name of the tensor with the steps' numbers, a row each. No name of a trainer's state.
const STEPS: &str = "step_numbers";

/// Records parameters, optimizer state and what is to be known of every step so far.
pub fn save<const N: usize>(trainer: &mut Trainer, steps: &[[f64; N]], context: &Context) -> Result<()> {
    let mut tensors = trainer.state()?;
    let numbers = Tensor::from_vec(steps.concat(), (steps.len(), N), &Device::Cpu);
    tensors.insert(STEPS.into(), numbers.map_err(EngineError::from)?);
    context.rows.replace_checkpoint(&|path| Ok(write_safetensors(path, &tensors)?))
}

/// Loads the last matching checkpoint, if any. Returns the numbers of the steps done by then, or none.
pub fn load<const N: usize>(trainer: &mut Trainer, context: &Context) -> Result<Vec<[f64; N]>> {
    let Some(path) = context.rows.checkpoint() else { return Ok(Vec::new()) };
    let Ok(tensors) = read_stored(&path) else { return Ok(Vec::new()) };
    let steps = tensors.get(STEPS).and_then(|steps| steps.to_vec2::<f64>().ok());
    let steps: Option<Vec<[f64; N]>> =
        steps.and_then(|steps| steps.into_iter().map(|step| step.try_into().ok()).collect());
    match steps {
        Some(steps) if trainer.resume(&tensors)? => Ok(steps),
        _ => Ok(Vec::new()),
    }
}
