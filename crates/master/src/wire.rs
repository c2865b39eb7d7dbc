//! Counts what control connections carry as it crosses the wire: handshakes, sealed records, headers, segments without data.
//!
//! Bytes are counted where the connection hands them to the socket; packets are the kernel's own count of segments
//! (`tcp_info`), each with its Ethernet, IP and TCP headers. So the sum is what an interface's counters show, but for the last
//! acknowledgement of a connection that closes. Pipes have bytes only.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use ropewalk_lane::TcpInfo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Ethernet header, TCP header and its timestamps.
const HEADER: u64 = 14 + 20 + 12;
/// More options of the first packet of each side: segment size and scaling of windows.
const FIRST_HEADER_MORE: u64 = 8;
const IPV4_HEADER: u64 = 20;
const IPV6_HEADER: u64 = 40;

/// What one connection, or several together, have carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Bytes sent, headers of packets included.
    pub sent: u64,
    /// Bytes received, likewise.
    pub received: u64,
    /// Packets both ways; 0 for pipes.
    pub packets: u64,
}

impl std::ops::AddAssign for Carried {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.packets += other.packets;
    }
}

/// The counters of one connection, shared by the connection and its account.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    sent: AtomicU64,
    received: AtomicU64,
    packets_out: AtomicU64,
    packets_in: AtomicU64,
    header: u64,
}

impl Meter {
    /// So far.
    pub fn carried(&self) -> Carried {
        let (out, back) = (
            self.packets_out.load(Relaxed),
            self.packets_in.load(Relaxed),
        );
        let headers = |packets: u64| packets * self.header + packets.min(1) * FIRST_HEADER_MORE;
        Carried {
            sent: self.sent.load(Relaxed) + headers(out),
            received: self.received.load(Relaxed) + headers(back),
            packets: out + back,
        }
    }
}

/// A connection whose bytes and packets are counted.
pub(crate) struct Counted<S> {
    inner: S,
    meter: Arc<Meter>,
    // Packets sent and received so far, where the connection has any.
    packets: fn(&S) -> Option<(u32, u32)>,
}

impl Counted<TcpStream> {
    /// Counts a TCP connection.
    pub fn tcp(inner: TcpStream) -> Self {
        let ip = match inner.peer_addr().map(|address| match address {
            SocketAddr::V6(v6) => v6.ip().to_ipv4_mapped().is_none(),
            SocketAddr::V4(_) => false,
        }) {
            Ok(true) => IPV6_HEADER,
            _ => IPV4_HEADER,
        };
        let packets = |stream: &TcpStream| {
            TcpInfo::of(stream).map(|info| (info.packets_out, info.packets_in))
        };
        Self {
            inner,
            meter: Arc::new(Meter {
                header: HEADER + ip,
                ..Meter::default()
            }),
            packets,
        }
    }
}

impl<S> Counted<S> {
    /// The account, which outlives the connection.
    pub fn meter(&self) -> Arc<Meter> {
        self.meter.clone()
    }

    fn look(&self) {
        if let Some((out, back)) = (self.packets)(&self.inner) {
            self.meter.packets_out.store(out.into(), Relaxed);
            self.meter.packets_in.store(back.into(), Relaxed);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        if polled.is_ready() {
            let more = (buffer.filled().len() - before) as u64;
            self.meter.received.fetch_add(more, Relaxed);
            self.look();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = polled {
            self.meter.sent.fetch_add(count as u64, Relaxed);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_shutdown(context);
        self.look();
        polled
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Both ends of a connection count the same bytes; packets carry their headers.
    #[tokio::test]
    async fn both_ends_agree() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut near, mut far) = (Counted::tcp(near.unwrap()), Counted::tcp(far.unwrap().0));
        let (of_near, of_far) = (near.meter(), far.meter());
        near.write_all(&[7; 1000]).await.unwrap();
        near.shutdown().await.unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        far.write_all(b"yes").await.unwrap();
        drop(far);
        near.read_to_end(&mut Vec::new()).await.unwrap();
        let (near, far) = (of_near.carried(), of_far.carried());
        // SYN, acknowledgement, data, end: at most the acknowledgement of the end is missing.
        assert!(near.packets >= 7, "{near:?}");
        let headers = IPV4_HEADER + HEADER;
        assert!(near.sent >= 1000 + 3 * headers && near.sent <= 1008 + near.packets * headers);
        assert!(near.received > 3 + 2 * headers, "{near:?} {far:?}");
        assert!(far.received >= 1000 && far.packets > 0, "{far:?}");
    }
}
