use serde_json::{Map, Value, json};

use super::*;

fn ask(desk: &Desk, tool: &str, arguments: Value) -> Answer {
    let arguments: Map<String, Value> = serde_json::from_value(arguments).unwrap();
    desk.call(tool, Arguments::of(&arguments)).expect("the tool exists")
}

/// Each call with its answer; `!` marks an error.
fn transcript(desk: &Desk, calls: &[(&str, Value)]) -> String {
    let shown = calls.iter().map(|(tool, arguments)| match ask(desk, tool, arguments.clone()) {
        Ok(text) => format!("> {tool} {arguments}\n{text}\n"),
        Err(text) => format!("> {tool} {arguments}\n! {text}\n"),
    });
    shown.collect()
}

#[test]
fn an_order_is_carried_out_in_a_few_calls() {
    insta::assert_snapshot!(transcript(
        &Desk::open(),
        &[
            ("find_customer", json!({"name": "fjord fish"})),
            ("list_tickets", json!({"customer_id": "C28", "status": "open"})),
            ("list_tickets", json!({"customer_id": "C28", "status": "open", "order": "newest"})),
            ("list_agents", json!({"team": "Network"})),
            ("list_teams", json!({})),
            ("list_customers", json!({"offset": "36"})),
            ("list_customers", json!({})),
        ]
    ));
}

#[test]
fn errors_name_their_kind_and_the_way_out() {
    insta::assert_snapshot!(transcript(
        &Desk::open(),
        &[
            ("find_customer", json!({"name": "Fjord"})),
            ("find_customer", json!({})),
            ("list_tickets", json!({"customer_id": "Fjord Fish"})),
            ("list_tickets", json!({"customer_id": "C28", "status": "lost"})),
            ("list_tickets", json!({"customer_id": "C28", "order": "biggest"})),
            ("find_customer", json!({"name": "Nobody"})),
            ("list_agents", json!({"team": "Kim"})),
            ("list_customers", json!({"offset": "40"})),
            ("list_customers", json!({"offset": "-1"})),
            ("assign_ticket", json!({"ticket_id": "Z9", "agent": "Kim"})),
            ("assign_ticket", json!({"ticket_id": "A0", "agent": "Fjord"})),
            ("set_priority", json!({"ticket_id": "A0", "priority": "huge"})),
            ("set_status", json!({"ticket_id": 101, "status": "open"})),
        ]
    ));
}

#[test]
fn changes_are_those_against_the_start_not_a_log() {
    let desk = Desk::open();
    let closed = desk.records.tickets.iter().find(|ticket| ticket.status == "closed").unwrap().clone();
    let none = ask(&desk, "list_changes", json!({})).unwrap();
    assert_eq!(none, "id | status | priority | agent");
    let set = |status: &str| json!({"ticket_id": closed.id, "status": status});

    let refused = ask(&desk, "assign_ticket", json!({"ticket_id": closed.id, "agent": "Zoe"})).unwrap_err();
    assert!(refused.starts_with("invalid_state: "), "{refused}");
    ask(&desk, "set_status", set("open")).unwrap();
    ask(&desk, "assign_ticket", json!({"ticket_id": closed.id, "agent": "Zoe"})).unwrap();
    assert_eq!(
        ask(&desk, "list_changes", json!({})).unwrap(),
        format!("{none}\n{} | open | = | Zoe", closed.id)
    );

    ask(&desk, "assign_ticket", json!({"ticket_id": closed.id, "agent": closed.agent})).unwrap();
    ask(&desk, "set_status", set("closed")).unwrap();
    assert_eq!(ask(&desk, "list_changes", json!({})).unwrap(), none);
}

#[test]
fn a_ticket_that_is_being_edited_can_be_changed_by_the_same_call_once_more() {
    let desk = Desk::open();
    let id = desk.records.tickets[4].id.clone();
    let close = || ask(&desk, "set_status", json!({"ticket_id": id, "status": "pending"}));
    assert_eq!(close().unwrap_err(), format!("conflict: ticket {id} is being edited; call again"));
    assert!(close().is_ok());
    assert!(close().is_ok());
    ask(&desk, "reset", json!({})).unwrap();
    assert!(close().is_err());
}

#[test]
fn sessions_do_not_share_tickets_and_reset_restores_them() {
    let desk = Arc::new(Desk::open());
    let change = json!({"ticket_id": "A0", "status": "closed"});
    let other = desk.session().unwrap();
    ask(&desk, "set_status", change).unwrap();
    let changes = |text: Answer| text.unwrap().lines().count() - 1;
    assert_eq!(changes(ask(&desk, "list_changes", json!({}))), 1);
    assert_eq!(changes(other.call("list_changes", Arguments::of(&Map::new())).unwrap()), 0);
    ask(&desk, "reset", json!({})).unwrap();
    assert_eq!(changes(ask(&desk, "list_changes", json!({}))), 0);
}

#[test]
fn the_least_busy_agent_of_a_team_is_one_agent_and_names_occur_once() {
    let desk = Desk::open();
    for team in desk.records.teams() {
        let agents = ask(&desk, "list_agents", json!({"team": team})).unwrap();
        let open: Vec<&str> = agents.lines().skip(1).map(|line| line.split_once(" | ").unwrap().1).collect();
        assert_eq!(open.len(), 3, "{agents}");
        assert_ne!(open[0], open[1], "{agents}");
    }
    let customers = desk.records.customers.iter().map(|customer| customer.name.clone());
    let names = customers.chain(desk.records.agents.iter().map(|agent| agent.name.clone()));
    let words: Vec<String> =
        names.flat_map(|name| name.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect();
    assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len());
}
