//! Hashes of the sources' bytes, asked of their holders before the first byte moves: contents are compared where they are.
//!
//! Each thread that compares has a line: a stream to one holder of each part, over which hashes of units are asked for as those of
//! replicas are. Lines begin with different holders, so that these share the reading. One that fails is passed over, and asked again where no
//! other one answers; one that does not answer in time never is, by any line: its disk does not answer, either.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_lane::{Grant, LaneError, ReceiveHalf, Received};
use ropewalk_model::Range;
use ropewalk_proto::control;
use ropewalk_proto::wire::SPACE_DATA;
use ropewalk_store::{Contents, Hashes};

use crate::connect::Via;
use crate::find::Ways;
use crate::hung::CALL_TIME_MAX;
use crate::landing::BufferLanding;
use crate::member::Member;
use crate::streams::{HASH_STREAM, HASH_STREAMS_MAX};

/// A holder that does not answer for this long, while it has a unit to hash, is passed over: as long as a call to a disk may take.
const ANSWER_TIME_MAX: Duration = CALL_TIME_MAX;

/// Streams of a line that break one after the other, beyond one for each holder, before it gives up; an answer begins the count again.
const BROKEN_MAX: usize = 2;

/// The sources of a copy, as something that has hashes.
pub(crate) struct SourceHashes<'a> {
    pub member: &'a Arc<Member>,
    pub ways: &'a Arc<Ways>,
    /// The holders.
    pub peers: &'a [control::Peer],
    pub parts: &'a [control::Part],
    /// How many lines were opened.
    pub lines: AtomicUsize,
    /// Holders that have not answered in time.
    pub silent: Mutex<BTreeSet<u32>>,
}

impl fmt::Debug for SourceHashes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceHashes({} parts)", self.parts.len())
    }
}

impl SourceHashes<'_> {
    fn part_of(&self, range: Range) -> Option<usize> {
        let holds = |part: &control::Part| {
            let all = control::range(part.base, part.length);
            all.start <= range.start && range.end <= all.end
        };
        self.parts.iter().position(holds)
    }
}

impl Drop for SourceHashes<'_> {
    fn drop(&mut self) {
        self.member.comparing.end();
    }
}

impl Contents for SourceHashes<'_> {
    fn open(&self) -> Result<Box<dyn Hashes + '_>, String> {
        let number = self.lines.fetch_add(1, Ordering::Relaxed);
        let most = (HASH_STREAMS_MAX / self.parts.len().max(1)).max(1);
        if number >= most {
            return Err("further streams would be too many".into());
        }
        Ok(Box::new(Line {
            sources: self,
            number,
            streams: self.parts.iter().map(|_| None).collect(),
            asked: VecDeque::new(),
            next_id: 0,
            broken: 0,
        }))
    }

    fn is_of_one(&self, range: Range) -> bool {
        self.part_of(range).is_some()
    }

    fn note(&self, done: u64, total: u64) {
        match done < total {
            true => self.member.comparing.note(done, total),
            false => self.member.comparing.end(),
        }
    }
}

/// A holder that has not answered in time.
fn silent(name: &str) -> String {
    format!(
        "{name} did not answer for {} s: its disk, or the server of its file system, does not answer",
        ANSWER_TIME_MAX.as_secs()
    )
}

/// A stream to a holder of a part.
struct Stream {
    half: Box<dyn ReceiveHalf>,
    holder: u32,
    name: String,
    // Of its stopper.
    key: u64,
}

/// One thread's streams.
struct Line<'a> {
    sources: &'a SourceHashes<'a>,
    number: usize,
    // By part; opened when it is first asked.
    streams: Vec<Option<Stream>>,
    // Without an answer yet, in order: the bytes, and their part.
    asked: VecDeque<(Range, usize)>,
    next_id: u32,
    // Streams that broke since the last answer.
    broken: usize,
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        for stream in self.streams.iter_mut().filter_map(Option::take) {
            self.sources.member.forget(stream.key);
        }
    }
}

impl Hashes for Line<'_> {
    fn ask(&mut self, ranges: &[Range]) -> Result<(), String> {
        let mut by_part: Vec<(usize, Vec<Range>)> = Vec::new();
        for range in ranges {
            let part = self.part_of(*range)?;
            self.asked.push_back((*range, part));
            match by_part.iter_mut().find(|(known, _)| *known == part) {
                Some((_, ranges)) => ranges.push(*range),
                None => by_part.push((part, vec![*range])),
            }
        }
        for (part, ranges) in by_part {
            if let Err(reason) = self.grant(part, &ranges) {
                // The next one is asked for all that is asked of its part.
                self.reopen(part, reason)?;
            }
        }
        Ok(())
    }

    fn answer(&mut self) -> Result<Option<[u8; 32]>, String> {
        let Some((range, part)) = self.asked.front().copied() else {
            return Err("more answers were awaited than questions asked".into());
        };
        loop {
            let reason = match self.receive(part) {
                Ok((answered, hash)) if answered == range => {
                    self.asked.pop_front();
                    self.broken = 0;
                    return Ok(hash);
                }
                Ok(_) => "it answered what was not asked".into(),
                Err(reason) => reason,
            };
            self.reopen(part, reason)?;
        }
    }
}

impl Line<'_> {
    fn part_of(&self, range: Range) -> Result<usize, String> {
        let found = self.sources.part_of(range);
        found.ok_or_else(|| "no source has these bytes; this is a fault of the master".into())
    }

    /// Asks a stream of a part.
    fn grant(&mut self, part: usize, ranges: &[Range]) -> Result<(), String> {
        let grants: Vec<Grant> = ranges
            .iter()
            .map(|range| {
                self.next_id = self.next_id.wrapping_add(1);
                Grant {
                    id: self.next_id,
                    space: SPACE_DATA,
                    range: *range,
                    hash: false,
                    digest: true,
                }
            })
            .collect();
        match &mut self.streams[part] {
            Some(stream) => stream.half.grant(&grants).map_err(|e| e.to_string()),
            None => Err("no holder is known".into()),
        }
    }

    fn receive(&mut self, part: usize) -> Result<(Range, Option<[u8; 32]>), String> {
        let Some(stream) = &mut self.streams[part] else {
            return Err("it is closed".into());
        };
        // Nothing lands: hashes only are asked for.
        let mut landing = BufferLanding { bytes: Vec::new() };
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        let received = stream.half.receive(&mut landing, deadline);
        let name = &stream.name;
        match received {
            Ok(Received::Digest { grant, digest }) => Ok((grant.range, Some(digest))),
            Ok(Received::Missing { grant, .. }) => Ok((grant.range, None)),
            Ok(Received::Idle) | Err(LaneError::Silent { .. }) => {
                self.sources.silent.lock().insert(stream.holder);
                Err(silent(name))
            }
            Ok(Received::Unit { .. } | Received::Corrupt { .. } | Received::Held(_)) => Err(
                format!("{name}: it sent something else where hashes were due"),
            ),
            Err(error) => Err(format!("{name}: {error}")),
        }
    }

    /// Opens a stream to a holder of a part, the next one where there was one, and asks it for all that has no answer.
    ///
    /// * `reason`: why there is none.
    fn reopen(&mut self, part: usize, reason: String) -> Result<(), String> {
        let holders = &self.sources.parts[part].holders;
        let mut reason = reason;
        if self.close(part) {
            self.broken += 1;
            self.number += 1;
            if self.broken > holders.len() + BROKEN_MAX {
                return Err(reason);
            }
        }
        for turn in 0..holders.len() {
            if self.sources.member.has_ended() {
                break;
            }
            let holder = holders[(self.number + turn) % holders.len()];
            let Some(peer) = self.sources.peers.iter().find(|p| p.node == holder) else {
                continue;
            };
            if self.sources.silent.lock().contains(&holder) {
                reason = silent(&peer.name);
                continue;
            }
            let opened = self.open_stream(peer);
            let asked = opened.and_then(|stream| {
                self.streams[part] = Some(stream);
                let asked = self.asked.iter().filter(|(_, of)| *of == part);
                let asked: Vec<Range> = asked.map(|(range, _)| *range).collect();
                self.grant(part, &asked)
            });
            match asked {
                Ok(()) => return Ok(()),
                Err(text) => reason = format!("{}: {text}", peer.name),
            }
            self.close(part);
        }
        Err(reason)
    }

    /// Closes the stream of a part; whether there was one.
    fn close(&mut self, part: usize) -> bool {
        let stream = self.streams[part].take();
        if let Some(stream) = &stream {
            self.sources.member.forget(stream.key);
        }
        stream.is_some()
    }

    fn open_stream(&self, peer: &control::Peer) -> Result<Stream, String> {
        let member = self.sources.member;
        let connected = self.sources.ways.connect(member, peer);
        let connected = connected.map_err(|e| e.to_string())?;
        let joined = connected.join(member, &Via::Pair, HASH_STREAM);
        let (mut half, _) = joined.map_err(|e| e.to_string())?;
        half.set_patience(ANSWER_TIME_MAX);
        let key = member.remember(half.stopper());
        let (holder, name) = (peer.node, peer.name.clone());
        Ok(Stream {
            half,
            holder,
            name,
            key,
        })
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_lane::{Check, Protection, mem};

    use super::*;

    /// A holder whose disk does not answer is named, and no line asks it again.
    #[test]
    fn a_holder_that_does_not_answer_is_asked_once() {
        let (member, _said) = Member::alone();
        let ways = Arc::new(Ways::new(Box::new(|_, _| {})));
        let part = control::Part {
            length: 1000,
            holders: vec![1],
            ..control::Part::default()
        };
        let peer = control::Peer {
            node: 1,
            name: "far".into(),
            ..control::Peer::default()
        };
        let sources = SourceHashes {
            member: &member,
            ways: &ways,
            peers: &[peer],
            parts: &[part],
            lines: AtomicUsize::new(0),
            silent: Mutex::default(),
        };
        let plain = || Protection::Plain(Check::Fragment);
        let (mut half, _sender) = mem::pair(plain(), plain()).unwrap();
        half.set_patience(Duration::from_millis(1));
        let stream = Stream {
            key: member.remember(half.stopper()),
            half,
            holder: 1,
            name: "far".into(),
        };
        let mut line = Line {
            sources: &sources,
            number: 0,
            streams: vec![Some(stream)],
            asked: VecDeque::new(),
            next_id: 0,
            broken: 0,
        };
        line.ask(&[Range::new(0, 1000)]).unwrap();
        let said = "far did not answer for 60 s";
        let reason = line.answer().unwrap_err();
        assert!(reason.starts_with(said), "{reason}");
        let mut other = sources.open().unwrap();
        let reason = other.ask(&[Range::new(0, 1000)]).unwrap_err();
        assert!(reason.starts_with(said), "{reason}");
    }
}
