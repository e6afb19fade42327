//! Samples from a Hugging Face folder and trains a LoRA adapter on the sample for one step, so that it becomes likelier:
//! `cargo run --release -p mcprl-engine --example sample_and_train -- FOLDER`.
#![expect(clippy::print_stdout, reason = "an example")]

use std::{error::Error, path::PathBuf};

use mcprl_engine::{
    EngineSpec, Rule, Sampler, Sampling, Supervised, Trainer, load_frozen,
    model::{Adapter, AdapterConfig, kernels::Format},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("which folder?")?);
    let spec = EngineSpec::default();
    let devices = spec.open_devices()?;
    let decoder = || load_frozen(&folder, Format::F32, &devices.first.device);

    // Token ids; a tokenizer makes them of text.
    let prompt = [1, 2, 3, 4];
    let sampler = Sampler::new(decoder()?, &devices, &spec)?;
    let sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    let mut sequence = sampler.open(vec![prompt.as_slice().into()], sampling, 7);
    let sampled = sequence.turn(&[], &[], 16).await?;
    println!("sampled {:?}", sampled.tokens);

    let mut decoder = decoder()?;
    Adapter::fresh(&mut decoder, &AdapterConfig::new(8, 16.0), 1)?;
    let rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.0 };
    let mut trainer = Trainer::across(decoder, |parameters| vec![rule; parameters.len()], &devices)?;
    let tokens = [prompt.as_slice(), &sampled.tokens].concat();
    let is_trained = (0..tokens.len()).map(|at| at >= prompt.len()).collect();
    let data = Supervised::packed(&[&(tokens, is_trained)], trainer.workers(), usize::MAX);
    let (before, _) = data.step(&mut trainer, 1e-3, 1.0)?;
    println!("loss {before:.4} → {:.4} nats per token", data.loss(&trainer)?);
    Ok(())
}
