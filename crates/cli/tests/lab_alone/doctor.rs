//! What `doctor` says of hosts and the paths between them.

use std::time::Duration;

use ropewalk_lab::trunk::{ClusterSpec, LinkSpec, TrunkSpec};
use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec, Topology};
use serde_json::{Value, json};

use crate::hosts::{agent, close, give_token, program};

pub(crate) fn doctor(lab: &Lab, host: &str, args: &[&str]) -> Value {
    give_token(lab, host);
    let mut command = program(lab, host);
    command.args(["doctor", "--json", "--token-file", "/run/token"]);
    let output = command.args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(output.status.code(), Some(0), "{said}{report:#}");
    report
}

/// A path is named with its rate, also for files; these are gone afterwards.
#[test]
fn a_limited_path_is_named_with_its_rate() {
    let _alone = crate::alone();
    if ropewalk_lab::skip("a_limited_path_is_named_with_its_rate") {
        return;
    }
    let host = |name: &str, rate| HostSpec::new(name).nic(NicSpec::rate_bits(rate));
    let lab = LabBuilder::new()
        .host(host("a", 500_000_000))
        .host(host("b", 50_000_000))
        .build()
        .unwrap();
    let agents = ["a", "b"].map(|host| agent(&lab, host, 7420, &["/data:rw"]));
    let report = doctor(&lab, "a", &["a:7420:/data", "b:7420:/data"]);
    let pair = &report["pairs"][0];
    let bound_by = &pair["bound_by"];
    let named = json!([bound_by["cause"], bound_by["node"], bound_by["peer"]]);
    assert_eq!(named, json!(["path", "a", "b"]), "{pair:#}");
    for rate in [
        &pair["bits_per_second"],
        &pair["streams"]["bits_per_second"],
    ] {
        let rate = rate.as_f64().unwrap();
        assert!((40e6..=50e6).contains(&rate), "{pair:#}");
    }
    for host in ["a", "b"] {
        let left = std::fs::read_dir(lab.path_in(host, "/data")).unwrap();
        assert_eq!(left.count(), 0, "{host}");
    }
    close(lab, agents);
}

/// Windows that are too small for a long path are named with the setting that enlarges them, at the host whose they are.
#[test]
fn a_small_socket_buffer_is_named_with_its_setting() {
    let _alone = crate::alone();
    if ropewalk_lab::skip("a_small_socket_buffer_is_named_with_its_setting") {
        return;
    }
    let link = LinkSpec::rate_bits(100_000_000).delay(Duration::from_millis(20));
    let clusters = ClusterSpec {
        hosts: [1, 1],
        access_bits_per_second: Some(1_000_000_000),
        trunk: TrunkSpec::symmetric(link),
    };
    let mut topology = Topology::clusters(&clusters);
    for host in topology.hosts.iter_mut().filter(|host| host.name == "b1") {
        let value = "4096 65536 65536".to_owned();
        host.sysctls.insert("net.ipv4.tcp_rmem".into(), value);
    }
    let lab = LabBuilder::from(topology).build().unwrap();
    let agents = ["a1", "b1"].map(|host| agent(&lab, host, 7100, &["/data"]));
    let report = doctor(&lab, "a1", &["a1:7100", "b1:7100"]);
    let pair = &report["pairs"][0];
    let one = &pair["one_stream"];
    let trip = one["network"]["least_round_trip_seconds"].as_f64().unwrap();
    assert!((0.04..0.06).contains(&trip), "{one:#}");
    let setting = &pair["settings"][0];
    assert_eq!(setting["node"], "b1", "{pair:#}");
    let command = setting["command"].as_str().unwrap();
    // Twice 1 Gbit/s over 40 ms.
    assert_eq!(command, "sysctl -w net.ipv4.tcp_rmem='4096 65536 16777216'");
    assert_eq!(setting["now"], "4096 65536 65536");
    close(lab, agents);
}
