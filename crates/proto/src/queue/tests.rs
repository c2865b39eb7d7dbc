//! Order, tries, places and shares of the queue.

use super::*;

const SETTINGS: Settings = Settings {
    at_once: 2,
    tries: 3,
    history: 4,
};

fn queue() -> Queue {
    Queue::new(SETTINGS, None, Vec::new())
}

fn actions(queue: &mut Queue) -> Vec<Action> {
    std::iter::from_fn(|| queue.poll_action()).collect()
}

fn started(queue: &mut Queue) -> Vec<u64> {
    let all = actions(queue).into_iter();
    all.filter_map(|action| match action {
        Action::Start(id, _) => Some(id),
        _ => None,
    })
    .collect()
}

fn failed(reason: &str) -> Ran {
    Ran::Failed {
        reason: reason.into(),
        is_final: false,
        safe_bytes: 0,
    }
}

fn end_of(queue: &Queue, id: u64) -> Option<End> {
    match queue.job(id)?.state {
        State::Ended { end, .. } => Some(end),
        _ => None,
    }
}

/// A job is kept before it starts, and as ended before the next starts; higher priorities go first.
#[test]
fn jobs_run_by_priority() {
    let mut queue = queue();
    let submit = |queue: &mut Queue, priority| queue.submit(priority, Vec::new(), 100);
    let first = submit(&mut queue, 0);
    assert_eq!(
        actions(&mut queue),
        [
            Action::Keep(first),
            Action::Keep(first),
            Action::Start(first, None)
        ]
    );
    let second = submit(&mut queue, 0);
    let (late, urgent) = (submit(&mut queue, 0), submit(&mut queue, 5));
    assert_eq!(started(&mut queue), [second]);
    queue.ended(first, Ran::Done, 110);
    assert_eq!(
        actions(&mut queue),
        [
            Action::Keep(first),
            Action::Keep(urgent),
            Action::Start(urgent, None)
        ]
    );
    queue.ended(urgent, Ran::Done, 110);
    assert_eq!(started(&mut queue), [late]);
    assert_eq!(end_of(&queue, first), Some(End::Done));
}

/// Jobs to one place do not run together; one behind them does.
#[test]
fn a_place_has_one_job() {
    let mut queue = queue();
    let place = || vec!["host:/set".to_owned()];
    let first = queue.submit(0, place(), 0);
    let second = queue.submit(0, place(), 0);
    let third = queue.submit(0, Vec::new(), 0);
    assert_eq!(started(&mut queue), [first, third]);
    queue.ended(first, Ran::Done, 1);
    assert_eq!(started(&mut queue), [second]);
    assert!(queue.job(first).unwrap().places.is_empty());
}

/// A folder into which names are put meets each of them, and itself.
#[test]
fn folders_meet_what_is_put_into_them() {
    for (one, other, meets) in [
        ("h:/a", "h:/a", true),
        ("h:/a/", "h:/a/b", true),
        ("h:/a/b", "h:/a/", true),
        ("h:/a/", "h:/a/", true),
        ("h:/a/", "h:/a/b/c", false),
        ("h:/a", "h:/a/b", false),
        ("h:/a/", "g:/a/b", false),
        ("/", "/b", true),
    ] {
        assert_eq!(meet(one, other), meets, "{one} {other}");
    }
}

/// A failed job waits longer each time, others run meanwhile; after the last try, or where another would not help, it has failed.
#[test]
fn failed_jobs_are_tried_again() {
    let mut queue = queue();
    let id = queue.submit(0, Vec::new(), 0);
    assert_eq!(started(&mut queue), [id]);
    queue.ended(id, failed("no route"), 10);
    assert!(started(&mut queue).is_empty());
    queue.tick(14);
    assert!(started(&mut queue).is_empty());
    queue.tick(15);
    assert_eq!(started(&mut queue), [id]);
    queue.ended(id, failed("no route"), 20);
    queue.tick(29);
    assert!(started(&mut queue).is_empty());
    // The clock was set back by a day.
    queue.tick(0);
    assert!(started(&mut queue).is_empty());
    let mut early = Queue::new(SETTINGS, None, queue.jobs().cloned().collect());
    early.jobs.get_mut(&id).unwrap().state = State::Waiting {
        not_before: 100_000,
    };
    early.tick(10);
    assert_eq!(started(&mut early), [id]);
    queue.tick(30);
    assert_eq!(started(&mut queue), [id]);
    queue.ended(id, failed("still no route"), 31);
    assert_eq!(end_of(&queue, id), Some(End::Failed));
    let job = queue.job(id).unwrap();
    assert_eq!(
        (job.failures, job.reason.as_deref()),
        (3, Some("still no route"))
    );
    let id = queue.submit(0, Vec::new(), 40);
    let ran = Ran::Failed {
        reason: "bad name".into(),
        is_final: true,
        safe_bytes: 0,
    };
    queue.ended(id, ran, 41);
    assert_eq!(end_of(&queue, id), Some(End::Failed));
}

/// A run that gets on begins the count of tries, and the pauses, again; one that only finds what was safe before does not.
#[test]
fn jobs_that_get_on_are_not_given_up() {
    let mut queue = queue();
    let id = queue.submit(0, Vec::new(), 0);
    let mut now = 0;
    let mut fail = |queue: &mut Queue, safe_bytes| {
        let reason = "lost".to_owned();
        let ran = Ran::Failed {
            reason,
            is_final: false,
            safe_bytes,
        };
        queue.ended(id, ran, now);
        now += PAUSE_MAX;
        let failures = queue.job(id).unwrap().failures;
        queue.tick(now);
        failures
    };
    for round in 1..=10 {
        assert_eq!(fail(&mut queue, round * 100), 1);
    }
    assert_eq!(fail(&mut queue, 1000), 2);
    assert_eq!(fail(&mut queue, 500), 3);
    assert_eq!(end_of(&queue, id), Some(End::Failed));
}

/// A job that could not be kept leaves no trace, and its part of the limit.
#[test]
fn a_withdrawn_job_is_gone() {
    let mut queue = Queue::new(SETTINGS, Some(1000), Vec::new());
    queue.submit(0, vec!["host:/set".into()], 0);
    actions(&mut queue);
    let id = queue.submit(0, vec!["host:/other".into()], 0);
    assert!(actions(&mut queue).contains(&Action::Limit(1, Some(500))));
    queue.withdraw(id);
    assert!(queue.job(id).is_none());
    assert_eq!(actions(&mut queue), [Action::Limit(1, Some(1000))]);
    assert_eq!(queue.submit(0, vec!["host:/other".into()], 0), id + 1);
}

/// What ran when the master was killed runs again before later ones, and counts as no failure; what it was to cancel does not.
#[test]
fn a_killed_master_goes_on() {
    let mut queue = queue();
    for _ in 0..4 {
        queue.submit(0, Vec::new(), 0);
    }
    assert_eq!(started(&mut queue), [1, 2]);
    queue.cancel(2, 5).unwrap();
    let mut queue = Queue::new(SETTINGS, None, queue.jobs().cloned().collect());
    assert_eq!(actions(&mut queue), [Action::Keep(1), Action::Keep(2)]);
    queue.tick(9);
    assert_eq!(started(&mut queue), [1, 3]);
    assert_eq!(end_of(&queue, 2), Some(End::Cancelled));
    assert_eq!(queue.job(1).unwrap().failures, 0);
    assert_eq!(queue.submit(0, Vec::new(), 9), 5);
}

/// Waiting jobs are cancelled at once, running ones when they have stopped; one that is done by then is done.
#[test]
fn jobs_are_cancelled() {
    let mut queue = queue();
    for _ in 0..3 {
        queue.submit(0, Vec::new(), 0);
    }
    actions(&mut queue);
    queue.cancel(3, 1).unwrap();
    assert_eq!(actions(&mut queue), [Action::Keep(3)]);
    queue.cancel(1, 1).unwrap();
    queue.cancel(2, 1).unwrap();
    assert!(actions(&mut queue).contains(&Action::Stop(1)));
    queue.ended(1, failed("stopped"), 2);
    queue.ended(2, Ran::Done, 2);
    let ends = [1, 2, 3].map(|id| end_of(&queue, id).unwrap());
    assert_eq!(ends, [End::Cancelled, End::Done, End::Cancelled]);
    assert_eq!(queue.cancel(3, 3), Err(CancelError::Ended(3)));
    assert_eq!(queue.cancel(9, 3), Err(CancelError::Unknown(9)));
}

/// The oldest ended jobs are forgotten.
#[test]
fn history_is_bounded() {
    let mut queue = queue();
    for id in 1..=6 {
        queue.submit(0, Vec::new(), id);
        queue.ended(id, Ran::Done, id);
    }
    let left: Vec<u64> = queue.jobs().map(|job| job.id).collect();
    assert_eq!(left, [3, 4, 5, 6]);
    let forgotten = actions(&mut queue)
        .into_iter()
        .filter(|action| matches!(action, Action::Forget(_)));
    assert_eq!(forgotten.count(), 2);
}

/// The shares of a limit never sum to more, at any moment, and follow use.
#[test]
fn the_limit_is_shared() {
    let mut queue = Queue::new(SETTINGS, Some(1000), Vec::new());
    queue.submit(0, Vec::new(), 0);
    assert!(actions(&mut queue).contains(&Action::Start(1, Some(1000))));
    queue.submit(0, Vec::new(), 0);
    let told = actions(&mut queue);
    let cut = told
        .iter()
        .position(|action| *action == Action::Limit(1, Some(500)));
    let start = told
        .iter()
        .position(|action| *action == Action::Start(2, Some(500)));
    assert!(cut.unwrap() < start.unwrap(), "{told:?}");
    queue.observe(1, 400.0);
    queue.observe(2, 0.0);
    queue.tick(1);
    assert_eq!(
        actions(&mut queue),
        [Action::Limit(2, Some(250)), Action::Limit(1, Some(750))]
    );
    queue.ended(2, Ran::Done, 2);
    assert!(actions(&mut queue).contains(&Action::Limit(1, Some(1000))));
    queue.set_limit(None);
    assert_eq!(actions(&mut queue), [Action::Limit(1, None)]);
}

/// A master that ends stops what runs and starts nothing; the next one goes on.
#[test]
fn closing_stops_runs() {
    let mut queue = queue();
    for _ in 0..3 {
        queue.submit(0, Vec::new(), 0);
    }
    actions(&mut queue);
    queue.close();
    assert_eq!(actions(&mut queue), [Action::Stop(1), Action::Stop(2)]);
    queue.ended(1, Ran::Interrupted, 1);
    queue.ended(2, Ran::Interrupted, 1);
    assert!(started(&mut queue).is_empty());
    assert!(queue.is_idle());
}

/// A run that something else has stopped runs again after a pause, and is not counted as a failure.
#[test]
fn a_run_that_others_stop_pauses() {
    let mut queue = queue();
    queue.submit(0, Vec::new(), 0);
    assert_eq!(started(&mut queue), [1]);
    queue.ended(1, Ran::Interrupted, 100);
    queue.tick(100 + PAUSE_MIN - 1);
    assert!(started(&mut queue).is_empty());
    queue.tick(100 + PAUSE_MIN);
    assert_eq!(started(&mut queue), [1]);
    assert_eq!(queue.job(1).unwrap().failures, 0);
}
