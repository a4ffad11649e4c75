//! Takes the prose out of a file: comments, documentation, messages and names.

/// A piece of prose, and the line it begins in.
#[derive(Debug, PartialEq)]
pub(crate) struct Prose {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// Comments, string literals and names of functions of a Rust source.
///
/// Lines of comments that follow each other are one piece, so that a phrase may cross a line end.
pub(crate) fn of_rust(source: &str) -> Vec<Prose> {
    let mut found: Vec<Prose> = Vec::new();
    let bytes = source.as_bytes();
    let (mut at, mut line) = (0, 1);
    // The line of the last comment, if nothing but blanks came since.
    let mut comment = None;
    while at < bytes.len() {
        let rest = &source[at..];
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            let text = rest[..length].trim_start_matches(['/', '!']).trim().to_owned();
            match found.last_mut() {
                Some(last) if comment == Some(line - 1) => {
                    last.text.push('\n');
                    last.text.push_str(&text);
                }
                _ => found.push(Prose { line, text }),
            }
            comment = Some(line);
            length
        } else if rest.starts_with("/*") {
            let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
            found.push(Prose { line, text: rest[..length].to_owned() });
            length
        } else if let Some(length) = string_length(source, at) {
            found.push(Prose { line, text: rest[..length].replace("\\\n", "\n") });
            comment = None;
            length
        } else if let Some(length) = character_length(rest) {
            length
        } else if let Some(name) = rest.strip_prefix("fn ")
            && !is_word(bytes, at)
        {
            let length = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
            found.push(Prose { line, text: name[..length].replace('_', " ") });
            comment = None;
            "fn ".len() + length
        } else {
            if !bytes[at].is_ascii_whitespace() {
                comment = None;
            }
            rest.chars().next().map_or(1, char::len_utf8)
        };
        line += source[at..at + length].matches('\n').count();
        at += length;
    }
    found
}

/// Whether the byte before `at` is part of a word.
fn is_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

/// The length of the string literal, raw or not, that begins at `at`.
fn string_length(source: &str, at: usize) -> Option<usize> {
    let rest = &source[at..];
    if !rest.starts_with(['"', 'r', 'b', 'c']) || is_word(source.as_bytes(), at) {
        return None;
    }
    let prefix = rest.len() - rest.trim_start_matches(['b', 'c']).len();
    let body = &rest[prefix..];
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if !raw[hashes..].starts_with('"') {
            return None;
        }
        let end = format!("\"{}", "#".repeat(hashes));
        let start = prefix + 1 + hashes + 1;
        let length = rest[start..].find(&end)?;
        return Some(start + length + end.len());
    }
    if prefix > 1 || !body.starts_with('"') {
        return None;
    }
    let mut escaped = false;
    for (offset, character) in body.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(prefix + offset + 1),
            _ => {}
        }
    }
    None
}

/// The length of a character literal that could be taken for the start of a string or a comment.
fn character_length(rest: &str) -> Option<usize> {
    let mut characters = rest.strip_prefix('\'')?.char_indices();
    let (_, first) = characters.next()?;
    if first == '\\' {
        let (offset, escaped) = characters.next()?;
        return Some(1 + offset + escaped.len_utf8());
    }
    let (offset, second) = characters.next()?;
    (second == '\'').then_some(1 + offset + 1)
}

/// All of a file that is prose or has little else.
pub(crate) fn of_text(source: &str) -> Vec<Prose> {
    // `#`, `--` and `//` begin comments; they would hide a phrase that crosses a line end.
    let clean = |line: &str| line.trim().trim_start_matches(['#', '-', '/', '*', ' ']).to_owned();
    let lines: Vec<_> = source.lines().map(clean).collect();
    vec![Prose { line: 1, text: lines.join("\n") }]
}

#[test]
fn prose_is_found_and_code_is_not() {
    let source = r##"
//! One
//! two.
use a::b; // three
/// four
fn five_six<'a>(x: &'a str) -> char { '"' }
const S: &str = "seven \"eight\" // nine";
const R: &str = r#"ten "eleven""#;
/* twelve
 */ let c = '\''; // thirteen
"##;
    let found: Vec<_> = of_rust(source).iter().map(|it| (it.line, it.text.clone())).collect();
    let expected = [
        (2, "One\ntwo."),
        (4, "three\nfour"),
        (6, "five six"),
        (7, "\"seven \\\"eight\\\" // nine\""),
        (8, "r#\"ten \"eleven\"\"#"),
        (9, "/* twelve\n */"),
        (10, "thirteen"),
    ];
    let expected: Vec<_> = expected.map(|(line, text)| (line, text.to_owned())).into();
    assert_eq!(found, expected);
}
