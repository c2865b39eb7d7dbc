//! Options that `copy`, `transfer` and `demo` share, and what the master makes of them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use ropewalk_master::request::{
    self, DatagramOptions, Existing, Incomplete, LaneKind, MonitorKind, NodeRequest, Options,
    PolicyName, Rails, Reach, Relay, RemoteProgram, Stays, Striping, Wait,
};
use ropewalk_model::{ByteRate, Bytes};

use crate::agent;
use crate::choices::{MonitorArg, RelayArg, SameArg, StripingArg, VerifyArg};
use crate::endpoint::host_of;
use crate::page_file::PageFile;
use crate::ports::Ports;
use crate::{runtime_folder, sys, token};
pub use values::remembering_file;
use values::{
    Longest, Mtu, Policy, ReceiveBuffer, Size, Streams, Words, host_rate, lane, lane_rate, mtu,
    prefetch, receive_buffer, streams, streams_policy, waiting, words,
};
pub(crate) use values::{cut_words, rails, rate, scheduler, speeds_file};

mod values;

/// How long hosts are waited for: time for a reboot, and for a person to see what is wrong.
const WAIT_DEFAULT: Duration = Duration::from_secs(300);

/// How bytes are moved and checked.
#[derive(Args, Clone, Debug)]
pub(crate) struct MoveArgs {
    /// TCP or Unix streams for each pair of nodes, 1 to 64
    ///
    /// auto: 4, fewer where a node has many pairs, and over long paths as many for all hosts together as --streams-policy
    /// finds
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "N", default_value = "auto", value_parser = streams, help_heading = "Moving")]
    streams: Streams,

    /// How auto finds the number of streams over long paths (round trips of 5 ms and more) while bytes flow: model (a formula
    /// corrected by what is seen), simulate (a simulation with CUBIC beside the transfer), database (the nearest of many
    /// situations, simulated or met by earlier transfers) or off. It sets streams, not nodes: every host with work keeps one stream
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "NAME", default_value = PolicyName::default().name(), value_parser = streams_policy, help_heading = "Moving")]
    streams_policy: Policy,

    /// How a host's data is spread over its streams
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "HOW",
        default_value = "pull",
        help_heading = "Moving"
    )]
    striping: StripingArg,

    /// Most bytes in transit on each lane (with more than 4 streams, two units of each at least); bounds the memory of
    /// every agent
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "SIZE", default_value_t = Size(Bytes(request::PREFETCH_DEFAULT)), value_parser = prefetch, help_heading = "Moving")]
    prefetch: Size,

    /// Kind of lane: auto, tcp, unix, shm, mpi, rbudp or rapid
    ///
    /// auto: none where all hosts are this one, Unix sockets within a host, TCP between hosts; shm: memory that two processes of one host
    /// share; mpi: messages of the Open MPI or MPICH whose mpirun is in PATH, between agents that the command starts on this host; rbudp:
    /// UDP at a fixed rate; rapid: UDP at a rate that follows the receiver
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "KIND", default_value = "auto", value_parser = lane, help_heading = "Moving")]
    lane: LaneKind,

    /// Network interfaces side by side: auto, one or a list
    ///
    /// auto: all that connect two hosts; a list: names, addresses or networks, of which every host must have one
    /// (eth0,10.1.0.0/16)
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "LIST", default_value = "auto", value_parser = rails, help_heading = "Moving")]
    rails: Rails,

    /// How work is divided: auto, optimal (least time), fast (nearly that, for many nodes), greedy (in proportion to
    /// speeds) or uniform (equal shares)
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "NAME", default_value = "auto", value_parser = scheduler, help_heading = "Moving")]
    scheduler: String,

    /// Whether work moves while the transfer runs, to faster nodes: on, or off (only away from lost hosts)
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "WHEN",
        default_value = "on",
        help_heading = "Moving"
    )]
    replan: Switch,

    /// Whether hosts that receive the same bytes hand them on to each other. auto needs lanes without datagrams, and hashes
    /// (--verify tree or more)
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "WHEN", default_value = Relay::Auto.name(), help_heading = "Moving")]
    relay: RelayArg,

    /// Limit for all hosts together: 500Mbit or 60MB/s
    #[arg(long, value_name = "RATE", value_parser = rate, help_heading = "Moving")]
    limit: Option<ByteRate>,

    /// How fast a host sends and receives; repeat for each
    ///
    /// Gives the plan its shares and the report its bound
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "HOST=RATE", value_parser = host_rate, help_heading = "Moving")]
    node_rate: Vec<(String, ByteRate)>,

    /// Rate of every rbudp lane, bound of every rapid lane, on each rail: 1.6Gbit
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "RATE", value_parser = lane_rate, help_heading = "Moving")]
    rate: Option<ByteRate>,

    /// Packet size of rbudp and rapid lanes, 1280 to 65000; auto probes the path, up to 9000
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "BYTES", default_value = "auto", value_parser = mtu, help_heading = "Moving")]
    mtu: Mtu,

    /// What watches the receivers of rapid lanes
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "KIND",
        default_value = "native",
        help_heading = "Moving"
    )]
    monitor: MonitorArg,

    /// Receive buffer of rbudp and rapid lanes; auto: sized for the rate with the native monitor, else what the system gives
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "SIZE", default_value = "auto", value_parser = receive_buffer, help_heading = "Moving")]
    receive_buffer: ReceiveBuffer,

    /// Speeds that earlier transfers showed, as hints where none is declared: auto
    /// ($XDG_STATE_HOME/ropewalk/speeds.json or ~/.local/state/ropewalk/speeds.json), off (neither used nor kept), or a file.
    /// What transfers over long paths teach of streams is kept beside it, in streams.json
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "WHERE",
        default_value = "auto",
        help_heading = "Moving"
    )]
    speeds: OsString,

    /// Do not encrypt the data; for networks you trust
    ///
    /// Control traffic is always encrypted
    #[arg(long, help_heading = "Safety")]
    plain: bool,

    /// What is checked beyond delivery
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "tree",
        help_heading = "Safety"
    )]
    verify: VerifyArg,

    /// How a file that the destination has already is found to be the same; then it is not sent
    #[arg(
        long,
        value_name = "HOW",
        default_value = "time",
        hide_short_help = true,
        hide_long_help = true,
        help_heading = "Safety"
    )]
    check: SameArg,

    /// Call bytes delivered before they are on stable storage
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        help_heading = "Safety"
    )]
    no_sync: bool,

    /// Give no file of a copy its name unless the copy is complete
    ///
    /// Without it files that lack no byte get their names, those that replace older ones while the copy runs, which needs less
    /// space. Either way the same command goes on with what is safe
    #[arg(
        long,
        conflicts_with = "keep_partial",
        hide_short_help = true,
        hide_long_help = true,
        help_heading = "Safety"
    )]
    atomic: bool,

    /// Keep the bytes of an incomplete copy, not remove them
    ///
    /// They stay under the copy's temporary name, .NAME.ropewalk-ID-NODE (of a shared copy .NAME.ropewalk-ID); the report names
    /// it, and how many of its bytes are valid
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        help_heading = "Safety"
    )]
    keep_partial: bool,

    /// Token of agents that already run [default: ~/.config/ropewalk/token]
    ///
    /// 64 hexadecimal digits in a file of mode 0600
    #[arg(long, value_name = "FILE", help_heading = "Reaching hosts")]
    token_file: Option<PathBuf>,

    /// The ssh command with its options: 'ssh -p 2222'
    #[arg(long, value_name = "COMMAND", default_value = "ssh", value_parser = words, help_heading = "Reaching hosts")]
    ssh: Words,

    /// How long hosts are waited for without which a copy cannot go on: 90s, 5min, 2h, forever; 0: it fails at once [default: 5min]
    ///
    /// A host that is lost while bytes move is reached again with growing pauses, and what is safe at the destination is not sent again.
    /// The time counts from the last progress. If the option is given, hosts are waited for at the start, too. An earlier
    /// transfer to the same place whose command was killed or lost is waited for as long, and 60 s at least. Of mem: and null:, of a dest=NAME of which no reader has all files, and
    /// with --check none nothing is resumed: these fail at once when bytes have moved
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "TIME", value_parser = waiting, help_heading = "Reaching hosts")]
    wait: Option<Longest>,

    /// Refuse when any host is not reached, also a replica that others can replace
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        help_heading = "Reaching hosts"
    )]
    require_all: bool,

    /// TCP ports of started agents, for firewalls: 50000-50100
    ///
    /// Agents started for this command listen on them, at both ends; standing agents have --listen. The one of two hosts
    /// that reaches the other connects; if neither does, data goes through ssh and this host, which is slower
    #[arg(
        long,
        hide_short_help = true,
        value_name = "A-B",
        help_heading = "Reaching hosts"
    )]
    ports: Option<Ports>,

    /// The ropewalk program on hosts reached over ssh [default: ropewalk; where that is missing or of another version, this
    /// program is uploaded to ~/.cache/ropewalk there]
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "PATH",
        help_heading = "Reaching hosts"
    )]
    remote_path: Option<OsString>,

    /// Never upload this program to another host
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        help_heading = "Reaching hosts"
    )]
    no_upload: bool,
}

/// How hosts are reached, for commands that move no files.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReachArgs {
    /// Token of agents that already run [default: ~/.config/ropewalk/token]
    ///
    /// 64 hexadecimal digits in a file of mode 0600
    #[arg(long, value_name = "FILE", help_heading = "Reaching hosts")]
    token_file: Option<PathBuf>,

    /// The ssh command with its options: 'ssh -p 2222'
    #[arg(long, value_name = "COMMAND", default_value = "ssh", value_parser = words, help_heading = "Reaching hosts")]
    ssh: Words,

    /// TCP ports of started agents, for firewalls: 50000-50100
    #[arg(
        long,
        hide_short_help = true,
        value_name = "A-B",
        help_heading = "Reaching hosts"
    )]
    ports: Option<Ports>,

    /// The ropewalk program on hosts reached over ssh [default: ropewalk; where that is missing or of another version, this
    /// program is uploaded to ~/.cache/ropewalk there]
    #[arg(long, value_name = "PATH", help_heading = "Reaching hosts")]
    remote_path: Option<OsString>,

    /// Never put this program on another host
    #[arg(long, help_heading = "Reaching hosts")]
    no_upload: bool,
}

impl ReachArgs {
    /// The master's options for these nodes; reads the token file when a node needs it.
    pub(crate) fn options(&self, nodes: &[NodeRequest]) -> Result<Options> {
        let attached = |node: &NodeRequest| matches!(node.reach, Reach::Attached { .. });
        let token = match nodes.iter().any(attached) || self.token_file.is_some() {
            true => Some(token::load(self.token_file.as_deref())?),
            false => None,
        };
        Ok(Options {
            token,
            ssh_command: self.ssh.0.clone(),
            ask: sys::has_terminal(),
            ports: self.ports.map(Ports::range),
            remote_program: remote_program(self.remote_path.as_ref(), self.no_upload),
            local_program: own_program()?,
            ..Options::default()
        })
    }
}

/// Which program runs on hosts reached over ssh.
fn remote_program(path: Option<&OsString>, no_upload: bool) -> RemoteProgram {
    match (path, no_upload) {
        (Some(path), _) => RemoteProgram::At(path.clone()),
        (None, true) => RemoteProgram::At("ropewalk".into()),
        (None, false) => RemoteProgram::Uploaded,
    }
}

/// This program's file.
fn own_program() -> Result<PathBuf> {
    sys::own_program().context("cannot find this program's own path, which local agents need")
}

/// What is said while and after moving.
#[derive(Args, Clone, Debug)]
pub(crate) struct OutputArgs {
    /// One JSON object per event and line on standard output
    ///
    /// The last is {"event":"ended","report":...}. docs/json.md names the fields
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// No progress and no report; errors only
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,

    /// The whole report at the end
    ///
    /// Every node, every pair, control traffic, all notes
    #[arg(long, short = 'v', help_heading = "Output")]
    pub verbose: bool,

    /// Progress on standard error
    ///
    /// On a terminal; where it is none (always), as plain lines
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Output"
    )]
    pub progress: ProgressArg,

    /// The page that the report becomes, too.
    #[arg(skip)]
    pub page: Option<PageFile>,
}

/// What transfers make of their report.
#[derive(Args, Clone, Debug)]
pub(crate) struct PageArgs {
    /// Also write the report as a page for a browser, with plots of rates and of what held the transfer back
    #[arg(long, hide_short_help = true, hide_long_help = true, value_name = "FILE.html", value_parser = PageFile::parse, help_heading = "Output")]
    pub report: Option<PageFile>,
}

impl OutputArgs {
    /// With the page that these ask for.
    pub(crate) fn with_page(&self, page: &PageArgs) -> Self {
        Self {
            page: page.report.clone(),
            ..self.clone()
        }
    }
}

impl PageArgs {
    /// Refuses a page of what this command does not see to its end.
    pub(crate) fn check_detached(&self) -> Result<()> {
        if self.report.is_some() {
            bail!(
                "--report: a job that is handed over has no page; leave out --detach, or --report"
            );
        }
        Ok(())
    }
}

/// Options of commands that can be handed over.
#[derive(Args, Clone, Debug)]
pub(crate) struct DetachArgs {
    /// Hand over to `ropewalk serve` and return
    ///
    /// Prints the number of the job; `ropewalk queue` shows what becomes of it
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        help_heading = "Queue"
    )]
    pub detach: bool,

    /// Jobs of higher priority run first
    ///
    /// Of a job that is handed over to another host 0 is the highest
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "N",
        default_value = "0",
        requires = "detach",
        allow_negative_numbers = true,
        help_heading = "Queue"
    )]
    pub priority: i32,
}

/// Options that say what is so in any case.
#[derive(Args, Clone, Debug)]
pub(crate) struct HabitArgs {
    /// Trees are always copied whole
    #[arg(short = 'r', short_alias = 'R', long = "recursive", hide = true)]
    pub is_recursive: bool,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// The default
    On,
    /// Not at all
    Off,
}

/// When progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressArg {
    /// When standard error is a terminal
    Auto,
    /// Also when it is not
    Always,
    /// Never
    Never,
}

impl MoveArgs {
    /// Refuses a file that only this process has, where its job needs it later. A secret is not kept with a job.
    pub(crate) fn check_detached(&self) -> Result<()> {
        let is_own = |path: &&PathBuf| {
            let own = ["/dev/stdin", "/dev/fd", "/proc/self", "/proc/thread-self"];
            own.iter().any(|own| path.starts_with(own))
        };
        if let Some(path) = self.token_file.as_ref().filter(is_own) {
            bail!(
                "--token-file {}: only this command has it, and its job reads the token when it runs; name a file",
                path.display()
            );
        }
        Ok(())
    }

    /// The master's options for these nodes; reads the token file when a node needs it.
    pub(crate) fn options(&self, nodes: &[NodeRequest]) -> Result<Options> {
        let attached = nodes
            .iter()
            .any(|node| matches!(node.reach, Reach::Attached { .. }));
        let token = if attached || self.token_file.is_some() {
            Some(token::load(self.token_file.as_deref())?)
        } else {
            None
        };
        let lane_rate = self.lane_rate()?;
        self.refuse_idle_options()?;
        Ok(Options {
            streams: self.streams.0,
            streams_policy: self.streams_policy.0,
            striping: self.striping.0,
            prefetch: self.prefetch.0.0,
            plain: self.plain,
            verify: self.verify.0,
            lane: self.lane,
            datagrams: DatagramOptions {
                rate: lane_rate,
                mtu: self.mtu.0,
                monitor: self.monitor.0,
                receive_buffer: self.receive_buffer.0,
            },
            rails: self.rails.clone(),
            scheduler: self.scheduler.clone(),
            replan: self.replan == Switch::On,
            relay: self.relay.0,
            limit: self.limit.map(|rate| rate.0),
            sync: !self.no_sync,
            existing: Existing::default(),
            same: self.check.0,
            delta: false,
            verify_kept: false,
            compares: false,
            as_scanned: false,
            // `copy` has options for these.
            archive: false,
            dry_run: false,
            lists: false,
            delete: false,
            delete_all: false,
            hard_links: false,
            checksums: None,
            filter: Vec::new(),
            files: None,
            stays: Stays::default(),
            incomplete: match (self.keep_partial, self.atomic) {
                (true, _) => Incomplete::Kept,
                (false, true) => Incomplete::Removed,
                (false, false) => Incomplete::WholeFiles,
            },
            tokens: Default::default(),
            wait: Wait {
                most: self.wait.map_or(Some(WAIT_DEFAULT), |longest| longest.0),
                at_start: self.wait.is_some(),
            },
            token,
            ssh_command: self.ssh.0.clone(),
            ask: sys::has_terminal(),
            require_all: self.require_all,
            ports: self.ports.map(Ports::range),
            // Only `copy` starts agents on nodes of a job.
            launcher: None,
            remote_program: remote_program(self.remote_path.as_ref(), self.no_upload),
            local_program: own_program()?,
            agent_here: Some(agent::here::agents()),
            cache: sys::cache_folder(),
            speeds: speeds_file(&self.speeds),
            // Without such a folder there are no others to share with.
            sharing: runtime_folder::folder().ok(),
        })
    }

    /// The rate of each lane of datagrams; refuses what does not go together.
    fn lane_rate(&self) -> Result<Option<u64>> {
        let of_datagrams = self.lane.is_of_datagrams();
        if of_datagrams && self.striping.0 == Striping::Equal {
            bail!(
                "--striping equal deals data out to TCP or Unix streams; lanes of datagrams have one flow"
            );
        }
        if let Some(count) = self.streams.0.filter(|count| of_datagrams && *count > 1) {
            bail!(
                "--streams {count} is for TCP and Unix streams; a lane of datagrams has one flow"
            );
        }
        match self.rate {
            None if self.lane == LaneKind::Rbudp => bail!(
                "--lane rbudp sends at a fixed rate, which must be given: --rate 1.6Gbit; --lane rapid finds its own"
            ),
            Some(_) if !of_datagrams => bail!(
                "--rate is the rate of rbudp and rapid lanes; add --lane rbudp, or write --node-rate HOST=RATE to declare how fast a host is"
            ),
            rate => Ok(rate.map(|rate| rate.0)),
        }
    }

    /// Refuses options that the chosen lanes would not heed.
    fn refuse_idle_options(&self) -> Result<()> {
        let of_datagrams = self.lane.is_of_datagrams();
        let of_rapid = self.lane == LaneKind::Rapid;
        for (option, is_given, is_heeded, lanes) in [
            (
                "--mtu",
                self.mtu.0.is_some(),
                of_datagrams,
                "rbudp and rapid lanes",
            ),
            (
                "--receive-buffer",
                self.receive_buffer.0.is_some(),
                of_datagrams,
                "rbudp and rapid lanes",
            ),
            (
                "--monitor",
                self.monitor.0 != MonitorKind::Native,
                of_rapid,
                "rapid lanes",
            ),
        ] {
            if is_given && !is_heeded {
                bail!("{option} is for {lanes}: add --lane rapid, or leave it out");
            }
        }
        Ok(())
    }

    /// Gives the nodes of each named host its declared speed, both ways.
    pub(crate) fn declare_rates(&self, nodes: &mut [NodeRequest]) -> Result<()> {
        for (name, rate) in &self.node_rate {
            let mut found = false;
            for node in nodes.iter_mut() {
                let with_port = match &node.reach {
                    Reach::Attached { host, port } => format!("{host}:{port}"),
                    Reach::Local | Reach::Ssh(_) | Reach::Launched(_) => String::new(),
                };
                if node.name == *name || host_of(&node.reach) == name || with_port == *name {
                    (node.up, node.down) = (Some(rate.0), Some(rate.0));
                    found = true;
                }
            }
            if !found {
                let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
                bail!(
                    "--node-rate {name}: no such host takes part; there are {}",
                    names.join(", ")
                );
            }
        }
        Ok(())
    }
}
