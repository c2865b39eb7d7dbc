//! Any bytes are decoded without harm: frames, datagrams, control messages and what is made of them.

use prost::Message as _;
use ropewalk_model::Range;
use ropewalk_proto::byte_stream::{self, frame as bytes_frame};
use ropewalk_proto::control::{
    self, FromAgent, Peer, Plan, Present, Run, Stretch, There, ToAgent, from_agent, to_agent,
};
use ropewalk_proto::handover;
use ropewalk_proto::launched::{ADDRESSES_MAX, Announcement, Said, own_lines};
use ropewalk_proto::message::frame::{self as message_frame, Entry};
use ropewalk_proto::rapid::{Bitmap, Datagram, FEEDBACK_LEN, Feedback};
use ropewalk_proto::region::Rule;
use ropewalk_proto::region::frame::{Frame as RegionFrame, MESSAGE_MAX, PIECE_MAX, Part, Status};
use ropewalk_proto::stage::frame::{self as stage_frame, ANSWER_MAX};
use ropewalk_proto::wire::{self, FrameHeader, FrameKind, PAYLOAD_MAX};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
use mutate::{fuzz, fuzz_fixed};

/// Headers of frames: checked, and written as they were.
#[test]
fn frames() {
    let header = FrameHeader {
        kind: FrameKind::Data,
        flags: wire::flags::LAST | wire::flags::HASH,
        space: 0,
        length: 65536,
        offset: 1 << 40,
        grant: 7,
        code: 0,
    };
    let grant = FrameHeader {
        kind: FrameKind::Grant,
        ..header
    };
    let corpus = [header.encode(), grant.encode()];
    fuzz_fixed("frames", &corpus, |bytes| {
        match FrameHeader::decode(bytes) {
            Ok(header) => {
                assert!(
                    header.length <= PAYLOAD_MAX
                        && header.range().len() == u64::from(header.length)
                );
                assert_eq!(header.encode(), *bytes);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

/// Frames of byte streams, and what a machine makes of any that are well formed: it never panics and holds no more streams
/// than it may.
#[test]
fn frames_of_byte_streams() {
    use bytes_frame::{DATA_MAX, GREETING_MAX, HEADER_LEN, Header, Kind};
    let corpus: Vec<Vec<u8>> = [
        Header::new(Kind::Open, 2, 0).frame(b"host:22"),
        Header::new(Kind::Data, 2, 1 << 40).frame(&[7; 100]),
        Header::new(Kind::End, 2, 100).frame(&[]),
        Header::new(Kind::Credit, 0, 1 << 20).frame(&[]),
        Header::new(Kind::Stop, 0, 0).frame(&[]),
        Header::new(Kind::Reset, 0, 300).frame(b"refused"),
    ]
    .into();
    let streams = byte_stream::Streams::new(byte_stream::Side::Listening, 4 << 20);
    let streams = std::sync::Mutex::new(streams);
    fuzz("frames of byte streams", &corpus, |bytes| {
        let Ok(header) = Header::decode(bytes) else {
            return;
        };
        let length = bytes.len() - HEADER_LEN;
        assert!(length <= DATA_MAX.max(GREETING_MAX));
        assert_eq!(header.frame(&bytes[HEADER_LEN..]), bytes);
        let mut streams = streams.lock().unwrap();
        if let Err(error) = streams.handle(header, length as u64) {
            assert!(!error.to_string().is_empty());
        }
        assert!(streams.count() <= byte_stream::STREAMS_MAX);
    });
}

/// Headers of the message socket, and entries of acknowledgements.
#[test]
fn frames_of_messages() {
    let header = message_frame::Header {
        length: 1000,
        message: 5,
        message_len: 5000,
        fragment: 2,
        fragment_len: 1000,
        credit: 1 << 20,
        ..message_frame::Header::new(message_frame::Kind::Data)
    };
    let ack = message_frame::Header {
        length: 32,
        ..message_frame::Header::new(message_frame::Kind::Ack)
    };
    let corpus = [header.encode(), ack.encode()];
    fuzz_fixed("frames of messages", &corpus, |bytes| {
        if let Ok(header) = message_frame::Header::decode(bytes) {
            assert_eq!(message_frame::Header::decode(&header.encode()), Ok(header));
            if header.kind == message_frame::Kind::Data {
                assert_eq!(header.range().len(), u64::from(header.length));
                assert!(header.range().end <= header.message_len);
            }
        }
        let entries: Vec<Entry> = Entry::decode_all(bytes).collect();
        let again: Vec<u8> = entries.iter().flat_map(Entry::encode).collect();
        assert_eq!(again, bytes[..again.len()]);
    });
}

/// Messages of regions: what is decoded is within its bounds, and is encoded as it was.
#[test]
fn messages_of_regions() {
    let part = |offset, len| Part { offset, len };
    let range = Range::new(1 << 40, (1 << 40) + 7);
    let corpus: Vec<Vec<u8>> = [
        RegionFrame::Hello {
            version: 1,
            name: "weights",
        },
        RegionFrame::Welcome {
            size: 1 << 50,
            rule: Rule::All,
            held: vec![range, Range::new(0, 5)],
            owned: vec![range],
        },
        RegionFrame::Get {
            id: 3,
            parts: vec![part(1 << 40, 64), part(0, 7)],
        },
        RegionFrame::Data {
            id: 3,
            bytes: &[5; 71],
        },
        RegionFrame::Put {
            id: 4,
            parts: vec![part(9, 3), part(u64::MAX - 9, 2)],
            bytes: &[6; 5],
        },
        RegionFrame::Notify {
            id: 5,
            range,
            value: 8,
        },
        RegionFrame::Wait {
            id: 6,
            range,
            at_least: 8,
        },
        RegionFrame::Refused {
            id: 7,
            status: Status::Storage,
            text: "disk",
        },
    ]
    .iter()
    .map(RegionFrame::encode)
    .collect();
    fuzz(
        "messages of regions",
        &corpus,
        |bytes| match RegionFrame::decode(bytes) {
            Ok(frame) => {
                assert_eq!(frame.encode(), bytes);
                assert!(bytes.len() <= MESSAGE_MAX);
                if let RegionFrame::Get { parts, .. } | RegionFrame::Put { parts, .. } = &frame {
                    let lens = parts.iter().map(|part| part.range().len());
                    assert!(lens.sum::<u64>() <= PIECE_MAX);
                    assert!(
                        parts
                            .iter()
                            .all(|part| part.range().len() == u64::from(part.len))
                    );
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        },
    );
}

/// Headers between stages, and how much follows them.
#[test]
fn frames_of_stages() {
    use stage_frame::{Frame, Header, Identity};
    let block = Frame::Block(Header {
        identity: Identity {
            node: 3,
            group: 1,
            number: 9,
        },
        length: 1000,
        check: 77,
    });
    let lacking = Frame::Lacking {
        unit: 4,
        round: 2,
        length: 100,
    };
    let corpus = [
        block.encode(),
        lacking.encode(),
        Frame::Want.encode(),
        Frame::Pace.encode(),
    ];
    fuzz_fixed("frames of stages", &corpus, |bytes| {
        match Frame::decode(bytes) {
            Ok(frame) => {
                assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
                assert!(
                    frame
                        .answer_len()
                        .is_none_or(|len| len <= ANSWER_MAX.max(FEEDBACK_LEN))
                );
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

/// Datagrams, bitmaps and the monitor's messages.
#[test]
fn datagrams() {
    let mut corpus = vec![vec![1; 32], vec![0; FEEDBACK_LEN], vec![0xff; 20]];
    corpus[0][2..4].copy_from_slice(&0_u16.to_le_bytes());
    fuzz("datagrams", &corpus, |input| {
        for trailer in [0, 8, 16] {
            if let Ok(datagram) = Datagram::decode(input, trailer) {
                assert_eq!(datagram.encode(), input[..datagram.encode().len()]);
            }
        }
        if let Some(feedback) = Feedback::decode(input) {
            assert_eq!(Feedback::decode(&feedback.encode()), Some(feedback));
        }
        let bits = input.len() as u32 * 8;
        for length in [bits, bits.saturating_sub(3), bits + 1] {
            if let Ok(bitmap) = Bitmap::decode(input, length) {
                assert_eq!(bitmap.encode(), input);
            }
        }
    });
}

fn stretches() -> Vec<Stretch> {
    let stretch = |start, length| Stretch { start, length };
    vec![stretch(0, 10), stretch(1 << 40, 1 << 20)]
}

fn to_agents() -> Vec<Vec<u8>> {
    let peer = Peer {
        node: 2,
        name: "b".into(),
        instance: "00ff".into(),
        addresses: vec!["10.0.0.2:7420".into()],
        ..Peer::default()
    };
    let bodies = [
        to_agent::Body::Plan(Plan {
            peers: vec![peer],
            runs: vec![Run {
                start: 5,
                length: 1000,
                sender: 2,
                ..Run::default()
            }],
            unit: 65536,
            length: 1 << 41,
            ..Plan::default()
        }),
        to_agent::Body::There(There {
            ranges: stretches(),
            adopted: stretches(),
            is_made: true,
            refused: vec![Stretch {
                start: 3,
                length: 4,
            }],
            sinks: vec![0, 3],
        }),
        to_agent::Body::Open(control::Open {
            transfer: vec![1; 16],
            options: Some(control::Options::default()),
            ..control::Open::default()
        }),
        to_agent::Body::Look(control::Look {
            files: vec![control::SharedFile {
                sink: 3,
                rows: vec![control::Row::default()],
                mode: 0o644,
            }],
            origins: vec![control::Origin::default()],
            ..control::Look::default()
        }),
        to_agent::Body::Finish(control::Finish::default()),
    ];
    let encode = |body| ToAgent { body: Some(body) }.encode_to_vec();
    bodies.into_iter().map(encode).collect()
}

fn from_agents() -> Vec<Vec<u8>> {
    let bodies = [
        from_agent::Body::Present(Present {
            ranges: stretches(),
            adopted: stretches(),
            files: 3,
            last: true,
            ..Present::default()
        }),
        from_agent::Body::Need(control::Need {
            ranges: stretches(),
            lost: vec![1, 2],
            reason: "gone".into(),
        }),
        from_agent::Body::Done(control::Done {
            missing: stretches(),
            delivered: 77,
            ..control::Done::default()
        }),
        from_agent::Body::Opened(control::Opened::default()),
        from_agent::Body::Status(control::Status::default()),
    ];
    let encode = |body| FromAgent { body: Some(body) }.encode_to_vec();
    bodies.into_iter().map(encode).collect()
}

/// Sets of whatever a message says are sound.
fn check_set(stretches: &[Stretch]) {
    let set = control::range_set(stretches);
    assert!(set.iter().all(|range| range.start < range.end));
    assert!(set.iter().count() <= stretches.len());
    assert_eq!(control::range_set(&control::stretches(&set)), set);
}

/// Messages to agents: decoded, written and decoded again they are the same, and what is made of them is sound.
#[test]
fn messages_to_agents() {
    fuzz("messages to agents", &to_agents(), |input| {
        let Ok(message) = control::decode::<ToAgent>(input) else {
            return;
        };
        assert_eq!(
            control::decode::<ToAgent>(&message.encode_to_vec()).unwrap(),
            message
        );
        match message.body {
            Some(to_agent::Body::Plan(plan)) => {
                assert!((65536..=1 << 20).contains(&plan.unit_len()));
            }
            Some(to_agent::Body::There(there)) => {
                check_set(&there.ranges);
                check_set(&there.adopted);
            }
            Some(to_agent::Body::Open(open)) => {
                let checked = open.options.unwrap_or_default().check();
                assert!(checked.is_ok() || open.options.is_some());
            }
            _ => {}
        }
    });
}

/// Messages from agents, lists of what is there among them.
#[test]
fn messages_from_agents() {
    fuzz("messages from agents", &from_agents(), |input| {
        let Ok(message) = control::decode::<FromAgent>(input) else {
            return;
        };
        assert_eq!(
            control::decode::<FromAgent>(&message.encode_to_vec()).unwrap(),
            message
        );
        match message.body {
            Some(from_agent::Body::Present(present)) => {
                check_set(&present.ranges);
                check_set(&present.adopted);
            }
            Some(from_agent::Body::Need(need)) => check_set(&need.ranges),
            Some(from_agent::Body::Done(done)) => check_set(&done.missing),
            _ => {}
        }
    });
}

fn questions() -> Vec<Vec<u8>> {
    use control::to_serve::Body;
    let option = |name: &str, value: &str| control::ServeOption {
        name: name.into(),
        value: value.into(),
    };
    let bodies = [
        Body::Submit(control::ServeSubmit {
            key: vec![3; handover::KEY_LEN],
            specification: "id x\nwriter a:1 /x 0 0-9\nreader b:1 /y 0 0-9\n".into(),
            options: vec![
                option("limit", "1Gbit"),
                option("plain", ""),
                option("node-rate", "a=2Gbit"),
                option("speeds", "off"),
            ],
            priority: 7,
        }),
        Body::Follow(control::ServeFollow {
            job: 3,
            key: vec![3; handover::KEY_LEN],
        }),
        Body::List(control::ServeList {}),
        Body::Cancel(control::ServeCancel { job: 9 }),
    ];
    let encode = |body| {
        let question = control::ToServe {
            version: ropewalk_proto::version::version().into(),
            body: Some(body),
        };
        question.encode_to_vec()
    };
    bodies.into_iter().map(encode).collect()
}

/// What a standing master takes from a network: whatever comes, words of its list alone, within their bounds.
#[test]
fn questions_to_a_standing_master() {
    fuzz("questions to a standing master", &questions(), |input| {
        let Ok(message) = control::decode::<control::ToServe>(input) else {
            return;
        };
        assert_eq!(
            control::decode::<control::ToServe>(&message.encode_to_vec()).unwrap(),
            message
        );
        match handover::Question::read(message) {
            Ok(handover::Question::Submit(submission)) => {
                assert!(submission.specification.len() <= handover::SPECIFICATION_MAX);
                assert!(submission.words.len() <= handover::OPTIONS_MAX);
                assert!(submission.priority <= handover::PRIORITY_MAX);
                for word in &submission.words {
                    let name = word.strip_prefix("--").unwrap();
                    let name = name.split('=').next().unwrap();
                    assert!(handover::OPTIONS.iter().any(|(known, _)| *known == name));
                    assert!(word.len() <= handover::VALUE_MAX + 64);
                    assert!(!word.chars().any(char::is_control), "{word:?}");
                    assert!(
                        name != "speeds" || ["--speeds=auto", "--speeds=off"].contains(&&**word)
                    );
                }
            }
            Ok(_) => {}
            Err(error) => {
                let text = error.to_string();
                assert!(text.len() < 1024 && !text.chars().any(char::is_control));
            }
        }
    });
}

/// Lines of agents that a launcher has started, and those that are theirs.
#[test]
fn lines_of_launched_agents() {
    let said = [
        Said::Ready {
            port: 40_000,
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        },
        Said::Refused {
            is_final: true,
            reason: "gone".into(),
        },
    ];
    let seat = || "node1".to_owned();
    let announcements = said.map(|said| Announcement { seat: seat(), said });
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    corpus.extend(announcements.iter().map(|said| said.format().into_bytes()));
    corpus.push(b"at node1\nat node2\nro 2f61\nat node3\nrw 2f".to_vec());
    fuzz("lines of launched agents", &corpus, |input| {
        let text = String::from_utf8_lossy(input);
        if let Some(read) = Announcement::parse(&text) {
            if let Said::Ready { port, addresses } = &read.said {
                assert!(*port > 0 && addresses.len() <= ADDRESSES_MAX);
            }
            assert!(read.format().len() <= input.len() * 4 + 64);
        }
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if let Some(own) = own_lines(&lines, "node1") {
            assert!(own.iter().all(|line| lines.contains(line)));
        }
    });
}

/// A length above the bound is refused before anything is read.
#[test]
fn lengths_of_messages() {
    let corpus = [0_u32, 1000, control::MESSAGE_MAX as u32, u32::MAX].map(u32::to_le_bytes);
    fuzz_fixed(
        "lengths of messages",
        &corpus,
        |bytes| match control::decode_length(*bytes) {
            Ok(length) => assert!(length <= control::MESSAGE_MAX),
            Err(error) => assert!(error.to_string().contains("announces")),
        },
    );
}
