//! A monitor whose advice is late: what the paper did to make round trips long (section 4), as a decorator of a shipped monitor.

use std::collections::VecDeque;

use ropewalk_model::{Instant, Nanos};
use ropewalk_proto::rapid::monitor::{Advice, Monitor, Sample};

/// Gives what the inner monitor advises, `delay` later; the inner one sees a round trip that is longer by as much.
pub(super) struct Late {
    inner: Box<dyn Monitor>,
    delay: Nanos,
    // With the time at which each is given, in order.
    held: VecDeque<(Instant, Advice)>,
}

impl Late {
    pub fn new(inner: Box<dyn Monitor>, delay: Nanos) -> Self {
        Self {
            inner,
            delay,
            held: VecDeque::new(),
        }
    }
}

impl Monitor for Late {
    fn poll(&mut self, sample: &Sample) -> Advice {
        let advice = self.inner.poll(&Sample {
            rtt: sample.rtt + self.delay,
            ..*sample
        });
        if advice != Advice::default() {
            self.held.push_back((sample.now + self.delay, advice));
        }
        let mut due = Advice::default();
        while let Some((_, next)) = self.held.pop_front_if(|(at, _)| *at <= sample.now) {
            due.ceiling = next.ceiling.or(due.ceiling);
            due.suspend = next.suspend.or(due.suspend);
        }
        due
    }

    fn level(&self) -> f64 {
        self.inner.level()
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_model::ByteRate;

    use super::*;

    /// Advises a ceiling of as many bytes as the time in nanoseconds, and suspends for its round trip at 1.
    struct Clock;

    impl Monitor for Clock {
        fn poll(&mut self, sample: &Sample) -> Advice {
            Advice {
                ceiling: Some(ByteRate(sample.now.0)),
                suspend: (sample.now == Instant(1)).then_some(sample.rtt),
            }
        }

        fn level(&self) -> f64 {
            0.5
        }
    }

    /// Advice comes later by the delay, the newest of what is due counts, and no suspension is lost.
    #[test]
    fn advice_is_late() {
        let mut late = Late::new(Box::new(Clock), Nanos(10));
        let mut poll = |now| {
            let sample = Sample {
                now: Instant(now),
                rtt: Nanos(5),
                ..Sample::default()
            };
            late.poll(&sample)
        };
        assert_eq!([0, 1, 2, 9].map(&mut poll), [Advice::default(); 4]);
        let of = |ceiling, suspend: Option<u64>| Advice {
            ceiling: Some(ByteRate(ceiling)),
            suspend: suspend.map(Nanos),
        };
        assert_eq!(poll(10), of(0, None));
        assert_eq!(poll(12), of(2, Some(15)));
    }
}
