//! The queue on disk: one record for each job in an embedded database, in a folder that only the user may enter.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition,
    WriteTransaction,
};
use ropewalk_proto::queue::Job;
use serde::{Deserialize, Serialize};

use super::task::{Summary, Task};
use crate::desk;

/// Records by job number: JSON of [`Record`].
const JOBS: TableDefinition<u64, &[u8]> = TableDefinition::new("jobs");

/// Values of the whole queue, by name.
const VALUES: TableDefinition<&str, u64> = TableDefinition::new("values");

/// Version of the records.
const FORMAT: u64 = 1;

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    job: std::borrow::Cow<'a, Job>,
    task: std::borrow::Cow<'a, Task>,
    last: Option<std::borrow::Cow<'a, Summary>>,
}

/// What was kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub jobs: Vec<Job>,
    pub tasks: BTreeMap<u64, Task>,
    pub summaries: BTreeMap<u64, Summary>,
}

/// The database; open in one process at a time.
pub(super) struct Keep {
    database: Database,
}

/// Changes that become durable together.
pub(super) struct Changes<'a> {
    database: &'a Database,
    // From the first change on.
    begun: Option<WriteTransaction>,
}

impl Keep {
    /// Opens or makes the database of a folder and reads all records.
    ///
    /// # Errors
    /// When another process has it open, it is of a later format, or damaged.
    pub fn open(folder: &Path) -> Result<(Self, Kept)> {
        desk::private_folder(folder)?;
        let path = folder.join("queue.redb");
        let shown = path.display();
        let database = match Database::create(&path) {
            Ok(database) => database,
            Err(DatabaseError::DatabaseAlreadyOpen) => {
                bail!(
                    "another `ropewalk serve` has {shown} open; it takes jobs already (`ropewalk queue` shows them)"
                )
            }
            Err(error) => return Err(error).with_context(|| format!("cannot open {shown}")),
        };
        let keep = Self { database };
        let kept = keep.read().with_context(|| {
            format!("cannot read {shown}; move it away to begin with an empty queue")
        })?;
        Ok((keep, kept))
    }

    fn read(&self) -> Result<Kept> {
        let begun = self.database.begin_write()?;
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
        let reading = self.database.begin_read()?;
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

    /// Begins changes; nothing is written until the first one.
    pub fn begin(&self) -> Changes<'_> {
        Changes {
            database: &self.database,
            begun: None,
        }
    }
}

impl Changes<'_> {
    fn begun(&mut self) -> Result<&WriteTransaction> {
        match &mut self.begun {
            Some(begun) => Ok(begun),
            none => {
                let begun = self.database.begin_write();
                Ok(none.insert(begun.context("cannot write the queue")?))
            }
        }
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

    fn task(name: &str) -> Task {
        Task {
            arguments: vec![b"copy".to_vec(), vec![0xff, b'a'], name.as_bytes().to_vec()],
            folder: b"/".to_vec(),
            environment: vec![("PATH".into(), b"/bin".to_vec())],
            input: None,
            label: None,
            from: vec!["a".into()],
            places: vec![name.into()],
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
        }
    }

    /// What is committed is there when the database is opened again, what is not is not, and it is open once at a time.
    #[test]
    fn jobs_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("queue");
        let (keep, kept) = Keep::open(&folder).unwrap();
        assert!(kept.jobs.is_empty());
        let mut changes = keep.begin();
        for id in 1..=3 {
            changes.put(&job(id), &task("b"), None).unwrap();
        }
        changes.commit().unwrap();
        let mut changes = keep.begin();
        changes.remove(2).unwrap();
        changes.commit().unwrap();
        let mut lost = keep.begin();
        lost.put(&job(4), &task("b"), None).unwrap();
        drop(lost);
        let error = Keep::open(&folder).err().unwrap().to_string();
        assert!(error.contains("another `ropewalk serve`"), "{error}");
        drop(keep);
        let (_, kept) = Keep::open(&folder).unwrap();
        assert_eq!(kept.jobs, [job(1), job(3)]);
        assert_eq!(kept.tasks[&3], task("b"));
    }

    /// A later format is refused and stays as it is.
    #[test]
    fn later_formats_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("queue");
        let (keep, _) = Keep::open(&folder).unwrap();
        let begun = keep.database.begin_write().unwrap();
        begun
            .open_table(VALUES)
            .unwrap()
            .insert("format", FORMAT + 1)
            .unwrap();
        begun.commit().unwrap();
        drop(keep);
        let error = format!("{:#}", Keep::open(&folder).err().unwrap());
        assert!(
            error.contains("it has format 2, and this version reads 1"),
            "{error}"
        );
    }
}
