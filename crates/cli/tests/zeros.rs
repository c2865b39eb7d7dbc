//! Holes of sparse files, and zeros that were written: neither is sent, and both arrive.

mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use common::{Place, bytes};

const MIB: u64 = 1 << 20;

/// 300 MiB, of them one at the start and a few bytes in the middle; the end is a hole.
fn make_sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.write_all_at(&bytes(MIB as usize, 1), 0).unwrap();
    file.write_all_at(&bytes(100, 2), 150 * MIB + 7).unwrap();
    file.set_len(300 * MIB + 5).unwrap();
}

/// 8 MiB of zeros that were written, with one other byte.
fn make_zeros(path: &Path) {
    let mut zeros = vec![0; 8 * MIB as usize];
    zeros[3 * MIB as usize + 9] = 1;
    std::fs::write(path, zeros).unwrap();
}

/// Between agents, in whatever way units leave, and within the command.
#[test]
fn zeros_are_not_sent() {
    let place = Place::new();
    place.make_token();
    let set = place.path("set");
    std::fs::create_dir(&set).unwrap();
    make_sparse(&set.join("sparse"));
    make_zeros(&set.join("zeros"));
    let [source, sink] = [(); 2].map(|()| place.agent(place.dir.path()));
    let ways: [(&str, &[&str]); 4] = [
        ("sealed", &[]),
        ("plain", &["--plain"]),
        ("unchecked", &["--plain", "--verify", "none"]),
        ("local", &[]),
    ];
    for (way, options) in ways {
        let copy = place.path(way);
        let [from, to] = match way {
            "local" => [&set, &copy].map(|path| path.to_str().unwrap().to_owned()),
            _ => [source.at(&set), sink.at(&copy)],
        };
        // The limit is for what is sent: without a limit for zeros it would take a minute.
        let mut args = vec!["copy", "--json", "--limit", "5MB/s"];
        args.extend(options);
        args.extend([from.as_str(), to.as_str()]);
        let report = place.run(&args).assert_status(0).report();
        for name in ["sparse", "zeros"] {
            let [wanted, found] = [&set, &copy].map(|tree| std::fs::read(tree.join(name)).unwrap());
            assert!(wanted == found, "{way} {name}");
        }
        // What is read where it lies, or within a process, is not looked at.
        let least = match way {
            "unchecked" | "local" => 297 * MIB,
            _ => 304 * MIB,
        };
        let zeros = report["zero_bytes"].as_u64().unwrap();
        assert!(zeros >= least, "{way}: {zeros}");
        assert_eq!(report["delivered_bytes"], 308 * MIB + 5, "{way}");
        // What was not sent shows no rate.
        assert!(report["bound"].is_null(), "{way}");
        let stored = copy.join("sparse").metadata().unwrap().blocks() * 512;
        assert!(stored < 8 * MIB, "{way}: {stored} bytes");
    }
}
