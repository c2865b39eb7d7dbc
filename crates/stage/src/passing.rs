//! Blocks that go from the ring where they arrive to the ring of the next process, or nowhere, and take no buffer.
//!
//! For a process with one edge in and at most one out, both over shared memory and not sealed. What waits for credit or space stays in the
//! ring where it arrived, which its sender sees as less space.

use std::io::ErrorKind;

use ropewalk_lane::Crc64;
use ropewalk_lane::shm::Rings;
use ropewalk_proto::stage::frame::{CHECKED_LEN, Frame, HEADER_LEN, Header};
use ropewalk_proto::stage::process::{Process, Role};

use crate::error::StageError;
use crate::inbound::{Inbound, fingerprint};
use crate::meter::Meter;
use crate::outbound::Outbound;
use crate::pool::Buffer;

/// Bytes that are passed on before other things have their turn.
const TURN_LEN: usize = 1 << 20;

/// What the first block in the ring waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// The rest of so many bytes.
    Bytes(usize),
    /// Credit of the next process.
    Credit,
    /// So much space in the next ring.
    Room(usize),
}

pub(crate) struct Passing {
    longest: usize,
    wait: Wait,
}

impl Passing {
    /// `None` where blocks need buffers. `may_pass`: the process does not use their content.
    pub fn of(
        inputs: &[Option<Inbound>],
        outputs: &[Outbound],
        may_pass: bool,
        longest: usize,
    ) -> Option<Self> {
        let [Some(input)] = inputs else { return None };
        let is_open = match outputs {
            [] => true,
            [output] => output.link.is_shared() && !output.is_sealed(),
            _ => false,
        };
        let fits = Rings::holds(HEADER_LEN + longest);
        let is_open = is_open && input.link.is_shared() && !input.is_sealed();
        (may_pass && is_open && fits).then_some(Self {
            longest,
            wait: Wait::Bytes(HEADER_LEN),
        })
    }

    /// Whether a block waits for credit.
    pub fn waits_for_credit(&self) -> bool {
        self.wait == Wait::Credit
    }

    /// Bytes that are waited for; 0: none.
    pub fn wanted_bytes(&self) -> usize {
        match self.wait {
            Wait::Bytes(bytes) => bytes,
            Wait::Credit | Wait::Room(_) => 0,
        }
    }

    /// Whether a block waits for the next process.
    pub fn waits_for_output(&self) -> bool {
        !matches!(self.wait, Wait::Bytes(_))
    }

    /// Space for which the process is to be woken.
    pub fn wanted_room(&self) -> Option<usize> {
        match self.wait {
            Wait::Room(room) => Some(room),
            Wait::Bytes(_) | Wait::Credit => None,
        }
    }

    /// Passes on what can be passed on, up to a bound; whether anything was.
    pub fn pass(
        &mut self,
        machine: &mut Process<Buffer>,
        inputs: &mut [Option<Inbound>],
        outputs: &mut [Outbound],
        key: &[u8; 32],
        meter: &mut Meter,
    ) -> Result<bool, StageError> {
        let [place] = inputs else { return Ok(false) };
        let mut all = 0;
        while all < TURN_LEN {
            let Some(input) = place else { break };
            let Some(head) = self.front(input)? else {
                break;
            };
            let frame = Frame::decode(&head).map_err(|source| StageError::Frame {
                peer: input.peer.clone(),
                source,
            })?;
            let broken = |violation| StageError::Violation {
                peer: input.peer.clone(),
                violation,
            };
            let len = match frame {
                Frame::Block(header) => {
                    if !self.pass_block(&head, header, machine, input, outputs)? {
                        break;
                    }
                    meter.begin();
                    let print = fingerprint(key, &header);
                    let body = Buffer::default();
                    let arrived = machine.arrive(0, header, print, 0, body);
                    arrived.map_err(|violation| StageError::Violation {
                        peer: input.peer.clone(),
                        violation,
                    })?;
                    Self::count(machine);
                    if let [output] = outputs {
                        let to = output.link.rings();
                        let len = HEADER_LEN + header.length as usize;
                        let published = to.map_or(Ok(()), |to| to.publish(len));
                        published.map_err(|error| output.lost(error.to_string()))?;
                    }
                    header.length as usize
                }
                Frame::End { blocks, bytes } => {
                    machine.end(0, blocks, bytes).map_err(broken)?;
                    0
                }
                Frame::Want => {
                    machine.want(0);
                    0
                }
                // Nothing else has a sense in this direction.
                _ => 0,
            };
            let link = input.link.rings();
            let consumed = link.map_or(Ok(()), |rings| rings.consume(HEADER_LEN + len));
            consumed.map_err(|error| input.lost(error.to_string()))?;
            all += HEADER_LEN + len;
            self.wait = Wait::Bytes(HEADER_LEN);
            if machine.has_ended(0) {
                *place = None;
            }
        }
        Ok(all > 0)
    }

    /// The machine sees the block as arrived, dealt and sent, or as used.
    fn count(machine: &mut Process<Buffer>) {
        match machine.role() {
            Role::Relay => {
                machine.relay();
                let held = machine.next_send(0);
                debug_assert!(held.is_some());
                held.map(|held| machine.sent(0, held));
            }
            _ => {
                let held = machine.take();
                held.map(|held| machine.release(held));
            }
        }
    }

    /// The header of the first frame that is whole.
    fn front(&mut self, input: &mut Inbound) -> Result<Option<[u8; HEADER_LEN]>, StageError> {
        let Some(rings) = input.link.rings() else {
            return Ok(None);
        };
        let mut head = [0; HEADER_LEN];
        let looked = rings.look(&mut head).and_then(|is_whole| {
            if !is_whole {
                return Ok(None);
            }
            let need = match Frame::decode(&head) {
                Ok(Frame::Block(header)) if header.length as usize <= self.longest => {
                    HEADER_LEN + header.length as usize
                }
                // What is wrong with others shows where they are used.
                _ => HEADER_LEN,
            };
            self.wait = Wait::Bytes(need);
            Ok((rings.filled(need)? >= need).then_some(head))
        });
        match looked {
            Ok(head) => Ok(head),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(input.lost("it ended early".into()))
            }
            Err(error) => Err(input.lost(error.to_string())),
        }
    }

    /// Verifies a block and copies it into the next ring, where there is one and it is not seen yet; false where it has to wait.
    fn pass_block(
        &mut self,
        head: &[u8; HEADER_LEN],
        header: Header,
        machine: &Process<Buffer>,
        input: &mut Inbound,
        outputs: &mut [Outbound],
    ) -> Result<bool, StageError> {
        let len = header.length as usize;
        if len > self.longest {
            return Err(StageError::TooLong {
                peer: input.peer.clone(),
                length: header.length,
                longest: self.longest,
            });
        }
        let mut sum = Crc64::default();
        sum.update(&head[..CHECKED_LEN]);
        let Some(from) = input.link.rings() else {
            return Ok(false);
        };
        let mut output = outputs.first_mut();
        if let Some(output) = &mut output {
            if !machine.can_pass(0) {
                self.wait = Wait::Credit;
                return Ok(false);
            }
            let has_unsent = output.has_unsent();
            let copied = match output.link.rings().filter(|_| !has_unsent) {
                Some(to) => from.copy_to(HEADER_LEN, len, &mut sum, to, head),
                None => Ok(false),
            };
            match copied {
                Ok(true) => {}
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Err(output.lost(error.to_string()));
                }
                Ok(false) | Err(_) => {
                    self.wait = Wait::Room(HEADER_LEN + len);
                    return Ok(false);
                }
            }
        } else {
            let summed = from.sum(HEADER_LEN, len, &mut sum);
            summed.map_err(|error| input.lost(error.to_string()))?;
        }
        if sum.value() != header.check {
            return Err(StageError::Damaged {
                peer: input.peer.clone(),
                identity: header.identity,
            });
        }
        Ok(true)
    }
}
