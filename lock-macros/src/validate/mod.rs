//! What the arguments and the function must be, and every message there is.
//!
//! A message says what is wrong and what to write instead, in one or two sentences, at the narrowest
//! place that is wrong. All mistakes of one attribute are reported together.

mod key;
mod settings;
mod values;

use std::fmt::Display;

use proc_macro2::{Ident, Span};
use syn::spanned::Spanned as _;
use syn::visit_mut::VisitMut;
use syn::{Error, Expr, ExprLit, Lit, Path, Result, ReturnType, Type, parse_quote_spanned};

pub(crate) use self::key::{key_template, more_than_a_template, no_template};
use self::values::Values;
pub(crate) use self::values::colon_for_equals;
use crate::args::Args;
use crate::item::{Function, Shape, is_future, ungrouped};
use crate::model::{Body, Client, Lock, Refusal};
use crate::params;

/// Reads `args` for `function`, or says all that is wrong.
pub(crate) fn lock(args: &Args, function: &Function) -> Result<Lock> {
    let mut mistakes = Mistakes::default();
    let values = Values::read(args, &mut mistakes);
    let names = params::names(&function.sig);

    mistakes.take(attribute_once(function));
    let shape = mistakes.take(shape(function));
    let key = mistakes.take(key::key(args, values.key, &names));
    let refusal = mistakes.take(settings::refusal(values.on_busy, values.on_error));
    let lease = mistakes.take(settings::lease(values.lease, &names));
    let on_lost = mistakes.take(settings::on_lost(values.on_lost));
    let root = mistakes.take(settings::root(values.root));
    let settings: Vec<_> = values
        .settings
        .iter()
        .filter_map(|(name, value)| mistakes.take(settings::setting(name, value)))
        .collect();
    if let Some((_, value)) = values.settings.iter().find(|(name, _)| *name == "min_hold") {
        mistakes.take(settings::holds_in_order(&settings, value));
    }
    if let (Some((_, output)), Some(Refusal::Convert | Refusal::Busy(_))) = (&shape, &refusal) {
        mistakes.take(convertible(output));
    }
    mistakes.finish()?;

    let (
        Some((body, mut output)),
        Some(key),
        Some(refusal),
        Some(lease),
        Some(on_lost),
        Some(root),
    ) = (shape, key, refusal, lease, on_lost, root)
    else {
        unreachable!("BUG: a part is missing without a mistake")
    };
    Inferred.visit_type_mut(&mut output);
    let client = values.client.map_or(Client::Installed, |value| Client::Given(value.clone()));
    Ok(Lock {
        function: function.clone(),
        body,
        output,
        root,
        client,
        key,
        settings,
        lease,
        on_lost,
        refusal,
    })
}

/// The mistakes found so far.
#[derive(Default)]
struct Mistakes(Option<Error>);

impl Mistakes {
    fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    fn take<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    fn finish(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

pub(crate) fn not_a_function(span: Span) -> Error {
    Error::new(
        span,
        "`#[distributed_lock]` goes on an `async fn`; in a trait or an impl, on the methods",
    )
}

pub(crate) fn no_body(span: Span) -> Error {
    let words = "this method has no body to lock: put `#[distributed_lock]` on the implementations, \
                 or give it a default body";
    Error::new(span, words)
}

fn attribute_once(function: &Function) -> Result<()> {
    match function.attrs.iter().find(|attr| is_ours(attr)) {
        Some(second) => Err(at(
            second.path(),
            "`#[distributed_lock]` is here twice; taking two locks one after the other deadlocks when \
             another function takes them in the other order: lock one key that covers both",
        )),
        None => Ok(()),
    }
}

/// Whether `attr` is this attribute again.
pub(crate) fn is_ours(attr: &syn::Attribute) -> bool {
    attr.path().segments.last().is_some_and(|segment| segment.ident == "distributed_lock")
}

fn shape(function: &Function) -> Result<(Body, Type)> {
    let sig = &function.sig;
    match function.shape() {
        Shape::Async => {
            let output = match &sig.output {
                ReturnType::Type(_, ty) => (**ty).clone(),
                // Nothing is written, so the name has to bear the errors about it.
                ReturnType::Default => parse_quote_spanned!(sig.ident.span()=> ()),
            };
            Ok((Body::Plain, output))
        }
        Shape::Boxed(boxed) => {
            let output = boxed.output.clone();
            Ok((Body::Boxed(boxed), output))
        }
        Shape::Blocking => Err(match &sig.output {
            ReturnType::Type(_, ty) if is_future(ty) => at(
                ty,
                "this function would give back its lock before the future that it returns has run: \
                 make it an `async fn`",
            ),
            _ => at(
                sig.fn_token,
                "`#[distributed_lock]` goes on an `async fn`: add `async`, put it above attributes that \
                 take the `async` away (`#[tokio::test]`), or use `Mutex::blocking_lock` in blocking code",
            ),
        }),
    }
}

/// Refuses the return types that cannot hold an error and for which the compiler's own message
/// would come out at the attribute. The others are its business.
fn convertible(output: &Type) -> Result<()> {
    let hint = "add `on_error = path`";
    match ungrouped(output) {
        ty @ Type::ImplTrait(_) => Err(at(
            ty,
            format!(
                "a lock error cannot be returned as `impl ..`: return `Result<impl .., E>`, or {hint}"
            ),
        )),
        ty @ Type::Never(_) => Err(at(
            ty,
            format!("a lock error cannot be returned from a function that never returns: {hint}"),
        )),
        _ => Ok(()),
    }
}

/// Writes `_` for what cannot be named in a body: `impl Trait`, and `!` which is unstable there.
struct Inferred;

impl VisitMut for Inferred {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        if matches!(ty, Type::ImplTrait(_) | Type::Never(_)) {
            *ty = parse_quote_spanned!(ty.span()=> _);
        } else {
            syn::visit_mut::visit_type_mut(self, ty);
        }
    }
}

/// `lock_core` as most crates know it.
pub(crate) fn default_root() -> Path {
    parse_quote_spanned!(Span::mixed_site()=> ::lock_core)
}

pub(crate) fn not_one_field(span: Span) -> Error {
    Error::new(
        span,
        "`KeyPart` is derived for structs with one field; of a larger struct put each field that matters in \
         a hole of its own: `<order.shop>:<order.id>`",
    )
}

pub(crate) fn not_a_struct(span: Span) -> Error {
    Error::new(
        span,
        "`KeyPart` is derived for structs with one field only: implement it by hand, \
         with a distinct text for each value",
    )
}

pub(crate) fn unknown_helper(span: Span) -> Error {
    Error::new(span, "the only helper is `#[key_part(crate = path)]`")
}

// Small readers.

fn at(tokens: impl quote::ToTokens, words: impl Display) -> Error {
    Error::new_spanned(tokens, words)
}

fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// `value` without the invisible groups of `macro_rules!`.
fn ungrouped_expr(value: &Expr) -> &Expr {
    match value {
        Expr::Group(group) => ungrouped_expr(&group.expr),
        _ => value,
    }
}

fn literal(value: &Expr) -> Option<&Lit> {
    match ungrouped_expr(value) {
        Expr::Lit(ExprLit { lit, .. }) => Some(lit),
        _ => None,
    }
}

/// `value` as a single bare word.
fn word(value: &Expr) -> Option<&Ident> {
    match ungrouped_expr(value) {
        Expr::Path(path) if path.qself.is_none() => path.path.get_ident(),
        _ => None,
    }
}
