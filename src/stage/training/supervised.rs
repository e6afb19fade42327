//! Supervised training, step by step.

use crate::{
    data::Step,
    engine::{Example, Supervised, Trainer},
    error::{At, Interrupted, Result},
    stage::{
        Context,
        training::{TrainingError, checkpoint},
    },
    usage::Usage,
};

/// The steps of a supervised training.
pub struct Steps<'a> {
    /// The examples of each step.
    pub batches: &'a [Vec<&'a Example>],
    /// Splits the examples of a step into microbatches.
    pub split: &'a dyn Fn(&[&Example]) -> Supervised,
    /// The optimizer's learning rate of a step.
    pub learning_rate: &'a dyn Fn(u64) -> f64,
    pub max_gradient_norm: f64,
    /// Ends when the mean loss of the last [`RECENT`] steps is at most this.
    pub stop_loss: Option<f64>,
    pub held_out: Option<HeldOut>,
}

/// Examples that are not trained on. Their loss is measured after each pass.
pub struct HeldOut {
    pub examples: Supervised,
    /// Steps of a pass.
    pub pass: usize,
    /// Ends after the first pass that does not lower their loss, and goes back to the weights before it.
    pub stops: bool,
}

/// Steps whose mean loss decides about the end.
const RECENT: usize = 8;

impl Steps<'_> {
    /// Trains in place, from the last checkpoint on. One row per step, those before the checkpoint included.
    ///
    /// If held-out examples stop the training, checkpoints are those of the passes that lowered their loss.
    ///
    /// # Errors
    /// If the run is interrupted, a step fails, or a checkpoint cannot be written.
    pub fn run(&self, trainer: &mut Trainer, context: &Context) -> Result<Vec<Step>> {
        context.observer.phase("training steps", self.batches.len() as u64);
        let done = checkpoint::load(trainer, context)?.into_iter().enumerate();
        let mut rows: Vec<Step> = done.map(|(index, numbers)| row(context, index, numbers)).collect();
        context.observer.skip(rows.len() as u64);
        for (index, examples) in self.batches.iter().enumerate().skip(rows.len()) {
            let stops = self.held_out.as_ref().filter(|held| held.stops);
            // In the middle of a pass, what the weights are worth is not known.
            if self.is_done(&rows) && stops.is_none_or(|held| index.is_multiple_of(held.pass)) {
                let (loss, all) = (self.stop_loss.unwrap_or_default(), self.batches.len());
                context.observer.note(&format!("the loss is at {loss} after {index} of {all} steps"));
                break;
            }
            if context.cancel.is_cancelled() {
                return Err(Interrupted.into());
            }
            let supervised = (self.split)(examples);
            let learning_rate = (self.learning_rate)(index as u64);
            let step = supervised.step(trainer, learning_rate, self.max_gradient_norm);
            let (loss, report) = step.at(|| format!("step {index}"))?;
            let tokens = supervised.batches.iter().map(|batch| batch.tree.tokens.len() as u64).sum();
            rows.push(Step {
                stage: context.stage.clone(),
                step: index as u32,
                learning_rate,
                loss,
                gradient_norm: report.gradient_norm,
                tokens,
                tokens_unshared: examples.iter().map(|(tokens, _)| tokens.len() as u64).sum(),
                loss_tokens: supervised.tokens as u64,
                ..Step::default()
            });
            context.meter.add(Usage { trained_tokens: tokens, ..Usage::default() });
            let mut is_due = checkpoint::is_due(index + 1, self.batches.len());
            if let Some(held) = &self.held_out {
                let is_passed = (index + 1).is_multiple_of(held.pass);
                if is_passed {
                    let lowest = rows.iter().filter_map(|step| step.held_out_loss).reduce(f64::min);
                    let loss = held.examples.loss(trainer).at(|| format!("step {index}"))?;
                    rows[index].held_out_loss = Some(loss);
                    if held.stops && lowest.is_some_and(|lowest| loss >= lowest) {
                        if checkpoint::load::<NUMBERS>(trainer, context)?.is_empty() {
                            return Err(TrainingError::Checkpoint.into());
                        }
                        context.observer.note(&format!(
                            "pass {} has a loss of {loss:.4} on held-out episodes: the weights are those before it",
                            (index + 1) / held.pass,
                        ));
                        break;
                    }
                }
                is_due = if held.stops { is_passed } else { is_due };
            }
            if is_due {
                checkpoint::save(trainer, &rows.iter().map(numbers).collect::<Vec<_>>(), context)?;
            }
            context.observer.advance(1);
            context.observer.status(&format!("loss {loss:.4} · gradient norm {:.2}", report.gradient_norm));
        }
        Ok(rows)
    }

    fn is_done(&self, rows: &[Step]) -> bool {
        let recent = rows.len().checked_sub(RECENT).map(|from| &rows[from..]);
        let mean = recent.map(|steps| steps.iter().map(|step| step.loss).sum::<f64>() / RECENT as f64);
        mean.zip(self.stop_loss).is_some_and(|(mean, most)| mean <= most)
    }
}

const NUMBERS: usize = 7;

/// What does not follow from a step's place. Counts of tokens are exact as numbers; a loss that was not measured is none.
fn numbers(step: &Step) -> [f64; NUMBERS] {
    let Step { learning_rate, loss, gradient_norm, tokens, tokens_unshared, loss_tokens, .. } = step;
    let [tokens, tokens_unshared, loss_tokens] =
        [tokens, tokens_unshared, loss_tokens].map(|count| *count as f64);
    let held_out = step.held_out_loss.unwrap_or(f64::NAN);
    [*learning_rate, *loss, *gradient_norm, held_out, tokens, tokens_unshared, loss_tokens]
}

/// The row of a step with these [`numbers`].
fn row(context: &Context, index: usize, numbers: [f64; NUMBERS]) -> Step {
    let [learning_rate, loss, gradient_norm, held_out, counts @ ..] = numbers;
    let [tokens, tokens_unshared, loss_tokens] = counts.map(|count| count as u64);
    Step {
        stage: context.stage.clone(),
        step: index as u32,
        learning_rate,
        loss,
        gradient_norm,
        tokens,
        tokens_unshared,
        loss_tokens,
        held_out_loss: Some(held_out).filter(|loss| !loss.is_nan()),
        ..Step::default()
    }
}
