//! The template of a key: text with holes.
//!
//! ```text
//! template = { text | hole } ;                 (not empty)
//! text     = any character but < > { }, or one of them doubled: << >> {{ }}
//! hole     = "<" expression ">" | "{" expression "}" ;
//! ```
//!
//! A hole ends at the first closer where the text so far parses as one whole Rust expression.
//! `<a.b[0]>`, `<f::<u64>(x)>` and `<if a > b { 1 } else { 2 }>` are holes. `<a > b>` is not,
//! because `a` is already an expression. Write `<(a > b)>` instead.
//!
//! The text is scanned before it is parsed. If the compiler's lexer got half a string literal, it
//! would report an error even if the result is discarded.

use syn::Expr;

/// A parsed template.
pub(crate) struct Template {
    /// The template as it was written, which names metrics and spans.
    pub(crate) source: String,
    pub(crate) parts: Vec<Part>,
}

/// A piece of a template.
pub(crate) enum Part {
    Text(String),
    Hole(Expr),
}

/// What is wrong with a template. `messages` has the words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Nothing at all.
    Empty,
    /// `<>`
    EmptyHole { open: char, close: char },
    /// `<id`
    Unclosed { open: char, close: char },
    /// `id>`
    Unmatched { close: char },
    /// `{id:>8}`, where `expression` is `id`.
    Format { expression: String, open: char, close: char },
    /// `<a b>`, where `text` ends before the first closer.
    NotAnExpression { text: String, open: char, close: char },
}

impl Template {
    pub(crate) fn parse(source: &str) -> Result<Self, Mistake> {
        if source.is_empty() {
            return Err(Mistake::Empty);
        }
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = source;
        while let Some(first) = rest.chars().next() {
            let after = &rest[first.len_utf8()..];
            let special = matches!(first, '<' | '>' | '{' | '}');
            if special && after.starts_with(first) {
                text.push(first);
                rest = &after[first.len_utf8()..];
            } else if let Some(close) = closer(first) {
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                let (expression, after) = hole(after, first, close)?;
                parts.push(Part::Hole(expression));
                rest = after;
            } else if special {
                return Err(Mistake::Unmatched { close: first });
            } else {
                text.push(first);
                rest = after;
            }
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(Self { source: source.to_owned(), parts })
    }

    /// Whether the key is the same for every call.
    pub(crate) fn is_constant(&self) -> bool {
        !self.parts.iter().any(|part| matches!(part, Part::Hole(_)))
    }

    pub(crate) fn holes(&self) -> impl Iterator<Item = &Expr> {
        self.parts.iter().filter_map(|part| match part {
            Part::Hole(expression) => Some(expression),
            Part::Text(_) => None,
        })
    }
}

fn closer(open: char) -> Option<char> {
    match open {
        '<' => Some('>'),
        '{' => Some('}'),
        _ => None,
    }
}

/// Parses the hole at the start of `text`, after its opener, and returns the rest of `text`.
fn hole(text: &str, open: char, close: char) -> Result<(Expr, &str), Mistake> {
    let mut first = None;
    for end in candidates(text, close) {
        let inside = &text[..end];
        if inside.trim().is_empty() {
            return Err(Mistake::EmptyHole { open, close });
        }
        if let Ok(expression) = syn::parse_str::<Expr>(inside) {
            return Ok((expression, &text[end + close.len_utf8()..]));
        }
        first.get_or_insert(inside);
    }
    // If the scanner found no closer (`<a(>`), the message quotes the text up to the first one.
    let Some(inside) = first.or_else(|| text.find(close).map(|end| &text[..end])) else {
        return Err(Mistake::Unclosed { open, close });
    };
    Err(match format_argument(inside) {
        Some(expression) => Mistake::Format { expression, open, close },
        None => Mistake::NotAnExpression { text: inside.trim().to_owned(), open, close },
    })
}

/// The `id` of `id:>8`, if `inside` is a `format!` argument with a specifier.
fn format_argument(inside: &str) -> Option<String> {
    let (expression, specifier) = inside.split_once(':')?;
    let known = |c: char| c.is_ascii_alphanumeric() || "<^>+-#.?*$ ".contains(c);
    (specifier.chars().all(known) && syn::parse_str::<Expr>(expression).is_ok())
        .then(|| expression.trim().to_owned())
}

/// The positions of `close` in `text` outside literals, comments and brackets.
///
/// Stops where the text cannot be the start of an expression, so that the lexer never gets text
/// that it would report.
fn candidates(text: &str, close: char) -> Vec<usize> {
    let mut found = Vec::new();
    let mut brackets = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if c == close && brackets.is_empty() {
            found.push(at);
            at += c.len_utf8();
            continue;
        }
        match c {
            '(' => brackets.push(')'),
            '[' => brackets.push(']'),
            '{' => brackets.push('}'),
            ')' | ']' | '}' if brackets.pop() != Some(c) => break,
            _ => {}
        }
        match token(&text[at..]) {
            Some(length) => at += length,
            None => break,
        }
    }
    found
}

/// The length of the first token of `text`, or of one character of it. `None` if the compiler's
/// lexer would report an error.
fn token(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    match first {
        '"' => string(text),
        '\'' => quote(text),
        '/' if text.starts_with("//") => Some(text.find('\n').unwrap_or(text.len())),
        '/' if text.starts_with("/*") => block_comment(text),
        _ if first.is_alphabetic() || first == '_' => {
            let word = text.find(|c: char| !is_word(c)).unwrap_or(text.len());
            match &text[..word] {
                "r" | "br" | "cr" => Some(raw_string(text, word).unwrap_or(word)),
                _ => Some(word),
            }
        }
        _ if first.is_ascii_whitespace() || first.is_ascii_digit() => Some(1),
        _ if first.is_ascii_punctuation() && !matches!(first, '`' | '\\') => Some(1),
        _ => None,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `"…"`, with escapes.
fn string(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// `r"…"` and `r#"…"#`, after a prefix of `prefix` bytes. `None` if `text` is not a raw string.
fn raw_string(text: &str, prefix: usize) -> Option<usize> {
    let hashes = text[prefix..].chars().take_while(|c| *c == '#').count();
    let start = prefix + hashes + 1;
    if !text[prefix + hashes..].starts_with('"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    text[start..].find(&end).map(|at| start + at + end.len())
}

/// `'x'`, `'\n'`, `'\u{3e}'`, or a lifetime.
fn quote(text: &str) -> Option<usize> {
    let mut inside = text.chars().skip(1);
    match (inside.next()?, inside.next()) {
        ('\\', Some(escape)) => {
            let start = 2 + escape.len_utf8();
            text[start..].find('\'').map(|at| start + at + 1)
        }
        (c, Some('\'')) => Some(1 + c.len_utf8() + 1),
        (c, _) if c.is_alphabetic() || c == '_' => Some(1),
        _ => None,
    }
}

/// `/* … */`, nested.
fn block_comment(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += text[at..].chars().next()?.len_utf8();
        }
    }
    None
}

#[cfg(test)]
#[path = "template/tests.rs"] // the fuzz targets include this file by its path
mod tests;
