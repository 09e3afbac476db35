//! Names that mean no rail here: why, and which name was meant.

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_fabric::nearest::nearest;
use doorbell_inet::unusable;

use crate::name::PortName;
use crate::ports::Tree;

/// Names that are listed where none is near.
const NAMES_MOST: usize = 4;

/// Returns why this is the name of no rail of this machine, with the nearest name that is; `None` for a rail
/// of a port that is there, whether it can be used or not. Loads nothing.
#[must_use]
pub fn name_error(tree: &Tree, name: &RailName) -> Option<RailError> {
    let ports = tree.ports();
    let wanted = match PortName::of(name) {
        Ok(wanted) => wanted,
        Err(RailError::Unusable { reason, remedy, .. }) => {
            let remedy = meant(tree, &ports, name).unwrap_or(remedy);
            return Some(unusable(name, reason, remedy));
        }
        Err(error) => return Some(error),
    };
    if ports.is_empty() {
        return Some(no_devices(name));
    }
    if ports.contains(&(wanted.device.clone(), wanted.port)) {
        return None;
    }
    let reason = if tree.devices().contains(&wanted.device) {
        let count = tree.ports_of(&wanted.device).len();
        let noun = if count == 1 { "port" } else { "ports" };
        format!("{} has {count} {noun}", wanted.device)
    } else if port_on(tree, &ports, &wanted.device).is_some() {
        format!("{} is a network interface, and no device", wanted.device)
    } else {
        format!("the kernel has no RDMA device {}", wanted.device)
    };
    let remedy = meant(tree, &ports, name).unwrap_or_else(|| "`doorbell info` lists the devices".to_owned());
    Some(unusable(name, reason, remedy))
}

/// The refusal on a machine without a device.
pub(crate) fn no_devices(name: &RailName) -> RailError {
    unusable(
        name,
        "the kernel has no RDMA device here (/sys/class/infiniband_verbs is empty or not there)",
        "load the driver of the card and ib_uverbs, or use udp; for tests without a card: `modprobe rdma_rxe`, then \
         `rdma link add rxe0 type rxe netdev eth0`",
    )
}

/// The port that stands on a network interface.
fn port_on<'a>(tree: &Tree, ports: &'a [(String, u8)], interface: &str) -> Option<&'a (String, u8)> {
    let stands = |(device, port): &&(String, u8)| tree.interface(device, *port).as_deref() == Some(interface);
    ports.iter().find(stands)
}

/// What to name instead: the port on the interface that was named, the nearest name, or the names that there
/// are.
fn meant(tree: &Tree, ports: &[(String, u8)], name: &RailName) -> Option<String> {
    let first = name.object().split(':').next().unwrap_or("");
    if let Some((device, port)) = port_on(tree, ports, first) {
        return Some(format!("the port on {first} is verbs:{device}:{port}"));
    }
    let names: Vec<String> = ports
        .iter()
        .map(|(device, port)| format!("verbs:{device}:{port}"))
        .collect();
    let datagrams: Vec<String> = names.iter().map(|name| format!("{name}:ud")).collect();
    let all = || names.iter().chain(&datagrams).map(String::as_str);
    if let Some(near) = nearest(name.as_str(), all()) {
        return Some(format!("the nearest name is {near}"));
    }
    match names.get(..NAMES_MOST) {
        None if names.is_empty() => None,
        Some(few) if few.len() < names.len() => Some(format!(
            "name one of {}; `doorbell info` lists all",
            few.join(", ")
        )),
        _ => Some(format!("name one of {}", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::fake::Fake;

    fn said(fake: &Fake, text: &str) -> String {
        let refused = name_error(&fake.tree(), &text.parse().unwrap());
        refused.unwrap_or_else(|| panic!("{text}")).to_string()
    }

    #[test]
    fn names_of_ports_are_refused_by_nothing() {
        let fake = Fake::rxe("eth0");
        for name in ["verbs:rxe0:1", "verbs:rxe0:1:ud"] {
            assert!(name_error(&fake.tree(), &name.parse().unwrap()).is_none());
        }
    }

    #[test]
    fn each_bad_name_gets_one_sentence_with_the_nearest_that_is_valid() {
        let fake = Fake::rxe("eth0");
        for (text, word, near) in [
            ("verbs", "names no device", "name one of verbs:rxe0:1"),
            ("verbs:", "names no device", "name one of verbs:rxe0:1"),
            ("verbs:nosuch", "names no port", "name one of verbs:rxe0:1"),
            (
                "verbs:nosuch:1:ud",
                "no RDMA device nosuch",
                "the nearest name is verbs:rxe0:1:ud",
            ),
            ("verbs:rxe0", "names no port", "the nearest name is verbs:rxe0:1"),
            (
                "verbs:rxe0:0",
                "counted from 1",
                "the nearest name is verbs:rxe0:1",
            ),
            (
                "verbs:rxe0:2",
                "rxe0 has 1 port;",
                "the nearest name is verbs:rxe0:1",
            ),
            (
                "verbs:rxe0:2:ud",
                "rxe0 has 1 port;",
                "the nearest name is verbs:rxe0:1:ud",
            ),
            (
                "verbs:rxe0:1:rc2",
                "is not `ud`",
                "the nearest name is verbs:rxe0:1",
            ),
            (
                "verbs:rex0:1:ud",
                "no RDMA device rex0",
                "the nearest name is verbs:rxe0:1:ud",
            ),
            ("verbs:eth0", "names no port", "the port on eth0 is verbs:rxe0:1"),
            (
                "verbs:eth0:1:ud",
                "is a network interface",
                "the port on eth0 is verbs:rxe0:1",
            ),
        ] {
            let said = said(&fake, text);
            assert!(said.contains(word) && said.contains(near), "{text}: {said}");
            assert!(!said.contains('\n') && !said.ends_with('.'), "{said}");
        }
    }

    #[test]
    fn many_names_are_cut_and_none_are_said_to_be_none() {
        let fake = Fake::new();
        for number in 0..6 {
            fake.device(&format!("mlx5_{number}"), number, &[1, 2]);
        }
        let all = said(&fake, "verbs:elsewhere:7:ud");
        assert!(
            all.contains("verbs:mlx5_0:1, ") && all.contains("lists all"),
            "{all}"
        );
        assert!(said(&fake, "verbs:mlx5_0:3").contains("mlx5_0 has 2 ports"));
        let none = Fake::new();
        assert!(said(&none, "verbs:rxe0:1:ud").contains("no RDMA device here"));
        assert!(said(&none, "verbs:rxe0").contains("name verbs:DEVICE:PORT"));
    }
}
