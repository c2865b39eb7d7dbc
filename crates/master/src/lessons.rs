//! What transfers taught the database of streams, kept beside the speeds: a hint, so whatever is wrong with the file only
//! means that there is none.

use std::io::Write as _;
use std::path::PathBuf;

use crate::request::{Options, PolicyName};

/// Name of the file, beside that of the speeds.
const FILE: &str = "streams.txt";

/// More is not read: the database keeps 2000 lines of 100 bytes.
const BYTES_MAX: u64 = 1 << 20;

fn file(options: &Options) -> Option<PathBuf> {
    let learns = options.tuned_by() == Some(PolicyName::Database);
    let speeds = options.speeds.as_ref().filter(|_| learns)?;
    Some(speeds.with_file_name(FILE))
}

/// What earlier transfers left.
pub(crate) fn recall(options: &Options) -> Vec<String> {
    let Some(file) = file(options) else {
        return Vec::new();
    };
    let is_small = std::fs::metadata(&file).is_ok_and(|meta| meta.len() <= BYTES_MAX);
    let text = is_small
        .then(|| std::fs::read_to_string(&file).ok())
        .flatten();
    let text = text.unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Keeps what this one knows now. The file is replaced as a whole.
pub(crate) fn remember(options: &Options, lessons: Option<Vec<String>>) {
    let (Some(file), Some(lessons)) = (file(options), lessons) else {
        return;
    };
    let Some(folder) = file.parent() else { return };
    let temporary = folder.join(format!(".{FILE}.{}", std::process::id()));
    let write = || {
        std::fs::create_dir_all(folder)?;
        let mut out = std::fs::File::create(&temporary)?;
        for line in &lessons {
            writeln!(out, "{line}")?;
        }
        std::fs::rename(&temporary, &file)
    };
    if write().is_err() {
        // A hint less the next time.
        let _ = std::fs::remove_file(&temporary);
    }
}
