//! Options of the processes of `stream` and `shuffle`: their memory, what connects them, when they have stalled.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use ropewalk_master::request::{DatagramOptions, LaneKind, NodeRequest, Options, Reach};
use ropewalk_model::{ByteRate, Bytes};
use ropewalk_proto::stage::{BLOCK_MAX, BLOCK_MIN, BUFFERS_MIN, MEMORY_MAX, NODES_MAX};

use crate::options::{ReachArgs, rate};

/// Arguments that `stream` and `shuffle` have in common.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProcessArgs {
    /// Buffers of each process together: auto or a size
    ///
    /// auto: two blocks for each node, 512 KiB at least, which stay in a processor's cache (2 MiB for one node over Unix sockets or
    /// shared memory), and 16 MiB at most; over long paths a process needs its part of rate times round trip
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = memory)]
    memory: Memory,

    /// What processes are connected by: auto, tcp, unix, shm, mpi, rbudp or rapid
    ///
    /// auto: Unix sockets within a host, TCP between hosts; unix and shm (rings in shared memory, 1.2 MiB for each connection, 4.2 MiB
    /// with blocks above 1.5 MiB) are for nodes of one host; mpi: messages of the Open MPI or MPICH whose mpirun is in PATH, for nodes
    /// that are this host (localhost); rbudp: UDP at a fixed rate; rapid: UDP at a rate that follows the receiver, both within a host, too
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = lane)]
    lane: LaneKind,

    /// What each process sends as datagrams at most, over all of its connections: of rbudp the rate, of rapid a limit
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<ByteRate>,

    /// Do not encrypt blocks between hosts; for networks you trust
    ///
    /// Within a host, between processes of one user, blocks are not encrypted in any case
    #[arg(long)]
    plain: bool,

    /// Fail when no block has moved, and no file was synced, for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    stall: u64,
}

impl ProcessArgs {
    /// How nodes are reached, and what connects their processes.
    pub fn options(&self, reaching: &ReachArgs, nodes: &[NodeRequest]) -> Result<Options> {
        let other = nodes.iter().find(|node| node.reach != Reach::Local);
        if let Some(other) = other.filter(|_| self.lane == LaneKind::Mpi) {
            bail!(
                "--lane mpi is for nodes on this host, and {} may be another one; name localhost, several times, or use another lane",
                other.name
            );
        }
        Ok(Options {
            plain: self.plain,
            lane: self.lane,
            datagrams: self.datagrams()?,
            ..reaching.options(nodes)?
        })
    }

    /// The rate of a process's datagrams; refuses what does not go together.
    fn datagrams(&self) -> Result<DatagramOptions> {
        match self.rate {
            None if self.lane == LaneKind::Rbudp => bail!(
                "--lane rbudp sends at a fixed rate, which must be given: --rate 1.6Gbit; --lane rapid finds its own"
            ),
            Some(_) if !self.lane.is_of_datagrams() => {
                bail!("--rate is for rbudp and rapid: add --lane rapid, or leave it out")
            }
            rate => Ok(DatagramOptions {
                rate: rate.map(|rate| rate.0),
                ..DatagramOptions::default()
            }),
        }
    }

    /// How many blocks the buffers of a process hold; so many nodes need two for each process at least.
    pub fn buffers(&self, nodes: usize, block: Bytes) -> Result<u64> {
        let memory = self.memory.bytes(nodes, block.0, self.lane);
        if memory.0 / block.0 < BUFFERS_MIN {
            bail!(
                "--memory {memory} holds fewer than two blocks of {}; give --memory {} or more",
                block,
                Bytes(block.0 * BUFFERS_MIN)
            );
        }
        if memory.0 > MEMORY_MAX {
            bail!(
                "--memory {memory} is more than a process takes; give {} or less",
                Bytes(MEMORY_MAX)
            );
        }
        if nodes > NODES_MAX as usize {
            bail!(
                "{} nodes are more than {NODES_MAX}; name fewer hosts",
                nodes
            );
        }
        Ok(memory.0 / block.0)
    }

    /// How long nothing may happen.
    pub fn stall(&self) -> Duration {
        Duration::from_secs(self.stall)
    }
}

/// Buffers of a process; `None` by the number of nodes and the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory(Option<Bytes>);

/// Least and most that processes take by themselves. What is in use at once should fit a processor's cache: over TCP with 4 MiB a chain of
/// four processes carried half of what it did with 512 KiB.
const MEMORY_AUTO: std::ops::RangeInclusive<u64> = 512 << 10..=16 << 20;

/// Least within one host: what the connections there hold, so that processes wake each other seldom.
const MEMORY_WITHIN: u64 = 2 << 20;

impl Memory {
    fn bytes(self, nodes: usize, block: u64, lane: LaneKind) -> Bytes {
        let edges = BUFFERS_MIN * nodes as u64 * block;
        let is_within =
            nodes == 1 && matches!(lane, LaneKind::Auto | LaneKind::Unix | LaneKind::Shm);
        let least = match is_within {
            true => MEMORY_WITHIN,
            false => *MEMORY_AUTO.start(),
        };
        let auto = edges.clamp(least, *MEMORY_AUTO.end());
        self.0.unwrap_or(Bytes(auto.max(BUFFERS_MIN * block)))
    }
}

fn memory(text: &str) -> Result<Memory, String> {
    if text == "auto" {
        return Ok(Memory(None));
    }
    let size = text.parse().map_err(|error| format!("{error}"))?;
    Ok(Memory(Some(size)))
}

fn lane(text: &str) -> Result<LaneKind, String> {
    match text {
        "auto" => Ok(LaneKind::Auto),
        "tcp" => Ok(LaneKind::Tcp),
        "unix" => Ok(LaneKind::Unix),
        "shm" => Ok(LaneKind::Shm),
        "mpi" => Ok(LaneKind::Mpi),
        "rbudp" => Ok(LaneKind::Rbudp),
        "rapid" => Ok(LaneKind::Rapid),
        _ => Err("streams use auto, tcp, unix, shm, mpi, rbudp or rapid".into()),
    }
}

/// The length of a block.
pub(crate) fn block(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    match (BLOCK_MIN..=BLOCK_MAX).contains(&size.0) {
        true => Ok(size),
        false => Err(format!(
            "give a size from {BLOCK_MIN} bytes to {}",
            Bytes(BLOCK_MAX)
        )),
    }
}
