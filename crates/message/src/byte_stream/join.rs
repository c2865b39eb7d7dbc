//! A byte stream and a TCP connection as one: what is read from either is written to the other.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;

use super::ByteStream;
use crate::MessageError;
use crate::threads::STACK_LEN;

/// Bytes passed on at once: what a record of the socket and a program's buffer hold.
const SPACE_LEN: usize = 128 << 10;

/// How often a wait for one of the two looks whether the other is over: data and its ends are noticed at once without.
const LOOK: Duration = Duration::from_secs(5);

/// How long a program that sends what has nowhere to go may take to read what was sent to it.
const LINGER: Duration = Duration::from_secs(30);

/// Bytes that were passed on so far.
#[derive(Debug, Default)]
pub struct Passed {
    /// From TCP connections to streams.
    pub to_stream: AtomicU64,
    /// From streams to TCP connections.
    pub from_stream: AtomicU64,
}

impl ByteStream {
    /// Passes on what the TCP connection and this stream deliver, until both ways have ended. Each way ends by itself; what resets or breaks
    /// one of the two resets the other. Takes a thread beside the caller's.
    ///
    /// * `code`: as of [`reset`](Self::reset), for what is the TCP connection's fault.
    ///
    /// # Errors
    /// What ended it before both ways had.
    pub fn join(self, socket: TcpStream, code: u32, passed: &Passed) -> io::Result<()> {
        let joint = Joint {
            stream: self,
            socket,
            code,
            passed,
            is_broken: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
        };
        // Until both ways have ended, whatever closes it resets the connection, also the kernel when this process is killed: its program must not
        // take a part for the whole.
        let prepared = joint.prepare();
        let prepared = prepared.inspect_err(|error| joint.break_off(error));
        let ended = prepared.and_then(|()| joint.run());
        if joint.is_ended.load(Ordering::Acquire) {
            // Its program gets all of it, whatever became of the other way.
            let kept = SockRef::from(&joint.socket).set_linger(None);
            return ended.and(kept);
        }
        ended
    }
}

struct Joint<'a> {
    stream: ByteStream,
    socket: TcpStream,
    code: u32,
    passed: &'a Passed,
    /// One way has failed: the other one ends without an end.
    is_broken: AtomicBool,
    /// All of the stream was written to the TCP connection: what ends there now is no reset that a write has learned of.
    is_ended: AtomicBool,
}

impl Joint<'_> {
    fn prepare(&self) -> io::Result<()> {
        SockRef::from(&self.socket).set_linger(Some(Duration::ZERO))?;
        self.socket.set_nonblocking(false)?;
        self.socket.set_nodelay(true)?;
        self.socket.set_read_timeout(Some(LOOK))?;
        self.socket.set_write_timeout(Some(LOOK))?;
        // Best effort: a program whose host is gone without notice shows after two hours, as the system has it.
        let _ = SockRef::from(&self.socket).set_keepalive(true);
        Ok(())
    }

    fn run(&self) -> io::Result<()> {
        thread::scope(|scope| {
            let sending = thread::Builder::new().name("bytes-out".to_owned());
            let sending = sending.stack_size(STACK_LEN).spawn_scoped(scope, || {
                self.send().inspect_err(|error| self.break_off(error))
            });
            let sending = sending.inspect_err(|error| self.break_off(error))?;
            let received = self.receive().inspect_err(|error| self.break_off(error));
            let sent = sending.join().unwrap_or_else(|_| {
                let error = io::Error::other("a thread of the connection panicked");
                self.break_off(&error);
                Err(error)
            });
            // The first cause stands; the other way only follows.
            received.and(sent)
        })
    }

    /// Ends both ways.
    fn break_off(&self, error: &io::Error) {
        self.is_broken.store(true, Ordering::Release);
        // Nothing is sent for a stream that is over already.
        self.stream.reset(self.code, &error.to_string());
        // Wakes the thread that reads, and sends nothing.
        let _ = self.socket.shutdown(Shutdown::Read);
    }

    fn check(&self, is_over: bool) -> io::Result<()> {
        match is_over || self.is_broken.load(Ordering::Acquire) {
            true => Err(ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }

    /// While no thread reads or writes the TCP connection: whether its program has reset it. Its error stays there for those that do.
    fn check_socket(&self) -> io::Result<()> {
        let mut asked = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut asked, Some(&Timespec::default()));
        match polled.is_ok() && asked[0].revents().contains(PollFlags::ERR) {
            true => Err(ErrorKind::ConnectionReset.into()),
            false => self.check(false),
        }
    }

    /// Whether an end that was read is that of a reset. The system reports a reset once, here to the thread that writes, and an end from then on; the
    /// connection is then over both ways, which it is otherwise only when this end has ended its way.
    fn is_reset(&self) -> bool {
        let mut asked = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut asked, Some(&Timespec::default()));
        let is_over = polled.is_ok() && asked[0].revents().contains(PollFlags::HUP);
        is_over && !self.is_ended.load(Ordering::Acquire)
    }

    fn write_stream(&self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.stream.write_until(rest, next_look()) {
                Ok(count) => rest = &rest[count..],
                Err(MessageError::Deadline) => self.check_socket()?,
                Err(error) => return Err(error.into_io()),
            }
        }
        Ok(())
    }

    fn read_stream(&self, space: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read_until(space, next_look()) {
                Err(MessageError::Deadline) => self.check_socket()?,
                read => return read.map_err(MessageError::into_io),
            }
        }
    }

    /// What the program sends has nowhere to go. It is read all the same until the program has ended: closed with bytes that are unread, or that arrive after,
    /// the connection would be reset, and what is on its way to the program lost. At most [`LINGER`], and [`LOOK`] of silence, after the other way has ended.
    fn discard(&self, space: &mut [u8]) {
        let mut until = None;
        while self.check(false).is_ok() {
            if self.is_ended.load(Ordering::Acquire) {
                let until = *until.get_or_insert_with(|| Instant::now() + LINGER);
                if Instant::now() >= until {
                    break;
                }
            }
            match (&self.socket).read(space) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if is_wait(&error) && until.is_none() => {}
                Err(_) => break,
            }
        }
    }

    /// From the TCP connection to the stream.
    fn send(&self) -> io::Result<()> {
        let mut space = vec![0; SPACE_LEN];
        loop {
            let count = match (&self.socket).read(&mut space) {
                Ok(0) if self.is_reset() => return Err(ErrorKind::ConnectionReset.into()),
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if is_wait(&error) => {
                    self.check(self.stream.is_over())?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let written = self.write_stream(&space[..count]);
            written.inspect_err(|_| self.discard(&mut space))?;
            let passed = &self.passed.to_stream;
            passed.fetch_add(count as u64, Ordering::Relaxed);
        }
        self.check(false)?;
        self.stream.shutdown()
    }

    /// From the stream to the TCP connection.
    fn receive(&self) -> io::Result<()> {
        let mut space = vec![0; SPACE_LEN];
        loop {
            let count = self.read_stream(&mut space)?;
            if count == 0 {
                break;
            }
            let mut rest = &space[..count];
            while !rest.is_empty() {
                match (&self.socket).write(rest) {
                    Ok(count) => rest = &rest[count..],
                    Err(error) if is_wait(&error) => self.check(self.stream.is_lost())?,
                    Err(error) => return Err(error),
                }
            }
            let passed = &self.passed.from_stream;
            passed.fetch_add(count as u64, Ordering::Relaxed);
        }
        self.is_ended.store(true, Ordering::Release);
        match self.socket.shutdown(Shutdown::Write) {
            // The program has closed it already.
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
            ended => ended,
        }
    }
}

fn next_look() -> Option<Instant> {
    Instant::now().checked_add(LOOK)
}

/// Whether a call may succeed later.
fn is_wait(error: &io::Error) -> bool {
    use ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
