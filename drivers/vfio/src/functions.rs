//! The virtual functions of a host as a supply of devices for several processes: who has one, and how there
//! are more of them.

use crate::bdf::Bdf;
use crate::discover::Role;
use crate::holder;
use crate::host::{Host, names};

impl Host {
    /// Describes the processes that have a device's file open; `None` if none is visible, of another user or
    /// another container, or no file belongs to the device.
    #[must_use]
    pub fn holder(&self, bdf: Bdf) -> Option<String> {
        let group = self.device(bdf).ok()?.group;
        let group = group.map(|group| self.path(&format!("dev/vfio/{}", group.number)));
        // The device's own file, where the kernel has iommufd.
        let own = names(&self.folder(bdf).join("vfio-dev")).unwrap_or_default();
        let own = own
            .iter()
            .map(|name| self.path(&format!("dev/vfio/devices/{name}")));
        group
            .into_iter()
            .chain(own)
            .find_map(|file| holder::of_file(self, &file))
    }

    /// Returns the command by which a physical function gets `count` virtual ones, as the beginning of a
    /// sentence: of the card whose virtual functions are `wanted`, or else of one of this vendor that has
    /// none. `None` where no card can have as many as it has now, and one more.
    #[must_use]
    pub fn more_functions(&self, vendor: u16, wanted: &dyn Fn(Bdf) -> bool, count: usize) -> Option<String> {
        let devices = self.devices().unwrap_or_default();
        let cards = devices.iter().filter_map(|device| match &device.role {
            Role::Physical { most, virtuals } if device.vendor == vendor && device.is_network() => {
                Some((device.bdf, *most as usize, virtuals))
            }
            _ => None,
        });
        let cards = cards.filter(|(_, most, virtuals)| virtuals.len() < *most);
        let is_theirs = |virtuals: &[Bdf]| virtuals.iter().any(|one| wanted(*one));
        let (card, most, virtuals) = cards
            .clone()
            .find(|(_, _, virtuals)| is_theirs(virtuals))
            .or_else(|| cards.clone().find(|(_, _, virtuals)| virtuals.is_empty()))?;
        let file = format!("/sys/bus/pci/devices/{card}/sriov_numvfs");
        // The kernel changes the number only from or to 0.
        let before = match virtuals.is_empty() {
            true => String::new(),
            false => format!("echo 0 > {file} && "),
        };
        let count = count.min(most);
        let is_most = if count == most { ", which is its most" } else { "" };
        Some(format!(
            "`{before}echo {count} > {file}` gives the card {count} virtual functions{is_most}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;

    const FILE: &str = "/sys/bus/pci/devices/0000:01:00.0/sriov_numvfs";

    #[test]
    fn a_function_s_holder_is_the_process_with_its_group_or_its_own_file() {
        let tree = Tree::new();
        tree.igb_with_two_virtual_functions();
        let of = |bdf: &str| tree.host().holder(bdf.parse().unwrap());
        assert_eq!((of("0000:01:10.0"), of("0000:01:10.4")), (None, None));
        tree.file("proc/77/comm", "rank");
        let at = |file: &str| tree.host().path(file).display().to_string();
        tree.link("proc/77/fd/3", &at("dev/vfio/7"));
        assert_eq!(of("0000:01:10.0").as_deref(), Some("process 77 (rank)"));
        assert_eq!(of("0000:01:10.2"), None);
        tree.file("sys/bus/pci/devices/0000:01:10.2/vfio-dev/vfio4/dev", "511:4");
        tree.link("proc/77/fd/4", &at("dev/vfio/devices/vfio4"));
        assert_eq!(of("0000:01:10.2").as_deref(), Some("process 77 (rank)"));
    }

    #[test]
    fn a_card_gets_more_functions_up_to_its_most() {
        let tree = Tree::new();
        tree.igb_with_two_virtual_functions();
        let host = tree.host();
        let more = |wanted: &dyn Fn(Bdf) -> bool, count| host.more_functions(0x8086, wanted, count);
        assert_eq!(
            more(&|_| true, 4).unwrap(),
            format!("`echo 0 > {FILE} && echo 4 > {FILE}` gives the card 4 virtual functions")
        );
        let most = more(&|_| true, 9).unwrap();
        assert!(
            most.contains("echo 7 > ") && most.ends_with("which is its most"),
            "{most}"
        );
        // Of a card whose functions are not wanted nothing is changed, nor of another vendor's.
        assert_eq!(more(&|_| false, 4), None);
        assert_eq!(host.more_functions(0x1137, &|_| true, 4), None);
        tree.file("sys/bus/pci/devices/0000:01:00.0/sriov_totalvfs", "2");
        assert_eq!(more(&|_| true, 4), None);
    }

    #[test]
    fn a_card_without_functions_gets_its_first_ones() {
        let tree = Tree::new();
        tree.device("0000:01:00.0", (0x8086, 0x10c9, 0x020000));
        tree.file("sys/bus/pci/devices/0000:01:00.0/sriov_totalvfs", "7");
        assert_eq!(
            tree.host().more_functions(0x8086, &|_| true, 2).unwrap(),
            format!("`echo 2 > {FILE}` gives the card 2 virtual functions")
        );
    }
}
