//! Before the plan, where several nodes write one copy: this node looks what of it is there, or hears what another one has found.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ropewalk_model::RangeSet;
use ropewalk_proto::control::{self, from_agent};
use ropewalk_store::{Part, Present, TreeSink};

use super::Transfer;
use crate::find::Ways;
use crate::lists::Lists;
use crate::open::OpenSink;
use crate::streams::STACK_LEN;

/// Ranges of a message that says what the destination has already: some hundred kilobytes.
const PRESENT_MAX: usize = 20_000;

/// What is known before the plan.
#[derive(Default)]
pub(crate) struct Looked {
    /// What the destination has already, as the node has found that looked.
    pub there: Present,
    /// The parts of the copy, where this node has looked.
    pub parts: Option<Vec<Part>>,
}

/// The messages that say what is there.
pub(crate) fn present_messages(present: &Present) -> Vec<control::Present> {
    let mut messages = Vec::new();
    if present.files > 0 {
        messages.push(control::Present {
            files: present.files,
            ..control::Present::default()
        });
    }
    for ranges in control::stretches(&present.unchanged).chunks(PRESENT_MAX) {
        messages.push(control::Present {
            ranges: ranges.to_vec(),
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
        self.serve(&look.source_bases, &look.parts);
        if !look.decides {
            return;
        }
        let looking = std::thread::Builder::new()
            .name("look".into())
            .stack_size(STACK_LEN * 2);
        let transfer = self.clone();
        let looking = looking.spawn(move || {
            let found = catch_unwind(AssertUnwindSafe(|| transfer.find_there(&look)));
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

    fn find_there(&self, look: &control::Look) -> Result<Present, String> {
        let (path, make_folder) = match self.sinks.lock().as_slice() {
            [
                OpenSink::Tree {
                    path, make_folder, ..
                },
            ] => (path.clone(), *make_folder),
            _ => return Err("this node writes no tree".into()),
        };
        let ways = Arc::new(Ways::new(Box::new(|_, _| {})));
        let lists = Lists {
            member: &self.member,
            ways: &ways,
            peers: &look.peers,
        };
        let parts = lists.fetch(&look.parts);
        ways.clear();
        let parts = parts?;
        let is_made_later = make_folder && path.parent().is_some_and(|folder| !folder.exists());
        let present = match is_made_later {
            true => Present::default(),
            false => TreeSink::look(&path, &parts, &self.id_text()).map_err(|e| e.to_string())?,
        };
        self.looked.lock().parts = Some(parts);
        Ok(present)
    }

    /// One of the nodes that write the copy has found this.
    pub fn take_there(&self, there: &control::There) {
        let known = &mut self.looked.lock().there;
        add(&mut known.unchanged, &there.ranges);
        add(&mut known.adopted, &there.adopted);
    }
}
