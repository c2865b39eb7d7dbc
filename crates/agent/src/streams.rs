//! A connected data socket and what guards it.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::seal::{self, PairSecret};
use ropewalk_lane::{Check, LaneError, Protection, ReceiveHalf, SendHalf, Served, tcp, unix};
use ropewalk_proto::control::Options;

use crate::transfer::Transfer;

/// Stack of a data thread: its buffers are on the heap, hashing needs a few KiB.
pub(crate) const STACK_LEN: usize = 256 << 10;

/// A sending thread looks whether it should stop at least this often while nothing is asked of it.
const IDLE: Duration = Duration::from_secs(5);

/// Numbers of [`Options::verify`] on the wire.
pub(crate) mod verify {
    pub const NONE: u32 = 0;
    pub const TREE: u32 = 2;
    pub const SINK: u32 = 3;
}

/// A connection that carries frames.
pub(crate) enum DataSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What guards a stream, by the transfer's options: both ends see the same ones.
fn protection(options: &Options, secret: &PairSecret, nonce: [u8; 32]) -> Protection {
    match (options.plain, options.verify) {
        (false, _) => Protection::Sealed(seal::stream_keys(secret, nonce)),
        (true, verify::NONE) => Protection::Plain(Check::None),
        (true, _) => Protection::Plain(Check::Fragment),
    }
}

impl DataSocket {
    pub fn receive_half(
        self,
        options: &Options,
        secret: &PairSecret,
        nonce: [u8; 32],
    ) -> Result<Box<dyn ReceiveHalf>, LaneError> {
        let protection = protection(options, secret, nonce);
        match self {
            Self::Tcp(stream) => tcp::receive_half(stream, protection),
            Self::Unix(stream) => unix::receive_half(stream, protection),
        }
    }

    fn send_half(
        self,
        options: &Options,
        secret: &PairSecret,
        nonce: [u8; 32],
    ) -> Result<Box<dyn SendHalf>, LaneError> {
        let protection = protection(options, secret, nonce);
        match self {
            Self::Tcp(stream) => tcp::send_half(stream, protection),
            Self::Unix(stream) => unix::send_half(stream, protection),
        }
    }

    /// For reports.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Unix(_) => "unix",
        }
    }
}

impl Transfer {
    /// Serves a joined stream on a thread of its own until the peer closes it or the transfer ends.
    pub fn serve_stream(self: Arc<Self>, socket: DataSocket, secret: &PairSecret, nonce: [u8; 32]) {
        let Ok(mut half) = socket.send_half(&self.options, secret, nonce) else {
            return;
        };
        let builder = std::thread::Builder::new()
            .name("send".into())
            .stack_size(STACK_LEN);
        // Without a thread the stream is dropped, which the peer sees as closed and tries elsewhere.
        let _ = builder.spawn(move || {
            let key = self.remember(half.stopper());
            let Some(holdings) = self.serving.wait() else {
                return self.forget(key);
            };
            let meter = self.serving.meter(holdings);
            self.serving.open_stream(key, half.stopper());
            while let Ok(Served::Idle) = half.serve(&meter, IDLE) {
                if self.stopped.load(std::sync::atomic::Ordering::Acquire) {
                    break;
                }
            }
            self.serving.close_stream(key);
            self.forget(key);
        });
    }
}
