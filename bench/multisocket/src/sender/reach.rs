//! Reaching the receiver: every address that its name has, all of them again until it listens.
//!
//! Ways are begun one after the other with a short head start each, and the first that connects wins, so that an
//! address that swallows everything does not use up the time of those behind it (RFC 8305 does the same).

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use socket2::Socket;

use super::{ANSWER_MAX, CONNECT_MAX, Caller, Missed, Outgoing, expect};
use crate::address::{Address, Place};
use crate::error::MultisocketError;
use crate::watch::{go_on, wait_for_any};
use crate::wire::Answer;

/// Pause between attempts to reach a receiver that does not listen yet.
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// How long a way is tried before the next one is begun beside it.
const HEAD_START: Duration = Duration::from_millis(250);

impl Caller<'_> {
    /// Opens the first connection, trying every way again until the receiver welcomes it; gives the way's places, too.
    pub(super) fn reach(
        &self,
        host: &Address,
        ways: &[Vec<Place>],
        wait: Duration,
    ) -> Result<(Outgoing, Vec<Place>), MultisocketError> {
        let until = Instant::now() + wait;
        let mut last = None;
        loop {
            match self.first_of(ways, until, &mut last) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
            if Instant::now() + RETRY_EVERY > until {
                break;
            }
            go_on(self.stop)?;
            thread::sleep(RETRY_EVERY);
        }
        let unknown = || (host.to_string(), io::ErrorKind::NotFound.into());
        let (place, source) = last.unwrap_or_else(unknown);
        Err(MultisocketError::Connect {
            place,
            seconds: wait.as_secs(),
            source,
        })
    }

    /// Tries every way once; `last` is what went wrong.
    fn first_of(
        &self,
        ways: &[Vec<Place>],
        until: Instant,
        last: &mut Option<(String, io::Error)>,
    ) -> Result<Option<(Outgoing, Vec<Place>)>, MultisocketError> {
        let until = until.min(Instant::now() + CONNECT_MAX);
        let mut ahead = ways.iter().filter(|places| !places.is_empty());
        let mut begun: Vec<(&Vec<Place>, Socket)> = Vec::new();
        let mut is_more = true;
        while is_more || !begun.is_empty() {
            let next_at = match ahead.next() {
                Some(places) => {
                    match self.start(&places[0]) {
                        Ok(socket) => begun.push((places, socket)),
                        Err(error) => *last = Some((places[0].name.clone(), error)),
                    }
                    until.min(Instant::now() + HEAD_START)
                }
                None => {
                    is_more = false;
                    until
                }
            };
            // Until one connects, all have failed, or it is the next one's turn.
            while !begun.is_empty() {
                let Some(at) = self.first_ready(&begun, next_at)? else {
                    break;
                };
                let (places, socket) = begun.remove(at);
                match self.welcomed(socket, &places[0]) {
                    Ok(connection) => return Ok(Some((connection, places.clone()))),
                    Err(Missed::Never(error)) => return Err(error),
                    Err(Missed::NotYet(error)) => *last = Some((places[0].name.clone(), error)),
                }
            }
            if !begun.is_empty() && Instant::now() >= until {
                let late = io::Error::from(io::ErrorKind::TimedOut);
                *last = Some((begun[0].0[0].name.clone(), late));
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Which of the sockets is the first to be connected, or to have failed; `None` when none is in time.
    fn first_ready(
        &self,
        begun: &[(&Vec<Place>, Socket)],
        until: Instant,
    ) -> Result<Option<usize>, MultisocketError> {
        let sockets: Vec<&Socket> = begun.iter().map(|(_, socket)| socket).collect();
        wait_for_any(&sockets, PollFlags::OUT, until, self.stop)
    }

    fn welcomed(&self, socket: Socket, place: &Place) -> Result<Outgoing, Missed> {
        if let Some(error) = socket.take_error()? {
            return Err(error.into());
        }
        // Connecting to a free port of this machine can meet itself.
        let ends = (socket.local_addr()?, socket.peer_addr()?);
        if ends.0 == ends.1 && !place.address.is_unix() {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        let mut connection = self.introduce(socket, 0)?;
        match self.answer(&mut connection, &place.name, Instant::now() + ANSWER_MAX) {
            Ok(answer) => {
                expect(answer, Answer::Welcome, &place.name)?;
                Ok(connection)
            }
            // A receiver that is just ending closes what it has not accepted.
            Err(MultisocketError::Lost { source, .. }) => Err(source.into()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::atomic::AtomicBool;

    use socket2::{Domain, Type};

    use crate::options::Shape;
    use crate::wire::HEADER_LEN;

    fn way(address: std::net::SocketAddr) -> Vec<Place> {
        vec![Place::inet(address)]
    }

    /// An address that swallows every packet does not use up the time of the next.
    #[test]
    fn a_black_hole_holds_nobody() {
        let shape = Shape {
            connections_per_port: 1,
            ports: 1,
            block_len: 10,
            blocks: 1,
        };
        let stop = AtomicBool::new(false);
        let caller = Caller {
            shape,
            run: 1,
            stop: &stop,
        };
        // A full queue drops what comes.
        let hole = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        hole.bind(&any.into()).unwrap();
        hole.listen(0).unwrap();
        let swallows = hole.local_addr().unwrap().as_socket().unwrap();
        let crowd: Vec<Socket> = (0..4)
            .map(|_| caller.start(&way(swallows)[0]).unwrap())
            .collect();
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let answers = good.local_addr().unwrap();
        let peer = thread::spawn(move || {
            let (mut stream, _) = good.accept().unwrap();
            stream.read_exact(&mut [0; HEADER_LEN]).unwrap();
            stream.write_all(&Answer::Welcome.encode(shape)).unwrap();
            stream
        });
        let host: Address = "localhost".parse().unwrap();
        let ways = [way(swallows), way(answers)];
        let wait = Duration::from_secs(8);
        let (_connection, places) = caller.reach(&host, &ways, wait).unwrap();
        assert_eq!(places[0].name, answers.to_string());
        peer.join().unwrap();
        drop(crowd);
    }
}
