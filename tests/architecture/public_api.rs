//! The types of other crates in the public API are those of a list.
//!
//! If a crate whose types are in our signatures has a new major version, so must we.
//! The check reads the sources, so it needs no nightly compiler: it looks at what is `pub` (which
//! `unreachable_pub` keeps equal to what is public), follows imports and type aliases, and takes
//! every path into another crate. What only macros write is not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{Fields, ImplItem, Item, Type, Visibility};

use crate::graph::{Krate, Meaning, Read, paths_in};
use crate::sources::{list, targets};

/// What is published.
const PACKAGES: [&str; 3] = ["lock-core", "lock-macros", "lock-tower"];
/// Crates that come with Rust, and our own, which share a version.
const AT_HOME: [&str; 6] = ["std", "core", "alloc", "lock_core", "lock_macros", "proc_macro"];

struct Api<'a> {
    krate: &'a Krate<'a>,
    /// Names of the crates that the package depends on.
    crates: BTreeSet<String>,
    found: BTreeSet<String>,
}

/// The foreign types in the public API of the crate with this root.
fn foreign(root: &Path, read: Read<'_>, crates: BTreeSet<String>) -> BTreeSet<String> {
    let krate = Krate::read(root, read);
    let mut api = Api { krate: &krate, crates, found: BTreeSet::new() };
    for (index, module) in krate.modules.iter().enumerate() {
        for item in &module.syntax {
            api.item(index, item);
        }
    }
    api.found
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

impl Api<'_> {
    fn item(&mut self, module: usize, item: &Item) {
        match item {
            Item::Const(item) if is_public(&item.vis) => self.tokens(module, &item.ty),
            Item::Static(item) if is_public(&item.vis) => self.tokens(module, &item.ty),
            Item::Type(item) if is_public(&item.vis) => {
                self.tokens(module, &item.generics);
                self.tokens(module, &item.ty);
            }
            Item::Fn(item) if is_public(&item.vis) => self.tokens(module, &item.sig),
            Item::Enum(item) if is_public(&item.vis) => {
                self.tokens(module, &item.generics);
                for variant in &item.variants {
                    self.tokens(module, &variant.fields);
                }
            }
            Item::Struct(item) if is_public(&item.vis) => {
                self.tokens(module, &item.generics);
                self.tokens(module, &item.generics.where_clause);
                self.fields(module, &item.fields);
            }
            Item::Trait(item) if is_public(&item.vis) => {
                self.tokens(module, &item.generics);
                self.tokens(module, &item.supertraits);
                for item in &item.items {
                    if let syn::TraitItem::Fn(item) = item {
                        self.tokens(module, &item.sig);
                    } else {
                        self.tokens(module, item);
                    }
                }
            }
            Item::Use(item) if is_public(&item.vis) => self.tokens(module, &item.tree),
            Item::Impl(item) => self.implementation(module, item),
            // `pin_project!` and the like: what is inside are items.
            Item::Macro(item) if item.ident.is_none() => {
                match syn::parse2::<syn::File>(item.mac.tokens.clone()) {
                    Ok(file) => file.items.iter().for_each(|item| self.item(module, item)),
                    Err(_) => self.tokens(module, &item.mac.tokens),
                }
            }
            _ => {}
        }
    }

    fn fields(&mut self, module: usize, fields: &Fields) {
        for field in fields.iter().filter(|field| is_public(&field.vis)) {
            self.tokens(module, &field.ty);
        }
    }

    fn implementation(&mut self, module: usize, item: &syn::ItemImpl) {
        if !self.is_public_type(module, &item.self_ty) {
            return;
        }
        if let Some((path, _)) = &item.trait_ {
            if self.is_private(module, path) {
                return;
            }
            self.tokens(module, path);
        }
        self.tokens(module, &item.self_ty);
        self.tokens(module, &item.generics);
        self.tokens(module, &item.generics.where_clause);
        for inner in &item.items {
            match inner {
                ImplItem::Fn(inner) if is_public(&inner.vis) => self.tokens(module, &inner.sig),
                ImplItem::Const(inner) if is_public(&inner.vis) => self.tokens(module, &inner.ty),
                ImplItem::Type(inner) => self.tokens(module, &inner.ty),
                _ => {}
            }
        }
    }

    /// Whether users can name the type. A type of another crate or a parameter counts.
    fn is_public_type(&self, module: usize, ty: &Type) -> bool {
        match ty {
            Type::Path(path) => !self.is_private(module, &path.path),
            Type::Reference(reference) => self.is_public_type(module, &reference.elem),
            _ => true,
        }
    }

    /// Whether the path names an item of this crate that is not `pub`.
    fn is_private(&self, module: usize, path: &syn::Path) -> bool {
        let path: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        let Meaning::Item(module, name) = self.krate.meaning(module, &path) else { return false };
        let mut found = false;
        let mut public = false;
        let mut look = |ident: &syn::Ident, visibility: &Visibility| {
            if *ident == name {
                (found, public) = (true, is_public(visibility));
            }
        };
        for item in &self.krate.modules[module].syntax {
            match item {
                Item::Enum(item) => look(&item.ident, &item.vis),
                Item::Struct(item) => look(&item.ident, &item.vis),
                Item::Trait(item) => look(&item.ident, &item.vis),
                Item::Type(item) => look(&item.ident, &item.vis),
                _ => {}
            }
        }
        found && !public
    }

    fn tokens(&mut self, module: usize, tokens: &impl ToTokens) {
        self.stream(module, tokens.to_token_stream(), 0);
    }

    fn stream(&mut self, module: usize, tokens: TokenStream, depth: usize) {
        for path in paths_in(tokens) {
            match self.krate.meaning(module, &path) {
                Meaning::Foreign(path) => {
                    let krate = &path[0];
                    let elsewhere = !AT_HOME.contains(&krate.as_str());
                    if path.len() > 1 && elsewhere && self.crates.contains(krate) {
                        self.found.insert(path.join("::"));
                    }
                }
                // What a private alias hides is public where it is used.
                Meaning::Item(home, name) if depth < 10 => {
                    for item in &self.krate.modules[home].syntax {
                        if let Item::Type(alias) = item
                            && alias.ident == name
                        {
                            self.stream(home, alias.ty.to_token_stream(), depth + 1);
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

#[test]
fn the_public_api_has_the_foreign_types_of_the_list() {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for target in targets() {
        if target.is_library && PACKAGES.contains(&target.package.as_str()) {
            let read = |path: &Path| std::fs::read_to_string(path).ok();
            let types = foreign(&target.root, &read, target.dependencies);
            found.insert(target.package, types);
        }
    }
    assert_eq!(found.len(), PACKAGES.len());
    // `package crate::Type` per line.
    let list = list("foreign.txt");
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let listed: BTreeSet<String> = lines.map(str::to_owned).collect();
    let found: BTreeSet<String> = found
        .iter()
        .flat_map(|(package, types)| types.iter().map(move |path| format!("{package} {path}")))
        .collect();
    let new: Vec<_> = found.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(new.is_empty(), "new foreign types in the public API: {new:#?}");
    assert!(gone.is_empty(), "foreign.txt lists what is not in the public API: {gone:#?}");
}

#[test]
fn a_foreign_type_is_found_wherever_it_enters_the_public_api() {
    let public = [
        "pub fn f(c: redis::Client) {}",
        "use redis::Client; pub fn f() -> Option<Box<Client>> { None }",
        "use redis::Client as C; pub struct A; impl A { pub async fn f(&self, c: &C) {} }",
        "use redis as db; pub fn f() -> db::RedisResult<()> { loop {} }",
        "pub struct A; impl From<redis::RedisError> for A { }",
        "pub struct A { pub c: redis::Client }",
        "pub enum A { B(redis::Client) }",
        "pub trait A { fn f(&self) -> impl redis::ConnectionLike; }",
        "pub trait A: redis::ConnectionLike {}",
        "pub struct A; impl redis::ConnectionLike for A {}",
        "pub struct A; impl Iterator for A { type Item = redis::Client; }",
        "pub fn f<C>(c: C) where C: redis::ConnectionLike {}",
        "type C = redis::Client; pub fn f(c: C) {}",
        "pub type C = redis::Client;",
        "pub use redis::Client;",
        "mod a { pub(crate) use redis::Client; } pub fn f(c: a::Client) {}",
        "pin_project! { pub struct A { pub c: redis::Client } }",
    ];
    let private = [
        "fn f(c: redis::Client) {}",
        "pub(crate) fn f(c: redis::Client) {}",
        "use redis::Client; pub fn f() { Client::new() }",
        "struct A; impl From<redis::RedisError> for A {}",
        "pub struct A { c: redis::Client }",
        "pub struct A; impl A { fn f(&self, c: &redis::Client) {} }",
        "pub fn f(c: std::time::Duration) {}",
        "mod redis { pub struct Client; } pub fn f(c: redis::Client) {}",
        "#[cfg(test)] pub fn f(c: redis::Client) {}",
    ];
    let find = |source: &str| {
        let read = |path: &Path| (path == Path::new("lib.rs")).then(|| source.to_owned());
        foreign(Path::new("lib.rs"), &read, BTreeSet::from(["redis".to_owned()]))
    };
    for source in public {
        assert_eq!(find(source).len(), 1, "{source}: {:?}", find(source));
    }
    for source in private {
        assert!(find(source).is_empty(), "{source}: {:?}", find(source));
    }
}
