//! What the streams over each rail did, as far as the master is to know it: which rails lose packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ropewalk_lane::TcpInfo;
use ropewalk_lane::interfaces::Interface;
use ropewalk_proto::control::RailStatus;

use crate::rails;

/// Rails without an open stream that are kept: more than two hosts have between them, for several receivers. Those that were closed
/// longest ago are forgotten first.
const CLOSED_MAX: usize = 64;

/// Rails that are reported at once.
const REPORTED_MAX: usize = 8;

/// A receiver, the address here and the one there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OverRail {
    pub receiver: u32,
    pub local: IpAddr,
    pub remote: IpAddr,
}

/// Segments, and round trips in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    segments: u64,
    repeated: u64,
    streams: u64,
    trips: u64,
    least: u32,
}

impl Counted {
    fn count(&mut self, info: &TcpInfo) {
        self.segments += u64::from(info.segments);
        self.repeated += u64::from(info.repeated);
        self.streams += 1;
        self.trips += u64::from(info.rtt_microseconds);
        let least = info.rtt_microseconds_min.min(info.rtt_microseconds);
        if least > 0 && (self.least == 0 || least < self.least) {
            self.least = least;
        }
    }

    fn trip(&self) -> u32 {
        self.trips.checked_div(self.streams).unwrap_or(0) as u32
    }
}

/// What is kept of a rail.
#[derive(Debug)]
struct Kept {
    // By which the master tells it from others, and from itself where it was forgotten in between.
    number: u32,
    // Open streams.
    open: usize,
    // Of its closed streams; round trips are those of the last one.
    closed: Counted,
    closed_at: u64,
    // Found out when it is first reported.
    name: Option<String>,
}

/// Rails that lose packets, some of them without a name yet.
#[derive(Debug)]
pub(super) struct Unnamed(Vec<(OverRail, RailStatus)>);

/// The rails of one node that sends.
#[derive(Debug, Default)]
pub(super) struct Rails {
    kept: BTreeMap<OverRail, Kept>,
    numbers: u32,
    closed: u64,
}

impl Rails {
    /// A stream begins to be served.
    pub fn open(&mut self, over: OverRail) {
        let numbers = &mut self.numbers;
        let rail = self.kept.entry(over).or_insert_with(|| {
            *numbers += 1;
            Kept {
                number: *numbers,
                open: 0,
                closed: Counted::default(),
                closed_at: 0,
                name: None,
            }
        });
        rail.open += 1;
    }

    /// It is over.
    pub fn close(&mut self, over: OverRail, info: Option<&TcpInfo>) {
        let Some(rail) = self.kept.get_mut(&over) else {
            return;
        };
        rail.open = rail.open.saturating_sub(1);
        if let Some(info) = info {
            let (segments, repeated) = (rail.closed.segments, rail.closed.repeated);
            rail.closed = Counted {
                segments,
                repeated,
                ..Counted::default()
            };
            rail.closed.count(info);
        }
        self.closed += 1;
        rail.closed_at = self.closed;
        let idle = || self.kept.iter().filter(|(_, rail)| rail.open == 0);
        if idle().count() > CLOSED_MAX {
            let oldest = idle().min_by_key(|(_, rail)| rail.closed_at);
            if let Some(oldest) = oldest.map(|(over, _)| *over) {
                self.kept.remove(&oldest);
            }
        }
    }

    /// Rails that lose packets, of receivers that have several: those in use first, and of these those with most repeated segments.
    ///
    /// * `open`: what the kernel says of the open streams.
    ///
    /// # Errors
    /// The same where rails are without a name yet, for [`Rails::name`].
    pub fn lossy(&mut self, open: &[(OverRail, TcpInfo)]) -> Result<Vec<RailStatus>, Unnamed> {
        let mut now: BTreeMap<OverRail, Counted> = BTreeMap::new();
        for (over, info) in open {
            now.entry(*over).or_default().count(info);
        }
        let mut seen = BTreeSet::new();
        let receivers = self.kept.keys().map(|over| over.receiver);
        let several: BTreeSet<u32> = receivers
            .filter(|receiver| !seen.insert(*receiver))
            .collect();
        let counted = self.kept.iter_mut().map(|(over, rail)| {
            let mut counted = now.get(over).copied().unwrap_or_default();
            if counted.streams == 0 {
                counted = Counted {
                    segments: 0,
                    repeated: 0,
                    ..rail.closed
                };
            }
            counted.segments += rail.closed.segments;
            counted.repeated += rail.closed.repeated;
            (over, rail, counted)
        });
        let mut lossy: Vec<_> = counted
            .filter(|(over, _, counted)| counted.repeated > 0 && several.contains(&over.receiver))
            .collect();
        lossy.sort_by_key(|(_, rail, counted)| {
            (rail.open == 0, std::cmp::Reverse(counted.repeated))
        });
        lossy.truncate(REPORTED_MAX);
        let is_unnamed = lossy.iter().any(|(_, rail, _)| rail.name.is_none());
        let status = |(over, rail, counted): (&OverRail, &mut Kept, Counted)| {
            let status = RailStatus {
                receiver: over.receiver,
                rail: rail.name.clone().unwrap_or_default(),
                segments: counted.segments,
                repeated: counted.repeated,
                rtt_microseconds: counted.trip(),
                rtt_microseconds_min: counted.least,
                number: rail.number,
            };
            (*over, status)
        };
        let lossy = lossy.into_iter().map(status);
        match is_unnamed {
            true => Err(Unnamed(lossy.collect())),
            false => Ok(lossy.map(|(_, status)| status).collect()),
        }
    }

    /// Names rails, and keeps the names of those that were not forgotten meanwhile.
    ///
    /// * `here`: the interfaces of this host.
    pub fn name(&mut self, unnamed: Unnamed, here: &[Interface]) -> Vec<RailStatus> {
        let named = |(over, mut status): (OverRail, RailStatus)| {
            if status.rail.is_empty() {
                status.rail = rails::name(here, over.local, over.remote);
                let kept = self.kept.get_mut(&over);
                if let Some(kept) = kept.filter(|kept| kept.number == status.number) {
                    kept.name = Some(status.rail.clone());
                }
            }
            status
        };
        unnamed.0.into_iter().map(named).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::sending) fn over(receiver: u32, last: u8) -> OverRail {
        OverRail {
            receiver,
            local: IpAddr::from([240, 0, 0, last]),
            remote: IpAddr::from([198, 51, 100, last]),
        }
    }

    pub(in crate::sending) fn info(repeated: u32) -> TcpInfo {
        TcpInfo {
            bytes_acknowledged: 0,
            bytes_received: 0,
            unacknowledged: 0,
            retransmits: 0,
            segment_bytes: 1448,
            rtt_microseconds: 1100,
            rtt_microseconds_min: 1000,
            window: 10,
            segments: 1000,
            repeated,
            packets_out: 0,
            packets_in: 0,
            limited_to: 0,
            unsent_bytes: 0,
        }
    }

    /// These streams are open.
    fn opened(all: &[(u32, u8, u32)]) -> (Rails, Vec<(OverRail, TcpInfo)>) {
        let mut rails = Rails::default();
        let streams = all.iter().map(|&(receiver, last, repeated)| {
            rails.open(over(receiver, last));
            (over(receiver, last), info(repeated))
        });
        let streams = streams.collect();
        (rails, streams)
    }

    /// What is reported, on a host without interfaces.
    fn lossy(rails: &mut Rails, open: &[(OverRail, TcpInfo)]) -> Vec<RailStatus> {
        let lossy = rails.lossy(open);
        lossy.unwrap_or_else(|unnamed| rails.name(unnamed, &[]))
    }

    /// Rails that lose packets are named where a receiver has several of them, the worst first, and only these.
    #[test]
    fn rails_with_losses_are_named() {
        let found = |all: &[(u32, u8, u32)]| {
            let (mut rails, open) = opened(all);
            lossy(&mut rails, &open)
        };
        let named = found(&[(1, 1, 3), (1, 2, 20), (1, 3, 0), (2, 1, 100)]);
        let names: Vec<&str> = named.iter().map(|rail| rail.rail.as_str()).collect();
        // The host has none of these addresses.
        assert_eq!(
            names,
            ["240.0.0.2 - 198.51.100.2", "240.0.0.1 - 198.51.100.1"]
        );
        assert!(named.iter().all(|rail| rail.receiver == 1));
        assert_eq!((named[0].repeated, named[0].rtt_microseconds), (20, 1100));
        assert_eq!(found(&[(1, 1, 0), (1, 2, 0)]), []);
        let many: Vec<_> = (0..64).map(|last| (1, last, 1)).collect();
        assert_eq!(found(&many).len(), REPORTED_MAX);
    }

    /// The round trips of a rail whose streams are closed are those of the last one: they are known.
    #[test]
    fn closed_rails_keep_their_round_trips() {
        let (mut rails, mut open) = opened(&[(1, 1, 3), (1, 2, 20)]);
        let (gone, info) = open.remove(1);
        rails.close(gone, Some(&info));
        let found = lossy(&mut rails, &open);
        let closed = found.iter().find(|rail| rail.repeated == 20).unwrap();
        assert_eq!(
            (closed.rtt_microseconds, closed.rtt_microseconds_min),
            (1100, 1000)
        );
        assert_eq!(closed.segments, 1000);
    }

    /// A stream after many others counts as the first ones do; the rails closed longest ago are forgotten, those in use never are.
    #[test]
    fn late_rails_are_kept() {
        let (mut rails, open) = opened(&[(7, 1, 1), (7, 2, 1)]);
        for last in 0..200 {
            rails.open(over(1, last));
            rails.close(over(1, last), Some(&info(5)));
        }
        assert_eq!(rails.kept.len(), CLOSED_MAX + 2);
        assert!(rails.kept.contains_key(&over(1, 199)));
        assert!(!rails.kept.contains_key(&over(1, 0)));
        // Those that are in use are reported before any that is closed.
        let found = lossy(&mut rails, &open);
        let receivers: Vec<u32> = found.iter().map(|rail| rail.receiver).collect();
        assert_eq!(receivers[..3], [7, 7, 1]);
        // One that was forgotten begins again, under another number.
        let before = rails.kept[&over(1, 199)].number;
        rails.open(over(1, 0));
        assert!(rails.kept[&over(1, 0)].number > before);
    }

    /// Interfaces of the host are read when a rail is first reported, and not at each status.
    #[test]
    fn names_are_found_once() {
        let (mut rails, mut open) = opened(&[(1, 1, 3), (1, 2, 20)]);
        let mut reads = 0;
        let mut report = |rails: &mut Rails, open: &[(OverRail, TcpInfo)]| {
            rails.lossy(open).unwrap_or_else(|unnamed| {
                reads += 1;
                let here = Interface {
                    name: "eth7".into(),
                    networks: vec![(IpAddr::from([240, 0, 0, 2]), 24)],
                };
                rails.name(unnamed, &[here])
            })
        };
        let first = report(&mut rails, &open);
        assert_eq!(first[0].rail, "eth7 240.0.0.2 - 198.51.100.2");
        assert_eq!(report(&mut rails, &open), first);
        rails.open(over(1, 3));
        open.push((over(1, 3), info(1)));
        assert_eq!(report(&mut rails, &open).len(), 3);
        report(&mut rails, &open);
        assert_eq!(reads, 2);
    }
}
