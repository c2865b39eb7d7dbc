//! One copy that several receivers write together on a file system that all of them see: what is there already is not sent.

mod common;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use common::processes::temporary;
use common::{Moving, Place, RunningAgent, bytes, make_tree, wait_for};
use serde_json::Value;

fn landing(report: &Value, key: &str) -> u64 {
    report["landing"][key].as_u64().unwrap()
}

/// A sender with a folder of its own, and receivers that share one.
struct Scene {
    place: Place,
    sender: RunningAgent,
    receivers: Vec<RunningAgent>,
}

impl Scene {
    fn new(receivers: usize) -> Self {
        let place = Place::new();
        place.make_token();
        for folder in ["from", "fs"] {
            std::fs::create_dir(place.path(folder)).unwrap();
        }
        let agents = |count: usize, folder: &str| -> Vec<RunningAgent> {
            (0..count)
                .map(|_| place.agent(&place.path(folder)))
                .collect()
        };
        let sender = agents(1, "from").remove(0);
        let receivers = agents(receivers, "fs");
        Self {
            place,
            sender,
            receivers,
        }
    }

    fn from(&self) -> std::path::PathBuf {
        self.place.path("from/set")
    }

    fn to(&self) -> std::path::PathBuf {
        self.place.path("fs/copy")
    }

    /// A copy to these receivers, in this order; with the number of none of them, the command's own host.
    fn args(&self, order: &[usize], more: &[&str]) -> Vec<String> {
        let mut args = ["copy", "--destinations", "shared"]
            .map(String::from)
            .to_vec();
        args.extend(more.iter().map(|one| (*one).to_owned()));
        args.push(self.sender.at(self.from()));
        let mut ends = order.iter().map(|at| match self.receivers.get(*at) {
            Some(agent) => agent.at(self.to()),
            None => self.place.text("fs/copy"),
        });
        args.extend(ends.next());
        for end in ends {
            args.extend(["--also-to".into(), end]);
        }
        args
    }

    fn copy(&self, order: &[usize], more: &[&str]) -> Value {
        let args = self.args(order, &[&["--json"], more].concat());
        self.place.run(&args).assert_status(0).report()
    }

    fn start(&self, order: &[usize], more: &[&str]) -> Moving {
        let args = self.args(order, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Moving::start(&self.place, &args)
    }

    #[track_caller]
    fn assert_whole(&self) {
        assert!(contents(&self.from()) == contents(&self.to()));
        assert_eq!(temporary(&self.place.path("fs")), [""; 0]);
        if self.to().is_dir() {
            assert_eq!(temporary(&self.to()), [""; 0]);
        }
    }
}

/// Contents of files and targets of links by path, with modes and times; folders that stood there keep their times.
fn contents(root: &Path) -> Vec<(PathBuf, u32, i64, Vec<u8>)> {
    let mut all = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let stat = path.symlink_metadata().unwrap();
        if stat.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            continue;
        }
        let bytes = match stat.is_symlink() {
            true => std::fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes(),
            false => std::fs::read(&path).unwrap(),
        };
        let name = path.strip_prefix(root).unwrap().to_owned();
        all.push((name, stat.mode(), stat.mtime_nsec(), bytes));
    }
    all.sort();
    all
}

fn inode(path: &Path) -> u64 {
    path.symlink_metadata().unwrap().ino()
}

/// A second copy sends nothing, says so and touches no file, whichever host is named first; then only what changed is sent; with
/// `--check none` all of it is.
#[test]
fn only_what_changed_is_sent_to_a_shared_copy() {
    let scene = Scene::new(3);
    make_tree(&scene.from());
    let first = scene.copy(&[0, 1, 2], &[]);
    let total = first["delivered_bytes"].as_u64().unwrap();
    assert_eq!(landing(&first, "unchanged_files"), 0);
    scene.assert_whole();
    let large = inode(&scene.to().join("big"));
    let orders: [&[usize]; 5] = [&[0, 1, 2], &[2, 0, 1], &[9, 1, 0], &[1, 9], &[0]];
    for order in orders {
        let again = scene.copy(order, &[]);
        let told = [&again["wanted_bytes"], &again["delivered_bytes"]];
        assert_eq!(told, [&Value::from(0); 2], "{order:?}");
        assert_eq!(again["pairs"].as_array().unwrap().len(), 0, "{order:?}");
        assert_eq!(
            again["notes"].as_array().unwrap().len(),
            0,
            "{:?}",
            again["notes"]
        );
        assert_eq!(landing(&again, "unchanged_files"), 53, "{order:?}");
        assert_eq!(landing(&again, "unchanged_bytes"), total, "{order:?}");
        assert_eq!(again["predicted_seconds"], Value::Null);
        scene.assert_whole();
        assert_eq!(inode(&scene.to().join("big")), large);
    }
    for (at, order) in orders.into_iter().enumerate() {
        std::fs::write(scene.from().join("sub/f3"), format!("changed {at}")).unwrap();
        std::fs::remove_file(scene.to().join("sub/f7")).unwrap();
        std::fs::remove_file(scene.to().join("link")).unwrap();
        std::fs::remove_file(scene.to().join("none")).unwrap();
        let report = scene.copy(order, &[]);
        assert_eq!(report["wanted_bytes"], 9 + 7 * 37, "{order:?}");
        assert_eq!(report["delivered_bytes"], 9 + 7 * 37, "{order:?}");
        assert_eq!(landing(&report, "unchanged_files"), 49, "{order:?}");
        let merged = &report["landing"]["merged"][0];
        let counts = ["unchanged_files", "added_files", "replaced_files"];
        let counts = counts.map(|key| merged[key].as_u64());
        assert_eq!(counts, [49, 3, 1].map(Some), "{order:?}");
        scene.assert_whole();
        assert_eq!(inode(&scene.to().join("big")), large);
    }
    let all = scene.copy(&[0, 1, 2], &["--check", "none"]);
    assert_eq!(landing(&all, "unchanged_files"), 0);
    assert!(all["delivered_bytes"].as_u64().unwrap() > 3 << 20);
    scene.assert_whole();
}

/// One file that is there is not sent; another version of it is.
#[test]
fn a_single_shared_file_that_is_there_stays() {
    let scene = Scene::new(2);
    for (at, len) in [0, 3_000_000].into_iter().enumerate() {
        std::fs::write(scene.from(), bytes(len, at as u64)).unwrap();
        assert_eq!(scene.copy(&[0, 1], &[])["delivered_bytes"], len);
        let again = scene.copy(&[1, 0], &[]);
        assert_eq!(again["delivered_bytes"], 0);
        assert_eq!(landing(&again, "unchanged_bytes"), len as u64);
        scene.assert_whole();
    }
}

/// A file that was the same and is changed while others are written: no file gets its name, the report names it, and the next
/// run sends that file.
#[test]
fn a_file_that_changes_meanwhile_fails_a_shared_copy() {
    let scene = changed_half();
    let mut moving = scene.start(&[0, 1], &["--limit", "20Mbit"]);
    moving.until_delivered(1_000_000);
    std::fs::write(scene.to().join("f2"), "mine").unwrap();
    let (status, report) = moving.end();
    assert_eq!(status, 1, "{report:#}");
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("copy/f2"), "{error}");
    assert_eq!(std::fs::read(scene.to().join("f2")).unwrap(), b"mine");
    assert_eq!(
        std::fs::read(scene.to().join("f7")).unwrap(),
        bytes(1_000_000, 7)
    );
    // What was written is safe: the next run sends one file.
    let next = scene.copy(&[1, 0], &[]);
    assert_eq!(landing(&next, "resumed_bytes"), 5_000_000, "{next:#}");
    assert_eq!(next["delivered_bytes"], 1_000_000, "{next:#}");
    scene.assert_whole();
}

/// A copy of ten files of 1 MB, five of which have changed since.
fn changed_half() -> Scene {
    let scene = Scene::new(3);
    std::fs::create_dir(scene.from()).unwrap();
    let write = |at: u64, seed: u64| {
        std::fs::write(scene.from().join(format!("f{at}")), bytes(1_000_000, seed)).unwrap();
    };
    (0..10).for_each(|at| write(at, at));
    scene.copy(&[0, 1], &[]);
    (5..10).for_each(|at| write(at, at + 10));
    scene
}

/// The receiver that looked what is there is killed afterwards: what it found stands, and the others write the rest.
#[test]
fn what_a_killed_receiver_found_stands() {
    let mut scene = changed_half();
    let mut moving = scene.start(&[0, 1, 2], &["--limit", "20Mbit"]);
    moving.until_delivered(1_000_000);
    scene.receivers[0].kill();
    let (status, report) = moving.end();
    assert_eq!(status, 0, "{report:#}");
    assert_eq!(report["wanted_bytes"], 5_000_000, "{report:#}");
    assert_eq!(landing(&report, "unchanged_files"), 5);
    scene.assert_whole();
}

/// Whether a process has a thread that looks what is there.
fn looks(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut threads = threads.into_iter().flatten().flatten();
    threads.any(|thread| {
        let name = std::fs::read_to_string(thread.path().join("comm"));
        name.is_ok_and(|name| name.trim() == "look")
    })
}

/// The receiver that looks what is there is killed while it does: another one looks, and the copy is the same.
#[test]
fn another_receiver_looks_when_the_first_is_killed() {
    let mut scene = changed_half();
    // Looking takes a while.
    for at in 0..20_000 {
        std::fs::write(scene.from().join(format!("small{at}")), at.to_string()).unwrap();
    }
    scene.copy(&[0, 1], &[]);
    let caught = (0..20).find_map(|attempt| {
        for at in 5..10 {
            let path = scene.from().join(format!("f{at}"));
            std::fs::write(path, bytes(1_000_000, 100 + 10 * attempt + at)).unwrap();
        }
        // The first by name looks; its port is in the name.
        let name = |at: &usize| format!("127.0.0.1:{}", scene.receivers[*at].port);
        let looker = (0..3).min_by_key(name).unwrap();
        let first = scene.receivers[looker].child.id();
        let moving = scene.start(&[0, 1, 2], &["--wait", "0", "--limit", "50Mbit"]);
        let looks = wait_for("the receiver to look or to write", || {
            // It looks for a short time, and listing the folder takes as long.
            let looks = (0..100).any(|_| looks(first));
            let writes = looks || !temporary(&scene.to()).is_empty();
            writes.then_some(looks)
        });
        if looks {
            scene.receivers[looker].kill();
        }
        let (status, report) = moving.end();
        if looks && status == 0 {
            return Some(report);
        }
        // It was not seen, or it had reported before it was killed: then what it was to write is missing.
        assert_eq!(status, if looks { 3 } else { 0 }, "{report:#}");
        if looks {
            scene.receivers[looker] = scene.place.agent(&scene.place.path("fs"));
            scene.copy(&[0, 1], &[]);
        }
        None
    });
    let report = caught.expect("the receiver was never caught while it looked");
    assert_eq!(report["wanted_bytes"], 5_000_000, "{report:#}");
    assert_eq!(landing(&report, "unchanged_files"), 20_005);
    let notes = report["notes"].to_string();
    assert!(notes.contains("is lost"), "{notes}");
    scene.assert_whole();
}

/// Names of one file are names of one file in a shared copy; where they are not, the next run links them and sends nothing.
#[test]
fn hard_links_of_a_shared_copy() {
    let scene = Scene::new(2);
    let (from, to) = (scene.from(), scene.to());
    std::fs::create_dir_all(from.join("sub")).unwrap();
    std::fs::write(from.join("a"), bytes(9 << 20, 1)).unwrap();
    std::fs::write(from.join("sub/other"), bytes(1000, 2)).unwrap();
    for name in ["sub/b", "sub/c"] {
        std::fs::hard_link(from.join("a"), from.join(name)).unwrap();
    }
    let inodes = || ["a", "sub/b", "sub/c"].map(|name| to.join(name).metadata().unwrap().ino());
    for is_there in [false, true] {
        if is_there {
            std::fs::remove_dir_all(&to).unwrap();
            scene.copy(&[0, 1], &[]);
            let [one, two, three] = inodes();
            assert!(one != two && two != three);
        }
        let sent = if is_there { 0 } else { (9 << 20) + 1000 };
        assert_eq!(scene.copy(&[0, 1], &["-H"])["wanted_bytes"], sent);
        scene.assert_whole();
        let [one, two, three] = inodes();
        assert_eq!([one, one], [two, three]);
        assert_eq!(to.join("a").metadata().unwrap().nlink(), 3);
        assert_eq!(scene.copy(&[1, 0], &["-H"])["wanted_bytes"], 0);
        assert_eq!(inodes(), [one, two, three]);
    }
}
