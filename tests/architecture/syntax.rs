//! What the import graph reads off syntax: the leaves of a `use` declaration, the name and the
//! attributes of an item, and paths in tokens.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Attribute, Item, UseTree};

pub(crate) fn is_punct(tree: &TokenTree, punct: char) -> bool {
    matches!(tree, TokenTree::Punct(found) if found.as_char() == punct)
}

pub(crate) fn is_colons(trees: &[TokenTree]) -> bool {
    trees.len() >= 2 && is_punct(&trees[0], ':') && is_punct(&trees[1], ':')
}

/// The path `a::b::c` that begins at `at`, and where it ends.
pub(crate) fn path_at(trees: &[TokenTree], mut at: usize) -> (Vec<String>, usize) {
    let mut path = vec![trees[at].to_string()];
    at += 1;
    while is_colons(&trees[at.min(trees.len())..])
        && let Some(TokenTree::Ident(ident)) = trees.get(at + 2)
    {
        path.push(ident.to_string());
        at += 3;
    }
    (path, at)
}

/// `(name, path)` of each leaf of a `use` tree; a glob has no name.
pub(crate) fn flatten(
    tree: &UseTree,
    prefix: &mut Vec<String>,
    leaves: &mut Vec<(Option<String>, Vec<String>)>,
) {
    let mut leaf = |name: Option<String>, last: Option<String>| {
        // `use a::{self}` names `a`.
        let path: Vec<_> =
            prefix.iter().cloned().chain(last.filter(|last| last != "self")).collect();
        let name =
            name.map(|name| if name == "self" { path.last().cloned().unwrap() } else { name });
        leaves.push((name, path));
    };
    match tree {
        UseTree::Name(name) => leaf(Some(name.ident.to_string()), Some(name.ident.to_string())),
        UseTree::Rename(name) => leaf(Some(name.rename.to_string()), Some(name.ident.to_string())),
        UseTree::Glob(_) => leaf(None, None),
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, leaves);
            prefix.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, prefix, leaves);
            }
        }
    }
}

pub(crate) fn named(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        _ => &[],
    }
}

/// `pin_project! { struct Name { .. } }` defines `Name`.
pub(crate) fn defined_in_macro(tokens: &TokenStream, items: &mut BTreeSet<String>) {
    let mut after_keyword = false;
    for tree in tokens.clone() {
        match tree {
            TokenTree::Group(group) => defined_in_macro(&group.stream(), items),
            TokenTree::Ident(ident) => {
                let text = ident.to_string();
                if after_keyword {
                    items.insert(text.clone());
                }
                let keywords = ["struct", "enum", "fn", "trait", "type", "const", "static"];
                after_keyword = keywords.contains(&text.as_str());
            }
            _ => after_keyword = false,
        }
    }
}

/// Whether one of the attributes is `#[test]` or a `cfg` that only tests satisfy.
pub(crate) fn is_test(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| needs_test(attr.meta.to_token_stream()))
}

pub(crate) fn is_test_attribute(trees: &[TokenTree]) -> bool {
    let [hash, TokenTree::Group(group), ..] = trees else { return false };
    is_punct(hash, '#') && group.delimiter() == Delimiter::Bracket && needs_test(group.stream())
}

fn needs_test(attribute: TokenStream) -> bool {
    fn mentions(tokens: TokenStream) -> bool {
        let mut negated = false;
        tokens.into_iter().any(|tree| match tree {
            TokenTree::Ident(ident) => {
                negated = ident == "not" || ident == "any";
                ident == "test"
            }
            TokenTree::Group(group) => !negated && mentions(group.stream()),
            _ => false,
        })
    }
    let mut trees = attribute.into_iter();
    match trees.next() {
        Some(TokenTree::Ident(ident)) if ident == "cfg" => mentions(trees.collect()),
        Some(TokenTree::Ident(ident)) => ident == "test" && trees.next().is_none(),
        _ => false,
    }
}

/// Where the item, field or arm that begins at `at` is over.
pub(crate) fn end_of_item(trees: &[TokenTree], at: usize) -> usize {
    let ends = |tree: &TokenTree| match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        tree => is_punct(tree, ';') || is_punct(tree, ','),
    };
    let rest = trees.get(at..).unwrap_or_default();
    rest.iter().position(ends).map_or(trees.len(), |end| at + end + 1)
}

pub(crate) fn path_attribute(attr: &Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attr.meta else { return None };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else {
        return None;
    };
    pair.path.is_ident("path").then(|| text.value())
}
