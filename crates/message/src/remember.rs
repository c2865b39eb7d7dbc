//! The file in which cut-offs are remembered, before and after a socket.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use ropewalk_model::Instant;
use ropewalk_proto::message::cutoff::{
    Guard, Known, Lesson, MEMORY_VERSION, Memory, Pair, RailEnds, Recalled,
};
use ropewalk_statefile::{LOCK_PATIENCE, StateError, StateFile, now_unix};

use crate::dial::Dialer;
use crate::threads;

const FILE: StateFile = StateFile {
    version: MEMORY_VERSION,
    key: "pairs",
    // More than twice what the most pairs with the most rails take.
    len_max: 8 << 20,
    lock_patience: LOCK_PATIENCE,
    anew: "cut-offs are measured again",
    instead: "name another file for cut-offs, or none",
    lost: "the cut-off of this socket is not remembered",
};

/// A disk that hangs (a home over NFS) must not hold a socket.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a connecting end remembers, and of whom.
#[derive(Clone, Debug)]
pub(crate) struct Remembrance {
    file: PathBuf,
    host: String,
    guard: Guard,
    /// Address of the peer on each rail.
    peers: Vec<SocketAddr>,
}

impl Remembrance {
    pub(crate) fn new(file: PathBuf, dialer: &Dialer) -> Self {
        // A home may be shared by hosts whose private addresses are the same.
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            file,
            host: host.trim().to_owned(),
            guard: match (dialer.sealed, dialer.check) {
                (true, _) => Guard::Sealed,
                (false, true) => Guard::Checked,
                (false, false) => Guard::Unchecked,
            },
            peers: dialer.rails.iter().map(|(_, peer)| *peer).collect(),
        }
    }

    /// `None` for a single rail, which has no cut-off.
    fn pair(&self, rails: &[RailEnds]) -> Option<Pair> {
        let ways: Vec<_> = rails
            .iter()
            .filter_map(|own| Some((own.rail, own.local, *self.peers.get(own.rail)?)))
            .collect();
        (ways.len() > 1).then(|| Pair::new(&self.host, self.guard, &ways))
    }

    /// What is remembered of these rails.
    pub(crate) fn recall(&self, rails: &[RailEnds]) -> Result<Option<Recalled>, String> {
        let Some(pair) = self.pair(rails) else {
            return Ok(None);
        };
        let file = self.file.clone();
        within(move || Ok(FILE.load::<Memory>(&file)?.recall(&pair, now_unix())))
    }

    /// Adds what a socket has shown; nothing is touched where that is nothing.
    pub(crate) fn record(&self, shown: &[Known], at: Instant) -> Result<(), String> {
        let now = now_unix();
        let lesson = |known: &Known| {
            let age_seconds = at.since(known.shown_at?).whole_seconds();
            let lesson = Lesson {
                value: known.value,
                best: known.best,
                found_by: known.found_by,
                seen_unix: now.saturating_sub(age_seconds),
            };
            Some((self.pair(&known.rails)?, lesson))
        };
        let lessons: Vec<_> = shown.iter().filter_map(lesson).collect();
        if lessons.is_empty() {
            return Ok(());
        }
        let file = self.file.clone();
        within(move || {
            FILE.update(&file, |memory: &mut Memory| {
                for (pair, lesson) in &lessons {
                    memory.learn(pair, *lesson, now);
                }
            })
        })
    }
}

/// Does something with the file, which must not take long.
fn within<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StateError> + Send + 'static,
) -> Result<T, String> {
    let (done, result) = sync_channel(1);
    let body = move || {
        // Nobody listens when it took too long.
        let _ = done.send(work());
    };
    threads::spawn("cut-offs", body).map_err(|error| format!("cannot start a thread: {error}"))?;
    match result.recv_timeout(PATIENCE) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!(
            "the file of cut-offs does not answer within {} s",
            PATIENCE.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ropewalk_model::Instant;
    use ropewalk_proto::message::cutoff::{FoundBy, NEVER};

    use super::*;

    fn remembrance(file: &Path) -> Remembrance {
        Remembrance {
            file: file.to_owned(),
            host: "node4".to_owned(),
            guard: Guard::Sealed,
            peers: ["10.0.0.5:7430", "[fd00::5]:7430"]
                .map(|text| text.parse().unwrap())
                .to_vec(),
        }
    }

    fn rails(count: usize) -> Vec<RailEnds> {
        let ends = [("10.0.0.4", "10.0.0.5"), ("fd00::4", "fd00::5")];
        let ends = ends.iter().enumerate().take(count);
        ends.map(|(rail, (local, peer))| RailEnds {
            rail,
            local: local.parse().unwrap(),
            peer: peer.parse().unwrap(),
        })
        .collect()
    }

    fn known(value: u64, seconds: u64) -> Known {
        Known {
            rails: rails(2),
            value,
            best: Some(1),
            found_by: FoundBy::Fit,
            shown_at: Some(Instant(seconds * 1_000_000_000)),
        }
    }

    /// What is written reads back with its age, and people can read it.
    #[test]
    fn the_file_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deep/cut-offs.json");
        let own = remembrance(&file);
        assert_eq!(own.recall(&rails(2)), Ok(None));
        for value in [20_000, NEVER] {
            own.record(&[known(value, 40)], Instant(100_000_000_000))
                .unwrap();
            let recalled = own.recall(&rails(2)).unwrap().unwrap();
            assert_eq!((recalled.value, recalled.best), (value, Some(1)));
            assert_eq!(recalled.found_by, FoundBy::Fit);
            assert!((60..70).contains(&recalled.age_seconds), "{recalled:?}");
            assert_eq!(own.recall(&rails(1)), Ok(None), "one rail has none");
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let kept: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(kept["about"].as_str().unwrap().contains("may be deleted"));
        let key = "node4, sealed: 10.0.0.4 -> 10.0.0.5:7430, fd00::4 -> [fd00::5]:7430";
        let pair = &kept["pairs"][key];
        assert!(pair["cut_off_bytes"].is_null(), "{text}");
        assert_eq!(pair["best"], "fd00::4 -> [fd00::5]:7430");
        assert_eq!(pair["found_by"], "fit");
    }

    /// A socket that showed nothing, or has one rail, writes nothing.
    #[test]
    fn nothing_is_written_of_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deep/cut-offs.json");
        let own = remembrance(&file);
        let told = Known {
            shown_at: None,
            ..known(20_000, 0)
        };
        let single = Known {
            rails: rails(1),
            ..known(20_000, 0)
        };
        own.record(&[], Instant::ZERO).unwrap();
        own.record(&[told, single], Instant::ZERO).unwrap();
        assert!(!file.parent().unwrap().exists());
    }

    /// Damage costs what was remembered and nothing else; a word that is missing is damage, and no cut-off of its own.
    #[test]
    fn damaged_files_are_found_anew() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cut-offs.json");
        let own = remembrance(&file);
        own.record(&[known(20_000, 0)], Instant::ZERO).unwrap();
        let good = std::fs::read_to_string(&file).unwrap();
        let damages = [
            ("", ""),
            ("20000", "-1"),
            ("20000", "2e99"),
            ("\"cut_off_bytes\": 20000,", ""),
            ("\"fit\"", "\"guess\""),
            ("\"version\": 1,", ""),
        ];
        for (what, instead) in damages {
            let text = match what {
                "" => good[..good.len() / 2].to_owned(),
                _ => good.replace(what, instead),
            };
            assert_ne!(text, good);
            std::fs::write(&file, &text).unwrap();
            let error = own.recall(&rails(2)).unwrap_err();
            assert!(
                error.contains("cut-offs.json is damaged") && error.contains("measured again"),
                "{error}"
            );
            own.record(&[known(7, 0)], Instant::ZERO).unwrap();
            assert_eq!(own.recall(&rails(2)).unwrap().unwrap().value, 7, "{text}");
        }
        std::fs::write(&file, good.replace("\"version\": 1", "\"version\": 2")).unwrap();
        let newer = std::fs::read_to_string(&file).unwrap();
        assert!(own.recall(&rails(2)).unwrap_err().contains("left alone"));
        assert!(own.record(&[known(7, 0)], Instant::ZERO).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), newer);
    }

    /// The most pairs with the most rails and the longest names fit in what is read.
    #[test]
    fn all_that_may_be_remembered_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cut-offs.json");
        let mut own = remembrance(&file);
        let address = |rail: usize| format!("fd00:1111:2222:3333:4444:5555:6666:{rail:04x}");
        let long: Vec<RailEnds> = (0x1000..0x1040)
            .map(|rail| RailEnds {
                rail: rail - 0x1000,
                local: address(rail).parse().unwrap(),
                peer: address(rail + 0x1000).parse().unwrap(),
            })
            .collect();
        own.peers = long
            .iter()
            .map(|ends| SocketAddr::new(ends.peer, 65535))
            .collect();
        let mut memory = Memory::default();
        for host in 0..600 {
            own.host = format!("{host:064}");
            let pair = own.pair(&long).unwrap();
            let lesson = Lesson {
                value: NEVER - 1,
                best: Some(0),
                found_by: FoundBy::Messages,
                seen_unix: u64::MAX,
            };
            memory.learn(&pair, lesson, now_unix());
        }
        FILE.update(&file, |kept: &mut Memory| *kept = memory)
            .unwrap();
        let length = std::fs::metadata(&file).unwrap().len();
        assert!(length > 2 << 20 && length < FILE.len_max, "{length}");
        assert!(own.recall(&long).unwrap().is_some());
    }
}
