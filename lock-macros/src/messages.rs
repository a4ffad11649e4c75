//! Every message of the macros themselves. Those about types are `on_unimplemented` notes in
//! `lock_core::{private, key}`.
//!
//! A message says what is wrong and what to write instead, in one or two sentences, at the
//! narrowest place that is wrong. The rules are in `validate`. The order here is: the function, the
//! list of arguments, the key, durations, the other arguments, `KeyPart`.

use std::fmt::Display;

use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::{Error, Expr, LitStr, Path, Result, Token, Type};

use crate::{duration, nearest, template};

/// Collects mistakes, so that all mistakes of one attribute are reported together.
#[derive(Default)]
pub(crate) struct Mistakes(Option<Error>);

impl Mistakes {
    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    pub(crate) fn take<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    pub(crate) fn finish(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

fn at(place: impl ToTokens, words: impl Display) -> Error {
    Error::new_spanned(place, words)
}

fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

pub(crate) fn not_a_function(span: Span) -> Error {
    Error::new(
        span,
        "`#[distributed_lock]` goes on an `async fn`; in a trait or an impl, on the methods",
    )
}

pub(crate) fn no_body(span: Span) -> Error {
    Error::new(
        span,
        "this method has no body to lock: put `#[distributed_lock]` on the implementations, \
         or give it a default body",
    )
}

pub(crate) fn attribute_twice(second: &Path) -> Error {
    at(
        second,
        "`#[distributed_lock]` is here twice; taking two locks one after the other deadlocks when \
         another function takes them in the other order: lock one key that covers both",
    )
}

pub(crate) fn not_async(place: Token![fn]) -> Error {
    at(
        place,
        "`#[distributed_lock]` goes on an `async fn`: add `async`, put it above attributes that \
         take the `async` away (`#[tokio::test]`), or use `Mutex::blocking_lock` in blocking code",
    )
}

pub(crate) fn returns_a_future(ty: &Type) -> Error {
    at(
        ty,
        "this function would give back its lock before the future that it returns has run: \
         make it an `async fn`",
    )
}

pub(crate) fn returns_a_future_inside(ty: &Type) -> Error {
    at(
        ty,
        "the lock is given back before this future runs: await it in the function, and return \
         its output",
    )
}

pub(crate) fn returns_a_stream(ty: &Type) -> Error {
    at(
        ty,
        "the lock is given back before this stream is read: read it in the function, or make a \
         stream that takes the lock itself, by `Mutex::lock`, and owns the guard",
    )
}

pub(crate) fn returns_impl_trait(ty: &Type) -> Error {
    at(
        ty,
        "a lock error cannot be returned as `impl ..`: return `Result<impl .., E>`, \
         or add `on_error = path`",
    )
}

pub(crate) fn never_returns(ty: &Type) -> Error {
    at(
        ty,
        "a lock error cannot be returned from a function that never returns: \
         add `on_error = path`",
    )
}

pub(crate) fn colon_for_equals(span: Span, name: &Ident) -> Error {
    Error::new(span, format!("arguments are given with `=`: write `{name} = ..`"))
}

pub(crate) fn argument_twice(name: &Ident) -> Error {
    at(name, format!("`{name}` is given twice: remove one of them"))
}

pub(crate) fn no_name(value: &Expr) -> Error {
    at(value, "this argument has no name: write `key = ..`")
}

pub(crate) fn no_value(name: &Ident) -> Error {
    at(name, format!("`{name}` needs a value: `{name} = ..`"))
}

pub(crate) fn unknown_argument(name: &Ident, nearest: Option<&str>, known: &[&str]) -> Error {
    let hint = match nearest {
        Some(argument) => format!("did you mean `{argument}`?"),
        None => format!("the arguments are {}", list(known.iter().copied())),
    };
    at(name, format!("unknown argument `{name}`; {hint}"))
}

pub(crate) fn no_key(span: Span) -> Error {
    Error::new(span, "a lock needs a key: `key = \"order:<user_id>\"`")
}

pub(crate) fn key_is_borrowed(value: &Expr, name: &Ident) -> Error {
    at(
        value,
        format!(
            "borrowed text is the label of its key in logs, so only text of the program can be \
             one: put the value in a template, `key = \"..:<{name}>\"`, or copy it, \
             `key = {name}.to_owned()`"
        ),
    )
}

pub(crate) fn key_is_not_text(value: &Expr) -> Error {
    at(value, "a key is text: `key = \"order:<user_id>\"`")
}

pub(crate) fn no_template(span: Span) -> Error {
    Error::new(span, "`key!` needs a template: `key!(\"order:<user_id>\")`")
}

pub(crate) fn not_a_template(value: &Expr) -> Error {
    at(value, "`key!` takes a template, a string literal: `key!(\"order:<user_id>\")`")
}

pub(crate) fn more_than_a_template(span: Span) -> Error {
    Error::new(
        span,
        "`key!` takes one template and nothing after it: values go in its holes, `<user_id>`",
    )
}

pub(crate) fn key_begins_with_a_brace(text: &LitStr) -> Error {
    at(text, "a key cannot begin with `{`: put a word in front, such as `order:`")
}

pub(crate) fn key_too_long(text: &LitStr, limit: usize) -> Error {
    at(text, format!("a key has at most {limit} bytes"))
}

pub(crate) fn holes_not_apart(text: &LitStr) -> Error {
    at(
        text,
        "different values of these two holes could give the same key: put a `:` between them, \
         as in `\"order:<shop>:<user_id>\"`",
    )
}

pub(crate) fn constant_key(text: &LitStr, name: &str) -> Error {
    at(
        text,
        format!(
            "this key is the same for every call, though it contains the name of the argument \
             `{name}`: write `<{name}>`; if one lock for all is meant, write \
             `key = Key::new(\"..\")`"
        ),
    )
}

pub(crate) fn no_self(text: &LitStr) -> Error {
    at(text, "the key uses `self`, which this function does not have")
}

pub(crate) fn unknown_name(text: &LitStr, unknown: &str, names: &[Ident]) -> Error {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    // `#[async_trait]` replaces the patterns of the signature by these names.
    let (hidden, written): (Vec<_>, Vec<_>) =
        names.iter().map(String::as_str).partition(|name| name.starts_with("__arg"));
    let hint = match nearest::nearest(unknown, written.iter().copied()) {
        Some(name) => format!("did you mean `<{name}>`?"),
        None if !hidden.is_empty() => "`#[async_trait]` hides what a pattern in the signature \
                                       binds: bind a plain name there, and take it apart in the \
                                       body"
            .to_owned(),
        None if written.is_empty() => "it has none".to_owned(),
        None if written.len() == 1 => format!("the only argument is {}", list(written)),
        None => format!("the arguments are {}", list(written)),
    };
    at(
        text,
        format!("the key names `{unknown}`, which is not an argument of this function; {hint}"),
    )
}

pub(crate) fn bad_template(text: &LitStr, mistake: &template::Mistake) -> Error {
    use template::Mistake;
    let words = match mistake {
        Mistake::Empty => {
            "the key is empty: name what is locked, as in `\"order:<user_id>\"`".to_owned()
        }
        Mistake::EmptyHole { open, close } => format!(
            "empty hole: put an argument in it, `{open}user_id{close}`, or write \
             `{open}{open}{close}{close}` for the characters themselves"
        ),
        Mistake::Unclosed { open, close } => format!(
            "this hole is never closed: add `{close}`, or write `{open}{open}` for the character \
             itself"
        ),
        Mistake::Unmatched { close: '>' } => "unmatched `>`: write `>>` for the character itself; \
                                              an expression that contains `>` or starts with `<` \
                                              goes in parentheses, `<(a > b)>`"
            .to_owned(),
        Mistake::Unmatched { close } => {
            format!("unmatched `{close}`: write `{close}{close}` for the character itself")
        }
        Mistake::Format { expression, open, close } => format!(
            "format specifiers do not apply to lock keys: write `{open}{expression}{close}`"
        ),
        Mistake::NotAnExpression { text, open, close } => format!(
            "`{text}` is not an expression: a hole holds one over the arguments, \
             `{open}user_id{close}`; write `{open}{open}` for the character itself"
        ),
    };
    at(text, words)
}

pub(crate) fn ttl_out_of_bounds(value: &Expr) -> Error {
    at(value, "`ttl` must be between 100ms and 24h: it is how long the lock outlives a crash")
}

pub(crate) fn wait_in_quotes(value: &Expr, word: &str) -> Error {
    at(value, format!("`{word}` is a word, not a duration: write `wait = {word}`"))
}

pub(crate) fn no_wait(value: &Expr) -> Error {
    at(value, "a wait of zero is spelt `wait = none`")
}

pub(crate) fn wait_too_long(value: &Expr) -> Error {
    at(value, "`wait` is at most 24h: longer than that is spelt `wait = forever`")
}

pub(crate) fn no_hold(value: &Expr, name: &str) -> Error {
    at(value, format!("`{name}` of zero means nothing: leave it out, or write `{name} = none`"))
}

pub(crate) fn hold_too_long(value: &Expr, name: &str) -> Error {
    at(value, format!("`{name}` is at most 24h: for no bound, write `{name} = none`"))
}

pub(crate) fn min_hold_above_max_hold(value: &Expr, max_hold: std::time::Duration) -> Error {
    let max_hold = duration::spell(max_hold);
    at(value, format!("`min_hold` must not be longer than `max_hold`, which is {max_hold}"))
}

pub(crate) fn number_without_unit(value: &Expr, name: &str, number: impl Display) -> Error {
    at(
        value,
        format!(
            "`{name} = {number}` has no unit: write `{name} = \"{number}s\"`, \
             or a `Duration` expression"
        ),
    )
}

pub(crate) fn duration_without_quotes(value: &Expr, name: &str, number: impl Display) -> Error {
    at(value, format!("a duration goes in quotes: write `{name} = \"{number}\"`"))
}

pub(crate) fn not_a_duration(value: &Expr, name: &str) -> Error {
    at(value, format!("`{name}` takes a duration: `{name} = \"10s\"`, or a `Duration` expression"))
}

pub(crate) fn bad_duration(
    value: &Expr,
    name: &str,
    text: &str,
    mistake: &duration::Mistake,
) -> Error {
    use duration::Mistake;
    let words = match mistake {
        Mistake::NoUnit(number) => format!(
            "`{name} = \"{text}\"` has no unit: write `\"{number}s\"`, `\"{number}ms\"`, \
             `\"{number}m\"`, .."
        ),
        Mistake::UnknownUnit { unit, .. }
            if unit.is_empty() || duration::parse(&text.replace(' ', "")).is_ok() =>
        {
            let text: String = text.split_whitespace().collect();
            format!("a duration has no spaces: write `\"{text}\"`")
        }
        Mistake::UnknownUnit { number, unit } => {
            let lower = unit.to_ascii_lowercase();
            let meant = match lower.chars().next() {
                Some('m') if lower.starts_with("mil") => "ms",
                Some('m') => "m",
                Some('h') => "h",
                Some('d') => "d",
                _ => "s",
            };
            format!(
                "unknown unit `{unit}`: write `\"{number}{meant}\"`; \
                 the units are `d`, `h`, `m`, `s` and `ms`"
            )
        }
        Mistake::Fraction => {
            "a duration has no fractions: write a smaller unit, `\"1500ms\"`".to_owned()
        }
        Mistake::Order => "larger units come first, and each once: write `\"1m30s\"`".to_owned(),
        Mistake::TooLong => {
            format!("`{name} = \"{text}\"` is too long to be counted in milliseconds")
        }
        Mistake::NotANumber if text.is_empty() => {
            format!("the duration is empty: write `{name} = \"10s\"`, or a `Duration` expression")
        }
        Mistake::NotANumber => format!(
            "`{text}` is not a duration: write `{name} = \"10s\"`, or a `Duration` expression"
        ),
    };
    at(value, words)
}

pub(crate) fn not_a_bool(value: &Expr, name: &str) -> Error {
    let why = match name {
        "renew" => "the lease is renewed every third of its `ttl`",
        "turns_for_others" => "with `true`, turns are left to clients of other libraries",
        _ => "without a number a resource cannot refuse late holders",
    };
    at(value, format!("`{name}` takes `true`, `false` or a `bool` expression; {why}"))
}

pub(crate) fn options_are_a_literal(value: &Expr) -> Error {
    at(
        value,
        "`options` takes an expression of the type `LockOptions`: `options = self.lock_options`",
    )
}

pub(crate) fn lease_hides_an_argument(value: &Expr, name: &Ident) -> Error {
    at(value, format!("`lease = {name}` would hide the argument `{name}`: choose another name"))
}

pub(crate) fn lease_is_a_duration(value: &Expr, text: &str) -> Error {
    at(
        value,
        format!("`lease` names the lease inside the body: write `ttl = \"{text}\"` for its length"),
    )
}

pub(crate) fn lease_in_quotes(value: &Expr, text: &str) -> Error {
    at(value, format!("`lease` takes a plain name, without quotes: `lease = {text}`"))
}

pub(crate) fn lease_is_no_name(value: &Expr) -> Error {
    at(value, "`lease` takes a plain name: `lease = lease`")
}

pub(crate) fn on_lost_in_quotes(value: &Expr, word: &str) -> Error {
    at(value, format!("without quotes: `on_lost = {word}`"))
}

pub(crate) fn on_lost_is_no_word(value: &Expr) -> Error {
    at(value, "`on_lost` takes `cancel`, which drops the body when the lock is lost, or `finish`")
}

pub(crate) fn async_handler(place: Option<Token![async]>, name: &str) -> Error {
    at(place, format!("`{name}` cannot wait: take the `async` away"))
}

pub(crate) fn handler_is_called(value: &Expr, name: &str, function: &Expr) -> Error {
    let function = function.to_token_stream().to_string().replace(' ', "");
    at(value, format!("give the function, not its result: `{name} = {function}`"))
}

pub(crate) fn not_a_handler(value: &Expr, name: &str) -> Error {
    at(value, format!("`{name}` takes a function or a closure: `{name} = |error| ..`"))
}

pub(crate) fn crate_in_quotes(value: &Expr, text: &str) -> Error {
    at(value, format!("`crate` takes a path, without quotes: `crate = {text}`"))
}

pub(crate) fn crate_is_no_path(value: &Expr) -> Error {
    at(value, "`crate` takes the path of `lock_core`: `crate = my_crate::lock_core`")
}

pub(crate) fn not_one_field(span: Span) -> Error {
    Error::new(
        span,
        "`KeyPart` is derived for structs with one field; of a larger struct put each field that \
         matters in a hole of its own: `<order.shop>:<order.id>`",
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
