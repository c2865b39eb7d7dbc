//! Specification files whose `master` row names a `ropewalk serve`: handed over, followed, refused, with real processes.

mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use common::serving::{Serving, hand_over, jobs, listed, state};
use common::{DEADLINE, Moving, Place, Ran, RunningAgent, bytes, wait_for};
use rustix::process::{Pid, Signal, kill_process};

const ANY_PORT: &[&str] = &["--listen", "127.0.0.1:0"];

/// Agents and data of the paper's Figure 2.
struct Figure2 {
    place: Place,
    agents: Vec<RunningAgent>,
    data: Vec<u8>,
}

impl Figure2 {
    /// Each range is `times` as long as the paper's.
    fn new(times: usize) -> Self {
        let place = Place::new();
        place.make_token();
        let data = bytes(4096 * times, 11);
        let (first, second) = data.split_at(data.len() / 2);
        std::fs::write(place.path("half1"), first).unwrap();
        std::fs::write(place.path("half2"), second).unwrap();
        let agents = (0..7).map(|_| place.agent(place.dir.path())).collect();
        Self {
            place,
            agents,
            data,
        }
    }

    /// Writes the file `spec` with this port in its `master` row.
    fn write(&self, port: u16) {
        let (dir, quarter) = (self.place.text(""), self.data.len() / 4);
        let rows = [
            ("writer", "half1", 0, 0, 1),
            ("writer", "half1", 1, 1, 2),
            ("writer", "half2", 0, 2, 3),
            ("writer", "half2", 1, 3, 4),
            ("reader", "copy1", 0, 0, 2),
            ("reader", "copy1b", 2, 2, 4),
            ("reader", "copy2", 0, 0, 4),
        ];
        let rows = rows.iter().zip(&self.agents).map(|(row, agent)| {
            let (kind, file, offset, start, end) = row;
            let (offset, start, last) = (offset * quarter, start * quarter, end * quarter - 1);
            let port = agent.port;
            format!("{kind} 127.0.0.1:{port} \"file://{dir}{file}\" {offset} {start}-{last}\n")
        });
        let rows: String = rows.collect();
        let text = format!("id \"My Data File\"\nmaster localhost:{port}\n{rows}");
        std::fs::write(self.place.path("spec"), text).unwrap();
    }

    #[track_caller]
    fn assert_copies(&self) {
        let read = |name: &str| std::fs::read(self.place.path(name)).unwrap();
        let half = self.data.len() / 2;
        assert!(read("copy1") == self.data[..half], "copy1 differs");
        assert!(
            read("copy1b")[half..] == self.data[half..],
            "copy1b differs"
        );
        assert!(read("copy2") == self.data, "copy2 differs");
    }

    #[track_caller]
    fn assert_nothing_moved(&self) {
        for name in ["copy1", "copy1b", "copy2"] {
            assert!(!self.place.path(name).exists(), "{name}");
        }
    }

    /// Its jobs, as a command of another host lists them.
    fn jobs_at(&self, port: u16) -> Vec<serde_json::Value> {
        let at = format!("localhost:{port}");
        listed(
            &self
                .place
                .run(&["queue", "--all", "--json", "--at", &at])
                .assert_status(0),
        )
    }
}

/// The paper's figure with its `master` row: the master there carries it out, the command shows its events and its report. The same
/// file is a new job when it is handed over again.
#[test]
fn figure_2_is_handed_over() {
    let figure = Figure2::new(1);
    let (_serving, port) = Serving::listening(&figure.place, ANY_PORT);
    figure.write(port);
    let ran = figure
        .place
        .run(&["transfer", "--json", "spec"])
        .assert_status(0);
    let first = &ran.events()[0];
    assert_eq!(
        (&first["event"], &first["job"]),
        (&"handed_over".into(), &1.into())
    );
    assert_eq!(first["at"], format!("localhost:{port}"));
    let report = ran.report();
    assert_eq!(report["outcome"], "done", "{report:#}");
    assert_eq!(report["label"], "My Data File");
    assert_eq!(report["delivered_bytes"], 8192);
    assert_eq!(report["pairs"].as_array().unwrap().len(), 8);
    figure.assert_copies();
    let ran = figure
        .place
        .run(&["transfer", "--plain", "--streams", "2", "spec"]);
    ran.assert_status(0)
        .assert_says("job 2 of `ropewalk serve` at localhost:")
        .assert_says("done: 8.19 kB");
    let jobs = figure.jobs_at(port);
    assert_eq!(jobs.len(), 2);
    assert!(jobs.iter().all(|job| state(job) == "done"), "{jobs:#?}");
}

/// The master is killed in the middle and started again: the command waits, the job runs again, and all is right.
#[test]
fn a_killed_master_goes_on() {
    let figure = Figure2::new(2048);
    let (serving, port) = Serving::listening(&figure.place, ANY_PORT);
    figure.write(port);
    let args = ["transfer", "--limit", "40Mbit", "spec"];
    let mut following = Moving::start(&figure.place, &args);
    following.event("handed_over");
    following.until_delivered(1 << 20);
    serving.kill();
    let listen = format!("127.0.0.1:{port}");
    // As the next one after a reboot.
    let (_serving, _) = Serving::listening(&figure.place, &["--listen", &listen]);
    let (status, report) = following.end();
    assert_eq!(status, 0, "{report:#}");
    assert_eq!(report["outcome"], "done", "{report:#}");
    figure.assert_copies();
    let jobs = figure.jobs_at(port);
    assert_eq!(jobs.len(), 1);
    assert_eq!((state(&jobs[0]), &jobs[0]["failures"]), ("done", &0.into()));
}

/// Nothing listens there: the command is the master, as without the row, and says so where it is asked to say more.
#[test]
fn without_a_master_the_command_is_it() {
    let figure = Figure2::new(1);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    figure.write(port);
    let ran = figure.place.run(&["transfer", "-v", "spec"]);
    ran.assert_status(0)
        .assert_says("this command is the master");
    figure.assert_copies();
    let at = format!("localhost:{port}");
    figure
        .place
        .run(&["queue", "--at", &at])
        .assert_status(1)
        .assert_says("no `ropewalk serve` answers at");
    // It is not tried where the command starts the agents.
    let (_serving, port) = Serving::listening(&figure.place, ANY_PORT);
    figure.write(port);
    let ran = figure
        .place
        .run(&["transfer", "--json", "--start", "local", "spec"]);
    let events = ran.assert_status(0).events();
    assert!(events.iter().all(|event| event["event"] != "handed_over"));
    assert_eq!(figure.jobs_at(port).len(), 0);
}

/// A master with another token, an agent, and a program that is none of these, are errors with what to do; nothing moves.
#[test]
fn what_refuses_is_an_error() {
    let figure = Figure2::new(1);
    let other = figure.place.text("other");
    figure
        .place
        .run(&["agent", "--new-token", &other])
        .assert_status(0);
    let args = [ANY_PORT, &["--token-file", &other]].concat();
    let (_serving, other_token) = Serving::listening(&figure.place, &args);
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let strange = stranger.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in stranger.incoming() {
            let _ = stream
                .unwrap()
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    for port in [other_token, figure.agents[0].port, strange] {
        figure.write(port);
        figure
            .place
            .run(&["transfer", "spec"])
            .assert_status(4)
            .assert_says("it has another token, is another program or version")
            .assert_says("Nothing was moved; without the `master` row");
        let ran = figure.place.run(&["transfer", "--json", "spec"]);
        let report = ran.assert_status(4).report();
        assert_eq!(report["error_kind"], "refused", "{report:#}");
    }
    figure.assert_nothing_moved();
    // An agent is no master, and a master no agent.
    let there = format!("127.0.0.1:{other_token}:/x");
    figure
        .place
        .run(&["copy", "--token-file", &other, &there, "x"])
        .assert_status(4);
}

/// Whatever strangers send to the port, they are closed without an answer, and the master answers others.
#[test]
fn strangers_on_the_port_get_no_answer() {
    let figure = Figure2::new(1);
    let mut command = figure.place.command();
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .stderr(File::create(figure.place.path("log")).unwrap());
    let (_serving, port) = Serving::listening_of(command);
    let preface = [&b"RPWK"[..], &2_u16.to_le_bytes(), &[8], &[0; 121]].concat();
    for sent in [&[b'x'; 128][..], &preface, &preface[..40]] {
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stranger.set_read_timeout(Some(DEADLINE)).unwrap();
        stranger.write_all(sent).unwrap();
        let mut answer = Vec::new();
        // A connection that is reset has no answer either.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    figure.write(port);
    figure.place.run(&["transfer", "spec"]).assert_status(0);
    figure.assert_copies();
    let log = || std::fs::read_to_string(figure.place.path("log")).unwrap();
    for said in [
        "is no preface of this version",
        "its token is wrong",
        "no preface within 5 s",
        "hands over a specification of",
    ] {
        wait_for(said, || log().contains(said).then_some(()));
    }
}

/// A job that was handed over goes on when its command ends, is waited for, listed and cancelled from elsewhere; what the master's own
/// user handed over is not seen there.
#[test]
fn jobs_are_left_waited_for_and_cancelled() {
    let figure = Figure2::new(2048);
    let place = &figure.place;
    std::fs::write(place.path("own"), bytes(1000, 3)).unwrap();
    let args = [ANY_PORT, &["--limit", "20Mbit"]].concat();
    let (_serving, port) = Serving::listening(place, &args);
    figure.write(port);
    let at = format!("localhost:{port}");
    let own = hand_over(place, &["own", "own copy"]).to_string();
    place.run(&["queue", "--wait", &own]).assert_status(0);
    let following = place
        .command()
        .args(["transfer", "spec", "--progress", "always"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("a run", || {
        let jobs = figure.jobs_at(port);
        let process = jobs.first().map(|job| job["process"].is_u64());
        (process == Some(true)).then_some(())
    });
    kill_process(Pid::from_child(&following), Signal::INT).unwrap();
    Ran(following.wait_with_output().unwrap())
        .assert_status(130)
        .assert_says("job 2 goes on at localhost:")
        .assert_says(&format!("`ropewalk queue --at {at} --cancel 2`"));
    // The same places: it waits for the one before.
    place
        .run(&["transfer", "--detach", "--priority", "3", "spec"])
        .assert_status(0)
        .assert_says(&format!("job 3 at {at}"));
    let ids: Vec<u64> = figure
        .jobs_at(port)
        .iter()
        .map(|job| job["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, [2, 3]);
    assert_eq!(jobs(place).len(), 3);
    place
        .run(&["queue", "--at", &at, "--cancel", &own, "2"])
        .assert_status(1)
        .assert_says("the queue has no job 1 that was handed over here")
        .assert_says("job 2 cancelled");
    place.run(&["queue", "--limit", "none"]).assert_status(0);
    place
        .run(&["queue", "--at", &at, "--wait", "3"])
        .assert_status(0)
        .assert_says("3  done");
    place
        .run(&["queue", "--at", &at, "--wait", "2"])
        .assert_status(1)
        .assert_says("2  cancelled");
    figure.assert_copies();
}

/// A specification that cannot be carried out is refused by the job's own run, and what the master cannot take by the command.
#[test]
fn failed_jobs_have_the_status_of_their_transfer() {
    let figure = Figure2::new(1);
    let place = &figure.place;
    let (_serving, port) = Serving::listening(place, ANY_PORT);
    figure.write(port);
    std::fs::remove_file(place.path("half2")).unwrap();
    let ran = place.run(&["transfer", "--json", "spec"]);
    let report = ran.assert_status(4).report();
    assert_eq!(report["error_kind"], "refused", "{report:#}");
    assert!(report["error"].as_str().unwrap().contains("half2"));
    figure.assert_nothing_moved();
    place
        .run(&["transfer", "--speeds", "file", "spec"])
        .assert_status(4)
        .assert_says("the value of --speeds cannot be handed over");
    assert_eq!(figure.jobs_at(port).len(), 1);
}
