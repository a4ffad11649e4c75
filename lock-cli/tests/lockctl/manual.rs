//! Manual pages, completions and help.

use super::output;

/// A package installs them, and `man` finds them by their names.
#[test]
fn each_command_has_a_manual_page_of_its_own() {
    let (url, dir) = ("redis://user:secret@127.0.0.1:1/", tempfile::tempdir().unwrap());
    let dir = dir.path().join("man1");
    let (status, told, errors) = output(url, &["man", "--dir", dir.to_str().unwrap()]);
    assert_eq!((status, told.as_str(), errors.as_str()), (0, "", ""));
    let (_, main, _) = output(url, &["man"]);
    let commands: Vec<_> = main
        .lines()
        .filter_map(|line| line.strip_prefix("lockctl\\-")?.strip_suffix("(1)"))
        .map(|name| name.replace('\\', ""))
        .collect();
    for known in ["run", "ls", "who", "wait", "release", "doctor", "completions", "man"] {
        assert!(commands.iter().any(|name| name == known), "{known} in {commands:?}");
    }
    assert!(main.contains("75    another owner has the lock"), "{main}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1 + commands.len());
    assert_eq!(std::fs::read_to_string(dir.join("lockctl.1")).unwrap(), main);
    for name in &commands {
        let page = std::fs::read_to_string(dir.join(format!("lockctl-{name}.1"))).unwrap();
        assert_eq!(output(url, &["man", name]).1, page);
        for part in [
            &*format!("lockctl\\-{name} \\- "),
            "\\-\\-store",
            "LOCK_NAMESPACE",
            "\\fBlockctl\\fR(1)",
        ] {
            assert!(page.contains(part), "lockctl-{name}.1 has no {part}: {page}");
        }
        assert!(!page.contains("secret"), "{page}");
    }
    let run = std::fs::read_to_string(dir.join("lockctl-run.1")).unwrap();
    assert!(run.contains("LOCK_FENCE") && run.contains("busy\\-status"), "{run}");
    let (status, told, errors) = output(url, &["man", "lost"]);
    assert!(status == 2 && told.is_empty() && errors.contains("lost"), "{status} {errors}");
}

#[test]
fn completions_and_manual_page_name_the_commands() {
    for words in [&["completions", "bash"][..], &["completions", "zsh"], &["man"], &["--help"]] {
        let (status, told, _) = output("redis://127.0.0.1:1/", words);
        assert!(status == 0 && told.contains("doctor") && told.contains("completions"), "{told}");
    }
    let (_, help, _) = output("redis://127.0.0.1:1/", &["run", "--help"]);
    assert!(help.contains("--busy-status") && !help.contains('\u{1b}'), "{help}");
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    let (_, help, _) = output("redis://user:secret@127.0.0.1:1/", &["run", "--help"]);
    assert!(!help.contains("secret"), "{help}");
}
