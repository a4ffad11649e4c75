use proptest::prelude::*;
use quote::ToTokens as _;

use super::*;

/// The parts of `source`. Holes are written as their tokens in brackets.
fn parts(source: &str) -> Result<Vec<String>, Mistake> {
    Ok(Template::parse(source)?
        .parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Hole(expression) => format!("[{}]", expression.to_token_stream()),
        })
        .collect())
}

/// The only hole of `source`, without spaces.
fn one_hole(source: &str) -> String {
    let parts = parts(source).unwrap_or_else(|mistake| panic!("{source}: {mistake:?}"));
    assert_eq!(parts.len(), 1, "{source}: {parts:?}");
    parts[0][1..parts[0].len() - 1].replace(' ', "")
}

#[test]
fn hole_ends_where_a_whole_expression_ends() {
    for expression in [
        "user_id",
        "r#type",
        "self.id()",
        "Self::NAME",
        "N",
        "t.0",
        "t.0.1",
        "s.v[0]",
        r#"s.m["k"]"#,
        r#"s.m["]>"]"#,
        "f(a)",
        "f(a > b)",
        "gen::<u64>()",
        "Vec::<u32>::new().len()",
        "Vec::<Vec<u32>>::new().len()",
        "a as u64",
        "a as Vec<u8>",
        "x.iter().map(|x| -> u32 { x + 1 }).sum::<u32>()",
        "if a > b { 1 } else { 2 }",
        "match o { Some(n) if n > 3 => n, _ => 0 }",
        r#""x>y""#,
        r#""x\">y""#,
        r##"r#"x">y"#"##,
        r#"r"x>y\""#,
        r#"b"x>y""#,
        "'>'",
        r"'\''",
        r"'\u{3e}'",
        "b'>'",
        "(a > b)",
        "(a >> 2)",
        "(<T as Tr>::ID)",
        "a /* > */",
        "a /* /* > */ > */",
        "f::<'static, T>()",
        "größe",
        "a.b.c.d()?",
        "&a",
        "*a",
        "!a",
        "-a",
        "a.await",
        "m!(a > b)",
        "[a > b, c][0]",
        "|| a > b",
    ] {
        // A comment leaves no tokens. A closure with `>` in its body needs parentheses in `<…>`.
        let same = match expression {
            "a /* > */" | "a /* /* > */ > */" => "a".to_owned(),
            "|| a > b" => continue,
            _ => expression.replace(' ', ""),
        };
        assert_eq!(one_hole(&format!("<{expression}>")), same, "{expression}");
        assert_eq!(one_hole(&format!("{{{expression}}}")), same, "{expression}");
    }
}

#[test]
fn braces_close_only_braces() {
    for expression in ["a > b", "a >> 2", "<T as Tr>::ID", "if a == b { 1 } else { 2 }", "|| a > b"]
    {
        assert_eq!(one_hole(&format!("{{{expression}}}")), expression.replace(' ', ""));
    }
}

#[test]
fn text_and_holes_alternate() {
    assert_eq!(parts("order").unwrap(), ["order"]);
    assert_eq!(parts("order:<a>:{b}").unwrap(), ["order:", "[a]", ":", "[b]"]);
    assert_eq!(parts("<a><b>").unwrap(), ["[a]", "[b]"]);
    assert_eq!(parts("<a>>>").unwrap(), ["[a]", ">"]);
    assert_eq!(parts("<<a>>").unwrap(), ["<a>"]);
    assert_eq!(parts("{{<a>}}").unwrap(), ["{", "[a]", "}"]);
    assert_eq!(parts("<<<a>").unwrap(), ["<", "[a]"]);
    assert_eq!(parts("ключ:<a>:é").unwrap(), ["ключ:", "[a]", ":é"]);
}

#[test]
fn mistakes_are_distinguished() {
    let empty = |open, close| Mistake::EmptyHole { open, close };
    let unclosed = |open, close| Mistake::Unclosed { open, close };
    let format = |e: &str, open, close| Mistake::Format { expression: e.to_owned(), open, close };
    let not = |t: &str, open, close| Mistake::NotAnExpression { text: t.to_owned(), open, close };
    for (source, mistake) in [
        ("", Mistake::Empty),
        ("a<>", empty('<', '>')),
        ("a{}", empty('{', '}')),
        ("a< >", empty('<', '>')),
        ("a<id", unclosed('<', '>')),
        ("a{id", unclosed('{', '}')),
        ("a{id>", unclosed('{', '}')),
        ("a<id}", unclosed('<', '>')),
        ("a<", unclosed('<', '>')),
        ("<\"id", unclosed('<', '>')),
        ("a>", Mistake::Unmatched { close: '>' }),
        ("a}", Mistake::Unmatched { close: '}' }),
        ("<a > b>", Mistake::Unmatched { close: '>' }),
        ("<a >> 2>", Mistake::Unmatched { close: '>' }),
        ("<<T as Tr>::ID>", Mistake::Unmatched { close: '>' }),
        ("{id:>8}", format("id", '{', '}')),
        ("{id:?}", format("id", '{', '}')),
        ("{a.b:#x}", format("a.b", '{', '}')),
        ("<id:04>", format("id", '<', '>')),
        ("<a b>", not("a b", '<', '>')),
        ("<type>", not("type", '<', '>')),
        ("<\"id>", not("\"id", '<', '>')),
        ("<'>", not("'", '<', '>')),
        ("<a(>", not("a(", '<', '>')),
        ("<a)>", not("a)", '<', '>')),
        ("<`>", not("`", '<', '>')),
        ("<\u{1}>", not("\u{1}", '<', '>')),
        ("<a /* >", not("a /*", '<', '>')),
        ("<a // b>", not("a // b", '<', '>')),
        ("<a: b>", format("a", '<', '>')),
    ] {
        assert_eq!(parts(source), Err(mistake), "{source:?}");
    }
}

#[test]
fn template_without_holes_is_constant() {
    assert!(Template::parse("order:<<id>>").unwrap().is_constant());
    assert!(!Template::parse("order:<id>").unwrap().is_constant());
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_rejected(source in r#"[a-z0-9<>{}()\[\]'"/*\\:.|>= é-]{0,24}"#) {
        drop(parts(&source));
    }

    #[test]
    fn any_string_is_parsed_or_rejected(source in any::<String>()) {
        drop(parts(&source));
    }

    #[test]
    fn doubled_characters_are_literals(text in "[a-z<>{}:]{1,16}") {
        let doubled: String = text
            .chars()
            .flat_map(|c| std::iter::repeat_n(c, if "<>{}".contains(c) { 2 } else { 1 }))
            .collect();
        prop_assert_eq!(parts(&doubled), Ok(vec![text]));
    }

    #[test]
    fn holes_keep_their_positions(
        pieces in prop::collection::vec(("[a-z:.]{1,4}", "[a-z]{1,3}_", any::<bool>()), 1..5)
    ) {
        let mut source = String::new();
        let mut expected = Vec::new();
        for (text, name, braces) in pieces {
            source += &if braces { format!("{text}{{{name}}}") } else { format!("{text}<{name}>") };
            expected.push(text);
            expected.push(format!("[{name}]"));
        }
        prop_assert_eq!(parts(&source), Ok(expected));
    }
}
