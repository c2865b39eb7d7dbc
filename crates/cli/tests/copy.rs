//! `copy` between real processes on this machine.

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use common::processes::family;
use common::{Moving, Place, assert_same_tree, bytes, clone_tree, make_tree};
use serde_json::Value;

fn sum(report: &Value, list: &str, key: &str) -> u64 {
    report[list]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item[key].as_u64().unwrap())
        .sum()
}

/// A tree arrives with contents, modes, times, links and empty folders, and the report says so.
#[test]
fn a_tree_arrives_whole() {
    let place = Place::new();
    make_tree(&place.path("set"));
    let ran = place.run(&["copy", "-v", "set", "copy"]).assert_status(0);
    assert_eq!(ran.out(), "", "standard output is for programs");
    let out = ran.err();
    assert_same_tree(&place.path("set"), &place.path("copy"));
    for part in [
        "done: ",
        " in 53 files, ",
        "; within one process",
        "this host (source)",
        "-> this host (copy)",
        "control  ",
    ] {
        assert!(out.contains(part), "{part:?} is not in\n{out}");
    }
    std::fs::create_dir(place.path("into")).unwrap();
    place.run(&["copy", "-q", "set", "into/"]).assert_status(0);
    assert_same_tree(&place.path("set"), &place.path("into/set"));
    assert_eq!(
        std::fs::read_dir(place.path("into")).unwrap().count(),
        1,
        "nothing temporary is left"
    );
}

/// One file, an empty file and an empty folder are trees, too.
#[test]
fn small_things_arrive() {
    let place = Place::new();
    std::fs::write(place.path("one"), b"x").unwrap();
    std::fs::write(place.path("none"), b"").unwrap();
    std::fs::create_dir(place.path("empty")).unwrap();
    for name in ["one", "none", "empty"] {
        let copy = format!("{name}-copy");
        place
            .run(&["copy", "--quiet", name, &copy])
            .assert_status(0);
        assert_same_tree(&place.path(name), &place.path(&copy));
    }
}

/// Two replicas on two agents feed two copies; everything is sent once a copy.
#[test]
fn replicas_feed_two_copies() {
    let place = Place::new();
    place.make_token();
    for host in ["a", "b", "c", "d"] {
        std::fs::create_dir(place.path(host)).unwrap();
    }
    make_tree(&place.path("a/set"));
    std::fs::write(place.path("a/set/more"), bytes(9 << 20, 7)).unwrap();
    clone_tree(&place.path("a/set"), &place.path("b/set"));
    let agents: Vec<_> = ["a", "b", "c", "d"]
        .iter()
        .map(|host| place.agent(&place.path(host)))
        .collect();
    let (a, b) = (
        agents[0].at(place.path("a/set")),
        agents[1].at(place.path("b/set")),
    );
    let (c, d) = (
        agents[2].at(place.path("c/copy")),
        agents[3].at(place.path("d/copy")),
    );
    let ran = place
        .run(&[
            "copy",
            "--json",
            "--sources",
            "replicas",
            &a,
            &b,
            &c,
            "--also-to",
            &d,
        ])
        .assert_status(0);
    let report = ran.report();
    assert_eq!(report["outcome"], "done");
    assert_same_tree(&place.path("a/set"), &place.path("c/copy"));
    assert_same_tree(&place.path("a/set"), &place.path("d/copy"));
    assert_eq!(
        sum(&report, "nodes", "received_bytes"),
        report["wanted_bytes"].as_u64().unwrap()
    );
    let senders: Vec<&Value> = report["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|n| n["sent_bytes"].as_u64() > Some(0))
        .collect();
    assert_eq!(senders.len(), 2, "both replicas worked: {report:#}");
}

/// Sources without a common path become one tree: on different hosts under one name by themselves, on one host where it
/// is said; where they are not what was said, or both hold one path, nothing is written.
#[test]
fn parts_are_joined_and_conflicts_refused() {
    let place = Place::new();
    place.make_token();
    for (part, file) in [("p/set", "x"), ("q/set", "y")] {
        std::fs::create_dir_all(place.path(part)).unwrap();
        std::fs::write(place.path(part).join(file), bytes(1 << 20, 5)).unwrap();
    }
    let agents = [place.agent(&place.path("p")), place.agent(&place.path("q"))];
    let hosts = [
        agents[0].at(place.path("p/set")),
        agents[1].at(place.path("q/set")),
    ];
    let ways = [
        (["p/set", "q/set"], &["--sources", "parts"][..]),
        ([&hosts[0], &hosts[1]], &[]),
    ];
    for (at, ([p, q], how)) in ways.into_iter().enumerate() {
        let all = format!("all{at}");
        place
            .run(&[&["copy", "-q", p, q, &all][..], how].concat())
            .assert_status(0);
        for (part, file) in [("p/set", "x"), ("q/set", "y")] {
            assert_eq!(
                std::fs::read(place.path(&all).join(file)).unwrap(),
                std::fs::read(place.path(part).join(file)).unwrap()
            );
        }
        let (status, reason) = match how {
            [] => (4, "no replicas"),
            _ => (2, "are on one host"),
        };
        place
            .run(&["copy", "--sources", "replicas", p, q, "r"])
            .assert_status(status)
            .assert_says(reason);
    }
    std::fs::write(place.path("q/set/x"), b"other").unwrap();
    for ([p, q], how) in ways {
        place
            .run(&[&["copy", p, q, "r"][..], how].concat())
            .assert_status(4)
            .assert_says("`x`");
    }
    assert!(!place.path("r").exists());
}

/// Every protection, check and lane moves the same bytes, and what protects them is said.
#[test]
fn every_way_of_moving_works() {
    let place = Place::new();
    make_tree(&place.path("set"));
    for (at, args) in [
        &["--plain"][..],
        &[
            "--plain",
            "--verify",
            "none",
            "--lane",
            "tcp",
            "--streams",
            "1",
        ],
        &["--verify", "sink", "--lane", "tcp", "--streams", "3"],
        &[
            "--verify",
            "fragment",
            "--lane",
            "unix",
            "--no-sync",
            "--prefetch",
            "64KiB",
        ],
        &[
            "--scheduler",
            "uniform",
            "--limit",
            "200MB/s",
            "--node-rate",
            "local=1Gbit",
        ],
    ]
    .iter()
    .enumerate()
    {
        let copy = format!("copy{at}");
        let ran = place
            .run(&[&["copy", "-v", "set", &copy][..], args].concat())
            .assert_status(0);
        assert_same_tree(&place.path("set"), &place.path(&copy));
        let way = match (args.contains(&"--lane"), args.contains(&"--plain")) {
            (false, _) => "; within one process",
            (true, true) => "; PLAIN (not encrypted)",
            (true, false) => "; encrypted (TLS 1.3 keys)",
        };
        assert!(ran.err().contains(way), "{args:?}: {}", ran.err());
        if args.contains(&"--node-rate") {
            assert!(ran.err().contains("(declared speeds)"), "{}", ran.err());
        }
    }
}

/// Where all is on this host the command starts no other process; a lane that is named is used.
#[test]
fn local_copies_stay_within_the_command() {
    let place = Place::new();
    std::fs::write(place.path("data"), vec![7; 100_000]).unwrap();
    for (args, lane) in [
        (&[][..], "local"),
        (&["--lane", "unix"], "unix"),
        (&["--lane", "tcp"], "tcp"),
    ] {
        let words = [&["copy", "--json", "data", lane][..], args].concat();
        let report = place.run(&words).assert_status(0).report();
        assert_eq!(report["pairs"][0]["lane"], lane);
        assert_eq!(report["encrypted"], lane != "local");
        assert_eq!(report["nodes"][0]["error"], serde_json::Value::Null);
    }
    let words = ["copy", "data", "slow", "--limit", "10kB/s"];
    let mut moving = Moving::start(&place, &words);
    moving.event("progress");
    assert_eq!(family(moving.child.id() as i32).len(), 1);
}

/// Patterns need no disk, and what arrives in a file is the pattern.
#[test]
fn patterns_move_without_a_disk() {
    let place = Place::new();
    for destination in ["null:", "mem:"] {
        let report = place
            .run(&["copy", "--json", "mem:8MiB", destination])
            .assert_status(0)
            .report();
        assert_eq!(report["delivered_bytes"], 8 << 20);
    }
    place
        .run(&["copy", "-q", "mem:100001", "file"])
        .assert_status(0);
    assert_eq!(std::fs::read(place.path("file")).unwrap().len(), 100_001);
}

/// The stream of events: one object a line, each node reached, one plan, one end, nothing else.
#[test]
fn json_is_one_event_a_line() {
    let place = Place::new();
    make_tree(&place.path("set"));
    let ran = place
        .run(&["copy", "--json", "set", "copy"])
        .assert_status(0);
    assert_eq!(ran.err(), "");
    let events = ran.events();
    let names: Vec<&str> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(&names[..3], ["reached", "reached", "planned"]);
    assert!(
        names[3..names.len() - 1]
            .iter()
            .all(|name| ["progress", "note"].contains(name)),
        "{names:?}"
    );
    assert_eq!(names.last(), Some(&"ended"));
    assert_eq!(
        events[2]["bytes"],
        events.last().unwrap()["report"]["delivered_bytes"]
    );
}

/// Progress in a pipe is silent unless it is asked for, and then comes in lines.
#[test]
fn progress_in_a_pipe_is_lines_on_request() {
    let place = Place::new();
    let err = place
        .run(&["copy", "mem:1MiB", "null:"])
        .assert_status(0)
        .err();
    assert!(
        err.starts_with("done: 1.05 MB") && err.lines().count() <= 2,
        "{err}"
    );
    let err = place
        .run(&["copy", "--progress", "always", "mem:1MiB", "null:"])
        .assert_status(0)
        .err();
    assert!(
        err.contains("reached this host (copy)") && err.contains("planned 1.05 MB"),
        "{err}"
    );
    let ran = place
        .run(&[
            "copy",
            "--quiet",
            "--progress",
            "always",
            "mem:1MiB",
            "null:",
        ])
        .assert_status(0);
    assert_eq!((ran.out(), ran.err()), (String::new(), String::new()));
}

/// What cannot be done is refused before anything moves, by name and with a next step.
#[test]
fn refusals_are_named() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("served")).unwrap();
    std::fs::write(place.path("served/x"), b"data").unwrap();
    std::fs::write(place.path("secret"), b"data").unwrap();
    let agent = place.agent(&place.path("served"));
    let served = agent.at(place.path("served/x"));

    place
        .run(&["copy", "absent", "copy"])
        .assert_status(4)
        .assert_says("absent");
    place
        .run(&["copy", "secret", "no/such/folder"])
        .assert_status(4)
        .assert_says("make it first");
    place
        .run(&["copy", "secret", "served/x/below"])
        .assert_status(4)
        .assert_says("is no folder");
    place
        .run(&["copy", &agent.at(place.path("secret")), "copy"])
        .assert_status(4)
        .assert_says("outside");
    place
        .run(&["copy", "secret", &agent.at(place.path("copy"))])
        .assert_status(4)
        .assert_says("outside");
    place
        .run(&["copy", &agent.at(place.path("served/../secret")), "copy"])
        .assert_status(4)
        .assert_says("outside");
    place
        .run(&["copy", "ropewalk-no-such-host.invalid:7420:/x", "copy"])
        .assert_status(4)
        .assert_says("ropewalk-no-such-host.invalid");
    let json = place
        .run(&["copy", "--json", "absent", "copy"])
        .assert_status(4);
    assert_eq!(json.report()["outcome"], "refused");
    assert!(!place.path("copy").exists());

    let other = place.text("other-token");
    place
        .run(&["agent", "--new-token", &other])
        .assert_status(0);
    place
        .run(&["copy", "--token-file", &other, &served, "copy"])
        .assert_status(4)
        .assert_says("token");
    place.run(&["copy", "-q", &served, "copy"]).assert_status(0);
}

/// A root without :rw takes no copies.
#[test]
fn roots_are_read_only_unless_told() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("served")).unwrap();
    std::fs::write(place.path("x"), b"data").unwrap();
    let mut agent = place.command();
    agent.args([
        "agent",
        "--while-stdin",
        "--listen",
        "127.0.0.1:0",
        "--root",
        "served",
    ]);
    let mut agent = common::start_agent(agent);
    place
        .run(&["copy", "x", &agent.at(place.path("served/x"))])
        .assert_status(4)
        .assert_says("may only be read")
        .assert_says("--root DIR:rw");
    assert_eq!(std::fs::read_dir(place.path("served")).unwrap().count(), 0);
    agent.kill();
}

/// One agent can be on both sides of a copy.
#[test]
fn an_agent_copies_to_itself() {
    let place = Place::new();
    place.make_token();
    make_tree(&place.path("set"));
    let agent = place.agent(place.dir.path());
    place
        .run(&[
            "copy",
            "-q",
            &agent.at(place.path("set")),
            &agent.at(place.path("copy")),
        ])
        .assert_status(0);
    assert_same_tree(&place.path("set"), &place.path("copy"));
}

/// What the user allows is the bound where hosts could do more.
#[test]
fn a_limit_is_a_bound() {
    let place = Place::new();
    let report = place
        .run(&["copy", "--json", "mem:4MiB", "null:", "--limit", "16MB/s"])
        .assert_status(0)
        .report();
    let bound = &report["bound"];
    assert_eq!(bound["basis"], "limit", "{bound}");
    assert_eq!(bound["binding"][0], "--limit", "{bound}");
    assert_eq!(
        bound["bits_per_second"].as_f64().map(f64::round),
        Some(128e6),
        "{bound}"
    );
}

/// A stand-in for ssh that runs the command here.
fn make_fake_ssh(path: &Path) {
    let script = "#!/bin/sh\n\
        # Options and host first, as the real one takes them.\n\
        while [ $# -gt 0 ]; do\n\
          case \"$1\" in\n\
            -G) echo \"hostname 127.0.0.1\"; exit 0 ;;\n\
            -o|-F|-p) shift 2 ;;\n\
            -*) shift ;;\n\
            *) break ;;\n\
          esac\n\
        done\n\
        shift\n\
        echo 'a message of the day'\n\
        exec \"$@\"\n";
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Hosts reached over ssh need only the program; the secret is on no command line.
#[test]
fn ssh_needs_only_the_program() {
    let place = Place::new();
    make_fake_ssh(&place.path("fake-ssh"));
    make_tree(&place.path("set"));
    let ssh = format!("{} -F 'my conf'", place.text("fake-ssh"));
    let source = format!("me@h[1-2]:{}", place.text("set"));
    let args = [
        "copy",
        "--json",
        "--ssh",
        &ssh,
        "--remote-path",
        env!("CARGO_BIN_EXE_ropewalk"),
        &source,
        "copy",
    ];
    let report = place.run(&args).assert_status(0).report();
    assert_same_tree(&place.path("set"), &place.path("copy"));
    let names: Vec<&str> = report["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["node"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["h1", "h2", "this host"]);
    let ran = place.run(&[
        "copy",
        "--ssh",
        &ssh,
        "--remote-path",
        "/no/such/program",
        &source,
        "copy2",
    ]);
    ran.assert_status(4)
        .assert_says("/no/such/program")
        .assert_says("--remote-path");
    place
        .run(&["copy", "--ssh", "/no/such/ssh", &source, "copy2"])
        .assert_status(4)
        .assert_says("/no/such/ssh");
}

/// Two places that are not one file cannot take a shared copy: it fails and names the reason, instead of
/// calling two halves a whole.
#[test]
fn a_shared_copy_needs_a_shared_place() {
    let place = Place::new();
    std::fs::write(place.path("set"), bytes(8 << 20, 5)).unwrap();
    let arguments = ["copy", "--destinations", "shared", "set", "one"];
    let run = place.run(&[&arguments[..], &["--also-to", "other"]].concat());
    let run = run.assert_status(1);
    assert!(
        run.err().contains("are not one file system"),
        "{}",
        run.err()
    );
    assert!(!place.path("one").exists() && !place.path("other").exists());
}

/// Whole files and parts of them go to an agent and come back.
#[test]
fn files_are_put_and_got() {
    let place = Place::new();
    place.make_token();
    std::fs::create_dir(place.path("far")).unwrap();
    let data = bytes((3 << 20) + 77, 5);
    std::fs::write(place.path("file"), &data).unwrap();
    let agent = place.agent(&place.path("far"));
    let far = |name: &str| agent.at(place.path("far").join(name));
    let run = |args: &[&str]| place.run(args);
    run(&["put", "-q", "file", &far("all")]).assert_status(0);
    assert!(std::fs::read(place.path("far/all")).unwrap() == data);
    run(&["put", "-q", "--range", "1000-2000999", "file", &far("part")]).assert_status(0);
    assert!(std::fs::read(place.path("far/part")).unwrap() == data[1000..2_001_000]);
    run(&["get", "-q", "--range", "3145728+77", &far("all"), "tail"]).assert_status(0);
    assert!(std::fs::read(place.path("tail")).unwrap() == data[3 << 20..]);
    run(&["get", "-q", &far("all"), "back"]).assert_status(0);
    assert!(std::fs::read(place.path("back")).unwrap() == data);
    // Bytes that the file does not have are refused, and nothing is made.
    let ran = run(&["get", "-q", "--range", "3145728+78", &far("all"), "beyond"]).assert_status(4);
    assert!(ran.err().contains("far/all"), "{}", ran.err());
    assert!(!place.path("beyond").exists());
}

/// With equal parts each stream carries its own and no other's; pulled, they share one lane.
#[test]
fn equal_stripes() {
    let place = Place::new();
    std::fs::write(place.path("big"), bytes(12 << 20, 3)).unwrap();
    for (striping, lanes) in [("equal", vec![3 << 20; 4]), ("pull", vec![12 << 20])] {
        let out = place.run(&[
            "copy",
            "--json",
            "--streams",
            "4",
            "--striping",
            striping,
            "big",
            striping,
        ]);
        let out = out.assert_status(0).out();
        let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        let pairs = last["report"]["pairs"].as_array().unwrap();
        let moved = pairs.iter().map(|pair| pair["bytes"].as_u64().unwrap());
        assert_eq!(moved.collect::<Vec<u64>>(), lanes, "{striping}");
        assert_same_tree(&place.path("big"), &place.path(striping));
    }
    make_tree(&place.path("set"));
    place
        .run(&["copy", "--striping", "equal", "set", "copy"])
        .assert_status(0);
    assert_same_tree(&place.path("set"), &place.path("copy"));
}

/// Rules choose what is copied as they do for rsync, of one folder and of several things; a second run with the same rules sends nothing.
#[test]
fn rules_choose_what_is_copied() {
    let place = Place::new();
    for path in [
        "a.o",
        "a.c",
        "tmp/x",
        "sub/tmp/y",
        "sub/b.o",
        "sub/b.c",
        "keep.o",
    ] {
        let path = place.path(&format!("set/{path}"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes(1000, 1)).unwrap();
    }
    // rsync leaves the time of a folder that it made within the same second.
    for folder in ["set/sub/tmp", "set/sub", "set/tmp", "set"] {
        let folder = std::fs::File::open(place.path(folder)).unwrap();
        folder.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    std::fs::write(place.path("other.o"), bytes(1000, 1)).unwrap();
    std::fs::write(
        place.path("rules"),
        "# objects\n+ keep.o\n*.o\n/tmp/\n/set/sub/tmp\n",
    )
    .unwrap();
    for (sources, to) in [
        (&["set/"][..], "one"),
        (&["set", "other.o", "set/a.c"], "into/"),
    ] {
        let expected = format!("expected-{to}");
        let rsync = std::process::Command::new("rsync")
            .args(["-a", "--exclude-from=rules"])
            .args(sources)
            .arg(&expected)
            .current_dir(place.dir.path())
            .status();
        assert!(rsync.unwrap().success());
        if to.ends_with('/') {
            std::fs::create_dir(place.path(to)).unwrap();
        }
        for run in 0..2 {
            let args = [
                &["copy", "--json", "--exclude-from", "rules"][..],
                sources,
                &[to],
            ]
            .concat();
            let report = place.run(&args).assert_status(0).report();
            assert_eq!(report["delivered_bytes"] == 0, run == 1, "{report:#}");
            // A folder that stood there keeps its own time.
            for path in if to == "one" {
                &[""][..]
            } else {
                &["set", "a.c"]
            } {
                assert_same_tree(
                    &place.path(&expected).join(path),
                    &place.path(to).join(path),
                );
            }
            assert!(!place.path(to).join("other.o").exists());
        }
    }
    let error = place
        .run(&["copy", "--exclude", "[x", "set", "other"])
        .assert_status(2);
    assert!(
        error
            .err()
            .contains("the pattern `[x` has a `[` without its `]`"),
        "{}",
        error.err()
    );
}
