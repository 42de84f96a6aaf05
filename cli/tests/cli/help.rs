//! `--help`, completions, and what the documents say about both.

use std::process::Command;

use crate::job::{said, watchlock};
use crate::snapshot::snapshot;

const COMMANDS: [&str; 6] = ["run", "ls", "show", "release", "doctor", "completions"];

#[test]
fn help_is_as_it_was() {
    snapshot("help", &said(&mut watchlock(&["--help"])).out);
    for command in COMMANDS {
        let help = said(&mut watchlock(&[command, "--help"])).out;
        snapshot(&format!("help-{command}"), &help);
    }
}

#[test]
fn an_address_in_the_environment_is_not_shown() {
    let mut help = watchlock(&["run", "--help"]);
    let url = "redis://:secret@127.0.0.1/";
    let help = said(
        help.env("WATCHLOCK_URL", url)
            .env("WATCHLOCK_SERVER_URL", url),
    );
    assert!(!help.out.contains("secret"), "{}", help.out);
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&mut watchlock(&["completions", shell]));
        assert_eq!(script.status, 0);
        for command in COMMANDS {
            assert!(script.out.contains(command), "{shell}: {command}");
        }
        assert!(!script.out.contains("__execute"), "{shell}");
        if shell == "bash" {
            let checked = Command::new("bash")
                .args(["-n", "-c", &script.out])
                .status();
            assert!(checked.expect("bash").success());
        }
    }
    assert_eq!(said(&mut watchlock(&["completions", "cmd.exe"])).status, 64);
}

#[test]
fn the_page_has_the_exit_statuses_and_options_of_run() {
    let page = include_str!("../../../docs/command-line.md");
    let help = said(&mut watchlock(&["run", "--help"])).out;
    let (_, statuses) = help.split_once("Exit status:\n").expect("a table");
    for line in statuses.lines() {
        let (_, text) = line.trim().split_once("  ").expect("two columns");
        assert!(page.contains(text.trim()), "{line}");
    }
    let options = help
        .split_whitespace()
        .filter(|word| word.starts_with("--"));
    for option in options.map(|option| option.trim_end_matches([',', ']', '.', ':'])) {
        let known = ["--", "--help"].contains(&option);
        assert!(known || page.contains(option), "{option}");
    }
}
