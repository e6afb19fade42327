//! Programs as stages: their input, their usage, and how they end.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, Instant},
};

use crate::common::{Project, is_running, output, until};

const NUMBER: &str = "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n";

/// One stage, `end`, of this card and script.
fn one(determinism: &str, card: &str, script: &str) -> Project {
    let project = Project::new("name = \"toy\"\n[stages.end]\nkind = \"own\"\n");
    project.kind("own", determinism, &format!("{card}{NUMBER}"), script);
    project
}

/// Waits for a file and gives its text.
fn awaited(path: &Path) -> String {
    let mut text = String::new();
    until("the file is written", || {
        text = std::fs::read_to_string(path).unwrap_or_default();
        text.ends_with('\n')
    });
    text.trim().to_owned()
}

#[test]
fn a_stage_ends_with_its_program_whatever_that_leaves_running() {
    let project = one(
        "pure",
        "",
        "sleep 600 &\necho $! > \"$TOY_LOG.left\"\necho 1 > \"$MCPRL_OUTPUT_NUMBER\"\necho the last line",
    );
    let began = Instant::now();
    let output = project.run(&[]).err;
    assert!(began.elapsed() < Duration::from_secs(50));
    assert!(output.contains("the last line"), "{output}");
    assert!(output.contains("left child processes running"), "{output}");
    #[cfg(target_os = "linux")]
    {
        let left = awaited(&project.path("log.left"));
        until("what it left ends", || !is_running(&left));
    }
    assert_eq!(project.result("end/number.txt"), "1");
}

#[test]
fn the_last_output_of_a_failing_program_is_shown_though_others_keep_it_open() {
    let project = one("pure", "", "sleep 600 &\necho no luck today >&2\nexit 3");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert!(failed.err.contains("ended with exit status: 3\nno luck today"), "{}", failed.err);
}

#[test]
#[cfg(target_os = "linux")]
fn the_program_of_a_killed_run_is_killed_with_it() {
    let project = one("pure", "", "echo $$ > \"$TOY_LOG.pid\"\nexec sleep 600");
    let mut run = project.spawn(&["run", "run.toml"]);
    let process = awaited(&project.path("log.pid"));
    run.kill().unwrap();
    run.wait().unwrap();
    until("its program ends", || !is_running(&process));
}

#[test]
fn code_edited_while_it_runs_makes_no_result() {
    let project = one("pure", "", "echo '# edited' >> \"$0\"\necho 1 > \"$MCPRL_OUTPUT_NUMBER\"");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1));
    let expected = "stages/own/run.sh changed since stage \"end\" was planned";
    assert!(failed.err.contains(expected), "{}", failed.err);
    assert!(failed.err.contains("hint: run again"), "{}", failed.err);
    project.write("stages/own/run.sh", "echo 2 > \"$MCPRL_OUTPUT_NUMBER\"\n");
    project.run(&[]);
    assert_eq!(project.result("end/number.txt"), "2");
}

#[test]
fn each_resample_has_another_seed_and_the_first_is_reproducible() {
    let project = one("sampled", "", "echo \"$MCPRL_SEED\" > \"$MCPRL_OUTPUT_NUMBER\"");
    let mut seeds = Vec::new();
    for more in
        [&[][..], &["--resample", "end"], &["--resample", "end"], &["--set", "stages.end.cache=refresh"]]
    {
        project.run(more);
        seeds.push(project.result("end/number.txt"));
    }
    let first = seeds[0].clone();
    seeds.sort();
    seeds.dedup();
    assert_eq!(seeds.len(), 4, "{seeds:?}");
    project.run(&["--cache", "other"]);
    let run = std::fs::read_dir(project.path("other/runs")).unwrap().next().unwrap().unwrap();
    assert_eq!(std::fs::read_to_string(run.path().join("end/number.txt")).unwrap().trim(), first);
}

#[test]
fn a_resample_draws_no_sample_again_that_another_machine_shared() {
    let shared = tempfile::tempdir().unwrap();
    let remote = format!("cache.remote={}", shared.path().join("shared").display());
    let machine = || one("sampled", "", "echo \"$MCPRL_SEED\" > \"$MCPRL_OUTPUT_NUMBER\"");
    let drawn = |project: &Project, more: &[&str]| {
        project.run(more);
        project.result("end/number.txt")
    };
    let (first, second) = (machine(), machine());
    let mut seeds = vec![drawn(&first, &["--set", &remote])];
    // Its own cache has no result.
    seeds.push(drawn(&second, &["--set", &remote, "--resample", "end"]));
    // The shared result is a later draw.
    let (third, fourth) = (machine(), machine());
    let apart = shared.path().join("another");
    let apart = apart.to_str().unwrap();
    third.run(&[]);
    for _ in 0..2 {
        seeds.push(drawn(&third, &["--resample", "end"]));
    }
    assert_eq!(third.mcprl(&["cache", "push", "--all", "--to", apart]).code, Some(0));
    let remote = format!("cache.remote={apart}");
    seeds.push(drawn(&fourth, &["--set", &remote, "--resample", "end"]));
    assert_eq!(seeds[1], seeds[2], "the second draw, on each machine");
    seeds.remove(1);
    seeds.sort();
    seeds.dedup();
    assert_eq!(seeds.len(), 4, "{seeds:?}");
}

#[test]
fn a_resample_draws_no_sample_again_after_its_result_was_removed() {
    let project = one("sampled", "", "echo \"$MCPRL_SEED\" > \"$MCPRL_OUTPUT_NUMBER\"");
    let mut seeds = Vec::new();
    for more in [&[][..], &["--resample", "end"], &["--resample", "end"], &["--resample", "end"]] {
        project.run(more);
        seeds.push(project.result("end/number.txt"));
        let swept = project.mcprl(&["cache", "gc", "--keep-last", "0", "--grace", "0s"]);
        assert!(swept.err.contains("1 result"), "{}", swept.err);
    }
    let first = seeds[0].clone();
    seeds.sort();
    seeds.dedup();
    assert_eq!(seeds.len(), 4, "{seeds:?}");
    // Nothing was requested, so this is the first draw as everywhere.
    project.run(&[]);
    assert_eq!(project.result("end/number.txt"), first);
}

#[test]
fn a_seeded_stage_keeps_its_seed_in_every_rerun() {
    let project = one("seeded", "", "echo \"$MCPRL_SEED\" > \"$MCPRL_OUTPUT_NUMBER\"");
    project.run(&[]);
    let first = project.result("end/number.txt");
    project.run(&["--set", "stages.end.cache=refresh"]);
    assert_eq!(project.result("end/number.txt"), first);
}

#[test]
#[cfg(target_os = "linux")]
fn a_program_inherits_the_large_page_setting_of_whoever_started_the_run() {
    let project =
        one("pure", "", "sed -n 's/^THP_enabled:[^0-9]*//p' /proc/self/status > \"$MCPRL_OUTPUT_NUMBER\"");
    project.run(&[]);
    let here = std::fs::read_to_string("/proc/self/status").unwrap();
    let here = here.lines().find_map(|line| line.strip_prefix("THP_enabled:")).unwrap_or_default();
    assert_eq!(project.result("end/number.txt"), here.trim());
}

#[test]
fn a_program_gets_the_engine_only_if_its_card_uses_it() {
    let script = "sed 's/.*\"engine\":\\([^,}]*\\).*/\\1/' \"$MCPRL_STAGE\" > \"$MCPRL_OUTPUT_NUMBER\"";
    let handed = |card: &str| {
        let project = one("pure", card, script);
        project.run(&[]);
        project.result("end/number.txt")
    };
    assert_eq!(handed(""), "null");
    assert!(handed("uses = [\"engine\"]\n").starts_with("{\"devices\""));
}

#[test]
fn reported_tokens_are_priced_without_a_request_count() {
    let project = one(
        "pure",
        "prices = { prompt = 1.0, completion = 3.0 }\n",
        "echo 1 > \"$MCPRL_OUTPUT_NUMBER\"\n\
         echo '{\"judge_prompt_tokens\": 200000, \"judge_completion_tokens\": 100000}' > \"$MCPRL_SPENT\"",
    );
    let output = project.run(&["-v"]).err;
    assert!(output.contains("100.0k endpoint tokens out, $0.50\n"), "{output}");
}

#[test]
fn the_usage_of_a_failed_stage_is_reported() {
    let project = one(
        "external",
        "retries = 1\nprices = { prompt = 1.0, completion = 3.0 }\n",
        "echo '{\"judge_requests\": 5, \"judge_prompt_tokens\": 200000}' > \"$MCPRL_SPENT\"\nexit 1",
    );
    let failed = project.mcprl(&["run", "-v"]);
    assert!(
        failed.err.contains("usage: 10 endpoint requests, 400.0k endpoint tokens in, $0.40\n"),
        "{}",
        failed.err
    );
}

#[test]
fn a_run_within_a_stage_has_the_seed_of_its_own_run_file() {
    let bin = env!("CARGO_BIN_EXE_mcprl");
    let script = format!(
        "cd \"$(dirname \"$TOY_LOG\")\"\n{bin} --json plan inner.toml --cache inner > \"$MCPRL_OUTPUT_NUMBER\""
    );
    let project = one("seeded", "", &script);
    project.write("inner.toml", "name = \"inner\"\n[stages.start]\nkind = \"gen\"\n");
    project.run(&[]);
    let alone = project.mcprl(&["--json", "plan", "inner.toml", "--cache", "inner"]).out;
    assert_eq!(project.result("end/number.txt"), alone.trim());
}

#[test]
fn environment_variables_that_are_not_utf8_are_harmless() {
    let project = one("pure", "", "echo 1 > \"$MCPRL_OUTPUT_NUMBER\"");
    for arguments in [&["run", "run.toml"][..], &["doctor", "run.toml"]] {
        let done = output(project.command(arguments).env("OTHER", OsStr::from_bytes(b"\xff\xfe")));
        assert_eq!(done.code, Some(0), "{}", done.err);
    }
}

#[test]
fn an_external_stage_in_a_loop_runs_in_each_iteration() {
    let project = Project::new(
        "name = \"toy\"\n[loop.count]\niterations = 3\n[loop.count.stages.look]\nkind = \"draw\"\n",
    );
    project.run(&[]);
    assert_eq!(project.ran(), ["count[0001]/look", "count[0002]/look", "count[0003]/look"]);
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
}

#[test]
fn invalid_numbers_of_a_program_are_reported_with_its_own_names() {
    for (variable, text) in [("MCPRL_METRICS", "{\"loss\": \"low\"}"), ("MCPRL_SPENT", "{\"tokens\": 1}")] {
        let script = format!("echo 1 > \"$MCPRL_OUTPUT_NUMBER\"\necho '{text}' > \"${variable}\"");
        let project = one("pure", "", &script);
        let failed = project.mcprl(&["run", "run.toml"]).err;
        let expected = format!("what `sh -e run.sh` wrote to ${variable} is not a JSON object of numbers: ");
        assert!(failed.contains(&expected) && !failed.contains("cache/tmp"), "{failed}");
    }
}

#[test]
fn a_broken_card_hides_no_other() {
    let project = one("seeded", "", "true");
    project.write("stages/broken/card.toml", "kind = 3\n");
    let list = project.mcprl(&["stage", "list"]);
    assert_eq!(list.code, Some(1));
    assert!(list.out.contains("\nown ") && list.out.contains("\nrollout "), "{}", list.out);
    assert!(list.err.starts_with("error: ") && list.err.contains("broken/card.toml"), "{}", list.err);
    let shown = project.mcprl(&["stage", "show", "own"]).out;
    assert!(shown.contains("seeded: the same inputs") && shown.contains("command: sh -e run.sh"), "{shown}");
}

#[test]
#[cfg(target_os = "linux")]
fn as_process_1_the_program_reaps_what_others_leave_and_ends_by_signals() {
    use std::process::Command;

    const ALONE: [&str; 4] = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !Command::new("unshare").args(ALONE).arg("true").status().is_ok_and(|status| status.success()) {
        return;
    }
    let alone = |project: &Project| {
        let inner = project.command(&["run", "run.toml"]);
        let mut command = Command::new("unshare");
        command.args(ALONE).arg(inner.get_program()).args(inner.get_args()).current_dir(project.path(""));
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    let project =
        one("pure", "", "for i in 1 2 3 4 5; do setsid sleep 0.2 & done\necho 1 > \"$MCPRL_OUTPUT_NUMBER\"");
    project.replace(
        "run.toml",
        "kind = \"own\"\n",
        "kind = \"own\"\n[stages.count]\nkind = \"count\"\nfrom = \"end\"\n",
    );
    project.kind(
        "count",
        "pure",
        &format!("[inputs.from]\ntype = \"number\"\n{NUMBER}"),
        "sleep 1; cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' > \"$MCPRL_OUTPUT_NUMBER\" || true",
    );
    let done = output(&mut alone(&project));
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(project.result("count/number.txt"), "0", "processes that nobody has reaped");

    let project = one("pure", "", "echo $$ > \"$TOY_LOG.began\"; sleep 600");
    let mut command = alone(&project);
    let mut run = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    awaited(&project.path("log.began"));
    let of = |id: u32| std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let first: i32 = of(run.id()).trim().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(first).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130));
}
