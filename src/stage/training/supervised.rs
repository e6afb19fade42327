//! Supervised training, step by step.

use crate::{
    data::Step,
    engine::{Example, Supervised, Trainer},
    error::{At, Interrupted, Result},
    stage::{Context, training::checkpoint},
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
    /// The learning rate in the log is this multiple of the optimizer's.
    pub logged: f64,
    pub max_gradient_norm: f64,
    /// Ends when the mean loss of the last [`RECENT`] steps is at most this.
    pub stop_loss: Option<f64>,
}

/// Steps whose mean loss decides about the end.
const RECENT: usize = 8;

impl Steps<'_> {
    /// Trains in place, from the last checkpoint on. One row per step, those before the checkpoint included.
    ///
    /// # Errors
    /// If the run is interrupted, a step fails, or a checkpoint cannot be written.
    pub fn run(&self, trainer: &mut Trainer, context: &Context) -> Result<Vec<Step>> {
        context.observer.phase("training steps", self.batches.len() as u64);
        let done = checkpoint::load(trainer, context)?.into_iter().enumerate();
        let mut rows: Vec<Step> = done.map(|(index, numbers)| row(context, index, numbers)).collect();
        context.observer.skip(rows.len() as u64);
        for (index, examples) in self.batches.iter().enumerate().skip(rows.len()) {
            if self.is_done(&rows) {
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
                learning_rate: learning_rate * self.logged,
                loss,
                gradient_norm: report.gradient_norm,
                tokens,
                tokens_unshared: examples.iter().map(|(tokens, _)| tokens.len() as u64).sum(),
                loss_tokens: supervised.tokens as u64,
                ..Step::default()
            });
            context.meter.add(Usage { trained_tokens: tokens, ..Usage::default() });
            if checkpoint::is_due(index + 1, self.batches.len()) {
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

/// What does not follow from a step's place. Counts of tokens are exact as numbers.
fn numbers(step: &Step) -> [f64; 6] {
    let Step { learning_rate, loss, gradient_norm, tokens, tokens_unshared, loss_tokens, .. } = step;
    let [tokens, tokens_unshared, loss_tokens] =
        [tokens, tokens_unshared, loss_tokens].map(|count| *count as f64);
    [*learning_rate, *loss, *gradient_norm, tokens, tokens_unshared, loss_tokens]
}

/// The row of a step with these [`numbers`].
fn row(context: &Context, index: usize, numbers: [f64; 6]) -> Step {
    let [learning_rate, loss, gradient_norm, counts @ ..] = numbers;
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
        ..Step::default()
    }
}
