//! How bytes cross between two nodes.
//!
//! A **lane** is one transport resource between two nodes; it owns **streams**. A stream has a
//! receiving end that pulls ([`ReceiveHalf`]) and a sending end that answers ([`SendHalf`]), each
//! driven by one thread. The receiver grants units of at most 1 MiB in the order it wants them, keeps
//! as many outstanding as its window says, and gets each back as [`Received`].
//!
//! ```text
//!   receiver                                  sender
//!   grant(units) ──── GRANT GRANT GRANT ────▶ serve(provider)
//!   receive(landing) ◀── DATA DATA … ───────  extent: sendfile, or from memory
//!      buffer / write                         read:   through a cache-sized buffer
//! ```
//!
//! Constructors: [`tcp`], [`unix`], [`shm`], [`mpi`], [`udp`], [`local`], [`mem`] (tests), [`faulty`] (tests). [`Protection`] says what
//! guards the frames; both ends must be given the same. [`preface`] is what a connection begins
//! with, before it becomes a stream; [`seal`] derives the keys.
//!
//! Left out on purpose: which unit to ask for (the ledger), how many streams (the stripe tuner), and
//! reconnecting (the agent). A stream that returned an error is over.
//!
//! # Example
//! ```
//! use std::time::{Duration, Instant};
//! use ropewalk_lane::*;
//! use ropewalk_model::Range;
//!
//! struct Bytes(Vec<u8>);
//! impl Provider for Bytes {
//!     fn extent(&self, _space: u16, range: Range) -> Result<Extent<'_>, Absent> {
//!         Ok(Extent::Memory(&self.0[range.start as usize..range.end as usize]))
//!     }
//!     fn read(&self, _space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
//!         out.copy_from_slice(&self.0[offset as usize..][..out.len()]);
//!         Ok(())
//!     }
//! }
//! impl Landing for Bytes {
//!     fn write(&mut self, _space: u16, offset: u64, bytes: &[u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!         self.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
//!         Ok(())
//!     }
//! }
//!
//! let plain = || Protection::Plain(Check::Fragment);
//! let (mut receiver, mut sender) = mem::pair(plain(), plain())?;
//! let thread = std::thread::spawn(move || sender.serve(&Bytes(vec![7; 5000]), Duration::from_secs(5)));
//! let mut landing = Bytes(vec![0; 5000]);
//! receiver.grant(&[Grant { id: 1, space: 0, range: Range::new(0, 5000), hash: true, digest: false }])?;
//! let received = receiver.receive(&mut landing, Instant::now() + Duration::from_secs(5))?;
//! assert!(matches!(received, Received::Unit { digest: Some(_), .. }));
//! assert_eq!(landing.0, [7; 5000]);
//! drop(receiver);
//! assert_eq!(thread.join().unwrap()?, Served::Closed);
//! # Ok::<(), LaneError>(())
//! ```

mod checksum;
mod cipher;
pub mod control;
pub mod doing;
pub mod edge;
mod error;
pub mod exchange;
pub mod faulty;
mod frame_io;
mod half;
pub mod interfaces;
pub mod links;
pub mod local;
pub mod mem;
pub mod mpi;
pub mod open_files;
pub mod packets;
pub mod preface;
mod receive;
pub mod routes;
pub mod seal;
mod send;
pub mod shm;
mod socket;
pub mod tcp;
mod tcp_info;
pub mod tls;
pub mod udp;
pub mod unix;
mod wire;

pub use checksum::{Check, Crc64, crc64};
pub use error::LaneError;
pub use frame_io::Protection;
pub use half::{
    Absent, BlastSeen, Extent, Grant, Landing, OUTSTANDING_MAX, Observation, Provider, ReceiveHalf,
    Received, SendHalf, Served, Stopper, missing,
};
pub use tcp_info::TcpInfo;
pub use wire::PATIENCE;
