//! A one-way stream of messages: what goes out, and what the receiving end saw of it.
//!
//! Every message begins with its number; all of its other words follow from number and place, so that the receiving
//! end notices whatever is lost, duplicated, out of order or damaged. Messages are sent back to back, several in
//! flight.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use ropewalk_message::{MessageError, MessageSocket};
use serde::{Deserialize, Serialize};

use super::{PATIENCE, order};

/// Least bytes of a message: its number and a word that follows from it.
pub(super) const MESSAGE_MIN: u64 = 16;
/// Most messages of one stream.
pub(super) const MESSAGES_MAX: u64 = 1 << 26;
/// Bytes in flight, in 2 to 64 messages: one is on its way while the next is made.
const FLIGHT_BYTES: u64 = 32 << 20;
/// How often the receiving end notes what has come.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// Most such notes.
const SAMPLES_MAX: usize = 100_000;
/// The longest pauses between deliveries that are told.
const GAPS_MAX: usize = 16;
/// Longest report.
const REPORT_MAX: usize = 64 << 20;

/// What had come at some time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    at_seconds: f64,
    /// Bytes of whole messages that the application had.
    delivered_bytes: u64,
    /// Bytes that each rail had brought.
    rail_bytes: Vec<u64>,
}

/// A pause between two deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Gap {
    at_seconds: f64,
    seconds: f64,
}

/// A stream as the receiving end saw it. Times are since it was ordered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    began_unix_seconds: f64,
    seconds: f64,
    messages: u64,
    bytes: u64,
    lost: u64,
    doubled: u64,
    out_of_order: u64,
    damaged: u64,
    /// Longest first.
    gaps: Vec<Gap>,
    samples: Vec<Sample>,
}

impl Seen {
    /// Whether every message came once, in order and as it was.
    pub(super) fn is_faultless(&self) -> bool {
        [self.lost, self.doubled, self.out_of_order, self.damaged] == [0; 4]
    }

    /// What went wrong and how long nothing came, for people.
    pub(super) fn words(&self) -> String {
        let longest = self.gaps.first().map_or(0.0, |gap| gap.seconds);
        format!(
            "; lost {}, doubled {}, out of order {}, damaged {}; longest pause {:.1} ms",
            self.lost,
            self.doubled,
            self.out_of_order,
            self.damaged,
            longest * 1e3
        )
    }
}

/// Word `place` of message `number`.
fn word(number: u64, place: u64) -> u64 {
    // Odd factors: every number and every place gives another word.
    number
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(place.wrapping_mul(0xd6e8_feb8_6659_fd93))
}

/// Message `number`; its size is a multiple of 8.
fn content(number: u64, size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(&number.to_le_bytes());
    for place in 1..(size / 8) as u64 {
        bytes.extend_from_slice(&word(number, place).to_le_bytes());
    }
    bytes
}

/// The number that a message begins with, and whether all of it is as it was made.
fn read(bytes: &[u8]) -> (u64, bool) {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let number = words.next().unwrap_or(u64::MAX);
    let good = words
        .zip(1_u64..)
        .all(|(got, place)| got == word(number, place));
    (number, good && rest.is_empty())
}

/// Sends a stream and gives the receiving end's account of it.
pub(super) fn send(socket: &MessageSocket, size: u64, many: u64) -> Result<Seen> {
    let length = usize::try_from(size)?;
    let in_flight = (FLIGHT_BYTES / size).clamp(2, 64) as usize;
    let mut waiting = VecDeque::with_capacity(in_flight);
    for number in 0..many {
        let message = content(number, length);
        if waiting.len() == in_flight {
            socket.wait_sent(waiting.pop_front().context("one is in flight")?)?;
        }
        waiting.push_back(socket.send_start(message)?);
    }
    for message in waiting {
        socket.wait_sent(message)?;
    }
    let report = socket.receive_vec(REPORT_MAX)?;
    let report = report.context("the peer ended without its account of the stream")?;
    serde_json::from_slice(&report).context("the peer's account of the stream cannot be read")
}

/// Takes a stream and sends its account.
pub(super) fn take(socket: &MessageSocket, size: u64, many: u64) -> Result<()> {
    if size < MESSAGE_MIN || many > MESSAGES_MAX {
        bail!("the peer asks for a stream that cannot be");
    }
    socket.set_deadline(Some(PATIENCE));
    let begun = Instant::now();
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut record = Record::new(usize::try_from(many)?);
    record.seen.began_unix_seconds = unix.unwrap_or_default().as_secs_f64();
    let mut room = order::room(size)?;
    let delivered = AtomicU64::new(0);
    let (stop, stopped) = channel::<()>();
    let samples = thread::scope(|scope| {
        let delivered = &delivered;
        let sampling = scope.spawn(move || {
            let mut samples = Vec::new();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(SAMPLE_EVERY) {
                if samples.len() < SAMPLES_MAX {
                    samples.push(sample(socket, begun, delivered));
                }
            }
            samples.push(sample(socket, begun, delivered));
            samples
        });
        let result = (0..many).try_for_each(|_| -> Result<()> {
            let length = match socket.receive(&mut room) {
                Ok(Some(length)) => length,
                // What is missing is in the account.
                Ok(None) | Err(MessageError::Deadline) => bail!("the stream stopped"),
                Err(error) => return Err(error.into()),
            };
            record.take(begun.elapsed(), &room[..length], size);
            delivered.store(record.seen.bytes, Ordering::Relaxed);
            Ok(())
        });
        drop(stop);
        let samples = sampling.join().unwrap_or_default();
        (samples, result)
    });
    let (samples, result) = samples;
    socket.set_deadline(None);
    if let Err(error) = &result {
        eprintln!("ropewalk: {error:#}");
    }
    let report = record.finish(samples);
    socket.send(&serde_json::to_vec(&report)?)?;
    Ok(())
}

fn sample(socket: &MessageSocket, begun: Instant, delivered: &AtomicU64) -> Sample {
    Sample {
        at_seconds: begun.elapsed().as_secs_f64(),
        delivered_bytes: delivered.load(Ordering::Relaxed),
        rail_bytes: socket
            .rails()
            .iter()
            .map(|rail| rail.bytes_received)
            .collect(),
    }
}

/// The account in the making.
struct Record {
    seen: Seen,
    came: Vec<bool>,
    next: u64,
    at: Duration,
}

impl Record {
    fn new(many: usize) -> Self {
        Self {
            seen: Seen::default(),
            came: vec![false; many],
            next: 0,
            at: Duration::ZERO,
        }
    }

    fn take(&mut self, at: Duration, message: &[u8], size: u64) {
        let (number, good) = read(message);
        let seen = &mut self.seen;
        seen.messages += 1;
        seen.bytes += message.len() as u64;
        let came = usize::try_from(number)
            .ok()
            .and_then(|number| self.came.get_mut(number));
        match came {
            Some(came) if good && message.len() as u64 == size => {
                seen.doubled += u64::from(std::mem::replace(came, true));
                seen.out_of_order += u64::from(number != self.next);
                self.next = number + 1;
            }
            _ => seen.damaged += 1,
        }
        // The first message has none before it: connections and memory are still cold.
        if seen.messages > 1 {
            seen.gaps.push(Gap {
                at_seconds: self.at.as_secs_f64(),
                seconds: at.saturating_sub(self.at).as_secs_f64(),
            });
            if seen.gaps.len() >= 4 * GAPS_MAX {
                keep_longest(&mut seen.gaps);
            }
        }
        self.at = at;
    }

    fn finish(mut self, samples: Vec<Sample>) -> Seen {
        keep_longest(&mut self.seen.gaps);
        self.seen.seconds = self.at.as_secs_f64();
        self.seen.lost = self.came.iter().filter(|came| !**came).count() as u64;
        self.seen.samples = samples;
        self.seen
    }
}

fn keep_longest(gaps: &mut Vec<Gap>) {
    gaps.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    gaps.truncate(GAPS_MAX);
}

#[cfg(test)]
mod tests {
    use super::super::report::{Report, Stream};
    use super::*;

    fn record(messages: &[Vec<u8>], many: usize) -> Seen {
        let mut record = Record::new(many);
        for (at, message) in messages.iter().enumerate() {
            // Each pause is longer than the one before.
            record.take(Duration::from_millis((at * at) as u64), message, 32);
        }
        record.finish(Vec::new())
    }

    /// A clean stream shows nothing; a loss, a double, a swap and a changed bit are each seen as what they are.
    #[test]
    fn faults_are_told_apart() {
        let all: Vec<_> = (0..4).map(|number| content(number, 32)).collect();
        let clean = record(&all, 4);
        let faults = |seen: &Seen| (seen.lost, seen.doubled, seen.out_of_order, seen.damaged);
        assert_eq!(faults(&clean), (0, 0, 0, 0));
        assert_eq!((clean.messages, clean.bytes), (4, 128));
        assert_eq!(clean.gaps[0].seconds, 0.005);
        assert_eq!(clean.gaps[0].at_seconds, 0.004);
        assert_eq!(faults(&record(&all[..3], 4)), (1, 0, 0, 0));
        let doubled = [&all[..2], &all[1..]].concat();
        assert_eq!(faults(&record(&doubled, 4)), (0, 1, 1, 0));
        let swapped = [&all[..1], &all[2..3], &all[1..2], &all[3..]].concat();
        assert_eq!(faults(&record(&swapped, 4)), (0, 0, 3, 0));
        for byte in 0..32 {
            let mut damaged = all.clone();
            damaged[2][byte] ^= 0x40;
            assert_eq!(faults(&record(&damaged, 4)), (1, 0, 1, 1), "byte {byte}");
        }
        let short = [&all[..3], &[content(3, 24)]].concat();
        assert_eq!(faults(&record(&short, 4)), (1, 0, 0, 1));
    }

    /// A stream with any fault, among others without, is a failure; plain TCP, which is not looked at, is none.
    #[test]
    fn faults_fail() {
        let all: Vec<_> = (0..4).map(|number| content(number, 32)).collect();
        let status = |seen: Vec<Option<Seen>>| {
            let stream = |seen| Stream {
                bytes: 32,
                method: "enhanced".to_owned(),
                messages: 4,
                seconds: 1.0,
                bits_per_second: 1024.0,
                cpu_percent: 0.0,
                own_cpu_percent: 0.0,
                seen,
            };
            let report = Report {
                rails: 2,
                points: Vec::new(),
                cut_off: None,
                cut_off_used: None,
                streams: seen.into_iter().map(stream).collect(),
            };
            report.exit_status()
        };
        let clean = || Some(record(&all, 4));
        assert_eq!(status(Vec::new()), 0);
        assert_eq!(status(vec![None, clean()]), 0);
        let mut damaged = all.clone();
        damaged[3][9] ^= 1;
        for came in [
            all[..3].to_vec(),
            [&all[..2], &all[1..]].concat(),
            [&all[1..2], &all[..1], &all[2..]].concat(),
            damaged,
        ] {
            assert_eq!(status(vec![None, Some(record(&came, 4)), clean()]), 1);
        }
        let one_of_each = |field: usize| {
            let count = |at| u64::from(at == field);
            Seen {
                lost: count(0),
                doubled: count(1),
                out_of_order: count(2),
                damaged: count(3),
                ..Seen::default()
            }
        };
        assert!((0..4).all(|field| !one_of_each(field).is_faultless()));
    }

    /// Only the longest pauses are kept, whenever they came.
    #[test]
    fn long_pauses_are_kept() {
        let mut record = Record::new(1000);
        let mut at = Duration::ZERO;
        for number in 0..1000 {
            at += Duration::from_millis(if number == 7 { 900 } else { 1 });
            record.take(at, &content(number, 32), 32);
        }
        let seen = record.finish(Vec::new());
        assert_eq!(seen.gaps.len(), GAPS_MAX);
        assert_eq!(seen.gaps[0].seconds, 0.9);
    }
}
