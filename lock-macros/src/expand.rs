//! Generates the locked function.
//!
//! ```text
//! attributes visibility signature {
//!     let (entered, value) = {
//!         let user_id = user_id;                        // every parameter ends with this block
//!         let client = …; let key = …; let options = …; // owned: no borrow lives during the wait
//!         let attempt = match acquire(client, key, options).await {
//!             Ok(entered) => {
//!                 let out = {
//!                     let body = pin!(async move { … });
//!                     let out = entered.bound(body).await;
//!                     out
//!                 };                                    // drops the body and its captures
//!                 match out {
//!                     Ok(value) => Ok((entered, value)),
//!                     Err(error) => { drop(entered); Err(error) }
//!                 }
//!             }
//!             Err(error) => Err(error),
//!         };
//!         match attempt { Ok(pair) => pair, Err(error) => return refuse(error) }
//!     };
//!     entered.release().await;
//!     value
//! }
//! ```
//!
//! * Generated tokens are mixed-site: locals cannot clash with the user's names, and lints treat
//!   the tokens as a macro's. The names start with `__lock_` nevertheless, because a binding that
//!   has the name of a `static` in the user's code does not compile.
//! * The body is the user's tokens in braces at the place of the user's braces, so that errors in
//!   it are the same as without the attribute. A block spliced in as one expression would cause
//!   `unused_braces`.
//! * `if let Some(r) = None::<Type> { return r; }` gives the async block its type. Without it,
//!   coercions (`Ok(Box::new(x))` to `Result<Box<dyn Trait>>`) fail.
//! * Errors leave the function in one place, so that a closure in `on_error` is expanded only once.

use std::time::Duration;

use proc_macro2::{Delimiter, Group, Ident, Literal, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::Parser as _;
use syn::spanned::Spanned as _;
use syn::{Attribute, Expr, Path};

use crate::item::Boxed;
use crate::model::{Hold, Key, KeyTemplate, Length, Lock, OnLost, Setting, Switch, Wait};
use crate::params;
use crate::template::Part;

/// The span of generated tokens.
fn generated() -> Span {
    Span::mixed_site()
}

/// The span of generated tokens at the place of `tokens`, for errors about those.
fn at(tokens: &impl ToTokens) -> Span {
    generated().located_at(tokens.span())
}

/// The function that `lock` describes.
pub(crate) fn function(lock: &Lock) -> TokenStream {
    let function = &lock.function;
    let (attrs, vis, inner_attrs) = (&function.attrs, &function.vis, &function.inner_attrs);
    let mut sig = function.sig.clone();
    let content = match &lock.boxed {
        None => {
            let taken = params::take_over(&mut sig, attrs.iter().any(is_macro));
            let mut body = keep_self(lock);
            body.extend(function.statements.clone());
            let body = async_block(&function.brace, body_of(lock, &body), &function.statements);
            locked(lock, &taken, &quote_spanned!(generated()=> async move #body))
        }
        Some(Boxed { pin, paren, keywords, block }) => {
            let (brace, stmts) = (&block.brace_token, &block.stmts);
            let stmts = quote!(#(#stmts)*);
            let body = async_block(brace, body_of(lock, &stmts), &stmts);
            let locked = locked(lock, &TokenStream::new(), &quote!(#keywords #body));
            let block = braced(brace, locked);
            let mut call = pin.to_token_stream();
            paren.surround(&mut call, |inside| inside.extend(quote!(#keywords #block)));
            call
        }
    };
    let content = braced(&function.brace, quote!(#(#inner_attrs)* #content));
    quote!(#(#attrs)* #vis #sig #content)
}

/// The statements that run `body`, an async block, under the lock.
fn locked(lock: &Lock, taken: &TokenStream, body: &TokenStream) -> TokenStream {
    let private = private(&lock.root);
    let result = quote_spanned!(generated()=> #private::core::result::Result);
    let client = match &lock.client {
        None => quote_spanned!(generated()=> #private::installed()),
        Some(value) => quote_spanned!(at(value)=> #private::client(&#value)),
    };
    let key = match &lock.key {
        Key::Template(key) => key_template(key, &private),
        Key::Given(value) => {
            // The compiler underlines the whole call if borrowed text does not live long enough.
            let private = located_at(private.clone(), at(value));
            quote_spanned!(at(value)=> #private::key(#value))
        }
    };
    let options = options(lock, &private);
    let output = &lock.output;
    let lease = lock
        .lease
        .as_ref()
        .map(|name| quote_spanned!(generated()=> let #name = __lock_entered.lease();));
    let bound = match lock.on_lost {
        OnLost::Cancel => quote_spanned!(generated()=> bound),
        OnLost::Finish => quote_spanned!(generated()=> scoped),
    };
    let value = value_of_error(lock, &private);
    quote_spanned! {generated()=>
        let (__lock_entered, __lock_value): (_, #output) = {
            #taken
            let __lock_client = #client;
            let __lock_key = #key;
            let __lock_options = #options;
            let __lock_answer =
                #private::acquire(__lock_client, __lock_key, __lock_options).await;
            let __lock_attempt = match __lock_answer {
                #result::Ok(__lock_entered) => {
                    let __lock_out = {
                        #lease
                        let __lock_body = #private::core::pin::pin!(#body);
                        let __lock_out = __lock_entered.#bound(__lock_body).await;
                        __lock_out
                    };
                    match __lock_out {
                        #result::Ok(__lock_value) => #result::Ok((__lock_entered, __lock_value)),
                        #result::Err(__lock_error) => {
                            #private::core::mem::drop(__lock_entered);
                            #result::Err(__lock_error)
                        }
                    }
                }
                #result::Err(__lock_error) => #result::Err(__lock_error),
            };
            match __lock_attempt {
                #result::Ok(__lock_held) => __lock_held,
                #result::Err(__lock_error) => return #value,
            }
        };
        __lock_entered.release().await;
        __lock_value
    }
}

/// The content of the async block: its type and `statements`.
fn body_of(lock: &Lock, statements: &TokenStream) -> TokenStream {
    let (output, private) = (&lock.output, private(&lock.root));
    let option = quote_spanned!(generated()=> #private::core::option::Option);
    // At the type, which the compiler names as the reason if the body returns another type.
    let typed = quote_spanned! {at(output)=>
        if let #option::Some(__lock_return) = #option::None::<#output> {
            return __lock_return;
        }
    };
    quote!(#typed #statements)
}

/// Makes the body own a `self` that it does not mention, unless a handler needs `self`.
fn keep_self(lock: &Lock) -> TokenStream {
    let Lock { function, on_busy, on_error, .. } = lock;
    let sig = &function.sig;
    match sig.receiver() {
        Some(receiver) if params::owns_self(sig) && !mentions_self(quote!(#on_busy #on_error)) => {
            let this = receiver.self_token;
            quote_spanned!(generated()=> let _ = &#this;)
        }
        _ => TokenStream::new(),
    }
}

fn mentions_self(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => mentions_self(group.stream()),
        TokenTree::Ident(ident) => ident == "self",
        _ => false,
    })
}

fn options(lock: &Lock, private: &TokenStream) -> TokenStream {
    let none = TokenStream::new();
    let known = |length: &Duration| {
        // The parser's result fits in a `u64`.
        let millis = Literal::u64_suffixed(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        quote_spanned!(generated()=> #private::core::time::Duration::from_millis(#millis))
    };
    // Functions that take all values that the option has.
    let computed = |function: &str, value: &Expr| {
        let function = Ident::new(function, at(value));
        quote_spanned!(at(value)=> .or(#private::#function(#value)))
    };
    let setters = lock.settings.iter().map(|setting| match setting {
        Setting::Ttl(Length::Known(ttl)) => call("with_ttl", &known(ttl)),
        Setting::Ttl(Length::Computed(ttl)) => call("with_ttl", &ttl.to_token_stream()),
        Setting::Wait(Wait::No) => call("without_wait", &none),
        Setting::Wait(Wait::Forever) => call("wait_forever", &none),
        Setting::Wait(Wait::UpTo(wait)) => call("with_wait", &known(wait)),
        Setting::Wait(Wait::Computed(wait)) => computed("wait", wait),
        Setting::MaxHold(Hold::No) => call("without_max_hold", &none),
        Setting::MaxHold(Hold::Known(hold)) => call("with_max_hold", &known(hold)),
        Setting::MaxHold(Hold::Computed(hold)) => computed("max_hold", hold),
        Setting::MinHold(Hold::No) => call("without_min_hold", &none),
        Setting::MinHold(Hold::Known(hold)) => call("with_min_hold", &known(hold)),
        Setting::MinHold(Hold::Computed(hold)) => computed("min_hold", hold),
        Setting::Renew(Switch::Known(true)) => call("with_renewal", &none),
        Setting::Renew(Switch::Known(false)) => call("without_renewal", &none),
        Setting::Renew(Switch::Computed(renew)) => computed("renewal", renew),
        Setting::Fencing(Switch::Known(true)) => call("with_fencing", &none),
        Setting::Fencing(Switch::Known(false)) => call("without_fencing", &none),
        Setting::Fencing(Switch::Computed(fencing)) => computed("fencing", fencing),
        Setting::TurnsForOthers(Switch::Known(true)) => call("with_turns_for_others", &none),
        Setting::TurnsForOthers(Switch::Known(false)) => call("without_turns_for_others", &none),
        Setting::TurnsForOthers(Switch::Computed(leave)) => computed("turns_for_others", leave),
    });
    // Last, because the earlier ones count.
    let rest = lock.options.iter().map(|options| call("or", &options.to_token_stream()));
    quote_spanned!(generated()=> #private::options() #(#setters)* #(#rest)*)
}

fn call(method: &str, argument: &TokenStream) -> TokenStream {
    let here = if argument.is_empty() { generated() } else { at(argument) };
    let method = Ident::new(method, here);
    quote_spanned!(here=> .#method(#argument))
}

/// The expression that turns `__lock_error` into the function's value.
fn value_of_error(lock: &Lock, private: &TokenStream) -> TokenStream {
    let output = &lock.output;
    let error = quote_spanned!(generated()=> __lock_error);
    // The type is given, so that a handler that returns another type is an error at the handler.
    let pass_error =
        |f: &Expr| quote_spanned!(at(f)=> #private::pass_error::<#output, _>(#f, #error));
    let other = match &lock.on_error {
        None => quote_spanned!(generated()=> <#output as #private::LockReturn>::refuse(#error)),
        Some(f) => pass_error(f),
    };
    match lock.on_busy.as_ref().map(pass_error) {
        None => other,
        Some(busy) => {
            quote_spanned!(generated()=> if #error.is_busy() { #busy } else { #other })
        }
    }
}

/// The expression that builds the key of a template, a `Result<Key, Error>`.
pub(crate) fn key_template(key: &KeyTemplate, private: &TokenStream) -> TokenStream {
    let here = generated().located_at(key.span);
    // A new literal, because lints search the user's literal for `{x}`.
    let source = Literal::string(&key.template.source);
    let parts = key.template.parts.iter().map(|part| match part {
        Part::Text(text) => quote_spanned!(here=> __lock_key.lit(#text);),
        Part::Hole(expression) => {
            let value = hole_value(expression, key);
            quote_spanned!(here=> __lock_key.hole(#value);)
        }
    });
    quote_spanned! {generated()=>
        {
            let mut __lock_key = #private::Template::new(#source);
            #(#parts)*
            __lock_key.done()
        }
    }
}

/// A reference to the value of a hole, at the place of the template.
///
/// A parameter has the span of its declaration. If its type cannot be part of a key, the compiler
/// underlines both the declaration and the template.
fn hole_value(expression: &Expr, key: &KeyTemplate) -> TokenStream {
    if let Expr::Path(path) = expression
        && let Some(name) = path.path.get_ident()
        && let Some(declared) = key.names.iter().find(|declared| *declared == name)
    {
        return quote_spanned!(at(declared)=> &#declared);
    }
    let here = generated().located_at(key.span);
    let value = at_template(expression.to_token_stream(), key);
    match expression {
        Expr::Path(_)
        | Expr::Field(_)
        | Expr::MethodCall(_)
        | Expr::Call(_)
        | Expr::Index(_)
        | Expr::Lit(_)
        | Expr::Macro(_)
        | Expr::Paren(_) => quote_spanned!(here=> &#value),
        _ => quote_spanned!(here=> &(#value)),
    }
}

/// Moves `tokens` to the place of the template, where names are resolved as in the function.
fn at_template(tokens: TokenStream, key: &KeyTemplate) -> TokenStream {
    let here = Span::call_site().located_at(key.span);
    tokens
        .into_iter()
        .map(|token| match token {
            TokenTree::Group(group) => {
                let stream = at_template(group.stream(), key);
                let mut group = Group::new(group.delimiter(), stream);
                group.set_span(here);
                TokenTree::Group(group)
            }
            TokenTree::Ident(mut ident) => {
                // In a function that another macro generated, parameters have that macro's hygiene.
                let declared = key.names.iter().find(|declared| **declared == ident);
                ident.set_span(declared.map_or(here, |name| here.resolved_at(name.span())));
                TokenTree::Ident(ident)
            }
            mut other => {
                other.set_span(here);
                other
            }
        })
        .collect()
}

/// The path of the items that generated code may use.
pub(crate) fn private(root: &Path) -> TokenStream {
    let private = Ident::new("private", generated());
    quote_spanned!(root.span()=> #root::#private)
}

/// Moves `tokens`, a path, to `place`; names are resolved as before.
fn located_at(tokens: TokenStream, place: Span) -> TokenStream {
    let moved = tokens.into_iter().map(|mut token| {
        token.set_span(token.span().located_at(place));
        token
    });
    moved.collect()
}

fn braced(brace: &syn::token::Brace, content: TokenStream) -> TokenStream {
    let mut tokens = TokenStream::new();
    brace.surround(&mut tokens, |inside| inside.extend(content));
    tokens
}

/// `content` in the user's braces, so that an error about the whole body is the same as without the
/// attribute.
///
/// If there are items in `statements`, the braces are generated ones at the same place. In the
/// user's braces, clippy would report that an item comes after a statement, which is the generated
/// one.
fn async_block(
    brace: &syn::token::Brace,
    content: TokenStream,
    statements: &TokenStream,
) -> TokenStream {
    let parsed = syn::Block::parse_within.parse2(statements.clone()).unwrap_or_default();
    if !parsed.iter().any(|statement| matches!(statement, syn::Stmt::Item(_))) {
        return braced(brace, content);
    }
    let mut group = Group::new(Delimiter::Brace, content);
    group.set_span(generated().located_at(brace.span.join()));
    TokenTree::Group(group).into()
}

/// Whether `attr` may be a macro, which may read the signature. Built-in attributes are not.
fn is_macro(attr: &Attribute) -> bool {
    const INERT: [&str; 14] = [
        "allow",
        "cfg",
        "cfg_attr",
        "cold",
        "deny",
        "deprecated",
        "doc",
        "expect",
        "forbid",
        "inline",
        "must_use",
        "no_mangle",
        "track_caller",
        "warn",
    ];
    !INERT.iter().any(|inert| attr.path().is_ident(inert))
}
