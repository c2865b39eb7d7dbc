//! The driver's ends of all control connections: a writer and a reader task for each node.

use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::preface;
use ropewalk_lane::tls::{Authority, TlsError};
use ropewalk_proto::control::{self, FromAgent, ToAgent, to_agent};
use ropewalk_proto::report::ControlReport;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;

use crate::link::{Link, LinkWriter};
use crate::members::Party;
use crate::reach::{Reached, Started};
use crate::tunnels::Tunnels;
use crate::wire::{Carried, Meter};

/// What last messages may take to leave when everything ends.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Messages that are due at once are joined up to so many bytes.
const TOGETHER_MAX: usize = 64 << 10;

/// What comes to the driver from elsewhere.
pub(crate) enum Input {
    /// A node says something, in so many bytes.
    Message(u32, Box<FromAgent>, usize),
    /// A node's connection broke.
    Lost(u32, String),
    /// Nodes that want to join were reached, or not.
    Reached(Party, Result<Vec<Reached>, String>),
}

/// Connections in order of node number; they only grow.
pub(crate) struct Connections {
    outboxes: Vec<UnboundedSender<Vec<u8>>>,
    inputs: UnboundedSender<Input>,
    // Agents that are being reached, and tunnels between nodes.
    tasks: JoinSet<()>,
    readers: JoinSet<()>,
    writers: JoinSet<()>,
    started: Vec<Started>,
    tunnels: Tunnels,
    meters: Vec<Arc<Meter>>,
}

impl Connections {
    /// No connection yet; the receiver is where everything comes in.
    pub fn new() -> (Self, UnboundedReceiver<Input>) {
        let (inputs, received) = mpsc::unbounded_channel();
        let connections = Self {
            outboxes: Vec::new(),
            inputs,
            tasks: JoinSet::new(),
            readers: JoinSet::new(),
            writers: JoinSet::new(),
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
            way,
            started,
            requests,
        } = reached;
        let number = self.count();
        self.tunnels.add(way);
        if let Some(requests) = requests {
            let tunnels = self.tunnels.clone();
            self.tasks.spawn(tunnels.serve(number, requests));
        }
        let (outbox, outgoing) = mpsc::unbounded_channel();
        self.outboxes.push(outbox);
        self.started.extend(started);
        let Link {
            mut reader,
            writer,
            meter,
        } = link;
        self.meters.extend(meter);
        let inputs = self.inputs.clone();
        self.writers.spawn(write_all(writer, outgoing));
        self.readers.spawn(async move {
            loop {
                let (input, is_last) = match reader.read().await {
                    Ok((message, bytes)) => {
                        (Input::Message(number, Box::new(message), bytes), false)
                    }
                    Err(reason) => (Input::Lost(number, reason), true),
                };
                if inputs.send(input).is_err() || is_last {
                    return;
                }
            }
        });
    }

    /// Adds to the account what went through pipes.
    pub fn account(&self, report: &mut ControlReport) {
        report.pipe_bytes = self.tunnels.piped();
        report.bridged_bytes = self.tunnels.bridged();
    }

    /// Sends an encoded message to a node.
    pub fn send(&self, node: u32, bytes: Vec<u8>) {
        // A closed outbox means a lost node, which its reader reports.
        let _ = self.outboxes[node as usize].send(bytes);
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
        self.outboxes.clear();
        let _ = tokio::time::timeout(LAST_WORDS, async {
            while self.writers.join_next().await.is_some() {}
            // Agents close their ends in turn.
            while self.readers.join_next().await.is_some() {}
        })
        .await;
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

async fn write_all(mut writer: LinkWriter, mut outgoing: UnboundedReceiver<Vec<u8>>) {
    while let Some(mut bytes) = outgoing.recv().await {
        // What waits already leaves in the same packets.
        while bytes.len() < TOGETHER_MAX
            && let Ok(more) = outgoing.try_recv()
        {
            bytes.extend_from_slice(&more);
        }
        if writer.write(&bytes).await.is_err() {
            return;
        }
    }
    writer.close().await;
}

/// Makes what the nodes of one transfer know each other by; kept for those that join later.
pub(crate) struct Issuer {
    authority: Authority,
    secret: [u8; 32],
}

impl Issuer {
    pub fn new() -> Result<Self, TlsError> {
        Ok(Self {
            authority: Authority::new()?,
            secret: preface::random_bytes(),
        })
    }

    /// Credentials of the node with this number.
    pub fn credentials(&self, node: u32) -> Result<ToAgent, TlsError> {
        let identity = self.authority.issue(node)?;
        let credentials = control::Credentials {
            certificate: identity.certificate,
            private_key: identity.private_key,
            authority: self.authority.public_key().to_vec(),
            secret: self.secret.to_vec(),
        };
        Ok(ToAgent {
            body: Some(to_agent::Body::Credentials(credentials)),
        })
    }
}
