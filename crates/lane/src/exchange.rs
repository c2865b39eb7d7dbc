//! Fresh secrets of two ends that have proved a token to each other: X25519, so that a token found later opens nothing
//! that was sent before.

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use aws_lc_rs::{constant_time, digest};

/// Bytes of a public key, and of the secret.
pub const EXCHANGE_LEN: usize = 32;

/// One end's part of an exchange.
#[derive(Debug)]
pub struct Exchange {
    key: PrivateKey,
    public: [u8; EXCHANGE_LEN],
}

impl Exchange {
    /// A fresh key pair.
    ///
    /// # Panics
    /// When the operating system has no random numbers, in which case nothing can be kept secret.
    #[must_use]
    pub fn new() -> Self {
        let key = PrivateKey::generate(&X25519).expect("the operating system gives random numbers");
        let public = key
            .compute_public_key()
            .expect("X25519 keys have a public part");
        let public = public
            .as_ref()
            .try_into()
            .expect("X25519 keys are 32 bytes");
        Self { key, public }
    }

    /// What the other end gets.
    #[must_use]
    pub fn public(&self) -> [u8; EXCHANGE_LEN] {
        self.public
    }

    /// The secret shared with the end that sent `peer`; `None` when that is no key.
    #[must_use]
    pub fn agree(&self, peer: &[u8; EXCHANGE_LEN]) -> Option<[u8; EXCHANGE_LEN]> {
        let peer = UnparsedPublicKey::new(&X25519, peer);
        agree(&self.key, peer, (), |secret| {
            secret.try_into().map_err(|_| ())
        })
        .ok()
    }
}

impl Default for Exchange {
    fn default() -> Self {
        Self::new()
    }
}

/// What was said so far, in 32 bytes.
#[must_use]
pub fn transcript(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// Whether secrets are equal. Takes the same time either way.
#[must_use]
pub fn is_equal(one: &[u8], other: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(one, other).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends have the same secret, a third one another; zeros are no key.
    #[test]
    fn ends_agree() {
        let (one, other, third) = (Exchange::new(), Exchange::new(), Exchange::new());
        let secret = one.agree(&other.public()).unwrap();
        assert_eq!(other.agree(&one.public()), Some(secret));
        assert_ne!(third.agree(&one.public()), Some(secret));
        assert_eq!(one.agree(&[0; EXCHANGE_LEN]), None);
        assert!(is_equal(&secret, &secret) && !is_equal(&secret, &[0; 32]));
        assert_ne!(transcript(&[b"a"]), transcript(&[b"b"]));
    }
}
