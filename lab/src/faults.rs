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
