//! Says whether sources that differ are disjoint parts, or names the first conflict.

use ropewalk_proto::coordinator::Relation;
use ropewalk_store::Manifest;

use crate::request::Sources;

/// `manifests`: name of a holder and the encoded manifest, one per distinct content.
pub(crate) fn compare(
    sources: Sources,
    manifests: &[(String, Vec<u8>)],
) -> Result<Relation, String> {
    if manifests.len() < 2 {
        return Err("sources differ, but only one list of files came; this is a bug".into());
    }
    let mut decoded = Vec::new();
    for (name, bytes) in manifests {
        decoded.push((
            name,
            Manifest::decode(bytes).map_err(|error| format!("{name}: {error}"))?,
        ));
    }
    let same = decoded
        .windows(2)
        .all(|pair| Manifest::difference(&pair[0].1, &pair[1].1).is_none());
    if same && sources != Sources::Parts {
        return Ok(Relation::Replicas);
    }
    if sources == Sources::Replicas {
        let differing = decoded
            .windows(2)
            .find_map(|p| Manifest::difference(&p[0].1, &p[1].1).map(|d| (p[0].0, p[1].0, d)));
        if let Some((first, second, difference)) = differing {
            return Err(format!(
                "{first} and {second} are no replicas: {difference}; make them equal, or use --sources parts if each holds a part"
            ));
        }
    }
    let parts: Vec<&Manifest> = decoded.iter().map(|(_, m)| m).collect();
    match Manifest::conflict(&parts) {
        None => Ok(Relation::Parts),
        Some((path, first, second)) => {
            let shown = if path.is_empty() {
                "the file itself".to_owned()
            } else {
                format!("`{}`", String::from_utf8_lossy(&path))
            };
            let difference = Manifest::difference(parts[first], parts[second])
                .map(|d| format!(" (as replicas: {d})"))
                .unwrap_or_default();
            Err(format!(
                "{} and {} both hold {shown} but are not the same{difference}; make them equal to copy them as replicas, or disjoint to copy them as parts",
                decoded[first].0, decoded[second].0
            ))
        }
    }
}
