//! `top --web`: a page for the browsers of this user on this host. What is answered is `guard`'s.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST,
    HeaderName, LOCATION, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Request, Response};
use ropewalk_proto::top::TopReport;

use super::gather::Gatherer;
use super::guard::{Asked, Own, Verdict};
use super::{EVERY, page};
use crate::screen::Signals;
use crate::sys::say;
use crate::{Usage, http, token};

/// Bytes of a page's token.
const TOKEN_LEN: usize = 32;

/// Listens, before anything else is asked.
///
/// # Errors
/// An address that other hosts reach, and one that is not free.
pub(super) fn listen(text: &str) -> Result<TcpListener> {
    let address: SocketAddr = text.parse().map_err(|_| {
        Usage(anyhow::anyhow!(
            "--web={text}: write ADDR:PORT, for instance 127.0.0.1:8080"
        ))
    })?;
    let port = address.port();
    if !address.ip().is_loopback() {
        // Plain HTTP: the token could be read on the way.
        bail!(Usage(anyhow::anyhow!(
            "--web={text}: the page is for browsers of this host, 127.0.0.1:{port} or [::1]:{port}; from another host reach it by \
             `ssh -L {port}:127.0.0.1:{port}`, or run `ropewalk top --web HOST` there"
        )));
    }
    TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .with_context(|| format!("--web={text}: cannot listen there; name a free port, or none"))
}

/// Serves the page until Ctrl-C.
pub(super) async fn serve(listener: TcpListener, mut gatherer: Gatherer) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let address = listener.local_addr().context("--web")?;
    let own = Own {
        address,
        token: new_token()?,
    };
    let report = Arc::new(Mutex::new(gatherer.look().await));
    say(format_args!("http://{address}/?token={}", own.token));
    let site = Site {
        own,
        report: report.clone(),
        policy: policy(),
    };
    let looking = async {
        loop {
            tokio::time::sleep(EVERY).await;
            let look = gatherer.look().await;
            *report.lock().unwrap_or_else(PoisonError::into_inner) = look;
        }
    };
    let answer = Arc::new(move |request: &Request<Incoming>| site.answer(request));
    tokio::select! {
        served = http::serve(listener, answer) => served.context("--web")?,
        () = looking => {}
        _ = signals.next() => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn new_token() -> Result<String> {
    let mut bytes = [0; TOKEN_LEN];
    let filled = rand::fill(&mut bytes);
    filled.map_err(|_| anyhow::anyhow!("the system has no random numbers for a token"))?;
    Ok(token::hex(&bytes))
}

/// What the page may do: run its own script, use its own style, ask its own server, and be in no other page.
fn policy() -> String {
    let (script, style) = (hash(page::SCRIPT), hash(&page::style()));
    format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    )
}

/// SHA-256 of a text in base 64.
fn hash(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for part in digest(&SHA256, text.as_bytes()).as_ref().chunks(3) {
        let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            out.push(match at <= part.len() {
                true => char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]),
                false => '=',
            });
        }
    }
    out
}

/// The page and what it shows.
struct Site {
    own: Own,
    report: Arc<Mutex<TopReport>>,
    policy: String,
}

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

impl Site {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let verdict = self.verdict(request);
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, kind, text) = match verdict {
            Verdict::Page => (200, HTML, page::page(&report)),
            Verdict::View => (200, HTML, page::view(&report)),
            Verdict::Json => (
                200,
                JSON,
                serde_json::to_string(&*report).unwrap_or_default() + "\n",
            ),
            Verdict::Enter => (303, TEXT, String::new()),
            Verdict::Refused(status, why) => (status, TEXT, format!("{why}\n")),
        };
        drop(report);
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status.try_into().unwrap_or_default();
        let mut set = |name: HeaderName, value: &str| {
            if let Ok(value) = value.parse() {
                response.headers_mut().insert(name, value);
            }
        };
        set(CONTENT_TYPE, kind);
        set(CACHE_CONTROL, "no-store");
        set(CONTENT_SECURITY_POLICY, &self.policy);
        set(REFERRER_POLICY, "no-referrer");
        set(X_CONTENT_TYPE_OPTIONS, "nosniff");
        set(
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        );
        match verdict {
            Verdict::Enter => {
                let mut cookie = format!("{}={}", self.own.cookie(), self.own.token);
                let _ = write!(cookie, "; Path=/; HttpOnly; SameSite=Strict");
                set(SET_COOKIE, &cookie);
                set(LOCATION, "/");
            }
            Verdict::Refused(405, _) => set(ALLOW, "GET"),
            _ => {}
        }
        response
    }

    fn verdict(&self, request: &Request<Incoming>) -> Verdict {
        let headers = request.headers();
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let cookies = headers.get_all(COOKIE).iter();
        let cookies: Vec<&str> = cookies.filter_map(|value| value.to_str().ok()).collect();
        let uri = request.uri();
        // One of two, or an address in the first line, could say something else than was looked at.
        let is_plain = headers.get_all(HOST).iter().count() == 1 && uri.authority().is_none();
        self.own.judge(&Asked {
            method: request.method().as_str(),
            path: uri.path(),
            query: uri.query(),
            host: header(HOST).filter(|_| is_plain),
            cookies: &cookies.join("; "),
            authorization: header(AUTHORIZATION),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base 64 with each number of digits at the end, as other programs make it.
    #[test]
    fn hashes_are_those_of_browsers() {
        assert_eq!(hash(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
        assert_eq!(hash("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }

    /// Addresses that other hosts reach are refused with what to do.
    #[test]
    fn pages_are_for_this_host() {
        for text in ["0.0.0.0:0", "[::]:0", "10.0.0.1:80"] {
            let error = listen(text).unwrap_err().to_string();
            assert!(error.contains("ssh -L"), "{error}");
        }
        assert!(
            listen("localhost")
                .unwrap_err()
                .to_string()
                .contains("ADDR:PORT")
        );
        assert!(listen("127.0.0.1:0").is_ok());
    }
}
