//! The lines for `Cargo.toml` in the README are all that its programs need.

use std::process::Command;

use super::{program, root};

/// A project beside a checkout, with what the README says and nothing else.
#[test]
fn the_lines_of_the_readme_are_enough_for_its_programs() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let lines =
        readme.split("```toml\n").find(|block| block.starts_with("[dependencies]")).unwrap();
    let lines = lines.split("```").next().unwrap();
    let beside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root(), beside.path().join("lock")).unwrap();
    let shop = beside.path().join("shop");
    std::fs::create_dir_all(shop.join("src/bin")).unwrap();
    let package = "[package]\nname = \"shop\"\nedition = \"2024\"\n\n";
    std::fs::write(shop.join("Cargo.toml"), format!("{package}{lines}")).unwrap();
    // The versions that were tested, which are on this machine already.
    std::fs::copy(root().join("Cargo.lock"), shop.join("Cargo.lock")).unwrap();
    for name in ["annotate", "layer", "guard"] {
        std::fs::write(shop.join(format!("src/bin/{name}.rs")), program(name)).unwrap();
    }
    let tests = std::env::current_exe().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["check", "--offline", "--quiet"]).current_dir(&shop);
    cargo.env("CARGO_TARGET_DIR", tests.ancestors().nth(3).unwrap().join("readme"));
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
