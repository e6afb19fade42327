//! Tables of a shop, as a server shows them.

use serde_json::json;

use super::{
    super::{graph::Arg, tools},
    *,
};
use crate::{
    answer_rule::AnswerRule,
    data::Tool,
    mcp::{ServerSpec, Servers, State, Transport},
};

const CUSTOMERS: &str = r#"[{"id": 1, "name": "Ann Lee", "city": "Oslo"}, {"id": 2, "name": "Bo Kim", "city": "Bern"},
    {"id": 3, "name": "Cy Dow", "city": "Oslo"}, {"id": 4, "name": "Di Fox", "city": "Bern"}]"#;
const ORDERS: &str = r#"[{"id": 1, "customer_id": 4, "total": 9.5, "code": "7"}, {"id": 2, "customer_id": 4, "total": 3.25, "code": "8"},
    {"id": 3, "customer_id": 2, "total": 8.0, "code": "9"}]"#;

fn tool(name: &str, description: &str, properties: serde_json::Value) -> Tool {
    let required: Vec<String> = properties.as_object().unwrap().keys().cloned().collect();
    Tool {
        name: name.into(),
        server_name: name.into(),
        description: description.into(),
        input_schema: json!({"type": "object", "properties": properties, "required": required}).to_string(),
        ..Tool::default()
    }
}

fn candidates_of(tables: &[(&str, &str)]) -> Vec<Candidate> {
    candidates_with(tables, 1)
}

fn candidates_with(tables: &[(&str, &str)], seed: u64) -> Vec<Candidate> {
    let tools = [
        tool("list_tables", "List all tables", json!({})),
        tool("describe_table", "Get the columns of a table", json!({"table_name": {"type": "string"}})),
        tool(
            "read_query",
            "Run a SELECT query",
            json!({"query": {"type": "string", "description": "SELECT SQL query"}}),
        ),
    ];
    let transport = Transport::Stdio {
        command: vec!["server".into()],
        env: Default::default(),
        cwd: None,
        files: Vec::new(),
    };
    let profiles = tools::profiles(
        &tools,
        &Servers::from(ServerSpec::new(transport, State::ReadOnly)),
        &Default::default(),
    );
    let mut graph = Graph::default();
    let mut add = |tool: usize, args: &[(&str, &str)], text: &str| {
        let arguments = args.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let call = ToolCall { name: profiles[tool].name.clone(), arguments };
        let arg = |(name, value): &(&str, &str)| Arg {
            name: (*name).into(),
            leaf: Some((*value).into()),
            shown: (*value).into(),
        };
        graph.add(&profiles, tool, call, args.iter().map(arg).collect(), text.into());
    };
    let names: Vec<_> = tables.iter().map(|(name, _)| json!({"name": name})).collect();
    add(0, &[], &json!(names).to_string());
    for (name, rows) in tables {
        add(1, &[("table_name", name)], &json!([{"column": "id"}]).to_string());
        add(2, &[("query", &format!("SELECT * FROM {name} LIMIT 20"))], rows);
    }
    candidates(&graph, &profiles, seed)
}

fn query(candidate: &Candidate) -> &str {
    candidate.calls.last().and_then(|call| call.arguments["query"].as_str()).unwrap()
}

fn of_family<'c>(candidates: &'c [Candidate], family: &str) -> Vec<&'c Candidate> {
    candidates.iter().filter(|candidate| candidate.family == family).collect()
}

#[test]
fn tables_are_joined_by_references_and_never_by_ids_that_only_share_their_name() {
    let candidates = candidates_of(&[("customers", CUSTOMERS), ("orders", ORDERS)]);
    let joined = of_family(&candidates, "orders: city of the customer");
    assert_eq!(joined.len(), 3);
    assert_eq!(
        query(joined[0]),
        "SELECT customers.city FROM orders JOIN customers ON orders.customer_id = customers.id WHERE orders.id = 1"
    );
    let of_seeds: Vec<Candidate> = (0..9)
        .flat_map(|seed| candidates_with(&[("customers", CUSTOMERS), ("orders", ORDERS)], seed))
        .collect();
    let joined = of_family(&of_seeds, "orders: city of the customer");
    let plain = joined.iter().find(|candidate| !candidate.may_fail).unwrap();
    let names: Vec<&str> = plain.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["list_tables", "describe_table", "describe_table", "read_query"]);
    for candidate in &candidates {
        let sql = query(candidate);
        assert!(!sql.contains("JOIN") || sql.contains("orders.customer_id = customers.id"), "{sql}");
    }
    // Values that no customer has are no references.
    let strangers = ORDERS.replace("\"customer_id\": 2", "\"customer_id\": 77");
    let candidates = candidates_of(&[("customers", CUSTOMERS), ("orders", &strangers)]);
    assert!(candidates.iter().all(|candidate| !query(candidate).contains("JOIN")));
}

#[test]
fn queries_are_those_that_a_person_writes() {
    let candidates = candidates_of(&[("customers", CUSTOMERS), ("orders", ORDERS)]);
    for (family, sql) in [
        ("customers: city by name", "SELECT city FROM customers WHERE name = 'Ann Lee'"),
        ("customers: count", "SELECT COUNT(*) FROM customers"),
        ("customers: count by city", "SELECT COUNT(*) FROM customers WHERE city = 'Bern'"),
        ("customers: name by city", "SELECT name FROM customers WHERE city = 'Bern'"),
        ("customers: values of city", "SELECT DISTINCT city FROM customers"),
        ("orders: summary of total", "SELECT ROUND(SUM(total), 2) FROM orders"),
        ("orders: extreme of total", "SELECT id FROM orders WHERE total = (SELECT MAX(total) FROM orders)"),
        (
            "orders: count by customer",
            "SELECT COUNT(*) FROM orders JOIN customers ON orders.customer_id = customers.id WHERE customers.name = 'Ann Lee'",
        ),
        (
            "orders: most by customer",
            "SELECT customers.name, COUNT(*) AS total FROM orders JOIN customers ON orders.customer_id = customers.id \
             GROUP BY customers.id ORDER BY total DESC LIMIT 3",
        ),
    ] {
        let found = of_family(&candidates, family);
        assert!(
            found.iter().any(|candidate| query(candidate) == sql),
            "{family}: {:?}",
            found.first().map(|one| query(one))
        );
    }
}

#[test]
fn names_that_no_row_has_are_asked_about_as_often_as_names_that_one_has() {
    let candidates = candidates_of(&[("customers", CUSTOMERS)]);
    let found = of_family(&candidates, "customers: city by name, if any");
    let (absent, there): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|candidate| matches!(candidate.rule, AnswerRule::Absent { .. }));
    assert!(!absent.is_empty() && absent.len() == there.len());
    assert!(absent.iter().all(|candidate| !CUSTOMERS.contains(&candidate.entity["name"])));
    assert!(absent.iter().chain(&there).all(|candidate| candidate.task.contains("none")));
}

#[test]
fn numbers_that_are_stored_as_texts_are_not_added_up_or_compared() {
    let candidates = candidates_of(&[("orders", ORDERS)]);
    assert!(candidates.iter().all(|candidate| {
        !["SUM(code)", "MAX(code)", "code >"].iter().any(|part| query(candidate).contains(part))
    }));
}

const VISITS: &str = r#"[{"visit_no": 1, "patient_no": 11, "day": "2025-03-02", "is_urgent": 0, "note": null, "state": "open"},
    {"visit_no": 2, "patient_no": 12, "day": "2025-03-09", "is_urgent": 1, "note": "x", "state": "done"},
    {"visit_no": 3, "patient_no": 11, "day": "2025-04-01", "is_urgent": 1, "note": null, "state": "done"}]"#;
const PATIENTS: &str = r#"[{"patient_no": 11, "name": "Ann Lee", "town": "Bern"}, {"patient_no": 12, "name": "Bo Kim", "town": "Bern"},
    {"patient_no": 13, "name": "Cy Dow", "town": "Oslo"}]"#;

#[test]
fn keys_dates_flags_and_missing_values_are_told_by_names_and_values() {
    let prescriptions = r#"[{"rx_no": 1, "dose": 5}, {"rx_no": 2, "dose": 9}, {"rx_no": 3, "dose": 7}]"#;
    let candidates =
        candidates_of(&[("patients", PATIENTS), ("visits", VISITS), ("prescriptions", prescriptions)]);
    for (family, sql) in [
        ("prescriptions: dose by rx_no", "SELECT dose FROM prescriptions WHERE rx_no = 1"),
        ("visits: state by visit_no", "SELECT state FROM visits WHERE visit_no = 1"),
        (
            "visits: town of the patient",
            "SELECT patients.town FROM visits JOIN patients ON visits.patient_no = patients.patient_no WHERE visits.visit_no = 1",
        ),
        ("visits: count by month of day", "SELECT COUNT(*) FROM visits WHERE day LIKE '2025-03%'"),
        ("visits: count by size of day", "SELECT COUNT(*) FROM visits WHERE day > '2025-03-09'"),
        ("visits: extreme of day", "SELECT visit_no FROM visits WHERE day = (SELECT MAX(day) FROM visits)"),
        ("visits: count by is_urgent", "SELECT COUNT(*) FROM visits WHERE is_urgent = 1"),
        ("visits: count without note", "SELECT COUNT(*) FROM visits WHERE note IS NULL"),
        (
            "visits: patients without visits",
            "SELECT COUNT(*) FROM patients WHERE patient_no NOT IN (SELECT patient_no FROM visits)",
        ),
    ] {
        let found = of_family(&candidates, family);
        assert!(
            found.iter().any(|candidate| query(candidate) == sql),
            "{family}: {:?}",
            found.first().map(|one| query(one))
        );
    }
    let nonsense = ["(rx_no)", "SUM(patient_no)", "MAX(visit_no)", "AVG(is_urgent)"];
    for candidate in &candidates {
        assert!(!nonsense.iter().any(|part| query(candidate).contains(part)), "{}", query(candidate));
    }
}

#[test]
fn one_question_is_asked_in_many_ways_and_always_names_its_values() {
    let texts = |of: &str, seed: u64| {
        let asked = candidates_with(&[("customers", CUSTOMERS), ("orders", ORDERS)], seed);
        let found = of_family(&asked, of).into_iter().map(|candidate| candidate.task.clone());
        found.collect::<Vec<_>>()
    };
    for family in [
        "customers: city by name",
        "customers: count by city",
        "orders: name of the customer",
        "orders: count by customer",
    ] {
        let all: BTreeSet<String> = (0..60).flat_map(|seed| texts(family, seed)).collect();
        let shapes: BTreeSet<String> = all.iter().map(|text| text.replace(['"', '#'], "")).collect();
        assert!(shapes.len() > 40, "{family}: {}", shapes.len());
        assert!(all.iter().all(|text| !text.contains(['{', '}'])), "{all:?}");
    }
    for candidate in candidates_of(&[("customers", CUSTOMERS), ("orders", ORDERS)]) {
        let said = candidate.entity.iter().filter(|(name, _)| *name != "day");
        for (_, value) in said {
            let is_said =
                candidate.task.contains(value.as_str()) || value == "1" && candidate.task.contains("one ");
            assert!(is_said, "{}: {value}", candidate.task);
        }
    }
}

#[test]
fn some_solutions_have_a_query_that_fails_and_behind_it_what_shows_why() {
    let mut kinds: BTreeSet<(usize, &str)> = BTreeSet::new();
    let (mut some, mut all, mut repeated) = (0, 0, 0);
    for seed in 0..20 {
        let candidates = candidates_with(&[("customers", CUSTOMERS), ("orders", ORDERS)], seed);
        all += candidates.len();
        let slips: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.may_fail).collect();
        some += slips.len();
        for candidate in slips {
            let is_query = |call: &&ToolCall| call.name == "read_query";
            let queries: Vec<&ToolCall> = candidate.calls.iter().filter(is_query).collect();
            let (right, failing) = queries.split_last().unwrap();
            assert_eq!(right.arguments["query"], query(candidate));
            assert!(failing.iter().all(|call| *call == failing[0]), "{failing:?}");
            repeated += usize::from(failing.len() == 2);
            let wrong = failing[0].arguments["query"].as_str().unwrap();
            let tables = ["customers", "orders"];
            let is_word = |letter: char| !letter.is_alphanumeric() && letter != '_';
            let words: Vec<&str> = wrong.split(is_word).collect();
            let behind = |word: &str| words.iter().position(|one| *one == word).map(|at| words[at + 1]);
            let names_no_table = behind("FROM").is_some_and(|table| !tables.contains(&table));
            let is_unjoined = words.windows(2).any(|pair| {
                tables.contains(&pair[0])
                    && wrong.contains(&format!("{}.", pair[0]))
                    && behind("FROM") != Some(pair[0])
                    && behind("JOIN") != Some(pair[0])
            });
            let has_no_column = words.iter().any(|word| {
                word.starts_with("order_") || word.starts_with("customer_") && *word != "customer_id"
            });
            let kind = match (names_no_table, is_unjoined, has_no_column) {
                (true, ..) => "table",
                (_, true, _) => "join",
                (.., true) => "column",
                _ if words.contains(&"customer") || words.contains(&"order") => "table",
                _ if tables.iter().any(|table| wrong.contains(&format!(" {table} FROM "))) => "whole",
                _ => panic!("nothing is wrong with {wrong}"),
            };
            let at = candidate.calls.iter().rposition(|call| call == failing[0]).unwrap();
            kinds.insert((candidate.calls.len() - 2 - at, kind));
        }
    }
    assert!(some * 3 < all && some * 6 > all, "{some} of {all}");
    assert!(repeated > 0 && repeated * 2 < some, "{repeated} of {some}");
    // Calls between the failing query and the right one: none, descriptions, or the list of tables too.
    for kind in [(0, "column"), (0, "whole"), (1, "column"), (2, "table"), (1, "join")] {
        assert!(kinds.contains(&kind), "{kind:?}: {kinds:?}");
    }
}

#[test]
fn a_reference_is_found_by_the_name_of_a_key_and_by_codes_and_followed_further() {
    let staff = r#"[{"staff_code": "AKO", "full_name": "Agnes Kolar", "hired": 2009}, {"staff_code": "BFA", "full_name": "Bruno Falk", "hired": 2014},
        {"staff_code": "CMO", "full_name": "Celia Moran", "hired": 2012}]"#;
    let patients = r#"[{"patient_no": 11, "surname": "Conti", "given_name": "Chiara", "dob": "1949-07-01"},
        {"patient_no": 12, "surname": "Maes", "given_name": "Lotte", "dob": "2014-08-03"}]"#;
    let appointments = r#"[{"appt_no": 51, "patient_no": 11, "seen_by": "AKO", "held_on": "2024-01-11", "minutes": 20, "private": 0},
        {"appt_no": 52, "patient_no": 12, "seen_by": "BFA", "held_on": "2024-02-02", "minutes": 35, "private": 1},
        {"appt_no": 53, "patient_no": 11, "seen_by": "BFA", "held_on": "2024-02-02", "minutes": 10, "private": 1}]"#;
    let prescriptions = r#"[{"rx_no": 1, "appt_no": 52, "dose_mg": 5}, {"rx_no": 2, "appt_no": 53, "dose_mg": 9}, {"rx_no": 3, "appt_no": 53, "dose_mg": 9}]"#;
    let tables = [
        ("staff", staff),
        ("patients", patients),
        ("appointments", appointments),
        ("prescriptions", prescriptions),
    ];
    let candidates = candidates_of(&tables);
    for (family, sql) in [
        (
            "appointments: count by staff member",
            "SELECT COUNT(*) FROM appointments JOIN staff ON appointments.seen_by = staff.staff_code WHERE staff.full_name = 'Bruno Falk'",
        ),
        (
            "prescriptions: held_on of the appointment",
            "SELECT appointments.held_on FROM prescriptions JOIN appointments ON prescriptions.appt_no = appointments.appt_no \
             WHERE prescriptions.rx_no = 1",
        ),
        (
            "prescriptions: count by patient",
            "SELECT COUNT(*) FROM prescriptions JOIN appointments ON prescriptions.appt_no = appointments.appt_no \
             JOIN patients ON appointments.patient_no = patients.patient_no \
             WHERE patients.given_name = 'Chiara' AND patients.surname = 'Conti'",
        ),
        (
            "patients: dob by full_name",
            "SELECT dob FROM patients WHERE given_name = 'Lotte' AND surname = 'Maes'",
        ),
        (
            "patients: extreme of dob",
            "SELECT given_name || ' ' || surname AS full_name FROM patients WHERE dob = (SELECT MIN(dob) FROM patients)",
        ),
    ] {
        let found = of_family(&candidates, family);
        assert!(
            found.iter().any(|candidate| query(candidate) == sql),
            "{family}: {:?}",
            found.first().map(|one| query(one))
        );
    }
    let all: Vec<String> =
        (0..30).flat_map(|seed| candidates_with(&tables, seed)).map(|candidate| candidate.task).collect();
    for text in [
        "When was Agnes Kolar hired?",
        "the oldest patient",
        "appointments held on 2024-02-02",
        "Is appointment 52 private? Give the value of private.",
        "the appointment number",
    ] {
        assert!(all.iter().any(|task| task.contains(text)), "{text}");
    }
    for odd in ["appt", "seen by", "the hired", "held on of", "staffs", "dob"] {
        assert!(
            !all.iter().any(|task| task.contains(odd)),
            "{:?}",
            all.iter().find(|task| task.contains(odd))
        );
    }
}

#[test]
fn a_table_of_links_says_what_belongs_together_and_nothing_of_its_rows() {
    let lines = r#"[{"id": 1, "name": "Red Line"}, {"id": 2, "name": "Blue Line"}]"#;
    let stops =
        r#"[{"id": 1, "name": "Town Hall"}, {"id": 2, "name": "North Gate"}, {"id": 3, "name": "Old Mill"}]"#;
    let links = r#"[{"line_id": 1, "stop_id": 1, "position": 1}, {"line_id": 1, "stop_id": 2, "position": 2}, {"line_id": 2, "stop_id": 2, "position": 1},
        {"line_id": 2, "stop_id": 3, "position": 2}]"#;
    let candidates = candidates_of(&[("lines", lines), ("stops", stops), ("line_stops", links)]);
    let counted = of_family(&candidates, "line_stops: number of stops by line");
    assert!(counted.iter().any(|one| query(one).contains("COUNT(DISTINCT stops.name)")), "{counted:?}");
    assert!(!of_family(&candidates, "line_stops: stop by line").is_empty());
    assert!(candidates.iter().all(|one| !one.task.contains("line stop")));
}

#[test]
fn what_was_spent_is_pieces_times_the_price_of_another_table() {
    let orders = r#"[{"id": 1, "customer_id": 4, "product_id": 1, "quantity": 2}, {"id": 2, "customer_id": 4, "product_id": 2, "quantity": 5}]"#;
    let products = r#"[{"id": 1, "name": "Lamp", "price": 9.5}, {"id": 2, "name": "Desk", "price": 80.0}]"#;
    let candidates = candidates_of(&[("customers", CUSTOMERS), ("orders", orders), ("products", products)]);
    let found = of_family(&candidates, "orders: value by customer");
    let sql = "SELECT ROUND(SUM(orders.quantity * products.price), 2) FROM orders JOIN products ON orders.product_id = products.id \
               JOIN customers ON orders.customer_id = customers.id WHERE customers.name = 'Di Fox'";
    assert!(
        found.iter().any(|candidate| query(candidate) == sql),
        "{:?}",
        found.first().map(|one| query(one))
    );
    let found = of_family(&candidates, "orders: value by product");
    let sql = "SELECT ROUND(SUM(orders.quantity * products.price), 2) FROM orders JOIN products ON orders.product_id = products.id \
               WHERE products.name = 'Lamp'";
    assert!(
        found.iter().any(|candidate| query(candidate) == sql),
        "{:?}",
        found.first().map(|one| query(one))
    );
}

#[test]
fn as_many_tasks_are_about_one_table_as_about_several_and_each_table_is_asked_about() {
    let candidates = candidates_of(&[("customers", CUSTOMERS), ("orders", ORDERS), ("patients", PATIENTS)]);
    let budget = super::super::Budget {
        calls: 0,
        seconds: 0,
        tasks: 24,
        per_family: 4,
        impossible_share: 0.0,
        no_call_share: 0.0,
        result_chars: 0,
    };
    let chosen = super::super::selection::chosen(candidates, subject, budget, 1.0, 1);
    let of = |wanted: (usize, &str)| {
        chosen.iter().filter(|one| subject(one) == (wanted.0, wanted.1.to_owned())).count()
    };
    assert_eq!(chosen.len(), 24);
    assert_eq!(of((1, "orders")), 12);
    assert_eq!([of((0, "customers")), of((0, "orders")), of((0, "patients"))], [4, 4, 4]);
}

#[test]
fn a_text_that_looks_like_a_number_stays_a_text() {
    let people = r#"[{"id": 1, "name": "Ann Lee", "zip": "01067", "pay": 3000}, {"id": 2, "name": "Bo Kim", "zip": "04109", "pay": 1067},
        {"id": 3, "name": "Cy Dow", "zip": "01067", "pay": 2900}]"#;
    let shops =
        r#"[{"id": 1, "name": "Ann Shop", "rating": "4.1"}, {"id": 2, "name": "Bo Shop", "rating": "4.10"}]"#;
    let rated = candidates_of(&[("shops", shops)]);
    let rated = of_family(&rated, "shops: rating by name");
    assert!(!rated.is_empty() && rated.iter().all(|one| one.scenario(Some("4.1".into())).check == "text"));
    let candidates = candidates_of(&[("people", people)]);
    let counted = of_family(&candidates, "people: count by zip");
    let sql = "SELECT COUNT(*) FROM people WHERE zip = '01067'";
    let found = counted.iter().find(|one| query(one) == sql).unwrap();
    assert_eq!(
        found.asks,
        Some(
            json!({"operation": "count", "source": {"table": "people"}, "where": [{"column": "people.zip", "is": "01067"}]})
        )
    );
    for candidate in &candidates {
        let sql = query(candidate);
        let wrong = ["= 01067", "= 04109", "zip >", "zip <", "MAX(zip)", "AVG(zip)", "SUM(zip)", "pay = '"];
        assert!(!wrong.iter().any(|part| sql.contains(part)), "{sql}");
    }
    let lookup = of_family(&candidates, "people: zip by name");
    assert!(lookup.iter().all(|one| one.scenario(Some("01067".into())).check == "text"));
    let paid = of_family(&candidates, "people: pay by name");
    assert_eq!(paid[0].asks.as_ref().unwrap()["where"][0]["column"], "people.name");
    assert!(paid.iter().all(|one| one.scenario(Some("3000".into())).check == "number"));
}

#[test]
fn what_refers_to_nothing_is_no_group_and_in_no_list() {
    let coupons =
        r#"[{"id": 1, "name": "SPRING"}, {"id": 2, "name": "SUMMER"}, {"id": 3, "name": "AUTUMN"}]"#;
    let orders = r#"[{"id": 1, "coupon_id": 1, "city": "Oslo"}, {"id": 2, "coupon_id": null, "city": null}, {"id": 3, "coupon_id": 2, "city": "Oslo"},
        {"id": 4, "coupon_id": 1, "city": "Bern"}, {"id": 5, "coupon_id": null, "city": null}]"#;
    let candidates = candidates_of(&[("coupons", coupons), ("orders", orders)]);
    for (family, sql) in [
        (
            "orders: coupons with several orders",
            "SELECT COUNT(*) FROM (SELECT coupon_id FROM orders WHERE coupon_id IS NOT NULL GROUP BY coupon_id HAVING COUNT(*) >= 2)",
        ),
        (
            "orders: coupons without orders",
            "SELECT COUNT(*) FROM coupons WHERE id NOT IN (SELECT coupon_id FROM orders WHERE coupon_id IS NOT NULL)",
        ),
        ("orders: coupons with orders", "SELECT COUNT(DISTINCT coupon_id) FROM orders"),
        (
            "orders: most frequent city",
            "SELECT city, COUNT(*) AS total FROM orders WHERE city IS NOT NULL GROUP BY city ORDER BY total DESC LIMIT 3",
        ),
    ] {
        let found = of_family(&candidates, family);
        assert!(
            found.iter().any(|one| query(one) == sql),
            "{family}: {:?}",
            found.first().map(|one| query(one))
        );
    }
}

#[test]
fn a_count_is_no_reference() {
    let departments = r#"[{"id": 1, "name": "Sales", "employee_count": 3, "num_employees": 2, "employee": 1}, {"id": 2, "name": "Legal", "employee_count": 2, "num_employees": 1, "employee": 3},
        {"id": 3, "name": "Support", "employee_count": 1, "num_employees": 3, "employee": 2}]"#;
    let employees = r#"[{"id": 1, "name": "Ada Byron", "department_id": 1}, {"id": 2, "name": "Bob Stone", "department_id": 3}, {"id": 3, "name": "Cara Lind", "department_id": 2}]"#;
    for candidate in candidates_of(&[("departments", departments), ("employees", employees)]) {
        let sql = query(&candidate);
        assert!(!sql.contains("JOIN") || sql.contains("employees.department_id = departments.id"), "{sql}");
        // A number that may be a key is no quantity either.
        assert!(!["(employee)", "employee >"].iter().any(|part| sql.contains(part)), "{sql}");
    }
}

#[test]
fn a_row_of_a_table_with_several_keys_has_no_id_and_a_code_is_no_quantity() {
    let items = r#"[{"order_id": 1, "line_no": 1, "isbn": 9780306406157, "moved_at": 1718000000, "pieces": 3}, {"order_id": 2, "line_no": 2, "isbn": 9780306406170, "moved_at": 1718000007, "pieces": 5}]"#;
    let orders = r#"[{"id": 1, "placed": "2025-01-02"}, {"id": 2, "placed": "2025-01-03"}]"#;
    let candidates = candidates_of(&[("order_items", items), ("orders", orders)]);
    assert!(of_family(&candidates, "order_items: summary of pieces").len() > 2);
    for candidate in &candidates {
        let sql = query(candidate);
        let of_row = sql.starts_with("SELECT") && sql.contains("WHERE order_id =");
        let computed = ["isbn", "moved_at", "line_no", "order_id"];
        let is_computed =
            computed.iter().any(|column| sql.contains(&format!("({column})")) && !sql.contains("COUNT"));
        assert!(!of_row && !is_computed, "{sql}");
    }
}

#[test]
fn what_rows_have_is_not_what_they_belong_to() {
    let currencies = r#"[{"code": "NOK", "name": "Norwegian krone", "zone": "north"}, {"code": "PLN", "name": "Polish zloty", "zone": "east"},
        {"code": "SEK", "name": "Swedish krona", "zone": "north"}]"#;
    let transfers = r#"[{"id": 1, "currency": "NOK", "amount": 5}, {"id": 2, "currency": "PLN", "amount": 7}, {"id": 3, "currency": "NOK", "amount": 9}]"#;
    let tags = r#"[{"transfer_id": 1, "tag": "a b"}, {"transfer_id": 1, "tag": "c"}, {"transfer_id": 2, "tag": "c"}]"#;
    let tables = [
        ("currencies", currencies),
        ("transfers", transfers),
        ("tags", tags),
        ("customers", CUSTOMERS),
        ("orders", ORDERS),
    ];
    let all: Vec<Candidate> = (0..60).flat_map(|seed| candidates_with(&tables, seed)).collect();
    let tasks = |family: &str| -> BTreeSet<&str> {
        all.iter().filter(|one| one.family == family).map(|one| one.task.as_str()).collect()
    };
    for (family, task) in [
        ("transfers: count by currency", "How many transfers have the currency Norwegian krone?"),
        (
            "transfers: count by zone of the currency",
            "How many transfers have a currency with the zone north?",
        ),
        ("orders: count by customer", "How many orders does Bo Kim have?"),
        ("orders: count by city of the customer", "Count the orders of customers in Bern."),
        ("tags: count", "How many tags are there, counting repeats?"),
        ("transfers: amount by id", "What is the amount of transfer 1?"),
    ] {
        let found = tasks(family);
        assert!(found.contains(task), "{family}: {found:?}");
        assert!(found.iter().all(|one| !one.contains("are there for")), "{found:?}");
    }
}

#[test]
fn nothing_is_compared_within_a_set_of_one() {
    let found = candidates_of(&[("customers", CUSTOMERS), ("classes", CLASSES)]);
    let within = found.iter().filter(|one| one.family.contains("pupil_count by room"));
    let rooms: BTreeSet<&str> = within.map(|one| one.entity["room"].as_str()).collect();
    assert_eq!(rooms, BTreeSet::from(["101"]));
}

const CLASSES: &str = r#"[{"id": "05a", "room": "101", "pupil_count": 20}, {"id": "05b", "room": "101", "pupil_count": 22},
    {"id": "06a", "room": "007", "pupil_count": 19}]"#;
