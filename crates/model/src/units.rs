//! Sizes, rates and durations as people write them.
//!
//! Inside, sizes are bytes and rates are bytes per second. To people, rates are decimal bits per second
//! and sizes are binary or decimal as fits. A bare `K` or `M` is refused: it means 1000 to some and
//! 1024 to others.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A rate in bytes per second, printed as decimal bits per second.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ByteRate(pub u64);

/// Why a size or rate could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// There is no number in front.
    #[error("\"{0}\" does not start with a number; write one like {1}")]
    NoNumber(String, &'static str),
    /// It is below zero.
    #[error("\"{0}\" is negative; sizes, offsets and rates are not")]
    Negative(String),
    /// The unit could mean a power of 1000 or of 1024.
    #[error(
        "\"{text}\": \"{letter}\" could mean {thousands} or {binary}; write \"{letter}B\" for powers of 1000 or \"{upper}iB\" for powers of 1024"
    )]
    Ambiguous {
        /// What was written.
        text: String,
        /// Its unit.
        letter: String,
        /// The unit's letter in the form that `iB` takes.
        upper: char,
        /// The decimal meaning.
        thousands: u64,
        /// The binary meaning.
        binary: u64,
    },
    /// A rate without a unit could be bits or bytes.
    #[error(
        "\"{0}\" has no unit, so it could be bits or bytes; write for example {0}Mbit/s or {0}MB/s"
    )]
    BareRate(String),
    /// A rate with a power alone could be bits or bytes.
    #[error("\"{0}\" could be bits or bytes; write {0}bit/s or {0}B/s")]
    BarePower(String),
    /// The unit is not one we know.
    #[error("\"{text}\": unknown unit \"{unit}\"; known are {known}")]
    UnknownUnit {
        /// What was written.
        text: String,
        /// Its unit.
        unit: String,
        /// The units that would do.
        known: &'static str,
    },
    /// The value does not fit 64 bits.
    #[error("\"{0}\" is more than 64 bits can hold")]
    TooLarge(String),
    /// The value is not a whole number of bytes.
    #[error("\"{0}\" is not a whole number of bytes; use a smaller unit")]
    Fraction(String),
}

const SIZE_UNITS: &str = "B kB MB GB TB PB and KiB MiB GiB TiB PiB";
const RATE_UNITS: &str =
    "bit kbit Mbit Gbit Tbit and B kB MB GB KiB MiB GiB, each with or without \"/s\"";

const PREFIXES: [(char, u32); 5] = [('K', 1), ('M', 2), ('G', 3), ('T', 4), ('P', 5)];

impl FromStr for Bytes {
    type Err = UnitError;

    /// Reads a size: a number, `.` allowed, and one of `B kB MB GB TB PB KiB MiB GiB TiB PiB`. No unit
    /// means bytes.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split_number(text, "4GiB or 500MB")?;
        let multiplier = match unit {
            "" | "B" => 1,
            _ => byte_unit(unit).ok_or_else(|| bad_unit(text, unit, SIZE_UNITS))?,
        };
        number.times(multiplier, 1, text).map(Self)
    }
}

impl FromStr for ByteRate {
    type Err = UnitError;

    /// Reads a rate: a number and bits (`Mbit`, `Mbit/s`) or bytes (`MB/s`, `MiB/s`) per second.
    ///
    /// Bits are rounded down to whole bytes per second. A number without a unit is refused, save 0.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split_number(text, "100Mbit/s or 12.5MB/s")?;
        let unit = unit.strip_suffix("/s").unwrap_or(unit);
        if unit.is_empty() {
            return match number.digits {
                0 => Ok(Self(0)),
                _ => Err(UnitError::BareRate(text.trim().to_owned())),
            };
        }
        if let Some(multiplier) = bit_unit(unit) {
            return number.times_floor(multiplier, 8, text).map(Self);
        }
        let multiplier = match unit {
            "B" => 1,
            _ => byte_unit(unit).ok_or_else(|| match bad_unit(text, unit, RATE_UNITS) {
                // A power is not all that is open.
                UnitError::Ambiguous { text, .. } => {
                    UnitError::BarePower(text.trim_end_matches("/s").to_owned())
                }
                error => error,
            })?,
        };
        number.times_floor(multiplier, 1, text).map(Self)
    }
}

/// A decimal number, exactly: `digits / 10^decimals`.
struct Decimal {
    digits: u128,
    decimals: u32,
}

impl Decimal {
    fn times(&self, multiplier: u64, divisor: u128, text: &str) -> Result<u64, UnitError> {
        let scale = divisor * 10_u128.pow(self.decimals);
        let product = self.product(multiplier, text)?;
        if product % scale != 0 {
            return Err(UnitError::Fraction(text.trim().to_owned()));
        }
        u64::try_from(product / scale).map_err(|_| UnitError::TooLarge(text.trim().to_owned()))
    }

    fn times_floor(&self, multiplier: u64, divisor: u128, text: &str) -> Result<u64, UnitError> {
        let scale = divisor * 10_u128.pow(self.decimals);
        let value = self.product(multiplier, text)? / scale;
        u64::try_from(value).map_err(|_| UnitError::TooLarge(text.trim().to_owned()))
    }

    fn product(&self, multiplier: u64, text: &str) -> Result<u128, UnitError> {
        let product = self.digits.checked_mul(u128::from(multiplier));
        product.ok_or_else(|| UnitError::TooLarge(text.trim().to_owned()))
    }
}

/// Digits after the point that are read; more than any unit can use.
const DECIMALS_MAX: usize = 15;

fn split_number<'t>(text: &'t str, example: &'static str) -> Result<(Decimal, &'t str), UnitError> {
    let trimmed = text.trim();
    let is_negative = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    if trimmed.strip_prefix('-').is_some_and(is_negative) {
        return Err(UnitError::Negative(trimmed.to_owned()));
    }
    let missing = || UnitError::NoNumber(trimmed.to_owned(), example);
    let end = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    let fraction = fraction.trim_end_matches('0');
    if whole.is_empty() || fraction.contains('.') || fraction.len() > DECIMALS_MAX {
        return Err(missing());
    }
    let digits = format!("{whole}{fraction}");
    let digits = digits
        .parse()
        .map_err(|_| UnitError::TooLarge(trimmed.to_owned()))?;
    let number = Decimal {
        digits,
        decimals: fraction.len() as u32,
    };
    Ok((number, unit.trim_start()))
}

/// Multiplier of `kB`, `MiB` and their like. `KB` is taken as `kB`, the one spelling nobody reads otherwise.
fn byte_unit(unit: &str) -> Option<u64> {
    let mut letters = unit.chars();
    let power = prefix(letters.next()?)?;
    match letters.as_str() {
        "B" => Some(1000_u64.pow(power)),
        "iB" => Some(1024_u64.pow(power)),
        _ => None,
    }
}

/// Multiplier in bits of `bit`, `kbit`, `Mbit` and their like.
fn bit_unit(unit: &str) -> Option<u64> {
    let prefixed = unit
        .strip_suffix("bits")
        .or_else(|| unit.strip_suffix("bit"))?;
    let mut letters = prefixed.chars();
    match (letters.next(), letters.next()) {
        (None, _) => Some(1),
        (Some(letter), None) => Some(1000_u64.pow(prefix(letter)?)),
        _ => None,
    }
}

fn prefix(letter: char) -> Option<u32> {
    let letter = if letter == 'k' { 'K' } else { letter };
    let found = PREFIXES.iter().find(|(known, _)| *known == letter);
    found.map(|(_, power)| *power)
}

fn bad_unit(text: &str, unit: &str, known: &'static str) -> UnitError {
    let text = text.trim().to_owned();
    let mut letters = unit.chars();
    let first = letters
        .next()
        .map(|letter| (letter, letter.to_ascii_uppercase()));
    if let (Some((_, upper)), "") = (first, letters.as_str())
        && let Some(power) = prefix(upper)
    {
        return UnitError::Ambiguous {
            text,
            letter: unit.to_owned(),
            upper,
            thousands: 1000_u64.pow(power),
            binary: 1024_u64.pow(power),
        };
    }
    UnitError::UnknownUnit {
        text,
        unit: unit.to_owned(),
        known,
    }
}

impl ByteRate {
    /// The rate of so many bits per second, rounded down to whole bytes per second.
    #[must_use]
    pub const fn from_bits_per_second(bits: u64) -> Self {
        Self(bits / 8)
    }

    /// Bits per second. 128 bits, since the bytes alone may need 64.
    #[must_use]
    pub const fn bits_per_second(self) -> u128 {
        self.0 as u128 * 8
    }
}

/// Decimal bits per second with three significant digits: `956 Mbit/s`.
impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits_per_second() as f64;
        f.pad(&scaled(
            bits,
            &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s", "Pbit/s"],
            1000.0,
        ))
    }
}

/// Binary units when the size is a whole number of KiB or is small, decimal ones otherwise.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let decimal = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
        let text = if self.0.is_multiple_of(1024) {
            scaled(self.0 as f64, &binary, 1024.0)
        } else {
            scaled(self.0 as f64, &decimal, 1000.0)
        };
        f.pad(&text)
    }
}

/// A size for people in decimal units, as rates are: `20.5 MB`. For reports and tables, where sizes are beside each other;
/// [`Bytes`] prints the unit in which a size is a round number, for what people typed.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    scaled(
        bytes as f64,
        &["B", "kB", "MB", "GB", "TB", "PB", "EB"],
        1000.0,
    )
}

/// Three significant digits and the largest unit that keeps the number at 1 or more.
fn scaled(value: f64, units: &[&str], step: f64) -> String {
    let (mut value, mut unit) = (value, 0);
    while unit + 1 < units.len() {
        // 999.6 would print as 1000: the next unit starts where rounding reaches the step.
        let limit = if unit == 0 { step } else { step - 0.5 };
        if value < limit {
            break;
        }
        value /= step;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let number = format!("{value:.decimals$}");
    let number = match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => &number,
    };
    format!("{number} {}", units[unit])
}

/// A duration for people: `350 µs`, `12.4 ms`, `3.28 s`, `4 min 05 s`, `2 h 03 min`, `3 d 04 h`.
///
/// `seconds` that are not finite print as `never`, negative ones as `0 s`.
#[must_use]
pub fn format_seconds(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "never".to_owned();
    }
    let seconds = seconds.max(0.0);
    if seconds == 0.0 {
        return "0 s".to_owned();
    }
    if seconds < 59.95 {
        let (value, unit) = match seconds {
            s if s < 0.000_999_5 => (s * 1e6, "µs"),
            s if s < 0.999_5 => (s * 1e3, "ms"),
            s => (s, "s"),
        };
        let decimals = match value {
            v if v >= 99.95 => 0,
            v if v >= 9.995 => 1,
            _ => 2,
        };
        let number = format!("{value:.decimals$}");
        let number = match number.contains('.') {
            true => number.trim_end_matches('0').trim_end_matches('.'),
            false => &number,
        };
        return format!("{number} {unit}");
    }
    let whole = seconds.round() as u64;
    match whole {
        s if s < 3600 => format!("{} min {:02} s", s / 60, s % 60),
        s if s < 86_400 => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
        s => format!("{} d {:02} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sizes in every spelling, read exactly.
    #[test]
    fn sizes_read() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("7B", 7),
            ("4 GiB", 4 << 30),
            ("1.5KiB", 1536),
            ("2kB", 2000),
            ("2KB", 2000),
            ("500MB", 500_000_000),
            ("1TB", 1_000_000_000_000),
            ("0.1 GB", 100_000_000),
            ("1_000", 1000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    /// Rates in bits and bytes come to the same bytes per second.
    #[test]
    fn rates_read() {
        for (text, rate) in [
            ("100Mbit", 12_500_000),
            ("100 Mbit/s", 12_500_000),
            ("1Gbit/s", 125_000_000),
            ("8kbit", 1000),
            ("8bit/s", 1),
            ("12.5MB/s", 12_500_000),
            ("1MiB/s", 1 << 20),
            ("95.6Mbit/s", 11_950_000),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(ByteRate(rate)), "{text}");
        }
    }

    /// What is refused says why and what to write.
    #[test]
    fn refusals_explain() {
        let message = |error: UnitError| error.to_string();
        let size = |text: &str| message(text.parse::<Bytes>().unwrap_err());
        let rate = |text: &str| message(text.parse::<ByteRate>().unwrap_err());
        assert!(size("4K").contains("1000 or 1024"), "{}", size("4K"));
        assert!(size("4m").contains("\"MiB\""), "{}", size("4m"));
        assert!(
            size("4 parsecs").contains("unknown unit"),
            "{}",
            size("4 parsecs")
        );
        assert!(size("big").contains("does not start with a number"));
        assert!(size("-5").contains("is negative"), "{}", size("-5"));
        assert!(size("1.0001kB").contains("whole number of bytes"));
        assert!(size("17179869184GiB").contains("64 bits"));
        assert!(rate("100").contains("bits or bytes"), "{}", rate("100"));
        for text in ["1M", "1M/s"] {
            assert!(rate(text).contains("1Mbit/s or 1MB/s"), "{}", rate(text));
        }
        assert!(rate("1Mb/s").contains("unknown unit"), "{}", rate("1Mb/s"));
    }

    /// Numbers print with three significant digits in the unit that suits them.
    #[test]
    fn prints_for_people() {
        assert_eq!(format_bytes(20 << 20), "21 MB");
        assert_eq!(format_bytes(1_023), "1.02 kB");
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1024, "1 KiB"),
            (4 << 30, "4 GiB"),
            (1_000_001, "1 MB"),
            (123_456_789, "123 MB"),
            (999_950_001, "1 GB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(ByteRate(119_500_000).to_string(), "956 Mbit/s");
        assert_eq!(ByteRate(125_000_000).to_string(), "1 Gbit/s");
        assert_eq!(ByteRate(1).to_string(), "8 bit/s");
        for (seconds, text) in [
            (0.0, "0 s"),
            (0.00035, "350 µs"),
            (3.28, "3.28 s"),
            (245.0, "4 min 05 s"),
            (7380.0, "2 h 03 min"),
            (f64::INFINITY, "never"),
        ] {
            assert_eq!(format_seconds(seconds), text);
        }
    }

    proptest! {
        /// A printed size reads back within the three digits that were printed.
        #[test]
        fn sizes_survive_printing(bytes in any::<u64>()) {
            let bytes = bytes >> 10; // Exa units are printed but not read.
            let text = Bytes(bytes).to_string();
            // "1.23 KiB" is no whole number of bytes, hence the detour over the rate parser, which rounds.
            let back: ByteRate = text.parse().unwrap();
            let error = back.0.abs_diff(bytes) as f64;
            prop_assert!(error <= bytes as f64 * 0.006, "{} became {}", bytes, text);
        }

        /// No text makes the parsers panic.
        #[test]
        fn any_text_is_answered(text in ".{0,24}") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<ByteRate>();
        }
    }
}
