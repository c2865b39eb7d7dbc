//! `top --web`: what a page answers to which requests, by a client of HTTP, and what a browser makes of it.

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use common::{DEADLINE, Moving, Place, wait_for};

const SLOW: [&str; 5] = ["copy", "mem:1GiB", "null:", "--limit", "4MB/s"];

/// A running `top --web`; ended when dropped.
struct Web {
    child: Child,
    address: SocketAddr,
    token: String,
    url: String,
}

impl Web {
    fn start(place: &Place) -> Self {
        let mut command = place.command();
        let mut child = command
            .args(["top", "--web"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        let (address, token) = url
            .strip_prefix("http://")
            .and_then(|rest| rest.split_once("/?token="))
            .unwrap_or_else(|| panic!("{url:?}"));
        assert_eq!(token.len(), 64, "{url}");
        Self {
            child,
            address: address.parse().unwrap(),
            token: token.to_owned(),
            url: url.clone(),
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// Sends a request as it is, and reads to the end of the answer.
    fn send(&self, request: &str) -> String {
        let mut stream = self.connect();
        // It may be answered, and the connection closed, before all of it is sent.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The status and the whole answer of a request of this path and with these headers.
    fn ask(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let has_host = headers.iter().any(|(name, _)| *name == "Host");
        let own = format!("Host: {}\r\n", self.address);
        let mut request = format!(
            "GET {path} HTTP/1.1\r\n{}",
            if has_host { "" } else { &own }
        );
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        let answer = self.send(&(request + "\r\n"));
        (status(&answer), answer)
    }

    /// The header of the cookie that the page sets.
    fn cookie(&self) -> String {
        format!("ropewalk-{}={}", self.address.port(), self.token)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status(answer: &str) -> u16 {
    let text = answer.split(' ').nth(1).unwrap_or_default();
    text.parse()
        .unwrap_or_else(|_| panic!("no status: {answer:?}"))
}

/// A slow copy whose first bytes have moved, and the end of its id, which is shown.
fn moving(place: &Place) -> (Moving, String) {
    let mut moving = Moving::start(place, &SLOW);
    let id = moving.event("planned")["transfer"]
        .as_str()
        .unwrap()
        .to_owned();
    moving.until_delivered(1);
    (moving, id[id.len() - 8..].to_owned())
}

/// The printed address sets a cookie, which opens the page, what changes of it, and JSON; each answer says what the page may do.
#[test]
fn the_token_opens_the_page() {
    let place = Place::new();
    let (_moving, id) = moving(&place);
    let web = Web::start(&place);
    let (status, entered) = web.ask(&format!("/?token={}", web.token), &[]);
    assert_eq!(status, 303, "{entered}");
    let cookie = web.cookie();
    let lower = entered.to_lowercase();
    assert!(
        lower.contains(&format!(
            "set-cookie: {cookie}; path=/; httponly; samesite=strict"
        )),
        "{entered}"
    );
    assert!(lower.contains("location: /\r\n"), "{entered}");
    for path in ["/", "/view", "/json"] {
        let page = wait_for("the copy on the page", || {
            let (status, page) = web.ask(path, &[("Cookie", &cookie)]);
            assert_eq!(status, 200, "{page}");
            page.contains(&id).then_some(page)
        });
        assert!(
            page.contains("default-src 'none'; script-src 'sha256-"),
            "{page}"
        );
        assert!(
            page.contains("no-store") && page.contains("nosniff"),
            "{page}"
        );
    }
    let bearer = format!("Bearer {}", web.token);
    assert_eq!(web.ask("/json", &[("Authorization", &bearer)]).0, 200);
    assert_eq!(web.ask("/none", &[("Cookie", &cookie)]).0, 404);
}

/// Without the token, with a wrong one, under another name, or to change something: nothing of any transfer is answered.
#[test]
fn other_requests_are_refused() {
    let place = Place::new();
    let (_moving, id) = moving(&place);
    let web = Web::start(&place);
    let (cookie, host) = (web.cookie(), web.address.to_string());
    let wrong = "0".repeat(64);
    let rebound = format!("evil.example:{}", web.address.port());
    let requests = [
        (403, web.ask("/", &[])),
        (403, web.ask("/json", &[])),
        (403, web.ask(&format!("/?token={wrong}"), &[])),
        (
            403,
            web.ask(
                "/",
                &[(
                    "Cookie",
                    &format!("ropewalk-{}={wrong}", web.address.port()),
                )],
            ),
        ),
        (
            403,
            web.ask("/", &[("Host", &rebound), ("Cookie", &cookie)]),
        ),
        (
            403,
            web.ask(
                "/",
                &[("Host", &host), ("Host", &rebound), ("Cookie", &cookie)],
            ),
        ),
    ];
    for (at, (expected, (status, answer))) in requests.into_iter().enumerate() {
        assert_eq!(status, expected, "{at}: {answer}");
        assert!(
            !answer.contains(&id) && !answer.contains(&web.token),
            "{at}: {answer}"
        );
    }
    for (line, expected) in [
        ("POST / HTTP/1.1".to_owned(), 405),
        ("HEAD / HTTP/1.1".to_owned(), 405),
        (format!("GET http://{rebound}/ HTTP/1.1"), 403),
    ] {
        let answer = web.send(&format!(
            "{line}\r\nHost: {host}\r\nCookie: {cookie}\r\nContent-Length: 0\r\n\r\n"
        ));
        assert_eq!(status(&answer), expected, "{line}: {answer}");
    }
}

/// A request that is too long is refused, one that is no HTTP ends, and one that never ends is given up; others are answered meanwhile.
#[test]
fn clients_are_bounded() {
    let place = Place::new();
    let web = Web::start(&place);
    let mut slow = web.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
    let cookie = web.cookie();
    // Less than a server without bounds of its own would take.
    let long = "x".repeat(64 << 10);
    let (status, answer) = web.ask("/", &[("X", &long), ("Cookie", &cookie)]);
    assert_eq!(status, 431, "{answer}");
    let many: Vec<(&str, &str)> = (0..80).map(|_| ("X", "x")).collect();
    assert_eq!(web.ask("/", &many).0, 431);
    let nonsense = web.send("\u{1}\u{2}\u{3}\r\n\r\n");
    assert!(
        nonsense.is_empty() || nonsense.contains(" 400 "),
        "{nonsense}"
    );
    assert_eq!(web.ask("/", &[("Cookie", &cookie)]).0, 200);
    // The end of the connection, or the time is over.
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    assert!(
        rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"),
        "{rest:?}"
    );
}

/// Ctrl-C ends it, with nothing listening any more.
#[test]
fn a_page_ends_with_its_command() {
    let place = Place::new();
    let mut web = Web::start(&place);
    let killed = Command::new("kill")
        .args(["-INT", &web.child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    assert_eq!(web.child.wait().unwrap().code(), Some(0));
    assert!(TcpStream::connect(web.address).is_err());
}

/// Runs a browser without a window; `None`, and a line that says so, where there is none.
fn browse(place: &Place, args: &[&str]) -> Option<String> {
    let mut command = Command::new("timeout");
    command
        .args([
            "-k",
            "5",
            "120",
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .arg(format!("--user-data-dir={}", place.text("browser")))
        .args(args)
        .env("HOME", place.path("home"))
        .stdin(Stdio::null());
    if Command::new("chromium").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no chromium; scripts/install-test-tools installs it");
        return None;
    }
    let ran = command.output().unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    Some(String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// A browser follows the printed address, keeps the cookie, runs the page's own script and no other policy stops it: the page is refreshed.
/// It can be drawn.
#[test]
fn a_browser_shows_the_page() {
    let place = Place::new();
    let (_moving, id) = moving(&place);
    let web = Web::start(&place);
    let Some(dom) = browse(
        &place,
        &["--virtual-time-budget=5000", "--dump-dom", &web.url],
    ) else {
        return;
    };
    assert!(dom.contains(&id), "{dom}");
    assert!(dom.contains("<body class=\"new\">"), "{dom}");
    let picture = place.path("page.png");
    let option = format!("--screenshot={}", picture.display());
    browse(
        &place,
        &[
            "--virtual-time-budget=3000",
            "--window-size=900,700",
            &option,
            &web.url,
        ],
    );
    let picture = std::fs::read(picture).unwrap();
    assert!(
        picture.starts_with(b"\x89PNG") && picture.len() > 10_000,
        "{} bytes",
        picture.len()
    );
}
