//! How the threads of this node spend their time in one transfer. An observer looks at all of them many times a second, so that they pay
//! nothing for it; what it sees is summed up as thread time of each kind, for the master, which knows all nodes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_lane::doing::{Doing, Entered, State, Thread, enter, entered};
use ropewalk_proto::control;

/// Pause between two looks; a second has enough of them for shares of a few per cent.
const PAUSE: Duration = Duration::from_millis(40);

/// The same for each thread where there are many: a look at one takes about 5 microseconds, so that all take 0.3 % of a processor at most.
const PAUSE_EACH: Duration = Duration::from_millis(2);

/// What a thread does for the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Serves a stream.
    Sends,
    /// Reads for a node of this process that drives the stream.
    Lends,
    /// Drives a stream that receives.
    Receives,
    /// Makes bytes safe and gives files their names; between these it does nothing.
    Keeps,
}

/// Thread time of one side in nanoseconds since the transfer began.
#[derive(Debug, Default)]
struct Observed {
    threads: Vec<(u64, Side, Thread)>,
    next: u64,
    sending: control::Waits,
    receiving: control::Waits,
    looked_at: Option<Instant>,
}

/// The threads of one transfer on this node.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<Observed>);

/// A thread is observed until this is dropped.
pub(crate) struct Present {
    waits: Arc<Waits>,
    key: u64,
    _entered: Option<Entered>,
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut observed = self.waits.0.lock();
        observed.threads.retain(|(key, _, _)| *key != self.key);
    }
}

impl Waits {
    /// This thread works for the transfer from now on.
    pub fn enter(self: &Arc<Self>, side: Side) -> Present {
        let (entered, thread) = enter();
        self.observe(side, thread, Some(entered))
    }

    /// This thread, which works for another node of this process, reads what this one sends. `None` where it is not observed.
    pub fn lend(self: &Arc<Self>) -> Option<Present> {
        Some(self.observe(Side::Lends, entered()?, None))
    }

    fn observe(self: &Arc<Self>, side: Side, thread: Thread, entered: Option<Entered>) -> Present {
        let mut observed = self.0.lock();
        let key = observed.next;
        observed.next += 1;
        observed.threads.push((key, side, thread));
        let is_first = observed.looked_at.is_none();
        observed.looked_at.get_or_insert_with(Instant::now);
        drop(observed);
        if is_first {
            let waits = Arc::downgrade(self);
            let thread = std::thread::Builder::new().name("observe".into());
            // Without it shares of time are not known, and all else is as well.
            let _ = thread.spawn(move || observe(&waits));
        }
        Present {
            waits: self.clone(),
            key,
            _entered: entered,
        }
    }

    /// Looks at all threads; the pause until the next look.
    fn look(&self, now: Instant) -> Duration {
        let mut observed = self.0.lock();
        let Observed {
            threads,
            sending,
            receiving,
            looked_at,
            ..
        } = &mut *observed;
        let since = looked_at.replace(now).unwrap_or(now);
        let passed = now.saturating_duration_since(since).as_nanos() as u64;
        for (_, side, thread) in threads.iter() {
            let doing = thread.doing();
            let here = now
                .saturating_duration_since(thread.entered_at())
                .as_nanos() as u64;
            let passed = passed.min(here);
            match side {
                Side::Sends => *kind(sending, doing, thread.state()) += passed,
                // The rest of its time is the receiver's.
                Side::Lends if doing == Doing::Read => {
                    *kind(sending, doing, thread.state()) += passed
                }
                Side::Lends => {}
                // The sender is on this thread.
                Side::Receives if doing == Doing::Read => receiving.peer += passed,
                Side::Receives => *kind(receiving, doing, thread.state()) += passed,
                Side::Keeps if matches!(doing, Doing::Sync | Doing::Name) => {
                    *kind(receiving, doing, State::Sleeps) += passed;
                }
                Side::Keeps => {}
            }
        }
        PAUSE.max(PAUSE_EACH * threads.len() as u32)
    }

    /// Of the sending side and of the receiving one.
    pub fn read(&self) -> (control::Waits, control::Waits) {
        let observed = self.0.lock();
        (observed.sending, observed.receiving)
    }
}

/// The sum that a thread's time belongs to.
///
/// * `state`: one that runs waits for nothing else, whatever it began.
fn kind(waits: &mut control::Waits, doing: Doing, state: State) -> &mut u64 {
    match doing {
        Doing::Sync => &mut waits.sync,
        Doing::Name => &mut waits.name,
        Doing::Idle => &mut waits.idle,
        _ if state == State::Runs => &mut waits.processor,
        Doing::Read | Doing::Write => &mut waits.disk,
        // Bytes of a mapped file are read when they are touched.
        Doing::Work if state == State::Device => &mut waits.disk,
        // For another thread of the node, which is at work.
        Doing::Work => &mut waits.processor,
        Doing::Peer => &mut waits.peer,
        Doing::Path => &mut waits.path,
        Doing::Space => &mut waits.space,
        Doing::Connect => &mut waits.connect,
    }
}

fn observe(waits: &Weak<Waits>) {
    let mut pause = PAUSE;
    loop {
        std::thread::sleep(pause);
        let Some(waits) = waits.upgrade() else {
            return;
        };
        pause = waits.look(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ropewalk_lane::doing::{Doing, State, during};
    use ropewalk_proto::control;

    use super::{Side, Waits, kind};

    /// Time of a thread is counted where its work belongs; a thread that runs waits for nothing.
    #[test]
    fn each_kind_has_its_sum() {
        let sum = |doing, state| {
            let mut waits = control::Waits::default();
            *kind(&mut waits, doing, state) += 1;
            waits
        };
        let of = control::Waits::default;
        let processor = control::Waits {
            processor: 1,
            ..of()
        };
        let disk = control::Waits { disk: 1, ..of() };
        for doing in [Doing::Work, Doing::Read, Doing::Write] {
            assert_eq!(sum(doing, State::Runs), processor);
            assert_eq!(sum(doing, State::Device), disk);
        }
        assert_eq!(sum(Doing::Read, State::Sleeps), disk);
        // It waits for a lock.
        assert_eq!(sum(Doing::Work, State::Sleeps), processor);
        assert_eq!(sum(Doing::Peer, State::Runs), processor);
        let (peer, path) = (
            control::Waits { peer: 1, ..of() },
            control::Waits { path: 1, ..of() },
        );
        assert_eq!(sum(Doing::Peer, State::Sleeps), peer);
        assert_eq!(sum(Doing::Path, State::Sleeps), path);
        let (sync, idle) = (
            control::Waits { sync: 1, ..of() },
            control::Waits { idle: 1, ..of() },
        );
        assert_eq!(sum(Doing::Sync, State::Sleeps), sync);
        assert_eq!(sum(Doing::Idle, State::Runs), idle);
    }

    /// What an observer sees between two looks counts as a whole, of each thread and side, until the thread leaves.
    #[test]
    fn threads_are_summed() {
        let waits = std::sync::Arc::new(Waits::default());
        // No observer of its own: the test is the observer.
        waits.0.lock().looked_at = Some(Instant::now());
        let here = waits.enter(Side::Sends);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        waits.look(start);
        during(Doing::Idle, || {
            waits.look(after(100));
            let (sending, receiving) = waits.read();
            assert_eq!(sending.idle, 100_000_000_000);
            assert_eq!(receiving, control::Waits::default());
        });
        drop(here);
        let _here = waits.enter(Side::Keeps);
        waits.look(after(200));
        during(Doing::Sync, || waits.look(after(202)));
        let (sending, receiving) = waits.read();
        assert_eq!(sending.idle, 100_000_000_000);
        assert_eq!(receiving.sync, 2_000_000_000);
    }

    /// A thread that reads for one node and writes for another counts for each as what it does for that one.
    #[test]
    fn a_thread_of_two_nodes_counts_for_both() {
        let (near, far) = (
            std::sync::Arc::new(Waits::default()),
            std::sync::Arc::new(Waits::default()),
        );
        let start = Instant::now();
        for waits in [&near, &far] {
            waits.0.lock().looked_at = Some(start);
        }
        assert!(far.lend().is_none(), "it is not observed");
        let _here = near.enter(Side::Receives);
        let _lent = far.lend().unwrap();
        let look = |seconds| {
            near.look(start + Duration::from_secs(seconds));
            far.look(start + Duration::from_secs(seconds));
        };
        look(10);
        during(Doing::Read, || look(110));
        during(Doing::Write, || look(310));
        let ((lent, none), (_, received)) = (far.read(), near.read());
        assert_eq!(none, control::Waits::default());
        assert_eq!(lent.disk + lent.processor, 100_000_000_000);
        assert_eq!(received.peer, 100_000_000_000);
        assert!(received.disk + received.processor >= 200_000_000_000);
        assert_eq!(lent.peer, 0);
    }

    /// A thread that came between two looks has not been there since the first.
    #[test]
    fn threads_count_from_when_they_enter() {
        let waits = std::sync::Arc::new(Waits::default());
        let before = Instant::now().checked_sub(Duration::from_secs(50)).unwrap();
        waits.0.lock().looked_at = Some(before);
        let _here = waits.enter(Side::Sends);
        let entered = Instant::now();
        during(Doing::Idle, || waits.look(entered + Duration::from_secs(1)));
        let idle = waits.read().0.idle;
        assert!((1_000_000_000..40_000_000_000).contains(&idle), "{idle}");
    }
}
