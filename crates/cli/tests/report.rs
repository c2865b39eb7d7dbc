//! What the end of a transfer prints for people.

mod common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use common::Place;

/// Two lines at most where all is well, none with `--quiet`, every row with `-v`; standard output is for programs.
#[test]
fn a_report_is_two_lines() {
    let place = Place::new();
    std::fs::write(place.path("f"), vec![1; 20_000_000]).unwrap();
    let ran = place.run(&["copy", "f", "g"]).assert_status(0);
    assert!(
        ran.err().starts_with("done: 20 MB in 1 file, "),
        "{}",
        ran.err()
    );
    assert!(
        ran.err().lines().count() <= 2 && ran.out().is_empty(),
        "{}",
        ran.err()
    );
    let ran = place.run(&["copy", "-q", "f", "g"]).assert_status(0);
    assert_eq!((ran.out(), ran.err()), (String::new(), String::new()));
    for option in ["-v", "--verbose"] {
        let ran = place.run(&["copy", option, "f", "g"]).assert_status(0);
        assert!(
            ran.err().contains("\ncontrol    ") && ran.out().is_empty(),
            "{}",
            ran.err()
        );
    }
}

/// A page is written beside the two lines; a name that may be a source, or is in no folder, is refused before anything moves.
#[test]
fn a_report_becomes_a_page() {
    let place = Place::new();
    std::fs::write(place.path("f"), vec![1; 20_000_000]).unwrap();
    let ran = place.run(&["copy", "--report", "page.html", "f", "g<&>"]);
    assert!(ran.err().starts_with("done: 20 MB"), "{}", ran.err());
    ran.assert_status(0);
    let page = std::fs::read_to_string(place.path("page.html")).unwrap();
    for part in [
        "<svg",
        "this host (source)",
        "this host (copy)",
        "done: 20 MB",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(
        page.ends_with("</html>\n") && !page.contains("<script"),
        "{page}"
    );
    for (name, part) in [("absent/page.html", "make it first"), ("f", "-v prints")] {
        place
            .run(&["copy", "--report", name, "f", "h"])
            .assert_status(2)
            .assert_says(part);
    }
    let ran = place.run(&["copy", "--report", "page.html", "absent", "h"]);
    ran.assert_status(4);
    let page = std::fs::read_to_string(place.path("page.html")).unwrap();
    assert!(
        page.contains("REFUSED") && !place.path("h").exists(),
        "{page}"
    );
}

/// A cancelled transfer is one line, which says that what had come is removed; and it is.
#[test]
fn a_cancelled_transfer_is_one_line() {
    let place = Place::new();
    std::fs::write(place.path("f"), vec![1; 20_000_000]).unwrap();
    let mut command = place.command();
    command.args(["copy", "--progress=always", "--limit=3MB/s", "f", "g"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    // Bytes have come when a line of progress says so.
    while !line.contains(" of 20 MB, ") || line.starts_with("0 B") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended too early");
    }
    let kill = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let last: Vec<&str> = rest
        .lines()
        .skip_while(|line| !line.starts_with("CANCELLED"))
        .collect();
    assert_eq!(last.len(), 1, "{rest}");
    assert!(last[0].ends_with("the partial copy was removed"), "{rest}");
    assert!(!place.path("g").exists());
}

/// A name that would act on the terminal is shown, not carried out.
#[test]
fn names_do_not_act_on_the_terminal() {
    let place = Place::new();
    let ran = place
        .run(&["copy", "absent\x1b]0;pwned\x07\n2", "g"])
        .assert_status(4);
    assert!(
        ran.err().contains("pwned") && !ran.err().contains('\x1b'),
        "{:?}",
        ran.err()
    );
    for (dir, length) in [("x", 1), ("y", 2)] {
        let name = place.path(&format!("{dir}/set/f\x1b[2J\ndone: 20 GB"));
        std::fs::create_dir_all(name.parent().unwrap()).unwrap();
        std::fs::write(name, vec![0; length]).unwrap();
    }
    let ran = place
        .run(&["copy", "--sources", "parts", "x/set", "y/set", "z"])
        .assert_status(4);
    assert!(
        !ran.err().contains('\x1b') && !ran.err().contains("\ndone"),
        "{:?}",
        ran.err()
    );
}

/// A destination that would not be replaced is a refusal of one line: nothing has moved.
#[test]
fn a_folder_in_the_way_is_a_refusal() {
    let place = Place::new();
    std::fs::write(place.path("f"), "x").unwrap();
    std::fs::create_dir(place.path("folder")).unwrap();
    let ran = place.run(&["copy", "f", "folder"]).assert_status(4);
    assert_eq!(ran.err().lines().count(), 1, "{}", ran.err());
    assert!(
        ran.err().contains("exists and is a directory"),
        "{}",
        ran.err()
    );
    let report = place
        .run(&["copy", "--json", "f", "folder"])
        .assert_status(4)
        .report();
    assert_eq!(
        (&report["outcome"], &report["error_kind"]),
        (&"refused".into(), &"refused".into())
    );
}

/// A source that is missing on this host is no host that is not reached.
#[test]
fn kinds_of_errors_are_told_apart() {
    let place = Place::new();
    place.make_token();
    for (source, kind) in [
        ("absent", "refused"),
        ("127.0.0.1:1:/absent", "unreachable"),
    ] {
        let ran = place.run(&["copy", "--json", source, "g"]);
        let report = ran.assert_status(4).report();
        assert_eq!(report["error_kind"], kind, "{report:#}");
    }
}

/// A transfer that is faster than what was declared has no share of the bound, and says so.
#[test]
fn declared_speeds_that_are_too_low_are_said() {
    let place = Place::new();
    let rate = ["copy", "--node-rate", "local=1Mbit", "mem:64MiB", "null:"];
    let ran = place.run(&[&rate[..], &["--json"]].concat());
    let report = ran.assert_status(0).report();
    let bound = &report["bound"];
    assert_eq!(
        (&bound["exceeded"], &bound["share"]),
        (&true.into(), &serde_json::Value::Null)
    );
    let ran = place.run(&[&rate[..], &["-v"]].concat());
    ran.assert_status(0)
        .assert_says("faster than the declared speeds");
}

/// The time counts from the start of the command, the reaching of hosts included.
#[test]
fn time_includes_reaching_the_hosts() {
    let place = Place::new();
    let report = place
        .run(&["copy", "--json", "mem:1MiB", "null:"])
        .assert_status(0)
        .report();
    let number = |key: &str| report[key].as_f64().unwrap();
    assert!(number("reach_seconds") > 0.0);
    assert!(number("seconds") > number("reach_seconds"), "{report:#}");
}

/// Every field of events and reports is in the documentation.
#[test]
fn all_fields_are_documented() {
    let documented = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let documented = std::fs::read_to_string(documented).unwrap();
    let place = Place::new();
    std::fs::write(place.path("f"), vec![1; 3_000_000]).unwrap();
    let ran = place
        .run(&["copy", "--json", "--node-rate", "local=1Gbit", "f", "g"])
        .assert_status(0);
    let mut open: Vec<serde_json::Value> = ran.events();
    while let Some(value) = open.pop() {
        match value {
            serde_json::Value::Array(values) => open.extend(values),
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    // Names of nodes are keys there.
                    if !["roots", "missing"].contains(&name.as_str()) {
                        open.push(value);
                    }
                    assert!(documented.contains(&format!("`{name}`")), "{name}");
                }
            }
            _ => {}
        }
    }
}
