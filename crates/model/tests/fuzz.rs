//! Any bytes are decoded without harm: specifications, lists of hosts, journals.

use ropewalk_model::journal::{Header, Locks, Records, Safe, Shift, Version, decode, ending};
use ropewalk_model::{Range, TransferSpec, host_list};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
use mutate::{fuzz, fuzz_some};

const SPEC: &str = r#"id "My Data File"
# Node Type  Host:Port  Data URI  Offset in file  Range
master localhost:55555
writer node[1-2]:55553 "file:///data/half1" 0 0-1023 up=1Gbit/s interface=eth1
writer [::1]:55554 mem:4096 1024 1024-2047 down=10Mbit
reader node5:55557 "file:///tmp/copy\"1" 0 0-2047 dest=out
reader 10.0.0.7:55559 null: 0 0-2047
trunk wan 10Gbit from node[1-2] to node5
"#;

/// What is accepted is written and read again as it was; what is refused is described.
#[test]
fn specifications() {
    let corpus = [SPEC, "writer a:1 /x 0 0-9\nreader b:2 /y 5 0-9\n"];
    let corpus = corpus.map(|text| text.as_bytes().to_vec());
    fuzz_some("specifications", &corpus, 4000, |input| {
        let text = String::from_utf8_lossy(input);
        match TransferSpec::parse(&text) {
            Ok(spec) => {
                let written = spec.format();
                let again = TransferSpec::parse(&written);
                let again = again.unwrap_or_else(|errors| panic!("{errors}: {written}"));
                assert_eq!(again.format(), written);
            }
            Err(errors) => assert!(!errors.to_string().is_empty()),
        }
        let _ = TransferSpec::parse_added(&text);
    });
}

/// A list has a bounded number of names, none of them empty.
#[test]
fn lists_of_hosts() {
    let corpus = [
        "a[1-4]",
        "node[01-12,14],x",
        "10.0.0.[1-3]:7420",
        "[::1]",
        "a[1-2]b[3-4]",
    ];
    let corpus = corpus.map(|list| list.as_bytes().to_vec());
    fuzz("lists of hosts", &corpus, |input| {
        let text = String::from_utf8_lossy(input);
        match host_list::expand(&text) {
            Ok(names) => {
                assert!(names.len() <= host_list::HOSTS_MAX);
                assert!(names.iter().all(|name| !name.is_empty()), "{names:?}");
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

fn journal() -> Vec<u8> {
    let version = Version {
        len: 5000,
        mtime_seconds: 1_700_000_000,
        mtime_nanoseconds: 7,
    };
    let safe = |number: u32, range, digest| Safe {
        number,
        path: b"sub/file",
        version,
        shift: None,
        inode: 12,
        range,
        digest,
    };
    let shift = Some(Shift {
        by: 1 << 40,
        wanted: 1000,
    });
    let range = Range::new(1 << 40, (1 << 40) + 1000);
    let row = Safe {
        shift,
        ..safe(2, range, None)
    };
    let mut records = Records::default();
    let mut bytes = records.safe([
        safe(0, Range::new(0, 4096), Some([7; 32])),
        safe(1, Range::new(4096, 5000), None),
        row,
    ]);
    bytes.extend(records.gone([1]));
    bytes.extend(ending());
    bytes
}

/// What records say lies in their files, and there is not more of it than bytes.
#[test]
fn journals() {
    fuzz("journals", &[journal()], |input| {
        let files = decode(input);
        for file in &files {
            let in_source = |range| match file.shift {
                Some(shift) => shift.in_source(range).map_or(u64::MAX, |range| range.end),
                None => range.end,
            };
            assert!(
                file.units
                    .iter()
                    .all(|unit| in_source(unit.range) <= file.version.len)
            );
            let safe = file.safe.len_bytes();
            assert!(safe <= file.version.len, "{safe} of {}", file.version.len);
            let units = file.units.iter().map(|unit| unit.range);
            assert!(
                units
                    .into_iter()
                    .all(|range| file.safe.clipped(range).len_bytes() == range.len())
            );
        }
        let read = files
            .iter()
            .map(|file| file.path.len() + file.units.len() * 32);
        assert!(read.sum::<usize>() <= input.len());
    });
}

/// A header is read as it is written.
#[test]
fn headers_of_journals() {
    let header = Header {
        host: *b"0123456789abcdef",
        locks: Locks::OfAllHosts,
    };
    fuzz(
        "headers of journals",
        &[header.encode()],
        |input| match Header::decode(input) {
            Ok((header, rest)) => {
                let written = header.encode();
                assert_eq!(Header::decode(&written), Ok((header, &[][..])));
                assert_eq!(written.len() + rest.len(), input.len());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        },
    );
}
