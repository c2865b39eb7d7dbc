//! How transfers end, what fits into a message, and what masters are answered.

use ropewalk_lane::tls;
use ropewalk_proto::control::{ForwardTarget, StreamOpen};
use ropewalk_proto::tunnel::Permitted;
use ropewalk_proto::tunnel::allowed::Allowed;
use tokio::io::DuplexStream;

use super::*;
use crate::{Agent, AgentConfig, StageConfig};

/// An agent that allows everything and whose stages only sleep.
struct Bench {
    _folder: tempfile::TempDir,
    agent: Agent,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let permitted = Permitted {
            targets: Allowed::Anything,
            ..Permitted::nothing()
        };
        let agent = Agent::bind(AgentConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            token: [5; 32],
            roots: vec![(folder.path().to_owned(), true)],
            expanded: Vec::new(),
            log: None,
            stages: Some(StageConfig {
                command: ["/bin/sleep", "1000"].map(Into::into).into(),
                runs_programs: false,
                cache: None,
            }),
            forwards: permitted,
        });
        let agent = agent.unwrap();
        Self {
            _folder: folder,
            agent,
        }
    }

    /// A master's connection.
    fn master(&self) -> Master {
        let (near, far) = tokio::io::duplex(1 << 16);
        let shared = self.agent.shared.clone();
        let heard = watch::Sender::new(());
        let talk = tokio::spawn(converse(far, None, "test".into(), shared, heard));
        Master { near, talk }
    }
}

struct Master {
    near: DuplexStream,
    talk: JoinHandle<()>,
}

impl Master {
    async fn say(&mut self, body: to_agent::Body) {
        let bytes = control::encode(&ToAgent { body: Some(body) });
        self.near.write_all(&bytes).await.unwrap();
    }

    /// The next message that this takes.
    async fn hear<T>(&mut self, take: impl Fn(from_agent::Body) -> Option<T>) -> T {
        loop {
            let length = self.near.read_u32_le().await.unwrap() as usize;
            let mut bytes = vec![0; length];
            self.near.read_exact(&mut bytes).await.unwrap();
            let message: FromAgent = control::decode(&bytes).unwrap();
            if let Some(taken) = message.body.and_then(&take) {
                return taken;
            }
        }
    }

    async fn leave(self) {
        drop(self.near);
        self.talk.await.unwrap();
    }
}

fn credentials() -> to_agent::Body {
    let authority = tls::Authority::new().unwrap();
    let identity = authority.issue(0).unwrap();
    to_agent::Body::Credentials(control::Credentials {
        certificate: identity.certificate,
        seed: identity.seed,
        secret: vec![0; 32],
        authority: authority.public_key().to_vec(),
    })
}

/// One connection, one transfer, stream or tunnel: what is asked for beside it is refused, and what is there ends with the connection.
#[tokio::test]
async fn a_connection_has_one_thing() {
    let bench = Bench::new();
    let shared = &bench.agent.shared;
    let transfer = |id| {
        to_agent::Body::Open(control::Open {
            transfer: vec![id; 16],
            ..control::Open::default()
        })
    };
    let stream = |id| {
        to_agent::Body::StreamOpen(StreamOpen {
            stream: vec![id; 16],
            secret: vec![7; 32],
            nodes: 1,
            groups: 2,
            block: 1 << 16,
            buffers: 8,
            ..StreamOpen::default()
        })
    };
    let tunnel = |id| {
        to_agent::Body::ForwardOpen(control::ForwardOpen {
            secret: vec![id; 32],
            targets: vec![ForwardTarget {
                host: "localhost".into(),
                port: 1,
            }],
            ..control::ForwardOpen::default()
        })
    };
    let answer = |body| match body {
        from_agent::Body::Opened(_)
        | from_agent::Body::StreamOpened(_)
        | from_agent::Body::ForwardOpened(_) => Some(None),
        from_agent::Body::Refused(refused) => Some(Some(refused.message)),
        _ => None,
    };
    let kinds: [&dyn Fn(u8) -> to_agent::Body; 3] = [&transfer, &stream, &tunnel];
    for first in kinds {
        for second in kinds {
            let mut master = bench.master();
            for (request, is_refused) in [(first(1), false), (second(2), true)] {
                master.say(credentials()).await;
                let asked = format!("{request:?}");
                master.say(request).await;
                let refused = master.hear(answer).await;
                let is_as_expected = match &refused {
                    Some(text) => is_refused && text.contains("connect once for each"),
                    None => !is_refused,
                };
                assert!(is_as_expected, "{asked}: {refused:?}");
            }
            master.leave().await;
            assert_eq!(shared.transfers.lock().len(), 0);
            assert_eq!(shared.streams.lock().len(), 0);
            let tunnels: Vec<_> = shared.forwards.lock().values().cloned().collect();
            tunnels.iter().for_each(|tunnel| tunnel.end(shared));
        }
    }
}

/// A tunnel that has lost its master ends, with the ports that it listens on, though the control connection seems to work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_does_not_wait_for_its_control_connection() {
    use std::io::Read as _;

    let bench = Bench::new();
    let shared = bench.agent.shared.clone();
    let mut master = bench.master();
    master.say(credentials()).await;
    let secret = [3; 32];
    let open = control::ForwardOpen {
        secret: secret.to_vec(),
        targets: vec![ForwardTarget {
            host: "localhost".into(),
            port: 1,
        }],
        ..control::ForwardOpen::default()
    };
    master.say(to_agent::Body::ForwardOpen(open)).await;
    let opened = |body| matches!(body, from_agent::Body::ForwardOpened(_)).then_some(());
    master.hear(opened).await;
    let forward = shared.forwards.lock().values().next().cloned().unwrap();
    let linking = tokio::task::spawn_blocking(move || {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        let giving = std::thread::spawn(move || {
            let (mut link, _) = port.accept().unwrap();
            let mut preface = [0; ropewalk_lane::preface::PREFACE_LEN];
            link.read_exact(&mut preface).unwrap();
            link.set_nonblocking(true).unwrap();
            forward.give(link, preface);
        });
        let options = ropewalk_message::Options {
            token: Some(secret),
            ..ropewalk_message::Options::default()
        };
        let streams = ropewalk_message::ByteStreams::connect(&[address], &options).unwrap();
        giving.join().unwrap();
        streams
    });
    let streams = linking.await.unwrap();
    let is_linked = || {
        let forwards = shared.forwards.lock();
        forwards.values().any(|forward| forward.is_linked())
    };
    while !is_linked() {
        tokio::task::yield_now().await;
    }
    // A turn of the thread that watches.
    tokio::time::sleep(2 * crate::forward::LOOK).await;
    tokio::task::spawn_blocking(move || streams.close())
        .await
        .unwrap();
    let over = async {
        while !shared.forwards.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), over).await;
    assert!(ended.is_ok(), "it goes on");
    master.leave().await;
}

/// Who has nothing left to give a name to does not say that it has none to complain of.
#[test]
fn what_was_ended_gets_no_name() {
    let (transfer, _) = Transfer::alone();
    let word = control::Finish {
        commit: true,
        ..control::Finish::default()
    };
    let finished = transfer.finish(&word);
    assert!(!finished.committed && !finished.error.is_empty());
    let word = control::Finish {
        whole_files: true,
        ..word
    };
    let finished = transfer.finish(&word);
    assert!(!finished.committed && finished.error.is_empty());
}

/// A transfer whose end panics is over all the same.
#[test]
fn a_panic_at_the_end_leaves_nothing_running() {
    let (transfer, _) = Transfer::alone();
    let end = || stopped_on_panic(&transfer, |_| panic!("at the end"));
    assert!(catch_unwind(AssertUnwindSafe(end)).is_err());
    assert!(transfer.member.has_ended());
}

/// The longest list of files that is sent fits into a message, and a longer one is refused with both numbers.
#[test]
fn lists_of_files_fit() {
    let reply = control::ManifestReply {
        manifest: vec![0; MANIFEST_SENT_MAX],
        source: u32::MAX,
    };
    let message = control::encode(&FromAgent {
        body: Some(from_agent::Body::ManifestReply(reply)),
    });
    assert!(message.len() - LENGTH_LEN <= control::MESSAGE_MAX);
    let text = too_long(MANIFEST_SENT_MAX + 1);
    assert!(
        text.contains("takes 64 MiB, more than the 63 MiB"),
        "{text}"
    );
}

/// A transfer that is being opened, for which large trees may be read, is shown; a cancel at the agent ends it, and its master gets the
/// reason.
#[test]
fn what_is_being_opened_can_be_cancelled() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        // Opening does not begin before this ends.
        let (free, busy) = std::sync::mpsc::channel::<()>();
        let occupied = tokio::task::spawn_blocking(move || busy.recv().is_err());
        let bench = Bench::new();
        let shared = &bench.agent.shared;
        let (mut master, mut other) = (bench.master(), bench.master());
        master.say(credentials()).await;
        let open = control::Open {
            transfer: vec![3; 16],
            ..control::Open::default()
        };
        master.say(to_agent::Body::Open(open)).await;
        let status = |body| match body {
            from_agent::Body::StatusReply(reply) => Some(reply.transfers),
            _ => None,
        };
        let mut lines = Vec::new();
        // The other session may be heard first.
        for _ in 0..1000 {
            let query = control::StatusQuery::default();
            other.say(to_agent::Body::StatusQuery(query)).await;
            lines = other.hear(status).await;
            if !lines.is_empty() {
                break;
            }
        }
        let seen: Vec<_> = lines.iter().map(|l| (&*l.transfer, &*l.phase)).collect();
        assert_eq!(seen, [(&[3; 16][..], "opening")]);
        for running in running::select(shared, &[3; 16]) {
            running.cancel(shared, "test");
        }
        let refused = |body| match body {
            from_agent::Body::Refused(refused) => Some((refused.code, refused.message)),
            _ => None,
        };
        let reason = master.hear(refused).await;
        assert_eq!(reason, (ErrorKind::Interrupted.wire(), CANCELLED.into()));
        assert!(running::select(shared, &[]).is_empty());
        master.leave().await;
        other.leave().await;
        drop(free);
        occupied.await.unwrap();
    });
}

/// While a disk does not answer a look, statuses leave and queries are answered; what depends on the look waits for it, and the end of the
/// transfer does not.
#[test]
fn looks_are_beside_the_connection() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let bench = Bench::new();
        let mut master = bench.master();
        master.say(credentials()).await;
        let open = control::Open {
            transfer: vec![4; 16],
            ..control::Open::default()
        };
        master.say(to_agent::Body::Open(open)).await;
        let opened = |body| matches!(body, from_agent::Body::Opened(_)).then_some(());
        master.hear(opened).await;
        // As a disk that does not answer for a while.
        let (free, busy) = std::sync::mpsc::channel::<()>();
        let occupied = tokio::task::spawn_blocking(move || busy.recv().is_err());
        let probe = control::Probe {
            places: vec![0],
            ..control::Probe::default()
        };
        master.say(to_agent::Body::Probe(probe)).await;
        let query = control::ManifestQuery { source: 5 };
        master.say(to_agent::Body::ManifestQuery(query)).await;
        let query = control::StatusQuery::default();
        master.say(to_agent::Body::StatusQuery(query)).await;
        tokio::spawn(async move {
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            drop(free);
        });
        let answer = |body| match body {
            from_agent::Body::Probed(_) => Some("the look"),
            from_agent::Body::StatusReply(_) => Some("the status"),
            from_agent::Body::Refused(_) => Some("the manifest"),
            _ => None,
        };
        for expected in ["the status", "the look", "the manifest"] {
            assert_eq!(master.hear(answer).await, expected);
        }
        occupied.await.unwrap();
        master.leave().await;
    });
}

/// A thread that fails while it ends a stream is an error to the master.
#[tokio::test]
async fn a_panic_at_the_end_of_a_stream_is_an_error() {
    let failing = || -> control::StreamFinished { panic!("meant") };
    let mut ending = Some(tokio::task::spawn_blocking(failing));
    assert_eq!(stream_finished(&mut ending).await.error, FAILED_THREAD);
}
