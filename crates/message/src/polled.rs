//! The socket for programs with an event loop of their own: a descriptor for `poll`.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::bell::Bell;
use crate::{AsyncMessageSocket, MessageError, MessageSocket};

/// A [`MessageSocket`] with a descriptor for `poll` and its like: readable when [`receive`](Self::receive) has something to do.
///
/// The blocking calls are those of [`socket`](Self::socket). A message that was received by [`receive`](Self::receive) was copied once.
#[derive(Debug)]
pub struct PolledMessageSocket {
    socket: AsyncMessageSocket,
    bell: Arc<Bell>,
    waker: Waker,
}

impl AsFd for PolledMessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl PolledMessageSocket {
    /// The socket with a descriptor, which is readable at first.
    ///
    /// # Errors
    /// [`MessageError::System`] where there is no descriptor.
    pub fn new(socket: MessageSocket) -> Result<Self, MessageError> {
        let bell = Arc::new(Bell::new()?);
        bell.ring();
        Ok(Self {
            socket: socket.into(),
            waker: bell.clone().into(),
            bell,
        })
    }

    /// The socket itself.
    #[must_use]
    pub fn socket(&self) -> &MessageSocket {
        self.socket.socket()
    }

    /// The next message, of at most `most` bytes, `None` when the peer has announced the end; or nothing yet: then the descriptor is not
    /// readable until there is news. Does not wait.
    ///
    /// # Errors
    /// [`MessageError::TooLong`]: the message stays. Else as [`MessageSocket::receive`].
    pub fn receive(&self, most: usize) -> Poll<Result<Option<Vec<u8>>, MessageError>> {
        self.bell.quiet();
        let mut context = Context::from_waker(&self.waker);
        let received = self.socket.poll_receive(most, &mut context);
        if received.is_ready() {
            // There may be more.
            self.bell.ring();
        }
        received
    }
}
