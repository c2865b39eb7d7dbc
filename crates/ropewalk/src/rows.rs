//! A transfer that is described row by row: CEP's own interface (section 3.1, Table 1).

use std::fmt;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::str::FromStr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ropewalk_master::request::{Mapping, Options, Reach, RemoteProgram, Request};
use ropewalk_master::{Cancel, Joined, Joining, MembersError, StandingMaster, rows};
use ropewalk_model::spec::{FilePath, is_buffer_name, is_host};
use ropewalk_model::{AddressError, ByteRate, Hints, HostPort, Role, TransferSpec, Uri};
use ropewalk_proto::control::ServeOption;
use ropewalk_proto::handover;
use ropewalk_proto::report::{Event, Report};
use ropewalk_store::BufferError;

use crate::error::Fault;
use crate::handed::Job;
use crate::{Error, Running};

/// How long [`RowTransfer::wait`] waits before it looks for rows whose nodes can join.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a loop that waits for nothing waits all the same where its transfer has ended and a node is about to join it.
const SHORT: Duration = Duration::from_millis(1);

/// One row of a specification file: which bytes of the data space a node has, or wants, and where they are on it.
///
/// Parsed from a line of such a file, or made by [`Row::writer`] and [`Row::reader`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row(ropewalk_model::Row);

impl Row {
    /// The agent at this address has these bytes, from the beginning of the file on.
    ///
    /// # Errors
    /// [`Error::Input`] for a path that is not absolute, or a host that is none.
    pub fn writer(
        host: &str,
        port: u16,
        file: impl AsRef<Path>,
        range: Range<u64>,
    ) -> Result<Self, Error> {
        Self::new(Role::Writer, host, port, path(file.as_ref())?, range)
    }

    /// It wants these bytes, from the beginning of the file on.
    ///
    /// # Errors
    /// As [`Row::writer`].
    pub fn reader(
        host: &str,
        port: u16,
        file: impl AsRef<Path>,
        range: Range<u64>,
    ) -> Result<Self, Error> {
        Self::new(Role::Reader, host, port, path(file.as_ref())?, range)
    }

    /// The program whose [`Agent`](crate::Agent) is at this address has these bytes in a buffer that it has lent, from its beginning on.
    ///
    /// # Errors
    /// [`Error::Input`] for a name that no buffer can have, or a host that is none.
    pub fn from_buffer(
        host: &str,
        port: u16,
        name: &str,
        range: Range<u64>,
    ) -> Result<Self, Error> {
        Self::new(Role::Writer, host, port, buffer(name)?, range)
    }

    /// It wants these bytes in a buffer that it has lent, from its beginning on.
    ///
    /// # Errors
    /// As [`Row::from_buffer`].
    pub fn to_buffer(host: &str, port: u16, name: &str, range: Range<u64>) -> Result<Self, Error> {
        Self::new(Role::Reader, host, port, buffer(name)?, range)
    }

    fn new(role: Role, host: &str, port: u16, uri: Uri, range: Range<u64>) -> Result<Self, Error> {
        if port == 0 || !is_host(host) {
            return Err(Error::Input(Fault::new(format!(
                "\"{host}\" with port {port} is no address of an agent: write a host's name or address, and a port from 1 on"
            ))));
        }
        if range.start > range.end {
            return Err(Error::Input(Fault::new(format!(
                "the range {}..{} ends before it starts",
                range.start, range.end
            ))));
        }
        Ok(Self(ropewalk_model::Row {
            role,
            host_port: HostPort {
                host: host.into(),
                port,
            },
            uri,
            file_offset: 0,
            range: ropewalk_model::Range::new(range.start, range.end),
            hints: Hints::default(),
            line: 0,
        }))
    }

    /// Position in the file, or in the buffer, of the first byte of the range.
    #[must_use]
    pub fn file_offset(mut self, offset: u64) -> Self {
        self.0.file_offset = offset;
        self
    }

    /// Speed of the node: what it can send for a writer, receive for a reader. Plans and bounds follow it.
    #[must_use]
    pub fn rate(mut self, rate: ByteRate) -> Self {
        match self.0.role {
            Role::Writer => self.0.hints.up = Some(rate),
            Role::Reader => self.0.hints.down = Some(rate),
        }
        self
    }

    /// Readers with one name write different ranges of one file on a file system that they share.
    #[must_use]
    pub fn destination(mut self, name: impl Into<String>) -> Self {
        self.0.hints.destination = Some(name.into());
        self
    }
}

fn path(file: &Path) -> Result<Uri, Error> {
    let path = FilePath::new(file.as_os_str().as_bytes());
    let path = path.map_err(|error| Error::Input(Fault::of(error)))?;
    Ok(Uri::File(path))
}

fn buffer(name: &str) -> Result<Uri, Error> {
    match is_buffer_name(name) {
        true => Ok(Uri::Buffer(name.into())),
        false => Err(BufferError::BadName { name: name.into() }.into()),
    }
}

impl FromStr for Row {
    type Err = Error;

    /// Reads a row as it is written in a specification file: `writer node1:7420 file:///data/half1 0 0-1023`.
    fn from_str(line: &str) -> Result<Self, Error> {
        let mut spec = TransferSpec::parse_added(line)?;
        match spec.rows.len() {
            1 => Ok(Self(spec.rows.remove(0))),
            rows => Err(Error::Input(Fault::new(format!(
                "one row is expected, and there are {rows}"
            )))),
        }
    }
}

/// A transfer that is described row by row and started when its rows are there, as in CEP Table 1.
///
/// [`RowTransfer::transfer`] never waits, for event loops: the transfer has a descriptor ([`AsFd`]) that is readable when there is something
/// to look at. Threads call [`RowTransfer::wait`]. After an error that may pass the same calls continue the transfer with the same rows.
///
/// Rows that are scheduled while it runs join it once bytes move: a node that has data helps at once. Readers that are too late for that get
/// their bytes from the same writers after it, before the report, which is then that of these rows. Rows of one node cannot grow.
pub struct RowTransfer {
    spec: TransferSpec,
    // Rows that no transfer has yet.
    fresh: Vec<ropewalk_model::Row>,
    options: Options,
    // As they were set, for a standing master.
    given: Vec<(String, String)>,
    master: Option<HostPort>,
    uses_ssh: bool,
    cancel: Cancel,
    running: Option<Running>,
    joining: Option<Party>,
    // Of the last transfer that has ended.
    sent: u64,
}

/// Rows whose nodes are to take part in a running transfer.
struct Party {
    rows: Vec<ropewalk_model::Row>,
    thread: JoinHandle<Result<Vec<Joined>, MembersError>>,
}

impl fmt::Debug for RowTransfer {
    // Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowTransfer")
            .field("rows", &self.spec.rows)
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl Default for RowTransfer {
    fn default() -> Self {
        Self::new()
    }
}

impl RowTransfer {
    /// A transfer without rows.
    #[must_use]
    pub fn new() -> Self {
        Self {
            spec: TransferSpec::default(),
            fresh: Vec::new(),
            options: Options {
                remote_program: RemoteProgram::At("ropewalk".into()),
                ..Options::default()
            },
            given: Vec::new(),
            master: None,
            uses_ssh: false,
            cancel: Cancel::new(),
            running: None,
            joining: None,
            sent: 0,
        }
    }

    /// The secret of the agents.
    pub fn token(&mut self, token: [u8; 32]) -> &mut Self {
        self.options.token = Some(token);
        self
    }

    /// As [`RowTransfer::token`], from the file that `ropewalk agent --new-token FILE` makes.
    ///
    /// # Errors
    /// [`Error::Host`] for a file that cannot be read, that others can read, or that is no token file.
    pub fn token_file(&mut self, file: impl AsRef<Path>) -> Result<&mut Self, Error> {
        Ok(self.token(crate::read_token(file)?))
    }

    /// Agents are started over ssh on the hosts of the rows, and ports only distinguish nodes; but those of programs that have lent buffers for
    /// rows run already.
    pub fn over_ssh(&mut self) -> &mut Self {
        self.uses_ssh = true;
        self
    }

    /// A standing master (`ropewalk serve --listen`) carries the transfer out, from its queue: this program hands the rows over, with the options
    /// that were set by name and the limit, and follows. It needs the master's token ([`RowTransfer::token`]), which must be the agents'. The job
    /// goes on when this program ends; [`RowTransfer::cancel`] ends it. Rows that are scheduled meanwhile are those of the next transfer.
    ///
    /// # Errors
    /// [`Error::Input`] for an address that is not `HOST:PORT`.
    pub fn master(&mut self, at: &str) -> Result<&mut Self, Error> {
        let at = at
            .parse()
            .map_err(|error: AddressError| Error::Input(Fault::of(error)))?;
        self.master = Some(at);
        Ok(self)
    }

    /// Most bytes per second over all readers together, of transfers that begin after the call; `None` for no limit.
    pub fn limit(&mut self, rate: impl Into<Option<ByteRate>>) -> &mut Self {
        let rate = rate.into();
        self.options.limit = rate.map(|rate| rate.0);
        self.keep("limit", rate.map(|rate| format!("{}B/s", rate.0)));
        self
    }

    /// Sets an option by the name that the command has for it: `verify`, `limit`, `streams`, `lane`, `plain` or `rails`. It holds for transfers that begin
    /// after the call.
    ///
    /// # Errors
    /// [`Error::Input`] with the names, or the values, that there are.
    pub fn option(&mut self, name: &str, value: &str) -> Result<&mut Self, Error> {
        crate::options::set_of_rows(&mut self.options, name, value)?;
        let is_given = match name {
            "plain" => self.options.plain,
            "limit" => self.options.limit.is_some(),
            _ => true,
        };
        self.keep(name, is_given.then(|| value.to_owned()));
        Ok(self)
    }

    /// Keeps what a standing master is given.
    fn keep(&mut self, name: &str, value: Option<String>) {
        self.given.retain(|(known, _)| known != name);
        self.given
            .extend(value.map(|value| (name.to_owned(), value)));
    }

    /// Adds one row; nothing moves before [`RowTransfer::transfer`].
    pub fn schedule(&mut self, row: Row) {
        self.fresh.push(row.0);
    }

    /// Starts the transfer, or continues it: takes in rows that are new, and looks how far it is. Returns at once. The report when
    /// all is delivered, `None` while it runs; rows that are scheduled after the report are those of another transfer.
    ///
    /// # Errors
    /// [`Error::Input`] for rows that contradict each other, or of which no transfer can be made, and for a node that is not admitted, which
    /// leaves the transfer as it is; else as [`Transfer::run`](crate::Transfer::run). The rows stay: the next call tries again.
    pub fn transfer(&mut self) -> Result<Option<Report>, Error> {
        self.step(Duration::ZERO)
    }

    /// As [`RowTransfer::transfer`], and waits for the end.
    ///
    /// # Errors
    /// As [`RowTransfer::transfer`].
    pub fn wait(&mut self) -> Result<Report, Error> {
        loop {
            if let Some(report) = self.step(LOOK_EVERY)? {
                return Ok(report);
            }
        }
    }

    /// As [`RowTransfer::transfer`], and waits for the end at most so long.
    ///
    /// # Errors
    /// As [`RowTransfer::transfer`].
    pub fn wait_for(&mut self, most: Duration) -> Result<Option<Report>, Error> {
        let end = Instant::now().checked_add(most);
        loop {
            let left = end.map_or(LOOK_EVERY, |end| {
                end.saturating_duration_since(Instant::now())
            });
            let ended = self.step(left.min(LOOK_EVERY))?;
            if ended.is_some() || left.is_zero() {
                return Ok(ended);
            }
        }
    }

    /// Bytes of the running or last transfer that are in the destinations, checked and on stable storage; all readers together.
    #[must_use]
    pub fn data_sent(&self) -> u64 {
        self.running.as_ref().map_or(self.sent, Running::data_sent)
    }

    /// What has happened since the last call; see [`Running::events`].
    pub fn events(&mut self) -> Vec<Event> {
        self.running.as_mut().map_or_else(Vec::new, Running::events)
    }

    /// The descriptor of the running transfer, for `poll`: readable when there are new events, or the end. It is another one after
    /// each end.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(AsFd::as_fd)
    }

    /// Ends the running transfer within a second; the next [`RowTransfer::transfer`] or [`RowTransfer::wait`] returns its end.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    fn reach(&self, spec: &TransferSpec, at: &HostPort) -> Reach {
        let rows = spec.rows.iter().filter(|row| row.host_port == *at);
        let mut uris = rows.map(|row| &row.uri);
        match self.uses_ssh && !uris.any(|uri| matches!(uri, Uri::Buffer(_))) {
            true => Reach::Ssh(at.host.clone()),
            false => Reach::Attached {
                host: at.host.clone(),
                port: at.port,
            },
        }
    }

    fn step(&mut self, most: Duration) -> Result<Option<Report>, Error> {
        match &self.running {
            None => self.start()?,
            // One that has ended takes no more.
            Some(running)
                if running.is_planned() && !running.is_done() && self.master.is_none() =>
            {
                self.admit()?;
            }
            Some(_) => {}
        }
        let Some(running) = &mut self.running else {
            return Ok(None);
        };
        if !running.wait_end(most) {
            return Ok(None);
        }
        if let Some(party) = self.joining.take_if(|_| running.is_done()) {
            if !party.thread.is_finished() {
                // Whether its rows are delivered, too, is not known before. Loops that never wait are slowed down meanwhile: the end is announced.
                self.joining = Some(party);
                std::thread::sleep(most.clamp(SHORT, LOOK_EVERY));
                return Ok(None);
            }
            self.joined(party)?;
        }
        let Some(running) = &mut self.running else {
            return Ok(None);
        };
        let ended = running.poll();
        self.sent = running.data_sent();
        self.running = None;
        let joining = self.joining.take();
        self.spec
            .rows
            .extend(joining.into_iter().flat_map(|party| party.rows));
        if ended.is_ok() {
            let done = mem::take(&mut self.spec);
            // A standing master has these in its next job.
            let is_more = self.fresh.iter().any(|row| row.role == Role::Reader);
            if is_more && self.master.is_none() && !self.cancel.is_cancelled() {
                let late = self.fresh.clone();
                let writers = done.rows.into_iter().filter(|row| row.role == Role::Writer);
                self.fresh.splice(0..0, writers);
                match self.start() {
                    Ok(()) => return Ok(None),
                    // They contradict each other, or what was delivered: the next call says so.
                    Err(_) => self.fresh = late,
                }
            }
        }
        ended
    }

    fn start(&mut self) -> Result<(), Error> {
        let mut spec = self.spec.clone();
        spec.rows.extend(self.fresh.iter().cloned());
        spec.validate()?;
        if let Some(at) = &self.master {
            self.cancel = Cancel::new();
            let job = self.job(at, &spec)?;
            self.running = Some(Running::follow(job, self.cancel.clone())?);
            self.spec = spec;
            self.fresh.clear();
            return Ok(());
        }
        let request = Request {
            label: None,
            nodes: rows::nodes(&spec, |at| self.reach(&spec, at)),
            mapping: Mapping::Rows,
            links: Vec::new(),
            options: self.options.clone(),
        };
        self.cancel = Cancel::new();
        self.running = Some(Running::start(request, self.cancel.clone(), drop)?);
        self.spec = spec;
        self.fresh.clear();
        Ok(())
    }

    fn job(&self, at: &HostPort, spec: &TransferSpec) -> Result<Job, Error> {
        let input = |text: &str| Error::Input(Fault::new(text));
        let Some(token) = self.options.token else {
            return Err(input(
                "a standing master needs its token; give it to the transfer",
            ));
        };
        if self.uses_ssh {
            return Err(input(
                "a standing master reaches running agents, and none over ssh; carry the transfer out here, or start agents",
            ));
        }
        let options = self.given.iter().map(|(name, value)| ServeOption {
            name: name.clone(),
            value: match name.as_str() {
                "plain" => String::new(),
                _ => value.clone(),
            },
        });
        let options: Vec<_> = options.collect();
        handover::words(&options).map_err(|error| Error::Input(Fault::of(error)))?;
        Ok(Job {
            master: StandingMaster {
                at: at.clone(),
                token,
            },
            specification: spec.to_string(),
            options,
        })
    }

    /// Adds the nodes of new rows to the running transfer, in a thread: they have to be reached first.
    fn admit(&mut self) -> Result<(), Error> {
        if let Some(party) = self.joining.take_if(|party| party.thread.is_finished()) {
            self.joined(party)?;
        }
        let Some(running) = self.running.as_ref().filter(|_| {
            // One group of nodes after the other.
            self.joining.is_none() && !self.fresh.is_empty()
        }) else {
            return Ok(());
        };
        let added = TransferSpec {
            rows: mem::take(&mut self.fresh),
            ..TransferSpec::default()
        };
        let nodes = rows::nodes(&added, |at| self.reach(&added, at));
        let members = running.members().clone();
        let join = move || members.join(Joining { nodes, token: None });
        let thread = std::thread::Builder::new().name("ropewalk-join".into());
        match thread.spawn(join) {
            Ok(thread) => {
                let rows = added.rows;
                self.joining = Some(Party { rows, thread });
                Ok(())
            }
            Err(error) => {
                self.fresh = added.rows;
                Err(crate::agent::no_thread(error))
            }
        }
    }

    /// Nodes take part from now on, or not.
    fn joined(&mut self, party: Party) -> Result<(), Error> {
        let Party { rows, thread } = party;
        let joined = thread
            .join()
            .map_err(|_| Error::Bug(Fault::new("a thread panicked while nodes were reached")))?;
        if let Err(MembersError::Ended | MembersError::Waiting(_) | MembersError::Busy) = joined {
            // They are tried again.
            self.fresh.splice(0..0, rows);
            return Ok(());
        }
        self.spec.rows.extend(rows);
        let joined = joined.map_err(not_admitted)?;
        match joined.into_iter().find_map(|joined| joined.error) {
            Some(error) => Err(not_admitted(error)),
            None => Ok(()),
        }
    }
}

fn not_admitted(error: MembersError) -> Error {
    match error {
        MembersError::Unreached(_) => Error::Network(Fault::of(error)),
        error => Error::Input(Fault::of(error)),
    }
}
