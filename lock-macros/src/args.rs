//! The arguments as syntax: `name = expression`, separated by commas.
//!
//! Every name is accepted here, even an unknown one, so that all mistakes in one attribute can be
//! reported together. `validate` decides which names exist and which values they take.

use proc_macro2::Span;
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, ExprLit, Ident, Lit, Path, Token, parse_quote_spanned};

use crate::messages;

/// The list in `#[distributed_lock(…)]`.
pub(crate) struct Args {
    pub(crate) list: Vec<Arg>,
    /// Where to report a missing argument.
    pub(crate) span: Span,
}

/// One element of the list.
pub(crate) enum Arg {
    Named {
        name: Ident,
        value: Expr,
    },
    /// An expression without a name. Always a mistake.
    Bare(Expr),
}

impl Parse for Args {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let list = Punctuated::<Arg, Token![,]>::parse_terminated(input)?.into_iter().collect();
        Ok(Self { list, span: Span::call_site() })
    }
}

impl Parse for Arg {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        // `crate` is a keyword, and users may try other keywords.
        if input.peek(Ident::peek_any) {
            if input.peek2(Token![=]) && !input.peek2(Token![==]) {
                let name = Ident::parse_any(input)?;
                input.parse::<Token![=]>()?;
                return Ok(Self::Named { name, value: input.parse()? });
            }
            if input.peek2(Token![:]) && !input.peek2(Token![::]) {
                let name = Ident::parse_any(input)?;
                return Err(messages::colon_for_equals(input.span(), &name));
            }
        }
        Ok(Self::Bare(input.parse()?))
    }
}

/// The input of `key!`: a template, after `crate = path` if `lock_core` has another name.
pub(crate) struct KeyArgs {
    pub(crate) root: Path,
    pub(crate) template: Expr,
}

impl Parse for KeyArgs {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut root = default_root();
        if input.peek(Token![crate]) && input.peek2(Token![=]) {
            input.parse::<Token![crate]>()?;
            input.parse::<Token![=]>()?;
            root = input.call(Path::parse_mod_style)?;
            input.parse::<Token![,]>()?;
        }
        if input.is_empty() {
            return Err(messages::no_template(Span::call_site()));
        }
        let template = input.parse()?;
        input.parse::<Option<Token![,]>>()?;
        if !input.is_empty() {
            return Err(messages::more_than_a_template(input.span()));
        }
        Ok(Self { root, template })
    }
}

/// The path of `lock_core` without `crate = path`.
pub(crate) fn default_root() -> Path {
    parse_quote_spanned!(Span::mixed_site()=> ::lock_core)
}

/// `value` without the invisible groups of `macro_rules!`.
pub(crate) fn ungrouped(value: &Expr) -> &Expr {
    match value {
        Expr::Group(group) => ungrouped(&group.expr),
        _ => value,
    }
}

/// `value` as a literal.
pub(crate) fn literal(value: &Expr) -> Option<&Lit> {
    match ungrouped(value) {
        Expr::Lit(ExprLit { lit, .. }) => Some(lit),
        _ => None,
    }
}

/// The text of `value`, if it is a string literal.
pub(crate) fn quoted(value: &Expr) -> Option<String> {
    match literal(value) {
        Some(Lit::Str(text)) => Some(text.value()),
        _ => None,
    }
}

/// `value` as a single bare word.
pub(crate) fn word(value: &Expr) -> Option<&Ident> {
    match ungrouped(value) {
        Expr::Path(path) if path.qself.is_none() => path.path.get_ident(),
        _ => None,
    }
}

/// Whether `value` is the bare word `expected`.
pub(crate) fn is_word(value: &Expr, expected: &str) -> bool {
    word(value).is_some_and(|word| word == expected)
}
