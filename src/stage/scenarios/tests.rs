//! Checks questions generated from the demo server against a computation without SQL.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::json;

use super::{metrics::words, *};
use crate::{
    chat::ToolCall,
    data::{self, Scenario, Tool},
    demo,
    mcp::{ServerSpec, Session, State, Transport},
    progress::NoProgress,
    stage::testing,
    tasks::{
        families::Families,
        grounded::{self, Grounded, QuestionCounts},
        live::Live,
        phrase::Binding,
    },
};

/// The demo server over local HTTP, its tools, and a client.
pub(super) struct Demo {
    pub server: ServerSpec,
    pub tools: Vec<Tool>,
    pub live: Live,
}

impl Demo {
    pub async fn start() -> Self {
        Self::of("sqlite", State::ReadOnly).await
    }

    /// The service desk. Each session has tickets of its own.
    pub async fn desk() -> Self {
        Self::of("desk", State::FreshProcess).await
    }

    async fn of(kind: &str, state: State) -> Self {
        let http = demo::HttpServer::bind(kind, ([127, 0, 0, 1], 0).into()).await.unwrap();
        let transport = Transport::http(http.url().unwrap());
        tokio::spawn(http.serve());
        let server = ServerSpec::new(transport, state);
        let session = Session::connect(&server).await.unwrap();
        let tools = crate::offered::tool_rows(session.describe().await.unwrap().tools);
        session.close().await;
        let live = Live::new(&server.clone().into(), &tools);
        Self { server, tools, live }
    }

    pub async fn generate(&self, families: &Families, seed: u64) -> Result<Grounded> {
        let quota = QuestionCounts { per_family: 60, per_split: 120 };
        grounded::generate(families, &self.tools, &self.live, quota, seed, &NoProgress, &Default::default())
            .await
    }

    /// All rows of a table.
    async fn table(&self, name: &str) -> Vec<Vec<String>> {
        let mut rows: Vec<Vec<String>> = Vec::new();
        loop {
            let sql = format!("SELECT * FROM {name} ORDER BY 1 LIMIT 5 OFFSET {}", rows.len());
            let arguments = json!({ "sql": sql }).as_object().cloned().unwrap();
            let call = ToolCall { name: "run_query".into(), arguments };
            let text = self.live.visit().call(&call).await.unwrap().text;
            let page: Vec<_> =
                text.lines().skip(1).map(|line| line.split(" | ").map(str::to_owned).collect()).collect();
            if page.is_empty() {
                return rows;
            }
            rows.extend(page);
        }
    }
}

/// The families of the shipped pipeline.
fn company_families() -> Families {
    Families::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/sqlite.families.toml")).unwrap()
}

/// The families of the shipped pipeline over the service desk.
fn desk_families() -> Families {
    Families::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/desk.families.toml")).unwrap()
}

type Row = Vec<String>;

/// The demo company as plain rows.
struct Company {
    departments: Vec<Row>,
    employees: Vec<Row>,
    projects: Vec<Row>,
}

/// Columns by position.
mod column {
    pub const ID: usize = 0;
    pub const NAME: usize = 1;
    pub const LOCATION: usize = 2;
    pub const BUDGET: usize = 3;
    pub const TITLE: usize = 2;
    pub const EMPLOYEE_DEPARTMENT: usize = 3;
    pub const PAY: usize = 4;
    pub const YEAR: usize = 5;
    pub const PROJECT_DEPARTMENT: usize = 2;
    pub const LEAD: usize = 3;
    pub const COST: usize = 4;
    pub const STATE: usize = 5;
}
use column::*;

fn number(row: &Row, column: usize) -> i64 {
    row[column].parse().unwrap()
}

fn only(mut rows: Vec<&Row>) -> &Row {
    assert_eq!(rows.len(), 1, "one row was expected: {rows:?}");
    rows.remove(0)
}

/// The one row with the largest value.
fn largest(rows: Vec<&Row>, value: impl Fn(&Row) -> i64) -> &Row {
    let most = rows.iter().map(|row| value(row)).max().unwrap();
    only(rows.into_iter().filter(|row| value(row) == most).collect())
}

/// The value that occurs most often, weighted.
fn winner<'a>(votes: impl Iterator<Item = (&'a str, i64)>) -> &'a str {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    votes.for_each(|(name, weight)| *counts.entry(name).or_default() += weight);
    let most = *counts.values().max().unwrap();
    let winners: Vec<_> = counts.into_iter().filter(|(_, count)| *count == most).collect();
    assert_eq!(winners.len(), 1, "a tie: {winners:?}");
    winners[0].0
}

impl Company {
    async fn read(demo: &Demo) -> Self {
        Self {
            departments: demo.table("departments").await,
            employees: demo.table("employees").await,
            projects: demo.table("projects").await,
        }
    }

    fn department(&self, row: &Row, column: usize) -> &Row {
        only(self.departments.iter().filter(|department| department[ID] == row[column]).collect())
    }

    fn of_department<'a>(&'a self, rows: &'a [Row], column: usize, name: &str) -> Vec<&'a Row> {
        rows.iter().filter(|row| self.department(row, column)[NAME] == name).collect()
    }

    fn employee(&self, which: &str, entity: &Binding) -> &Row {
        let staff = || self.of_department(&self.employees, EMPLOYEE_DEPARTMENT, &entity["department"]);
        match which {
            "person" => only(self.employees.iter().filter(|row| row[NAME] == entity["person"]).collect()),
            "lead" => {
                let project =
                    only(self.projects.iter().filter(|row| row[NAME] == entity["project"]).collect());
                only(self.employees.iter().filter(|row| row[ID] == project[LEAD]).collect())
            }
            "top" => largest(staff(), |row| number(row, PAY)),
            "low" => largest(staff(), |row| -number(row, PAY)),
            "veteran" => largest(staff(), |row| -number(row, YEAR)),
            "newest" => largest(staff(), |row| number(row, YEAR)),
            "star" => {
                let alike = self.employees.iter().filter(|row| row[TITLE] == entity["title"]).collect();
                largest(alike, |row| number(row, PAY))
            }
            other => panic!("no employee {other}"),
        }
    }

    fn project(&self, which: &str, entity: &Binding) -> &Row {
        let own = || self.of_department(&self.projects, PROJECT_DEPARTMENT, &entity["department"]);
        match which {
            "named" => only(self.projects.iter().filter(|row| row[NAME] == entity["project"]).collect()),
            "costliest" => largest(own(), |row| number(row, COST)),
            "cheapest" => largest(own(), |row| -number(row, COST)),
            "led" => {
                let leader =
                    only(self.employees.iter().filter(|row| row[NAME] == entity["leader"]).collect());
                only(self.projects.iter().filter(|row| row[LEAD] == leader[ID]).collect())
            }
            other => panic!("no project {other}"),
        }
    }

    fn answer(&self, family: &str, entity: &Binding) -> String {
        if let Some((what, which)) = family.split_once("_of_") {
            return self.attribute(what, which, entity);
        }
        if let Some((figure, _)) = family.split_once("_by_") {
            return self.figure(figure, entity);
        }
        let department = |row: &'_ Row, column| self.department(row, column)[NAME].clone();
        match family {
            "most_staff" | "most_payroll" => {
                let weight = |row| if family == "most_staff" { 1 } else { number(row, PAY) };
                let votes: Vec<_> = self
                    .employees
                    .iter()
                    .map(|row| (department(row, EMPLOYEE_DEPARTMENT), weight(row)))
                    .collect();
                winner(votes.iter().map(|(name, weight)| (name.as_str(), *weight))).into()
            }
            "most_projects" => {
                let votes: Vec<_> =
                    self.projects.iter().map(|row| department(row, PROJECT_DEPARTMENT)).collect();
                winner(votes.iter().map(|name| (name.as_str(), 1))).into()
            }
            "most_title" => winner(self.employees.iter().map(|row| (row[TITLE].as_str(), 1))).into(),
            "departments_larger_than" => {
                let size: usize = entity["size"].parse().unwrap();
                let staff =
                    |row: &Row| self.of_department(&self.employees, EMPLOYEE_DEPARTMENT, &row[NAME]).len();
                self.departments.iter().filter(|row| staff(row) > size).count().to_string()
            }
            "hired_after" => {
                let year: i64 = entity["year"].parse().unwrap();
                self.employees.iter().filter(|row| number(row, YEAR) > year).count().to_string()
            }
            other => panic!("no computation for the family {other}"),
        }
    }

    fn attribute(&self, what: &str, which: &str, entity: &Binding) -> String {
        match (what, which) {
            ("cost", _) => self.project(which, entity)[COST].clone(),
            ("state", _) => self.project(which, entity)[STATE].clone(),
            ("project", _) => self.project(which, entity)[NAME].clone(),
            ("owner", _) => self.department(self.project(which, entity), PROJECT_DEPARTMENT)[NAME].clone(),
            (_, "named") | (_, "located") => {
                let (key, column) = if which == "named" { ("department", NAME) } else { ("city", LOCATION) };
                let department =
                    only(self.departments.iter().filter(|row| row[column] == entity[key]).collect());
                let column = match what {
                    "department" => NAME,
                    "budget" => BUDGET,
                    _ => LOCATION,
                };
                department[column].clone()
            }
            _ => {
                let employee = self.employee(which, entity);
                let department = self.department(employee, EMPLOYEE_DEPARTMENT);
                match what {
                    "name" => employee[NAME].clone(),
                    "pay" => employee[PAY].clone(),
                    "title" => employee[TITLE].clone(),
                    "year" => employee[YEAR].clone(),
                    "department" => department[NAME].clone(),
                    "city" => department[LOCATION].clone(),
                    other => panic!("no attribute {other}"),
                }
            }
        }
    }

    /// Over the rows that match all values of the entity.
    fn figure(&self, figure: &str, entity: &Binding) -> String {
        let of_projects = matches!(figure, "projects" | "spend");
        let (rows, home, value) = if of_projects {
            (&self.projects, PROJECT_DEPARTMENT, COST)
        } else {
            (&self.employees, EMPLOYEE_DEPARTMENT, PAY)
        };
        let agrees = |row: &&Row| {
            entity.iter().all(|(key, wanted)| match key.as_str() {
                "department" => self.department(row, home)[NAME] == *wanted,
                "title" => row[TITLE] == *wanted,
                _ => row[STATE] == *wanted,
            })
        };
        let values: Vec<i64> = rows.iter().filter(agrees).map(|row| number(row, value)).collect();
        let total: i64 = values.iter().sum();
        match figure {
            "count" | "projects" => values.len().to_string(),
            "mean" => (total as f64 / values.len() as f64).round().to_string(),
            _ => total.to_string(),
        }
    }
}

fn entity(scenario: &Scenario) -> Binding {
    serde_json::from_str(scenario.entity.as_deref().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_the_one_computed_without_sql() {
    let demo = Demo::start().await;
    let company = Company::read(&demo).await;
    assert_eq!((company.departments.len(), company.employees.len(), company.projects.len()), (8, 48, 24));
    let made = demo.generate(&company_families(), 7).await.unwrap();
    for scenario in made.train.iter().chain(&made.heldout) {
        let expected = company.answer(&scenario.family, &entity(scenario));
        assert_eq!(
            scenario.answer.as_deref(),
            Some(expected.as_str()),
            "{}: {}",
            scenario.family,
            scenario.task
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn held_out_questions_are_new_as_their_split_defines() {
    let demo = Demo::start().await;
    let made = demo.generate(&company_families(), 7).await.unwrap();
    let asked: BTreeSet<(&str, Binding)> =
        made.train.iter().map(|s| (s.family.as_str(), entity(s))).collect();
    let families: BTreeSet<&str> = made.train.iter().map(|s| s.family.as_str()).collect();
    let sentences: BTreeSet<&str> = made.train.iter().map(|s| s.task.as_str()).collect();
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for scenario in &made.heldout {
        *sizes.entry(&scenario.split).or_default() += 1;
        assert!(!sentences.contains(scenario.task.as_str()), "{}", scenario.task);
        let (family, entity) = (scenario.family.as_str(), entity(scenario));
        let is_asked = asked.contains(&(family, entity));
        match scenario.split.as_str() {
            "unseen_entities" => assert!(families.contains(family) && !is_asked, "{}", scenario.task),
            "unseen_phrasings" => assert!(is_asked, "{}", scenario.task),
            _ => assert!(!families.contains(family), "{}", scenario.task),
        }
    }
    assert_eq!(sizes, [("unseen_entities", 120), ("unseen_families", 120), ("unseen_phrasings", 120)].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn new_sentences_are_made_of_words_that_training_has() {
    let demo = Demo::start().await;
    let made = demo.generate(&company_families(), 7).await.unwrap();
    let known: BTreeSet<&str> = made.train.iter().flat_map(words).collect();
    for scenario in made.heldout.iter().filter(|scenario| scenario.split != "unseen_entities") {
        let entity = entity(scenario);
        let is_new =
            |word: &&str| !known.contains(word) && !entity.values().any(|value| value.contains(word));
        assert_eq!(words(scenario).find(is_new), None, "{}", scenario.task);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_seed_decides_and_nothing_else() {
    let (one, other) = (Demo::start().await, Demo::start().await);
    let families = company_families();
    let first = one.generate(&families, 7).await.unwrap();
    let again = other.generate(&families, 7).await.unwrap();
    assert_eq!((&first.train, &first.heldout), (&again.train, &again.heldout));
    let different = one.generate(&families, 8).await.unwrap();
    assert_ne!(first.heldout, different.heldout);
}

const SMALL: &str = r#"
[results]
format = "table"
separator = " | "
remark = "("
[calls]
query = { tool = "run_query", argument = "sql" }
[entities.title]
call = { query = "SELECT 'Clerk' UNION SELECT 'Pilot'" }
columns = ["title"]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn questions_without_one_answer_are_dropped_and_counted() {
    let demo = Demo::start().await;
    let family = |name: &str, rest: &str, sql: &str, phrasing: &str| {
        format!(
            "[[families]]\nname = \"{name}\"\n{rest}\nsolve = {{ query = \"{sql}\" }}\nphrasings = \"{phrasing}\"\n"
        )
    };
    let text = [
        SMALL.to_owned(),
        family("failed", "", "SELECT salary FROM employees", "a?"),
        family("empty", "", "SELECT 1 WHERE 0", "b?"),
        family("null", "", "SELECT MAX(cost) FROM projects WHERE 0", "c?"),
        family("many", "", "SELECT full_name FROM employees LIMIT 2", "d?"),
        family("shown_in_part", "read = \"column\"", "SELECT full_name FROM employees", "e?"),
        family("list", "read = \"column\"", "SELECT 1 AS n UNION SELECT 2", "f?"),
        family("twin", "check = \"set\"", "SELECT '1, 2' AS n", "f?"),
        family("one", "", "SELECT 1 AS n", "g?"),
        family("two", "", "SELECT 2 AS n", "g?"),
        family(
            "unheard_of",
            "entities = [\"title\"]",
            "SELECT job_title FROM employees WHERE job_title = {title:quoted} LIMIT 1",
            "h {title}?",
        ),
    ];
    let made = demo.generate(&Families::parse(&text.concat(), "f").unwrap(), 1).await.unwrap();
    let asked: Vec<_> = made
        .train
        .iter()
        .map(|s| (s.task.as_str(), s.answer.as_deref().unwrap(), s.check.as_str()))
        .collect();
    assert_eq!(asked, [("f?", "1, 2", "set"), ("h Clerk?", "Clerk", "text")]);
    let dropped: Vec<_> = made.dropped.iter().map(|(why, count)| (why.name(), *count)).collect();
    assert_eq!(
        dropped,
        [("failed", 1), ("unanswerable", 3), ("ambiguous", 3), ("truncated", 1), ("duplicate", 1)]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_call_brought_can_be_used_by_a_later_one() {
    let demo = Demo::start().await;
    let text = format!(
        "{SMALL}
        [[families]]
        name = \"city\"
        solve = [
          {{ query = \"SELECT dept_id FROM departments WHERE dept_name = 'Sales'\", take = \"id\" }},
          {{ run_query = {{ sql = \"SELECT location FROM departments WHERE dept_id = {{id}}\" }} }},
        ]
        phrasings = \"Where is Sales?\"
        "
    );
    let made = demo.generate(&Families::parse(&text, "f").unwrap(), 1).await.unwrap();
    let sales = demo.table("departments").await.into_iter().find(|row| row[NAME] == "Sales").unwrap();
    assert_eq!(made.train[0].answer.as_ref(), Some(&sales[LOCATION]));
    let calls: Vec<ToolCall> = serde_json::from_str(made.train[0].reference.as_deref().unwrap()).unwrap();
    let last = format!("SELECT location FROM departments WHERE dept_id = {}", sales[ID]);
    assert_eq!(calls[1].arguments["sql"], last.as_str());
}

/// Tasks at the service desk: what is done with tickets of one customer.
const DESK: &str = r#"
results = { format = "table", separator = " | ", remark = "(" }
state = { call = { list_changes = {} } }
entities.customer = { call = { list_customers = { offset = "{offset}" } }, page = 6, columns = ["customer"] }
axes.which.first = { rows = "first" }
axes.which.last = { rows = "last" }
axes.which.all = { rows = "all" }

[[families]]
name = "close_{which}"
over = ["which"]
entities = ["customer"]
answer = "{agent}: {ticket}"
phrasings = "Close {rows} of {customer}?"
solve = [
  { find_customer = { name = "{customer}" }, take = "id" },
  { list_tickets = { customer_id = "{id}", status = "open" }, take = { ticket = "id", agent = "agent" }, rows = "{rows}" },
  { set_status = { ticket_id = "{ticket}", status = "closed" }, each = "ticket" },
]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_changes_something_knows_the_state_that_its_solution_leaves() {
    let desk = Demo::desk().await;
    let made = desk.generate(&Families::parse(DESK, "f").unwrap(), 1).await.unwrap();
    let mut several = 0;
    for task in made.train.iter().chain(&made.heldout) {
        let calls: Vec<ToolCall> = serde_json::from_str(task.reference.as_deref().unwrap()).unwrap();
        let listed = desk.live.visit().call(&calls[1]).await.unwrap().text;
        let open: Vec<&str> = listed.lines().skip(1).map(|line| line.split(" | ").next().unwrap()).collect();
        several += usize::from(open.len() > 1);
        let closed = match &*task.family {
            "close_first" => &open[..1],
            "close_last" => &open[open.len() - 1..],
            _ => &open[..],
        };
        assert_eq!(calls.len(), 2 + closed.len(), "{task:?}");
        let changed: String = closed.iter().map(|ticket| format!("\n{ticket} | closed | = | =")).collect();
        let checks = data::Checks::parse(&task.checks.as_ref().unwrap().0).unwrap();
        let (expected, found) =
            (checks.state[0].expect.equals.as_ref().unwrap(), |line| changed.contains(line));
        assert!(expected.lines().skip(1).all(found), "{task:?}");
        assert_eq!(expected.lines().count(), 1 + closed.len(), "{task:?}");
        assert!(task.answer.as_ref().unwrap().ends_with(&format!(": {}", closed.join(", "))), "{task:?}");
    }
    assert!(several > 10, "{several}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shipped_task_of_the_desk_is_solved_by_its_reference() {
    let desk = Demo::desk().await;
    let made = desk.generate(&desk_families(), 1).await.unwrap();
    assert_eq!(made.heldout.len(), 360);
    let families: BTreeSet<&str> = made.train.iter().map(|task| task.family.as_str()).collect();
    assert_eq!(families.len(), 38 - 4);
    let mut conflicts = 0;
    for task in made.heldout.iter().step_by(7) {
        let calls: Vec<ToolCall> = serde_json::from_str(task.reference.as_deref().unwrap()).unwrap();
        let mut visit = desk.live.visit();
        for (call, next) in calls.iter().zip(calls.iter().skip(1).map(Some).chain([None])) {
            let outcome = visit.call(call).await.unwrap();
            let is_conflict = outcome.is_error && outcome.text.starts_with("conflict:");
            conflicts += u32::from(is_conflict);
            assert!(!outcome.is_error || is_conflict && next == Some(call), "{task:?}");
        }
        let changes = ToolCall { name: "list_changes".into(), arguments: Map::new() };
        let left = visit.call(&changes).await.unwrap().text;
        let checks = data::Checks::parse(&task.checks.as_ref().unwrap().0).unwrap();
        assert_eq!(checks.state[0].expect.equals.as_deref(), Some(&*left), "{task:?}");
        if let Some(answer) = &task.answer {
            assert!(!task.task.contains(answer.as_str()), "{task:?}");
        }
    }
    assert!(conflicts > 5, "{conflicts}");
}

#[test]
fn mistakes_in_steps_name_their_place() {
    let cases = [
        (
            "rows = \"{rows}\"",
            "rows = \"second\"",
            "solve: `rows` should be one of only, first, last, all, found \"second\"",
        ),
        (
            "each = \"ticket\"",
            "each = \"tickte\"",
            "solve: each: there is no taken value `tickte`; did you mean `ticket`?",
        ),
        (
            "{agent}: {ticket}",
            "{agnet}",
            "answer: there is no word or entity `{agnet}` here; did you mean `{agent}`?",
        ),
        (
            "list_changes = {}",
            "list_changes = \"now\"",
            "state: there is no call `list_changes` under [calls]",
        ),
        ("take = \"id\"", "take = 7", "it should be a call, or a list of calls"),
    ];
    for (part, mistake, problem) in cases {
        assert!(DESK.contains(part), "{part}");
        let error = Families::parse(&DESK.replace(part, mistake), "f").unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mismatch_between_file_and_server_names_its_place() {
    let demo = Demo::start().await;
    let question = "[[families]]\nname = \"f\"\nentities = [\"title\"]\nphrasings = \"?\"\nsolve = ";
    let cases = [
        (
            format!("{SMALL}{question}{{ run_qurey = {{ sql = \"SELECT 1\" }} }}"),
            "families: family \"f\": the server has no tool `run_qurey`; did you mean `run_query`?",
        ),
        (
            SMALL.replace("SELECT 'Clerk'", "SELEC 'Clerk'") + question + "{ query = \"SELECT 1\" }",
            "entities `title`: near \"SELEC\": syntax error",
        ),
        (
            SMALL.replace("SELECT 'Clerk' UNION SELECT 'Pilot'", "SELECT full_name FROM employees")
                + question
                + "{ query = \"SELECT 1\" }",
            "entities `title`: the result shows a part of them; say `page`",
        ),
        (
            format!("{SMALL}{question}{{ query = \"SELECT salary\" }}"),
            "no question has an answer: f: failed: no such column: salary",
        ),
    ];
    for (text, expected) in cases {
        let error = demo.generate(&Families::parse(&text, "f").unwrap(), 1).await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn mistakes_in_a_families_file_are_shown_where_they_are() {
    let family = "[[families]]\nname = \"f\"\nphrasings = \"?\"\nsolve = { query = \"SELECT 1\" }\n";
    let check = |text: &str, expected: &str| {
        let error = Families::parse(text, "my.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("[[families]]\nname = 3\n", "my.toml: TOML parse error at line 2, column 8");
    check(&format!("{SMALL}{family}phrasing = 1"), "unknown field `phrasing`, expected one of");
    check(SMALL, "my.toml: families: none is declared");
    let cases = [
        (
            "solve = { qurey = \"x\" }",
            "family \"f\": solve: there is no call `qurey`; did you mean `query`? under [calls]",
        ),
        (
            "solve = { query = \"x\", run_query = {} }",
            "family \"f\": solve: a call should be one tool with its arguments",
        ),
        (
            "solve = { query = \"{titel}\" }",
            "solve: \"{titel}\": there is no word or entity `{titel}` here; did you mean `{title}`?",
        ),
        ("solve = { query = \"{a|b}\" }", "solve: \"{a|b}\": a call cannot leave a choice"),
        ("solve = []", "family \"f\": solve: a call is missing"),
        ("phrasings = []", "family \"f\": phrasings: the list of alternatives is empty"),
        ("phrasings = \"{who\"", "family \"f\": phrasings: \"{who\": a `{` is never closed"),
        (
            "entities = [\"titel\"]",
            "family \"f\": entities: there is no entity list `titel`; did you mean `title`?",
        ),
        ("over = [\"fact\"]", "family \"f\": over: there is no axis `fact`"),
        ("cells = { a = [\"b\"] }", "family \"f\": `cells` is for a family over two axes"),
    ];
    for (line, expected) in cases {
        let key = line.split(' ').next().unwrap();
        let mut lines: Vec<&str> =
            family.lines().filter(|other| !other.starts_with(&format!("{key} "))).collect();
        lines.push(line);
        if key != "entities" {
            lines.push("entities = [\"title\"]");
        }
        check(&format!("{SMALL}{}", lines.join("\n")), expected);
    }
    check(&format!("{SMALL}{family}{family}"), "family \"f\": the name is taken by another family");
    check(
        &format!("{SMALL}[words]\na = \"{{a}}\"\n{family}").replace("\"?\"", "\"{a}\""),
        "words refer to each other in a circle",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stage_writes_both_tables_and_counts_what_it_dropped() {
    let demo = Demo::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (tools, output) = (folder.path().join("tools.parquet"), folder.path().join("out"));
    data::write(&tools, &demo.tools).unwrap();
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/sqlite.families.toml");
    let params = json!({"families": families, "questions_per_family": 20, "heldout_per_split": 40});
    let (mut context, _) = testing::context("scenarios", &[("tools", &tools)], &output, params);
    context.servers = Some(demo.server.clone().into());
    let metrics = testing::run(&context).await.unwrap();
    let train: Vec<Scenario> = data::read(&output.join("train.parquet")).unwrap();
    let heldout: Vec<Scenario> = data::read(&output.join("heldout.parquet")).unwrap();
    assert_eq!((metrics["train"], metrics["heldout"]), (train.len() as f64, heldout.len() as f64));
    assert_eq!((metrics["unseen_entities"], metrics["unseen_families"]), (40.0, 40.0));
    assert_eq!(metrics["families"], 53.0);
    assert_eq!(metrics["dropped_failed"], 0.0);
}

#[tokio::test]
async fn a_source_without_its_file_names_the_missing_parameter() {
    let folder = tempfile::tempdir().unwrap();
    let params = json!({"source": "file"});
    let (context, _) = testing::context("scenarios", &[], folder.path(), params);
    let error = testing::run(&context).await.unwrap_err();
    assert_eq!(error.to_string(), "source = \"file\" needs the parameter `file`");
}
