//! A small HTTP server: one answer a connection, from memory, with bounds on what a client may send and how long it may take.

use std::collections::VecDeque;
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
use tokio::task::JoinHandle;

/// Clients that are connected at one time; a few kilobytes each. For a further one the oldest goes: an answer leaves at once, so that one waits
/// for a request that does not arrive.
const CLIENTS_MAX: usize = 64;

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
    let mut clients: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        clients.retain(|client| !client.is_finished());
        if clients.len() >= CLIENTS_MAX
            && let Some(oldest) = clients.pop_front()
        {
            oldest.abort();
        }
        let answer = answer.clone();
        clients.push_back(tokio::spawn(async move {
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
        }));
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    /// Clients that connect and say nothing keep no place from one that asks.
    #[tokio::test]
    async fn silent_clients_make_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let answer = |_: &Request<Incoming>| Response::new(Full::from("answer"));
        let serving = tokio::spawn(serve(listener, Arc::new(answer)));
        let mut silent = Vec::new();
        for _ in 0..3 * CLIENTS_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert!(text.ends_with("answer"), "{text}");
        serving.abort();
    }
}
