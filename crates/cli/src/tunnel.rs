//! `tunnel`: TCP ports of this host that lead to targets of another one, over all interfaces.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use ropewalk_master::request::{NodeRequest, Options, Rails};
use ropewalk_master::{
    Cancel, ForwardRequest, RemoteRequest, TunnelEvent, TunnelRequest, listening_addresses,
};
use ropewalk_proto::codes::EXIT_USAGE;
use ropewalk_proto::report::ErrorKind;
use ropewalk_proto::tunnel::listening::Bind;
use ropewalk_proto::tunnel::report::{TunnelCarried, TunnelReport};
use ropewalk_proto::tunnel::{TARGETS_MAX, Target};
use tokio::sync::mpsc;

use crate::desk::{Answer, Carried, Desk, Kind};
use crate::escape;
use crate::options::{OutputArgs, ReachArgs, rails};
use crate::run::until_ended;
use crate::runtime::runtime;
use crate::stream::{name, reaches};

mod show;

pub(crate) use show::print_refusal;

use self::show::Show;

/// Arguments of `ropewalk tunnel`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TunnelArgs {
    /// Host whose agent connects to the targets, or listens for -R, named as in `copy`: b, me@b, b:7420 (a running agent), localhost
    #[arg(value_name = "NODE")]
    node: String,

    /// A port of this host, and the host and port that connections to it go on to, as NODE finds them
    ///
    /// Without BIND only programs of this host can connect; BIND is a name or address of this host, * for all. Port 0 lets the system
    /// choose. IPv6 addresses need brackets
    #[arg(value_name = "[BIND:]PORT:HOST:HOSTPORT", required_unless_present = "remote", value_parser = forward)]
    forwards: Vec<ForwardRequest>,

    /// A port of NODE, and the host and port that connections to it go on to, as this host finds them; may be repeated
    ///
    /// As `ssh -R`: BIND and port 0 as above, of NODE. A standing agent listens where its operator allows it
    #[arg(short = 'R', long, value_name = "[BIND:]PORT:HOST:HOSTPORT", value_parser = remote)]
    remote: Vec<RemoteRequest>,

    /// Network interfaces side by side: auto, one or a list
    ///
    /// auto: all that connect the two hosts; a list: names, addresses or networks, of which both hosts must have one
    /// (eth0,10.1.0.0/16)
    #[arg(long, value_name = "LIST", default_value = "auto", value_parser = rails)]
    rails: Rails,

    /// Do not encrypt the data; for networks you trust
    ///
    /// Control traffic is always encrypted
    #[arg(long)]
    plain: bool,

    #[command(flatten)]
    reaching: ReachArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

const EXAMPLES: &str = "\
As `ssh -L` and -R, with all interfaces of both hosts as rails: the bytes of one connection are \
spread over them, and when an interface fails, connections go on over the others. A rail that is \
silent is left within 1.5 s and tried again until it works. When no rail has worked for 10 s, the \
tunnel ends with status 1. The control connection may fail, too: bytes do not depend on it.

The agent of NODE connects to HOST:HOSTPORT; for -R it listens, and this host connects. If that \
fails, the connection to PORT is reset. An agent that is started over ssh connects and listens \
wherever its user may; a standing agent only where its operator allows it (`ropewalk agent --forward \
HOST:PORT`, --forward-listen [BIND:]PORT). NODE needs a TCP port that this host reaches: that of a \
standing agent, or one of --ports.

Examples:
  ropewalk tunnel b 8080:localhost:80
      http://localhost:8080/ is the web server of b
  ropewalk tunnel b 5432:db:5432 6379:cache:6379
      two ports; db and cache are hosts in the network of b
  ropewalk tunnel b -R 8080:localhost:3000
      http://localhost:8080/ on b is port 3000 of this host
  ropewalk tunnel b:7420 '*:2049:localhost:2049'
      through a standing agent; other hosts may connect to port 2049 of this one
  ropewalk tunnel --rails eth0,eth1 b '[::1]:0:[fd00::7]:22'
      over two interfaces, to an IPv6 address; the port is chosen and printed

Exit status: 1 the node is lost, 2 usage, 4 refused or not reached, 130 ended by Ctrl-C or SIGTERM.";

/// Reads `[BIND:]PORT:HOST:HOSTPORT`.
fn both(text: &str) -> Result<(Bind, Target), String> {
    let wrong =
        || format!("`{text}`: write [BIND:]PORT:HOST:HOSTPORT, for instance 8080:localhost:80");
    // The target is what stands behind the last colon but one outside brackets.
    let (rest, _) = text.rsplit_once(':').ok_or_else(wrong)?;
    let at = match rest.strip_suffix(']') {
        Some(inside) => inside.rfind('[').ok_or_else(wrong)?.checked_sub(1),
        None => rest.rfind(':'),
    };
    let (own, target) = at
        .and_then(|at| Some((text.get(..at)?, text.get(at..)?.strip_prefix(':')?)))
        .ok_or_else(wrong)?;
    let target: Target = target.parse().map_err(|error| format!("{error}"))?;
    let Some((bind, port)) = own.rsplit_once(':') else {
        let port = own.parse().map_err(|_| wrong())?;
        return Ok((Bind::loopback(port), target));
    };
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let bind = match bind.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or_else(wrong)?,
        None if bind.contains(':') => return Err(wrong()),
        None => bind,
    };
    let bind = Bind::new(bind, port.into()).ok_or_else(wrong)?;
    Ok((bind, target))
}

fn forward(text: &str) -> Result<ForwardRequest, String> {
    let (bind, target) = both(text)?;
    let listen = listening_addresses(&bind.host, bind.port)?;
    Ok(ForwardRequest { listen, target })
}

fn remote(text: &str) -> Result<RemoteRequest, String> {
    let (bind, target) = both(text)?;
    Ok(RemoteRequest { bind, target })
}

impl TunnelArgs {
    /// What the arguments describe.
    fn request(&self) -> Result<TunnelRequest> {
        let mut reaches = reaches(std::slice::from_ref(&self.node))?;
        if reaches.len() != 1 {
            bail!(
                "`{}` names {} hosts; a tunnel has one",
                self.node,
                reaches.len()
            );
        }
        if self.forwards.len() + self.remote.len() > TARGETS_MAX {
            bail!("a tunnel has at most {TARGETS_MAX} forwards; start another one");
        }
        let name = name(&reaches, 0);
        let node = NodeRequest::without_part(name, reaches.remove(0));
        let options = Options {
            plain: self.plain,
            rails: self.rails.clone(),
            ..self.reaching.options(std::slice::from_ref(&node))?
        };
        Ok(TunnelRequest {
            node,
            options,
            forwards: self.forwards.clone(),
            remotes: self.remote.clone(),
        })
    }
}

/// Runs a tunnel, shows it, and prints its report.
pub(crate) fn run(args: &TunnelArgs) -> Result<ExitCode> {
    let request = match args.request() {
        Ok(request) => request,
        Err(error) => {
            let text = crate::with_causes(&error);
            if args.output.json {
                print_refusal(&args.node, ErrorKind::Usage, &text);
            }
            eprintln!("ropewalk: {}", escape::lines(&text));
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    let runtime = runtime()?;
    let status = runtime.block_on(carry_out(request, &args.output));
    runtime.shutdown_background();
    status
}

async fn carry_out(request: TunnelRequest, output: &OutputArgs) -> Result<ExitCode> {
    let cancel = Cancel::new();
    let (events, incoming) = mpsc::unbounded_channel();
    let node = request.node.name.clone();
    let show = Show::new(&node, output);
    let subject = Answer {
        kind: Kind::Tunnel,
        ..Answer::default()
    };
    let desk = Desk::of_other(subject, cancel.clone(), output.quiet);
    let notice = move |event: &TunnelEvent| {
        if let Some(desk) = &desk {
            desk.change(|state| note(state, event, &node));
        }
    };
    let running = ropewalk_master::tunnel(request, events, cancel.clone());
    let last = |show: Show, report: TunnelReport| Ok(show.end(&report));
    until_ended(running, incoming, &cancel, notice, show, last).await
}

/// What `ropewalk status` says of a tunnel.
fn note(state: &mut Answer, event: &TunnelEvent, node: &str) {
    match event {
        TunnelEvent::Started { forwards, .. } => {
            let listen = forwards.iter().flat_map(|forward| &forward.listen);
            state.from = listen.cloned().collect();
            let targets = forwards.iter().map(|forward| &forward.target);
            state.to = targets.map(|to| format!("{to} from {node}")).collect();
            state.carried = Some(carried(&TunnelCarried::default()));
        }
        TunnelEvent::Progress { carried: now, .. } => state.carried = Some(carried(now)),
        TunnelEvent::Reaching(_) | TunnelEvent::Note { .. } => {}
    }
}

fn carried(now: &TunnelCarried) -> Carried {
    Carried {
        sent_bytes: now.sent_bytes,
        received_bytes: now.received_bytes,
        blocks: None,
        connections: Some(now.connections),
        open_connections: Some(now.open_connections),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn read(text: &str) -> Option<(Vec<String>, String)> {
        let forward = forward(text).ok()?;
        let listen = forward.listen.iter().map(SocketAddr::to_string).collect();
        Some((listen, forward.target.to_string()))
    }

    /// The forms of `ssh -L`, with brackets around addresses of IPv6.
    #[test]
    fn forwards_are_read() {
        let cases: [(&str, &[&str], &str); 6] = [
            ("8080:db:80", &["127.0.0.1:8080", "[::1]:8080"], "db:80"),
            ("10.0.0.1:0:db:80", &["10.0.0.1:0"], "db:80"),
            ("*:7:db:80", &["0.0.0.0:7", "[::]:7"], "db:80"),
            (":7:db:80", &["0.0.0.0:7", "[::]:7"], "db:80"),
            ("[::1]:7:[fd00::1]:80", &["[::1]:7"], "[fd00::1]:80"),
            (
                "7:[fd00::1]:80",
                &["127.0.0.1:7", "[::1]:7"],
                "[fd00::1]:80",
            ),
        ];
        for (text, listen, target) in cases {
            let listen: Vec<String> = listen.iter().map(|&one| one.to_owned()).collect();
            assert_eq!(read(text), Some((listen, target.to_owned())), "{text}");
        }
        for text in [
            "",
            "8080",
            "db:80",
            "8080:db",
            "8080:db:",
            "x:db:80",
            "::1:7:db:80",
            "[::1:7:db:80",
            "7:fd00::1:80",
            "7:db]:80",
            "[fd00::1]:80",
            "70000:db:80",
            "7:db:0",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
