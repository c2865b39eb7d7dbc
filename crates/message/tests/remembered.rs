//! Cut-offs that are remembered from one socket to the next, over loopback addresses.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ropewalk_message::{CutOff, Listener, MessageError, MessageSocket, Method, Options};
use serde_json::Value;

/// Longest time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const DAY: u64 = 86_400;

fn options(file: &Path) -> Options {
    Options {
        cut_off: CutOff::Measured(Method::Search),
        cut_offs: Some(file.to_owned()),
        deadline: Some(PATIENCE),
        ..Options::default()
    }
}

fn listener() -> Listener {
    let rails: [SocketAddr; 2] = ["127.0.0.1:0", "127.0.0.2:0"].map(|text| text.parse().unwrap());
    let options = Options {
        deadline: Some(PATIENCE),
        ..Options::default()
    };
    Listener::bind(&rails, &options).unwrap()
}

fn pair(listener: &Listener, options: &Options) -> (MessageSocket, MessageSocket) {
    let near = MessageSocket::connect(&listener.addresses(), options).unwrap();
    (near, listener.accept().unwrap())
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} takes too long");
        thread::yield_now();
    }
}

fn sent(socket: &MessageSocket) -> Vec<u64> {
    socket.rails().iter().map(|rail| rail.bytes_sent).collect()
}

/// Whether connecting measured, and took nothing from the file.
fn measured(socket: &MessageSocket) -> bool {
    let measured = sent(socket).iter().sum::<u64>() > 0;
    assert_eq!(measured, socket.recalled_cut_off().is_none());
    measured
}

fn now_unix() -> u64 {
    let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    passed.unwrap().as_secs()
}

fn read(file: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// The only pair in the file.
fn only(kept: &mut Value) -> (String, &mut Value) {
    let pairs = kept["pairs"].as_object_mut().unwrap();
    assert_eq!(pairs.len(), 1, "{pairs:?}");
    let (key, pair) = pairs.iter_mut().next().unwrap();
    (key.clone(), pair)
}

/// Measures until that worked, which on a busy machine may take more than the time there is for it, and leaves a
/// file with the result.
fn learn(listener: &Listener, options: &Options) -> u64 {
    let (near, _far) = pair(listener, options);
    assert!(measured(&near));
    wait_for("a measurement", || {
        near.find_cut_off(Method::Search).unwrap().is_some()
    });
    near.cut_off()
}

/// Changes the only pair in the file.
fn change(file: &Path, value: Value, best: Option<usize>, age_seconds: u64) {
    let mut kept = read(file);
    let (key, pair) = only(&mut kept);
    let rails: Vec<&str> = key.split_once(": ").unwrap().1.split(", ").collect();
    pair["cut_off_bytes"] = value;
    pair["seen_unix_seconds"] = (now_unix() - age_seconds).into();
    if let Some(best) = best {
        let to = ["-> 127.0.0.1:", "-> 127.0.0.2:"][best];
        let best = rails.iter().find(|rail| rail.contains(to)).unwrap();
        pair["best"] = (*best).into();
    }
    std::fs::write(file, kept.to_string()).unwrap();
}

/// The second socket begins with what the first one found, best rail included, tells the peer, and sends nothing to find
/// it. Without messages that show it again it writes nothing either.
#[test]
fn the_second_connect_measures_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("deep/cut-offs.json");
    let own = options(&file);
    let listener = listener();
    let found = learn(&listener, &own);
    let (near, far) = pair(&listener, &own);
    assert!(!measured(&near));
    assert_eq!(near.cut_off(), found);
    assert_eq!(near.recalled_cut_off().unwrap().bytes, found);
    assert_eq!(sent(&near), [0, 0]);
    wait_for("the peer's knowledge", || far.cut_off() == found);
    drop((near, far));

    for best in [0, 1] {
        change(&file, 12_345.into(), Some(best), 6 * DAY);
        let text = std::fs::read_to_string(&file).unwrap();
        let (near, far) = pair(&listener, &own);
        assert_eq!((near.cut_off(), sent(&near)), (12_345, vec![0, 0]));
        let age = near.recalled_cut_off().unwrap().age.as_secs();
        assert!((6 * DAY..6 * DAY + 120).contains(&age), "{age}");
        near.send(b"below the cut-off").unwrap();
        assert_eq!(far.receive_vec(100).unwrap().unwrap().len(), 17);
        assert_eq!(sent(&near)[best], 17, "the best rail has it");
        wait_for("the peer's knowledge", || far.cut_off() == 12_345);
        near.remember_cut_off().unwrap();
        near.close();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
}

/// A cut-off that real messages correct is remembered as they left it, and young again.
#[test]
fn refined_cut_offs_are_written_at_close() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut-offs.json");
    let own = options(&file);
    let listener = listener();
    learn(&listener, &own);
    // All rails for 64 bytes: waking their threads costs more than the bytes do.
    change(&file, 0.into(), None, 3 * DAY);
    let (near, far) = pair(&listener, &own);
    assert_eq!((measured(&near), near.cut_off()), (false, 0));
    let refined = thread::scope(|scope| {
        scope.spawn(|| {
            let mut room = [0; 64];
            while let Ok(Some(_)) = far.receive(&mut room) {}
        });
        wait_for("a correction", || {
            near.send(&[7; 64]).unwrap();
            near.cut_off() > 64
        });
        let refined = near.cut_off();
        near.close();
        refined
    });
    let mut kept = read(&file);
    let (_, own) = only(&mut kept);
    assert_eq!(own["cut_off_bytes"], refined);
    assert_eq!(own["found_by"], "search");
    let seen = own["seen_unix_seconds"].as_u64().unwrap();
    assert!(now_unix() - seen < DAY, "{own}");
    let (near, _far) = pair(&listener, &options(&file));
    assert_eq!((measured(&near), near.cut_off()), (false, refined));
}

/// What is too old, of other rails or of other protection is measured, and kept beside the rest.
#[test]
fn what_is_not_known_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut-offs.json");
    let own = options(&file);
    let first = listener();
    learn(&first, &own);
    change(&file, 12_345.into(), None, 7 * DAY + 60);
    let (near, _far) = pair(&first, &own);
    assert!(measured(&near), "too old");
    drop(near);

    change(&file, 12_345.into(), None, 60);
    let unchecked = Options {
        check: false,
        ..own.clone()
    };
    let (near, _far) = pair(&first, &unchecked);
    assert!(measured(&near), "other protection");
    let other = listener();
    let (near, _far) = pair(&other, &own);
    assert!(measured(&near), "other ports");
    let local = Options {
        local: vec!["127.0.0.9".parse().unwrap()],
        ..own.clone()
    };
    let (near, _far) = pair(&first, &local);
    assert!(measured(&near), "other addresses of this end");
    let mut three = first.addresses();
    three.push(three[0]);
    let near = MessageSocket::connect(&three, &own).unwrap();
    assert!(measured(&near), "a rail more");
    let (near, _far) = pair(&first, &own);
    assert_eq!((measured(&near), near.cut_off()), (false, 12_345));
    let near = MessageSocket::connect(&first.addresses()[..1], &own).unwrap();
    assert_eq!(sent(&near), [0], "a single rail has none");
}

/// A damaged file is a warning and a measurement; the next socket finds it whole. A file that cannot be is a warning, too.
#[test]
fn odd_files_are_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut-offs.json");
    std::fs::write(&file, "{\"version\": 1, \"pairs\": {").unwrap();
    let own = options(&file);
    let listener = listener();
    let (near, _far) = pair(&listener, &own);
    assert!(measured(&near));
    let warnings = near.warnings();
    assert!(
        warnings[0].contains("cut-offs.json is damaged"),
        "{warnings:?}"
    );
    let error = near.recall_cut_off().unwrap_err();
    assert!(matches!(error, MessageError::Remembered(_)), "{error}");
    wait_for("a measurement", || {
        near.find_cut_off(Method::Fit).unwrap().is_some()
    });
    near.remember_cut_off().unwrap();
    let (second, _far) = pair(&listener, &own);
    assert_eq!((measured(&second), second.warnings()), (false, Vec::new()));

    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let (near, _far) = pair(&listener, &options(&folder));
    assert!(near.warnings()[0].contains("not a file"));
    wait_for("a measurement", || {
        near.find_cut_off(Method::Fit).unwrap().is_some()
    });
    let error = near.remember_cut_off().unwrap_err().to_string();
    assert!(error.contains("cannot read"), "{error}");
}

/// Who names no file gets none, and fixing or asking for a measurement goes past what is remembered.
#[test]
fn remembering_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cut-offs.json");
    let own = options(&file);
    let listener = listener();
    learn(&listener, &own);
    change(&file, 12_345.into(), None, 60);
    let text = std::fs::read_to_string(&file).unwrap();
    let none = Options {
        cut_offs: None,
        ..own.clone()
    };
    let fixed = Options {
        cut_off: CutOff::Fixed(5),
        ..own.clone()
    };
    let (near, _far) = pair(&listener, &none);
    assert!(measured(&near));
    assert!(near.recall_cut_off().unwrap().is_none());
    near.remember_cut_off().unwrap();
    drop(near);
    let (near, _far) = pair(&listener, &fixed);
    assert_eq!((near.cut_off(), sent(&near)), (5, vec![0, 0]));
    drop(near);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    let (near, _far) = pair(&listener, &fixed);
    assert_eq!(near.recall_cut_off().unwrap().unwrap().bytes, 12_345);
    wait_for("a measurement", || {
        near.find_cut_off(Method::Fit).unwrap().is_some()
    });
    assert_eq!(near.recalled_cut_off(), None);
    let found = near.cut_off();
    // What was found is remembered though something else is in use at the end.
    near.set_cut_off(77);
    drop(near);
    let mut kept = read(&file);
    let (_, own) = only(&mut kept);
    assert_eq!(own["found_by"], "fit");
    assert_eq!(own["cut_off_bytes"].as_u64().unwrap_or(u64::MAX), found);
}
