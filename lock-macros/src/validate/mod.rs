//! The rules for the arguments and the function. Reports all mistakes of one attribute together.

mod key;
mod settings;
mod values;

use syn::spanned::Spanned as _;
use syn::visit_mut::VisitMut;
use syn::{Result, ReturnType, Type, parse_quote_spanned};

pub(crate) use self::key::key_template;
use self::values::Values;
use crate::args::Args;
use crate::item::{Boxed, Deferred, Function, deferred, is_distributed_lock, is_future, ungrouped};
use crate::messages::{self, Mistakes};
use crate::model::Lock;
use crate::params;

/// Reads `args` for `function`, or reports all mistakes.
pub(crate) fn lock(args: &Args, function: &Function) -> Result<Lock> {
    let mut mistakes = Mistakes::default();
    let values = Values::read(args, &mut mistakes);
    let names = params::names(&function.sig);

    if let Some(second) = function.attrs.iter().find(|attr| is_distributed_lock(attr)) {
        mistakes.push(messages::attribute_twice(second.path()));
    }
    let body = mistakes.take(body(function));
    let key = mistakes.take(key::key(args, values.key(), &names));
    if let Some(value) = values.key() {
        mistakes.take(key::owned(value, &function.sig));
    }
    let on_busy = mistakes.take(settings::handler("on_busy", values.get("on_busy")));
    let on_error = mistakes.take(settings::handler("on_error", values.get("on_error")));
    let lease = mistakes.take(settings::lease(values.get("lease"), &names));
    let on_lost = mistakes.take(settings::on_lost(values.get("on_lost")));
    let root = mistakes.take(settings::root(values.get("crate")));
    let options = mistakes.take(settings::options(values.get("options")));
    let settings: Vec<_> = values
        .iter()
        .filter_map(|(name, value)| mistakes.take(settings::setting(name, value)).flatten())
        .collect();
    if let Some(value) = values.get("min_hold") {
        mistakes.take(settings::holds_in_order(&settings, value));
    }
    if let (Some((_, output)), Some(None)) = (&body, &on_error) {
        mistakes.take(convertible(output));
    }
    mistakes.finish()?;

    let parts = (body, key, on_busy, on_error, lease, on_lost, root, options);
    let (
        Some((boxed, mut output)),
        Some(key),
        Some(on_busy),
        Some(on_error),
        Some(lease),
        Some(on_lost),
        Some(root),
        Some(options),
    ) = parts
    else {
        unreachable!("BUG: a part is missing without a mistake")
    };
    Inferred.visit_type_mut(&mut output);
    Ok(Lock {
        function: function.clone(),
        boxed,
        output,
        root,
        client: values.get("client").cloned(),
        key,
        settings,
        options,
        lease,
        on_lost,
        on_busy,
        on_error,
    })
}

/// The boxed block, if the function returns one, and the type that the body returns.
fn body(function: &Function) -> Result<(Option<Boxed>, Type)> {
    let sig = &function.sig;
    if sig.asyncness.is_some() {
        let output = match &sig.output {
            ReturnType::Type(_, ty) => (**ty).clone(),
            // There is no type to report errors at, so they are reported at the name.
            ReturnType::Default => parse_quote_spanned!(sig.ident.span()=> ()),
        };
        return done_in_the_body(&output).map(|()| (None, output));
    }
    if let Some((boxed, output)) = function.boxed() {
        return done_in_the_body(&output).map(|()| (Some(boxed), output));
    }
    Err(match &sig.output {
        ReturnType::Type(_, ty) if is_future(ty) => messages::returns_a_future(ty),
        ReturnType::Type(_, ty) => match done_in_the_body(ty) {
            Err(error) => error,
            Ok(()) => messages::not_async(sig.fn_token),
        },
        ReturnType::Default => messages::not_async(sig.fn_token),
    })
}

/// Rejects futures and streams anywhere in what the body returns: the caller would run them when
/// the lock is free again.
fn done_in_the_body(output: &Type) -> Result<()> {
    match deferred(output) {
        None => Ok(()),
        Some((Deferred::Future, ty)) => Err(messages::returns_a_future_inside(&ty)),
        Some((Deferred::Stream, ty)) => Err(messages::returns_a_stream(&ty)),
    }
}

/// Rejects return types that cannot hold an error, if the compiler would report them at the
/// attribute. It reports the others well itself.
fn convertible(output: &Type) -> Result<()> {
    match ungrouped(output) {
        ty @ Type::ImplTrait(_) => Err(messages::returns_impl_trait(ty)),
        ty @ Type::Never(_) => Err(messages::never_returns(ty)),
        _ => Ok(()),
    }
}

/// Replaces the types that cannot be named in a body by `_`: `impl Trait`, and `!`, which is
/// unstable there.
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
