//! Accepts connections, reads their preface and hands them to where they belong.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_lane::control::accept;
use ropewalk_lane::preface::{self, Kind, MacKey, PREFACE_LEN, Preface};
use ropewalk_lane::{open_files, tls, unix};
use ropewalk_proto::admission::Source;
use ropewalk_proto::tunnel::Permitted;
use ropewalk_store::{Access, Buffers, Roots};
use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;

use crate::counts::Counts;
use crate::door::{Doors, Place};
use crate::host::{Host, Work};
use crate::incoming::{Caller, Incoming, PREFACE_TIMEOUT, Refusal, own_user};
use crate::log::{self, Log, LogSink};
use crate::meter::Meter;
use crate::peers::{HANDSHAKE_TIMEOUT, Held, handshake, named, serve_peer};
use crate::shared::{Around, Shared};
use crate::stages::{self, StageConfig, Stream};
use crate::streams::DataSocket;
use crate::transfer::Transfer;
use crate::{AgentError, reversed, session};

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
    /// Gets a line for each transfer that begins or ends, each refusal, and, some a second, each unauthenticated peer.
    pub log: Option<LogSink>,
    /// What it runs for streams; `None`: it takes part in none.
    pub stages: Option<StageConfig>,
    /// Where it connects and listens for tunnels.
    pub forwards: Permitted,
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

/// A bound agent, ready to serve.
pub struct Agent {
    listeners: Vec<TcpListener>,
    local: Option<std::os::unix::net::UnixListener>,
    pub(crate) shared: Arc<Shared>,
    shutdown: watch::Sender<bool>,
    log: Option<log::Writer>,
}

impl Agent {
    /// Listens on every address. Nothing is served before [`Agent::serve`].
    ///
    /// # Errors
    /// [`AgentError::Listen`] names the address; [`AgentError::Store`] names a root that is not a folder.
    pub fn bind(config: AgentConfig) -> Result<Self, AgentError> {
        // Every stream and every open file takes one, and unauthenticated peers must not use up what transfers need.
        open_files::raise_limit();
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
            host: Host {
                roots,
                buffers: Buffers::default(),
                expanded: config.expanded.into_iter().collect(),
                instance,
                port,
                work: Work::default(),
                tunnel: OnceLock::new(),
                log: log.unwrap_or_default(),
                counts: Counts::default(),
                began: Instant::now(),
            },
            token_id: preface::key_id(&config.token),
            token_key: MacKey::new(&config.token),
            token: config.token,
            control,
            transfers: Mutex::default(),
            openings: Mutex::default(),
            streams: Mutex::default(),
            stages: config.stages,
            permitted: config.forwards,
            forwards: Mutex::default(),
            masters: watch::Sender::new(0),
            shutdown: shutdown_seen,
            local_doors: Arc::new(Doors::new(open_files::limit())),
            around: OnceLock::new(),
        };
        let shared = Arc::new(shared);
        Ok(Self {
            listeners,
            local,
            shared,
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

    /// The buffers of this program that transfers read and write: lent at any time.
    pub fn buffers(&self) -> Buffers {
        self.shared.host.buffers.clone()
    }

    /// Reads what the agent does, while it serves, too.
    pub fn meter(&self) -> Meter {
        Meter::new(self.shared.clone())
    }

    /// Masters that ask for it get what this returns, too: for an agent that its master started with the user's own login.
    pub fn look_around(&self, around: Around) {
        // The first one counts.
        let _ = self.shared.around.set(around);
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Random name of this run.
    pub fn instance(&self) -> &str {
        &self.shared.host.instance
    }

    /// Serves until `shutdown` completes, then stops all transfers and waits until their files are in order.
    ///
    /// # Errors
    /// [`AgentError::Listen`] when a listener cannot be used by the runtime.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
        let mut tasks = tokio::task::JoinSet::new();
        let doors = Arc::new(Doors::new(open_files::limit()));
        for listener in self.listeners {
            let listener = for_runtime(listener)?;
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
            let stop = move || transfer.stop_without_master("the agent was asked to end");
            let _ = tokio::task::spawn_blocking(stop).await;
        }
        let streams: Vec<Arc<Stream>> =
            self.shared.streams.lock().drain().map(|(_, s)| s).collect();
        for stream in streams {
            let _ = tokio::task::spawn_blocking(move || stream.finish(false)).await;
        }
        let forwards: Vec<_> = self.shared.forwards.lock().values().cloned().collect();
        for forward in forwards {
            forward.end(&self.shared);
        }
        // What sessions took out of the list first they end themselves.
        drop(self.shared.host.work.write().await);
        if let Some(log) = self.log {
            self.shared.host.log.close();
            let _ = tokio::task::spawn_blocking(|| log.flush()).await;
        }
        Ok(())
    }
}

/// A listener that the runtime accepts connections on.
pub(crate) fn for_runtime(listener: TcpListener) -> Result<tokio::net::TcpListener, AgentError> {
    let address = listener
        .local_addr()
        .unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    let to_error = |source| AgentError::Listen { address, source };
    listener.set_nonblocking(true).map_err(to_error)?;
    tokio::net::TcpListener::from_std(listener).map_err(to_error)
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
pub(crate) fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
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

/// Gives a connection a place and a task of its own.
async fn receive<S: Incoming>(stream: S, caller: Caller, doors: &Arc<Doors>, shared: &Arc<Shared>) {
    if let Some(place) = doors.enter(caller.source).await {
        let (doors, shared) = (doors.clone(), shared.clone());
        tokio::spawn(async move {
            let name = caller.name.clone();
            if let Err(refusal) = welcome(stream, caller, place, &doors, shared.clone()).await {
                shared.host.counts.change(|totals| totals.strangers += 1);
                shared.host.log.stranger(|| format!("{name}: {refusal}"));
            }
        });
    }
}

/// After a failed accept. One connection that broke before it was accepted says nothing about the others.
pub(crate) async fn rest(error: &std::io::Error) {
    if error.kind() != std::io::ErrorKind::ConnectionAborted {
        tokio::time::sleep(REST).await;
    }
}

/// Reads what has arrived, without waiting. The runtime would wait for its next look at the socket first.
fn arrived<S: Incoming>(stream: &S, into: &mut [u8]) -> usize {
    rustix::net::recv(stream, into, rustix::net::RecvFlags::DONTWAIT).map_or(0, |(read, _)| read)
}

/// Reads the preface. One that must give way is looked at once more: what has arrived counts.
pub(crate) async fn hear<S: Incoming>(
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
            if !Preface::verify(&bytes, &transfer.member.preface_key) {
                return Err(Refusal::WrongKey);
            }
            // A peer that is gone already is missed where its connection is wanted.
            let _ = reversed::keep(&transfer.member, &head, stream).await;
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
        Kind::Rank => {
            let part = shared.streams.lock().get(&head.transfer_id).cloned();
            let part = part.ok_or(Refusal::NoTransfer)?;
            let is_own = caller.reached_as.is_none() && caller.source == own_user();
            stages::admit_rank(stream, &bytes, is_own, part).await
        }
        Kind::Message => {
            let forward = shared.forwards.lock().get(&head.key_id).cloned();
            let forward = forward.ok_or(Refusal::NoTransfer)?;
            match stream.into_data() {
                Ok(DataSocket::Tcp(stream)) => forward.give(stream, bytes),
                Ok(DataSocket::Unix(_)) | Err(_) => return Err(Refusal::Left),
            }
            Ok(())
        }
        Kind::Trip => {
            let transfer = named(&shared, &head)?;
            let is_signed = Preface::verify(&bytes, &transfer.member.preface_key);
            is_signed.then_some(()).ok_or(Refusal::WrongKey)
        }
        // It has listeners of its own.
        Kind::Master => Err(Refusal::NoPreface),
    }
}
