//! Lists of files (manifests) are fetched from their holders before a copy is made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_lane::{Grant, Received};
use ropewalk_model::Range;
use ropewalk_proto::control;
use ropewalk_proto::wire::CHUNK_LEN;
use ropewalk_store::{Manifest, Part};

use crate::connect::Via;
use crate::find::Ways;
use crate::holdings::manifest_space;
use crate::landing::BufferLanding;
use crate::member::Member;
use crate::streams::MANIFEST_STREAM;

/// Largest manifest that is fetched (about ten million files); it is held in memory.
const MANIFEST_MAX: u64 = 1 << 30;

/// A holder that sends no part of a manifest for this long is passed over.
const MANIFEST_SILENCE: Duration = Duration::from_secs(15);

/// Fetches lists of files.
pub(crate) struct Lists<'a> {
    pub member: &'a Arc<Member>,
    pub ways: &'a Arc<Ways>,
    /// The holders.
    pub peers: &'a [control::Peer],
}

impl Lists<'_> {
    /// The parts of a copy, each with its list; in words where one is not to be had.
    pub fn fetch(&self, parts: &[control::Part]) -> Result<Vec<Part>, String> {
        let parts = parts.iter().enumerate();
        let fetched = parts.map(|(at, part)| {
            Ok(Part {
                base: part.base,
                manifest: Arc::new(self.fetch_one(at, part)?),
                left_out: control::range_set(&part.left_out),
            })
        });
        fetched.collect()
    }

    /// Fetches one manifest from the first holder that serves it and checks it against its root.
    fn fetch_one(&self, at: usize, part: &control::Part) -> Result<Manifest, String> {
        if part.manifest_length > MANIFEST_MAX {
            return Err(format!(
                "the manifest has {} bytes, more than {MANIFEST_MAX}; copy subfolders one by one",
                part.manifest_length
            ));
        }
        let mut last = String::from("no holder is known");
        for holder in &part.holders {
            let Some(peer) = self.peers.iter().find(|p| p.node == *holder) else {
                continue;
            };
            match self.fetch_from(peer, at, part) {
                Ok(manifest) => return Ok(manifest),
                Err(reason) => last = format!("{}: {reason}", peer.name),
            }
            if self.member.has_ended() {
                break;
            }
        }
        Err(format!("the list of files cannot be fetched: {last}"))
    }

    fn fetch_from(
        &self,
        peer: &control::Peer,
        at: usize,
        part: &control::Part,
    ) -> Result<Manifest, String> {
        let connected = self.ways.connect(self.member, peer);
        let connected = connected.map_err(|e| e.to_string())?;
        let (mut half, _) = connected
            .join(self.member, &Via::Pair, MANIFEST_STREAM)
            .map_err(|e| e.to_string())?;
        let key = self.member.remember(half.stopper());
        let mut landing = BufferLanding {
            bytes: vec![0; part.manifest_length as usize],
        };
        let result = (|| {
            let mut start = 0;
            let mut id = 0;
            while start < part.manifest_length {
                let end = (start + CHUNK_LEN).min(part.manifest_length);
                let grant = Grant {
                    id,
                    space: manifest_space(at),
                    range: Range { start, end },
                    hash: false,
                    digest: false,
                };
                half.grant(&[grant]).map_err(|e| e.to_string())?;
                match half
                    .receive(&mut landing, Instant::now() + MANIFEST_SILENCE)
                    .map_err(|e| e.to_string())?
                {
                    Received::Unit { .. } => start = end,
                    Received::Corrupt { reason, .. } | Received::Missing { reason, .. } => {
                        return Err(reason);
                    }
                    Received::Digest { .. } | Received::Held(_) => {
                        return Err("it sent something else where the list of files was due".into());
                    }
                    Received::Idle => {
                        return Err(format!("silent for {} s", MANIFEST_SILENCE.as_secs()));
                    }
                }
                id += 1;
            }
            Ok(())
        })();
        self.member.forget(key);
        result?;
        if blake3::hash(&landing.bytes).as_bytes().as_slice() != part.manifest_root {
            return Err("the list of files does not match its hash".into());
        }
        Manifest::decode(&landing.bytes).map_err(|e| e.to_string())
    }
}
