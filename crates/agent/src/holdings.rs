//! Where sent bytes are read: the store behind the lane's trait.

use std::path::PathBuf;
use std::sync::Arc;

use ropewalk_lane::{Absent, Extent, Provider, missing};
use ropewalk_model::{Range, RangeSet};
use ropewalk_proto::wire::SPACE_DATA;
use ropewalk_store::{Source, StoreError, persist};

/// What a node serves: its sources by place in the data space, and its manifests by space number.
#[derive(Default)]
pub(crate) struct Holdings {
    pub sources: Vec<(RangeSet, Arc<dyn Source>)>,
    pub manifests: Vec<(u16, Arc<Vec<u8>>)>,
}

impl Holdings {
    fn source(&self, offset: u64) -> Result<(&dyn Source, u64), Absent> {
        for (held, source) in &self.sources {
            // The run that holds the offset bounds what this source can give from it.
            let runs = held.as_slice();
            let at = runs.partition_point(|run| run.end <= offset);
            if let Some(run) = runs.get(at).filter(|run| run.start <= offset) {
                return Ok((source.as_ref(), run.end - offset));
            }
        }
        Err(Absent {
            code: missing::NOT_HELD,
            reason: format!("this node does not hold byte {offset} of the transfer"),
        })
    }

    /// Whether these bytes of the data are all of a small file.
    pub fn is_small_file(&self, range: Range) -> bool {
        let held = self.source(range.start);
        held.is_ok_and(|(source, held)| held >= range.len() && source.is_small_file(range))
    }

    /// Files that grew while they were read, as [`Source::grown`] says, of all sources together.
    pub fn grown(&self, most: usize) -> (Vec<Vec<u8>>, u64) {
        let (mut all, mut more) = (Vec::new(), 0);
        for (_, source) in &self.sources {
            let (paths, rest) = source.grown(most - all.len());
            all.extend(paths);
            more += rest;
        }
        (all, more)
    }

    /// The number of the file system that a byte of the data is on, as [`Source::file_system`] says.
    pub fn file_system(&self, offset: u64) -> Option<u64> {
        self.source(offset).ok()?.0.file_system()
    }

    /// The file that has a byte of the data, as [`Source::path_at`] says.
    pub fn path(&self, offset: u64) -> Option<PathBuf> {
        self.source(offset).ok()?.0.path_at(offset)
    }

    fn manifest(&self, space: u16, range: Range) -> Result<&[u8], Absent> {
        let held = self
            .manifests
            .iter()
            .find(|(number, _)| *number == space)
            .map(|(_, bytes)| bytes.as_slice());
        held.and_then(|bytes| bytes.get(range.start as usize..range.end as usize))
            .ok_or_else(|| Absent {
                code: missing::NOT_HELD,
                reason: format!("this node does not hold manifest {space}"),
            })
    }
}

fn absent(error: &StoreError) -> Absent {
    Absent {
        code: missing::UNREADABLE,
        reason: error.to_string(),
    }
}

impl Provider for Holdings {
    fn extent(&self, space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        if space != SPACE_DATA {
            return Ok(Extent::Memory(self.manifest(space, range)?));
        }
        let (source, held) = self.source(range.start)?;
        let length = range.len().min(held);
        match persist(|| source.extent(range.start, length)).map_err(|e| absent(&e))? {
            ropewalk_store::Extent::Memory(bytes) => Ok(Extent::Memory(bytes)),
            ropewalk_store::Extent::File { file, offset, len } => Ok(Extent::File {
                file,
                offset,
                length: len,
                mapped: source.mapped(range.start, len),
            }),
        }
    }

    fn in_memory(&self, space: u16, range: Range) -> Result<Option<Extent<'_>>, Absent> {
        if space == SPACE_DATA && self.source(range.start)?.0.is_of_files() {
            return Ok(None);
        }
        self.extent(space, range).map(Some)
    }

    fn is_hole(&self, space: u16, range: Range) -> bool {
        let held = self.source(range.start);
        space == SPACE_DATA
            && held.is_ok_and(|(source, held)| held >= range.len() && source.is_hole(range))
    }

    fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        if space != SPACE_DATA {
            let end = offset + out.len() as u64;
            out.copy_from_slice(self.manifest(space, Range { start: offset, end })?);
            return Ok(());
        }
        let mut done = 0;
        while done < out.len() {
            let (source, held) = self.source(offset + done as u64)?;
            let part = (out.len() - done).min(usize::try_from(held).unwrap_or(usize::MAX));
            persist(|| source.read_at(offset + done as u64, &mut out[done..done + part]))
                .map_err(|e| absent(&e))?;
            done += part;
        }
        Ok(())
    }
}

/// Space number of a part's manifest.
pub(crate) fn manifest_space(part: usize) -> u16 {
    u16::try_from(part + 1).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::landing::tests::{BYTES, LEN, Scarce, all};
    use ropewalk_store::RETRIES;

    impl Source for Scarce {
        fn read_at(&self, _offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
            buf.copy_from_slice(&BYTES[..buf.len()]);
            self.call()
        }

        fn extent(&self, _offset: u64, len: u64) -> Result<ropewalk_store::Extent<'_>, StoreError> {
            self.call()?;
            Ok(ropewalk_store::Extent::Memory(&BYTES[..len as usize]))
        }
    }

    fn holdings(source: Arc<dyn Source>) -> Holdings {
        Holdings {
            sources: vec![(RangeSet::from(all()), source)],
            manifests: Vec::new(),
        }
    }

    /// A sender that is short of open files for a moment does not call its bytes unavailable.
    #[test]
    fn reading_outlives_a_shortage() {
        let source = Scarce::new(2);
        let mut out = [0; LEN];
        let held = holdings(source.clone());
        assert!(held.read(SPACE_DATA, 0, &mut out).is_ok());
        assert_eq!((out, source.left()), (BYTES, 0));
        let source = Scarce::new(2);
        assert!(holdings(source.clone()).extent(SPACE_DATA, all()).is_ok());
        assert_eq!(source.left(), 0);
    }

    /// Bytes in files, which have to be read where something is computed from them.
    struct InFiles;

    impl Source for InFiles {
        fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> Result<(), StoreError> {
            Ok(())
        }

        fn extent(
            &self,
            _offset: u64,
            _len: u64,
        ) -> Result<ropewalk_store::Extent<'_>, StoreError> {
            panic!("a file is opened");
        }

        fn is_of_files(&self) -> bool {
            true
        }
    }

    /// A file is not opened to learn that its bytes are not in memory.
    #[test]
    fn only_memory_is_asked_for_its_place() {
        let in_files = holdings(Arc::new(InFiles));
        assert!(matches!(in_files.in_memory(SPACE_DATA, all()), Ok(None)));
        let in_memory = holdings(Scarce::new(0));
        let found = in_memory.in_memory(SPACE_DATA, all());
        assert!(matches!(found, Ok(Some(Extent::Memory(_)))));
    }

    /// A shortage that lasts is told after a bounded number of tries, and what does not pass by itself at once.
    #[test]
    fn a_lasting_failure_is_told() {
        let source = Scarce::new(100);
        let absent = holdings(source.clone()).read(SPACE_DATA, 0, &mut [0; 10]);
        assert!(absent.is_err_and(|absent| absent.code == missing::UNREADABLE));
        assert_eq!(source.left(), 100 - RETRIES.len() as u32 - 1);
        let source = Scarce::failing(100, StoreError::Ended);
        let absent = holdings(source.clone()).read(SPACE_DATA, 0, &mut [0; 10]);
        assert!(absent.is_err());
        assert_eq!(source.left(), 99);
    }
}
