//! `docs/reference/error-codes.md`: every code of the program, from the same settings that the derive reads.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Attribute, Data, DeriveInput, Expr, ExprLit, Lit, LitStr, Meta};

use crate::settings::{Case, cases};

const HEAD: &str = "\
# Error codes

With `--json`, every error has one of these codes. Codes are stable: the changelog says when one changes. Messages and hints may change
at any time; `…` stands for what they name. Frequent problems are in [Troubleshooting](../guides/troubleshooting.md).
";

#[derive(Default)]
struct Row {
    messages: Vec<String>,
    hints: Vec<String>,
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let inner = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    let mut found: Vec<PathBuf> = paths.flat_map(inner).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    found.sort();
    found
}

/// Items of a file that derive the trait, those in modules of tests left out.
fn errors(source: &str) -> Vec<DeriveInput> {
    let mut errors = Vec::new();
    let mut item: Vec<TokenTree> = Vec::new();
    for token in source.parse::<TokenStream>().unwrap() {
        let ends = match &token {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(punct) => punct.as_char() == ';',
            _ => false,
        };
        item.push(token);
        if ends {
            let item: TokenStream = std::mem::take(&mut item).into_iter().collect();
            let derives = item.clone().into_iter().any(|token| match token {
                TokenTree::Group(group) => {
                    let text = group.stream().to_string();
                    text.starts_with("derive") && text.contains("Diagnostic")
                }
                _ => false,
            });
            errors.extend(derives.then(|| syn::parse2(item).unwrap()));
        }
    }
    errors
}

/// A text without its fields, as a cell of a table.
fn cell(text: &str) -> String {
    let mut shown = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '{' | '}' if letters.peek() == Some(&letter) => shown.extend(letters.next()),
            '{' => {
                letters.by_ref().find(|letter| *letter == '}');
                shown.push_str(if shown.ends_with('…') { "" } else { "…" });
            }
            '|' => shown.push_str("\\|"),
            '\n' => shown.push(' '),
            letter => shown.push(letter),
        }
    }
    shown
}

/// Texts in an expression, also within groups.
fn texts(tokens: TokenStream) -> Vec<String> {
    let inner = tokens.into_iter().flat_map(|token| match token {
        TokenTree::Group(group) => texts(group.stream()),
        TokenTree::Literal(literal) => {
            syn::parse_str::<LitStr>(&literal.to_string()).map(|text| text.value()).into_iter().collect()
        }
        _ => Vec::new(),
    });
    inner.collect()
}

/// What the message says: if that is only fields, what it is put together from, or else the variant's comment.
fn messages(attributes: &[Attribute]) -> Vec<String> {
    let message = attributes.iter().find(|attribute| attribute.path().is_ident("error"));
    let tokens =
        message.and_then(|attribute| attribute.meta.require_list().ok()).map(|list| list.tokens.clone());
    let texts = tokens.map(texts).unwrap_or_default();
    let says = |text: &&String| cell(text).chars().any(char::is_alphanumeric);
    let comments = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value().trim().to_owned()),
            _ => None,
        },
        _ => None,
    });
    match texts.split_first() {
        Some((first, _)) if says(&first) => vec![first.clone()],
        Some((first, others)) => {
            let others: Vec<String> = others.iter().filter(says).cloned().collect();
            let comment = comments.collect::<Vec<_>>().join(" ");
            match (others.is_empty(), comment.is_empty()) {
                (false, _) => others,
                (true, false) => vec![comment],
                (true, true) => vec![first.clone()],
            }
        }
        None => vec![comments.collect::<Vec<_>>().join(" ")],
    }
}

fn add(case: &Case, attributes: &[Attribute], page: &mut BTreeMap<String, BTreeMap<String, Row>>) {
    let chain = case.chain("code");
    let own = case.own_code().filter(|_| chain.is_empty());
    let written = chain.iter().flat_map(|setting| texts(setting.value.clone()));
    for code in written.map(|text| case.whole_code(&text)).chain(own) {
        let (area, _) = code.split_once("::").unwrap_or((&code, ""));
        let row = page.entry(area.to_owned()).or_default().entry(code.clone()).or_default();
        let hints = case
            .chain("hint")
            .into_iter()
            .flat_map(|setting| texts(setting.value.clone()).into_iter().next());
        for (cells, texts) in [(&mut row.messages, messages(attributes)), (&mut row.hints, hints.collect())] {
            for text in texts.iter().map(|text| cell(text)) {
                if !cells.contains(&text) {
                    cells.push(text);
                }
            }
        }
    }
}

fn page(root: &Path) -> String {
    let mut areas = BTreeMap::new();
    for path in [sources(&root.join("src")), sources(&root.join("crates"))].concat() {
        let source = fs::read_to_string(path).unwrap();
        let errors = if source.contains("Diagnostic)]") { errors(&source) } else { Vec::new() };
        for error in errors {
            let attributes: Vec<&[Attribute]> = match &error.data {
                Data::Enum(data) => data.variants.iter().map(|variant| variant.attrs.as_slice()).collect(),
                _ => vec![&error.attrs],
            };
            let cases = cases(&error).unwrap();
            cases.iter().zip(attributes).for_each(|(case, attributes)| add(case, attributes, &mut areas));
        }
    }
    let mut page = HEAD.to_owned();
    for (area, rows) in areas {
        page += &format!("\n## `{area}`\n\n| code | message | hint |\n|---|---|---|\n");
        for (code, row) in rows {
            page += &format!("| `{code}` | {} | {} |\n", row.messages.join(" / "), row.hints.join(" / "));
        }
    }
    page
}

#[test]
fn the_page_of_error_codes_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("docs/reference/error-codes.md");
    let page = page(&root);
    assert!(page.lines().filter(|line| line.starts_with("| `")).count() > 300, "{page}");
    if std::env::var_os("MCPRL_UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(path).unwrap();
    assert!(
        written == page,
        "docs/reference/error-codes.md is out of date: run the tests with MCPRL_UPDATE_DOCS=1"
    );
}
