//! Record protection of sealed streams: AES-128-GCM, one key per stream and direction.
//!
//! The record number is the nonce and is never sent; both ends count. The header is associated
//! data, payload and hash are encrypted. After [`RECORDS_PER_KEY`] records both ends move to the
//! next key by themselves, so a record key found later opens nothing older. The secret of the pair, from which every
//! stream's first key is derived, is kept while streams may join: it opens all of the transfer until that is over, when it
//! is wiped.

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};

use crate::LaneError;
use crate::cipher::{Cipher, KEY_LEN, NONCE_LEN};

/// Records under one key: at 1 MiB each, 2^31 cipher blocks, an eleventh of what AES-GCM allows
/// before its bounds weaken (2^34.5 blocks in TLS 1.3).
pub const RECORDS_PER_KEY: u64 = 1 << 15;

/// Secret of a pair of nodes, exported from their TLS session.
#[derive(Clone)]
pub struct PairSecret(pub [u8; 32]);

/// Secrets of one stream, one per direction.
#[derive(Clone)]
pub struct StreamKeys {
    /// Protects data.
    pub toward_receiver: [u8; 32],
    /// Protects grants.
    pub toward_sender: [u8; 32],
}

impl Drop for PairSecret {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

impl Drop for StreamKeys {
    fn drop(&mut self) {
        wipe(&mut self.toward_receiver);
        wipe(&mut self.toward_sender);
    }
}

impl std::fmt::Debug for StreamKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamKeys(hidden)")
    }
}

/// Overwrites a secret; the barrier keeps the compiler from dropping the store.
pub fn wipe(secret: &mut [u8]) {
    secret.fill(0);
    std::hint::black_box(secret);
}

/// Both secrets of the stream whose join preface carried `stream_nonce`.
#[must_use]
pub fn stream_keys(pair: &PairSecret, stream_nonce: [u8; 32]) -> StreamKeys {
    StreamKeys {
        toward_receiver: derive(&pair.0, "ropewalk stream toward receiver", &stream_nonce),
        toward_sender: derive(&pair.0, "ropewalk stream toward sender", &stream_nonce),
    }
}

struct Octets(usize);

impl KeyType for Octets {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-SHA256 of `secret` for the purpose `label` in the given `context`.
#[must_use]
pub fn derive(secret: &[u8], label: &str, context: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    let length = (label.len() as u64).to_le_bytes();
    let info = [&length[..], label.as_bytes(), context];
    Salt::new(HKDF_SHA256, b"ropewalk 1")
        .extract(secret)
        .expand(&info, Octets(32))
        .and_then(|material| material.fill(&mut out))
        .expect("32 bytes are within what HKDF-SHA256 may give");
    out
}

/// One direction of a sealed stream. Each side holds one for sending and one for receiving.
pub struct Records {
    key: Cipher,
    next: [u8; 32],
    count: u64,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Records {
    /// The direction that this secret is for, from its first record on.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> Self {
        let (key, next) = generation(secret);
        Self {
            key,
            next,
            count: 0,
        }
    }

    fn advance(&mut self) -> [u8; NONCE_LEN] {
        if self.count > 0 && self.count.is_multiple_of(RECORDS_PER_KEY) {
            let (key, next) = generation(&self.next);
            self.key = key;
            self.next = next;
        }
        let nonce = nonce(self.count);
        self.count += 1;
        nonce
    }

    /// Encrypts `body` where it lies and gives the tag.
    ///
    /// # Panics
    /// When `body` is longer than AES-GCM may seal, 64 GiB.
    pub fn seal(&mut self, header: &[u8], body: &mut [u8]) -> [u8; 16] {
        let nonce = self.advance();
        self.key.seal(nonce, header, body)
    }

    /// Encrypts `body` and then `rest` into `record`, which they fill up to the tag at its end.
    ///
    /// # Panics
    /// When `record` has another length than both and a tag, or they are longer than AES-GCM may seal, 64 GiB.
    pub fn seal_from(&mut self, header: &[u8], body: &[u8], rest: &[u8], record: &mut [u8]) {
        let nonce = self.advance();
        self.key.seal_from(nonce, header, body, rest, record);
    }

    /// Checks and decrypts `body`, which ends with its tag, where it lies.
    pub fn open(&mut self, header: &[u8], body: &mut [u8]) -> Result<(), LaneError> {
        let record = self.count;
        let nonce = self.advance();
        self.key
            .open(nonce, header, body)
            .map_err(|_| LaneError::Forged { record })
    }

    /// Checks `sealed` against `tag` and decrypts it into `out`, of the same length.
    ///
    /// # Errors
    /// [`LaneError::Forged`] when the record is not the one that was sealed.
    pub fn open_into(
        &mut self,
        header: &[u8],
        sealed: &[u8],
        tag: &[u8],
        out: &mut [u8],
    ) -> Result<(), LaneError> {
        let record = self.count;
        let nonce = self.advance();
        self.key
            .open_into(nonce, header, sealed, tag, out)
            .map_err(|_| LaneError::Forged { record })
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        wipe(&mut self.next);
    }
}

fn nonce(record: u64) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[4..].copy_from_slice(&record.to_be_bytes());
    nonce
}

fn generation(secret: &[u8; 32]) -> (Cipher, [u8; 32]) {
    (
        cipher(secret, "ropewalk record key"),
        derive(secret, "ropewalk next secret", &[]),
    )
}

/// The cipher whose key is derived from `secret` for the purpose `label`.
pub(crate) fn cipher(secret: &[u8; 32], label: &str) -> Cipher {
    let mut raw = derive(secret, label, &[]);
    let mut key = [0; KEY_LEN];
    key.copy_from_slice(&raw[..KEY_LEN]);
    wipe(&mut raw);
    let cipher = Cipher::new(&key);
    wipe(&mut key);
    cipher
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends change keys at the same record, and the old key is gone.
    #[test]
    fn keys_ratchet_by_count() {
        let mut sealer = Records::new(&[7; 32]);
        let mut opener = Records::new(&[7; 32]);
        let mut stale = Records::new(&[7; 32]);
        for record in 0..RECORDS_PER_KEY + 2 {
            let mut body = *b"0123456789abcdef0123";
            let tag = sealer.seal(b"header", &mut body[..4]);
            body[4..].copy_from_slice(&tag);
            if record >= RECORDS_PER_KEY {
                stale.count = record;
                let nonce_only = stale
                    .key
                    .open(nonce(record), b"header", &mut body.clone())
                    .is_ok();
                assert!(
                    !nonce_only,
                    "record {record} still opens with the first key"
                );
            }
            opener.open(b"header", &mut body).unwrap();
            assert_eq!(&body[..4], b"0123");
        }
    }

    /// Both ways of sealing give the same record, whatever part of it comes second.
    #[test]
    fn sealing_from_elsewhere_is_sealing_in_place() {
        let body: Vec<u8> = (0..70_000_u32).map(|at| ((at * 31) >> 3) as u8).collect();
        for rest in [0, 1, 32, 69_999] {
            let (first, second) = body.split_at(body.len() - rest);
            let mut in_place = body.clone();
            let tag = Records::new(&[9; 32]).seal(b"header", &mut in_place);
            in_place.extend_from_slice(&tag);
            let mut record = vec![0; body.len() + tag.len()];
            Records::new(&[9; 32]).seal_from(b"header", first, second, &mut record);
            assert_eq!(record, in_place, "{rest} bytes apart");
        }
    }

    /// A record counts only with its own header.
    #[test]
    fn header_is_authenticated() {
        let mut sealer = Records::new(&[1; 32]);
        let mut body = [0; 20];
        let tag = sealer.seal(b"a", &mut body[..4]);
        body[4..].copy_from_slice(&tag);
        assert!(matches!(
            Records::new(&[1; 32]).open(b"b", &mut body),
            Err(LaneError::Forged { record: 0 })
        ));
    }

    /// Label and context cannot be traded for each other.
    #[test]
    fn derivation_separates_label_and_context() {
        assert_ne!(derive(b"s", "ab", b"c"), derive(b"s", "a", b"bc"));
        assert_eq!(derive(b"s", "ab", b"c"), derive(b"s", "ab", b"c"));
    }
}
