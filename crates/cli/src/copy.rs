//! `copy`: turns sources and destinations into a request.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use ropewalk_master::Request;
use ropewalk_master::request::{
    Destinations, Mapping, NodeRequest, Object, ObjectRequest, Reach, Sources,
};

use crate::checksums::ChecksumArgs;
use crate::choices::{DestinationsArg, LaunchArg, SourcesArg};
use crate::endpoint::{self, Endpoint, Side};
use crate::filter::FilterArgs;
use crate::inputs::{Handed, Inputs};
use crate::launch::Job;
use crate::options::{DetachArgs, HabitArgs, MoveArgs, OutputArgs, PageArgs};
use crate::sources;
use crate::tree::TreeArgs;
use crate::wildcards::{self, Asked, Expand};

/// Arguments of `ropewalk copy`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES, after_help = SHORT, override_usage = "ropewalk copy [OPTIONS] SOURCE... DEST")]
pub(crate) struct CopyArgs {
    /// One or more sources, then the destination
    #[arg(value_name = "PATH", required = true, num_args = 1..)]
    endpoints: Vec<OsString>,

    /// A further destination; may be repeated
    #[arg(long, hide_short_help = true, value_name = "DEST")]
    also_to: Vec<OsString>,

    /// Also copy owner, group, set-id bits, extended attributes, ACLs, pipes, sockets and devices
    ///
    /// By name where the receiver knows the name, else by number. What permissions or the file system do not allow is counted in
    /// the report
    #[arg(short, long)]
    archive: bool,

    /// Copy names of one file (hard links) as names of one file
    ///
    /// Among all sources of one host; its bytes are sent once. Where the file system at the destination has no hard links, each name
    /// becomes a file of its own, and the report counts them
    #[arg(short = 'H', long, hide_short_help = true)]
    hard_links: bool,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    pub tree: TreeArgs,

    #[command(flatten)]
    checksums: ChecksumArgs,

    /// How several sources relate
    #[arg(long, value_name = "HOW", default_value = "auto")]
    sources: SourcesArg,

    /// How several destinations relate
    #[arg(long, value_name = "HOW", default_value = "copies")]
    destinations: DestinationsArg,

    /// What `ropewalk status` and the report call this transfer; `cancel`, `join` and `leave` take it
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "TEXT",
        help_heading = "Output"
    )]
    pub label: Option<String>,

    #[command(flatten)]
    habits: HabitArgs,

    #[command(flatten)]
    pub moving: MoveArgs,

    /// Start the agents of all other hosts with the launcher of a job, not over ssh
    ///
    /// All at once, with this program's path or --remote-path. What is secret goes over the launcher's standard input; agents listen
    /// at ports that the system chooses, or --ports. They end with the command or the job, and the same command in another job goes on
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "HOW",
        conflicts_with = "detach",
        help_heading = "Reaching hosts"
    )]
    launch: Option<LaunchArg>,

    #[command(flatten)]
    pub output: OutputArgs,

    #[command(flatten)]
    pub page: PageArgs,

    #[command(flatten)]
    pub detach: DetachArgs,
}

const SHORT: &str = "\
Examples (--help has more; --help-all has all options):
  ropewalk copy /data/set host:/data/          a folder, to /data/set there
  ropewalk copy -n --delete set host:/set      what a mirror would send and remove
  ropewalk copy 'a[1-4]:/set' 'b[1-6]:/set'    four replicas to six copies";

const EXAMPLES: &str = "\
Sources and destinations:
  /data/set  set  ./a:b          a file or folder of this host (hide a colon behind ./)
  host:/data/set  me@host:/x     on a host reached over ssh; only the program is needed there
  host:set  host:~/set  host:    below the home folder there; host:~user/set in that of a user
  'host:/data/*.h5'              the files that match there (*, ?, [a-z]; quote it, \\* is a star);
                                 a file of exactly this name has priority
  a[1-4]:/data/set               on four hosts
  host:7420:/data/set            on a host where `ropewalk agent` listens; also [::1]:7420:/x
  mem:4GiB  host:mem:4GiB        bytes made in memory (as a destination mem: alone will do)
  null:  host:null:              destination that checks and discards the bytes
  DEST names the copy. If DEST ends with /, the source is copied into that folder under its own
  name, or, if the source ends with /. (or is . or ..), what is in the source; the folder is
  created if its parent folder exists.
  A path means the same whether or not it exists.

Several sources:
  On one host, or with different names: separate items, which need DEST/. Each goes there
  under its own name; two of one name on one host are refused.
  On different hosts (names or ports, as typed) with the same last name: one thing, replicas or
  parts by --sources. The progress and the report name which it was.

What a copy is:
  All below the source, or what --include and --exclude leave of it, by rsync's rules.
  Contents, modes, modification times and symbolic links; with option -a also owner, group,
  set-id bits, extended attributes, ACLs, pipes, sockets and devices (else counted). Hard links
  become separate files, except with option -H. Holes are not sent, and zeros of 64 KiB and more
  become holes. Files and folders that cannot be read are left out and named (status 3), and so
  are names that cannot be given at the end. Existing folders at the destination keep, without -a,
  their mode and time and, without --delete, their other entries. A file that the destination has with the
  same size and modification time is not sent (with option --check none it is). Each file is
  written under a temporary name. In folders that the destination has it takes the place of an
  older file as soon as all of it is safe; the rest is renamed at the end. All is renamed at the end
  with options --atomic, --keep-partial and --verify sink, of compared replicas and of a shared
  copy: then the destination needs space for the old and the new version.
  If the copy is then incomplete (status 1, 3 or 130), its complete files are renamed all the
  same, and the report names the others; the same command then sends the rest, also of partial
  files. Option --atomic renames nothing of an incomplete copy. Temporary files of which little
  is safe are deleted, except with option --keep-partial. They are .NAME.ropewalk-ID-NODE (of a
  shared copy .NAME.ropewalk-ID). A killed agent can leave them: the next run goes on with them.
  Delete those of a shared copy whose command was killed. Sources never include such names.
  A changed source is detected by its size, timestamps and inode. Writes through mmap are
  detected only after the kernel has written the pages back: do not copy the files of a running
  database. Files of /proc and /sys have no size: use cat.

Examples:
  ropewalk copy /data/set /backup/
      makes /backup/set
  ropewalk copy a.h5 b.h5 notes host:/data/run7/
      makes a.h5, b.h5 and notes in /data/run7
  ropewalk copy 'host:run7/*.h5' h5/
      the files that match on host; with 'a[1-4]:run7/*.h5' all hosts must have the same names
  ropewalk copy host:/data/set /tmp/set
      fetches a tree over ssh, encrypted and checked
  ropewalk copy -n --delete set host:/data/set
      lists what a mirror of set would send and remove; without -n it does that
  ropewalk copy 'a[1-4]:/data/set' 'b[1-6]:/data/set'
      four replicas (or four parts: the command compares them) to six copies
  ropewalk copy --sources parts 'a[1-4]:/scratch/out' home:/results/out
      each source holds other files; together they make one tree
  ropewalk copy --destinations shared store:/big 'n[1-8]:/lustre/big'
      eight hosts write one copy on the file system they share
  ropewalk copy --plain --node-rate a=10Gbit --node-rate b=10Gbit a:mem:64GiB b:null:
      what the path between a and b can carry
  ropewalk copy --lane rapid --rate 1.6Gbit a:/data/set b:/data/set
      UDP at 1.6 Gbit/s at most, slower while b's processor is busy
  ropewalk copy --launch slurm /data/set 'node[1-4]:/local/set'
      in a job of Slurm: to four of its nodes, whose agents one srun starts
  ropewalk copy --detach /data/set host:/data/
      hands it over to `ropewalk serve`, which tries again where it fails, also after a reboot

Exit status: 0 done, 1 failed, 2 usage, 3 partial, 4 refused before the start, 130 interrupted.";

impl CopyArgs {
    /// What the arguments describe.
    pub(crate) fn asked(&self) -> Result<Asked<'_>> {
        let (arguments, mut destinations) = self.endpoints()?;
        let relation = self.sources.0;
        if !arguments.iter().flatten().any(wildcards::is_asked) {
            let sources = arguments.into_iter().flatten().collect();
            let sources = sources::arrange(sources, &mut destinations, relation)
                .map_err(|error| self.with_also_to(error))?;
            return Ok(Asked::Transfer(Box::new(
                self.request(sources, destinations)?,
            )));
        }
        let nodes = asked_nodes(&arguments)?;
        Ok(Asked::Expand(Box::new(Expand {
            options: self.options(&nodes)?,
            nodes: nodes.clone(),
            then: Box::new(move |expansions| {
                let sources = wildcards::replace(&arguments, &nodes, expansions, relation)?;
                let several = wildcards::several(&arguments, &nodes, expansions);
                let sources =
                    sources::arrange_matched(sources, &mut destinations, relation, several)?;
                self.request(sources, destinations)
            }),
        })))
    }

    /// What a job needs of it beside its command line.
    ///
    /// # Errors
    /// A file that only this process has.
    pub(crate) fn handed(&self) -> Result<Handed> {
        self.moving.check_detached()?;
        self.page.check_detached()?;
        let (_, to) = self.endpoints()?;
        let from = self
            .endpoints
            .split_last()
            .map_or(&[][..], |(_, from)| from);
        let inputs = Inputs {
            names: self.tree.list(),
            patterns: self.filter.kept(),
            ..Inputs::default()
        };
        Ok(Handed {
            priority: self.detach.priority,
            label: self.label.clone(),
            from: from
                .iter()
                .map(|text| text.to_string_lossy().into_owned())
                .collect(),
            to,
            inputs,
            json: self.output.json,
        })
    }

    /// One destination has nothing to share with: the last of the sources may have been meant as another.
    fn with_also_to(&self, error: anyhow::Error) -> anyhow::Error {
        let is_alone = self.destinations.0 == Destinations::Shared
            && self.also_to.is_empty()
            && self.endpoints.len() > 2;
        match is_alone {
            true => anyhow::anyhow!(
                "{error}; only the last path is a destination, a further one is named by --also-to DEST"
            ),
            false => error,
        }
    }

    fn request(&self, sources: Vec<Endpoint>, destinations: Vec<Endpoint>) -> Result<Request> {
        let mut nodes = nodes(&sources, &destinations)?;
        self.moving.declare_rates(&mut nodes)?;
        let mut options = self.options(&nodes)?;
        options.delete_all = sources.iter().all(|source| source.into && !source.contents);
        let mapping = Mapping::Trees {
            sources: self.sources.0,
            destinations: self.destinations.0,
        };
        Ok(Request {
            label: self.label.clone(),
            nodes,
            mapping,
            links: Vec::new(),
            options,
        })
    }

    fn options(&self, nodes: &[NodeRequest]) -> Result<ropewalk_master::request::Options> {
        let options = self.moving.options(nodes)?;
        let options = ropewalk_master::request::Options {
            archive: self.archive,
            hard_links: self.hard_links,
            filter: self.filter.rules()?,
            launcher: self.launch.map(|launch| launch.0),
            ..options
        };
        let options = self.checksums.add(options, nodes, self.destinations.0)?;
        self.tree.add(options, nodes, self.habits.is_recursive)
    }

    /// The sources of each argument, and the destinations.
    fn endpoints(&self) -> Result<(Vec<Vec<Endpoint>>, Vec<Endpoint>)> {
        let Some((destination, sources)) = self.endpoints.split_last() else {
            bail!("name a source and a destination");
        };
        if sources.is_empty() {
            bail!("only one path is named\n\nUsage: ropewalk copy [OPTIONS] SOURCE... DEST");
        }
        let all =
            |texts: &mut dyn Iterator<Item = &OsString>, side| -> Result<Vec<Vec<Endpoint>>> {
                let parsed = texts.map(|text| endpoint::parse(OsStr::new(text), side));
                Ok(parsed.collect::<Result<_, _>>()?)
            };
        let job = self.launch.map(|launch| Job::find(launch.0)).transpose()?;
        let launched = |mut ends: Vec<Vec<Endpoint>>| -> Result<Vec<Vec<Endpoint>>> {
            if let Some(job) = &job {
                let mut each = ends.iter_mut().flatten();
                each.try_for_each(|end| job.take(end))?;
            }
            Ok(ends)
        };
        let sources = launched(all(&mut sources.iter(), Side::Source)?)?;
        let destinations = launched(all(
            &mut std::iter::once(destination).chain(&self.also_to),
            Side::Destination,
        )?)?;
        Ok((sources, destinations.concat()))
    }
}

/// The nodes of a copy from one place to another.
pub(crate) fn pair(from: Endpoint, to: Endpoint) -> Result<(Vec<NodeRequest>, Mapping)> {
    let (sources, mut destinations) = (vec![from], vec![to]);
    for destination in destinations.iter_mut().filter(|d| d.into) {
        sources::put_into(destination, &sources)?;
    }
    let mapping = Mapping::Trees {
        sources: Sources::Auto,
        destinations: Destinations::Copies,
    };
    Ok((nodes(&sources, &destinations)?, mapping))
}

/// The nodes that have to be asked what their patterns mean, with all that is to be read there.
pub(crate) fn asked_nodes(arguments: &[Vec<Endpoint>]) -> Result<Vec<NodeRequest>> {
    let all = || arguments.iter().flatten();
    let asked: Vec<Endpoint> = all()
        .filter(|source| {
            all().any(|other| other.reach == source.reach && wildcards::is_asked(other))
        })
        .cloned()
        .collect();
    nodes(&asked, &[])
}

/// One node for each host and side; sources of one host share a node, destinations never do.
pub(crate) fn nodes(sources: &[Endpoint], destinations: &[Endpoint]) -> Result<Vec<NodeRequest>> {
    for destination in destinations {
        for source in sources {
            outside(source, destination)?;
        }
    }
    nodes_of(sources, destinations)
}

/// As [`nodes`], for what is not copied: one may hold the other.
pub(crate) fn nodes_of(
    sources: &[Endpoint],
    destinations: &[Endpoint],
) -> Result<Vec<NodeRequest>> {
    let mut nodes: Vec<NodeRequest> = Vec::new();
    for source in sources {
        let object = object(source);
        match nodes.iter_mut().find(|node| node.reach == source.reach) {
            Some(node) => node.sources.push(object),
            None => nodes.push(node(source, vec![object], Vec::new())),
        }
    }
    let senders = nodes.len();
    for (at, destination) in destinations.iter().enumerate() {
        if destinations[..at].contains(destination) && destination.object != Object::Null {
            bail!("{destination} is named twice as a destination; name it once");
        }
        let sinks = vec![object(destination)];
        // An agent that runs, or is one of a launch, takes part in a transfer once, so what it has and what it wants are one node.
        let is_one = matches!(
            destination.reach,
            Reach::Attached { .. } | Reach::Launched(_)
        );
        if is_one
            && let Some(known) = nodes
                .iter_mut()
                .find(|node| node.reach == destination.reach)
        {
            if !known.sinks.is_empty() && matches!(known.reach, Reach::Launched(_)) {
                bail!(
                    "{destination}: a node of a job takes one copy; make the second by another command"
                );
            }
            if !known.sinks.is_empty() {
                bail!(
                    "{destination}: one agent takes one copy; start a second agent on that host for the second"
                );
            }
            known.sinks = sinks;
            continue;
        }
        nodes.push(node(destination, Vec::new(), sinks));
    }
    name(&mut nodes, senders);
    Ok(nodes)
}

fn object(endpoint: &Endpoint) -> ObjectRequest {
    ObjectRequest {
        object: endpoint.object.clone(),
        rows: Vec::new(),
        destination: None,
        make_folder: endpoint.into,
    }
}

/// Refuses a copy that would take its source's place, or lie in it, where the paths as typed show it. Where links hide it
/// the agent finds out.
fn outside(source: &Endpoint, destination: &Endpoint) -> Result<()> {
    if !source.reach.is_same_host(&destination.reach) {
        return Ok(());
    }
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let Object::Path(to) = &destination.object else {
        return Ok(());
    };
    let to = path(to);
    // What `..` leads to depends on links.
    let is_plain = |path: &Path| !path.components().any(|c| c == Component::ParentDir);
    let pairs: Vec<(PathBuf, PathBuf)> = match &source.object {
        Object::Path(from) => vec![(path(from), to)],
        Object::Bundle(paths) => {
            let copy = |from: &Vec<u8>| to.join(path(Object::last_name(from)));
            paths.iter().map(|from| (path(from), copy(from))).collect()
        }
        Object::Pattern(_) | Object::Memory(_) | Object::Buffer(_) | Object::Null => Vec::new(),
    };
    for (from, copy) in pairs {
        if from == copy {
            bail!(
                "{} is both source and destination; name another place for the copy",
                copy.display()
            );
        }
        if copy.starts_with(&from) && is_plain(&copy) {
            bail!(
                "the copy {} would lie in its own source {}; name another place for the copy",
                copy.display(),
                from.display()
            );
        }
    }
    Ok(())
}

fn node(
    endpoint: &Endpoint,
    sources: Vec<ObjectRequest>,
    sinks: Vec<ObjectRequest>,
) -> NodeRequest {
    NodeRequest {
        name: match endpoint.reach {
            Reach::Local => "this host".to_owned(),
            _ => endpoint.host().to_owned(),
        },
        reach: endpoint.reach.clone(),
        sources,
        sinks,
        up: None,
        down: None,
        interfaces: Vec::new(),
    }
}

/// Makes names unique: the host alone where that is enough, then with its port, its side, a number.
///
/// * `senders`: how many nodes at the front came from sources.
fn name(nodes: &mut [NodeRequest], senders: usize) {
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    for node in nodes.iter() {
        *used.entry(node.name.clone()).or_default() += 1;
    }
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for (at, node) in nodes.iter_mut().enumerate() {
        if used.get(&node.name).is_some_and(|&count| count > 1) {
            node.name = match &node.reach {
                Reach::Attached { host, port } => format!("{host}:{port}"),
                Reach::Local if at < senders => "this host (source)".to_owned(),
                Reach::Local => "this host (copy)".to_owned(),
                Reach::Ssh(_) | Reach::Launched(_) if at < senders => {
                    format!("{}-source", node.name)
                }
                Reach::Ssh(_) | Reach::Launched(_) => format!("{}-copy", node.name),
            };
        }
        let count = taken.entry(node.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            let space = if node.reach == Reach::Local { " " } else { "" };
            node.name = format!("{}{space}{}", node.name, *count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(
        sources: &[&str],
        destinations: &[&str],
    ) -> Result<(Vec<Endpoint>, Vec<Endpoint>)> {
        let mut args: Vec<OsString> = sources.iter().map(OsString::from).collect();
        args.push(destinations[0].into());
        let also = destinations[1..].iter().flat_map(|d| ["--also-to", d]);
        let words = ["copy"]
            .into_iter()
            .map(OsString::from)
            .chain(args)
            .chain(also.map(OsString::from));
        let command = CopyArgs::augment_args(clap::Command::new("copy"));
        let matches = command.try_get_matches_from(words)?;
        let args = <CopyArgs as clap::FromArgMatches>::from_arg_matches(&matches)?;
        let (sources, mut destinations) = args.endpoints()?;
        let relation = args.sources.0;
        let sources = sources::arrange(sources.concat(), &mut destinations, relation)
            .map_err(|error| args.with_also_to(error))?;
        Ok((sources, destinations))
    }

    fn names(sources: &[&str], destinations: &[&str]) -> Vec<String> {
        let (sources, destinations) = endpoints(sources, destinations).unwrap();
        nodes(&sources, &destinations)
            .unwrap()
            .into_iter()
            .map(|node| node.name)
            .collect()
    }

    fn refusal(sources: &[&str], destinations: &[&str]) -> String {
        let parsed = endpoints(sources, destinations);
        parsed
            .and_then(|(sources, destinations)| nodes(&sources, &destinations))
            .unwrap_err()
            .to_string()
    }

    /// With a shared destination, a further one is looked for among the sources.
    #[test]
    fn further_shared_destinations_are_named() {
        let paths = ["--destinations", "shared", "/big", "a:7451:/x"];
        let said = refusal(&paths, &["a:7452:/x"]);
        assert!(said.ends_with("named by --also-to DEST"), "{said}");
        let said = refusal(&paths[2..], &["a:7452:/x"]);
        assert!(!said.contains("--also-to"), "{said}");
    }

    /// Nodes are called after their host, with more only where that is not enough.
    #[test]
    fn nodes_have_short_unique_names() {
        assert_eq!(
            names(&["a[1-2]:/x"], &["b[1-2]:/y"]),
            ["a1", "a2", "b1", "b2"]
        );
        assert_eq!(
            names(&["/x"], &["/y"]),
            ["this host (source)", "this host (copy)"]
        );
        assert_eq!(
            names(&["/x"], &["/y", "/z"]),
            [
                "this host (source)",
                "this host (copy)",
                "this host (copy) 2"
            ]
        );
        assert_eq!(
            names(&["a:7:/x", "a:8:/x"], &["me@a:/y"]),
            ["a:7", "a:8", "a-copy"]
        );
        assert_eq!(names(&["a:/x", "a:/y"], &["b:/z/"]), ["a", "b"]);
        assert_eq!(names(&["a:7:/x"], &["a:7:/y"]), ["a"]);
    }

    /// A trailing slash puts the copy into the folder under the source's name.
    #[test]
    fn a_trailing_slash_means_into() {
        for (source, destination, copy) in [
            ("/data/set", "/backup/", "/backup/set"),
            ("/data/set/", "h:/backup/", "h:/backup/set"),
            ("h:/data/set", "/", "/set"),
            ("/data/set", "/backup", "/backup"),
        ] {
            let (_, destinations) = endpoints(&[source], &[destination]).unwrap();
            assert_eq!(destinations[0].to_string(), copy, "{source} {destination}");
        }
        assert!(refusal(&["mem:5"], &["/b/"]).contains("no name of its own"));
        assert!(refusal(&["/"], &["/b/"]).contains("no name of its own"));
    }

    /// What would clash is refused before anything is reached.
    #[test]
    fn clashes_are_refused() {
        assert!(refusal(&["/a", "/a"], &["/b"]).contains("named twice as a source"));
        assert!(refusal(&["/a"], &["/b", "/b"]).contains("named twice as a destination"));
        assert!(refusal(&["/a/"], &["/a"]).contains("both source and destination"));
        assert!(refusal(&["/a/b"], &["/a/"]).contains("both source and destination"));
        assert!(refusal(&["/a/b", "/c"], &["/a/"]).contains("both source and destination"));
    }

    /// A folder is not copied into itself, on whatever agent of its host; beside itself, into its parent and by a path
    /// that only links could explain it is.
    #[test]
    fn a_folder_is_not_copied_into_itself() {
        for (source, destination) in [
            ("/a", "/a/inside"),
            ("/a", "/a/"),
            ("/a/", "/a/b/c"),
            ("h:/a", "me@h:/a/b"),
            ("h:7:/a", "h:8:/a/b"),
        ] {
            let refused = refusal(&[source], &[destination]);
            assert!(refused.contains("lie in its own source"), "{refused}");
        }
        assert!(refusal(&["/a", "/b"], &["/a/"]).contains("lie in its own source /a"));
        for (source, destination) in [
            ("/a", "/ab"),
            ("/a", "/a/../b"),
            ("/a/b", "/a"),
            ("h:/a", "g:/a/b"),
            ("h:/a", "/a/b"),
        ] {
            let (sources, destinations) = endpoints(&[source], &[destination]).unwrap();
            assert!(
                nodes(&sources, &destinations).is_ok(),
                "{source} {destination}"
            );
        }
        assert!(refusal(&["/a"], &["h:7:/b", "h:7:/c"]).contains("one agent takes one copy"));
    }
}
