//! Messages over all the rails between two hosts as if they were one (MuniSocket).
//!
//! A **rail** is a pair of addresses, one of each host, with one TCP connection at a time. A message below
//! the cut-off goes whole over the best rail, by the caller's own thread. A longer one is cut into fragments that
//! rails pull as they have space, so that a faster one carries more; fragments leave from the caller's memory and
//! land in the receiving caller's. A rail that fails gives its fragments to the others, is tried again, and is
//! taken back. Messages arrive once, whole and in the order they were begun.
//!
//! ```
//! use ropewalk_message::{Listener, MessageSocket, Options};
//!
//! let options = Options::default();
//! let listener = Listener::bind(&["127.0.0.1:0".parse()?, "127.0.0.2:0".parse()?], &options)?;
//! let addresses = listener.addresses();
//! let peer = std::thread::spawn(move || {
//!     let socket = listener.accept()?;
//!     let mut room = [0; 100];
//!     let length = socket.receive(&mut room)?.unwrap_or(0);
//!     socket.send(&room[..length])
//! });
//! let socket = MessageSocket::connect(&addresses, &options)?;
//! socket.send(b"around and back")?;
//! assert_eq!(socket.receive_vec(100)?.as_deref(), Some(&b"around and back"[..]));
//! peer.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What a call that returned means: [`send`](MessageSocket::send) returns when the peer's socket has the whole
//! message, in memory; whether its application has asked for it, only an answer shows.
//!
//! Rails must really be different ways: two addresses behind one interface, or a host whose routing sends both
//! out of the same one, do not add up ([`MessageSocket::warnings`] names them). A local address chooses the interface only
//! with a source rule for it.
//!
//! With a token ([`Options::token`]) records are sealed (AES-128-GCM, a fresh key for each link and direction), unless
//! [`Options::plain`] allows by name that data crosses the network in the clear. Without a token nothing can be sealed, and
//! only addresses of this host are taken, unless `plain` is set.

mod asynchronous;
mod bell;
mod byte_stream;
mod connect;
mod dial;
mod error;
mod handshake;
mod link;
mod listen;
mod memory;
mod options;
mod polled;
mod process;
mod records;
mod remember;
mod routing;
mod session;
mod socket;
mod threads;
mod tune;

pub use asynchronous::AsyncMessageSocket;
pub use byte_stream::{
    AsyncByteStream, ByteStream, ByteStreamListener, ByteStreams, Passed, PolledByteStream,
};
pub use error::MessageError;
pub use listen::Listener;
pub use options::{CutOff, Method, Mode, Options};
pub use polled::PolledMessageSocket;
pub use process::Maker;
pub use ropewalk_proto::message::cutoff::NEVER;
pub use socket::{MessageSocket, RailReport, RecalledCutOff, SplitTimes};
