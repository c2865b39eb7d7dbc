//! The transfer specification file of CEP Figure 2.
//!
//! ```text
//! id "My Data File"
//! # Node Type  Host:Port          Data URI              Offset in file        Start-End Range
//! master       localhost:55555
//! writer       node1:55553        "file:///data/half1"  0                     0-1023
//! reader       node5:55557        "file:///tmp/copy1"   0                     0-1023  down=1Gbit/s
//! ```
//!
//! * Ranges are inclusive, `A-B`, or `A+LENGTH` where the length may carry a unit (`0+4GiB`).
//! * `#` outside quotes starts a comment, anywhere on a line. Quotes hide spaces and `#`; there are no
//!   escapes inside them. In `file://` URIs, `%23` and its like are bytes; a plain absolute path is
//!   taken as it is.
//! * Several rows with one Host:Port are one node: what it has or wants is the union of its rows.
//! * Files of one name on several writers are replicas and put equal bytes at equal offsets. A reader, or a
//!   shared destination, takes each byte once: a second copy on one host needs an agent of its own.
//! * The range is followed by fields `key=value`, an extension that leaves the paper's files valid: `up=RATE` and
//!   `down=RATE` (the node's speed; `up` of a reader is what it could hand on with), `dest=NAME` (readers that share one destination), `interface=NAME`
//!   (one that the node may use, by name, address or network; several may be given).
//! * Rows `cap FROM TO RATE` and `trunk NAME RATE from NODES to NODES`, an extension too, say what pairs of nodes, and links
//!   that several pairs share, carry in that direction: plans and bounds follow them. Nodes are written as in other rows,
//!   host lists such as `a[1-4]:7420,b:7420` name several, and a host without a port for all nodes on it.
//!
//! The file keeps the paper's words writer and reader. Left out on purpose: tokens and secrets; a
//! specification file may be mailed about.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::link::{Link, NodeSet, add_links};
use crate::problem::{Problem, Receiver, Sender};
use crate::range::Range;
use crate::units::ByteRate;

mod address;
mod error;
mod lex;
mod links;
mod parse;
mod uri;
mod validate;

pub use address::{AddressError, HostPort, is_host};
pub use error::{SpecError, SpecErrors};
pub use uri::{FilePath, Uri, UriError, is_buffer_name};

/// What a specification file says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransferSpec {
    /// A label for people; not unique.
    pub id: Option<String>,
    /// Where a master service may answer.
    pub master: Option<HostPort>,
    /// The writer and reader rows, in the order written.
    pub rows: Vec<Row>,
    /// The cap and trunk rows, in the order written.
    pub links: Vec<Link>,
}

/// Which side a row is on, in the paper's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Has data: a sender.
    Writer,
    /// Wants data: a receiver.
    Reader,
}

/// One range of one object on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Whether the node has or wants the bytes.
    pub role: Role,
    /// The agent to talk to; rows of one role with equal addresses are one node.
    pub host_port: HostPort,
    /// Where the bytes lie on that node.
    pub uri: Uri,
    /// Position in the object of the first byte of `range`.
    pub file_offset: u64,
    /// The bytes of the data space; may be empty.
    pub range: Range,
    /// What the row says about its node beyond the paper's columns.
    pub hints: Hints,
    /// Line in the file, from 1; 0 for rows that are not from a file.
    pub line: u32,
}

/// The `key=value` words of a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hints {
    /// Declared total sending speed of the node.
    pub up: Option<ByteRate>,
    /// Declared total receiving speed of the node.
    pub down: Option<ByteRate>,
    /// Shared destination that the node's rows belong to; readers only.
    pub destination: Option<String>,
    /// Interfaces to use, in the order written; empty means any.
    pub interfaces: Vec<String>,
}

/// The rows of one role and address: one sender or one receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecNode {
    /// Which side it is on.
    pub role: Role,
    /// Its address.
    pub host_port: HostPort,
    /// Positions in [`TransferSpec::rows`], ascending.
    pub rows: Vec<usize>,
    /// The hints of its rows together; rows of one node agree, which parsing checks.
    pub hints: Hints,
}

impl Row {
    /// Position in the object of a byte of the data space; `None` outside the row.
    #[must_use]
    pub fn local_offset(&self, offset: u64) -> Option<u64> {
        let inside = self.range.contains(offset);
        inside.then(|| self.file_offset.checked_add(offset - self.range.start))?
    }
}

impl TransferSpec {
    /// Reads a specification file and checks that it makes sense as a whole.
    ///
    /// # Errors
    /// All errors found, up to a limit, each with its place; see [`SpecErrors::render`].
    pub fn parse(text: &str) -> Result<Self, SpecErrors> {
        parse::parse(text, parse::Scope::Transfer)
    }

    /// Reads rows that are added to a transfer: writers, readers or both, without `id` and `master`.
    ///
    /// # Errors
    /// As [`TransferSpec::parse`]; what the rows and the transfer say together is not looked at.
    pub fn parse_added(text: &str) -> Result<Self, SpecErrors> {
        parse::parse(text, parse::Scope::Added)
    }

    /// Checks rows that are missing from text, as [`TransferSpec::parse`] does.
    ///
    /// # Errors
    /// All contradictions found. Places refer to the text of [`TransferSpec::format`].
    pub fn validate(&self) -> Result<(), SpecErrors> {
        parse::parse(&self.format(), parse::Scope::Transfer).map(|_| ())
    }

    /// The nodes of one role, in order of their first row.
    #[must_use]
    pub fn nodes(&self, role: Role) -> Vec<SpecNode> {
        let mut index: HashMap<&HostPort, usize> = HashMap::new();
        let mut nodes: Vec<SpecNode> = Vec::new();
        for (position, row) in self.rows.iter().enumerate().filter(|(_, r)| r.role == role) {
            let at = *index.entry(&row.host_port).or_insert(nodes.len());
            if at == nodes.len() {
                nodes.push(SpecNode {
                    role,
                    host_port: row.host_port.clone(),
                    rows: Vec::new(),
                    hints: Hints::default(),
                });
            }
            nodes[at].rows.push(position);
            nodes[at].hints.merge(&row.hints);
        }
        nodes
    }

    /// The planner's input, senders and receivers in the order of [`TransferSpec::nodes`].
    ///
    /// A node whose rows declare no speed gets `speed`; plans depend only on the ratios of speeds, so any
    /// one value above 0 will do when none is known.
    ///
    /// A reader hands bytes on at its `up`, else at its `down`: links are taken to be symmetrical. Where a writer has the
    /// same address, the uplink is the writer's, and the reader hands nothing on.
    #[must_use]
    pub fn to_problem(&self, speed: ByteRate) -> Problem {
        let writers = self.rows.iter().filter(|row| row.role == Role::Writer);
        let writers: HashSet<&HostPort> = writers.map(|row| &row.host_port).collect();
        let ranges = |node: &SpecNode| node.rows.iter().map(|&row| self.rows[row].range).collect();
        let senders = self.nodes(Role::Writer).into_iter().map(|node| Sender {
            name: node.host_port.to_string(),
            up: node.hints.up.unwrap_or(speed).0,
            ranges: ranges(&node),
        });
        let receivers = self.nodes(Role::Reader).into_iter().map(|node| Receiver {
            name: node.host_port.to_string(),
            down: node.hints.down.unwrap_or(speed).0,
            ranges: ranges(&node),
            relay_up: (!writers.contains(&node.host_port))
                .then(|| node.hints.up.or(node.hints.down).unwrap_or(speed).0),
            destination: node.hints.destination,
        });
        let mut problem = Problem {
            senders: senders.collect(),
            receivers: receivers.collect(),
            ..Problem::default()
        };
        add_links(&mut problem, &self.links, |link, _| link.rate.0);
        problem
    }

    /// The specification as text that parses back to the same rows.
    ///
    /// A label, destination or interface name cannot hold quotes or control characters in the file, so these
    /// become `'` and spaces.
    #[must_use]
    pub fn format(&self) -> String {
        self.to_string()
    }
}

impl Hints {
    fn merge(&mut self, other: &Self) {
        self.up = self.up.or(other.up);
        self.down = self.down.or(other.down);
        if self.destination.is_none() {
            self.destination.clone_from(&other.destination);
        }
        for interface in &other.interfaces {
            if !self.interfaces.contains(interface) {
                self.interfaces.push(interface.clone());
            }
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Writer => "writer",
            Self::Reader => "reader",
        })
    }
}

impl fmt::Display for TransferSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = &self.id {
            writeln!(f, "id \"{}\"", quotable(id))?;
        }
        if let Some(master) = &self.master {
            writeln!(f, "master {master}")?;
        }
        for row in &self.rows {
            write!(f, "{} {} \"{}\" ", row.role, row.host_port, row.uri)?;
            write!(f, "{} ", row.file_offset)?;
            match row.range.is_empty() {
                true => write!(f, "{}+0", row.range.start)?,
                false => write!(f, "{}-{}", row.range.start, row.range.end - 1)?,
            }
            row.hints.format(f)?;
            writeln!(f)?;
        }
        for link in &self.links {
            let nodes = |set: &NodeSet| {
                let hosts = set.hosts.iter().map(|host| match host.contains(':') {
                    true => format!("[{host}]"),
                    false => host.clone(),
                });
                let all: Vec<String> = set.nodes.iter().cloned().chain(hosts).collect();
                all.join(",")
            };
            let (from, to, rate) = (nodes(&link.from), nodes(&link.to), link.rate.0);
            match &link.trunk {
                Some(name) => {
                    writeln!(
                        f,
                        "trunk \"{}\" {rate}B/s from {from} to {to}",
                        quotable(name)
                    )?;
                }
                None => writeln!(f, "cap {from} {to} {rate}B/s")?,
            }
        }
        Ok(())
    }
}

impl Hints {
    fn format(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Bytes per second as they are: the printed form for people is rounded.
        if let Some(up) = self.up {
            write!(f, " up={}B/s", up.0)?;
        }
        if let Some(down) = self.down {
            write!(f, " down={}B/s", down.0)?;
        }
        if let Some(destination) = &self.destination {
            write!(f, " dest=\"{}\"", quotable(destination))?;
        }
        for interface in &self.interfaces {
            write!(f, " interface=\"{}\"", quotable(interface))?;
        }
        Ok(())
    }
}

fn quotable(text: &str) -> String {
    let swap = |letter: char| match letter {
        '"' => '\'',
        letter if letter.is_control() => ' ',
        letter => letter,
    };
    text.chars().map(swap).collect()
}

#[cfg(test)]
mod tests;
