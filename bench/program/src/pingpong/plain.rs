//! Plain TCP beside the message socket: one connection on the first rail, and one on each rail with an equal part of
//! every message. The connections of the parts are driven by one thread, so that it need not wake another.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::order::{self, PLAIN_LEN, PlainOrder};
use super::{PATIENCE, SIZE_MAX};

/// Bytes that the end of a one-way stream reads at a time.
const SINK_LEN: usize = 1 << 20;

/// How long a plain connection may be idle before the kernel asks whether the other host is there, and asks again.
const ALIVE: Duration = Duration::from_secs(10);

/// Connects to a plain port of the serving end, from a local address if one is given, and shows the ticket.
pub(super) fn connect(local: Option<IpAddr>, peer: SocketAddr, ticket: &[u8]) -> Result<TcpStream> {
    let connect = || -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(local) = local {
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        socket.connect_timeout(&peer.into(), PATIENCE)?;
        let mut stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(ticket)?;
        Ok(stream)
    };
    connect().with_context(|| format!("cannot connect to {peer} for plain TCP"))
}

/// Answers what comes on a plain connection until it ends.
pub(super) fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // A host that goes without a word ends this, however long the wait for its next order.
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(ALIVE).with_interval(ALIVE))?;
    socket.set_tcp_user_timeout(Some(PATIENCE))?;
    loop {
        let mut order = [0; PLAIN_LEN];
        stream.read_exact(&mut order)?;
        let PlainOrder { size, stream: many } = PlainOrder::decode(&order);
        if !(1..=SIZE_MAX).contains(&size) {
            bail!("a size of {size}");
        }
        if many > 0 {
            let mut room = vec![0; SINK_LEN];
            let mut left = size.checked_mul(many).context("too many bytes")?;
            while left > 0 {
                let most = usize::try_from(left).map_or(SINK_LEN, |left| left.min(SINK_LEN));
                match stream.read(&mut room[..most])? {
                    0 => bail!("the stream ended early"),
                    count => left -= count as u64,
                }
            }
            stream.write_all(&[1])?;
            continue;
        }
        let mut room = order::room(size)?;
        loop {
            stream.read_exact(&mut room)?;
            stream.write_all(&room)?;
            if room[0] == 1 {
                break;
            }
        }
    }
}

/// One connection for each rail.
pub(super) struct Split {
    streams: Vec<TcpStream>,
}

/// How far one connection is with its part of a message.
struct Part {
    range: Range<usize>,
    sent: usize,
    received: usize,
}

impl Split {
    /// Takes connections that are ready for orders.
    pub(super) fn new(streams: Vec<TcpStream>) -> Result<Self> {
        for stream in &streams {
            stream.set_nonblocking(true)?;
        }
        Ok(Self { streams })
    }

    /// Equal parts, the first ones longer by a byte where they do not come out even.
    fn parts(&self, size: usize) -> Vec<Range<usize>> {
        let (each, more) = (size / self.streams.len(), size % self.streams.len());
        let edge = |part: usize| part * each + part.min(more);
        (0..self.streams.len())
            .map(|part| edge(part)..edge(part + 1))
            .collect()
    }

    /// Orders what comes next for every connection that gets a part.
    pub(super) fn order(&mut self, size: usize, stream: u64) -> Result<()> {
        let parts = self.parts(size);
        for (connection, part) in self.streams.iter_mut().zip(parts) {
            let order = PlainOrder {
                size: part.len() as u64,
                stream,
            };
            if !part.is_empty() {
                // The peer has read everything before: there is room for a few bytes.
                connection.write_all(&order.encode())?;
            }
        }
        Ok(())
    }

    /// Sends a message in parts and waits until all of them are back.
    pub(super) fn round(&mut self, message: &mut [u8], last: bool) -> Result<()> {
        let mut parts: Vec<Part> = Vec::with_capacity(self.streams.len());
        for range in self.parts(message.len()) {
            if let Some(first) = message[range.clone()].first_mut() {
                *first = u8::from(last);
            }
            parts.push(Part {
                range,
                sent: 0,
                received: 0,
            });
        }
        loop {
            let mut waits = Vec::new();
            for (stream, part) in self.streams.iter_mut().zip(&mut parts) {
                let own = &mut message[part.range.clone()];
                advance(&mut part.sent, own.len(), |from| stream.write(&own[from..]))?;
                if part.sent < own.len() {
                    waits.push((&*stream, PollFlags::OUT));
                    continue;
                }
                advance(&mut part.received, own.len(), |from| {
                    stream.read(&mut own[from..])
                })?;
                if part.received < own.len() {
                    waits.push((&*stream, PollFlags::IN));
                }
            }
            if waits.is_empty() {
                return Ok(());
            }
            wait(&waits)?;
        }
    }

    /// Sends a message so many times, its parts side by side, and waits until the peer has read all of them.
    pub(super) fn stream(&mut self, message: &[u8], many: u64) -> Result<()> {
        let ranges = self.parts(message.len());
        let mut left: Vec<(Range<usize>, u64, usize, bool)> = ranges
            .into_iter()
            .map(|range| (range.clone(), many, 0, range.is_empty()))
            .collect();
        loop {
            let mut waits = Vec::new();
            for (stream, (range, many, sent, done)) in self.streams.iter_mut().zip(&mut left) {
                let own = &message[range.clone()];
                while !*done && *many > 0 {
                    advance(sent, own.len(), |from| stream.write(&own[from..]))?;
                    if *sent < own.len() {
                        break;
                    }
                    (*many, *sent) = (*many - 1, 0);
                }
                if *done {
                    continue;
                }
                if *many > 0 {
                    waits.push((&*stream, PollFlags::OUT));
                    continue;
                }
                let mut answer = 0;
                advance(&mut answer, 1, |_| stream.read(&mut [0]))?;
                if answer == 0 {
                    waits.push((&*stream, PollFlags::IN));
                }
                *done = answer == 1;
            }
            if waits.is_empty() {
                return Ok(());
            }
            wait(&waits)?;
        }
    }
}

/// Repeats a call that moves bytes until it would block or all are moved.
fn advance(
    done: &mut usize,
    all: usize,
    mut call: impl FnMut(usize) -> io::Result<usize>,
) -> Result<()> {
    while *done < all {
        match call(*done) {
            Ok(0) => bail!("the peer has closed a plain connection"),
            Ok(count) => *done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("a plain connection broke"),
        }
    }
    Ok(())
}

fn wait(waits: &[(&TcpStream, PollFlags)]) -> Result<()> {
    let mut fds: Vec<PollFd<'_>> = waits
        .iter()
        .map(|(stream, flags)| PollFd::new(*stream, *flags))
        .collect();
    match poll(&mut fds, Some(&Timespec::try_from(PATIENCE)?)) {
        Ok(0) => bail!("plain TCP moved nothing for {} s", PATIENCE.as_secs()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for plain TCP"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (own, listener.accept().unwrap().0)
    }

    /// Messages of any size come back whole from two answering ends, and a stream is taken whole by both.
    #[test]
    fn parts_go_and_come() {
        let (pairs, ends): (Vec<_>, Vec<_>) = (0..2).map(|_| pair()).unzip();
        let ends: Vec<_> = ends
            .into_iter()
            .map(|end| std::thread::spawn(|| answer(end)))
            .collect();
        let mut split = Split::new(pairs).unwrap();
        assert_eq!(split.parts(5), [0..3, 3..5]);
        for size in [1, 2, 5, 3 << 20] {
            let mut message: Vec<u8> = (0..size).map(|byte| (byte % 251) as u8).collect();
            split.order(size, 0).unwrap();
            for last in [false, true] {
                let mut sent = message.clone();
                split.round(&mut sent, last).unwrap();
                let edges: Vec<usize> = split.parts(size).iter().map(|part| part.start).collect();
                for edge in edges.iter().filter(|edge| **edge < size) {
                    message[*edge] = u8::from(last);
                }
                assert!(sent == message, "{size}");
            }
        }
        split.order(1 << 20, 3).unwrap();
        split.stream(&vec![7; 1 << 20], 3).unwrap();
        split.order(1, 2).unwrap();
        split.stream(&[7], 2).unwrap();
        drop(split);
        for end in ends {
            assert!(end.join().unwrap().is_err(), "ends with its connection");
        }
    }
}
