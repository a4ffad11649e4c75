//! The function's parameters: which names they bind, and how the expansion takes them over.
//!
//! Everything the caller passed must be dropped before the lock is released. What the body mentions
//! moves into it; the rest (`_tx`, `_`, what a pattern leaves out) would live until the function ends.
//! So each parameter is bound a second time, in a scope that ends before the release. The new binding
//! carries the tokens of the old one, so that the compiler's lints about it are what they were.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote_spanned};
use syn::{Attribute, FnArg, Pat, PatType, ReceiverKind, Signature, Type};

/// A name that the signature binds.
pub(crate) struct Binding {
    pub(crate) ident: Ident,
    mutability: Option<syn::Token![mut]>,
}

/// The names that `sig` binds, `self` first if there is one.
pub(crate) fn names(sig: &Signature) -> Vec<Ident> {
    let mut names = Vec::new();
    for input in &sig.inputs {
        match input {
            FnArg::Receiver(receiver) => names.push(Ident::new("self", receiver.self_token.span)),
            FnArg::Typed(param) => {
                names.extend(bindings(&param.pat).into_iter().map(|binding| binding.ident));
            }
        }
    }
    names
}

/// Whether the function owns its `self`.
pub(crate) fn owns_self(sig: &Signature) -> bool {
    sig.receiver().is_some_and(|receiver| match &receiver.kind {
        ReceiverKind::Value => true,
        ReceiverKind::Typed(_, ty) => !matches!(**ty, Type::Reference(_)),
        _ => false,
    })
}

/// Rewrites the parameters of `sig` and returns the statements that bind them again.
///
/// `read_by_others` says that another attribute, still to be expanded, may read the patterns
/// (`#[instrument(skip(db))]`): then they stay, and what they leave out is dropped late.
pub(crate) fn take_over(sig: &mut Signature, read_by_others: bool) -> TokenStream {
    let mut statements = TokenStream::new();
    for (index, input) in sig.inputs.iter_mut().enumerate() {
        if let FnArg::Typed(param) = input {
            statements.extend(take_over_one(param, index, read_by_others));
        }
    }
    statements
}

fn take_over_one(param: &mut PatType, index: usize, read_by_others: bool) -> TokenStream {
    let span = Span::mixed_site();
    let attrs = move_attributes(param);
    if matches!(*param.pat, Pat::Wild(_)) || (leaves_out(&param.pat) && !read_by_others) {
        let pattern = &param.pat;
        let whole = format_ident!("__lock_arg{index}", span = span);
        let destructure = match **pattern {
            Pat::Wild(_) => TokenStream::new(),
            _ => quote_spanned!(span=> #(#attrs)* let #pattern = #whole;),
        };
        let cfg = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
        let statements = quote_spanned!(span=> #(#cfg)* let #whole = #whole; #destructure);
        // In parentheses: `#[instrument]` records parameters that it finds by name, and would ask
        // for this one to be `Debug`.
        *param.pat = Pat::Verbatim(quote_spanned!(span=> (#whole)));
        return statements;
    }
    let bindings = bindings(&param.pat);
    strip_mut(&mut param.pat);
    bindings
        .iter()
        .map(|Binding { ident, mutability }| {
            // Lints about names with an underscore, which only we use.
            let allow = ident
                .to_string()
                .starts_with('_')
                .then(|| quote_spanned!(span=> #[allow(clippy::no_effect_underscore_binding, clippy::used_underscore_binding)]));
            quote_spanned!(span=> #(#attrs)* #allow let #mutability #ident = #ident;)
        })
        .collect()
}

/// Takes the lint attributes off `param`, and copies its `cfg`s.
fn move_attributes(param: &mut PatType) -> Vec<Attribute> {
    const LINTS: [&str; 5] = ["allow", "expect", "warn", "deny", "forbid"];
    let is_lint = |attr: &Attribute| LINTS.iter().any(|lint| attr.path().is_ident(lint));
    let moved = param
        .attrs
        .iter()
        .filter(|attr| is_lint(attr) || attr.path().is_ident("cfg"))
        .cloned()
        .collect();
    param.attrs.retain(|attr| !is_lint(attr));
    moved
}

/// The names that `pattern` binds.
fn bindings(pattern: &Pat) -> Vec<Binding> {
    let mut found: Vec<Binding> = Vec::new();
    visit(pattern, &mut |pattern| {
        if let Pat::Ident(pattern) = pattern
            && !found.iter().any(|binding| binding.ident == pattern.ident)
        {
            // `ref mut x` binds a reference, which is not itself mutable.
            let mutability = pattern.mutability.filter(|_| pattern.by_ref.is_none());
            found.push(Binding { ident: pattern.ident.clone(), mutability });
        }
    });
    found
}

/// Whether `pattern` leaves a part of its value unbound.
fn leaves_out(pattern: &Pat) -> bool {
    let mut found = false;
    visit(pattern, &mut |pattern| {
        found |= match pattern {
            Pat::Wild(_) | Pat::Rest(_) => true,
            Pat::Struct(pattern) => pattern.rest.is_some(),
            Pat::Ident(pattern) => pattern.by_ref.is_some(),
            _ => false,
        };
    });
    found
}

/// Calls `f` with `pattern` and all patterns in it.
fn visit(pattern: &Pat, f: &mut impl FnMut(&Pat)) {
    f(pattern);
    match pattern {
        Pat::Ident(pattern) => {
            if let Some((_, pattern)) = &pattern.subpat {
                visit(pattern, f);
            }
        }
        Pat::Or(pattern) => pattern.cases.iter().for_each(|pattern| visit(pattern, f)),
        Pat::Paren(pattern) => visit(&pattern.pat, f),
        Pat::Reference(pattern) => visit(&pattern.pat, f),
        Pat::Slice(pattern) => pattern.elems.iter().for_each(|pattern| visit(pattern, f)),
        Pat::Struct(pattern) => pattern.fields.iter().for_each(|field| visit(&field.pat, f)),
        Pat::Tuple(pattern) => pattern.elems.iter().for_each(|pattern| visit(pattern, f)),
        Pat::TupleStruct(pattern) => pattern.elems.iter().for_each(|pattern| visit(pattern, f)),
        Pat::Type(pattern) => visit(&pattern.pat, f),
        _ => {}
    }
}

/// Takes `mut` off every binding by value: the second binding has it.
fn strip_mut(pattern: &mut Pat) {
    match pattern {
        Pat::Ident(pattern) => {
            if pattern.by_ref.is_none() {
                pattern.mutability = None;
            }
            if let Some((_, pattern)) = &mut pattern.subpat {
                strip_mut(pattern);
            }
        }
        Pat::Or(pattern) => pattern.cases.iter_mut().for_each(strip_mut),
        Pat::Paren(pattern) => strip_mut(&mut pattern.pat),
        Pat::Reference(pattern) => strip_mut(&mut pattern.pat),
        Pat::Slice(pattern) => pattern.elems.iter_mut().for_each(strip_mut),
        Pat::Struct(pattern) => {
            pattern.fields.iter_mut().for_each(|field| strip_mut(&mut field.pat));
        }
        Pat::Tuple(pattern) => pattern.elems.iter_mut().for_each(strip_mut),
        Pat::TupleStruct(pattern) => pattern.elems.iter_mut().for_each(strip_mut),
        Pat::Type(pattern) => strip_mut(&mut pattern.pat),
        _ => {}
    }
}
