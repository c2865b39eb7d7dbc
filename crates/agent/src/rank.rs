//! How the agent of one transfer over MPI becomes a rank of `mpirun`, before it has threads.
//!
//! ```text
//!  command ── key and name of a seat ──▶ agent    listens under that name
//!  command ◀── "it waits" ────────────── agent    once all agents wait, the command starts mpirun
//!  mpirun  ── starts ──▶ rank ── place ─▶ agent    MPI_Init, which waits for all others
//! ```
//!
//! The rank ends when the agent does, and `mpirun` when all ranks have ended.

use std::io::{Read as _, stdin};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ropewalk_lane::mpi::join::{Place, RankKey};
use ropewalk_lane::preface::PREFACE_LEN;
use ropewalk_lane::{mpi, unix};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Signal, geteuid, getpid, kill_process};

use crate::AgentError;

/// The command, which waits for other agents first, has started `mpirun` by then. Less than it waits for an agent, so that it hears
/// the reason.
const RANK_TIMEOUT: Duration = Duration::from_secs(45);

/// What connects gives its place within this time.
const PLACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the place of a rank is waited for.
#[derive(Debug)]
pub struct Seat {
    key: RankKey,
    listener: UnixListener,
}

/// That this process is a rank, as long as it lives.
#[derive(Debug)]
pub struct Rank {
    // The process that mpirun has started waits for its end.
    _socket: UnixStream,
}

fn refused(text: impl Into<String>) -> AgentError {
    AgentError::Refused(text.into())
}

impl Seat {
    /// Listens for a rank.
    ///
    /// * `text`: what the command names the seat by, `KEY NAME`.
    ///
    /// # Errors
    /// [`AgentError::Refused`] where this is no seat, or the name is taken.
    pub fn listen(text: &str) -> Result<Self, AgentError> {
        let parts = text.split_once(' ');
        let parts = parts.and_then(|(key, name)| Some((RankKey::parse(key)?, name)));
        let (key, name) = parts.ok_or_else(|| refused("the seat of its rank cannot be read"))?;
        let listener = unix::listen(&unix::agent_name(name));
        let listener = listener
            .map_err(|error| refused(format!("it cannot listen for its rank of MPI: {error}")))?;
        Ok(Self { key, listener })
    }

    /// Waits for the rank and takes its place; returns when all ranks of its `mpirun` have done that. No other thread may use
    /// the environment meanwhile. Ends this process when the command at the other end of standard input ends.
    ///
    /// # Errors
    /// [`AgentError::Refused`] where no rank connects, the command has ended, or MPI does not start.
    pub fn take(self) -> Result<Rank, AgentError> {
        let until = Instant::now() + RANK_TIMEOUT;
        let (socket, place) = loop {
            self.wait(until)?;
            if let Ok(Some(taken)) = self.admit() {
                break taken;
            }
        };
        let begun = end_with_command();
        let started = mpi::start(place);
        begun.store(true, Ordering::Release);
        started.map_err(|error| refused(format!("--lane mpi: {error}")))?;
        Ok(Rank { _socket: socket })
    }

    /// Until a process connects.
    fn wait(&self, until: Instant) -> Result<(), AgentError> {
        let input = stdin();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = RANK_TIMEOUT.as_secs();
                return Err(refused(format!(
                    "mpirun started no rank within {seconds} s"
                )));
            }
            let left = Timespec::try_from(left).unwrap_or_default();
            let mut waited_for = [
                PollFd::new(&self.listener, PollFlags::IN),
                // Nothing is sent before it is a rank: only the end shows.
                PollFd::new(&input, PollFlags::empty()),
            ];
            match poll(&mut waited_for, Some(&left)) {
                Ok(_) if !waited_for[1].revents().is_empty() => {
                    return Err(refused("the command has ended"));
                }
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(refused(format!("its rank cannot be awaited: {error}"))),
            }
        }
    }

    /// The next process that connects, and its place; `None` and errors where it is not the rank.
    fn admit(&self) -> std::io::Result<Option<(UnixStream, Place)>> {
        let (mut socket, _) = self.listener.accept()?;
        if socket_peercred(&socket)?.uid != geteuid() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(PLACE_TIMEOUT))?;
        let mut preface = [0; PREFACE_LEN];
        socket.read_exact(&mut preface)?;
        if self.key.read(&preface).is_none() {
            return Ok(None);
        }
        let place = Place::receive(&socket)?;
        Ok(Some((socket, place)))
    }
}

/// Has this process killed when the command ends before the flag is set: `MPI_Init` waits for ranks that may never come.
fn end_with_command() -> Arc<AtomicBool> {
    let begun = Arc::new(AtomicBool::new(false));
    let seen = begun.clone();
    let watch = move || {
        while let Err(rustix::io::Errno::INTR) =
            poll(&mut [PollFd::new(&stdin(), PollFlags::empty())], None)
        {}
        if !seen.load(Ordering::Acquire) {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    };
    // Without a thread only the command's own limit ends it.
    let _ = std::thread::Builder::new()
        .name("input".into())
        .spawn(watch);
    begun
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_lane::preface::random_bytes;
    use std::io::Write as _;

    fn seat() -> (Seat, RankKey, Vec<u8>) {
        let key = RankKey::of(&[7; 32]);
        let name = format!("{:032x}-1", u128::from_be_bytes(random_bytes()));
        let seat = Seat::listen(&format!("{} {name}", key.text())).unwrap();
        (seat, key, unix::agent_name(&name))
    }

    /// Only a process that knows the key gives a place; others are passed over, and none keeps the seat from it.
    #[test]
    fn only_the_rank_gives_its_place() {
        let (seat, key, name) = seat();
        let mut stranger = unix::connect(&name).unwrap();
        let foreign = RankKey::of(&[8; 32]).ask([1; 16], 0);
        stranger.write_all(&foreign).unwrap();
        assert!(seat.admit().unwrap().is_none());
        drop(unix::connect(&name).unwrap());
        assert!(seat.admit().is_err());
        let mut rank = unix::connect(&name).unwrap();
        rank.write_all(&key.ask([1; 16], 0)).unwrap();
        let variables = [("PMI_RANK".into(), "1".into())];
        let own = Place::own("/lib/m.so".as_ref(), variables.into_iter());
        own.send(&rank).unwrap();
        let (_, place) = seat.admit().unwrap().unwrap();
        assert_eq!(place.variables, ["PMI_RANK=1"]);
    }

    /// What is no seat is refused.
    #[test]
    fn seats_are_read() {
        for text in ["", "x", "abc name", &"0".repeat(64)] {
            assert!(Seat::listen(text).is_err(), "{text}");
        }
    }
}
