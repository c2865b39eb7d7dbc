//! Help texts and slips on the command line, as people see them.

mod common;

use std::path::PathBuf;

use common::{Place, Ran};

/// Set to rewrite the golden files after a deliberate change.
const UPDATE: &str = "ROPEWALK_UPDATE_GOLDEN";

/// Each command's help is as recorded.
#[test]
fn help_is_as_recorded() {
    let place = Place::new();
    for command in ["", "multisocket", "pingpong", "region", "sim", "reproduce"] {
        let mut run = place.command();
        run.args(command.split_whitespace())
            .arg("--help")
            .env("COLUMNS", "100");
        let ran = Ran(run.output().unwrap()).assert_status(0);
        let name = if command.is_empty() {
            "ropewalk-bench"
        } else {
            command
        };
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden")
            .join(format!("help-{name}.txt"));
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(&path, ran.out()).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            ran.out(),
            expected,
            "{name} changed; if it is meant, run the tests with {UPDATE}=1"
        );
    }
}

/// Slips end with status 2, and say what to write instead.
#[test]
fn slips_are_explained() {
    let place = Place::new();
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage: ropewalk-bench <COMMAND>"),
        (&["multisocket"], "-r (--receive), or -t HOST"),
        (&["multisocket", "-t"], "<HOST>"),
        (&["multisocket", "-r", "-b", "4K"], "could mean"),
        (&["multisocket", "-t", "h:10007"], "give the port after -p"),
        (&["multisocket", "-r", "-p", "65535", "-n", "2"], "65535"),
        (&["pingpong"], "HOST"),
        (&["pingpong", "--sizes", "3..8", "h"], "powers of two"),
        (&["sim", "--plot", "x.png"], "x.svg"),
        (&["reproduce", "cep", "--figure", "9"], "4..=7"),
    ];
    for (args, part) in cases {
        place.run(args).assert_status(2).assert_says(part);
    }
}
