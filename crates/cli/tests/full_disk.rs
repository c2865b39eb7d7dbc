//! A disk that is full half way: what the first run made safe, and what the same command sends once there is space.
//!
//! Prints the bytes of both runs.

mod common;

use std::process::Command;

use common::{Place, Ran, bytes};
use serde_json::Value;

/// Bytes of the set, and of the disk, a file system in memory.
const SET: usize = 48 << 20;
const DISK: &str = "64m";

/// What of files that were under way is too little to be kept.
const LEFT_MAX: u64 = 4 << 20;

/// Copies `set` to the disk, which another program fills when the first bytes are safe; makes space and runs the command again.
const SCRIPT: &str = r#"
mkdir full && mount -t tmpfs -o "size=$2" none full || exit 77
"$1" copy --json --limit 80Mbit set full/copy > first 2> first.err & copy=$!
until grep -q '"delivered_bytes":[1-9][0-9]\{6,\}' first; do kill -0 $copy || exit 2; done
head -c 1G /dev/zero > full/other 2> /dev/null
wait $copy; echo $? > first.status
rm full/other
"$1" copy --json set full/copy > second 2> second.err; echo $? > second.status
diff -r set full/copy && ls -A full > names
"#;

fn report(place: &Place, run: &str, status: &str) -> Value {
    let read = |name: String| std::fs::read_to_string(place.path(&name)).unwrap();
    let text = read(run.to_owned());
    let last = text.lines().last().unwrap();
    let event: Value = serde_json::from_str(last).unwrap();
    let said = read(format!("{run}.status"));
    assert_eq!(said.trim(), status, "{run}: {event:#}");
    event["report"].clone()
}

/// Fills the disk while `place` copies its `set`; false where this host lets nobody mount one.
fn fill(place: &Place) -> bool {
    let own = place.command();
    let mut command: Command = place.command_of("unshare");
    command
        .args(["-rm", "sh", "-c", SCRIPT, "sh"])
        .arg(own.get_program())
        .arg(DISK);
    let Ok(output) = command.output() else {
        eprintln!("SKIPPED: there is no unshare here to mount a small disk");
        return false;
    };
    let ran = Ran(output);
    let is_refused = ran.status() == 77 || ran.err().contains("unshare failed");
    if is_refused {
        eprintln!("SKIPPED: no small disk can be mounted here: {}", ran.err());
        return false;
    }
    ran.assert_status(0);
    true
}

/// Of a tree and of one large file: the disk is named, what is safe stays, and the same command sends the rest and nothing else.
#[test]
fn a_full_disk_costs_no_byte_twice() {
    for is_tree in [true, false] {
        let place = Place::new();
        let all = bytes(SET, 7);
        if is_tree {
            std::fs::create_dir(place.path("set")).unwrap();
            for (at, part) in all.chunks(SET / 6).enumerate() {
                std::fs::write(place.path(&format!("set/f{at}")), part).unwrap();
            }
        } else {
            std::fs::write(place.path("set"), &all).unwrap();
        }
        if !fill(&place) {
            return;
        }
        let number = |report: &Value, key: &str| report[key].as_u64().unwrap();
        let first = report(&place, "first", "1");
        assert!(
            first["error"]
                .as_str()
                .unwrap()
                .contains("the disk is full"),
            "{first:#}"
        );
        let second = report(&place, "second", "0");
        let names = std::fs::read_to_string(place.path("names")).unwrap();
        assert_eq!(names, "copy\n", "nothing else is left");
        let (safe, sent) = (
            number(&first, "delivered_bytes"),
            number(&second, "delivered_bytes"),
        );
        eprintln!("of {SET} bytes the first run made {safe} safe, the second sent {sent}");
        assert!(safe >= 1_000_000 && sent < SET as u64);
        assert!(safe + sent <= SET as u64 + LEFT_MAX, "{first:#} {second:#}");
    }
}
