//! `doctor`: measures hosts and the paths between them, and says what a copy would take, what binds it and what to change.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ropewalk_master::request::{NodeRequest, Object, Options, Reach};
use ropewalk_master::{Cancel, DoctorHost};
use ropewalk_proto::codes::{EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PARTIAL};
use ropewalk_proto::doctor::DoctorReport;
use tokio::sync::mpsc;

use crate::endpoint::{self, Side};
use crate::options::ReachArgs;
use crate::runtime::runtime;
use crate::screen::Signals;
use crate::{Usage, sys};

mod show;

/// Hosts of one command: each pair of them takes some seconds.
const HOSTS_MAX: usize = 16;

/// Arguments of `ropewalk doctor`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// A host, or a folder of one; senders before receivers
    #[arg(value_name = "HOST[:PATH]", required = true, num_args = 1..)]
    hosts: Vec<OsString>,

    /// One JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    reach: ReachArgs,
}

const EXAMPLES: &str = "\
Each host is examined: processors, interfaces, kernel settings, and the disk of its folder. Then bytes \
are sent from each host to each later one, about 10 s a pair: memory over one stream, memory over as many \
streams as a copy takes, and, where folders are named, a file of at most 1 GB. The rate that a long copy \
will have is predicted from these, with what binds it, as in the report of a copy, and the settings to \
change. Files are removed at the end, and after Ctrl-C.

Hosts: host, me@host (over ssh), host:7420 (a standing agent), localhost; a folder as for copy: /data, host:/data, \
host:7420:/data. An agent must serve the folder with :rw.

Examples:
  ropewalk doctor localhost                     this host alone
  ropewalk doctor /data store:/archive          from this host's disk to that of store
  ropewalk doctor a b 'n[1-4]'                  the paths between six hosts, without disks

Exit status: 0 done, 1 no host was examined, 2 usage, 3 a host or path was not, 130 interrupted.";

/// Examines hosts and paths, and prints what was found.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let hosts = hosts(&args.hosts).map_err(Usage)?;
    let options = args.options(&hosts).map_err(Usage)?;
    let report = runtime()?.block_on(examine(&hosts, &options, args.json))?;
    let text = match args.json {
        true => serde_json::to_string(&report).context("cannot print the report as JSON")? + "\n",
        false => show::text(&report),
    };
    // Not before: a connection that an agent closes is no pipe.
    sys::end_on_closed_pipe();
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")?;
    Ok(ExitCode::from(status(&report)))
}

fn status(report: &DoctorReport) -> u8 {
    let examined = report.hosts.iter().filter(|host| host.error.is_none());
    let is_whole = report.hosts.iter().all(|host| host.disk_error.is_none())
        && report.pairs.iter().all(|pair| pair.error.is_none());
    match examined.count() {
        _ if report.error.is_some() => EXIT_INTERRUPTED,
        0 => EXIT_FAILED,
        count if count == report.hosts.len() && is_whole => 0,
        _ => EXIT_PARTIAL,
    }
}

/// Shows on a terminal what is done; the first signal ends it in order, the second at once.
async fn examine(hosts: &[DoctorHost], options: &Options, json: bool) -> Result<DoctorReport> {
    let mut signals = Signals::listen()?;
    let (steps, mut said) = mpsc::unbounded_channel();
    let cancel = Cancel::new();
    let shows = !json && sys::has_terminal();
    let working = ropewalk_master::doctor(hosts, options, &steps, &cancel);
    tokio::pin!(working);
    loop {
        tokio::select! {
            report = &mut working => return Ok(report),
            Some(step) = said.recv() => {
                if shows {
                    eprintln!("{}", crate::escape::line(&step));
                }
            }
            count = signals.next() => {
                if count > 1 {
                    std::process::exit(EXIT_INTERRUPTED.into());
                }
                cancel.cancel();
            }
        }
    }
}

impl DoctorArgs {
    fn options(&self, hosts: &[DoctorHost]) -> Result<Options> {
        let nodes: Vec<NodeRequest> = hosts
            .iter()
            .map(|host| NodeRequest::without_part(host.name.as_str(), host.reach.clone()))
            .collect();
        self.reach.options(&nodes)
    }
}

/// The hosts that are named, each with a name of its own.
fn hosts(named: &[OsString]) -> Result<Vec<DoctorHost>> {
    let mut hosts: Vec<DoctorHost> = Vec::new();
    for text in named {
        for end in endpoint::parse(&as_endpoint(text), Side::Destination)? {
            let folder = match end.object {
                Object::Path(path) => Some(path),
                Object::Null => None,
                _ => bail!("{}: name a host or a folder", text.display()),
            };
            let name = match &end.reach {
                Reach::Local => "this host".to_owned(),
                reach => endpoint::host_of(reach).to_owned(),
            };
            hosts.push(DoctorHost {
                name,
                reach: end.reach,
                folder,
            });
        }
    }
    if hosts.len() > HOSTS_MAX {
        bail!(
            "{} hosts are named; at most {HOSTS_MAX} are examined by one command",
            hosts.len()
        );
    }
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for host in &mut hosts {
        let number = count.entry(host.name.clone()).or_default();
        *number += 1;
        if *number > 1 {
            host.name += &format!(" ({number})");
        }
    }
    Ok(hosts)
}

/// A host without a folder, as the endpoint that takes bytes and drops them.
pub(crate) fn as_endpoint(text: &OsStr) -> OsString {
    let bytes = text.as_bytes();
    let is_path = bytes.contains(&b'/') || bytes.starts_with(b".");
    let mut out = text.to_owned();
    if bytes == b"localhost" {
        return "null:".into();
    }
    let (host, end) = match bytes.iter().rposition(|byte| *byte == b':') {
        Some(colon) => bytes.split_at(colon),
        None => (bytes, &b""[..]),
    };
    // Not the end of an address in brackets.
    let is_port = end.len() > 1 && end[1..].iter().all(u8::is_ascii_digit) && !host.is_empty();
    let is_address = bytes.ends_with(b"]");
    if !is_path && (end.is_empty() || is_address || is_port) {
        out.push(":null:");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts with and without folders, ports and lists; names are unique.
    #[test]
    fn hosts_are_read() {
        let read = |texts: &[&str]| {
            let texts: Vec<OsString> = texts.iter().map(OsString::from).collect();
            hosts(&texts)
        };
        for (text, name, reach, folder) in [
            ("localhost", "this host", Reach::Local, None),
            ("/data/", "this host", Reach::Local, Some("/data")),
            ("a", "a", Reach::Ssh("a".into()), None),
            ("me@a:/x", "a", Reach::Ssh("me@a".into()), Some("/x")),
            ("a:", "a", Reach::Ssh("a".into()), Some(".")),
            ("[::1]", "::1", Reach::Ssh("::1".into()), None),
            (
                "a:7420",
                "a",
                Reach::Attached {
                    host: "a".into(),
                    port: 7420,
                },
                None,
            ),
            (
                "[::1]:7420",
                "::1",
                Reach::Attached {
                    host: "::1".into(),
                    port: 7420,
                },
                None,
            ),
            (
                "a:7420:/x",
                "a",
                Reach::Attached {
                    host: "a".into(),
                    port: 7420,
                },
                Some("/x"),
            ),
        ] {
            let found = read(&[text]).unwrap().remove(0);
            let folder = folder.map(|folder: &str| folder.as_bytes().to_vec());
            assert_eq!(
                (found.name.as_str(), found.reach, found.folder),
                (name, reach, folder),
                "{text}"
            );
        }
        let names: Vec<String> = read(&["a[1-2]", "/x", "/y"])
            .unwrap()
            .into_iter()
            .map(|host| host.name)
            .collect();
        assert_eq!(names, ["a1", "a2", "this host", "this host (2)"]);
        assert!(
            read(&["a[1-17]"])
                .unwrap_err()
                .to_string()
                .contains("17 hosts")
        );
        assert!(read(&["mem:4KiB"]).is_err());
    }
}
