//! Any file of a network is read without harm: a network that can be simulated, or the number of a line and what is wrong with it.

use ropewalk_tcp_sim::{parse_seconds, parse_topology};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
use mutate::fuzz_some;

/// Connections have ends that are there; an error names a line of the file.
#[test]
fn networks() {
    let corpus = [
        "# a comment\nlink a r 100Mbit 0.1ms queue=100\nlink r z 10Mbit 20ms loss=0.001 back-rate=1Mbit\n\
         flow a z bytes=8MB streams=4\nflow a r bytes=1KiB flavour=cubic start=1s\n",
        "link x y 1Gbit 3us back-latency=1ms back-queue=7 back-loss=0.5\nflow y x bytes=1\n",
        "link a a 1Gbit 0s\n",
    ];
    let corpus = corpus.map(|text| text.as_bytes().to_vec());
    fuzz_some("networks", &corpus, 10_000, |input| {
        let text = String::from_utf8_lossy(input);
        match parse_topology(&text, 1500) {
            Ok((topology, flows)) => {
                assert!(!flows.is_empty());
                let nodes = topology.nodes.len();
                for flow in flows {
                    assert!(flow.from < nodes && flow.to < nodes && flow.start_seconds >= 0.0);
                }
            }
            Err(error) => {
                assert!(error.line <= text.lines().count());
                assert!(!error.to_string().is_empty());
            }
        }
    });
}

/// A time that is read is a number that is not negative.
#[test]
fn times() {
    let corpus = ["20ms", "0.1 ms", "3s", "50us", "1e3s"].map(|text| text.as_bytes().to_vec());
    fuzz_some("times", &corpus, 20_000, |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(seconds) = parse_seconds(&text) {
            assert!(seconds.is_finite() && seconds >= 0.0, "{seconds}");
        }
    });
}
