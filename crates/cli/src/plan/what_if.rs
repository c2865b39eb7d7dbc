//! Applies the changes of `plan --what-if` to a transfer. Pure: makes a problem of another.
//!
//! Left out on purpose: whether the result can be planned. That a removal leaves bytes without holder is
//! found by the planner, which names the ranges.

use ropewalk_model::{PairCap, Problem, Receiver, Sender, Trunk};

use super::change::{Action, Change, Side, Speed, Speeds};

/// Names shown in an error.
const NAMES_MAX: usize = 6;

/// Why a change does not fit the transfer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ChangeError {
    /// No node has that name.
    #[error("there is no {kind} \"{name}\"; {hint}")]
    Unknown {
        /// `writer`, `reader` or `node`.
        kind: String,
        /// What was written.
        name: String,
        /// Names that look like it, or the first there are.
        hint: String,
    },
    /// Several nodes could be meant.
    #[error("\"{name}\" could be {}; write the one that is meant", .found.join(" or "))]
    Ambiguous {
        /// What was written.
        name: String,
        /// What it could be, in the form to write.
        found: Vec<String>,
    },
    /// The node has the other role.
    #[error("\"{name}\" is a {is}, not a {wanted}; the speed of a {is} is {key}=RATE")]
    OtherSide {
        /// What was written.
        name: String,
        /// What it is.
        is: Side,
        /// What it would have to be.
        wanted: Side,
        /// The key that its speed has.
        key: &'static str,
    },
    /// The new node's name is taken.
    #[error("there is a {side} \"{name}\" already; give the new one another name")]
    Taken {
        /// Its side.
        side: Side,
        /// What was written.
        name: String,
    },
    /// A node like one of the other side has no speed to take over.
    #[error("no rate for {name}: {like} is a {is} and has none to copy; add {key}=RATE")]
    NoSpeed {
        /// The new node.
        name: String,
        /// Whose ranges it takes over.
        like: String,
        /// What that one is.
        is: Side,
        /// The key that is missing.
        key: &'static str,
    },
    /// A factor needs something to multiply.
    #[error("the pair {writer} {reader} has no cap to multiply; write cap=RATE")]
    NoCap {
        /// Who sends.
        writer: String,
        /// Who receives.
        reader: String,
    },
    /// There are fewer trunks.
    #[error("there is no trunk {trunk}; the transfer has {known}")]
    NoTrunk {
        /// What was written.
        trunk: String,
        /// Those that there are.
        known: String,
    },
}

/// Applies one change.
///
/// Cost O(nodes + links).
///
/// # Errors
/// [`ChangeError`] when it names what is not there; the problem is as before then.
pub(crate) fn apply(problem: &mut Problem, change: &Change) -> Result<(), ChangeError> {
    match &change.action {
        Action::Speed { side, name, speeds } => set_speed(problem, *side, name, *speeds),
        Action::SpeedOfAll(speeds) => {
            for sender in &mut problem.senders {
                sender.up = speeds.up.map_or(sender.up, |up| up.of(sender.up));
            }
            for receiver in &mut problem.receivers {
                receiver.down = speeds.down.map_or(receiver.down, |d| d.of(receiver.down));
            }
            Ok(())
        }
        Action::Remove { side, name } => {
            match find_any(problem, *side, name)? {
                (Side::Writer, at) => remove_sender(problem, at),
                (Side::Reader, at) => remove_receiver(problem, at),
            }
            Ok(())
        }
        Action::Add { .. } => add(problem, &change.action),
        Action::Pair {
            writer,
            reader,
            cap,
        } => set_cap(problem, writer, reader, cap.as_ref()),
        Action::Trunk { trunk, cap } => set_trunk(problem, trunk, cap),
        Action::AddTrunk {
            writers,
            readers,
            cap,
        } => {
            let all = |side, names: &[String]| {
                let found = names.iter().map(|name| find(problem, side, name));
                found.collect::<Result<Vec<usize>, _>>()
            };
            let trunk = Trunk {
                name: String::new(),
                senders: all(Side::Writer, writers)?,
                receivers: all(Side::Reader, readers)?,
                cap: *cap,
                ..Trunk::default()
            };
            problem.trunks.push(trunk);
            Ok(())
        }
    }
}

/// The limit of one pair; `None` takes it away.
fn set_cap(
    problem: &mut Problem,
    writer: &str,
    reader: &str,
    cap: Option<&Speed>,
) -> Result<(), ChangeError> {
    let (sender, receiver) = (
        find(problem, Side::Writer, writer)?,
        find(problem, Side::Reader, reader)?,
    );
    let is_it = |pair: &PairCap| pair.sender == sender && pair.receiver == receiver;
    let old = problem.pair_caps.iter().filter(|pair| is_it(pair));
    let old = old.map(|pair| pair.cap).min();
    let cap = match (cap, old) {
        (None, _) => None,
        (Some(Speed::Times { .. }), None) => {
            return Err(ChangeError::NoCap {
                writer: writer.to_owned(),
                reader: reader.to_owned(),
            });
        }
        (Some(speed), old) => Some(speed.of(old.unwrap_or(0))),
    };
    problem.pair_caps.retain(|pair| !is_it(pair));
    problem.pair_caps.extend(cap.map(|cap| PairCap {
        sender,
        receiver,
        cap,
    }));
    Ok(())
}

/// The limit of a trunk, by its name or its number.
fn set_trunk(problem: &mut Problem, trunk: &str, cap: &Speed) -> Result<(), ChangeError> {
    let labels = problem.trunks.iter().enumerate();
    let labels: Vec<String> = labels.map(|(at, trunk)| trunk.label(at)).collect();
    let named = problem.trunks.iter().position(|known| known.name == trunk);
    let at = named.or_else(|| trunk.parse().ok().filter(|at| *at < labels.len()));
    let no_trunk = || ChangeError::NoTrunk {
        trunk: trunk.to_owned(),
        known: match labels.is_empty() {
            true => "none".to_owned(),
            false => labels.join(", "),
        },
    };
    let trunk = &mut problem.trunks[at.ok_or_else(no_trunk)?];
    trunk.cap = cap.of(trunk.cap);
    Ok(())
}

fn set_speed(
    problem: &mut Problem,
    side: Option<Side>,
    name: &str,
    speeds: Speeds,
) -> Result<(), ChangeError> {
    // Both are looked up before either is changed.
    let at = |wanted: Side, key| match find(problem, wanted, name) {
        Err(ChangeError::Unknown { .. }) if side.is_none() && has(problem, other(wanted), name) => {
            Err(ChangeError::OtherSide {
                name: name.to_owned(),
                is: other(wanted),
                wanted,
                key,
            })
        }
        found => found,
    };
    let sender = speeds.up.map(|up| Ok((at(Side::Writer, "down")?, up)));
    let receiver = speeds.down.map(|down| Ok((at(Side::Reader, "up")?, down)));
    let (sender, receiver) = (sender.transpose()?, receiver.transpose()?);
    if let Some((at, up)) = sender {
        problem.senders[at].up = up.of(problem.senders[at].up);
    }
    if let Some((at, down)) = receiver {
        problem.receivers[at].down = down.of(problem.receivers[at].down);
    }
    Ok(())
}

fn add(problem: &mut Problem, action: &Action) -> Result<(), ChangeError> {
    let Action::Add {
        side,
        name,
        speed,
        like,
        ranges,
        destination,
    } = action
    else {
        return Ok(());
    };
    if names(problem, *side).any(|known| known == name) {
        return Err(ChangeError::Taken {
            side: *side,
            name: name.clone(),
        });
    }
    // A node of the same side is meant before one of the other.
    let like = match like {
        None => None,
        Some(like) if has(problem, *side, like) => Some((*side, find(problem, *side, like)?)),
        Some(like) => Some(find_any(problem, None, like)?),
    };
    let mut all = ranges.clone();
    let (mut inherited, mut joined, mut relay_up) = (None, None, None);
    match like {
        Some((Side::Writer, at)) => {
            all = all.union(&problem.senders[at].ranges);
            inherited = (*side == Side::Writer).then_some(problem.senders[at].up);
        }
        Some((Side::Reader, at)) => {
            let receiver = &problem.receivers[at];
            all = all.union(&receiver.ranges);
            inherited = (*side == Side::Reader).then_some(receiver.down);
            joined = receiver.destination.clone();
            relay_up = receiver.relay_up;
        }
        None => {}
    }
    let Some(speed) = speed.or(inherited) else {
        let (is, at) = like.unwrap_or((other(*side), 0));
        return Err(ChangeError::NoSpeed {
            name: name.clone(),
            like: names(problem, is).nth(at).unwrap_or("that one").to_owned(),
            is,
            key: match side {
                Side::Writer => "up",
                Side::Reader => "down",
            },
        });
    };
    let new = match side {
        Side::Writer => {
            problem.senders.push(Sender {
                name: name.clone(),
                up: speed,
                ranges: all,
            });
            problem.senders.len() - 1
        }
        Side::Reader => {
            // As with the readers of the file: a symmetrical link, where any of them hands on.
            let hands_on = problem.receivers.iter().any(|r| r.relay_up.is_some());
            let relay_up = relay_up.or(hands_on.then_some(speed));
            problem.receivers.push(Receiver {
                name: name.clone(),
                down: speed,
                ranges: all,
                destination: destination.clone().or(joined),
                relay_up,
            });
            problem.receivers.len() - 1
        }
    };
    if let Some((_, old)) = like.filter(|(of, _)| of == side) {
        share_links(problem, *side, old, new);
    }
    Ok(())
}

/// Puts a new node behind the caps and trunks of an old one: they stand in the same place.
fn share_links(problem: &mut Problem, side: Side, old: usize, new: usize) {
    let place = |pair: &mut PairCap| match side {
        Side::Writer => std::mem::replace(&mut pair.sender, new),
        Side::Reader => std::mem::replace(&mut pair.receiver, new),
    };
    let copies = problem.pair_caps.iter().filter_map(|pair| {
        let mut copy = *pair;
        (place(&mut copy) == old).then_some(copy)
    });
    let copies: Vec<PairCap> = copies.collect();
    problem.pair_caps.extend(copies);
    for trunk in &mut problem.trunks {
        let lists = match side {
            Side::Writer => vec![&mut trunk.senders],
            Side::Reader => vec![&mut trunk.relays, &mut trunk.receivers],
        };
        for members in lists {
            if members.contains(&old) {
                members.push(new);
            }
        }
    }
}

fn remove_sender(problem: &mut Problem, at: usize) {
    problem.senders.remove(at);
    problem.pair_caps.retain(|pair| pair.sender != at);
    for pair in &mut problem.pair_caps {
        pair.sender -= usize::from(pair.sender > at);
    }
    for trunk in &mut problem.trunks {
        leave(&mut trunk.senders, at);
    }
}

fn remove_receiver(problem: &mut Problem, at: usize) {
    problem.receivers.remove(at);
    problem.pair_caps.retain(|pair| pair.receiver != at);
    for pair in &mut problem.pair_caps {
        pair.receiver -= usize::from(pair.receiver > at);
    }
    for trunk in &mut problem.trunks {
        leave(&mut trunk.relays, at);
        leave(&mut trunk.receivers, at);
    }
}

/// Takes a position out of a list; the ones behind it move up. A trunk keeps its number even when empty.
fn leave(members: &mut Vec<usize>, at: usize) {
    members.retain(|member| *member != at);
    for member in members {
        *member -= usize::from(*member > at);
    }
}

fn other(side: Side) -> Side {
    match side {
        Side::Writer => Side::Reader,
        Side::Reader => Side::Writer,
    }
}

fn names(problem: &Problem, side: Side) -> Box<dyn Iterator<Item = &str> + '_> {
    match side {
        Side::Writer => Box::new(problem.senders.iter().map(|s| s.name.as_str())),
        Side::Reader => Box::new(problem.receivers.iter().map(|r| r.name.as_str())),
    }
}

/// Positions of the nodes that `name` means: the one of that name, else all of that host.
fn matches(problem: &Problem, side: Side, name: &str) -> Vec<usize> {
    if let Some(at) = names(problem, side).position(|known| known == name) {
        return vec![at];
    }
    let is_host = |known: &str| known.rsplit_once(':').is_some_and(|(host, _)| host == name);
    let all = names(problem, side).enumerate();
    all.filter(|(_, known)| is_host(known))
        .map(|(at, _)| at)
        .collect()
}

fn has(problem: &Problem, side: Side, name: &str) -> bool {
    !matches(problem, side, name).is_empty()
}

fn find(problem: &Problem, side: Side, name: &str) -> Result<usize, ChangeError> {
    match *matches(problem, side, name) {
        [at] => Ok(at),
        [] => Err(unknown(problem, Some(side), name)),
        ref several => Err(ambiguous(
            problem,
            name,
            several.iter().map(|&at| (side, at)),
        )),
    }
}

/// The one node of this name on either side, or on the side that is given.
fn find_any(
    problem: &Problem,
    side: Option<Side>,
    name: &str,
) -> Result<(Side, usize), ChangeError> {
    if let Some(side) = side {
        return Ok((side, find(problem, side, name)?));
    }
    let sides = [Side::Writer, Side::Reader];
    let found = sides.iter().flat_map(|&side| {
        let found = matches(problem, side, name);
        found.into_iter().map(move |at| (side, at))
    });
    let found: Vec<(Side, usize)> = found.collect();
    match *found {
        [one] => Ok(one),
        [] => Err(unknown(problem, None, name)),
        _ => Err(ambiguous(problem, name, found.into_iter())),
    }
}

fn ambiguous(
    problem: &Problem,
    name: &str,
    found: impl Iterator<Item = (Side, usize)>,
) -> ChangeError {
    let full = |(side, at)| {
        let known = names(problem, side).nth(at).unwrap_or_default();
        format!("{side} {known}")
    };
    ChangeError::Ambiguous {
        name: name.to_owned(),
        found: found.take(NAMES_MAX).map(full).collect(),
    }
}

fn unknown(problem: &Problem, side: Option<Side>, name: &str) -> ChangeError {
    let all: Vec<&str> = match side {
        Some(side) => names(problem, side).collect(),
        None => names(problem, Side::Writer)
            .chain(names(problem, Side::Reader))
            .collect(),
    };
    let mut near: Vec<(usize, &str)> = all
        .iter()
        .map(|known| (distance(known, name), *known))
        .filter(|(distance, _)| *distance <= name.chars().count().div_ceil(3))
        .collect();
    near.sort_unstable();
    near.dedup();
    let hint = if near.is_empty() {
        let shown: Vec<&str> = all.iter().take(NAMES_MAX).copied().collect();
        let more = all.len().saturating_sub(NAMES_MAX);
        match (shown.is_empty(), more) {
            (true, _) => "there is none at all".to_owned(),
            (false, 0) => format!("there are {}", shown.join(", ")),
            (false, more) => format!("there are {} and {more} more", shown.join(", ")),
        }
    } else {
        let near: Vec<&str> = near.iter().take(3).map(|(_, known)| *known).collect();
        format!("did you mean {}?", near.join(" or "))
    };
    ChangeError::Unknown {
        kind: side.map_or_else(|| "node".to_owned(), |side| side.to_string()),
        name: name.to_owned(),
        hint,
    }
}

/// Letters to insert, remove or replace to make `a` of `b`; of a `HOST:PORT`, the host alone may be meant.
fn distance(a: &str, b: &str) -> usize {
    let whole = letters_apart(a, b);
    match a.rsplit_once(':') {
        Some((host, _)) => whole.min(letters_apart(host, b)),
        None => whole,
    }
}

fn letters_apart(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let replaced = corner + usize::from(letter != *other);
            corner = row[j + 1];
            row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
