//! Accepts connections, reads their preface and hands them to where they belong.

use std::collections::HashMap;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_lane::preface::{self, Kind, MacKey, PREFACE_LEN, Preface};
use ropewalk_lane::seal::PairSecret;
use ropewalk_lane::tls;
use ropewalk_store::{Access, Roots};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use crate::connect::{self, RAIL_AT};
use crate::streams::DataSocket;
use crate::transfer::Transfer;
use crate::tunnel::Tunnel;
use crate::{AgentError, rails, session};

/// A connection that has not sent its preface by then is closed.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that may be in their preface or handshake at once; more wait in the kernel's queue,
/// so that a flood of strangers costs a bounded amount of memory.
const UNPROVEN_MAX: usize = 256;

/// How an agent runs.
#[derive(Clone)]
pub struct AgentConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: Vec<SocketAddr>,
    /// What masters must know.
    pub token: [u8; 32],
    /// Folders served, and whether transfers may write there.
    pub roots: Vec<(PathBuf, bool)>,
}

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
    control: tokio_rustls::TlsAcceptor,
    pub roots: Roots,
    pub instance: String,
    pub port: u16,
    pub transfers: Mutex<HashMap<[u8; 16], Arc<Transfer>>>,
    pub shutdown: watch::Receiver<bool>,
    pub work: Work,
    /// Through the master that started this agent, if one did.
    pub tunnel: std::sync::OnceLock<Arc<Tunnel>>,
    permits: Arc<tokio::sync::Semaphore>,
}

/// Held for reading while files are made, given their names or removed: the agent does not exit meanwhile.
pub(crate) type Work = Arc<tokio::sync::RwLock<()>>;

/// A bound agent, ready to serve.
pub struct Agent {
    listeners: Vec<TcpListener>,
    local: Option<std::os::unix::net::UnixListener>,
    shared: Arc<Shared>,
    shutdown: watch::Sender<bool>,
}

/// A master that acknowledges no status for this long is gone; what it started is cleaned up.
const MASTER_SILENCE_MAX: Duration = Duration::from_secs(30);

/// Name of the abstract socket on which an agent takes streams from its own host.
pub(crate) fn local_name(instance: &str) -> Vec<u8> {
    format!("ropewalk-{instance}").into_bytes()
}

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
        let local = ropewalk_lane::unix::listen(&local_name(&instance)).ok();
        let (shutdown, shutdown_seen) = watch::channel(false);
        let port = listeners
            .first()
            .and_then(|l| l.local_addr().ok())
            .map_or(0, |a| a.port());
        let control = tls::control_server()?;
        let shared = Shared {
            token_id: preface::key_id(&config.token),
            token_key: MacKey::new(&config.token),
            token: config.token,
            control: control.into(),
            roots,
            instance,
            port,
            transfers: Mutex::default(),
            shutdown: shutdown_seen,
            work: Work::default(),
            tunnel: std::sync::OnceLock::new(),
            permits: Arc::new(tokio::sync::Semaphore::new(UNPROVEN_MAX)),
        };
        Ok(Self {
            listeners,
            local,
            shared: Arc::new(shared),
            shutdown,
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
        let permits = self.shared.permits.clone();
        let mut tasks = tokio::task::JoinSet::new();
        for listener in self.listeners {
            let address = listener
                .local_addr()
                .unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
            let to_error = |source| AgentError::Listen { address, source };
            listener.set_nonblocking(true).map_err(to_error)?;
            let listener = tokio::net::TcpListener::from_std(listener).map_err(to_error)?;
            let (shared, permits) = (self.shared.clone(), permits.clone());
            tasks.spawn(async move {
                loop {
                    let Ok(permit) = permits.clone().acquire_owned().await else {
                        return;
                    };
                    match listener.accept().await {
                        Ok((stream, _)) => {
                            let shared = shared.clone();
                            tokio::spawn(async move {
                                let _ = stream.set_nodelay(true);
                                let local = stream.local_addr().ok();
                                welcome(stream, local, shared, permit).await;
                            });
                        }
                        // Out of descriptors, most likely: let others finish first.
                        Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                    }
                }
            });
        }
        if let Some(local) = self.local {
            local.set_nonblocking(true).ok();
            if let Ok(listener) = tokio::net::UnixListener::from_std(local) {
                let (shared, permits) = (self.shared.clone(), permits.clone());
                tasks.spawn(async move {
                    loop {
                        let Ok(permit) = permits.clone().acquire_owned().await else {
                            return;
                        };
                        match listener.accept().await {
                            Ok((stream, _)) => {
                                tokio::spawn(welcome(stream, None, shared.clone(), permit));
                            }
                            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                        }
                    }
                });
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
            let _ = tokio::task::spawn_blocking(move || transfer.stop(true)).await;
        }
        // What sessions took out of the list first they end themselves.
        drop(self.shared.work.write().await);
        Ok(())
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
    socket.listen(1024)?;
    Ok(socket.into())
}

/// Sockets an agent takes connections on.
pub(crate) trait Incoming: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn into_data(self) -> std::io::Result<DataSocket>;
    /// Makes the connection fail when the peer's host is gone without a word.
    fn expect_answers(&self) {}
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
        // Most messages are answered at once, and the answer acknowledges them.
        let _ = socket.set_tcp_quickack(false);
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
    if let Ok(permit) = shared.permits.clone().acquire_owned().await {
        welcome(stream, None, shared, permit).await;
    }
}

/// Reads the preface and passes the connection on. Strangers are dropped without an answer.
async fn welcome<S: Incoming>(
    mut stream: S,
    local: Option<SocketAddr>,
    shared: Arc<Shared>,
    permit: tokio::sync::OwnedSemaphorePermit,
) {
    let mut bytes = [0; PREFACE_LEN];
    let read = tokio::time::timeout(PREFACE_TIMEOUT, stream.read_exact(&mut bytes)).await;
    if !matches!(read, Ok(Ok(_))) {
        return;
    }
    let Ok(head) = Preface::parse(&bytes) else {
        return;
    };
    match head.kind {
        Kind::Control => {
            if head.key_id != shared.token_id || !Preface::verify(&bytes, &shared.token_key) {
                return;
            }
            stream.expect_answers();
            let handshake =
                tokio::time::timeout(PREFACE_TIMEOUT, shared.control.clone().accept(stream)).await;
            if let Ok(Ok(stream)) = handshake {
                let reached_as = local.map(|address| address.ip().to_canonical());
                session::run(stream, reached_as, shared, permit).await;
            }
        }
        Kind::Pair => {
            let Some(transfer) = shared.transfers.lock().get(&head.transfer_id).cloned() else {
                return;
            };
            if !Preface::verify(&bytes, &transfer.preface_key) {
                return;
            }
            let acceptor = tokio_rustls::TlsAcceptor::from(transfer.pair_server.clone());
            let Ok(Ok(mut stream)) =
                tokio::time::timeout(PREFACE_TIMEOUT, acceptor.accept(stream)).await
            else {
                return;
            };
            let mut secret = PairSecret([0; 32]);
            let exported =
                stream
                    .get_ref()
                    .1
                    .export_keying_material(&mut secret.0, tls::PAIR_LABEL, None);
            if exported.is_err() {
                return;
            }
            // A node speaks for itself only: its certificate names its number.
            let certificate = stream
                .get_ref()
                .1
                .peer_certificates()
                .and_then(|chain| chain.first());
            if !certificate.is_some_and(|c| tls::names_node(c, node_of(&head))) {
                return;
            }
            transfer.add_pair(node_of(&head), secret);
            // One byte says that streams may join now.
            let _ = stream.write_all(&[1]).await;
            let _ = stream.shutdown().await;
        }
        Kind::Join => {
            let Some(transfer) = shared.transfers.lock().get(&head.transfer_id).cloned() else {
                return;
            };
            let Some(secret) = transfer.admit(node_of(&head), &bytes, &head) else {
                return;
            };
            let is_rail = head.extra[RAIL_AT] == 1;
            if is_rail {
                let proof = connect::rail_proof(&secret.0, &head.nonce);
                if stream.write_all(&proof).await.is_err() {
                    return;
                }
            }
            if let Ok(socket) = stream.into_data() {
                if let (DataSocket::Tcp(stream), true) = (&socket, is_rail) {
                    rails::bind_accepted(stream);
                }
                let index = u32::from_le_bytes(std::array::from_fn(|i| head.extra[4 + i]));
                transfer.serve_stream(socket, index, &secret, head.nonce);
            }
        }
        // Message sockets have listeners of their own.
        Kind::Message => {}
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

/// The node number a preface claims. In a pair handshake the certificate must name the same one.
fn node_of(head: &Preface) -> u32 {
    u32::from_le_bytes([head.extra[0], head.extra[1], head.extra[2], head.extra[3]])
}
