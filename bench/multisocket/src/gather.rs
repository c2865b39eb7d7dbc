//! The receiver before anything moves: listens, distinguishes the sender's connections from others, gathers them.
//!
//! ```text
//!   accepted ── header ──▶ welcomed ── all there ──▶ gathered
//!      │          │            │
//!      │          │            └─ closed: the test is lost
//!      │          └─ other numbers: both sides say so; other run, version: refused
//!      └─ another magic, nothing in time, too many of them: closed, nothing changes
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use socket2::{Domain, Socket, Type};

use crate::address::{Address, Place, everywhere};
use crate::error::{MultisocketError, system};
use crate::options::{Shape, Test};
use crate::watch::{Watch, go_on};
use crate::wire::{self, Answer, HEADER_LEN, HEADER_MAGIC, Header, Partial, VERSION};

/// Longest time from a sender's first connection to its last.
pub(crate) const GATHER_MAX: Duration = Duration::from_secs(30);

/// Longest time for a header to come; strangers that say nothing keep a descriptor as long.
const HEADER_MAX: Duration = Duration::from_secs(5);

/// Connections without a header at once; beyond that the oldest is closed. Twice what a sender opens at once.
pub(crate) const ARRIVALS_MAX: usize = 256;

/// Connections that wait to be accepted; the system may have a lower bound of its own.
const BACKLOG: i32 = 4096;

/// Connections accepted from one port before others are looked at.
const ACCEPT_BATCH: usize = 64;

/// Watch numbers: ports from 0, welcomed connections from here, arrivals from the next.
const WELCOMED: u64 = 1 << 32;
const ARRIVED: u64 = 1 << 33;

/// Sockets that listen, the first port first; files that they made go with them.
#[derive(Debug)]
pub(crate) struct Listening {
    sockets: Vec<Socket>,
    files: Vec<PathBuf>,
    /// The first port's place, with the port that the system chose.
    pub(crate) place: String,
}

impl Drop for Listening {
    fn drop(&mut self) {
        for file in &self.files {
            // Somebody else may have tidied up.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Listening {
    /// Listens on every port of an address, or of the machine.
    pub(crate) fn start(listen: Option<&Address>, test: &Test) -> Result<Self, MultisocketError> {
        let ports = test.shape.ports;
        let Some(address) = listen else {
            let [dual, old] = everywhere(test.port, ports);
            return Self::at(&dual).or_else(|error| match &error {
                MultisocketError::Listen { source, .. } if has_no_ipv6(source) => Self::at(&old),
                _ => Err(error),
            });
        };
        let unknown = |source| MultisocketError::Address {
            address: address.to_string(),
            source,
        };
        let ways = address.ways(test.port, ports).map_err(unknown)?;
        match ways.first() {
            Some(places) => Self::at(places),
            None => Err(unknown(io::ErrorKind::NotFound.into())),
        }
    }

    fn at(places: &[Place]) -> Result<Self, MultisocketError> {
        let mut listening = Self {
            sockets: Vec::with_capacity(places.len()),
            files: Vec::new(),
            place: String::new(),
        };
        for place in places {
            let bound = listening.bind(place);
            bound.map_err(|source| MultisocketError::Listen {
                place: place.name.clone(),
                source,
            })?;
        }
        // The first port last: senders begin there, and then find the others open.
        for (socket, place) in listening.sockets.iter().zip(places).rev() {
            socket
                .listen(BACKLOG)
                .map_err(|source| MultisocketError::Listen {
                    place: place.name.clone(),
                    source,
                })?;
        }
        let first = listening.sockets.first();
        let chosen = first.and_then(|socket| socket.local_addr().ok()?.as_socket());
        listening.place = match (chosen, places.first()) {
            (Some(address), _) => address.to_string(),
            (None, place) => place.map_or_else(String::new, |place| place.name.clone()),
        };
        Ok(listening)
    }

    fn bind(&mut self, place: &Place) -> io::Result<()> {
        let domain = place.address.domain();
        let socket = Socket::new(domain, Type::STREAM, None)?;
        if domain == Domain::IPV6 {
            socket.set_only_v6(false)?;
        }
        if domain != Domain::UNIX {
            // Connections of the last test that linger must not keep the next one from starting.
            socket.set_reuse_address(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&place.address)?;
        self.files.extend(place.path.clone());
        self.sockets.push(socket);
        Ok(())
    }
}

fn has_no_ipv6(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
    )
}

/// Waits for all connections of one sender; gives them in the order of their indices.
///
/// # Errors
/// Nobody comes, not all come, one is lost, or the sender was started with other numbers.
pub(crate) fn gather(
    listening: &Listening,
    test: &Test,
    stop: &AtomicBool,
) -> Result<Vec<Socket>, MultisocketError> {
    let watching = system("watching connections");
    let mut gathering = Gathering {
        shape: test.shape,
        watch: Watch::new().map_err(&watching)?,
        arrivals: BTreeMap::new(),
        next: ARRIVED,
        welcomed: BTreeMap::new(),
        run: None,
    };
    for (port, socket) in listening.sockets.iter().enumerate() {
        let added = gathering.watch.add(socket, port as u64, EventFlags::IN);
        added.map_err(&watching)?;
    }
    let began = Instant::now();
    let mut first_at = None;
    let mut ready: Vec<u64> = Vec::new();
    while gathering.welcomed.len() < test.shape.connections() as usize {
        go_on(stop)?;
        ready.clear();
        ready.extend(gathering.watch.wait().map_err(&watching)?);
        for &token in &ready {
            match token {
                ARRIVED.. => gathering.read(token)?,
                WELCOMED.. => return Err(gathering.lost(token)),
                port => gathering.accept(&listening.sockets[port as usize], port as u32)?,
            }
        }
        gathering.close_silent();
        if gathering.run.is_some() {
            let first_at = *first_at.get_or_insert_with(Instant::now);
            if first_at.elapsed() > GATHER_MAX {
                return Err(MultisocketError::Incomplete {
                    came: gathering.welcomed.len(),
                    expected: test.shape.connections(),
                    seconds: GATHER_MAX.as_secs(),
                });
            }
        } else if began.elapsed() > test.wait {
            return Err(MultisocketError::NobodyCame {
                seconds: test.wait.as_secs(),
            });
        }
    }
    Ok(gathering.welcomed.into_values().collect())
}

/// A connection of which the header is not known yet.
#[derive(Debug)]
struct Arrival {
    socket: Socket,
    port: u32,
    header: Partial<HEADER_LEN>,
    since: Instant,
}

struct Gathering {
    shape: Shape,
    watch: Watch,
    // By watch number, which is the order of arrival.
    arrivals: BTreeMap<u64, Arrival>,
    next: u64,
    // By index.
    welcomed: BTreeMap<u32, Socket>,
    // The sender that came first.
    run: Option<u64>,
}

impl Gathering {
    /// Takes new connections from a port.
    fn accept(&mut self, listener: &Socket, port: u32) -> Result<(), MultisocketError> {
        for _ in 0..ACCEPT_BATCH {
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    // It went before it was taken.
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => continue,
                    _ => return Err(system("accepting a connection")(error)),
                },
            };
            socket
                .set_nonblocking(true)
                .map_err(system("setting up a connection"))?;
            // Unix sockets have no such option, and TCP works without it.
            let _ = socket.set_tcp_nodelay(true);
            let token = self.next;
            self.next += 1;
            let added = self.watch.add(&socket, token, EventFlags::IN);
            added.map_err(system("watching connections"))?;
            let arrival = Arrival {
                socket,
                port,
                header: Partial::new(HEADER_MAGIC),
                since: Instant::now(),
            };
            self.arrivals.insert(token, arrival);
            if self.arrivals.len() > ARRIVALS_MAX {
                self.arrivals.pop_first();
            }
            self.read(token)?;
        }
        Ok(())
    }

    /// Reads what has come of a header; a stranger's connection is closed.
    fn read(&mut self, token: u64) -> Result<(), MultisocketError> {
        let Some(arrival) = self.arrivals.get_mut(&token) else {
            return Ok(());
        };
        let header = match arrival.header.read(&arrival.socket) {
            Ok(None) => return Ok(()),
            Ok(Some(bytes)) => Some(Header::decode(&bytes)),
            Err(_) => None,
        };
        let (Some(header), Some(arrival)) = (header, self.arrivals.remove(&token)) else {
            return Ok(());
        };
        let Some(header) = header else {
            // Who does not read it is told nothing; either way the connection ends here.
            let _ = wire::write(
                &arrival.socket,
                &Answer::Version(VERSION).encode(self.shape),
            );
            return Ok(());
        };
        self.admit(arrival, header)
    }

    fn admit(&mut self, arrival: Arrival, header: Header) -> Result<(), MultisocketError> {
        let say = |answer: Answer| wire::write(&arrival.socket, &answer.encode(self.shape));
        if self.run.is_some_and(|run| run != header.run) {
            // As above: it is refused, whether it hears it or not.
            let _ = say(Answer::Busy);
            return Ok(());
        }
        if header.shape != self.shape {
            let _ = say(Answer::Differs);
            return Err(MultisocketError::Differs {
                sender: header.shape,
                receiver: self.shape,
            });
        }
        let is_awaited = header.index < self.shape.connections()
            && header.index / self.shape.connections_per_port == arrival.port
            && !self.welcomed.contains_key(&header.index);
        if !is_awaited {
            return Ok(());
        }
        if let Err(source) = say(Answer::Welcome) {
            return Err(self.gone(header.index, source));
        }
        self.run = Some(header.run);
        let token = WELCOMED + u64::from(header.index);
        let changed = self.watch.change(&arrival.socket, token, EventFlags::RDHUP);
        changed.map_err(system("watching connections"))?;
        self.welcomed.insert(header.index, arrival.socket);
        Ok(())
    }

    /// Closes connections that have said nothing for too long; they came in this order.
    fn close_silent(&mut self) {
        while let Some(oldest) = self.arrivals.first_entry()
            && oldest.get().since.elapsed() > HEADER_MAX
        {
            oldest.remove();
        }
    }

    /// The error for a welcomed connection that closed before the others were there.
    fn lost(&self, token: u64) -> MultisocketError {
        let index = (token - WELCOMED) as u32;
        self.gone(index, wire::closed())
    }

    fn gone(&self, index: u32, source: io::Error) -> MultisocketError {
        MultisocketError::Lost {
            index,
            connections: self.shape.connections(),
            moved: 0,
            expected: self.shape.connection_bytes(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ANSWER_LEN, ANSWER_MAGIC};
    use std::io::{Read as _, Write as _};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixStream};

    const RUN: u64 = 7;

    fn test(connections: u32) -> Test {
        Test {
            role: crate::Role::Receive { listen: None },
            shape: Shape {
                connections_per_port: connections,
                ports: 1,
                block_len: 10,
                blocks: 1,
            },
            port: 1,
            wait: Duration::from_secs(30),
            threads: None,
        }
    }

    /// A peer's own connection to the gathering.
    struct Peer(UnixStream);

    impl Peer {
        fn new(name: &str) -> Self {
            let address = SocketAddr::from_abstract_name(name).unwrap();
            Self(UnixStream::connect_addr(&address).unwrap())
        }

        fn says(mut self, header: Header) -> Self {
            self.0.write_all(&header.encode()).unwrap();
            self
        }

        /// The next answer; `None` when the connection was closed instead.
        fn hears(&mut self) -> Option<Answer> {
            let mut bytes = [0; ANSWER_LEN];
            self.0.read_exact(&mut bytes).ok()?;
            assert!(bytes.starts_with(ANSWER_MAGIC));
            Answer::decode(&bytes).map(|(answer, _)| answer)
        }
    }

    /// Runs `peers` beside a gathering; they get the name to connect to.
    fn gathered(
        connections: u32,
        peers: impl FnOnce(&str, Shape) + Send,
    ) -> Result<Vec<Socket>, MultisocketError> {
        let test = test(connections);
        let name = format!("ropewalk-gather-{}-{connections}", std::process::id());
        let address = Address::Abstract(name.clone());
        let listening = Listening::start(Some(&address), &test).unwrap();
        std::thread::scope(|scope| {
            let shape = test.shape;
            let name = &name;
            scope.spawn(move || peers(name, shape));
            gather(&listening, &test, &AtomicBool::new(false))
        })
    }

    /// Other runs, other versions, repeated and impossible indices, and what is no header at all are turned away; the
    /// test's own connections are gathered by index.
    #[test]
    fn only_the_test_s_own_are_gathered() {
        let sockets = gathered(2, |name, shape| {
            let header = |index, run| Header { index, run, shape };
            let mut noise = Peer::new(name);
            noise.0.write_all(b"GET / HTTP/1.1\r\n").unwrap();
            assert_eq!(noise.hears(), None);
            let mut old = Peer::new(name);
            let mut bytes = header(0, RUN).encode();
            bytes[8] += 1;
            old.0.write_all(&bytes).unwrap();
            assert_eq!(old.hears(), Some(Answer::Version(VERSION)));

            let mut second = Peer::new(name).says(header(1, RUN));
            assert_eq!(second.hears(), Some(Answer::Welcome));
            let mut other = Peer::new(name).says(header(0, RUN + 1));
            assert_eq!(other.hears(), Some(Answer::Busy));
            for index in [1, 2] {
                let mut odd = Peer::new(name).says(header(index, RUN));
                assert_eq!(odd.hears(), None, "index {index}");
            }
            let mut first = Peer::new(name).says(header(0, RUN));
            assert_eq!(first.hears(), Some(Answer::Welcome));
            second.0.write_all(b"2").unwrap();
            first.0.write_all(b"1").unwrap();
        })
        .unwrap();
        let bytes: Vec<u8> = sockets
            .into_iter()
            .map(|mut socket| {
                socket.set_nonblocking(false).unwrap();
                let mut byte = [0];
                socket.read_exact(&mut byte).unwrap();
                byte[0]
            })
            .collect();
        assert_eq!(bytes, b"12");
    }

    /// Connections beyond what may be without a header push out the oldest of them, not the test's.
    #[test]
    fn silent_strangers_are_bounded() {
        let sockets = gathered(1, |name, shape| {
            let mut silent: Vec<Peer> = (0..=ARRIVALS_MAX).map(|_| Peer::new(name)).collect();
            assert_eq!(silent[0].hears(), None);
            let mut own = Peer::new(name).says(Header {
                index: 0,
                run: RUN,
                shape,
            });
            assert_eq!(own.hears(), Some(Answer::Welcome));
        });
        assert_eq!(sockets.unwrap().len(), 1);
    }

    /// A sender that goes before its last connection has come is missed at once.
    #[test]
    fn a_sender_that_goes_is_missed() {
        let error = gathered(3, |name, shape| {
            let mut first = Peer::new(name).says(Header {
                index: 0,
                run: RUN,
                shape,
            });
            assert_eq!(first.hears(), Some(Answer::Welcome));
        })
        .unwrap_err();
        assert!(
            matches!(error, MultisocketError::Lost { index: 0, .. }),
            "{error}"
        );
    }
}
