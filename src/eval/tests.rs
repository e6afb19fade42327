use super::*;
use crate::data::{Scenario, VerdictRow};

fn scenario(id: &str, split: &str, family: &str) -> Scenario {
    Scenario {
        id: id.into(),
        split: split.into(),
        family: family.into(),
        task: "t".into(),
        answer: Some("1".into()),
        check: "number".into(),
        entity: None,
        reference: Some(r#"[{"name": "run_query", "arguments": {}}]"#.into()),
    }
}

fn episode(scenario: &str, policy: &str, right: bool) -> Episode {
    Episode {
        scenario: scenario.into(),
        policy: policy.into(),
        mode: Mode::Greedy,
        right,
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
    verdict(&Exam { policies: &policies, scenarios, tools: &tools, resamples: 1000, seed: 7 }, episodes)
}

fn row<'a>(rows: &'a [VerdictRow], slice: &str, policy: &str) -> &'a VerdictRow {
    rows.iter().find(|row| row.slice == slice && row.policy == policy).unwrap()
}

/// Right for base, right for trained, and how many scenarios came out like that.
type Outcome = (bool, bool, usize);

/// The outcomes split by split.
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

/// A clear gain on a, too little to tell on c, a loss on d.
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
fn a_comparison_counts_what_came_out_differently() {
    let (scenarios, episodes) = mixed();
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let a = row(&rows, "a", "trained");
    assert_eq!((a.gain, a.better, a.worse), (Some(13.0 / 25.0), Some(14), Some(1)));
    assert_eq!(a.p_value, Some(sign_test(14, 1)));
    assert!(a.gain_low.unwrap() > 0.2 && a.gain_high.unwrap() < 0.8, "{a:?}");
}

#[test]
fn a_handful_of_scenarios_proves_nothing_even_if_all_improved() {
    let (scenarios, episodes) = exam(&[("a", &[(false, true, 3)])]);
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let a = row(&rows, "a", "trained");
    assert_eq!(a.gain_low, Some(1.0));
    assert_eq!(Finding::of(a), Some(Finding::NoMeasurableGain));
}

#[test]
fn equal_policies_have_no_measurable_gain() {
    let (scenarios, episodes) = exam(&[("a", &[(true, true, 30), (false, false, 30)])]);
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    let a = row(&rows, "a", "trained");
    assert_eq!((a.gain, a.p_value), (Some(0.0), Some(1.0)));
    assert_eq!(headline(&rows), "trained: no measurable gain on a");
}

#[test]
fn the_headline_names_gains_doubts_and_regressions() {
    let (scenarios, episodes) = mixed();
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    insta::assert_snapshot!(headline(&rows), @"trained: measurable gain on a; no measurable gain on c; regression on d");
}

#[test]
fn one_policy_alone_is_compared_with_nothing() {
    let rows = rows_of(&["base"], &[scenario("s", "a", "f")], &[episode("s", "base", true)]);
    assert_eq!(headline(&rows), "nothing to compare");
    assert_eq!(headline(&[]), "nothing to compare");
    assert!(report(&[], &[]).contains("nothing to compare"));
}

#[test]
fn a_tools_slice_is_one_set_of_scenarios_for_all_policies() {
    let scenarios = [scenario("s", "a", "f"), scenario("t", "a", "f")];
    let looked = Episode { tools: vec!["list_tables".into()], ..episode("s", "trained", true) };
    let episodes =
        [episode("s", "base", false), episode("t", "base", true), looked, episode("t", "trained", true)];
    let rows = rows_of(&["base", "trained"], &scenarios, &episodes);
    for policy in ["base", "trained"] {
        assert_eq!(row(&rows, "list_tables", policy).scenarios, 1);
        assert_eq!(row(&rows, "run_query", policy).scenarios, 2);
    }
}

#[test]
fn recovery_is_measured_on_the_episodes_that_met_an_error() {
    let scenarios = [scenario("s", "a", "f"), scenario("t", "b", "f")];
    let stumbling = |right| Episode { tool_errors: 2, ..episode("s", "base", right) };
    let episodes = [stumbling(true), stumbling(false), stumbling(false), episode("t", "base", true)];
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

#[test]
fn metrics_name_split_policy_and_mode() {
    let (scenarios, episodes) = exam(&[("a", &[(false, true, 3), (true, true, 1)])]);
    let metrics = metrics(&rows_of(&["base", "trained"], &scenarios, &episodes));
    let lines: Vec<_> = metrics.iter().map(|(name, value)| format!("{name} {value}")).collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    a.base.greedy 0.25
    a.gain 0.75
    a.trained.gain 0.75
    a.trained.greedy 1
    all.base.greedy 0.25
    all.gain 0.75
    all.trained.gain 0.75
    all.trained.greedy 1
    ");
}

#[test]
fn the_report_reads_as_plain_text() {
    let (scenarios, episodes) = mixed();
    let page = report(&rows_of(&["base", "trained"], &scenarios, &episodes), &["A note.".into()]);
    insta::assert_snapshot!(page, @r"
    # Verdict

    trained: measurable gain on a; no measurable gain on c; regression on d

    A note.

    ## trained against base by split, greedy

    | split |  n |            base |       trained |              gain |      p | up/down |
    |-------|----|-----------------|---------------|-------------------|--------|---------|
    | a     | 25 |   36.0 [20, 55] | 88.0 [70, 96] |  +52.0 [+28, +76] | <0.001 |    14/1 |
    | c     |  8 |     0.0 [0, 32] |  25.0 [7, 59] |    +25.0 [0, +50] |  0.500 |     2/0 |
    | d     | 10 | 100.0 [72, 100] |  10.0 [2, 40] | -90.0 [-100, -70] |  0.004 |     0/9 |
    | all   | 43 |   44.2 [30, 59] | 58.1 [43, 72] |   +14.0 [-7, +37] |  0.327 |   16/10 |

    ## trained against base by family, greedy

    | family   |  n |            base |       trained |              gain |      p |
    |----------|----|-----------------|---------------|-------------------|--------|
    | pay_by_a | 25 |   36.0 [20, 55] | 88.0 [70, 96] |  +52.0 [+28, +76] | <0.001 |
    | pay_by_c |  8 |     0.0 [0, 32] |  25.0 [7, 59] |    +25.0 [0, +50] |  0.500 |
    | pay_by_d | 10 | 100.0 [72, 100] |  10.0 [2, 40] | -90.0 [-100, -70] |  0.004 |

    Rows by family with a measurable gain: 1 of 3; with a regression: pay_by_d.

    ## trained against base by tool, greedy

    | tool        |  n |          base |       trained |            gain |     p |
    |-------------|----|---------------|---------------|-----------------|-------|
    | list_tables | 43 | 44.2 [30, 59] | 58.1 [43, 72] | +14.0 [-7, +37] | 0.327 |
    | run_query   | 43 | 44.2 [30, 59] | 58.1 [43, 72] | +14.0 [-7, +37] | 0.327 |

    Rows by tool with a measurable gain: 0 of 2; with a regression: none.

    ## Effort

    | policy  |   mode | episodes | pass^k | calls | turns | tokens | recovery |
    |---------|--------|----------|--------|-------|-------|--------|----------|
    | base    | greedy |       43 |   44.2 |  2.00 |  3.00 |     40 |        - |
    | trained | greedy |       43 |   58.1 |  2.00 |  3.00 |     40 |        - |

    Calls, turns and sampled tokens per episode; recovery: of the episodes that met a tool error, those
    that ended right; pass^k: scenarios whose every episode was right.

    Success is the share of right answers in %, per scenario first, with its 95 % Wilson interval.
    Gain is the paired difference in points, with its 95 % bootstrap interval over scenarios.
    p is the exact two-sided sign test over scenarios that came out differently, not adjusted for the
    number of rows. A gain is measurable where its interval is clear of zero and p is below 0.05.
    ");
}

#[test]
fn a_report_is_at_most_a_hundred_columns_wide() {
    let long = "a_family_name_that_its_author_did_not_keep_short";
    let scenarios: Vec<_> = (0..1000).map(|i| scenario(&format!("s{i}"), long, long)).collect();
    let names = ["the_base_policy_of_them_all", "the_trained_policy_of_them_all"];
    let episodes: Vec<_> = scenarios
        .iter()
        .flat_map(|s| [(names[0], true), (names[1], false)].map(|(name, right)| episode(&s.id, name, right)))
        .collect();
    let page = report(&rows_of(&names, &scenarios, &episodes), &[]);
    let widest = page.lines().filter(|line| line.starts_with('|')).map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{page}");
}
