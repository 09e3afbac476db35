//! Nodes, services and addresses of getinfo.

use std::ffi::{CStr, CString, c_char};

use libfabric_sys::*;

use super::rules::Clash;

/// The length of an address of ours.
pub(crate) const ADDRESS_LENGTH: usize = 56;

/// The source address of an entry before there is an endpoint: our format, and no name in it.
pub(crate) const UNBOUND: [u8; ADDRESS_LENGTH] = {
    let mut bytes = [0; ADDRESS_LENGTH];
    bytes[0] = b'd';
    bytes[1] = b'b';
    bytes[2] = 1;
    bytes
};

/// Whether a service is a port by its number.
fn is_port(service: &CStr) -> bool {
    service.to_str().is_ok_and(|text| text.parse::<u16>().is_ok())
}

/// The place that a caller names: its own, or that of a peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    node: Option<CString>,
    service: Option<CString>,
    is_source: bool,
}

impl Place {
    /// Reads the arguments.
    ///
    /// # Safety
    /// Both are null or texts.
    pub(crate) unsafe fn read(node: *const c_char, service: *const c_char, flags: u64) -> Self {
        // SAFETY: not null, so a text that ends with a zero byte.
        let text =
            |from: *const c_char| (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_owned());
        Self {
            node: text(node),
            service: text(service),
            is_source: flags & FI_SOURCE != 0,
        }
    }

    /// Checks whether the place has an address. Ours are found through the endpoints that have them, and not
    /// by the name of a host. A port alone names no place, and is passed by clients that exchange addresses.
    pub(crate) fn check(&self) -> Result<(), Clash> {
        let possible = "no name: exchange the addresses of fi_getname";
        match (&self.node, &self.service) {
            (None, None) => Ok(()),
            (None, Some(service)) if is_port(service) => Ok(()),
            (Some(node), _) => Err(Clash::new("node", node.to_string_lossy(), possible)),
            (None, Some(service)) => Err(Clash::new("service", service.to_string_lossy(), possible)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_let_through_and_a_host_is_not() {
        let check = |node: Option<&CStr>, service: Option<&CStr>| {
            // SAFETY: null or texts.
            let place = unsafe {
                Place::read(
                    node.map_or(std::ptr::null(), CStr::as_ptr),
                    service.map_or(std::ptr::null(), CStr::as_ptr),
                    0,
                )
            };
            place.check().is_ok()
        };
        assert!(check(None, None) && check(None, Some(c"9228")));
        assert!(!check(None, Some(c"http")) && !check(Some(c"127.0.0.1"), Some(c"9228")));
    }
}
