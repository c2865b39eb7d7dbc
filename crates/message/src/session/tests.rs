//! What becomes of bytes while callers come and go, messages are cancelled and fragments come twice.

use std::net::{TcpListener, TcpStream};

use proptest::prelude::*;
use ropewalk_proto::message::frame::fragments;

use super::*;
use crate::Options;
use crate::link::Current;
use crate::socket::Guest;

const FRAGMENT: usize = 10;
const ROOM: usize = 60;

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
        let room = unsafe { std::slice::from_raw_parts_mut(room, ROOM) };
        Guest::new(session, room)
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
        let mut rest = got.iter().peekable();
        for (message, &length) in lengths.iter().enumerate() {
            let own = bytes_of(message, length);
            let next = rest.peek().is_some_and(|next| **next == own);
            if next {
                rest.next();
            }
            prop_assert!(next || world.cancelled[message], "message {message} of {lengths:?}: {got:?}");
        }
        prop_assert_eq!(rest.next(), None);
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
    let mut guest = Guest::new(&session, &mut room);
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
