//! Regions: memory and files of other processes, read and written one-sidedly.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

pub use ropewalk_message::Options as RegionOptions;
pub use ropewalk_region::{Exposed, Rule};

use crate::Error;

/// Serves ranges of regions from memory and files of this process until it is dropped. Origins reach them without this program. At most 256
/// are connected at once, each with seven threads here; one more is refused.
///
/// ```
/// use ropewalk::{Buffer, Exposed, Region, RegionOptions, RegionServer, Rule};
///
/// let options = RegionOptions::default();
/// let server = RegionServer::bind(&[([127, 0, 0, 1], 0).into()], &options)?;
/// let exposed = Exposed::memory(0, Buffer::writable(vec![0; 4096]));
/// server.serve("table", 4096, Rule::All, vec![exposed])?;
/// let region = Region::connect("table", &[server.addresses()], &options)?;
/// region.put(100, b"hello")?;
/// assert_eq!(region.get(100..105)?, b"hello");
/// # Ok::<(), ropewalk::Error>(())
/// ```
#[derive(Debug)]
pub struct RegionServer(ropewalk_region::RegionServer);

/// A region that is read and written from this process (the origin, in MPI's terms; nodes that hold ranges are targets). Any number of threads share one.
///
/// * A get is served by any node that holds the range, the one with the least bytes outstanding. If it is lost, another one serves.
/// * A put goes to all holders or to the owner, as the region's [`Rule`] states, and is complete when all that are left have it.
/// * Without [`fence`](Region::fence), [`flush`](Region::flush), or a wait for the handle, two operations have no order.
/// * Small gets cost a round trip of the message socket: the calling thread reads the answer. Long ones are pieces of 256 KiB, up to 64 in flight
///   to each holder.
#[derive(Debug)]
pub struct Region(ropewalk_region::Region);

/// A get under way. Dropping it gives it up.
#[must_use = "dropping it gives the get up"]
#[derive(Debug)]
pub struct RegionGet(ropewalk_region::Get);

/// A put under way. Dropping it does not end it: [`Region::flush`] waits for it, and has its error.
#[must_use = "`wait` has its error; drop it where `flush` is to have that"]
#[derive(Debug)]
pub struct RegionPut(ropewalk_region::Put);

impl RegionServer {
    /// Listens on every address, which are the rails of each connection; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`Error::Host`] for an address that cannot be listened on, [`Error::Input`] for options that cannot be meant.
    pub fn bind(addresses: &[SocketAddr], options: &RegionOptions) -> Result<Self, Error> {
        crate::process::enter()?;
        Ok(Self(ropewalk_region::RegionServer::bind(
            addresses, options,
        )?))
    }

    /// Addresses that are listened on.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.addresses()
    }

    /// Serves ranges of a region of `size` bytes. All its nodes state the same size and rule; under [`Rule::Owner`] each byte has one owner.
    ///
    /// # Errors
    /// [`Error::Input`] for ranges that overlap or end beyond the region, [`Error::Host`] for files that cannot be opened or are too short.
    pub fn serve(
        &self,
        name: &str,
        size: u64,
        rule: Rule,
        exposed: Vec<Exposed>,
    ) -> Result<(), Error> {
        Ok(self.0.serve(name, size, rule, exposed)?)
    }

    /// Serves a region no longer and syncs its files; origins find this node lost. `false`: there is none of this name.
    ///
    /// # Errors
    /// [`Error::Host`] for a file that cannot be synced.
    pub fn withdraw(&self, name: &str) -> Result<bool, Error> {
        Ok(self.0.withdraw(name)?)
    }

    /// Waits until an origin has given some byte of a range at least this value, at most so long, and returns the value; `None` when the time is over.
    ///
    /// # Errors
    /// [`Error::Input`] for a region that is not served, or a range that is not held here.
    pub fn wait(
        &self,
        name: &str,
        range: Range<u64>,
        at_least: u64,
        most: Duration,
    ) -> Result<Option<u64>, Error> {
        Ok(self.0.wait(name, range, at_least, most)?)
    }
}

impl Region {
    /// Connects to the nodes of a region, each with the addresses of one or more interfaces. Nodes that are not reached are in
    /// [`lost`](Region::lost); one must be.
    ///
    /// * `options`: their deadline is the longest time of each call, 60 s where it has none. A node without any working connection for their
    ///   `peer_timeout` is lost; gets go to other holders at once.
    ///
    /// # Errors
    /// [`Error::Network`] with what went wrong at each node, a wrong token among it; [`Error::Peer`] where nodes do not agree on the region.
    pub fn connect(
        name: &str,
        nodes: &[Vec<SocketAddr>],
        options: &RegionOptions,
    ) -> Result<Self, Error> {
        crate::process::enter()?;
        Ok(Self(ropewalk_region::Region::connect(
            name, nodes, options,
        )?))
    }

    /// Bytes of the region.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    /// Which nodes puts are sent to.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.0.rule()
    }

    /// Nodes that take part, by their addresses, and the ranges that each holds.
    #[must_use]
    pub fn holders(&self) -> Vec<(Vec<SocketAddr>, Vec<Range<u64>>)> {
        self.0.holders()
    }

    /// Nodes that take no part, by their addresses, and why.
    #[must_use]
    pub fn lost(&self) -> Vec<(Vec<SocketAddr>, String)> {
        self.0.lost()
    }

    /// Reads a range.
    ///
    /// # Errors
    /// [`Error::Input`] for a range that is not in the region or that no node holds; [`Error::Network`] where all its holders are lost (the message
    /// names range and nodes), or the deadline passed.
    pub fn get(&self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        Ok(self.0.get(range)?)
    }

    /// Reads as many bytes as `into` has, from an offset on. After an error its contents are not defined.
    ///
    /// # Errors
    /// As [`get`](Region::get).
    pub fn get_into(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        Ok(self.0.get_into(offset, into)?)
    }

    /// Reads several ranges into memory, one after the other.
    ///
    /// # Errors
    /// As [`get`](Region::get), and [`Error::Input`] where `into` has not as many bytes as the ranges.
    pub fn get_all_into(&self, ranges: &[Range<u64>], into: &mut [u8]) -> Result<(), Error> {
        Ok(self.0.get_all_into(ranges, into)?)
    }

    /// Begins to read ranges. Any number may be under way; beyond 4096 this waits.
    ///
    /// # Errors
    /// As [`get`](Region::get) for what can be seen at once.
    pub fn get_start(&self, ranges: &[Range<u64>]) -> Result<RegionGet, Error> {
        Ok(RegionGet(self.0.get_start(ranges)?))
    }

    /// Writes bytes from an offset on, and returns when the nodes that the rule names have them.
    ///
    /// # Errors
    /// [`Error::Input`] for a range that is not in the region, held or owned, or of a region that is read-only; [`Error::Network`] where no node is left that has the
    /// bytes, or the deadline passed: some holders may have them.
    pub fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.0.put(offset, bytes)?)
    }

    /// Writes several ranges. Where they overlap, any of the bytes given may stay.
    ///
    /// # Errors
    /// As [`put`](Region::put).
    pub fn put_all(&self, parts: &[(u64, &[u8])]) -> Result<(), Error> {
        Ok(self.0.put_all(parts)?)
    }

    /// Begins to write bytes, which it takes.
    ///
    /// # Errors
    /// As [`put`](Region::put) for what can be seen at once.
    pub fn put_start(&self, offset: u64, bytes: Vec<u8>) -> Result<RegionPut, Error> {
        Ok(RegionPut(self.0.put_start(offset, bytes)?))
    }

    /// What is begun after it leaves when all puts and notifications begun before are complete. Does not wait.
    pub fn fence(&self) {
        self.0.fence();
    }

    /// Waits until all puts and notifications that were begun are complete (OpenSHMEM: quiet).
    ///
    /// # Errors
    /// As [`put`](Region::put): the error of a put whose handle was dropped, once.
    pub fn flush(&self) -> Result<(), Error> {
        Ok(self.0.flush()?)
    }

    /// Gives each byte of a range a value, unless it has a greater one, after all puts that were begun before. Values are 0 at first.
    ///
    /// # Errors
    /// As [`put`](Region::put); [`Error::Peer`] where a node keeps as many values as it can (4096 stretches).
    pub fn notify(&self, range: Range<u64>, value: u64) -> Result<(), Error> {
        Ok(self.0.notify(range, value)?)
    }

    /// Waits until some byte of a range has at least this value, at most so long, and returns the value; `None` when the time is over.
    /// Gets then see what was put before the notification.
    ///
    /// # Errors
    /// [`Error::Input`] for a range that no node has whole, and as [`get`](Region::get).
    pub fn wait(
        &self,
        range: Range<u64>,
        at_least: u64,
        most: Duration,
    ) -> Result<Option<u64>, Error> {
        Ok(self.0.wait(range, at_least, most)?)
    }
}

impl RegionGet {
    /// Waits for the bytes of all ranges, one after the other.
    ///
    /// # Errors
    /// As [`Region::get`].
    pub fn wait(self) -> Result<Vec<u8>, Error> {
        Ok(self.0.wait()?)
    }

    /// The bytes, if all are here within this time; `None`: the get goes on.
    ///
    /// # Errors
    /// As [`Region::get`], and [`Error::Input`] when they were taken.
    pub fn wait_for(&mut self, most: Duration) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.0.wait_for(most)?)
    }

    /// Whether it has ended, so that [`wait`](RegionGet::wait) returns at once. Does not wait, and makes progress.
    #[must_use]
    pub fn test(&self) -> bool {
        self.0.test()
    }
}

impl RegionPut {
    /// Waits until it is complete.
    ///
    /// # Errors
    /// As [`Region::put`].
    pub fn wait(self) -> Result<(), Error> {
        Ok(self.0.wait()?)
    }

    /// Whether it is complete within this time.
    ///
    /// # Errors
    /// As [`Region::put`].
    pub fn wait_for(&mut self, most: Duration) -> Result<bool, Error> {
        Ok(self.0.wait_for(most)?)
    }

    /// Whether it has ended, so that [`wait`](RegionPut::wait) returns at once. Does not wait, and makes progress.
    #[must_use]
    pub fn test(&self) -> bool {
        self.0.test()
    }
}
