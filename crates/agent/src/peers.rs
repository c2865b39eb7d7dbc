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
                    rails::bind_accepted(stream);
                }
                let index = u32::from_le_bytes(std::array::from_fn(|i| head.extra[4 + i]));
                let of = (node_of(&head), index);
                transfer.serve_stream(socket, of, &secret, head.nonce);
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
