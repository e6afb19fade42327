//! Secrets of the server come from the environment. No run, key or record stores them.

use std::{os::unix::fs::PermissionsExt, path::Path};

use crate::common::{CommandOutput, Project, output};

/// A server that logs its variables, and fails while a file `down` exists.
const RUN: &str = r#"name = "toy"

[server]
command = ["sh", "-c", "echo $TOKEN $API_KEY $GREETING > given; test ! -e down || { echo no entry with $TOKEN >&2; exit 1; }; exec \"$0\" demo-server sqlite", "{mcprl}"]
state = "read-only"

[server.env]
TOKEN = "Bearer ${MY_TOKEN}"
GREETING = "hello"

[stages.tools]
kind = "discover"
"#;

const TOKEN: &str = "s3cr3t-token";
const KEY: &str = "s3cr3t-key";
const OVERRIDE: &str = "MCPRL_SERVER__ENV__API_KEY";

fn mcprl(project: &Project, arguments: &[&str]) -> CommandOutput {
    output(project.command(arguments).env("MY_TOKEN", TOKEN).env(OVERRIDE, KEY))
}

/// Every file under a folder. Links are skipped: their targets are in it too.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let items = std::fs::read_dir(folder).unwrap().map(|item| item.unwrap().path());
    let (folders, mut files): (Vec<_>, Vec<_>) =
        items.filter(|path| !path.is_symlink()).partition(|path| path.is_dir());
    files.extend(folders.iter().flat_map(|folder| self::files(folder)));
    files
}

fn assert_without_secrets(folder: &Path) {
    let files = files(folder);
    assert!(!files.is_empty());
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let found = bytes.windows(6).any(|window| window == b"s3cr3t");
        assert!(!found, "{}", file.display());
    }
}

#[test]
fn no_secret_is_stored_and_a_resumed_run_needs_it_again() {
    let project = Project::new(RUN);
    project.write("down", "");
    let failed = mcprl(&project, &["run", "run.toml"]);
    assert_eq!(failed.code, Some(1), "{}", failed.err);

    std::fs::remove_file(project.path("down")).unwrap();
    let asked = output(project.command(&["resume", "latest"]).env("MY_TOKEN", TOKEN));
    assert_eq!(asked.code, Some(2), "{}", asked.err);
    let missing = format!("the server needs the environment variable `{OVERRIDE}`, which is not set");
    assert!(
        asked.err.contains(&missing) && asked.err.contains(&format!("export {OVERRIDE}")),
        "{}",
        asked.err
    );

    let done = mcprl(&project, &["resume", "latest"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(project.read("given").trim(), format!("Bearer {TOKEN} {KEY} hello"));
    assert_eq!(project.mcprl(&["cache", "export", "latest", "--to", "away"]).code, Some(0));
    assert_without_secrets(&project.path("cache"));
    assert_without_secrets(&project.path("away"));
    for output in [failed, asked, done] {
        assert!(!(output.out + &output.err).contains("s3cr3t"));
    }

    let run = project.path("cache/runs").join(project.runs().pop().unwrap());
    let mode = run.join("run.toml").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_new_secret_keeps_cached_results_and_another_variable_does_not() {
    let project = Project::new(RUN);
    assert_eq!(mcprl(&project, &["run", "run.toml"]).code, Some(0));
    let renewed = output(project.command(&["plan", "run.toml"]).env("MY_TOKEN", "new").env(OVERRIDE, "new"));
    assert!(renewed.out.contains("1 cached"), "{}", renewed.out);
    let other = mcprl(&project, &["plan", "run.toml", "--set", "server.env.GREETING=hi"]);
    assert!(other.out.contains("1 to run"), "{}", other.out);
}

#[test]
fn a_secret_that_is_written_out_is_refused_and_not_repeated() {
    const URL: &str = "url = \"https://example.com/mcp\"\nstate = \"read-only\"\n";
    let with =
        |server: &str| format!("name = \"toy\"\n\n[server]\n{server}\n[stages.tools]\nkind = \"discover\"\n");
    let env = |line: &str| RUN.replace("GREETING = \"hello\"", line);
    let headers = |table: &str| with(&format!("{URL}headers = {table}\n"));
    let files = [
        env("GITHUB_TOKEN = \"s3cr3t\""),
        env("DATABASE_URL = \"postgres://me:s3cr3t@host/db\""),
        headers("{ Authorization = \"Bearer s3cr3t\" }"),
        headers("{ x-region = \"eu\", x-api-key = 's3cr3t', cookie = \"s3cr3t\" }"),
        with("url = \"https://example.com/mcp?region=eu&apiKey=s3cr3t\"\nstate = \"read-only\"\n"),
    ];
    let mut all = String::new();
    let mut add = |output: CommandOutput| {
        assert_eq!((output.code, output.out.as_str()), (Some(2), ""), "{}", output.err);
        all += &output.err;
    };
    for file in files {
        let project = Project::new(&file);
        add(project.mcprl(&["plan", "run.toml"]));
    }
    let project = Project::new(RUN);
    add(project.mcprl(&["plan", "run.toml", "--set", "server.env.API_KEY=s3cr3t"]));
    assert!(!all.contains("s3cr3t"), "{all}");
    insta::assert_snapshot!(all);
}

#[test]
fn a_secret_in_a_parameter_of_a_stage_is_refused_and_not_repeated() {
    let card = r#"
[params.api_key]
type = "string"
optional = true

[params.url]
type = "string"
optional = true

[params.args]
type = "strings"
optional = true

[outputs.number]
type = "number"
path = "number.txt"
"#;
    let (mut all, mut refused) = (String::new(), 0);
    for (line, is_secret) in [
        ("api_key = \"s3cr3t\"", true),
        ("url = \"https://example.com/v1?key=s3cr3t\"", true),
        ("args = [\"--x\", \"--api-key\", \"s3cr3t\"]", true),
        ("args = [\"--x\", \"1\"]\nurl = \"https://example.com/v1?a=b\"", false),
    ] {
        let project = Project::new(&format!("name = \"toy\"\n\n[stages.a]\nkind = \"ask\"\n{line}\n"));
        project.kind("ask", "pure", card, "true");
        let output = project.mcprl(&["plan", "run.toml"]);
        assert_eq!(output.err.contains("holds a secret"), is_secret, "{line}: {}", output.err);
        refused += i32::from(output.code == Some(2));
        all += &(output.out + &output.err);
    }
    assert_eq!(refused, 3, "{all}");
    assert!(!all.contains("s3cr3t"), "{all}");
}

#[test]
fn no_message_shows_a_value_that_may_be_secret() {
    let with = |lines: &str| format!("{RUN}\n{lines}\n");
    let mut outputs = Vec::new();
    for set in [
        "server.elicitation={ password = \"s3cr3t\", pin = 2468 }",
        "server.elicitation=s3cr3t",
        "server.elicitation.password=s3cr3t",
        "server.env.GREETING={ a = \"s3cr3t\" }",
        "server.env.API_KEY:s3cr3t",
        "server.headers={ x = [\"s3cr3t\"] }",
        "server.oauth={ client_secret = \"s3cr3t\" }",
        "server={ elicitation = { password = \"s3cr3t\" } }",
        "servers={ crm = { env = { API_KEY = \"s3cr3t\" } } }",
        "server.elicitation..x=s3cr3t",
    ] {
        outputs.push((set.to_owned(), mcprl(&Project::new(RUN), &["plan", "run.toml", "--set", set])));
    }
    for lines in [
        "[server.elicitation]\npassword = \"s3cr3t\"",
        "[server.elicitation]\npassword = \"x\", \"s3cr3t\"",
        "[server.elicitation]\npin = { a = 2468 b }",
        "[server.headers]\nx-region = [\"s3cr3t\"]",
        "[server.oauth]\nclient_id = \"c\"\nclient_secret = \"s3cr3t\"",
    ] {
        outputs.push((lines.to_owned(), mcprl(&Project::new(&with(lines)), &["plan", "run.toml"])));
    }
    let connect = ["connect", "http://127.0.0.1:1/mcp", "--header", "Authorization: Bearer s3cr3t"];
    outputs.push(("--header".into(), mcprl(&Project::new(RUN), &connect)));
    for (given, output) in outputs {
        let text = output.out + &output.err;
        assert_eq!(output.code, Some(2), "{given}: {text}");
        assert!(!text.contains("s3cr3t") && !text.contains("2468"), "{given}: {text}");
    }
}

#[test]
fn a_variable_without_braces_is_refused_and_a_double_dollar_is_a_dollar() {
    let plan = |value: &str| {
        let project = Project::new(&RUN.replace("hello", value));
        output(project.command(&["plan", "run.toml"]).env("MY_TOKEN", TOKEN)).err
    };
    let bare = plan("$HOME");
    assert!(bare.contains("`server.env.GREETING` is `$HOME`, which is not replaced"), "{bare}");
    assert!(bare.contains("hint: write `${HOME}` for the environment variable"), "{bare}");
    assert!(plan("${HOME").contains("has a `${` without a `}`"));
    assert_eq!(plan("$$HOME"), "");
}
