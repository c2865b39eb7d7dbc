//! Hosts reached over ssh: what it says, what it asks, and hosts that are not there. ssh is a script that runs the command here.

mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use common::terminal::Terminal;
use common::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

fn copy<'a>(ssh: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["copy", "--ssh", ssh, "--remote-path", PROGRAM];
    args.extend(rest);
    args
}

/// What ssh says is shown, and only a program that is not found has advice about installing it.
#[test]
fn advice_fits_what_ssh_says() {
    let place = Place::new();
    make_tree(&place.path("set"));
    let ssh = make_ssh(
        &place,
        "denied) echo 'me@denied: Permission denied (publickey,password).' >&2; exit 255 ;;\n\
         new) echo 'Host key verification failed.' >&2; exit 255 ;;\n\
         away) echo 'ssh: connect to host away port 22: Connection refused' >&2; exit 255 ;;\n\
         nx) echo 'ssh: Could not resolve hostname nx: Name or service not known' >&2; exit 255 ;;\n\
         bare) echo 'sh: 1: ropewalk: not found' >&2; exit 127 ;;",
    );
    let set = place.text("set");
    let try_host = |host: &str| {
        let source = format!("{host}:{set}");
        place.run(&copy(&ssh, &[&source, "out"])).assert_status(4)
    };
    for (host, said, advice) in [
        (
            "denied",
            "Permission denied (publickey,password).",
            "log in there once",
        ),
        ("new", "Host key verification failed.", "log in there once"),
        ("away", "away port 22: Connection refused", ""),
        ("nx", "Could not resolve hostname nx", "./NAME"),
        ("bare", "ropewalk: not found", "--remote-path"),
    ] {
        let ran = try_host(host).assert_says(said).assert_says(advice);
        let installs = ran.err().contains("--remote-path");
        assert_eq!(installs, host == "bare", "{}", ran.err());
    }
    // What is wrong on this host needs no agent in the words.
    let ran = place.run(&["copy", "/no/such", "out"]).assert_status(4);
    let ran = ran.assert_says("the source /no/such cannot be used: No such file");
    assert!(!ran.err().contains("agent"), "{}", ran.err());
}

/// The remote path is one word of the other host's shell, whatever is in it.
#[test]
fn remote_paths_are_quoted() {
    let place = Place::new();
    make_tree(&place.path("set"));
    let ssh = make_ssh(&place, "");
    std::fs::create_dir(place.path("my tools")).unwrap();
    std::os::unix::fs::symlink(PROGRAM, place.path("my tools/ropewalk")).unwrap();
    let source = format!("h:{}", place.text("set"));
    let tools = place.text("my tools/ropewalk");
    let args = [
        "copy",
        "--ssh",
        &ssh,
        "--remote-path",
        &tools,
        &source,
        "out",
    ];
    place.run(&args).assert_status(0);
    assert_same_tree(&place.path("set"), &place.path("out"));
    let evil = "x; touch pwned";
    let args = [
        "copy",
        "--ssh",
        &ssh,
        "--remote-path",
        evil,
        &source,
        "out2",
    ];
    place.run(&args).assert_status(4);
    assert!(!place.path("pwned").exists());
}

/// A source that is down is left out where others are seen to be replicas, and the copy is complete if it is said to be one, too; not where one is left that
/// nobody called a replica, where parts are left, or where all are required.
#[test]
fn replicas_that_are_down_are_left_out() {
    let place = Place::new();
    make_tree(&place.path("set"));
    let ssh = make_ssh(
        &place,
        "bad) echo 'ssh: Connection refused' >&2; exit 255 ;;",
    );
    let set = place.text("set");
    let (two, bad) = (format!("h[1-2]:{set}"), format!("bad:{set}"));
    let report = place.run(&copy(&ssh, &["--json", &two, &bad, "out"]));
    let report = report.assert_status(3).report();
    assert_same_tree(&place.path("set"), &place.path("out"));
    assert_eq!(report["error_kind"], "unreachable");
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("bad was not reached and may hold more"),
        "{error}"
    );
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("bad was not reached and is left out"),
        "{notes}"
    );
    assert!(notes.contains("Connection refused"), "{notes}");
    assert_eq!(report["nodes"].as_array().unwrap().len(), 3);
    place
        .run(&copy(&ssh, &["--sources", "replicas", &two, &bad, "out"]))
        .assert_status(0);

    place
        .run(&copy(&ssh, &["--require-all", &two, &bad, "out2"]))
        .assert_status(4)
        .assert_says("Connection refused");
    let one = format!("h1:{set}");
    place
        .run(&copy(&ssh, &[&one, &bad, "out2"]))
        .assert_status(4)
        .assert_says("--sources replicas");
    place
        .run(&copy(&ssh, &["--sources", "replicas", &one, &bad, "out3"]))
        .assert_status(0);
    assert_same_tree(&place.path("set"), &place.path("out3"));

    std::fs::create_dir_all(place.path("part/set")).unwrap();
    std::fs::write(place.path("part/set/own"), b"own").unwrap();
    let part = format!("h2:{}", place.text("part/set"));
    place
        .run(&copy(&ssh, &[&one, &part, &bad, "out4"]))
        .assert_status(4)
        .assert_says("may hold some that no other host has");
    assert!(!place.path("out2").exists() && !place.path("out4").exists());
}

/// A destination that is down is not left out silently; the refusal says how to go on.
#[test]
fn destinations_that_are_down_are_named() {
    let place = Place::new();
    make_tree(&place.path("set"));
    let ssh = make_ssh(
        &place,
        "bad) echo 'ssh: Connection refused' >&2; exit 255 ;;",
    );
    let (good, bad) = (place.text("good"), format!("bad:{}", place.text("x")));
    place
        .run(&copy(&ssh, &["set", &good, "--also-to", &bad]))
        .assert_status(4)
        .assert_says("leave bad out of the command");
    assert!(!place.path("good").exists());
}

/// Hosts that do not answer are named, without a terminal under -v.
#[test]
fn hosts_that_are_awaited_are_named() {
    let place = Place::new();
    make_tree(&place.path("set"));
    // Answers when it is released.
    let ssh = make_ssh(&place, "late) cat released >/dev/null ;;");
    let status = Command::new("mkfifo").arg(place.path("released")).status();
    assert!(status.unwrap().success());
    let source = format!("late:{}", place.text("set"));
    let mut command = place.command();
    command.args(copy(&ssh, &["-v", &source, "out"]));
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    while !said.contains("waiting for late (reached 1 of 2)") {
        let mut bytes = [0; 256];
        let read = stderr.read(&mut bytes).unwrap();
        assert!(read > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    // Opening waits for the reader, which is there.
    drop(
        File::options()
            .write(true)
            .open(place.path("released"))
            .unwrap(),
    );
    stderr.read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert_same_tree(&place.path("set"), &place.path("out"));
}

/// Paths that are not absolute lie below the folder that ssh logs in to, as sources and as destinations.
#[test]
fn paths_begin_at_home() {
    let place = Place::new();
    make_tree(&place.path("home/data/set"));
    let ssh = make_ssh(&place, "*) cd \"$HOME\" ;;");
    let home = |path: &str| place.path("home").join(path);
    place
        .run(&copy(&ssh, &["h:data/set", "out"]))
        .assert_status(0);
    assert_same_tree(&home("data/set"), &place.path("out"));
    place
        .run(&copy(&ssh, &["h1:~/data/set", "h2:"]))
        .assert_status(0);
    assert_same_tree(&home("data/set"), &home("set"));
    place
        .run(&copy(&ssh, &["out", "h:~/data/copy"]))
        .assert_status(0);
    assert_same_tree(&home("data/set"), &home("data/copy"));
    place.run(&copy(&ssh, &["out", "h:data/"])).assert_status(0);
    assert_same_tree(&home("data/set"), &home("data/out"));
}

/// Fails without a question as ssh does in batch mode, and asks at the terminal otherwise.
const ASKING: &str = "a*) [ $batch = no ] || { echo \"$host: Permission denied (password).\" >&2; exit 255; }\n\
     exec 3<>/dev/tty; stty -echo <&3; printf \"password of $host: \" >&3; read word <&3; stty echo <&3\n\
     [ \"$word\" = secret ] || { echo \"$host: Permission denied (password).\" >&2; exit 255; }; exec 3<&- ;;";

/// ssh's questions reach the terminal, one host after the other; hosts that ask nothing are reached before.
#[test]
fn questions_reach_the_terminal() {
    let place = Place::new();
    make_tree(&place.path("set"));
    let ssh = make_ssh(&place, ASKING);
    let set = place.text("set");
    let sources = [format!("a[1-2]:{set}"), format!("b:{set}")];
    let mut terminal = Terminal::run(&place, &copy(&ssh, &[&sources[0], &sources[1], "out"]));
    terminal.until("password of a1: ");
    terminal.press("secret\n");
    terminal.until("password of a2: ");
    terminal.press("secret\n");
    let (status, shown) = terminal.end();
    assert_eq!(status, 0, "{shown}");
    assert_same_tree(&place.path("set"), &place.path("out"));
    // A wrong answer is ssh's to judge.
    let mut terminal = Terminal::run(&place, &copy(&ssh, &["a1:/x", "out2"]));
    terminal.until("password of a1: ");
    terminal.press("wrong\n");
    let (status, shown) = terminal.end();
    assert_eq!(status, 4, "{shown}");
    assert!(
        shown.contains("a1: Permission denied (password)."),
        "{shown}"
    );
    assert!(!shown.contains("Without a terminal"), "{shown}");
}

/// Ctrl-C while ssh asks for a password leaves the terminal as it was: what is typed shows again.
#[test]
fn interrupted_questions_leave_the_terminal_as_it_was() {
    use rustix::termios::{LocalModes, tcgetattr};
    let place = Place::new();
    let ssh = make_ssh(&place, ASKING);
    let mut terminal = Terminal::run(&place, &copy(&ssh, &["a1:/x", "out"]));
    // The settings are the terminal's, whichever end they are read at.
    let shows = |keys: &File| {
        let modes = tcgetattr(keys).unwrap().local_modes;
        modes.contains(LocalModes::ECHO)
    };
    terminal.until("password of a1: ");
    assert!(!shows(&terminal.keys));
    terminal.press("\x03");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(130));
    assert!(shows(&terminal.keys));
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Ctrl-C ends a transfer in order also where ssh is in the terminal's foreground: it reaches the command alone, and the
/// agents remove what is temporary.
#[test]
fn interrupts_at_the_terminal_end_in_order() {
    let place = Place::new();
    std::fs::create_dir(place.path("to")).unwrap();
    let ssh = make_ssh(&place, ASKING);
    let to = format!("a1:{}", place.text("to/big"));
    let mut terminal = Terminal::run(&place, &copy(&ssh, &["--limit", "80Mbit", "mem:1GiB", &to]));
    terminal.until("password of a1: ");
    terminal.press("secret\n");
    wait_for("the temporary file", || entries(&place.path("to")).pop());
    terminal.press("\x03");
    let (status, shown) = terminal.end();
    assert_eq!(status, 130, "{shown}");
    wait_for("nothing to be left", || {
        entries(&place.path("to")).is_empty().then_some(())
    });
}

/// An agent whose input stays open without a secret, or without all roots, ends by itself and says why.
#[test]
fn agents_that_get_nothing_end() {
    let place = Place::new();
    let secret = "00".repeat(32);
    let inputs = [String::new(), format!("{secret}\n2\nro 2f\n")];
    let begun = inputs.map(|text| {
        let mut command = place.command();
        command.args(["agent", "--one-shot"]).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        (child, input)
    });
    for (child, _input) in begun {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("no secret and roots on standard input within 30 s"),
            "{said}"
        );
        assert!(output.stdout.is_empty());
    }
}
