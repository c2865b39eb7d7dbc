//! Addresses of this host and the speed its interfaces claim.

use std::net::{IpAddr, SocketAddr};

/// Addresses under which peers may reach `port`, those most likely to work first: the one the
/// master used, then the others; loopback last, since it only helps peers on the same host.
pub fn candidates(reached_as: Option<IpAddr>, port: u16) -> Vec<SocketAddr> {
    let mut out: Vec<IpAddr> = reached_as.into_iter().collect();
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    for interface in interfaces {
        let address = interface.ip();
        // Link-local IPv6 addresses mean nothing on another host without its interface index.
        let local6 = matches!(address, IpAddr::V6(a) if a.segments()[0] & 0xffc0 == 0xfe80);
        if !local6 && !out.contains(&address) {
            out.push(address);
        }
    }
    out.sort_by_key(|address| address.is_loopback());
    out.into_iter()
        .map(|address| SocketAddr::new(address, port))
        .collect()
}

/// Sum of the speeds of all real interfaces that are up, bytes per second; 0 when any is unknown.
/// Virtual ones report a made-up speed or none and are left out.
pub fn rate() -> u64 {
    let Ok(entries) = std::fs::read_dir("/sys/class/net") else {
        return 0;
    };
    let mut sum = 0u64;
    for entry in entries.flatten() {
        if entry.file_name() == "lo" {
            continue;
        }
        let read =
            |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if read("operstate").trim() != "up" {
            continue;
        }
        if !entry.path().join("device").exists() {
            continue;
        }
        match read("speed").trim().parse::<i64>() {
            Ok(megabits) if megabits > 0 => sum += megabits as u64 * 125_000,
            _ => return 0,
        }
    }
    sum
}
