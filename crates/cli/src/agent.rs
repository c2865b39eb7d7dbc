//! `agent`: the daemon that serves a host's folders, and the one that a master starts for one transfer.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ropewalk_agent::{Agent, AgentConfig, AgentError, Rank, Seat, StageConfig};
use ropewalk_proto::tunnel::Permitted;
use ropewalk_proto::tunnel::allowed::{Allowed, Rule};
use ropewalk_proto::tunnel::listening::{ListenRule, Listening};
use ropewalk_proto::version::version;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Deserialize;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::metrics::Metrics;
use crate::ports::Ports;
use crate::runtime::runtime;
use crate::sys::{self, say};
use crate::visible::Visible;
use crate::{Usage, service, token};

/// Port of a standing agent by default.
pub(crate) const PORT_DEFAULT: u16 = 7420;

pub(crate) mod here;
mod launched;
mod roots;

use roots::{Served, path_of, read_roots};

/// Where a standing agent listens by default; IPv6 and IPv4 at once.
const LISTEN_DEFAULT: &str = "[::]:7420";

/// The same where the host has no IPv6.
const LISTEN_FALLBACK: &str = "0.0.0.0:7420";

/// Roots that a one-shot agent takes at most; a bound on what is read before anything is served.
const ROOTS_MAX: usize = 65_536;

/// A master that started a one-shot agent gives secret and roots at once. One that has not by then is gone.
const INPUT_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest line of a one-shot agent's input: two digits a byte, and the longest path there is.
const LINE_MAX: u64 = 16_384;

/// Arguments of `ropewalk agent`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES, override_usage = USAGE)]
pub(crate) struct AgentArgs {
    /// Where to listen; may be repeated. Port 0 lets the system choose [default: [::]:7420, or 0.0.0.0:7420 without IPv6]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<String>,

    /// Shared token that masters must hold: 64 hexadecimal digits in a file of mode 0600 [default: ~/.config/ropewalk/token]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// A folder or file that may be read; with :rw, also written. May be repeated; nothing else is served. Not required with
    /// --forward, --forward-listen or --config
    #[arg(long, value_name = "DIR[:rw]", required_unless_present_any = ["new_token", "one_shot", "config", "forward", "forward_listen"])]
    root: Vec<OsString>,

    /// Masters may run programs here (`ropewalk stream --exec`): a token then gives what a login of this user gives
    #[arg(long)]
    run_programs: bool,

    /// Tunnels may connect from here to HOST:PORT, written as in `ropewalk tunnel`; * in place of either means any. May be repeated
    #[arg(long, value_name = "HOST:PORT")]
    forward: Vec<Rule>,

    /// Tunnels may listen on PORT here (`ropewalk tunnel -R`), for programs of this host unless BIND is an address; * in place of either means any. May be repeated
    #[arg(long, value_name = "[BIND:]PORT")]
    forward_listen: Vec<ListenRule>,

    /// Metrics for Prometheus at http://ADDR:PORT/metrics, without authentication; may be repeated
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Vec<String>,

    /// Read these options from FILE (TOML), too; those of the command line count first
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Create FILE with a new token and exit; fails if FILE exists
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "token_file", "root", "forward", "forward_listen", "metrics", "config"])]
    new_token: Option<PathBuf>,

    /// Serve one master: secret and roots come from standard input, and the agent ends with it
    #[arg(long, hide = true, conflicts_with_all = ["listen", "token_file", "root", "forward", "forward_listen", "new_token", "metrics", "config"])]
    one_shot: bool,

    /// With --one-shot: listen on this host alone
    #[arg(long, hide = true, requires = "one_shot")]
    loopback: bool,

    /// With --one-shot: listen on one of these ports
    #[arg(long, hide = true, requires = "one_shot", value_name = "A-B")]
    ports: Option<Ports>,

    /// With --one-shot: started with others of one launch; the seat in it, or `slurm` for the name of this node
    #[arg(
        long,
        hide = true,
        requires = "one_shot",
        conflicts_with = "loopback",
        value_name = "SEAT"
    )]
    launched: Option<String>,

    /// End when standard input closes
    #[arg(long, hide = true)]
    while_stdin: bool,
}

const USAGE: &str = "\
ropewalk agent [OPTIONS] --root <DIR[:rw]>...
       ropewalk agent [OPTIONS] --forward <HOST:PORT>...
       ropewalk agent [OPTIONS] --config <FILE>
       ropewalk agent --new-token <FILE>";

const EXAMPLES: &str = "\
Examples:
  ropewalk agent --new-token ~/.config/ropewalk/token
      makes a token; copy the file to the other hosts (mode 0600)
  ropewalk agent --root /data
      serves /data for reading on port 7420
  ropewalk agent --listen 10.0.0.5:7421 --root /data --root /scratch:rw
      listens on one address; /scratch may be written, too
  ropewalk agent --forward db:5432
      serves no files; `ropewalk tunnel` may connect from here to port 5432 of db
  ropewalk agent --forward-listen 8080
      `ropewalk tunnel -R` may listen on port 8080 of this host, for programs of this host
  ropewalk agents host
      what it is doing

Unauthenticated peers get no answer: the agent closes a connection without a valid preface of 128 \
bytes within 5 s, or without proof of the token. If too many connect, it closes silent ones, first \
those of the address with the most connections. Hosts reached over ssh need no standing agent.

The agent logs transfers, refusals, wrong tokens and, at most 5 a second, unauthenticated peers on \
standard error, a line each. SIGHUP does nothing. Ctrl-C or SIGTERM ends the agent: its masters \
see its connections end, complete files of own copies get their names, and what is safe of the others stays for the next run.

As a systemd service (Type=notify; packaging/systemd has the unit) it says when it listens, and the
journal gets levels. The same options in a file for --config:

  listen = ['[::]:7420']
  token-file = '/etc/ropewalk/token'
  root = ['/data', '/scratch:rw']
  metrics = ['127.0.0.1:9420']

Exit status: 0 ended when asked, 1 failed, 2 usage.";

/// What a file of options may have, named as on the command line.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct ConfigFile {
    listen: Vec<String>,
    token_file: Option<PathBuf>,
    root: Vec<String>,
    run_programs: bool,
    forward: Vec<String>,
    forward_listen: Vec<String>,
    metrics: Vec<String>,
}

impl AgentArgs {
    /// With the options of the file: a list or a value of the command line takes the place of the file's.
    fn with_file(mut self) -> Result<Self> {
        let Some(path) = &self.config else {
            return Ok(self);
        };
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Usage(anyhow::anyhow!("--config {shown}: {error}")))?;
        let file: ConfigFile = toml::from_str(&text)
            .map_err(|error| Usage(anyhow::anyhow!("--config {shown}: {error}")))?;
        if self.listen.is_empty() {
            self.listen = file.listen;
        }
        if self.root.is_empty() {
            self.root = file.root.into_iter().map(OsString::from).collect();
        }
        if self.metrics.is_empty() {
            self.metrics = file.metrics;
        }
        if self.forward.is_empty() {
            let rules = file.forward.iter().map(|text| text.parse());
            self.forward = rules
                .collect::<Result<_, _>>()
                .map_err(|error| Usage(anyhow::anyhow!("--config {shown}: forward {error}")))?;
        }
        if self.forward_listen.is_empty() {
            let rules = file.forward_listen.iter().map(|text| text.parse());
            self.forward_listen = rules.collect::<Result<_, _>>().map_err(|error| {
                Usage(anyhow::anyhow!("--config {shown}: forward-listen {error}"))
            })?;
        }
        self.token_file = self.token_file.or(file.token_file);
        self.run_programs |= file.run_programs;
        if self.root.is_empty() && self.forward.is_empty() && self.forward_listen.is_empty() {
            bail!(Usage(anyhow::anyhow!(
                "--config {shown} has no root, no forward and no forward-listen; write root = [\"/data\"] or forward = [\"db:5432\"], or give --root"
            )));
        }
        Ok(self)
    }
}

/// Runs an agent until it is asked to end.
///
/// * `around`: what processes of this user on this host do, for the master that started the agent.
pub(crate) fn run(args: &AgentArgs, around: fn() -> Vec<u8>) -> Result<ExitCode> {
    if let Some(path) = &args.new_token {
        token::create(path)?;
        say(format_args!(
            "wrote a new token to {}; copy it to all hosts that are to trust each other",
            path.display()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    if args.one_shot {
        return match &args.launched {
            Some(seat) => launched::run(seat, args.ports),
            None => one_shot(args.loopback, args.ports, around),
        };
    }
    standing(args)
}

fn standing(args: &AgentArgs) -> Result<ExitCode> {
    let args = &args.clone().with_file()?;
    // Before it says that it listens: what starts it may send signals from then on.
    let caught = Caught::signals()?;
    let token = token::load(args.token_file.as_deref()).map_err(Usage)?;
    for text in &args.root {
        check_suffix(text)?;
    }
    let config = |listen| AgentConfig {
        listen,
        token,
        roots: args.root.iter().map(|text| root(text)).collect(),
        expanded: Vec::new(),
        log: Some(Arc::new(service::log)),
        stages: Some(stages(args.run_programs)),
        forwards: Permitted {
            targets: Allowed::Only(args.forward.clone()),
            listening: Listening::Only(args.forward_listen.clone()),
        },
    };
    let agent = if args.listen.is_empty() {
        // No IPv6 shows only when one tries.
        match Agent::bind(config(resolve(LISTEN_DEFAULT, "--listen")?)) {
            Ok(agent) => agent,
            Err(error) => {
                Agent::bind(config(resolve(LISTEN_FALLBACK, "--listen")?)).map_err(|_| error)?
            }
        }
    } else {
        let mut addresses = Vec::new();
        for text in &args.listen {
            addresses.extend(resolve(text, "--listen")?);
        }
        Agent::bind(config(addresses))?
    };
    let mut metrics = Vec::new();
    for text in &args.metrics {
        let addresses = resolve(text, "--metrics")?;
        metrics.push(Metrics::bind(&addresses, agent.meter())?);
    }
    let _visible = Visible::open(agent.meter());
    for address in agent.addresses() {
        say(format_args!("listening on {address}"));
    }
    for metrics in &metrics {
        say(format_args!(
            "metrics at http://{}/metrics",
            metrics.address()?
        ));
    }
    let addresses: Vec<String> = agent.addresses().iter().map(ToString::to_string).collect();
    service::ready(&format!("listening on {}", addresses.join(", ")));
    serve(agent, caught, metrics, args.while_stdin)
}

/// The signals that leave an agent alone or ask it to end, from the moment this is made.
struct Caught {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
}

impl Caught {
    fn signals() -> Result<Self> {
        // The end of a login or a terminal is no reason to end.
        sys::ignore_hangup();
        let runtime = runtime()?;
        let guard = runtime.enter();
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        drop(guard);
        Ok(Self {
            runtime,
            interrupt,
            terminate,
        })
    }
}

/// Completes when one of the signals asks the agent to end.
async fn asked(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// How processes of streams are started: as this program, wherever its file is by then.
fn stages(runs_programs: bool) -> StageConfig {
    StageConfig {
        command: vec!["/proc/self/exe".into(), "stage".into()],
        runs_programs,
        cache: sys::cache_folder(),
    }
}

/// `DIR`, `DIR:ro` or `DIR:rw`.
fn root(text: &OsStr) -> (PathBuf, bool) {
    let bytes = text.as_bytes();
    let (path, writable) = match (bytes.strip_suffix(b":rw"), bytes.strip_suffix(b":ro")) {
        (Some(path), _) => (path, true),
        (None, Some(path)) => (path, false),
        (None, None) => (bytes, false),
    };
    (PathBuf::from(OsStr::from_bytes(path)), writable)
}

/// Refuses a folder that does not exist where what stands before its last colon does: a suffix with a slip.
fn check_suffix(text: &OsStr) -> Result<()> {
    let (path, _) = root(text);
    let bytes = path.as_os_str().as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':');
    let before = colon.map(|at| path_of(&bytes[..at]));
    match before.filter(|before| !path.exists() && before.is_dir()) {
        Some(folder) => bail!(Usage(anyhow::anyhow!(
            "--root {}: there is no such folder; write {folder}:rw to allow writing, {folder}:ro or {folder} for reading only",
            text.display(),
            folder = folder.display()
        ))),
        None => Ok(()),
    }
}

/// The addresses that the value of an option means.
pub(crate) fn resolve(text: &str, option: &str) -> Result<Vec<SocketAddr>> {
    let addresses = text.to_socket_addrs().map_err(|error| {
        Usage(anyhow::Error::new(error).context(format!(
            "{option} {text}: write ADDR:PORT, for instance 10.0.0.5:7420 or [::]:7420"
        )))
    })?;
    Ok(addresses.collect())
}

/// Reads the secret and the lines that say what may be touched.
fn read_input(input: impl AsFd) -> Result<([u8; token::TOKEN_LEN], Vec<String>)> {
    let mut input = BufReader::new(Patient {
        input,
        until: Instant::now() + INPUT_TIMEOUT,
    });
    let mut line = || -> Result<String> {
        let mut text = String::new();
        let read = input.by_ref().take(LINE_MAX).read_line(&mut text);
        match read {
            Err(error) if error.kind() == ErrorKind::TimedOut => bail!(
                "no secret and roots on standard input within {} s; this mode is for `ropewalk copy` and `ropewalk \
                 transfer` to use",
                INPUT_TIMEOUT.as_secs()
            ),
            read => read.context("cannot read standard input")?,
        };
        match text.strip_suffix('\n') {
            Some(line) => Ok(line.to_owned()),
            None => bail!(
                "standard input ended early; this mode is for `ropewalk copy` and `ropewalk transfer` to use"
            ),
        }
    };
    let Some(secret) = token::parse(&line()?) else {
        bail!("the first line of standard input is no secret of 64 hexadecimal digits")
    };
    let count: usize = line()?
        .parse()
        .context("the second line of standard input is not a number of roots")?;
    if count > ROOTS_MAX {
        bail!("{count} roots are more than {ROOTS_MAX}; name a common folder");
    }
    let lines = (0..count).map(|_| line()).collect::<Result<_>>()?;
    Ok((secret, lines))
}

/// Reads secret and roots, says where it listens, and serves until standard input closes.
fn one_shot(loopback: bool, ports: Option<Ports>, around: fn() -> Vec<u8>) -> Result<ExitCode> {
    let (secret, lines) = read_input(std::io::stdin())?;
    let mut served = read_roots(lines)?;
    let mut output = std::io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .context("standard output is closed")?;
    let agent = bind_one(loopback, ports, secret, &served)?;
    agent.look_around(Box::new(around));
    let rank = served.seat.take().map(|seat| take(seat, &mut output));
    let rank = rank.transpose()?;
    // The end of a terminal is no reason to end: the agent sees its input close, and removes what is temporary first.
    let caught = Caught::signals()?;
    tell(&mut output, &ready_line(&agent))?;
    // The master does not wait for it.
    let visible = Visible::open(agent.meter());
    let served = serve_pipe(agent, caught, output);
    drop(visible);
    if rank.is_some() {
        let is_success = served.is_ok();
        let _ = crate::end(served);
        // What libraries of MPI do at the end of a process expects that all other ranks are there.
        sys::end_at_once(is_success);
    }
    served
}

/// What an agent says once it can serve.
fn ready_line(agent: &Agent) -> String {
    let port = agent.addresses().first().map_or(0, SocketAddr::port);
    format!("ROPEWALK-AGENT {} {} {port}", version(), agent.instance())
}

/// Takes the place of a rank of MPI.
fn take(seat: Seat, output: &mut File) -> Result<Rank> {
    // Libraries of MPI write warnings to standard output, which is the master's.
    sys::output_to_error().context("standard error is closed")?;
    tell(output, "ROPEWALK-RANK")?;
    Ok(seat.take()?)
}

/// A line that the master waits for.
fn tell(output: &mut File, line: &str) -> Result<()> {
    let written = writeln!(output, "{line}");
    written.context("the master has disconnected")
}

/// An input, as long as the master's patience lasts.
struct Patient<I> {
    input: I,
    until: Instant,
}

impl<I: AsFd> std::io::Read for Patient<I> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(std::io::Error::other)?;
            let mut inputs = [PollFd::new(&self.input, PollFlags::IN)];
            match poll(&mut inputs, Some(&left)) {
                Ok(0) => return Err(ErrorKind::TimedOut.into()),
                Ok(_) => {
                    let read = rustix::io::read(&self.input, &mut *buffer)?;
                    // Silence counts, not the length of a list.
                    self.until = Instant::now() + INPUT_TIMEOUT;
                    return Ok(read);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Serves the master at the other end of standard input and this output until it is gone.
fn serve_pipe(agent: Agent, caught: Caught, output: File) -> Result<ExitCode> {
    let input = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .context("standard input is closed")?;
    let reached_as = std::env::var("SSH_CONNECTION")
        .ok()
        .and_then(|text| server_address(&text));
    let Caught {
        runtime,
        mut interrupt,
        mut terminate,
    } = caught;
    runtime.block_on(async {
        let asked = asked(&mut interrupt, &mut terminate);
        let served = agent.serve_pipe((input, output.into()), reached_as, asked);
        served.await.context("the agent stopped")
    })?;
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// This host's address in what sshd says of a connection: `CLIENT PORT SERVER PORT`.
fn server_address(connection: &str) -> Option<IpAddr> {
    connection.split(' ').nth(2)?.parse().ok()
}

/// The agent of one master.
fn bind_one(
    loopback: bool,
    ports: Option<Ports>,
    secret: [u8; token::TOKEN_LEN],
    served: &Served,
) -> Result<Agent> {
    let hosts: &[&str] = match loopback {
        true => &["127.0.0.1"],
        false => &["[::]", "0.0.0.0"],
    };
    match ports {
        Some(ports) => bind_in(ports, hosts, secret, served),
        None => Ok(bind_first(hosts, 0, secret, served)?),
    }
}

/// The agent on a port of the range that is free.
fn bind_in(
    ports: Ports,
    hosts: &[&str],
    token: [u8; token::TOKEN_LEN],
    served: &Served,
) -> Result<Agent> {
    for port in ports.range() {
        match bind_first(hosts, port, token, served) {
            Err(AgentError::Listen { source, .. })
                if source.kind() == std::io::ErrorKind::AddrInUse => {}
            other => return Ok(other?),
        }
    }
    bail!("no TCP port of {ports} is free on this host; give --ports a wider range")
}

/// The agent on the first of these addresses that can be listened on.
fn bind_first(
    hosts: &[&str],
    port: u16,
    token: [u8; token::TOKEN_LEN],
    served: &Served,
) -> Result<Agent, AgentError> {
    let bind = |host: &str| {
        let address = format!("{host}:{port}").parse();
        Agent::bind(AgentConfig {
            listen: vec![address.expect("an address of digits")],
            token,
            roots: served.roots.clone(),
            expanded: served.expanded.clone(),
            log: None,
            // The master that started it has the user's login here.
            stages: Some(stages(true)),
            forwards: Permitted::anything(),
        })
    };
    let (first, others) = hosts.split_first().expect("at least one address");
    let failed = match bind(first) {
        Ok(agent) => return Ok(agent),
        Err(error) => error,
    };
    let other = others.iter().find_map(|host| bind(host).ok());
    other.ok_or(failed)
}

/// Serves until a signal, or until standard input closes where the agent hangs on it.
fn serve(
    agent: Agent,
    caught: Caught,
    metrics: Vec<Metrics>,
    while_stdin: bool,
) -> Result<ExitCode> {
    let Caught {
        runtime,
        mut interrupt,
        mut terminate,
    } = caught;
    runtime.block_on(async {
        let mut input_closed = match while_stdin {
            true => watch_input()?,
            false => {
                // Kept for good: this agent does not hang on its input.
                let (closed, input_closed) = tokio::sync::oneshot::channel();
                std::mem::forget(closed);
                input_closed
            }
        };
        let asked = async {
            tokio::select! {
                () = asked(&mut interrupt, &mut terminate) => {}
                _ = &mut input_closed => {}
            }
            service::stopping();
        };
        for metrics in metrics {
            tokio::spawn(metrics.serve());
        }
        agent.serve(asked).await.context("the agent stopped")
    })?;
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// Completes when standard input closes.
fn watch_input() -> Result<tokio::sync::oneshot::Receiver<()>> {
    let (closed, input_closed) = tokio::sync::oneshot::channel::<()>();
    // A thread of its own: a blocked read must not keep the runtime from ending.
    let watch = move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        drop(closed);
    };
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(watch)
        .context("cannot start a thread")?;
    Ok(input_closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The suffix says what may be done; anything else belongs to the path.
    #[test]
    fn roots_are_read() {
        for (text, path, writable) in [
            ("/d", "/d", false),
            ("/d:rw", "/d", true),
            ("/d:ro", "/d", false),
            ("/d:x", "/d:x", false),
        ] {
            assert_eq!(root(OsStr::new(text)), (PathBuf::from(path), writable));
        }
    }

    /// Addresses need a port; names are resolved.
    #[test]
    fn addresses_are_read() {
        assert_eq!(
            resolve("127.0.0.1:7", "--listen").unwrap(),
            ["127.0.0.1:7".parse().unwrap()]
        );
        assert!(
            format!("{:#}", resolve("7420", "--listen").unwrap_err()).contains("write ADDR:PORT")
        );
    }

    /// The third item is this host's address as the master sees it.
    #[test]
    fn connections_of_ssh_are_read() {
        let seen = server_address("10.0.0.1 40000 fd00::2 22");
        assert_eq!(seen, Some("fd00::2".parse().unwrap()));
        assert_eq!(server_address(""), None);
        assert_eq!(server_address("UNKNOWN 65535 UNKNOWN 65535"), None);
    }
}
