//! The encoding of keys: different values never share a key.

use std::collections::HashMap;

use lock_core::{Key, key};
use lock_testkit::{Experiment, Rng, scale};

/// Difficult pieces for an encoder: separators, escapes, other systems' syntax, and non-ASCII text.
const PIECES: [&str; 20] = [
    "", "a", "1", ":", "%", "%3A", "~", "{", "}", "<", ">", " ", "\0", "\n", "\u{7f}", "ä", "😀",
    ".", "-", "a:b",
];
const LONG: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn value(rng: &mut Rng, before: &[String]) -> String {
    if rng.below(2_000) == 0 {
        let len = 1_024 + usize::try_from(rng.below(63 * 1_024)).unwrap();
        return "x".repeat(len) + &rng.below(9).to_string();
    }
    match rng.below(20) {
        // Around the length from which values are replaced by a digest.
        0 => LONG[usize::try_from(rng.below(3)).unwrap()..].to_owned() + &rng.below(9).to_string(),
        1 => "x".repeat(usize::try_from(rng.below(70)).unwrap()) + &rng.below(99).to_string(),
        // The encoded form of an earlier value.
        2 | 3 if !before.is_empty() => {
            let at = usize::try_from(rng.below(before.len() as u64)).unwrap();
            before[at].clone()
        }
        4 => rng.number().to_string(),
        _ => {
            let pieces = 1 + rng.below(6);
            let piece = |_| PIECES[usize::try_from(rng.below(20)).unwrap()];
            (0..pieces).map(piece).collect()
        }
    }
}

/// Two pairs of values could give the same key, or a value could add a separator.
#[test]
fn a_million_pairs_of_values_give_as_many_keys() {
    const ESCAPED: &str = "values escaped";
    const SHORTENED: &str = "values shortened";
    const AGAIN: &str = "values that look like an encoded one";
    const REJECTED: &str = "empty values rejected";
    const LARGE: &str = "values of up to 64 kB";
    let mut experiment = Experiment::new(
        1,
        "different values give different keys, and no value changes their structure",
        "values with separators, braces, controls, escapes and digests of other values",
        &[ESCAPED, SHORTENED, AGAIN, REJECTED, LARGE],
    );
    let mut rng = Rng::new(1);
    let mut keys: HashMap<(u8, String), (String, String)> = HashMap::new();
    let mut encoded = Vec::new();
    let pairs = scale(100_000).min(1_000_000);
    for _ in 0..pairs {
        let (one, other) = (value(&mut rng, &encoded), value(&mut rng, &encoded));
        experiment.saw(LARGE, [&one, &other].iter().filter(|value| value.len() > 1_024).count());
        let template = u8::try_from(rng.below(3)).unwrap();
        let key: Result<Key, _> = match template {
            0 => key!("order:<one>:<other>"),
            1 => key!("<one>-/<other>"),
            _ => key!("a<one>:b:<other>.c"),
        };
        if one.is_empty() || other.is_empty() {
            key.unwrap_err();
            experiment.saw(REJECTED, 1);
            continue;
        }
        let name = key.unwrap().as_str().to_owned();
        assert!(name.len() <= 256, "{name}");
        assert!(!name.contains(['{', '}']) && !name.contains(char::is_control), "{name}");
        if template == 0 {
            assert_eq!(name.matches(':').count(), 2, "{name}");
            let hole = name.split(':').nth(1).unwrap();
            experiment.saw(ESCAPED, usize::from(hole.contains('%')));
            experiment.saw(SHORTENED, usize::from(hole.starts_with('~') && hole.len() > 40));
            experiment.saw(AGAIN, usize::from(encoded.contains(&one)));
            if encoded.len() < 64 && rng.below(10) == 0 {
                encoded.push(hole.to_owned());
            }
        }
        let pair = (one, other);
        let before = keys.entry((template, name)).or_insert_with(|| pair.clone());
        assert_eq!(*before, pair, "two pairs share a key");
    }
    experiment.ran(pairs);
    experiment.finish();
}
