//! Any line of the tuner's database is read without harm, and what it teaches is a number of streams that can be.

use ropewalk_tuner::Situation;
use ropewalk_tuner::policy::{Database, Lesson, Policy as _, TOTALS};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
use mutate::fuzz_some;

/// What is read is what was written, and nothing that is read gives another number than those that can be tried.
#[test]
fn lessons() {
    let situations = [1e6, 1e9].map(|rate| Situation {
        nodes: 4,
        rate,
        access: None,
        rtt_seconds: 0.08,
        queue: 500.0,
        loss: 0.0,
        window: 4000.0,
        segment_bytes: 1448.0,
    });
    let shares = [(1, 0.13), (8, 0.7), (64, 0.95), (512, 0.9)];
    let written = situations.each_ref().map(|of| Lesson::new(of, &shares));
    let mut corpus = written.map(|lesson| lesson.format().into_bytes()).to_vec();
    corpus.push(b"1.00 2.00 3.00 -4.00 -5.00 6.00 - - 900 - - - - - - 1000".to_vec());
    let last = TOTALS.map(f64::from)[TOTALS.len() - 1];
    fuzz_some("lessons", &corpus, 20_000, |input| {
        let line = String::from_utf8_lossy(input);
        let lesson = Lesson::parse(&line);
        let mut database = Database::default();
        assert_eq!(database.recall(&line), lesson.is_some());
        let Some(lesson) = lesson else { return };
        let text = lesson.format();
        let again = Lesson::parse(&text).map(|again| again.format());
        assert_eq!(again, Some(text));
        for best in situations.iter().filter_map(|of| database.best(of)) {
            // Sums of logarithms are rounded.
            assert!(best > 0.999 && best < last + 0.001, "{best}");
        }
    });
}
