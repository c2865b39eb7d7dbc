//! Questions to a standing master (`ropewalk serve`) on this host or another one.

mod jobs;

use std::time::Duration;

use ropewalk_lane::control::{ControlError, Sealed, connect, master_secret};
use ropewalk_lane::preface::{self, Kind, MacKey, Preface};
use ropewalk_proto::control::{self, FromServe, LENGTH_LEN, ToServe, from_serve, to_serve};
use ropewalk_proto::handover::ANSWER_MAX;
use ropewalk_proto::version::version;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::link;

pub use jobs::{JobError, LastReport, StandingMaster};

/// A host that does not even refuse a connection within this time has no standing master.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The handshake takes at most this.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// An answer comes within this time, or a part of it: the master writes to its disk before it promises a job.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a standing master does not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StandingError {
    /// Nothing listens there.
    #[error("{0}")]
    Absent(String),
    /// Something listens there that is no master of this token.
    #[error(
        "what listens there closed the connection: it has another token, is another program or version, or ended just now"
    )]
    Stranger,
    /// Something listens there and says nothing.
    #[error("what listens there does not finish a handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Silent,
    /// The connection broke, or what was received is no answer.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The master refuses what is asked.
    #[error("{0}")]
    Refused(String),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] ropewalk_lane::tls::TlsError),
}

/// A question to a standing master, and where its answers arrive.
pub struct Standing(Sealed<TcpStream>);

impl Standing {
    /// Asks the master at this address.
    ///
    /// # Errors
    /// [`StandingError`].
    pub async fn ask(
        host: &str,
        port: u16,
        token: &[u8; 32],
        question: to_serve::Body,
    ) -> Result<Self, StandingError> {
        let secret = master_secret(token);
        let head = Preface {
            kind: Kind::Master,
            flags: 0,
            key_id: preface::key_id(&secret),
            transfer_id: [0; 16],
            nonce: preface::random_bytes(),
            extra: [0; 16],
        };
        let head = head.encode(&MacKey::new(&secret));
        let stream = match tokio::time::timeout(CONNECT_TIMEOUT, link::open(host, port)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(StandingError::Absent(error.to_string())),
            Err(_) => {
                let seconds = CONNECT_TIMEOUT.as_secs();
                return Err(StandingError::Absent(format!(
                    "no answer within {seconds} s"
                )));
            }
        };
        let _ = stream.set_nodelay(true);
        link::expect_answers(&stream);
        let shaking = connect(stream, &head, &secret);
        let mut stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, shaking).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(ControlError::Tls(error))) => return Err(error.into()),
            Ok(Err(_)) => return Err(StandingError::Stranger),
            Err(_) => return Err(StandingError::Silent),
        };
        let question = control::encode(&ToServe {
            version: version().into(),
            body: Some(question),
        });
        let writing = async {
            stream.write_all(&question).await?;
            stream.flush().await
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, writing).await {
            Ok(Ok(())) => Ok(Self(stream)),
            Ok(Err(error)) => Err(StandingError::Broken(error.to_string())),
            Err(_) => Err(StandingError::Broken("it takes no question".into())),
        }
    }

    /// The next answer.
    ///
    /// # Errors
    /// [`StandingError::Refused`] and [`StandingError::Broken`].
    pub async fn answer(&mut self) -> Result<from_serve::Body, StandingError> {
        let broken = |reason: &str| StandingError::Broken(reason.to_owned());
        let reading = tokio::time::timeout(ANSWER_TIMEOUT, self.read()).await;
        let read = reading.map_err(|_| {
            let seconds = ANSWER_TIMEOUT.as_secs();
            StandingError::Broken(format!("no answer within {seconds} s"))
        })?;
        match read?
            .body
            .ok_or_else(|| broken("an answer without a body"))?
        {
            from_serve::Body::Refused(refused) => Err(StandingError::Refused(refused.error)),
            body => Ok(body),
        }
    }

    async fn read(&mut self) -> Result<FromServe, StandingError> {
        let broken = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => {
                StandingError::Broken("`ropewalk serve` has ended".into())
            }
            _ => StandingError::Broken(error.to_string()),
        };
        let mut length = [0; LENGTH_LEN];
        self.0.read_exact(&mut length).await.map_err(broken)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > ANSWER_MAX {
            let text = format!("an answer of {length} bytes, and {ANSWER_MAX} are the most");
            return Err(StandingError::Broken(text));
        }
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).await.map_err(broken)?;
        control::decode(&bytes).map_err(|error| StandingError::Broken(error.to_string()))
    }
}

/// A key for a job that is about to be handed over.
#[must_use]
pub fn job_key() -> [u8; ropewalk_proto::handover::KEY_LEN] {
    preface::random_bytes()
}
