//! The import graph of a crate: which file names items of which other file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Attribute, Item, ItemUse, Visibility};

use crate::syntax::{
    attributes, defined_in_macro, end_of_item, flatten, is_colons, is_punct, is_test,
    is_test_attribute, named, path_at, path_attribute,
};

/// From a file to the files whose items it names, each with one of the paths that name them.
pub(crate) type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Reads a source file; tests supply sources from memory.
pub(crate) type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

#[derive(Default)]
pub(crate) struct Module {
    file: PathBuf,
    /// The items themselves, but for modules and tests.
    pub(crate) syntax: Vec<Item>,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// Names that `use` brings in, with their paths.
    imports: Vec<(String, Vec<String>)>,
    globs: Vec<Vec<String>>,
    /// Paths that the code of this module names.
    paths: BTreeSet<Vec<String>>,
    /// Re-exports: they count only if the code mentions their name.
    exports: Vec<(String, Vec<String>)>,
    idents: BTreeSet<String>,
}

pub(crate) struct Krate<'a> {
    read: Read<'a>,
    pub(crate) modules: Vec<Module>,
}

/// What a path means: an item of a module of the crate, or something else.
#[derive(Debug)]
pub(crate) enum Meaning {
    Item(usize, String),
    Module,
    Foreign(Vec<String>),
}

/// Adds the arrows of the crate whose root is `root` to `graph`.
pub(crate) fn add_crate(
    graph: &mut Graph,
    root: &Path,
    read: Read<'_>,
    shown: fn(&Path) -> String,
) {
    let krate = Krate::read(root, read);
    for index in 0..krate.modules.len() {
        let module = &krate.modules[index];
        let from = shown(&module.file);
        graph.entry(from.clone()).or_default();
        let exports = module.exports.iter().filter(|(name, _)| module.idents.contains(name));
        for path in module.paths.iter().chain(exports.map(|(_, path)| path)) {
            let Some(file) = krate.definition(index, path, &mut BTreeSet::new()) else { continue };
            let to = shown(&krate.modules[file].file);
            if to != from {
                let arrows = graph.entry(from.clone()).or_default();
                arrows.entry(to).or_insert_with(|| path.join("::"));
            }
        }
    }
}

impl<'a> Krate<'a> {
    /// The crate whose root is `root`.
    pub(crate) fn read(root: &Path, read: Read<'a>) -> Self {
        let mut krate = Self { read, modules: Vec::new() };
        let folder = root.parent().map(Path::to_path_buf).unwrap_or_default();
        krate.load(root, &folder, None);
        krate
    }

    /// The module and the name that `path` means in `module`, or the path in another crate.
    pub(crate) fn meaning(&self, module: usize, path: &[String]) -> Meaning {
        let mut path = path.to_vec();
        // A chain of imports that names itself would have no end.
        for _ in 0..20 {
            let (mut at, mut rest) = (module, path.as_slice());
            let mut inside = false;
            while let Some((first, more)) = rest.split_first() {
                at = match first.as_str() {
                    "crate" => 0,
                    "self" => at,
                    "super" => self.modules[at].parent.unwrap_or(0),
                    name => match self.modules[at].children.get(name) {
                        Some(child) if !more.is_empty() => *child,
                        _ => break,
                    },
                };
                inside = true;
                rest = more;
            }
            let Some((first, more)) = rest.split_first() else { return Meaning::Module };
            let scope = &self.modules[at];
            if scope.items.contains(first) {
                return Meaning::Item(at, first.clone());
            }
            let Some((_, import)) = scope.imports.iter().find(|(name, _)| name == first) else {
                return if inside { Meaning::Module } else { Meaning::Foreign(rest.to_vec()) };
            };
            let whole: Vec<_> = import.iter().chain(more).cloned().collect();
            if at != module {
                return self.meaning(at, &whole);
            }
            if whole == path {
                return Meaning::Foreign(whole);
            }
            path = whole;
        }
        Meaning::Module
    }

    fn load(&mut self, file: &Path, folder: &Path, parent: Option<usize>) -> usize {
        let source = (self.read)(file).unwrap_or_else(|| panic!("cannot read {}", file.display()));
        let syntax = syn::parse_file(&source)
            .unwrap_or_else(|error| panic!("cannot parse {}: {error}", file.display()));
        self.module(file, folder, parent, &syntax.items)
    }

    /// `folder` is where files of child modules are.
    fn module(
        &mut self,
        file: &Path,
        folder: &Path,
        parent: Option<usize>,
        items: &[Item],
    ) -> usize {
        let index = self.modules.len();
        self.modules.push(Module { file: file.to_path_buf(), parent, ..Module::default() });
        for item in items {
            self.item(index, file, folder, item);
        }
        index
    }

    fn item(&mut self, index: usize, file: &Path, folder: &Path, item: &Item) {
        if let Item::Mod(module) = item {
            if is_test(&module.attrs) {
                return;
            }
            let name = module.ident.to_string();
            let child = if let Some((_, items)) = &module.content {
                self.module(file, &folder.join(&name), Some(index), items)
            } else {
                let (file, folder) = self.child_file(file, folder, &name, &module.attrs);
                self.load(&file, &folder, Some(index))
            };
            self.modules[index].children.insert(name, child);
            return;
        }
        let module = &mut self.modules[index];
        if let Item::Use(declaration) = item {
            if !is_test(&declaration.attrs) {
                module.import(declaration);
                module.syntax.push(item.clone());
            }
            return;
        }
        if !is_test(attributes(item)) {
            module.syntax.push(item.clone());
        }
        let tokens = item.to_token_stream();
        if let Some(name) = named(item) {
            module.items.insert(name);
        } else if matches!(item, Item::Macro(_)) {
            defined_in_macro(&tokens, &mut module.items);
        }
        module.code(tokens);
    }

    /// The file of `mod name;`, and the folder of its own children.
    fn child_file(
        &self,
        file: &Path,
        folder: &Path,
        name: &str,
        attrs: &[Attribute],
    ) -> (PathBuf, PathBuf) {
        if let Some(path) = attrs.iter().find_map(path_attribute) {
            let child = normal(&file.parent().unwrap().join(path));
            let folder = child.parent().unwrap().to_path_buf();
            return (child, folder);
        }
        let own = folder.join(name);
        let nested = own.join("mod.rs");
        let child = folder.join(format!("{name}.rs"));
        if (self.read)(&nested).is_some() { (nested, own) } else { (child, own) }
    }

    /// The module whose file defines what `path` names in the scope of `module`, if it is an item
    /// of this crate. A path that ends at a module has no definition.
    fn definition(
        &self,
        module: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, Vec<String>)>,
    ) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => 0,
            "self" => module,
            "super" => self.modules[module].parent?,
            _ => return self.named(module, path, seen),
        };
        if rest.is_empty() { None } else { self.inside(start, rest, seen) }
    }

    /// The same for a path that was found to go on inside `module`.
    fn inside(
        &self,
        module: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, Vec<String>)>,
    ) -> Option<usize> {
        if path.first().is_some_and(|name| name == "super" || name == "self") {
            return self.definition(module, path, seen);
        }
        // A name that only a macro makes (`#[macro_export]`, generated items) is taken to be here.
        self.named(module, path, seen).or_else(|| {
            let is_module = self.modules[module].children.contains_key(&path[0]);
            (!is_module && !self.imports(module, &path[0])).then_some(module)
        })
    }

    fn imports(&self, module: usize, name: &str) -> bool {
        let module = &self.modules[module];
        module.imports.iter().any(|(import, _)| import == name)
    }

    fn named(
        &self,
        module: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, Vec<String>)>,
    ) -> Option<usize> {
        // Modules that import each other's names by globs, or a crate of the name of its item.
        if path.len() > 20 || !seen.insert((module, path.to_vec())) {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let scope = &self.modules[module];
        if !rest.is_empty()
            && let Some(child) = scope.children.get(first)
        {
            return self.inside(*child, rest, seen);
        }
        if scope.items.contains(first) {
            return Some(module);
        }
        if scope.children.contains_key(first) {
            return None;
        }
        for (_, import) in scope.imports.iter().filter(|(name, _)| name == first) {
            let whole: Vec<_> = import.iter().chain(rest).cloned().collect();
            if let Some(found) = self.definition(module, &whole, seen) {
                return Some(found);
            }
        }
        for glob in &scope.globs {
            let target = self.target_of_glob(module, glob, seen);
            let found = target.and_then(|target| self.named(target, path, seen));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The module that `use path::*` names.
    fn target_of_glob(
        &self,
        module: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, Vec<String>)>,
    ) -> Option<usize> {
        let mut at = module;
        for (position, segment) in path.iter().enumerate() {
            at = match segment.as_str() {
                "crate" => 0,
                "self" => at,
                "super" => self.modules[at].parent?,
                name => match self.modules[at].children.get(name) {
                    Some(child) => *child,
                    // Variants of an enumeration, or another crate.
                    None if position == 0 => return None,
                    None => return self.named(at, &path[position..], seen).and(None),
                },
            };
        }
        Some(at)
    }
}

impl Module {
    fn import(&mut self, declaration: &ItemUse) {
        if declaration.leading_colon.is_some() {
            return;
        }
        let exported = !matches!(declaration.vis, Visibility::Inherited);
        let mut leaves = Vec::new();
        flatten(&declaration.tree, &mut Vec::new(), &mut leaves);
        for (name, path) in leaves {
            let Some(name) = name else {
                self.globs.push(path);
                continue;
            };
            self.imports.push((name.clone(), path.clone()));
            if exported {
                self.exports.push((name, path));
            } else {
                self.paths.insert(path);
            }
        }
    }

    /// Collects the paths and the `use` declarations inside an item.
    fn code(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < trees.len() {
            if is_test_attribute(&trees[at..]) {
                at = end_of_item(&trees, at + 2);
                continue;
            }
            match &trees[at] {
                TokenTree::Group(group) => self.code(group.stream()),
                TokenTree::Ident(ident) if ident == "use" => {
                    let end = trees[at..].iter().position(|tree| is_punct(tree, ';'));
                    let tokens = end.map(|end| trees[at..=at + end].iter().cloned().collect());
                    if let Some(Ok(declaration)) = tokens.map(syn::parse2::<ItemUse>) {
                        self.import(&declaration);
                        at += end.unwrap_or(0);
                    }
                }
                TokenTree::Ident(_) => {
                    let (path, next) = path_at(&trees, at);
                    let follows_colons = at >= 2 && is_colons(&trees[at - 2..]);
                    if !follows_colons {
                        self.idents.insert(path[0].clone());
                        if path.len() > 1 {
                            self.paths.insert(path);
                        }
                    }
                    at = next;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// The paths and names in `tokens`.
pub(crate) fn paths_in(tokens: TokenStream) -> BTreeSet<Vec<String>> {
    let mut module = Module::default();
    module.code(tokens);
    module.idents.into_iter().map(|ident| vec![ident]).chain(module.paths).collect()
}

/// Without `..` components.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        if part.as_os_str() == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts
}

/// The graph of a crate whose root is `lib.rs`, from sources in memory.
#[cfg(test)]
pub(crate) fn graph_of(sources: &[(&str, &str)]) -> Graph {
    let read = |path: &Path| {
        let found = sources.iter().find(|(name, _)| Path::new(name) == path);
        found.map(|(_, source)| (*source).to_owned())
    };
    let mut graph = Graph::new();
    add_crate(&mut graph, Path::new("lib.rs"), &read, |path| path.to_str().unwrap().to_owned());
    graph
}

#[cfg(test)]
mod tests {
    use super::graph_of;

    fn arrows(sources: &[(&str, &str)]) -> Vec<String> {
        let graph = graph_of(sources);
        let arrows =
            graph.iter().flat_map(|(from, to)| to.keys().map(move |to| format!("{from} -> {to}")));
        arrows.collect()
    }

    #[test]
    fn imports_paths_and_macro_calls_are_arrows() {
        for code in [
            "use crate::b::B;",
            "use super::b::{self, B as Other};",
            "fn f() -> crate::b::B { loop {} }",
            "use crate::b; fn f() { b::make() }",
            "fn f() { use crate::b::make; make() }",
            "fn f() { println!(\"{}\", super::b::make()) }",
            "macro_rules! m { () => { $crate::b::make() } }",
            "use crate::*; fn f() { b::make() }",
        ] {
            let lib = "mod a; mod b;";
            let b = "pub struct B; pub fn make() {}";
            let found = arrows(&[("lib.rs", lib), ("a.rs", code), ("b.rs", b)]);
            assert_eq!(found, ["a.rs -> b.rs"], "{code}");
        }
    }

    #[test]
    fn a_path_ends_at_the_file_that_defines_the_item() {
        let found = arrows(&[
            ("lib.rs", "mod a; mod store; pub use self::store::*;"),
            ("a.rs", "use crate::Claim; use crate::store::Store;"),
            ("store/mod.rs", "mod request; pub use self::request::Claim; pub trait Store {}"),
            ("store/request.rs", "pin_project! { pub struct Claim { x: u8 } }"),
        ]);
        assert_eq!(found, ["a.rs -> store/mod.rs", "a.rs -> store/request.rs"]);
    }

    #[test]
    fn declarations_signposts_modules_and_tests_are_no_arrows() {
        let found = arrows(&[
            ("lib.rs", "mod a; mod b; pub use self::b::B;"),
            (
                "a.rs",
                "use crate::b; use std::fmt::Debug; #[cfg(all(test, x))] use crate::b::B; \
                 #[cfg(test)] mod tests { use crate::b::B; } \
                 impl A { #[cfg(test)] fn f() { crate::b::make() } } \
                 #[test] fn t() { crate::b::make() } struct A;",
            ),
            ("b.rs", "pub struct B; pub fn make() {}"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_re_export_that_the_file_itself_uses_is_an_arrow() {
        let found = arrows(&[
            ("lib.rs", "mod b; pub use self::b::B; fn f() -> B { loop {} }"),
            ("b.rs", "pub struct B;"),
        ]);
        assert_eq!(found, ["lib.rs -> b.rs"]);
    }
}
