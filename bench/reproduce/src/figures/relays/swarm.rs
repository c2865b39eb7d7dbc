//! BitTorrent: aria2 at both ends, a seed at each sender, and a tracker that knows all of them from the start.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ropewalk_lab::Lab;

use super::{NAME, RECEIVERS, Rig, SENDERS, SOURCE, names};
use crate::bench::Site;
use crate::network::MASTER;
use crate::process::{self, Process};
use crate::ropewalk::Place;
use crate::scenario::deadline;

/// Where the tracker and the peers listen.
const TRACKER_PORT: u16 = 6969;
const PEER_PORT: u16 = 6881;

/// Length of a piece (1 MiB), as usual for files of this size.
const PIECE: u64 = 1 << 20;

/// Written by aria2 when a copy is complete.
const MARK: &str = "/data/complete";

/// How often the marks are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A text as torrents write it.
fn bytes_of(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{}:", text.len()).as_bytes());
    out.extend_from_slice(text);
}

/// The description of a file: its pieces' hashes (SHA-1, hexadecimal, a line each), and the tracker.
fn torrent(bytes: u64, hashes: &[String], tracker: &str) -> Result<Vec<u8>> {
    let mut pieces = Vec::new();
    for line in hashes {
        let hash = line.get(..40).context("sha1sum printed no hash")?;
        for at in (0..40).step_by(2) {
            pieces.push(u8::from_str_radix(&hash[at..at + 2], 16)?);
        }
    }
    let lacks = pieces.len() as u64 != bytes.div_ceil(PIECE) * 20;
    ensure!(!lacks, "{} hashes for {bytes} bytes", hashes.len());
    let mut out = b"d8:announce".to_vec();
    bytes_of(tracker.as_bytes(), &mut out);
    out.extend_from_slice(format!("4:infod6:lengthi{bytes}e4:name").as_bytes());
    bytes_of(NAME.as_bytes(), &mut out);
    out.extend_from_slice(format!("12:piece lengthi{PIECE}e6:pieces").as_bytes());
    bytes_of(&pieces, &mut out);
    out.extend_from_slice(b"ee");
    Ok(out)
}

/// Hashes of all pieces of a file.
fn hashes(path: &Path) -> Result<Vec<String>> {
    let mut split = Command::new("split");
    split
        .args(["-b", &PIECE.to_string(), "--filter=sha1sum"])
        .arg(path);
    let ended = process::run(split, Duration::from_secs(120))?;
    Ok(ended.output)
}

/// What the tracker answers: all peers.
fn peers(lab: &Lab, hosts: &[String]) -> Vec<u8> {
    let mut compact = Vec::new();
    for host in hosts {
        if let IpAddr::V4(address) = lab.address(host) {
            compact.extend_from_slice(&address.octets());
            compact.extend_from_slice(&PEER_PORT.to_be_bytes());
        }
    }
    let mut body = b"d8:intervali60e5:peers".to_vec();
    bytes_of(&compact, &mut body);
    body.push(b'e');
    let mut answer = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // Only the head is text.
    let mut answer: Vec<u8> = std::mem::take(&mut answer).into_bytes();
    answer.extend_from_slice(&body);
    answer
}

/// Answers until it is told to end; whatever fails with one peer is that peer's.
fn track(listener: &TcpListener, answer: &[u8], is_over: &AtomicBool) {
    for stream in listener.incoming() {
        if is_over.load(Ordering::Acquire) {
            return;
        }
        let Ok(mut stream) = stream else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        let _ = stream.write_all(answer);
    }
}

/// Seconds from the receivers' start until all copies are complete.
pub(super) fn run(site: &Site, lab: &Lab, rig: &Rig<'_>) -> Result<f64> {
    let (senders, receivers) = (names('a', SENDERS.len()), names('b', RECEIVERS.len()));
    let mut tracker = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        tracker,
        "http://{}:{TRACKER_PORT}/announce",
        lab.address(MASTER)
    );
    let file = site.scratch.join("file.torrent");
    fs::write(
        &file,
        torrent(rig.bytes, &hashes(&rig.folder.join(NAME))?, &tracker)?,
    )?;
    let hook = site.scratch.join("complete");
    write_hook(&hook)?;
    let all: Vec<String> = senders.iter().chain(&receivers).cloned().collect();
    let answer = peers(lab, &all);
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, TRACKER_PORT));
    let listener = lab
        .in_network(MASTER, listen)?
        .context("the tracker cannot listen")?;
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = is_over.clone();
    let tracking = std::thread::spawn(move || track(&listener, &answer, &ends));
    let measured = measure(lab, rig, &file, &hook, (&senders, &receivers));
    is_over.store(true, Ordering::Release);
    let knock = || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, TRACKER_PORT)).map(drop);
    // One connection wakes it; where that fails its thread goes with this process.
    if lab.in_network(MASTER, knock)?.is_ok() {
        let _ = tracking.join();
    }
    measured
}

fn write_hook(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, format!("#!/bin/sh\n: > {MARK}\n"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn measure(
    lab: &Lab,
    rig: &Rig<'_>,
    file: &Path,
    hook: &Path,
    (senders, receivers): (&[String], &[String]),
) -> Result<f64> {
    let aria2 = |host: &str, folder: &str| {
        let mut command = Place::Host(lab, host).command(Path::new("aria2c"));
        command.args([
            "--no-conf",
            "--quiet",
            "--enable-dht=false",
            "--enable-dht6=false",
            "--bt-enable-lpd=false",
            "--disable-ipv6",
            "--seed-ratio=0.0",
            "--file-allocation=none",
            "--allow-overwrite=true",
            &format!("--listen-port={PEER_PORT}"),
        ]);
        command.arg("--dir").arg(folder);
        command
    };
    let mut running = Vec::new();
    for host in senders {
        let mut command = aria2(host, SOURCE);
        command.arg("--bt-seed-unverified=true").arg(file);
        running.push(Process::start(command)?);
    }
    for host in senders {
        await_listening(lab, host)?;
    }
    let began = Instant::now();
    for host in receivers {
        let mut command = aria2(host, "/data");
        command.arg(format!("--on-bt-download-complete={}", hook.display()));
        command.arg(file);
        running.push(Process::start(command)?);
    }
    let until = began + deadline(2.0 * super::mixed_seconds(rig.bytes, false));
    let is_complete = |host: &String| lab.path_in(host, MARK).exists();
    while !receivers.iter().all(is_complete) {
        if Instant::now() > until {
            bail!("BitTorrent did not end within {:?}", until - began);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let seconds = began.elapsed().as_secs_f64();
    for process in running {
        process.kill()?;
    }
    Ok(seconds)
}

/// Waits until the peer of a host listens.
fn await_listening(lab: &Lab, host: &str) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(20);
    let connects = || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, PEER_PORT)).is_ok();
    while !lab.in_network(host, connects)? {
        if Instant::now() > until {
            bail!("aria2 does not listen on {host}");
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The description of a small file, byte by byte.
    #[test]
    fn torrents() {
        let hash = "00ff".repeat(10);
        let made = torrent(5, &[format!("{hash}  -")], "http://t/a").unwrap();
        let mut expected = b"d8:announce10:http://t/a4:infod6:lengthi5e4:name4:file12:piece lengthi1048576e6:pieces20:".to_vec();
        expected.extend([0x00, 0xff].repeat(10));
        expected.extend(b"ee");
        assert_eq!(made, expected);
        assert!(torrent(PIECE + 1, &[hash], "t").is_err());
    }
}
