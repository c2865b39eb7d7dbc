//! Any 128 bytes are read without harm, and prefaces of other versions are refused in words.

#[cfg(feature = "mpi")]
use ropewalk_lane::mpi::join::{Place, RankKey};
use ropewalk_lane::preface::{Kind, MacKey, PREFACE_LEN, Preface, PrefaceError, VERSION};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
use mutate::{fuzz, fuzz_fixed};

fn preface() -> Preface {
    Preface {
        kind: Kind::Pair,
        flags: 1,
        key_id: [2; 16],
        transfer_id: [3; 16],
        nonce: [4; 32],
        extra: [5; 16],
    }
}

/// What is read is what was sent; no change of it is authentic.
#[test]
fn prefaces() {
    let key = MacKey::new(b"token");
    let valid = preface().encode(&key);
    fuzz_fixed("prefaces", &[valid], |bytes| {
        match Preface::parse(bytes) {
            Ok(preface) => assert_eq!(Preface::parse(&preface.encode(&key)), Ok(preface)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert_eq!(Preface::verify(bytes, &key), *bytes == valid);
    });
}

/// The first bytes are those that peers of this version send; a peer of the version before, or after, is named.
#[test]
fn prefaces_of_other_versions_are_refused() {
    let golden = *b"RPWK\x02\0\x02\x01";
    let bytes: [u8; PREFACE_LEN] = preface().encode(&MacKey::new(b"token"));
    assert_eq!(bytes[..8], golden);
    for other in [VERSION - 1, VERSION + 1] {
        let mut bytes = bytes;
        bytes[4..6].copy_from_slice(&other.to_le_bytes());
        let refused = Preface::parse(&bytes);
        assert_eq!(refused, Err(PrefaceError::Version(other)));
        let text = refused.unwrap_err().to_string();
        let expected =
            format!("the peer speaks version {other}, this side {VERSION}; install the same");
        assert!(text.starts_with(&expected), "{text}");
    }
}

/// Any text is a place of a rank, and one only: what is read is what was sent.
#[cfg(feature = "mpi")]
#[test]
fn places_of_ranks() {
    let corpus = [
        &b"/usr/lib/libmpi.so\0OMPI_COMM_WORLD_RANK=3\0PMIX_ID=a.1\0TMPDIR=/tmp"[..],
        b"/opt/lib/libmpi.so.12",
        b"\0\0\xff=",
    ];
    let corpus = corpus.map(<[u8]>::to_vec);
    fuzz("places", &corpus, |input| {
        let place = Place::decode(input, None);
        assert_eq!(place.encode(), input);
    });
}

/// Only what has the key asks for a rank, and only the number it asked for is read.
#[cfg(feature = "mpi")]
#[test]
fn ranks_that_are_asked_for() {
    let key = RankKey::of(&[7; 32]);
    let asked = key.ask([1; 16], 0x0102_0304);
    let other = RankKey::of(&[8; 32]).ask([1; 16], 5);
    fuzz_fixed("ranks", &[asked, other], |bytes| {
        let expected = (*bytes == asked).then_some(0x0102_0304);
        assert_eq!(key.read(bytes), expected);
    });
}
