//! Says which sources that differ are replicas of each other after all, and which are disjoint parts; or names the
//! first conflict.

use ropewalk_store::Manifest;

use crate::request::Sources;

/// As [`compare`], on a thread of its own: lists of millions of files take seconds, and connections go on meanwhile.
pub(crate) async fn beside(
    sources: Sources,
    manifests: Vec<(String, Vec<u8>)>,
) -> Result<Vec<u32>, String> {
    let comparing = tokio::task::spawn_blocking(move || compare(sources, &manifests));
    let compared = comparing.await;
    compared.unwrap_or_else(|_| Err("comparing the lists of files failed; this is a bug".into()))
}

/// Which of the contents are one thing: for each its number, from 0 on, in the order of the first of each.
///
/// * `manifests`: name of a holder and the encoded manifest, one per distinct content.
pub(crate) fn compare(
    sources: Sources,
    manifests: &[(String, Vec<u8>)],
) -> Result<Vec<u32>, String> {
    if manifests.len() < 2 {
        return Err(
            "sources differ, but only one list of files was received; this is a bug".into(),
        );
    }
    let mut decoded: Vec<(&str, Manifest)> = Vec::new();
    for (name, bytes) in manifests {
        let manifest = Manifest::decode(bytes).map_err(|error| format!("{name}: {error}"))?;
        decoded.push((name, manifest));
    }
    // The first of each thing, and which thing each content is.
    let mut things: Vec<usize> = Vec::new();
    let mut number_of: Vec<u32> = Vec::new();
    for (at, (name, manifest)) in decoded.iter().enumerate() {
        let is_same = |&first: &usize| {
            let (other, first) = &decoded[first];
            Manifest::difference(first, manifest, [other, name]).is_none()
        };
        let known = match sources {
            Sources::Parts => None,
            Sources::Auto | Sources::Replicas => things.iter().position(is_same),
        };
        let thing = known.unwrap_or(things.len());
        if known.is_none() {
            things.push(at);
        }
        number_of.push(thing as u32);
    }
    let difference = |first: usize, second: usize| {
        let (one, two) = (&decoded[first], &decoded[second]);
        Manifest::difference(&one.1, &two.1, [one.0, two.0])
    };
    if sources == Sources::Replicas
        && let [first, second, ..] = things[..]
    {
        return Err(format!(
            "{} and {} are no replicas: {}; make them equal, or use --sources parts if each holds a part",
            decoded[first].0,
            decoded[second].0,
            difference(first, second).unwrap_or_default()
        ));
    }
    let parts: Vec<&Manifest> = things.iter().map(|&at| &decoded[at].1).collect();
    let Some((path, first, second)) = Manifest::conflict(&parts) else {
        return Ok(number_of);
    };
    let (first, second) = (things[first], things[second]);
    let names = format!("{} and {}", decoded[first].0, decoded[second].0);
    let what = match path.is_empty() {
        // Two files, or a file and a folder.
        true => format!("{names} are not the same"),
        false => format!(
            "{names} both hold `{}` but are not the same",
            path.escape_ascii()
        ),
    };
    let why = difference(first, second)
        .map(|words| format!(" (as replicas: {words})"))
        .unwrap_or_default();
    Err(format!(
        "{what}{why}; make them equal to copy them as replicas, or disjoint to copy them as parts"
    ))
}

#[cfg(test)]
mod tests {
    use ropewalk_store::{Entry, EntryKind};

    use super::*;

    fn entry(path: &str, kind: EntryKind, mtime_seconds: i64) -> Entry {
        Entry {
            path: path.into(),
            kind,
            mode: 0o700,
            mtime_seconds,
            mtime_nanoseconds: 0,
            kept: Default::default(),
        }
    }

    /// A folder, made at some time, with files of one byte.
    fn folder(made: i64, files: &[(&str, i64)]) -> Vec<u8> {
        let mut entries = vec![entry("", EntryKind::Directory, made)];
        let file = |&(name, time): &(&str, i64)| entry(name, EntryKind::File { len: 1 }, time);
        entries.extend(files.iter().map(file));
        Manifest { entries }.encode()
    }

    fn named(contents: Vec<Vec<u8>>) -> Vec<(String, Vec<u8>)> {
        let name = |(at, bytes)| (format!("h{at}:/set"), bytes);
        contents.into_iter().enumerate().map(name).collect()
    }

    /// Replicas that differ in the times of folders are found among parts.
    #[test]
    fn replicas_and_parts_mix() {
        let contents = named(vec![
            folder(1, &[("a", 5)]),
            folder(1, &[("b", 5)]),
            folder(2, &[("a", 5)]),
        ]);
        assert_eq!(compare(Sources::Auto, &contents), Ok(vec![0, 1, 0]));
        let refused = compare(Sources::Replicas, &contents).unwrap_err();
        assert!(
            refused.contains("h0:/set and h1:/set are no replicas"),
            "{refused}"
        );
        let refused = compare(Sources::Parts, &contents).unwrap_err();
        assert!(
            refused.contains("h0:/set and h2:/set both hold `a`"),
            "{refused}"
        );
        assert_eq!(
            compare(
                Sources::Replicas,
                &named(vec![folder(1, &[]), folder(2, &[])])
            ),
            Ok(vec![0, 0])
        );
    }

    /// The thread that asks is free while lists are compared: with the only other one busy the answer is not there yet.
    #[test]
    fn lists_are_compared_elsewhere() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(1).build().unwrap();
        let contents = named(vec![folder(1, &[("a", 5)]), folder(1, &[("b", 5)])]);
        runtime.block_on(async {
            let (free, busy) = std::sync::mpsc::channel::<()>();
            let occupied = tokio::task::spawn_blocking(move || busy.recv().is_err());
            let mut compared = Box::pin(beside(Sources::Auto, contents));
            let at_once = std::future::poll_fn(|context| {
                let is_ready = compared.as_mut().poll(context).is_ready();
                std::task::Poll::Ready(is_ready)
            });
            assert!(!at_once.await);
            drop(free);
            assert_eq!(compared.await, Ok(vec![0, 1]));
            occupied.await.unwrap();
        });
    }

    /// A difference names hosts and dates, and shows no control characters.
    #[test]
    fn conflicts_have_hosts_and_dates() {
        let contents = named(vec![
            folder(1, &[("a\x1b[2J", 1_714_910_400)]),
            folder(1, &[("a\x1b[2J", 1_714_914_000)]),
        ]);
        let refused = compare(Sources::Auto, &contents).unwrap_err();
        assert!(
            refused.contains(
                "was modified 2024-05-05 12:00:00 UTC in h0:/set and 2024-05-05 13:00:00 UTC in h1:/set"
            ),
            "{refused}"
        );
        assert!(!refused.contains('\x1b'), "{refused:?}");
    }
}
