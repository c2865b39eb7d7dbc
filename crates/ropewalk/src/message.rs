//! Messages over all the rails between two hosts as if they were one.

use std::net::SocketAddr;

pub use ropewalk_message::Options as MessageOptions;

use crate::Error;

/// Waits for peers on the addresses of one or more interfaces.
pub struct MessageListener(ropewalk_message::Listener);

/// A connection over one or more rails. Messages arrive once, whole and in the order they were begun; a rail that fails
/// leaves its work to the others.
pub struct MessageSocket(ropewalk_message::MessageSocket);

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

impl MessageListener {
    /// Listens on every address; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`Error::Host`] for an address that cannot be listened on, [`Error::Input`] for options that cannot be meant.
    pub fn bind(addresses: &[SocketAddr], options: &MessageOptions) -> Result<Self, Error> {
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
        Ok(MessageSocket(self.0.accept()?))
    }
}

impl MessageSocket {
    /// Connects to a listener, one rail for each address.
    ///
    /// # Errors
    /// [`Error::Network`] when the peer is not reached or does not prove the token, [`Error::Input`] for options that
    /// cannot be meant.
    pub fn connect(addresses: &[SocketAddr], options: &MessageOptions) -> Result<Self, Error> {
        let socket = ropewalk_message::MessageSocket::connect(addresses, options)?;
        Ok(Self(socket))
    }

    /// Sends a message and waits until the peer's socket has all of it.
    ///
    /// # Errors
    /// [`Error::Network`] when no rail works any more, [`Error::Peer`] when the peer has closed.
    pub fn send(&self, message: &[u8]) -> Result<(), Error> {
        Ok(self.0.send(message)?)
    }

    /// Receives the next message, of at most `most` bytes. `None`: the peer sends nothing more.
    ///
    /// # Errors
    /// [`Error::Input`] for a message that is longer (it stays), [`Error::Network`] when no rail works any more.
    pub fn receive(&self, most: usize) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.0.receive_vec(most)?)
    }

    /// Announces that nothing more is sent, and waits until the peer has all.
    ///
    /// # Errors
    /// As [`MessageSocket::send`].
    pub fn finish_sending(&self) -> Result<(), Error> {
        Ok(self.0.finish_sending()?)
    }

    /// Closes the socket: what the peer does not have is given up.
    pub fn close(&self) {
        self.0.close();
    }
}
