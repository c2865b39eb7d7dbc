//! One-sided access: a named data space whose ranges are in memory or files of several nodes, read and written from any process.
//!
//! The words are those of MPI's one-sided communication and of OpenSHMEM: the process that calls is the **origin**, a node that holds ranges is a
//! **target**, and what it exposes ([`Exposed`]) is its part of the window. No code of the target's program takes part.
//!
//! ```
//! use ropewalk_message::Options;
//! use ropewalk_region::{Exposed, Region, RegionServer, Rule};
//! use ropewalk_store::Buffer;
//!
//! let options = Options::default();
//! let server = RegionServer::bind(&["127.0.0.1:0".parse()?], &options)?;
//! let exposed = Exposed::memory(0, Buffer::writable(vec![0; 4096]));
//! server.serve("table", 4096, Rule::All, vec![exposed])?;
//! let region = Region::connect("table", &[server.addresses()], &options)?;
//! region.put(100, b"hello")?;
//! assert_eq!(region.get(100..105)?, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | call | when it returns | MPI | OpenSHMEM |
//! |---|---|---|---|
//! | [`get`](Region::get) | the bytes are here | `MPI_Get` + `MPI_Win_flush` | `shmem_getmem` |
//! | [`get_start`](Region::get_start) | at once; [`Get::wait`] has the bytes | `MPI_Rget` | `shmem_getmem_nbi` |
//! | [`put`](Region::put) | all nodes that are written to have the bytes | `MPI_Put` + `MPI_Win_flush` | `shmem_putmem` + `shmem_quiet` |
//! | [`put_start`](Region::put_start) | the memory may be used again | `MPI_Rput` + `MPI_Win_flush_local` | `shmem_putmem_nbi` |
//! | [`fence`](Region::fence) | at once; what is begun later leaves when earlier puts are complete | | `shmem_fence` |
//! | [`flush`](Region::flush) | all puts that were begun are complete | `MPI_Win_flush_all` | `shmem_quiet` |
//! | [`notify`](Region::notify), [`wait`](Region::wait) | the target has it; the value is there | | `shmem_signal_op`, `shmem_signal_wait_until` |
//!
//! # Order and visibility
//!
//! * Without a fence, a flush or a wait for its handle between them, two operations of one origin have no order, also on the same bytes.
//! * A put that is complete is seen by every get, of any origin, that begins afterwards under [`Rule::All`]. Under [`Rule::Owner`] it is seen by gets of the origin that
//!   wrote and of one that has waited for a notification of the range: these get such bytes from the owner. Other holders have the bytes from before, and gets of others may return
//!   those.
//! * A get and a put of the same bytes at the same time: each byte is old or new, and no more is promised. So are two puts; under [`Rule::All`] holders may then differ. Use
//!   notifications to take turns.
//! * A notification leaves when all earlier puts of its origin are complete. The process that waits for it, and then gets, sees them.
//! * Complete means in the memory of the targets, or in the page cache of their hosts; files are synced when they are withdrawn.
//!
//! # Failures
//!
//! * A get whose target is lost, or without a working connection, goes to another holder. Where none is left it fails, and the error names range and nodes.
//! * A put is complete when all holders that are left have it: one that is lost, or that cannot write, takes no further part for this origin, and
//!   [`Region::lost`] names it. Where no holder is left that has acknowledged some of the bytes, the put fails. Under [`Rule::Owner`] there is one.
//! * A put whose deadline passes may be written by some holders, by all or by none.
//! * Nodes that were lost are not tried again; a [`Region`] that is connected later does.
//!
//! Progress is made within calls: where all threads of an origin do something else, requests in flight are answered, and others wait.
//!
//! # Bounds
//!
//! An origin has at most 64 requests of at most 256 KiB in flight to each node, and as much memory for their answers; a target keeps at most
//! 16 MiB of answers and one request of each origin. A server has at most 256 origins at once, which are connected regions, and 1024 regions; each origin costs it
//! seven threads with one interface. One origin more is refused, and the error names the number.

mod error;
mod exposed;
mod handles;
mod memory;
mod origin;
mod region;
mod server;

pub use error::RegionError;
pub use exposed::Exposed;
pub use handles::{Get, Put};
pub use region::Region;
pub use ropewalk_proto::region::Rule;
pub use server::RegionServer;
