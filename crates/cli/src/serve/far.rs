//! The port of `serve`, for commands of other hosts: what they hand over becomes a job's command line of this host's own making.
//!
//! A job has the token of the port, so it can do at agents what the command that handed it over could do itself, and nothing on this host.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::FromArgMatches as _;
use ropewalk_agent::{Answers, CommandListener};
use ropewalk_master::request::Reach;
use ropewalk_proto::control::{
    ServeDone, ServeJobs, ServeState, ServeTaken, ToServe, from_serve::Body,
};
use ropewalk_proto::handover::{Question, SPECIFICATION_MAX, Submission};
use ropewalk_proto::queue::Entry;
use tokio::sync::{Semaphore, oneshot};

use super::places;
use super::submit::kept_variables;
use super::task::Task;
use crate::inputs::{Inputs, Text};
use crate::{Arguments, Command, desk, help, service, token, transfer};

/// Between two looks at a job that is followed.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// A follower hears of a job that does not change this often.
const BEAT: Duration = Duration::from_secs(2);

/// Specifications that are read at one time: a long one takes a thread for seconds.
const MAKING_MAX: usize = 2;

/// Specifications with lists of hosts written out may be so much longer.
const GROWTH_MAX: usize = 4;

/// How a specification that was handed over is called in a job's command line, and in errors.
const NAME: &str = "specification";

/// What the port asks the loop of `serve`. It concerns jobs that were handed over at the port, no others.
pub(super) enum Call {
    /// Take this job, unless one of its key is there.
    Submit {
        /// What it does.
        task: Box<Task>,
        /// Where it writes.
        places: Vec<String>,
        /// Higher ones run first; bounded by what was read.
        priority: i32,
    },
    /// One job.
    Look {
        /// Its number.
        job: u64,
        /// Its key, if it must have one.
        key: Option<String>,
    },
    /// All jobs.
    List,
    /// Take a job out, or stop it.
    Cancel {
        /// Its number.
        job: u64,
    },
}

/// What the loop says.
pub(super) enum Reply {
    /// The job is in the queue, safely.
    Taken(u64),
    /// A job, and the last event of its run.
    Looked(Box<Entry>, Option<Arc<str>>),
    /// The limit of all together, and the jobs.
    Jobs(Option<u64>, Vec<Entry>),
    /// It is so.
    Done,
    /// It is not.
    Refused(String),
}

/// Passes a call on to the loop.
type Caller = Arc<dyn Fn(Call, oneshot::Sender<Reply>) + Send + Sync>;

/// What jobs of the port are made with.
struct Own {
    token_file: PathBuf,
    environment: Vec<(String, Text)>,
    call: Caller,
    making: Semaphore,
}

/// The open port; closed when dropped.
pub(super) struct Far {
    addresses: Vec<SocketAddr>,
    _open: oneshot::Sender<()>,
}

impl Far {
    /// Listens with the token of a file.
    ///
    /// # Errors
    /// When there is no such token, or an address cannot be listened on.
    pub fn open(
        addresses: &[SocketAddr],
        token_file: Option<&Path>,
        call: impl Fn(Call, oneshot::Sender<Reply>) + Send + Sync + 'static,
    ) -> Result<Self> {
        let token = token::load(token_file)?;
        let token_file = match token_file {
            Some(file) => file.to_owned(),
            None => token::default_path().context("no HOME is set")?,
        };
        let shown = token_file.display().to_string();
        // A job reads it, wherever that runs.
        let token_file =
            std::path::absolute(token_file).with_context(|| format!("cannot find {shown}"))?;
        let own = Arc::new(Own {
            token_file,
            environment: kept_variables(),
            call: Arc::new(call),
            making: Semaphore::new(MAKING_MAX),
        });
        let listener = CommandListener::bind(addresses, &token, Arc::new(service::log))?;
        let addresses = listener.addresses();
        let (open, closed) = oneshot::channel::<()>();
        let runtime = crate::runtime::runtime()?;
        let serve = move || {
            let answer = move |question, answers| answer(question, answers, own.clone());
            let served = runtime.block_on(listener.serve(answer, async { drop(closed.await) }));
            if let Err(error) = served {
                eprintln!("ropewalk: {error}; no more jobs from other hosts");
            }
            runtime.shutdown_background();
        };
        std::thread::Builder::new()
            .name("port".into())
            .spawn(serve)
            .context("cannot start a thread")?;
        Ok(Self {
            addresses,
            _open: open,
        })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Own {
    async fn ask(&self, call: Call) -> Reply {
        let (reply, answer) = oneshot::channel();
        (self.call)(call, reply);
        let ended = |_| Reply::Refused("`ropewalk serve` is about to end".into());
        answer.await.unwrap_or_else(ended)
    }
}

/// Answers one command.
async fn answer(question: ToServe, mut answers: Answers, own: Arc<Own>) {
    let reply = match Question::read(question) {
        Ok(Question::Submit(submission)) => submit(submission, &own).await,
        Ok(Question::Follow { job, key }) => {
            let key = key.map(|key| token::hex(&key));
            return follow(job, key, answers, &own).await;
        }
        Ok(Question::List) => own.ask(Call::List).await,
        Ok(Question::Cancel { job }) => own.ask(Call::Cancel { job }).await,
        Err(error) => Reply::Refused(error.to_string()),
    };
    // A command that has gone concerns no other.
    let _ = match body(reply) {
        Ok(body) => answers.send(body).await,
        Err(error) => answers.refuse(error).await,
    };
    answers.end().await;
}

fn body(reply: Reply) -> Result<Body, String> {
    match reply {
        Reply::Taken(job) => Ok(Body::Taken(ServeTaken { job })),
        Reply::Looked(entry, event) => Ok(Body::State(ServeState {
            job: json(&entry),
            event: event.map(|event| event.to_string()).unwrap_or_default(),
        })),
        Reply::Jobs(limit, jobs) => Ok(Body::Jobs(ServeJobs {
            limit: limit.unwrap_or(0),
            jobs: jobs.iter().map(json).collect(),
        })),
        Reply::Done => Ok(Body::Done(ServeDone {})),
        Reply::Refused(error) => Err(error),
    }
}

fn json(entry: &Entry) -> String {
    // Keys are text, and numbers are finite.
    serde_json::to_string(entry).unwrap_or_default()
}

async fn submit(submission: Submission, own: &Arc<Own>) -> Reply {
    let (maker, priority) = (own.clone(), submission.priority);
    let _making = own.making.acquire().await;
    let making = move || task(submission, &maker.token_file, &maker.environment);
    let made = tokio::task::spawn_blocking(making).await;
    match made {
        Ok(Ok((task, places))) => {
            let call = Call::Submit {
                task: Box::new(task),
                places,
                priority,
            };
            own.ask(call).await
        }
        Ok(Err(error)) => Reply::Refused(crate::with_causes(&error)),
        Err(_) => Reply::Refused("`ropewalk serve` failed to read it".into()),
    }
}

/// The job of a submission, and where it writes: all of it read, checked, and written again.
fn task(
    submission: Submission,
    token_file: &Path,
    environment: &[(String, Text)],
) -> Result<(Task, Vec<String>)> {
    let mut token = OsString::from("--token-file=");
    token.push(token_file);
    let mut arguments: Vec<OsString> = vec!["transfer".into(), token];
    arguments.extend(submission.words.into_iter().map(OsString::from));
    arguments.extend(["--".into(), NAME.into()]);
    let words = std::iter::once(OsString::from("ropewalk")).chain(arguments.iter().cloned());
    let parsed = help::command().try_get_matches_from(words);
    let parsed = parsed.and_then(|matches| Arguments::from_arg_matches(&matches));
    let args = match parsed.map(|parsed| parsed.command) {
        Ok(Command::Transfer(args)) => args,
        Ok(_) => bail!("it is no transfer"),
        Err(error) => {
            let text = error.to_string();
            bail!("{}", text.trim_start_matches("error: ").trim_end())
        }
    };
    let spec = transfer::parse(&submission.specification, Path::new(NAME))?;
    let spec = ropewalk_model::TransferSpec {
        master: None,
        ..spec
    };
    let specification = spec.format();
    if specification.len() > GROWTH_MAX * SPECIFICATION_MAX {
        bail!(
            "the specification has {} bytes with its lists of hosts written out, and {} are the most that is handed over; divide it",
            specification.len(),
            GROWTH_MAX * SPECIFICATION_MAX
        );
    }
    let request = args.request(&spec)?;
    let is_attached =
        |node: &ropewalk_master::request::NodeRequest| matches!(node.reach, Reach::Attached { .. });
    if !request.nodes.iter().all(is_attached) {
        bail!("only transfers between agents that run already can be handed over");
    }
    let places = places::of_request(&request, Path::new("/"));
    let arguments = arguments.into_iter();
    let task = Task {
        arguments: arguments.map(|word| Text(word.into_vec())).collect(),
        folder: Text(b"/".to_vec()),
        environment: environment.to_vec(),
        inputs: Inputs {
            specification: Some(Text(specification.into_bytes())),
            ..Inputs::default()
        },
        label: request.label.clone(),
        from: desk::places(&request.nodes, |node| &node.sources),
        to: desk::places(&request.nodes, |node| &node.sinks),
        key: Some(token::hex(&submission.key)),
    };
    Ok((task, places))
}

/// Says how a job gets on until it has ended or the command has gone.
async fn follow(job: u64, key: Option<String>, mut answers: Answers, own: &Own) {
    let mut said: Option<(String, Option<Arc<str>>)> = None;
    let mut beat = Instant::now();
    loop {
        let call = Call::Look {
            job,
            key: key.clone(),
        };
        let (entry, event) = match own.ask(call).await {
            Reply::Looked(entry, event) => (entry, event),
            other => {
                if let Err(error) = body(other) {
                    let _ = answers.refuse(error).await;
                }
                break;
            }
        };
        let now = (json(&entry), event);
        let is_new = said.as_ref() != Some(&now);
        if is_new || beat.elapsed() >= BEAT {
            let before = said.as_ref().and_then(|(_, event)| event.as_ref());
            let event = now.1.as_ref().filter(|event| before != Some(event));
            let state = Body::State(ServeState {
                job: now.0.clone(),
                event: event.map(ToString::to_string).unwrap_or_default(),
            });
            if answers.send(state).await.is_err() {
                return;
            }
            (said, beat) = (Some(now), Instant::now());
        }
        if entry.job.state.is_ended() {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_PAUSE) => {}
            () = answers.gone() => return,
        }
    }
    answers.end().await;
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    const ROWS: &str = "id \"x y\"\nmaster h:1\nwriter a:1 /x 0 0-9\nreader b:2 /y 0 0-9\n";

    fn made(text: &str, words: &[&str]) -> Result<(Task, Vec<String>), String> {
        static TOKEN: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
            let dir = tempfile::tempdir().unwrap();
            let token_file = dir.path().join("token");
            token::create(&token_file).unwrap();
            (dir, token_file)
        });
        let submission = Submission {
            key: [7; 16],
            specification: text.into(),
            words: words.iter().map(ToString::to_string).collect(),
            priority: 0,
        };
        let made = task(submission, &TOKEN.1, &[]);
        made.map_err(|error| crate::with_causes(&error))
    }

    /// A job's command line is the master's own: its token, options as they were read, and rows that were read and written again.
    #[test]
    fn a_job_is_made_of_what_was_read() {
        let (task, places) = made(ROWS, &["--limit=1Gbit", "--plain"]).unwrap();
        let word = |at: usize| String::from_utf8(task.arguments[at].0.clone()).unwrap();
        assert_eq!(word(0), "transfer");
        assert!(word(1).starts_with("--token-file=/"), "{}", word(1));
        let rest: Vec<String> = (2..task.arguments.len()).map(word).collect();
        assert_eq!(rest, ["--limit=1Gbit", "--plain", "--", "specification"]);
        let text = task.inputs.specification.unwrap().0;
        let text = String::from_utf8(text).unwrap();
        let read = transfer::parse(&text, Path::new("x")).unwrap();
        assert_eq!((read.master, read.rows.len()), (None, 2));
        assert_eq!(task.label.as_deref(), Some("x y"));
        assert_eq!(task.from, ["a:/x"]);
        assert_eq!(places, ["b:/y"]);
        assert_eq!(task.key.unwrap(), "07".repeat(16));
    }

    /// Values and rows that do not make sense are refused with the reason, before there is a job.
    #[test]
    fn what_makes_no_sense_is_refused() {
        let error = made(ROWS, &["--limit=much"]).unwrap_err();
        assert!(error.contains("--limit"), "{error}");
        let error = made(ROWS, &["--rate=1Gbit"]).unwrap_err();
        assert!(error.contains("--rate is the rate of rbudp"), "{error}");
        let error = made(ROWS, &["--node-rate=c=1Gbit"]).unwrap_err();
        assert!(error.contains("no such host takes part"), "{error}");
        let error = made("writer a:1 /x 0 0-9\n", &[]).unwrap_err();
        assert!(error.contains("no reader row"), "{error}");
        let error = made("#!/bin/sh\n", &[]).unwrap_err();
        assert!(error.contains("no writer row"), "{error}");
    }

    /// Whatever the words are that the protocol lets through, none starts an agent, a program or a login.
    #[test]
    fn any_words_make_a_transfer_between_running_agents() {
        let corpus = [
            b"--limit=1Gbit\n--plain".to_vec(),
            b"--lane=rapid\n--rate=1Gbit\n--mtu=1500".to_vec(),
            b"--node-rate=a=1Gbit\n--verify=sink\n--wait=5min".to_vec(),
            ROWS.as_bytes().to_vec(),
        ];
        crate::mutate::fuzz_some("submissions", &corpus, 500, |input| {
            let text = String::from_utf8_lossy(input);
            let options = text.lines().filter_map(|line| {
                let (name, value) = line
                    .strip_prefix("--")?
                    .split_once('=')
                    .unwrap_or((&line[2..], ""));
                Some(ropewalk_proto::control::ServeOption {
                    name: name.to_owned(),
                    value: value.to_owned(),
                })
            });
            let options: Vec<_> = options.collect();
            let (rows, words) = match ropewalk_proto::handover::words(&options) {
                Ok(words) if !words.is_empty() => (ROWS, words),
                _ => (&*text, Vec::new()),
            };
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if let Ok((task, _)) = made(rows, &words) {
                assert_eq!(task.arguments.len(), words.len() + 4);
                assert!(task.inputs.names.is_none() && task.inputs.patterns.is_empty());
                let kept = task.inputs.specification.unwrap().0;
                let kept = String::from_utf8(kept).unwrap();
                assert!(transfer::parse(&kept, Path::new("x")).is_ok(), "{kept}");
            }
        });
    }
}
