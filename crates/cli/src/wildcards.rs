//! Sources that are patterns: their hosts are asked what matches, and the rest is as if that had been typed.
//!
//! ```text
//!  h:/data/*.h5         asks h; what matches are separate items, one match is that path
//!  a[1-4]:/data/*.h5    asks each; all have to name the same, as replicas do, unless --sources parts
//!  h:~user/x            the same: that user's home folder on h, and x in it
//! ```

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Result, bail};
use ropewalk_master::Expansion;
use ropewalk_master::Request;
use ropewalk_master::request::{NodeRequest, Object, Options, Sources};

use crate::endpoint::Endpoint;

/// Names that are shown of those in which hosts differ.
const SHOWN: usize = 3;

/// What a command line asks for.
pub(crate) enum Asked<'a> {
    /// A transfer.
    Transfer(Box<Request>),
    /// A transfer whose sources are known only once their hosts have been asked.
    Expand(Box<Expand<'a>>),
}

/// Makes the request once the hosts have answered.
pub(crate) type Then<'a> = Box<dyn FnOnce(&[Expansion]) -> Result<Request> + 'a>;

/// What has to be asked, and what becomes of the answers.
pub(crate) struct Expand<'a> {
    pub nodes: Vec<NodeRequest>,
    pub options: Options,
    /// Takes what each of the nodes said.
    pub then: Then<'a>,
}

/// Whether a source has to be asked for.
pub(crate) fn is_asked(source: &Endpoint) -> bool {
    matches!(source.object, Object::Pattern(_))
}

/// Sources, each argument's on its own, with what matches in place of patterns.
///
/// * `nodes`, `expansions`: what was asked, and the answers.
///
/// # Errors
/// Where an argument names several hosts and they match different names: which.
pub(crate) fn replace(
    arguments: &[Vec<Endpoint>],
    nodes: &[NodeRequest],
    expansions: &[Expansion],
    relation: Sources,
) -> Result<Vec<Endpoint>> {
    let mut sources = Vec::new();
    for argument in arguments {
        // The first host that answered, and its names.
        let mut first: Option<(&Endpoint, BTreeSet<Vec<u8>>)> = None;
        for source in argument {
            let Object::Pattern(pattern) = &source.object else {
                sources.push(source.clone());
                continue;
            };
            let answers = nodes.iter().zip(expansions);
            let answer = answers.clone().find(|(node, _)| node.reach == source.reach);
            let found = answer.and_then(|(_, expansion)| {
                let paths = expansion.paths.get(pattern)?;
                Some((paths, expansion.is_reached))
            });
            let Some((paths, is_reached)) = found else {
                bail!("{source} was not asked for; this is a bug");
            };
            let matched: Vec<Endpoint> = paths
                .iter()
                .map(|path| Endpoint {
                    object: Object::Path(path.clone()),
                    ..source.clone()
                })
                .collect();
            let names = matched.iter().filter_map(Endpoint::base_name);
            let names: BTreeSet<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
            sources.extend(matched);
            if !is_reached || relation == Sources::Parts {
                continue;
            }
            match &first {
                None => first = Some((source, names)),
                Some((other, known)) if *known != names => {
                    let differ = [only(other, known, &names), only(source, &names, known)];
                    let differ: Vec<String> = differ.into_iter().flatten().collect();
                    bail!(
                        "{other} and {source} match different names, so they are no replicas: {}; name what all of \
                         them hold, or say --sources parts",
                        differ.join("; ")
                    );
                }
                Some(_) => {}
            }
        }
    }
    Ok(sources)
}

/// A pattern that means several things on a host, in words.
pub(crate) fn several(
    arguments: &[Vec<Endpoint>],
    nodes: &[NodeRequest],
    expansions: &[Expansion],
) -> Option<String> {
    arguments.iter().flatten().find_map(|source| {
        let Object::Pattern(pattern) = &source.object else {
            return None;
        };
        let mut answers = nodes.iter().zip(expansions);
        let (_, expansion) = answers.find(|(node, _)| node.reach == source.reach)?;
        let count = expansion.paths.get(pattern)?.len();
        (count > 1).then(|| format!("{count} files match {source}"))
    })
}

/// The names that one host has alone, in words; `None` when there is none.
fn only(source: &Endpoint, has: &BTreeSet<Vec<u8>>, lacks: &BTreeSet<Vec<u8>>) -> Option<String> {
    let names: Vec<&Vec<u8>> = has.difference(lacks).collect();
    let mut text = String::new();
    for (at, name) in names.iter().take(SHOWN).enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}{}", name.escape_ascii());
    }
    match names.len().saturating_sub(SHOWN) {
        0 => {}
        more => {
            let _ = write!(text, " and {more} more");
        }
    }
    (!names.is_empty()).then(|| format!("only {} has {text}", source.host()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;

    use super::*;
    use crate::endpoint::{self, Side};

    fn replaced(
        text: &str,
        found: &[(&str, bool, &[&str])],
        relation: Sources,
    ) -> Result<Vec<String>> {
        let argument = endpoint::parse(OsStr::new(text), Side::Source).unwrap();
        let nodes = crate::copy::nodes(&argument, &[]).unwrap();
        let mut expansions = Vec::new();
        for node in &nodes {
            let (_, is_reached, paths) =
                found.iter().find(|(name, ..)| *name == node.name).unwrap();
            let paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
            let Object::Pattern(pattern) = &node.sources[0].object else {
                panic!("{text} is no pattern");
            };
            expansions.push(Expansion {
                paths: BTreeMap::from([(pattern.clone(), paths)]),
                is_reached: *is_reached,
            });
        }
        let sources = replace(&[argument], &nodes, &expansions, relation)?;
        Ok(sources.iter().map(ToString::to_string).collect())
    }

    /// Each match is a source of its own; the hosts of one argument have to match the same names.
    #[test]
    fn matches_take_the_place_of_patterns() {
        let both: &[(&str, bool, &[&str])] = &[
            ("a1", true, &["/d/x", "/d/y"]),
            ("a2", true, &["/e/x", "/e/y"]),
        ];
        let sources = replaced("a[1-2]:/?/*", both, Sources::Auto).unwrap();
        assert_eq!(sources, ["a1:/d/x", "a1:/d/y", "a2:/e/x", "a2:/e/y"]);
        let differ: &[(&str, bool, &[&str])] = &[
            ("a1", true, &["/d/x", "/d/1", "/d/2", "/d/3", "/d/4"]),
            ("a2", true, &["/d/x", "/d/z"]),
        ];
        let error = replaced("a[1-2]:/d/*", differ, Sources::Auto)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no replicas: only a1 has 1, 2, 3 and 1 more; only a2 has z; name"),
            "{error}"
        );
        assert!(replaced("a[1-2]:/d/*", differ, Sources::Replicas).is_err());
        assert_eq!(
            replaced("a[1-2]:/d/*", differ, Sources::Parts)
                .unwrap()
                .len(),
            7
        );
        // One that was not reached says nothing.
        let silent: &[(&str, bool, &[&str])] = &[("a1", false, &["/d/x"]), ("a2", true, &["/d/x"])];
        assert_eq!(
            replaced("a[1-2]:/d/*", silent, Sources::Auto)
                .unwrap()
                .len(),
            2
        );
    }
}
