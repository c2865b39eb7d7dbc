//! A small HTTP server: one answer a connection, from memory, with bounds on what a client may send and how long it may take.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

/// Clients that are connected at one time; a few kilobytes each. More wait to be accepted.
const CLIENTS_MAX: usize = 16;

/// A request that has not arrived by then is given up.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest head of a request, and lines of it: some times what browsers send.
const HEAD_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// After a failed accept.
const REST: Duration = Duration::from_millis(100);

/// Answers clients, for good.
///
/// * `answer`: makes the answer; it must not wait.
pub(crate) async fn serve<A>(listener: TcpListener, answer: Arc<A>) -> std::io::Result<()>
where
    A: Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Send + Sync + 'static,
{
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let clients = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let place = clients.clone().acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            let _place = place;
            let answer = service_fn(move |request| {
                let answer = answer(&request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST_TIMEOUT)
                .max_buf_size(HEAD_MAX)
                .max_headers(HEADERS_MAX)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), answer);
            // One answer is small and leaves at once, or its reader is gone.
            let _ = tokio::time::timeout(2 * REQUEST_TIMEOUT, connection).await;
        });
    }
}
