//! One node's part in a stream: starts a process of each group, passes them their connections, watches them.
//!
//! ```text
//!  master ── StreamOpen, StreamStart, StreamFinish ──▶ Stream ══ packets ══▶ process A
//!  peer   ── preface, proof (an edge) ───────────────▶   │    ══ packets ══▶ process B
//!                                                        └─ a thread: states, failures, ends of processes
//! ```
//!
//! The thread also sends what a process does not read at once, so that no connection waits for a process.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_lane::edge::{Edge, EdgeSecret, PROOF_LEN, RETRANSMIT_PAUSE_MAX};
use ropewalk_lane::mpi::join::{Place, RankKey};
use ropewalk_lane::mpi::launch::{Failed, Mpirun};
use ropewalk_lane::packets::{PACKET_MAX, Packet};
use ropewalk_lane::preface::PREFACE_LEN;
use ropewalk_lane::tcp::limit_retransmit_pause;
use ropewalk_proto::control::{
    self, FromAgent, FromStage, LENGTH_LEN, LaneKind, StageAccount, StageCause, StageEdge,
    StageRank, StageSetup, StageStatus, StreamFailed, StreamFinished, StreamOpen, StreamOpened,
    StreamStart, StreamStatus, TransferKind, TransferStatus, from_agent, from_stage, to_stage,
};
use ropewalk_proto::stage::group_name;
use ropewalk_store::StoreError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc::UnboundedSender;

use crate::AgentError;
use crate::counts::Moved;
use crate::host::Host;
use crate::incoming::{Incoming, Refusal};
use crate::interfaces;
use crate::streams::DataSocket;

mod open;
mod process;
#[cfg(test)]
mod tests;

use self::open::{Claim, Files, Output, refused};
use self::process::{Process, SendError};

/// A peer proves the stream's secret within this time.
const PROOF_TIMEOUT: Duration = Duration::from_secs(10);

/// What an agent needs to take part in streams.
#[derive(Clone, Debug)]
pub struct StageConfig {
    /// The command of one process: it runs `ropewalk_stage::run`.
    pub command: Vec<OsString>,
    /// Whether masters may have it run programs.
    pub runs_programs: bool,
    /// A folder of this user for what is compiled for the MPI of this host; `None`: it is compiled each time.
    pub cache: Option<PathBuf>,
}

/// One node's part in one stream.
pub(crate) struct Stream {
    pub id: [u8; 16],
    node: u32,
    secret: EdgeSecret,
    plain: bool,
    processes: Vec<Process>,
    // Of ranks: what proves them; what starts them, on the first node; those that have given their places, by their group.
    key: RankKey,
    mpirun: Mutex<Option<Mpirun>>,
    ranks: Mutex<HashMap<u32, UnixStream>>,
    // Wakes the watcher: packets wait for a process.
    wake: OwnedFd,
    // The newest of each process.
    statuses: Mutex<HashMap<u32, StageStatus>>,
    // What the last process writes.
    output: Mutex<Option<Output>>,
    // Until blocks move.
    claim: Mutex<Option<Claim>>,
    // Ends of processes are no failures any more.
    is_over: AtomicBool,
    watcher: Mutex<Option<JoinHandle<()>>>,
    began: Instant,
    outbox: UnboundedSender<FromAgent>,
}

impl Stream {
    /// Opens the files and starts the processes. Nothing has its name yet.
    pub fn open(
        open: StreamOpen,
        config: Option<&StageConfig>,
        host: &Host,
        outbox: UnboundedSender<FromAgent>,
        reached_as: Option<IpAddr>,
    ) -> Result<(Arc<Self>, StreamOpened), AgentError> {
        let Some(config) = config else {
            return Err(refused(
                "this agent takes part in no streams; use the agent of the program ropewalk",
            ));
        };
        open::check(&open, config.runs_programs)?;
        let (Ok(id), Some(secret)) = (
            open.stream.as_slice().try_into(),
            EdgeSecret::new(&open.secret),
        ) else {
            return Err(refused("the stream has no id or no secret"));
        };
        let starts_ranks = open.lane() == LaneKind::Mpi && open.node == 0;
        let mpirun = starts_ranks.then(|| find_mpirun(config)).transpose()?;
        let files = Files::open(&open, &host.roots)?;
        let open = StreamOpen {
            length: files.length,
            ..open
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let mut stream = Self {
            id,
            node: open.node,
            secret,
            plain: open.plain,
            processes: Vec::new(),
            key: RankKey::of(&open.secret),
            mpirun: Mutex::new(mpirun),
            ranks: Mutex::default(),
            wake: wake.map_err(|error| refused(format!("cannot make an event: {error}")))?,
            statuses: Mutex::default(),
            output: Mutex::new(files.output),
            claim: Mutex::new(files.claim),
            is_over: AtomicBool::new(false),
            watcher: Mutex::default(),
            began: Instant::now(),
            outbox,
        };
        if let Err(error) = stream.start_processes(config, &open, files.source, files.sink) {
            stream.reap();
            return Err(error);
        }
        let stream = Arc::new(stream);
        let watched = stream.clone();
        let watcher = std::thread::Builder::new().name("stages".into());
        match watcher.spawn(move || watched.watch()) {
            Ok(watcher) => *stream.watcher.lock() = Some(watcher),
            Err(error) => {
                stream.reap();
                return Err(refused(format!("cannot start a thread: {error}")));
            }
        }
        let usable = interfaces::usable(&[]);
        let candidates = interfaces::candidates(&usable, false, reached_as, host.port);
        let opened = StreamOpened {
            instance: host.instance.clone(),
            addresses: candidates
                .iter()
                .map(|(address, _)| address.to_string())
                .collect(),
            length: open.length,
            source: files.known_as,
        };
        Ok((stream, opened))
    }

    /// Starts a process of each group and sends it its setup. After an error some may run.
    fn start_processes(
        &mut self,
        config: &StageConfig,
        open: &StreamOpen,
        mut source: Option<File>,
        mut sink: Option<File>,
    ) -> Result<(), AgentError> {
        for group in 0..open.groups {
            let file = match group {
                0 => source.take(),
                _ if group + 1 == open.groups => sink.take(),
                _ => None,
            };
            let failed = |what: &str, error: &dyn std::fmt::Display| {
                let name = group_name(group);
                refused(format!("the process of {name} cannot be {what}: {error}"))
            };
            let process =
                Process::start(config, file).map_err(|error| failed("started", &error))?;
            self.processes.push(process);
            let setup = StageSetup {
                stream: Some(open.clone()),
                group,
            };
            let sent = self.send_to(group, to_stage::Body::Setup(setup), None);
            sent.map_err(|error| failed("set up", &error))?;
        }
        Ok(())
    }

    /// All nodes are ready: the processes connect.
    pub fn start(self: &Arc<Self>, start: &StreamStart) {
        // Every node has looked for the claims of the others.
        *self.claim.lock() = None;
        let parts = start.parts(PACKET_MAX);
        for group in 0..self.processes.len() as u32 {
            let mut parts = parts.iter();
            let sent = parts.try_for_each(|peers| {
                let peers = peers.to_vec();
                let body = to_stage::Body::Start(StreamStart { peers });
                self.send_to(group, body, None)
            });
            if let Err(error) = sent {
                let text = format!("cannot be given the addresses of the other nodes: {error}");
                self.fail(group, StageCause::Process, text);
            }
        }
        if let Some(mpirun) = &mut *self.mpirun.lock() {
            let agents = start.peers.iter().map(|peer| peer.instance.clone());
            let agents: Vec<String> = agents.collect();
            let own = self.clone();
            let failed = move |failed| match failed {
                Failed::Rank(text) => own.fail(0, StageCause::Process, text),
                Failed::Ended(text) => own.fail(0, StageCause::Peer, text),
            };
            let names = (&self.id, &self.key);
            let begun = mpirun.start(names, self.processes.len(), &agents, failed);
            if let Err(error) = begun {
                let text = format!("mpirun cannot be started: {error}");
                self.fail(0, StageCause::Process, text);
            }
        }
    }

    /// A rank of `mpirun` gives its place to the process of a group. Waits for it.
    fn take_rank(&self, group: u32, socket: UnixStream) -> Result<(), Refusal> {
        if group as usize >= self.processes.len() {
            return Err(Refusal::WrongKey);
        }
        let timeout = socket.set_read_timeout(Some(PROOF_TIMEOUT));
        let place = timeout.and_then(|()| Place::receive(&socket));
        let place = place.map_err(|_| Refusal::Left)?;
        let mut ranks = self.ranks.lock();
        if self.is_over.load(Ordering::Acquire) || ranks.contains_key(&group) {
            return Err(Refusal::WrongKey);
        }
        ranks.insert(group, socket);
        drop(ranks);
        let rank = StageRank {
            place: place.encode(),
        };
        if let Err(error) = self.send_to(group, to_stage::Body::Rank(rank), place.socket) {
            let text = format!("cannot be made a rank of mpirun: {error}");
            self.fail(group, StageCause::Process, text);
        }
        Ok(())
    }

    /// Sends a process a message, or has the watcher send it as soon as the process reads.
    fn send_to(
        &self,
        group: u32,
        body: to_stage::Body,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), SendError> {
        if self.processes[group as usize].send(body, descriptor)? {
            // A counter that is full wakes, too.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    /// What each process has done so far.
    pub fn status(&self) -> from_agent::Body {
        let stages = self.statuses.lock().values().cloned().collect();
        from_agent::Body::StreamStatus(StreamStatus { stages })
    }

    /// A figure of its processes' accounts, of what they received and of what they gave on, summed up.
    fn sum(&self, figure: impl Fn(&StageAccount) -> u64) -> (u64, u64) {
        let statuses = self.statuses.lock();
        let of = |account: fn(&StageStatus) -> Option<&StageAccount>| {
            statuses.values().filter_map(account).map(&figure).sum()
        };
        (
            of(|status| status.received.as_ref()),
            of(|status| status.dealt.as_ref()),
        )
    }

    /// Bytes of blocks that its processes gave on, and received.
    pub fn moved(&self) -> Moved {
        let (received, sent) = self.sum(|account| account.bytes);
        Moved {
            sent,
            received,
            delivered: 0,
        }
    }

    /// One line for `status`.
    pub fn status_line(&self) -> TransferStatus {
        let moved = self.moved();
        TransferStatus {
            transfer: self.id.to_vec(),
            kind: TransferKind::Stream.into(),
            sent: moved.sent,
            checked: moved.received,
            age: self.began.elapsed().as_nanos() as u64,
            blocks: self.sum(|account| account.blocks).0,
            ..TransferStatus::default()
        }
    }

    /// Has its master end it.
    pub fn cancel(&self) {
        let text = "the stream was cancelled at the agent";
        self.fail(0, StageCause::Process, text.into());
    }

    /// Which edge a preface asks for; `None` from a stranger.
    fn edge(&self, preface: &[u8; PREFACE_LEN], is_own: bool) -> Option<Edge> {
        let edge = self.secret.read(preface)?;
        // Not sealed within one user, or where nothing is.
        let may = edge.is_sealed || self.plain || is_own;
        let is_here = edge.to == self.node && (edge.group as usize) < self.processes.len();
        (is_here && may).then_some(edge)
    }

    /// Ends the processes; what was written gets its name, or is removed. Waits.
    pub fn finish(&self, commit: bool) -> StreamFinished {
        self.is_over.store(true, Ordering::Release);
        self.kill();
        if let Some(watcher) = self.watcher.lock().take() {
            let _ = watcher.join();
        }
        // Ranks end when their connections do, and with them mpirun.
        self.ranks.lock().clear();
        let mpirun = self.mpirun.lock().take();
        if let Some(mpirun) = mpirun {
            mpirun.end();
        }
        *self.claim.lock() = None;
        let output = self.output.lock().take();
        let error = match (output, commit) {
            (Some(output), true) => output.commit().err().map(|error| error.to_string()),
            _ => None,
        };
        StreamFinished {
            error: error.unwrap_or_default(),
        }
    }

    /// Whether what the last process wrote can get its name, as far as that is known before any node gives one.
    fn check(&self, group: u32) -> Option<Result<(), StoreError>> {
        let is_last = group as usize + 1 == self.processes.len();
        let output = self.output.lock();
        output.as_ref().filter(|_| is_last).map(Output::check)
    }

    fn kill(&self) {
        for process in &self.processes {
            process.kill();
        }
    }

    /// As [`Stream::kill`], and waits for them; while no watcher does.
    fn reap(&self) {
        self.kill();
        for process in &self.processes {
            process.end();
        }
    }

    fn send(&self, body: from_agent::Body) {
        let _ = self.outbox.send(FromAgent { body: Some(body) });
    }

    fn fail(&self, group: u32, cause: StageCause, message: String) {
        if !self.is_over.load(Ordering::Acquire) {
            self.send(from_agent::Body::StreamFailed(StreamFailed {
                group,
                cause: cause.into(),
                message,
            }));
        }
    }

    /// Until all processes have ended.
    fn watch(&self) {
        let mut left: Vec<u32> = (0..self.processes.len() as u32).collect();
        while !left.is_empty() {
            let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
            let processes = left.iter().map(|&group| &self.processes[group as usize]);
            fds.extend(processes.map(Process::waited_for));
            // An interrupted call finds nothing to read.
            let _ = poll(&mut fds, None);
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
            if ready.next() == Some(true) {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            }
            let ready: Vec<bool> = ready.collect();
            drop(fds);
            let mut ready = ready.into_iter();
            left.retain(|&group| !ready.next().unwrap_or(false) || self.attend(group));
        }
    }

    /// Sends a process what waits for it and takes its messages; false once it has ended.
    fn attend(&self, group: u32) -> bool {
        if let Err(error) = self.processes[group as usize].flush() {
            let text = format!("cannot be sent its messages: {error}");
            self.fail(group, StageCause::Process, text);
        }
        self.hear(group)
    }

    /// What a process says; false once it has ended.
    fn hear(&self, group: u32) -> bool {
        let process = &self.processes[group as usize];
        loop {
            let bytes = match process.receive() {
                Ok(Packet::Bytes(bytes, _)) => bytes,
                Ok(Packet::Nothing) => return true,
                Ok(Packet::End) | Err(_) => break,
            };
            match bytes.get(LENGTH_LEN..).map(control::decode::<FromStage>) {
                Some(Ok(FromStage {
                    body: Some(from_stage::Body::Status(status)),
                })) => {
                    let has_ended = status.ended;
                    if has_ended && let Some(Err(error)) = self.check(group) {
                        self.fail(group, StageCause::Process, error.to_string());
                    }
                    self.statuses
                        .lock()
                        .insert(group, StageStatus { group, ..status });
                    if has_ended {
                        self.send(self.status());
                    }
                }
                Some(Ok(FromStage {
                    body: Some(from_stage::Body::Failed(failed)),
                })) => {
                    let cause = failed.cause();
                    self.fail(group, cause, failed.message);
                }
                _ => self.fail(
                    group,
                    StageCause::Process,
                    "sent what is no message; this is a bug".into(),
                ),
            }
        }
        if let Some(text) = process.end() {
            self.fail(group, StageCause::Process, text);
        }
        false
    }
}

/// What starts the ranks of a stream.
fn find_mpirun(config: &StageConfig) -> Result<Mpirun, AgentError> {
    // For `mpirun`, /proc/self/exe is another program.
    let program = own_program(config).ok_or_else(|| refused("the agent has no program"))?;
    let found = Mpirun::find(config.cache.as_deref(), program);
    found.map_err(|error| refused(format!("--lane mpi: {error}")))
}

/// The program of this agent's processes, as other processes find it.
fn own_program(config: &StageConfig) -> Option<PathBuf> {
    let program = Path::new(config.command.first()?);
    Some(match program.strip_prefix("/proc/self") {
        Ok(rest) => Path::new("/proc")
            .join(std::process::id().to_string())
            .join(rest),
        Err(_) => program.to_owned(),
    })
}

/// A connection with the preface of an edge: the handshake, then it is the process's.
pub(crate) async fn admit<S: Incoming>(
    mut stream: S,
    preface: &[u8; PREFACE_LEN],
    is_own: bool,
    part: &Stream,
) -> Result<(), Refusal> {
    let edge = part.edge(preface, is_own).ok_or(Refusal::WrongKey)?;
    limit_retransmit_pause(&stream, RETRANSMIT_PAUSE_MAX);
    let answered = part.secret.answer(preface).ok_or(Refusal::WrongKey)?;
    let mut proof = [0; PROOF_LEN];
    let exchange = async {
        stream.write_all(&answered.bytes).await?;
        stream.read_exact(&mut proof).await
    };
    match tokio::time::timeout(PROOF_TIMEOUT, exchange).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) | Err(_) => return Err(Refusal::Handshake),
    }
    let keys = answered.verify(&proof).ok_or(Refusal::WrongKey)?;
    let Ok(socket) = stream.into_data() else {
        return Err(Refusal::Left);
    };
    let (mut toward_receiver, mut toward_sender) = (Vec::new(), Vec::new());
    if edge.is_sealed {
        toward_receiver.extend_from_slice(&keys.toward_receiver);
        toward_sender.extend_from_slice(&keys.toward_sender);
    }
    let message = StageEdge {
        node: edge.from,
        toward_receiver,
        toward_sender,
    };
    let body = to_stage::Body::Edge(message);
    if let Err(error) = part.send_to(edge.group, body, Some(socket.into())) {
        let text = format!("cannot be given a connection: {error}");
        part.fail(edge.group, StageCause::Process, text);
    }
    Ok(())
}

/// A connection with the preface of a rank.
pub(crate) async fn admit_rank<S: Incoming>(
    stream: S,
    preface: &[u8; PREFACE_LEN],
    is_own: bool,
    part: Arc<Stream>,
) -> Result<(), Refusal> {
    let group = part.key.read(preface).filter(|_| is_own);
    let group = group.ok_or(Refusal::WrongKey)?;
    let Ok(DataSocket::Unix(socket)) = stream.into_data() else {
        return Err(Refusal::Left);
    };
    let taking = tokio::task::spawn_blocking(move || part.take_rank(group, socket));
    taking.await.unwrap_or(Err(Refusal::Left))
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}
