//! The first exchange with a child that is to be an agent: its secret and roots, this program where it is asked for, and the
//! line that says the agent is ready.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::preface;
use ropewalk_proto::version::version;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::ranks::Seat;
use super::upload::{self, Program, Said};

/// What login scripts may print before the agent's first line.
const PRELUDE_MAX: u64 = 1 << 20;

/// Bytes of a program that are written at once.
const CHUNK_LEN: usize = 64 << 10;

/// First word of the line a started agent prints; the next are its version and its name. The pipe follows.
const READY: &str = "ROPEWALK-AGENT";

/// What an agent prints that waits for its rank of MPI.
const WAITS: &str = "ROPEWALK-RANK";

/// What became of the child.
pub(super) enum Greeting {
    Ready(Box<Ready>),
    /// There is no agent: why, and what to do.
    Refused(String),
    /// It ended before it was ready.
    Ended,
    /// It neither was ready nor ended.
    Silent,
}

/// An agent that is ready.
pub(super) struct Ready {
    /// Its name on its host.
    pub instance: String,
    pub input: ChildStdin,
    /// What it says after its first line.
    pub output: BufReader<ChildStdout>,
    /// This program was put on its host: into this file, or `Some(None)`: for this run only.
    pub uploaded: Option<Option<String>>,
}

/// What is written to the child.
enum Part {
    Greeting,
    /// Hash and length of this program.
    Announcement(Arc<Program>),
    Program(Arc<Program>),
}

/// Greets a child.
///
/// * `lines`: say what the agent may touch, and which rank it becomes.
/// * `seat`: of that rank.
/// * `own`: this program's file, for a host that lacks it.
/// * `patience`: the child is silent after this time without progress.
pub(super) async fn greet(
    input: ChildStdin,
    output: ChildStdout,
    (lines, seat): (&[String], Option<&Seat>),
    own: &Path,
    patience: Duration,
) -> Greeting {
    let secret: [u8; 32] = preface::random_bytes();
    let mut greeting = format!("{}\n{}\n", super::hex(&secret), lines.len());
    for line in lines {
        greeting.push_str(line);
        greeting.push('\n');
    }
    let (moved, mut progress) = watch::channel(Instant::now());
    let (parts, to_write) = mpsc::unbounded_channel();
    let both = async {
        tokio::join!(
            write(input, to_write, &greeting, &moved),
            read(output, parts, own, seat)
        )
    };
    tokio::pin!(both);
    loop {
        let until = *progress.borrow_and_update() + patience;
        tokio::select! {
            (input, answer) = &mut both => return match answer {
                Ok((instance, output, uploaded)) => Greeting::Ready(Box::new(Ready {
                    instance,
                    input,
                    output,
                    uploaded,
                })),
                Err(other) => other,
            },
            () = tokio::time::sleep_until(until) => {
                if *progress.borrow() + patience <= Instant::now() {
                    return Greeting::Silent;
                }
            }
        }
    }
}

/// Writes what the reading side asks for, until it asks for nothing more.
async fn write(
    mut input: ChildStdin,
    mut parts: mpsc::UnboundedReceiver<Part>,
    greeting: &str,
    moved: &watch::Sender<Instant>,
) -> ChildStdin {
    while let Some(part) = parts.recv().await {
        let announcement;
        let bytes = match &part {
            Part::Greeting => greeting.as_bytes(),
            Part::Announcement(program) => {
                announcement = program.announcement();
                announcement.as_bytes()
            }
            Part::Program(program) => &program.bytes,
        };
        for chunk in bytes.chunks(CHUNK_LEN) {
            // A child that ended says why on standard error.
            if input.write_all(chunk).await.is_err() {
                break;
            }
            moved.send_replace(Instant::now());
        }
        let _ = input.flush().await;
    }
    input
}

/// How far the upload of this program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not needed so far.
    Asked,
    /// The host has its hash and length.
    Announced,
    /// It is on its way.
    Sent,
    /// It is about to run.
    Ready,
}

type Answer = (String, BufReader<ChildStdout>, Option<Option<String>>);

/// The agent's name, from the rest of the line that says it is ready.
fn instance_of(rest: &str) -> Result<String, Greeting> {
    let mut words = rest.split_whitespace();
    let theirs = words.next().unwrap_or_default();
    if theirs != version() {
        return Err(Greeting::Refused(format!(
            "the program there has version {theirs}, and this one is {}; install the same Ropewalk on all hosts",
            version()
        )));
    }
    Ok(words.next().unwrap_or_default().to_owned())
}

/// This program, for a host of that platform.
async fn program_for(platform: &str, own: &Path) -> Result<Arc<Program>, Greeting> {
    let this = upload::platform();
    if platform != this {
        return Err(Greeting::Refused(format!(
            "it has no ropewalk of this version and is {platform}, where this program for {this} does not run; \
             install Ropewalk there, and say where it is with --remote-path"
        )));
    }
    let path = own.to_owned();
    let reading = tokio::task::spawn_blocking(move || Program::read(&path));
    let read = reading
        .await
        .map_err(std::io::Error::other)
        .and_then(|read| read);
    read.map_err(|error| {
        Greeting::Refused(format!(
            "it has no ropewalk of this version, and {} cannot be read to be uploaded: {error}; install \
             Ropewalk there, and say where it is with --remote-path",
            own.display()
        ))
    })
}

async fn read(
    output: ChildStdout,
    parts: mpsc::UnboundedSender<Part>,
    own: &Path,
    seat: Option<&Seat>,
) -> Result<Answer, Greeting> {
    let mut output = BufReader::new(output);
    let mut program = None;
    let mut stage = Stage::Asked;
    let mut uploaded = None;
    let mut left = PRELUDE_MAX;
    // The writing side lives as long as this one.
    let send = |part| drop(parts.send(part));
    send(Part::Greeting);
    loop {
        let mut line = Vec::new();
        let read = (&mut output).take(left).read_until(b'\n', &mut line).await;
        match read {
            Ok(read @ 1..) => left -= read as u64,
            Ok(0) | Err(_) => return Err(Greeting::Ended),
        }
        let line = String::from_utf8_lossy(&line);
        let (first, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        if first == READY {
            return Ok((instance_of(rest)?, output, uploaded));
        }
        if let Some(seat) = seat.filter(|_| first == WAITS) {
            seat.wait();
        }
        // Login scripts may print first.
        if first != upload::WORD {
            continue;
        }
        match (Said::parse(rest), stage) {
            (Some(Said::Lacks(platform)), Stage::Asked) => {
                stage = Stage::Announced;
                let read = program_for(&platform, own).await?;
                program = Some(read.clone());
                send(Part::Announcement(read));
            }
            (Some(Said::Needs), Stage::Announced) => {
                stage = Stage::Sent;
                send(Part::Program(program.take().expect("it was announced")));
            }
            (Some(Said::Has(path)), Stage::Announced | Stage::Sent) => {
                uploaded = (stage == Stage::Sent).then_some(path);
                stage = Stage::Ready;
                program = None;
                send(Part::Greeting);
            }
            (Some(Said::Fails(reason)), _) => {
                return Err(Greeting::Refused(format!(
                    "it has no ropewalk of this version, and an upload failed: {reason}; install Ropewalk there, and say \
                     where it is with --remote-path"
                )));
            }
            (None | Some(Said::Lacks(_) | Said::Needs | Said::Has(_)), _) => {
                let text = format!("it asks for an upload out of turn: {rest}");
                return Err(Greeting::Refused(text));
            }
        }
    }
}
