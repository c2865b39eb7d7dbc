//! Options of `copy` that rsync has, too: what is done to the tree at the destination.

use anyhow::{Result, bail};
use clap::Args;
use ropewalk_master::request::{NodeRequest, Object, Options};

/// What is done to the tree at the destination.
#[derive(Args, Clone, Debug)]
pub(crate) struct TreeArgs {
    /// List what would be sent, and send nothing; nothing is made or changed on any host
    ///
    /// The list is on standard output, a file a line. What an interrupted run has left is listed as if it was to be sent
    #[arg(long, short = 'n', hide_short_help = true, hide_long_help = true)]
    dry_run: bool,

    /// Remove what the destination has and no source has, when all has arrived, as rsync does
    ///
    /// Only in folders that the sources have. What --exclude matches stays, as do sockets, pipes, devices, mount points and temporary names
    /// of transfers. Nothing is removed when part of a source cannot be read; a source with nothing in it is refused. First look with -n
    #[arg(
        long,
        alias = "delete-after",
        hide_short_help = true,
        hide_long_help = true
    )]
    delete: bool,
}

impl TreeArgs {
    /// Options with what these add.
    ///
    /// # Errors
    /// What does not go together.
    pub fn add(&self, options: Options, nodes: &[NodeRequest]) -> Result<Options> {
        let mut sources = nodes.iter().flat_map(|node| &node.sources);
        let is_memory = sources.any(|source| matches!(source.object, Object::Memory(_)));
        if self.dry_run && is_memory {
            bail!("--dry-run lists files, and mem: has none; leave it out");
        }
        Ok(Options {
            dry_run: self.dry_run,
            delete: self.delete,
            ..options
        })
    }
}
