//! The program for a host that lacks it, or has another version: sent over the ssh connection that asked for it, and kept in
//! the user's cache folder there.
//!
//! ```text
//!  command                                      shell on the other host
//!     │ ── secret and roots ──────────────────────▶ │  ropewalk of this version? it becomes the agent
//!     │ ◀───────────── lacks Linux x86_64 ───────── │  else: reads and forgets the secret
//!     │ ── hash and length ───────────────────────▶ │  in the cache, with this hash? ready
//!     │ ◀──────────────── needs ─────────────────── │
//!     │ ── program ───────────────────────────────▶ │  written under another name, hash checked, renamed into place
//!     │ ◀──────────────── has PATH ──────────────── │  becomes the agent
//!     │ ── secret and roots ──────────────────────▶ │
//! ```
//!
//! Only a file is run that has the hash of this program and lies in a folder of the user's own. Where the cache folder cannot
//! be written, the program is kept for this run only, in a temporary file that is removed before it runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;
use ropewalk_proto::version::version;

/// First word of each line that the shell prints for this exchange.
pub(super) const WORD: &str = "ROPEWALK-UPLOAD";

/// This program, for another host.
pub(super) struct Program {
    pub bytes: Vec<u8>,
    hash: String,
}

impl Program {
    /// Reads it, which takes as long as hashing its bytes; once for all hosts that need it at a time.
    pub fn read(path: &Path) -> std::io::Result<Arc<Self>> {
        static LAST: Mutex<Option<(PathBuf, Weak<Program>)>> = Mutex::new(None);
        let mut last = LAST.lock();
        let known = last.as_ref().filter(|(known, _)| known == path);
        if let Some(program) = known.and_then(|(_, program)| program.upgrade()) {
            return Ok(program);
        }
        let program = Arc::new(Self::read_file(path)?);
        *last = Some((path.to_owned(), Arc::downgrade(&program)));
        Ok(program)
    }

    fn read_file(path: &Path) -> std::io::Result<Self> {
        if !path.is_absolute() {
            // Not whatever has this name in the working folder.
            return Err(std::io::Error::other("its path is not absolute"));
        }
        let bytes = std::fs::read(path)?;
        let mut hash = String::new();
        for byte in digest(&SHA256, &bytes).as_ref() {
            let _ = write!(hash, "{byte:02x}");
        }
        Ok(Self { bytes, hash })
    }

    /// What the shell is given when it lacks the program.
    pub fn announcement(&self) -> String {
        format!("{} {}\n", self.hash, self.bytes.len())
    }
}

/// What the shell on the other host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It has no program of this version; its system and processor.
    Lacks(String),
    /// Nor is one in the cache.
    Needs,
    /// The program is ready: in this file, or `None` where it is kept for this run only.
    Has(Option<String>),
    /// The program cannot be kept or run there: why.
    Fails(String),
}

impl Said {
    /// From the words after [`WORD`]; `None` when they are none of this version's.
    pub fn parse(words: &str) -> Option<Self> {
        let (verb, rest) = words.split_once(' ').unwrap_or((words, ""));
        let rest = rest.trim().to_owned();
        match verb {
            "lacks" => Some(Self::Lacks(rest)),
            "needs" => Some(Self::Needs),
            "has" => Some(Self::Has(Some(rest).filter(|path| !path.is_empty()))),
            "fails" => Some(Self::Fails(rest)),
            _ => None,
        }
    }
}

/// What is said of an upload.
///
/// * `place`: the file on the host; `None`: kept for this run only.
pub(super) fn describe(node: &str, place: Option<&str>) -> String {
    match place {
        Some(place) => format!(
            "{node} had no ropewalk {}: uploaded this one to {place}",
            version()
        ),
        None => format!(
            "{node} has no ropewalk {} and no cache folder that can be written: uploaded this one for this run only",
            version()
        ),
    }
}

/// The system and processor of this host, as `uname -sm` names them.
pub(super) fn platform() -> String {
    let names = rustix::system::uname();
    let [system, machine] = [names.sysname(), names.machine()].map(|name| name.to_string_lossy());
    format!("{system} {machine}")
}

/// The command for the other host's login shell: one line, without what sh, csh and fish read differently inside quotes (a
/// quote, a backslash, an exclamation mark).
///
/// * `arguments`: those of the agent, plain words.
pub(super) fn command(arguments: &str) -> String {
    let script = SCRIPT
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
        .replace("@VERSION@", version())
        .replace("@WORD@", WORD)
        .replace("@ARGUMENTS@", arguments);
    format!("exec sh -c '{script}'")
}

// Lines are joined by blanks, so each statement ends in a semicolon. What is run is what was hashed: the same open file. The
// agent has the login's own mask for new files.
const SCRIPT: &str = r#"
v="ropewalk @VERSION@";
if [ "$(ropewalk --version </dev/null 2>/dev/null)" = "$v" ]; then exec ropewalk @ARGUMENTS@; fi;
u=$(umask);
umask 077;
t=;
say() { echo "@WORD@ $*"; };
clean() { if [ -n "$t" ]; then rm -f "$t"; fi; };
fail() { clean; say fails "$*"; exit 1; };
sum() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -c 1-64; };
is_it() { if [ -r "$1" ]; then exec 9<"$1"; [ "$(sum <&9)" = "$h" ]; else false; fi; };
run() { umask "$u"; exec /proc/self/fd/9 @ARGUMENTS@; };
IFS= read -r x; IFS= read -r n;
while [ "${n:-0}" -gt 0 ]; do IFS= read -r x; n=$((n - 1)); done;
say lacks "$(uname -sm)";
read -r h n || exit 1;
if command -v sha256sum >/dev/null || command -v shasum >/dev/null; then :; else
fail "neither sha256sum nor shasum is there to check the program"; fi;
d=${XDG_CACHE_HOME:-$HOME/.cache}/ropewalk/@VERSION@-$(uname -m);
p=$d/ropewalk;
if [ -O "$d" ] && chmod 700 "$d" && [ -O "$p" ] && is_it "$p"; then say has; run; fi;
trap clean EXIT;
trap "exit 1" HUP INT TERM PIPE;
temporary() { k=0; t=$(mktemp "${TMPDIR:-/tmp}/ropewalk.XXXXXX" 2>&1) || { x=$t; t=; fail "$x"; }; };
k=1;
if mkdir -p "$d" 2>/dev/null && [ -O "$d" ] && chmod 700 "$d" && t=$(mktemp "$d/new.XXXXXX" 2>/dev/null); then
find "$d" -name "new.*" -mtime +1 -exec rm -f {} +;
else t=; temporary; fi;
say needs;
e=$(head -c "$n" 2>&1 >"$t");
is_it "$t" || fail "the program was not stored whole in $t: $e";
chmod 700 "$t";
works() { [ "$("$t" --version </dev/null 2>/dev/null)" = "$v" ]; };
if works; then :; elif [ $k = 1 ]; then
o=$t; temporary; cat "$o" >"$t"; rm -f "$o"; chmod 700 "$t";
is_it "$t" && works || fail "it does not run in $d, nor in ${t%/*}: $("$t" --version </dev/null 2>&1)";
else fail "it does not run in ${t%/*}: $("$t" --version </dev/null 2>&1)"; fi;
if [ $k = 1 ]; then mv -f "$t" "$p" || fail "$p cannot be replaced"; t=; say has "$p"; run; fi;
clean; t=;
say has;
run
"#;

#[cfg(test)]
mod tests {
    use super::*;

    /// One line that no login shell reads in another way.
    #[test]
    fn the_command_is_plain() {
        let command = command("agent --one-shot --ports 1-2");
        let quoted = command.strip_prefix("exec sh -c '").unwrap();
        let script = quoted.strip_suffix('\'').unwrap();
        for odd in ['\'', '\\', '!', '\n', '@'] {
            assert!(!script.contains(odd), "{odd:?} in {script}");
        }
        assert_eq!(script.matches("agent --one-shot --ports 1-2").count(), 2);
    }

    #[test]
    fn answers_are_read() {
        let parse = Said::parse;
        assert_eq!(
            parse("lacks Darwin arm64"),
            Some(Said::Lacks("Darwin arm64".into()))
        );
        assert_eq!(parse("needs"), Some(Said::Needs));
        assert_eq!(parse("has"), Some(Said::Has(None)));
        assert_eq!(parse("has /a b/c"), Some(Said::Has(Some("/a b/c".into()))));
        assert_eq!(
            parse("fails disk full"),
            Some(Said::Fails("disk full".into()))
        );
        assert_eq!(parse("hums"), None);
    }
}
