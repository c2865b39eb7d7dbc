//! `transfer`: turns a specification file into a request.

use std::fmt;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use ropewalk_master::Request;
use ropewalk_master::request::{Mapping, NodeRequest, Reach};
use ropewalk_master::rows;
use ropewalk_model::spec::SpecErrors;
use ropewalk_model::{HostPort, TransferSpec};
use serde::{Deserialize, Serialize};

use crate::Usage;
use crate::inputs::{Handed, Inputs, Text};
use crate::job;
use crate::options::{DetachArgs, MoveArgs, OutputArgs, PageArgs};

/// Arguments of `ropewalk transfer`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TransferArgs {
    /// The specification file; - reads standard input
    #[arg(value_name = "SPEC")]
    spec: PathBuf,

    /// Start the agents instead of attaching to running ones; ports then only distinguish nodes
    #[arg(long, value_name = "HOW")]
    start: Option<StartArg>,

    #[command(flatten)]
    pub moving: MoveArgs,

    #[command(flatten)]
    pub output: OutputArgs,

    #[command(flatten)]
    pub page: PageArgs,

    #[command(flatten)]
    pub detach: DetachArgs,
}

/// How agents are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StartArg {
    /// Over ssh on each row's host
    Ssh,
    /// As processes of this host, whatever hosts the rows name
    Local,
}

const EXAMPLES: &str = "\
The file (ranges include their last byte; A+LENGTH works too; # starts a comment):
  id \"My Data File\"
  # kind  Host:Port    URI                   offset in file  range of the data
  writer  node1:7420   \"file:///data/half1\"  0               0-1023
  writer  node2:7420   \"file:///data/half2\"  0               1024+1KiB
  reader  node3:7420   \"file:///tmp/copy\"    0               0-2047  down=1Gbit

  A writer's row may end in up=RATE, a reader's in down=RATE (the node's speed: gives the bound) and
  dest=NAME (readers with one name share one destination); interface=NAME limits a node to an
  interface. Rows for what pairs of nodes, and links that several pairs share, carry in one
  direction, which plan and bound follow:
    cap    node1:7420 node3:7420 1Gbit
    trunk  wan 10Gbit from node[1-2] to node3      (a host alone: all nodes on it)
  URIs: file:///path, /path, mem:SIZE, null:, and buffer:NAME of a program that uses the library.
  The file of a reader is replaced; bytes before and between its rows are zero.
  Readers that write different ranges of one file share it by dest=. Without that, one path on
  hosts with a common file system is refused before anything moves: from the rows where the host is
  the same, else when the agents find that they see one place. Writers' files that should hold
  the same bytes at different offsets are read there at three places, and refused where they differ.
  The file holds no secrets: the agents' token is in --token-file.
  A row `master host:port` names a `ropewalk serve --listen`: if one with the same token answers
  there, it carries the transfer out, and this command shows how it gets on. If nothing listens
  there, and with --start, this command is the master (-v says which). With --detach it hands over
  and returns: to that one, else to the `ropewalk serve` of this user on this host.

Examples:
  ropewalk plan figure2.spec
      what would move, and how long it would take
  ropewalk transfer figure2.spec --token-file ~/.config/ropewalk/token
      agents already listen at every Host:Port
  ropewalk transfer figure2.spec --start ssh
      nothing runs there yet
  ropewalk queue --at node0:55555
      what the `ropewalk serve` of a `master` row does

Exit status: 0 done, 1 failed, 2 usage, 3 partial, 4 refused before the start (a file that cannot \
be read as a specification, too), 130 interrupted.";

/// A specification that cannot be used, with a picture of each place.
#[derive(Debug)]
pub(crate) struct BadSpec(pub String);

impl fmt::Display for BadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSpec {}

/// Reads a file, or standard input for `-`.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let shown = path.display();
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => bail!(Usage(anyhow::anyhow!("cannot read {shown}: {error}"))),
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let good = error.utf8_error().valid_up_to();
            let before = String::from_utf8_lossy(&error.as_bytes()[..good]);
            let line = before.split('\n').count();
            let column = before
                .rsplit('\n')
                .next()
                .unwrap_or_default()
                .chars()
                .count()
                + 1;
            bail!(BadSpec(format!(
                "{shown}: line {line}, column {column}: byte 0x{:02x} is not UTF-8; write names that are not with %XX \
                 in a file:// URI",
                error.as_bytes()[good]
            )))
        }
    }
}

/// Parses a specification; errors come as pictures.
pub(crate) fn parse(text: &str, path: &Path) -> Result<TransferSpec> {
    TransferSpec::parse(text).map_err(|errors| pictures(&errors, text, path))
}

/// Errors of a file with a picture of each place.
pub(crate) fn pictures(errors: &SpecErrors, text: &str, path: &Path) -> anyhow::Error {
    let color = std::io::stderr().is_terminal();
    BadSpec(errors.render(text, &path.display().to_string(), color)).into()
}

/// How the agent of a row is reached.
fn reach(start: Option<StartArg>, at: &HostPort) -> Reach {
    match start {
        None => Reach::Attached {
            host: at.host.clone(),
            port: at.port,
        },
        Some(StartArg::Ssh) => Reach::Ssh(at.host.clone()),
        Some(StartArg::Local) => Reach::Local,
    }
}

/// The nodes of rows that are added to a transfer.
pub(crate) fn added_nodes(
    text: &str,
    start: Option<StartArg>,
) -> Result<Vec<NodeRequest>, SpecErrors> {
    let spec = TransferSpec::parse_added(text)?;
    Ok(rows::nodes(&spec, |at| reach(start, at)))
}

impl TransferArgs {
    /// The specification. A job has the one that was handed over: the file may have changed since.
    pub(crate) fn text(&self) -> Result<String> {
        match job::as_job()? {
            Some(job) => {
                let kept = job.inputs()?.specification;
                let kept = kept.context("the job has no specification")?;
                String::from_utf8(kept.0).context("the job's specification is not UTF-8")
            }
            None => read_text(&self.spec),
        }
    }

    /// What a job needs of it beside its command line.
    ///
    /// # Errors
    /// A file that only this process has.
    pub(crate) fn handed(&self, text: String) -> Result<Handed> {
        self.moving.check_detached()?;
        self.page.check_detached()?;
        Ok(Handed {
            priority: self.detach.priority,
            inputs: Inputs {
                specification: Some(Text(text.into_bytes())),
                ..Inputs::default()
            },
            json: self.output.json,
            ..Handed::default()
        })
    }

    /// What a text says.
    pub(crate) fn parse(&self, text: &str) -> Result<TransferSpec> {
        parse(text, &self.spec)
    }

    /// Where a standing master may answer. Agents that the command starts belong to it, and a job is carried out where it is.
    pub(crate) fn standing_master<'s>(&self, spec: &'s TransferSpec) -> Option<&'s HostPort> {
        let is_own = self.start.is_some() || crate::is_job();
        spec.master.as_ref().filter(|_| !is_own)
    }

    /// The transfer that the specification describes.
    pub(crate) fn request(&self, spec: &TransferSpec) -> Result<Request> {
        let mut nodes = rows::nodes(spec, |at| reach(self.start, at));
        self.moving.declare_rates(&mut nodes)?;
        let options = self.moving.options(&nodes)?;
        Ok(Request {
            label: spec.id.clone(),
            nodes,
            mapping: Mapping::Rows,
            links: rows::links(spec),
            options,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that are added name their nodes as a whole file does, and never the transfer.
    #[test]
    fn added_rows_become_nodes() {
        let nodes = added_nodes("writer a:1 /x 0 0-9 up=8bit", Some(StartArg::Ssh)).unwrap();
        assert_eq!(nodes.len(), 1);
        assert_eq!(
            (&nodes[0].name[..], &nodes[0].reach, nodes[0].up),
            ("a", &Reach::Ssh("a".into()), Some(1))
        );
        let errors = added_nodes("id x\nwriter a:1 /x 0 0-9", None).unwrap_err();
        assert!(errors.to_string().contains("already has an id"), "{errors}");
    }
}
