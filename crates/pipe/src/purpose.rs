//! What a stream between a master and an agent is for: the header it is opened with.

/// Purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Control messages. Only the master opens it.
    Control,
    /// A connection to the node of this number, as if made to the port where its agent listens. Agents open it; the master
    /// bridges it to the node.
    ToNode(u32),
    /// The same at the node that is connected to; the number is that of the node that connects.
    FromNode(u32),
}

impl Purpose {
    /// As the header of a stream.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let (kind, node) = match self {
            Self::Control => return vec![0],
            Self::ToNode(node) => (1, node),
            Self::FromNode(node) => (2, node),
        };
        let mut header = vec![kind];
        header.extend(node.to_le_bytes());
        header
    }

    /// From the header of a stream; `None` when it is none that this version knows.
    #[must_use]
    pub fn decode(header: &[u8]) -> Option<Self> {
        match header.split_first()? {
            (0, []) => Some(Self::Control),
            (1, node) => Some(Self::ToNode(u32::from_le_bytes(node.try_into().ok()?))),
            (2, node) => Some(Self::FromNode(u32::from_le_bytes(node.try_into().ok()?))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers are read as they were written; others are none.
    #[test]
    fn purposes_are_read_as_written() {
        for purpose in [
            Purpose::Control,
            Purpose::ToNode(7),
            Purpose::FromNode(1 << 20),
        ] {
            assert_eq!(Purpose::decode(&purpose.encode()), Some(purpose));
        }
        for header in [&b""[..], &[0, 0], &[1, 2, 3], &[3, 0, 0, 0, 0]] {
            assert_eq!(Purpose::decode(header), None);
        }
    }
}
