//! How many datagrams a socket dropped, from what is missing in their sequence numbers.
//!
//! The kernel merges datagrams that follow each other into one packet before they reach the socket, and its counter of drops
//! counts such packets. So datagrams are counted where they are: as sequence numbers that never came while that counter moved. What is
//! missing beyond what the counter can explain was lost on the path.

/// Datagrams that the kernel merges into one packet at most (`UDP_MAX_SEGMENTS`).
const MERGED_MAX: u64 = 128;

/// Tells datagrams that a socket dropped from those that the path lost. O(1) memory and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    // The socket's counter as last seen.
    packets: u64,
    // Missing datagrams as last seen, at most.
    lost: u64,
    // How many further missing datagrams the packets dropped so far can hold.
    budget: u64,
    dropped: u64,
}

impl Overflow {
    /// Looks at what is missing now.
    ///
    /// * `lost`: datagrams sent so far that have not been seen; falls again when late ones are seen.
    /// * `packets`: the socket's counter of drops, which only grows.
    /// * `is_drained`: whether the socket was empty at this look, so that what it dropped before shows as missing already.
    pub fn observe(&mut self, lost: u64, packets: u64, is_drained: bool) {
        let more = packets.saturating_sub(self.packets);
        self.packets = self.packets.max(packets);
        self.budget = self.budget.saturating_add(more.saturating_mul(MERGED_MAX));
        let fresh = lost.saturating_sub(self.lost);
        self.lost = self.lost.max(lost);
        let dropped = fresh.min(self.budget);
        self.dropped += dropped;
        self.budget -= dropped;
        if is_drained && more == 0 {
            self.budget = 0;
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
            overflow.observe(packets * 32, packets, false);
        }
        assert_eq!(overflow.dropped(), 3200);
    }

    /// The counter moves when a packet is dropped, the gap shows only when what stood before it in the queue was taken.
    #[test]
    fn a_gap_may_show_later_than_the_drop() {
        let mut overflow = Overflow::default();
        overflow.observe(0, 3, false);
        overflow.observe(0, 3, false);
        overflow.observe(96, 3, false);
        assert_eq!(overflow.dropped(), 96);
    }

    /// What goes missing while the socket drops nothing is the path's loss, also after an overflow that is over.
    #[test]
    fn losses_of_the_path_are_none_of_the_socket_s() {
        let mut overflow = Overflow::default();
        overflow.observe(500, 0, false);
        assert_eq!(overflow.dropped(), 0);
        overflow.observe(532, 1, false);
        assert_eq!(overflow.dropped(), 32);
        // Empty, and the counter rests: the packet's other datagrams are not missing.
        overflow.observe(532, 1, true);
        overflow.observe(600, 1, false);
        assert_eq!(overflow.dropped(), 32);
    }

    proptest! {
        /// Never more than is missing, never more than the packets can hold.
        #[test]
        fn bounds_hold(looks in proptest::collection::vec((0u64..500, 0u64..5, any::<bool>()), 1..100)) {
            let (mut overflow, mut packets, mut most) = (Overflow::default(), 0, 0);
            for (lost, more, is_drained) in looks {
                packets += more;
                most = most.max(lost);
                overflow.observe(lost, packets, is_drained);
                prop_assert!(overflow.dropped() <= most.min(packets * MERGED_MAX));
            }
        }
    }
}
