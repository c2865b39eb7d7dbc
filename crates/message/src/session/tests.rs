//! What becomes of bytes while callers enter and leave, messages are cancelled and fragments are duplicated.

use std::net::{TcpListener, TcpStream};

use proptest::prelude::*;
use ropewalk_proto::message::Front;
use ropewalk_proto::message::frame::{
    FRAGMENT_MAX, HEAD_LEN, Header, Kind, TRAILER_LEN, fragments,
};

use super::*;
use crate::Options;
use crate::link::{Current, Frames, Landing, Step};
use crate::socket::Guest;

const FRAGMENT: usize = 10;
const ROOM: usize = 60;
/// Bytes of the room's first part: a fragment lies in both.
const HEAD: usize = 14;

/// A session whose links nobody reads but the test.
struct World {
    session: Arc<Session>,
    links: Vec<Arc<Link>>,
    /// Fragments on their way into memory, one on each link.
    landing: Vec<Option<(Header, Landing)>>,
    lengths: Vec<usize>,
    cancelled: Vec<bool>,
    _peers: Vec<TcpStream>,
}

fn bytes_of(message: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (message * 17 + at + 1) as u8)
        .collect()
}

impl World {
    fn new(lengths: &[usize]) -> Self {
        let options = Options::default();
        let session = Arc::new(Session::new(2, &options, true, 1 << 20).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut links, mut peers) = (Vec::new(), Vec::new());
        for rail in 0..2 {
            peers.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let own = listener.accept().unwrap().0;
            let link = Arc::new(Link::new(own, rail, 1 + rail as u64, true, None).unwrap());
            let mut state = session.state();
            state.receiver.link_up(rail, link.number);
            state.links[rail] = Some(link.clone());
            links.push(link);
        }
        Self {
            session,
            links,
            landing: (0..2).map(|_| None).collect(),
            lengths: lengths.to_vec(),
            cancelled: vec![false; lengths.len()],
            _peers: peers,
        }
    }

    fn header(&self, kind: Kind, message: usize, fragment: u32) -> Header {
        let length = self.lengths[message];
        let mut header = Header {
            message: message as u64,
            message_len: length as u64,
            fragment,
            fragment_len: FRAGMENT as u32,
            ..Header::new(kind)
        };
        if kind == Kind::Data {
            header.length = header.range().len() as u32;
        }
        header
    }

    fn begin(&mut self, link: usize, message: usize, pick: u32) {
        if self.landing[link].is_some() || self.cancelled[message] {
            return;
        }
        let count = fragments(self.lengths[message] as u64, FRAGMENT as u32) as u32;
        let header = self.header(Kind::Data, message, pick % count);
        let landing = self.session.begin(&self.links[link], &header).unwrap();
        self.landing[link] = Some((header, landing));
    }

    fn end(&mut self, link: usize) {
        let Some((header, landing)) = self.landing[link].take() else {
            return;
        };
        let range = header.range();
        let all = bytes_of(header.message as usize, header.message_len as usize);
        let mut current = Current::new(header, landing, None);
        current.land(
            self.links[link].number,
            &all[range.start as usize..range.end as usize],
        );
        let (landing, good) = current.into_parts();
        self.session
            .end(&self.links[link], &header, landing, good)
            .unwrap();
    }

    fn cancel(&mut self, message: usize) {
        self.cancelled[message] = true;
        let header = self.header(Kind::Cancel, message, 0);
        let header = Header {
            fragment_len: 0,
            ..header
        };
        self.session.control(&self.links[0], &header, &[]).unwrap();
    }
}

/// What a waiting caller does when he wakes; `true` when he got a message.
fn look<'a>(
    session: &'a Session,
    guest: &mut Option<Guest<'a>>,
    room: *mut u8,
    got: &mut Vec<Vec<u8>>,
) -> bool {
    let lent = || {
        // SAFETY: the room outlives every guest, and is read only when none is there.
        let head = unsafe { std::slice::from_raw_parts_mut(room, HEAD) };
        // SAFETY: as above.
        let body = unsafe { std::slice::from_raw_parts_mut(room.add(HEAD).cast(), ROOM - HEAD) };
        Guest::new(session, head, body)
    };
    let (state, done) = guest.get_or_insert_with(lent).look(session.state());
    drop(state);
    let Some(result) = done else {
        return false;
    };
    let length = result.unwrap().unwrap();
    *guest = None;
    // SAFETY: as above.
    got.push(unsafe { std::slice::from_raw_parts(room, length) }.to_vec());
    true
}

/// Whether what was handed out is what was sent, in order, but for some of the cancelled. Empty messages look the same, so
/// that one which was handed out may be this or the next.
fn accounts_for(got: &[Vec<u8>], sent: &[(Vec<u8>, bool)]) -> bool {
    let Some(((own, cancelled), later)) = sent.split_first() else {
        return got.is_empty();
    };
    let is_next = |(next, rest): (&Vec<u8>, &[Vec<u8>])| next == own && accounts_for(rest, later);
    got.split_first().is_some_and(is_next) || (*cancelled && accounts_for(got, later))
}

/// Two empty messages behind a cancelled one account for themselves; nothing that is lacking, doubled or swapped passes.
#[test]
fn accounts() {
    let sent = |cancelled| [(vec![], cancelled), (vec![], false), (vec![7], false)];
    let (empty, seven) = (Vec::new(), vec![7]);
    let two = [empty.clone(), seven.clone()];
    let three = [empty.clone(), empty.clone(), seven.clone()];
    assert!(accounts_for(&two, &sent(true)) && accounts_for(&three, &sent(true)));
    assert!(accounts_for(&three, &sent(false)) && !accounts_for(&two, &sent(false)));
    for wrong in [
        vec![empty.clone()],
        vec![seven.clone(), empty],
        vec![seven.clone(), seven],
    ] {
        assert!(!accounts_for(&wrong, &sent(true)), "{wrong:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Every message that is handed out has its own bytes; those that nobody cancelled all are, in order.
    #[test]
    fn bytes_stay_with_their_message(
        lengths in prop::collection::vec(0usize..ROOM, 1..6),
        ops in prop::collection::vec(any::<(u8, u8, u8)>(), 0..300),
    ) {
        let mut world = World::new(&lengths);
        let session = world.session.clone();
        let mut room = vec![0_u8; ROOM];
        let start = room.as_mut_ptr();
        let mut guest: Option<Guest<'_>> = None;
        let mut got: Vec<Vec<u8>> = Vec::new();
        for (what, message, pick) in ops {
            let (message, link) = (usize::from(message) % lengths.len(), usize::from(pick % 2));
            match what % 16 {
                0..=5 => world.begin(link, message, u32::from(pick / 2)),
                6..=10 => world.end(link),
                11..=13 => drop(look(&session, &mut guest, start, &mut got)),
                14 if pick < 128 => guest = None,
                _ => world.cancel(message),
            }
        }
        world.end(0);
        world.end(1);
        for (message, &length) in lengths.iter().enumerate() {
            for fragment in 0..fragments(length as u64, FRAGMENT as u32) as u32 {
                // What is late does no harm.
                world.begin(0, message, fragment);
                world.end(0);
            }
        }
        while look(&session, &mut guest, start, &mut got) {}
        drop(guest);
        let sent = lengths.iter().enumerate().map(|(message, &length)| bytes_of(message, length));
        let sent: Vec<_> = sent.zip(world.cancelled.iter().copied()).collect();
        prop_assert!(accounts_for(&got, &sent), "{lengths:?}, {:?}: {got:?}", world.cancelled);
        prop_assert_eq!(session.kept_bytes.load(Ordering::Relaxed), 0, "all that was kept is free again");
    }
}

/// Memory offered for a message that was cancelled is not offered to the next: it is closed, and what came there would be
/// lost each time it comes.
#[test]
fn an_offer_ends_with_its_claim() {
    let mut world = World::new(&[20, 5]);
    let session = world.session.clone();
    let mut room = [0; ROOM];
    let mut guest = Guest::new(&session, &mut room, &mut []);
    assert!(guest.look(session.state()).1.is_none(), "offered");
    world.begin(0, 0, 0);
    world.end(0);
    world.cancel(0);
    world.begin(0, 1, 0);
    world.end(0);
    let (state, done) = guest.look(session.state());
    drop(state);
    assert!(matches!(done, Some(Ok(Some(5)))), "{done:?}");
    drop(guest);
    assert_eq!(room[..5], bytes_of(1, 5));
}

/// A peer that sends messages in the wrong order, twice, or news nobody waits for, finds the end of what is kept for it.
#[test]
fn a_hostile_peer_takes_no_memory() {
    let most = (1 << 20) + 2 * u64::from(FRAGMENT_MAX);
    let header = |kind, message, length: u32| Header {
        length,
        message,
        message_len: u64::from(length),
        fragment_len: length,
        ..Header::new(kind)
    };
    // Backwards, each as long as a fragment may be.
    let world = World::new(&[]);
    let refused = (0..2000).rev().find_map(|message| {
        let header = header(Kind::Data, message, 16 << 20);
        let begun = world.session.begin(&world.links[0], &header);
        let kept = world.session.kept_bytes.load(Ordering::Relaxed);
        assert!(kept <= most, "{kept}");
        let ended =
            begun.and_then(|landing| world.session.end(&world.links[0], &header, landing, true));
        ended.err()
    });
    assert!(refused.is_some());

    // The same fragment on ever more links: copies that lost it are counted, too.
    let world = World::new(&[]);
    let header_of_all = header(Kind::Data, 0, FRAGMENT_MAX);
    let copies: Vec<Landing> = (0..5)
        .map(|_| {
            world
                .session
                .begin(&world.links[0], &header_of_all)
                .unwrap()
        })
        .collect();
    assert!(world.session.kept_bytes.load(Ordering::Relaxed) <= most);
    assert!(matches!(copies[4], Landing::Refused));
    drop(copies);
    assert_eq!(world.session.kept_bytes.load(Ordering::Relaxed), 0);

    // News that nobody acknowledges, since the peer reads nothing.
    let world = World::new(&[]);
    let _busy = world.links[0].writer.lock();
    let refused = (1..2_000_u64).cycle().take(200_000).find_map(|message| {
        let cancel = Header {
            length: 0,
            fragment_len: 0,
            ..header(Kind::Cancel, message, 0)
        };
        world.session.control(&world.links[0], &cancel, &[]).err()
    });
    assert!(refused.is_none());
    assert!(world.session.state().receiver.waiting_entries(0) <= 2_000);
}

/// A header that was damaged on the way changes nothing: what it would say about its message is not believed.
#[test]
fn damaged_headers_say_nothing() {
    use std::io::{Read as _, Write as _};

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = || {
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    };
    let header = Header {
        length: 4,
        message_len: 4,
        fragment_len: 4,
        ..Header::new(Kind::Data)
    };
    let (out, mut seen) = pair();
    let sender = Link::new(out, 0, 1, true, None).unwrap();
    let source = Source::owned(b"four".to_vec());
    let mut writer = sender.writer.lock();
    sender
        .send_fragment(&mut writer, &header, &source, None)
        .unwrap();
    let mut frame = vec![0; 64];
    seen.read_exact(&mut frame).unwrap();
    for bit in 0..52 * 8 {
        let world = World::new(&[]);
        let (mut from, into) = pair();
        let link = Link::new(into, 0, 1, true, None).unwrap();
        let mut changed = frame.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        from.write_all(&changed).unwrap();
        let mut reader = link.reader.lock();
        let end = loop {
            match link.read(&mut reader, &*world.session) {
                Ok(Step::Empty) => {
                    link.wait_readable(None, Duration::from_secs(1)).unwrap();
                }
                other => break other,
            }
        };
        assert!(matches!(end, Err(LinkError::Damaged)), "bit {bit}: {end:?}");
        assert_eq!(world.session.state().receiver.front(), Front::Unknown);
    }
}

/// What a sender could not wait for is sent by others from where it lies, not moved up after every call.
#[test]
fn the_rest_of_a_frame_is_sent_later() {
    use std::io::Read as _;

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let link = Link::new(near, 0, 1, true, None).unwrap();
    let length = FRAGMENT_MAX;
    let header = Header {
        length,
        message_len: u64::from(length),
        fragment_len: length,
        ..Header::new(Kind::Data)
    };
    let bytes: Vec<u8> = (0..length).map(|at| (at / 5) as u8).collect();
    let source = Source::owned(bytes.clone());
    let mut writer = link.writer.lock();
    let now = Some(Instant::now());
    link.send_fragment(&mut writer, &header, &source, now)
        .unwrap();
    assert!(!writer.is_clear(), "nobody reads yet");
    let reading = std::thread::spawn(move || {
        let mut all = vec![0; 52 + length as usize + 8];
        far.read_exact(&mut all).unwrap();
        all
    });
    link.flush(&mut writer, true).unwrap();
    assert!(writer.is_clear());
    assert!(reading.join().unwrap()[52..][..length as usize] == bytes[..]);
}

/// Beginning to send returns though the peer reads nothing: whatever the kernel does not take is the rail's business.
#[test]
fn beginning_does_not_wait_for_the_peer() {
    let world = World::new(&[]);
    let session = world.session.clone();
    session.state().sender = Sender::new(2, 1 << 30);
    session.state().sender.rail_up(0);
    let (done, begun) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let way = |_: &mut State| Way {
            spread: Spread::On(0),
            flags: 0,
        };
        for length in [50_000; 500].into_iter().chain([20 << 20, 100]) {
            let source = Arc::new(Source::owned(vec![0; length]));
            let started = session.start_only(way, length as u64, &source, None);
            started.unwrap();
        }
        done.send(session.state().started).unwrap();
    });
    let begun = begun.recv_timeout(Duration::from_secs(60));
    assert_eq!(begun, Ok(502), "somebody waits for the peer");
}

/// A socket of another process: no call locks, sends or receives, and nothing that it was given is touched.
#[test]
fn a_socket_of_another_process_is_refused() {
    let options = Options::default();
    let mut session = Session::new(1, &options, true, 1 << 20).unwrap();
    session.maker = Maker::other();
    let session = Arc::new(session);
    let socket = crate::MessageSocket::new(session.clone(), None, &options, None);
    // As if a thread of that process had held it at the fork: what locks it waits for ever.
    let held = session.state.lock();
    let refused = |result: Result<(), MessageError>| {
        assert!(
            matches!(result, Err(MessageError::OtherProcess)),
            "{result:?}"
        );
    };
    refused(socket.send(b"message"));
    refused(socket.send_start(b"message".to_vec()).map(drop));
    refused(socket.wait_sent(0));
    refused(socket.receive(&mut [0; 10]).map(drop));
    refused(socket.receive_vec(10).map(drop));
    refused(socket.finish_sending());
    assert!(!socket.is_sent(0) && socket.rails().is_empty());
    socket.cancel(0);
    socket.break_rail(0);
    socket.set_mode(Mode::Single);
    let polled = crate::PolledMessageSocket::new(socket).unwrap();
    assert!(matches!(
        polled.receive(10),
        std::task::Poll::Ready(Err(MessageError::OtherProcess))
    ));
    drop(polled);
    drop(held);
}

/// Addresses of links that a listener of both families took are those of interfaces, or a lost interface would not be seen at once.
#[test]
fn addresses_of_links_are_those_of_interfaces() {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let near = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let link = Link::new(listener.accept().unwrap().0, 0, 1, true, None).unwrap();
    let own = near.local_addr().unwrap().ip();
    assert_eq!(link.ends, (own, own));
}

/// Where a long message fills a slow path, the news that the socket is closed follows the fragment that is on its way.
#[test]
fn a_busy_path_carries_the_farewell() {
    use std::io::Read as _;

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&listener)
        .set_recv_buffer_size(32 << 10)
        .unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let options = Options::default();
    let session = Arc::new(Session::new(1, &options, true, 1 << 30).unwrap());
    let link = Link::new(near, 0, 1, true, None).unwrap();
    session.add_link(link).unwrap();
    let way = Way {
        spread: Spread::Single,
        flags: 0,
    };
    let source = Source::owned(vec![7; 64 << 20]);
    let mut state = session.state();
    let begun = session.try_start(&mut state, way, 64 << 20, &Arc::new(source));
    assert_eq!(begun.unwrap(), Some(0));
    session.more_work(&mut state);
    drop(state);
    let mut all = vec![0];
    far.read_exact(&mut all).unwrap();
    let closing = session.clone();
    let closing = std::thread::spawn(move || closing.close_within(Duration::from_secs(10)));
    let mut piece = vec![0; 64 << 10];
    loop {
        // A path of 13 MB/s.
        std::thread::sleep(Duration::from_millis(5));
        match far.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => all.extend_from_slice(&piece[..count]),
        }
    }
    closing.join().unwrap();
    assert!(all.len() < 8 << 20, "{} bytes before the end", all.len());
    let farewell = &all[all.len() - HEAD_LEN - TRAILER_LEN..];
    assert_eq!(farewell[0], Kind::Bye as u8);
}
