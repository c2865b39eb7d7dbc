//! How lanes share the nodes' speeds: max-min fairly.
//!
//! Among the lanes that have work, the scarcest link (a sender's uplink, a receiver's downlink, a pair's own cap)
//! gives equal parts; those lanes are settled, and the next scarcest link gives what is left. Parts of the network
//! that share no lane do not influence each other, so only those with a change since last time are computed again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::scenario::Speed;

/// Number of a busy lane; used again after the lane has stopped.
pub type Flow = u32;

#[derive(Clone, Copy, Debug)]
struct Carrier {
    // Links: twice the sender's number, and twice the receiver's plus one.
    links: [u32; 2],
    // Where the flow stands in the members of each link.
    places: [u32; 2],
    cap: f64,
    rate: f64,
    // Whose lane it is.
    owner: (u32, u32),
    settled: bool,
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
    open: Vec<u32>,
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
        let links = [2 * sender, 2 * receiver + 1];
        let places = links.map(|link| self.members[link as usize].len() as u32);
        for link in links {
            self.members[link as usize].push(flow);
            self.changed.push(link);
        }
        let carrier = Carrier {
            links,
            places,
            cap,
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
        for side in 0..2 {
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
            if self.open[at] > 0 {
                scarce.push(Reverse((self.share(at).to_bits(), link)));
            }
        }
        let link_count = self.speeds.len() as u32;
        for &flow in &flows {
            let cap = self.carriers[flow as usize].cap;
            if cap.is_finite() {
                scarce.push(Reverse((cap.max(0.0).to_bits(), link_count + flow)));
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
                for other in carrier.links {
                    if !std::mem::replace(&mut self.seen[other as usize], true) {
                        links.push(other);
                    }
                }
            }
        }
        (links, flows)
    }

    fn share(&self, link: usize) -> f64 {
        self.left[link].max(0.0) / f64::from(self.open[link].max(1))
    }

    fn fix(&mut self, flow: Flow, rate: f64, out: &mut Vec<((u32, u32), f64)>) {
        let carrier = &mut self.carriers[flow as usize];
        if std::mem::replace(&mut carrier.settled, true) {
            return;
        }
        if carrier.rate != rate {
            carrier.rate = rate;
            out.push((carrier.owner, rate));
        }
        for link in carrier.links {
            self.left[link as usize] -= rate;
            self.open[link as usize] -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
