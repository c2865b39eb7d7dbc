//! How many datagrams a socket dropped, from what is missing in their sequence numbers.
//!
//! The kernel merges datagrams that follow each other into one packet before they reach the socket, and its counter of drops
//! counts such packets. So datagrams are counted where they are: as sequence numbers that never arrived while that counter moved. What is
//! missing beyond what the counter can explain was lost on the path.

/// Datagrams that the kernel merges into one packet at most (`UDP_MAX_SEGMENTS`).
const MERGED_MAX: u64 = 128;

/// Distinguishes datagrams that a socket dropped from those that the path lost. O(1) memory and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    // The socket's counter as last seen.
    packets: u64,
    // Missing datagrams as last seen, at most.
    lost: u64,
    // How many further missing datagrams the packets dropped so far can hold.
    budget: u64,
    // The sequence when the socket was first found empty after the counter had moved.
    emptied_at: Option<u64>,
    dropped: u64,
}

impl Overflow {
    /// Looks at what is missing now.
    ///
    /// * `lost`: datagrams sent so far that have not been seen; falls again when late ones are seen.
    /// * `next_sequence`: one more than the highest sequence number seen.
    /// * `packets`: the socket's counter of drops, which only grows.
    /// * `is_drained`: whether the socket was empty at this look.
    pub fn observe(&mut self, lost: u64, next_sequence: u64, packets: u64, is_drained: bool) {
        let more = packets.saturating_sub(self.packets);
        self.packets = self.packets.max(packets);
        self.budget = self.budget.saturating_add(more.saturating_mul(MERGED_MAX));
        let fresh = lost.saturating_sub(self.lost);
        self.lost = self.lost.max(lost);
        let dropped = fresh.min(self.budget);
        self.dropped += dropped;
        self.budget -= dropped;
        if more > 0 {
            self.emptied_at = None;
        } else if is_drained {
            match self.emptied_at {
                None => self.emptied_at = Some(next_sequence),
                // A datagram that was queued after the drops shows all of them as missing.
                Some(before) if next_sequence > before => self.budget = 0,
                Some(_) => {}
            }
        }
    }

    /// Whether a look is due: something is missing that was not before.
    #[must_use]
    pub fn is_due(&self, lost: u64) -> bool {
        lost > self.lost
    }

    /// Datagrams dropped at the socket so far: never more than were missing at any time.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Packets of 32 datagrams each are dropped: all that is missing counts, not the packets.
    #[test]
    fn merged_packets_count_as_their_datagrams() {
        let mut overflow = Overflow::default();
        for packets in 1..=100 {
            assert!(overflow.is_due(packets * 32));
            overflow.observe(packets * 32, packets * 40, packets, false);
        }
        assert_eq!(overflow.dropped(), 3200);
    }

    /// The counter moves when a packet is dropped, the gap shows only when what stood before it in the queue was taken.
    #[test]
    fn a_gap_may_show_later_than_the_drop() {
        let mut overflow = Overflow::default();
        overflow.observe(0, 10, 3, false);
        overflow.observe(0, 10, 3, false);
        overflow.observe(96, 107, 3, false);
        assert_eq!(overflow.dropped(), 96);
    }

    /// The last datagrams of a round are dropped: the socket is empty, and nothing shows the gap before the next round.
    #[test]
    fn a_gap_at_the_end_shows_with_the_next_round() {
        let mut overflow = Overflow::default();
        overflow.observe(32, 100, 1, false);
        overflow.observe(32, 100, 4, true);
        overflow.observe(32, 120, 4, true);
        overflow.observe(32, 120, 4, true);
        overflow.observe(32 + 96, 217, 4, false);
        assert_eq!(overflow.dropped(), 128);
    }

    /// What goes missing while the socket drops nothing is the path's loss, also after an overflow that is over.
    #[test]
    fn losses_of_the_path_are_none_of_the_socket_s() {
        let mut overflow = Overflow::default();
        overflow.observe(500, 1000, 0, false);
        assert_eq!(overflow.dropped(), 0);
        overflow.observe(532, 1100, 1, false);
        assert_eq!(overflow.dropped(), 32);
        // Empty twice, with datagrams between, and the counter rests: the packet's other datagrams are not missing.
        overflow.observe(532, 1200, 1, true);
        overflow.observe(532, 1300, 1, true);
        overflow.observe(600, 1400, 1, false);
        assert_eq!(overflow.dropped(), 32);
    }

    proptest! {
        /// Never more than is missing, never more than the packets can hold.
        #[test]
        fn bounds_hold(looks in proptest::collection::vec((0u64..500, 0u64..5, any::<bool>()), 1..100)) {
            let (mut overflow, mut packets, mut most) = (Overflow::default(), 0, 0);
            for (at, (lost, more, is_drained)) in looks.into_iter().enumerate() {
                packets += more;
                most = most.max(lost);
                overflow.observe(lost, at as u64 / 2, packets, is_drained);
                prop_assert!(overflow.dropped() <= most.min(packets * MERGED_MAX));
            }
        }
    }
}
