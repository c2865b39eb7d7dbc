//! Options of `copy` that rsync has, too: what is done to the tree at the destination.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use ropewalk_master::request::{FileList, NodeRequest, Object, Options, Same, Stays};

use crate::inputs::Text;
use crate::{filter, job};

/// What is done to the tree at the destination.
#[derive(Args, Clone, Debug)]
pub(crate) struct TreeArgs {
    /// List what would be sent, and change nothing
    ///
    /// On no host anything is made. The list is on standard output, a file a line. What an interrupted run has left is listed as if it was to be sent
    #[arg(long, short = 'n')]
    dry_run: bool,

    /// Print the name of each file and folder that is sent, made or removed
    ///
    /// On standard output, a line each, as -n does, before bytes move. What then does not arrive is named in the report. With --json an event each
    #[arg(
        long,
        conflicts_with = "dry_run",
        hide_short_help = true,
        hide_long_help = true
    )]
    list: bool,

    /// Remove what the destination has and no source has
    ///
    /// When all has arrived, as rsync does. Only in folders that the sources have; a folder in the place of a file there, or the other way round, is removed, too. What --exclude matches stays, as do mount points, temporary names of transfers and, without -a,
    /// sockets, pipes and devices. Nothing is removed when part of a source cannot be read; a source with nothing in it is refused. First look with -n
    #[arg(long, alias = "delete-after")]
    delete: bool,

    /// Of a changed file, send only the aligned chunks of 1 MiB that the destination's file has not at the same place
    ///
    /// Both hosts hash them first; for disk images and databases. What is the same is copied from the old file into the temporary one,
    /// which replaces it at the end. Files of less than 1 MiB are sent whole
    #[arg(long, hide_short_help = true, hide_long_help = true)]
    delta: bool,

    /// What is done with bytes that an incomplete run left
    #[arg(
        long,
        value_name = "HOW",
        default_value = "recorded",
        hide_short_help = true,
        hide_long_help = true
    )]
    resume: Resume,

    /// Leave files alone that the destination has with a later modification time, as rsync does
    #[arg(long, short, hide_short_help = true)]
    update: bool,

    /// Leave all files and links alone that the destination has, whatever they are
    #[arg(long, hide_short_help = true, hide_long_help = true)]
    ignore_existing: bool,

    /// Copy only the files and folders that FILE names, one a line, below the source; - is standard input
    ///
    /// As with rsync, a folder is copied without what is in it; with a / behind its name with what is directly in it, with -r with all
    /// below it. Folders above a name are made. Lines that begin with # or ; are comments
    #[arg(
        long,
        hide_short_help = true,
        value_name = "FILE",
        help_heading = "Filters"
    )]
    files_from: Option<PathBuf>,

    /// Names of --files-from end with a byte 0, not with a line
    #[arg(
        long,
        short = '0',
        requires = "files_from",
        hide_short_help = true,
        hide_long_help = true,
        help_heading = "Filters"
    )]
    from0: bool,

    /// What standard input had is read once.
    #[arg(skip)]
    read: OnceLock<Vec<Vec<u8>>>,
}

/// What is done with bytes that an incomplete run left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Resume {
    /// Taken over as that run recorded them
    Recorded,
    /// Read and compared with the hashes that it recorded; what differs, or has none, is sent again
    Verify,
}

/// Bytes of a list of files: a message to each sender holds them.
const LIST_MAX: usize = 32 << 20;

impl TreeArgs {
    /// Options with what these add.
    ///
    /// # Errors
    /// What does not go together.
    ///
    /// * `is_recursive`: folders of a list are copied with all below them.
    pub fn add(
        &self,
        options: Options,
        nodes: &[NodeRequest],
        is_recursive: bool,
    ) -> Result<Options> {
        let mut sources = nodes.iter().flat_map(|node| &node.sources);
        let is_memory = sources.any(|source| matches!(source.object, Object::Memory(_)));
        for (lists, option) in [(self.dry_run, "--dry-run"), (self.list, "--list")] {
            if lists && is_memory {
                bail!("{option} lists files, and mem: has none; leave it out");
            }
        }
        let stays = match (self.ignore_existing, self.update) {
            (true, _) => Stays::Existing,
            (false, true) => Stays::Newer,
            (false, false) => Stays::Same,
        };
        if stays != Stays::Same && options.same == Same::Sent {
            bail!(
                "--check none sends every file, whatever the destination has; leave it out, or --update and --ignore-existing"
            );
        }
        if self.delta && options.same == Same::Sent {
            bail!("--check none sends every file whole; leave it out, or --delta");
        }
        if stays != Stays::Same && options.hard_links {
            bail!(
                "with --update or --ignore-existing names of one file could lead to different files; leave out --hard-links"
            );
        }
        let files = match &self.files_from {
            None => None,
            Some(path) => {
                self.check_list(nodes)?;
                let names = self.names(path)?;
                Some(FileList {
                    names,
                    is_recursive,
                })
            }
        };
        Ok(Options {
            files,
            stays,
            dry_run: self.dry_run,
            lists: self.list,
            delta: self.delta,
            verify_kept: self.resume == Resume::Verify,
            delete: self.delete,
            ..options
        })
    }
    fn check_list(&self, nodes: &[NodeRequest]) -> Result<()> {
        if self.delete {
            bail!(
                "--files-from says what to copy and not what is to stay; leave out --delete, or name the whole source"
            );
        }
        let mut sources = nodes.iter().flat_map(|node| &node.sources);
        let first = sources.next().map(|source| &source.object);
        let is_one = matches!(first, Some(Object::Path(_))) && sources.next().is_none();
        if !is_one {
            bail!("--files-from names files below one source; name one folder of one host");
        }
        Ok(())
    }

    /// The names that were read, each with a byte 0 behind it.
    pub(crate) fn list(&self) -> Option<Text> {
        let end = |name: &Vec<u8>| [name.as_slice(), &[0]].concat();
        let names = self.read.get()?.iter();
        Some(Text(names.flat_map(end).collect()))
    }

    fn names(&self, path: &Path) -> Result<Vec<Vec<u8>>> {
        if let Some(names) = self.read.get() {
            return Ok(names.clone());
        }
        if let Some(job) = job::as_job()? {
            // As it was when the job was handed over.
            let kept = job.inputs()?.names.unwrap_or_default();
            return Ok(split(&kept.0, true));
        }
        let bytes = filter::read(path)
            .with_context(|| format!("cannot read names of files from {}", path.display()))?;
        if bytes.len() > LIST_MAX {
            bail!(
                "{} has more than {} MiB; split it, or use --include and --exclude",
                path.display(),
                LIST_MAX >> 20
            );
        }
        let names = split(&bytes, self.from0);
        Ok(self.read.get_or_init(|| names).clone())
    }
}

/// The names of a list, without comments, by rsync's rules.
fn split(bytes: &[u8], is_zero: bool) -> Vec<Vec<u8>> {
    let is_end = |byte: &u8| match is_zero {
        true => *byte == 0,
        false => matches!(byte, b'\n' | b'\r'),
    };
    let names = bytes.split(is_end);
    let names = names.filter(|name| !matches!(name.first(), None | Some(b'#' | b';')));
    names.map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines, or names that end with a zero; comments and empty names are none.
    #[test]
    fn lists_are_split() {
        let names = |text: &str, is_zero| -> Vec<String> {
            let names = split(text.as_bytes(), is_zero).into_iter();
            names.map(|name| String::from_utf8(name).unwrap()).collect()
        };
        assert_eq!(names("a\r\n\n# b\n;c\n d/e", false), ["a", " d/e"]);
        assert_eq!(names("a\nb\0\0#c\0/d/", true), ["a\nb", "/d/"]);
    }
}
