//! Maximum flow from nodes to the runs of atoms they can carry, by Dinic's algorithm without edges.
//!
//! A node's edges to its atoms have no limit of their own, so none is stored: a search visits each atom
//! once and skips what it has visited by joining it to its neighbour (union-find), whatever the
//! number of nodes that reach it. Only what flows is stored, a list for each atom, and it is the plan.
//! Source: Dinic 1970; skipping visited points of intervals as in Gabow and Tarjan 1985.

use crate::side::Side;
use crate::wide::Amount;

const NONE: u32 = u32::MAX;

/// Entries of an atom looked through for the member before a second one is opened for it.
///
/// Lists are short almost always; where thousands of nodes share an atom a full search would be quadratic.
const SEARCHED_MAX: usize = 8;

#[derive(Debug, Clone, Copy)]
struct Entry<A> {
    member: u32,
    next: u32,
    amount: A,
}

/// A flow on one side. Members and atoms are those of the [`Side`] it was made for.
pub(crate) struct SpanFlow<'s, A> {
    side: &'s Side,
    /// What each member could still carry.
    left: Vec<A>,
    /// What each atom still wants.
    open: Vec<A>,
    /// Each atom's list of entries.
    head: Vec<u32>,
    entries: Vec<Entry<A>>,
    /// List of entries to use again.
    free: u32,
    levels: Levels,
}

/// Scratch of one phase; kept so that a phase allocates nothing.
#[derive(Default)]
struct Levels {
    member_level: Vec<u32>,
    /// Visited atoms, level by level, ascending within each.
    order: Vec<u32>,
    /// Where each level begins in `order`, and the end.
    starts: Vec<u32>,
    /// Union-find over atoms: the next one not visited.
    unvisited: Vec<u32>,
    /// Union-find over `order`: the next one not exhausted.
    alive: Vec<u32>,
    /// For each member, (span, place in `order`) that it looks at.
    cursor: Vec<(u32, u32)>,
    /// For each atom, the entry it looks at.
    entry: Vec<u32>,
    queue: Vec<u32>,
}

/// A step of a path: the member, the place of its atom in `order`, and the entry that leads on.
struct Hop {
    member: u32,
    place: u32,
    entry: u32,
}

impl<'s, A: Amount> SpanFlow<'s, A> {
    /// * `capacity`: what each member may carry; `wanted`: what each atom wants.
    pub(crate) fn new(side: &'s Side, capacity: Vec<A>, wanted: Vec<A>) -> Self {
        Self {
            side,
            left: capacity,
            head: vec![NONE; wanted.len()],
            open: wanted,
            entries: Vec::with_capacity(side.members.len() + side.atoms.len()),
            free: NONE,
            levels: Levels::default(),
        }
    }

    /// What a member could still carry.
    pub(crate) fn left(&self, member: usize) -> A {
        self.left[member]
    }

    /// What an atom still wants.
    pub(crate) fn open(&self, atom: usize) -> A {
        self.open[atom]
    }

    /// Raises a member's capacity.
    pub(crate) fn raise(&mut self, member: usize, by: A) {
        self.left[member] = self.left[member].plus(by);
    }

    /// Sends more from a member to an atom; both have room for it, and the atom is in a run of the member.
    pub(crate) fn send(&mut self, member: usize, atom: usize, amount: A) {
        self.left[member] = self.left[member].minus(amount);
        self.open[atom] = self.open[atom].minus(amount);
        self.add(member as u32, atom, amount);
    }

    /// What flows into an atom, as (member, amount above 0); a member may occur twice.
    pub(crate) fn flows(&self, atom: usize) -> impl Iterator<Item = (usize, A)> + '_ {
        let mut at = self.head[atom];
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.next;
            Some((entry.member as usize, entry.amount))
        })
        .filter(|(_, amount)| *amount > A::default())
    }

    /// Sends as much as can be sent. Returns whether every atom gets all it wants.
    pub(crate) fn maximise(&mut self) -> bool {
        loop {
            if self.open.iter().all(|open| *open == A::default()) {
                return true;
            }
            if !self.find_levels() {
                return false;
            }
            for member in 0..self.left.len() {
                while self.levels.member_level[member] == 0 && self.push_path(member as u32) {}
            }
        }
    }

    /// After [`Self::maximise`] fell short: the atoms that no member with room left can help, directly or
    /// by taking over from others. They want more than their members can carry.
    pub(crate) fn short_atoms(&mut self) -> Vec<bool> {
        let mut short = vec![true; self.open.len()];
        for &atom in &self.levels.order {
            short[atom as usize] = false;
        }
        short
    }

    fn add(&mut self, member: u32, atom: usize, amount: A) {
        let mut at = self.head[atom];
        for _ in 0..SEARCHED_MAX {
            let Some(entry) = self.entries.get_mut(at as usize) else {
                break;
            };
            if entry.member == member {
                entry.amount = entry.amount.plus(amount);
                return;
            }
            at = entry.next;
        }
        let entry = Entry {
            member,
            next: self.head[atom],
            amount,
        };
        if self.free == NONE {
            self.head[atom] = self.entries.len() as u32;
            self.entries.push(entry);
        } else {
            self.head[atom] = self.free;
            let place = &mut self.entries[self.free as usize];
            self.free = place.next;
            *place = entry;
        }
    }

    /// Breadth-first levels from members with room to the nearest atoms that want more; false when there
    /// are none, and then `order` holds all atoms that can be reached.
    fn find_levels(&mut self) -> bool {
        let atoms = self.open.len();
        let levels = &mut self.levels;
        levels.member_level.clear();
        levels.member_level.resize(self.left.len(), NONE);
        levels.unvisited.clear();
        levels.unvisited.extend(0..=atoms as u32);
        levels.order.clear();
        levels.starts.clear();
        levels.queue.clear();
        for (member, left) in self.left.iter().enumerate() {
            if *left > A::default() {
                levels.member_level[member] = 0;
                levels.queue.push(member as u32);
            }
        }
        let (mut done, mut level, mut found) = (0, 0, false);
        while done < levels.queue.len() && !found {
            let (from, to) = (done, levels.queue.len());
            let start = levels.order.len();
            levels.starts.push(start as u32);
            for at in from..to {
                let member = levels.queue[at] as usize;
                for &(first, end) in self.side.spans_of(member) {
                    let mut atom = root(&mut levels.unvisited, first);
                    while atom < end {
                        levels.unvisited[atom as usize] = atom + 1;
                        levels.order.push(atom);
                        found |= self.open[atom as usize] > A::default();
                        atom = root(&mut levels.unvisited, atom + 1);
                    }
                }
            }
            done = to;
            level += 1;
            levels.order[start..].sort_unstable();
            if found {
                break;
            }
            for &atom in &levels.order[start..] {
                let mut link = self.head[atom as usize];
                let mut before = NONE;
                while link != NONE {
                    let entry = self.entries[link as usize];
                    if entry.amount > A::default() {
                        let seen = &mut levels.member_level[entry.member as usize];
                        if *seen == NONE {
                            *seen = level;
                            levels.queue.push(entry.member);
                        }
                        before = link;
                    } else {
                        // Empty entries are taken out here, where nothing points to them.
                        match self.entries.get_mut(before as usize) {
                            Some(before) => before.next = entry.next,
                            None => self.head[atom as usize] = entry.next,
                        }
                        self.entries[link as usize].next = self.free;
                        self.free = link;
                    }
                    link = entry.next;
                }
            }
        }
        levels.starts.push(levels.order.len() as u32);
        if found {
            levels.alive.clear();
            levels.alive.extend(0..=levels.order.len() as u32);
            levels.cursor.clear();
            levels.cursor.resize(self.left.len(), (0, NONE));
            levels.entry.clone_from(&self.head);
        }
        found
    }

    /// Sends along one path of rising levels from this member; false when it has room no more or no path.
    fn push_path(&mut self, start: u32) -> bool {
        if self.left[start as usize] == A::default() {
            return false;
        }
        let last_level = self.levels.starts.len() as u32 - 2;
        let mut path: Vec<Hop> = Vec::new();
        let mut member = start;
        loop {
            let Some(place) = self.next_place(member, path.len() as u32) else {
                // A dead end: go back past the entry that led here.
                let Some(hop) = path.last() else {
                    return false;
                };
                let atom = self.levels.order[hop.place as usize] as usize;
                self.levels.entry[atom] = self.entries[hop.entry as usize].next;
                match self.next_entry(hop.place, path.len() as u32) {
                    Some(entry) => {
                        let last = path.len() - 1;
                        path[last].entry = entry;
                        member = self.entries[entry as usize].member;
                    }
                    None => {
                        self.levels.alive[hop.place as usize] = hop.place + 1;
                        member = hop.member;
                        path.pop();
                    }
                }
                continue;
            };
            let level = path.len() as u32;
            let next = match level == last_level {
                true => NONE,
                false => match self.next_entry(place, level + 1) {
                    Some(entry) => entry,
                    None => {
                        self.levels.alive[place as usize] = place + 1;
                        continue;
                    }
                },
            };
            path.push(Hop {
                member,
                place,
                entry: next,
            });
            if next != NONE {
                member = self.entries[next as usize].member;
                continue;
            }
            let atom = self.levels.order[place as usize] as usize;
            if self.open[atom] == A::default() {
                self.levels.alive[place as usize] = place + 1;
                path.pop();
                continue;
            }
            self.augment(&path);
            return true;
        }
    }

    /// The member's next atom on its level that is not exhausted.
    fn next_place(&mut self, member: u32, level: u32) -> Option<u32> {
        let levels = &mut self.levels;
        let (from, to) = (
            levels.starts[level as usize],
            levels.starts[level as usize + 1],
        );
        let spans = self.side.spans_of(member as usize);
        let (mut span, mut place) = levels.cursor[member as usize];
        while let Some(&(first, end)) = spans.get(span as usize) {
            if place == NONE {
                let on_level = &levels.order[from as usize..to as usize];
                place = from + on_level.partition_point(|&atom| atom < first) as u32;
            }
            place = root(&mut levels.alive, place);
            if place < to && levels.order[place as usize] < end {
                levels.cursor[member as usize] = (span, place);
                return Some(place);
            }
            (span, place) = (span + 1, NONE);
        }
        levels.cursor[member as usize] = (span, NONE);
        None
    }

    /// The atom's next entry whose member is on this level.
    fn next_entry(&mut self, place: u32, level: u32) -> Option<u32> {
        let atom = self.levels.order[place as usize] as usize;
        let mut at = self.levels.entry[atom];
        while let Some(entry) = self.entries.get(at as usize) {
            let rises = self.levels.member_level[entry.member as usize] == level;
            if rises && entry.amount > A::default() {
                break;
            }
            at = entry.next;
        }
        self.levels.entry[atom] = at;
        (at != NONE).then_some(at)
    }

    fn augment(&mut self, path: &[Hop]) {
        let (Some(first), Some(last)) = (path.first(), path.last()) else {
            return;
        };
        let atom = self.levels.order[last.place as usize] as usize;
        let mut amount = self.left[first.member as usize].min(self.open[atom]);
        for hop in &path[..path.len() - 1] {
            amount = amount.min(self.entries[hop.entry as usize].amount);
        }
        self.left[first.member as usize] = self.left[first.member as usize].minus(amount);
        self.open[atom] = self.open[atom].minus(amount);
        for hop in path {
            if hop.entry != NONE {
                let entry = &mut self.entries[hop.entry as usize];
                entry.amount = entry.amount.minus(amount);
            }
            self.add(
                hop.member,
                self.levels.order[hop.place as usize] as usize,
                amount,
            );
        }
    }
}

/// The representative in a union-find that joins each entry with the next, halving paths.
fn root(next: &mut [u32], mut at: u32) -> u32 {
    while next[at as usize] != at {
        let after = next[next[at as usize] as usize];
        next[at as usize] = after;
        at = after;
    }
    at
}
