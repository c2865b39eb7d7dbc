//! The queue on disk: one record for each job in an embedded database, in a folder that only the user may enter.
//!
//! A database that could not be written once takes nothing more until it is opened again: [`Keep::begin`] does that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition,
    WriteTransaction,
};
use ropewalk_proto::queue::{Job, Summary};
use serde::{Deserialize, Serialize};

use super::task::Task;
use crate::runtime_folder;

/// Records by job number: JSON of [`Record`].
const JOBS: TableDefinition<u64, &[u8]> = TableDefinition::new("jobs");

/// Values of the whole queue, by name.
const VALUES: TableDefinition<&str, u64> = TableDefinition::new("values");

/// Version of the records.
const FORMAT: u64 = 2;

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    job: std::borrow::Cow<'a, Job>,
    task: std::borrow::Cow<'a, Task>,
    last: Option<std::borrow::Cow<'a, Summary>>,
}

/// A limit of all jobs together, in bytes per second, that was set while `serve` ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub rate: Option<u64>,
    /// What `serve` was started with.
    pub instead_of: Option<u64>,
}

/// No limit, among the values.
const NO_LIMIT: u64 = u64::MAX;

/// What was kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub limit: Option<Limit>,
    pub jobs: Vec<Job>,
    pub tasks: BTreeMap<u64, Task>,
    pub summaries: BTreeMap<u64, Summary>,
}

/// The database; open in one process at a time.
pub(super) struct Keep {
    path: PathBuf,
    // None after an error.
    database: Option<Database>,
}

/// Changes that become durable together.
pub(super) struct Changes<'a> {
    keep: &'a mut Keep,
    // From the first change on.
    begun: Option<WriteTransaction>,
}

/// Opens or makes the database.
fn open(path: &Path) -> Result<Database> {
    let shown = path.display();
    match Database::create(path) {
        Ok(database) => Ok(database),
        Err(DatabaseError::DatabaseAlreadyOpen) => {
            bail!(
                "another `ropewalk serve` has {shown} open; it takes jobs already (`ropewalk queue` shows them)"
            )
        }
        Err(error) => Err(error).with_context(|| format!("cannot open {shown}")),
    }
}

impl Keep {
    /// Opens or makes the database of a folder and reads all records.
    ///
    /// # Errors
    /// When another process has it open, it is of a later format, or damaged.
    pub fn open(folder: &Path) -> Result<(Self, Kept)> {
        runtime_folder::private_folder(folder)?;
        let path = folder.join("queue.redb");
        let database = open(&path)?;
        let kept = read(&database).with_context(|| {
            let shown = path.display();
            format!("cannot read {shown}; move it away to begin with an empty queue")
        })?;
        let keep = Self {
            path,
            database: Some(database),
        };
        Ok((keep, kept))
    }

    /// Begins changes; nothing is written until the first one.
    pub fn begin(&mut self) -> Changes<'_> {
        Changes {
            keep: self,
            begun: None,
        }
    }

    /// Makes all of `write`'s changes durable, or none; after an error the database is opened again at the next ones.
    ///
    /// # Errors
    /// What the database, or its disk, says.
    pub fn change(&mut self, write: impl FnOnce(&mut Changes<'_>) -> Result<()>) -> Result<()> {
        let mut changes = self.begin();
        let written = write(&mut changes).and_then(|()| changes.commit());
        if written.is_err() {
            self.database = None;
        }
        written
    }

    fn database(&mut self) -> Result<&Database> {
        match &mut self.database {
            Some(database) => Ok(database),
            none => Ok(none.insert(open(&self.path)?)),
        }
    }
}

fn read(database: &Database) -> Result<Kept> {
    let begun = database.begin_write()?;
    {
        let mut values = begun.open_table(VALUES)?;
        let found = values.get("format")?.map(|value| value.value());
        match found {
            None => drop(values.insert("format", FORMAT)?),
            Some(FORMAT) => {}
            Some(other) => {
                bail!(
                    "it has format {other}, and this version reads {FORMAT}; use the ropewalk that wrote it"
                )
            }
        }
        begun.open_table(JOBS)?;
    }
    begun.commit()?;
    let mut kept = Kept::default();
    let reading = database.begin_read()?;
    let values = reading.open_table(VALUES)?;
    let rate = |name: &str| -> Result<Option<Option<u64>>> {
        let value = values.get(name)?.map(|value| value.value());
        Ok(value.map(|rate| Some(rate).filter(|rate| *rate != NO_LIMIT)))
    };
    if let (Some(rate), Some(instead_of)) = (rate("limit")?, rate("limit_instead_of")?) {
        kept.limit = Some(Limit { rate, instead_of });
    }
    let table = reading.open_table(JOBS)?;
    for entry in table.iter()? {
        let (id, record) = entry?;
        let id = id.value();
        let record: Record = serde_json::from_slice(record.value())
            .with_context(|| format!("the record of job {id} cannot be read"))?;
        kept.jobs.push(record.job.into_owned());
        kept.tasks.insert(id, record.task.into_owned());
        if let Some(last) = record.last {
            kept.summaries.insert(id, last.into_owned());
        }
    }
    Ok(kept)
}

impl Changes<'_> {
    fn begun(&mut self) -> Result<&WriteTransaction> {
        if self.begun.is_none() {
            let begun = self.keep.database()?.begin_write();
            self.begun = Some(begun.context("cannot write the queue")?);
        }
        self.begun.as_ref().context("cannot write the queue")
    }

    /// Writes a job.
    pub fn put(&mut self, job: &Job, task: &Task, last: Option<&Summary>) -> Result<()> {
        use std::borrow::Cow;
        let record = Record {
            job: Cow::Borrowed(job),
            task: Cow::Borrowed(task),
            last: last.map(Cow::Borrowed),
        };
        let bytes = serde_json::to_vec(&record).context("cannot write a job as JSON")?;
        let begun = self.begun()?;
        let mut table = begun.open_table(JOBS).context("cannot write the queue")?;
        let inserted = table.insert(job.id, bytes.as_slice());
        inserted.context("cannot write the queue").map(drop)
    }

    /// Writes the limit.
    pub fn put_limit(&mut self, limit: Limit) -> Result<()> {
        let begun = self.begun()?;
        let mut table = begun.open_table(VALUES).context("cannot write the queue")?;
        let rates = [
            ("limit", limit.rate),
            ("limit_instead_of", limit.instead_of),
        ];
        for (name, rate) in rates {
            let inserted = table.insert(name, rate.unwrap_or(NO_LIMIT));
            inserted.context("cannot write the queue").map(drop)?;
        }
        Ok(())
    }

    /// Removes a job.
    pub fn remove(&mut self, id: u64) -> Result<()> {
        let begun = self.begun()?;
        let mut table = begun.open_table(JOBS).context("cannot write the queue")?;
        let removed = table.remove(id);
        removed.context("cannot write the queue").map(drop)
    }

    /// Makes the changes durable.
    pub fn commit(self) -> Result<()> {
        match self.begun {
            Some(begun) => begun
                .commit()
                .context("cannot write the queue; is the disk full?"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::queue::State;

    use super::*;
    use crate::inputs::{Inputs, Text};

    fn task(name: &str) -> Task {
        Task {
            arguments: [&b"copy"[..], &[0xff, b'a'], name.as_bytes()]
                .map(|word| Text(word.to_vec()))
                .into(),
            folder: Text(b"/".to_vec()),
            environment: vec![("PATH".into(), Text(b"/bin".to_vec()))],
            inputs: Inputs::default(),
            label: None,
            from: vec!["a".into()],
            to: vec![name.into()],
            key: None,
        }
    }

    fn job(id: u64) -> Job {
        Job {
            id,
            priority: 3,
            places: vec!["b".into()],
            submitted: 7,
            state: State::Waiting { not_before: 9 },
            failures: 1,
            reason: Some("no route".into()),
            safe_bytes: 11,
        }
    }

    /// What is committed is there when the database is opened again, what is not is not, and it is open once at a time.
    #[test]
    fn jobs_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("queue");
        let (mut keep, kept) = Keep::open(&folder).unwrap();
        assert!(kept.jobs.is_empty() && kept.limit.is_none());
        let limit = Limit {
            rate: None,
            instead_of: Some(5),
        };
        keep.change(|changes| changes.put_limit(limit)).unwrap();
        let put = |id, changes: &mut Changes<'_>| changes.put(&job(id), &task("b"), None);
        keep.change(|changes| (1..=3).try_for_each(|id| put(id, changes)))
            .unwrap();
        keep.change(|changes| changes.remove(2)).unwrap();
        // After an error it is opened again.
        let failed = keep.change(|changes| {
            put(9, changes)?;
            bail!("the disk is full")
        });
        assert_eq!(failed.unwrap_err().to_string(), "the disk is full");
        keep.change(|changes| put(3, changes)).unwrap();
        let mut lost = keep.begin();
        lost.put(&job(4), &task("b"), None).unwrap();
        drop(lost);
        let error = Keep::open(&folder).err().unwrap().to_string();
        assert!(error.contains("another `ropewalk serve`"), "{error}");
        drop(keep);
        let (_, kept) = Keep::open(&folder).unwrap();
        assert_eq!(kept.jobs, [job(1), job(3)]);
        assert_eq!(kept.limit, Some(limit));
        assert_eq!(kept.tasks[&3], task("b"));
    }

    /// A later format is refused and stays as it is.
    #[test]
    fn later_formats_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("queue");
        let (keep, _) = Keep::open(&folder).unwrap();
        let begun = keep.database.as_ref().unwrap().begin_write().unwrap();
        begun
            .open_table(VALUES)
            .unwrap()
            .insert("format", FORMAT + 1)
            .unwrap();
        begun.commit().unwrap();
        drop(keep);
        let error = format!("{:#}", Keep::open(&folder).err().unwrap());
        assert!(
            error.contains("it has format 3, and this version reads 2"),
            "{error}"
        );
    }
}
