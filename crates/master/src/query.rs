//! Questions to a standing agent, outside any transfer of this process.

use std::time::Duration;

use ropewalk_proto::control::{self, StatusReply, ToAgent, TransferStatus, from_agent, to_agent};

use crate::MasterError;
use crate::link::Link;

/// An agent answers at once or not at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Transfers an agent takes part in.
///
/// # Errors
/// [`MasterError`] when the agent cannot be reached or does not know the token.
pub async fn query_status(
    host: &str,
    port: u16,
    token: &[u8; 32],
) -> Result<Vec<TransferStatus>, MasterError> {
    Ok(query_agent(host, port, token).await?.transfers)
}

/// An agent, what it has done since it began, and the transfers that it takes part in.
///
/// # Errors
/// As [`query_status`].
pub async fn query_agent(
    host: &str,
    port: u16,
    token: &[u8; 32],
) -> Result<StatusReply, MasterError> {
    let query = to_agent::Body::StatusQuery(control::StatusQuery::default());
    ask(host, port, token, query).await
}

/// Cancels an agent's part in one transfer, or in all; returns how many.
///
/// # Errors
/// [`MasterError`] when the agent cannot be reached or does not know the token.
pub async fn query_cancel(
    host: &str,
    port: u16,
    token: &[u8; 32],
    transfer: Option<[u8; 16]>,
) -> Result<usize, MasterError> {
    let transfer = transfer.map(|id| id.to_vec()).unwrap_or_default();
    Ok(ask(
        host,
        port,
        token,
        to_agent::Body::CancelQuery(control::CancelQuery { transfer }),
    )
    .await?
    .transfers
    .len())
}

async fn ask(
    host: &str,
    port: u16,
    token: &[u8; 32],
    body: to_agent::Body,
) -> Result<StatusReply, MasterError> {
    let broken = |reason: String| MasterError::Broken {
        node: host.into(),
        reason,
    };
    let mut link = Link::connect(host, host, port, token).await?;
    link.writer
        .write(&control::encode(&ToAgent { body: Some(body) }))
        .await
        .map_err(|error| broken(error.to_string()))?;
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, async {
        loop {
            let read = link.reader.read().await;
            let (message, _) = read.map_err(|error| broken(error.to_string()))?;
            let body = message
                .body
                .ok_or_else(|| broken("an empty answer".into()))?;
            if let from_agent::Body::StatusReply(reply) = body {
                return Ok::<_, MasterError>(reply);
            }
        }
    });
    let reply = answer
        .await
        .map_err(|_| broken(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())))??;
    link.writer.close().await;
    Ok(reply)
}
