//! Moves a data set from N machines to M machines as one flow.
//!
//! This crate only re-exports: one name for everything a program needs.
//!
//! | to | use |
//! |---|---|
//! | carry out a transfer | [`master::run`] with a [`Request`] |
//! | serve a host's data | [`Agent`] |
//! | plan without moving | [`sched::plan_output`] on a [`model::Problem`] |
//! | read a specification file | [`model::TransferSpec`] |
//! | take nodes into a running transfer, or let them go | [`Members`] |
//! | send messages over several interfaces | [`message::MessageSocket`] |
//! | follow a transfer | [`Event`], [`Report`] |
//!
//! ```
//! use ropewalk::model::{ByteRate, TransferSpec};
//!
//! let text = "writer a:1 /data 0 0-1023\nreader b:2 /copy 0 0-1023";
//! let problem = TransferSpec::parse(text).unwrap().to_problem(ByteRate(125_000_000));
//! let plan = ropewalk::sched::plan_output(&problem, &ropewalk::sched::Greedy).unwrap();
//! assert_eq!(plan.transfers.len(), 1);
//! assert_eq!(plan.binding, ["a:1", "b:2"]);
//! ```

#![forbid(unsafe_code)]

pub use ropewalk_agent as agent;
pub use ropewalk_master as master;
pub use ropewalk_message as message;
pub use ropewalk_model as model;
pub use ropewalk_proto as proto;
pub use ropewalk_sched as sched;
pub use ropewalk_store as store;

pub use ropewalk_agent::{Agent, AgentConfig, AgentError};
pub use ropewalk_master::{Cancel, MasterError, Members, Request, request};
pub use ropewalk_proto::report::{self, Event, Outcome, Report};
