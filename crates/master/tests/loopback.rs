//! Whole transfers between agents of this process, over real sockets and files.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_agent::{Agent, AgentConfig};
use ropewalk_master::request::{
    Destinations, LaneKind, Mapping, NodeRequest, Object, ObjectRequest, Options, Reach,
    RowRequest, Sources, Verify,
};
use ropewalk_master::{AgentHere, Cancel, Joining, Members, Request, query_cancel, query_status};
use ropewalk_model::Range;
use ropewalk_proto::report::{ErrorKind, Event, Outcome, Report};
use ropewalk_proto::tunnel::Permitted;
use tokio::sync::{mpsc, oneshot};

const TOKEN: [u8; 32] = [7; 32];

struct TestAgent {
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<tokio::task::JoinHandle<()>>,
}

impl TestAgent {
    fn start(root: &Path) -> Self {
        let config = AgentConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            token: TOKEN,
            roots: vec![(root.to_owned(), true)],
            expanded: Vec::new(),
            log: None,
            stages: None,
            forwards: Permitted::nothing(),
        };
        let agent = Agent::bind(config).unwrap();
        let port = agent.addresses()[0].port();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            agent.serve(async { drop(stopped.await) }).await.unwrap();
        });
        Self {
            port,
            stop: Some(stop),
            serving: Some(serving),
        }
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        self.serving.take().unwrap().await.unwrap();
    }
}

fn path(path: &Path) -> ObjectRequest {
    object(Object::Path(path.as_os_str().as_bytes().to_vec()))
}

fn object(object: Object) -> ObjectRequest {
    ObjectRequest {
        object,
        rows: Vec::new(),
        destination: None,
        make_folder: false,
    }
}

fn node(
    name: &str,
    agent: &TestAgent,
    sources: Vec<ObjectRequest>,
    sinks: Vec<ObjectRequest>,
) -> NodeRequest {
    let reach = Reach::Attached {
        host: "127.0.0.1".into(),
        port: agent.port,
    };
    NodeRequest {
        name: name.into(),
        reach,
        sources,
        sinks,
        up: None,
        down: None,
        interfaces: Vec::new(),
    }
}

fn options() -> Options {
    Options {
        token: Some(TOKEN),
        ..Options::default()
    }
}

fn trees(nodes: Vec<NodeRequest>, options: Options) -> Request {
    let mapping = Mapping::Trees {
        sources: Sources::Auto,
        destinations: Destinations::Copies,
    };
    Request {
        label: None,
        nodes,
        mapping,
        links: Vec::new(),
        options,
    }
}

async fn run(request: Request) -> Report {
    let (events, mut seen) = mpsc::unbounded_channel();
    let drain = tokio::spawn(async move { while seen.recv().await.is_some() {} });
    let report = ropewalk_master::run(request, events, Cancel::new(), Members::new()).await;
    drain.await.unwrap();
    report
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

fn make_tree(root: &Path) {
    std::fs::create_dir_all(root.join("sub/empty")).unwrap();
    std::fs::write(root.join("big"), bytes(5 << 20, 1)).unwrap();
    std::fs::write(root.join("none"), b"").unwrap();
    for at in 0..200 {
        std::fs::write(root.join(format!("sub/f{at}")), bytes(at * 37, at as u64)).unwrap();
    }
    std::os::unix::fs::symlink("big", root.join("link")).unwrap();
}

fn same_tree(a: &Path, b: &Path) {
    let output = std::process::Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([a, b])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert_eq!(
        ropewalk_store::Manifest::scan(a).unwrap(),
        ropewalk_store::Manifest::scan(b).unwrap()
    );
}

/// A tree from two replicas arrives whole at two receivers, in every protection and lane kind.
#[tokio::test(flavor = "multi_thread")]
async fn trees_from_replicas_to_copies() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    make_tree(&source);
    let agents: Vec<TestAgent> = (0..4).map(|_| TestAgent::start(dir.path())).collect();
    for (case, (plain, verify, lane)) in [
        (false, Verify::Tree, LaneKind::Tcp),
        (true, Verify::None, LaneKind::Tcp),
        (true, Verify::Fragment, LaneKind::Unix),
        (true, Verify::Sink, LaneKind::Auto),
        (false, Verify::Tree, LaneKind::Shm),
    ]
    .into_iter()
    .enumerate()
    {
        let (one, two) = (
            dir.path().join(format!("one{case}")),
            dir.path().join(format!("two{case}")),
        );
        let nodes = vec![
            node("a", &agents[0], vec![path(&source)], vec![]),
            node("b", &agents[1], vec![path(&source)], vec![]),
            node("c", &agents[2], vec![], vec![path(&one)]),
            node("d", &agents[3], vec![], vec![path(&two)]),
        ];
        let report = run(trees(
            nodes,
            Options {
                plain,
                verify,
                lane,
                ..options()
            },
        ))
        .await;
        assert_eq!(report.outcome, Outcome::Done, "{report:#?}");
        same_tree(&source, &one);
        same_tree(&source, &two);
        assert_eq!(report.delivered_bytes, report.wanted_bytes);
        if verify >= Verify::Tree {
            assert_eq!(
                report.roots["c"], report.roots["d"],
                "both receivers hashed the same units"
            );
        }
    }
    for agent in agents {
        agent.stop().await;
    }
}

/// Figure 2 of the paper: four writers, three readers, explicit rows.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_figure_2() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(4096, 3);
    std::fs::write(dir.path().join("half1"), &data[..2048]).unwrap();
    std::fs::write(dir.path().join("half2"), &data[2048..]).unwrap();
    let agents: Vec<TestAgent> = (0..7).map(|_| TestAgent::start(dir.path())).collect();
    let row = |name: &str, object_offset, start, end| ObjectRequest {
        object: Object::Path(dir.path().join(name).as_os_str().as_bytes().to_vec()),
        rows: vec![RowRequest {
            object_offset,
            range: Range { start, end },
        }],
        destination: None,
        make_folder: false,
    };
    let nodes = vec![
        node("node1", &agents[0], vec![row("half1", 0, 0, 1024)], vec![]),
        node(
            "node2",
            &agents[1],
            vec![row("half1", 1024, 1024, 2048)],
            vec![],
        ),
        node("n3", &agents[2], vec![row("half2", 0, 2048, 3072)], vec![]),
        node(
            "n4",
            &agents[3],
            vec![row("half2", 1024, 3072, 4096)],
            vec![],
        ),
        node("node5", &agents[4], vec![], vec![row("copy5", 0, 0, 2048)]),
        node(
            "node7",
            &agents[5],
            vec![],
            vec![row("copy7", 2048, 2048, 4096)],
        ),
        node("node6", &agents[6], vec![], vec![row("copy6", 0, 0, 4096)]),
    ];
    let report = run(Request {
        label: Some("My Data File".into()),
        nodes,
        mapping: Mapping::Rows,
        links: Vec::new(),
        options: options(),
    })
    .await;
    assert_eq!(report.outcome, Outcome::Done, "{report:#?}");
    assert_eq!(report.delivered_bytes, 8192);
    assert_eq!(
        std::fs::read(dir.path().join("copy5")).unwrap(),
        &data[..2048]
    );
    assert_eq!(
        &std::fs::read(dir.path().join("copy7")).unwrap()[2048..],
        &data[2048..]
    );
    assert_eq!(std::fs::read(dir.path().join("copy6")).unwrap(), data);
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 5, "no temporary file is left: {left:?}");
    for agent in agents {
        agent.stop().await;
    }
}

/// A generated pattern arrives as the pattern, and into memory without a file.
#[tokio::test(flavor = "multi_thread")]
async fn patterns_to_file_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    let agents: Vec<TestAgent> = (0..3).map(|_| TestAgent::start(dir.path())).collect();
    let file = dir.path().join("pattern");
    let nodes = vec![
        node(
            "a",
            &agents[0],
            vec![object(Object::Memory(3_000_000))],
            vec![],
        ),
        node("b", &agents[1], vec![], vec![path(&file)]),
        node("c", &agents[2], vec![], vec![object(Object::Null)]),
    ];
    let report = run(trees(nodes, options())).await;
    assert_eq!(report.outcome, Outcome::Done, "{report:#?}");
    let expected: Vec<u8> = (0..3_000_000).map(ropewalk_store::pattern_byte).collect();
    assert_eq!(std::fs::read(&file).unwrap(), expected);
    for agent in agents {
        agent.stop().await;
    }
}

/// Sources that hold the same path with different contents are refused by name, and nothing is written.
#[tokio::test(flavor = "multi_thread")]
async fn conflicting_sources_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("a", "one"), ("b", "other")] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name).join("x"), text).unwrap();
    }
    let agents: Vec<TestAgent> = (0..3).map(|_| TestAgent::start(dir.path())).collect();
    let nodes = vec![
        node("a", &agents[0], vec![path(&dir.path().join("a"))], vec![]),
        node("b", &agents[1], vec![path(&dir.path().join("b"))], vec![]),
        node("c", &agents[2], vec![], vec![path(&dir.path().join("c"))]),
    ];
    let report = run(trees(nodes, options())).await;
    assert_eq!(report.outcome, Outcome::Refused);
    assert!(
        report.error.as_ref().is_some_and(|e| e.contains("`x`")),
        "{:?}",
        report.error
    );
    assert!(!dir.path().join("c").exists());
    for agent in agents {
        agent.stop().await;
    }
}

/// Disjoint sources are parts of one tree.
#[tokio::test(flavor = "multi_thread")]
async fn disjoint_sources_are_parts() {
    let dir = tempfile::tempdir().unwrap();
    for (name, file) in [("a", "x"), ("b", "y")] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name).join(file), bytes(3 << 20, 9)).unwrap();
    }
    let agents: Vec<TestAgent> = (0..4).map(|_| TestAgent::start(dir.path())).collect();
    let nodes = vec![
        node("a", &agents[0], vec![path(&dir.path().join("a"))], vec![]),
        node("b", &agents[1], vec![path(&dir.path().join("b"))], vec![]),
        node("c", &agents[2], vec![], vec![path(&dir.path().join("all"))]),
        node("d", &agents[3], vec![], vec![path(&dir.path().join("all"))]),
    ];
    let mapping = Mapping::Trees {
        sources: Sources::Auto,
        destinations: Destinations::Shared,
    };
    let report = run(Request {
        label: None,
        nodes,
        mapping,
        links: Vec::new(),
        options: options(),
    })
    .await;
    assert_eq!(report.outcome, Outcome::Done, "{report:#?}");
    assert_eq!(
        report.delivered_bytes,
        6 << 20,
        "together the receivers wrote one copy"
    );
    for (name, file) in [("a", "x"), ("b", "y")] {
        assert_eq!(
            std::fs::read(dir.path().join("all").join(file)).unwrap(),
            std::fs::read(dir.path().join(name).join(file)).unwrap()
        );
    }
    for agent in agents {
        agent.stop().await;
    }
}

/// Whole trees: who holds the same files joins as a holder, and another one that joins gets a copy of its own; who
/// holds others is turned away. Neither needs the first holder any more.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_join_and_leave_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    make_tree(&at("from"));
    let status = std::process::Command::new("cp")
        .arg("-a")
        .args([at("from"), at("same")])
        .status();
    assert!(status.unwrap().success());
    make_tree(&at("other"));
    std::fs::write(at("other/more"), b"more").unwrap();
    let agents: Vec<TestAgent> = (0..4).map(|_| TestAgent::start(dir.path())).collect();
    let nodes = vec![
        node("a", &agents[0], vec![path(&at("from"))], vec![]),
        node("b", &agents[1], vec![], vec![path(&at("to"))]),
    ];
    let slow = Options {
        limit: Some(2 << 20),
        ..options()
    };
    let (events, mut seen) = mpsc::unbounded_channel();
    let members = Members::new();
    let running = ropewalk_master::run(trees(nodes, slow), events, Cancel::new(), members.clone());
    let running = tokio::spawn(running);
    let moves = |event: &Event| matches!(event, Event::Progress { delivered_bytes, .. } if *delivered_bytes > 0);
    while !seen.recv().await.as_ref().is_some_and(moves) {}
    let asker = members.clone();
    let join = move |node: NodeRequest| {
        let nodes = vec![node];
        asker.join(Joining { nodes, token: None })
    };
    let misfit = node("c", &agents[2], vec![path(&at("other"))], vec![]);
    let same = node("c", &agents[2], vec![path(&at("same"))], vec![]);
    let copy = node("d", &agents[3], vec![], vec![path(&at("copy"))]);
    let asked = tokio::task::spawn_blocking(move || {
        let misfit = join(misfit).unwrap();
        (misfit, join(same).unwrap(), join(copy).unwrap())
    });
    let (misfit, same, copy) = asked.await.unwrap();
    let reason = misfit[0].error.as_ref().map(ToString::to_string);
    let reason = reason.unwrap_or_default();
    assert!(reason.contains("other files"), "{reason}");
    assert_eq!((&same[0].error, &copy[0].error), (&None, &None));
    // The copy has its list of files once bytes of it come.
    let comes = |event: &Event| match event {
        Event::Progress { receivers, .. } => {
            let mut receivers = receivers.iter();
            receivers.any(|receiver| receiver.node == copy[0].node && receiver.bytes > 0)
        }
        _ => false,
    };
    while !seen.recv().await.as_ref().is_some_and(comes) {}
    let left = tokio::task::spawn_blocking(move || members.leave("a"));
    assert_eq!(left.await.unwrap(), Ok(()));
    while seen.recv().await.is_some() {}
    let report = running.await.unwrap();
    assert_eq!(report.outcome, Outcome::Done, "{report:#?}");
    for copy in ["to", "copy"] {
        let same = std::process::Command::new("diff")
            .arg("-r")
            .args([at("from"), at(copy)])
            .status();
        assert!(same.unwrap().success(), "{copy}");
    }
    let sent = |name: &str| {
        report
            .nodes
            .iter()
            .find(|node| node.node == name)
            .unwrap()
            .sent_bytes
    };
    assert!(sent(&same[0].node) > 0, "{report:#?}");
    for agent in agents {
        agent.stop().await;
    }
}

/// A limit that is changed before the transfer begins counts from its start: with the one of the request it would take days.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_changes_before_the_start_counts() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("from"), bytes(5 << 20, 3)).unwrap();
    let agents = [(); 2].map(|()| TestAgent::start(dir.path()));
    let nodes = vec![
        node("a", &agents[0], vec![path(&at("from"))], vec![]),
        node("b", &agents[1], vec![], vec![path(&at("to"))]),
    ];
    let slow = Options {
        limit: Some(10),
        ..options()
    };
    let (events, mut seen) = mpsc::unbounded_channel();
    let drain = tokio::spawn(async move { while seen.recv().await.is_some() {} });
    let members = Members::new();
    members.limit(None).unwrap();
    let running = ropewalk_master::run(trees(nodes, slow), events, Cancel::new(), members);
    let ended = tokio::time::timeout(Duration::from_secs(60), running).await;
    let report = ended.expect("it has the limit that was removed");
    assert_eq!(report.outcome, Outcome::Done, "{report:#?}");
    assert!(std::fs::read(at("to")).unwrap() == bytes(5 << 20, 3));
    drain.await.unwrap();
    for agent in agents {
        agent.stop().await;
    }
}

/// A reader that has done its part is cancelled at its agent while another one of the same file is at work: that one gives
/// the file its name, and nobody waits for the first.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_cancelled_when_done_is_not_asked_for_more() {
    const FIRST: u64 = 64 << 10;
    const ALL: u64 = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(ALL as usize, 5);
    std::fs::write(dir.path().join("from"), &data).unwrap();
    let agents: Vec<TestAgent> = (0..3).map(|_| TestAgent::start(dir.path())).collect();
    let part = |name: &str, start, end, destination: Option<&str>| ObjectRequest {
        object: Object::Path(dir.path().join(name).as_os_str().as_bytes().to_vec()),
        rows: vec![RowRequest {
            object_offset: start,
            range: Range { start, end },
        }],
        destination: destination.map(str::to_owned),
        make_folder: false,
    };
    let wants = |start, end| vec![part("to", start, end, Some("to"))];
    let nodes = vec![
        node("a", &agents[0], vec![part("from", 0, ALL, None)], vec![]),
        node("b", &agents[1], vec![], wants(0, FIRST)),
        node("c", &agents[2], vec![], wants(FIRST, ALL)),
    ];
    let running = tokio::spawn(run(Request {
        label: None,
        nodes,
        mapping: Mapping::Rows,
        links: Vec::new(),
        options: Options {
            limit: Some(512 << 10),
            ..options()
        },
    }));
    let port = agents[1].port;
    let is_done = async || {
        let seen = query_status("127.0.0.1", port, &TOKEN).await.unwrap();
        seen.iter().any(|one| one.delivered == FIRST)
    };
    while !is_done().await {}
    // After so many more connections it has said so.
    for _ in 0..50 {
        assert!(is_done().await);
    }
    let cancelled = query_cancel("127.0.0.1", port, &TOKEN, None).await;
    assert_eq!(cancelled.unwrap(), 1);
    let report = running.await.unwrap();
    assert_eq!(report.outcome, Outcome::Done, "{report:#?}");
    assert_eq!(std::fs::read(dir.path().join("to")).unwrap(), data);
    for agent in agents {
        agent.stop().await;
    }
}

/// An agent within this process that panics ends the transfer with an error that says so.
#[tokio::test(flavor = "multi_thread")]
async fn agents_of_this_process_that_panic_are_missed() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::write(&source, b"bytes").unwrap();
    // As a panic, without its message in the output of the tests.
    let panics = |_, _| std::panic::resume_unwind(Box::new("an agent panics"));
    let local = |name: &str, sources, sinks| NodeRequest {
        name: name.into(),
        reach: Reach::Local,
        sources,
        sinks,
        up: None,
        down: None,
        interfaces: Vec::new(),
    };
    let nodes = vec![
        local("a", vec![path(&source)], vec![]),
        local("b", vec![], vec![path(&dir.path().join("copy"))]),
    ];
    let options = Options {
        agent_here: Some(AgentHere(Arc::new(panics))),
        ..Options::default()
    };
    let report = run(trees(nodes, options)).await;
    assert_ne!(report.outcome, Outcome::Done);
    // It may pass, and a queued job is tried again.
    assert_eq!(report.error_kind, Some(ErrorKind::Node));
    let error = report.error.unwrap();
    assert!(error.contains("an agent in this process failed"), "{error}");
}
