//! A network lab on one machine: hosts as namespaces, joined by capped interfaces.
//!
//! Each host has its own network, mounts and host name; `/tmp`, `/data`, `/run`, `/dev/shm` and `/root/.ssh` are
//! private, every other path is the machine's. Interfaces are veth pairs into one bridge per rail, in a switch
//! that has a namespace of its own, so that nothing touches the machine's network. Caps are token buckets on
//! both ends of a pair: one direction each. Everything dies with its owner, even by `kill -9`.
//!
//! ```no_run
//! use ropewalk_lab::{HostSpec, LabBuilder, NicSpec};
//!
//! let lab = LabBuilder::new()
//!     .host(HostSpec::new("a1").nic(NicSpec::rate_bits(100_000_000)))
//!     .host(HostSpec::new("b1").nic(NicSpec::rate_bits(100_000_000)))
//!     .build()?;
//! let status = lab.command("a1", "ping").args(["-c", "1", "b1"]).status();
//! # Ok::<(), ropewalk_lab::LabError>(())
//! ```
//!
//! Goals: rates exact to half a percent, failures on command, 64 hosts in seconds, no leftovers.
//! Non-goals: isolation against hostile programs; processes see each other, and the file system outside the
//! private directories is shared. A [`trunk`] with rate, delay, queue and loss joins two rails.
//!
//! Needs root and the programs `ip` and `tc`; [`available`] says whether a lab is possible here, so that tests
//! can skip with a visible line.

mod builder;
mod error;
mod faults;
mod lab;
mod root;
pub mod slurm;
mod spec;
mod ssh;
mod step;
mod sys;
pub mod trunk;
mod wiring;

pub use builder::{LabBuilder, available, skip};
pub use error::LabError;
pub use lab::{Counters, Lab, Nic};
pub use spec::{Address, Burst, HostSpec, NicSpec, SharedDir, Topology, parse_rate};
