//! AES-128-GCM, by the library that is fastest on this processor.
//!
//! aws-lc has code for the vectors of AVX-512, and else encrypts one block of 16 bytes an instruction. ring has code for vectors of two blocks
//! (VAES of AVX2), which most processors of AMD since Zen 3 and many of Intel have without AVX-512. What they give is the same.

use std::hint::black_box;
use std::mem::{MaybeUninit, needs_drop};
use std::ops::Deref;
use std::sync::OnceLock;

use aws_lc_rs::aead as aws_lc;
use ring::aead as ring_lc;

/// Length of a key.
pub(crate) const KEY_LEN: usize = 16;

/// Length of a nonce, which is used once with a key.
pub(crate) const NONCE_LEN: usize = 12;

const TAG_LEN: usize = 16;

/// What is opened is not what was sealed with this key, nonce and header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forged;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    AwsLc,
    Ring,
}

impl Library {
    fn fastest() -> Self {
        static FASTEST: OnceLock<Library> = OnceLock::new();
        *FASTEST.get_or_init(|| match has_vectors_of_avx2_alone() {
            true => Self::Ring,
            false => Self::AwsLc,
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn has_vectors_of_avx2_alone() -> bool {
    let of_avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq");
    let of_avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl");
    of_avx2 && !of_avx512
}

#[cfg(not(target_arch = "x86_64"))]
fn has_vectors_of_avx2_alone() -> bool {
    false
}

enum Key {
    AwsLc(aws_lc::LessSafeKey),
    Ring(RingKey),
}

/// A key of ring, which is overwritten when it is dropped; aws-lc does so by itself.
struct RingKey(Box<MaybeUninit<ring_lc::LessSafeKey>>);

const _: () = assert!(!needs_drop::<ring_lc::LessSafeKey>());

impl RingKey {
    fn new(key: ring_lc::LessSafeKey) -> Self {
        Self(Box::new(MaybeUninit::new(key)))
    }
}

impl Deref for RingKey {
    type Target = ring_lc::LessSafeKey;

    fn deref(&self) -> &Self::Target {
        // SAFETY: `new` has written it, and only `drop` overwrites it.
        unsafe { self.0.assume_init_ref() }
    }
}

impl Drop for RingKey {
    fn drop(&mut self) {
        let (start, len) = (self.0.as_mut_ptr().cast::<u8>(), size_of_val(&*self.0));
        // SAFETY: the memory is this box's, bytes may have any value, and the key, which has nothing to drop, is not used after that.
        unsafe { start.write_bytes(0, len) };
        black_box(&mut self.0);
    }
}

/// A key that seals and opens.
pub(crate) struct Cipher(Key);

impl Cipher {
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        Self::by(Library::fastest(), key)
    }

    fn by(library: Library, key: &[u8; KEY_LEN]) -> Self {
        const WHY: &str = "AES-128 takes keys of 16 bytes";
        Self(match library {
            Library::AwsLc => {
                let key = aws_lc::UnboundKey::new(&aws_lc::AES_128_GCM, key).expect(WHY);
                Key::AwsLc(aws_lc::LessSafeKey::new(key))
            }
            Library::Ring => {
                let key = ring_lc::UnboundKey::new(&ring_lc::AES_128_GCM, key).expect(WHY);
                Key::Ring(RingKey::new(ring_lc::LessSafeKey::new(key)))
            }
        })
    }

    /// Encrypts `body` where it lies and gives the tag.
    ///
    /// # Panics
    /// When `body` is longer than AES-GCM may seal, 64 GiB.
    pub fn seal(&self, nonce: [u8; NONCE_LEN], header: &[u8], body: &mut [u8]) -> [u8; TAG_LEN] {
        const WHY: &str = "less than 64 GiB is within what AES-GCM may seal";
        let mut out = [0; TAG_LEN];
        match &self.0 {
            Key::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let header = aws_lc::Aad::from(header);
                let tag = key.seal_in_place_separate_tag(nonce, header, body);
                out.copy_from_slice(tag.expect(WHY).as_ref());
            }
            Key::Ring(key) => {
                let nonce = ring_lc::Nonce::assume_unique_for_key(nonce);
                let header = ring_lc::Aad::from(header);
                let tag = key.seal_in_place_separate_tag(nonce, header, body);
                out.copy_from_slice(tag.expect(WHY).as_ref());
            }
        }
        out
    }

    /// Encrypts `body` and then `rest` into `record`, which they fill up to the tag at its end.
    ///
    /// # Panics
    /// When `record` has another length than both and a tag, or they are longer than AES-GCM may seal, 64 GiB.
    pub fn seal_from(
        &self,
        nonce: [u8; NONCE_LEN],
        header: &[u8],
        body: &[u8],
        rest: &[u8],
        record: &mut [u8],
    ) {
        let (sealed, rest_and_tag) = record.split_at_mut(body.len());
        match &self.0 {
            Key::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let header = aws_lc::Aad::from(header);
                key.seal_out_of_place_scatter(nonce, header, body, sealed, rest, rest_and_tag)
                    .expect("a record is as long as what is sealed and a tag");
            }
            Key::Ring(_) => {
                // Records are a fragment long: what is copied is in the cache when it is encrypted there.
                sealed.copy_from_slice(body);
                rest_and_tag[..rest.len()].copy_from_slice(rest);
                let (text, tag) = record.split_at_mut(body.len() + rest.len());
                tag.copy_from_slice(&self.seal(nonce, header, text));
            }
        }
    }

    /// Checks and decrypts `body`, which ends with its tag, where it lies.
    ///
    /// # Errors
    /// [`Forged`]; then `body` holds nothing of use.
    pub fn open(
        &self,
        nonce: [u8; NONCE_LEN],
        header: &[u8],
        body: &mut [u8],
    ) -> Result<(), Forged> {
        match &self.0 {
            Key::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let opened = key.open_in_place(nonce, aws_lc::Aad::from(header), body);
                opened.map(|_| ()).map_err(|_| Forged)
            }
            Key::Ring(key) => {
                let nonce = ring_lc::Nonce::assume_unique_for_key(nonce);
                let opened = key.open_in_place(nonce, ring_lc::Aad::from(header), body);
                opened.map(|_| ()).map_err(|_| Forged)
            }
        }
    }

    /// Checks `sealed` against `tag` and decrypts it into `out`, of the same length.
    ///
    /// # Errors
    /// [`Forged`]; then `out` holds nothing of use.
    ///
    /// # Panics
    /// When `out` has another length than `sealed`.
    pub fn open_into(
        &self,
        nonce: [u8; NONCE_LEN],
        header: &[u8],
        sealed: &[u8],
        tag: &[u8],
        out: &mut [u8],
    ) -> Result<(), Forged> {
        match &self.0 {
            Key::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let header = aws_lc::Aad::from(header);
                let opened = key.open_separate_gather(nonce, header, sealed, tag, out);
                opened.map_err(|_| Forged)
            }
            Key::Ring(key) => {
                out.copy_from_slice(sealed);
                let nonce = ring_lc::Nonce::assume_unique_for_key(nonce);
                let header = ring_lc::Aad::from(header);
                let tag = tag.try_into().map_err(|_| Forged)?;
                let opened = key.open_in_place_separate_tag(nonce, header, tag, out, 0..);
                opened.map(|_| ()).map_err(|_| Forged)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARIES: [Library; 2] = [Library::AwsLc, Library::Ring];

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| ((at * 31) >> 3) as u8).collect()
    }

    /// What one library seals the other one opens, in place and elsewhere, at any length.
    #[test]
    fn libraries_give_the_same() {
        for len in [0, 1, 15, 16, 17, 255, 1400, 4096, 70_001] {
            let body = bytes(len);
            let mut records = Vec::new();
            for library in LIBRARIES {
                let cipher = Cipher::by(library, &[5; KEY_LEN]);
                let mut record = body.clone();
                let tag = cipher.seal([1; NONCE_LEN], b"header", &mut record);
                record.extend_from_slice(&tag);
                for rest in [0, len / 3, len] {
                    let (first, second) = body.split_at(len - rest);
                    let mut elsewhere = vec![0; len + TAG_LEN];
                    cipher.seal_from([1; NONCE_LEN], b"header", first, second, &mut elsewhere);
                    assert_eq!(elsewhere, record, "{library:?}, {len}, {rest}");
                }
                records.push(record);
            }
            assert_eq!(records[0], records[1], "{len}");
            for library in LIBRARIES {
                let cipher = Cipher::by(library, &[5; KEY_LEN]);
                let mut record = records[0].clone();
                let (sealed, tag) = records[0].split_at(len);
                let mut out = vec![0; len];
                let into = cipher.open_into([1; NONCE_LEN], b"header", sealed, tag, &mut out);
                assert_eq!((into, &out), (Ok(()), &body), "{library:?}, {len}");
                let open = cipher.open([1; NONCE_LEN], b"header", &mut record);
                assert_eq!((open, &record[..len]), (Ok(()), &body[..]), "{library:?}");
            }
        }
    }

    /// Another key, nonce, header, text or tag opens nothing, and neither does what is too short for a tag.
    #[test]
    fn what_was_changed_does_not_open() {
        let body = bytes(40);
        for library in LIBRARIES {
            let cipher = Cipher::by(library, &[5; KEY_LEN]);
            let mut record = body.clone();
            let tag = cipher.seal([1; NONCE_LEN], b"header", &mut record);
            record.extend_from_slice(&tag);
            let open = |cipher: &Cipher, nonce, header: &[u8], record: &[u8]| {
                let mut out = [0; 40];
                let (sealed, tag) = record.split_at(record.len().saturating_sub(TAG_LEN));
                let into = cipher.open_into(nonce, header, sealed, tag, &mut out[..sealed.len()]);
                let in_place = cipher.open(nonce, header, &mut record.to_vec());
                assert_eq!(into, in_place, "{library:?}");
                into
            };
            let nonce = [1; NONCE_LEN];
            assert_eq!(open(&cipher, nonce, b"header", &record), Ok(()));
            let other = Cipher::by(library, &[6; KEY_LEN]);
            assert_eq!(open(&other, nonce, b"header", &record), Err(Forged));
            assert_eq!(
                open(&cipher, [2; NONCE_LEN], b"header", &record),
                Err(Forged)
            );
            assert_eq!(open(&cipher, nonce, b"heading", &record), Err(Forged));
            for at in [0, 39, 40, 55] {
                let mut changed = record.clone();
                changed[at] ^= 1;
                assert_eq!(open(&cipher, nonce, b"header", &changed), Err(Forged));
            }
            assert_eq!(open(&cipher, nonce, b"header", &record[..9]), Err(Forged));
        }
    }
}
