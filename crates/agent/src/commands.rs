//! Where a standing master takes questions of commands on other hosts: the doors of an agent, and behind them one question a connection.
//!
//! ```text
//!  accept -> preface -> TLS -> first record, which proves the token -> a question -> answers
//! ```
//!
//! What a connection has to prove, and how long it may take, is as at an agent's port; with the same token it is no use there
//! ([`master_secret`]). What is asked is [`ropewalk_proto::handover`]'s, and the answers are those of the caller of [`CommandListener::serve`].

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::control::{Sealed, accept, master_secret};
use ropewalk_lane::preface::{self, Kind, MacKey, Preface};
use ropewalk_lane::{open_files, tls};
use ropewalk_proto::control::{self, FromServe, LENGTH_LEN, ToServe, from_serve};
use ropewalk_proto::handover::{ANSWER_MAX, QUESTION_MAX};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::door::{Doors, Place};
use crate::incoming::{Caller, Incoming as _, PREFACE_TIMEOUT, Refusal};
use crate::listen::{bind, for_runtime, hear, rest};
use crate::log::{self, Log, LogSink};
use crate::peers::handshake;
use crate::{AgentError, session};

/// Commands that are connected at one time, most of which follow a job: a descriptor, two keys and one look a fraction of a second each.
const SESSIONS_MAX: usize = 256;

/// Questions that are read at one time; each takes some MiB, and some ten times as much while it is decoded.
const QUESTIONS_MAX: usize = 8;

/// A command that has proved the token asks at once.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(10);

/// A command that takes none of an answer for this long is gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A bound listener for commands.
pub struct CommandListener {
    listeners: Vec<TcpListener>,
    shared: Arc<Shared>,
    log: log::Writer,
}

struct Shared {
    secret: [u8; 32],
    key_id: [u8; 16],
    key: MacKey,
    tls: Arc<rustls::ServerConfig>,
    doors: Doors,
    sessions: Arc<Semaphore>,
    questions: Semaphore,
    log: Log,
}

impl CommandListener {
    /// Listens on every address. Nothing is answered before [`CommandListener::serve`].
    ///
    /// * `log`: gets a line for each question, and, some a second, for each unauthenticated peer.
    ///
    /// # Errors
    /// [`AgentError::Listen`] names the address.
    pub fn bind(
        addresses: &[SocketAddr],
        token: &[u8; 32],
        log: LogSink,
    ) -> Result<Self, AgentError> {
        // Strangers must not use up what jobs need.
        open_files::raise_limit();
        let mut listeners = Vec::new();
        for &address in addresses {
            let bound = bind(address);
            listeners.push(bound.map_err(|source| AgentError::Listen { address, source })?);
        }
        let (log, writer) = Log::start(log).map_err(AgentError::Log)?;
        let secret = master_secret(token);
        let shared = Shared {
            key_id: preface::key_id(&secret),
            key: MacKey::new(&secret),
            tls: tls::control_server(&secret)?,
            secret,
            doors: Doors::new(open_files::limit()),
            sessions: Arc::new(Semaphore::new(SESSIONS_MAX)),
            questions: Semaphore::new(QUESTIONS_MAX),
            log,
        };
        Ok(Self {
            listeners,
            shared: Arc::new(shared),
            log: writer,
        })
    }

    /// Addresses that are listened on.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.listeners.iter();
        listeners.filter_map(|one| one.local_addr().ok()).collect()
    }

    /// Serves until `shutdown` completes: `answer` has each question and the connection on which it is answered.
    ///
    /// # Errors
    /// [`AgentError::Listen`] when a listener cannot be used by the runtime.
    pub async fn serve<A, F>(
        self,
        answer: A,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), AgentError>
    where
        A: Fn(ToServe, Answers) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut tasks = tokio::task::JoinSet::new();
        for listener in self.listeners {
            let listener = for_runtime(listener)?;
            let (shared, answer) = (self.shared.clone(), answer.clone());
            tasks.spawn(async move { accept_all(&listener, &shared, &answer).await });
        }
        shutdown.await;
        tasks.shutdown().await;
        self.shared.log.close();
        let _ = tokio::task::spawn_blocking(|| self.log.flush()).await;
        Ok(())
    }
}

async fn accept_all<A, F>(listener: &tokio::net::TcpListener, shared: &Arc<Shared>, answer: &A)
where
    A: Fn(ToServe, Answers) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                rest(&error).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let caller = Caller {
            source: from.ip().into(),
            name: SocketAddr::new(from.ip().to_canonical(), from.port()).to_string(),
            reached_as: None,
            patience: PREFACE_TIMEOUT,
        };
        let Some(place) = shared.doors.enter(caller.source).await else {
            continue;
        };
        let (shared, answer) = (shared.clone(), answer.clone());
        tokio::spawn(async move {
            match admit(stream, &caller, place, &shared).await {
                Ok(stream) => converse(stream, &caller, &shared, answer).await,
                Err(refusal) => shared
                    .log
                    .stranger(|| format!("{}: {refusal}", caller.name)),
            }
        });
    }
}

/// Takes preface, handshake and proof. Strangers are dropped without an answer.
async fn admit(
    mut stream: TcpStream,
    caller: &Caller,
    place: Place,
    shared: &Shared,
) -> Result<Sealed<TcpStream>, Refusal> {
    let bytes = hear(&mut stream, caller.patience, &place).await?;
    let head = Preface::parse(&bytes).map_err(|_| Refusal::NoPreface)?;
    if head.kind != Kind::Master {
        return Err(Refusal::NoPreface);
    }
    if head.key_id != shared.key_id || !Preface::verify(&bytes, &shared.key) {
        return Err(Refusal::WrongToken);
    }
    drop(place);
    let place = shared.doors.prove(caller.source);
    stream.expect_answers();
    let accept = accept(stream, shared.tls.clone(), &shared.secret);
    let mut stream = handshake(accept, &place).await?;
    session::prove(&mut stream, &place).await?;
    Ok(stream)
}

/// Reads a question and has it answered.
async fn converse<A, F>(mut stream: Sealed<TcpStream>, caller: &Caller, shared: &Shared, answer: A)
where
    A: Fn(ToServe, Answers) -> F,
    F: Future<Output = ()>,
{
    let Ok(_session) = shared.sessions.clone().try_acquire_owned() else {
        let error = format!("{SESSIONS_MAX} commands are connected already; try again in a moment");
        let mut answers = Answers(stream);
        let _ = answers.refuse(error).await;
        return answers.end().await;
    };
    let question = {
        let Ok(_reading) = shared.questions.acquire().await else {
            return;
        };
        let reading = tokio::time::timeout(QUESTION_TIMEOUT, read(&mut stream));
        reading.await.ok().flatten()
    };
    match question {
        Some(question) => {
            let name = &caller.name;
            shared.log.say(|| format!("{name}: {}", asked(&question)));
            answer(question, Answers(stream)).await;
        }
        None => shared.log.say(|| {
            let seconds = QUESTION_TIMEOUT.as_secs();
            format!(
                "{}: closed, no question within {seconds} s, or none of this version",
                caller.name
            )
        }),
    }
}

fn asked(question: &ToServe) -> String {
    use control::to_serve::Body;
    match &question.body {
        Some(Body::Submit(submit)) => format!(
            "hands over a specification of {} bytes",
            submit.specification.len()
        ),
        Some(Body::Follow(follow)) => format!("follows job {}", follow.job),
        Some(Body::List(_)) => "lists jobs".into(),
        Some(Body::Cancel(cancel)) => format!("cancels job {}", cancel.job),
        None => "asks what this version does not know".into(),
    }
}

async fn read(stream: &mut Sealed<TcpStream>) -> Option<ToServe> {
    let mut length = [0; LENGTH_LEN];
    stream.read_exact(&mut length).await.ok()?;
    let length = u32::from_le_bytes(length) as usize;
    if length > QUESTION_MAX {
        return None;
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.ok()?;
    control::decode(&bytes).ok()
}

/// Where a command is answered.
pub struct Answers(Sealed<TcpStream>);

impl Answers {
    /// Sends an answer.
    ///
    /// # Errors
    /// When the command has gone, or takes nothing.
    pub async fn send(&mut self, body: from_serve::Body) -> std::io::Result<()> {
        let mut bytes = control::encode(&FromServe { body: Some(body) });
        if bytes.len() > ANSWER_MAX {
            let error = "the answer is too long; name single jobs".into();
            let body = from_serve::Body::Refused(control::ServeRefused { error });
            bytes = control::encode(&FromServe { body: Some(body) });
        }
        let sending = async {
            self.0.write_all(&bytes).await?;
            self.0.flush().await
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, sending).await {
            Ok(sent) => sent,
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }

    /// Sends that something is not so.
    ///
    /// # Errors
    /// As [`Answers::send`].
    pub async fn refuse(&mut self, error: String) -> std::io::Result<()> {
        self.send(from_serve::Body::Refused(control::ServeRefused { error }))
            .await
    }

    /// Completes once the command has gone; it says nothing after its question.
    pub async fn gone(&mut self) {
        let mut byte = [0; 1];
        let _ = self.0.read(&mut byte).await;
    }

    /// Ends this side.
    pub async fn end(mut self) {
        let _ = tokio::time::timeout(ANSWER_TIMEOUT, self.0.shutdown()).await;
    }
}
