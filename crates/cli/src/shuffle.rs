//! `shuffle`: the records of files on all nodes into partitions, by the hash of a key.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Arg, Args};
use ropewalk_master::StreamRequest;
use ropewalk_master::request::{NodeRequest, Reach};
use ropewalk_model::Bytes;
use ropewalk_proto::control::DealKind;
use ropewalk_proto::stage::shuffle::{Key, PARTITIONS_MAX, Records, Shuffle};

use crate::options::{OutputArgs, ReachArgs};
use crate::stream::{ProcessArgs, block, carry, check_hosts, check_sources, name, object, reaches};

/// Arguments of `ropewalk shuffle`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES, mut_args(with_own_help))]
pub(crate) struct ShuffleArgs {
    /// Hosts, each a node, named as in `copy`: b, me@b, b[1-4], b:7420 (a running agent), localhost
    ///
    /// localhost needs no ssh and may be named several times
    #[arg(value_name = "HOST", required = true)]
    hosts: Vec<String>,

    /// Folder of files that each node reads; {node} in it is the node's number, from 1
    ///
    /// All files in it, except names that begin with a dot. Anything else in it, such as a folder, is an error
    #[arg(long, value_name = "DIR")]
    from: OsString,

    /// New folder that each node writes: part-00000, part-00001 and so on; {node} as in --from
    ///
    /// The partitions are dealt in turn: part-00000 is on the first node, part-00001 on the second. The folder appears when all is done
    #[arg(long, value_name = "DIR")]
    to: OsString,

    /// Number of partitions, 1 to 4096 [default: the number of nodes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(PARTITIONS_MAX)))]
    partitions: Option<u32>,

    /// What a record is: lines, or fixed:BYTES
    ///
    /// A file's last line gets an end where it has none
    #[arg(long, value_name = "WHAT", default_value = "lines", value_parser = records)]
    record: Records,

    /// Records with the same key go to the same partition: FIELD of a line, from 1, or OFFSET+LENGTH in bytes [default: the whole
    /// record, without the end of the line]
    ///
    /// What a record lacks of its key counts as empty
    #[arg(long, value_name = "KEY", value_parser = key)]
    key: Option<KeyArg>,

    /// Character between the fields of a line: one byte, or \t
    #[arg(long, value_name = "C", default_value = "\\t", value_parser = separator)]
    separator: u8,

    /// Sort each partition by key, then by the whole record, byte by byte
    ///
    /// Needs space beside --to for the largest partition twice, and 64 MiB of memory for each node, or --memory where that is more,
    /// beside about 10 MiB of the process itself
    #[arg(long)]
    sort: bool,

    /// Length of a block: 64 bytes to 16 MiB; a longer record is an error
    ///
    /// Each node collects a block for each partition
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = block)]
    block: Bytes,

    #[command(flatten)]
    processes: ProcessArgs,

    #[command(flatten)]
    reaching: ReachArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

const EXAMPLES: &str = "\
The partition of a record depends on its key and the number of partitions only: the first 8 bytes of \
the key's BLAKE3 hash as a little-endian number, times the partitions, divided by 2^64. The order of \
records in a partition is not defined without --sort. Records are counted and hashed where they are \
read and where they are written: when the two differ, no folder appears and the exit status is 1.

Examples:
  ropewalk shuffle 'n[1-8]' --from /data/logs --to /data/parts --partitions 64 --key 2 --sort
      lines with the same second field, from the files of eight hosts, into one file; sorted
  ropewalk shuffle n1 n2 --from /data/in --to /data/out --record fixed:100 --key 0+10
      records of 100 bytes, whose first ten are the key
  ropewalk shuffle localhost localhost --from 'in{node}' --to 'out{node}' --partitions 5
      two nodes on this host

Exit status: 0 done, 1 failed, 2 usage, 4 refused before anything moved, 130 interrupted.";

/// Options of `stream` that are documented there, or mean something else here.
fn with_own_help(arg: Arg) -> Arg {
    let help = match arg.get_id().as_str() {
        "memory" => "Buffers of each process together: auto or a size, as in `stream`",
        "lane" => "What processes are connected by: auto, tcp, unix or shm, as in `stream`",
        "plain" => "Do not encrypt blocks between hosts; for networks you trust",
        "stall" => "Fail when for so many seconds nothing was read, moved, sorted or synced",
        _ => return arg,
    };
    arg.help(help).long_help(None)
}

fn records(text: &str) -> Result<Records, String> {
    if text == "lines" {
        return Ok(Records::Lines);
    }
    let size = text.strip_prefix("fixed:").map(str::parse::<u32>);
    match size {
        Some(Ok(size)) if size > 0 => Ok(Records::Fixed(size)),
        _ => Err("write lines, or fixed:BYTES, as fixed:100".into()),
    }
}

/// A key without its separator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyArg {
    Field(u32),
    Part(u32, u32),
}

fn key(text: &str) -> Result<KeyArg, String> {
    let number = |text: &str| text.parse::<u32>().ok();
    let key = match text.split_once('+') {
        None => number(text).filter(|&field| field > 0).map(KeyArg::Field),
        Some((offset, length)) => number(offset)
            .zip(number(length).filter(|&length| length > 0))
            .map(|(offset, length)| KeyArg::Part(offset, length)),
    };
    key.ok_or_else(|| "write the number of a field, from 1, or OFFSET+LENGTH, as 0+10".into())
}

fn separator(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [byte] if *byte != b'\n' => Ok(*byte),
        _ => Err("give one character of one byte, or \\t".into()),
    }
}

impl ShuffleArgs {
    /// What the arguments describe.
    fn request(&self) -> Result<StreamRequest> {
        let reaches = reaches(&self.hosts)?;
        let mut nodes = Vec::new();
        for (number, reach) in (1..).zip(&reaches) {
            nodes.push(NodeRequest {
                sources: vec![object(reach, &self.from, number)?],
                sinks: vec![object(reach, &self.to, number)?],
                ..NodeRequest::without_part(name(&reaches, number - 1), reach.clone())
            });
        }
        check_hosts(&nodes)?;
        check_sources(&nodes)?;
        let buffers = self.processes.buffers(nodes.len(), self.block)?;
        let shuffle = self.shuffle(&reaches)?;
        let options = self.processes.options(&self.reaching, &nodes)?;
        Ok(StreamRequest {
            programs: Vec::new(),
            nodes,
            options,
            groups: 2,
            block: self.block.0,
            length: 0,
            buffers,
            seed: 1,
            deal: DealKind::Numbered,
            local: Vec::new(),
            shuffle: Some(shuffle),
            stall: self.processes.stall(),
        })
    }

    fn shuffle(&self, reaches: &[Reach]) -> Result<Shuffle> {
        let key = match self.key {
            None => Key::Whole,
            Some(KeyArg::Part(offset, length)) => Key::Part { offset, length },
            Some(KeyArg::Field(_)) if self.record != Records::Lines => {
                bail!("records of a fixed length have no fields; give --key OFFSET+LENGTH")
            }
            Some(KeyArg::Field(number)) => Key::Field {
                number,
                separator: self.separator,
            },
        };
        let shuffle = Shuffle {
            // NODES_MAX fits.
            partitions: self.partitions.unwrap_or(reaches.len() as u32),
            records: self.record,
            key,
            sort: self.sort,
        };
        shuffle.check(self.block.0)?;
        Ok(shuffle)
    }
}

/// Runs a shuffle, shows it, and prints its report.
pub(crate) fn run(args: &ShuffleArgs) -> Result<ExitCode> {
    carry(args.request(), args.block, &args.output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<StreamRequest> {
        let command = ShuffleArgs::augment_args(clap::Command::new("shuffle"));
        let places = ["--from", "/in{node}", "--to", "/out{node}"];
        let matches = command.try_get_matches_from([&["shuffle"], words, &places].concat())?;
        <ShuffleArgs as clap::FromArgMatches>::from_arg_matches(&matches)?.request()
    }

    /// Keys, records and partitions are read; without them each node has a partition of whole lines.
    #[test]
    fn shuffles_are_read() {
        let of = |words: &[&str]| {
            let words = [&["localhost", "localhost"], words].concat();
            parse(&words).unwrap().shuffle.unwrap()
        };
        let plain = of(&[]);
        assert_eq!(
            plain,
            Shuffle {
                partitions: 2,
                records: Records::Lines,
                key: Key::Whole,
                sort: false
            }
        );
        let field = of(&[
            "--key",
            "3",
            "--separator",
            ",",
            "--partitions",
            "9",
            "--sort",
        ]);
        assert_eq!((field.partitions, field.sort), (9, true));
        let expected = Key::Field {
            number: 3,
            separator: b',',
        };
        assert_eq!(field.key, expected);
        let part = of(&["--record", "fixed:100", "--key", "0+10"]);
        assert_eq!(part.records, Records::Fixed(100));
        let expected = Key::Part {
            offset: 0,
            length: 10,
        };
        assert_eq!(part.key, expected);
    }

    /// What cannot be meant is refused with what to write instead.
    #[test]
    fn slips_are_named() {
        for (words, text) in [
            (&["--key", "0"][..], "from 1"),
            (&["--key", "1+0"], "OFFSET+LENGTH"),
            (&["--key", "a"], "OFFSET+LENGTH"),
            (&["--record", "fixed:0"], "fixed:100"),
            (&["--record", "fixed:9", "--key", "1"], "no fields"),
            (&["--record", "fixed:65533"], "--block"),
            (&["--separator", "ab"], "one character"),
            (&["--partitions", "4097"], "1..=4096"),
            (
                &["--partitions", "4096", "--block", "1MiB"],
                "fewer partitions",
            ),
            (&["--memory", "64KiB"], "fewer than two"),
        ] {
            let error = parse(&[&["localhost"], words].concat()).unwrap_err();
            assert!(error.to_string().contains(text), "{words:?}: {error}");
        }
        let command = ShuffleArgs::augment_args(clap::Command::new("shuffle"));
        for (from, to, text) in [
            ("/in", "/out{node}", "--from"),
            ("/in{node}", "/out", "--to"),
        ] {
            let words = [
                "shuffle",
                "localhost",
                "localhost",
                "--from",
                from,
                "--to",
                to,
            ];
            let matches = command.clone().try_get_matches_from(words).unwrap();
            let args = <ShuffleArgs as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
            let error = args.request().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("{node}"), "{error}");
        }
    }
}
