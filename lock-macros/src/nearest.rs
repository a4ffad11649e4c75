//! The name that was probably meant.

/// The one of `names` that `wrong` is most like, if it is like any.
pub(crate) fn nearest<'a>(
    wrong: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let wrong = plain(wrong);
    // A slip in three characters is a typing error, more is another word.
    let limit = wrong.len() / 3;
    names
        .into_iter()
        .filter(|name| *name != "self")
        .map(|name| (distance(&wrong, &plain(name)), name))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= limit)
        .map(|(_, name)| name)
}

/// `name` without what people mistype most: case and underscores.
fn plain(name: &str) -> Vec<char> {
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

/// How many characters have to be put in, taken out or replaced to get from `a` to `b`.
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
    fn a_slip_is_recognised_and_another_word_is_not() {
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
