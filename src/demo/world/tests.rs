use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::*;

fn ask(world: &World, tool: &str, arguments: Value) -> Answer {
    let arguments: Map<String, Value> = serde_json::from_value(arguments).unwrap();
    world.call(tool, Arguments::of(&arguments)).expect("the tool exists")
}

#[test]
fn worlds_differ_by_seed_and_are_the_same_for_the_same_seed() {
    let tools = |seed| World::open(seed).tools().iter().map(|tool| format!("{tool:?}")).collect::<Vec<_>>();
    assert_eq!(tools(3), tools(3));
    let all: BTreeSet<Vec<String>> = (0..200).map(tools).collect();
    assert_eq!(all.len(), 200);
    let sizes: BTreeSet<usize> = all.iter().map(Vec::len).collect();
    assert!(sizes.first() <= Some(&4) && sizes.last() >= Some(&14), "{sizes:?}");
    assert!(sizes.iter().all(|size| (3..=20).contains(size)), "{sizes:?}");
}

#[test]
fn no_two_tools_of_a_world_have_the_same_name() {
    for seed in 0..300 {
        let world = World::open(seed);
        let names: BTreeSet<&str> = world.actions.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), world.actions.len(), "seed {seed}");
    }
}

#[test]
fn a_property_is_found_by_name_or_by_the_id_that_a_tool_gives() {
    let mut ways = BTreeSet::new();
    for seed in 0..20 {
        let world = World::open(seed);
        for (kind, one) in world.kinds.iter().enumerate() {
            ways.insert(one.by_id);
            let getter = world.name_of(|action| matches!(action, Action::Get(k, 0) if k == kind));
            let parameter = world.parameter(Action::Get(kind, 0)).unwrap();
            let (name, id) = &one.things[4];
            let given = if one.by_id { id } else { name };
            let answer = ask(&world, getter, json!({ parameter.clone(): given })).unwrap();
            assert_eq!(answer.lines().last(), Some(one.properties[0].values[4].as_str()), "seed {seed}");
            if one.by_id {
                let finder = world.name_of(|action| matches!(action, Action::Find(k) if k == kind));
                let searched = world.parameter(Action::Find(kind)).unwrap();
                assert_eq!(
                    ask(&world, finder, json!({ searched: name })).unwrap().lines().last(),
                    Some(id.as_str())
                );
                assert!(ask(&world, getter, json!({ parameter: name })).is_err(), "a name is no id");
            }
        }
    }
    assert_eq!(ways.len(), 2);
}

#[test]
fn an_unknown_thing_is_an_error_that_names_it() {
    for seed in 0..8 {
        let world = World::open(seed);
        let getter = world.name_of(|action| matches!(action, Action::Get(0, 0)));
        let parameter = world.parameter(Action::Get(0, 0)).unwrap();
        let error = ask(&world, getter, json!({ parameter.clone(): "Nobody" })).unwrap_err();
        assert!(error.contains("Nobody"), "{error}");
        assert_eq!(ask(&world, getter, json!({})).unwrap_err(), format!("missing argument: {parameter}"));
    }
}
