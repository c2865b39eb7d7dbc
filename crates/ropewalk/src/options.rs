//! Options of transfers by the names that the command has for them: one list for programs of all languages.

use std::str::FromStr as _;

use ropewalk_master::request::{
    Destinations, Incomplete, LaneKind, Mapping, Options, Rails, Sources, Verify,
};
use ropewalk_model::ByteRate;

use crate::Error;
use crate::error::Fault;

/// Those that every transfer has.
const OF_ALL: &str = "verify, limit, streams, lane, plain, rails";

/// Those of copies beside them.
const OF_COPIES: &str = "archive, atomic, delete, delta, destinations, hard-links, sources";

fn bad(message: String) -> Error {
    Error::Input(Fault::new(message))
}

/// The value of this name.
fn named<T: Copy>(
    option: &str,
    value: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, Error> {
    let found = all.iter().copied().find(|one| name(*one) == value);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
        bad(format!(
            "\"{value}\" is no value of {option}; it is one of {}",
            names.join(", ")
        ))
    })
}

fn is_true(option: &str, value: &str) -> Result<bool, Error> {
    named(option, value, &[true, false], |value| match value {
        true => "true",
        false => "false",
    })
}

/// Sets what every transfer has; whether the name is such an option.
fn set(options: &mut Options, name: &str, value: &str) -> Result<bool, Error> {
    match name {
        "verify" => options.verify = named(name, value, &Verify::ALL, Verify::name)?,
        "limit" => {
            let rate = ByteRate::from_str(value).map_err(|error| bad(error.to_string()))?;
            options.limit = Some(rate.0).filter(|rate| *rate > 0);
        }
        "streams" => {
            let streams = value.parse().ok().filter(|streams| *streams > 0);
            options.streams = match (value, streams) {
                ("auto", _) => None,
                (_, Some(streams)) => Some(streams),
                _ => {
                    return Err(bad(format!(
                        "\"{value}\" is no number of streams; write auto, or a number from 1 on"
                    )));
                }
            };
        }
        "lane" => {
            // Those that need no further option, nor a launcher.
            let kinds = [LaneKind::Auto, LaneKind::Tcp, LaneKind::Unix, LaneKind::Shm];
            options.lane = named(name, value, &kinds, LaneKind::name)?;
        }
        "plain" => options.plain = is_true(name, value)?,
        "rails" => {
            options.rails = match value {
                "auto" => Rails::All,
                "one" => Rails::One,
                list => Rails::Only(list.split(',').map(str::to_owned).collect()),
            };
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Sets an option of a transfer of rows.
pub(crate) fn set_of_rows(options: &mut Options, name: &str, value: &str) -> Result<(), Error> {
    match set(options, name, value)? {
        true => Ok(()),
        false => Err(bad(format!(
            "a transfer of rows has no option \"{name}\"; it has {OF_ALL}"
        ))),
    }
}

/// Sets an option of a copy.
pub(crate) fn set_of_copy(
    options: &mut Options,
    mapping: &mut Mapping,
    name: &str,
    value: &str,
) -> Result<(), Error> {
    if set(options, name, value)? {
        return Ok(());
    }
    match (name, mapping) {
        ("archive", _) => options.archive = is_true(name, value)?,
        ("atomic", _) => {
            options.incomplete = match is_true(name, value)? {
                true => Incomplete::Removed,
                false => Incomplete::WholeFiles,
            };
        }
        ("delete", _) => {
            options.delete = is_true(name, value)?;
            // A program names the copy, and is not mistaken about a slash.
            options.delete_all = options.delete;
        }
        ("delta", _) => options.delta = is_true(name, value)?,
        ("hard-links", _) => options.hard_links = is_true(name, value)?,
        ("sources", Mapping::Trees { sources, .. }) => {
            let all = [Sources::Auto, Sources::Replicas, Sources::Parts];
            *sources = named(name, value, &all, Sources::name)?;
        }
        ("destinations", Mapping::Trees { destinations, .. }) => {
            let all = [Destinations::Copies, Destinations::Shared];
            *destinations = named(name, value, &all, Destinations::name)?;
        }
        _ => {
            return Err(bad(format!(
                "a copy has no option \"{name}\"; it has {OF_ALL}, {OF_COPIES}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(set: &[(&str, &str)]) -> Result<(Options, Mapping), String> {
        let mut options = Options::default();
        let mut mapping = Mapping::Trees {
            sources: Sources::Auto,
            destinations: Destinations::Copies,
        };
        for (name, value) in set {
            let result = set_of_copy(&mut options, &mut mapping, name, value);
            result.map_err(|error| error.to_string())?;
        }
        Ok((options, mapping))
    }

    /// Each name sets its option, and other names and values are refused with those that there are.
    #[test]
    fn options_have_the_names_of_the_command() {
        let (options, mapping) = copy(&[
            ("verify", "replicas"),
            ("limit", "8Mbit"),
            ("streams", "3"),
            ("lane", "tcp"),
            ("plain", "true"),
            ("rails", "eth0,10.0.0.0/8"),
            ("archive", "true"),
            ("atomic", "true"),
            ("delete", "true"),
            ("delta", "true"),
            ("hard-links", "true"),
            ("sources", "parts"),
            ("destinations", "shared"),
        ])
        .unwrap();
        assert_eq!(options.verify, Verify::Replicas);
        assert_eq!((options.limit, options.streams), (Some(1_000_000), Some(3)));
        assert_eq!(
            (options.lane, options.rails.only().len()),
            (LaneKind::Tcp, 2)
        );
        let flags = [
            options.plain,
            options.archive,
            options.delete,
            options.delta,
            options.hard_links,
        ];
        assert_eq!(
            (flags, options.incomplete),
            ([true; 5], Incomplete::Removed)
        );
        assert_eq!(
            mapping,
            Mapping::Trees {
                sources: Sources::Parts,
                destinations: Destinations::Shared
            }
        );
        let (options, _) = copy(&[("limit", "0"), ("streams", "auto"), ("rails", "one")]).unwrap();
        assert_eq!((options.limit, options.streams), (None, None));
        for (name, value, error) in [
            ("verify", "some", "none, fragment, tree, sink, replicas"),
            ("limit", "fast", "fast"),
            ("streams", "0", "from 1 on"),
            ("plain", "yes", "true, false"),
            ("colour", "red", "archive, atomic"),
        ] {
            let message = copy(&[(name, value)]).err().unwrap();
            assert!(message.contains(error), "{message}");
        }
        let error = set_of_rows(&mut Options::default(), "delete", "true");
        assert!(error.unwrap_err().to_string().contains("verify, limit"));
    }
}
