//! What a fetch that could not begin leaves on the disk.

use std::path::{Path, PathBuf};

use ropewalk_model::time::Instant;
use ropewalk_model::{CHUNK_LEN, Layout};
use ropewalk_proto::control::FromAgent;
use ropewalk_proto::node::Task;

use ropewalk_store::{Adopt, KEPT_MIN, Part, Scan, Sink as _, TreeSink};

use super::*;
use crate::connect::Connected;
use crate::landing::PlacedSink;

/// Length of the data space: enough that space is reserved for it.
const LENGTH: u64 = 1 << 20;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    // Sinks refuse links on the way.
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

fn files(path: PathBuf, shared: bool) -> OpenSink {
    let all = Range {
        start: 0,
        end: LENGTH,
    };
    OpenSink::Files {
        paths: vec![path],
        layout: Layout::single(all),
        shared,
        keeps_rest: false,
    }
}

fn plan() -> control::Plan {
    control::Plan {
        length: LENGTH,
        ..control::Plan::default()
    }
}

/// A sink of its own, one that other nodes write, too, and one whose folder is missing.
fn partly_impossible(folder: &Path) -> Vec<OpenSink> {
    vec![
        files(folder.join("own"), false),
        files(folder.join("shared"), true),
        files(folder.join("no such folder/file"), false),
    ]
}

fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// When the last sink cannot be made, the node's own files go at once, and shared ones on the master's word only.
#[test]
fn sinks_made_in_vain_are_removed() {
    let (_keep, folder) = folder();
    let (member, mut said) = Member::alone();
    let fetch = Fetch::new(member, &plan());
    fetch.start(plan(), partly_impossible(&folder), Looked::default());
    let Some(from_agent::Body::Done(done)) = said.blocking_recv().unwrap().body else {
        panic!("the node does not say that it failed");
    };
    assert!(done.error.contains("no such folder"), "{}", done.error);
    let shared = format!(".shared.ropewalk-{}", "07".repeat(16));
    assert!(folder.join(shared).exists());
    assert_eq!(count(&folder), 1);
    fetch.stop(true, false);
    assert_eq!(count(&folder), 1);
    fetch.stop(true, true);
    assert_eq!(count(&folder), 0);
}

/// The master's word may come while sinks are being made, whether they can be or not.
#[test]
fn a_word_that_comes_early_counts() {
    let (_keep, folder) = folder();
    for possible in [false, true] {
        let (member, _said) = Member::alone();
        let fetch = Fetch::new(member.clone(), &plan());
        member.end();
        fetch.stop(true, true);
        let sinks = match possible {
            true => vec![files(folder.join("shared"), true)],
            false => partly_impossible(&folder),
        };
        fetch.start(plan(), sinks, Looked::default());
        // Its thread has ended when nobody else has the fetch.
        while Arc::strong_count(&fetch) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(count(&folder), 0, "possible: {possible}");
    }
}

/// A transfer that ends while its sinks wait for an earlier one makes nothing any more, and says that nothing is left once that is so.
#[test]
fn nothing_is_made_after_the_end() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::File::create(&from).unwrap();
    let parts = [Part::whole(0, Scan::read(&from).unwrap().manifest)];
    let earlier = TreeSink::update(&to, &parts, &format!("{}-0", "1".repeat(32)), Adopt::All);
    let earlier = earlier.unwrap();
    assert!(earlier.note_ending());
    let before = count(&folder);
    let (member, _said) = Member::alone();
    let fetch = Fetch::new(member.clone(), &plan());
    fetch.start(plan(), vec![files(to, false)], Looked::default());
    member.end();
    fetch.stop(true, true);
    fetch.await_made();
    assert_eq!(fetch.state.lock().making, None);
    assert!(fetch.left().is_empty());
    assert_eq!(count(&folder), before);
}

/// Longest time that a thread may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Does something with a fetch in a thread.
fn beside(fetch: &Arc<Fetch>, act: fn(&Fetch)) -> std::thread::JoinHandle<()> {
    let fetch = fetch.clone();
    std::thread::spawn(move || act(&fetch))
}

/// Returns when a thread waits for a change of the fetch.
fn until_it_waits(fetch: &Fetch, waiting: &std::thread::JoinHandle<()>) {
    let start = std::time::Instant::now();
    // How many threads wait; they look again.
    while fetch.changed.notify_all() == 0 {
        assert!(!waiting.is_finished(), "it does not wait");
        assert!(start.elapsed() < DEADLINE, "it neither waits nor ends");
        std::thread::yield_now();
    }
}

fn until_it_ends(waiting: std::thread::JoinHandle<()>) {
    let start = std::time::Instant::now();
    while !waiting.is_finished() {
        assert!(start.elapsed() < DEADLINE, "it waits in vain");
        std::thread::yield_now();
    }
    waiting.join().unwrap();
}

/// A node that gives its files their names.
fn naming() -> (Arc<Fetch>, tokio::sync::mpsc::UnboundedReceiver<FromAgent>) {
    let (member, said) = Member::alone();
    let plan = control::Plan {
        commit: true,
        ..control::Plan::default()
    };
    let fetch = Fetch::new(member, &plan);
    {
        let node = &mut fetch.state.lock().node;
        node.handle_prepared(&plan, Instant::ZERO, &|at| Range::new(at, at));
        let Task::Sync(promise) = node.next_task(Instant::ZERO) else {
            panic!("it has nothing to fetch, and does not end");
        };
        node.handle_synced(promise, Ok(()), Instant::ZERO);
        assert_eq!(node.life(), Life::Renaming);
    }
    (fetch, said)
}

/// The master's order to end arrives while files get their names: that is awaited, and reported, as the copy is complete then.
#[test]
fn names_that_are_being_given_are_reported() {
    let (fetch, mut said) = naming();
    let concluding = beside(&fetch, Fetch::conclude);
    until_it_waits(&fetch, &concluding);
    assert!(said.try_recv().is_err());
    fetch.commit().unwrap();
    until_it_ends(concluding);
    let Some(from_agent::Body::Done(done)) = said.try_recv().unwrap().body else {
        panic!("the node does not say that its copy is complete");
    };
    assert!(done.committed && done.error.is_empty(), "{done:?}");
}

/// Names that cannot be given, and an end without them, end the wait: nothing is said to be complete.
#[test]
fn names_that_are_not_given_end_the_wait() {
    for fails in [false, true] {
        let (fetch, mut said) = naming();
        let concluding = beside(&fetch, Fetch::conclude);
        until_it_waits(&fetch, &concluding);
        match fails {
            true => {
                let node = &mut fetch.state.lock().node;
                node.handle_renamed(Err(Failure::Sink("no".into())));
            }
            false => fetch.member.end(),
        }
        fetch.changed.notify_all();
        until_it_ends(concluding);
        assert!(said.try_recv().is_err(), "fails: {fails}");
    }
}

/// The end of a transfer waits for sinks that are being made, but not for ever.
#[test]
fn sinks_that_are_being_made_are_awaited() {
    let (member, _said) = Member::alone();
    let fetch = Fetch::new(member, &plan());
    let begin = || fetch.state.lock().making = Some(Vec::new());
    begin();
    let ending = beside(&fetch, Fetch::await_made);
    until_it_waits(&fetch, &ending);
    drop(Making(&fetch));
    until_it_ends(ending);
    assert_eq!(fetch.state.lock().making, None);
    begin();
    until_it_ends(beside(&fetch, Fetch::await_made));
    assert!(fetch.state.lock().making.is_some());
}

/// What is there while sinks are made is named, where the transfer ends before they are.
#[test]
fn what_is_being_made_is_named() {
    let (_keep, folder) = folder();
    let (member, _said) = Member::alone();
    let fetch = Fetch::new(member, &plan());
    let paths = [("own", false), ("shared", true), ("not there yet", false)];
    let making = paths.map(|(name, shared)| (folder.join(name), shared));
    fetch.state.lock().making = Some(making.to_vec());
    for (name, shared) in &paths[..2] {
        let id = fetch.temporary_id(*shared);
        std::fs::write(folder.join(format!(".{name}.ropewalk-{id}")), "four").unwrap();
    }
    let left = fetch.left();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.iter().all(|left| left.bytes == 4 && !left.resumable));
}

/// A transfer that ends before a plan is taken, or with an error of its own, keeps what an earlier one made safe; where contents are
/// wrong nothing of them stays.
#[test]
fn what_is_safe_outlives_an_early_end() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    let len = KEPT_MIN + LENGTH;
    let file = std::fs::File::create(&from).unwrap();
    file.set_len(len).unwrap();
    let mut number = 0;
    let mut make = || {
        let parts = [Part::whole(0, Scan::read(&from).unwrap().manifest)];
        number += 1;
        TreeSink::update(&to, &parts, &format!("{number:032x}-0"), Adopt::All).unwrap()
    };
    let sink = make();
    sink.write_at(0, &[0]).unwrap();
    sink.sync().unwrap();
    sink.record(&RangeSet::from(Range::new(0, KEPT_MIN)), &[]);
    drop(sink);
    for (failure, is_kept) in [
        (None, true),
        (Some(Failure::Other("gone".into())), true),
        (Some(Failure::Sink("cannot rename".into())), true),
        (None, false),
    ] {
        let (member, _said) = Member::alone();
        let fetch = Fetch::new(member, &plan());
        let sink = make();
        assert_eq!(sink.present().adopted.len_bytes(), KEPT_MIN);
        let placed = PlacedSink {
            ranges: RangeSet::from(Range::new(0, len)),
            sink: Arc::new(sink),
            shared: false,
            name: String::new(),
        };
        let layout = Layout::single(Range::new(0, len));
        let sinks = SinkSet::new(vec![placed], layout, CHUNK_LEN, false);
        *fetch.sinks.lock() = Some(Arc::new(sinks));
        {
            let node = &mut fetch.state.lock().node;
            failure.into_iter().for_each(|why| node.handle_failed(why));
            if !is_kept {
                node.handle_read_back(Err("differs".into()));
            }
        }
        fetch.stop(true, true);
        let left = fetch.left();
        assert_eq!(left.len(), usize::from(is_kept));
        assert!(
            left.iter()
                .all(|left| left.resumable && left.bytes == KEPT_MIN)
        );
        assert_eq!(count(&folder), if is_kept { 3 } else { 1 });
    }
}

/// Of a shared copy a node that could make no sink removes nothing: what the first one has made is that of those that write, which
/// may keep it for a later transfer.
#[test]
fn what_others_write_outlives_a_node_without_sinks() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    let file = std::fs::File::create(&from).unwrap();
    file.set_len(LENGTH).unwrap();
    let parts = [Part::whole(0, Scan::read(&from).unwrap().manifest)];
    let id = "07".repeat(16);
    let _first = TreeSink::lead(&to, &parts, &id, 1, Adopt::All).unwrap();
    let (member, mut said) = Member::alone();
    // No node has its list of files.
    let plan = control::Plan {
        parts: vec![control::Part::default()],
        ..plan()
    };
    let tree = OpenSink::Tree {
        path: to,
        shared: true,
        make_folder: false,
        checksums: None,
        sources: Vec::new(),
        stood: None,
    };
    let looked = Looked {
        is_made: true,
        ..Looked::default()
    };
    let fetch = Fetch::new(member, &plan);
    fetch.start(plan, vec![tree], looked);
    let Some(from_agent::Body::Done(done)) = said.blocking_recv().unwrap().body else {
        panic!("the node does not say that it failed");
    };
    assert!(done.error.contains("list of files"), "{}", done.error);
    fetch.stop(true, true);
    assert!(folder.join(format!(".to.ropewalk-{id}")).exists());
}

/// A peer that is given up leaves no way behind over which it would be asked for hashes.
#[test]
fn a_peer_that_is_given_up_is_forgotten() {
    let (_keep, folder) = folder();
    let (member, _said) = Member::alone();
    let peer = control::Peer {
        node: 1,
        name: "gone".into(),
        ..control::Peer::default()
    };
    let plan = control::Plan {
        lane_streams_max: 1,
        peers: vec![peer.clone()],
        runs: vec![control::Run {
            length: LENGTH,
            sender: 1,
            ..control::Run::default()
        }],
        ..plan()
    };
    // Nobody listens there any more.
    let left = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = left.local_addr().unwrap();
    drop(left);
    let connected = Arc::new(Connected::at(peer, address));
    let fetch = Fetch::new(member, &plan);
    fetch.ways.keep(connected);
    let sinks = fetch.prepare(
        &plan,
        vec![files(folder.join("copy"), false)],
        Looked::default(),
    );
    *fetch.sinks.lock() = Some(Arc::new(sinks.unwrap()));
    let first = {
        let node = &mut fetch.state.lock().node;
        node.handle_prepared(&plan, Instant::ZERO, &|offset| Range::new(offset, LENGTH));
        let Some(Event::Start(first)) = node.poll_event(Instant::ZERO) else {
            panic!("no stream is started");
        };
        first
    };
    fetch.run_stream(first);
    assert!(!fetch.state.lock().node.fetch().is_reachable(LaneId(0)));
    assert!(fetch.ways.newest(1).is_none());
    fetch.stop(true, true);
}
