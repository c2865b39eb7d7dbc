//! A copy of a data set between hosts.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ropewalk_master::request::{
    Destinations, Mapping, NodeRequest, Object, ObjectRequest, Options, Reach, RemoteProgram,
    Request, Sources, Verify,
};
use ropewalk_master::{Cancel, Members};
use ropewalk_model::ByteRate;
use ropewalk_proto::report::{Event, Report};

use crate::agent::runtime;
use crate::running::carry_out;
use crate::{Error, Running};

/// A file or folder on a host, or a buffer of a program, and how the agent there is reached.
#[derive(Clone, Debug)]
pub struct Place {
    reach: Reach,
    object: Object,
}

impl Place {
    /// On this host, through a process of the command `ropewalk` that is started for the transfer.
    pub fn here(path: impl AsRef<Path>) -> Self {
        Self::at(Reach::Local, path)
    }

    /// On a host that ssh reaches (`host`, `user@host`), where the command `ropewalk` is installed.
    pub fn over_ssh(target: impl Into<String>, path: impl AsRef<Path>) -> Self {
        Self::at(Reach::Ssh(target.into()), path)
    }

    /// Served by an agent that runs already; needs [`Transfer::token`].
    pub fn at_agent(host: impl Into<String>, port: u16, path: impl AsRef<Path>) -> Self {
        let host = host.into();
        Self::at(Reach::Attached { host, port }, path)
    }

    /// A buffer that the program of an [`Agent`](crate::Agent) has lent, this one or another. As a source it is the only one, and its copy is a
    /// file. As a destination it gets the bytes of one file, or of a buffer, from its beginning on; it may be longer.
    /// Needs [`Transfer::token`].
    pub fn buffer(host: impl Into<String>, port: u16, name: impl Into<String>) -> Self {
        let host = host.into();
        Self {
            reach: Reach::Attached { host, port },
            object: Object::Buffer(name.into()),
        }
    }

    fn at(reach: Reach, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().as_os_str().as_bytes().to_vec();
        Self {
            reach,
            object: Object::Path(path),
        }
    }
}

/// A copy from one or more sources to one or more destinations.
///
/// Several sources are replicas, or disjoint parts, of one data set: which of them is found out by their paths, sizes and
/// times. Each destination gets a whole copy. Files appear under their names when they are complete and safe.
pub struct Transfer {
    nodes: Vec<NodeRequest>,
    mapping: Mapping,
    options: Options,
    cancel: Cancel,
    on_event: OnEvent,
}

type OnEvent = Box<dyn FnMut(Event) + Send>;

impl fmt::Debug for Transfer {
    // Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes.iter().map(|node| &node.name);
        f.debug_struct("Transfer")
            .field("nodes", &nodes.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Default for Transfer {
    fn default() -> Self {
        Self::new()
    }
}

impl Transfer {
    /// A transfer of nothing to nowhere.
    #[must_use]
    pub fn new() -> Self {
        Self {
            nodes: Vec::new(),
            mapping: Mapping::Trees {
                sources: Sources::Auto,
                destinations: Destinations::Copies,
            },
            // A library does not know which program it is part of.
            options: Options {
                remote_program: RemoteProgram::At("ropewalk".into()),
                ..Options::default()
            },
            cancel: Cancel::new(),
            on_event: Box::new(drop),
        }
    }

    /// One more source: a replica, or a part.
    #[must_use]
    pub fn from(mut self, place: Place) -> Self {
        let object = object(&place);
        self.node(place.reach).sources.push(object);
        self
    }

    /// One more destination, the copy's own path. What is there is replaced.
    #[must_use]
    pub fn to(mut self, place: Place) -> Self {
        let object = object(&place);
        self.node(place.reach).sinks.push(object);
        self
    }

    /// The program that serves places of this host, of this version; unless given, `ropewalk` in the search path.
    #[must_use]
    pub fn local_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.options.local_program = program.into();
        self
    }

    /// The secret of agents that run already.
    #[must_use]
    pub fn token(mut self, token: [u8; 32]) -> Self {
        self.options.token = Some(token);
        self
    }

    /// Most bytes per second over all destinations together.
    #[must_use]
    pub fn limit(mut self, rate: ByteRate) -> Self {
        self.options.limit = Some(rate.0);
        self
    }

    /// What is checked beyond delivery itself; a hash of every chunk unless set.
    #[must_use]
    pub fn verify(mut self, verify: Verify) -> Self {
        self.options.verify = verify;
        self
    }

    /// As [`Transfer::token`], from the file that `ropewalk agent --new-token FILE` makes.
    ///
    /// # Errors
    /// [`Error::Host`] for a file that cannot be read, that others can read, or that is no token file.
    pub fn token_file(self, file: impl AsRef<Path>) -> Result<Self, Error> {
        Ok(self.token(crate::read_token(file)?))
    }

    /// Sets an option by the name that `ropewalk copy` has for it: `verify`, `limit`, `streams`, `lane`, `plain`, `rails`, `archive`, `atomic`, `delete`,
    /// `delta`, `destinations`, `hard-links` or `sources`. Those without a value there are `true` or `false` here.
    ///
    /// # Errors
    /// [`Error::Input`] with the names, or the values, that there are.
    pub fn option(mut self, name: &str, value: &str) -> Result<Self, Error> {
        crate::options::set_of_copy(&mut self.options, &mut self.mapping, name, value)?;
        Ok(self)
    }

    /// Gets every event while the transfer runs: nodes reached, the plan, progress, notes.
    #[must_use]
    pub fn on_event(mut self, on_event: impl FnMut(Event) + Send + 'static) -> Self {
        self.on_event = Box::new(on_event);
        self
    }

    /// A switch that ends the transfer from another thread.
    #[must_use]
    pub fn cancel_switch(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Carries it out and waits for its end. Not from within a runtime of tokio: see [`Transfer::run_async`].
    ///
    /// # Errors
    /// Whatever the outcome is but [`Outcome::Done`](crate::Outcome::Done), sorted by the party that must act; the report is in the error.
    pub fn run(self) -> Result<Report, Error> {
        runtime()?.block_on(self.run_async())
    }

    /// The same within a runtime of tokio.
    ///
    /// # Errors
    /// As [`Transfer::run`].
    pub async fn run_async(self) -> Result<Report, Error> {
        crate::process::enter()?;
        let (request, cancel, on_event) = self.into_parts();
        carry_out(request, cancel, Members::new(), on_event).await
    }

    /// Starts it on threads of its own; [`Running`] says how far it is.
    ///
    /// # Errors
    /// [`Error::Host`] for threads or descriptors that the system does not give.
    pub fn start(self) -> Result<Running, Error> {
        let (request, cancel, on_event) = self.into_parts();
        Running::start(request, cancel, on_event)
    }

    fn into_parts(self) -> (Request, Cancel, OnEvent) {
        let request = Request {
            label: None,
            nodes: self.nodes,
            mapping: self.mapping,
            links: Vec::new(),
            options: self.options,
        };
        (request, self.cancel, self.on_event)
    }

    /// The part of the agent that is reached so.
    fn node(&mut self, reach: Reach) -> &mut NodeRequest {
        let known = self.nodes.iter().position(|node| node.reach == reach);
        let at = known.unwrap_or(self.nodes.len());
        if known.is_none() {
            self.nodes.push(NodeRequest {
                name: name(&reach),
                reach,
                sources: Vec::new(),
                sinks: Vec::new(),
                up: None,
                down: None,
                interfaces: Vec::new(),
            });
        }
        &mut self.nodes[at]
    }
}

/// As reports name it; one agent, one name.
fn name(reach: &Reach) -> String {
    match reach {
        Reach::Local => "localhost".into(),
        Reach::Ssh(target) | Reach::Launched(target) => target.clone(),
        Reach::Attached { host, port } => format!("{host}:{port}"),
    }
}

fn object(place: &Place) -> ObjectRequest {
    ObjectRequest {
        object: place.object.clone(),
        rows: Vec::new(),
        destination: None,
        make_folder: false,
    }
}
