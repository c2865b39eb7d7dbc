//! What a caller asks of the master: nodes, what they hold or want, and options.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ropewalk_model::Range;

pub use ropewalk_tuner::PolicyName;

/// A transfer to be carried out.
#[derive(Clone, Debug)]
pub struct Request {
    /// Label for people (`id` of a specification file).
    pub label: Option<String>,
    /// Everybody who takes part. Order does not change the result.
    pub nodes: Vec<NodeRequest>,
    /// How the nodes' objects relate to the data space.
    pub mapping: Mapping,
    /// How to move.
    pub options: Options,
}

/// Where the data space comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Every object is a whole tree, file or pattern; the master lays them out (`copy`).
    Trees {
        /// How several sources relate.
        sources: Sources,
        /// How several destinations relate.
        destinations: Destinations,
    },
    /// Every object comes with explicit rows (`transfer`).
    Rows,
}

/// How several sources relate to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sources {
    /// Same paths, sizes and times: replicas; disjoint paths: parts; anything else is refused. The `copy` command asks for
    /// it only where different hosts name their source alike; callers of the library judge for themselves.
    #[default]
    Auto,
    /// All hold the same data; refused when they differ.
    Replicas,
    /// Each holds a part; refused when two hold the same path.
    Parts,
}

/// How several destinations relate to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Destinations {
    /// Each gets a whole copy.
    #[default]
    Copies,
    /// They share one file system: together they write one copy.
    Shared,
}

/// One node and its part.
#[derive(Clone, Debug)]
pub struct NodeRequest {
    /// Name in reports; unique in the request.
    pub name: String,
    /// How its agent is reached.
    pub reach: Reach,
    /// What it holds.
    pub sources: Vec<ObjectRequest>,
    /// What it wants.
    pub sinks: Vec<ObjectRequest>,
    /// Declared sending speed, bytes per second.
    pub up: Option<u64>,
    /// Declared receiving speed, bytes per second.
    pub down: Option<u64>,
    /// Interfaces that it may use, by the names, addresses or networks of [`Rails::Only`]; those of the options when empty.
    pub interfaces: Vec<String>,
}

/// How an agent is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A child process of this one, on this host.
    Local,
    /// Started over ssh; the argument is what ssh takes (`host`, `user@host`).
    Ssh(String),
    /// Already running there; needs [`Options::token`].
    Attached {
        /// Host name or address, without brackets.
        host: String,
        /// Its port.
        port: u16,
    },
}

impl Reach {
    /// The host's name as it was typed, without user and port; `None` for this host.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Local => None,
            Self::Ssh(target) => Some(target.rsplit_once('@').map_or(target, |(_, host)| host)),
            Self::Attached { host, .. } => Some(host),
        }
    }

    /// Whether both lead to one machine, as far as the names that were typed tell.
    #[must_use]
    pub fn is_same_host(&self, other: &Self) -> bool {
        self.host() == other.host()
    }
}

/// An object and how it maps to the data space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRequest {
    /// What it is.
    pub object: Object,
    /// Rows, for [`Mapping::Rows`]; empty for trees.
    pub rows: Vec<RowRequest>,
    /// Readers with the same name share one destination.
    pub destination: Option<String>,
    /// Of a copy: the folder that is to hold it is made where only it is missing.
    pub make_folder: bool,
}

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A file or directory; any bytes but NUL.
    Path(Vec<u8>),
    /// Several files and directories side by side, each under the last component of its path (sources only).
    Bundle(Vec<Vec<u8>>),
    /// A generated pattern of so many bytes (source), or a buffer (sink).
    Memory(u64),
    /// Checked and dropped.
    Null,
}

/// For people; of many paths the first, escaped.
impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.escape_ascii()),
            Self::Bundle(paths) => {
                if let Some(path) = paths.first() {
                    write!(f, "{}", path.escape_ascii())?;
                }
                match paths.len().saturating_sub(1) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            Self::Memory(size) => write!(f, "mem:{size}"),
            Self::Null => f.write_str("null:"),
        }
    }
}

impl Object {
    /// As agents and rows name it. Bundles are never named so: only whole trees are bundled, and those have no rows.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Path(path) => path.clone(),
            Self::Memory(size) => format!("mem:{size}").into_bytes(),
            Self::Null => b"null:".to_vec(),
            Self::Bundle(paths) => paths.join(&b"\0"[..]),
        }
    }

    /// The last component of a path; empty when it has none (`/`, `..`).
    #[must_use]
    pub fn last_name(path: &[u8]) -> &[u8] {
        let name = Path::new(OsStr::from_bytes(path)).file_name();
        name.map_or(&[], OsStrExt::as_bytes)
    }
}

/// Part of an object that maps to part of the data space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRequest {
    /// Offset in the object.
    pub object_offset: u64,
    /// Half-open range of the data space.
    pub range: Range,
}

/// What is checked beyond delivery itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verify {
    /// Nothing on plain lanes (sealed lanes always check the cipher's tag).
    None,
    /// A checksum or tag per frame.
    Fragment,
    /// Also a hash of every chunk, end to end.
    #[default]
    Tree,
    /// Also every chunk read back from the sink.
    Sink,
    /// Also every chunk of every replica, compared with what was delivered; the sink is not read back.
    Replicas,
}

/// Which kind of lane to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneKind {
    /// Unix sockets between processes of one host, TCP otherwise.
    #[default]
    Auto,
    /// TCP.
    Tcp,
    /// Unix sockets only.
    Unix,
    /// Datagrams at a fixed rate, as RBUDP.
    Rbudp,
    /// Datagrams at a rate that follows the receiver, as RAPID.
    Rapid,
}

/// What watches the receivers of [`LaneKind::Rapid`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MonitorKind {
    /// What today's kernels tell.
    #[default]
    Native,
    /// The dynamic priority of Linux 2.6.
    Linux26,
    /// The interactivity score of ULE.
    Ule,
}

/// How lanes of datagrams go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramOptions {
    /// Bytes per second of each lane; needed for [`LaneKind::Rbudp`], a bound for [`LaneKind::Rapid`].
    pub rate: Option<u64>,
    /// Length of packets; `None` has it found.
    pub mtu: Option<u32>,
    /// What watches the receiver.
    pub monitor: MonitorKind,
    /// Receive buffer in bytes; `None`: by the rule for the native monitor, else what the system gives.
    pub receive_buffer: Option<u64>,
    /// Holds back what the monitor says, as if the round trip were longer.
    pub feedback_delay: std::time::Duration,
    /// Has receivers hash each datagram so many times more: work on what comes, for experiments.
    pub work: u32,
}

/// Which interfaces carry data between two hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rails {
    /// All that reach each other.
    #[default]
    All,
    /// The first that does.
    One,
    /// On every host those with one of these names or addresses, or in one of these networks.
    Only(Vec<String>),
}

/// How to move.
#[derive(Clone, Debug)]
pub struct Options {
    /// Streams per pair of nodes; `None`: four, fewer where a node has many pairs, or what `streams_policy` finds best.
    pub streams: Option<u32>,
    /// Who chooses the number of streams where it is not given.
    pub streams_policy: Option<PolicyName>,
    /// How a node's data is spread over its streams.
    pub striping: Striping,
    /// Most bytes in transit per lane.
    pub prefetch: u64,
    /// Data streams are not sealed.
    pub plain: bool,
    /// What is checked.
    pub verify: Verify,
    /// Lane kind.
    pub lane: LaneKind,
    /// How lanes of datagrams go; others do not care.
    pub datagrams: DatagramOptions,
    /// Interfaces that carry data.
    pub rails: Rails,
    /// A name that the schedulers know, see [`ropewalk_sched::by_name`].
    pub scheduler: String,
    /// Whether work moves to faster nodes while bytes flow; without, only away from lost ones.
    pub replan: bool,
    /// Limit over all receivers together, bytes per second.
    pub limit: Option<u64>,
    /// Whether delivered means on stable storage.
    pub sync: bool,
    /// Token of agents that already run.
    pub token: Option<[u8; 32]>,
    /// The ssh command and its own options, for instance `ssh -F file`.
    pub ssh_command: Vec<OsString>,
    /// The program on hosts reached over ssh.
    pub remote_path: OsString,
    /// The program on this host, for local agents (usually the running one).
    pub local_program: PathBuf,
    /// File of speeds that earlier transfers have shown: hints where none is declared, and kept up by this
    /// transfer. `None`: neither.
    pub speeds: Option<PathBuf>,
    /// Folder in which masters of one user on one host tell each other of transfers whose number of streams is tuned, to
    /// share paths. `None`: this one goes by itself.
    pub sharing: Option<PathBuf>,
}

/// How the data of a node is spread over its streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Striping {
    /// Each stream asks for the next unit when it has room: slow ones bring less.
    #[default]
    Pull,
    /// Each has an equal part, and keeps it (PSockets): the slowest is the end. The number of streams and the plan stay.
    Equal,
}

impl Options {
    /// Who chooses the number of streams while bytes flow; `None` where it stays.
    #[must_use]
    pub fn tuned_by(&self) -> Option<PolicyName> {
        let is_free = self.streams.is_none() && self.striping == Striping::Pull;
        self.streams_policy.filter(|_| is_free)
    }
}

/// Bytes in transit per lane when the user does not say (CEP section 5.2.2: about 4 MB a node).
pub const PREFETCH_DEFAULT: u64 = 4 << 20;

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: None,
            streams_policy: Some(PolicyName::default()),
            striping: Striping::default(),
            prefetch: PREFETCH_DEFAULT,
            plain: false,
            verify: Verify::default(),
            lane: LaneKind::default(),
            datagrams: DatagramOptions::default(),
            rails: Rails::default(),
            scheduler: "auto".into(),
            replan: true,
            limit: None,
            sync: true,
            token: None,
            ssh_command: vec!["ssh".into()],
            remote_path: "ropewalk".into(),
            local_program: PathBuf::from("ropewalk"),
            speeds: None,
            sharing: None,
        }
    }
}
