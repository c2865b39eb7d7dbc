//! The loop of a run.

use super::chance::Stream;
use super::events::{Events, Moment, What};
use super::link::{Packet, Port};
use super::receiver::Receiver;
use super::report::{Drops, FlowOutcome, Outcome, Sample};
use super::scenario::{FlowSpec, Invalid, Scenario};
use super::tcp::{Core, Sender};
use super::topology::{Role, Routes};

/// Ends a route in the table of routes.
const END: u32 = u32::MAX;

/// Streams of random numbers: start times, and from here on one for each link.
const STARTS: u64 = 1;
const LINKS: u64 = 2;

/// One connection.
#[derive(Debug)]
struct Flow {
    sender: Sender,
    receiver: Receiver,
    // First hop of packets and of acknowledgements, in the table of routes.
    forward: u32,
    backward: u32,
    // When the timer expires, and which of its events counts: it may be early, never late.
    timer: Option<Moment>,
    timer_event: Option<Moment>,
    done_seconds: Option<f64>,
}

/// A run under way.
#[derive(Debug)]
pub(super) struct Run<'s> {
    scenario: &'s Scenario,
    ports: Vec<Port>,
    roles: Vec<Role>,
    // Numbers of links, one route after the other.
    routes: Vec<u32>,
    flows: Vec<Flow>,
    events: Events,
    now: Moment,
    open: usize,
    handled: u64,
    trace: Vec<Sample>,
    // Phases of senders' clocks, the ways of the network, and the routes of the newest connection: those between the same
    // nodes share them.
    phases: Stream,
    ways: Routes<'s>,
    last_route: Option<((usize, usize), (u32, u32))>,
}

impl<'s> Run<'s> {
    pub fn new(scenario: &'s Scenario) -> Result<Self, Invalid> {
        let links = &scenario.topology.links;
        let chance = |number: usize| Stream::mixed(scenario.seed, LINKS + number as u64);
        let ports = links.iter().enumerate();
        let ports = ports.map(|(number, link)| Port::new(link, chance(number)));
        // Phases of clocks as in the reference simulator, which sets every sender up twice.
        let mut phases = Stream::plain(scenario.seed);
        for _ in &scenario.flows {
            phases.next_unit();
        }
        let mut run = Self {
            scenario,
            ports: ports.collect(),
            roles: roles(scenario),
            routes: Vec::new(),
            flows: Vec::new(),
            events: Events::default(),
            now: Moment::START,
            open: 0,
            handled: 0,
            trace: Vec::new(),
            phases,
            ways: Routes::new(&scenario.topology),
            last_route: None,
        };
        let mut starts = Stream::mixed(scenario.seed, STARTS);
        for spec in &scenario.flows {
            let jitter = starts.next_unit() * scenario.jitter_seconds;
            run.add(spec, spec.start_seconds + jitter)?;
        }
        if scenario.trace_seconds.is_some() {
            let at = run.events.moment(0.0);
            run.events.push(at, What::Sample);
        }
        Ok(run)
    }

    /// One more connection, which starts at `at_seconds`.
    pub fn add(&mut self, spec: &FlowSpec, at_seconds: f64) -> Result<u32, Invalid> {
        let ends = (spec.from, spec.to);
        let (forward, backward) = match self.last_route {
            Some((of, routes)) if of == ends => routes,
            _ => {
                let routes = (self.route(ends.0, ends.1)?, self.route(ends.1, ends.0)?);
                self.last_route = Some((ends, routes));
                routes
            }
        };
        let profile = &self.scenario.profile;
        let phase = self.phases.next_unit() * profile.tick_seconds;
        let (window, ssthresh) = (self.scenario.window, self.scenario.ssthresh);
        let sender = Sender::new(spec.flavour, profile, spec.packets, window, ssthresh, phase);
        let number = self.flows.len() as u32;
        self.flows.push(Flow {
            sender,
            receiver: Receiver::new(spec.packets),
            forward,
            backward,
            timer: None,
            timer_event: None,
            done_seconds: None,
        });
        self.open += 1;
        let at = self.events.moment(at_seconds);
        self.events.push(at, What::Start(number));
        Ok(number)
    }

    /// The connection sends nothing new any more; what is under way is still delivered.
    pub fn close(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        let core = &mut flow.sender.core;
        core.last = core.sent_max.max(0);
        if flow.done_seconds.is_none() && core.is_done() {
            flow.done_seconds = Some(self.now.seconds());
            self.open -= 1;
        }
    }

    /// Runs up to this time.
    pub fn advance(&mut self, until_seconds: f64) {
        while let Some((at, what)) = self.events.next() {
            if at.seconds() > until_seconds {
                break;
            }
            self.now = at;
            self.handle(what);
        }
    }

    /// The sender of a connection.
    pub fn core(&self, number: u32) -> &Core {
        &self.flows[number as usize].sender.core
    }

    /// Deliveries of packets and expired timers so far.
    pub fn handled(&self) -> u64 {
        self.handled
    }

    fn route(&mut self, from: usize, to: usize) -> Result<u32, Invalid> {
        let way = self.scenario.way(&mut self.ways, from, to)?;
        let start = self.routes.len() as u32;
        self.routes.extend(way);
        self.routes.push(END);
        Ok(start)
    }

    pub fn finish(mut self) -> Outcome {
        let limit = self.scenario.limit_seconds;
        while self.open > 0 {
            let Some((at, what)) = self.events.next() else {
                break;
            };
            if at.seconds() > limit {
                break;
            }
            self.now = at;
            self.handle(what);
        }
        self.outcome()
    }

    // The event is still in the heap: who handles it takes it out.
    fn handle(&mut self, what: What) {
        match what {
            What::Deliver(link) => {
                self.handled += 1;
                if let Some(packet) = self.ports[link as usize].deliver(&mut self.events) {
                    self.forward(packet);
                }
            }
            What::TransmissionEnds(link) => {
                self.ports[link as usize].transmission_ends(link, self.now, &mut self.events);
            }
            What::Start(flow) => {
                self.events.drop_next();
                self.flows[flow as usize].sender.start(self.now.seconds());
                self.flush(flow);
            }
            What::Retransmit(flow) => self.expire(flow),
            What::Acknowledge(flow) => {
                self.events.drop_next();
                let receiver = &mut self.flows[flow as usize].receiver;
                if receiver.due == Some(self.now) {
                    receiver.due = None;
                    self.acknowledge(flow);
                }
            }
            What::Sample => {
                self.events.drop_next();
                self.sample();
                let every = self.scenario.trace_seconds.unwrap_or(f64::INFINITY);
                let at = self.events.moment(self.now.seconds() + every);
                self.events.push(at, What::Sample);
            }
        }
    }

    // To the next link, or to the end that waits for it.
    fn forward(&mut self, packet: Packet) {
        let link = self.routes[packet.hop as usize];
        if link != END {
            let packet = Packet {
                hop: packet.hop + 1,
                ..packet
            };
            self.ports[link as usize].take(link, packet, self.now, &mut self.events);
        } else if packet.is_ack {
            self.take_ack(packet);
        } else {
            self.take_data(packet);
        }
    }

    fn take_ack(&mut self, packet: Packet) {
        let now = self.now.seconds();
        let flow = &mut self.flows[packet.flow as usize];
        flow.sender.handle_ack(i64::from(packet.seq), now);
        if flow.done_seconds.is_none() && flow.sender.core.is_done() {
            flow.done_seconds = Some(now);
            self.open -= 1;
        }
        self.flush(packet.flow);
    }

    fn take_data(&mut self, packet: Packet) {
        let receiver = &mut self.flows[packet.flow as usize].receiver;
        let is_in_order = receiver.take(packet.seq);
        let delay = self.scenario.profile.delayed_ack_seconds;
        match delay {
            // The first of two waits for the second, or for the timer.
            Some(delay) if is_in_order && receiver.due.is_none() => {
                let due = self.events.moment(self.now.seconds() + delay);
                receiver.due = Some(due);
                self.events.push(due, What::Acknowledge(packet.flow));
            }
            _ => {
                receiver.due = None;
                self.acknowledge(packet.flow);
            }
        }
    }

    fn acknowledge(&mut self, number: u32) {
        let flow = &self.flows[number as usize];
        // Before the SYN has come there is nothing to acknowledge, and nothing else can come.
        let packet = Packet {
            flow: number,
            hop: flow.backward,
            seq: flow.receiver.next.saturating_sub(1),
            bytes: self.scenario.profile.ack_bytes,
            is_ack: true,
        };
        self.forward(packet);
    }

    // Sends what a sender has put out, and sets its timer.
    fn flush(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        let (hop, is_timer_new) = (flow.forward, flow.sender.core.is_timer_new);
        let mut outbox = std::mem::take(&mut flow.sender.core.outbox);
        for &seq in &outbox {
            let profile = &self.scenario.profile;
            let bytes = match seq {
                0 => profile.ack_bytes,
                _ => self.scenario.wire_bytes(),
            };
            let packet = Packet {
                flow: number,
                hop,
                seq: seq as u32,
                bytes,
                is_ack: false,
            };
            self.forward(packet);
        }
        outbox.clear();
        self.flows[number as usize].sender.core.outbox = outbox;
        if is_timer_new {
            self.set_timer(number);
        }
    }

    // A timer that is put off keeps its event, which is put off when it comes.
    fn set_timer(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        flow.sender.core.is_timer_new = false;
        flow.timer = flow.sender.core.timer.map(|at| self.events.moment(at));
        let Some(at) = flow.timer else {
            return;
        };
        if flow.timer_event.is_none_or(|event| event > at) {
            flow.timer_event = Some(at);
            self.events.push(at, What::Retransmit(number));
        }
    }

    fn expire(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        if flow.timer_event != Some(self.now) {
            // An event that an earlier one has replaced.
            self.events.drop_next();
            return;
        }
        match flow.timer {
            Some(at) if at > self.now => {
                flow.timer_event = Some(at);
                self.events.put_off(at);
            }
            Some(_) => {
                self.handled += 1;
                flow.timer = None;
                flow.timer_event = None;
                self.events.drop_next();
                flow.sender.handle_timeout(self.now.seconds());
                self.flush(number);
            }
            None => {
                flow.timer_event = None;
                self.events.drop_next();
            }
        }
    }

    fn sample(&mut self) {
        let seconds = self.now.seconds();
        let samples = (0_u32..).zip(&self.flows).map(|(flow, state)| {
            let core = &state.sender.core;
            Sample {
                seconds,
                flow,
                window: core.cwnd,
                ssthresh: core.ssthresh,
                acknowledged: core.acked,
                sent_max: core.sent_max,
                retransmitted: core.retransmitted,
                timeouts: core.timeouts,
                sent: core.sent,
            }
        });
        self.trace.extend(samples);
    }

    fn outcome(mut self) -> Outcome {
        if self.open > 0 && self.now.seconds() < self.scenario.limit_seconds {
            self.now = self.events.moment(self.scenario.limit_seconds);
        }
        if self.scenario.trace_seconds.is_some() {
            self.sample();
        }
        let mut drops = Drops::default();
        for (port, role) in self.ports.iter().zip(&self.roles) {
            match role {
                Role::Access => drops.access += port.drops,
                Role::Trunk => drops.trunk += port.drops,
                Role::Egress => drops.egress += port.drops,
            }
        }
        let flows = self.flows.iter().map(|flow| {
            let core = &flow.sender.core;
            FlowOutcome {
                done_seconds: flow.done_seconds,
                sent: core.sent,
                retransmitted: core.retransmitted,
                timeouts: core.timeouts,
                acknowledged: core.acked.max(0) as u64,
            }
        });
        Outcome {
            is_completed: self.open == 0,
            seconds: self.now.seconds(),
            flows: flows.collect(),
            drops,
            lost: self.ports.iter().map(|port| port.lost).sum(),
            events: self.handled,
            trace: self.trace,
        }
    }
}

// Links at a sending node are access, others at a receiving node egress, the rest trunks.
fn roles(scenario: &Scenario) -> Vec<Role> {
    let nodes = scenario.topology.nodes.len();
    let (mut sends, mut receives) = (vec![false; nodes], vec![false; nodes]);
    for flow in &scenario.flows {
        sends[flow.from] = true;
        receives[flow.to] = true;
    }
    let role = |link: &super::topology::Link| {
        if sends[link.from] || sends[link.to] {
            Role::Access
        } else if receives[link.from] || receives[link.to] {
            Role::Egress
        } else {
            Role::Trunk
        }
    };
    scenario.topology.links.iter().map(role).collect()
}
