use proptest::prelude::*;

use super::*;
use crate::range::RangeSet;

/// The file as the paper prints it.
const FIGURE_2: &str = r#"
id "My Data File"
# Node Type  Host:Port          Data URI              Offset in file        Start-End Range
master       localhost:55555     #(Local namespace)   (Global namespace)
writer      node1:55553        "file:///data/half1" 0                      0-1023
writer      node2:55554        "file:///data/half1" 1024                   1024-2047
writer      192.168.3.4:55555 "file:///data/half2" 0                      2048-3071
writer      192.168.3.5:55555 "file:///data/half2" 1024                   3072-4095
reader      node5:55557        "file:///tmp/copy1"  0                      0-2047
reader      node7:55559        "file:///tmp/copy1"  2048                   2048-4095
reader      node6:55558        "file:///tmp/copy2"  0                      0-4095
"#;

fn errors(text: &str) -> SpecErrors {
    TransferSpec::parse(text).expect_err("must be refused")
}

/// Two good rows, so that a test's own row is all that is wrong.
fn with_good_rows(row: &str) -> String {
    format!("writer a:1 /a 0 0-9\nreader b:2 /b 0 0-9\n{row}\n")
}

/// Figure 2 reads as printed, with what its text says of it.
#[test]
fn figure_2_reads() {
    let spec = TransferSpec::parse(FIGURE_2).unwrap();
    assert_eq!(spec.id.as_deref(), Some("My Data File"));
    assert_eq!(spec.master.as_ref().unwrap().to_string(), "localhost:55555");
    assert_eq!(spec.rows.len(), 7);
    let node7 = &spec.rows[5];
    assert_eq!((node7.role, node7.line), (Role::Reader, 10));
    assert_eq!(
        (node7.file_offset, node7.range),
        (2048, Range::new(2048, 4096))
    );
    assert_eq!(node7.local_offset(4095), Some(4095));
    assert_eq!(spec.nodes(Role::Writer).len(), 4);
    let problem = spec.to_problem(ByteRate(125_000_000));
    assert_eq!(problem.senders[3].name, "192.168.3.5:55555");
    // The readers are on different hosts and name no dest: each needs its own ranges.
    assert_eq!(problem.wanted_bytes(), 8192);
}

/// A reader hands bytes on with its `up`, else with its `down`, else with the speed of all; one on a writer's address has
/// no uplink of its own.
#[test]
fn uplinks_of_readers() {
    let text = "writer a:1 /x 0 0-9\nreader b:1 /x 0 0-9 down=9B/s up=3B/s\nreader c:1 /x 0 0-9 down=9B/s\n\
                reader d:1 /x 0 0-9\nreader a:1 /y 0 0-9 up=3B/s";
    let problem = TransferSpec::parse(text).unwrap().to_problem(ByteRate(7));
    let ups: Vec<Option<u64>> = problem.receivers.iter().map(|r| r.relay_up).collect();
    assert_eq!(ups, [Some(3), Some(9), Some(7), None]);
}

/// Rows with one Host:Port are one node with the union of the ranges, and its hints from any row.
#[test]
fn rows_of_one_address_are_one_node() {
    let text = "writer a:1 /x 0 0-9 up=1Gbit/s\nwriter a:1 /x 10 10-19 interface=eth1\nreader [::1]:5 null: 0 0-19";
    let spec = TransferSpec::parse(text).unwrap();
    let nodes = spec.nodes(Role::Writer);
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes[0].hints.up, Some(ByteRate(125_000_000)));
    assert_eq!(nodes[0].hints.interfaces, ["eth1"]);
    let problem = spec.to_problem(ByteRate(7));
    assert_eq!(problem.senders[0].ranges, RangeSet::from(Range::new(0, 20)));
    assert_eq!(problem.receivers[0].down, 7);
    assert_eq!(spec.rows[2].host_port.host, "::1");
}

/// Quotes hide `#` and spaces; percent signs stand for any byte; plain paths are literal.
#[test]
fn uris_read() {
    let text = "writer a:1 \"file:///a#b c%ff\" 0 0+1KiB # note\nwriter c:1 /p%20 0 0-9\nreader b:2 mem:1MiB 0 0-9 dest=\"my fs\"";
    let spec = TransferSpec::parse(text).unwrap();
    let Uri::File(path) = &spec.rows[0].uri else {
        panic!("not a file: {:?}", spec.rows[0].uri)
    };
    assert_eq!(path.as_bytes(), b"/a#b c\xff");
    assert_eq!(spec.rows[0].range, Range::new(0, 1024));
    assert_eq!(spec.rows[1].uri.to_string(), "file:///p%2520");
    assert_eq!(spec.rows[2].hints.destination.as_deref(), Some("my fs"));
}

/// Each slip is reported at its line and column with words that name it.
#[test]
fn slips_are_placed_and_named() {
    for (row, column, part) in [
        ("wirter a:1 /x 0 0-9", 1, "not a kind of row"),
        ("writer a /x 0 0-9", 8, "has no port"),
        ("writer a:0 /x 0 0-9", 8, "not a port"),
        ("writer ::1:55 /x 0 0-9", 8, "several colons"),
        ("writer a[1-4]:1 /x 0 0-9", 8, "not an address"),
        ("writer a:1 x 0 0-9", 12, "not an absolute path"),
        ("writer a:1 file://h/x 0 0-9", 12, "names a host"),
        ("writer a:1 http://x 0 0-9", 12, "not a kind of data"),
        ("writer a:1 file:///x%2 0 0-9", 12, "has a %"),
        ("writer a:1 \"/x 0 0-9", 12, "quote is not closed"),
        ("writer a:1 /x 0-9", 15, "without start-end range"),
        ("writer a:1 /x 0-9 up=1Gbit", 15, "not an offset"),
        ("writer a:1 /x 0 9-0", 17, "ends before it starts"),
        ("writer a:1 /x 0 0-18446744073709551615", 17, "beyond 2^64"),
        ("writer a:1 /x 0 0+4K", 17, "could mean 1000 or 1024"),
        ("writer a:1 /x 0 0", 17, "not a range"),
        ("writer a:1 /x 9223372036854775807 0-0", 15, "beyond 2^63"),
        ("writer a:1 mem:8 0 0-8", 18, "beyond the 8 bytes"),
        (
            "writer a:1 /x 0 0-9 up=fast",
            21,
            "does not start with a number",
        ),
        ("writer a:1 /x 0 0-9 up=0Mbit", 21, "a node of rate 0"),
        ("reader b:2 /x 0 0-9 down=0bit", 21, "a node of rate 0"),
        ("writer a:1 /x 0 0-9 speed=1Gbit", 21, "not a known key"),
        ("writer a:1 /x 0 0-9 dest=d", 21, "no destination"),
        ("writer a:1 /x 0 0-9 fast", 21, "not key=value"),
        ("reader c:1 /x 0 0-9 dest=d dest=e", 28, "twice"),
        ("writer a:1 /a 5 0-3", 12, "at two places of one source"),
        (
            "reader b:2 /b 5 10-14",
            12,
            "at one place of the destination",
        ),
        ("reader b:2 /c 0 0-9 dest=d", 21, "differ in dest="),
        (
            "writer a:1 /x 0 0-9 down=1Gbit",
            21,
            "a writer receives nothing",
        ),
        ("reader c:1 /x 0 5-12", 17, "no writer holds bytes 10-12"),
        ("cap a:1 b:2", 9, "cap row without rate"),
        ("cap a:1 b:2 fast", 13, "does not start with a number"),
        ("cap a:1 b:2 0Gbit", 13, "a link of rate 0"),
        ("cap a:1 b:2 1Gbit now", 19, "ends with its rate"),
        ("cap z:1 b:2 1Gbit", 5, "no row has a node z:1"),
        (
            "cap a:1 b[1-3] 1Gbit",
            9,
            "no row has a node b1, nor 2 more",
        ),
        ("cap a:1 a:1 1Gbit", 9, "no node here is a reader"),
        ("cap b:2 a:1 1Gbit", 5, "no node here is a writer"),
        ("cap a[2-1] b 1Gbit", 5, "counts down"),
        ("cap a:x b 1Gbit", 5, "not a port"),
        ("cap a,a:1 b,b:2 -1Gbit", 17, "is negative"),
        ("trunk wan 1Gbit", 11, "trunk row without from"),
        ("trunk wan 1Gbit from a b", 24, "without \"to\""),
        (
            "trunk wan 1Gbit from a to",
            24,
            "without nodes that receive",
        ),
        ("trunk wan from a to b", 7, "trunk row without rate"),
        ("trunk wan 0bit from a to b", 11, "a link of rate 0"),
        (
            "trunk wan 1Gbit from a to b c",
            29,
            "ends with the nodes that receive",
        ),
        ("trunk \"\" 1Gbit from a to b", 7, "the name is empty"),
        (
            "trunk wan 1Gbit from b to a",
            22,
            "no node here is a writer",
        ),
        ("id a b", 6, "one label"),
        ("master a:1 b:2", 12, "one address"),
    ] {
        let errors = errors(&with_good_rows(row));
        let error = &errors.errors[0];
        assert!(error.message.contains(part), "{row}: {errors}");
        assert_eq!((error.line, error.column), (3, column), "{row}: {errors}");
        assert!(!error.advice.is_empty(), "{row}: {errors}");
    }
}

/// A node has one speed in each direction.
#[test]
fn one_node_two_speeds() {
    let errors = errors(
        "writer a:1 /x 0 0-9 up=1Gbit\nwriter a:1 /y 0 10-19 up=2Gbit\nreader b:1 /b 0 0-19",
    );
    assert!(errors.to_string().contains("two values of up"), "{errors}");
}

/// Readers that share a destination share its files, so their rows must agree across nodes.
#[test]
fn shared_destination_is_one_object() {
    let rows = "writer a:1 /a 0 0-19\nreader b:1 /f 0 0-9 dest=d\nreader c:1 /f 0 10-19";
    let clash = errors(&format!("{rows} dest=d"));
    assert!(clash.to_string().contains("at one place"), "{clash}");
    TransferSpec::parse(rows).expect("without dest they are files on two hosts");
}

/// Readers of one host see one file system: different ranges of one path need a common destination, and both rows are
/// shown. Those of different hosts may have disks of their own.
#[test]
fn halves_of_one_file_need_a_common_destination() {
    let writer = "writer a:1 /a 0 0-19";
    for rows in [
        "reader b:1 /f 0 0-9\nreader b:2 /f 10 10-19",
        "reader b:1 /f 0 0-9 dest=d\nreader b:2 /f 10 10-19 dest=e",
        "reader b:1 /f 0 0-9\nreader b:2 /f 10 10-19 dest=e",
        "reader b:1 /f 0 0-19\nreader b:2 /f 0 0-9",
        "reader b:1 /f 0 0-9\nreader b:1 /f 10 10-19\nreader b:2 /f 0 0-9",
    ] {
        let clash = errors(&format!("{writer}\n{rows}"));
        assert_eq!(clash.errors.len(), 1, "{rows}: {clash}");
        let text = clash.to_string();
        assert!(text.contains("different ranges of one file"), "{text}");
        assert!(text.contains("say dest=NAME"), "{text}");
    }
    for rows in [
        "reader b:1 /f 0 0-9 dest=d\nreader b:2 /f 10 10-19 dest=d",
        "reader b:1 /f 0 0-9\nreader c:1 /f 10 10-19",
        "reader b:1 /f 0 0-9\nreader b:2 /g 10 10-19",
        "reader b:1 /f 0 0-19\nreader b:2 /f 0 0-19",
        "reader b:1 /f 0 0-9\nreader b:1 /f 10 10-19\nreader b:2 /f 10 10-19\nreader b:2 /f 0 0-9",
        "reader b:1 null: 0 0-9\nreader b:2 null: 10 10-19",
    ] {
        TransferSpec::parse(&format!("{writer}\n{rows}")).expect(rows);
    }
}

/// Files of one name are replicas: they may hold different parts, but not put one byte at two places.
#[test]
fn replicas_agree_on_places() {
    let reader = "reader r:1 /out 0 0-29";
    let parts =
        format!("writer a:1 /f 0 0-9\nwriter b:1 /f 0 0-19\nwriter c:1 /f 5 5-29\n{reader}");
    TransferSpec::parse(&parts).expect("partial replicas with one mapping");
    let own = format!("writer a:1 /f 0 0-9\nwriter b:1 /f 0 10-29\n{reader}");
    TransferSpec::parse(&own).expect("parts with one local name each");
    let clash = errors(&format!(
        "writer a:1 /f 0 0-29\nwriter b:1 /f 0 10-29\n{reader}"
    ));
    assert!(
        clash.to_string().contains("replicas of one file disagree"),
        "{clash}"
    );
    assert_eq!(clash.errors.len(), 1, "{clash}");
}

/// A destination takes each byte once, so a second copy on the same node is refused, not lost.
#[test]
fn two_copies_on_one_node_are_refused() {
    let writer = "writer a:1 /f 0 0-29";
    for rows in [
        "reader r:1 /x 0 0-29\nreader r:1 /y 0 0-29",
        "reader r:1 /x 0 0-9\nreader r:1 /x 100 5-9",
        "reader r:1 /x 0 0-29 dest=d\nreader s:1 /y 0 0-9 dest=d",
        "reader r:1 /x 0 0-29\nreader r:1 null: 0 0-9",
    ] {
        let clash = errors(&format!("{writer}\n{rows}"));
        assert!(
            clash.to_string().contains("for two places"),
            "{rows}: {clash}"
        );
    }
    for rows in [
        "reader r:1 /x 0 0-9\nreader r:1 /y 0 10-29",
        "reader r:1 /x 0 0-29 dest=d\nreader s:1 /x 0 0-29 dest=d",
        "reader r:1 /x 0 0-29\nreader s:1 /x 0 0-29",
        "reader r:1 null: 0 0-9\nreader r:1 null: 0 5-29",
    ] {
        TransferSpec::parse(&format!("{writer}\n{rows}")).expect(rows);
    }
}

/// All errors come at once, and a file without senders or receivers is refused.
#[test]
fn errors_come_together() {
    let two = errors("writer a /x 0 0-9\nreader b:1 /x 0 9-0\n");
    assert_eq!(two.errors.len(), 2, "{two}");
    let none = errors("");
    assert!(none.to_string().contains("no writer row"), "{none}");
    assert!(none.to_string().contains("no reader row"), "{none}");
    let many = errors(&"x\n".repeat(1000));
    assert_eq!(many.errors.len() + many.more, 1000);
    assert!(many.errors.len() < 50);
}

/// Rows for a transfer that runs may be on one side only, and are rows only.
#[test]
fn rows_can_be_added() {
    let spec = TransferSpec::parse_added("# one more\nwriter a:1 /x 0 0-9 up=8bit\n").unwrap();
    assert_eq!((spec.rows.len(), spec.rows[0].role), (1, Role::Writer));
    TransferSpec::parse_added("reader b:1 /y 0 0-9 dest=d").unwrap();
    for (text, part) in [
        ("id \"x\"\nwriter a:1 /x 0 0-9", "already has an id"),
        ("master a:1\nwriter a:1 /x 0 0-9", "already has a master"),
        ("# nothing", "no node joins"),
        ("writer a:1 /x 0 0-9\nwriter a:1 /x 5 0-9", "two places"),
    ] {
        let errors = TransferSpec::parse_added(text).unwrap_err();
        assert!(errors.to_string().contains(part), "{text}: {errors}");
    }
}

/// The picture shows file, line, caret and advice.
#[test]
fn picture_of_an_error() {
    let text = with_good_rows("writer a:1 /x 0 9-0");
    let picture = errors(&text).render(&text, "two.spec", false);
    let expected = "error: range 9-0 ends before it starts
 --> two.spec:3:17
  |
3 | writer a:1 /x 0 9-0
  |                 ^^^
  |
  = help: write the first byte, then the last; both are included";
    assert_eq!(picture, expected);
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 #=é_-]{1,12}"
}

fn uri() -> impl Strategy<Value = Uri> {
    let path = proptest::collection::vec(1..=255u8, 0..12).prop_map(|mut bytes| {
        bytes.insert(0, b'/');
        Uri::File(FilePath::new(bytes).unwrap())
    });
    prop_oneof![
        path,
        (2_000_000..u64::MAX).prop_map(|n| Uri::Memory(crate::units::Bytes(n))),
        "[A-Za-z0-9._-]{1,9}".prop_map(Uri::Buffer),
        Just(Uri::Null)
    ]
}

prop_compose! {
    /// Rows on distinct nodes, so that no two can contradict each other.
    fn row(index: usize, role: Role)(
        uri in uri(), file_offset in 0..1_000_000u64, start in 0..u64::MAX / 2, length in 0..1_000_000u64,
        up in proptest::option::of(any::<u64>()), down in proptest::option::of(any::<u64>()),
        destination in proptest::option::of(name()), interfaces in proptest::collection::vec(name(), 0..3),
        v6 in any::<bool>(), port in 1..=u16::MAX,
    ) -> Row {
        let host = if v6 { format!("fe80::{index:x}") } else { format!("host-{index}") };
        let destination = destination.filter(|_| role == Role::Reader).map(|name| format!("{index}{name}"));
        Row {
            role,
            host_port: HostPort { host, port },
            uri,
            file_offset,
            range: Range::new(start, start + length),
            hints: Hints {
                up: up.map(ByteRate).filter(|_| role == Role::Writer),
                down: down.map(ByteRate).filter(|_| role == Role::Reader),
                destination,
                interfaces,
            },
            line: 0,
        }
    }
}

proptest! {
    /// What is formatted parses back to the same specification.
    #[test]
    fn text_round_trip(
        id in proptest::option::of(name()),
        writers in (row(1, Role::Writer), row(2, Role::Writer)),
        readers in (row(3, Role::Reader), row(4, Role::Reader)),
        trunk in proptest::option::of(name()),
        rate in 1..u64::MAX,
        by_host in any::<bool>(),
    ) {
        let mut rows = vec![writers.0, readers.0, readers.1, writers.1];
        // What is wanted is there.
        (rows[1].range, rows[2].range) = (rows[0].range, rows[3].range);
        let set = |rows: &[&Row]| match by_host {
            true => NodeSet {
                hosts: rows.iter().map(|row| row.host_port.host.clone()).collect(),
                ..NodeSet::default()
            },
            false => NodeSet {
                nodes: rows.iter().map(|row| row.host_port.to_string()).collect(),
                ..NodeSet::default()
            },
        };
        let link = Link {
            trunk,
            rate: ByteRate(rate),
            from: set(&[&rows[0], &rows[3]]),
            to: set(&[&rows[1]]),
        };
        let spec = TransferSpec { id, master: None, rows, links: vec![link] };
        let text = spec.format();
        let mut back = TransferSpec::parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        for row in &mut back.rows {
            row.line = 0;
        }
        prop_assert_eq!(back, spec);
    }

    /// No text makes the parser or the renderer panic.
    #[test]
    fn any_text_is_answered(text in "((id|master|writer|reader|[^ \n]{1,8}|[0-9]{1,22}|[0-9]-[0-9]|\"|#|é|\t|\r|\u{feff}| |\n)){0,30}") {
        if let Err(errors) = TransferSpec::parse(&text) {
            prop_assert!(!errors.errors.is_empty());
            prop_assert!(!errors.render(&text, "x", false).is_empty());
        }
    }
}

/// Links name nodes, host lists, and hosts for all nodes on them; the problem has them between the pairs meant.
#[test]
fn links_are_read() {
    let text = "writer a1:1 /a 0 0-9\nwriter a2:1 /a 0 0-9\nwriter a2:2 /b 0 0-9\n\
                reader b:2 /b 0 0-9\nreader c:2 /b 0 0-9\n\
                cap a1:1,a2:1 b:2 80bit\ntrunk \"my wan\" 1kB/s from a[1-2] to c\ntrunk wan2 1kB/s from a2 to b,c:2";
    let spec = TransferSpec::parse(text).unwrap();
    let problem = spec.to_problem(ByteRate(7));
    let caps = problem.pair_caps.iter();
    let caps: Vec<_> = caps
        .map(|cap| (cap.sender, cap.receiver, cap.cap))
        .collect();
    assert_eq!(caps, [(0, 0, 10), (1, 0, 10)]);
    let trunks = problem.trunks.iter();
    let trunks: Vec<_> = trunks
        .map(|t| {
            (
                t.name.as_str(),
                t.senders.as_slice(),
                t.receivers.as_slice(),
                t.cap,
            )
        })
        .collect();
    assert_eq!(
        trunks,
        [
            ("my wan", &[0, 1, 2][..], &[1][..], 1000),
            ("wan2", &[1, 2], &[0, 1], 1000)
        ]
    );
    let again = TransferSpec::parse(&spec.format()).unwrap();
    assert_eq!(again.links, spec.links);
}

/// What links say twice or of one node on both sides is refused, with both places; who joins brings none.
#[test]
fn links_that_contradict_are_refused() {
    let nodes =
        "writer a:1 /a 0 0-9\nwriter b:2 /a 0 0-9\nreader b:2 /b 0 0-9\nreader c:3 /c 0 0-9\n";
    for (rows, part, line, column) in [
        (
            "cap a c 1Gbit\ncap a:1 b,c 1Gbit",
            "a second cap from a:1 to c:3",
            6,
            1,
        ),
        (
            "trunk t 1Gbit from a to b\ntrunk t 1Gbit from b to c",
            "a second trunk \"t\"",
            6,
            7,
        ),
        ("cap b:2 b:2 1Gbit", "from a node to itself", 5, 5),
        (
            "trunk t 1Gbit from a,b to b,c",
            "b:2 is at both ends",
            5,
            20,
        ),
    ] {
        let errors = errors(&format!("{nodes}{rows}"));
        assert_eq!(errors.errors.len(), 1, "{errors}");
        let error = &errors.errors[0];
        assert!(error.message.contains(part), "{errors}");
        assert_eq!((error.line, error.column), (line, column), "{errors}");
        assert!(!error.advice.is_empty());
    }
    TransferSpec::parse(&format!("{nodes}cap a,b b,c 1Gbit\n"))
        .expect("a node to itself is left out");
    let added = TransferSpec::parse_added("writer d:1 /a 0 0-9\ncap d:1 c:3 1Gbit").unwrap_err();
    assert!(
        added
            .to_string()
            .contains("belong to the transfer that runs"),
        "{added}"
    );
}

/// A short file whose lists of hosts name millions is refused, and not written out.
#[test]
fn lists_in_links_are_bounded() {
    let rows = "writer a:1 /x 0 0-9\nreader b:1 /y 0 0-9\n";
    let trunk = |at: usize| format!("trunk t{at} 1Gbit from a to h[0-60000],a,b\n");
    let file = |trunks: usize| {
        (0..trunks)
            .map(trunk)
            .fold(rows.to_owned(), |all, row| all + &row)
    };
    let errors = TransferSpec::parse(&file(40)).unwrap_err().to_string();
    assert!(errors.contains("name more than 1000000 nodes"), "{errors}");
    let errors = TransferSpec::parse(&file(2)).unwrap_err().to_string();
    assert!(!errors.contains("name more than"), "{errors}");
}
