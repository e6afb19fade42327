//! Dependencies meet `deny.toml` and build with the declared Rust version. Needs no network and no cargo-deny.

use std::{iter::Peekable, path::Path, process::Command};

use serde::{Deserialize, de::DeserializeOwned};

#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

/// A package of any platform and feature. The package itself has no source.
#[derive(Deserialize)]
struct Locked {
    name: String,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A package that is built here.
#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    rust_version: Option<String>,
}

fn read<T: DeserializeOwned>(file: &str) -> T {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    toml::from_str(&text).unwrap()
}

fn cargo(arguments: &[&str]) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn packages() -> Vec<Package> {
    let version = cargo(&["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let metadata = ["metadata", "--format-version=1", "--offline", "--locked", "--filter-platform", host];
    serde_json::from_str::<Metadata>(&cargo(&metadata)).unwrap().packages
}

/// Whether an SPDX expression can be met with these licences.
fn is_met(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    any(&mut spaced.split_whitespace().peekable(), is_allowed)
}

fn any<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut met = all(words, is_allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words, is_allowed);
    }
    met
}

fn all<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut met = one(words, is_allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, is_allowed);
    }
    met
}

fn one<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let name = words.next().unwrap_or_default();
    if name == "(" {
        let met = any(words, is_allowed);
        words.next();
        return met;
    }
    match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => is_allowed(&format!("{name} WITH {exception}")),
        None => is_allowed(name),
    }
}

#[test]
fn licence_expressions_are_read_as_spdx_means_them() {
    for (expression, met) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND Zlib", true),
        ("GPL-3.0 AND MIT OR Zlib", true),
        ("MIT WITH Some-exception", false),
        ("", false),
    ] {
        assert_eq!(is_met(expression, &|name| ["MIT", "Zlib"].contains(&name)), met, "{expression}");
    }
}

#[test]
fn licences_are_those_of_deny_toml() {
    let Licenses { allow, exceptions } = read::<Deny>("deny.toml").licenses;
    let packages = packages();
    assert!(packages.len() > 200);
    let refused = packages.iter().filter(|package| {
        let excepted = exceptions.iter().filter(|exception| exception.name == package.name);
        let allowed: Vec<&String> = allow.iter().chain(excepted.flat_map(|one| &one.allow)).collect();
        let license = package.license.as_deref().unwrap_or_default();
        !is_met(license, &|name| allowed.iter().any(|allowed| *allowed == name))
    });
    let refused: Vec<_> = refused.map(|package| (&package.name, &package.license)).collect();
    assert!(refused.is_empty(), "deny.toml does not allow {refused:?}");
}

#[test]
fn no_dependency_is_banned_or_from_another_source_than_deny_toml_allows() {
    let Deny { bans, sources, .. } = read("deny.toml");
    let registries: Vec<String> =
        sources.allow_registry.iter().map(|url| format!("registry+{url}")).collect();
    for Locked { name, source } in read::<Lock>("Cargo.lock").package {
        let banned = bans.deny.iter().find(|banned| banned.name == name);
        assert!(banned.is_none(), "{name} is banned: {}", banned.unwrap().reason);
        assert!(
            source.as_ref().is_none_or(|source| registries.contains(source)),
            "{name} is from {source:?}"
        );
    }
}

#[test]
fn no_dependency_needs_a_newer_rust_than_this_package_declares() {
    let version =
        |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().unwrap()).take(2).collect() };
    let ours = version(env!("CARGO_PKG_RUST_VERSION"));
    let newer =
        |package: &Package| package.rust_version.as_deref().is_some_and(|theirs| version(theirs) > ours);
    let newer: Vec<_> = packages().into_iter().filter(newer).map(|package| package.name).collect();
    assert!(newer.is_empty(), "newer than {ours:?}: {newer:?}");
}
