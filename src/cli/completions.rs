//! `mcprl completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde_json::json;

use super::{Arguments, Outcome};
use crate::{error::Result, ui::Printer};

#[derive(Args)]
pub struct Completions {
    shell: Shell,
}

impl Completions {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "mcprl", &mut script);
        let script = String::from_utf8_lossy(&script);
        printer.show(&json!({ "shell": self.shell.to_string(), "script": script }), || script.to_string());
        Ok(Outcome::Success)
    }
}
