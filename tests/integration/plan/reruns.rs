//! Which stages a plan reruns, and the reason that it shows.

use crate::common::{CHAIN, Project, output, without_times};

#[test]
fn a_second_run_runs_nothing() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    assert_eq!(project.ran(), ["end", "middle", "start"]);
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
    assert_eq!(project.result("end/number.txt"), "3");
}

#[test]
fn planning_creates_nothing() {
    let project = Project::new(CHAIN);
    let output = project.mcprl(&["plan", "run.toml"]);
    insta::assert_snapshot!(output.out, @r"
    run     start   gen   first time
    run     middle  half  after start
    run     end     step  after middle
    toy: 0 cached, 3 to run, 0 that may run, 0 skipped
    no estimate for start, middle, end: no earlier run
    ");
    assert!(!project.path("cache").exists());
}

#[test]
fn a_changed_parameter_is_shown_with_its_old_and_new_value() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let output = project.mcprl(&["plan", "run.toml", "--set", "stages.start.value=6"]);
    insta::assert_snapshot!(without_times(&output.out), @r"
    run start | gen | params.value 4 → 6
    may run middle | half | if start changes
    may run end | step | if middle changes
    toy: 0 cached, 1 to run, 2 that may run, 0 skipped
    ");
}

#[test]
fn a_changed_stage_that_waits_will_run_and_shows_why() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let set = ["--set", "stages.start.value=6", "--set", "stages.end.sleep=0.01"];
    let plan = without_times(&project.mcprl(&[&["plan", "run.toml"], &set[..]].concat()).out);
    assert!(plan.contains("may run middle | half | if start changes"), "{plan}");
    assert!(plan.contains("run end | step | after middle: params.sleep 0.0 → 0.01"), "{plan}");
    assert!(plan.contains("2 to run, 1 that may run"), "{plan}");
}

#[test]
fn equal_bytes_stop_a_rerun_from_spreading() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    // 5 / 2 = 4 / 2: what `middle` writes is the same.
    project.run(&["--set", "stages.start.value=5"]);
    assert_eq!(project.ran(), ["middle", "start"]);
}

#[test]
fn an_edited_script_reruns_its_stage_and_is_named() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    let script = project.read("stages/step/run.sh");
    project.write("stages/step/run.sh", &format!("{script}# edited\n"));
    let plan = without_times(&project.mcprl(&["plan", "run.toml"]).out);
    assert!(plan.contains("run end | step | code stages/step/run.sh edited"), "{plan}");
    project.run(&[]);
    assert_eq!(project.ran(), ["end"]);
}

#[test]
fn prose_in_a_card_reruns_nothing() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    let card = project.read("stages/step/card.toml").replace("A toy.", "A toy that adds one.");
    project.write("stages/step/card.toml", &card);
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
}

#[test]
fn a_seed_affects_only_stages_that_draw() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    project.run(&["--set", "seed=2"]);
    // `gen` draws and runs again with equal bytes; `step` draws; `half` is pure.
    assert_eq!(project.ran(), ["end", "start"]);
}

#[test]
fn the_environment_overrides_the_run_file_and_the_command_line_both() {
    let project = Project::new(CHAIN);
    let run = |more: &[&str]| {
        let arguments: Vec<&str> = ["run", "run.toml"].iter().chain(more).copied().collect();
        let done = output(project.command(&arguments).env("MCPRL_STAGES__START__VALUE", "20"));
        assert_eq!(done.code, Some(0), "{}", done.err);
        project.result("end/number.txt")
    };
    assert_eq!(run(&[]), "11");
    assert_eq!(run(&["--set", "stages.start.value=40"]), "21");
}

#[test]
fn a_file_parameter_counts_by_its_content() {
    let project = Project::new("name = \"toy\"\n[stages.end]\nkind = \"copy\"\nfile = \"sub/data.txt\"\n");
    project.write("sub/data.txt", "one");
    project.run(&[]);
    assert_eq!(project.ran(), ["end"]);
    project.write("sub/data.txt", "one");
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
    project.write("sub/data.txt", "two");
    project.run(&[]);
    assert_eq!(project.ran(), ["end"]);
    assert_eq!(project.result("end/number.txt"), "two");
}

const SUM: &str = "name = \"toy\"\n[stages.a]\nkind = \"gen\"\nvalue = 4\n[stages.b]\nkind = \"gen\"\nvalue = 5\n\
                   [stages.end]\nkind = \"sum\"\nparts = { left = \"a\", right = \"b\" }\n";

#[test]
fn reordered_inputs_are_a_rerun_reason() {
    let project = Project::new(SUM);
    project.run(&[]);
    project.write("run.toml", &SUM.replace("left = \"a\", right = \"b\"", "right = \"b\", left = \"a\""));
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("inputs.parts in another order: left, right → right, left"), "{plan}");
}

#[test]
fn an_input_with_other_bytes_names_the_stage_that_wrote_them() {
    let project = Project::new(SUM);
    project.run(&[]);
    let output = project.run(&["--set", "stages.b.value=6"]).err;
    assert!(output.contains("end                  input parts.right: new bytes from b\n"), "{output}");
}

#[test]
fn a_missing_earlier_record_is_reported_as_the_reason() {
    let project = Project::new(SUM);
    project.run(&[]);
    for item in std::fs::read_dir(project.path("cache/ac")).unwrap() {
        let path = item.unwrap().path();
        if path.is_file() {
            std::fs::remove_file(path).unwrap();
        }
    }
    let plan = project.mcprl(&["plan", "run.toml", "--set", "stages.a.value=6"]).out;
    let row = |stage: &str| plan.lines().find(|line| line.split_whitespace().nth(1) == Some(stage)).unwrap();
    assert!(row("a").ends_with("its earlier record is gone"), "{plan}");
    assert!(row("b").ends_with("its result is no longer in the cache"), "{plan}");
}

#[test]
fn equal_bytes_of_a_refreshed_stage_rerun_no_reader() {
    let project = Project::new(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\nvalue = 4\n[stages.end]\nkind = \"half\"\nfrom = \"start\"\n",
    );
    project.run(&[]);
    project.ran();
    project.run(&["--set", "stages.start.cache=refresh"]);
    assert_eq!(project.ran(), ["start"]);
}
