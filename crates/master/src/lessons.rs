//! What transfers taught the database of streams, kept beside the speeds: a hint, so whatever is wrong with the file
//! becomes a note.

use std::path::{Path, PathBuf};

use ropewalk_statefile::{LOCK_PATIENCE, StateError, StateFile};
use ropewalk_tuner::Policy as _;
use ropewalk_tuner::policy::Database;
use serde::{Deserialize, Serialize};

use crate::kept::{KeptError, at_the_file};
use crate::request::{Options, PolicyName};

/// Name of the file, beside that of the speeds.
const NAME: &str = "streams.json";

const VERSION: u32 = 1;

const FILE: StateFile = StateFile {
    version: VERSION,
    key: "lessons",
    // The database keeps 2000 lines of 100 bytes.
    len_max: 1 << 20,
    lock_patience: LOCK_PATIENCE,
    anew: "the tuning history starts again",
    instead: "--streams-policy model does without it",
    lost: "what this transfer taught of streams is not remembered",
};

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// In the database's own words, the oldest first.
    lessons: Vec<String>,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            version: VERSION,
            lessons: Vec::new(),
        }
    }
}

fn file(options: &Options) -> Option<PathBuf> {
    Some(options.speeds.as_ref()?.with_file_name(NAME))
}

fn load(path: &Path) -> Result<Vec<String>, StateError> {
    Ok(FILE.load::<Kept>(path)?.lessons)
}

/// Adds what a transfer has learnt itself. Others may have added theirs since it began: the database joins what is about
/// the same situation.
fn add(path: &Path, lessons: &[String]) -> Result<(), StateError> {
    FILE.update(path, |kept: &mut Kept| {
        let mut database = Database::shipped();
        for line in kept.lessons.iter().chain(lessons) {
            // What a newer version wrote is none of this one.
            database.recall(line);
        }
        kept.lessons = database.kept();
    })
}

async fn at_lessons<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StateError> + Send + 'static,
) -> Result<T, KeptError> {
    at_the_file("lessons about streams", "--streams-policy model", work).await
}

/// What earlier transfers left, for the policy that goes by it.
///
/// # Errors
/// [`KeptError`]; a transfer can do without.
pub(crate) async fn recall(options: &Options) -> Result<Vec<String>, KeptError> {
    let wants = options.tuned_by() == Some(PolicyName::Database);
    let Some(file) = file(options).filter(|_| wants) else {
        return Ok(Vec::new());
    };
    at_lessons(move || load(&file)).await
}

/// Keeps what this one has learnt; what to say when that cannot be.
pub(crate) async fn remember(options: &Options, lessons: Option<Vec<String>>) -> Option<String> {
    let (file, lessons) = (file(options)?, lessons?);
    let added = at_lessons(move || add(&file, &lessons)).await;
    added.err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lesson of a path with this round trip, in the database's words.
    fn lesson(rtt_seconds: f64, share: f64) -> String {
        let mut taught = Database::default();
        let situation = ropewalk_tuner::Situation {
            nodes: 4,
            rate: 12.5e6,
            access: None,
            rtt_seconds,
            queue: 50.0,
            loss: 0.0,
            window: 2048.0,
            segment_bytes: 1448.0,
        };
        taught.learn(&situation, 8, share);
        taught.kept().pop().unwrap()
    }

    /// What two transfers that ran at once have learnt is kept of both, and what they both knew once.
    #[test]
    fn nothing_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state").join(NAME);
        assert_eq!(load(&path).unwrap(), Vec::<String>::new());
        let [known, first, second] = [0.02, 0.08, 0.32].map(|rtt| lesson(rtt, 0.5));
        add(&path, &[known.clone(), first.clone()]).unwrap();
        add(&path, &[known.clone(), second.clone()]).unwrap();
        assert_eq!(load(&path).unwrap(), [known, first, second]);
    }

    /// What a transfer learns weighs as much as all that was known of the same situation.
    #[test]
    fn the_newest_weighs_half() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let share = || {
            let lines = load(&path).unwrap();
            let [line] = &lines[..] else {
                panic!("{lines:?}")
            };
            let words = line.split(' ');
            let shares: Vec<u32> = words.skip(6).filter_map(|word| word.parse().ok()).collect();
            shares[0]
        };
        for (learnt, known) in [(0.4, 400), (0.8, 600), (0.2, 400)] {
            add(&path, &[lesson(0.08, learnt)]).unwrap();
            assert_eq!(share(), known);
        }
        add(&path, &[]).unwrap();
        assert_eq!(share(), 400);
    }

    /// A damaged file is told of and replaced; one of a later format, or of another kind, is left alone.
    #[test]
    fn other_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        std::fs::write(&path, "my notes").unwrap();
        assert!(add(&path, &[lesson(0.02, 0.5)]).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "my notes");
        std::fs::write(&path, "{\"version\": 1, \"lessons\": [").unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains("starts again"), "{error}");
        add(&path, &[lesson(0.02, 0.5)]).unwrap();
        assert_eq!(load(&path).unwrap(), [lesson(0.02, 0.5)]);

        let later = "{\"version\": 99}";
        std::fs::write(&path, later).unwrap();
        assert!(add(&path, &[lesson(0.02, 0.5)]).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), later);
    }
}
