//! Situations and the rates that numbers of streams reached there: simulated ones are shipped, seen ones are added.

use super::{Answer, Policy, PolicyName, TOTALS, fewest};
use crate::Situation;

/// What is shipped; made by `cargo run --release -p ropewalk-measure --example tuner_seed`.
const SHIPPED: &str = include_str!("../seed.txt");

/// Neighbours that are weighed.
const NEIGHBOURS: usize = 4;

/// Added to the squares of distances: an exact match does not silence its neighbours, which noise may have set apart.
const SOFT: f64 = 0.05;

/// A lesson this near (in factors of two, over all measures together) belongs to the same situation.
const SAME: f64 = 0.3;

/// Part of a learned share that the newest observation makes up.
const NEWEST: f64 = 0.5;

/// Lessons that are kept beside the shipped ones: 100 bytes each.
const LESSONS_MAX: usize = 2000;

/// Losses below this are none.
const LOSS_MIN: f64 = 1e-4;

/// The rates that numbers of streams reached in one situation.
#[derive(Clone, Debug, PartialEq)]
pub struct Lesson {
    /// Nodes, segments in the path, segments in its queue, round trip, loss, window: what situations are compared by.
    key: [f64; 6],
    /// Part of the path's rate by total, in the order of [`TOTALS`]; below 0: nobody tried.
    shares: [f64; TOTALS.len()],
}

fn key(of: &Situation) -> [f64; 6] {
    let loss = of.loss.max(LOSS_MIN);
    let values = [
        f64::from(of.nodes),
        of.pipe(),
        of.queue.max(1.0),
        of.rtt_seconds,
        loss,
        of.window,
    ];
    values.map(f64::log2)
}

// Some measures matter more than others to the number of streams.
const WEIGHTS: [f64; 6] = [0.3, 1.0, 0.7, 0.7, 0.8, 0.5];

fn distance(one: &[f64; 6], other: &[f64; 6]) -> f64 {
    let parts = one.iter().zip(other).zip(WEIGHTS);
    parts
        .map(|((a, b), weight)| (weight * (a - b)).powi(2))
        .sum()
}

impl Lesson {
    /// A simulated one: shares by total.
    #[must_use]
    pub fn new(situation: &Situation, curve: &[(u32, f64)]) -> Self {
        let mut shares = [-1.0; TOTALS.len()];
        for &(total, share) in curve {
            if let Some(at) = TOTALS.iter().position(|known| *known == total) {
                shares[at] = share;
            }
        }
        Self {
            key: key(situation),
            shares,
        }
    }

    /// Of a simulation that was asked for.
    #[must_use]
    pub fn simulated(answer: &Answer) -> Self {
        let totals = answer.question.settings.iter().map(|one| one.total());
        let curve: Vec<(u32, f64)> = totals.zip(answer.shares.iter().copied()).collect();
        Self::new(&answer.question.situation, &curve)
    }

    /// One line: six logarithms, then shares in thousandths, `-` for those that were not tried.
    #[must_use]
    pub fn format(&self) -> String {
        let key = self.key.iter().map(|value| format!("{value:.2}"));
        let shares = self.shares.iter().map(|share| match *share < 0.0 {
            true => "-".to_owned(),
            false => format!("{:.0}", share * 1000.0),
        });
        key.chain(shares).collect::<Vec<_>>().join(" ")
    }

    /// The reverse of [`format`](Self::format); `None` for anything else.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let mut key = [0.0; 6];
        for value in &mut key {
            *value = words.next()?.parse().ok().filter(|v: &f64| v.is_finite())?;
        }
        let mut shares = [-1.0; TOTALS.len()];
        for share in &mut shares {
            *share = match words.next()? {
                "-" => -1.0,
                word => word.parse::<u32>().ok().map(f64::from)? / 1000.0,
            };
        }
        words.next().is_none().then_some(Self { key, shares })
    }

    fn best(&self) -> Option<f64> {
        let tried = TOTALS.into_iter().zip(self.shares);
        fewest(tried.filter(|(_, share)| *share >= 0.0))
    }
}

/// The policy.
#[derive(Clone, Debug, Default)]
pub struct Database {
    lessons: Vec<Lesson>,
    // The first ones are shipped and never dropped.
    shipped: usize,
}

/// Joins a lesson with the one about the same situation, or adds it. The first ones stay what they are.
fn enter(lessons: &mut Vec<Lesson>, fixed: usize, lesson: Lesson) {
    let same = lessons[fixed..]
        .iter_mut()
        .find(|known| distance(&known.key, &lesson.key) < SAME * SAME);
    if let Some(known) = same {
        for (old, new) in known.shares.iter_mut().zip(lesson.shares) {
            if new >= 0.0 {
                *old = match *old < 0.0 {
                    true => new,
                    false => NEWEST * new + (1.0 - NEWEST) * *old,
                };
            }
        }
        return;
    }
    if lessons.len() - fixed >= LESSONS_MAX {
        lessons.remove(fixed);
    }
    lessons.push(lesson);
}

impl Database {
    /// What is shipped.
    #[must_use]
    pub fn shipped() -> Self {
        let lines = SHIPPED.lines().filter(|line| !line.starts_with('#'));
        let lessons: Vec<Lesson> = lines.filter_map(Lesson::parse).collect();
        Self {
            shipped: lessons.len(),
            lessons,
        }
    }

    /// Lessons that it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lessons.len()
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lessons.is_empty()
    }

    /// Adds one.
    pub fn add(&mut self, lesson: Lesson) {
        enter(&mut self.lessons, self.shipped, lesson);
    }

    /// All that it holds beside what is shipped, one line each, the oldest first.
    #[must_use]
    pub fn kept(&self) -> Vec<String> {
        self.lessons[self.shipped..]
            .iter()
            .map(Lesson::format)
            .collect()
    }
}

impl Policy for Database {
    fn name(&self) -> PolicyName {
        PolicyName::Database
    }

    /// The best totals of the nearest situations, weighed by nearness, in logarithms.
    fn best(&mut self, situation: &Situation) -> Option<f64> {
        let wanted = key(situation);
        // One total tried in a situation says nothing of others.
        let useful = self
            .lessons
            .iter()
            .filter(|one| one.shares.iter().filter(|share| **share >= 0.0).count() > 1);
        let mut near: Vec<(f64, &Lesson)> = useful
            .map(|one| (distance(&one.key, &wanted), one))
            .collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut sum, mut weights) = (0.0, 0.0);
        for (squared, lesson) in near.into_iter().take(NEIGHBOURS) {
            let weight = 1.0 / (squared + SOFT);
            sum += weight * lesson.best()?.log2();
            weights += weight;
        }
        (weights > 0.0).then(|| (sum / weights).exp2())
    }

    fn learn(&mut self, situation: &Situation, total: u32, share: f64) {
        let near = |known: &u32| (f64::from(*known) / f64::from(total)).log2().abs() < 0.5;
        if let Some(known) = TOTALS.into_iter().find(near) {
            self.add(Lesson::new(situation, &[(known, share)]));
        }
    }

    fn recall(&mut self, line: &str) -> bool {
        let lesson = Lesson::parse(line);
        let makes_sense = lesson.is_some();
        if let Some(lesson) = lesson {
            self.add(lesson);
        }
        makes_sense
    }
}
