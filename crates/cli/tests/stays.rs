//! `--update` and `--ignore-existing` leave files alone, and say so.

mod common;

use std::path::Path;
use std::process::Command;

use common::Place;

fn touch(path: &Path, time: &str) {
    let ran = Command::new("touch").args(["-d", time]).arg(path).status();
    assert!(ran.unwrap().success());
}

/// An own copy, and one that two agents write: what rsync leaves alone stays, the rest is sent.
#[test]
fn newer_and_existing_files_stay() {
    for is_shared in [false, true] {
        let place = Place::new();
        place.make_token();
        for (root, contents) in [("set", "source"), ("copy", "there")] {
            std::fs::create_dir(place.path(root)).unwrap();
            for name in ["older", "newer"] {
                std::fs::write(place.path(root).join(name), contents).unwrap();
            }
        }
        std::fs::write(place.path("set/new"), "new").unwrap();
        for name in ["set/older", "set/newer", "set/new"] {
            touch(&place.path(name), "2020-01-01");
        }
        touch(&place.path("copy/older"), "2019-01-01");
        touch(&place.path("copy/newer"), "2021-01-01");
        let agents: Vec<_> = (0..2).map(|_| place.agent(place.dir.path())).collect();
        let (one, two) = (
            agents[0].at(place.path("copy")),
            agents[1].at(place.path("copy")),
        );
        let run = |options: &[&str]| {
            let to: &[&str] = match is_shared {
                true => &["set", &one, "--also-to", &two, "--destinations", "shared"],
                false => &["set", "copy"],
            };
            place.run(&[&["copy"], options, to].concat())
        };
        let read = |name: &str| std::fs::read_to_string(place.path("copy").join(name)).unwrap();
        run(&["-n", "--ignore-existing"])
            .assert_status(0)
            .assert_says("would send 3 B in 1 file; 2 files (12 B) left alone");
        run(&["--ignore-existing"]).assert_status(0);
        assert_eq!(
            (&*read("older"), &*read("newer"), &*read("new")),
            ("there", "there", "new")
        );
        run(&["-u"])
            .assert_status(0)
            .assert_says("done: 6 B, ")
            .assert_says("; 1 file (3 B) unchanged; 1 file (6 B) left alone");
        assert_eq!((&*read("older"), &*read("newer")), ("source", "there"));
        let report = run(&["-u", "--json"]).assert_status(0).report();
        assert_eq!(report["wanted_bytes"], 0);
        assert_eq!(report["landing"]["kept_files"], 1);
        assert_eq!(report["landing"]["kept_bytes"], 6);
        assert_eq!(report["landing"]["unchanged_files"], 2);
    }
    let place = Place::new();
    place
        .run(&["copy", "-u", "--check", "none", "set", "copy"])
        .assert_status(2)
        .assert_says("--check none sends every file");
    place
        .run(&["copy", "-uH", "set", "copy"])
        .assert_status(2)
        .assert_says("leave out --hard-links");
}
