//! The threads of a socket: two for each link, and a keeper that watches the rails.

use std::io;
use std::net::IpAddr;
use std::panic;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_lane::interfaces;
use ropewalk_lane::links::Links;
use ropewalk_model::{Nanos, time};
use ropewalk_proto::message::frame::{Header, Kind};

use crate::dial::Dialer;
use crate::link::{Link, LinkError, Step};
use crate::session::{IDLE, LEASE, Session};

/// Stack of a thread: its buffers are on the heap.
pub(crate) const STACK_LEN: usize = 256 << 10;
/// How often the keeper looks: an eighth of the shortest silence that counts.
const TICK: Duration = Duration::from_millis(40);
/// A link that has said nothing for this long says that it lives, so that silence of the path, and of
/// whoever stands still, shows.
const ALIVE_TIME: Nanos = Nanos::from_secs(1);

/// Starts a thread of this name.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.stack_size(STACK_LEN).spawn(body).map(drop)
}

/// Starts the threads of a link; they end with it.
pub(crate) fn start(session: &Arc<Session>, link: &Arc<Link>) -> io::Result<()> {
    for (name, body) in [
        ("rail-send", sending as fn(&Session, &Link) -> LinkError),
        ("rail-receive", receiving),
    ] {
        let (session, own) = (session.clone(), link.clone());
        let run = move || {
            // A link whose thread is gone would be up for ever and carry nothing.
            let ended = panic::catch_unwind(panic::AssertUnwindSafe(|| body(&session, &own)));
            let cause = ended.unwrap_or(LinkError::Panicked);
            session.fail(&own, &cause);
        };
        if let Err(error) = spawn(name, run) {
            link.kill();
            return Err(error);
        }
    }
    Ok(())
}

fn sending(session: &Session, link: &Link) -> LinkError {
    let turn = || -> Result<(), LinkError> {
        let seen = session.work_seen(link.rail);
        let mut writer = link.writer.lock();
        link.flush(&mut writer, true)?;
        if link.take_nudge() {
            session.acknowledge_as(link, &mut writer)?;
        }
        session.send_ready(link, &mut writer, None)?;
        drop(writer);
        session.wait_for_work(link.rail, seen);
        Ok(())
    };
    loop {
        if link.is_dead() {
            return LinkError::Closed;
        }
        if let Err(error) = turn() {
            return error;
        }
    }
}

fn receiving(session: &Session, link: &Link) -> LinkError {
    loop {
        if link.is_dead() {
            return LinkError::Closed;
        }
        if session.callers_read(link) {
            thread::sleep(LEASE);
            continue;
        }
        if let Err(error) = read_on(session, link) {
            return error;
        }
    }
}

/// Reads until a caller wants to do so himself.
fn read_on(session: &Session, link: &Link) -> Result<(), LinkError> {
    session.acknowledge(link)?;
    let Some(mut reader) = link.reader.try_lock_for(LEASE) else {
        return Ok(());
    };
    while !session.callers_read(link) {
        let step = link.read(&mut reader, session)?;
        // Never waiting: the peer's threads may all be writing, too, and then nobody would read.
        session.send_on(link, Instant::now)?;
        if step == Step::Frame {
            continue;
        }
        session.acknowledge(link)?;
        if session.callers_read(link) {
            break;
        }
        link.wait_readable(None, IDLE)?;
    }
    drop(reader);
    session.reader_is_free();
    Ok(())
}

/// Watches the rails until the socket closes; the connecting end makes new links of failed ones.
pub(crate) fn keep(session: &Arc<Session>, dialer: Option<&Arc<Dialer>>) {
    let mut own = OwnAddresses::new();
    loop {
        let mut state = session.state();
        if !state.closed {
            state.wait_for(&session.closing, TICK);
        }
        if session.verdict(&state).is_some() {
            return;
        }
        let now = session.now();
        let timeout = session.peer_timeout();
        if state
            .down
            .as_ref()
            .is_some_and(|(since, _)| now.since(*since) > timeout)
        {
            state.lost = true;
            session.finish(&mut state);
            return;
        }
        let links: Vec<Arc<Link>> = state.links.iter().flatten().cloned().collect();
        let mut due = Vec::new();
        if dialer.is_some() {
            if links.is_empty() {
                state.health.iter_mut().for_each(|one| one.hurry(now));
            }
            let health = state.health.iter_mut().enumerate();
            due.extend(health.filter_map(|(rail, health)| health.begin_probe(now).then_some(rail)));
        }
        if state.sender.unfinished() > 0 {
            session.more_work(&mut state);
        }
        drop(state);
        own.look();
        for link in links {
            if own.lost.contains(&link.ends.0) {
                session.fail(&link, &LinkError::Interface(link.ends.0));
            } else {
                check(session, &link, now);
            }
        }
        for rail in due {
            let Some(dialer) = dialer.cloned() else {
                continue;
            };
            let own = session.clone();
            if spawn("rail-dial", move || dial(&own, &dialer, rail)).is_err() {
                session.state().health[rail].failed(now);
            }
        }
    }
}

/// Addresses of this host's interfaces that work. The kernel tells of changes at once, where silence would take a second
/// and a half to notice.
struct OwnAddresses {
    /// `None` where the kernel tells nothing.
    events: Option<Links>,
    now: Vec<IpAddr>,
    /// Something changed that was not looked at yet.
    changed: bool,
    /// Those that were there before the last look.
    lost: Vec<IpAddr>,
}

impl OwnAddresses {
    fn new() -> Self {
        let events = Links::open().ok();
        Self {
            now: match events {
                Some(_) => addresses().unwrap_or_default(),
                None => Vec::new(),
            },
            events,
            changed: false,
            lost: Vec::new(),
        }
    }

    fn look(&mut self) {
        self.lost.clear();
        let events = self.events.as_ref();
        self.changed |=
            events.is_some_and(|events| matches!(events.changed(Duration::ZERO), Ok(true)));
        if !self.changed {
            return;
        }
        // No answer is no loss; it is asked again.
        let Some(now) = addresses() else {
            return;
        };
        self.changed = false;
        let before = std::mem::replace(&mut self.now, now);
        let gone = before.into_iter().filter(|own| !self.now.contains(own));
        self.lost = gone.collect();
    }
}

/// `None` when the kernel does not say.
fn addresses() -> Option<Vec<IpAddr>> {
    let all = interfaces::try_usable(&[]).ok()?.into_iter();
    let own = all.flat_map(|one| one.networks.into_iter().map(|(own, _)| own));
    Some(own.collect())
}

fn check(session: &Session, link: &Arc<Link>, now: time::Instant) {
    let silent = link.seen().is_some_and(|seen| {
        session.state().health[link.rail].is_silent(seen, session.peer_timeout(), now)
    });
    let said = if silent {
        Err(LinkError::Silent)
    } else if now.since(link.sent_at()) >= ALIVE_TIME {
        session.say(link, Header::new(Kind::Alive), Duration::ZERO)
    } else {
        Ok(())
    };
    if let Err(error) = said {
        session.fail(link, &error);
    }
}

/// Tries to make a new link of a failed rail.
fn dial(session: &Arc<Session>, dialer: &Dialer, rail: usize) {
    let made = dialer.dial(rail, false, None).and_then(|(link, _)| {
        session.add_link(link)?;
        Ok(())
    });
    if let Err(error) = made {
        session.dial_failed(rail, &error);
    }
}
