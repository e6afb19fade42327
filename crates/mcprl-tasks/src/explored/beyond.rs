//! Tasks that no call solves: what is asked for does not exist, or needs no tool.
//!
//! Both fix the answer: `none`, or what the task itself says. An agent that was trained on nothing but tasks that calls solve
//! makes up an answer to the first and calls something for the second.

use super::{
    asking,
    asks::{self, Asks, FactSource},
    chains, changes,
    graph::{self, Arg, Graph},
    pages,
    seeds::Kind,
    small::{self, Small},
    templates,
    things::{ArgumentRole, Matter, Role, Things},
    tools::ToolProfile,
    wording,
};
use crate::{
    answer_rule::AnswerRule,
    candidate::{Candidate, Check, NONE},
    words,
};

/// Beginnings of the names of families.
pub const IMPOSSIBLE: &str = "cannot be done";
pub const NO_CALL: &str = "no call needed";

/// Lookups of things that do not exist, each followed by one of something that exists, in the same words.
pub fn impossible(
    graph: &Graph,
    profiles: &[ToolProfile],
    things: &Things<'_>,
    seed: u64,
    most: usize,
) -> Vec<Candidate> {
    let mut found: Vec<(u64, [Candidate; 2])> = Vec::new();
    for (index, seen) in graph.seen.iter().enumerate() {
        let profile = &profiles[seen.tool];
        // A list that happens to have one thing is no thing.
        let is_list = seen.reading.lists.iter().any(|list| list.is_list && list.name.is_empty());
        let is_odd = is_list || graph.is_random(seen.tool) || pages::is_paged(seen, profile);
        if is_odd || !changes::reads(profile) || super::sql::is_sql(graph, profiles, index) {
            continue;
        }
        let matter = things.matter(index);
        if matter == Matter::Nothing {
            continue;
        }
        let Some((position, made)) =
            missing(graph, profile, &seen.args).filter(|(_, made)| !words::is_opaque(made))
        else {
            continue;
        };
        // What the call takes is no news.
        let is_news = |field: &str| seen.args.iter().all(|arg| arg.name != field);
        let mut rules = chains::rules(graph, index, seed).into_iter();
        let key = match &matter {
            Matter::Things(parts) if parts.contains(&ArgumentRole::File) => continue,
            Matter::Things(parts) => match parts.get(position) {
                Some(ArgumentRole::Key { noun }) => Some(noun.clone()),
                _ => continue,
            },
            _ => None,
        };
        let is_asked = |rule: &AnswerRule, field: &str| {
            let role = things.role(seen.tool, rule.list(), field);
            let is_fact = |role: Role| ![Role::Id, Role::Reference].contains(&role);
            key.is_none() || role.is_some_and(is_fact) && !wording::is_odd(field, false)
        };
        let Some(rule) =
            rules.find(|rule| looked_up(rule).is_some_and(|field| is_news(field) && is_asked(rule, field)))
        else {
            continue;
        };
        let field = looked_up(&rule).unwrap_or_default().to_owned();
        let mut args = seen.args.clone();
        args[position].shown = words::shown(&made);
        args[position].leaf = Some(made.clone());
        let mut call = seen.call.clone();
        call.arguments.insert(args[position].name.clone(), made.into());
        let tool = &profile.name;
        let absent = AnswerRule::Absent { field: field.clone() };
        let pair = [
            (format!("{IMPOSSIBLE}: {tool}"), args, call, absent, true),
            (format!("{tool}: {field}, if any"), seen.args.clone(), seen.call.clone(), rule, false),
        ];
        let pair = pair.map(|(family, args, call, rule, may_fail)| {
            let place = match &key {
                Some(noun) => {
                    let one = words::called(noun, args[position].leaf.as_deref().unwrap_or_default());
                    format!("details of {}", things.subject(index, noun, &one))
                }
                None => chains::place(profile, &args, None, &[]),
            };
            let thing = key.clone().unwrap_or_else(|| sought(&place, &args[position]));
            let texts = questions(&place, &field, &thing);
            let number = graph::place(seed, &family, &place, texts.len());
            let arguments = call.arguments.clone();
            let source = FactSource::Tool { tool: tool.clone(), arguments, list: String::new() };
            let asks =
                Asks::of_rule(&rule, source, |name, value| asks::typed(&seen.reading, "", name, value));
            Candidate {
                family,
                entity: args
                    .iter()
                    .map(|arg| (arg.name.clone(), arg.leaf.clone().unwrap_or_default()))
                    .collect(),
                task: templates::sentence(&texts[number]),
                phrasing: format!("if any {}", number + 1),
                calls: vec![call],
                rule,
                check: Check::Text,
                may_fail,
                is_text: asks::is_text(&seen.reading, &field),
                asks: asks.map(|asks| asks.to_value()),
                ..Candidate::default()
            }
        });
        found.push((graph::rank(seed, "impossible", &pair[0].task), pair));
    }
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().flat_map(|(_, pair)| pair).take(2 * most).collect()
}

/// Questions for a field of something that there may not be.
fn questions(place: &str, field: &str, thing: &str) -> [String; 3] {
    let (what, f) = (asking::within(place), words::in_full(&words::spoken_field(field)));
    let (what, f) = if field.is_empty() { (place.to_owned(), String::new()) } else { (what, f) };
    let is = if words::is_plural(&f) { "are" } else { "is" };
    let what = format!("{f} {what}");
    [
        format!("What {is} the {what}? If there is no such {thing}, answer {NONE}."),
        format!("Tell me the {what}, or answer {NONE} if there is no such {thing}."),
        format!("I need the {what}. If you cannot find this {thing}, answer {NONE}."),
    ]
}

/// What the argument names: `room` of `details of room 002`.
fn sought(place: &str, arg: &Arg) -> String {
    let subject = asking::subject(place).unwrap_or_default();
    let noun = subject.strip_suffix(arg.shown.as_str()).unwrap_or_default().trim();
    match noun.strip_prefix("the ").unwrap_or(noun) {
        "" => {
            Some(words::spoken_thing(&arg.name)).filter(|thing| !thing.is_empty()).unwrap_or("thing".into())
        }
        noun => noun.to_owned(),
    }
}

/// The name of a field that is looked up; empty for a result that is one value.
fn looked_up(rule: &AnswerRule) -> Option<&str> {
    match rule {
        AnswerRule::Field { list, key: None, field } if list.is_empty() => Some(field),
        AnswerRule::Only => Some(""),
        _ => None,
    }
}

/// An argument that names a thing, and a name like it that nothing known has.
fn missing(graph: &Graph, profile: &ToolProfile, args: &[Arg]) -> Option<(usize, String)> {
    let names = |arg: &Arg| {
        let param = profile.params.iter().find(|param| param.name == arg.name)?;
        let is_name = ["id", "number", "code", "name"].iter().any(|word| param.words.contains(*word));
        let leaf = arg.leaf.as_deref().filter(|leaf| (3..=40).contains(&leaf.len()))?;
        let is_open = param.kind == Kind::Text && !param.is_closed && param.is_required;
        (is_name && is_open && !graph::is_path(leaf)).then(|| leaf.to_owned())
    };
    let (position, name) = args.iter().enumerate().find_map(|(place, arg)| Some((place, names(arg)?)))?;
    let last = name.rfind(|letter: char| letter.is_ascii_alphanumeric())?;
    let made = (1..10).map(|step| {
        let next = |letter: u8| match letter {
            b'0'..=b'9' => b'0' + (letter - b'0' + step) % 10,
            b'a'..=b'z' => b'a' + (letter - b'a' + step) % 26,
            _ => b'A' + (letter - b'A' + step) % 26,
        };
        let letter = char::from(next(name.as_bytes()[last]));
        format!("{}{letter}{}", &name[..last], &name[last + 1..])
    });
    let mut made = made.filter(|made| !graph.known.contains_key(made));
    Some((position, made.next()?))
}

/// Tasks whose answer follows from the task. Those of another server are others.
///
/// `names`: the server's tools and tables.
pub fn without_calls(names: &[String], seed: u64, most: usize) -> Vec<Candidate> {
    let candidate = |(number, Small { kind, task, answer, said }): (usize, Small)| Candidate {
        family: format!("{NO_CALL}: {kind}"),
        entity: [("case".to_owned(), format!("{kind} {number}"))].into(),
        task,
        phrasing: kind.to_owned(),
        check: Check::of(&answer),
        rule: AnswerRule::Quoted(answer),
        asks: Some(Asks::said(said).to_value()),
        ..Candidate::default()
    };
    small::questions(graph::rank(seed, "small", &names.join(" ")), most)
        .into_iter()
        .enumerate()
        .map(candidate)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::{
        chat::ToolCall,
        data::Tool,
        mcp::{ServerSpec, Servers, State, Transport},
    };

    fn explored() -> (Graph, Vec<ToolProfile>) {
        let schema = json!({"required": ["user_id"], "properties": {"user_id": {"type": "string"}}});
        let tool = Tool {
            name: "get_user_details".into(),
            server_name: "get_user_details".into(),
            description: "Get the details of a user.".into(),
            input_schema: schema.to_string(),
            ..Tool::default()
        };
        let transport =
            Transport::Stdio { command: vec!["x".into()], env: BTreeMap::new(), cwd: None, files: vec![] };
        let servers = Servers::from(ServerSpec::new(transport, State::ReadOnly));
        let profiles = crate::explored::profiles(&[tool], &servers, &Default::default());
        let mut graph = Graph::default();
        for (id, level) in [("ada_1", "gold"), ("bob_2", "silver"), ("eve_7", "gold")] {
            let arguments = json!({"user_id": id}).as_object().unwrap().clone();
            let call = ToolCall { name: "get_user_details".into(), arguments };
            let arg = Arg { name: "user_id".into(), leaf: Some(id.into()), shown: id.into() };
            let text = json!({"user_id": id, "level": level}).to_string();
            graph.add(&profiles, 0, call, vec![arg], text);
        }
        (graph, profiles)
    }

    #[test]
    fn what_does_not_exist_is_asked_for_in_the_words_of_what_does() {
        let (graph, profiles) = explored();
        let found = impossible(&graph, &profiles, &Things::new(&graph, &profiles), 1, 2);
        assert_eq!(found.len(), 4);
        for pair in found.chunks(2) {
            let ids =
                [0, 1].map(|place| pair[place].calls[0].arguments["user_id"].as_str().unwrap().to_owned());
            assert!(!graph.known.contains_key(&ids[0]) && graph.known.contains_key(&ids[1]), "{ids:?}");
            assert!(
                pair[0].task.contains(&ids[0]) && pair[0].task.contains("answer none"),
                "{}",
                pair[0].task
            );
            assert!(
                pair[1].task.contains(&ids[1]) && pair[1].task.contains("answer none"),
                "{}",
                pair[1].task
            );
            assert!(pair[0].task.contains("level of user"), "{}", pair[0].task);
            assert_eq!(pair.iter().map(|one| one.may_fail).collect::<Vec<_>>(), [true, false]);
            assert_eq!(pair[0].family, "cannot be done: get_user_details");
        }
    }

    #[test]
    fn tasks_that_need_no_call_say_all_that_the_answer_takes() {
        let names = ["read_query".to_owned()];
        let found = without_calls(&names, 1, 20);
        assert_eq!(found.len(), 20);
        for one in &found {
            assert!(matches!(&one.rule, AnswerRule::Quoted(answer) if !answer.is_empty()), "{one:?}");
            assert!(one.calls.is_empty() && one.family.starts_with(NO_CALL));
        }
        assert_ne!(without_calls(&names, 2, 20), found);
        assert_ne!(without_calls(&[], 1, 20), found);
    }
}
