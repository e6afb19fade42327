//! Prints the prompt that a model's chat template writes for a task and a tool, and reads a call back:
//! `cargo run -p mcprl-chat --example prompt -- FOLDER "How many orders are open?"`.
#![expect(clippy::print_stdout, reason = "an example")]

use std::{error::Error, path::PathBuf};

use mcprl_chat::Chat;
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("which folder?")?);
    let task = arguments.next().unwrap_or_else(|| "How many orders are open?".to_owned());
    let tool = json!({"type": "function", "function": {
        "name": "count_orders", "description": "Counts orders.",
        "parameters": {"type": "object", "properties": {"state": {"type": "string"}}},
    }});
    let chat = Chat::load(&folder)?.with_tools("You use tools.", &[tool])?;
    let prompt = chat.prompt(&task)?;
    println!("{}", chat.decode(&[prompt.shared, prompt.task].concat()));
    Ok(())
}
