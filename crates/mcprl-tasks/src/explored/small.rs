//! Small things that people ask in passing. The answer is certain and needs no tool.

use super::{asks::Computation, graph};

/// A question, its answer, and what it asks.
pub struct Small {
    /// In the name of its family. The answers of a kind are all numbers, or none.
    pub kind: &'static str,
    pub task: String,
    pub answer: String,
    pub said: Computation,
}

const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
/// A unit, a smaller one, and how many of these it has.
const UNITS: [(&str, &str, u64); 10] = [
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("years", "months", 12),
    ("dozen", "eggs", 12),
    ("kilograms", "grams", 1000),
    ("kilometres", "metres", 1000),
    ("metres", "centimetres", 100),
    ("litres", "millilitres", 1000),
];
const WARES: [&str; 6] = ["ticket", "book", "chair", "cup", "bottle", "shirt"];

/// Numbers of one question, by seed.
struct Draw {
    seed: u64,
    number: usize,
}

impl Draw {
    /// A number of this range, both ends included.
    fn number(&self, name: &str, from: u64, to: u64) -> u64 {
        from + graph::rank(self.seed, name, &self.number.to_string()) % (to + 1 - from)
    }

    fn one<T: Copy>(&self, name: &str, all: &[T]) -> T {
        all[graph::place(self.seed, name, &self.number.to_string(), all.len())]
    }
}

const QUESTIONS: [fn(&Draw) -> Small; 13] = [
    percentage,
    conversion,
    weekday,
    split,
    minutes_later,
    cost,
    back,
    days_between,
    area,
    change,
    minutes_between,
    distance,
    together,
];

/// So many different questions.
pub fn questions(seed: u64, most: usize) -> Vec<Small> {
    let mut found: Vec<Small> = Vec::new();
    let start = graph::place(seed, "small", "start", QUESTIONS.len());
    // A text that was drawn before is drawn anew.
    for number in 0..most * 20 {
        if found.len() == most {
            break;
        }
        let small = QUESTIONS[(start + number) % QUESTIONS.len()](&Draw { seed, number });
        if found.iter().all(|other| other.task != small.task) {
            found.push(small);
        }
    }
    found
}

fn arithmetic(task: String, one: u64, sign: &'static str, other: u64) -> Small {
    let answer = match sign {
        "*" => one * other,
        "/" => one / other,
        "-" => one - other,
        _ => one + other,
    };
    let said = Computation::Arithmetic((one, sign, other));
    Small { kind: "arithmetic", task, answer: answer.to_string(), said }
}

fn percentage(draw: &Draw) -> Small {
    let (percent, of) = (5 * draw.number("percent", 1, 15), 20 * draw.number("of", 2, 40));
    let (what, answer) = (format!("{percent} % of {of}"), percent * of / 100);
    let task = draw.one("text", &["What is", "How much is"]);
    Small {
        kind: "arithmetic",
        task: format!("{task} {what}?"),
        answer: answer.to_string(),
        said: Computation::Percent((percent, of)),
    }
}

fn split(draw: &Draw) -> Small {
    let (people, each) = (draw.number("people", 3, 8), draw.number("each", 9, 40));
    let bill = people * each;
    let task = draw.one(
        "text",
        &[
            "How many euros does each of us pay if we split it evenly?",
            "We split it evenly. How many euros is that for each?",
        ],
    );
    arithmetic(format!("We are {people} people and the bill is {bill} euros. {task}"), bill, "/", people)
}

fn cost(draw: &Draw) -> Small {
    let (price, many, ware) =
        (draw.number("price", 3, 45), draw.number("many", 3, 12), draw.one("ware", &WARES));
    arithmetic(
        format!("If one {ware} costs {price} euros, how many euros do {many} {ware}s cost?"),
        price,
        "*",
        many,
    )
}

fn change(draw: &Draw) -> Small {
    let (paid, price) = (draw.one("paid", &[20, 50, 100]), draw.number("price", 3, 19));
    let price = if paid == 20 { price } else { price + 25 };
    arithmetic(
        format!("Something costs {price} euros and I pay with {paid} euros. How many euros do I get back?"),
        paid,
        "-",
        price,
    )
}

fn area(draw: &Draw) -> Small {
    let (length, width) = (draw.number("length", 5, 12), draw.number("width", 2, 9));
    arithmetic(
        format!("A room is {length} metres long and {width} metres wide. How many square metres is that?"),
        length,
        "*",
        width,
    )
}

fn distance(draw: &Draw) -> Small {
    let (hours, speed) = (draw.number("hours", 2, 6), 10 * draw.number("speed", 2, 13));
    arithmetic(
        format!("How many kilometres do I get in {hours} hours at {speed} kilometres per hour?"),
        hours,
        "*",
        speed,
    )
}

fn together(draw: &Draw) -> Small {
    let (one, other) = (draw.number("one", 11, 90), draw.number("other", 11, 90));
    arithmetic(
        format!(
            "I buy one thing for {one} euros and another for {other} euros. How many euros is that together?"
        ),
        one,
        "+",
        other,
    )
}

fn conversion(draw: &Draw) -> Small {
    let (unit, smaller, factor) = draw.one("unit", &UNITS);
    let many = draw.number("many", 2, 15);
    let how = draw.one("text", &["are", "are there in"]);
    Small {
        kind: "units",
        task: format!("How many {smaller} {how} {many} {unit}?"),
        answer: (many * factor).to_string(),
        said: Computation::Convert((many, unit, smaller)),
    }
}

fn back(draw: &Draw) -> Small {
    let (unit, smaller, factor) = draw.one("unit", &UNITS);
    let many = draw.number("many", 2, 15);
    Small {
        kind: "units",
        task: format!("How many {unit} are {} {smaller}?", many * factor),
        answer: many.to_string(),
        said: Computation::Convert((many * factor, smaller, unit)),
    }
}

fn weekday(draw: &Draw) -> Small {
    let (day, after) = (draw.number("day", 0, 6), draw.number("after", 2, 12));
    let name = WEEKDAYS[day as usize];
    Small {
        kind: "weekday",
        task: format!("Which weekday is {after} days after {name}?"),
        answer: WEEKDAYS[(day + after) as usize % 7].to_owned(),
        said: Computation::Weekday((name, after)),
    }
}

fn days_between(draw: &Draw) -> Small {
    let (day, days) = (draw.number("day", 0, 6), draw.number("days", 2, 6));
    let [name, other] = [day, day + days].map(|day| WEEKDAYS[day as usize % 7]);
    Small {
        kind: "duration",
        task: format!("How many days is it from {name} to the next {other}?"),
        answer: days.to_string(),
        said: Computation::DaysBetween((name, other)),
    }
}

/// A time of day with two digits for hours and minutes, from these minutes on.
fn time(minutes: u64) -> String {
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

fn minutes_later(draw: &Draw) -> Small {
    let (start, later) = (5 * draw.number("start", 120, 250), 5 * draw.number("later", 3, 19));
    let now = time(start);
    Small {
        kind: "time",
        task: format!("It is {now}. What time is it in {later} minutes? Give it as hh:mm."),
        answer: time(start + later),
        said: Computation::Later((now, later)),
    }
}

fn minutes_between(draw: &Draw) -> Small {
    let (start, later) = (5 * draw.number("start", 120, 250), 5 * draw.number("later", 3, 31));
    let [from, to] = [start, start + later].map(time);
    Small {
        kind: "duration",
        task: format!("How many minutes are there from {from} to {to}?"),
        answer: later.to_string(),
        said: Computation::MinutesBetween((from, to)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn many_different_questions_are_drawn_by_seed_and_none_twice() {
        let tasks = |seed| questions(seed, 60).into_iter().map(|small| small.task).collect::<Vec<_>>();
        assert_eq!(tasks(1).iter().collect::<BTreeSet<_>>().len(), 60);
        assert_ne!(tasks(1), tasks(2));
        assert_eq!(tasks(1), tasks(1));
        assert!(questions(1, 0).is_empty());
    }

    #[test]
    fn what_is_asked_is_answered() {
        let drawn = |question: fn(&Draw) -> Small| {
            (0..200).map(move |number| question(&Draw { seed: 1, number })).collect::<Vec<_>>()
        };
        for (question, task, answer) in [
            (percentage as fn(&Draw) -> Small, "75 % of 80?", "60"),
            (conversion, "How many minutes are 3 hours?", "180"),
            (back, "How many hours are 180 minutes?", "3"),
            (weekday, "Which weekday is 9 days after Sunday?", "Tuesday"),
            (days_between, "How many days is it from Saturday to the next Tuesday?", "3"),
        ] {
            let all = (0..40).flat_map(|seed| (0..200).map(move |number| question(&Draw { seed, number })));
            let found = all.into_iter().find(|small| small.task.contains(task));
            assert_eq!(found.map(|small| small.answer).as_deref(), Some(answer), "{task}");
        }
        for small in drawn(minutes_later) {
            // The hour of an answer is written in one way.
            assert!(small.answer.len() == 5 && small.answer.as_str() > "10" && small.answer.as_str() < "23");
        }
        for small in QUESTIONS.into_iter().flat_map(drawn) {
            assert!(!small.answer.is_empty() && !small.task.contains(" 0 "), "{}", small.task);
        }
    }
}
