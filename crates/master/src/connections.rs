//! The driver's ends of all control connections: a task for each node.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ropewalk_lane::preface;
use ropewalk_lane::tls::{self, Authority, TlsError};
use ropewalk_proto::control::{self, FromAgent, ToAgent, to_agent};
use ropewalk_proto::report::ControlReport;
use ropewalk_proto::silence::BEAT_TIME;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::link::{LinkReader, LinkWriter};
use crate::members::{MembersError, Party};
use crate::reach::{Reached, Started};
use crate::tunnels::{Pass, Tunnels};
use crate::wire::{Carried, Meter};

/// What last messages may take to leave when everything ends.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// A node at the other end of a pipe hears something at least this often.
const BEAT: Duration = Duration::from_nanos(BEAT_TIME.0);

/// Encoded bytes of messages of one node that wait for the driver; longer ones wait alone. Further ones stay in the connection, and fill it: what a
/// node sends while a plan is made takes a bounded part of the memory.
const QUEUED_MAX: u32 = 4 << 20;

/// What a message takes besides, in these bytes.
const MESSAGE_COST: usize = 512;

/// What comes to the driver from elsewhere.
pub(crate) enum Input {
    /// A node says something, in so many bytes; its place among those that wait.
    Message(u32, Box<FromAgent>, usize, OwnedSemaphorePermit),
    /// A node's connection broke.
    Lost(u32, String),
    /// A receiver asked for a connection to a sender through this process, and has none for this reason.
    Uncarried {
        receiver: u32,
        sender: u32,
        why: String,
    },
    /// Nodes that want to join were reached, or not.
    Reached(Party, Result<Vec<Reached>, MembersError>),
}

/// Connections in order of node number; they only grow.
pub(crate) struct Connections {
    outboxes: Vec<Arc<Outbox>>,
    // Nodes with messages that wait for a flush; some twice.
    waiting: Vec<u32>,
    inputs: UnboundedSender<Input>,
    // Agents that are being reached, and tunnels between nodes.
    tasks: JoinSet<()>,
    links: JoinSet<()>,
    started: Vec<Started>,
    tunnels: Tunnels,
    meters: Vec<Arc<Meter>>,
}

impl Connections {
    /// No connection yet; the receiver is where everything arrives.
    pub fn new() -> (Self, UnboundedReceiver<Input>) {
        let (inputs, received) = mpsc::unbounded_channel();
        let connections = Self {
            outboxes: Vec::new(),
            waiting: Vec::new(),
            inputs,
            tasks: JoinSet::new(),
            links: JoinSet::new(),
            started: Vec::new(),
            tunnels: Tunnels::default(),
            meters: Vec::new(),
        };
        (connections, received)
    }

    /// How many there are, which is the number of the next one.
    pub fn count(&self) -> u32 {
        self.outboxes.len() as u32
    }

    /// Takes over the connection of the next node.
    pub fn add(&mut self, reached: Reached) {
        let Reached {
            link,
            at: _,
            way,
            started,
            requests,
            uploaded: _,
        } = reached;
        let number = self.count();
        let is_piped = requests.is_some();
        self.tunnels.add(way);
        if let Some(requests) = requests {
            let tunnels = self.tunnels.clone();
            self.tasks.spawn(tunnels.serve(number, requests));
        }
        let outbox = Arc::new(Outbox::default());
        self.outboxes.push(outbox.clone());
        self.started.extend(started);
        self.meters.extend(link.meter);
        let reading = read_all(link.reader, number, self.inputs.clone(), outbox.clone());
        let writing = write_all(link.writer, outbox, is_piped);
        self.links.spawn(async move {
            tokio::join!(reading, writing);
        });
    }

    /// Connects a receiver that waits at its port to a sender.
    pub fn carry(&mut self, receiver: u32, sender: u32, pass: Pass) {
        let (tunnels, inputs) = (self.tunnels.clone(), self.inputs.clone());
        self.tasks.spawn(async move {
            if let Err(error) = tunnels.carry(receiver, sender, &pass).await {
                let why = error.to_string();
                let _ = inputs.send(Input::Uncarried {
                    receiver,
                    sender,
                    why,
                });
            }
        });
    }

    /// Adds to the account what went through pipes.
    pub fn account(&self, report: &mut ControlReport) {
        report.pipe_bytes = self.tunnels.piped();
        report.bridged_bytes = self.tunnels.bridged();
    }

    /// Takes a message to a node; it leaves at the next flush.
    pub fn send(&mut self, node: u32, message: &ToAgent) -> usize {
        self.waiting.push(node);
        self.outboxes[node as usize].add(message)
    }

    /// Messages leave, those to one node together.
    pub fn flush(&mut self) {
        for node in self.waiting.drain(..) {
            self.outboxes[node as usize].ready.notify_one();
        }
        // Thousands wait at the start only.
        self.waiting.shrink_to(0);
    }

    /// Does something that ends in an input, without keeping the driver waiting.
    pub fn spawn(&mut self, work: impl Future<Output = Input> + Send + 'static) {
        let inputs = self.inputs.clone();
        self.tasks.spawn(async move {
            let _ = inputs.send(work.await);
        });
    }

    /// Last messages leave, connections close, started agents go. Says what the connections carried from first to last.
    pub async fn close(mut self) -> Carried {
        self.flush();
        let _ = tokio::time::timeout(LAST_WORDS, async {
            // Agents end their connections after their last word; this side ends with them.
            while self.links.join_next().await.is_some() {}
        })
        .await;
        self.links.abort_all();
        self.tasks.abort_all();
        leave_all(self.started).await;
        let mut carried = Carried::default();
        for meter in &self.meters {
            carried += meter.carried();
        }
        carried
    }
}

/// Ends agents that this process started.
pub(crate) async fn leave_all(started: impl IntoIterator<Item = Started>) {
    let mut leaving = JoinSet::new();
    for child in started {
        leaving.spawn(child.leave());
    }
    while leaving.join_next().await.is_some() {}
}

/// What is to be sent to a node.
#[derive(Default)]
struct Outbox {
    waiting: Mutex<Vec<u8>>,
    is_over: AtomicBool,
    ready: Notify,
}

impl Outbox {
    /// Gives the length of the message as it is sent.
    fn add(&self, message: &ToAgent) -> usize {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Of a lost node, which its reader reports, nothing is kept.
        let before = waiting.len();
        control::encode_into(&mut waiting, message);
        let length = waiting.len() - before;
        if self.is_over.load(Relaxed) {
            waiting.clear();
        }
        length
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nothing more is sent.
    fn end(&self) {
        self.is_over.store(true, Relaxed);
        self.ready.notify_one();
    }
}

async fn read_all(
    mut reader: LinkReader,
    number: u32,
    inputs: UnboundedSender<Input>,
    outbox: Arc<Outbox>,
) {
    let places = Arc::new(Semaphore::new(QUEUED_MAX as usize));
    loop {
        let (input, is_last) = match reader.read().await {
            Ok((message, bytes)) => {
                let length = u32::try_from(bytes + MESSAGE_COST).unwrap_or(QUEUED_MAX);
                let place = places.clone().acquire_many_owned(length.min(QUEUED_MAX));
                // It is never closed.
                let Ok(place) = place.await else { return };
                (Input::Message(number, message, bytes, place), false)
            }
            Err(error) => (Input::Lost(number, error.to_string()), true),
        };
        if inputs.send(input).is_err() || is_last {
            return outbox.end();
        }
    }
}

async fn write_all(mut writer: LinkWriter, outbox: Arc<Outbox>, is_piped: bool) {
    loop {
        let ready = outbox.ready.notified();
        let is_beat = match is_piped {
            true => tokio::time::timeout(BEAT, ready).await.is_err(),
            // The kernel answers for this host.
            false => {
                ready.await;
                false
            }
        };
        let mut bytes = outbox.take();
        if is_beat && bytes.is_empty() {
            control::encode_into(&mut bytes, &ToAgent { body: None });
        }
        if !bytes.is_empty() && writer.write(&bytes).await.is_err() {
            return;
        }
        if outbox.is_over.load(Relaxed) {
            return writer.close().await;
        }
    }
}

/// Makes what the nodes of one transfer know each other by; kept for those that join later.
pub(crate) struct Issuer {
    transfer: [u8; 16],
    authority: Authority,
    secret: [u8; 32],
}

impl Issuer {
    pub fn new(transfer: [u8; 16]) -> Result<Self, TlsError> {
        Ok(Self {
            transfer,
            authority: Authority::new()?,
            secret: preface::random_bytes(),
        })
    }

    /// What a connection of this transfer is known by at an agent's port.
    pub fn pass(&self) -> Pass {
        Pass {
            transfer: self.transfer,
            key: tls::transfer_key(&self.secret),
        }
    }

    /// Credentials of the node with this number.
    pub fn credentials(&self, node: u32) -> Result<ToAgent, TlsError> {
        let identity = self.authority.issue(node)?;
        let credentials = control::Credentials {
            certificate: identity.certificate,
            seed: identity.seed,
            authority: self.authority.public_key().to_vec(),
            secret: self.secret.to_vec(),
        };
        Ok(ToAgent {
            body: Some(to_agent::Body::Credentials(credentials)),
        })
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::control::{Listed, Listing, from_agent};
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::link::Link;

    /// While the driver takes nothing, what a node sends stays in its connection; then all of it is received.
    #[tokio::test]
    async fn what_waits_for_the_driver_is_bounded() {
        const MESSAGES: usize = 40;
        let entry = Listed {
            path: vec![b'x'; 1 << 20],
            ..Listed::default()
        };
        let message = FromAgent {
            body: Some(from_agent::Body::Listing(Listing {
                entries: vec![entry],
            })),
        };
        let mut bytes = Vec::new();
        control::encode_into(&mut bytes, &message);
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let (inputs, mut received) = mpsc::unbounded_channel();
        let reader = Link::of(ours).reader;
        tokio::spawn(read_all(reader, 3, inputs, Arc::default()));
        let writing = tokio::spawn(async move {
            for _ in 0..MESSAGES {
                theirs.write_all(&bytes).await.unwrap();
            }
            theirs
        });
        // Far more turns than it takes.
        for _ in 0..20_000 {
            tokio::task::yield_now().await;
        }
        assert!((1..=4).contains(&received.len()), "{}", received.len());
        for _ in 0..MESSAGES {
            let input = received.recv().await;
            assert!(matches!(input, Some(Input::Message(3, ..))));
        }
        writing.await.unwrap();
    }
}
