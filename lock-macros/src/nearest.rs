//! Finds the name that the user probably meant.

/// The name in `names` closest to `wrong`, if one is close enough.
pub(crate) fn nearest<'a>(
    wrong: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let wrong = plain(wrong);
    // One wrong character in three is a typing error. More make another word.
    let limit = wrong.len() / 3;
    names
        .into_iter()
        .filter(|name| *name != "self")
        .map(|name| (distance(&wrong, &plain(name)), name))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= limit)
        .map(|(_, name)| name)
}

/// `name` without case and underscores, which are mistyped most often.
fn plain(name: &str) -> Vec<char> {
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

/// How many characters must be inserted, removed or replaced to turn `a` into `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typo_is_recognised_and_another_word_is_not() {
        let names = ["self", "user_id", "order", "tx"];
        for (wrong, right) in [
            ("userid", Some("user_id")),
            ("userId", Some("user_id")),
            ("usre_id", Some("user_id")),
            ("user_ids", Some("user_id")),
            ("oder", Some("order")),
            ("orders", Some("order")),
            ("voucher", None),
            ("tz", None),
            ("seld", None),
        ] {
            assert_eq!(nearest(wrong, names), right, "{wrong}");
        }
    }
}
