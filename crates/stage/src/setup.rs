//! From the agent's first packet to the first block: what this process is, its connections.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::PipeReader;
use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::JoinHandle;

use ropewalk_lane::edge::EdgeSecret;
use ropewalk_lane::mpi::{self, join::Place};
use ropewalk_lane::packets::{Packet, Packets};
use ropewalk_lane::seal::{Records, StreamKeys, derive};
use ropewalk_lane::udp::shared::{self, Shared};
use ropewalk_lane::udp::wake_on_time;
use ropewalk_lane::{Check, Protection};
use ropewalk_model::ByteRate;
use ropewalk_proto::control::{
    self, DealKind, FromStage, LENGTH_LEN, LaneKind, StageCause, StageEdge, StageSetup,
    StreamFailed, StreamOpen, ToStage, from_stage, to_stage,
};
use ropewalk_proto::stage::datagrams::{Flow, MTU_MAX};
use ropewalk_proto::stage::deal::Deal;
use ropewalk_proto::stage::frame::HEADER_LEN;
use ropewalk_proto::stage::process::{Process, Role, Settings};
use ropewalk_proto::stage::shuffle::Shuffle;
use ropewalk_proto::stage::{
    BLOCK_MAX, BLOCK_MIN, BUFFERS_MIN, GROUPS_MAX, MEMORY_MAX, NODES_MAX, group_name,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpgrp, getpid, kill_process_group};
use socket2::{Domain, SockRef};

use crate::datagrams::{self, Datagrams, Edge};
use crate::dial::{Connected, Dial};
use crate::drive::{Drive, Edges};
use crate::ends::{Appending, Sink, Source};
use crate::error::StageError;
use crate::inbound::{Inbound, Sealed};
use crate::link::Link;
use crate::outbound::Outbound;
use crate::parts::Parts;
use crate::pool::TAG_LEN;
use crate::records::Dealing;
use crate::shell::Shell;

/// Receive buffer of a socket of datagrams at least and at most, in the kernel's count, which is up to twice that of contents.
const RECEIVE_MIN: u64 = 1 << 20;
/// See [`RECEIVE_MIN`].
const RECEIVE_MAX: u64 = 64 << 20;

/// The agent at the other end of standard input.
pub(crate) struct Agent {
    pub packets: Packets,
    pub group: u32,
}

impl Agent {
    /// What the agent has sent, if anything.
    pub fn receive(&self) -> Result<Option<(to_stage::Body, Option<OwnedFd>)>, StageError> {
        let packet = self
            .packets
            .receive()
            .map_err(|error| StageError::Agent(error.to_string()))?;
        let (bytes, descriptor) = match packet {
            Packet::Nothing => return Ok(None),
            Packet::End => return Err(StageError::Ended),
            Packet::Bytes(bytes, descriptor) => (bytes, descriptor),
        };
        let message = bytes.get(LENGTH_LEN..).map(control::decode::<ToStage>);
        match message {
            Some(Ok(ToStage { body: Some(body) })) => Ok(Some((body, descriptor))),
            _ => Err(StageError::Agent("it has no known body".into())),
        }
    }

    /// The next packet; `None` once `other` can be read.
    fn wait(
        &self,
        other: Option<&PipeReader>,
    ) -> Result<Option<(to_stage::Body, Option<OwnedFd>)>, StageError> {
        loop {
            if let Some(received) = self.receive()? {
                return Ok(Some(received));
            }
            let mut fds = vec![PollFd::new(&self.packets, PollFlags::IN)];
            fds.extend(other.map(|other| PollFd::new(other, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(StageError::Agent(error.to_string())),
            }
            if fds.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
                return Ok(None);
            }
        }
    }

    /// Reports; an agent that is gone is noticed elsewhere.
    pub fn send(&self, body: from_stage::Body) {
        let message = FromStage { body: Some(body) };
        let _ = self.packets.send(&control::encode(&message), None);
    }

    fn fail(&self, cause: StageCause, message: String) {
        self.send(from_stage::Body::Failed(StreamFailed {
            group: self.group,
            cause: cause.into(),
            message,
        }));
    }
}

/// Runs one process of a stream: its agent is at standard input, its file, if it has one, is standard output. Returns when the
/// agent ends it; false where it failed. A process that leads its group ends with that group, so that nothing stays of what its
/// program has started.
#[must_use]
pub fn run() -> bool {
    run_with(Flow::Credit)
}

/// As [`run`], with another flow control of datagrams: for measurements, of which all processes of a stream have to be part.
#[must_use]
pub fn run_with(flow: Flow) -> bool {
    let Ok(input) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return false;
    };
    let mut agent = Agent {
        packets: Packets::from(input),
        group: 0,
    };
    let is_well = run_for(&mut agent, flow);
    end_group();
    is_well
}

/// Ends what this process has started, and this process, where it leads its group.
fn end_group() {
    let (own, group) = (getpid(), getpgrp());
    if own == group {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Has this process end with its agent, wherever it is: MPI waits for other ranks without an end.
fn end_with(agent: &Agent) -> std::io::Result<()> {
    let packets = agent.packets.as_fd().try_clone_to_owned()?;
    let watch = move || {
        loop {
            let mut fds = [PollFd::new(&packets, PollFlags::empty())];
            match poll(&mut fds, None) {
                Ok(_) if !fds[0].revents().is_empty() => {
                    end_group();
                    std::process::exit(1);
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => std::process::exit(1),
            }
        }
    };
    let builder = std::thread::Builder::new().name("agent".into());
    builder.spawn(watch).map(drop)
}

/// Makes this process a rank of MPI. Its file is another descriptor than standard output by then.
fn become_rank(agent: &Agent, place: Place) -> Result<(), StageError> {
    end_with(agent).map_err(|source| StageError::System {
        doing: "starting a thread",
        source,
    })?;
    // Libraries of MPI write warnings to standard output, which is the file of this process.
    rustix::stdio::dup2_stdout(std::io::stderr()).map_err(|errno| StageError::System {
        doing: "connecting standard output with standard error",
        source: errno.into(),
    })?;
    Ok(mpi::start(place)?)
}

fn run_for(agent: &mut Agent, flow: Flow) -> bool {
    match carry_out(agent, flow) {
        Ok(()) => true,
        Err(StageError::Ended) => false,
        Err(error) => {
            agent.fail(error.cause(), error.to_string());
            // The report is read before this process is seen to be gone.
            while agent.wait(None).is_ok() {}
            false
        }
    }
}

fn carry_out(agent: &mut Agent, flow: Flow) -> Result<(), StageError> {
    let Some((to_stage::Body::Setup(setup), _)) = agent.wait(None)? else {
        return Err(StageError::Agent("it does not begin with a setup".into()));
    };
    agent.group = setup.group;
    let StageSetup {
        stream: Some(stream),
        group,
    } = setup
    else {
        return Err(StageError::Agent("its setup is empty".into()));
    };
    let plan = Arc::new(Plan::new(stream, group)?);
    // Programs are started before this process becomes a rank: they are none.
    let ends = plan.ends()?;
    let Connections {
        peers,
        mut edges,
        outputs,
    } = Connections::collect(agent, &plan)?;
    let (outputs, to) = outputs.into_iter().unzip();
    let (mut inputs, mut from) = (Vec::new(), Vec::new());
    for node in &plan.before {
        let Some((descriptor, edge)) = edges.remove(node) else {
            return Err(StageError::Agent(format!(
                "it gave a connection of node {node} that sends nothing here"
            )));
        };
        let name = plan.name(&peers, *node, group.wrapping_sub(1));
        let (input, edge) = plan.inbound(descriptor, &edge, name)?;
        inputs.push(Some(input));
        from.push(edge);
    }
    let datagrams = plan.datagrams(flow, to, from)?;
    let settings = Settings {
        role: plan.role,
        node: plan.stream.node,
        group,
        inputs: inputs.len(),
        outputs: plan.after.len(),
        block: plan.block,
        buffers: plan.stream.buffers as usize,
        deal: match plan.stream.deal() {
            DealKind::Random => Deal::Random,
            DealKind::Keyed => Deal::Keyed,
            DealKind::Numbered => Deal::Numbered,
        },
        seed: plan.stream.seed,
    };
    let key = derive(&plan.stream.secret, "ropewalk stream account", &[]);
    let edges = Edges {
        inputs,
        outputs,
        datagrams,
    };
    let file = match plan.role {
        Role::Source => &plan.stream.from,
        _ => &plan.stream.to,
    };
    Drive::new(agent, Process::new(settings), edges, ends, plan.block, key)
        .run()
        .map_err(|error| error.of_file(file))
}

/// The connections of a process.
struct Connections {
    peers: Arc<[control::Peer]>,
    // By node: those that the agent has accepted.
    edges: BTreeMap<u32, (OwnedFd, StageEdge)>,
    // Each with what its datagrams need, where it has some.
    outputs: Vec<(Outbound, Option<Edge>)>,
}

impl Connections {
    /// Connects to the next group as soon as its addresses are known, and takes connections from the agent meanwhile: peers connect
    /// as soon as their agents have the start, and what is not read fills the agent's socket.
    fn collect(agent: &Agent, plan: &Arc<Plan>) -> Result<Self, StageError> {
        let mut edges = BTreeMap::new();
        let mut peers: Arc<[control::Peer]> = Arc::new([]);
        let mut known = Vec::new();
        let mut dialling: Option<Dialling> = None;
        let mut outputs = None;
        // A rank names itself on each connection.
        let mut is_rank = plan.stream.lane() != LaneKind::Mpi;
        while outputs.is_none() || edges.len() < plan.before.len() {
            let ended = dialling.as_ref().map(|dialling| &dialling.ended);
            match agent.wait(ended)? {
                Some((to_stage::Body::Edge(edge), Some(descriptor))) => {
                    edges.insert(edge.node, (descriptor, edge));
                }
                // In parts, of which each fits a packet.
                Some((to_stage::Body::Start(start), _)) if peers.is_empty() => {
                    known.extend(start.peers);
                }
                Some((to_stage::Body::Rank(rank), socket)) if !is_rank => {
                    become_rank(agent, Place::decode(&rank.place, socket))?;
                    is_rank = true;
                }
                Some(_) => {
                    return Err(StageError::Agent("it has no sense before the start".into()));
                }
                None => {
                    let connected = dialling.take().map(Dialling::finish).transpose()?;
                    outputs = connected
                        .map(|connected| plan.outputs(connected))
                        .transpose()?;
                }
            }
            if is_rank && peers.is_empty() && known.len() >= plan.stream.nodes as usize {
                peers = std::mem::take(&mut known).into();
                dialling = Some(Dialling::start(plan.clone(), peers.clone())?);
            }
        }
        Ok(Self {
            peers,
            edges,
            outputs: outputs.unwrap_or_default(),
        })
    }
}

/// A thread that connects to the processes of the next group.
struct Dialling {
    // Can be read once the thread has ended.
    ended: PipeReader,
    // Connections to processes of the next group, which have names for errors.
    thread: JoinHandle<Result<Vec<(Connected, String)>, StageError>>,
}

impl Dialling {
    fn start(plan: Arc<Plan>, peers: Arc<[control::Peer]>) -> Result<Self, StageError> {
        let failed = |source| StageError::System {
            doing: "starting a thread",
            source,
        };
        let (ended, end) = std::io::pipe().map_err(failed)?;
        let thread = std::thread::Builder::new().name("dial".into());
        let thread = thread.spawn(move || {
            let connected = plan.connect(&peers);
            drop(end);
            connected
        });
        Ok(Self {
            ended,
            thread: thread.map_err(failed)?,
        })
    }

    fn finish(self) -> Result<Vec<(Connected, String)>, StageError> {
        self.thread
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// What a process does beside passing blocks on.
pub(crate) enum Ends {
    Source(Source),
    Relay,
    Program(Box<Shell>),
    Sink(Sink),
}

/// What the setup says, checked.
struct Plan {
    stream: StreamOpen,
    group: u32,
    role: Role,
    block: usize,
    // Nodes whose processes of the group before send here, and those that this process sends to.
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Plan {
    fn new(stream: StreamOpen, group: u32) -> Result<Self, StageError> {
        let is_sane = (2..=GROUPS_MAX).contains(&stream.groups)
            && group < stream.groups
            && (1..=NODES_MAX).contains(&stream.nodes)
            && stream.node < stream.nodes
            && (BLOCK_MIN..=BLOCK_MAX).contains(&stream.block)
            && (BUFFERS_MIN..=MEMORY_MAX / stream.block).contains(&stream.buffers);
        if !is_sane {
            return Err(StageError::Agent("its setup is out of bounds".into()));
        }
        let edges = |from: Option<u32>| -> Vec<u32> {
            match from {
                None => Vec::new(),
                Some(from) if from + 1 >= stream.groups => Vec::new(),
                Some(from) if stream.local.contains(&from) => vec![stream.node],
                Some(_) => (0..stream.nodes).collect(),
            }
        };
        let (before, after) = (edges(group.checked_sub(1)), edges(Some(group)));
        let has_program = stream.programs.iter().any(|program| program.group == group);
        let role = match (before.is_empty(), after.is_empty(), has_program) {
            (true, _, _) => Role::Source,
            (_, true, _) => Role::Sink,
            (false, false, true) => Role::Program,
            (false, false, false) => Role::Relay,
        };
        Ok(Self {
            block: stream.block as usize,
            stream,
            group,
            role,
            before,
            after,
        })
    }

    /// The process of a group on a node, for errors.
    fn name(&self, peers: &[control::Peer], node: u32, group: u32) -> String {
        let peer = peers.iter().find(|peer| peer.node == node);
        let name = peer.map_or_else(|| format!("node {node}"), |peer| peer.name.clone());
        format!("{} on {name}", group_name(group))
    }

    fn ends(&self) -> Result<Ends, StageError> {
        let file = || -> Result<File, StageError> {
            let file = std::io::stdout().as_fd().try_clone_to_owned();
            file.map(File::from).map_err(|source| StageError::File {
                doing: "taking over",
                file: String::new(),
                source,
            })
        };
        if let Some(shuffle) = &self.stream.shuffle {
            return self.folder_ends(shuffle.into(), file()?.into());
        }
        let programs = &self.stream.programs;
        if let Some(program) = programs.iter().find(|program| program.group == self.group) {
            let variables = [
                ("ROPEWALK_NODE", (self.stream.node + 1).to_string()),
                ("ROPEWALK_STAGE", group_name(self.group)),
            ];
            let ends = (!self.before.is_empty(), !self.after.is_empty());
            let shell = Shell::start(
                &program.command,
                program.lines,
                self.block,
                &variables,
                ends,
            )?;
            return Ok(Ends::Program(Box::new(shell)));
        }
        Ok(match self.role {
            Role::Source if self.stream.from.is_empty() => {
                Ends::Source(Source::Zeros(self.stream.length))
            }
            Role::Source if programs.iter().any(|program| program.lines) => {
                Ends::Source(Source::lines(file()?, self.stream.length)?)
            }
            Role::Source => Ends::Source(Source::file(file()?, self.stream.length)?),
            Role::Sink if self.stream.to.is_empty() => Ends::Sink(Sink::Null),
            Role::Sink => Ends::Sink(Sink::File(Appending::new(file()?))),
            Role::Relay | Role::Program => Ends::Relay,
        })
    }

    /// Of a shuffle: files of records, or partitions, in a folder.
    fn folder_ends(&self, shuffle: Shuffle, folder: OwnedFd) -> Result<Ends, StageError> {
        if let Err(error) = shuffle.check(self.stream.block) {
            return Err(StageError::Agent(error.to_string()));
        }
        let key = derive(&self.stream.secret, "ropewalk shuffle account", &[]);
        if self.role == Role::Source {
            let dealing = Dealing::new(folder, shuffle, self.block, key)?;
            return Ok(Ends::Source(Source::Records(Box::new(dealing))));
        }
        let place = (self.stream.node, self.stream.nodes);
        // MEMORY_MAX fits.
        let memory = (self.stream.buffers * self.stream.block) as usize;
        let parts = Parts::new(folder, shuffle, place, key, (self.stream.block, memory))?;
        Ok(Ends::Sink(Sink::Parts(Box::new(parts))))
    }

    fn connect(&self, peers: &[control::Peer]) -> Result<Vec<(Connected, String)>, StageError> {
        let secret = EdgeSecret::new(&self.stream.secret);
        let stream = self.stream.stream.as_slice().try_into();
        let (Some(secret), Ok(stream)) = (secret, stream) else {
            return Err(StageError::Agent("its setup has no secret".into()));
        };
        let dial = Dial {
            secret: &secret,
            stream,
            node: self.stream.node,
            group: self.group + 1,
            lane: LaneKind::try_from(self.stream.lane).unwrap_or_default(),
            plain: self.stream.plain,
        };
        let mut targets = Vec::new();
        for node in &self.after {
            let Some(peer) = peers.iter().find(|peer| peer.node == *node) else {
                return Err(StageError::Agent(format!(
                    "its start has no address of node {node}"
                )));
            };
            targets.push((peer, self.name(peers, *node, self.group + 1)));
        }
        let connected = dial.connect_all(&targets)?;
        let names = targets.into_iter().map(|(_, name)| name);
        Ok(connected.into_iter().zip(names).collect())
    }

    /// Connections that this process has made, each with what its datagrams need, where it has some.
    fn outputs(
        &self,
        connected: Vec<(Connected, String)>,
    ) -> Result<Vec<(Outbound, Option<Edge>)>, StageError> {
        let outputs = connected.into_iter().map(|(connected, name)| {
            let sealed = connected.sealed();
            let edge = self.edge(&connected.socket, connected.keys)?;
            let link = Link::sending(connected.socket, self.stream.lane()).map_err(taking_over)?;
            Ok((Outbound::new(link, name, sealed), edge))
        });
        outputs.collect()
    }

    /// What an edge's datagrams need; `None` where it has none.
    fn edge(&self, socket: &OwnedFd, keys: Option<StreamKeys>) -> Result<Option<Edge>, StageError> {
        if !self.stream.lane().is_of_datagrams() {
            return Ok(None);
        }
        let peer = SockRef::from(socket).peer_addr().map_err(taking_over)?;
        let Some(peer) = peer.as_socket() else {
            return Err(StageError::Agent(
                "it gave a connection without addresses".into(),
            ));
        };
        let longest = shared::longest(socket, &peer, MTU_MAX).map_err(taking_over)?;
        Ok(Some(Edge {
            protection: keys.map_or(Protection::Plain(Check::Fragment), Protection::Sealed),
            peer,
            longest,
            packet: shared::overhead(&peer),
        }))
    }

    /// The socket of all edges, where they have datagrams.
    fn datagrams(
        &self,
        flow: Flow,
        outs: Vec<Option<Edge>>,
        ins: Vec<Option<Edge>>,
    ) -> Result<Option<Datagrams>, StageError> {
        if !self.stream.lane().is_of_datagrams() {
            return Ok(None);
        }
        // All that senders have credit for finds room.
        let credit = self.stream.buffers.saturating_mul(self.stream.block);
        let buffer = credit.saturating_mul(2).clamp(RECEIVE_MIN, RECEIVE_MAX);
        let buffer = (flow == Flow::Credit).then_some(buffer);
        let socket = Shared::open(buffer).map_err(|source| StageError::System {
            doing: "opening a socket for datagrams",
            source,
        })?;
        // Rates are kept with short sleeps.
        wake_on_time();
        let settings = datagrams::Settings {
            is_watched: self.stream.lane() == LaneKind::Rapid,
            rate: Some(ByteRate(self.stream.rate)).filter(|rate| rate.0 > 0),
            flow,
            // BLOCK_MAX fits.
            block: self.block as u32,
        };
        let (outs, ins) = (outs.into_iter().flatten(), ins.into_iter().flatten());
        Ok(Some(Datagrams::new(
            Box::new(socket),
            settings,
            outs.collect(),
            ins.collect(),
        )))
    }

    /// A connection that the agent has accepted.
    fn inbound(
        &self,
        socket: OwnedFd,
        edge: &StageEdge,
        name: String,
    ) -> Result<(Inbound, Option<Edge>), StageError> {
        let keys = keys(edge)?;
        let sealed = keys.as_ref().map(|keys| Sealed {
            incoming: Records::new(&keys.toward_receiver),
            outgoing: Records::new(&keys.toward_sender),
        });
        let edge = self.edge(&socket, keys)?;
        let longest = HEADER_LEN + self.block + TAG_LEN;
        // A copy by the kernel damages nothing.
        let is_local = SockRef::from(&socket)
            .domain()
            .is_ok_and(|domain| domain == Domain::UNIX);
        let may_skip = is_local && sealed.is_none() && self.role == Role::Relay;
        let link = Link::receiving(socket, self.stream.lane(), longest).map_err(taking_over)?;
        let input = Inbound::new(link, name, sealed, self.block);
        let input = match may_skip {
            true => input.without_verifying(),
            false => input,
        };
        Ok((input, edge))
    }
}

fn taking_over(source: std::io::Error) -> StageError {
    StageError::System {
        doing: "taking over a connection",
        source,
    }
}

/// The keys of an edge; `None` where it is not sealed.
fn keys(edge: &StageEdge) -> Result<Option<StreamKeys>, StageError> {
    match (
        edge.toward_receiver.as_slice(),
        edge.toward_sender.as_slice(),
    ) {
        ([], []) => Ok(None),
        (toward_receiver, toward_sender) => {
            let keys = (toward_receiver.try_into(), toward_sender.try_into());
            let (Ok(toward_receiver), Ok(toward_sender)) = keys else {
                return Err(StageError::Agent("its connection has no keys".into()));
            };
            Ok(Some(StreamKeys {
                toward_receiver,
                toward_sender,
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;

    use socket2::SockRef;

    const NODES: u32 = 16;

    /// A process takes all connections that its agent has accepted while no peer answers it: else agents and processes could wait
    /// for each other in a circle. The socket to the process holds few packets here.
    #[test]
    fn packets_are_read_while_peers_are_dialled() {
        let (packets, theirs) = Packets::pair().unwrap();
        SockRef::from(&packets).set_send_buffer_size(1).unwrap();
        let process = std::thread::spawn(move || {
            run_for(
                &mut Agent {
                    packets: theirs,
                    group: 0,
                },
                Flow::Credit,
            )
        });
        let send = |body, descriptor: Option<BorrowedFd<'_>>| {
            let message = control::encode(&ToStage { body: Some(body) });
            packets.send(&message, descriptor).unwrap();
        };
        let stream = StreamOpen {
            stream: vec![1; 16],
            secret: vec![7; 32],
            nodes: NODES,
            groups: 3,
            block: 1 << 16,
            buffers: 64,
            lane: LaneKind::Tcp.into(),
            ..StreamOpen::default()
        };
        let setup = StageSetup {
            stream: Some(stream),
            group: 1,
        };
        send(to_stage::Body::Setup(setup), None);
        // Connections are made, but not answered.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = |node| control::Peer {
            node,
            addresses: vec![listener.local_addr().unwrap().to_string()],
            ..control::Peer::default()
        };
        let peers = (0..NODES).map(peer).collect();
        send(to_stage::Body::Start(control::StreamStart { peers }), None);
        let _dialled = listener.accept().unwrap();
        let mut near = Vec::new();
        for node in 0..NODES {
            let (one, other) = UnixStream::pair().unwrap();
            let edge = StageEdge {
                node,
                ..StageEdge::default()
            };
            send(to_stage::Body::Edge(edge), Some(other.as_fd()));
            near.push(one);
        }
        let said = packets.receive().unwrap();
        assert!(matches!(said, Packet::Nothing), "the process has failed");
        // The agent has ended.
        drop(packets);
        assert!(!process.join().unwrap());
    }
}
