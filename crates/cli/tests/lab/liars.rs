//! A receiver that lies about what it has, as a program of somebody else could: what its host sends to other receivers is changed on the
//! way, with checksums and hashes that fit.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ropewalk_lab::Lab;

use crate::hosts::{bytes, close, lab, master, rules};
use crate::relays::{copies, has_note};

/// Where the agent listens, and what stands in front of it.
const AGENT: u16 = 7420;
const FRONT: u16 = 7421;

/// Frames as `ropewalk_proto::wire` draws them.
const HEADER: usize = 24;
const GRANT: u8 = 1;
const DATA: u8 = 2;
const CANCEL: u8 = 5;
const HELD: u8 = 13;
const HASH: u8 = 2;

/// The first 128 bytes of a connection: the kind of one that is a data stream, and what such a one has where it only looks for a way.
const PREFACE: usize = 128;
const KIND_AT: usize = 6;
const JOIN: u8 = 3;
const RAIL_AT: usize = 72 + 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// A byte of each frame is another one.
    Bytes,
    /// It says that it has everything.
    Announcements,
}

/// CRC-64/NVME, bit by bit.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| {
        (0..8).fold(sum ^ u64::from(*byte), |sum, _| {
            (sum >> 1) ^ ((sum & 1) * 0x9a6c_9329_ac4b_c9b5)
        })
    };
    !bytes.iter().fold(!0, step)
}

/// Passes frames of the agent on, changed.
fn tell(lie: Lie, mut from: TcpStream, mut to: TcpStream) -> std::io::Result<()> {
    // Hashes of units that are under way, by their grants.
    let mut units: HashMap<[u8; 4], blake3::Hasher> = HashMap::new();
    loop {
        let mut frame = vec![0; HEADER];
        from.read_exact(&mut frame)?;
        let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap()) as usize;
        let (kind, flags, length) = (frame[0], frame[1], word(4));
        let grant: [u8; 4] = frame[16..20].try_into().unwrap();
        let payload = match kind {
            GRANT | CANCEL => 0,
            _ => length,
        };
        let has_hash = kind == DATA && flags & HASH != 0;
        let body = payload + if has_hash { 32 } else { 0 };
        frame.resize(HEADER + body + 8, 0);
        from.read_exact(&mut frame[HEADER..])?;
        if kind == DATA && lie == Lie::Bytes {
            frame[HEADER] ^= 1;
            let unit = units.entry(grant).or_default();
            unit.update(&frame[HEADER..HEADER + payload]);
            if has_hash {
                let hash = unit.finalize();
                frame[HEADER + payload..HEADER + body].copy_from_slice(hash.as_bytes());
                units.remove(&grant);
            }
        }
        if kind == HELD && lie == Lie::Announcements && payload > 0 {
            frame[HEADER..HEADER + 8].fill(0);
            frame[HEADER + 8..HEADER + 16].copy_from_slice(&(1_u64 << 40).to_le_bytes());
            // From a node that is none.
            frame[HEADER + 16..HEADER + 20].copy_from_slice(&77_u32.to_le_bytes());
        }
        let sum = checksum(&frame[..HEADER + body]);
        frame[HEADER + body..].copy_from_slice(&sum.to_le_bytes());
        to.write_all(&frame)?;
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn stand_between(lie: Lie, mut peer: TcpStream) -> std::io::Result<()> {
    let mut agent = TcpStream::connect((Ipv4Addr::LOCALHOST, AGENT))?;
    let mut preface = [0; PREFACE];
    peer.read_exact(&mut preface)?;
    agent.write_all(&preface)?;
    let is_stream = preface[KIND_AT] == JOIN && preface[RAIL_AT] == 0;
    let (asks, asked) = (peer.try_clone()?, agent.try_clone()?);
    std::thread::spawn(move || pass(asks, asked));
    match is_stream {
        true => {
            let end = peer.try_clone()?;
            let told = tell(lie, agent, peer);
            let _ = end.shutdown(Shutdown::Both);
            told
        }
        false => {
            pass(agent, peer);
            Ok(())
        }
    }
}

/// Something in front of the agent of a host, for some other hosts.
struct Front<'l> {
    lab: &'l Lab,
    host: &'l str,
    is_over: Arc<AtomicBool>,
}

impl<'l> Front<'l> {
    fn new(lab: &'l Lab, host: &'l str, others: &[&str], lie: Lie) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let begun = lab.in_network(host, move || {
            let front = TcpListener::bind((Ipv6Addr::UNSPECIFIED, FRONT)).unwrap();
            // Threads of this one are in the same network.
            std::thread::spawn(move || {
                for peer in front.incoming() {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::spawn(move || stand_between(lie, peer.unwrap()));
                }
            });
        });
        begun.unwrap();
        let addresses = others.iter().flat_map(|other| lab.addresses(other));
        let lines = addresses.map(|address| {
            let family = if address.is_ipv4() { "ip" } else { "ip6" };
            format!("{family} saddr {address} tcp dport {AGENT} redirect to :{FRONT}\n")
        });
        let lines: String = lines.collect();
        rules(
            lab,
            host,
            &format!(
                "table inet front {{\nchain in {{\ntype nat hook prerouting priority -100\n{lines}}}\n}}\n"
            ),
        );
        Self { lab, host, is_over }
    }
}

impl Drop for Front<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let poke = || drop(TcpStream::connect((Ipv4Addr::LOCALHOST, FRONT)));
        let _ = self.lab.in_network(self.host, poke);
    }
}

/// One that hands on other bytes is named, nothing more is taken from it and all copies are right, its own among them; one that says
/// it has everything holds nobody.
#[test]
fn a_receiver_that_lies_spoils_no_copy() {
    if ropewalk_lab::skip("a_receiver_that_lies_spoils_no_copy") {
        return;
    }
    const LEN: usize = 32 << 20;
    let lab = lab(&["a", "b1", "b2", "b3", "m"], 100_000_000);
    let data = bytes(LEN);
    std::fs::write(lab.path_in("a", "/data/set"), &data).unwrap();
    let agents = copies(&lab, &["a", "b1", "b2", "b3"]);
    for (lie, name) in [(Lie::Bytes, "bytes"), (Lie::Announcements, "announcements")] {
        let front = Front::new(&lab, "b1", &["b2", "b3"], lie);
        let to = format!("b[1-3]:7420:/data/{name}");
        let (status, report) = master(&lab, "m", &["copy", "--plain", "a:7420:/data/set", &to]);
        assert_eq!(status, Some(0), "{name}: {report:#}");
        for host in ["b1", "b2", "b3"] {
            let copy = std::fs::read(lab.path_in(host, format!("/data/{name}"))).unwrap();
            assert!(copy == data, "{name}: {host}");
        }
        let words = [
            "that b1 handed on are not those of a",
            "nothing more is taken from b1",
        ];
        assert_eq!(has_note(&report, &words), lie == Lie::Bytes, "{report:#}");
        drop(front);
        rules(&lab, "b1", "delete table inet front\n");
    }
    close(lab, agents);
}
