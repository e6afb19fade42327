//! Messages about mistakes in a run file.

use std::{fs::Permissions, os::unix::fs::PermissionsExt, path::Path};

use crate::common::{self, Project};

const GOOD: &str = r#"name = "toy"
seed = 1

[stages.start]
kind = "gen"
value = 4

[stages.data]
kind = "copy"
file = "data.txt"

[loop.count]
iterations = 3
carry = { number = "start" }
until = { metric = "step.value", at_least = 4 }

[loop.count.stages.step]
kind = "step"
from = "@number"
yields = "number"

[stages.end]
kind = "sum"
parts = { left = "start", right = "count.number" }
"#;

/// A mistake's name, and the replacement in the good file that makes it.
const MISTAKES: &[(&str, &str, &str)] = &[
    ("not toml", "iterations = 3", "iterations = = 3"),
    ("a key twice", "seed = 1", "seed = 1\nseed = 2"),
    ("unknown key at the top", "seed = 1", "sede = 1"),
    ("unknown key in a stage", "value = 4", "valeu = 4"),
    ("unknown key in a loop", "iterations = 3", "iteratons = 3"),
    ("unknown key in a section", "seed = 1", "seed = 1\nserver = { comand = [\"x\"], command = [\"y\"] }"),
    ("unknown stage kind", "kind = \"sum\"", "kind = \"summ\""),
    ("no kind", "kind = \"sum\"\n", ""),
    ("wrong type of a parameter", "value = 4", "value = \"four\""),
    ("fraction for an integer", "value = 4", "value = 4.5"),
    ("out of range below", "value = 4", "value = -1"),
    ("out of range above", "value = 4", "value = 5000"),
    ("not among the choices", "file = \"data.txt\"", "file = \"data.txt\"\nmode = \"fanci\""),
    ("missing parameter", "file = \"data.txt\"\n", ""),
    ("missing file", "data.txt", "dota.txt"),
    ("missing input", "parts = { left = \"start\", right = \"count.number\" }\n", ""),
    ("reference to a stage that is not there", "{ left = \"start\"", "{ left = \"strat\""),
    ("reference to an output that is not there", "{ left = \"start\"", "{ left = \"start.nummer\""),
    ("reference to a stage within a loop", "{ left = \"start\"", "{ left = \"step\""),
    ("reference of the wrong type", "{ left = \"start\"", "{ left = \"end.report\""),
    ("reference to a loop as a whole", "\"count.number\"", "\"count\""),
    ("reference to a value the loop does not carry", "\"count.number\"", "\"count.nunber\""),
    ("carried value outside a loop", "\"count.number\"", "\"@number\""),
    ("a loop's name where a carried value is meant", "\"@number\"", "\"@count\""),
    ("a carried value with its loop's name", "\"@number\"", "\"@count.number\""),
    ("a carried value outside its loop", "left = \"start\"", "left = \"@number\""),
    ("a lag that is no number", "\"@number\"", "\"@number~x\""),
    ("a lag into the future", "\"@number\"", "\"@number~-1\""),
    ("a lag longer than the loop", "\"@number\"", "\"@number~3\""),
    (
        "a loop in a loop",
        "[loop.count.stages.step]",
        "[loop.count.loop.inner]\niterations = 2\n\n[loop.count.stages.step]",
    ),
    ("a path where a stage is meant", "{ left = \"start\"", "{ left = \"./x\""),
    ("an unknown cache mode", "value = 4", "value = 4\ncache = \"never\""),
    ("a price without its other half", "value = 4", "value = 4\nprices = { prompt = 1.0 }"),
    ("a price below nothing", "value = 4", "value = 4\nprices = { prompt = 1.0, completion = -2 }"),
    ("a table where a name is meant", "from = \"@number\"", "from = { a = \"start\" }"),
    ("a name where a table is meant", "{ left = \"start\", right = \"count.number\" }", "\"start\""),
    ("no iterations", "iterations = 3", "iterations = -1"),
    ("iterations missing", "iterations = 3\n", ""),
    ("nothing renews the carried value", "yields = \"number\"\n", ""),
    ("yields what is not carried", "yields = \"number\"", "yields = \"numbr\""),
    ("yields outside a loop", "value = 4", "value = 4\nyields = \"number\""),
    ("a metric nobody reports", "step.value", "step.valu"),
    ("a goal without a bound", ", at_least = 4", ""),
    ("a stage that waits for itself", "from = \"@number\"", "from = \"step\""),
    ("a name twice", "[loop.count.stages.step]", "[loop.count.stages.start]"),
    ("a name with a space", "[stages.start]", "[stages.\"st art\"]"),
    (
        "a server with two addresses",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\"], url = \"http://x\" }",
    ),
    ("a server without an address", "seed = 1", "seed = 1\nserver = { state = \"read-only\" }"),
    ("an unknown server state", "seed = 1", "seed = 1\nserver = { url = \"http://x\", state = \"clean\" }"),
    (
        "a snapshot that is no folder",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\", \"{dir}\"], state = \"snapshot-dir\", snapshot = \"none\" }",
    ),
    (
        "a snapshot that the server does not get",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\"], state = \"snapshot-dir\", snapshot = \".\" }",
    ),
    (
        "a state with snapshots and none given",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\"], state = \"snapshot-dir\" }",
    ),
    (
        "a command before episodes that share a session",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\"], state = \"read-only\", before_episode = [\"y\"] }",
    ),
    (
        "a command before episodes whose result no session gets",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\"], before_episode = [\"y\", \"{session}\"] }",
    ),
    (
        "a session's name where sessions are shared",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\", \"{session}\"], state = \"read-only\" }",
    ),
    (
        "an empty command after episodes",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\"], state = \"fresh-process\", after_episode = [\"\"] }",
    ),
    ("a copy of nothing", "seed = 1", "seed = 1\nserver = { command = [\"x\", \"{dir}\"] }"),
    ("a sandbox that is no text", "seed = 1", "seed = 1\nserver = { command = [\"x\"], sandbox = true }"),
    (
        "a setting of a sandbox without one",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\"], sandbox_network = true }",
    ),
    ("an unknown sandbox", "seed = 1", "seed = 1\nserver = { command = [\"x\"], sandbox = \"docker\" }"),
    (
        "a sandbox that may write what does not exist",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\"], sandbox = \"bwrap\", sandbox_write = [\"none\"] }",
    ),
    ("no servers", "seed = 1", "seed = 1\nservers = {}"),
    ("seeds of one server", "seed = 1", "seed = 1\nserver = { command = [\"x\"], seeds = \"1..2\" }"),
    (
        "seeds that give a name twice",
        "seed = 1",
        "seed = 1\nservers.w = { command = [\"x\"], seeds = \"1..2\" }\nservers.w2 = { command = [\"x\"] }",
    ),
    (
        "seeds that record to one cassette",
        "seed = 1",
        "seed = 1\nservers.w = { command = [\"x\"], seeds = \"1..2\", record = \"c\" }",
    ),
    ("seeds that are no range", "seed = 1", "seed = 1\nservers.w = { command = [\"x\"], seeds = \"2..1\" }"),
    (
        "one server and several",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\"] }\nservers.crm = { command = [\"x\"] }",
    ),
    (
        "servers whose tools could have the same name",
        "seed = 1",
        "seed = 1\nservers.crm = { command = [\"x\"] }\nservers.crm_old = { command = [\"x\"] }",
    ),
    (
        "a mistake in one of several servers",
        "seed = 1",
        "seed = 1\nservers.crm = { command = [\"x\"], files = [\"none\"], state = \"clean\" }",
    ),
    (
        "a secret of one of several servers",
        "seed = 1",
        "seed = 1\nservers.crm = { command = [\"x\"], env = { API_KEY = \"s3cr3t\" }, stat = 1 }",
    ),
    (
        "error patterns that are none",
        "seed = 1",
        "seed = 1\n[server]\ncommand = [\"x\"]\nerror_patterns = [\n  \"^Error:\",\n  \"(\",\n  \"a{1000}{1000}{1000}\",\n]",
    ),
    ("a url of another kind", "seed = 1", "seed = 1\nserver = { url = \"ftp://x\" }"),
    (
        "a model beside a stage of that name",
        "seed = 1",
        "seed = 1\nmodel = \"org/model\"\nstages.base = { kind = \"gen\" }",
    ),
    (
        "a model beside a loop of that name",
        "seed = 1",
        "seed = 1\nmodel = \"org/model\"\nloop.base = { iterations = 1, stages.more.kind = \"gen\" }",
    ),
    ("a model that is no text", "seed = 1", "seed = 1\nmodel = 4"),
    ("a model whose folder is not there", "seed = 1", "seed = 1\nmodel = \"./org\""),
    ("a misspelt model", "seed = 1", "seed = 1\nmodle = \"org/model\""),
    ("a hub id where a stage is meant", "{ left = \"start\"", "{ left = \"org/model\""),
    ("an unknown device", "seed = 1", "seed = 1\nengine = { devices = [\"gpu0\"] }"),
    ("another way to split", "seed = 1", "seed = 1\nengine = { split = \"layer\" }"),
    ("a type as others call it", "seed = 1", "seed = 1\nengine = { dtype = \"fp16\" }"),
    ("a device named twice", "seed = 1", "seed = 1\nengine = { devices = [\"cuda:0\", \"cuda:0\"] }"),
    ("devices of two kinds", "seed = 1", "seed = 1\nengine = { devices = [\"cpu\", \"cuda:0\"] }"),
    (
        "a server at a url with a process of its own",
        "seed = 1",
        "seed = 1\nserver = { url = \"http://x\", state = \"fresh-process\" }",
    ),
    ("a server at a url without a state", "seed = 1", "seed = 1\nserver = { url = \"http://x\" }"),
    (
        "a command with a session of its own",
        "seed = 1",
        "seed = 1\nserver = { command = [\"x\"], state = \"fresh-session\" }",
    ),
    ("a stage that needs a server", "[stages.data]", "[stages.tools]\nkind = \"discover\"\n\n[stages.data]"),
    (
        "many mistakes in sections",
        "name = \"toy\"\nseed = 1",
        "name = 4\nserver = { url = \"x\", state = \"readonly\", sessions = 0, call_timeout_s = \"1\" }\n\
         engine = { devices = [\"gpu\"], dtype = \"fp16\", threads = 0, kv_cache_mib = -1 }",
    ),
    (
        "many mistakes in a loop",
        "iterations = 3\ncarry = { number = \"start\" }\nuntil = { metric = \"step.value\", at_least = 4 }",
        "iterations = 10000\ncarry = 3\nuntil = { metric = 4, at_least = \"x\", at_most = true }",
    ),
    (
        "many mistakes in what a loop carries",
        "carry = { number = \"start\" }\nuntil = { metric = \"step.value\", at_least = 4 }",
        "carry = { number = \"strat\", other = \"start\" }\nuntil = { metric = \"step.valu\", at_least = 4 }",
    ),
    ("three mistakes at once", "value = 4\n", "valeu = 4\nseed = -1\nfrom = 2\n"),
];

#[test]
fn the_run_file_that_mistakes_are_put_into_is_accepted() {
    let project = Project::new(GOOD);
    project.write("data.txt", "1");
    assert_eq!(project.mcprl(&["plan", "run.toml"]).err, "");
}

#[test]
fn every_mistake_is_shown_where_it_is() {
    let mut all = String::new();
    for (name, from, to) in MISTAKES {
        assert!(GOOD.contains(from), "{name}");
        let project = Project::new(&GOOD.replacen(from, to, 1));
        project.write("data.txt", "1");
        let output = project.mcprl(&["plan", "run.toml"]);
        assert_eq!((output.code, output.out.as_str()), (Some(2), ""), "{name}: {}", output.err);
        // The list of built-in kinds changes with every new kind.
        let lines = output
            .err
            .lines()
            .map(|line| if line.starts_with("hint: kinds: ") { "hint: kinds: …" } else { line });
        all += &format!("# {name}\n{}\n\n", lines.collect::<Vec<_>>().join("\n"));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn mistakes_of_values_references_and_overrides_are_shown_at_once_and_none_because_of_another() {
    let text = GOOD
        .replace("value = 4", "valeu = 4")
        .replace("kind = \"copy\"", "kind = \"copi\"")
        .replace("iterations = 3", "iteratons = 3")
        .replace("from = \"@number\"", "from = \"@nunber\"")
        .replace("{ left = \"start\"", "{ left = \"strat\", more = \"data\"")
        .replace("seed = 1", "seed = 1\nserver = { url = \"x\" }")
        + "\n[stage.more]\nkind = \"half\"\nfrom = \"start\"\n\n[stages.last]\nkind = \"half\"\nfrom = \"more\"\n";
    let project = Project::new(&text);
    let output = project.mcprl(&["plan", "run.toml", "--set", "seed", "--set", "name=4"]);
    let errors: Vec<_> = output.err.lines().filter(|line| line.starts_with("error: ")).collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn a_json_error_contains_every_mistake() {
    let project = Project::new(&GOOD.replace("value = 4", "valeu = 4").replace("seed = 1", "seed = -1"));
    project.write("data.txt", "1");
    let output = project.mcprl(&["plan", "run.toml", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&output.err).unwrap();
    assert_eq!(
        error["error"]["problems"],
        serde_json::json!([
            {
                "code": "plan::run_file", "message": "`seed` should be at least 0, found -1", "hint": null,
                "place": "run.toml:2:8", "line": 2, "column": 8,
            },
            {
                "code": "plan::run_file", "message": "unknown key `valeu` in `stages.start`",
                "hint": "did you mean `value`?", "place": "run.toml:6:1", "line": 6, "column": 1,
            },
        ])
    );
}

#[test]
fn the_schema_is_printed_for_an_invalid_run_file_and_not_for_a_missing_one() {
    let project = Project::new("= wrong");
    assert_eq!(project.mcprl(&["schema", "run.toml"]).code, Some(0), "the editor shows its mistakes");
    let output = project.mcprl(&["schema", "nosuch.toml"]);
    assert_eq!((output.code, output.out.as_str()), (Some(2), ""));
    assert!(output.err.starts_with("error: cannot read the run file nosuch.toml"), "{}", output.err);
}

#[test]
fn an_input_that_one_stage_alone_can_fill_may_be_left_out() {
    let short = GOOD.replace("from = \"@number\"\n", "");
    let project = Project::new(&short);
    project.write("data.txt", "1");
    let done = project.run(&[]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    project.write("run.toml", GOOD);
    assert!(project.mcprl(&["plan", "run.toml"]).out.contains(", 0 to run"), "it is the carried value");
    // Two stages could be meant.
    let ambiguous =
        short.replace("carry = { number = \"start\" }", "carry = { number = \"start\", other = \"start\" }");
    project.write("run.toml", &ambiguous);
    let output = project.mcprl(&["plan", "run.toml"]);
    assert!(output.err.contains("stage \"step\" needs the input `from`"), "{}", output.err);
}

#[test]
fn a_run_file_extends_another_and_wins() {
    let project = Project::new("");
    std::fs::create_dir_all(project.path("team")).unwrap();
    project.write("team/base.toml", GOOD);
    project.write("team/data.txt", "1");
    project.write("run.toml", "extends = \"team/base.toml\"\nname = \"mine\"\n[stages.start]\nvalue = 2\n");
    let done = project.run(&[]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let run = project.newest();
    assert!(run.file_name().unwrap().to_string_lossy().starts_with("mine-"));

    let expanded = project.mcprl(&["plan", "run.toml", "--expand", "--set", "loop.count.iterations=5"]).out;
    for line in [
        "name = \"mine\"                             # run.toml:2",
        "value = 2                                 # run.toml:4",
        "iterations = 5                            # --set loop.count.iterations",
        "file = \"data.txt\"\n",
    ] {
        assert!(expanded.contains(line), "{line}\n{expanded}");
    }
    project.write("whole.toml", &expanded.replace("\"data.txt\"", "\"team/data.txt\""));
    let whole = project.mcprl(&["plan", "whole.toml", "--set", "loop.count.iterations=3"]);
    assert!(whole.out.contains(", 0 to run"), "{}\n{}", whole.out, whole.err);

    // A run goes on as it began.
    let id = run.file_name().unwrap().to_string_lossy().into_owned();
    project.write("team/base.toml", &GOOD.replace("seed = 1", "seed = 2"));
    let resumed = project.mcprl(&["resume", &id]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(!resumed.err.contains(" run "), "{}", resumed.err);

    project.write("run.toml", "extends = \"team/base.toml\"\n[stages]\nend = false\ndata = false\n");
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(!plan.contains("end ") && !plan.contains("data ") && plan.contains("start"), "{plan}");
}

#[test]
fn a_mistake_is_shown_in_the_file_that_has_it() {
    let project = Project::new("");
    project.write("data.txt", "1");
    let check = |base: &str, run: &str| {
        project.write("base.toml", base);
        project.write("run.toml", run);
        project.mcprl(&["plan", "run.toml"]).err
    };
    let in_base =
        check(&GOOD.replace("value = 4\n", "value = \"four\"\n"), "extends = \"base.toml\"\nseed = 3\n");
    assert!(in_base.contains("base.toml:6:9") && in_base.contains("value = \"four\""), "{in_base}");
    let in_file = check(GOOD, "extends = \"base.toml\"\n[stages.start]\nvalue = \"four\"\n");
    assert!(in_file.contains("run.toml:3:9"), "{in_file}");
    let unknown = check(GOOD, "extends = \"standart\"\n");
    assert!(
        unknown.contains("there is no pipeline \"standart\"") && unknown.contains("built in: \"standard\""),
        "{unknown}"
    );
    let missing = check(GOOD, "extends = \"other.toml\"\n");
    assert!(missing.contains("cannot read \"other.toml\"") && missing.contains("run.toml:1:11"), "{missing}");
    let cycle = check("extends = \"run.toml\"\n", "extends = \"base.toml\"\n");
    assert!(cycle.contains("does one extend itself?"), "{cycle}");
    let kind = check(GOOD, "extends = 7\n");
    assert!(kind.contains("`extends` should be a string"), "{kind}");
}

#[test]
fn the_standard_needs_a_model_and_a_server_and_takes_a_file_of_tasks() {
    let project = Project::with_model("");
    let task = |i: usize| format!("{{\"task\": \"How many are in team {i}?\", \"answer\": \"{i}\"}}\n");
    project.write("tasks.jsonl", &(0..100).map(task).collect::<String>());
    let server = "[server]\ncommand = [\"MCPRL\", \"demo-server\", \"sqlite\"]\nstate = \"read-only\"\n"
        .replace("MCPRL", env!("CARGO_BIN_EXE_mcprl"));
    let plan = |more: &str| {
        project.write("run.toml", &format!("extends = \"standard\"\nmodel = \"llama\"\n{server}{more}"));
        project.mcprl(&["plan", "run.toml"])
    };
    let explored = plan("");
    assert_eq!(explored.code, Some(0), "{}", explored.err);
    for stage in ["tools", "tasks", "solved", "start", "headroom", "exam"] {
        assert!(explored.out.contains(&format!("run     {stage} ")), "{stage}: {}", explored.out);
    }
    assert!(explored.out.contains("train[0001..0008]"), "{}", explored.out);
    let expanded = project.mcprl(&["plan", "run.toml", "--expand"]).out;
    assert!(
        expanded
            .contains("variants = { \"base+\" = { policy = \"base\", system = \"guide\", examples = 4 } }"),
        "{expanded}"
    );
    let own = plan("[stages.tasks]\nfile = \"tasks.jsonl\"\n");
    assert_eq!(own.code, Some(0), "{}", own.err);
    let run = ["run", "run.toml", "--until", "tasks"];
    assert_eq!(project.mcprl(&run).code, Some(0));
    let start: Vec<mcprl::data::Scenario> =
        mcprl::data::read(&project.newest().join("tasks/start.parquet")).unwrap();
    assert!(start.len() > 20 && start.iter().all(|task| task.reference.is_some()), "{}", start.len());
    let guide = std::fs::read_to_string(project.newest().join("tasks/guide.md")).unwrap();
    assert!(guide.contains("Calls that work:\n- "), "{guide}");
    let without = plan("[stages]\ntries = false\nsolved = false\nstart = false\n");
    assert!(without.err.contains("names \"start\", which is not a stage"), "{}", without.err);
}

#[test]
fn a_cycle_is_shown_with_its_stages_in_order() {
    let project = Project::new(
        "[stages.a]\nkind = \"half\"\nfrom = \"c\"\n\n[stages.b]\nkind = \"half\"\nfrom = \"a\"\n\n\
         [stages.c]\nkind = \"half\"\nfrom = \"b\"\n",
    );
    insta::assert_snapshot!(project.mcprl(&["plan", "run.toml"]).err, @r#"
    error: stages wait for each other: a → b → c → a
     --> run.toml:3:8
      |
    3 | from = "c"
      |        ^^^
    hint: to pass an artifact to the next iteration of a loop, use `carry`, `@name` and `yields`
    "#);
}

#[test]
fn a_wrong_override_is_shown_as_it_was_given() {
    let project = Project::new(GOOD);
    project.write("data.txt", "1");
    let mut all = String::new();
    for set in [
        "seed",
        "seed=x",
        "stages.start.valu=3",
        "stages.strat.value=3",
        "stages.other.value=3",
        "loop.cuont.iterations=2",
        "loop.count.stages.stpe.sleep=2",
        "loop.count.iterations=-1",
        "a..b=1",
        "stage.x=1",
    ] {
        let output = project.mcprl(&["plan", "run.toml", "--set", set]);
        assert_eq!(output.code, Some(2), "{set}");
        all += &output.err;
    }
    insta::assert_snapshot!(all, @r#"
    error: an override should read `key=value`
     --> --set seed
    error: `seed` should be an integer, found a string
     --> --set seed=x
    error: unknown key `valu` in `stages.start`
     --> --set stages.start.valu=3
    hint: did you mean `value`?
    error: the run file has no stage "strat"
     --> --set stages.strat.value=3
    hint: did you mean "start"?
    error: the run file has no stage "other"
     --> --set stages.other.value=3
    hint: stages: start, data, end
    error: the run file has no loop "cuont"
     --> --set loop.cuont.iterations=2
    hint: did you mean "count"?
    error: the run file has no stage "stpe"
     --> --set loop.count.stages.stpe.sleep=2
    hint: did you mean "step"?
    error: `loop.count.iterations` should be at least 0, found -1
     --> --set loop.count.iterations=-1
    error: an override should name a key, like `loop.train.iterations=2`
     --> --set a..b=1
    error: unknown key `stage` in the run file
     --> --set stage.x=1
    hint: did you mean `stages`?
    "#);
}

#[test]
fn a_wrong_card_is_shown_with_its_place() {
    let project = Project::new(GOOD);
    project.write("data.txt", "1");
    let card = project.read("stages/sum/card.toml");
    let mut all = String::new();
    let broken = [
        card.replace("many = true", "mony = true"),
        card.replace("path = \"number.txt\"", "path = \"../number.txt\""),
        card.replace("path = \"report.md\"", "path = \"number.txt/report.md\""),
        card.replace("kind = \"sum\"", "kind = \"summe\""),
        card.replace("command = [\"sh\", \"-e\", \"run.sh\"]\n", ""),
    ];
    for text in broken {
        project.write("stages/sum/card.toml", &text);
        let output = project.mcprl(&["plan", "run.toml"]);
        assert_eq!(output.code, Some(2));
        all += &output.err.replace(&project.path("").display().to_string(), "");
    }
    insta::assert_snapshot!(all, @r#"
    error: stages/sum/card.toml: TOML parse error at line 8, column 1
      |
    8 | mony = true
      | ^^^^
    unknown field `mony`, expected one of `type`, `about`, `many`, `optional`, `previous`, `prefers`, `rows`, `uses`, `agent`
    error: stages/sum/card.toml: outputs.number.path should be a relative path, found "../number.txt"
    error: stages/sum/card.toml: outputs.report.path "number.txt/report.md" is, or lies within, outputs.number.path: each output needs its own
    error: stages/sum/card.toml: kind should be "sum", the folder's name, found "summe"
    error: stages/sum/card.toml: a kind that is not built in needs a `command`
    "#);
}

#[test]
fn a_folder_instead_of_a_run_file_is_an_error_with_a_hint() {
    let project = Project::new(GOOD);
    let output = project.mcprl(&["plan", "stages"]);
    assert_eq!(output.code, Some(2));
    assert!(
        output.err.contains("hint: it is a folder; name the run file in it, such as stages/run.toml"),
        "{}",
        output.err
    );
}

#[test]
fn numbers_are_set_as_toml_writes_them() {
    let project = Project::new(
        &GOOD.replace("[stages.start]", "[stages.slow]\nkind = \"step\"\nfrom = \"start\"\n\n[stages.start]"),
    );
    project.write("data.txt", "1");
    for number in ["1e-4", "0.5", "2E1"] {
        let output = project.mcprl(&["plan", "run.toml", "--set", &format!("stages.slow.sleep={number}")]);
        assert_eq!(output.code, Some(0), "{number}: {}", output.err);
    }
}

/// The TOML between the markers `<!-- name -->` and `<!-- /name -->` of a page in `docs/`.
fn documented(page: &str, name: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
    let text = std::fs::read_to_string(page).unwrap();
    let block = text.split(&format!("<!-- {name} -->\n```toml\n")).nth(1).unwrap();
    block.split(&format!("```\n<!-- /{name} -->")).next().unwrap().to_owned()
}

#[test]
fn the_run_file_of_the_documentation_is_accepted() {
    let project = Project::new(&documented("reference/run-file.md", "complete"));
    let task = |i: usize| format!("{{\"task\": \"How many projects has team {i}?\", \"answer\": \"{i}\"}}\n");
    project.write("tasks.jsonl", &(0..100).map(task).collect::<String>());
    project.write("my-server", "#!/bin/sh\n");
    std::fs::set_permissions(project.path("my-server"), Permissions::from_mode(0o755)).unwrap();
    let mut command = project.command(&["plan", "run.toml", "--offline"]);
    let output = common::output(command.env("API_TOKEN", "secret").env("HF_HOME", project.path("hub")));
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
}

#[test]
fn the_short_forms_of_the_documentation_are_accepted() {
    let project = Project::with_model("");
    let task = |i: usize| format!("{{\"task\": \"How many projects has team {i}?\", \"answer\": \"{i}\"}}\n");
    project.write("tasks.jsonl", &(0..100).map(task).collect::<String>());
    project.write("my-server", "#!/bin/sh\n");
    std::fs::set_permissions(project.path("my-server"), Permissions::from_mode(0o755)).unwrap();
    let short = documented("reference/run-file.md", "short").replace("Qwen/Qwen3-0.6B", "llama");
    project.write("run.toml", &short);
    let output = project.mcprl(&["plan", "run.toml", "--offline"]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
    let whole = documented("reference/run-file.md", "complete").replace("Qwen/Qwen3-0.6B", "llama");
    let (before, rest) = whole.split_once("[loop.train]").unwrap();
    let (_, exam) = rest.split_once("[stages.exam]").unwrap();
    let before = before.replace("env = { API_TOKEN", "# env = { API_TOKEN");
    let exam = exam.replace("tools = \"tools\"\nscenarios = \"tasks.heldout\"\n", "");
    project.write(
        "run.toml",
        &format!("{before}{}[stages.exam]{exam}", documented("reference/run-file.md", "inferred")),
    );
    let output = project.mcprl(&["plan", "run.toml", "--offline"]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
}

#[test]
fn the_local_judge_of_the_documentation_is_accepted_in_its_run_file() {
    let whole = documented("reference/run-file.md", "complete");
    let judge = whole.split("[loop.train.stages.reward]").nth(1).unwrap().split("\n[").next().unwrap();
    let local = documented("guides/judges.md", "local");
    let project =
        Project::new(&(whole.replace(&format!("[loop.train.stages.reward]{judge}"), "") + "\n" + &local));
    let task =
        |i: usize| format!("{{\"task\": \"How many projects has team {i}?\", \"split\": \"train\"}}\n");
    let known = |i: usize| {
        format!("{{\"task\": \"Who leads team {i}?\", \"answer\": \"{i}\", \"split\": \"heldout\"}}\n")
    };
    project.write(
        "tasks.jsonl",
        &((0..50).map(task).collect::<String>() + &(0..50).map(known).collect::<String>()),
    );
    project.write("my-server", "#!/bin/sh\n");
    std::fs::set_permissions(project.path("my-server"), Permissions::from_mode(0o755)).unwrap();
    let mut command = project.command(&["plan", "run.toml", "--offline"]);
    let output = common::output(command.env("API_TOKEN", "secret").env("HF_HOME", project.path("hub")));
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
    assert!(output.out.contains("grader"), "{}", output.out);
}

#[test]
fn the_tries_of_the_documentation_are_accepted_in_its_run_file() {
    let whole = documented("reference/run-file.md", "complete");
    let tasks = whole.split("[stages.tasks]").nth(1).unwrap().split("\n[").next().unwrap();
    let run = whole.replace(&format!("[stages.tasks]{tasks}"), "")
        + "\n"
        + &documented("guides/scenarios.md", "tries");
    // As the text below it says.
    let run = run
        .replace(
            "carry = { policy = \"base\" }",
            "carry = { policy = \"base\", pass_rates = \"tasks.pass_rates\" }",
        )
        .replace(
            "prompts = 16",
            "pass_rates = \"@pass_rates\"\nyields = \"pass_rates\"\ndraw = \"pass_rate\"\nprompts = 16",
        );
    let project = Project::new(&run);
    let task = |i: usize| format!("{{\"task\": \"How many projects has team {i}?\", \"answer\": \"{i}\"}}\n");
    project.write("tasks.jsonl", &(0..100).map(task).collect::<String>());
    project.write("my-server", "#!/bin/sh\n");
    std::fs::set_permissions(project.path("my-server"), Permissions::from_mode(0o755)).unwrap();
    let mut command = project.command(&["plan", "run.toml", "--offline"]);
    let output = common::output(command.env("API_TOKEN", "secret").env("HF_HOME", project.path("hub")));
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
}

#[test]
fn the_families_file_of_the_documentation_is_accepted() {
    let project = Project::new(
        "[server]\ncommand = [\"sh\"]\nstate = \"read-only\"\n\n[stages.tools]\nkind = \"discover\"\n\n[stages.tasks]\nkind = \"scenarios\"\n\
         tools = \"tools\"\nfamilies = \"families.toml\"\n",
    );
    let families = documented("guides/families.md", "families");
    project.write("families.toml", &families);
    let output = project.mcprl(&["plan", "run.toml", "--offline"]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
    project.write("families.toml", &families.replace("columns = [\"product\"]", "columns = [\"item\"]"));
    let output = project.mcprl(&["plan", "run.toml", "--offline"]);
    assert!(output.err.contains("there is no word or entity `{product}`"), "{}", output.err);
}

/// Tasks with answers.
fn tasks(count: usize) -> String {
    (0..count).map(|i| format!("{{\"task\": \"How many are in team {i}?\", \"answer\": {i}}}\n")).collect()
}

#[test]
fn few_tasks_of_ones_own_are_the_exam_and_many_are_divided() {
    for (count, exam) in [(5, 5), (15, 15), (100, 20), (1000, 200)] {
        let project = Project::with_model("");
        project.write("tasks.jsonl", &tasks(count));
        std::fs::remove_file(project.path("run.toml")).unwrap();
        let server = ["--", env!("CARGO_BIN_EXE_mcprl"), "demo-server", "sqlite"];
        let init = ["init", "--tasks", "tasks.jsonl", "--model", "llama"];
        let made = project.mcprl(&[&init[..], &server].concat());
        assert_eq!(made.code, Some(0), "{}", made.err);
        let said = if count < 50 { "all are the exam" } else { "a fifth is the exam" };
        assert!(made.out.contains(said), "{}", made.out);
        assert_eq!(project.read("run.toml").contains("heldout_share = 1.0"), count < 50);
        let planned = project.mcprl(&["plan", "run.toml"]);
        assert_eq!(planned.code, Some(0), "{count}: {}", planned.err);
        for stage in ["solved", "start", "headroom", "exam"] {
            assert!(planned.out.contains(&format!("run     {stage} ")), "{stage}: {}", planned.out);
        }
        let checked = project.mcprl(&["doctor", "run.toml"]).out;
        assert!(checked.contains(&format!("{exam} held out")), "{checked}");
    }
}

#[test]
fn solutions_are_only_missed_where_something_learns_from_them() {
    let project = Project::with_model("");
    let server = "[server]\ncommand = [\"{mcprl}\", \"demo-server\", \"sqlite\"]\nstate = \"read-only\"\n";
    let tasks = "[stages.tasks]\nfile = \"tasks.jsonl\"\nheldout_share = 1.0\nlessons = 0\n";
    project.write("tasks.jsonl", "{\"task\": \"How many teams are there?\", \"answer\": \"7\"}\n");
    project.write("run.toml", &format!("extends = \"standard\"\nmodel = \"llama\"\n{server}{tasks}"));
    let plan = |more: &[&str]| project.mcprl(&[&["plan", "run.toml", "--iterations", "0"], more].concat());
    let unneeded = plan(&["--no-start"]);
    assert_eq!(unneeded.code, Some(0), "{}", unneeded.err);
    let needed = plan(&[]);
    assert_eq!(needed.code, Some(2), "{}", needed.out);
    let said = "stage \"start\": no episode to train on: the table is empty";
    assert!(needed.err.contains(said) && needed.err.contains("`lessons`"), "{}", needed.err);
    assert!(!needed.err.contains("of the 0 scenarios"), "{}", needed.err);
}

#[test]
fn options_say_how_much_practice_there_is_and_whether_a_start() {
    let project = Project::with_model("");
    let server = "[server]\ncommand = [\"{mcprl}\", \"demo-server\", \"sqlite\"]\nstate = \"read-only\"\n";
    project.write("run.toml", &format!("extends = \"standard\"\nmodel = \"llama\"\n{server}"));
    let plan = |options: &[&str]| {
        let planned = project.mcprl(&[&["plan", "run.toml"], options].concat());
        assert_eq!(planned.code, Some(0), "{options:?}: {}", planned.err);
        planned.out
    };
    let none = plan(&["--iterations", "0"]);
    assert!(!none.contains("train[") && none.contains("run     exam "), "{none}");
    assert!(
        !none.contains("headroom"),
        "what decides whether a loop begins is not needed without it: {none}"
    );
    let two = plan(&["--iterations", "2"]);
    let practice = two.lines().find(|line| line.contains(" train[0001..0002] ")).expect(&two);
    assert!(practice.contains(" loop ") && practice.contains("rollout, reward, update, dev"), "{two}");
    assert!(two.contains("headroom ") && !two.contains("train[0003]"), "{two}");
    assert_eq!(two.matches("train[").count(), 1, "before a first run a loop is one row: {two}");
    let without = plan(&["--no-start"]);
    assert!(!without.contains("run     start ") && without.contains("train[0001..0008]"), "{without}");
    let expanded = plan(&["--no-start", "--iterations", "3", "--expand"]);
    assert!(expanded.contains("iterations = 3") && !expanded.contains("[stages.start]"), "{expanded}");

    std::fs::remove_file(project.path("run.toml")).unwrap();
    let init = ["init", "--model", "llama", "--iterations", "0", "--no-start", "--"];
    let server = [env!("CARGO_BIN_EXE_mcprl"), "demo-server", "sqlite"];
    assert_eq!(project.mcprl(&[&init[..], &server].concat()).code, Some(0));
    let planned = plan(&[]);
    assert!(!planned.contains("train[") && !planned.contains("run     start "), "{planned}");

    let other = Project::new("[stages.a]\nkind = \"gen\"\n");
    for (option, message) in [
        (&["--iterations", "2"][..], "`--iterations`: the run file has no loop"),
        (&["--no-start"][..], "`--no-start`: the run file has no stage `start`"),
    ] {
        let refused = other.mcprl(&[&["plan", "run.toml"], option].concat());
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        assert!(refused.err.contains(message) && refused.err.contains("hint: "), "{}", refused.err);
    }
}

#[test]
fn a_loop_without_iterations_leaves_what_it_starts_from() {
    let loop_of = |carry: &str, policy: &str| {
        format!(
            "[server]\ncommand = [\"{{mcprl}}\", \"demo-server\", \"sqlite\"]\nstate = \"read-only\"\n\n[stages.tools]\nkind = \
             \"discover\"\n\n[stages.base]\nkind = \"model\"\nfrom = \"llama\"\n\n[stages.tasks]\nkind = \"scenarios\"\n\n\
             [loop.train]\niterations = 0\ncarry = {{ {carry} }}\n\n[loop.train.stages.rollout]\nkind = \"rollout\"\npolicy = \
             \"@policy\"\nyields = \"pass_rates\"\npass_rates = \"@pass_rates\"\nscenarios = \
             \"tasks.train\"\n\n[loop.train.stages.reward]\nkind = \"judge\"\ntrajectories = \"rollout\"\nscenarios = \
             \"tasks.train\"\n\n[loop.train.stages.update]\nkind = \"grpo\"\npolicy = \"@policy\"\ntrajectories = \
             \"rollout\"\nrewards = \"reward\"\nyields = \"policy\"\n\n[stages.after]\nkind = \"rollout\"\npolicy = \
             \"{policy}\"\nscenarios = \"tasks.train\"\n"
        )
    };
    let project = Project::with_model(&loop_of("policy = \"base\", pass_rates = \"\"", "train.policy"));
    let planned = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    assert!(!planned.out.contains("train[") && planned.out.contains("after"), "{}", planned.out);
    project.write(
        "run.toml",
        &(loop_of("policy = \"base\", pass_rates = \"\"", "train.policy")
            + "pass_rates = \"train.pass_rates\"\n"),
    );
    let refused = project.mcprl(&["plan", "run.toml"]);
    assert!(
        refused.err.contains("loop \"train\" runs no iteration, and \"pass_rates\" starts empty"),
        "{}",
        refused.err
    );
}

#[test]
fn an_answer_that_any_agent_can_say_is_named_before_a_run() {
    let project = Project::with_model("");
    let server = "[server]\ncommand = [\"{mcprl}\", \"demo-server\", \"desk\"]\nstate = \"fresh-process\"\n";
    let tasks = "[stages.tasks]\nfile = \"tasks.jsonl\"\n";
    project.write("run.toml", &format!("extends = \"standard\"\nmodel = \"llama\"\n{server}{tasks}"));
    project.write("tasks.jsonl", "{\"task\": \"Close ticket 7.\", \"answer\": \"Done.\"}\n");
    let named = "line 1: any agent can say \"Done.\": add what must be true afterwards";
    let planned = project.mcprl(&["plan", "run.toml"]);
    assert!(planned.code == Some(2) && planned.err.contains(named), "{}", planned.err);
    let checked = project.mcprl(&["doctor", "run.toml"]);
    assert!(checked.code == Some(1) && checked.out.contains(named), "{}", checked.out);
}
