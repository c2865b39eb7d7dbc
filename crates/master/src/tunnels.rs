//! Bytes of nodes that cannot connect to each other: each stream that an agent opens to a node goes through this process.
//!
//! Agents that this process started elsewhere are at the other end of a pipe; to others it connects at their port, as any peer.
//! Those have no pipe to ask over: they ask the coordinator, and wait for the connection at their port, too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ropewalk_lane::preface::{self, Kind, MacKey, PREFACE_LEN, Preface};
use ropewalk_lane::unix;
use ropewalk_pipe::{Pipe, PipeError, Purpose, Request, Requests, Socket};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

/// Time in which an agent's port takes a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An agent answers a preface within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Buffer of each direction between two sockets.
const BUFFER_LEN: usize = 256 << 10;

/// How a node's agent is connected to.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Over its pipe.
    Pipe(Pipe),
    /// On this host: by its name, or over its pipe.
    Local(Pipe, String),
    /// At its port.
    Port(String, u16),
}

/// Ways to all nodes, by number. Clones know the same ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tunnels(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ways: Mutex<Vec<Way>>,
    bridged: Arc<AtomicU64>,
}

impl Tunnels {
    fn ways(&self) -> std::sync::MutexGuard<'_, Vec<Way>> {
        self.0.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next node.
    pub fn add(&self, way: Way) {
        self.ways().push(way);
    }

    /// Bytes of nodes that went through this process, each counted once.
    pub fn bridged(&self) -> u64 {
        self.0.bridged.load(Ordering::Relaxed)
    }

    /// Bytes that passed through the pipes, frames and control messages among them.
    pub fn piped(&self) -> u64 {
        let ways = self.ways();
        let piped = ways.iter().map(|way| match way {
            Way::Pipe(pipe) | Way::Local(pipe, _) => pipe.carried(),
            Way::Port(..) => (0, 0),
        });
        piped.map(|(read, written)| read + written).sum()
    }

    /// Bridges what a node opens, until its pipe closes.
    pub async fn serve(self, from: u32, mut requests: Requests) {
        while let Some(request) = requests.next().await {
            tokio::spawn(self.clone().bridge(from, request));
        }
    }

    async fn bridge(self, from: u32, request: Request) {
        let Some(Purpose::ToNode(node)) = Purpose::decode(&request.header) else {
            return request.refuse("the master takes no such stream");
        };
        let way = self.ways().get(node as usize).cloned();
        let tally = self.0.bridged.clone();
        let (pipe, socket) = match way {
            None => return request.refuse(&format!("the transfer has no node {node}")),
            Some(Way::Pipe(pipe)) => (Some(pipe), None),
            // Its socket costs less than its pipe.
            Some(Way::Local(pipe, instance)) => (Some(pipe), near(&instance).await.ok()),
            Some(Way::Port(host, port)) => match connect(&host, port).await {
                // An end that is gone shows at the other.
                Ok(far) => return drop(request.accept_onto(far, tally).await),
                Err(error) => return request.refuse(&error.to_string()),
            },
        };
        match (socket, pipe) {
            (Some(far), _) => drop(request.accept_onto(far, tally).await),
            (None, Some(pipe)) => {
                let header = Purpose::FromNode(from).encode();
                request.join(&pipe, &header, &tally).await;
            }
            (None, None) => request.refuse("no way leads there"),
        }
    }

    /// Connects to a receiver as a sender would that it cannot reach, and to the sender as the receiver would; then passes on
    /// what they say. Returns when that has ended.
    ///
    /// # Errors
    /// One of the two is not connected to.
    pub async fn carry(self, receiver: u32, sender: u32, pass: &Pass) -> Result<(), PipeError> {
        let way = |node: u32| {
            let known = self.ways().get(node as usize).cloned();
            known.ok_or_else(|| PipeError::Refused(format!("the transfer has no node {node}")))
        };
        match way(receiver)? {
            Way::Port(host, port) => {
                let mut near = connect(&host, port).await?;
                pass.show(&mut near, receiver, sender).await?;
                self.carry_on(near, receiver, way(sender)?).await
            }
            Way::Local(_, instance) => {
                let mut near = near(&instance).await?;
                pass.show(&mut near, receiver, sender).await?;
                self.carry_on(near, receiver, way(sender)?).await
            }
            Way::Pipe(_) => Err(PipeError::Refused("its pipe leads there".into())),
        }
    }

    async fn carry_on(
        &self,
        near: impl Socket + AsyncRead + AsyncWrite + Unpin,
        receiver: u32,
        way: Way,
    ) -> Result<(), PipeError> {
        let tally = self.0.bridged.clone();
        match way {
            Way::Pipe(pipe) => {
                let header = Purpose::FromNode(receiver).encode();
                pipe.open_onto(&header, near, tally).await
            }
            Way::Local(_, instance) => {
                let far = self::near(&instance).await?;
                self.pass_on(near, far).await;
                Ok(())
            }
            Way::Port(host, port) => {
                let far = connect(&host, port).await?;
                self.pass_on(near, far).await;
                Ok(())
            }
        }
    }

    /// Passes on what each of two sockets says to the other, until the end.
    async fn pass_on(
        &self,
        near: impl AsyncRead + AsyncWrite + Unpin,
        far: impl AsyncRead + AsyncWrite + Unpin,
    ) {
        let (mut near_reader, mut near_writer) = tokio::io::split(near);
        let (mut far_reader, mut far_writer) = tokio::io::split(far);
        // What breaks one direction ends both; the nodes see that it ended.
        let _ = tokio::try_join!(
            self.copy(&mut near_reader, &mut far_writer),
            self.copy(&mut far_reader, &mut near_writer),
        );
    }

    /// Copies until the end, which it passes on.
    async fn copy<R, W>(&self, reader: &mut R, writer: &mut W) -> std::io::Result<()>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let read = reader.read(&mut buffer).await?;
            if read == 0 {
                return writer.shutdown().await;
            }
            writer.write_all(&buffer[..read]).await?;
            self.0.bridged.fetch_add(read as u64, Ordering::Relaxed);
        }
    }
}

/// What connections of one transfer are known by at an agent's port.
pub(crate) struct Pass {
    pub transfer: [u8; 16],
    pub key: MacKey,
}

impl Pass {
    fn head(&self, node: u32, nonce: [u8; 32]) -> Preface {
        let mut extra = [0; 16];
        extra[..4].copy_from_slice(&node.to_le_bytes());
        Preface {
            kind: Kind::Reversed,
            flags: preface::CARRIED,
            key_id: [0; 16],
            transfer_id: self.transfer,
            nonce,
            extra,
        }
    }

    /// Says to a receiver which sender the connection leads to, and sees that the receiver is there.
    async fn show(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        receiver: u32,
        sender: u32,
    ) -> Result<(), PipeError> {
        let nonce = preface::random_bytes();
        let mut answer = [0; PREFACE_LEN];
        let asking = async {
            stream
                .write_all(&self.head(sender, nonce).encode(&self.key))
                .await?;
            stream.read_exact(&mut answer).await
        };
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, asking).await;
        let expected = self.head(receiver, nonce);
        let is_answer = |head: Preface| {
            let named = (head.kind, head.nonce, &head.extra[..4]);
            named == (Kind::Reversed, nonce, &expected.extra[..4])
                && Preface::verify(&answer, &self.key)
        };
        match asked {
            Ok(Ok(_)) if Preface::parse(&answer).is_ok_and(is_answer) => Ok(()),
            _ => Err(PipeError::Refused(
                "the master connects there, and another program answers".into(),
            )),
        }
    }
}

/// The socket of an agent on this host.
async fn near(instance: &str) -> Result<UnixStream, PipeError> {
    let connect = || {
        let stream = unix::connect(&unix::agent_name(instance))?;
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    };
    connect().map_err(|error| PipeError::Refused(error.to_string()))
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, PipeError> {
    let refused =
        |reason: String| PipeError::Refused(format!("the master cannot connect there: {reason}"));
    let connecting = TcpStream::connect((host, port));
    match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(stream)) => {
            let _ = stream.set_nodelay(true);
            crate::link::expect_answers(&stream);
            Ok(stream)
        }
        Ok(Err(error)) => Err(refused(error.to_string())),
        Err(_) => Err(refused(format!(
            "no answer within {} s",
            CONNECT_TIMEOUT.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_pipe::Side;

    /// The two ends of a pipe: the master's, and an agent's.
    fn pipe() -> ((Pipe, Requests), (Pipe, Requests)) {
        let (up_read, up_write) = tokio::io::simplex(1 << 16);
        let (down_read, down_write) = tokio::io::simplex(1 << 16);
        (
            Pipe::start(down_read, up_write, Side::Starter),
            Pipe::start(up_read, down_write, Side::Started),
        )
    }

    async fn exchange<A, B>(a: &mut A, b: &mut B)
    where
        A: AsyncRead + AsyncWrite + Unpin,
        B: AsyncRead + AsyncWrite + Unpin,
    {
        a.write_all(b"question").await.unwrap();
        let mut got = [0; 8];
        b.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"question");
        b.write_all(b"answer").await.unwrap();
        b.shutdown().await.unwrap();
        let mut got = Vec::new();
        a.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"answer");
    }

    /// A node reaches another one over both pipes, and one that runs already at its port; bytes are counted once.
    #[tokio::test]
    async fn nodes_are_bridged() {
        let tunnels = Tunnels::default();
        let ((to_first, asked), (first, _none)) = pipe();
        let ((to_second, _none), (_second, mut second_asked)) = pipe();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tunnels.add(Way::Pipe(to_first));
        tunnels.add(Way::Pipe(to_second));
        tunnels.add(Way::Port("127.0.0.1".into(), port));
        tokio::spawn(tunnels.clone().serve(0, asked));

        let to_node = |node| Purpose::ToNode(node).encode();
        let taking = async {
            let request = second_asked.next().await.unwrap();
            assert_eq!(Purpose::decode(&request.header), Some(Purpose::FromNode(0)));
            request.accept().await.unwrap()
        };
        let header = to_node(1);
        let (opened, mut taken) = tokio::join!(first.open(&header), taking);
        exchange(&mut opened.unwrap(), &mut taken).await;
        assert_eq!(tunnels.bridged(), 14);

        let header = to_node(2);
        let (opened, taken) = tokio::join!(first.open(&header), listener.accept());
        exchange(&mut opened.unwrap(), &mut taken.unwrap().0).await;
        assert_eq!(tunnels.bridged(), 28);
        // Both pipes of the first, one of the second; frames on top.
        assert!(tunnels.piped() > 14 + 28, "{}", tunnels.piped());
    }

    /// What leads nowhere is refused in words.
    #[tokio::test]
    async fn what_leads_nowhere_is_refused() {
        let tunnels = Tunnels::default();
        let ((to_first, asked), (first, _none)) = pipe();
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        tunnels.add(Way::Pipe(to_first));
        tunnels.add(Way::Port("127.0.0.1".into(), port));
        tokio::spawn(tunnels.clone().serve(0, asked));
        for (header, words) in [
            (Purpose::ToNode(2).encode(), "no node 2"),
            (Purpose::ToNode(1).encode(), "cannot connect there"),
            (Purpose::Control.encode(), "takes no such stream"),
            (vec![], "takes no such stream"),
        ] {
            let refused = first.open(&header).await.unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
