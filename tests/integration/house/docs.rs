//! The documentation names what there is; manual pages and completions.

use std::path::{Path, PathBuf};

use crate::common::{CHAIN, Project};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(folder).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let mut pages = files(&root().join("docs"), "md");
    pages.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)),
    );
    let mut broken = Vec::new();
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            let is_local = !path.is_empty() && !path.contains("://") && !path.contains(' ');
            if is_local && !page.parent().unwrap().join(path).exists() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Digits as one `0` and one unit of memory: times, sizes and versions differ from machine to machine.
fn without_numbers(text: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars() {
        match letter {
            '0'..='9' if plain.ends_with('0') => {}
            '.' if plain.ends_with('0') => {}
            '0'..='9' => plain.push('0'),
            other => plain.push(other),
        }
    }
    plain.replace("GiB", "MiB")
}

/// `<!-- prints -->` before a block: its first line is a command, the others are what that prints. `MCPRL_UPDATE_DOCS=1`
/// writes them.
#[test]
fn commands_print_what_the_documents_say() {
    const MARK: &str = "<!-- prints -->\n```text\n";
    let mut found = 0;
    for page in files(&root().join("docs"), "md") {
        let text = std::fs::read_to_string(&page).unwrap();
        let mut parts = text.split(MARK);
        let mut updated = parts.next().unwrap().to_owned();
        for part in parts {
            let (block, rest) = part.split_once("\n```").unwrap();
            let (command, shown) = block.split_once('\n').unwrap();
            let words: Vec<&str> = command.strip_prefix("$ mcprl ").unwrap().split(' ').collect();
            let cache = tempfile::tempdir().unwrap();
            let folder = Path::new(env!("CARGO_BIN_EXE_mcprl")).parent().unwrap();
            let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_mcprl"))
                .args(&words)
                .current_dir(root())
                .env("MCPRL_CACHE", cache.path())
                .env("PATH", path)
                .env("COLUMNS", "120")
                .output()
                .unwrap();
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
            let (out, err) =
                (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
            let printed = format!("{out}{err}");
            let printed = printed.trim_end();
            if std::env::var_os("MCPRL_UPDATE_DOCS").is_none() {
                assert_eq!(without_numbers(printed), without_numbers(shown), "{}: {command}", page.display());
            }
            updated += &format!("{MARK}{command}\n{printed}\n```{rest}");
            found += 1;
        }
        if std::env::var_os("MCPRL_UPDATE_DOCS").is_some() {
            std::fs::write(&page, updated).unwrap();
        }
    }
    assert!(found > 0, "no document shows what a command prints");
}

#[test]
fn completions_are_printed_for_each_shell() {
    let project = Project::new(CHAIN);
    for shell in ["bash", "zsh", "fish"] {
        let output = project.mcprl(&["completions", shell]);
        assert_eq!(output.code, Some(0));
        assert!(output.out.contains("mcprl") && output.out.contains("export"), "{shell}");
    }
    assert_eq!(project.mcprl(&["completions", "cmd"]).code, Some(2));
}

#[test]
fn manual_pages_are_written_for_all_commands() {
    let project = Project::new(CHAIN);
    let output = project.mcprl(&["man", "man/man1"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    for page in ["mcprl.1", "mcprl-run.1", "mcprl-cache-gc.1"] {
        assert!(project.read(format!("man/man1/{page}")).contains(".SH SYNOPSIS"), "{page}");
    }
    project.write("file", "");
    let refused = project.mcprl(&["man", "file/man1"]);
    assert!(refused.err.contains("cannot write manual pages to file/man1"), "{}", refused.err);
}

/// The commands of `mcprl` in blocks of shell, without comments.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    let mut found = Vec::new();
    for block in blocks {
        for line in block.replace("\\\n", " ").lines() {
            let line = line.split(" #").next().unwrap_or_default().trim();
            // What is piped, chained or put into a file is the shell's.
            let is_plain = !line.contains(['|', '>', '&', ';', '$', '`', '…']) && !line.contains("...");
            if line.starts_with("mcprl ") && is_plain {
                found.push(line.to_owned());
            }
        }
    }
    found
}

/// The commands with options within sentences.
fn commands_in_sentences(page: &str) -> Vec<String> {
    let spans = page.split("`mcprl ").skip(1).filter_map(|rest| rest.split('`').next());
    let is_plain = |span: &&str| !span.contains(['|', '>', '&', ';', '$', '…', '[', '<', '{', '\n']);
    // The page would be served until the time is over.
    let found = spans.filter(is_plain).filter(|span| span.contains(" --") && !span.starts_with("ui "));
    found.map(|span| format!("mcprl {span}")).collect()
}

/// Each command of the documents, in an empty folder: most find nothing to work on there, but all are commands of this version.
#[test]
fn commands_of_the_documents_are_commands() {
    let mut wrong = Vec::new();
    let pages = files(&root().join("docs"), "md").into_iter().chain([root().join("README.md")]);
    let mut all = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        // A sentence may leave out what an option is given to.
        let of = |commands: Vec<String>, is_whole: bool| commands.into_iter().map(move |one| (one, is_whole));
        for (command, is_whole) in of(commands(&text), true).chain(of(commands_in_sentences(&text), false)) {
            let folder = tempfile::tempdir().unwrap();
            let mut child = std::process::Command::new("timeout")
                .args(["10", "sh", "-c", &format!("exec \"$0\" {}", &command["mcprl ".len()..])])
                .arg(env!("CARGO_BIN_EXE_mcprl"))
                .current_dir(folder.path())
                .env_clear()
                // No program of the command is started, and no hub is asked.
                .env("PATH", "/usr/bin:/bin")
                .env("HOME", folder.path())
                .env("MCPRL_CACHE", folder.path().join("cache"))
                .env("HF_ENDPOINT", "http://127.0.0.1:1")
                .stdin(std::process::Stdio::null())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut text = String::new();
            _ = std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut text);
            _ = child.wait();
            all += 1;
            let problems = ["unexpected argument", "unrecognized subcommand", "invalid value"];
            let is_unknown = problems.iter().any(|problem| text.contains(problem))
                || is_whole && text.contains("required arguments");
            if is_unknown {
                wrong.push(format!("{}: {command}\n{text}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(all > 50, "{all} commands");
}
