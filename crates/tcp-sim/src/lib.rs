//! A packet-level simulator of TCP over drop-tail routers: what the striping paper used (section 4), and the
//! three-policy tuner's model of a trunk.
//!
//! ```text
//!  Scenario ──run()──▶ Outcome, traces
//!     │
//!     ├ Topology   links (queue, rate, latency, loss) and routes   topology.rs, topology_file.rs
//!     ├ FlowSpec how many packets a flow sends from when            scenario.rs
//!     └ Profile    timers, first window, headers, delayed ACKs     profile.rs
//!
//!  run.rs     the loop: deliver a packet, end a transmission, expire a timer
//!  link.rs    store and forward, one drop-tail queue at each end of a link
//!  tcp/       Sender = Core (sequence numbers, timer) + a Flavour (tahoe, reno, newreno, vegas, cubic)
//! ```
//!
//! This is not `ropewalk-sim`: that one moves bytes of whole transfers between 10^5 nodes and knows no packets; this
//! one knows nothing but packets. They share no code.
//!
//! **Time** is seconds in binary floating point, added up in the same order as in the simulator that the paper
//! used. Drops under a drop-tail queue hang on which of two packets arrives first, and where sums of latencies are equal
//! on paper, rounding decides; with integer ticks the choice would be another one. Events at equal times keep the order
//! in which they were scheduled. Nothing is lost by it: a run is a pure function of its scenario.

#![forbid(unsafe_code)]

mod chance;
mod events;
mod link;
mod live;
mod profile;
mod receiver;
mod report;
mod rto;
mod run;
mod scenario;
pub mod tcp;
pub mod theory;
mod topology;
mod topology_file;
pub mod tune;

pub use chance::Stream;
pub use live::{Counters, Live, idle};
pub use profile::{Profile, RtoRule};
pub use report::{Drops, FlowOutcome, Outcome, Sample};
pub use scenario::{
    CONNECTIONS_MAX, FlowSpec, Invalid, NO_WINDOW, SAMPLES_MAX, Scenario, Stripes, TwoClusters,
};
pub use tcp::FlavourName;
pub use topology::{Link, Role, Topology};
pub use topology_file::{
    FileError, LineError, TimeError, parse as parse_topology, seconds as parse_seconds,
};
