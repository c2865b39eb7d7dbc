//! ssh between hosts, as a user would set it up.

mod common;

use std::io::Write as _;
use std::path::Path;

use common::{output, skip};
use ropewalk_lab::{HostSpec, LabBuilder};

/// ssh works from every host to those with a server, without questions, and carries standard input.
#[test]
fn ssh_without_questions() {
    if skip("ssh_without_questions") {
        return;
    }
    if !Path::new("/usr/sbin/sshd").exists() {
        let line = "SKIPPED ssh_without_questions: no sshd; run scripts/install-test-tools";
        writeln!(std::io::stderr(), "{line}").expect("standard error");
        return;
    }
    let lab = LabBuilder::new()
        .hosts(["a1", "b1", "192.168.3.4"].map(HostSpec::new))
        .build()
        .expect("three hosts");
    lab.start_sshd("b1").expect("sshd of b1");
    lab.start_sshd("b1").expect("a second call is harmless");
    lab.start_sshd("192.168.3.4").expect("sshd of 192.168.3.4");
    for from in ["a1", "b1"] {
        for to in ["b1", "192.168.3.4"] {
            assert_eq!(
                output(lab.command(from, "ssh").args([to, "hostname"])).trim(),
                to
            );
        }
    }
    output(
        lab.command("a1", "sh")
            .args(["-c", "echo secret | ssh b1 'cat > /data/got'"]),
    );
    assert_eq!(
        std::fs::read_to_string(lab.path_in("b1", "/data/got"))
            .expect("it is on b1")
            .trim(),
        "secret"
    );
    let refused = lab
        .command("b1", "ssh")
        .args(["-o", "ConnectTimeout=5", "a1", "true"])
        .output()
        .expect("ssh starts");
    assert!(!refused.status.success(), "a1 has no server");
}
