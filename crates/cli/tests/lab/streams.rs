//! Streams between hosts of the lab: TCP or datagrams between them, Unix sockets within.

use crate::hosts::{agent, bytes, lab, master, rules};

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

/// A tenth of all datagrams is lost between two hosts: every block arrives once, and what was lost was sent again.
#[test]
fn datagrams_cross_a_path_that_loses() {
    if ropewalk_lab::skip("datagrams_cross_a_path_that_loses") {
        return;
    }
    if !std::path::Path::new("/usr/sbin/nft").exists() {
        return eprintln!(
            "SKIPPED datagrams_cross_a_path_that_loses: no nft; run scripts/install-test-tools"
        );
    }
    let hosts = ["n1", "n2"];
    let lab = lab(&hosts, 200_000_000);
    let lose = "table inet f {\nchain in {\ntype filter hook input priority 0\n\
                meta l4proto udp numgen random mod 10 == 0 counter drop\n}\n}\n";
    for host in hosts {
        rules(&lab, host, lose);
    }
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
            "n1:7420",
            "n2:7420",
            "--from",
            "/data/in",
            "--to",
            "/data/out",
        ];
        let (status, report) = master(&lab, "n1", &[&words[..], options].concat());
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
