//! `check`: compares trees or files of any hosts without copying.

use std::ffi::{OsStr, OsString};

use anyhow::{Result, bail};
use clap::Args;
use ropewalk_master::Request;
use ropewalk_master::request::{Destinations, Mapping, Object, Options, Same, Sources};

use crate::copy::nodes_of;
use crate::endpoint::{self, Endpoint, Side};
use crate::filter::FilterArgs;
use crate::options::{OutputArgs, ReachArgs};
use crate::sources;
use crate::wildcards::{self, Asked};

/// Arguments of `ropewalk check`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, override_usage = "ropewalk check [OPTIONS] A B...")]
pub(crate) struct CheckArgs {
    /// A file or folder, then one or more that are compared with it
    #[arg(value_name = "PATH", required = true, num_args = 2..)]
    endpoints: Vec<OsString>,

    /// Also compare times, modes, owners, groups, extended attributes, ACLs, pipes, sockets and devices
    #[arg(short, long)]
    archive: bool,

    /// By size and modification time only; no contents are read
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    reach: ReachArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

const EXAMPLES: &str = "\
Nothing is made or changed, and no contents cross the network: hosts send hashes. Names that differ are on \
standard output, a name a line: missing (in B), extra (only in B), kind, size, contents, metadata, unreadable. \
Temporary names of transfers do not count, nor, without option -a, sockets, pipes and devices. B/ means \
what it means for copy: the name of A in B.

Examples:
  ropewalk check /data/set host:/backup/set
  ropewalk check -a host:/data/set /backup/set       also times, modes, owners and attributes
  ropewalk check a:/set 'b[1-3]:/set'                each of three copies with that of a

Exit status: 0 equal, 3 something differs or cannot be read, 1 failed, 2 usage, 4 refused before the \
start (one of them is missing), 130 interrupted.";

impl CheckArgs {
    /// What the arguments describe.
    pub(crate) fn asked(&self) -> Result<Asked<'_>> {
        let mut endpoints = self.endpoints.iter().map(OsString::as_os_str);
        let Some(first) = endpoints.next() else {
            bail!("name what is compared, and with what");
        };
        let one = |text: &OsStr, side| -> Result<Vec<Endpoint>> {
            let parsed = endpoint::parse(text, side)?;
            match parsed.iter().all(is_tree) {
                true => Ok(parsed),
                false => bail!("{}: only files and folders can be compared", text.display()),
            }
        };
        let sources = one(first, Side::Source)?;
        let [source] = sources.as_slice() else {
            bail!(
                "{} names several hosts; name one, and the others after it",
                first.display()
            );
        };
        if wildcards::is_asked(source) {
            bail!(
                "{}: patterns are not expanded here; name one file or folder",
                first.display()
            );
        }
        let mut copies = Vec::new();
        for text in endpoints {
            copies.extend(one(text, Side::Destination)?);
        }
        for copy in copies.iter_mut().filter(|copy| copy.into) {
            sources::put_into(copy, &sources)?;
        }
        let nodes = nodes_of(&sources, &copies)?;
        let options = Options {
            same: match self.quick {
                true => Same::Kept,
                false => Same::Contents,
            },
            archive: self.archive,
            filter: self.filter.rules()?,
            dry_run: true,
            compares: true,
            ..self.reach.options(&nodes)?
        };
        Ok(Asked::Transfer(Box::new(Request {
            label: None,
            nodes,
            mapping: Mapping::Trees {
                sources: Sources::Auto,
                destinations: Destinations::Copies,
            },
            links: Vec::new(),
            options,
        })))
    }
}

fn is_tree(endpoint: &Endpoint) -> bool {
    matches!(endpoint.object, Object::Path(_) | Object::Pattern(_))
}
