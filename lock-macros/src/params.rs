//! The function's parameters: the names that they bind, and how the expansion takes them over.
//!
//! Everything that the caller passed must be dropped before the lock is released. Arguments that
//! the body mentions move into it. The others (`_tx`, `_`, the parts that a pattern leaves out)
//! would live until the function ends. So each parameter is bound a second time, in a scope that
//! ends before the release. The new binding reuses the tokens of the old one, so that the
//! compiler's lints stay the same.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote_spanned};
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, FnArg, Pat, PatType, ReceiverKind, Signature, Token, Type};

/// The names that `sig` binds, `self` first if there is one.
pub(crate) fn names(sig: &Signature) -> Vec<Ident> {
    let mut names = Vec::new();
    for input in &sig.inputs {
        match input {
            FnArg::Receiver(receiver) => names.push(Ident::new("self", receiver.self_token.span)),
            FnArg::Typed(param) => {
                names.extend(bindings(&param.pat).into_iter().map(|(_, name)| name));
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
/// With `read_by_others`, an attribute that is expanded later may read the patterns
/// (`#[instrument(skip(db))]`). They then stay, and the parts that they leave out are dropped late.
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
        // In parentheses, because `#[instrument]` records parameters with a plain name and would
        // require this one to be `Debug`.
        *param.pat = Pat::Verbatim(quote_spanned!(span=> (#whole)));
        return statements;
    }
    let bindings = bindings(&param.pat);
    strip_mut(&mut param.pat);
    bindings
        .iter()
        .map(|(mutability, name)| {
            // Only the generated code uses a name with an underscore, which lints report.
            let allow = name.to_string().starts_with('_').then(|| {
                quote_spanned! {span=>
                    #[allow(clippy::no_effect_underscore_binding, clippy::used_underscore_binding)]
                }
            });
            quote_spanned!(span=> #(#attrs)* #allow let #mutability #name = #name;)
        })
        .collect()
}

/// Removes the lint attributes of `param` and returns them with copies of its `cfg`s.
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
fn bindings(pattern: &Pat) -> Vec<(Option<Token![mut]>, Ident)> {
    let mut found: Vec<(_, Ident)> = Vec::new();
    visit(&mut pattern.clone(), |pattern| {
        if let Pat::Ident(pattern) = pattern
            && !found.iter().any(|(_, name)| *name == pattern.ident)
        {
            // `ref mut x` binds a reference, which is not itself mutable.
            let mutability = pattern.mutability.filter(|_| pattern.by_ref.is_none());
            found.push((mutability, pattern.ident.clone()));
        }
    });
    found
}

/// Whether `pattern` leaves a part of its value unbound.
fn leaves_out(pattern: &Pat) -> bool {
    let mut found = false;
    visit(&mut pattern.clone(), |pattern| {
        found |= match pattern {
            Pat::Wild(_) | Pat::Rest(_) => true,
            Pat::Struct(pattern) => pattern.rest.is_some(),
            Pat::Ident(pattern) => pattern.by_ref.is_some(),
            _ => false,
        };
    });
    found
}

/// Removes `mut` from every binding by value. The second binding has it instead.
fn strip_mut(pattern: &mut Pat) {
    visit(pattern, |pattern| {
        if let Pat::Ident(pattern) = pattern
            && pattern.by_ref.is_none()
        {
            pattern.mutability = None;
        }
    });
}

/// Calls `f` with `pattern` and all patterns in it.
fn visit(pattern: &mut Pat, f: impl FnMut(&mut Pat)) {
    struct Each<F>(F);
    impl<F: FnMut(&mut Pat)> VisitMut for Each<F> {
        fn visit_pat_mut(&mut self, pattern: &mut Pat) {
            (self.0)(pattern);
            visit_mut::visit_pat_mut(self, pattern);
        }
    }
    Each(f).visit_pat_mut(pattern);
}
