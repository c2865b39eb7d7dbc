//! Connecting all rails at once: the first that works makes the socket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::dial::{DialError, Dialer};
use crate::link::Link;
use crate::session::Session;
use crate::{MessageError, Options, threads};

/// How long the others are waited for when one rail works; what comes later is added when it comes.
const OTHERS_MAX: Duration = Duration::from_millis(500);

/// Rails on their way.
struct Gathering {
    dialer: Arc<Dialer>,
    options: Options,
    until: Option<Instant>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    /// Rails whose attempt is not over.
    pending: Vec<usize>,
    failed: Vec<(usize, DialError)>,
    /// What went wrong here.
    broken: Option<MessageError>,
    /// Nobody waits any more.
    is_over: bool,
}

/// A session with the rails that work, one at least.
pub(crate) fn connect(
    dialer: &Arc<Dialer>,
    options: &Options,
    until: Option<Instant>,
) -> Result<Arc<Session>, MessageError> {
    let count = dialer.rails.len();
    let gathering = Arc::new(Gathering {
        dialer: dialer.clone(),
        options: options.clone(),
        until,
        state: Mutex::new(State {
            pending: (0..count).collect(),
            ..State::default()
        }),
        changed: Condvar::new(),
    });
    for rail in 0..count {
        let own = gathering.clone();
        let body = move || {
            let made = own.dialer.dial(rail, true, own.until);
            own.dialled(rail, made);
        };
        if let Err(error) = threads::spawn("rail-dial", body) {
            gathering.dialled(rail, Err(error.into()));
        }
    }
    gathering.wait()
}

impl Gathering {
    /// Takes what became of a rail.
    fn dialled(&self, rail: usize, made: Result<(Link, u64), DialError>) {
        let mut state = self.state.lock();
        state.pending.retain(|&other| other != rail);
        match made {
            Ok(_) if state.is_over => {}
            Ok((link, window)) => {
                if let Err(error) = self.add(&mut state, link, window) {
                    state.broken = Some(error);
                }
            }
            Err(error) => {
                if let Some(session) = &state.session {
                    session.dial_failed(rail, &error);
                }
                state.failed.push((rail, error));
            }
        }
        self.changed.notify_all();
    }

    fn add(&self, state: &mut State, link: Link, window: u64) -> Result<(), MessageError> {
        let session = match &state.session {
            Some(session) => session.clone(),
            None => {
                let check = self.options.check && !self.dialer.sealed;
                let made = Session::new(self.dialer.rails.len(), &self.options, check, window);
                let session = made.map(Arc::new).map_err(starting)?;
                // The keeper does not try rails that are being tried.
                for health in &mut session.state().health {
                    let _ = health.begin_probe(session.now());
                }
                for (rail, error) in &state.failed {
                    session.dial_failed(*rail, error);
                }
                state.session.insert(session).clone()
            }
        };
        session.add_link(link).map_err(starting)
    }

    fn wait(&self) -> Result<Arc<Session>, MessageError> {
        let mut others_until = None;
        let mut state = self.state.lock();
        loop {
            if let Some(error) = state.broken.take() {
                state.is_over = true;
                if let Some(session) = &state.session {
                    session.close();
                }
                return Err(error);
            }
            let mut until = self.until;
            if let Some(session) = state.session.clone() {
                let others = *others_until.get_or_insert_with(|| Instant::now() + OTHERS_MAX);
                if state.pending.is_empty() || Instant::now() >= others {
                    return Ok(session);
                }
                until = Some(until.map_or(others, |until| until.min(others)));
            } else if state.pending.is_empty() {
                return Err(self.verdict(&mut state));
            }
            match until {
                Some(until) if self.changed.wait_until(&mut state, until).timed_out() => {
                    if let Some(session) = state.session.clone() {
                        return Ok(session);
                    }
                    if !state.pending.is_empty() {
                        state.is_over = true;
                        return Err(MessageError::Deadline);
                    }
                }
                Some(_) => {}
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Why no rail works.
    fn verdict(&self, state: &mut State) -> MessageError {
        let late = self.until.is_some_and(|until| Instant::now() >= until);
        match state.failed.pop() {
            _ if late => MessageError::Deadline,
            Some((rail, DialError::Io(source))) => {
                let address: SocketAddr = self.dialer.rails[rail].1;
                MessageError::Connect { address, source }
            }
            Some((_, DialError::Gone)) | None => MessageError::PeerClosed,
        }
    }
}

pub(crate) fn starting(source: std::io::Error) -> MessageError {
    MessageError::System {
        doing: "starting the threads of a socket",
        source,
    }
}
