//! Messages over all the rails between two hosts as if they were one.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use ropewalk_message::{MessageError, PolledMessageSocket};

pub use ropewalk_message::Options as MessageOptions;

use crate::Error;

/// Waits for peers on the addresses of one or more interfaces. It has a descriptor that `poll` and `select` understand: readable when a peer
/// can be accepted.
pub struct MessageListener(ropewalk_message::Listener);

/// A connection over one or more rails. Messages arrive once, whole and in the order they were begun; a rail that fails
/// leaves its work to the others. Any number of threads send, one at a time receives.
///
/// It has a descriptor that `poll` and `select` understand: readable when [`MessageSocket::poll_receive`] has something to do.
pub struct MessageSocket(PolledMessageSocket);

impl std::fmt::Debug for MessageListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MessageListener")
            .field(&self.addresses())
            .finish()
    }
}

impl std::fmt::Debug for MessageSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageSocket").finish_non_exhaustive()
    }
}

impl AsFd for MessageListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for MessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A deadline that passes is no error where the caller chose it.
fn in_time<T>(result: Result<T, MessageError>) -> Result<Option<T>, Error> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(MessageError::Deadline) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl MessageListener {
    /// Listens on every address; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`Error::Host`] for an address that cannot be listened on, [`Error::Input`] for options that cannot be meant.
    pub fn bind(addresses: &[SocketAddr], options: &MessageOptions) -> Result<Self, Error> {
        crate::process::enter()?;
        let listener = ropewalk_message::Listener::bind(addresses, options)?;
        Ok(Self(listener))
    }

    /// Addresses that are listened on.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.addresses()
    }

    /// Waits for a peer, at most as long as the options say.
    ///
    /// # Errors
    /// [`Error::Network`] when the deadline passed.
    pub fn accept(&self) -> Result<MessageSocket, Error> {
        MessageSocket::new(self.0.accept()?)
    }

    /// As [`MessageListener::accept`], at most so long; `None`: no peer was there.
    ///
    /// # Errors
    /// [`Error::Host`] for a descriptor that the system does not give.
    pub fn accept_for(&self, most: Duration) -> Result<Option<MessageSocket>, Error> {
        let accepted = self.0.accept_until(Instant::now().checked_add(most));
        in_time(accepted)?.map(MessageSocket::new).transpose()
    }
}

impl MessageSocket {
    fn new(socket: ropewalk_message::MessageSocket) -> Result<Self, Error> {
        Ok(Self(PolledMessageSocket::new(socket)?))
    }

    /// Connects to a listener, one rail for each address.
    ///
    /// # Errors
    /// [`Error::Network`] when the peer is not reached or does not prove the token, [`Error::Input`] for options that
    /// cannot be meant.
    pub fn connect(addresses: &[SocketAddr], options: &MessageOptions) -> Result<Self, Error> {
        crate::process::enter()?;
        Self::new(ropewalk_message::MessageSocket::connect(
            addresses, options,
        )?)
    }

    /// Sends a message and waits until the peer's socket has all of it.
    ///
    /// # Errors
    /// [`Error::Network`] when no rail works any more, [`Error::Peer`] when the peer has closed.
    pub fn send(&self, message: &[u8]) -> Result<(), Error> {
        Ok(self.0.socket().send(message)?)
    }

    /// As [`MessageSocket::send`]; the message is cancelled when `goes_on`, which is asked ten times a second, says so.
    ///
    /// # Errors
    /// As [`MessageSocket::send`], and [`Error::Input`] when it was cancelled.
    pub fn send_while(
        &self,
        message: &[u8],
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Error> {
        Ok(self.0.socket().send_while(message, goes_on)?)
    }

    /// Begins to send a message and gives its number. Waits only while 1024 are on their way; they arrive in the order they were begun.
    ///
    /// # Errors
    /// As [`MessageSocket::send`].
    pub fn send_start(&self, message: Vec<u8>) -> Result<u64, Error> {
        Ok(self.0.socket().send_start(message)?)
    }

    /// As [`MessageSocket::send_start`], and waits no longer when `goes_on`, which is asked ten times a second, says so.
    ///
    /// # Errors
    /// As [`MessageSocket::send_while`].
    pub fn send_start_while(
        &self,
        message: Vec<u8>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, Error> {
        Ok(self.0.socket().send_start_while(message, goes_on)?)
    }

    /// Whether the peer's socket has the whole message of this number. Does not wait.
    #[must_use]
    pub fn is_sent(&self, message: u64) -> bool {
        self.0.socket().is_sent(message)
    }

    /// Receives the next message, of at most `most` bytes. `None`: the peer sends nothing more.
    ///
    /// # Errors
    /// [`Error::Input`] for a message that is longer (it stays), [`Error::Network`] when no rail works any more.
    pub fn receive(&self, most: usize) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.0.socket().receive_vec(most)?)
    }

    /// As [`MessageSocket::receive`], at most so long: pending when no message is there. What arrived of one stays for later calls, however short these
    /// are. Without any time it does not wait, and the descriptor is then as after [`MessageSocket::poll_receive`].
    ///
    /// # Errors
    /// As [`MessageSocket::receive`].
    pub fn receive_for(&self, most: usize, wait: Duration) -> Result<Poll<Option<Vec<u8>>>, Error> {
        if wait.is_zero() {
            return self.poll_receive(most);
        }
        let Some(until) = Instant::now().checked_add(wait) else {
            return Ok(Poll::Ready(self.receive(most)?));
        };
        let received = in_time(self.0.socket().receive_vec_until(most, until))?;
        Ok(received.map_or(Poll::Pending, Poll::Ready))
    }

    /// Receives the next message into memory of the caller, and gives its length. `None`: the peer sends nothing more.
    ///
    /// # Errors
    /// As [`MessageSocket::receive`].
    pub fn receive_into(&self, space: &mut [u8]) -> Result<Option<usize>, Error> {
        Ok(self.0.socket().receive(space)?)
    }

    /// As [`MessageSocket::receive_into`], at most so long: pending when no message is there.
    ///
    /// # Errors
    /// As [`MessageSocket::receive`].
    pub fn receive_into_for(
        &self,
        space: &mut [u8],
        most: Duration,
    ) -> Result<Poll<Option<usize>>, Error> {
        let Some(until) = Instant::now().checked_add(most) else {
            return Ok(Poll::Ready(self.receive_into(space)?));
        };
        let received = in_time(self.0.socket().receive_until(space, until))?;
        Ok(received.map_or(Poll::Pending, Poll::Ready))
    }

    /// As [`MessageSocket::receive`], and does not wait: pending when no message is there. Then the descriptor is not readable until there is news.
    ///
    /// # Errors
    /// As [`MessageSocket::receive`].
    pub fn poll_receive(&self, most: usize) -> Result<Poll<Option<Vec<u8>>>, Error> {
        match self.0.receive(most) {
            Poll::Ready(received) => Ok(Poll::Ready(received?)),
            Poll::Pending => Ok(Poll::Pending),
        }
    }

    /// Announces that nothing more is sent, and waits until the peer has all.
    ///
    /// # Errors
    /// As [`MessageSocket::send`].
    pub fn finish_sending(&self) -> Result<(), Error> {
        Ok(self.0.socket().finish_sending()?)
    }

    /// As [`MessageSocket::finish_sending`], and waits no longer when `goes_on`, which is asked ten times a second, says so.
    ///
    /// # Errors
    /// As [`MessageSocket::send_while`].
    pub fn finish_sending_while(&self, goes_on: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        Ok(self.0.socket().finish_sending_while(goes_on)?)
    }

    /// Closes the socket: what the peer does not have is given up.
    pub fn close(&self) {
        self.0.socket().close();
    }
}
