//! Temporary.
#![allow(missing_docs, clippy::all)]
use ropewalk_model::Range;
use ropewalk_sim::*;
fn main() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let (s, f) = (2.39e6, 23.9e6);
    for (name, ups, downs) in [
        ("5+0", vec![s; 5], vec![s; 5]),
        ("1+1 crossed", vec![s, f], vec![f, s]),
        ("1+1", vec![s, f], vec![s, f]),
        ("2+2 crossed", vec![s, s, f, f], vec![f, f, s, s]),
        ("3+3 crossed", vec![s, s, s, f, f, f], vec![f, f, f, s, s, s]),
        ("5+3 crossed", vec![s, s, s, s, s, f, f, f], vec![f, f, f, s, s, s, s, s]),
        ("5+3", vec![s, s, s, s, s, f, f, f], vec![s, s, s, s, s, f, f, f]),
        ("1+4", vec![s, f, f, f, f], vec![s, f, f, f, f]),
        ("1+4 crossed", vec![s, f, f, f, f], vec![f, f, f, f, s]),
        ("16+16 crossed", [vec![s; 16], vec![f; 16]].concat(), [vec![f; 16], vec![s; 16]].concat()),
        ("8 equal", vec![f; 8], vec![f; 8]),
        ("8 to 2", vec![s; 8], vec![f; 2]),
        ("2 to 8", vec![f; 2], vec![s; 8]),
    ] {
        if !name.contains(&only) { continue; }
        let (up, down): (f64, f64) = (ups.iter().sum(), downs.iter().sum());
        for shared in [true, false] {
            let copies = if shared { 1.0 } else { downs.len() as f64 };
            let bytes = (up.min(down) * 20.0 / copies) as u64;
            let all = Range::new(0, bytes);
            let d = shared.then_some("out");
            let mut nodes = Vec::new();
            for at in 0..ups.len() { nodes.push(node(format!("s{at}"), &[all], &[], None)); }
            for at in 0..downs.len() { nodes.push(node(format!("r{at}"), &[], &[all], d)); }
            let speeds: Vec<Speed> = ups.iter().chain(&downs).map(|&x| Speed::both(x)).collect();
            let mut sc = Scenario::new(nodes, speeds);
            if std::env::var("HINTS").is_ok() { sc = sc.declared(); }
            let slowest = downs.iter().copied().fold(f64::MAX, f64::min);
            let bound = if shared { 20.0 } else { 20.0f64.max(bytes as f64 / slowest) };
            let ended = sc.run();
            print!("{name:15} {} {:.2} of {bound:.2} = {:.1} % dup {:.2} % replans {}    ", if shared { "shared" } else { "own" }, ended.seconds, bound / ended.seconds * 100.0, ended.duplicate_bytes as f64 / ended.wanted_bytes as f64 * 100.0, ended.replans);
        }
        println!();
    }
}
