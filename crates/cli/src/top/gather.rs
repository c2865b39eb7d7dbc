//! Asks the processes of this user on this host, and agents of others, and makes samples of what they say.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Instant;

use anyhow::{Result, bail};
use ropewalk_master::request::{NodeRequest, Object, Options, Reach};
use ropewalk_master::{Watched, WatchedHost};
use ropewalk_model::time;
use ropewalk_proto::control::{StatusReply, TransferKind, TransferStatus};
use ropewalk_proto::report::{Event, NodeProgress};
use ropewalk_proto::top::{NODES_MAX, NodeRow, Sample, Seen, Speaker, Spent, TopReport, Watch};

use crate::desk::{self, Answer, Kind, Question};
use crate::doctor::as_endpoint;
use crate::endpoint::{self, Side};
use crate::progress::{busy_words, waiting_words};
use crate::status::format_id;
use crate::{runtime_folder, sys, visible};

/// Hosts of one command; each has a connection.
const HOSTS_MAX: usize = 1024;

/// Bytes of samples that an agent passes on: some ten thousand transfers.
const AROUND_MAX: usize = 16 << 20;

/// A host or agent to ask: its name, and how it is reached.
pub(super) type Place = (String, Reach);

/// The hosts that are named; without any, this one.
pub(super) fn places(named: &[OsString]) -> Result<Vec<Place>> {
    let mut places: Vec<Place> = Vec::new();
    for text in named {
        for end in endpoint::parse(&as_endpoint(text), Side::Destination)? {
            if end.object != Object::Null {
                bail!(
                    "{}: name a host, HOST or HOST:PORT; transfers are not shown by their folders",
                    text.display()
                );
            }
            let name = match &end.reach {
                Reach::Attached { host, port } if host.contains(':') => format!("[{host}]:{port}"),
                Reach::Attached { host, port } => format!("{host}:{port}"),
                Reach::Ssh(target) => target.clone(),
                Reach::Local | Reach::Launched(_) => here_name(),
            };
            if places.iter().all(|(other, _)| *other != name) {
                places.push((name, end.reach));
            }
        }
    }
    if places.len() > HOSTS_MAX {
        bail!(
            "{} hosts are named; at most {HOSTS_MAX} are shown by one command",
            places.len()
        );
    }
    if places.is_empty() {
        places.push((here_name(), Reach::Local));
    }
    Ok(places)
}

fn here_name() -> String {
    "this host".into()
}

/// What options of reaching hosts are read by.
pub(super) fn nodes(places: &[Place]) -> Vec<NodeRequest> {
    let node = |(name, reach): &Place| NodeRequest::without_part(name.as_str(), reach.clone());
    places.iter().map(node).collect()
}

/// Asks all places again and again.
pub(super) struct Gatherer {
    places: Vec<Place>,
    watched: Watched,
    watch: Watch,
    began: Instant,
}

impl Gatherer {
    /// Reaches the hosts. ssh may ask at the terminal until this returns.
    pub async fn start(places: &[Place], options: &Options) -> Self {
        let far = places.iter().filter(|(_, reach)| *reach != Reach::Local);
        let host = |(name, reach): &Place| WatchedHost {
            name: name.clone(),
            reach: reach.clone(),
        };
        let far: Vec<WatchedHost> = far.map(host).collect();
        Self {
            places: places.to_vec(),
            watched: Watched::start(&far, options).await,
            watch: Watch::default(),
            began: Instant::now(),
        }
    }

    /// What all transfers do now.
    pub async fn look(&mut self) -> TopReport {
        let asks_here = self.places.iter().any(|(_, reach)| *reach == Reach::Local);
        let here = match asks_here {
            true => tokio::task::spawn_blocking(here).await.unwrap_or_default(),
            false => Vec::new(),
        };
        let mut far = self.watched.answers().into_iter();
        let seen: Vec<Seen> = self
            .places
            .iter()
            .map(|(place, reach)| Seen {
                place: place.clone(),
                answer: match reach {
                    Reach::Local => Ok(here.clone()),
                    _ => far
                        .next()
                        .unwrap_or_else(|| Err("it was not asked".into()))
                        .map(|reply| of_host(&reply, matches!(reach, Reach::Ssh(_)))),
                },
            })
            .collect();
        let now = time::Instant::after(self.began.elapsed());
        self.watch.observe(now, &seen, sys::now_unix())
    }

    /// Whether rates are known after another look only.
    pub fn needs_more(&self) -> bool {
        self.watch.needs_more()
    }
}

/// What an agent says of itself, and, where this command has started it, of its user's other processes there.
fn of_host(reply: &StatusReply, is_started: bool) -> Vec<Sample> {
    let is_around = is_started && (1..=AROUND_MAX).contains(&reply.around.len());
    match !is_around {
        true => of_agent(0, reply),
        // Whatever it is, it becomes no more than samples.
        false => serde_json::from_slice(&reply.around).unwrap_or_default(),
    }
}

/// What this user's commands and agents on this host do, for the command that has started this agent.
pub(crate) fn around() -> Vec<u8> {
    let mut samples = here();
    loop {
        let text = serde_json::to_vec(&samples).unwrap_or_default();
        if text.len() <= AROUND_MAX {
            return text;
        }
        samples.truncate(samples.len() / 2);
    }
}

/// The same, as samples.
fn here() -> Vec<Sample> {
    let now = sys::now_unix();
    let mut samples = Vec::new();
    for folder in runtime_folder::all() {
        let commands = desk::ask_all(&folder, &Question::Status).unwrap_or_default();
        samples.extend(commands.iter().map(|(_, answer)| of_command(answer, now)));
        for (process, reply) in visible::ask_all(&folder) {
            samples.extend(of_agent(process, &reply));
        }
    }
    samples
}

/// * `now`: seconds since 1970.
fn of_command(answer: &Answer, now: u64) -> Sample {
    let kind = match answer.kind {
        Kind::Transfer if !answer.does.is_empty() => answer.does.clone(),
        kind => kind.name().to_owned(),
    };
    let carried = answer.carried.unwrap_or_default();
    let mut sample = Sample {
        speaker: Speaker::Command,
        process: answer.process,
        transfer: answer.transfer.clone(),
        kind,
        label: answer.label.clone(),
        from: answer.from.clone(),
        to: answer.to.clone(),
        seconds: now.saturating_sub(answer.started_seconds) as f64,
        state: state(answer),
        sent: carried.sent_bytes,
        received: carried.received_bytes,
        blocks: carried.blocks,
        connections: carried.connections,
        open_connections: carried.open_connections,
        ..Sample::default()
    };
    if let Some(Event::Progress {
        delivered_bytes,
        received_bytes,
        total_bytes,
        bits_per_second,
        eta_seconds,
        receivers,
        senders,
        bottlenecks,
        ..
    }) = &answer.progress
    {
        sample.received = *received_bytes;
        sample.safe = *delivered_bytes;
        sample.total = Some(*total_bytes);
        sample.bits_per_second = Some(*bits_per_second);
        sample.eta_seconds = *eta_seconds;
        sample.bottlenecks.clone_from(bottlenecks);
        // Of many, some of both sides.
        let most = NODES_MAX - senders.len().min(NODES_MAX / 2);
        let receivers_shown = receivers.iter().take(most);
        sample.nodes = receivers_shown.map(|one| node(one, false)).collect();
        let most = NODES_MAX - sample.nodes.len();
        let senders_shown = senders.iter().take(most);
        sample
            .nodes
            .extend(senders_shown.map(|one| node(one, true)));
        sample.nodes_more = receivers.len() + senders.len() - sample.nodes.len();
    }
    sample
}

fn node(progress: &NodeProgress, sends: bool) -> NodeRow {
    NodeRow {
        node: progress.node.clone(),
        sends,
        bytes: progress.bytes,
        safe_bytes: progress.safe_bytes,
        total_bytes: Some(progress.total_bytes),
        bits_per_second: progress.bits_per_second,
    }
}

/// What a command does while it moves nothing.
fn state(answer: &Answer) -> Option<String> {
    if let Some(silence) = answer.silence {
        let (state, remedy) = (silence.state(), silence.remedy(answer.process));
        return Some(format!("{state} ({remedy})"));
    }
    let state = match &answer.progress {
        _ if answer.cancelled => Some("stopping".to_owned()),
        Some(Event::Progress { .. }) => None,
        Some(event @ Event::Waiting { .. }) => Some(waiting_words(event)),
        Some(
            event @ (Event::Scanning { .. } | Event::AwaitingEnd { .. } | Event::Removing { .. }),
        ) => Some(busy_words(event)),
        _ if answer.carried.is_some() => None,
        _ if answer.transfer.is_some() => Some("starts to move".into()),
        _ => Some("reaching the nodes".into()),
    };
    state.filter(|state| !state.is_empty())
}

/// What an agent's process takes part in, each once.
fn of_agent(process: u32, reply: &StatusReply) -> Vec<Sample> {
    let mut known = BTreeSet::new();
    let agent = reply.agent.as_ref().map(|agent| agent.instance.clone());
    let agent = agent.filter(|instance| !instance.is_empty());
    let lines = reply.transfers.iter();
    lines
        .filter(|line| known.insert(&line.transfer))
        .map(|line| Sample {
            agent: agent.clone(),
            ..of_part(process, line)
        })
        .collect()
}

fn of_part(process: u32, line: &TransferStatus) -> Sample {
    let (kind, is_transfer) = match line.kind() {
        TransferKind::Transfer => (Kind::Transfer, true),
        TransferKind::Stream => (Kind::Stream, false),
        TransferKind::Tunnel => (Kind::Tunnel, false),
    };
    let is_tunnel = kind == Kind::Tunnel;
    let targets = Some(line.targets.clone()).filter(|targets| !targets.is_empty());
    let phase = match line.cancelled {
        true => Some("stopping".to_owned()),
        false => Some(line.phase.clone()).filter(|phase| is_transfer && phase != "moving"),
    };
    Sample {
        speaker: Speaker::Agent,
        process,
        transfer: Some(format_id(&line.transfer)),
        kind: kind.name().to_owned(),
        to: line.paths.iter().cloned().chain(targets).collect(),
        seconds: line.age as f64 / 1e9,
        state: phase,
        sent: line.sent,
        received: line.checked,
        safe: line.delivered,
        limit: Some(line.limit).filter(|limit| *limit > 0),
        total: is_transfer.then_some(line.wanted),
        blocks: (kind == Kind::Stream).then_some(line.blocks),
        connections: is_tunnel.then_some(line.connections),
        open_connections: is_tunnel.then_some(line.open_connections),
        sending: line.sending.as_ref().map(Spent::from),
        receiving: line.receiving.as_ref().map(Spent::from),
        ..Sample::default()
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_proto::control::{AgentStatus, Waits};

    use super::*;

    /// Hosts are named as for `doctor`, without folders; each once.
    #[test]
    fn places_are_read() {
        let read = |texts: &[&str]| {
            let texts: Vec<OsString> = texts.iter().map(OsString::from).collect();
            let places = places(&texts)?;
            let names = places.into_iter().map(|place| place.0);
            Ok::<_, anyhow::Error>(names.collect::<Vec<String>>())
        };
        for (texts, names) in [
            (&[][..], &["this host"][..]),
            (&["localhost"], &["this host"]),
            (&["me@a", "a", "a", "b[1-2]"], &["me@a", "a", "b1", "b2"]),
            (&["a:7420", "[::1]:7"], &["a:7420", "[::1]:7"]),
        ] {
            assert_eq!(read(texts).unwrap(), names, "{texts:?}");
        }
        let refused = |text: &str| read(&[text]).unwrap_err().to_string();
        assert!(refused("a:/x").contains("HOST:PORT"));
        assert!(refused("a[1-2000]").contains("2000 hosts"));
    }

    /// A command that moves says all; one that does not says what it does instead.
    #[test]
    fn commands_become_samples() {
        let nodes = |names: &str, many: usize| {
            let node = |n| NodeProgress {
                node: format!("{names}{n}"),
                bytes: 1,
                safe_bytes: 0,
                total_bytes: 2,
                bits_per_second: 8.0,
            };
            (0..many).map(node).collect::<Vec<_>>()
        };
        let mut answer = Answer {
            does: "check".into(),
            started_seconds: 90,
            process: 4,
            progress: Some(Event::Progress {
                seconds: 1.0,
                delivered_bytes: 5,
                received_bytes: 7,
                total_bytes: 9,
                bits_per_second: 16.0,
                eta_seconds: Some(1.0),
                receivers: nodes("r", 100),
                senders: nodes("s", 40),
                bottlenecks: Vec::new(),
            }),
            ..Answer::default()
        };
        let sample = of_command(&answer, 100);
        assert_eq!((sample.kind.as_str(), sample.seconds), ("check", 10.0));
        assert_eq!(
            (sample.safe, sample.received, sample.total),
            (5, 7, Some(9))
        );
        assert_eq!(
            (sample.nodes.len(), sample.nodes_more),
            (NODES_MAX, 140 - NODES_MAX)
        );
        let senders = sample.nodes.iter().filter(|node| node.sends).count();
        assert_eq!((senders, sample.state), (32, None));
        answer.progress = Some(Event::Removing {
            node: "n".into(),
            removed: 1,
            total: 2,
        });
        let said = of_command(&answer, 100).state.unwrap();
        assert!(said.contains("removing 1 of 2"), "{said}");
        answer.cancelled = true;
        assert_eq!(of_command(&answer, 100).state.unwrap(), "stopping");
    }

    /// What an agent passes on of its host is read back, and nonsense is nothing; without it its own part is shown.
    #[test]
    fn answers_of_hosts_become_samples() {
        let line = TransferStatus {
            transfer: vec![1; 16],
            wanted: 10,
            checked: 4,
            phase: "moving".into(),
            receiving: Some(Waits {
                sync: 1,
                name: 2,
                ..Waits::default()
            }),
            paths: vec!["/x".into()],
            ..TransferStatus::default()
        };
        let mut reply = StatusReply {
            transfers: vec![line.clone(), line],
            agent: Some(AgentStatus {
                instance: "6f".into(),
                ..AgentStatus::default()
            }),
            ..StatusReply::default()
        };
        let own = of_host(&reply, true);
        assert_eq!((own.len(), own[0].agent.as_deref()), (1, Some("6f")));
        assert_eq!((own[0].total, own[0].received), (Some(10), 4));
        assert_eq!(
            (own[0].state.as_deref(), own[0].to.join(" ")),
            (None, "/x".into())
        );
        assert_eq!(own[0].receiving.unwrap().sync, 3);
        reply.around = serde_json::to_vec(&[Sample::default(), own[0].clone()]).unwrap();
        assert_eq!(of_host(&reply, true), [Sample::default(), own[0].clone()]);
        // An agent that was not started for this speaks for itself only.
        assert_eq!(of_host(&reply, false), own);
        reply.around = b"nonsense".to_vec();
        assert_eq!(of_host(&reply, true), []);
    }
}
