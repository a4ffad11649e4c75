//! The annotated function: its signature parsed, its body kept as the tokens that it is.
//!
//! A body that is half typed, or uses syntax that `syn` does not know yet, must not make the lock
//! disappear, and its errors belong to the compiler.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::{Attribute, Block, Expr, GenericArgument, PathArguments, Signature, Token, Type};
use syn::{TypeParamBound, Visibility, braced, token};

use crate::validate;

/// A function with a body.
#[derive(Clone)]
pub(crate) struct Function {
    /// The attributes that stand below ours.
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    pub(crate) brace: token::Brace,
    pub(crate) inner_attrs: Vec<Attribute>,
    pub(crate) statements: TokenStream,
}

/// How the function gets to run asynchronously.
pub(crate) enum Shape {
    /// `async fn`.
    Async,
    /// `fn` whose body is `Box::pin(async move { … })`, as `#[async_trait]` leaves it.
    Boxed(Box<Boxed>),
    /// Neither.
    Blocking,
}

/// The parts of `Box::pin(async move { … })`.
pub(crate) struct Boxed {
    /// `Box::pin`
    pub(crate) pin: Expr,
    pub(crate) paren: token::Paren,
    /// `async move`
    pub(crate) keywords: TokenStream,
    pub(crate) block: Block,
    /// `T` of `Pin<Box<dyn Future<Output = T>>>`.
    pub(crate) output: Type,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = Attribute::parse_outer(input)?;
        let start = input.span();
        let vis = input.parse()?;
        if !is_function(input) {
            return Err(validate::not_a_function(start));
        }
        let sig: Signature = input.parse()?;
        if input.peek(Token![;]) {
            return Err(validate::no_body(start));
        }
        let content;
        let brace = braced!(content in input);
        let inner_attrs = Attribute::parse_inner(&content)?;
        let statements = content.parse()?;
        Ok(Self { attrs, vis, sig, brace, inner_attrs, statements })
    }
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.attrs.iter().for_each(|attr| attr.to_tokens(tokens));
        self.vis.to_tokens(tokens);
        self.sig.to_tokens(tokens);
        self.brace.surround(tokens, |body| {
            self.inner_attrs.iter().for_each(|attr| attr.to_tokens(body));
            self.statements.to_tokens(body);
        });
    }
}

/// Whether a function's signature comes next.
fn is_function(input: ParseStream<'_>) -> bool {
    let ahead = input.fork();
    while ahead.peek(Token![const]) || ahead.peek(Token![async]) || ahead.peek(Token![unsafe]) {
        if ahead.parse::<proc_macro2::TokenTree>().is_err() {
            return false;
        }
    }
    if ahead.parse::<Option<syn::Abi>>().is_err() {
        return false;
    }
    ahead.peek(Token![fn])
}

impl Function {
    pub(crate) fn shape(&self) -> Shape {
        if self.sig.asyncness.is_some() {
            return Shape::Async;
        }
        match self.boxed() {
            Some(boxed) => Shape::Boxed(Box::new(boxed)),
            None => Shape::Blocking,
        }
    }

    fn boxed(&self) -> Option<Boxed> {
        let syn::ReturnType::Type(_, returned) = &self.sig.output else { return None };
        let output = boxed_output(returned)?.clone();
        let Expr::Call(call) = Expr::parse.parse2(self.statements.clone()).ok()? else {
            return None;
        };
        let Expr::Path(pin) = &*call.func else { return None };
        let names: Vec<_> = pin.path.segments.iter().map(|segment| &segment.ident).collect();
        if !matches!(names[..], [.., first, last] if first == "Box" && last == "pin") {
            return None;
        }
        let mut arguments = call.args.into_iter();
        let (Some(Expr::Async(body)), None) = (arguments.next(), arguments.next()) else {
            return None;
        };
        // Without `move` the block borrows the function's arguments, and cannot have left it.
        let (keyword, capture) = (body.async_token, body.capture?);
        let mut keywords = keyword.into_token_stream();
        capture.to_tokens(&mut keywords);
        Some(Boxed {
            pin: *call.func,
            paren: call.paren_token,
            keywords,
            block: body.block,
            output,
        })
    }
}

/// `T` of `Pin<Box<dyn Future<Output = T> + …>>`.
fn boxed_output(ty: &Type) -> Option<&Type> {
    let Type::TraitObject(object) = argument(argument(ty, "Pin")?, "Box")? else { return None };
    future_output(&object.bounds)
}

/// The `Output` that the `Future` among `bounds` is bound to.
fn future_output<'a>(bounds: impl IntoIterator<Item = &'a TypeParamBound>) -> Option<&'a Type> {
    bounds.into_iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else { return None };
        let segment = bound.path.segments.last().filter(|segment| segment.ident == "Future")?;
        let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
        arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(assoc) if assoc.ident == "Output" => Some(&assoc.ty),
            _ => None,
        })
    })
}

/// `A` of `name<A>`.
fn argument<'a>(ty: &'a Type, name: &str) -> Option<&'a Type> {
    let Type::Path(path) = ungrouped(ty) else { return None };
    let segment = path.path.segments.last().filter(|segment| segment.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ungrouped(ty)),
        _ => None,
    })
}

/// Whether a function that returns `ty` returns a future, as far as its spelling tells.
pub(crate) fn is_future(ty: &Type) -> bool {
    let named = |bounds: &syn::punctuated::Punctuated<TypeParamBound, Token![+]>| {
        bounds.iter().any(|bound| match bound {
            TypeParamBound::Trait(bound) => {
                bound.path.segments.last().is_some_and(|segment| segment.ident == "Future")
            }
            _ => false,
        })
    };
    match ungrouped(ty) {
        Type::ImplTrait(ty) => named(&ty.bounds),
        Type::TraitObject(ty) => named(&ty.bounds),
        Type::Path(path) => path.path.segments.last().is_some_and(|segment| {
            segment.ident == "BoxFuture"
                || segment.ident == "LocalBoxFuture"
                || ["Pin", "Box"].iter().any(|name| argument(ty, name).is_some_and(is_future))
        }),
        _ => false,
    }
}

/// `ty` without the invisible groups of `macro_rules!` and without parentheses.
pub(crate) fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungrouped(&group.elem),
        Type::Paren(paren) => ungrouped(&paren.elem),
        _ => ty,
    }
}
