//! Measuring rails and finding the cut-off with messages that the peer's application never sees.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_model::Nanos;
use ropewalk_proto::message::cutoff::{Finder, Known, Method, Sample, Step};
use ropewalk_proto::message::frame::{DISCARD, Header, Kind};
use ropewalk_proto::message::{RailId, Spread};

use crate::MessageError;
use crate::link::SLICE;
use crate::memory::Source;
use crate::session::Way;
use crate::socket::MessageSocket;

/// Longest time for all measurements together; a path that needs more keeps the cut-off it had.
const TIME_MAX: Duration = Duration::from_secs(3);
/// Bytes of the messages that show which rail is best: latency and speed both count, as in small messages.
const TRIAL_LEN: u64 = 8 << 10;
/// Trials of each rail; the shortest counts.
const TRIALS: usize = 4;

/// Names the best rail, finds the cut-off and tells the peer; `None` when fewer than two rails work, or the time is
/// over.
pub(crate) fn find(socket: &MessageSocket, method: Method) -> Result<Option<u64>, MessageError> {
    let until = Instant::now() + TIME_MAX;
    let rails = socket.session.state().cut_off.rails().to_vec();
    match measure(socket, method, until) {
        Ok(None) | Err(MessageError::Deadline) => Ok(None),
        Ok(Some((best, value))) => {
            let found = Known {
                rails,
                value,
                best: Some(best),
                found_by: method.into(),
                shown_at: Some(socket.session.now()),
            };
            socket.session.state().cut_off.found(found);
            announce(socket, best, value);
            Ok(Some(value))
        }
        Err(error) => Err(error),
    }
}

/// Tells the peer a cut-off and the best rail, over that rail.
pub(crate) fn announce(socket: &MessageSocket, best: RailId, value: u64) {
    let link = socket.session.state().links.get(best).cloned().flatten();
    if let Some(link) = link {
        let header = Header {
            message: value,
            fragment: best as u32,
            ..Header::new(Kind::CutOff)
        };
        // A link that breaks here shows to its own threads.
        let _ = socket.session.say(&link, header, SLICE);
    }
}

fn measure(
    socket: &MessageSocket,
    method: Method,
    until: Instant,
) -> Result<Option<(RailId, u64)>, MessageError> {
    let up: Vec<RailId> = {
        let state = socket.session.state();
        (0..state.links.len())
            .filter(|&rail| state.links[rail].is_some())
            .collect()
    };
    if up.len() < 2 {
        return Ok(None);
    }
    let mut best: Option<(Nanos, RailId)> = None;
    for rail in up {
        for _ in 0..TRIALS {
            let took = round_trip(socket, TRIAL_LEN, Spread::On(rail), until)?;
            if best.is_none_or(|(least, _)| took < least) {
                best = Some((took, rail));
            }
        }
    }
    let best = best.map_or(0, |(_, rail)| rail);
    socket.session.state().sender.set_best(best);
    let mut finder = Finder::new(method);
    loop {
        let (size, several) = match finder.step() {
            Step::Done(found) => return Ok(Some((best, found))),
            Step::Measure { size, several } => (size, several),
        };
        let spread = if several {
            Spread::Balanced
        } else {
            Spread::Single
        };
        let round_trip = round_trip(socket, size, spread, until)?;
        finder.observe(Sample {
            size,
            several,
            round_trip,
        });
    }
}

/// Time until the peer has acknowledged a message of this size.
fn round_trip(
    socket: &MessageSocket,
    size: u64,
    spread: Spread,
    until: Instant,
) -> Result<Nanos, MessageError> {
    let source = Arc::new(Source::owned(vec![0; size as usize]));
    let way = Way {
        spread,
        flags: DISCARD,
    };
    let begun = Instant::now();
    let message = socket.session.start(|_| way, size, &source, Some(until))?;
    let result = socket.wait_until(message, Some(until));
    if result.is_err() {
        socket.cancel(message);
    }
    result.map(|()| begun.elapsed().into())
}
