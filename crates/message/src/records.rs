//! Sealed records of a link: its bytes cut into pieces, encrypted and proved (AES-128-GCM).
//!
//! ```text
//!  0        4              4+n     4+n+16
//!  +--------+---------------+-------+
//!  | n      | n bytes,      | tag   |   n little endian, at most 16 KiB
//!  |        | encrypted     |       |
//!  +--------+---------------+-------+
//! ```
//!
//! Frames know nothing of records; a small frame is one. Nothing of a frame is looked at before its record is proved.
//! The number of a record is its nonce and is not sent, so that none can be left out, repeated or moved.

use ropewalk_lane::seal::Records;

use crate::link::LinkError;

/// Bytes of a record at most: it must be there as a whole before it is opened, which takes 1.3 ms at 100 Mbit/s.
pub(crate) const RECORD_LEN: usize = 16 << 10;
const LENGTH_LEN: usize = 4;
const TAG_LEN: usize = 16;
/// Bytes read from the kernel at once.
const RAW_LEN: usize = 256 << 10;

/// Adds a record of these bytes, at most [`RECORD_LEN`], to what is to be sent.
pub(crate) fn seal(out: &mut Vec<u8>, records: &mut Records, parts: &[&[u8]]) {
    let start = out.len();
    let length: usize = parts.iter().map(|part| part.len()).sum();
    assert!(length <= RECORD_LEN, "a record of {length} bytes");
    out.extend_from_slice(&(length as u32).to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    let (head, body) = out[start..].split_at_mut(LENGTH_LEN);
    let tag = records.seal(head, body);
    out.extend_from_slice(&tag);
}

/// Records that come in.
pub(crate) struct Incoming {
    records: Records,
    raw: Box<[u8]>,
    start: usize,
    end: usize,
    /// The kernel had less than there was room for, the last time it was asked.
    short: bool,
}

impl Incoming {
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self {
            records: Records::new(secret),
            raw: vec![0; RAW_LEN].into(),
            start: 0,
            end: 0,
            short: true,
        }
    }

    /// Length of the record in front, when all of it is there.
    fn next_len(&self) -> Result<Option<usize>, LinkError> {
        let held = &self.raw[self.start..self.end];
        let Some(length) = held.first_chunk::<LENGTH_LEN>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > RECORD_LEN {
            return Err(LinkError::Forged);
        }
        Ok((held.len() >= LENGTH_LEN + length + TAG_LEN).then_some(length))
    }

    /// Whether more has to come before another record can be opened.
    pub(crate) fn is_drained(&self) -> bool {
        self.short && matches!(self.next_len(), Ok(None))
    }

    /// Opens the next record into `room`, of [`RECORD_LEN`] bytes at least, and gives its length; `None` when it is not
    /// there yet. `receive` asks the kernel once.
    pub(crate) fn open_next(
        &mut self,
        room: &mut [u8],
        receive: impl FnOnce(&mut [u8]) -> Result<Option<usize>, LinkError>,
    ) -> Result<Option<usize>, LinkError> {
        let mut length = self.next_len()?;
        if length.is_none() {
            self.raw.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let free = &mut self.raw[self.end..];
            let free_len = free.len();
            let got = receive(free)?.unwrap_or(0);
            self.short = got < free_len;
            self.end += got;
            length = self.next_len()?;
        }
        let Some(length) = length else {
            return Ok(None);
        };
        let record = &self.raw[self.start..][..LENGTH_LEN + length + TAG_LEN];
        let (head, rest) = record.split_at(LENGTH_LEN);
        let (body, tag) = rest.split_at(length);
        let room = room.get_mut(..length).ok_or(LinkError::Forged)?;
        self.records
            .open_into(head, body, tag, room)
            .map_err(|_| LinkError::Forged)?;
        self.start += record.len();
        Ok(Some(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut out, mut records) = (Vec::new(), Records::new(&[7; 32]));
        for piece in pieces {
            seal(&mut out, &mut records, &[piece]);
        }
        out
    }

    /// Opens what comes in pieces of this many bytes.
    fn opened(bytes: &[u8], step: usize) -> Result<Vec<u8>, LinkError> {
        let mut incoming = Incoming::new(&[7; 32]);
        let (mut room, mut out, mut at) = (vec![0; RECORD_LEN], Vec::new(), 0);
        while at < bytes.len() || !incoming.is_drained() {
            let got = incoming.open_next(&mut room, |free| {
                let count = step.min(bytes.len() - at);
                free[..count].copy_from_slice(&bytes[at..at + count]);
                at += count;
                Ok(Some(count))
            })?;
            out.extend_from_slice(&room[..got.unwrap_or(0)]);
        }
        Ok(out)
    }

    /// What was sealed opens, however it comes.
    #[test]
    fn records_round_trip() {
        let long = vec![3; RECORD_LEN];
        let bytes = sealed(&[b"one", &long, b"", b"four"]);
        for step in [1, 7, 5000, RAW_LEN] {
            let expected = [&b"one"[..], &long, b"four"].concat();
            assert!(opened(&bytes, step).unwrap() == expected, "{step}");
        }
    }

    /// Every changed bit shows, and so do records that are left out, repeated or exchanged.
    #[test]
    fn forgeries_show() {
        let bytes = sealed(&[b"one", b"two"]);
        let half = bytes.len() / 2;
        for bit in 0..half * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // A longer record is waited for; more of it than one can have is refused.
            let opened = opened(&changed, RAW_LEN);
            assert!(opened.as_ref().map_or(true, Vec::is_empty), "bit {bit}");
        }
        let (one, two) = bytes.split_at(half);
        assert!(opened(two, RAW_LEN).is_err());
        assert!(opened(&[two, one].concat(), RAW_LEN).is_err());
        assert!(opened(&[one, one].concat(), RAW_LEN).is_err());
    }
}
