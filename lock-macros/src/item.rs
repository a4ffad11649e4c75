//! The annotated function: its signature is parsed, its body is kept as tokens.
//!
//! The body may be half typed, or use syntax that `syn` does not know yet. Such a function must not
//! lose its lock, and the compiler reports the errors in the body.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Block, Expr, GenericArgument, Path, PathArguments, PathSegment};
use syn::{ReturnType, Signature, Token, Type, TypeParamBound, Visibility, braced, token};

use crate::messages;

/// A function with a body.
#[derive(Clone)]
pub(crate) struct Function {
    /// The attributes below `#[distributed_lock]`.
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    pub(crate) brace: token::Brace,
    pub(crate) inner_attrs: Vec<Attribute>,
    pub(crate) statements: TokenStream,
}

/// The parts of a body `Box::pin(async move { … })`, which `#[async_trait]` generates.
pub(crate) struct Boxed {
    /// `Box::pin`
    pub(crate) pin: Expr,
    pub(crate) paren: token::Paren,
    /// `async move`
    pub(crate) keywords: TokenStream,
    pub(crate) block: Block,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = Attribute::parse_outer(input)?;
        let start = input.span();
        let vis = input.parse()?;
        if !is_function(input) {
            return Err(messages::not_a_function(start));
        }
        let sig: Signature = input.parse()?;
        if input.peek(Token![;]) {
            return Err(messages::no_body(start));
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

/// Whether the next tokens start a function's signature.
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
    /// The parts of the body and the future's output, if the body is a boxed `async move` block.
    pub(crate) fn boxed(&self) -> Option<(Boxed, Type)> {
        let ReturnType::Type(_, returned) = &self.sig.output else { return None };
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
        // Without `move` the block borrows the arguments and could not be returned.
        let (keyword, capture) = (body.async_token, body.capture?);
        let mut keywords = keyword.into_token_stream();
        capture.to_tokens(&mut keywords);
        let boxed = Boxed { pin: *call.func, paren: call.paren_token, keywords, block: body.block };
        Some((boxed, output))
    }
}

/// Whether `attr` is `#[distributed_lock]`.
pub(crate) fn is_distributed_lock(attr: &Attribute) -> bool {
    last(attr.path(), "distributed_lock").is_some()
}

/// `T` of `Pin<Box<dyn Future<Output = T> + …>>`.
fn boxed_output(ty: &Type) -> Option<&Type> {
    let Type::TraitObject(object) = argument(argument(ty, "Pin")?, "Box")? else { return None };
    let arguments = &future(&object.bounds)?.arguments;
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(assoc) if assoc.ident == "Output" => Some(&assoc.ty),
        _ => None,
    })
}

/// `Future<…>` among `bounds`.
fn future<'a>(bounds: impl IntoIterator<Item = &'a TypeParamBound>) -> Option<&'a PathSegment> {
    bound(bounds, &["Future"])
}

/// The bound that has one of these names.
fn bound<'a>(
    bounds: impl IntoIterator<Item = &'a TypeParamBound>,
    names: &[&str],
) -> Option<&'a PathSegment> {
    bounds.into_iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => names.iter().find_map(|name| last(&bound.path, name)),
        _ => None,
    })
}

/// The last segment of `path`, if it is `name`.
fn last<'a>(path: &'a Path, name: &str) -> Option<&'a PathSegment> {
    path.segments.last().filter(|segment| segment.ident == name)
}

/// `A` of `name<A>`.
fn argument<'a>(ty: &'a Type, name: &str) -> Option<&'a Type> {
    let Type::Path(path) = ungrouped(ty) else { return None };
    let arguments = &last(&path.path, name)?.arguments;
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ungrouped(ty)),
        _ => None,
    })
}

/// Whether `ty` is spelled like a future, boxed or not.
pub(crate) fn is_future(ty: &Type) -> bool {
    let ty = ungrouped(ty);
    matches!(spelled_like(ty), Some(Deferred::Future))
        || ["Pin", "Box"].iter().any(|name| argument(ty, name).is_some_and(is_future))
}

/// Work that a function leaves to the caller of its result.
#[derive(Clone, Copy)]
pub(crate) enum Deferred {
    Future,
    Stream,
}

/// The first part of `ty` that is spelled like a future or a stream.
///
/// What a closure or a function pointer in `ty` returns does not count: it may be called under a
/// lock of its own.
pub(crate) fn deferred(ty: &Type) -> Option<(Deferred, Type)> {
    struct Find(Option<(Deferred, Type)>);

    impl VisitMut for Find {
        fn visit_type_mut(&mut self, ty: &mut Type) {
            if self.0.is_none() {
                match spelled_like(ty) {
                    Some(kind) => self.0 = Some((kind, ty.clone())),
                    None => visit_mut::visit_type_mut(self, ty),
                }
            }
        }

        fn visit_parenthesized_generic_arguments_mut(
            &mut self,
            _: &mut syn::ParenthesizedGenericArguments,
        ) {
        }

        fn visit_type_fn_ptr_mut(&mut self, _: &mut syn::TypeFnPtr) {}
    }

    let mut find = Find(None);
    find.visit_type_mut(&mut ty.clone());
    find.0
}

fn spelled_like(ty: &Type) -> Option<Deferred> {
    const FUTURES: [&str; 4] = ["Future", "FusedFuture", "IntoFuture", "TryFuture"];
    const STREAMS: [&str; 4] = ["Stream", "AsyncIterator", "FusedStream", "TryStream"];
    const ALIASES: [(&str, Deferred); 4] = [
        ("BoxFuture", Deferred::Future),
        ("LocalBoxFuture", Deferred::Future),
        ("BoxStream", Deferred::Stream),
        ("LocalBoxStream", Deferred::Stream),
    ];
    let bounds = match ty {
        Type::ImplTrait(ty) => &ty.bounds,
        Type::TraitObject(ty) => &ty.bounds,
        Type::Path(path) => {
            let alias = ALIASES.into_iter().find(|(name, _)| last(&path.path, name).is_some());
            return alias.map(|(_, kind)| kind);
        }
        _ => return None,
    };
    if bound(bounds, &FUTURES).is_some() {
        Some(Deferred::Future)
    } else {
        bound(bounds, &STREAMS).map(|_| Deferred::Stream)
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
