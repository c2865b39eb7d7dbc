//! One process of a stream: its start, the packets to it, its end.
//!
//! It leads a process group of its own, so that a program that it runs ends with it. It ends when its agent does: its socket of
//! packets closes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use parking_lot::Mutex;
use ropewalk_lane::mpi::launch::describe;
use ropewalk_lane::packets::{PACKET_MAX, Packet, Packets};
use ropewalk_proto::control::{self, ToStage, to_stage};
use ropewalk_proto::stage::NODES_MAX;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, kill_process_group};

use super::StageConfig;

/// Packets that wait for a process. Its start has one for each node at most, and each node connects to it once, or a few times
/// where connections break.
const WAITING_MAX: usize = 4 * NODES_MAX as usize;

/// Why a process is not sent a message.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("the commands of the stream have {0} bytes, more than {PACKET_MAX}; shorten them")]
    Setup(usize),
    #[error(
        "{name} has {length} bytes of addresses, more than {PACKET_MAX}; remove addresses from its interfaces"
    )]
    Addresses { name: String, length: usize },
    #[error("{WAITING_MAX} messages wait for it, and it reads none")]
    Full,
    #[error(transparent)]
    System(#[from] Error),
}

impl SendError {
    /// Of a message that no packet holds.
    fn too_long(body: Option<to_stage::Body>, length: usize) -> Self {
        match body {
            Some(to_stage::Body::Start(mut start)) => {
                let name = start.peers.pop().map(|peer| peer.name);
                let name = name.unwrap_or_default();
                Self::Addresses { name, length }
            }
            _ => Self::Setup(length),
        }
    }
}

/// A process, or one that has ended.
pub(super) struct Process {
    packets: Packets,
    // In order, while the socket is full.
    waiting: Mutex<VecDeque<(Vec<u8>, Option<OwnedFd>)>>,
    // `None` once it has ended.
    child: Mutex<Option<Child>>,
}

impl Process {
    /// Starts it; `file` is its standard output.
    pub fn start(config: &StageConfig, file: Option<File>) -> std::io::Result<Self> {
        let Some((program, words)) = config.command.split_first() else {
            return Err(Error::other("no command"));
        };
        let (packets, theirs) = Packets::pair()?;
        let child = Command::new(program)
            .args(words)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(file.map_or_else(Stdio::null, Stdio::from))
            .process_group(0)
            .spawn()?;
        Ok(Self::new(packets, Some(child)))
    }

    fn new(packets: Packets, child: Option<Child>) -> Self {
        Self {
            packets,
            waiting: Mutex::default(),
            child: Mutex::new(child),
        }
    }

    /// Sends a message, or keeps it for [`Process::flush`] while the process does not read: then it is true. Does not wait. That the
    /// process has ended is no error here; its watcher notices it.
    pub fn send(
        &self,
        body: to_stage::Body,
        descriptor: Option<OwnedFd>,
    ) -> Result<bool, SendError> {
        let message = ToStage { body: Some(body) };
        let bytes = control::encode(&message);
        if bytes.len() > PACKET_MAX {
            return Err(SendError::too_long(message.body, bytes.len()));
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING_MAX {
            return Err(SendError::Full);
        }
        waiting.push_back((bytes, descriptor));
        self.send_waiting(&mut waiting)?;
        Ok(!waiting.is_empty())
    }

    /// Sends what waits, as far as the process reads.
    pub fn flush(&self) -> std::io::Result<()> {
        self.send_waiting(&mut self.waiting.lock())
    }

    fn send_waiting(
        &self,
        waiting: &mut VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    ) -> std::io::Result<()> {
        while let Some((bytes, descriptor)) = waiting.front() {
            let descriptor = descriptor.as_ref().map(|descriptor| descriptor.as_fd());
            match self.packets.try_send(bytes, descriptor) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    waiting.clear();
                    let has_ended = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
                    return match has_ended.contains(&error.kind()) {
                        true => Ok(()),
                        false => Err(error),
                    };
                }
            }
            waiting.pop_front();
        }
        Ok(())
    }

    /// What it has sent.
    pub fn receive(&self) -> std::io::Result<Packet> {
        self.packets.receive()
    }

    /// What its watcher waits for: packets, its end, and space for those that wait.
    pub fn waited_for(&self) -> PollFd<'_> {
        let flags = match self.waiting.lock().is_empty() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        };
        PollFd::new(&self.packets, flags)
    }

    /// Kills it and its group.
    pub fn kill(&self) {
        if let Some(child) = self.child.lock().as_ref() {
            kill(child);
        }
    }

    /// As [`Process::kill`], and waits for it; how it ended, as part of a sentence. `None` where this was called before.
    pub fn end(&self) -> Option<String> {
        let mut child = self.child.lock().take()?;
        // Its program ends with it, while its number cannot be another's yet.
        kill(&child);
        let status = child.wait();
        Some(status.map_or_else(
            |error| error.to_string(),
            |status| describe("its process", status),
        ))
    }
}

/// Kills a process that leads its group, and all of the group.
fn kill(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_proto::control::{LENGTH_LEN, StageEdge};

    fn edge(node: u32) -> to_stage::Body {
        to_stage::Body::Edge(StageEdge {
            node,
            ..StageEdge::default()
        })
    }

    /// Many more connections than a socket holds packets reach a process that reads late, in order, each with its descriptor; the
    /// agent never waits for it.
    #[test]
    fn packets_wait_for_a_process_that_reads_late() {
        const EDGES: u32 = 600;
        let (packets, theirs) = Packets::pair().unwrap();
        let process = Process::new(packets, None);
        let mut has_waited = false;
        for node in 0..EDGES {
            let descriptor = File::open("/dev/null").unwrap().into();
            has_waited |= process.send(edge(node), Some(descriptor)).unwrap();
        }
        assert!(has_waited, "the socket holds all packets; send more");
        for node in 0..EDGES {
            process.flush().unwrap();
            let Packet::Bytes(bytes, Some(_)) = theirs.receive().unwrap() else {
                panic!("no connection of node {node}");
            };
            let message: ToStage = control::decode(&bytes[LENGTH_LEN..]).unwrap();
            assert_eq!(message.body, Some(edge(node)));
        }
        assert!(matches!(theirs.receive().unwrap(), Packet::Nothing));
    }

    /// What waits has a bound, and goes with the process.
    #[test]
    fn what_waits_is_bounded() {
        let (packets, theirs) = Packets::pair().unwrap();
        let process = Process::new(packets, None);
        let sent = (0..1 << 20).find_map(|node| process.send(edge(node), None).err());
        assert!(matches!(sent, Some(SendError::Full)), "{sent:?}");
        assert_eq!(process.waiting.lock().len(), WAITING_MAX);
        drop(theirs);
        // A process that another test just starts has the other end, too, until it is another program.
        while !process.waiting.lock().is_empty() {
            process.flush().unwrap();
            std::thread::yield_now();
        }
        assert!(!process.send(edge(0), None).unwrap());
    }
}
