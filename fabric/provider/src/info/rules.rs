//! The rules by which hints are judged.
#![forbid(unsafe_code)]

use doorbell_fabric::shown::shown;
use libfabric_sys::*;

use super::answer::offered_bits;
use super::attributes::{Attributes, Hints, RULES};
use super::offer::{Entry, FABRIC, PROVIDER};

/// How a hint is judged against what is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Judge {
    /// Every hint matches.
    Free,
    /// The hint's bits, of those in the mask, are among the offered ones. The names are for the log.
    Bits(u64, &'static [(u64, &'static str)]),
    /// The hint is at most what is offered.
    Most,
    /// The same, where the hints have one of these capabilities.
    MostWith(u64),
    /// The hint is 0, or one of these numbers.
    OneOf(&'static [u64]),
    /// The hint offers what registrations need, or is one of the two old modes.
    MrMode,
}

/// One field, and how a hint of it is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// The field, as in C.
    pub(crate) hint: &'static str,
    /// Reads the field.
    pub(crate) of: fn(&Attributes) -> u64,
    /// Writes the field.
    #[cfg(test)]
    pub(crate) set: fn(&mut Attributes, u64),
    /// How a hint of the field is judged.
    pub(crate) judge: Judge,
}

/// A hint that is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clash {
    /// The field of the hint, as in C.
    pub(crate) hint: &'static str,
    /// What the hint wants.
    pub(crate) wanted: String,
    /// What is possible.
    pub(crate) possible: String,
}

impl Clash {
    pub(crate) fn new(hint: &'static str, wanted: impl Into<String>, possible: impl Into<String>) -> Self {
        Self {
            hint,
            wanted: wanted.into(),
            possible: possible.into(),
        }
    }
}

impl Rule {
    fn check(&self, hints: &Attributes, most: &Attributes, level: Level) -> Result<(), Clash> {
        let (wanted, possible) = ((self.of)(hints), (self.of)(most));
        let is_met = match self.judge {
            Judge::Free => true,
            Judge::Bits(mask, names) => {
                let missing = wanted & mask & !possible;
                if missing == 0 {
                    return Ok(());
                }
                return Err(Clash::new(
                    self.hint,
                    listed(missing, names),
                    listed(possible, names),
                ));
            }
            Judge::Most => wanted <= possible,
            Judge::MostWith(caps) => hints.info.caps & caps == 0 || wanted <= possible,
            Judge::OneOf(numbers) => {
                if wanted == 0 || numbers.contains(&wanted) {
                    return Ok(());
                }
                return Err(Clash::new(
                    self.hint,
                    wanted.to_string(),
                    format!("one of {numbers:?}"),
                ));
            }
            Judge::MrMode => return mr_mode(self.hint, wanted, level),
        };
        if is_met {
            return Ok(());
        }
        Err(Clash::new(
            self.hint,
            wanted.to_string(),
            format!("at most {possible}"),
        ))
    }
}

/// Before release 1.5 the mode was a number; from then on the caller offers bits, and the two old numbers
/// stand alone.
fn mr_mode(hint: &'static str, wanted: u64, level: Level) -> Result<(), Clash> {
    let (basic, scalable) = (FI_MR_BASIC as u64, FI_MR_SCALABLE as u64);
    let is_old = wanted & (basic | scalable) != 0;
    let is_number = wanted == basic || wanted == scalable;
    let is_wrong = if level < Level::new(1, 5) {
        wanted != 0 && !is_number
    } else {
        is_old && !is_number
    };
    if !is_wrong {
        return Ok(());
    }
    Err(Clash::new(
        hint,
        format!("{wanted:#x}"),
        "FI_MR_BASIC or FI_MR_SCALABLE alone, or bits of 1.5 and later",
    ))
}

/// Checks what decides quickly: the kind of the endpoint, and names and objects that are not ours.
pub(crate) fn check_kind(hints: &Hints) -> Result<(), Clash> {
    if let Some(hint) = hints.foreign_object {
        return Err(Clash::new(
            hint,
            "an object that is none of this provider's",
            "one that it has opened",
        ));
    }
    let kind = hints.attributes.ep.r#type;
    if kind != 0 && kind != u64::from(FI_EP_RDM) {
        return Err(Clash::new("ep_attr.type", kind.to_string(), "FI_EP_RDM"));
    }
    let name = |hint, given: &Option<std::ffi::CString>, ours: &str| match given {
        Some(given) if given.to_bytes() != ours.as_bytes() => {
            Err(Clash::new(hint, shown(&given.to_string_lossy()), ours))
        }
        _ => Ok(()),
    };
    // A layer's hints name what is excluded, or several layers.
    let provider = hints.provider.clone();
    let provider =
        provider.filter(|name| !name.to_bytes().contains(&b';') && !name.to_bytes().contains(&b'^'));
    name("fabric_attr.prov_name", &provider, PROVIDER)?;
    name("fabric_attr.name", &hints.fabric_name, FABRIC)
}

/// Checks hints against an entry.
pub(crate) fn check(hints: Option<&Hints>, entry: &Entry, level: Level) -> Result<(), Clash> {
    let Some(hints) = hints else {
        return Ok(());
    };
    if hints.foreign_caps != 0 {
        let wanted = format!("bits {:#x} of release {level}", hints.foreign_caps);
        return Err(Clash::new("info.caps", wanted, "none of these"));
    }
    if let Some(name) = &hints.domain_name
        && name.to_bytes() != entry.domain.to_bytes()
    {
        return Err(Clash::new(
            "domain_attr.name",
            shown(&name.to_string_lossy()),
            entry.domain.to_string_lossy(),
        ));
    }
    if let Some(open) = hints.open.as_ref().filter(|open| open.rails != entry.domain) {
        return Err(Clash::new(
            "domain_attr.domain",
            format!("a domain of {}", open.rails.to_string_lossy()),
            format!("one of {}", entry.domain.to_string_lossy()),
        ));
    }
    for rule in RULES {
        rule.check(&hints.attributes, &entry.most, level)?;
    }
    let offered = hints.attributes.domain.mr_mode;
    match &hints.open {
        Some(open) if open.modes & !offered_bits(offered) != 0 => Err(Clash::new(
            "domain_attr.mr_mode",
            format!("{offered:#x}"),
            format!("no less than {:#x}, as the open domain has", open.modes),
        )),
        _ => Ok(()),
    }
}

/// Returns the names of bits, and the number of those without a name.
fn listed(bits: u64, names: &[(u64, &str)]) -> String {
    let mut rest = bits;
    let mut text = Vec::new();
    for (bit, name) in names {
        if bits & bit != 0 {
            rest &= !bit;
            text.push((*name).to_owned());
        }
    }
    if rest != 0 {
        text.push(format!("{rest:#x}"));
    }
    if text.is_empty() {
        "none".to_owned()
    } else {
        text.join(" ")
    }
}
