//! Measures hosts and the paths between them: each host by a question to its agent, each path by transfers. What the numbers mean is
//! [`ropewalk_proto::doctor`]'s.
//!
//! ```text
//!  reach all ─▶ ask each ─▶ for each pair: memory to memory, one stream; the same, as many as a copy takes;
//!                                          a file that the sender's agent made, to the receiver's folder
//!           └─ the connections stay: with them the files go that agents keep for the last of these
//! ```
//!
//! Transfers of memory are cancelled once their rate stays: it is that of the last two seconds. One of a file ends, as its sync counts.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_proto::control::{self, Examine, Examined, ToAgent, from_agent, to_agent};
use ropewalk_proto::doctor::{
    DoctorReport, Forecast, HostReport, Pace, Paces, RunReport, Runs, forecast,
};
use ropewalk_proto::report::{Event, Outcome, Report};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::drive::Cancel;
use crate::members::Members;
use crate::reach::{self, Reached};
use crate::request::{
    Destinations, Mapping, NodeRequest, Object, ObjectRequest, Options, Reach, Request, Sources,
};
use crate::rounds::run;

/// An agent measures its disk for some seconds; a slow one takes long to sync what was written in these.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Agents remove a file or two when it ends, and wait 5 s at most for what they measure.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of the first transfer of memory: its units are short, so that they are many on a slow path. One that ends too soon is followed by
/// another one of as many bytes as would take so long.
const MEMORY_FIRST: f64 = (64 << 20) as f64;
const MEMORY_SECONDS: f64 = 12.0;
const TRIES_MAX: u32 = 3;

/// A transfer of a file has the bytes of so many seconds at the rate of memory, and no more than the disks write in them ...
const FILE_SECONDS: f64 = 3.0;

/// ... within these bounds ...
const FILE_MIN: f64 = 4e6;
const FILE_MAX: f64 = 1e9;

/// ... and no more than this part of the free space.
const FREE_PART: u64 = 8;

/// A host to look at.
#[derive(Clone, Debug)]
pub struct DoctorHost {
    /// Its name in the report; unique.
    pub name: String,
    /// How its agent is reached.
    pub reach: Reach,
    /// A folder whose disk is measured, and takes part in transfers.
    pub folder: Option<Vec<u8>>,
}

/// Measures hosts, and the paths from each one to each later one. Never fails by itself: errors are in the report.
///
/// * `steps`: gets what is done next, in words.
pub async fn doctor(
    hosts: &[DoctorHost],
    options: &Options,
    steps: &UnboundedSender<String>,
    cancel: &Cancel,
) -> DoctorReport {
    let mut doctor = Doctor {
        hosts,
        options,
        steps,
        cancel,
        id: uuid::Uuid::now_v7().simple().to_string(),
        links: Vec::new(),
        report: DoctorReport::default(),
    };
    let nodes: Vec<NodeRequest> = hosts.iter().map(|host| doctor.examined(host)).collect();
    let loopback = hosts.iter().all(|host| host.reach == Reach::Local);
    doctor.step(format!("reaching {} hosts", hosts.len()));
    let reaching = reach::reach_each(&nodes, options, loopback, None, BTreeMap::new(), |_| {});
    let answers = tokio::select! {
        answers = reaching => answers,
        () = cancel.cancelled() => Vec::new(),
    };
    for (host, answer) in hosts.iter().zip(answers) {
        let (link, report) = match answer {
            Ok(reached) => (Some(reached), HostReport::default()),
            Err(failure) => (None, HostReport::failed(&host.name, failure.text)),
        };
        doctor.links.push(link);
        doctor.report.hosts.push(report);
    }
    let working = async {
        doctor.examine_all().await;
        doctor.measure_paths().await;
    };
    working.await;
    let links = std::mem::take(&mut doctor.links);
    leave(links.into_iter().flatten()).await;
    let mut report = doctor.report;
    if cancel.is_cancelled() {
        report.error = Some("interrupted".into());
    }
    report
}

/// Ends the connections, and waits for the agents to do so: the files that they keep for this run are removed before.
async fn leave(reached: impl Iterator<Item = Reached>) {
    let mut leaving = JoinSet::new();
    for mut one in reached {
        leaving.spawn(async move {
            let ended = async {
                one.link.writer.close().await;
                // What it had still to say is of no use now.
                while one.link.reader.read().await.is_ok() {}
            };
            let _ = tokio::time::timeout(LEAVE_TIMEOUT, ended).await;
            one
        });
    }
    reach::send_away(leaving.join_all().await).await;
}

struct Doctor<'d> {
    hosts: &'d [DoctorHost],
    options: &'d Options,
    steps: &'d UnboundedSender<String>,
    cancel: &'d Cancel,
    // Of the names of its files.
    id: String,
    // Agents that were reached, by host.
    links: Vec<Option<Reached>>,
    report: DoctorReport,
}

fn object(object: Object) -> ObjectRequest {
    ObjectRequest {
        object,
        rows: Vec::new(),
        destination: None,
        make_folder: false,
    }
}

impl Doctor<'_> {
    fn step(&self, text: String) {
        let _ = self.steps.send(text);
    }

    /// The name of a file of this run.
    fn file_name(&self, role: &str) -> Vec<u8> {
        format!("ropewalk-doctor-{}-{role}", self.id).into_bytes()
    }

    fn file_in(&self, folder: &[u8], role: &str) -> Object {
        Object::Path([folder, b"/", &self.file_name(role)].concat())
    }

    /// A node whose agent may write into the folder.
    fn examined(&self, host: &DoctorHost) -> NodeRequest {
        let folder = host.folder.as_ref();
        let file = folder.map(|folder| object(self.file_in(folder, "x")));
        node(host, Vec::new(), file.into_iter().collect())
    }

    async fn examine_all(&mut self) {
        for at in 0..self.hosts.len() {
            if self.links[at].is_none() || self.cancel.is_cancelled() {
                continue;
            }
            let host = &self.hosts[at];
            self.step(format!("examining {}", host.name));
            let asked = Examine {
                folder: host.folder.clone().unwrap_or_default(),
                ..Examine::default()
            };
            self.report.hosts[at] = match self.ask(at, asked).await {
                Ok(examined) => HostReport::of(&host.name, &examined),
                Err(error) => HostReport::failed(&host.name, error),
            };
        }
    }

    /// Asks an agent, which then is not used any more where it does not answer.
    async fn ask(&mut self, at: usize, asked: Examine) -> Result<Examined, String> {
        let Some(reached) = &mut self.links[at] else {
            return Err("it was not reached".into());
        };
        let body = Some(to_agent::Body::Examine(asked));
        let asking = async {
            let bytes = control::encode(&ToAgent { body });
            let sent = reached.link.writer.write(&bytes).await;
            sent.map_err(|error| error.to_string())?;
            loop {
                let read = reached.link.reader.read().await;
                match read.map_err(|error| error.to_string())?.0.body {
                    Some(from_agent::Body::Examined(examined)) => return Ok(examined),
                    Some(from_agent::Body::Refused(refused)) => return Err(refused.message),
                    _ => {}
                }
            }
        };
        tokio::select! {
            answer = tokio::time::timeout(ANSWER_TIMEOUT, asking) => answer.unwrap_or_else(|_| {
                Err(format!("no answer within {} s; see the agent's log", ANSWER_TIMEOUT.as_secs()))
            }),
            () = self.cancel.cancelled() => Err("interrupted".into()),
        }
    }

    async fn measure_paths(&mut self) {
        for from in 0..self.hosts.len() {
            for to in from + 1..self.hosts.len() {
                if self.cancel.is_cancelled() {
                    return;
                }
                let (a, b) = (&self.hosts[from], &self.hosts[to]);
                let found = match self.unusable(from, to) {
                    Some(error) => Err(error),
                    None => self.measure(from, to).await,
                };
                let pair = found
                    .map(|runs| forecast(&self.report.hosts[from], &self.report.hosts[to], runs));
                self.report
                    .pairs
                    .push(pair.unwrap_or_else(|error| Forecast {
                        sender: a.name.clone(),
                        receiver: b.name.clone(),
                        error: Some(error),
                        ..Forecast::default()
                    }));
            }
        }
    }

    /// Why no transfer is tried between two hosts.
    fn unusable(&self, from: usize, to: usize) -> Option<String> {
        let is_agent = matches!(self.hosts[from].reach, Reach::Attached { .. });
        if is_agent && self.hosts[from].reach == self.hosts[to].reach {
            return Some("one agent cannot send to itself; start a second one".into());
        }
        let failed = [from, to].map(|at| &self.report.hosts[at]);
        let failed = failed.into_iter().find(|host| host.error.is_some())?;
        Some(format!("{} was not examined", failed.node))
    }

    async fn measure(&mut self, from: usize, to: usize) -> Result<Runs, String> {
        let (a, b) = (&self.hosts[from], &self.hosts[to]);
        let (a_name, b_name) = (a.name.clone(), b.name.clone());
        self.step(format!("{a_name} to {b_name}: one stream"));
        let one = self.memory(from, to, Some(1), MEMORY_FIRST).await?;
        self.step(format!(
            "{a_name} to {b_name}: as many streams as a copy takes"
        ));
        let bytes = one.bits_per_second / 8.0 * MEMORY_SECONDS;
        let many = self.memory(from, to, None, bytes).await?;
        let has_folder = self.hosts[from].folder.is_some() || self.hosts[to].folder.is_some();
        let files = match has_folder && !self.cancel.is_cancelled() {
            true => Some(self.files(from, to, many.bits_per_second).await?),
            false => None,
        };
        Ok(Runs {
            one_stream: Some(one),
            streams: Some(many),
            files,
        })
    }

    fn request(
        &self,
        from: usize,
        to: usize,
        (source, sink): (Object, Object),
        options: Options,
    ) -> Request {
        let (a, b) = (&self.hosts[from], &self.hosts[to]);
        Request {
            label: None,
            nodes: vec![
                node(a, vec![object(source)], Vec::new()),
                node(b, Vec::new(), vec![object(sink)]),
            ],
            mapping: Mapping::Trees {
                sources: Sources::Auto,
                destinations: Destinations::Copies,
            },
            links: Vec::new(),
            options,
        }
    }

    /// Transfers of memory, each cancelled once its rate is known, until one took long enough for that.
    async fn memory(
        &self,
        from: usize,
        to: usize,
        streams: Option<u32>,
        mut bytes: f64,
    ) -> Result<RunReport, String> {
        let options = Options {
            streams,
            ..self.options.clone()
        };
        let mut tries = 0;
        loop {
            let source = Object::Memory(bytes.max(MEMORY_FIRST) as u64);
            let request = self.request(from, to, (source, Object::Null), options.clone());
            let (report, paces) = self.carry_out(request, true).await;
            tries += 1;
            let is_done = report.outcome == Outcome::Done;
            let last = paces.last().filter(|last| last.bits_per_second > 0.0);
            let is_measured = report.outcome == Outcome::Cancelled && last.is_some();
            if self.cancel.is_cancelled() || !is_done && !is_measured {
                return Err(report
                    .error
                    .unwrap_or_else(|| "no byte was received".into()));
            }
            let last = last.filter(|_| is_measured);
            let run = RunReport::of(&report, &self.hosts[from].name, last);
            if is_measured || tries == TRIES_MAX {
                return Ok(run);
            }
            bytes = run.bits_per_second / 8.0 * MEMORY_SECONDS;
        }
    }

    /// A transfer, and what it said of itself.
    ///
    /// * `is_cut`: it is cancelled once its rate stays.
    async fn carry_out(&self, request: Request, is_cut: bool) -> (Report, Paces) {
        let (events, mut incoming) = unbounded_channel();
        let own = Cancel::new();
        let running = run(request, events, own.clone(), Members::new());
        tokio::pin!(running);
        let mut paces = Paces::default();
        loop {
            tokio::select! {
                report = &mut running => return (report, paces),
                Some(event) = incoming.recv() => {
                    if let Event::Progress { seconds, received_bytes: bytes, total_bytes, bits_per_second, .. } = event
                        && !own.is_cancelled()
                        && bytes < total_bytes
                    {
                        paces.note(Pace { seconds, bytes, bits_per_second });
                        if is_cut && paces.is_settled() {
                            own.cancel();
                        }
                    }
                }
                () = self.cancel.cancelled(), if !own.is_cancelled() => own.cancel(),
            }
        }
    }

    /// A transfer of a file, of memory where the sender has no folder, to nowhere where the receiver has none.
    async fn files(&mut self, from: usize, to: usize, rate: f64) -> Result<RunReport, String> {
        let (a, b) = (&self.hosts[from], &self.hosts[to]);
        let (a_name, b_name) = (a.name.clone(), b.name.clone());
        let folders = [a.folder.clone(), b.folder.clone()];
        let mut bytes = rate / 8.0 * FILE_SECONDS;
        let mut free = u64::MAX;
        for at in [from, to] {
            let host = &self.report.hosts[at];
            if let Some(error) = &host.disk_error {
                return Err(format!("{}: {error}", host.node));
            }
            if let Some(disk) = &host.disk {
                bytes = bytes.min(disk.write_bytes_per_second as f64 * FILE_SECONDS);
                free = free.min(disk.free_bytes / FREE_PART);
            }
        }
        let bytes = (bytes.clamp(FILE_MIN, FILE_MAX) as u64).min(free);
        self.step(format!(
            "{a_name} to {b_name}: a file of {}",
            ropewalk_model::format_bytes(bytes)
        ));
        let roles = [format!("{from}-{to}"), format!("{from}-{to}-copy")];
        for ((at, folder), (role, bytes)) in [from, to]
            .into_iter()
            .zip(&folders)
            .zip(roles.iter().zip([bytes, 0]))
        {
            let Some(folder) = folder else { continue };
            let asked = Examine {
                folder: folder.clone(),
                file: self.file_name(role),
                file_bytes: bytes,
            };
            let answer = self.ask(at, asked).await?;
            if !answer.error.is_empty() {
                return Err(format!("{}: {}", self.hosts[at].name, answer.error));
            }
        }
        let [from_folder, to_folder] = folders;
        let source = from_folder.map_or(Object::Memory(bytes), |folder| {
            self.file_in(&folder, &roles[0])
        });
        let sink = to_folder.map_or(Object::Null, |folder| self.file_in(&folder, &roles[1]));
        let request = self.request(from, to, (source, sink), self.options.clone());
        let (report, paces) = self.carry_out(request, false).await;
        // Of a shorter one the last rate is that of its beginning.
        let last = paces.last().filter(|_| paces.has_rate());
        match report.outcome {
            Outcome::Done => Ok(RunReport::of(&report, &a_name, last)),
            _ => Err(report
                .error
                .unwrap_or_else(|| "the file was not copied".into())),
        }
    }
}

fn node(host: &DoctorHost, sources: Vec<ObjectRequest>, sinks: Vec<ObjectRequest>) -> NodeRequest {
    NodeRequest {
        name: host.name.clone(),
        reach: host.reach.clone(),
        sources,
        sinks,
        up: None,
        down: None,
        interfaces: Vec::new(),
    }
}
