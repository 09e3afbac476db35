//! Discovery: finds the virtual functions of this machine that this driver knows, and what keeps them from
//! being used, without opening any.

use std::io::ErrorKind;

use doorbell_fabric::discover::{Candidate, Driver};
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::rejected;
use doorbell_packet::capabilities;
use doorbell_vfio::{Claim, Host, PciDevice};

use crate::config::UsnicConfig;
use crate::open::{agent_socket, limit};
use crate::rail::Usnic;
use crate::rail_name::{DEVICE_ADMIN, DEVICE_PF, DEVICES, Object};
use crate::remedies;

/// Finds usnic rails for [`discover`](doorbell_fabric::discover::discover): one candidate for each virtual
/// function. All are used only when named: an open rail has its device alone.
#[derive(Clone, Debug, Default)]
pub struct UsnicDriver {
    /// The configuration with which rails will be opened.
    pub config: UsnicConfig,
}

const REASON: &str = "an open rail has its device alone, and resets it";

impl UsnicDriver {
    /// A candidate for a function, which `bound` may object to.
    fn judge(&self, name: RailName, object: &Object, bound: Result<(), RailError>) -> Candidate {
        let usable = self
            .config
            .check(&name)
            .and_then(|()| self.config.address_of(&name, object))
            .and_then(|address| bound.map(|()| address));
        let address = usable
            .as_ref()
            .ok()
            .map(|address| format!("{}/{}", address.ip, address.prefix));
        let candidate = match usable {
            Ok(_) => Candidate::usable(name, capabilities::<Usnic>(limit(&self.config))),
            Err(error) => rejected(name, error),
        };
        let mut facts = candidate.fact("interface", object.to_string());
        if let Some(address) = address.filter(|_| !object.is_any()) {
            facts = facts.fact("address", address);
        }
        let agent = agent_socket(&self.config, object).filter(|socket| socket.exists());
        if let Some(socket) = agent {
            facts = facts.fact("agent", socket.display().to_string());
        }
        facts.only_when_named(REASON)
    }

    fn of_device(&self, name: RailName, device: &PciDevice) -> Candidate {
        let bound = device.openable(&name);
        let candidate = self.judge(name, &Object::Pci(device.bdf), bound).fact(
            "driver",
            device.driver.clone().unwrap_or_else(|| "none".to_owned()),
        );
        match &device.group {
            Some(group) => candidate.fact("iommu group", group.number.to_string()),
            None => candidate,
        }
    }

    /// The candidate for a modelled function: whether it is there is seen at its socket.
    fn of_model(&self, name: RailName, object: &Object) -> Candidate {
        let is_there = |one: &Object| one.socket().is_some_and(|socket| socket.exists());
        let there = match object.each().iter().any(is_there) {
            true => Ok(()),
            false => Err(absent(&name, object)),
        };
        self.judge(name, object, there)
    }
}

/// Returns why a modelled function is not there.
fn absent(name: &RailName, object: &Object) -> RailError {
    let socket = object.socket().unwrap_or_default();
    let folder = socket.parent().unwrap_or(&socket);
    let seen = match object.is_any() {
        true => std::fs::read_dir(folder).map(drop),
        false => std::fs::symlink_metadata(&socket).map(drop),
    };
    let is_closed = seen.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    let folder = folder.display();
    if is_closed {
        return doorbell_inet::unusable(
            name,
            format!("{folder} is of another user, and this one may not enter it"),
            "run as the user who started the model, or start one of your own in another folder",
        );
    }
    let reason = match object.is_any() {
        true => format!("no process has made a socket of a function in {folder}"),
        false => format!("no process has made the socket {}", socket.display()),
    };
    doorbell_inet::unusable(name, reason, remedies::make_function(object))
}

impl Driver for UsnicDriver {
    fn kind(&self) -> &'static str {
        "usnic"
    }

    /// Physical functions, which mostly are the machine's own network, are no candidates unless named.
    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        // A machine without PCI has none.
        let devices = Host::here().devices().unwrap_or_default();
        let ours = devices.iter().filter(|device| {
            let identity = (device.vendor, device.device);
            DEVICES.contains(&identity) && identity != DEVICE_PF
        });
        ours.map(|device| Ok(self.of_device(format!("usnic:{}", device.bdf).parse()?, device)))
            .collect()
    }

    /// Devices that are there and of another kind, short addresses, and those that are not there.
    fn named(&self, name: &RailName) -> Option<Candidate> {
        let object = match Object::of(name) {
            Ok(object) => object,
            Err(error) => return Some(rejected(name.clone(), error)),
        };
        let Object::Pci(bdf) = object else {
            return Some(self.of_model(name.clone(), &object));
        };
        Some(match Host::here().device(bdf) {
            Ok(device) if DEVICES.contains(&(device.vendor, device.device)) => {
                self.of_device(name.clone(), &device)
            }
            Ok(device) => {
                let is_admin = (device.vendor, device.device) == DEVICE_ADMIN;
                let what = if is_admin {
                    "a stand-alone function of a VIC, which takes its commands over queues that this rail does not support"
                } else {
                    "no function of a VIC"
                };
                Candidate::rejected(
                    name.clone(),
                    format!(
                        "the device is {:04x}:{:04x}, {what}",
                        device.vendor, device.device
                    ),
                    "name one of 1137:00cf, as `doorbell doctor` lists them",
                )
            }
            Err(error) => Candidate::rejected(name.clone(), error.reason(), error.fix()),
        })
    }

    /// The functions of a model, which are seen at their sockets.
    fn members(&self, set: &RailName) -> Vec<Candidate> {
        let Ok(any) = Object::parse(set.object()) else {
            return Vec::new();
        };
        let each = any.each().into_iter().filter(|_| any.is_any());
        let named = each.filter_map(|object| Some((format!("usnic:{object}").parse().ok()?, object)));
        named.map(|(name, object)| self.of_model(name, &object)).collect()
    }

    fn takes_any(&self, set: &RailName) -> bool {
        Object::parse(set.object()).is_ok_and(|object| object.is_any())
    }

    /// A modelled function is claimed to find out, and given back: no table shows its client.
    fn holder(&self, rail: &RailName) -> Option<String> {
        match Object::parse(rail.object()).ok()? {
            Object::Pci(bdf) => Host::here().holder(bdf),
            object => {
                let claimed = Claim::connect(&object.socket()?);
                let is_taken = claimed.is_err_and(|error| error.is_taken());
                is_taken.then(|| "another process".to_owned())
            }
        }
    }

    fn more(&self, set: &RailName, count: usize) -> Option<String> {
        match Object::parse(set.object()) {
            // Where no model runs, that is stated, with the command that starts it.
            Ok(any) if any.is_any() && any.each().is_empty() => None,
            Ok(Object::Model { folder, .. }) => Some(format!(
                "`doorbell-lab model vic --dir {} --vfs {count}` has {count} functions",
                remedies::quoted(&folder)
            )),
            _ => Some(format!(
                "a usNIC policy of {count} in the server's management (CIMC, UCS Manager) makes as many"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::discover::discover;

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        for (text, words) in [
            ("usnic:0000:ff:1f.7", ["0000:ff:1f.7", ""]),
            ("usnic:eth0", ["no PCI address", "doctor"]),
            (
                "usnic:model/nosuch/vf0",
                ["nosuch/vf0.sock", "doorbell-lab model vic"],
            ),
        ] {
            let name: RailName = text.parse().unwrap();
            let found = discover(&[&UsnicDriver::default()], std::slice::from_ref(&name));
            let error = found.named(&name).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}
