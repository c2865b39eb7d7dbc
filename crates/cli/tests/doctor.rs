//! `doctor` on this host.

mod common;

use std::process::Stdio;

use common::{Place, Ran, wait_for};
use serde_json::Value;

fn names(place: &Place, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(place.path(folder)).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect()
}

fn folders() -> Place {
    let place = Place::new();
    for folder in ["src", "dst"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    place
}

/// Two folders of this host: each number is there, something binds, no file stays, every field is documented.
#[test]
fn folders_of_this_host_are_examined() {
    let place = folders();
    let ran = place
        .run(&["doctor", "--json", "./src", "./dst"])
        .assert_status(0);
    let report: Value = serde_json::from_str(&ran.out()).unwrap();
    for host in report["hosts"].as_array().unwrap() {
        for number in [
            &host["hash_bytes_per_second"],
            &host["disk"]["write_bytes_per_second"],
        ] {
            assert!(number.as_u64() > Some(0), "{host:#}");
        }
    }
    let pair = &report["pairs"][0];
    for run in ["one_stream", "streams", "files"] {
        assert!(
            pair[run]["bits_per_second"].as_f64() > Some(0.0),
            "{pair:#}"
        );
    }
    assert!(pair["bits_per_second"].as_f64() > Some(0.0), "{pair:#}");
    for folder in ["src", "dst"] {
        assert_eq!(names(&place, folder), [""; 0], "{folder}");
    }
    let documented = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let documented = std::fs::read_to_string(documented).unwrap();
    let mut open = vec![report];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(values) => open.extend(values),
            Value::Object(fields) => {
                for (name, value) in fields {
                    assert!(
                        documented.contains(&format!("`{name}`")) || name.contains('.'),
                        "{name}"
                    );
                    open.push(value);
                }
            }
            _ => {}
        }
    }
}

/// One host alone has no path, a folder that may not be written no disk; what is not there is said.
#[test]
fn what_cannot_be_examined_is_said() {
    let place = folders();
    let ran = place.run(&["doctor", "localhost"]).assert_status(0);
    ran.assert_says("processors")
        .assert_says("tcp_rmem")
        .assert_says("open files");
    place
        .run(&["doctor", "./absent"])
        .assert_status(1)
        .assert_says("make it first");
    place.make_token();
    let agent = place.agent(&place.path("src"));
    let outside = agent.at(place.path("dst"));
    place
        .run(&["doctor", &outside])
        .assert_status(3)
        .assert_says("outside");
    place
        .run(&["doctor", "127.0.0.1:1"])
        .assert_status(1)
        .assert_says("not examined");
    place.run(&["doctor"]).assert_status(2);
}

/// Ctrl-C leaves no file, wherever it strikes.
#[test]
fn interrupted_it_leaves_no_file() {
    let place = folders();
    let mut command = place.command();
    command.args(["doctor", "./src", "./dst"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("a file to be copied", || {
        let made = names(&place, "src");
        made.iter()
            .any(|name| name.starts_with("ropewalk-doctor-"))
            .then_some(())
    });
    let kill = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let ran = Ran(child.wait_with_output().unwrap()).assert_status(130);
    ran.assert_says("interrupted");
    for folder in ["src", "dst"] {
        wait_for("files to be removed", || {
            names(&place, folder).is_empty().then_some(())
        });
    }
}
