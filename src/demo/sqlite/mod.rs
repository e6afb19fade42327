//! A small company in SQLite behind three tools. The database is read-only at every level that SQLite offers.

mod company;
mod database;

use rmcp::model::Tool;

use super::server::{Answer, Arguments, Demo, Effect::Reads, tool};
use database::table_names;

pub(super) use database::Database;
pub use database::DatabaseError;

impl Demo for Database {
    fn name(&self) -> &'static str {
        "mcprl-demo-sqlite"
    }

    fn tools(&self) -> Vec<Tool> {
        vec![
            tool("list_tables", "Lists the tables.", &[], Reads),
            tool("describe_table", "Lists the columns of a table.", &["table_name"], Reads),
            tool("run_query", "Runs a SQL SELECT query.", &["sql"], Reads),
        ]
    }

    fn call(&self, tool: &str, arguments: Arguments<'_>) -> Option<Answer> {
        Some(match tool {
            "list_tables" => Ok(table_names()),
            "describe_table" => arguments.text("table_name").and_then(|table| self.describe_table(table)),
            "run_query" => arguments.text("sql").and_then(|sql| self.run_query(sql)),
            _ => return None,
        })
    }
}
