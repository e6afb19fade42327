//! Counts the right answers in a table of episodes: `cargo run -p mcprl-store --example right_answers -- cache/runs/RUN/exam/episodes.parquet`.
#![expect(clippy::print_stdout, reason = "an example")]

use std::{error::Error, path::PathBuf};

use mcprl_store::data::{self, Trajectory};

fn main() -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(std::env::args().nth(1).ok_or("which file?")?);
    let episodes: Vec<Trajectory> = data::read(&path)?;
    let right = episodes.iter().filter(|episode| episode.correct == Some(true)).count();
    println!("{right} of {} episodes have the right answer", episodes.len());
    Ok(())
}
