//! No import cycle among the files of a package.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::graph::{Graph, add_crate};
use crate::sources::{shown, targets};

/// The import graphs of all packages, by name.
pub(crate) fn graphs() -> BTreeMap<String, Graph> {
    let mut graphs = BTreeMap::<String, Graph>::new();
    for target in targets() {
        let graph = graphs.entry(target.package).or_default();
        add_crate(graph, &target.root, &|path| std::fs::read_to_string(path).ok(), shown);
    }
    graphs
}

/// The shortest way from `file` back to itself.
fn circle(graph: &Graph, file: &str) -> Option<Vec<String>> {
    let mut from = BTreeMap::<&str, &str>::new();
    let mut queue = VecDeque::from([file]);
    while let Some(at) = queue.pop_front() {
        for next in graph.get(at)?.keys() {
            if next == file {
                let mut way = vec![file.to_owned(), at.to_owned()];
                while way.last().is_some_and(|last| last != file) {
                    let last = way.last().map(String::as_str).unwrap();
                    way.push(from[last].to_owned());
                }
                way.dedup();
                way.reverse();
                return Some(way);
            }
            if !from.contains_key(next.as_str()) {
                from.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

fn message(graph: &Graph, circle: &[String]) -> String {
    let steps: Vec<_> = circle
        .windows(2)
        .map(|step| format!("{} -> {} ({})", step[0], step[1], graph[&step[0]][&step[1]]))
        .collect();
    format!("import cycle:\n    {}", steps.join("\n    "))
}

/// For each file in a cycle the shortest one; each is reported once.
fn cycles(graph: &Graph) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let circles = graph.keys().filter_map(|file| circle(graph, file));
    let new = circles.filter(|circle| seen.insert(circle.iter().cloned().collect::<BTreeSet<_>>()));
    new.map(|circle| message(graph, &circle)).collect()
}

#[test]
fn no_package_has_an_import_cycle() {
    let found: Vec<_> = graphs().values().flat_map(cycles).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_cycle_is_found_and_named_in_order() {
    let graph = crate::graph::graph_of(&[
        ("lib.rs", "mod a; mod b; mod c; mod d; pub use self::a::A;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "pub struct B(super::c::C);"),
        ("c.rs", "use crate::{A, d::D}; pub struct C;"),
        ("d.rs", "pub struct D;"),
    ]);
    let found = cycles(&graph);
    assert_eq!(found.len(), 1);
    let expected = "import cycle:\n    a.rs -> b.rs (crate::b::B)\n    \
                    b.rs -> c.rs (super::c::C)\n    c.rs -> a.rs (crate::A)";
    assert_eq!(found[0], expected);
}

#[test]
fn a_mod_file_and_its_child_can_be_a_cycle() {
    let graph = crate::graph::graph_of(&[
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod b; pub struct A(b::B);"),
        ("a/b.rs", "pub struct B(Option<Box<super::A>>);"),
    ]);
    assert_eq!(cycles(&graph).len(), 1);
}
