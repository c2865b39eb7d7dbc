//! How lanes share the nodes' speeds: max-min fairly, or by weights that change each second, as connections on one link do.
//!
//! Among the lanes that have work, the scarcest link (a sender's uplink, a receiver's downlink, a pair's own cap)
//! gives equal parts; those lanes are settled, and the next scarcest link gives what is left. Parts of the network
//! that share no lane do not influence each other, so only those with a change since last time are computed again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Chance;
use crate::scenario::Speed;

/// Number of a busy lane; used again after the lane has stopped.
pub type Flow = u32;

#[derive(Clone, Copy, Debug)]
struct Carrier {
    // Links: twice the sender's number, twice the receiver's plus one, and the trunk's where it crosses that.
    links: [u32; 3],
    // Where the flow stands in the members of each link.
    places: [u32; 3],
    crosses: bool,
    cap: f64,
    // Its part of a link that it shares, beside those of others.
    weight: f64,
    rate: f64,
    // Whose lane it is.
    owner: (u32, u32),
    settled: bool,
}

impl Carrier {
    fn sides(&self) -> usize {
        if self.crosses { 3 } else { 2 }
    }
}

/// Links of nodes, and the lanes that are busy on them.
#[derive(Debug)]
pub struct Network {
    // By link: bytes per second, and the flows on it in no order.
    speeds: Vec<f64>,
    members: Vec<Vec<Flow>>,
    carriers: Vec<Carrier>,
    free: Vec<Flow>,
    // Links near which something changed, and links seen in the present settling.
    changed: Vec<u32>,
    seen: Vec<bool>,
    left: Vec<f64>,
    // Of the flows that are not settled: how many, and their weights together.
    open: Vec<u32>,
    weights: Vec<f64>,
    // How unequal lanes are, and which.
    spread: f64,
    chance: Chance,
    // The first node behind a trunk, whose two directions are the last links; all after it are, too.
    behind: u32,
}

impl Network {
    /// Nodes of these speeds, and no lane busy.
    #[must_use]
    pub fn new(speeds: &[Speed]) -> Self {
        let links = speeds.len() * 2;
        Self {
            speeds: speeds.iter().flat_map(|s| [s.up, s.down]).collect(),
            members: vec![Vec::new(); links],
            carriers: Vec::new(),
            free: Vec::new(),
            changed: Vec::new(),
            seen: vec![false; links],
            left: vec![0.0; links],
            open: vec![0; links],
            weights: vec![0.0; links],
            spread: 1.0,
            chance: Chance::new(0),
            behind: u32::MAX,
        }
    }

    /// Nodes from this number on are behind a trunk of so many bytes per second each way.
    #[must_use]
    pub fn trunk(mut self, behind: u32, bytes_per_second: f64) -> Self {
        self.behind = behind;
        for _ in 0..2 {
            self.speeds.push(bytes_per_second);
            self.members.push(Vec::new());
            self.seen.push(false);
            self.left.push(0.0);
            self.open.push(0);
            self.weights.push(0.0);
        }
        self
    }

    /// Lanes that share a link get parts of it that are up to `spread` times as large, or as small, as an equal one.
    #[must_use]
    pub fn unequal(mut self, spread: f64, chance: Chance) -> Self {
        (self.spread, self.chance) = (spread.max(1.0), chance);
        self
    }

    fn draw(&mut self) -> f64 {
        const STEPS: u64 = 1 << 20;
        if self.spread <= 1.0 {
            return 1.0;
        }
        let part = self.chance.below(STEPS + 1) as f64 / STEPS as f64;
        self.spread.powf(2.0 * part - 1.0)
    }

    /// Other parts of the links from now on.
    pub fn vary(&mut self) {
        if self.spread <= 1.0 {
            return;
        }
        for link in (0..self.members.len()).step_by(2) {
            for place in 0..self.members[link].len() {
                let flow = self.members[link][place] as usize;
                self.carriers[flow].weight = self.draw();
                self.changed.push(link as u32);
            }
        }
    }

    /// Changes what a node can send and receive, bytes per second.
    pub fn set_speed(&mut self, node: u32, speed: Speed) {
        for (link, value) in [(2 * node, speed.up), (2 * node + 1, speed.down)] {
            self.speeds[link as usize] = value;
            self.changed.push(link);
        }
    }

    /// A lane begins to have work. `cap` is the pair's own limit; `owner` is returned by [`Network::settle`].
    /// It carries nothing before the next settling.
    pub fn start(&mut self, sender: u32, receiver: u32, cap: f64, owner: (u32, u32)) -> Flow {
        let flow = self.free.pop().unwrap_or(self.carriers.len() as u32);
        let crosses = (sender >= self.behind) != (receiver >= self.behind);
        // Towards the nodes behind it, and away from them.
        let trunk = self.speeds.len() as u32 - 1 - u32::from(receiver >= self.behind);
        let links = [2 * sender, 2 * receiver + 1, trunk];
        let places = links.map(|link| self.members[link as usize].len() as u32);
        for &link in &links[..if crosses { 3 } else { 2 }] {
            self.members[link as usize].push(flow);
            self.changed.push(link);
        }
        let carrier = Carrier {
            links,
            places,
            crosses,
            cap,
            weight: self.draw(),
            rate: 0.0,
            owner,
            settled: true,
        };
        match self.carriers.get_mut(flow as usize) {
            Some(place) => *place = carrier,
            None => self.carriers.push(carrier),
        }
        flow
    }

    /// A lane has no work any more.
    pub fn stop(&mut self, flow: Flow) {
        let carrier = self.carriers[flow as usize];
        for side in 0..carrier.sides() {
            let (link, place) = (carrier.links[side], carrier.places[side] as usize);
            self.members[link as usize].swap_remove(place);
            if let Some(&moved) = self.members[link as usize].get(place) {
                self.carriers[moved as usize].places[side] = place as u32;
            }
            self.changed.push(link);
        }
        self.free.push(flow);
    }

    /// Receivers that have a busy lane from this sender.
    pub fn served_by(&self, sender: u32) -> impl Iterator<Item = u32> + '_ {
        let flows = self.members[2 * sender as usize].iter();
        flows.map(|&flow| self.carriers[flow as usize].owner.0)
    }

    /// Shares the speeds again wherever something changed, and lists (owner, bytes per second) of the lanes whose
    /// rate is another one now. Cost O(lanes × log lanes) of the parts that changed.
    pub fn settle(&mut self) -> Vec<((u32, u32), f64)> {
        let (links, flows) = self.gather();
        let mut scarce: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::with_capacity(links.len());
        for &link in &links {
            let at = link as usize;
            self.left[at] = self.speeds[at];
            self.open[at] = self.members[at].len() as u32;
            let flows = self.members[at].iter();
            self.weights[at] = flows.map(|flow| self.carriers[*flow as usize].weight).sum();
            if self.open[at] > 0 {
                scarce.push(Reverse((self.share(at).to_bits(), link)));
            }
        }
        let link_count = self.speeds.len() as u32;
        for &flow in &flows {
            let Carrier { cap, weight, .. } = self.carriers[flow as usize];
            if cap.is_finite() {
                let level = cap.max(0.0) / weight;
                scarce.push(Reverse((level.to_bits(), link_count + flow)));
            }
        }
        let mut out = Vec::new();
        // Bits of floats that are not negative are ordered as the floats.
        while let Some(Reverse((bits, at))) = scarce.pop() {
            if at >= link_count {
                let flow = at - link_count;
                self.fix(flow, f64::from_bits(bits), &mut out);
                continue;
            }
            let link = at as usize;
            if self.open[link] == 0 {
                continue;
            }
            // Others took less than an equal part in the meantime: there is more for the rest.
            let share = self.share(link);
            if share.to_bits() > bits {
                scarce.push(Reverse((share.to_bits(), at)));
                continue;
            }
            for place in 0..self.members[link].len() {
                self.fix(self.members[link][place], share, &mut out);
            }
        }
        for link in links {
            self.seen[link as usize] = false;
        }
        out
    }

    /// Links and flows of all parts in which something changed.
    fn gather(&mut self) -> (Vec<u32>, Vec<Flow>) {
        let mut links = std::mem::take(&mut self.changed);
        links.retain(|&link| !std::mem::replace(&mut self.seen[link as usize], true));
        let mut flows = Vec::new();
        let mut at = 0;
        while let Some(&link) = links.get(at) {
            at += 1;
            for &flow in &self.members[link as usize] {
                let carrier = &mut self.carriers[flow as usize];
                // Each flow is met from both its links.
                if carrier.settled {
                    carrier.settled = false;
                    flows.push(flow);
                }
                for &other in &carrier.links[..carrier.sides()] {
                    if !std::mem::replace(&mut self.seen[other as usize], true) {
                        links.push(other);
                    }
                }
            }
        }
        (links, flows)
    }

    /// What a flow of weight 1 gets.
    fn share(&self, link: usize) -> f64 {
        match self.open[link] {
            0 => self.left[link].max(0.0),
            _ => self.left[link].max(0.0) / self.weights[link].max(f64::MIN_POSITIVE),
        }
    }

    fn fix(&mut self, flow: Flow, level: f64, out: &mut Vec<((u32, u32), f64)>) {
        let carrier = &mut self.carriers[flow as usize];
        if std::mem::replace(&mut carrier.settled, true) {
            return;
        }
        let (rate, weight) = (level * carrier.weight, carrier.weight);
        if carrier.rate != rate {
            carrier.rate = rate;
            out.push((carrier.owner, rate));
        }
        for &link in &carrier.links[..carrier.sides()] {
            self.left[link as usize] -= rate;
            self.open[link as usize] -= 1;
            self.weights[link as usize] -= weight;
        }
    }
}

#[cfg(test)]
mod tests;
