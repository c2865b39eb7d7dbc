//! Parts of streams whose processes only wait.

use std::path::PathBuf;

use ropewalk_proto::control::{StageProgram, ToAgent, to_agent};
use ropewalk_proto::stage::{MEMORY_MAX, NODES_MAX};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};

use super::*;
use crate::{Agent, AgentConfig};

struct Bench {
    folder: tempfile::TempDir,
    agent: Agent,
}

impl Bench {
    /// An agent whose processes have this name and sleep.
    fn new(name: &str) -> Self {
        Self::running(name, "/bin/sleep", &["1000"])
    }

    fn running(name: &str, program: &str, words: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A copy could not be run while another test starts a process, which has it open for writing until it runs its program.
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(program, &link).unwrap();
        let mut command = vec![link.into_os_string()];
        command.extend(words.iter().map(OsString::from));
        let config = AgentConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            token: [5; 32],
            roots: vec![(folder.path().to_owned(), true)],
            expanded: Vec::new(),
            log: None,
            stages: Some(StageConfig {
                command,
                runs_programs: true,
                cache: None,
            }),
            forwards: ropewalk_proto::tunnel::Permitted::nothing(),
        };
        let agent = Agent::bind(config).unwrap();
        Self { folder, agent }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, open: &StreamOpen) -> Result<Arc<Stream>, AgentError> {
        let shared = &self.agent.shared;
        let (outbox, _) = mpsc::unbounded_channel();
        let opened = Stream::open(
            open.clone(),
            shared.stages.as_ref(),
            &shared.host,
            outbox,
            None,
        );
        opened.map(|(stream, _)| stream)
    }

    /// As what a node says that it reads.
    fn source(&self, node: u32, name: &str) -> Vec<u8> {
        let shared = &self.agent.shared;
        let open = StreamOpen {
            from: self.path(name).into_os_string().into_encoded_bytes(),
            ..part(node)
        };
        let (outbox, _) = mpsc::unbounded_channel();
        let opened = Stream::open(open, shared.stages.as_ref(), &shared.host, outbox, None);
        let (stream, opened) = opened.unwrap();
        stream.finish(false);
        opened.source
    }
}

fn part(node: u32) -> StreamOpen {
    StreamOpen {
        stream: vec![9; 16],
        secret: vec![7; 32],
        node,
        nodes: 3,
        groups: 2,
        block: 1 << 16,
        buffers: 8,
        ..StreamOpen::default()
    }
}

/// Processes with this name, ended ones that were not waited for, too.
fn named(name: &str) -> usize {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter(|stat| stat.contains(&format!("({name})")))
        .count()
}

/// Numbers beyond their bounds are refused, products too.
#[test]
fn bounds_are_kept() {
    assert!(open::is_sane(&part(0)));
    let with = |change: fn(&mut StreamOpen)| {
        let mut part = part(0);
        change(&mut part);
        part
    };
    for wrong in [
        with(|part| part.nodes = 1025),
        with(|part| part.node = 3),
        with(|part| part.groups = 65),
        with(|part| part.block = 32 << 20),
        with(|part| part.block = 0),
        with(|part| part.buffers = 1),
        with(|part| part.buffers = MEMORY_MAX / part.block + 1),
        with(|part| part.buffers = u64::MAX),
    ] {
        assert!(!open::is_sane(&wrong), "{wrong:?}");
    }
}

/// A part that cannot be set up leaves no process, not even one that has ended.
#[test]
fn failed_opens_leave_no_process() {
    let bench = Bench::new("stagefailed");
    let long = StreamOpen {
        programs: vec![StageProgram {
            group: 1,
            command: vec![b'x'; PACKET_MAX],
            lines: false,
        }],
        ..part(0)
    };
    let error = bench.open(&long).unwrap_err().to_string();
    assert!(
        error.contains("cannot be set up") && error.contains("131072"),
        "{error}"
    );
    assert_eq!(named("stagefailed"), 0);
    let stream = bench.open(&part(0)).unwrap();
    assert_eq!(named("stagefailed"), 2);
    stream.finish(false);
    assert_eq!(named("stagefailed"), 0);
}

/// The addresses of as many nodes as a stream may have reach its processes, in as many packets as it takes, however many each node
/// has; a node with more than a packet holds is named.
#[test]
fn addresses_of_many_nodes_are_sent() {
    const ADDRESS: &str = "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
    let bench = Bench::running("stagemany", "/bin/cat", &[]);
    let shared = &bench.agent.shared;
    for (nodes, len, is_sent) in [
        (NODES_MAX, 8 * ADDRESS.len(), true),
        (NODES_MAX, 8 << 10, true),
        (3, PACKET_MAX, false),
    ] {
        let (outbox, mut said) = mpsc::unbounded_channel();
        let open = Stream::open(part(0), shared.stages.as_ref(), &shared.host, outbox, None);
        let (stream, _) = open.unwrap();
        let peers = (0..nodes).map(|node| control::Peer {
            node,
            name: format!("node-{node}.cluster.example.org"),
            addresses: vec![ADDRESS.into(); len / ADDRESS.len()],
            ..control::Peer::default()
        });
        stream.start(&StreamStart {
            peers: peers.collect(),
        });
        match said.try_recv().ok().and_then(|message| message.body) {
            None => assert!(is_sent, "{len} bytes were sent"),
            Some(from_agent::Body::StreamFailed(failed)) => {
                let text = failed.message;
                let is_clear = text.contains("node-0.cluster.example.org has 13")
                    && text.contains("bytes of addresses, more than 131072");
                assert!(!is_sent && is_clear, "{len}: {text}");
            }
            Some(other) => panic!("{other:?}"),
        }
        stream.finish(false);
    }
    assert_eq!(named("stagemany"), 0);
}

/// A connection that was meant for another node gets no edge here.
#[test]
fn edges_of_other_nodes_are_refused() {
    let bench = Bench::new("stageedge");
    let stream = bench.open(&part(1)).unwrap();
    let secret = EdgeSecret::new(&[7; 32]).unwrap();
    for (to, group, expected) in [(1, 1, true), (0, 1, false), (1, 2, false)] {
        let edge = Edge {
            from: 2,
            to,
            group,
            is_sealed: true,
        };
        let (_, preface) = secret.ask([9; 16], edge);
        assert_eq!(stream.edge(&preface, false).is_some(), expected, "{edge:?}");
    }
    stream.finish(false);
}

/// Two nodes that would write one file are found, whatever they call it; the claim goes when blocks move.
#[test]
fn one_file_has_one_writer() {
    let bench = Bench::new("stageclaim");
    std::fs::create_dir(bench.path("d")).unwrap();
    std::os::unix::fs::symlink("d", bench.path("e")).unwrap();
    let to = |node, name: &str| StreamOpen {
        to: bench.path(name).into_os_string().into_encoded_bytes(),
        ..part(node)
    };
    let first = bench.open(&to(0, "d/out")).unwrap();
    let error = bench.open(&to(1, "e/out")).unwrap_err().to_string();
    assert!(
        error.contains("written by node 1 of this stream, too"),
        "{error}"
    );
    let second = bench.open(&to(1, "e/other")).unwrap();
    let count = || std::fs::read_dir(bench.path("d")).unwrap().count();
    assert!(count() > 0);
    for stream in [&first, &second] {
        stream.start(&StreamStart::default());
    }
    assert_eq!(count(), 0);
    for stream in [first, second] {
        stream.finish(false);
    }
    assert_eq!((count(), named("stageclaim")), (0, 0));
}

/// Two nodes that would read one file say the same of it, whatever they call it, and something else of two files.
#[test]
fn one_source_is_known_by_all_names() {
    let bench = Bench::new("stagesource");
    std::fs::write(bench.path("in1"), "text").unwrap();
    std::fs::write(bench.path("in2"), "text").unwrap();
    std::fs::hard_link(bench.path("in1"), bench.path("in3")).unwrap();
    std::os::unix::fs::symlink("in1", bench.path("in4")).unwrap();
    let source = |node, name| bench.source(node, name);
    let first = source(0, "in1");
    assert!(!first.is_empty());
    assert_ne!(source(1, "in2"), first);
    assert_eq!([source(1, "in3"), source(2, "in4")], [first.clone(), first]);
}

/// What something else has put in the place of the output is found before any node gives a name.
#[test]
fn taken_names_are_foreseen() {
    let bench = Bench::new("stagetaken");
    let open = StreamOpen {
        to: bench.path("out").into_os_string().into_encoded_bytes(),
        ..part(0)
    };
    let stream = bench.open(&open).unwrap();
    assert!(matches!(stream.check(1), Some(Ok(()))));
    assert!(stream.check(0).is_none(), "A writes nothing");
    std::fs::write(bench.path("out"), "other").unwrap();
    assert!(matches!(stream.check(1), Some(Err(_))));
    stream.finish(false);
}

/// A master that opens a second stream on its connection is refused; the first one stays the only one.
#[tokio::test]
async fn a_connection_has_one_stream() {
    let bench = Bench::new("stagetwice");
    let shared = bench.agent.shared.clone();
    let (mut near, far) = tokio::io::duplex(1 << 16);
    let (heard, _) = watch::channel(());
    let talk = crate::session::converse(far, None, "test".into(), shared.clone(), heard);
    let talk = tokio::spawn(talk);
    let mut answers = Vec::new();
    for id in [1, 2] {
        let open = StreamOpen {
            stream: vec![id; 16],
            ..part(0)
        };
        let body = Some(to_agent::Body::StreamOpen(open));
        near.write_all(&control::encode(&ToAgent { body }))
            .await
            .unwrap();
        loop {
            let length = near.read_u32_le().await.unwrap() as usize;
            let mut bytes = vec![0; length];
            near.read_exact(&mut bytes).await.unwrap();
            let message: FromAgent = control::decode(&bytes).unwrap();
            match message.body.unwrap() {
                from_agent::Body::StreamOpened(_) => answers.push(true),
                from_agent::Body::Refused(_) => answers.push(false),
                _ => continue,
            }
            break;
        }
    }
    assert_eq!(answers, [true, false]);
    assert_eq!(shared.streams.lock().len(), 1);
    assert_eq!(named("stagetwice"), 2);
    drop(near);
    talk.await.unwrap();
    assert_eq!((shared.streams.lock().len(), named("stagetwice")), (0, 0));
}
