//! A report before it is written in a format: blocks of plain text. The formats escape.

use super::{Tone, plot::Plot};
use crate::data::{Message, Role};

/// A report.
#[derive(Debug, Clone, Default)]
pub struct Document {
    pub title: String,
    pub subtitle: String,
    pub blocks: Vec<Block>,
}

#[derive(Debug, Clone)]
pub enum Block {
    /// The start of a section.
    Heading(String),
    Subheading(String),
    Text(String),
    /// A statement that stands out: the verdict.
    Statement(Tone, String),
    List(Vec<String>),
    Table(Table),
    /// Names and values.
    Facts(Vec<(String, String)>),
    /// A text in a fixed-width font.
    Code(String),
    /// Plots side by side, and what they show; formats without plots show the caption alone.
    Plots(Vec<Plot>, String),
    /// Blocks that are folded away at first.
    Details(String, Vec<Block>),
    /// Conversations side by side.
    Conversations(Vec<Transcript>),
}

/// The conversation of an episode.
#[derive(Debug, Clone)]
pub struct Transcript {
    pub title: String,
    pub tone: Tone,
    pub messages: Vec<Message>,
    /// How the episode ended.
    pub ending: String,
}

/// Who speaks in a message, and the error that it is.
pub fn speaker(message: &Message) -> String {
    let error = message.error();
    let who = match (message.role, message.tool()) {
        // A turn that could not be read.
        (Role::Tool, "") => "error".to_owned(),
        (Role::Tool, tool) => format!("{} of {tool}", if error.is_some() { "error" } else { "result" }),
        (role, _) => role.name().to_owned(),
    };
    match error {
        Some(error) => format!("{who} ({error})"),
        None => who,
    }
}

#[derive(Debug, Clone, Default)]
pub struct Table {
    pub head: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

#[derive(Debug, Clone, Default)]
pub struct Cell {
    pub text: String,
    pub tone: Tone,
    /// A number, aligned to the right.
    pub is_number: bool,
    /// A name or a quotation, in a fixed-width font.
    pub is_code: bool,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    pub fn code(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_code: true, ..Self::default() }
    }

    pub fn number(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_number: true, ..Self::default() }
    }

    /// Nothing for zero.
    pub fn count(count: impl Into<u64>) -> Self {
        let count = count.into();
        Self::number(if count == 0 { String::new() } else { count.to_string() })
    }

    #[must_use]
    pub fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }
}

impl Table {
    pub fn new<const N: usize>(head: [&str; N]) -> Self {
        Self { head: head.map(str::to_owned).into(), rows: Vec::new() }
    }

    /// A row for each item, as cells with the names of their columns.
    pub fn of<'n, T, const N: usize>(
        items: impl IntoIterator<Item = T>,
        row: impl Fn(T) -> [(&'n str, Cell); N],
    ) -> Self {
        let mut table = Self::default();
        for item in items {
            let (head, cells) = row(item).map(|(name, cell)| (name.to_owned(), cell)).into_iter().unzip();
            table.head = head;
            table.rows.push(cells);
        }
        table
    }

    pub fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }
}

impl Document {
    pub fn heading(&mut self, text: &str) {
        self.blocks.push(Block::Heading(text.to_owned()));
    }

    pub fn subheading(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Subheading(text.into()));
    }

    pub fn text(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Text(text.into()));
    }

    pub fn push(&mut self, block: Block) {
        self.blocks.push(block);
    }

    /// Adds a table unless it has no rows.
    pub fn table(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.blocks.push(Block::Table(table));
        }
    }
}
