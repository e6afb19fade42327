//! The layers of `src/lib.rs`: a module imports only from layers below its own. Only `stage` knows kinds by name.

use std::path::{Path, PathBuf};

const LAYERS: [&[&str]; 10] = [
    &["demo"],
    &["agent", "grpo", "eval"],
    &["openai"],
    &["stage"],
    &["plan"],
    &["exec"],
    &["view"],
    &["report"],
    &["track", "hub"],
    &["cli", "ui", "web", "serve"],
];

/// Neighbours on one layer that may still be imported, each for a reason.
const NEIGHBOURS: [(&str, &str); 3] = [
    // Commands speak through the printer.
    ("cli", "ui"),
    ("cli", "web"),
    ("cli", "serve"),
];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(folder).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Modules named after `crate::`, also within `use crate::{a, b::{c}}`.
fn imports(text: &str) -> Vec<String> {
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join(" ");
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
    };
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            modules.push(name(rest));
            continue;
        };
        let mut depth = 0;
        let mut start = 0;
        for (at, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => {
                    modules.push(name(&list[start..at]));
                    break;
                }
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    modules.push(name(&list[start..at]));
                    start = at + 1;
                }
                _ => {}
            }
        }
    }
    modules.retain(|module| !module.is_empty());
    modules
}

#[test]
fn imports_are_read_also_where_they_are_nested() {
    let text = "use crate::{\n    error::{At, Result}, // crate::cli\n    hash::Digest,\n};\nfn f() { crate::ui::x() }";
    assert_eq!(imports(text), ["error", "hash", "ui"]);
}

#[test]
fn a_module_imports_from_layers_below_alone() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for path in sources(&src) {
        let inner = path.strip_prefix(&src).unwrap();
        let first = inner.components().next().unwrap().as_os_str().to_str().unwrap();
        let module = first.trim_end_matches(".rs");
        if ["lib", "main", "allocator", "reaper"].contains(&module) {
            continue;
        }
        let own = layer(module).unwrap_or_else(|| panic!("{module} is in no layer"));
        for import in imports(&std::fs::read_to_string(&path).unwrap()) {
            // What is not a module is an item of `crate` itself, such as a macro.
            let Some(other) = layer(&import).filter(|_| import != module) else { continue };
            let allowed = other < own || NEIGHBOURS.contains(&(module, import.as_str()));
            if !allowed {
                wrong.push(format!("{} imports {import}", inner.display()));
            }
        }
    }
    assert_eq!(wrong, [""; 0], "layers from below: {LAYERS:?}");
}

#[test]
fn what_a_server_says_is_read_as_it_is_in_few_files() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/mcprl-mcp/src");
    let is_read = |path: &PathBuf| std::fs::read_to_string(path).unwrap().contains(".for_server()");
    let files = sources(&src).into_iter().filter(is_read);
    let files: Vec<String> =
        files.map(|path| path.strip_prefix(&src).unwrap().to_string_lossy().into_owned()).collect();
    // Cursors; states and requests for input; names of tools.
    assert_eq!(files, ["listing.rs", "live.rs", "tools.rs", "untrusted/mod.rs"]);
}

/// Code that decides by the name of a stage kind: a comparison with one, or a `match` of a card's kind.
fn compares_kind(line: &str) -> bool {
    let line = line.split("//").next().unwrap_or_default();
    let stages = Path::new(env!("CARGO_MANIFEST_DIR")).join("stages");
    let kinds =
        std::fs::read_dir(stages).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap());
    let forms = ["kind ==", "kind !=", "kind.as_str() ==", "kind.as_str() !="];
    let is_compared = |kind: String| forms.iter().any(|form| line.contains(&format!("{form} \"{kind}\"")));
    line.contains("match ") && line.contains("card.kind") || kinds.into_iter().any(is_compared)
}

#[test]
fn comparisons_of_kinds_are_recognised() {
    for line in [
        "if stage.card.kind == \"model\" {",
        "match stage.card.kind.as_str() {",
        "filter(|kind| kind != \"eval\")",
    ] {
        assert!(compares_kind(line), "{line}");
    }
    assert!(!compares_kind("let kind = find(&card.kind); // kind == \"model\""));
}

#[test]
fn no_other_module_compares_the_names_of_stage_kinds() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for path in sources(&src) {
        let inner = path.strip_prefix(&src).unwrap();
        if inner.starts_with("stage") {
            continue;
        }
        for (number, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
            if compares_kind(line) {
                wrong.push(format!("{}:{}: {}", inner.display(), number + 1, line.trim()));
            }
        }
    }
    assert_eq!(wrong, [""; 0], "implement a method of `StageKind` instead");
}
