//! `transfer` and `demo`: explicit rows between real processes.

mod common;

use std::ops::Range;

use common::processes::temporary;
use common::{Place, bytes};

/// Rows of Figure 2 below one folder, each range `times` as long as the paper's, with a place for each node's address.
fn figure_2(place: &Place, times: usize, at: impl Fn(usize) -> String) -> String {
    let dir = place.text("");
    let rows = [
        ("writer", "half1", 0, 0..1024),
        ("writer", "half1", 1024, 1024..2048),
        ("writer", "half2", 0, 2048..3072),
        ("writer", "half2", 1024, 3072..4096),
        ("reader", "copy1", 0, 0..2048),
        ("reader", "copy1b", 2048, 2048..4096),
        ("reader", "copy2", 0, 0..4096),
    ];
    let row = |(n, (kind, file, offset, range)): (usize, (&str, &str, usize, Range<usize>))| {
        let (offset, first, last) = (offset * times, range.start * times, range.end * times - 1);
        let address = at(n);
        format!("{kind} {address} \"file://{dir}{file}\" {offset} {first}-{last}\n")
    };
    let rows: String = rows.into_iter().enumerate().map(row).collect();
    format!("id \"My Data File\"\n{rows}")
}

fn make_halves(place: &Place, times: usize) -> Vec<u8> {
    let data = bytes(4096 * times, 11);
    let (first, second) = data.split_at(data.len() / 2);
    std::fs::write(place.path("half1"), first).unwrap();
    std::fs::write(place.path("half2"), second).unwrap();
    data
}

/// Takes the copies away that it compares.
fn assert_copies(place: &Place, data: &[u8]) {
    let take = |name: &str| {
        let bytes = std::fs::read(place.path(name)).unwrap();
        std::fs::remove_file(place.path(name)).unwrap();
        bytes
    };
    let half = data.len() / 2;
    assert!(take("copy1") == data[..half], "copy1 differs");
    let second = take("copy1b");
    assert!(second[half..] == data[half..], "copy1b differs");
    assert!(second[..half].iter().all(|&byte| byte == 0), "no hole");
    assert!(take("copy2") == data, "copy2 differs");
}

/// Figure 2 between agents that run already, named by address and token.
#[test]
fn figure_2_between_running_agents() {
    let place = Place::new();
    place.make_token();
    let data = make_halves(&place, 1);
    let agents: Vec<_> = (0..7).map(|_| place.agent(place.dir.path())).collect();
    let spec = figure_2(&place, 1, |n| format!("127.0.0.1:{}", agents[n].port));
    std::fs::write(place.path("spec"), spec).unwrap();
    let report = place
        .run(&["transfer", "--json", "spec"])
        .assert_status(0)
        .report();
    assert_copies(&place, &data);
    assert_eq!(
        (&report["label"], &report["delivered_bytes"]),
        (&"My Data File".into(), &8192.into())
    );
    assert_eq!(report["pairs"].as_array().unwrap().len(), 8);
}

/// The paper's ranges, and longer ones that end within units, over each kind of lane: the bytes of every receiver are equal, and all
/// pairs of the figure have that lane.
#[test]
fn figure_2_over_each_lane() {
    for times in [1, 257] {
        let place = Place::new();
        place.make_token();
        let data = make_halves(&place, times);
        let agents: Vec<_> = (0..7).map(|_| place.agent(place.dir.path())).collect();
        let at = |n: usize| format!("127.0.0.1:{}", agents[n].port);
        std::fs::write(place.path("spec"), figure_2(&place, times, at)).unwrap();
        for lane in ["tcp", "unix", "shm", "rbudp", "rapid"] {
            let rate: &[&str] = match lane {
                "rbudp" => &["--rate", "400Mbit"],
                _ => &[],
            };
            let words = [&["transfer", "--json", "spec", "--lane", lane], rate].concat();
            let report = place.run(&words).assert_status(0).report();
            assert_copies(&place, &data);
            assert_eq!(report["delivered_bytes"], 2 * data.len(), "{report:#}");
            let pairs = report["pairs"].as_array().unwrap();
            assert_eq!(pairs.len(), 8);
            let has_lane = |pair: &serde_json::Value| pair["lane"] == lane;
            assert!(pairs.iter().all(has_lane), "{lane}: {report:#}");
            assert_eq!(temporary(place.dir.path()), Vec::<String>::new());
        }
    }
}

/// The same over MPI, with each that is installed: agents are ranks, so the command starts them.
#[test]
fn figure_2_over_mpi() {
    for mpi in common::mpi::installed() {
        for times in [1, 257] {
            let place = &mpi.place;
            let data = make_halves(place, times);
            let spec = figure_2(place, times, |n| format!("host{n}:1"));
            std::fs::write(place.path("spec"), spec).unwrap();
            let mut command = mpi.command();
            command.args(["transfer", "--json", "spec", "--start", "local"]);
            let ran = command.args(["--lane", "mpi"]).output().unwrap();
            let report = common::Ran(ran).assert_status(0).report();
            assert_copies(place, &data);
            assert_eq!(report["delivered_bytes"], 2 * data.len(), "{report:#}");
            let pairs = report["pairs"].as_array().unwrap();
            assert_eq!(pairs.len(), 8);
            let has_lane = |pair: &serde_json::Value| pair["lane"] == "mpi";
            assert!(pairs.iter().all(has_lane), "{}: {report:#}", mpi.name);
            assert_eq!(temporary(place.dir.path()), Vec::<String>::new());
        }
    }
}

/// The same file without any agent running.
#[test]
fn figure_2_with_agents_started_here() {
    let place = Place::new();
    let data = make_halves(&place, 1);
    std::fs::write(
        place.path("spec"),
        figure_2(&place, 1, |n| format!("host{n}:1")),
    )
    .unwrap();
    let out = place
        .run(&["transfer", "-v", "--start", "local", "spec"])
        .assert_status(0)
        .err();
    assert_copies(&place, &data);
    assert!(
        out.contains("(My Data File)") && out.contains("host3 -> host5  1.02 kB"),
        "{out}"
    );
}

/// Two receivers of copies of their own that see one file system are in nobody's way.
#[test]
fn copies_of_their_own_may_meet() {
    let place = Place::new();
    let dir = place.text("");
    std::fs::create_dir(place.path("to")).unwrap();
    std::fs::write(place.path("from"), bytes(4 << 20, 1)).unwrap();
    let row =
        |kind: &str, host: &str, file: &str| format!("{kind} {host}:1 {dir}{file} 0 0+4194304\n");
    let spec = row("writer", "a", "from")
        + &row("reader", "b", "to/copy")
        + &row("reader", "c", "to/copy");
    std::fs::write(place.path("spec"), spec).unwrap();
    place
        .run(&["transfer", "--start", "local", "spec"])
        .assert_status(0);
    assert_eq!(
        std::fs::read(place.path("to/copy")).unwrap(),
        bytes(4 << 20, 1)
    );
    assert_eq!(std::fs::read_dir(place.path("to")).unwrap().count(), 1);
}

/// A row does not replace the file that is its source by a part of it, whichever agent sees that; by all of it, it may.
#[test]
fn rows_do_not_destroy_their_sources() {
    let place = Place::new();
    place.make_token();
    let agents = [place.agent(&place.path("")), place.agent(&place.path(""))];
    let data = bytes(100_000, 3);
    let file = place.path("f");
    let run = |reader: usize, rows: &str| {
        std::fs::write(&file, &data).unwrap();
        let path = file.display();
        let spec = format!(
            "writer 127.0.0.1:{} {path} 0 0-99999\nreader 127.0.0.1:{} {path} {rows}\n",
            agents[0].port, agents[reader].port
        );
        std::fs::write(place.path("own.cep"), spec).unwrap();
        place.run(&["transfer", "own.cep"])
    };
    for reader in [0, 1] {
        for rows in ["0 0-999", "5000 0-99999", "1 0-99998"] {
            run(reader, rows)
                .assert_status(4)
                .assert_says("would be replaced by a file without some of its bytes");
            assert!(std::fs::read(&file).unwrap() == data);
        }
        run(reader, "0 0-99999").assert_status(0);
        assert!(std::fs::read(&file).unwrap() == data);
    }
}

/// What a specification cannot have is refused before anything is written, with bytes and names.
#[test]
fn bad_specifications_are_refused() {
    let place = Place::new();
    let dir = place.text("");
    make_halves(&place, 1);
    let run = |text: &str| {
        std::fs::write(place.path("spec"), text).unwrap();
        place.run(&["transfer", "--start", "local", "spec"])
    };
    let row = |kind: &str, host: &str, file: &str, rest: &str| {
        format!("{kind} {host}:1 {dir}{file} {rest}\n")
    };
    run(&(row("writer", "a", "half1", "0 0-1023") + &row("reader", "b", "out", "0 0-2047")))
        .assert_status(4)
        .assert_says("1024-2047");
    run(&(row("writer", "a", "half1", "0 0-4095") + &row("reader", "b", "out", "0 0-4095")))
        .assert_status(4)
        .assert_says("half1");
    std::fs::write(place.path("half3"), bytes(3000, 1)).unwrap();
    let overlapping = row("writer", "a", "half1", "0 0-2047")
        + &row("writer", "c", "half3", "0 0-2047")
        + &row("reader", "b", "out", "0 0-2047");
    run(&overlapping)
        .assert_status(4)
        .assert_says("replicas differ");
    run(&(row("writer", "a", "half1", "0 0-2047 interface=nosuch0")
        + &row("reader", "b", "out", "0 0-2047")))
    .assert_status(4)
    .assert_says("among the rails nosuch0");
    run("wirter a:1 /x 0 0-9\n")
        .assert_status(4)
        .assert_says("not a kind of row");
    let json = place.run(&["transfer", "--json", "spec"]).assert_status(4);
    assert_eq!(json.report()["outcome"], "refused");
    assert!(!place.path("out").exists());
}

/// The demonstration with the paper's numbers: every range equal, nothing left behind.
#[test]
fn the_demonstration_succeeds_and_cleans_up() {
    let place = Place::new();
    std::fs::create_dir(place.path("demo")).unwrap();
    let out = place
        .run(&["demo", "--size", "4096", "--dir", "demo"])
        .assert_status(0)
        .out();
    for part in [
        "3072-4095  # n4",
        "n4    -> node7  3072-4095  1.02 kB",
        "done: 8.19 kB",
        "node7  copy1  2048-4095  equal",
        "node6  copy2  0-4095  equal",
    ] {
        assert!(out.contains(part), "{part:?} is not in\n{out}");
    }
    assert_eq!(std::fs::read_dir(place.path("demo")).unwrap().count(), 0);
    place
        .run(&["demo", "--size", "4MiB", "--dir", "demo", "--keep"])
        .assert_status(0)
        .assert_says("kept in");
    let kept = std::fs::read_dir(place.path("demo"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    assert_eq!(
        std::fs::metadata(kept.join("node7/copy1")).unwrap().len(),
        4 << 20
    );
    assert_eq!(
        std::fs::metadata(kept.join("node5/copy1")).unwrap().len(),
        2 << 20
    );
}

/// The report's bound is that of the declared trunk and caps, which it names; a rule that plans without them says so.
#[test]
fn declared_links_set_the_bound() {
    let place = Place::new();
    let text = "writer a1:1 mem:4MB 0 0-3999999\nwriter a2:1 mem:4MB 0 0-3999999\nwriter c:1 mem:4MB 0 0-3999999\n\
                reader b:2 null: 0 0-3999999\n\
                trunk wan 160Mbit from a[1-2] to b:2\ncap c:1 b:2 40Mbit\n";
    std::fs::write(place.path("spec"), text).unwrap();
    let run = |more: &[&str]| {
        let args = [&["transfer", "--json", "--start", "local", "spec"], more].concat();
        place.run(&args).assert_status(0).report()
    };
    let report = run(&[]);
    let bound = &report["bound"];
    // 32 Mbit over 160 + 40 Mbit/s.
    let seconds = bound["seconds"].as_f64().unwrap();
    assert!((seconds - 0.16).abs() < 1e-6, "{report:#}");
    let binding: std::collections::BTreeSet<&str> = bound["binding"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|name| name.as_str())
        .collect();
    assert_eq!(binding, ["c -> b", "trunk wan"].into(), "{report:#}");
    assert_eq!(bound["basis"], "declared");
    let notes = run(&["--scheduler", "greedy"])["notes"].to_string();
    assert!(
        notes.contains("--scheduler greedy plans without the caps and trunks"),
        "{notes}"
    );
    let said = place
        .run(&["transfer", "--start", "local", "spec"])
        .assert_status(0);
    said.assert_says("set by c -> b, trunk wan");
}

/// A program within this process: an agent that serves buffers.
fn program(place: &Place, runtime: &tokio::runtime::Runtime) -> (u16, ropewalk_store::Buffers) {
    let config = ropewalk_agent::AgentConfig {
        listen: vec![([127, 0, 0, 1], 0).into()],
        token: ropewalk_master::token::read(&place.path("home/.config/ropewalk/token")).unwrap(),
        roots: Vec::new(),
        expanded: Vec::new(),
        log: None,
        stages: None,
        forwards: ropewalk_proto::tunnel::Permitted::nothing(),
    };
    let agent = ropewalk_agent::Agent::bind(config).unwrap();
    let (port, buffers) = (agent.addresses()[0].port(), agent.buffers());
    runtime.spawn(agent.serve(std::future::pending()));
    (port, buffers)
}

/// Memory of programs is a source and a destination of the command's rows, beside files of agents that are processes of their own.
#[test]
fn buffers_of_programs() {
    let place = Place::new();
    place.make_token();
    let data = bytes(300_000, 12);
    std::fs::write(place.path("end"), &data[200_000..]).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ((from, sources), (to, sinks)) = (program(&place, &runtime), program(&place, &runtime));
    let begin = ropewalk_store::Buffer::readable(data[..200_000].to_vec());
    let whole = ropewalk_store::Buffer::writable(vec![0; 300_000]);
    sources.lend("begin", begin).unwrap();
    sinks.lend("whole", whole.clone()).unwrap();
    let agents: Vec<_> = (0..2).map(|_| place.agent(place.dir.path())).collect();
    let [end, copy] = [("end", &agents[0]), ("copy", &agents[1])]
        .map(|(name, agent)| format!("127.0.0.1:{} \"{}\"", agent.port, place.text(name)));
    let spec = |last: u64| {
        format!(
            "writer 127.0.0.1:{from} buffer:begin 0 0-199999\nwriter {end} 0 200000-299999\n\
             reader 127.0.0.1:{to} buffer:whole {last} 0-299999\nreader {copy} 0 0-299999\n"
        )
    };
    std::fs::write(place.path("spec"), spec(1)).unwrap();
    let refused = place.run(&["transfer", "--json", "spec"]).assert_status(4);
    let error = refused.report()["error"].to_string();
    let wanted = "buffer whole has 300000 bytes, and bytes 1-300000 of it are asked for";
    assert!(error.contains(wanted), "{error}");
    assert!(!place.path("copy").exists());
    std::fs::write(place.path("spec"), spec(0)).unwrap();
    let report = place
        .run(&["transfer", "--json", "spec"])
        .assert_status(0)
        .report();
    assert_eq!(report["delivered_bytes"], 600_000);
    assert!(whole.take_back() == data);
    assert!(std::fs::read(place.path("copy")).unwrap() == data);
}
