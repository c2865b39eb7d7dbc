use ropewalk_sim::packet::{FlavourName, Profile, Stripes, TwoClusters};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let profile = Profile::named(&a[1]).unwrap();
    let net = TwoClusters {
        nodes: a[2].parse().unwrap(),
        stripes: Stripes(vec![(
            FlavourName::named(&a[7]).unwrap(),
            a[3].parse().unwrap(),
        )]),
        bits_per_second: a[4].parse::<f64>().unwrap() * 1e6,
        latency_seconds: a[5].parse::<f64>().unwrap() / 1e3,
        queue: a[6].parse().unwrap(),
        access_queue: a[6].parse().unwrap(),
        ..TwoClusters::default()
    };
    let mut s = net.scenario(profile);
    s.trace_seconds = a.get(8).map(|_| 0.02);
    let t = std::time::Instant::now();
    let o = s.run().unwrap();
    let e = t.elapsed().as_secs_f64();
    let done = o.flows.iter().filter(|f| f.done_seconds.is_some()).count();
    println!(
        "done={}/{} time={:.6} sent={} rexmit={} timeouts={} acked={}",
        done,
        o.flows.len(),
        o.seconds,
        o.sent(),
        o.retransmitted(),
        o.timeouts(),
        o.acknowledged()
    );
    eprintln!("{:.2} M events/s", o.events as f64 / e / 1e6);
    if let Some(path) = a.get(8) {
        let mut text = String::from("t_s,flow,cwnd,ssthresh,acked,max_sent,rexmit_pkts,timeouts\n");
        for x in &o.trace {
            text += &format!(
                "{:.3},{},{:.3},{},{},{},{},{}\n",
                x.seconds,
                x.flow,
                x.window,
                x.ssthresh,
                x.acknowledged,
                x.sent_max,
                x.retransmitted,
                x.timeouts
            );
        }
        std::fs::write(path, text).unwrap();
    }
}
