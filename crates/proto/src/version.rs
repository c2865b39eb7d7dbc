//! Which programs understand each other: those whose version and control schema are the same.

use std::sync::LazyLock;

/// Fingerprint of the schema of control messages (FNV-1a).
const SCHEMA: u32 = fingerprint(include_bytes!("../schema/control.proto"));

static VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{}+{SCHEMA:08x}", env!("CARGO_PKG_VERSION")));

/// The version of this program: that of the package, and a fingerprint of the schema of control messages, so that two builds
/// of one version under development are distinguished. A format that is not in the schema changes with the package's version.
#[must_use]
pub fn version() -> &'static str {
    &VERSION
}

const fn fingerprint(bytes: &[u8]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the function's authors.
    #[test]
    fn fingerprints_are_fnv() {
        assert_eq!(fingerprint(b""), 0x811c_9dc5);
        assert_eq!(fingerprint(b"a"), 0xe40c_292c);
        assert_eq!(fingerprint(b"foobar"), 0xbf9c_f968);
    }

    /// One word, fit for a folder's name.
    #[test]
    fn versions_are_words() {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || ".+-".contains(letter);
        assert!(version().chars().all(is_plain), "{}", version());
    }
}
