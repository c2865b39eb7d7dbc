//! The sending side: connects, hands over blocks, waits until the receiver has confirmed all of them.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;
use rustix::net::{SendFlags, send as send_bytes};
use socket2::{Domain, Socket, Type};

use crate::address::{Address, Place};
use crate::error::{MultisocketError, system};
use crate::flow::{self, Halt};
use crate::gather::GATHER_MAX;
use crate::options::{Shape, Test};
use crate::report::Report;
use crate::sys;
use crate::watch::{Watch, go_on, wait_for};
use crate::wire::{self, ANSWER_LEN, ANSWER_MAGIC, Answer, Header, Partial, VERSION};

mod reach;

/// Longest time of one attempt to connect; a lost first packet is sent again after 1, 3 and 7 seconds.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Longest time for the receiver to answer a header.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Connections that are opened at once; the receiver bounds those whose header it does not have yet.
const BATCH: u32 = 128;

/// Bytes sent over one connection before the thread looks at its others.
const TURN_LEN: u64 = 1 << 20;

/// Bytes that TCP may hold of one connection to this very machine, where no distance needs more. What sockets hold by
/// themselves does not fit into the processor's cache: blocks of 1 MiB over one connection moved at 18 Gbit/s, and at 49
/// with this, for a third of the processor time. Twice as much gained half as much.
const LOCAL_BUFFER_LEN: usize = 128 << 10;

/// Bytes that Unix sockets may hold unread, all connections together, and for one of them. Their default of 208 KiB
/// makes sender and receiver take turns.
const UNIX_BUFFERS_LEN: usize = 128 << 20;
const UNIX_BUFFER_LEN_MAX: usize = 4 << 20;

/// One connection.
#[derive(Debug)]
struct Outgoing {
    socket: Socket,
    index: u32,
    answer: Partial<ANSWER_LEN>,
    left: u64,
    seconds: f64,
}

/// Sends what `test` says to `host`.
///
/// `stop` ends it early.
///
/// # Errors
/// No process listens, the receiver refuses, a connection is lost, or nothing moves for too long.
pub fn send(test: &Test, host: &Address, stop: &AtomicBool) -> Result<Report, MultisocketError> {
    let shape = test.shape;
    flow::allow_descriptors(shape.connections(), test.thread_count() as u64)?;
    let ways = host
        .ways(test.port, shape.ports)
        .map_err(|source| MultisocketError::Address {
            address: host.to_string(),
            source,
        })?;
    let caller = Caller {
        shape,
        // Unlike any other run's, which is all that counts.
        run: RandomState::new().hash_one(shape.bytes()),
        stop,
    };
    let (first, places) = caller.reach(host, &ways, test.wait)?;
    let place = places.first().map(|place| place.name.clone());
    let place = place.unwrap_or_default();
    let connections = caller.connect_all(first, &places)?;

    let block = block(shape.block_len);
    let began = Instant::now();
    let connections = flow::run(connections, test.thread_count(), stop, |share, halt| {
        Round {
            caller: &caller,
            block: &block,
            place: &place,
            began,
        }
        .drive(share, halt)
    })?;
    let times = connections.iter().map(|connection| connection.seconds);
    Ok(Report::new(test, place, began.elapsed(), times))
}

/// Bytes that no link can compress away.
fn block(len: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while bytes.len() < len as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

/// How an attempt to reach the receiver ended without a connection.
enum Missed {
    /// It may listen a little later.
    NotYet(io::Error),
    /// Trying again would not help.
    Never(MultisocketError),
}

impl From<MultisocketError> for Missed {
    fn from(error: MultisocketError) -> Self {
        Self::Never(error)
    }
}

impl From<io::Error> for Missed {
    fn from(error: io::Error) -> Self {
        Self::NotYet(error)
    }
}

/// Who connects.
#[derive(Debug)]
struct Caller<'s> {
    shape: Shape,
    run: u64,
    stop: &'s AtomicBool,
}

impl Caller<'_> {
    /// Begins to connect. Unix sockets connect at once, or wait for room in the receiver's queue.
    fn start(&self, place: &Place) -> io::Result<Socket> {
        let domain = place.address.domain();
        let socket = Socket::new(domain, Type::STREAM, None)?;
        if domain == Domain::UNIX {
            socket.set_write_timeout(Some(CONNECT_MAX))?;
            let share = UNIX_BUFFERS_LEN / self.shape.connections() as usize;
            let default = socket.send_buffer_size()?;
            if share.min(UNIX_BUFFER_LEN_MAX) > default {
                socket.set_send_buffer_size(share.min(UNIX_BUFFER_LEN_MAX))?;
            }
            socket.connect(&place.address)?;
            socket.set_nonblocking(true)?;
        } else {
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            match socket.connect(&place.address) {
                Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
                result => result?,
            }
        }
        Ok(socket)
    }

    /// Waits until a connection that was begun is there.
    fn finish(&self, socket: &Socket, until: Instant) -> Result<(), Missed> {
        if !wait_for(socket, PollFlags::OUT, until, self.stop)? {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        match socket.take_error()? {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Says which connection it is.
    fn introduce(&self, socket: Socket, index: u32) -> io::Result<Outgoing> {
        let header = Header {
            index,
            run: self.run,
            shape: self.shape,
        };
        let ends = (
            socket.local_addr()?.as_socket(),
            socket.peer_addr()?.as_socket(),
        );
        // A host reaches its own addresses from the same address.
        if let (Some(near), Some(far)) = ends
            && near.ip() == far.ip()
        {
            socket.set_send_buffer_size(LOCAL_BUFFER_LEN)?;
        }
        wire::write(&socket, &header.encode())?;
        Ok(Outgoing {
            socket,
            index,
            answer: Partial::new(ANSWER_MAGIC),
            left: self.shape.connection_bytes(),
            seconds: 0.0,
        })
    }

    /// Opens the other connections, and waits until the receiver has all of them.
    fn connect_all(
        &self,
        first: Outgoing,
        places: &[Place],
    ) -> Result<Vec<Outgoing>, MultisocketError> {
        let count = self.shape.connections();
        let place = |index: u32| &places[(index / self.shape.connections_per_port) as usize];
        let unreached = |index: u32| {
            move |missed: Missed| match missed {
                Missed::Never(error) => error,
                Missed::NotYet(source) => MultisocketError::Connect {
                    place: place(index).name.clone(),
                    seconds: CONNECT_MAX.as_secs(),
                    source,
                },
            }
        };
        let mut connections = vec![first];
        let mut next = 1;
        while next < count {
            let batch = next..count.min(next + BATCH);
            next = batch.end;
            go_on(self.stop)?;
            let until = Instant::now() + CONNECT_MAX;
            let begin = |index: u32| {
                let begun = self.start(place(index)).map_err(Missed::from);
                Ok((index, begun.map_err(unreached(index))?))
            };
            let begun: Result<Vec<_>, MultisocketError> = batch.map(begin).collect();
            for (index, socket) in begun? {
                let opened = self.finish(&socket, until);
                let opened = opened.and_then(|()| Ok(self.introduce(socket, index)?));
                connections.push(opened.map_err(unreached(index))?);
            }
        }
        // For all of them: the receiver has had their headers for as long.
        let until = Instant::now() + ANSWER_MAX;
        for connection in connections.iter_mut().skip(1) {
            let name = &place(connection.index).name;
            let answer = self.answer(connection, name, until)?;
            expect(answer, Answer::Welcome, name)?;
        }
        let until = Instant::now() + GATHER_MAX + ANSWER_MAX;
        for connection in &mut connections {
            let name = &place(connection.index).name;
            let answer = self.answer(connection, name, until)?;
            expect(answer, Answer::Go, name)?;
        }
        Ok(connections)
    }

    /// Waits for the next answer; refusals are errors.
    fn answer(
        &self,
        connection: &mut Outgoing,
        place: &str,
        until: Instant,
    ) -> Result<Answer, MultisocketError> {
        loop {
            if let Some(answer) = self.read_answer(connection, place)? {
                return Ok(answer);
            }
            if !wait_for(&connection.socket, PollFlags::IN, until, self.stop)? {
                return Err(MultisocketError::Foreign {
                    place: place.into(),
                    why: "it does not answer",
                });
            }
        }
    }

    /// The next answer when it has come.
    fn read_answer(
        &self,
        connection: &mut Outgoing,
        place: &str,
    ) -> Result<Option<Answer>, MultisocketError> {
        let foreign = |why| MultisocketError::Foreign {
            place: place.into(),
            why,
        };
        let bytes = match connection.answer.read(&connection.socket) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(foreign("it says something else"));
            }
            Err(error) => return Err(self.lost(connection, error)),
        };
        match Answer::decode(&bytes) {
            None => Err(foreign("its answer cannot be read")),
            Some((Answer::Differs, receiver)) => Err(MultisocketError::Differs {
                sender: self.shape,
                receiver,
            }),
            Some((Answer::Busy, _)) => Err(MultisocketError::Busy {
                place: place.into(),
            }),
            Some((Answer::Version(theirs), _)) => Err(MultisocketError::Version {
                place: place.into(),
                theirs,
                ours: VERSION,
            }),
            Some((answer, _)) => Ok(Some(answer)),
        }
    }

    fn lost(&self, connection: &Outgoing, source: io::Error) -> MultisocketError {
        let moved = self.shape.connection_bytes() - connection.left;
        lost(self.shape, connection.index, moved, source)
    }
}

fn lost(shape: Shape, index: u32, moved: u64, source: io::Error) -> MultisocketError {
    MultisocketError::Lost {
        index,
        connections: shape.connections(),
        moved,
        expected: shape.connection_bytes(),
        source,
    }
}

fn expect(answer: Answer, expected: Answer, place: &str) -> Result<(), MultisocketError> {
    if answer == expected {
        return Ok(());
    }
    Err(MultisocketError::Foreign {
        place: place.into(),
        why: "its answers are in another order",
    })
}

/// The moving of bytes by one thread.
#[derive(Debug)]
struct Round<'r> {
    caller: &'r Caller<'r>,
    block: &'r [u8],
    place: &'r str,
    began: Instant,
}

impl Round<'_> {
    fn drive(&self, share: &mut [Outgoing], mut halt: Halt<'_>) -> Result<(), MultisocketError> {
        let watching = system("watching connections");
        let mut watch = Watch::new().map_err(&watching)?;
        for (at, connection) in share.iter().enumerate() {
            let added = watch.add(&connection.socket, at as u64, EventFlags::OUT);
            added.map_err(&watching)?;
        }
        let mut ready: Vec<u64> = Vec::new();
        let mut open = share.len();
        while open > 0 {
            ready.clear();
            ready.extend(watch.wait().map_err(&watching)?);
            let mut has_moved = false;
            for &token in &ready {
                let connection = &mut share[token as usize];
                if connection.left > 0 {
                    let sent = connection.fill(self.block);
                    has_moved |= sent.map_err(|error| self.caller.lost(connection, error))?;
                    if connection.left == 0 {
                        let changed = watch.change(&connection.socket, token, EventFlags::IN);
                        changed.map_err(&watching)?;
                    }
                } else if self.is_confirmed(connection)? {
                    connection.seconds = self.began.elapsed().as_secs_f64();
                    watch.remove(&connection.socket).map_err(&watching)?;
                    has_moved = true;
                    open -= 1;
                }
            }
            let held = || {
                let waiting = share.iter().filter(|connection| connection.seconds == 0.0);
                waiting.map(|one| sys::held_bytes(&one.socket)).sum()
            };
            halt.check(has_moved, held, || {
                let first = share.iter().find(|connection| connection.seconds == 0.0);
                (open, first.map_or(0, |connection| connection.index))
            })?;
        }
        Ok(())
    }

    /// Whether the receiver has said that it has everything.
    fn is_confirmed(&self, connection: &mut Outgoing) -> Result<bool, MultisocketError> {
        let Some(answer) = self.caller.read_answer(connection, self.place)? else {
            return Ok(false);
        };
        let sent = self.caller.shape.connection_bytes();
        match answer {
            Answer::Done(confirmed) if confirmed == sent => Ok(true),
            Answer::Done(confirmed) => Err(MultisocketError::Count {
                index: connection.index,
                sent,
                confirmed,
            }),
            other => expect(other, Answer::Done(sent), self.place).map(|()| true),
        }
    }
}

impl Outgoing {
    /// Sends until the socket is full, the connection has had its turn, or all is sent; says whether anything was.
    fn fill(&mut self, block: &[u8]) -> io::Result<bool> {
        let len = block.len() as u64;
        let before = self.left;
        while self.left > 0 && before - self.left < TURN_LEN {
            // What is left of a block that did not fit whole, or the next one.
            let rest = match self.left % len {
                0 => block,
                rest => &block[(len - rest) as usize..],
            };
            // Blocks that others follow need not travel alone: over one connection, 4 KiB move twice as fast.
            let mut flags = SendFlags::NOSIGNAL;
            flags.set(SendFlags::MORE, self.left > len);
            match send_bytes(&self.socket, rest, flags) {
                Ok(count) => {
                    self.left -= count as u64;
                    if count < rest.len() {
                        break;
                    }
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.left < before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    fn outgoing(left: u64) -> (Outgoing, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let connection = Outgoing {
            socket: Socket::from(std::os::fd::OwnedFd::from(near)),
            index: 0,
            answer: Partial::new(ANSWER_MAGIC),
            left,
            seconds: 0.0,
        };
        (connection, far)
    }

    /// A connection is done when the receiver has confirmed exactly what was sent, and nothing else counts for that.
    #[test]
    fn only_the_whole_is_confirmed() {
        let shape = Shape {
            connections_per_port: 1,
            ports: 1,
            block_len: 10,
            blocks: 3,
        };
        let stop = AtomicBool::new(false);
        let caller = Caller {
            shape,
            run: 1,
            stop: &stop,
        };
        let round = Round {
            caller: &caller,
            block: &[],
            place: "x",
            began: Instant::now(),
        };
        let hear = |answer: Option<Answer>| {
            let (mut connection, mut far) = outgoing(0);
            if let Some(answer) = answer {
                far.write_all(&answer.encode(shape)).unwrap();
            }
            round.is_confirmed(&mut connection)
        };
        assert!(hear(Some(Answer::Done(30))).unwrap());
        assert!(!hear(None).unwrap());
        let less = hear(Some(Answer::Done(29))).unwrap_err();
        let is_counted = matches!(
            less,
            MultisocketError::Count {
                sent: 30,
                confirmed: 29,
                ..
            }
        );
        assert!(is_counted, "{less}");
        let early = hear(Some(Answer::Go)).unwrap_err();
        assert!(matches!(early, MultisocketError::Foreign { .. }), "{early}");
    }

    /// Blocks that do not fit whole are continued where they were cut: the peer gets all of each, in order.
    #[test]
    fn cut_blocks_are_continued() {
        let block = block(100_003);
        let (mut connection, mut far) = outgoing(7 * block.len() as u64);
        let mut received = Vec::new();
        let mut piece = vec![0; 77_777];
        while connection.left > 0 || received.len() < 7 * block.len() {
            connection.fill(&block).unwrap();
            let count = far.read(&mut piece).unwrap();
            received.extend_from_slice(&piece[..count]);
        }
        assert!(received.chunks(block.len()).all(|part| part == block));
        assert_eq!(received.len(), 7 * block.len());
    }

    /// No two bytes of a block that follow each other tell the next one: links that compress gain nothing.
    #[test]
    fn blocks_do_not_repeat() {
        let block = block(4096);
        let zeros = block.iter().filter(|byte| **byte == 0).count();
        assert!(zeros < 100, "{zeros} zeros");
        assert_ne!(block[..2048], block[2048..]);
    }
}
