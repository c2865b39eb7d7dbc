//! Memory for the packets that one direction holds.

/// Room for one packet, and how much of it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    index: u32,
    len: u32,
}

impl Slot {
    /// The same slot with a packet of `len` bytes in it.
    pub(crate) fn filled_to(self, len: usize) -> Slot {
        Slot {
            len: len as u32,
            ..self
        }
    }
}

/// Equal slots in one piece of memory. What was freed last is used first: it is still in the cache, and memory is
/// touched only as far as packets are held at once.
#[derive(Debug)]
pub(crate) struct Slots {
    memory: Vec<u8>,
    slot_bytes: usize,
    free: Vec<u32>,
    /// Slots from here on were never used.
    fresh: u32,
    count: u32,
}

impl Slots {
    /// Slots of at least `packet_bytes`, as many as `bytes` hold, one at least.
    pub(crate) fn new(packet_bytes: usize, bytes: u64) -> Self {
        // Whole cache lines.
        let slot_bytes = packet_bytes.next_multiple_of(64);
        let count = (bytes / slot_bytes as u64).clamp(1, u64::from(u32::MAX)) as u32;
        Slots {
            // Zeroed memory of this size is mapped, and a page becomes real when it is first written.
            memory: vec![0; slot_bytes * count as usize],
            slot_bytes,
            free: Vec::with_capacity(count as usize),
            fresh: 0,
            count,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// An empty slot; `None` when all are in use.
    pub(crate) fn take(&mut self) -> Option<Slot> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.fresh < self.count => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return None,
        };
        Some(Slot { index, len: 0 })
    }

    pub(crate) fn give_back(&mut self, slot: Slot) {
        self.free.push(slot.index);
    }

    pub(crate) fn filled(&self, slot: Slot) -> &[u8] {
        let start = slot.index as usize * self.slot_bytes;
        &self.memory[start..start + slot.len as usize]
    }

    pub(crate) fn room(&mut self, slot: Slot) -> &mut [u8] {
        let start = slot.index as usize * self.slot_bytes;
        &mut self.memory[start..start + self.slot_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots do not overlap, run out, and come back last-freed first.
    #[test]
    fn slots() {
        let mut slots = Slots::new(100, 3 * 128);
        let mut taken: Vec<Slot> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken.len(), 3);
        for (number, slot) in taken.iter_mut().enumerate() {
            slots.room(*slot)[..100].fill(number as u8);
            *slot = slot.filled_to(100);
        }
        for (number, slot) in taken.iter().enumerate() {
            assert_eq!(slots.filled(*slot), [number as u8; 100]);
        }
        slots.give_back(taken[2]);
        slots.give_back(taken[0]);
        assert_eq!(slots.take().unwrap().index, taken[0].index);
        assert_eq!(slots.take().unwrap().index, taken[2].index);
        assert_eq!(slots.take(), None);
    }
}
