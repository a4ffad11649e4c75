//! The parser of key templates: it ends, and its text and holes are those of the source.

#[allow(dead_code, clippy::redundant_pub_crate)] // this target uses a part of it
#[path = "../../../lock-macros/src/template.rs"]
mod parser;

use self::parser::{Part, Template};

/// Parses `data`.
pub fn parse(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let special = |c| matches!(c, '<' | '>' | '{' | '}');
    let Ok(template) = Template::parse(text) else {
        assert!(text.is_empty() || text.contains(special), "{text:?} is plain text");
        return false;
    };
    assert_eq!(template.source, text);
    assert!(!template.parts.is_empty());
    assert_eq!(template.is_constant(), template.holes().count() == 0);
    let mut literal = String::new();
    for (place, part) in template.parts.iter().enumerate() {
        if let Part::Text(part) = part {
            assert!(!part.is_empty());
            let before = place.checked_sub(1).map(|before| &template.parts[before]);
            assert!(!matches!(before, Some(Part::Text(_))), "two adjacent text parts");
            literal.push_str(part);
        }
    }
    // The template contains every character of the text, in this order.
    let mut written = text.chars();
    assert!(literal.chars().all(|c| written.any(|other| other == c)), "{literal:?} of {text:?}");
    // Escaped text parses as the same text.
    let escaped: String = literal
        .chars()
        .flat_map(|c| std::iter::repeat_n(c, if special(c) { 2 } else { 1 }))
        .collect();
    if let Ok(again) = Template::parse(&escaped) {
        assert!(matches!(&*again.parts, [Part::Text(again)] if *again == literal), "{escaped:?}");
    } else {
        assert!(literal.is_empty(), "{escaped:?}");
    }
    true
}
