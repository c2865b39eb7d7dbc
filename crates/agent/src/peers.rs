//! What a peer wants after its preface: the pair's handshake, or a stream.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_lane::preface::{Kind, PREFACE_LEN, Preface};
use ropewalk_lane::seal::PairSecret;
use ropewalk_lane::tls;
use ropewalk_proto::admission::Source;
use tokio::io::AsyncWriteExt as _;

use crate::connect::{self, RAIL_AT};
use crate::door::{Doors, Place};
use crate::incoming::{Incoming, Refusal, node_of};
use crate::rails;
use crate::shared::Shared;
use crate::streams::DataSocket;
use crate::transfer::Transfer;

/// Longest TLS handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The transfer that a preface names.
pub(crate) fn named(shared: &Shared, head: &Preface) -> Result<Arc<Transfer>, Refusal> {
    let transfers = shared.transfers.lock();
    let named = transfers.get(&head.transfer_id).cloned();
    named.ok_or(Refusal::NoTransfer)
}

/// Where a connection is counted.
pub(crate) struct Held<'a> {
    /// Its place among those that have proved nothing; none where this node connected.
    pub place: Option<Place>,
    pub doors: &'a Doors,
    pub source: Source,
}

/// What a peer wants after its preface, whichever of the two connected.
pub(crate) async fn serve_peer<S: Incoming>(
    mut stream: S,
    bytes: [u8; PREFACE_LEN],
    head: Preface,
    shared: &Shared,
    held: Held<'_>,
) -> Result<(), Refusal> {
    let transfer = named(shared, &head)?;
    match head.kind {
        Kind::Pair => {
            if !Preface::verify(&bytes, &transfer.member.preface_key) {
                return Err(Refusal::WrongKey);
            }
            drop(held.place);
            let place = held.doors.prove(held.source);
            let acceptor = tokio_rustls::TlsAcceptor::from(transfer.member.pair_server.clone());
            let mut stream = handshake(acceptor.accept(stream), &place).await?;
            let mut secret = PairSecret([0; 32]);
            let tls = stream.get_ref().1;
            tls.export_keying_material(&mut secret.0, tls::PAIR_LABEL, None)
                .map_err(|_| Refusal::Handshake)?;
            // A node speaks for itself only: its certificate names its number.
            let certificate = tls.peer_certificates().and_then(|chain| chain.first());
            if !certificate.is_some_and(|c| tls::names_node(c, node_of(&head))) {
                return Err(Refusal::WrongKey);
            }
            transfer.member.add_pair(node_of(&head), secret);
            // One byte says that streams may join now.
            let _ = stream.write_all(&[1]).await;
            let _ = stream.shutdown().await;
            Ok(())
        }
        Kind::Join => {
            let secret = transfer
                .member
                .admit(node_of(&head), &bytes, &head)
                .ok_or(Refusal::WrongKey)?;
            let joined = &transfer.member.joined;
            let entered = joined.enter(node_of(&head)).ok_or(Refusal::TooMany)?;
            let is_rail = head.extra[RAIL_AT] == 1;
            if is_rail {
                let proof = connect::rail_proof(&secret.0, &head.nonce);
                if stream.write_all(&proof).await.is_err() {
                    return Ok(());
                }
            }
            drop(held.place);
            if let Ok(socket) = stream.into_data() {
                if let (DataSocket::Tcp(stream), true) = (&socket, is_rail) {
                    rails::bind_accepted(stream, true);
                }
                let index = u32::from_le_bytes(std::array::from_fn(|i| head.extra[4 + i]));
                let of = (node_of(&head), index);
                transfer.serve_stream(socket, of, (&secret, head.nonce), entered);
            }
            Ok(())
        }
        Kind::Control
        | Kind::Message
        | Kind::Reversed
        | Kind::Edge
        | Kind::Rank
        | Kind::Master
        | Kind::Trip => Err(Refusal::NoPreface),
    }
}

/// A TLS handshake, as long as the connection has its place.
pub(crate) async fn handshake<T, E>(
    accept: impl Future<Output = Result<T, E>>,
    place: &Place,
) -> Result<T, Refusal> {
    tokio::select! {
        biased;
        made = tokio::time::timeout(HANDSHAKE_TIMEOUT, accept) => match made {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(_)) | Err(_) => Err(Refusal::Handshake),
        },
        () = place.taken() => Err(Refusal::GaveWay),
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_lane::preface::{self, MacKey};
    use ropewalk_lane::seal::derive;
    use ropewalk_proto::control;
    use ropewalk_proto::tunnel::Permitted;
    use tokio::net::UnixStream;

    use super::*;
    use crate::incoming::own_user;
    use crate::joined::Joined;
    use crate::{Agent, AgentConfig};

    /// A peer has so many streams open, over all of its handshakes; one that it closes makes space.
    #[tokio::test]
    async fn open_streams_of_a_peer_are_bounded() {
        let agent = Agent::bind(AgentConfig {
            listen: Vec::new(),
            token: [5; 32],
            roots: Vec::new(),
            expanded: Vec::new(),
            log: None,
            stages: None,
            forwards: Permitted::nothing(),
        });
        let shared = agent.unwrap().shared;
        let (mut transfer, _said) = Transfer::alone();
        let own = Arc::get_mut(&mut transfer).unwrap();
        Arc::get_mut(&mut own.member).unwrap().joined = Joined::at_most(2);
        let id = transfer.member.id;
        shared.transfers.lock().insert(id, transfer.clone());
        transfer.clone().start(control::Plan::default());
        let join = async |node: u32, key: u8| {
            let join_key = MacKey::new(&derive(&[key; 32], "join", b""));
            let head = Preface {
                kind: Kind::Join,
                flags: 0,
                key_id: [0; 16],
                transfer_id: id,
                nonce: preface::random_bytes(),
                extra: connect::extra(node, 0, false),
            };
            let held = Held {
                place: None,
                doors: &shared.local_doors,
                source: own_user(),
            };
            let (far, near) = UnixStream::pair().unwrap();
            let bytes = head.encode(&join_key);
            let served = serve_peer(near, bytes, head, &shared, held).await;
            served.map(|()| far)
        };
        transfer.member.add_pair(3, PairSecret([1; 32]));
        transfer.member.add_pair(4, PairSecret([1; 32]));
        let first = join(3, 1).await.unwrap();
        transfer.member.add_pair(3, PairSecret([2; 32]));
        let _second = join(3, 2).await.unwrap();
        transfer.member.add_pair(3, PairSecret([3; 32]));
        assert!(matches!(join(3, 3).await, Err(Refusal::TooMany)));
        let _other = join(4, 1).await.unwrap();
        drop(first);
        // Its thread sees that in a moment.
        while join(3, 3).await.is_err() {
            tokio::task::yield_now().await;
        }
        transfer.stop(false, "the test ends");
    }
}
