//! Any header of a frame, and any purpose of a stream, is read without harm.

use ropewalk_pipe::Purpose;
use ropewalk_pipe::frame::{HEADER_LEN, Header, Kind, encode};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
use mutate::{fuzz, fuzz_fixed};

#[test]
fn headers() {
    let header = |kind, payload: &[u8]| {
        let mut header = [0; HEADER_LEN];
        header.copy_from_slice(&encode(kind, 7, payload)[..HEADER_LEN]);
        header
    };
    let corpus = [
        header(Kind::Data, &[1; 100]),
        header(Kind::Open, b"x"),
        header(Kind::Credit, &[0; 4]),
        header(Kind::End, b""),
    ];
    fuzz_fixed("headers of frames", &corpus, |bytes| {
        if let Some(header) = Header::decode(bytes) {
            let payload = vec![0; header.len];
            assert_eq!(
                encode(header.kind, header.stream, &payload)[..HEADER_LEN],
                *bytes
            );
        }
    });
}

#[test]
fn purposes() {
    let corpus = [
        Purpose::Control,
        Purpose::ToNode(7),
        Purpose::FromNode(1 << 20),
    ];
    let corpus = corpus.map(Purpose::encode);
    fuzz("purposes", &corpus, |input| {
        if let Some(purpose) = Purpose::decode(input) {
            assert_eq!(purpose.encode(), input);
        }
    });
}
