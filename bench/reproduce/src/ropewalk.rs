//! The program under test: standing agents, a master command, its events and report.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ropewalk_lab::Lab;
use ropewalk_proto::report::{Event, Outcome, Report};
use serde::{Deserialize, Serialize};

use crate::bench::Site;
use crate::machine;
use crate::process::{Ended, Process};
use crate::sys;

/// Port of agents in hosts of a lab, where nobody else listens.
pub(crate) const PORT: u16 = 7420;

/// An agent listens within milliseconds; a loaded machine may take longer.
const AGENT_START_MAX: Duration = Duration::from_secs(20);

/// Where a process runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'l> {
    /// On this machine.
    Machine,
    /// In a host of a lab.
    Host(&'l Lab, &'l str),
    /// In a host of a lab, on a processor of its own choice.
    Seated(&'l Lab, &'l str, Seat),
}

/// Which processor a process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The only one, counted from 0.
    pub core: usize,
    /// Whether it may ask for precedence over others (soft real time, less niceness).
    pub may_precede: bool,
}

impl Place<'_> {
    /// A command for this place.
    pub fn command(self, program: &Path) -> Command {
        match self {
            Self::Machine => Command::new(program),
            Self::Host(lab, host) => lab.command(host, program),
            Self::Seated(lab, host, seat) => {
                let mut command = lab.command(host, program);
                sys::pin(&mut command, seat.core);
                if !seat.may_precede {
                    sys::renounce_precedence(&mut command);
                }
                command
            }
        }
    }
}

/// Standing agents and what is needed to talk to them.
#[derive(Debug)]
pub(crate) struct Agents {
    program: PathBuf,
    scratch: PathBuf,
    token_file: PathBuf,
    runs_programs: bool,
    forwards: Option<String>,
    agents: Vec<Agent>,
}

/// One standing agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// As it was called when started.
    pub name: String,
    /// `HOST:PORT` as masters write it.
    pub address: String,
    process: Process,
    idle_resident_bytes: u64,
}

/// An agent that has been stopped.
#[derive(Debug)]
pub(crate) struct Paused(u32);

impl Paused {
    /// Makes it go on. The agent must not have been waited for.
    pub fn go_on(self) {
        sys::signal(self.0, libc::SIGCONT);
    }
}

/// What one agent used from its start to its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgentUse {
    /// As it was called when started.
    pub name: String,
    /// User and system time, start and end included.
    pub processor_seconds: f64,
    /// Resident memory while it waited for a master.
    pub idle_resident_bytes: u64,
    /// Largest resident memory.
    pub resident_bytes_max: u64,
}

/// One finished transfer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Moved {
    /// The master's command line.
    pub command: Vec<String>,
    /// Its exit status.
    pub exit: i32,
    /// From its start to its end.
    pub command_seconds: f64,
    /// The master's user and system time.
    pub master_processor_seconds: f64,
    /// The agents, when they were stopped afterwards.
    pub agents: Vec<AgentUse>,
    /// The report it printed.
    pub report: Report,
}

impl Moved {
    /// User and system time of master and agents together.
    pub fn processor_seconds(&self) -> f64 {
        let agents: f64 = self
            .agents
            .iter()
            .map(|agent| agent.processor_seconds)
            .sum();
        agents + self.master_processor_seconds
    }

    /// From agents reachable to the last safe byte, as a rate.
    pub fn megabits(&self) -> f64 {
        self.report.bits_per_second / 1e6
    }

    /// The transfer itself when every byte arrived.
    ///
    /// # Errors
    /// The outcome and error of the report.
    pub fn complete(self) -> Result<Self> {
        let report = &self.report;
        if report.outcome != Outcome::Done || report.delivered_bytes != report.wanted_bytes {
            bail!(
                "transfer ended {:?} with {} of {} bytes: {}",
                report.outcome,
                report.delivered_bytes,
                report.wanted_bytes,
                report.error.as_deref().unwrap_or("no error reported")
            );
        }
        Ok(self)
    }
}

impl Agents {
    /// Makes a token; no agent runs yet.
    pub fn new(site: &Site) -> Result<Self> {
        let token_file = site.scratch.join("token");
        if !token_file.exists() {
            // Guards transfers of a measurement against accidents, not secrets.
            let token: String = (0..64)
                .map(|digit| char::from(b"0123456789abcdef"[digit * 7 % 16]))
                .collect();
            let mut file = fs::OpenOptions::new()
                .create_new(true)
                .write(true)
                .mode(0o600)
                .open(&token_file)
                .with_context(|| format!("cannot write {}", token_file.display()))?;
            file.write_all(token.as_bytes())?;
        }
        Ok(Self {
            program: site.ropewalk.clone(),
            scratch: site.scratch.clone(),
            token_file,
            runs_programs: false,
            forwards: None,
            agents: Vec::new(),
        })
    }

    /// Agents that are started from now on run programs of masters.
    pub fn running_programs(self) -> Self {
        Self {
            runs_programs: true,
            ..self
        }
    }

    /// Agents that are started from now on let tunnels connect to this `HOST:PORT`.
    pub fn forwarding(self, target: &str) -> Self {
        Self {
            forwards: Some(target.to_owned()),
            ..self
        }
    }

    /// With another program in the place of `ropewalk`.
    pub fn with_program(self, program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            ..self
        }
    }

    /// Starts an agent that serves these folders (`DIR` or `DIR:rw`); `listen` is an address and port.
    pub fn start(
        &mut self,
        place: Place<'_>,
        name: &str,
        listen: &str,
        roots: &[String],
    ) -> Result<()> {
        let mut command = place.command(&self.program);
        command
            .args(["agent", "--listen", listen, "--token-file"])
            .arg(&self.token_file);
        if self.runs_programs {
            command.arg("--run-programs");
        }
        if let Some(target) = &self.forwards {
            command.args(["--forward", target]);
        }
        let scratch = self.scratch.display().to_string();
        let none = [scratch];
        let roots = if roots.is_empty() { &none[..] } else { roots };
        for root in roots {
            command.args(["--root", root]);
        }
        let process = Process::start(command)?;
        let line = process.line(AGENT_START_MAX)?;
        let Some(address) = line
            .as_deref()
            .and_then(|line| line.strip_prefix("listening on "))
        else {
            let ended = process.stop()?;
            bail!(
                "agent {name} does not listen: {} {}",
                line.unwrap_or_default(),
                ended.errors.trim()
            );
        };
        let address = match place {
            Place::Machine => address.to_owned(),
            Place::Host(_, host) | Place::Seated(_, host, _) => {
                let port = address.rsplit_once(':').map_or("", |parts| parts.1);
                format!("{host}:{port}")
            }
        };
        let idle_resident_bytes = status(&process, "VmRSS");
        self.agents.push(Agent {
            name: name.into(),
            address,
            process,
            idle_resident_bytes,
        });
        Ok(())
    }

    /// Starts an agent on this machine's loopback, at a port the system chooses.
    pub fn start_local(&mut self, name: &str, roots: &[String]) -> Result<()> {
        self.start(Place::Machine, name, "127.0.0.1:0", roots)
    }

    /// Starts an agent in a host of a lab, at [`PORT`].
    pub fn start_in(&mut self, lab: &Lab, host: &str, roots: &[String]) -> Result<()> {
        self.start(
            Place::Host(lab, host),
            host,
            &format!("0.0.0.0:{PORT}"),
            roots,
        )
    }

    /// Starts an agent on one processor of a host of a lab, at [`PORT`].
    pub fn start_seated(
        &mut self,
        lab: &Lab,
        host: &str,
        seat: Seat,
        roots: &[String],
    ) -> Result<()> {
        let place = Place::Seated(lab, host, seat);
        self.start(place, host, &format!("0.0.0.0:{PORT}"), roots)
    }

    /// The process number of an agent.
    ///
    /// # Panics
    /// When none was started under that name.
    pub fn pid(&self, name: &str) -> u32 {
        let agent = self.agents.iter().find(|agent| agent.name == name);
        agent
            .unwrap_or_else(|| panic!("agent {name} was started"))
            .process
            .pid()
    }

    /// The `HOST:PORT` of an agent.
    ///
    /// # Panics
    /// When none was started under that name.
    pub fn address(&self, name: &str) -> &str {
        let agent = self.agents.iter().find(|agent| agent.name == name);
        &agent
            .unwrap_or_else(|| panic!("agent {name} was started"))
            .address
    }

    /// Kills an agent as `kill -9` does.
    pub fn kill(&mut self, name: &str) -> Result<()> {
        let position = self.agents.iter().position(|agent| agent.name == name);
        let position = position.with_context(|| format!("no agent {name} runs"))?;
        self.agents.remove(position).process.kill().map(drop)
    }

    /// Stops an agent (SIGSTOP) until [`Paused::go_on`]; the caller calls it before the agent's end.
    pub fn pause(&self, name: &str) -> Result<Paused> {
        let agent = self.agents.iter().find(|agent| agent.name == name);
        let pid = agent
            .with_context(|| format!("no agent {name} runs"))?
            .process
            .pid();
        sys::signal(pid, libc::SIGSTOP);
        Ok(Paused(pid))
    }

    /// Writes a specification file where hosts of a lab see it.
    pub fn spec(&self, text: &str) -> Result<String> {
        self.spec_named("spec.cep", text)
    }

    /// As [`spec`](Self::spec), beside others.
    pub fn spec_named(&self, name: &str, text: &str) -> Result<String> {
        let path = self.scratch.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.display().to_string())
    }

    /// Starts a master command, with `--json` and the token; its words, and the process that prints events.
    pub fn start_master(
        &self,
        place: Place<'_>,
        arguments: &[String],
    ) -> Result<(Vec<String>, Process)> {
        // What one run has shown must not help the next.
        let speeds = ["--speeds", "off"].map(str::to_owned);
        self.start_command(place, &[arguments, &speeds].concat())
    }

    /// As [`start_master`](Self::start_master), for commands that remember nothing.
    pub fn start_command(
        &self,
        place: Place<'_>,
        arguments: &[String],
    ) -> Result<(Vec<String>, Process)> {
        let mut command = place.command(&self.program);
        command.args(arguments);
        command.arg("--json").arg("--token-file");
        command.arg(&self.token_file);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<String> = words
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        Ok((words, Process::start(command)?))
    }

    /// Runs a master command (`copy ...` or `transfer ...`) to its end; `--json` and the token are added. `watch` sees every
    /// event as it arrives, with the agents to act upon.
    ///
    /// Whatever the outcome, it is in the report; [`Moved::complete`] makes anything but success an error.
    pub fn run(
        &mut self,
        place: Place<'_>,
        arguments: &[String],
        deadline: Duration,
        mut watch: impl FnMut(&mut Self, &Event) -> Result<()>,
    ) -> Result<Moved> {
        let (words, process) = self.start_master(place, arguments)?;
        let until = Instant::now() + deadline;
        let mut last = None;
        let left = || until.saturating_duration_since(Instant::now());
        while let Some(line) = process.line(left()).context("the transfer is stuck")? {
            let event = parse_event(&line)?;
            watch(self, &event)?;
            if let Event::Ended { report } = event {
                last = Some(*report);
            }
        }
        let ended: Ended = process.finish(left().max(Duration::from_secs(5)))?;
        let Some(report) = last else {
            bail!(
                "`{}` ended with {} and no report: {}",
                words.join(" "),
                ended.status,
                ended.errors.trim()
            );
        };
        Ok(Moved {
            command: words,
            exit: ended.status.code().unwrap_or(-1),
            command_seconds: ended.seconds,
            master_processor_seconds: ended.processor_seconds,
            agents: Vec::new(),
            report,
        })
    }

    /// Runs a master command that must move everything, stops the agents and says what they used.
    pub fn run_once(
        mut self,
        place: Place<'_>,
        arguments: &[String],
        deadline: Duration,
    ) -> Result<Moved> {
        let moved = self.run(place, arguments, deadline, |_, _| Ok(()))?;
        let agents = self.stop()?;
        let moved = Moved { agents, ..moved };
        moved.complete()
    }

    /// Stops all agents and says what each used.
    pub fn stop(self) -> Result<Vec<AgentUse>> {
        let mut used = Vec::new();
        for agent in self.agents {
            let resident_bytes_max = status(&agent.process, "VmHWM");
            let ended = agent.process.stop()?;
            used.push(AgentUse {
                name: agent.name,
                processor_seconds: ended.processor_seconds,
                idle_resident_bytes: agent.idle_resident_bytes,
                resident_bytes_max,
            });
        }
        Ok(used)
    }
}

/// Parses a line that `--json` printed.
///
/// # Errors
/// The line, when it is no event of this version.
pub(crate) fn parse_event(line: &str) -> Result<Event> {
    serde_json::from_str(line).with_context(|| format!("not an event: {line}"))
}

fn status(process: &Process, key: &str) -> u64 {
    machine::kilobytes(&format!("/proc/{}/status", process.pid()), key).unwrap_or(0)
}

/// Words of a command line.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report is found in the stream of events, and a line of another kind is an error that shows it.
    #[test]
    fn events() {
        let line = r#"{"event":"progress","seconds":1.5,"delivered_bytes":10,"total_bytes":20,"bits_per_second":8.0,"eta_seconds":null,"receivers":[],"senders":[]}"#;
        let event = parse_event(line).unwrap();
        assert!(
            matches!(
                event,
                Event::Progress {
                    delivered_bytes: 10,
                    ..
                }
            ),
            "{event:?}"
        );
        let error = format!("{:#}", parse_event("Segmentation fault").unwrap_err());
        assert!(error.contains("Segmentation fault"), "{error}");
    }
}
