//! A wide-area link between two rails: rate, delay, drop-tail queue and loss, as a relay in user space.
//!
//! ```text
//!  hosts ── rail 0 ── router ─[trunk0]─┐    ┌─[trunk0]─ router ── rail 1 ── hosts
//!                               (TUN)  │    │  (TUN)
//!                                    one thread a direction:
//!                                 read ─▶ link model ─▶ write when due
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `spec` | the description; words of live changes |
//! | `link`, `loss`, `histogram` | pure: the link in virtual time, random loss, how late packets were |
//! | `relay`, `slots`, `mailbox`, `tun` | a direction's thread, its memory, how it is asked, its devices |
//! | `counters`, `validity` | what was counted, and whether the run counts |
//! | `control` | the same for other programs, over a socket |
//! | `plan` | routers, and which end serves which rail |
//! | `clusters` | ready-made topologies |
//!
//! Queue, rate and loss are exact whatever the machine is doing; delay is too long by how late the relay is, which
//! [`TrunkCounters`] report and [`Validity`] judges. Two cores carry about 1 Gbit/s at an MTU of 1500 with time left
//! for the programs under test.
//!
//! Non-goals: reordering, duplication, and paths over several trunks.

mod clusters;
mod control;
mod counters;
mod histogram;
mod link;
mod loss;
mod mailbox;
mod plan;
mod relay;
mod slots;
mod spec;
mod tun;
mod validity;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::LabError;

pub use clusters::ClusterSpec;
pub use control::{ask, serves};
pub use counters::{DirectionCounters, Lateness, TrunkCounters};
pub use link::{LinkCounters, Tally};
pub use loss::Loss;
pub use spec::{LinkSpec, Offload, QueueLimit, TrunkEnd, TrunkSpec};
pub use validity::{Validity, ValidityLimits};

pub(crate) use plan::{PlannedTrunk, expand};
pub(crate) use tun::create;

use control::Control;
use counters::RelayCounters;
use mailbox::{Mailbox, Request};
use relay::Relay;

/// A direction of a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From side A to side B.
    AToB,
    /// From side B to side A.
    BToA,
}

impl Direction {
    /// Both.
    pub const BOTH: [Direction; 2] = [Direction::AToB, Direction::BToA];

    fn index(self) -> usize {
        match self {
            Direction::AToB => 0,
            Direction::BToA => 1,
        }
    }
}

/// One end's TUN device, in the network of a router or host.
#[derive(Debug)]
pub(crate) struct Device {
    pub fd: OwnedFd,
    pub name: String,
    /// The `net/dev` file that counts what its kernel dropped.
    pub counts: PathBuf,
}

/// A running trunk: dropping it ends its threads and removes its devices.
///
/// A live change is a list of words: `rate=50Mbit` or `rate=unlimited`, `overhead=38` (bytes a packet), `delay=20ms`
/// (one way), `queue=50packets` or `queue=62500bytes`, `loss=1%` or `loss=1%/8` (in bursts of 8 packets),
/// `blackhole=on` or `blackhole=off`.
#[derive(Debug)]
pub struct Trunk {
    // First: it uses the others.
    control: Option<Control>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    spec: TrunkSpec,
    /// As they are now.
    links: Mutex<[LinkSpec; 2]>,
    mailboxes: [Arc<Mailbox>; 2],
    /// Name and `net/dev` file of each side's device.
    devices: [(String, PathBuf); 2],
    /// What the kernel had dropped, by direction, when counting began.
    dropped_before: Mutex<[u64; 2]>,
}

impl Trunk {
    pub(crate) fn start(spec: TrunkSpec, devices: [Device; 2]) -> Result<Trunk, LabError> {
        let mailbox = || {
            let mailbox = Mailbox::new().map_err(LabError::system("create an event descriptor"))?;
            Ok(Arc::new(mailbox))
        };
        let mailboxes = [mailbox()?, mailbox()?];
        let [a, b] = devices;
        let names = [(a.name, a.counts), (b.name, b.counts)];
        let (a, b) = (Arc::new(a.fd), Arc::new(b.fd));
        let shared = Arc::new(Shared {
            links: Mutex::new([spec.a_to_b.clone(), spec.b_to_a.clone()]),
            mailboxes,
            devices: names,
            dropped_before: Mutex::default(),
            spec,
        });
        // From here on a failure ends the threads by dropping the trunk.
        let mut trunk = Trunk {
            control: None,
            shared,
            threads: Vec::new(),
        };
        let shared = Arc::clone(&trunk.shared);
        for (direction, devices) in Direction::BOTH
            .into_iter()
            .zip([[Arc::clone(&a), Arc::clone(&b)], [b, a]])
        {
            let index = direction.index();
            // Both directions must not lose the same packets.
            let seed = shared.spec.seed.wrapping_mul(2).wrapping_add(index as u64);
            let link = &shared.links()[index];
            let mailbox = Arc::clone(&shared.mailboxes[index]);
            let relay = Relay::new(&shared.spec, link, seed, devices, mailbox);
            let thread = std::thread::Builder::new()
                .name(format!("trunk {direction:?}"))
                .spawn(move || relay.run());
            trunk
                .threads
                .push(thread.map_err(LabError::system("start a relay thread"))?);
        }
        *shared
            .dropped_before
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = shared.dropped()?;
        if let Some(name) = &shared.spec.control {
            trunk.control = Some(Control::start(name, Arc::clone(&shared))?);
        }
        Ok(trunk)
    }

    /// The description it was started from.
    #[must_use]
    pub fn spec(&self) -> &TrunkSpec {
        &self.shared.spec
    }

    /// A direction as it is now.
    #[must_use]
    pub fn link(&self, direction: Direction) -> LinkSpec {
        self.shared.links()[direction.index()].clone()
    }

    /// Changes directions by pairs such as `rate=50Mbit delay=20ms`; all pairs or none. In force on return.
    ///
    /// # Errors
    /// [`LabError::BadDescription`] for a wrong pair, [`LabError::System`] when the relay does not answer.
    pub fn change(&self, directions: &[Direction], words: &str) -> Result<(), LabError> {
        self.shared.change(directions, words)
    }

    /// What both directions have carried since the start, or since counting was reset.
    ///
    /// Each direction's numbers are of one moment. Costs a few microseconds of the relay's time.
    ///
    /// # Errors
    /// [`LabError::System`] when the relay does not answer, [`LabError::File`] when its network is gone.
    pub fn counters(&self) -> Result<TrunkCounters, LabError> {
        self.shared.counters()
    }

    /// Resets the counters; packets that the links hold are carried over.
    ///
    /// # Errors
    /// As [`counters`](Self::counters).
    pub fn reset_counters(&self) -> Result<(), LabError> {
        self.shared.reset_counters()
    }

    /// Whether what was counted is from a relay that kept up.
    ///
    /// # Errors
    /// As [`counters`](Self::counters).
    pub fn validity(&self) -> Result<Validity, LabError> {
        self.shared.validity()
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        self.control = None;
        for mailbox in &self.shared.mailboxes {
            mailbox.send(Request::Stop);
        }
        for thread in self.threads.drain(..) {
            // One that panicked has ended, too, and its panic was printed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn links(&self) -> std::sync::MutexGuard<'_, [LinkSpec; 2]> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, directions: &[Direction], words: &str) -> Result<(), LabError> {
        // Held until the change is in force, so that two changes cannot overtake each other.
        let mut links = self.links();
        let mut changed = links.clone();
        for direction in directions {
            for word in words.split_whitespace() {
                changed[direction.index()].apply(word)?;
            }
        }
        for direction in directions {
            let link = &changed[direction.index()];
            self.ask(*direction, |answer| {
                Request::Set(Box::new(link.clone()), answer)
            })?;
            links[direction.index()] = link.clone();
        }
        Ok(())
    }

    fn ask(
        &self,
        direction: Direction,
        request: impl FnOnce(std::sync::mpsc::Sender<RelayCounters>) -> Request,
    ) -> Result<RelayCounters, LabError> {
        self.mailboxes[direction.index()]
            .ask(request)
            .map_err(LabError::system("reach the trunk's relay"))
    }

    fn counters(&self) -> Result<TrunkCounters, LabError> {
        let relays = [
            self.ask(Direction::AToB, Request::Counters)?,
            self.ask(Direction::BToA, Request::Counters)?,
        ];
        let before = *self
            .dropped_before
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let dropped = self.dropped()?;
        let [a_to_b, b_to_a] = [0, 1].map(|index| {
            DirectionCounters::new(&relays[index], dropped[index].saturating_sub(before[index]))
        });
        Ok(TrunkCounters { a_to_b, b_to_a })
    }

    fn reset_counters(&self) -> Result<(), LabError> {
        let dropped = self.dropped()?;
        *self
            .dropped_before
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = dropped;
        for direction in Direction::BOTH {
            self.ask(direction, Request::Reset)?;
        }
        Ok(())
    }

    fn validity(&self) -> Result<Validity, LabError> {
        let limits = ValidityLimits::default();
        let tick = self.spec.tick_microseconds;
        Ok(Validity::of(&self.counters()?, &limits, tick))
    }

    /// What the kernel has dropped by direction: on the way to the device that is read, or from the one written.
    fn dropped(&self) -> Result<[u64; 2], LabError> {
        let [a, b] = [0, 1].map(|side| dropped(&self.devices[side].0, &self.devices[side].1));
        let ((a_received, a_sent), (b_received, b_sent)) = (a?, b?);
        Ok([a_sent + b_received, b_sent + a_received])
    }
}

/// Packets dropped by a device: received, then sent. What the relay writes is received by the device's network.
fn dropped(name: &str, counts: &PathBuf) -> Result<(u64, u64), LabError> {
    let failed = |cause| LabError::File {
        path: counts.clone(),
        cause,
    };
    let text = fs::read_to_string(counts).map_err(failed)?;
    let line = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    let fields: Vec<u64> = line
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // Eight columns of received, then eight of sent: bytes, packets, errors, dropped, ...
    match (fields.get(3), fields.get(11)) {
        (Some(&received), Some(&sent)) => Ok((received, sent)),
        _ => Err(failed(io::Error::other(format!("no line for {name}")))),
    }
}
