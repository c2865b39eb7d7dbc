//! Lanes whose data goes by UDP, at a rate instead of by a window: RBUDP and RAPID.
//!
//! A TCP connection, joined as for a TCP stream, is the reliable stream of the lane: units are asked for over it, ends of rounds
//! and bitmaps of what is lacking go over it, and its keys protect the datagrams ([`ropewalk_proto::rapid`] has
//! the rounds). A socket of datagrams on each side is made at the start, at ports that the system chooses:
//!
//! ```text
//!   receiver                             sender
//!      ◀──────── HELLO(port) ── TCP ─────
//!      ── READY(port, longest) ─ TCP ───▶
//!      ── knocks ═════ UDP ═════════════▶   opens firewalls that let answers in
//!      ◀═ probes of several lengths ═ UDP ═
//!      ── PROBED(longest received) ─────▶
//! ```
//!
//! The receiver checks each datagram straight into the memory of its unit; a unit whose datagrams are all there is hashed and handed to
//! the landing whole. Memory is what is granted at most, and what is incomplete in practice.
//!
//! [`shared`] is a socket for many edges of a stream, whose rounds are [`ropewalk_proto::stage::datagrams`].
//!
//! Constructors make the socket only; the handshake takes place in the first call that waits, so that an error of it
//! is one of the stream.

mod frames;
mod handshake;
mod monitor;
mod protect;
mod receive;
mod send;
pub mod shared;
mod sys;

use std::net::TcpStream;

pub use monitor::Times;
pub use protect::{Direction, Opener, Sealer, trailer_len};
use ropewalk_model::ByteRate;
pub use ropewalk_proto::rapid::Order;
use ropewalk_proto::rapid::monitor::{Kind, Monitor};
pub use sys::{BATCH, Inbox, wake_on_time};

use crate::{LaneError, Protection, ReceiveHalf, SendHalf};

/// Rate of a lane with a monitor before the monitor has spoken, where none is set: 1 Gbit/s, for some tens of milliseconds.
pub const FIRST_RATE: ByteRate = ByteRate(125_000_000);

/// How a lane sends and watches. Both ends must be given the same.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rate of the datagrams; `None` where only the monitor sets it.
    pub rate: Option<ByteRate>,
    /// Length of packets; `None` has it found.
    pub mtu: Option<u32>,
    /// What is sent first.
    pub order: Order,
    /// What watches the receiver; nothing for RBUDP as published.
    pub monitor: Option<Kind>,
    /// Receive buffer in bytes of the kernel's count; `None`: by the rule for the native monitor, else what the system gives.
    pub receive_buffer: Option<u64>,
}

/// The receiving end over a connected TCP socket and datagrams beside it.
///
/// # Errors
/// [`LaneError::Socket`] when the socket cannot be taken over; [`LaneError::Misuse`] when options contradict each other.
pub fn receive_half(
    stream: TcpStream,
    protection: Protection,
    options: Options,
) -> Result<Box<dyn ReceiveHalf>, LaneError> {
    watched_receive_half(
        stream,
        protection,
        options,
        options.monitor.map(Kind::monitor),
    )
}

/// As [`receive_half`], with another monitor in the place of the shipped one: a decorator of it, for instance. `options.monitor` still
/// says by which rule the buffer is sized, and has to be set where a monitor is given.
///
/// # Errors
/// As [`receive_half`].
pub fn watched_receive_half(
    stream: TcpStream,
    protection: Protection,
    options: Options,
    monitor: Option<Box<dyn Monitor>>,
) -> Result<Box<dyn ReceiveHalf>, LaneError> {
    check(&options)?;
    if options.monitor.is_some() != monitor.is_some() {
        return Err(LaneError::Misuse(
            "a lane of datagrams has a monitor exactly where its options name one".into(),
        ));
    }
    Ok(Box::new(receive::Receiver::new(
        stream, protection, options, monitor,
    )?))
}

/// The sending end over a connected TCP socket and datagrams beside it.
///
/// # Errors
/// As [`receive_half`].
pub fn send_half(
    stream: TcpStream,
    protection: Protection,
    options: Options,
) -> Result<Box<dyn SendHalf>, LaneError> {
    check(&options)?;
    Ok(Box::new(send::Sender::new(stream, protection, options)?))
}

fn check(options: &Options) -> Result<(), LaneError> {
    if options.rate.is_none() && options.monitor.is_none() {
        return Err(LaneError::Misuse(
            "a lane of datagrams without a monitor needs a rate; set --rate, or use --lane rapid"
                .into(),
        ));
    }
    Ok(())
}
