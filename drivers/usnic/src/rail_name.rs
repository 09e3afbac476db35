//! The meaning of a rail's name: a function of this machine, or one that a process models; and the contents
//! of its BARs.

use std::fmt;
use std::path::PathBuf;

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::unusable;
use doorbell_vfio::{Bdf, Claim, Error, RegionIndex, Space};

use crate::errno::Fault;
use crate::flow_steering::Trouble;
use crate::table::{BAR_LEAST, BadTable, TABLE_MOST, Table};

/// The ordinary vNIC of a VIC: also the physical function of its usNIC functions.
pub const DEVICE_PF: (u16, u16) = (0x1137, 0x0043);
/// The usNIC virtual function, the older SR-IOV function, and the ordinary vNIC: what a rail is opened over.
pub const DEVICES: [(u16, u16); 3] = [(0x1137, 0x00cf), (0x1137, 0x0071), DEVICE_PF];
/// The stand-alone SR-IOV function of newer adapters: it takes commands over queues of its own, which nothing
/// here speaks.
pub const DEVICE_ADMIN: (u16, u16) = (0x1137, 0x02b7);

/// Whether frames come to a function of this kind by filters, as entries of a type of their own.
pub(crate) fn is_usnic(device: (u16, u16)) -> bool {
    device == DEVICES[0]
}

/// The function that a rail drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A function of this machine.
    Pci(Bdf),
    /// `model/DIR/vf0`: a process models it, and listens at `DIR/vf0.sock`. `model/DIR/vf*` is any virtual
    /// one that is free.
    Model {
        /// The folder of sockets.
        folder: PathBuf,
        /// `pf`, or `vf` and a number, or `vf*`: any that is free.
        function: String,
    },
}

const MODEL: &str = "model/";
/// Any virtual function of a model.
const ANY: &str = "vf*";

impl Object {
    /// Parses the object of a rail's name, or an agent's argument.
    ///
    /// # Errors
    /// Why it is neither, as a part of a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix(MODEL) else {
            return text.parse().map(Self::Pci).map_err(|_| match text {
                "" => "its name has no function behind the kind".to_owned(),
                _ => format!("`{text}` is no PCI address, and does not begin with `{MODEL}`"),
            });
        };
        let wrong =
            || format!("`{text}` names no function of a model: model/DIR/vf0, model/DIR/vf* or model/DIR/pf");
        let (folder, function) = rest.rsplit_once('/').ok_or_else(wrong)?;
        let number = function.strip_prefix("vf").map(str::parse::<u16>);
        let is_known = ["pf", ANY].contains(&function) || matches!(number, Some(Ok(_)));
        if folder.is_empty() || !is_known {
            return Err(wrong());
        }
        Ok(Self::Model {
            folder: folder.into(),
            function: function.to_owned(),
        })
    }

    /// The object of a rail's name.
    pub(crate) fn of(name: &RailName) -> Result<Self, RailError> {
        Self::parse(name.object()).map_err(|reason| {
            unusable(
                name,
                reason,
                "name the rail as usnic:0000:3b:00.1, or usnic:model/DIR/vf0 over `doorbell-lab model vic --dir DIR`; \
                 `doorbell doctor` lists the functions of this machine",
            )
        })
    }

    /// The socket of a modelled function; `None` for one of this machine.
    #[must_use]
    pub fn socket(&self) -> Option<PathBuf> {
        match self {
            Self::Pci(_) => None,
            Self::Model { folder, function } => Some(folder.join(format!("{function}.sock"))),
        }
    }

    /// Whether it leaves open which function of a model is meant.
    #[must_use]
    pub fn is_any(&self) -> bool {
        matches!(self, Self::Model { function, .. } if function == ANY)
    }

    /// All that may be meant, by their numbers: those whose sockets are there, where it is any; else itself.
    #[must_use]
    pub fn each(&self) -> Vec<Self> {
        let Self::Model { folder, function } = self else {
            return vec![self.clone()];
        };
        if function != ANY {
            return vec![self.clone()];
        }
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let number = |name: &std::ffi::OsStr| {
            let name = name.to_str()?.strip_prefix("vf")?.strip_suffix(".sock")?;
            name.parse::<u16>().ok()
        };
        let mut numbers: Vec<u16> = entries.filter_map(|entry| number(&entry.file_name())).collect();
        numbers.sort_unstable();
        numbers
            .into_iter()
            .map(|number| Self::Model {
                folder: folder.clone(),
                function: format!("vf{number}"),
            })
            .collect()
    }

    /// The number by which the physical function's firmware knows it: on PCI, the device and function number
    /// less one.
    #[must_use]
    pub fn index(&self) -> u32 {
        match self {
            Self::Pci(bdf) => (u32::from(bdf.device()) << 3 | u32::from(bdf.function())).saturating_sub(1),
            Self::Model { function, .. } => function
                .strip_prefix("vf")
                .and_then(|number| number.parse().ok())
                .unwrap_or(0),
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(bdf) => bdf.fmt(out),
            Self::Model { folder, function } => write!(out, "{MODEL}{}/{function}", folder.display()),
        }
    }
}

/// Why the BARs contain nothing that can be used.
#[derive(Debug)]
pub(crate) enum BadResources {
    Table(BadTable),
    Device(Error),
}

impl From<Error> for BadResources {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

impl BadResources {
    pub(crate) fn into_trouble(self) -> Trouble {
        match self {
            Self::Table(BadTable::Gone) => Trouble::Fault(Fault::Gone),
            Self::Table(bad) => Trouble::agent(bad.to_string(), bad.fix()),
            Self::Device(error) => error.into(),
        }
    }
}

/// The BARs of a device, by their numbers.
pub(crate) type Spaces = [Option<Space>; 6];

/// Reads the resource table, and reaches for the BARs.
pub(crate) fn read(claim: &Claim) -> Result<(Table, Spaces), BadResources> {
    let mut spaces: Spaces = Default::default();
    let mut lengths = [0; 6];
    for number in 0..6u8 {
        let at = usize::from(number);
        let index = RegionIndex::bar(number);
        lengths[at] = match index.map(|index| claim.device().region(index)) {
            Some(info) => info?.length,
            None => 0,
        };
        if lengths[at] > 0 {
            spaces[at] = Some(claim.space(number)?);
        }
    }
    let Some(first) = spaces[0].as_ref().filter(|_| lengths[0] >= BAR_LEAST as u64) else {
        return Err(BadResources::Table(BadTable::Short(lengths[0])));
    };
    let most = usize::try_from(lengths[0]).unwrap_or(TABLE_MOST).min(TABLE_MOST) & !3;
    let mut bytes = Vec::with_capacity(most);
    while bytes.len() < most {
        bytes.extend(first.read32(bytes.len() as u64)?.to_le_bytes());
        // Reading on is of no use behind the end of the table, nor behind a header that is none.
        if bytes.len() == BAR_LEAST && Table::read(&bytes, &lengths) != Err(BadTable::Endless) {
            break;
        }
    }
    let table = Table::read(&bytes, &lengths).map_err(BadResources::Table)?;
    Ok((table, spaces))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_functions_of_this_machine_or_of_a_model() {
        let of = |text: &str| Object::parse(text);
        assert_eq!(
            of("0000:3b:00.2").unwrap().index(),
            1,
            "device and function number less one"
        );
        assert_eq!(of("0000:3b:02.0").unwrap().index(), 15);
        let model = of("model//tmp/a/b/vf12").unwrap();
        assert_eq!(
            (model.index(), model.to_string().as_str()),
            (12, "model//tmp/a/b/vf12")
        );
        assert_eq!(model.socket().unwrap(), PathBuf::from("/tmp/a/b/vf12.sock"));
        assert_eq!(
            of("model/D/pf").unwrap().socket().unwrap(),
            PathBuf::from("D/pf.sock")
        );
        for bad in [
            "",
            "eth0",
            "model/",
            "model/vf0",
            "model/D/",
            "model/D/vf",
            "model/D/vfx",
            "model/D/vf-1",
            "model//vf0",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
        let bare: RailName = "usnic".parse().unwrap();
        let said = Object::of(&bare).unwrap_err().to_string();
        assert!(
            said.contains("its name has no function behind the kind; name the rail as usnic:0000:3b:00.1"),
            "{said}"
        );
        let name: RailName = "usnic:eth0".parse().unwrap();
        let said = Object::of(&name).unwrap_err().to_string();
        assert!(
            said.contains("no PCI address") && said.contains("model/DIR/vf0"),
            "{said}"
        );
    }

    #[test]
    fn any_function_of_a_model_is_each_whose_socket_is_there() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "vf10.sock",
            "vf2.sock",
            "vf0.sock",
            "pf.sock",
            "agent.sock",
            "vfx.sock",
            "vf1",
        ] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let of =
            |function: &str| Object::parse(&format!("model/{}/{function}", folder.path().display())).unwrap();
        let any = of("vf*");
        assert!(any.is_any() && !of("vf2").is_any());
        assert_eq!(any.each(), ["vf0", "vf2", "vf10"].map(of));
        assert_eq!(of("vf7").each(), [of("vf7")]);
        assert!(
            Object::parse("model/no-such-folder-here/vf*")
                .unwrap()
                .each()
                .is_empty()
        );
    }
}
