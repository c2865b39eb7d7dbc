//! Both ends of an edge over a pair of sockets: what is sent arrives, and what is changed on the way is found.

use std::io::{IoSlice, Write as _};
use std::os::unix::net::UnixStream;

use ropewalk_lane::crc64;
use ropewalk_lane::seal::Records;
use ropewalk_lane::shm::Wanted;
use ropewalk_proto::control::LaneKind;
use ropewalk_proto::stage::deal::Deal;
use ropewalk_proto::stage::frame::{CHECKED_LEN, Frame, HEADER_LEN, Header};
use ropewalk_proto::stage::process::{Process, Role, Settings};
use rustix::event::{PollFd, Timespec, poll};

use crate::error::StageError;
use crate::inbound::{Arrival, Inbound, Sealed};
use crate::link::Link;
use crate::meter::Meter;
use crate::outbound::Outbound;
use crate::passing::Passing;
use crate::pool::{Buffer, Pool};

const BLOCK: usize = 1000;

fn sealed(is_sealed: bool, is_sender: bool) -> Option<Sealed> {
    let (forward, back) = (Records::new(&[1; 32]), Records::new(&[2; 32]));
    is_sealed.then(|| match is_sender {
        true => Sealed {
            incoming: back,
            outgoing: forward,
        },
        false => Sealed {
            incoming: forward,
            outgoing: back,
        },
    })
}

fn pair() -> (UnixStream, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

/// The sending and the receiving end of an edge.
fn links(lane: LaneKind) -> (Link, Link) {
    let (near, far) = pair();
    let receiving = Link::receiving(far.into(), lane, 2 * BLOCK).unwrap();
    (Link::sending(near.into(), lane).unwrap(), receiving)
}

/// A process with these blocks to send and all the credit that they need.
fn source(blocks: &[usize]) -> Process<Buffer> {
    let mut machine = Process::new(Settings {
        role: Role::Source,
        node: 3,
        group: 0,
        inputs: 0,
        outputs: 1,
        block: BLOCK,
        buffers: 64,
        deal: Deal::Random,
        seed: 0,
    });
    machine.credit(0, (64 * BLOCK) as u64, false).unwrap();
    let mut pool = Pool::new(BLOCK);
    for (number, &len) in blocks.iter().enumerate() {
        let mut body = pool.take();
        body[..len].fill(number as u8 + 1);
        let mut header = Header {
            identity: machine.next_identity(),
            length: len as u32,
            check: 0,
        };
        header.check = crc64(&[&header.encode()[..CHECKED_LEN], &body[..len]]);
        machine.make(header, 0, 0, body);
    }
    machine.close();
    machine
}

/// The bytes of an edge that carries these blocks, and its end.
fn bytes(blocks: &[usize], is_sealed: bool) -> Vec<u8> {
    let (near, far) = pair();
    let link = Link::sending(near.into(), LaneKind::Unix).unwrap();
    let mut outbound = Outbound::new(link, "B on x".into(), sealed(is_sealed, true));
    let mut machine = source(blocks);
    while let Some(held) = machine.next_send(0) {
        outbound.push(held);
        outbound
            .write(|held| {
                machine.sent(0, held);
            })
            .unwrap();
    }
    let (blocks, bytes) = machine.poll_end(0).unwrap();
    outbound.push_frame(&Frame::End { blocks, bytes });
    outbound.write(|_| {}).unwrap();
    drop(outbound);
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut &far, &mut all).unwrap();
    all
}

/// What a receiver makes of bytes that arrive in pieces: the blocks, and whether the end was there.
fn receive(
    bytes: &[u8],
    piece: usize,
    is_sealed: bool,
) -> Result<(Vec<Vec<u8>>, bool), StageError> {
    let (mut near, far) = pair();
    let mut inbound = Inbound::new(
        Link::receiving(far.into(), LaneKind::Unix, BLOCK).unwrap(),
        "A on x".into(),
        sealed(is_sealed, false),
        BLOCK,
    );
    let mut pool = Pool::new(BLOCK);
    let (mut blocks, mut has_ended) = (Vec::new(), false);
    for part in bytes.chunks(piece) {
        near.write_all(part).unwrap();
        inbound.read(&mut pool, |arrival| {
            match arrival {
                Arrival::Block(header, body) => {
                    blocks.push(body[..header.length as usize].to_vec())
                }
                Arrival::Frame(Frame::End {
                    blocks: count,
                    bytes,
                }) => {
                    has_ended = true;
                    assert_eq!(count, blocks.len() as u64);
                    assert_eq!(
                        bytes,
                        blocks.iter().map(|block| block.len() as u64).sum::<u64>()
                    );
                }
                Arrival::Frame(frame) => panic!("no sender says {frame:?}"),
            }
            Ok(!has_ended)
        })?;
    }
    drop(near);
    if !has_ended {
        inbound.read(&mut pool, |_| Ok(true))?;
    }
    Ok((blocks, has_ended))
}

const LENGTHS: [usize; 5] = [BLOCK, 1, 0, 17, BLOCK];

/// Blocks of all lengths arrive whole and in order, however the bytes are cut, sealed or not.
#[test]
fn blocks_cross_an_edge() {
    for is_sealed in [false, true] {
        let all = bytes(&LENGTHS, is_sealed);
        for piece in [1, 31, 33, 500, all.len()] {
            let (blocks, has_ended) = receive(&all, piece, is_sealed).unwrap();
            let expected: Vec<Vec<u8>> = (1..)
                .zip(LENGTHS)
                .map(|(number, len)| vec![number; len])
                .collect();
            assert_eq!(blocks, expected, "pieces of {piece}");
            assert!(has_ended);
        }
    }
}

/// Each changed byte of a block is found before it is passed on, and the block is named; a sealed one is found to be forged.
#[test]
fn changed_blocks_are_found() {
    let all = bytes(&[100], false);
    for at in [2, 5, 17, 24, HEADER_LEN, HEADER_LEN + 99] {
        let mut changed = all.clone();
        changed[at] ^= 1;
        let error = receive(&changed, changed.len(), false).unwrap_err();
        assert!(
            matches!(error, StageError::Damaged { .. }),
            "byte {at}: {error}"
        );
    }
    let all = bytes(&[100], true);
    for at in [2, 24, HEADER_LEN, HEADER_LEN + 115, HEADER_LEN + 116 + 20] {
        let mut changed = all.clone();
        changed[at] ^= 1;
        let error = receive(&changed, changed.len(), true).unwrap_err();
        assert!(
            matches!(error, StageError::Forged { .. }),
            "byte {at}: {error}"
        );
    }
}

/// A process that leaves verifying to others passes a damaged block on with its checksum, and the next one that verifies finds it.
#[test]
fn damage_is_found_behind_a_process_that_does_not_verify() {
    let mut changed = bytes(&[100], false);
    changed[HEADER_LEN + 7] ^= 1;
    let (mut near, far) = pair();
    let link = Link::receiving(far.into(), LaneKind::Unix, BLOCK).unwrap();
    let mut inbound = Inbound::new(link, "A on x".into(), None, BLOCK).without_verifying();
    near.write_all(&changed).unwrap();
    let mut passed_on = Vec::new();
    inbound
        .read(&mut Pool::new(BLOCK), |arrival| {
            if let Arrival::Block(header, body) = arrival {
                passed_on.extend_from_slice(&header.encode());
                passed_on.extend_from_slice(&body[..header.length as usize]);
            }
            Ok(true)
        })
        .unwrap();
    assert_eq!(passed_on.len(), HEADER_LEN + 100);
    let error = receive(&passed_on, passed_on.len(), false).unwrap_err();
    assert!(matches!(error, StageError::Damaged { .. }), "{error}");
}

/// Unknown frames, blocks that are too long and connections that end early are errors with the peer's name.
#[test]
fn edges_that_break_are_errors() {
    let mut all = bytes(&[100], false);
    for len in [0, 10, 40, HEADER_LEN + 100] {
        let error = receive(&all[..len], 1000, false).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("the connection to A on x broke"),
            "{len}: {text}"
        );
    }
    all[0] = 77;
    let error = receive(&all, 1000, false).unwrap_err();
    assert!(matches!(error, StageError::Frame { .. }));
    (all[0], all[10]) = (1, 1);
    let error = receive(&all, 1000, false).unwrap_err();
    assert!(
        matches!(
            error,
            StageError::TooLong {
                length: 65636,
                longest: BLOCK,
                ..
            }
        ),
        "{error}"
    );
}

/// Credit crosses an edge in the other direction; a receiver that goes before the end is an error, one after it is not.
#[test]
fn credit_and_ends_cross_back() {
    let lanes = [LaneKind::Unix, LaneKind::Shm];
    for (is_sealed, lane) in [false, true]
        .into_iter()
        .flat_map(|is_sealed| lanes.map(|lane| (is_sealed, lane)))
    {
        let (near, far) = links(lane);
        let mut outbound = Outbound::new(near, "B on x".into(), sealed(is_sealed, true));
        let mut inbound = Inbound::new(far, "A on x".into(), sealed(is_sealed, false), BLOCK);
        inbound.send_credit(3000, false).unwrap();
        inbound.send_credit(5000, true).unwrap();
        let mut seen = Vec::new();
        outbound
            .read(|frame, _| {
                seen.push(frame);
                Ok(())
            })
            .unwrap();
        let credit = |granted, on_demand| Frame::Credit { granted, on_demand };
        assert_eq!(seen, [credit(3000, false), credit(5000, true)]);
        drop(inbound);
        outbound.link.wake().unwrap();
        let error = outbound.read(|_, _| Ok(())).unwrap_err();
        assert!(error.to_string().contains("B on x broke"), "{error}");
        outbound.push_frame(&Frame::End {
            blocks: 0,
            bytes: 0,
        });
    }
    let (near, far) = pair();
    let link = Link::sending(near.into(), LaneKind::Unix).unwrap();
    let mut outbound = Outbound::new(link, "B on x".into(), None);
    outbound.push_frame(&Frame::End {
        blocks: 0,
        bytes: 0,
    });
    outbound.write(|_| {}).unwrap();
    // The receiver has read the end when it closes.
    std::io::Read::read_to_end(&mut &far, &mut Vec::new()).unwrap();
    drop(far);
    outbound.read(|_, _| Ok(())).unwrap();
    assert!(outbound.is_over);
}

/// Blocks cross shared memory whose ring they fill, and each side sleeps until the other wakes it.
#[test]
fn blocks_cross_shared_memory() {
    const BLOCKS: usize = 3;
    const ROUNDS: usize = 1000;
    for is_sealed in [false, true] {
        let (near, far) = links(LaneKind::Shm);
        let mut outbound = Outbound::new(near, "B on x".into(), sealed(is_sealed, true));
        let mut inbound = Inbound::new(far, "A on x".into(), sealed(is_sealed, false), BLOCK);
        let sender = std::thread::spawn(move || {
            // More than a ring holds.
            for _ in 0..ROUNDS {
                let mut machine = source(&[BLOCK; BLOCKS]);
                while let Some(held) = machine.next_send(0) {
                    outbound.push(held);
                }
                while outbound.has_unsent() {
                    let sent = outbound.write(|held| drop(machine.sent(0, held))).unwrap();
                    if !sent {
                        wait_for(&mut outbound.link, true);
                    }
                }
            }
            outbound.push_frame(&Frame::End {
                blocks: 1,
                bytes: 2,
            });
            outbound.write(|_| {}).unwrap();
            while !outbound.is_over {
                wait_for(&mut outbound.link, false);
                outbound.read(|_, _| Ok(())).unwrap();
            }
        });
        let mut pool = Pool::new(BLOCK);
        let (mut count, mut has_ended) = (0, false);
        while !has_ended {
            let read = inbound.read(&mut pool, |arrival| {
                match arrival {
                    Arrival::Block(header, body) => {
                        let expected = (count % BLOCKS) as u8 + 1;
                        assert!(
                            body[..header.length as usize]
                                .iter()
                                .all(|&b| b == expected)
                        );
                        count += 1;
                    }
                    Arrival::Frame(frame) => {
                        let end = Frame::End {
                            blocks: 1,
                            bytes: 2,
                        };
                        assert_eq!(frame, end);
                        has_ended = true;
                    }
                }
                Ok(!has_ended)
            });
            if !read.unwrap() {
                wait_for(&mut inbound.link, false);
            }
        }
        assert_eq!(count, ROUNDS * BLOCKS);
        drop(inbound);
        sender.join().unwrap();
    }
}

/// As the loop of a process waits.
fn wait_for(link: &mut Link, writes: bool) {
    let wanted = Wanted {
        bytes: 1,
        batch: 64 << 10,
        room: writes.then_some(0),
    };
    if link.arm(wanted).unwrap() {
        return;
    }
    let flags = link.flags(true, writes);
    let longest = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let ready = poll(&mut [PollFd::new(link, flags)], Some(&longest)).unwrap();
    assert_eq!(ready, 1, "the other side did not wake this one");
    link.wake().unwrap();
}

/// A process between two edges, and both edges' other ends.
struct Between {
    machine: Process<Buffer>,
    inputs: [Option<Inbound>; 1],
    outputs: [Outbound; 1],
    passing: Passing,
    before: Outbound,
    after: Inbound,
}

impl Between {
    fn new() -> Self {
        let (before, near) = links(LaneKind::Shm);
        let (far, after) = links(LaneKind::Shm);
        let mut machine = Process::new(Settings {
            role: Role::Relay,
            node: 0,
            group: 1,
            inputs: 1,
            outputs: 1,
            block: BLOCK,
            buffers: 8,
            deal: Deal::Random,
            seed: 0,
        });
        let mut inputs = [Some(Inbound::new(near, "A on x".into(), None, BLOCK))];
        let outputs = [Outbound::new(far, "C on x".into(), None)];
        let passing = Passing::of(&inputs, &outputs, true, BLOCK).unwrap();
        let (granted, on_demand) = machine.poll_credit(0).unwrap();
        let input = inputs[0].as_mut().unwrap();
        input.send_credit(granted, on_demand).unwrap();
        Self {
            machine,
            inputs,
            outputs,
            passing,
            before: Outbound::new(before, "B on x".into(), None),
            after: Inbound::new(after, "B on x".into(), None, BLOCK),
        }
    }

    fn pass(&mut self) -> Result<bool, StageError> {
        let Self {
            machine,
            inputs,
            outputs,
            passing,
            ..
        } = self;
        passing.pass(machine, inputs, outputs, &[0; 32], &mut Meter::default())
    }

    /// What has arrived behind it.
    fn arrived(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut all = Vec::new();
        let read = self.after.read(&mut Pool::new(BLOCK), |arrival| {
            if let Arrival::Block(header, body) = arrival {
                all.push((header, body[..header.length as usize].to_vec()));
            }
            Ok(true)
        });
        read.unwrap();
        all
    }
}

/// A process passes blocks from ring to ring without a buffer, in order and as they are, as far as it has credit; what waits stays in
/// the ring, and its counts are those of blocks in buffers.
#[test]
fn blocks_are_passed_on_where_they_lie() {
    let mut between = Between::new();
    let mut machine = source(&LENGTHS);
    while let Some(held) = machine.next_send(0) {
        between.before.push(held);
    }
    between
        .before
        .write(|held| drop(machine.sent(0, held)))
        .unwrap();
    assert!(!between.pass().unwrap(), "no credit");
    assert!(between.passing.waits_for_credit() && between.passing.waits_for_output());
    assert_eq!(between.passing.wanted_bytes(), 0);
    between.machine.credit(0, 3 * BLOCK as u64, false).unwrap();
    assert!(between.pass().unwrap());
    let mut arrived = between.arrived();
    assert_eq!(arrived.len(), 3);
    between.machine.credit(0, 8 * BLOCK as u64, false).unwrap();
    assert!(between.pass().unwrap());
    assert!(!between.pass().unwrap());
    assert!(!between.passing.waits_for_output());
    arrived.extend(between.arrived());
    let bytes: Vec<Vec<u8>> = arrived.into_iter().map(|(_, bytes)| bytes).collect();
    let expected: Vec<Vec<u8>> = (1..)
        .zip(LENGTHS)
        .map(|(number, len)| vec![number; len])
        .collect();
    assert_eq!(bytes, expected);
    let (received, dealt) = (between.machine.received(), between.machine.dealt());
    assert_eq!(received, dealt);
    assert_eq!(received.blocks, LENGTHS.len() as u64);
    assert_eq!(between.machine.held(), 0);
    // Buffers that were not needed are granted again: five are used of eight.
    assert_eq!(
        between.machine.poll_credit(0),
        Some((13 * BLOCK as u64, false))
    );
    let (blocks, bytes) = machine.poll_end(0).unwrap();
    between.before.push_frame(&Frame::End { blocks, bytes });
    between.before.write(|_| {}).unwrap();
    assert!(between.pass().unwrap());
    assert!(between.inputs[0].is_none() && between.machine.poll_end(0).is_some());
}

/// A damaged block, one beyond the credit, one that is too long and an early end are errors before anything is passed on.
#[test]
fn what_is_wrong_is_not_passed_on() {
    let all = bytes(&[100], false);
    let check = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut between = Between::new();
        between.machine.credit(0, 8 * BLOCK as u64, false).unwrap();
        let mut changed = all.clone();
        change(&mut changed);
        let Link::Rings(rings) = &mut between.before.link else {
            unreachable!()
        };
        rings.put(&[IoSlice::new(&changed)]).unwrap();
        let error = between.pass().unwrap_err();
        assert!(between.arrived().is_empty(), "{error}");
        error
    };
    for at in [1, 2, 5, 17, 24, HEADER_LEN, HEADER_LEN + 99] {
        let error = check(&|bytes| bytes[at] ^= 1);
        assert!(
            matches!(error, StageError::Damaged { .. }),
            "byte {at}: {error}"
        );
    }
    let error = check(&|bytes| bytes[10] = 1);
    assert!(matches!(error, StageError::TooLong { .. }), "{error}");
    let error = check(&|bytes| bytes[0] = 77);
    assert!(matches!(error, StageError::Frame { .. }), "{error}");

    let mut between = Between::new();
    between.machine.credit(0, 99 * BLOCK as u64, false).unwrap();
    let mut machine = source(&[1; 9]);
    while let Some(held) = machine.next_send(0) {
        between.before.push(held);
    }
    between.before.write(|_| {}).unwrap();
    let error = between.pass().unwrap_err();
    assert!(matches!(error, StageError::Violation { .. }), "{error}");
    let mut between = Between::new();
    drop(between.before);
    between.inputs[0].as_mut().unwrap().link.wake().unwrap();
    let (inputs, outputs) = (&mut between.inputs, &mut between.outputs);
    let meter = &mut Meter::default();
    let passed = between
        .passing
        .pass(&mut between.machine, inputs, outputs, &[0; 32], meter);
    assert!(matches!(passed, Err(StageError::Lost { .. })));
}
