use super::*;
use crate::data::End;

/// Samples of one task with these answers, of which `right` is right.
fn played(id: &str, answers: &[Option<&str>], right: &str) -> Vec<Trajectory> {
    let of = |answer: &Option<&str>| Trajectory {
        scenario_id: id.into(),
        answer: answer.map(str::to_owned),
        correct: Some(*answer == Some(right)),
        end: End::Completed.to_string(),
        ..Trajectory::default()
    };
    answers.iter().map(of).collect()
}

#[test]
fn the_answer_that_most_samples_give_is_taken_by_meaning() {
    let mut all = played("a", &[Some("7"), Some("7.0"), Some("8"), None], "7");
    all[1].correct = Some(true);
    all.extend(played("b", &[Some("Oslo"), Some("Rome"), Some("Rome")], "Oslo"));
    let samples = of_tasks(&all, |id| if id == "a" { "number" } else { "text" });
    let expected =
        [Samples { right: 2, of: 4, majority: true }, Samples { right: 1, of: 3, majority: false }];
    assert_eq!(samples, expected);
}

#[test]
fn pass_rates_are_of_training_tasks_alone_and_count_as_never_trained_on() {
    let mut all = played("a", &[Some("7"), Some("8")], "7");
    all.extend(played("dev", &[Some("7")], "7"));
    all.push(Trajectory { correct: None, ..all[0].clone() });
    let rates = pass_rates(&all, &BTreeSet::from(["a"]));
    assert_eq!(rates, [PassRate { episodes: 2.0, right: 1.0, ..PassRate::unknown("a") }]);
}
