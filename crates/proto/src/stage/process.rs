//! One process of a group: merges the blocks of its inputs, and deals them to its outputs.
//!
//! ```text
//!  arrive ─▶ ready, by input ──merge──▶ relay ───────────────▶ queue, by output ──credit──▶ next_send ─▶ release
//!                                       take ─▶ program, file        ▲
//!                                                       make ────────┘
//! ```
//!
//! The driver owns sockets and buffers and calls; bodies pass through as they are. Merging is random among the inputs that have a
//! block ready, dealing is as [`Deal`] says and does not look at credit: a block whose output has none waits in a short queue, and while
//! that is full nothing is merged or made. Whether a process makes progress depends only on the processes after it.
//!
//! Left out on purpose: time, which of two failures is the cause ([`super::run`]), and the content of blocks.

use std::collections::VecDeque;

use super::account::Account;
use super::credit::{Granted, Grants};
use super::deal::{Chance, Deal};
use super::frame::{Header, Identity};

/// Bytes of blocks that may wait without credit, where a few blocks for each output are less: short blocks are sent many at
/// a time.
const QUEUE_BYTES: usize = 256 << 10;

/// Blocks for each output that may wait.
const QUEUE_EACH: usize = 4;

/// What a process does with blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Makes them; the first group.
    Source,
    /// Passes them on.
    Relay,
    /// Gives them to a program or function, and makes new ones of what that returns.
    Program,
    /// Takes them; the last group.
    Sink,
}

/// How a process is made.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What it does.
    pub role: Role,
    /// Its node, from 0.
    pub node: u32,
    /// Its group, from 0.
    pub group: u32,
    /// Edges from the group before.
    pub inputs: usize,
    /// Edges to the group after.
    pub outputs: usize,
    /// Length of a buffer, and of a block at most.
    pub block: usize,
    /// Buffers, [`super::BUFFERS_MIN`] at least.
    pub buffers: usize,
    /// How it deals.
    pub deal: Deal,
    /// Of the stream.
    pub seed: u64,
}

/// A block in its buffer.
#[derive(Debug)]
pub struct Held<B> {
    /// What is sent before its content.
    pub header: Header,
    /// What it adds to accounts.
    pub fingerprint: u128,
    /// Of a keyed deal.
    pub key: u64,
    /// The driver's buffer.
    pub body: B,
    // Where it arrived, or `None` for one that was made here.
    input: Option<usize>,
}

/// What a peer did that it must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A block without credit.
    #[error("sent a block beyond its credit")]
    Credit,
    /// A block, or a second end, after the end.
    #[error("sent more after the end of its blocks")]
    AfterEnd,
    /// The counts differ.
    #[error(
        "announced {blocks} blocks of {bytes} bytes at the end, and {received} of {received_bytes} bytes arrived"
    )]
    Count {
        /// What the sender counted.
        blocks: u64,
        /// What the sender counted.
        bytes: u64,
        /// What arrived.
        received: u64,
        /// What arrived.
        received_bytes: u64,
    },
    /// Answers about datagrams that were not sent.
    #[error("answered what was not sent to it as datagrams")]
    Datagrams,
    /// Less credit than before.
    #[error("took back credit that it had granted")]
    Revoked,
}

/// What keeps a process from going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No block is ready.
    Input,
    /// The next group grants nothing, or its sockets are full.
    Output,
    /// Its own program, file or end.
    Work,
}

#[derive(Debug)]
struct Input<B> {
    ready: VecDeque<Held<B>>,
    account: Account,
    has_ended: bool,
}

#[derive(Debug)]
struct Output<B> {
    queue: VecDeque<Held<B>>,
    // Buffers that the receiver granted, and those used.
    granted: u64,
    used: u64,
    on_demand: bool,
    has_asked: bool,
    // With the driver, not released yet.
    sending: usize,
    account: Account,
    has_ended: bool,
}

impl<B> Output<B> {
    fn has_credit(&self) -> bool {
        self.used < self.granted
    }
}

/// One process.
#[derive(Debug)]
pub struct Process<B> {
    settings: Settings,
    // Merges go by the time of arrivals; a deal's own numbers are the same in every run.
    merging: Chance,
    dealing: Chance,
    inputs: Vec<Input<B>>,
    // Inputs with a block ready, in no order.
    ready: Vec<usize>,
    grants: Grants,
    outputs: Vec<Output<B>>,
    queued: usize,
    queue_max: usize,
    // Buffers of blocks made here.
    own: usize,
    own_max: usize,
    // Blocks that left `ready` for a program or file.
    taken: usize,
    next_number: u64,
    // Nothing more is made here.
    is_closed: bool,
    received: Account,
    dealt: Account,
}

impl<B> Process<B> {
    /// A process at its beginning.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let buffers = settings.buffers;
        debug_assert!(buffers as u64 >= super::BUFFERS_MIN);
        let own_max = match settings.role {
            Role::Source => buffers,
            Role::Program => buffers / 2,
            Role::Relay | Role::Sink => 0,
        };
        // Where all go to one output, more than one need not wait.
        let few = match settings.outputs {
            0 | 1 => 1,
            outputs => QUEUE_EACH * outputs,
        };
        let input = |_| Input {
            ready: VecDeque::new(),
            account: Account::default(),
            has_ended: false,
        };
        let output = |_| Output {
            queue: VecDeque::new(),
            granted: 0,
            used: 0,
            on_demand: false,
            has_asked: false,
            sending: 0,
            account: Account::default(),
            has_ended: false,
        };
        Self {
            merging: Chance::new(!settings.seed, settings.node, settings.group),
            dealing: Chance::new(settings.seed, settings.node, settings.group),
            inputs: (0..settings.inputs).map(input).collect(),
            ready: Vec::new(),
            grants: Grants::new(settings.inputs, buffers - own_max),
            outputs: (0..settings.outputs).map(output).collect(),
            queued: 0,
            queue_max: few
                .max(QUEUE_BYTES / settings.block)
                .min(buffers / 2)
                .max(1),
            own: 0,
            own_max,
            taken: 0,
            next_number: 0,
            is_closed: settings.role == Role::Relay || settings.role == Role::Sink,
            received: Account::default(),
            dealt: Account::default(),
            settings,
        }
    }

    /// What it does.
    #[must_use]
    pub fn role(&self) -> Role {
        self.settings.role
    }

    /// How it deals.
    #[must_use]
    pub fn deals(&self) -> Deal {
        self.settings.deal
    }

    /// A verified block of an input, in its buffer.
    ///
    /// # Errors
    /// [`Violation::Credit`] and [`Violation::AfterEnd`].
    pub fn arrive(
        &mut self,
        input: usize,
        header: Header,
        fingerprint: u128,
        key: u64,
        body: B,
    ) -> Result<(), Violation> {
        if self.inputs[input].has_ended {
            return Err(Violation::AfterEnd);
        }
        if !self.grants.arrive(input) {
            return Err(Violation::Credit);
        }
        self.received.add(header.length, fingerprint);
        let from = &mut self.inputs[input];
        from.account.add(header.length, fingerprint);
        if from.ready.is_empty() {
            self.ready.push(input);
        }
        from.ready.push_back(Held {
            header,
            fingerprint,
            key,
            body,
            input: Some(input),
        });
        Ok(())
    }

    /// The end of an input, with what its sender counted.
    ///
    /// # Errors
    /// [`Violation::Count`] and [`Violation::AfterEnd`].
    pub fn end(&mut self, input: usize, blocks: u64, bytes: u64) -> Result<(), Violation> {
        let from = &mut self.inputs[input];
        if from.has_ended {
            return Err(Violation::AfterEnd);
        }
        if (from.account.blocks, from.account.bytes) != (blocks, bytes) {
            return Err(Violation::Count {
                blocks,
                bytes,
                received: from.account.blocks,
                received_bytes: from.account.bytes,
            });
        }
        from.has_ended = true;
        Ok(())
    }

    /// The sender of an input has a block and no credit.
    pub fn want(&mut self, input: usize) {
        if !self.inputs[input].has_ended {
            self.grants.want(input);
        }
    }

    /// Credit to be sent to the sender of an input: all that was ever granted, and whether more is granted on request only.
    pub fn poll_credit(&mut self, input: usize) -> Option<(u64, bool)> {
        if self.inputs[input].has_ended {
            return None;
        }
        let Granted { buffers, on_demand } = self.grants.poll(input)?;
        Some((buffers * self.settings.block as u64, on_demand))
    }

    /// Whether all inputs have ended.
    #[must_use]
    pub fn has_input_ended(&self) -> bool {
        self.inputs.iter().all(|input| input.has_ended)
    }

    /// Whether an input has ended.
    #[must_use]
    pub fn has_ended(&self, input: usize) -> bool {
        self.inputs[input].has_ended
    }

    /// Whether more blocks should be received: those that have arrived are merged, and the queue has space. What is not received
    /// yet waits at its sender, which credit permits, or in the connection, and takes no buffer here.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        let has_room = self.settings.role != Role::Relay || self.queued < self.queue_max;
        self.ready.is_empty() && has_room
    }

    /// Takes a block out of the merged inputs, for a program or file. Give it to [`Process::release`] when it is used.
    pub fn take(&mut self) -> Option<Held<B>> {
        let held = self.merge()?;
        self.taken += 1;
        Some(held)
    }

    /// Whether [`Process::relay`] would pass something on.
    #[must_use]
    pub fn can_relay(&self) -> bool {
        self.queued < self.queue_max && !self.ready.is_empty()
    }

    /// Passes on one block; for drivers that give each its time.
    pub fn relay_one(&mut self) -> bool {
        let held = if self.can_relay() { self.merge() } else { None };
        match held {
            Some(held) => {
                self.deal(held);
                true
            }
            None => false,
        }
    }

    /// Passes on what can be passed on; says how many blocks.
    pub fn relay(&mut self) -> usize {
        debug_assert_eq!(self.settings.role, Role::Relay);
        let mut count = 0;
        while self.relay_one() {
            count += 1;
        }
        count
    }

    /// A block of an input at random.
    fn merge(&mut self) -> Option<Held<B>> {
        if self.ready.is_empty() {
            return None;
        }
        let at = self.merging.below(self.ready.len());
        let input = self.ready[at];
        let ready = &mut self.inputs[input].ready;
        let held = ready.pop_front();
        if ready.is_empty() {
            self.ready.swap_remove(at);
        }
        debug_assert!(held.is_some());
        held
    }

    /// Whether a block may be made here: there is a buffer, and the queue has space.
    #[must_use]
    pub fn may_make(&self) -> bool {
        !self.is_closed && self.own < self.own_max && self.queued < self.queue_max
    }

    /// The identity of the next block that is made.
    #[must_use]
    pub fn next_identity(&self) -> Identity {
        Identity {
            node: self.settings.node,
            // GROUPS_MAX fits.
            group: self.settings.group as u16,
            number: self.next_number,
        }
    }

    /// Deals a block made here, with [`Process::next_identity`].
    pub fn make(&mut self, header: Header, fingerprint: u128, key: u64, body: B) {
        debug_assert!(self.may_make() && header.identity == self.next_identity());
        self.next_number += 1;
        self.own += 1;
        self.deal(Held {
            header,
            fingerprint,
            key,
            body,
            input: None,
        });
    }

    /// Nothing more is made here.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    fn deal(&mut self, held: Held<B>) {
        let outputs = self.outputs.len();
        let at = self
            .settings
            .deal
            .output(outputs, held.key, &mut self.dealing);
        self.dealt.add(held.header.length, held.fingerprint);
        let output = &mut self.outputs[at];
        output.account.add(held.header.length, held.fingerprint);
        output.queue.push_back(held);
        self.queued += 1;
    }

    /// Credit of an output: all bytes that were ever granted.
    ///
    /// # Errors
    /// [`Violation::Revoked`].
    pub fn credit(
        &mut self,
        output: usize,
        granted: u64,
        on_demand: bool,
    ) -> Result<(), Violation> {
        let to = &mut self.outputs[output];
        let buffers = granted / self.settings.block as u64;
        if buffers < to.granted {
            return Err(Violation::Revoked);
        }
        to.has_asked &= buffers == to.granted;
        (to.granted, to.on_demand) = (buffers, on_demand);
        Ok(())
    }

    /// Whether the receiver of an output should be asked for credit now. `waits`: a block for it has not arrived only because
    /// it has none.
    pub fn poll_want(&mut self, output: usize, waits: bool) -> bool {
        let to = &mut self.outputs[output];
        let has_block = waits || !to.queue.is_empty();
        let asks = to.on_demand && !to.has_asked && has_block && !to.has_credit();
        to.has_asked |= asks;
        asks
    }

    /// Whether an output has a block and credit for it.
    #[must_use]
    pub fn can_send(&self, output: usize) -> bool {
        let to = &self.outputs[output];
        !to.queue.is_empty() && to.has_credit()
    }

    /// Whether a block that arrives now and goes to this output can be sent at once.
    #[must_use]
    pub fn can_pass(&self, output: usize) -> bool {
        self.queued == 0 && self.ready.is_empty() && self.outputs[output].has_credit()
    }

    /// The next block to be sent on an output. Give it to [`Process::release`] once it is written.
    pub fn next_send(&mut self, output: usize) -> Option<Held<B>> {
        if !self.can_send(output) {
            return None;
        }
        let to = &mut self.outputs[output];
        let held = to.queue.pop_front()?;
        to.used += 1;
        to.sending += 1;
        self.queued -= 1;
        Some(held)
    }

    /// A block that was sent is written; gives its buffer back.
    pub fn sent(&mut self, output: usize, held: Held<B>) -> B {
        self.outputs[output].sending -= 1;
        self.free(held)
    }

    /// A block that was taken is used; gives its buffer back.
    pub fn release(&mut self, held: Held<B>) -> B {
        self.taken -= 1;
        self.free(held)
    }

    fn free(&mut self, held: Held<B>) -> B {
        match held.input {
            Some(input) => self.grants.free(input),
            None => self.own -= 1,
        }
        held.body
    }

    /// What the end of an output counts, when it is due.
    pub fn poll_end(&mut self, output: usize) -> Option<(u64, u64)> {
        if !self.is_exhausted() {
            return None;
        }
        let to = &mut self.outputs[output];
        if to.has_ended || !to.queue.is_empty() || to.sending > 0 {
            return None;
        }
        to.has_ended = true;
        Some((to.account.blocks, to.account.bytes))
    }

    /// Whether nothing more will be dealt.
    fn is_exhausted(&self) -> bool {
        self.is_closed && self.has_drained()
    }

    /// Whether all inputs have ended and all of their blocks were passed on or used.
    #[must_use]
    pub fn has_drained(&self) -> bool {
        self.ready.is_empty() && self.taken == 0 && self.has_input_ended()
    }

    /// Whether everything is dealt and written, the ends too.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_exhausted() && self.outputs.iter().all(|output| output.has_ended)
    }

    /// Blocks received.
    #[must_use]
    pub fn received(&self) -> Account {
        self.received
    }

    /// Blocks dealt; of a sink none.
    #[must_use]
    pub fn dealt(&self) -> Account {
        self.dealt
    }

    /// Buffers in use: those of blocks received or made, and not released.
    #[must_use]
    pub fn held(&self) -> usize {
        let ready: usize = self.inputs.iter().map(|input| input.ready.len()).sum();
        let sending: usize = self.outputs.iter().map(|output| output.sending).sum();
        ready + self.taken + self.queued + sending
    }

    /// Why it cannot go on, when its driver has nothing to do.
    #[must_use]
    pub fn wait(&self) -> Wait {
        let is_sending = self.outputs.iter().any(|output| output.sending > 0);
        match self.settings.role {
            Role::Program if self.taken > 0 && self.may_make() => Wait::Work,
            Role::Source if self.may_make() => Wait::Work,
            Role::Sink if self.taken > 0 => Wait::Work,
            _ if self.queued > 0 || is_sending => Wait::Output,
            _ if !self.has_input_ended() => Wait::Input,
            // Only the ends of blocks are left to write.
            Role::Source | Role::Relay => Wait::Output,
            Role::Program | Role::Sink => Wait::Work,
        }
    }
}
