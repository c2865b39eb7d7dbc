//! How a receiver and a sender are connected: which side dials, which addresses, what is tried next and when.
//!
//! A machine without I/O. The receiver's driver begins each [`Step`] that [`Route::poll`] gives, beside those that are under
//! way, and reports how each ended; the first that connects is the pair's way.
//!
//! | step | begins | needs |
//! | --- | --- | --- |
//! | [`Step::Local`]: the peer's abstract socket | at once | a lane that may be a Unix socket |
//! | [`Step::Dial`]: the receiver dials the sender's addresses in order | when that has failed; the next one when one fails, or 250 ms later | |
//! | [`Step::Reverse`]: the sender dials the receiver | when all have failed, or 200 ms after the first | no lane of datagrams |
//! | [`Step::Through`]: through the command's own host | when that has failed, too, or 100 ms later | as above, and no `--rails` |
//!
//! So a firewall that drops packets costs 0.3 s at most, and a closed port nothing. The way through the command's host is used
//! while the others are still tried: the first of them that connects takes over ([`Route::is_carried`]), and the pair stays
//! with the command's host when none does. Where what a stream carries is fixed before it begins ([`Facts::is_fixed`])
//! nothing takes over later, and the last resort waits longer: 1.5 s after the sender was asked.
//!
//! An abstract socket answers within one network namespace only, which is what one host is here: loopback addresses of a
//! peer are dialled when it does, and never otherwise.
//!
//! Left out on purpose: punching holes into two NATs at once (TCP needs luck with both).

use core::net::SocketAddr;

use ropewalk_model::{Instant, Nanos};

#[cfg(test)]
mod tests;

/// The next address is dialled so long after the one before, when that has not failed by then.
pub const STAGGER_TIME: Nanos = Nanos::from_millis(250);

/// The receiver dials alone for so long: most round trips are shorter, and both may try without harm.
pub const DIRECT_ALONE_TIME: Nanos = Nanos::from_millis(100);

/// The last resort is tried so long after the sender was asked, through the master: it can be left again.
pub const THROUGH_AFTER_TIME: Nanos = Nanos::from_millis(50);

/// The same where it cannot: time for several round trips around the earth.
pub const THROUGH_FIXED_AFTER_TIME: Nanos = Nanos::from_millis(1500);

/// Addresses of one peer that are dialled at most.
pub const ADDRESSES_MAX: usize = 16;

/// How a pair is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// The receiver dialled the sender.
    #[default]
    Direct,
    /// The sender dialled the receiver.
    Reversed,
    /// All bytes go through the command's own host.
    Through,
}

impl Way {
    /// What reports call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Reversed => "reversed",
            Self::Through => "through this host",
        }
    }

    /// Its number on the wire.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The way of that number.
    #[must_use]
    pub fn of(number: u32) -> Self {
        match number {
            1 => Self::Reversed,
            2 => Self::Through,
            _ => Self::Direct,
        }
    }
}

/// Why an address did not connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its packets are dropped, or no host is there.
    NoAnswer,
    /// The host is there and has no such port, or a firewall says no.
    Refused,
    /// The network says that there is no way.
    Unreachable,
    /// It connected, and then this.
    Other(String),
}

/// Which lanes the transfer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// Unix sockets within a host, TCP between hosts.
    Any,
    /// Unix sockets only.
    Local,
    /// TCP only.
    Tcp,
    /// Datagrams beside TCP.
    Datagrams,
}

/// What is known of a pair.
#[derive(Clone, Debug)]
pub struct Facts {
    /// This node, which receives.
    pub receiver: String,
    /// The peer, which sends.
    pub sender: String,
    /// The peer's addresses in its own order. One may be there several times, for several interfaces of this host.
    pub addresses: Vec<SocketAddr>,
    /// What the lanes of the transfer are.
    pub lanes: Lanes,
    /// The user named the interfaces that carry data.
    pub is_restricted: bool,
    /// Streams keep what they were dealt, so that the way cannot change later.
    pub is_fixed: bool,
}

/// What to begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Connect to the peer's abstract socket; answer with [`Route::handle_local`].
    Local,
    /// Connect to the address at this place of [`Facts::addresses`].
    Dial(usize),
    /// Have the sender connect to this node.
    Reverse,
    /// Have the master pass the bytes on.
    Through,
}

/// Addresses of one host that are dialled one after the other, or side by side when one does not answer.
#[derive(Debug)]
pub struct Dials {
    addresses: Vec<(usize, SocketAddr)>,
    begun: usize,
    next_at: Instant,
    failures: Vec<(SocketAddr, Failure)>,
    had_loopback: bool,
}

impl Dials {
    /// Nothing is dialled yet. Loopback addresses only where both are on one host.
    #[must_use]
    pub fn new(addresses: &[SocketAddr], is_same_host: bool) -> Self {
        let is_loopback = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
        let is_useful = |(_, address): &(usize, SocketAddr)| {
            let ip = address.ip();
            let is_one = !ip.is_unspecified() && !ip.is_multicast() && address.port() > 0;
            is_one && (is_same_host || !is_loopback(address))
        };
        let all = addresses.iter().copied().enumerate();
        Self {
            addresses: all.filter(is_useful).take(ADDRESSES_MAX).collect(),
            begun: 0,
            next_at: Instant::ZERO,
            failures: Vec::new(),
            had_loopback: addresses.iter().any(is_loopback),
        }
    }

    /// The place of the next address to dial, if it is time.
    pub fn poll(&mut self, now: Instant) -> Option<usize> {
        let &(place, _) = self.addresses.get(self.begun)?;
        let is_due = now >= self.next_at || self.failures.len() == self.begun;
        is_due.then(|| {
            self.begun += 1;
            self.next_at = now + STAGGER_TIME;
            place
        })
    }

    /// When to poll again, as long as nothing fails before.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        (self.begun < self.addresses.len()).then_some(self.next_at)
    }

    /// The address at that place does not connect. The next one is due at once.
    pub fn handle_failed(&mut self, place: usize, failure: Failure) {
        if let Some(&(_, address)) = self.addresses.iter().find(|(at, _)| *at == place) {
            self.failures.push((address, failure));
            self.next_at = Instant::ZERO;
        }
    }

    /// Those that are still under way have no answer.
    pub fn give_up(&mut self) {
        let failed = |address: &SocketAddr| self.failures.iter().any(|(own, _)| own == address);
        let begun = self.addresses[..self.begun].iter();
        let open: Vec<SocketAddr> = begun.map(|(_, address)| *address).collect();
        let open: Vec<SocketAddr> = open.into_iter().filter(|own| !failed(own)).collect();
        let silent = open.into_iter().map(|own| (own, Failure::NoAnswer));
        self.failures.extend(silent.collect::<Vec<_>>());
        self.begun = self.failures.len().max(self.addresses.len());
    }

    /// All have failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.failures.len() >= self.addresses.len()
    }

    /// What was tried, in words, silence first: it is what the user has to do something about.
    #[must_use]
    pub fn describe(&self, dialler: &str, dialled: &str) -> String {
        if self.addresses.is_empty() {
            return match self.had_loopback {
                true => {
                    format!("{dialled} listens on loopback only, which {dialler} does not reach")
                }
                false => format!("{dialled} has no address that {dialler} could dial"),
            };
        }
        let of = |wanted: fn(&Failure) -> bool| {
            let mut all: Vec<String> = Vec::new();
            for (address, _) in self.failures.iter().filter(|(_, why)| wanted(why)) {
                let text = address.to_string();
                if !all.contains(&text) {
                    all.push(text);
                }
            }
            (!all.is_empty()).then(|| all.join(", "))
        };
        let mut parts = Vec::new();
        if let Some(all) = of(|why| *why == Failure::NoAnswer) {
            parts.push(format!(
                "{dialler} gets no answer from {all} (a firewall or NAT in front of {dialled}?)"
            ));
        }
        if let Some(all) = of(|why| *why == Failure::Refused) {
            parts.push(format!("{dialled} refuses {dialler} at {all}"));
        }
        for (address, failure) in &self.failures {
            if let Failure::Other(why) = failure {
                parts.push(format!("{dialler} to {address}: {why}"));
            }
        }
        if let Some(all) = of(|why| *why == Failure::Unreachable) {
            parts.push(format!("{dialler} has no route to {all}"));
        }
        parts.join("; ")
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Other {
    // It has not been tried; or it never is, for this reason.
    Idle,
    Never(&'static str),
    Trying(Instant),
    Works,
    Failed(String),
}

impl Other {
    fn is_over(&self) -> bool {
        matches!(self, Self::Never(_) | Self::Failed(_))
    }
}

/// How one pair gets connected. See the module documentation.
#[derive(Debug)]
pub struct Route {
    facts: Facts,
    local: Other,
    dials: Option<Dials>,
    began_at: Instant,
    reverse: Other,
    through: Other,
}

impl Route {
    /// Nothing is begun yet.
    #[must_use]
    pub fn new(facts: Facts) -> Self {
        let (reverse, through) = match (facts.lanes, facts.is_restricted) {
            (Lanes::Local, _) => (Other::Never(""), Other::Never("")),
            (Lanes::Datagrams, _) => (
                Other::Never(
                    "lanes of datagrams need that the receiver reaches the sender: --lane tcp does not",
                ),
                Other::Never(""),
            ),
            (_, true) => (
                Other::Idle,
                Other::Never("--rails keeps data off the way through the command's host"),
            ),
            _ => (Other::Idle, Other::Idle),
        };
        Self {
            facts,
            local: Other::Idle,
            dials: None,
            began_at: Instant::ZERO,
            reverse,
            through,
        }
    }

    /// Whether a stream may go over the peer's abstract socket.
    #[must_use]
    pub fn may_be_local(&self) -> bool {
        matches!(self.facts.lanes, Lanes::Any | Lanes::Local)
    }

    /// The next thing to begin, if it is time.
    pub fn poll(&mut self, now: Instant) -> Option<Step> {
        if self.local == Other::Idle {
            self.local = Other::Trying(now);
            return Some(Step::Local);
        }
        let dials = self.dials.as_mut()?;
        if let Some(place) = dials.poll(now) {
            return Some(Step::Dial(place));
        }
        let dials_over = dials.is_over();
        if self.reverse == Other::Idle && (dials_over || now >= self.began_at + DIRECT_ALONE_TIME) {
            self.reverse = Other::Trying(now);
            return Some(Step::Reverse);
        }
        if self.through == Other::Idle && self.is_last_due(now, dials_over) {
            self.through = Other::Trying(now);
            return Some(Step::Through);
        }
        None
    }

    fn is_last_due(&self, now: Instant, dials_over: bool) -> bool {
        let is_time = self.through_at().is_some_and(|at| now >= at);
        is_time || (self.reverse.is_over() && dials_over)
    }

    /// When the last resort is due, as long as the ways before it have not failed.
    fn through_at(&self) -> Option<Instant> {
        let after = match self.facts.is_fixed {
            true => THROUGH_FIXED_AFTER_TIME,
            false => THROUGH_AFTER_TIME,
        };
        match self.reverse {
            Other::Idle => None,
            Other::Trying(since) => Some(since + after),
            Other::Never(_) | Other::Works | Other::Failed(_) => {
                Some(self.began_at + DIRECT_ALONE_TIME + after)
            }
        }
    }

    /// When to poll again if nothing happens before.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        let dial = self.dials.as_ref().and_then(Dials::next_at);
        let reverse = (self.reverse == Other::Idle).then_some(self.began_at + DIRECT_ALONE_TIME);
        let through = match self.through {
            Other::Idle => self.through_at(),
            _ => None,
        };
        [dial, reverse, through].into_iter().flatten().min()
    }

    /// Whether the peer's abstract socket answers: both are on one host. Where lanes may not be Unix sockets, that allows
    /// loopback addresses; else the pair is connected.
    pub fn handle_local(&mut self, answers: bool, now: Instant) {
        self.local = Other::Failed(String::new());
        self.began_at = now;
        let none = Vec::new();
        let addresses = match self.facts.lanes {
            Lanes::Local => &none,
            _ => &self.facts.addresses,
        };
        self.dials = Some(Dials::new(addresses, answers));
    }

    /// An address does not connect, or connected and was of no use.
    pub fn handle_dial_failed(&mut self, place: usize, failure: Failure) {
        if let Some(dials) = &mut self.dials {
            dials.handle_failed(place, failure);
        }
    }

    /// The sender cannot connect either.
    pub fn handle_reverse_failed(&mut self, why: String) {
        self.reverse = Other::Failed(why);
    }

    /// Nor does it work through the command's host.
    pub fn handle_through_failed(&mut self, why: String) {
        self.through = Other::Failed(why);
    }

    /// Data goes through the command's host from now on, until another way connects.
    pub fn handle_through_works(&mut self) {
        self.through = Other::Works;
    }

    /// Whether data goes through the command's host meanwhile.
    #[must_use]
    pub fn is_carried(&self) -> bool {
        self.through == Other::Works
    }

    /// Nothing is left to try: all has failed, or all but the way through the command's host.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let dials_over = self.dials.as_ref().is_some_and(Dials::is_over);
        let has_last = self.through.is_over() || self.is_carried();
        dials_over && self.reverse.is_over() && has_last
    }

    /// Whether dialling has failed and the sender was asked: then why data does not go directly.
    #[must_use]
    pub fn why_not_direct(&self) -> String {
        let Some(dials) = &self.dials else {
            return String::new();
        };
        let mut silent = Dials {
            addresses: dials.addresses.clone(),
            begun: dials.begun,
            failures: dials.failures.clone(),
            ..*dials
        };
        silent.give_up();
        let (receiver, sender) = (&self.facts.receiver, &self.facts.sender);
        let mut parts = vec![silent.describe(receiver, sender)];
        match &self.reverse {
            Other::Failed(why) => parts.push(why.clone()),
            Other::Trying(_) => {
                parts.push(format!("{sender} gets no answer from {receiver} either"))
            }
            _ => {}
        }
        parts.join("; ")
    }

    /// Why the pair cannot be connected, in the order in which it matters, and what to do.
    #[must_use]
    pub fn describe(&self) -> String {
        if self.facts.lanes == Lanes::Local {
            let (receiver, sender) = (&self.facts.receiver, &self.facts.sender);
            return format!(
                "{receiver} and {sender} are not on one host, and lanes of kind unix, shm and mpi need that"
            );
        }
        let mut parts = vec![self.why_not_direct()];
        for other in [&self.reverse, &self.through] {
            match other {
                Other::Never(why) if !why.is_empty() => parts.push((*why).into()),
                _ => {}
            }
        }
        if let Other::Failed(why) = &self.through {
            parts.push(format!("data cannot go through the command's host: {why}"));
        }
        parts.push("open TCP ports at one of the two and name them with --ports".into());
        parts.join("; ")
    }
}
