//! Sources with different lists of files: which of them are one thing.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_model::{Instant, digest};

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

    /// A list of files. Next states: Comparing, Ended.
    pub(super) fn handle_manifest(&mut self, node: u32, reply: ManifestReply) {
        if self.phase != Phase::Comparing || self.comparing.is_asked {
            return;
        }
        let at = (node, reply.source);
        if self.comparing.manifests.contains_key(&at) {
            // Receivers take the one that was announced.
            if !self.is_announced(node, &reply) {
                let text = "the list of files that it sent is not the one that it announced";
                let text = format!("{}: {text}", self.name(node));
                return self.refuse(text);
            }
            self.comparing.manifests.insert(at, reply.manifest);
        }
        let comparing = &mut self.comparing;
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

    /// Whether a list of files is the one that its node announced when it opened the source.
    fn is_announced(&self, node: u32, reply: &ManifestReply) -> bool {
        let state = self.nodes.get(node as usize);
        let opened = state.and_then(|state| state.opened.as_ref());
        let source = opened.and_then(|opened| opened.sources.get(reply.source as usize));
        source.is_some_and(|source| {
            source.manifest_length == reply.manifest.len() as u64
                && source.manifest_root == digest(&reply.manifest)
        })
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
