//! No tell-tale words in comments, documentation, messages and names of tests.

use std::path::Path;

use crate::sources::{list, shown, texts};
use crate::text::{Prose, of_rust, of_text};

/// A phrase: one list of alternatives for each of its words.
type Phrase = Vec<Vec<String>>;

fn phrases() -> Vec<Phrase> {
    let words = list("words.txt");
    let lines = words.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().map(alternatives).collect()).collect()
}

fn alternatives(word: &str) -> Vec<String> {
    word.trim_matches(['(', ')']).split('|').map(str::to_owned).collect()
}

/// The phrases in `text`, each with the line it begins in, counted from 0.
fn find(phrases: &[Phrase], text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    for (line, text) in text.lines().enumerate() {
        let parts = text.split(|c: char| !c.is_alphanumeric() && c != '\'');
        words.extend(parts.filter(|word| !word.is_empty()).map(|word| (line, word.to_lowercase())));
    }
    let mut found = Vec::new();
    for at in 0..words.len() {
        for phrase in phrases {
            let here = &words[at..words.len().min(at + phrase.len())];
            let matches = here.len() == phrase.len()
                && here.iter().zip(phrase).all(|((_, word), allowed)| allowed.contains(word));
            if matches {
                let text: Vec<_> = here.iter().map(|(_, word)| word.as_str()).collect();
                found.push((here[0].0, text.join(" ")));
            }
        }
    }
    found
}

fn prose(path: &Path, source: &str) -> Vec<Prose> {
    if path.extension().is_some_and(|extension| extension == "rs") {
        of_rust(source)
    } else {
        of_text(source)
    }
}

/// Violations in one file: the line's number, and the message.
fn violations(phrases: &[Phrase], path: &Path, source: &str) -> Vec<(usize, String)> {
    let name = shown(path);
    let mut found = Vec::new();
    for piece in prose(path, source) {
        for (offset, words) in find(phrases, &piece.text) {
            let line = piece.line + offset;
            found.push((line, format!("{name}:{line}: \"{words}\"")));
        }
    }
    found.dedup();
    found
}

/// `path | part of the line | reason`
fn allowed(text: &str) -> Vec<(&str, &str, &str)> {
    let entries = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let parts = entries.map(|line| line.splitn(3, " | ").collect::<Vec<_>>());
    parts
        .map(|parts| {
            let [path, part, reason] = parts[..] else { panic!("allowed.txt: {parts:?}") };
            (path, part, reason)
        })
        .collect()
}

#[test]
fn no_tell_tale_words() {
    let list = list("allowed.txt");
    let (phrases, allowed) = (phrases(), allowed(&list));
    let mut used = vec![false; allowed.len()];
    let mut found = Vec::new();
    for path in texts() {
        let source = std::fs::read_to_string(&path).unwrap();
        let name = shown(&path);
        for (line, message) in violations(&phrases, &path, &source) {
            let text = source.lines().nth(line - 1).unwrap_or_default();
            let excuse = allowed.iter().position(|(path, part, reason)| {
                *path == name && text.contains(part) && !reason.is_empty()
            });
            match excuse {
                Some(entry) => used[entry] = true,
                None => found.push(message),
            }
        }
    }
    let unused = allowed.iter().zip(used).filter(|(_, used)| !used);
    found.extend(unused.map(|(entry, _)| format!("allowed.txt: {entry:?} is not needed")));
    assert!(found.is_empty(), "say it otherwise:\n{}", found.join("\n"));
}

#[test]
fn each_word_of_the_list_is_found_wherever_prose_stands() {
    let phrases = phrases();
    assert!(phrases.len() > 10);
    for phrase in &phrases {
        // The second alternative, if there is one, across a line end.
        let words: Vec<_> = phrase.iter().map(|words| words.last().unwrap().as_str()).collect();
        let (plain, split) = (words.join(" "), words.join("\n/// "));
        let name = words.join("_");
        let planted = [
            ("a.rs", format!("/// The task {split} here.\nfn f() {{}}\n")),
            ("a.rs", format!("fn f() {{}} // {}.\n", plain.to_uppercase())),
            ("a.rs", format!("fn a_{name}_waits() {{}}\n")),
            ("a.rs", format!("fn f() {{ warn!(\"it is {plain}: wait\") }}\n")),
            ("a.lua", format!("-- It is {plain}.\n")),
            ("a.md", format!("# It is {plain}.\n")),
            ("Makefile", format!("help: ## Is {plain}\n")),
        ];
        for (path, source) in planted {
            let found = violations(&phrases, Path::new(path), &source);
            let expected = format!("{path}:1: \"{plain}\"");
            assert!(found.iter().any(|(_, message)| *message == expected), "{source}: {found:?}");
        }
    }
}

#[test]
fn similar_words_are_no_violation() {
    let source = "/// Shallow courses, hours, a seashell.\nfn tell() { marshall() }\n";
    assert!(violations(&phrases(), Path::new("a.rs"), source).is_empty());
}
