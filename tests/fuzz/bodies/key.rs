//! The encoder of keys: different values give different keys, and no value can leave its hole.

use lock_core::private::Template;
use lock_core::{ErrorKind, Key, KeyWriter};

/// Holes per key. With more, a key of long values would exceed the maximum length.
const HOLES: usize = 7;
/// The maximum length of an encoded value.
const LONGEST_HOLE: usize = 65;

/// Reads two lists of values from `data`, and encodes each as a key.
pub fn encode(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let (one, two) = text.split_once('\u{1e}').unwrap_or((&text, ""));
    let (one, two) = (values(one), values(two));
    let keys = [&one, &two].map(|values| key(values));
    if let [Some(first), Some(second)] = &keys {
        assert_eq!(one == two, first == second, "{one:?} {two:?}: {first:?}");
    }
    // `Key::new` takes a name without encoding it.
    let fits = (1..=512).contains(&text.len()) && !text.starts_with('{');
    match Key::new(text.clone()) {
        Ok(key) => {
            assert!(fits && key.as_str() == text, "{key:?}");
            // `Debug` does not show the name.
            assert_eq!((&*format!("{key:?}"), key.label()), ("Key(\"-\")", "-"), "{text:?}");
        }
        Err(error) => assert!(!fits && error.kind() == ErrorKind::InvalidKey, "{error:?}"),
    }
    // A value written in parts gives the same key as the whole value.
    if let Some((at, _)) = text.char_indices().nth(1) {
        let (head, tail) = text.split_at(at);
        assert_eq!(key(&[&text]), encoded(|template| template.hole(&Parts(head, tail))));
    }
    keys.iter().all(Option::is_some)
}

/// Splits `text` into at most `HOLES` values.
fn values(text: &str) -> Vec<&str> {
    text.splitn(HOLES, '\u{1f}').collect()
}

struct Parts<'a>(&'a str, &'a str);

impl lock_core::KeyPart for Parts<'_> {
    fn write(&self, out: &mut KeyWriter) -> Result<(), lock_core::Error> {
        out.push_str(self.0);
        out.push_str(self.1);
        Ok(())
    }
}

fn encoded(fill: impl FnOnce(&mut Template)) -> Option<String> {
    let mut template = Template::new("test:<values>");
    template.lit("test:");
    fill(&mut template);
    template.done().ok().map(|key| key.as_str().to_owned())
}

/// The key of the values; `None` if a value is empty.
fn key(values: &[&str]) -> Option<String> {
    let key = encoded(|template| {
        for (place, value) in values.iter().enumerate() {
            if place > 0 {
                template.lit(":");
            }
            template.hole(*value);
        }
    });
    assert_eq!(key.is_some(), values.iter().all(|value| !value.is_empty()), "{values:?}");
    let holes = key.as_deref()?.strip_prefix("test:").unwrap();
    let holes: Vec<_> = holes.split(':').collect();
    assert_eq!(holes.len(), values.len(), "{values:?} {holes:?}");
    for (hole, value) in holes.iter().zip(values) {
        assert!((1..=LONGEST_HOLE).contains(&hole.len()), "{hole}");
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-%~".contains(&byte);
        assert!(hole.bytes().all(plain), "{hole}");
        assert_eq!(hole.starts_with('~'), hole.len() == LONGEST_HOLE, "{hole}");
        // An encoded value can be decoded unless it is a digest.
        if !hole.starts_with('~') {
            assert_eq!(decode(hole), value.as_bytes());
        }
    }
    key
}

fn decode(hole: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), hole.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(&after[..2]).unwrap();
            bytes.push(u8::from_str_radix(digits, 16).unwrap());
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    bytes
}
