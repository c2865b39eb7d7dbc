//! The points of a sweep: every combination of the values given.

use anyhow::{Result, bail};
use ropewalk_tcp_sim::{
    CONNECTIONS_MAX, FlowSpec, NO_WINDOW, Profile, Scenario, Topology, TwoClusters,
};
use serde_json::{Map, Value, json};

use super::SimArgs;
use super::values::{Mix, Values};

/// One combination.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub net: TwoClusters,
    pub packet_bytes: u32,
    profile_name: String,
    profile: Profile,
    mix: Mix,
    stripes: Option<u64>,
    window: u64,
    ssthresh: Option<u64>,
    jitter_seconds: f64,
    seed: u64,
    limit_seconds: f64,
    is_from_file: bool,
}

impl Point {
    /// The paper's network with this point's parameters.
    pub fn scenario(&self) -> Scenario {
        let scenario = self
            .net
            .scenario_of(self.profile.clone(), self.packet_bytes);
        self.with_run(scenario)
    }

    /// Another network with this point's parameters.
    pub fn with_network(&self, topology: Topology, flows: Vec<FlowSpec>) -> Scenario {
        self.with_run(Scenario {
            topology,
            flows,
            ..self
                .net
                .scenario_of(self.profile.clone(), self.packet_bytes)
        })
    }

    fn with_run(&self, scenario: Scenario) -> Scenario {
        let packets = |count: u64| match count {
            0 => NO_WINDOW,
            count => u32::try_from(count).unwrap_or(NO_WINDOW).min(NO_WINDOW),
        };
        Scenario {
            window: packets(self.window),
            ssthresh: packets(self.ssthresh.unwrap_or(self.window)),
            jitter_seconds: self.jitter_seconds,
            seed: self.seed,
            limit_seconds: self.limit_seconds,
            ..scenario
        }
    }

    /// Stripes of a node.
    fn stripes(&self) -> u64 {
        self.net
            .stripes
            .0
            .iter()
            .map(|(_, many)| u64::from(*many))
            .sum()
    }

    /// All parameters under their names, in the order of the help text.
    pub fn parameters(&self) -> Map<String, Value> {
        let net = &self.net;
        let profile = &self.profile;
        let of_network = json!({
            "nodes": net.nodes,
            "stripes": self.stripes(),
            "bandwidth_bits_per_second": net.bits_per_second,
            "latency_seconds": net.latency_seconds,
            "queue_packets": net.queue,
            "loss": net.loss,
            "access_bandwidth_bits_per_second": net.access_bits_per_second,
            "access_latency_seconds": net.access_latency_seconds,
            "access_queue_packets": net.access_queue,
            "flavour": self.mix.to_string(),
            "bytes_per_node": net.bytes_per_node,
        });
        let of_all = json!({
            "profile": self.profile_name,
            "window_packets": self.window,
            "ssthresh_packets": self.ssthresh.unwrap_or(self.window),
            "packet_bytes": self.packet_bytes,
            "header_bytes": profile.header_bytes,
            "ack_bytes": profile.ack_bytes,
            "initial_window_packets": profile.initial_window,
            "initial_window_after_loss_packets": profile.initial_window_after_loss,
            "duplicate_acks": profile.duplicate_acks,
            "go_back_n": profile.go_back_n,
            "rto_min_seconds": profile.rto_min_seconds,
            "rto_max_seconds": profile.rto_max_seconds,
            "rto_initial_seconds": profile.rto_initial_seconds,
            "rto_rule": profile.rto_rule.name(),
            "tick_seconds": profile.tick_seconds,
            "limited_transmit": profile.limited_transmit,
            "whole_windows": profile.whole_windows,
            "delayed_ack_seconds": profile.delayed_ack_seconds,
            "jitter_seconds": self.jitter_seconds,
            "seed": self.seed,
            "limit_seconds": self.limit_seconds,
        });
        let mut all = Map::new();
        let parts = [(of_network, !self.is_from_file), (of_all, true)];
        for (part, is_meant) in parts {
            if let (Value::Object(part), true) = (part, is_meant) {
                all.extend(part);
            }
        }
        all
    }
}

struct Points {
    points: Vec<Point>,
    max: usize,
}

impl Points {
    fn vary<T>(&mut self, values: &[T], set: impl Fn(&mut Point, &T)) -> Result<()> {
        if self.points.len().saturating_mul(values.len()) > self.max {
            bail!("that is more than {} runs; give fewer values", self.max);
        }
        let old = std::mem::take(&mut self.points);
        for point in old {
            for value in values {
                let mut point = point.clone();
                set(&mut point, value);
                self.points.push(point);
            }
        }
        Ok(())
    }

    // Values of the command line stand for what the profile says; without them it stays.
    fn vary_given<T>(
        &mut self,
        values: Option<&Values<T>>,
        set: impl Fn(&mut Point, &T),
    ) -> Result<()> {
        values.map_or(Ok(()), |values| self.vary(&values.0, set))
    }
}

// Counts and sizes of packets are read within 32 bits.
fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Every combination; the last parameters change fastest.
pub(super) fn points(args: &SimArgs, max: usize) -> Result<Vec<Point>> {
    let first = Point {
        net: TwoClusters::default(),
        packet_bytes: 0,
        profile_name: String::new(),
        profile: Profile::default(),
        mix: args.flavour[0].clone(),
        stripes: None,
        window: 0,
        ssthresh: None,
        jitter_seconds: 0.0,
        seed: 0,
        limit_seconds: 0.0,
        is_from_file: args.topology.is_some(),
    };
    let mut all = Points {
        points: vec![first],
        max,
    };
    all.vary(&args.profile, |point, name| {
        point.profile = Profile::named(name).unwrap_or_default();
        point.profile_name.clone_from(name);
    })?;
    all.vary_given(args.header.as_ref(), |p, v| {
        p.profile.header_bytes = small(v.0)
    })?;
    all.vary_given(args.initial_window.as_ref(), |p, v| {
        p.profile.initial_window = small(v.0)
    })?;
    all.vary(&args.ack.0, |p, v| p.profile.ack_bytes = small(v.0))?;
    all.vary(&args.initial_window_after_loss.0, |p, v| {
        p.profile.initial_window_after_loss = small(v.0)
    })?;
    all.vary(&args.duplicate_acks.0, |p, v| {
        p.profile.duplicate_acks = small(v.0)
    })?;
    all.vary_given(args.rto_min.as_ref(), |p, v| {
        p.profile.rto_min_seconds = v.0
    })?;
    all.vary_given(args.rto_max.as_ref(), |p, v| {
        p.profile.rto_max_seconds = v.0
    })?;
    all.vary_given(args.rto_initial.as_ref(), |p, v| {
        p.profile.rto_initial_seconds = v.0
    })?;
    all.vary_given(args.tick.as_ref(), |p, v| p.profile.tick_seconds = v.0)?;
    for point in &mut all.points {
        let profile = &mut point.profile;
        profile.rto_rule = args.rto_rule.unwrap_or(profile.rto_rule);
        profile.limited_transmit = args
            .limited_transmit
            .map_or(profile.limited_transmit, |s| s.0);
        profile.delayed_ack_seconds = args.delayed_ack.0;
        profile.whole_windows = args.halving.0;
        profile.go_back_n = args.go_back_n.0;
    }
    all.vary(&args.packet.0, |p, v| p.packet_bytes = small(v.0))?;
    all.vary(&args.window.0, |p, v| p.window = v.0)?;
    all.vary_given(args.ssthresh.as_ref(), |p, v| p.ssthresh = Some(v.0))?;
    all.vary(&args.limit.0, |p, v| p.limit_seconds = v.0)?;
    all.vary(&args.jitter.0, |p, v| p.jitter_seconds = v.0)?;
    all.vary(&args.flavour, |p, v| p.mix = v.clone())?;
    all.vary(&args.bytes_per_node.0, |p, v| p.net.bytes_per_node = v.0)?;
    all.vary(&args.access_bandwidth.0, |p, v| {
        p.net.access_bits_per_second = v.0
    })?;
    all.vary(&args.access_latency.0, |p, v| {
        p.net.access_latency_seconds = v.0
    })?;
    all.vary(&args.access_queue.0, |p, v| {
        p.net.access_queue = v.0 as usize
    })?;
    all.vary(&args.loss.0, |p, v| p.net.loss = v.0)?;
    all.vary(&args.queue.0, |p, v| p.net.queue = v.0 as usize)?;
    all.vary(&args.bandwidth.0, |p, v| p.net.bits_per_second = v.0)?;
    all.vary(&args.latency.0, |p, v| p.net.latency_seconds = v.0)?;
    all.vary(&args.nodes.0, |p, v| p.net.nodes = small(v.0))?;
    all.vary_given(args.stripes.as_ref(), |p, v| p.stripes = Some(v.0))?;
    all.vary(&args.seed.0, |p, v| p.seed = v.0)?;
    for point in &mut all.points {
        point.net.stripes = point
            .mix
            .stripes(point.stripes)
            .map_err(anyhow::Error::msg)?;
        // Before the network is made, which takes memory for each.
        let connections = point.stripes().saturating_mul(u64::from(point.net.nodes));
        if connections > CONNECTIONS_MAX {
            bail!(
                "{} nodes with {} stripes each are more than {CONNECTIONS_MAX} connections",
                point.net.nodes,
                point.stripes()
            );
        }
    }
    Ok(all.points)
}
