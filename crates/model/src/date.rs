//! Points in time for people, from seconds since 1970.

/// Seconds of a day.
const DAY: i64 = 86_400;

/// Years that are printed; others belong to broken clocks and stay numbers.
const YEARS: std::ops::RangeInclusive<i64> = 0..=9999;

/// Date and time in UTC, as `2024-05-05 12:00:00 UTC`, with nanoseconds where there are some. Cost O(1).
#[must_use]
pub fn format_time(seconds: i64, nanoseconds: u32) -> String {
    let (days, rest) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    // Eras of 400 years that begin on 1 March, so that the leap day is the last of its year.
    let shifted = days.saturating_add(719_468);
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    if !YEARS.contains(&year) {
        return format!("{seconds} s since 1970");
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let fraction = match nanoseconds {
        0 => String::new(),
        some => format!(".{some:09}").trim_end_matches('0').to_owned(),
    };
    format!(
        "{year:04}-{month:02}-{day_of_month:02} {hour:02}:{minute:02}:{second:02}{fraction} UTC"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leap years, times before 1970 and clocks that are off.
    #[test]
    fn times_are_dates() {
        for (seconds, nanoseconds, text) in [
            (0, 0, "1970-01-01 00:00:00 UTC"),
            (-1, 0, "1969-12-31 23:59:59 UTC"),
            (951_782_400, 0, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, 0, "2024-02-29 23:59:59 UTC"),
            (1_735_689_599, 0, "2024-12-31 23:59:59 UTC"),
            (
                1_795_372_833,
                301_815_516,
                "2026-11-22 18:40:33.301815516 UTC",
            ),
            (1_795_372_833, 500_000_000, "2026-11-22 18:40:33.5 UTC"),
            (-62_135_596_800, 0, "0001-01-01 00:00:00 UTC"),
            (i64::MAX, 0, "9223372036854775807 s since 1970"),
            (i64::MIN, 0, "-9223372036854775808 s since 1970"),
        ] {
            assert_eq!(format_time(seconds, nanoseconds), text);
        }
    }
}
