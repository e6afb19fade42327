//! What a database says of its tables: types of columns, keys, references, and how many values there are. From the standard
//! catalogs, and from what the server's own tools describe.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use regex::Regex;

use super::{
    super::{
        graph::{Graph, SuccessfulCall},
        tools::ToolProfile,
    },
    Dialect, answer, quoted,
};
use crate::harvest::Record;

/// Columns of a table that are counted.
const COUNTED: usize = 40;

/// The catalogs of a kind of database: of tables, of columns, of keys, and of references.
pub struct Catalog {
    pub tables: &'static str,
    pub details: &'static [&'static str],
}

pub const SQLITE: Catalog = Catalog {
    tables: "SELECT name AS table_name, type AS kind FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name",
    details: &[
        "SELECT m.name AS table_name, p.name AS column_name, p.type AS data_type, p.pk AS key_place FROM sqlite_master AS m \
         JOIN pragma_table_info(m.name) AS p WHERE m.type IN ('table', 'view') ORDER BY m.name, p.cid",
        "SELECT m.name AS table_name, f.id AS reference, f.\"from\" AS column_name, f.\"table\" AS other_table, \
         f.\"to\" AS other_column FROM sqlite_master AS m JOIN pragma_foreign_key_list(m.name) AS f WHERE m.type = 'table' \
         ORDER BY m.name, f.id, f.seq",
    ],
};

pub const STANDARD: Catalog = Catalog {
    tables: "SELECT table_name, table_type AS kind FROM information_schema.tables WHERE table_schema NOT IN \
             ('information_schema', 'pg_catalog', 'mysql', 'performance_schema', 'sys') ORDER BY table_name",
    details: &[
        "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema NOT IN \
         ('information_schema', 'pg_catalog', 'mysql', 'performance_schema', 'sys') ORDER BY table_name, ordinal_position",
        "SELECT k.table_name, k.column_name, k.ordinal_position AS key_place FROM information_schema.table_constraints AS c \
         JOIN information_schema.key_column_usage AS k ON k.constraint_name = c.constraint_name \
         AND k.table_schema = c.table_schema AND k.table_name = c.table_name \
         WHERE c.constraint_type = 'PRIMARY KEY' ORDER BY k.table_name, k.ordinal_position",
        "SELECT k.table_name, k.constraint_name AS reference, k.column_name, u.table_name AS other_table, \
         u.column_name AS other_column FROM information_schema.referential_constraints AS r \
         JOIN information_schema.key_column_usage AS k ON k.constraint_schema = r.constraint_schema \
         AND k.constraint_name = r.constraint_name JOIN information_schema.key_column_usage AS u \
         ON u.constraint_schema = r.unique_constraint_schema AND u.constraint_name = r.unique_constraint_name \
         AND u.ordinal_position = k.position_in_unique_constraint ORDER BY k.table_name, k.ordinal_position",
        "SELECT table_name, constraint_name AS reference, column_name, referenced_table_name AS other_table, \
         referenced_column_name AS other_column FROM information_schema.key_column_usage \
         WHERE referenced_table_name IS NOT NULL ORDER BY table_name, ordinal_position",
    ],
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Number,
    Text,
    Other,
}

impl Type {
    /// None if the words say no type that is known.
    fn of(declared: &str) -> Option<Self> {
        let declared = declared.trim().to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| declared.contains(word));
        match () {
            () if says(&["interval", "point", "bool", "blob", "bytea", "json", "[]"]) => Some(Self::Other),
            () if says(&["char", "text", "clob", "uuid", "enum", "date", "time"]) => Some(Self::Text),
            () if says(&["int", "serial", "real", "float", "double", "num", "dec", "money"]) => {
                Some(Self::Number)
            }
            () => None,
        }
    }
}

/// A column that refers to another table, and the other's column if it is said.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    pub column: String,
    pub table: String,
    pub key: Option<String>,
}

/// How many rows a table has, with a value in a column, and how many different ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    pub rows: usize,
    pub filled: usize,
    pub different: usize,
    /// SQLite's types of the values.
    kinds: Option<BTreeSet<String>>,
}

impl Counts {
    /// Whether the types of the values themselves are known, and not only what is declared.
    pub fn has_types(&self) -> bool {
        self.kinds.is_some()
    }
}

#[derive(Debug, Clone, Default)]
pub struct Schema {
    types: BTreeMap<String, Type>,
    /// The columns of the primary key.
    pub keys: Vec<String>,
    pub references: Vec<Declared>,
    pub is_view: bool,
    counts: BTreeMap<String, Counts>,
}

/// The query that counts the values of each column, and those of several together.
pub fn counting(
    table: &str,
    columns: &[String],
    full_name: Option<(&str, &str)>,
    dialect: Dialect,
) -> String {
    let one = |name: &str, expression: &str| {
        let name = name.replace('\'', "''");
        let kinds = match dialect {
            Dialect::Sqlite => format!(", GROUP_CONCAT(DISTINCT TYPEOF({expression})) AS kinds"),
            Dialect::Other => String::new(),
        };
        format!(
            "SELECT '{name}' AS column_name, COUNT(*) AS total, COUNT({expression}) AS filled, \
             COUNT(DISTINCT {expression}) AS different{kinds} FROM {}",
            quoted(table)
        )
    };
    let mut parts: Vec<String> =
        columns.iter().take(COUNTED).map(|column| one(column, &quoted(column))).collect();
    parts.extend(full_name.map(|(name, expression)| one(name, expression)));
    parts.join(" UNION ALL ")
}

fn of<'r>(record: &'r Record, names: &[&str]) -> Option<&'r str> {
    let named = |name: &&str| record.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    names.iter().find_map(named).map(|field| field.value.as_str())
}

fn records<'g>(graph: &'g Graph, query: &str) -> impl Iterator<Item = &'g Record> {
    answer(graph, query).into_iter().flat_map(|seen| &seen.reading.lists).flat_map(|list| &list.records)
}

/// The tables and views in the catalogs, and whether these show all.
pub fn tables(graph: &Graph) -> (Vec<&str>, bool) {
    let catalogs = || [SQLITE.tables, STANDARD.tables].into_iter();
    let names = catalogs().flat_map(|tables| records(graph, tables));
    let names = names.filter_map(|record| of(record, &["table_name"])).collect();
    let lists = catalogs().filter_map(|tables| answer(graph, tables)).flat_map(|seen| &seen.reading.lists);
    (names, lists.clone().all(|list| list.is_list))
}

impl Schema {
    pub fn of(graph: &Graph, profiles: &[ToolProfile], table: &str, query_tool: &str) -> Self {
        let mut schema = Self::default();
        let describes = |seen: &&SuccessfulCall| {
            matches!(&*seen.args, [only] if only.leaf.as_deref() == Some(table))
                && profiles[seen.tool].name != query_tool
        };
        for seen in graph.seen.iter().filter(describes) {
            schema.add_described(seen);
        }
        for catalog in [&SQLITE, &STANDARD] {
            let is_own = |record: &&Record| of(record, &["table_name"]) == Some(table);
            for record in records(graph, catalog.tables).filter(is_own) {
                let kind = of(record, &["kind"]).unwrap_or_default();
                schema.is_view |= kind.to_lowercase().contains("view");
            }
            for query in catalog.details {
                schema.add_catalog(&records(graph, query).filter(is_own).collect::<Vec<_>>());
            }
        }
        // Parts of one reference are several columns together, which no single column replaces.
        schema.references.dedup();
        schema
    }

    fn add_catalog(&mut self, records: &[&Record]) {
        let mut parts: BTreeMap<&str, Vec<Declared>> = BTreeMap::new();
        let mut keys: BTreeMap<usize, String> = BTreeMap::new();
        for record in records {
            let Some(column) = of(record, &["column_name"]) else { continue };
            if let Some(kind) = of(record, &["data_type"]).and_then(Type::of) {
                self.types.insert(column.to_owned(), kind);
            }
            let place = of(record, &["key_place"]).and_then(|place| place.parse().ok());
            if let Some(place) = place.filter(|place| *place > 0) {
                keys.insert(place, column.to_owned());
            }
            if let Some(table) = of(record, &["other_table"]).filter(|table| !table.is_empty()) {
                let key = of(record, &["other_column"]).filter(|key| !key.is_empty()).map(str::to_owned);
                let declared = Declared { column: column.to_owned(), table: table.to_owned(), key };
                parts.entry(of(record, &["reference"]).unwrap_or_default()).or_default().push(declared);
            }
        }
        if !keys.is_empty() {
            self.keys = keys.into_values().collect();
        }
        let single = parts.into_values().filter(|parts| parts.len() == 1).flatten();
        for declared in single {
            if !self.references.iter().any(|known| known.column == declared.column) {
                self.references.push(declared);
            }
        }
    }

    /// Columns as records, or as they are declared: `id INTEGER PRIMARY KEY, name TEXT`.
    fn add_described(&mut self, seen: &SuccessfulCall) {
        let mut keys = Vec::new();
        for record in seen.reading.lists.iter().flat_map(|list| &list.records) {
            let Some(column) = of(record, &["column_name", "name", "column", "field"]) else { continue };
            let Some(kind) = of(record, &["data_type", "type", "column_type"]) else { continue };
            if let Some(kind) = Type::of(kind) {
                self.types.insert(column.to_owned(), kind);
            }
            let is_key = of(record, &["pk", "key", "primary_key", "is_primary_key"]).is_some_and(|key| {
                key.eq_ignore_ascii_case("pri")
                    || key.eq_ignore_ascii_case("true")
                    || key.parse().is_ok_and(|place: usize| place > 0)
            });
            keys.extend(is_key.then(|| column.to_owned()));
        }
        if !keys.is_empty() {
            self.keys = keys;
        }
        self.add_declared(&seen.text);
    }

    fn add_declared(&mut self, text: &str) {
        let (Some(of_column), Some(key), Some(foreign)) = (&*COLUMN, &*KEY, &*FOREIGN) else { return };
        let declaration = DECLARATION.as_ref().and_then(|create| create.find(text));
        let body = declaration.map_or(text, |found| &text[found.end()..]);
        let is_list = declaration.is_some() || !text.trim().contains('\n') && !text.contains(['{', '[']);
        if !is_list {
            return;
        }
        let mut keys = Vec::new();
        for part in parts(body) {
            if let Some(found) = key.captures(part) {
                keys.extend(found[1].split(',').map(unquoted));
            }
            if let Some(found) = foreign.captures(part) {
                self.refer(
                    unquoted(&found[1]),
                    unquoted(&found[2]),
                    found.get(3).map(|key| unquoted(key.as_str())),
                );
                continue;
            }
            let Some(found) = of_column.captures(part) else { continue };
            let Some(kind) = Type::of(&found[2]) else { continue };
            let (column, rest) = (unquoted(&found[1]), found[3].to_lowercase());
            self.types.insert(column.clone(), kind);
            if rest.contains("primary key") {
                keys.push(column.clone());
            }
            if let Some(found) = REFERENCES.as_ref().and_then(|of| of.captures(&found[3])) {
                self.refer(column, unquoted(&found[1]), found.get(2).map(|key| unquoted(key.as_str())));
            }
        }
        if !keys.is_empty() {
            self.keys = keys;
        }
    }

    fn refer(&mut self, column: String, table: String, key: Option<String>) {
        if !self.references.iter().any(|known| known.column == column) {
            self.references.push(Declared { column, table, key });
        }
    }

    pub fn count<'r>(&mut self, records: impl Iterator<Item = &'r Record>) {
        for record in records {
            let number = |name: &str| of(record, &[name]).and_then(|count| count.parse().ok());
            let Some(column) = of(record, &["column_name"]) else { continue };
            let (Some(rows), Some(filled), Some(different)) =
                (number("total"), number("filled"), number("different"))
            else {
                continue;
            };
            let kinds = of(record, &["kinds"]);
            let kinds = kinds.map(|kinds| kinds.split(',').map(|kind| kind.trim().to_owned()).collect());
            self.counts.insert(column.to_owned(), Counts { rows, filled, different, kinds });
        }
    }

    pub fn kind(&self, column: &str) -> Option<Type> {
        let stored = self.counts.get(column).and_then(|counts| counts.kinds.as_ref());
        let stored = stored.map(|kinds| {
            let mut kinds = kinds.iter().map(String::as_str).filter(|kind| *kind != "null").peekable();
            kinds.peek()?;
            let kinds: BTreeSet<&str> = kinds.collect();
            Some(match () {
                () if kinds.is_subset(&["integer", "real"].into()) => Type::Number,
                () if kinds.iter().eq(&["text"]) => Type::Text,
                () => Type::Other,
            })
        });
        stored.flatten().or_else(|| self.types.get(column).copied())
    }

    pub fn counts(&self, column: &str) -> Option<&Counts> {
        self.counts.get(column)
    }

    /// The rows of the table, if they are counted.
    pub fn rows(&self) -> Option<usize> {
        self.counts.values().next().map(|counts| counts.rows)
    }
}

fn pattern(text: &str) -> Option<Regex> {
    Regex::new(text).ok()
}

static DECLARATION: LazyLock<Option<Regex>> =
    LazyLock::new(|| pattern(r"(?is)create\s+(?:temp\w*\s+)?table\s[^(]*\("));
static COLUMN: LazyLock<Option<Regex>> =
    LazyLock::new(|| pattern(r#"(?s)^\s*("[^"]+"|`[^`]+`|\[[^\]]+\]|\w+)\s+([A-Za-z]\w*)(.*)$"#));
static KEY: LazyLock<Option<Regex>> = LazyLock::new(|| pattern(r"(?i)primary\s+key\s*\(([^)]*)\)"));
static FOREIGN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    pattern(r#"(?i)foreign\s+key\s*\(([^,)]*)\)\s*references\s+([^\s(]+)\s*(?:\(([^,)]*)\))?"#)
});
static REFERENCES: LazyLock<Option<Regex>> =
    LazyLock::new(|| pattern(r#"(?i)references\s+([^\s(]+)\s*(?:\(([^,)]*)\))?"#));

fn unquoted(name: &str) -> String {
    name.trim().trim_matches(|letter| "\"`[]'".contains(letter)).to_owned()
}

/// The parts of a declaration, between commas that are in no parentheses, up to the parenthesis that closes it.
fn parts(body: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, letter) in body.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' if depth == 0 => {
                parts.push(&body[start..at]);
                return parts;
            }
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&body[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&body[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_gives_types_keys_and_references() {
        let mut schema = Schema::default();
        schema.add_declared(
            "CREATE TABLE lines (\"order no\" INTEGER NOT NULL REFERENCES orders(no), place INT, zip TEXT, price DECIMAL(10, 2),\n\
             shop_id INT, PRIMARY KEY (\"order no\", place), FOREIGN KEY (shop_id) REFERENCES shops (id))",
        );
        assert_eq!(schema.keys, ["order no", "place"]);
        assert_eq!(
            ["order no", "zip", "price"].map(|column| schema.kind(column)),
            [Type::Number, Type::Text, Type::Number].map(Some)
        );
        let declared = |column: &str, table: &str, key: &str| Declared {
            column: column.into(),
            table: table.into(),
            key: Some(key.into()),
        };
        assert_eq!(
            schema.references,
            [declared("order no", "orders", "no"), declared("shop_id", "shops", "id")]
        );
        let mut line = Schema::default();
        line.add_declared("id integer, name text, since year");
        assert_eq!(
            [line.kind("id"), line.kind("name"), line.kind("since")],
            [Some(Type::Number), Some(Type::Text), None]
        );
    }
}
