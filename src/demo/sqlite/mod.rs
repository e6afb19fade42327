//! A small company in SQLite behind three tools. The database is read-only at every level that SQLite offers.

mod company;
mod database;

use rmcp::model::Tool;

use super::server::{Answer, Arguments, Demo, Effect::Reads, tool};
use database::Database;

pub use database::DatabaseError;

pub(super) struct Company(Database);

impl Company {
    pub(super) fn open() -> Result<Self, DatabaseError> {
        Database::open().map(Self)
    }
}

impl Demo for Company {
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
        let Self(database) = self;
        Some(match tool {
            "list_tables" => Ok(database.list_tables()),
            "describe_table" => arguments.text("table_name").and_then(|table| database.describe_table(table)),
            "run_query" => arguments.text("sql").and_then(|sql| database.run_query(sql)),
            _ => return None,
        })
    }
}
