//! Requests of an origin and answers of a target, byte by byte. Each is one message of a message socket.
//!
//! All begin with the same 24 bytes, little endian:
//!
//! ```text
//!  0      1      2       4        8    16      24
//!  +------+------+-------+--------+----+-------+----------------------+-------------+
//!  | kind | code | parts | length | id | value | parts, 12 bytes each | length bytes |
//!  +------+------+-------+--------+----+-------+----------------------+-------------+
//! ```
//!
//! A part is an offset of the region (8 bytes) and a length (4 bytes). Fields that a kind does not use are 0.
//!
//! | kind | from | value | parts | bytes |
//! |---|---|---|---|---|
//! | HELLO 1 | origin | magic, [`VERSION`] | | name of the region |
//! | WELCOME 2 | target | size; code: [`Rule`] | | ranges held (as many as id says), then owned: start and end, 8 bytes each |
//! | GET 3 | origin | | wanted | |
//! | DATA 4 | target | | | those bytes, in the order of the parts |
//! | PUT 5 | origin | | written | those bytes |
//! | DONE 6 | target | | | |
//! | NOTIFY 7 | origin | value | | range: start and end |
//! | WAIT 8 | origin | least value | | range |
//! | SIGNAL 9 | target | value found | | |
//! | FORGET 10 | origin | | | |
//! | REFUSED 11 | target | code: [`Status`] | | text |
//!
//! WAIT is answered when a notification has the value; FORGET withdraws it and is not answered. All other requests are answered in the
//! order in which they arrive.

use ropewalk_model::Range;

use super::rule::Rule;

/// Version of these messages; both ends have the same.
pub const VERSION: u32 = 1;
/// The high half of the value of HELLO: "RWRG".
const MAGIC: u32 = 0x5257_5247;
/// Bytes before the parts.
pub const HEAD_LEN: usize = 24;
/// Bytes of a part.
pub const PART_LEN: usize = 12;
/// Parts of a request: what a vectored call of small ranges has together.
pub const PARTS_MAX: usize = 512;
/// Bytes of data in a request or an answer: still in the processor's cache when they are copied on, and long enough that heads do not count.
pub const PIECE_MAX: u64 = 256 << 10;
/// Longest message.
pub const MESSAGE_MAX: usize = HEAD_LEN + PARTS_MAX * PART_LEN + PIECE_MAX as usize;
/// Longest name of a region.
pub const NAME_MAX: usize = 255;
/// Ranges that one node holds, and of these owns: with both the answer to HELLO is half of the longest message.
pub const RANGES_MAX: usize = 4096;
/// Longest text of a refusal.
pub const TEXT_MAX: usize = 1024;

/// Why a target refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// No region of this name is served.
    Unknown = 1,
    /// The version of the messages is another one.
    Version = 2,
    /// The range is not held there, or not owned.
    Range = 3,
    /// The region, or the memory, is not to be written.
    ReadOnly = 4,
    /// A file or memory could not be read or written.
    Storage = 5,
    /// As many notifications or waits are kept as there is space for.
    Full = 6,
}

impl Status {
    fn from_u8(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Unknown,
            2 => Self::Version,
            3 => Self::Range,
            4 => Self::ReadOnly,
            5 => Self::Storage,
            6 => Self::Full,
            _ => return None,
        })
    }
}

/// Some bytes of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Part {
    /// As a range. Decoded parts end below 2^64.
    #[must_use]
    pub fn range(self) -> Range {
        Range::new(self.offset, self.offset.saturating_add(u64::from(self.len)))
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// An origin begins.
    Hello {
        /// Its [`VERSION`].
        version: u32,
        /// Region that it wants.
        name: &'a str,
    },
    /// What a target holds.
    Welcome {
        /// Bytes of the region.
        size: u64,
        /// Which nodes a put is sent to.
        rule: Rule,
        /// Ranges held.
        held: Vec<Range>,
        /// Ranges owned.
        owned: Vec<Range>,
    },
    /// Bytes are wanted.
    Get {
        /// Number of the request.
        id: u64,
        /// Which bytes.
        parts: Vec<Part>,
    },
    /// The bytes of a GET.
    Data {
        /// Number of the request.
        id: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Bytes to be written.
    Put {
        /// Number of the request.
        id: u64,
        /// Which bytes.
        parts: Vec<Part>,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A PUT or a NOTIFY is done.
    Done {
        /// Number of the request.
        id: u64,
    },
    /// A range is announced.
    Notify {
        /// Number of the request.
        id: u64,
        /// Which one.
        range: Range,
        /// With which value.
        value: u64,
    },
    /// An announcement is waited for.
    Wait {
        /// Number of the request.
        id: u64,
        /// Of this range, or a part of it.
        range: Range,
        /// Least value.
        at_least: u64,
    },
    /// The announcement that a WAIT waited for.
    Signal {
        /// Number of the request.
        id: u64,
        /// Its value.
        value: u64,
    },
    /// A WAIT is withdrawn.
    Forget {
        /// Number of the request.
        id: u64,
    },
    /// A request is refused.
    Refused {
        /// Number of the request; 0 for HELLO.
        id: u64,
        /// Why.
        status: Status,
        /// For people.
        text: &'a str,
    },
}

/// Why a message was refused. The socket that carried it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The head, or what it announces, is not all there, or more is.
    #[error("a message of a region has {have} bytes where {announced} are announced")]
    Length {
        /// Bytes there.
        have: usize,
        /// Bytes announced.
        announced: usize,
    },
    /// The first byte names no kind.
    #[error("message of a region of unknown kind {0}")]
    Kind(u8),
    /// A field has a value that it cannot have.
    #[error("message of a region of kind {kind} with a bad {field}")]
    Field {
        /// First byte.
        kind: u8,
        /// What is wrong.
        field: &'static str,
    },
}

fn head(kind: u8, code: u8, parts: usize, length: usize, id: u64, value: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_LEN + parts * PART_LEN + length);
    bytes.extend([kind, code]);
    bytes.extend((parts as u16).to_le_bytes());
    bytes.extend((length as u32).to_le_bytes());
    bytes.extend(id.to_le_bytes());
    bytes.extend(value.to_le_bytes());
    bytes
}

fn put_parts(bytes: &mut Vec<u8>, parts: &[Part]) {
    for part in parts {
        bytes.extend(part.offset.to_le_bytes());
        bytes.extend(part.len.to_le_bytes());
    }
}

fn put_range(bytes: &mut Vec<u8>, range: Range) {
    bytes.extend(range.start.to_le_bytes());
    bytes.extend(range.end.to_le_bytes());
}

/// A DATA without its bytes, which are appended: so many.
#[must_use]
pub fn data_without_bytes(id: u64, len: usize) -> Vec<u8> {
    head(4, 0, 0, len, id, 0)
}

/// Whether these are the first bytes of the DATA of this number that has so many bytes.
#[must_use]
pub fn is_data_of(start: &[u8; HEAD_LEN], id: u64, len: usize) -> bool {
    *start == data_without_bytes(id, len)[..]
}

/// A PUT without its bytes, which are appended: as many as its parts have together.
#[must_use]
pub fn put_without_bytes(id: u64, parts: &[Part]) -> Vec<u8> {
    let len: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
    let mut bytes = head(5, 0, parts.len(), len as usize, id, 0);
    put_parts(&mut bytes, parts);
    bytes
}

/// Cuts a text to [`TEXT_MAX`] bytes.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Frame<'_> {
    /// As a message. Names, lists and data must be no longer than their bounds.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { version, name } => {
                let value = u64::from(MAGIC) << 32 | u64::from(*version);
                let mut bytes = head(1, 0, 0, name.len(), 0, value);
                bytes.extend(name.as_bytes());
                bytes
            }
            Self::Welcome {
                size,
                rule,
                held,
                owned,
            } => {
                let count = held.len() + owned.len();
                let mut bytes = head(2, *rule as u8, 0, count * 16, held.len() as u64, *size);
                for range in held.iter().chain(owned) {
                    put_range(&mut bytes, *range);
                }
                bytes
            }
            Self::Get { id, parts } => {
                let mut bytes = head(3, 0, parts.len(), 0, *id, 0);
                put_parts(&mut bytes, parts);
                bytes
            }
            Self::Data { id, bytes: data } => {
                let mut bytes = data_without_bytes(*id, data.len());
                bytes.extend(*data);
                bytes
            }
            Self::Put {
                id,
                parts,
                bytes: data,
            } => {
                let mut bytes = put_without_bytes(*id, parts);
                bytes.extend(*data);
                bytes
            }
            Self::Done { id } => head(6, 0, 0, 0, *id, 0),
            Self::Notify { id, range, value } => {
                let mut bytes = head(7, 0, 0, 16, *id, *value);
                put_range(&mut bytes, *range);
                bytes
            }
            Self::Wait {
                id,
                range,
                at_least,
            } => {
                let mut bytes = head(8, 0, 0, 16, *id, *at_least);
                put_range(&mut bytes, *range);
                bytes
            }
            Self::Signal { id, value } => head(9, 0, 0, 0, *id, *value),
            Self::Forget { id } => head(10, 0, 0, 0, *id, 0),
            Self::Refused { id, status, text } => {
                let text = cut(text);
                let mut bytes = head(11, *status as u8, 0, text.len(), *id, 0);
                bytes.extend(text.as_bytes());
                bytes
            }
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    for (to, from) in eight.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    u64::from_le_bytes(eight)
}

/// Ranges of 16 bytes each, not empty.
fn ranges(bytes: &[u8]) -> Option<Vec<Range>> {
    let all = bytes.chunks_exact(16).map(|bytes| {
        let (start, end) = (number(bytes, 0), number(bytes, 8));
        (start < end).then(|| Range::new(start, end))
    });
    all.collect()
}

/// Parts that are not empty, end below 2^64 and have no more bytes than a piece; gives their sum, too.
fn parts_of(bytes: &[u8]) -> Option<(Vec<Part>, u64)> {
    let mut sum = 0_u64;
    let mut parts = Vec::with_capacity(bytes.len() / PART_LEN);
    for bytes in bytes.chunks_exact(PART_LEN) {
        let part = Part {
            offset: number(bytes, 0),
            len: number(bytes, 8) as u32,
        };
        part.offset.checked_add(u64::from(part.len))?;
        sum += u64::from(part.len);
        if part.len == 0 || sum > PIECE_MAX {
            return None;
        }
        parts.push(part);
    }
    (!parts.is_empty()).then_some((parts, sum))
}

impl<'a> Frame<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// [`FrameError`] for whatever [`Frame::encode`] does not make of what is within the bounds.
    pub fn decode(message: &'a [u8]) -> Result<Self, FrameError> {
        let have = message.len();
        let announced = HEAD_LEN;
        let Some((head, rest)) = message.split_at_checked(HEAD_LEN) else {
            return Err(FrameError::Length { have, announced });
        };
        let (kind, code) = (head[0], head[1]);
        let count = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let (id, value) = (number(head, 8), number(head, 16));
        let announced = HEAD_LEN + count * PART_LEN + length;
        let parts = rest.split_at_checked(count * PART_LEN);
        let Some((parts, data)) = parts.filter(|(_, data)| data.len() == length) else {
            return Err(FrameError::Length { have, announced });
        };
        if have > MESSAGE_MAX {
            return Err(FrameError::Length {
                have,
                announced: MESSAGE_MAX,
            });
        }
        let bad = |field| FrameError::Field { kind, field };
        let text = || std::str::from_utf8(data).map_err(|_| bad("text"));
        // What a kind does not use.
        let unused = match kind {
            1 => code == 0 && count == 0 && id == 0 && length <= NAME_MAX,
            2 => count == 0 && length.is_multiple_of(16) && length / 16 <= 2 * RANGES_MAX,
            3 => code == 0 && count <= PARTS_MAX && length == 0 && value == 0,
            4 => code == 0 && count == 0 && length as u64 <= PIECE_MAX && value == 0,
            5 => code == 0 && count <= PARTS_MAX && value == 0,
            6 | 10 => code == 0 && count == 0 && length == 0 && value == 0,
            7 | 8 => code == 0 && count == 0 && length == 16,
            9 => code == 0 && count == 0 && length == 0,
            11 => count == 0 && length <= TEXT_MAX && value == 0,
            _ => return Err(FrameError::Kind(kind)),
        };
        if !unused {
            return Err(bad("length or unused field"));
        }
        let one_range = || {
            let all = ranges(data).and_then(|all| all.first().copied());
            all.ok_or(bad("range"))
        };
        Ok(match kind {
            1 => {
                if value >> 32 != u64::from(MAGIC) {
                    return Err(bad("magic number"));
                }
                Self::Hello {
                    version: value as u32,
                    name: text()?,
                }
            }
            2 => {
                let mut held = ranges(data).ok_or(bad("range"))?;
                let many = usize::try_from(id).ok();
                let many = many.filter(|many| *many <= held.len().min(RANGES_MAX));
                let owned = held.split_off(many.ok_or(bad("count of ranges"))?);
                if held.iter().chain(&owned).any(|range| range.end > value) {
                    return Err(bad("range"));
                }
                let rule = Rule::from_u8(code).ok_or(bad("rule"))?;
                Self::Welcome {
                    size: value,
                    rule,
                    held,
                    owned,
                }
            }
            3 => Self::Get {
                id,
                parts: parts_of(parts).ok_or(bad("part"))?.0,
            },
            4 => Self::Data { id, bytes: data },
            5 => {
                let (parts, sum) = parts_of(parts).ok_or(bad("part"))?;
                if sum != length as u64 {
                    return Err(bad("length of parts"));
                }
                Self::Put {
                    id,
                    parts,
                    bytes: data,
                }
            }
            6 => Self::Done { id },
            7 => Self::Notify {
                id,
                range: one_range()?,
                value,
            },
            8 => Self::Wait {
                id,
                range: one_range()?,
                at_least: value,
            },
            9 => Self::Signal { id, value },
            10 => Self::Forget { id },
            _ => Self::Refused {
                id,
                status: Status::from_u8(code).ok_or(bad("code"))?,
                text: text()?,
            },
        })
    }
}
