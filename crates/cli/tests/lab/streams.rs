//! Streams between hosts of the lab: TCP or datagrams between them, Unix sockets within.

use std::time::Duration;

use ropewalk_lab::trunk::{LinkSpec, Loss};
use ropewalk_proto::stage::shuffle::{part_name, partition_of};

use crate::hosts::{PROGRAM, agent, bytes, far_pair, lab, master, rules};

/// Files of three hosts, dealt over all of them, sealed and plain: every block once. A host without the stream's port is named.
#[test]
fn files_stream_between_hosts() {
    if ropewalk_lab::skip("files_stream_between_hosts") {
        return;
    }
    let hosts = ["n1", "n2", "n3"];
    let lab = lab(&hosts, 500_000_000);
    let mut sums = Vec::new();
    for (seed, host) in hosts.iter().enumerate() {
        let data = bytes((2 << 20) + (seed << 20));
        std::fs::write(lab.path_in(host, "/data/in"), &data).unwrap();
        sums.extend(data.chunks(64 << 10).map(<[u8]>::to_vec));
    }
    sums.sort();
    let _agents: Vec<_> = hosts
        .iter()
        .map(|host| agent(&lab, host, 7420, &["/data:rw"]))
        .collect();
    for options in [
        &[][..],
        &["--plain"],
        &["--local", "A-B", "--lane", "tcp"],
        &["--lane", "rapid"],
        &["--lane", "rbudp", "--rate", "200Mbit", "--plain"],
    ] {
        let words = [
            "stream",
            "n1:7420",
            "n2:7420",
            "n3:7420",
            "--from",
            "/data/in",
            "--to",
            "/data/out",
            "--groups",
            "4",
        ];
        let (status, report) = master(&lab, "n1", &[&words[..], options].concat());
        assert_eq!(status, Some(0), "{report:#}");
        assert_eq!(report["accounted"], true);
        let mut out = Vec::new();
        for host in hosts {
            let data = std::fs::read(lab.path_in(host, "/data/out")).unwrap();
            assert!(data.len() > 500_000, "{}", data.len());
            out.extend(data.chunks(64 << 10).map(<[u8]>::to_vec));
        }
        out.sort();
        assert!(out == sums, "the blocks differ");
    }
}

/// Hosts of one name space alone share Unix sockets: between two of the lab `--lane unix` is refused by name.
#[test]
fn unix_sockets_stay_on_their_host() {
    if ropewalk_lab::skip("unix_sockets_stay_on_their_host") {
        return;
    }
    let lab = lab(&["n1", "n2"], 500_000_000);
    let _agents = ["n1", "n2"].map(|host| agent(&lab, host, 7420, &["/data"]));
    let words = [
        "stream", "n1:7420", "n2:7420", "--size", "1MiB", "--lane", "unix",
    ];
    let (status, report) = master(&lab, "n1", &words);
    assert_eq!(status, Some(1), "{report:#}");
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("--lane unix is for nodes of one host"),
        "{error}"
    );
}

/// The records of two hosts in partitions by key over three hosts, whose agents are started over ssh: every record once, in the partition
/// of its key, each partition on its host, sorted. No agent is left.
#[test]
fn shuffles_over_ssh() {
    if ropewalk_lab::skip("shuffles_over_ssh") {
        return;
    }
    if !std::path::Path::new("/usr/sbin/sshd").exists() {
        return eprintln!("SKIPPED shuffles_over_ssh: no sshd; run scripts/install-test-tools");
    }
    let hosts = ["n1", "n2", "n3"];
    let lab = lab(&hosts, 500_000_000);
    let mut expected = Vec::new();
    for (node, host) in hosts.iter().enumerate() {
        lab.start_sshd(host).unwrap();
        let folder = lab.path_in(host, "/data/in");
        std::fs::create_dir(&folder).unwrap();
        // One host has no records.
        for file in 0..node {
            let record = |n: usize| format!("{}\tk{}\t{node}.{file}", n % 7, n * 31 % 1009);
            let records: Vec<String> = (0..20_000).map(record).collect();
            std::fs::write(folder.join(format!("f{file}")), records.join("\n")).unwrap();
            expected.extend(records);
        }
    }
    expected.sort();
    let words = [
        "shuffle",
        "--remote-path",
        PROGRAM,
        "n1",
        "n2",
        "n3",
        "--from",
        "/data/in",
        "--to",
        "/data/out",
        "--key",
        "2",
        "--partitions",
        "5",
        "--sort",
    ];
    let (status, report) = master(&lab, "n1", &words);
    assert_eq!(status, Some(0), "{report:#}");
    let mut found: Vec<String> = Vec::new();
    for number in 0..5 {
        let host = hosts[number as usize % hosts.len()];
        let path = lab.path_in(host, "/data/out").join(part_name(number));
        let text = std::fs::read_to_string(path).unwrap();
        let records: Vec<&str> = text.lines().collect();
        let key = |record: &str| record.split('\t').nth(1).unwrap().to_owned();
        assert!(records.is_sorted_by_key(|record| (key(record), *record)));
        for record in &records {
            assert_eq!(partition_of(key(record).as_bytes(), 5), number);
        }
        found.extend(records.into_iter().map(str::to_owned));
    }
    found.sort();
    assert!(found == expected, "the records differ");
    assert_eq!(report["shuffle"]["records"], expected.len());
    assert_eq!(
        (&report["accounted"], &report["encrypted"]),
        (&true.into(), &true.into())
    );
    lab.close().unwrap();
}

/// A tenth of all packets is lost between two hosts, of the connections too: every block arrives once, and what was lost was sent again.
#[test]
fn datagrams_cross_a_path_that_loses() {
    if ropewalk_lab::skip("datagrams_cross_a_path_that_loses") {
        return;
    }
    let link = LinkSpec::rate_bits(200_000_000)
        .delay(Duration::from_millis(2))
        .loss(Loss::independent(0.1));
    let lab = far_pair(link);
    let hosts = ["a1", "b1"];
    let mut sums = Vec::new();
    for (seed, host) in hosts.iter().enumerate() {
        let data = bytes((2 << 20) + (seed << 20));
        std::fs::write(lab.path_in(host, "/data/in"), &data).unwrap();
        sums.extend(data.chunks(64 << 10).map(<[u8]>::to_vec));
    }
    sums.sort();
    let _agents = hosts.map(|host| agent(&lab, host, 7420, &["/data:rw"]));
    for options in [
        &["--lane", "rapid"][..],
        &["--lane", "rbudp", "--rate", "100Mbit"],
    ] {
        let words = [
            "stream",
            "a1:7420",
            "b1:7420",
            "--from",
            "/data/in",
            "--to",
            "/data/out",
        ];
        let (status, report) = master(&lab, "a1", &[&words[..], options].concat());
        assert_eq!(status, Some(0), "{report:#}");
        let mut out = Vec::new();
        for host in hosts {
            let data = std::fs::read(lab.path_in(host, "/data/out")).unwrap();
            out.extend(data.chunks(64 << 10).map(<[u8]>::to_vec));
        }
        out.sort();
        assert!(out == sums, "the blocks differ");
        // Half of the blocks of two groups cross, and a tenth of those is lost.
        let again = report["retransmitted_bytes"].as_u64().unwrap();
        assert!(again > 100_000, "{report:#}");
    }
}

/// Between hosts whose firewall drops UDP the error has both processes and the port, before any block has moved.
#[test]
fn closed_ports_of_datagrams_are_named() {
    if ropewalk_lab::skip("closed_ports_of_datagrams_are_named") {
        return;
    }
    if !std::path::Path::new("/usr/sbin/nft").exists() {
        return eprintln!(
            "SKIPPED closed_ports_of_datagrams_are_named: no nft; run scripts/install-test-tools"
        );
    }
    let lab = lab(&["n1", "n2"], 500_000_000);
    let drop = "table inet f {\nchain in {\ntype filter hook input priority 0\nmeta l4proto udp drop\n}\n}\n";
    rules(&lab, "n2", drop);
    let _agents = ["n1", "n2"].map(|host| agent(&lab, host, 7420, &["/data"]));
    let words = [
        "stream", "n1:7420", "n2:7420", "--size", "1MiB", "--lane", "rapid",
    ];
    let (status, report) = master(&lab, "n1", &words);
    assert_eq!(status, Some(1), "{report:#}");
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("no datagram passes between here and") && error.contains("permit UDP"),
        "{error}"
    );
}
