//! The queue of `serve` without runs: what is kept, and what other hosts see of it.

use ropewalk_proto::queue::{Ran, State};

use super::*;
use crate::inputs::{Inputs, Text};

/// A server that starts nothing.
fn server(folder: &Path) -> Server {
    running(folder, 0)
}

/// A server that runs so many jobs at one time.
fn running(folder: &Path, at_once: usize) -> Server {
    let (keep, kept) = Keep::open(folder).unwrap();
    let settings = Settings {
        at_once,
        tries: 2,
        history: 9,
    };
    Server {
        queue: Queue::new(settings, None, kept.jobs),
        tasks: kept.tasks,
        summaries: kept.summaries,
        said: Said::default(),
        given_limit: None,
        keep,
        actions: VecDeque::new(),
        is_held_up: false,
        runner: Runner::new(folder.to_owned(), Arc::new(|_| {})),
        waiters: Vec::new(),
        writing: mpsc::channel().0,
    }
}

/// What a run needs is kept until its job has ended, and what is shown of it longer.
#[test]
fn ended_jobs_are_short() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("queue");
    let task = Task {
        arguments: vec![Text(b"copy".to_vec())],
        folder: Text(b"/".to_vec()),
        environment: vec![("PATH".into(), Text(b"/bin".to_vec()))],
        inputs: Inputs {
            names: Some(Text(b"many".to_vec())),
            ..Inputs::default()
        },
        label: Some("nightly".into()),
        from: vec!["/a".into()],
        to: vec!["h:/b".into()],
        key: None,
    };
    let answer = server(&folder).submit(task.clone(), vec!["h:/b".into()], 0);
    assert!(matches!(answer, Answer::Submitted { job: 1 }));
    let mut server = server(&folder);
    assert_eq!(server.tasks[&1], task);
    server.queue.cancel(1, 5).unwrap();
    server.act().unwrap();
    drop(server);
    let (_, kept) = Keep::open(&folder).unwrap();
    let shown = Task {
        label: task.label,
        from: task.from,
        to: task.to,
        ..Task::default()
    };
    assert_eq!(kept.tasks[&1], shown);
    assert!(kept.jobs[0].places.is_empty());
}

/// What is handed over with this key, with a specification of so many bytes.
fn handed(key: &str, len: usize) -> Call {
    let task = Task {
        inputs: Inputs {
            specification: Some(Text(vec![b'#'; len])),
            ..Inputs::default()
        },
        key: Some(key.into()),
        ..Task::default()
    };
    Call::Submit {
        task: Box::new(task),
        places: Vec::new(),
        priority: 0,
    }
}

/// What is handed over twice with one key is one job, also after a restart and when it has ended; it is seen with its own key alone.
#[test]
fn a_key_is_one_job() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("queue");
    let submit = |server: &mut Server, key| match server.call(handed(key, 9)) {
        Reply::Taken(job) => job,
        _ => panic!("it is refused"),
    };
    let mut first = server(&folder);
    assert_eq!(submit(&mut first, "a"), 1);
    assert_eq!(submit(&mut first, "b"), 2);
    assert_eq!(submit(&mut first, "a"), 1);
    drop(first);
    let mut second = server(&folder);
    assert_eq!(submit(&mut second, "b"), 2);
    assert!(matches!(second.call(Call::Cancel { job: 2 }), Reply::Done));
    assert_eq!(submit(&mut second, "b"), 2);
    let mut look = |job, key: Option<&str>| {
        let key = key.map(str::to_owned);
        matches!(second.call(Call::Look { job, key }), Reply::Looked(..))
    };
    assert!(look(1, Some("a")) && look(1, None) && look(2, Some("b")));
    assert!(!look(1, Some("b")) && !look(3, None));
}

/// Jobs of the user on this host are neither seen nor cancelled from others.
#[test]
fn own_jobs_are_not_seen_from_other_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server(&dir.path().join("queue"));
    server.submit(Task::default(), Vec::new(), 0);
    for call in [Call::Look { job: 1, key: None }, Call::Cancel { job: 1 }] {
        assert!(matches!(server.call(call), Reply::Refused(_)));
    }
    assert!(matches!(server.call(Call::List), Reply::Jobs(None, jobs) if jobs.is_empty()));
    assert!(!server.queue.job(1).unwrap().state.is_ended());
    // None has no key, and is no other's.
    assert!(matches!(server.call(handed("a", 9)), Reply::Taken(2)));
}

/// Other hosts cannot fill the memory: what waits is bounded, and what has ended makes space.
#[test]
fn what_is_handed_over_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server(&dir.path().join("queue"));
    let half = HANDED_BYTES_MAX / 2;
    assert!(matches!(server.call(handed("a", half)), Reply::Taken(1)));
    assert!(matches!(server.call(handed("b", half)), Reply::Taken(2)));
    match server.call(handed("c", 1)) {
        Reply::Refused(error) => assert!(error.contains("2 jobs with 65536 KiB"), "{error}"),
        _ => panic!("it is taken"),
    }
    server.call(Call::Cancel { job: 1 });
    server.act().unwrap();
    assert!(matches!(server.call(handed("c", 1)), Reply::Taken(3)));
}

/// The report of an earlier try is not that of a later one, which has ended without any.
#[test]
fn a_run_has_its_own_report() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = running(&dir.path().join("queue"), 1);
    // Its process cannot be started.
    let Call::Submit { mut task, .. } = handed("a", 9) else {
        panic!("it is another call")
    };
    task.folder = Text(
        dir.path()
            .join("none")
            .into_os_string()
            .into_encoded_bytes(),
    );
    let call = Call::Submit {
        task,
        places: Vec::new(),
        priority: 0,
    };
    assert!(matches!(server.call(call), Reply::Taken(1)));
    let said = |server: &mut Server| match server.call(Call::Look { job: 1, key: None }) {
        Reply::Looked(entry, said) => (entry.job.state, said),
        _ => panic!("it is refused"),
    };
    let failed = || Ran::Failed {
        reason: "no route".into(),
        is_final: false,
        safe_bytes: 0,
    };
    server.take(Input::Happened(Happened::Said(1, "the report".into())));
    server.queue.ended(1, failed(), 10);
    server.act().unwrap();
    assert_eq!(said(&mut server).1.as_deref(), Some("the report"));
    server.queue.tick(100);
    server.act().unwrap();
    assert!(matches!(said(&mut server), (State::Running { .. }, None)));
    server.queue.ended(1, failed(), 110);
    server.act().unwrap();
    assert!(matches!(said(&mut server), (State::Ended { .. }, None)));
}
