//! The limits that an interface gets: those that the program requests, within what is possible; the
//! `PTL_LIM_*` variables set what it gets when it requests none (reference: portals, section 3). A variable
//! that is no number is refused in any case.
//!
//! The largest values are the reference implementation's, but where this library counts with fewer bits: a
//! handle has room for about a million objects of a kind, and no list is longer than there are entries.

use doorbell_fabric::ni::NiLimits;

use crate::abi::types::PtlNiLimits;

/// Objects of a kind that a handle has room for.
const OBJECTS: u64 = 1 << 20;
/// The most of what has no handle.
const MANY: u64 = i32::MAX as u64;
/// What an `int` and a `long` of C hold.
const LONG: u64 = i64::MAX as u64;

/// A limit: its variable, and its range.
struct Limit {
    variable: &'static str,
    least: u64,
    most: u64,
    usual: u64,
}

const fn limit(variable: &'static str, least: u64, most: u64, usual: u64) -> Limit {
    Limit {
        variable,
        least,
        most,
        usual,
    }
}

impl Limit {
    fn get(
        &self,
        desired: Option<u64>,
        variables: &dyn Fn(&str) -> Option<String>,
    ) -> Result<u64, WrongVariable> {
        let told = match variables(self.variable) {
            Some(text) => Some(text.parse().map_err(|_| self.wrong(text))?),
            None => None,
        };
        let value = desired.or(told).unwrap_or(self.usual);
        Ok(value.clamp(self.least, self.most))
    }

    #[cold]
    fn wrong(&self, text: String) -> WrongVariable {
        WrongVariable {
            name: self.variable,
            text,
            takes: format!("a number from {} to {}", self.least, self.most),
        }
    }
}

/// A variable with a value that it cannot take.
#[derive(Debug)]
pub(crate) struct WrongVariable {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    pub(crate) takes: String,
}

impl std::fmt::Display for WrongVariable {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, text, takes } = self;
        write!(out, "{name}={text:?}: it takes {takes}; set it so, or unset it")
    }
}

const MAX_ENTRIES: Limit = limit("PTL_LIM_MAX_ENTRIES", 0, OBJECTS, 1024);
const MAX_UNEXPECTED_HEADERS: Limit = limit("PTL_LIM_MAX_UNEXPECTED_HEADERS", 0, MANY, 1024);
const MAX_MDS: Limit = limit("PTL_LIM_MAX_MDS", 0, OBJECTS, 1024);
const MAX_CTS: Limit = limit("PTL_LIM_MAX_CTS", 0, OBJECTS, 1024);
const MAX_EQS: Limit = limit("PTL_LIM_MAX_EQS", 0, OBJECTS, 1024);
const MAX_PT_INDEX: Limit = limit("PTL_LIM_MAX_PT_INDEX", 1, 511, 63);
const MAX_IOVECS: Limit = limit("PTL_LIM_MAX_IOVECS", 0, MANY, 1024);
const MAX_LIST_SIZE: Limit = limit("PTL_LIM_MAX_LIST_SIZE", 0, MANY, 1024);
const MAX_TRIGGERED_OPS: Limit = limit("PTL_LIM_MAX_TRIGGERED_OPS", 0, MANY, 1024);
const MAX_MSG_SIZE: Limit = limit("PTL_LIM_MAX_MSG_SIZE", 0, 4 << 30, 4 << 30);
const MAX_ATOMIC_SIZE: Limit = limit("PTL_LIM_MAX_ATOMIC_SIZE", 0, 512, 512);
const MAX_FETCH_ATOMIC_SIZE: Limit = limit("PTL_LIM_MAX_FETCH_ATOMIC_SIZE", 8, 512, 512);
// The specification's least; the reference implementation's 8 is below it.
const MAX_WAW_ORDERED_SIZE: Limit = limit("PTL_LIM_MAX_WAW_ORDERED_SIZE", 64, LONG, 64);
const MAX_WAR_ORDERED_SIZE: Limit = limit("PTL_LIM_MAX_WAR_ORDERED_SIZE", 8, LONG, 8);
const MAX_VOLATILE_SIZE: Limit = limit("PTL_LIM_MAX_VOLATILE_SIZE", 0, 64, 64);
const FEATURES: Limit = limit("PTL_LIM_FEATURES", 0, 7, 0);

/// Every variable, for the documentation's test.
#[cfg(test)]
const ALL: [&Limit; 16] = [
    &MAX_ENTRIES,
    &MAX_UNEXPECTED_HEADERS,
    &MAX_MDS,
    &MAX_CTS,
    &MAX_EQS,
    &MAX_PT_INDEX,
    &MAX_IOVECS,
    &MAX_LIST_SIZE,
    &MAX_TRIGGERED_OPS,
    &MAX_MSG_SIZE,
    &MAX_ATOMIC_SIZE,
    &MAX_FETCH_ATOMIC_SIZE,
    &MAX_WAW_ORDERED_SIZE,
    &MAX_WAR_ORDERED_SIZE,
    &MAX_VOLATILE_SIZE,
    &FEATURES,
];

/// The limits to request from an interface.
///
/// # Errors
/// A variable that is no number.
pub(crate) fn wanted(
    desired: Option<&PtlNiLimits>,
    variables: &dyn Fn(&str) -> Option<String>,
) -> Result<NiLimits, WrongVariable> {
    let size = |limit: &Limit, get: fn(&PtlNiLimits) -> u64| limit.get(desired.map(get), variables);
    // Negative numbers are the least that can be.
    let int = |limit: &Limit, get: fn(&PtlNiLimits) -> i32| {
        let desired = desired.map(|limits| u64::try_from(get(limits)).unwrap_or(0));
        small(limit.get(desired, variables))
    };
    Ok(NiLimits {
        max_entries: int(&MAX_ENTRIES, |limits| limits.max_entries)?,
        max_unexpected_headers: int(&MAX_UNEXPECTED_HEADERS, |limits| limits.max_unexpected_headers)?,
        max_mds: int(&MAX_MDS, |limits| limits.max_mds)?,
        max_cts: int(&MAX_CTS, |limits| limits.max_cts)?,
        max_eqs: int(&MAX_EQS, |limits| limits.max_eqs)?,
        max_pt_index: int(&MAX_PT_INDEX, |limits| limits.max_pt_index)?,
        max_iovecs: int(&MAX_IOVECS, |limits| limits.max_iovecs)?,
        max_list_size: int(&MAX_LIST_SIZE, |limits| limits.max_list_size)?,
        max_triggered_ops: int(&MAX_TRIGGERED_OPS, |limits| limits.max_triggered_ops)?,
        max_msg_size: size(&MAX_MSG_SIZE, |limits| limits.max_msg_size)?,
        max_atomic_size: size(&MAX_ATOMIC_SIZE, |limits| limits.max_atomic_size)?,
        max_fetch_atomic_size: size(&MAX_FETCH_ATOMIC_SIZE, |limits| limits.max_fetch_atomic_size)?,
        max_waw_ordered_size: size(&MAX_WAW_ORDERED_SIZE, |limits| limits.max_waw_ordered_size)?,
        max_war_ordered_size: size(&MAX_WAR_ORDERED_SIZE, |limits| limits.max_war_ordered_size)?,
        max_volatile_size: size(&MAX_VOLATILE_SIZE, |limits| limits.max_volatile_size)?,
        features: small(size(&FEATURES, |limits| limits.features.into()))?,
    })
}

fn small(value: Result<u64, WrongVariable>) -> Result<u32, WrongVariable> {
    value.map(|value| u32::try_from(value).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_requests_nothing_gets_the_variables_within_bounds() {
        let none = |_: &str| None;
        assert_eq!(wanted(None, &none).unwrap(), NiLimits::default());
        let some = |name: &str| match name {
            "PTL_LIM_MAX_MDS" => Some("7".to_owned()),
            "PTL_LIM_MAX_PT_INDEX" => Some("100000".to_owned()),
            "PTL_LIM_MAX_WAW_ORDERED_SIZE" => Some("8".to_owned()),
            _ => None,
        };
        let limits = wanted(None, &some).unwrap();
        assert_eq!(
            (limits.max_mds, limits.max_pt_index, limits.max_cts),
            (7, 511, 1024)
        );
        assert_eq!(limits.max_waw_ordered_size, 64);
    }

    #[test]
    fn a_request_is_granted_within_bounds() {
        let mut desired = PtlNiLimits::from(&NiLimits::default());
        desired.max_mds = 5;
        desired.max_cts = -1;
        desired.max_pt_index = 0;
        desired.max_msg_size = u64::MAX;
        desired.features = u32::MAX;
        let some = |_: &str| Some("9".to_owned());
        let limits = wanted(Some(&desired), &some).unwrap();
        assert_eq!((limits.max_mds, limits.max_cts, limits.max_pt_index), (5, 0, 1));
        assert_eq!((limits.max_msg_size, limits.features), (4 << 30, 7));
        let back = PtlNiLimits::from(&limits);
        assert_eq!((back.max_mds, back.max_entries), (5, 1024));
    }

    #[test]
    fn a_variable_that_is_no_number_is_refused_whatever_the_program_asks_for() {
        let desired = PtlNiLimits::from(&NiLimits::default());
        for limit in ALL {
            for text in ["many", "-1", "1K"] {
                let some = |name: &str| (name == limit.variable).then(|| text.to_owned());
                for desired in [None, Some(&desired)] {
                    let said = wanted(desired, &some).unwrap_err().to_string();
                    let (name, least, most) = (limit.variable, limit.least, limit.most);
                    assert!(said.contains(&format!("{name}={text:?}")), "{said}");
                    assert!(said.contains(&format!("from {least} to {most}")), "{said}");
                }
            }
        }
    }

    #[test]
    fn usual_values_are_possible_ones() {
        for limit in ALL {
            assert!(
                (limit.least..=limit.most).contains(&limit.usual),
                "{}",
                limit.variable
            );
        }
    }
}
