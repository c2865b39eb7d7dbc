//! The sending side of a transfer: waits for the plan, serves what it holds, counts what left.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_lane::doing::{Doing, during};
use ropewalk_lane::interfaces::Interface;
use ropewalk_lane::{Absent, Extent, Provider, Stopper, TcpInfo, missing};
use ropewalk_model::Range;
use ropewalk_proto::control;
use ropewalk_proto::wire::{HeldRange, SPACE_DATA};

use crate::ahead::{Ahead, Ended, Group};
use crate::handing::{Announcing, Handing};
use crate::hashed::Hashed;
use crate::holdings::Holdings;
use crate::hung::Place;
use crate::interfaces;

mod rails;
#[cfg(test)]
mod tests;

pub(crate) use rails::OverRail;
use rails::Rails;

/// Files that are named of those that grew while they were read.
const GROWN_MAX: usize = 64;

enum State {
    // Peers may connect a moment before this node's own plan arrives.
    Waiting,
    Ready(Arc<Holdings>),
    Failed(String),
    Stopped,
}

impl State {
    /// What there is to serve, `Some(None)` where there never will be anything; `None` while that is not known.
    fn settled(&self) -> Option<Option<Result<Arc<Holdings>, String>>> {
        match self {
            Self::Waiting => None,
            Self::Ready(holdings) => Some(Some(Ok(holdings.clone()))),
            Self::Failed(reason) => Some(Some(Err(reason.clone()))),
            Self::Stopped => Some(None),
        }
    }
}

/// What one node serves in one transfer.
pub(crate) struct Serving {
    state: Mutex<State>,
    changed: Condvar,
    sent: AtomicU64,
    // Of these, zeros that did not leave.
    skipped: AtomicU64,
    second: Mutex<Second>,
    tcp: Mutex<Tcp>,
    // Of a receiver that hands on.
    handing: Mutex<Option<Handing>>,
    // Its streams, as far as they read before their turn.
    early: Arc<Group>,
    hashed: Hashed,
}

/// The streams that are served, and what closed ones did.
#[derive(Default)]
struct Tcp {
    open: HashMap<u64, (Option<OverRail>, Stopper)>,
    gone: control::TcpStatus,
    over: Rails,
}

fn count_in(all: &mut control::TcpStatus, stream: &TcpInfo) {
    all.acknowledged += stream.bytes_acknowledged;
    all.segments += u64::from(stream.segments);
    all.repeated += u64::from(stream.repeated);
}

struct Second {
    since: Instant,
    at: u64,
    bytes: u64,
    best: u64,
}

impl Serving {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State::Waiting),
            changed: Condvar::new(),
            sent: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            second: Mutex::new(Second {
                since: Instant::now(),
                at: 0,
                bytes: 0,
                best: 0,
            }),
            tcp: Mutex::default(),
            handing: Mutex::default(),
            early: Arc::new(Group::new()),
            hashed: Hashed::default(),
        }
    }

    /// A stream begins to be served.
    pub fn open_stream(&self, key: u64, over: Option<OverRail>, stream: Stopper) {
        let mut tcp = self.tcp.lock();
        tcp.open.insert(key, (over, stream));
        if let Some(over) = over {
            tcp.over.open(over);
        }
    }

    /// It is over. Called while its connection exists still.
    pub fn close_stream(&self, key: u64) {
        let mut tcp = self.tcp.lock();
        let Some((over, stream)) = tcp.open.remove(&key) else {
            return;
        };
        let info = stream.tcp_info();
        if let Some(info) = &info {
            count_in(&mut tcp.gone, info);
        }
        if let Some(over) = over {
            tcp.over.close(over, info.as_ref());
        }
    }

    /// What the kernel says of the streams, `None` where none was TCP; and of the rails that lose packets, where a receiver has several.
    pub fn tcp_status(&self) -> (Option<control::TcpStatus>, Vec<control::RailStatus>) {
        self.tcp_status_with(|| interfaces::usable(&[]))
    }

    /// As [`Serving::tcp_status`].
    ///
    /// * `usable`: the interfaces of this host. Asked for, where a rail has no name yet, while streams can open and close.
    fn tcp_status_with(
        &self,
        usable: impl FnOnce() -> Vec<Interface>,
    ) -> (Option<control::TcpStatus>, Vec<control::RailStatus>) {
        let mut tcp = self.tcp.lock();
        let mut over_rails = Vec::new();
        let mut all = tcp.gone;
        let mut trips = 0;
        let (mut limited, mut windows) = (0, 0);
        let open = tcp.open.values();
        let infos = open.filter_map(|(over, stream)| Some((*over, stream.tcp_info()?)));
        for (over, info) in infos {
            count_in(&mut all, &info);
            all.streams += 1;
            all.segment = all.segment.max(info.segment_bytes);
            trips += u64::from(info.rtt_microseconds);
            all.queued += u32::from(info.unsent_bytes > 0);
            limited += u32::from(info.limited_to > 0);
            windows += info.limited_to;
            let least = info.rtt_microseconds_min.min(info.rtt_microseconds);
            if least > 0 && (all.rtt_microseconds_min == 0 || least < all.rtt_microseconds_min) {
                all.rtt_microseconds_min = least;
            }
            over_rails.extend(over.map(|over| (over, info)));
        }
        let lossy = tcp.over.lossy(&over_rails);
        drop(tcp);
        let rails = lossy.unwrap_or_else(|unnamed| {
            let here = usable();
            self.tcp.lock().over.name(unnamed, &here)
        });
        if all.streams > 0 {
            all.rtt_microseconds = (trips / u64::from(all.streams)) as u32;
        }
        if limited > all.streams / 2 {
            all.window = u32::try_from(windows / u64::from(limited)).unwrap_or(u32::MAX);
        }
        let all = (all.streams > 0 || all.segments > 0).then_some(all);
        (all, rails)
    }

    /// Files that grew while they were read, and were read as far as they were scanned: the first ones, below the root of their source, and how
    /// many more there are.
    pub fn grown(&self) -> (Vec<Vec<u8>>, u64) {
        match &*self.state.lock() {
            State::Ready(holdings) => holdings.grown(GROWN_MAX),
            State::Waiting | State::Failed(_) | State::Stopped => (Vec::new(), 0),
        }
    }

    fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    pub fn start(&self, holdings: Holdings) {
        self.second.lock().since = Instant::now();
        self.set(State::Ready(Arc::new(holdings)));
    }

    /// The node hands on what it receives: what that is is announced on streams.
    pub fn hand_on(&self, handing: Handing) {
        *self.handing.lock() = Some(handing);
    }

    pub fn fail(&self, reason: String) {
        self.set(State::Failed(reason));
    }

    /// Streams have been stopped: what waits for a plan, or for a disk that other threads read, waits no longer.
    pub fn stop(&self) {
        self.set(State::Stopped);
        self.early.end();
        self.hashed.stop();
    }

    /// Whether it is what the node receives that is served.
    pub fn hands_on(&self) -> bool {
        self.handing.lock().is_some()
    }

    pub fn started(&self) -> bool {
        matches!(*self.state.lock(), State::Ready(_))
    }

    /// Blocks until there is something to serve; `None` when there never will be.
    pub fn wait(&self) -> Option<Result<Arc<Holdings>, String>> {
        let mut state = self.state.lock();
        loop {
            match state.settled() {
                Some(settled) => return settled,
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// As [`Serving::wait`], for so long; the outer `None`: it is not known by then.
    pub fn wait_for(&self, most: Duration) -> Option<Option<Result<Arc<Holdings>, String>>> {
        let mut state = self.state.lock();
        if matches!(*state, State::Waiting) {
            self.changed.wait_for(&mut state, most);
        }
        state.settled()
    }

    /// What one stream serves, counted.
    ///
    /// * `is_told`: what the node gets meanwhile is announced on it.
    pub fn meter(
        self: &Arc<Self>,
        holdings: Result<Arc<Holdings>, String>,
        is_told: bool,
    ) -> Metered {
        let handing = self.handing.lock().clone().filter(|_| is_told);
        let ahead = holdings.as_ref().ok();
        Metered {
            ahead: ahead.map(|holdings| Ahead::new(self.early.clone(), holdings.clone())),
            holdings,
            serving: self.clone(),
            announcing: handing.and_then(Announcing::new),
            asked: Mutex::new((0, Range { start: 0, end: 0 })),
        }
    }

    /// These bytes were counted, and are zeros that did not leave: they say nothing of a rate.
    fn skip(&self, bytes: u64) {
        self.skipped.fetch_add(bytes, Ordering::Relaxed);
        let mut second = self.second.lock();
        second.bytes = second.bytes.saturating_sub(bytes);
    }

    fn count(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        let mut second = self.second.lock();
        let at = second.since.elapsed().as_secs();
        if at != second.at {
            second.best = second.best.max(second.bytes);
            second.at = at;
            second.bytes = 0;
        }
        second.bytes += bytes;
    }

    /// Bytes handed to streams, zeros that did not leave among them.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Of these, zeros that did not leave.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Most bytes in one second; for less than that, the mean rate.
    pub fn best_second(&self) -> u64 {
        let second = self.second.lock();
        if second.best > 0 {
            return second.best;
        }
        let seconds = second.since.elapsed().as_secs_f64().max(1e-9);
        (second.bytes as f64 / seconds) as u64
    }
}

/// For a stream that has been stopped.
fn ended(Ended: Ended) -> Absent {
    Absent {
        code: missing::CANCELLED,
        reason: "the transfer has ended".into(),
    }
}

/// The holdings as one stream sees them, counting what it asks for. A stream may ask for the same
/// bytes several times in a row (first where they lie, then for the bytes); they count once.
pub(crate) struct Metered {
    holdings: Result<Arc<Holdings>, String>,
    serving: Arc<Serving>,
    announcing: Option<Announcing>,
    ahead: Option<Ahead>,
    // Space and range that were counted last.
    asked: Mutex<(u16, Range)>,
}

impl Metered {
    fn holdings(&self) -> Result<&Holdings, Absent> {
        match &self.holdings {
            Ok(holdings) => Ok(holdings),
            Err(reason) => Err(Absent {
                code: missing::UNREADABLE,
                reason: reason.clone(),
            }),
        }
    }

    /// Where bytes are read, for messages.
    pub fn place(&self, space: u16, offset: u64) -> Option<Place> {
        let holdings = self.holdings.as_ref().ok();
        let holdings = holdings.filter(|_| space == SPACE_DATA)?.clone();
        Some(Place { holdings, offset })
    }

    fn count(&self, space: u16, range: Range) {
        let mut asked = self.asked.lock();
        let (last_space, last) = *asked;
        let goes_on = space == last_space && (last.start..=last.end).contains(&range.start);
        let fresh = if goes_on {
            range.end.saturating_sub(last.end)
        } else {
            range.len()
        };
        let start = if goes_on { last.start } else { range.start };
        *asked = (
            space,
            Range {
                start,
                end: if goes_on {
                    last.end.max(range.end)
                } else {
                    range.end
                },
            },
        );
        drop(asked);
        if fresh > 0 {
            self.serving.count(fresh);
        }
    }
}

impl Metered {
    fn count_extent(&self, space: u16, range: Range, extent: &Extent<'_>) {
        let length = match extent {
            Extent::Memory(bytes) => (bytes.len() as u64).min(range.len()),
            Extent::File { length, .. } => (*length).min(range.len()),
        };
        self.count(
            space,
            Range {
                start: range.start,
                end: range.start + length,
            },
        );
    }
}

impl Provider for Metered {
    fn extent(&self, space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        let holdings = self.holdings()?;
        let since = Instant::now();
        let extent = during(Doing::Read, || holdings.extent(space, range))?;
        if let Some(ahead) = &self.ahead {
            // It was opened, and no byte was read.
            ahead.observe(space, range.start, 0, since.elapsed());
        }
        self.count_extent(space, range, &extent);
        Ok(extent)
    }

    fn in_memory(&self, space: u16, range: Range) -> Result<Option<Extent<'_>>, Absent> {
        let extent = self.holdings()?.in_memory(space, range)?;
        if let Some(extent) = &extent {
            self.count_extent(space, range, extent);
        }
        Ok(extent)
    }

    fn is_hole(&self, space: u16, range: Range) -> bool {
        let holdings = self.holdings.as_ref();
        during(Doing::Read, || {
            holdings.is_ok_and(|holdings| holdings.is_hole(space, range))
        })
    }

    fn skipped(&self, space: u16, range: Range) {
        self.count(space, range);
        self.serving.skip(range.len());
    }

    fn look(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        let holdings = self.holdings()?;
        during(Doing::Read, || {
            let Some(ahead) = &self.ahead else {
                return holdings.read(space, offset, out);
            };
            if ahead.read(space, offset, out).map_err(ended)? {
                return Ok(());
            }
            let since = Instant::now();
            holdings.read(space, offset, out)?;
            ahead.observe(space, offset, out.len() as u64, since.elapsed());
            Ok(())
        })
    }

    fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        self.look(space, offset, out)?;
        self.count(
            space,
            Range {
                start: offset,
                end: offset + out.len() as u64,
            },
        );
        Ok(())
    }

    fn granted(&self, units: &mut dyn Iterator<Item = (u16, Range)>) {
        if let Some(ahead) = &self.ahead {
            ahead.step(units);
        }
    }

    fn is_begun(&self, space: u16, range: Range) -> bool {
        let ahead = self.ahead.as_ref();
        ahead.is_some_and(|ahead| ahead.is_begun(space, range))
    }

    fn news(&self) -> Option<(Vec<HeldRange>, Duration)> {
        self.announcing.as_ref()?.news()
    }

    fn hashed(&self, space: u16, range: Range, digest: &[u8; 32]) {
        if space != SPACE_DATA {
            return;
        }
        self.serving.hashed.keep(range, digest);
        if let Some(announcing) = &self.announcing {
            announcing.check_read(range, digest);
        }
    }

    fn hash(
        &self,
        space: u16,
        range: Range,
        read: &mut dyn FnMut() -> Result<[u8; 32], Absent>,
    ) -> Result<[u8; 32], Absent> {
        if space != SPACE_DATA {
            return read();
        }
        let hash = self.serving.hashed.get_or_read(range, read);
        hash.unwrap_or_else(|| Err(ended(Ended)))
    }

    fn is_hashed(&self, space: u16, range: Range) -> bool {
        space == SPACE_DATA && self.serving.hashed.get(range).is_some()
    }
}
