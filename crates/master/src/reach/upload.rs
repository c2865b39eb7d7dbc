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
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use ropewalk_proto::version::version;

/// First word of each line that the shell prints for this exchange.
pub(super) const WORD: &str = "ROPEWALK-UPLOAD";

/// This program, for another host.
pub(super) struct Program {
    pub bytes: Vec<u8>,
    hash: String,
}

impl Program {
    /// Reads it, which takes as long as hashing its bytes.
    pub fn read(path: &Path) -> std::io::Result<Self> {
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

/// The system and processor that this program is for, as `uname -sm` names them.
pub(super) fn platform() -> String {
    let system = match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Darwin",
        "freebsd" => "FreeBSD",
        other => other,
    };
    format!("{system} {}", std::env::consts::ARCH)
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
        .replace("@PLATFORM@", &platform())
        .replace("@WORD@", WORD)
        .replace("@ARGUMENTS@", arguments);
    format!("exec sh -c '{script}'")
}

// Lines are joined by blanks, so each statement ends in a semicolon.
const SCRIPT: &str = r#"
v="ropewalk @VERSION@";
if [ "$(ropewalk --version </dev/null 2>/dev/null)" = "$v" ]; then exec ropewalk @ARGUMENTS@; fi;
umask 077;
say() { echo "@WORD@ $*"; };
fail() { say fails "$*"; exit 1; };
sum() { if command -v sha256sum >/dev/null; then sha256sum <"$1"; else shasum -a 256 <"$1"; fi | cut -c 1-64; };
IFS= read -r x; IFS= read -r n;
while [ "${n:-0}" -gt 0 ]; do IFS= read -r x; n=$((n - 1)); done;
say lacks "$(uname -sm)";
read -r h n || exit 1;
if command -v sha256sum >/dev/null || command -v shasum >/dev/null; then :; else
fail "neither sha256sum nor shasum is there to check the program"; fi;
m=$(uname -m);
d=${XDG_CACHE_HOME:-$HOME/.cache}/ropewalk/@VERSION@-$m;
p=$d/ropewalk;
if [ -O "$d" ] && [ -O "$p" ] && [ "$(sum "$p")" = "$h" ] && chmod 700 "$d" "$p"; then say has; exec "$p" @ARGUMENTS@; fi;
k=1;
if mkdir -p "$d" 2>/dev/null && [ -O "$d" ] && chmod 700 "$d" && t=$(mktemp "$d/new.XXXXXX" 2>/dev/null); then :;
else k=0; t=$(mktemp "${TMPDIR:-/tmp}/ropewalk.XXXXXX" 2>&1) || fail "$t"; fi;
clean() { rm -f "$t"; };
trap clean EXIT;
trap "exit 1" HUP INT TERM;
say needs;
e=$(head -c "$n" 2>&1 >"$t");
[ "$(sum "$t")" = "$h" ] || fail "the program was not stored whole in $t: $e";
chmod 700 "$t";
e=$("$t" --version </dev/null 2>&1);
[ "$e" = "$v" ] || fail "it does not run in ${t%/*}: $e";
if [ $k = 1 ]; then mv -f "$t" "$p" || fail "$p cannot be replaced"; say has "$p"; exec "$p" @ARGUMENTS@; fi;
exec 9<"$t";
rm -f "$t";
say has;
exec /proc/self/fd/9 @ARGUMENTS@
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
        assert_eq!(script.matches("agent --one-shot --ports 1-2").count(), 4);
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
