//! The key: the text of a template, and the names that its holes use.

use proc_macro2::Ident;
use syn::{Expr, FnArg, Lit, LitStr, Pat, Result, Signature, Type};

use crate::args::{Args, literal, word};
use crate::item::ungrouped;
use crate::messages::{self, Mistakes};
use crate::model::{Key, KeyTemplate};
use crate::template::{Part, Template};

/// The longest name that `Key` allows.
const MAX_KEY_LEN: usize = 512;

/// The template of `key!`.
pub(crate) fn key_template(value: &Expr) -> Result<KeyTemplate> {
    match literal(value) {
        Some(Lit::Str(text)) => {
            Ok(KeyTemplate { template: template(text)?, span: text.span(), names: Vec::new() })
        }
        _ => Err(messages::not_a_template(value)),
    }
}

pub(super) fn key(args: &Args, value: Option<&Expr>, names: &[Ident]) -> Result<Key> {
    let Some(value) = value else { return Err(messages::no_key(args.span)) };
    match literal(value) {
        Some(Lit::Str(text)) => {
            let template = template(text)?;
            holes_are_known(text, &template, names)?;
            not_constant_by_mistake(text, &template, names)?;
            Ok(Key::Template(KeyTemplate { template, span: text.span(), names: names.to_vec() }))
        }
        Some(_) => Err(messages::key_is_not_text(value)),
        None => Ok(Key::Given(value.clone())),
    }
}

/// Rejects a parameter `&str` as the whole key. Borrowed text is a key only if it is `'static`, and
/// the compiler's error about that would not say what to write.
pub(super) fn owned(value: &Expr, sig: &Signature) -> Result<()> {
    let Some(name) = word(value) else { return Ok(()) };
    let is_borrowed_text = |ty: &Type| match ungrouped(ty) {
        Type::Reference(reference) => {
            let lives = reference.lifetime.as_ref().is_some_and(|life| life.ident == "static");
            let is_str = matches!(&*reference.elem, Type::Path(path) if path.path.is_ident("str"));
            is_str && !lives
        }
        _ => false,
    };
    let found = sig.inputs.iter().any(|input| match input {
        FnArg::Typed(param) => {
            matches!(&*param.pat, Pat::Ident(pat) if pat.ident == *name)
                && is_borrowed_text(&param.ty)
        }
        FnArg::Receiver(_) => false,
    });
    if found { Err(messages::key_is_borrowed(value, name)) } else { Ok(()) }
}

fn template(text: &LitStr) -> Result<Template> {
    let template =
        Template::parse(&text.value()).map_err(|mistake| messages::bad_template(text, &mistake))?;
    literal_text_fits(text, &template)?;
    holes_are_apart(text, &template)?;
    Ok(template)
}

/// Checks the rules of `Key` that the literal text alone can break.
fn literal_text_fits(text: &LitStr, template: &Template) -> Result<()> {
    if let Some(Part::Text(first)) = template.parts.first()
        && first.starts_with('{')
    {
        return Err(messages::key_begins_with_a_brace(text));
    }
    let shortest = template.parts.iter().map(|part| match part {
        Part::Text(text) => text.len(),
        Part::Hole(_) => 1,
    });
    if shortest.sum::<usize>() > MAX_KEY_LEN {
        return Err(messages::key_too_long(text, MAX_KEY_LEN));
    }
    Ok(())
}

/// Rejects two holes without a character between them that is escaped in values. Otherwise the
/// values `a-b` and `c` would give the same key as `a` and `b-c`.
fn holes_are_apart(text: &LitStr, template: &Template) -> Result<()> {
    let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '%');
    let mut after_hole = false;
    for part in &template.parts {
        match part {
            Part::Text(text) => after_hole &= text.chars().all(kept),
            Part::Hole(_) if after_hole => return Err(messages::holes_not_apart(text)),
            Part::Hole(_) => after_hole = true,
        }
    }
    Ok(())
}

/// Rejects holes that start with the name of a missing argument. The compiler checks whatever looks
/// like a constant, a call or a path.
fn holes_are_known(text: &LitStr, template: &Template, names: &[Ident]) -> Result<()> {
    let mut mistakes = Mistakes::default();
    for hole in template.holes() {
        let Some(unknown) = chain_root(hole).filter(|root| !names.contains(root)) else { continue };
        let unknown = unknown.to_string();
        if unknown == "self" {
            mistakes.push(messages::no_self(text));
        } else if unknown.starts_with(|c: char| c.is_lowercase() || c == '_') {
            mistakes.push(messages::unknown_name(text, &unknown, names));
        }
    }
    mistakes.finish()
}

/// The name that a chain of fields, methods and indices starts with.
fn chain_root(expression: &Expr) -> Option<&Ident> {
    let base = match expression {
        Expr::Path(path) if path.qself.is_none() => return path.path.get_ident(),
        Expr::Await(e) => &e.base,
        Expr::Cast(e) => &e.expr,
        Expr::Field(e) => &e.base,
        Expr::Group(e) => &e.expr,
        Expr::Index(e) => &e.expr,
        Expr::MethodCall(e) => &e.receiver,
        Expr::Paren(e) => &e.expr,
        Expr::Reference(e) => &e.expr,
        Expr::Try(e) => &e.expr,
        Expr::Unary(e) => &e.expr,
        _ => return None,
    };
    chain_root(base)
}

/// Rejects `"order:user_id"` if `user_id` is an argument: it would be one lock for all users.
fn not_constant_by_mistake(text: &LitStr, template: &Template, names: &[Ident]) -> Result<()> {
    if !template.is_constant() {
        return Ok(());
    }
    let separators = |c: char| !c.is_alphanumeric() && c != '_';
    let value = text.value();
    let named = names
        .iter()
        .map(|name| name.to_string().trim_start_matches("r#").to_owned())
        .find(|name| name != "self" && value.split(separators).any(|word| word == name));
    named.map_or(Ok(()), |name| Err(messages::constant_key(text, &name)))
}
