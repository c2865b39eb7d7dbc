//! The description of a trunk: plain data, also under `trunks` of the JSON topology file.

use serde::{Deserialize, Serialize};

use super::loss::Loss;
use crate::{LabError, parse_rate};

/// The reference simulator's default queue, and the paper's likely one.
const QUEUE_PACKETS: u32 = 50;

/// How much may wait for, and be in, transmission at once; what arrives beyond it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueLimit {
    /// Packets, the one in transmission among them.
    Packets(u32),
    /// Bytes with the link's overhead, those of the packet in transmission among them until it has left.
    Bytes(u64),
}

impl Default for QueueLimit {
    fn default() -> Self {
        QueueLimit::Packets(QUEUE_PACKETS)
    }
}

/// One direction of a trunk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkSpec {
    /// Decimal bits per second of packets with their overhead; `None` = at once.
    pub bits_per_second: Option<u64>,
    /// Bytes that each packet takes on the link beyond itself, such as 38 for Ethernet.
    pub overhead_bytes: u32,
    /// From the end of a packet's transmission to its arrival.
    pub delay_microseconds: u64,
    /// Space for packets that wait; has no effect without a rate.
    pub queue: QueueLimit,
    /// Packets lost on the way at random.
    pub loss: Loss,
    /// Whether everything that arrives vanishes, without notice to anybody. What the link holds still arrives.
    pub blackhole: bool,
}

impl LinkSpec {
    /// A link without a limit, delay or loss.
    #[must_use]
    pub fn unlimited() -> Self {
        LinkSpec::default()
    }

    /// A link of this rate.
    #[must_use]
    pub fn rate_bits(bits_per_second: u64) -> Self {
        LinkSpec {
            bits_per_second: Some(bits_per_second),
            ..LinkSpec::default()
        }
    }

    /// Sets the one-way delay.
    #[must_use]
    pub fn delay(mut self, delay: std::time::Duration) -> Self {
        self.delay_microseconds = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self
    }

    /// Sets the drop-tail queue.
    #[must_use]
    pub fn queue(mut self, queue: QueueLimit) -> Self {
        self.queue = queue;
        self
    }

    /// Sets the random loss.
    #[must_use]
    pub fn loss(mut self, loss: Loss) -> Self {
        self.loss = loss;
        self
    }

    pub(crate) fn delay_ns(&self) -> u64 {
        self.delay_microseconds.saturating_mul(1_000)
    }

    /// What the relay cannot do, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.bits_per_second.is_some_and(|rate| rate < 8_000) {
            return Some("the rate is in bits per second, at least 8000".into());
        }
        // An hour: far beyond any path, and safe to add to the clock.
        if self.delay_microseconds > 3_600_000_000 {
            return Some(format!(
                "a delay of {} microseconds; at most an hour",
                self.delay_microseconds
            ));
        }
        if self.overhead_bytes > 1_000 {
            return Some(format!(
                "an overhead of {} bytes; at most 1000",
                self.overhead_bytes
            ));
        }
        if matches!(self.queue, QueueLimit::Packets(0) | QueueLimit::Bytes(0)) {
            return Some("a queue of nothing passes nothing; at least 1 packet".into());
        }
        self.loss.problem()
    }

    /// Applies one `key=value` pair of a live change; see [`Trunk`](super::Trunk) for the keys.
    ///
    /// # Errors
    /// [`LabError::BadDescription`] shows the pair and the forms that would do.
    pub fn apply(&mut self, word: &str) -> Result<(), LabError> {
        let wrong = |forms: &str| LabError::description(format!("{word:?}: write {forms}"));
        let (key, value) = word.split_once('=').ok_or_else(|| {
            wrong("key=value; keys are rate, overhead, delay, queue, loss, blackhole")
        })?;
        match key {
            "rate" if value == "unlimited" => self.bits_per_second = None,
            "rate" => {
                let rate = parse_rate(value);
                self.bits_per_second =
                    Some(rate.map_err(|_| wrong("rate=50Mbit or rate=unlimited"))?);
            }
            "overhead" => {
                self.overhead_bytes = value.parse().map_err(|_| wrong("overhead=38, in bytes"))?
            }
            "delay" => {
                self.delay_microseconds =
                    parse_microseconds(value).ok_or_else(|| wrong("delay=20ms, 500us or 1.5s"))?;
            }
            "queue" => {
                self.queue = parse_queue(value)
                    .ok_or_else(|| wrong("queue=50packets or queue=62500bytes"))?
            }
            "loss" => {
                self.loss = parse_loss(value)
                    .ok_or_else(|| wrong("loss=1% or, in bursts of 8 packets, loss=1%/8"))?
            }
            "blackhole" => {
                self.blackhole = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(wrong("blackhole=on or blackhole=off")),
                };
            }
            _ => {
                return Err(wrong(
                    "one of rate=, overhead=, delay=, queue=, loss=, blackhole=",
                ));
            }
        }
        match self.problem() {
            Some(problem) => Err(LabError::description(format!("{word:?}: {problem}"))),
            None => Ok(()),
        }
    }
}

fn parse_microseconds(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let scale = match &text[split..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    let microseconds = text[..split].parse::<f64>().ok()? * scale;
    // The cast saturates; `problem` refuses what is too long.
    Some(microseconds.round() as u64)
}

fn parse_queue(text: &str) -> Option<QueueLimit> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    match unit {
        "packets" => Some(QueueLimit::Packets(number.parse().ok()?)),
        "bytes" => Some(QueueLimit::Bytes(number.parse().ok()?)),
        _ => None,
    }
}

fn parse_loss(text: &str) -> Option<Loss> {
    let (share, burst) = match text.split_once('/') {
        Some((share, burst)) => (share, Some(burst.parse().ok()?)),
        None => (text, None),
    };
    let fraction = share.strip_suffix('%')?.parse::<f64>().ok()? / 100.0;
    Some(Loss {
        fraction,
        burst_packets: burst,
    })
}

/// Which work the kernel leaves undone on packets that enter the trunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offload {
    /// None: every packet on the trunk is one as on a wire.
    #[default]
    None,
    /// Checksums are left out, since nothing can damage them on the way.
    Checksum,
    /// Whole TCP segments of up to 64 KiB pass as one packet: cheap, but queue, loss and spacing are those of lumps.
    Segments,
}

/// One end of a trunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrunkEnd {
    /// The rail whose hosts it serves.
    pub rail: u8,
    /// A host on that rail that has the trunk as an interface of its own; `None` = a router of its own.
    #[serde(default)]
    pub gateway: Option<String>,
}

/// A wide-area link between two rails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrunkSpec {
    /// Side A and side B.
    pub ends: [TrunkEnd; 2],
    /// From side A to side B.
    pub a_to_b: LinkSpec,
    /// From side B to side A.
    pub b_to_a: LinkSpec,
    /// Largest IP packet.
    pub mtu: u32,
    /// Decides which packets are lost.
    pub seed: u64,
    /// The relay looks at packets only every so often; 0 = for each packet. Costs delay, saves processor time.
    pub tick_microseconds: u64,
    /// The relay waits for a packet that is due this soon without giving up its processor.
    pub spin_microseconds: u64,
    /// Whether the relay's threads take precedence over ordinary ones (SCHED_FIFO), where that is permitted.
    pub real_time: bool,
    /// What the kernel may leave undone.
    pub offload: Offload,
    /// Memory for the packets that one direction holds; used only as far as needed.
    pub buffer_bytes: u64,
    /// Name of a control socket (in the abstract name space of the machine's network); `None` = no socket.
    pub control: Option<String>,
}

impl Default for TrunkSpec {
    fn default() -> Self {
        let end = |rail| TrunkEnd {
            rail,
            gateway: None,
        };
        TrunkSpec {
            ends: [end(0), end(1)],
            a_to_b: LinkSpec::default(),
            b_to_a: LinkSpec::default(),
            mtu: 1500,
            seed: 1,
            tick_microseconds: 0,
            spin_microseconds: 0,
            real_time: true,
            offload: Offload::None,
            buffer_bytes: 256 << 20,
            control: None,
        }
    }
}

impl TrunkSpec {
    /// A trunk between rails 0 and 1 that is the same in both directions.
    #[must_use]
    pub fn symmetric(link: LinkSpec) -> Self {
        TrunkSpec {
            a_to_b: link.clone(),
            b_to_a: link,
            ..TrunkSpec::default()
        }
    }

    /// Sets the largest IP packet.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets which packets are lost.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Opens a control socket of this name.
    #[must_use]
    pub fn control(mut self, name: impl Into<String>) -> Self {
        self.control = Some(name.into());
        self
    }

    /// What is wrong with it, if anything.
    pub(crate) fn problem(&self) -> Option<String> {
        for (name, link) in [("a_to_b", &self.a_to_b), ("b_to_a", &self.b_to_a)] {
            if let Some(problem) = link.problem() {
                return Some(format!("{name}: {problem}"));
            }
        }
        // IPv6 needs 1280; a TUN device takes 65535.
        if !(1280..=65_535).contains(&self.mtu) {
            return Some(format!("an MTU of {}; 1280 to 65535", self.mtu));
        }
        if self.tick_microseconds > 100_000 || self.spin_microseconds > 1_000 {
            return Some("a tick of more than 100 ms, or spinning for more than 1 ms".into());
        }
        if self.buffer_bytes < 1 << 20 || self.buffer_bytes > 1 << 36 {
            return Some(format!(
                "a buffer of {} bytes; 1 MiB to 64 GiB",
                self.buffer_bytes
            ));
        }
        if self.ends[0].rail == self.ends[1].rail {
            return Some(format!("both ends are on rail {}", self.ends[0].rail));
        }
        // 107 bytes is what a socket address holds.
        if let Some(name) = &self.control
            && (name.is_empty() || name.len() > 100)
        {
            return Some(format!("control socket {name:?}: 1 to 100 bytes"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of a live change does what it says, and nothing else changes.
    #[test]
    fn words() {
        let mut link = LinkSpec::rate_bits(100_000_000);
        for word in "rate=1.5Mbit overhead=38 delay=2.5ms queue=62500bytes loss=0.5%/8 blackhole=on"
            .split(' ')
        {
            link.apply(word).unwrap();
        }
        let expected = LinkSpec {
            bits_per_second: Some(1_500_000),
            overhead_bytes: 38,
            delay_microseconds: 2_500,
            queue: QueueLimit::Bytes(62_500),
            loss: Loss::bursts(0.005, 8.0),
            blackhole: true,
        };
        assert_eq!(link, expected);
        for word in [
            "rate=unlimited",
            "queue=7packets",
            "loss=1%",
            "blackhole=off",
            "delay=1s",
        ] {
            link.apply(word).unwrap();
        }
        assert_eq!(
            (link.bits_per_second, link.queue),
            (None, QueueLimit::Packets(7))
        );
        assert_eq!(
            (link.loss, link.blackhole),
            (Loss::independent(0.01), false)
        );
        assert_eq!(link.delay_microseconds, 1_000_000);
    }

    /// A word that is not understood is shown with forms that would be, and the link stays as it was.
    #[test]
    fn wrong_words() {
        for (word, hint) in [
            ("rate=fast", "rate=50Mbit"),
            ("rate=1bit", "rate=50Mbit"),
            ("delay=20", "delay=20ms"),
            ("delay=2000000s", "an hour"),
            ("queue=50", "queue=50packets"),
            ("queue=0packets", "at least 1 packet"),
            ("loss=0.01", "loss=1%"),
            ("loss=101%", "between 0 and 1"),
            ("blackhole=maybe", "blackhole=on"),
            ("speed=1Mbit", "rate="),
            ("halve", "key=value"),
        ] {
            let mut link = LinkSpec::rate_bits(1_000_000);
            let error = link.apply(word).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains(hint), "{error}");
        }
    }

    /// A trunk in a topology file needs only what differs from the defaults; a misspelt key is refused.
    #[test]
    fn topology_file() {
        let text = r#"{"a_to_b": {"bits_per_second": 100000000, "delay_microseconds": 10000, "queue": {"packets": 666}}, "mtu": 9000}"#;
        let spec: TrunkSpec = serde_json::from_str(text).unwrap();
        assert_eq!(spec.a_to_b.queue, QueueLimit::Packets(666));
        assert_eq!((spec.mtu, spec.ends[1].rail), (9000, 1));
        assert_eq!(spec.problem(), None);
        assert!(serde_json::from_str::<TrunkSpec>(&text.replace("mtu", "mut")).is_err());
        let small = spec.mtu(576);
        assert!(small.problem().unwrap().contains("576"));
    }
}
