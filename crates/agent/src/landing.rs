//! Where received bytes go, and where sent bytes come from: the store behind the lane's traits.

use std::error::Error;
use std::sync::Arc;

use ropewalk_lane::{Absent, Extent, Landing, Provider, missing};
use ropewalk_model::{CHUNK_LEN, Layout, Range, RangeSet};
use ropewalk_proto::wire::SPACE_DATA;
use ropewalk_store::{Sink, Source, StoreError};

use crate::receiving::Fetch;

/// The sinks of one node with the stretches of data space they take.
pub(crate) struct SinkSet {
    sinks: Vec<(RangeSet, Arc<dyn Sink>)>,
    layout: Layout,
    unit_len: u64,
    // Nobody reads the bytes again: each stream receives straight into a buffer of its own.
    in_memory: bool,
    // Other nodes write the same files.
    shared: bool,
}

impl SinkSet {
    /// `layout` and `unit_len` say where units begin and end; the layout covers all sinks.
    pub fn new(
        sinks: Vec<(RangeSet, Arc<dyn Sink>)>,
        layout: Layout,
        unit_len: u64,
        in_memory: bool,
        shared: bool,
    ) -> Self {
        Self {
            sinks,
            layout,
            unit_len,
            in_memory,
            shared,
        }
    }

    /// Whether other nodes write the same files.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether all bytes of a range have a place here.
    pub fn holds(&self, range: Range) -> bool {
        self.sinks
            .iter()
            .any(|(held, _)| held.contains_range(range))
    }

    /// The unit of integrity around an offset.
    pub fn unit_at(&self, offset: u64) -> Range {
        self.layout.unit_at(offset, self.unit_len)
    }

    /// Calls `f` for the parts of `[offset, offset + length)` with the sink that takes each.
    fn each(
        &self,
        offset: u64,
        length: u64,
        mut f: impl FnMut(&dyn Sink, Range) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let range = Range {
            start: offset,
            end: offset + length,
        };
        if let [(_, only)] = self.sinks.as_slice() {
            return f(only.as_ref(), range);
        }
        for (held, sink) in &self.sinks {
            for part in held.clipped(range).iter() {
                f(sink.as_ref(), part)?;
            }
        }
        Ok(())
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.each(offset, bytes.len() as u64, |sink, part| {
            let at = (part.start - offset) as usize;
            sink.write_at(part.start, &bytes[at..at + part.len() as usize])
        })
    }

    pub fn read_back(&self, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let length = out.len() as u64;
        self.each(offset, length, |sink, part| {
            let at = (part.start - offset) as usize;
            sink.read_back(part.start, &mut out[at..at + part.len() as usize])
        })
    }

    pub fn sync(&self) -> Result<(), StoreError> {
        self.sinks.iter().try_for_each(|(_, sink)| sink.sync())
    }

    pub fn commit(&self) -> Result<(), StoreError> {
        self.sinks.iter().try_for_each(|(_, sink)| sink.commit())
    }

    /// Removes what is temporary. What other nodes write too goes only with `shared`: that is the
    /// master's word, who knows that nobody goes on.
    pub fn discard(&self, shared: bool) {
        if shared || !self.shared {
            self.sinks.iter().for_each(|(_, sink)| sink.discard());
        }
    }
}

/// The landing of one stream.
pub(crate) struct SinkLanding {
    fetch: Arc<Fetch>,
    sinks: Arc<SinkSet>,
    // One chunk; empty unless bytes stay in memory.
    buffer: Vec<u8>,
}

impl SinkLanding {
    pub fn new(fetch: Arc<Fetch>, sinks: Arc<SinkSet>) -> Self {
        let buffer = if sinks.in_memory {
            vec![0; CHUNK_LEN as usize]
        } else {
            Vec::new()
        };
        Self {
            fetch,
            sinks,
            buffer,
        }
    }
}

impl Landing for SinkLanding {
    fn buffer(&mut self, _space: u16, offset: u64, length: usize) -> Option<&mut [u8]> {
        let at = (offset % CHUNK_LEN) as usize;
        self.buffer.get_mut(at..at + length)
    }

    fn write(
        &mut self,
        space: u16,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        if space != SPACE_DATA {
            return Err(format!("bytes of space {space} do not belong in a sink").into());
        }
        // A late copy of what is safe already: the file may have its final name by now.
        if self.fetch.is_delivered(Range {
            start: offset,
            end: offset + bytes.len() as u64,
        }) {
            return Ok(());
        }
        self.sinks.write(offset, bytes).map_err(Into::into)
    }
}

/// The landing of a manifest: a buffer whose size is known before.
pub(crate) struct BufferLanding {
    pub bytes: Vec<u8>,
}

impl Landing for BufferLanding {
    fn write(
        &mut self,
        _space: u16,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let end = offset as usize + bytes.len();
        let place = self
            .bytes
            .get_mut(offset as usize..end)
            .ok_or("bytes beyond the manifest")?;
        place.copy_from_slice(bytes);
        Ok(())
    }
}

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
        match source.extent(range.start, length).map_err(|e| absent(&e))? {
            ropewalk_store::Extent::Memory(bytes) => Ok(Extent::Memory(bytes)),
            ropewalk_store::Extent::File { file, offset, len } => Ok(Extent::File {
                file,
                offset,
                length: len,
                mapped: source.mapped(range.start, len),
            }),
        }
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
            source
                .read_at(offset + done as u64, &mut out[done..done + part])
                .map_err(|e| absent(&e))?;
            done += part;
        }
        Ok(())
    }
}
