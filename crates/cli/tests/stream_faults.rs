//! Streams that fail, on this host: what is reported, and what is left.

mod common;

use common::processes::{assert_gone, family, kill, kill_at_once, processes, stages, temporary};
use common::{Moving, Place, wait_for};

/// A process that is killed is named, and nothing stays: no process, no file.
#[test]
fn a_killed_process_is_named() {
    for (lane, number) in [
        ("unix", 1),
        ("tcp", 1),
        ("unix", 0),
        ("tcp", 2),
        ("rapid", 0),
        ("rapid", 1),
        ("rbudp", 1),
        ("rbudp", 2),
    ] {
        let place = Place::new();
        let rate: &[&str] = match lane {
            "rbudp" => &["--rate", "1Gbit"],
            _ => &[],
        };
        let words = [
            "stream",
            "localhost",
            "localhost",
            "--lane",
            lane,
            "--size",
            "1TiB",
            "--to",
            "out{node}",
            "--exec",
            "B=cat",
        ];
        let mut moving = Moving::start(&place, &[&words[..], rate].concat());
        moving.until_received(2);
        let all = family(moving.child.id() as i32);
        let stages = stages(moving.child.id() as i32);
        assert_eq!(stages.len(), 6, "{all:?}");
        kill(stages[number]);
        let (status, report) = moving.end();
        assert_eq!(status, 1);
        let error = report["error"].as_str().unwrap();
        let name = ["A", "B", "C"][number];
        assert!(
            error.starts_with(&format!("{name} on localhost ")),
            "{error}"
        );
        assert!(error.contains("killed by signal 9"), "{error}");
        assert_gone(&all);
        assert_eq!(temporary(place.dir.path()), Vec::<String>::new());
        assert!(!place.path("out1").exists());
    }
}

/// An agent that is killed takes its processes and their programs with it, and is named.
#[test]
fn a_killed_agent_leaves_no_process() {
    let place = Place::new();
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--size",
        "1TiB",
        "--exec",
        "B=cat",
    ];
    let mut moving = Moving::start(&place, &words);
    moving.until_received(2);
    let all = family(moving.child.id() as i32);
    let agents = processes(&["agent", "--one-shot"]);
    let agent = all
        .iter()
        .copied()
        .find(|pid| agents.contains(pid))
        .unwrap();
    kill(agent);
    let (status, report) = moving.end();
    assert_eq!(status, 1);
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("localhost"), "{error}");
    assert_gone(&all);
}

/// Programs that fail, stop reading, or write part of a block end the stream with what they did.
#[test]
fn programs_that_fail_are_named() {
    let place = Place::new();
    for (program, text) in [
        ("B=exit 1", "`exit 1` ended with status 1"),
        ("B=cat; exit 3", "ended with status 3"),
        ("B=kill -9 $$", "was killed by signal 9"),
        (
            "B=head -c 1 >/dev/null",
            "ended before it had read all of its blocks",
        ),
        (
            "B=printf '\\144\\0\\0\\0half'; exec cat >/dev/null",
            "ended its output within a block",
        ),
        (
            "B=printf '\\0\\0\\0\\377'; exec cat >/dev/null",
            "gave a block of 4278190080 bytes, longer than 65536",
        ),
    ] {
        let words = [
            "stream",
            "localhost",
            "localhost",
            "--json",
            "--size",
            "16MiB",
            "--exec",
            program,
        ];
        let report = place.run(&words).assert_status(1).report();
        let error = report["error"].as_str().unwrap();
        assert!(
            error.starts_with("B on localhost ") && error.contains(text),
            "{program}: {error}"
        );
        assert_eq!(report["error_kind"], "node");
    }
}

/// A program that never reads stops the stream: after the time that was given it is named, and it goes.
#[test]
fn a_program_that_never_reads_is_named() {
    // All that fits its buffers: then A has ended, too.
    for size in ["16MiB", "100KB"] {
        let place = Place::new();
        // Found again by its time.
        let words = [
            "stream",
            "localhost",
            "--json",
            "--size",
            size,
            "--stall",
            "4",
            "--exec",
            "B=sleep 86321",
        ];
        let error = place.run(&words).assert_status(1).error();
        assert!(
            error.starts_with("B on localhost: no block has moved for 4 s"),
            "{error}"
        );
        wait_for("the program to end", || {
            processes(&["sleep 86321"]).is_empty().then_some(())
        });
    }
}

/// Ctrl-C ends everything: status 130, no process, no file.
#[test]
fn an_interrupted_stream_leaves_nothing() {
    let place = Place::new();
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--size",
        "1TiB",
        "--to",
        "out{node}",
        "--exec",
        "B=cat",
    ];
    let mut moving = Moving::start(&place, &words);
    moving.until_received(2);
    let command = moving.child.id() as i32;
    let all = family(command);
    let status = std::process::Command::new("kill")
        .args(["-INT", &command.to_string()])
        .status();
    assert!(status.unwrap().success());
    let (status, report) = moving.end();
    assert_eq!(
        (status, report["outcome"].as_str()),
        (130, Some("cancelled"))
    );
    assert_gone(&all);
    assert_eq!(temporary(place.dir.path()), Vec::<String>::new());
}

/// What is missing is refused before anything is made, and the node is named.
#[test]
fn missing_files_are_refused() {
    let place = Place::new();
    std::fs::write(place.path("in1"), "x").unwrap();
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--json",
        "--from",
        "in{node}",
        "--to",
        "out{node}",
    ];
    let report = place.run(&words).assert_status(4).report();
    assert_eq!(report["outcome"], "refused");
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("in2"), "{error}");
    assert_eq!(temporary(place.dir.path()), Vec::<String>::new());
}

fn refused(place: &Place, words: &[&str]) -> String {
    let words = [&["stream", "localhost", "localhost", "--json"], words].concat();
    let report = place.run(&words).assert_status(4).report();
    report["error"].as_str().unwrap().to_owned()
}

/// One file under two names is refused before anything moves: the later writer would replace what the other wrote.
#[test]
fn one_file_under_two_names_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("d")).unwrap();
    for name in ["d1", "d2"] {
        std::os::unix::fs::symlink("d", place.path(name)).unwrap();
    }
    let error = refused(&place, &["--to", "d{node}/out", "--size", "1MiB"]);
    assert!(
        error.contains("d/out") && error.contains("{node}"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(place.path("d")).unwrap().count(), 0);
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--size",
        "1MiB",
        "--to",
        "d{node}/out{node}",
    ];
    place.run(&words).assert_status(0);
    assert_eq!(std::fs::read_dir(place.path("d")).unwrap().count(), 2);
}

/// One file under two names is not read twice: all of it would arrive twice.
#[test]
fn one_source_under_two_names_is_refused() {
    let place = Place::new();
    std::fs::write(place.path("in1"), "text").unwrap();
    std::fs::hard_link(place.path("in1"), place.path("in2")).unwrap();
    let error = refused(&place, &["--from", "in{node}", "--to", "out{node}"]);
    assert!(
        error.contains("/in1 on localhost 1") && error.contains("/in2 on localhost 2"),
        "{error}"
    );
    let names = std::fs::read_dir(place.dir.path()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name());
    let written: Vec<_> = names
        .filter(|name| name.to_string_lossy().contains("out"))
        .collect();
    assert!(written.is_empty(), "{written:?}");
}

/// Blocks that lie unread in a program's standard input when it ends were not processed, though its status is 0.
#[test]
fn unread_blocks_are_an_error() {
    let place = Place::new();
    let words = [
        "stream",
        "localhost",
        "--json",
        "--size",
        "10KB",
        "--block",
        "1000B",
        "--exec",
        "C=head -c 4 >/dev/null; sleep 1",
    ];
    let error = place.run(&words).assert_status(1).error();
    // Ten blocks with a length of 4 bytes each, less the one length.
    assert!(
        error.starts_with("C on localhost: its program") && error.contains("10036 bytes"),
        "{error}"
    );
}

/// What is no file is refused at once; a named pipe would be waited for.
#[test]
fn pipes_are_no_sources() {
    let place = Place::new();
    for name in ["in1", "in2"] {
        let made = std::process::Command::new("mkfifo")
            .arg(place.path(name))
            .status();
        assert!(made.unwrap().success());
    }
    let error = refused(&place, &["--from", "in{node}"]);
    assert!(
        error.contains("/in") && error.contains("is a pipe, and --from names a file"),
        "{error}"
    );
}

/// A setup that is too long for a process is refused, with its size and what to do.
#[test]
fn setups_that_are_too_long_are_refused() {
    let place = Place::new();
    let program = format!("B=cat; : {}", "x".repeat(131_000));
    let error = refused(
        &place,
        &["--exec", &program, "--size", "1MiB", "--stall", "5"],
    );
    assert!(error.contains("131072"), "{error}");
    wait_for("the processes to end", || {
        processes(&[&"x".repeat(1000)]).is_empty().then_some(())
    });
}

/// What a program has started goes with the stream, also when agent and program are gone.
#[test]
fn programs_of_programs_end() {
    let place = Place::new();
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--size",
        "1TiB",
        "--exec",
        "B=sleep 86322 & exec cat",
    ];
    let mut moving = Moving::start(&place, &words);
    moving.until_received(2);
    let all = family(moving.child.id() as i32);
    let agents = processes(&["agent", "--one-shot"]);
    let agents: Vec<i32> = all
        .iter()
        .copied()
        .filter(|pid| agents.contains(pid))
        .collect();
    kill_at_once(&agents);
    assert_eq!(moving.end().0, 1);
    wait_for("what the programs started to end", || {
        processes(&["sleep 86322"]).is_empty().then_some(())
    });
    assert_gone(&all);
}

/// When all processes are killed at once nothing is left of the files that they wrote.
#[test]
fn killed_streams_leave_no_file() {
    let place = Place::new();
    let words = [
        "stream",
        "localhost",
        "localhost",
        "--size",
        "1TiB",
        "--to",
        "out{node}",
    ];
    let mut moving = Moving::start(&place, &words);
    moving.until_received(2);
    let all = family(moving.child.id() as i32);
    kill_at_once(&all);
    assert_gone(&all[1..]);
    assert_eq!(temporary(place.dir.path()), Vec::<String>::new());
}
