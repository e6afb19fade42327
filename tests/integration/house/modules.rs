//! The modules of a crate as its sources declare them, without tests: what a name in them means, and what their code names.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A path.
pub type Names = Vec<String>;

enum Meaning {
    Module(usize),
    /// Defined in the file of the module.
    Item,
    Import(Names),
}

#[derive(Clone, Copy)]
pub enum Found {
    Module(usize),
    /// In this file.
    Item(usize),
}

impl Found {
    pub fn file(self) -> Option<usize> {
        match self {
            Self::Module(_) => None,
            Self::Item(file) => Some(file),
        }
    }
}

pub struct Module {
    pub file: usize,
    parent: usize,
    /// Where the files of its child modules are.
    folder: PathBuf,
    names: BTreeMap<String, Vec<Meaning>>,
    globs: Vec<Names>,
    /// `macro_rules!`, which children see without importing them.
    macros: BTreeSet<String>,
    /// What its code names, and in which line.
    pub uses: Vec<(Names, usize)>,
    /// Types that it gives methods to.
    pub methods: Vec<(Names, BTreeSet<String>)>,
    /// Methods that its code calls on `self` or `Self`, and in which line.
    pub calls: Vec<(String, usize)>,
}

pub struct File {
    /// Relative to the root's folder.
    pub path: PathBuf,
    /// The file that declares it.
    pub above: Option<usize>,
}

/// The modules that are reached from one `lib.rs` or `main.rs`, which is the first.
#[derive(Default)]
pub struct Crate {
    pub files: Vec<File>,
    pub modules: Vec<Module>,
}

impl Crate {
    pub fn read(root: &Path) -> Self {
        let mut read = Self::default();
        let folder = root.parent().unwrap();
        read.file(root, folder, folder.to_owned(), 0);
        read
    }

    fn module(&mut self, file: usize, parent: usize, folder: PathBuf) -> usize {
        let (names, globs, macros, uses, methods, calls) = Default::default();
        self.modules.push(Module { file, parent, folder, names, globs, macros, uses, methods, calls });
        self.modules.len() - 1
    }

    fn file(&mut self, path: &Path, root: &Path, folder: PathBuf, parent: usize) -> usize {
        let text = std::fs::read_to_string(path).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let above = self.modules.get(parent).map(|parent| parent.file);
        self.files.push(File { path: path.strip_prefix(root).unwrap().to_owned(), above });
        let module = self.module(self.files.len() - 1, parent, folder);
        Reader { root, read: self, module }.visit_file(&parsed);
        module
    }

    /// What a path means in a module. Imports can lead back to themselves: `asked` is what is being answered.
    pub fn find(&self, module: usize, path: &[String], asked: &mut Vec<(usize, Names)>) -> Vec<Found> {
        let Some((first, rest)) = path.split_first() else {
            return vec![Found::Module(module)];
        };
        match first.as_str() {
            "crate" => return self.find(0, rest, asked),
            "super" => return self.find(self.modules[module].parent, rest, asked),
            "self" => return self.find(module, rest, asked),
            _ => {}
        }
        let question = (module, path.to_vec());
        if asked.contains(&question) {
            return Vec::new();
        }
        asked.push(question);
        let found = self.find_child(module, first, asked);
        let mut inner = self.find_within(&found, rest, asked);
        if inner.is_empty() {
            // The path goes on in a type: a variant, an associated function.
            inner.extend(found.iter().filter(|found| matches!(found, Found::Item(_))));
        }
        asked.pop();
        inner
    }

    fn find_child(&self, module: usize, name: &String, asked: &mut Vec<(usize, Names)>) -> Vec<Found> {
        let Module { file, names, globs, .. } = &self.modules[module];
        let mut found = Vec::new();
        for meaning in names.get(name).into_iter().flatten() {
            match meaning {
                Meaning::Module(module) => found.push(Found::Module(*module)),
                Meaning::Item => found.push(Found::Item(*file)),
                Meaning::Import(path) => found.extend(self.find(module, path, asked)),
            }
        }
        if found.is_empty() {
            for glob in globs {
                let others = self.find(module, glob, asked);
                found.extend(self.find_within(&others, std::slice::from_ref(name), asked));
            }
        }
        found
    }

    fn find_within(&self, outer: &[Found], path: &[String], asked: &mut Vec<(usize, Names)>) -> Vec<Found> {
        let mut found = Vec::new();
        for outer in outer {
            if let Found::Module(module) = outer {
                found.extend(self.find(*module, path, asked));
            }
        }
        found
    }

    /// The file of a `macro_rules!` in a module or one above.
    pub fn macro_file(&self, mut module: usize, name: &str) -> Option<usize> {
        loop {
            let Module { file, parent, macros, .. } = &self.modules[module];
            if macros.contains(name) {
                return Some(*file);
            }
            if module == 0 {
                return None;
            }
            module = *parent;
        }
    }
}

/// Reads the code of a module into `read`.
struct Reader<'a> {
    root: &'a Path,
    read: &'a mut Crate,
    module: usize,
}

/// For tests (`#[test]`, `#[cfg(test)]`, `#[cfg(all(test, …))]`) or for documentation (`#[cfg(doc)]`).
fn is_left_out(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.meta.require_list().ok().filter(|list| list.path.is_ident("cfg"));
        let condition = condition.map(|list| list.tokens.to_string().replace(' ', ""));
        attribute.path().is_ident("test")
            || condition.is_some_and(|condition| {
                ["test", "doc"].contains(&condition.as_str()) || condition.starts_with("all(test,")
            })
    })
}

impl Reader<'_> {
    fn own(&mut self) -> &mut Module {
        &mut self.read.modules[self.module]
    }

    fn name(&mut self, name: &syn::Ident, meaning: Meaning) {
        self.own().names.entry(name.to_string()).or_default().push(meaning);
    }

    fn child(&mut self, item: &syn::ItemMod) {
        let parent = self.module;
        let Module { file, folder, .. } = self.own();
        let (file, folder) = (*file, folder.clone());
        let name = item.ident.to_string();
        let inner = folder.join(&name);
        let child = if let Some((_, items)) = &item.content {
            let child = self.read.module(file, parent, inner);
            let mut reader = Reader { root: self.root, read: self.read, module: child };
            items.iter().for_each(|item| reader.visit_item(item));
            child
        } else {
            let beside = folder.join(format!("{name}.rs"));
            let path = if beside.exists() { beside } else { inner.join("mod.rs") };
            self.read.file(&path, self.root, inner, parent)
        };
        self.name(&item.ident, Meaning::Module(child));
    }

    fn import(&mut self, tree: &syn::UseTree, before: &[String], is_private: bool) {
        let and = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Names>();
        let (path, ident, name) = match tree {
            syn::UseTree::Path(path) => return self.import(&path.tree, &and(&path.ident), is_private),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, before, is_private));
            }
            syn::UseTree::Glob(_) => return self.own().globs.push(before.to_vec()),
            syn::UseTree::Name(name) if name.ident == "self" => {
                (before.to_vec(), &name.ident, before.last().unwrap().clone())
            }
            syn::UseTree::Name(name) => (and(&name.ident), &name.ident, name.ident.to_string()),
            syn::UseTree::Rename(name) => (and(&name.ident), &name.ident, name.rename.to_string()),
        };
        if is_private {
            self.own().uses.push((path.clone(), ident.span().start().line));
        }
        self.own().names.entry(name).or_default().push(Meaning::Import(path));
    }

    /// Paths in the arguments of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut line = 0;
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if colons == 2 && !path.is_empty() => path.push(name.to_string()),
                TokenTree::Ident(name) => {
                    self.named(&mut path, line);
                    line = name.span().start().line;
                    path.push(name.to_string());
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => {
                    self.named(&mut path, line);
                    self.tokens(group.stream());
                }
                _ => self.named(&mut path, line),
            }
            colons = 0;
        }
        self.named(&mut path, line);
    }

    fn named(&mut self, path: &mut Names, line: usize) {
        let path = std::mem::take(path);
        if !path.is_empty() {
            self.own().uses.push((path, line));
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (attributes, name) = match item {
            syn::Item::Const(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            syn::Item::Static(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Type(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Union(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            syn::Item::Impl(item) => (&item.attrs, None),
            syn::Item::Mod(item) => (&item.attrs, None),
            syn::Item::Use(item) => (&item.attrs, None),
            _ => return visit::visit_item(self, item),
        };
        if is_left_out(attributes) {
            return;
        }
        if let Some(name) = name {
            self.name(name, Meaning::Item);
        }
        match item {
            syn::Item::Mod(item) => self.child(item),
            syn::Item::Use(item) if item.leading_colon.is_some() => {}
            syn::Item::Use(item) => {
                self.import(&item.tree, &[], matches!(item.vis, syn::Visibility::Inherited));
            }
            syn::Item::Macro(item) => {
                self.own().macros.extend(name.map(syn::Ident::to_string));
                self.visit_macro(&item.mac);
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(of)) = (&item.trait_, &*item.self_ty) {
            let path = of.path.segments.iter().map(|part| part.ident.to_string()).collect();
            let names = item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(item) if !is_left_out(&item.attrs) => Some(item.sig.ident.to_string()),
                _ => None,
            });
            self.own().methods.push((path, names.collect()));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if matches!(&*call.receiver, syn::Expr::Path(of) if of.path.is_ident("self")) {
            self.own().calls.push((call.method.to_string(), call.method.span().start().line));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Const(item) => &item.attrs,
            syn::ImplItem::Fn(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !is_left_out(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_left_out(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_left_out(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names: Names = path.segments.iter().map(|part| part.ident.to_string()).collect();
            let line = path.segments.last().unwrap().ident.span().start().line;
            match names.as_slice() {
                [of, name] if of == "Self" => self.own().calls.push((name.clone(), line)),
                _ => self.own().uses.push((names, line)),
            }
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        visit::visit_macro(self, called);
        self.tokens(called.tokens.clone());
    }
}
