//! Identifies the server and the numerics for keys, as far as possible without contacting the server.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::named_files::{NamedFiles, is_content};
use crate::{
    data,
    error::Result,
    hash::{Digest, Encoder},
    mcp::{Expose, Inputs, PLACEHOLDER, Sandbox, ServerSpec, Servers, State, Transport},
    model::{kernels::Format, ops::composed},
    secret,
    store::FileDigests,
};

/// The MCP server's part of a key.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerIdentity {
    /// How the server is reached, and what is started or contacted.
    pub reached: Value,
    /// Settings other than the server itself that decide an episode's outcome.
    pub conduct: Value,
    /// The files that count in `reached` by content.
    pub files: BTreeMap<PathBuf, Digest>,
    /// Databases that do not count, because the server may write to them.
    pub uncounted: BTreeSet<PathBuf>,
    /// Whether this identifies the server. A URL does not, and neither does a command, which may import its tools from files
    /// that it does not name: the server must be asked. Those of mcprl itself and cassettes are known.
    pub is_known: bool,
}

/// The name and version that a server reports; of several servers, joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerName {
    pub name: String,
    pub version: String,
}

impl ServerName {
    /// Reads an artifact of type `server`.
    pub fn read(path: &Path) -> Option<Self> {
        let rows: Vec<data::Server> = data::read(path).ok().filter(|rows: &Vec<_>| !rows.is_empty())?;
        let all = |text: fn(&data::Server) -> &str| rows.iter().map(text).collect::<Vec<_>>().join(", ");
        Some(Self { name: all(|row| &row.name), version: all(|row| &row.version) })
    }
}

impl ServerIdentity {
    /// The identity of all servers of a run.
    pub fn of_all(servers: &Servers, folder: &Path, files: &FileDigests) -> Result<Self> {
        if let Some(spec) = servers.single() {
            return Self::new(spec, folder, files);
        }
        let (files_of_all, uncounted) = Default::default();
        let mut all =
            Self { reached: json!({}), conduct: json!({}), files: files_of_all, uncounted, is_known: true };
        for (name, spec) in servers.iter() {
            let one = Self::new(spec, folder, files)?;
            (all.reached[name], all.conduct[name]) = (one.reached, one.conduct);
            all.files.extend(one.files);
            all.uncounted.extend(one.uncounted);
            all.is_known &= one.is_known;
        }
        Ok(all)
    }

    /// `folder` is the run file's. `{mcprl}` counts as this version of mcprl.
    pub fn new(spec: &ServerSpec, folder: &Path, files: &FileDigests) -> Result<Self> {
        let (mut by_content, mut uncounted) = (BTreeMap::new(), BTreeSet::new());
        let cwd: &Path = match &spec.transport {
            Transport::Stdio { cwd: Some(cwd), .. } => cwd,
            _ => folder,
        };
        let reached = match &spec.transport {
            Transport::Stdio { command, env, files: listed, .. } => {
                let into = (&mut by_content, &mut uncounted);
                Self::command(spec, (command, env, listed), (cwd, folder), files, into)?
            }
            Transport::Http { url, headers, .. } => json!({ "url": url, "headers": hidden(headers) }),
            Transport::Cassette(path) => {
                let digest = files.digest(path)?;
                by_content.insert(path.clone(), digest);
                json!({ "replay": digest })
            }
        };
        let conduct = Self::conduct(spec, (cwd, folder), files, &mut by_content)?;
        let is_known = match &spec.transport {
            Transport::Http { .. } => false,
            Transport::Stdio { command, .. } => command.iter().any(|word| word.contains("{mcprl}")),
            Transport::Cassette(_) => true,
        };
        Ok(Self { reached, conduct, files: by_content, uncounted, is_known })
    }

    /// How a command is reached: its words, variables and files. Adds to the files that count and to those that do not.
    fn command(
        spec: &ServerSpec,
        (command, env, listed): (&[String], &BTreeMap<String, String>, &[PathBuf]),
        (cwd, folder): (&Path, &Path),
        files: &FileDigests,
        into: (&mut BTreeMap<PathBuf, Digest>, &mut BTreeSet<PathBuf>),
    ) -> Result<Value> {
        let mut named = NamedFiles::new(spec, cwd, folder, files);
        let mut words = Vec::new();
        let shown = secret::hidden(command, |value| format!("hidden {}", digest(value)));
        for (word, shown) in command.iter().zip(shown) {
            let is_hidden = shown != *word;
            let word = if is_hidden { None } else { named.word(word)? };
            words.push(
                word.unwrap_or_else(|| {
                    shown.replace("{mcprl}", concat!("mcprl ", env!("CARGO_PKG_VERSION")))
                }),
            );
        }
        let mut variables = BTreeMap::new();
        for (name, value) in env {
            let named = named.value(name, value)?;
            variables.insert(name, digest(named.as_ref().unwrap_or(value)));
        }
        for path in listed.iter().flat_map(|listed| files_in(listed)) {
            let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
            named.listed(path, name)?;
        }
        into.0.extend(named.by_content);
        into.1.extend(named.uncounted);
        let mut layout = BTreeMap::new();
        if let State::SnapshotDir(template) = &spec.state {
            for path in all_in(template) {
                let name = path.strip_prefix(template).unwrap_or(&path).to_string_lossy().into_owned();
                let content = if path.is_symlink() {
                    format!("link {}", std::fs::read_link(&path).unwrap_or_default().display())
                } else if path.is_dir() {
                    "folder".to_owned()
                } else {
                    let digest = files.digest(&path)?;
                    into.0.insert(path, digest);
                    digest.to_string()
                };
                layout.insert(name, content);
            }
        }
        let mut reached = json!({ "command": words, "env": variables, "files": named.contents });
        if !layout.is_empty() {
            reached["snapshot"] = json!(layout);
        }
        if cwd.starts_with(PLACEHOLDER) {
            reached["cwd"] = cwd.to_string_lossy().into();
        }
        // Outside the run file's folder, `cwd` is a path of this machine only.
        if let Some(inner) = cwd.strip_prefix(folder).ok().filter(|inner| *inner != Path::new("")) {
            reached["cwd"] = inner.to_string_lossy().into();
        }
        Ok(reached)
    }

    /// How the server is used.
    fn conduct(
        spec: &ServerSpec,
        (cwd, folder): (&Path, &Path),
        files: &FileDigests,
        by_content: &mut BTreeMap<PathBuf, Digest>,
    ) -> Result<Value> {
        let mut conduct = json!({
            "state": spec.state.label(),
            "call_timeout_s": spec.limits.call_timeout.as_secs(),
            "result_bytes": spec.limits.result_bytes,
        });
        if let Some(Sandbox { network, write }) = &spec.limits.sandbox {
            let write: Vec<_> = write.iter().map(|path| path.strip_prefix(folder).unwrap_or(path)).collect();
            conduct["sandbox"] = json!({ "network": network, "write": write });
        }
        // Left out where they are not set, so that keys of servers without them stay as they were.
        if !spec.quirks.error_patterns.is_empty() {
            conduct["error_patterns"] = json!(spec.quirks.error_patterns.texts());
        }
        if spec.quirks.coerce_arguments {
            conduct["coerce_arguments"] = true.into();
        }
        if spec.expose != Expose::default() {
            conduct["expose"] = json!(spec.expose);
        }
        if spec.inputs != Inputs::default() {
            conduct["inputs"] = json!(spec.inputs);
        }
        let around = [("before_episode", &spec.before_episode), ("after_episode", &spec.after_episode)];
        for (key, words) in around.into_iter().filter(|(_, words)| !words.is_empty()) {
            let mut shown = secret::hidden(words, |value| format!("hidden {}", digest(value)));
            for (word, shown) in words.iter().zip(&mut shown) {
                let path = cwd.join(word);
                if path.is_file() {
                    let digest = files.digest(&path)?;
                    *shown =
                        format!("{} {digest}", path.file_name().unwrap_or_default().to_string_lossy()).into();
                    by_content.insert(path, digest);
                }
            }
            conduct[key] = json!(shown);
        }
        for (name, own) in &spec.limits.tools {
            conduct["tools"][name] = json!({
                "timeout_s": own.timeout.map(|time| time.as_secs()),
                "result_bytes": own.result_bytes,
                "calls": own.calls,
            });
        }
        Ok(conduct)
    }
}

/// The file, or every file in the folder. Hidden files and caches do not count, and links to folders are not followed.
fn files_in(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else { return vec![path.to_owned()] };
    let inner = entries.flatten().filter(is_content).map(|entry| entry.path());
    let inner = inner.filter(|path| path.is_file() || path.is_dir() && !path.is_symlink());
    inner.flat_map(|path| files_in(&path)).collect()
}

/// Everything below the folder: files, links and folders. Links are not followed.
fn all_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let below = entries.flat_map(|entry| {
        let path = entry.path();
        let inner = if path.is_dir() && !path.is_symlink() { all_in(&path) } else { Vec::new() };
        std::iter::once(path).chain(inner)
    });
    below.collect()
}

/// Replaces a value: keys are stored in plain text, and values may be secrets.
fn digest(value: &str) -> Digest {
    Encoder::new("mcprl hidden value v1").text(value).finish()
}

/// Names with digests of their values.
fn hidden(values: &BTreeMap<String, String>) -> BTreeMap<&String, Digest> {
    values.iter().map(|(name, value)| (name, digest(value))).collect()
}

/// The engine's arithmetic with frozen weights of this type. Devices of one kind count as equal, whatever their number.
///
/// `f32` is the default, so the key leaves its name out. The composed operations are a kind of their own. The other values of
/// `MCPRL_KERNELS` make the machine one of fewer instructions, which no key distinguishes.
pub fn numerics(devices: &[String], format: Format) -> String {
    numerics_of(devices, format, composed::forced())
}

fn numerics_of(devices: &[String], format: Format, is_composed: bool) -> String {
    let on_cuda = devices.iter().any(|device| device.starts_with("cuda"));
    let kind = match (on_cuda, is_composed) {
        (true, false) => "cuda",
        (true, true) => "cuda composed",
        (false, false) => "cpu",
        (false, true) => "cpu composed",
    };
    // Flash attention rounds its operands.
    let rounded = matches!(format, Format::Bf16 | Format::F16);
    let flash = if cfg!(feature = "flash-attn") && on_cuda && rounded { " flash" } else { "" };
    match format {
        // Version 2: long sums are split, and rotary frequencies match Transformers. Version 3, on a device: our kernels.
        Format::F32 if on_cuda => format!("{kind} 3"),
        Format::F32 => format!("{kind} 2"),
        // Version 2: gradients of attention are products of bf16 too. Version 3: so is attention, and keys
        // and values are rounded. Version 4: as f32, and adapters and rotary frequencies. Version 5, on a device: logits
        // are not rounded. Version 6: our kernels. Version 5, on the CPU: products by AMX.
        Format::Bf16 if on_cuda => format!("{kind} bf16 6{flash}"),
        Format::Nf4 if on_cuda => format!("{kind} nf4 4"),
        Format::Bf16 | Format::Nf4 => format!("{kind} {} 5", format.name()),
        // Version 2: queries, keys and values are rounded. Version 3 (2 on the CPU): as f32. Version 4: logits are not
        // rounded. Version 5: our kernels.
        Format::F16 if on_cuda => format!("{kind} f16 5{flash}"),
        Format::F16 => format!("{kind} f16 2"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        mcp::{ErrorPatterns, Quirks},
        store::Store,
    };

    /// The `reached` value for this command, in a project at `folder`.
    fn reached(folder: &Path, state: State, command: &[&str]) -> Value {
        let files = FileDigests::load(&Store::open(folder.join("cache")).unwrap());
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let transport = Transport::Stdio {
            command,
            env: BTreeMap::new(),
            cwd: Some(folder.join("server")),
            files: vec![folder.join("server/lib")],
        };
        let spec = ServerSpec::new(transport, state);
        ServerIdentity::new(&spec, folder, &files).unwrap().reached
    }

    fn project(script: &str, database: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("server/lib/__pycache__")).unwrap();
        std::fs::write(folder.path().join("server/main.py"), script).unwrap();
        let database = format!("SQLite format 3\0{database}");
        std::fs::write(folder.path().join("server/data.db"), database).unwrap();
        folder
    }

    #[test]
    fn a_moved_project_has_the_same_server_and_an_edited_script_is_another() {
        let of = |project: &tempfile::TempDir| {
            let script = project.path().join("server/main.py");
            reached(project.path(), State::ReadOnly, &["python3", script.to_str().unwrap(), "{mcprl}"])
        };
        let (one, moved, edited) = (project("a", ""), project("a", ""), project("b", ""));
        assert_eq!(of(&one), of(&moved));
        assert_ne!(of(&one), of(&edited));
        let version = concat!("mcprl ", env!("CARGO_PKG_VERSION"));
        assert_eq!(of(&one)["command"], json!(["python3", "main.py", version]));
        assert_eq!(of(&one)["cwd"], "server");
    }

    #[test]
    fn a_file_in_a_listed_folder_counts_by_its_content() {
        let project = project("a", "");
        let of = |name: &str, content: &str| {
            std::fs::write(project.path().join("server/lib").join(name), content).unwrap();
            reached(project.path(), State::ReadOnly, &["serve"])
        };
        let one = of("helper.py", "1");
        assert_eq!(one["files"].as_object().unwrap().keys().collect::<Vec<_>>(), ["server/lib/helper.py"]);
        assert_eq!(of("__pycache__/helper.pyc", "2"), one);
        assert_ne!(of("helper.py", "22"), one);
    }

    #[test]
    fn settings_for_a_sloppy_server_count_only_where_they_are_set() {
        let folder = project("a", "");
        let files = FileDigests::load(&Store::open(folder.path().join("cache")).unwrap());
        let conduct = |quirks| {
            let transport = Transport::http("http://x");
            let spec = ServerSpec { quirks, ..ServerSpec::new(transport, State::ReadOnly) };
            ServerIdentity::new(&spec, folder.path(), &files).unwrap().conduct
        };
        let plain = json!({"state": "read-only", "call_timeout_s": 30, "result_bytes": 16_384});
        assert_eq!(conduct(Quirks::default()), plain);
        let error_patterns = ErrorPatterns::new(&["^Error:".into()]).unwrap();
        let set = conduct(Quirks { error_patterns, coerce_arguments: true });
        assert_eq!((&set["error_patterns"], &set["coerce_arguments"]), (&json!(["^Error:"]), &json!(true)));
    }

    #[test]
    fn a_secret_of_the_command_counts_and_is_not_shown() {
        let of = |key: &str| {
            reached(project("a", "").path(), State::ReadOnly, &["serve", "--api-key", key, "--port", "1"])
        };
        assert_ne!(of("sk-one"), of("sk-two"));
        assert!(!of("sk-one").to_string().contains("sk-one"));
        assert_eq!(of("sk-one")["command"][4], "1");
    }

    #[test]
    fn a_database_counts_by_its_content_where_nothing_writes_to_it() {
        let of = |content: &str, state| reached(project("a", content).path(), state, &["serve", "data.db"]);
        assert_ne!(of("a", State::ReadOnly), of("b", State::ReadOnly));
        assert_eq!(of("a", State::FreshProcess), of("b", State::FreshProcess));
        assert_eq!(of("a", State::FreshProcess)["command"], json!(["serve", "data.db"]));
    }

    type Words = &'static [&'static str];
    type Variables = &'static [(&'static str, &'static str)];

    /// The `reached` value of a read-only server with these words and variables, beside this file.
    fn naming(words: &[&str], env: &[(&str, &str)], name: &str, content: &[u8]) -> Value {
        let folder = project("a", "rows");
        let path = folder.path().join("server").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        let files = FileDigests::load(&Store::open(folder.path().join("cache")).unwrap());
        let transport = Transport::Stdio {
            command: std::iter::once("serve").chain(words.iter().copied()).map(str::to_owned).collect(),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            cwd: Some(folder.path().join("server")),
            files: Vec::new(),
        };
        let spec = ServerSpec::new(transport, State::ReadOnly);
        ServerIdentity::new(&spec, folder.path(), &files).unwrap().reached
    }

    #[test]
    fn a_file_that_a_read_only_server_is_given_counts_by_its_content() {
        let with: [(Words, Variables, &str); 8] = [
            (&["--data=rows.csv"], &[], "rows.csv"),
            (&["--db=sqlite:///rows.csv"], &[], "rows.csv"),
            (&["--db", "file:rows.csv?mode=ro"], &[], "rows.csv"),
            (&[], &[("DATA", "rows.csv")], "rows.csv"),
            (&[], &[("DATABASE_URL", "sqlite:///./rows.csv?mode=ro")], "rows.csv"),
            (&["docs"], &[], "docs/inner/rows.csv"),
            (&["--root=docs"], &[], "docs/inner/rows.csv"),
            (&["data.db"], &[], "data.db-wal"),
        ];
        for (words, env, file) in with {
            let of = |content: &[u8]| naming(words, env, file, content);
            assert_eq!(of(b"1"), of(b"1"), "{words:?} {env:?} names no folder of this machine");
            assert_ne!(of(b"1"), of(b"2"), "{words:?} {env:?}");
            assert!(of(b"1")["files"].to_string().contains(file.rsplit('/').next().unwrap()), "{words:?}");
        }
    }

    #[test]
    fn what_a_read_only_server_writes_and_what_is_no_data_does_not_count() {
        let with: [(Words, Variables, &str, &[u8]); 9] = [
            (&["--log-file=server.txt"], &[], "server.txt", b""),
            (&["--to=server.log"], &[], "server.log", b""),
            (&[], &[("CACHE_FILE", "pages.json")], "pages.json", b""),
            (&[], &[("API_TOKEN_FILE", "token.txt")], "token.txt", b""),
            (&[], &[("BROWSER", "browse")], "browse", b"\x7fELF"),
            (&["data.db"], &[], "data.db-shm", b""),
            (&["."], &[], "docs/rows.csv", b""),
            (&[".."], &[], "docs/rows.csv", b""),
            (&["docs"], &[], "docs/.index", b""),
        ];
        for (words, env, file, head) in with {
            let of = |content: &[u8]| naming(words, env, file, &[head, content].concat());
            assert_eq!(of(b"1"), of(b"2"), "{words:?} {env:?}");
        }
    }

    #[test]
    fn a_database_that_the_server_may_write_to_is_known_and_does_not_count() {
        let folder = project("a", "rows");
        let files = FileDigests::load(&Store::open(folder.path().join("cache")).unwrap());
        for (word, variable) in [("--db=data.db", "x"), ("data.db", "x"), ("x", "data.db")] {
            let transport = Transport::Stdio {
                command: vec!["serve".into(), word.into()],
                env: BTreeMap::from([("DB".to_owned(), variable.to_owned())]),
                cwd: Some(folder.path().join("server")),
                files: Vec::new(),
            };
            let spec = ServerSpec::new(transport, State::FreshProcess);
            let identity = ServerIdentity::new(&spec, folder.path(), &files).unwrap();
            assert_eq!(identity.uncounted, BTreeSet::from([folder.path().join("server/data.db")]));
            assert!(identity.files.is_empty(), "{word}");
        }
    }

    #[test]
    fn the_composed_operations_are_other_arithmetic() {
        let of = |device: &str, format| numerics_of(&[device.to_owned()], format, false);
        let composed = |device: &str, format| numerics_of(&[device.to_owned()], format, true);
        let all = || [Format::F32, Format::Bf16, Format::F16, Format::Nf4].into_iter();
        let plain: Vec<String> = all().map(|format| of("cpu", format)).collect();
        let cuda = of("cuda", Format::F32);
        assert_eq!((plain[0].as_str(), cuda.as_str()), ("cpu 2", "cuda 3"), "as in every key so far");
        for (format, plain) in all().zip(&plain) {
            assert_eq!(composed("cpu", format), plain.replace("cpu", "cpu composed"));
        }
        assert_eq!(composed("cuda", Format::F32), "cuda composed 3");
    }
}
