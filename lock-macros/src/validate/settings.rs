//! The arguments other than the key: what their values may be.

use std::time::Duration;

use proc_macro2::Ident;
use quote::ToTokens as _;
use syn::{Expr, Lit, Path, Result};

use super::{Mistakes, at, default_root, literal, ungrouped_expr, word};
use crate::duration;
use crate::model::{Hold, Lease, Length, OnLost, Refusal, Setting, Wait};

/// The bounds that `LockOptions` checks at run time; known lengths are checked here.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=DAY;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn setting(name: &Ident, value: &Expr) -> Result<Setting> {
    let text = name.to_string();
    Ok(match text.as_str() {
        "ttl" => Setting::Ttl(ttl(value)?),
        "wait" => Setting::Wait(wait(value)?),
        "max_hold" => Setting::MaxHold(hold("max_hold", value)?),
        "min_hold" => Setting::MinHold(hold("min_hold", value)?),
        _ => Setting::Renew(renew(value)?),
    })
}

fn ttl(value: &Expr) -> Result<Length> {
    let length = length("ttl", value)?;
    match length {
        Length::Known(ttl) if !TTL.contains(&ttl) => Err(at(
            value,
            "`ttl` must be between 100ms and 24h: it is how long the lock outlives a crash",
        )),
        _ => Ok(length),
    }
}

fn wait(value: &Expr) -> Result<Wait> {
    match word(value).map(ToString::to_string).as_deref() {
        Some("none") => return Ok(Wait::No),
        Some("forever") => return Ok(Wait::Forever),
        _ => {}
    }
    if let Some(Lit::Str(text)) = literal(value) {
        let text = text.value();
        if matches!(text.as_str(), "none" | "forever") {
            return Err(at(
                value,
                format!("`{text}` is a word, not a duration: write `wait = {text}`"),
            ));
        }
    }
    match length("wait", value)? {
        Length::Known(Duration::ZERO) => Err(at(value, "a wait of zero is spelt `wait = none`")),
        Length::Known(wait) if wait > DAY => {
            Err(at(value, "`wait` is at most 24h: longer than that is spelt `wait = forever`"))
        }
        length => Ok(Wait::UpTo(length)),
    }
}

fn hold(name: &str, value: &Expr) -> Result<Hold> {
    if word(value).is_some_and(|word| word == "none") {
        return Ok(Hold::Unbounded);
    }
    match length(name, value)? {
        Length::Known(Duration::ZERO) => Err(at(
            value,
            format!("`{name}` of zero means nothing: leave it out, or write `{name} = none`"),
        )),
        Length::Known(hold) if hold > DAY => {
            Err(at(value, format!("`{name}` is at most 24h: for no bound, write `{name} = none`")))
        }
        length => Ok(Hold::For(length)),
    }
}

pub(super) fn holds_in_order(settings: &[Setting], min_hold: &Expr) -> Result<()> {
    let known = |hold: &Hold| match hold {
        Hold::For(Length::Known(length)) => Some(*length),
        _ => None,
    };
    let max =
        settings.iter().find_map(|s| if let Setting::MaxHold(h) = s { known(h) } else { None });
    let min =
        settings.iter().find_map(|s| if let Setting::MinHold(h) = s { known(h) } else { None });
    match (min, max) {
        (Some(min), Some(max)) if min > max => {
            let max = duration::spell(max);
            Err(at(
                min_hold,
                format!("`min_hold` must not be longer than `max_hold`, which is {max}"),
            ))
        }
        _ => Ok(()),
    }
}

fn length(name: &str, value: &Expr) -> Result<Length> {
    let text = match literal(value) {
        None => return Ok(Length::Computed(value.clone())),
        Some(Lit::Str(text)) => text.value(),
        Some(Lit::Int(number)) if number.suffix().is_empty() => {
            return Err(at(
                value,
                format!(
                    "`{name} = {number}` has no unit: write `{name} = \"{number}s\"`, or a `Duration` expression"
                ),
            ));
        }
        Some(Lit::Int(number)) => {
            return Err(at(
                value,
                format!("a duration stands in quotes: write `{name} = \"{number}\"`"),
            ));
        }
        Some(_) => {
            return Err(at(
                value,
                format!(
                    "`{name}` takes a duration: `{name} = \"10s\"`, or a `Duration` expression"
                ),
            ));
        }
    };
    duration::parse(&text)
        .map(Length::Known)
        .map_err(|mistake| at(value, misspelled(name, &text, &mistake)))
}

fn misspelled(name: &str, text: &str, mistake: &duration::Mistake) -> String {
    use duration::Mistake;
    match mistake {
        Mistake::NoUnit(number) => format!(
            "`{name} = \"{text}\"` has no unit: write `\"{number}s\"`, `\"{number}ms\"`, `\"{number}m\"`, .."
        ),
        Mistake::UnknownUnit { number, unit } => {
            let unit_hint = match unit.chars().next().map(|c| c.to_ascii_lowercase()) {
                Some('m') if unit.to_ascii_lowercase().starts_with("mil") => "ms",
                Some('m') => "m",
                Some('h') => "h",
                Some('d') => "d",
                _ => "s",
            };
            if unit.is_empty() || duration::parse(&text.replace(' ', "")).is_ok() {
                let text: String = text.split_whitespace().collect();
                format!("a duration has no spaces: write `\"{text}\"`")
            } else {
                format!(
                    "unknown unit `{unit}`: write `\"{number}{unit_hint}\"`; the units are `d`, `h`, `m`, `s` and `ms`"
                )
            }
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
        Mistake::NotANumber => {
            format!(
                "`{text}` is not a duration: write `{name} = \"10s\"`, or a `Duration` expression"
            )
        }
    }
}

fn renew(value: &Expr) -> Result<bool> {
    match literal(value) {
        Some(Lit::Bool(renew)) => Ok(renew.value),
        _ => Err(at(
            value,
            "`renew` takes `true` or `false`; the lease is renewed every third of its `ttl`",
        )),
    }
}

pub(super) fn lease(value: Option<&Expr>, names: &[Ident]) -> Result<Lease> {
    let Some(value) = value else { return Ok(Lease::Unnamed) };
    match (word(value), literal(value)) {
        (Some(name), _) if names.contains(name) => Err(at(
            value,
            format!("`lease = {name}` would hide the argument `{name}`: choose another name"),
        )),
        (Some(name), _) => Ok(Lease::Named(name.clone())),
        (None, Some(Lit::Str(text))) => Err(at(
            value,
            match duration::parse(&text.value()) {
                Ok(_) => format!(
                    "`lease` names the lease inside the body: write `ttl = \"{}\"` for its length",
                    text.value()
                ),
                Err(_) => format!(
                    "`lease` takes a plain name, without quotes: `lease = {}`",
                    text.value()
                ),
            },
        )),
        _ => Err(at(value, "`lease` takes a plain name: `lease = lease`")),
    }
}

pub(super) fn on_lost(value: Option<&Expr>) -> Result<OnLost> {
    let Some(value) = value else { return Ok(OnLost::Cancel) };
    match word(value).map(ToString::to_string).as_deref() {
        Some("cancel") => return Ok(OnLost::Cancel),
        Some("finish") => return Ok(OnLost::Finish),
        _ => {}
    }
    Err(at(
        value,
        match literal(value) {
            Some(Lit::Str(text)) if matches!(text.value().as_str(), "cancel" | "finish") => {
                format!("without quotes: `on_lost = {}`", text.value())
            }
            _ => {
                "`on_lost` takes `cancel`, which drops the body when the lock is lost, or `finish`"
                    .to_owned()
            }
        },
    ))
}

pub(super) fn refusal(busy: Option<&Expr>, error: Option<&Expr>) -> Result<Refusal> {
    let mut mistakes = Mistakes::default();
    for (name, value) in [("on_busy", busy), ("on_error", error)] {
        if let Some(value) = value {
            mistakes.take(handler(name, value));
        }
    }
    mistakes.finish()?;
    Ok(match (busy.cloned(), error.cloned()) {
        (None, None) => Refusal::Convert,
        (None, Some(error)) => Refusal::Error(error),
        (Some(busy), None) => Refusal::Busy(busy),
        (Some(busy), Some(error)) => Refusal::Both { busy, error },
    })
}

fn handler(name: &str, value: &Expr) -> Result<()> {
    match ungrouped_expr(value) {
        Expr::Path(_) => Ok(()),
        Expr::Closure(closure) if closure.asyncness.is_none() => Ok(()),
        Expr::Closure(closure) => {
            Err(at(closure.asyncness, format!("`{name}` cannot wait: take the `async` away")))
        }
        Expr::Call(call) => {
            let function = call.func.to_token_stream().to_string().replace(' ', "");
            Err(at(value, format!("give the function, not its result: `{name} = {function}`")))
        }
        _ => {
            Err(at(value, format!("`{name}` takes a function or a closure: `{name} = |error| ..`")))
        }
    }
}

pub(super) fn root(value: Option<&Expr>) -> Result<Path> {
    let Some(value) = value else { return Ok(default_root()) };
    match (ungrouped_expr(value), literal(value)) {
        (Expr::Path(path), _) if path.qself.is_none() => Ok(path.path.clone()),
        (_, Some(Lit::Str(text))) => Err(at(
            value,
            format!("`crate` takes a path, without quotes: `crate = {}`", text.value()),
        )),
        _ => Err(at(value, "`crate` takes the path of `lock_core`: `crate = my_crate::lock_core`")),
    }
}
