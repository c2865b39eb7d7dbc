//! A run whose connections are opened and closed while it goes on, and share one store of packets: what a mover does that
//! pulls fragments over a changing number of streams.

use super::profile::Profile;
use super::run::Run;
use super::scenario::{FlowSpec, Invalid, Scenario, TwoClusters};
use super::tcp::FlavourName;

/// What a node's streams did so far, those that are closed included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Streams that take new packets.
    pub streams: u32,
    /// Packets acknowledged.
    pub acknowledged: u64,
    /// Packets sent, repeated ones included.
    pub sent: u64,
    /// Packets sent again.
    pub retransmitted: u64,
    /// Mean over the open streams of their last round trips; 0 before the first.
    pub round_trip_seconds: f64,
    /// Mean window of the open streams, in packets.
    pub window: f64,
}

/// A scenario that `Live` can run: the two clusters without connections.
#[must_use]
pub fn idle(net: &TwoClusters, profile: Profile, packet_bytes: u32, window: u32) -> Scenario {
    let mut scenario = net.scenario_of(profile, packet_bytes);
    scenario.flows.clear();
    scenario.window = window;
    scenario.ssthresh = window;
    scenario
}

/// Source and sink, and the streams between them with whether they are open.
#[derive(Debug)]
struct Node {
    from: usize,
    to: usize,
    streams: Vec<(u32, bool)>,
}

/// A run under way between two clusters.
#[derive(Debug)]
pub struct Live<'s> {
    run: Run<'s>,
    nodes: Vec<Node>,
    flavour: FlavourName,
    packets: u32,
    seconds: f64,
}

impl<'s> Live<'s> {
    /// Nothing is open yet. `scenario` is that of [`idle`] for `nodes` nodes; one stream carries at most `packets`.
    ///
    /// # Errors
    /// [`Invalid`] for a scenario that cannot be run.
    pub fn new(
        scenario: &'s Scenario,
        nodes: u32,
        flavour: FlavourName,
        packets: u32,
    ) -> Result<Self, Invalid> {
        let place = |name: String| {
            let known = scenario
                .topology
                .nodes
                .iter()
                .position(|node| *node == name);
            known.ok_or_else(|| Invalid(format!("the scenario has no {name}")))
        };
        let ends = (0..nodes).map(|node| {
            Ok(Node {
                from: place(format!("source {node}"))?,
                to: place(format!("sink {node}"))?,
                streams: Vec::new(),
            })
        });
        let nodes = ends.collect::<Result<Vec<_>, Invalid>>()?;
        Ok(Self {
            run: Run::new(scenario)?,
            nodes,
            flavour,
            packets,
            seconds: 0.0,
        })
    }

    /// Now.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Deliveries of packets and expired timers so far: the cost of the run.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.run.handled()
    }

    /// Opens or closes streams until each of the first `nodes` nodes has `streams` of them, the others none.
    ///
    /// # Errors
    /// [`Invalid`] where a node has no way to its sink.
    pub fn set(&mut self, nodes: u32, streams: u32) -> Result<(), Invalid> {
        for (node, state) in (0_u32..).zip(&mut self.nodes) {
            let open = &mut state.streams;
            let wanted = if node < nodes { streams as usize } else { 0 };
            let have = open.iter().filter(|(_, is_open)| *is_open).count();
            for _ in have..wanted {
                let spec = FlowSpec {
                    from: state.from,
                    to: state.to,
                    packets: self.packets,
                    flavour: self.flavour,
                    start_seconds: self.seconds,
                };
                open.push((self.run.add(&spec, self.seconds)?, true));
            }
            let newest = open.iter_mut().rev().filter(|(_, is_open)| *is_open);
            for (flow, is_open) in newest.take(have.saturating_sub(wanted)) {
                self.run.close(*flow);
                *is_open = false;
            }
        }
        Ok(())
    }

    /// Lets this much time pass.
    pub fn advance(&mut self, seconds: f64) {
        self.seconds += seconds;
        self.run.advance(self.seconds);
    }

    /// Packets acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        let flows = self.nodes.iter().flat_map(|node| &node.streams);
        flows
            .map(|(flow, _)| self.run.core(*flow).acked.max(0) as u64)
            .sum()
    }

    /// What a node's streams did.
    #[must_use]
    pub fn counters(&self, node: u32) -> Counters {
        let mut all = Counters::default();
        let mut timed = 0.0;
        for &(flow, is_open) in &self.nodes[node as usize].streams {
            let core = self.run.core(flow);
            all.acknowledged += core.acked.max(0) as u64;
            all.sent += core.sent;
            all.retransmitted += core.retransmitted;
            if is_open {
                all.streams += 1;
                all.window += core.window() as f64;
                if core.round_trip > 0.0 {
                    all.round_trip_seconds += core.round_trip;
                    timed += 1.0;
                }
            }
        }
        all.round_trip_seconds /= f64::max(timed, 1.0);
        all.window /= f64::from(all.streams.max(1));
        all
    }
}
