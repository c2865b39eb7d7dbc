//! What can be given for a parameter: a value, a list, or a range.

use std::fmt;

use ropewalk_model::{ByteRate, Bytes};
use ropewalk_tcp_sim::{FlavourName, Profile, RtoRule, Stripes};

/// Values of one range.
const RANGE_MAX: u64 = 10_000;

/// Greatest count; connections and packets are numbered with 32 bits.
const COUNT_MAX: u64 = 10_000_000;

/// One or several values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Values<T>(pub Vec<T>);

/// A number of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count(pub u64);

/// Bits per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate(pub f64);

/// Seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Time(pub f64);

/// A probability below 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share(pub f64);

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Switch(pub bool);

/// Of acknowledgements; none is off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Delay(pub Option<f64>);

/// Congestion controls of a node's stripes; a single one without a count is for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mix(Vec<(FlavourName, Option<u32>)>);

fn list<T>(text: &str, each: impl Fn(&str) -> Result<T, String>) -> Result<Values<T>, String> {
    let values: Result<Vec<T>, String> = text.split(',').map(|word| each(word.trim())).collect();
    values.map(Values)
}

pub(super) fn counts(text: &str) -> Result<Values<Count>, String> {
    let parts = list(text, range)?;
    Ok(Values(parts.0.into_iter().flatten().collect()))
}

fn range(text: &str) -> Result<Vec<Count>, String> {
    let bad = || {
        format!("\"{text}\": write a number, a list 1,2,4 or a range 1..64 (1..64/4 steps by 4)")
    };
    let number = |word: &str| word.parse::<u64>().ok().filter(|n| *n <= COUNT_MAX);
    let Some((first, rest)) = text.split_once("..") else {
        return number(text).map(|n| vec![Count(n)]).ok_or_else(bad);
    };
    let (last, step) = rest.split_once('/').unwrap_or((rest, "1"));
    let (Some(first), Some(last), Some(step)) = (number(first), number(last), number(step)) else {
        return Err(bad());
    };
    if first > last || step == 0 || (last - first) / step >= RANGE_MAX {
        return Err(format!(
            "\"{text}\": a range goes up, by a step above 0, with at most {RANGE_MAX} values"
        ));
    }
    Ok((first..=last).step_by(step as usize).map(Count).collect())
}

pub(super) fn rates(text: &str) -> Result<Values<Rate>, String> {
    list(text, |word| {
        let rate: ByteRate = word.parse().map_err(|error| format!("{error}"))?;
        Ok(Rate(rate.bits_per_second() as f64))
    })
}

pub(super) fn sizes(text: &str) -> Result<Values<Bytes>, String> {
    list(text, |word| {
        word.parse().map_err(|error| format!("{error}"))
    })
}

/// Sizes of packets and headers, which are counted with 32 bits.
pub(super) fn packet_sizes(text: &str) -> Result<Values<Bytes>, String> {
    let all = sizes(text)?;
    match all.0.iter().all(|size| u32::try_from(size.0).is_ok()) {
        true => Ok(all),
        false => Err(format!("\"{text}\": at most {} bytes", u32::MAX)),
    }
}

pub(super) fn time(text: &str) -> Result<Time, String> {
    let seconds = ropewalk_tcp_sim::parse_seconds(text);
    seconds.map(Time).map_err(|error| error.to_string())
}

pub(super) fn times(text: &str) -> Result<Values<Time>, String> {
    list(text, time)
}

pub(super) fn shares(text: &str) -> Result<Values<Share>, String> {
    list(text, |word| match word.parse::<f64>() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(Share(share)),
        _ => Err(format!(
            "\"{word}\": write a probability below 1, for instance 0.001"
        )),
    })
}

pub(super) fn switch(text: &str) -> Result<Switch, String> {
    match text {
        "on" => Ok(Switch(true)),
        "off" => Ok(Switch(false)),
        _ => Err("write on or off".into()),
    }
}

/// On for whole packets.
pub(super) fn halving(text: &str) -> Result<Switch, String> {
    match text {
        "whole" => Ok(Switch(true)),
        "exact" => Ok(Switch(false)),
        _ => Err("write exact or whole".into()),
    }
}

pub(super) fn delayed(text: &str) -> Result<Delay, String> {
    match text {
        "off" => Ok(Delay(None)),
        _ => time(text).map(|time| Delay(Some(time.0))),
    }
}

pub(super) fn rto_rule(text: &str) -> Result<RtoRule, String> {
    let all = [RtoRule::Older, RtoRule::Rfc2988];
    let found = all.into_iter().find(|rule| rule.name() == text);
    found.ok_or_else(|| "write older or rfc2988".into())
}

pub(super) fn profile(text: &str) -> Result<String, String> {
    match Profile::named(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("write one of {}", Profile::NAMES.join(", "))),
    }
}

pub(super) fn mix(text: &str) -> Result<Mix, String> {
    let names: Vec<&str> = FlavourName::ALL
        .iter()
        .map(|flavour| flavour.name())
        .collect();
    let parts = list(text, |word| {
        let (name, count) = match word.split_once(':') {
            Some((name, count)) => (name, Some(count)),
            None => (word, None),
        };
        let flavour = FlavourName::named(name)
            .ok_or_else(|| format!("\"{name}\" is none of {}", names.join(", ")))?;
        let count = count.map(|count| match count.parse::<u32>() {
            Ok(count) if count > 0 && u64::from(count) <= COUNT_MAX => Ok(count),
            _ => Err(format!(
                "\"{word}\": write a number of stripes, as in reno:4"
            )),
        });
        Ok((flavour, count.transpose()?))
    })?;
    if parts.0.len() > 1 && parts.0.iter().any(|(_, count)| count.is_none()) {
        return Err(format!(
            "\"{text}\": in a mix each has its number of stripes, as in reno:4,vegas:4"
        ));
    }
    Ok(Mix(parts.0))
}

impl Mix {
    /// The stripes of a node that has `stripes` of them, where that was given.
    pub fn stripes(&self, stripes: Option<u64>) -> Result<Stripes, String> {
        let counted: Option<u64> = self.0.iter().map(|(_, count)| count.map(u64::from)).sum();
        match (counted, stripes) {
            (Some(counted), Some(stripes)) if counted != stripes => Err(format!(
                "--flavour {self} counts {counted} stripes and --stripes says {stripes}: give one of them"
            )),
            (Some(_), _) => Ok(Stripes(
                self.0
                    .iter()
                    .map(|&(flavour, count)| (flavour, count.unwrap_or(1)))
                    .collect(),
            )),
            (None, stripes) => {
                let many = u32::try_from(stripes.unwrap_or(1)).map_err(|_| "too many stripes")?;
                if many == 0 {
                    return Err("a node needs at least one stripe".into());
                }
                Ok(Stripes(vec![(self.0[0].0, many)]))
            }
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (flavour, count)) in self.0.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{}", flavour.name())?;
            if let Some(count) = count {
                write!(f, ":{count}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(text: &str) -> Result<Vec<u64>, String> {
        counts(text).map(|values| values.0.iter().map(|count| count.0).collect())
    }

    /// Numbers, lists, ranges and mixtures of them.
    #[test]
    fn ranges() {
        assert_eq!(numbers("3"), Ok(vec![3]));
        assert_eq!(numbers("1,4..6,9"), Ok(vec![1, 4, 5, 6, 9]));
        assert_eq!(numbers("1..10/4"), Ok(vec![1, 5, 9]));
        for bad in ["", "x", "4..1", "1..9/0", "1..99999999", "-1", "1..1000000"] {
            assert!(numbers(bad).is_err(), "{bad}");
        }
    }

    /// A mix counts stripes, or is one flavour for all; two answers are refused.
    #[test]
    fn mixes() {
        let of = |text: &str, stripes| mix(text).and_then(|mix| mix.stripes(stripes));
        assert_eq!(
            of("reno", Some(3)),
            Ok(Stripes(vec![(FlavourName::Reno, 3)]))
        );
        let both = Stripes(vec![(FlavourName::Reno, 4), (FlavourName::Vegas, 2)]);
        assert_eq!(of("reno:4,vegas:2", None), Ok(both.clone()));
        assert_eq!(of("reno:4,vegas:2", Some(6)), Ok(both));
        for (bad, stripes) in [
            ("reno:4,vegas:2", Some(7)),
            ("reno,vegas", None),
            ("bbr", None),
            ("reno:0", None),
            ("reno", Some(0)),
        ] {
            assert!(of(bad, stripes).is_err(), "{bad}");
        }
    }

    /// Rates, times and probabilities with their units.
    #[test]
    fn units() {
        assert_eq!(
            rates("1.5Mbit,1Gbit"),
            Ok(Values(vec![Rate(1.5e6), Rate(1e9)]))
        );
        assert_eq!(times("20ms,1s"), Ok(Values(vec![Time(0.02), Time(1.0)])));
        assert!(shares("1").is_err() && shares("0,0.5").is_ok());
        assert_eq!(delayed("off"), Ok(Delay(None)));
        let largest = Ok(Values(vec![Bytes(u64::from(u32::MAX))]));
        assert_eq!(packet_sizes("4294967295"), largest);
        assert!(packet_sizes("1000,5GiB").is_err() && packet_sizes("4GiB").is_err());
    }
}
