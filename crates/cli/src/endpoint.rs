//! Reads one side of `copy`: what it is, and on which hosts.
//!
//! ```text
//!  /data/set   set   ./a:b       a path on this host; a colon before the first slash must be hidden
//!  a[1-4]:/data/set   me@b:/x    paths on hosts reached over ssh
//!  a:set   a:~/set   a:      the same, below the home folder there
//!  c:7420:/data/set  [::1]:7420:/x   a path on a host where an agent listens; c:742[0-3]:/x at four ports
//!  a:/data/*.h5   a:~you/x   as a source, what matches there; another user's home folder there
//!  mem:4GiB   null:   a:mem:4GiB   c:7420:null:   a pattern, or nowhere
//! ```
//!
//! A path means the same whether or not it exists, save patterns, which are read here and expanded at their hosts.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use ropewalk_master::request::{Object, Reach};
use ropewalk_model::Bytes;
use ropewalk_model::host_list::{self, HOSTS_MAX, HostListError};
use ropewalk_model::spec::is_host;
use ropewalk_model::units::UnitError;
use ropewalk_store::{PATH_LEN_MAX, is_pattern};

/// One object on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// How its host is reached.
    pub reach: Reach,
    /// The object; local paths are absolute, paths have no trailing slash.
    pub object: Object,
    /// The path ended as those of folders do: the source goes into it under its own name.
    pub into: bool,
    /// The path ended in `.` or `..`, or is a home folder: what is in it is meant, as with `cp -r` and rsync.
    pub contents: bool,
}

/// Why a text is no endpoint.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum EndpointError {
    /// Nothing was written.
    #[error("an empty path names nothing; write . for this folder")]
    Empty,
    /// `name:port:rest` where the rest is nothing known.
    #[error(
        "`{text}`: an agent that listens on a port takes an absolute path, mem:SIZE or null:, and has no home folder; write {host}:PORT:/path"
    )]
    Rest {
        /// What was written.
        text: String,
        /// What is before the first colon.
        host: String,
    },
    /// An address of IPv6 without its brackets.
    #[error(
        "`{0}`: an IPv6 address needs brackets; write [ADDRESS]:/path, or ./{0} if it is a path of this host"
    )]
    Brackets(String),
    /// An address of the web's form.
    #[error(
        "`{text}`: {scheme}:// is no address here; write {advice}, or ./{text} if it is a path of this host"
    )]
    Scheme {
        /// What was written.
        text: String,
        /// What is before `://`.
        scheme: String,
        /// What to write instead.
        advice: String,
    },
    /// A port out of range.
    #[error("`{text}`: {port} is not a port; ports are 1 to 65535")]
    Port {
        /// What was written.
        text: String,
        /// What stands in its place.
        port: String,
    },
    /// A user for an agent.
    #[error("`{0}`: a user belongs to ssh; an agent that listens on a port is reached without one")]
    UserWithPort(String),
    /// A host's name that is no text, begins with a dash, or is empty.
    #[error("`{0}`: there is no host of this name; if this is a local file, write ./ before it")]
    Host(String),
    /// A host list that cannot be read.
    #[error(transparent)]
    HostList(#[from] HostListError),
    /// A size that cannot be read.
    #[error("`{text}`: {source}")]
    Size {
        /// What was written.
        text: String,
        /// What is wrong with the size.
        source: UnitError,
    },
    /// A source without a size.
    #[error("`{0}`: give the number of bytes, as in mem:4GiB")]
    NoSize(String),
    /// `null:` as a source.
    #[error("`{0}`: null: holds no bytes and cannot be a source; use mem:SIZE")]
    NullSource(String),
    /// `-`, which elsewhere is the standard input or output.
    #[error(
        "`-`: standard input and output are not supported here; for a file of this name write ./-"
    )]
    Dash,
    /// A path that no system call takes.
    #[error(
        "a path of {len} bytes is too long, the system takes {PATH_LEN_MAX} at most; it begins `{begins}`"
    )]
    TooLong {
        /// Bytes that it has.
        len: usize,
        /// Its first letters.
        begins: String,
    },
    /// The working folder has gone.
    #[error("`{text}`: the working folder cannot be found: {reason}; give an absolute path")]
    WorkingFolder {
        /// What was written.
        text: String,
        /// What the system said.
        reason: String,
    },
}

/// Which side of the command an endpoint is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Has the bytes.
    Source,
    /// Gets them.
    Destination,
}

/// Reads a source or destination; a host list gives several endpoints, in the order written.
///
/// # Errors
/// [`EndpointError`], whose text repeats what was written and says what to write instead.
pub(crate) fn parse(text: &OsStr, side: Side) -> Result<Vec<Endpoint>, EndpointError> {
    let bytes = text.as_bytes();
    let shown = || text.to_string_lossy().into_owned();
    if bytes.is_empty() {
        return Err(EndpointError::Empty);
    }
    if bytes == b"-" {
        return Err(EndpointError::Dash);
    }
    if let Some(object) = generated(bytes, side)? {
        return Ok(vec![Endpoint {
            reach: Reach::Local,
            object,
            into: false,
            contents: false,
        }]);
    }
    let Some(colon) = host_end(bytes) else {
        check_len(bytes)?;
        let absolute =
            std::path::absolute(Path::new(text)).map_err(|error| EndpointError::WorkingFolder {
                text: shown(),
                reason: error.to_string(),
            })?;
        let (object, into) = path(absolute.into_os_string(), ends_as_folder(bytes));
        return Ok(vec![Endpoint {
            reach: Reach::Local,
            object,
            into,
            contents: ends_in_dots(bytes),
        }]);
    };
    let hosts = std::str::from_utf8(&bytes[..colon]).map_err(|_| EndpointError::Host(shown()))?;
    let rest = &bytes[colon + 1..];
    if let Some(place) = rest.strip_prefix(b"//") {
        return Err(scheme(hosts, place, shown()));
    }
    // `fe80::1:/x`: a path that begins with a colon is an address without its brackets.
    if rest.first() == Some(&b':') {
        return Err(EndpointError::Brackets(shown()));
    }
    let (ports, rest) = split_ports(rest);
    check_len(rest)?;
    let is_home = below_home(rest).is_empty() || names_user(rest) && !rest.contains(&b'/');
    let contents = is_home || ends_in_dots(rest);
    let (object, into) = match generated(rest, side)? {
        Some(object) => (object, false),
        None if rest.first() == Some(&b'/') => {
            path(OsString::from_vec(rest.to_vec()), ends_as_folder(rest))
        }
        None if ports.is_some() && !names_user(rest) => {
            return Err(EndpointError::Rest {
                text: shown(),
                host: hosts.to_owned(),
            });
        }
        None => {
            let mut below = below_home(rest).to_vec();
            let into = is_home || ends_as_folder(&below);
            if below.is_empty() {
                below.push(b'.');
            } else if below.starts_with(b"~") && !names_user(rest) {
                // A name like any other.
                below.splice(0..0, *b"./");
            }
            path(OsString::from_vec(below), into)
        }
    };
    let object = match object {
        Object::Path(path) if side == Side::Source => asked(path, rest),
        object => object,
    };
    let mut endpoints = Vec::new();
    let ports: Vec<Option<String>> = match ports.map(std::str::from_utf8) {
        // Digits, brackets, dashes and commas.
        Some(ports) => {
            let ports = host_list::expand(ports.unwrap_or_default())?;
            ports.into_iter().map(Some).collect()
        }
        None => vec![None],
    };
    let names = host_list::expand(hosts)?;
    // Each list is bounded, and both together are, too.
    if names.len().saturating_mul(ports.len()) > HOSTS_MAX {
        return Err(HostListError::TooMany(shown()).into());
    }
    for host in names {
        for port in &ports {
            let reach = reach(&host, port.as_deref(), &shown)?;
            endpoints.push(Endpoint {
                reach,
                object: object.clone(),
                into,
                contents,
            });
        }
    }
    Ok(endpoints)
}

/// `rsync://host/path` is no host called rsync. Nothing is lost: `host://path` is `host:/path`.
fn scheme(scheme: &str, place: &[u8], text: String) -> EndpointError {
    let place = String::from_utf8_lossy(place);
    let advice = match (scheme, place.split_once('/')) {
        ("file", Some((_, path))) => format!("/{path}"),
        (_, Some((host, path))) if !host.is_empty() => {
            // A port there is that of ssh or of another program, never of an agent.
            let name = host.split_once(':').map_or(host, |(name, _)| name);
            format!("{name}:/{path} for a host reached over ssh")
        }
        _ => "HOST:/path or /path".to_owned(),
    };
    EndpointError::Scheme {
        text,
        scheme: scheme.to_owned(),
        advice,
    }
}

/// Refuses a path that would fill the screen with the error of the system.
fn check_len(path: &[u8]) -> Result<(), EndpointError> {
    if path.len() <= PATH_LEN_MAX {
        return Ok(());
    }
    let begins = String::from_utf8_lossy(path).chars().take(40).collect();
    let len = path.len();
    Err(EndpointError::TooLong { len, begins })
}

/// `mem:` and `null:`; `None` when the text is neither.
fn generated(bytes: &[u8], side: Side) -> Result<Option<Object>, EndpointError> {
    let shown = || String::from_utf8_lossy(bytes).into_owned();
    if bytes == b"null:" {
        return match side {
            Side::Source => Err(EndpointError::NullSource(shown())),
            Side::Destination => Ok(Some(Object::Null)),
        };
    }
    let Some(size) = bytes.strip_prefix(b"mem:") else {
        return Ok(None);
    };
    if size.is_empty() {
        return match side {
            Side::Source => Err(EndpointError::NoSize(shown())),
            Side::Destination => Ok(Some(Object::Memory(0))),
        };
    }
    let size: Result<Bytes, UnitError> = String::from_utf8_lossy(size).parse();
    let size = size.map_err(|source| EndpointError::Size {
        text: shown(),
        source,
    })?;
    Ok(Some(Object::Memory(size.0)))
}

/// A path that its host has to be asked for.
fn asked(path: Vec<u8>, typed: &[u8]) -> Object {
    match (is_pattern(&path), path.starts_with(b"~")) {
        // The slash asks for folders.
        (true, _) if typed.ends_with(b"/") => Object::Pattern([path.as_slice(), b"/"].concat()),
        (true, _) | (_, true) => Object::Pattern(path),
        (false, false) => Object::Path(path),
    }
}

/// The colon that ends a host list: the first one outside brackets and before any slash.
fn host_end(bytes: &[u8]) -> Option<usize> {
    let mut inside = false;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            // One that is never closed hides nothing: the host list then says what is wrong.
            b'[' => inside = bytes[at..].contains(&b']'),
            b']' => inside = false,
            b'/' => return None,
            b':' if !inside => return Some(at),
            _ => {}
        }
    }
    None
}

/// A path below the home folder that ssh logs in to; as it is where it names another user's.
fn below_home(rest: &[u8]) -> &[u8] {
    match rest.strip_prefix(b"~") {
        Some(below) if !names_user(rest) => {
            let slashes = below.iter().take_while(|byte| **byte == b'/').count();
            &below[slashes..]
        }
        _ => rest,
    }
}

/// Whether a path begins with the home folder of a user who is named.
fn names_user(path: &[u8]) -> bool {
    matches!(path, [b'~', first, ..] if *first != b'/')
}

/// `PORT:rest`, or a list of ports as `742[0-3]:rest`, apart; a rest without a port is given back whole.
fn split_ports(rest: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let mut inside = false;
    let of_ports = |byte: &&u8| {
        inside = **byte == b'[' || inside && **byte != b']';
        byte.is_ascii_digit() || **byte == b'[' || **byte == b']' || inside && b"-,".contains(*byte)
    };
    let len = rest.iter().take_while(of_ports).count();
    match rest.get(len) {
        Some(b':') if len > 0 => (Some(&rest[..len]), &rest[len + 1..]),
        _ => (None, rest),
    }
}

fn reach(
    host: &str,
    port: Option<&str>,
    shown: &dyn Fn() -> String,
) -> Result<Reach, EndpointError> {
    let (user, name) = match host.rsplit_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, host),
    };
    let name = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name);
    if !is_host(name) || user.is_some_and(|user| !is_host(user)) {
        return Err(EndpointError::Host(shown()));
    }
    let Some(port) = port else {
        return Ok(Reach::Ssh(match user {
            Some(user) => format!("{user}@{name}"),
            None => name.to_owned(),
        }));
    };
    if user.is_some() {
        return Err(EndpointError::UserWithPort(shown()));
    }
    match port.parse() {
        Ok(port) if port > 0 => Ok(Reach::Attached {
            host: name.to_owned(),
            port,
        }),
        _ => Err(EndpointError::Port {
            text: shown(),
            port: port.to_owned(),
        }),
    }
}

/// Whether a path means the folder itself: it ends in a slash, `.` or `..`.
fn ends_as_folder(bytes: &[u8]) -> bool {
    matches!(
        bytes.rsplit(|&byte| byte == b'/').next(),
        Some(b"" | b"." | b"..")
    )
}

/// Whether a path ends in `.` or `..`, which have no names of their own.
fn ends_in_dots(bytes: &[u8]) -> bool {
    let last = bytes
        .rsplit(|&byte| byte == b'/')
        .find(|part| !part.is_empty());
    matches!(last, Some(b"." | b".."))
}

/// A path without trailing slashes.
fn path(text: OsString, into: bool) -> (Object, bool) {
    let mut bytes = text.into_vec();
    while bytes.len() > 1 && bytes.ends_with(b"/") {
        bytes.pop();
    }
    (Object::Path(bytes), into)
}

impl Endpoint {
    /// The last component of the path; `None` for `/`, `..` and objects that have no path.
    pub(crate) fn base_name(&self) -> Option<&[u8]> {
        match &self.object {
            Object::Path(path) => Path::new(OsStr::from_bytes(path))
                .file_name()
                .map(OsStr::as_bytes),
            Object::Bundle(_)
            | Object::Pattern(_)
            | Object::Memory(_)
            | Object::Buffer(_)
            | Object::Null => None,
        }
    }

    /// The host as people call it.
    pub(crate) fn host(&self) -> &str {
        host_of(&self.reach)
    }
}

/// The host that a way of reaching leads to, without user and port; `local` for this one.
pub(crate) fn host_of(reach: &Reach) -> &str {
    match reach {
        Reach::Local => "local",
        Reach::Ssh(target) => target.rsplit_once('@').map_or(target, |(_, host)| host),
        Reach::Launched(host) | Reach::Attached { host, .. } => host,
    }
}

/// The way to the host, as it is written before a path.
pub(crate) fn prefix(reach: &Reach) -> String {
    match reach {
        Reach::Local => String::new(),
        Reach::Ssh(target) | Reach::Launched(target) => format!("{target}:"),
        Reach::Attached { host, port } if host.contains(':') => format!("[{host}]:{port}:"),
        Reach::Attached { host, port } => format!("{host}:{port}:"),
    }
}

/// As it was written, one host; of many paths a few.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        let prefix = prefix(&self.reach);
        match &self.object {
            Object::Path(path) | Object::Pattern(path) => {
                write!(f, "{prefix}{}", String::from_utf8_lossy(path))
            }
            Object::Bundle(paths) => {
                for (at, path) in paths.iter().take(SHOWN).enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    write!(f, "{comma}{prefix}{}", String::from_utf8_lossy(path))?;
                }
                match paths.len().saturating_sub(SHOWN) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            Object::Memory(size) => write!(f, "{prefix}mem:{size}"),
            Object::Buffer(name) => write!(f, "{prefix}buffer:{name}"),
            Object::Null => write!(f, "{prefix}null:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Result<Vec<Endpoint>, EndpointError> {
        parse(OsStr::new(text), Side::Source)
    }

    fn destination(text: &str) -> Result<Vec<Endpoint>, EndpointError> {
        parse(OsStr::new(text), Side::Destination)
    }

    /// Any text names endpoints, a bounded number of them, or is refused in words.
    #[test]
    fn any_text_is_read_as_an_endpoint() {
        let corpus = [
            "/data/set",
            "a[1-4]:/data/set/",
            "ann@host:22:~/x",
            "[fe80::1]:/x",
            "mem:1GiB",
            "host:null:",
        ];
        let corpus = corpus.map(|text| text.as_bytes().to_vec());
        crate::mutate::fuzz_some("endpoints", &corpus, 4000, |input| {
            for side in [Side::Source, Side::Destination] {
                match parse(OsStr::from_bytes(input), side) {
                    Ok(endpoints) => assert!((1..=65_536).contains(&endpoints.len())),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        });
    }

    /// Every form, one host each, printed back with paths made absolute and slashes taken off.
    #[test]
    fn forms_are_read() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        for (text, printed, into) in [
            ("/data/set", "/data/set".to_owned(), false),
            ("/data//set//", "/data/set".to_owned(), true),
            ("/", "/".to_owned(), true),
            ("set", format!("{here}/set"), false),
            ("./a:b", format!("{here}/a:b"), false),
            ("x/a:b", format!("{here}/x/a:b"), false),
            ("a[1:2]", format!("{here}/a[1:2]"), false),
            (".", here.to_owned(), true),
            ("host:/data/a:b", "host:/data/a:b".to_owned(), false),
            ("host:/data/", "host:/data".to_owned(), true),
            ("me@host:/x", "me@host:/x".to_owned(), false),
            ("[::1]:/x", "::1:/x".to_owned(), false),
            ("host:7420:/x", "host:7420:/x".to_owned(), false),
            ("[::1]:7420:/x", "[::1]:7420:/x".to_owned(), false),
            ("null:", "null:".to_owned(), false),
            ("mem:1KiB", "mem:1024".to_owned(), false),
            ("mem:", "mem:0".to_owned(), false),
            ("host:mem:4GiB", "host:mem:4294967296".to_owned(), false),
            ("host:null:", "host:null:".to_owned(), false),
            ("host:7420:mem:1", "host:7420:mem:1".to_owned(), false),
        ] {
            let endpoints = destination(text).unwrap();
            assert_eq!(endpoints.len(), 1, "{text}");
            assert_eq!(
                (endpoints[0].to_string(), endpoints[0].into),
                (printed, into),
                "{text}"
            );
        }
    }

    /// A host list stands for one endpoint a host.
    #[test]
    fn host_lists_are_expanded() {
        let names = |text| {
            source(text)
                .unwrap()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(names("a[1-3]:/d"), ["a1:/d", "a2:/d", "a3:/d"]);
        assert_eq!(names("me@a[1-2],b:/d"), ["me@a1:/d", "me@a2:/d", "b:/d"]);
        assert_eq!(names("a[1-2]:9:mem:1"), ["a1:9:mem:1", "a2:9:mem:1"]);
        assert_eq!(names("a:745[1-2]:/d"), ["a:7451:/d", "a:7452:/d"]);
        assert_eq!(
            names("a[1-2]:[7,19]:/d"),
            ["a1:7:/d", "a1:19:/d", "a2:7:/d", "a2:19:/d"]
        );
        // A name below the home folder.
        for path in ["7[ab]:x", "7-8:x", "745[1-2", "r[1-2]:/d"] {
            let text = format!("a:{path}");
            assert_eq!(
                destination(&text).unwrap()[0].object,
                Object::Path(path.into())
            );
        }
    }

    /// Names that are not UTF-8 survive.
    #[test]
    fn any_bytes_make_a_path() {
        let endpoints = parse(OsStr::from_bytes(b"host:/a\xff"), Side::Source).unwrap();
        assert_eq!(endpoints[0].object, Object::Path(b"/a\xff".to_vec()));
        assert_eq!(endpoints[0].base_name(), Some(&b"a\xff"[..]));
    }

    /// Paths on hosts reached over ssh begin at the home folder there.
    #[test]
    fn home_is_where_ssh_logs_in() {
        for (text, expected, goes_into) in [
            ("h:set", "set", false),
            ("h:data/set/", "data/set", true),
            ("h:~/set", "set", false),
            ("h:~//set", "set", false),
            ("h:./~set", "./~set", false),
            ("h:~/~set", "./~set", false),
            ("h:", ".", true),
            ("h:~", ".", true),
            ("h:~/", ".", true),
        ] {
            for side in [Side::Source, Side::Destination] {
                let found = parse(OsStr::new(text), side).unwrap().remove(0);
                assert_eq!(found.object, Object::Path(expected.into()), "{text}");
                assert_eq!(found.reach, Reach::Ssh("h".into()), "{text}");
                if side == Side::Destination {
                    assert_eq!(found.into, goes_into, "{text}");
                }
            }
        }
    }

    /// Wildcards and homes of other users are asked for at hosts that are reached, of sources only: a copy is called
    /// what was typed, in the home that was named.
    #[test]
    fn patterns_are_asked_for() {
        for (text, pattern) in [
            ("h:/d/*.h5", "/d/*.h5"),
            ("h:7:/d/r[1-3]/", "/d/r[1-3]/"),
            ("h:~/x?", "x?"),
            ("h:~/~x*", "./~x*"),
            ("h:*", "*"),
            ("h:~you/x", "~you/x"),
            ("h:7:~you/x/", "~you/x"),
            ("h:~you", "~you"),
        ] {
            let found = source(text).unwrap().remove(0);
            assert_eq!(found.object, Object::Pattern(pattern.into()), "{text}");
        }
        for text in ["/d/*.h5", "./[ab]", "h:/d/a\\b"] {
            let found = source(text).unwrap().remove(0);
            assert!(matches!(found.object, Object::Path(_)), "{text}");
        }
        for (text, path, into) in [
            ("h:/d/*", "/d/*", false),
            ("h:~you", "~you", true),
            ("h:7:~you/", "~you", true),
            ("h:~you/x", "~you/x", false),
        ] {
            let found = destination(text).unwrap().remove(0);
            assert_eq!(
                (found.object, found.into),
                (Object::Path(path.into()), into),
                "{text}"
            );
        }
    }

    /// Slips say what to write instead.
    #[test]
    fn slips_are_named() {
        for (text, part) in [
            ("", "write ."),
            ("host:7420:x", "takes an absolute path"),
            ("host:7420:", "takes an absolute path"),
            ("host:7420:~/x", "takes an absolute path"),
            ("host:0:/x", "0 is not a port"),
            ("host:70000:/x", "70000 is not a port"),
            ("host:[9-1]:/x", "counts down"),
            ("h[1-300]:7[100-400]:/x", "more than 65536 hosts"),
            ("host:7[0-9][0-9][0-9][0-9]:/x", "is not a port"),
            ("me@host:7420:/x", "belongs to ssh"),
            (
                "rsync://host/x",
                "write host:/x for a host reached over ssh",
            ),
            ("ssh://me@host:22/x/y", "write me@host:/x/y for"),
            ("file:///x", "file:// is no address here; write /x"),
            ("http://", "write HOST:/path or /path"),
            (":/x", "empty host"),
            ("fe80::1:/x", "write [ADDRESS]:/path"),
            ("::1:/x", "needs brackets"),
            ("@:/x", "no host of this name"),
            ("-oProxyCommand=x:/x", "no host of this name"),
            ("me@-x:/x", "no host of this name"),
            ("a b:/x", "no host of this name"),
            ("a[4-1]:/x", "counts down"),
            ("a[1-2:/x", "brackets do not match"),
            ("mem:", "number of bytes"),
            ("mem:4K", "could mean"),
            ("host:mem:x", "does not start with a number"),
            ("null:", "cannot be a source"),
            ("host:null:", "cannot be a source"),
            ("-", "write ./-"),
            (
                &format!("/{}", "d".repeat(5000)),
                "5001 bytes is too long, the system takes 4095",
            ),
            (&format!("host:/{}", "d".repeat(5000)), "it begins `/ddd"),
        ] {
            let error = source(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.len() < 300, "{text}: {error}");
        }
    }
}
