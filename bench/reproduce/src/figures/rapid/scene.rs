//! Two hosts, a receiver that shares its processor with a load, and one transfer between them.
//!
//! Processor 0 has the receiving agent (its data thread, its monitor, everything) and the load; processor 1 has the sender, the
//! master, the network between them and this program.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ropewalk_lab::trunk::{LinkSpec, Loss, QueueLimit, TrunkSpec};
use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec, Topology};
use ropewalk_proto::report::{BlastReport, Report};
use serde::{Deserialize, Serialize};

use super::ends;
use super::load::{Load, Running, Trace};
use crate::bench::Site;
use crate::network::with_program;
use crate::ropewalk::{Agents, PORT, Place, Seat, words};

/// The receiver's processor, and its load's.
pub(super) const RECEIVING: usize = 0;
/// Everybody else's.
pub(super) const SENDING: usize = 1;
/// Ethernet's framing of a packet, preamble and gap included.
const FRAMING_BYTES: u32 = 38;

/// What lies between the hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// A pair of interfaces without a cap.
    Direct,
    /// The lab's trunk, with a queue of one bandwidth-delay product of 50 ms at least.
    Trunk {
        bits_per_second: u64,
        round_trip_ms: u64,
        loss: f64,
    },
}

impl Way {
    pub fn round_trip_ms(self) -> u64 {
        match self {
            Self::Direct => 0,
            Self::Trunk { round_trip_ms, .. } => round_trip_ms,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Direct => "RTT 0".into(),
            Self::Trunk {
                bits_per_second,
                round_trip_ms,
                loss,
            } => {
                let rate = bits_per_second / 1_000_000;
                let loss = match loss {
                    0.0 => String::new(),
                    loss => format!(", loss {} %", loss * 100.0),
                };
                format!("RTT {round_trip_ms} ms, {rate} Mbit/s{loss}")
            }
        }
    }
}

/// Where everything happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scene {
    pub mtu: u32,
    pub way: Way,
    pub load: Load,
    pub bytes: u64,
    /// Times that the sink hashes what it is given.
    pub work: u32,
    /// Whether files in memory are copied, instead of memory to memory.
    pub files: bool,
    pub plain: bool,
    /// Whether the receiver may ask for soft real time.
    pub soft_real_time: bool,
    /// By how much what the monitor says is held back.
    pub feedback_delay_ms: u32,
}

impl Scene {
    pub fn new(mtu: u32, load: Load, bytes: u64) -> Self {
        Self {
            mtu,
            way: Way::Direct,
            load,
            bytes,
            work: 0,
            files: false,
            plain: false,
            soft_real_time: true,
            feedback_delay_ms: 0,
        }
    }

    /// For keys of points.
    pub fn name(&self) -> String {
        let mut name = format!(
            "MTU {}, {}, {}, {} MiB",
            self.mtu,
            self.way.name(),
            self.load.name(),
            self.bytes >> 20
        );
        for (holds, word) in [
            (self.files, ", files"),
            (self.plain, ", plain"),
            (!self.soft_real_time, ", no real time"),
            // How much it takes differs by machine.
            (self.work > 0, ", slowed"),
        ] {
            if holds {
                name += word;
            }
        }
        if self.feedback_delay_ms > 0 {
            name += &format!(", feedback {} ms late", self.feedback_delay_ms);
        }
        name
    }

    /// The lab, with this congestion control.
    pub fn lab(&self, site: &Site, control: &str) -> Result<Lab> {
        let builder = match self.way {
            Way::Direct => {
                let host = |name: &str| {
                    let nic = NicSpec {
                        mtu: Some(self.mtu),
                        ..NicSpec::uncapped()
                    };
                    HostSpec::new(name).nic(nic)
                };
                LabBuilder::new().hosts([host("sender"), host("receiver")])
            }
            Way::Trunk {
                bits_per_second,
                round_trip_ms,
                loss,
            } => {
                let link = LinkSpec {
                    overhead_bytes: FRAMING_BYTES,
                    ..LinkSpec::rate_bits(bits_per_second)
                }
                .delay(Duration::from_micros(round_trip_ms * 500));
                let product = bits_per_second / 8 * round_trip_ms.max(50) / 1000;
                let queue = QueueLimit::Bytes(product);
                let trunk = TrunkSpec {
                    a_to_b: link.clone().queue(queue).loss(Loss::independent(loss)),
                    b_to_a: link.queue(queue),
                    ..TrunkSpec::default()
                };
                LabBuilder::from(Topology::pair_over(trunk.mtu(self.mtu)))
            }
        };
        with_program(builder, site)
            .congestion_control(control)
            .build()
            .context("cannot build the lab")
    }

    /// Begins the load.
    pub fn load(&self, site: &Site) -> Result<Running> {
        self.load.start(RECEIVING, &site.scratch)
    }

    /// Moves the bytes once, with the load.
    pub fn run(&self, site: &Site, lane: Lane) -> Result<Run> {
        if self.work > 0 || self.feedback_delay_ms > 0 {
            return self.run_ends(site, lane);
        }
        let (run, (), _) = self.watch(site, lane, |_, _, _| ())?;
        Ok(run)
    }

    /// The same; `watch` runs beside it with the lab, the receiver's process number and the load, and has to see by itself when the
    /// transfer is over. With what the load did.
    pub fn watch<T: Send>(
        &self,
        site: &Site,
        lane: Lane,
        watch: impl FnOnce(&Lab, u32, &Running) -> T + Send,
    ) -> Result<(Run, T, Trace)> {
        let lab = self.lab(site, lane.control())?;
        let mut agents = Agents::new(site)?;
        let root = [format!("{}:rw", site.scratch.display()), "/data:rw".into()];
        for (host, core, may_precede) in [
            ("sender", SENDING, true),
            ("receiver", RECEIVING, self.soft_real_time),
        ] {
            agents.start_seated(&lab, host, Seat { core, may_precede }, &root)?;
        }
        let (source, sink) = match self.files {
            true => {
                make_file(&lab, self.bytes)?;
                ("/data/file".to_owned(), "/data/copy".to_owned())
            }
            false => (format!("mem:{}", self.bytes), "null:".to_owned()),
        };
        let bytes = self.bytes;
        let spec = agents.spec(&format!(
            "writer sender:{PORT} \"{source}\" 0 0+{bytes}\nreader receiver:{PORT} \"{sink}\" 0 0+{bytes}\n"
        ))?;
        let mut arguments = words(&format!("transfer {spec}"));
        if !matches!(lane, Lane::Tcp(_)) {
            arguments.extend(words(&format!("--mtu {}", self.mtu)));
        }
        arguments.extend(lane.words());
        if self.plain {
            arguments.push("--plain".into());
        }
        let place = Place::Seated(
            &lab,
            "sender",
            Seat {
                core: SENDING,
                may_precede: true,
            },
        );
        let receiver = agents.pid("receiver");
        let running = self.load(site)?;
        let (moved, seen) = std::thread::scope(|scope| {
            let watching = scope.spawn(|| watch(&lab, receiver, &running));
            let moved = agents.run_once(place, &arguments, self.deadline());
            let seen = watching
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (moved, seen)
        });
        let trace = running.stop()?;
        let mut run = Run::of(&moved?.report)?;
        if let Way::Trunk { .. } = self.way {
            run.invalid = lab.trunk(0).validity()?.reasons;
        }
        Ok((run, seen, trace))
    }

    /// Moves the bytes between two bare ends of a lane: agents have no sinks that work and no late monitors.
    pub fn run_ends(&self, site: &Site, lane: Lane) -> Result<Run> {
        ensure!(!self.files, "bare ends of a lane move memory, not files");
        let lab = self.lab(site, lane.control())?;
        let seat = |core, may_precede| Seat { core, may_precede };
        let place = |host, seat| Place::Seated(&lab, host, seat);
        let end = ends::End {
            program: &site.bench,
            lane,
            mtu: self.mtu,
            plain: self.plain,
            bytes: self.bytes,
            work: self.work,
            late_ms: self.feedback_delay_ms,
        };
        let running = self.load(site)?;
        let moved = end.run(
            place("sender", seat(SENDING, true)),
            place("receiver", seat(RECEIVING, self.soft_real_time)),
            lab.address("sender"),
            self.deadline(),
        );
        running.stop()?;
        let mut run = moved?;
        if let Way::Trunk { .. } = self.way {
            run.invalid = lab.trunk(0).validity()?.reasons;
        }
        Ok(run)
    }

    /// Far beyond what any way of moving the bytes takes here, TCP with losses included.
    fn deadline(&self) -> Duration {
        Duration::from_secs(60 + (self.bytes >> 20))
    }

    /// Seconds that a run is expected to take, for the remaining time.
    pub fn expected_seconds(&self) -> f64 {
        const START: f64 = 1.2;
        let capacity = match self.way {
            Way::Direct => 3e9,
            Way::Trunk {
                bits_per_second, ..
            } => bits_per_second as f64 / 2.0,
        };
        START + self.bytes as f64 * 8.0 / capacity
    }
}

fn make_file(lab: &Lab, bytes: u64) -> Result<()> {
    let mut command = lab.command("sender", "head");
    command.args(["-c", &bytes.to_string(), "/dev/urandom"]);
    let file = std::fs::File::create(lab.path_in("sender", "/data/file"))?;
    let status = command.stdout(file).status()?;
    ensure!(status.success(), "cannot make the file to send");
    Ok(())
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Lane {
    /// Fixed rate in bits per second; with a receive buffer of so many bytes, or the system's.
    Rbudp { rate: u64, buffer: Option<u64> },
    /// Watched by a monitor, below a rate.
    Rapid {
        monitor: &'static str,
        rate: Option<u64>,
    },
    /// One stream.
    Tcp(&'static str),
}

impl Lane {
    /// As published, with what the system gives.
    pub fn rbudp(rate: u64) -> Self {
        Self::Rbudp { rate, buffer: None }
    }

    pub fn rapid(monitor: &'static str, rate: u64) -> Self {
        Self::Rapid {
            monitor,
            rate: Some(rate),
        }
    }

    fn control(self) -> &'static str {
        match self {
            Self::Tcp(control) => control,
            _ => "cubic",
        }
    }

    fn words(self) -> Vec<String> {
        // In bytes: rates of bits must be whole bytes.
        let rate = |rate: u64| format!("{}B/s", rate / 8);
        let text = match self {
            Self::Rbudp { rate: bits, buffer } => {
                let buffer = buffer.map_or("auto".into(), |bytes| format!("{bytes}B"));
                let rate = rate(bits);
                format!("--lane rbudp --rate {rate} --receive-buffer {buffer}")
            }
            Self::Rapid {
                monitor,
                rate: bits,
            } => {
                let bound = bits.map_or(String::new(), |bits| format!(" --rate {}", rate(bits)));
                format!("--lane rapid --monitor {monitor}{bound}")
            }
            Self::Tcp(_) => "--lane tcp --streams 1".into(),
        };
        words(&text)
    }
}

/// One transfer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    /// From the first request to the last safe byte.
    pub seconds: f64,
    /// Before that.
    pub start_seconds: f64,
    pub bytes: u64,
    pub datagrams: u64,
    pub again: u64,
    pub blast: Option<BlastReport>,
    pub sender_processor_seconds: f64,
    pub receiver_processor_seconds: f64,
    /// Why the trunk's run does not count.
    pub invalid: Vec<String>,
}

impl Run {
    fn of(report: &Report) -> Result<Self> {
        let pair = report.pairs.first().context("no pair moved bytes")?;
        let processor = |name: &str| {
            let node = report.nodes.iter().find(|node| node.node == name);
            node.map_or(0.0, |node| node.processor_seconds)
        };
        Ok(Self {
            seconds: report.seconds - report.start_seconds,
            start_seconds: report.start_seconds,
            bytes: report.delivered_bytes,
            datagrams: pair.datagrams,
            again: pair.datagrams_again,
            blast: pair.blast.clone(),
            sender_processor_seconds: processor("sender"),
            receiver_processor_seconds: processor("receiver"),
            invalid: Vec::new(),
        })
    }

    pub fn megabits(&self) -> f64 {
        self.bytes as f64 * 8e-6 / self.seconds
    }

    /// Processor time of the monitor, percent of one processor while the bytes moved.
    pub fn monitor_percent(&self) -> Option<f64> {
        let blast = self.blast.as_ref()?;
        Some(blast.monitor_processor_seconds / self.seconds * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys tell apart everything that changes a result.
    #[test]
    fn names_differ() {
        let base = Scene::new(1500, Load::Loops(2), 256 << 20);
        let trunk = |loss| Way::Trunk {
            bits_per_second: 100_000_000,
            round_trip_ms: 80,
            loss,
        };
        let others = [
            base,
            Scene { mtu: 9000, ..base },
            Scene {
                way: trunk(0.0),
                ..base
            },
            Scene {
                way: trunk(0.01),
                ..base
            },
            Scene {
                load: Load::Changing(2),
                ..base
            },
            Scene {
                load: Load::Isosurface,
                ..base
            },
            Scene {
                bytes: 1 << 20,
                ..base
            },
            Scene { work: 3, ..base },
            Scene {
                files: true,
                ..base
            },
            Scene {
                feedback_delay_ms: 50,
                ..base
            },
            Scene {
                plain: true,
                ..base
            },
            Scene {
                soft_real_time: false,
                ..base
            },
        ];
        let names: std::collections::BTreeSet<String> = others.iter().map(Scene::name).collect();
        assert_eq!(names.len(), others.len());
        assert_eq!(
            others[3].name(),
            "MTU 1500, RTT 80 ms, 100 Mbit/s, loss 1 %, 2 loops, 256 MiB"
        );
    }

    /// Lanes are options of the command; rates are whole bytes.
    #[test]
    fn lanes() {
        let words = |lane: Lane| lane.words().join(" ");
        assert_eq!(
            words(Lane::rbudp(1_600_000_000)),
            "--lane rbudp --rate 200000000B/s --receive-buffer auto"
        );
        assert_eq!(
            words(Lane::rapid("ule", 8_000_004)),
            "--lane rapid --monitor ule --rate 1000000B/s"
        );
        assert_eq!(words(Lane::Tcp("bbr")), "--lane tcp --streams 1");
    }
}
