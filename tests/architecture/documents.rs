//! What the documents point to exists.

use std::path::{Path, PathBuf};

use crate::sources::{shown, texts, workspace};

/// Where a path in ARCHITECTURE.md may begin.
const ROOTS: [&str; 3] = ["", "lock-core/src", "lock-core/src/store/redis"];

/// The text in backticks outside of code blocks, and the targets of links.
fn mentions(text: &str) -> (Vec<String>, Vec<String>) {
    let outside: Vec<_> = text.split("```").step_by(2).collect();
    let text = outside.join("");
    let spans = text.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    (spans, links.map(|(target, _)| target.to_owned()).collect())
}

/// Whether a span is meant as a path, and not as code.
fn is_path(span: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_file = [".rs", ".md", ".lua", ".txt"].iter().any(|end| span.ends_with(end));
    span.chars().all(plain) && (is_file || span.ends_with('/'))
}

fn missing_paths(text: &str, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let (spans, _) = mentions(text);
    let found = |span: &str| ROOTS.iter().any(|root| exists(&Path::new(root).join(span)));
    spans.into_iter().filter(|span| is_path(span) && !found(span)).collect()
}

fn missing_links(text: &str, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let (_, links) = mentions(text);
    let is_external = |link: &str| link.contains("://") || link.starts_with('#');
    let is_item = |link: &str| link.contains("::") || !link.contains(['.', '/']);
    let file = |link: &str| PathBuf::from(link.split('#').next().unwrap_or_default());
    let missing = |link: &String| !is_external(link) && !is_item(link) && !exists(&file(link));
    links.into_iter().filter(missing).collect()
}

#[test]
fn the_paths_in_architecture_md_exist() {
    let text = std::fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let missing = missing_paths(&text, |path| workspace().join(path).exists());
    assert!(missing.is_empty(), "ARCHITECTURE.md names missing paths: {missing:#?}");
}

#[test]
fn relative_links_lead_somewhere() {
    let is_markdown = |path: &&PathBuf| path.extension().is_some_and(|end| end == "md");
    let mut messages = Vec::new();
    for path in texts().iter().filter(is_markdown) {
        let text = std::fs::read_to_string(path).unwrap();
        let folder = path.parent().unwrap();
        for link in missing_links(&text, |link| folder.join(link).exists()) {
            messages.push(format!("{}: {link}", shown(path)));
        }
    }
    assert!(messages.is_empty(), "broken links:\n{}", messages.join("\n"));
}

#[test]
fn missing_paths_and_broken_links_are_found() {
    let text = "See `lock/gone.rs` and `lock/`, not `Store::acquire` or `order:<id>`; \
                [a](gone.md#part), [b](https://x.y/z), [c](#part), [d](crate::Mutex).\n\
                ```text\n`a/b.rs` [e](b.md)\n```\n";
    assert_eq!(missing_paths(text, |path| path.ends_with("lock")), ["lock/gone.rs"]);
    assert_eq!(missing_links(text, |_| false), ["gone.md#part"]);
}
