//! Streams, sources and sinks for the conformance tests.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ropewalk_lane::*;
use ropewalk_model::{ByteRate, Range};
use socket2::{Domain, Socket, Type};

/// Far beyond what any test takes; reached only when something hangs.
pub const LONG: Duration = Duration::from_secs(60);
/// Period of the contents; no divisor of any fragment length.
const PERIOD: usize = 65_521;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mem,
    Tcp4,
    Tcp6,
    /// TCP whose ends have two addresses: each takes the other one for another host.
    TcpApart,
    Unix,
    Shm,
    Mpi,
    Blast4,
    Watched6,
}

const KINDS: [Kind; 8] = [
    Kind::Mem,
    Kind::Tcp4,
    Kind::Tcp6,
    Kind::TcpApart,
    Kind::Unix,
    Kind::Shm,
    Kind::Blast4,
    Kind::Watched6,
];

/// The first ones of these are streams.
const STREAMS: usize = 6;

/// All kinds of this process: a rank of MPI has only that one.
pub fn kinds() -> &'static [Kind] {
    match super::mpi::is_rank() {
        true => &[Kind::Mpi],
        false => &KINDS,
    }
}

/// Those that are streams.
pub fn streams() -> &'static [Kind] {
    match super::mpi::is_rank() {
        true => &[Kind::Mpi],
        false => &KINDS[..STREAMS],
    }
}

/// Makes one end's protection; both ends need their own.
pub type Protect = Box<dyn Fn() -> Protection>;

pub fn protections() -> Vec<(&'static str, Protect)> {
    vec![
        (
            "none",
            Box::new(|| Protection::Plain(Check::None)) as Protect,
        ),
        ("fragment", Box::new(|| Protection::Plain(Check::Fragment))),
        (
            "sealed",
            Box::new(|| Protection::Sealed(seal::stream_keys(&seal::PairSecret([3; 32]), [4; 32]))),
        ),
    ]
}

pub fn tcp_pair(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn tcp_pair_apart() -> (TcpStream, TcpStream) {
    let address = |host| SocketAddr::from(([127, 0, 0, host], 0));
    let listener = TcpListener::bind(address(1)).unwrap();
    let near = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    near.bind(&address(2).into()).unwrap();
    near.connect(&listener.local_addr().unwrap().into())
        .unwrap();
    (near.into(), listener.accept().unwrap().0)
}

pub fn pair(kind: Kind, protect: &Protect) -> (Box<dyn ReceiveHalf>, Box<dyn SendHalf>) {
    match kind {
        Kind::Mem => mem::pair(protect(), protect()).unwrap(),
        Kind::Tcp4 | Kind::Tcp6 | Kind::TcpApart => {
            let (near, far) = match kind {
                Kind::Tcp4 => tcp_pair("127.0.0.1:0"),
                Kind::Tcp6 => tcp_pair("[::1]:0"),
                _ => tcp_pair_apart(),
            };
            (
                tcp::receive_half(near, protect()).unwrap(),
                tcp::send_half(far, protect()).unwrap(),
            )
        }
        Kind::Blast4 | Kind::Watched6 => {
            let options = udp::Options {
                rate: Some(ByteRate(60_000_000)),
                mtu: None,
                order: udp::Order::RepairsFirst,
                monitor: (kind == Kind::Watched6).then_some(Default::default()),
                // None is lost for lack of room, so that units arrive in order.
                receive_buffer: Some(8 << 20),
            };
            let (near, far) = tcp_pair(if kind == Kind::Blast4 {
                "127.0.0.1:0"
            } else {
                "[::1]:0"
            });
            (
                udp::receive_half(near, protect(), options).unwrap(),
                udp::send_half(far, protect(), options).unwrap(),
            )
        }
        Kind::Shm => {
            let (near, far) = UnixStream::pair().unwrap();
            (
                shm::receive_half(near, protect()).unwrap(),
                shm::send_half(far, protect()).unwrap(),
            )
        }
        Kind::Mpi => {
            super::mpi::start();
            let (near, far) = UnixStream::pair().unwrap();
            (
                ropewalk_lane::mpi::receive_half(near, protect()).unwrap(),
                ropewalk_lane::mpi::send_half(far, protect()).unwrap(),
            )
        }
        Kind::Unix => {
            let name: [u8; 16] = preface::random_bytes();
            let listener = unix::listen(&name).unwrap();
            let near: UnixStream = unix::connect(&name).unwrap();
            let far = listener.accept().unwrap().0;
            (
                unix::receive_half(near, protect()).unwrap(),
                unix::send_half(far, protect()).unwrap(),
            )
        }
    }
}

pub fn grant(id: u32, start: u64, end: u64, hash: bool) -> Grant {
    Grant {
        id,
        space: 2,
        range: Range::new(start, end),
        hash,
        digest: false,
    }
}

pub fn receive(receiver: &mut dyn ReceiveHalf, landing: &mut dyn Landing) -> Received {
    match receiver.receive(landing, Instant::now() + LONG).unwrap() {
        Received::Idle => panic!("nothing came within {LONG:?}"),
        other => other,
    }
}

fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut state = 1_u32;
        (0..PERIOD * 40)
            .map(|at| {
                if at % PERIOD == 0 {
                    state = 1;
                }
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect()
    })
}

fn phase(offset: u64) -> usize {
    (offset % PERIOD as u64) as usize
}

/// What every offset of the generated space holds.
pub fn contents(range: Range) -> Vec<u8> {
    pattern()[phase(range.start)..][..range.len() as usize].to_vec()
}

/// Where the generated source says its bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Memory,
    File,
    Mapped,
    /// Extents too short to be sent from their place.
    Crumbs,
}

/// Landing with or without buffers, and source modes, that together take every path.
pub const MODES: [(bool, Mode); 5] = [
    (false, Mode::Memory),
    (true, Mode::Memory),
    (true, Mode::File),
    (false, Mode::Mapped),
    (false, Mode::Crumbs),
];

pub struct Generated {
    mode: Mode,
    file: Arc<File>,
}

impl Generated {
    pub fn new(mode: Mode) -> Self {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(pattern()).unwrap();
        Self {
            mode,
            file: Arc::new(file),
        }
    }
}

impl Generated {
    /// Mapped contents whose file has lost all but its first bytes.
    pub fn shrunk(bytes: u64) -> Self {
        let generated = Self::new(Mode::Mapped);
        generated.file.set_len(bytes).unwrap();
        generated
    }
}

impl Provider for Generated {
    fn extent(&self, space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        assert_eq!(space, 2);
        let bytes = &pattern()[phase(range.start)..];
        let file = |mapped| Extent::File {
            file: self.file.clone(),
            offset: phase(range.start) as u64,
            length: 300_000,
            mapped,
        };
        Ok(match self.mode {
            Mode::Memory => Extent::Memory(bytes),
            Mode::File => file(None),
            Mode::Mapped => file(Some(bytes)),
            Mode::Crumbs => Extent::Memory(&bytes[..100]),
        })
    }

    fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        assert_eq!(space, 2);
        out.copy_from_slice(&pattern()[phase(offset)..][..out.len()]);
        Ok(())
    }
}

/// Generated contents, read only of the unit that was said to be next.
pub struct Announced {
    contents: Generated,
    units: Mutex<Vec<Range>>,
    /// Most units that were known at once.
    pub most: Arc<AtomicUsize>,
    /// Units that were known last.
    pub last: Arc<AtomicUsize>,
}

impl Announced {
    pub fn new() -> Self {
        Self {
            contents: Generated::new(Mode::File),
            units: Mutex::default(),
            most: Arc::default(),
            last: Arc::default(),
        }
    }

    fn check(&self, range: Range) {
        let units = self.units.lock().unwrap();
        let next = units.first().expect("a unit is announced");
        let is_in = next.start <= range.start && range.end <= next.end;
        assert!(is_in, "{range:?} is not of {next:?}");
    }
}

impl Provider for Announced {
    fn extent(&self, space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        self.check(range);
        self.contents.extent(space, range)
    }

    fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        self.check(Range::new(offset, offset + out.len() as u64));
        self.contents.read(space, offset, out)
    }

    fn granted(&self, units: &mut dyn Iterator<Item = (u16, Range)>) {
        let now: Vec<Range> = units.map(|(_, unit)| unit).collect();
        self.most.fetch_max(now.len(), Ordering::Relaxed);
        self.last.store(now.len(), Ordering::Relaxed);
        let before = std::mem::replace(&mut *self.units.lock().unwrap(), now.clone());
        let goes_on = now.starts_with(before.get(1..).unwrap_or_default());
        assert!(goes_on, "{now:?} after {before:?}");
    }
}

/// Contents with a hole, of which nothing may be read, and with zeros that are read as other bytes are.
#[derive(Default)]
pub struct Sparse {
    /// What was not sent.
    pub skipped: Arc<Mutex<Vec<Range>>>,
}

impl Sparse {
    pub const HOLE: Range = Range {
        start: 1 << 20,
        end: 3 << 20,
    };
    pub const ZEROS: Range = Range {
        start: 5 << 20,
        end: (5 << 20) + (200 << 10),
    };

    pub fn contents(range: Range) -> Vec<u8> {
        let mut bytes = contents(range);
        for (byte, at) in bytes.iter_mut().zip(range.start..) {
            if Self::HOLE.contains(at) || Self::ZEROS.contains(at) {
                *byte = 0;
            }
        }
        bytes
    }
}

impl Provider for Sparse {
    fn extent(&self, space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        let _ = (space, range);
        // It is to be read.
        Ok(Extent::Memory(&[]))
    }

    fn is_hole(&self, _space: u16, range: Range) -> bool {
        Self::HOLE.start <= range.start && range.end <= Self::HOLE.end
    }

    fn read(&self, _space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        let range = Range::new(offset, offset + out.len() as u64);
        assert!(!self.is_hole(0, range), "a hole is read: {range:?}");
        out.copy_from_slice(&Self::contents(range));
        Ok(())
    }

    fn skipped(&self, _space: u16, range: Range) {
        self.skipped.lock().unwrap().push(range);
    }
}

/// Generated contents of which the hash of one unit is said without reading it.
pub struct Known {
    pub contents: Generated,
    pub unit: Range,
    /// Units that were read to be sent, with a hash, and those that were read for their hash.
    pub hashed: Arc<Mutex<Vec<(Range, bool)>>>,
}

impl Known {
    /// What is said of it; its bytes have another one.
    pub const HASH: [u8; 32] = [7; 32];

    fn note(&self, range: Range, digest: &[u8; 32], is_sent: bool) {
        assert_eq!(digest, blake3::hash(&contents(range)).as_bytes());
        self.hashed.lock().unwrap().push((range, is_sent));
    }
}

impl Provider for Known {
    fn extent(&self, space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        self.contents.extent(space, range)
    }

    fn read(&self, space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        self.contents.read(space, offset, out)
    }

    fn hashed(&self, space: u16, range: Range, digest: &[u8; 32]) {
        assert_eq!(space, 2);
        self.note(range, digest, true);
    }

    fn hash(
        &self,
        space: u16,
        range: Range,
        read: &mut dyn FnMut() -> Result<[u8; 32], Absent>,
    ) -> Result<[u8; 32], Absent> {
        assert_eq!(space, 2);
        if range == self.unit {
            return Ok(Self::HASH);
        }
        let digest = read()?;
        self.note(range, &digest, false);
        Ok(digest)
    }

    fn is_hashed(&self, _space: u16, range: Range) -> bool {
        range == self.unit
    }
}

/// Generated contents with a hole that cannot be read.
pub struct Refusing {
    pub from: u64,
    pub to: u64,
}

impl Refusing {
    fn absent() -> Absent {
        Absent {
            code: missing::UNREADABLE,
            reason: format!("a hole {}", "ö".repeat(400)),
        }
    }
}

impl Provider for Refusing {
    fn extent(&self, _space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        if (self.from..self.to).contains(&range.start) {
            return Err(Self::absent());
        }
        let length = if range.start < self.from {
            self.from - range.start
        } else {
            range.len()
        };
        Ok(Extent::Memory(
            &pattern()[phase(range.start)..][..length.min(range.len()) as usize],
        ))
    }

    fn read(&self, _space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        if offset < self.to && offset + out.len() as u64 > self.from {
            return Err(Self::absent());
        }
        out.copy_from_slice(&pattern()[phase(offset)..][..out.len()]);
        Ok(())
    }
}

/// Shut until the receiver has waited in vain once.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn open_after_waiting(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let shut = self.0.0.lock().unwrap();
        let result = self
            .0
            .1
            .wait_timeout_while(shut, LONG, |open| !*open)
            .unwrap();
        assert!(!result.1.timed_out());
    }
}

/// Generated contents whose third quarter waits for the gate.
pub struct Gated {
    pub gate: Gate,
}

impl Provider for Gated {
    fn extent(&self, _space: u16, range: Range) -> Result<Extent<'_>, Absent> {
        if range.start >= 512 << 10 {
            self.gate.pass();
        }
        Ok(Extent::Memory(
            &pattern()[phase(range.start)..][..256 << 10],
        ))
    }

    fn read(&self, _space: u16, offset: u64, out: &mut [u8]) -> Result<(), Absent> {
        if offset + out.len() as u64 > 512 << 10 {
            self.gate.pass();
        }
        out.copy_from_slice(&pattern()[phase(offset)..][..out.len()]);
        Ok(())
    }
}

/// Keeps what it is given, by offset; with buffers it gives places instead of taking bytes.
pub struct Memory {
    buffered: bool,
    parts: BTreeMap<u64, Vec<u8>>,
}

impl Memory {
    pub fn new(buffered: bool) -> Self {
        Self {
            buffered,
            parts: BTreeMap::new(),
        }
    }

    pub fn read(&self, range: Range) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < range.len() as usize {
            let at = range.start + out.len() as u64;
            let (start, part) = self
                .parts
                .range(..=at)
                .next_back()
                .expect("bytes were landed");
            let part = &part[(at - start) as usize..];
            assert!(!part.is_empty(), "nothing landed at {at}");
            out.extend_from_slice(part);
        }
        out.truncate(range.len() as usize);
        out
    }
}

impl Landing for Memory {
    fn buffer(&mut self, space: u16, offset: u64, length: usize) -> Option<&mut [u8]> {
        assert_eq!(space, 2);
        if !self.buffered {
            return None;
        }
        let part = self.parts.entry(offset).or_default();
        part.resize(length, 0);
        Some(part)
    }

    fn write(
        &mut self,
        space: u16,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        assert_eq!(space, 2);
        self.parts.insert(offset, bytes.to_vec());
        Ok(())
    }
}
