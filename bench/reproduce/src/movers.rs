//! Other movers of one file over loopback: their servers and command lines.
//!
//! A sample starts the server, runs the client, stops the server, and counts the processor time of both, with
//! everything they forked. The clock is the client's, from its start to its end.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::{self, Process};

/// Longest time of one client.
const CLIENT_MAX: Duration = Duration::from_secs(120);

/// A server listens within milliseconds; a loaded machine may take longer.
const SERVER_START_MAX: Duration = Duration::from_secs(20);

/// Where the file lies and goes; all in one folder in memory.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The folder.
    pub root: PathBuf,
    /// Size of `src/file`.
    pub bytes: u64,
}

impl Files {
    /// The folder that is served.
    pub fn source(&self) -> PathBuf {
        self.root.join("src")
    }

    /// The copy.
    pub fn copy(&self) -> PathBuf {
        self.root.join("dst/file")
    }

    /// Removes the last copy, so that every mover has to allocate its pages again.
    pub fn clear(&self) -> Result<()> {
        let folder = self.root.join("dst");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))
    }
}

/// One way to move the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mover {
    /// `cp` on one host: the ceiling of one thread that fills memory pages.
    Cp,
    /// curl from nginx (sendfile).
    Curl,
    /// The same over TLS.
    CurlTls,
    /// rclone from nginx, four ranges at once.
    Rclone,
    /// aria2 from nginx, four connections.
    Aria2,
    /// rsync's daemon, whole file (it checks a hash of the file at the end).
    Rsync,
}

/// All of them, in the order of the table.
pub(crate) const MOVERS: [Mover; 6] = [
    Mover::Cp,
    Mover::Rclone,
    Mover::Curl,
    Mover::Aria2,
    Mover::Rsync,
    Mover::CurlTls,
];

/// What a mover took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    /// From the client's start to its end.
    pub seconds: f64,
    /// Of client, server and all they forked.
    pub processor_seconds: f64,
}

impl Mover {
    /// Name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cp => "cp on one host",
            Self::Curl => "curl from nginx, sendfile",
            Self::CurlTls => "curl from nginx, TLS 1.3",
            Self::Rclone => "rclone from nginx, 4 ranges",
            Self::Aria2 => "aria2 -x4 from nginx",
            Self::Rsync => "rsync daemon, whole file",
        }
    }

    /// What it checks and hides.
    pub fn work(self) -> &'static str {
        match self {
            Self::Cp | Self::Curl | Self::Rclone | Self::Aria2 => "plain",
            Self::Rsync => "checked at the end",
            Self::CurlTls => "encrypted",
        }
    }

    /// Programs that it needs, with the argument that makes them print their version.
    pub fn programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Cp => &[("cp", "--version")],
            Self::Curl => &[("nginx", "-v"), ("curl", "--version")],
            Self::CurlTls => &[
                ("nginx", "-v"),
                ("curl", "--version"),
                ("openssl", "version"),
            ],
            Self::Rclone => &[("nginx", "-v"), ("rclone", "version")],
            Self::Aria2 => &[("nginx", "-v"), ("aria2c", "--version")],
            Self::Rsync => &[("rsync", "--version")],
        }
    }

    /// Moves the file once.
    pub fn run(self, files: &Files) -> Result<Took> {
        files.clear()?;
        let copy = files.copy();
        let took = match self {
            Self::Cp => {
                let mut cp = Command::new("cp");
                cp.arg(files.source().join("file")).arg(&copy);
                client(cp)?
            }
            Self::Rsync => served(rsync(files)?, |port| {
                let mut rsync = Command::new("rsync");
                rsync
                    .args([
                        "--whole-file",
                        &format!("rsync://127.0.0.1:{port}/src/file"),
                    ])
                    .arg(&copy);
                rsync
            })?,
            Self::Curl | Self::CurlTls | Self::Rclone | Self::Aria2 => {
                let scheme = if self == Self::CurlTls {
                    "https"
                } else {
                    "http"
                };
                served(nginx(files, self == Self::CurlTls)?, |port| {
                    self.fetch(&format!("{scheme}://127.0.0.1:{port}"), &copy)
                })?
            }
        };
        let bytes = fs::metadata(&copy)
            .with_context(|| format!("{} left no copy", self.name()))?
            .len();
        ensure!(
            bytes == files.bytes,
            "{} copied {bytes} of {} bytes",
            self.name(),
            files.bytes
        );
        Ok(took)
    }

    fn fetch(self, url: &str, copy: &Path) -> Command {
        let folder = copy.parent().unwrap_or(copy);
        match self {
            Self::Rclone => {
                let mut command = Command::new("rclone");
                command.args([
                    "copy",
                    "--config",
                    "/dev/null",
                    "--multi-thread-streams",
                    "4",
                    "--http-url",
                    url,
                    ":http:file",
                ]);
                command.arg(folder);
                command
            }
            Self::Aria2 => {
                let mut command = Command::new("aria2c");
                command.args([
                    "--no-conf",
                    "-q",
                    "-s4",
                    "-x4",
                    "-k1M",
                    "--file-allocation=none",
                    "-o",
                    "file",
                    "-d",
                ]);
                command.arg(folder).arg(format!("{url}/file"));
                command
            }
            _ => {
                let mut command = Command::new("curl");
                command
                    .args(["-q", "-s", "-S", "-f", "-k", "-o"])
                    .arg(copy)
                    .arg(format!("{url}/file"));
                command
            }
        }
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

fn client(command: Command) -> Result<Took> {
    let ended = process::run(command, CLIENT_MAX)?;
    Ok(Took {
        seconds: ended.seconds,
        processor_seconds: ended.processor_seconds,
    })
}

/// Runs a client beside a server and stops the server.
fn served((server, port): (Command, u16), client_of: impl FnOnce(u16) -> Command) -> Result<Took> {
    let server = Process::start(server)?;
    let until = Instant::now() + SERVER_START_MAX;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if Instant::now() > until {
            bail!(
                "the server does not listen: {}",
                server.stop()?.errors.trim()
            );
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let took = client(client_of(port))?;
    let ended = server.stop()?;
    Ok(Took {
        processor_seconds: took.processor_seconds + ended.processor_seconds,
        ..took
    })
}

fn nginx(files: &Files, is_tls: bool) -> Result<(Command, u16)> {
    let port = free_port()?;
    let root = files.root.display();
    let mut listen = format!("listen 127.0.0.1:{port};");
    if is_tls {
        certificate(&files.root)?;
        listen = format!(
            "listen 127.0.0.1:{port} ssl; ssl_protocols TLSv1.3; ssl_certificate {root}/cert.pem; \
             ssl_certificate_key {root}/key.pem; ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;"
        );
    }
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {root}/nginx-{kind};\n"))
        .collect();
    let configuration = format!(
        "daemon off; user root; worker_processes 2; pid {root}/nginx.pid; error_log stderr;\n\
         events {{}}\n\
         http {{ access_log off; sendfile on; sendfile_max_chunk 2m; tcp_nopush on;\n{temporary}\
         server {{ {listen} root {root}/src; }} }}\n"
    );
    let path = files.root.join("nginx.conf");
    fs::write(&path, configuration)?;
    let mut command = Command::new("nginx");
    command
        .arg("-e")
        .arg("stderr")
        .arg("-p")
        .arg(&files.root)
        .arg("-c")
        .arg(&path);
    Ok((command, port))
}

/// A self-signed certificate, made once.
fn certificate(root: &Path) -> Result<()> {
    if root.join("cert.pem").exists() {
        return Ok(());
    }
    let mut command = Command::new("openssl");
    command.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]);
    command
        .args(["-subj", "/CN=localhost", "-keyout"])
        .arg(root.join("key.pem"));
    command.arg("-out").arg(root.join("cert.pem"));
    process::run(command, Duration::from_secs(20)).map(drop)
}

fn rsync(files: &Files) -> Result<(Command, u16)> {
    let port = free_port()?;
    let path = files.root.join("rsyncd.conf");
    let source = files.source();
    let configuration = format!(
        "use chroot = no\nuid = root\ngid = root\n[src]\npath = {}\nread only = yes\n",
        source.display()
    );
    fs::write(&path, configuration)?;
    let mut command = Command::new("rsync");
    command.args([
        "--daemon",
        "--no-detach",
        "--address=127.0.0.1",
        &format!("--port={port}"),
    ]);
    command.arg(format!("--config={}", path.display()));
    Ok((command, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every mover whose programs are here copies the file; the others are told apart by the same list.
    #[test]
    fn movers_move() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files {
            root: dir.path().to_owned(),
            bytes: 3_000_000,
        };
        fs::create_dir(files.source()).unwrap();
        fs::write(files.source().join("file"), vec![7; 3_000_000]).unwrap();
        for mover in MOVERS {
            let has = |(program, argument): &(&str, &str)| {
                crate::machine::version(program.as_ref(), argument).is_some()
            };
            if !mover.programs().iter().all(has) {
                eprintln!("SKIPPED {}: run scripts/install-peers", mover.name());
                continue;
            }
            let took = mover
                .run(&files)
                .unwrap_or_else(|error| panic!("{}: {error:#}", mover.name()));
            assert!(took.seconds > 0.0);
            assert_eq!(
                fs::read(files.copy()).unwrap(),
                vec![7; 3_000_000],
                "{}",
                mover.name()
            );
        }
    }
}
