//! The virtual link between two namespaces: a pair of virtual Ethernet interfaces, or two pairs and a switch
//! that drops a share of the frames.
//!
//! ```text
//!   direct     one: v0 ──────────────────────────── two: v0
//!   switched   one: v0 ───── s1 [bridge] s2 ─────── two: v0
//! ```
//!
//! Frames are lost in the switch and not at the hosts, where rails past the kernel take them before any rule
//! sees them, and hand them out behind all rules. What is lost is so the same for all that talk over the
//! cable. The switch is a bridge, as frames that a rule hands over (`fwd`) are passed by by XDP's generic
//! mode.

use std::time::{Duration, Instant};

use doorbell_tools::process::{Runner, Stop};

use super::Side;
use super::holder::Holder;

/// The interface at both ends.
pub(crate) const INTERFACE: &str = "v0";
/// Bytes of a full frame without its Ethernet head.
pub(crate) const MTU: u32 = 1500;
/// The switch's own ends, towards each side, and what joins them.
const PORTS: [&str; 2] = ["s1", "s2"];
const BRIDGE: &str = "bridge";
/// The longest time until an interface is up.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the two ends are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wiring {
    /// By one pair of interfaces.
    Direct,
    /// Through a third namespace, where frames can be lost.
    Switched,
}

/// Two hosts, and what is between them.
pub(super) struct VethPair<'r> {
    hosts: [Holder<'r>; 2],
    switch: Option<Holder<'r>>,
}

impl<'r> VethPair<'r> {
    /// Makes the namespaces and waits until the link is up at both ends.
    pub(super) fn lay(runner: &'r Runner, wiring: Wiring) -> Result<Self, Stop> {
        let one = Holder::new(runner, None)?;
        let two = Holder::new(runner, Some(&one))?;
        let switch = match wiring {
            Wiring::Direct => None,
            Wiring::Switched => Some(Holder::new(runner, Some(&one))?),
        };
        let veth = Self {
            hosts: [one, two],
            switch,
        };
        match &veth.switch {
            None => veth.connect()?,
            Some(switch) => veth.connect_through(switch)?,
        }
        for side in Side::BOTH {
            veth.host(side)
                .ip(&format!("address add {}/24 dev {INTERFACE}", side.address()))?;
            veth.host(side).ip(&format!("link set {INTERFACE} up"))?;
        }
        Side::BOTH
            .into_iter()
            .try_for_each(|side| veth.wait_until_up(side))?;
        Ok(veth)
    }

    /// The namespace of a side.
    pub(super) fn host(&self, side: Side) -> &Holder<'r> {
        &self.hosts[side as usize]
    }

    fn connect(&self) -> Result<(), Stop> {
        let [one, two] = &self.hosts;
        one.ip(&format!(
            "link add {INTERFACE} mtu {MTU} type veth peer name {INTERFACE} mtu {MTU} netns {}",
            two.id()
        ))
        .map(drop)
    }

    fn connect_through(&self, switch: &Holder<'r>) -> Result<(), Stop> {
        switch.ip(&format!("link add {BRIDGE} type bridge"))?;
        for (port, host) in PORTS.into_iter().zip(&self.hosts) {
            switch.ip(&format!(
                "link add {port} mtu {MTU} type veth peer name {INTERFACE} mtu {MTU} netns {}",
                host.id()
            ))?;
            switch.ip(&format!("link set {port} master {BRIDGE} up"))?;
        }
        switch.ip(&format!("link set {BRIDGE} up"))?;
        // Whether it can lose anything is checked before anything is measured.
        self.lose(0.0)
    }

    fn wait_until_up(&self, side: Side) -> Result<(), Stop> {
        let begun = Instant::now();
        while !self
            .host(side)
            .ip(&format!("-o link show {INTERFACE} up"))?
            .contains("state UP")
        {
            if begun.elapsed() > PATIENCE {
                return Err(Stop::Failed(format!(
                    "{INTERFACE} did not come up within {PATIENCE:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Drops this percentage of what goes either way, whatever it is; 0 ends it. On a direct way nothing can
    /// be lost.
    pub(super) fn lose(&self, percent: f64) -> Result<(), Stop> {
        let Some(switch) = &self.switch else {
            return Err(Stop::Failed(
                "there is no switch between the two namespaces".to_owned(),
            ));
        };
        switch
            .must("nft", &[&rules(percent)])
            .map(drop)
            .map_err(|stop| match stop {
                Stop::Failed(why) => Stop::Failed(format!("{why}; install the package nftables")),
                stop => stop,
            })
    }
}

/// Returns the rules by which the switch drops what comes in at each port, as one script.
fn rules(percent: f64) -> String {
    let permille = (percent * 10.0).round();
    let mut script = "add table netdev switch\nflush table netdev switch\n".to_owned();
    for port in PORTS {
        script.push_str(&format!(
            "add chain netdev switch {port} {{ type filter hook ingress device \"{port}\" priority 0; }}\n"
        ));
        if permille > 0.0 {
            script.push_str(&format!(
                "add rule netdev switch {port} numgen random mod 1000 < {permille} counter drop\n"
            ));
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_loses_its_share_in_both_directions() {
        assert!(!rules(0.0).contains("drop"), "{}", rules(0.0));
        let lossy = rules(2.5);
        assert!(lossy.contains("flush table netdev switch"), "{lossy}");
        for port in PORTS {
            let rule = format!("{port} numgen random mod 1000 < 25 counter drop");
            assert!(lossy.contains(&rule), "{lossy}");
        }
    }
}
