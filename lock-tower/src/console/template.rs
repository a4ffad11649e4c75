//! Templates that this process has seen, for keys of other processes.
//!
//! The store knows keys and no labels. The instances of a service lock by the same templates, so a
//! key that fits one is shown under it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// A program has few labels. This bounds what a program that leaks text can make of them.
const MOST: usize = 256;

/// The labels that were seen.
#[derive(Default)]
pub(super) struct Templates(Mutex<BTreeSet<&'static str>>);

impl Templates {
    pub(super) fn learn(&self, labels: impl Iterator<Item = &'static str>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for label in labels {
            if known.len() < MOST && !is_none(label) {
                known.insert(label);
            }
        }
    }

    /// The template that `key` fits with the most text of its own. It need not be the one that made
    /// the key. One that is a hole alone fits all keys, and so tells nothing.
    pub(super) fn of(&self, key: &str) -> Option<&'static str> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = known.iter().filter_map(|template| Some((fit(template, key)?, *template)));
        fitting.filter(|(own, _)| *own > 0).max().map(|(_, template)| template)
    }
}

/// Whether the label says that there is none.
pub(super) fn is_none(label: &str) -> bool {
    label == "-"
}

/// How many bytes of `key` are the template's own text, if the key fits.
fn fit(template: &str, key: &str) -> Option<usize> {
    let (mut template, mut key, mut own) = (template, key, 0);
    loop {
        let Some(open) = template.find('<') else {
            return (template == key).then_some(own + template.len());
        };
        let (literal, hole) = template.split_at(open);
        key = key.strip_prefix(literal)?;
        own += literal.len();
        template = &hole[hole.find('>')? + 1..];
        // The value ends where the text after the hole begins.
        let next = &template[..template.find('<').unwrap_or(template.len())];
        let end = match next {
            "" => key.find(|letter| !is_of_a_value(letter)).unwrap_or(key.len()),
            next => key
                .char_indices()
                .skip(1)
                .find_map(|(at, _)| key[at..].starts_with(next).then_some(at))?,
        };
        let (value, rest) = key.split_at(end);
        if value.is_empty() || !value.chars().all(is_of_a_value) {
            return None;
        }
        key = rest;
    }
}

/// What a hole leaves of a value: the letters that are not escaped, and those of escapes.
fn is_of_a_value(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-' | '%' | '~')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_under_the_template_that_made_them() {
        let templates = Templates::default();
        let known = ["order:<voucher>:<user>", "order:<user>", "schema", "<job>", "a<x>b<y>", "-"];
        templates.learn(known.into_iter());
        let cases = [
            ("order:summer:7", Some("order:<voucher>:<user>")),
            ("order:7", Some("order:<user>")),
            ("order:a%3Ab", Some("order:<user>")),
            ("schema", Some("schema")),
            ("nightly", None),
            ("a1b2", Some("a<x>b<y>")),
            ("order:", None),
            ("order:a:b:c", None),
            ("order:<b>", None),
            ("\u{e9}t\u{e9}", None),
            ("-", None),
        ];
        for (key, template) in cases {
            assert_eq!(templates.of(key), template, "{key}");
        }
    }

    #[test]
    fn odd_templates_fit_nothing_and_do_not_panic() {
        for template in ["<", "<<", "a<b", "<>", "><", ">", ""] {
            for key in ["", "a", "a\u{e9}", "<b"] {
                assert!(fit(template, key).is_none() || !key.is_empty() || template.is_empty());
            }
        }
    }
}
