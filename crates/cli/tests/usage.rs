//! Help texts and slips on the command line, as people see them.

mod common;

use std::os::unix::fs::PermissionsExt as _;

use common::{Place, assert_golden};

/// Each command's help is as recorded.
#[test]
fn help_is_as_recorded() {
    let place = Place::new();
    for command in [
        "",
        "copy",
        "put",
        "get",
        "transfer",
        "stream",
        "tunnel",
        "shuffle",
        "plan",
        "agent",
        "status",
        "top",
        "agents",
        "doctor",
        "cancel",
        "clean",
        "join",
        "leave",
        "demo",
        "completions",
        "man",
    ] {
        let mut run = place.command();
        run.args(command.split_whitespace())
            .arg("--help")
            .env("COLUMNS", "100");
        let ran = common::Ran(run.output().unwrap()).assert_status(0);
        let name = if command.is_empty() {
            "ropewalk"
        } else {
            command
        };
        assert_golden(&format!("help-{name}.txt"), &ran.out());
    }
}

/// `copy -h` fits a screen; what it leaves out is in `--help`.
#[test]
fn short_help_is_short() {
    let place = Place::new();
    let mut run = place.command();
    run.args(["copy", "-h"]).env("COLUMNS", "100");
    let ran = common::Ran(run.output().unwrap()).assert_status(0);
    assert_golden("short-help-copy.txt", &ran.out());
    let lines = ran.out().lines().count();
    assert!(lines <= 40, "{lines} lines");
}

/// Slips end with status 2 before anything is reached, and say what to write instead.
#[test]
fn slips_are_explained() {
    let place = Place::new();
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage: ropewalk <COMMAND>"),
        (&["copy"], "required"),
        (
            &["copy", "a"],
            "Usage: ropewalk copy [OPTIONS] SOURCE... DEST",
        ),
        (&["copy", "a:7:b", "/c"], "takes an absolute path"),
        (&["put", "a:/x", "/y"], "use get for the other way"),
        (&["get", "x", "y"], "use put for the other way"),
        (&["get", "a[1-2]:/x", "y"], "names 2 hosts"),
        (&["get", "--range", "5-4", "a:/x", "y"], "both included"),
        (&["copy", "/a", "/a"], "both source and destination"),
        (&["copy", "null:", "/a"], "cannot be a source"),
        (&["copy", "/a", "/b", "/c"], "write /c/ to copy each"),
        (&["copy", "/a", "/a/b"], "lie in its own source"),
        (&["copy", "rsync://host/a", "/b"], "rsync:// is no address"),
        (&["copy", "mem:4K", "/a"], "could mean"),
        (&["copy", "mem:4KiB", "/a/"], "name the copy"),
        (&["copy", "n[1-2:/a", "/b"], "brackets"),
        (&["copy", "--scheduler", "best", "/a", "/b"], "no scheduler"),
        (&["copy", "--limit", "5", "/a", "/b"], "bits or bytes"),
        (&["copy", "--limit", "0", "/a", "/b"], "never finish"),
        (
            &["copy", "--streams", "0", "/a", "/b"],
            "give auto or a number from 1 to 64",
        ),
        (
            &["copy", "--streams-policy", "best", "/a", "/b"],
            "model, simulate, database or off",
        ),
        (
            &["copy", "--lane", "rapid", "--striping", "equal", "/a", "/b"],
            "lanes of datagrams have one flow",
        ),
        (
            &["copy", "--lane", "rapid", "--streams", "8", "/a", "/b"],
            "a lane of datagrams has one flow",
        ),
        (&["copy", "--prefetch", "1", "/a", "/b"], "64 KiB"),
        (
            &["copy", "--node-rate", "x=1Gbit", "/a", "/b"],
            "no such host takes part",
        ),
        (&["copy", "--node-rate", "x", "/a", "/b"], "HOST=RATE"),
        (
            &["copy", "--rate", "x=1Gbit", "/a", "/b"],
            "--node-rate x=1Gbit",
        ),
        (
            &["copy", "--ssh", "ssh 'x", "/a", "/b"],
            "quote is not closed",
        ),
        (&["copy", "h:7420:/a", "/b"], "--new-token"),
        (
            &["copy", "--token-file", "absent", "h:7420:/a", "/b"],
            "cannot read the token file absent",
        ),
        (&["transfer", "absent"], "cannot read absent"),
        (&["agent"], "--root"),
        (&["plan", "absent"], "cannot read absent"),
        (&["cancel"], "TRANSFER"),
        (&["status", "--agent", "host"], "has no port"),
        (&["demo", "--size", "5"], "multiple of 4"),
    ];
    for (args, part) in cases {
        place.run(args).assert_status(2).assert_says(part);
    }
}

/// Options typed out of habit do no harm, or are answered with what to do.
#[test]
fn habits_are_answered() {
    let place = Place::new();
    std::fs::write(place.path("f"), "x").unwrap();
    for option in ["-r", "-R", "--recursive", "-a", "-av"] {
        place
            .run(&["copy", "-q", option, "f", "g"])
            .assert_status(0);
    }
    for (option, part) in [
        ("-X", "write -a, which copies owner"),
        ("-z", "compressed"),
        ("-P", "progress is shown"),
        ("-p", "always kept"),
        ("--delete-excluded", "write --delete"),
        ("--filter=x", "--exclude-from FILE"),
        ("--port", "--ssh 'ssh -p 2222'"),
    ] {
        let ran = place.run(&["copy", option, "f", "g"]).assert_status(2);
        assert!(ran.err().contains(part), "{option}: {}", ran.err());
        assert_eq!(ran.err().lines().count(), 1, "{option}: {}", ran.err());
    }
    place
        .run(&["copy", "--version"])
        .assert_status(0)
        .assert_says(env!("CARGO_PKG_VERSION"));
}

/// With `--json`, slips are a last event like any other end.
#[test]
fn slips_are_events() {
    let place = Place::new();
    for args in [
        &["copy", "--json", "/a"][..],
        &["copy", "--json", "--nonsense", "/a", "/b"],
        &["copy", "--json", "-z", "/a", "/b"],
        &["check", "--json", "/a"],
        &["stream", "--json"],
        &["stream", "--json", "--nonsense", "a"],
        &["shuffle", "--json"],
        &["tunnel", "--json", "--nonsense"],
        &["copy", "/a", "/a", "--json"],
    ] {
        let ran = place.run(args).assert_status(2);
        let report = ran.report();
        assert_eq!(report["outcome"], "refused", "{report}");
        assert_eq!(report["error_kind"], "usage", "{report}");
        assert!(
            !report["error"].as_str().unwrap().contains('\n'),
            "{report}"
        );
        assert_eq!(ran.events()[0]["version"], 1);
    }
    place
        .run(&["transfer", "--json", "absent"])
        .assert_status(2)
        .report();
}

/// Events that cannot be written are a failure, whatever became of the transfer; the transfer goes on.
#[test]
fn events_that_are_lost_are_told() {
    let place = Place::new();
    std::fs::write(place.path("f"), "x").unwrap();
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = place.command();
    command
        .args(["copy", "--json", "f", "g"])
        .stdout(full.unwrap());
    common::Ran(command.output().unwrap())
        .assert_status(1)
        .assert_says("standard output");
    assert!(place.path("g").exists());
}

/// What differs is only in the list of a comparison: where that is lost, it says so.
#[test]
fn differences_that_are_lost_are_told() {
    let place = Place::new();
    for (name, text) in [("f", "x"), ("g", "yz")] {
        std::fs::write(place.path(name), text).unwrap();
    }
    let full = std::fs::File::create("/dev/full").unwrap();
    let mut command = place.command();
    let ran = command.args(["check", "f", "g"]).stdout(full).output();
    let ran = common::Ran(ran.unwrap()).assert_status(3);
    ran.assert_says("cannot be written to standard output");
}

/// Help that cannot be written is an error.
#[test]
fn help_that_is_lost_is_told() {
    for words in [&["--help"][..], &["--version"], &["completions", "bash"]] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let ran = Place::new().command().args(words).stdout(full).output();
        let ran = common::Ran(ran.unwrap()).assert_status(1);
        ran.assert_says("cannot write to standard output");
    }
}

/// A token that others can read is not used.
#[test]
fn open_tokens_are_refused() {
    let place = Place::new();
    let token = place.make_token();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    place
        .run(&["copy", "h:7420:/a", "/b"])
        .assert_status(2)
        .assert_says("chmod 600");
    place
        .run(&["agent", "--root", "."])
        .assert_status(2)
        .assert_says("chmod 600");
    place
        .run(&["agent", "--new-token", token.to_str().unwrap()])
        .assert_status(1)
        .assert_says("File exists");
}

/// An agent that cannot start says which part of its arguments is to blame.
#[test]
fn agents_that_cannot_start_say_why() {
    let place = Place::new();
    place
        .run(&["agent", "--root", "."])
        .assert_status(2)
        .assert_says("no token");
    place.make_token();
    place
        .run(&["agent", "--root", ".:wr", "--listen", "127.0.0.1:0"])
        .assert_status(2)
        .assert_says("write .:rw to allow writing");
    place
        .run(&["agent", "--root", "absent", "--listen", "127.0.0.1:0"])
        .assert_status(1)
        .assert_says("absent");
    place
        .run(&["agent", "--root", ".", "--listen", "7420"])
        .assert_status(2)
        .assert_says("write ADDR:PORT");
    place
        .run(&["agent", "--one-shot"])
        .assert_status(1)
        .assert_says("standard input ended early");
}

/// `--help-all` needs no other argument, and has the rare options in their groups.
#[test]
fn rare_options_are_shown_when_asked_for() {
    let place = Place::new();
    let mut run = place.command();
    run.args(["copy", "--help-all"]).env("COLUMNS", "100");
    let ran = common::Ran(run.output().unwrap()).assert_status(0);
    assert_golden("help-all-copy.txt", &ran.out());
}

/// Completion scripts are of the shell that was asked for, and know every command and every option, the rare ones too.
#[test]
fn shells_complete() {
    let place = Place::new();
    for (shell, mark) in [
        ("bash", "complete -F _ropewalk"),
        ("zsh", "#compdef ropewalk"),
        ("fish", "complete -c ropewalk"),
    ] {
        let script = place.run(&["completions", shell]).assert_status(0).out();
        for part in [mark, "cancel", "also-to", "node-rate"] {
            assert!(script.contains(part), "{shell}: {part}");
        }
    }
    place.run(&["completions", "csh"]).assert_status(2);
}

/// Each command has a manual page with all its options.
#[test]
fn manual_pages_are_written() {
    let place = Place::new();
    place.run(&["man", "pages"]).assert_status(0);
    let page =
        |name: &str| std::fs::read_to_string(place.path(&format!("pages/{name}.1"))).unwrap();
    assert!(
        page("ropewalk").contains("ropewalk\\-copy(1)"),
        "{}",
        page("ropewalk")
    );
    let copy = page("ropewalk-copy");
    for part in [".TH", "\\-\\-also\\-to", "\\-\\-node\\-rate", "Examples"] {
        assert!(copy.contains(part), "{part}: {copy}");
    }
    assert!(!copy.contains("\\-\\-recursive"));
    assert!(page("ropewalk-leave").contains("TRANSFER"));
}
