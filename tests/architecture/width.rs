//! Comments and documentation wrap at 100 columns.

use std::path::Path;

use crate::sources::{shown, texts};

const COLUMNS: usize = 100;

/// Where comments begin, by the file's extension.
fn marker(path: &Path) -> Option<&'static str> {
    let Some(extension) = path.extension().and_then(|extension| extension.to_str()) else {
        return Some("#");
    };
    match extension {
        "rs" | "mjs" => Some("//"),
        "lua" | "sql" => Some("--"),
        "toml" | "py" | "sh" | "conf" => Some("#"),
        "md" => Some(""),
        _ => None,
    }
}

/// Whether a line is too wide and could be wrapped.
fn is_too_wide(line: &str, marker: &str) -> bool {
    if line.chars().count() <= COLUMNS {
        return false;
    }
    let comment = if marker.is_empty() {
        line
    } else {
        let at = line.find(marker);
        // A comment behind code counts, too; `://` is part of an address.
        let Some(at) = at.filter(|at| *at == 0 || line.as_bytes()[at - 1].is_ascii_whitespace())
        else {
            return false;
        };
        &line[at..]
    };
    let text = comment.trim_start_matches(['/', '!', '-', '#', ' ', '>', '*']);
    // Tables, and what has no place for a line end.
    let is_table = text.starts_with('|');
    let is_target = text.starts_with('[') && text.contains("]: ");
    !is_table && !is_target && text.contains(' ')
}

fn violations(path: &Path, source: &str) -> Vec<String> {
    let Some(marker) = marker(path) else { return Vec::new() };
    let name = shown(path);
    let mut in_code = false;
    let mut found = Vec::new();
    for (number, line) in source.lines().enumerate() {
        in_code ^= marker.is_empty() && line.trim_start().starts_with("```");
        if !in_code && is_too_wide(line, marker) {
            let columns = line.chars().count();
            found.push(format!("{name}:{}: {columns} columns", number + 1));
        }
    }
    found
}

/// Reports that programs write.
fn is_generated(path: &str) -> bool {
    matches!(path, "tests/FAULTS.md" | "benches/RESULTS.md")
}

#[test]
fn comments_wrap_at_a_hundred_columns() {
    let mut found = Vec::new();
    for path in texts().iter().filter(|path| !is_generated(&shown(path))) {
        let source = std::fs::read_to_string(path).unwrap();
        found.extend(violations(path, &source));
    }
    assert!(found.is_empty(), "wrap at {COLUMNS} columns:\n{}", found.join("\n"));
}

#[test]
fn a_wide_comment_is_found() {
    let wide = "ninety-seven characters ".repeat(4) + "and five";
    assert_eq!(wide.len(), 104);
    for (path, line) in [
        ("a.rs", format!("    // {wide}")),
        ("a.rs", format!("//! {wide}")),
        ("a.rs", format!("let a = b; // {}", &wide[..90])),
        ("a.lua", format!("-- {wide}")),
        ("a.md", wide.clone()),
        ("Makefile", format!("# {wide}")),
        ("Cargo.toml", format!("# {wide}")),
    ] {
        assert_eq!(violations(Path::new(path), &line).len(), 1, "{line}");
    }
    for (path, line) in [
        ("a.rs", format!("// {}", &wide[..97])),
        ("a.rs", format!("//! | {wide} |")),
        ("a.rs", format!("// {}", "x".repeat(120))),
        ("a.rs", format!("call(\"{}\");", "redis://x".repeat(20))),
        ("a.md", format!("| {wide} |")),
        ("a.md", format!("```\n{wide}\n```")),
    ] {
        assert!(violations(Path::new(path), &line).is_empty(), "{line}");
    }
}
