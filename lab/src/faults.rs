//! Changing a running lab: rates, and the failures a network can have.

use crate::spec::Address;
use crate::wiring::rule;
use crate::{Lab, LabError};

impl Lab {
    /// Caps both directions of an interface at this rate, whether or not it had a cap. What is queued stays queued.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`], [`LabError::UnknownNic`], [`LabError::Program`].
    pub fn set_rate(&self, host: &str, nic: usize, bits_per_second: u64) -> Result<(), LabError> {
        self.set_ends(host, nic, bits_per_second, true)
    }

    /// The same of what the interface sends alone.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`], [`LabError::UnknownNic`], [`LabError::Program`].
    pub fn set_uplink(&self, host: &str, nic: usize, bits_per_second: u64) -> Result<(), LabError> {
        self.set_ends(host, nic, bits_per_second, false)
    }

    fn set_ends(
        &self,
        host: &str,
        nic: usize,
        bits_per_second: u64,
        both: bool,
    ) -> Result<(), LabError> {
        let (index, number) = self.nic_index(host, nic)?;
        let planned = &self.wiring().hosts[index][number];
        let burst = {
            let mut bursts = self
                .bursts
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            let burst = &mut bursts[index][number];
            *burst = (*burst).max(self.wiring().burst(planned, bits_per_second));
            *burst
        };
        // Never less than before: an offload packet that was let into the queue as one would never get out of a
        // bucket smaller than itself, nor would anything behind it.
        let line = |device: &str| self.wiring().cap(device, planned, bits_per_second, burst);
        self.batch(Some(index), "tc", &line(&planned.name))?;
        match both {
            true => self.batch(None, "tc", &line(&planned.port)),
            false => Ok(()),
        }
    }

    /// Switches the host's interface off, as its administrator would: the host knows at once.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`], [`LabError::UnknownNic`], [`LabError::Program`].
    pub fn link_down(&self, host: &str, nic: usize) -> Result<(), LabError> {
        let (index, number) = self.nic_index(host, nic)?;
        let name = &self.wiring().hosts[index][number].name;
        self.batch(Some(index), "ip", &format!("link set {name} down\n"))
    }

    /// Switches the interface on again and restores the routes that the kernel dropped with it.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`], [`LabError::UnknownNic`], [`LabError::Program`].
    pub fn link_up(&self, host: &str, nic: usize) -> Result<(), LabError> {
        let (index, number) = self.nic_index(host, nic)?;
        let mut batch = format!("link set {} up\n", self.wiring().hosts[index][number].name);
        let addresses = self
            .addresses
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for &address in &addresses[index][number] {
            batch += &self.wiring().routes(index, number, address);
        }
        self.batch(Some(index), "ip", &batch)
    }

    /// Pulls the cable (`false`) or plugs it in: the host loses carrier, its addresses and routes stay.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`], [`LabError::UnknownNic`], [`LabError::Program`].
    pub fn plug(&self, host: &str, nic: usize, plugged: bool) -> Result<(), LabError> {
        let (index, number) = self.nic_index(host, nic)?;
        let port = &self.wiring().hosts[index][number].port;
        self.batch(
            None,
            "ip",
            &format!("link set {port} {}\n", if plugged { "up" } else { "down" }),
        )
    }

    /// Makes the switch silently drop all that the interface sends and would receive, or stops that.
    /// Neither end gets any notice. Taking the link down and up, or plugging it, ends a black hole.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`], [`LabError::UnknownNic`], [`LabError::Program`].
    pub fn blackhole(&self, host: &str, nic: usize, on: bool) -> Result<(), LabError> {
        let (index, number) = self.nic_index(host, nic)?;
        let port = &self.wiring().hosts[index][number].port;
        // Bridge port states: 0 disabled, 3 forwarding. `ip link set ... type bridge_slave state 0` will not do: it
        // announces a link change, upon which the bridge enables the port again.
        let state = if on { 0 } else { 3 };
        self.batch(
            None,
            "bridge",
            &format!("link set dev {port} state {state}\n"),
        )
    }

    /// Takes an address away from an interface; its prefix length does not matter.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`], [`LabError::UnknownNic`], [`LabError::Program`] if it is not there.
    pub fn delete_address(
        &self,
        host: &str,
        nic: usize,
        address: impl Into<Address>,
    ) -> Result<(), LabError> {
        let (index, number) = self.nic_index(host, nic)?;
        let ip = address.into().ip;
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let present = &mut addresses[index][number];
        let Some(position) = present.iter().position(|address| address.ip == ip) else {
            return Err(LabError::description(format!(
                "host {host} interface {nic} has no address {ip}"
            )));
        };
        let mut batch = format!(
            "addr del {} dev {}\n",
            present[position],
            self.wiring().hosts[index][number].name
        );
        if self.wiring().hosts[index].len() > 1 {
            batch += &format!("{}\n", rule("del", ip));
        }
        self.batch(Some(index), "ip", &batch)?;
        present.remove(position);
        Ok(())
    }

    /// Gives an interface a further address, or a deleted one back, with its source rule and routes.
    ///
    /// # Errors
    /// [`LabError::UnknownHost`], [`LabError::UnknownNic`], [`LabError::Program`].
    pub fn add_address(
        &self,
        host: &str,
        nic: usize,
        address: impl Into<Address>,
    ) -> Result<(), LabError> {
        let (index, number) = self.nic_index(host, nic)?;
        let mut address = address.into();
        let planned = &self.wiring().hosts[index][number].addresses;
        if let Some(original) = planned.iter().find(|planned| planned.ip == address.ip) {
            address.prefix = original.prefix;
        }
        self.batch(
            Some(index),
            "ip",
            &self.wiring().address(index, number, address),
        )?;
        self.addresses
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())[index][number]
            .push(address);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{HostSpec, LabBuilder, NicSpec, skip};

    /// The rates of what an interface sends and of what it receives, as `tc` writes them; empty where it has no cap.
    fn rates(lab: &Lab, host: &str) -> [String; 2] {
        let (index, number) = lab.nic_index(host, 0).expect("a host");
        let planned = &lab.wiring().hosts[index][number];
        let ends = [
            (&lab.holders[index], &planned.name),
            (&lab.switch, &planned.port),
        ];
        ends.map(|(holder, device)| {
            let mut command = Command::new("tc");
            command.args(["qdisc", "show", "dev", device]);
            holder.adopt(&mut command, false);
            let output = command.output().expect("tc starts");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{device}: {text}");
            let rate = text.split_once(" rate ");
            let rate = rate.and_then(|(_, behind)| behind.split_whitespace().next());
            rate.unwrap_or_default().to_owned()
        })
    }

    /// Another uplink leaves what an interface receives as it was, with a cap or without; another rate changes both.
    #[test]
    fn uplinks_change_alone() {
        if skip("uplinks_change_alone") {
            return;
        }
        let lab = LabBuilder::new()
            .host(HostSpec::new("a").nic(NicSpec::rate_bits(100_000_000)))
            .host(HostSpec::new("b"))
            .build()
            .expect("a lab");
        assert_eq!(rates(&lab, "a"), ["100Mbit", "100Mbit"]);
        assert_eq!(rates(&lab, "b"), ["", ""]);
        for (host, down) in [("a", "100Mbit"), ("b", "")] {
            for (bits_per_second, up) in [(20_000_000, "20Mbit"), (200_000_000, "200Mbit")] {
                lab.set_uplink(host, 0, bits_per_second).expect("changed");
                assert_eq!(rates(&lab, host), [up, down], "{host}");
            }
            lab.set_rate(host, 0, 50_000_000).expect("changed");
            assert_eq!(rates(&lab, host), ["50Mbit", "50Mbit"], "{host}");
        }
        let unknown = lab.set_uplink("c", 0, 1_000_000);
        assert!(matches!(unknown, Err(LabError::UnknownHost { .. })));
    }
}
