//! Moves a data set from N hosts to M hosts as one transfer, over all their interfaces.
//!
//! | to | use |
//! |---|---|
//! | copy a data set between hosts | [`Transfer`] |
//! | say which bytes of which files go where, row by row | [`RowTransfer`] |
//! | serve a host's data | [`Agent`] |
//! | move what is in this program's memory, or is to be there | [`Agent::lend`], [`Buffer`] |
//! | see a plan and its least time without moving a byte | [`plan()`] |
//! | be a stage of `ropewalk stream`: a function of blocks | [`each_block`] |
//! | send messages over several interfaces | [`MessageListener`], [`MessageSocket`] |
//! | read and write memory and files of other processes, one-sidedly | [`RegionServer`], [`Region`] |
//! | read and write bytes over several interfaces, as with a TCP socket | [`ByteStreamListener`], [`ByteStream`], [`ByteStreams`] |
//!
//! Every operation fails with one [`Error`], sorted by the party that must act. `examples/` has a program for each.
//!
//! A child that a process forks (`fork`) after it has made one of these uses none of them and makes none: both are refused with [`Error::Input`]. A program that
//! is executed (`exec`), and a child of a process that has made nothing yet, are as any other process.
//!
//! ```
//! use ropewalk::ByteRate;
//!
//! let text = "writer a:1 /data 0 0-1023\nreader b:2 /copy 0 0-1023";
//! let plan = ropewalk::plan(text, ByteRate::from_bits_per_second(1_000_000_000))?;
//! assert_eq!(plan.transfers.len(), 1);
//! assert_eq!(plan.binding, ["a:1", "b:2"]);
//! # Ok::<(), ropewalk::Error>(())
//! ```

#![forbid(unsafe_code)]

mod agent;
mod byte_stream;
mod error;
mod handed;
mod message;
mod options;
mod plan;
mod process;
mod region;
mod rows;
mod running;
mod transfer;

pub use agent::{Agent, AgentOptions, new_token, read_token};
pub use byte_stream::{ByteStream, ByteStreamListener, ByteStreams};
pub use error::{Error, Fault};
pub use message::{MessageListener, MessageOptions, MessageSocket};
pub use plan::plan;
pub use region::{Exposed, Region, RegionGet, RegionOptions, RegionPut, RegionServer, Rule};
pub use rows::{Row, RowTransfer};
pub use running::Running;
pub use transfer::{Place, Transfer};

pub use ropewalk_master::Cancel;
pub use ropewalk_master::request::Verify;
pub use ropewalk_model::{ByteRate, Bytes, PlanOutput, PlannedTransfer};
pub use ropewalk_proto::codes;
pub use ropewalk_proto::report::{ErrorKind, Event, Outcome, Report};
pub use ropewalk_stage::each_block;
pub use ropewalk_store::{Buffer, BufferError};
