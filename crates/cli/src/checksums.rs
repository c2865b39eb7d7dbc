//! `copy --manifest`: where the checksums of a copy are written.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::{Result, bail};
use clap::Args;
use ropewalk_master::request::{Destinations, NodeRequest, Object, ObjectRequest, Options, Reach};

/// The list of checksums.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChecksumArgs {
    /// Write BLAKE3 checksums of all files of the copy to FILE, on the destination's host, as b3sum --check reads them
    ///
    /// When the copy is complete, each file is read back there, also one that was not sent. Paths in FILE begin at the folder that holds
    /// the copy. FILE is a path as DEST is one
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "FILE"
    )]
    manifest: Option<OsString>,
}

impl ChecksumArgs {
    /// Options with what these add.
    ///
    /// # Errors
    /// What does not go together.
    pub fn add(
        &self,
        options: Options,
        nodes: &[NodeRequest],
        relation: Destinations,
    ) -> Result<Options> {
        Ok(Options {
            checksums: self.checksums(nodes, relation)?,
            ..options
        })
    }

    /// Where the checksums are written, as a path on the hosts of the destinations.
    fn checksums(&self, nodes: &[NodeRequest], relation: Destinations) -> Result<Option<Vec<u8>>> {
        let Some(file) = &self.manifest else {
            return Ok(None);
        };
        if file == "-" {
            bail!(
                "--manifest -: the list is made on the destination's host, not on standard output; name a file (./- is one called -)"
            );
        }
        let sources = nodes.iter().flat_map(|node| &node.sources);
        let sinks = nodes.iter().flat_map(|node| &node.sinks);
        let is_tree =
            |object: &ObjectRequest| matches!(object.object, Object::Path(_) | Object::Bundle(_));
        if !sources.chain(sinks).all(is_tree) {
            bail!("--manifest lists files, and mem: and null: have none; leave it out");
        }
        let hosts: Vec<&Reach> = nodes
            .iter()
            .filter(|node| !node.sinks.is_empty())
            .map(|node| &node.reach)
            .collect();
        let is_repeated = |(at, reach): (usize, &&Reach)| {
            hosts[..at].iter().any(|other| other.is_same_host(reach))
        };
        if relation == Destinations::Copies && hosts.iter().enumerate().any(is_repeated) {
            bail!(
                "--manifest: two copies on one host would write one file; make them one after the other"
            );
        }
        let is_local = |reach: &&Reach| matches!(reach, Reach::Local);
        let path = std::path::Path::new(file);
        let is_over_ssh = |reach: &&Reach| matches!(reach, Reach::Ssh(_) | Reach::Launched(_));
        if path.is_absolute() || hosts.iter().all(is_over_ssh) {
            return Ok(Some(file.as_bytes().to_vec()));
        }
        if !hosts.iter().all(is_local) {
            bail!(
                "--manifest: name a path that begins with /: the destinations' hosts have different folders to begin at"
            );
        }
        let path = std::path::absolute(path)?;
        Ok(Some(path.as_os_str().as_bytes().to_vec()))
    }
}
