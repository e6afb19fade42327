//! `mcprl completions`.

use clap::{Args, CommandFactory, ValueEnum};
use serde_json::json;

use super::{Arguments, Outcome};
use crate::{
    error::Result,
    ui::{OutputFormat, Printer},
};

#[derive(Args)]
pub struct Completions {
    shell: Shell,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Completions {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let shell = match self.shell {
            Shell::Bash => clap_complete::Shell::Bash,
            Shell::Zsh => clap_complete::Shell::Zsh,
            Shell::Fish => clap_complete::Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), "mcprl", &mut script);
        let script = String::from_utf8_lossy(&script);
        match printer.format {
            OutputFormat::Json => printer.json(&json!({ "shell": shell.to_string(), "script": script })),
            OutputFormat::Human => printer.data(&script),
        }
        Ok(Outcome::Success)
    }
}
