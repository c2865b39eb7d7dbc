//! The protocol, pure: wire formats, the ledger and the control state machines.
//!
//! Nothing here touches sockets, files, threads or clocks: drivers hand in bytes, messages and
//! `now`, and carry out what is returned. The simulator drives the same code in virtual time.

#![forbid(unsafe_code)]

pub mod absence;
pub mod admission;
pub mod byte_stream;
pub mod codes;
pub mod control;
pub mod coordinator;
pub mod doctor;
pub mod handover;
pub mod launched;
pub mod ledger;
pub mod message;
pub mod mix;
pub mod node;
pub mod patience;
pub mod queue;
pub mod rapid;
pub mod read_ahead;
pub mod region;
pub mod report;
pub mod route;
pub mod silence;
pub mod stage;
pub mod top;
pub mod tunnel;
pub mod version;
pub mod wire;
