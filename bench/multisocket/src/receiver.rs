//! The receiving side: gathers the connections, counts what arrives, confirms it.

use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use ropewalk_sockopt::set_receive_low_water;
use rustix::event::epoll::EventFlags;
use rustix::net::{RecvFlags, recv};
use socket2::Socket;

use crate::address::Address;
use crate::error::{MultisocketError, system};
use crate::flow::{self, Halt};
use crate::gather::{ARRIVALS_MAX, Listening, gather};
use crate::options::{Shape, Test};
use crate::report::Report;
use crate::sys;
use crate::watch::Watch;
use crate::wire::{self, Answer};

/// Bytes read by one call. The buffer is one thread's, and small enough to stay in the processor's cache.
const BUFFER_LEN: usize = 256 << 10;

/// Bytes read from one connection before the thread looks at its others.
const TURN_LEN: u64 = 1 << 20;

/// Bytes that must have come before a thread is woken for a connection; fewer wake-ups leave more time to copy.
const LOW_WATER_LEN: u64 = 128 << 10;

/// One connection.
#[derive(Debug)]
struct Incoming {
    socket: Socket,
    index: u32,
    left: u64,
    low_water: u64,
    seconds: f64,
}

/// Receives what `test` says, on `listen` or on all addresses of the machine.
///
/// `stop` ends it early. Where the system chose the port, `on_port` gets the place.
///
/// # Errors
/// No sender connects, it was started with other numbers, a connection is lost, or nothing moves for too long.
pub fn receive(
    test: &Test,
    listen: Option<&Address>,
    stop: &AtomicBool,
    on_port: impl FnOnce(&str),
) -> Result<Report, MultisocketError> {
    let shape = test.shape;
    let aside = u64::from(shape.ports) + (ARRIVALS_MAX + test.thread_count()) as u64;
    flow::allow_descriptors(shape.connections(), aside)?;
    let listening = Listening::start(listen, test)?;
    let place = listening.place.clone();
    if test.port == 0 {
        on_port(&place);
    }
    let sockets = gather(&listening, test, stop)?;
    drop(listening);

    let began = Instant::now();
    let mut connections = Vec::with_capacity(sockets.len());
    for (socket, index) in sockets.into_iter().zip(0_u32..) {
        let connection = Incoming {
            socket,
            index,
            left: shape.connection_bytes(),
            low_water: 1,
            seconds: 0.0,
        };
        let said = wire::write(&connection.socket, &Answer::Go.encode(shape));
        said.map_err(|error| connection.lost(shape, error))?;
        connections.push(connection);
    }
    let connections = flow::run(connections, test.thread_count(), stop, |share, halt| {
        drive(share, shape, began, halt)
    })?;
    let times = connections.iter().map(|connection| connection.seconds);
    Ok(Report::new(test, place, began.elapsed(), times))
}

/// The moving of bytes by one thread.
fn drive(
    share: &mut [Incoming],
    shape: Shape,
    began: Instant,
    mut halt: Halt<'_>,
) -> Result<(), MultisocketError> {
    let watching = system("watching connections");
    let mut watch = Watch::new().map_err(&watching)?;
    for (at, connection) in share.iter_mut().enumerate() {
        connection
            .wake_at(connection.left.min(LOW_WATER_LEN))
            .map_err(&watching)?;
        let added = watch.add(&connection.socket, at as u64, EventFlags::IN);
        added.map_err(&watching)?;
    }
    let mut buffer = vec![0; BUFFER_LEN];
    let mut ready: Vec<u64> = Vec::new();
    let mut open = share.len();
    while open > 0 {
        ready.clear();
        ready.extend(watch.wait().map_err(&watching)?);
        let mut has_moved = false;
        for &token in &ready {
            let connection = &mut share[token as usize];
            let drained = connection.drain(&mut buffer);
            has_moved |= drained.map_err(|error| connection.lost(shape, error))?;
            if connection.left == 0 {
                let done = Answer::Done(shape.connection_bytes()).encode(shape);
                let said = wire::write(&connection.socket, &done);
                said.map_err(|error| connection.lost(shape, error))?;
                connection.seconds = began.elapsed().as_secs_f64();
                watch.remove(&connection.socket).map_err(&watching)?;
                open -= 1;
            }
        }
        let held = || {
            let waiting = share.iter().filter(|connection| connection.left > 0);
            waiting.map(|one| sys::held_bytes(&one.socket)).sum()
        };
        halt.check(has_moved, held, || {
            let first = share.iter().find(|connection| connection.left > 0);
            (open, first.map_or(0, |connection| connection.index))
        })?;
    }
    Ok(())
}

impl Incoming {
    /// Reads until the socket is empty, the connection has had its turn, or all has come; says whether anything came.
    fn drain(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let before = self.left;
        while self.left > 0 && before - self.left < TURN_LEN {
            let room = usize::try_from(self.left).unwrap_or(buffer.len());
            let room = room.min(buffer.len());
            match recv(&self.socket, &mut buffer[..room], RecvFlags::empty()) {
                Ok((0, _)) => return Err(wire::closed()),
                Ok((count, _)) => {
                    self.left -= count as u64;
                    if count < room {
                        break;
                    }
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Nothing comes after the last byte to wake the thread for less than the mark.
        if self.left > 0 && self.left < self.low_water {
            self.wake_at(self.left)?;
        }
        Ok(self.left < before)
    }

    /// Sets how many bytes wake the thread.
    fn wake_at(&mut self, bytes: u64) -> io::Result<()> {
        set_receive_low_water(&self.socket, bytes as i32)?;
        self.low_water = bytes;
        Ok(())
    }

    fn lost(&self, shape: Shape, source: io::Error) -> MultisocketError {
        MultisocketError::Lost {
            index: self.index,
            connections: shape.connections(),
            moved: shape.connection_bytes() - self.left,
            expected: shape.connection_bytes(),
            source,
        }
    }
}
