//! Accepts connections, reads their preface and hands them to where they belong.

use std::collections::HashMap;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_lane::control::accept;
use ropewalk_lane::preface::{self, Kind, MacKey, PREFACE_LEN, Preface};
use ropewalk_lane::seal::PairSecret;
use ropewalk_lane::{tls, unix};
use ropewalk_proto::admission::Source;
use ropewalk_proto::control;
use ropewalk_store::{Access, Roots};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use crate::connect::{self, RAIL_AT};
use crate::door::{Doors, Place};
use crate::log::{self, Log, LogSink};
use crate::stages::{self, StageConfig, Stream};
use crate::streams::DataSocket;
use crate::transfer::Transfer;
use crate::tunnel::Tunnel;
use crate::{AgentError, rails, reversed, session};

/// A connection that has not sent its preface by then is closed: peers send it at once.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that the kernel keeps until they are accepted, as far as the system allows: where they are more, new
/// ones wait for a second.
const BACKLOG: i32 = 4096;

/// How long nothing is accepted after that failed: descriptors are likely to be used up.
const REST: Duration = Duration::from_millis(50);

/// How an agent runs.
#[derive(Clone)]
pub struct AgentConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: Vec<SocketAddr>,
    /// What masters must know.
    pub token: [u8; 32],
    /// Folders served, and whether transfers may write there.
    pub roots: Vec<(PathBuf, bool)>,
    /// Patterns that were expanded while the roots were made, beyond the roots: what to answer when a master asks for them.
    pub expanded: Vec<Expanded>,
    /// Gets a line for each transfer that begins or ends, each refusal, and, some a second, each stranger.
    pub log: Option<LogSink>,
    /// What it runs for streams; `None`: it takes part in none.
    pub stages: Option<StageConfig>,
}

/// A pattern as a master names it, and the paths that it means or why there are none.
pub type Expanded = (Vec<u8>, Result<Vec<Vec<u8>>, String>);

impl std::fmt::Debug for AgentConfig {
    // Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentConfig")
            .field("listen", &self.listen)
            .field("roots", &self.roots)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Shared {
    pub token: [u8; 32],
    token_id: [u8; 16],
    token_key: MacKey,
    control: Arc<rustls::ServerConfig>,
    pub roots: Roots,
    expanded: HashMap<Vec<u8>, Result<Vec<Vec<u8>>, String>>,
    pub instance: String,
    pub port: u16,
    pub transfers: Mutex<HashMap<[u8; 16], Arc<Transfer>>>,
    pub streams: Mutex<HashMap<[u8; 16], Arc<Stream>>>,
    pub stages: Option<StageConfig>,
    pub shutdown: watch::Receiver<bool>,
    pub work: Work,
    /// Through the master that started this agent, if one did.
    pub tunnel: std::sync::OnceLock<Arc<Tunnel>>,
    /// For connections within this host, and for those that come through the master.
    pub local_doors: Arc<Doors>,
    pub log: Log,
}

impl Shared {
    /// The paths that patterns mean here.
    pub fn expand(&self, patterns: &[Vec<u8>]) -> control::Expanded {
        let matches = patterns.iter().map(|pattern| {
            let found = match self.expanded.get(pattern) {
                Some(known) => known.clone(),
                None => ropewalk_store::expand(pattern, Some(&self.roots))
                    .map_err(|error| error.to_string()),
            };
            match found {
                Ok(paths) => control::Matches {
                    paths,
                    error: String::new(),
                },
                Err(error) => control::Matches {
                    paths: Vec::new(),
                    error,
                },
            }
        });
        control::Expanded {
            matches: matches.collect(),
        }
    }
}

/// Held for reading while files are made, given their names or removed: the agent does not exit meanwhile.
pub(crate) type Work = Arc<tokio::sync::RwLock<()>>;

/// A bound agent, ready to serve.
pub struct Agent {
    listeners: Vec<TcpListener>,
    local: Option<std::os::unix::net::UnixListener>,
    shared: Arc<Shared>,
    shutdown: watch::Sender<bool>,
    log: Option<log::Writer>,
}

/// A master that acknowledges no status for this long is gone; what it started is cleaned up.
const MASTER_SILENCE_MAX: Duration = Duration::from_secs(30);

impl Agent {
    /// Listens on every address. Nothing is served before [`Agent::serve`].
    ///
    /// # Errors
    /// [`AgentError::Listen`] names the address; [`AgentError::Store`] names a root that is not a folder.
    pub fn bind(config: AgentConfig) -> Result<Self, AgentError> {
        raise_descriptor_limit();
        let mut listeners = Vec::new();
        for address in &config.listen {
            let listener = bind(*address).map_err(|source| AgentError::Listen {
                address: *address,
                source,
            })?;
            listeners.push(listener);
        }
        let access = |writable: bool| {
            if writable {
                Access::ReadWrite
            } else {
                Access::ReadOnly
            }
        };
        let roots = Roots::new(
            config
                .roots
                .into_iter()
                .map(|(path, writable)| (path, access(writable)))
                .collect(),
        )?;
        let instance: String = preface::random_bytes::<8>()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        // Streams within the host are an extra: where abstract sockets are not to be had, TCP serves.
        let local = unix::listen(&unix::agent_name(&instance)).ok();
        let (shutdown, shutdown_seen) = watch::channel(false);
        let port = listeners
            .first()
            .and_then(|l| l.local_addr().ok())
            .map_or(0, |a| a.port());
        let control = tls::control_server(&config.token)?;
        let (log, writer) = match config.log.map(Log::start).transpose() {
            Ok(started) => started.unzip(),
            Err(error) => return Err(AgentError::Log(error)),
        };
        let shared = Shared {
            token_id: preface::key_id(&config.token),
            token_key: MacKey::new(&config.token),
            token: config.token,
            control,
            roots,
            expanded: config.expanded.into_iter().collect(),
            instance,
            port,
            transfers: Mutex::default(),
            streams: Mutex::default(),
            stages: config.stages,
            shutdown: shutdown_seen,
            work: Work::default(),
            tunnel: std::sync::OnceLock::new(),
            local_doors: Arc::new(Doors::new(descriptors())),
            log: log.unwrap_or_default(),
        };
        Ok(Self {
            listeners,
            local,
            shared: Arc::new(shared),
            shutdown,
            log: writer,
        })
    }

    /// Addresses that are listened on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .filter_map(|l| l.local_addr().ok())
            .collect()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Random name of this run.
    pub fn instance(&self) -> &str {
        &self.shared.instance
    }

    /// Serves until `shutdown` completes, then stops all transfers and waits until their files are in order.
    ///
    /// # Errors
    /// [`AgentError::Listen`] when a listener cannot be used by the runtime.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
        let mut tasks = tokio::task::JoinSet::new();
        let doors = Arc::new(Doors::new(descriptors()));
        for listener in self.listeners {
            let address = listener
                .local_addr()
                .unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
            let to_error = |source| AgentError::Listen { address, source };
            listener.set_nonblocking(true).map_err(to_error)?;
            let listener = tokio::net::TcpListener::from_std(listener).map_err(to_error)?;
            let (shared, doors) = (self.shared.clone(), doors.clone());
            tasks.spawn(async move { accept_all(&listener, &doors, &shared).await });
        }
        if let Some(local) = self.local {
            local.set_nonblocking(true).ok();
            if let Ok(listener) = tokio::net::UnixListener::from_std(local) {
                let (shared, doors) = (self.shared.clone(), self.shared.local_doors.clone());
                tasks.spawn(async move { accept_local(&listener, &doors, &shared).await });
            }
        }
        shutdown.await;
        let _ = self.shutdown.send(true);
        tasks.shutdown().await;
        let transfers: Vec<Arc<Transfer>> = self
            .shared
            .transfers
            .lock()
            .drain()
            .map(|(_, t)| t)
            .collect();
        for transfer in transfers {
            let stop = move || transfer.stop(true, "the agent was asked to end");
            let _ = tokio::task::spawn_blocking(stop).await;
        }
        let streams: Vec<Arc<Stream>> =
            self.shared.streams.lock().drain().map(|(_, s)| s).collect();
        for stream in streams {
            let _ = tokio::task::spawn_blocking(move || stream.finish(false)).await;
        }
        // What sessions took out of the list first they end themselves.
        drop(self.shared.work.write().await);
        if let Some(log) = self.log {
            self.shared.log.close();
            let _ = tokio::task::spawn_blocking(|| log.flush()).await;
        }
        Ok(())
    }
}

/// Takes connections of other hosts, for good.
async fn accept_all(listener: &tokio::net::TcpListener, doors: &Arc<Doors>, shared: &Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let _ = stream.set_nodelay(true);
                let name = SocketAddr::new(from.ip().to_canonical(), from.port());
                let caller = Caller {
                    source: from.ip().into(),
                    name: name.to_string(),
                    reached_as: stream.local_addr().ok(),
                    patience: PREFACE_TIMEOUT,
                };
                receive(stream, caller, doors, shared).await;
            }
            Err(error) => rest(&error).await,
        }
    }
}

/// Takes connections of this host's users, for good.
async fn accept_local(
    listener: &tokio::net::UnixListener,
    doors: &Arc<Doors>,
    shared: &Arc<Shared>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let user = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
                let caller = Caller {
                    source: Source::User(user),
                    name: format!("user {user} of this host"),
                    reached_as: None,
                    patience: PREFACE_TIMEOUT,
                };
                receive(stream, caller, doors, shared).await;
            }
            Err(error) => rest(&error).await,
        }
    }
}

/// A listener that takes IPv4 on an IPv6 wildcard too, and may reuse a port just left.
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    // Connections inherit it: what a peer sends first is answered at once, and the answer acknowledges it.
    let _ = socket.set_tcp_quickack(false);
    Ok(socket.into())
}

/// Sockets an agent takes connections on.
pub(crate) trait Incoming: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static {
    fn into_data(self) -> std::io::Result<DataSocket>;
    /// Makes the connection fail when the peer's host is gone without a word.
    fn expect_answers(&self) {}
    /// What is written from now on leaves when the connection ends, or when packets are full.
    fn hold_back(&self) {}
    /// Whether what comes is acknowledged at once, or by what is sent next.
    fn acknowledge_at_once(&self, _is_wanted: bool) {}
}

impl Incoming for tokio::net::TcpStream {
    fn into_data(self) -> std::io::Result<DataSocket> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(DataSocket::Tcp(stream))
    }

    fn expect_answers(&self) {
        let socket = socket2::SockRef::from(self);
        // Best effort: without it the system's own patience counts, about a quarter of an hour.
        let _ = socket.set_tcp_user_timeout(Some(MASTER_SILENCE_MAX));
        // A status that a full trunk drops again and again is not put off twice as long each time.
        let _ = socket.set_tcp_thin_linear_timeouts(true);
    }

    fn hold_back(&self) {
        // Best effort: it saves packets.
        let _ = socket2::SockRef::from(self).set_tcp_cork(true);
    }

    fn acknowledge_at_once(&self, is_wanted: bool) {
        // Best effort, too.
        let _ = socket2::SockRef::from(self).set_tcp_quickack(is_wanted);
    }
}

impl Incoming for tokio::net::UnixStream {
    fn into_data(self) -> std::io::Result<DataSocket> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(DataSocket::Unix(stream))
    }
}

/// Takes a connection that another node makes through the master, as if it had connected on this host.
pub(crate) async fn take_local(stream: tokio::net::UnixStream, shared: Arc<Shared>) {
    let caller = Caller {
        source: own_user(),
        name: "through the master".into(),
        reached_as: None,
        // Behind the bytes that are in the pipe already.
        patience: HANDSHAKE_TIMEOUT,
    };
    let doors = shared.local_doors.clone();
    if let Some(place) = doors.enter(caller.source).await {
        // Its master has proved itself, and an agent that one master started keeps no log.
        let _ = welcome(stream, caller, place, &doors, shared).await;
    }
}

/// Connections that this process makes to itself, or that count as such.
pub(crate) fn own_user() -> Source {
    Source::User(rustix::process::geteuid().as_raw())
}

/// At the other end of a connection.
pub(crate) struct Caller {
    pub source: Source,
    /// For the log.
    pub name: String,
    /// The address of this host that it was made to.
    pub reached_as: Option<SocketAddr>,
    /// Its preface is waited for so long.
    pub patience: Duration,
}

/// Gives a connection a place and a task of its own.
async fn receive<S: Incoming>(stream: S, caller: Caller, doors: &Arc<Doors>, shared: &Arc<Shared>) {
    if let Some(place) = doors.enter(caller.source).await {
        let (doors, shared) = (doors.clone(), shared.clone());
        tokio::spawn(async move {
            let name = caller.name.clone();
            if let Err(refusal) = welcome(stream, caller, place, &doors, shared.clone()).await {
                shared.log.stranger(|| format!("{name}: {refusal}"));
            }
        });
    }
}

/// After a failed accept. One connection that broke before it was accepted says nothing about the others.
async fn rest(error: &std::io::Error) {
    if error.kind() != std::io::ErrorKind::ConnectionAborted {
        tokio::time::sleep(REST).await;
    }
}

/// Why a connection is closed without an answer, for the log.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("closed, no preface within {} s", PREFACE_TIMEOUT.as_secs())]
    Silent,
    #[error("closed its connection before a preface")]
    Left,
    #[error("closed, silent while too many others connect")]
    GaveWay,
    #[error("closed, what it sent is no preface of this version of Ropewalk")]
    NoPreface,
    #[error("closed, its token is wrong")]
    WrongToken,
    #[error("closed, this agent does not serve the transfer that it names")]
    NoTransfer,
    #[error("closed, it has no key of the transfer that it names")]
    WrongKey,
    #[error("closed, its TLS handshake failed or took too long")]
    Handshake,
}

/// Reads what has arrived, without waiting. The runtime would wait for its next look at the socket first.
fn arrived<S: Incoming>(stream: &S, into: &mut [u8]) -> usize {
    rustix::net::recv(stream, into, rustix::net::RecvFlags::DONTWAIT).map_or(0, |(read, _)| read)
}

/// Reads the preface. One that must give way is looked at once more: what has arrived counts.
async fn hear<S: Incoming>(
    stream: &mut S,
    patience: Duration,
    place: &Place,
) -> Result<[u8; PREFACE_LEN], Refusal> {
    let mut bytes = [0; PREFACE_LEN];
    let mut have = arrived(stream, &mut bytes);
    let reading = async {
        while have < PREFACE_LEN {
            match stream.read(&mut bytes[have..]).await {
                Ok(read) if read > 0 => have += read,
                Ok(_) | Err(_) => return Err(Refusal::Left),
            }
        }
        Ok(())
    };
    let heard = tokio::select! {
        biased;
        read = reading => read,
        () = place.taken() => Err(Refusal::GaveWay),
        () = tokio::time::sleep(patience) => Err(Refusal::Silent),
    };
    if let Err(refusal @ (Refusal::GaveWay | Refusal::Silent)) = heard {
        let rest = &mut bytes[have..];
        if arrived(stream, rest) < rest.len() {
            return Err(refusal);
        }
    } else {
        heard?;
    }
    Ok(bytes)
}

/// Reads the preface and passes the connection on. Strangers are dropped without an answer.
async fn welcome<S: Incoming>(
    mut stream: S,
    caller: Caller,
    place: Place,
    doors: &Doors,
    shared: Arc<Shared>,
) -> Result<(), Refusal> {
    let bytes = hear(&mut stream, caller.patience, &place).await?;
    let head = Preface::parse(&bytes).map_err(|_| Refusal::NoPreface)?;
    stream.acknowledge_at_once(head.kind != Kind::Control);
    match head.kind {
        Kind::Control => {
            if head.key_id != shared.token_id || !Preface::verify(&bytes, &shared.token_key) {
                return Err(Refusal::WrongToken);
            }
            drop(place);
            let place = doors.prove(caller.source);
            stream.expect_answers();
            let accept = accept(stream, shared.control.clone(), &shared.token);
            let stream = handshake(accept, &place).await?.before_end(S::hold_back);
            session::run(stream, caller, shared, place).await
        }
        Kind::Pair | Kind::Join => {
            let held = Held {
                place: Some(place),
                doors,
                source: caller.source,
            };
            serve_peer(stream, bytes, head, &shared, held).await
        }
        Kind::Reversed => {
            let transfer = named(&shared, &head)?;
            if !Preface::verify(&bytes, &transfer.preface_key) {
                return Err(Refusal::WrongKey);
            }
            // A peer that is gone already is missed where its connection is wanted.
            let _ = reversed::keep(&transfer, &head, stream).await;
            Ok(())
        }
        Kind::Edge => {
            let part = shared.streams.lock().get(&head.transfer_id).cloned();
            let part = part.ok_or(Refusal::NoTransfer)?;
            let is_own = caller.reached_as.is_none() && caller.source == own_user();
            drop(place);
            let place = doors.prove(caller.source);
            tokio::select! {
                biased;
                admitted = stages::admit(stream, &bytes, is_own, &part) => admitted,
                () = place.taken() => Err(Refusal::GaveWay),
            }
        }
        // Message sockets have listeners of their own.
        Kind::Message => Err(Refusal::NoPreface),
    }
}

/// The transfer that a preface names.
fn named(shared: &Shared, head: &Preface) -> Result<Arc<Transfer>, Refusal> {
    let transfers = shared.transfers.lock();
    let named = transfers.get(&head.transfer_id).cloned();
    named.ok_or(Refusal::NoTransfer)
}

/// Where a connection is counted.
pub(crate) struct Held<'a> {
    /// Its place among those that have proved nothing; none where this node connected.
    pub place: Option<Place>,
    pub doors: &'a Doors,
    pub source: Source,
}

/// What a peer wants after its preface, whichever of the two connected.
pub(crate) async fn serve_peer<S: Incoming>(
    mut stream: S,
    bytes: [u8; PREFACE_LEN],
    head: Preface,
    shared: &Shared,
    held: Held<'_>,
) -> Result<(), Refusal> {
    let transfer = named(shared, &head)?;
    match head.kind {
        Kind::Pair => {
            if !Preface::verify(&bytes, &transfer.preface_key) {
                return Err(Refusal::WrongKey);
            }
            drop(held.place);
            let place = held.doors.prove(held.source);
            let acceptor = tokio_rustls::TlsAcceptor::from(transfer.pair_server.clone());
            let mut stream = handshake(acceptor.accept(stream), &place).await?;
            let mut secret = PairSecret([0; 32]);
            let tls = stream.get_ref().1;
            tls.export_keying_material(&mut secret.0, tls::PAIR_LABEL, None)
                .map_err(|_| Refusal::Handshake)?;
            // A node speaks for itself only: its certificate names its number.
            let certificate = tls.peer_certificates().and_then(|chain| chain.first());
            if !certificate.is_some_and(|c| tls::names_node(c, node_of(&head))) {
                return Err(Refusal::WrongKey);
            }
            transfer.add_pair(node_of(&head), secret);
            // One byte says that streams may join now.
            let _ = stream.write_all(&[1]).await;
            let _ = stream.shutdown().await;
            Ok(())
        }
        Kind::Join => {
            let secret = transfer
                .admit(node_of(&head), &bytes, &head)
                .ok_or(Refusal::WrongKey)?;
            let is_rail = head.extra[RAIL_AT] == 1;
            if is_rail {
                let proof = connect::rail_proof(&secret.0, &head.nonce);
                if stream.write_all(&proof).await.is_err() {
                    return Ok(());
                }
            }
            drop(held.place);
            if let Ok(socket) = stream.into_data() {
                if let (DataSocket::Tcp(stream), true) = (&socket, is_rail) {
                    rails::bind_accepted(stream);
                }
                let index = u32::from_le_bytes(std::array::from_fn(|i| head.extra[4 + i]));
                transfer.serve_stream(socket, index, &secret, head.nonce);
            }
            Ok(())
        }
        Kind::Control | Kind::Message | Kind::Reversed | Kind::Edge => Err(Refusal::NoPreface),
    }
}

/// A TLS handshake, as long as the connection has its place.
async fn handshake<T, E>(
    accept: impl Future<Output = Result<T, E>>,
    place: &Place,
) -> Result<T, Refusal> {
    tokio::select! {
        biased;
        made = tokio::time::timeout(HANDSHAKE_TIMEOUT, accept) => match made {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(_)) | Err(_) => Err(Refusal::Handshake),
        },
        () = place.taken() => Err(Refusal::GaveWay),
    }
}

/// Raises the soft limit of open files to the hard one: every stream and every open file takes one,
/// and strangers must not use up what transfers need.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Best effort: a refusal leaves what there was.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}

/// Files and sockets that the process may have open.
fn descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |most| most as usize)
}

/// The node number a preface claims. In a pair handshake the certificate must name the same one.
pub(crate) fn node_of(head: &Preface) -> u32 {
    u32::from_le_bytes([head.extra[0], head.extra[1], head.extra[2], head.extra[3]])
}
