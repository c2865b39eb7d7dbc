use super::*;
use crate::report::BottleneckCause as Of;

fn host(node: &str) -> HostReport {
    let settings = [
        ("net.ipv4.tcp_rmem", "4096 131072 2097152"),
        ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
        ("net.ipv4.tcp_window_scaling", "1"),
        ("net.ipv4.tcp_moderate_rcvbuf", "1"),
        ("net.ipv4.tcp_congestion_control", "cubic"),
    ];
    HostReport {
        node: node.into(),
        open_files: 1 << 20,
        settings: settings
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..HostReport::default()
    }
}

fn cause(cause: Of, share: f64) -> BottleneckReport {
    BottleneckReport {
        cause,
        node: Some("a".into()),
        peer: Some("b".into()),
        rail: None,
        share,
    }
}

/// 100 Mbit/s for 8 seconds over 40 ms.
fn run(causes: &[(Of, f64)]) -> RunReport {
    RunReport {
        bytes: 100_000_000,
        bits_per_second: 100e6,
        start_seconds: 0.5,
        ramp_seconds: 0.25,
        finish_seconds: 0.0,
        network: Some(NetworkReport {
            streams: 1,
            round_trip_seconds: 0.041,
            least_round_trip_seconds: 0.04,
            segment_bytes: 1448,
            segments: 70_000,
            repeated_segments: 10,
            window_bytes: 0,
        }),
        bottlenecks: causes.iter().map(|&(of, share)| cause(of, share)).collect(),
    }
}

fn of(runs: Runs) -> Forecast {
    forecast(&host("a"), &host("b"), runs)
}

fn memory(run: RunReport) -> Forecast {
    of(Runs {
        streams: Some(run),
        ..Runs::default()
    })
}

/// The rate of memory, and what held that back; the time before the first byte is no cause, and with the one that getting up to speed took it is the start.
#[test]
fn memory_is_predicted_from_memory() {
    let causes = [
        (Of::Starting, 0.6),
        (Of::Path, 0.3),
        (Of::ReceiverProcessor, 0.1),
    ];
    let forecast = memory(run(&causes));
    assert_eq!(forecast.bits_per_second, Some(100e6));
    assert_eq!(forecast.start_seconds, Some(0.75));
    let bound_by = forecast.bound_by.unwrap();
    assert_eq!(bound_by.cause, Of::Path);
    assert!((bound_by.share - 0.75).abs() < 1e-9);
    assert_eq!(forecast.settings, []);
    assert_eq!(of(Runs::default()).bits_per_second, None);
}

/// Files count before memory, with their sync; a disk that is slower than what was read from memory binds.
#[test]
fn files_are_predicted_from_files() {
    let with = |read: u64| {
        let mut sender = host("a");
        sender.disk = Some(DiskReport {
            read_bytes_per_second: read,
            ..DiskReport::default()
        });
        let files = RunReport {
            finish_seconds: 8.0,
            ..run(&[(Of::Path, 0.4), (Of::Syncing, 0.5)])
        };
        let runs = Runs {
            streams: Some(run(&[(Of::Path, 1.0)])),
            files: Some(files),
            ..Runs::default()
        };
        forecast(&sender, &host("b"), runs)
    };
    let fast = with(1 << 30);
    assert!((fast.bits_per_second.unwrap() - 50e6).abs() < 1.0);
    assert_eq!(fast.bound_by.unwrap().cause, Of::Syncing);
    let slow = with(2_000_000);
    assert_eq!(slow.bits_per_second, Some(16e6));
    let bound_by = slow.bound_by.unwrap();
    assert_eq!(
        (bound_by.cause, bound_by.node.as_deref()),
        (Of::SourceDisk, Some("a"))
    );
}

/// Windows that limit are enlarged at the host that is too small, to twice the bytes on the way, by the interface's speed where it is known.
#[test]
fn windows_get_the_size_of_the_path() {
    let limited = || {
        let mut run = run(&[(Of::Window, 0.9)]);
        run.network.as_mut().unwrap().window_bytes = 32_768;
        run
    };
    let forecast = memory(limited());
    assert_eq!(forecast.bound_by.unwrap().cause, Of::Window);
    // 1 Gbit/s over 40 ms is 5 MB.
    let commands: Vec<_> = forecast
        .settings
        .iter()
        .map(|one| (&*one.node, &*one.command))
        .collect();
    assert_eq!(
        commands,
        [
            ("b", "sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216'"),
            ("a", "sysctl -w net.ipv4.tcp_wmem='4096 16384 16777216'"),
        ]
    );
    assert!(
        forecast.settings[0]
            .reason
            .contains("4883 KiB for 1000 Mbit/s over 40.0 ms"),
        "{:?}",
        forecast.settings
    );
    let [mut a, mut b] = ["a", "b"].map(host);
    b.settings
        .insert("net.ipv4.tcp_rmem".into(), "4096 131072 524288".into());
    for host in [&mut a, &mut b] {
        host.interfaces = vec![InterfaceReport {
            bits_per_second: Some(100e6),
            ..InterfaceReport::default()
        }];
    }
    b.settings
        .insert("net.ipv4.tcp_window_scaling".into(), "0".into());
    let runs = Runs {
        one_stream: Some(limited()),
        streams: Some(run(&[(Of::Path, 1.0)])),
        ..Runs::default()
    };
    let forecast = super::forecast(&a, &b, runs);
    // Several streams reach what the path carries, and one does not.
    assert_eq!(forecast.bound_by.unwrap().cause, Of::Path);
    let commands: Vec<_> = forecast.settings.iter().map(|one| &*one.command).collect();
    assert_eq!(
        commands,
        [
            "sysctl -w net.ipv4.tcp_rmem='4096 131072 1048576'",
            "sysctl -w net.ipv4.tcp_window_scaling='1'",
        ]
    );
}

/// Buffers that hold less than several streams carry are named also where the kernel did not say that they were the limit.
#[test]
fn buffers_are_compared_with_what_was_carried() {
    let mut receiver = host("b");
    let buffer = "net.ipv4.tcp_rmem";
    for (most, is_small) in [(1_048_576, false), (524_288, true)] {
        let sizes = format!("4096 131072 {most}");
        receiver.settings.insert(buffer.into(), sizes);
        let runs = Runs {
            streams: Some(run(&[(Of::Path, 1.0)])),
            ..Runs::default()
        };
        // 100 Mbit/s over 40 ms are 500 kB, in a buffer of twice that.
        let found = super::forecast(&host("a"), &receiver, runs).settings;
        assert_eq!(
            found.iter().any(|one| one.command.contains(buffer)),
            is_small,
            "{most}"
        );
    }
}

/// Losses that bind call for another congestion control, loaded first where it is not there; few losses do not.
#[test]
fn losses_call_for_another_congestion_control() {
    let lossy = |share: u64| {
        let mut run = run(&[(Of::Loss, 0.9)]);
        run.network.as_mut().unwrap().repeated_segments = share * 700;
        run
    };
    let forecast = memory(lossy(2));
    let [advice] = forecast.settings.as_slice() else {
        panic!("{forecast:?}")
    };
    assert_eq!(
        advice.command,
        "modprobe tcp_bbr && sysctl -w net.ipv4.tcp_congestion_control='bbr'"
    );
    assert!(
        advice.reason.starts_with("2.0 % of the packets"),
        "{advice:?}"
    );
    assert_eq!(memory(lossy(0)).settings, []);
    let mut sender = host("a");
    let available = "net.ipv4.tcp_available_congestion_control";
    sender
        .settings
        .insert(available.into(), "reno cubic bbr".into());
    let runs = Runs {
        streams: Some(lossy(2)),
        ..Runs::default()
    };
    let forecast = super::forecast(&sender, &host("b"), runs);
    assert!(forecast.settings[0].command.starts_with("sysctl"));
}

/// An agent that may open few files is named.
#[test]
fn few_open_files_are_named() {
    let mut receiver = host("b");
    receiver.open_files = 1024;
    let runs = Runs {
        streams: Some(run(&[(Of::Path, 1.0)])),
        ..Runs::default()
    };
    let forecast = forecast(&host("a"), &receiver, runs);
    assert_eq!(forecast.settings[0].command, "ulimit -n 65536");
    assert_eq!(forecast.settings[0].node, "b");
}
