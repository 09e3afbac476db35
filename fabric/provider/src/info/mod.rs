//! getinfo: what is offered, and the matching of hints.
//!
//! ```text
//!   hints ── Hints::read ──► Attributes ── rules::check ──► refused: hint, wanted, possible
//!                                │
//!           offer::entries ──────┴── answer ──► Attributes ── write ──► fi_info
//! ```
//!
//! An entry is one rail set (`sets`). `attributes` has the table of all fields: where each is in libfabric's
//! structures, since which release, and by which rule a hint of it is judged. Reading, checking and writing
//! follow from the table.

mod answer;
mod attributes;
mod list;
pub(crate) mod names;
pub(crate) mod offer;
mod rules;
pub(crate) mod sets;
#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int};
use std::ptr;

use doorbell_job::lobby::MeetingKey;
use libfabric_sys::{FI_ENODATA, FI_LOG_CORE, Level, fi_info};

use crate::errno::{Errno, Result};
use crate::fence::guard;
use crate::object::give;
use crate::{log, params};

/// libfabric's own flag, in no public header (OFI_CORE_PROV_ONLY): a layer such as `ofi_rxm` looks for a
/// provider to stand upon. There is nothing that a layer could add here, and a program without hints would
/// get the layered entry first.
const FOR_A_LAYER: u64 = 1 << 59;

/// Lists what is offered and matches the hints: fi_getinfo(3).
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    guard("fi_getinfo", || {
        // SAFETY: the caller has the place for the result.
        unsafe { give(info, ptr::null_mut()) }?;
        if flags & FOR_A_LAYER != 0 {
            return Err(Errno(FI_ENODATA));
        }
        let level = Level::from_version(version);
        // SAFETY: null, or hints of a caller of this level, with all that they point to.
        let mut hints = unsafe { attributes::Hints::read(hints, level) }?;
        // SAFETY: null, or texts.
        let place = unsafe { names::Place::read(node, service, flags) };
        // Other flags are ignored.
        let list = find(level, place, hints.as_mut())?;
        // SAFETY: as above.
        unsafe { give(info, list.into_pointer()) }?;
        Ok(0)
    })
}

fn find(level: Level, place: names::Place, mut hints: Option<&mut attributes::Hints>) -> Result<list::List> {
    // The quickest first: layers look at every provider at each getinfo.
    if let Some(hints) = hints.as_deref() {
        rules::check_kind(hints).map_err(refused)?;
    }
    let unreadable = |error: doorbell_job::Error| {
        log::warn(FI_LOG_CORE, &error.sentence());
        Errno(FI_ENODATA)
    };
    let config = params::config().map_err(unreadable)?;
    // Every domain needs it, whether a peer is named here or in an address vector.
    let key = MeetingKey::of(&config).map_err(unreadable)?;
    let place = place.over(&config);
    let key = || Ok(key.clone());
    let (format, addresses) = names::addresses(&place, hints.as_deref_mut(), &key).map_err(refused)?;
    let hints = hints.as_deref();
    let mut list = list::List::new();
    let mut clash = None;
    let wanted = hints.and_then(attributes::Hints::domain);
    let open = hints.and_then(|hints| hints.open.as_ref());
    let is_open = open.is_some_and(|open| Some(open.rails.as_c_str()) == wanted);
    for entry in offer::entries(&config, wanted, is_open)? {
        match rules::check(hints, &entry, level) {
            Ok(()) => {
                let mut answer = answer::answer(hints, &entry, level);
                answer.info.addr_format = format.number();
                list.push(&answer, &entry, &addresses, hints, level)?;
            }
            Err(found) => clash = clash.or(Some(found)),
        }
    }
    match clash {
        Some(clash) if list.is_empty() => Err(refused(clash)),
        _ if list.is_empty() => Err(Errno(FI_ENODATA)),
        _ => Ok(list),
    }
}

/// Prints why nothing is offered.
fn refused(clash: rules::Clash) -> Errno {
    log::info(FI_LOG_CORE, || {
        format!(
            "not offered: the hint {} wants {}, and {} is possible",
            clash.hint, clash.wanted, clash.possible
        )
    });
    Errno(FI_ENODATA)
}
