//! Memory of programs as sources and destinations of transfers.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use ropewalk::{
    Agent, AgentOptions, Buffer, ByteRate, Error, Event, Place, Row, RowTransfer, Transfer,
    new_token,
};

/// Agents that stand for programs on hosts of their own.
struct Scene {
    _folder: tempfile::TempDir,
    path: PathBuf,
    token: [u8; 32],
    agents: Vec<Agent>,
}

impl Scene {
    fn new(agents: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut scene = Self {
            path: folder.path().canonicalize().unwrap(),
            _folder: folder,
            token: new_token(),
            agents: Vec::new(),
        };
        scene.agents = (0..agents).map(|_| scene.agent()).collect();
        scene
    }

    fn agent(&self) -> Agent {
        let options = AgentOptions {
            listen: vec![([127, 0, 0, 1], 0).into()],
            token: self.token,
            roots: vec![(self.path.clone(), true)],
        };
        Agent::start(options).unwrap()
    }

    fn port(&self, agent: usize) -> u16 {
        self.agents[agent].addresses()[0].port()
    }

    fn transfer(&self, rows: impl IntoIterator<Item = Row>) -> RowTransfer {
        let mut transfer = RowTransfer::new();
        transfer.token(self.token);
        rows.into_iter().for_each(|row| transfer.schedule(row));
        transfer
    }

    fn writes(&self, agent: usize, file: &str, range: std::ops::Range<u64>) -> Row {
        Row::writer("127.0.0.1", self.port(agent), self.path.join(file), range).unwrap()
    }

    fn reads(&self, agent: usize, file: &str, range: std::ops::Range<u64>) -> Row {
        Row::reader("127.0.0.1", self.port(agent), self.path.join(file), range).unwrap()
    }

    fn from(&self, agent: usize, buffer: &str, range: std::ops::Range<u64>) -> Row {
        Row::from_buffer("127.0.0.1", self.port(agent), buffer, range).unwrap()
    }

    fn to(&self, agent: usize, buffer: &str, range: std::ops::Range<u64>) -> Row {
        Row::to_buffer("127.0.0.1", self.port(agent), buffer, range).unwrap()
    }

    fn lend(&self, agent: usize, name: &str, buffer: &Buffer) {
        self.agents[agent].lend(name, buffer.clone()).unwrap();
    }
}

fn data(len: usize, seed: usize) -> Arc<[u8]> {
    (0..len)
        .map(|at| (at / 5 + at * at / 777 + seed) as u8)
        .collect()
}

fn one(range: std::ops::Range<u64>) -> Vec<std::ops::Range<u64>> {
    vec![range]
}

fn input(error: &Error) -> &str {
    match error {
        Error::Input(fault) => &fault.message,
        Error::Peer(fault) => panic!("of a peer: {}", fault.message),
        other => panic!("{other:?}"),
    }
}

/// A buffer becomes a file elsewhere, and a file a buffer, whole and in part, sealed and plain, read back or not.
#[test]
fn buffers_and_files() {
    const LEN: u64 = 3_000_007;
    let scene = Scene::new(2);
    let source = data(LEN as usize, 0);
    scene.lend(0, "source", &Buffer::readable(source.clone()));
    let mut transfer = scene.transfer([
        scene.from(0, "source", 0..LEN),
        scene.reads(1, "copy", 0..LEN),
    ]);
    assert_eq!(transfer.wait().unwrap().delivered_bytes, LEN);
    assert!(fs::read(scene.path.join("copy")).unwrap() == *source);
    for (plain, verify, start) in [
        ("false", "sink", 0),
        ("true", "none", 5),
        ("true", "tree", LEN - 9),
    ] {
        let sink = Buffer::writable(vec![0; (LEN - start) as usize + 3]);
        scene.lend(0, "sink", &sink);
        let rows = [
            scene.writes(1, "copy", start..LEN).file_offset(start),
            scene.to(0, "sink", start..LEN).file_offset(2),
        ];
        let mut transfer = scene.transfer(rows);
        transfer
            .option("plain", plain)
            .unwrap()
            .option("verify", verify)
            .unwrap();
        transfer.wait().unwrap();
        assert_eq!(sink.written(), one(2..LEN - start + 2));
        assert!(!sink.is_busy());
        let mut out = [9; 4];
        sink.read(0, &mut out).unwrap();
        assert_eq!(
            out,
            [0, 0, source[start as usize], source[start as usize + 1]]
        );
        let bytes = scene.agents[0].withdraw("sink").unwrap().take_back();
        assert!(bytes[2..bytes.len() - 1] == source[start as usize..]);
        assert_eq!(bytes[bytes.len() - 1], 0);
    }
}

/// Copies name buffers as places: a buffer is one file, and takes one.
#[test]
fn copies_of_buffers() {
    let scene = Scene::new(3);
    let source = data(700_001, 1);
    let at = |agent: usize, name: &str| {
        Place::at_agent("127.0.0.1", scene.port(agent), scene.path.join(name))
    };
    let buffer = |agent: usize, name: &str| Place::buffer("127.0.0.1", scene.port(agent), name);
    let copy = |from, to| Transfer::new().token(scene.token).from(from).to(to).run();
    let sink = Buffer::writable(vec![0; 1_000_000]);
    scene.lend(0, "source", &Buffer::readable(source.clone()));
    scene.lend(2, "sink", &sink);
    copy(buffer(0, "source"), at(1, "file")).unwrap();
    assert!(fs::read(scene.path.join("file")).unwrap() == *source);
    copy(at(1, "file"), buffer(2, "sink")).unwrap();
    assert_eq!(sink.written(), one(0..700_001));
    copy(buffer(0, "source"), buffer(2, "sink")).unwrap();
    fs::create_dir(scene.path.join("tree")).unwrap();
    fs::write(scene.path.join("tree/a"), "a").unwrap();
    fs::write(scene.path.join("tree/b"), "b").unwrap();
    let error = copy(at(1, "tree"), buffer(2, "sink")).unwrap_err();
    assert!(input(&error).contains("2 files"), "{error}");
    let error = copy(at(1, "file"), buffer(2, "none")).unwrap_err();
    assert!(input(&error).contains("no buffer none"), "{error}");
    let two = Transfer::new()
        .token(scene.token)
        .from(buffer(0, "source"))
        .from(at(1, "file"));
    let error = two.to(buffer(2, "sink")).run().unwrap_err();
    assert!(input(&error).contains("the one source"), "{error}");
    let short = Buffer::writable(vec![0; 700_000]);
    scene.lend(2, "short", &short);
    let error = copy(at(1, "file"), buffer(2, "short")).unwrap_err();
    assert_eq!(
        error.to_string().split_once("buffer short").unwrap().1,
        " has 700000 bytes, and bytes 0-700000 of it are asked for; lend a longer one, or end the range within it"
    );
    assert!(sink.take_back()[..700_001] == *source);
}

/// Three programs have parts, two want a whole and an end of it: as one transfer.
#[test]
fn three_programs_to_two() {
    const PART: u64 = 400_000;
    let scene = Scene::new(5);
    let all = data(3 * PART as usize, 2);
    let mut rows = Vec::new();
    for (agent, part) in all.chunks(PART as usize).enumerate() {
        let start = agent as u64 * PART;
        scene.lend(agent, "part", &Buffer::readable(part.to_vec()));
        rows.push(scene.from(agent, "part", start..start + PART));
    }
    let whole = Buffer::writable(vec![0; 3 * PART as usize]);
    let end = Buffer::writable(vec![0; 100]);
    scene.lend(3, "whole", &whole);
    scene.lend(4, "end", &end);
    rows.push(scene.to(3, "whole", 0..3 * PART));
    rows.push(scene.to(4, "end", 3 * PART - 100..3 * PART));
    let report = scene.transfer(rows).wait().unwrap();
    assert_eq!(report.delivered_bytes, 3 * PART + 100);
    assert!(whole.take_back() == *all);
    assert!(end.take_back() == all[all.len() - 100..]);
}

/// Runs until some bytes are safe, then does what is to be done in the middle.
fn in_the_middle(transfer: &mut RowTransfer, act: impl FnOnce(&mut RowTransfer)) {
    while transfer.transfer().unwrap().is_none() {
        let is_some = |event: &Event| {
            matches!(
                event,
                Event::Progress {
                    delivered_bytes: 2_000_000..,
                    ..
                }
            )
        };
        if transfer.events().iter().any(is_some) {
            return act(transfer);
        }
        transfer
            .wait_for(std::time::Duration::from_millis(5))
            .unwrap();
    }
    panic!("it ended before");
}

/// Of two programs with the same bytes one ends: the other goes on. Where the last one ends, what the sink has is known and right.
#[test]
fn a_peer_is_killed() {
    const LEN: u64 = 16 << 20;
    let mut scene = Scene::new(3);
    let source = data(LEN as usize, 3);
    let sink = Buffer::writable(vec![0; LEN as usize]);
    scene.lend(0, "sink", &sink);
    for agent in [1, 2] {
        scene.lend(agent, "source", &Buffer::readable(source.clone()));
    }
    let rows = [
        scene.from(1, "source", 0..LEN),
        scene.from(2, "source", 0..LEN),
        scene.to(0, "sink", 0..LEN),
    ];
    let mut transfer = scene.transfer(rows.clone());
    transfer.limit(ByteRate(8 << 20));
    let killed = scene.agents.pop().unwrap();
    in_the_middle(&mut transfer, |_| killed.stop().unwrap());
    transfer.wait().unwrap();
    assert_eq!(sink.written(), one(0..LEN));
    let mut out = vec![0; LEN as usize];
    sink.read(0, &mut out).unwrap();
    assert!(out == *source);

    let mut transfer = scene.transfer([rows[0].clone(), rows[2].clone()]);
    transfer.limit(ByteRate(4 << 20));
    let killed = scene.agents.pop().unwrap();
    in_the_middle(&mut transfer, |_| killed.stop().unwrap());
    let error = transfer.wait().unwrap_err();
    assert!(!matches!(error, Error::Input(_) | Error::Bug(_)), "{error}");
    assert!(!sink.is_busy());
    let written = sink.written();
    let bytes: u64 = written.iter().map(|range| range.end - range.start).sum();
    assert!((1..LEN).contains(&bytes), "{written:?}");
    let out = sink.take_back();
    for range in written {
        let range = range.start as usize..range.end as usize;
        assert!(out[range.clone()] == source[range]);
    }
}

/// What does not fit, or cannot be written, is refused before anything moves; memory that is taken back ends the transfer.
#[test]
fn what_cannot_be_is_refused() {
    const LEN: u64 = 8 << 20;
    let scene = Scene::new(2);
    let source = Buffer::writable(data(LEN as usize, 4).to_vec());
    let sink = Buffer::writable(vec![0; LEN as usize - 1]);
    scene.lend(0, "source", &source);
    scene.lend(0, "read.only", &Buffer::readable(vec![0; 10]));
    scene.lend(1, "sink", &sink);
    for (from, to, error) in [
        (
            scene.from(0, "source", 0..LEN),
            scene.to(1, "sink", 0..LEN),
            "buffer sink has 8388607 bytes, and bytes 0-8388607 of it are asked for",
        ),
        (
            scene.from(0, "source", 0..10).file_offset(LEN),
            scene.to(1, "sink", 0..10),
            "buffer source has 8388608 bytes, and bytes 8388608-8388617 of it are asked for",
        ),
        (
            scene.from(0, "source", 0..10),
            scene.to(0, "read.only", 0..10),
            "buffer read.only can only be read",
        ),
        (
            scene.from(0, "source", 0..10),
            scene.to(1, "sink", 0..10).destination("both"),
            "leave out its destination's name",
        ),
    ] {
        let message = scene.transfer([from, to]).wait().unwrap_err();
        assert!(input(&message).contains(error), "{message}");
    }
    assert!(scene.agents[1].lend("sink", sink.clone()).is_err());
    assert!(Row::to_buffer("a", 1, "a/b", 0..1).is_err());

    let rows = || {
        [
            scene.from(0, "source", 0..LEN - 1),
            scene.to(1, "sink", 0..LEN - 1),
        ]
    };
    let mut transfer = scene.transfer(rows());
    transfer.limit(ByteRate(2 << 20));
    in_the_middle(&mut transfer, |_| {
        // Another transfer may not write there meanwhile.
        let error = scene.transfer(rows()).wait().unwrap_err();
        assert!(input(&error).contains("are being written"), "{error}");
        assert!(sink.is_busy() && sink.read(0, &mut [0]).is_err());
        assert_eq!(source.take_back().len(), LEN as usize);
    });
    let error = transfer.wait().unwrap_err();
    assert!(
        error.to_string().contains("buffer source was taken back"),
        "{error}"
    );
    assert!(!sink.is_busy());
}

/// A transfer to a file goes on with what an earlier one left of the same buffer, and not with what it left of another one of the name.
#[test]
fn files_go_on_with_the_same_buffer_only() {
    const LEN: u64 = 24 << 20;
    let mut scene = Scene::new(2);
    let buffers = [5, 6].map(|seed| Buffer::readable(data(LEN as usize, seed)));
    let transfer = |scene: &Scene, buffer: &Buffer| {
        scene.lend(0, "x", buffer);
        scene.transfer([scene.from(0, "x", 0..LEN), scene.reads(1, "copy", 0..LEN)])
    };
    // The program of the buffer ends, and is there again.
    let half = |scene: &mut Scene, buffer: &Buffer| {
        let mut transfer = transfer(scene, buffer);
        transfer.limit(ByteRate(8 << 20));
        let killed = scene.agents.remove(0);
        in_the_middle(&mut transfer, |_| killed.stop().unwrap());
        transfer.wait().unwrap_err();
        let again = scene.agent();
        scene.agents.insert(0, again);
    };
    let is_copy_of = |scene: &Scene, buffer: &Buffer| {
        let copy = fs::read(scene.path.join("copy")).unwrap();
        let mut bytes = vec![0; LEN as usize];
        buffer.read(0, &mut bytes).unwrap();
        copy == bytes
    };
    half(&mut scene, &buffers[0]);
    let report = transfer(&scene, &buffers[0]).wait().unwrap();
    assert!(report.landing.resumed_bytes > 0);
    assert!(is_copy_of(&scene, &buffers[0]));
    fs::remove_file(scene.path.join("copy")).unwrap();
    assert!(scene.agents[0].withdraw("x").is_some());
    half(&mut scene, &buffers[0]);
    let report = transfer(&scene, &buffers[1]).wait().unwrap();
    assert_eq!(report.landing.resumed_bytes, 0);
    assert!(is_copy_of(&scene, &buffers[1]));
}
