//! What happened when: of each second, the rate of every node and what held the transfer back. Seconds are merged where there are many.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_model::{Instant, Nanos};

use super::arrivals::SECOND_TIME;
use super::bottleneck::Cause;
use super::{Coordinator, Node};

/// Points that are kept: as many as a plot shows. With one more, two neighbours each become one.
pub const POINTS_MAX: usize = 240;

/// Of more nodes only the sum is kept.
pub const NODES_MAX: usize = 64;

/// Causes of a point; what has less of it is none that a plot shows.
const CAUSES_MAX: usize = 8;

/// Seconds whose causes are the latest ones: nodes report once or twice in one.
const LATEST: usize = 3;

/// One or more seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// Its end, from the first grant on.
    pub end: Nanos,
    /// How long it is.
    pub length: Nanos,
    /// Bytes per second that were received from each node, and by each node; of all together where there are too many.
    pub sent: Vec<f64>,
    /// See `sent`.
    pub received: Vec<f64>,
    /// What held the transfer back, in shares of 1, the largest first; empty where nothing was seen.
    pub causes: Vec<(Cause, f64)>,
}

/// All points so far.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    points: Vec<Point>,
    // Length of a point, in seconds.
    step: u64,
    // What the causes had at the last point.
    causes: BTreeMap<Cause, f64>,
    // What was added to them in each of the last seconds.
    latest: VecDeque<Vec<(Cause, f64)>>,
}

/// Two points as one.
fn join(first: &Point, second: &Point) -> Point {
    let length = first.length.0 + second.length.0;
    let part = |point: &Point| point.length.0 as f64 / length.max(1) as f64;
    let (a, b) = (part(first), part(second));
    let rates = |first: &[f64], second: &[f64]| {
        let at = |rates: &[f64], node: usize| rates.get(node).copied().unwrap_or(0.0);
        let nodes = first.len().max(second.len());
        let mean = |node| a * at(first, node) + b * at(second, node);
        (0..nodes).map(mean).collect()
    };
    let mut causes: BTreeMap<Cause, f64> = BTreeMap::new();
    for (point, part) in [(first, a), (second, b)] {
        for (cause, share) in &point.causes {
            *causes.entry(cause.clone()).or_default() += share * part;
        }
    }
    Point {
        end: second.end,
        length: Nanos(length),
        sent: rates(&first.sent, &second.sent),
        received: rates(&first.received, &second.received),
        causes: largest(causes, 1.0),
    }
}

/// The largest causes, their times as shares of `all`.
fn largest(causes: BTreeMap<Cause, f64>, all: f64) -> Vec<(Cause, f64)> {
    let mut causes: Vec<(Cause, f64)> = causes
        .into_iter()
        .filter(|(_, time)| *time > 0.0)
        .map(|(cause, time)| (cause, time / all))
        .collect();
    causes.sort_by(|a, b| b.1.total_cmp(&a.1));
    causes.truncate(CAUSES_MAX);
    causes
}

impl Timeline {
    fn end(&self) -> Nanos {
        self.points.last().map_or(Nanos::ZERO, |point| point.end)
    }

    fn add(&mut self, point: Point) {
        self.step = self.step.max(1);
        let step = self.step * SECOND_TIME.0;
        let last = self.points.last_mut();
        match last.filter(|last| last.length.0 + SECOND_TIME.0 / 2 < step) {
            Some(last) => *last = join(last, &point),
            None => self.points.push(point),
        }
        if self.points.len() > POINTS_MAX {
            let pairs = self.points.chunks(2);
            self.points = pairs
                .map(|pair| match pair {
                    [first, second] => join(first, second),
                    rest => rest[0].clone(),
                })
                .collect();
            self.step *= 2;
        }
    }

    /// Keeps the causes of a second that has passed.
    fn keep_latest(&mut self, causes: &[(Cause, f64)]) {
        self.latest.truncate(LATEST - 1);
        self.latest.push_front(causes.to_vec());
    }

    /// Of the seconds that were kept, those in which anything was seen.
    fn latest_causes(&self) -> Vec<(Cause, f64)> {
        let seconds = self.latest.iter().filter(|causes| !causes.is_empty());
        let mut causes: BTreeMap<Cause, f64> = BTreeMap::new();
        for (cause, share) in seconds.clone().flatten() {
            *causes.entry(cause.clone()).or_default() += share;
        }
        largest(causes, seconds.count().max(1) as f64)
    }

    /// What was added to the causes since the last point, as shares.
    fn causes_since(&mut self, causes: &BTreeMap<Cause, f64>) -> Vec<(Cause, f64)> {
        let before = std::mem::replace(&mut self.causes, causes.clone());
        let added = causes.iter().map(|(cause, time)| {
            let had = before.get(cause).copied().unwrap_or(0.0);
            (cause.clone(), time - had)
        });
        let added: BTreeMap<Cause, f64> = added.collect();
        let all: f64 = added.values().sum();
        largest(added, all.max(1.0))
    }
}

impl Coordinator {
    /// Each second of the transfer, or several as one where it was long, from the first grant on.
    pub fn timeline(&self) -> &[Point] {
        &self.timeline.points
    }

    /// What held the transfer back in the last seconds, in shares of 1, the largest first; empty where nothing was seen in them.
    pub fn latest_causes(&self) -> Vec<(Cause, f64)> {
        self.timeline.latest_causes()
    }

    /// Notes a second that has passed, or, at the end, what has passed of the last one.
    pub(super) fn note_second(&mut self, now: Instant, is_last: bool) {
        let Some(moving_at) = self.clock.moving_at else {
            return;
        };
        let end = now.since(moving_at);
        let length = Nanos(end.0.saturating_sub(self.timeline.end().0));
        if length == Nanos::ZERO || length < SECOND_TIME && !is_last {
            return;
        }
        let causes = self.timeline.causes_since(self.bottleneck.times());
        self.timeline.keep_latest(&causes);
        let is_first = self.timeline.points.is_empty();
        let rate = |node: &Node, sends: bool| {
            let is_over = !node.alive() || !sends && node.done.is_some();
            let arrivals = if sends { &node.sent } else { &node.received };
            // Within its only second it may have reported once.
            match is_first && is_last {
                true => arrivals.total() as f64 * 1e9 / end.0 as f64,
                false => arrivals.rate(SECOND_TIME, is_over, now),
            }
        };
        let rates = |sends: bool| {
            let rates = self.nodes.iter().map(|node| rate(node, sends));
            match self.nodes.len() > NODES_MAX {
                true => vec![rates.sum()],
                false => rates.collect::<Vec<f64>>(),
            }
        };
        let (sent, received) = (rates(true), rates(false));
        self.timeline.add(Point {
            end,
            length,
            sent,
            received,
            causes,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(second: u64, rate: f64, causes: &[(Cause, f64)]) -> Point {
        Point {
            end: Nanos(second * SECOND_TIME.0),
            length: SECOND_TIME,
            sent: vec![rate],
            received: vec![0.0, rate],
            causes: causes.to_vec(),
        }
    }

    /// However long a transfer is, its points are few, follow each other, and have the mean of what they were made of.
    #[test]
    fn seconds_are_merged() {
        for seconds in [1, 240, 241, 5000] {
            let mut timeline = Timeline::default();
            for second in 1..=seconds {
                timeline.add(point(second, second as f64, &[]));
            }
            let points = &timeline.points;
            assert!(
                points.len() <= POINTS_MAX && points.len() * 3 > POINTS_MAX.min(seconds as usize)
            );
            let mut begin = 0;
            let mut bytes = 0.0;
            for point in points {
                assert_eq!(point.end.0 - point.length.0, begin);
                begin = point.end.0;
                bytes += point.received[1] * point.length.as_seconds();
            }
            assert_eq!(begin, seconds * SECOND_TIME.0);
            let expected = (seconds * (seconds + 1) / 2) as f64;
            assert!((bytes - expected).abs() < 1e-6 * expected, "{seconds}");
        }
    }

    /// The causes of two points are weighed by their lengths.
    #[test]
    fn causes_are_merged() {
        let first = point(1, 1.0, &[(Cause::Limit, 1.0)]);
        let mut second = point(4, 1.0, &[(Cause::Path(0, 1), 0.5), (Cause::Limit, 0.5)]);
        second.length = Nanos(3 * SECOND_TIME.0);
        let both = join(&first, &second);
        assert_eq!(
            both.causes,
            [(Cause::Limit, 0.625), (Cause::Path(0, 1), 0.375)]
        );
    }

    /// A point has what was added since the one before.
    #[test]
    fn causes_are_those_of_a_second() {
        let mut timeline = Timeline::default();
        let mut times = BTreeMap::from([(Cause::Limit, 10.0)]);
        assert_eq!(timeline.causes_since(&times), [(Cause::Limit, 1.0)]);
        assert_eq!(timeline.causes_since(&times), []);
        times.insert(Cause::Limit, 20.0);
        times.insert(Cause::SinkDisk(1), 30.0);
        let found = timeline.causes_since(&times);
        assert_eq!(found, [(Cause::SinkDisk(1), 0.75), (Cause::Limit, 0.25)]);
    }

    /// The latest causes are those of the last three seconds; one in which nothing was seen does not count.
    #[test]
    fn the_latest_causes_are_those_of_the_last_seconds() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.latest_causes(), []);
        timeline.keep_latest(&[(Cause::Limit, 1.0)]);
        timeline.keep_latest(&[(Cause::SinkDisk(1), 1.0)]);
        timeline.keep_latest(&[]);
        let both = [(Cause::SinkDisk(1), 0.5), (Cause::Limit, 0.5)];
        assert_eq!(timeline.latest_causes(), both);
        timeline.keep_latest(&[(Cause::SinkDisk(1), 1.0)]);
        assert_eq!(timeline.latest_causes(), [(Cause::SinkDisk(1), 1.0)]);
    }
}
