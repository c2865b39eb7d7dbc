//! The control connection of a master to an agent: TLS 1.3, then sealed records.
//!
//! The agent's key is made from the token ([`tls::control_server`]), so that the master knows the agent by its part of the
//! handshake. The keys of the records are made from the token and from what TLS exports, so that the agent knows the master
//! by its first record: nothing else has to be sent for that, and a man in the middle has no such key. Records instead of
//! TLS's own leave nothing of TLS in memory, and cost a length and a tag each:
//!
//! ```text
//!  0      2               2+n     2+n+16
//!  +------+---------------+-------+
//!  | n    | n bytes,      | tag   |   n little endian, at most 16 KiB
//!  |      | encrypted     |       |
//!  +------+---------------+-------+
//! ```
//!
//! What is written leaves at a flush, in as few packets as it fits. The master's last bytes of the handshake wait for its
//! first record.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::{ClientConnection, ConnectionCommon, ServerConfig, ServerConnection, SideData};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use crate::seal::{Records, derive};
use crate::tls;

/// What is lost again and again is retransmitted this often, by agent and master: about 30 attempts before either counts as gone.
pub const RETRANSMIT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Payload of a record at most: it must be there as a whole before it is opened.
const RECORD_LEN: usize = 16 << 10;
const LENGTH_LEN: usize = 2;
const TAG_LEN: usize = 16;

/// What waits for a flush is sent without one when it is so much.
const GATHERED_MAX: usize = 64 << 10;

/// Bytes before each record of TLS: type, version, length.
const TLS_HEAD_LEN: usize = 5;
/// Longest record of TLS: 16 KiB, and what encryption may add (RFC 8446, 5.2).
const TLS_RECORD_MAX: usize = (16 << 10) + 256;

/// A record of TLS that says nothing and is there for firewalls (RFC 8446, D.4); it does not leave by itself.
const COMPATIBILITY_LEN: usize = 6;

/// Why there is no control connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The connection broke, or the peer does not speak TLS.
    #[error("the handshake of the control connection failed: {0}")]
    Handshake(#[from] io::Error),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The agent's key is not that of the token.
    #[error("the agent has another token")]
    Token,
}

/// Master's end: sends `preface`, does the handshake and checks that the agent has the token. The end of the handshake leaves
/// with the first flush.
///
/// # Errors
/// [`ControlError`].
pub async fn connect<S>(
    mut stream: S,
    preface: &[u8],
    token: &[u8; 32],
) -> Result<Sealed<S>, ControlError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut tls = ClientConnection::new(tls::control_client()?, tls::control_name())
        .map_err(tls::TlsError::from)?;
    // Preface and first message of TLS leave together; the last one waits.
    let out = shake_hands(&mut stream, &mut tls, preface.to_vec()).await?;
    let agent = tls.peer_certificates().and_then(|shown| shown.first());
    if !agent.is_some_and(|shown| tls::is_control_key(token, shown)) {
        return Err(ControlError::Token);
    }
    let [toward_agent, toward_master] = keys(token, &tls)?;
    let mut sealed = Sealed::new(stream, &toward_agent, &toward_master);
    (sealed.out, sealed.proof_is_due) = (out, true);
    Ok(sealed)
}

/// Agent's end, after the preface. The master has proved nothing before [`Sealed::proven`].
///
/// # Errors
/// [`ControlError`].
pub async fn accept<S>(
    mut stream: S,
    config: Arc<ServerConfig>,
    token: &[u8; 32],
) -> Result<Sealed<S>, ControlError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut tls = ServerConnection::new(config).map_err(tls::TlsError::from)?;
    let out = shake_hands(&mut stream, &mut tls, Vec::new()).await?;
    let [toward_agent, toward_master] = keys(token, &tls)?;
    let mut sealed = Sealed::new(stream, &toward_master, &toward_agent);
    sealed.out = out;
    Ok(sealed)
}

/// What a command and a standing master use in the place of a token. It is made from their token, so that what either says is of no
/// use at an agent that has the same token, nor the other way round.
#[must_use]
pub fn master_secret(token: &[u8; 32]) -> [u8; 32] {
    derive(token, "standing master", b"")
}

/// Secrets toward the agent and toward the master.
fn keys<T>(token: &[u8; 32], tls: &ConnectionCommon<T>) -> Result<[[u8; 32]; 2], tls::TlsError> {
    let exporter = tls.export_keying_material([0; 32], tls::CONTROL_LABEL, None)?;
    let to_key = |label| derive(token, label, &exporter);
    Ok(["control toward agent", "control toward master"].map(to_key))
}

/// Goes through the handshake and gives what is left to be sent at its end. Reads no further than to the end of a record of
/// TLS: what follows the last one is none.
async fn shake_hands<S, T>(
    stream: &mut S,
    tls: &mut ConnectionCommon<T>,
    mut out: Vec<u8>,
) -> io::Result<Vec<u8>>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: SideData,
{
    loop {
        while tls.wants_write() {
            tls.write_tls(&mut out)?;
        }
        if !tls.is_handshaking() {
            return Ok(out);
        }
        if out.len() > COMPATIBILITY_LEN {
            stream.write_all(&out).await?;
            stream.flush().await?;
            out.clear();
        }
        let mut record = vec![0; TLS_HEAD_LEN];
        stream.read_exact(&mut record).await?;
        let len = usize::from(u16::from_be_bytes([record[3], record[4]]));
        if len > TLS_RECORD_MAX {
            let text = format!("a TLS record of {len} bytes, and {TLS_RECORD_MAX} are the most");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        record.resize(TLS_HEAD_LEN + len, 0);
        stream.read_exact(&mut record[TLS_HEAD_LEN..]).await?;
        let mut rest = record.as_slice();
        while !rest.is_empty() && tls.read_tls(&mut rest)? > 0 {}
        if let Err(error) = tls.process_new_packets() {
            // The peer is told why.
            tls.write_tls(&mut out)?;
            let _ = stream.write_all(&out).await;
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
    }
}

/// A connection after its handshake. Idle, it holds its keys and no buffer.
pub struct Sealed<S> {
    inner: S,
    sealer: Records,
    opener: Records,
    // Written and not sealed; sealed and not sent.
    plain: Vec<u8>,
    out: Vec<u8>,
    sent: usize,
    // The record that is being read; once it is open, what it says begins at `start`.
    record: Vec<u8>,
    have: usize,
    start: Option<usize>,
    // The peer waits for a first record, whatever it says.
    proof_is_due: bool,
    is_proven: bool,
    before_end: fn(&S),
}

impl<S: std::fmt::Debug> std::fmt::Debug for Sealed<S> {
    // Without what it carries.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealed")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S> Sealed<S> {
    fn new(inner: S, send: &[u8; 32], receive: &[u8; 32]) -> Self {
        Self {
            inner,
            sealer: Records::new(send),
            opener: Records::new(receive),
            plain: Vec::new(),
            out: Vec::new(),
            sent: 0,
            record: Vec::new(),
            have: 0,
            start: None,
            proof_is_due: false,
            is_proven: false,
            before_end: |_| (),
        }
    }

    /// Does this before the last bytes of all leave, such as to hold them back until the connection ends behind them.
    #[must_use]
    pub fn before_end(self, before_end: fn(&S)) -> Self {
        Self { before_end, ..self }
    }

    fn seal(&mut self, from: usize, to: usize) {
        let start = self.out.len();
        self.out
            .extend_from_slice(&((to - from) as u16).to_le_bytes());
        self.out.extend_from_slice(&self.plain[from..to]);
        let (head, body) = self.out[start..].split_at_mut(LENGTH_LEN);
        let tag = self.sealer.seal(head, body);
        self.out.extend_from_slice(&tag);
        self.proof_is_due = false;
    }
}

impl<S: AsyncRead + Unpin> Sealed<S> {
    /// Waits until the peer has proved that it knows the token: its first record is there and right.
    ///
    /// # Errors
    /// Those of the socket; [`io::ErrorKind::UnexpectedEof`] when the peer leaves first, [`io::ErrorKind::InvalidData`] when
    /// its record is sealed with another key.
    pub async fn proven(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| {
            while !self.is_proven {
                if !ready!(self.poll_record(context))? {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Reads and opens the next record; false where the connection ends.
    fn poll_record(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let len = match self.have {
                ..LENGTH_LEN => LENGTH_LEN,
                _ => {
                    let payload = usize::from(u16::from_le_bytes([self.record[0], self.record[1]]));
                    if payload > RECORD_LEN {
                        return Poll::Ready(Err(invalid("a control record is too long")));
                    }
                    LENGTH_LEN + payload + TAG_LEN
                }
            };
            if self.have == len && len > LENGTH_LEN {
                let (head, body) = self.record.split_at_mut(LENGTH_LEN);
                if self.opener.open(head, body).is_err() {
                    return Poll::Ready(Err(invalid("a control record is not the peer's")));
                }
                self.record.truncate(len - TAG_LEN);
                self.have = 0;
                self.start = Some(LENGTH_LEN);
                self.is_proven = true;
                return Poll::Ready(Ok(true));
            }
            self.record.resize(len, 0);
            let mut part = ReadBuf::new(&mut self.record[self.have..]);
            ready!(Pin::new(&mut self.inner).poll_read(context, &mut part))?;
            match part.filled().len() {
                0 if self.have == 0 => return Poll::Ready(Ok(false)),
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                read => self.have += read,
            }
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<S: AsyncRead + Unpin> AsyncRead for Sealed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if let Some(start) = this.start {
                let rest = &this.record[start..];
                let taken = rest.len().min(buffer.remaining());
                buffer.put_slice(&rest[..taken]);
                this.start = Some(start + taken);
                let is_used_up = taken == rest.len();
                if is_used_up {
                    (this.record, this.start) = (Vec::new(), None);
                }
                if taken > 0 {
                    return Poll::Ready(Ok(()));
                }
            }
            if buffer.remaining() == 0 || !ready!(this.poll_record(context))? {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Sealed<S> {
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.plain.is_empty() || self.proof_is_due {
            let len = self.plain.len();
            for from in (0..len.max(1)).step_by(RECORD_LEN) {
                self.seal(from, len.min(from + RECORD_LEN));
            }
            self.plain = Vec::new();
        }
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            match ready!(Pin::new(&mut self.inner).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        (self.out, self.sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sealed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // Without the second, each call after one that waited would add to what waits.
        if this.plain.len() >= GATHERED_MAX || this.out.len() >= GATHERED_MAX {
            ready!(this.poll_send(context))?;
        }
        let taken = bytes.len().min(GATHERED_MAX - this.plain.len());
        this.plain.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        (this.before_end)(&this.inner);
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
