//! What held a transfer back, and what the program says of it: thirteen transfers, each limited on purpose by one thing.
//!
//! Hosts of a lab without caps but where one is the point. Slow disks are file systems in files whose device the kernel limits, slow
//! processors are shares of a group. Named: the first bottleneck of the report is that thing, at that node; the page
//! (`--report`) says it first, in words; `doctor`, run before the transfer, names it where it can know.

mod quota;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ropewalk_lab::trunk::{ClusterSpec, LinkSpec, Loss, QueueLimit, TrunkSpec};
use ropewalk_lab::{HostSpec, Lab, LabBuilder, Topology};
use ropewalk_proto::report::{BottleneckCause as Cause, BottleneckReport};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::{Bench, Settings, Site};
use crate::device::{Device, Speeds};
use crate::figures::faults::write_noise;
use crate::network::{MASTER, capped, lab, with_program};
use crate::ropewalk::{Agents, Moved, PORT, Place, words};
use crate::sys;
use crate::table::{Cell, Table, number};
use quota::Quota;

/// Speed of slow disks, in bytes a second.
const DISK: u64 = 40_000_000;

/// Space of slow disks; `doctor` writes a file of 1 GB.
const DISK_BYTES: u64 = 3 << 30;

/// Speed of one that small files are written to when all of them have arrived.
const SLOWER_DISK: u64 = 4_000_000;

/// Files of that row.
const FILES: u64 = 400;

/// Of one processor, what a slow host may use.
const PROCESSOR_PERCENT: u64 = 20;

/// Cap of a slow interface, and of others where one is slow.
const SLOW: u64 = 100_000_000;
const FAST: u64 = 1_000_000_000;

/// Longest time of one transfer, and of one `doctor`.
const RUN_MAX: Duration = Duration::from_secs(300);

/// What a slow disk may leave unwritten before programs have to wait.
const UNWRITTEN: u64 = 16 << 20;

/// Packets that a lossy path loses, of one.
const LOST: f64 = 0.02;

/// One way, on long paths.
const DELAY: Duration = Duration::from_millis(20);

/// What limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    SourceDisk,
    SenderProcessor,
    SenderInterface,
    SinkDisk,
    ReceiverProcessor,
    ReceiverInterface,
    Sync,
    Trunk,
    Loss,
    LossyRail,
    Limit,
    SocketBuffer,
    Straggler,
}

/// One row: what limits, what is to be named, in words, and what `doctor` can name.
struct Case {
    held: Held,
    name: &'static str,
    cause: Cause,
    node: Option<&'static str>,
    peer: Option<&'static str>,
    words: &'static str,
    doctor: Option<(Cause, &'static str)>,
}

const fn case(
    held: Held,
    name: &'static str,
    (cause, node, peer): (Cause, Option<&'static str>, Option<&'static str>),
    words: &'static str,
    doctor: Option<(Cause, &'static str)>,
) -> Case {
    Case {
        held,
        name,
        cause,
        node,
        peer,
        words,
        doctor,
    }
}

const CASES: [Case; 13] = [
    case(
        Held::SourceDisk,
        "disk of the sender, 40 MB/s",
        (Cause::SourceDisk, Some("a"), None),
        "reading at a",
        Some((Cause::SourceDisk, "a")),
    ),
    case(
        Held::SenderProcessor,
        "a fifth of a processor for the sender",
        (Cause::SenderProcessor, Some("a"), None),
        "the processor of a",
        Some((Cause::SenderProcessor, "a")),
    ),
    case(
        Held::SenderInterface,
        "interface of the sender, 100 Mbit/s, declared",
        (Cause::SenderRate, Some("a"), None),
        "the network speed of a",
        Some((Cause::Path, "a")),
    ),
    case(
        Held::SinkDisk,
        "disk of the receiver, 40 MB/s, 16 MiB unwritten",
        (Cause::SinkDisk, Some("b"), None),
        "writing at b",
        Some((Cause::SinkDisk, "b")),
    ),
    case(
        Held::ReceiverProcessor,
        "a fifth of a processor for the receiver",
        (Cause::ReceiverProcessor, Some("b"), None),
        "the processor of b",
        Some((Cause::ReceiverProcessor, "b")),
    ),
    case(
        Held::ReceiverInterface,
        "interface of the receiver, 100 Mbit/s, declared",
        (Cause::ReceiverRate, Some("b"), None),
        "the network speed of b",
        Some((Cause::Path, "a")),
    ),
    case(
        Held::Sync,
        "disk of the receiver, 4 MB/s, 400 files that fit its memory",
        (Cause::Syncing, Some("b"), None),
        "syncing at b",
        None,
    ),
    case(
        Held::Trunk,
        "trunk of two pairs, 100 Mbit/s, declared",
        (Cause::Trunk, Some("wan"), None),
        "trunk wan",
        None,
    ),
    case(
        Held::Loss,
        "2 % loss, round trip 40 ms",
        (Cause::Loss, Some("a1"), Some("b1")),
        "packet loss from a1 to b1",
        Some((Cause::Loss, "a1")),
    ),
    case(
        Held::LossyRail,
        "2 % loss on one of two interfaces, round trip 40 ms",
        (Cause::Loss, Some("a"), Some("b")),
        "packet loss from a to b",
        Some((Cause::Loss, "a")),
    ),
    case(
        Held::Limit,
        "--limit 100Mbit",
        (Cause::Limit, None, None),
        "--limit",
        None,
    ),
    case(
        Held::SocketBuffer,
        "receive buffer of 64 KiB, round trip 40 ms",
        (Cause::Window, Some("a1"), Some("b1")),
        "TCP windows between a1 and b1",
        Some((Cause::Window, "a1")),
    ),
    case(
        Held::Straggler,
        "one sender of three with 20 Mbit/s",
        (Cause::Path, Some("a3"), Some("b")),
        "the path from a3 to b",
        None,
    ),
];

/// What is there for one transfer.
struct Stage {
    lab: Lab,
    // After the lab, whose hosts have it mounted.
    disk: Option<Device>,
    // Where the command runs.
    master: &'static str,
    // Beside `/data`, which each host has in memory.
    root: Option<String>,
    // The agent that gets a part of a processor.
    slow: Option<&'static str>,
    // The addresses of the rail that is to be named.
    rail: Option<String>,
    copy: String,
    doctor: String,
}

/// One transfer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ran {
    moved: Moved,
    // What the page says first of what held it back.
    page: Option<String>,
    // The addresses of the rail that is to be named.
    #[serde(default)]
    rail: Option<String>,
    // What `doctor` says before, where it can know.
    doctor: Option<Examined>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Examined {
    bound_by: Option<BottleneckReport>,
    predicted_bits_per_second: Option<f64>,
    #[serde(default)]
    start_seconds: Option<f64>,
}

const COLUMNS: [(&str, &str); 9] = [
    ("limited_by", "limited by"),
    ("report", "report says"),
    ("share", "share"),
    ("is_named", "named"),
    ("page", "page"),
    ("doctor", "doctor says"),
    ("doctor_names", "named"),
    ("megabits_per_second", "Mbit/s"),
    ("predicted_of_taken", "predicted/taken"),
];

/// `hosts` on each side of a trunk.
fn over_trunk(site: &Site, hosts: usize, link: LinkSpec, buffer: Option<&str>) -> Result<Lab> {
    let clusters = ClusterSpec {
        hosts: [hosts; 2],
        access_bits_per_second: Some(FAST),
        trunk: TrunkSpec::symmetric(link),
    };
    let mut topology = Topology::clusters(&clusters);
    for host in &mut topology.hosts {
        if let Some(value) = buffer.filter(|_| host.name == "b1") {
            let value = value.to_owned();
            host.sysctls.insert("net.ipv4.tcp_rmem".into(), value);
        }
    }
    let builder = with_program(LabBuilder::from(topology), site).congestion_control("cubic");
    builder.build().context("cannot build the lab")
}

impl Stage {
    /// Memory of `a` to memory of `b`, and `doctor` between them.
    fn of(lab: Lab, master: &'static str, from: &str, to: &str, bytes: u64) -> Self {
        Self {
            lab,
            disk: None,
            master,
            root: None,
            slow: None,
            rail: None,
            copy: format!("copy {from}:{PORT}:mem:{bytes} {to}:{PORT}:null:"),
            doctor: format!("doctor {from}:{PORT} {to}:{PORT}"),
        }
    }

    /// With these capped hosts.
    fn capped(site: &Site, hosts: [(&str, u64); 2], bytes: u64) -> Result<Self> {
        let lab = lab(hosts.map(|(name, cap)| capped(name, cap)), site)?;
        Ok(Self::of(lab, MASTER, "a", "b", bytes))
    }

    /// Over a trunk between two hosts.
    fn between(site: &Site, link: LinkSpec, buffer: Option<&str>, bytes: u64) -> Result<Self> {
        let lab = over_trunk(site, 1, link, buffer)?;
        Ok(Self::of(lab, "b1", "a1", "b1", bytes))
    }

    /// Over two interfaces of two hosts, of which the second one's packets go over a link that loses some.
    fn railed(site: &Site, link: LinkSpec, bytes: u64) -> Result<Self> {
        let lossy = link.clone().loss(Loss::independent(LOST));
        let trunks = [link, lossy].map(TrunkSpec::symmetric).to_vec();
        let topology = Topology::pair_over_rails(Some(FAST), trunks);
        let builder = with_program(LabBuilder::from(topology), site).congestion_control("cubic");
        let lab = builder.build().context("cannot build the lab")?;
        let second = |host| {
            let own = lab.addresses(host).into_iter();
            own.filter(std::net::IpAddr::is_ipv4).nth(1)
        };
        let (Some(a), Some(b)) = (second("a"), second("b")) else {
            bail!("the lab's hosts have one interface");
        };
        Ok(Self {
            rail: Some(format!("{a} - {b}")),
            ..Self::of(lab, "b", "a", "b", bytes)
        })
    }

    /// A file of one host, on a disk or to one.
    fn on_disk(site: &Site, held: Held, bytes: u64) -> Result<Self> {
        // Hosts see what is mounted when they are made.
        let shm = Path::new("/dev/shm");
        let images = if shm.is_dir() { shm } else { &site.scratch };
        let mut disk = Device::new(images, &site.scratch.join("disk"), DISK_BYTES)?;
        let lab = lab(["a", "b"].map(HostSpec::new), site)?;
        let folder = disk.folder().display().to_string();
        let source = match held {
            Held::SourceDisk => disk.folder().join("file"),
            _ => lab.path_in("a", "/data/file"),
        };
        match held {
            Held::Sync => {
                fs::create_dir(&source)?;
                for file in 0..FILES {
                    write_noise(&source.join(file.to_string()), bytes / FILES)?;
                }
            }
            _ => write_noise(&source, bytes)?,
        }
        if held == Held::SourceDisk {
            let file = fs::File::open(&source)?;
            file.sync_all()?;
            sys::forget_pages(&file);
        }
        disk.limit(match held {
            Held::SourceDisk => Speeds {
                read: Some(DISK),
                ..Speeds::default()
            },
            Held::Sync => Speeds {
                write: Some(SLOWER_DISK),
                ..Speeds::default()
            },
            _ => Speeds {
                write: Some(DISK),
                unwritten: Some(UNWRITTEN),
                ..Speeds::default()
            },
        })?;
        let (from, to) = match held {
            Held::SourceDisk => (folder.as_str(), "/data"),
            _ => ("/data", folder.as_str()),
        };
        Ok(Self {
            root: Some(format!("{folder}:rw")),
            copy: format!("copy a:{PORT}:{from}/file b:{PORT}:{to}/copy"),
            doctor: format!("doctor a:{PORT}:{from} b:{PORT}:{to}"),
            disk: Some(disk),
            ..Self::of(lab, MASTER, "a", "b", 0)
        })
    }

    /// Two pairs with one trunk between them.
    fn trunk(site: &Site, agents: &Agents, bytes: u64) -> Result<Self> {
        let link = LinkSpec::rate_bits(SLOW).queue(QueueLimit::Packets(200));
        let lab = over_trunk(site, 2, link, None)?;
        let mut spec = format!("id \"{}\"\n", "two pairs");
        for (pair, host) in ["a1", "a2"].iter().enumerate() {
            write_noise(&lab.path_in(host, "/data/part"), bytes / 2)?;
            let first = bytes / 2 * pair as u64;
            let range = format!("{first}-{}", first + bytes / 2 - 1);
            let to = ["b1", "b2"][pair];
            spec += &format!("writer {host}:{PORT} /data/part 0 {range}\n");
            spec += &format!("reader {to}:{PORT} /data/copy 0 {range}\n");
        }
        spec += "trunk wan 100Mbit from a[1-2] to b[1-2]\n";
        let spec = agents.spec(&spec)?;
        Ok(Self {
            copy: format!("transfer {spec}"),
            ..Self::of(lab, "b1", "a1", "b1", 0)
        })
    }

    /// Three senders with a part each, one of them slow.
    fn straggler(site: &Site, bytes: u64) -> Result<Self> {
        let caps = [
            ("a1", FAST / 5),
            ("a2", FAST / 5),
            ("a3", SLOW / 5),
            ("b", FAST),
        ];
        let lab = lab(caps.map(|(name, cap)| capped(name, cap)), site)?;
        for host in ["a1", "a2", "a3"] {
            let folder = lab.path_in(host, "/data/set");
            fs::create_dir(&folder)?;
            write_noise(&folder.join(host), bytes)?;
        }
        Ok(Self {
            copy: format!("copy --sources parts a[1-3]:{PORT}:/data/set b:{PORT}:/data/set"),
            ..Self::of(lab, MASTER, "a1", "b", 0)
        })
    }
}

impl Held {
    /// Bytes, for some seconds at the speed that limits.
    fn bytes(self, quick: bool) -> u64 {
        let bytes: u64 = match self {
            Self::SourceDisk | Self::SinkDisk => 320 << 20,
            Self::Sync => 20 << 20,
            Self::SenderProcessor | Self::ReceiverProcessor => 1 << 30,
            Self::Straggler => 24 << 20,
            Self::Loss | Self::LossyRail | Self::SocketBuffer => 240 << 20,
            _ => 96 << 20,
        };
        if quick { bytes / 2 } else { bytes }
    }

    fn stage(self, site: &Site, agents: &Agents, bytes: u64) -> Result<Stage> {
        let fast = [("a", FAST * 8), ("b", FAST * 8)];
        let slow = |host, fast| {
            let stage = Stage::capped(site, fast, bytes)?;
            Ok(Stage {
                slow: Some(host),
                ..stage
            })
        };
        let option = |stage: Stage, option: &str| Stage {
            copy: format!("{} {option}", stage.copy),
            ..stage
        };
        let long = LinkSpec::rate_bits(FAST / 2)
            .delay(DELAY)
            .queue(QueueLimit::Packets(2000));
        match self {
            Self::SourceDisk | Self::SinkDisk | Self::Sync => Stage::on_disk(site, self, bytes),
            Self::SenderProcessor => slow("a", fast),
            Self::ReceiverProcessor => slow("b", fast),
            Self::SenderInterface => {
                let stage = Stage::capped(site, [("a", SLOW), ("b", FAST)], bytes)?;
                Ok(option(stage, "--node-rate a=100Mbit"))
            }
            Self::ReceiverInterface => {
                let stage = Stage::capped(site, [("a", FAST), ("b", SLOW)], bytes)?;
                Ok(option(stage, "--node-rate b=100Mbit"))
            }
            Self::Limit => {
                let stage = Stage::capped(site, [("a", FAST), ("b", FAST)], bytes)?;
                Ok(option(stage, "--limit 100Mbit"))
            }
            Self::Trunk => Stage::trunk(site, agents, bytes),
            Self::Loss => {
                let lossy = long.loss(Loss::independent(LOST));
                Stage::between(site, lossy, None, bytes)
            }
            Self::LossyRail => {
                let link = LinkSpec {
                    bits_per_second: Some(FAST / 5),
                    ..long
                };
                Stage::railed(site, link, bytes)
            }
            Self::SocketBuffer => Stage::between(site, long, Some("4096 65536 65536"), bytes),
            Self::Straggler => Stage::straggler(site, bytes),
        }
    }
}

/// What a page says first, below its title, of what held the transfer back: `writing at b, 71 % of the time.`
fn first_statement(page: &str) -> Option<String> {
    const SAID: &str = "eld back";
    let (_, body) = page.split_once("</h1>")?;
    let mut said = String::new();
    for part in body.split('<') {
        said.push_str(part.split_once('>').map_or(part, |(_, text)| text));
    }
    let (_, after) = said.split_once(SAID)?;
    let line = after.lines().next()?.trim_start();
    Some(line.strip_prefix("by ").unwrap_or(line).to_owned())
}

/// Whether a statement begins with a name, which ends there: `trunk wan` is not `trunk wan2`.
fn begins(said: &str, name: &str) -> bool {
    let after = said.strip_prefix(name);
    after.is_some_and(|after| !after.starts_with(|next: char| next.is_alphanumeric()))
}

/// What `doctor` says.
fn examine(agents: &Agents, stage: &Stage) -> Result<Examined> {
    let place = Place::Host(&stage.lab, stage.master);
    let (said, process) = agents.start_command(place, &words(&stage.doctor))?;
    let ended = process.finish(RUN_MAX)?.success(&said.join(" "))?;
    let report: Value = serde_json::from_str(&ended.output.concat())
        .with_context(|| format!("`{}` printed no report", said.join(" ")))?;
    let pair = &report["pairs"][0];
    Ok(Examined {
        bound_by: serde_json::from_value(pair["bound_by"].clone()).ok(),
        predicted_bits_per_second: pair["bits_per_second"].as_f64(),
        start_seconds: pair["start_seconds"].as_f64(),
    })
}

fn run_case(site: &Site, case: &Case, bytes: u64) -> Result<Ran> {
    let mut agents = Agents::new(site)?;
    let stage = case.held.stage(site, &agents, bytes)?;
    let hosts: Vec<String> = stage.lab.hosts().map(str::to_owned).collect();
    for host in hosts.iter().filter(|host| *host != MASTER) {
        let mut roots = vec!["/data:rw".to_owned()];
        roots.extend(stage.root.clone());
        agents.start_in(&stage.lab, host, &roots)?;
    }
    let quota = stage
        .slow
        .map(|host| Quota::new(agents.pid(host), PROCESSOR_PERCENT));
    let quota = quota.transpose()?;
    let doctor = match case.doctor {
        Some(_) => Some(examine(&agents, &stage)?),
        None => None,
    };
    let page = site.scratch.join("page.html");
    let arguments = format!("{} --report {}", stage.copy, page.display());
    let place = Place::Host(&stage.lab, stage.master);
    let moved = agents.run(place, &words(&arguments), RUN_MAX, |_, _| Ok(()))?;
    drop(quota);
    agents.stop()?;
    let text = fs::read_to_string(&page).context("there is no page")?;
    fs::remove_file(&page)?;
    let Stage {
        lab, disk, rail, ..
    } = stage;
    lab.close()?;
    drop(disk);
    Ok(Ran {
        moved: moved.complete()?,
        page: first_statement(&text),
        rail,
        doctor,
    })
}

impl Case {
    /// How long it takes, with the lab and `doctor`.
    fn seconds(&self) -> f64 {
        let examined = match (self.doctor, self.held) {
            (None, _) => 0.0,
            (_, Held::SourceDisk | Held::SinkDisk | Held::Sync) => 60.0,
            _ => 10.0,
        };
        12.0 + examined
    }
}

fn is(found: &BottleneckReport, case: &Case, rail: Option<&str>) -> bool {
    is_over(found, rail)
        && found.cause == case.cause
        && found.node.as_deref() == case.node
        && found.peer.as_deref() == case.peer
}

/// Whether it names this rail, or none where none is to be named.
fn is_over(found: &BottleneckReport, rail: Option<&str>) -> bool {
    match (&found.rail, rail) {
        (Some(found), Some(rail)) => found.ends_with(rail),
        (found, rail) => found.is_none() && rail.is_none(),
    }
}

fn words_of(found: Option<&BottleneckReport>) -> Cell {
    let Some(found) = found else {
        return Cell::Empty;
    };
    let cause = serde_json::to_value(found.cause).unwrap_or_default();
    let mut text = cause.as_str().unwrap_or_default().replace('_', " ");
    for name in [&found.node, &found.peer, &found.rail]
        .into_iter()
        .flatten()
    {
        text = format!("{text} {name}");
    }
    text.into()
}

const fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Makes the comparison.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut bench = Bench::open(settings, "causes")?;
    let site = bench.site();
    let key = |case: &Case| format!("{}, {} bytes", case.name, case.held.bytes(settings.quick));
    bench.expect(CASES.iter().map(|case| (key(case), case.seconds())));
    bench.announce();
    let mut table = Table::new("Transfers that one thing limits", &COLUMNS);
    let (mut reports, mut pages, mut doctors, mut asked) = (0, 0, 0, 0);
    for case in &CASES {
        let bytes = case.held.bytes(settings.quick);
        let ran = bench.point(&key(case), || run_case(&site, case, bytes));
        let Some(ran) = ran else {
            let mut row = vec![case.name.into()];
            row.extend(vec![Cell::Empty; COLUMNS.len() - 1]);
            table.row(row);
            continue;
        };
        let first = ran.moved.report.bottlenecks.first();
        let rail = ran.rail.as_deref();
        let is_named = first.is_some_and(|first| is(first, case, rail));
        let found = ran
            .doctor
            .as_ref()
            .and_then(|doctor| doctor.bound_by.as_ref());
        let is_known = case.doctor.map(|(cause, node)| {
            found.is_some_and(|found| {
                found.cause == cause && found.node.as_deref() == Some(node) && is_over(found, rail)
            })
        });
        reports += u32::from(is_named);
        let is_on_page = ran.page.as_deref().is_some_and(|said| {
            begins(said, case.words) && rail.is_none_or(|rail| said.contains(rail))
        });
        pages += u32::from(is_on_page);
        doctors += u32::from(is_known == Some(true));
        asked += u32::from(is_known.is_some());
        let taken = ran.moved.report.bits_per_second;
        let bits = ran.moved.report.delivered_bytes as f64 * 8.0;
        let predicted = ran.doctor.as_ref().and_then(|doctor| {
            let rate = doctor.predicted_bits_per_second?;
            Some(bits / (doctor.start_seconds? + bits / rate))
        });
        table.row(vec![
            case.name.into(),
            words_of(first),
            number(first.map(|first| first.share), 2),
            yes(is_named).into(),
            yes(is_on_page).into(),
            words_of(found),
            is_known.map_or(Cell::Empty, |is| yes(is).into()),
            number(taken / 1e6, 0),
            number(predicted.map(|predicted| predicted / taken), 2),
        ]);
    }
    table.note("share: of the whole time. page: the first that the page of `--report` says of it. predicted: for as many bytes, with the start that doctor expects. doctor: run before, where it can know: not limits of a command, what several pairs share, or small files.");
    bench.headline(
        "what limits a transfer",
        format!(
            "named first by the report in {reports} of {}, said first on its page in {pages}, named by doctor in {doctors} of {asked}",
            CASES.len()
        ),
    );
    bench.finish(&[table])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What else a page says of causes does not count: the first statement has to begin with the one that is looked for.
    #[test]
    fn the_first_statement_of_a_page_counts() {
        let page = "<h1>reading at a</h1>\n<p>Held back by <strong>writing at b</strong>, 71 % of the time.</p>\n<pre>held back  reading at a 20 %</pre>";
        let said = first_statement(page).unwrap();
        assert_eq!(said, "writing at b, 71 % of the time.");
        assert!(begins(&said, "writing at b"));
        for other in ["reading at a", "writing at", "writing at b2", "b"] {
            assert_eq!(begins(&said, other), other == "writing at", "{other}");
        }
        let listed = "<h1>x</h1><pre>time\nheld back  reading at a 60 %, writing at b 20 %\n</pre>";
        let said = first_statement(listed).unwrap();
        assert!(begins(&said, "reading at a") && !begins(&said, "writing at b"));
        assert_eq!(first_statement("<h1>held back by b</h1><p>done</p>"), None);
    }
}
