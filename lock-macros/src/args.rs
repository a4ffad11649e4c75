//! The attribute's arguments as syntax: `name = expression`, separated by commas.
//!
//! What a name means and which values it takes is for `validate`: here a name that nobody knows is
//! as good as any, so that all mistakes in one attribute are reported together.

use proc_macro2::Span;
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, Ident, Token};

use crate::validate;

/// The list in `#[distributed_lock(…)]`.
pub(crate) struct Args {
    pub(crate) list: Vec<Arg>,
    /// Where to point when something is missing.
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
        // `crate` is a keyword, and a user may try others.
        if input.peek(Ident::peek_any) {
            if input.peek2(Token![=]) && !input.peek2(Token![==]) {
                let name = Ident::parse_any(input)?;
                input.parse::<Token![=]>()?;
                return Ok(Self::Named { name, value: input.parse()? });
            }
            if input.peek2(Token![:]) && !input.peek2(Token![::]) {
                let name = Ident::parse_any(input)?;
                return Err(validate::colon_for_equals(input.span(), &name));
            }
        }
        Ok(Self::Bare(input.parse()?))
    }
}

/// The input of `key!`: a template, and `crate = path` before it where `lock_core` has another name.
pub(crate) struct KeyArgs {
    pub(crate) root: Option<syn::Path>,
    pub(crate) template: Expr,
}

impl Parse for KeyArgs {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut root = None;
        if input.peek(Token![crate]) && input.peek2(Token![=]) {
            input.parse::<Token![crate]>()?;
            input.parse::<Token![=]>()?;
            root = Some(input.call(syn::Path::parse_mod_style)?);
            input.parse::<Token![,]>()?;
        }
        if input.is_empty() {
            return Err(validate::no_template(Span::call_site()));
        }
        let template = input.parse()?;
        input.parse::<Option<Token![,]>>()?;
        if !input.is_empty() {
            return Err(validate::more_than_a_template(input.span()));
        }
        Ok(Self { root, template })
    }
}
