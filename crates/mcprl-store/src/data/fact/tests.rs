use serde_json::json;

use super::*;
use crate::data::{Message, MessageCall};

fn task(text: &str, answer: &str) -> Scenario {
    Scenario {
        task: text.into(),
        answer: Some(answer.into()).filter(|answer: &String| !answer.is_empty()),
        ..Scenario::default()
    }
}

fn solved(text: &str, answer: &str, tool: &str, arguments: Value) -> Scenario {
    let listing = json!({"name": "list_tables", "arguments": {}});
    let reference = Some(json!([listing, {"name": tool, "arguments": arguments}]).to_string());
    Scenario { reference, ..task(text, answer) }
}

fn queried(text: &str, answer: &str, query: &str) -> Scenario {
    solved(text, answer, "read_query", json!({"query": query}))
}

fn is(one: &Scenario, other: &Scenario) -> bool {
    let same = Fact::of(one).is(&Fact::of(other));
    assert_eq!(same, Fact::of(other).is(&Fact::of(one)), "{} | {}", one.task, other.task);
    assert_eq!(same, Facts::of([one]).has(other));
    same
}

#[test]
fn queries_that_ask_the_same_are_one_normal_form() {
    for group in [
        &[
            "SELECT name FROM products WHERE price > 10 AND stock = 0",
            "select Name from \"Products\" where stock = 0 and price > 10;",
            "SELECT p.name AS n FROM products p WHERE 0 = p.stock AND (p.price > 10.0)",
            "SELECT DISTINCT [name] FROM products AS x WHERE x.`stock` = '0' AND 10 < price ORDER BY n",
        ][..3],
        &[
            "SELECT COUNT(*) FROM orders JOIN customers ON orders.customer_id = customers.id WHERE customers.name = 'Ann'",
            "SELECT count(1) AS n FROM customers c INNER JOIN orders o ON c.id = o.customer_id WHERE c.name = \"Ann\"",
            "SELECT COUNT(*) FROM customers, orders WHERE name = 'ann' AND customers.id = orders.customer_id",
        ],
        &[
            "SELECT name FROM products WHERE price = (SELECT MAX(price) FROM products)",
            "SELECT name FROM products ORDER BY price DESC LIMIT 1",
            "SELECT p.name FROM products p ORDER BY p.price desc limit 1",
        ],
        &[
            "SELECT name FROM products WHERE category = 'x' AND price = (SELECT MIN(price) FROM products WHERE category = 'x')",
            "SELECT name FROM products WHERE category = 'X' ORDER BY price ASC LIMIT 1",
        ],
        &[
            "SELECT customers.name, COUNT(*) AS total FROM orders JOIN customers ON orders.customer_id = customers.id \
             GROUP BY customers.id ORDER BY total DESC LIMIT 3",
            "SELECT c.name FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY c.name ORDER BY COUNT(*) DESC LIMIT 1",
        ],
        &["SELECT MAX(price) FROM products", "SELECT price FROM products ORDER BY price DESC LIMIT 1"],
        &["SELECT ROUND(AVG(price), 2) FROM products", "SELECT avg(price) AS mean FROM products"],
        &[
            "SELECT id FROM t WHERE a IN ('b')",
            "SELECT id FROM t WHERE a LIKE 'B'",
            "SELECT id FROM t WHERE lower(a) = 'b'",
        ],
        &["SELECT id FROM t WHERE a = 1 OR b = 2", "SELECT id FROM t WHERE (b = 2 OR a = 1)"],
        &[
            "SELECT id FROM t WHERE a BETWEEN 1 AND 2 AND b != 3",
            "SELECT id FROM t WHERE b <> 3 AND a BETWEEN 1 AND 2",
        ],
        &[
            "SELECT a, COUNT(*) AS n FROM t GROUP BY a ORDER BY n DESC LIMIT 3",
            "SELECT a FROM t GROUP BY b ORDER BY COUNT(*) DESC LIMIT 1",
        ],
    ] {
        let forms: BTreeSet<String> = group.iter().map(|query| sql::normal(query, false)).collect();
        assert_eq!(forms.len(), 1, "{forms:#?}");
    }
}

#[test]
fn queries_that_ask_something_else_are_others() {
    for (one, other) in [
        ("SELECT name FROM t WHERE a = 1", "SELECT name FROM t WHERE a = 2"),
        ("SELECT name FROM t WHERE a = 1", "SELECT name FROM u WHERE a = 1"),
        ("SELECT name FROM t WHERE a > 1", "SELECT name FROM t WHERE a < 1"),
        ("SELECT name FROM t WHERE a = 1", "SELECT name FROM t WHERE a = 1 AND b = 2"),
        ("SELECT MAX(a) FROM t", "SELECT MIN(a) FROM t"),
        ("SELECT COUNT(DISTINCT a) FROM t", "SELECT COUNT(a) FROM t"),
        ("SELECT a FROM t WHERE b IS NULL", "SELECT a FROM t WHERE b IS NOT NULL"),
        ("SELECT a FROM t ORDER BY b DESC LIMIT 1", "SELECT a FROM t ORDER BY b LIMIT 1"),
        (
            "SELECT a FROM t WHERE a = (SELECT MAX(a) FROM u)",
            "SELECT a FROM t WHERE a = (SELECT MAX(a) FROM t)",
        ),
    ] {
        assert_ne!(sql::normal(one, false), sql::normal(other, false));
    }
}

#[test]
fn any_text_has_a_normal_form() {
    for text in [
        "select 'open",
        "SELECT ((((",
        "SELECT )",
        "select",
        "SELECT \"",
        "SELECT a FROM",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "SELECT é FROM t WHERE ü = 'ß'",
        "SELECT a FROM t WHERE AND AND",
        "select , , from , where or or",
        "SELECT -- x",
    ] {
        assert!(sql::is_query(text));
        let normal = sql::normal(text, false);
        assert_eq!(normal, sql::normal(text, false));
        sql::normal(text, true);
    }
    sql::normal(&format!("SELECT {}", "(".repeat(100_000)), false);
    assert!(!sql::is_query("selection"));
}

#[test]
fn kinds_differ_in_values_alone() {
    let kind = |query: &str| Fact::of(&queried("?", "1", query)).kind.unwrap();
    let price = |name: &str| kind(&format!("SELECT price FROM products WHERE name = '{name}'"));
    assert_eq!(price("Desk"), price("O''Neil"));
    assert_ne!(price("Desk"), kind("SELECT stock FROM products WHERE name = 'Desk'"));
    let order = |id: Value, field: Option<&str>| {
        let asks = field.map(|field| Json(json!({"operation": "field", "field": field}).to_string()));
        Fact::of(&Scenario { asks, ..solved("?", "1", "get_order", json!({"id": id})) }).kind
    };
    assert_eq!(order(json!(7), Some("total")), order(json!("x"), Some("total")));
    assert_ne!(order(json!(7), Some("total")), order(json!(7), Some("owner")));
    assert_eq!(order(json!(7), None), None, "many questions have one call");
    let facts = Facts::of([&queried("?", "1", "SELECT price FROM products WHERE name = 'Desk'")]);
    let has = |scenario: &Scenario| facts.has_kind(&Fact::of(scenario));
    assert_eq!(has(&queried("?", "2", "SELECT price FROM products WHERE name = 'Lamp'")), Some(true));
    assert_eq!(has(&queried("?", "2", "SELECT COUNT(*) FROM products")), Some(false));
    assert_eq!(has(&task("?", "2")), None);
}

#[test]
fn tasks_with_solutions_are_compared_by_the_last_call_and_the_answer() {
    let one = queried(
        "How many of the orders of Fatima Zahra have the status shipped?",
        "3",
        "SELECT COUNT(*) FROM orders JOIN customers ON orders.customer_id = customers.id \
         WHERE customers.name = 'Fatima Zahra' AND orders.status = 'shipped'",
    );
    let other = queried(
        "How many orders of Fatima Zahra have been shipped?",
        "3",
        "SELECT count(*) FROM orders o JOIN customers c ON o.customer_id = c.id WHERE o.status = 'shipped' AND c.name = 'Fatima Zahra'",
    );
    assert!(is(&one, &other));
    // What else the same result says is another fact.
    let get = |text: &str, answer: &str| solved(text, answer, "get_order", json!({"order_id": 9}));
    assert!(!is(&get("Who placed order 9?", "Ann"), &get("What did order 9 cost?", "20")));
    assert!(is(&get("What is the total of order 9?", "20.0"), &get("What did order 9 cost?", "20")));
    assert!(!is(
        &get("Who placed order 9?", "Ann"),
        &solved("Who placed order 8?", "Ann", "get_order", json!({"order_id": 8}))
    ));
    assert!(is(
        &solved("a", "x", "t", json!({"a": 1, "b": "Q", "c": null})),
        &solved("b", "x", "t", json!({"b": "q", "a": "1"}))
    ));
    let node = |tool: &str, arguments: Value| solved(tool, "Ann", tool, arguments);
    let opened = node("open_nodes", json!({"names": ["dipper"], "limit": 5}));
    assert!(is(&node("search_nodes", json!({"query": "Dipper"})), &opened));
    assert!(!is(&node("list_nodes", json!({})), &node("list_edges", json!({}))));
    let listed = |text: &str| solved(text, "3", "list_pets", json!({}));
    assert!(!is(&listed("How many pets are there?"), &listed("What is the age of the pet Rex?")));
    assert!(is(&listed("How old is Rex?"), &listed("What is the age of the pet Rex?")));
}

#[test]
fn tasks_without_a_solution_are_compared_by_their_values_and_the_answer() {
    let entity = Some(json!({"name": "Fatima Zahra", "status": "shipped"}).to_string());
    let explored = Scenario {
        entity,
        ..queried("How many of the orders of Fatima Zahra have the status shipped?", "3", "SELECT 1")
    };
    assert!(is(&explored, &task("How many orders of Fatima Zahra have been shipped?", "3")));
    assert!(!is(&explored, &task("How many orders of Fatima Zahra have been shipped?", "4")));
    assert!(!is(&explored, &task("How many orders of Ann Lee have been shipped?", "3")));
    assert!(
        !is(&explored, &task("How many orders of Fatima Zahra are open?", "3")),
        "it does not say shipped"
    );
    assert!(is(
        &task("What is the price of the product in order 9?", "5"),
        &task("Order number 9: its product's price?", "5.0")
    ));
    assert!(is(&task("How many customers do we have?", "12"), &task("Count the customers.", "12")));
    assert!(!is(&task("How many customers do we have?", "12"), &task("How many orders were placed?", "12")));
    assert!(
        !is(&task("Close ticket T1", ""), &task("Close the ticket T1 now", "")),
        "nothing says how they end"
    );
    assert!(is(&task("Close ticket T1", ""), &task("close ticket T1!", "")));
}

#[test]
fn a_sentence_names_what_it_quotes_identifiers_and_names() {
    for (text, values) in [
        ("What is the price of \"Oak Desk\"?", &["oak desk"][..]),
        ("Who is the manager of Fatima Zahra's team in Oslo?", &["fatima zahra", "oslo"]),
        ("Ticket T-112, ada_1 and 1,200.50 on 2024-05-01", &["t-112", "ada_1", "1200.5", "2024-05-01"]),
        ("How many orders are there?", &[]),
    ] {
        let expected: BTreeSet<String> = values.iter().map(|value| (*value).to_owned()).collect();
        assert_eq!(named(text), expected, "{text}");
    }
}

#[test]
fn a_solution_of_another_form_hides_no_task_that_names_the_same_and_has_the_answer() {
    let joined = "SELECT COUNT(*) FROM orders JOIN customers ON orders.customer_id = customers.id WHERE name = 'Ann Lee'";
    let within =
        "SELECT COUNT(*) FROM orders WHERE customer_id IN (SELECT id FROM customers WHERE name = 'Ann Lee')";
    let asked = |text: &str, query: &str| queried(text, "3", query);
    let (one, other) =
        (asked("How many orders has Ann Lee placed?", joined), asked("Count the orders of Ann Lee.", within));
    assert!(is(&one, &other));
    assert!(!Fact::of(&one).is_certainly(&Fact::of(&other)));
    let paid = asked("Count the paid orders.", "SELECT COUNT(*) FROM paid_orders");
    assert!(is(
        &paid,
        &asked("How many of the orders are paid?", "SELECT COUNT(*) FROM orders WHERE status = 'paid'")
    ));
    assert!(!is(
        &paid,
        &asked("How many products are out of stock?", "SELECT COUNT(*) FROM products WHERE stock = 0")
    ));
}

#[test]
fn answers_to_one_query_are_the_same_in_other_notations() {
    let query = "SELECT AVG(price) FROM products";
    let asked = |text: &str, answer: &str| queried(text, answer, query);
    for (one, other, same) in [
        ("245.67", "245.6667", true),
        ("1,200.50", "1200.5", true),
        ("Oslo, Bern", "Bern and Oslo", true),
        ("", "7", true),
        ("245.67", "245.7", true),
        ("245.67", "245.9", false),
        ("1,2,3", "123", false),
        ("Oslo", "Bern", false),
    ] {
        assert_eq!(is(&asked("One?", one), &asked("Two?", other)), same, "{one} | {other}");
    }
}

#[test]
fn roles_codes_and_rows_behind_the_first_are_kept_apart() {
    for (one, other) in [
        (
            "SELECT e.name FROM staff e JOIN staff b ON e.boss = b.id WHERE b.name = 'Bo'",
            "SELECT b.name FROM staff e JOIN staff b ON e.boss = b.id WHERE e.name = 'Bo'",
        ),
        ("SELECT a FROM t WHERE version = '1.10'", "SELECT a FROM t WHERE version = '1.1'"),
        ("SELECT a FROM t ORDER BY b LIMIT 1 OFFSET 4", "SELECT a FROM t ORDER BY b LIMIT 1"),
        ("SELECT SUM(ABS(a)) FROM t", "SELECT SUM(a) FROM t"),
    ] {
        assert_ne!(sql::normal(one, false), sql::normal(other, false));
    }
    let flight = |from: &str, to: &str| solved("?", "1", "flights", json!({"from": from, "to": to}));
    let told = |scenario: &Scenario| Fact::of(scenario).call;
    assert_ne!(told(&flight("Oslo", "Bern")), told(&flight("Bern", "Oslo")));
}

#[test]
fn deep_and_long_queries_are_read_in_bounded_time() {
    let mut deep = "SELECT 1".to_owned();
    for _ in 0..20 {
        deep = format!("SELECT ({deep}) AS x FROM t WHERE x > 1 AND x < 9 ORDER BY x");
    }
    for query in [
        deep,
        format!("SELECT {}", "a AND ".repeat(100_000)),
        format!("SELECT a FROM t WHERE {}", "(".repeat(9000)),
    ] {
        assert!(sql::normal(&query, false).len() < 2_000_000);
    }
}

#[test]
fn a_conversation_that_solves_a_task_of_the_exam_is_found() {
    let exam = [
        queried(
            "What do the orders of Ann Lee cost in total?",
            "1200.5",
            "SELECT SUM(total) FROM orders WHERE customer = 'Ann Lee'",
        ),
        solved("Close the ticket T-12.", "", "close_ticket", json!({"id": "T-12"})),
        queried("Which cities do we ship to?", "Bern, Oslo", "SELECT DISTINCT city FROM orders"),
        task("How many customers do we have?", "12"),
        task("Who wrote \"Low Tide\"?", "Ann"),
    ];
    let facts = Facts::of_exam(&exam);
    let user = |text: &str| Message::user(text);
    let says = |text: &str| Message::assistant(text, Vec::new());
    let calls = |name: &str, arguments: Value| {
        let arguments = arguments.as_object().unwrap().clone();
        let call = MessageCall { name: name.into(), arguments, ..MessageCall::default() };
        Message::assistant("", vec![call])
    };
    let ends = |answer: &str| calls("complete_task", json!({"answer": answer}));
    let query = |sql: &str| calls("read_query", json!({"query": sql}));
    let sum = || query("select sum(total) from orders where customer = \"Ann Lee\"");
    for conversation in [
        vec![user("Look it up."), sum(), ends("1200.50")],
        vec![user("What did she spend?"), sum(), says("She spent 1,200.50 euros.")],
        vec![user("I am Bob of Acme. What do we get from Ann Lee?"), says("That is 1200.5.")],
        vec![user("Done with it, please."), calls("close_ticket", json!({"id": "t-12"})), says("Closed.")],
        vec![user("Where to?"), query("SELECT city FROM orders"), ends("Oslo and Bern")],
        vec![user("Question: How many customers do we have? Answer with a number."), says("12")],
        vec![user("Count our customers."), says("12.")],
        vec![user("Hi"), says("Hello"), user("How many customers do we have?"), says("many")],
        vec![user("Hello\nWho wrote\n\"Low Tide\"? Be brief."), says("I do not know.")],
        vec![user("Who wrote Low Tide?"), says("Shall I look?"), user("Yes."), says("It was Ann.")],
    ] {
        assert!(facts.in_conversation(&conversation).is_some(), "{conversation:?}");
    }
    for conversation in [
        vec![
            user("What did he spend?"),
            query("SELECT SUM(total) FROM orders WHERE customer = 'Bo'"),
            ends("1200.50"),
        ],
        vec![user("Who wrote \"High Tide\"?"), says("Ann")],
        vec![user("Close it."), calls("close_ticket", json!({"id": "T-13"})), says("Closed.")],
        vec![],
    ] {
        assert_eq!(facts.in_conversation(&conversation), None, "{conversation:?}");
    }
}
