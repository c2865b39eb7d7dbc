//! The packet simulator as the tuner's adviser, and as its test bed.

use ropewalk_tuner::{Answer, Limits, NodeCounters, Policy, Question, Situation, Tuner};

pub use ropewalk_tuner::Setting;

use super::live::{Live, idle};
use super::profile::Profile;
use super::scenario::{Invalid, Scenario, Stripes, TwoClusters};
use super::tcp::FlavourName;

/// Bytes of headers of a segment.
const HEADER_BYTES: f64 = 40.0;

/// Queue of a host's own interface, in packets: what Linux sets.
const HOST_QUEUE: usize = 1000;

/// Access of nodes that did not tell, or the path's rate where that is more: no bottleneck.
const ACCESS_UNKNOWN: f64 = 125e6;

/// A candidate is looked at for so many round trips ...
const TRIPS: f64 = 60.0;

/// ... within these bounds, of which the first third does not count: slow start.
const SECONDS: (f64, f64) = (5.0, 15.0);

/// Less than so many round trips, or seconds, that count say nothing: such a situation is too large to be simulated.
const TRIPS_MIN: f64 = 12.0;

/// See [`TRIPS_MIN`].
const SECONDS_MIN: f64 = 1.5;

/// Packets of one connection at most; no candidate gets that far.
const PACKETS: u32 = 1 << 22;

/// TCP as hosts have it today: ns-2.35's generation with the initial window of RFC 6928.
#[must_use]
pub fn profile() -> Profile {
    let newest = Profile::named("ns-2.35").unwrap_or_default();
    Profile {
        initial_window: 10,
        ..newest
    }
}

/// The situation as two clusters; loss by chance below one in 10^5 is none.
#[must_use]
pub fn clusters(situation: &Situation) -> TwoClusters {
    let wire = (situation.segment_bytes + HEADER_BYTES) / situation.segment_bytes * 8.0;
    let access_latency_seconds = situation.rtt_seconds / 2000.0;
    TwoClusters {
        nodes: situation.nodes,
        stripes: Stripes(Vec::new()),
        bits_per_second: situation.rate * wire,
        latency_seconds: situation.rtt_seconds / 2.0 - 2.0 * access_latency_seconds,
        queue: (situation.queue as usize).max(2),
        loss: match situation.loss < 1e-5 {
            true => 0.0,
            false => situation.loss.min(0.5),
        },
        access_bits_per_second: situation
            .access
            .unwrap_or(ACCESS_UNKNOWN.max(situation.rate))
            * wire,
        access_latency_seconds,
        access_queue: HOST_QUEUE,
        bytes_per_node: 0,
    }
}

/// Simulates what was asked for, at most about `events_max` events in all: 5 to 10 million of them a second.
///
/// # Errors
/// [`Invalid`] for a situation that has no meaning.
pub fn answer(question: &Question, events_max: u64) -> Result<Answer, Invalid> {
    let situation = &question.situation;
    let net = clusters(situation);
    let window = situation.window.max(1.0) as u32;
    let scenario = idle(&net, profile(), situation.segment_bytes as u32, window);
    let each = events_max / question.settings.len().max(1) as u64;
    let shares = question.settings.iter().map(|setting| {
        share(&scenario, situation, *setting, each).map(|rate| rate / situation.rate)
    });
    Ok(Answer {
        shares: shares.collect::<Result<Vec<_>, _>>()?,
        question: question.clone(),
    })
}

// Payload a second with this setting, after slow start.
fn share(
    scenario: &Scenario,
    situation: &Situation,
    setting: Setting,
    events_max: u64,
) -> Result<f64, Invalid> {
    let mut live = Live::new(scenario, situation.nodes, FlavourName::Cubic, PACKETS)?;
    live.set(setting.nodes, setting.streams)?;
    let seconds = (TRIPS * situation.rtt_seconds).clamp(SECONDS.0, SECONDS.1);
    let tick = seconds / 30.0;
    let mut from = (0.0, 0);
    while live.seconds() < seconds && live.events() < events_max {
        live.advance(tick);
        if live.seconds() <= seconds / 3.0 && live.events() < events_max / 3 {
            from = (live.seconds(), live.acknowledged());
        }
    }
    let passed = live.seconds() - from.0;
    if passed < (TRIPS_MIN * situation.rtt_seconds).max(SECONDS_MIN) {
        return Err(Invalid(format!(
            "{:.0} Mbit/s are too many packets to be simulated in {events_max} events",
            situation.rate * 8.0 / 1e6
        )));
    }
    let packets = (live.acknowledged() - from.1) as f64;
    Ok(packets * situation.segment_bytes / passed.max(tick))
}

/// A transfer of `packets` packets that all nodes share, as the tuner's test bed.
#[derive(Clone, Debug)]
pub struct Bed {
    /// The network; its stripes and bytes do not count.
    pub net: TwoClusters,
    /// Congestion control of all streams.
    pub flavour: FlavourName,
    /// Payload of a packet.
    pub packet_bytes: u32,
    /// Greatest window in packets.
    pub window: u32,
    /// Of the whole transfer.
    pub packets: u64,
}

/// How a transfer on the bed went.
#[derive(Clone, Debug, PartialEq)]
pub struct Went {
    /// Until every packet was acknowledged, or the limit.
    pub seconds: f64,
    /// Part of the packets that were sent again.
    pub repeated: f64,
    /// Settings and when they were chosen.
    pub steps: Vec<(f64, Setting)>,
}

/// Between two looks at the streams, as of a transfer's statuses.
const LOOK_SECONDS: f64 = 0.1;

/// Events of a simulation beside the transfer.
pub const EVENTS_MAX: u64 = 20_000_000;

impl Bed {
    fn scenario(&self) -> Scenario {
        idle(&self.net, profile(), self.packet_bytes, self.window)
    }

    /// With one setting throughout; gives up at `limit_seconds`.
    ///
    /// # Errors
    /// [`Invalid`] for a network that has no meaning.
    pub fn fixed(&self, setting: Setting, limit_seconds: f64) -> Result<Went, Invalid> {
        self.run(setting, limit_seconds, |_, _| Ok(None))
    }

    /// Tuned by a policy, from a cold start. Nothing is known of the trunk; nodes know their access.
    ///
    /// # Errors
    /// [`Invalid`] for a network that has no meaning.
    pub fn tuned(
        &self,
        policy: Box<dyn Policy + Send>,
        streams_max: u32,
        limit_seconds: f64,
    ) -> Result<Went, Invalid> {
        let payload = f64::from(self.packet_bytes);
        let share = payload / (payload + HEADER_BYTES);
        let limits = Limits {
            nodes: self.net.nodes,
            streams: streams_max,
            trunk: None,
            access: Some(self.net.access_bits_per_second / 8.0 * share),
        };
        let mut tuner = Tuner::new(policy, limits);
        self.run(tuner.setting(), limit_seconds, |live, now| {
            let nodes: Vec<NodeCounters> = (0..self.net.nodes)
                .map(|node| self.look(live, node))
                .collect();
            let setting = tuner.observe(&nodes, (now * 1e9) as u64);
            // The answer is there at the next look.
            if let Some(question) = tuner.poll_question()
                && let Ok(answer) = answer(&question, EVENTS_MAX)
            {
                tuner.handle_answer(&answer);
            }
            Ok(setting)
        })
    }

    fn look(&self, live: &Live<'_>, node: u32) -> NodeCounters {
        let seen = live.counters(node);
        NodeCounters {
            streams: seen.streams,
            bytes: seen.acknowledged * u64::from(self.packet_bytes),
            segments: seen.sent,
            repeated: seen.retransmitted,
            rtt_seconds: seen.round_trip_seconds,
            rtt_seconds_min: 0.0,
            window_max: f64::from(self.window),
            segment_bytes: f64::from(self.packet_bytes),
        }
    }

    fn run(
        &self,
        first: Setting,
        limit_seconds: f64,
        mut look: impl FnMut(&Live<'_>, f64) -> Result<Option<Setting>, Invalid>,
    ) -> Result<Went, Invalid> {
        let scenario = self.scenario();
        let most = u32::try_from(self.packets).unwrap_or(u32::MAX);
        let mut live = Live::new(&scenario, self.net.nodes, self.flavour, most)?;
        live.set(first.nodes, first.streams)?;
        let mut steps = vec![(0.0, first)];
        let mut before = 0;
        let seconds = loop {
            live.advance(LOOK_SECONDS);
            let now = live.acknowledged();
            if now >= self.packets {
                // Somewhere within the last look.
                let part = (self.packets - before) as f64 / (now - before).max(1) as f64;
                break live.seconds() - LOOK_SECONDS * (1.0 - part);
            }
            before = now;
            if live.seconds() >= limit_seconds {
                break limit_seconds;
            }
            if let Some(setting) = look(&live, live.seconds())? {
                live.set(setting.nodes, setting.streams)?;
                steps.push((live.seconds(), setting));
            }
        };
        let (mut sent, mut again) = (0, 0);
        for node in 0..self.net.nodes {
            let counters = live.counters(node);
            sent += counters.sent;
            again += counters.retransmitted;
        }
        Ok(Went {
            seconds,
            repeated: again as f64 / sent.max(1) as f64,
            steps,
        })
    }
}
