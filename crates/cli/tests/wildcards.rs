//! Patterns and other users' homes in sources: expanded where the files are.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

/// `copy` over a stand-in for ssh.
fn copy<'a>(ssh: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["copy", "--ssh", ssh, "--remote-path", PROGRAM];
    args.extend(rest);
    args
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .unwrap()
                .file_name()
                .as_bytes()
                .escape_ascii()
                .to_string()
        })
        .collect();
    names.sort();
    names
}

/// A folder with files of these names, each with its name in it, all of one time.
fn make(folder: &Path, files: &[&[u8]]) {
    std::fs::create_dir_all(folder).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_714_910_400);
    for name in files {
        let path = folder.join(OsStr::from_bytes(name));
        std::fs::write(&path, name).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        file.set_times(std::fs::FileTimes::new().set_modified(time))
            .unwrap();
    }
}

/// Over ssh: several matches are separate items, one match is that path, and names of any kind arrive; paths may be
/// relative or below the home folder.
#[test]
fn patterns_are_expanded_over_ssh() {
    let place = Place::new();
    let ssh = make_ssh(
        &place,
        "slow) cd \"$HOME\"; sleep 0.5 ;;\n*) cd \"$HOME\" ;;",
    );
    let data = place.path("home/data");
    let odd: [&[u8]; 5] = [
        b"a b.h5",
        b"'x;y.h5",
        b"nl\nname.h5",
        b"\xff\xfe.h5",
        b"-n.h5",
    ];
    make(&data, &odd);
    make(
        &data,
        &[b".hidden.h5", b"c.txt", b"~tilde", b"st*r", b"star"],
    );
    make(&data.join("r1"), &[b"x"]);
    let whole = format!("h:{}/*.h5", data.display());
    place.run(&copy(&ssh, &[&whole, "out/"])).assert_status(0);
    assert_eq!(names(&place.path("out")).len(), odd.len());
    for name in odd {
        let copied = std::fs::read(place.path("out").join(OsStr::from_bytes(name))).unwrap();
        assert_eq!(copied, name);
    }
    // A link to nothing cannot be followed, as a source that is named.
    make(&place.path("home/links"), &[b"file"]);
    symlink("nowhere", place.path("home/links/dangling")).unwrap();
    place
        .run(&copy(&ssh, &["h:links/*", "links/"]))
        .assert_status(4)
        .assert_says(
            "links/dangling is a symbolic link to nowhere, which does not exist; leave it out",
        );
    // The time until the host answered is a part of the time that is reported.
    let ran = place.run(&copy(&ssh, &["--json", "slow:links/f*", "timed"]));
    let report = ran.assert_status(0).report();
    let reach = report["reach_seconds"].as_f64().unwrap();
    assert!(reach > 0.5, "{reach}");
    // A folder is needed for several.
    place
        .run(&copy(&ssh, &[&whole, "out2"]))
        .assert_status(2)
        .assert_says(&format!("5 files match {whole}"))
        .assert_says("out2/ to copy each under its own name");
    place
        .run(&copy(&ssh, &["--json", &whole, "out2"]))
        .assert_status(2)
        .assert_says(r#""error_kind":"usage""#);
    assert!(!place.path("out2").exists());
    // One match is the path.
    place
        .run(&copy(&ssh, &["h:data/c.t?t", "one"]))
        .assert_status(0);
    assert_eq!(std::fs::read(place.path("one")).unwrap(), b"c.txt");
    place
        .run(&copy(&ssh, &["h:~/data/[r]*", "folder"]))
        .assert_status(0);
    assert_same_tree(&data.join("r1"), &place.path("folder"));
    place
        .run(&copy(&ssh, &["h:data/*/", "h:data/.h*", "mixed/"]))
        .assert_status(0);
    assert_eq!(names(&place.path("mixed")), [".hidden.h5", "r1"]);
    // The very name comes before the pattern, and a backslash hides a star.
    place
        .run(&copy(&ssh, &["h:data/st*r", "star"]))
        .assert_status(0);
    assert_eq!(std::fs::read(place.path("star")).unwrap(), b"st*r");
    place
        .run(&copy(&ssh, &[r"h:data/s?\*r", "star2"]))
        .assert_status(0);
    assert_eq!(std::fs::read(place.path("star2")).unwrap(), b"st*r");
    let args = [
        "get",
        "--ssh",
        &ssh,
        "--remote-path",
        PROGRAM,
        "h:data/*.txt",
        "got",
    ];
    place.run(&args).assert_status(0);
    assert_eq!(std::fs::read(place.path("got")).unwrap(), b"c.txt");
    let args = [
        "get",
        "--ssh",
        &ssh,
        "--remote-path",
        PROGRAM,
        "h:data/*.h5",
        "got2",
    ];
    place
        .run(&args)
        .assert_status(2)
        .assert_says("5 files match h:data/*.h5; get fetches one");
    // In the home folder a name with a tilde is no user's.
    make(&place.path("home"), &[b"~me"]);
    place.run(&copy(&ssh, &["h:*me", "tilde"])).assert_status(0);
    assert_eq!(std::fs::read(place.path("tilde")).unwrap(), b"~me");
}

/// What nothing matches, what leads nowhere, and users that are not known: each error names host and pattern.
#[test]
fn what_does_not_match_is_named() {
    let place = Place::new();
    let ssh = make_ssh(&place, "*) cd \"$HOME\" ;;");
    make(&place.path("home/data"), &[b"a"]);
    symlink("nothing", place.path("home/data/gone")).unwrap();
    for (source, said) in [
        ("h:data/*.none", r#"h: no file matches "data/*.none""#),
        ("h:no/such/*", r#"h: no file matches "no/such/*""#),
        (
            "h:data/g*",
            "h: the source data/gone is a symbolic link to nothing, which does not exist; leave it out",
        ),
        ("h:~no-such-user/x", "~no-such-user: this host has no user"),
        (
            "h:~no-such-user/*",
            "h: ~no-such-user: this host has no user",
        ),
    ] {
        let ran = place.run(&copy(&ssh, &["--json", source, "out/"]));
        let report = ran.assert_status(4).assert_says("refused").report();
        let error = report["error"].as_str().unwrap().to_owned();
        assert!(error.contains(said), "{source}: {error}");
    }
    place
        .run(&copy(&ssh, &["data", "h:~no-such-user/"]))
        .assert_status(4)
        .assert_says("has no user");
    // Here the shell expands; what it leaves is said to match nothing.
    place
        .run(&["copy", "/no/such/*.h5", "out/"])
        .assert_status(4)
        .assert_says("no file matches /no/such/*.h5");
    assert!(!place.path("out").exists());
}

/// Another user's home, as source and destination. The test runs as some user of this host: its own home.
#[test]
fn homes_of_users_are_found() {
    let place = Place::new();
    let ssh = make_ssh(&place, "*) cd \"$HOME\" ;;");
    let id = std::process::Command::new("sh")
        .args(["-c", "id -un; eval echo ~$(id -un)"])
        .output()
        .unwrap();
    let id = String::from_utf8(id.stdout).unwrap();
    let (user, home) = id.trim().split_once('\n').unwrap();
    let own = tempfile::Builder::new()
        .prefix("ropewalk-test")
        .tempdir_in(home)
        .unwrap();
    make(own.path(), &[b"a.h5", b"b.h5", b"c"]);
    let folder = own.path().file_name().unwrap().to_str().unwrap();
    let at = |rest: &str| format!("h:~{user}/{folder}{rest}");
    place
        .run(&copy(&ssh, &[&at("/*.h5"), "out/"]))
        .assert_status(0);
    assert_eq!(names(&place.path("out")), ["a.h5", "b.h5"]);
    place.run(&copy(&ssh, &[&at(""), "whole"])).assert_status(0);
    assert_same_tree(own.path(), &place.path("whole"));
    place
        .run(&copy(&ssh, &["out/a.h5", &at("/new")]))
        .assert_status(0);
    assert_eq!(std::fs::read(own.path().join("new")).unwrap(), b"a.h5");
    place.run(&copy(&ssh, &["out", &at("/")])).assert_status(0);
    assert_same_tree(&place.path("out"), &own.path().join("out"));
    place.make_token();
    let agent = place.agent(own.path());
    let from = format!("127.0.0.1:{}:~{user}/{folder}/?.h5", agent.port);
    place.run(&["copy", &from, "attached/"]).assert_status(0);
    assert_eq!(names(&place.path("attached")), ["a.h5", "b.h5"]);
}

/// Standing agents list folders below their roots only, and say no more of others than that they are outside.
#[test]
fn roots_limit_patterns() {
    let place = Place::new();
    place.make_token();
    make(&place.path("in"), &[b"a.h5", b"b.h5"]);
    make(&place.path("out"), &[b"secret.h5"]);
    symlink(place.path("out"), place.path("in/way")).unwrap();
    symlink(place.path("out/secret.h5"), place.path("in/link.txt")).unwrap();
    let agent = place.agent(&place.path("in"));
    let at = |path: &str| agent.at(place.path(path));
    place
        .run(&["copy", &at("in/*.h5"), "copied/"])
        .assert_status(0);
    assert_eq!(names(&place.path("copied")), ["a.h5", "b.h5"]);
    for pattern in [
        "out/*.h5",
        "*",
        "in/way/*",
        "in/*/secret.h5",
        "in/../out/s*",
        "in/*.txt",
    ] {
        place
            .run(&["copy", &at(pattern), "copied2/"])
            .assert_status(4)
            .assert_says("is outside the folders this agent may use");
    }
    let ran = place.run(&["copy", &at("in/*.none"), "copied2/"]);
    ran.assert_status(4)
        .assert_says("127.0.0.1: no file matches");
    // One agent has what is read and takes the copy.
    let ran = place.run(&["copy", &at("in/[ab].h5"), &at("in/both/")]);
    ran.assert_status(0);
    assert_eq!(names(&place.path("in/both")), ["a.h5", "b.h5"]);
    assert!(!place.path("copied2").exists());
}

/// One pattern on several hosts: what they match are replicas if the names are the same; one that is down is left out, and may have had others; with
/// --sources parts each has its own.
#[test]
fn replicas_match_the_same_names() {
    let place = Place::new();
    for host in ["h1", "h2"] {
        make(&place.path(host), &[b"a.h5", b"b.h5"]);
    }
    make(&place.path("h3"), &[b"a.h5", b"c.h5"]);
    let ssh = make_ssh(
        &place,
        "h9) echo 'ssh: Connection refused' >&2; exit 255 ;;\n*) cd \"$HOME/../$host\" ;;",
    );
    let ran = place.run(&copy(&ssh, &["--json", "h[1-2]:*.h5", "out/"]));
    let report = ran.assert_status(0).report();
    assert_eq!(names(&place.path("out")), ["a.h5", "b.h5"]);
    assert_eq!(report["sources"]["parts"], 1, "{report:#}");
    assert_eq!(report["sources"]["holders"], 2, "{report:#}");
    let ran = place.run(&copy(
        &ssh,
        &["--sources", "replicas", "h[1-2]:*.h5", "out2/"],
    ));
    ran.assert_status(0);
    assert_eq!(names(&place.path("out2")), ["a.h5", "b.h5"]);
    place
        .run(&copy(&ssh, &["h[1-3]:*.h5", "out3/"]))
        .assert_status(2)
        .assert_says("h1:*.h5 and h3:*.h5 match different names")
        .assert_says("only h1 has b.h5; only h3 has c.h5");
    let ran = place.run(&copy(&ssh, &["--json", "h[1-2,9]:*.h5", "out3/"]));
    let report = ran.assert_status(3).report();
    assert_eq!(names(&place.path("out3")), ["a.h5", "b.h5"]);
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("h9 was not reached and is left out"),
        "{notes}"
    );
    place
        .run(&copy(&ssh, &["h9:*.h5", "out4/"]))
        .assert_status(4)
        .assert_says("Connection refused");
    assert!(!place.path("out4").exists());
    // Parts are called as they like.
    make(&place.path("h1/part-a"), &[b"one"]);
    make(&place.path("h2/part-b"), &[b"two"]);
    let parts = ["--sources", "parts", "h[1-2]:part-?", "whole"];
    place.run(&copy(&ssh, &parts)).assert_status(0);
    assert_eq!(names(&place.path("whole")), ["one", "two"]);
}

/// What is on its way to several matches of two hosts is one transfer, over the connections that the question was asked on.
#[test]
fn hosts_are_reached_once() {
    let place = Place::new();
    let ssh = make_ssh(
        &place,
        "*) echo \"$host\" >>\"$HOME/logins\"; cd \"$HOME/../$host\" ;;",
    );
    make(&place.path("h1"), &[b"a.h5", b"b.h5"]);
    make(&place.path("h2"), &[b"c.txt"]);
    std::fs::create_dir(place.path("h3")).unwrap();
    let ran = place.run(&copy(&ssh, &["h1:*.h5", "h1:[a]*", "h2:c.txt", "h3:out/"]));
    ran.assert_status(0);
    assert_eq!(names(&place.path("h3/out")), ["a.h5", "b.h5", "c.txt"]);
    std::fs::remove_file(place.path("home/logins")).unwrap();
    std::fs::remove_dir_all(place.path("h3/out")).unwrap();
    let ran = place.run(&copy(&ssh, &["h1:*.h5", "h2:c.txt", "h3:out/"]));
    ran.assert_status(0);
    assert_eq!(names(&place.path("h3/out")), ["a.h5", "b.h5", "c.txt"]);
    let mut logins: Vec<String> = std::fs::read_to_string(place.path("home/logins"))
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    logins.sort();
    assert_eq!(logins, ["h1", "h2", "h3"]);
}
