//! Before the plan, where several nodes write one copy: this node looks what of it is there, or hears what another one has found.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use ropewalk_model::RangeSet;
use ropewalk_proto::control::{self, Change, from_agent};
use ropewalk_store::{
    Act, Check, Comparing, Contents, FileSink, Origin, Part, Present, Preview, Previewed, Sink,
    SinkFile, TreeSink,
};

use super::Transfer;
use crate::find::Ways;
use crate::hashes::SourceHashes;
use crate::lists::Lists;
use crate::open::{self, OpenSink};
use crate::origins::origins;
use crate::streams::STACK_LEN;

/// Ranges of a message that says what the destination has already: some hundred kilobytes.
const PRESENT_MAX: usize = 20_000;

/// Names of a message of a dry run: with the longest paths some megabytes.
const LISTED_MAX: usize = 1000;

fn listed(change: &Previewed) -> control::Listed {
    let mut listed = control::Listed {
        path: change.path.clone(),
        length: change.len,
        ..control::Listed::default()
    };
    listed.set_change(match change.act {
        Act::Send => Change::Send,
        Act::Make => Change::Make,
        Act::Remove => Change::Remove,
        Act::RemoveFolder => Change::RemoveFolder,
        Act::Missing => Change::Missing,
        Act::Extra => Change::Extra,
        Act::Kind => Change::Kind,
        Act::Size => Change::Size,
        Act::Contents => Change::Contents,
        Act::Metadata => Change::Metadata,
        Act::Unreadable => Change::Unreadable,
    });
    listed
}

/// What is known before the plan.
#[derive(Default)]
pub(crate) struct Looked {
    /// What the destination has already, as the node has found that looked.
    pub there: Present,
    /// That node has made the temporary name.
    pub is_made: bool,
    /// Where this node has looked: the copy, and the folder that was made to hold it.
    pub led: Option<TreeSink>,
    pub made_folder: Option<PathBuf>,
    /// Of rows: this node's sinks whose files were made, and those of them that it has made.
    pub made_files: BTreeSet<u32>,
    pub led_files: BTreeMap<u32, FileSink>,
}

impl Looked {
    /// The transfer ends before there was a plan. What an earlier one left stays for a later one.
    ///
    /// * `discard`: what this node made is removed, unless another node may go on with it.
    pub fn end(self, discard: bool) {
        let is_unused = |sink: &dyn Sink| discard && sink.present().adopted.is_empty();
        let files = self.led_files.values();
        for sink in files.filter(|sink| is_unused(*sink)) {
            sink.discard();
        }
        if let Some(sink) = self.led.filter(|sink| is_unused(sink)) {
            sink.discard();
            if let Some(folder) = &self.made_folder {
                ropewalk_store::remove_empty_folder(folder);
            }
        }
    }
}

/// The messages that say what is there.
pub(crate) fn present_messages(present: &Present) -> Vec<control::Present> {
    let mut messages = Vec::new();
    let counted = [
        present.files,
        present.passed_files,
        present.taken_bytes,
        present.wrong_more,
    ];
    if counted.iter().any(|count| *count > 0) || !present.wrong.is_empty() {
        let wrong = present.wrong.iter().map(|wrong| control::Wrong {
            path: wrong.path.clone(),
            bytes: wrong.bytes,
        });
        messages.push(control::Present {
            wrong: wrong.collect(),
            wrong_more: present.wrong_more,
            files: present.files,
            passed_files: present.passed_files,
            passed_bytes: present.passed_bytes,
            taken_bytes: present.taken_bytes,
            ..control::Present::default()
        });
    }
    for ranges in control::stretches(&present.unchanged).chunks(PRESENT_MAX) {
        messages.push(control::Present {
            ranges: ranges.to_vec(),
            ..control::Present::default()
        });
    }
    for refused in control::stretches(&present.refused).chunks(PRESENT_MAX) {
        messages.push(control::Present {
            refused: refused.to_vec(),
            ..control::Present::default()
        });
    }
    for adopted in control::stretches(&present.adopted).chunks(PRESENT_MAX) {
        messages.push(control::Present {
            adopted: adopted.to_vec(),
            ..control::Present::default()
        });
    }
    messages
}

fn add(known: &mut RangeSet, told: &[control::Stretch]) {
    *known = known.union(&control::range_set(told));
}

impl Transfer {
    /// Serves lists of files, and looks what is there where this node is to decide that. Returns at once.
    pub fn look(self: Arc<Self>, look: control::Look) {
        if look.files.is_empty() {
            self.serve(&look.source_bases, &look.parts);
        }
        if !look.decides {
            return;
        }
        let looking = std::thread::Builder::new()
            .name("look".into())
            .stack_size(STACK_LEN * 2);
        let transfer = self.clone();
        let looking = looking.spawn(move || {
            let found = catch_unwind(AssertUnwindSafe(|| match look.files.is_empty() {
                true => transfer.with_lists(&look, |parts, contents| match look.lists {
                    true => transfer.list(&look, parts, contents),
                    false => transfer.find_there(&look, parts, contents),
                }),
                false => transfer.find_rows(&look),
            }));
            transfer.report_there(found.unwrap_or_else(|_| {
                Err(
                    "a thread of the agent failed; this is a bug, its standard error says where"
                        .into(),
                )
            }));
        });
        if let Err(error) = looking {
            self.report_there(Err(format!("no thread can be started: {error}")));
        }
    }

    fn report_there(&self, found: Result<Present, String>) {
        let (mut messages, failed) = match found {
            Ok(present) => (present_messages(&present), String::new()),
            Err(reason) => (Vec::new(), reason),
        };
        messages.push(control::Present {
            last: true,
            failed,
            ..control::Present::default()
        });
        for message in messages {
            self.member.send(from_agent::Body::Present(message));
        }
    }

    /// Fetches the lists of files, and looks with them and the sources' hashes.
    fn with_lists(
        &self,
        look: &control::Look,
        find: impl FnOnce(&[Part], &SourceHashes<'_>) -> Result<Present, String>,
    ) -> Result<Present, String> {
        let ways = Arc::new(Ways::new(Box::new(|_, _| {})));
        let lists = Lists {
            member: &self.member,
            ways: &ways,
            peers: &look.peers,
        };
        let contents = SourceHashes {
            member: &self.member,
            ways: &ways,
            peers: &look.peers,
            parts: &look.parts,
            lines: AtomicUsize::new(0),
            silent: Mutex::default(),
        };
        let found = lists
            .fetch(&look.parts)
            .and_then(|parts| find(&parts, &contents));
        ways.clear();
        found
    }

    /// Reports what the copy does here, and makes nothing.
    fn list(
        &self,
        look: &control::Look,
        parts: &[Part],
        contents: &SourceHashes<'_>,
    ) -> Result<Present, String> {
        let wish = self.member.wish(contents);
        let wish = Some(&wish).filter(|_| self.member.options.same().keeps());
        let removes = Some(&self.member.filter).filter(|_| look.delete);
        let options = &self.member.options;
        let comparing = Comparing {
            contents: Some(contents as &dyn Contents)
                .filter(|_| self.member.check() == Check::Contents),
            metadata: options.archive,
        };
        // It is not held while files are read.
        let there = match self.sinks.lock().as_slice() {
            [
                OpenSink::Tree {
                    path, make_folder, ..
                },
            ] => Some((path.clone(), *make_folder)),
            _ => None,
        };
        let preview = match &there {
            Some((path, _)) if options.compares => {
                TreeSink::differences(path, parts, comparing, &self.member.filter)
            }
            Some((path, make_folder)) => {
                if !options.dry_run {
                    let awaited = self.member.await_endings(path, &self.id_text());
                    awaited.map_err(|error| error.to_string())?;
                }
                if let Some(filter) = removes {
                    let all = self.member.options.delete_all;
                    let checked = TreeSink::check_extra(path, parts, filter, all);
                    checked.map_err(|error| error.to_string())?;
                }
                TreeSink::preview(path, parts, wish, removes, *make_folder)
            }
            None => TreeSink::preview_of_all(parts),
        };
        let Preview { changes, present } = preview.map_err(|error| error.to_string())?;
        for changes in changes.chunks(LISTED_MAX) {
            let entries = changes.iter().map(listed).collect();
            let listing = control::Listing { entries };
            self.member.send(from_agent::Body::Listing(listing));
        }
        Ok(present)
    }

    fn find_there(
        &self,
        look: &control::Look,
        parts: &[Part],
        contents: &SourceHashes<'_>,
    ) -> Result<Present, String> {
        let (path, make_folder) = match self.sinks.lock().as_slice() {
            [
                OpenSink::Tree {
                    path, make_folder, ..
                },
            ] => (path.clone(), *make_folder),
            _ => return Err("this node writes no tree".into()),
        };
        if look.delete {
            let all = self.member.options.delete_all;
            let checked = TreeSink::check_extra(&path, parts, &self.member.filter, all);
            checked.map_err(|error| error.to_string())?;
        }
        // Nothing is made that the agent would not stay to remove.
        let Ok(_at_work) = self.member.work.clone().try_read_owned() else {
            return Err("the agent is about to end".into());
        };
        let awaited = self.member.await_endings(&path, &self.id_text());
        awaited.map_err(|error| error.to_string())?;
        let mut made_folder = None;
        if let Some(folder) = path.parent().filter(|_| make_folder)
            && ropewalk_store::make_folder(folder).map_err(|error| error.to_string())?
        {
            made_folder = Some(folder.to_owned());
        }
        let sink = TreeSink::lead(
            self.member.dest(&path, look.delete),
            parts,
            &self.id_text(),
            self.member.node,
            self.member.wish(contents),
        );
        let mut looked = Looked {
            made_folder,
            ..Looked::default()
        };
        match sink {
            Ok(sink) => {
                let present = sink.present();
                looked.led = Some(sink);
                self.keep_looked(looked);
                Ok(present)
            }
            Err(error) => {
                if let Some(folder) = &looked.made_folder {
                    ropewalk_store::remove_empty_folder(folder);
                }
                Err(error.to_string())
            }
        }
    }

    /// Takes over for all nodes of a destination what was left of files that rows write, and makes them.
    fn find_rows(&self, look: &control::Look) -> Result<Present, String> {
        // Nothing is made that the agent would not stay to remove.
        let Ok(_at_work) = self.member.work.clone().try_read_owned() else {
            return Err("the agent is about to end".into());
        };
        let origins = origins(&look.origins);
        let mut found = Present::default();
        let mut looked = Looked::default();
        for file in &look.files {
            let sink = self.lead_file(file, &origins);
            match sink {
                Ok(sink) => {
                    let present = sink.present();
                    found.adopted = found.adopted.union(&present.adopted);
                    looked.led_files.insert(file.sink, sink);
                }
                Err(reason) => {
                    // No other node writes before one has looked.
                    looked.end(true);
                    return Err(reason);
                }
            }
        }
        self.keep_looked(looked);
        Ok(found)
    }

    fn lead_file(
        &self,
        file: &control::SharedFile,
        origins: &[Origin],
    ) -> Result<FileSink, String> {
        // It is not held while files are read.
        let path = match self.sinks.lock().get(file.sink as usize) {
            Some(OpenSink::Files {
                paths,
                shared: true,
                ..
            }) if paths.len() == 1 => paths[0].clone(),
            _ => return Err(format!("sink {} of this node is no shared file", file.sink)),
        };
        let (_, layout) = open::row_layout(&file.rows).map_err(|error| error.to_string())?;
        let awaited = self.member.await_endings(&path, &self.id_text());
        awaited.map_err(|error| error.to_string())?;
        let written = SinkFile {
            path,
            renames: true,
            mode: file.mode.checked_sub(1),
            keeps_rest: false,
        };
        let (id, adopt) = (self.id_text(), self.member.adopt());
        let sink = FileSink::lead(layout, vec![written], &id, self.member.node, origins, adopt);
        sink.map_err(|error| error.to_string())
    }

    /// For the plan, unless the transfer has ended meanwhile.
    fn keep_looked(&self, looked: Looked) {
        let mut known = self.looked.lock();
        *known = looked;
        if self.member.has_ended() {
            let looked = std::mem::take(&mut *known);
            drop(known);
            // Where the master is gone it may have asked another node, and others write under this name.
            looked.end(self.discards_shared.load(Ordering::Acquire));
        }
    }

    /// One of the nodes that write the copy has found this.
    pub fn take_there(&self, there: &control::There) {
        let mut known = self.looked.lock();
        add(&mut known.there.unchanged, &there.ranges);
        add(&mut known.there.adopted, &there.adopted);
        add(&mut known.there.refused, &there.refused);
        known.is_made |= there.is_made;
        known.made_files.extend(&there.sinks);
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_store::Scan;

    use super::*;

    /// A node that looks for longer than its master is there removes nothing: another one looks in its place, and those that write do
    /// so under the same name. By the master's word what was made in vain goes.
    #[test]
    fn a_late_look_removes_nothing_of_others() {
        for (by_word, is_left) in [(false, true), (true, false)] {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path().canonicalize().unwrap();
            let (from, to) = (folder.join("from"), folder.join("to"));
            std::fs::create_dir(&from).unwrap();
            std::fs::write(from.join("file"), "bytes").unwrap();
            let parts = [Part::whole(0, Scan::read(&from).unwrap().manifest)];
            let (transfer, _said) = Transfer::alone();
            let id = transfer.id_text();
            match by_word {
                false => transfer.stop_without_master("its master is gone"),
                true => drop(transfer.finish(&control::Finish {
                    discard: true,
                    ..control::Finish::default()
                })),
            }
            let led = TreeSink::lead(&to, &parts, &id, 0, transfer.member.adopt()).unwrap();
            transfer.keep_looked(Looked {
                led: Some(led),
                ..Looked::default()
            });
            let made = folder.join(format!(".to.ropewalk-{id}"));
            assert_eq!(made.exists(), is_left, "by the master's word: {by_word}");
        }
    }
}
