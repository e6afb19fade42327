//! The demo server's database: read-only, with limits on queries.
//!
//! The file is written once, reopened read-only and unlinked. An authorizer then allows only what a `SELECT` needs. A
//! query is limited in SQLite virtual machine instructions (not time), memory, rows and length, so whether it succeeds
//! does not depend on the load of the machine. Functions whose value changes between calls are refused for the same
//! reason. Error texts help a model to recover: they name the problem, then the alternatives.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rusqlite::{
    Connection, OpenFlags,
    config::DbConfig,
    ffi::ErrorCode,
    hooks::{AuthAction, AuthContext, Authorization},
    limits::Limit,
    types::ValueRef,
};

use super::{
    super::server::Answer,
    company::{self, tables},
};
use crate::text::start_of;

/// Maximum rows of a result that are shown.
const ROWS_SHOWN: usize = 5;
/// Maximum rows of a result that are counted.
const ROWS_COUNTED: usize = 1000;
/// Maximum characters of one value that are shown.
const VALUE_CHARS: usize = 200;
/// Maximum virtual machine instructions of a query: about 0.1 s.
const STEPS: u64 = 4_000_000;
const STEPS_PER_CHECK: u32 = 1000;
/// Maximum bytes of one value and of one statement.
const VALUE_BYTES: i32 = 65_536;
const STATEMENT_BYTES: i32 = 4096;
/// Maximum bytes that SQLite may allocate in the whole process.
const HEAP_BYTES: u32 = 64 << 20;

const ONLY_SELECT: &str = "only SELECT is allowed: the database is read-only";

pub(in crate::demo) struct Database {
    connection: Mutex<Connection>,
    /// Instructions that the current query has executed.
    steps: Arc<AtomicU64>,
}

impl Database {
    /// Builds the company in a temporary file, which is unlinked before this returns.
    pub(in crate::demo) fn open() -> Result<Self, DatabaseError> {
        let file = tempfile::NamedTempFile::new().map_err(DatabaseError::File)?;
        let mut writer = Connection::open(file.path())?;
        writer.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
        company::fill(&mut writer)?;
        drop(writer);

        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(file.path(), flags)?;
        connection.execute_batch(&format!(
            "PRAGMA query_only = ON; PRAGMA temp_store = MEMORY; PRAGMA hard_heap_limit = {HEAP_BYTES};
             SELECT 1 FROM departments, employees, projects LIMIT 0;"
        ))?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        for (limit, value) in [
            (Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES),
            (Limit::SQLITE_LIMIT_SQL_LENGTH, STATEMENT_BYTES),
            (Limit::SQLITE_LIMIT_COLUMN, 64),
            (Limit::SQLITE_LIMIT_EXPR_DEPTH, 64),
            (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 16),
            (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 256),
            (Limit::SQLITE_LIMIT_ATTACHED, 0),
            (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
        ] {
            connection.set_limit(limit, value)?;
        }
        connection.authorizer(Some(authorize))?;
        let steps = Arc::new(AtomicU64::new(0));
        let taken = Arc::clone(&steps);
        let handler = move || {
            let before = taken.fetch_add(u64::from(STEPS_PER_CHECK), Ordering::Relaxed);
            before + u64::from(STEPS_PER_CHECK) > STEPS
        };
        connection.progress_handler(STEPS_PER_CHECK as i32, Some(handler))?;
        Ok(Self { connection: Mutex::new(connection), steps })
    }

    pub(super) fn describe_table(&self, table: &str) -> Answer {
        let found = tables().find(|(name, _)| name.eq_ignore_ascii_case(table.trim()));
        let (_, columns) =
            found.ok_or_else(|| format!("no such table: {}\ntables: {}", shortened(table), table_names()))?;
        let columns: Vec<String> = columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
        Ok(columns.join(", "))
    }

    /// Runs one query and renders its first rows.
    pub(super) fn run_query(&self, sql: &str) -> Answer {
        let connection = self.connection.lock();
        self.steps.store(0, Ordering::Relaxed);
        select(&connection, sql).map_err(|error| explain(&error, sql))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error("cannot create a temporary file")]
    File(#[source] std::io::Error),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

/// Allows reads and the pragmas that only describe tables.
fn authorize(context: AuthContext<'_>) -> Authorization {
    const DESCRIBING: [&str; 3] = ["table_info", "table_list", "foreign_key_list"];
    // Their values change between calls, or they reach outside the database.
    const REFUSED: [&str; 13] = [
        "random",
        "randomblob",
        "date",
        "time",
        "datetime",
        "julianday",
        "unixepoch",
        "strftime",
        "timediff",
        "current_date",
        "current_time",
        "current_timestamp",
        "load_extension",
    ];
    let allowed = match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => true,
        AuthAction::Pragma { pragma_name, .. } => is_one_of(pragma_name, &DESCRIBING),
        AuthAction::Function { function_name } => !is_one_of(function_name, &REFUSED),
        _ => false,
    };
    if allowed { Authorization::Allow } else { Authorization::Deny }
}

fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

enum QueryError {
    Sqlite(rusqlite::Error),
    NotAQuery,
    Empty,
}

impl From<rusqlite::Error> for QueryError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn select(connection: &Connection, sql: &str) -> Result<String, QueryError> {
    let mut statement = connection.prepare(sql)?;
    if statement.expanded_sql().is_none_or(|text| text.is_empty()) {
        return Err(QueryError::Empty);
    }
    if statement.column_count() == 0 || !statement.readonly() {
        return Err(QueryError::NotAQuery);
    }
    let header = statement.column_names().map(shortened).collect::<Vec<_>>().join(" | ");
    let columns = statement.column_count();
    let mut lines = vec![header];
    let mut count = 0;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        count += 1;
        if count > ROWS_COUNTED {
            break;
        }
        if count <= ROWS_SHOWN {
            let values = (0..columns).map(|column| row.get_ref(column).map(value_text));
            lines.push(values.collect::<rusqlite::Result<Vec<_>>>()?.join(" | "));
        }
    }
    match count {
        0 => return Ok("(no rows)".into()),
        _ if count > ROWS_COUNTED => lines.push(format!("(more than {ROWS_COUNTED} rows)")),
        _ if count > ROWS_SHOWN => lines.push(format!("({count} rows)")),
        _ => {}
    }
    Ok(lines.join("\n"))
}

/// A value as SQLite would print it, whole numbers without a fraction.
fn value_text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".into(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => {
            // SQLite prints 15 digits, which hides the rounding of binary fractions.
            let digits = format!("{number:.14e}");
            digits.parse().map_or(digits, |rounded: f64| rounded.to_string())
        }
        ValueRef::Text(text) => shortened(&String::from_utf8_lossy(text)),
        ValueRef::Blob(bytes) => format!("({} bytes)", bytes.len()),
    }
}

fn shortened(text: &str) -> String {
    start_of(text, VALUE_CHARS)
}

/// The problem, and on the next lines the alternatives.
fn explain(error: &QueryError, sql: &str) -> String {
    let error = match error {
        QueryError::Sqlite(error) => error,
        QueryError::NotAQuery => return ONLY_SELECT.into(),
        QueryError::Empty => return format!("the query is empty\ntables: {}", table_names()),
    };
    let (code, message) = match error {
        rusqlite::Error::SqliteFailure(error, message) => (error.code, message.clone().unwrap_or_default()),
        rusqlite::Error::SqlInputError { error, msg, .. } => (error.code, msg.clone()),
        rusqlite::Error::MultipleStatement => return "only one statement at a time is allowed".into(),
        other => return other.to_string(),
    };
    match code {
        ErrorCode::OperationInterrupted => {
            "the query was stopped: it takes too long; add conditions or a smaller join".into()
        }
        ErrorCode::OutOfMemory => "the query was stopped: it needs too much memory".into(),
        ErrorCode::TooBig => "the query or one of its values is too long".into(),
        ErrorCode::AuthorizationForStatementDenied if !message.contains("function") => ONLY_SELECT.into(),
        _ if message.starts_with("no such column") || message.starts_with("ambiguous column") => {
            format!("{}{}", shortened(&message), columns_hint(sql))
        }
        _ if message.starts_with("no such table") => {
            format!("{}\ntables: {}", shortened(&message), table_names())
        }
        _ => shortened(&message),
    }
}

/// The columns of the tables that a query names.
fn columns_hint(sql: &str) -> String {
    let words: Vec<&str> = sql.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).collect();
    let named = tables().filter(|(table, _)| is_one_of(table, &words));
    let hints: String = named
        .map(|(table, columns)| {
            let columns: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
            format!("\ncolumns of {table}: {}", columns.join(", "))
        })
        .collect();
    if hints.is_empty() { format!("\ntables: {}", table_names()) } else { hints }
}

pub(super) fn table_names() -> String {
    tables().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn ask(sql: &str) -> Answer {
        Database::open().unwrap().run_query(sql)
    }

    /// The answer to each query; errors are marked with `!`.
    fn answers(queries: &[&str]) -> String {
        let database = Database::open().unwrap();
        let mut text = String::new();
        for sql in queries {
            let (mark, answer) = match database.run_query(sql) {
                Ok(answer) => ("=", answer),
                Err(answer) => ("!", answer),
            };
            writeln!(text, "> {sql}\n{mark} {answer}").unwrap();
        }
        text
    }

    #[test]
    fn a_result_is_a_header_and_at_most_five_rows() {
        insta::assert_snapshot!(answers(&[
            "SELECT emp_id, full_name FROM employees ORDER BY emp_id LIMIT 5",
            "SELECT emp_id FROM employees",
            "SELECT proj_name FROM projects WHERE cost > 5000",
            "SELECT 3.0, 2.50, ROUND(10 / 3.0, 2), AVG(cost), NULL, 1 = 1, x'00ff', 1e20 FROM projects",
            "SELECT a.emp_id FROM employees a, employees b",
        ]), @r"
        > SELECT emp_id, full_name FROM employees ORDER BY emp_id LIMIT 5
        = emp_id | full_name
        1 | David Evans
        2 | Stella Ingram
        3 | Amber Osborne
        4 | Cecil Quick
        5 | Xavier Abbott
        > SELECT emp_id FROM employees
        = emp_id
        1
        2
        3
        4
        5
        (48 rows)
        > SELECT proj_name FROM projects WHERE cost > 5000
        = (no rows)
        > SELECT 3.0, 2.50, ROUND(10 / 3.0, 2), AVG(cost), NULL, 1 = 1, x'00ff', 1e20 FROM projects
        = 3.0 | 2.50 | ROUND(10 / 3.0, 2) | AVG(cost) | NULL | 1 = 1 | x'00ff' | 1e20
        3 | 2.5 | 3.33 | 445.916666666667 | NULL | 1 | (2 bytes) | 100000000000000000000
        > SELECT a.emp_id FROM employees a, employees b
        = emp_id
        1
        1
        1
        1
        1
        (more than 1000 rows)
        ");
    }

    #[test]
    fn an_error_names_the_alternatives() {
        insta::assert_snapshot!(answers(&[
            "SELECT salary FROM employees",
            "SELECT e.salary FROM employees e JOIN departments d ON d.id = e.dept_id",
            "SELECT dept_id FROM employees JOIN departments ON 1 = 1",
            "SELECT name FROM staff",
            "SELECT salary",
            "SELCT * FROM employees",
            "SELECT * FROM employees WHERE",
            "SELECT MEDIAN(annual_pay) FROM employees",
            "",
            "-- nothing",
        ]), @r#"
        > SELECT salary FROM employees
        ! no such column: salary
        columns of employees: emp_id, full_name, job_title, dept_id, annual_pay, hire_year
        > SELECT e.salary FROM employees e JOIN departments d ON d.id = e.dept_id
        ! no such column: e.salary
        columns of departments: dept_id, dept_name, location, annual_budget
        columns of employees: emp_id, full_name, job_title, dept_id, annual_pay, hire_year
        > SELECT dept_id FROM employees JOIN departments ON 1 = 1
        ! ambiguous column name: dept_id
        columns of departments: dept_id, dept_name, location, annual_budget
        columns of employees: emp_id, full_name, job_title, dept_id, annual_pay, hire_year
        > SELECT name FROM staff
        ! no such table: staff
        tables: departments, employees, projects
        > SELECT salary
        ! no such column: salary
        tables: departments, employees, projects
        > SELCT * FROM employees
        ! near "SELCT": syntax error
        > SELECT * FROM employees WHERE
        ! incomplete input
        > SELECT MEDIAN(annual_pay) FROM employees
        ! no such function: MEDIAN
        > 
        ! the query is empty
        tables: departments, employees, projects
        > -- nothing
        ! the query is empty
        tables: departments, employees, projects
        "#);
    }

    #[test]
    fn tables_are_described_on_one_line() {
        let database = Database::open().unwrap();
        insta::assert_snapshot!(table_names(), @"departments, employees, projects");
        insta::assert_snapshot!(database.describe_table("Employees").unwrap(), @"emp_id integer, full_name text, job_title text, dept_id integer, annual_pay integer, hire_year integer");
        insta::assert_snapshot!(database.describe_table("staff").unwrap_err(), @r"
        no such table: staff
        tables: departments, employees, projects
        ");
    }

    #[test]
    fn only_reads_are_allowed() {
        insta::assert_snapshot!(answers(&[
            "DROP TABLE employees",
            "INSERT INTO departments VALUES (9, 'Cheats', 'Nowhere', 1)",
            "UPDATE employees SET annual_pay = 1",
            "DELETE FROM projects",
            "CREATE TABLE t (x)",
            "CREATE TEMP TABLE t (x)",
            "WITH t AS (SELECT 1) DELETE FROM projects",
            "ATTACH DATABASE '/tmp/other.db' AS other",
            "VACUUM INTO '/tmp/copy.db'",
            "BEGIN",
            "PRAGMA writable_schema = ON",
            "PRAGMA query_only = OFF",
            "PRAGMA hard_heap_limit = 0",
            "SELECT load_extension('/tmp/evil.so')",
            "SELECT random()",
            "SELECT CURRENT_TIMESTAMP",
            "SELECT full_name FROM employees; DROP TABLE employees",
            "SELECT 1; SELECT 2",
        ]), @r"
        > DROP TABLE employees
        ! only SELECT is allowed: the database is read-only
        > INSERT INTO departments VALUES (9, 'Cheats', 'Nowhere', 1)
        ! only SELECT is allowed: the database is read-only
        > UPDATE employees SET annual_pay = 1
        ! only SELECT is allowed: the database is read-only
        > DELETE FROM projects
        ! only SELECT is allowed: the database is read-only
        > CREATE TABLE t (x)
        ! only SELECT is allowed: the database is read-only
        > CREATE TEMP TABLE t (x)
        ! only SELECT is allowed: the database is read-only
        > WITH t AS (SELECT 1) DELETE FROM projects
        ! only SELECT is allowed: the database is read-only
        > ATTACH DATABASE '/tmp/other.db' AS other
        ! only SELECT is allowed: the database is read-only
        > VACUUM INTO '/tmp/copy.db'
        ! only SELECT is allowed: the database is read-only
        > BEGIN
        ! only SELECT is allowed: the database is read-only
        > PRAGMA writable_schema = ON
        ! only SELECT is allowed: the database is read-only
        > PRAGMA query_only = OFF
        ! only SELECT is allowed: the database is read-only
        > PRAGMA hard_heap_limit = 0
        ! only SELECT is allowed: the database is read-only
        > SELECT load_extension('/tmp/evil.so')
        ! not authorized to use function: load_extension
        > SELECT random()
        ! not authorized to use function: random
        > SELECT CURRENT_TIMESTAMP
        ! not authorized to use function: CURRENT_TIMESTAMP
        > SELECT full_name FROM employees; DROP TABLE employees
        ! only SELECT is allowed: the database is read-only
        > SELECT 1; SELECT 2
        ! only one statement at a time is allowed
        ");
        assert_eq!(ask("SELECT COUNT(*) FROM employees"), Ok("COUNT(*)\n48".into()));
    }

    #[test]
    fn sqlite_schema_queries_are_allowed() {
        insta::assert_snapshot!(answers(&[
            "SELECT name FROM sqlite_master WHERE type = 'table'",
            "PRAGMA table_info(departments)",
        ]), @r"
        > SELECT name FROM sqlite_master WHERE type = 'table'
        = name
        departments
        employees
        projects
        > PRAGMA table_info(departments)
        = cid | name | type | notnull | dflt_value | pk
        0 | dept_id | INTEGER | 0 | NULL | 1
        1 | dept_name | TEXT | 1 | NULL | 0
        2 | location | TEXT | 1 | NULL | 0
        3 | annual_budget | INTEGER | 1 | NULL | 0
        ");
    }

    #[test]
    fn a_query_without_end_is_stopped_and_the_next_one_answered() {
        insta::assert_snapshot!(answers(&[
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT MAX(x) FROM n",
            "SELECT COUNT(*) FROM employees a, employees b, employees c, employees d, employees e",
            "SELECT hex(zeroblob(1000000000))",
            "SELECT COUNT(*) FROM employees",
        ]), @r"
        > WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT MAX(x) FROM n
        ! the query was stopped: it takes too long; add conditions or a smaller join
        > SELECT COUNT(*) FROM employees a, employees b, employees c, employees d, employees e
        ! the query was stopped: it takes too long; add conditions or a smaller join
        > SELECT hex(zeroblob(1000000000))
        ! the query or one of its values is too long
        > SELECT COUNT(*) FROM employees
        = COUNT(*)
        48
        ");
        let long = format!("SELECT '{}'", "x".repeat(100_000));
        insta::assert_snapshot!(ask(&long).unwrap_err(), @"the query or one of its values is too long");
        let deep = format!("SELECT {}1", "1 + ".repeat(1000));
        insta::assert_snapshot!(ask(&deep).unwrap_err(), @"Expression tree is too large (maximum depth 64)");
    }
}
