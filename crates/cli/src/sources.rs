//! How several sources of `copy` relate, as far as the command line shows it: one thing that several hosts hold, or
//! separate items, each of which goes into DEST/ under its own name.
//!
//! ```text
//!  a[1-3]:/set                 one thing: replicas or parts, found out by comparing
//!  /x /y   a:/x b:/y           separate items: DEST/x and DEST/y
//!  a[1-3]:/x a[1-3]:/y         two things on three hosts each
//! ```
//!
//! What is held by one host, or has another name, is never taken for a replica or a part unless `--sources` says so.
//! Things that the same hosts hold make one bundle, so that the number of bundles does not grow with that of files.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Result, bail};
use ropewalk_master::request::{Object, Reach, Sources};

use crate::endpoint::{self, Endpoint};

/// Where an endpoint is, as far as what was typed tells: two agents of one machine are two hosts.
fn host(endpoint: &Endpoint) -> (Option<&str>, u16) {
    let port = match endpoint.reach {
        Reach::Attached { port, .. } => port,
        Reach::Local | Reach::Ssh(_) | Reach::Launched(_) => 0,
    };
    (endpoint.reach.host(), port)
}

/// Turns sources into what the transfer is asked for, and gives destinations that end in a slash their last names.
pub(crate) fn arrange(
    sources: Vec<Endpoint>,
    destinations: &mut [Endpoint],
    relation: Sources,
) -> Result<Vec<Endpoint>> {
    arrange_matched(sources, destinations, relation, None)
}

/// As [`arrange`] once patterns were replaced by what they match.
///
/// * `several`: a pattern that matches more than one thing, in words: what replicas hold then is several things.
pub(crate) fn arrange_matched(
    sources: Vec<Endpoint>,
    destinations: &mut [Endpoint],
    relation: Sources,
    several: Option<String>,
) -> Result<Vec<Endpoint>> {
    let (sources, repeated) = once_each(sources);
    if relation == Sources::Replicas
        && several.is_none()
        && let Some((one, other)) = on_one_host(&sources)
    {
        bail!(
            "{one} and {other} are on one host, which would send the first and never compare the second; name one of them"
        );
    }
    let apart = match relation {
        Sources::Auto => several.or_else(|| apart(&sources)),
        Sources::Replicas => several,
        Sources::Parts => None,
    };
    let Some(apart) = apart else {
        if let Some(source) = repeated.filter(|_| !destinations.iter().any(|d| d.into)) {
            bail!("{source} is named twice as a source; name it once");
        }
        for destination in destinations.iter_mut().filter(|d| d.into) {
            put_into(destination, &sources)?;
        }
        return Ok(sources);
    };
    let is_path = |destination: &&Endpoint| matches!(destination.object, Object::Path(_));
    if let Some(destination) = destinations.iter().filter(is_path).find(|d| !d.into) {
        let replicas = match on_one_host(&sources) {
            Some(_) => "",
            None => "--sources replicas (all hold the same) or ",
        };
        bail!(
            "{apart}, so they are separate things and need a folder to go into: write {destination}/ to copy each under \
             its own name, or say {replicas}--sources parts (each holds a part) if together they are {destination}"
        );
    }
    for destination in destinations.iter_mut() {
        // It names the folder itself, which is made if only it is missing.
        destination.into = false;
    }
    bundles(sources)
}

/// Sources without repetitions, and one that was repeated. Patterns may match the same file: into a folder it is copied once.
fn once_each(sources: Vec<Endpoint>) -> (Vec<Endpoint>, Option<Endpoint>) {
    let mut seen: HashSet<(String, Vec<u8>)> = HashSet::new();
    let (kept, repeated): (Vec<_>, Vec<_>) = sources.into_iter().partition(|source| {
        seen.insert((endpoint::prefix(&source.reach), source.object.to_bytes()))
    });
    (kept, repeated.into_iter().next())
}

/// Why sources are not one thing; `None` when they may be.
fn apart(sources: &[Endpoint]) -> Option<String> {
    let first = sources.first()?;
    for (at, source) in sources.iter().enumerate() {
        if source.base_name() != first.base_name() {
            return Some(format!("{first} and {source} have different names"));
        }
        if let Some((one, other)) = on_one_host(&sources[..=at]) {
            return Some(format!("{one} and {other} are on one host"));
        }
    }
    None
}

/// Two sources that one host holds.
fn on_one_host(sources: &[Endpoint]) -> Option<(&Endpoint, &Endpoint)> {
    let mut at = (1..sources.len()).filter_map(|at| {
        let mut before = sources[..at].iter();
        let other = before.find(|other| host(other) == host(&sources[at]));
        other.map(|other| (other, &sources[at]))
    });
    at.next()
}

/// Separate items, side by side: those that are on the same hosts together.
fn bundles(sources: Vec<Endpoint>) -> Result<Vec<Endpoint>> {
    // By name, in the order typed.
    let mut things: Vec<(Vec<u8>, Vec<Endpoint>)> = Vec::new();
    let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
    for source in sources {
        let Some(name) = source.base_name().map(<[u8]>::to_vec) else {
            bail!(
                "{source} has no name of its own, so it cannot go into a folder beside others; copy it by itself and \
                 name the copy"
            );
        };
        let place = *places.entry(name.clone()).or_insert(things.len());
        let Some((_, holders)) = things.get_mut(place) else {
            things.push((name, vec![source]));
            continue;
        };
        if let Some(other) = holders.iter().find(|other| host(other) == host(&source)) {
            bail!(
                "{other} and {source} would both be named {} in the destination; copy them into different folders",
                name.escape_ascii()
            );
        }
        holders.push(source);
    }
    // By name, so that all hosts list them alike.
    type Together = BTreeMap<Vec<u8>, Vec<Endpoint>>;
    let mut by_hosts: Vec<(Vec<Reach>, Together)> = Vec::new();
    for (name, holders) in things {
        let reaches: Vec<Reach> = holders.iter().map(|h| h.reach.clone()).collect();
        let same = |(known, _): &&mut (Vec<Reach>, _)| {
            known.len() == reaches.len() && reaches.iter().all(|reach| known.contains(reach))
        };
        match by_hosts.iter_mut().find(same) {
            Some((_, together)) => {
                together.insert(name, holders);
            }
            None => by_hosts.push((reaches, BTreeMap::from([(name, holders)]))),
        }
    }
    let mut bundled = Vec::new();
    for (reaches, together) in by_hosts {
        for reach in reaches {
            let mut paths = Vec::new();
            for holder in together.values().flatten().filter(|h| h.reach == reach) {
                if let Object::Path(path) = &holder.object {
                    paths.push(path.clone());
                }
            }
            bundled.push(Endpoint {
                reach,
                object: Object::Bundle(paths),
                into: false,
                contents: false,
            });
        }
    }
    Ok(bundled)
}

/// Appends the sources' common name to a destination that was written with a trailing slash, unless what is in the sources is meant.
pub(crate) fn put_into(destination: &mut Endpoint, sources: &[Endpoint]) -> Result<()> {
    let Object::Path(path) = &mut destination.object else {
        return Ok(());
    };
    if sources.iter().all(|source| source.contents) {
        destination.into = false;
        return Ok(());
    }
    let folder = String::from_utf8_lossy(path).into_owned();
    let Some(name) = sources.first().and_then(Endpoint::base_name) else {
        let source = sources.first().map_or(String::new(), Endpoint::to_string);
        bail!("{source} has no name of its own, so {folder}/ is not enough; name the copy");
    };
    if let Some(other) = sources.iter().find(|s| s.base_name() != Some(name)) {
        bail!(
            "{} and {other} have different names, so {folder}/ is not enough; name the copy that they make together",
            sources[0]
        );
    }
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::endpoint::{self, Side};

    fn arranged(
        sources: &[&str],
        destination: &str,
        relation: Sources,
    ) -> Result<(Vec<String>, String)> {
        let parse = |text: &str, side| endpoint::parse(OsStr::new(text), side);
        let mut all = Vec::new();
        for source in sources {
            all.extend(parse(source, Side::Source)?);
        }
        let mut destinations = parse(destination, Side::Destination)?;
        let all = arrange(all, &mut destinations, relation)?;
        let shown = all.iter().map(ToString::to_string).collect();
        Ok((shown, destinations[0].to_string()))
    }

    fn auto(sources: &[&str], destination: &str) -> (Vec<String>, String) {
        arranged(sources, destination, Sources::Auto).unwrap()
    }

    fn refusal(sources: &[&str], destination: &str, relation: Sources) -> String {
        let error = arranged(sources, destination, relation).unwrap_err();
        error.to_string()
    }

    /// Different hosts, one name: replicas or parts; the destination is the copy, or gets their name.
    #[test]
    fn one_name_on_different_hosts_is_one_thing() {
        for (sources, destination, copy) in [
            (&["a[1-2]:/data/set"][..], "/x", "/x"),
            (&["a[1-2]:/data/set"], "/x/", "/x/set"),
            (&["a:/one/set", "b:/two/set"], "/x", "/x"),
            (&["a:7:/set", "a:8:/set"], "/x", "/x"),
            (&["/set", "a:/set"], "/x/", "/x/set"),
            (&["a:mem:5", "b:mem:5"], "null:", "null:"),
            (&["/set"], "/x/", "/x/set"),
            (&["/set/"], "/x/", "/x/set"),
            // What is in the source, as with rsync and `cp -r`.
            (&["/set/."], "/x/", "/x"),
            (&["/set/./"], "/x/", "/x"),
            (&["a[1-2]:/data/set/."], "/x/", "/x"),
            (&["a:"], "/x/", "/x"),
            (&["/set/."], "/x", "/x"),
            // Not of all, so of none.
            (&["a:/set/.", "b:/set"], "/x/", "/x/set"),
        ] {
            let (all, to) = auto(sources, destination);
            assert!(all.iter().all(|one| !one.contains(", ")), "{all:?}");
            assert_eq!(to, copy, "{sources:?}");
        }
    }

    /// One host, or different names: separate items, which need a folder.
    #[test]
    fn things_of_their_own_go_into_a_folder() {
        for (sources, bundles) in [
            (&["/a", "/b"][..], &["/a, /b"][..]),
            (&["h:/d/a", "h:/b", "h:/c"], &["h:/d/a, h:/b, h:/c"]),
            (&["h1:/a", "h2:/b"], &["h1:/a", "h2:/b"]),
            (
                &["h[1-2]:/a", "h[2,1]:/b"],
                &["h1:/a, h1:/b", "h2:/a, h2:/b"],
            ),
            (
                &["h[1-2]:/a", "h1:/b", "h1:/c"],
                &["h1:/a", "h2:/a", "h1:/b, h1:/c"],
            ),
            (&["me@h:/a", "h:/b"], &["me@h:/a", "h:/b"]),
        ] {
            let (all, to) = auto(sources, "/x/");
            assert_eq!(all, bundles, "{sources:?}");
            assert_eq!(to, "/x", "{sources:?}");
            let refused = refusal(sources, "/x", Sources::Auto);
            assert!(refused.contains("write /x/ to copy each"), "{refused}");
            assert!(refused.contains("--sources parts"), "{refused}");
            assert!(auto(sources, "null:").1 == "null:");
        }
        assert!(refusal(&["/a/x", "/b/x"], "/y", Sources::Auto).contains("are on one host"));
        assert!(refusal(&["a:/x", "b:/y"], "/z", Sources::Auto).contains("different names"));
    }

    /// Two things of one name on one host cannot both go into a folder; what has no name cannot go into one at all.
    #[test]
    fn clashes_in_the_folder_are_refused() {
        let refused = refusal(&["h:/a/x", "h:/b/x", "h:/y"], "/d/", Sources::Auto);
        assert!(
            refused.contains("h:/a/x and h:/b/x would both be named x"),
            "{refused}"
        );
        let refused = refusal(&["me@h:/a/x", "h:/b/x"], "/d/", Sources::Auto);
        assert!(refused.contains("would both be named x"), "{refused}");
        for nameless in ["/", "mem:5", "/a/.."] {
            let refused = refusal(&[nameless, "/b"], "/d/", Sources::Auto);
            assert!(refused.contains("no name of its own"), "{refused}");
        }
        assert!(refusal(&["/a", "/a"], "/d", Sources::Auto).contains("named twice"));
    }

    /// What two patterns match goes into a folder once.
    #[test]
    fn repeated_things_are_copied_once() {
        let (all, _) = arranged(&["h:/a", "h:/b", "h:/a"], "/d/", Sources::Auto).unwrap();
        assert_eq!(all, ["h:/a, h:/b"]);
    }

    /// What `--sources` says counts; DEST names what the sources make together.
    #[test]
    fn what_is_said_counts() {
        for (sources, relation) in [
            (["h:/a", "/b"], Sources::Replicas),
            (["/a", "/b"], Sources::Parts),
        ] {
            let (all, to) = arranged(&sources, "/x", relation).unwrap();
            assert_eq!((all.len(), &to[..]), (2, "/x"));
            assert!(refusal(&sources, "/x/", relation).contains("different names"));
        }
    }

    /// A host that holds two replicas would send one and never read the other.
    #[test]
    fn replicas_are_on_different_hosts() {
        for sources in [["/a", "/b"], ["h:7:/a", "h:7:/b"]] {
            let refused = refusal(&sources, "/x", Sources::Replicas);
            assert!(refused.contains("are on one host"), "{refused}");
            let refused = refusal(&sources, "/x", Sources::Auto);
            assert!(!refused.contains("--sources replicas"), "{refused}");
        }
    }
}
