//! Shuffles over real processes and sockets, on this host.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::processes::{assert_gone, family, kill, kill_at_once, processes, stages, temporary};
use common::{Moving, Place, bytes};
use ropewalk_proto::stage::shuffle::{part_name, partition_of};

/// A command over so many nodes of this host.
fn words<'w>(nodes: usize, options: &[&'w str]) -> Vec<&'w str> {
    let mut words = vec!["shuffle"];
    words.extend(std::iter::repeat_n("localhost", nodes));
    words.extend(["--json", "--from", "in{node}", "--to", "out{node}"]);
    words.extend(options);
    words
}

/// Folders with files of lines for so many nodes; gives all lines, sorted. Words repeat.
fn make_lines(place: &Place, nodes: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for node in 1..=nodes {
        let folder = place.path(&format!("in{node}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(".hidden"), "never\n").unwrap();
        for file in 0..3 {
            let lines: Vec<String> = (0..20_000)
                .map(|number| format!("{},k{},{}", number % 7, number * 31 % 1009, node + file))
                .collect();
            // The last line of one file has no end.
            let end = if file == 1 { "" } else { "\n" };
            std::fs::write(folder.join(format!("f{file}")), lines.join("\n") + end).unwrap();
            all.extend(lines.into_iter().map(String::into_bytes));
        }
    }
    all.sort_unstable();
    all
}

/// What each partition has, by its number; each is on the node that it belongs to.
fn partitions(place: &Place, nodes: usize, count: u32) -> Vec<Vec<u8>> {
    for node in 0..nodes {
        let folder = place.path(&format!("out{}", node + 1));
        let found = std::fs::read_dir(folder).unwrap().count();
        assert_eq!(found, (node..count as usize).step_by(nodes).count());
    }
    let file = |number: u32| {
        let folder = format!("out{}", number as usize % nodes + 1);
        std::fs::read(place.path(&folder).join(part_name(number))).unwrap()
    };
    (0..count).map(file).collect()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    assert!(text.is_empty() || text.ends_with(b"\n"));
    text.split_inclusive(|&byte| byte == b'\n')
        .map(|line| &line[..line.len() - 1])
}

fn field(line: &[u8], number: usize) -> &[u8] {
    line.split(|&byte| byte == b',').nth(number - 1).unwrap()
}

/// Every line once, in the partition of its key, over two and three nodes, whatever connects them.
#[test]
fn lines_are_dealt_by_key() {
    for (nodes, options) in [
        (1, &["--partitions", "5"][..]),
        (2, &["--partitions", "5"]),
        (
            3,
            &["--partitions", "5", "--lane", "tcp", "--block", "1000B"],
        ),
        (2, &["--partitions", "5", "--lane", "shm"]),
        (2, &["--partitions", "5", "--lane", "rapid"]),
        (3, &["--partitions", "5", "--memory", "128KiB", "--sort"]),
    ] {
        for by_field in [false, true] {
            let place = Place::new();
            let expected = make_lines(&place, nodes);
            let key = ["--key", "2", "--separator", ","];
            let key = if by_field { &key[..] } else { &[] };
            let ran = place.run(&[&words(nodes, options)[..], key].concat());
            let report = ran.assert_status(0).report();
            let partitions = partitions(&place, nodes, 5);
            let mut found = Vec::new();
            for (number, text) in (0..).zip(&partitions) {
                for line in lines(text) {
                    let key = if by_field { field(line, 2) } else { line };
                    assert_eq!(partition_of(key, 5), number);
                    found.push(line.to_vec());
                }
            }
            found.sort_unstable();
            assert!(found == expected, "{options:?}");
            let shuffle = &report["shuffle"];
            let bytes: usize = partitions.iter().map(Vec::len).sum();
            assert_eq!(shuffle["records"], expected.len());
            assert_eq!(shuffle["bytes"], bytes);
            assert_eq!(shuffle["partitions"], 5);
            let counts = partitions.iter().map(|text| lines(text).count());
            assert_eq!(shuffle["least_records"], counts.clone().min().unwrap());
            assert_eq!(shuffle["most_records"], counts.max().unwrap());
            assert_eq!(report["accounted"], true);
            assert_eq!(temporary(place.dir.path()), Vec::<String>::new());
        }
    }
}

/// Partitions are sorted by key, then by line; a second run gives the same bytes.
#[test]
fn sorted_partitions_are_reproducible() {
    let mut first: Option<Vec<Vec<u8>>> = None;
    for _ in 0..2 {
        let place = Place::new();
        make_lines(&place, 2);
        let options = [
            "--partitions",
            "3",
            "--key",
            "2",
            "--separator",
            ",",
            "--sort",
        ];
        place.run(&words(2, &options)).assert_status(0);
        let found = partitions(&place, 2, 3);
        for text in &found {
            let all: Vec<&[u8]> = lines(text).collect();
            let is_sorted = all.is_sorted_by_key(|line| (field(line, 2), *line));
            assert!(is_sorted && !all.is_empty());
        }
        assert!(first.is_none_or(|first| first == found));
        first = Some(found);
    }
}

/// Records of a fixed length hold any bytes; each is whole and once, and sorted where that is wanted.
#[test]
fn fixed_records_are_dealt_by_key() {
    for (nodes, options) in [(2, &[][..]), (3, &["--sort"])] {
        let place = Place::new();
        let mut expected: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for node in 1..=nodes {
            let folder = place.path(&format!("in{node}"));
            std::fs::create_dir(&folder).unwrap();
            let content = bytes(10_000 * 20, node as u64);
            std::fs::write(folder.join("f"), &content).unwrap();
            for record in content.chunks(20) {
                *expected.entry(record.to_vec()).or_default() += 1;
            }
        }
        let fixed = ["--partitions", "5", "--record", "fixed:20", "--key", "3+1"];
        let ran = place.run(&[&words(nodes, &fixed)[..], options].concat());
        ran.assert_status(0);
        let mut found: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for (number, content) in (0..).zip(partitions(&place, nodes, 5)) {
            let records: Vec<&[u8]> = content.chunks(20).collect();
            for record in &records {
                assert_eq!(partition_of(&record[3..4], 5), number);
                *found.entry(record.to_vec()).or_default() += 1;
            }
            let is_sorted = records.is_sorted_by_key(|record| (record[3], *record));
            assert!(is_sorted || options.is_empty());
        }
        assert!(found == expected, "{options:?}");
    }
}

/// A partition that memory does not hold is sorted within 64 MiB, beside what the process takes anyway.
#[test]
fn sorting_keeps_to_its_memory() {
    let place = Place::new();
    let folder = place.path("in1");
    std::fs::create_dir(&folder).unwrap();
    let part = bytes(1 << 20, 1);
    std::fs::write(folder.join("f"), part.repeat(96)).unwrap();
    let resident = |options: &[&str]| {
        let fixed = ["--partitions", "1", "--record", "fixed:64"];
        let ran = place.run(&[&words(1, &fixed)[..], options].concat());
        let report = ran.assert_status(0).report();
        std::fs::remove_dir_all(place.path("out1")).unwrap();
        let last = &report["processes"].as_array().unwrap()[1];
        last["resident_max_bytes"].as_u64().unwrap()
    };
    let (process, sorting) = (resident(&[]), resident(&["--sort"]));
    assert!(
        (32 << 20..65 << 20).contains(&(sorting - process)),
        "{sorting} bytes, of which {process} without sorting"
    );
}

fn make_folders(place: &Place, text: &str) {
    for node in ["in1", "in2"] {
        std::fs::create_dir(place.path(node)).unwrap();
        if !text.is_empty() {
            std::fs::write(place.path(node).join("f"), text).unwrap();
        }
    }
}

/// Empty folders give empty partitions.
#[test]
fn empty_folders_give_empty_partitions() {
    for options in [&["--partitions", "3"][..], &["--partitions", "1", "--sort"]] {
        let place = Place::new();
        make_folders(&place, "");
        let report = place.run(&words(2, options)).assert_status(0).report();
        assert_eq!(report["shuffle"]["records"], 0);
        let count = options[1].parse().unwrap();
        let found = partitions(&place, 2, count);
        assert!(found.iter().all(Vec::is_empty));
    }
}

fn contents(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.contains("out")).collect();
    names.sort();
    names
}

/// Records that fit no block are named by their file and offset, and nothing is left.
#[test]
fn long_records_are_errors() {
    let place = Place::new();
    make_folders(&place, "short\n");
    let long = format!("short\n{}\n", "x".repeat(1000));
    std::fs::write(place.path("in2/g"), long).unwrap();
    let ran = place.run(&words(2, &["--block", "1000B"]));
    let error = ran.assert_status(1).error();
    for part in ["A on localhost 2", "g has", "byte 6", "--block"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(contents(place.dir.path()), Vec::<String>::new());
}

/// A place that is taken, or would be written by two nodes, is refused before anything moves.
#[test]
fn taken_places_are_refused() {
    let place = Place::new();
    make_folders(&place, "a\n");
    std::fs::create_dir(place.path("out2")).unwrap();
    let error = place.run(&words(2, &[])).assert_status(4).error();
    assert!(
        error.contains("out2\" exists") && error.contains("remove it"),
        "{error}"
    );
    assert_eq!(contents(place.dir.path()), ["out2"]);
    std::fs::create_dir(place.path("d")).unwrap();
    for name in ["d1", "d2"] {
        std::os::unix::fs::symlink("d", place.path(name)).unwrap();
    }
    let error = place
        .run(&[
            "shuffle",
            "localhost",
            "localhost",
            "--json",
            "--from",
            "in{node}",
            "--to",
            "d{node}/out",
        ])
        .assert_status(4)
        .error();
    assert!(
        error.contains("d/out") && error.contains("{node}"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(place.path("d")).unwrap().count(), 0);
    let words = [
        "shuffle",
        "localhost",
        "--json",
        "--from",
        "absent",
        "--to",
        "out",
    ];
    let error = place.run(&words).assert_status(4).error();
    assert!(error.contains("absent"), "{error}");
}

/// A killed process is named, and no process and nothing of a folder is left.
#[test]
fn a_killed_process_leaves_nothing() {
    for number in [0, 1] {
        let place = Place::new();
        make_folders(&place, "a\n");
        // Many records, though the file is short on the disk.
        let zeros = std::fs::File::create(place.path("in1/zeros")).unwrap();
        zeros.set_len(1 << 40).unwrap();
        let mut command = words(2, &["--record", "fixed:2"]);
        command.retain(|word| *word != "--json");
        let mut moving = Moving::start(&place, &command);
        moving.until_received(1);
        let all = family(moving.child.id() as i32);
        let stages = stages(moving.child.id() as i32);
        assert_eq!(stages.len(), 4, "{all:?}");
        kill(stages[number]);
        let (status, report) = moving.end();
        assert_eq!(status, 1);
        let error = report["error"].as_str().unwrap();
        let name = ["A", "B"][number];
        assert!(
            error.starts_with(&format!("{name} on localhost "))
                && error.contains("killed by signal 9"),
            "{error}"
        );
        assert_gone(&all);
        assert_eq!(contents(place.dir.path()), Vec::<String>::new());
    }
}

/// What a node left that was killed with its agent goes when the same folder is written again.
#[test]
fn what_killed_nodes_left_is_removed() {
    let place = Place::new();
    make_folders(&place, "a\n");
    let zeros = std::fs::File::create(place.path("in1/zeros")).unwrap();
    zeros.set_len(1 << 40).unwrap();
    let mut command = words(2, &["--record", "fixed:2"]);
    command.retain(|word| *word != "--json");
    let mut moving = Moving::start(&place, &command);
    moving.until_received(1);
    let all = family(moving.child.id() as i32);
    assert_eq!(temporary(place.dir.path()).len(), 2);
    let agents = processes(&["agent", "--one-shot"]);
    let agents: Vec<i32> = all
        .iter()
        .copied()
        .filter(|pid| agents.contains(pid))
        .collect();
    kill_at_once(&agents);
    assert_eq!(moving.end().0, 1);
    assert_gone(&all);
    assert_eq!(temporary(place.dir.path()).len(), 2);
    std::fs::remove_file(place.path("in1/zeros")).unwrap();
    place.run(&words(2, &[])).assert_status(0);
    assert_eq!(contents(place.dir.path()), ["out1", "out2"]);
}
