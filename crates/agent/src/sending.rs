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

pub(crate) use rails::OverRail;
use rails::Rails;

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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use ropewalk_lane::{Check, Grant, LaneError, Protection, Received, mem};
    use ropewalk_model::RangeSet;
    use ropewalk_store::{Source, StoreError};

    use super::*;

    /// For what happens at once.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Small files of 1000 bytes on a disk that answers when it is let go.
    struct Hung {
        begun: Sender<u64>,
        is_let_go: Mutex<Receiver<()>>,
    }

    impl Source for Hung {
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
            // Zeros are not sent.
            buf.fill(7);
            let _ = self.begun.send(offset);
            let _ = self.is_let_go.lock().recv();
            Ok(())
        }

        fn extent(
            &self,
            _offset: u64,
            _len: u64,
        ) -> Result<ropewalk_store::Extent<'_>, StoreError> {
            Err(StoreError::Ended)
        }

        fn is_small_file(&self, _range: Range) -> bool {
            true
        }
    }

    /// A stream whose next file is being read, by a disk that does not answer, ends when the transfer is stopped.
    #[test]
    fn a_stopped_transfer_waits_for_no_disk() {
        let (begun, begins) = channel();
        let (let_go, is_let_go) = channel();
        let hung = Hung {
            begun,
            is_let_go: Mutex::new(is_let_go),
        };
        let all = RangeSet::from(Range::new(0, 10_000));
        let holdings = Holdings {
            sources: vec![(all, Arc::new(hung))],
            ..Holdings::default()
        };
        // Other tests wait for reads of theirs.
        let serving = Arc::new(Serving {
            early: Arc::new(Group::alone()),
            ..Serving::new()
        });
        let meter = serving.meter(Ok(Arc::new(holdings)), false);
        meter.ahead.as_ref().unwrap().make_slow();
        let units =
            |from: u64| (from..3).map(|at| (SPACE_DATA, Range::new(at * 1000, (at + 1) * 1000)));
        meter.granted(&mut units(0));
        let mut both = [0; 2].map(|_| begins.recv_timeout(DEADLINE).unwrap());
        both.sort_unstable();
        assert_eq!(both, [1000, 2000]);
        meter.granted(&mut units(1));
        assert!(meter.is_begun(SPACE_DATA, Range::new(1000, 2000)));
        let (gives, given) = channel();
        std::thread::spawn(move || gives.send(meter.read(SPACE_DATA, 1000, &mut [0; 1000])));
        let until = Instant::now() + DEADLINE;
        while !serving.early.is_waited_for() {
            assert!(Instant::now() < until, "the stream does not wait");
            std::thread::yield_now();
        }
        serving.stop();
        let answer = given.recv_timeout(DEADLINE).unwrap();
        assert_eq!(answer.unwrap_err().code, missing::CANCELLED);
        drop(let_go);
    }

    /// A stream whose receiver does not read is given up, and leaves what was read for it before its turn.
    #[test]
    fn a_stopped_receiver_keeps_nothing() {
        const LEN: u64 = 400_000;
        let (begun, _begins) = channel();
        let (let_go, is_let_go) = channel();
        // Reads return at once.
        drop(let_go);
        let files = Hung {
            begun,
            is_let_go: Mutex::new(is_let_go),
        };
        let all = RangeSet::from(Range::new(0, 3 * LEN));
        let holdings = Holdings {
            sources: vec![(all, Arc::new(files))],
            ..Holdings::default()
        };
        let group = Arc::new(Group::alone());
        let serving = Arc::new(Serving {
            early: group.clone(),
            ..Serving::new()
        });
        let meter = serving.meter(Ok(Arc::new(holdings)), false);
        meter.ahead.as_ref().unwrap().make_slow();
        let plain = || Protection::Plain(Check::Fragment);
        let (mut receiver, mut sender) = mem::pair(plain(), plain()).unwrap();
        let grant = |id: u32| Grant {
            id,
            space: SPACE_DATA,
            range: Range::new(u64::from(id) * LEN, (u64::from(id) + 1) * LEN),
            hash: false,
            digest: false,
        };
        receiver.grant(&[0, 1, 2].map(grant)).unwrap();
        sender.set_patience(Duration::from_millis(1));
        let ended = sender.serve(&meter, DEADLINE);
        assert!(matches!(ended, Err(LaneError::Silent { .. })), "{ended:?}");
        // The last one, at least; the one whose turn it is may not have been begun.
        assert!(group.counts().0 > 0);
        drop(meter);
        // A read that is under way counts until it returns.
        let until = Instant::now() + DEADLINE;
        while group.counts() != (0, 0) {
            assert!(Instant::now() < until, "{:?}", group.counts());
            std::thread::yield_now();
        }
    }

    /// What lies in memory, counted as it is read.
    #[derive(Default)]
    struct Counted {
        reads: AtomicU64,
    }

    impl Source for Counted {
        fn read_at(&self, _offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            buf.fill(7);
            Ok(())
        }

        fn extent(
            &self,
            _offset: u64,
            _len: u64,
        ) -> Result<ropewalk_store::Extent<'_>, StoreError> {
            Ok(ropewalk_store::Extent::Memory(&[]))
        }
    }

    /// A unit that was read to be sent, or for its hash, is not read again for those that ask for its hash, on whichever stream.
    #[test]
    fn a_unit_is_hashed_for_one_receiver() {
        const LEN: u64 = 5000;
        let source = Arc::new(Counted::default());
        let all = RangeSet::from(Range::new(0, 3 * LEN));
        let holdings = Arc::new(Holdings {
            sources: vec![(all, source.clone())],
            ..Holdings::default()
        });
        let serving = Arc::new(Serving::new());
        let grant = |id: u32, unit: u64, digest: bool| Grant {
            id,
            space: SPACE_DATA,
            range: Range::new(unit * LEN, (unit + 1) * LEN),
            hash: !digest,
            digest,
        };
        let wanted = *blake3::hash(&[7; LEN as usize]).as_bytes();
        let serve = |grants: &[Grant]| {
            let meter = serving.meter(Ok(holdings.clone()), false);
            let plain = || Protection::Plain(Check::Fragment);
            let (mut receiver, mut sender) = mem::pair(plain(), plain()).unwrap();
            receiver.grant(grants).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| sender.serve(&meter, DEADLINE));
                let mut landing = crate::landing::BufferLanding {
                    bytes: vec![0; 3 * LEN as usize],
                };
                for _ in grants {
                    let received = receiver.receive(&mut landing, Instant::now() + DEADLINE);
                    match received.unwrap() {
                        Received::Digest { digest, .. } => assert_eq!(digest, wanted),
                        Received::Unit { digest, .. } => assert_eq!(digest, Some(wanted)),
                        other => panic!("{other:?}"),
                    }
                }
                drop(receiver);
            });
            source.reads.swap(0, Ordering::Relaxed)
        };
        assert_eq!(serve(&[grant(0, 0, true), grant(1, 0, true)]), 1);
        assert_eq!(serve(&[grant(0, 1, false)]), 1);
        let again = [0, 1].map(|unit| grant(unit, unit.into(), true));
        assert_eq!(serve(&again), 0);
        assert_eq!(serve(&[grant(0, 2, true), grant(1, 2, false)]), 2);
    }

    /// Streams open and close while the system is asked for the interfaces of the host.
    #[test]
    fn interfaces_are_asked_for_without_the_lock() {
        use super::rails::tests::{info, over};
        let serving = Serving::new();
        for (last, repeated) in [(1, 3), (2, 20)] {
            let rails = &mut serving.tcp.lock().over;
            rails.open(over(1, last));
            rails.close(over(1, last), Some(&info(repeated)));
        }
        let mut asked = 0;
        let mut status = || {
            let (_, lossy) = serving.tcp_status_with(|| {
                asked += 1;
                assert!(serving.tcp.try_lock().is_some());
                Vec::new()
            });
            let names = lossy.into_iter().map(|rail| rail.rail);
            names.collect::<Vec<String>>()
        };
        let names = ["240.0.0.2 - 198.51.100.2", "240.0.0.1 - 198.51.100.1"];
        assert_eq!(status(), names);
        assert_eq!(status(), names);
        assert_eq!(asked, 1);
    }

    /// Asking first for the place and then piece by piece for the bytes counts each byte once.
    #[test]
    fn bytes_asked_for_twice_count_once() {
        let serving = Arc::new(Serving::new());
        let meter = serving.meter(Err("unused".into()), false);
        for range in [
            (0, 100),
            (0, 60),
            (60, 100),
            (100, 200),
            (500, 600),
            (500, 550),
            (0, 10),
        ] {
            meter.count(
                0,
                Range {
                    start: range.0,
                    end: range.1,
                },
            );
        }
        assert_eq!(serving.sent(), 100 + 100 + 100 + 10);
    }
}
