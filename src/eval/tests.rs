use super::{
    report::{joined, plain},
    *,
};
use crate::data::{Change, Scenario, Sparse, VerdictRow};

fn scenario(id: &str, split: &str, family: &str) -> Scenario {
    Scenario {
        id: id.into(),
        split: split.into(),
        family: family.into(),
        task: "t".into(),
        answer: Some("1".into()),
        check: "number".into(),
        reference: Some(r#"[{"name": "run_query", "arguments": {}}]"#.into()),
        ..Scenario::default()
    }
}

fn episode(scenario: &str, policy: &str, right: bool) -> Episode {
    Episode {
        scenario: scenario.into(),
        policy: policy.into(),
        mode: Mode::Greedy,
        right,
        changed: None,
        by_protocol: true,
        any_right: None,
        calls: 2,
        turns: 3,
        tokens: 40,
        tool_errors: 0,
        tools: vec![],
    }
}

fn rows_of(policies: &[&str], scenarios: &[Scenario], episodes: &[Episode]) -> Vec<VerdictRow> {
    let policies: Vec<String> = policies.iter().map(|policy| (*policy).to_owned()).collect();
    let tools = ["run_query".to_owned(), "list_tables".to_owned()];
    let is_comparison_only = |name: &&String| name.starts_with("maj@") || name.starts_with("api");
    let comparison_only: Vec<String> = policies.iter().filter(is_comparison_only).cloned().collect();
    let (policies, comparison_only, tools) = (&policies[..], &comparison_only[..], &tools[..]);
    verdict(&Comparison { policies, scenarios, comparison_only, tools, ..Comparison::default() }, episodes)
}

fn row<'a>(rows: &'a [VerdictRow], slice: &str, policy: &str) -> &'a VerdictRow {
    rows.iter().find(|row| row.slice == slice && row.policy == policy).unwrap()
}

/// Whether base is right, whether trained is right, and the number of such scenarios.
type Outcome = (bool, bool, usize);

/// Scenarios and episodes with these outcomes for each split.
fn exam(splits: &[(&str, &[Outcome])]) -> (Vec<Scenario>, Vec<Episode>) {
    let (mut scenarios, mut episodes) = (Vec::new(), Vec::new());
    for (split, outcomes) in splits {
        for (base, trained, count) in *outcomes {
            for _ in 0..*count {
                let id = format!("{split}{}", scenarios.len());
                scenarios.push(scenario(&id, split, &format!("pay_by_{split}")));
                episodes.push(episode(&id, "base", *base));
                episodes
                    .push(Episode { tools: vec!["list_tables".into()], ..episode(&id, "trained", *trained) });
            }
        }
    }
    (scenarios, episodes)
}

/// A clear gain on a, too little data on c, a loss on d.
fn mixed() -> (Vec<Scenario>, Vec<Episode>) {
    exam(&[
        ("a", &[(true, true, 8), (false, true, 14), (true, false, 1), (false, false, 2)]),
        ("c", &[(false, true, 2), (false, false, 6)]),
        ("d", &[(true, false, 9), (true, true, 1)]),
    ])
}

#[test]
fn success_is_the_mean_over_scenarios_however_many_episodes_each_has() {
    let scenarios = [scenario("s", "a", "f"), scenario("t", "a", "f")];
    let mut episodes: Vec<_> = (0..4).map(|sample| episode("s", "base", sample == 0)).collect();
    episodes.push(episode("t", "base", true));
    let rows = rows_of(&["base"], &scenarios, &episodes);
    let all = row(&rows, "all", "base");
    assert_eq!((all.success, all.success_all, all.scenarios, all.episodes), (0.625, 0.5, 2, 5));
    assert_eq!((all.gain, all.p_value), (None, None));
}

#[test]
fn strict_success_is_that_of_right_episodes_by_protocol() {
    let scenarios = [scenario("s", "a", "f"), scenario("t", "a", "f")];
    let loose = |scenario: &str, right| Episode { by_protocol: false, ..episode(scenario, "base", right) };
    let episodes =
        [episode("s", "base", true), loose("s", true), episode("s", "base", false), loose("t", true)];
    let rows = rows_of(&["base"], &scenarios, &episodes);
    let all = row(&rows, "all", "base");
    assert_eq!((all.success, all.success_strict), ((2.0 / 3.0 + 1.0) / 2.0, Some(1.0 / 3.0 / 2.0)));
    assert_eq!(metrics(&rows)["all.base.strict"], 1.0 / 3.0 / 2.0);
}

#[test]
fn a_scenario_counts_where_every_policy_has_episodes_of_it() {
    let scenarios = [scenario("s", "a", "f"), scenario("t", "a", "f")];
    let episodes =
        [episode("s", "base", true), episode("s", "trained", true), episode("t", "trained", false)];
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    assert_eq!((row(&rows, "all", "trained").scenarios, row(&rows, "all", "trained").success), (1, 1.0));
}

#[test]
fn the_order_of_episodes_changes_nothing() {
    let (scenarios, mut episodes) = mixed();
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    episodes.reverse();
    assert_eq!(rows_of(&["base", "trained"], &scenarios, &episodes), rows);
}

#[test]
fn a_comparison_counts_scenarios_with_different_results() {
    let (scenarios, episodes) = mixed();
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let a = row(&rows, "a", "trained");
    assert_eq!((a.gain, a.better, a.worse), (Some(13.0 / 25.0), Some(14), Some(1)));
    // Exact: 2 × (1 + 15) / 2¹⁵.
    assert_eq!(a.p_value, Some(32.0 / 32768.0));
    assert!(a.gain_low.unwrap() > 0.2 && a.gain_high.unwrap() < 0.8, "{a:?}");
}

#[test]
fn few_scenarios_give_no_measurable_gain_even_if_all_improved() {
    let (scenarios, episodes) = exam(&[("a", &[(false, true, 3)])]);
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let a = row(&rows, "a", "trained");
    assert_eq!((a.gain, a.gain_high), (Some(1.0), Some(1.0)));
    assert_eq!(Finding::of(a), Some(Finding::NoMeasurableGain));
}

#[test]
fn equal_policies_have_no_measurable_gain() {
    let (scenarios, episodes) = exam(&[("a", &[(true, true, 30), (false, false, 30)])]);
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let a = row(&rows, "a", "trained");
    assert_eq!((a.gain, a.p_value), (Some(0.0), Some(1.0)));
    assert!(
        joined(&rows, plain)
            .starts_with("no measurable gain of trained over base on held-out tasks: 0.0 points")
    );
}

#[test]
fn the_verdict_is_one_sentence_with_the_splits_that_differ() {
    let verdict = |splits: &[(&str, &[Outcome])]| {
        let (scenarios, episodes) = exam(splits);
        joined(&rows_of(&["base", "trained"], &scenarios, &episodes), plain)
    };
    let better = [(false, true, 40), (true, true, 20)];
    let alike = [(true, true, 20), (true, false, 1), (false, true, 1)];
    let worse = [(true, false, 12)];
    let exams: [&[(&str, &[Outcome])]; 4] = [
        &[("a", &better)],
        &[("a", &better), ("c", &alike), ("d", &worse)],
        &[("a", &alike)],
        &[("a", &alike), ("d", &worse)],
    ];
    insta::assert_snapshot!(exams.map(verdict).join("\n"), @r"
    trained beats base on held-out tasks: +66.7 points [+51, +78], p < 0.001
    trained beats base on held-out tasks: +29.8 points [+15, +44], p < 0.001; no measurable gain on c; worse on d
    no measurable gain of trained over base on held-out tasks: 0.0 points [-18, +18], p = 1.000 (an exam like this sees differences of 32 points or more)
    trained is worse than base on held-out tasks: -35.3 points [-53, -13], p = 0.004; no measurable gain on a
    ");
}

#[test]
fn correlated_scenarios_count_together() {
    /// Number of families, entities per family, and phrasings per entity.
    fn grouping(families: usize, entities: usize, phrasings: usize) -> String {
        let mut scenarios = Vec::new();
        for (family, entity, phrasing) in (0..families * entities * phrasings)
            .map(|i| (i / phrasings / entities, i / phrasings % entities, i % phrasings))
        {
            let id = format!("{family} {entity} {phrasing}");
            let entity = Some(format!("e{entity}"));
            scenarios.push(Scenario { entity, ..scenario(&id, "a", &format!("f{family}")) });
        }
        let episodes: Vec<_> = scenarios.iter().map(|s| episode(&s.id, "base", true)).collect();
        let rows = rows_of(&["base"], &scenarios, &episodes);
        format!("{} {}", row(&rows, "a", "base").clusters, row(&rows, "a", "base").clustered_by)
    }
    for (families, entities, phrasings, expected) in [
        (45, 3, 1, "45 family"),
        (10, 2, 1, "10 family"),
        (9, 12, 1, "12 entity"),
        (4, 5, 2, "20 family and entity"),
        (3, 3, 2, "18 scenario"),
        // Every question is its own family.
        (30, 1, 1, "30 scenario"),
    ] {
        assert_eq!(grouping(families, entities, phrasings), expected, "{families} {entities} {phrasings}");
    }
}

#[test]
fn a_gain_in_three_families_of_twelve_is_not_measurable_however_many_questions_they_have() {
    let (mut scenarios, mut episodes) = (Vec::new(), Vec::new());
    for (family, question) in (0..12 * 20).map(|i| (i / 20, i % 20)) {
        let id = format!("{family} {question}");
        scenarios.push(scenario(&id, "a", &format!("f{family}")));
        episodes.push(episode(&id, "base", false));
        episodes.push(episode(&id, "trained", family < 3));
    }
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let all = row(&rows, "all", "trained");
    assert_eq!((all.gain, all.p_value, all.clusters), (Some(0.25), Some(0.25), 12));
    assert_eq!(Finding::of(all), Some(Finding::NoMeasurableGain));
}

#[test]
fn p_values_are_adjusted_over_the_rows_of_a_table() {
    let adjusted = |splits: &[(&str, &[Outcome])]| {
        let (scenarios, episodes) = exam(splits);
        let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
        let of = |row: &VerdictRow| Some(row.p_adjusted? / row.p_value?);
        rows.iter().filter(|row| row.scope != "tool").filter_map(of).collect::<Vec<_>>()
    };
    let (six, five) = ([(false, true, 6)], [(false, true, 5)]);
    // The total of all splits, a, b, and the families of a and b.
    assert_eq!(adjusted(&[("a", &six), ("b", &five)]), [3.0, 2.0, 1.0, 2.0, 1.0]);
    assert_eq!(adjusted(&[("a", &six)]), [1.0, 1.0, 1.0]);
}

#[test]
fn p_values_are_adjusted_over_all_policies_modes_and_steps() {
    let rows = three([0, 6, 12]);
    let (start, trained) = (row(&rows, "all", "start"), row(&rows, "all", "trained"));
    // Six of six is 2 / 2⁶, for start and for the step; twelve of twelve 2 / 2¹².
    assert_eq!(start.p_value, Some(0.03125));
    assert_eq!([start.p_adjusted, trained.step_p_adjusted], [Some(0.0625); 2]);
    assert_eq!(trained.p_adjusted, Some(3.0 * 2.0 / 4096.0));

    let (scenarios, mut episodes) = exam(&[("a", &[(false, true, 6)])]);
    let sampled: Vec<_> =
        episodes.iter().map(|episode| Episode { mode: Mode::Sampled, ..episode.clone() }).collect();
    episodes.extend(sampled);
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    assert_eq!(row(&rows, "all", "trained").p_adjusted, Some(0.0625));
}

#[test]
fn a_single_policy_has_no_comparison() {
    let rows = rows_of(&["base"], &[scenario("s", "a", "f")], &[episode("s", "base", true)]);
    assert_eq!(summary(&rows, plain), "base alone, nothing to compare: success 100.0 % [0, 100]");
    assert_eq!(summary(&[], plain), "nothing to compare");
    assert!(report(&[], &[]).contains("nothing to compare"));
}

#[test]
fn a_tools_slice_is_one_set_of_scenarios_for_all_policies() {
    let scenarios = [scenario("s", "a", "f"), scenario("t", "a", "f")];
    let listed = Episode { tools: vec!["list_tables".into()], ..episode("s", "trained", true) };
    let episodes =
        [episode("s", "base", false), episode("t", "base", true), listed, episode("t", "trained", true)];
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    for policy in ["base", "trained"] {
        assert_eq!(row(&rows, "list_tables", policy).scenarios, 1);
        assert_eq!(row(&rows, "run_query", policy).scenarios, 2);
    }
}

#[test]
fn tasks_of_kinds_that_training_had_are_a_row_beside_those_of_new_ones() {
    let of_kind =
        |id: &str, trained| Scenario { trained_kind: Some(Sparse(trained)), ..scenario(id, "a", "f") };
    let scenarios = [of_kind("s", true), of_kind("t", true), of_kind("u", false), scenario("v", "a", "f")];
    let episodes: Vec<Episode> =
        scenarios.iter().map(|task| episode(&task.id, "base", task.id == "s")).collect();
    let rows = rows_of(&["base"], &scenarios, &episodes);
    let of_kinds = rows.iter().filter(|row| row.scope == "kind");
    let found: Vec<_> = of_kinds.map(|row| (row.slice.as_str(), row.scenarios, row.success)).collect();
    let expected =
        [("a trained kind, with another value", 2, 0.5), ("of a kind that training never had", 1, 0.0)];
    assert_eq!(found, expected);
}

#[test]
fn recovery_is_measured_on_episodes_with_a_tool_error() {
    let scenarios = [scenario("s", "a", "f"), scenario("t", "b", "f")];
    let with_errors = |right| Episode { tool_errors: 2, ..episode("s", "base", right) };
    let episodes = [with_errors(true), with_errors(false), with_errors(false), episode("t", "base", true)];
    let rows = rows_of(&["base"], &scenarios, &episodes);
    assert_eq!(row(&rows, "all", "base").error_recovery, Some(1.0 / 3.0));
    assert_eq!(row(&rows, "b", "base").error_recovery, None);
}

#[test]
fn greedy_and_sampled_episodes_are_never_mixed() {
    let scenarios = [scenario("s", "a", "f")];
    let sampled = Episode { mode: Mode::Sampled, ..episode("s", "base", false) };
    let rows = rows_of(&["base"], &scenarios, &[episode("s", "base", true), sampled]);
    let all: Vec<_> =
        rows.iter().filter(|row| row.scope == "all").map(|row| (row.mode.as_str(), row.success)).collect();
    assert_eq!(all, [("greedy", 1.0), ("sampled", 0.0)]);
}

/// Base, start and trained: how many of 100 tasks each solves, counted from the first.
fn three(right: [usize; 3]) -> Vec<VerdictRow> {
    let names = ["base", "start", "trained"];
    let scenarios: Vec<_> = (0..100).map(|i| scenario(&format!("s{i:02}"), "a", "f")).collect();
    let episodes: Vec<_> = scenarios
        .iter()
        .enumerate()
        .flat_map(|(i, scenario)| {
            names.iter().zip(right).map(move |(name, right)| episode(&scenario.id, name, i < right))
        })
        .collect();
    rows_of(&names, &scenarios, &episodes)
}

#[test]
fn each_policy_is_compared_with_the_first_and_with_the_one_before() {
    let rows = three([10, 60, 72]);
    let trained = row(&rows, "all", "trained");
    assert_eq!(
        (trained.gain, trained.previous.as_deref(), trained.step),
        (Some(0.62), Some("start"), Some(0.12))
    );
    // Exact: 12 of 12 tasks that differ are won, in both rows of tables with one row.
    assert_eq!(trained.step_p_adjusted, Some(2.0 / 4096.0));
    let start = row(&rows, "all", "start");
    assert_eq!((start.gain, start.previous.as_deref(), start.step), (Some(0.5), None, None));
    assert_eq!(metrics(&rows)["all.trained.step"], 0.12);
    insta::assert_snapshot!(joined(&rows, plain), @r"
    start beats base on held-out tasks: +50.0 points [+39, +59], p < 0.001
    trained beats base on held-out tasks: +62.0 points [+51, +71], p < 0.001
    trained beats start on held-out tasks: +12.0 points [+5, +19], p < 0.001
    ");
}

#[test]
fn the_policy_to_use_is_the_simplest_that_no_later_one_is_measurably_better_than() {
    let advice = |right| headline(&three(right)).unwrap().advice.unwrap().sentence();
    let all =
        [[10, 60, 72], [10, 72, 71], [10, 72, 30], [40, 42, 41], [40, 20, 60], [40, 42, 55]].map(advice);
    insta::assert_snapshot!(all.join("\n"), @r"
    Use trained: it solves 62.0 points more than base [+51, +71] and 12.0 points more than start [+5, +19].
    Use start: it solves 62.0 points more than base [+51, +71]; trained is not measurably better (-1.0 [-5, +3]).
    Use start: it solves 62.0 points more than base [+51, +71]; trained is worse (-42.0 [-51, -31]).
    Use base: start is not measurably better (+2.0 [-2, +6]); trained is not measurably better (+1.0 [-3, +5]).
    Use trained: it solves 20.0 points more than base [+11, +28].
    Use trained: it solves 15.0 points more than base [+7, +22].
    ");
}

#[test]
fn policies_that_are_not_compared_have_the_sum_of_the_steps_between_them() {
    // Start is measurably better than base, more is not measurably better than start, and trained is.
    let names = ["base", "start", "more", "trained"];
    let right = [10, 60, 61, 90];
    let scenarios: Vec<_> = (0..100).map(|i| scenario(&format!("s{i:02}"), "a", "f")).collect();
    let episodes: Vec<_> = scenarios
        .iter()
        .enumerate()
        .flat_map(|(i, scenario)| {
            names.iter().zip(right).map(move |(name, right)| episode(&scenario.id, name, i < right))
        })
        .collect();
    let advice = headline(&rows_of(&names, &scenarios, &episodes)).unwrap().advice.unwrap();
    assert_eq!(advice.policy, "trained");
    assert!(
        advice.why.contains("80.0 points more than base")
            && advice.why.contains("30.0 points more than start"),
        "{}",
        advice.why
    );
}

#[test]
fn a_model_behind_an_endpoint_is_neither_a_policy_before_nor_advised() {
    let scenarios: Vec<_> = (0..40).map(|i| scenario(&format!("s{i}"), "a", "f")).collect();
    let of = |scenario: &Scenario, policy: &str| episode(&scenario.id, policy, policy != "base");
    let names = ["base", "api", "start"];
    let episodes: Vec<_> =
        scenarios.iter().flat_map(|scenario| names.map(|policy| of(scenario, policy))).collect();
    let rows = rows_of(&names, &scenarios, &episodes);
    assert!(rows.iter().all(|row| row.previous.is_none() && row.step.is_none()));
    let all: Vec<_> = rows.iter().filter(|row| row.scope == "all").collect();
    assert_eq!(all.iter().map(|row| row.is_candidate()).collect::<Vec<_>>(), [true, false, true]);
    let advice = headline(&rows).unwrap().advice.unwrap();
    assert!(advice.policy == "start" && !advice.why.contains("api"), "{}", advice.why);
}

#[test]
fn a_vote_is_neither_a_policy_before_nor_advised() {
    let scenarios: Vec<_> = (0..40).map(|i| scenario(&format!("s{i}"), "a", "f")).collect();
    let names = ["base", "maj@3", "trained"];
    let episodes: Vec<_> = scenarios
        .iter()
        .flat_map(|scenario| {
            let vote = Episode { any_right: Some(true), ..episode(&scenario.id, "maj@3", true) };
            [episode(&scenario.id, "base", false), vote, episode(&scenario.id, "trained", false)]
        })
        .collect();
    let rows = rows_of(&names, &scenarios, &episodes);
    assert!(rows.iter().all(|row| row.previous.is_none() && row.step.is_none()));
    assert_eq!(headline(&rows).unwrap().advice.unwrap().policy, "base");
}

#[test]
fn cases_that_were_trained_on_are_a_row_of_their_own_and_in_no_other() {
    let outcomes: (&[Outcome], &[Outcome]) = (&[(false, true, 10), (true, true, 10)], &[(false, false, 30)]);
    let (scenarios, episodes) = exam(&[("unseen_entities", outcomes.0), ("unseen_phrasings", outcomes.1)]);
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let sizes: Vec<_> = rows
        .iter()
        .filter(|row| row.policy == "trained")
        .map(|row| (row.slice.as_str(), row.scenarios, row.success))
        .collect();
    assert_eq!(
        sizes,
        [
            ("all", 20, 1.0),
            ("unseen_entities", 20, 1.0),
            ("unseen_phrasings", 30, 0.0),
            ("pay_by_unseen_entities", 20, 1.0),
            ("list_tables", 20, 1.0),
            ("run_query", 20, 1.0),
        ]
    );
    let found = headline(&rows).unwrap();
    assert_eq!((found.tasks, found.policies[1].success, found.of_trained_cases), (20, 1.0, false));
    let table: Vec<String> = summary(&rows, plain)
        .lines()
        .skip(3)
        .take(3)
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(table, ["unseen_entities", "all", "unseen_phrasings"]);
    let says_so = |rows: &[VerdictRow]| report(rows, &[]).contains("trained cases in other words");
    assert!(says_so(&rows));

    let (scenarios, episodes) = exam(&[("unseen_phrasings", outcomes.0)]);
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let found = headline(&rows).unwrap();
    assert_eq!((found.tasks, found.of_trained_cases), (20, true));
    assert!(text(&rows).starts_with("trained beats base on unseen phrasings: +50.0"), "{}", text(&rows));
}

#[test]
fn the_headline_is_greedy_with_samples_beside_it() {
    let scenarios: Vec<_> = (0..20).map(|i| scenario(&format!("s{i:02}"), "a", "f")).collect();
    let of = |mode, base: usize, trained: usize| {
        scenarios.iter().enumerate().flat_map(move |(i, scenario)| {
            [("base", base), ("trained", trained)]
                .map(|(name, right)| Episode { mode, ..episode(&scenario.id, name, i < right) })
        })
    };
    let greedy: Vec<_> = of(Mode::Greedy, 10, 12).collect();
    let both: Vec<_> = of(Mode::Sampled, 2, 19).chain(greedy.clone()).collect();
    let names = ["base", "trained"];
    let of = |episodes: &[Episode]| {
        let found = headline(&rows_of(&names, &scenarios, episodes)).unwrap();
        let Standing { success, sampled, all_right, .. } = found.policies[1].clone();
        (found.mode, success, sampled, all_right)
    };
    assert_eq!(of(&both), ("greedy", 0.6, Some(0.95), None));
    assert!((metrics(&rows_of(&names, &scenarios, &both))["all.gain"] - 0.1).abs() < 1e-9);
    assert_eq!(of(&greedy), ("greedy", 0.6, None, None));
    let sampled: Vec<_> = both.iter().filter(|episode| episode.mode == Mode::Sampled).cloned().collect();
    assert_eq!(of(&sampled), ("sampled", 0.95, None, None));
    // Twice, and once wrong.
    let again = sampled.iter().cloned().map(|episode| Episode { right: false, ..episode });
    let twice: Vec<_> = sampled.iter().cloned().chain(again).chain(greedy).collect();
    assert_eq!(of(&twice), ("greedy", 0.6, Some(0.475), Some((0.0, 2))));
}

#[test]
fn no_measurable_gain_is_explained() {
    let scenarios: Vec<_> = (0..20).map(|i| scenario(&format!("s{i:02}"), "a", "f")).collect();
    let of = |(i, scenario): (usize, &Scenario)| {
        [("base", 10), ("trained", 12)].map(|(name, right)| episode(&scenario.id, name, i < right))
    };
    let episodes: Vec<Episode> = scenarios.iter().enumerate().flat_map(of).collect();
    let text = text(&rows_of(&["base", "trained"], &scenarios, &episodes));
    assert!(text.contains("p = 0.500 (an exam like this sees differences of"), "{text}");
}

#[test]
fn what_an_exam_sees_goes_with_its_interval_where_tasks_are_played_several_times() {
    let scenarios: Vec<_> = (0..40).map(|i| scenario(&format!("s{i:02}"), "a", "f")).collect();
    // One of four attempts differs, in turn for the better and the worse.
    let of = |(i, scenario): (usize, &Scenario)| {
        let base = (0..4).map(|sample| episode(&scenario.id, "base", sample < 2));
        let trained = (0..4).map(|sample| episode(&scenario.id, "trained", sample < 1 + 2 * (i % 2)));
        base.chain(trained).collect::<Vec<_>>()
    };
    let episodes: Vec<Episode> = scenarios.iter().enumerate().flat_map(of).collect();
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let all = row(&rows, "all", "trained");
    let (seen, half) = (all.detectable.unwrap(), (all.gain_high.unwrap() - all.gain_low.unwrap()) / 2.0);
    assert!((half..2.0 * half).contains(&seen), "{seen} beside ±{half}");
}

#[test]
fn metrics_name_split_policy_and_mode() {
    let (scenarios, episodes) = exam(&[("a", &[(false, true, 3), (true, true, 1)])]);
    let metrics = metrics(&rows_of(&["base", "trained"], &scenarios, &episodes));
    let lines: Vec<_> = metrics.iter().map(|(name, value)| format!("{name} {value}")).collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    a.base.greedy 0.25
    a.base.strict 0.25
    a.gain 0.75
    a.trained.gain 0.75
    a.trained.greedy 1
    a.trained.strict 1
    all.base.greedy 0.25
    all.base.strict 0.25
    all.gain 0.75
    all.trained.gain 0.75
    all.trained.greedy 1
    all.trained.strict 1
    ");
}

#[test]
fn the_report_reads_as_plain_text() {
    let (scenarios, episodes) = mixed();
    let page = report(&rows_of(&["base", "trained"], &scenarios, &episodes), &["A note.".into()]);
    insta::assert_snapshot!(page, @r"
    # Verdict

    no measurable gain of trained over base on held-out tasks: +14.0 points [-10, +37], p = 0.654 (an exam like this sees differences of 32 points or more); better on a; worse on d  
    Use base: trained is not measurably better (+14.0 [-10, +37]).

    43 held-out tasks, greedy, success in %:

        policy   success      95 %      strict
        base        44.2  30 to 60        44.2
        trained     58.1  43 to 72        58.1

    Success is that with greedy decoding, as an agent is served; sampled is
    the mean of episodes at temperature 1, and pass^k the share of tasks
    whose every one of k such episodes is right. Strict: solved by protocol,
    that is with every call in the form of the chat template and the answer
    given to complete_task. Use says which policy to take: the last one that
    is measurably better than the one that would be used without it.

    A note.

    ## trained against base by split, greedy, success in %

        split   n   base  trained               gain      p
        a      25   36.0     88.0   +52.0 [+22, +74]  0.004
        c       8    0.0     25.0   +25.0 [-29, +69]  0.654
        d      10  100.0     10.0  -90.0 [-100, -31]  0.012
        all    43   44.2     58.1   +14.0 [-10, +37]  0.654

    Counted: single tasks (a, c, d, all).

    ## trained against base by family, greedy, success in %

        family     n   success             gain
        pay_by_a  25   36 → 88   +52 [+22, +74]  *
        pay_by_c   8    0 → 25   +25 [-29, +69]
        pay_by_d  10  100 → 10  -90 [-100, -31]  *

    Rows by family with a measurable gain: 1 of 3; with a regression: pay_by_d.

    ## trained against base by tool, greedy, success in %

        tool          n  success            gain
        list_tables  43  44 → 58  +14 [-10, +37]
        run_query    43  44 → 58  +14 [-10, +37]

    Rows by tool with a measurable gain: 0 of 2; with a regression: none.

    Gain is the difference in success on the same tasks, in points, with its
    95 % interval. Questions of one family tend to be right or wrong
    together, so the interval counts whole families. Where a table's row
    has fewer than 10 families, it counts entities, then questions that are
    one but for their phrasing, then single tasks. Such a row applies to
    its own families only. p is the sign-flip test of the same clusters,
    adjusted by Holm's method for all policies, modes and steps. It alone
    decides: a gain is measurable (*) where p is below 0.05.

    ## Protocol

        policy     mode  success  strict  pass^k
        base     greedy     44.2    44.2    44.2
        trained  greedy     58.1    58.1    58.1

    Success in %. Strict: the episode was right, wrote every call in the
    form of the chat template and gave its answer to complete_task, as a
    client that reads nothing else needs it. pass^k: tasks whose every
    episode was right.

    ## Effort

        policy     mode  calls  turns  tokens  recovery
        base     greedy   2.00   3.00      40         -
        trained  greedy   2.00   3.00      40         -

    Calls, turns and sampled tokens per episode. Recovery: of the episodes
    that met a tool error, those that ended right.
    ");
}

#[test]
fn a_run_ends_with_the_table_of_splits_and_the_verdict() {
    let (scenarios, episodes) = mixed();
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let marked =
        |finding, text: &str| if finding == Finding::Gain { text.replace(' ', "_") } else { text.into() };
    insta::assert_snapshot!(summary(&rows, marked), @r"
    trained against base by split, greedy, success in %

    split   n   base  trained               gain      p
    a      25   36.0     88.0  _+52.0_[+22,_+74]  0.004
    c       8    0.0     25.0   +25.0 [-29, +69]  0.654
    d      10  100.0     10.0  -90.0 [-100, -31]  0.012
    all    43   44.2     58.1   +14.0 [-10, +37]  0.654

    43 held-out tasks, greedy, success in %

    policy   success      95 %      strict
    base        44.2  30 to 60        44.2
    trained     58.1  43 to 72        58.1

    no measurable gain of trained over base on held-out tasks: +14.0 points [-10, +37], p = 0.654 (an exam like this sees differences of 32 points or more);_better_on_a; worse on d
    Use base: trained is not measurably better (+14.0 [-10, +37]).
    ");
}

#[test]
fn tables_are_at_most_seventy_columns_wide() {
    let long = "a_family_name_that_its_author_did_not_keep_short";
    let scenarios: Vec<_> =
        (0..1000).map(|i| scenario(&format!("s{i}"), &format!("{long}{}", i % 2), long)).collect();
    let names = ["the_base_policy_of_them_all", "the_trained_policy_of_them_all"];
    let episodes: Vec<_> = scenarios
        .iter()
        .flat_map(|s| [(names[0], true), (names[1], false)].map(|(name, right)| episode(&s.id, name, right)))
        .collect();
    let rows = rows_of(&names, &scenarios, &episodes);
    let page = report(&rows, &[]);
    let tables: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    assert!(tables.len() > 10 && tables.iter().all(|line| line.chars().count() <= 70), "{page}");
}

/// Rows over all of forty tasks, of which these policies solve so many. `base+` is `base` with another prompt, and so is `few`.
fn with_variants(solve: &[(&str, usize)]) -> Vec<VerdictRow> {
    let scenarios: Vec<_> = (0..40).map(|i| scenario(&format!("s{i:02}"), "a", "f")).collect();
    let of = |(name, solved): &(&str, usize)| -> Vec<Episode> {
        scenarios.iter().enumerate().map(|(i, scenario)| episode(&scenario.id, name, i < *solved)).collect()
    };
    let episodes: Vec<Episode> = solve.iter().flat_map(of).collect();
    let policies: Vec<String> = solve.iter().map(|(name, _)| (*name).to_owned()).collect();
    let variants = [("base+", "base"), ("few", "start")].map(|(name, own)| (name.to_owned(), own.to_owned()));
    let exam = Comparison {
        policies: &policies,
        scenarios: &scenarios,
        variants: &variants,
        ..Comparison::default()
    };
    verdict(&exam, &episodes).into_iter().filter(|row| row.scope == "all").collect()
}

#[test]
fn gains_are_over_the_base_with_a_better_prompt_and_steps_over_the_base_itself() {
    let rows = with_variants(&[("base+", 8), ("base", 0), ("few", 28), ("start", 24), ("trained", 25)]);
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (row.policy.as_str(), row.gain, row.previous.as_deref(), row.step, row.is_candidate()))
        .collect();
    assert_eq!(
        shown,
        [
            ("base+", None, None, None, true),
            ("base", Some(-0.2), None, None, true),
            ("few", Some(0.5), Some("start"), Some(0.1), false),
            ("start", Some(0.4), Some("base"), Some(0.6), true),
            ("trained", Some(0.425), Some("start"), Some(0.025), true),
        ]
    );
    assert_eq!(rows[0].variant_of.as_deref(), Some("base"));
    assert_eq!(metrics(&rows)["all.gain"], 0.425);
    let found = headline(&rows).unwrap();
    assert_eq!(found.differences[0].to, "base+");
    let advice = found.advice.unwrap();
    assert!(advice.policy == "start" && advice.why.contains("40.0 points more than base+ "), "{advice:?}");
}

#[test]
fn a_prompt_that_does_not_help_is_not_advised() {
    let rows = with_variants(&[("base+", 4), ("base", 4), ("start", 5)]);
    let advice = headline(&rows).unwrap().advice.unwrap();
    assert_eq!(advice.policy, "base");
    assert!(
        advice.why.starts_with("without the prompt of base+ it is not measurably worse (0.0 ["),
        "{advice:?}"
    );
    let helped = with_variants(&[("base+", 20), ("base", 2), ("start", 20)]);
    assert_eq!(headline(&helped).unwrap().advice.unwrap().policy, "base+");
    let trained = with_variants(&[("base+", 4), ("base", 4), ("start", 30)]);
    let advice = headline(&trained).unwrap().advice.unwrap();
    assert!(
        advice.policy == "start" && advice.why.starts_with("it solves 65.0 points more than base+ "),
        "{advice:?}"
    );
}

#[test]
fn tasks_about_changes_have_a_row_with_what_failed_episodes_changed() {
    let scenarios: Vec<Scenario> = (0..4).map(|i| scenario(&format!("s{i}"), "a", "f")).collect();
    let of = |scenario: &str, policy: &str, right: bool, changed: Option<Change>| Episode {
        changed,
        ..episode(scenario, policy, right)
    };
    let mut episodes = Vec::new();
    for policy in ["base", "trained"] {
        let is_trained = policy == "trained";
        episodes.push(of(
            "s0",
            policy,
            is_trained,
            Some(if is_trained { Change::Part } else { Change::Nothing }),
        ));
        episodes.push(of("s1", policy, false, Some(Change::Nothing)));
        episodes.push(of("s2", policy, false, Some(Change::Other)));
        episodes.push(of("s3", policy, true, None));
    }
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let row = |policy: &str| rows.iter().find(|row| row.scope == "changes" && row.policy == policy).unwrap();
    let shares = |row: &VerdictRow| (row.scenarios, row.success, row.changed_nothing, row.changed_other);
    let third = 1.0 / 3.0;
    assert_eq!(shares(row("base")), (3, 0.0, Some(2.0 * third), Some(third)));
    assert_eq!(shares(row("trained")), (3, third, Some(third), Some(third)));
    assert!(rows.iter().filter(|row| row.scope != "changes").all(|row| row.changed_nothing.is_none()));
    let page = report(&rows, &[]);
    assert!(page.contains("## Changes") && page.contains("changed something else"), "{page}");
}

#[test]
fn a_gain_over_all_does_not_read_as_none_on_its_splits() {
    let row = |scope: &str, slice: &str, policy: &str, p: f64| VerdictRow {
        scope: scope.into(),
        slice: slice.into(),
        mode: "greedy".into(),
        policy: policy.into(),
        scenarios: 40,
        gain: (policy != "base").then_some(0.042),
        gain_low: (policy != "base").then_some(0.01),
        gain_high: (policy != "base").then_some(0.08),
        p_adjusted: (policy != "base").then_some(p),
        ..VerdictRow::default()
    };
    let rows = |on_b: f64| -> Vec<VerdictRow> {
        let slices = [("all", "all", 0.043), ("split", "a", 0.3), ("split", "b", on_b)];
        slices
            .into_iter()
            .flat_map(|(scope, slice, p)| ["base", "trained"].map(|policy| row(scope, slice, policy, p)))
            .collect()
    };
    let vague = joined(&rows(0.2), plain);
    assert!(vague.ends_with("; no split alone has enough tasks to show it"), "{vague}");
    let partly = joined(&rows(0.01), plain);
    assert!(partly.ends_with("; no measurable gain on a"), "{partly}");
    let mut wide = rows(0.01);
    wide.iter_mut().filter(|row| row.gain.is_some()).for_each(|row| row.gain_low = Some(-0.01));
    let wide = joined(&wide, plain);
    assert!(wide.starts_with("no measurable gain"), "the interval contains 0: {wide}");
}

#[test]
fn the_rows_over_all_tasks_alone_are_those_of_the_verdict_with_p_adjusted_for_themselves() {
    let scenarios: Vec<_> =
        (0..40).map(|i| scenario(&format!("s{i:02}"), if i < 20 { "a" } else { "b" }, "f")).collect();
    let names = ["base".to_owned(), "trained".to_owned()];
    let of = |(i, one): (usize, &Scenario)| {
        [("base", i < 10), ("trained", i < 30)].map(|(name, right)| episode(&one.id, name, right))
    };
    let episodes: Vec<Episode> = scenarios.iter().enumerate().flat_map(of).collect();
    let compared = Comparison { policies: &names, scenarios: &scenarios, ..Comparison::default() };
    let figures = |rows: Vec<VerdictRow>| -> Vec<_> {
        let all = rows.into_iter().filter(|row| row.scope == "all");
        all.map(|row| (row.success, row.gain, row.gain_low, row.gain_high, row.p_value)).collect()
    };
    let alone = overall(&compared, &episodes);
    assert_eq!(alone[1].p_adjusted, alone[1].p_value);
    assert_eq!(alone.len(), 2, "no other scope");
    assert_eq!(figures(alone), figures(verdict(&compared, &episodes)));
}
