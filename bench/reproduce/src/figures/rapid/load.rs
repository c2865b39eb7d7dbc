//! What else the receiver's processor has to do: infinite loops, loops that start and stop, an isosurface extraction.
//!
//! Loads are threads of this program, on the receiver's processor and in its session, so that the scheduler weighs them as it
//! weighs the receiver.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::marching::{Extraction, Volume, classify};
use crate::sys;

/// A loop that sees the clock jump further than this was off its processor. A look at the clock takes some 30 ns.
const AWAY: Duration = Duration::from_micros(40);
/// Points along each side of the volume: 8 MB, a second of work.
const SIDE: usize = 128;
/// Bytes read or written at once; a row of the volume divides it, and it divides the volume.
const READ_LEN: usize = 16 << 10;
/// Slices that are remembered of each loop.
const SLICES_MAX: usize = 100_000;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// So many infinite loops: the paper's synthetic workload.
    Loops(u32),
    /// An isosurface extraction, again and again: the paper's visualization workload.
    Isosurface,
    /// Infinite loops of which each second, by chance, none to so many run.
    Changing(u32),
}

impl Load {
    /// For keys and tables.
    pub fn name(self) -> String {
        match self {
            Self::Loops(0) => "no load".into(),
            Self::Loops(1) => "1 loop".into(),
            Self::Loops(loops) => format!("{loops} loops"),
            Self::Isosurface => "isosurface".into(),
            Self::Changing(most) => format!("0 to {most} loops, new each second"),
        }
    }

    /// Starts it on a processor; `scratch` is for files of the isosurface extraction.
    pub fn start(self, core: usize, scratch: &Path) -> Result<Running> {
        let mut running = Running {
            began: Instant::now(),
            stopped: Arc::default(),
            loops: Vec::new(),
            surface: None,
            changer: None,
        };
        let (Self::Loops(loops) | Self::Changing(loops)) = self else {
            running.surface = Some(running.extract(core, scratch)?);
            return Ok(running);
        };
        let may_run = Arc::new(AtomicU32::new(loops));
        for number in 0..loops {
            running.loops.push(running.spin(core, number, &may_run)?);
        }
        if let Self::Changing(most) = self {
            let wakened: Vec<_> = running.loops.iter().map(|l| l.thread().clone()).collect();
            let stopped = running.stopped.clone();
            running.changer = Some(std::thread::spawn(move || {
                for second in 0_u64.. {
                    may_run.store(loops_in(second, most), Ordering::Release);
                    wakened.iter().for_each(std::thread::Thread::unpark);
                    let until = Instant::now() + Duration::from_secs(1);
                    while Instant::now() < until {
                        if stopped.load(Ordering::Acquire) {
                            return;
                        }
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
            }));
        }
        Ok(running)
    }
}

/// How many loops run in a second: 0 to `most`, the same for everybody who asks.
fn loops_in(second: u64, most: u32) -> u32 {
    // SplitMix64 of the second's number.
    let mut x = second.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) % u64::from(most + 1)) as u32
}

/// A stretch of one loop's running.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Slice {
    /// Since the load began.
    pub at_seconds: f64,
    /// How long.
    pub seconds: f64,
}

/// One phase of the extraction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Phase {
    pub name: String,
    /// Since the load began.
    pub at_seconds: f64,
    /// On the clock, and on the processor.
    pub seconds: f64,
    pub processor_seconds: f64,
}

/// What a load did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Trace {
    pub slices: Vec<Slice>,
    pub phases: Vec<Phase>,
}

/// A load at work.
pub(super) struct Running {
    began: Instant,
    stopped: Arc<AtomicBool>,
    loops: Vec<JoinHandle<Vec<Slice>>>,
    surface: Option<JoinHandle<Result<Trace>>>,
    changer: Option<JoinHandle<()>>,
}

impl Running {
    /// The zero of the trace's times.
    pub fn began(&self) -> Instant {
        self.began
    }

    fn spin(
        &self,
        core: usize,
        number: u32,
        may_run: &Arc<AtomicU32>,
    ) -> Result<JoinHandle<Vec<Slice>>> {
        let (began, stopped, may_run) = (self.began, self.stopped.clone(), may_run.clone());
        let run = move || {
            // Elsewhere it would be no load; the table would show that.
            let _ = sys::pin_thread(core);
            let mut slices = Slices::new(began);
            while !stopped.load(Ordering::Relaxed) {
                if may_run.load(Ordering::Relaxed) <= number {
                    std::thread::park_timeout(Duration::from_millis(500));
                }
                slices.tick();
            }
            slices.end()
        };
        let thread = std::thread::Builder::new().name(format!("loop {number}"));
        thread.spawn(run).context("cannot start a loop")
    }

    fn extract(&self, core: usize, scratch: &Path) -> Result<JoinHandle<Result<Trace>>> {
        let path = scratch.join("volume");
        let volume = Volume::joint(SIDE);
        let bytes: Vec<u8> = volume.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        let mesh = scratch.join("mesh");
        let (began, stopped) = (self.began, self.stopped.clone());
        let run = move || {
            sys::pin_thread(core)?;
            let mut phases = Phases {
                began,
                all: Vec::new(),
                slices: Slices::new(began),
            };
            while !stopped.load(Ordering::Relaxed) {
                extraction(&path, &mesh, &mut phases, &stopped)?;
            }
            Ok(Trace {
                slices: phases.slices.end(),
                phases: phases.all,
            })
        };
        let thread = std::thread::Builder::new().name("isosurface".into());
        thread.spawn(run).context("cannot start the extraction")
    }

    /// Ends it; says what it did.
    ///
    /// # Errors
    /// That of the extraction's files.
    pub fn stop(mut self) -> Result<Trace> {
        self.stopped.store(true, Ordering::Release);
        let mut trace = Trace::default();
        for thread in self.loops.drain(..) {
            thread.thread().unpark();
            trace.slices.extend(thread.join().unwrap_or_default());
        }
        if let Some(thread) = self.changer.take() {
            // A panic in it has been printed.
            let _ = thread.join();
        }
        if let Some(thread) = self.surface.take() {
            trace = thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        trace
            .slices
            .sort_by(|a, b| a.at_seconds.total_cmp(&b.at_seconds));
        Ok(trace)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
    }
}

/// Stretches of a thread's running, seen by looks at the clock that lie close together while it runs.
struct Slices {
    began: Instant,
    from: Instant,
    last: Instant,
    all: Vec<Slice>,
}

impl Slices {
    fn new(began: Instant) -> Self {
        let now = Instant::now();
        Self {
            began,
            from: now,
            last: now,
            all: Vec::new(),
        }
    }

    /// Looks at the clock.
    fn tick(&mut self) {
        let now = Instant::now();
        if now - self.last > AWAY {
            self.note();
            self.from = now;
        }
        self.last = now;
    }

    fn note(&mut self) {
        if self.all.len() < SLICES_MAX && self.last > self.from {
            self.all.push(Slice {
                at_seconds: (self.from - self.began).as_secs_f64(),
                seconds: (self.last - self.from).as_secs_f64(),
            });
        }
    }

    fn end(mut self) -> Vec<Slice> {
        self.note();
        self.all
    }
}

struct Phases {
    began: Instant,
    all: Vec<Phase>,
    slices: Slices,
}

impl Phases {
    fn run<T>(&mut self, name: &str, work: impl FnOnce(&mut Slices) -> Result<T>) -> Result<T> {
        let (from, processor) = (Instant::now(), sys::thread_seconds());
        self.slices.tick();
        let result = work(&mut self.slices);
        self.slices.tick();
        self.all.push(Phase {
            name: name.into(),
            at_seconds: (from - self.began).as_secs_f64(),
            seconds: from.elapsed().as_secs_f64(),
            processor_seconds: sys::thread_seconds() - processor,
        });
        result
    }
}

/// One extraction: the volume comes from the disk, the surface goes there.
fn extraction(
    volume: &PathBuf,
    mesh: &PathBuf,
    phases: &mut Phases,
    stopped: &AtomicBool,
) -> Result<()> {
    let volume = phases.run("read", |slices| {
        let mut file = File::open(volume)?;
        // Else only the first time would be a time of waiting for the disk.
        sys::forget_pages(&file);
        let mut values = Vec::with_capacity(SIDE * SIDE * SIDE);
        let mut part = vec![0; READ_LEN];
        while values.len() < SIDE * SIDE * SIDE {
            file.read_exact(&mut part)?;
            // Four of them, as chunks are.
            let numbers = part.chunks_exact(4);
            values
                .extend(numbers.map(|four| f32::from_le_bytes(std::array::from_fn(|at| four[at]))));
            slices.tick();
        }
        Ok(Volume { side: SIDE, values })
    })?;
    let layers = phases.run("classify", |slices| {
        let layers = (0..SIDE - 1).map(|z| classify(&volume, z, || slices.tick()));
        Ok(layers.collect::<Vec<_>>())
    })?;
    let surface = phases.run("extract", |slices| {
        let mut extraction = Extraction::new(&volume);
        for (z, cells) in layers.iter().enumerate() {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            extraction.add(z, cells, || slices.tick());
        }
        Ok(extraction.mesh)
    })?;
    phases.run("write", |slices| {
        let mut file = File::create(mesh)?;
        let mut bytes = Vec::with_capacity(READ_LEN * 2);
        let vertices = surface.vertices.iter().flatten().map(|x| x.to_le_bytes());
        let triangles = surface.triangles.iter().flatten().map(|x| x.to_le_bytes());
        for four in vertices.chain(triangles) {
            bytes.extend(four);
            if bytes.len() >= READ_LEN {
                file.write_all(&bytes)?;
                bytes.clear();
                slices.tick();
            }
        }
        file.write_all(&bytes)?;
        file.sync_data()?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The load that changes is the same in every run, and takes all its values.
    #[test]
    fn chance_is_seeded() {
        let seconds: Vec<u32> = (0..40).map(|second| loops_in(second, 2)).collect();
        let of = |loops: u32| seconds.iter().filter(|now| **now == loops).count();
        assert!((0..=2).all(|loops| of(loops) >= 6), "{seconds:?}");
        assert!(
            seconds
                .windows(4)
                .any(|few| few.iter().any(|now| *now != few[0]))
        );
    }

    /// Loops run, notice when they are taken off their processor, and end; the extraction goes through its phases.
    #[test]
    fn loads_run_and_end() {
        let scratch = tempfile::tempdir().unwrap();
        let running = Load::Loops(2).start(0, scratch.path()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let trace = running.stop().unwrap();
        assert!(
            trace.slices.len() >= 2,
            "two loops on one processor take turns"
        );
        let running = Load::Isosurface.start(0, scratch.path()).unwrap();
        while !scratch.path().join("mesh").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let trace = running.stop().unwrap();
        let names: Vec<&str> = trace.phases.iter().map(|phase| &*phase.name).collect();
        assert_eq!(names[..4], ["read", "classify", "extract", "write"]);
    }
}
