//! The plain data of a transfer and the arithmetic on it: ranges, units, the specification file, demand,
//! schedules and their check.
//!
//! Pure: no sockets, files, threads, clocks or chance. Everything else depends on this crate, and it
//! depends on nothing of Ropewalk. How to plan is decided in `ropewalk-sched`, not here.

#![forbid(unsafe_code)]

pub mod class;
pub mod contents;
pub mod date;
pub mod digest;
pub mod host_list;
pub mod journal;
pub mod layout;
pub mod link;
pub mod naming;
pub mod plan_output;
pub mod problem;
pub mod range;
pub mod schedule;
pub mod segment;
pub mod spec;
pub mod table;
pub mod time;
pub mod units;
pub mod zeros;

pub use class::{Class, DemandTable, OpenPairs, uncovered};
pub use date::format_time;
pub use digest::{Digester, digest};
pub use layout::{CHUNK_LEN, Layout, LayoutError, Piece, UNIT_LEN_MIN, unit_len};
pub use link::{Link, NodeSet, add_links};
pub use naming::{SpaceOfFile, WholeFiles, space_needed};
pub use plan_output::{PlanOutput, PlanRefusal, PlannedTransfer};
pub use problem::{Destination, PairCap, Problem, Receiver, Sender, Trunk};
pub use range::{Range, RangeMap, RangeSet};
pub use schedule::{
    Assignment, Loads, ReceiverRun, RelayLoads, RelaySchedule, Relayed, Schedule, VerifyError,
    receiver_runs, relay_runs, verify, verify_relays,
};
pub use segment::{Segment, segments};
pub use spec::{AddressError, Hints, HostPort, Role, Row, SpecErrors, TransferSpec, Uri};
pub use table::{Number, Table};
pub use time::{Instant, Nanos};
pub use units::{ByteRate, Bytes, format_bytes, format_seconds};
pub use zeros::{ZEROS, are_zeros, digest_of_zeros};
