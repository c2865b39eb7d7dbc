//! Nodes that say anything: whatever numbers, in whatever order, the machine goes on, and its report can be written.

use ropewalk_model::ByteRate;

use super::membership_tests::{opened_trees, opening_with, settle, with_tree};
use super::tests::{begun, from, node, opened};
use super::*;
use crate::control::{
    Comparing, Done, Finished, Identity, Landed, LeftOut, Listed, Listing, MissingFile, Need,
    Opened, PairDone, PairStatus, Place, Present, RailStatus, Released, Sample, SenderStatus,
    Status, Stretch, TcpStatus, Usage, Waits, Wrong,
};

const SECOND: u64 = 1_000_000_000;

/// Transfers, each with other messages.
const TRANSFERS: u64 = 600;

/// Messages of one.
const MESSAGES: u64 = 60;

/// Chance from a seed (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn is(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A number that sums go wrong with, or a usual one.
    fn number(&mut self) -> u64 {
        const ODD: [u64; 8] = [
            0,
            1,
            u32::MAX as u64,
            1 << 32,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.is() {
            true => ODD[self.below(ODD.len() as u64) as usize],
            false => self.below(120),
        }
    }

    fn small(&mut self) -> u32 {
        match self.below(4) {
            0 => u32::MAX,
            _ => self.below(6) as u32,
        }
    }

    fn some<T>(&mut self, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| make(self)).collect()
    }

    fn text(&mut self) -> String {
        ["", "f", "a/b", "\u{0}\n"][self.below(4) as usize].to_owned()
    }

    fn path(&mut self) -> Vec<u8> {
        [&b""[..], b"f", b"a/b", b"\xff/.."][self.below(4) as usize].to_vec()
    }

    fn stretches(&mut self) -> Vec<Stretch> {
        self.some(|chance| Stretch {
            start: chance.number(),
            length: chance.number(),
        })
    }

    fn waits(&mut self) -> Option<Waits> {
        self.is().then(|| Waits {
            processor: self.number(),
            disk: self.number(),
            peer: self.number(),
            path: self.number(),
            space: self.number(),
            idle: self.number(),
            connect: self.number(),
            sync: self.number(),
            name: self.number(),
        })
    }

    fn tcp(&mut self) -> Option<TcpStatus> {
        self.is().then(|| TcpStatus {
            streams: self.small(),
            acknowledged: self.number(),
            segments: self.number(),
            repeated: self.number(),
            rtt_microseconds: self.small(),
            rtt_microseconds_min: self.small(),
            segment: self.small(),
            queued: self.small(),
            window: self.small(),
        })
    }

    fn rails(&mut self) -> Vec<RailStatus> {
        self.some(|chance| RailStatus {
            receiver: chance.small(),
            rail: chance.text(),
            segments: chance.number(),
            repeated: chance.number(),
            rtt_microseconds: chance.small(),
            rtt_microseconds_min: chance.small(),
            number: chance.small(),
        })
    }

    fn comparing(&mut self) -> Option<Comparing> {
        self.is().then(|| Comparing {
            done: self.number(),
            total: self.number(),
            hung: self.text(),
        })
    }

    fn landed(&mut self) -> Option<Landed> {
        self.is().then(|| Landed {
            merged: self.path(),
            added_files: self.number(),
            replaced_files: self.number(),
            unchanged_files: self.number(),
            removed_files: self.number(),
            not_removed_more: self.number(),
            not_placed_more: self.number(),
            not_listed_more: self.number(),
            removing: self.number(),
            ..Landed::default()
        })
    }

    fn opened(&mut self) -> Opened {
        Opened {
            sources: self.some(|chance| OpenedSource {
                manifest_root: vec![chance.below(2) as u8; 32],
                manifest_length: chance.number(),
                data_length: chance.number(),
                file_count: chance.number(),
                identities: chance.some(|chance| Identity {
                    length: chance.number(),
                    modified_seconds: chance.number() as i64,
                    ..Identity::default()
                }),
                left_out: chance.some(|chance| LeftOut {
                    path: chance.path(),
                    reason: chance.text(),
                    start: chance.number(),
                    length: chance.number(),
                }),
                left_out_more: chance.number(),
                ..OpenedSource::default()
            }),
            interface_rate: self.number(),
            interfaces: self.some(Self::small),
            places: self.some(|chance| Place {
                folder: chance.number(),
                rest: chance.path(),
                sink: chance.small(),
                row: chance.small(),
                keeps: chance.is(),
                ..Place::default()
            }),
            hands_on: self.is(),
            ..Opened::default()
        }
    }

    fn done(&mut self) -> Done {
        Done {
            delivered: self.number(),
            duplicate: self.number(),
            corrupt: self.number(),
            pairs: self.some(|chance| PairDone {
                sender: chance.small(),
                delivered: chance.number(),
                corrupt: chance.number(),
                streams: chance.small(),
                waiting: chance.number(),
                datagrams: chance.number(),
                ..PairDone::default()
            }),
            missing: self.stretches(),
            moving: self.number(),
            best_second: self.number(),
            committed: self.is(),
            error: self.text(),
            syncing: self.number(),
            usage: Some(Usage {
                processor: self.number(),
                resident_max: self.number(),
            }),
            longest_stall: self.number(),
            revision: self.small(),
            sample: Some(Sample {
                start: self.number(),
                length: self.number(),
                hash: self.path(),
            }),
            landed: self.landed(),
            differs: self.is(),
            units: self.number(),
            compared_units: self.number(),
            compared_bytes: self.number(),
            files: self.some(|chance| MissingFile {
                file: chance.text(),
                bytes: chance.number(),
                reason: chance.text(),
            }),
            files_more: self.number(),
            refused: self.is(),
            awaited_ends: self.number(),
            zeros: self.number(),
            ..Done::default()
        }
    }

    fn body(&mut self) -> from_agent::Body {
        use from_agent::Body as Of;
        match self.below(14) {
            0 => Of::Opened(self.opened()),
            1 => Of::Refused(control::Refused {
                code: self.small(),
                message: self.text(),
            }),
            2 | 3 => Of::Status(Status {
                delivered: self.number(),
                checked: self.number(),
                pairs: self.some(|chance| PairStatus {
                    sender: chance.small(),
                    delivered: chance.number(),
                    busy: chance.number(),
                    come: chance.number(),
                    left: chance.number(),
                }),
                tcp: self.tcp(),
                sending: self.waits(),
                receiving: self.waits(),
                rails: self.rails(),
                comparing: self.comparing(),
                ..Status::default()
            }),
            4 => Of::SenderStatus(SenderStatus {
                sent: self.number(),
                tcp: self.tcp(),
                sending: self.waits(),
                rails: self.rails(),
                comparing: self.comparing(),
                ..SenderStatus::default()
            }),
            5 | 6 => Of::Need(Need {
                ranges: self.stretches(),
                lost: self.some(Self::small),
                reason: self.text(),
            }),
            7 | 8 => Of::Done(self.done()),
            9 => Of::Finished(Finished {
                committed: self.is(),
                error: self.text(),
                sent: self.number(),
                best_second: self.number(),
                sending: self.waits(),
                receiving: self.waits(),
                landed: self.landed(),
                grown: self.some(Self::path),
                grown_more: self.number(),
                safe: self.number(),
                ..Finished::default()
            }),
            10 => Of::Present(Present {
                ranges: self.stretches(),
                adopted: self.stretches(),
                refused: self.stretches(),
                files: self.number(),
                last: self.is(),
                failed: self.text(),
                passed_files: self.number(),
                passed_bytes: self.number(),
                taken_bytes: self.number(),
                wrong: self.some(|chance| Wrong {
                    path: chance.path(),
                    bytes: chance.number(),
                }),
                wrong_more: self.number(),
            }),
            11 => Of::Listing(Listing {
                entries: self.some(|chance| Listed {
                    path: chance.path(),
                    length: chance.number(),
                    change: chance.small() as i32,
                }),
            }),
            12 => Of::Released(Released {
                ranges: self.stretches(),
            }),
            _ => Of::Route(control::Route {
                node: self.small(),
                step: Some(control::route::Step::Through(self.text())),
            }),
        }
    }
}

/// A transfer in which nodes, once they have opened what they have or before that, say anything.
fn transfer(seed: u64) {
    let mut chance = Chance(seed);
    let (mut c, nodes) = match chance.is() {
        true => {
            let nodes = vec![
                node("a", &[(0, 100)], &[], None),
                node("b", &[(0, 60)], &[(50, 50)], None),
                node("c", &[], &[(0, 100)], Some("one")),
                node("d", &[], &[(20, 80)], Some("one")),
            ];
            (begun(nodes.clone(), Some(1000)), Some(nodes))
        }
        false => {
            let destinations = match chance.is() {
                true => Destinations::Copies,
                false => Destinations::Shared,
            };
            let tree = |name: &str, holds| with_tree(name, holds);
            let nodes = vec![
                tree("a", true),
                tree("b", true),
                tree("c", false),
                tree("d", false),
            ];
            let options = control::Options {
                delete: chance.is(),
                dry_run: chance.below(4) == 0,
                lists: chance.below(4) == 0,
                ..control::Options::default()
            };
            (opening_with(nodes, destinations, options), None)
        }
    };
    settle(&mut c);
    if chance.below(8) > 0 {
        for number in 0..4 {
            let said = match &nodes {
                Some(nodes) => opened(&nodes[number as usize], 7),
                None => opened_trees(usize::from(number < 2), 1),
            };
            c.handle_message(number, said, Instant(1));
        }
        settle(&mut c);
    }
    let mut now = 2;
    for _ in 0..MESSAGES {
        let number = chance.below(4) as u32;
        let body = chance.body();
        c.handle_message(number, from(body), Instant(now));
        match chance.below(12) {
            0 => c.handle_compared(Ok(vec![0, 0])),
            1 => c.handle_lost(chance.below(4) as u32, "it is gone", Instant(now)),
            2 if chance.below(8) == 0 => c.handle_cancel(),
            3 if chance.below(8) == 0 => c.handle_put_off(),
            4 => {
                let _ = c.handle_join(with_tree("late", chance.is()), Instant(now));
            }
            5 => drop(c.handle_leave("b", Instant(now))),
            6 => c.handle_limit(Some(ByteRate(1 + chance.below(1 << 40))), Instant(now)),
            _ => {}
        }
        now += match chance.below(10) {
            0 => (2 + chance.below(60)) * SECOND,
            _ => chance.below(SECOND),
        };
        c.handle_timer(Instant(now));
        settle(&mut c);
        let _ = (c.causes(), c.notes().len());
    }
    // What a report is made of.
    let _ = (c.summary(), c.missing_files(), c.left_out(), c.grown());
    let _ = (c.not_placed(), c.not_removed(), c.wrong(), c.destinations());
    let _ = (c.wanted_bytes(), c.files(), c.gone(), c.complete());
}

/// Overflows, slices out of bounds and broken states are panics in tests.
#[test]
fn whatever_nodes_say_the_machine_goes_on() {
    for seed in 0..TRANSFERS {
        let ended = std::panic::catch_unwind(|| transfer(seed));
        assert!(ended.is_ok(), "the transfer of seed {seed}");
    }
}
