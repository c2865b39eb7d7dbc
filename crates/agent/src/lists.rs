//! Lists of files (manifests) are fetched from their holders before a copy is made.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_lane::{Grant, LaneError, ReceiveHalf, Received};
use ropewalk_model::Range;
use ropewalk_proto::control;
use ropewalk_proto::wire::CHUNK_LEN;
use ropewalk_store::{Keep, Manifest, Part};

use crate::connect::Via;
use crate::find::Ways;
use crate::holdings::manifest_space;
use crate::landing::BufferLanding;
use crate::member::Member;
use crate::streams::MANIFEST_STREAM;

/// Largest manifest that is fetched (about ten million files); it is held in memory.
const MANIFEST_MAX: u64 = 1 << 30;

/// A holder that sends no byte of a manifest for this long is passed over.
const MANIFEST_SILENCE: Duration = Duration::from_secs(15);

/// Refuses a list that is not what its holder announced, or has more than it was asked for: a source cannot shift where the bytes of other
/// sources lie, nor decide on the rights and names that a copy gets.
fn check(manifest: &Manifest, part: &control::Part, keep: Keep) -> Result<(), String> {
    let (bytes, files) = (manifest.data_len(), manifest.file_count());
    if (bytes, files) != (part.length, part.file_count) {
        return Err(format!(
            "its list of files has {files} files of {bytes} bytes, and it announced {} of {}",
            part.file_count, part.length
        ));
    }
    let shown = |path: &[u8]| path.escape_ascii().to_string();
    if let Some(entry) = manifest.beyond(keep) {
        return Err(format!(
            "its list of files has owners, attributes, hard links or special files, which it was not asked for, of \"{}\"",
            shown(&entry.path)
        ));
    }
    if manifest.is_bundle() == part.names.is_empty() {
        return Err("its list of files is of other things than it was asked for".into());
    }
    let asked: HashSet<&[u8]> = part.names.iter().map(|name| &name[..]).collect();
    let mut names = manifest.names().filter(|_| manifest.is_bundle());
    match names.find(|name| !asked.contains(name)) {
        Some(name) => Err(format!(
            "its list of files has \"{}\", which it was not asked for",
            shown(name)
        )),
        None => Ok(()),
    }
}

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
            let fetched = self.fetch_from(peer, at, part);
            let checked = fetched.and_then(|manifest| {
                check(&manifest, part, self.member.keep())?;
                Ok(manifest)
            });
            match checked {
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
                match receive(half.as_mut(), &mut landing).map_err(|e| e.to_string())? {
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

/// What is received next; [`Received::Idle`] where nothing is, not a byte, for so long: uplinks may be slow, and shared by many.
fn receive(half: &mut dyn ReceiveHalf, landing: &mut BufferLanding) -> Result<Received, LaneError> {
    loop {
        let before = half.observe().bytes_in;
        let received = half.receive(landing, Instant::now() + MANIFEST_SILENCE)?;
        if received != Received::Idle || half.observe().bytes_in == before {
            return Ok(received);
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_store::Scan;

    use super::*;

    /// A list that is not what was announced, or has more than was asked for, is refused, whatever its hash; one that is as asked is not.
    #[test]
    fn lists_are_as_announced_and_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        for (name, text) in [("a", "ten bytes!"), ("b", "five!")] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        std::fs::hard_link(folder.join("a"), folder.join("c")).unwrap();
        let all = Keep {
            owners: true,
            attributes: true,
            links: true,
            specials: true,
        };
        let scan = |keep| Scan::read_keeping(&folder, keep).unwrap().manifest;
        let of = |manifest: &Manifest| control::Part {
            length: manifest.data_len(),
            file_count: manifest.file_count(),
            ..control::Part::default()
        };
        let plain = scan(Keep::default());
        assert_eq!(check(&plain, &of(&plain), Keep::default()), Ok(()));
        let is_refused = |manifest: &Manifest, part: control::Part, keep, why: &str| {
            let reason = check(manifest, &part, keep).unwrap_err();
            assert!(reason.contains(why), "{reason}");
        };
        for (length, file_count) in [(1, 3), (26, 3), (25, 2), (0, 0)] {
            let part = control::Part {
                length,
                file_count,
                ..of(&plain)
            };
            is_refused(&plain, part, Keep::default(), "3 files of 25 bytes");
        }
        let kept = scan(all);
        assert_eq!(check(&kept, &of(&kept), all), Ok(()));
        for keep in [
            Keep {
                owners: false,
                ..all
            },
            Keep {
                links: false,
                ..all
            },
        ] {
            is_refused(&kept, of(&kept), keep, "not asked for");
        }
        let one = |name: &str| {
            let scan = Scan::read(&folder.join(name)).unwrap().manifest;
            (name.as_bytes().to_vec(), Arc::unwrap_or_clone(scan))
        };
        let bundle = Manifest::bundle(vec![one("a"), one("b")]).unwrap();
        let named = |names: &[&str]| control::Part {
            names: names.iter().map(|name| name.as_bytes().to_vec()).collect(),
            ..of(&bundle)
        };
        assert_eq!(
            check(&bundle, &named(&["b", "a", "x"]), Keep::default()),
            Ok(())
        );
        is_refused(&bundle, named(&["a"]), Keep::default(), "\"b\"");
        is_refused(&bundle, named(&[]), Keep::default(), "other things");
        let part = control::Part {
            names: vec![b"a".to_vec()],
            ..of(&plain)
        };
        is_refused(&plain, part, Keep::default(), "other things");
    }
}
