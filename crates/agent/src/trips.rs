//! How far other nodes are: the round trip of a connection that is made and closed.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ropewalk_lane::preface::{self, Kind, Preface};
use ropewalk_proto::control::Peer;

use crate::connect::{self, least_trip};
use crate::dial;
use crate::member::Member;

/// Round trips that are not known by then are not waited for: the first byte is.
const PATIENCE: Duration = Duration::from_secs(1);

/// A packet may have waited: of so many connections the shortest round trip counts.
const CONNECTIONS: usize = 2;

/// Microseconds to each peer, 0 where it is not known, and to this node itself.
pub(crate) fn measure(member: &Arc<Member>, peers: &[Peer]) -> Vec<u32> {
    let until = Instant::now() + PATIENCE;
    let mut trips = vec![0; peers.len()];
    let (measured, all) = mpsc::channel();
    let mut awaited = 0;
    for (at, peer) in peers.iter().enumerate() {
        if peer.node == member.node {
            continue;
        }
        // The first address is the best.
        let Some(target) = dial::targets(member, peer).into_iter().next() else {
            continue;
        };
        awaited += 1;
        let measured = measured.clone();
        let (again, prober) = (target.clone(), member.clone());
        dial::begin(
            target,
            |_| Ok(()),
            move |made| {
                let trip = made.map(|(stream, took)| {
                    let mut least = trip_of(&prober, stream, took);
                    for _ in 1..CONNECTIONS {
                        let since = Instant::now();
                        let Ok(stream) = again.connect() else { break };
                        least = least.min(trip_of(&prober, stream, since.elapsed()));
                    }
                    least
                });
                let _ = measured.send((at, trip.unwrap_or_default()));
            },
        );
    }
    drop(measured);
    while awaited > 0 {
        let left = until.saturating_duration_since(Instant::now());
        let Ok((at, trip)) = all.recv_timeout(left) else {
            break;
        };
        awaited -= 1;
        trips[at] = trip.as_micros().min(u32::MAX.into()) as u32;
    }
    trips
}

/// The round trip of a connection, which is closed. The peer counts one without a preface as unauthenticated.
fn trip_of(member: &Member, mut stream: TcpStream, took: Duration) -> Duration {
    let trip = least_trip(Some(&stream), Some(took));
    let head = Preface {
        kind: Kind::Trip,
        flags: 0,
        key_id: [0; 16],
        transfer_id: member.id,
        nonce: preface::random_bytes(),
        extra: connect::extra(member.node, 0, false),
    };
    let _ = stream.write_all(&head.encode(&member.preface_key));
    trip
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use ropewalk_lane::preface::PREFACE_LEN;

    use super::*;

    /// Nodes that answer have a round trip, those that do not and this one have none.
    #[test]
    fn round_trips_of_those_that_answer_are_known() {
        let (member, _said) = Member::alone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let closed = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let peer = |node, address: &str| Peer {
            node,
            addresses: vec![address.to_owned()],
            ..Peer::default()
        };
        let peers = [
            peer(member.node, &address),
            peer(member.node + 1, &address),
            peer(member.node + 2, &closed.to_string()),
            peer(member.node + 3, "no address"),
        ];
        let trips = measure(&member, &peers);
        assert!(trips[1] > 0, "{trips:?}");
        assert_eq!([trips[0], trips[2], trips[3]], [0; 3]);
        // The peer sees what they are for.
        for _ in 0..CONNECTIONS {
            let mut bytes = Vec::new();
            listener
                .accept()
                .unwrap()
                .0
                .read_to_end(&mut bytes)
                .unwrap();
            let bytes: [u8; PREFACE_LEN] = bytes.try_into().unwrap();
            let head = Preface::parse(&bytes).unwrap();
            assert_eq!((head.kind, head.transfer_id), (Kind::Trip, member.id));
            assert!(Preface::verify(&bytes, &member.preface_key));
        }
    }
}
