//! Files, trees and datagrams between hosts, and a disk that is too small.

use std::path::Path;
use std::process::{Child, Command};

use ropewalk_lab::{HostSpec, LabBuilder, NicSpec};

use crate::hosts::{PROGRAM, agent, bytes, close, lab, master};

/// The paper's sample, byte for byte.
const FIGURE_2: &str = include_str!("../../../../bench/reproduce/data/figure2.cep");

/// Figure 2's file as printed in the paper, between hosts of those names and addresses.
#[test]
fn figure_2_as_printed() {
    if ropewalk_lab::skip("figure_2_as_printed") {
        return;
    }
    let hosts = [
        "node1",
        "node2",
        "192.168.3.4",
        "192.168.3.5",
        "node5",
        "node7",
        "node6",
    ];
    let lab = lab(&hosts, 100_000_000);
    let data = bytes(4096);
    for (host, name, half) in [
        ("node1", "half1", 0),
        ("node2", "half1", 0),
        ("192.168.3.4", "half2", 1),
        ("192.168.3.5", "half2", 1),
    ] {
        std::fs::write(
            lab.path_in(host, format!("/data/{name}")),
            &data[half * 2048..][..2048],
        )
        .unwrap();
    }
    let ports = [55553, 55554, 55555, 55555, 55557, 55559, 55558];
    let agents: Vec<Child> = hosts
        .iter()
        .zip(ports)
        .map(|(host, port)| agent(&lab, host, port, &["/data", "/tmp:rw"]))
        .collect();
    std::fs::write(lab.path_in("node1", "/run/figure2.cep"), FIGURE_2).unwrap();
    let (status, report) = master(&lab, "node1", &["transfer", "/run/figure2.cep"]);
    assert_eq!(status, Some(0), "{report:#}");
    assert_eq!(report["delivered_bytes"], 8192);
    assert_eq!(report["label"], "My Data File");
    assert_eq!(
        std::fs::read(lab.path_in("node5", "/tmp/copy1")).unwrap(),
        &data[..2048]
    );
    // A file with a hole before its part: only the reader's own range counts.
    assert_eq!(
        &std::fs::read(lab.path_in("node7", "/tmp/copy1")).unwrap()[2048..],
        &data[2048..]
    );
    assert_eq!(
        std::fs::read(lab.path_in("node6", "/tmp/copy2")).unwrap(),
        data
    );
    close(lab, agents);
}

fn make_tree(root: &Path) {
    std::fs::create_dir_all(root.join("sub/empty")).unwrap();
    for at in 0..50usize {
        std::fs::write(root.join(format!("sub/file {at}")), bytes(at * at * 100)).unwrap();
    }
    std::os::unix::fs::symlink("sub/nothing", root.join("link")).unwrap();
}

/// Started over ssh with nothing installed but the program: two replicas to two hosts, no agent left.
#[test]
fn copies_over_ssh() {
    if ropewalk_lab::skip("copies_over_ssh") {
        return;
    }
    if !Path::new("/usr/sbin/sshd").exists() {
        return eprintln!("SKIPPED copies_over_ssh: no sshd; run scripts/install-test-tools");
    }
    let lab = lab(&["a1", "a2", "b1", "b2"], 500_000_000);
    for host in ["a1", "a2", "b1", "b2"] {
        lab.start_sshd(host).unwrap();
    }
    make_tree(&lab.path_in("a1", "/data/set"));
    let copied = Command::new("cp")
        .arg("-a")
        .arg(lab.path_in("a1", "/data/set"))
        .arg(lab.path_in("a2", "/data/set"))
        .status();
    assert!(copied.unwrap().success());
    let (status, report) = master(
        &lab,
        "a1",
        &[
            "copy",
            "--remote-path",
            PROGRAM,
            "a[1-2]:/data/set",
            "b[1-2]:/data/copy",
        ],
    );
    assert_eq!(status, Some(0), "{report:#}");
    for host in ["b1", "b2"] {
        let (first, second) = (
            lab.path_in("a1", "/data/set"),
            lab.path_in(host, "/data/copy"),
        );
        let same = Command::new("diff")
            .args(["-r", "--no-dereference"])
            .arg(&first)
            .arg(&second)
            .output()
            .unwrap();
        assert!(
            same.status.success(),
            "{}",
            String::from_utf8_lossy(&same.stdout)
        );
        let list = |root: &Path| {
            let script = "find . -printf '%p %y %m %T@ %l\\n' | sort";
            Command::new("sh")
                .args(["-c", script])
                .current_dir(root)
                .output()
                .unwrap()
                .stdout
        };
        assert_eq!(
            list(&first),
            list(&second),
            "names, kinds, modes, times and link targets"
        );
    }
    lab.close().unwrap();
}

/// A disk that is too small is refused with path and missing bytes; nothing is left on it.
#[test]
fn a_full_disk_is_named() {
    if ropewalk_lab::skip("a_full_disk_is_named") {
        return;
    }
    let small = HostSpec::new("b")
        .nic(NicSpec::uncapped())
        .tmpfs_size("data", 1 << 20);
    let lab = LabBuilder::new()
        .host(HostSpec::new("a").nic(NicSpec::uncapped()))
        .host(small)
        .build()
        .unwrap();
    std::fs::write(lab.path_in("a", "/data/big"), bytes(8 << 20)).unwrap();
    let agents = [
        agent(&lab, "a", 7420, &["/data"]),
        agent(&lab, "b", 7420, &["/data:rw"]),
    ];
    let (status, report) = master(
        &lab,
        "a",
        &["copy", "a:7420:/data/big", "b:7420:/data/copy"],
    );
    assert_eq!(status, Some(4), "{report:#}");
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("/data/copy") || error.contains("/data/.copy"),
        "{error}"
    );
    assert_eq!(
        std::fs::read_dir(lab.path_in("b", "/data"))
            .unwrap()
            .count(),
        0
    );
    close(lab, agents);
}

/// Datagrams between hosts whose interfaces carry 100 Mbit/s: at a set rate, and at one that the lane finds by itself.
#[test]
fn datagrams_move_between_hosts() {
    if ropewalk_lab::skip("datagrams_move_between_hosts") {
        return;
    }
    let lab = lab(&["a", "b"], 100_000_000);
    let agents = [
        agent(&lab, "a", 7420, &["/data"]),
        agent(&lab, "b", 7420, &["/data:rw"]),
    ];
    let data = bytes(20 << 20);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let from = format!("{}:7420:/data/set", lab.address("a"));
    for (at, way) in [
        &["--lane", "rbudp", "--rate", "80Mbit"][..],
        &["--lane", "rapid"],
        &[
            "--lane",
            "rapid",
            "--rate",
            "80Mbit",
            "--monitor",
            "linux26",
        ],
    ]
    .iter()
    .enumerate()
    {
        let copy = format!("/data/copy{at}");
        let to = format!("{}:7420:{copy}", lab.address("b"));
        let args = [&["copy"][..], way, &[&from, &to]].concat();
        let (status, report) = master(&lab, "a", &args);
        assert_eq!(status, Some(0), "{report:#}");
        assert!(std::fs::read(lab.path_in("b", &copy)).unwrap() == data);
        assert_eq!(report["pairs"][0]["lane"], way[1], "{report:#}");
    }
    close(lab, agents);
}
