//! Runs the simulations that tuning asks for beside the transfer: one thread at most, of bounded work.

use std::sync::mpsc::{Receiver, TryRecvError, channel};

use ropewalk_tcp_sim::Invalid;
use ropewalk_tcp_sim::tune::{self, EVENTS_MAX};
use ropewalk_tuner::{Answer, Question};

/// At most one simulation at a time; what is asked meanwhile waits, and only the newest.
#[derive(Debug, Default)]
pub(crate) struct Adviser {
    working: Option<Receiver<Result<Answer, Invalid>>>,
    next: Option<Question>,
}

impl Adviser {
    /// Starts a simulation, or puts it off while one runs.
    pub fn ask(&mut self, question: Question) {
        if self.working.is_some() {
            self.next = Some(question);
            return;
        }
        let (sender, receiver) = channel();
        let work = move || {
            let _ = sender.send(tune::answer(&question, EVENTS_MAX));
        };
        let thread = std::thread::Builder::new().name("simulate".into());
        // Without a thread there is no advice, and the number of streams stays.
        self.working = thread.spawn(work).is_ok().then_some(receiver);
    }

    /// An answer, if one has arrived; an error where the question cannot be simulated.
    pub fn answer(&mut self) -> Option<Result<Answer, Invalid>> {
        let answer = match self.working.as_ref()?.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => None,
        };
        self.working = None;
        if let Some(next) = self.next.take() {
            self.ask(next);
        }
        answer
    }
}
