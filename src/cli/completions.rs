//! `mcprl completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
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

impl Completions {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "mcprl", &mut script);
        let script = String::from_utf8_lossy(&script);
        match printer.format {
            OutputFormat::Json => printer.json(&json!({ "shell": self.shell.to_string(), "script": script })),
            OutputFormat::Human => printer.data(&script),
        }
        Ok(Outcome::Success)
    }
}
