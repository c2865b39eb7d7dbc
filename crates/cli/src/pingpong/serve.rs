//! The answering end of a measurement.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ropewalk::message::{Listener, MessageError, MessageSocket};

use super::order::{self, Order, TICKET_LEN};
use super::{ORDER_LEN, PATIENCE, SIZE_MAX};

/// A measuring end that has not opened its plain connection by then has no use for it.
const OPENING: Duration = Duration::from_secs(10);
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
    loop {
        let socket = listener.accept()?;
        let plain = TcpListener::bind(SocketAddr::new(first, 0))
            .with_context(|| format!("cannot listen on {first} for plain TCP"))?;
        let body = move || {
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

fn answer(socket: &MessageSocket, plain: TcpListener) -> Result<()> {
    let mut ticket = [0; TICKET_LEN];
    let random =
        std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut ticket));
    random.context("cannot read /dev/urandom")?;
    let port = plain
        .local_addr()
        .context("the plain port has no address")?
        .port();
    socket.send(&order::welcome(port, ticket))?;
    thread::Builder::new()
        .name("pingpong-tcp".into())
        .spawn(move || {
            // A measuring end that goes away ends this; it says so itself.
            let _ = admit(&plain, &ticket).and_then(echo);
        })
        .context("cannot start a thread")?;
    let mut room = Vec::new();
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
        socket.set_mode(order.mode.into());
        socket.set_cut_off(order.cut_off);
        room.resize(usize::try_from(order.size)?, 0);
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

/// Sends back what comes: a size of 8 bytes, then messages of that size until one is marked as the last.
fn echo(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut room = Vec::new();
    loop {
        let mut size = [0; 8];
        stream.read_exact(&mut size)?;
        let size = u64::from_le_bytes(size);
        if !(1..=SIZE_MAX).contains(&size) {
            bail!("a size of {size}");
        }
        room.resize(usize::try_from(size)?, 0);
        loop {
            stream.read_exact(&mut room)?;
            stream.write_all(&room)?;
            if room[0] == 1 {
                break;
            }
        }
    }
}
