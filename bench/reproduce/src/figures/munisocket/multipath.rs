//! Multipath TCP of the kernel between the two hosts: what it carries over both rails.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ropewalk_lab::Lab;
use socket2::{Domain, Protocol, Socket, Type};

use super::hosts;
use crate::process;
use crate::ropewalk::Place;

const PORT: u16 = 9100;
const PATIENCE: Duration = Duration::from_secs(60);
/// What either end moves with one call.
const BLOCK: usize = 256 << 10;
/// The second path joins within a few round trips; then both have their say.
const JOINING: Duration = Duration::from_millis(300);

fn socket() -> std::io::Result<Socket> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))
}

/// Why Multipath TCP cannot be used here; `None` when it can.
pub(super) fn missing() -> Option<String> {
    let setting = std::fs::read_to_string("/proc/sys/net/mptcp/enabled");
    match setting.as_deref().map(str::trim) {
        Err(_) => Some("this kernel has no Multipath TCP".into()),
        Ok("1") => socket()
            .err()
            .map(|error| format!("no Multipath TCP socket: {error}")),
        Ok(_) => Some("net.mptcp.enabled is 0 here".into()),
    }
}

/// Moves bytes from host `a` to `b`, beginning on rail 0; gives Mbit/s and the bytes that each interface sent.
pub(super) fn run(lab: &Lab, bytes: u64) -> Result<(f64, Vec<u64>)> {
    let ip = |host: &str, arguments: &[&str]| -> Result<()> {
        let mut command = Place::Host(lab, host).command(Path::new("ip"));
        command.arg("mptcp").args(arguments);
        process::run(command, PATIENCE)?;
        Ok(())
    };
    let peers = hosts::addresses(lab, "b");
    for host in ["a", "b"] {
        ip(
            host,
            &["limits", "set", "subflows", "4", "add_addr_accepted", "4"],
        )?;
    }
    // The rails do not reach each other: the peer names its other addresses, and a path to each begins there.
    for (address, nic) in peers.iter().zip(lab.nics("b")).skip(1) {
        ip(
            "b",
            &["endpoint", "add", address, "dev", &nic.name, "signal"],
        )?;
    }
    let peer: SocketAddr = format!("{}:{PORT}", peers[0]).parse()?;
    let listener = lab.in_network("b", || -> std::io::Result<Socket> {
        let listener = socket()?;
        // On every address: the second path's connection goes to another one.
        listener.bind(&SocketAddr::from(([0, 0, 0, 0], PORT)).into())?;
        listener.listen(1)?;
        Ok(listener)
    })?;
    let listener = listener.context("cannot listen with Multipath TCP")?;
    let receiving = std::thread::spawn(move || -> std::io::Result<u64> {
        let mut stream = TcpStream::from(listener.accept()?.0);
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut room = vec![0; BLOCK];
        let mut have = 0;
        loop {
            match stream.read(&mut room)? {
                0 => break,
                count => have += count as u64,
            }
        }
        stream.write_all(&[1])?;
        Ok(have)
    });
    let sender = lab.in_network("a", || -> std::io::Result<Socket> {
        let sender = socket()?;
        sender.connect_timeout(&peer.into(), PATIENCE)?;
        Ok(sender)
    })?;
    let mut sender = TcpStream::from(sender.context("cannot connect with Multipath TCP")?);
    sender.set_write_timeout(Some(PATIENCE))?;
    sender.set_read_timeout(Some(PATIENCE))?;
    std::thread::sleep(JOINING);
    let sent = || -> Result<Vec<u64>> {
        let nics = 0..lab.nics("a").len();
        nics.map(|nic| Ok(lab.counters("a", nic)?.tx_bytes))
            .collect()
    };
    let before = sent()?;
    let begun = Instant::now();
    let block = vec![0x5a; BLOCK];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(BLOCK as u64) as usize;
        sender
            .write_all(&block[..count])
            .context("Multipath TCP broke")?;
        left -= count as u64;
    }
    sender.shutdown(std::net::Shutdown::Write)?;
    sender
        .read_exact(&mut [0])
        .context("no answer over Multipath TCP")?;
    let seconds = begun.elapsed().as_secs_f64();
    match receiving.join() {
        Ok(have) => ensure!(have? == bytes, "not all bytes used Multipath TCP"),
        Err(_) => bail!("the receiving thread failed"),
    }
    let by_rail = sent()?
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    Ok((bytes as f64 * 8e-6 / seconds, by_rail))
}
