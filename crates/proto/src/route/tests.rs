//! Pairs behind firewalls of all kinds, in virtual time.

use super::*;

const MS: Nanos = Nanos::from_millis(1);

/// Milliseconds since the beginning.
fn milliseconds(at: Instant) -> u64 {
    at.since(Instant::ZERO).0 / MS.0
}

/// What becomes of a step, and after how many milliseconds; `None`: silence.
type Answer = Option<(u64, Result<(), Failure>)>;

/// The step that connected and when, in milliseconds.
type Found = (Step, u64);

/// What was begun and when, in milliseconds.
type Begun = Vec<(u64, Step)>;

struct World {
    facts: Facts,
    is_same_host: bool,
    dial: fn(usize) -> Answer,
    reverse: Answer,
    through: Answer,
}

fn facts(addresses: &[&str]) -> Facts {
    Facts {
        receiver: "b".into(),
        sender: "a".into(),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        lanes: Lanes::Any,
        is_restricted: false,
        is_fixed: false,
    }
}

const TOLD: [&str; 4] = ["10.0.0.1:5", "[fd00::1]:5", "127.0.0.1:5", "[::1]:5"];

fn world() -> World {
    World {
        facts: facts(&TOLD),
        is_same_host: false,
        dial: |_| None,
        reverse: None,
        through: None,
    }
}

const NOW: Answer = Some((10, Ok(())));
const REFUSED: Answer = Some((0, Err(Failure::Refused)));

/// Plays a world until a step connects: which and when, and all that was begun with its time in milliseconds; or why none.
fn play(world: &World) -> (Result<Found, String>, Begun) {
    let (found, begun) = play_on(world);
    (found.map(|found| found[0]), begun)
}

/// Plays a world to its end: all steps that carried data, in order.
fn play_on(world: &World) -> (Result<Vec<Found>, String>, Begun) {
    let mut route = Route::new(world.facts.clone());
    let mut found = Vec::new();
    let mut now = Instant::ZERO;
    let mut begun = Vec::new();
    // Answers that are on their way.
    let mut due: Vec<(Instant, Step, Result<(), Failure>)> = Vec::new();
    loop {
        while let Some(step) = route.poll(now) {
            if step == Step::Local {
                if world.is_same_host && route.may_be_local() {
                    return (Ok(vec![(step, milliseconds(now))]), begun);
                }
                route.handle_local(world.is_same_host, now);
                continue;
            }
            begun.push((milliseconds(now), step));
            let answer = match step {
                Step::Dial(place) => (world.dial)(place),
                Step::Reverse => world.reverse.clone(),
                Step::Through => world.through.clone(),
                Step::Local => unreachable!(),
            };
            // What says nothing is given up by its driver after 5 s.
            let (after, result) = answer.unwrap_or((5000, Err(Failure::NoAnswer)));
            due.push((now + MS * after, step, result));
        }
        if route.is_over() {
            assert_eq!(route.is_carried(), !found.is_empty());
            return match route.is_carried() {
                true => (Ok(found), begun),
                false => (Err(route.describe()), begun),
            };
        }
        due.sort_by_key(|(at, ..)| *at);
        let wake = route.next_at().filter(|at| *at > now);
        let first = due.first().map(|(at, ..)| *at);
        now = [wake, first].into_iter().flatten().min().expect("it ends");
        while due.first().is_some_and(|(at, ..)| *at <= now) {
            let (_, step, result) = due.remove(0);
            match (step, result) {
                (Step::Through, Ok(())) => {
                    found.push((step, milliseconds(now)));
                    if world.facts.is_fixed {
                        return (Ok(found), begun);
                    }
                    route.handle_through_works();
                }
                (_, Ok(())) => {
                    found.push((step, milliseconds(now)));
                    return (Ok(found), begun);
                }
                (Step::Dial(place), Err(why)) => route.handle_dial_failed(place, why),
                (Step::Reverse, Err(_)) => {
                    route.handle_reverse_failed("a gets no answer from b".into());
                }
                (_, Err(_)) => route.handle_through_failed("it is an agent's".into()),
            }
        }
    }
}

/// What is tried, when, and what it comes to, for each kind of firewall.
#[test]
fn ways_of_a_pair() {
    type Row = (&'static str, World, Result<Found, &'static str>);
    let rows: [Row; 12] = [
        (
            "both open",
            World {
                dial: |_| NOW,
                ..world()
            },
            Ok((Step::Dial(0), 10)),
        ),
        (
            "one host",
            World {
                is_same_host: true,
                ..world()
            },
            Ok((Step::Local, 0)),
        ),
        (
            "first address silent",
            World {
                dial: |at| if at == 1 { NOW } else { None },
                ..world()
            },
            Ok((Step::Dial(1), 260)),
        ),
        (
            "first address refused",
            World {
                dial: |at| if at == 1 { NOW } else { REFUSED },
                ..world()
            },
            Ok((Step::Dial(1), 10)),
        ),
        (
            "inbound dropped at the sender",
            World {
                reverse: NOW,
                ..world()
            },
            Ok((Step::Reverse, 110)),
        ),
        (
            "inbound refused at the sender",
            World {
                dial: |_| REFUSED,
                reverse: NOW,
                ..world()
            },
            Ok((Step::Reverse, 10)),
        ),
        (
            "dropped at both",
            World {
                through: NOW,
                ..world()
            },
            Ok((Step::Through, 160)),
        ),
        (
            "refused at both",
            World {
                dial: |_| REFUSED,
                reverse: REFUSED,
                through: NOW,
                ..world()
            },
            Ok((Step::Through, 10)),
        ),
        (
            "dropped at the sender, refused at the receiver",
            World {
                reverse: REFUSED,
                through: NOW,
                ..world()
            },
            Ok((Step::Through, 160)),
        ),
        (
            "a slow answer is waited for",
            World {
                dial: |_| Some((2000, Ok(()))),
                ..world()
            },
            Ok((Step::Dial(0), 2000)),
        ),
        (
            "nothing works",
            world(),
            Err(
                "b gets no answer from 10.0.0.1:5, [fd00::1]:5 (a firewall or NAT in front of a?); a gets no answer from b; \
                 data cannot go through the command's host: it is an agent's; open TCP ports at one of the two and name them \
                 with --ports",
            ),
        ),
        (
            "only loopback",
            World {
                facts: facts(&["127.0.0.1:5"]),
                reverse: REFUSED,
                through: REFUSED,
                ..world()
            },
            Err(
                "a listens on loopback only, which b does not reach; a gets no answer from b; data cannot go through the \
                 command's host: it is an agent's; open TCP ports at one of the two and name them with --ports",
            ),
        ),
    ];
    for (name, world, expected) in rows {
        let (result, begun) = play(&world);
        assert_eq!(result, expected.map_err(str::to_owned), "{name}: {begun:?}");
        // Loopback addresses of another host are never dialled.
        assert!(
            !begun
                .iter()
                .any(|(_, step)| matches!(step, Step::Dial(2..))),
            "{name}: {begun:?}"
        );
    }
}

/// Every way is begun once, in order, and none before its time.
#[test]
fn silence_costs_bounded_time() {
    let (_, begun) = play(&world());
    let expected = [
        (0, Step::Dial(0)),
        (100, Step::Reverse),
        (150, Step::Through),
        (250, Step::Dial(1)),
    ];
    assert_eq!(begun, expected);
    // Where the way cannot change later, the last resort gives the others more time.
    let fixed = World {
        facts: Facts {
            is_fixed: true,
            ..facts(&TOLD)
        },
        ..world()
    };
    let (_, begun) = play(&fixed);
    let expected = [
        (0, Step::Dial(0)),
        (100, Step::Reverse),
        (250, Step::Dial(1)),
        (1600, Step::Through),
    ];
    assert_eq!(begun, expected);
}

/// Data begins to flow through the command's host, and the first way that connects after that takes over.
#[test]
fn better_ways_take_over() {
    type Row = (&'static str, World, &'static [Found]);
    let late = Some((2000, Ok(())));
    let rows: [Row; 5] = [
        (
            "the sender answers late",
            World {
                dial: |_| Some((2000, Ok(()))),
                through: NOW,
                ..world()
            },
            &[(Step::Through, 160), (Step::Dial(0), 2000)],
        ),
        (
            "the second address of two works, the first is silent, and the sender is asked in vain",
            World {
                dial: |at| if at == 1 { Some((100, Ok(()))) } else { None },
                through: NOW,
                ..world()
            },
            &[(Step::Through, 160), (Step::Dial(1), 350)],
        ),
        (
            "the sender gets through late",
            World {
                reverse: late.clone(),
                through: NOW,
                ..world()
            },
            &[(Step::Through, 160), (Step::Reverse, 2100)],
        ),
        (
            "nothing else works",
            World {
                through: NOW,
                ..world()
            },
            &[(Step::Through, 160)],
        ),
        (
            "what streams carry is fixed",
            World {
                facts: Facts {
                    is_fixed: true,
                    ..facts(&TOLD)
                },
                reverse: late,
                through: NOW,
                ..world()
            },
            &[(Step::Through, 1610)],
        ),
    ];
    for (name, world, expected) in rows {
        let (found, begun) = play_on(&world);
        assert_eq!(found.as_deref(), Ok(expected), "{name}: {begun:?}");
    }
}

/// Lanes and interfaces that the user chose close ways, and the reason is given.
#[test]
fn choices_close_ways() {
    let with = |lanes, is_restricted| World {
        facts: Facts {
            lanes,
            is_restricted,
            ..facts(&TOLD)
        },
        dial: |_| REFUSED,
        ..world()
    };
    let (datagrams, begun) = play(&with(Lanes::Datagrams, false));
    let text = datagrams.unwrap_err();
    assert!(
        text.starts_with("a refuses b at 10.0.0.1:5, [fd00::1]:5; lanes of datagrams need"),
        "{text}"
    );
    assert_eq!(begun, [(0, Step::Dial(0)), (0, Step::Dial(1))]);
    let (local, begun) = play(&with(Lanes::Local, false));
    assert!(local.unwrap_err().contains("not on one host") && begun.is_empty());
    let (restricted, begun) = play(&with(Lanes::Tcp, true));
    assert!(restricted.unwrap_err().contains("--rails"));
    assert_eq!(begun.last(), Some(&(0, Step::Reverse)));
    // On one host TCP may use loopback.
    let local = World {
        is_same_host: true,
        dial: |at| if at == 2 { NOW } else { REFUSED },
        ..with(Lanes::Tcp, false)
    };
    assert_eq!(play(&local).0, Ok((Step::Dial(2), 10)));
}

/// What failed is told with silence first, then refusals, then what the network says.
#[test]
fn failures_are_told_by_weight() {
    let addresses: Vec<SocketAddr> = TOLD.iter().map(|text| text.parse().unwrap()).collect();
    let mut dials = Dials::new(&addresses, true);
    let failures = [
        Failure::Unreachable,
        Failure::Other("the handshake failed".into()),
        Failure::Refused,
        Failure::NoAnswer,
    ];
    for why in failures {
        let place = dials.poll(Instant::ZERO).unwrap();
        dials.handle_failed(place, why);
    }
    assert!(dials.is_over() && dials.poll(Instant(u64::MAX)).is_none());
    assert_eq!(
        dials.describe("b", "a"),
        "b gets no answer from [::1]:5 (a firewall or NAT in front of a?); a refuses b at 127.0.0.1:5; \
         b to [fd00::1]:5: the handshake failed; b has no route to 10.0.0.1:5"
    );
}

/// Numbers on the wire and names in reports.
#[test]
fn ways_have_numbers() {
    for way in [Way::Direct, Way::Reversed, Way::Through] {
        assert_eq!(Way::of(way.number()), way);
    }
    assert_eq!(Way::Through.name(), "through this host");
}
