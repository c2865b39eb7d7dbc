//! A simulation of the observed situation, run beside the transfer by its driver.

use super::{Answer, Policy, PolicyName, Question, TOTALS, fewest};
use crate::{Limits, Situation};

/// A situation that differs by less than this factor in rate, round trip and queue, and by less than its square in loss,
/// has been simulated already.
const NEAR: f64 = 1.5;

/// Loss below this is none.
const LOSS_MIN: f64 = 1e-4;

/// Asks for simulations of the present situation and takes the fewest streams that do as well as the best.
#[derive(Clone, Debug, Default)]
pub struct Simulate {
    waiting: Option<Question>,
    asked: Option<Situation>,
    newest: Option<(Situation, f64)>,
}

fn near(one: &Situation, other: &Situation) -> bool {
    let close = |a: f64, b: f64, factor: f64| (a / b).max(b / a) < factor;
    one.nodes == other.nodes
        && close(one.rate, other.rate, NEAR)
        && close(one.rtt_seconds, other.rtt_seconds, NEAR)
        && close(one.queue, other.queue, NEAR)
        && close(
            one.loss.max(LOSS_MIN),
            other.loss.max(LOSS_MIN),
            NEAR * NEAR,
        )
}

impl Policy for Simulate {
    fn name(&self) -> PolicyName {
        PolicyName::Simulate
    }

    fn best(&mut self, situation: &Situation) -> Option<f64> {
        if self.asked.is_none_or(|asked| !near(&asked, situation)) {
            let limits = Limits {
                nodes: situation.nodes,
                streams: u32::MAX,
                trunk: Some(situation.rate),
                access: situation.access,
            };
            let mut settings = TOTALS.map(|total| limits.split(f64::from(total))).to_vec();
            settings.dedup();
            self.asked = Some(*situation);
            self.waiting = Some(Question {
                situation: *situation,
                settings,
            });
        }
        let newest = self.newest.filter(|(of, _)| near(of, situation));
        newest.map(|(_, total)| total)
    }

    fn poll_question(&mut self) -> Option<Question> {
        self.waiting.take()
    }

    fn handle_answer(&mut self, answer: &Answer) {
        let totals = answer.question.settings.iter().map(|one| one.total());
        let curve = totals.zip(answer.shares.iter().copied());
        if let Some(total) = fewest(curve) {
            self.newest = Some((answer.question.situation, total));
        }
    }
}
