//! What is simulated.

use super::profile::Profile;
use super::report::Outcome;
use super::run::Run;
use super::tcp::FlavourName;
use super::topology::{Link, Routes, Topology};

/// Window that limits nothing: more packets than any run here sends.
pub const NO_WINDOW: u32 = 1 << 24;

/// Most connections of one run: some kilobytes each, with their part of the network.
pub const CONNECTIONS_MAX: u64 = 1 << 20;

/// Most samples of one run, 720 MB of them.
pub const SAMPLES_MAX: u64 = 10_000_000;

/// Most packets of one connection; numbers of packets fit 32 bits with room.
const PACKETS_MAX: u32 = 1 << 28;

/// One connection.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSpec {
    /// Sending node.
    pub from: usize,
    /// Receiving node.
    pub to: usize,
    /// Data packets, the SYN not counted.
    pub packets: u32,
    /// Congestion control.
    pub flavour: FlavourName,
    /// Before jitter.
    pub start_seconds: f64,
}

/// A run, completely.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The network.
    pub topology: Topology,
    /// The connections; those that start at the same time do so in this order.
    pub flows: Vec<FlowSpec>,
    /// TCP's parameters.
    pub profile: Profile,
    /// Bytes of a data packet, without what the profile adds.
    pub packet_bytes: u32,
    /// Greatest window in packets.
    pub window: u32,
    /// Slow start threshold at first.
    pub ssthresh: u32,
    /// Starts are put off by up to this, evenly spread.
    pub jitter_seconds: f64,
    /// Of everything random.
    pub seed: u64,
    /// End of the run.
    pub limit_seconds: f64,
    /// Samples of every connection this often.
    pub trace_seconds: Option<f64>,
}

/// Why a scenario cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(pub String);

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

impl Scenario {
    /// Runs it to the end of the last connection, or to the limit.
    ///
    /// Cost O(packets × hops × log(links + connections)).
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn run(&self) -> Result<Outcome, Invalid> {
        self.verify()?;
        Ok(Run::new(self)?.finish())
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// [`Invalid`] names the parameter that has no meaning, or the connection that has no way.
    pub fn verify(&self) -> Result<(), Invalid> {
        self.verify_connections()?;
        self.verify_tcp()?;
        self.verify_links()?;
        self.verify_samples()
    }

    /// Bytes of a data packet on the wire.
    pub(super) fn wire_bytes(&self) -> u32 {
        // Verified not to be more; what was not verified is a large packet, not a small one.
        self.packet_bytes.saturating_add(self.profile.header_bytes)
    }

    fn verify_tcp(&self) -> Result<(), Invalid> {
        let bad = |text: String| Err(Invalid(text));
        let profile = &self.profile;
        if self.packet_bytes == 0 || self.window == 0 {
            return bad("packets of 0 bytes or a window of 0 move nothing".into());
        }
        if self
            .packet_bytes
            .checked_add(profile.header_bytes)
            .is_none()
        {
            return bad(format!(
                "packets of {} bytes and {} of header: together {} bytes are possible",
                self.packet_bytes,
                profile.header_bytes,
                u32::MAX
            ));
        }
        if profile.initial_window == 0
            || profile.initial_window_after_loss == 0
            || profile.duplicate_acks == 0
            || profile.tick_seconds <= 0.0
        {
            return bad(
                "initial windows, the duplicate acknowledgements that mean a loss and the clock tick must be more than 0"
                    .into(),
            );
        }
        if profile.rto_min_seconds > profile.rto_max_seconds {
            return bad(format!(
                "a least retransmission timeout of {} s is above the greatest, {} s",
                profile.rto_min_seconds, profile.rto_max_seconds
            ));
        }
        Ok(())
    }

    fn verify_links(&self) -> Result<(), Invalid> {
        let bad = |text: String| Err(Invalid(text));
        for link in &self.topology.links {
            let (from, to) = (
                &self.topology.nodes[link.from],
                &self.topology.nodes[link.to],
            );
            if !link.bits_per_second.is_finite() || link.bits_per_second <= 0.0 || link.queue == 0 {
                return bad(format!(
                    "the link {from} to {to} needs a rate and a queue above 0"
                ));
            }
            if !(0.0..1.0).contains(&link.loss) {
                return bad(format!(
                    "the loss of link {from} to {to} must be at least 0 and below 1"
                ));
            }
        }
        Ok(())
    }

    fn verify_samples(&self) -> Result<(), Invalid> {
        let Some(every) = self.trace_seconds else {
            return Ok(());
        };
        // At the start, then as often as fits, and at the end.
        let samples = (self.limit_seconds / every + 2.0) * self.flows.len() as f64;
        // A time of 0 between samples makes infinitely many, or no number at all.
        if samples <= SAMPLES_MAX as f64 && every > 0.0 {
            return Ok(());
        }
        Err(Invalid(format!(
            "samples of {} connections every {every} s up to {} s are more than {SAMPLES_MAX}: sample less often, or end the run sooner",
            self.flows.len(),
            self.limit_seconds
        )))
    }

    fn verify_connections(&self) -> Result<(), Invalid> {
        let bad = |text: String| Err(Invalid(text));
        if self.flows.is_empty() {
            return bad("nothing to simulate: there is no connection".into());
        }
        if self.flows.len() as u64 > CONNECTIONS_MAX {
            return bad(format!(
                "{} connections are more than {CONNECTIONS_MAX}",
                self.flows.len()
            ));
        }
        if let Some(flow) = self
            .flows
            .iter()
            .find(|flow| !(1..=PACKETS_MAX).contains(&flow.packets))
        {
            return bad(format!(
                "a connection with {} packets: 1 to {PACKETS_MAX} are possible (more stripes than packets?)",
                flow.packets
            ));
        }
        self.verify_ways()
    }

    fn verify_ways(&self) -> Result<(), Invalid> {
        let mut routes = Routes::new(&self.topology);
        let mut last = None;
        for flow in &self.flows {
            let ends = (flow.from, flow.to);
            // Stripes between the same nodes are beside each other.
            if last.replace(ends) != Some(ends) {
                self.way(&mut routes, flow.from, flow.to)?;
                self.way(&mut routes, flow.to, flow.from)?;
            }
        }
        Ok(())
    }

    /// The links from a node to another.
    pub(super) fn way(
        &self,
        routes: &mut Routes<'_>,
        from: usize,
        to: usize,
    ) -> Result<Vec<u32>, Invalid> {
        let names = &self.topology.nodes;
        let way = routes.route(from, to).filter(|way| !way.is_empty());
        way.ok_or_else(|| Invalid(format!("no way from {} to {}", names[from], names[to])))
    }
}

/// Stripes of each node: how many of which flavour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripes(pub Vec<(FlavourName, u32)>);

/// The paper's network (Figure 2): source i - R1 - trunk - R2 - sink i.
#[derive(Clone, Debug, PartialEq)]
pub struct TwoClusters {
    /// Nodes of each side.
    pub nodes: u32,
    /// Of each node; its bytes are spread over them as PSockets does, in equal parts.
    pub stripes: Stripes,
    /// Rate of the trunk.
    pub bits_per_second: f64,
    /// Of the trunk, one way.
    pub latency_seconds: f64,
    /// Packets in each queue of the trunk.
    pub queue: usize,
    /// Probability that the trunk loses a packet on its way to the receivers.
    pub loss: f64,
    /// Rate between node and router.
    pub access_bits_per_second: f64,
    /// Between node and router, one way.
    pub access_latency_seconds: f64,
    /// Packets in each queue of an access link, the sending node's own included.
    pub access_queue: usize,
    /// Bytes that each node sends, in packets of `packet_bytes`, the last one full.
    pub bytes_per_node: u64,
}

impl Default for TwoClusters {
    /// The paper's Table 1, with one stripe of one node over 100 Mbit/s and 20 ms.
    fn default() -> Self {
        Self {
            nodes: 1,
            stripes: Stripes(vec![(FlavourName::Reno, 1)]),
            bits_per_second: 100e6,
            latency_seconds: 0.02,
            queue: 50,
            loss: 0.0,
            access_bits_per_second: 100e6,
            access_latency_seconds: 0.0001,
            access_queue: 50,
            bytes_per_node: 8_000_000,
        }
    }
}

impl TwoClusters {
    /// The scenario with the paper's other parameters (Table 1) and this profile.
    #[must_use]
    pub fn scenario(&self, profile: Profile) -> Scenario {
        self.scenario_of(profile, 1000)
    }

    /// The scenario with packets of `packet_bytes`.
    #[must_use]
    pub fn scenario_of(&self, profile: Profile, packet_bytes: u32) -> Scenario {
        let mut topology = Topology::default();
        let (left, right) = (topology.node("R1"), topology.node("R2"));
        topology.duplex(Link {
            from: left,
            to: right,
            bits_per_second: self.bits_per_second,
            latency_seconds: self.latency_seconds,
            queue: self.queue,
            loss: self.loss,
        });
        let access = |from, to| Link {
            from,
            to,
            bits_per_second: self.access_bits_per_second,
            latency_seconds: self.access_latency_seconds,
            queue: self.access_queue,
            loss: 0.0,
        };
        let packets = self.bytes_per_node.div_ceil(u64::from(packet_bytes.max(1)));
        let stripes: u64 = self
            .stripes
            .0
            .iter()
            .map(|(_, many)| u64::from(*many))
            .sum();
        let mut flows = Vec::new();
        for node in 0..self.nodes {
            let from = topology.add(format!("source {node}"));
            let to = topology.add(format!("sink {node}"));
            topology.duplex(access(from, left));
            topology.duplex(access(right, to));
            let flavours = self
                .stripes
                .0
                .iter()
                .flat_map(|&(flavour, many)| (0..many).map(move |_| flavour));
            for (stripe, flavour) in (0_u64..).zip(flavours) {
                // The first ones carry one packet more.
                let part = packets / stripes + u64::from(stripe < packets % stripes);
                flows.push(FlowSpec {
                    from,
                    to,
                    packets: u32::try_from(part).unwrap_or(u32::MAX),
                    flavour,
                    start_seconds: 0.0,
                });
            }
        }
        Scenario {
            topology,
            flows,
            profile,
            packet_bytes,
            window: 64,
            ssthresh: 64,
            jitter_seconds: 0.0,
            seed: 1,
            limit_seconds: 100.0,
            trace_seconds: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl Fn(&mut Scenario)) -> String {
        let mut scenario = TwoClusters::default().scenario(Profile::default());
        assert_eq!(scenario.verify(), Ok(()));
        change(&mut scenario);
        let refused = scenario.verify().expect_err("a scenario without meaning");
        assert_eq!(scenario.run(), Err(refused.clone()));
        refused.0
    }

    /// Sizes that do not fit, timeouts that contradict each other, samples without end and runs without measure are
    /// refused before anything is simulated.
    #[test]
    fn refusals() {
        let large = refused(|s| (s.packet_bytes, s.profile.header_bytes) = (u32::MAX, 2));
        assert!(
            large.contains("4294967295 bytes and 2 of header"),
            "{large}"
        );
        let rto = refused(|s| (s.profile.rto_min_seconds, s.profile.rto_max_seconds) = (90.0, 1.0));
        assert!(rto.contains("90 s is above the greatest, 1 s"), "{rto}");
        for every in [1e-9, 0.0, f64::NAN] {
            let samples = refused(|s| s.trace_seconds = Some(every));
            assert!(samples.contains("sample less often"), "{samples}");
        }
        let none = refused(|s| (s.trace_seconds, s.limit_seconds) = (Some(0.0), 0.0));
        assert!(none.contains("sample less often"), "{none}");
        let flow = TwoClusters::default().scenario(Profile::default()).flows[0].clone();
        let many = refused(|s| s.flows = vec![flow.clone(); CONNECTIONS_MAX as usize + 1]);
        assert!(many.contains("connections are more than"), "{many}");
        let apart = refused(|s| s.topology.links.truncate(0));
        assert!(apart.contains("no way from source 0 to sink 0"), "{apart}");
    }
}
