//! One processor, a receiver and loops, under three schedulers.

use ropewalk_model::Nanos;
use ropewalk_proto::rapid::monitor::{Score, SleepAverage, THRESHOLD, UleHistory};

/// What has the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The receiver.
    Receiver,
    /// One of the loops.
    Loop(usize),
}

/// A scheduler at work.
pub trait Processor {
    /// Gives the next `step_ns` to somebody; the receiver has work for `wants_ns`, which may be more or less than that, and sleeps for
    /// the rest of a step that it gets and does not need.
    fn step(&mut self, wants_ns: u64, step_ns: u64) -> Option<Task>;

    /// How it rates the receiver: dynamic bonus, interactivity score, or 0.
    fn level(&self) -> f64;
}

/// Fair shares: the task that has run least runs, for 4 ms at a time. A task that slept is owed nothing.
#[derive(Clone, Debug)]
pub struct Fair {
    // Of the receiver, then of the loops.
    ran_ns: Vec<u64>,
    current: usize,
    slice_ns: u64,
    was_ready: bool,
}

impl Fair {
    /// One tick.
    const SLICE_NS: u64 = 4_000_000;

    /// With so many loops.
    #[must_use]
    pub fn new(loops: usize) -> Self {
        Self {
            ran_ns: vec![0; loops + 1],
            current: 0,
            slice_ns: 0,
            was_ready: false,
        }
    }
}

impl Processor for Fair {
    fn step(&mut self, wants_ns: u64, step_ns: u64) -> Option<Task> {
        let ready = wants_ns > 0;
        let least = self.ran_ns[1..].iter().min().copied();
        if ready && !self.was_ready {
            // It wakes where the others are, no further back than what it is short of: nothing.
            self.ran_ns[0] = self.ran_ns[0].max(least.unwrap_or(0));
            if self.ran_ns[0] <= self.ran_ns[self.current] {
                self.slice_ns = 0;
            }
        }
        self.was_ready = ready;
        if self.slice_ns == 0 || (self.current == 0 && !ready) {
            let first = usize::from(!ready);
            self.current = (first..self.ran_ns.len()).min_by_key(|&task| self.ran_ns[task])?;
            self.slice_ns = Self::SLICE_NS;
        }
        let used = if self.current == 0 {
            wants_ns.min(step_ns)
        } else {
            step_ns
        };
        self.slice_ns = self.slice_ns.saturating_sub(step_ns);
        self.ran_ns[self.current] += used;
        Some(match self.current {
            0 => Task::Receiver,
            other => Task::Loop(other - 1),
        })
    }

    fn level(&self) -> f64 {
        0.0
    }
}

/// A task in one of two queues.
#[derive(Clone, Copy, Debug)]
struct Queued {
    // In the queue that is served now.
    current: bool,
    slice_ns: u64,
}

/// Two queues that change places when the first is empty: what 2.6's arrays and ULE's queues have in common.
#[derive(Clone, Debug)]
struct Queues {
    slice_ns: u64,
    // The receiver, then the loops.
    tasks: Vec<Queued>,
    was_ready: bool,
    // Whose turn it is among loops.
    next_loop: usize,
    running: Option<usize>,
}

impl Queues {
    fn new(loops: usize, slice_ns: u64) -> Self {
        let task = Queued {
            current: true,
            slice_ns,
        };
        Self {
            slice_ns,
            tasks: vec![task; loops + 1],
            was_ready: false,
            next_loop: 0,
            running: None,
        }
    }

    /// Serves the current queue, the receiver first. `interactive`: the receiver stays in it when its slice ends, and preempts.
    fn step(
        &mut self,
        wants_ns: u64,
        interactive: bool,
        to_current: bool,
        step_ns: u64,
    ) -> Option<Task> {
        let ready = wants_ns > 0;
        if ready && !self.was_ready {
            self.tasks[0].current |= to_current;
        }
        self.was_ready = ready;
        let loops = self.tasks.len() - 1;
        for _ in 0..2 {
            // A loop goes on until its slice ends, unless somebody better waits.
            let receiver = ready && self.tasks[0].current;
            let chosen = if receiver {
                Some(0)
            } else {
                let going = self
                    .running
                    .filter(|&task| task > 0 && self.tasks[task].current);
                going.or_else(|| {
                    (0..loops)
                        .map(|offset| 1 + (self.next_loop + offset) % loops)
                        .find(|&task| self.tasks[task].current)
                })
            };
            let Some(chosen) = chosen else {
                // The queue is empty: the other one takes its place.
                self.tasks.iter_mut().for_each(|task| task.current = true);
                continue;
            };
            self.running = Some(chosen);
            let task = &mut self.tasks[chosen];
            let used = if chosen == 0 {
                wants_ns.min(step_ns)
            } else {
                step_ns
            };
            task.slice_ns = task.slice_ns.saturating_sub(used);
            if task.slice_ns == 0 {
                task.slice_ns = self.slice_ns;
                task.current = chosen == 0 && interactive;
                self.running = None;
                if chosen > 0 {
                    self.next_loop = chosen % loops;
                }
            }
            return Some(match chosen {
                0 => Task::Receiver,
                other => Task::Loop(other - 1),
            });
        }
        None
    }
}

/// Linux 2.6: a task whose slice has ended waits in the expired array, unless its dynamic bonus makes it interactive.
#[derive(Clone, Debug)]
pub struct Linux26Arrays {
    queues: Queues,
    average: SleepAverage,
}

impl Linux26Arrays {
    /// Figure 1(a): what the kernel gave the loop at a time.
    const SLICE_NS: u64 = 10_000_000;
    /// Least bonus of an interactive task of ordinary niceness.
    const INTERACTIVE: i32 = 2;
    /// The receiver's average when the first packet comes. It is not printed; this one loses the interactive status after the 125 ms
    /// of Figure 1(b).
    const STARTS: Nanos = Nanos::from_millis(825);

    /// With so many loops.
    #[must_use]
    pub fn new(loops: usize) -> Self {
        Self {
            queues: Queues::new(loops, Self::SLICE_NS),
            average: SleepAverage::new(Self::STARTS),
        }
    }
}

impl Processor for Linux26Arrays {
    fn step(&mut self, wants_ns: u64, step_ns: u64) -> Option<Task> {
        let interactive = self.average.bonus() >= Self::INTERACTIVE;
        // A task that wakes always joins the active array.
        let task = self.queues.step(wants_ns, interactive, true, step_ns);
        if task == Some(Task::Receiver) {
            let used = wants_ns.min(step_ns);
            self.average.run(Nanos(used));
            self.average.sleep(Nanos(step_ns - used));
        } else if wants_ns == 0 {
            self.average.sleep(Nanos(step_ns));
        }
        task
    }

    fn level(&self) -> f64 {
        self.average.bonus().into()
    }
}

/// ULE: tasks below the threshold of the interactivity score always join the current queue, others the next.
#[derive(Clone, Debug)]
pub struct UleQueues {
    queues: Queues,
    history: UleHistory,
}

impl UleQueues {
    const SLICE_NS: u64 = 10_000_000;

    /// With so many loops.
    #[must_use]
    pub fn new(loops: usize) -> Self {
        Self {
            queues: Queues::new(loops, Self::SLICE_NS),
            history: UleHistory {
                run: Nanos::ZERO,
                sleep: Nanos::from_millis(500),
            },
        }
    }
}

impl Processor for UleQueues {
    fn step(&mut self, wants_ns: u64, step_ns: u64) -> Option<Task> {
        let interactive = self.level() < THRESHOLD;
        let task = self
            .queues
            .step(wants_ns, interactive, interactive, step_ns);
        if task == Some(Task::Receiver) {
            let used = wants_ns.min(step_ns);
            self.history.add(Nanos(used), Nanos(step_ns - used));
        } else if wants_ns == 0 {
            self.history.add(Nanos::ZERO, Nanos(step_ns));
        }
        task
    }

    fn level(&self) -> f64 {
        Score::Monotone.of(self.history.run, self.history.sleep)
    }
}
