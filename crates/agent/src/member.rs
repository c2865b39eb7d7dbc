//! This node as a member of one transfer: its number and keys, its clock, its line to the master, and the connections that it
//! keeps.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_lane::preface::{MacKey, PREFACE_LEN, Preface};
use ropewalk_lane::seal::{PairSecret, derive};
use ropewalk_lane::{Stopper, tls};
use ropewalk_model::time;
use ropewalk_proto::control::{self, FromAgent, Peer, Same, Verify, from_agent, route};
use ropewalk_store::{Adopt, Check, Contents, Dest, Filter, Keep, Stays, StoreError, Wish};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use crate::awaited::AwaitedEnds;
use crate::comparing::Comparing;
use crate::host::{Host, Work};
use crate::hung::{CALL_TIME_MAX, Calls};
use crate::interfaces::Interface;
use crate::joined::{Joined, each_max};
use crate::open;
use crate::pool::{CARRIERS_MAX, Pool, READY_MAX};
use crate::streams::DataSocket;
use crate::tunnel::Tunnel;
use crate::waits::Waits;
use crate::{AgentError, usage};

/// Streams one peer may join over the life of a transfer; bounds the memory of used nonces (32 bytes each).
const JOINS_MAX: usize = 1 << 16;

/// A peer that has done the pair handshake.
struct Pair {
    secret: PairSecret,
    join_key: MacKey,
    used: HashSet<[u8; 32]>,
}

/// See the module documentation.
pub(crate) struct Member {
    /// Of the transfer.
    pub id: [u8; 16],
    pub node: u32,
    /// Of the node, for what is said of it.
    pub name: String,
    pub options: control::Options,
    /// Which entries of trees are part of the copy.
    pub filter: Filter,
    /// Interfaces of this host that carry data; whether others must not; whether more than one rail to a peer may be used.
    pub interfaces: Vec<Interface>,
    pub is_restricted: bool,
    pub one_rail: bool,
    pub preface_key: MacKey,
    pub pair_server: Arc<rustls::ServerConfig>,
    pub pair_client: Arc<rustls::ClientConfig>,
    began: Instant,
    began_usage: control::Usage,
    pairs: Mutex<HashMap<u32, Pair>>,
    stoppers: Mutex<HashMap<u64, Stopper>>,
    next_stopper: AtomicU64,
    /// Streams that peers have open to this node.
    pub joined: Arc<Joined>,
    pub stopped: AtomicBool,
    /// The same, for tasks that wait for it.
    pub ended: watch::Sender<bool>,
    /// Connections that senders have made to this node, and receivers that this node keeps one ready for.
    pub pool: Pool,
    pub dialled: Mutex<HashSet<u32>>,
    pub work: Work,
    /// Through the master, where this agent has a pipe to it; whether that is on this host; connections that it made.
    pub tunnel: Option<Arc<Tunnel>>,
    pub is_near_master: bool,
    pub carriers: Pool,
    /// How far it is in comparing contents.
    pub comparing: Comparing,
    /// Earlier transfers that it waits for.
    pub awaited_ends: AwaitedEnds,
    /// Reads of sources by its own threads, where the sender is an agent of this process.
    pub reads: Arc<Calls>,
    /// How its threads spend their time.
    pub waits: Arc<Waits>,
    outbox: UnboundedSender<FromAgent>,
}

impl Member {
    /// As the master says; data goes over these interfaces.
    pub fn new(
        open: &control::Open,
        credentials: &control::Credentials,
        interfaces: Vec<Interface>,
        host: &Host,
        outbox: UnboundedSender<FromAgent>,
    ) -> Result<Self, AgentError> {
        let id = <[u8; 16]>::try_from(open.transfer.as_slice()).map_err(|_| {
            AgentError::Refused(
                "the transfer's id is not 16 bytes; this is a fault of the master".into(),
            )
        })?;
        let identity = tls::Identity {
            certificate: credentials.certificate.clone(),
            seed: credentials.seed.clone(),
        };
        let options = open.options.unwrap_or_default();
        Ok(Self {
            id,
            node: open.node,
            name: open.name.clone(),
            joined: Joined::at_most(each_max(&options, open.one_rail, open.sources.len())),
            options,
            filter: open::filter(&open.filter)?,
            interfaces,
            is_restricted: !open.rails.is_empty(),
            one_rail: open.one_rail,
            preface_key: tls::transfer_key(&credentials.secret),
            pair_server: tls::pair_server(&identity, &credentials.authority)?,
            pair_client: tls::pair_client(&identity, &credentials.authority)?,
            began: Instant::now(),
            began_usage: usage::now(),
            pairs: Mutex::default(),
            stoppers: Mutex::default(),
            next_stopper: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            pool: Pool::of(READY_MAX),
            dialled: Mutex::default(),
            work: host.work.clone(),
            tunnel: host.tunnel.get().cloned(),
            is_near_master: open.is_near_master,
            carriers: Pool::of(CARRIERS_MAX),
            comparing: Comparing::default(),
            awaited_ends: AwaitedEnds::default(),
            reads: Arc::new(Calls::new()),
            waits: Arc::default(),
            outbox,
        })
    }

    /// Waits for an earlier transfer to a destination that is about to end, at most [`ending_wait`].
    ///
    /// * `id`: of this transfer, as in its temporary name.
    ///
    /// # Errors
    /// As [`ropewalk_store::await_endings`]; nothing for a path that cannot be looked at, as the sink says what is wrong with it.
    pub fn await_endings(&self, path: &Path, id: &str) -> Result<(), StoreError> {
        let most = ending_wait(self.options.ending_wait_seconds);
        let wait = self.awaited_ends.of(path);
        // This is asked while there is something to wait for.
        let is_over = || {
            wait.note();
            self.has_ended()
        };
        match ropewalk_store::await_endings(path, id, most, &is_over) {
            Err(error @ (StoreError::StillEnding { .. } | StoreError::Ended)) => Err(error),
            _ => Ok(()),
        }
    }

    /// What is taken over of an earlier transfer's bytes.
    pub fn adopt(&self) -> Adopt {
        match self.options.verify() {
            Verify::Sink => Adopt::Hashed,
            _ if self.options.verify_kept => Adopt::Hashed,
            _ => Adopt::All,
        }
    }

    /// What lists of files have of each entry.
    pub fn keep(&self) -> Keep {
        open::keep(&self.options)
    }

    /// What is done with what is there.
    ///
    /// * `contents`: of the sources.
    pub fn wish<'a>(&self, contents: &'a dyn Contents) -> Wish<'a> {
        Wish {
            adopt: self.adopt(),
            verifies: self.options.verify_kept,
            stays: self.stays(),
            names_early: false,
            check: self.check(),
            delta: self.options.delta,
            contents: Some(contents),
        }
    }

    /// Where a tree is written.
    ///
    /// * `mirrors`: the copy removes what no source has.
    pub fn dest<'a>(&'a self, path: &'a Path, mirrors: bool) -> Dest<'a> {
        let dest = match mirrors {
            true => Dest::mirror(path, &self.filter),
            false => path.into(),
        };
        match self.options.all_or_nothing {
            true => dest.whole(),
            false => dest,
        }
    }

    /// When a file of the destination is the same as the source's.
    pub fn check(&self) -> Check {
        match self.options.same() {
            Same::Contents => Check::Contents,
            Same::Kept | Same::Sent => Check::Time,
        }
    }

    /// Which files of the destination stay though they are not the same.
    pub fn stays(&self) -> Stays {
        match self.options.stays() {
            control::Stays::Same => Stays::Same,
            control::Stays::Newer => Stays::Newer,
            control::Stays::Existing => Stays::Existing,
        }
    }

    /// Time since the transfer was opened, the zero of all its clocks.
    pub fn now(&self) -> time::Instant {
        time::Instant::after(self.began.elapsed())
    }

    /// Whether it has been stopped, at whatever end.
    pub fn has_ended(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Stops every stream, and whatever asks whether it has ended.
    pub fn end(&self) {
        self.stopped.store(true, Ordering::Release);
        self.ended.send_replace(true);
        for (_, stopper) in self.stoppers.lock().drain() {
            stopper.stop();
        }
        self.pairs.lock().clear();
    }

    pub fn send(&self, body: from_agent::Body) {
        let _ = self.outbox.send(FromAgent { body: Some(body) });
    }

    /// A peer finished its handshake: streams sealed with `secret` may join.
    pub fn add_pair(&self, node: u32, secret: PairSecret) {
        let join_key = MacKey::new(&derive(&secret.0, "join", b""));
        self.pairs.lock().insert(
            node,
            Pair {
                secret,
                join_key,
                used: HashSet::new(),
            },
        );
    }

    /// Checks a join preface; a nonce is good once, so a replayed preface gets nothing.
    pub fn admit(
        &self,
        node: u32,
        bytes: &[u8; PREFACE_LEN],
        head: &Preface,
    ) -> Option<PairSecret> {
        let mut pairs = self.pairs.lock();
        let pair = pairs.get_mut(&node)?;
        if !Preface::verify(bytes, &pair.join_key)
            || pair.used.len() >= JOINS_MAX
            || !pair.used.insert(head.nonce)
        {
            return None;
        }
        Some(pair.secret.clone())
    }

    /// Keeps a stream's stopper until the stream ends; see [`Member::forget`].
    pub fn remember(&self, stopper: Stopper) -> u64 {
        let key = self.next_stopper.fetch_add(1, Ordering::Relaxed);
        self.stoppers.lock().insert(key, stopper.clone());
        // Stopping may have happened in between.
        if self.stopped.load(Ordering::Acquire) {
            stopper.stop();
        }
        key
    }

    pub fn forget(&self, key: u64) {
        self.stoppers.lock().remove(&key);
    }

    /// Asks a sender to connect to this node and takes its first connection.
    pub fn ask(&self, sender: u32) -> Result<DataSocket, String> {
        self.pool.expect(sender);
        self.send(from_agent::Body::Route(control::Route {
            node: sender,
            step: Some(route::Step::Dial(Peer::default())),
        }));
        self.pool.take(&self.stopped, (sender, 0))
    }

    /// Has the master connect to this node and to a sender, and takes the connection.
    pub fn carry(&self, sender: u32) -> Result<DataSocket, String> {
        self.carriers.expect(sender);
        self.send(from_agent::Body::Route(control::Route {
            node: sender,
            step: Some(route::Step::Carry(true)),
        }));
        self.carriers.take(&self.stopped, (sender, 0))
    }

    /// What the disk of a source has not done for too long that threads of this node read, in words; `None` as a rule.
    pub fn hung(&self, now: Instant) -> Option<String> {
        let what = self.reads.hung(now, || "a source on this host".into())?;
        Some(format!(
            "{what} have not finished for {} s: its disk, or the server of its file system, does not answer; the \
             transfer goes on when it does",
            CALL_TIME_MAX.as_secs()
        ))
    }

    /// Processor time since the transfer was opened, and the largest memory of the process.
    pub fn usage(&self) -> control::Usage {
        let now = usage::now();
        control::Usage {
            processor: now.processor.saturating_sub(self.began_usage.processor),
            ..now
        }
    }
}

/// How long an earlier transfer is waited for that is about to end: as long as the user has hosts waited for, in seconds, and not less than by default, as it only syncs
/// and renames what it has.
fn ending_wait(given: Option<u64>) -> Duration {
    let given = given.map(Duration::from_secs);
    given.unwrap_or_default().max(ropewalk_store::ENDING_WAIT)
}

#[cfg(test)]
impl Member {
    /// A node that knows no peer, and what it tells its master.
    pub(crate) fn alone() -> (Arc<Self>, tokio::sync::mpsc::UnboundedReceiver<FromAgent>) {
        let authority = tls::Authority::new().unwrap();
        let identity = authority.issue(0).unwrap();
        let credentials = control::Credentials {
            certificate: identity.certificate,
            seed: identity.seed,
            secret: vec![0; 32],
            authority: authority.public_key().to_vec(),
        };
        let open = control::Open {
            transfer: vec![7; 16],
            name: "alone".into(),
            ..control::Open::default()
        };
        let (outbox, said) = tokio::sync::mpsc::unbounded_channel();
        let member = Self::new(&open, &credentials, Vec::new(), &Host::alone(), outbox).unwrap();
        (Arc::new(member), said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source whose disk does not answer is named, and no more once it has answered.
    #[test]
    fn a_source_that_does_not_answer_is_named() {
        let (member, _said) = Member::alone();
        let hung = || member.hung(Instant::now() + CALL_TIME_MAX);
        assert_eq!(hung(), None);
        let words = member.reads.carry_out("reads of", None, hung);
        let begin = "reads of a source on this host have not finished for 60 s";
        assert!(words.is_some_and(|words| words.starts_with(begin)));
        assert_eq!(hung(), None);
    }

    /// The wait for an earlier transfer is never shorter than by default.
    #[test]
    fn ends_are_waited_for_long_enough() {
        let [short, long] = [0, 300].map(|seconds| ending_wait(Some(seconds)));
        assert_eq!(ending_wait(None), ropewalk_store::ENDING_WAIT);
        assert_eq!(short, ropewalk_store::ENDING_WAIT);
        assert_eq!(long, Duration::from_secs(300));
        assert_eq!(ending_wait(Some(u64::MAX)).as_secs(), u64::MAX);
    }
}
