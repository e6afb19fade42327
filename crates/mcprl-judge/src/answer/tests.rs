use super::*;

const CITIES: &[&str] = &["Bern", "Oslo", "Porto", "New York", "York", "New Yorkshire"];

/// Whether each answer is right: check, task, expected value, candidates.
fn check((check, task, expected, candidates): (&str, &str, &str, &[&str]), answers: &[(&str, bool)]) {
    let candidates: Vec<String> = candidates.iter().map(|value| (*value).to_owned()).collect();
    let known = AnsweredTask { task, check, expected, candidates: &candidates };
    for (answer, right) in answers {
        assert_eq!(known.is_answered_by(answer), *right, "{known:?}: {answer:?}");
    }
}

#[test]
fn a_text_is_stated_as_whole_words_beside_no_other_value() {
    check(
        ("text", "Where does Ada live?", "Oslo", CITIES),
        &[
            ("Ada lives in Oslo.", true),
            ("ada lives in OSLO", true),
            ("She lives in **Oslo**, of course.", true),
            ("{\"city\":\"Oslo\"}", true),
            ("city:Oslo", true),
            ("Oslo, Oslo and Oslo", true),
            ("It is not Oslo.", false),
            ("It isn't Oslo", false),
            ("Oslo or Bern", false),
            ("Oslo, Norway", false),
            ("Oslo or Tromsø", false),
            ("Probably Oslo", false),
            ("Bern, Oslo, Porto", false),
            ("Oslo, Bergen, Tromsø", false),
            ("Not Bern but Oslo", false),
            ("Oslo/Bern", false),
            ("Ada lives in Bern.", false),
            ("Osloer", false),
            ("Oslo-based", false),
            ("ada@oslo.example", false),
            ("Ada lives somewhere.", false),
            ("", false),
        ],
    );
    check(
        ("text", "What is the status of order 7?", "shipped", &[]),
        &[
            ("The order has been shipped.", true),
            ("Order 7 is shipped, since it left on 2025-01-02", true),
            ("shipped, paid", false),
            ("It is paid and shipped.", false),
        ],
    );
}

#[test]
fn an_echo_of_a_result_is_no_answer() {
    let echoes = [
        "[{'city': 'Oslo'}]",
        "```json\n[{'city': 'Oslo'}]\n```",
        "<tool_response>\n[{'city': 'Oslo'}]\n</tool_response>",
        "{\"city\": \"Oslo\", \"id\": 4}",
        "[(\"Oslo\",)]",
        "read_query(\"Oslo\")",
        "SELECT 'Oslo' FROM cities",
        "Database error: Oslo",
    ];
    check(("text", "Where does Ada live?", "Oslo", CITIES), &echoes.map(|echo| (echo, false)));
}

#[test]
fn of_values_within_each_other_the_longer_one_is_stated() {
    check(
        ("text", "Where is it?", "York", CITIES),
        &[("It is in York.", true), ("It is in New York.", false), ("York, not New York", false)],
    );
    check(
        ("text", "Where is it?", "New  York", CITIES),
        &[
            ("It is in New York.", true),
            ("It is in new\nyork", true),
            ("New York, that is York", false),
            ("It is in New Yorkshire.", false),
            ("It is in York.", false),
        ],
    );
    check(
        ("text", "Who?", "Ada", &["Adam", "Bob"]),
        &[("It was Ada.", true), ("It was Adam.", false), ("Ada Byron", false)],
    );
    check(
        ("text", "Which ticket?", "A-1", &[]),
        &[
            ("The ticket is A-1.", true),
            ("Ticket (A-1)", true),
            ("The ticket is A-12.", false),
            ("The ticket is A-1-2.", false),
            ("The ticket is A-1, A-2.", false),
            ("The ticket is BA-1.", false),
        ],
    );
    check(("text", "Which one?", "C", &["Rust"]), &[("It is C.", true), ("C++", false), ("C#", false)]);
    check(
        ("text", "Which file?", "a.txt", &["b.txt"]),
        &[("The file a.txt is it.", true), ("It is in data/a.txt.", false), ("a.txt.gz", false)],
    );
}

#[test]
fn dates_and_times_are_read_in_every_form_with_one_meaning() {
    check(
        ("text", "When?", "2025-07-18", &["2025-07-01"]),
        &[
            ("It was on 2025-07-18.", true),
            ("18 July 2025", true),
            ("It was on July 18th, 2025.", true),
            ("7/18/2025", true),
            ("18.07.2025", true),
            ("From 2025-07-01 to 2025-07-18", false),
            ("In July 2025", false),
        ],
    );
    check(("text", "When?", "2025-04-03", &[]), &[("03/04/2025", false), ("3.4.2025", true)]);
    check(("text", "At what time?", "00:20", &[]), &[("At 12:20 am.", true), ("12:20 PM", false)]);
    check(
        ("text", "When?", "2025-02-11T04:15:00Z", &[]),
        &[("on 11 February 2025 at 04:15 UTC", true), ("on 11 February 2025", false)],
    );
    check(("text", "How long?", "2h 15m", &[]), &[("2 hours and 15 minutes", true), ("2 hours", false)]);
}

#[test]
fn yes_and_no_are_read_where_they_are_asked_for() {
    let locked = "Is the account of kim locked?";
    for expected in ["true", "1", "yes"] {
        check(
            ("text", locked, expected, &[]),
            &[
                ("Yes.", true),
                ("yes, the account is locked", true),
                ("The account of kim is locked.", true),
                ("The account of kim is not locked.", false),
                ("No", false),
                ("Yes or no", false),
                ("I cannot say anything about customers of a bank", false),
            ],
        );
    }
    check(("number", locked, "0", &[]), &[("No, it is not locked.", true), ("Yes", false)]);
    check(("number", "How many are locked?", "1", &[]), &[("Yes", false)]);
}

#[test]
fn of_values_that_the_task_names_one_is_chosen() {
    let task = "Of Bern and Porto, which is north of Lyon?";
    check(("text", task, "Oslo", CITIES), &[("North of Bern and Porto is Oslo.", true)]);
    check(("text", task, "Bern", CITIES), &[("It is Bern.", true), ("Bern and Porto", false), (task, false)]);
    check(
        ("number", "How many of the 5 orders of 2024 are paid?", "5", &[]),
        &[("5 of them are paid.", true), ("How many of the 5 orders of 2024 are paid?", false)],
    );
}

#[test]
fn what_needs_no_knowledge_is_wrong() {
    let status = ("text", "Is order 7 open or shipped?", "shipped", &["open", "paid"][..]);
    check(status, &[("It is open or shipped.", false), ("open or shipped", false), ("It is shipped.", true)]);
    let lists = ["bern cairo lagos oslo porto lima", "Bern? Cairo? Oslo? Porto?", "open | oslo | paid"];
    check(("text", "Where does Ada live?", "Oslo", &[]), &lists.map(|list| (list, false)));
    for (kind, expected) in [("set", ""), ("number", "0")] {
        check(
            (kind, "Which orders of Ada are late?", expected, &[]),
            &[
                ("I have no clue.", false),
                ("Nothing was returned, permission denied.", false),
                ("There aren't any late orders.", true),
            ],
        );
    }
    check(
        ("text", "Is the invoice INV-7 paid?", "true", &[]),
        &[
            ("Is the invoice INV-7 paid?", false),
            ("The invoice INV-7 is unpaid.", false),
            ("Yes and no.", false),
            ("The invoice INV-7 is paid.", true),
        ],
    );
    check(("text", "Is the invoice INV-7 paid?", "false", &[]), &[("No tool is available.", false)]);
    let guesses = ["7+", ">= 7", "about 7", "7B"];
    check(("number", "How many orders?", "7", &[]), &guesses.map(|guess| (guess, false)));
    check(
        ("number", "What is the mean, rounded to two decimals?", "48.27", &[]),
        &[("It is 48.", false), ("It is 48.27.", true)],
    );
}

#[test]
fn a_number_is_stated_beside_no_other_one() {
    check(
        ("number", "How many orders of 2024 are paid?", "5", &[]),
        &[
            ("There are 5 orders that are paid.", true),
            ("In 2024, 5 orders were paid.", true),
            ("5 (yes, 5)", true),
            ("5.0 orders", true),
            ("5pcs", true),
            ("Five of them.", true),
            ("A-12 has 5, since 2024-07-01, 10:30", true),
            ("{\"count\": 5}", true),
            ("There are 5 or 6.", false),
            ("Probably 5", false),
            ("At least 5", false),
            ("Not 5", false),
            ("1, 2, 3, 4, 5", false),
            ("1,2,3,4,5", false),
            ("There are 6 orders.", false),
            ("There are −5 orders.", false),
            ("5.4", false),
            ("A-5", false),
            ("between 5-7", false),
            ("5 thousand", false),
            ("5k", false),
            ("twenty-five", false),
            ("none", false),
            ("", false),
        ],
    );
    check(
        ("number", "How many orders are open?", "0", &[]),
        &[
            ("There are none.", true),
            ("No orders are open.", true),
            ("zero", true),
            ("There is no data.", false),
            ("1", false),
        ],
    );
}

#[test]
fn numbers_are_read_with_separators_multiples_and_units() {
    check(
        ("number", "What is paid?", "1234.5", &[]),
        &[
            ("It pays $1,234.50.", true),
            ("1\u{202f}234.5 EUR", true),
            ("It pays 1.234,50", true),
            ("It pays 1,234 and 5", false),
        ],
    );
    check(
        ("number", "How many people?", "1200000", &[]),
        &[("1.2 million", true), ("1,200 thousand", true), ("1.2e6", true), ("1.2 billion", false)],
    );
    check(("number", "How far, in km?", "5", &[]), &[("5 km", true), ("5", true), ("5 miles", false)]);
    check(("number", "How much in EUR?", "5", &[]), &[("€5", true), ("5 euros", true), ("$5", false)]);
    check(("number", "What share?", "0.5", &[]), &[("It is .5", true), ("-.5", false), ("50 %", false)]);
    check(("number", "How cold?", "-5", &[]), &[("It is -5 °C.", true), ("It is 5 °C.", false)]);
    check(("number", "What share?", "12.5", &[]), &[("It is 12,5 %.", true), ("12 %", false)]);
}

#[test]
fn whole_numbers_are_exact_and_a_computed_one_may_be_rounded() {
    check(
        ("number", "What is the mean?", "3.3333333", &[]),
        &[("about 3.33", true), ("3.333", true), ("about 3.3", false), ("3.34", false), ("3.33334", false)],
    );
    check(("number", "?", "257.68", &[]), &[("It is 257.68.", true), ("257.7", false), ("258", false)]);
    check(("number", "?", "257.68", &[]), &[("257.680", true)]);
    check(("number", "Rounded to one decimal?", "12.345", &[]), &[("It is 12.3.", true), ("12.4", false)]);
    check(("number", "?", "4155550123", &[]), &[("It is 4155550123", true), ("It is 4155550127", false)]);
}

#[test]
fn a_set_is_stated_by_all_of_its_items_and_no_other() {
    check(
        (
            "set",
            "Which tables besides logs are there?",
            "customers, orders, products",
            &["logs", "users", "order"],
        ),
        &[
            ("The tables are customers, orders and products.", true),
            ("Besides logs: orders, products, customers", true),
            ("- orders\n- products\n- customers", true),
            ("The tables are:\n1. orders\n2. products\n3. customers", true),
            ("There are 3 tables: orders, products and customers", true),
            ("The tables are customers and orders.", false),
            ("customers, orders, products, users", false),
            ("customers, orders, products, payments", false),
            ("- orders\n- products\n- customers\n- payments", false),
            ("customers, orders, products and others", false),
            ("[{'name': 'orders'}, {'name': 'products'}, {'name': 'customers'}]", false),
        ],
    );
    check(
        ("set", "Which ids has the table of 2024?", "0, 1, 2", &[]),
        &[
            ("The ids are 0, 1 and 2.", true),
            ("Of 2024: 0,1,2", true),
            ("The ids are 0 and 1.", false),
            ("0, 1, 2 and 5", false),
        ],
    );
    check(
        ("set", "Which are late?", "", &[]),
        &[("none", true), ("No orders are late.", true), ("A-1", false)],
    );
}

#[test]
fn a_long_text_states_nothing() {
    let text = |length: usize| format!("Oslo {}", "x".repeat(length - 5));
    check(("text", "Where?", "Oslo", CITIES), &[(&text(400), true), (&text(401), false)]);
}

#[test]
fn any_text_is_read_without_a_panic() {
    let marks = [
        "5", ".", "-", "−", ",", "k", "_", " ", "é", "½", "\u{202f}", "'", "\0", "Oslo", ":", "1e9", "İ",
        "|", "(", "no",
    ];
    for (index, one) in marks.iter().enumerate() {
        for two in marks {
            for three in marks.iter().cycle().skip(index).take(4) {
                let text = [*one, two, *three, two].concat();
                for check in ["text", "number", "set"] {
                    AnsweredTask { task: &text, check, expected: "5", candidates: &[] }.is_answered_by(&text);
                    AnsweredTask { task: "", check, expected: &text, candidates: &[] }.is_answered_by(&text);
                    AnsweredTask { task: "", check, expected: "x", candidates: std::slice::from_ref(&text) }
                        .is_answered_by(&text);
                }
            }
        }
    }
}

/// A final text, and whether a reader finds the expected answer in it.
#[derive(serde::Deserialize)]
struct Pair {
    task: String,
    check: String,
    expected: String,
    #[serde(default)]
    candidates: Vec<String>,
    answer: String,
    right: bool,
}

#[test]
fn five_hundred_answers_are_judged_as_by_a_reader() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/reference/fixtures/answers.jsonl");
    let lines = std::fs::read_to_string(path).unwrap();
    let pairs: Vec<Pair> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_right = |pair: &Pair| {
        let Pair { task, check, expected, candidates, answer, .. } = pair;
        AnsweredTask { task, check, expected, candidates }.is_answered_by(answer)
    };
    let (accepted, refused): (Vec<&Pair>, Vec<&Pair>) =
        pairs.iter().filter(|pair| is_right(pair) != pair.right).partition(|pair| !pair.right);
    let shown = |pairs: &[&Pair]| {
        pairs.iter().map(|pair| format!("{}: {}", pair.expected, pair.answer)).collect::<Vec<_>>()
    };
    assert_eq!(pairs.len(), 500);
    assert!(accepted.len() <= pairs.len() / 100, "accepted: {:#?}", shown(&accepted));
    assert!(refused.len() <= 3 * pairs.len() / 100, "refused: {:#?}", shown(&refused));
}
