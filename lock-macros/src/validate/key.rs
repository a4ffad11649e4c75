//! The key: the template's text, and what its holes may name.

use proc_macro2::{Ident, Span};
use syn::{Error, Expr, Lit, LitStr, Result};

use super::{Mistakes, at, list, literal};
use crate::args::Args;
use crate::model::{Key, KeyTemplate};
use crate::nearest;
use crate::template::{Mistake, Part, Template};

/// The longest name that `Key` allows.
const MAX_KEY_LEN: usize = 512;

/// The template of `key!`.
pub(crate) fn key_template(value: &Expr) -> Result<KeyTemplate> {
    match literal(value) {
        Some(Lit::Str(text)) => {
            let template = Template::parse(&text.value()).map_err(|m| template(text, &m))?;
            literal_text_fits(text, &template)?;
            holes_stand_apart(text, &template)?;
            Ok(KeyTemplate { template, span: text.span(), names: Vec::new() })
        }
        _ => {
            Err(at(value, "`key!` takes a template, a string literal: `key!(\"order:<user_id>\")`"))
        }
    }
}

pub(crate) fn no_template(span: Span) -> Error {
    Error::new(span, "`key!` needs a template: `key!(\"order:<user_id>\")`")
}

pub(crate) fn more_than_a_template(span: Span) -> Error {
    Error::new(
        span,
        "`key!` takes one template and nothing after it: values go in its holes, `<user_id>`",
    )
}

pub(super) fn key(args: &Args, value: Option<&Expr>, names: &[Ident]) -> Result<Key> {
    let Some(value) = value else {
        return Err(Error::new(args.span, "a lock needs a key: `key = \"order:<user_id>\"`"));
    };
    match literal(value) {
        Some(Lit::Str(text)) => {
            let parsed = Template::parse(&text.value()).map_err(|m| template(text, &m))?;
            literal_text_fits(text, &parsed)?;
            holes_stand_apart(text, &parsed)?;
            holes_are_known(text, &parsed, names)?;
            not_one_for_all(text, &parsed, names)?;
            Ok(Key::Template(KeyTemplate {
                template: parsed,
                span: text.span(),
                names: names.to_vec(),
            }))
        }
        Some(_) => Err(at(value, "a key is text: `key = \"order:<user_id>\"`")),
        None => Ok(Key::Given(value.clone())),
    }
}

/// The rules of `Key` that the literal text alone can break.
fn literal_text_fits(text: &LitStr, template: &Template) -> Result<()> {
    let literal = |part: &Part| match part {
        Part::Text(text) => text.len(),
        Part::Hole(_) => 1,
    };
    if let Some(Part::Text(first)) = template.parts.first()
        && first.starts_with('{')
    {
        return Err(at(text, "a key cannot begin with `{`: put a word in front, such as `order:`"));
    }
    if template.parts.iter().map(literal).sum::<usize>() > MAX_KEY_LEN {
        return Err(at(text, format!("a key has at most {MAX_KEY_LEN} bytes")));
    }
    Ok(())
}

/// Between two holes stands a character that no value can contain, since it is escaped there: or `a-b` and `c` would give the
/// key of `a` and `b-c`.
fn holes_stand_apart(text: &LitStr, template: &Template) -> Result<()> {
    let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '%');
    let mut after_hole = false;
    for part in &template.parts {
        match part {
            Part::Text(text) => after_hole &= text.chars().all(kept),
            Part::Hole(_) if after_hole => {
                return Err(at(
                    text,
                    "different values of these two holes could give the same key: put a `:` between them, \
                     as in `\"order:<shop>:<user_id>\"`",
                ));
            }
            Part::Hole(_) => after_hole = true,
        }
    }
    Ok(())
}

fn template(text: &LitStr, mistake: &Mistake) -> Error {
    let words = match mistake {
        Mistake::Empty => "the key is empty: name what is locked, as in `\"order:<user_id>\"`".to_owned(),
        Mistake::EmptyHole { open, close } => format!(
            "empty hole: put an argument in it, `{open}user_id{close}`, or write `{open}{open}{close}{close}` \
             for the characters themselves"
        ),
        Mistake::Unclosed { open, close } => format!(
            "this hole is never closed: add `{close}`, or write `{open}{open}` for the character itself"
        ),
        Mistake::Unmatched { close: '>' } => "unmatched `>`: write `>>` for the character itself; an \
                                              expression that contains `>` or starts with `<` goes in \
                                              parentheses, `<(a > b)>`"
            .to_owned(),
        Mistake::Unmatched { close } => {
            format!("unmatched `{close}`: write `{close}{close}` for the character itself")
        }
        Mistake::Format { expression, open, close } => format!(
            "format specifiers do not apply to lock keys: write `{open}{expression}{close}`"
        ),
        Mistake::NotAnExpression { text, open, close } => format!(
            "`{text}` is not an expression: a hole holds one over the arguments, `{open}user_id{close}`; \
             write `{open}{open}` for the character itself"
        ),
    };
    at(text, words)
}

/// Refuses holes that start at a name which is not an argument. What looks like a constant, a call or
/// a path is left to the compiler.
fn holes_are_known(text: &LitStr, template: &Template, names: &[Ident]) -> Result<()> {
    let mut mistakes = Mistakes::default();
    for hole in template.holes() {
        let Some(unknown) = chain_root(hole).filter(|root| !names.contains(root)) else { continue };
        let unknown = unknown.to_string();
        if unknown == "self" {
            mistakes.push(at(text, "the key uses `self`, which this function does not have"));
        } else if unknown.starts_with(|c: char| c.is_lowercase() || c == '_') {
            mistakes.push(at(text, unknown_name(&unknown, names)));
        }
    }
    mistakes.finish()
}

fn unknown_name(unknown: &str, names: &[Ident]) -> String {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    // `#[async_trait]` has replaced the patterns of the signature.
    let hidden = names.iter().any(|name| name.starts_with("__arg"));
    let written: Vec<_> =
        names.iter().map(String::as_str).filter(|name| !name.starts_with("__arg")).collect();
    let hint = match nearest::nearest(unknown, written.iter().copied()) {
        Some(name) => format!("did you mean `<{name}>`?"),
        None if hidden => "`#[async_trait]` hides what a pattern in the signature binds: \
                           bind a plain name there, and take it apart in the body"
            .to_owned(),
        None if written.is_empty() => "it has none".to_owned(),
        None if written.len() == 1 => format!("the only argument is {}", list(written)),
        None => format!("the arguments are {}", list(written)),
    };
    format!("the key names `{unknown}`, which is not an argument of this function; {hint}")
}

/// The name that a chain of fields, methods and indices starts with.
fn chain_root(expression: &Expr) -> Option<&Ident> {
    match expression {
        Expr::Path(path) if path.qself.is_none() => path.path.get_ident(),
        Expr::Await(e) => chain_root(&e.base),
        Expr::Cast(e) => chain_root(&e.expr),
        Expr::Field(e) => chain_root(&e.base),
        Expr::Group(e) => chain_root(&e.expr),
        Expr::Index(e) => chain_root(&e.expr),
        Expr::MethodCall(e) => chain_root(&e.receiver),
        Expr::Paren(e) => chain_root(&e.expr),
        Expr::Reference(e) => chain_root(&e.expr),
        Expr::Try(e) => chain_root(&e.expr),
        Expr::Unary(e) => chain_root(&e.expr),
        _ => None,
    }
}

/// Refuses `"order:user_id"` where `user_id` is an argument: it would be one lock for all users.
fn not_one_for_all(text: &LitStr, template: &Template, names: &[Ident]) -> Result<()> {
    if !template.is_constant() {
        return Ok(());
    }
    let words = |c: char| !c.is_alphanumeric() && c != '_';
    let value = text.value();
    let named = names
        .iter()
        .map(|name| name.to_string().trim_start_matches("r#").to_owned())
        .find(|name| name != "self" && value.split(words).any(|word| word == name));
    match named {
        Some(name) => Err(at(
            text,
            format!(
                "this key is the same for every call, though it contains the name of the argument `{name}`: \
                 write `<{name}>`; if one lock for all is meant, write `key = Key::new(\"..\")`"
            ),
        )),
        None => Ok(()),
    }
}
