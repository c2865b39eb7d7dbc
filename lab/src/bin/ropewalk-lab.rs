//! `ropewalk-lab`: a network lab from the command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use ropewalk_lab::{Lab, LabBuilder, Topology, parse_rate};

const HELP: &str = "\
Hosts with capped interfaces on this machine, in namespaces. Needs root, ip and tc.

Usage:
  ropewalk-lab up   [LAB]                      hold a lab until Ctrl-C; prints host, pid, addresses
  ropewalk-lab run  [LAB] [--on HOST] -- CMD   build a lab, run CMD on a host (the first), take it down
  ropewalk-lab exec HOST|PID [--] CMD          run CMD in a host of a lab that is up
  ropewalk-lab list                            hosts of all labs that are up
  ropewalk-lab trunk NAME REQUEST              ask the trunk with this control socket; answers are JSON

LAB is a topology file, or
  --hosts N         h1 to hN with one interface each
  --rate RATE       their cap, such as 100Mbit; default none
and with either
  --sshd            an ssh server on every host: `ssh h2 CMD` works from h1

REQUEST is one of
  counters          what was carried, dropped, and how late the relay was
  validity          whether the relay kept up
  reset             reset the counters
  show              both directions as they are now
  set a-to-b|b-to-a|both KEY=VALUE ...
                    rate=50Mbit|unlimited overhead=38 delay=20ms queue=50packets|62500bytes
                    loss=1%|1%/8 (in bursts of 8) blackhole=on|off

Examples:
  ropewalk-lab run --hosts 2 --rate 100Mbit -- ip addr
  ropewalk-lab run --hosts 2 --sshd -- ssh h2 hostname
  ropewalk-lab up figure2.json
  ropewalk-lab exec node1 ls /data
  ropewalk-lab trunk wan set both rate=50Mbit delay=40ms

A topology file:
  { \"hosts\": [
      { \"name\": \"node1\", \"nics\": [ { \"bits_per_second\": 100000000 }, { \"bits_per_second\": 20000000 } ] },
      { \"name\": \"192.168.3.4\" },
      { \"name\": \"node5\", \"nics\": [ { \"rail\": 2 } ], \"tmpfs_bytes\": { \"data\": 1048576 } } ],
    \"trunks\": [ { \"ends\": [ { \"rail\": 0 }, { \"rail\": 2 } ], \"mtu\": 1500, \"control\": \"wan\",
                  \"a_to_b\": { \"bits_per_second\": 100000000, \"delay_microseconds\": 20000,
                              \"queue\": { \"packets\": 50 }, \"loss\": { \"fraction\": 0.0001 } },
                  \"b_to_a\": { \"delay_microseconds\": 20000 } } ],
    \"shared_dirs\": [ { \"machine_path\": \"/srv\", \"host_path\": \"/pool\", \"hosts\": [\"node1\"] } ] }

An interface is on the rail of its own number unless \"rail\" names another. A trunk joins two rails.

Exit status: CMD's; 1 when the lab fails, 2 for a wrong command line.
";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ropewalk-lab: {error:#}");
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

/// A wrong command line; the message says what to write instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}; see ropewalk-lab --help")]
struct Usage(String);

fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

fn dispatch(arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let (verb, rest) = arguments
        .split_first()
        .ok_or_else(|| usage("say what to do: up, run, exec, list or trunk"))?;
    match verb.to_str().unwrap_or_default() {
        "up" => up(Options::parse(rest)?),
        "run" => run(Options::parse(rest)?),
        "exec" => exec(rest),
        "list" => list(),
        "trunk" => trunk(rest),
        "-h" | "--help" | "help" => {
            print!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        other => Err(usage(format!("unknown command {other:?}"))),
    }
}

struct Options {
    topology: Topology,
    sshd: bool,
    on: Option<String>,
    command: Vec<OsString>,
}

impl Options {
    fn parse(arguments: &[OsString]) -> anyhow::Result<Options> {
        let (mut hosts, mut rate, mut file) = (None, None, None);
        let mut options = Options {
            topology: Topology::default(),
            sshd: false,
            on: None,
            command: Vec::new(),
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let text = argument
                .to_str()
                .ok_or_else(|| usage(format!("{argument:?} is not UTF-8")))?;
            let mut value = || {
                let value = arguments.next().and_then(|value| value.to_str());
                value.ok_or_else(|| usage(format!("{text} needs a value")))
            };
            match text {
                "--hosts" => {
                    hosts = Some(
                        value()?
                            .parse::<usize>()
                            .map_err(|_| usage("--hosts needs a number"))?,
                    )
                }
                "--rate" => rate = Some(parse_rate(value()?)?),
                "--on" => options.on = Some(value()?.to_owned()),
                "--sshd" => options.sshd = true,
                "--" => {
                    options.command = arguments.cloned().collect();
                    break;
                }
                _ if text.starts_with('-') => return Err(usage(format!("unknown option {text}"))),
                _ if file.is_none() => file = Some(text.to_owned()),
                _ => {
                    return Err(usage(format!(
                        "two topology files; put -- before {text:?} if it begins a command"
                    )));
                }
            }
        }
        options.topology = match (file, hosts) {
            (Some(path), None) if rate.is_none() => {
                let text = std::fs::read_to_string(&path)
                    .with_context(|| format!("topology file {path}"))?;
                serde_json::from_str(&text).with_context(|| format!("topology file {path}"))?
            }
            (None, Some(count)) => Topology::uniform(count, rate),
            _ => {
                return Err(usage(
                    "give either a topology file or --hosts N (and --rate RATE)",
                ));
            }
        };
        Ok(options)
    }

    fn build(&self) -> anyhow::Result<Lab> {
        let lab = LabBuilder::from(self.topology.clone()).build()?;
        if self.sshd {
            for host in lab.hosts() {
                lab.start_sshd(host)?;
            }
        }
        Ok(lab)
    }
}

fn up(options: Options) -> anyhow::Result<ExitCode> {
    if !options.command.is_empty() {
        return Err(usage("up takes no command; use run"));
    }
    let lab = options.build()?;
    let mut table = String::new();
    for host in lab.hosts() {
        let addresses: Vec<String> = lab
            .addresses(host)
            .iter()
            .map(ToString::to_string)
            .collect();
        table += &format!("{host:<20} {:>8}  {}\n", lab.pid(host), addresses.join(" "));
    }
    print!("{table}");
    // Whoever reads the table through a pipe must see it now.
    io::stdout().flush()?;
    eprintln!("ropewalk-lab: up; Ctrl-C ends it");
    // No signal handler is needed: however this process ends, the lab goes with it.
    loop {
        std::thread::park();
    }
}

fn run(options: Options) -> anyhow::Result<ExitCode> {
    let (program, arguments) = options
        .command
        .split_first()
        .ok_or_else(|| usage("put the command after --"))?;
    let lab = options.build()?;
    let host = match &options.on {
        Some(name) => lab
            .hosts()
            .find(|host| host == name)
            .ok_or_else(|| usage(format!("no host {name:?} in this lab")))?,
        None => lab
            .hosts()
            .next()
            .ok_or_else(|| usage("the lab has no hosts"))?,
    };
    let status = lab
        .command(host, program)
        .args(arguments)
        .status()
        .with_context(|| format!("{host}: {program:?}"))?;
    lab.close()?;
    // A shell reports a signal as 128 and its number.
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn exec(arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let (host, command) = arguments
        .split_first()
        .ok_or_else(|| usage("say on which host"))?;
    let command = command
        .strip_prefix(&[OsString::from("--")])
        .unwrap_or(command);
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| usage("say what to run"))?;
    let host = host.to_string_lossy();
    let found = running()?;
    let pids: Vec<i32> = found
        .iter()
        .filter(|(pid, name)| **name == host || pid.to_string() == host)
        .map(|(pid, _)| *pid)
        .collect();
    let pid = match pids[..] {
        [pid] => pid,
        [] => bail!("no host {host} in any lab that is up; `ropewalk-lab list` shows them"),
        _ => bail!("several labs have a host {host}: use its pid, one of {pids:?}"),
    };
    let error = Command::new("nsenter")
        .args(["-t", &pid.to_string(), "-n", "-m", "-u", "--"])
        .arg(program)
        .args(arguments)
        .exec();
    Err(error).context("nsenter (package util-linux)")
}

fn trunk(arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let words: Vec<String> = arguments
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let (name, request) = match &words[..] {
        [name, request @ ..] if !request.is_empty() => (name, request.join(" ")),
        _ => return Err(usage("give the trunk's name and a request")),
    };
    println!("{}", ropewalk_lab::trunk::ask(name, &request)?);
    Ok(ExitCode::SUCCESS)
}

fn list() -> anyhow::Result<ExitCode> {
    for (pid, name) in running()? {
        println!("{name:<20} {pid:>8}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Hosts of every lab on this machine, by the process that holds them.
fn running() -> anyhow::Result<BTreeMap<i32, String>> {
    let mut hosts = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").context("/proc")? {
        let entry = entry?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let process = Path::new("/proc").join(pid.to_string());
        let holder = std::fs::read_to_string(process.join("comm"))
            .is_ok_and(|name| name.starts_with("lab:"));
        if holder
            && let Ok(name) = std::fs::read_to_string(process.join("root/run/ropewalk-lab/host"))
        {
            hosts.insert(pid, name.trim().to_owned());
        }
    }
    Ok(hosts)
}
