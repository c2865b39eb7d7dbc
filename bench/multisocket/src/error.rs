//! Why a test did not end.

use std::io;

use serde_json::{Value, json};

use crate::options::Shape;

/// Why a test ended without a report. Nothing is retried: a lost connection spoils the measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MultisocketError {
    /// Arguments that cannot be meant.
    #[error("{0}")]
    Misuse(String),
    /// The system lets this process open too few sockets.
    #[error(
        "{connections} connections need {needed} open files, but the system allows this process {limit}; raise that \
         (`ulimit -n {needed}`), or give fewer with -c or -n"
    )]
    Descriptors {
        /// Connections that were asked for.
        connections: u32,
        /// Open files that they take.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// A name that is not known, or an address that this machine cannot use.
    #[error("cannot use the address {address}: {source}")]
    Address {
        /// As it was given.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The receiver cannot listen.
    #[error("cannot listen on {place}: {source}{}", listen_advice(.place, .source))]
    Listen {
        /// Where.
        place: String,
        /// What the system says.
        source: io::Error,
    },
    /// Nobody listens where the sender connects to.
    #[error(
        "cannot connect to {place} within {seconds} s: {source}; start the receiver there (multisocket -r), or give \
         more time with --wait"
    )]
    Connect {
        /// Where.
        place: String,
        /// How long it was tried.
        seconds: u64,
        /// Why the last attempt failed.
        source: io::Error,
    },
    /// What listens there is no multisocket receiver, or sends nothing.
    #[error("{place} does not answer as a multisocket receiver does: {why}")]
    Foreign {
        /// Where.
        place: String,
        /// What it did instead.
        why: &'static str,
    },
    /// The two sides were started with different numbers.
    #[error("sender and receiver differ: {}; give both the same", differences(.sender, .receiver))]
    Differs {
        /// What the sender was told.
        sender: Shape,
        /// What the receiver was told.
        receiver: Shape,
    },
    /// The receiver is about to receive from another sender.
    #[error("the receiver at {place} has another sender; try again when it is done")]
    Busy {
        /// Where.
        place: String,
    },
    /// The other side speaks another version of the protocol.
    #[error(
        "the receiver at {place} speaks version {theirs}, this sender {ours}; use the same program on both sides"
    )]
    Version {
        /// Where.
        place: String,
        /// The receiver's version.
        theirs: u32,
        /// This side's version.
        ours: u32,
    },
    /// No sender connected.
    #[error("no sender connected within {seconds} s; give more time with --wait")]
    NobodyCame {
        /// How long the receiver waited.
        seconds: u64,
    },
    /// A sender connected, but not with all of its connections.
    #[error("only {came} of {expected} connections arrived within {seconds} s of the first")]
    Incomplete {
        /// Connections that came.
        came: usize,
        /// Connections that both sides were told of.
        expected: u32,
        /// How long the receiver waited after the first.
        seconds: u64,
    },
    /// A connection broke, or was closed early.
    #[error("lost connection {index} of {connections} after {moved} of {expected} bytes: {source}")]
    Lost {
        /// Which, from 0.
        index: u32,
        /// How many there are.
        connections: u32,
        /// Bytes that this side had sent or received over it.
        moved: u64,
        /// Bytes that should have crossed.
        expected: u64,
        /// What the system says.
        source: io::Error,
    },
    /// The receiver confirmed another number of bytes than were sent.
    #[error("the receiver has {confirmed} of the {sent} bytes sent over connection {index}")]
    Count {
        /// Which, from 0.
        index: u32,
        /// Bytes sent.
        sent: u64,
        /// Bytes confirmed.
        confirmed: u64,
    },
    /// Nothing moved for too long.
    #[error(
        "no byte moved for {seconds} s with {open} connections still open; connection {index} is one of them"
    )]
    Silent {
        /// How long it was waited.
        seconds: u64,
        /// Connections of the waiting thread that are not done.
        open: usize,
        /// The first of them.
        index: u32,
    },
    /// A signal ended the test.
    #[error("interrupted")]
    Interrupted,
    /// The system refused something that should always work.
    #[error("{doing} failed: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

fn listen_advice(place: &str, source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse if place.starts_with("unix:/") => {
            "; remove the file if no receiver uses it"
        }
        io::ErrorKind::AddrInUse => "; another receiver runs there, or give another port with -p",
        _ => "",
    }
}

/// Flags with both values, where they differ.
fn differences(sender: &Shape, receiver: &Shape) -> String {
    let flags = [
        (
            "-c",
            u64::from(sender.connections_per_port),
            u64::from(receiver.connections_per_port),
        ),
        ("-n", sender.ports.into(), receiver.ports.into()),
        ("-b", sender.block_len, receiver.block_len),
        ("-B", sender.blocks, receiver.blocks),
    ];
    let unlike = flags
        .iter()
        .filter(|(_, sender, receiver)| sender != receiver);
    let texts: Vec<String> = unlike
        .map(|(flag, sender, receiver)| {
            format!("the sender has {flag} {sender}, the receiver {flag} {receiver}")
        })
        .collect();
    texts.join(", ")
}

/// Makes an error of the system ours.
pub(crate) fn system(doing: &'static str) -> impl Fn(io::Error) -> MultisocketError {
    move |source| MultisocketError::System { doing, source }
}

impl MultisocketError {
    /// Exit status of a program that ends with this.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Misuse(_) => 2,
            Self::Differs { .. } | Self::Busy { .. } | Self::Version { .. } => 4,
            Self::Interrupted => 130,
            _ => 1,
        }
    }

    /// What `--json` prints instead of a report.
    pub fn json(&self) -> Value {
        json!({"error": self.to_string(), "exit_status": self.exit_status()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what differs is named, with the values of both sides.
    #[test]
    fn differing_flags() {
        let sender = Shape {
            connections_per_port: 4,
            ports: 1,
            block_len: 4096,
            blocks: 7,
        };
        let receiver = Shape {
            block_len: 65536,
            ports: 2,
            ..sender
        };
        let error = MultisocketError::Differs { sender, receiver };
        assert_eq!(
            error.to_string(),
            "sender and receiver differ: the sender has -n 1, the receiver -n 2, the sender has -b 4096, the receiver \
             -b 65536; give both the same"
        );
        assert_eq!(error.exit_status(), 4);
        assert_eq!(error.json()["exit_status"], 4);
    }
}
