//! Transfers that are described row by row.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ropewalk::{
    Agent, AgentOptions, ByteRate, Error, ErrorKind, Event, Row, RowTransfer, new_token,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

struct Scene {
    _folder: tempfile::TempDir,
    path: PathBuf,
    token: [u8; 32],
    agents: Vec<Agent>,
}

impl Scene {
    fn new(agents: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        let token = new_token();
        let mut scene = Self {
            _folder: folder,
            path,
            token,
            agents: Vec::new(),
        };
        for _ in 0..agents {
            scene.agents.push(scene.agent(0));
        }
        scene
    }

    fn agent(&self, port: u16) -> Agent {
        let options = AgentOptions {
            listen: vec![([127, 0, 0, 1], port).into()],
            token: self.token,
            roots: vec![(self.path.clone(), true)],
        };
        Agent::start(options).unwrap()
    }

    fn port(&self, agent: usize) -> u16 {
        self.agents[agent].addresses()[0].port()
    }

    fn transfer(&self) -> RowTransfer {
        let mut transfer = RowTransfer::new();
        transfer.token(self.token);
        transfer
    }

    fn writer(&self, agent: usize, file: &str, len: u64) -> Row {
        Row::writer("127.0.0.1", self.port(agent), self.path.join(file), 0..len).unwrap()
    }

    fn reader(&self, agent: usize, file: &str, len: u64) -> Row {
        Row::reader("127.0.0.1", self.port(agent), self.path.join(file), 0..len).unwrap()
    }

    fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.path.join(file)).unwrap()
    }
}

/// The descriptor is readable at the end, and only while there is something to take.
#[test]
fn a_descriptor_announces_the_end() {
    let scene = Scene::new(2);
    fs::write(scene.path.join("data"), vec![3; 100_000]).unwrap();
    let mut transfer = scene.transfer();
    assert!(transfer.descriptor().is_none());
    transfer.schedule(scene.writer(0, "data", 100_000));
    transfer.schedule(scene.reader(1, "copy", 100_000));
    assert!(transfer.transfer().unwrap().is_none());
    let report = loop {
        let descriptor = transfer.descriptor().unwrap();
        let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        poll(&mut polled, None).unwrap();
        let events = transfer.events();
        if events
            .iter()
            .any(|event| matches!(event, Event::Ended { .. }))
        {
            // The end stays announced until it is taken.
            let mut polled = [PollFd::from_borrowed_fd(
                transfer.descriptor().unwrap(),
                PollFlags::IN,
            )];
            let most = Timespec {
                tv_sec: 60,
                tv_nsec: 0,
            };
            assert_eq!(poll(&mut polled, Some(&most)).unwrap(), 1);
        }
        if let Some(report) = transfer.transfer().unwrap() {
            break report;
        }
    };
    assert_eq!(
        (report.delivered_bytes, transfer.data_sent()),
        (100_000, 100_000)
    );
    assert!(transfer.descriptor().is_none());
    assert_eq!(scene.read("copy"), vec![3; 100_000]);
}

/// Rows that are scheduled while bytes move join the transfer: the second writer sends, too.
#[test]
fn rows_join_a_running_transfer() {
    const LEN: u64 = 8 << 20;
    let scene = Scene::new(3);
    fs::write(scene.path.join("data"), vec![9; LEN as usize]).unwrap();
    // The first writer alone would take minutes.
    let mut transfer = scene.transfer();
    transfer.limit(ByteRate(1 << 20));
    transfer.schedule(scene.writer(0, "data", LEN));
    transfer.schedule(scene.reader(1, "copy", LEN));
    transfer.transfer().unwrap();
    transfer.schedule(scene.writer(2, "data", LEN));
    let report = transfer.wait().unwrap();
    assert_eq!(report.delivered_bytes, LEN);
    let names: Vec<&str> = report.nodes.iter().map(|node| node.node.as_str()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(scene.read("copy"), vec![9; LEN as usize]);
}

/// A reader whose row is scheduled as the transfer ends gets its bytes from the same writers, before the report. Whether the two that are late
/// share one transfer depends on how far the first one is; the report is that of the last.
#[test]
fn rows_that_come_too_late_are_not_lost() {
    const LEN: u64 = 100_000;
    let scene = Scene::new(4);
    fs::write(scene.path.join("data"), vec![9; LEN as usize]).unwrap();
    let mut transfer = scene.transfer();
    transfer.schedule(scene.writer(0, "data", LEN));
    transfer.schedule(scene.reader(1, "copy", LEN));
    transfer.transfer().unwrap();
    let is_end = |event: &Event| matches!(event, Event::Ended { .. });
    while !transfer.events().iter().any(is_end) {
        let descriptor = transfer.descriptor().unwrap();
        let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        poll(&mut polled, None).unwrap();
    }
    // The first is about to join what has ended, the second has not begun to.
    transfer.schedule(scene.reader(2, "late", LEN));
    assert!(transfer.transfer().unwrap().is_none());
    transfer.schedule(scene.reader(3, "later", LEN));
    let report = transfer.wait().unwrap();
    let address = format!("127.0.0.1:{}", scene.port(3));
    let reported: Vec<&str> = report.nodes.iter().map(|node| node.node.as_str()).collect();
    assert!(reported.contains(&address.as_str()), "{reported:?}");
    // All but the writer are readers, and each has all.
    assert_eq!(report.delivered_bytes, (reported.len() as u64 - 1) * LEN);
    for copy in ["copy", "late", "later"] {
        assert_eq!(scene.read(copy), vec![9; LEN as usize], "{copy}");
    }
    // Nothing is left over for the next one.
    transfer.schedule(scene.writer(0, "data", 10));
    transfer.schedule(scene.reader(1, "other", 10));
    assert_eq!(transfer.wait().unwrap().delivered_bytes, 10);
}

/// An error that passes leaves the rows as they are: the same call continues, and a finished transfer begins another one.
#[test]
fn the_same_call_continues() {
    let mut scene = Scene::new(2);
    fs::write(scene.path.join("data"), vec![1; 5000]).unwrap();
    let port = scene.port(1);
    let reader = scene.reader(1, "copy", 5000);
    scene.agents.pop().unwrap().stop().unwrap();
    let mut transfer = scene.transfer();
    transfer.schedule(scene.writer(0, "data", 5000));
    transfer.schedule(reader);
    let error = transfer.wait().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_eq!(error.fault().kind, Some(ErrorKind::Unreachable));
    let agent = scene.agent(port);
    scene.agents.push(agent);
    let report = transfer.wait().unwrap();
    assert_eq!(report.delivered_bytes, 5000);
    assert_eq!(scene.read("copy"), vec![1; 5000]);
    // Rows are those of one transfer.
    transfer.schedule(scene.writer(0, "data", 10));
    transfer.schedule(scene.reader(1, "other", 10));
    assert_eq!(transfer.wait().unwrap().delivered_bytes, 10);
    assert_eq!(scene.read("other"), vec![1; 10]);
}

/// Rows that make no transfer are refused before anything is reached, and lines are read as in a specification file.
#[test]
fn rows_are_checked() {
    let mut transfer = RowTransfer::new();
    transfer.token([1; 32]);
    let input = |error: Error| match error {
        Error::Input(fault) => fault.message,
        other => panic!("{other:?}"),
    };
    assert!(input(transfer.transfer().unwrap_err()).contains("no writer row"));
    transfer.schedule("writer a:1 /data 0 0-9".parse().unwrap());
    transfer.schedule("reader b:2 /copy 0 0-19 down=1Gbit".parse().unwrap());
    assert!(input(transfer.transfer().unwrap_err()).contains("no writer"));
    assert_eq!(transfer.data_sent(), 0);
    for (row, error) in [
        (Row::writer("a", 0, "/data", 0..1), "port from 1"),
        (
            Row::writer("-oProxyCommand=x", 1, "/data", 0..1),
            "is no address",
        ),
        (
            Row::reader("a", 1, Path::new("data"), 0..1),
            "not an absolute path",
        ),
        (
            Row::reader("a", 1, "/data", Range { start: 2, end: 1 }),
            "ends before",
        ),
        (
            "reader a:1 /x 0 0-9\nreader b:1 /x 0 0-9".parse(),
            "one row",
        ),
        ("reader a:1 /x 0".parse(), "range"),
    ] {
        let message = input(row.unwrap_err());
        assert!(message.contains(error), "{message}");
    }
    let row: Row = "reader b:2 /copy 5 0-19 down=8bit dest=d".parse().unwrap();
    let made = Row::reader("b", 2, "/copy", 0..20).unwrap().file_offset(5);
    let made = made.rate(ByteRate(1)).destination("d");
    assert_eq!(
        format!("{row:?}").replace("line: 1", "line: 0"),
        format!("{made:?}")
    );
}

/// A transfer that is dropped is cancelled: no agent has it any more, and nothing has its name.
#[test]
fn a_dropped_transfer_is_cancelled() {
    let scene = Scene::new(2);
    fs::write(scene.path.join("data"), vec![1; 5_000_000]).unwrap();
    // It would take hours.
    let mut transfer = scene.transfer();
    transfer.limit(ByteRate(300));
    transfer.schedule(scene.writer(0, "data", 5_000_000));
    transfer.schedule(scene.reader(1, "copy", 5_000_000));
    transfer.transfer().unwrap();
    while !transfer
        .events()
        .iter()
        .any(|event| matches!(event, Event::Planned { .. }))
    {
        let mut polled = [PollFd::from_borrowed_fd(
            transfer.descriptor().unwrap(),
            PollFlags::IN,
        )];
        poll(&mut polled, None).unwrap();
    }
    drop(transfer);
    assert!(!scene.path.join("copy").exists());
    scene
        .agents
        .into_iter()
        .for_each(|agent| agent.stop().unwrap());
}
