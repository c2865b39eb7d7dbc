//! `agent --metrics`: what the agent does, as text for Prometheus, over HTTP.

use std::fmt::Error;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use ropewalk_agent::{Meter, Reading};

use crate::http;

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where metrics are read.
pub(crate) struct Metrics {
    listener: TcpListener,
    registry: Arc<Registry>,
}

impl Metrics {
    /// Listens. Nothing is answered before [`Metrics::serve`].
    pub fn bind(addresses: &[SocketAddr], meter: Meter) -> Result<Self> {
        let listener = TcpListener::bind(addresses)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .context(
                "--metrics: cannot listen there; name an address of this host and a free port",
            )?;
        let mut registry = Registry::with_prefix("ropewalk");
        registry.register_collector(Box::new(Now(meter)));
        Ok(Self {
            listener,
            registry: Arc::new(registry),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().context("--metrics")
    }

    /// Answers scrapers, for good.
    pub async fn serve(self) -> Result<()> {
        let registry = self.registry;
        let answer = Arc::new(move |request: &Request<Incoming>| answer(request, &registry));
        http::serve(self.listener, answer)
            .await
            .context("--metrics")
    }
}

fn answer(request: &Request<Incoming>, registry: &Registry) -> Response<Full<Bytes>> {
    let mut text = String::new();
    let status = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            match prometheus_client::encoding::text::encode(&mut text, registry) {
                Ok(()) => StatusCode::OK,
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
            }
        }
        (&Method::GET | &Method::HEAD, _) => {
            text = "metrics are at /metrics\n".into();
            StatusCode::NOT_FOUND
        }
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = match status {
        StatusCode::OK => TEXT,
        _ => "text/plain; charset=utf-8",
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind.parse().expect("plain ASCII"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, "GET, HEAD".parse().expect("plain ASCII"));
    }
    response
}

/// Reads the agent at each scrape.
struct Now(Meter);

impl std::fmt::Debug for Now {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Now")
    }
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        write(&mut encoder, &self.0.read())
    }
}

fn write(encoder: &mut DescriptorEncoder, now: &Reading) -> Result<(), Error> {
    let gauges = [
        (
            "transfers",
            "Transfers that the agent takes part in",
            now.transfers,
        ),
        (
            "streams",
            "Streams through stages that the agent takes part in",
            now.streams,
        ),
        ("tunnels", "Tunnels that end at the agent", now.tunnels),
        (
            "tunnel_connections",
            "Open connections of tunnels",
            now.tunnel_connections,
        ),
        ("uptime_seconds", "Age of the agent", now.seconds),
    ];
    for (name, help, value) in gauges {
        let gauge = ConstGauge::new(value);
        gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
    }
    let counters = [
        (
            "transfers_begun",
            "Transfers since the agent began",
            now.transfers_begun,
        ),
        (
            "sent_bytes",
            "Bytes sent to other nodes, headers of frames included, and by streams and tunnels",
            now.moved.sent,
        ),
        (
            "received_bytes",
            "Bytes received and checked, and by streams and tunnels",
            now.moved.received,
        ),
        (
            "stored_bytes",
            "Bytes received and safe on stable storage",
            now.moved.delivered,
        ),
        (
            "refused_requests",
            "Requests of masters that were refused",
            now.refused,
        ),
        (
            "unauthenticated_connections",
            "Connections closed since they proved no token or certificate",
            now.unauthenticated,
        ),
    ];
    for (name, help, value) in counters {
        let counter = ConstCounter::new(value);
        counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
    }
    Ok(())
}
