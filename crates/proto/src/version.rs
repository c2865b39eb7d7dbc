//! Which programs understand each other: those whose version and control schema are the same.

use std::sync::LazyLock;

use crate::wire;

/// Fingerprint of the schema of control messages and of the format of frames (FNV-1a).
const FORMATS: u32 = fingerprint(
    fingerprint(BASIS, include_bytes!("../schema/control.proto")),
    &[wire::FORMAT],
);

/// That of nothing.
const BASIS: u32 = 0x811c_9dc5;

static VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{}+{FORMATS:08x}", env!("CARGO_PKG_VERSION")));

/// The version of this program: that of the package, and a fingerprint of the schema of control messages and of
/// [`wire::FORMAT`], so that two builds of one version under development are distinguished. Other formats change with the package's version.
#[must_use]
pub fn version() -> &'static str {
    &VERSION
}

const fn fingerprint(before: u32, bytes: &[u8]) -> u32 {
    let mut hash = before;
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
        assert_eq!(fingerprint(BASIS, b""), 0x811c_9dc5);
        assert_eq!(fingerprint(BASIS, b"a"), 0xe40c_292c);
        assert_eq!(fingerprint(BASIS, b"foobar"), 0xbf9c_f968);
    }

    /// One word, fit for a folder's name.
    #[test]
    fn versions_are_words() {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || ".+-".contains(letter);
        assert!(version().chars().all(is_plain), "{}", version());
    }
}
