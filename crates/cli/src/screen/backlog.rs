//! What waits to be shown while readers take nothing: which events are kept, in which order, and which are lost. Pure.

use std::collections::VecDeque;

/// Events that wait at most, those of which the newest is enough apart.
pub(super) const EVENTS_MAX: usize = 1024;

/// Of these, those that are joined.
const JOINED_MAX: usize = EVENTS_MAX / 2;

/// What becomes of an event while readers take nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// The newest of those with the same number is enough: it takes the place of an older one, at the end.
    Newest(u8),
    /// Each is shown, in order, while there is space; without space it is lost and counted.
    Each,
    /// As [`Keeping::Each`], but of those with the same number that wait, the last one makes way for a newer one when they take half of the
    /// space: it says what they said, too.
    Joined(u8),
    /// As [`Keeping::Each`], and the program waits for space first: there may be any number of them, and none may be lost.
    Awaited,
}

/// What is shown next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<E> {
    Event(E),
    /// So many events were lost here.
    Omitted(u64),
}

#[derive(Debug)]
pub(super) struct Backlog<E> {
    waiting: VecDeque<(Next<E>, Option<Keeping>)>,
    /// Those that are not replaced by newer ones.
    kept: usize,
    awaited: usize,
    joined: usize,
}

impl<E> Default for Backlog<E> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            kept: 0,
            awaited: 0,
            joined: 0,
        }
    }
}

impl<E> Backlog<E> {
    /// Takes an event in.
    pub fn add(&mut self, event: E, keeping: Keeping) {
        let is_of_many = matches!(keeping, Keeping::Joined(_)) && self.joined >= JOINED_MAX;
        let mut waiting = self.waiting.iter_mut();
        if is_of_many && let Some((last, _)) = waiting.rfind(|(_, own)| *own == Some(keeping)) {
            *last = Next::Event(event);
            return;
        }
        match keeping {
            Keeping::Newest(_) => {
                let older = self
                    .waiting
                    .iter()
                    .rposition(|(_, own)| *own == Some(keeping));
                if let Some(at) = older {
                    self.waiting.remove(at);
                    self.join(at);
                }
            }
            Keeping::Each | Keeping::Joined(_) | Keeping::Awaited if self.kept >= EVENTS_MAX => {
                return self.omit();
            }
            Keeping::Each => self.kept += 1,
            Keeping::Joined(_) => {
                self.kept += 1;
                self.joined += 1;
            }
            Keeping::Awaited => {
                self.kept += 1;
                self.awaited += 1;
            }
        }
        self.waiting.push_back((Next::Event(event), Some(keeping)));
    }

    /// Losses that nothing stands between any more are one: they would add up without bound.
    fn join(&mut self, at: usize) {
        let before = at
            .checked_sub(1)
            .and_then(|before| self.waiting.get(before));
        if let (Some((Next::Omitted(first), _)), Some((Next::Omitted(then), _))) =
            (before, self.waiting.get(at))
        {
            let sum = first + then;
            self.waiting.remove(at);
            self.waiting[at - 1].0 = Next::Omitted(sum);
        }
    }

    fn omit(&mut self) {
        match self.waiting.back_mut() {
            Some((Next::Omitted(count), _)) => *count += 1,
            _ => self.waiting.push_back((Next::Omitted(1), None)),
        }
    }

    /// What is shown next; `None` while nothing waits.
    pub fn take(&mut self) -> Option<Next<E>> {
        let (next, keeping) = self.waiting.pop_front()?;
        match keeping {
            Some(Keeping::Each) => self.kept -= 1,
            Some(Keeping::Joined(_)) => {
                self.kept -= 1;
                self.joined -= 1;
            }
            Some(Keeping::Awaited) => {
                self.kept -= 1;
                self.awaited -= 1;
            }
            Some(Keeping::Newest(_)) | None => {}
        }
        Some(next)
    }

    /// Whether the program waits before it adds more: events wait of which none may be lost, and there is no space.
    pub fn is_full(&self) -> bool {
        self.awaited > 0 && self.kept >= EVENTS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(backlog: &mut Backlog<usize>) -> Vec<Next<usize>> {
        std::iter::from_fn(|| backlog.take()).collect()
    }

    /// Of progress only the newest waits, in its place among the others.
    #[test]
    fn newer_events_take_the_place_of_older_ones() {
        let mut backlog = Backlog::default();
        for (event, keeping) in [
            (1, Keeping::Newest(0)),
            (2, Keeping::Each),
            (3, Keeping::Newest(1)),
            (4, Keeping::Newest(0)),
            (5, Keeping::Each),
            (6, Keeping::Newest(0)),
        ] {
            backlog.add(event, keeping);
        }
        assert_eq!(all(&mut backlog), [2, 3, 5, 6].map(Next::Event));
        // One that is shown is no older one.
        for event in 0..3 {
            backlog.add(event, Keeping::Newest(0));
            assert_eq!(backlog.take(), Some(Next::Event(event)));
        }
    }

    /// Of many that are joined the last one says the newest, and nothing is lost: there is space for others.
    #[test]
    fn many_of_a_kind_are_joined() {
        let mut backlog = Backlog::default();
        for event in 0..3 * EVENTS_MAX {
            backlog.add(event, Keeping::Joined(5));
        }
        backlog.add(9000, Keeping::Each);
        let first = (0..JOINED_MAX - 1).chain([3 * EVENTS_MAX - 1, 9000]);
        let expected: Vec<Next<usize>> = first.map(Next::Event).collect();
        assert_eq!(all(&mut backlog), expected);
        // What was shown takes no space.
        for event in 0..3 {
            backlog.add(event, Keeping::Joined(5));
        }
        assert_eq!(all(&mut backlog), [0, 1, 2].map(Next::Event));
    }

    /// Without space the newest are lost, counted where they are missing; what follows is shown after that.
    #[test]
    fn lost_events_are_counted_in_their_place() {
        let mut backlog = Backlog::default();
        for event in 0..EVENTS_MAX + 3 {
            backlog.add(event, Keeping::Each);
        }
        backlog.add(7, Keeping::Newest(0));
        assert!(!backlog.is_full(), "nothing waits for these");
        assert_eq!(backlog.take(), Some(Next::Event(0)));
        backlog.add(9000, Keeping::Each);
        backlog.add(9001, Keeping::Each);
        let left = all(&mut backlog);
        let (first, last) = left.split_at(EVENTS_MAX - 1);
        assert!(
            first
                .iter()
                .eq(&(1..EVENTS_MAX).map(Next::Event).collect::<Vec<_>>())
        );
        let expected = [
            Next::Omitted(3),
            Next::Event(7),
            Next::Event(9000),
            Next::Omitted(1),
        ];
        assert_eq!(last, expected);
    }

    /// Memory is bounded, whatever is added and however little is taken.
    #[test]
    fn what_waits_is_bounded() {
        let mut backlog = Backlog::default();
        for event in 0..20 * EVENTS_MAX {
            let keeping = match event % 3 {
                0 => Keeping::Newest((event % 4) as u8),
                _ => Keeping::Each,
            };
            backlog.add(event, keeping);
            if event % 5 == 0 {
                backlog.take();
            }
        }
        // Four kinds of progress, and a loss before and behind each event at most.
        let waiting = backlog.waiting.len();
        assert!(waiting <= 2 * (EVENTS_MAX + 4) + 1, "{waiting}");
    }

    /// A list asks the program to wait as soon as there is no space, and no longer.
    #[test]
    fn lists_wait_for_space() {
        let mut backlog = Backlog::default();
        for event in 0..EVENTS_MAX {
            assert!(!backlog.is_full());
            backlog.add(event, Keeping::Awaited);
        }
        assert!(backlog.is_full());
        backlog.take();
        assert!(!backlog.is_full());
    }
}
