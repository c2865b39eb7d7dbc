//! Formulas for TCP.

/// Stripes that fill the pipe (coordinated striping, section 5.3): round trip × bandwidth / window.
#[must_use]
pub fn formula_stripes(bits_per_second: f64, round_trip_seconds: f64, window_bytes: f64) -> f64 {
    round_trip_seconds * bits_per_second / 8.0 / window_bytes
}

/// Packets per second of one connection that loses a share `loss` of its packets (Mathis et al. 1997), with `per_ack`
/// packets for each acknowledgement: 1/RTT × √(3 / (2 b p)).
#[must_use]
pub fn mathis(loss: f64, round_trip_seconds: f64, per_ack: f64) -> f64 {
    (3.0 / (2.0 * per_ack * loss)).sqrt() / round_trip_seconds
}

/// Packets per second with timeouts and a window limit counted (Padhye, Firoiu, Towsley, Kurose 1998, equation 32).
#[must_use]
pub fn pftk(
    loss: f64,
    round_trip_seconds: f64,
    rto_seconds: f64,
    per_ack: f64,
    window: f64,
) -> f64 {
    let recovery = round_trip_seconds * (2.0 * per_ack * loss / 3.0).sqrt();
    let timeouts = rto_seconds
        * (3.0 * (3.0 * per_ack * loss / 8.0).sqrt()).min(1.0)
        * loss
        * (1.0 + 32.0 * loss * loss);
    (1.0 / (recovery + timeouts)).min(window / round_trip_seconds)
}
