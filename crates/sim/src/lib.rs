//! Whole transfers in virtual time: the shipping coordinator, schedulers, nodes and ledgers, unchanged,
//! over nodes whose speeds are given, change, pause and fail by a script.
//!
//! ```text
//!  Scenario --run()--> World: coordinator <- control messages with latency -> agents (node + ledger)
//!                                |                                               | lanes with work
//!                              sched                                     network: max-min fair rates
//!                                                                                |
//!  Ended <------------------------------------------------------------- bytes in virtual time
//! ```
//!
//! **Fluid.** Bytes flow: a lane with work carries its max-min fair share of the sender's uplink and the
//! receiver's downlink ([`network`]). Packets, queues and loss are left out on purpose, and so are processor time and the time
//! planning takes. Disks have no speed, but [`Scenario::trees`] are written to some that keep what was synced ([`Disk`]), so that a
//! later transfer finds what an earlier one left.
//!
//! **Time** goes in steps of a fixed length ([`Scenario::step_time`]), but a step costs only what happens in it:
//! a lane's rate is constant until a lane starts or stops near it, so each receiver sleeps until its next unit
//! is complete, a message arrives, or it has to look at its plan. Rates change at steps only. That makes what
//! an agent learns up to a step late and keeps the cost of 10^5 nodes at O(units × log); bytes are exact,
//! since what a lane has carried beyond a unit counts for its next one.
//!
//! A second simulator, of TCP packets on a network that drops them, is the crate `ropewalk-tcp-sim`; the two share nothing.
//!
//! Deterministic: no clock, no chance but the caller's, ordered containers. The same [`Scenario`] gives the same
//! [`Ended`].

#![forbid(unsafe_code)]

mod agent;
mod bound;
mod chance;
mod copy;
mod disk;
mod ended;
mod lane;
mod mail;
pub mod network;
mod receiver;
mod relays;
mod scenario;
mod stages;
mod ways;
mod world;

use ropewalk_model::Nanos;

pub use bound::changed_bound;
pub use chance::Chance;
pub use copy::{TreeFile, Trees};
pub use disk::Disk;
pub use ended::{Ended, Mended, Second};
pub use mail::{Tally, Traffic};
pub use relays::run_relays;
pub use scenario::{Change, Event, Scenario, Speed, node};
pub use stages::{StageScenario, StagesEnded, run_stages};

/// A millisecond.
pub const MS: Nanos = Nanos::from_millis(1);

/// A second.
pub const SECOND: Nanos = Nanos::from_secs(1);
