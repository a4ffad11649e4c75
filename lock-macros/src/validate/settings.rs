//! The arguments other than the key: which values they take.

use std::ops::RangeInclusive;
use std::time::Duration;

use proc_macro2::Ident;
use syn::{Expr, Lit, Path, Result};

use crate::args::{default_root, is_word, literal, quoted, ungrouped, word};
use crate::model::{Hold, Length, OnLost, Setting, Switch, Wait};
use crate::{duration, messages};

/// The bounds that `LockOptions` checks at run time. Literals are checked at compile time.
const TTL: RangeInclusive<Duration> = Duration::from_millis(100)..=DAY;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The option that `name = value` sets, if `name` is one.
pub(super) fn setting(name: &Ident, value: &Expr) -> Result<Option<Setting>> {
    Ok(Some(match name.to_string().as_str() {
        "ttl" => Setting::Ttl(ttl(value)?),
        "wait" => Setting::Wait(wait(value)?),
        "max_hold" => Setting::MaxHold(hold("max_hold", value)?),
        "min_hold" => Setting::MinHold(hold("min_hold", value)?),
        "renew" => Setting::Renew(switch("renew", value)?),
        "fencing" => Setting::Fencing(switch("fencing", value)?),
        "turns_for_others" => Setting::TurnsForOthers(switch("turns_for_others", value)?),
        _ => return Ok(None),
    }))
}

fn ttl(value: &Expr) -> Result<Length> {
    match length("ttl", value)? {
        Length::Known(ttl) if !TTL.contains(&ttl) => Err(messages::ttl_out_of_bounds(value)),
        length => Ok(length),
    }
}

fn wait(value: &Expr) -> Result<Wait> {
    if is_word(value, "none") {
        return Ok(Wait::No);
    }
    if is_word(value, "forever") {
        return Ok(Wait::Forever);
    }
    if let Some(word) = quoted(value).filter(|text| text == "none" || text == "forever") {
        return Err(messages::wait_in_quotes(value, &word));
    }
    match length("wait", value)? {
        Length::Known(Duration::ZERO) => Err(messages::no_wait(value)),
        Length::Known(wait) if wait > DAY => Err(messages::wait_too_long(value)),
        Length::Known(wait) => Ok(Wait::UpTo(wait)),
        Length::Computed(wait) => Ok(Wait::Computed(wait)),
    }
}

fn hold(name: &str, value: &Expr) -> Result<Hold> {
    if is_word(value, "none") {
        return Ok(Hold::No);
    }
    match length(name, value)? {
        Length::Known(Duration::ZERO) => Err(messages::no_hold(value, name)),
        Length::Known(hold) if hold > DAY => Err(messages::hold_too_long(value, name)),
        Length::Known(hold) => Ok(Hold::Known(hold)),
        Length::Computed(hold) => Ok(Hold::Computed(hold)),
    }
}

/// Rejects a `min_hold` above the `max_hold`, if both are literals.
pub(super) fn holds_in_order(settings: &[Setting], min_hold: &Expr) -> Result<()> {
    let (mut min, mut max) = (None, None);
    for setting in settings {
        match setting {
            Setting::MinHold(Hold::Known(hold)) => min = Some(*hold),
            Setting::MaxHold(Hold::Known(hold)) => max = Some(*hold),
            _ => {}
        }
    }
    match (min, max) {
        (Some(min), Some(max)) if min > max => {
            Err(messages::min_hold_above_max_hold(min_hold, max))
        }
        _ => Ok(()),
    }
}

fn length(name: &str, value: &Expr) -> Result<Length> {
    match literal(value) {
        None => Ok(Length::Computed(value.clone())),
        Some(Lit::Str(text)) => {
            let text = text.value();
            duration::parse(&text)
                .map(Length::Known)
                .map_err(|mistake| messages::bad_duration(value, name, &text, &mistake))
        }
        Some(Lit::Int(number)) if number.suffix().is_empty() => {
            Err(messages::number_without_unit(value, name, number))
        }
        Some(Lit::Int(number)) => Err(messages::duration_without_quotes(value, name, number)),
        Some(_) => Err(messages::not_a_duration(value, name)),
    }
}

fn switch(name: &str, value: &Expr) -> Result<Switch> {
    match literal(value) {
        None => Ok(Switch::Computed(value.clone())),
        Some(Lit::Bool(on)) => Ok(Switch::Known(on.value)),
        Some(_) => Err(messages::not_a_bool(value, name)),
    }
}

pub(super) fn options(value: Option<&Expr>) -> Result<Option<Expr>> {
    match value {
        Some(value) if literal(value).is_some() => Err(messages::options_are_a_literal(value)),
        value => Ok(value.cloned()),
    }
}

pub(super) fn lease(value: Option<&Expr>, names: &[Ident]) -> Result<Option<Ident>> {
    let Some(value) = value else { return Ok(None) };
    match (word(value), quoted(value)) {
        (Some(name), _) if names.contains(name) => {
            Err(messages::lease_hides_an_argument(value, name))
        }
        (Some(name), _) => Ok(Some(name.clone())),
        (None, Some(text)) if duration::parse(&text).is_ok() => {
            Err(messages::lease_is_a_duration(value, &text))
        }
        (None, Some(text)) => Err(messages::lease_in_quotes(value, &text)),
        (None, None) => Err(messages::lease_is_no_name(value)),
    }
}

pub(super) fn on_lost(value: Option<&Expr>) -> Result<OnLost> {
    match value {
        None => Ok(OnLost::Cancel),
        Some(value) if is_word(value, "cancel") => Ok(OnLost::Cancel),
        Some(value) if is_word(value, "finish") => Ok(OnLost::Finish),
        Some(value) => Err(match quoted(value).as_deref() {
            Some(word @ ("cancel" | "finish")) => messages::on_lost_in_quotes(value, word),
            _ => messages::on_lost_is_no_word(value),
        }),
    }
}

pub(super) fn handler(name: &str, value: Option<&Expr>) -> Result<Option<Expr>> {
    let Some(value) = value else { return Ok(None) };
    match ungrouped(value) {
        Expr::Path(_) => Ok(Some(value.clone())),
        Expr::Closure(closure) if closure.asyncness.is_none() => Ok(Some(value.clone())),
        Expr::Closure(closure) => Err(messages::async_handler(closure.asyncness, name)),
        Expr::Call(call) => Err(messages::handler_is_called(value, name, &call.func)),
        _ => Err(messages::not_a_handler(value, name)),
    }
}

pub(super) fn root(value: Option<&Expr>) -> Result<Path> {
    let Some(value) = value else { return Ok(default_root()) };
    match (ungrouped(value), quoted(value)) {
        (Expr::Path(path), _) if path.qself.is_none() => Ok(path.path.clone()),
        (_, Some(text)) => Err(messages::crate_in_quotes(value, &text)),
        _ => Err(messages::crate_is_no_path(value)),
    }
}
