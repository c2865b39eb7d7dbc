//! Datagrams that leave: probes, contents and the ends of rounds.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ropewalk_lane::udp::shared::{SEGMENTS_MAX, SEND_MAX, Sent};
use ropewalk_model::time;
use ropewalk_proto::rapid::{DATAGRAM_HEADER_LEN, Datagram, DatagramKind, Piece};
use ropewalk_proto::stage::datagrams::{Next, Probing, ROUND_TIME};
use ropewalk_proto::stage::frame::Frame;

use super::{Datagrams, system};
use crate::error::StageError;
use crate::outbound::Outbound;

/// Times that each edge may send before others have their turn.
const TURNS_MAX: usize = 4;

/// Datagrams that leave in one call.
pub(super) struct Run {
    to: SocketAddr,
    len: usize,
    count: usize,
    segment: u16,
    // The last one is shorter: none may follow.
    is_closed: bool,
}

/// A round whose last datagram leaves, or has left.
pub(super) struct Round {
    // When notice is given; `None` until all of it has left.
    pub due: Option<time::Instant>,
    output: usize,
    unit: u32,
    round: u32,
    length: u32,
    sequence: u64,
}

impl Datagrams {
    /// Sends what is due: probes, and datagrams as the rate permits. False where nothing left.
    pub fn send(&mut self, outputs: &mut [Outbound]) -> Result<bool, StageError> {
        self.wait_until = None;
        self.probe(outputs)?;
        self.report_rounds(outputs);
        let mut has_sent = self.flush()?;
        let mut is_begun = false;
        let mut idle = 0;
        for _ in 0..TURNS_MAX * self.outs.len() {
            if !self.runs.is_empty() {
                return Ok(has_sent);
            }
            if idle == self.outs.len() {
                break;
            }
            let turn = self.turn;
            self.turn = (turn + 1) % self.outs.len();
            if self.fill(turn, is_begun) {
                (is_begun, idle) = (true, 0);
                has_sent |= self.flush()?;
            } else {
                idle += 1;
            }
        }
        if !self.outs.iter().any(|out| out.sending.has_work()) {
            let now = self.now();
            if let Some(all) = &mut self.all {
                all.rest(now);
            }
        }
        Ok(has_sent)
    }

    /// Gives notice of rounds that are out and not reported whole a moment later.
    fn report_rounds(&mut self, outputs: &mut [Outbound]) {
        let now = self.now();
        while let Some(first) = self.after.front() {
            if self.outs[first.output].units.contains_key(&first.unit) {
                if first.due.is_none_or(|due| due > now) {
                    break;
                }
                outputs[first.output].push_frame(&Frame::Round {
                    unit: first.unit,
                    round: first.round,
                    length: first.length,
                    sequence: first.sequence,
                });
            }
            self.after.pop_front();
        }
    }

    /// Looks for the longest datagram that passes.
    fn probe(&mut self, outputs: &[Outbound]) -> Result<(), StageError> {
        let now = self.now();
        for (out, output) in self.outs.iter_mut().zip(outputs) {
            // The receiver answers no probe any more.
            if output.is_over {
                out.sending.finish();
                continue;
            }
            match out.sending.probe(now) {
                Probing::Later => {}
                Probing::Blocked => {
                    return Err(StageError::Blocked {
                        peer: output.peer.clone(),
                        address: out.to,
                    });
                }
                Probing::Send(lengths) => {
                    for length in lengths {
                        let head = Datagram {
                            kind: DatagramKind::Probe,
                            round: 0,
                            length: (length as usize - DATAGRAM_HEADER_LEN - out.trailer) as u16,
                            lane: out.lane,
                            sequence: out.sealer.next_sequence(),
                            offset: 0,
                            grant: length,
                            echo: 0,
                        };
                        let mut bytes = head.encode().to_vec();
                        bytes.resize(length as usize, 0);
                        out.sealer.seal(&mut bytes);
                        // Longer than the interface takes, or no room: what comes through tells.
                        let _ = self.carrier.send(&out.to, &bytes, length as u16);
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts datagrams of an edge together, a call's worth; whether there were any.
    fn fill(&mut self, number: usize, mut is_begun: bool) -> bool {
        let now = self.now();
        let mut has_filled = false;
        while self.out.len() < SEND_MAX {
            let out = &mut self.outs[number];
            let datagram = out.sending.datagram().max(1) as usize;
            let count_max = ((SEND_MAX - self.out.len()) / datagram).clamp(1, SEGMENTS_MAX);
            let next =
                out.sending
                    .next(count_max as u32, is_begun, self.all.as_mut(), out.rtt, now);
            match next {
                Next::Piece(piece) => {
                    self.build(number, &piece);
                    (is_begun, has_filled) = (true, true);
                }
                Next::Wait(until) => {
                    let earliest = self.wait_until.map_or(until, |other| other.min(until));
                    self.wait_until = Some(earliest);
                    break;
                }
                Next::Nothing => break,
            }
        }
        has_filled
    }

    fn build(&mut self, number: usize, piece: &Piece) {
        let out = &mut self.outs[number];
        let unit = piece.unit.id;
        let Some(held) = out.units.get(&unit) else {
            return;
        };
        let length = piece.unit.range.len() as usize;
        let payload = out.sending.payload() as usize;
        let before = self.out.len();
        for index in piece.first..piece.first + piece.count {
            let at = index as usize * payload;
            let part = payload.min(length - at);
            let head = Datagram {
                kind: DatagramKind::Data,
                round: piece.round as u8,
                length: part as u16,
                lane: out.lane,
                sequence: out.sealer.next_sequence(),
                offset: piece.unit.range.start + at as u64,
                grant: unit,
                echo: out.sending.echo(),
            };
            let from = self.out.len();
            self.out.extend_from_slice(&head.encode());
            self.out.extend_from_slice(&held.body[at..at + part]);
            self.out.resize(self.out.len() + out.trailer, 0);
            out.sealer.seal(&mut self.out[from..]);
            if piece.round > 0 {
                self.again += part as u64;
            }
            add(&mut self.runs, out.to, self.out.len() - from);
        }
        let bytes = (self.out.len() - before) as u64;
        out.sending.spend(bytes);
        if let Some(all) = &mut self.all {
            all.spend(bytes);
        }
        if piece.ends_round {
            self.after.push_back(Round {
                due: None,
                output: number,
                unit,
                round: piece.round,
                length: piece.unit.range.len() as u32,
                sequence: out.sealer.next_sequence(),
            });
        }
    }

    /// Hands datagrams to the socket as far as it has room; whether anything left.
    fn flush(&mut self) -> Result<bool, StageError> {
        let mut has_sent = false;
        self.is_full = false;
        while let Some(run) = self.runs.front_mut() {
            let bytes = &self.out[self.left..self.left + run.len];
            let sent = self.carrier.send(&run.to, bytes, run.segment);
            match sent.map_err(system("sending datagrams"))? {
                Sent::All => {
                    has_sent = true;
                    self.left += run.len;
                    self.runs.pop_front();
                }
                Sent::Part(len) => {
                    run.len -= len;
                    self.left += len;
                    return Ok(has_sent || len > 0);
                }
                Sent::Full => {
                    self.is_full = true;
                    return Ok(has_sent);
                }
            }
        }
        self.out.clear();
        self.left = 0;
        let due = self.now() + ROUND_TIME;
        let left = self.after.iter_mut().rev();
        for round in left.take_while(|round| round.due.is_none()) {
            round.due = Some(due);
        }
        Ok(has_sent)
    }
}

/// Adds a datagram to those that leave in one call: all of one length, but for the last.
fn add(runs: &mut VecDeque<Run>, to: SocketAddr, len: usize) {
    if let Some(run) = runs.back_mut()
        && run.to == to
        && !run.is_closed
        && len <= usize::from(run.segment)
        && run.count < SEGMENTS_MAX
        && run.len + len <= SEND_MAX
    {
        run.len += len;
        run.count += 1;
        run.is_closed = len < usize::from(run.segment);
        return;
    }
    runs.push_back(Run {
        to,
        len,
        count: 1,
        segment: len as u16,
        is_closed: false,
    });
}
