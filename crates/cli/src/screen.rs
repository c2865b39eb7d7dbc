//! Shows what happens, in a thread of its own: a reader of standard output that stops reading, or a terminal that is stopped, stops nothing
//! else.
//!
//! ```text
//!  loop: events, signals ──▶ backlog, bounded ──▶ thread ──▶ standard output, standard error
//! ```

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, oneshot};

use crate::job;
use crate::print::Taken;
use crate::runtime::not_started;
use crate::sys;

mod backlog;

use self::backlog::{Backlog, Next};

pub(crate) use self::backlog::Keeping;

/// After a signal: a reader that takes nothing for so long gets nothing more.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);

/// What is shown of events, and how.
pub(crate) trait Show: Send + 'static {
    type Event: Send + 'static;

    /// What becomes of an event while readers take nothing.
    fn keeping(event: &Self::Event) -> Keeping;

    /// Shows an event; may wait for its readers.
    fn show(&mut self, event: Self::Event);

    /// Shows that events were lost here.
    fn omitted(&mut self, events: u64);

    /// What readers have taken of what it shows.
    fn taken(&self) -> Taken;
}

/// Ctrl-C and SIGTERM; SIGHUP where it is listened for.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    wishes: Wishes,
}

/// How often the user has asked for the end.
#[derive(Debug, Default)]
struct Wishes {
    count: u32,
    /// The end of the login was the first, and nothing followed it.
    is_hung_up: bool,
}

impl Wishes {
    /// Counts a signal. What ends a login sends SIGTERM and SIGHUP, in any order: the second is no further wish.
    fn note(&mut self, is_hangup: bool) -> u32 {
        let is_same = match is_hangup {
            true => self.count > 0,
            false => std::mem::take(&mut self.is_hung_up),
        };
        self.is_hung_up |= is_hangup && !is_same;
        self.count += u32::from(!is_same);
        self.count
    }
}

impl Signals {
    /// From now on they do not end the process.
    pub fn listen() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            hangup: None,
            wishes: Wishes::default(),
        })
    }

    /// From now on the end of the terminal or login does not end the process either, but counts as the others do; unless it is to be
    /// ignored (`nohup`). For a command that runs agents itself: these put their files in order.
    pub fn listen_for_hangup(&mut self) -> Result<()> {
        if self.hangup.is_none() && !sys::ignores_hangup() {
            let hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
            self.hangup = Some(hangup);
        }
        Ok(())
    }

    /// Waits for the next one; how many there were.
    pub async fn next(&mut self) -> u32 {
        let is_hangup = tokio::select! {
            _ = self.interrupt.recv() => false,
            _ = self.terminate.recv() => false,
            () = heard(&mut self.hangup) => true,
        };
        self.wishes.note(is_hangup)
    }

    /// Whether there was one.
    pub fn were_any(&self) -> bool {
        self.wishes.count > 0
    }
}

/// Waits for a signal that counts once, since shells pass on what the system sends, too; for good where it is not listened for.
async fn heard(signal: &mut Option<Signal>) {
    match signal {
        Some(listened) => listened.recv().await,
        None => std::future::pending().await,
    };
    // What listens at the system stays: it does not end the process later either.
    *signal = None;
}

type Last<S> = Box<dyn FnOnce(S) + Send>;

struct State<S: Show> {
    backlog: Backlog<S::Event>,
    /// What is done when all is shown.
    last: Option<Last<S>>,
    /// The thread has ended, or failed: nothing is shown any more.
    is_over: bool,
}

struct Shared<S: Show> {
    state: Mutex<State<S>>,
    /// For the thread.
    added: Condvar,
    /// For the loop: something was shown.
    shown: Notify,
}

/// The thread that shows, as the loop sees it. Dropped, it shows what is there, and ends.
pub(crate) struct Screen<S: Show> {
    shared: Arc<Shared<S>>,
    taken: Taken,
}

impl<S: Show> Screen<S> {
    /// Starts the thread.
    pub fn start(show: S) -> Result<Self> {
        let taken = show.taken();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                backlog: Backlog::default(),
                last: None,
                is_over: false,
            }),
            added: Condvar::new(),
            shown: Notify::new(),
        });
        let (own, counted) = (shared.clone(), taken.clone());
        let started = std::thread::Builder::new()
            .name("screen".into())
            .spawn(move || own.show_all(show, &counted));
        started.map_err(not_started)?;
        Ok(Self { shared, taken })
    }

    /// Takes an event to be shown; never waits.
    pub fn put(&self, event: S::Event) {
        let keeping = S::keeping(&event);
        self.shared.state().backlog.add(event, keeping);
        self.shared.added.notify_one();
    }

    /// Whether more of what must not be lost would be lost now: the loop waits for [`space`](Self::space) then.
    pub fn is_full(&self) -> bool {
        let state = self.shared.state();
        !state.is_over && state.backlog.is_full()
    }

    /// Waits until it is not full.
    pub async fn space(&self) {
        while self.is_full() {
            self.shared.shown.notified().await;
        }
    }

    /// Shows what waits, then does the last thing, and gives its result. `None` after a signal, when readers take nothing any more. The
    /// second signal ends the process.
    pub async fn end<T: Send + 'static>(
        self,
        signals: &mut Signals,
        last: impl FnOnce(S) -> T + Send + 'static,
    ) -> Result<Option<T>> {
        let (result, mut ended) = oneshot::channel();
        // Where the loop has given up, nothing waits for the result.
        self.shared
            .end(Box::new(|show| drop(result.send(last(show)))));
        let mut seen = self.taken.count();
        loop {
            tokio::select! {
                ended = &mut ended => {
                    return ended
                        .map(Some)
                        .context("the thread that shows events failed; this is a bug");
                }
                count = signals.next() => if count > 1 {
                    std::process::exit(job::interrupted().into());
                },
                () = tokio::time::sleep(LAST_WORDS), if signals.were_any() => {
                    let now = self.taken.count();
                    if now == seen {
                        return Ok(None);
                    }
                    seen = now;
                }
            }
        }
    }
}

impl<S: Show> Drop for Screen<S> {
    fn drop(&mut self) {
        self.shared.end(Box::new(drop));
    }
}

impl<S: Show> Shared<S> {
    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is done last, unless that is settled, or nothing does it any more.
    fn end(&self, last: Last<S>) {
        let mut state = self.state();
        if state.is_over {
            return;
        }
        state.last.get_or_insert(last);
        drop(state);
        self.added.notify_one();
    }

    fn show_all(&self, mut show: S, taken: &Taken) {
        // Also where this panics: the loop must not wait for it then.
        let _over = Over(self);
        let mut state = self.state();
        loop {
            let next = state.backlog.take();
            let last = match next {
                None => state.last.take(),
                Some(_) => None,
            };
            match (next, last) {
                (None, None) => {
                    let waited = self.added.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                (None, Some(last)) => {
                    drop(state);
                    return last(show);
                }
                (Some(next), _) => {
                    drop(state);
                    match next {
                        Next::Event(event) => show.show(event),
                        Next::Omitted(events) => show.omitted(events),
                    }
                }
            }
            taken.add();
            self.shown.notify_one();
            state = self.state();
        }
    }
}

/// Nothing is shown any more when this is dropped.
struct Over<'a, S: Show>(&'a Shared<S>);

impl<S: Show> Drop for Over<'_, S> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_over = true;
        let last = state.last.take();
        drop(state);
        // The loop that waits for the result sees that there is none.
        drop(last);
        self.0.shown.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest time on a busy machine.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// The end of a login counts once, in whatever order its signals are seen; what the user presses counts each time.
    #[test]
    fn the_end_of_a_login_counts_once() {
        const HANGUP: bool = true;
        const OTHER: bool = false;
        for (signals, expected) in [
            (&[OTHER, HANGUP][..], 1),
            (&[HANGUP, OTHER], 1),
            (&[HANGUP, OTHER, OTHER], 2),
            (&[OTHER, HANGUP, OTHER], 2),
            (&[OTHER, OTHER], 2),
            (&[HANGUP], 1),
        ] {
            let mut wishes = Wishes::default();
            let mut count = 0;
            for is_hangup in signals {
                count = wishes.note(*is_hangup);
            }
            assert_eq!(count, expected, "{signals:?}");
        }
    }

    /// A bug.
    struct Broken;

    impl Show for Broken {
        type Event = ();

        fn keeping(_event: &()) -> Keeping {
            Keeping::Awaited
        }

        fn show(&mut self, _event: ()) {
            // A panic without a message.
            std::panic::resume_unwind(Box::new("broken"));
        }

        fn omitted(&mut self, _events: u64) {}

        fn taken(&self) -> Taken {
            Taken::default()
        }
    }

    /// A thread that fails ends the waits for it: for space, and for the end.
    #[test]
    fn a_thread_that_fails_holds_nothing() {
        let runtime = crate::runtime::runtime().unwrap();
        runtime.block_on(async {
            let mut signals = Signals::listen().unwrap();
            let screen = Screen::start(Broken).unwrap();
            for _ in 0..2 * backlog::EVENTS_MAX {
                screen.put(());
            }
            let space = tokio::time::timeout(DEADLINE, screen.space());
            space.await.expect("it waits for space");
            let end = tokio::time::timeout(DEADLINE, screen.end(&mut signals, |_| ()));
            let error = end.await.expect("it waits for the end").unwrap_err();
            assert!(error.to_string().contains("this is a bug"), "{error:#}");
        });
    }
}
