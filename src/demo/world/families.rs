//! What can be asked about a world, as a families file (docs/guides/families.md).

use std::fmt::Write;

use super::{Action, Property, World};

/// How sloppy the worker is, and how results are read.
const HEAD: &str = r#"
[tiers.near]
look = 0.12
guess = 0.35
recover = 0.5
slip = 0.05
finish = 0.35

[tiers.far]
look = 0.1
guess = 0.3
recover = 0.5
slip = 0.05
finish = 0.32
"#;

pub(super) fn families(world: &World) -> String {
    let format =
        if world.style.has_header { "format = \"table\"\nseparator = \" | \"" } else { "format = \"lines\"" };
    let mut text = format!("[results]\n{format}\n{HEAD}");
    for (index, kind) in world.kinds.iter().enumerate() {
        let lister = world.name_of(|action| matches!(action, Action::List(kind) if kind == index));
        _ = write!(
            text,
            "\n[entities.{}]\ncall = {{ {lister:?} = {{}} }}\ncolumns = [\"name\"]\n",
            kind.noun
        );
    }
    for (index, kind) in world.kinds.iter().enumerate() {
        for (position, property) in kind.properties.iter().enumerate() {
            near(&mut text, world, (index, position), property);
            if let Some(other) = property.link {
                for (last, asked) in world.kinds[other].properties.iter().enumerate() {
                    if asked.link.is_none() {
                        far(&mut text, world, (index, position), (other, last));
                    }
                }
            }
        }
    }
    text
}

/// The calls that get a property of the thing with this name, and take it as `value`.
fn get(world: &World, (kind, position): (usize, usize), name: &str, value: &str) -> String {
    let getter = world.name_of(|action| matches!(action, Action::Get(k, p) if (k, p) == (kind, position)));
    let parameter = world.parameter(Action::Get(kind, position)).unwrap_or_default();
    let last =
        |given: &str| format!("{{ {getter:?} = {{ {parameter:?} = \"{{{given}}}\" }}, take = \"{value}\" }}");
    if !world.kinds[kind].by_id {
        return last(name);
    }
    let finder = world.name_of(|action| matches!(action, Action::Find(k) if k == kind));
    let searched = world.parameter(Action::Find(kind)).unwrap_or_default();
    let id = format!("{name}_id");
    format!("{{ {finder:?} = {{ {searched:?} = \"{{{name}}}\" }}, take = \"{id}\" }}, {}", last(&id))
}

/// A property of a thing.
fn near(text: &mut String, world: &World, at: (usize, usize), property: &Property) {
    let kind = &world.kinds[at.0];
    let (noun, word) = (kind.noun, property.word);
    // Another property of the same thing.
    let slips: Vec<String> = (0..kind.properties.len())
        .filter(|other| *other != at.1)
        .map(|other| format!("[{}]", get(world, (at.0, other), "name", "value")))
        .collect();
    let phrasings = [
        "What is the {word} of {name}?",
        "What {word} does {name} have?",
        "Tell me the {word} of {name}.",
        "Find the {word} of the {noun} {name}.",
        "What is the {word} of the {noun} {name}?",
        "{name}: which {word}?",
        "Give me the {word} of {name}.",
        "Look up {name} and its {word}.",
        "Do you know the {word} of {name}?",
        "We want the {word} of the {noun} {name}.",
        "How about the {word} of {name}?",
        "Please say which {word} the {noun} {name} has.",
    ];
    let unseen = ["Which {word} has {name}?", "I need the {word} of {name}."];
    let list = |phrasings: &[&str]| {
        let filled = phrasings.iter().map(|one| one.replace("{word}", word).replace("{noun}", noun));
        filled.map(|one| format!("{one:?}")).collect::<Vec<_>>().join(", ")
    };
    _ = write!(
        text,
        "\n[[families]]\nname = \"{word}_of_{noun}\"\nentities = [\"{noun}\"]\nanswer = \"{{value}}\"\ntier = \"near\"\nphrasings = {{ train = \
         [{}], unseen = [{}] }}\nsolve = [{}]\nlook = [{{ {:?} = {{}} }}]\nslips = [{}]\n",
        list(&phrasings),
        list(&unseen),
        get(world, at, "name", "value"),
        world.name_of(|action| matches!(action, Action::List(kind) if kind == at.0)),
        slips.join(", "),
    );
    guess(text, world, at);
}

/// A property of the thing that another thing is linked to.
fn far(text: &mut String, world: &World, link: (usize, usize), asked: (usize, usize)) {
    let kind = &world.kinds[link.0];
    let (noun, via) = (kind.noun, kind.properties[link.1].word);
    let word = world.kinds[asked.0].properties[asked.1].word;
    let first = get(world, link, "name", "other");
    _ = write!(
        text,
        "\n[[families]]\nname = \"{word}_of_{via}_of_{noun}\"\nentities = [\"{noun}\"]\nanswer = \"{{value}}\"\ntier = \"far\"\nphrasings = {{ \
         train = [\"What is the {word} of the {via} of {{name}}?\", \"Tell me the {word} of {{name}}'s {via}.\", \"Which {word} does the \
         {via} of {{name}} have?\", \"Give me the {word} of the {via} of {{name}}.\", \"We want the {word} of {{name}}'s {via}.\", \
         \"Look up the {via} of {{name}} and its {word}.\"], unseen = [\"I need the {word} of the {via} of {{name}}.\"] }}\nsolve = [{first}, {}]\nslips = \
         [[{}]]\n",
        get(world, asked, "other", "value"),
        get(world, link, "name", "value"),
    );
    guess(text, world, link);
}

/// Where an id is wanted, the obvious call gives the name.
fn guess(text: &mut String, world: &World, at: (usize, usize)) {
    if !world.kinds[at.0].by_id {
        return;
    }
    let getter = world.name_of(|action| matches!(action, Action::Get(k, p) if (k, p) == at));
    let parameter = world.parameter(Action::Get(at.0, at.1)).unwrap_or_default();
    _ = writeln!(text, "guess = {{ {getter:?} = {{ {parameter:?} = \"{{name}}\" }} }}");
}
