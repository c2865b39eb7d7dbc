//! What makes a run invalid.

use ropewalk_lab::trunk::TrunkSpec;

use crate::common::{output, skip, wait_until};
use crate::nets::{delay, pair, settled, sockets};

/// A relay whose memory is full says so, and the run does not count.
#[test]
fn validity() {
    if skip("validity") {
        return;
    }
    let lab = pair(TrunkSpec {
        a_to_b: delay(60_000),
        buffer_bytes: 1 << 20,
        ..TrunkSpec::default()
    });
    let trunk = lab.trunk(0);
    let is_full = || {
        let validity = trunk.validity().expect("validity");
        let full = |reason: &String| reason.contains("memory full");
        (validity.reasons.iter().any(full), validity.is_valid())
    };
    assert!(!is_full().0, "nothing has been sent");
    let (a, _b, target) = sockets(&lab, "sender", "receiver");
    for _ in 0..1000 {
        a.send_to(&[0; 20], target).expect("send");
    }
    wait_until("the relay's memory is full", || {
        let now = trunk.counters().expect("counters").a_to_b;
        now.link.offered.packets + now.dropped_buffer.packets >= 1000
    });
    assert_eq!(is_full(), (true, false));
}

/// What the kernel drops because the relay does not read in time is no loss of the link: it makes the run invalid.
#[test]
fn drops_beside_the_relay() {
    if skip("drops_beside_the_relay") {
        return;
    }
    let lab = pair(TrunkSpec {
        tick_microseconds: 100_000,
        ..TrunkSpec::default()
    });
    let device = ["link", "set", "trunk0", "txqueuelen", "10"];
    output(lab.command("sender", "ip").args(device));
    let (a, _b, target) = sockets(&lab, "sender", "receiver");
    let mut sent = 0;
    wait_until("a burst comes between two ticks", || {
        for _ in 0..100 {
            a.send_to(&[0; 20], target).expect("send");
        }
        sent += 100;
        let now = lab.trunk(0).counters().expect("counters").a_to_b;
        now.dropped_kernel_packets > 0
    });
    let counters = settled(&lab, sent);
    assert_eq!(
        counters.link.offered.packets + counters.dropped_kernel_packets,
        sent
    );
    assert_eq!(counters.link.delivered, counters.link.offered);
    let reasons = lab.trunk(0).validity().expect("validity").reasons;
    assert!(
        reasons
            .iter()
            .any(|reason| reason.contains("dropped by the kernel")),
        "{reasons:?}"
    );
}
