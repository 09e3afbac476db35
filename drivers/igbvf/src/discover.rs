//! Discovery: the virtual functions of this machine that this driver knows, with what prevents their use,
//! without opening any.

use doorbell_fabric::discover::{Candidate, Driver};
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::rejected;
use doorbell_packet::capabilities;
use doorbell_vfio::{Bdf, Host, PciDevice};

use crate::config::IgbvfConfig;
use crate::open::{bdf_of, lengths};
use crate::rail::Igbvf;

/// Vendor and device of the functions that this driver knows: those of the 82576, and those of the I350,
/// which Linux drives alike and which were never tried here.
pub const DEVICES: [(u16, u16); 2] = [(0x8086, 0x10ca), (0x8086, 0x1520)];

/// Finds igbvf rails for [`discover`](doorbell_fabric::discover::discover): one candidate for each virtual
/// function. All are used only when named: an open rail has its device alone.
#[derive(Clone, Debug, Default)]
pub struct IgbvfDriver {
    /// The configuration with which rails will be opened.
    pub config: IgbvfConfig,
}

const REASON: &str = "an open rail has its device alone, and resets it";

impl IgbvfDriver {
    fn judge(&self, name: RailName, device: &PciDevice) -> Candidate {
        let usable = self
            .config
            .check(&name)
            .and_then(|()| self.config.address_of(&name, device.bdf))
            .and_then(|address| device.openable(&name).map(|()| address));
        let address = usable
            .as_ref()
            .ok()
            .map(|address| format!("{}/{}", address.ip, address.prefix));
        let candidate = match usable {
            Ok(address) => Candidate::usable(name, capabilities::<Igbvf>(lengths(&address, &self.config).1)),
            Err(error) => rejected(name, error),
        };
        let mut facts = candidate.fact("interface", device.bdf.to_string()).fact(
            "driver",
            device.driver.clone().unwrap_or_else(|| "none".to_owned()),
        );
        if let Some(address) = address {
            facts = facts.fact("address", address);
        }
        if let Some(group) = &device.group {
            facts = facts.fact("iommu group", group.number.to_string());
        }
        facts.only_when_named(REASON)
    }
}

impl Driver for IgbvfDriver {
    fn kind(&self) -> &'static str {
        "igbvf"
    }

    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        // A machine without PCI has none.
        let devices = Host::here().devices().unwrap_or_default();
        let ours = devices
            .iter()
            .filter(|device| DEVICES.contains(&(device.vendor, device.device)));
        ours.map(|device| Ok(self.judge(format!("igbvf:{}", device.bdf).parse()?, device)))
            .collect()
    }

    /// Devices that are there and of another kind, short addresses, and those that are not there.
    fn named(&self, name: &RailName) -> Option<Candidate> {
        let bdf: Bdf = match bdf_of(name) {
            Ok(bdf) => bdf,
            Err(error) => return Some(rejected(name.clone(), error)),
        };
        Some(match Host::here().device(bdf) {
            Ok(device) if DEVICES.contains(&(device.vendor, device.device)) => {
                self.judge(name.clone(), &device)
            }
            Ok(device) => Candidate::rejected(
                name.clone(),
                format!(
                    "the device is {:04x}:{:04x}, and no virtual function of an 82576 or I350",
                    device.vendor, device.device
                ),
                "name one of 8086:10ca, as `doorbell doctor` lists them",
            ),
            Err(error) => Candidate::rejected(name.clone(), error.reason(), error.fix()),
        })
    }

    fn holder(&self, rail: &RailName) -> Option<String> {
        Host::here().holder(bdf_of(rail).ok()?)
    }

    fn more(&self, set: &RailName, count: usize) -> Option<String> {
        let is_wanted = |bdf: Bdf| {
            let rail = format!("igbvf:{bdf}").parse();
            rail.is_ok_and(|rail| set.contains(&rail))
        };
        Host::here().more_functions(DEVICES[0].0, &is_wanted, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::discover::discover;

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let name: RailName = "igbvf:0000:ff:1f.7".parse().unwrap();
        let found = discover(&[&IgbvfDriver::default()], std::slice::from_ref(&name));
        let error = found.named(&name).unwrap_err().to_string();
        assert!(error.contains("0000:ff:1f.7"), "{error}");
        let name: RailName = "igbvf:eth0".parse().unwrap();
        let found = discover(&[&IgbvfDriver::default()], std::slice::from_ref(&name));
        let error = found.named(&name).unwrap_err().to_string();
        assert!(
            error.contains("no PCI address") && error.contains("doctor"),
            "{error}"
        );
    }
}
