//! Files do not depend on each other in circles: at every level, those that one file declares (a folder counts as one) have an
//! order in which each uses only earlier ones.
//!
//! A file depends on another if its code names an item that the other one defines, or if a type of its own gets methods there
//! that it calls on `self`. Not seen are tests, and methods of other values, which are called without a path. `mod` and
//! re-exports (`pub use`) make no dependency: code that uses a re-exported name depends on the file that defines it. A file and
//! the one that declares it, such as a `mod.rs`, are one thing to others and may use each other.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    path::{Path, PathBuf},
};

use super::modules::{Crate, Found};

/// Uses of a module by another one with the same parent: in which file, in which line, of what.
type Edges = BTreeMap<(usize, usize), Vec<(usize, usize, String)>>;

impl Crate {
    /// From the root's file to one.
    fn branch(&self, file: usize) -> Vec<usize> {
        let mut branch = vec![file];
        while let Some(above) = self.files[branch[0]].above {
            branch.insert(0, above);
        }
        branch
    }

    /// The files that give a method of this name to a type of a file.
    fn given_methods(&self) -> BTreeMap<(usize, &str), BTreeSet<usize>> {
        let mut given = BTreeMap::<_, BTreeSet<usize>>::new();
        for (index, module) in self.modules.iter().enumerate() {
            for (path, names) in &module.methods {
                for file in self.find(index, path, &mut Vec::new()).into_iter().filter_map(Found::file) {
                    for name in names {
                        given.entry((file, name.as_str())).or_default().insert(module.file);
                    }
                }
            }
        }
        given
    }

    fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        let given = self.given_methods();
        for (index, module) in self.modules.iter().enumerate() {
            let from = self.branch(module.file);
            let mut add = |file: usize, line: usize, name: String| {
                let to = self.branch(file);
                if let Some((from, to)) = from.iter().zip(&to).find(|(from, to)| from != to) {
                    edges.entry((*from, *to)).or_default().push((module.file, line, name));
                }
            };
            for (name, line) in &module.calls {
                let files = given.get(&(module.file, name.as_str()));
                files.into_iter().flatten().for_each(|file| add(*file, *line, format!("self.{name}")));
            }
            for (path, line) in &module.uses {
                let found = self.find(index, path, &mut Vec::new());
                let mut files: BTreeSet<usize> = found.into_iter().filter_map(Found::file).collect();
                if let [name] = path.as_slice()
                    && files.is_empty()
                {
                    files.extend(self.macro_file(index, name));
                }
                files.into_iter().for_each(|file| add(file, *line, path.join("::")));
            }
        }
        edges
    }

    /// For each edge on a circle the shortest one with it.
    fn circles(&self, edges: &Edges) -> BTreeSet<Vec<usize>> {
        let mut circles = BTreeSet::new();
        for &(from, to) in edges.keys() {
            let mut before = BTreeMap::from([(to, to)]);
            let mut queue = VecDeque::from([to]);
            while let Some(file) = queue.pop_front().filter(|_| !before.contains_key(&from)) {
                for &(_, next) in edges.range((file, 0)..(file + 1, 0)).map(|(edge, _)| edge) {
                    if let Entry::Vacant(entry) = before.entry(next) {
                        entry.insert(file);
                        queue.push_back(next);
                    }
                }
            }
            if before.contains_key(&from) {
                let mut circle = vec![from];
                while *circle.last().unwrap() != to {
                    circle.push(before[circle.last().unwrap()]);
                }
                circle.reverse();
                let first = circle.iter().enumerate().min_by_key(|(_, file)| **file).unwrap().0;
                circle.rotate_left(first);
                circles.insert(circle);
            }
        }
        circles
    }

    /// Of a file, or of a folder if there are files below.
    fn named(&self, file: usize) -> String {
        let path = self.files[file].path.with_extension("");
        let has_children = self.files.iter().any(|other| other.above == Some(file));
        let path = if path.ends_with("mod") { path.parent().unwrap() } else { &path };
        format!("{}{}", path.display(), if has_children { "/" } else { ".rs" })
    }

    /// `a.rs → b/ → a.rs`, then for each arrow the first lines that make it, one for each name.
    fn shown(&self, circle: &[usize], edges: &Edges) -> String {
        let around: Vec<usize> = circle.iter().chain(circle.first()).copied().collect();
        let mut shown = around.iter().map(|file| self.named(*file)).collect::<Vec<_>>().join(" → ");
        for arrow in around.windows(2) {
            let mut names = BTreeSet::new();
            let mut uses = edges[&(arrow[0], arrow[1])].clone();
            uses.sort();
            uses.retain(|(file, _, name)| names.insert((*file, name.rsplit("::").next().map(str::to_owned))));
            for (file, line, name) in uses.iter().take(5) {
                shown += &format!("\n    {}:{line}: {name}", self.files[*file].path.display());
            }
            if uses.len() > 5 {
                shown += &format!("\n    and {} more", uses.len() - 5);
            }
        }
        shown
    }
}

/// `lib.rs` and `main.rs` of every crate of this repository.
fn roots() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let others = std::fs::read_dir(root.join("crates")).into_iter().flatten();
    let crates = others.map(|item| item.unwrap().path()).chain([root.to_owned()]);
    let roots = crates.flat_map(|folder| [folder.join("src/lib.rs"), folder.join("src/main.rs")]);
    roots.filter(|root| root.exists()).collect()
}

/// Circles of a crate, as text.
fn circles(root: &Path) -> Vec<String> {
    let read = Crate::read(root);
    let edges = read.edges();
    read.circles(&edges).iter().map(|circle| read.shown(circle, &edges)).collect()
}

#[test]
fn no_files_depend_on_each_other_in_circles() {
    let of_root = |root: &PathBuf| {
        let root_name = root.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().display().to_string();
        circles(root).into_iter().map(move |circle| format!("below {root_name}: {circle}"))
    };
    let found: Vec<String> = roots().iter().flat_map(of_root).collect();
    assert!(found.is_empty(), "{} circles:\n{}", found.len(), found.join("\n"));
}

/// Circles of a crate of these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    circles(&folder.path().join("lib.rs"))
}

#[test]
fn a_circle_is_found_through_groups_globs_macros_and_re_exports() {
    let named_in_b = [
        "use crate::{a::{self, A}, c};",
        "use super::A;",
        "use super::*; type T = A;",
        "fn f() { let x = self::super::a::A::new(); }",
        "use crate::a; fn f() -> a::A { todo!() }",
        "fn f() { println!(\"{}\", crate::A) }",
        "mod inner { use super::super::a::A; }",
    ];
    for text in named_in_b {
        let b = format!("{text} pub struct B;");
        let lib = ("lib.rs", "mod a; mod b; mod c; pub use a::A;");
        let found = circles_of(&[lib, ("a.rs", "pub struct A(crate::b::B);"), ("b.rs", &b), ("c.rs", "")]);
        assert!(
            found.len() == 1 && found[0].starts_with("a.rs → b.rs → a.rs\n    a.rs:1: "),
            "{text}: {found:?}"
        );
    }
}

#[test]
fn a_file_and_the_one_that_declares_it_may_use_each_other() {
    let parent = "mod child; mod other; pub struct Parent;\nfn f() { child::made(); }";
    let child = ("a/child.rs", "use super::Parent; pub fn made() -> Parent { Parent }");
    let files = [
        ("lib.rs", "mod a;"),
        ("a/mod.rs", parent),
        child,
        ("a/other.rs", "fn g() { super::child::made(); }"),
    ];
    assert_eq!(circles_of(&files), [""; 0]);
}

#[test]
fn a_folder_counts_as_one() {
    let lib = ("lib.rs", "mod a; mod b;");
    let inner = [("a/one.rs", "use crate::b::B;"), ("a/two.rs", "pub struct Two;")];
    let b = ("b.rs", "pub struct B;\nfn f() { crate::a::two::Two; }");
    let found = circles_of(&[lib, ("a/mod.rs", "pub mod one; pub mod two;"), inner[0], inner[1], b]);
    assert_eq!(found, ["a/ → b.rs → a/\n    a/one.rs:1: crate::b::B\n    b.rs:2: crate::a::two::Two"]);
}

#[test]
fn a_file_depends_on_one_that_gives_its_type_the_methods_that_it_calls() {
    let a = ("a.rs", "pub struct A; impl A { fn f(&self) { self.g(); self.0.h() } }");
    let b = |name: &str| format!("use crate::a::A;\nimpl A {{ pub fn {name}(&self) {{}} }}");
    let found = |b: &str| circles_of(&[("lib.rs", "mod a; mod b;"), a, ("b.rs", b)]);
    assert_eq!(found(&b("g")), ["a.rs → b.rs → a.rs\n    a.rs:1: self.g\n    b.rs:1: crate::a::A"]);
    assert_eq!(found(&b("h")), [""; 0], "that is a method of something else");
}

#[test]
fn tests_are_in_no_circle() {
    let a = (
        "a.rs",
        "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }\n#[test] fn f() { crate::b::B; }",
    );
    let b = ("b.rs", "pub struct B(crate::a::A);");
    let tests = ("tests.rs", "use super::*; pub fn t() { a::A; }");
    assert_eq!(circles_of(&[("lib.rs", "mod a; mod b; #[cfg(test)] mod tests;"), a, b, tests]), [""; 0]);
}

#[test]
fn a_long_circle_is_shown_in_order() {
    let lib = ("lib.rs", "mod a; mod b; mod c;");
    let files = [
        lib,
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "pub struct C;"),
    ];
    assert_eq!(circles_of(&files), [""; 0]);
    let a = ("a.rs", "use crate::b::B; pub struct A;");
    let c = ("c.rs", "pub struct C;\nuse crate::a::A;");
    let found = circles_of(&[lib, a, files[2], c]);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("a.rs → b.rs → c.rs → a.rs") && found[0].ends_with("c.rs:2: crate::a::A"),
        "{found:?}"
    );
}
