//! Byte streams of the other end, each of which becomes a connection to a target.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_message::{ByteStream, MessageError};
use ropewalk_proto::byte_stream::STREAMS_MAX;
use ropewalk_proto::tunnel::{CODE_BROKEN, CODE_UNREACHED, Target, target_of};

use crate::{Counts, STACK_LEN};

/// One address of a target that does not answer costs at most this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections at once, each with two threads and a descriptor: twice what its one socket has streams, as one that has ended
/// may still be counted when the next begins. A peer with the secret could make further sockets.
const CONNECTIONS_MAX: u64 = 2 * STREAMS_MAX as u64;

/// What streams of the other end are connected to, and what became of them.
pub struct Served {
    /// By position. A stream that names another one is reset.
    pub targets: Vec<Target>,
    /// Connections.
    pub counts: Arc<Counts>,
    /// Hears why a target was not reached.
    pub say: Box<dyn Fn(String) + Send + Sync>,
}

/// Connects each stream that the other end opens, until it can open no more. Each has threads of its own.
pub fn serve(served: &Arc<Served>, accept: impl Fn() -> Result<ByteStream, MessageError>) {
    while let Ok(stream) = accept() {
        let counts = &served.counts;
        if counts.begin() >= CONNECTIONS_MAX {
            counts.end(true);
            let text = format!("the tunnel has {CONNECTIONS_MAX} connections already");
            stream.reset(CODE_UNREACHED, &text);
            continue;
        }
        let (own, kept) = (served.clone(), Arc::new(Mutex::new(Some(stream))));
        let given = kept.clone();
        let work = move || {
            let stream = given.lock().take();
            let ended = stream.map_or(Ok(()), |stream| own.connect(stream));
            own.counts.end(ended.is_err());
            if let Err(Some(text)) = ended {
                (own.say)(text);
            }
        };
        let thread = thread::Builder::new().name("tunnel".into());
        if let Err(error) = thread.stack_size(STACK_LEN).spawn(work) {
            counts.end(true);
            // Dropped, its program would find an empty connection that ended well.
            let stream = kept.lock().take();
            let text = format!("there is no thread for it: {error}");
            if let Some(stream) = stream {
                stream.reset(CODE_UNREACHED, &text);
            }
        }
    }
}

impl Served {
    /// One connection, from its beginning to its end. The error is what the user should know: why a target was not reached.
    fn connect(&self, stream: ByteStream) -> Result<(), Option<String>> {
        let target = target_of(stream.greeting());
        let Some(target) = target.and_then(|at| self.targets.get(at as usize)) else {
            stream.reset(CODE_UNREACHED, "the tunnel has no such target");
            return Err(None);
        };
        match reach(target) {
            // What ended it is said to both ends.
            Ok(socket) => {
                let ended = stream.join(socket, CODE_BROKEN, &self.counts.passed);
                ended.map_err(|_| None)
            }
            Err(error) => {
                // A target that accepts and resets at once was reached, though the kernel may report that with the attempt.
                let is_reached = error.kind() == io::ErrorKind::ConnectionReset;
                let code = if is_reached {
                    CODE_BROKEN
                } else {
                    CODE_UNREACHED
                };
                let text = format!("{target}: {error}");
                stream.reset(code, &text);
                Err((!is_reached).then(|| format!("a connection was reset: {text}")))
            }
        }
    }
}

/// Connects to the first address of a target that answers.
fn reach(target: &Target) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(
        io::ErrorKind::AddrNotAvailable,
        "the host's name has no address",
    );
    for address in (target.host.as_str(), target.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
