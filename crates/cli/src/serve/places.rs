//! Where a job writes, so that two jobs that write to one place do not run at the same time.
//!
//! By names alone: no host is asked, no link is followed, and two names of one host are two hosts.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use ropewalk_master::Request;
use ropewalk_master::request::{Object, Reach};

use crate::endpoint::Endpoint;

/// The destinations of a request. Where several things go into one, it is a folder, and ends with `/`.
///
/// * `folder`: of the job.
pub(super) fn of_request(request: &Request, folder: &Path) -> Vec<String> {
    let mut sources = request.nodes.iter().flat_map(|node| &node.sources);
    let are_several = sources.any(|source| matches!(source.object, Object::Bundle(_)));
    let mut places = Vec::new();
    for node in &request.nodes {
        for sink in &node.sinks {
            if let Object::Path(path) = &sink.object {
                places.push(place(&node.reach, path, are_several, folder));
            }
        }
    }
    once_each(places)
}

/// The same, as far as it is known before the hosts of the sources have been asked for names.
pub(super) fn of_endpoints(destinations: &[Endpoint], folder: &Path) -> Vec<String> {
    let place = |destination: &Endpoint| match &destination.object {
        Object::Path(path) => Some(place(&destination.reach, path, destination.into, folder)),
        _ => None,
    };
    once_each(destinations.iter().filter_map(place).collect())
}

fn once_each(mut places: Vec<String>) -> Vec<String> {
    places.sort_unstable();
    places.dedup();
    places
}

/// Host and path without `.`, `..` and repeated slashes; relative paths of other hosts are below the home folder there.
fn place(reach: &Reach, path: &[u8], is_folder: bool, folder: &Path) -> String {
    let (host, above) = match reach.host() {
        Some(host) => (format!("{}:", host.to_ascii_lowercase()), Path::new("~")),
        None => (String::new(), folder),
    };
    let mut plain = PathBuf::new();
    for component in above.join(OsStr::from_bytes(path)).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => {
                plain.push(component);
            }
        }
    }
    let mut text = host + &plain.to_string_lossy();
    if is_folder && !text.ends_with('/') {
        text.push('/');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{self, Side};

    /// One place has one name, however it is written; nothing is a place that holds no file.
    #[test]
    fn places_are_normalised() {
        let places = |texts: &[&str]| {
            let parsed = texts.iter().flat_map(|text| {
                let text = OsStr::new(text);
                endpoint::parse(text, Side::Destination).unwrap()
            });
            of_endpoints(&parsed.collect::<Vec<_>>(), Path::new("/work"))
        };
        for (text, place) in [
            ("/a//b/./c", "/a/b/c"),
            ("/a/x/../b", "/a/b"),
            ("/a/b/", "/a/b/"),
            ("/", "/"),
            ("me@Host:/a", "host:/a"),
            ("host:7420:/a", "host:/a"),
            ("host:a/b", "host:~/a/b"),
            ("host:~/a/b", "host:~/a/b"),
            ("host:", "host:~/"),
        ] {
            assert_eq!(places(&[text]), [place], "{text}");
        }
        assert_eq!(places(&["null:", "h:mem:5KiB", "/a", "/a"]), ["/a"]);
        let many: Vec<String> = (0..40).map(|at| format!("h{at}:/a")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(places(&many).len(), 40);
    }

    /// A relative path is below the job's folder.
    #[test]
    fn relative_places_are_below_the_folder() {
        let place = |path: &str| place(&Reach::Local, path.as_bytes(), false, Path::new("/work/x"));
        assert_eq!(place("a"), "/work/x/a");
        assert_eq!(place("../a"), "/work/a");
        assert_eq!(place("../../../../a"), "/a");
    }
}
