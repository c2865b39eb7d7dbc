use proptest::prelude::*;

use super::*;

const LEN: u64 = 10_000;

/// All that a group may add on a file system.
fn fill(queue: &mut ReadQueue, group: Group, disk: Disk, len: u64) -> Vec<Read> {
    std::iter::from_fn(|| queue.add(group, disk, len)).collect()
}

/// All that may be read at the same time.
fn begin_all(queue: &mut ReadQueue) -> Vec<Read> {
    let begun = std::iter::from_fn(|| queue.begin()).collect();
    assert!(!queue.is_ready());
    begun
}

/// What is wanted is read in that order, and is there at its turn; what was not begun, or failed, is read by its stream.
#[test]
fn units_are_read_in_order() {
    let mut queue = ReadQueue::new();
    let group = queue.open();
    let disk = Disk::Numbered(1);
    let reads: Vec<Read> = (0..4)
        .map(|_| queue.add(group, disk, LEN).unwrap())
        .collect();
    assert!(queue.is_ready());
    let begun = [queue.begin(), queue.begin(), queue.begin()];
    assert_eq!(begun, [Some(reads[0]), Some(reads[1]), Some(reads[2])]);
    assert!(queue.end(reads[0], true) && queue.end(reads[1], false));
    assert_eq!(queue.take(reads[0]), Taken::Held);
    assert_eq!(queue.take(reads[1]), Taken::Failed);
    assert_eq!(queue.take(reads[2]), Taken::Reading);
    assert_eq!(queue.take(reads[3]), Taken::Queued);
    assert_eq!(queue.begin(), None, "its stream reads it");
    assert_eq!(queue.bytes(), 2 * LEN);
    assert!(queue.end(reads[2], true));
    assert_eq!(queue.take(reads[2]), Taken::Held);
    queue.leave(reads[0]);
    queue.leave(reads[2]);
    assert_eq!(queue.bytes(), 0);
}

/// What no stream wants is not read; memory that is read into counts until the read returns.
#[test]
fn what_is_left_is_not_read() {
    let mut queue = ReadQueue::new();
    let group = queue.open();
    let disk = Disk::Of(group);
    let [first, second, third] = [0; 3].map(|_| queue.add(group, disk, LEN).unwrap());
    assert_eq!(queue.begin(), Some(first));
    queue.leave(first);
    queue.leave(second);
    assert_eq!(queue.bytes(), 2 * LEN);
    assert_eq!(queue.begin(), Some(third));
    assert!(!queue.end(first, true), "nothing wants its bytes");
    assert_eq!(queue.bytes(), LEN);
    assert!(queue.end(third, true));
    queue.leave(third);
    assert_eq!(queue.bytes(), 0);
}

/// When a group ends nothing of it is begun or waited for, and others go on.
#[test]
fn a_group_ends() {
    let mut queue = ReadQueue::new();
    let (ended, other) = (queue.open(), queue.open());
    let disk = Disk::Numbered(1);
    let [held, read, queued] = [0; 3].map(|_| queue.add(ended, disk, LEN).unwrap());
    let others = queue.add(other, disk, LEN).unwrap();
    assert_eq!(queue.begin(), Some(held));
    assert!(queue.end(held, true));
    assert_eq!(queue.begin(), Some(read));
    assert_eq!(queue.close(ended), [read, queued]);
    assert_eq!(queue.take(read), Taken::Ended);
    assert_eq!(queue.take(queued), Taken::Ended);
    assert_eq!(queue.add(ended, disk, LEN), None);
    assert!(queue.close(ended).is_empty());
    assert_eq!(begin_all(&mut queue), [others]);
    assert!(!queue.end(read, true));
    assert_eq!(queue.take(held), Taken::Held);
    queue.leave(held);
    assert_eq!(queue.bytes(), LEN);
}

/// However many streams there are, what they read early has a bound, and is a quarter of it on one file system.
#[test]
fn all_streams_share_one_bound() {
    let mut queue = ReadQueue::new();
    let groups: Vec<Group> = (0..1000).map(|_| queue.open()).collect();
    let disk = Disk::Numbered(1);
    let long = 1 << 20;
    let mut reads: Vec<Read> = Vec::new();
    for group in &groups {
        reads.extend(fill(&mut queue, *group, disk, long));
    }
    assert_eq!(queue.bytes(), BYTES_MAX / PARTS);
    assert_eq!(begin_all(&mut queue).len(), reads.len());
    for group in &groups {
        fill(&mut queue, *group, Disk::Of(*group), long);
    }
    assert!(queue.bytes() > BYTES_MAX * 9 / 10 && queue.bytes() <= BYTES_MAX);
    reads.into_iter().for_each(|read| queue.leave(read));
    // Of short ones it is how many there are.
    let mut queue = ReadQueue::new();
    let group = queue.open();
    let reads = fill(&mut queue, group, disk, 1);
    assert_eq!(reads.len() as u64, UNITS_MAX as u64 / PARTS);
    assert_eq!(
        begin_all(&mut queue).len() as u64,
        READING_MAX as u64 / PARTS
    );
}

/// File systems that do not answer keep what they got; another one is read all the same.
#[test]
fn file_systems_that_do_not_answer_leave_something() {
    let mut queue = ReadQueue::new();
    let group = queue.open();
    for number in 0..8 {
        fill(&mut queue, group, Disk::Numbered(number), 64 << 10);
        begin_all(&mut queue);
    }
    let answers = Disk::Numbered(8);
    for _ in 0..1000 {
        let read = queue.add(group, answers, 64 << 10).unwrap();
        assert_eq!(begin_all(&mut queue), [read]);
        assert!(queue.end(read, true));
        queue.leave(read);
    }
}

/// One that wants much does not hold up one that wants little.
#[test]
fn file_systems_take_turns() {
    let mut queue = ReadQueue::new();
    let group = queue.open();
    let much = fill(&mut queue, group, Disk::Numbered(1), LEN);
    let little = [0; 2].map(|_| queue.add(group, Disk::Numbered(2), LEN).unwrap());
    let begun: Vec<Read> = (0..5).filter_map(|_| queue.begin()).collect();
    assert_eq!(begun, [much[0], little[0], much[1], little[1], much[2]]);
}

/// As slow as can be: everything is counted from the list of all units.
#[derive(Default)]
struct Model {
    units: BTreeMap<Read, (Group, Disk, u64, State)>,
}

impl Model {
    fn sum(&self, disk: Option<Disk>, of: impl Fn(u64, State) -> u64) -> u64 {
        let units = self.units.values();
        let units = units.filter(|(_, on, _, _)| disk.is_none_or(|disk| disk == *on));
        units.map(|(_, _, len, state)| of(*len, *state)).sum()
    }

    fn leave(&mut self, read: Read) {
        match self.units.get_mut(&read) {
            Some((_, _, _, state @ (State::Reading | State::Forsaken))) => *state = State::Forsaken,
            _ => drop(self.units.remove(&read)),
        }
    }
}

fn is_read(state: State) -> bool {
    matches!(state, State::Reading | State::Forsaken)
}

proptest! {
    /// Whatever streams, threads and transfers do: the queue counts what there is, within its bounds, begins what was queued, each unit once, and
    /// says of each what has become of it.
    #[test]
    fn the_queue_knows_what_there_is(steps in proptest::collection::vec((0u8..12, 0usize..64, 0u64..4, 1u64..3_000_000), 1..400)) {
        let mut queue = ReadQueue::new();
        let mut model = Model::default();
        let mut groups = [queue.open(), queue.open()];
        for (what, which, place, len) in steps {
            let group = groups[which % 2];
            let chosen = model.units.keys().nth(which % model.units.len().max(1)).copied();
            match (what, chosen) {
                (0..=4, _) => {
                    let disk = match place {
                        0 => Disk::Of(group),
                        number => Disk::Numbered(number),
                    };
                    let free = BYTES_MAX - model.sum(None, |len, _| len);
                    let own = model.sum(Some(disk), |len, _| len);
                    let has_space = own + len <= free.min(BYTES_MAX / PARTS);
                    let read = queue.add(group, disk, len);
                    prop_assert_eq!(read.is_some(), has_space);
                    if let Some(read) = read {
                        prop_assert!(model.units.insert(read, (group, disk, len, State::Queued)).is_none());
                    }
                }
                (5..=6, _) => {
                    let is_ready = queue.is_ready();
                    let read = queue.begin();
                    prop_assert_eq!(is_ready, read.is_some());
                    let taken = model.sum(None, |_, state| u64::from(is_read(state)));
                    if let Some(read) = read {
                        let (_, disk, _, state) = model.units[&read];
                        prop_assert_eq!(state, State::Queued);
                        let own = model.sum(Some(disk), |_, state| u64::from(is_read(state)));
                        prop_assert!(own < (READING_MAX as u64 / PARTS).min(READING_MAX as u64 - taken));
                        model.units.get_mut(&read).unwrap().3 = State::Reading;
                    }
                }
                (7..=8, Some(read)) => {
                    let is_whole = len % 4 > 0;
                    let state = model.units[&read].3;
                    prop_assert_eq!(queue.end(read, is_whole), state == State::Reading);
                    match state {
                        State::Forsaken => drop(model.units.remove(&read)),
                        State::Reading if is_whole => model.units.get_mut(&read).unwrap().3 = State::Held,
                        State::Reading => model.units.get_mut(&read).unwrap().3 = State::Failed,
                        _ => {}
                    }
                }
                (9, Some(read)) => {
                    let taken = match model.units[&read].3 {
                        State::Queued => Taken::Queued,
                        State::Failed => Taken::Failed,
                        State::Reading => Taken::Reading,
                        State::Forsaken => Taken::Ended,
                        State::Held => Taken::Held,
                    };
                    prop_assert_eq!(queue.take(read), taken);
                    if matches!(taken, Taken::Queued | Taken::Failed) {
                        model.units.remove(&read);
                    }
                }
                (10, Some(read)) => {
                    queue.leave(read);
                    model.leave(read);
                }
                (11, _) if which < 8 => {
                    let ended = queue.close(group);
                    for read in &ended {
                        prop_assert_eq!(model.units[read].0, group);
                        model.leave(*read);
                    }
                    let open = model.units.values().filter(|unit| unit.0 == group);
                    let mut open = open.map(|unit| unit.3);
                    prop_assert!(open.all(|state| !matches!(state, State::Queued | State::Reading)));
                    groups[which % 2] = queue.open();
                }
                _ => {}
            }
            prop_assert_eq!(queue.bytes(), model.sum(None, |len, _| len));
            prop_assert!(queue.bytes() <= BYTES_MAX);
            prop_assert_eq!(queue.units.len(), model.units.len());
        }
        for read in model.units.keys().copied().collect::<Vec<_>>() {
            queue.leave(read);
            queue.end(read, true);
        }
        prop_assert!(queue.disks.is_empty() && queue.units.is_empty());
        prop_assert_eq!((queue.bytes(), queue.reading), (0, 0));
    }
}
