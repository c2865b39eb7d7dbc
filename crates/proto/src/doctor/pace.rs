//! How fast a transfer is over time, and whether that is how fast a long one would be.

use std::collections::VecDeque;

/// Before this, a transfer gets up to speed: a second of that, and two that count.
const SECONDS_MIN: f64 = 3.2;

/// By then a path is known well enough: windows of many streams over a long path that loses packets take that long to find their size.
const SECONDS_MAX: f64 = 8.0;

/// A rate is that of so many seconds.
const WINDOW: f64 = 2.0;

/// Rates, of the last window and those since the one before, that differ by less than this part are the same.
const SAME: f64 = 0.05;

/// The last that a transfer said of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Since bytes flowed.
    pub seconds: f64,
    /// Bytes received in these.
    pub bytes: u64,
    /// Over the last two seconds.
    pub bits_per_second: f64,
}

impl Pace {
    /// The time that getting up to speed has cost: what the bytes took longer than they would have at the last rate.
    #[must_use]
    pub fn ramp_seconds(&self) -> f64 {
        match self.bits_per_second > 0.0 {
            true => (self.seconds - self.bytes as f64 * 8.0 / self.bits_per_second).max(0.0),
            false => 0.0,
        }
    }
}

/// Of three that are kept in a row the first and the last are so far apart: a transfer says something every half second, and takes no more
/// memory where it says more.
const APART: f64 = 0.1;

/// What a transfer said of itself in the last seconds.
#[derive(Clone, Debug, Default)]
pub struct Paces(VecDeque<Pace>);

/// Whether a window lies between them.
fn is_before(pace: &Pace, last: &Pace) -> bool {
    pace.seconds <= last.seconds - WINDOW
}

impl Paces {
    /// Takes what it says now.
    pub fn note(&mut self, pace: Pace) {
        let last_but_one = self.0.len().checked_sub(2).map(|place| self.0[place]);
        let is_apart = |before: Pace| pace.seconds - before.seconds >= APART;
        if last_but_one.is_some_and(|before| !is_apart(before)) {
            self.0.pop_back();
        }
        self.0.push_back(pace);
        // The newest from before the window begins it.
        while self.0.get(1).is_some_and(|next| is_before(next, &pace)) {
            self.0.pop_front();
        }
    }

    /// The last one.
    #[must_use]
    pub fn last(&self) -> Option<Pace> {
        self.0.back().copied()
    }

    /// Whether it took long enough for a rate of its last seconds to be there, after it began.
    #[must_use]
    pub fn has_rate(&self) -> bool {
        self.last().is_some_and(|last| last.seconds >= SECONDS_MIN)
    }

    /// Whether the rate will stay: two windows in a row have the same one, or it took as long as it may.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let Some(last) = self.last().filter(|_| self.has_rate()) else {
            return false;
        };
        let first = self.0.front();
        // All since then: what rose and falls again passes the same rate twice.
        let is_same = first.is_some_and(|first| is_before(first, &last))
            && self.0.iter().all(|pace| {
                let differs = (pace.bits_per_second - last.bits_per_second).abs();
                differs <= SAME * last.bits_per_second
            });
        // Where nothing moves now, more may later.
        let moves = last.bits_per_second > 0.0;
        (moves && is_same) || last.seconds >= SECONDS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a transfer of these rates, each of half a second, has settled.
    fn settles(rate: impl Fn(f64) -> f64) -> Pace {
        let mut paces = Paces::default();
        let (mut seconds, mut bytes) = (0.0, 0.0);
        while !paces.is_settled() {
            bytes += rate(seconds) / 16.0;
            seconds += 0.5;
            let steps = [0.0, 0.5, 1.0, 1.5].map(|ago| seconds - 0.5 - ago);
            let steps = steps.into_iter().filter(|at| *at >= 0.0);
            let window: Vec<f64> = steps.map(&rate).collect();
            paces.note(Pace {
                seconds,
                bytes: bytes as u64,
                bits_per_second: window.iter().sum::<f64>() / window.len() as f64,
            });
        }
        paces.last().unwrap()
    }

    /// A path whose rate is there at once is measured for three seconds, one that grows or falls until it stays, one that never does for eight.
    #[test]
    fn rates_are_measured_until_they_stay() {
        let at_once = settles(|_| 100e6);
        assert_eq!((at_once.seconds, at_once.bits_per_second), (3.5, 100e6));
        assert_eq!(at_once.ramp_seconds(), 0.0);
        let stalls = settles(|at| if (1.0..5.0).contains(&at) { 0.0 } else { 100e6 });
        assert_eq!(stalls.bits_per_second, 100e6);
        // Slow start over a long path: 2.4 seconds with half of the bytes.
        let grows = settles(|at| if at < 2.0 { 200e6 } else { 400e6 });
        assert!(
            (380e6..=400e6).contains(&grows.bits_per_second),
            "{grows:?}"
        );
        assert!((0.7..=1.1).contains(&grows.ramp_seconds()), "{grows:?}");
        // Windows that were too large for the losses.
        let falls = settles(|at| if at < 3.0 { 165e6 } else { 130e6 });
        assert!(
            (130e6..=140e6).contains(&falls.bits_per_second),
            "{falls:?}"
        );
        assert_eq!(falls.ramp_seconds(), 0.0);
        // Both: slow start, and then windows that are too large.
        let falls_again = settles(|at| match at {
            ..1.0 => 110e6,
            1.0..2.0 => 166e6,
            2.0..3.0 => 157e6,
            3.0..5.0 => 141e6,
            _ => 132e6,
        });
        let rate = falls_again.bits_per_second;
        assert!((132e6..=137e6).contains(&rate), "{falls_again:?}");
        let never = settles(|at| 1e6 * (1.0 + at * at));
        assert_eq!(never.seconds, 8.0);
    }

    /// However long a transfer takes, and however often it says so, what is kept is that of one window, and the last of it is the newest.
    #[test]
    fn paces_are_bounded() {
        let most = (2.0 * WINDOW / APART) as usize + 4;
        for pause in [0.0, 0.001, 0.03, 0.5, 7.0] {
            let mut paces = Paces::default();
            for number in 0..10_000_u32 {
                let pace = Pace {
                    seconds: f64::from(number) * pause,
                    bytes: number.into(),
                    bits_per_second: 1e6,
                };
                paces.note(pace);
                assert_eq!(paces.last(), Some(pace));
                assert!(paces.0.len() <= most, "{} at {pause}", paces.0.len());
            }
            assert_eq!(paces.is_settled(), pause > 0.0);
        }
        // A clock that says nothing, or goes back.
        let mut paces = Paces::default();
        for number in 0..1000 {
            let seconds = [f64::NAN, 5.0, 1.0][number % 3];
            paces.note(Pace {
                seconds,
                ..Pace::default()
            });
            assert!(paces.0.len() <= most);
        }
    }

    /// Nothing is known of what moved nothing.
    #[test]
    fn nothing_is_no_rate() {
        let mut paces = Paces::default();
        assert!(!paces.is_settled() && !paces.has_rate());
        paces.note(Pace::default());
        assert!(!paces.is_settled() && !paces.has_rate());
        assert_eq!(paces.last().unwrap().ramp_seconds(), 0.0);
    }
}
