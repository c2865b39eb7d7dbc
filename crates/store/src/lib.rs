//! Where the bytes of the data space lie on a host: sources, sinks, trees, and the folders an agent may touch.
//!
//! * [`Source`]: [`FileSource`] (rows of a specification, or a scanned tree), [`PatternSource`] (`mem:SIZE`), [`BufferSource`] (`buffer:NAME`).
//! * [`Sink`]: [`FileSink`] (rows), [`TreeSink`] (a tree or one file with its metadata), [`BufferSink`], [`MemorySink`], [`NullSink`].
//! * [`Manifest`]: what a tree holds. [`Roots`]: which paths are allowed.
//!
//! Everything is called from many threads at once. Data-space offsets are turned into object
//! offsets by [`ropewalk_model::Layout`]; nothing here knows peers, plans or the wire.
//!
//! Names are bytes: those that are not UTF-8 survive. Symbolic links below a root are copied and never
//! followed. Linux only, as the rest of the data plane.

// What tests of whole stores share names this crate so.
#[cfg(test)]
extern crate self as ropewalk_store;

mod appended;
mod buffer;
mod claims;
mod endings;
mod error;
mod file_sink;
mod file_source;
mod file_systems;
mod filter;
mod folders;
mod holes;
mod home;
mod identity;
mod journal;
mod leftovers;
mod manifest;
mod memory_sink;
mod new_folder;
mod open_files;
mod parallel;
mod pattern;
mod place;
mod progress;
mod remains;
mod retry;
mod roots;
mod sink;
mod source;
mod staging;
mod sys;
mod tree_sink;
mod version;
mod wildcard;

pub use appended::AppendedFile;
pub use buffer::{Buffer, BufferError, BufferSink, BufferSource, Buffers};
pub use endings::{ENDING_WAIT, await_endings};
pub use error::{Operation, StoreError};
pub use file_sink::{FileSink, Origin, SinkFile, check_replaceable};
pub use file_source::FileSource;
pub use filter::{BadPattern, Filter, FilterRule};
pub use home::from_home;
pub use identity::{Identity, file_number, identity, known_as, open_whole};
pub use manifest::{
    Attribute, COMPONENT_LEN_MAX, Device, Entry, EntryKind, FileList, Keep, Kept, LeftOut,
    MODE_OF_NONE, Manifest, ManifestError, Owner, PATH_LEN_MAX, Scan, Scanning, Special,
};
pub use memory_sink::MemorySink;
pub use new_folder::{NewFolder, open_folder};
pub use open_files::OPEN_FILES_MAX;
pub use pattern::{PATTERN_PERIOD, PatternSource, pattern_byte};
pub use place::{Above, Place, Stand};
pub use remains::{Remain, RemainState, remains};
pub use retry::{RETRIES, persist};
pub use roots::{Access, Roots};
pub use sink::{Landed, NullSink, Present, Removed, Sink, SinkExtent, Unit, Wrong};
pub use source::{Extent, Growth, SMALL_FILE_MAX, Source};
pub use staging::{make_folder, remove_empty_folder, remove_temporary, temporary_paths};
pub use tree_sink::{
    Act, Adopt, Check, Comparing, Contents, Dest, Hashes, KEPT_MIN, KEPT_MIN_FAILED, Part, Permit,
    Preview, Previewed, Standing, Stays, TreeSink, Wish,
};
pub use version::{Change, Version};
pub use wildcard::{MATCHES_MAX, expand, is_pattern, may_match};
