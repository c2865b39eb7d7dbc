//! Results of a run.

/// Packets dropped by full queues, by where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Queues of links at sending nodes.
    pub access: u64,
    /// Queues between routers.
    pub trunk: u64,
    /// Queues of links at receiving nodes.
    pub egress: u64,
}

/// One connection at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowOutcome {
    /// When its last acknowledgement arrived.
    pub done_seconds: Option<f64>,
    /// Packets sent, the SYN and repeated ones included.
    pub sent: u64,
    /// Packets sent again, SYNs included.
    pub retransmitted: u64,
    /// Expired timers while something was outstanding.
    pub timeouts: u64,
    /// Data packets acknowledged.
    pub acknowledged: u64,
}

/// One connection at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub seconds: f64,
    /// Whose.
    pub flow: u32,
    /// Congestion window.
    pub window: f64,
    /// Slow start threshold.
    pub ssthresh: i64,
    /// Last packet acknowledged; the SYN is 0, -1 before.
    pub acknowledged: i64,
    /// Highest packet sent.
    pub sent_max: i64,
    /// Packets sent again so far.
    pub retransmitted: u64,
    /// Timeouts so far.
    pub timeouts: u64,
    /// Packets sent so far.
    pub sent: u64,
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether every connection ended before the limit.
    pub is_completed: bool,
    /// End of the last connection, or the limit.
    pub seconds: f64,
    /// The connections in the scenario's order.
    pub flows: Vec<FlowOutcome>,
    /// Packets that queues dropped.
    pub drops: Drops,
    /// Packets lost on the way by chance.
    pub lost: u64,
    /// Deliveries of packets over links, and timers that expired: what the simulator had to do.
    pub events: u64,
    /// Samples in order of time, then connection.
    pub trace: Vec<Sample>,
}

impl Outcome {
    /// When the first connection ended.
    #[must_use]
    pub fn first_done_seconds(&self) -> Option<f64> {
        self.ends().first().copied()
    }

    /// The median of when connections ended, of those that did; of two in the middle, the mean.
    #[must_use]
    pub fn median_done_seconds(&self) -> Option<f64> {
        let ends = self.ends();
        match ends.len() {
            0 => None,
            many if many % 2 == 1 => Some(ends[many / 2]),
            many => Some(f64::midpoint(ends[many / 2 - 1], ends[many / 2])),
        }
    }

    fn ends(&self) -> Vec<f64> {
        let mut ends: Vec<f64> = self.flows.iter().filter_map(|f| f.done_seconds).collect();
        ends.sort_by(f64::total_cmp);
        ends
    }

    fn sum(&self, count: impl Fn(&FlowOutcome) -> u64) -> u64 {
        self.flows.iter().map(count).sum()
    }

    /// Packets sent, SYNs and repeated ones included.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sum(|flow| flow.sent)
    }

    /// Packets sent again.
    #[must_use]
    pub fn retransmitted(&self) -> u64 {
        self.sum(|flow| flow.retransmitted)
    }

    /// Timeouts.
    #[must_use]
    pub fn timeouts(&self) -> u64 {
        self.sum(|flow| flow.timeouts)
    }

    /// Data packets acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.sum(|flow| flow.acknowledged)
    }
}
