//! The loop of a process: what can be read is read, what can be passed on is passed on, else it sleeps.

use std::time::{Duration, Instant};

use ropewalk_lane::crc64;
use ropewalk_lane::shm::Wanted;

use ropewalk_proto::control::{StageAccount, StageStatus, from_stage, to_stage};
use ropewalk_proto::mix::mix;
use ropewalk_proto::stage::account::Account;
use ropewalk_proto::stage::deal::Deal;
use ropewalk_proto::stage::frame::{CHECKED_LEN, Frame, Header};
use ropewalk_proto::stage::process::{Process, Role, Violation, Wait};
use ropewalk_proto::stage::shuffle;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::datagrams::Datagrams;
use crate::ends::{Filled, Sink, Source, records};
use crate::error::StageError;
use crate::inbound::{Arrival, Inbound, fingerprint};
use crate::meter::{self, Meter};
use crate::outbound::Outbound;
use crate::passing::Passing;
use crate::pool::{Buffer, Pool, TAG_LEN};
use crate::setup::{Agent, Ends};

/// How often the agent gets the state of a process.
const STATUS_EVERY: Duration = Duration::from_millis(250);

/// Bytes at the front of a block that are its key in a keyed deal.
pub(crate) const KEY_LEN: usize = 16;

/// Blocks that are given to the program, the file or nothing in one round.
const TAKEN_MAX: usize = 64;

/// What connects a process with others.
pub(crate) struct Edges {
    pub inputs: Vec<Option<Inbound>>,
    pub outputs: Vec<Outbound>,
    /// Where blocks go as datagrams.
    pub datagrams: Option<Datagrams>,
}
/// Rounds in which something moved before sockets and the agent are looked at: each look is a system call.
const ROUNDS_MAX: u32 = 8;

/// Bytes for which this process is woken where a ring was empty; for fewer it is when the sender sleeps.
const BATCH_LEN: usize = 256 << 10;

pub(crate) struct Drive<'a> {
    agent: &'a Agent,
    machine: Process<Buffer>,
    pool: Pool,
    // `None` once it has ended.
    inputs: Vec<Option<Inbound>>,
    outputs: Vec<Outbound>,
    // Where contents of blocks go as datagrams.
    datagrams: Option<Datagrams>,
    ends: Ends,
    block: usize,
    // Of the fingerprints.
    key: [u8; 32],
    meter: Meter,
    reported: Instant,
    is_done: bool,
    // The agent has sent something.
    hears: bool,
    // What is readable or writable, as far as known.
    readable: Vec<bool>,
    credited: Vec<bool>,
    // Rounds since sockets were looked at.
    rounds: u32,
    // Where blocks take no buffer.
    passing: Option<Passing>,
}

impl<'a> Drive<'a> {
    pub fn new(
        agent: &'a Agent,
        machine: Process<Buffer>,
        edges: Edges,
        ends: Ends,
        block: usize,
        key: [u8; 32],
    ) -> Self {
        let Edges {
            inputs,
            outputs,
            datagrams,
        } = edges;
        Self {
            datagrams,
            passing: Passing::of(&inputs, &outputs, may_pass(&ends), block),
            readable: vec![true; inputs.len()],
            credited: vec![true; outputs.len()],
            agent,
            machine,
            pool: Pool::new(block),
            inputs,
            outputs,
            ends,
            block,
            key,
            meter: Meter::default(),
            reported: Instant::now(),
            is_done: false,
            hears: false,
            rounds: 0,
        }
    }

    /// Runs until the agent ends it.
    pub fn run(mut self) -> Result<(), StageError> {
        if self.machine.role() == Role::Source {
            self.meter.begin();
        }
        self.greet()?;
        loop {
            let mut has_moved = false;
            if self.hears {
                self.hear()?;
            }
            has_moved |= match &mut self.passing {
                Some(passing) => {
                    let (inputs, outputs) = (&mut self.inputs, &mut self.outputs);
                    passing.pass(
                        &mut self.machine,
                        inputs,
                        outputs,
                        &self.key,
                        &mut self.meter,
                    )?
                }
                None => self.read()?,
            };
            has_moved |= self.work()?;
            has_moved |= self.write()?;
            self.grant()?;
            if !self.is_done && self.has_ended()? {
                self.is_done = true;
                self.meter.end();
                self.report();
            }
            self.sleep(has_moved)?;
        }
    }

    /// Both ends of each edge name their sockets of datagrams, where those are used.
    fn greet(&mut self) -> Result<(), StageError> {
        let Some(datagrams) = &mut self.datagrams else {
            return Ok(());
        };
        datagrams.greet(&mut self.inputs, &mut self.outputs);
        if !datagrams.is_credited() {
            for (number, output) in self.outputs.iter().enumerate() {
                let granted = self.machine.credit(number, u64::MAX, false);
                granted.map_err(|violation| output.violation(violation))?;
            }
        }
        Ok(())
    }

    /// Whether all blocks have gone on and the program or file has ended, too.
    fn has_ended(&mut self) -> Result<bool, StageError> {
        if !self.machine.is_done() || !self.outputs.iter().all(|output| output.is_over) {
            return Ok(false);
        }
        match &mut self.ends {
            Ends::Program(shell) => Ok(shell.is_over()),
            Ends::Sink(sink) => {
                // Sorting takes as much again.
                self.pool.clear();
                sink.finish()
            }
            Ends::Source(_) | Ends::Relay => Ok(true),
        }
    }

    /// The agent has nothing to say but that it is over.
    fn hear(&mut self) -> Result<(), StageError> {
        self.hears = false;
        match self.agent.receive()? {
            None => Ok(()),
            Some((
                to_stage::Body::Setup(_)
                | to_stage::Body::Start(_)
                | to_stage::Body::Edge(_)
                | to_stage::Body::Rank(_),
                _,
            )) => Err(StageError::Agent("it has no sense after the start".into())),
        }
    }

    /// Whether blocks should be read from connections; what datagrams bring has its own bound.
    fn wants_more(&self) -> bool {
        self.datagrams.is_some() || self.machine.wants_more()
    }

    fn read(&mut self) -> Result<bool, StageError> {
        let mut has_read = false;
        let wants_more = self.wants_more();
        for (number, place) in self.inputs.iter_mut().enumerate() {
            let is_readable = self.readable[number];
            let wants = |input: &&mut Inbound| is_readable && (wants_more || input.is_broken);
            let Some(input) = place.as_mut().filter(wants) else {
                continue;
            };
            let (machine, key, meter) = (&mut self.machine, &self.key, &mut self.meter);
            let datagrams = &mut self.datagrams;
            has_read |= input.read(&mut self.pool, |arrival| {
                match arrival {
                    Arrival::Block(header, body) => {
                        meter.begin();
                        arrive(machine, key, number, header, body)?;
                    }
                    Arrival::Frame(Frame::Want) => machine.want(number),
                    Arrival::Frame(Frame::End { blocks, bytes }) => {
                        machine.end(number, blocks, bytes)?;
                    }
                    Arrival::Frame(frame) => {
                        if let Some(datagrams) = datagrams {
                            datagrams.told(number, frame)?;
                        }
                    }
                }
                Ok(!machine.has_ended(number))
            })?;
            self.readable[number] = !input.is_drained();
            if self.machine.has_ended(number) {
                *place = None;
                if let Some(datagrams) = &mut self.datagrams {
                    datagrams.end(number);
                }
            }
        }
        if let Some(datagrams) = &mut self.datagrams {
            let (machine, key, meter) = (&mut self.machine, &self.key, &mut self.meter);
            let deliver = |number, header, body| {
                meter.begin();
                arrive(machine, key, number, header, body)
            };
            has_read |= datagrams.receive(&mut self.inputs, &mut self.pool, deliver)?;
        }
        Ok(has_read)
    }

    /// What this process is for.
    fn work(&mut self) -> Result<bool, StageError> {
        match &mut self.ends {
            Ends::Relay => Ok(self.machine.relay() > 0),
            Ends::Source(source) => {
                let mut has_made = false;
                while self.machine.may_make() {
                    let mut buffer = self.pool.take();
                    // Only sealing writes into the buffers of zeros.
                    let is_clean = self.outputs.iter().all(|output| !output.is_sealed());
                    match source.fill(&mut buffer[..self.block], is_clean)? {
                        Filled::Block(len) => make(&mut self.machine, &self.key, buffer, len),
                        Filled::Nothing => {
                            self.pool.give(buffer);
                            return Ok(true);
                        }
                        Filled::End => {
                            self.pool.give(buffer);
                            self.machine.close();
                            break;
                        }
                    }
                    has_made = true;
                }
                Ok(has_made)
            }
            Ends::Sink(sink) => {
                let mut taken = 0;
                while taken < TAKEN_MAX
                    && sink.is_ready()?
                    && let Some(held) = self.machine.take()
                {
                    taken += 1;
                    sink.write(&held.body[..held.header.length as usize])?;
                    self.pool.give(self.machine.release(held));
                }
                Ok(taken > 0)
            }
            Ends::Program(shell) => {
                let mut has_moved = false;
                for _ in 0..TAKEN_MAX {
                    if shell.is_idle()
                        && let Some(held) = self.machine.take()
                    {
                        shell.feed(held);
                    }
                    match shell.write()? {
                        Some(held) => {
                            has_moved = true;
                            self.pool.give(self.machine.release(held));
                        }
                        None => break,
                    }
                }
                if self.machine.has_drained() {
                    shell.close();
                }
                while self.machine.may_make()
                    && let Some((buffer, len)) = shell.read(&mut self.pool)?
                {
                    has_moved = true;
                    make(&mut self.machine, &self.key, buffer, len);
                }
                shell.check()?;
                if shell.is_over() {
                    self.machine.close();
                }
                Ok(has_moved)
            }
        }
    }

    fn write(&mut self) -> Result<bool, StageError> {
        let mut has_written = false;
        for number in 0..self.outputs.len() {
            if !self.outputs[number].is_over {
                has_written |= self.answers(number)?;
                has_written |= self.deal(number)?;
            }
        }
        if let Some(datagrams) = &mut self.datagrams {
            has_written |= datagrams.send(&mut self.outputs)?;
            for output in self.outputs.iter_mut().filter(|output| output.has_unsent()) {
                // Frames without content.
                has_written |= output.write(drop)?;
            }
        }
        Ok(has_written)
    }

    /// Reads what the receiver of an edge has sent; whether that lets a block go on: a buffer is free, or there is credit for what
    /// has not arrived.
    fn answers(&mut self, number: usize) -> Result<bool, StageError> {
        if !std::mem::take(&mut self.credited[number]) {
            return Ok(false);
        }
        let mut has_freed = false;
        let output = &mut self.outputs[number];
        let (machine, pool, datagrams) = (&mut self.machine, &mut self.pool, &mut self.datagrams);
        let waits = self.passing.as_ref().is_some_and(Passing::waits_for_credit);
        let peer = output.peer.clone();
        output.read(|frame, body| {
            let heard = match (frame, &mut *datagrams) {
                (Frame::Credit { granted, on_demand }, _) => {
                    // The block that waits for it lies before this process.
                    has_freed |= waits;
                    machine.credit(number, granted, on_demand)
                }
                (frame, Some(datagrams)) => datagrams.hear(number, frame, body).map(|whole| {
                    if let Some(held) = whole {
                        pool.give(machine.sent(number, held));
                        has_freed = true;
                    }
                }),
                // Nothing else has a sense in this direction.
                (_, None) => Ok(()),
            };
            heard.map_err(|violation| StageError::Violation {
                peer: peer.clone(),
                violation,
            })
        })?;
        Ok(has_freed)
    }

    /// Takes blocks that an edge has credit for, and writes what the socket has space for.
    fn deal(&mut self, number: usize) -> Result<bool, StageError> {
        let (machine, output) = (&mut self.machine, &mut self.outputs[number]);
        let mut has_written = false;
        loop {
            match &mut self.datagrams {
                Some(datagrams) => {
                    while datagrams.is_open(number)
                        && let Some(held) = machine.next_send(number)
                    {
                        datagrams.push(number, held);
                    }
                }
                None => {
                    while output.has_room()
                        && let Some(held) = machine.next_send(number)
                    {
                        output.push(held);
                    }
                }
            }
            let waits = self.passing.as_ref().is_some_and(Passing::waits_for_credit);
            if machine.poll_want(number, waits) {
                output.push_frame(&Frame::Want);
            }
            if let Some((blocks, bytes)) = machine.poll_end(number) {
                output.push_frame(&Frame::End { blocks, bytes });
            }
            if !output.has_unsent() || output.is_full {
                break;
            }
            let pool = &mut self.pool;
            has_written |= output.write(|held| pool.give(machine.sent(number, held)))?;
            if output.has_unsent() {
                break;
            }
        }
        Ok(has_written)
    }

    /// Buffers that have become free are granted again.
    fn grant(&mut self) -> Result<(), StageError> {
        for (number, place) in self.inputs.iter_mut().enumerate() {
            let Some(input) = place else { continue };
            let credit = self.machine.poll_credit(number);
            if let (Some((granted, _)), Some(datagrams)) = (credit, &mut self.datagrams) {
                datagrams.grant(number, granted / self.block as u64);
            }
            let is_credited = self.datagrams.as_ref().is_none_or(Datagrams::is_credited);
            if let Some((granted, on_demand)) = credit.filter(|_| is_credited) {
                input.send_credit(granted, on_demand)?;
            } else if input.has_unsent() {
                input.flush()?;
            }
        }
        Ok(())
    }

    /// Looks what is ready without waiting, and has the others report when they are; whether anything is.
    fn arm(&mut self) -> Result<bool, StageError> {
        let mut is_ready = false;
        let wants_more = self.wants_more();
        for (readable, input) in self.readable.iter_mut().zip(&mut self.inputs) {
            let Some(input) = input else { continue };
            let bytes = match &self.passing {
                Some(passing) => passing.wanted_bytes(),
                None if wants_more || input.is_broken => 1,
                None => 0,
            };
            let room = input.has_unsent().then_some(0);
            let batch = BATCH_LEN;
            let armed = input.link.arm(Wanted { bytes, batch, room });
            let armed = armed.map_err(|error| input.lost(error.to_string()))?;
            input.is_broken |= input.link.has_ended();
            // Where blocks are passed on, what lies in the ring counts.
            let is_read = self.passing.is_none() && (wants_more || input.is_broken);
            *readable |= armed && is_read;
            is_ready |= armed || *readable && is_read;
        }
        for (credited, output) in self.credited.iter_mut().zip(&mut self.outputs) {
            let room = match &self.passing {
                Some(passing) if !output.has_unsent() => passing.wanted_room(),
                _ => output.has_unsent().then_some(0),
            };
            let armed = output.link.arm(Wanted {
                bytes: 1,
                batch: 1,
                room,
            });
            *credited |= armed.map_err(|error| output.lost(error.to_string()))?;
            is_ready |= *credited && !output.is_over;
        }
        Ok(is_ready)
    }

    /// Looks what rings hold, which takes no system call.
    fn look(&mut self) {
        for (readable, input) in self.readable.iter_mut().zip(&self.inputs) {
            *readable |= input.as_ref().is_some_and(|input| input.link.has_bytes());
        }
        for (credited, output) in self.credited.iter_mut().zip(&self.outputs) {
            *credited |= output.link.has_bytes();
        }
    }

    /// How long to wait where nothing is ready.
    fn rest(&mut self, mut patience: Duration) -> Result<Duration, StageError> {
        for input in self.inputs.iter_mut().flatten() {
            let rest = input.link.rest();
            let rest = rest.map_err(|error| input.lost(error.to_string()))?;
            patience = patience.min(rest.unwrap_or(patience));
        }
        for output in self.outputs.iter_mut().filter(|output| !output.is_over) {
            let rest = output.link.rest();
            let rest = rest.map_err(|error| output.lost(error.to_string()))?;
            patience = patience.min(rest.unwrap_or(patience));
        }
        Ok(patience)
    }

    /// What can be read or written: the agent, inputs, outputs that are not over, and the program or file.
    fn waited_for(&self) -> Vec<PollFd<'_>> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = vec![PollFd::new(&self.agent.packets, PollFlags::IN)];
        let wants_more = self.wants_more();
        for input in self.inputs.iter().flatten() {
            let flags = input.link.flags(wants_more, input.has_unsent());
            fds.push(PollFd::new(&input.link, flags));
        }
        for output in self.outputs.iter().filter(|output| !output.is_over) {
            let flags = output.link.flags(true, output.has_unsent());
            fds.push(PollFd::new(&output.link, flags));
        }
        if let Some(datagrams) = &self.datagrams {
            let (fd, flags) = datagrams.waited_for();
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        }
        match &self.ends {
            Ends::Sink(sink) => fds.extend(sink.syncs().map(readable)),
            Ends::Program(shell) => {
                let writes = shell.writes();
                fds.extend(writes.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)));
                let reads = shell.reads().filter(|_| self.machine.may_make());
                fds.extend(reads.map(readable));
                fds.extend(shell.ends().map(readable));
            }
            Ends::Source(_) | Ends::Relay => {}
        }
        fds
    }

    /// Looks what can be read and written, after some rounds; waits until something can where nothing moved.
    fn sleep(&mut self, has_moved: bool) -> Result<(), StageError> {
        // Datagrams are looked at in each round.
        let may_skip = self.rounds < ROUNDS_MAX && self.datagrams.is_none();
        self.rounds += 1;
        if may_skip && has_moved {
            self.look();
            return Ok(());
        }
        let is_ready = self.arm()?;
        if may_skip && is_ready {
            return Ok(());
        }
        self.rounds = 0;
        let due = self.reported + STATUS_EVERY;
        let began = Instant::now();
        if began >= due {
            self.report();
        }
        let is_idle = !has_moved && !is_ready;
        let patience = match is_idle {
            true => due
                .saturating_duration_since(began)
                .max(Duration::from_millis(1)),
            false => Duration::ZERO,
        };
        let due = self.datagrams.as_ref().and_then(Datagrams::patience);
        let mut patience = due.map_or(patience, |due| due.min(patience));
        if is_idle {
            patience = self.rest(patience)?;
        }
        let wait = match &self.ends {
            Ends::Sink(sink) if sink.is_behind() => Wait::Work,
            _ if self.passing.as_ref().is_some_and(Passing::waits_for_output) => Wait::Output,
            _ => self.machine.wait(),
        };
        let mut fds = self.waited_for();
        let timeout = Timespec::try_from(patience).unwrap_or_default();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                return Err(StageError::System {
                    doing: "waiting for sockets",
                    source: error.into(),
                });
            }
        }
        let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        self.note(events)?;
        if !has_moved {
            self.meter.waited(wait, began.elapsed());
        }
        Ok(())
    }

    /// Takes note of what was readable or writable, in the order of [`Drive::waited_for`].
    fn note(&mut self, events: Vec<PollFlags>) -> Result<(), StageError> {
        let mut events = events.into_iter();
        let mut next = || events.next().unwrap_or(PollFlags::empty());
        self.hears = !next().is_empty();
        for (readable, input) in self.readable.iter_mut().zip(&mut self.inputs) {
            let Some(input) = input else { continue };
            let event = next();
            if !event.is_empty() {
                input.is_broken |= event.intersects(PollFlags::HUP | PollFlags::ERR);
                let woken = input.link.wake();
                woken.map_err(|error| input.lost(error.to_string()))?;
                *readable |= event != PollFlags::OUT;
            }
        }
        let outputs = self.credited.iter_mut().zip(&mut self.outputs);
        for (credited, output) in outputs.filter(|(_, output)| !output.is_over) {
            let event = next();
            if !event.is_empty() {
                let woken = output.link.wake();
                woken.map_err(|error| output.lost(error.to_string()))?;
                *credited |= event != PollFlags::OUT;
                output.is_full = false;
            }
        }
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.is_readable |= !next().is_empty();
        }
        Ok(())
    }

    fn report(&mut self) {
        self.reported = Instant::now();
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.tick(&mut self.inputs, &self.outputs);
        }
        let [elapsed, waited_input, waited_output] = self.meter.times();
        let (records, records_least, records_most) = records(&self.ends);
        // Files are read or written, though no block moves.
        let is_syncing = match &mut self.ends {
            Ends::Sink(sink) => sink.syncs().is_some(),
            Ends::Source(Source::Records(dealing)) => dealing.take_has_read(),
            _ => false,
        };
        self.agent.send(from_stage::Body::Status(StageStatus {
            group: self.agent.group,
            received: Some(account(self.machine.received())),
            dealt: Some(account(self.machine.dealt())),
            elapsed,
            waited_input,
            waited_output,
            processor: meter::processor(),
            resident_max: meter::resident_max(),
            ended: self.is_done,
            syncing: is_syncing,
            records: Some(account(records)),
            records_least,
            records_most,
            sealed: self
                .outputs
                .iter()
                .filter(|output| output.is_sealed())
                .count() as u32,
            retransmitted: self.datagrams.as_ref().map_or(0, |one| one.again),
        }));
    }
}

fn account(account: Account) -> StageAccount {
    StageAccount {
        blocks: account.blocks,
        bytes: account.bytes,
        sum: account.sum.to_le_bytes().to_vec(),
    }
}

/// A verified block is here.
fn arrive(
    machine: &mut Process<Buffer>,
    key: &[u8; 32],
    input: usize,
    header: Header,
    body: Buffer,
) -> Result<(), Violation> {
    let dealt_by = key_of(machine.deals(), &body[..header.length as usize]);
    machine.arrive(input, header, fingerprint(key, &header), dealt_by, body)
}

/// Whether a process passes blocks on, or drops them, without a look at their content.
fn may_pass(ends: &Ends) -> bool {
    matches!(ends, Ends::Relay | Ends::Sink(Sink::Null))
}

/// Deals a new block.
fn make(machine: &mut Process<Buffer>, key: &[u8; 32], buffer: Buffer, len: usize) {
    debug_assert!(len + TAG_LEN <= buffer.len());
    let mut header = Header {
        identity: machine.next_identity(),
        // BLOCK_MAX fits.
        length: len as u32,
        check: 0,
    };
    header.check = crc64(&[&header.encode()[..CHECKED_LEN], &buffer[..len]]);
    let dealt_by = key_of(machine.deals(), &buffer[..len]);
    machine.make(header, fingerprint(key, &header), dealt_by, buffer);
}

/// The key of a block: its first bytes, or the number in them.
fn key_of(deal: Deal, content: &[u8]) -> u64 {
    if deal == Deal::Numbered {
        return shuffle::split(content).map_or(0, |(number, _)| number.into());
    }
    let mut bytes = [0; KEY_LEN];
    let len = content.len().min(KEY_LEN);
    bytes[..len].copy_from_slice(&content[..len]);
    let number = u128::from_le_bytes(bytes);
    mix(number as u64 ^ mix((number >> 64) as u64))
}
