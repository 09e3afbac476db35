//! From a library's name to an interface.

use doorbell_fabric::ni::layout::PtlNiLimits;
use doorbell_fabric::ni::{ANY, Kind, NiLimits};

use crate::error::PortalsError;
use crate::ni::PortalsNi;
use crate::sys::{IFACE_DEFAULT, Library, NI_LOGICAL, NI_MATCHING, NI_NO_MATCHING, NI_PHYSICAL};

/// The library names that are tried when none is given.
pub const LIBRARIES: &[&str] = &["libportals.so.4", "libportals.so"];

/// What an interface is opened with.
///
/// ```
/// use doorbell_portals::Settings;
/// let settings = Settings {
///     library: Some("libnosuch.so".to_owned()),
///     ..Settings::default()
/// };
/// let error = settings.open().unwrap_err();
/// assert!(error.to_string().starts_with("libnosuch.so cannot be used as a Portals library"));
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// The library's name or file; `None`: [`LIBRARIES`], in order.
    pub library: Option<String>,
    /// Which interface of the library; `None`: its default.
    pub interface: Option<u32>,
    /// Match lists or not, ranks or physical processes.
    pub kind: Kind,
    /// The requested process id; `None`: any.
    pub pid: Option<u32>,
    /// The requested limits; [`Ni::limits`](doorbell_fabric::ni::Ni::limits) returns the granted ones.
    pub limits: NiLimits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            library: None,
            interface: None,
            kind: Kind::MATCHING_LOGICAL,
            pid: None,
            limits: NiLimits::default(),
        }
    }
}

impl Settings {
    /// Loads the library, initialises it, and opens the interface. An interface of ranks needs
    /// [`PortalsNi::set_map`] before anything else.
    ///
    /// # Errors
    /// [`PortalsError`], which includes what to do.
    pub fn open(&self) -> Result<PortalsNi, PortalsError> {
        let library = self.load()?;
        let failed = |call| {
            let name = library.name.clone();
            move |code| PortalsError::call(call, &name, code)
        };
        library.init().map_err(failed("PtlInit"))?;
        let matching = if self.kind.matching {
            NI_MATCHING
        } else {
            NI_NO_MATCHING
        };
        let logical = if self.kind.logical {
            NI_LOGICAL
        } else {
            NI_PHYSICAL
        };
        let interface = self.interface.unwrap_or(IFACE_DEFAULT);
        // PTL_PID_ANY is a process id of 16 bits.
        let pid = self.pid.unwrap_or(doorbell_fabric::ni::PID_ANY);
        let desired = PtlNiLimits::from(&self.limits);
        let (handle, granted) = library
            .ni_init(interface, matching | logical, pid, &desired)
            .map_err(failed("PtlNIInit"))?;
        let uid = library.uid(handle).unwrap_or(ANY);
        Ok(PortalsNi::new(
            library,
            handle,
            self.kind,
            NiLimits::from(&granted),
            uid,
        ))
    }

    fn load(&self) -> Result<Library, PortalsError> {
        if let Some(name) = &self.library {
            return Library::load(name);
        }
        let mut last = PortalsError::Library {
            name: "libportals".to_owned(),
            reason: "no library name is configured".to_owned(),
        };
        for name in LIBRARIES {
            match Library::load(name) {
                Ok(library) => return Ok(library),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Whether this machine has a Portals library that can be used: its name. Loads it, and initialises nothing.
///
/// # Errors
/// [`PortalsError::Library`].
pub fn available(library: Option<&str>) -> Result<String, PortalsError> {
    let settings = Settings {
        library: library.map(str::to_owned),
        ..Settings::default()
    };
    settings.load().map(|library| library.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_here_or_another_one_is_refused_with_the_reason() {
        for (name, word) in [
            ("libnosuch.so.9", "libnosuch.so.9"),
            ("libc.so.6", "it has no PtlInit"),
            ("a\0b", "zero byte"),
        ] {
            let error = available(Some(name)).unwrap_err();
            assert_eq!(error.code(), "portals.library");
            assert_eq!(error.exit().number(), 3);
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn an_interface_may_move_to_another_thread() {
        fn is_send<T: Send>() {}
        is_send::<PortalsNi>();
    }

    #[test]
    fn a_failed_call_is_reported_by_the_name_of_its_code() {
        let error = PortalsError::call("PtlNIInit", "libportals.so", 11);
        let text = error.to_string();
        assert!(
            text.contains("PTL_PID_IN_USE") && text.contains("request any"),
            "{text}"
        );
        let text = PortalsError::call("PtlNIInit", "libportals.so", 4711).to_string();
        assert!(text.contains("unknown code"), "{text}");
    }
}
