use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;

const TOKEN: [u8; 32] = [7; 32];

/// A connection that keeps each write.
struct Seen<S>(S, Arc<Mutex<Vec<Vec<u8>>>>);

impl<S: AsyncRead + Unpin> AsyncRead for Seen<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Seen<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = ready!(Pin::new(&mut self.0).poll_write(context, bytes))?;
        self.1.lock().unwrap().push(bytes[..sent].to_vec());
        Poll::Ready(Ok(sent))
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

type Writes = Arc<Mutex<Vec<Vec<u8>>>>;
type Ends = (
    Result<Sealed<Seen<DuplexStream>>, ControlError>,
    Result<Sealed<Seen<DuplexStream>>, ControlError>,
);

/// Master and agent with these tokens, and what each has written.
async fn ends(of_master: &[u8; 32], of_agent: &[u8; 32]) -> (Ends, [Writes; 2]) {
    let (near, far) = duplex(1 << 20);
    let writes = [Writes::default(), Writes::default()];
    let near = Seen(near, writes[0].clone());
    let mut far = Seen(far, writes[1].clone());
    let accepting = async {
        far.read_exact(&mut [0; 7]).await.unwrap();
        let config = tls::control_server(of_agent).unwrap();
        accept(far, config, of_agent).await
    };
    // An agent that a master leaves in the handshake fails, too: its connection has to go first.
    let connecting = connect(near, b"preface", of_master);
    let greeting = async {
        match connecting.await {
            Ok(mut master) => {
                master.write_all(b"first").await.unwrap();
                master.flush().await.unwrap();
                Ok(master)
            }
            Err(error) => Err(error),
        }
    };
    (tokio::join!(greeting, accepting), writes)
}

/// Everything comes as it was written; each flight of the handshake is one write, its end leaves with the first message, and
/// nothing is kept of it all.
#[tokio::test]
async fn ends_speak() {
    let ((master, agent), [of_master, of_agent]) = ends(&TOKEN, &TOKEN).await;
    let (mut master, mut agent) = (master.unwrap(), agent.unwrap());
    agent.proven().await.unwrap();
    let mut first = [0; 5];
    agent.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"first");
    let lens = |writes: &Writes| -> Vec<usize> {
        let writes = writes.lock().unwrap();
        writes.iter().map(Vec::len).collect()
    };
    assert_eq!(lens(&of_master).len(), 2, "{:?}", lens(&of_master));
    assert_eq!(lens(&of_agent).len(), 1, "{:?}", lens(&of_agent));
    assert!(of_master.lock().unwrap()[0].starts_with(b"preface"));

    let long: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
    let mut back = vec![0; long.len()];
    let (sent, read) = tokio::join!(
        async {
            agent.write_all(b"one").await?;
            agent.write_all(&long).await?;
            agent.shutdown().await
        },
        async {
            let mut one = [0; 3];
            master.read_exact(&mut one).await?;
            assert_eq!(&one, b"one");
            master.read_exact(&mut back).await
        }
    );
    sent.unwrap();
    read.unwrap();
    assert!(back == long);
    assert_eq!(master.read(&mut first).await.unwrap(), 0);
    for end in [&master, &agent] {
        let kept = end.record.capacity() + end.plain.capacity() + end.out.capacity();
        // A length that was awaited when the connection ended.
        assert!(kept <= 8, "{kept} bytes");
    }
}

/// A peer that reads nothing holds up the writer, whatever it tries: what waits is bounded.
#[tokio::test]
async fn what_waits_is_bounded() {
    let ((master, _agent), _) = ends(&TOKEN, &TOKEN).await;
    let mut master = master.unwrap();
    let mut context = Context::from_waker(std::task::Waker::noop());
    for _ in 0..400 {
        let _ = Pin::new(&mut master).poll_write(&mut context, &[0; 64 << 10]);
    }
    let waits = master.plain.len() + master.out.len();
    assert!(waits <= 3 * GATHERED_MAX, "{waits} bytes");
}

/// Two messages of one flush leave in one record.
#[tokio::test]
async fn messages_leave_together() {
    let ((master, _agent), [of_master, _]) = ends(&TOKEN, &TOKEN).await;
    let mut master = master.unwrap();
    of_master.lock().unwrap().clear();
    master.write_all(b"abc").await.unwrap();
    master.write_all(b"defg").await.unwrap();
    master.flush().await.unwrap();
    let written = of_master.lock().unwrap().clone();
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].len(), LENGTH_LEN + 7 + TAG_LEN);
}

/// A flush with nothing to say proves the token.
#[tokio::test]
async fn a_flush_proves() {
    let (near, far) = duplex(1 << 20);
    let config = tls::control_server(&TOKEN).unwrap();
    let (master, agent) = tokio::join!(
        async {
            let mut master = connect(near, b"", &TOKEN).await.unwrap();
            master.flush().await.unwrap();
            master
        },
        accept(far, config, &TOKEN)
    );
    let (mut master, mut agent) = (master, agent.unwrap());
    agent.proven().await.unwrap();
    master.write_all(b"x").await.unwrap();
    master.flush().await.unwrap();
    let mut said = [0; 1];
    agent.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"x");
}

/// An agent with another token is seen in the handshake.
#[tokio::test]
async fn the_agent_proves_the_token() {
    let ((master, agent), _) = ends(&TOKEN, &[8; 32]).await;
    assert!(matches!(master, Err(ControlError::Token)));
    assert!(matches!(agent, Err(ControlError::Handshake(_))));
}

/// A master without the token gets through the handshake and no further: no record of it opens.
#[tokio::test]
async fn the_master_proves_the_token() {
    let (near, far) = duplex(1 << 20);
    let config = tls::control_server(&TOKEN).unwrap();
    let stranger = async {
        let mut near = near;
        let config = tls::control_client().unwrap();
        let mut tls = ClientConnection::new(config, tls::control_name()).unwrap();
        let out = shake_hands(&mut near, &mut tls, Vec::new()).await.unwrap();
        near.write_all(&out).await.unwrap();
        let [toward_agent, toward_master] = keys(&[8; 32], &tls).unwrap();
        let mut sealed = Sealed::new(near, &toward_agent, &toward_master);
        sealed.write_all(b"hello").await.unwrap();
        sealed.flush().await.unwrap();
        sealed
    };
    let (_stranger, agent) = tokio::join!(stranger, accept(far, config, &TOKEN));
    let error = agent.unwrap().proven().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

/// What is changed, too long or cut off is an error; an end between records is an end.
#[tokio::test]
async fn damage_is_seen() {
    let sealed = |bytes: &[u8]| {
        let mut end = Sealed::new((), &[1; 32], &[2; 32]);
        end.plain.extend_from_slice(bytes);
        end.seal(0, bytes.len());
        end.out
    };
    let good = sealed(b"message");
    let mut changed = good.clone();
    changed[4] ^= 1;
    let cases = [
        (good.clone(), None),
        (changed, Some(io::ErrorKind::InvalidData)),
        (vec![0xff, 0xff, 0], Some(io::ErrorKind::InvalidData)),
        (good[..9].to_vec(), Some(io::ErrorKind::UnexpectedEof)),
        (good[..1].to_vec(), Some(io::ErrorKind::UnexpectedEof)),
    ];
    for (bytes, expected) in cases {
        let mut end = Sealed::new(bytes.as_slice(), &[2; 32], &[1; 32]);
        let mut said = Vec::new();
        let read = end.read_to_end(&mut said).await;
        assert_eq!(
            read.as_ref().err().map(io::Error::kind),
            expected,
            "{bytes:?}"
        );
        assert_eq!(said == b"message", expected.is_none());
    }
}

/// The hook runs before the last bytes leave.
#[tokio::test]
async fn the_last_bytes_are_announced() {
    struct Counting(AtomicUsize, AtomicUsize);
    impl AsyncWrite for Counting {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            assert_eq!(self.0.load(Relaxed), 1, "written before the hook");
            self.1.fetch_add(bytes.len(), Relaxed);
            Poll::Ready(Ok(bytes.len()))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }
    let counting = Counting(AtomicUsize::new(0), AtomicUsize::new(0));
    let mut end = Sealed::new(counting, &[1; 32], &[2; 32])
        .before_end(|inner| _ = inner.0.fetch_add(1, Relaxed));
    end.write_all(b"last").await.unwrap();
    end.shutdown().await.unwrap();
    assert_eq!(end.inner.1.load(Relaxed), LENGTH_LEN + 4 + TAG_LEN);
}
