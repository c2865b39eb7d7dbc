//! This node's end of a tunnel: takes the links of its message socket at the agent's port, and connects each byte stream to its
//! target.
//!
//! ```text
//!  master ── ForwardOpen ──▶ session ──▶ Forward
//!  master ══ link (preface of kind Message) ══▶ welcome ──▶ Forward ══ a thread for each stream ══▶ target
//! ```
//!
//! Links do not depend on the control connection: it may run over an interface that has failed while others work. When it has ended,
//! the tunnel ends with its last link.

use std::io;
use std::net::{IpAddr, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_lane::preface::{self, PREFACE_LEN};
use ropewalk_message::{ByteStream, ByteStreamListener, Options, Passed};
use ropewalk_proto::byte_stream::STREAMS_MAX;
use ropewalk_proto::control::{ForwardOpen, ForwardOpened, TransferKind, TransferStatus};
use ropewalk_proto::tunnel::allowed::Allowed;
use ropewalk_proto::tunnel::{
    CODE_BROKEN, CODE_UNREACHED, LOST_SECONDS, TARGETS_MAX, Target, target_of,
};

use crate::counts::Moved;
use crate::host::Host;
use crate::shared::Shared;
use crate::{AgentError, interfaces, rails};

/// One address of a target that does not answer costs at most this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Stack of a connection's thread: its buffers are on the heap, but modules of the system that resolve names run on it.
const STACK_LEN: usize = 1 << 20;

/// Time between two looks whether a tunnel without control has links.
const LOOK: Duration = Duration::from_millis(200);

/// Tunnels of one agent at once: each has threads, also without a connection.
pub(crate) const FORWARDS_MAX: usize = 64;

/// Connections of one tunnel at once, each with two threads and a descriptor: twice what its one socket has streams, as one that has ended
/// may still be counted when the next begins. A peer with the secret could make further sockets.
const CONNECTIONS_MAX: usize = 2 * STREAMS_MAX;

/// See the module documentation.
pub(crate) struct Forward {
    /// Of the secret of its links.
    pub key_id: [u8; 16],
    listener: ByteStreamListener,
    targets: Vec<Target>,
    passed: Passed,
    /// Connections at present, and all.
    open: AtomicUsize,
    taken: AtomicU64,
    began: Instant,
}

impl Forward {
    /// Refuses what the operator has not allowed; then links may connect.
    pub fn open(
        open: &ForwardOpen,
        allowed: &Allowed,
        host: &Host,
        reached_as: Option<IpAddr>,
    ) -> Result<(Arc<Self>, ForwardOpened), AgentError> {
        let refused = |text: String| AgentError::Refused(text);
        let targets = targets(open, allowed)?;
        let Ok(secret) = <[u8; 32]>::try_from(open.secret.as_slice()) else {
            return Err(refused("the tunnel has no secret of 32 bytes".into()));
        };
        let usable = interfaces::usable(&open.rails);
        if usable.is_empty() && !open.rails.is_empty() {
            return Err(refused(format!(
                "no interface of this host is {}",
                open.rails.join(", ")
            )));
        }
        let options = Options {
            token: Some(secret),
            plain: open.plain,
            peer_timeout: Duration::from_secs(LOST_SECONDS),
            ..Options::default()
        };
        let listener = ByteStreamListener::without_addresses(&options);
        let listener =
            listener.map_err(|error| refused(format!("the tunnel cannot begin: {error}")))?;
        let forward = Arc::new(Self {
            key_id: preface::key_id(&secret),
            listener,
            targets,
            passed: Passed::default(),
            open: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            began: Instant::now(),
        });
        let serving = forward.clone();
        spawn("forward", move || serving.serve())
            .map_err(|error| refused(format!("cannot start a thread: {error}")))?;
        let is_restricted = !open.rails.is_empty();
        let found = interfaces::candidates(&usable, is_restricted, reached_as, host.port);
        let opened = ForwardOpened {
            addresses: found.iter().map(|(one, _)| one.to_string()).collect(),
            interfaces: found.iter().map(|(_, number)| *number).collect(),
        };
        Ok((forward, opened))
    }

    /// Takes a link that connected at the agent's port. The listener finds out whether it has the secret.
    pub fn give(&self, link: TcpStream, preface: [u8; PREFACE_LEN]) {
        rails::bind_accepted(&link);
        self.listener.give(link, preface);
    }

    /// Whether its master has a link, or had one in the last seconds.
    pub fn is_linked(&self) -> bool {
        self.listener.peers() > 0
    }

    /// Bytes of all its connections: to its master's host, and from there.
    pub fn moved(&self) -> Moved {
        Moved {
            sent: self.passed.to_stream.load(Ordering::Relaxed),
            received: self.passed.from_stream.load(Ordering::Relaxed),
            delivered: 0,
        }
    }

    /// Connections at present.
    pub fn open_connections(&self) -> u64 {
        self.open.load(Ordering::Relaxed) as u64
    }

    /// One line for `status`.
    pub fn status_line(&self) -> TransferStatus {
        let moved = self.moved();
        TransferStatus {
            transfer: self.key_id.to_vec(),
            kind: TransferKind::Tunnel.into(),
            sent: moved.sent,
            checked: moved.received,
            age: self.began.elapsed().as_nanos() as u64,
            connections: self.taken.load(Ordering::Relaxed),
            open_connections: self.open_connections(),
            targets: self.targets(),
            ..TransferStatus::default()
        }
    }

    /// Ends all connections. It is listed no more, and its bytes are among those of the agent.
    pub fn end(&self, shared: &Shared) {
        self.listener.close();
        shared.host.counts.change(|totals| {
            if shared.forwards.lock().remove(&self.key_id).is_some() {
                totals.moved.add(self.moved());
            }
        });
    }

    /// For the log.
    pub fn targets(&self) -> String {
        let names: Vec<String> = self.targets.iter().map(Target::to_string).collect();
        names.join(", ")
    }

    fn serve(self: Arc<Self>) {
        while let Ok(stream) = self.listener.accept_until(None) {
            if self.open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                self.open.fetch_sub(1, Ordering::Relaxed);
                let text = format!("the tunnel has {CONNECTIONS_MAX} connections already");
                stream.reset(CODE_UNREACHED, &text);
                continue;
            }
            self.taken.fetch_add(1, Ordering::Relaxed);
            let (own, kept) = (self.clone(), Arc::new(Mutex::new(Some(stream))));
            let given = kept.clone();
            let spawned = spawn("forward", move || {
                let stream = given.lock().take();
                if let Some(stream) = stream {
                    own.connect(stream);
                }
                own.open.fetch_sub(1, Ordering::Relaxed);
            });
            if let Err(error) = spawned {
                self.open.fetch_sub(1, Ordering::Relaxed);
                // Dropped, its program would find an empty connection that ended well.
                let stream = kept.lock().take();
                let text = format!("the agent cannot start a thread for it: {error}");
                if let Some(stream) = stream {
                    stream.reset(CODE_UNREACHED, &text);
                }
            }
        }
    }

    /// One connection, from its beginning to its end.
    fn connect(&self, stream: ByteStream) {
        let target = target_of(stream.greeting());
        let target = target.and_then(|at| self.targets.get(at as usize));
        let Some(target) = target else {
            return stream.reset(CODE_UNREACHED, "the tunnel has no such target");
        };
        match reach(target) {
            // What ended it is said to both ends.
            Ok(socket) => drop(stream.join(socket, CODE_BROKEN, &self.passed)),
            Err(error) => {
                // A target that accepts and resets at once was reached, though the kernel may report that with the attempt.
                let code = match error.kind() {
                    io::ErrorKind::ConnectionReset => CODE_BROKEN,
                    _ => CODE_UNREACHED,
                };
                stream.reset(code, &format!("{target}: {error}"));
            }
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.stack_size(STACK_LEN).spawn(body).map(drop)
}

/// The targets that are asked for, all of which have to be allowed.
fn targets(open: &ForwardOpen, allowed: &Allowed) -> Result<Vec<Target>, AgentError> {
    let refused = |text: String| Err(AgentError::Refused(text));
    if open.targets.is_empty() || open.targets.len() > TARGETS_MAX {
        return refused(format!("a tunnel has 1 to {TARGETS_MAX} targets"));
    }
    let mut targets = Vec::new();
    for asked in &open.targets {
        let Some(target) = Target::new(&asked.host, asked.port) else {
            return refused("a target of the tunnel is no host and port".into());
        };
        if !allowed.permits(&target) {
            return refused(format!(
                "this agent does not forward to {target}; its operator allows that with `ropewalk agent --forward \
                 {target}`, or reach the host over ssh"
            ));
        }
        targets.push(target);
    }
    Ok(targets)
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

/// Ends a tunnel whose control connection has ended as soon as it has no link.
pub(crate) async fn outlast(forward: Arc<Forward>, shared: Arc<Shared>, caller: String) {
    while forward.is_linked() {
        tokio::time::sleep(LOOK).await;
    }
    forward.end(&shared);
    shared.host.log.say(|| format!("{caller}: tunnel ends"));
}
