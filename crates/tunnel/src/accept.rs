//! Connections of programs, each of which becomes a byte stream.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_message::{ByteStream, ByteStreamListener, ByteStreams, MessageError};
use ropewalk_proto::byte_stream::{CODE_PROGRAM, STREAMS_MAX};
use ropewalk_proto::tunnel::{CODE_BROKEN, CODE_UNREACHED, greeting};
use tokio::net::TcpListener;

use crate::{Counts, STACK_LEN};

/// After a failed accept: descriptors are likely to be used up.
const REST: Duration = Duration::from_millis(50);

/// What opens byte streams to the other end.
pub trait OpenStream: Send + Sync + 'static {
    /// Opens one.
    ///
    /// # Errors
    /// Where there is no other end, or it has as many as it can have.
    fn open_stream(&self, greeting: &[u8]) -> Result<ByteStream, MessageError>;
}

impl OpenStream for ByteStreams {
    fn open_stream(&self, greeting: &[u8]) -> Result<ByteStream, MessageError> {
        self.open(greeting)
    }
}

impl OpenStream for ByteStreamListener {
    fn open_stream(&self, greeting: &[u8]) -> Result<ByteStream, MessageError> {
        self.open(greeting)
    }
}

/// Takes connections of one listener, for good, and opens a stream for each, which names the target at this position. Each has threads of its own.
///
/// * `say`: hears why a target was not reached, and that there are too many connections.
pub async fn accept_all<S: OpenStream>(
    listener: TcpListener,
    target: u32,
    streams: Arc<S>,
    counts: Arc<Counts>,
    say: impl Fn(String) + Clone + Send + 'static,
) {
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket.into_std(),
            Err(error) => Err(error),
        };
        let Ok(socket) = socket else {
            tokio::time::sleep(REST).await;
            continue;
        };
        // One that is closed before it is passed on is reset.
        let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        let open = counts.begin();
        let (streams, own, say) = (streams.clone(), counts.clone(), say.clone());
        let work = move || {
            let ended = match open < STREAMS_MAX as u64 {
                true => pass_on(socket, target, &*streams, &own),
                false => Err(MessageError::TooManyStreams(STREAMS_MAX).into_io()),
            };
            // Counted before it is said: a user who ends the tunnel at the note finds it in the summary.
            own.end(ended.is_err());
            if let Some(text) = ended.as_ref().err().and_then(fault_of_target) {
                say(text);
            }
        };
        let thread = std::thread::Builder::new().name("tunnel".into());
        if thread.stack_size(STACK_LEN).spawn(work).is_err() {
            counts.end(true);
        }
    }
}

/// One connection, from its beginning to its end.
fn pass_on(
    socket: TcpStream,
    target: u32,
    streams: &impl OpenStream,
    counts: &Counts,
) -> io::Result<()> {
    match streams.open_stream(&greeting(target)) {
        Ok(stream) => stream.join(socket, CODE_BROKEN, &counts.passed),
        // Dropping the connection resets it.
        Err(error) => Err(error.into_io()),
    }
}

/// What the user should know: why a target was not reached, or that there are too many connections.
fn fault_of_target(error: &io::Error) -> Option<String> {
    let inner = error.get_ref()?.downcast_ref::<MessageError>()?;
    match inner {
        MessageError::Reset { code, text } if *code == CODE_PROGRAM + u64::from(CODE_UNREACHED) => {
            Some(format!("a connection was reset: {text}"))
        }
        MessageError::TooManyStreams(_) => Some(inner.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    /// Has as many streams as it can have.
    struct Full;

    impl OpenStream for Full {
        fn open_stream(&self, _: &[u8]) -> Result<ByteStream, MessageError> {
            Err(MessageError::TooManyStreams(STREAMS_MAX))
        }
    }

    #[tokio::test]
    async fn a_reset_is_counted_before_it_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(Counts::default());
        let (sender, mut said) = tokio::sync::mpsc::unbounded_channel();
        let seen = counts.clone();
        let say = move |_| sender.send(seen.reset.load(Ordering::Relaxed)).unwrap();
        let accepting = tokio::spawn(accept_all(listener, 0, Arc::new(Full), counts, say));
        let _socket = TcpStream::connect(address).unwrap();
        assert_eq!(said.recv().await, Some(1));
        accepting.abort();
    }
}
