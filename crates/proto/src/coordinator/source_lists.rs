//! Sources with different lists of files: which of them are one thing.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::Instant;

use super::phase::{Phase, Step};
use super::{Action, Coordinator, OPEN_TIME_MAX};
use crate::control::{self, ManifestReply, to_agent};

/// Lists of files that are fetched and compared.
#[derive(Debug, Default)]
pub(super) struct Comparing {
    began_at: Instant,
    // By node and source; empty until they come.
    manifests: BTreeMap<(u32, u32), Vec<u8>>,
    // All have come, and the driver is at it.
    is_asked: bool,
}

impl Comparing {
    /// When lists were asked for.
    pub fn began_at(&mut self) -> &mut Instant {
        &mut self.began_at
    }

    /// Nodes whose lists were not received in time.
    pub fn late(&self, now: Instant) -> BTreeSet<u32> {
        let is_late = now.since(self.began_at) > OPEN_TIME_MAX && !self.is_asked;
        let late = self.manifests.iter().filter(|(_, bytes)| bytes.is_empty());
        let late = late.filter(|_| is_late);
        late.map(|((node, _), _)| *node).collect()
    }
}

impl Coordinator {
    /// Fetches the lists of these sources, by node. Next states: Comparing.
    pub(super) fn compare_sources(&mut self, sources: &[(u32, u32)]) {
        self.enter(Step::Differ);
        self.comparing = Comparing {
            began_at: self.clock.now,
            manifests: sources.iter().map(|&at| (at, Vec::new())).collect(),
            is_asked: false,
        };
        for &(node, source) in sources {
            let query = control::ManifestQuery { source };
            self.send(node, to_agent::Body::ManifestQuery(query));
        }
    }

    pub(super) fn handle_manifest(&mut self, node: u32, reply: ManifestReply) {
        let comparing = &mut self.comparing;
        if self.phase != Phase::Comparing || comparing.is_asked {
            return;
        }
        if let Some(awaited) = comparing.manifests.get_mut(&(node, reply.source)) {
            *awaited = reply.manifest;
        }
        if comparing.manifests.values().all(|m| !m.is_empty()) {
            // They are big and go to the driver; whose they are is for its answer.
            let manifests = comparing.manifests.iter_mut();
            let manifests = manifests
                .map(|((node, source), bytes)| (*node, *source, std::mem::take(bytes)))
                .collect();
            comparing.is_asked = true;
            self.out.push(Action::Compare(manifests));
        }
    }

    /// Answer to [`Action::Compare`]: for each manifest, in the order asked, the number of the thing that it describes;
    /// those with one number are replicas, the others disjoint parts. Or the first conflict in words.
    /// Next states: Probing, Planning, Ended.
    pub fn handle_compared(&mut self, result: Result<Vec<u32>, String>) {
        if self.phase != Phase::Comparing {
            return;
        }
        match result {
            Ok(numbers) => {
                let sources = std::mem::take(&mut self.comparing.manifests).into_keys();
                self.space.things = Some(sources.zip(numbers).collect());
                self.all_opened();
            }
            Err(text) => self.refuse(text),
        }
    }
}
