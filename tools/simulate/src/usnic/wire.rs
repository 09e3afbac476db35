//! The wire between two adapters: a veth pair in a network namespace that has nothing else.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The names of its two ends.
pub(super) const ENDS: [&str; 2] = ["end0", "end1"];
/// The longest packets that pass.
const MTU: usize = 9000;

/// A wire. It goes with its namespace when it is dropped.
#[derive(Debug)]
pub(super) struct Wire {
    name: String,
}

impl Wire {
    /// Lays one; why not, where that is not possible.
    pub(super) fn lay() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".to_owned());
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("doorbell-usnic-{}-{number}", std::process::id());
        ip(&format!("netns add {name}")).map_err(|why| format!("no network namespaces here: {why}"))?;
        let wire = Self { name };
        // No unsolicited frames: the kernel must not send any of its own.
        wire.inside(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))?
            .map_err(|why| format!("turn off IPv6: {why}"))?;
        let [one, other] = ENDS;
        let name = &wire.name;
        ip(&format!(
            "-n {name} link add {one} mtu {MTU} type veth peer name {other} mtu {MTU}"
        ))?;
        for end in ENDS {
            ip(&format!("-n {name} link set {end} up"))?;
        }
        Ok(wire)
    }

    /// Does something in the wire's namespace.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, String> {
        let enter = || -> Result<T, String> {
            let file = File::open(format!("/var/run/netns/{}", self.name)).map_err(|why| why.to_string())?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|why| format!("enter {}: {why}", self.name))?;
            Ok(work())
        };
        let ended = std::thread::scope(|scope| scope.spawn(enter).join());
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // What stays is named with a dead process's id.
        let _ = ip(&format!("netns del {}", self.name));
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("ip {arguments}: {}", said.trim()))
        }
        Err(error) => Err(format!("package iproute2: ip: {error}")),
    }
}
