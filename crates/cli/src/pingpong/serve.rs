//! The answering end of a measurement.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ropewalk::message::{Listener, MessageError, MessageSocket};

use super::order::{self, Order, TICKET_LEN};
use super::{ORDER_LEN, SIZE_MAX, plain, stream};

/// A measuring end that has not opened its plain connection by then has no use for it.
const OPENING: Duration = Duration::from_secs(10);
/// So many measurements may be under way; more would measure each other.
const MEASUREMENTS_MAX: usize = 64;
/// How often the plain port is looked at while it is awaited.
const LOOK: Duration = Duration::from_millis(20);

/// Answers measurements, each in threads of its own, until the process ends.
pub(super) fn run(listener: &Listener) -> Result<ExitCode> {
    let addresses = listener.addresses();
    for address in &addresses {
        // Nobody need read it.
        let _ = writeln!(std::io::stdout(), "listening on {address}");
    }
    let first = addresses.first().context("no address to listen on")?.ip();
    let under_way = Arc::new(());
    loop {
        let socket = listener.accept()?;
        if Arc::strong_count(&under_way) > MEASUREMENTS_MAX {
            eprintln!(
                "ropewalk: {MEASUREMENTS_MAX} measurements are under way; one more was refused"
            );
            continue;
        }
        // Round trips on the first rail, then one connection of each rail.
        let mut plain = Vec::new();
        for ip in std::iter::once(first).chain(addresses.iter().map(SocketAddr::ip)) {
            let listener = TcpListener::bind(SocketAddr::new(ip, 0))
                .with_context(|| format!("cannot listen on {ip} for plain TCP"))?;
            plain.push(listener);
        }
        let held = Arc::clone(&under_way);
        let body = move || {
            let _held = held;
            if let Err(error) = answer(&socket, plain) {
                eprintln!("ropewalk: a measurement ended: {error:#}");
            }
        };
        thread::Builder::new()
            .name("pingpong".into())
            .spawn(body)
            .context("cannot start a thread")?;
    }
}

fn answer(socket: &MessageSocket, plain: Vec<TcpListener>) -> Result<()> {
    let mut ticket = [0; TICKET_LEN];
    let random =
        std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut ticket));
    random.context("cannot read /dev/urandom")?;
    let mut ports = Vec::new();
    for listener in &plain {
        let address = listener.local_addr();
        ports.push(address.context("a plain port has no address")?.port());
    }
    socket.send(&order::welcome(&ports, ticket))?;
    for listener in plain {
        thread::Builder::new()
            .name("pingpong-tcp".into())
            .spawn(move || {
                // A measuring end that goes away ends this; it says so itself.
                let _ = admit(&listener, &ticket).and_then(plain::answer);
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

/// Waits for the connection that brings the ticket.
fn admit(plain: &TcpListener, ticket: &[u8; TICKET_LEN]) -> Result<TcpStream> {
    plain.set_nonblocking(true)?;
    let until = Instant::now() + OPENING;
    while Instant::now() < until {
        let Ok((mut stream, _)) = plain.accept() else {
            thread::sleep(LOOK);
            continue;
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(OPENING))?;
        let mut shown = [0; TICKET_LEN];
        if stream.read_exact(&mut shown).is_ok() && shown == *ticket {
            return Ok(stream);
        }
    }
    bail!("nobody came")
}
