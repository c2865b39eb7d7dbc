//! `put` and `get`: a file, or part of one, between this host and another (MuniSocket section 4, Table 2).
//!
//! The same transfer as `copy` between two places; with a range, explicit rows of one object on each side.

use std::ffi::{OsStr, OsString};

use anyhow::{Result, bail};
use clap::Args;
use ropewalk_master::Request;
use ropewalk_master::request::{
    Existing, Mapping, NodeRequest, ObjectRequest, Options, Reach, RowRequest, Sources,
};
use ropewalk_model::{Bytes, Range};

use crate::copy;
use crate::endpoint::{self, Endpoint, Side};
use crate::options::{HabitArgs, MoveArgs, OutputArgs, PageArgs};
use crate::wildcards::{self, Asked, Expand};

/// Arguments of `ropewalk put`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = PUT_EXAMPLES)]
pub(crate) struct PutArgs {
    /// File or folder of this host
    #[arg(value_name = "FILE")]
    from: OsString,

    /// Where it goes on the other host
    #[arg(value_name = "HOST:PATH")]
    to: OsString,

    #[command(flatten)]
    part: PartArgs,
}

/// Arguments of `ropewalk get`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = GET_EXAMPLES)]
pub(crate) struct GetArgs {
    /// File or folder on the other host
    #[arg(value_name = "HOST:PATH")]
    from: OsString,

    /// Where it goes on this host
    #[arg(value_name = "FILE")]
    to: OsString,

    #[command(flatten)]
    part: PartArgs,
}

#[derive(Args, Clone, Debug)]
struct PartArgs {
    /// These bytes of the file only, both included, or START+LENGTH: the destination then contains only this range; a longer existing file is refused
    #[arg(long, value_name = "A-B", value_parser = range)]
    range: Option<Range>,

    /// Write the range at this byte of the destination and keep its other bytes (it is replaced as a whole at the end)
    #[arg(long, value_name = "OFFSET", requires = "range")]
    into: Option<Bytes>,

    #[command(flatten)]
    _habits: HabitArgs,

    #[command(flatten)]
    moving: MoveArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    page: PageArgs,
}

const PUT_EXAMPLES: &str = "\
HOST:PATH is host:/path (over ssh) or host:7420:/path (where `ropewalk agent` listens), as for copy. \
All network interfaces that connect the two hosts work side by side (--rails).

Examples:
  ropewalk put results.h5 store:/archive/results.h5
  ropewalk put --range 0+16MiB image store:/tmp/head
  ropewalk put --range 4096+512 --into 4096 image store:/disks/image

Exit status: 0 done, 1 failed, 2 usage, 3 partial, 4 refused before the start, 130 interrupted.";

const GET_EXAMPLES: &str = "\
HOST:PATH is host:/path (over ssh) or host:7420:/path (where `ropewalk agent` listens), as for copy. \
All network interfaces that connect the two hosts work side by side (--rails).

Examples:
  ropewalk get store:/archive/results.h5 results.h5
  ropewalk get --range 1048576-2097151 store:/image second-mebibyte
  ropewalk get --range 1048576-2097151 --into 1048576 store:/image image

Exit status: 0 done, 1 failed, 2 usage, 3 partial, 4 refused before the start, 130 interrupted.";

impl PutArgs {
    /// The transfer that the arguments describe.
    pub(crate) fn request(&self) -> Result<Request> {
        let (from, to) = (
            one(&self.from, Side::Source)?,
            one(&self.to, Side::Destination)?,
        );
        if from.reach != Reach::Local || to.reach == Reach::Local {
            bail!(
                "put takes a file of this host and a place on another, host:/path; use get for the other way, copy for anything else"
            );
        }
        self.part.request(from, to)
    }

    pub(crate) fn output(&self) -> OutputArgs {
        self.part.output.with_page(&self.part.page)
    }
}

impl GetArgs {
    /// What the arguments describe.
    pub(crate) fn asked(&self) -> Result<Asked<'_>> {
        let (from, to) = (
            one(&self.from, Side::Source)?,
            one(&self.to, Side::Destination)?,
        );
        if from.reach == Reach::Local || to.reach != Reach::Local {
            bail!(
                "get takes a file on another host, host:/path, and a place on this one; use put for the other way, copy for anything else"
            );
        }
        if !wildcards::is_asked(&from) {
            let request = self.part.request(from, to)?;
            return Ok(Asked::Transfer(Box::new(request)));
        }
        let arguments = [vec![from.clone()]];
        let nodes = copy::asked_nodes(&arguments)?;
        Ok(Asked::Expand(Box::new(Expand {
            options: self.part.moving.options(&nodes)?,
            nodes: nodes.clone(),
            then: Box::new(move |expansions| {
                let found = wildcards::replace(&arguments, &nodes, expansions, Sources::Auto)?;
                match <[Endpoint; 1]>::try_from(found) {
                    Ok([found]) => self.part.request(found, to),
                    Err(found) => bail!(
                        "{} files match {from}; get fetches one, copy takes several into DEST/",
                        found.len()
                    ),
                }
            }),
        })))
    }

    pub(crate) fn output(&self) -> OutputArgs {
        self.part.output.with_page(&self.part.page)
    }
}

impl PartArgs {
    fn request(&self, from: Endpoint, to: Endpoint) -> Result<Request> {
        let (mut nodes, mut mapping) = copy::pair(from, to)?;
        let mut existing = Existing::default();
        if let Some(range) = self.range {
            mapping = Mapping::Rows;
            let at = self.into.map_or(0, |offset| offset.0);
            if at.checked_add(range.len()).is_none() {
                bail!("--into {at}: the range would end beyond 2^64");
            }
            for node in &mut nodes {
                take_part(node, range, at);
            }
            existing = match self.into {
                Some(_) => Existing::Kept,
                None => Existing::RefusedIfLonger,
            };
        }
        self.moving.declare_rates(&mut nodes)?;
        let options = Options {
            existing,
            ..self.moving.options(&nodes)?
        };
        Ok(Request {
            label: None,
            nodes,
            mapping,
            links: Vec::new(),
            options,
        })
    }
}

/// The range of the source is all of the data space, and lies at an offset of the destination.
fn take_part(node: &mut NodeRequest, range: Range, at: u64) {
    let whole = Range::new(0, range.len());
    let row = |objects: &mut Vec<ObjectRequest>, object_offset| {
        for object in objects {
            object.rows = vec![RowRequest {
                object_offset,
                range: whole,
            }];
        }
    };
    row(&mut node.sources, range.start);
    row(&mut node.sinks, at);
}

fn one(text: &OsStr, side: Side) -> Result<Endpoint> {
    match <[Endpoint; 1]>::try_from(endpoint::parse(text, side)?) {
        Ok([endpoint]) => Ok(endpoint),
        Err(all) => bail!(
            "{} names {} hosts; put and get are for one, copy is for many",
            text.to_string_lossy(),
            all.len()
        ),
    }
}

fn range(text: &str) -> Result<Range, String> {
    let help =
        "write START-END in bytes, both included and both given, or START+LENGTH, as in 0+16MiB";
    let number = |text: &str| text.parse::<u64>().map_err(|_| help.to_owned());
    let size = |text: &str| {
        text.parse::<Bytes>()
            .map(|bytes| bytes.0)
            .map_err(|error| error.to_string())
    };
    let range = if let Some((start, length)) = text.split_once('+') {
        Range::from_length(size(start)?, size(length)?)
    } else if let Some((first, last)) = text.split_once('-') {
        Range::from_inclusive(number(first)?, number(last)?)
    } else {
        return Err(help.to_owned());
    };
    range.ok_or_else(|| format!("it ends before it starts, or beyond 2^64; {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        assert_eq!(range("0-0"), Ok(Range::new(0, 1)));
        assert_eq!(range("4096+1KiB"), Ok(Range::new(4096, 5120)));
        assert_eq!(range("7+0"), Ok(Range::new(7, 7)));
        assert_eq!(
            range("1MiB+1KiB"),
            Ok(Range::new(1 << 20, (1 << 20) + 1024))
        );
        for bad in [
            "",
            "5",
            "5-",
            "-5",
            "5-4",
            "1+",
            "a-b",
            "1+2XB",
            "0-18446744073709551615",
        ] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}
