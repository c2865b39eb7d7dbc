//! Labs for the figures, and what TCP can carry through their caps.

use anyhow::{Context as _, Result};
use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec};

use crate::bench::Site;

/// TCP payload per bit of a capped interface: 1448 bytes of each frame of 1514.
pub(crate) const TCP_SHARE: f64 = 1448.0 / 1514.0;

/// The host where masters run: without a cap, and no node of any transfer.
pub(crate) const MASTER: &str = "master";

/// What TCP can carry through a cap.
pub(crate) fn tcp_rate(bits_per_second: u64) -> f64 {
    bits_per_second as f64 * TCP_SHARE
}

/// A rate as specification files write it, in whole bytes per second.
pub(crate) fn hint(bits_per_second: u64) -> String {
    format!("{:.0}B/s", tcp_rate(bits_per_second) / 8.0)
}

/// A lab of these hosts and [`MASTER`]; the figure's scratch folder and the program are visible everywhere.
pub(crate) fn lab(hosts: impl IntoIterator<Item = HostSpec>, site: &Site) -> Result<Lab> {
    let builder = LabBuilder::new().hosts(hosts);
    let builder = with_program(builder.host(HostSpec::new(MASTER)), site);
    builder.build().context("cannot build the lab")
}

/// A lab in whose hosts the figure's scratch folder and the program are visible.
pub(crate) fn with_program(builder: LabBuilder, site: &Site) -> LabBuilder {
    let programs = site.ropewalk.parent().unwrap_or(&site.ropewalk);
    builder.expose(&site.scratch).expose(programs)
}

/// A host with one interface of this rate.
pub(crate) fn capped(name: impl Into<String>, bits_per_second: u64) -> HostSpec {
    HostSpec::new(name).nic(NicSpec::rate_bits(bits_per_second))
}
