//! The answering end of a measurement.

use std::io::{self, ErrorKind, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ropewalk_message::{Listener, MessageError, MessageSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::order::{self, ADDRESSES_MAX, Order, PORTS_EACH, TICKET_LEN};
use super::{ORDER_LEN, SIZE_MAX, plain, stream};
use ropewalk_cli::sys;

/// A measuring end that has not opened its plain connection by then has no use for it.
const OPENING: Duration = Duration::from_secs(10);
/// So many measurements may be under way; more would measure each other.
const MEASUREMENTS_MAX: usize = 64;
/// How long nothing is accepted after that failed: descriptors are likely to be used up.
const REST: Duration = Duration::from_millis(20);

/// Answers measurements, each in threads of its own, until the process ends.
pub(super) fn run(listener: &Listener) -> Result<ExitCode> {
    let addresses = listener.addresses();
    if addresses.len() > ADDRESSES_MAX {
        bail!(
            "{} addresses are more than {ADDRESSES_MAX}",
            addresses.len()
        );
    }
    for address in &addresses {
        sys::say(format_args!("listening on {address}"));
    }
    let under_way = Arc::new(());
    loop {
        let socket = listener.accept()?;
        if Arc::strong_count(&under_way) > MEASUREMENTS_MAX {
            eprintln!(
                "ropewalk: {MEASUREMENTS_MAX} measurements are under way; one more was refused"
            );
            continue;
        }
        let plain = listen(&addresses);
        if plain.is_empty() {
            eprintln!("ropewalk: a measurement was refused");
            continue;
        }
        let held = Arc::clone(&under_way);
        let body = move || {
            let _held = held;
            if let Err(error) = answer(&socket, plain) {
                eprintln!("ropewalk: a measurement ended: {error:#}");
            }
        };
        let started = thread::Builder::new().name("pingpong".into()).spawn(body);
        if let Err(error) = started {
            eprintln!("ropewalk: a measurement was refused: cannot start a thread: {error}");
        }
    }
}

/// Listens for plain TCP. The peer may name any of the addresses, in any order: each has what the first rail needs.
/// One that this host has lost is left out, so that the others serve on.
fn listen(addresses: &[SocketAddr]) -> Vec<TcpListener> {
    let mut plain = Vec::new();
    for mut address in addresses.iter().copied() {
        address.set_port(0);
        let both: io::Result<Vec<_>> = (0..PORTS_EACH)
            .map(|_| TcpListener::bind(address))
            .collect();
        match both {
            Ok(both) => plain.extend(both),
            Err(error) => {
                let address = address.ip();
                eprintln!("ropewalk: cannot listen on {address} for plain TCP: {error}");
            }
        }
    }
    plain
}

fn answer(socket: &MessageSocket, plain: Vec<TcpListener>) -> Result<()> {
    let mut ticket = [0; TICKET_LEN];
    let random =
        std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut ticket));
    random.context("cannot read /dev/urandom")?;
    let mut ports = Vec::new();
    for listener in &plain {
        let address = listener.local_addr();
        ports.push(address.context("a plain port has no address")?);
    }
    socket.send(&order::welcome(&ports, ticket))?;
    for listener in plain {
        thread::Builder::new()
            .name("pingpong-tcp".into())
            .spawn(move || {
                // A measuring end that goes away ends this; it says so itself.
                let _ = admit(listener, &ticket).and_then(plain::answer);
            })
            .context("cannot start a thread")?;
    }
    loop {
        let mut bytes = [0; ORDER_LEN];
        let order = match socket.receive(&mut bytes) {
            Ok(Some(length)) => Order::decode(&bytes[..length]),
            Ok(None) | Err(MessageError::PeerClosed) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let Some(order) = order.filter(|order| (1..=SIZE_MAX).contains(&order.size)) else {
            bail!("the peer asks for something else");
        };
        socket.set_mode(order.mode);
        socket.set_cut_off(order.cut_off);
        if let Some(many) = order.stream {
            stream::take(socket, order.size, many)?;
            continue;
        }
        let mut room = order::room(order.size)?;
        loop {
            let Some(length) = socket.receive(&mut room)? else {
                return Ok(());
            };
            let last = room.first() == Some(&1);
            socket.send(&room[..length])?;
            if last {
                break;
            }
        }
    }
}

/// Waits for the connection that brings the ticket, and listens no more. It may never come: waiting costs the measurement
/// nothing.
fn admit(plain: TcpListener, ticket: &[u8; TICKET_LEN]) -> Result<TcpStream> {
    plain.set_nonblocking(true)?;
    let until = Instant::now() + OPENING;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        let mut fds = [PollFd::new(&plain, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec::try_from(left)?)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for plain TCP"),
        }
        let mut stream = match plain.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => {
                thread::sleep(REST);
                continue;
            }
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(OPENING))?;
        let mut shown = [0; TICKET_LEN];
        if stream.read_exact(&mut shown).is_ok() && shown == *ticket {
            return Ok(stream);
        }
    }
    bail!("no peer connected")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address that this host has not, or has no more, keeps nobody from the others.
    #[test]
    fn lost_addresses_are_left_out() {
        let addresses = ["192.0.2.1:7", "127.0.0.1:7"].map(|text| text.parse().unwrap());
        let ports: Vec<_> = listen(&addresses)
            .iter()
            .map(|port| port.local_addr().unwrap().ip())
            .collect();
        assert_eq!(ports, [addresses[1].ip(); PORTS_EACH]);
        assert!(listen(&addresses[..1]).is_empty());
    }
}
