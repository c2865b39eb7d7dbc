//! What streams are served, by disks and receivers that do not answer, and what is counted.

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

    fn extent(&self, _offset: u64, _len: u64) -> Result<ropewalk_store::Extent<'_>, StoreError> {
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

    fn extent(&self, _offset: u64, _len: u64) -> Result<ropewalk_store::Extent<'_>, StoreError> {
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
    // Zeros are among what was asked for, and do not leave.
    let zeros = Range {
        start: 600,
        end: 1000,
    };
    meter.skipped(0, zeros);
    assert_eq!((serving.sent(), serving.skipped()), (710, 400));
}
