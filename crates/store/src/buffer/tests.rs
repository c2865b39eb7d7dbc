use super::*;

fn layout(pieces: &[(u64, u64, u64)]) -> Layout {
    let piece = |&(start, end, object_offset): &(u64, u64, u64)| Piece {
        range: Range::new(start, end),
        object: 0,
        object_offset,
    };
    Layout::new(pieces.iter().map(piece).collect()).unwrap()
}

fn ranges(list: &[(u64, u64)]) -> RangeSet {
    RangeSet::from_ranges(list.iter().map(|&(start, end)| Range::new(start, end)))
}

fn one(range: std::ops::Range<u64>) -> Vec<std::ops::Range<u64>> {
    vec![range]
}

/// Pieces in any order land where the rows say, and what was delivered is known in offsets of the buffer.
#[test]
fn pieces_land_by_their_offsets() {
    let buffer = Buffer::writable(vec![0; 8]);
    let sink = BufferSink::new("x", buffer.clone(), layout(&[(10, 13, 5), (13, 16, 0)])).unwrap();
    assert!(buffer.is_busy());
    sink.write_at(10, &[1, 2, 3, 4, 5, 6]).unwrap();
    let mut out = [0; 4];
    sink.read_back(12, &mut out).unwrap();
    assert_eq!(out, [3, 4, 5, 6]);
    assert!(matches!(
        sink.write_at(15, &[1, 2]),
        Err(StoreError::NotHeld { .. })
    ));
    let error = buffer.read(0, &mut out).unwrap_err();
    assert!(matches!(error, BufferError::Busy { .. }), "{error}");
    sink.record(&ranges(&[(11, 12), (13, 14)]), &[]);
    assert_eq!(buffer.written(), [0..1, 6..7]);
    assert_eq!(sink.object_at(14).unwrap().0, "buffer:x");
    sink.commit().unwrap();
    assert_eq!(buffer.written(), [0..3, 5..8]);
    assert!(matches!(sink.write_at(10, &[1]), Err(StoreError::Ended)));
    buffer.read(4, &mut out).unwrap();
    assert_eq!(out, [0, 1, 2, 3]);
    assert_eq!(buffer.take_back(), [4, 5, 6, 0, 0, 1, 2, 3]);
}

/// Where a transfer fails, what it delivered is known; where contents are wrong, nothing is. Both free the bytes for another transfer.
#[test]
fn ends_free_the_bytes() {
    let buffer = Buffer::writable(vec![0; 100]);
    let new = || BufferSink::new("x", buffer.clone(), layout(&[(0, 50, 0)]));
    let sink = new().unwrap();
    let error = new().err().unwrap();
    assert_eq!(
        error.to_string(),
        "bytes 0-49 of buffer x are being written by a transfer; wait for its end"
    );
    // Others of it are free.
    BufferSink::new("x", buffer.clone(), layout(&[(0, 50, 50)]))
        .unwrap()
        .commit()
        .unwrap();
    assert!(!sink.commit_whole_files(&ranges(&[(20, 30)])).unwrap());
    assert_eq!(buffer.written(), [0..20, 30..100]);
    let sink = new().unwrap();
    assert_eq!(buffer.written(), one(50..100), "they are written again");
    sink.record(&ranges(&[(0, 10)]), &[]);
    drop(sink);
    assert_eq!(buffer.written(), [0..10, 50..100]);
    let sink = new().unwrap();
    sink.record(&ranges(&[(0, 10)]), &[]);
    sink.discard();
    assert_eq!(buffer.written(), one(50..100));
    assert!(!buffer.is_busy());
}

/// Errors name the buffer, its length and the range.
#[test]
fn what_does_not_fit_is_named() {
    let buffers = Buffers::default();
    buffers
        .lend("data.0", Buffer::readable(vec![1; 10]))
        .unwrap();
    let exists = buffers.lend("data.0", Buffer::writable(Vec::new()));
    assert!(matches!(exists, Err(BufferError::Exists { .. })));
    for name in ["", "a/b", "a b", "\"", &"x".repeat(256)] {
        let bad = buffers.lend(name, Buffer::writable(Vec::new()));
        assert!(matches!(bad, Err(BufferError::BadName { .. })), "{name}");
    }
    let buffer = buffers.get("data.0").unwrap();
    let source = BufferSource::new("data.0", buffer.clone(), layout(&[(0, 5, 0), (5, 12, 5)]));
    assert_eq!(
        source.unwrap_err().to_string(),
        "buffer data.0 has 10 bytes, and bytes 0-11 of it are asked for; lend a longer one, or end the range within it"
    );
    let sink = BufferSink::new("data.0", buffer, layout(&[(0, 5, 0)]));
    assert!(matches!(sink.err(), Some(BufferError::ReadOnly { .. })));
    assert!(buffers.withdraw("data.0").is_some());
    assert!(buffers.withdraw("data.0").is_none());
    let unknown = buffers.get("data.0").unwrap_err();
    assert!(unknown.to_string().contains("no buffer data.0"));
}

/// Shared bytes leave from where they lie, others are copied; what was taken back is refused by name.
#[test]
fn sources_read_what_is_there() {
    let shared: Arc<[u8]> = (0..100).collect();
    let buffer = Buffer::readable(shared.clone());
    let source = BufferSource::new("s", buffer.clone(), layout(&[(1000, 1010, 90)])).unwrap();
    let mut out = [0; 5];
    source.read_at(1005, &mut out).unwrap();
    assert_eq!(out, shared[95..]);
    match source.extent(1002, 3).unwrap() {
        Extent::Memory(bytes) => assert!(std::ptr::eq(bytes, &shared[92..95])),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        source.read_at(1008, &mut out),
        Err(StoreError::NotHeld { .. })
    ));
    buffer.take_back();
    let error = source.read_at(1000, &mut out).unwrap_err();
    assert!(
        error.to_string().starts_with("buffer s was taken back"),
        "{error}"
    );
    let owned = Buffer::writable(vec![5; 10]);
    let source = BufferSource::new("o", owned, layout(&[(0, 10, 0)])).unwrap();
    assert!(matches!(source.extent(0, 10), Ok(Extent::Memory([]))));
    source.read_at(3, &mut out).unwrap();
    assert_eq!(out, [5; 5]);
}
