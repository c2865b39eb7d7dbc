//! Hosts behind firewalls, a NAT and a jump host: ssh is enough, and whichever side can connect does.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec};
use serde_json::Value;

use crate::hosts::{PROGRAM, agent, begin, bytes, close, has_moved, master, rules};

/// Whether a test is left out, visibly: it needs namespaces, an ssh server and nft.
fn skip(test: &str) -> bool {
    if ropewalk_lab::skip(test) {
        return true;
    }
    let is_there = |name: &str| Path::new("/usr/sbin").join(name).exists();
    let missing = ["sshd", "nft"].into_iter().find(|name| !is_there(name));
    if let Some(name) = missing {
        let line = format!("SKIPPED {test}: no {name}; run scripts/install-test-tools");
        writeln!(std::io::stderr(), "{line}").expect("standard error");
    }
    missing.is_some()
}

/// Nothing is connected to over IPv6.
const NO_IPV6: &str = "meta nfproto ipv6 tcp flags & (syn | ack) == syn drop";

/// Nothing but ssh, and the ports named, may be connected to from outside; packets to others are dropped.
fn drop_inbound(lab: &Lab, host: &str, open: &str) {
    let rules_of_chain = [
        "type filter hook input priority 0".to_owned(),
        "iifname lo accept".to_owned(),
        format!("tcp flags & (syn | ack) == syn tcp dport != {{ 22{open} }} drop"),
        "meta l4proto udp drop".to_owned(),
    ];
    let chain = rules_of_chain.join("\n");
    rules(
        lab,
        host,
        &format!("table inet f {{\nchain in {{\n{chain}\n}}\n}}\n"),
    );
}

/// What a copy of 5 MB of `from` to `to`, typed at `m`, used: the ways of its pairs, and its report. The copy must be equal.
fn copied(lab: &Lab, from: &str, to: &str, options: &[&str]) -> (Vec<String>, Value) {
    let data = bytes(5_000_000);
    let place = |name: &str, file: &str| match name {
        "m" => format!("/data/{file}"),
        other => format!("{other}:/data/{file}"),
    };
    std::fs::write(lab.path_in(from, "/data/set"), &data).unwrap();
    let _ = std::fs::remove_file(lab.path_in(to, "/data/copy"));
    let (source, copy) = (place(from, "set"), place(to, "copy"));
    let mut args = vec!["copy", "--remote-path", PROGRAM];
    args.extend(options);
    args.extend([source.as_str(), copy.as_str()]);
    let (status, report) = master(lab, "m", &args);
    assert_eq!(status, Some(0), "{from} to {to}: {report:#}");
    assert!(std::fs::read(lab.path_in(to, "/data/copy")).unwrap() == data);
    let pairs = report["pairs"].as_array().unwrap();
    let ways = pairs
        .iter()
        .map(|pair| pair["way"].as_str().unwrap().to_owned());
    (ways.collect(), report)
}

/// Hosts on one network, all with ssh servers.
fn hosts(names: &[&str]) -> Lab {
    let builder = LabBuilder::new().hosts(names.iter().copied().map(HostSpec::new));
    let lab = builder.build().unwrap();
    for host in names {
        lab.start_sshd(host).unwrap();
    }
    lab
}

/// Push and pull: both sides open; inbound packets dropped at the side that types, at the other one, at both.
#[test]
fn the_side_that_can_connects() {
    if skip("the_side_that_can_connects") {
        return;
    }
    let scenes: [(&[&str], [&str; 2]); 4] = [
        (&[], ["direct", "direct"]),
        (&["m"], ["direct", "reversed"]),
        (&["a"], ["reversed", "direct"]),
        (&["m", "a"], ["through this host", "through this host"]),
    ];
    for (shut, [pull, push]) in scenes {
        let lab = hosts(&["m", "a"]);
        for host in shut {
            drop_inbound(&lab, host, "");
        }
        assert_eq!(copied(&lab, "a", "m", &[]).0, [pull], "pull, {shut:?}");
        assert_eq!(copied(&lab, "m", "a", &[]).0, [push], "push, {shut:?}");
        close(lab, []);
    }
}

/// Two hosts that nothing but ssh reaches: data goes through the command's host, which says so and why. Where the user
/// named interfaces, or wants datagrams, it does not, and the reason is given.
#[test]
fn data_goes_through_ssh_at_last() {
    if skip("data_goes_through_ssh_at_last") {
        return;
    }
    let lab = hosts(&["m", "a", "b"]);
    for host in ["m", "a", "b"] {
        drop_inbound(&lab, host, "");
    }
    let (ways, report) = copied(&lab, "a", "b", &[]);
    assert_eq!(ways, ["through this host"]);
    assert!(
        report["control"]["bridged_bytes"].as_u64() > Some(5_000_000),
        "{report:#}"
    );
    let notes = report["notes"].to_string();
    let told = [
        "data from a to b goes through this host, which is slower: b gets no answer from ",
        "(a firewall or NAT in front of a?); a gets no answer from b either; open the TCP ports given by --ports",
    ];
    let mut rest = notes.as_str();
    for part in told {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part}: {notes}"));
        rest = &rest[at + part.len()..];
    }
    assert!(
        !notes.contains("127.0.0.1") && !notes.contains("[::1]"),
        "{notes}"
    );
    let nics = format!("{},{}", lab.nics("a")[0].name, lab.nics("b")[0].name);
    let rest = ["a:/data/set", "b:/data/other"];
    for (options, reason) in [
        (["--rails", &nics], "--rails keeps data off the way"),
        (["--lane", "rapid"], "lanes of datagrams need"),
    ] {
        let mut args = vec!["copy", "--remote-path", PROGRAM];
        args.extend(options.into_iter().chain(rest));
        let (status, report) = master(&lab, "m", &args);
        let text = format!("{} {}", report["error"], report["notes"]);
        assert_ne!(status, Some(0), "{text}");
        assert!(
            text.contains(reason) && text.contains("b gets no answer from"),
            "{text}"
        );
    }
    close(lab, []);
}

/// Agents that run as services and do not reach each other: the command's host, which reaches both, passes the bytes on, also
/// where only the receiver is one of them.
#[test]
fn standing_agents_are_connected_through_the_command() {
    if skip("standing_agents_are_connected_through_the_command") {
        return;
    }
    let lab = hosts(&["m", "a", "b"]);
    for (host, other) in [("a", "b"), ("b", "a")] {
        let other = lab.addresses(other)[0];
        let shut = format!(
            "table inet f {{\nchain in {{\ntype filter hook input priority 0\n{NO_IPV6}\nip saddr {other} drop\n}}\n}}\n"
        );
        rules(&lab, host, &shut);
    }
    let agents = ["a", "b"].map(|host| agent(&lab, host, 7420, &["/data:rw"]));
    let data = bytes(5_000_000);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    for (source, copy, lane) in [
        ("a:7420:/data/set", "b:7420:/data/copy", "tcp"),
        ("a:/data/set", "b:7420:/data/copy2", "tcp"),
        ("a:7420:/data/set", "b:/data/copy3", "ssh"),
    ] {
        let args = ["copy", "--remote-path", PROGRAM, source, copy];
        let (status, report) = master(&lab, "m", &args);
        assert_eq!(status, Some(0), "{source} {copy}: {report:#}");
        let path = copy.rsplit(':').next().unwrap();
        assert!(std::fs::read(lab.path_in("b", path)).unwrap() == data);
        let pair = &report["pairs"][0];
        let way = (
            pair["way"].as_str().unwrap(),
            pair["lane"].as_str().unwrap(),
        );
        assert_eq!(way, ("through this host", lane), "{source} {copy}");
        let bridged = report["control"]["bridged_bytes"].as_u64();
        assert!(bridged > Some(5_000_000), "{report:#}");
        let notes = report["notes"].to_string();
        let expected = "goes through this host, which is slower: b";
        assert!(notes.contains(expected), "{notes}");
        assert!(notes.contains("gets no answer from"), "{notes}");
    }
    close(lab, agents);
}

/// A sender that no packet from the receiver may begin a connection to connects over all interfaces itself, and over one where
/// no more are wanted.
#[test]
fn senders_connect_over_all_interfaces() {
    if skip("senders_connect_over_all_interfaces") {
        return;
    }
    let railed = |name| {
        let nic = || NicSpec::rate_bits(100_000_000);
        HostSpec::new(name).nic(nic()).nic(nic())
    };
    let master_host = HostSpec::new("m").nic(NicSpec::rate_bits(100_000_000));
    let builder = LabBuilder::new().host(railed("a")).host(railed("b"));
    let lab = builder.host(master_host).build().unwrap();
    let own = lab.addresses("b").into_iter().filter(|own| own.is_ipv4());
    let own: Vec<String> = own.map(|own| own.to_string()).collect();
    let shut = format!(
        "table inet f {{\nchain in {{\ntype filter hook input priority 0\n{NO_IPV6}\n\
         ip saddr {{ {} }} tcp flags & (syn | ack) == syn drop\n}}\n}}\n",
        own.join(", ")
    );
    rules(&lab, "a", &shut);
    let agents = ["a", "b"].map(|host| agent(&lab, host, 7420, &["/data:rw"]));
    // Long enough for the second way to be found on a busy machine.
    let data = bytes(64 << 20);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    for (rails, expected) in [("auto", 2), ("one", 1)] {
        let copy = format!("b:7420:/data/{rails}");
        let args = ["copy", "--rails", rails, "a:7420:/data/set", &copy];
        let (status, report) = master(&lab, "m", &args);
        assert_eq!(status, Some(0), "{rails}: {report:#}");
        assert!(std::fs::read(lab.path_in("b", format!("/data/{rails}"))).unwrap() == data);
        let pairs = report["pairs"].as_array().unwrap();
        let direct: Vec<&Value> = pairs
            .iter()
            .filter(|pair| pair["way"] == "reversed")
            .collect();
        // What went through the command's host before is a row of its own.
        let others = pairs.iter().filter(|pair| pair["way"] != "reversed");
        assert!(
            others
                .map(|pair| &pair["way"])
                .all(|way| way == "through this host"),
            "{rails}: {pairs:#?}"
        );
        assert_eq!(direct.len(), expected, "{rails}: {pairs:#?}");
        let names: std::collections::BTreeSet<&str> = direct
            .iter()
            .map(|pair| pair["rail"].as_str().unwrap())
            .collect();
        assert_eq!(names.len(), expected, "{rails}: {pairs:#?}");
        let busy = direct.iter().map(|pair| pair["bytes"].as_u64().unwrap());
        assert!(
            busy.clone().all(|bytes| bytes > 4 << 20),
            "{rails}: {pairs:#?}"
        );
    }
    close(lab, agents);
}

/// A host with a private address, to which a router in front of it translates a public one: the address that was typed is
/// dialled, too, for the data.
#[test]
fn translated_addresses_are_dialled() {
    if skip("translated_addresses_are_dialled") {
        return;
    }
    let outside = HostSpec::new("m").nic(NicSpec::uncapped().rail(0));
    let router = HostSpec::new("r").nic(NicSpec::uncapped().rail(0));
    let router = router.nic(NicSpec::uncapped().rail(1));
    let inside = HostSpec::new("a").nic(NicSpec::uncapped().rail(1));
    let router = router.sysctl("net.ipv4.ip_forward", "1");
    let builder = LabBuilder::new().host(outside).host(router).host(inside);
    let lab = builder.build().unwrap();
    lab.start_sshd("a").unwrap();
    let of = |host: &str| -> Vec<String> {
        let own = lab.addresses(host).into_iter().filter(|own| own.is_ipv4());
        own.map(|own| own.to_string()).collect()
    };
    let (public, gateway, private) = (&of("r")[0], &of("r")[1], &of("a")[0]);
    let translate = format!(
        "table ip n {{\nchain in {{\ntype nat hook prerouting priority -100\nip daddr {public} dnat to {private}\n}}\n}}\n"
    );
    rules(&lab, "r", &translate);
    let mut route = lab.command("a", "ip");
    let route = route.args(["route", "replace", "default", "via", gateway]);
    assert!(route.status().unwrap().success());
    let data = bytes(5_000_000);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let source = format!("{public}:/data/set");
    let args = ["copy", "--remote-path", PROGRAM, &source, "/data/copy"];
    let (status, report) = master(&lab, "m", &args);
    assert_eq!(status, Some(0), "{report:#}");
    assert!(std::fs::read(lab.path_in("m", "/data/copy")).unwrap() == data);
    assert_eq!(report["pairs"][0]["way"], "direct", "{report:#}");
    close(lab, []);
}

/// The command's host is cut off for good: what it started on another host ends by itself and removes what it made.
#[test]
fn agents_outlive_no_host_that_vanished() {
    if skip("agents_outlive_no_host_that_vanished") {
        return;
    }
    let lab = hosts(&["m", "a"]);
    let args = [
        "copy",
        "--remote-path",
        PROGRAM,
        "--limit",
        "8Mbit",
        "mem:1GiB",
        "a:/data/to/copy",
    ];
    std::fs::create_dir(lab.path_in("a", "/data/to")).unwrap();
    let (mut child, mut events) = begin(&lab, "m", &args);
    assert!(events.by_ref().any(|event| has_moved(&event, 1 << 20)));
    let made = || {
        std::fs::read_dir(lab.path_in("a", "/data/to"))
            .unwrap()
            .count()
    };
    assert!(made() > 0);
    lab.blackhole("m", 0, true).unwrap();
    // The agent waits a minute for the silent host, then it removes what it made.
    let deadline = Instant::now() + Duration::from_secs(300);
    while made() > 0 {
        assert!(
            Instant::now() < deadline,
            "the agent still keeps what it made"
        );
        std::thread::park_timeout(Duration::from_millis(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    close(lab, []);
}

/// What a firewall lets through late takes over from the way through the command's host, and the report has both.
#[test]
fn better_ways_take_over() {
    if skip("better_ways_take_over") {
        return;
    }
    // The first packets to all ports but ssh's are lost, at both; what is sent again after a second passes.
    let lose_first = [
        "type filter hook input priority 0",
        "iifname lo accept",
        NO_IPV6,
        "tcp flags & (syn | ack) == syn tcp dport != 22 quota until 90 bytes drop",
        "meta l4proto udp drop",
    ];
    let rules_of = format!(
        "table inet f {{\nchain in {{\n{}\n}}\n}}\n",
        lose_first.join("\n")
    );
    for (from, to) in [("a", "m"), ("m", "a")] {
        let lab = hosts(&["m", "a"]);
        for host in ["m", "a"] {
            rules(&lab, host, &rules_of);
        }
        let (ways, report) = copied(&lab, from, to, &["--limit", "16Mbit"]);
        assert_eq!(ways.len(), 2, "{from} to {to}: {ways:?}");
        assert_eq!(ways[0], "through this host", "{from} to {to}");
        assert!(
            ["direct", "reversed"].contains(&ways[1].as_str()),
            "{from} to {to}: {ways:?}"
        );
        let bytes: Vec<u64> = report["pairs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| pair["bytes"].as_u64().unwrap())
            .collect();
        assert!(bytes.iter().all(|bytes| *bytes > 0), "{bytes:?}");
        assert_eq!(bytes.iter().sum::<u64>(), 5_000_000);
        // Nothing is left that the user could do something about.
        let notes = report["notes"].to_string();
        assert!(!notes.contains("through this host"), "{notes}");
        close(lab, []);
    }
}

/// A host behind a jump host, on a network that the command's host has no address in.
#[test]
fn a_jump_host_is_enough() {
    if skip("a_jump_host_is_enough") {
        return;
    }
    let inside = HostSpec::new("m").nic(NicSpec::uncapped().rail(0));
    let jump = HostSpec::new("j").nic(NicSpec::uncapped().rail(0));
    let jump = jump.nic(NicSpec::uncapped().rail(1));
    let outside = HostSpec::new("a").nic(NicSpec::uncapped().rail(1));
    let builder = LabBuilder::new().host(inside).host(jump).host(outside);
    let lab = builder.build().unwrap();
    for host in ["j", "a"] {
        lab.start_sshd(host).unwrap();
    }
    let jump = ["--ssh", "ssh -J j"];
    assert_eq!(
        copied(&lab, "a", "m", &jump).0,
        ["through this host"],
        "pull"
    );
    assert_eq!(
        copied(&lab, "m", "a", &jump).0,
        ["through this host"],
        "push"
    );
    close(lab, []);
}

/// Fixed ports are the only ones listened on, so that firewalls on both sides may stay shut for all others; without a free
/// one nothing starts.
#[test]
fn fixed_ports_are_kept() {
    if skip("fixed_ports_are_kept") {
        return;
    }
    let lab = hosts(&["m", "a"]);
    drop_inbound(&lab, "m", ", 50000-50003");
    drop_inbound(&lab, "a", ", 50000-50003");
    let ports = ["--ports", "50000-50003"];
    for (from, to) in [("m", "a"), ("a", "m")] {
        assert_eq!(
            copied(&lab, from, to, &ports).0,
            ["direct"],
            "{from} to {to}"
        );
    }
    // Open at one side only: that one is connected to, whichever it is.
    let shut = hosts(&["m", "a"]);
    drop_inbound(&shut, "m", "");
    drop_inbound(&shut, "a", ", 50000-50003");
    assert_eq!(copied(&shut, "m", "a", &ports).0, ["reversed"]);
    assert_eq!(copied(&shut, "a", "m", &ports).0, ["direct"]);
    close(shut, []);
    // The range is taken: refused with the range and the host.
    let taken = lab.in_network("a", || std::net::TcpListener::bind("[::]:50000").unwrap());
    let options = [
        "copy",
        "--remote-path",
        PROGRAM,
        "--ports",
        "50000-50000",
        "a:/data/set",
        "/data/x",
    ];
    let (status, report) = master(&lab, "m", &options);
    let error = report["error"].as_str().unwrap();
    assert_eq!(status, Some(4), "{error}");
    assert!(
        error.contains("no TCP port of 50000-50000 is free"),
        "{error}"
    );
    drop(taken);
    close(lab, []);
}

/// The command's host has a private address behind a router that translates it: push and pull work.
#[test]
fn a_nat_is_no_obstacle() {
    if skip("a_nat_is_no_obstacle") {
        return;
    }
    let inside = HostSpec::new("m").nic(NicSpec::uncapped().rail(0));
    let router = HostSpec::new("r").nic(NicSpec::uncapped().rail(0));
    let router = router.nic(NicSpec::uncapped().rail(1));
    let outside = HostSpec::new("a").nic(NicSpec::uncapped().rail(1));
    let router = router.sysctl("net.ipv4.ip_forward", "1");
    let builder = LabBuilder::new().host(inside).host(router).host(outside);
    let lab = builder.build().unwrap();
    lab.start_sshd("a").unwrap();
    let nics = lab.nics("r");
    let masquerade = format!(
        "table ip n {{\nchain out {{\ntype nat hook postrouting priority 100\noifname {} masquerade\n}}\n}}\n",
        nics[1].name
    );
    rules(&lab, "r", &masquerade);
    let gateway = lab.addresses("r")[0].to_string();
    let mut route = lab.command("m", "ip");
    let route = route.args(["route", "replace", "default", "via", &gateway]);
    assert!(route.status().unwrap().success());
    assert_eq!(copied(&lab, "a", "m", &[]).0, ["direct"], "pull");
    assert_eq!(copied(&lab, "m", "a", &[]).0, ["reversed"], "push");
    close(lab, []);
}
