//! Tests training steps that do not fit the memory.

use mcprl_base::error::Diagnostic;

use super::*;

/// A trainer of an adapter on two threads that sees this many available bytes.
fn trainer(rank: usize, available: usize) -> Trainer {
    let mut decoder = decoder();
    Adapter::fresh(&mut decoder, &AdapterConfig::new(rank, 8.0), 5).unwrap();
    let devices =
        DeviceSet { model_cache: Some(ModelCache::with_available(available)), ..DeviceSet::cpu(1, 2) };
    let rule = Rule::AdamW { rate: 1e-2, beta1: 0.9, beta2: 0.95, weight_decay: 0.1 };
    Trainer::across(decoder, |all| vec![rule; all.len()], &devices).unwrap()
}

fn step(trainer: &mut Trainer, microbatches: usize) -> Result<StepReport, EngineError> {
    let batches: Vec<_> = (0..microbatches).map(|_| Microbatch::new(&branching()).0).collect();
    trainer.step(&batches, &|_, _, _| 0.01, 1.0, 1.0)
}

/// The least memory, to 16 KiB, in which the first step of one microbatch is accepted.
fn least(rank: usize) -> usize {
    let mut sizes = (1..).map(|size: usize| size << 14);
    sizes.find(|available| step(&mut trainer(rank, *available), 1).is_ok()).unwrap()
}

#[test]
fn concurrent_microbatches_that_do_not_fit_are_refused() {
    let mut trainer = trainer(4, least(4));
    for _ in 0..2 {
        step(&mut trainer, 1).unwrap();
    }
    let refused = step(&mut trainer, 2).unwrap_err();
    assert_eq!(
        (refused.code(), refused.hint().as_deref()),
        ("engine::memory", Some("set recompute = \"always\""))
    );
    step(&mut trainer, 1).unwrap();
}

#[test]
fn gradients_and_moments_of_trained_parameters_count() {
    let values = |rank| AdapterConfig::new(rank, 8.0).size(&config()).unwrap().values;
    let more = values(512) - values(32);
    // Its packed copy, the gradients, one worker's set of gradients, and two moments.
    assert!(least(512) - least(32) >= 5 * 4 * more);
    let refused = step(&mut trainer(512, least(32)), 1).unwrap_err();
    assert!(refused.hint().unwrap().starts_with("set a smaller rank"), "{refused}");
}
