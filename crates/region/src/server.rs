//! The side of a target: it answers origins. One thread accepts, and each origin has one.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};
use ropewalk_message::{Listener, Maker, MessageError, MessageSocket, Options};
use ropewalk_model::Range;
use ropewalk_proto::region::frame::{
    Frame, MESSAGE_MAX, NAME_MAX, Part, Status, VERSION, data_without_bytes,
};
use ropewalk_proto::region::{Rule, Signals};

use crate::RegionError;
use crate::exposed::{Exposed, Parts};
use crate::origin::MESSAGE_WINDOW;

/// Origins that one server has at once; each has a thread, the message socket's threads (six with one interface), and up to [`ANSWERS_BYTES_MAX`].
const ORIGINS_MAX: usize = 256;
/// Origins more than that which are given the reason at once, each by a thread; of those beyond, the connection is closed.
const REFUSED_MAX: usize = 16;
/// Regions of one server.
const REGIONS_MAX: usize = 1024;
/// An origin that is connected names its region within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// An origin that acknowledges nothing of what is sent to it for so long is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Answers that an origin has not acknowledged: bytes, and messages.
const ANSWERS_BYTES_MAX: usize = 16 << 20;
const ANSWERS_MAX: usize = 512;
/// Threads look so often whether the server has ended.
const LOOK: Duration = Duration::from_millis(200);

/// Serves ranges of regions to origins until it is dropped; in a child of the process (`fork`) dropping it ends nothing.
pub struct RegionServer {
    inner: Arc<Inner>,
    addresses: Vec<SocketAddr>,
    maker: Maker,
}

impl std::fmt::Debug for RegionServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionServer")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

struct Inner {
    regions: Mutex<BTreeMap<String, Arc<Served>>>,
    origins: Mutex<Vec<Weak<Connection>>>,
    origins_max: usize,
    /// Origins that are being given the reason why they are not served.
    refused: AtomicUsize,
    next: AtomicU64,
    has_ended: AtomicBool,
}

/// A region, as it is served here.
struct Served {
    parts: Parts,
    signals: Mutex<Signals<Wait>>,
    /// For waits of this program.
    signalled: Condvar,
    /// Read by each put until its bytes are written: what is acknowledged is there when the region's files are synced.
    is_withdrawn: RwLock<bool>,
}

/// A wait of an origin.
struct Wait {
    connection: Arc<Connection>,
    id: u64,
}

/// The connection of an origin.
struct Connection {
    socket: MessageSocket,
    number: u64,
}

impl RegionServer {
    /// Listens on every address, which are the rails of each connection; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`RegionError::Message`] for an address that cannot be listened on, [`RegionError::System`] where there is no thread.
    pub fn bind(addresses: &[SocketAddr], options: &Options) -> Result<Self, RegionError> {
        Self::bind_for(addresses, options, ORIGINS_MAX)
    }

    fn bind_for(
        addresses: &[SocketAddr],
        options: &Options,
        origins_max: usize,
    ) -> Result<Self, RegionError> {
        let options = Options {
            window: options.window.max(MESSAGE_WINDOW),
            ..options.clone()
        };
        let listener = Listener::bind(addresses, &options)?;
        let addresses = listener.addresses();
        let inner = Arc::new(Inner {
            regions: Mutex::default(),
            origins: Mutex::default(),
            origins_max,
            refused: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
        });
        let own = inner.clone();
        spawn("region-accept", move || accept(&own, &listener))?;
        Ok(Self {
            inner,
            addresses,
            maker: Maker::this(),
        })
    }

    /// Addresses that are listened on.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Serves ranges of a region. All nodes of a region state the same size and rule.
    ///
    /// # Errors
    /// [`RegionError::Misuse`] for a name that is served already, is empty or longer than 255 bytes, and for ranges that overlap, are empty, or end
    /// beyond the region; [`RegionError::File`] for a file that cannot be opened or is too short.
    pub fn serve(
        &self,
        name: &str,
        size: u64,
        rule: Rule,
        exposed: Vec<Exposed>,
    ) -> Result<(), RegionError> {
        if name.is_empty() || name.len() > NAME_MAX {
            let text =
                format!("\"{name}\" cannot be the name of a region; use 1 to {NAME_MAX} bytes");
            return Err(RegionError::Misuse(text));
        }
        self.maker.check()?;
        let parts = Parts::open(size, rule, exposed)?;
        let mut regions = self.inner.regions.lock();
        if regions.contains_key(name) {
            return Err(RegionError::Misuse(format!(
                "region {name} is served here already"
            )));
        }
        if regions.len() >= REGIONS_MAX {
            return Err(RegionError::Misuse(format!(
                "more than {REGIONS_MAX} regions of one server"
            )));
        }
        let served = Served {
            parts,
            signals: Mutex::default(),
            signalled: Condvar::new(),
            is_withdrawn: RwLock::new(false),
        };
        regions.insert(name.to_owned(), Arc::new(served));
        Ok(())
    }

    /// Serves a region no longer and syncs its files: origins find this node lost at their next request. `false`: there is none of this name.
    ///
    /// # Errors
    /// [`RegionError::System`] for a file that cannot be synced.
    pub fn withdraw(&self, name: &str) -> Result<bool, RegionError> {
        self.maker.check()?;
        let Some(served) = self.inner.regions.lock().remove(name) else {
            return Ok(false);
        };
        *served.is_withdrawn.write() = true;
        // With the lock: who has seen that it is served waits by then.
        let signals = served.signals.lock();
        served.signalled.notify_all();
        drop(signals);
        served.parts.sync()?;
        Ok(true)
    }

    /// Waits until a notification of some byte of a range has at least this value, at most so long, and gives the value; `None` when the time is over.
    /// The process that serves a range sees so when it was written.
    ///
    /// # Errors
    /// [`RegionError::Misuse`] for a region that is not served, or a range that is not held here.
    pub fn wait(
        &self,
        name: &str,
        range: std::ops::Range<u64>,
        at_least: u64,
        most: Duration,
    ) -> Result<Option<u64>, RegionError> {
        self.maker.check()?;
        let found = self.inner.regions.lock().get(name).cloned();
        let unknown = || RegionError::Misuse(format!("region {name} is not served here"));
        let served = found.ok_or_else(unknown)?;
        let range = Range::new(range.start, range.end);
        let held = served.parts.served.check_signal(range);
        held.map_err(|(_, text)| RegionError::Misuse(text))?;
        let until = Instant::now().checked_add(most);
        let mut signals = served.signals.lock();
        loop {
            let value = signals.value(range);
            if value >= at_least {
                return Ok(Some(value));
            }
            if *served.is_withdrawn.read() {
                return Err(unknown());
            }
            match until {
                Some(until) if served.signalled.wait_until(&mut signals, until).timed_out() => {
                    let value = signals.value(range);
                    return Ok((value >= at_least).then_some(value));
                }
                Some(_) => {}
                None => served.signalled.wait(&mut signals),
            }
        }
    }
}

impl Drop for RegionServer {
    fn drop(&mut self) {
        if !self.maker.is_this() {
            return;
        }
        self.inner.has_ended.store(true, Ordering::Release);
        for connection in self.inner.origins.lock().iter().filter_map(Weak::upgrade) {
            connection.socket.close();
        }
        let regions = std::mem::take(&mut *self.inner.regions.lock());
        for served in regions.values() {
            // An error has nowhere to go here; `withdraw` returns it.
            drop(served.parts.sync());
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), RegionError> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(body);
    let doing = "starting a thread";
    started
        .map(drop)
        .map_err(|source| RegionError::System { doing, source })
}

fn accept(inner: &Arc<Inner>, listener: &Listener) {
    while !inner.has_ended.load(Ordering::Acquire) {
        let Ok(socket) = listener.accept_until(Some(Instant::now() + LOOK)) else {
            continue;
        };
        let number = inner.next.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection { socket, number });
        let mut origins = inner.origins.lock();
        origins.retain(|other| other.strong_count() > 0);
        if origins.len() >= inner.origins_max {
            drop(origins);
            turn_away(inner, connection);
            continue;
        }
        origins.push(Arc::downgrade(&connection));
        drop(origins);
        let own = inner.clone();
        // Without a thread the connection is dropped, and the origin sees it closed.
        drop(spawn("region-origin", move || attend(&own, &connection)));
    }
}

/// Says to an origin that there are as many as are served.
fn turn_away(inner: &Arc<Inner>, connection: Arc<Connection>) {
    if inner.refused.fetch_add(1, Ordering::Relaxed) >= REFUSED_MAX {
        inner.refused.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let own = inner.clone();
    let say = move || {
        let socket = &connection.socket;
        socket.set_deadline(Some(HELLO_TIMEOUT));
        let text = format!(
            "the node serves {} origins, which is the most; close regions that are not in use, or let threads share one",
            own.origins_max
        );
        let refused = Frame::Refused {
            id: 0,
            status: Status::Full,
            text: &text,
        };
        if socket.send_start(refused.encode()).is_ok() {
            // It arrives before the end.
            let _ = socket.finish_sending();
        }
        socket.close();
        own.refused.fetch_sub(1, Ordering::Relaxed);
    };
    if spawn("region-refuse", say).is_err() {
        inner.refused.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers one origin until it ends.
fn attend(inner: &Inner, connection: &Arc<Connection>) {
    connection.socket.set_deadline(Some(ANSWER_TIMEOUT));
    let hello = connection
        .socket
        .receive_vec_until(MESSAGE_MAX, Instant::now() + HELLO_TIMEOUT);
    if let Ok(Some(message)) = hello
        && let Ok(Frame::Hello { version, name }) = Frame::decode(&message)
    {
        let served = welcome(inner, connection, version, name);
        if let Some(served) = served {
            let mut answers = Answers {
                connection,
                sent: VecDeque::new(),
                bytes: 0,
            };
            // Whatever ends it, the origin finds the socket closed.
            let _ = serve(inner, &served, &mut answers);
            served
                .signals
                .lock()
                .forget(|wait| wait.connection.number == connection.number);
        } else {
            // The refusal arrives before the end.
            let _ = connection.socket.finish_sending();
        }
    }
    connection.socket.close();
}

fn welcome(
    inner: &Inner,
    connection: &Connection,
    version: u32,
    name: &str,
) -> Option<Arc<Served>> {
    let refuse = |status, text: &str| {
        let _ = connection.socket.send_start(
            Frame::Refused {
                id: 0,
                status,
                text,
            }
            .encode(),
        );
    };
    if version != VERSION {
        refuse(
            Status::Version,
            &format!(
                "the node has version {VERSION} of regions, the origin {version}; use the same Ropewalk on both"
            ),
        );
        return None;
    }
    let Some(served) = inner.regions.lock().get(name).cloned() else {
        refuse(Status::Unknown, "no region of this name is served there");
        return None;
    };
    let own = &served.parts.served;
    let welcome = Frame::Welcome {
        size: own.size,
        rule: own.rule,
        held: own.held.iter().collect(),
        owned: own.owned.iter().collect(),
    };
    connection.socket.send_start(welcome.encode()).ok()?;
    Some(served)
}

/// Why an origin is not served any more.
enum Ended {
    Socket,
    Protocol,
}

impl From<MessageError> for Ended {
    fn from(_: MessageError) -> Self {
        Self::Socket
    }
}

/// What is sent to an origin, bounded by what it has not acknowledged.
struct Answers<'a> {
    connection: &'a Arc<Connection>,
    sent: VecDeque<(u64, usize)>,
    bytes: usize,
}

impl Answers<'_> {
    fn send(&mut self, answer: Vec<u8>) -> Result<(), MessageError> {
        let socket = &self.connection.socket;
        let len = answer.len();
        while let Some(&(first, old)) = self.sent.front() {
            let is_full = self.bytes + len > ANSWERS_BYTES_MAX || self.sent.len() >= ANSWERS_MAX;
            if is_full {
                socket.wait_sent(first)?;
            } else if !socket.is_sent(first) {
                break;
            }
            self.sent.pop_front();
            self.bytes -= old;
        }
        let message = socket.send_start(answer)?;
        self.sent.push_back((message, len));
        self.bytes += len;
        Ok(())
    }

    fn refuse(&mut self, id: u64, (status, text): (Status, String)) -> Result<(), MessageError> {
        self.send(
            Frame::Refused {
                id,
                status,
                text: &text,
            }
            .encode(),
        )
    }
}

fn serve(inner: &Inner, served: &Served, answers: &mut Answers<'_>) -> Result<(), Ended> {
    loop {
        let socket = &answers.connection.socket;
        let received = socket.receive_vec_until(MESSAGE_MAX, Instant::now() + LOOK);
        let message = match received {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(MessageError::Deadline) if !inner.has_ended.load(Ordering::Acquire) => continue,
            Err(error) => return Err(error.into()),
        };
        let frame = Frame::decode(&message).map_err(|_| Ended::Protocol)?;
        if *served.is_withdrawn.read() {
            return Err(Ended::Socket);
        }
        match frame {
            Frame::Get { id, parts } => get(served, answers, id, &parts)?,
            Frame::Put { id, parts, bytes } => {
                let own = &served.parts;
                let is_withdrawn = served.is_withdrawn.read();
                if *is_withdrawn {
                    return Err(Ended::Socket);
                }
                let written = own
                    .served
                    .check_put(&parts)
                    .and_then(|()| own.write(&parts, bytes));
                drop(is_withdrawn);
                match written {
                    Ok(()) => answers.send(Frame::Done { id }.encode())?,
                    Err(refusal) => answers.refuse(id, refusal)?,
                }
            }
            Frame::Notify { id, range, value } => match notify(served, range, value) {
                Ok(()) => answers.send(Frame::Done { id }.encode())?,
                Err(refusal) => answers.refuse(id, refusal)?,
            },
            Frame::Wait {
                id,
                range,
                at_least,
            } => wait(served, answers, id, range, at_least)?,
            Frame::Forget { id } => {
                let number = answers.connection.number;
                let is_it = |wait: &Wait| wait.connection.number == number && wait.id == id;
                served.signals.lock().forget(is_it);
            }
            // Those of a target, and a second HELLO.
            _ => return Err(Ended::Protocol),
        }
    }
}

fn get(served: &Served, answers: &mut Answers<'_>, id: u64, parts: &[Part]) -> Result<(), Ended> {
    let own = &served.parts;
    if let Err(refusal) = own.served.check_get(parts) {
        return Ok(answers.refuse(id, refusal)?);
    }
    let len = parts.iter().map(|part| part.len as usize).sum();
    let mut answer = data_without_bytes(id, len);
    match own.append_to(parts, &mut answer) {
        Ok(()) => answers.send(answer)?,
        Err(refusal) => answers.refuse(id, refusal)?,
    }
    Ok(())
}

fn notify(served: &Served, range: Range, value: u64) -> Result<(), (Status, String)> {
    served.parts.served.check_signal(range)?;
    let ended = served.signals.lock().notify(range, value);
    let full = || {
        let text = "as many different ranges as are kept have values; notify longer ranges";
        (Status::Full, text.to_owned())
    };
    for (wait, value) in ended.ok_or_else(full)? {
        // An origin that is gone waits no longer.
        let answer = Frame::Signal { id: wait.id, value }.encode();
        let _ = wait.connection.socket.send_start(answer);
    }
    served.signalled.notify_all();
    Ok(())
}

fn wait(
    served: &Served,
    answers: &mut Answers<'_>,
    id: u64,
    range: Range,
    at_least: u64,
) -> Result<(), Ended> {
    if let Err(refusal) = served.parts.served.check_signal(range) {
        return Ok(answers.refuse(id, refusal)?);
    }
    let connection = answers.connection.clone();
    let number = connection.number;
    let is_same = |other: &Wait| other.connection.number == number;
    let mut signals = served.signals.lock();
    let found = signals.wait(range, at_least, Wait { connection, id }, is_same);
    drop(signals);
    match found {
        Ok(Some(value)) => answers.send(Frame::Signal { id, value }.encode())?,
        Ok(None) => {}
        Err(_) => {
            let text = "this origin waits for as many ranges as are kept";
            answers.refuse(id, (Status::Full, text.to_owned()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ropewalk_store::Buffer;

    use super::*;
    use crate::Region;

    /// An origin more than a server has is given the reason, and served once another one has left.
    #[test]
    fn an_origin_too_many_is_given_the_reason() {
        let options = Options::default();
        let any = ["127.0.0.1:0".parse().unwrap()];
        let server = RegionServer::bind_for(&any, &options, 2).unwrap();
        let exposed = Exposed::memory(0, Buffer::writable(vec![7; 10]));
        server.serve("table", 10, Rule::All, vec![exposed]).unwrap();
        let connect = || Region::connect("table", &[server.addresses()], &options);
        let (first, second) = (connect().unwrap(), connect().unwrap());
        for _ in 0..2 {
            let refused = connect().unwrap_err();
            assert!(
                refused.to_string().contains("serves 2 origins"),
                "{refused}"
            );
            assert!(refused.is_retryable());
        }
        assert_eq!(first.get(0..10).unwrap(), [7; 10]);
        drop(first);
        let until = Instant::now() + Duration::from_secs(60);
        let third = loop {
            match connect() {
                Ok(third) => break third,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        };
        assert_eq!(third.get(0..10).unwrap(), second.get(0..10).unwrap());
    }
}
