//! The socket for programs whose tasks must not block: futures that the session's news wake. Needs no runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::memory::Source;
use crate::session::State;
use crate::socket::done;
use crate::{MessageError, MessageSocket};

/// A [`MessageSocket`] whose calls are futures, for any runtime.
///
/// Rails are served by their own threads; futures only look at what these did and are woken by news of it. So
/// messages below the cut-off take two thread changes more than with the blocking socket, and every received message is
/// copied or allocated once: memory cannot be lent to a future that may be forgotten.
///
/// There are no deadlines here: a future that is dropped gives up what it was doing, so a runtime's own timeout does it.
/// Connecting and accepting block; do them on a thread that may, then convert. So does dropping a socket that
/// [remembers](crate::Options::cut_offs) its cut-off, for some milliseconds.
///
/// ```
/// use ropewalk_message::{AsyncMessageSocket, Listener, MessageSocket, Options};
///
/// # fn block_on<F: std::future::Future>(future: F) -> F::Output {
/// #     struct Unpark(std::thread::Thread);
/// #     impl std::task::Wake for Unpark {
/// #         fn wake(self: std::sync::Arc<Self>) { self.0.unpark() }
/// #     }
/// #     let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
/// #     let mut future = std::pin::pin!(future);
/// #     loop {
/// #         match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
/// #             std::task::Poll::Ready(output) => return output,
/// #             std::task::Poll::Pending => std::thread::park(),
/// #         }
/// #     }
/// # }
/// let options = Options::default();
/// let listener = Listener::bind(&["127.0.0.1:0".parse()?], &options)?;
/// let near = AsyncMessageSocket::from(MessageSocket::connect(&listener.addresses(), &options)?);
/// let far = AsyncMessageSocket::from(listener.accept()?);
/// block_on(async {
///     near.send(b"hello".to_vec()).await?;
///     assert_eq!(far.receive(100).await?.as_deref(), Some(&b"hello"[..]));
///     Ok::<(), ropewalk_message::MessageError>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncMessageSocket {
    socket: MessageSocket,
}

impl From<MessageSocket> for AsyncMessageSocket {
    fn from(socket: MessageSocket) -> Self {
        Self { socket }
    }
}

impl AsyncMessageSocket {
    /// The socket itself, for what does not wait: closing, the rails' report, modes.
    #[must_use]
    pub fn socket(&self) -> &MessageSocket {
        &self.socket
    }

    /// The blocking socket again.
    #[must_use]
    pub fn into_socket(self) -> MessageSocket {
        self.socket
    }

    /// Sends a message; done when the peer has all of it. Messages arrive in the order in which their futures were first
    /// polled. A future that is dropped cancels its message, unless it has arrived.
    ///
    /// # Errors
    /// [`MessageError::Closed`], [`MessageError::PeerClosed`], [`MessageError::PeerLost`], [`MessageError::Cancelled`].
    pub fn send(&self, bytes: Vec<u8>) -> impl Future<Output = Result<(), MessageError>> + Send {
        Sending {
            socket: &self.socket,
            length: bytes.len() as u64,
            source: Arc::new(Source::owned(bytes)),
            message: None,
        }
    }

    /// Receives the next message, of at most `most` bytes; `None` when the peer has announced the end. A future that is
    /// dropped leaves the message to the next. Of several that wait, one gets each message.
    ///
    /// # Errors
    /// [`MessageError::TooLong`]: the message stays. Else as [`send`](Self::send).
    pub fn receive(
        &self,
        most: usize,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, MessageError>> + Send {
        Receiving {
            socket: &self.socket,
            most: most as u64,
        }
    }

    /// What [`receive`](Self::receive) does, for those that are polled otherwise: when nothing is there, the context's task is woken by news. Until the
    /// socket is dropped, or a future of [`receive`](Self::receive) is, memory is kept for a message of `most` bytes.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn poll_receive(
        &self,
        most: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Vec<u8>>, MessageError>> {
        self.socket.poll_receive(most as u64, context)
    }

    /// Announces that nothing more will be sent; done when the peer has everything. Receiving goes on.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn finish_sending(&self) -> impl Future<Output = Result<(), MessageError>> + Send {
        std::future::poll_fn(|context| {
            let session = &self.socket.session;
            session.here()?;
            let mut state = session.state();
            if !state.sender.is_ended() {
                state.sender.end();
                session.more_work(&mut state);
            }
            if state.sender.unfinished() == 0 {
                return Poll::Ready(Ok(()));
            }
            self.socket.pending(&mut state, context)
        })
    }
}

impl MessageSocket {
    /// Waits for news, unless there is none to wait for.
    fn pending<T>(
        &self,
        state: &mut State,
        context: &Context<'_>,
    ) -> Poll<Result<T, MessageError>> {
        if let Some(error) = self.session.verdict(state) {
            return Poll::Ready(Err(error));
        }
        state.wakers.add(context.waker());
        Poll::Pending
    }

    fn poll_receive(
        &self,
        most: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Vec<u8>>, MessageError>> {
        let session = &self.session;
        session.here()?;
        let mut state = session.state();
        if let Some(result) = session.take_next(&mut state, most) {
            session.tell_credit(state);
            return Poll::Ready(result);
        }
        let pending = self.pending(&mut state, context);
        session.tell_credit(state);
        pending
    }
}

/// Tasks that wait for news, each once, and those that have to be woken for news that came.
#[derive(Default)]
pub(crate) struct Wakers {
    waiting: Vec<Waker>,
    due: Vec<Waker>,
}

impl Wakers {
    pub(crate) fn add(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|other| other.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    /// All of them are woken when the session's state is unlocked.
    pub(crate) fn wake(&mut self) {
        self.due.append(&mut self.waiting);
    }

    /// Whether any have to be woken.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Those that have to be woken; not with the state locked.
    pub(crate) fn take_due(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.due)
    }
}

struct Sending<'a> {
    socket: &'a MessageSocket,
    length: u64,
    source: Arc<Source>,
    message: Option<u64>,
}

impl Future for Sending<'_> {
    type Output = Result<(), MessageError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let socket = self.socket;
        let session = &socket.session;
        session.here()?;
        let mut state = session.state();
        if self.message.is_none() {
            let way = socket.way(&mut state, self.length, None);
            self.message = session.try_start(&mut state, way, self.length, &self.source)?;
            if self.message.is_some() {
                session.more_work(&mut state);
            }
        }
        let Some(message) = self.message else {
            return socket.pending(&mut state, context);
        };
        match done(state.sender.fate(message), message) {
            Some(done) => Poll::Ready(done),
            None => socket.pending(&mut state, context),
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        // Nothing happens to one that has arrived.
        if let Some(message) = self.message {
            self.socket.cancel(message);
        }
    }
}

struct Receiving<'a> {
    socket: &'a MessageSocket,
    most: u64,
}

impl Future for Receiving<'_> {
    type Output = Result<Option<Vec<u8>>, MessageError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.socket.poll_receive(self.most, context)
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        if !self.socket.session.is_of_this_process() {
            return;
        }
        let mut state = self.socket.session.state();
        state.wanted = None;
        // Others that wait say again what they have room for.
        state.wakers.wake();
    }
}
