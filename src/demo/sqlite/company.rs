//! The demo server's company, drawn from the lists below with a fixed seed. It is the same on every machine.
//!
//! Questions about it have one answer. Every first name, last name, city and project name occurs once. Pay is distinct
//! across the company and hire years are distinct within a department, so superlatives have one winner. The largest and
//! smallest departments and titles have distinct counts. A project's lead works in the project's department and leads no
//! other project. Nothing here reads a clock or a source of entropy.

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use rusqlite::{Connection, params};

use crate::random::shuffle;

const SCHEMA: &str = "
CREATE TABLE departments (
    dept_id integer PRIMARY KEY,
    dept_name text NOT NULL,
    location text NOT NULL,
    annual_budget integer NOT NULL
);
CREATE TABLE employees (
    emp_id integer PRIMARY KEY,
    full_name text NOT NULL,
    job_title text NOT NULL,
    dept_id integer NOT NULL REFERENCES departments (dept_id),
    annual_pay integer NOT NULL,
    hire_year integer NOT NULL
);
CREATE TABLE projects (
    proj_id integer PRIMARY KEY,
    proj_name text NOT NULL,
    dept_id integer NOT NULL REFERENCES departments (dept_id),
    lead_id integer NOT NULL REFERENCES employees (emp_id),
    cost integer NOT NULL,
    state text NOT NULL
);";

/// The tables and their columns with SQL types, in the order they are created.
pub(super) fn tables() -> impl Iterator<Item = (&'static str, Vec<(&'static str, &'static str)>)> {
    SCHEMA.split("CREATE TABLE ").filter_map(|table| {
        let (name, columns) = table.split_once(" (\n")?;
        let columns = columns.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?))
        });
        Some((name, columns.collect()))
    })
}

const SEED: u64 = 20;

const DEPARTMENTS: [&str; 8] =
    ["Sales", "Legal", "Finance", "Marketing", "Research", "Support", "Logistics", "Security"];
const CITIES: [&str; 8] = ["Lisbon", "Vienna", "Oslo", "Dublin", "Prague", "Geneva", "Madrid", "Toronto"];

/// Employees and projects of each department, the largest first.
const SIZES: [(usize, usize); 8] = [(9, 5), (8, 4), (7, 2), (6, 4), (6, 3), (5, 3), (4, 1), (3, 2)];

const TITLES: [(&str, usize); 8] = [
    ("Analyst", 10),
    ("Engineer", 8),
    ("Manager", 7),
    ("Consultant", 6),
    ("Planner", 6),
    ("Auditor", 5),
    ("Clerk", 4),
    ("Director", 2),
];
const STATES: [(&str, usize); 3] = [("active", 11), ("done", 8), ("planned", 5)];

const FIRST_NAMES: [&str; 48] = [
    "Alice", "Boris", "Clara", "David", "Elena", "Frank", "Greta", "Hugo", "Irene", "Jonas", "Karin",
    "Lucas", "Maria", "Nadia", "Oscar", "Paula", "Quinn", "Ralph", "Sofia", "Tobias", "Ursula", "Victor",
    "Wanda", "Xavier", "Yvonne", "Zachary", "Amber", "Bruno", "Cecil", "Diana", "Edgar", "Fiona", "George",
    "Helena", "Ivan", "Julia", "Kevin", "Laura", "Martin", "Nora", "Oliver", "Petra", "Robert", "Stella",
    "Thomas", "Vera", "Walter", "Yasmin",
];
const LAST_NAMES: [&str; 48] = [
    "Abbott",
    "Bauer",
    "Carter",
    "Dalton",
    "Ellis",
    "Fischer",
    "Grant",
    "Hansen",
    "Ingram",
    "Jensen",
    "Keller",
    "Larsen",
    "Mercer",
    "Novak",
    "Olsen",
    "Porter",
    "Quick",
    "Ramsey",
    "Shaw",
    "Turner",
    "Underwood",
    "Vogel",
    "Weber",
    "Yates",
    "Zimmer",
    "Archer",
    "Barnes",
    "Cohen",
    "Dixon",
    "Evans",
    "Foster",
    "Gibson",
    "Hughes",
    "Irving",
    "Jacobs",
    "Kramer",
    "Lambert",
    "Morris",
    "Nelson",
    "Osborne",
    "Palmer",
    "Rossi",
    "Sutton",
    "Talbot",
    "Unger",
    "Vance",
    "Walsh",
    "Young",
];
const PROJECTS: [&str; 24] = [
    "Falcon", "Comet", "Harbor", "Lantern", "Meadow", "Nimbus", "Orchid", "Pebble", "Quartz", "Raven",
    "Summit", "Tundra", "Vertex", "Willow", "Zephyr", "Aurora", "Beacon", "Cobalt", "Delta", "Ember",
    "Fjord", "Glacier", "Horizon", "Juniper",
];

/// Creates the tables and fills them. Money is in thousands.
pub(super) fn fill(connection: &mut Connection) -> rusqlite::Result<()> {
    let rng = &mut ChaCha8Rng::seed_from_u64(SEED);
    let transaction = connection.transaction()?;
    transaction.execute_batch(SCHEMA)?;

    let sizes = shuffled(SIZES, rng);
    let cities = shuffled(CITIES, rng);
    let budgets = shuffled(120..990, rng);
    for (index, name) in shuffled(DEPARTMENTS, rng).into_iter().enumerate() {
        transaction.execute(
            "INSERT INTO departments VALUES (?, ?, ?, ?)",
            params![id(index), name, cities[index], budgets[index]],
        )?;
    }

    let departments = shuffled(repeated(sizes.iter().map(|(employees, _)| *employees).enumerate()), rng);
    let titles = shuffled(repeated(TITLES), rng);
    let firsts = shuffled(FIRST_NAMES, rng);
    let lasts = shuffled(LAST_NAMES, rng);
    let pays = shuffled(38..190, rng);
    let mut years: Vec<Vec<i64>> = sizes.iter().map(|_| shuffled(1999..2024, rng)).collect();
    let mut staff: Vec<Vec<i64>> = vec![Vec::new(); sizes.len()];
    for (index, &department) in departments.iter().enumerate() {
        // Company-wide, one employee was hired first and one last.
        let year = match index {
            16 => Some(1998),
            31 => Some(2024),
            _ => years[department].pop(),
        };
        let name = format!("{} {}", firsts[index], lasts[index]);
        transaction.execute(
            "INSERT INTO employees VALUES (?, ?, ?, ?, ?, ?)",
            params![id(index), name, titles[index], id(department), pays[index], year],
        )?;
        staff[department].push(id(index));
    }

    let departments = shuffled(repeated(sizes.iter().map(|(_, projects)| *projects).enumerate()), rng);
    let states = shuffled(repeated(STATES), rng);
    let costs = shuffled(20..990, rng);
    let mut leads: Vec<Vec<i64>> = staff.into_iter().map(|ids| shuffled(ids, rng)).collect();
    for (index, name) in shuffled(PROJECTS, rng).into_iter().enumerate() {
        let department = departments[index];
        transaction.execute(
            "INSERT INTO projects VALUES (?, ?, ?, ?, ?, ?)",
            params![id(index), name, id(department), leads[department].pop(), costs[index], states[index]],
        )?;
    }
    transaction.commit()
}

/// Ids count from 1 in insertion order.
fn id(index: usize) -> i64 {
    index as i64 + 1
}

/// Each value, repeated as often as its count.
fn repeated<T: Clone>(counts: impl IntoIterator<Item = (T, usize)>) -> Vec<T> {
    counts.into_iter().flat_map(|(value, count)| std::iter::repeat_n(value, count)).collect()
}

fn shuffled<T>(items: impl IntoIterator<Item = T>, rng: &mut ChaCha8Rng) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    shuffle(&mut items, rng);
    items
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::hash::Encoder;

    fn company() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        fill(&mut connection).unwrap();
        connection
    }

    fn rows(connection: &Connection, sql: &str) -> Vec<Vec<String>> {
        let mut statement = connection.prepare(sql).unwrap();
        let columns = statement.column_count();
        let read = |row: &rusqlite::Row| {
            (0..columns)
                .map(|column| match row.get_ref(column)? {
                    rusqlite::types::ValueRef::Integer(number) => Ok(number.to_string()),
                    value => Ok(value.as_str()?.to_owned()),
                })
                .collect()
        };
        statement.query_map([], read).unwrap().collect::<rusqlite::Result<_>>().unwrap()
    }

    /// Asserts that a query finds no row.
    fn check_none(sql: &str) {
        assert_eq!(rows(&company(), sql), Vec::<Vec<String>>::new(), "{sql}");
    }

    #[test]
    fn the_company_is_the_same_everywhere() {
        let company = company();
        let mut encoder = Encoder::new("demo company");
        for (table, _) in tables() {
            for row in rows(&company, &format!("SELECT * FROM {table} ORDER BY 1")) {
                row.iter().for_each(|value| _ = encoder.text(value));
            }
        }
        insta::assert_snapshot!(encoder.finish().short(), @"1a6651762f24");
    }

    #[test]
    fn the_declared_columns_are_those_of_the_tables() {
        let company = company();
        for (table, columns) in tables() {
            let declared: Vec<Vec<String>> =
                columns.iter().map(|(name, kind)| vec![(*name).to_owned(), (*kind).to_owned()]).collect();
            assert_eq!(
                rows(&company, &format!("SELECT name, lower(type) FROM pragma_table_info('{table}')")),
                declared
            );
        }
        check_none("SELECT * FROM pragma_foreign_key_check");
    }

    #[test]
    fn every_word_occurs_once() {
        let mut seen = BTreeSet::new();
        let titles = TITLES.map(|(title, _)| title);
        let words = [&FIRST_NAMES[..], &LAST_NAMES, &PROJECTS, &DEPARTMENTS, &CITIES, &titles].concat();
        for word in words {
            assert!(seen.insert(word), "{word} occurs twice");
        }
    }

    #[test]
    fn superlatives_have_one_winner() {
        check_none("SELECT annual_pay FROM employees GROUP BY annual_pay HAVING COUNT(*) > 1");
        check_none("SELECT hire_year FROM employees GROUP BY dept_id, hire_year HAVING COUNT(*) > 1");
        check_none("SELECT cost FROM projects GROUP BY cost HAVING COUNT(*) > 1");
        check_none("SELECT lead_id FROM projects GROUP BY lead_id HAVING COUNT(*) > 1");
        for (table, column) in [("employees", "dept_id"), ("projects", "dept_id"), ("employees", "job_title")]
        {
            for order in ["DESC", "ASC"] {
                let sql =
                    format!("SELECT COUNT(*) FROM {table} GROUP BY {column} ORDER BY 1 {order} LIMIT 2");
                let counts = rows(&company(), &sql);
                assert_ne!(counts[0], counts[1], "{sql}");
            }
        }
        for bound in ["MIN", "MAX"] {
            let sql = format!(
                "SELECT COUNT(*) FROM employees WHERE hire_year = (SELECT {bound}(hire_year) FROM employees)"
            );
            assert_eq!(rows(&company(), &sql), [["1"]]);
        }
    }

    #[test]
    fn a_project_is_led_from_its_own_department() {
        check_none(
            "SELECT proj_name FROM projects JOIN employees ON emp_id = lead_id WHERE employees.dept_id <> projects.dept_id",
        );
    }
}
